/* Everything a connection does because time has passed (spec 5, 11). */
#include "udt/conn.h"

#define PROBE_FIRST_US 20000   /* before any RTT is known (spec 2.2) */
#define PROBE_GUESS_US 1000000 /* at most, while the RTT is only guessed */
#define WAKES_MOST_US 200      /* of a timer's lateness counts so much; more is no habit */
#define PROBE_ROUNDS 2         /* probes before a timeout marks everything lost */
#define PROBES_UNKNOWN 6       /* while the RTT is not known: 1.3 s with the doubling */
#define EXP_MIN_US 300000
#define EXP_MAX_COUNT 16
#define ASKS_MIN 8 /* a live peer leaves all of them unanswered once in 1e7 times at 5 % loss */

void udt__conn_start_liveness(udt_conn *c, udt_time now)
{
    c->heard_at = c->sent_at = c->exp_from = now;
    c->exp_count = 1;
    c->asks = 0;
    if (!c->rtt_known) {
        c->rtt_us = RTT_INITIAL_US;
        c->rtt_var_us = RTT_INITIAL_US / 2;
    }
    udt__conn_timer(c, &c->t_exp, now + EXP_MIN_US);
}

uint32_t udt_mux_probes_heard(const udt_mux *m, int32_t sock)
{
    const udt_conn *c = udt__mux_find(m, sock);
    return c ? c->probes_heard : 0;
}

/* Time without an acknowledgement after which the tail is probed. */
static int64_t probe_wait(const udt_conn *c)
{
    if (c->delivered == 0 && c->probes == 0)
        return PROBE_FIRST_US; /* the first packets are the likeliest to be lost (spec 2.2) */
    int64_t base = c->rtt_known ? udt__conn_rto(c) + SYN_US : PROBE_FIRST_US;
    int shift = c->probes + c->backoff < 8 ? c->probes + c->backoff : 8;
    base = base < PROBE_FIRST_US ? PROBE_FIRST_US : base;
    if (c->guessed_at && base > PROBE_GUESS_US)
        base = PROBE_GUESS_US;
    int64_t most = 4 * base > 1000000 && !c->guessed_at ? 4 * base : 1000000;
    return base << shift < most ? base << shift : most;
}

void udt__conn_restart_probe(udt_conn *c, udt_time now)
{
    c->probes = 0;
    c->progress_at = now;
    udt__conn_timer(c, &c->t_probe, now + probe_wait(c));
}

/* The whole flight is presumed lost, except what went out within the last RTT. When even that was
 * not answered, only its head is tried again: the path may be gone. */
static void timeout(udt_conn *c, udt_time now)
{
    udt_time since = now - c->rtt_us;
    c->st.timeouts++;
    UDT_TRACE(c, UDT_TRACE_TIMER, UDT_TRACE_T_TIMEOUT, 0, 0, now);
    c->backoff++;
    int64_t end = c->next;
    if (c->probes > PROBE_ROUNDS + 1 && end - c->snd.head > PRESUMED_PKTS)
        end = c->snd.head + PRESUMED_PKTS;
    if (!c->own.on)
        udt__conn_presume_lost(c, c->snd.head, end, since);
    c->cc.ops->on_timeout(&c->cc, c->probes - PROBE_ROUNDS, now);
    if (c->own.on) /* by the window that it leaves */
        udt__own_timeout(c, end - c->snd.head, now);
    UDT_TRACE_CC(c, now);
}

/* The first packets were sent again unasked and have arrived, but the peer stops at the next hole:
 * its reports were lost, and libudt does not repeat them. */
static bool reports_lost(udt_conn *c, udt_time now)
{
    if (!c->head_tried || c->snd.head < c->head_tried)
        return false;
    int64_t end = c->snd.head + PRESUMED_PKTS < c->next ? c->snd.head + PRESUMED_PKTS : c->next;
    udt_cc_loss l = {
        .now = now, .first = c->snd.head, .next = c->next, .srtt_us = c->rtt_us, .startup = false};
    l.lost_pkts = udt__conn_presume_lost(c, c->snd.head, end, c->head_tried_at);
    c->head_tried = l.lost_pkts > 0 ? end : 0;
    if (l.lost_pkts > 0)
        udt__conn_lost(c, &l);
    return l.lost_pkts > 0;
}

