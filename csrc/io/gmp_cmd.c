/* Messages, calls and groups of the application on their way to the engine of a port.
 *
 * While the loop sleeps in ppoll a call takes the port's lock and runs in the thread of its caller,
 * datagram included: no command, no wake-up, no change of threads. Else it is queued. The caller is
 * told AGAIN at once when the queue towards its peer is known to be full; a queued command that
 * meets a full peer waits here for room, and later ones for that peer get AGAIN until there is. */
#include "io/priv.h"
#include "io/sockaddr.h"
#include "sgmp/util.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_MESSAGE = 64 << 20,
    MAX_CONTROL = 256,
    CONTROL_CMDS = 256, /* commands of the CONTROL class that still pass a full command queue */
    MAX_FULL = 4096     /* peers known to be full; beyond them everybody is taken for full */
};
static const udt_time RETRY_US = 5000, RETRY_MAX_US = 100000, US_PER_MS = 1000;

/* A call of the application on its way to the engine. */
typedef struct gmp_cmd {
    io_cmd cmd;
    enum { G_SEND, G_CALL, G_CANCEL, G_REPLY, G_PROGRESS, G_GROUP, G_INTRODUCE } what;
    sgmp_dest to;
    sgmp_opts o;
    uint32_t method; /* CALL; percent of PROGRESS */
    int32_t status;
    uint64_t id; /* instance of INTRODUCE */
    const uint8_t *buf;
    size_t len;
    const sgmp_dest *many; /* GROUP */
    uint32_t many_n;
    sgmp_group_opts group;
    int err;            /* its end, which could not be told yet */
    udt_time until;     /* of one that waits for room, 0 = it does not */
    udt_time useful_to; /* then: end of its ttl, 0 = none */
    uint8_t data[];
} gmp_cmd;

struct full_peer {
    struct sg_hnode node;
    sgmp_dest to;
};

struct io_gmp {
    io_cmd *late_head, *late_tail; /* commands that wait for room at their peer */
    io_timer late_timer;
    udt_time late_gap;
    struct sg_htab full; /* gmp_mu */
    bool all_full;       /* gmp_mu */
    bool group_again;    /* [loop] a caller's group was refused for want of room in the node */
};

io_port *io_gmp_port(udt_ctx *ctx, int32_t port, bool gmp, int *err)
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

/* ---- peers without room ---------------------------------------------------------------------- */
static uint64_t dest_hash(const sgmp_dest *to)
{
    uint64_t w[2];
    memcpy(w, to->addr.ip, sizeof w);
    return (w[0] * 0x9e3779b97f4a7c15u ^ w[1]) * 0xd6e8feb86659fd93u ^ (uint64_t)to->key_id << 16 ^
           to->addr.port;
}

static struct full_peer *full_find(struct io_gmp *g, const sgmp_dest *to)
{
    for (struct sg_hnode *h = sg_hget(&g->full, dest_hash(to)); h; h = sg_hnext(h)) {
        struct full_peer *f = sg_of(h, struct full_peer, node);
        if (memcmp(&f->to.addr, &to->addr, sizeof to->addr) == 0 && f->to.key_id == to->key_id)
            return f;
    }
    return NULL;
}

static void full_add(io_port *p, const sgmp_dest *to)
{
    struct io_gmp *g = p->gmp;
    pthread_mutex_lock(&p->gmp_mu);
    if (!full_find(g, to)) {
        struct full_peer *f = g->full.count < MAX_FULL ? malloc(sizeof *f) : NULL;
        if (f) {
            f->to = *to;
            sg_hadd(&g->full, &f->node, dest_hash(to));
        } else {
            g->all_full = true;
        }
    }
    pthread_mutex_unlock(&p->gmp_mu);
}

static bool same_peer(const sgmp_dest *a, const struct sgmp_ev *ev)
{
    return memcmp(&a->addr, &ev->from, sizeof a->addr) == 0;
}

