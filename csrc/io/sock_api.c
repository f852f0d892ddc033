/* udt_listen, udt_connect, udt_send and the like: from any thread to the loop's sockets. */
#include "io/sock.h"

#include "crypto/aead.h"
#include "io/sockaddr.h"

#include <stdlib.h>
#include <string.h>

enum { RATES_US = 1250000 }; /* a second, and the age of statistics while something moves */

static int no_handle(const udt_ctx *ctx)
{
    int err = io_ctx_alive(ctx);
    return err ? err : UDT_E_NOSOCK;
}

static int fill_opts(udt_opts *o, const udt_sock_opts *s, const io_port *p)
{
    udt_opts_init(o);
    o->type = UDT_STREAM;
    o->mss = p->mss;
    o->offer = true;
    if (!s || !s->type || s->type == UDT_STREAM)
        o->snd_buf_bytes = o->rcv_buf_bytes = 0; /* by themselves */
    if (!s)
        return 0;
    if (s->type && s->type != UDT_STREAM && s->type != UDT_DGRAM)
        return UDT_E_INVAL;
    if ((s->mss && (s->mss < 576 || s->mss > p->mss)) || s->max_bw_Bps < 0 ||
        s->connect_timeout_ms < 0 || s->idle_timeout_ms < 0)
        return UDT_E_INVAL;
    o->type = s->type ? s->type : UDT_STREAM;
    o->mss = s->mss ? s->mss : p->mss;
    if (s->snd_buf_bytes || o->type == UDT_STREAM)
        o->snd_buf_bytes = s->snd_buf_bytes;
    if (s->rcv_buf_bytes || o->type == UDT_STREAM)
        o->rcv_buf_bytes = s->rcv_buf_bytes;
    o->cc = s->cc ? s->cc : o->cc;
    o->max_bw_Bps = s->max_bw_Bps;
    o->connect_timeout_ms = s->connect_timeout_ms ? s->connect_timeout_ms : o->connect_timeout_ms;
    o->idle_timeout_ms = s->idle_timeout_ms ? s->idle_timeout_ms : o->idle_timeout_ms;
    o->own_peer = s->own_peer;
    o->tag = s->tag;
    o->offer = !s->no_extensions;
    o->plain_data = s->plain_data;
    o->trace = s->trace;
    o->require_key = s->require_key;
    if (s->psk) {
        o->has_key = true;
        memcpy(o->key, s->psk, sizeof o->key);
    }
    return (s->require_key && !s->psk) || (s->psk && s->no_extensions) ? UDT_E_INVAL : 0;
}

static bool reachable(const io_port *p, const udt_addr *to)
{
    return to->port != 0 && ((to->family == 4 && !p->only6) || (to->family == 6 && !p->only4));
}

static void start_run(io_port *p, void *arg)
{
    io_sock *s = arg;
    const udt_addr *to = s->has_to ? &s->to : NULL;
    int32_t es = UDT_E_CLOSED;
    if (io_port_closing(p))
        ;
    else if (s->role == IO_KEYED)
        es = udt_mux_open_keyed(p->mux, to, &s->opts, s->key, s->initiator, p->now);
    else if (s->role == IO_CLIENT)
        es = udt_mux_connect(p->mux, to, &s->opts, p->now);
    else
        es = udt_mux_rendezvous(p->mux, to, &s->opts, p->now);
    secure_wipe(s->key, sizeof s->key);
    secure_wipe(s->opts.key, sizeof s->opts.key);
    if (es > 0 && !io_sock_attach(s, es))
        es = UDT_E_NOMEM;
    if (es > 0) {
        if (s->role == IO_CLIENT)
            io_sock_meets(s);
        io_sock_pump_tx(s); /* a keyed initiator may have written already */
    } else {
        io_sock_fail(s, es);
    }
    io_handle_put(p->ctx, s->h);
}

/* Runs an embedded command of a socket that the caller has pinned; the command unpins. */
static void submit(io_port *p, io_cmd *c, io_cmd_fn fn, io_sock *s)
{
    if (io_manual(p)) {
        io_port_ref(p); /* the command's pin may be the last that keeps it */
        io_manual_enter(p);
        fn(p, s);
        io_loop_events(p);
        io_manual_leave(p);
        io_port_unref(p);
        return;
    }
    c->fn = fn;
    c->arg = s;
    io_cmd_push(p, c);
}

