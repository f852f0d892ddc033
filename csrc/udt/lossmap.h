/* A set of packet indices inside a sliding window: two-level bitmap ring, grown on demand.
 * Insert, remove and "next at or after" cost O(1) for single packets, O(n / 64) for ranges; the
 * loss lists of both directions are made of it. Empty sets hold no memory. */
#ifndef UDT_LOSSMAP_H
#define UDT_LOSSMAP_H

#include "udt_types.h"

#define LOSSMAP_NONE INT64_MAX

typedef struct lossmap {
    uint64_t *bits; /* one bit a packet, ring of `words` words */
    uint64_t *sum;  /* one bit a word of `bits` that is not zero */
    uint32_t words; /* power of two >= 64, 0 = nothing allocated */
    uint32_t count; /* members */
    int64_t lo, hi; /* every member lies in [lo, hi) */
} lossmap;

void lossmap_init(lossmap *m);
void lossmap_fini(lossmap *m);
/* Make room for members in [a, b] beside those present; false when out of memory. */
bool lossmap_reserve(lossmap *m, int64_t a, int64_t b);
/* Insert a..b inclusive. Room must have been reserved. */
void lossmap_add(lossmap *m, int64_t a, int64_t b);
/* False when it was no member. */
bool lossmap_del(lossmap *m, int64_t i);
bool lossmap_has(const lossmap *m, int64_t i);
/* Remove the members among a..b inclusive. */
void lossmap_del_run(lossmap *m, int64_t a, int64_t b);
/* Smallest member >= from, LOSSMAP_NONE when there is none. */
int64_t lossmap_next(const lossmap *m, int64_t from);
/* First index > `i` that is no member, given that `i` is one. */
int64_t lossmap_run_end(const lossmap *m, int64_t i);
/* Remove all members < i. */
void lossmap_del_below(lossmap *m, int64_t i);

#endif