/* Forgets that a peer was full, under whatever key. */
static void full_drop(io_port *p, const struct sgmp_ev *ev)
{
    struct io_gmp *g = p->gmp;
    pthread_mutex_lock(&p->gmp_mu);
    if (g->all_full) /* who was turned away for others' sake waits for no peer's room */
        atomic_store(&p->gmp_again, 1);
    g->all_full = false;
    for (size_t i = 0; i <= g->full.mask; i++)
        for (struct sg_hnode *h = g->full.slot[i], *next; h; h = next) {
            struct full_peer *f = sg_of(h, struct full_peer, node);
            next = h->next;
            if (ev && !same_peer(&f->to, ev))
                continue;
            sg_hdel(&g->full, h);
            free(f);
        }
    pthread_mutex_unlock(&p->gmp_mu);
}

/* ---- on the loop's side ---------------------------------------------------------------------- */
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
    case G_GROUP:
        return sgmp_node_group(p->node, c->many, c->many_n, c->buf, c->len, &c->group, c->id,
                               p->now);
    case G_INTRODUCE:
        return sgmp_node_introduce(p->node, &c->to, c->id, c->buf, p->now);
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
    case UDT_E_TIMEOUT:
        return SGMP_RPC_TIMEOUT;
    case UDT_E_NOKEY:
    case UDT_E_AUTH:
        return SGMP_RPC_DENIED;
    case UDT_E_UNREACHABLE:
        return SGMP_RPC_PEER_LOST;
    default:
        return SGMP_RPC_UNKNOWN;
    }
}

/* A call without an answer ends with an outcome, as a message does. */
static bool wants_answer(const gmp_cmd *c)
{
    return c->what == G_CALL && !(c->o.flags & SGMP_ONEWAY);
}

/* The caller has its id already, so the engine's refusal becomes the event of that id. False: the
 * event has no memory. */
static bool refuse(io_port *p, const gmp_cmd *c, int err)
{
    if (c->what != G_SEND && c->what != G_CALL && c->what != G_GROUP)
        return true;
    bool call = wants_answer(c);
    udt_event ev = {.err = err};
    ev.kind = call ? SGMP_EV_RESPONSE : c->what == G_GROUP ? SGMP_EV_GROUP_DONE : SGMP_EV_OUTCOME;
    ev.g.kind = ev.kind;
    ev.g.id = c->id;
    ev.g.from = c->to.addr;
    ev.g.key_id = c->to.key_id;
    ev.g.status = call ? rpc_status(err) : err;
    ev.g.not_delivered = true;
    return io_emit_gmp(p, &ev);
}

static void retry(io_port *p, void *arg);

static void done(io_port *p, gmp_cmd *c)
{
    atomic_fetch_sub(&p->ncmds, 1);
    atomic_fetch_sub(&p->cmd_bytes, (uint32_t)c->len);
    free(c);
}

/* A command that does not fit the peer's queue now must not be lost: it is offered again when there
 * is room, or soon. It still counts as a queued command; its deadline ends it. */
static void run_later(io_port *p, gmp_cmd *c)
{
    struct io_gmp *g = p->gmp;
    c->cmd.next = NULL;
    if (!g) { /* the port is gone, and who could be told with it */
        done(p, c);
        return;
    }
    if (g->late_tail)
        g->late_tail->next = &c->cmd;
    else
        g->late_head = &c->cmd;
    g->late_tail = &c->cmd;
    if (!c->err && (c->what == G_SEND || c->what == G_CALL))
        full_add(p, &c->to);
    if (g->late_timer.slot < 0)
        io_timer_arm(p, &g->late_timer, p->now + g->late_gap);
}

static void end(io_port *p, gmp_cmd *c, int err)
{
    c->err = err;
    if (refuse(p, c, err))
        done(p, c);
    else
        run_later(p, c);
}

static sgmp_opts *opts_of(gmp_cmd *c)
{
    return c->what == G_GROUP ? &c->group.each : &c->o;
}

