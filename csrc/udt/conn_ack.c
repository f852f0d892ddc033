/* The sender's side of acknowledgements and loss reports (spec 4.2, 4.4). Out-of-range ones are
 * counted and dropped, never believed. */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define STARTUP_PKTS 16

/* Delivery rate and RTT from the newest packet acknowledged, before its slot is freed. */
static void take_samples(udt_conn *c, int64_t ack, udt_cc_ack *a)
{
    const snd_slot *s = udt_sndbuf_slot(&c->snd, ack - 1);
    bool clean = s->ntx == 1 && lossmap_next(&c->retx, c->snd.head) >= ack;
    if (clean) {
        a->rtt_us = a->now - s->sent_us;
        a->rtt_us = a->rtt_us < 1 ? 1 : a->rtt_us;
        udt__conn_rtt(c, a->rtt_us);
    }
    int64_t span = a->now - s->delivered_us;
    if (s->ntx == 1 && span > 0 && span >= c->min_rtt_us / 2) {
        a->rate_pps = (double)(c->delivered + a->acked_pkts - s->delivered) * 1e6 / (double)span;
        a->app_limited = s->flags & SND_APP_LIMITED;
    }
}

static void free_up_to(udt_conn *c, int64_t ack, udt_time now)
{
    udt_sndbuf_acked(&c->snd, ack);
    udt_sndloss_acked(&c->loss, ack);
    lossmap_del_below(&c->retx, ack);
    if (c->want_space && c->snd.bytes * 2 <= c->snd.max_bytes &&
        (c->snd.tail - c->snd.head) * 2 <= c->snd.max_slots) {
        c->want_space = false;
        if (c->state == CONN_OPEN)
            udt__conn_event(c, UDT_EV_WRITABLE);
    }
    if (c->snd.head < c->snd.tail || c->drained)
        return;
    c->drained = true;
    if (c->state == CONN_LINGER)
        udt__conn_shut(c, now);
    else
        udt__conn_event(c, UDT_EV_DRAINED);
}

/* Everything before `ack` (> una) has arrived. */
static void advance(udt_conn *c, int64_t ack, udt_time now)
{
    udt_cc_ack a = {.now = now, .ack = ack, .next = c->next};
    a.acked_pkts = ack - c->snd.head;
    a.in_flight = c->next - c->snd.head;
    take_samples(c, ack, &a);
    c->delivered += a.acked_pkts;
    c->delivered_us = now;
    if (c->app_limited >= 0 && ack > c->app_limited)
        c->app_limited = -1;
    a.srtt_us = c->rtt_us;
    a.window_pkts = c->edge - ack;
    a.capacity_pps = c->foreign ? c->peer_capacity_pps : 0;
    c->cc.ops->on_ack(&c->cc, &a);
    udt__conn_restart_probe(c, now);
    free_up_to(c, ack, now);
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
    bool light = p->len < 16;
    if (ack > c->next || ack < 0) {
        c->mux->n.dropped_bad++;
        return;
    }
    c->st.acks_recv++;
    if (!light) {
        int32_t window = (int32_t)be32_get(p->body + 12);
        c->ack2_sub = p->word1;
        c->due |= DUE_ACK2;
        udt__conn_ready(c);
        if (ack >= c->snd.head)
            c->edge = ack + (window < 2 ? 2 : window < 1 << 24 ? window : 1 << 24);
        if (p->len >= 24)
            note_rates(c, p);
    }
    if (ack > c->snd.head)
        advance(c, ack, now);
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

static bool nak_valid(const udt_conn *c, const udt_pkt *p)
{
    bytes_rd r = bytes_reader(p->body, p->len);
    uint32_t sa, sb;
    int64_t a, b;
    while (udt_nak_next(&r, &sa, &sb))
        if (!entry(c, sa, sb, &a, &b))
            return false;
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
        int64_t end = run <= b ? run - 1 : b;
        udt__conn_mark_lost(c, i, end);
        i = end + 1;
    }
    return c->loss.map.count - before;
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
    int64_t a, b;
    c->st.naks_recv++;
    while (udt_nak_next(&r, &sa, &sb)) {
        entry(c, sa, sb, &a, &b);
        a = a < c->snd.head ? c->snd.head : a;
        if (a > b)
            continue;
        int64_t lost = mark_reported(c, a, b, now);
        if (lost > 0 && l.first == LOSSMAP_NONE)
            l.first = a;
        l.lost_pkts += lost;
    }
    if (l.lost_pkts == 0)
        return;
    l.startup = l.first < STARTUP_PKTS && l.lost_pkts < STARTUP_PKTS;
    c->cc.ops->on_loss(&c->cc, &l);
}
