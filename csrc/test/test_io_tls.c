/* File transfers over striped TLS connections, and the change from UDP to them. */
#include "test_xfer.h"

#include <errno.h>
#include <sys/resource.h>

struct tls_case {
    bool pull, encrypt;
    int64_t size;
    uint16_t stripes;
    int32_t udp_wait_ms;
    const udt_addr *to; /* NULL = the peer */
};

static int32_t start(tio *t, const udt_addr *to, const udt_ticket *k, int fd, uint32_t flags,
                     const struct tls_case *c, uint16_t tcp_port)
{
    udt_xfer_opts o = {.flags = flags,
                       .length = c->size,
                       .start_ms = 8000,
                       .tcp_port = tcp_port,
                       .tcp_stripes = to ? c->stripes : 0,
                       .udp_wait_ms = c->udp_wait_ms};
    int32_t x = udt_xfer_start(t->ctx, t->port, to, k, fd, &o);
    CHECK(x > 0);
    return x;
}

static udt_xfer_result whole(tio *a, tio *b, const struct tls_case *c, uint64_t key)
{
    int src = xf_file(c->size, key), dst = xf_empty();
    udt_ticket k = xf_ticket(c->encrypt);
    tio *s = c->pull ? b : a, *r = c->pull ? a : b;
    const udt_addr *to = c->to ? c->to : &b->at;
    uint32_t sf = UDT_XFER_SEND | (c->pull ? 0 : UDT_XFER_INITIATOR);
    int32_t xs, xr; /* the one who waits begins, as a slave does */
    if (c->pull) {
        xs = start(s, NULL, &k, src, sf, c, 0);
        xr = start(r, to, &k, dst, UDT_XFER_INITIATOR, c, b->at.port);
    } else {
        xr = start(r, NULL, &k, dst, 0, c, 0);
        xs = start(s, to, &k, src, sf, c, b->at.port);
    }
    udt_event ev = tio_wait(r, UDT_IO_XFER_FIN, xr, 10000);
    udt_xfer_result rs, rr;
    CHECK_INT(ev.value, c->size);
    xf_same(dst, 0, c->size, key);
    CHECK_INT(xf_size(dst), c->size);
    CHECK_INT(udt_xfer_finish(r->ctx, xr, 0, 7, 9, 1), 0);
    CHECK_INT(tio_wait(s, UDT_IO_XFER_DONE, xs, 10000).err, 0);
    CHECK_INT(tio_wait(r, UDT_IO_XFER_DONE, xr, 10000).err, 0);
    CHECK_INT(udt_xfer_result_get(s->ctx, xs, &rs), 0);
    CHECK_INT(udt_xfer_result_get(r->ctx, xr, &rr), 0);
    CHECK(rs.version_epoch == 7 && rs.version_counter == 9 && rs.durable == 1);
    CHECK_MEM(rs.digest, rr.digest, 32);
    CHECK_INT(rs.path, rr.path);
    CHECK(rs.stats.bytes_sent >= c->size && rr.stats.bytes_recv >= c->size);
    CHECK_INT(udt_xfer_free(s->ctx, xs), 0);
    CHECK_INT(udt_xfer_free(r->ctx, xr), 0);
    tio_drop(s, UDT_IO_XFER_OPEN, xs);
    tio_drop(r, UDT_IO_XFER_OPEN, xr);
    tio_drop(s, UDT_IO_XFER_PROGRESS, xs);
    tio_drop(r, UDT_IO_XFER_PROGRESS, xr);
    close(src);
    close(dst);
    return c->pull ? rr : rs;
}

/* b takes TLS too. */
static void pair(tio **a, tio **b, int family)
{
    *a = tio_open(family, 0);
    *b = tio_open_tls(family);
    CHECK_INT(udt_port_listen_tls((*b)->ctx, (*b)->port, 0), UDT_E_INUSE);
}

/* A UDP address where everything is swallowed. */
static int black_hole(udt_addr *at)
{
    uint16_t port;
    int fd = tio_udp(&port);
    *at = tio_loopback(4, port);
    return fd;
}

