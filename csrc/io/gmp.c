/* sgmp.h over the loop: commands in, events out. A delivered message stays in the engine's memory
 * until the application releases it; the release comes back over a lock-free stack. */
#include "io/priv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_MESSAGE = 64 << 20,
    MAX_CONTROL = 256,
    WAKE_RELEASED = 32,
    KEEP_FREE = 256,
    RETRY_US = 5000
};

typedef struct io_gbuf {
    struct io_gbuf *next;
    io_port *p; /* referenced while the application holds the event */
    void *buf;  /* the engine's */
    uint32_t len;
} io_gbuf;

/* A call of the application on its way to the engine. */
typedef struct gmp_cmd {
    io_cmd cmd;
    enum { G_SEND, G_CALL, G_CANCEL, G_REPLY, G_PROGRESS } what;
    sgmp_dest to;
    sgmp_opts o;
    uint32_t method; /* CALL; percent of PROGRESS */
    int32_t status;
    uint64_t id;
    const uint8_t *buf;
    size_t len;
    uint8_t data[];
} gmp_cmd;

/* ---- events -------------------------------------------------------------------------------- */
void io_gmp_released(io_port *p)
{
    io_gbuf *w = atomic_exchange(&p->released, NULL);
    atomic_store(&p->nreleased, 0);
    while (w) {
        io_gbuf *next = w->next;
        sgmp_node_release(p->node, w->buf);
        if (p->gbuf_nfree < KEEP_FREE) {
            w->next = p->gbuf_free;
            p->gbuf_free = w;
            p->gbuf_nfree++;
        } else {
            free(w);
        }
        w = next;
    }
}

void udt_event_release(udt_ctx *ctx, udt_event *ev)
{
    io_gbuf *w = ev->kind >= SGMP_EV_MESSAGE ? ev->g.buf : NULL;
    (void)ctx;
    if (!w || io_ctx_alive(w->p->ctx))
        return;
    ev->g.buf = NULL;
    ev->g.data = NULL;
    ev->g.len = 0;
    io_port *p = w->p;
    uint32_t len = w->len;
    atomic_fetch_sub(&p->ctx->gmp_bytes, len);
    io_gbuf *head = atomic_load(&p->released);
    do
        w->next = head;
    while (!atomic_compare_exchange_weak(&p->released, &head, w));
    uint32_t n = atomic_fetch_add(&p->nreleased, 1);
    if (n + 1 == WAKE_RELEASED || len >= 65536 || atomic_load(&p->gmp_stall))
        io_wake(p);
    io_port_unref(p);
}

static io_gbuf *gbuf_take(io_port *p)
{
    io_gbuf *w = p->gbuf_free;
    if (!w)
        return malloc(sizeof *w);
    p->gbuf_free = w->next;
    p->gbuf_nfree--;
    return w;
}

static void gbuf_give(io_port *p, io_gbuf *w)
{
    w->next = p->gbuf_free;
    p->gbuf_free = w;
    p->gbuf_nfree++;
}

static void deliver(io_port *p, const struct sgmp_ev *g, io_gbuf *w)
{
    udt_event ev = {.kind = g->kind, .g = *g};
    if (g->buf) {
        w->p = p;
        w->buf = g->buf;
        w->len = g->len;
        ev.g.buf = w;
        io_port_ref(p);
        atomic_fetch_add(&p->ctx->gmp_bytes, g->len);
    } else {
        gbuf_give(p, w);
    }
    io_emit_from(p, &ev);
}

static bool stalled(io_port *p)
{
    if (!io_ready_full(p->ctx))
        return false;
    atomic_store(&p->gmp_stall, 1);
    atomic_store(&p->ctx->stalled, 1);
    return io_ready_full(p->ctx); /* the application may have drained it just now */
}

static void say_writable(io_port *p)
{
    if (!atomic_load(&p->gmp_again) || atomic_load(&p->ncmds) > IO_MAX_CMDS / 2 ||
        atomic_load(&p->cmd_bytes) > IO_MAX_CMD_BYTES / 2)
        return;
    atomic_store(&p->gmp_again, 0);
    udt_event ev = {.kind = SGMP_EV_WRITABLE, .g = {.kind = SGMP_EV_WRITABLE}};
    io_emit_from(p, &ev);
}

void io_gmp_turn(io_port *p)
{
    struct sgmp_ev g;
    if (atomic_load(&p->released))
        io_gmp_released(p);
    atomic_store(&p->gmp_stall, 0);
    while (!stalled(p)) {
        io_gbuf *w = gbuf_take(p);
        if (!w)
            break; /* no memory: the events wait in the engine */
        memset(&g, 0, sizeof g);
        if (!sgmp_node_next_event(p->node, &g)) {
            gbuf_give(p, w);
            break;
        }
        deliver(p, &g, w);
    }
    say_writable(p);
}

