/* What statistics say of transfers over both ways: how fast, and who limits; and of what stands
 * still. */
#include "test_away.h"

enum { MIB = UDT_BLOCK_BYTES };

struct both {
    tio *a, *b;
    int src, dst;
    int32_t xs, xr;
};

/* a sends so many bytes to b, at most so many a second (0 = no cap). */
static void begin(struct both *t, int64_t size, int64_t cap, bool tls)
{
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.length = size, .start_ms = 8000};
    t->a = tio_open(4, 0);
    t->b = tio_open_tls(4);
    t->src = xf_empty();
    t->dst = xf_empty();
    CHECK_INT(ftruncate(t->src, size), 0);
    t->xr = udt_xfer_start(t->b->ctx, t->b->port, NULL, &k, t->dst, &o);
    o.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR;
    o.max_bw_Bps = cap;
    o.tcp_stripes = 4;
    o.tcp_port = t->b->at.port;
    o.udp_wait_ms = tls ? -1 : 0;
    t->xs = udt_xfer_start(t->a->ctx, t->a->port, &t->b->at, &k, t->src, &o);
    CHECK(t->xs > 0 && t->xr > 0);
}

static udt_xfer_result end(struct both *t)
{
    udt_xfer_result r;
    tio_wait(t->b, UDT_IO_XFER_FIN, t->xr, 20000);
    CHECK_INT(udt_xfer_finish(t->b->ctx, t->xr, 0, 1, 1, 1), 0);
    CHECK_INT(tio_wait(t->a, UDT_IO_XFER_DONE, t->xs, 10000).err, 0);
    CHECK_INT(udt_xfer_result_get(t->a->ctx, t->xs, &r), 0);
    xf_end(t->b, t->xr, 0);
    CHECK_INT(udt_xfer_free(t->a->ctx, t->xs), 0);
    tio_free(t->a);
    tio_free(t->b);
    close(t->src);
    close(t->dst);
    return r;
}

static udt_sock_stats now(tio *t, int32_t x)
{
    udt_sock_stats st;
    CHECK_INT(udt_stats_get(t->ctx, x, &st), 0);
    return st;
}

static int64_t waits(const udt_sock_stats *s)
{
    return s->lim_app_us + s->lim_cwnd_us + s->lim_flow_us + s->lim_pace_us + s->lim_cap_us +
           s->lim_none_us;
}

static void show(const char *what, const udt_sock_stats *s)
{
    printf(
        "%s: sender %" PRId64 ", network %" PRId64 ", receiver %" PRId64 ", cap %" PRId64
        ", meeting %" PRId64 " ms; %" PRId64 " packets, RTT %" PRId64 " us, out %" PRId64 " B/s\n",
        what, s->lim_app_us / 1000, (s->lim_cwnd_us + s->lim_pace_us) / 1000, s->lim_flow_us / 1000,
        s->lim_cap_us / 1000, s->lim_handshake_us / 1000, s->pkts_sent, s->rtt_us, s->send_Bps);
}

/* Over TLS as over UDP the sender's end knows what it waited for: each in turn for most of 2 s. */
TEST_ALONE(xfer_stats_of_tls_say_who_limits)
{
    static away disk;
    struct both t;
    udt_xfer_result r;
    begin(&t, 64 * MIB, 0, true);
    tio_wait(t.b, UDT_IO_XFER_OPEN, t.xr, 5000);
    away_begin(&disk, t.b);
    usleep(2000000);
    away_end(&disk);
    r = end(&t);
    show("the receiver's disk", &r.stats);
    CHECK(r.stats.lim_flow_us * 10 > waits(&r.stats) * 6);

    begin(&t, 16 * MIB, 0, true);
    away_begin(&disk, t.a);
    usleep(2000000);
    away_end(&disk);
    r = end(&t);
    show("the sender's disk", &r.stats);
    CHECK(r.stats.lim_app_us * 10 > waits(&r.stats) * 6);
    CHECK(r.lim_disk_us > 1500000);

    begin(&t, 10 * MIB, 5 * MIB, true);
    tio_wait(t.b, UDT_IO_XFER_OPEN, t.xr, 5000);
    usleep(1200000);
    udt_sock_stats out = now(t.a, t.xs), in = now(t.b, t.xr);
    r = end(&t);
    show("the cap", &r.stats);
    CHECK(r.stats.lim_cap_us * 10 > waits(&r.stats) * 6);
    CHECK(out.send_Bps > 3 * MIB && out.send_Bps < 8 * MIB);
    CHECK(in.recv_Bps > 3 * MIB && in.recv_Bps < 8 * MIB);
    CHECK(out.rtt_us > 0 && out.pkts_sent > 0 && in.pkts_recv > 0);
    CHECK(r.stats.at_us > 0);
}

/* Rates are of about the last second: of what stands still there is none, though nothing comes that
 * would have statistics taken. */
TEST(xfer_stats_of_what_stands_still)
{
    for (int tls = 0; tls < 2; tls++) {
        static away disk;
        struct both t;
        begin(&t, 96 * MIB, 24 * MIB, tls);
        tio_wait(t.b, UDT_IO_XFER_PROGRESS, t.xr, 5000);
        usleep(500000);
        CHECK(now(t.a, t.xs).send_Bps > MIB && now(t.b, t.xr).recv_Bps > MIB);
        away_begin(&disk, t.a);
        int64_t until = tio_now_us() + 8000000; /* what was read before comes still */
        while (now(t.b, t.xr).recv_Bps > 0 && tio_now_us() < until)
            usleep(20000);
        int64_t left = until - tio_now_us();
        away_end(&disk);
        CHECK(left > 0);
        end(&t);
    }
}

TEST(io_statistics_of_a_socket_that_is_silent)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    static uint8_t buf[200000];
    udt_sock_stats st;
    int32_t sa, sb;
    tio_pair(a, b, &o, &sa, &sb);
    for (int i = 0; i < 5; i++) { /* for as long as a rate takes */
        CHECK(udt_send(a->ctx, sa, buf, sizeof buf / 5) > 0);
        tio_wait(a, UDT_IO_DRAINED, sa, 5000);
        usleep(100000);
    }
    usleep(300000);
    CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
    CHECK(st.send_Bps > 0);
    usleep(1500000);
    CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
    CHECK_INT(st.send_Bps, 0);
    CHECK_INT(st.bytes_sent, sizeof buf);
    tio_free(a);
    tio_free(b);
}