TEST(tls_sizes_directions_and_both_modes)
{
    static const int64_t sizes[] = {0, 1, 16384, 65537, UDT_BLOCK_BYTES, 3 * UDT_BLOCK_BYTES + 5};
    tio *a, *b;
    for (int family = 4; family <= 6; family += 2) {
        pair(&a, &b, family);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int mode = 0; mode < 4; mode++) {
                struct tls_case c = {.encrypt = mode & 1,
                                     .pull = mode & 2,
                                     .size = sizes[i],
                                     .stripes = 4,
                                     .udp_wait_ms = -1};
                udt_xfer_result r = whole(a, b, &c, i + 1);
                CHECK_INT(r.path, UDT_PATH_TLS);
                CHECK_INT(r.path_why, UDT_PATH_WHY_ASKED);
            }
        tio_free(a);
        tio_free(b);
    }
}

TEST(tls_large_over_few_and_many_connections)
{
    static const uint16_t stripes[] = {1, 2, 4, 16};
    tio *a, *b;
    pair(&a, &b, 4);
    for (size_t i = 0; i < 4; i++) {
        struct tls_case c = {.encrypt = true,
                             .pull = i & 1,
                             .size = (test_scale < 100 ? 16 : 48) * UDT_BLOCK_BYTES + 12345,
                             .stripes = stripes[i],
                             .udp_wait_ms = -1};
        udt_xfer_result r = whole(a, b, &c, i);
        CHECK_INT(r.path, UDT_PATH_TLS);
    }
    tio_free(a);
    tio_free(b);
}

TEST(tls_takes_over_when_udp_is_silent)
{
    tio *a, *b;
    udt_addr hole;
    int fd = black_hole(&hole);
    pair(&a, &b, 4);
    for (int pull = 0; pull < 2; pull++) {
        struct tls_case c = {.encrypt = true,
                             .pull = pull,
                             .size = 5000000,
                             .stripes = 4,
                             .udp_wait_ms = 300,
                             .to = &hole};
        int64_t began = tio_now_us();
        udt_xfer_result r = whole(a, b, &c, 5);
        CHECK(tio_now_us() - began < 3000000);
        CHECK_INT(r.path, UDT_PATH_TLS);
        CHECK_INT(r.path_why, UDT_PATH_WHY_SILENCE);
    }
    close(fd);
    tio_free(a);
    tio_free(b);
}

TEST(tls_is_not_used_where_udp_works)
{
    tio *a, *b;
    pair(&a, &b, 4);
    struct tls_case c = {.encrypt = true, .size = 3000000, .stripes = 4};
    udt_xfer_result r = whole(a, b, &c, 5);
    CHECK_INT(r.path, UDT_PATH_UDP);
    CHECK_INT(r.path_why, UDT_PATH_WHY_NONE);
    tio_free(a);
    tio_free(b);
}

/* The machine of the peer, or a firewall, says that the port is closed. */
static udt_addr closed_port(void)
{
    uint16_t port;
    close(tio_udp(&port));
    return tio_loopback(4, port);
}

TEST(tls_takes_over_when_udp_is_refused)
{
    tio *a, *b;
    udt_addr to = closed_port();
    pair(&a, &b, 4);
    struct tls_case c = {
        .encrypt = true, .size = 5000000, .stripes = 4, .udp_wait_ms = 6000, .to = &to};
    int64_t began = tio_now_us();
    udt_xfer_result r = whole(a, b, &c, 5);
    CHECK(tio_now_us() - began < 4000000);
    CHECK_INT(r.path, UDT_PATH_TLS);
    CHECK_INT(r.path_why, UDT_PATH_WHY_REFUSED);
    tio_free(a);
    tio_free(b);
}

/* A peer that is gone, its process ended: neither of its ports is open. */
TEST(tls_peer_that_is_gone_is_told_at_once)
{
    tio *a = tio_open(4, 0);
    udt_addr to = closed_port();
    for (int wait = 0; wait < 2; wait++) { /* TLS is asked because of it, or soon anyway */
        udt_ticket k = xf_ticket(true);
        int src = xf_file(100000, 1);
        struct tls_case c = {.size = 100000, .stripes = 4, .udp_wait_ms = wait ? 1 : 6000};
        int64_t began = tio_now_us();
        int32_t x = start(a, &to, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, &c, to.port);
        CHECK_INT(tio_wait(a, UDT_IO_XFER_DONE, x, 20000).err, UDT_E_UNREACHABLE);
        CHECK(tio_now_us() - began < 4000000);
        CHECK_INT(udt_xfer_free(a->ctx, x), 0);
        close(src);
    }
    tio_free(a);
}

