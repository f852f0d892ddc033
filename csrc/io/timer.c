/* One-shot timers of a port in a binary heap. */
#include "io/priv.h"

#include <stdlib.h>

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

void io_timer_arm(io_port *p, io_timer *t, udt_time at)
{
    io_timers *q = &p->timers;
    t->at = at;
    if (t->slot < 0) {
        if (q->n == q->cap) {
            int32_t cap = q->cap ? 2 * q->cap : 16;
            io_timer **heap = realloc(q->heap, (size_t)cap * sizeof(io_timer *));
            if (!heap)
                abort(); /* a lost timer would leave its owner waiting for ever */
            q->heap = heap;
            q->cap = cap;
        }
        put(q, q->n++, t);
    }
    sift(q, t->slot);
}

void io_timer_stop(io_port *p, io_timer *t)
{
    io_timers *q = &p->timers;
    int32_t i = t->slot;
    if (i < 0)
        return;
    t->slot = -1;
    io_timer *last = q->heap[--q->n];
    if (last != t) {
        put(q, i, last);
        sift(q, i);
    }
}

udt_time io_timers_next(const io_timers *t)
{
    return t->n ? t->heap[0]->at : UDT_NEVER;
}

void io_timers_run(io_port *p)
{
    while (p->timers.n && p->timers.heap[0]->at <= p->now) {
        io_timer *t = p->timers.heap[0];
        io_timer_stop(p, t);
        t->fn(p, t->arg);
    }
}
