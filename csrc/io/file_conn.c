/* File transfers on the loop thread: meeting the peer, OPEN, the answer to FIN, and every end. */
#include "io/file_priv.h"
#include "io/priv.h"

#include "base/bytes.h"

#include <string.h>
#include <unistd.h>

static void on_event(io_port *p, void *arg, const struct udt_ev *ev);

/* ---- the connection ---- */

void xfer_drop(xfer *x, uint32_t linger_ms)
{
    if (!stream_up(&x->s))
        return;
    if (x->sender)
        (void)xfer_send_bytes(x); /* last look at what was acknowledged */
    xfer_note_stats(x);
    stream_close(&x->s, linger_ms);
}

/* Sends x->out; true when nothing of it is left. */
static bool flush_out(xfer *x)
{
    while (x->out_at < x->out_len) {
        ssize_t n = stream_send(&x->s, x->out + x->out_at, x->out_len - x->out_at);
        if (n <= 0)
            return false; /* AGAIN: WRITABLE follows; else FAILED or PEER_CLOSED does */
        x->out_at += (size_t)n;
    }
    x->out_at = x->out_len = 0;
    return true;
}

/* The key of the connection: from all that both ends know of the ticket, so that only the two of
 * this transfer meet. The records inside have keys of their own. */
static void packet_key(const xfer *x, uint8_t key[UDT_KEY_BYTES])
{
    static const char what[] = "sector transfer packets";
    uint8_t info[sizeof what + 16 + 4 + 1];
    memcpy(info, what, sizeof what);
    memcpy(info + sizeof what, x->ticket.id, 16);
    be32_put(info + sizeof what + 16, x->ticket.tag);
    info[sizeof what + 20] = x->encrypt;
    hkdf_sha256(x->ticket.key, sizeof x->ticket.key, info, sizeof info, key, UDT_KEY_BYTES);
}

static void on_connected(xfer *x);

void xfer_meet(xfer *x)
{
    udt_opts o;
    uint8_t key[UDT_KEY_BYTES];
    udt_time now = io_port_now(x->port), left = x->deadline.at - now;
    udt_opts_init(&o);
    o.type = UDT_STREAM;
    o.mss = x->port->mss;
    o.plain_data = true; /* the records inside are sealed */
    o.snd_buf_bytes = o.rcv_buf_bytes = 0;
    o.idle_timeout_ms = x->o.idle_ms;
    o.max_bw_Bps = x->o.max_bw_Bps;
    if (!x->sender && x->o.length > 0)
        o.early_bytes = x->o.length < UINT32_MAX ? (uint32_t)x->o.length : UINT32_MAX;
    o.cc = x->o.cc ? x->o.cc : o.cc;
    o.trace = x->o.trace;
    o.connect_timeout_ms = left > 1000 ? (int32_t)(left / 1000) : 1;
    packet_key(x, key);
    int32_t sock = io_port_closing(x->port)
                       ? UDT_E_CLOSED
                       : udt_mux_open_keyed(io_port_mux(x->port), x->has_to ? &x->to : NULL, &o,
                                            key, x->initiator, now);
    secure_wipe(key, sizeof key);
    if (sock > 0 && !io_port_own(x->port, sock, on_event, x))
        sock = UDT_E_NOMEM;
    if (sock > 0) {
        x->s.sock = sock;
        if (x->initiator && x->s.sock > 0)
            on_connected(x); /* OPEN goes with the first datagrams */
    } else {
        xfer_fail(x, sock, 0, 0, 0);
    }
}

/* A connection that came to nothing. Whoever was there had the ticket's key, and a key is good for
 * one connection. */
void xfer_lost_early(xfer *x, int err)
{
    xfer_fail(x, err == UDT_E_PEERCLOSED ? UDT_E_REJECTED : err, 0, 0, 0);
}

/* ---- OPEN ---- */

/* What can be kept back until the peer answers is not much, and a round trip is: the whole of a
 * small file goes with the first flight. The ticket is good for one connection, so nobody can
 * repeat it. */
static void send_early(xfer *x)
{
    int rc = sdc_dir_init(&x->send, &x->hello, true);
    if (rc != 0)
        xfer_fail(x, rc, 0, 0, 0);
    else
        xfer_send_pump(x);
}

