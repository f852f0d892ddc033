/* How far two processors are from each other: a number goes to and fro between them.
 *   peer_cores [CPU CPU]      {"cpus": [0, 1], "round_trip_ns": 77}
 * Those that share a cache take less than 100 ns, others 200 to 500. Without arguments the first
 * two that this process may use. Ends after two seconds at the latest.
 */
#include "bench_util.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { ROUNDS = 1000, SERIES = 200, LIMIT_US = 2000000 };

static _Alignas(128) atomic_int ball;
static _Alignas(128) atomic_bool over;

static bool run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

/* Until the ball has come; false when the time is over. */
static bool await(int value)
{
    while (atomic_load_explicit(&ball, memory_order_acquire) != value)
        if (atomic_load_explicit(&over, memory_order_relaxed))
            return false;
    return true;
}

static void *answer(void *cpu)
{
    if (!run_on(*(int *)cpu))
        return NULL;
    for (int n = 1; await(n); n += 2)
        atomic_store_explicit(&ball, n + 1, memory_order_release);
    return NULL;
}

/* ns of a round trip in the best of all series; -1 when none came to its end. */
static double play(void)
{
    int64_t end = bench_now_us() + LIMIT_US;
    double best = -1;
    int n = 0;
    for (int series = 0; series < SERIES && bench_now_us() < end; series++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int round = 0; round < ROUNDS; round++, n += 2) {
            atomic_store_explicit(&ball, n + 1, memory_order_release);
            /* the other thread may not run at all: look at the clock now and then */
            for (unsigned spin = 0; atomic_load_explicit(&ball, memory_order_acquire) != n + 2;
                 spin++)
                if (spin % 4096 == 4095 && bench_now_us() >= end)
                    return best;
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
        if (best < 0 || ns / ROUNDS < best)
            best = ns / ROUNDS;
    }
    return best;
}

int main(int argc, char **argv)
{
    int cpus[2] = {-1, -1}, found = 0;
    if (argc == 3) {
        cpus[found++] = atoi(argv[1]);
        cpus[found++] = atoi(argv[2]);
    } else if (argc == 1) {
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof set, &set) == 0)
            for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
                if (CPU_ISSET((unsigned)cpu, &set))
                    cpus[found++] = cpu;
    }
    if (found < 2 || cpus[0] < 0 || cpus[1] < 0 || !run_on(cpus[0])) {
        fprintf(stderr, "peer_cores: needs two processors: peer_cores [CPU CPU]\n");
        return 2;
    }
    pthread_t other;
    if (pthread_create(&other, NULL, answer, &cpus[1]) != 0) {
        fprintf(stderr, "peer_cores: no thread\n");
        return 1;
    }
    double ns = play();
    atomic_store(&over, true);
    pthread_join(other, NULL);
    if (ns < 0) {
        fprintf(stderr, "peer_cores: processor %d did not answer\n", cpus[1]);
        return 1;
    }
    printf("{\"cpus\": [%d, %d], \"round_trip_ns\": %.0f}\n", cpus[0], cpus[1], ns);
    return 0;
}
