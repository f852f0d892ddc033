/* A connection's life: creation of its parts, events, dispatch of packets, close. */
#include "udt/conn.h"

#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "base/rate.h"
#include "base/seq.h"

#define RTT_GUESS_MAX_US 1000000 /* first guess */
#define SHUTDOWNS 3
#define SHUTDOWNS_FOREIGN 5 /* libudt asks nobody: it would wait 46 s for a lost one */

void udt__conn_event(udt_conn *c, enum udt_event_kind kind)
{
    c->ev_mask = (uint16_t)(c->ev_mask | 1u << kind);
    if (!list_linked(&c->events))
        list_add_tail(&c->mux->events, &c->events);
}

void udt__conn_ready(udt_conn *c)
{
    if (!list_linked(&c->ready))
        list_add_tail(&c->mux->ready, &c->ready);
}

void udt__conn_timer(udt_conn *c, udt_time *field, udt_time at)
{
    *field = at;
    if (at < c->timer.at)
        timerq_set(&c->mux->timers, &c->timer, at);
}

void udt__conn_arm(udt_conn *c)
{
    const udt_time all[] = {c->t_handshake, c->t_connect, c->t_ack, c->t_ack_repeat, c->t_nak,
                            c->t_probe,     c->t_retx,    c->t_exp, c->t_pace,       c->t_linger,
                            c->t_shutdown,  c->t_space,   c->t_own, c->t_hole,       c->t_pmtu};
    udt_time first = UDT_NEVER;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        first = all[i] < first ? all[i] : first;
    if (first != c->timer.at)
        timerq_set(&c->mux->timers, &c->timer, first);
}

static void stop_timers(udt_conn *c)
{
    udt__near_leave(c);
    c->t_handshake = c->t_connect = c->t_ack = c->t_ack_repeat = c->t_nak = c->t_probe = c->t_retx =
        c->t_exp = c->t_pace = c->t_linger = c->t_shutdown = c->t_space = c->t_hole = c->t_own =
            c->t_pmtu = UDT_NEVER;
    udt__conn_arm(c);
}

bool udt__conn_open(udt_conn *c, uint32_t peer_isn, uint32_t peer_window, uint32_t mss,
                    udt_time now)
{
    udt_mux *m = c->mux;
    c->peer_isn = peer_isn & SEQ_MASK;
    c->mss = mss;
    c->payload = mss - UDT_OVERHEAD - udt__own_data_tag(&c->own);
    c->own_payload -= udt__own_data_tag(&c->own);
    bool messages = c->opts.type == UDT_DGRAM;
    if (!udt_sndbuf_init(&c->snd, &m->mem, c->payload, c->opts.snd_buf_bytes) ||
        !udt_rcvbuf_init(&c->rcv, &m->mem, c->own_payload, udt__conn_own_window(c), messages)) {
        udt__conn_free_buffers(c);
        return false;
    }
    const udt_cc_params p = {mss, udt__rand32(m), c->opts.max_bw_Bps};
    c->cc.ops = udt_cc_find(c->opts.cc, c->foreign || !c->own.on);
    c->cc.ops->init(&c->cc, &p);
    udt_window_init(&c->window, now);
    c->edge = peer_window < 2 ? 2 : peer_window < 1u << 24 ? peer_window : 1 << 24;
    c->peer_slots = c->edge - 1;
    udt__foreign_open(c, peer_window);
    c->largest = -1;
    c->said_window = c->rcv.slots;
    c->st.lim_handshake_us = now - c->opened_at;
    c->opened_at = c->limit_at = c->progress_at = c->delivered_us = c->epoch_at = now;
    c->last_full_at = c->last_24_at = now - 10 * SYN_US;
    c->app_limited = -1;
    c->mix = 1;
    c->drained = true;
    c->state = CONN_OPEN;
    c->t_handshake = c->t_connect = UDT_NEVER;
    for (int i = 0; i < METERS; i++)
        c->meter[i].at = now;
    UDT_TRACE(c, UDT_TRACE_STATE, 1, 0, 0, now);
    UDT_TRACE_CC(c, now);
    udt__conn_start_liveness(c, now);
    udt__pmtu_open(c, now);
    udt__conn_ready(c);
    return true;
}

