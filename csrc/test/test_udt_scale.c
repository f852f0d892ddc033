/* Internet scale in virtual time: 10 and 100 Gb/s, round trips to 600 ms, hundreds of flows. The
 * full set runs with --scale=1000 or more (./dev soak); otherwise a smaller one. */
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
    int own, tcp;
    double warm_s, run_s;
    double used, jain; /* at least */
    bool big;          /* only at full scale */
} crowd;

static void run_crowd(const crowd *k)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_link link = {k->rate_bps, 0, k->rtt_most_us, 0};
    double cpu = cpu_s();
    int n = k->own + k->tcp;
    lab_init(l, &link);
    for (int i = 0; i < n; i++) {
        int64_t rtt = n > 1 ? k->rtt_us + (k->rtt_most_us - k->rtt_us) * i / (n - 1) : k->rtt_us;
        bool tcp = k->tcp && i % (n / k->tcp) == 0;
        lab_add(l, &link, rtt, tcp ? "tcp" : getenv("TEST_CC"));
    }
    lab_go(l);
    lab_run(l, k->warm_s);
    lab_mark(l);
    lab_run(l, k->warm_s + k->run_s);
    double used = lab_total(l) / lab_limit(&link), jain = lab_jain(l);
    sim_counts c = sim_net_queue_counts(l->net, l->queue);
    cpu = cpu_s() - cpu;
    printf("%s: %d own, %d CUBIC, RTT %.0f to %.0f ms: %.1f %% used, Jain %.3f, drops %.3f %%, "
           "%.2f M packets/s of CPU\n",
           k->what, k->own, k->tcp, (double)k->rtt_us * 1e-3, (double)k->rtt_most_us * 1e-3,
           100 * used, jain, 100 * lab_drops(l), (double)c.sent * 1e-6 / cpu);
    fflush(stdout);
    if (!getenv("TEST_CC")) {
        CHECK(used >= k->used);
        CHECK(jain >= k->jain);
    }
    lab_fini(l);
    free(l);
}

TEST(udt_scale)
{
    static const crowd k[] = {
        {"10 Gb/s", 10e9, 100000, 100000, 1, 0, 2, 2, 0.95, 1, false},
        {"10 Gb/s", 10e9, 600000, 600000, 1, 0, 8, 20, 0.95, 1, true},
        {"100 Gb/s", 100e9, 100000, 100000, 1, 0, 3, 3, 0.95, 1, true},
        {"1 Gb/s", 1e9, 10000, 300000, 100, 0, 20, 20, 0.9, 0.5, false},
        {"1 Gb/s", 1e9, 50000, 50000, 40, 10, 10, 20, 0.9, 0.5, false},
        {"10 Gb/s", 10e9, 10000, 300000, 400, 0, 20, 40, 0.9, 0.5, true},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        if (!k[i].big || test_scale >= 1000)
            run_crowd(&k[i]);
}
