/* Windows that grow by themselves, and what they cost. */
#include "test_udt_util.h"

#include "udt/conn.h"

static void keyed_pair(world *w, pair *p, int seed, udt_time limit)
{
    uint8_t key[UDT_KEY_BYTES] = {(uint8_t)seed, (uint8_t)(seed >> 8)};
    udt_opts o;
    udt_opts_init(&o);
    o.plain_data = true;
    o.snd_buf_bytes = o.rcv_buf_bytes = 0;
    p->s[1] = udt_mux_open_keyed(w->m[1], NULL, &o, key, false, sim_net_now(w->net));
    p->s[0] = udt_mux_open_keyed(w->m[0], &w->addr[1], &o, key, true, sim_net_now(w->net));
    CHECK(p->s[0] > 0 && p->s[1] > 0);
    sim_net_kick(w->net, 0);
    world_wait(w, 0, UDT_EV_CONNECTED, p->s[0], limit);
}

static int64_t used(const world *w, int e)
{
    udt_mux_counters n;
    udt_mux_counters_get(w->m[e], &n);
    return n.buf_bytes;
}

/* 10 Gb/s at 200 ms: 250 MB are on the way. */
TEST(udt_open_windows_fill_a_long_fat_path)
{
    sim_link l = {.rate_bps = 10000000000, .delay_us = 100000, .queue_bytes = 300 << 20};
    world w;
    pair p;
    world_init(&w, 1, &l, &l);
    keyed_pair(&w, &p, 1, 1000000);
    flow f = {.from = 0, .seed = 1, .size = 3000000000u};
    udt_time start = sim_net_now(w.net);
    int64_t most = 0;
    bool done = false;
    while (!done && sim_net_now(w.net) < start + 20000000) {
        done = world_move(&w, &p, &f, 1, sim_net_now(w.net) + 100000);
        int64_t now = used(&w, 0);
        most = now > most ? now : most;
    }
    CHECK(done);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    double s = (double)(sim_net_now(w.net) - start) * 1e-6;
    printf("# 3 GB over 10 Gb/s, 200 ms: %.1f s, at most %" PRId64 " MB held, credit %" PRIu64
           " MB, flow-limited %.2f s\n",
           s, most >> 20, udt__mux_find(w.m[1], p.s[1])->rcv.want >> 20,
           (double)st.lim_flow_us * 1e-6);
    CHECK(most > 200 << 20);
    CHECK(st.lim_flow_us < 1000000);
    /* Nothing of it is kept. */
    world_run(&w, sim_net_now(w.net) + 8000000);
    CHECK(used(&w, 0) < 1 << 20);
    CHECK(used(&w, 1) < 1 << 20);
    for (int e = 0; e < 2; e++)
        CHECK(w.m[e]->mem.blocks + w.m[e]->mem.spare <= UDT_MEM_KEEP + 16);
    world_fini(&w);
}

/* Readers that stop: each connection gets its share of a budget that is not enough for all. */
static void share(int n, uint64_t budget, uint64_t fair)
{
    enum { N = 1000 };
    const udt_mux_config cfg = {.max_buf_bytes = budget};
    static uint8_t buf[1 << 20];
    sim_link l = {.rate_bps = 1000000000, .delay_us = 5000, .queue_bytes = 64 << 20};
    world w;
    static pair p[N];
    world_init_cfg(&w, 3, &l, &l, &cfg);
    for (int i = 0; i < n; i++)
        keyed_pair(&w, &p[i], 10 + i, 1000000 + sim_net_now(w.net));
    static uint64_t sent[N], got[N];
    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    for (int round = 0; round < 300; round++) { /* readers read for a second, then stop for two */
        for (int i = 0; i < n; i++) {
            ssize_t k = udt_mux_send(w.m[0], p[i].s[0], buf, sizeof buf, sim_net_now(w.net));
            sent[i] += k > 0 ? (uint64_t)k : 0;
            if (round < 100)
                while ((k = udt_mux_recv(w.m[1], p[i].s[1], buf, sizeof buf, sim_net_now(w.net))) >
                       0)
                    got[i] += (uint64_t)k;
        }
        sim_net_kick(w.net, 0);
        sim_net_kick(w.net, 1);
        world_run(&w, sim_net_now(w.net) + 10000);
        w.nev[0] = w.nev[1] = 0;
        CHECK((uint64_t)used(&w, 0) <= budget);
        CHECK((uint64_t)used(&w, 1) <= budget);
    }
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = 0; i < n; i++) {
        uint64_t held = udt__mux_find(w.m[1], p[i].s[1])->rcv.bytes;
        least = held < least ? held : least;
        most = held > most ? held : most;
    }
    printf("# %d stopped readers in %" PRIu64 " MiB: %" PRIu64 " to %" PRIu64 " KiB each\n", n,
           budget >> 20, least >> 10, most >> 10);
    CHECK(least >= fair);
    /* All of it comes when they read again. */
    for (int round = 0; round < 2000; round++) {
        bool rest = false;
        for (int i = 0; i < n; i++) {
            ssize_t k;
            while ((k = udt_mux_recv(w.m[1], p[i].s[1], buf, sizeof buf, sim_net_now(w.net))) > 0)
                got[i] += (uint64_t)k;
            rest |= got[i] < sent[i];
        }
        if (!rest)
            break;
        sim_net_kick(w.net, 1);
        world_run(&w, sim_net_now(w.net) + 10000);
        w.nev[0] = w.nev[1] = 0;
    }
    for (int i = 0; i < n; i++)
        CHECK_INT(got[i], sent[i]);
    world_fini(&w);
}

