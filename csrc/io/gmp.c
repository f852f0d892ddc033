/* sgmp.h over the loop: commands in, events out. A call of the application runs in its own thread
 * while the loop sleeps, else it is queued for the loop (gmp_cmd.c). A delivered message stays in
 * the engine's memory until the application releases it; the release comes back over a lock-free
 * stack. */
#include "io/priv.h"
#include "io/sockaddr.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAKE_RELEASED = 32, KEEP_FREE = 256, MAX_DGRAM = 8972 };

typedef struct io_gbuf {
    struct io_gbuf *next;
    io_port *p; /* referenced while the application holds the event */
    void *buf;  /* the engine's */
    uint32_t len;
} io_gbuf;

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

/* A turn that is under way may have looked already: it is followed by another. */
void io_gmp_wake(io_port *p)
{
    atomic_store(&p->gmp_due, 1);
    io_wake(p);
}

bool io_gmp_due(const io_port *p)
{
    if (!p->node)
        return false;
    return atomic_load(&p->gmp_due) || (!atomic_load(&p->gmp_stall) && io_gmp_owes(p));
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
        io_gmp_wake(p);
    if (atomic_load(&p->ctx->stalled) && atomic_load(&p->ctx->gmp_bytes) < IO_MAX_GMP_BYTES)
        io_ready_unstall(p->ctx); /* other ports too */
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

/* One is always there for events without data, which give it back at once. */
static int gbufs_init(io_port *p)
{
    io_gbuf *w = malloc(sizeof *w);
    if (w)
        gbuf_give(p, w);
    return w ? 0 : UDT_E_NOMEM;
}

static void gbufs_fini(io_port *p)
{
    while (p->gbuf_free)
        free(gbuf_take(p));
}

/* From here on the event's data is the application's. False: there is no room for it. */
static bool hand_over(io_port *p, udt_event *ev)
{
    io_gbuf *w = ev->g.buf;
    uint32_t len = ev->g.len; /* it may be released before this returns */
    if (w) {
        io_port_ref(p);
        atomic_fetch_add(&p->ctx->gmp_bytes, len);
    }
    bool ok = io_emit_gmp(p, ev);
    if (w && !ok) {
        atomic_fetch_sub(&p->ctx->gmp_bytes, len);
        io_port_unref(p);
    }
    return ok;
}

/* False: the event waits, and goes before all others. */
static bool deliver(io_port *p, const struct sgmp_ev *g, io_gbuf *w)
{
    udt_event ev = {.kind = g->kind, .g = *g};
    if (g->buf) {
        w->p = p;
        w->buf = g->buf;
        w->len = g->len;
        ev.g.buf = w;
    } else {
        gbuf_give(p, w);
    }
    if (hand_over(p, &ev))
        return true;
    p->gmp_back = ev;
    return false;
}

/* Deliveries go on when the application has read, or there is memory. */
static void stall(io_port *p)
{
    io_gmp_look_again(p);
    atomic_store(&p->gmp_stall, 1);
    atomic_store(&p->ctx->stalled, 1);
}

static bool stalled(io_port *p)
{
    if (!io_ready_full(p->ctx))
        return false;
    atomic_store(&p->gmp_stall, 1);
    atomic_store(&p->ctx->stalled, 1);
    if (io_ready_full(p->ctx))
        return true;
    atomic_store(&p->gmp_stall, 0); /* the application has drained it just now */
    return false;
}

static void say_writable(io_port *p)
{
    if (!io_gmp_owes(p))
        return;
    atomic_store(&p->gmp_again, 0);
    udt_event ev = {.kind = SGMP_EV_WRITABLE, .g = {.kind = SGMP_EV_WRITABLE}};
    if (!io_emit_gmp(p, &ev)) {
        atomic_store(&p->gmp_again, 1);
        stall(p);
    }
}

void io_gmp_turn(io_port *p)
{
    struct sgmp_ev g;
    atomic_store(&p->gmp_due, 0);
    if (atomic_load(&p->released))
        io_gmp_released(p);
    atomic_store(&p->gmp_stall, 0);
    if (p->gmp_back.kind) {
        if (!hand_over(p, &p->gmp_back)) {
            stall(p);
            return;
        }
        p->gmp_back.kind = 0;
    }
    while (!stalled(p)) {
        io_gbuf *w = gbuf_take(p);
        if (!w) { /* no memory: the events wait in the engine */
            stall(p);
            break;
        }
        memset(&g, 0, sizeof g);
        if (!sgmp_node_next_event(p->node, &g)) {
            gbuf_give(p, w);
            break;
        }
        if (g.kind == SGMP_EV_WRITABLE && !io_gmp_room(p, &g)) {
            gbuf_give(p, w);
            continue;
        }
        if (!deliver(p, &g, w)) {
            stall(p);
            break;
        }
    }
    say_writable(p);
}

void io_gmp_fini(io_port *p)
{
    if (!p->node)
        return;
    io_gmp_cmds_fini(p);
    if (p->gmp_back.kind)
        free(p->gmp_back.g.buf); /* what it holds goes with the node */
    io_gmp_released(p);
    gbufs_fini(p);
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
                            .require_auth = c->require_auth,
                            .max_dgram = MAX_DGRAM};
    sgmp_node *n = sgmp_node_new(&cfg, p->now);
    if (!n) {
        c->result = UDT_E_NOMEM;
        return;
    }
    p->node = n;
    c->result = io_gmp_cmds_init(p);
    if (c->result == 0)
        c->result = gbufs_init(p);
    if (c->result == 0)
        c->result = io_bulk_init(p);
    if (c->result < 0) {
        gbufs_fini(p);
        io_gmp_cmds_fini(p);
        p->node = NULL;
        sgmp_node_free(n);
        return;
    }
    atomic_store(&p->gmp_instance, sgmp_node_instance(n));
}

