/* A law after BBR (version 3 in outline, draft-ietf-ccwg-bbr): a model of the path from what it
 * delivers, and a sending rate and a bound of packets in flight from the model.
 *
 *   bw       best delivery rate of this cycle and the one before
 *   min_rtt  smallest round trip of the last 10 s
 *   hi       packets in flight that the path has been seen to take without much loss
 *   lo, bw_lo  what it took in the last rounds with too much loss, until the next probe
 *
 *   STARTUP  doubles each round trip until the delivery rate stands still
 *   DRAIN    until the queue of that is gone
 *   DOWN     0.9 of the rate until the queue of the last probe is gone
 *   CRUISE   the rate, 2 to 3 s by the clock whatever the round trip
 *   REFILL   one round without lo
 *   UP       5/4 of the rate, until that fills a queue or is lost
 *   PROBE_RTT  half of what is in flight, when 10 s brought no round trip near the smallest
 *
 * Loss is judged by the round, against the loss that does not go away when we slow down (chance):
 * only 2 % beyond it mean anything, and chance is made up for. */
#include <math.h>
#include <string.h>

#include "udt/cc.h"

#define INITIAL_CWND 64
#define INITIAL_US 10000 /* the first window is paced over this, the round trip being unknown */
#define MIN_CWND 4
#define STARTUP_GAIN 2.77
#define CWND_GAIN 2.0
#define UP_GAIN 1.25
#define UP_STEP_US 20000 /* hi is raised twice as fast after at least so long */
#define DOWN_GAIN 0.9
#define CALM_GAIN 1.0      /* cruising without a queue */
#define QUEUED_GAIN 0.95   /* and with one, so that it drains */
#define QUEUE_MAX_US 50000 /* of others, that the window makes room for */
#define GROWTH 1.25
#define FULL_ROUNDS 3
#define LOSS_THRESH 0.02
#define LOSS_LEAST 8 /* packets, to judge by */
#define BETA 0.7
#define HEADROOM 0.85
#define CHANCE_MAX 0.4
#define MIN_RTT_US 10000000 /* how long a smallest round trip is believed */
#define PROBE_RTT_US 200000
#define CRUISE_US 2000000
#define CRUISE_RAND_US 1000000
#define CRUISE_ROUNDS 63
#define AGG_ROUNDS 10
#define LUMP_US 1000 /* acknowledgements and timers are no finer than this */

#define YIELD 0.7   /* of the rate, when a queue has overflowed */
#define FORGET 0.85 /* of the estimate: where the next probe begins */
enum { STARTUP, DRAIN, DOWN, CRUISE, REFILL, UP, PROBE_RTT };

static double gain_of(const udt_cc_bbr *b)
{
    switch (b->state) {
    case STARTUP:
        return STARTUP_GAIN;
    case DRAIN:
        return 0.5;
    case DOWN:
        return DOWN_GAIN;
    case UP:
        return UP_GAIN;
    default:
        return b->queued ? QUEUED_GAIN : CALM_GAIN;
    }
}

static double bw_now(const udt_cc_bbr *b)
{
    return b->bw_lo > 0 && b->bw_lo < b->bw ? b->bw_lo : b->bw;
}

/* Packets in flight at the path's rate and smallest round trip. */
static double bdp(const udt_cc_bbr *b, double bw)
{
    return bw * (double)b->min_rtt_us * 1e-6;
}

static uint32_t next_rand(udt_cc *cc)
{
    cc->rand = cc->rand * 1664525u + 1013904223u;
    return cc->rand >> 8;
}

static void set_rate(udt_cc *cc, double pps)
{
    double period = 1e9 / fmax(pps, 1.0);
    cc->period_ns = period < 1 ? 1 : (int64_t)period;
    if (cc->period_ns < cc->min_period_ns)
        cc->period_ns = cc->min_period_ns;
}

static void bbr_init(udt_cc *cc, const udt_cc_params *p)
{
    udt_cc_bbr *b = &cc->u.bbr;
    memset(b, 0, sizeof *b);
    cc->mss = p->mss;
    cc->rand = p->rand;
    cc->min_period_ns = p->max_bw_Bps > 0 ? (int64_t)(1e9 * p->mss / (double)p->max_bw_Bps) : 0;
    cc->cwnd_pkts = INITIAL_CWND;
    set_rate(cc, 1e6 * INITIAL_CWND / INITIAL_US);
    b->state = STARTUP;
    b->hi = b->lo = INT64_MAX;
}