TEST(udt_open_windows_share_the_budget)
{
    share(50, 32 << 20, 32 << 10);
    share(1000, 256 << 20, 16 << 10);
}

/* Who runs the loop himself is asked for more when half of what he wrote has left, before anything
 * is acknowledged, and little of it is queued at a time. */
TEST(udt_open_windows_driver_is_asked_early)
{
    const udt_mux_config cfg = {.max_buf_bytes = 256 << 20, .driven = true};
    sim_link l = {.rate_bps = 40000000000, .delay_us = 20, .queue_bytes = 64 << 20};
    static uint8_t bytes[4 << 20], wire[65536];
    world w;
    pair p;
    udt_addr to;
    size_t seg, sent = 0;
    struct udt_ev ev;
    world_init_cfg(&w, 3, &l, &l, &cfg);
    keyed_pair(&w, &p, 6, 1000000);
    flow f = {.from = 0, .seed = 1, .size = 50 << 20};
    CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 5000000));
    world_run(&w, sim_net_now(w.net) + 100000);
    udt_time now = sim_net_now(w.net);
    ssize_t wrote = udt_mux_send(w.m[0], p.s[0], bytes, sizeof bytes, now);
    CHECK(wrote >= 200 << 10 && wrote <= 256 << 10);
    while (udt_mux_next_event(w.m[0], &ev))
        CHECK(ev.kind != UDT_EV_WRITABLE);
    while (sent < 100 << 10)
        sent += udt_mux_output(w.m[0], wire, sizeof wire, 16, &to, &seg, now);
    CHECK(!udt_mux_has_event(w.m[0]));
    for (size_t n; (n = udt_mux_output(w.m[0], wire, sizeof wire, 16, &to, &seg, now)) > 0;)
        sent += n;
    CHECK(sent >= (size_t)wrote);
    CHECK(udt_mux_next_event(w.m[0], &ev));
    CHECK_INT(ev.kind, UDT_EV_WRITABLE);
    CHECK(udt_mux_send(w.m[0], p.s[0], bytes, sizeof bytes, now) >= 200 << 10);
    world_fini(&w);
}

/* Packets of one byte cost a byte of credit, not a whole packet's. */
TEST(udt_open_windows_short_packets_cost_their_bytes)
{
    sim_link l = {.rate_bps = 1000000000, .delay_us = 1000};
    world w;
    pair p;
    world_init(&w, 3, &l, &l);
    keyed_pair(&w, &p, 5, 1000000);
    uint8_t x = 7;
    uint64_t sent = 0;
    for (int i = 0; i < 4000; i++) { /* nobody reads; 4000 full slots would be 5.8 MB */
        CHECK_INT(udt_mux_send(w.m[0], p.s[0], &x, 1, sim_net_now(w.net)), 1);
        sent++;
        sim_net_kick(w.net, 0);
        world_run(&w, sim_net_now(w.net) + 100);
        w.nev[0] = w.nev[1] = 0;
    }
    world_run(&w, sim_net_now(w.net) + 100000);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[1], p.s[1], &st), 0);
    CHECK_INT(st.rcv_queue_bytes, sent);
    CHECK(st.pkts_recv > 3000);
    printf("# %" PRId64 " packets of 1 byte wait: %" PRId64 " KiB\n", st.pkts_recv,
           used(&w, 1) >> 10);
    CHECK(used(&w, 1) < 600 << 10);
    world_fini(&w);
}

/* A quiet connection: one packet in five seconds from each end, and who dies is noticed. */
TEST(udt_open_windows_quiet_connection)
{
    sim_link l = {.rate_bps = 1000000000, .delay_us = 20000};
    world w;
    pair p;
    world_init(&w, 3, &l, &l);
    keyed_pair(&w, &p, 6, 1000000);
    flow f = {.from = 0, .seed = 1, .size = 100000};
    CHECK(world_move(&w, &p, &f, 1, 3000000));
    udt_time at = sim_net_now(w.net);
    world_run(&w, at + 30000000);
    int64_t before[] = {sim_net_counts(w.net, 0, 1).sent, sim_net_counts(w.net, 1, 0).sent};
    world_run(&w, at + 330000000);
    for (int e = 0; e < 2; e++) {
        int64_t n = sim_net_counts(w.net, e, !e).sent - before[e];
        printf("# 300 s of silence: %" PRId64 " packets\n", n);
        CHECK(n <= 60);
    }
    struct udt_ev ev;
    for (int e = 0; e < 2; e++)
        CHECK(!world_take(&w, e, UDT_EV_FAILED, 0, &ev));
    sim_net_set(w.net, 1, NULL, NULL);
    at = sim_net_now(w.net);
    ev = world_wait(&w, 0, UDT_EV_FAILED, p.s[0], at + 10050000);
    CHECK_INT(ev.err, UDT_E_BROKEN);
    world_fini(&w);
    /* One that was at work: within ten seconds. */
    world_init(&w, 4, &l, &l);
    keyed_pair(&w, &p, 7, 1000000);
    flow g = {.from = 0, .seed = 1, .size = 50000000};
    CHECK(!world_move(&w, &p, &g, 1, 150000));
    sim_net_set(w.net, 1, NULL, NULL);
    at = sim_net_now(w.net);
    world_wait(&w, 0, UDT_EV_FAILED, p.s[0], at + 10050000);
    world_fini(&w);
}
