/* A byte stream over several TLS connections: frames out over whichever has room, frames in by
 * their offsets. */
#include "io/tls_priv.h"

#include "base/bytes.h"
#include "crypto/aead.h"

#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>

static void tell(stripe *s, int kind, int err)
{
    if (s->fn)
        s->fn(s->p, s->arg, kind, err);
}

static void fail(stripe *s, int err)
{
    if (s->err != 0 || !s->fn)
        return;
    s->err = err;
    tell(s, UDT_EV_FAILED, err);
}

/* From within a call of the user, who must not hear of it before the call returns. */
static void fail_soon(stripe *s, int err)
{
    if (s->err != 0)
        return;
    s->err = err;
    io_timer_arm(s->p, &s->drain, s->p->now);
}

/* ---- life ---- */

void stripe_psk(const udt_ticket *t, uint8_t psk[32])
{
    static const char info[] = "sector tls 1";
    hkdf_sha256(t->key, sizeof t->key, (const uint8_t *)info, sizeof info - 1, psk, 32);
}

size_t stripe_unacked(stripe *s)
{
    size_t sum = 0;
    for (unsigned i = 0; i < s->n; i++) {
        const tls_conn *c = s->conn[i];
        int queued = 0;
        if (!c || c->state != TLS_UP)
            continue;
        if (ioctl(c->fd, SIOCOUTQ, &queued) == 0)
            sum += (size_t)queued;
        sum += c->out_len - c->out_at;
    }
    return sum;
}

static bool slow_has_room(const stripe *s);

static void on_drain(io_port *p, void *arg)
{
    stripe *s = arg;
    if (s->err != 0) {
        tell(s, UDT_EV_FAILED, s->err);
        return;
    }
    bool look = s->look, drained = s->draining && stripe_unacked(s) == 0;
    s->look = false;
    if (s->draining && !drained)
        io_timer_arm(p, &s->drain, p->now + TLS_DRAIN_US);
    if (drained) {
        s->draining = false;
        tell(s, UDT_EV_DRAINED, 0);
    }
    if (s->want_write && slow_has_room(s)) {
        s->want_write = false;
        tell(s, UDT_EV_WRITABLE, 0);
    }
    if (look)
        tell(s, UDT_EV_READABLE, 0);
}

static void on_linger(io_port *p, void *arg)
{
    stripe *s = arg;
    (void)p;
    for (unsigned i = 0; i < s->n; i++)
        if (s->conn[i])
            tls_conn_end(s->conn[i], UDT_E_CLOSED);
    s->p->tls->sweep = true;
}

/* ---- silence ---- */

/* How often this end speaks: for the more impatient of both. */
static udt_time say_every(const stripe *s)
{
    int32_t ms = s->idle_ms;
    if (s->peer_idle_ms > 0 && s->peer_idle_ms < ms)
        ms = s->peer_idle_ms;
    ms /= TLS_SAY;
    return (udt_time)(ms > TLS_SAY_LEAST_MS ? ms : TLS_SAY_LEAST_MS) * 1000;
}

static void learn_idle(stripe *s, uint64_t ms)
{
    udt_time every = say_every(s);
    s->peer_idle_ms = ms < INT32_MAX ? (int32_t)ms : INT32_MAX;
    if (s->fn && say_every(s) < every)
        io_timer_arm(s->p, &s->alive, s->p->now + say_every(s));
}

/* An empty frame. Who still has something to send need not say more; a peer that will say nothing
 * any more would answer with a reset, and what is unread would be lost. */
static void say_alive(stripe *s, tls_conn *c)
{
    uint8_t head[TLS_HEAD_BYTES];
    if (!c->alive || c->hup || c->out_len > 0)
        return;
    be64_put(head, (uint64_t)s->idle_ms);
    be32_put(head + 8, 0);
    int rc = tls_conn_write(c, head, sizeof head, false);
    if (rc != 0)
        tls_conn_end(c, rc);
}

