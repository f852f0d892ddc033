#include "base/timerq.h"

#include <assert.h>
#include <stdlib.h>

void timerq_init(timerq *q)
{
    *q = (timerq){0};
}

void timerq_fini(timerq *q)
{
    free(q->heap);
    *q = (timerq){0};
}

bool timerq_reserve(timerq *q)
{
    if (q->reserved == q->cap) {
        uint32_t cap = q->cap ? q->cap * 2 : 16;
        timerq_node **heap = realloc(q->heap, cap * sizeof *heap);
        if (!heap)
            return false;
        q->heap = heap;
        q->cap = cap;
    }
    q->reserved++;
    return true;
}

void timerq_release(timerq *q)
{
    assert(q->reserved > q->len);
    q->reserved--;
}

static void place(timerq *q, uint32_t i, timerq_node *n)
{
    q->heap[i] = n;
    n->pos = i + 1;
}

static void sift_up(timerq *q, uint32_t i, timerq_node *n)
{
    while (i > 0) {
        uint32_t parent = (i - 1) / 2;
        if (q->heap[parent]->at <= n->at)
            break;
        place(q, i, q->heap[parent]);
        i = parent;
    }
    place(q, i, n);
}

static void sift_down(timerq *q, uint32_t i, timerq_node *n)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= q->len)
            break;
        if (child + 1 < q->len && q->heap[child + 1]->at < q->heap[child]->at)
            child++;
        if (n->at <= q->heap[child]->at)
            break;
        place(q, i, q->heap[child]);
        i = child;
    }
    place(q, i, n);
}

static void remove_node(timerq *q, timerq_node *n)
{
    uint32_t i = n->pos - 1;
    timerq_node *last = q->heap[--q->len];
    n->pos = 0;
    if (last == n)
        return;
    if (last->at < n->at)
        sift_up(q, i, last);
    else
        sift_down(q, i, last);
}

void timerq_set(timerq *q, timerq_node *n, udt_time at)
{
    if (at == UDT_NEVER) {
        if (n->pos)
            remove_node(q, n);
        n->at = UDT_NEVER;
        return;
    }
    if (!n->pos) {
        assert(q->len < q->reserved);
        n->at = at;
        sift_up(q, q->len++, n);
        return;
    }
    udt_time old = n->at;
    n->at = at;
    if (at < old)
        sift_up(q, n->pos - 1, n);
    else if (at > old)
        sift_down(q, n->pos - 1, n);
}
