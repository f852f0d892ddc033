/* CUBIC (RFC 9438) with HyStart++ (RFC 9406) and pacing: what TCP does, for comparison and for
 * paths on which nothing else is welcome. */
#include <math.h>
#include <string.h>

#include "udt/cc.h"

#define INITIAL_CWND 16
#define MIN_CWND 4
#define C 0.4
#define BETA 0.7
#define HYSTART_SAMPLES 8
#define CSS_DIVISOR 4
#define CSS_ROUNDS 5

static void set_rate(udt_cc *cc, int64_t srtt_us)
{
    const udt_cc_cubic *u = &cc->u.cubic;
    double gain = u->cwnd < u->ssthresh ? 2 : 1.25;
    udt_cc_set_rate(cc, gain * u->cwnd * 1e6 / (double)(srtt_us > 0 ? srtt_us : 1));
    cc->cwnd_pkts = (int64_t)u->cwnd;
}

static void cubic_init(udt_cc *cc, const udt_cc_params *p)
{
    udt_cc_cubic *u = &cc->u.cubic;
    memset(u, 0, sizeof *u);
    cc->mss = p->mss;
    cc->rand = p->rand;
    cc->min_period_ns = udt_cc_cap_ns(p);
    cc->period_ns = cc->min_period_ns;
    cc->cwnd_pkts = INITIAL_CWND;
    u->cwnd = INITIAL_CWND;
    u->ssthresh = INFINITY;
    u->recover = -1;
}

/* Slow start's rounds: a round trip well above the last round's slows it down (CSS), five rounds of
 * that end it, a return of the round trip resumes it. */
static void hystart(udt_cc_cubic *u, const udt_cc_ack *a)
{
    if (a->ack >= u->round_end) {
        if (u->css_rounds > 0 && ++u->css_rounds > CSS_ROUNDS)
            u->ssthresh = u->cwnd;
        u->round_end = a->next;
        u->last_min_us = u->round_min_us;
        u->round_min_us = u->samples = 0;
    }
    if (a->rtt_us <= 0)
        return;
    u->samples++;
    if (!u->round_min_us || a->rtt_us < u->round_min_us)
        u->round_min_us = a->rtt_us;
    if (u->samples < HYSTART_SAMPLES || !u->last_min_us)
        return;
    int64_t slack = u->last_min_us / 8;
    slack = slack < 4000 ? 4000 : slack > 16000 ? 16000 : slack;
    if (u->css_rounds == 0 && u->round_min_us >= u->last_min_us + slack) {
        u->css_rounds = 1;
        u->css_base_us = u->round_min_us;
    } else if (u->css_rounds > 0 && u->round_min_us < u->css_base_us) {
        u->css_rounds = 0;
    }
}

static void avoid(udt_cc_cubic *u, const udt_cc_ack *a)
{
    if (!u->epoch) {
        u->epoch = a->now;
        u->w_est = u->cwnd;
        u->origin = fmax(u->cwnd, u->w_max);
        u->k = cbrt((u->origin - u->cwnd) / C);
    }
    double t = (double)(a->now - u->epoch + a->srtt_us) * 1e-6 - u->k;
    double target = fmin(fmax(u->origin + C * t * t * t, u->cwnd), 1.5 * u->cwnd);
    u->w_est += 3 * (1 - BETA) / (1 + BETA) * (double)a->acked_pkts / u->cwnd;
    u->cwnd = fmax(u->cwnd + (target - u->cwnd) / u->cwnd * (double)a->acked_pkts, u->w_est);
}

static void cubic_on_ack(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_cubic *u = &cc->u.cubic;
    if (u->cwnd < u->ssthresh)
        hystart(u, a);
    bool used = (double)a->in_flight * 2 > u->cwnd; /* else the window limits nothing */
    if (used && a->ack > u->recover) {
        if (u->cwnd < u->ssthresh)
            u->cwnd += (double)a->acked_pkts / (u->css_rounds > 0 ? CSS_DIVISOR : 1);
        else
            avoid(u, a);
    }
    if (u->cwnd > (double)a->window_pkts && a->window_pkts > INITIAL_CWND)
        u->cwnd = (double)a->window_pkts;
    set_rate(cc, a->srtt_us);
}

static void reduce(udt_cc_cubic *u)
{
    u->before = u->cwnd;
    u->before_max = u->w_max;
    u->before_ssthresh = u->ssthresh;
    u->w_max = u->cwnd < u->w_max ? u->cwnd * (1 + BETA) / 2 : u->cwnd;
    u->cwnd = fmax(MIN_CWND, u->cwnd * BETA);
    u->ssthresh = u->cwnd;
    u->epoch = 0;
}

static void cubic_on_loss(udt_cc *cc, const udt_cc_loss *l)
{
    udt_cc_cubic *u = &cc->u.cubic;
    if (l->startup)
        return;
    if (l->first <= u->recover) {
        u->reduced_pkts += l->lost_pkts;
        return; /* once a round trip */
    }
    u->recover = l->next - 1;
    u->reduced_pkts = l->lost_pkts;
    reduce(u);
    set_rate(cc, l->srtt_us);
}

/* All that the last reduction was for has arrived: it was reordering. */
static void cubic_on_undo(udt_cc *cc, int64_t pkts, udt_time now)
{
    udt_cc_cubic *u = &cc->u.cubic;
    (void)now;
    if (u->reduced_pkts <= 0)
        return;
    u->reduced_pkts -= pkts;
    if (u->reduced_pkts > 0 || u->before < u->cwnd)
        return;
    u->cwnd = u->before;
    u->w_max = u->before_max;
    u->ssthresh = u->before_ssthresh;
    u->recover = -1;
    u->epoch = 0;
    cc->cwnd_pkts = (int64_t)u->cwnd;
}

static void cubic_on_timeout(udt_cc *cc, int times, udt_time now)
{
    udt_cc_cubic *u = &cc->u.cubic;
    (void)now;
    if (times == 1)
        reduce(u);
    u->cwnd = MIN_CWND;
    cc->cwnd_pkts = MIN_CWND;
    u->reduced_pkts = 0;
}

static void cubic_on_warning(udt_cc *cc)
{
    reduce(&cc->u.cubic);
}

const udt_cc_ops udt_cc_cubic_ops = {
    .name = "cubic",
    .init = cubic_init,
    .on_ack = cubic_on_ack,
    .on_loss = cubic_on_loss,
    .on_timeout = cubic_on_timeout,
    .on_warning = cubic_on_warning,
    .on_undo = cubic_on_undo,
};