void udt__conn_free_buffers(udt_conn *c)
{
    if (c->snd.mem)
        udt_sndbuf_fini(&c->snd);
    if (c->rcv.mem)
        udt_rcvbuf_fini(&c->rcv);
    udt_sndloss_fini(&c->loss);
    lossmap_fini(&c->retx);
    udt_rcvloss_fini(&c->missing);
    udt_window_fini(&c->window);
    lossmap_fini(&c->own.out);
}

/* Rates since the oldest meter, which is about a second old if somebody asks often enough. */
static void rates(udt_conn *c, udt_stats *out)
{
    udt_time now = c->mux->now;
    const size_t last = METERS - 1;
    if (now - c->meter[last].at >= METER_US) {
        memmove(c->meter, c->meter + 1, last * sizeof c->meter[0]);
        c->meter[last].at = now;
        c->meter[last].sent = c->st.bytes_sent;
        c->meter[last].recv = c->st.bytes_recv;
    }
    int64_t span = now - c->meter[0].at;
    if (span <= 0)
        return;
    out->send_Bps = rate_per_s(c->st.bytes_sent - c->meter[0].sent, span);
    out->recv_Bps = rate_per_s(c->st.bytes_recv - c->meter[0].recv, span);
}

static void limits(const udt_conn *c, udt_stats *out)
{
    int64_t span = c->mux->now - c->limit_at;
    out->limit = c->limit;
    if (!udt__conn_live(c))
        return;
    int64_t *field = udt__limit_field(out, c->limit);
    *field += span;
}

static void path(const udt_conn *c, udt_stats *out)
{
    int64_t sent = c->st.pkts_sent + c->st.pkts_retrans, rate = udt__conn_pace_Bps(c);
    out->pacing_Bps = rate;
    if (rate == 0 || (out->send_Bps > 0 && out->send_Bps < rate))
        rate = out->send_Bps;
    out->loss_ppm = sent > 0 ? c->st.pkts_lost * 1000000 / sent : 0;
    out->in_flight_bytes = udt__conn_flight(c) * (int64_t)c->snd.fill;
    int64_t queued = c->rtt_known ? (c->rtt_us - c->min_rtt_us) * rate / 1000000 : 0;
    out->queue_bytes = queued < out->in_flight_bytes ? queued : out->in_flight_bytes;
    out->snd_buf_bytes = (int64_t)c->snd.max_bytes;
    out->rcv_buf_bytes = c->rcv.slots * (int64_t)c->own_payload;
}

void udt__conn_stats(udt_conn *c, udt_stats *out)
{
    *out = c->st;
    if (c->state == CONN_SHUT)
        return; /* complete since udt__conn_shut */
    out->at_us = c->mux->now;
    out->rtt_us = c->rtt_us;
    out->rtt_var_us = c->rtt_var_us;
    out->min_rtt_us = c->min_rtt_us;
    out->cwnd_pkts = c->cc.cwnd_pkts;
    out->flow_wnd_pkts = c->edge - c->snd.head;
    out->in_flight_pkts = c->next - c->snd.head;
    out->snd_queue_bytes = (int64_t)c->snd.bytes;
    out->rcv_queue_bytes = (int64_t)c->rcv.bytes;
    out->period_ns = c->cc.period_ns;
    out->recv_rate_pps = c->peer_rate_pps;
    out->capacity_pps = c->peer_capacity_pps;
    rates(c, out);
    if (c->payload) /* it has been open */
        path(c, out);
    limits(c, out);
}

static void set_key_free(udt_conn *c)
{
    table_del(c->server_side ? &c->mux->peers : &c->mux->rdv, &c->by_key);
}

void udt__conn_fail(udt_conn *c, int err, udt_time now)
{
    if (c->state == CONN_FAILED || c->state == CONN_SHUT)
        return;
    bool closing = c->state == CONN_LINGER;
    c->error = err;
    c->due = 0;
    UDT_TRACE(c, UDT_TRACE_STATE, 3, (uint64_t)(int64_t)err, 0, now);
    set_key_free(c);
    stop_timers(c);
    if (closing) {
        c->lost = c->drained ? 0 : err;
        udt__conn_shut(c, now);
        return;
    }
    c->state = CONN_FAILED;
    udt__conn_event(c, UDT_EV_FAILED);
}

