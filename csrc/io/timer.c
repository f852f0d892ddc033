/* One-shot timers of a port in a binary heap; those that find no memory there, in a list. */
#include "io/priv.h"

#include <stdlib.h>

enum { IN_REST = INT32_MAX }; /* slot of a timer in the list */

static void put(io_timers *t, int32_t i, io_timer *x)
{
    t->heap[i] = x;
    x->slot = i;
}

static void sift(io_timers *t, int32_t i)
{
    io_timer *x = t->heap[i];
    while (i > 0 && t->heap[(i - 1) / 2]->at > x->at) {
        put(t, i, t->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c + 1 < t->n && t->heap[c + 1]->at < t->heap[c]->at)
            c++;
        if (c >= t->n || t->heap[c]->at >= x->at)
            break;
        put(t, i, t->heap[c]);
        i = c;
    }
    put(t, i, x);
}

static bool heap_room(io_timers *q)
{
    if (q->n < q->cap)
        return true;
    int32_t cap = q->cap ? 2 * q->cap : 16;
    io_timer **heap = realloc(q->heap, (size_t)cap * sizeof(io_timer *));
    if (!heap)
        return false;
    q->heap = heap;
    q->cap = cap;
    return true;
}

void io_timer_arm(io_port *p, io_timer *t, udt_time at)
{
    io_timers *q = &p->timers;
    t->at = at;
    if (t->slot == IN_REST)
        return;
    if (t->slot < 0 && !heap_room(q)) {
        t->slot = IN_REST;
        t->next = q->rest;
        q->rest = t;
        return;
    }
    if (t->slot < 0)
        put(q, q->n++, t);
    sift(q, t->slot);
}

static void rest_stop(io_timers *q, io_timer *t)
{
    io_timer **at = &q->rest;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
}

void io_timer_stop(io_port *p, io_timer *t)
{
    io_timers *q = &p->timers;
    int32_t i = t->slot;
    if (i < 0)
        return;
    t->slot = -1;
    if (i == IN_REST) {
        rest_stop(q, t);
        return;
    }
    io_timer *last = q->heap[--q->n];
    if (last != t) {
        put(q, i, last);
        sift(q, i);
    }
}

udt_time io_timers_next(const io_timers *t)
{
    udt_time at = t->n ? t->heap[0]->at : UDT_NEVER;
    for (const io_timer *r = t->rest; r; r = r->next)
        at = io_least(at, r->at);
    return at;
}

static io_timer *due(const io_port *p)
{
    const io_timers *q = &p->timers;
    if (q->n && q->heap[0]->at <= p->now)
        return q->heap[0];
    io_timer *r = q->rest;
    while (r && r->at > p->now)
        r = r->next;
    return r;
}

void io_timers_run(io_port *p)
{
    for (io_timer *t; (t = due(p));) {
        io_timer_stop(p, t);
        t->fn(p, t->arg);
    }
}
