#include "sim/tcp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define DATAGRAM 1472
#define ACK_BYTES 40
#define WINDOW 65536 /* packets at most in flight, a power of two */
#define BLOCKS 3
#define INITIAL_CWND 10
#define CUBIC_C 0.4
#define CUBIC_BETA 0.7
#define RTO_MIN_US 200000
#define DELACK_US 40000
#define HYSTART_SAMPLES 8

enum { SENT = 1, SACKED = 2, LOST = 4, AGAIN = 8 };

struct sim_tcp {
    udt_addr a, b;
    udt_time start;
    /* Sender: packets [una, next). */
    int64_t una, next, fack, lost_to, pipe, again, again_from;
    uint8_t flags[WINDOW];
    udt_time sent_at[WINDOW];
    double cwnd, ssthresh, wmax, origin, k, w_est;
    udt_time epoch;
    bool recovery;
    int64_t recover;
    int64_t srtt, var, min_rtt, round_end, round_min, round_n, last_round_min;
    udt_time rto_at;
    int backoff;
    /* Receiver. */
    int64_t rcv;
    uint8_t have[WINDOW];
    int64_t block[BLOCKS][2]; /* latest first */
    int unacked;
    bool ack_now;
    udt_time delack;
};

static uint8_t *flag(sim_tcp *t, int64_t i)
{
    return &t->flags[i & (WINDOW - 1)];
}

/* ---- CUBIC ---- */

static void reduce(sim_tcp *t)
{
    t->wmax = t->cwnd < t->wmax ? t->cwnd * (1 + CUBIC_BETA) / 2 : t->cwnd;
    t->cwnd = fmax(2, t->cwnd * CUBIC_BETA);
    t->ssthresh = t->cwnd;
    t->epoch = 0;
}

static void grow(sim_tcp *t, int64_t acked, udt_time now)
{
    if (t->cwnd < t->ssthresh) {
        t->cwnd += (double)acked;
        return;
    }
    if (!t->epoch) {
        t->epoch = now;
        t->w_est = t->cwnd;
        t->origin = fmax(t->cwnd, t->wmax);
        t->k = cbrt((t->origin - t->cwnd) / CUBIC_C);
    }
    double s = (double)(now - t->epoch + t->min_rtt) * 1e-6 - t->k;
    double target = t->origin + CUBIC_C * s * s * s;
    t->w_est += 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA) * (double)acked / t->cwnd;
    target = fmin(fmax(target, t->cwnd), 1.5 * t->cwnd);
    t->cwnd += (target - t->cwnd) / t->cwnd * (double)acked;
    if (t->cwnd < t->w_est)
        t->cwnd = t->w_est;
    if (t->cwnd > WINDOW / 2)
        t->cwnd = WINDOW / 2;
}

