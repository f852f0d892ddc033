/* Paths that change under a flow, policers, and the loss of whole windows, in virtual time. */
#include <math.h>

#include "test_udt_cc_lab.h"

/* One leg of a path that is changed under a flow. */
typedef struct leg {
    double mbps;
    int64_t rtt_us;
    double back_s; /* demand: so long after the change 80 % of the limit are delivered */
    double drops;  /* demand: largest share of packets that the queue drops in the leg */
} leg;

enum { LEGS = 3, LEG_S = 8 };

typedef struct route {
    const char *cc;
    leg leg[LEGS];
} route;

/* Seconds until a round trip or more in a row delivers `share` of the limit, -1 = not by `end`. */
static double delivers(lab *l, const lab_link *k, double share, double end)
{
    double step = fmax(0.02, (double)k->rtt_us * 1e-6), from = lab_now(l), at = from, back = -1;
    int64_t last = l->f[0].got;
    while (back < 0 && at + step <= end) {
        at += step;
        lab_run(l, at);
        lab_trace(l);
        if ((double)(l->f[0].got - last) * 8e-6 / step >= share * lab_limit(k))
            back = at - from;
        last = l->f[0].got;
    }
    return back;
}

static void run_route(const route *r)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_link k[LEGS];
    for (int i = 0; i < LEGS; i++)
        k[i] = (lab_link){r->leg[i].mbps * 1e6, 0, r->leg[i].rtt_us, 0, false};
    lab_init(l, &k[0]);
    lab_add(l, &k[0], k[0].rtt_us, r->cc);
    l->bdp = 1e9 / 8e6 * 200000;
    lab_go(l);
    for (int i = 0; i < LEGS; i++) {
        const leg *g = &r->leg[i];
        lab_mark(l);
        if (i > 0)
            lab_change(l, &k[i]);
        double end = (i + 1) * LEG_S, back = delivers(l, &k[i], 0.8, end);
        while (getenv("TEST_TRACE") && lab_now(l) + 0.05 < end) {
            lab_run(l, lab_now(l) + 0.05);
            lab_trace(l);
        }
        lab_run(l, end);
        double mbps = lab_mbps(l, 0), drops = lab_drops(l);
        printf("%-4s leg %d: %4.0f Mb/s, RTT %3.0f ms: 80 %% after %.2f s = %.1f RTT, mean %5.1f "
               "%%, drops %.2f %%\n",
               r->cc, i, g->mbps, (double)g->rtt_us * 1e-3, back, back * 1e6 / (double)g->rtt_us,
               100 * mbps / lab_limit(&k[i]), 100 * drops);
        fflush(stdout);
        DEMAND(back >= 0 && back <= g->back_s);
        DEMAND(drops <= g->drops);
    }
    lab_fini(l);
    free(l);
}

/* Demands. A longer way, and back: 10 of the longer round trips. Less rate: 10 round trips, and a
 * window of packets may be lost. More rate: a probe finds it, which comes every 2 to 3 s, and then
 * 10 round trips. */
TEST(udt_cc_reroutes)
{
    static const route r[] = {
        {"bbr", {{1000, 20000, 1, 0.01}, {1000, 200000, 2, 0.02}, {1000, 20000, 2, 0.05}}},
        {"bbr", {{1000, 100000, 2, 0.01}, {200, 100000, 1, 0.20}, {1000, 100000, 4, 0.01}}},
        {"udt", {{1000, 20000, 1, 0.05}, {1000, 200000, 4, 0.05}, {1000, 20000, 2, 0.05}}},
        {"udt", {{1000, 100000, 2, 0.05}, {200, 100000, 1, 0.25}, {1000, 100000, 4, 0.05}}},
    };
    for (size_t i = 0; i < sizeof r / sizeof *r; i++)
        run_route(&r[i]);
}

