/* Acknowledgements: making and taking blocks, round trip, loss, congestion window, time-outs. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

unsigned sg_ack_words(const struct assoc *a)
{
    return a->top > a->base ? (unsigned)((a->top - a->base + 63) / 64) : 0;
}

static uint64_t map_word(const struct assoc *a, uint64_t seq)
{
    unsigned w = (unsigned)(seq / 64 % (SG_WINDOW / 64)), s = (unsigned)(seq % 64);
    uint64_t lo = a->map[w] >> s;
    uint64_t hi = s ? a->map[(w + 1) % (SG_WINDOW / 64)] << (64 - s) : 0;
    return lo | hi;
}

/* Refused messages have their bit set in the map but are never reported as accepted. */
void sg_ack_fill(sgmp_node *n, struct assoc *a, struct pkt_ack *k, unsigned max_words, udt_time now)
{
    struct active *x = a->x;
    unsigned need = sg_ack_words(a);
    uint64_t room = n->rcv_bytes < SG_RCV_BYTES ? SG_RCV_BYTES - n->rcv_bytes : 0;
    uint32_t peers = n->active_rcv + (a->rcv_msgs == 0), share = sg_rcv_share(n, a);
    udt_time delay = now - x->top_at;
    k->cum = a->base;
    k->echo_pkt = a->replay.top;
    k->echo_delay_us = delay < UINT32_MAX ? (uint32_t)delay : UINT32_MAX;
    k->win_msgs = (uint16_t)(share < 65535 ? share : 65535);
    k->win_kib = (uint32_t)(room / (peers ? peers : 1) / 1024);
    if (k->win_kib < 2 && share)
        k->win_kib = 2;
    k->n = (uint8_t)(need < max_words ? need : max_words);
    k->busy = x->busy_due;
    for (unsigned i = 0; i < k->n; i++)
        k->words[i] = map_word(a, a->base + 64 * (uint64_t)i);
    for (uint32_t i = 0; i < x->refused_n; i++) {
        uint64_t off = x->refused[i].seq - a->base;
        if (x->refused[i].seq >= a->base && off / 64 < k->n)
            k->words[off / 64] &= ~(1ull << (off % 64));
    }
    x->told_zero |= share == 0 || k->busy;
}

void sg_ack_sent(struct assoc *a)
{
    struct active *x = a->x;
    x->ack_count = 0;
    x->ack_now = x->busy_due = false;
    x->ack_at = UDT_NEVER;
}

/* Remembers when a pkt left. The ring grows with use up to 2048. */
void sg_sent(struct assoc *a, uint64_t pkt, udt_time now)
{
    struct active *x = a->x;
    if (x->sent_cap < 2048 && (x->flight_n + 8) * 2 > x->sent_cap) {
        uint32_t cap = x->sent_cap ? x->sent_cap * 2 : 32;
        struct sent_rec *ring = calloc(cap, sizeof *ring);
        if (ring) {
            for (uint32_t i = 0; i < x->sent_cap; i++)
                if (x->sent[i].pkt)
                    ring[x->sent[i].pkt & (cap - 1)] = x->sent[i];
            free(x->sent);
            x->sent = ring;
            x->sent_cap = cap;
        }
    }
    if (x->sent_cap)
        x->sent[pkt & (x->sent_cap - 1)] = (struct sent_rec){pkt, now};
}

void sg_rtt(struct assoc *a, udt_time sample)
{
    int32_t s = (int32_t)(sample < 1 ? 1 : sample > SEC(60) ? SEC(60) : sample);
    a->latest = s;
    if (a->srtt == 0) {
        a->srtt = s;
        a->rttvar = s / 2;
        return;
    }
    int32_t err = s > a->srtt ? s - a->srtt : a->srtt - s;
    a->rttvar += (err - a->rttvar) / 4;
    a->srtt += (s - a->srtt) / 8;
    if (a->srtt < 1)
        a->srtt = 1;
}

