/* Own mode's scoreboard, at the sender of data: which packets are in flight, have arrived, are
 * lost. Work per EACK is in proportion to the packets it newly tells of (see udt/own.h, rules 1 to
 * 3). */
#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define EACK_WORDS 7
#define OUT_AHEAD 1024 /* packets for which room is made at once */
#define STARTUP_PKTS 16
#define CREDIT_MAX (1 << 24)
#define REORDER_PKTS_MAX 16384
#define REORDER_US_MAX 100000
#define ACKFREQ_PKTS_MIN 16
#define ACKFREQ_PKTS_MAX 512
#define ACKFREQ_US_MIN 300
#define ACKFREQ_US_MAX 25000
#define ACKFREQ_GAP_US                                                         \
    50000 /* between two wishes of a near peer: its round trip is mostly queue \
           */

/* ---- packets in flight, in the order of their numbers ---- */

static uint64_t pn_of(const udt_own *o, const snd_slot *s)
{
    return o->pn - (uint32_t)((uint32_t)o->pn - s->pn);
}

static void unlink_flying(udt_conn *c, int64_t idx, snd_slot *s)
{
    udt_own *o = &c->own;
    if (!(s->flags & SND_FLYING))
        return;
    int64_t prev = s->prev ? idx + s->prev : -1, after = s->after ? idx + s->after : -1;
    if (prev >= 0)
        udt_sndbuf_slot(&c->snd, prev)->after = (int32_t)(after >= 0 ? after - prev : 0);
    else
        o->flight_first = after;
    if (after >= 0)
        udt_sndbuf_slot(&c->snd, after)->prev = (int32_t)(prev >= 0 ? prev - after : 0);
    else
        o->flight_last = prev;
    s->prev = s->after = 0;
    s->flags &= (uint8_t)~SND_FLYING;
    o->flight--;
    udt__near_back(c, s);
}

static void link_flying(udt_conn *c, int64_t idx, snd_slot *s)
{
    udt_own *o = &c->own;
    s->prev = (int32_t)(o->flight_last >= 0 ? o->flight_last - idx : 0);
    s->after = 0;
    if (o->flight_last >= 0)
        udt_sndbuf_slot(&c->snd, o->flight_last)->after = (int32_t)(idx - o->flight_last);
    else
        o->flight_first = idx;
    o->flight_last = idx;
    s->flags |= SND_FLYING;
    o->flight++;
    udt__near_sent(c, s);
}

bool udt__own_may_send(udt_conn *c, int64_t idx)
{
    udt_own *o = &c->own;
    if (idx < o->out_end)
        return true;
    if (!lossmap_reserve(&o->out, c->snd.head, idx + OUT_AHEAD - 1))
        return false;
    o->out_end = idx + OUT_AHEAD;
    return true;
}

/* Packet `idx` goes out under number `pn`, new or again. */
void udt__own_sent(udt_conn *c, int64_t idx, snd_slot *s, uint64_t pn, udt_time now)
{
    udt_own *o = &c->own;
    if (s->ntx <= 1 || !lossmap_has(&o->out, idx))
        lossmap_add(&o->out, idx, idx);
    unlink_flying(c, idx, s);
    if (o->flight == 0) { /* rate samples start here */
        o->window_us = now;
        c->delivered_us = now;
    }
    link_flying(c, idx, s);
    s->pn = (uint32_t)pn;
    s->sent_us = now;
    s->first_us = o->window_us;
    s->delivered = c->delivered;
    s->delivered_us = c->delivered_us;
    s->in_flight = (uint32_t)o->flight;
    s->flags &= (uint8_t)~SND_APP_LIMITED;
    if (c->app_limited >= 0)
        s->flags |= SND_APP_LIMITED;
}

/* ---- what an EACK says ---- */

typedef struct news {
    uint64_t top;           /* highest number the peer has seen, 0 = unknown */
    int64_t pkts;           /* newly known to have arrived */
    int64_t undone;         /* of these, some had been thought lost */
    int64_t rtt_us;         /* clean sample, 0 = none */
    uint64_t best;          /* highest number among them */
    const snd_slot *sample; /* that packet; its slot is freed when all of the EACK was read */
    int64_t high;           /* highest index among them */
    int64_t late_us;        /* how much later something sent had arrived earlier */
    int64_t late_pkts;      /* the same in packets */
} news;