/* Its deadline and its ttl run while it waits, as they would in the engine. */
static void start_waiting(io_port *p, gmp_cmd *c)
{
    const sgmp_opts *o = opts_of(c);
    bool call = c->what == G_CALL || (c->what == G_GROUP && c->group.call);
    uint32_t ms = o->deadline_ms ? o->deadline_ms : sgmp_default_ms(call, c->len);
    c->until = p->now + US_PER_MS * ms;
    c->useful_to = o->ttl_ms ? p->now + US_PER_MS * o->ttl_ms : 0;
    if (c->useful_to && c->useful_to < c->until)
        c->until = c->useful_to;
}

/* What is left for the engine; at least a millisecond, for 0 would be no bound. */
static uint32_t left_ms(const io_port *p, udt_time until)
{
    udt_time ms = (until - p->now + US_PER_MS - 1) / US_PER_MS;
    return ms > 0 ? (uint32_t)ms : 1;
}

static void cmd_run(io_port *p, void *arg)
{
    gmp_cmd *c = arg;
    bool may_wait = c->what <= G_CALL || c->what == G_REPLY || c->what == G_GROUP;
    int err = p->node ? run_engine(p, c) : UDT_E_CLOSED;
    if (err == UDT_E_AGAIN && may_wait && !io_port_closing(p)) {
        if (!c->until)
            start_waiting(p, c);
        run_later(p, c);
        return;
    }
    if (err < 0)
        end(p, c, err);
    else
        done(p, c);
}

static void retry(io_port *p, void *arg)
{
    struct io_gmp *g = p->gmp;
    io_cmd *at = g->late_head;
    bool progress = false;
    (void)arg;
    g->late_head = g->late_tail = NULL;
    while (at) {
        gmp_cmd *c = at->arg;
        io_cmd *last = g->late_tail;
        at = at->next;
        if (c->err || (c->what != G_REPLY && p->now >= c->until)) {
            int over = wants_answer(c) ? UDT_E_TIMEOUT : UDT_E_NOTSENT;
            end(p, c, c->err ? c->err : over);
            continue;
        }
        if (c->what != G_REPLY) {
            opts_of(c)->deadline_ms = left_ms(p, c->until);
            opts_of(c)->ttl_ms = c->useful_to ? left_ms(p, c->useful_to) : 0;
        }
        cmd_run(p, c);
        progress |= g->late_tail == last;
    }
    g->late_gap = progress ? RETRY_US : g->late_gap < RETRY_MAX_US ? g->late_gap * 2 : RETRY_MAX_US;
}

/* A turn soon, though nothing is due: what could not be told may have memory then. */
void io_gmp_look_again(io_port *p)
{
    if (p->gmp->late_timer.slot < 0)
        io_timer_arm(p, &p->gmp->late_timer, p->now + RETRY_US);
}

/* The engine says that a peer has room again, or the node for a group (from nobody): first for
 * those who wait. False: they took it all, or nobody else waits for it. */
bool io_gmp_room(io_port *p, const struct sgmp_ev *ev)
{
    struct io_gmp *g = p->gmp;
    io_timer_stop(p, &g->late_timer);
    retry(p, NULL);
    for (io_cmd *at = g->late_head; at; at = at->next) {
        const gmp_cmd *c = at->arg;
        if (!c->err && same_peer(&c->to, ev))
            return false;
    }
    if (!ev->from.family) {
        bool waits = g->group_again;
        g->group_again = false;
        return waits;
    }
    full_drop(p, ev);
    return true;
}

int io_gmp_cmds_init(io_port *p)
{
    struct io_gmp *g = calloc(1, sizeof *g);
    uint64_t seed;
    if (!g)
        return UDT_E_NOMEM;
    io_random(NULL, (uint8_t *)&seed, sizeof seed);
    sg_htab_init(&g->full, seed);
    g->late_timer = (io_timer){.fn = retry, .slot = -1};
    g->late_gap = RETRY_US;
    p->gmp = g;
    return 0;
}

void io_gmp_cmds_fini(io_port *p)
{
    struct io_gmp *g = p->gmp;
    if (!g)
        return;
    while (g->late_head) { /* their callers are gone with the port */
        io_cmd *c = g->late_head;
        g->late_head = c->next;
        free(c->arg);
    }
    full_drop(p, NULL);
    sg_htab_fini(&g->full);
    free(g);
    p->gmp = NULL;
}

