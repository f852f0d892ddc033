/* The event queue of a context. A handle has one event of each kind in it at most, and room for all
 * of them since it was made: its events need no memory, its last one included. GMP deliveries stop
 * at a bound, which closes the peers' windows, and where their queue cannot grow: then they wait in
 * their port. The two queues are read as one, in the order in which the events came.
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
    r->own_cap = r->gmp_cap = 64;
    r->own = malloc(r->own_cap * sizeof *r->own);
    r->gmp = malloc(r->gmp_cap * sizeof *r->gmp);
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->own && r->gmp && r->fd >= 0)
        return 0;
    int err = r->fd < 0 ? UDT_E_SYS : UDT_E_NOMEM;
    if (r->fd >= 0)
        close(r->fd);
    free(r->own);
    free(r->gmp);
    r->own = NULL;
    r->gmp = NULL;
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

static udt_event *gmp_at(const io_ready *r, uint64_t i)
{
    return &r->gmp[i & (r->gmp_cap - 1)];
}

static io_own *own_at(const io_ready *r, uint32_t i)
{
    return &r->own[i & (r->own_cap - 1)];
}

void io_ready_fini(udt_ctx *ctx)
{
    io_ready *r = &ctx->ready;
    while (r->gmp_out < r->gmp_in)
        udt_event_release(ctx, gmp_at(r, r->gmp_out++));
    drop_finals(r, NULL);
    free(r->own);
    free(r->gmp);
    close(r->fd);
}

bool io_ready_full(udt_ctx *ctx)
{
    return atomic_load(&ctx->ready.count) >= ctx->ready.soft / 4 * 3 ||
           atomic_load(&ctx->gmp_bytes) >= IO_MAX_GMP_BYTES;
}

static bool gmp_grow(io_ready *r)
{
    udt_event *ring = malloc(2 * (size_t)r->gmp_cap * sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t i = r->gmp_out; i < r->gmp_in; i++)
        ring[i & (2 * r->gmp_cap - 1)] = *gmp_at(r, i);
    free(r->gmp);
    r->gmp = ring;
    r->gmp_cap *= 2;
    return true;
}

static bool own_grow(io_ready *r)
{
    io_own *own = malloc(2 * (size_t)r->own_cap * sizeof *own);
    if (!own)
        return false;
    for (uint32_t i = 0; i < r->own_n; i++)
        own[i] = *own_at(r, r->own_head + i);
    free(r->own);
    r->own = own;
    r->own_head = 0;
    r->own_cap *= 2;
    return true;
}

/* One for each kind of event that a handle may have; no socket is both connected and accepted. */
static uint8_t bit_of(uint16_t kind)
{
    if (kind == UDT_IO_PORT_FAILED || kind <= UDT_IO_ACCEPTED)
        return 1;
    return (uint8_t)(1 << (kind - (kind < UDT_IO_XFER_OPEN ? UDT_IO_ACCEPTED : UDT_IO_XFER_OPEN)));
}

static uint32_t kinds_of(uint8_t kind)
{
    switch (kind) {
    case IO_KIND_SOCK:
        return UDT_IO_CLOSED - UDT_IO_ACCEPTED + 1;
    case IO_KIND_XFER:
        return UDT_IO_XFER_DONE - UDT_IO_XFER_OPEN + 1;
    default:
        return 1;
    }
}

bool io_ready_room(udt_ctx *ctx, enum io_kind kind)
{
    io_ready *r = &ctx->ready;
    uint32_t n = kinds_of((uint8_t)kind);
    if (r->own_n + r->owed + n > r->own_cap && !own_grow(r))
        return false;
    r->owed += n;
    return true;
}