static void arrived(udt_conn *c, int64_t idx, news *w)
{
    udt_own *o = &c->own;
    snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
    uint64_t pn = pn_of(o, s);
    w->pkts++;
    if (udt__pmtu_is_full(s->len, c->snd.fill))
        c->pmtu.full_at = c->mux->now;
    if (idx > w->high)
        w->high = idx;
    bool first_came = w->top && pn > w->top; /* the peer cannot have seen the last transmission */
    if (s->flags & SND_FLYING) {
        unlink_flying(c, idx, s);
    } else if (s->ntx > 0 && lossmap_has(&c->loss.map, idx)) {
        udt_sndloss_del(&c->loss, idx); /* thought lost, and not yet sent again */
        first_came = true;
    }
    if (s->flags & SND_DROPPED)
        return;
    if (first_came && s->flags & SND_LOST) {
        w->undone++;
        o->n.spurious += s->ntx > 1;
        c->mux->own.spurious += s->ntx > 1;
    }
    if (first_came && s->ntx > 1)
        return; /* what is known of the last transmission says nothing of the one that came */
    if (s->ntx == 1 && pn < o->tx_top) {
        int64_t us = o->tx_top_at - s->sent_us, pkts = (int64_t)(o->tx_top - pn);
        w->late_us = us > w->late_us ? us : w->late_us;
        w->late_pkts = pkts > w->late_pkts ? pkts : w->late_pkts;
    }
    if (pn > w->best) {
        w->best = pn;
        w->sample = s;
    }
}

static void arrived_range(udt_conn *c, int64_t a, int64_t b, news *w)
{
    lossmap *out = &c->own.out;
    for (int64_t i = lossmap_next(out, a), end; i <= b; i = lossmap_next(out, end)) {
        end = lossmap_run_end(out, i);
        end = end <= b ? end : b + 1;
        for (int64_t k = i; k < end; k++)
            arrived(c, k, w);
        lossmap_del_run(out, i, end - 1);
    }
}

/* How far packets overtake each other on this path: grows at once, halves every 16 round trips in
 * which it was not needed. A packet that came though it was thought lost does not say how late it
 * was: twice as much is tried, once a round trip, for what was judged before that knew no better.
 */
static void learn_order(udt_conn *c, const news *w, bool dups, udt_time now)
{
    udt_own *o = &c->own;
    int64_t rto = udt__conn_rto(c), most_us = REORDER_US_MAX + 4 * rto;
    int64_t us = w->late_us + w->late_us / 4, pkts = w->late_pkts + w->late_pkts / 4 + 1;
    bool early = w->undone > 0 || dups;
    if (early && (!o->reo_grew || now - o->reo_grew >= c->rtt_us)) {
        int64_t more = 2 * o->reo_us > c->rtt_us / 8 ? 2 * o->reo_us : c->rtt_us / 8;
        if (w->undone == 0 && more > rto)
            more = rto;
        us = us > more ? us : more;
        pkts = pkts > 2 * o->reo_pkts ? pkts : 2 * o->reo_pkts;
        o->reo_grew = now;
    } else if (w->late_pkts == 0) {
        if (!early && o->reo_us + o->reo_pkts > OWN_REORDER_PKTS &&
            now - o->reo_at > 16 * c->rtt_us) {
            o->reo_at = now;
            o->reo_us /= 2;
            o->reo_pkts = o->reo_pkts / 2 > OWN_REORDER_PKTS ? o->reo_pkts / 2 : OWN_REORDER_PKTS;
        }
        return;
    }
    if (us * 2 >= o->reo_us || pkts * 2 >= o->reo_pkts)
        o->reo_at = now;
    o->reo_us = us > o->reo_us ? us : o->reo_us;
    o->reo_us = o->reo_us < most_us ? o->reo_us : most_us;
    o->reo_pkts = pkts > o->reo_pkts ? pkts : o->reo_pkts;
    o->reo_pkts = o->reo_pkts < REORDER_PKTS_MAX ? o->reo_pkts : REORDER_PKTS_MAX;
}