/* The first round trips of a round are well above the last round's: slow start ends. */
static void hystart(sim_tcp *t, int64_t rtt)
{
    if (t->cwnd >= t->ssthresh || t->cwnd < 16)
        return;
    if (t->una >= t->round_end) {
        t->round_end = t->next;
        t->last_round_min = t->round_min;
        t->round_min = t->round_n = 0;
    }
    if (t->round_n++ >= HYSTART_SAMPLES)
        return;
    if (!t->round_min || rtt < t->round_min)
        t->round_min = rtt;
    int64_t slack = t->min_rtt / 8;
    slack = slack < 4000 ? 4000 : slack > 16000 ? 16000 : slack;
    if (t->round_n == HYSTART_SAMPLES && t->round_min >= t->min_rtt + slack)
        t->ssthresh = t->cwnd;
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
    hystart(t, rtt);
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

static int64_t deliver(sim_tcp *t, int64_t i, udt_time now, int64_t *rtt)
{
    uint8_t *f = flag(t, i);
    if (*f & SACKED)
        return 0;
    if (!(*f & AGAIN))
        *rtt = now - t->sent_at[i & (WINDOW - 1)];
    if (!(*f & LOST))
        t->pipe--;
    *f |= SACKED;
    if (i + 1 > t->fack)
        t->fack = i + 1;
    return 1;
}

static void ack_input(sim_tcp *t, const uint8_t *p, udt_time now)
{
    int64_t ack = (int64_t)be64_get(p), acked = 0, rtt = 0;
    if (ack > t->next)
        return;
    for (int k = 0; k < BLOCKS; k++) {
        int64_t x = (int64_t)be32_get(p + 8 + 8 * k), y = (int64_t)be32_get(p + 12 + 8 * k);
        for (int64_t i = x < t->una ? t->una : x; i < y && i < t->next; i++)
            acked += deliver(t, i, now, &rtt);
    }
    if (ack > t->una) {
        for (int64_t i = t->una; i < ack; i++)
            acked += deliver(t, i, now, &rtt);
        for (int64_t i = t->una; i < ack; i++)
            *flag(t, i) = 0;
        t->una = ack;
        t->backoff = 0;
        set_rto(t, now);
    }
    if (rtt)
        note_rtt(t, rtt);
    uint8_t head = *flag(t, t->una);
    if ((head & (AGAIN | LOST | SACKED)) == AGAIN && t->una < t->fack &&
        now - t->sent_at[t->una & (WINDOW - 1)] > t->srtt + t->srtt / 4 + 4 * t->var) {
        mark_lost(t, t->una); /* the repeat was lost too (RFC 8985) */
        t->again_from = t->una;
    }
    if (t->recovery && t->una >= t->recover)
        t->recovery = false;
    /* Three packets behind it have come. */
    if (t->lost_to < t->una)
        t->lost_to = t->una;
    bool fresh = false;
    for (; t->lost_to < t->fack - 3; t->lost_to++)
        if (!(*flag(t, t->lost_to) & SACKED)) {
            mark_lost(t, t->lost_to);
            fresh = true;
        }
    if (fresh && !t->recovery) {
        t->recovery = true;
        t->recover = t->next;
        t->again_from = t->una;
        reduce(t);
    } else if (acked && !t->recovery) {
        grow(t, acked, now);
    }
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
    if (t->next - t->una >= WINDOW - 1)
        return false;
    *idx = t->next;
    return true;
}

static size_t a_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                       size_t *seg, udt_time now)
{
    sim_tcp *t = ep;
    size_t n = 0;
    int64_t idx;
    if (now < t->start)
        return 0;
    while (n < max_segs && (n + 1) * DATAGRAM <= cap && next_packet(t, &idx)) {
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
        t->pipe++;
        t->sent_at[idx & (WINDOW - 1)] = now;
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
    return t->next == 0 ? t->start : t->rto_at;
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
    if (!t->recovery || t->backoff == 0)
        reduce(t);
    t->cwnd = 1;
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
    if (i < t->rcv || i >= t->rcv + WINDOW || t->have[i & (WINDOW - 1)]) {
        t->ack_now = true;
        return;
    }
    t->have[i & (WINDOW - 1)] = 1;
    int64_t x = i, y = i + 1;
    bool gap = i != t->rcv;
    while (t->have[t->rcv & (WINDOW - 1)]) {
        t->have[t->rcv & (WINDOW - 1)] = 0;
        t->rcv++;
    }
    if (gap || t->block[0][1] > t->rcv) {
        /* The block around the newest packet first, then those reported before. */
        int64_t out[BLOCKS][2] = {{0}};
        int n = 1;
        for (int k = 0; k < BLOCKS; k++) {
            int64_t bx = t->block[k][0], by = t->block[k][1];
            if (by > t->rcv && bx <= y && by >= x) {
                x = bx < x ? bx : x;
                y = by > y ? by : y;
            } else if (by > t->rcv && n < BLOCKS) {
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
    for (int k = 0; k < BLOCKS; k++)
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

sim_tcp *sim_tcp_new(sim_net *n, const udt_addr *a, const udt_addr *b, udt_time start, int *id_a,
                     int *id_b)
{
    static const sim_ep_ops sender = {a_input, NULL, a_output, a_deadline, a_tick};
    static const sim_ep_ops receiver = {b_input, NULL, b_output, b_deadline, b_tick};
    sim_tcp *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->a = *a;
    t->b = *b;
    t->start = start;
    t->cwnd = INITIAL_CWND;
    t->ssthresh = WINDOW;
    t->rto_at = t->delack = UDT_NEVER;
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
