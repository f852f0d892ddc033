/* The sender's side of acknowledgements and loss reports (spec 4.2, 4.4). Out-of-range ones are
 * counted and dropped, never believed. */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define STARTUP_PKTS 16
#define MIX_MAX 1.25
#define READER_IDLE_US 5000000
#define WITHHELD_US 1000000
#define READER_RETURN_US 20000 /* a thread that lost its processor at the wrong instruction */

/* Acknowledgements come in lumps of up to 64 packets or 1 ms: a rate needs more than that. */
static bool span_says(const udt_conn *c, int64_t pkts, int64_t span_us)
{
    return span_us > 0 && span_us >= c->rtt_us / 2 &&
           (pkts >= 4 * LIGHT_ACK_PKTS || span_us >= 2000);
}

static void epoch_begin(udt_conn *c, udt_time now)
{
    c->epoch_at = now;
    c->epoch_delivered = c->delivered;
    c->epoch_app_limited = false;
    c->epoch_sent = c->st.pkts_sent;
    c->epoch_again = c->st.pkts_retrans;
}

/* Where a round trip is too short to say anything, count over several. The arrival of packets sent
 * again shows too late (when the hole before them is filled), so only first transmissions are
 * counted, and scaled by `mix` = all packets sent / new ones. */
static void epoch_sample(udt_conn *c, udt_cc_ack *a)
{
    int64_t pkts = c->delivered - c->epoch_delivered, span = a->now - c->epoch_at;
    c->epoch_app_limited |= c->app_limited >= 0;
    if (!span_says(c, pkts, span))
        return;
    int64_t sent = c->st.pkts_sent - c->epoch_sent, again = c->st.pkts_retrans - c->epoch_again;
    c->repairing = again > sent / 2; /* too few new ones to tell */
    double mix = sent > 0 ? (double)(sent + again) / (double)sent : MIX_MAX;
    mix = mix < MIX_MAX ? mix : MIX_MAX;
    c->mix += (mix - c->mix) / 4;
    double rate = (mix < c->mix ? mix : c->mix) * (double)pkts * 1e6 / (double)span;
    if (a->rate_pps == 0 && c->rtt_us < 2000) {
        a->rate_pps = rate;
        a->app_limited = c->epoch_app_limited;
    }
    epoch_begin(c, a->now);
}

/* The peer has news: it has seen packet `newest`, so all before it has arrived or is known to be
 * missing (a loss report says what is). Feeds RTT, delivery rate and congestion control, which so
 * do not stall with the cumulative acknowledgement behind a hole. `waited`: how long after that
 * packet came the news were sent; an unknown time leaves no RTT sample. `repaired`: so many of
 * those sent again have arrived. */
static void news(udt_conn *c, int64_t newest, int64_t waited, int64_t repaired, udt_time now)
{
    udt_cc_ack a = {
        .now = now, .next = c->next, .in_flight = c->next - c->high, .repaired_pkts = repaired};
    /* A silence long enough to ask: an outage, and its time says nothing of the path's rate.
     * (Probes are counted anew when packets become smaller in it; the silence goes on.) */
    if (c->silent) {
        c->silent = false;
        c->resumed_at = now;
        c->resuming = c->repairing = a.resumed = true;
        epoch_begin(c, now);
    }
    bool ahead = newest >= c->high;
    const snd_slot *s = udt_sndbuf_slot(&c->snd, newest);
    if (udt__pmtu_is_full(s->len, c->snd.fill))
        c->pmtu.full_at = now;
    if (ahead)
        c->high = newest + 1;
    int64_t arrived = c->high - c->lost_first;
    if (arrived > c->delivered) {
        a.acked_pkts = arrived - c->delivered;
        c->delivered = arrived;
        c->delivered_us = now;
        c->resuming = false;
    } else if (repaired > 0 && c->resuming) {
        c->delivered_us = now; /* until now the path has carried what was sent again */
    }
    if (ahead && s->ntx == 1) {
        int64_t span = now - s->delivered_us;
        int64_t rtt = now - waited - s->sent_us;
        if (rtt > 0 || waited == 0) {
            a.rtt_us = rtt > 0 ? rtt : 1;
            udt__conn_rtt(c, a.rtt_us);
            c->backoff = 0;
        }
        if (s->delivered_us >= c->resumed_at && span_says(c, c->delivered - s->delivered, span)) {
            a.rate_pps = c->mix * (double)(c->delivered - s->delivered) * 1e6 / (double)span;
            a.app_limited = s->flags & SND_APP_LIMITED;
        }
    }
    udt__foreign_arrived(c);
    epoch_sample(c, &a);
    if ((!c->rtt_known || c->guessed_at) && !a.rtt_us)
        udt__conn_guess_rtt(c, now - s->first_us, now - s->sent_us, now);
    if (c->app_limited >= 0 && c->high > c->app_limited)
        c->app_limited = -1;
    a.ack = c->high;
    a.delivered = c->delivered;
    a.prior = ahead ? s->delivered : -1;
    a.repairing = c->repairing;
    a.srtt_us = c->rtt_us;
    a.window_pkts = c->edge - c->snd.head;
    a.capacity_pps = c->foreign ? c->peer_capacity_pps : 0;
    c->cc.ops->on_ack(&c->cc, &a);
    UDT_TRACE_CC(c, now);
    udt__conn_restart_probe(c, now);
}

