/* Ports: one UDP socket with its engines and (unless MANUAL) its thread. */
#include "io/priv.h"
#include "io/stripe.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

udt_ctx *io_port_ctx(io_port *p)
{
    return p->ctx;
}
udt_mux *io_port_mux(io_port *p)
{
    return p->mux;
}
udt_time io_port_now(const io_port *p)
{
    return p->now;
}
int32_t io_port_id(const io_port *p)
{
    return p->id;
}
bool io_port_closing(const io_port *p)
{
    return atomic_load(&((io_port *)(uintptr_t)p)->closing) != 0;
}
bool io_manual(const io_port *p)
{
    return (p->flags & UDT_PORT_MANUAL) != 0;
}
void io_manual_enter(io_port *p)
{
    pthread_mutex_lock(&p->mu);
    p->now = io_clock();
}
/* What was asked for leaves with the next udt_port_run; one that waits now is woken for it. */
void io_manual_leave(io_port *p)
{
    pthread_mutex_unlock(&p->mu);
    io_wake(p);
}

int io_port_hold(io_port *p)
{
    if (io_port_closing(p))
        return UDT_E_CLOSED;
    atomic_fetch_add(&p->holds, 1);
    return 0;
}
void io_port_drop(io_port *p)
{
    atomic_fetch_sub(&p->holds, 1);
}

void io_port_ref(io_port *p)
{
    atomic_fetch_add(&p->refs, 1);
}

/* Nobody else has the port: late commands run, engines and memory go. */
static void port_destroy(io_port *p)
{
    io_cmd_run(p);
    io_gmp_fini(p);
    io_tls_fini(p);
    io_divert_fini(p);
    if (p->mux)
        udt_mux_free(p->mux);
    io_net_free(p);
    free(p->map.slot);
    free(p->timers.heap);
    if (p->scratch)
        munmap(p->scratch, p->scratch_bytes);
    if (p->hold_fd >= 0) {
        atomic_store(&p->ctx->fds[3 + 3 * p->slot], 0);
        close(p->hold_fd);
    }
    if (p->evfd >= 0) {
        atomic_store(&p->ctx->fds[2 + 3 * p->slot], 0);
        close(p->evfd);
    }
    pthread_mutex_destroy(&p->mu);
    pthread_mutex_destroy(&p->dead_mu);
    pthread_mutex_destroy(&p->snap_mu);
    pthread_mutex_destroy(&p->gmp_mu);
    udt_ctx *ctx = p->ctx;
    pthread_mutex_lock(&ctx->mu);
    if (ctx->ports[p->slot] == p)
        ctx->ports[p->slot] = NULL;
    pthread_mutex_unlock(&ctx->mu);
    free(p);
    io_ctx_unref(ctx);
}

void io_port_unref(io_port *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1)
        port_destroy(p);
}

static io_port *port_alloc(udt_ctx *ctx, uint32_t flags, int *err)
{
    io_port *p = calloc(1, sizeof *p);
    *err = p ? UDT_E_LIMIT : UDT_E_NOMEM;
    if (!p)
        return NULL;
    p->ctx = ctx;
    p->flags = flags;
    p->fd = p->evfd = p->hold_fd = -1;
    p->snap_at = UDT_NEVER;
    io_peers_init(p);
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->mu, NULL);
    pthread_mutex_init(&p->dead_mu, NULL);
    pthread_mutex_init(&p->snap_mu, NULL);
    pthread_mutex_init(&p->gmp_mu, NULL);
    io_ctx_ref(ctx);
    pthread_mutex_lock(&ctx->mu);
    uint32_t slot = 0;
    while (slot < IO_MAX_PORTS && ctx->ports[slot])
        slot++;
    p->slot = slot;
    if (slot < IO_MAX_PORTS)
        ctx->ports[slot] = p;
    pthread_mutex_unlock(&ctx->mu);
    if (slot < IO_MAX_PORTS)
        return p;
    p->slot = 0; /* not ours: port_destroy compares before it clears */
    io_port_unref(p);
    return NULL;
}

static int port_setup(io_port *p, const udt_addr *at, uint16_t mss)
{
    p->mss = mss ? mss : at->family == 6 ? 1480 : 1500;
    p->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!io_manual(p))
        p->hold_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (p->evfd < 0 || (p->hold_fd < 0 && !io_manual(p)))
        return UDT_E_SYS;
    int err = io_net_open(p, at);
    if (err)
        return err;
    atomic_store(&p->ctx->fds[1 + 3 * p->slot], p->fd);
    atomic_store(&p->ctx->fds[2 + 3 * p->slot], p->evfd);
    if (p->hold_fd >= 0)
        atomic_store(&p->ctx->fds[3 + 3 * p->slot], p->hold_fd);
    err = io_net_alloc(p);
    if (err)
        return err;
    udt_mux_config cfg = {.rand = io_random,
                          .mss = p->mss,
                          .max_buf_bytes = p->ctx->max_buf_bytes,
                          .driven = io_manual(p)};
    p->mux = udt_mux_new(&cfg);
    p->now = io_clock();
    p->snap = p->st; /* the socket's buffers and abilities are known from the start */
    return p->mux ? 0 : UDT_E_NOMEM;
}