static void probe_timer(udt_conn *c, udt_time now)
{
    if (c->next == c->snd.head || c->open.phase == OPEN_ASKING) {
        c->t_probe = UDT_NEVER; /* nothing in flight, or nobody is known to be there */
        return;
    }
    /* While packets keep going out or wait for pacing, nobody owes us an answer yet. Where the peer
     * cannot say what it has, only new ones count: the last may be sent again, time after time,
     * though it has arrived and the peer waits for another. */
    const snd_slot *s = udt_sndbuf_slot(&c->snd, c->next - 1);
    udt_time last = c->own.on ? s->sent_us : s->first_us;
    if (c->probes == 0 && last > c->progress_at)
        c->progress_at = last;
    udt_time due = c->progress_at + probe_wait(c);
    if (now < due) {
        c->t_probe = due;
        return;
    }
    if (reports_lost(c, now)) {
        udt__conn_restart_probe(c, now);
        return;
    }
    UDT_TRACE(c, UDT_TRACE_TIMER, UDT_TRACE_T_PROBE, 0, 0, now);
    c->probes++;
    c->silent = true;
    c->progress_at = now;
    udt__foreign_stalled(c);
    if (c->probes >= 2)
        udt__pmtu_suspect(c, c->snd.head, now);
    if (udt__pmtu_stuck(c, now)) {
        udt__conn_fail(c, UDT_E_BROKEN, now);
        return;
    }
    if (c->probes <= (c->rtt_known ? PROBE_ROUNDS : PROBES_UNKNOWN))
        c->due |= DUE_PROBE;
    else
        timeout(c, now);
    /* Data that is not sealed says nothing of a new address of ours: a word that is does. */
    if (c->own.sealed && !c->own.seal_data)
        c->due |= DUE_KEEPALIVE;
    udt__conn_ready(c);
    c->t_probe = now + probe_wait(c);
}

/* A retransmission was lost too: libudt reports each loss only once. */
static void retx_timer(udt_conn *c, udt_time now)
{
    int64_t period = (udt__conn_rto(c) + SYN_US) * (c->foreign ? 1 : 3);
    c->t_retx = UDT_NEVER;
    UDT_TRACE(c, UDT_TRACE_TIMER, UDT_TRACE_T_LOSS, 0, 0, now);
    if (c->own.on) {
        udt__own_loss_timer(c, now);
        return;
    }
    for (int64_t i = lossmap_next(&c->retx, c->snd.head); i != LOSSMAP_NONE;
         i = lossmap_next(&c->retx, i + 1))
        if (udt_sndbuf_slot(&c->snd, i)->sent_us + period <= now)
            udt__conn_mark_lost(c, i, i);
    if (c->retx.count)
        c->t_retx = now + period / 2 + 1;
}

static void nak_timer(udt_conn *c, udt_time now)
{
    if (c->missing.map.count == 0) {
        c->t_nak = UDT_NEVER;
        return;
    }
    c->repeat_from = udt_rcvloss_first(&c->missing, 0);
    c->repeat_to = c->nak_mark < c->nak_from ? c->nak_mark : c->nak_from;
    if (c->repeat_from < c->repeat_to) {
        c->due |= DUE_NAK_REPEAT;
        udt__conn_ready(c);
    }
    c->nak_mark = c->largest + 1;
    c->t_nak = now + udt__conn_rto(c) + SYN_US;
}

/* What a peer's silence means for what it sent and for what we did. */
static int silence(const udt_conn *c)
{
    if (!c->foreign || !c->drained || c->missing.map.count > 0 || c->cut)
        return UDT_E_BROKEN;
    return c->acked2 > c->largest ? UDT_E_VANISHED : UDT_E_UNCONFIRMED;
}

/* libudt answers an ACK with an ACK2 at once, whatever the ACK says, and nothing else: after
 * T/10 of its silence it is asked so, at growing gaps (decisions/0041). */
static udt_time ask_due(const udt_conn *c, int64_t idle, int64_t rto)
{
    if (c->asks == 0)
        return c->heard_at + (idle / 10 > 3 * rto ? idle / 10 : 3 * rto);
    int64_t gap = idle / 200 * (4 + c->asks);
    return c->asked_at + (gap > rto / 2 ? gap : rto / 2);
}

/* Keep-alives as libudt's (spec 5.3); gone after T (10 s) or 8 time-outs without an answer. */
static void exp_foreign(udt_conn *c, udt_time now)
{
    int64_t idle = (int64_t)c->opts.idle_timeout_ms * 1000, rto = udt__conn_rto(c);
    int64_t step = rto > EXP_MIN_US ? rto : EXP_MIN_US;
    udt_time gone = c->heard_at + (idle > 8 * rto ? idle : 8 * rto);
    if (now >= gone && c->asks >= ASKS_MIN) {
        udt__conn_fail(c, silence(c), now);
        return;
    }
    if (now >= ask_due(c, idle, rto)) {
        c->asks++;
        c->asked_at = now;
        c->ack_force = true;
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    }
    if (now >= c->exp_from + c->exp_count * step + SYN_US) {
        c->due |= DUE_KEEPALIVE;
        udt__conn_ready(c);
        c->exp_count += c->exp_count < EXP_MAX_COUNT;
        c->exp_from = now;
    }
    udt_time next = ask_due(c, idle, rto), keep = c->exp_from + c->exp_count * step + SYN_US;
    next = keep < next ? keep : next;
    c->t_exp = gone > now && gone < next ? gone : next;
}