/* ---- losses ---- */

/* A packet is lost when nothing was heard of it for so long after it was sent. */
static int64_t loss_time(const udt_conn *c)
{
    int64_t rtt = c->rtt_us + c->rtt_us / 8;
    return rtt + c->own.reo_us + c->own.said_us + c->rtt_var_us + 1000;
}

static void report(udt_conn *c, udt_cc_loss *l)
{
    l->next = c->next;
    l->srtt_us = c->rtt_us;
    l->startup = l->first < STARTUP_PKTS && l->lost_pkts < STARTUP_PKTS;
    c->cc.ops->on_loss(&c->cc, l);
    c->st.pkts_lost += l->lost_pkts;
    UDT_TRACE_CC(c, l->now);
}

/* Everything in flight that was sent long enough before what has arrived, or long enough ago. */
static void find_lost(udt_conn *c, udt_time now)
{
    udt_own *o = &c->own;
    udt_cc_loss l = {.now = now, .first = LOSSMAP_NONE};
    int64_t wait = loss_time(c), idx;
    c->t_retx = UDT_NEVER;
    while ((idx = o->flight_first) >= 0) {
        snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
        uint64_t pn = pn_of(o, s);
        bool overtaken =
            pn + (uint64_t)o->reo_pkts <= o->tx_top && s->sent_us + o->reo_us <= o->tx_top_at;
        bool late = pn < o->tx_top && s->sent_us + wait <= now;
        if (!overtaken && !late) {
            if (pn < o->tx_top)
                udt__conn_timer(c, &c->t_retx, s->sent_us + wait);
            break;
        }
        if (!udt_sndloss_add(&c->loss, idx, idx)) {
            udt__conn_timer(c, &c->t_retx, now + SYN_US);
            break;
        }
        UDT_TRACE(c, UDT_TRACE_LOST, UDT_TRACE_LOST_FOUND, (uint64_t)idx, 1, now);
        unlink_flying(c, idx, s);
        s->flags |= SND_LOST;
        l.lost_pkts++;
        l.marked_pkts += s->delivered >= c->cc.mark;
        l.first = idx < l.first ? idx : l.first;
    }
    if (l.lost_pkts > 0) {
        report(c, &l);
        udt__conn_ready(c);
    }
}

void udt__own_loss_timer(udt_conn *c, udt_time now)
{
    find_lost(c, now);
}

/* Nothing was heard for whole timeouts: what is older than a round trip is presumed lost, at most
 * `most` packets, or as many as leave room in the window to try again. */
void udt__own_timeout(udt_conn *c, int64_t most, udt_time now)
{
    udt_own *o = &c->own;
    int64_t idx;
    while ((most-- > 0 || o->flight >= c->cc.cwnd_pkts) && (idx = o->flight_first) >= 0) {
        snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
        if (s->sent_us + c->rtt_us > now || !udt_sndloss_add(&c->loss, idx, idx))
            break;
        unlink_flying(c, idx, s);
    }
}

/* ---- EACK ---- */

static bool valid(const udt_conn *c, const udt_pkt *p, int64_t ack)
{
    if (ack < 0 || ack > c->next)
        return false;
    for (size_t i = 4 * EACK_WORDS; i + 8 <= p->len; i += 8) {
        int64_t a = seq_index(c->isn, c->snd.head, be32_get(p->body + i) & SEQ_MASK);
        int64_t b = seq_index(c->isn, c->snd.head, be32_get(p->body + i + 4) & SEQ_MASK);
        if (a < 0 || a > b || b >= c->next)
            return false;
    }
    return true;
}

static void note_credit(udt_conn *c, const udt_pkt *p, int64_t ack)
{
    uint32_t pkts = be32_get(p->body + 12);
    c->edge = ack + (pkts < 2 ? 2 : pkts < CREDIT_MAX ? pkts : CREDIT_MAX);
    uint64_t bytes = be64_get(p->body + 16);
    c->own.edge_bytes = bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
}

