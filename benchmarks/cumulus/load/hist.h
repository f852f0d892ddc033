/* A histogram of times in microseconds: 128 steps an octave, so within 0.8 %, in bounded memory. */
#ifndef S3LOAD_HIST_H
#define S3LOAD_HIST_H

#include <stdint.h>

enum { HIST_STEPS = 128, HIST_OCTAVES = 40 };

struct hist {
    uint64_t count[HIST_STEPS * HIST_OCTAVES];
    uint64_t n;
    int64_t max_us;
    double sum_us;
};

/* Count one time; negative ones count as 0. */
void hist_add(struct hist *h, int64_t us);

/* The time in ms that the share `q` (0 to 1) of all did not pass; 0 if nothing was counted. */
double hist_ms(const struct hist *h, double q);

#endif