/* When a shutdown cannot hurt any more. Our own peers keep what has arrived for their readers, but
 * libudt (decisions/0040):
 *  - hands data to its reader only with a non-light ACK, and forgets the rest at a shutdown, so a
 *    light one does not count;
 *  - throws away the message that a blocked recvmsg is just copying out. So there the connection
 *    stays until the window in its ACKs says that all was read, and a moment more for the reader to
 *    return. A reader that makes no room for READER_IDLE_US is not waited for. */
static udt_time shut_at(const udt_conn *c)
{
    if (!c->drained)
        return UDT_NEVER;
    if (c->reader_at == 0)
        return 0;
    return c->reader_at + (c->unread ? READER_IDLE_US : READER_RETURN_US);
}

bool udt__conn_delivered(const udt_conn *c, udt_time now)
{
    return shut_at(c) <= now;
}

void udt__conn_try_shut(udt_conn *c, udt_time now)
{
    udt_time at = shut_at(c);
    if (at <= now)
        udt__conn_shut(c, now);
    else
        udt__conn_timer(c, &c->t_linger, at < c->linger_end ? at : c->linger_end);
}

void udt__conn_check_drained(udt_conn *c, udt_time now)
{
    if (c->snd.head < c->snd.tail || (c->foreign && c->full_ack < c->snd.tail))
        return;
    if (!c->drained && c->state == CONN_OPEN)
        udt__conn_event(c, UDT_EV_DRAINED);
    c->drained = true;
    if (c->state == CONN_LINGER)
        udt__conn_try_shut(c, now);
}

/* How much of what a foreign peer has acknowledged its reader has taken. The handshake says the
 * size of the peer's buffer, but sometimes more than there is (spec 2.1); the first ACK comes when
 * nothing was read yet. */
static void note_reader(udt_conn *c, int64_t ack, int64_t window, udt_time now)
{
    if (!c->foreign || c->opts.type != UDT_DGRAM || ack < c->full_ack)
        return;
    if (!c->slots_known && window + ack < c->peer_slots)
        c->peer_slots = window + ack;
    c->slots_known = true;
    if (window > c->peer_slots)
        c->peer_slots = window;
    int64_t room = ack + window; /* grows as the reader takes packets, by nothing else */
    if (room > c->edge || ack > c->full_ack)
        c->reader_at = now;
    c->unread = window < c->peer_slots;
}

void udt__conn_free_up_to(udt_conn *c, int64_t ack)
{
    udt_sndbuf_acked(&c->snd, ack);
    if (c->want_space && udt_sndbuf_writable(&c->snd) && !udt__near_waits(c)) {
        c->want_space = false;
        if (c->state == CONN_OPEN)
            udt__conn_event(c, UDT_EV_WRITABLE);
    }
}

/* Everything before `ack` (> una) has arrived. When acknowledgements before this one are missing,
 * one of them may have said it, and how long ago nobody knows: such a time is believed only if it
 * is no surprise. */
static void advance(udt_conn *c, int64_t ack, bool missed, udt_time now)
{
    bool clean = lossmap_next(&c->retx, c->snd.head) >= ack;
    if (missed && now - udt_sndbuf_slot(&c->snd, ack - 1)->sent_us > udt__conn_rto(c))
        clean = false;
    UDT_TRACE(c, UDT_TRACE_ACKED, 0, (uint64_t)ack, (uint64_t)(ack - c->snd.head), now);
    udt_sndloss_acked(&c->loss, ack);
    int64_t again = c->retx.count;
    lossmap_del_below(&c->retx, ack);
    again -= c->retx.count;
    news(c, ack - 1, clean ? 0 : NAK_WAITED_UNKNOWN, again, now);
    udt__conn_free_up_to(c, ack);
}

static void note_rates(udt_conn *c, const udt_pkt *p)
{
    int32_t rate = (int32_t)be32_get(p->body + 16), cap = (int32_t)be32_get(p->body + 20);
    if (rate > 0)
        c->peer_rate_pps = c->peer_rate_pps ? (7 * c->peer_rate_pps + rate) / 8 : rate;
    if (cap > 0)
        c->peer_capacity_pps = c->peer_capacity_pps ? (7 * c->peer_capacity_pps + cap) / 8 : cap;
}

