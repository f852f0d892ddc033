/* Which way a transfer goes: UDP first; TLS connections where it does not get through. A responder
 * takes whichever comes first. On the loop thread. */
#include "io/file_priv.h"
#include "io/priv.h"

static void on_stripe(io_port *p, void *arg, int kind, int err);

/* ---- changing over ---- */

/* What was said over UDP so far counts no more. The connections carry one ticket's bytes only and
 * are sealed with its key, so records need not be sealed a second time. */
static bool use_tls(xfer *x)
{
    stripe *s = x->s.stripe;
    if (x->busy)
        return false; /* early data is being read */
    x->s.stripe = NULL;
    xfer_drop(x, 0);
    xfer_send_rewind(x);
    x->in_len = x->out_at = x->out_len = 0;
    x->peer_closed = false;
    x->s.stripe = s;
    x->s.tls = true;
    x->encrypt = x->ticket.encrypt = false;
    stripe_rate(s, x->o.max_bw_Bps, x->sender);
    io_timer_stop(x->port, &x->step);
    io_timer_stop(x->port, &x->fall);
    return true;
}

static bool may_fall(const xfer *x)
{
    return x->phase == XFER_MEET && x->initiator && x->o.tcp_stripes > 0 && !x->s.stripe &&
           !x->tls_failed;
}

/* Initiator: nobody takes TLS. The peer may still be on its way, so UDP gets the rest of the time.
 * But only another ticket helps where it listens and does not wait for this one: it has heard us
 * over UDP, and we do not hear it (REJECTED); or the ticket is over, which says nothing about UDP
 * (AUTH). And where neither of its ports is open it is not there (UNREACHABLE): ICMP alone, which
 * anybody may forge who guesses a port, ends nothing. */
static void no_tls(xfer *x, int err)
{
    bool over = err == UDT_E_AUTH, heard = err == UDT_E_REJECTED;
    stream_no_tls(&x->s);
    x->tls_waits = false;
    x->tls_failed = true;
    x->no_tcp = err == UDT_E_UNREACHABLE;
    if (over)
        x->why = UDT_PATH_WHY_NONE;
    if (over || heard || x->why == UDT_PATH_WHY_ASKED || (x->no_tcp && x->no_udp))
        xfer_fail(x, err, 0, 0, 0);
    else
        x->why = UDT_PATH_WHY_NONE;
}

static void fall_back(xfer *x, enum udt_path_why why)
{
    udt_addr to = x->to;
    if (!may_fall(x))
        return;
    if (x->o.tcp_port)
        to.port = x->o.tcp_port;
    x->why = why;
    if (!io_port_closing(x->port))
        x->s.stripe =
            stripe_connect(x->port, &to, &x->ticket, x->o.tcp_stripes, x->o.idle_ms, on_stripe, x);
    if (!x->s.stripe)
        no_tls(x, UDT_E_UNREACHABLE);
}

/* ---- events ---- */

static void on_stripe(io_port *p, void *arg, int kind, int err)
{
    xfer *x = arg;
    (void)p;
    if (!x->s.tls && x->phase != XFER_MEET)
        stream_no_tls(&x->s);
    else if (!x->s.tls && kind == UDT_EV_CONNECTED)
        x->tls_waits = !use_tls(x); /* who is there has the ticket's key */
    else if (!x->s.tls && kind == UDT_EV_FAILED && x->initiator)
        no_tls(x, err);
    if (x->s.tls)
        xfer_happened(x, kind, err, 0);
}

void xfer_tls_resume(xfer *x)
{
    x->tls_waits = false;
    if (x->phase == XFER_MEET && x->s.stripe && !x->s.tls && use_tls(x))
        xfer_happened(x, UDT_EV_CONNECTED, 0, 0);
}

static bool nothing_moved(xfer *x)
{
    if (x->sender)
        return xfer_send_bytes(x) == 0;
    return x->progress == 0 && !x->busy && !x->ready.head && !(x->cur && x->cur->len > 0);
}