/* ---- on the caller's side -------------------------------------------------------------------- */
static bool is_control(const gmp_cmd *c)
{
    unsigned flags = c->what == G_GROUP ? c->group.each.flags : c->o.flags;
    return c->what == G_CANCEL || (flags & SGMP_CONTROL);
}

/* Is somebody owed a WRITABLE for room in the queue of commands, and is there? */
bool io_gmp_owes(const io_port *p)
{
    return atomic_load(&p->gmp_again) && atomic_load(&p->ncmds) <= IO_MAX_CMDS / 2 &&
           atomic_load(&p->cmd_bytes) <= IO_MAX_CMD_BYTES / 2;
}

static int take_room(io_port *p, const gmp_cmd *c)
{
    size_t len = c->len;
    uint32_t n = atomic_fetch_add(&p->ncmds, 1);
    uint32_t bytes = atomic_fetch_add(&p->cmd_bytes, (uint32_t)len);
    bool control = is_control(c);
    if (n < IO_MAX_CMDS + (control ? CONTROL_CMDS : 0) &&
        (bytes == 0 || control || bytes + len <= IO_MAX_CMD_BYTES))
        return 0;
    atomic_fetch_sub(&p->ncmds, 1);
    atomic_fetch_sub(&p->cmd_bytes, (uint32_t)len);
    atomic_store(&p->gmp_again, 1);
    io_wake(p);
    return UDT_E_AGAIN;
}

static uint64_t take_ids(io_port *p, const gmp_cmd *c)
{
    uint64_t id = (uint64_t)++p->gmp_next;
    if (c->what == G_GROUP)
        p->gmp_next += c->many_n; /* its members */
    return id;
}

static gmp_cmd *copy(const gmp_cmd *what)
{
    size_t many = what->many_n * sizeof *what->many, own = what->len;
    gmp_cmd *c = malloc(sizeof *c + many + own);
    if (!c)
        return NULL;
    *c = *what;
    if (many)
        memcpy(c->data, what->many, many);
    if (own)
        memcpy(c->data + many, what->buf, own);
    c->many = (const sgmp_dest *)(const void *)c->data;
    c->buf = c->data + many;
    c->cmd.fn = cmd_run;
    c->cmd.arg = c;
    c->cmd.heap = false;
    return c;
}
_Static_assert(offsetof(gmp_cmd, data) % _Alignof(sgmp_dest) == 0, "destinations lie in data");

/* Ids rise in the order in which the engine sees them, hence the lock around both. */
static int64_t post(io_port *p, const gmp_cmd *what, bool new_id)
{
    int64_t id = 0;
    int err = take_room(p, what);
    if (err)
        return err;
    gmp_cmd *c = copy(what);
    pthread_mutex_lock(&p->gmp_mu);
    if (!c)
        err = UDT_E_NOMEM;
    else if (c->what <= G_CALL && !is_control(c) &&
             (p->gmp->all_full || (p->gmp->full.count && full_find(p->gmp, &c->to))))
        err = UDT_E_AGAIN;
    if (!err && new_id)
        id = (int64_t)(c->id = take_ids(p, c));
    if (!err)
        io_cmd_push(p, &c->cmd);
    pthread_mutex_unlock(&p->gmp_mu);
    if (err) {
        atomic_fetch_sub(&p->ncmds, 1);
        atomic_fetch_sub(&p->cmd_bytes, (uint32_t)what->len);
        free(c);
    }
    return err ? err : id;
}

/* The port is locked. AGAIN of a reply is not the caller's affair: it is queued instead. */
static int64_t direct(io_port *p, gmp_cmd *c, bool new_id)
{
    if (new_id) {
        pthread_mutex_lock(&p->gmp_mu);
        c->id = take_ids(p, c);
        pthread_mutex_unlock(&p->gmp_mu);
    }
    int err = run_engine(p, c);
    if (err == UDT_E_AGAIN && (c->what == G_SEND || c->what == G_CALL))
        full_add(p, &c->to); /* so that the next one is told at once, and WRITABLE is owed */
    if (err == UDT_E_AGAIN && c->what == G_GROUP)
        p->gmp->group_again = true;
    if (err < 0 && new_id && err != UDT_E_AGAIN && refuse(p, c, err))
        err = 0; /* else the caller hears it here */
    return err < 0 ? err : new_id ? (int64_t)c->id : 0;
}