static void enter(udt_cc *cc, int state, udt_time now)
{
    udt_cc_bbr *b = &cc->u.bbr;
    b->state = state;
    b->phase_at = now;
    b->phase_rounds = 0;
    if (state == DOWN) {
        b->bw_cycle[1] = b->bw_cycle[0];
        b->bw_cycle[0] = 0;
        b->cycle_at = now;
        b->cycle_rounds = 0;
        b->cruise_us = CRUISE_US + next_rand(cc) % CRUISE_RAND_US;
    } else if (state == REFILL) {
        b->lo = INT64_MAX;
        b->bw_lo = 0;
        b->yielded = false;
    } else if (state == UP) {
        b->up_bw = b->bw;
        b->up_rtt_us = b->srtt_us > b->min_rtt_us ? b->srtt_us : b->min_rtt_us;
        b->up_rounds = 0;
        b->up_pkts = 1;
        b->up_at = now;
    }
}

/* ---- the model ---- */

static void note_rtt(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (a->rtt_us <= 0)
        return;
    if (!b->round_rtt_us || a->rtt_us < b->round_rtt_us)
        b->round_rtt_us = a->rtt_us;
    int64_t near = b->min_rtt_us + b->min_rtt_us / 32 + 100;
    if (!b->min_rtt_us || a->rtt_us <= b->min_rtt_us) {
        b->min_rtt_us = a->rtt_us;
        b->min_rtt_at = a->now;
    } else if (a->rtt_us <= near) {
        b->min_rtt_at = a->now;
    }
    if (b->state == PROBE_RTT && (!b->seen_rtt_us || a->rtt_us < b->seen_rtt_us))
        b->seen_rtt_us = a->rtt_us;
}

static void note_bw(udt_cc_bbr *b, const udt_cc_ack *a)
{
    if (a->rate_pps <= 0)
        return;
    if (a->rate_pps > b->bw_latest)
        b->bw_latest = a->rate_pps;
    if ((a->app_limited || a->repairing) && a->rate_pps <= b->bw)
        return;
    if (a->rate_pps > b->bw_cycle[0])
        b->bw_cycle[0] = a->rate_pps;
    b->bw = fmax(b->bw_cycle[0], b->bw_cycle[1]);
}

/* Acknowledgements in lumps: how many more came at once than the rate explains. */
static void note_lumps(udt_cc_bbr *b, const udt_cc_ack *a)
{
    double due = bw_now(b) * (double)(a->now - b->agg_at) * 1e-6;
    if (b->agg_acked <= due) {
        b->agg_acked = due = 0;
        b->agg_at = a->now;
    }
    b->agg_acked += (double)a->acked_pkts;
    double extra = fmin(b->agg_acked - due, (double)a->acked_pkts + bdp(b, b->bw) / 2);
    if (extra > b->agg[0])
        b->agg[0] = extra;
}

static bool queue_stands(const udt_cc_bbr *b)
{
    int64_t slack = b->min_rtt_us / 8;
    slack = slack < 400 ? 400 : slack;
    return b->round_rtt_us > b->min_rtt_us + slack;
}

/* More was lost in this round than chance explains, three deviations of it included. */
static bool lost_much(const udt_cc_bbr *b)
{
    double total = (double)(b->round_lost + b->round_acked), chance = b->chance * total;
    return b->round_lost >= LOSS_LEAST &&
           (double)b->round_lost > 1.25 * chance + LOSS_THRESH * total + 3 * sqrt(chance);
}

/* Loss that stays in the slow phases is chance: the smallest of a cycle. */
static void learn_chance(udt_cc_bbr *b)
{
    int64_t total = b->round_lost + b->round_acked;
    if (total < 4 * LOSS_LEAST || b->state == UP || b->state == STARTUP)
        return;
    double loss = (double)b->round_lost / (double)total;
    if (!queue_stands(b) || loss < b->chance)
        b->chance += (fmin(loss, CHANCE_MAX) - b->chance) / 8;
}

/* A standing queue, and more lost than chance explains: somebody has overflowed it. */
static bool overflow(const udt_cc_bbr *b)
{
    double chance = b->chance * (double)(b->round_lost + b->round_acked);
    return queue_stands(b) && (double)b->round_lost > chance + 3 * sqrt(chance) + 1;
}

static void too_much_lost(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->state == UP) {
        double at = fmax((double)(b->round_in_flight - b->round_lost), bdp(b, bw_now(b)) * BETA);
        b->hi = (int64_t)at;
        enter(cc, DOWN, a->now);
        return;
    }
    if (b->state == STARTUP)
        return;
    double bw = b->bw_lo > 0 ? b->bw_lo : b->bw;
    int64_t lo = b->lo < INT64_MAX ? b->lo : cc->cwnd_pkts;
    b->bw_lo = fmax(b->bw_latest, BETA * bw);
    int64_t least = b->round_acked;
    b->lo = (int64_t)(BETA * (double)lo) > least ? (int64_t)(BETA * (double)lo) : least;
}