static void note_rtt(udt_conn *c, const udt_pkt *p, news *w, udt_time now)
{
    udt_own *o = &c->own;
    if (w->best > o->tx_top) {
        o->tx_top = w->best;
        o->tx_top_at = w->sample->sent_us;
    }
    if (!w->best || w->best != w->top)
        return;
    int64_t rtt = now - w->sample->sent_us, delay = be32_get(p->body + 8);
    if (delay < rtt)
        rtt -= delay; /* a delay longer than the whole trip is no delay */
    w->rtt_us = rtt > 0 ? rtt : 1;
    udt__conn_rtt(c, w->rtt_us);
    c->backoff = 0;
}

/* The delivery rate over the flight of the newest packet that has arrived: the slower of how fast
 * its window was sent and how fast it was acknowledged. */
static double rate_of(udt_conn *c, const news *w, udt_time now)
{
    const snd_slot *s = w->sample;
    int64_t sent = s->sent_us - s->first_us, acked = now - s->delivered_us;
    int64_t span = sent > acked ? sent : acked, pkts = c->delivered - s->delivered;
    c->own.window_us = s->sent_us;
    if (span <= 0 || (c->min_rtt_us && span < c->min_rtt_us))
        return 0;
    return (double)pkts * 1e6 / (double)span;
}

static bool alike(int64_t a, int64_t b)
{
    return a * 2 < b * 3 && a * 3 > b * 2;
}

/* Ask for EACKs as often as the window needs: 8 a window, and 8 a round trip; of turns one each. */
static void wish_acks(udt_conn *c, uint32_t heard, udt_time now)
{
    udt_own *o = &c->own;
    int64_t pkts = c->cc.cwnd_pkts / 8, us = c->rtt_us / 8, turn = udt__near_ack_pkts(c);
    pkts = pkts < ACKFREQ_PKTS_MIN ? ACKFREQ_PKTS_MIN : pkts;
    pkts = pkts < turn ? turn : pkts;
    pkts = pkts > ACKFREQ_PKTS_MAX ? ACKFREQ_PKTS_MAX : pkts;
    us = us < ACKFREQ_US_MIN ? ACKFREQ_US_MIN : us > ACKFREQ_US_MAX ? ACKFREQ_US_MAX : us;
    bool same = alike(pkts, o->said_pkts) && alike(us, o->said_us) &&
                (o->is_near || alike(c->rtt_us, o->said_rtt_us));
    int64_t gap = 2 * c->rtt_us;
    if (o->is_near && gap < ACKFREQ_GAP_US)
        gap = ACKFREQ_GAP_US;
    if ((same && heard == o->said_pkts) || (o->said_pkts && now - o->said_at < gap))
        return;
    o->said_pkts = (uint32_t)pkts;
    o->said_us = us;
    o->said_rtt_us = c->rtt_us;
    o->said_at = now;
    c->due |= DUE_ACKFREQ;
    udt__conn_ready(c);
}

size_t udt__own_emit_ackfreq(udt_conn *c, uint8_t *buf)
{
    const uint32_t words[2] = {(uint32_t)c->own.said_us, (uint32_t)c->own.said_rtt_us};
    return udt_pkt_put_ctrl(buf, OWN_ACKFREQ, c->own.said_pkts, c->peer_id, words, 2);
}

static void tell_cc(udt_conn *c, const news *w, int64_t flight, udt_time now)
{
    udt_cc_ack a = {.now = now,
                    .ack = c->high,
                    .next = c->next,
                    .acked_pkts = w->pkts,
                    .delivered = c->delivered,
                    .prior = w->best ? w->sample->delivered : -1,
                    .in_flight = flight,
                    .rtt_us = w->rtt_us,
                    .srtt_us = c->rtt_us,
                    .exact = true,
                    .window_pkts = c->edge - c->snd.head};
    if (w->best) {
        a.sent_in_flight = w->sample->in_flight;
        a.rate_pps = rate_of(c, w, now);
        a.app_limited = w->sample->flags & SND_APP_LIMITED;
    }
    if (w->undone) {
        c->st.pkts_lost -= w->undone < c->st.pkts_lost ? w->undone : c->st.pkts_lost;
        UDT_TRACE(c, UDT_TRACE_LOST, UDT_TRACE_LOST_NOT, UINT64_MAX, (uint64_t)w->undone, now);
    }
    if (w->undone && c->cc.ops->on_undo)
        c->cc.ops->on_undo(&c->cc, w->undone, now);
    c->cc.ops->on_ack(&c->cc, &a);
    UDT_TRACE_CC(c, now);
}

