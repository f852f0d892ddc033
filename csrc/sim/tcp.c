#include "sim/tcp_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define DATAGRAM 1472
#define ACK_BYTES 40
#define RTO_MIN_US 200000
#define DELACK_US 40000
#define PACE_SLACK_NS 1000000 /* lateness that is made up for */

enum { SENT = 1, SACKED = 2, LOST = 4, AGAIN = 8 };

static uint8_t *flag(sim_tcp *t, int64_t i)
{
    return &t->flags[i & (TCP_WINDOW - 1)];
}

/* ---- sender ---- */

static void note_rtt(sim_tcp *t, int64_t rtt)
{
    rtt = rtt < 1 ? 1 : rtt;
    if (!t->min_rtt || rtt < t->min_rtt)
        t->min_rtt = rtt;
    if (!t->srtt) {
        t->srtt = rtt;
        t->var = rtt / 2;
    } else {
        t->var += (llabs(rtt - t->srtt) - t->var) / 4;
        t->srtt += (rtt - t->srtt) / 8;
    }
}

static void set_rto(sim_tcp *t, udt_time now)
{
    int64_t rto = t->srtt ? t->srtt + 4 * t->var : 1000000;
    rto = rto < RTO_MIN_US + t->srtt ? RTO_MIN_US + t->srtt : rto;
    t->rto_at = t->una < t->next ? now + (rto << (t->backoff < 6 ? t->backoff : 6)) : UDT_NEVER;
}

static void mark_lost(sim_tcp *t, int64_t i)
{
    if (*flag(t, i) & (SACKED | LOST))
        return;
    *flag(t, i) |= LOST;
    t->pipe--;
}

/* Packet `i` has arrived. *best: the one of this acknowledgement that was sent last. */
static void deliver(sim_tcp *t, int64_t i, tcp_news *w, int64_t *best)
{
    uint8_t *f = flag(t, i);
    if (*f & SACKED)
        return;
    if (!(*f & AGAIN))
        w->rtt = w->now - t->sent_at[i & (TCP_WINDOW - 1)];
    if (!(*f & LOST))
        t->pipe--;
    *f |= SACKED;
    if (i + 1 > t->fack)
        t->fack = i + 1;
    if (*best < 0 || t->sent_at[i & (TCP_WINDOW - 1)] >= t->sent_at[*best & (TCP_WINDOW - 1)])
        *best = i;
    w->acked++;
}

/* The delivery rate over the flight of packet `i`: the slower of how fast the packets of that time
 * were sent and how fast they came. */
static void sample_rate(sim_tcp *t, int64_t i, tcp_news *w)
{
    t->delivered += w->acked;
    t->delivered_us = w->now;
    if (i < 0)
        return;
    int64_t k = i & (TCP_WINDOW - 1);
    int64_t sent = t->sent_at[k] - t->sent[k].first_us, came = w->now - t->sent[k].delivered_us;
    int64_t span = sent > came ? sent : came;
    t->first_us = t->sent_at[k];
    w->prior = t->sent[k].delivered;
    if (span > 0 && span >= t->min_rtt)
        w->rate_pps = (double)(t->delivered - w->prior) * 1e6 / (double)span;
}

/* Three packets behind it have come. True if that is news. */
static bool find_lost(sim_tcp *t)
{
    bool fresh = false;
    if (t->lost_to < t->una)
        t->lost_to = t->una;
    for (; t->lost_to < t->fack - 3; t->lost_to++)
        if (!(*flag(t, t->lost_to) & SACKED)) {
            mark_lost(t, t->lost_to);
            fresh = true;
        }
    return fresh;
}

