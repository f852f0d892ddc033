/* What the engine costs: two ports joined by function calls, virtual time that never waits. Prints
 * nanoseconds of CPU per packet of each side; checks that rates are reached on simulated links. */
#include "test_udt_side.h"
#include "udt_err.h"

static uint8_t app[1 << 18];

TEST_ALONE(udt_speed_of_the_engine)
{
    side a = {.addr = test_addr(1, 9000)}, b = {.addr = test_addr(2, 9000)};
    sim_rng rng[2];
    udt_mux_config cfg = {.rand = sim_rng_bytes};
    struct udt_ev ev;
    udt_opts o;
    udt_time now = 1000000;
    sim_rng_seed(&rng[0], 1);
    sim_rng_seed(&rng[1], 2);
    cfg.rand_arg = &rng[0];
    a.m = udt_mux_new(&cfg);
    cfg.rand_arg = &rng[1];
    b.m = udt_mux_new(&cfg);
    udt_opts_init(&o);
    o.own_peer = true;
    CHECK(udt_mux_listen(b.m, &o, 4) > 0);
    int32_t sa = udt_mux_connect(a.m, &b.addr, &o, now), sb = 0;
    for (int i = 0; i < 4; i++, now += 20) {
        carry(&a, &b, now);
        carry(&b, &a, now);
    }
    while (udt_mux_next_event(b.m, &ev))
        sb = ev.sock;
    CHECK(sb > 0);
    a.ns = b.ns = 0;
    uint64_t size = (uint64_t)2000000000 * (uint64_t)test_scale / 100, sent = 0, got = 0;
    udt_time start = now;
    fill(app, 1, 0, sizeof app);
    static uint8_t in[1 << 18];
    while (got < size) {
        int64_t t0 = cpu_ns();
        for (ssize_t n; (n = udt_mux_send(a.m, sa, app, sizeof app, now)) > 0;)
            sent += (uint64_t)n;
        a.ns += cpu_ns() - t0;
        carry(&a, &b, now);
        t0 = cpu_ns();
        for (ssize_t n; (n = udt_mux_recv(b.m, sb, in, sizeof in, now)) > 0;)
            got += (uint64_t)n;
        b.ns += cpu_ns() - t0;
        carry(&b, &a, now);
        now += 10;
        while (udt_mux_next_event(a.m, &ev))
            CHECK(ev.kind != UDT_EV_FAILED);
        while (udt_mux_next_event(b.m, &ev))
            CHECK(ev.kind != UDT_EV_FAILED);
        CHECK(now - start < 60000000);
    }
    udt_stats st;
    CHECK_INT(udt_mux_stats(a.m, sa, &st), 0);
    double pkts = (double)st.pkts_sent, virt = (double)(now - start) * 1e-6;
    printf("engine: %.0f and %.0f ns per packet (sender, receiver), %.1f Gb/s if they take turns; "
           "%.2f Gb/s of virtual time, %" PRId64 " retransmissions, %" PRId64 " ACKs, RTT %" PRId64
           " us, cwnd %" PRId64 "\n",
           (double)a.ns / pkts, (double)b.ns / pkts, (double)got * 8 / (double)(a.ns + b.ns),
           (double)got * 8e-9 / virt, st.pkts_retrans, st.acks_recv, st.rtt_us, st.cwnd_pkts);
    CHECK_INT(st.pkts_retrans, 0);
    CHECK((double)got * 8e-9 / virt > 30);
    udt_mux_free(a.m);
    udt_mux_free(b.m);
}

/* Goodput over a link as a share of its rate, after 20 RTT of warm-up are part of it. */
static double utilisation(double rate_bps, int64_t rtt_us, uint32_t loss_ppm, uint64_t size,
                          bool own, int64_t *retrans)
{
    world w;
    sim_link l = {.rate_bps = (int64_t)rate_bps, .delay_us = rtt_us / 2, .loss_ppm = loss_ppm};
    world_init(&w, test_seed, &l, &l);
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = own;
    o.snd_buf_bytes = o.rcv_buf_bytes = 256u << 20;
    o.fc_pkts = 200000;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 5000000);
    flow f = {.from = 0, .seed = 1, .size = size};
    udt_time start = sim_net_now(w.net);
    CHECK(world_move(&w, &p, &f, 1, start + 400000000));
    udt_stats st;
    udt_mux_stats(w.m[0], p.s[0], &st);
    *retrans = st.pkts_retrans;
    double took = (double)(sim_net_now(w.net) - start) * 1e-6;
    flow_fini(&f);
    world_fini(&w);
    return (double)size / 1456 * 1500 * 8 / rate_bps / took;
}

TEST(udt_speed_fills_links)
{
    static const struct {
        double rate;
        int64_t rtt_us;
        uint32_t loss_ppm;
        uint64_t size;
        double want;
    } k[] = {
        {10e9, 0, 0, 1000000000, 0.9},       {10e9, 1000, 0, 1000000000, 0.9},
        {10e9, 10000, 0, 2000000000, 0.85},  {1e9, 50000, 0, 400000000, 0.8},
        {1e9, 50000, 1000, 400000000, 0.7},  {1e9, 50000, 10000, 400000000, 0.6},
        {1e8, 100000, 10000, 60000000, 0.6}, {1e7, 20000, 0, 10000000, 0.9},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        for (int own = 0; own < 2; own++) {
            int64_t retrans;
            uint64_t size = k[i].size * (uint64_t)test_scale / 100;
            double u = utilisation(k[i].rate, k[i].rtt_us, k[i].loss_ppm, size, own, &retrans);
            printf("%5.0f Mb/s, RTT %3.0f ms, loss %.1f %%, %s: %.0f %% used, %" PRId64
                   " of %" PRIu64 " packets again\n",
                   k[i].rate * 1e-6, (double)k[i].rtt_us * 1e-3, k[i].loss_ppm * 1e-4,
                   own ? "own peer" : "foreign ", u * 100, retrans, size / 1456);
            if (test_scale >= 100)
                CHECK(u > k[i].want);
        }
    }
}