void udt__conn_peer_closed(udt_conn *c, udt_time now)
{
    bool closing = c->state == CONN_LINGER;
    c->due = 0;
    set_key_free(c);
    stop_timers(c);
    c->state = CONN_PEERCLOSED;
    UDT_TRACE(c, UDT_TRACE_STATE, 2, 0, 0, now);
    udt__conn_set_limit(c, UDT_LIM_NONE, now);
    if (closing) {
        c->lost = c->drained ? 0 : UDT_E_PEERCLOSED;
        udt__conn_shut(c, now);
        return;
    }
    udt__conn_event(c, UDT_EV_PEER_CLOSED);
}

void udt__conn_fetched(udt_conn *c)
{
    udt_conn *l = c->mux->listener;
    if (c->listener && l && l->id == c->listener && l->unaccepted > 0)
        l->unaccepted--;
    c->listener = 0;
}

/* A foreign client that has not heard that it is connected would not know what was shut. */
void udt__conn_say_shut(udt_conn *c)
{
    c->due = DUE_SHUTDOWN | (c->unmet ? DUE_HANDSHAKE : 0);
    udt__conn_ready(c);
}

void udt__conn_shut(udt_conn *c, udt_time now)
{
    udt_mux *m = c->mux;
    bool tell = udt__conn_live(c) && !c->mute;
    udt_stats last;
    udt__conn_stats(c, &last);
    last.bytes_unread += (int64_t)c->rcv.bytes;
    c->st = last; /* before the buffers go */
    c->limit = UDT_LIM_NONE;
    UDT_TRACE(c, UDT_TRACE_STATE, 4, 0, 0, now);
    udt__conn_fetched(c);
    if (c->own.on && (c->gave_up || c->snd.bytes > 0))
        c->last_word = UDT_SHUTDOWN_CUT | seq_add(c->isn, c->snd.tail + (c->gave_up ? 1 : 0));
    else if (c->own.on && c->rcv.mem && c->rcv.bytes == 0)
        c->last_word = seq_add(c->peer_isn, udt_rcvloss_first(&c->missing, c->largest + 1));
    set_key_free(c);
    stop_timers(c);
    if (c->peer_id && !c->mute)
        udt__tombstone_add(m, c, now);
    table_del(&m->ids, &c->by_id);
    if (m->listener == c)
        m->listener = NULL;
    list_remove(&c->touched);
    udt__conn_free_buffers(c);
    c->state = CONN_SHUT;
    c->due = 0;
    c->ev_mask = 0;
    list_remove(&c->events);
    /* Who hears of the end may take the port away. So a foreign peer is told all times first; our
     * own finds out by itself. */
    if (!tell || !c->foreign)
        udt__conn_event(c, UDT_EV_CLOSED);
    if (!tell)
        return;
    c->shutdowns_left = c->foreign ? SHUTDOWNS_FOREIGN : SHUTDOWNS;
    udt__conn_say_shut(c);
}

void udt__conn_close(udt_conn *c, uint32_t linger_ms, udt_time now)
{
    if (c->unread)
        c->reader_at = now; /* from now on its time counts */
    if (c->state == CONN_PEERCLOSED && !c->drained)
        c->lost = UDT_E_PEERCLOSED;
    if (c->state == CONN_OPEN && linger_ms > 0 && !udt__conn_delivered(c, now)) {
        c->state = CONN_LINGER;
        c->ev_mask = 0; /* nobody listens any more, but for CLOSED */
        list_remove(&c->events);
        c->linger_end = now + (int64_t)linger_ms * 1000;
        udt__conn_timer(c, &c->t_linger, c->linger_end);
        udt__conn_try_shut(c, now);
        return;
    }
    udt__conn_shut(c, now);
}

void udt__conn_rtt(udt_conn *c, int64_t rtt)
{
    rtt = rtt < 1 ? 1 : rtt > 30000000 ? 30000000 : rtt;
    if (!c->min_rtt_us || rtt < c->min_rtt_us || c->guessed_at)
        c->min_rtt_us = rtt;
    if (c->own.on)
        udt__near_rtt(c, rtt);
    if (!c->rtt_known || c->guessed_at) {
        c->rtt_known = true;
        c->guessed_at = 0;
        c->rtt_us = rtt;
        c->rtt_var_us = rtt / 2;
        return;
    }
    int64_t diff = rtt > c->rtt_us ? rtt - c->rtt_us : c->rtt_us - rtt;
    c->rtt_var_us = (3 * c->rtt_var_us + diff) / 4;
    c->rtt_us = (7 * c->rtt_us + rtt) / 8;
    if (__builtin_expect(c->trace != NULL, 0))
        udt__trace_rtt(c, rtt);
}

