/* The modelled TCP after BBR version 1, as in Linux (tcp_bbr) and draft-cardwell-iccrg-bbr-00: the
 * neighbour that goes by its own measurements and not by losses. */
#include <math.h>

#include "sim/tcp_priv.h"

#define HIGH_GAIN 2.885
#define CWND_GAIN 2
#define MARGIN 0.99 /* paced a little below what is believed */
#define GROWTH 1.25
#define FULL_ROUNDS 3
#define MIN_RTT_US 10000000
#define PROBE_RTT_US 200000
#define PROBE_CWND 4
#define LUMP_PKTS 6 /* room for delayed acknowledgements and segmentation offload */
#define PHASES 8

enum { STARTUP, DRAIN, PROBE_BW, PROBE_RTT };

static double bw_of(const tcp_bbr *b)
{
    double bw = 0;
    for (int i = 0; i < TCP_BBR_ROUNDS; i++)
        bw = fmax(bw, b->bw[i]);
    return bw;
}

static double bdp(const tcp_bbr *b)
{
    return bw_of(b) * (double)b->min_rtt * 1e-6;
}

static double gain(const tcp_bbr *b)
{
    switch (b->state) {
    case STARTUP:
        return HIGH_GAIN;
    case DRAIN:
        return 1 / HIGH_GAIN;
    case PROBE_BW:
        return b->phase == 0 ? 1.25 : b->phase == 1 ? 0.75 : 1;
    default:
        return 1;
    }
}

static bool note_round(sim_tcp *t, const tcp_news *w)
{
    tcp_bbr *b = &t->u.bbr;
    bool begins = w->prior >= b->round_end;
    if (begins) {
        b->round_end = t->delivered;
        b->bw[++b->round % TCP_BBR_ROUNDS] = 0;
    }
    double *best = &b->bw[b->round % TCP_BBR_ROUNDS];
    *best = fmax(*best, w->rate_pps);
    return begins;
}

static void begin_cycle(sim_tcp *t, udt_time now)
{
    tcp_bbr *b = &t->u.bbr;
    b->state = PROBE_BW;
    b->phase = 2 + (int)((t->delivered ^ t->a.ip[3]) % (PHASES - 2)); /* not all at once */
    b->phase_at = now;
}

static void startup_round(tcp_bbr *b)
{
    double bw = bw_of(b);
    if (bw >= GROWTH * b->full_bw) {
        b->full_bw = bw;
        b->full_rounds = 0;
    } else if (++b->full_rounds >= FULL_ROUNDS) {
        b->state = DRAIN;
    }
}

static void cycle(sim_tcp *t, const tcp_news *w)
{
    tcp_bbr *b = &t->u.bbr;
    bool passed = w->now - b->phase_at > b->min_rtt;
    bool next = passed;
    if (b->phase == 0)
        next = passed && (t->recovery || (double)w->inflight >= 1.25 * bdp(b));
    else if (b->phase == 1)
        next = passed || (double)t->pipe <= bdp(b);
    if (next) {
        b->phase = (b->phase + 1) % PHASES;
        b->phase_at = w->now;
    }
}

static void note_min_rtt(sim_tcp *t, const tcp_news *w)
{
    tcp_bbr *b = &t->u.bbr;
    bool old = b->min_rtt && w->now - b->min_rtt_at > MIN_RTT_US;
    if (w->rtt && (!b->min_rtt || w->rtt <= b->min_rtt || old)) {
        b->min_rtt = w->rtt;
        b->min_rtt_at = w->now;
    }
    if (old && b->state != PROBE_RTT) {
        b->before = fmax(t->cwnd, b->keeping ? b->before : 0);
        b->state = PROBE_RTT;
        b->probe_end = 0;
    }
    if (b->state != PROBE_RTT)
        return;
    if (!b->probe_end && t->pipe <= PROBE_CWND)
        b->probe_end = w->now + PROBE_RTT_US;
    if (b->probe_end && w->now >= b->probe_end) {
        b->min_rtt_at = w->now;
        t->cwnd = fmax(t->cwnd, b->before);
        if (b->full_rounds >= FULL_ROUNDS)
            begin_cycle(t, w->now);
        else
            b->state = STARTUP;
    }
}

static void set_cwnd(sim_tcp *t, const tcp_news *w)
{
    tcp_bbr *b = &t->u.bbr;
    if (b->keeping && (!t->recovery || t->delivered >= b->keep_until)) {
        b->keeping = false; /* a round trip is over: the model decides again */
        t->cwnd = fmax(t->cwnd, b->before);
    }
    double target = (b->state == STARTUP ? HIGH_GAIN : CWND_GAIN) * bdp(b) + LUMP_PKTS;
    if (b->keeping)
        t->cwnd = fmax(t->cwnd, (double)t->pipe + (double)w->acked);
    else if (b->full_rounds >= FULL_ROUNDS)
        t->cwnd = fmin(t->cwnd + (double)w->acked, target);
    else if (t->cwnd < target || t->delivered < 2 * TCP_INITIAL_CWND)
        t->cwnd += (double)w->acked;
    t->cwnd = fmin(fmax(t->cwnd, PROBE_CWND), TCP_WINDOW / 2);
    if (b->state == PROBE_RTT)
        t->cwnd = fmin(t->cwnd, PROBE_CWND);
}

static void bbr_acked(sim_tcp *t, const tcp_news *w)
{
    tcp_bbr *b = &t->u.bbr;
    if (w->acked) {
        bool begins = note_round(t, w);
        if (b->state == STARTUP && begins)
            startup_round(b);
    }
    if (b->state == DRAIN && (double)t->pipe <= bdp(b))
        begin_cycle(t, w->now);
    if (b->state == PROBE_BW)
        cycle(t, w);
    note_min_rtt(t, w);
    double pace = MARGIN * gain(b) * bw_of(b);
    if (b->full_rounds >= FULL_ROUNDS || pace > t->pace_pps)
        t->pace_pps = fmax(pace, 1);
    set_cwnd(t, w);
}

static void bbr_lost(sim_tcp *t, udt_time now)
{
    tcp_bbr *b = &t->u.bbr;
    (void)now;
    b->before = fmax(t->cwnd, b->keeping ? b->before : 0);
    b->keeping = true;
    b->keep_until = t->delivered + t->pipe;
    t->cwnd = fmax((double)t->pipe, PROBE_CWND);
}

static void bbr_timeout(sim_tcp *t, bool first)
{
    (void)first;
    bbr_lost(t, 0);
    t->cwnd = 1;
}

void sim__tcp_bbr_init(sim_tcp *t)
{
    t->pace_pps = HIGH_GAIN * TCP_INITIAL_CWND * 1e3; /* as if a round trip took 1 ms */
}

const tcp_law sim__tcp_bbr = {bbr_acked, bbr_lost, bbr_timeout};
