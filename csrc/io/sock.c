/* Application sockets on the loop thread: engine events, and bytes between boxes and engine. */
#include "io/sock.h"

#include "base/addr.h"
#include "crypto/aead.h"
#include "udt/trace.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void sock_free(void *obj)
{
    io_sock *s = obj;
    bytesq_fini(&s->out);
    bytesq_fini(&s->in);
    if (s->mout.head)
        msgq_fini(&s->mout);
    if (s->min.head)
        msgq_fini(&s->min);
    pthread_mutex_destroy(&s->send_mu);
    pthread_mutex_destroy(&s->recv_mu);
    udt_trace_free(s->opts.trace);
    secure_wipe(&s->opts, sizeof s->opts);
    secure_wipe(s->key, sizeof s->key);
    free(s);
}

static size_t box_bytes(uint32_t buf_bytes)
{
    return buf_bytes && buf_bytes < IO_QUEUE_BYTES ? buf_bytes : IO_QUEUE_BYTES;
}

io_sock *io_sock_new(io_port *p, enum io_sock_kind role, const udt_opts *o, int *err)
{
    io_sock *s = calloc(1, sizeof *s);
    *err = UDT_E_NOMEM;
    if (!s)
        return NULL;
    s->p = p;
    s->role = role;
    s->opts = *o;
    s->opts.trace = udt__trace_ref(o->trace);
    if (o->cc) {
        strncpy(s->cc, o->cc, sizeof s->cc - 1);
        s->opts.cc = s->cc;
    }
    s->linger.slot = -1;
    s->out_max = box_bytes(o->snd_buf_bytes);
    s->in_max = box_bytes(o->rcv_buf_bytes);
    int64_t mem_max = (int64_t)(p->ctx->max_buf_bytes / 4);
    bytesq_init(&s->out, &p->ctx->queue_bytes, mem_max);
    bytesq_init(&s->in, &p->ctx->queue_bytes, mem_max);
    pthread_mutex_init(&s->send_mu, NULL);
    pthread_mutex_init(&s->recv_mu, NULL);
    if (!io_sock_stream(s) && role != IO_LISTENER)
        if (msgq_init(&s->mout, &p->ctx->queue_bytes) || msgq_init(&s->min, &p->ctx->queue_bytes)) {
            sock_free(s);
            return NULL;
        }
    int32_t h = io_handle_new(p->ctx, IO_KIND_SOCK, p, s);
    if (h < 0) {
        *err = h;
        sock_free(s);
        return NULL;
    }
    s->h = h;
    io_handle_on_free(p->ctx, h, sock_free);
    *err = 0;
    return s;
}

static void say(io_sock *s, enum udt_io_event_kind kind, int err, int64_t value)
{
    udt_event ev = {.kind = (uint16_t)kind, .sock = s->h, .err = err, .value = value};
    io_emit_from(s->p, &ev);
}

bool io_sock_readable(void *sock)
{
    io_sock *s = sock;
    return io_manual(s->p) || io_sock_in_used(s) > 0 || atomic_load(&s->rx_end);
}

/* ---- engine -> inbox ---------------------------------------------------------------------- */
static ssize_t take_bytes(io_sock *s)
{
    size_t room, used = bytesq_used(&s->in);
    uint8_t *to = used < s->in_max ? bytesq_room(&s->in, &room) : NULL;
    if (!to)
        return 0;
    if (room > s->in_max - used)
        room = s->in_max - used;
    ssize_t n = udt_mux_recv(s->p->mux, s->es, to, room, s->p->now);
    if (n > 0)
        bytesq_commit(&s->in, (size_t)n);
    return n;
}

/* The engine tells a message's length only with the message, so it lands in a scratch area that is
 * as large as any message can be; pages that were never touched cost nothing. */
static ssize_t take_message(io_sock *s)
{
    io_port *p = s->p;
    if (msgq_used(&s->min) >= s->in_max)
        return 0;
    if (p->scratch_bytes < s->opts.rcv_buf_bytes) {
        if (p->scratch)
            munmap(p->scratch, p->scratch_bytes);
        p->scratch_bytes = s->opts.rcv_buf_bytes;
        p->scratch = mmap(NULL, p->scratch_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p->scratch == MAP_FAILED) {
            p->scratch = NULL;
            p->scratch_bytes = 0;
            return UDT_E_NOMEM;
        }
    }
    ssize_t n = udt_mux_recvmsg(p->mux, s->es, p->scratch, p->scratch_bytes, p->now);
    if (n < 0)
        return n;
    size_t len = (size_t)n < p->scratch_bytes ? (size_t)n : p->scratch_bytes;
    msgq_item *it = msgq_new(len);
    if (!it)
        return UDT_E_NOMEM;
    memcpy(it->data, p->scratch, len);
    msgq_push(&s->min, it);
    if (len > 4 << 20)
        madvise(p->scratch, p->scratch_bytes, MADV_DONTNEED);
    return 1; /* an empty message is progress too */
}