static void on_alive(io_port *p, void *arg)
{
    stripe *s = arg;
    udt_time every = say_every(s);
    for (unsigned i = 0; i < s->n && s->fn; i++) {
        tls_conn *c = s->conn[i];
        if (!c || c->state != TLS_UP || !c->alive)
            continue;
        if (tls_conn_silent(c, (udt_time)s->idle_ms * 1000))
            tls_conn_end(c, UDT_E_BROKEN);
        else if (p->now - c->said >= every)
            say_alive(s, c);
    }
    if (s->fn && s->err == 0)
        io_timer_arm(p, &s->alive, p->now + every);
}

static stripe *stripe_new(io_port *p, const udt_ticket *t, int32_t idle_ms, stripe_fn fn, void *arg)
{
    struct io_tls *tls = io_tls_get(p);
    stripe *s = tls ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return NULL;
    s->p = p;
    s->fn = fn;
    s->arg = arg;
    s->idle_ms = idle_ms;
    s->stats.at = p->now;
    memcpy(s->id, t->id, sizeof s->id);
    stripe_psk(t, s->psk);
    s->drain = (io_timer){.slot = -1, .fn = on_drain, .arg = s};
    s->linger = (io_timer){.slot = -1, .fn = on_linger, .arg = s};
    s->alive = (io_timer){.slot = -1, .fn = on_alive, .arg = s};
    s->next = tls->stripes;
    tls->stripes = s;
    return s;
}

stripe *stripe_connect(io_port *p, const udt_addr *to, const udt_ticket *t, unsigned n,
                       int32_t idle_ms, stripe_fn fn, void *arg)
{
    stripe *s = stripe_new(p, t, idle_ms, fn, arg);
    for (unsigned i = 0; s && i < n && i < STRIPE_MAX; i++)
        if (tls_conn_dial(p, to, s) != 0)
            break;
    if (s && s->n == 0) {
        stripe_close(s, 0);
        return NULL;
    }
    return s;
}

stripe *stripe_await(io_port *p, const udt_ticket *t, int32_t idle_ms, stripe_fn fn, void *arg)
{
    if (!p->tls || p->tls->listener < 0)
        return NULL;
    stripe *s = stripe_new(p, t, idle_ms, fn, arg);
    if (s)
        s->server = true;
    return s;
}

void stripe_close(stripe *s, uint32_t linger_ms)
{
    udt_time linger = (udt_time)linger_ms * 1000;
    s->fn = NULL;
    s->last_word = linger > 0;
    io_timer_stop(s->p, &s->drain);
    io_timer_stop(s->p, &s->alive);
    for (unsigned i = 0; i < s->n; i++) {
        tls_conn *c = s->conn[i];
        if (!c || c->state == TLS_DEAD)
            continue;
        if (c->state == TLS_UP && c->out_len > 0 && s->err == 0)
            continue; /* goes on when there is room */
        if (c->state == TLS_UP && s->err == 0)
            tls_conn_shut(c);
        else
            tls_conn_end(c, UDT_E_CLOSED);
    }
    s->p->tls->sweep = true;
    io_timer_arm(s->p, &s->linger, s->p->now + (linger > TLS_LINGER_US ? linger : TLS_LINGER_US));
}

bool stripe_over(const stripe *s)
{
    if (s->fn)
        return false;
    for (unsigned i = 0; i < s->n; i++)
        if (s->conn[i])
            return false;
    return true;
}

void stripe_free(stripe *s)
{
    io_timer_stop(s->p, &s->drain);
    io_timer_stop(s->p, &s->linger);
    io_timer_stop(s->p, &s->alive);
    for (tls_conn *c = s->p->tls->conns; c; c = c->next)
        if (c->s == s)
            c->s = NULL; /* in its handshake still; it will not come through */
    secure_wipe(s->psk, sizeof s->psk);
    free(s);
}

/* ---- connections come and go ---- */

void stripe_attach(stripe *s, tls_conn *c)
{
    if (c->server) {
        if (!s->fn || s->n == STRIPE_MAX) {
            c->s = NULL;
            tls_conn_end(c, UDT_E_LIMIT);
            return;
        }
        s->conn[s->n++] = c;
    }
    tls_conn_limits(c, s->idle_ms);
    say_alive(s, c); /* tells the peer how long this end waits */
    if (c->state != TLS_UP)
        return;
    if (s->alive.slot < 0)
        io_timer_arm(s->p, &s->alive, s->p->now + say_every(s));
    if (s->sends)
        io_tls_pace(s->p);
    if (!s->connected) {
        s->connected = true;
        s->since = s->p->now;
        tls_stats_begin(s);
        tell(s, UDT_EV_CONNECTED, 0);
    }
    if (c->state == TLS_UP && c->s == s)
        stripe_conn_ready(c, true);
}

