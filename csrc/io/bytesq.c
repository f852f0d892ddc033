#include "io/bytesq.h"

#include "udt_err.h"

#include <stdlib.h>
#include <string.h>

/* Multiples of 1456, the payload of a packet at the usual MSS: full chunks fill packets evenly. */
enum { CHUNK_SMALL = 11 * 1456, CHUNK_MID = 45 * 1456, CHUNK_BIG = 88 * 1456 };

struct bytesq_chunk {
    _Atomic(struct bytesq_chunk *) next;
    _Atomic size_t written;
    size_t cap;
    uint8_t data[];
};

void bytesq_init(bytesq *q, _Atomic int64_t *mem, int64_t mem_max)
{
    memset(q, 0, sizeof *q);
    q->mem = mem;
    q->mem_max = mem_max;
}

static void chunk_free(bytesq *q, struct bytesq_chunk *c)
{
    atomic_fetch_sub_explicit(q->mem, (int64_t)c->cap, memory_order_relaxed);
    free(c);
}

void bytesq_fini(bytesq *q)
{
    struct bytesq_chunk *c = q->head ? q->head : atomic_load(&q->first);
    while (c) {
        struct bytesq_chunk *next = atomic_load(&c->next);
        chunk_free(q, c);
        c = next;
    }
    c = atomic_load(&q->spare);
    if (c)
        chunk_free(q, c);
    memset(q, 0, sizeof *q);
}

static struct bytesq_chunk *chunk_new(bytesq *q)
{
    size_t used = bytesq_used(q);
    size_t cap = used == 0 ? CHUNK_SMALL : used < 4 * CHUNK_SMALL ? CHUNK_MID : CHUNK_BIG;
    struct bytesq_chunk *c = atomic_exchange(&q->spare, NULL);
    if (c) {
        atomic_store_explicit(&c->next, NULL, memory_order_relaxed);
        atomic_store_explicit(&c->written, 0, memory_order_relaxed);
        return c;
    }
    if (used > 0 && atomic_load_explicit(q->mem, memory_order_relaxed) + (int64_t)cap > q->mem_max)
        return NULL;
    c = malloc(sizeof *c + cap);
    if (!c)
        return NULL;
    atomic_init(&c->next, NULL);
    atomic_init(&c->written, 0);
    c->cap = cap;
    atomic_fetch_add_explicit(q->mem, (int64_t)cap, memory_order_relaxed);
    return c;
}

bool bytesq_may_grow(bytesq *q)
{
    return bytesq_used(q) == 0 || atomic_load(&q->spare) ||
           atomic_load_explicit(q->mem, memory_order_relaxed) + CHUNK_BIG <= q->mem_max;
}

uint8_t *bytesq_room(bytesq *q, size_t *room)
{
    struct bytesq_chunk *t = q->tail;
    size_t w = t ? atomic_load_explicit(&t->written, memory_order_relaxed) : 0;
    if (!t || w == t->cap) {
        struct bytesq_chunk *c = chunk_new(q);
        if (!c) {
            *room = 0;
            return NULL;
        }
        if (t)
            atomic_store_explicit(&t->next, c, memory_order_release);
        else
            atomic_store_explicit(&q->first, c, memory_order_release);
        q->tail = t = c;
        w = 0;
    }
    *room = t->cap - w;
    return t->data + w;
}

void bytesq_commit(bytesq *q, size_t n)
{
    if (n == 0)
        return;
    atomic_fetch_add(&q->used, n);
    atomic_fetch_add_explicit(&q->tail->written, n, memory_order_release);
}

size_t bytesq_write(bytesq *q, const uint8_t *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        size_t room, n = len - done;
        uint8_t *to = bytesq_room(q, &room);
        if (!to)
            break;
        if (n > room)
            n = room;
        memcpy(to, buf + done, n);
        bytesq_commit(q, n);
        done += n;
    }
    return done;
}