/* Nobody listens for TLS: UDP has the rest of the time, for the peer may be late. */
TEST(tls_refused_gives_udp_the_rest_of_the_time)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_ticket k = xf_ticket(true);
    int src = xf_file(100000, 1), dst = xf_empty();
    struct tls_case c = {.size = 100000, .stripes = 2, .udp_wait_ms = 100};
    int32_t xs = start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, &c, b->at.port);
    poll(NULL, 0, 400);
    int32_t xr = start(b, NULL, &k, dst, 0, &c, 0);
    tio_wait(b, UDT_IO_XFER_FIN, xr, 5000);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
    xf_end(a, xs, 0);
    xf_end(b, xr, 0);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* Who has another key, or a ticket that nobody waits for, gets nowhere and disturbs nobody. */
TEST(tls_other_keys_are_refused)
{
    tio *a, *b;
    pair(&a, &b, 4);
    udt_ticket good = xf_ticket(true), bad = good, unknown = xf_ticket(true);
    bad.key[0] ^= 1;
    int src = xf_file(100000, 1), dst = xf_empty();
    struct tls_case c = {.size = 100000, .stripes = 4, .udp_wait_ms = -1};
    uint32_t flags = UDT_XFER_SEND | UDT_XFER_INITIATOR;
    int32_t xr = start(b, NULL, &good, dst, 0, &c, 0);
    int32_t x1 = start(a, &b->at, &bad, src, flags, &c, 0);
    int32_t x2 = start(a, &b->at, &unknown, src, flags, &c, 0);
    CHECK(tio_wait(a, UDT_IO_XFER_DONE, x1, 5000).err != 0);
    CHECK_INT(tio_wait(a, UDT_IO_XFER_DONE, x2, 5000).err, UDT_E_AUTH);
    int32_t xs = start(a, &b->at, &good, src, flags, &c, 0);
    tio_wait(b, UDT_IO_XFER_FIN, xr, 5000);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
    xf_end(a, xs, 0);
    xf_end(b, xr, 0);
    xf_same(dst, 0, 100000, 1);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* After silence over UDP the peer says over TLS what became of the ticket: used over UDP, whose
 * answers do not arrive then; or over, which says nothing about UDP. */
TEST(tls_tells_a_used_ticket_from_one_that_is_over)
{
    tio *a, *b, *other;
    udt_addr hole;
    int fd = black_hole(&hole);
    pair(&a, &b, 4);
    other = tio_open(4, 0);
    for (int used = 0; used < 2; used++) {
        udt_ticket k = xf_ticket(true);
        int src = xf_file(100000, 1), dst = xf_empty();
        struct tls_case c = {.size = 100000, .stripes = 4, .udp_wait_ms = 100};
        udt_xfer_opts o = {.length = c.size, .start_ms = used ? 5000 : 1};
        int32_t xr = udt_xfer_start(b->ctx, b->port, NULL, &k, dst, &o);
        if (used) { /* over another path */
            int32_t x =
                xf_start(other, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, c.size);
            tio_wait(b, UDT_IO_XFER_FIN, xr, 5000);
            CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
            xf_end(other, x, 0);
        }
        xf_end(b, xr, used ? 0 : UDT_E_TIMEOUT);
        int32_t xs = start(a, &hole, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, &c, b->at.port);
        udt_xfer_result r;
        CHECK_INT(tio_wait(a, UDT_IO_XFER_DONE, xs, 5000).err, used ? UDT_E_REJECTED : UDT_E_AUTH);
        CHECK_INT(udt_xfer_result_get(a->ctx, xs, &r), 0);
        CHECK_INT(r.path_why, used ? UDT_PATH_WHY_SILENCE : UDT_PATH_WHY_NONE);
        CHECK_INT(udt_xfer_free(a->ctx, xs), 0);
        close(src);
        close(dst);
    }
    close(fd);
    tio_free(a);
    tio_free(b);
    tio_free(other);
}

static void knock_with(int fd, const udt_addr *at)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons(at->port)};
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&in, sizeof in) == 0);
}