static void end_rx(io_sock *s, int err)
{
    if (!atomic_load(&s->rx_end)) {
        atomic_store(&s->rx_end, err);
        say(s, UDT_IO_READABLE, 0, 0); /* a reader that met AGAIN must come and see the end */
    }
}

int io_sock_end(const io_sock *s, int err)
{
    return err == UDT_E_PEERCLOSED && udt_mux_was_cut(s->p->mux, s->es) ? UDT_E_CUT : err;
}

static void pump_rx(io_sock *s)
{
    bool got = false;
    if (io_manual(s->p)) {
        say(s, UDT_IO_READABLE, 0, 0);
        return;
    }
    if (!s->es || s->closing || s->shut || atomic_load(&s->rx_end))
        return;
    for (;;) {
        ssize_t n = io_sock_stream(s) ? take_bytes(s) : take_message(s);
        if (n > 0) {
            got = true;
        } else if (n == 0) { /* full: the reader posts rx_cmd when it has made room */
            atomic_store(&s->rx_stalled, 1);
            if (io_sock_in_used(s) > 0 || !atomic_exchange(&s->rx_stalled, 0))
                break;
        } else {
            if (n != UDT_E_AGAIN)
                end_rx(s, io_sock_end(s, (int)n));
            break;
        }
    }
    if (got)
        say(s, UDT_IO_READABLE, 0, 0);
}

void io_sock_rx_run(io_port *p, void *arg)
{
    io_sock *s = arg;
    atomic_store(&s->rx_posted, 0);
    pump_rx(s);
    io_handle_put(p->ctx, s->h);
}

/* ---- outbox -> engine --------------------------------------------------------------------- */
static ssize_t give_bytes(io_sock *s)
{
    size_t len;
    const uint8_t *b = bytesq_peek(&s->out, &len);
    if (!b)
        return 0;
    ssize_t n = udt_mux_send(s->p->mux, s->es, b, len, s->p->now);
    if (n > 0)
        bytesq_consume(&s->out, (size_t)n);
    return n;
}

static ssize_t give_message(io_sock *s)
{
    msgq_item *it = msgq_peek(&s->mout);
    if (!it)
        return 0;
    int32_t ttl = -1;
    if (it->expires != INT64_MAX) {
        int64_t left = (it->expires - s->p->now) / 1000;
        ttl = left > 0 ? (int32_t)left : 0;
    }
    int n = ttl == 0 ? 0
                     : udt_mux_sendmsg(s->p->mux, s->es, it->data, it->len, ttl, it->in_order,
                                       s->p->now);
    if (n < 0)
        return n;
    msgq_pop(&s->mout);
    return 1;
}

static void drop_outbox(io_sock *s)
{
    bytesq_discard(&s->out);
    while (s->mout.head && msgq_peek(&s->mout))
        msgq_pop(&s->mout);
}

static void on_gone(io_sock *s);

/* What has not gone to the engine will not; the peer is to know. */
static void give_up_outbox(io_sock *s)
{
    int abort = atomic_load(&s->abort);
    if (abort || io_sock_out_used(s) > 0)
        udt_mux_give_up(s->p->mux, s->es, abort == IO_ABORT_SILENT);
    drop_outbox(s);
}

/* May free the socket where nobody pins it; callers touch it no more. */
static void shut(io_sock *s, uint32_t linger_ms)
{
    if (s->shut)
        return;
    s->shut = true;
    io_timer_stop(s->p, &s->linger);
    udt_mux_unread(s->p->mux, s->es, io_sock_in_used(s));
    if (udt_mux_close(s->p->mux, s->es, linger_ms, s->p->now) < 0) {
        io_port_own(s->p, s->es, NULL, NULL); /* unknown to the engine: no CLOSED will come */
        on_gone(s);
    }
}