/* Too short a guess repeats a few packets in vain; with too long a one the connection stands still
 * after an outage that has swallowed its first packets. So not since the first transmission, which
 * is the time of the outage, but since the last, and twice as much as before if the answer comes
 * too soon after a repeat to belong to it. */
void udt__conn_guess_rtt(udt_conn *c, int64_t first_us, int64_t last_us, udt_time now)
{
    int64_t guess = last_us > RTT_INITIAL_US ? last_us : RTT_INITIAL_US;
    guess = guess < RTT_GUESS_MAX_US ? guess : RTT_GUESS_MAX_US;
    if (c->guessed_at) {
        if (last_us > c->rtt_us / 2 || now - c->guessed_at < c->rtt_us)
            return;
        guess = 2 * c->rtt_us;
    }
    guess = guess < first_us ? guess : first_us;
    if (c->guessed_at && guess <= c->rtt_us)
        return;
    c->rtt_known = false;
    udt__conn_rtt(c, guess);
    c->guessed_at = now;
}

/* What is said in another way between own ends. */
static bool foreign_only(uint16_t type)
{
    return type == UDT_CTRL_ACK || type == UDT_CTRL_NAK || type == UDT_CTRL_ACK2;
}

static void own_control(udt_conn *c, const udt_addr *from, const udt_pkt *p, uint64_t pn,
                        udt_time now)
{
    if (p->type == OWN_EACK)
        udt__own_eack_input(c, p, pn, now);
    else if (p->type == OWN_ACKFREQ)
        udt__own_ackfreq_input(c, p);
    else
        udt__own_control(c, from, p, pn, now);
}

/* Between our own peers a keep-alive asks for a sign of life, which what we have sent within a one
 * way trip will be, too. One of an older peer may itself be an answer: it must not go to and fro.
 */
static int64_t answer_gap(const udt_conn *c, uint32_t word1)
{
    int64_t half = udt__conn_rto(c) / 2;
    if (word1 == UDT_KEEPALIVE_SAYS)
        return UDT_NEVER;
    if (word1 != UDT_KEEPALIVE_ASKS)
        return 1000000;
    return half < 10000 ? 10000 : half < 250000 ? half : 250000;
}

/* Whether all is here that came before the number in a shutdown. */
static bool has_all(udt_conn *c, uint32_t word)
{
    int64_t have = udt_rcvloss_first(&c->missing, c->largest + 1);
    return seq_add(c->peer_isn, have) == (word & SEQ_MASK);
}

static void control_input(udt_conn *c, const udt_addr *from, const udt_pkt *p, uint64_t pn,
                          udt_time now)
{
    if (c->own.on && foreign_only(p->type))
        return;
    switch (p->type) {
    case UDT_CTRL_KEEPALIVE:
        c->probes_heard += c->own.on && p->word1 != UDT_KEEPALIVE_ASKS;
        if (!c->foreign && now - c->sent_at >= answer_gap(c, p->word1)) {
            c->due |= DUE_KEEPALIVE;
            udt__conn_ready(c);
        }
        break;
    case UDT_CTRL_ACK:
        udt__conn_ack_input(c, p, now);
        break;
    case UDT_CTRL_NAK:
        udt__conn_nak_input(c, p, now);
        break;
    case UDT_CTRL_WARNING:
        c->cc.ops->on_warning(&c->cc);
        break;
    case UDT_CTRL_SHUTDOWN:
        c->short_end = c->own.on && p->word1 & UDT_SHUTDOWN_CUT && !has_all(c, p->word1);
        if (c->own.on)
            udt__own_shutdown_input(c, p->word1);
        udt__conn_peer_closed(c, now);
        break;
    case UDT_CTRL_ACK2:
        udt__conn_ack2_input(c, p, now);
        break;
    case UDT_CTRL_DROP:
        udt__conn_drop_input(c, p, now);
        break;
    case UDT_CTRL_ERROR:
        udt__conn_fail(c, UDT_E_REMOTE, now);
        break;
    default: /* unknown and user-defined types: a sign of life, nothing else */
        if (c->own.on)
            own_control(c, from, p, pn, now);
        break;
    }
}