/* Token buckets that drop what is too fast, without a queue that would warn. */
TEST(udt_cc_policers)
{
    static const struct {
        const char *cc;
        double mbps, bucket_s;
        int64_t rtt_us;
        double used, drops;
    } k[] = {
        {"bbr", 100, 0.02, 20000, 0.85, 0.08}, {"bbr", 100, 0.02, 100000, 0.85, 0.08},
        {"bbr", 100, 0.1, 50000, 0.85, 0.08},  {"bbr", 20, 0.01, 50000, 0.8, 0.08},
        {"udt", 100, 0.02, 20000, 0.7, 0.20},  {"udt", 100, 0.02, 100000, 0.7, 0.20},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        lab *l = malloc(sizeof *l);
        CHECK(l);
        lab_link link = {k[i].mbps * 1e6, (int64_t)(k[i].mbps / 8 * 1e6 * k[i].bucket_s),
                         k[i].rtt_us, 0, true};
        lab_init(l, &link);
        lab_add(l, &link, k[i].rtt_us, k[i].cc);
        lab_go(l);
        lab_run(l, 5);
        double first = lab_mbps(l, 0), lost = lab_drops(l);
        lab_mark(l);
        lab_run(l, 25);
        double used = lab_mbps(l, 0) / lab_limit(&link), drops = lab_drops(l);
        printf(
            "%-4s policer of %3.0f Mb/s, %3.0f ms of it at once, RTT %3.0f ms: first 5 s %.1f %% "
            "(%.2f %% dropped), then %.1f %% (%.2f %% dropped)\n",
            k[i].cc, k[i].mbps, 1e3 * k[i].bucket_s, (double)k[i].rtt_us * 1e-3,
            100 * first / lab_limit(&link), 100 * lost, 100 * used, 100 * drops);
        fflush(stdout);
        DEMAND(used >= k[i].used && drops <= k[i].drops);
        lab_fini(l);
        free(l);
    }
}

static double dropped(const lab *l)
{
    return (double)(sim_net_queue_counts(l->net, l->queue).queue_drops - l->before.queue_drops);
}

/* A tenth of a window has been lost at once: what of the link is used in the round trips after. */
static void mass_loss(const char *what, const char *cc, const lab_link *k, const lab_link *then)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_init(l, k);
    lab_add(l, k, k->rtt_us, cc);
    lab_go(l);
    double rtt = (double)k->rtt_us * 1e-6, limit = lab_limit(then ? then : k), at = 0;
    if (then) {
        lab_run(l, 2);
        lab_change(l, then);
    }
    while (dropped(l) < l->bdp / 1538 / 10 && at < 5) {
        at = lab_now(l) + rtt / 4;
        lab_run(l, at);
    }
    if (dropped(l) < l->bdp / 1538 / 10) {
        printf("%s, %-4s: no mass loss in %.0f s, %.0f %% used\n", what, cc, lab_now(l),
               100 * lab_mbps(l, 0) / limit);
        DEMAND(!then && lab_mbps(l, 0) > 0.5 * limit);
        lab_fini(l);
        free(l);
        return;
    }
    double from = lab_now(l), first = 0, mean[2] = {0};
    int reached = -1;
    lab_mark(l);
    int64_t last = l->f[0].got;
    for (int n = 1; n <= 20; n++) {
        lab_run(l, from + n * rtt);
        lab_trace(l);
        if (reached < 0 && (double)(l->f[0].got - last) * 8e-6 / rtt >= 0.5 * limit)
            reached = n;
        last = l->f[0].got;
        if (n == 10) {
            first = lab_drops(l);
            mean[0] = lab_mbps(l, 0);
            lab_mark(l);
        }
    }
    mean[1] = lab_mbps(l, 0);
    printf("%s, %-4s: half of the link in round trip %d, %.0f %% in the first ten, %.0f %% in the "
           "next ten; dropped %.1f %%, then %.1f %%\n",
           what, cc, reached, 100 * mean[0] / limit, 100 * mean[1] / limit, 100 * first,
           100 * lab_drops(l));
    fflush(stdout);
    DEMAND(reached > 0 && reached <= 10);
    DEMAND(mean[1] >= 0.5 * limit);
    lab_fini(l);
    free(l);
}

