#include "hist.h"

#include <math.h>

/* Times below HIST_STEPS have a place each; above, an octave shares HIST_STEPS places. */
static unsigned place(uint64_t us)
{
    unsigned octave = 0;
    if (us >> 44) /* half a year */
        us = (UINT64_C(1) << 44) - 1;
    while (us >> octave >= 2 * HIST_STEPS)
        octave++;
    if (us < HIST_STEPS)
        return (unsigned)us;
    return (octave + 1) * HIST_STEPS + (unsigned)((us >> octave) - HIST_STEPS);
}

/* The largest time of a place. */
static double upper_us(unsigned at)
{
    unsigned octave = at / HIST_STEPS;
    if (!octave)
        return at;
    return ldexp(HIST_STEPS + at % HIST_STEPS + 1, (int)octave - 1) - 1;
}

void hist_add(struct hist *h, int64_t us)
{
    us = us < 0 ? 0 : us;
    h->count[place((uint64_t)us)]++;
    h->n++;
    h->sum_us += (double)us;
    if (us > h->max_us)
        h->max_us = us;
}

double hist_ms(const struct hist *h, double q)
{
    uint64_t wanted = (uint64_t)ceil(q * (double)h->n), seen = 0;
    for (unsigned at = 0; at < HIST_STEPS * HIST_OCTAVES; at++) {
        seen += h->count[at];
        if (seen && seen >= wanted) {
            double us = upper_us(at);
            return (us < (double)h->max_us ? us : (double)h->max_us) / 1e3;
        }
    }
    return 0;
}
