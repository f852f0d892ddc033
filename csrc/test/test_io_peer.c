/* Connected sockets of peers that are sent much in single datagrams (io/peer.c): that they come
 * and go, and that nothing which can happen to them is felt by the connection. */
#include "io/priv.h"
#include "test_io.h"
#include "test_nat.h"

#include <errno.h>
#include <linux/filter.h>
#include <unistd.h>

enum { SINGLE = UDT_PORT_NO_GSO | UDT_PORT_NO_GRO, SIZE = 12 << 20 };

static io_port *inside(tio *t)
{
    io_port *p = io_handle_get(t->ctx, t->port, IO_KIND_PORT, NULL);
    CHECK(p);
    io_handle_put(t->ctx, t->port);
    return p;
}

/* A port whose peers count as busy early, however slow the machine is. */
static tio *single(int family)
{
    tio *t = tio_open(family, SINGLE);
    io_port *p = inside(t);
    pthread_mutex_lock(&p->mu);
    p->peer_busy_bytes = 256 << 10;
    pthread_mutex_unlock(&p->mu);
    return t;
}

/* The connected sockets; *fd is the last of them. */
static int connected(tio *t, int *fd)
{
    io_port *p = inside(t);
    int n = 0;
    pthread_mutex_lock(&p->mu);
    for (int i = 0; i < IO_PEERS; i++)
        if (p->peer[i].fd >= 0) {
            n++;
            if (fd)
                *fd = p->peer[i].fd;
        }
    CHECK_INT(p->npeers, n);
    pthread_mutex_unlock(&p->mu);
    return n;
}

static void wait_none(tio *t, int ms)
{
    int64_t end = tio_now_us() + (int64_t)ms * 1000;
    while (connected(t, NULL) > 0) {
        CHECK(tio_now_us() < end);
        usleep(10000);
    }
}

static void has_one(void *arg)
{
    CHECK_INT(connected(arg, NULL), 1);
}

TEST(io_peer_socket_comes_and_goes)
{
    int at_first = tio_fds();
    for (int family = 4; family <= 6; family += 2) {
        tio *a = single(family), *b = single(family);
        udt_sock_opts o = {.type = 1, .own_peer = true};
        int32_t sa, sb;
        tio_pair(a, b, &o, &sa, &sb);
        int open = tio_fds();
        tio_move(a, sa, b, sb, SIZE, has_one, a);
        CHECK_INT(connected(b, NULL), 0); /* acknowledgements are little */
        wait_none(a, 10000);
        CHECK_INT(tio_fds(), open);
        tio_move(b, sb, a, sa, SIZE, has_one, b);
        tio_move(a, sa, b, sb, SIZE, has_one, a); /* both have one, closed with their ports */
        tio_free(a);
        tio_free(b);
    }
    CHECK_INT(tio_fds(), at_first);
}

TEST(io_peer_sockets_are_few)
{
    enum { N = IO_PEERS + 3 };
    tio *a = single(4), *b[N];
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa[N], sb[N];
    for (int i = 0; i < N; i++) {
        b[i] = single(4);
        tio_pair(a, b[i], &o, &sa[i], &sb[i]);
    }
    for (int i = 0; i < N; i++) {
        tio_move(a, sa[i], b[i], sb[i], SIZE, NULL, NULL);
        CHECK(connected(a, NULL) <= IO_PEERS);
    }
    wait_none(a, 10000);
    tio_free(a);
    for (int i = 0; i < N; i++)
        tio_free(b[i]);
}

/* Nobody else may have the port, neither before nor after one was made. */
static void taken(void *arg)
{
    tio *a = arg;
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons(a->at.port)};
    int one = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK_INT(connected(a, NULL), 1);
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) < 0);
    CHECK_INT(errno, EADDRINUSE);
    close(fd);
}

/* It hears nothing any more, as when our address has changed. */
static void deafen(void *arg)
{
    struct sock_filter none = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog prog = {.len = 1, .filter = &none};
    int fd;
    CHECK_INT(connected(arg, &fd), 1);
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog), 0);
}

static void no_more_sending(void *arg)
{
    int fd;
    CHECK_INT(connected(arg, &fd), 1);
    CHECK_INT(shutdown(fd, SHUT_WR), 0); /* EPIPE from now on */
}

