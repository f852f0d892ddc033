/* Opening by key and by pre-shared key over real sockets, and a NAT that forgets its mapping. */
#include "test_io.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sends `size` bytes from a's socket to b's and checks them; `half` runs when half of it came. */
static void move(tio *a, int32_t sa, tio *b, int32_t sb, uint64_t size, void (*half)(void *),
                 void *arg)
{
    static uint8_t buf[65536];
    uint64_t sent = 0, got = 0;
    int64_t end = tio_now_us() + 20000000;
    while (got < size) {
        CHECK(tio_now_us() < end);
        if (sent < size) {
            size_t n = size - sent < sizeof buf ? (size_t)(size - sent) : sizeof buf;
            tio_fill(buf, n, 1, sent);
            ssize_t w = udt_send(a->ctx, sa, buf, n);
            CHECK(w > 0 || w == UDT_E_AGAIN);
            sent += w > 0 ? (uint64_t)w : 0;
        }
        ssize_t r;
        while ((r = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0) {
            tio_check(buf, (size_t)r, 1, got);
            got += (uint64_t)r;
        }
        CHECK_INT(r, UDT_E_AGAIN);
        if (half && got > size / 2) {
            half(arg);
            half = NULL;
        }
        tio_pull(b, 1000);
        tio_pull(a, 0);
        tio_drop(b, UDT_IO_READABLE, sb);
        tio_drop(a, UDT_IO_WRITABLE, sa);
        tio_drop(a, UDT_IO_DRAINED, sa);
    }
}

TEST(io_open_keyed_both_families)
{
    for (int family = 4; family <= 6; family += 2)
        for (int plain = 0; plain < 2; plain++) {
            tio *a = tio_open(family, 0), *b = tio_open(family, 0);
            udt_sock_opts o = {.type = 1, .plain_data = plain};
            uint8_t key[UDT_PSK_BYTES] = {(uint8_t)(family + plain), 9};
            int32_t sb = udt_open_keyed(b->ctx, b->port, NULL, &o, key, false);
            int32_t sa = udt_open_keyed(a->ctx, a->port, &b->at, &o, key, true);
            CHECK(sa > 0 && sb > 0);
            CHECK_INT(udt_send(a->ctx, sa, (const uint8_t *)"now", 3), 3); /* no waiting */
            tio_wait(b, UDT_IO_CONNECTED, sb, 5000);
            tio_wait(b, UDT_IO_READABLE, sb, 5000);
            uint8_t got[8];
            CHECK_INT(udt_recv(b->ctx, sb, got, sizeof got), 3);
            tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
            udt_addr peer;
            CHECK_INT(udt_sock_peer(b->ctx, sb, &peer), 0);
            CHECK_INT(peer.port, a->at.port);
            move(a, sa, b, sb, 20000000, NULL, NULL);
            int32_t again = udt_open_keyed(a->ctx, a->port, &b->at, &o, key, true);
            udt_event ev = tio_wait(a, UDT_IO_FAILED, again, 5000);
            CHECK_INT(ev.err, UDT_E_INUSE);
            CHECK_INT(udt_open_keyed(a->ctx, a->port, NULL, &o, key, true), UDT_E_INVAL);
            CHECK_INT(udt_open_keyed(a->ctx, a->port, &b->at, &o, NULL, true), UDT_E_INVAL);
            tio_free(a);
            tio_free(b);
        }
}

TEST(io_open_pre_shared_key)
{
    uint8_t key[UDT_PSK_BYTES] = {1}, other[UDT_PSK_BYTES] = {2};
    for (int family = 4; family <= 6; family += 2)
        for (int what = 0; what < 3; what++) {
            tio *a = tio_open(family, 0), *b = tio_open(family, 0);
            udt_sock_opts o = {.type = 1, .psk = key, .require_key = true}, c = o;
            c.psk = what == 0 ? key : what == 1 ? other : NULL;
            c.require_key = false;
            int32_t l = udt_listen(b->ctx, b->port, &o, 0);
            int32_t s = udt_connect(a->ctx, a->port, &b->at, &c);
            CHECK(l > 0 && s > 0);
            if (what == 0) {
                tio_wait(a, UDT_IO_CONNECTED, s, 5000);
                udt_event ev = tio_wait(b, UDT_IO_ACCEPTED, 0, 5000);
                move(a, s, b, ev.sock, 3000000, NULL, NULL);
            } else if (family == 4) {
                CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_AUTH);
            } else { /* told after the handshake: it ends before the listener accepts it */
                udt_event ev;
                tio_pull(b, 500000);
                CHECK(!tio_take(b, UDT_IO_ACCEPTED, 0, &ev));
            }
            tio_free(a);
            tio_free(b);
        }
    tio *a = tio_open(4, 0);
    udt_sock_opts bad = {.type = 1, .require_key = true};
    CHECK_INT(udt_listen(a->ctx, a->port, &bad, 0), UDT_E_INVAL);
    tio_free(a);
}