void io_ready_gone(udt_ctx *ctx, const io_entry *e)
{
    ctx->ready.owed -= kinds_of(e->kind) - (uint32_t)__builtin_popcount(e->queued);
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

static void counted(io_ready *r)
{
    atomic_store(&r->count, r->own_n + (uint32_t)(r->gmp_in - r->gmp_out));
}

/* Something was queued. */
static void raise_unlock(udt_ctx *ctx, enum io_raised raise)
{
    io_ready *r = &ctx->ready;
    int lowered = IO_LOWERED;
    counted(r);
    if (raise == IO_RAISE_OWED)
        atomic_compare_exchange_strong(&r->raised, &lowered, IO_RAISE_OWED);
    pthread_mutex_unlock(&ctx->mu);
    if (raise == IO_RAISED)
        raise_now(r);
}

static void emit(udt_ctx *ctx, const udt_event *ev, int32_t port, enum io_raised raise)
{
    io_ready *r = &ctx->ready;
    uint8_t bit = bit_of(ev->kind);
    pthread_mutex_lock(&ctx->mu);
    io_entry *e = io_entry_of(ctx, ev->sock);
    if (e && ev->kind == UDT_IO_XFER_PROGRESS)
        e->progress = ev->value;
    if (!e || (e->queued & bit)) {
        pthread_mutex_unlock(&ctx->mu);
        return;
    }
    if (ev->kind == UDT_IO_CLOSED)
        keep_stats(ctx, ev->sock);
    e->queued |= bit;
    r->owed--;
    *own_at(r, r->own_head + r->own_n++) = (io_own){.after = r->gmp_in,
                                                    .value = ev->value,
                                                    .port = port,
                                                    .sock = ev->sock,
                                                    .err = ev->err,
                                                    .sys_err = ev->sys_err,
                                                    .remote = ev->remote,
                                                    .kind = ev->kind};
    raise_unlock(ctx, raise);
}

static enum io_raised raise_of(const io_port *p)
{
    return io_manual(p) ? IO_LOWERED : p->in_turn ? IO_RAISE_OWED : IO_RAISED;
}

void io_emit(udt_ctx *ctx, const udt_event *ev)
{
    emit(ctx, ev, ev->port, IO_RAISED);
}

void io_emit_from(io_port *p, const udt_event *ev)
{
    emit(p->ctx, ev, p->id, raise_of(p));
}

bool io_emit_gmp(io_port *p, udt_event *ev)
{
    io_ready *r = &p->ctx->ready;
    ev->port = p->id;
    pthread_mutex_lock(&p->ctx->mu);
    if (r->gmp_in - r->gmp_out == r->gmp_cap && !gmp_grow(r)) {
        pthread_mutex_unlock(&p->ctx->mu);
        return false;
    }
    *gmp_at(r, r->gmp_in++) = *ev;
    raise_unlock(p->ctx, raise_of(p));
    return true;
}

/* The oldest event of a handle. False if it is no news any more: readiness that was used up in the
 * meantime, or anything but the end of a socket that the application has closed. */
static bool take_own(udt_ctx *ctx, udt_event *ev)
{
    io_ready *r = &ctx->ready;
    const io_own *o = own_at(r, r->own_head++);
    r->own_n--;
    memset(ev, 0, sizeof *ev);
    ev->kind = o->kind;
    ev->port = o->port;
    ev->sock = o->sock;
    ev->err = o->err;
    ev->sys_err = o->sys_err;
    ev->remote = o->remote;
    ev->value = o->value;
    if (ev->kind == UDT_IO_CLOSED && r->waiting && r->waiting->sock == ev->sock)
        r->waiting = r->waiting->next;
    bool of_sock = ev->kind < UDT_IO_CLOSED, progress = ev->kind == UDT_IO_XFER_PROGRESS;
    io_entry *e = io_entry_of(ctx, ev->sock);
    if (!e)
        return !of_sock && !progress;
    e->queued &= (uint8_t)~bit_of(ev->kind);
    r->owed++;
    if (of_sock && e->closing)
        return false;
    if (progress)
        ev->value = e->progress;
    return ev->kind != UDT_IO_READABLE || io_sock_readable(e->obj);
}

void io_ready_unstall(udt_ctx *ctx)
{
    if (!atomic_load(&ctx->stalled) || atomic_load(&ctx->ready.count) >= ctx->ready.soft / 2)
        return;
    pthread_mutex_lock(&ctx->mu);
    atomic_store(&ctx->stalled, 0);
    for (int i = 0; i < IO_MAX_PORTS; i++)
        if (ctx->ports[i] && atomic_load(&ctx->ports[i]->gmp_stall))
            io_gmp_wake(ctx->ports[i]);
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
    while (n < max && (r->own_n > 0 || r->gmp_out < r->gmp_in)) {
        if (r->own_n == 0 || own_at(r, r->own_head)->after > r->gmp_out)
            ev[n++] = *gmp_at(r, r->gmp_out++);
        else
            n += take_own(ctx, &ev[n]);
    }
    counted(r);
    if (atomic_load(&r->count) > 0)
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