/* A drained chunk: kept for the producer if it has none in reserve and data still flows. */
static void retire(bytesq *q, struct bytesq_chunk *c)
{
    struct bytesq_chunk *none = NULL;
    if (c->cap == CHUNK_BIG && atomic_compare_exchange_strong(&q->spare, &none, c))
        return;
    chunk_free(q, c);
}

const uint8_t *bytesq_peek(bytesq *q, size_t *len)
{
    *len = 0;
    if (!q->head) {
        q->head = atomic_load_explicit(&q->first, memory_order_acquire);
        if (!q->head)
            return NULL;
    }
    for (;;) {
        struct bytesq_chunk *c = q->head;
        size_t w = atomic_load_explicit(&c->written, memory_order_acquire);
        if (q->read < w) {
            *len = w - q->read;
            return c->data + q->read;
        }
        struct bytesq_chunk *next =
            w == c->cap ? atomic_load_explicit(&c->next, memory_order_acquire) : NULL;
        if (!next)
            return NULL;
        q->head = next;
        q->read = 0;
        retire(q, c);
    }
}

void bytesq_consume(bytesq *q, size_t n)
{
    q->read += n;
    if (atomic_fetch_sub(&q->used, n) == n) { /* idle now: keep no reserve */
        struct bytesq_chunk *c = atomic_exchange(&q->spare, NULL);
        if (c)
            chunk_free(q, c);
    }
}

size_t bytesq_read(bytesq *q, uint8_t *buf, size_t cap)
{
    size_t done = 0, n;
    const uint8_t *p;
    while (done < cap && (p = bytesq_peek(q, &n)) != NULL) {
        if (n > cap - done)
            n = cap - done;
        memcpy(buf + done, p, n);
        bytesq_consume(q, n);
        done += n;
    }
    return done;
}

void bytesq_discard(bytesq *q)
{
    size_t n;
    while (bytesq_peek(q, &n))
        bytesq_consume(q, n);
}

msgq_item *msgq_new(size_t len)
{
    msgq_item *it = malloc(sizeof *it);
    if (!it)
        return NULL;
    it->data = malloc(len ? len : 1);
    if (!it->data) {
        free(it);
        return NULL;
    }
    atomic_init(&it->next, NULL);
    it->len = len;
    it->expires = INT64_MAX;
    it->in_order = true;
    return it;
}

int msgq_init(msgq *q, _Atomic int64_t *mem)
{
    atomic_init(&q->used, 0);
    q->mem = mem;
    q->head = q->tail = msgq_new(0);
    return q->head ? 0 : UDT_E_NOMEM;
}

void msgq_fini(msgq *q)
{
    for (msgq_item *it = q->head; it;) {
        msgq_item *next = atomic_load(&it->next);
        if (it != q->head)
            atomic_fetch_sub_explicit(q->mem, (int64_t)it->len, memory_order_relaxed);
        free(it->data);
        free(it);
        it = next;
    }
    q->head = q->tail = NULL;
}

void msgq_push(msgq *q, msgq_item *it)
{
    atomic_fetch_add_explicit(q->mem, (int64_t)it->len, memory_order_relaxed);
    atomic_fetch_add(&q->used, it->len);
    msgq_item *t = q->tail;
    q->tail = it;
    atomic_store_explicit(&t->next, it, memory_order_release);
}

msgq_item *msgq_peek(msgq *q)
{
    return atomic_load_explicit(&q->head->next, memory_order_acquire);
}

void msgq_pop(msgq *q)
{
    msgq_item *old = q->head, *it = msgq_peek(q);
    size_t len = it->len;
    q->head = it; /* stays as the empty item before the next one, without its payload */
    free(it->data);
    it->data = NULL;
    atomic_fetch_sub_explicit(q->mem, (int64_t)len, memory_order_relaxed);
    atomic_fetch_sub(&q->used, len);
    free(old->data);
    free(old);
}