static int32_t open_active(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *so,
                           enum io_sock_kind role, const uint8_t *key, bool initiator)
{
    udt_opts o;
    udt_addr plain;
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return no_handle(ctx);
    if (to) {
        plain = sockaddr_plain(to);
        to = &plain;
    }
    int err = fill_opts(&o, so, p);
    if (!err &&
        (to ? !reachable(p, to) : role == IO_CLIENT || (role == IO_KEYED ? initiator : o.tag == 0)))
        err = UDT_E_INVAL;
    io_sock *s = err ? NULL : io_sock_new(p, role, &o, &err);
    int32_t h = err;
    if (s) {
        s->has_to = to != NULL;
        if (to)
            s->to = s->peer = *to;
        if (key)
            memcpy(s->key, key, sizeof s->key);
        s->initiator = initiator;
        if (role == IO_KEYED && initiator)
            atomic_store(&s->state, IO_CONNECTED);
        h = s->h;
        (void)io_handle_get(ctx, h, IO_KIND_SOCK, NULL); /* the command's pin */
        submit(p, &s->start_cmd, start_run, s);
    }
    io_handle_put(ctx, port);
    return h;
}

int32_t udt_connect(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o)
{
    return to ? open_active(ctx, port, to, o, IO_CLIENT, NULL, false) : UDT_E_INVAL;
}

int32_t udt_rendezvous(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o)
{
    return open_active(ctx, port, to, o, IO_RENDEZVOUS, NULL, false);
}

int32_t udt_open_keyed(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o,
                       const uint8_t *key, bool initiator)
{
    return key ? open_active(ctx, port, to, o, IO_KEYED, key, initiator) : UDT_E_INVAL;
}

struct listen_call {
    const udt_opts *o;
    uint32_t backlog;
    int32_t result;
};

static void listen_run(io_port *p, void *arg)
{
    struct listen_call *c = arg;
    int err;
    if (io_port_closing(p)) {
        c->result = UDT_E_CLOSED;
        return;
    }
    io_sock *s = io_sock_new(p, IO_LISTENER, c->o, &err);
    if (!s) {
        c->result = err;
        return;
    }
    int32_t es = udt_mux_listen(p->mux, &s->opts, c->backlog);
    if (es > 0 && !io_sock_attach(s, es))
        es = UDT_E_NOMEM;
    if (es < 0) {
        c->result = es;
        io_handle_free(p->ctx, s->h);
        return;
    }
    atomic_store(&s->state, IO_LISTENING);
    c->result = s->h;
}

int32_t udt_listen(udt_ctx *ctx, int32_t port, const udt_sock_opts *so, uint32_t backlog)
{
    udt_opts o;
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return no_handle(ctx);
    struct listen_call c = {&o, backlog ? backlog : 128, fill_opts(&o, so, p)};
    if (c.result == 0 && atomic_exchange(&p->listening, 1))
        c.result = UDT_E_INUSE;
    else if (c.result == 0) {
        io_port_call(p, listen_run, &c);
        if (c.result < 0)
            atomic_store(&p->listening, 0);
    }
    io_handle_put(ctx, port);
    return c.result;
}

/* ---- sending ------------------------------------------------------------------------------- */
static int may_send(io_sock *s)
{
    int err = atomic_load(&s->tx_err);
    if (err)
        return err;
    return atomic_load(&s->state) == IO_CONNECTED ? 0 : UDT_E_STATE;
}

/* Wakes the loop once for all that was written since it last looked. Takes over the pin. */
static void kick_tx(udt_ctx *ctx, io_sock *s, int32_t h)
{
    if (atomic_exchange(&s->tx_posted, 1)) {
        io_handle_put(ctx, h);
        return;
    }
    submit(s->p, &s->tx_cmd, io_sock_tx_run, s);
}

static size_t out_room(io_sock *s)
{
    size_t used = io_sock_out_used(s);
    return used < s->out_max ? s->out_max - used : 0;
}

/* A writer that met a full box wants to hear WRITABLE. The box may have been emptied just before
 * that was noted, so the loop is asked to look again. */
static bool want_write(io_sock *s, size_t len)
{
    atomic_store(&s->want_write, (int)(len < s->out_max ? len : s->out_max));
    return io_sock_out_fits(s) && atomic_exchange(&s->want_write, 0) != 0;
}

static ssize_t send_boxed(io_sock *s, const uint8_t *buf, size_t len)
{
    for (int look = 0; look < 2; look++) {
        size_t room = out_room(s), n = len < room ? len : room;
        n = n ? bytesq_write(&s->out, buf, n) : 0;
        if (n)
            return (ssize_t)n;
        if (!want_write(s, s->out_max / 2))
            return UDT_E_AGAIN;
    }
    atomic_store(&s->want_write, 1); /* there is room but no memory: the loop says when to try */
    return UDT_E_AGAIN;
}