udt_time sg_pto(const struct assoc *a)
{
    if (a->srtt == 0)
        return MS(250);
    udt_time var = 4 * (udt_time)a->rttvar;
    udt_time t = a->srtt + (var > MS(1) ? var : MS(1)) + MS(2);
    return t < MS(10) ? MS(10) : t > SEC(8) ? SEC(8) : t;
}

udt_time sg_pto_wait(sgmp_node *n, const struct assoc *a)
{
    const struct active *x = a->x;
    udt_time cap = x->busy || x->win_msgs == 0 ? SEC(1) : SEC(8);
    udt_time t = sg_pto(a) << (x->pto_count < 10 ? x->pto_count : 10);
    t = t < cap ? t : cap;
    /* Some 10 %, from a generator of its own: no system call per acknowledgement. */
    n->jitter = n->jitter * 6364136223846793005u + 1442695040888963407u;
    udt_time spread = (udt_time)(n->jitter >> 33) % (t / 5 + 1);
    /* On a steady path the time-out is 3 ms more than the round trip: a first wait that is a tenth
     * shorter would repeat what is still on its way. */
    return x->pto_count ? t * 9 / 10 + spread : t + spread / 2;
}

static void congested(struct assoc *a, uint64_t lost_pkt)
{
    struct active *x = a->x;
    if (lost_pkt <= x->recovery_pkt)
        return;
    x->recovery_pkt = a->next_pkt - 1;
    x->cwnd_m = x->cwnd_m * 7 / 10 > 2000 ? x->cwnd_m * 7 / 10 : 2000;
    x->ssthresh_m = x->cwnd_m;
}

/* Gives a message back for sending, or up. */
static void resend(sgmp_node *n, struct msg *m, bool front, udt_time now)
{
    if (m->tries >= m->max_tries)
        sg_settle(n, m, UDT_E_TIMEOUT, now);
    else
        sg_requeue(m, front);
}

void sg_detect_loss(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    udt_time rtt = a->srtt > a->latest ? a->srtt : a->latest;
    udt_time limit = rtt * 9 / 8 > MS(1) ? rtt * 9 / 8 : MS(1);
    x->loss_at = UDT_NEVER;
    for (struct sg_link *l = x->flight.next, *next; l != &x->flight; l = next) {
        struct msg *m = sg_of(l, struct msg, q);
        next = l->next;
        if (m->last_pkt >= x->echo)
            return;
        if (m->seq >= x->known_end)
            continue;
        if (x->echo - m->last_pkt < 3 && now - m->sent_at < limit) {
            x->loss_at = m->sent_at + limit;
            return;
        }
        if (!x->busy)
            congested(a, m->last_pkt);
        if (m->len > PKT_INLINE)
            sg_size_lost(a, m->last_pkt);
        resend(n, m, false, now);
    }
}

static void grow_window(struct active *x, uint32_t acked, uint32_t flight_before)
{
    if (acked == 0 || flight_before * 2000 < x->cwnd_m)
        return; /* the application, not the window, was the limit */
    if (x->cwnd_m < x->ssthresh_m)
        x->cwnd_m += acked * 1000;
    else
        x->cwnd_m += acked * 1000000 / x->cwnd_m;
    if (x->cwnd_m > 1024000)
        x->cwnd_m = 1024000;
}

static uint32_t ack_one(sgmp_node *n, struct assoc *a, uint64_t seq, udt_time now)
{
    struct active *x = a->x;
    if (seq < x->low || seq >= a->next_seq)
        return 0;
    struct msg *m = x->ring[seq & (x->ring_cap - 1)];
    if (!m)
        return 0;
    if (m->len > PKT_INLINE && m->last_pkt > x->big_mark)
        x->big_lost = 0;
    sg_size_arrived(a, m, now);
    if (m->bulk)
        sg_bulk_acked(n, m, now);
    else
        sg_settle(n, m, 0, now);
    return 1;
}