static int64_t dispatch(io_port *p, gmp_cmd *c, bool new_id)
{
    int64_t r;
    if (io_manual(p)) {
        io_manual_enter(p);
        r = direct(p, c, new_id);
        io_manual_leave(p);
        return r;
    }
    /* A cancelled over-size message leaves orders that only the loop carries out. */
    if (c->what == G_CANCEL || !io_direct_enter(p))
        return post(p, c, new_id);
    r = direct(p, c, new_id);
    if (!io_hold_leave(p))
        io_direct_leave(p, true);
    return r == UDT_E_AGAIN && c->what == G_REPLY ? post(p, c, false) : r;
}

static bool reachable(const io_port *p, const udt_addr *a)
{
    return a->port && ((a->family == 4 && !p->only6) || (a->family == 6 && !p->only4));
}

static int64_t submit(udt_ctx *ctx, int32_t port, gmp_cmd *c, bool new_id)
{
    int err;
    io_port *p = io_gmp_port(ctx, port, true, &err);
    if (!p)
        return err;
    bool one = c->what == G_SEND || c->what == G_CALL || c->what == G_INTRODUCE, ok = true;
    if (one)
        ok = reachable(p, &c->to.addr);
    for (uint32_t i = 0; i < c->many_n; i++)
        ok = ok && reachable(p, &c->many[i].addr);
    int64_t r = ok ? dispatch(p, c, new_id) : UDT_E_INVAL;
    io_handle_put(ctx, port);
    return r;
}

static int check_message(size_t len, const sgmp_opts *o)
{
    if (len > MAX_MESSAGE || (o && (o->flags & SGMP_CONTROL) && len > MAX_CONTROL))
        return UDT_E_TOOBIG;
    return 0;
}

static sgmp_dest plain_dest(const sgmp_dest *to)
{
    return (sgmp_dest){.addr = sockaddr_plain(&to->addr), .key_id = to->key_id};
}

int64_t sgmp_send(udt_ctx *ctx, int32_t port, const sgmp_dest *to, const uint8_t *buf, size_t len,
                  const sgmp_opts *o)
{
    gmp_cmd c = {.what = G_SEND, .to = plain_dest(to), .buf = buf, .len = len};
    if (o)
        c.o = *o;
    int err = check_message(len, o);
    return err ? err : submit(ctx, port, &c, true);
}

int64_t sgmp_call(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                  const uint8_t *buf, size_t len, const sgmp_opts *o)
{
    gmp_cmd c = {.what = G_CALL, .to = plain_dest(to), .method = method, .buf = buf, .len = len};
    if (o)
        c.o = *o;
    int err = check_message(len, o);
    return err ? err : submit(ctx, port, &c, true);
}

int64_t sgmp_group(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t n, const uint8_t *buf,
                   size_t len, const sgmp_group_opts *o)
{
    gmp_cmd c = {.what = G_GROUP, .many = to, .many_n = n, .buf = buf, .len = len, .group = *o};
    int err = n > SGMP_GROUP_MAX ? UDT_E_INVAL : check_message(len, &o->each);
    if (err)
        return err;
    sgmp_dest *plain = malloc((n ? n : 1) * sizeof *plain);
    if (!plain)
        return UDT_E_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        plain[i] = plain_dest(&to[i]);
    c.many = plain;
    int64_t id = submit(ctx, port, &c, true);
    free(plain);
    return id;
}

int sgmp_introduce(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint64_t instance,
                   const uint8_t token[SGMP_TOKEN_BYTES])
{
    gmp_cmd c = {.what = G_INTRODUCE,
                 .to = plain_dest(to),
                 .id = instance,
                 .buf = token,
                 .len = SGMP_TOKEN_BYTES};
    return instance ? (int)submit(ctx, port, &c, false) : UDT_E_INVAL;
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
