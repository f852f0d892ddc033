/* Internet scale in virtual time: 10 and 100 Gb/s, round trips to 600 ms, hundreds of flows. With
 * --scale=1000 or more (./dev soak) more of each. */
#include <time.h>

#include "test_udt_cc_lab.h"

static double cpu_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

typedef struct crowd {
    const char *what;
    double rate_bps;
    int64_t rtt_us, rtt_most_us; /* round trips spread evenly between */
    int own, tcp, tcp_bbr;
    double warm_s, run_s;
    double used, jain; /* at least */
    bool big;          /* only at full scale */
} crowd;

static const char *law_of(const crowd *k, int i)
{
    int n = k->own + k->tcp + k->tcp_bbr;
    if (k->tcp && i % (n / k->tcp) == 0)
        return "tcp";
    if (k->tcp_bbr && i % (n / k->tcp_bbr) == 1)
        return "tcp-bbr";
    return getenv("TEST_CC");
}

/* Mean Mb/s of the flows of one kind. */
static double mean_of(const lab *l, const crowd *k, const char *law)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        const char *its = law_of(k, i);
        bool same = !its == !law && (!law || strcmp(its, law) == 0);
        sum += same ? lab_mbps(l, i) : 0;
        n += same;
    }
    return n ? sum / n : 0;
}

static void print_flows(const lab *l)
{
    for (int i = 0; getenv("TEST_TRACE") && i < l->n; i++)
        printf("%s%3.0f ms %5.1f Mb/s", i % 5 ? "   " : "\n", (double)l->f[i].rtt_us * 1e-3,
               lab_mbps(l, i));
}

/* Shares of flows that push each other about depend on every packet: with BBR's they are means of
 * these many runs, each with a seed of its own. */
enum { CHANCES = 3 };

static void run_crowd(const crowd *k, uint64_t seed, double *used, double *jain)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_link link = {k->rate_bps, 0, k->rtt_most_us, 0, false};
    double cpu = cpu_s();
    int n = k->own + k->tcp + k->tcp_bbr;
    lab_init_seed(l, &link, seed);
    for (int i = 0; i < n; i++) {
        int64_t rtt = n > 1 ? k->rtt_us + (k->rtt_most_us - k->rtt_us) * i / (n - 1) : k->rtt_us;
        lab_flow *f = lab_add(l, &link, rtt, law_of(k, i));
        f->windows = n == 1;
        f->budget = (uint64_t)8 << 30;
    }
    lab_go(l);
    lab_run(l, k->warm_s);
    lab_mark(l);
    lab_run(l, k->warm_s + k->run_s);
    *used = lab_total(l) / lab_limit(&link);
    *jain = lab_jain(l);
    sim_counts c = sim_net_queue_counts(l->net, l->queue);
    cpu = cpu_s() - cpu;
    print_flows(l);
    lab_trace(l);
    printf("%s: %d own, %d CUBIC, %d BBR, RTT %.0f to %.0f ms: %.1f %% used, Jain %.3f, mean %.1f, "
           "%.1f, %.1f Mb/s, drops %.3f %%, %.1f s of CPU, %.2f M packets/s\n",
           k->what, k->own, k->tcp, k->tcp_bbr, (double)k->rtt_us * 1e-3,
           (double)k->rtt_most_us * 1e-3, 100 * *used, *jain, mean_of(l, k, getenv("TEST_CC")),
           mean_of(l, k, "tcp"), mean_of(l, k, "tcp-bbr"), 100 * lab_drops(l), cpu,
           (double)c.sent * 1e-6 / cpu);
    fflush(stdout);
    lab_fini(l);
    free(l);
}

static void judge_crowd(const crowd *k)
{
    int runs = k->tcp_bbr ? CHANCES : 1;
    double used = 0, jain = 0;
    for (int i = 0; i < runs; i++) {
        double one_used, one_jain;
        run_crowd(k, test_seed + (uint64_t)i, &one_used, &one_jain);
        used += one_used / runs;
        jain += one_jain / runs;
    }
    if (!getenv("TEST_CC")) {
        DEMAND(used >= k->used);
        DEMAND(jain >= k->jain);
    }
}

TEST(udt_scale)
{
    static const crowd k[] = {
        {"10 Gb/s", 10e9, 100000, 100000, 1, 0, 0, 2, 2, 0.95, 1, false},
        {"10 Gb/s", 10e9, 600000, 600000, 1, 0, 0, 10, 3, 0.9, 1, false},
        {"100 Gb/s", 100e9, 20000, 20000, 1, 0, 0, 0.6, 0.4, 0.9, 1, false},
        {"1 Gb/s", 1e9, 10000, 300000, 100, 0, 0, 20, 20, 0.9, 0.8, false},
        {"1 Gb/s", 1e9, 10000, 600000, 400, 0, 0, 20, 10, 0.9, 0.8, false},
        {"1 Gb/s", 1e9, 50000, 50000, 40, 10, 0, 10, 20, 0.9, 0.7, false},
        {"1 Gb/s", 1e9, 50000, 50000, 40, 0, 10, 10, 20, 0.9, 0.2, false},
        {"10 Gb/s", 10e9, 600000, 600000, 1, 0, 0, 10, 20, 0.95, 1, true},
        {"100 Gb/s", 100e9, 100000, 100000, 1, 0, 0, 3, 3, 0.95, 1, true},
        {"10 Gb/s", 10e9, 10000, 300000, 400, 0, 0, 20, 40, 0.9, 0.7, true},
    };
    const char *only = getenv("TEST_ROW");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        if (only ? (size_t)atoi(only) == i : !k[i].big || test_scale >= 1000)
            judge_crowd(&k[i]);
}
