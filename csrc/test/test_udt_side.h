/* Two engines joined by function calls, and what each costs. */
#ifndef TEST_UDT_SIDE_H
#define TEST_UDT_SIDE_H

#include "test_udt_util.h"

#include <time.h>

typedef struct side {
    udt_mux *m;
    udt_addr addr;
    sim_rng rng;
    int32_t sock;
    int64_t ns; /* CPU spent in this side's calls */
} side;

static inline int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Hand over everything `from` has to say; returns bytes. */
static inline size_t carry(side *from, side *to, udt_time now)
{
    static uint8_t wire[65536];
    size_t total = 0, n, seg;
    udt_addr dst;
    for (;;) {
        int64_t t0 = cpu_ns();
        udt_mux_tick(from->m, now);
        n = udt_mux_output(from->m, wire, sizeof wire, 64, &dst, &seg, now);
        int64_t t1 = cpu_ns();
        from->ns += t1 - t0;
        if (n == 0)
            break;
        for (size_t at = 0; at < n; at += seg)
            udt_mux_input(to->m, &from->addr, wire + at, n - at < seg ? n - at : seg, now);
        to->ns += cpu_ns() - t1;
        total += n;
    }
    if (total)
        udt_mux_burst_end(to->m, now);
    return total;
}

#endif