static void ack_input(sim_tcp *t, const uint8_t *p, udt_time now)
{
    int64_t ack = (int64_t)be64_get(p), best = -1;
    tcp_news w = {.now = now, .inflight = t->pipe};
    if (ack > t->next)
        return;
    for (int k = 0; k < TCP_BLOCKS; k++) {
        int64_t x = (int64_t)be32_get(p + 8 + 8 * k), y = (int64_t)be32_get(p + 12 + 8 * k);
        for (int64_t i = x < t->una ? t->una : x; i < y && i < t->next; i++)
            deliver(t, i, &w, &best);
    }
    if (ack > t->una) {
        for (int64_t i = t->una; i < ack; i++)
            deliver(t, i, &w, &best);
        for (int64_t i = t->una; i < ack; i++)
            *flag(t, i) = 0;
        t->una = ack;
        t->backoff = 0;
        set_rto(t, now);
    }
    sample_rate(t, best, &w);
    if (w.rtt)
        note_rtt(t, w.rtt);
    uint8_t head = *flag(t, t->una);
    if ((head & (AGAIN | LOST | SACKED)) == AGAIN && t->una < t->fack &&
        now - t->sent_at[t->una & (TCP_WINDOW - 1)] > t->srtt + t->srtt / 4 + 4 * t->var) {
        mark_lost(t, t->una); /* the repeat was lost too (RFC 8985) */
        t->again_from = t->una;
    }
    if (t->recovery && t->una >= t->recover)
        t->recovery = false;
    if (find_lost(t) && !t->recovery) {
        t->recovery = true;
        t->recover = t->next;
        t->again_from = t->una;
        t->law->lost(t, now);
    }
    t->law->acked(t, &w);
}

static bool next_packet(sim_tcp *t, int64_t *idx)
{
    if ((double)t->pipe >= t->cwnd)
        return false;
    if (t->again_from < t->una)
        t->again_from = t->una;
    for (; t->again_from < t->lost_to && t->again_from < t->next; t->again_from++)
        if ((*flag(t, t->again_from) & (LOST | SACKED)) == LOST) {
            *idx = t->again_from++;
            return true;
        }
    if (t->next - t->una >= TCP_WINDOW - 1)
        return false;
    *idx = t->next;
    return true;
}

/* May a packet go now? Sets when, if it may not. */
static bool paced(sim_tcp *t, udt_time now)
{
    t->pace_at = UDT_NEVER;
    if (t->pace_pps <= 0 || t->next_ns <= now * 1000)
        return true;
    if ((double)t->pipe < t->cwnd)
        t->pace_at = (t->next_ns + 999) / 1000;
    return false;
}

static void note_sent(sim_tcp *t, int64_t idx, udt_time now)
{
    int64_t k = idx & (TCP_WINDOW - 1);
    if (t->pipe++ == 0)
        t->first_us = t->delivered_us = now;
    t->sent_at[k] = now;
    t->sent[k].delivered = t->delivered;
    t->sent[k].delivered_us = t->delivered_us;
    t->sent[k].first_us = t->first_us;
    if (t->pace_pps > 0)
        t->next_ns += (int64_t)(1e9 / t->pace_pps);
}

static size_t a_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                       size_t *seg, udt_time now)
{
    sim_tcp *t = ep;
    size_t n = 0;
    int64_t idx;
    if (now < t->start)
        return 0;
    if (t->next_ns < now * 1000 - PACE_SLACK_NS)
        t->next_ns = now * 1000 - PACE_SLACK_NS;
    while (n < max_segs && (n + 1) * DATAGRAM <= cap && paced(t, now) && next_packet(t, &idx)) {
        uint8_t *f = flag(t, idx);
        memset(buf + n * DATAGRAM, 0, 16);
        be64_put(buf + n * DATAGRAM, (uint64_t)idx);
        if (idx == t->next) {
            t->next++;
            *f = SENT;
        } else {
            *f = (uint8_t)((*f | AGAIN) & ~LOST);
            t->again++;
        }
        note_sent(t, idx, now);
        n++;
    }
    if (n && t->rto_at == UDT_NEVER)
        set_rto(t, now);
    *to = t->b;
    *seg = DATAGRAM;
    return n * DATAGRAM;
}

static void a_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    (void)from;
    if (len >= ACK_BYTES)
        ack_input(ep, pkt, now);
}

static udt_time a_deadline(const void *ep)
{
    const sim_tcp *t = ep;
    if (t->next == 0)
        return t->start;
    return t->pace_at < t->rto_at ? t->pace_at : t->rto_at;
}

static void a_tick(void *ep, udt_time now)
{
    sim_tcp *t = ep;
    if (now < t->rto_at)
        return;
    for (int64_t i = t->una; i < t->next; i++) {
        mark_lost(t, i);
        *flag(t, i) &= (uint8_t)~AGAIN;
    }
    t->lost_to = t->next;
    t->fack = t->next > t->fack ? t->fack : t->next;
    t->again_from = t->una;
    t->law->timeout(t, !t->recovery || t->backoff == 0);
    t->recovery = false;
    t->backoff++;
    set_rto(t, now);
}