TEST(io_peer_socket_that_fails_is_not_missed)
{
    void (*what[])(void *) = {taken, deafen, no_more_sending};
    for (int i = 0; i < 3; i++) {
        tio *a = single(4), *b = single(4);
        udt_sock_opts o = {.type = 1, .own_peer = true};
        int32_t sa, sb;
        udt_event ev;
        tio_pair(a, b, &o, &sa, &sb);
        tio_move(a, sa, b, sb, SIZE, what[i], a);
        tio_pull(a, 0);
        CHECK(!tio_take(a, UDT_IO_FAILED, 0, &ev) && !tio_take(a, UDT_IO_PORT_FAILED, 0, &ev));
        if (i > 0) { /* and for a while there is no other */
            wait_none(a, 10000);
            CHECK(inside(a)->peers_at > tio_now_us());
            tio_move(a, sa, b, sb, SIZE, NULL, NULL);
        }
        tio_free(a);
        tio_free(b);
    }
}

/* The peer's port is closed: the kernel says so to the connected socket. */
TEST(io_peer_socket_hears_of_a_closed_port)
{
    tio *a = single(4), *b = single(4), *c = single(4);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb, ca, cb;
    udt_event ev;
    tio_pair(a, b, &o, &sa, &sb);
    tio_move(a, sa, b, sb, SIZE, has_one, a);
    CHECK_INT(connected(a, NULL), 1);
    udt_addr gone = b->at;
    tio_free(b);
    int64_t t0 = tio_now_us();
    int32_t s = udt_connect(a->ctx, a->port, &gone, &o);
    CHECK(s > 0);
    CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_UNREACHABLE);
    CHECK(tio_now_us() - t0 < 2000000);
    CHECK(!io_ctx_disk_made(a->ctx)); /* no file was moved: there are no threads for that */
    tio_pair(a, c, &o, &ca, &cb);     /* the port is none the worse for it */
    tio_move(a, ca, c, cb, SIZE, NULL, NULL);
    CHECK(!tio_take(a, UDT_IO_PORT_FAILED, 0, &ev));
    tio_free(a);
    tio_free(c);
}

struct path {
    tio *t;
    uint16_t port;
};

static void has_one_to(void *arg)
{
    const struct path *to = arg;
    io_port *p = inside(to->t);
    bool found = false;
    pthread_mutex_lock(&p->mu);
    for (int i = 0; i < IO_PEERS; i++)
        found |= p->peer[i].fd >= 0 && p->peer[i].to.port == to->port;
    pthread_mutex_unlock(&p->mu);
    CHECK(found);
}

/* The peer comes from another address: it is followed, and the socket to the old one goes. */
TEST(io_peer_moves)
{
    for (int plain = 0; plain < 2; plain++) {
        tio *a = single(4), *b = single(4);
        nat *t = nat_open(b->at.port);
        udt_addr to = tio_loopback(4, t->port);
        udt_sock_opts o = {.type = 1, .plain_data = plain, .max_bw_Bps = 20000000};
        uint8_t key[UDT_PSK_BYTES] = {(uint8_t)(1 + plain), 3};
        udt_port_stats st;
        int32_t sb = udt_open_keyed(b->ctx, b->port, NULL, &o, key, false);
        int32_t sa = udt_open_keyed(a->ctx, a->port, &to, &o, key, true);
        tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
        tio_wait(b, UDT_IO_CONNECTED, sb, 5000);
        tio_move(b, sb, a, sa, SIZE, has_one_to, &(struct path){b, nat_port(t, 0)});
        tio_move(b, sb, a, sa, SIZE, nat_forget, t);
        wait_none(b, 10000);
        pthread_mutex_lock(&inside(b)->mu);
        inside(b)->peers_at = 0; /* it may have been barred: it heard nothing at the end */
        pthread_mutex_unlock(&inside(b)->mu);
        tio_move(b, sb, a, sa, SIZE, has_one_to, &(struct path){b, nat_port(t, 1)});
        CHECK_INT(udt_port_stats_get(b->ctx, b->port, &st), 0);
        CHECK_INT(st.moves, 1);
        wait_none(b, 10000);
        tio_free(a);
        tio_free(b);
        nat_close(t);
    }
}

/* In a forked child the inherited descriptors are given back. */
TEST(io_peer_socket_in_a_child)
{
    tio *a = single(4), *b = single(4);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb;
    int fd, left = -1;
    tio_pair(a, b, &o, &sa, &sb);
    tio_move(a, sa, b, sb, SIZE, has_one, a);
    CHECK_INT(connected(a, &fd), 1);
    for (int i = 0; i < IO_MAX_FDS; i++)
        left = atomic_load(&a->ctx->fds[i]) == fd ? i : left;
    CHECK(left > 2 * IO_MAX_PORTS);
    wait_none(a, 10000);
    CHECK_INT(atomic_load(&a->ctx->fds[left]), 0);
    tio_free(a);
    tio_free(b);
}