ssize_t udt_send(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len)
{
    io_port *p;
    io_sock *s = io_handle_get(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return no_handle(ctx);
    ssize_t n = may_send(s);
    if (n == 0 && (!io_sock_stream(s) || len == 0))
        n = len == 0 ? UDT_E_INVAL : UDT_E_STATE;
    if (n < 0) {
        io_handle_put(ctx, sock);
        return n;
    }
    if (io_manual(p)) {
        io_manual_enter(p);
        n = s->es ? udt_mux_send(p->mux, s->es, buf, len, p->now) : UDT_E_CLOSED;
        io_manual_leave(p);
        io_handle_put(ctx, sock);
        return n;
    }
    pthread_mutex_lock(&s->send_mu);
    n = send_boxed(s, buf, len);
    pthread_mutex_unlock(&s->send_mu);
    kick_tx(ctx, s, sock);
    return n;
}

static int sendmsg_boxed(io_sock *s, const uint8_t *buf, size_t len, int32_t ttl_ms, bool in_order)
{
    size_t used;
    do {
        used = io_sock_out_used(s);
        if (used == 0 || used + len <= s->out_max)
            break;
    } while (want_write(s, len > s->out_max / 2 ? len : s->out_max / 2));
    if (used != 0 && used + len > s->out_max)
        return UDT_E_AGAIN;
    msgq_item *it = msgq_new(len);
    if (!it)
        return UDT_E_NOMEM;
    memcpy(it->data, buf, len);
    it->in_order = in_order;
    if (ttl_ms >= 0)
        it->expires = io_clock() + (int64_t)ttl_ms * 1000;
    msgq_push(&s->mout, it);
    return 0;
}

int udt_sendmsg(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len, int32_t ttl_ms,
                bool in_order)
{
    io_port *p;
    io_sock *s = io_handle_get(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return no_handle(ctx);
    int err = may_send(s);
    if (!err && io_sock_stream(s))
        err = UDT_E_STATE;
    if (!err && len == 0)
        err = UDT_E_INVAL;
    if (!err && len > s->opts.snd_buf_bytes)
        err = UDT_E_TOOBIG;
    if (err) {
        io_handle_put(ctx, sock);
        return err;
    }
    if (io_manual(p)) {
        io_manual_enter(p);
        err = s->es ? udt_mux_sendmsg(p->mux, s->es, buf, len, ttl_ms, in_order, p->now)
                    : UDT_E_CLOSED;
        io_manual_leave(p);
        io_handle_put(ctx, sock);
        return err;
    }
    pthread_mutex_lock(&s->send_mu);
    err = sendmsg_boxed(s, buf, len, ttl_ms, in_order);
    pthread_mutex_unlock(&s->send_mu);
    kick_tx(ctx, s, sock);
    return err;
}

/* ---- receiving ------------------------------------------------------------------------------ */
static ssize_t recv_boxed(io_sock *s, uint8_t *buf, size_t cap)
{
    int end = atomic_load(&s->rx_end); /* read first: data put in before the end is then visible */
    ssize_t n = UDT_E_AGAIN;
    pthread_mutex_lock(&s->recv_mu);
    if (io_sock_stream(s)) {
        size_t got = bytesq_read(&s->in, buf, cap);
        n = got ? (ssize_t)got : UDT_E_AGAIN;
    } else {
        msgq_item *it = msgq_peek(&s->min);
        if (it) {
            n = (ssize_t)it->len;
            memcpy(buf, it->data, it->len < cap ? it->len : cap);
            msgq_pop(&s->min);
        }
    }
    pthread_mutex_unlock(&s->recv_mu);
    return n == UDT_E_AGAIN && end ? end : n;
}

/* After a read: lets a stalled loop go on, and says READABLE again where something is left. */
static void after_recv(udt_ctx *ctx, io_sock *s, int32_t h)
{
    size_t used = io_sock_in_used(s);
    if (used > 0) {
        udt_event ev = {.kind = UDT_IO_READABLE, .sock = h, .port = s->p->id};
        io_emit(ctx, &ev);
    }
    if (used <= s->in_max / 2 && atomic_exchange(&s->rx_stalled, 0) &&
        !atomic_exchange(&s->rx_posted, 1))
        submit(s->p, &s->rx_cmd, io_sock_rx_run, s); /* takes over the pin */
    else
        io_handle_put(ctx, h);
}

static ssize_t receive(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap, bool stream)
{
    io_port *p;
    io_sock *s = io_handle_get(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return no_handle(ctx);
    ssize_t n = 0;
    if (io_sock_stream(s) != stream || s->role == IO_LISTENER)
        n = UDT_E_STATE;
    else if (stream && cap == 0)
        n = UDT_E_INVAL;
    if (n < 0) {
        io_handle_put(ctx, sock);
        return n;
    }
    if (io_manual(p)) {
        io_manual_enter(p);
        int end = atomic_load(&s->rx_end);
        if (!s->es)
            n = end ? end : UDT_E_AGAIN;
        else if (stream)
            n = udt_mux_recv(p->mux, s->es, buf, cap, p->now);
        else
            n = udt_mux_recvmsg(p->mux, s->es, buf, cap, p->now);
        if (n < 0 && s->es)
            n = io_sock_end(s, (int)n);
        io_manual_leave(p);
        io_handle_put(ctx, sock);
        return n;
    }
    n = recv_boxed(s, buf, cap);
    after_recv(ctx, s, sock);
    return n;
}

ssize_t udt_recv(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap)
{
    return receive(ctx, sock, buf, cap, true);
}

ssize_t udt_recvmsg(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap)
{
    return receive(ctx, sock, buf, cap, false);
}

/* ---- the rest -------------------------------------------------------------------------------- */
/* A second close, which shortens the first. */
static int cut(udt_ctx *ctx, int32_t sock)
{
    io_port *p;
    io_sock *s = io_handle_closing(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return UDT_E_NOSOCK;
    if (atomic_load(&s->linger_ms) == 0 || atomic_exchange(&s->cut, 1)) {
        io_handle_put(ctx, sock);
        return UDT_E_NOSOCK;
    }
    submit(p, &s->cut_cmd, io_sock_cut_run, s);
    return 0;
}

static int close_with(udt_ctx *ctx, int32_t sock, int32_t linger_ms, int abort)
{
    io_port *p;
    int err = io_ctx_alive(ctx);
    if (err)
        return err;
    io_sock *s = io_handle_close(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return linger_ms == 0 ? cut(ctx, sock) : UDT_E_NOSOCK;
    atomic_store(&s->abort, abort);
    atomic_store(&s->linger_ms, linger_ms < 0 ? 180000 : linger_ms);
    submit(p, &s->close_cmd, io_sock_close_run, s);
    return 0;
}

int udt_close(udt_ctx *ctx, int32_t sock, int32_t linger_ms)
{
    return close_with(ctx, sock, linger_ms, 0);
}

int udt_abort(udt_ctx *ctx, int32_t sock, bool silent)
{
    return close_with(ctx, sock, 0, silent ? IO_ABORT_SILENT : IO_ABORT);
}

int udt_sock_peer(udt_ctx *ctx, int32_t sock, udt_addr *out)
{
    io_sock *s = io_handle_get(ctx, sock, IO_KIND_SOCK, NULL);
    if (!s)
        return no_handle(ctx);
    int err = 0;
    if (s->role == IO_CLIENT)
        *out = s->to;
    else if (s->role == IO_CHILD || atomic_load(&s->state) == IO_CONNECTED)
        *out = s->peer; /* of an accepted one also when it has ended before anybody asked */
    else if (s->has_to)
        *out = s->to;
    else
        err = UDT_E_STATE;
    io_handle_put(ctx, sock);
    return err;
}

/* Of a socket on a MANUAL port, as they are now. */
static void fresh_stats(udt_ctx *ctx, int32_t sock)
{
    io_port *p;
    io_sock *s = io_handle_get(ctx, sock, IO_KIND_SOCK, &p);
    if (!s)
        return;
    if (io_manual(p)) {
        udt_stats st;
        udt_sock_stats snap;
        io_manual_enter(p);
        bool known = s->es && udt_mux_stats(p->mux, s->es, &st) == 0;
        io_manual_leave(p);
        if (known) {
            memcpy(&snap, &st, sizeof snap);
            io_handle_snap(ctx, sock, &snap);
        }
    }
    io_handle_put(ctx, sock);
}

void io_stats_age(udt_sock_stats *st)
{
    if (io_clock() - st->at_us > RATES_US)
        st->send_Bps = st->recv_Bps = 0;
}

int udt_stats_get(udt_ctx *ctx, int32_t sock, udt_sock_stats *out)
{
    int err = io_ctx_alive(ctx);
    if (err)
        return err;
    void *x = io_handle_get(ctx, sock, IO_KIND_XFER, NULL);
    if (x) {
        err = ctx->xfer_stats ? ctx->xfer_stats(x, out) : UDT_E_STATE;
        io_handle_put(ctx, sock);
        return err;
    }
    fresh_stats(ctx, sock);
    pthread_mutex_lock(&ctx->mu);
    const io_entry *e = io_entry_of(ctx, sock);
    const udt_sock_stats *st = e ? e->snap : io_final_stats(ctx, sock);
    if (e ? e->kind != IO_KIND_SOCK : !st)
        err = UDT_E_NOSOCK;
    else if (st)
        *out = *st;
    else
        memset(out, 0, sizeof *out); /* nothing was measured yet */
    bool live = e && !e->closing;
    pthread_mutex_unlock(&ctx->mu);
    if (err == 0 && live)
        io_stats_age(out);
    return err;
}
