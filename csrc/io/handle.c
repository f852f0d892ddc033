/* Public handles of a context: slot number and generation in one positive int32. Slots are reused
 * oldest first and a generation lasts 2047 reuses, so that a stale handle finds nothing. */
#include "io/priv.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BITS = 20, GEN_MAX = 2047 };
static const uint32_t NONE = UINT32_MAX;
_Static_assert(IO_CHUNK *IO_MAX_CHUNKS <= 1 << SLOT_BITS, "a slot number fits");

static io_entry *slot_at(io_table *t, uint32_t i)
{
    return &t->chunk[i / IO_CHUNK][i % IO_CHUNK];
}

io_entry *io_entry_of(udt_ctx *ctx, int32_t h)
{
    uint32_t i = (uint32_t)h & ((1u << SLOT_BITS) - 1), gen = (uint32_t)h >> SLOT_BITS;
    if (h <= 0 || i >= ctx->tab.nchunks * IO_CHUNK)
        return NULL;
    io_entry *e = slot_at(&ctx->tab, i);
    return e->kind && e->gen == gen && !e->freed ? e : NULL;
}

static void put_free(io_table *t, uint32_t i)
{
    slot_at(t, i)->next_free = NONE;
    if (t->free_tail == NONE)
        t->free_head = i;
    else
        slot_at(t, t->free_tail)->next_free = i;
    t->free_tail = i;
}

static int grow(io_table *t)
{
    if (t->nchunks == 0)
        t->free_head = t->free_tail = NONE;
    if (t->nchunks == IO_MAX_CHUNKS)
        return UDT_E_LIMIT;
    io_entry *c = calloc(IO_CHUNK, sizeof *c);
    if (!c)
        return UDT_E_NOMEM;
    t->chunk[t->nchunks++] = c;
    for (uint32_t i = 0; i < IO_CHUNK; i++)
        put_free(t, (t->nchunks - 1) * IO_CHUNK + i);
    return 0;
}

int32_t io_handle_new(udt_ctx *ctx, enum io_kind kind, io_port *p, void *obj)
{
    int err = io_ctx_alive(ctx);
    if (err)
        return err;
    pthread_mutex_lock(&ctx->mu);
    io_table *t = &ctx->tab;
    if (t->nchunks == 0 || t->free_head == NONE)
        err = grow(t);
    if (!err && !io_ready_room(ctx, kind))
        err = UDT_E_NOMEM;
    if (err) {
        pthread_mutex_unlock(&ctx->mu);
        return err;
    }
    uint32_t i = t->free_head;
    io_entry *e = slot_at(t, i);
    t->free_head = e->next_free;
    if (t->free_head == NONE)
        t->free_tail = NONE;
    uint32_t gen = e->gen >= GEN_MAX ? 1 : e->gen + 1;
    memset(e, 0, sizeof *e);
    e->gen = gen;
    e->kind = (uint8_t)kind;
    e->obj = obj;
    e->port = p;
    t->live++;
    if (p)
        io_port_ref(p);
    pthread_mutex_unlock(&ctx->mu);
    return (int32_t)(gen << SLOT_BITS | i);
}

void *io_handle_get(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p)
{
    if (io_ctx_alive(ctx))
        return NULL;
    void *obj = NULL;
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (e && e->kind == kind && !e->closing) {
        e->pins++;
        obj = e->obj;
        if (p)
            *p = e->port;
    }
    pthread_mutex_unlock(&ctx->mu);
    return obj;
}

void *io_handle_close(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p)
{
    void *obj = NULL;
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (e && e->kind == kind && !e->closing) {
        e->closing = true;
        e->pins++;
        obj = e->obj;
        if (p)
            *p = e->port;
    }
    pthread_mutex_unlock(&ctx->mu);
    return obj;
}

void *io_handle_closing(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p)
{
    void *obj = NULL;
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (e && e->kind == kind && e->closing) {
        e->pins++;
        obj = e->obj;
        *p = e->port;
    }
    pthread_mutex_unlock(&ctx->mu);
    return obj;
}

/* Empties a slot that nobody pins; runs the owner's free hook outside the lock. */
static void release_unlock(udt_ctx *ctx, io_entry *e, uint32_t slot)
{
    void (*on_free)(void *) = e->on_free;
    void *obj = e->obj;
    io_port *port = e->port;
    free(e->snap);
    e->snap = NULL;
    e->kind = 0;
    e->obj = NULL;
    ctx->tab.live--;
    put_free(&ctx->tab, slot);
    pthread_mutex_unlock(&ctx->mu);
    if (on_free)
        on_free(obj);
    if (port)
        io_port_unref(port);
}

void io_handle_put(udt_ctx *ctx, int32_t h)
{
    uint32_t slot = (uint32_t)h & ((1u << SLOT_BITS) - 1);
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = slot_at(&ctx->tab, slot);
    if (--e->pins == 0 && e->freed)
        release_unlock(ctx, e, slot);
    else
        pthread_mutex_unlock(&ctx->mu);
}

void io_handle_free(udt_ctx *ctx, int32_t h)
{
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (!e) {
        pthread_mutex_unlock(&ctx->mu);
        return;
    }
    e->freed = true;
    io_ready_gone(ctx, e);
    if (e->pins == 0)
        release_unlock(ctx, e, (uint32_t)h & ((1u << SLOT_BITS) - 1));
    else
        pthread_mutex_unlock(&ctx->mu);
}

void io_handle_on_free(udt_ctx *ctx, int32_t h, void (*fn)(void *obj))
{
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (e)
        e->on_free = fn;
    pthread_mutex_unlock(&ctx->mu);
}

void io_handle_snap(udt_ctx *ctx, int32_t h, const udt_sock_stats *st)
{
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, h);
    if (e && !e->snap)
        e->snap = malloc(sizeof *e->snap);
    if (e && e->snap)
        *e->snap = *st;
    pthread_mutex_unlock(&ctx->mu);
}

/* At the end of a context: what the application never closed. */
void io_handles_fini(udt_ctx *ctx)
{
    io_table *t = &ctx->tab;
    for (uint32_t i = 0; i < t->nchunks * IO_CHUNK; i++) {
        pthread_mutex_lock(&ctx->mu);
        io_entry *e = slot_at(t, i);
        if (e->kind && !e->freed && e->pins == 0)
            release_unlock(ctx, e, i);
        else
            pthread_mutex_unlock(&ctx->mu);
    }
    for (uint32_t i = 0; i < t->nchunks; i++)
        free(t->chunk[i]);
    t->nchunks = 0;
}