int sgmp_open(udt_ctx *ctx, int32_t port, bool require_auth)
{
    int err;
    io_port *p = io_gmp_port(ctx, port, false, &err);
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
    enum { A_KEY_ADD, A_KEY_REMOVE, A_CHANNEL, A_STATS, A_MINT, A_PEER } what;
    const sgmp_key *key;
    const sgmp_dest *to;
    const udt_addr *holder;
    uint64_t instance;
    uint8_t *token;
    sgmp_peer_info *info;
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
    case A_MINT:
        c->result =
            sgmp_node_mint_token(p->node, c->holder, c->instance, c->key_id, c->token, p->now);
        break;
    case A_PEER:
        c->result = sgmp_node_peer_info(p->node, c->to, c->info);
        break;
    }
}

static int admin(udt_ctx *ctx, int32_t port, struct admin_call *c)
{
    int err;
    io_port *p = io_gmp_port(ctx, port, true, &err);
    if (!p)
        return err;
    if (!io_manual(p) && io_direct_enter(p)) {
        admin_run(p, c);
        io_direct_leave(p, false);
    } else {
        err = io_port_call(p, admin_run, c);
    }
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

int sgmp_mint_token(udt_ctx *ctx, int32_t port, const udt_addr *holder, uint64_t holder_instance,
                    uint32_t key_id, uint8_t token[SGMP_TOKEN_BYTES])
{
    udt_addr plain = sockaddr_plain(holder);
    struct admin_call c = {.what = A_MINT,
                           .holder = &plain,
                           .instance = holder_instance,
                           .key_id = key_id,
                           .token = token};
    return admin(ctx, port, &c);
}

int sgmp_peer_info_get(udt_ctx *ctx, int32_t port, const sgmp_dest *to, sgmp_peer_info *out)
{
    sgmp_dest plain = {.addr = sockaddr_plain(&to->addr), .key_id = to->key_id};
    struct admin_call c = {.what = A_PEER, .to = &plain, .info = out};
    return admin(ctx, port, &c);
}

int sgmp_instance(udt_ctx *ctx, int32_t port, uint64_t *instance)
{
    int err;
    io_port *p = io_gmp_port(ctx, port, true, &err);
    if (!p)
        return err;
    *instance = atomic_load(&p->gmp_instance);
    io_handle_put(ctx, port);
    return 0;
}