static void on_connected(xfer *x)
{
    uint8_t nonce[SDC_NONCE_BYTES];
    sys_random(NULL, nonce, sizeof nonce);
    sdc_hello_init(&x->hello, &x->ticket, x->initiator, nonce);
    if (x->initiator) {
        x->early = x->hello.early = x->sender && x->small && !x->s.tls;
        (void)sdc_hello_write(&x->hello, x->out);
        x->out_len = SDC_OPEN_BYTES;
        (void)flush_out(x);
        if (x->early)
            send_early(x);
    } else {
        io_timer_arm(x->port, &x->step, io_port_now(x->port) + XFER_PROVE_US);
    }
}

static void pump(xfer *x)
{
    if (x->sender)
        xfer_send_pump(x);
    else
        xfer_recv_pump(x);
}

static void opened(xfer *x)
{
    if (!x->initiator) {
        (void)sdc_hello_write(&x->hello, x->out);
        x->out_len = SDC_OPEN_BYTES;
    }
    int rc = x->early ? 0 : sdc_dir_init(&x->send, &x->hello, x->initiator);
    if (rc == 0)
        rc = sdc_dir_init(&x->recv, &x->hello, !x->initiator);
    sdc_hello_fini(&x->hello);
    secure_wipe(x->ticket.key, sizeof x->ticket.key);
    if (rc != 0) {
        xfer_fail(x, rc, 0, 0, 0);
        return;
    }
    io_timer_stop(x->port, &x->deadline);
    io_timer_stop(x->port, &x->step);
    x->phase = XFER_DATA;
    x->in_len = 0;
    x->opened_at = x->progress_at = io_port_now(x->port);
    (void)flush_out(x);
    xfer_tls_opened(x);
    xfer_emit(x, UDT_IO_XFER_OPEN, (x->s.tls ? UDT_PATH_TLS : UDT_PATH_UDP) | (int64_t)x->why << 8);
    if (x->sender)
        io_timer_arm(x->port, &x->step, x->opened_at + XFER_PROGRESS_US);
    pump(x);
    if (x->sender)
        xfer_hear(x); /* of an early file even DONE may be there */
}

static void read_open(xfer *x)
{
    while (x->in_len < SDC_OPEN_BYTES) {
        ssize_t n = stream_recv(&x->s, x->in + x->in_len, SDC_OPEN_BYTES - x->in_len);
        if (n == UDT_E_PEERCLOSED)
            xfer_lost_early(x, UDT_E_PEERCLOSED);
        if (n <= 0)
            return;
        x->in_len += (size_t)n;
    }
    if (sdc_hello_read(&x->hello, x->in) == 0) {
        opened(x);
        return;
    }
    xfer_lost_early(x, UDT_E_AUTH);
}

/* ---- small records: DONE and ERROR ---- */

static void got_done(xfer *x)
{
    sdc_done v;
    sdc_done_get(&v, x->in + SDC_HEADER_BYTES);
    pthread_mutex_lock(&x->mu);
    x->result.version_epoch = v.epoch;
    x->result.version_counter = v.counter;
    x->result.durable = v.durable;
    pthread_mutex_unlock(&x->mu);
    if (!x->fin_at)
        x->fin_at = io_port_now(x->port);
    x->phase = XFER_ENDING;
    xfer_drop(x, 0);
    xfer_try_end(x);
}

/* One whole record lies in x->in. */
static void heard(xfer *x, int type, size_t size)
{
    bool wanted = type == SDC_ERROR || (type == SDC_DONE && x->sender && x->phase == XFER_FIN);
    ssize_t rc = wanted ? sdc_unseal(&x->recv, x->in, size) : UDT_E_PROTO;
    if (rc < 0)
        xfer_fail(x, (int)rc, 0, 0, (int32_t)rc);
    else if (type == SDC_ERROR)
        xfer_fail(x, UDT_E_REMOTE, 0, sdc_error_get(x->in + SDC_HEADER_BYTES), 0);
    else
        got_done(x);
}

void xfer_hear(xfer *x)
{
    while (x->phase == XFER_DATA || x->phase == XFER_FIN) {
        int type;
        size_t body;
        ssize_t n = stream_recv(&x->s, x->in + x->in_len, sizeof x->in - x->in_len);
        if (n == UDT_E_PEERCLOSED)
            xfer_fail(x, UDT_E_PEERCLOSED, 0, 0, 0);
        if (n <= 0)
            return;
        x->in_len += (size_t)n;
        ssize_t size = sdc_peek(x->encrypt, x->in, x->in_len, &type, &body);
        if (size < 0 || (size > 0 && type == SDC_DATA))
            xfer_fail(x, UDT_E_PROTO, 0, 0, UDT_E_PROTO);
        else if (size > 0 && (size_t)size <= x->in_len)
            heard(x, type, (size_t)size);
    }
}