/* ---- receiver ---- */

static void b_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    sim_tcp *t = ep;
    (void)from;
    if (len < 8)
        return;
    int64_t i = (int64_t)be64_get(pkt);
    if (i < t->rcv || i >= t->rcv + TCP_WINDOW || t->have[i & (TCP_WINDOW - 1)]) {
        t->ack_now = true;
        return;
    }
    t->have[i & (TCP_WINDOW - 1)] = 1;
    int64_t x = i, y = i + 1;
    bool gap = i != t->rcv;
    while (t->have[t->rcv & (TCP_WINDOW - 1)]) {
        t->have[t->rcv & (TCP_WINDOW - 1)] = 0;
        t->rcv++;
    }
    if (gap || t->block[0][1] > t->rcv) {
        /* The block around the newest packet first, then those reported before. */
        int64_t out[TCP_BLOCKS][2] = {{0}};
        int n = 1;
        for (int k = 0; k < TCP_BLOCKS; k++) {
            int64_t bx = t->block[k][0], by = t->block[k][1];
            if (by > t->rcv && bx <= y && by >= x) {
                x = bx < x ? bx : x;
                y = by > y ? by : y;
            } else if (by > t->rcv && n < TCP_BLOCKS) {
                out[n][0] = bx;
                out[n++][1] = by;
            }
        }
        out[0][0] = x;
        out[0][1] = y;
        memcpy(t->block, out, sizeof out);
        t->ack_now = true;
    }
    if (++t->unacked >= 2)
        t->ack_now = true;
    else if (t->delack == UDT_NEVER)
        t->delack = now + DELACK_US;
}

static size_t b_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                       size_t *seg, udt_time now)
{
    sim_tcp *t = ep;
    (void)cap;
    (void)max_segs;
    (void)now;
    if (!t->ack_now)
        return 0;
    t->ack_now = false;
    t->unacked = 0;
    t->delack = UDT_NEVER;
    memset(buf, 0, ACK_BYTES);
    be64_put(buf, (uint64_t)t->rcv);
    for (int k = 0; k < TCP_BLOCKS; k++)
        if (t->block[k][1] > t->rcv) {
            be32_put(buf + 8 + 8 * k, (uint32_t)t->block[k][0]);
            be32_put(buf + 12 + 8 * k, (uint32_t)t->block[k][1]);
        }
    *to = t->a;
    *seg = ACK_BYTES;
    return ACK_BYTES;
}

static udt_time b_deadline(const void *ep)
{
    return ((const sim_tcp *)ep)->delack;
}

static void b_tick(void *ep, udt_time now)
{
    sim_tcp *t = ep;
    if (now >= t->delack) {
        t->ack_now = true;
        t->delack = UDT_NEVER;
    }
}

sim_tcp *sim_tcp_new(sim_net *n, const udt_addr *a, const udt_addr *b, enum sim_tcp_law law,
                     udt_time start, int *id_a, int *id_b)
{
    static const sim_ep_ops sender = {a_input, NULL, a_output, a_deadline, a_tick};
    static const sim_ep_ops receiver = {b_input, NULL, b_output, b_deadline, b_tick};
    sim_tcp *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->a = *a;
    t->b = *b;
    t->start = start;
    t->cwnd = TCP_INITIAL_CWND;
    t->rto_at = t->delack = t->pace_at = UDT_NEVER;
    t->law = law == SIM_TCP_BBR ? &sim__tcp_bbr : &sim__tcp_cubic;
    if (law == SIM_TCP_BBR)
        sim__tcp_bbr_init(t);
    else
        sim__tcp_cubic_init(t);
    *id_a = sim_net_add(n, a, &sender, t);
    *id_b = sim_net_add(n, b, &receiver, t);
    return t;
}

void sim_tcp_free(sim_tcp *t)
{
    free(t);
}

int64_t sim_tcp_delivered(const sim_tcp *t)
{
    return t->rcv;
}

int64_t sim_tcp_again(const sim_tcp *t)
{
    return t->again;
}