void udt__conn_ack_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    if (p->len < 4) {
        c->mux->n.dropped_bad++;
        return;
    }
    int64_t ack = seq_index(c->isn, c->snd.head, be32_get(p->body) & SEQ_MASK);
    bool light = p->len < 16, missed = false;
    if (ack > c->next || ack < 0) {
        c->mux->n.dropped_bad++;
        return;
    }
    c->st.acks_recv++;
    if (!light) {
        int32_t window = (int32_t)be32_get(p->body + 12);
        note_reader(c, ack, window, now);
        missed = p->word1 != c->ack_heard + 1; /* the first is 1 */
        c->ack_heard = p->word1;
        /* An unconfirmed ACK comes again, and says then whether the rest was read. */
        if (!c->unread || ack < c->snd.tail) {
            c->ack2_sub = p->word1;
            c->due |= DUE_ACK2;
            udt__conn_ready(c);
        } else if (now - c->sent_at >= WITHHELD_US) { /* yet the peer must know that we live */
            c->due |= DUE_KEEPALIVE;
            udt__conn_ready(c);
        }
        if (ack > c->full_ack)
            c->full_ack = ack;
        if (ack >= c->snd.head)
            c->edge = ack + (window < 2 ? 2 : window < 1 << 24 ? window : 1 << 24);
        if (p->len >= 24)
            note_rates(c, p);
    }
    if (ack > c->snd.head)
        advance(c, ack, missed, now);
    udt__conn_check_drained(c, now);
    if (udt__conn_live(c) && udt__conn_can_send(c))
        udt__conn_ready(c);
}

/* Both ends of one NAK entry as indices; false when the peer cannot mean it. */
static bool entry(const udt_conn *c, uint32_t seq_a, uint32_t seq_b, int64_t *a, int64_t *b)
{
    *a = seq_index(c->isn, c->snd.head, seq_a);
    *b = seq_index(c->isn, c->snd.head, seq_b);
    return *a <= *b && *b < c->next && *a >= 0;
}

/* What is missing is named once: a report costs no more than the packets that are on their way,
 * however often it names them. */
static bool nak_valid(const udt_conn *c, const udt_pkt *p)
{
    bytes_rd r = bytes_reader(p->body, p->len);
    uint32_t sa, sb;
    int64_t a, b, left = c->next - c->snd.head;
    while (udt_nak_next(&r, &sa, &sb)) {
        if (!entry(c, sa, sb, &a, &b))
            return false;
        a = a < c->snd.head ? c->snd.head : a;
        left -= a <= b ? b - a + 1 : 0;
        if (left < 0)
            return false;
    }
    return !r.bad && r.left == 0 && p->len >= 4;
}

/* Mark a..b lost, but not what was sent again so recently that the report cannot know of it.
 * Returns the packets newly lost. */
static int64_t mark_reported(udt_conn *c, int64_t a, int64_t b, udt_time now)
{
    int64_t before = c->loss.map.count;
    udt_time since = now - c->rtt_us;
    for (int64_t i = a; i <= b;) {
        if (lossmap_has(&c->retx, i) && udt_sndbuf_slot(&c->snd, i)->sent_us > since) {
            i++;
            continue;
        }
        int64_t run = lossmap_next(&c->retx, i + 1);
        int64_t end = run <= b ? run - 1 : b, had = c->loss.map.count;
        bool first = !lossmap_has(&c->retx, i);
        if (!first)
            end = i;
        udt__conn_mark_lost(c, i, end);
        c->lost_first += first ? c->loss.map.count - had : 0;
        i = end + 1;
    }
    return c->loss.map.count - before;
}

void udt__conn_lost(udt_conn *c, udt_cc_loss *l)
{
    l->startup = l->first < STARTUP_PKTS && l->lost_pkts < STARTUP_PKTS;
    l->marked_pkts = l->lost_pkts;
    c->cc.ops->on_loss(&c->cc, l);
    udt__foreign_lost(c, l->first);
    c->st.pkts_lost += l->lost_pkts;
    UDT_TRACE(c, UDT_TRACE_LOST, UDT_TRACE_LOST_REPORTED, (uint64_t)l->first,
              (uint64_t)l->lost_pkts, l->now);
    UDT_TRACE_CC(c, l->now);
}

void udt__conn_nak_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    if (!nak_valid(c, p)) {
        c->mux->n.dropped_bad++;
        return;
    }
    bytes_rd r = bytes_reader(p->body, p->len);
    udt_cc_loss l = {.now = now, .first = LOSSMAP_NONE, .next = c->next, .srtt_us = c->rtt_us};
    uint32_t sa, sb;
    int64_t a, b, newest = -1; /* a hole ends where something has arrived */
    c->st.naks_recv++;
    while (udt_nak_next(&r, &sa, &sb)) {
        entry(c, sa, sb, &a, &b);
        a = a < c->snd.head ? c->snd.head : a;
        if (a > b)
            continue;
        int64_t marked = mark_reported(c, a, b, now);
        if (marked > 0 && l.first == LOSSMAP_NONE)
            l.first = a;
        l.lost_pkts += marked;
        newest = b + 1 > newest ? b + 1 : newest;
    }
    if (l.lost_pkts > 0)
        udt__conn_lost(c, &l);
    if (newest < c->next && newest > c->high)
        news(c, newest, p->word1 & NAK_WAITED_UNKNOWN, 0, now);
    if (udt__conn_can_send(c))
        udt__conn_ready(c);
}