void xfer_reply(xfer *x)
{
    uint8_t *rec = x->out + x->out_len;
    pthread_mutex_lock(&x->mu);
    int err = x->finish_err;
    sdc_done v = x->finish_done;
    x->finishable = false;
    pthread_mutex_unlock(&x->mu);
    if (err != 0) {
        xfer_fail(x, err, 0, 0, err);
        return;
    }
    sdc_done_put(&v, rec + SDC_HEADER_BYTES);
    x->out_len += sdc_seal(&x->send, SDC_DONE, rec, SDC_DONE_BYTES);
    x->phase = XFER_REPLY;
    io_timer_arm(x->port, &x->step, io_port_now(x->port) + XFER_REPLY_US);
    (void)flush_out(x);
}

/* ---- ends ---- */

void xfer_disk_wait(xfer *x, bool waiting)
{
    udt_time now = io_port_now(x->port);
    if (x->waited_at)
        x->waited_us += now - x->waited_at;
    x->waited_at = waiting ? now : 0;
}

static void free_bufs(xfer *x)
{
    struct xfer_list *lists[] = {&x->ready, &x->spare, &x->work};
    struct disk_buf *b;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        while ((b = xfer_list_take(lists[i])))
            xfer_buf_put(x, b);
    if (x->cur)
        xfer_buf_put(x, x->cur);
    x->cur = NULL;
}

static void end(xfer *x)
{
    io_port *p = x->port;
    io_timer_stop(p, &x->deadline);
    io_timer_stop(p, &x->step);
    xfer_tls_end(x);
    xfer_drop(x, 0);
    xfer_disk_wait(x, false);
    x->phase = XFER_ENDED;
    free_bufs(x);
    close(x->fd);
    x->fd = -1;
    sdc_hello_fini(&x->hello);
    sdc_dir_fini(&x->send);
    sdc_dir_fini(&x->recv);
    secure_wipe(&x->ticket, sizeof x->ticket);
    disk_xfer_remove(x->pool, x);
    xfer_show(x, true);
    xfer_emit(x, UDT_IO_XFER_DONE, x->result.bytes);
    bool held = x->held;
    xfer_unref(x);
    if (held)
        io_port_drop(p);
}

void xfer_try_end(xfer *x)
{
    if (x->phase == XFER_ENDING && !x->busy && !stream_up(&x->s))
        end(x);
}

/* Puts an ERROR behind whole records only: the rest of the one under way goes first. */
static void tell_peer(xfer *x, int32_t code)
{
    size_t n = x->out_len - x->out_at;
    memmove(x->out, x->out + x->out_at, n);
    if (x->sender && n == 0)
        n = xfer_send_cut(x, x->out);
    x->out_at = 0;
    x->out_len = n + sdc_seal_error(&x->send, code, x->out + n);
    if (flush_out(x))
        xfer_drop(x, XFER_LINGER_MS);
    else
        io_timer_arm(x->port, &x->step, io_port_now(x->port) + XFER_LINGER_MS * 1000);
}

void xfer_fail(xfer *x, int err, int sys_err, int32_t remote, int32_t tell)
{
    bool open = xfer_sends(x) || x->phase == XFER_FIN;
    if (x->phase >= XFER_ENDING)
        return;
    if (x->phase != XFER_REPLY) { /* after DONE nothing can fail any more */
        x->err = err;
        x->sys_err = sys_err;
        x->remote = remote;
    }
    io_timer_stop(x->port, &x->deadline);
    io_timer_stop(x->port, &x->step);
    xfer_tls_end(x);
    pthread_mutex_lock(&x->mu);
    x->finishable = false;
    pthread_mutex_unlock(&x->mu);
    x->phase = XFER_ENDING;
    if (open && tell != 0 && stream_up(&x->s) && !x->peer_closed)
        tell_peer(x, tell);
    else
        xfer_drop(x, 0);
    xfer_try_end(x);
}

/* ---- events and timers ---- */

static void on_peer_closed(xfer *x)
{
    x->peer_closed = true;
    if (x->phase == XFER_MEET) {
        read_open(x); /* it may have said all before it went; else this notices */
        if (x->phase == XFER_MEET && stream_up(&x->s))
            xfer_lost_early(x, UDT_E_PEERCLOSED);
    } else if (x->phase == XFER_DATA && !x->sender) {
        xfer_recv_pump(x); /* reads on to the end of what arrived */
    } else {
        xfer_hear(x);
        xfer_fail(x, UDT_E_PEERCLOSED, 0, 0, 0);
        xfer_drop(x, 0);
        xfer_try_end(x);
    }
}

