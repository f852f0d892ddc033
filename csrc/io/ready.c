/* The event queue of a context. Readiness and progress are kept once per handle, so their number is
 * bounded by that of handles; GMP deliveries stop at a bound, which closes the peers' windows, and
 * where the queue cannot grow: then they wait in their port, and leave a quarter to the others.
 * The descriptor is raised on empty -> non-empty only; for events of a loop's turn when that turn
 * has unlocked its port, or the application would wake up only to wait for the lock. */
#include "io/priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int io_ready_init(udt_ctx *ctx, uint32_t max_events)
{
    io_ready *r = &ctx->ready;
    r->soft = max_events < 64 ? 64 : max_events;
    r->cap = 64;
    r->ring = malloc(r->cap * sizeof *r->ring);
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->ring && r->fd >= 0)
        return 0;
    int err = r->fd < 0 ? UDT_E_SYS : UDT_E_NOMEM;
    if (r->fd >= 0)
        close(r->fd);
    free(r->ring);
    r->ring = NULL;
    return err;
}

static void drop_finals(io_ready *r, const io_final *end)
{
    while (r->finals != end) {
        io_final *f = r->finals;
        r->finals = f->next;
        free(f);
    }
}

void io_ready_fini(udt_ctx *ctx)
{
    io_ready *r = &ctx->ready;
    uint32_t n = atomic_load(&r->count);
    for (uint32_t i = 0; i < n; i++)
        udt_event_release(ctx, &r->ring[(r->head + i) & (r->cap - 1)]);
    drop_finals(r, NULL);
    free(r->ring);
    close(r->fd);
}

bool io_ready_full(udt_ctx *ctx)
{
    return atomic_load(&ctx->ready.count) >= ctx->ready.soft / 4 * 3 ||
           atomic_load(&ctx->gmp_bytes) >= IO_MAX_GMP_BYTES;
}

static bool ring_grow(io_ready *r)
{
    uint32_t n = atomic_load(&r->count);
    udt_event *ring = malloc(2 * (size_t)r->cap * sizeof *ring);
    if (!ring)
        return false;
    for (uint32_t i = 0; i < n; i++)
        ring[i] = r->ring[(r->head + i) & (r->cap - 1)];
    free(r->ring);
    r->ring = ring;
    r->head = 0;
    r->cap *= 2;
    return true;
}

static uint8_t queued_bit(uint16_t kind)
{
    switch (kind) {
    case UDT_IO_READABLE:
        return IO_Q_READ;
    case UDT_IO_WRITABLE:
        return IO_Q_WRITE;
    case UDT_IO_DRAINED:
        return IO_Q_DRAIN;
    case UDT_IO_XFER_PROGRESS:
        return IO_Q_PROGRESS;
    default:
        return 0;
    }
}

/* The handle goes with its CLOSED event: the statistics move over to the event. */
static void keep_stats(udt_ctx *ctx, int32_t sock)
{
    io_ready *r = &ctx->ready;
    io_entry *e = io_entry_of(ctx, sock);
    io_final *f = e && e->snap ? malloc(sizeof *f) : NULL;
    if (!f)
        return;
    *f = (io_final){.sock = sock, .st = *e->snap};
    if (r->finals)
        r->finals_tail->next = f;
    else
        r->finals = f;
    r->finals_tail = f;
    if (!r->waiting)
        r->waiting = f;
}

const udt_sock_stats *io_final_stats(udt_ctx *ctx, int32_t sock)
{
    for (const io_final *f = ctx->ready.finals; f; f = f->next)
        if (f->sock == sock)
            return &f->st;
    return NULL;
}

/* Raised states only sink under ctx->mu. One that is RAISED is readable, or a write is on its way:
 * whoever empties the queue in between finds nothing to read and leaves it so. */
static void raise_now(io_ready *r)
{
    uint64_t one = 1;
    if (atomic_exchange(&r->raised, IO_RAISED) == IO_RAISED)
        return;
    ssize_t w = write(r->fd, &one, sizeof one);
    (void)w; /* only fails when the counter is full, and then it is readable */
}

void io_ready_settle(udt_ctx *ctx)
{
    if (atomic_load(&ctx->ready.raised) == IO_RAISE_OWED)
        raise_now(&ctx->ready);
}

static void lower(io_ready *r)
{
    uint64_t v;
    int owed = IO_RAISE_OWED;
    if (atomic_load(&r->raised) == IO_RAISED && read(r->fd, &v, sizeof v) == sizeof v)
        atomic_store(&r->raised, IO_LOWERED);
    else
        atomic_compare_exchange_strong(&r->raised, &owed, IO_LOWERED);
}

