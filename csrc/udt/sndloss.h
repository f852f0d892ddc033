/* The sender's loss list: packets to send again, smallest first (spec 4.5). */
#ifndef UDT_SNDLOSS_H
#define UDT_SNDLOSS_H

#include "base/bytes.h"
#include "udt/lossmap.h"

typedef struct udt_sndloss {
    lossmap map;
} udt_sndloss;

void udt_sndloss_init(udt_sndloss *l);
void udt_sndloss_fini(udt_sndloss *l);
/* a..b inclusive; false when out of memory (nothing changed). */
bool udt_sndloss_add(udt_sndloss *l, int64_t a, int64_t b);
static inline bool udt_sndloss_empty(const udt_sndloss *l)
{
    return l->map.count == 0;
}
/* Smallest lost packet, LOSSMAP_NONE when there is none. It stays in the list. */
static inline int64_t udt_sndloss_first(udt_sndloss *l)
{
    if (l->map.count == 0)
        return LOSSMAP_NONE;
    l->map.lo = lossmap_next(&l->map, l->map.lo);
    return l->map.lo;
}
static inline void udt_sndloss_del(udt_sndloss *l, int64_t i)
{
    lossmap_del(&l->map, i);
}
static inline void udt_sndloss_acked(udt_sndloss *l, int64_t una)
{
    if (l->map.count)
        lossmap_del_below(&l->map, una);
}

/* One entry of a NAK body: [a, b] as sequence numbers. False at the end or when cut short; test
 * r->bad afterwards. */
bool udt_nak_next(bytes_rd *r, uint32_t *a, uint32_t *b);

#endif