/* Something came for a connection that has failed: the peer may learn of it. */
static void answer_late(udt_conn *c, const udt_addr *from, const udt_pkt *p, udt_time now)
{
    if (c->state != CONN_FAILED || !c->peer_id || p->type == UDT_CTRL_SHUTDOWN || p->len < 4 ||
        now < c->shut_reply_at)
        return;
    c->shut_reply_at = now + TOMBSTONE_REPLY_US;
    if (c->own.on) {
        uint8_t buf[UDT_CTRL_MAX];
        size_t n = udt__own_farewell(c, buf);
        if (n)
            udt__reply(c->mux, from, buf, n);
    } else {
        udt__reply_shutdown(c->mux, from, c->peer_id);
    }
}

static void heard(udt_conn *c, udt_time now)
{
    c->heard_at = c->exp_from = now;
    c->exp_count = 1;
    if (c->asks) {
        c->answer_us = now - c->asked_at;
        c->asks = 0;
    }
    if (c->unmet)
        udt__foreign_met(c);
    if (!list_linked(&c->touched))
        list_add_tail(&c->mux->touched, &c->touched);
}

/* A packet of a connection in own mode: nothing happens before it has proved genuine. */
static void own_input(udt_conn *c, const udt_addr *from, const udt_pkt *wire, udt_time now)
{
    udt_pkt p = *wire;
    uint64_t pn, top = c->own.rx_top > c->own.rx_data ? c->own.rx_top : c->own.rx_data;
    bool moved = !addr_eq(from, &c->peer);
    if (moved &&
        !(c->own.features & OWN_F_MIGRATE && (p.control ? c->own.sealed : c->own.seal_data))) {
        c->mux->n.dropped_unknown++;
        return;
    }
    if (!udt__own_open(c, &p, wire->body - UDT_HDR_BYTES, &pn)) {
        refused_note(&c->mux->refused, from, c->mux->why, now);
        return;
    }
    if (!udt__conn_live(c)) {
        answer_late(c, from, &p, now);
        return;
    }
    if (moved)
        udt__own_moved(c, from, pn > top, UDT_HDR_BYTES + wire->len, now);
    heard(c, now);
    if (p.control) {
        control_input(c, from, &p, pn, now);
        return;
    }
    udt__own_data_seen(c, pn, now);
    udt__conn_data_input(c, &p, now);
}

void udt__conn_input(udt_conn *c, const udt_addr *from, const udt_pkt *p, udt_time now)
{
    udt_hs h;
    bool handshake = p->control && p->type == UDT_CTRL_HANDSHAKE;
    if (c->own.on && !handshake && c->state >= CONN_OPEN) {
        own_input(c, from, p, now);
        return;
    }
    /* A rendezvous by tag learns the address from the first handshake; all else must match. */
    bool learn = handshake && c->state == CONN_RENDEZVOUS && c->opts.tag;
    if (!learn && !addr_eq(from, &c->peer)) {
        c->mux->n.dropped_unknown++;
        return;
    }
    if (handshake) {
        if (udt_hs_decode(&h, p->body, p->len))
            udt__conn_handshake_input(c, from, &h, p->dst, now);
        else
            c->mux->n.dropped_bad++;
        if (!udt__conn_live(c))
            return;
    } else if (c->state == CONN_RENDEZVOUS && c->hs_stored &&
               (!p->control || p->type == UDT_CTRL_KEEPALIVE)) {
        /* The peer is connected already: its agreement was lost (spec 2.3). */
        udt_hs stored = {.version = UDT_HS_VERSION,
                         .type = c->opts.type,
                         .req = UDT_HS_AGREEMENT,
                         .isn = c->peer_isn,
                         .mss = c->mss,
                         .window = c->hs_peer_window,
                         .id = c->peer_id,
                         .cookie = c->opts.tag};
        c->hs_req = UDT_HS_RESPONSE;
        udt__conn_handshake_input(c, from, &stored, p->dst, now);
        if (c->own.on && c->state >= CONN_OPEN) { /* own mode has begun: it must prove itself */
            own_input(c, from, p, now);
            return;
        }
    }
    if (!udt__conn_live(c)) {
        answer_late(c, from, p, now);
        return;
    }
    if (handshake && c->own.sealed)
        return; /* no handshake is authentic: not even a sign of life */
    heard(c, now);
    if (handshake)
        return;
    if (p->control)
        control_input(c, from, p, 0, now);
    else
        udt__conn_data_input(c, p, now);
}