/* How long data has been on its way in vain. A disk may take its time before the first of it, and
 * that says nothing of the way: a sender knows when it had some, and one that gets no answer probes
 * again and again, which its peer hears. */
static int64_t in_vain_us(xfer *x, udt_time now)
{
    if (x->sender)
        return x->given_at ? now - x->given_at : 0;
    uint32_t heard = udt_mux_probes_heard(io_port_mux(x->port), x->s.sock), new = heard - x->tries;
    x->tries = heard;
    return new >= XFER_TRIES ? XFER_STALL_US : 0;
}

static void look_for_stall(xfer *x)
{
    udt_time now = io_port_now(x->port);
    int64_t us = in_vain_us(x, now);
    if (us < XFER_STALL_US) {
        io_timer_arm(x->port, &x->fall, now + XFER_STALL_US - us);
        return;
    }
    x->why = UDT_PATH_WHY_STALLED;
    xfer_fail(x, UDT_E_BROKEN, 0, 0, UDT_E_BROKEN);
}

static void on_fall(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    if (x->phase == XFER_MEET)
        fall_back(x, UDT_PATH_WHY_SILENCE);
    else if (x->phase == XFER_DATA && !x->s.tls && nothing_moved(x))
        look_for_stall(x);
}

static bool meeting(const xfer *x, const void *arg)
{
    return may_fall(x) && addr_eq(&x->to, arg);
}

void xfer_prohibited(io_port *p, const udt_addr *to)
{
    disk_pool *d = io_ctx_disk_made(io_port_ctx(p));
    xfer *x;
    while (d && (x = disk_xfer_that(d, p, meeting, to)))
        fall_back(x, UDT_PATH_WHY_PROHIBITED);
}

static bool not_refused(const xfer *x, const void *arg)
{
    return x->phase == XFER_MEET && x->initiator && x->o.tcp_stripes > 0 && !x->no_udp &&
           !x->s.tls && addr_eq(&x->to, arg);
}

void xfer_refused(io_port *p, const udt_addr *to)
{
    disk_pool *d = io_ctx_disk_made(io_port_ctx(p));
    xfer *x;
    while (d && (x = disk_xfer_that(d, p, not_refused, to))) {
        x->no_udp = true;
        if (x->no_tcp)
            xfer_fail(x, UDT_E_UNREACHABLE, 0, 0, 0);
        else
            fall_back(x, UDT_PATH_WHY_REFUSED);
    }
}

/* ---- what file_conn.c asks ---- */

bool xfer_tls_begin(xfer *x)
{
    udt_time now = io_port_now(x->port);
    x->fall.fn = on_fall;
    x->fall.arg = x;
    if (!x->initiator)
        x->s.stripe = stripe_await(x->port, &x->ticket, x->o.idle_ms, on_stripe, x);
    if (!may_fall(x))
        return false;
    if (x->o.udp_wait_ms < 0) {
        fall_back(x, UDT_PATH_WHY_ASKED);
        return true;
    }
    io_timer_arm(x->port, &x->fall, now + (udt_time)x->o.udp_wait_ms * 1000);
    return false;
}

void xfer_tls_opened(xfer *x)
{
    stream_no_tls(&x->s);
    if (!x->s.tls && !x->initiator)
        io_tls_used(x->port, x->ticket.id);
    if (!x->s.tls)
        x->why = UDT_PATH_WHY_NONE;
    if (x->initiator && !x->s.tls && x->o.tcp_stripes > 0 && !x->tls_failed && x->o.length > 0)
        io_timer_arm(x->port, &x->fall, x->opened_at + XFER_STALL_US);
    else
        io_timer_stop(x->port, &x->fall);
}

void xfer_tls_end(xfer *x)
{
    io_timer_stop(x->port, &x->fall);
    stream_no_tls(&x->s);
}
