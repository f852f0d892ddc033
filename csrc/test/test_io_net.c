/* What the network layer does when the kernel or a path refuses: segmentation, ICMP, strays. */
#include "io/priv.h"
#include "test_io.h"

#include "io/sockaddr.h"

#include <linux/filter.h>
#include <unistd.h>

static io_port *inside(tio *t)
{
    io_port *p = io_handle_get(t->ctx, t->port, IO_KIND_PORT, NULL);
    CHECK(p);
    return p;
}

/* A MANUAL sender so that the test may look into its port; the receiver has a thread. */
static uint64_t send_as(tio *a, tio *b, const udt_sock_opts *o, size_t size, uint64_t total)
{
    static uint8_t buf[1 << 16];
    uint64_t sent = 0, got = 0;
    udt_event ev;
    int64_t limit = tio_now_us() + 30000000;
    int32_t l = udt_listen(b->ctx, b->port, o, 0), sb = 0;
    int32_t sa = udt_connect(a->ctx, a->port, &b->at, o);
    CHECK(l > 0 && sa > 0);
    bool open = false;
    while (got < total) {
        CHECK(tio_now_us() < limit);
        CHECK_INT(udt_port_run(a->ctx, a->port, 500), 0);
        tio_pull(a, 0);
        tio_pull(b, 0);
        open |= tio_take(a, UDT_IO_CONNECTED, sa, &ev);
        sb = tio_take(b, UDT_IO_ACCEPTED, 0, &ev) ? ev.sock : sb;
        tio_drop(a, UDT_IO_WRITABLE, sa);
        tio_drop(b, UDT_IO_READABLE, sb);
        while (open && sent < total) {
            tio_fill(buf, size, 4, sent);
            ssize_t n = o->type == 1 ? udt_send(a->ctx, sa, buf, size)
                                     : udt_sendmsg(a->ctx, sa, buf, size, -1, true);
            if (n < 0)
                break;
            sent += o->type == 1 ? (uint64_t)n : size;
        }
        ssize_t n;
        while (sb && (n = o->type == 1 ? udt_recv(b->ctx, sb, buf, sizeof buf)
                                       : udt_recvmsg(b->ctx, sb, buf, sizeof buf)) > 0) {
            tio_check(buf, (size_t)n, 4, got);
            got += (uint64_t)n;
        }
    }
    return got;
}

static uint64_t send_all(tio *a, tio *b, uint64_t total)
{
    udt_sock_opts o = {.type = 1, .own_peer = true};
    return send_as(a, b, &o, 1 << 16, total);
}

/* Messages in packets of 128 bytes: batches to a foreign peer are short and join in one message of
 * the kernel, which takes 65,000 bytes of them, but not 500. */
TEST(io_net_joined_messages_are_taken)
{
    tio *a = tio_open(4, UDT_PORT_MANUAL), *b = tio_open(4, 0);
    io_port *p = inside(a);
    udt_sock_opts o = {.type = 2, .no_extensions = true};
    if (p->gso) {
        CHECK(send_as(a, b, &o, 112, 2 << 20) >= 2 << 20);
        CHECK_INT(p->no_gso_n, 0);
        CHECK(p->st.dgrams_out > (2 << 20) / 128);
        CHECK(p->st.send_calls < p->st.dgrams_out / 4);
    }
    io_handle_put(a->ctx, a->port);
    tio_free(a);
    tio_free(b);
}

TEST(io_net_path_without_segmentation)
{
    tio *a = tio_open(4, UDT_PORT_MANUAL), *b = tio_open(4, 0);
    io_port *p = inside(a);
    int one = 1;
    if (p->gso) { /* a socket without checksums refuses UDP_SEGMENT with EINVAL */
        CHECK_INT(setsockopt(p->fd, SOL_SOCKET, SO_NO_CHECK, &one, sizeof one), 0);
        CHECK(send_all(a, b, 2 << 20) >= 2 << 20);
        CHECK_INT(p->no_gso_n, 1); /* asked once, then remembered for the path */
        CHECK_INT(p->no_gso[0].port, b->at.port);
        CHECK(p->st.dgrams_out > (2 << 20) / 1472);
    }
    io_handle_put(a->ctx, a->port);
    tio_free(a);
    tio_free(b);
}