TEST(udt_cc_mass_loss)
{
    static const char *const cc[] = {"bbr", "udt", "foreign"};
    const lab_link bdp = {500e6, 0, 50000, 0, false}, tiny = {500e6, 64 * 1538, 50000, 0, false},
                   fast = {5e9, 0, 50000, 0, false}, far = {1e9, 250000, 200000, 0, false};
    for (int i = 0; i < 3; i++) {
        mass_loss("500 Mb/s, 50 ms, queue of 64 packets", cc[i], &tiny, NULL);
        mass_loss("1 Gb/s, 200 ms, queue of 0.25 MB", cc[i], &far, NULL);
        if (i < 2)
            mass_loss("5 Gb/s that becomes 500 Mb/s, 50 ms", cc[i], &fast, &bdp);
    }
}

/* A way that becomes longer step by step, none of them a jump: most of it from 10 s after the last
 * one, and no less with time. */
TEST(udt_cc_ways_that_grow)
{
    static const struct {
        double step, every_s;
    } k[] = {{1.05, 0.5}, {1.3, 1}, {1.3, 4}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        lab *l = malloc(sizeof *l);
        CHECK(l);
        lab_link link = {200e6, 0, 20000, 0, false};
        lab_init(l, &link);
        lab_add(l, &link, link.rtt_us, "bbr");
        l->bdp = link.rate_bps / 8e6 * 400000;
        lab_go(l);
        lab_run(l, 4);
        while (link.rtt_us < 300000) {
            link.rtt_us = (int64_t)((double)link.rtt_us * k[i].step);
            lab_change(l, &link);
            lab_run(l, lab_now(l) + k[i].every_s);
        }
        lab_mark(l);
        lab_run(l, lab_now(l) + 10);
        double first = lab_mbps(l, 0) / lab_limit(&link);
        lab_mark(l);
        lab_run(l, lab_now(l) + 15);
        double then = lab_mbps(l, 0) / lab_limit(&link);
        printf("bbr  20 to 300 ms by %2.0f %% each %.1f s: then 10 s of %.0f %%, 15 s of %.0f %%\n",
               100 * (k[i].step - 1), k[i].every_s, 100 * first, 100 * then);
        fflush(stdout);
        DEMAND(first >= 0.5 && then >= 0.75);
        lab_fini(l);
        free(l);
    }
}

/* Queues of many round trips that others keep full: neither side starves. */
TEST(udt_cc_beside_tcp_in_deep_queues)
{
    static const struct {
        double mbps;
        int64_t rtt_us;
        double bdp;
        int others;
    } k[] = {{100, 20000, 4, 1}, {100, 20000, 30, 1}, {50, 30000, 20, 4}, {300, 5000, 60, 2}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        lab *l = malloc(sizeof *l);
        CHECK(l);
        lab_link link = {k[i].mbps * 1e6, (int64_t)(k[i].mbps / 8 * (double)k[i].rtt_us * k[i].bdp),
                         k[i].rtt_us, 0, false};
        lab_init(l, &link);
        lab_add(l, &link, link.rtt_us, "bbr");
        for (int n = 0; n < k[i].others; n++)
            lab_add(l, &link, link.rtt_us, "tcp");
        l->bdp *= k[i].bdp;
        lab_go(l);
        lab_run(l, 20);
        lab_mark(l);
        lab_run(l, 80);
        double fair = lab_limit(&link) / (1 + k[i].others), own = lab_mbps(l, 0) / fair;
        double tcp = (lab_total(l) - lab_mbps(l, 0)) / k[i].others / fair;
        printf(
            "bbr  beside %d CUBIC, %3.0f Mb/s, %2d ms, queue of %2.0f BDP: own %.2f, CUBIC %.2f of "
            "a fair share\n",
            k[i].others, k[i].mbps, (int)(k[i].rtt_us / 1000), k[i].bdp, own, tcp);
        fflush(stdout);
        DEMAND(own >= 0.3);
        DEMAND(tcp >= 0.7);
        lab_fini(l);
        free(l);
    }
}
