/* Paths that lose packets for other reasons than a full queue of ours, in virtual time: queues of a
 * few packets, and round trips that vary. */
#include "test_udt_cc_lab.h"

enum { WARM_S = 5, LONG_S = 35, SEEDS = 8 };

typedef struct outcome {
    double used, drops, others; /* shares of the limit, of what was sent, of the limit */
} outcome;

/* One flow of ours, and one of TCP if `other` names it. */
static outcome run(const lab_link *link, int64_t jitter_us, const char *other, uint64_t seed)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_init_seed(l, link, seed);
    l->jitter_us = jitter_us;
    lab_add(l, link, link->rtt_us, "bbr");
    if (other)
        lab_add(l, link, link->rtt_us, other);
    l->bdp = 4 * l->bdp + 1e6;
    lab_go(l);
    lab_run(l, WARM_S);
    lab_mark(l);
    lab_run(l, LONG_S);
    outcome o = {lab_total(l) / lab_limit(link), lab_drops(l), 0};
    if (other)
        o.others = lab_mbps(l, 1) / lab_limit(link);
    lab_fini(l);
    free(l);
    return o;
}

/* What is sent at once overflows a queue of a few packets however slowly it is sent. */
TEST(udt_cc_short_queues)
{
    static const struct {
        double mbps;
        int64_t rtt_us;
        int pkts;
        double used, drops;
    } k[] = {{100, 5000, 5, 0.85, 0.05},  {100, 20000, 5, 0.75, 0.03}, {100, 80000, 5, 0.75, 0.03},
             {100, 20000, 9, 0.85, 0.03}, {1000, 5000, 5, 0.7, 0.03},  {1000, 20000, 5, 0.7, 0.03},
             {1000, 20000, 9, 0.7, 0.03}, {1000, 5000, 11, 0.8, 0.03}, {100, 80000, 3, 0.7, 0.05}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        lab_link link = {k[i].mbps * 1e6, k[i].pkts * 1538 + 100, k[i].rtt_us, 0, false};
        outcome o = run(&link, 0, NULL, test_seed);
        printf("bbr  %4.0f Mb/s, %2d ms, queue of %2d packets: %.1f %% used, %.2f %% dropped\n",
               k[i].mbps, (int)(k[i].rtt_us / 1000), k[i].pkts, 100 * o.used, 100 * o.drops);
        fflush(stdout);
        DEMAND(o.used >= k[i].used);
        DEMAND(o.drops <= k[i].drops);
    }
}

/* A queue that has room again: small bursts cost a wake-up for each two packets, and end. */
TEST(udt_cc_short_queue_grows)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_link few = {100e6, 5 * 1538 + 100, 20000, 0, false}, room = {100e6, 0, 20000, 0, false};
    lab_init(l, &few);
    l->bdp = 1e6;
    lab_add(l, &few, few.rtt_us, "bbr");
    lab_go(l);
    lab_run(l, 15);
    int before = lab_conn(l, 0)->cc.burst_pkts;
    lab_change(l, &room);
    lab_run(l, 60);
    lab_mark(l);
    lab_run(l, 75);
    int after = lab_conn(l, 0)->cc.burst_pkts;
    printf("at once %d packets at most, then %d; %.1f Mb/s\n", before, after, lab_mbps(l, 0));
    DEMAND(before == 2 && after == 0); /* 0 = any number */
    DEMAND(lab_mbps(l, 0) >= 0.97 * lab_limit(&room));
    lab_fini(l);
    free(l);
}

/* Two that fill one: what is lost is not made up for by sending more of it. */
TEST(udt_cc_short_queues_beside_tcp)
{
    lab_link link = {50e6, 5 * 1538 + 100, 10000, 0, false};
    outcome o = run(&link, 0, "tcp", test_seed);
    printf("bbr  beside CUBIC, queue of 5 packets: %.1f %% used, %.2f %% dropped, CUBIC %.1f %%\n",
           100 * o.used, 100 * o.drops, 100 * o.others);
    DEMAND(o.used >= 0.85);
    DEMAND(o.drops <= 0.1);
}

/* Round trips that vary by as much as the way look like a queue that stands, and what is lost by
 * chance there is no overflow. */
TEST(udt_cc_jitter_with_losses)
{
    static const struct {
        double mbps;
        int64_t rtt_us, jitter_us;
        uint32_t loss_ppm;
        double used;
    } k[] = {{20, 60000, 40000, 5000, 0.65},
             {100, 40000, 20000, 1000, 0.65},
             {100, 20000, 20000, 5000, 0.45}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        lab_link link = {k[i].mbps * 1e6, 0, k[i].rtt_us, k[i].loss_ppm, false};
        double used = 0;
        for (uint64_t n = 0; n < SEEDS; n++)
            used += run(&link, k[i].jitter_us, NULL, test_seed + 10 * n).used / SEEDS;
        printf("bbr  %3.0f Mb/s, %2d ms, jitter %2d ms each way, %.1f %% lost: %.1f %% used\n",
               k[i].mbps, (int)(k[i].rtt_us / 1000), (int)(k[i].jitter_us / 1000),
               k[i].loss_ppm * 1e-4, 100 * used);
        fflush(stdout);
        DEMAND(used >= k[i].used);
    }
}