static void close_fd(io_port *p)
{
    io_peers_close(p);
    atomic_store(&p->ctx->fds[1 + 3 * p->slot], 0);
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

int32_t udt_port_open(udt_ctx *ctx, const udt_addr *at, uint32_t flags, uint16_t mss)
{
    int err = io_ctx_alive(ctx);
    if (err)
        return err;
    if ((at->family != 4 && at->family != 6) || (mss && mss < 576))
        return UDT_E_INVAL;
    io_port *p = port_alloc(ctx, flags, &err);
    if (!p)
        return err;
    err = port_setup(p, at, mss);
    if (!err) {
        int32_t id = io_handle_new(ctx, IO_KIND_PORT, p, p);
        if (id > 0) {
            p->id = id;
            err = io_manual(p) ? 0 : io_loop_start(p);
            if (!err)
                return id; /* the reference of port_alloc is the open port's */
            io_handle_free(ctx, id);
        } else {
            err = id;
        }
    }
    int sys = errno;
    close_fd(p);
    io_port_unref(p);
    errno = sys;
    return err;
}

int udt_port_addr(udt_ctx *ctx, int32_t port, udt_addr *out)
{
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return io_ctx_alive(ctx) ? UDT_E_FORKED : UDT_E_NOSOCK;
    *out = p->at;
    io_handle_put(ctx, port);
    return 0;
}

static void begin_close(io_port *p, void *arg)
{
    (void)arg;
    atomic_store(&p->closing, 1);
}

static void run_until_ended(io_port *p)
{
    pthread_mutex_lock(&p->mu);
    while (!p->ended || atomic_load(&p->holds) > 0)
        io_loop_turn(p, 100000);
    pthread_mutex_unlock(&p->mu);
}

int udt_port_close(udt_ctx *ctx, int32_t port)
{
    int err = io_ctx_alive(ctx);
    if (err)
        return err;
    io_ctx_enter_close(ctx);
    io_port *p = io_handle_close(ctx, port, IO_KIND_PORT, NULL);
    if (!p) {
        io_ctx_leave_close(ctx);
        return UDT_E_NOSOCK;
    }
    p->close_cmd.fn = begin_close;
    io_cmd_push(p, &p->close_cmd);
    if (io_manual(p))
        run_until_ended(p);
    else
        pthread_join(p->thread, NULL);
    close_fd(p);
    atomic_store(&p->dead, 1);
    pthread_mutex_lock(&p->dead_mu);
    io_cmd_run(p);
    pthread_mutex_unlock(&p->dead_mu);
    io_handle_put(ctx, port);
    io_handle_free(ctx, port);
    io_port_unref(p);
    io_ctx_leave_close(ctx);
    return 0;
}

int udt_port_run(udt_ctx *ctx, int32_t port, int64_t timeout_us)
{
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return io_ctx_alive(ctx) ? UDT_E_FORKED : UDT_E_NOSOCK;
    int err = io_manual(p) ? 0 : UDT_E_STATE;
    if (!err) {
        pthread_mutex_lock(&p->mu);
        io_loop_turn(p, timeout_us < 0 ? UDT_NEVER : timeout_us);
        pthread_mutex_unlock(&p->mu);
    }
    io_handle_put(ctx, port);
    return err;
}

int udt_port_stats_get(udt_ctx *ctx, int32_t port, udt_port_stats *out)
{
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return io_ctx_alive(ctx) ? UDT_E_FORKED : UDT_E_NOSOCK;
    if (io_manual(p)) {
        io_manual_enter(p);
        io_loop_snap(p, true);
        io_manual_leave(p);
    }
    pthread_mutex_lock(&p->snap_mu);
    *out = p->snap;
    pthread_mutex_unlock(&p->snap_mu);
    io_handle_put(ctx, port);
    return 0;
}

static udt_refused refused_of(const udt_addr *from, const int64_t n[UDT_REFUSED_KINDS])
{
    return (udt_refused){.from = *from,
                         .wrong_key = n[UDT_REFUSED_KEY],
                         .replayed = n[UDT_REFUSED_REPLAY],
                         .ticket = n[UDT_REFUSED_TICKET]};
}

/* Sums, then the sources of each engine: one that sent to both is there twice. */
static int put_refused(const io_port *p, udt_refused *out, int max)
{
    static const udt_addr nobody;
    int64_t sum[UDT_REFUSED_KINDS];
    int n = 0;
    for (int k = 0; k < UDT_REFUSED_KINDS; k++)
        sum[k] = p->refused[0].total[k] + p->refused[1].total[k];
    if (max > 0)
        out[n++] = refused_of(&nobody, sum);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < REFUSED_SOURCES && n < max; i++) {
            const refused_source *s = &p->refused[e].source[i];
            if (s->from.family)
                out[n++] = refused_of(&s->from, s->n);
        }
    return n;
}

int udt_port_refused(udt_ctx *ctx, int32_t port, udt_refused *out, int max)
{
    udt_port_stats st;
    int err = udt_port_stats_get(ctx, port, &st); /* a MANUAL port takes its picture now */
    io_port *p = err ? NULL : io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return err ? err : UDT_E_NOSOCK;
    pthread_mutex_lock(&p->snap_mu);
    int n = put_refused(p, out, max);
    pthread_mutex_unlock(&p->snap_mu);
    io_handle_put(ctx, port);
    return n;
}