static int knock(const udt_addr *at)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    knock_with(fd, at);
    return fd;
}

static void strangers(bool silent)
{
    tio *a, *b;
    int fd[300];
    static uint8_t junk[5000];
    pair(&a, &b, 4);
    for (int i = 0; i < 300; i++) {
        fd[i] = knock(&b->at);
        tio_fill(junk, sizeof junk, 3, (uint64_t)i * 11);
        if (i % 2 && !silent)
            (void)!send(fd[i], junk, (size_t)(i * 16), MSG_NOSIGNAL);
    }
    usleep(silent ? 100000 : 0); /* they have taken all places */
    struct tls_case c = {.encrypt = true, .size = 1000000, .stripes = 4, .udp_wait_ms = -1};
    CHECK_INT(whole(a, b, &c, 2).path, UDT_PATH_TLS);
    for (int i = 0; i < 300; i++)
        close(fd[i]);
    tio_free(a);
    tio_free(b);
}

static int64_t cpu_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Who knocks while no descriptor is free waits in the listener, at no cost, and is let in later. */
TEST(tls_no_descriptor_is_free)
{
    tio *b = tio_open_tls(4);
    struct rlimit old, low;
    int fd[3], next;
    char c;
    for (int i = 0; i < 3; i++)
        fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    next = dup(0);
    close(next);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)next; /* the least that is free */
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int i = 0; i < 3; i++)
        knock_with(fd[i], &b->at);
    int64_t used = cpu_us();
    usleep(1000000);
    used = cpu_us() - used;
    udt_port_stats st;
    CHECK_INT(udt_port_stats_get(b->ctx, b->port, &st), 0);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
    printf("%" PRId64 " pauses, %" PRId64 " us of a second\n", st.accept_pauses, used);
    CHECK(st.accept_pauses >= 3 && st.accept_pauses <= 11);
    CHECK(used < 300000);
    struct timeval patience = {.tv_sec = 5};
    for (int i = 0; i < 3; i++) { /* taken, and shown out for what it says */
        setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        CHECK_INT(send(fd[i], "no TLS at all", 13, MSG_NOSIGNAL), 13);
        ssize_t n;
        while ((n = recv(fd[i], &c, 1, 0)) == 1)
            ;
        CHECK(n == 0 || errno == ECONNRESET);
        close(fd[i]);
    }
    tio_free(b);
}

TEST(tls_strangers_at_the_listener_are_bounded)
{
    strangers(false);
}

/* More of them than there are places, who say nothing: who has a ticket is let in at once. */
TEST(tls_silent_strangers_keep_nobody_out)
{
    int64_t start = tio_now_us();
    strangers(true);
    CHECK(tio_now_us() - start < 4000000); /* before the first of them was shown out */
}

/* An end in the middle reaches the other side: cancelled, or gone with its whole process. */
TEST(tls_ends_in_the_middle_are_heard)
{
    for (int how = 0; how < 3; how++) {
        tio *a, *b;
        pair(&a, &b, 4);
        udt_ticket k = xf_ticket(true);
        int64_t size = 400 * (int64_t)UDT_BLOCK_BYTES;
        int src = xf_empty(), dst = xf_empty();
        CHECK_INT(ftruncate(src, size), 0);
        struct tls_case c = {.size = size, .stripes = 4, .udp_wait_ms = -1};
        int32_t xr = start(b, NULL, &k, dst, 0, &c, 0);
        int32_t xs = start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, &c, 0);
        tio_wait(b, UDT_IO_XFER_PROGRESS, xr, 5000);
        if (how == 0) {
            CHECK_INT(udt_xfer_cancel(a->ctx, xs, 42), 0);
            CHECK_INT(tio_wait(b, UDT_IO_XFER_DONE, xr, 5000).remote, 42);
        } else if (how == 1) {
            CHECK_INT(udt_xfer_cancel(b->ctx, xr, 43), 0);
            CHECK_INT(tio_wait(a, UDT_IO_XFER_DONE, xs, 5000).remote, 43);
        } else {
            CHECK_INT(udt_port_close(b->ctx, b->port), 0);
            CHECK(tio_wait(a, UDT_IO_XFER_DONE, xs, 5000).err != 0);
        }
        close(src);
        close(dst);
        tio_free(a);
        tio_free(b);
    }
}