void io_gmp_fini(io_port *p)
{
    if (!p->node)
        return;
    while (p->late_head) { /* their callers are gone with the port */
        io_cmd *c = p->late_head;
        p->late_head = c->next;
        free(c->arg);
    }
    io_gmp_released(p);
    while (p->gbuf_free) {
        io_gbuf *w = p->gbuf_free;
        p->gbuf_free = w->next;
        free(w);
    }
    sgmp_node_free(p->node);
    p->node = NULL;
}

/* ---- attaching ------------------------------------------------------------------------------ */
struct open_call {
    bool require_auth;
    int result;
};

static void open_run(io_port *p, void *arg)
{
    struct open_call *c = arg;
    struct timespec ts;
    if (io_port_closing(p)) {
        c->result = UDT_E_CLOSED;
        return;
    }
    clock_gettime(CLOCK_REALTIME, &ts);
    sgmp_node_config cfg = {.rand = io_random,
                            .start_time_us =
                                (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000,
                            .require_auth = c->require_auth};
    sgmp_node *n = sgmp_node_new(&cfg, p->now);
    if (!n) {
        c->result = UDT_E_NOMEM;
        return;
    }
    p->node = n;
    p->late_timer.slot = -1;
    c->result = io_bulk_init(p);
    if (c->result < 0) {
        p->node = NULL;
        sgmp_node_free(n);
        return;
    }
    atomic_store(&p->gmp_instance, sgmp_node_instance(n));
}

static io_port *get_port(udt_ctx *ctx, int32_t port, bool gmp, int *err)
{
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    *err = io_ctx_alive(ctx);
    if (!p) {
        *err = *err ? *err : UDT_E_NOSOCK;
        return NULL;
    }
    if (gmp && !atomic_load(&p->gmp_instance)) {
        io_handle_put(ctx, port);
        *err = UDT_E_STATE;
        return NULL;
    }
    return p;
}

int sgmp_open(udt_ctx *ctx, int32_t port, bool require_auth)
{
    int err;
    io_port *p = get_port(ctx, port, false, &err);
    if (!p)
        return err;
    struct open_call c = {require_auth, 0};
    if (atomic_exchange(&p->gmp_open, 1)) {
        c.result = UDT_E_STATE;
    } else if (atomic_exchange(&p->listening, 1)) {
        c.result = UDT_E_INUSE; /* over-size messages need the port's one listener */
        atomic_store(&p->gmp_open, 0);
    } else {
        io_port_call(p, open_run, &c);
        if (c.result < 0) {
            atomic_store(&p->listening, 0);
            atomic_store(&p->gmp_open, 0);
        }
    }
    io_handle_put(ctx, port);
    return c.result;
}

/* ---- keys, channels: done before they return, for their errors matter -------------------------
 */
struct admin_call {
    enum { A_KEY_ADD, A_KEY_REMOVE, A_CHANNEL, A_STATS } what;
    const sgmp_key *key;
    uint32_t key_id;
    uint16_t channel;
    sgmp_stats *stats;
    int result;
};

static void admin_run(io_port *p, void *arg)
{
    struct admin_call *c = arg;
    switch (c->what) {
    case A_KEY_ADD:
        c->result = sgmp_node_key_add(p->node, c->key, p->now);
        break;
    case A_KEY_REMOVE:
        c->result = sgmp_node_key_remove(p->node, c->key_id, p->now);
        break;
    case A_CHANNEL:
        c->result = sgmp_node_channel_open(p->node, c->channel);
        break;
    case A_STATS:
        sgmp_node_stats(p->node, c->stats);
        break;
    }
}

static int admin(udt_ctx *ctx, int32_t port, struct admin_call *c)
{
    int err;
    io_port *p = get_port(ctx, port, true, &err);
    if (!p)
        return err;
    err = io_port_call(p, admin_run, c);
    io_handle_put(ctx, port);
    return err ? err : c->result;
}

int sgmp_key_add(udt_ctx *ctx, int32_t port, const sgmp_key *key)
{
    if (key->key_id == 0 || !memchr(key->principal, 0, sizeof key->principal) ||
        (key->alg != SGMP_ALG_HMAC && key->alg != SGMP_ALG_AES256GCM) || key->valid_ms < 0)
        return UDT_E_INVAL;
    struct admin_call c = {.what = A_KEY_ADD, .key = key};
    return admin(ctx, port, &c);
}

int sgmp_key_remove(udt_ctx *ctx, int32_t port, uint32_t key_id)
{
    struct admin_call c = {.what = A_KEY_REMOVE, .key_id = key_id};
    return admin(ctx, port, &c);
}

int sgmp_channel_open(udt_ctx *ctx, int32_t port, uint16_t channel)
{
    struct admin_call c = {.what = A_CHANNEL, .channel = channel};
    return admin(ctx, port, &c);
}

int sgmp_stats_get(udt_ctx *ctx, int32_t port, sgmp_stats *out)
{
    struct admin_call c = {.what = A_STATS, .stats = out};
    return admin(ctx, port, &c);
}

int sgmp_instance(udt_ctx *ctx, int32_t port, uint64_t *instance)
{
    int err;
    io_port *p = get_port(ctx, port, true, &err);
    if (!p)
        return err;
    *instance = atomic_load(&p->gmp_instance);
    io_handle_put(ctx, port);
    return 0;
}

/* ---- messages and calls ------------------------------------------------------------------------
 */
static int run_engine(io_port *p, const gmp_cmd *c)
{
    switch (c->what) {
    case G_SEND:
        return sgmp_node_send(p->node, &c->to, c->buf, c->len, &c->o, c->id, p->now);
    case G_CALL:
        return sgmp_node_call(p->node, &c->to, c->method, c->buf, c->len, &c->o, c->id, p->now);
    case G_CANCEL:
        return sgmp_node_cancel(p->node, c->id, p->now);
    case G_REPLY:
        return sgmp_node_reply(p->node, c->id, c->status, c->buf, c->len, p->now);
    default:
        return sgmp_node_progress(p->node, c->id, c->method, p->now);
    }
}

static int32_t rpc_status(int err)
{
    switch (err) {
    case UDT_E_AGAIN:
    case UDT_E_LIMIT:
        return SGMP_RPC_BUSY;
    case UDT_E_TOOBIG:
        return SGMP_RPC_TOO_LARGE;
    case UDT_E_NOKEY:
    case UDT_E_AUTH:
        return SGMP_RPC_DENIED;
    case UDT_E_UNREACHABLE:
        return SGMP_RPC_PEER_LOST;
    default:
        return SGMP_RPC_UNKNOWN;
    }
}

/* The caller has its id already, so the engine's refusal becomes the event of that id. */
static void refuse(io_port *p, const gmp_cmd *c, int err)
{
    if (c->what != G_SEND && c->what != G_CALL)
        return;
    bool call = c->what == G_CALL;
    if (call && (c->o.flags & SGMP_ONEWAY))
        return;
    udt_event ev = {.err = err};
    ev.kind = ev.g.kind = call ? SGMP_EV_RESPONSE : SGMP_EV_OUTCOME;
    ev.g.id = c->id;
    ev.g.from = c->to.addr;
    ev.g.key_id = c->to.key_id;
    ev.g.status = call ? rpc_status(err) : err;
    io_emit_from(p, &ev);
}

static void retry_replies(io_port *p, void *arg);

/* An answer that does not fit the peer's queue now must not be lost: it is offered again soon. It
 * still counts as a queued command; the request's own deadline ends it. */
static void reply_later(io_port *p, gmp_cmd *c)
{
    c->cmd.next = NULL;
    if (p->late_tail)
        p->late_tail->next = &c->cmd;
    else
        p->late_head = &c->cmd;
    p->late_tail = &c->cmd;
    p->late_timer.fn = retry_replies;
    if (p->late_timer.slot < 0)
        io_timer_arm(p, &p->late_timer, p->now + RETRY_US);
}

static void cmd_run(io_port *p, void *arg)
{
    gmp_cmd *c = arg;
    int err = p->node ? run_engine(p, c) : UDT_E_CLOSED;
    if (err == UDT_E_AGAIN && c->what == G_REPLY && !io_port_closing(p)) {
        reply_later(p, c);
        return;
    }
    if (err < 0)
        refuse(p, c, err);
    atomic_fetch_sub(&p->ncmds, 1);
    atomic_fetch_sub(&p->cmd_bytes, (uint32_t)c->len);
    free(c);
}

static void retry_replies(io_port *p, void *arg)
{
    io_cmd *c = p->late_head;
    (void)arg;
    p->late_head = p->late_tail = NULL;
    while (c) {
        io_cmd *next = c->next;
        cmd_run(p, c->arg);
        c = next;
    }
}

static int take_room(io_port *p, size_t len)
{
    uint32_t n = atomic_fetch_add(&p->ncmds, 1);
    uint32_t bytes = atomic_fetch_add(&p->cmd_bytes, (uint32_t)len);
    if (n < IO_MAX_CMDS && (bytes == 0 || bytes + len <= IO_MAX_CMD_BYTES))
        return 0;
    atomic_fetch_sub(&p->ncmds, 1);
    atomic_fetch_sub(&p->cmd_bytes, (uint32_t)len);
    atomic_store(&p->gmp_again, 1);
    io_wake(p);
    return UDT_E_AGAIN;
}

/* Ids rise in the order in which the engine sees them, hence the lock around both. */
static int64_t post(io_port *p, const gmp_cmd *what, bool new_id)
{
    int err = take_room(p, what->len);
    if (err)
        return err;
    gmp_cmd *c = malloc(sizeof *c + what->len);
    if (!c) {
        atomic_fetch_sub(&p->ncmds, 1);
        atomic_fetch_sub(&p->cmd_bytes, (uint32_t)what->len);
        return UDT_E_NOMEM;
    }
    *c = *what;
    if (what->len)
        memcpy(c->data, what->buf, what->len);
    c->buf = c->data;
    c->cmd.fn = cmd_run;
    c->cmd.arg = c;
    c->cmd.heap = false;
    int64_t id = 0;
    pthread_mutex_lock(&p->gmp_mu);
    if (new_id)
        c->id = (uint64_t)(id = ++p->gmp_next);
    io_cmd_push(p, &c->cmd);
    pthread_mutex_unlock(&p->gmp_mu);
    return id;
}

static int64_t direct(io_port *p, gmp_cmd *c, bool new_id)
{
    io_manual_enter(p);
    if (new_id)
        c->id = (uint64_t)++p->gmp_next;
    int err = run_engine(p, c);
    if (err < 0 && new_id && err != UDT_E_AGAIN) {
        refuse(p, c, err);
        err = 0;
    }
    io_manual_leave(p);
    return err < 0 ? err : new_id ? (int64_t)c->id : 0;
}

static int64_t submit(udt_ctx *ctx, int32_t port, gmp_cmd *c, bool new_id)
{
    int err;
    io_port *p = get_port(ctx, port, true, &err);
    if (!p)
        return err;
    int64_t r;
    if (new_id && (c->to.addr.port == 0 || (c->to.addr.family == 4 && p->only6) ||
                   (c->to.addr.family == 6 && p->only4) ||
                   (c->to.addr.family != 4 && c->to.addr.family != 6)))
        r = UDT_E_INVAL;
    else
        r = io_manual(p) ? direct(p, c, new_id) : post(p, c, new_id);
    io_handle_put(ctx, port);
    return r;
}

static int check_message(size_t len, const sgmp_opts *o)
{
    if (len > MAX_MESSAGE || (o && (o->flags & SGMP_CONTROL) && len > MAX_CONTROL))
        return UDT_E_TOOBIG;
    return 0;
}

int64_t sgmp_send(udt_ctx *ctx, int32_t port, const sgmp_dest *to, const uint8_t *buf, size_t len,
                  const sgmp_opts *o)
{
    gmp_cmd c = {.what = G_SEND, .to = *to, .buf = buf, .len = len};
    if (o)
        c.o = *o;
    int err = check_message(len, o);
    return err ? err : submit(ctx, port, &c, true);
}

int64_t sgmp_call(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                  const uint8_t *buf, size_t len, const sgmp_opts *o)
{
    gmp_cmd c = {.what = G_CALL, .to = *to, .method = method, .buf = buf, .len = len};
    if (o)
        c.o = *o;
    int err = check_message(len, o);
    return err ? err : submit(ctx, port, &c, true);
}

int sgmp_cancel(udt_ctx *ctx, int32_t port, uint64_t id)
{
    gmp_cmd c = {.what = G_CANCEL, .id = id};
    return (int)submit(ctx, port, &c, false);
}

int sgmp_reply(udt_ctx *ctx, int32_t port, uint64_t request_id, int32_t status, const uint8_t *buf,
               size_t len)
{
    gmp_cmd c = {.what = G_REPLY, .id = request_id, .status = status, .buf = buf, .len = len};
    return len > MAX_MESSAGE ? UDT_E_TOOBIG : (int)submit(ctx, port, &c, false);
}

int sgmp_progress(udt_ctx *ctx, int32_t port, uint64_t request_id, uint32_t percent)
{
    gmp_cmd c = {.what = G_PROGRESS, .id = request_id, .method = percent};
    return (int)submit(ctx, port, &c, false);
}