/* False: no memory. */
static bool room_for(io_ready *r, bool gmp)
{
    uint32_t n = atomic_load_explicit(&r->count, memory_order_relaxed);
    if (n < r->cap - (gmp ? r->cap / 4 : 0) || ring_grow(r))
        return true;
    return !gmp && n < r->cap;
}

static bool emit(udt_ctx *ctx, const udt_event *ev, enum io_raised raise)
{
    io_ready *r = &ctx->ready;
    uint8_t bit = queued_bit(ev->kind);
    pthread_mutex_lock(&ctx->mu);
    if (bit) {
        io_entry *e = io_entry_of(ctx, ev->sock);
        bool known = !e || (e->queued & bit);
        if (e) {
            e->queued |= bit;
            e->progress = bit == IO_Q_PROGRESS ? ev->value : e->progress;
        }
        if (known) {
            pthread_mutex_unlock(&ctx->mu);
            return true;
        }
    }
    if (ev->kind == UDT_IO_CLOSED)
        keep_stats(ctx, ev->sock);
    if (!room_for(r, ev->kind >= SGMP_EV_MESSAGE)) {
        pthread_mutex_unlock(&ctx->mu);
        return false;
    }
    uint32_t n = atomic_load_explicit(&r->count, memory_order_relaxed);
    r->ring[(r->head + n) & (r->cap - 1)] = *ev;
    atomic_store_explicit(&r->count, n + 1, memory_order_relaxed);
    int lowered = IO_LOWERED;
    if (raise == IO_RAISE_OWED)
        atomic_compare_exchange_strong(&r->raised, &lowered, IO_RAISE_OWED);
    pthread_mutex_unlock(&ctx->mu);
    if (raise == IO_RAISED)
        raise_now(r);
    return true;
}

void io_emit(udt_ctx *ctx, const udt_event *ev)
{
    if (!emit(ctx, ev, IO_RAISED))
        abort(); /* an event lost silently would hang its owner; the queue is small and bounded */
}

bool io_emit_gmp(io_port *p, udt_event *ev)
{
    ev->port = p->id;
    return emit(p->ctx, ev, io_manual(p) ? IO_LOWERED : p->in_turn ? IO_RAISE_OWED : IO_RAISED);
}

void io_emit_from(io_port *p, udt_event *ev)
{
    if (!io_emit_gmp(p, ev))
        abort();
}

/* Is the event still news? Readiness that was used up in the meantime is not, nor is anything but
 * the end of a socket that the application has closed. */
static bool still_news(udt_ctx *ctx, udt_event *ev)
{
    uint8_t bit = queued_bit(ev->kind);
    bool of_sock = ev->kind < UDT_IO_CLOSED;
    if (!bit && !of_sock)
        return true;
    io_entry *e = io_entry_of(ctx, ev->sock);
    if (!e)
        return false;
    e->queued &= (uint8_t)~bit;
    if (of_sock && e->closing)
        return false;
    if (bit == IO_Q_PROGRESS)
        ev->value = e->progress;
    return bit != IO_Q_READ || io_sock_readable(e->obj);
}

void io_ready_unstall(udt_ctx *ctx)
{
    if (!atomic_load(&ctx->stalled) || atomic_load(&ctx->ready.count) >= ctx->ready.soft / 2)
        return;
    pthread_mutex_lock(&ctx->mu);
    atomic_store(&ctx->stalled, 0);
    for (int i = 0; i < IO_MAX_PORTS; i++)
        if (ctx->ports[i] && atomic_load(&ctx->ports[i]->gmp_stall))
            io_wake(ctx->ports[i]);
    pthread_mutex_unlock(&ctx->mu);
}

int udt_ctx_poll(udt_ctx *ctx, udt_event *ev, int max)
{
    int err = io_ctx_alive(ctx), n = 0;
    if (err)
        return err;
    io_ready *r = &ctx->ready;
    pthread_mutex_lock(&ctx->mu);
    lower(r);
    drop_finals(r, r->waiting);
    uint32_t left = atomic_load_explicit(&r->count, memory_order_relaxed);
    while (n < max && left > 0) {
        ev[n] = r->ring[r->head];
        r->head = (r->head + 1) & (r->cap - 1);
        left--;
        if (ev[n].kind == UDT_IO_CLOSED && r->waiting && r->waiting->sock == ev[n].sock)
            r->waiting = r->waiting->next;
        if (still_news(ctx, &ev[n]))
            n++;
    }
    atomic_store_explicit(&r->count, left, memory_order_relaxed);
    if (left > 0)
        raise_now(r);
    pthread_mutex_unlock(&ctx->mu);
    io_ready_unstall(ctx);
    return n;
}

int udt_ctx_wakeup_fd(udt_ctx *ctx)
{
    int err = io_ctx_alive(ctx);
    return err ? err : ctx->ready.fd;
}
