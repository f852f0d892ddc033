/* The reason that statistics name, and traces: each side is the bottleneck in turn. */
#include <pthread.h>

#include "test_udt_util.h"
#include "udt/trace.h"

#define SECOND 1000000

typedef struct bottleneck {
    sim_link link;
    int64_t app_Bps;    /* the sender writes so fast, 0 = as it can */
    int64_t reader_Bps; /* the receiver reads so fast */
    int64_t cap_Bps;
    bool own;
} bottleneck;

static void feed(world *w, int32_t s, int64_t bytes)
{
    static uint8_t buf[65536];
    while (bytes > 0) {
        size_t n = bytes < (int64_t)sizeof buf ? (size_t)bytes : sizeof buf;
        ssize_t took = udt_mux_send(w->m[0], s, buf, n, sim_net_now(w->net));
        if (took <= 0)
            break;
        bytes -= took;
    }
    sim_net_kick(w->net, 0);
}

static void drain(world *w, int32_t s, int64_t bytes)
{
    static uint8_t buf[65536];
    while (bytes > 0) {
        size_t n = bytes < (int64_t)sizeof buf ? (size_t)bytes : sizeof buf;
        ssize_t took = udt_mux_recv(w->m[1], s, buf, n, sim_net_now(w->net));
        if (took <= 0)
            break;
        bytes -= took;
    }
    sim_net_kick(w->net, 1);
}

/* Five seconds in steps of 1 ms; statistics of the sender over the last three. */
static udt_stats run(const bottleneck *b, udt_trace *trace, int64_t *moved)
{
    world w;
    world_init(&w, 7, &b->link, &b->link);
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = o.offer = b->own;
    o.max_bw_Bps = b->cap_Bps;
    o.rcv_buf_bytes = o.snd_buf_bytes = 8 << 20;
    o.trace = trace;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 10 * SECOND);
    udt_stats from = {0}, to;
    udt_time start = sim_net_now(w.net);
    for (int ms = 1; ms <= 5000; ms++) {
        feed(&w, p.s[0], b->app_Bps ? b->app_Bps / 1000 : INT64_MAX);
        drain(&w, p.s[1], b->reader_Bps ? b->reader_Bps / 1000 : INT64_MAX);
        world_run(&w, start + (int64_t)ms * 1000);
        if (ms == 2000)
            CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &from), 0);
        else if (ms % 200 == 0)
            CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &to), 0);
    }
    *moved = to.bytes_sent;
    to.lim_app_us -= from.lim_app_us;
    to.lim_cwnd_us -= from.lim_cwnd_us;
    to.lim_flow_us -= from.lim_flow_us;
    to.lim_pace_us -= from.lim_pace_us;
    to.lim_cap_us -= from.lim_cap_us;
    to.lim_none_us -= from.lim_none_us;
    int64_t sum = to.lim_app_us + to.lim_cwnd_us + to.lim_flow_us + to.lim_pace_us + to.lim_cap_us +
                  to.lim_none_us;
    CHECK(sum > 2990000 && sum <= 3000000 + 1000);
    world_fini(&w);
    return to;
}

static const sim_link fast = {.rate_bps = 1000000000, .delay_us = 5000},
                      slow = {.rate_bps = 50000000, .delay_us = 20000};

static void each(bool own)
{
    int64_t moved;
    udt_stats st = run(&(bottleneck){.link = fast, .app_Bps = 2000000, .own = own}, NULL, &moved);
    CHECK(st.lim_app_us > 2700000);
    CHECK(st.send_Bps > 1800000 && st.send_Bps < 2200000);

    st = run(&(bottleneck){.link = slow, .own = own}, NULL, &moved);
    CHECK(st.lim_cwnd_us + st.lim_pace_us > 2700000);
    CHECK(st.send_Bps > 4500000 && st.send_Bps < 6300000);
    CHECK(st.queue_bytes <= st.in_flight_bytes && st.in_flight_bytes > 100000);

    st = run(&(bottleneck){.link = fast, .reader_Bps = 3000000, .own = own}, NULL, &moved);
    CHECK(st.lim_flow_us > 2500000);

    st = run(&(bottleneck){.link = fast, .cap_Bps = 1000000, .own = own}, NULL, &moved);
    CHECK(st.lim_cap_us > 2500000);
    CHECK_INT(st.limit, UDT_LIM_CAP);
}

TEST(udt_trace_reason_own)
{
    each(true);
}

TEST(udt_trace_reason_plain)
{
    each(false);
}