void stripe_conn_ended(tls_conn *c)
{
    stripe *s = c->s;
    unsigned alive = 0;
    bool was_up = c->err == UDT_E_BROKEN || c->err == UDT_E_PROTO;
    for (unsigned i = 0; i < s->n; i++) {
        if (s->conn[i] == c)
            s->conn[i] = NULL;
        alive += s->conn[i] != NULL;
    }
    if (s->cur == c)
        s->cur = NULL;
    c->s = NULL;
    if (s->sends)
        io_tls_pace(s->p);
    if (!s->fn)
        s->p->tls->sweep = true;
    else if (was_up || alive == 0)
        fail(s, c->err);
}

void stripe_conn_ready(tls_conn *c, bool in)
{
    stripe *s = c->s;
    bool was_full = c->out_len > 0, empty = tls_conn_flush(c);
    if (c->state != TLS_UP)
        return;
    if (!s->fn) {
        if (empty)
            tls_conn_shut(c);
        return;
    }
    if (s->want_write && empty) {
        s->want_write = false;
        tell(s, UDT_EV_WRITABLE, 0);
    }
    if (in && s->err == 0)
        tell(s, UDT_EV_READABLE, 0);
    if (was_full && s->fn && !s->draining && s->err == 0) {
        s->draining = true;
        io_timer_arm(s->p, &s->drain, s->p->now + TLS_DRAIN_US);
    }
}

/* ---- out ---- */

/* What the kernel paces for longer than the time between two keep-alives would be silence for the
 * peer: it sends in pieces of up to two segments, 128 KiB where a segment is as large as on
 * loopback. So a slow connection gets small frames, and the next one when the last has left. */
static size_t frame_most(const stripe *s, const tls_conn *c)
{
    int64_t every_ms = say_every(s) / 1000;
    if (c->pace <= 0 || c->pace >= TLS_FRAME_BYTES * 1000ll / every_ms)
        return TLS_FRAME_BYTES;
    int64_t n = c->pace * every_ms / 1000;
    return n > TLS_FRAME_LEAST ? (size_t)n : TLS_FRAME_LEAST;
}

static bool has_room(const stripe *s, const tls_conn *c)
{
    int unsent = 0;
    if (!c || c->state != TLS_UP || c->out_len > 0)
        return false;
    return frame_most(s, c) == TLS_FRAME_BYTES || ioctl(c->fd, SIOCOUTQNSD, &unsent) != 0 ||
           unsent == 0;
}

static tls_conn *with_room(stripe *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        tls_conn *c = s->conn[(s->turn + i) % s->n];
        if (has_room(s, c)) {
            s->turn = (s->turn + i + 1) % s->n;
            return c;
        }
    }
    return NULL;
}

/* No event tells that the last frame of a slow connection has left. */
static bool slow_has_room(const stripe *s)
{
    for (unsigned i = 0; s->fn && i < s->n; i++)
        if (s->conn[i] && frame_most(s, s->conn[i]) < TLS_FRAME_BYTES && has_room(s, s->conn[i]))
            return true;
    return false;
}

ssize_t stripe_send(stripe *s, const uint8_t *b, size_t n)
{
    size_t done = 0;
    tls_conn *c;
    while (s->err == 0 && done < n && (c = with_room(s))) {
        uint8_t head[TLS_HEAD_BYTES];
        size_t most = frame_most(s, c), len = n - done < most ? n - done : most;
        be64_put(head, s->sent);
        be32_put(head + 8, (uint32_t)len);
        int rc = tls_conn_write(c, head, sizeof head, true);
        if (rc == 0)
            rc = tls_conn_write(c, b + done, len, false);
        if (rc != 0) {
            fail_soon(s, rc);
            break;
        }
        done += len;
        s->sent += len;
    }
    if (s->err != 0)
        return s->err;
    if (done < n)
        s->want_write = true;
    tls_stats_note(s);
    if ((done > 0 || s->want_write) && !s->draining) {
        s->draining = true;
        io_timer_arm(s->p, &s->drain, s->p->now + TLS_DRAIN_US);
    }
    return done > 0 ? (ssize_t)done : UDT_E_AGAIN;
}