static void take_windows(struct assoc *a, const struct pkt_ack *k, udt_time now)
{
    struct active *x = a->x;
    x->win_msgs = k->win_msgs;
    x->win_kib = k->win_kib;
    if (k->win_msgs)
        x->probe_n = 0;
    x->busy = k->busy;
    if (!k->busy) {
        x->busy_n = 0;
        x->busy_until = 0;
    } else if (now >= x->busy_until) {
        udt_time wait = sg_pto(a) << (x->busy_n < 7 ? x->busy_n : 7);
        x->busy_until = now + (wait < SEC(1) ? wait : SEC(1));
        x->busy_n += x->busy_n < 7;
    }
}

/* False when the block is impossible; it is then ignored as a whole. */
bool sg_ack_input(sgmp_node *n, struct assoc *a, const struct pkt_ack *k, bool full, udt_time now)
{
    struct active *x = a->x;
    uint32_t acked = 0, before = x->flight_n;
    if (k->cum > a->next_seq || k->echo_pkt >= a->next_pkt)
        return false;
    if (k->echo_pkt < a->first_pkt)
        return true; /* about an earlier association */
    if (k->echo_pkt > a->peer_echo) {
        a->peer_echo = k->echo_pkt;
        struct sent_rec *r = x->sent_cap ? &x->sent[k->echo_pkt & (x->sent_cap - 1)] : NULL;
        if (r && r->pkt == k->echo_pkt && now - r->at >= k->echo_delay_us)
            sg_rtt(a, now - r->at - k->echo_delay_us);
    }
    for (uint64_t s = x->low; s < k->cum; s++)
        acked += ack_one(n, a, s, now);
    for (unsigned w = 0; w < k->n; w++)
        for (uint64_t bits = k->words[w]; bits; bits &= bits - 1)
            acked +=
                ack_one(n, a, k->cum + 64 * (uint64_t)w + (unsigned)__builtin_ctzll(bits), now);
    a->confirmed = true;
    if (a->state < SG_READY) {
        a->state = SG_READY;
        sg_event_peer(n, a, SGMP_EV_PEER_READY, 0);
    }
    if (k->echo_pkt >= x->echo) {
        x->echo = k->echo_pkt;
        x->known_end = full || k->n == 0 ? UINT64_MAX : k->cum + 64 * (uint64_t)k->n;
        take_windows(a, k, now);
    }
    if (acked) {
        x->pto_count = 0;
        x->pto_at = UDT_NEVER;
        grow_window(x, acked, before);
    }
    sg_detect_loss(n, a, now);
    if (sg_empty(&x->flight))
        x->pto_at = UDT_NEVER;
    else if (x->pto_at == UDT_NEVER)
        x->pto_at = now + sg_pto_wait(n, a);
    return true;
}

/* Probe time-out: the oldest one or two again, with a PING long enough to be answered by RESET. */
void sg_on_pto(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    x->pto_at = UDT_NEVER;
    if (sg_empty(&x->flight))
        return;
    if (x->pto_count++ == 0)
        x->pto_since = now;
    n->st.retrans_pto++;
    if (x->pto_count >= SG_BIG_LOST && a->dgram > PKT_LIMIT)
        sg_size_down(n, a, now);
    for (int i = 0; i < 2 && !sg_empty(&x->flight); i++) {
        struct msg *m = sg_of(x->flight.next, struct msg, q);
        bool control = m->flags & PKT_F_CONTROL;
        if (m->len > PKT_INLINE)
            sg_size_lost(a, m->last_pkt);
        bool last = m->tries >= m->max_tries;
        resend(n, m, i == 0, now);
        if (!last && !control)
            x->forced++;
    }
    x->ping_due = x->ping_pad = true;
    if (x->pto_count >= 2 && !x->busy) {
        x->ssthresh_m = x->cwnd_m * 7 / 10 > 2000 ? x->cwnd_m * 7 / 10 : 2000;
        x->cwnd_m = 2000;
    }
    if (x->pto_count >= 3 && a->last_rx < x->pto_since && a->state == SG_READY) {
        a->state = SG_SUSPECT;
        sg_event_peer(n, a, SGMP_EV_PEER_SUSPECT, 0);
    }
    x->pto_at = now + sg_pto_wait(n, a);
}