void io_sock_pump_tx(io_sock *s)
{
    if (!s->es || s->shut || atomic_load(&s->state) != IO_CONNECTED)
        return;
    ssize_t n = 0;
    while (!s->tx_blocked && (n = io_sock_stream(s) ? give_bytes(s) : give_message(s)) != 0) {
        if (n == UDT_E_AGAIN) {
            s->tx_blocked = true;
        } else if (n < 0) {
            atomic_store(&s->tx_err, (int)n);
            s->end_err = (int)n;
            drop_outbox(s);
        }
    }
    size_t used = io_sock_out_used(s);
    if (io_sock_out_fits(s) && atomic_exchange(&s->want_write, 0))
        say(s, UDT_IO_WRITABLE, 0, 0);
    if (s->closing && used == 0) {
        int64_t left = (s->linger_at - s->p->now) / 1000;
        shut(s, left > 0 ? (uint32_t)left : 0);
    }
}

void io_sock_tx_run(io_port *p, void *arg)
{
    io_sock *s = arg;
    atomic_store(&s->tx_posted, 0);
    io_sock_pump_tx(s);
    io_handle_put(p->ctx, s->h);
}

/* ---- life ---------------------------------------------------------------------------------- */
void io_sock_meets(io_sock *s)
{
    s->meet_next = s->p->meeting;
    s->meet_at = &s->p->meeting;
    if (s->meet_next)
        s->meet_next->meet_at = &s->meet_next;
    s->p->meeting = s;
}

/* It was answered, or waits no longer. */
static void met(io_sock *s)
{
    if (!s->meet_at)
        return;
    *s->meet_at = s->meet_next;
    if (s->meet_next)
        s->meet_next->meet_at = s->meet_at;
    s->meet_at = NULL;
}

static void finish(io_sock *s)
{
    met(s);
    io_timer_stop(s->p, &s->linger);
    say(s, UDT_IO_CLOSED, s->end_err, 0);
    io_handle_free(s->p->ctx, s->h);
}

static void end(io_sock *s, int err)
{
    int none = 0;
    met(s);
    atomic_store(&s->state, IO_ENDED);
    atomic_compare_exchange_strong(&s->tx_err, &none, err);
    drop_outbox(s);
}

void io_sock_fail(io_sock *s, int err)
{
    pump_rx(s);
    end(s, err);
    if (!atomic_load(&s->rx_stalled))
        end_rx(s, err);
    say(s, UDT_IO_FAILED, err, 0);
    if (s->closing && s->es)
        shut(s, 0);
}

static void on_accepted(io_sock *l, int32_t es)
{
    int err;
    io_sock *s = l->closing ? NULL : io_sock_new(l->p, IO_CHILD, &l->opts, &err);
    if (!s) {
        (void)udt_mux_close(l->p->mux, es, 0, l->p->now);
        return;
    }
    (void)udt_mux_peer(l->p->mux, es, &s->peer);
    atomic_store(&s->state, IO_CONNECTED);
    if (io_sock_attach(s, es))
        say(s, UDT_IO_ACCEPTED, 0, l->h);
    else
        io_handle_free(l->p->ctx, s->h);
}

static void on_gone(io_sock *s)
{
    s->es = 0;
    if (s->closing) {
        finish(s);
        return;
    }
    end(s, UDT_E_CLOSED);
    atomic_store(&s->rx_stalled, 0);
    end_rx(s, UDT_E_CLOSED);
}

static void on_event(io_port *p, void *arg, const struct udt_ev *ev)
{
    io_sock *s = arg;
    switch (ev->kind) {
    case UDT_EV_CONNECTED:
        met(s);
        if (atomic_load(&s->state) != IO_CONNECTED) { /* a keyed initiator knew it all along */
            (void)udt_mux_peer(p->mux, s->es, &s->peer);
            atomic_store(&s->state, IO_CONNECTED);
        }
        say(s, UDT_IO_CONNECTED, 0, 0);
        break;
    case UDT_EV_ACCEPTED:
        on_accepted(s, ev->sock);
        break;
    case UDT_EV_READABLE:
        pump_rx(s);
        break;
    case UDT_EV_WRITABLE:
        s->tx_blocked = false;
        if (io_manual(p))
            say(s, UDT_IO_WRITABLE, 0, 0);
        io_sock_pump_tx(s);
        break;
    case UDT_EV_DRAINED:
        if (io_sock_out_used(s) == 0)
            say(s, UDT_IO_DRAINED, 0, 0);
        break;
    case UDT_EV_PEER_CLOSED:
        pump_rx(s);
        say(s, UDT_IO_PEER_CLOSED, 0, 0);
        s->tx_blocked = false; /* what lies in the outbox goes nowhere: there is nothing to wait */
        io_sock_pump_tx(s);    /* for, neither for who closes nor for who met AGAIN */
        break;
    case UDT_EV_FAILED:
        io_sock_fail(s, ev->err);
        break;
    case UDT_EV_CLOSED:
        if (ev->err && !s->end_err)
            s->end_err = ev->err;
        io_port_own(p, s->es, NULL, NULL);
        on_gone(s);
        break;
    default:
        break;
    }
}