/* Everything before `ack` has arrived: its slots are free. */
static void advance(udt_conn *c, int64_t ack)
{
    udt_sndloss_acked(&c->loss, ack);
    lossmap_del_below(&c->own.out, ack);
    uint64_t had = c->snd.bytes;
    udt__conn_free_up_to(c, ack);
    c->own.sent_bytes -= (int64_t)(had - c->snd.bytes);
}

void udt__own_eack_input(udt_conn *c, const udt_pkt *p, uint64_t pn, udt_time now)
{
    udt_own *o = &c->own;
    if (p->len < 4 * EACK_WORDS || (p->len - 4 * EACK_WORDS) % 8 != 0 ||
        p->len > 4 * EACK_WORDS + 8 * OWN_RANGES) {
        c->mux->n.dropped_bad++;
        return;
    }
    int64_t ack = seq_index(c->isn, c->snd.head, be32_get(p->body) & SEQ_MASK);
    if (!valid(c, p, ack)) {
        c->mux->n.dropped_bad++;
        return;
    }
    c->st.acks_recv++;
    news w = {.high = -1};
    uint32_t behind = (uint32_t)o->pn - 1 - be32_get(p->body + 4), dups = be32_get(p->body + 24);
    if (behind < o->pn - 1)
        w.top = o->pn - 1 - behind;
    bool newest = pn > o->eack_pn;
    bool more_dups = newest && (int32_t)(dups - o->peer_dups - o->probed) > 0;
    int64_t flight = o->flight;
    arrived_range(c, c->snd.head, ack - 1, &w);
    for (size_t i = 4 * EACK_WORDS; i < p->len; i += 8)
        arrived_range(c, seq_index(c->isn, c->snd.head, be32_get(p->body + i) & SEQ_MASK),
                      seq_index(c->isn, c->snd.head, be32_get(p->body + i + 4) & SEQ_MASK), &w);
    if (newest) {
        o->eack_pn = pn;
        if (dups != o->peer_dups)
            o->probed = 0;
        o->peer_dups = dups;
        if (ack >= c->snd.head)
            note_credit(c, p, ack);
    }
    if (w.pkts > 0) {
        UDT_TRACE(c, UDT_TRACE_ACKED, 0, (uint64_t)ack, (uint64_t)w.pkts, now);
        learn_order(c, &w, more_dups && c->st.pkts_retrans > 0, now);
        c->delivered += w.pkts;
        c->delivered_us = now;
        c->high = w.high + 1 > c->high ? w.high + 1 : c->high;
        note_rtt(c, p, &w, now);
        if (c->app_limited >= 0 && c->delivered > c->app_limited)
            c->app_limited = -1;
        tell_cc(c, &w, flight, now);
        wish_acks(c, p->word1, now);
    }
    if (ack > c->snd.head)
        advance(c, ack);
    if (w.pkts > 0) {
        find_lost(c, now);
        udt__conn_restart_probe(c, now);
    }
    udt__conn_check_drained(c, now);
    if (udt__conn_live(c)) {
        if (udt__conn_can_send(c))
            udt__conn_ready(c);
        else
            udt__near_wait(c); /* it may have been granted more */
    }
}

/* A shutdown may be the first to say that our last packets have arrived: what acknowledged them was
 * lost, overtaken, or not said any more. */
void udt__own_shutdown_input(udt_conn *c, uint32_t word)
{
    int64_t ack = seq_index(c->isn, c->snd.head, word & SEQ_MASK);
    if (word == 0 || word & UDT_SHUTDOWN_CUT || ack <= c->snd.head || ack > c->next)
        return;
    advance(c, ack);
    if (c->snd.head < c->snd.tail)
        return;
    if (!c->drained && c->state == CONN_OPEN)
        udt__conn_event(c, UDT_EV_DRAINED);
    c->drained = true;
}