/* ---- in ---- */

/* There may be something to read though no event tells of it. */
static void look_later(stripe *s)
{
    s->look = true;
    io_timer_arm(s->p, &s->drain, s->p->now + 4 * TLS_DRAIN_US);
}

/* The head of the next frame of c, behind those that only say that the peer is there. 0 = it is
 * there, AGAIN, PEERCLOSED, or what is wrong. */
static int read_head(stripe *s, tls_conn *c)
{
    unsigned empty = 0;
    while (c->left == 0) {
        if (c->eof)
            return UDT_E_PEERCLOSED;
        ssize_t n = tls_conn_read(c, c->head + c->head_n, TLS_HEAD_BYTES - c->head_n);
        if (n == 0) {
            c->eof = true;
            return c->head_n > 0 ? UDT_E_BROKEN : UDT_E_PEERCLOSED;
        }
        if (n < 0)
            return (int)n;
        c->head_n += (unsigned)n;
        if (c->head_n < TLS_HEAD_BYTES)
            continue;
        c->head_n = 0;
        c->at = be64_get(c->head);
        c->left = be32_get(c->head + 8);
        if (c->left == 0 && c->alive) {
            learn_idle(s, c->at);
            if (++empty < TLS_EMPTY_MOST)
                continue;
            look_later(s);
            return UDT_E_AGAIN;
        }
        if (c->left == 0 || c->left > TLS_FRAME_MOST || c->at < s->got ||
            c->at > (uint64_t)INT64_MAX)
            return UDT_E_PROTO;
    }
    return c->at < s->got ? UDT_E_PROTO : 0;
}

/* A frame may be on a connection that this end has not finished the handshake of, though the other
 * end has. */
static bool more_may_come(stripe *s)
{
    udt_time until = s->since + TLS_PROVE_US;
    if (!s->server || s->p->tls->half_open == 0 || s->p->now >= until)
        return false;
    look_later(s);
    return true;
}

/* Finds the connection whose next frame is the one that the stream goes on with. */
static int find_next(stripe *s)
{
    unsigned open = 0, waiting = 0;
    for (unsigned i = 0; i < s->n && !s->cur; i++) {
        tls_conn *c = s->conn[i];
        if (!c)
            continue;
        if (c->state != TLS_UP) {
            open++;
            continue;
        }
        int rc = read_head(s, c);
        if (rc == 0 && c->at == s->got)
            s->cur = c;
        else if (rc == 0)
            waiting++;
        else if (rc == UDT_E_AGAIN)
            open++;
        else if (rc != UDT_E_PEERCLOSED)
            return rc;
    }
    if (s->cur)
        return 0;
    if (open > 0 || more_may_come(s))
        return UDT_E_AGAIN;
    return waiting > 0 ? UDT_E_BROKEN : UDT_E_PEERCLOSED; /* a frame is missing, or all is over */
}

ssize_t stripe_recv(stripe *s, uint8_t *b, size_t cap)
{
    size_t done = 0;
    int rc = s->err;
    while (rc == 0 && done < cap) {
        rc = s->cur ? 0 : find_next(s);
        if (rc != 0)
            break;
        tls_conn *c = s->cur;
        size_t want = cap - done < c->left ? cap - done : c->left;
        ssize_t n = tls_conn_read(c, b + done, want);
        if (n <= 0) {
            rc = n == 0 ? UDT_E_BROKEN : (int)n;
            break;
        }
        done += (size_t)n;
        s->got += (size_t)n;
        c->at += (size_t)n;
        c->left -= (uint32_t)n;
        if (c->left == 0)
            s->cur = NULL;
    }
    if (rc != 0 && rc != UDT_E_AGAIN && rc != UDT_E_PEERCLOSED)
        fail_soon(s, rc);
    return done > 0 ? (ssize_t)done : rc;
}
