/* The receiver's loss list: packets known to be missing, and NAK coding (spec 4.4). */
#ifndef UDT_RCVLOSS_H
#define UDT_RCVLOSS_H

#include "udt/lossmap.h"

typedef struct udt_rcvloss {
    lossmap map;
} udt_rcvloss;

void udt_rcvloss_init(udt_rcvloss *l);
void udt_rcvloss_fini(udt_rcvloss *l);
/* a..b inclusive is missing; false when out of memory (nothing changed). */
bool udt_rcvloss_add(udt_rcvloss *l, int64_t a, int64_t b);
static inline void udt_rcvloss_del(udt_rcvloss *l, int64_t i)
{
    if (l->map.count)
        lossmap_del(&l->map, i);
}
/* First missing packet, or `none` when nothing is missing. */
static inline int64_t udt_rcvloss_first(udt_rcvloss *l, int64_t none)
{
    if (l->map.count == 0)
        return none;
    /* The smallest member only ever grows, so remembering it makes this amortised O(1). */
    l->map.lo = lossmap_next(&l->map, l->map.lo);
    return l->map.lo;
}
/* Encode the missing packets of [from, to) as NAK words, at most `max`; *next = where to go on.
 * Returns the number of words. */
size_t udt_rcvloss_encode(const udt_rcvloss *l, uint32_t isn, int64_t from, int64_t to,
                          uint32_t *words, size_t max, int64_t *next);

#endif