TEST(udt_trace_loss)
{
    sim_link lossy = slow;
    lossy.loss_ppm = 10000;
    int64_t moved;
    udt_stats st = run(&(bottleneck){.link = lossy, .own = true}, NULL, &moved);
    CHECK(st.loss_ppm > 7000 && st.loss_ppm < 13000);
    CHECK(st.pkts_lost > 100 && st.pkts_lost <= st.pkts_retrans + st.cwnd_pkts);
}

TEST(udt_trace_ring)
{
    udt_trace *t = udt_trace_new(20);
    udt_trace_rec got[64];
    uint64_t from = 0;
    CHECK(t != NULL);
    CHECK_INT(udt_trace_read(t, &from, got, 64), 0);
    for (uint64_t i = 0; i < 10; i++)
        udt__trace_add(t, &(udt_trace_rec){.us = (int64_t)i, .a = i});
    CHECK_INT(udt_trace_read(t, &from, got, 4), 4);
    CHECK_INT(udt_trace_read(t, &from, got, 64), 6);
    CHECK_INT(got[0].a, 4);
    for (uint64_t i = 10; i < 1000; i++)
        udt__trace_add(t, &(udt_trace_rec){.us = (int64_t)i, .a = i});
    size_t n = udt_trace_read(t, &from, got, 64);
    CHECK_INT(n, 31); /* of 32 places one may be half written */
    for (size_t k = 0; k < n; k++)
        CHECK_INT(got[k].a, 969 + k);
    CHECK_INT(from, 1000);
    CHECK_INT(udt_trace_count(t), 1000);
    from = UINT64_MAX;
    CHECK_INT(udt_trace_read(t, &from, got, 64), 0);
    CHECK_INT(udt_trace_read(t, &(uint64_t){0}, got, 0), 0);
    udt_trace_free(t);
    udt_trace_free(NULL);
}

static void *write_many(void *arg)
{
    for (uint64_t i = 0; i < 200000; i++)
        udt__trace_add(arg, &(udt_trace_rec){.us = (int64_t)i, .a = i, .b = ~i});
    return NULL;
}

/* Read while it is written: no record is torn or out of order. */
TEST(udt_trace_read_while_written)
{
    udt_trace *t = udt_trace_new(256);
    pthread_t writer;
    CHECK_INT(pthread_create(&writer, NULL, write_many, t), 0);
    uint64_t from = 0, last = 0, got = 0;
    udt_trace_rec r[64];
    while (from < 200000) {
        size_t n = udt_trace_read(t, &from, r, 64);
        for (size_t k = 0; k < n; k++) {
            CHECK((uint64_t)r[k].us == r[k].a && r[k].b == ~r[k].a && (r[k].a > last || !got));
            last = r[k].a;
            got++;
        }
    }
    CHECK(got > 0 && got <= 200000);
    CHECK_INT(pthread_join(writer, NULL), 0);
    udt_trace_free(t);
}

/* The same transfer to the byte and the packet, and what was recorded agrees with the counters. */
static void changes_nothing(bool own)
{
    bottleneck b = {.link = slow, .own = own};
    b.link.loss_ppm = 2000;
    int64_t plain, traced;
    udt_stats a = run(&b, NULL, &plain);
    udt_trace *t = udt_trace_new(1 << 17);
    udt_stats with = run(&b, t, &traced);
    CHECK_INT(plain, traced);
    CHECK_MEM(&a, &with, sizeof a);
    CHECK(udt_trace_count(t) < 1 << 17);
    int64_t seen[UDT_TRACE_STATE + 1] = {0}, lost = 0;
    udt_trace_rec r;
    udt_time last = 0;
    for (uint64_t from = 0; udt_trace_read(t, &from, &r, 1) == 1;) {
        CHECK(r.kind >= 1 && r.kind <= UDT_TRACE_STATE && r.us >= last);
        last = r.us;
        seen[r.kind]++;
        if (r.kind == UDT_TRACE_LOST)
            lost += r.x == UDT_TRACE_LOST_NOT ? -(int64_t)r.b : (int64_t)r.b;
    }
    CHECK_INT(seen[UDT_TRACE_SENT], with.pkts_sent);
    CHECK_INT(seen[UDT_TRACE_SENT_AGAIN], with.pkts_retrans);
    CHECK_INT(lost, with.pkts_lost);
    CHECK(seen[UDT_TRACE_RTT] > 50 && seen[UDT_TRACE_METRICS] > 20 && seen[UDT_TRACE_ACKED] > 50);
    CHECK(seen[UDT_TRACE_CC_STATE] > 0 && seen[UDT_TRACE_LIMIT] > 10);
    udt_trace_free(t);
}

TEST(udt_trace_changes_nothing)
{
    changes_nothing(true);
    changes_nothing(false);
}