/* Between our own ends (spec 11, decisions/0176), T the idle time-out (10 s). Silence says nothing
 * while nobody was asked: a peer is dead when it has said nothing for T and has left questions
 * unanswered for nearly T/2 (two time-outs, if those are more). It is asked from T/2 of its silence
 * on, every T/20. At rest one end asks and the other, whose own question is due a little later,
 * answers (in control_input of conn.c): one packet in T/2 from each. */
static void ask_own(udt_conn *c, udt_time now)
{
    if (c->asks == 0)
        c->asked_at = now;
    c->asks++;
    c->due |= DUE_KEEPALIVE;
    udt__conn_ready(c);
    c->sent_at = now;
}

/* Who has sent little may not know the round trip, but how long the last answer took. */
static int64_t answer_time(const udt_conn *c, int64_t most)
{
    int64_t t = c->answer_us < most ? c->answer_us : most, rto = udt__conn_rto(c);
    return t > rto ? t : rto;
}

static void exp_own(udt_conn *c, udt_time now)
{
    int64_t idle = (int64_t)c->opts.idle_timeout_ms * 1000;
    int64_t half = idle / 2 > 500 ? idle / 2 : 500, trip = answer_time(c, half / 2);
    int64_t later = trip + half / 10; /* the other end asks so much earlier */
    int64_t patience = half - later > 2 * trip ? half - later : 2 * trip;
    udt_time ask = c->heard_at + half;
    if (c->asks == 0 && c->own.on && c->drained)
        ask += c->id < c->peer_id ? 0 : later;
    else if (c->asks == 0 && c->sent_at + half < ask)
        ask = c->sent_at + half; /* the peer wants to hear from us, too */
    if (now < ask) {
        c->t_exp = ask;
        return;
    }
    udt_time dead = c->heard_at + idle;
    if (c->asks > 0 && c->asked_at + patience > dead)
        dead = c->asked_at + patience;
    if (c->asks > 0 && now >= dead) {
        udt__conn_fail(c, UDT_E_BROKEN, now);
        return;
    }
    ask_own(c, now);
    udt_time next = now + (half / 10 > trip ? half / 10 : trip);
    c->t_exp = c->asks > 1 && dead < next ? dead : next;
}

static void open_timers(udt_conn *c, udt_time now)
{
    if (c->open.phase == OPEN_ASKING && now >= c->t_connect) {
        udt__conn_fail(c, UDT_E_TIMEOUT, now);
        return;
    }
    if (now >= c->t_handshake) {
        c->t_handshake = UDT_NEVER;
        udt__conn_ready(c);
    }
    if (now >= c->t_pace) {
        udt_time late = now - c->t_pace;
        c->wakes_ns += ((late < WAKES_MOST_US ? late : WAKES_MOST_US) * 1000 - c->wakes_ns) / 16;
        c->t_pace = UDT_NEVER;
        udt__conn_ready(c);
    }
    if (now >= c->t_space) {
        c->t_space = UDT_NEVER;
        if (c->want_space && c->state == CONN_OPEN) {
            c->want_space = false;
            udt__conn_event(c, UDT_EV_WRITABLE);
        }
    }
    if (now >= c->t_ack) {
        c->t_ack = UDT_NEVER;
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    }
    if (now >= c->t_ack_repeat) {
        c->t_ack_repeat = UDT_NEVER;
        c->ack_force = true;
        c->ack_repeats++;
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    }
    if (now >= c->t_hole)
        udt__conn_hole_timer(c, now);
    if (now >= c->t_nak)
        nak_timer(c, now);
    if (now >= c->t_probe)
        probe_timer(c, now);
    if (now >= c->t_retx)
        retx_timer(c, now);
    if (now >= c->t_own) {
        c->t_own = UDT_NEVER;
        udt__own_tick(c, now);
    }
    if (now >= c->t_pmtu) {
        c->t_pmtu = UDT_NEVER;
        udt__pmtu_tick(c, now);
    }
    if (now >= c->t_exp) {
        if (c->foreign)
            exp_foreign(c, now);
        else
            exp_own(c, now);
    }
}

void udt__conn_tick(udt_conn *c, udt_time now)
{
    switch (c->state) {
    case CONN_CLIENT:
    case CONN_RENDEZVOUS:
        if (now >= c->t_handshake || now >= c->t_connect)
            udt__conn_handshake_timer(c, now);
        break;
    case CONN_LINGER:
        if (now >= c->t_linger) {
            c->lost = c->drained ? 0 : UDT_E_TIMEOUT;
            udt__conn_shut(c, now);
            break;
        }
        open_timers(c, now);
        break;
    case CONN_OPEN:
        open_timers(c, now);
        break;
    case CONN_SHUT:
        if (now >= c->t_shutdown) {
            c->t_shutdown = UDT_NEVER;
            udt__conn_say_shut(c);
        }
        break;
    default:
        break;
    }
    udt__conn_arm(c);
}
