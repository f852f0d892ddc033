/* Deadlines of the engine: a binary heap of timers that are embedded in their owners. */
#ifndef SGMP_HEAP_H
#define SGMP_HEAP_H

#include "udt_types.h"

struct sg_timer {
    udt_time at;   /* once it was due too; else UDT_NEVER when it was taken back */
    uint32_t slot; /* 1 + place in the heap, 0 = not armed */
    uint32_t kind; /* the owner's type, for dispatch */
};
struct sg_heap {
    struct sg_timer **v;
    uint32_t n, cap, owners;
};

/* Every timer's owner reserves its place once, so that arming cannot fail. */
bool sg_heap_reserve(struct sg_heap *h);
void sg_heap_unreserve(struct sg_heap *h, struct sg_timer *t);        /* also disarms */
void sg_heap_set(struct sg_heap *h, struct sg_timer *t, udt_time at); /* UDT_NEVER disarms */
void sg_heap_fini(struct sg_heap *h);
static inline udt_time sg_heap_top(const struct sg_heap *h)
{
    return h->n ? h->v[0]->at : UDT_NEVER;
}
/* Disarms and returns the earliest timer with at <= now, else NULL. */
struct sg_timer *sg_heap_due(struct sg_heap *h, udt_time now);

#endif