TEST(io_net_strays_are_counted_and_dropped)
{
    tio *a = tio_open(4, 0);
    struct sockaddr_storage ss;
    socklen_t len = sockaddr_put(&ss, &a->at, false);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint64_t x = test_seed | 1;
    uint8_t buf[2000];
    CHECK(udt_listen(a->ctx, a->port, NULL, 0) > 0);
    for (int i = 0; i < 3000; i++) {
        for (size_t k = 0; k < sizeof buf; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            buf[k] = (uint8_t)x;
        }
        if (i % 3 == 0)
            buf[0] = 0xC7; /* GMP, of which there is none here */
        (void)sendto(fd, buf, (size_t)i % sizeof buf, 0, (struct sockaddr *)&ss, len);
        if (i % 100 == 0)
            usleep(1000);
    }
    usleep(500000);
    udt_port_stats st;
    CHECK_INT(udt_port_stats_get(a->ctx, a->port, &st), 0);
    CHECK(st.dgrams_in > 2000);
    CHECK(st.bytes_out <= st.bytes_in);
    CHECK_INT(st.sockets <= 1, 1);
    CHECK_INT(st.half_open, 0);
    close(fd);
    tio_free(a);
}

TEST(io_net_addresses)
{
    struct sockaddr_storage ss;
    udt_addr a = tio_loopback(4, 80), b, c = {.family = 6, .port = 9, .scope = 3};
    sockaddr_put(&ss, &a, true); /* v4-mapped for the kernel, IPv4 for everybody else */
    CHECK_INT(ss.ss_family, AF_INET6);
    CHECK(sockaddr_get(&ss, &b));
    CHECK_MEM(&a, &b, sizeof a);
    sockaddr_put(&ss, &a, false);
    CHECK(sockaddr_get(&ss, &b));
    CHECK_MEM(&a, &b, sizeof a);
    c.ip[0] = 0xfe;
    c.ip[1] = 0x80;
    c.ip[15] = 1;
    sockaddr_put(&ss, &c, true);
    CHECK(sockaddr_get(&ss, &b));
    CHECK_MEM(&c, &b, sizeof c);
    ss.ss_family = AF_UNIX;
    CHECK(!sockaddr_get(&ss, &b));
}

/* What callers write is one address however they spell it: v4-mapped, with a scope where there is
 * none, or with rubbish behind the four bytes. A connection made so is found by its answers. */
TEST(io_net_plain_addresses)
{
    udt_addr four = tio_loopback(4, 80), six = tio_loopback(6, 80), a = {.family = 6, .port = 80};
    a.ip[10] = a.ip[11] = 0xff;
    memcpy(a.ip + 12, four.ip, 4);
    a.scope = 2;
    a = sockaddr_plain(&a);
    CHECK_MEM(&a, &four, sizeof a);
    a.ip[9] = 7;
    a.scope = 1;
    a = sockaddr_plain(&a);
    CHECK_MEM(&a, &four, sizeof a);
    a = six;
    a.scope = 1;
    a = sockaddr_plain(&a);
    CHECK_MEM(&a, &six, sizeof a);
    a.ip[0] = 0xfe;
    a.ip[1] = 0x80;
    a.scope = 3;
    udt_addr local = sockaddr_plain(&a);
    CHECK_MEM(&a, &local, sizeof a);
    a = (udt_addr){0};
    a = sockaddr_plain(&a);
    CHECK_INT(a.family, 0);

    for (int how = 0; how < 3; how++) {
        tio *s = tio_open(how == 2 ? 6 : 4, 0), *c = tio_open(how == 2 ? 6 : 4, 0);
        udt_addr to = s->at, peer;
        if (how == 0) {
            to.ip[10] = to.ip[11] = 0xff;
            memcpy(to.ip + 12, to.ip, 4);
            memset(to.ip, 0, 4);
            to.family = 6;
        } else if (how == 1) {
            to.ip[15] = 9;
        } else {
            to.scope = 1;
        }
        CHECK(udt_listen(s->ctx, s->port, NULL, 8) > 0);
        int32_t sock = udt_connect(c->ctx, c->port, &to, NULL);
        CHECK(sock > 0);
        tio_wait(c, UDT_IO_CONNECTED, sock, 5000);
        CHECK_INT(udt_sock_peer(c->ctx, sock, &peer), 0);
        CHECK_MEM(&peer, &s->at, sizeof peer);
        tio_free(c);
        tio_free(s);
    }
}

