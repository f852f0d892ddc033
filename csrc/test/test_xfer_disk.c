/* Transfers that wait for a disk, and what that is not taken for. */
#include "test_away.h"

#include <pthread.h>

/* ---- a way for small datagrams ---- */

enum { MOST_BYTES = 300 };

/* Passes datagrams on between who comes first and `to`, but from `from` (0 = who comes, 1 = `to`)
 * no large ones that are data. */
struct strait {
    int front, back, from;
    struct sockaddr_in client, to;
    uint16_t port;
    _Atomic bool over;
    pthread_t thread;
};

static int strait_udp(uint16_t *port)
{
    int fd = tio_udp(port), buf = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf);
    return fd;
}

static void strait_pass(struct strait *s, int end)
{
    uint8_t pkt[2048];
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    ssize_t n;
    int in = end ? s->back : s->front, out = end ? s->front : s->back;
    while ((n = recvfrom(in, pkt, sizeof pkt, MSG_DONTWAIT, (struct sockaddr *)&from, &len)) > 0) {
        if (end == 0)
            s->client = from;
        if (end == s->from && n > MOST_BYTES && !(pkt[0] & 0x80))
            continue;
        (void)!sendto(out, pkt, (size_t)n, 0, (struct sockaddr *)(end ? &s->client : &s->to),
                      sizeof s->to);
    }
}

static void *strait_run(void *arg)
{
    struct strait *s = arg;
    while (!atomic_load(&s->over)) {
        struct pollfd pf[2] = {{.fd = s->front, .events = POLLIN},
                               {.fd = s->back, .events = POLLIN}};
        if (poll(pf, 2, 20) > 0)
            for (int end = 0; end < 2; end++)
                strait_pass(s, end);
    }
    return NULL;
}

static struct strait *strait_open(uint16_t to, int from)
{
    struct strait *s = calloc(1, sizeof *s);
    uint16_t unused;
    CHECK(s);
    s->from = from;
    s->front = strait_udp(&s->port);
    s->back = strait_udp(&unused);
    s->to = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(to)};
    CHECK_INT(pthread_create(&s->thread, NULL, strait_run, s), 0);
    return s;
}

static void strait_close(struct strait *s)
{
    atomic_store(&s->over, true);
    pthread_join(s->thread, NULL);
    close(s->front);
    close(s->back);
    free(s);
}

/* ---- transfers ---- */

enum { BYTES = 3000000 };

struct two { /* a begins; b, which takes TLS too, is its peer */
    tio *a, *b, *s, *r;
    int src, dst;
    int32_t xs, xr;
};

static void begin(struct two *t, bool pull, const udt_addr *to)
{
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.length = BYTES, .start_ms = 8000};
    t->s = pull ? t->b : t->a;
    t->r = pull ? t->a : t->b;
    t->src = xf_file(BYTES, 3);
    t->dst = xf_empty();
    for (int i = 0; i < 2; i++) { /* who is asked waits already */
        bool asks = i == 1, sends = asks != pull;
        tio *me = asks ? t->a : t->b;
        o.flags = (sends ? UDT_XFER_SEND : 0) | (asks ? UDT_XFER_INITIATOR : 0);
        o.tcp_stripes = asks ? 4 : 0;
        o.tcp_port = asks ? t->b->at.port : 0;
        int32_t x =
            udt_xfer_start(me->ctx, me->port, asks ? to : NULL, &k, sends ? t->src : t->dst, &o);
        CHECK(x > 0);
        *(sends ? &t->xs : &t->xr) = x;
    }
}

static void end(struct two *t)
{
    close(t->src);
    close(t->dst);
    tio_free(t->a);
    tio_free(t->b);
}

/* Nothing is read for 7 s, at the end that begins (a put) or at its peer (a get): the transfer
 * waits for the disk and goes on over UDP. It was given up after 5 s, the way being to blame. */
TEST(xfer_disk_that_is_slow_to_begin_with)
{
    static struct two t[2];
    static away disk[2];
    for (int pull = 0; pull < 2; pull++) {
        t[pull].a = tio_open(4, 0);
        t[pull].b = tio_open_tls(4);
        away_begin(&disk[pull], pull ? t[pull].b : t[pull].a);
        begin(&t[pull], pull, &t[pull].b->at);
    }
    usleep(7000000);
    for (int pull = 0; pull < 2; pull++)
        away_end(&disk[pull]);
    for (int pull = 0; pull < 2; pull++) {
        struct two *w = &t[pull];
        udt_xfer_result r;
        CHECK_INT(tio_wait(w->r, UDT_IO_XFER_FIN, w->xr, 10000).value, BYTES);
        xf_same(w->dst, 0, BYTES, 3);
        CHECK_INT(udt_xfer_finish(w->r->ctx, w->xr, 0, 1, 1, 1), 0);
        CHECK_INT(tio_wait(w->s, UDT_IO_XFER_DONE, w->xs, 10000).err, 0);
        CHECK_INT(tio_wait(w->r, UDT_IO_XFER_DONE, w->xr, 10000).err, 0);
        CHECK_INT(udt_xfer_result_get(w->a->ctx, pull ? w->xr : w->xs, &r), 0);
        CHECK_INT(r.path, UDT_PATH_UDP);
        CHECK_INT(r.path_why, UDT_PATH_WHY_NONE);
        CHECK(pull || r.lim_disk_us > 6000000);
        end(w);
    }
}

/* The same silence where data is sent and does not arrive is the way's, and is given up in time. */
TEST(xfer_data_that_does_not_get_through)
{
    static struct two t[2];
    struct strait *way[2];
    int64_t began = tio_now_us();
    for (int pull = 0; pull < 2; pull++) {
        t[pull].a = tio_open(4, 0);
        t[pull].b = tio_open_tls(4);
        way[pull] = strait_open(t[pull].b->at.port, pull);
        udt_addr to = tio_loopback(4, way[pull]->port);
        begin(&t[pull], pull, &to);
    }
    for (int pull = 0; pull < 2; pull++) {
        struct two *w = &t[pull];
        int32_t x = pull ? w->xr : w->xs;
        udt_xfer_result r;
        CHECK_INT(tio_wait(w->a, UDT_IO_XFER_DONE, x, 12000).err, UDT_E_BROKEN);
        CHECK_INT(udt_xfer_result_get(w->a->ctx, x, &r), 0);
        CHECK_INT(r.path_why, UDT_PATH_WHY_STALLED);
    }
    CHECK(tio_now_us() - began < 9000000);
    for (int pull = 0; pull < 2; pull++) {
        end(&t[pull]);
        strait_close(way[pull]);
    }
}
