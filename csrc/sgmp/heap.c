#include "sgmp/heap.h"

#include <stdlib.h>

bool sg_heap_reserve(struct sg_heap *h)
{
    if (h->owners == h->cap) {
        uint32_t cap = h->cap ? h->cap * 2 : 64;
        struct sg_timer **v = realloc(h->v, cap * sizeof *v);
        if (!v)
            return false;
        h->v = v;
        h->cap = cap;
    }
    h->owners++;
    return true;
}

static void place(struct sg_heap *h, uint32_t i, struct sg_timer *t)
{
    h->v[i] = t;
    t->slot = i + 1;
}

static void sift(struct sg_heap *h, uint32_t i, struct sg_timer *t)
{
    for (; i > 0 && h->v[(i - 1) / 2]->at > t->at; i = (i - 1) / 2)
        place(h, i, h->v[(i - 1) / 2]);
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->v[c + 1]->at < h->v[c]->at)
            c++;
        if (h->v[c]->at >= t->at)
            break;
        place(h, i, h->v[c]);
        i = c;
    }
    place(h, i, t);
}

static void disarm(struct sg_heap *h, struct sg_timer *t)
{
    uint32_t i = t->slot - 1;
    struct sg_timer *last = h->v[--h->n];
    t->slot = 0;
    if (last != t)
        sift(h, i, last);
}

void sg_heap_set(struct sg_heap *h, struct sg_timer *t, udt_time at)
{
    if (t->slot && at == t->at)
        return;
    if (at == UDT_NEVER) {
        if (t->slot)
            disarm(h, t);
        t->at = UDT_NEVER;
        return;
    }
    t->at = at;
    sift(h, t->slot ? t->slot - 1 : h->n++, t);
}

void sg_heap_unreserve(struct sg_heap *h, struct sg_timer *t)
{
    if (t->slot)
        disarm(h, t);
    h->owners--;
}

struct sg_timer *sg_heap_due(struct sg_heap *h, udt_time now)
{
    if (h->n == 0 || h->v[0]->at > now)
        return NULL;
    struct sg_timer *t = h->v[0];
    disarm(h, t);
    return t;
}

void sg_heap_fini(struct sg_heap *h)
{
    free(h->v);
    h->v = NULL;
    h->n = h->cap = h->owners = 0;
}