bool io_sock_attach(io_sock *s, int32_t es)
{
    if (!io_port_own(s->p, es, on_event, s))
        return false;
    s->es = es;
    io_port_stats_of(s->p, es, s->h);
    return true;
}

static void linger_over(io_port *p, void *arg)
{
    io_sock *s = arg;
    (void)p;
    give_up_outbox(s);
    shut(s, 0);
}

void io_sock_close_run(io_port *p, void *arg)
{
    io_sock *s = arg;
    s->closing = true;
    if (s->role == IO_LISTENER)
        atomic_store(&p->listening, 0);
    if (!s->es) {
        finish(s);
    } else if (atomic_load(&s->state) != IO_CONNECTED || atomic_load(&s->linger_ms) == 0) {
        give_up_outbox(s);
        shut(s, 0);
    } else {
        s->linger_at = p->now + (udt_time)atomic_load(&s->linger_ms) * 1000;
        s->linger.fn = linger_over;
        s->linger.arg = s;
        io_timer_arm(p, &s->linger, s->linger_at);
        s->tx_blocked = false; /* the peer may have closed meanwhile */
        io_sock_pump_tx(s);
    }
    io_handle_put(p->ctx, s->h);
}

void io_sock_cut_run(io_port *p, void *arg)
{
    io_sock *s = arg;
    if (s->es && s->shut) {
        (void)udt_mux_close(p->mux, s->es, 0, p->now); /* no longer */
    } else if (s->es) {
        if (io_sock_out_used(s) > 0 && !s->end_err)
            s->end_err = UDT_E_CLOSED;
        give_up_outbox(s);
        shut(s, 0);
    }
    io_handle_put(p->ctx, s->h);
}

/* ICMP says that nobody listens: a client's connect ends at once. A rendezvous goes on, for there
 * the peer may simply be late. Anybody who guesses a port may forge this, as often as he likes, so
 * only those are gone through whom it may concern. */
void io_sock_unreachable(io_port *p, const udt_addr *to)
{
    for (io_sock *s = p->meeting, *next; s; s = next) {
        next = s->meet_next;
        if (s->shut || !addr_eq(&s->to, to))
            continue;
        shut(s, 0);
        io_sock_fail(s, UDT_E_UNREACHABLE);
    }
}

/* The port closes: every socket ends now, whatever it still held. */
void io_socks_end(io_port *p)
{
    for (uint32_t i = 0; i < p->map.cap; i++) {
        io_bind b = p->map.slot[i];
        if (b.sock <= 0)
            continue;
        if (b.fn != on_event) {
            struct udt_ev ev = {.kind = UDT_EV_FAILED, .sock = b.sock, .err = UDT_E_CLOSED};
            b.fn(p, b.arg, &ev);
            (void)udt_mux_close(p->mux, b.sock, 0, p->now);
            ev.kind = UDT_EV_CLOSED;
            if (io_map_find(&p->map, b.sock)) /* the owner may have let go of it */
                b.fn(p, b.arg, &ev);
        } else {
            io_sock *s = b.arg;
            if (!s->end_err && (io_sock_out_used(s) > 0 || udt_mux_unacked(p->mux, s->es) > 0))
                s->end_err = UDT_E_CLOSED;
            give_up_outbox(s);
            end(s, UDT_E_CLOSED);
            if (s->shut) /* it lingers: no longer */
                (void)udt_mux_close(p->mux, s->es, 0, p->now);
            shut(s, 0);
            io_port_own(p, s->es, NULL, NULL);
            s->es = 0;
            finish(s);
        }
    }
}
