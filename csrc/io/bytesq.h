/* Single-producer, single-consumer queues between a loop thread and an application thread: bytes
 * (streams) and whole messages. No locks; the consumer never waits for the producer. Memory grows
 * with what waits: chunks of 16 KB, then 64 KB, then 256 KB, one drained chunk kept for reuse. */
#ifndef IO_BYTESQ_H
#define IO_BYTESQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytesq_chunk;
typedef struct bytesq {
    _Atomic(struct bytesq_chunk *) first; /* set once by the producer */
    struct bytesq_chunk *tail;            /* producer */
    struct bytesq_chunk *head;            /* consumer */
    size_t read;                          /* consumer: bytes taken from head */
    _Atomic(struct bytesq_chunk *) spare;
    _Atomic size_t used;  /* bytes written and not consumed */
    _Atomic int64_t *mem; /* shared account of chunk memory */
    int64_t mem_max;      /* above it only an empty queue gets a (small) chunk */
} bytesq;

void bytesq_init(bytesq *q, _Atomic int64_t *mem, int64_t mem_max);
void bytesq_fini(bytesq *q); /* both sides are gone */
static inline size_t bytesq_used(bytesq *q)
{
    return atomic_load(&q->used);
}
/* Producer: room for the next bytes (NULL when no memory), then commit what was written. */
uint8_t *bytesq_room(bytesq *q, size_t *room);
void bytesq_commit(bytesq *q, size_t n);
bool bytesq_may_grow(bytesq *q); /* a chunk more is within the shared account */
/* Producer: copies at most len bytes in; returns how many. */
size_t bytesq_write(bytesq *q, const uint8_t *buf, size_t len);
/* Consumer: the next bytes in one piece (NULL and 0 when empty), then consume some of them. */
const uint8_t *bytesq_peek(bytesq *q, size_t *len);
void bytesq_consume(bytesq *q, size_t n);
size_t bytesq_read(bytesq *q, uint8_t *buf, size_t cap);
void bytesq_discard(bytesq *q); /* consumer: all that is there */

typedef struct msgq_item {
    _Atomic(struct msgq_item *) next;
    size_t len;
    int64_t expires; /* time after which it need not be sent, or INT64_MAX */
    bool in_order;
    uint8_t *data; /* len bytes */
} msgq_item;
typedef struct msgq {
    msgq_item *tail; /* producer */
    msgq_item *head; /* consumer: the item before the next one */
    _Atomic size_t used;
    _Atomic int64_t *mem;
} msgq;

int msgq_init(msgq *q, _Atomic int64_t *mem); /* 0 or UDT_E_NOMEM */
void msgq_fini(msgq *q);
static inline size_t msgq_used(msgq *q)
{
    return atomic_load(&q->used);
}
msgq_item *msgq_new(size_t len); /* to be filled and pushed */
void msgq_push(msgq *q, msgq_item *it);
/* Consumer: the oldest item, which stays owned by the queue until msgq_pop. NULL when empty. */
msgq_item *msgq_peek(msgq *q);
void msgq_pop(msgq *q);

#endif