/* Make room for those who have only their losses to go by, until the queue is gone or the next
 * probe. */
static void yield(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->state == UP) {
        b->hi = b->round_in_flight - b->round_lost;
        enter(cc, DOWN, a->now);
    }
    if (!b->yielded) {
        b->bw_lo = YIELD * bw_now(b);
        b->bw_cycle[0] *= FORGET;
        b->bw_cycle[1] *= FORGET;
        b->bw *= FORGET;
        b->yielded = true;
    }
}

/* ---- phases ---- */

static void startup_round(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->bw >= b->full_bw * GROWTH) {
        b->full_bw = b->bw;
        b->full_rounds = 0;
        if (!queue_stands(b) && b->round_acked >= 4 * LOSS_LEAST)
            b->chance =
                fmin((double)b->round_lost / (double)(b->round_lost + b->round_acked), CHANCE_MAX);
        return;
    }
    if (b->round_limited || b->round_acked < MIN_CWND)
        return;
    b->full_rounds += queue_stands(b) || lost_much(b) ? 2 : 1;
    if (b->full_rounds >= FULL_ROUNDS) {
        if (lost_much(b))
            b->hi = (int64_t)fmax(bdp(b, b->bw), (double)b->round_acked);
        enter(cc, DRAIN, a->now);
    }
}

static void end_round(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    b->cycle_rounds++;
    b->phase_rounds++;
    b->up_rounds++;
    if (b->state == STARTUP)
        startup_round(cc, a);
    else if (lost_much(b))
        too_much_lost(cc, a);
    else if (overflow(b))
        yield(cc, a);
    else if (b->yielded && !queue_stands(b)) {
        b->bw_lo = 0;
        b->yielded = false;
    }
    learn_chance(b);
    if (++b->agg_rounds >= AGG_ROUNDS / 2) {
        b->agg[1] = b->agg[0];
        b->agg[0] = 0;
        b->agg_rounds = 0;
    }
    b->queued = queue_stands(b);
    b->round_end = a->next;
    b->round_at = a->now;
    b->round_lost = b->round_acked = b->round_rtt_us = b->round_in_flight = 0;
    b->round_limited = false;
    b->bw_latest = 0;
}

static void leave_probe_rtt(udt_cc *cc, udt_time now)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->seen_rtt_us)
        b->min_rtt_us = b->seen_rtt_us;
    b->min_rtt_at = now;
    if (b->full_rounds < FULL_ROUNDS)
        enter(cc, STARTUP, now);
    else
        enter(cc, CRUISE, now);
}

static void step(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    double now_bdp = bdp(b, bw_now(b));
    bool round_passed = a->now - b->phase_at > b->min_rtt_us;
    switch (b->state) {
    case DRAIN:
        if ((double)a->in_flight <= now_bdp || b->phase_rounds > 3)
            enter(cc, DOWN, a->now);
        break;
    case DOWN:
        if (((double)a->in_flight <= now_bdp &&
             (b->hi == INT64_MAX || (double)a->in_flight <= HEADROOM * (double)b->hi)) ||
            b->phase_rounds > 6)
            enter(cc, CRUISE, a->now);
        break;
    case CRUISE:
        if (a->now - b->cycle_at > b->cruise_us || b->cycle_rounds > CRUISE_ROUNDS)
            enter(cc, REFILL, a->now);
        break;
    case REFILL:
        if (b->phase_rounds >= 1 && round_passed)
            enter(cc, UP, a->now);
        break;
    case UP:
        if (b->hi < INT64_MAX && (double)a->in_flight >= 0.9 * (double)b->hi) {
            /* Raise it while it holds, in a round by 1/64, then twice as much as before. */
            b->hi_credit += fmax((double)b->up_pkts, (double)b->hi / 64) * (double)a->acked_pkts;
            int64_t more = (int64_t)(b->hi_credit / (double)b->hi);
            b->hi_credit -= (double)(more * b->hi);
            b->hi += more;
        }
        if (b->up_rounds >= 1) {
            b->up_rounds = 0;
            if (a->now - b->up_at >= UP_STEP_US) {
                b->up_at = a->now;
                b->up_pkts *= 2;
            }
            if (b->bw >= b->up_bw * 1.05) {
                b->up_bw = b->bw; /* it pays: go on */
                b->phase_at = a->now;
                break;
            }
        }
        if (a->now - b->phase_at > b->up_rtt_us &&
            (double)a->in_flight >= UP_GAIN * bw_now(b) * (double)b->up_rtt_us * 1e-6)
            enter(cc, DOWN, a->now);
        break;
    case PROBE_RTT:
        if (a->in_flight <= cc->cwnd_pkts && !b->probe_rtt_end)
            b->probe_rtt_end = a->now + PROBE_RTT_US;
        if (b->probe_rtt_end && a->now >= b->probe_rtt_end && b->phase_rounds >= 1)
            leave_probe_rtt(cc, a->now);
        break;
    default:
        break;
    }
    if (b->state != PROBE_RTT && b->min_rtt_us && a->now - b->min_rtt_at > MIN_RTT_US) {
        enter(cc, PROBE_RTT, a->now);
        b->seen_rtt_us = 0;
        b->probe_rtt_end = 0;
    }
}