static void on_lost(xfer *x, int err, int32_t remote)
{
    if (x->phase == XFER_MEET) {
        xfer_lost_early(x, err);
        return;
    }
    xfer_fail(x, err, 0, remote, 0);
    xfer_drop(x, 0);
    xfer_try_end(x);
}

static void on_readable(xfer *x)
{
    if (x->phase == XFER_MEET)
        read_open(x);
    else if (x->phase == XFER_DATA && !x->sender)
        xfer_recv_pump(x);
    else
        xfer_hear(x);
}

static void on_writable(xfer *x)
{
    bool empty = flush_out(x);
    if (x->phase == XFER_ENDING && empty) {
        xfer_drop(x, XFER_LINGER_MS);
        xfer_try_end(x);
    } else if (x->phase == XFER_DATA && x->sender && empty) {
        xfer_send_pump(x);
        xfer_note_progress(x);
    }
}

static void on_drained(xfer *x)
{
    if (stream_unacked(&x->s) > 0)
        return;
    if (x->phase == XFER_FIN && x->sender && !x->fin_at) {
        x->fin_at = io_port_now(x->port);
    } else if (x->phase == XFER_REPLY && x->out_len == 0) {
        x->phase = XFER_ENDING;
        xfer_drop(x, XFER_LINGER_MS);
        xfer_try_end(x);
    }
}

void xfer_happened(xfer *x, int kind, int err, int32_t remote)
{
    xfer_ref(x);
    switch (kind) {
    case UDT_EV_CONNECTED:
        if (!x->initiator || x->s.tls)
            on_connected(x);
        break;
    case UDT_EV_READABLE:
        on_readable(x);
        break;
    case UDT_EV_WRITABLE:
        on_writable(x);
        break;
    case UDT_EV_DRAINED:
        on_drained(x);
        break;
    case UDT_EV_PEER_CLOSED:
        on_peer_closed(x);
        break;
    case UDT_EV_FAILED:
        on_lost(x, err, remote);
        break;
    case UDT_EV_CLOSED:
        on_lost(x, UDT_E_CLOSED, 0);
        break;
    default:
        break;
    }
    xfer_unref(x);
}

static void on_event(io_port *p, void *arg, const struct udt_ev *ev)
{
    xfer *x = arg;
    (void)p;
    if (!x->s.tls && ev->sock == x->s.sock)
        xfer_happened(x, (int)ev->kind, ev->err, ev->err == UDT_E_REMOTE ? (int32_t)ev->value : 0);
}

static void on_deadline(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    if (x->phase == XFER_MEET)
        xfer_fail(x, UDT_E_TIMEOUT, 0, 0, 0);
}

/* Everything may lie in the engine's buffer long before it is acknowledged: while some of it is on
 * its way, a timer tells how far it is. */
static void watch_sender(xfer *x)
{
    xfer_note_progress(x);
    if (x->phase == XFER_DATA || stream_unacked(&x->s) > 0)
        io_timer_arm(x->port, &x->step, io_port_now(x->port) + XFER_PROGRESS_US);
}

static void on_step(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    xfer_ref(x);
    switch (x->phase) {
    case XFER_MEET:
        xfer_lost_early(x, UDT_E_TIMEOUT);
        break;
    case XFER_DATA:
    case XFER_FIN:
        if (x->sender) {
            watch_sender(x);
        } else {
            x->flush = true;
            xfer_recv_pump(x);
        }
        break;
    case XFER_REPLY:
        x->phase = XFER_ENDING;
        xfer_drop(x, XFER_LINGER_MS);
        xfer_try_end(x);
        break;
    case XFER_ENDING:
        xfer_drop(x, 0);
        xfer_try_end(x);
        break;
    default:
        break;
    }
    xfer_unref(x);
}

void xfer_begin(io_port *p, void *arg)
{
    xfer *x = arg;
    x->deadline.fn = on_deadline;
    x->step.fn = on_step;
    x->deadline.arg = x->step.arg = x;
    x->held = io_port_hold(p) == 0;
    if (!x->held) {
        xfer_fail(x, UDT_E_CLOSED, 0, 0, 0);
        return;
    }
    io_timer_arm(p, &x->deadline, io_port_now(p) + (udt_time)x->o.start_ms * 1000);
    if (!xfer_tls_begin(x))
        xfer_meet(x);
}

void xfer_port_closing(io_port *p)
{
    disk_pool *d = io_ctx_disk_made(io_port_ctx(p));
    xfer *x;
    while (d && (x = disk_xfer_find(d, p)))
        xfer_fail(x, UDT_E_CLOSED, 0, 0, 0);
}
