/* The modelled TCP's window after CUBIC (RFC 9438) with HyStart, as in Linux. */
#include <math.h>

#include "sim/tcp_priv.h"

#define CUBIC_C 0.4
#define CUBIC_BETA 0.7
#define HYSTART_SAMPLES 8

static void reduce(sim_tcp *t)
{
    tcp_cubic *u = &t->u.cubic;
    u->wmax = t->cwnd < u->wmax ? t->cwnd * (1 + CUBIC_BETA) / 2 : t->cwnd;
    t->cwnd = fmax(2, t->cwnd * CUBIC_BETA);
    u->ssthresh = t->cwnd;
    u->epoch = 0;
}

static void grow(sim_tcp *t, int64_t acked, udt_time now)
{
    tcp_cubic *u = &t->u.cubic;
    if (t->cwnd < u->ssthresh) {
        t->cwnd += (double)acked;
        return;
    }
    if (!u->epoch) {
        u->epoch = now;
        u->w_est = t->cwnd;
        u->origin = fmax(t->cwnd, u->wmax);
        u->k = cbrt((u->origin - t->cwnd) / CUBIC_C);
    }
    double s = (double)(now - u->epoch + t->min_rtt) * 1e-6 - u->k;
    double target = u->origin + CUBIC_C * s * s * s;
    u->w_est += 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA) * (double)acked / t->cwnd;
    target = fmin(fmax(target, t->cwnd), 1.5 * t->cwnd);
    t->cwnd += (target - t->cwnd) / t->cwnd * (double)acked;
    if (t->cwnd < u->w_est)
        t->cwnd = u->w_est;
    if (t->cwnd > TCP_WINDOW / 2)
        t->cwnd = TCP_WINDOW / 2;
}

/* The first round trips of a round are well above the last round's: slow start ends. */
static void hystart(sim_tcp *t, int64_t rtt)
{
    tcp_cubic *u = &t->u.cubic;
    if (t->cwnd >= u->ssthresh || t->cwnd < 16)
        return;
    if (t->una >= u->round_end) {
        u->round_end = t->next;
        u->last_round_min = u->round_min;
        u->round_min = u->round_n = 0;
    }
    if (u->round_n++ >= HYSTART_SAMPLES)
        return;
    if (!u->round_min || rtt < u->round_min)
        u->round_min = rtt;
    int64_t slack = t->min_rtt / 8;
    slack = slack < 4000 ? 4000 : slack > 16000 ? 16000 : slack;
    if (u->round_n == HYSTART_SAMPLES && u->round_min >= t->min_rtt + slack)
        u->ssthresh = t->cwnd;
}

static void cubic_acked(sim_tcp *t, const tcp_news *w)
{
    if (w->rtt)
        hystart(t, w->rtt);
    if (w->acked && !t->recovery)
        grow(t, w->acked, w->now);
}

static void cubic_lost(sim_tcp *t, udt_time now)
{
    (void)now;
    reduce(t);
}

static void cubic_timeout(sim_tcp *t, bool first)
{
    if (first)
        reduce(t);
    t->cwnd = 1;
}

void sim__tcp_cubic_init(sim_tcp *t)
{
    t->u.cubic.ssthresh = TCP_WINDOW;
}

const tcp_law sim__tcp_cubic = {cubic_acked, cubic_lost, cubic_timeout};
