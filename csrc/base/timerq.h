/* Deadlines in order: a binary heap of nodes that their owners embed. Room is reserved when an
 * owner is created, so setting a deadline never fails. O(log n) to set, O(1) to look. */
#ifndef BASE_TIMERQ_H
#define BASE_TIMERQ_H

#include "udt_types.h"

typedef struct timerq_node {
    udt_time at;  /* deadline, UDT_NEVER while not queued */
    uint32_t pos; /* place in the heap + 1, 0 while not queued */
} timerq_node;

typedef struct timerq {
    timerq_node **heap;
    uint32_t len, cap;
    uint32_t reserved; /* nodes promised room; len <= reserved <= cap */
} timerq;

void timerq_init(timerq *q);
void timerq_fini(timerq *q);
/* Promise room for one more node; false when out of memory. */
bool timerq_reserve(timerq *q);
/* Take the promise back; the node must not be queued. */
void timerq_release(timerq *q);
static inline void timerq_node_init(timerq_node *n)
{
    n->at = UDT_NEVER;
    n->pos = 0;
}
/* Queue, move or (UDT_NEVER) remove a node. */
void timerq_set(timerq *q, timerq_node *n, udt_time at);
/* The node with the earliest deadline, NULL when empty. It stays queued. */
static inline timerq_node *timerq_first(const timerq *q)
{
    return q->len ? q->heap[0] : NULL;
}

#endif