static void *hear_again(void *arg)
{
    int none = 0;
    usleep(900000);
    CHECK_INT(setsockopt(*(int *)arg, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none), 0);
    return NULL;
}

static pthread_t hearing;

static void deafen(void *arg)
{
    struct sock_filter drop_all = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog prog = {.len = 1, .filter = &drop_all};
    CHECK_INT(setsockopt(*(int *)arg, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog), 0);
    CHECK_INT(pthread_create(&hearing, NULL, hear_again, arg), 0);
}

/* Everything arrives and nobody hears of it: once they do, it goes on, however small the timeouts
 * have made the window and however much is in flight. */
TEST(io_net_unheard_for_a_second)
{
    for (int i = 0; i < 2; i++) {
        uint32_t flags = i ? UDT_PORT_NO_GSO | UDT_PORT_NO_GRO : 0;
        tio *a = tio_open(4, flags), *b = tio_open(4, flags);
        udt_sock_opts o = {.type = 1, .own_peer = true};
        int32_t sa, sb;
        tio_pair(a, b, &o, &sa, &sb);
        int64_t t0 = tio_now_us();
        tio_move(a, sa, b, sb, 12 << 20, deafen, &inside(a)->fd);
        CHECK(tio_now_us() - t0 < 6000000);
        pthread_join(hearing, NULL);
        io_handle_put(a->ctx, a->port);
        tio_free(a);
        tio_free(b);
    }
}

static int64_t cpu_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* What a thousand times "nobody listens there" of an address that nobody asks cost, at best. */
static int64_t told_us(io_port *p, const udt_addr *who)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        int64_t us = cpu_us();
        for (int k = 0; k < 1000; k++)
            io_sock_unreachable(p, who);
        best = io_least(best, cpu_us() - us);
    }
    return best;
}

/* ICMP can be forged by whoever guesses a port: however many connections it has, what concerns none
 * of them costs nothing, and a client that it does concern hears it among all the others. */
TEST(io_net_icmp_looks_at_clients_that_wait_alone)
{
    enum { CONNS = 4000 };
    tio *t = tio_open(4, UDT_PORT_MANUAL);
    udt_sock_opts o = {.type = 1};
    udt_addr peer = tio_loopback(4, 9), nobody = tio_loopback(4, 8), gone = tio_loopback(4, 7);
    io_port *p = inside(t);
    int64_t none = told_us(p, &nobody);
    for (uint32_t i = 1; i <= CONNS; i++) {
        o.tag = i;
        CHECK(udt_rendezvous(t->ctx, t->port, &peer, &o) > 0);
    }
    int64_t many = told_us(p, &nobody);
    printf("# a thousand: %lld us without connections, %lld us with %d\n", (long long)none,
           (long long)many, CONNS);
    CHECK(many < 20 * none + 500);
    int32_t first = udt_connect(t->ctx, t->port, &gone, NULL);
    int32_t other = udt_connect(t->ctx, t->port, &peer, NULL);
    int32_t last = udt_connect(t->ctx, t->port, &gone, NULL);
    CHECK(first > 0 && other > 0 && last > 0);
    io_manual_enter(p);
    io_sock_unreachable(p, &gone);
    io_manual_leave(p);
    udt_event ev;
    tio_pull(t, 0);
    CHECK(tio_take(t, UDT_IO_FAILED, first, &ev) && ev.err == UDT_E_UNREACHABLE);
    CHECK(tio_take(t, UDT_IO_FAILED, last, &ev) && ev.err == UDT_E_UNREACHABLE);
    CHECK(!tio_take(t, UDT_IO_FAILED, other, &ev));
    CHECK_INT(udt_close(t->ctx, first, 0), 0); /* not twice */
    io_manual_enter(p);
    io_sock_unreachable(p, &gone);
    io_sock_unreachable(p, &peer);
    io_manual_leave(p);
    tio_pull(t, 0);
    CHECK(!tio_take(t, UDT_IO_FAILED, last, &ev));
    CHECK(tio_take(t, UDT_IO_FAILED, other, &ev) && ev.err == UDT_E_UNREACHABLE);
    io_handle_put(t->ctx, t->port);
    tio_free(t);
}
