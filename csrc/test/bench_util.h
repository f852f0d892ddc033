/* What the programs of the benchmarks share, in C and C++: clock, CPU time, bytes per 100 ms. */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { SAMPLE_US = 100000, SAMPLES_MAX = 72000 };

static inline int64_t bench_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static inline double bench_cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Bytes of one receiver or sender over time; the clock starts with the connection. */
struct bench_series {
    int64_t t0, t1; /* start, last byte */
    int64_t bytes;
    double cpu0, cpu; /* CPU time since the start, once it is printed */
    int n;
    int64_t bin[SAMPLES_MAX];
};

static inline void bench_start(struct bench_series *s)
{
    s->t0 = s->t1 = bench_now_us();
    s->cpu0 = bench_cpu_s();
}

static inline void bench_count(struct bench_series *s, int64_t bytes)
{
    int64_t at;
    s->t1 = bench_now_us();
    s->bytes += bytes;
    at = (s->t1 - s->t0) / SAMPLE_US;
    if (at >= SAMPLES_MAX)
        at = SAMPLES_MAX - 1;
    if (at >= s->n)
        s->n = (int)at + 1;
    s->bin[at] += bytes;
}

/* Fields of a JSON object, without its braces. */
static inline void bench_print(struct bench_series *s, const char *role)
{
    double seconds = (double)(s->t1 - s->t0) * 1e-6, gb = (double)s->bytes * 1e-9;
    s->cpu = bench_cpu_s() - s->cpu0;
    printf("\"role\": \"%s\", \"bytes\": %lld, \"seconds\": %.6f, \"gbps\": %.4f, \"cpu_s\": %.4f, "
           "\"cpu_s_per_gb\": %.4f, \"sample_ms\": %d, \"samples\": [",
           role, (long long)s->bytes, seconds, seconds > 0 ? gb * 8 / seconds : 0, s->cpu,
           gb > 0 ? s->cpu / gb : 0, SAMPLE_US / 1000);
    for (int i = 0; i < s->n; i++)
        printf("%s%lld", i ? ", " : "", (long long)s->bin[i]);
    printf("]");
}

#endif