/* ---- what follows from it ---- */

static void apply(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->bw <= 0 || !b->min_rtt_us) {
        cc->cwnd_pkts += a->acked_pkts;
        if (a->srtt_us > 0)
            set_rate(cc, STARTUP_GAIN * 1e6 * (double)cc->cwnd_pkts / (double)a->srtt_us);
        return;
    }
    double bw = bw_now(b), rate = gain_of(b) * bw / (1 - b->chance);
    if (b->state == STARTUP) /* the first samples are small */
        rate = fmax(rate, 1.5e6 * (double)cc->cwnd_pkts / fmax((double)a->srtt_us, LUMP_US));
    if (b->state != STARTUP || 1e9 / fmax(rate, 1) < (double)cc->period_ns)
        set_rate(cc, rate);
    double rtt = (double)b->min_rtt_us;
    if (b->state == STARTUP) {
        double cwnd =
            (b->queued ? 1.5 : CWND_GAIN) * bw * fmax(rtt, LUMP_US) * 1e-6 / (1 - b->chance);
        bool rises = a->rtt_us > b->min_rtt_us + b->min_rtt_us / 16 + 1000;
        cc->cwnd_pkts += a->acked_pkts;
        if ((double)cc->cwnd_pkts > cwnd && (rises || b->queued || b->full_rounds > 0))
            cc->cwnd_pkts = cwnd > INITIAL_CWND ? (int64_t)cwnd : INITIAL_CWND;
    } else {
        rtt = fmax(rtt, fmin((double)a->srtt_us, rtt + QUEUE_MAX_US));
        cc->cwnd_pkts =
            (int64_t)(CWND_GAIN * bw * rtt * 1e-6 / (1 - b->chance) + fmax(b->agg[0], b->agg[1]) +
                      fmax(MIN_CWND, rate * LUMP_US * 1e-6));
    }
    int64_t cap = b->hi;
    if (cap < INT64_MAX && (b->state == CRUISE || b->state == DOWN))
        cap = (int64_t)(HEADROOM * (double)cap);
    cap = b->lo < cap ? b->lo : cap;
    if (b->state == PROBE_RTT && cap > (int64_t)(bdp(b, bw) / 2))
        cap = (int64_t)(bdp(b, bw) / 2);
    if (cc->cwnd_pkts > cap)
        cc->cwnd_pkts = cap;
    if (cc->cwnd_pkts < MIN_CWND)
        cc->cwnd_pkts = MIN_CWND;
}

static void bbr_on_ack(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    b->round_acked += a->acked_pkts;
    b->round_limited |= a->app_limited;
    if (a->in_flight > b->round_in_flight)
        b->round_in_flight = a->in_flight;
    b->srtt_us = a->srtt_us;
    note_rtt(cc, a);
    note_bw(b, a);
    note_lumps(b, a);
    if (a->ack >= b->round_end || a->now - b->round_at > 2 * a->srtt_us)
        end_round(cc, a);
    step(cc, a);
    apply(cc, a);
}

static void bbr_on_loss(udt_cc *cc, const udt_cc_loss *l)
{
    if (!l->startup)
        cc->u.bbr.round_lost += l->lost_pkts;
}

static void bbr_on_undo(udt_cc *cc, int64_t pkts, udt_time now)
{
    (void)now;
    udt_cc_bbr *b = &cc->u.bbr;
    b->round_lost = b->round_lost > pkts ? b->round_lost - pkts : 0;
}

static void bbr_on_timeout(udt_cc *cc, int times, udt_time now)
{
    (void)now;
    if (times >= 2)
        cc->cwnd_pkts = cc->cwnd_pkts / 2 > MIN_CWND ? cc->cwnd_pkts / 2 : MIN_CWND;
}

static void bbr_on_warning(udt_cc *cc)
{
    udt_cc_bbr *b = &cc->u.bbr;
    b->bw_lo = bw_now(b) / 1.125;
}

const udt_cc_ops udt_cc_bbr_ops = {
    .name = "bbr",
    .init = bbr_init,
    .on_ack = bbr_on_ack,
    .on_loss = bbr_on_loss,
    .on_timeout = bbr_on_timeout,
    .on_warning = bbr_on_warning,
    .on_undo = bbr_on_undo,
};