/* A NAT between the two: what a sends to it comes to b from one of two ports. */
typedef struct nat {
    int front, back[2];
    _Atomic int cur, stop;
    struct sockaddr_in client, server;
    pthread_t thread;
} nat;

static int udp(struct sockaddr_in *at)
{
    socklen_t n = sizeof *at;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), buf = 4 << 20;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, n) == 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)at, &n), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf);
    return fd;
}

static void *nat_main(void *arg)
{
    nat *t = arg;
    uint8_t pkt[2048];
    while (!atomic_load(&t->stop)) {
        int cur = atomic_load(&t->cur);
        struct pollfd pf[2] = {{.fd = t->front, .events = POLLIN},
                               {.fd = t->back[cur], .events = POLLIN}};
        if (poll(pf, 2, 20) <= 0)
            continue;
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        ssize_t n;
        for (int i = 0; i < 64; i++) {
            n = recvfrom(t->front, pkt, sizeof pkt, MSG_DONTWAIT, (struct sockaddr *)&from, &len);
            if (n <= 0)
                break;
            t->client = from;
            sendto(t->back[cur], pkt, (size_t)n, 0, (struct sockaddr *)&t->server,
                   sizeof t->server);
        }
        for (int i = 0; i < 64; i++) {
            n = recv(t->back[cur], pkt, sizeof pkt, MSG_DONTWAIT);
            if (n <= 0)
                break;
            sendto(t->front, pkt, (size_t)n, 0, (struct sockaddr *)&t->client, sizeof t->client);
        }
    }
    return NULL;
}

static void forget(void *arg)
{
    atomic_store(&((nat *)arg)->cur, 1);
}

TEST(io_open_survives_a_new_mapping)
{
    for (int plain = 0; plain < 2; plain++)
        for (int up = 0; up < 2; up++) {
            tio *a = tio_open(4, 0), *b = tio_open(4, 0);
            nat t = {0};
            struct sockaddr_in at, back[2];
            t.front = udp(&at);
            for (int i = 0; i < 2; i++)
                t.back[i] = udp(&back[i]);
            t.server = (struct sockaddr_in){.sin_family = AF_INET,
                                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                            .sin_port = htons(b->at.port)};
            CHECK_INT(pthread_create(&t.thread, NULL, nat_main, &t), 0);
            udt_addr to = tio_loopback(4, ntohs(at.sin_port));
            udt_sock_opts o = {.type = 1, .plain_data = plain, .max_bw_Bps = 20000000};
            uint8_t key[UDT_PSK_BYTES] = {(uint8_t)(1 + plain), 3};
            int32_t sb = udt_open_keyed(b->ctx, b->port, NULL, &o, key, false);
            int32_t sa = udt_open_keyed(a->ctx, a->port, &to, &o, key, true);
            tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
            tio_wait(b, UDT_IO_CONNECTED, sb, 5000);
            if (up)
                move(a, sa, b, sb, 10000000, forget, &t);
            else
                move(b, sb, a, sa, 10000000, forget, &t);
            udt_port_stats st;
            usleep(300000);
            CHECK_INT(udt_port_stats_get(b->ctx, b->port, &st), 0);
            CHECK_INT(st.moves, 1);
            tio_free(a);
            tio_free(b);
            atomic_store(&t.stop, 1);
            pthread_join(t.thread, NULL);
            close(t.front);
            close(t.back[0]);
            close(t.back[1]);
        }
}
