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
 *   CRUISE   the rate, 2 to 3 s by the clock whatever the round trip; then DOWN again without a
 *            probe if the last two have shown that most of a standing queue is ours
 *   REFILL   one round without lo
 *   UP       5/4 of the rate, then a round trip of waiting for what that has done
 *   PROBE_RTT  half of what is in flight, when 10 s brought no round trip near the smallest
 *
 * Loss is judged by the round, against the loss that does not go away when we slow down and send
 * in small bursts (chance): only 2 % beyond it mean anything, and chance is made up for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "udt/cc_bbr.h"

#define INITIAL_CWND 64
#define INITIAL_US 10000 /* the first window is paced over this, the round trip being unknown */
#define MIN_CWND 4
#define STARTUP_GAIN 2.77
#define CWND_GAIN 2.0
#define UP_GAIN 1.25
#define UP_PAID 1.19   /* of the rate before */
#define UP_GAINED 1.08 /* and that, if the bound kept it from being paid */
#define UP_PUSHES 2
#define MOST_GAIN 1.08       /* what a push wins, of more than 5/8 of all */
#define NEARLY_ALL_GAIN 1.04 /* of more than 4/5 */
#define UP_ROUNDS 6          /* at most, while hi is raised */
#define UP_PKTS_MAX (1 << 20)
#define UP_LEAST_PPS 40  /* hi is raised in a round by so much rate at least */
#define UP_STEP_US 20000 /* hi is raised twice as fast after at least so long */
#define UP_NOISE 0.05    /* chance, from which on a push is judged by what its bound was raised */
#define DOWN_GAIN 0.9
#define DOWN_ROUNDS 3
#define CALM_GAIN 1.0      /* cruising without a queue */
#define QUEUED_GAIN 0.95   /* and with one, so that it drains */
#define LARGE_GAIN 0.85    /* with one, most of what goes through being ours */
#define LARGE_SHARE 0.55   /* most, in a deep queue */
#define QUEUE_MAX_US 60000 /* of others, that the window makes room for */
#define GROWTH 1.25
#define FULL_ROUNDS 3
#define BETA 0.7
#define COLLAPSE_LEAST 64
#define HEADROOM 0.85
#define MIN_RTT_US 10000000 /* how long a smallest round trip is believed */
#define PROBE_RTT_US 200000
#define CRUISE_US 2000000
#define CRUISE_RAND_US 1000000
#define CRUISE_ROUNDS 63
#define JUMP_US 5000
#define JUMP_ROUNDS 3
#define FAR_ROUNDS 8
#define FAR_GAIN 3.0 /* several of us fill a deep queue to CWND_GAIN and a bit by themselves */
#define AGG_ROUNDS 10
#define LUMP_US 1000 /* acknowledgements and timers are no finer than this */

#define YIELD 0.7    /* of the rate, when a queue has overflowed */
#define YIELD_US 2e6 /* and so long after the last time */
#define FORGET 0.85  /* of the estimate: where the next probe begins */

/* Most of what goes through is ours. A deep queue is no lateness of a machine, so there it may be
 * all. */
static bool large(const udt_cc_bbr *b)
{
    return udt__bbr_queue_deep(b) ? b->share > LARGE_SHARE : b->large;
}

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
        return b->up_hold ? 1 : UP_GAIN;
    default:
        return b->queued ? (large(b) ? LARGE_GAIN : QUEUED_GAIN) : CALM_GAIN;
    }
}

static void bbr_init(udt_cc *cc, const udt_cc_params *p)
{
    udt_cc_bbr *b = &cc->u.bbr;
    memset(b, 0, sizeof *b);
    cc->mss = p->mss;
    cc->rand = p->rand;
    cc->min_period_ns = udt_cc_cap_ns(p);
    cc->cwnd_pkts = INITIAL_CWND;
    udt_cc_set_rate(cc, 1e6 * INITIAL_CWND / INITIAL_US);
    b->state = STARTUP;
    b->hi = b->lo = INT64_MAX;
    b->share = 0.5;
}

/* The queue has grown by the push: a small share does not show in it. */
static bool push_showed(const udt_cc_bbr *b)
{
    return b->srtt_us > b->up_rtt_us + b->up_rtt_us / 8;
}

/* A push beside others wins the less, the more of all that goes through is ours. Who holds most
 * leaves out the next probes while a queue stands, for a flow that goes by its losses can only rise
 * between them, and cruises slower, for a flow with a long round trip probes seldom; not so who
 * holds nearly all, and may be alone. One probe shows it by chance too, in a crowd where many push
 * at once: it takes two running. */
static int skips_after(udt_cc_bbr *b)
{
    bool before = b->most, nearly_all = b->bw < NEARLY_ALL_GAIN * b->up_first;
    b->most = push_showed(b) && b->bw < MOST_GAIN * b->up_first;
    b->large = b->most && before && !nearly_all;
    if (!b->most || !before)
        return 0;
    return nearly_all ? 2 : 1;
}

static void enter(udt_cc *cc, int state, udt_time now)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->state == UP && state != PROBE_RTT)
        b->skips = skips_after(b);
    if (state == REFILL)
        b->cruise_pps = b->state == CRUISE ? udt__bbr_delivered_pps(b, now) : 0;
    else if (state == CRUISE || state == UP)
        udt__bbr_mark(b, now);
    b->state = state;
    b->slow_now = false;
    b->phase_at = now;
    b->phase_rounds = 0;
    if (state == DOWN) {
        b->bw_cycle[1] = b->bw_cycle[0];
        b->bw_cycle[0] = 0;
        b->cycle_at = now;
        b->cycle_rounds = 0;
        udt__bbr_new_cycle(b, now);
        b->cruise_us = CRUISE_US + udt_cc_rand(cc) % CRUISE_RAND_US;
    } else if (state == REFILL) {
        b->lo = INT64_MAX;
        b->bw_lo = 0;
        b->yielded = false;
    } else if (state == UP) {
        b->up_first = b->up_from = b->bw;
        b->up_hold = false;
        b->up_hi = b->hi;
        b->up_queued = b->queued;
        b->up_pushes = b->up_paid = 0;
        b->up_rtt_us = b->srtt_us > b->min_rtt_us ? b->srtt_us : b->min_rtt_us;
        b->up_rounds = 0;
        b->up_pkts = 1;
        b->up_at = now;
    }
}

/* As many packets on the way were too many; a round that was lost wholly does not say zero. */
static void bound_at(udt_cc_bbr *b, double pkts)
{
    b->hi = (int64_t)fmax(pkts, MIN_CWND);
}

static void too_much_lost(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->state == UP) {
        bound_at(b, fmax((double)(b->round_in_flight - b->round_lost),
                         udt__bbr_bdp(b, udt__bbr_bw_now(b)) * BETA));
        enter(cc, DOWN, a->now);
        return;
    }
    if (b->state == STARTUP)
        return;
    double bw = b->bw_lo > 0 ? b->bw_lo : b->bw;
    int64_t lo = b->lo < INT64_MAX ? b->lo : cc->cwnd_pkts;
    int64_t least = b->round_acked;
    if (udt__bbr_collapsed(b) && b->bw_latest > 0 && !b->round_limited) {
        b->bw_lo = fmin(bw, b->bw_latest);
        least = (int64_t)fmax((double)least, udt__bbr_bdp(b, b->bw_lo));
        b->lo = lo < least ? lo : least;
        b->fell = udt__bbr_queue_stands(b) || ++b->collapses >= 2; /* it is no accident */
        return;
    }
    b->bw_lo = fmax(b->bw_latest, BETA * bw);
    b->lo = (int64_t)(BETA * (double)lo) > least ? (int64_t)(BETA * (double)lo) : least;
}

/* Make room for those who have only their losses to go by, until the queue is gone or the next
 * probe. */
static void yield(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->state == UP) {
        bound_at(b, (double)(b->round_in_flight - b->round_lost));
        enter(cc, DOWN, a->now);
    }
    if (!b->yielded) {
        /* Those who overflow queues again and again do not go by losses: less for them. */
        double part = fmin((double)(a->now - b->yield_at) / YIELD_US, 1);
        double forget = 1 - (1 - FORGET) * part;
        b->bw_lo = fmin(udt__bbr_bw_now(b), (1 - (1 - YIELD) * part) * b->bw);
        b->bw_cycle[0] *= forget;
        b->bw_cycle[1] *= forget;
        b->bw *= forget;
        if (part >= 1 && b->round_in_flight - b->round_lost < b->hi)
            bound_at(b, (double)(b->round_in_flight - b->round_lost));
        b->yielded = true;
        b->yield_rounds = 0;
        b->yield_at = a->now;
    }
}

static void too_much(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    bool full = udt__bbr_overflow(b);
    if (udt__bbr_lost_much(b))
        too_much_lost(cc, a);
    if (full && b->state != DRAIN) /* these were sent before it began */
        yield(cc, a);
}

/* ---- phases ---- */

static void probe_rtt(udt_cc *cc, const udt_cc_ack *a, int64_t pkts, bool rerouted)
{
    udt_cc_bbr *b = &cc->u.bbr;
    enter(cc, PROBE_RTT, a->now);
    b->seen_rtt_us = 0;
    b->probe_rtt_end = 0;
    b->probe_pkts = pkts;
    b->rerouted = rerouted;
    b->high_rtt_us = b->last_rtt_us;
    b->jump_rounds = b->far_rounds = 0;
}

static void startup_round(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    bool over = b->full_bw > 0 && udt__bbr_collapsed(b); /* the last doubling was too much */
    if (b->bw >= b->full_bw * GROWTH) {
        b->full_bw = b->bw;
        b->full_rounds = 0;
        if (!udt__bbr_queue_stands(b) && b->round_acked >= 4 * LOSS_LEAST)
            udt__bbr_startup_chance(b);
        if (!over)
            return;
    }
    if (!over && (b->round_limited || b->round_acked < MIN_CWND))
        return;
    b->full_rounds += over                                                ? FULL_ROUNDS
                      : udt__bbr_queue_stands(b) || udt__bbr_lost_much(b) ? 2
                                                                          : 1;
    if (b->full_rounds >= FULL_ROUNDS) {
        if (udt__bbr_lost_much(b))
            bound_at(b, fmax(udt__bbr_bdp(b, b->bw), (double)b->round_acked));
        enter(cc, DRAIN, a->now);
    }
}

/* The window holds two round trips, and room for others' queue: a round trip beyond both cannot be
 * filled with it, and the rate falls to what fits, again and again. */
static bool too_far(const udt_cc_bbr *b)
{
    return (double)b->round_rtt_us > FAR_GAIN * (double)(b->min_rtt_us + QUEUE_MAX_US);
}

/* Smallest round trips that become half as long again from one round to the next and stay so, or
 * that have become too long little by little: the way may have become longer. A queue of ours would
 * shrink when we send less. */
static void watch_jumps(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    int64_t last = b->last_rtt_us, rtt = b->round_rtt_us;
    if (!rtt)
        return;
    b->last_rtt_us = rtt;
    bool stays = llabs(rtt - last) <= last / 16 + LUMP_US;
    if (!last || b->state == STARTUP || b->state == DRAIN || b->state == PROBE_RTT) {
        b->jump_rounds = b->far_rounds = 0;
        return;
    }
    if (rtt > last + last / 2 + JUMP_US)
        b->jump_rounds = 1;
    else if (b->jump_rounds > 0 && stays)
        b->jump_rounds++;
    else
        b->jump_rounds = 0;
    b->far_rounds = stays && too_far(b) ? b->far_rounds + 1 : 0;
    b->jumped = b->jump_rounds >= JUMP_ROUNDS;
    if (b->jumped || b->far_rounds >= FAR_ROUNDS)
        probe_rtt(cc, a, a->in_flight / 2, true);
}

static void end_round(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    b->cycle_rounds++;
    b->phase_rounds++;
    b->up_rounds++;
    b->yield_rounds++;
    if (b->fell && b->bw_latest > 0 && !b->round_limited) {
        b->bw = b->bw_cycle[0] = b->bw_cycle[1] = fmin(b->bw, b->bw_latest);
        b->fell = udt__bbr_lost_much(b);
    }
    if (b->state == STARTUP)
        startup_round(cc, a);
    else if (udt__bbr_lost_much(b) || udt__bbr_overflow(b))
        too_much(cc, a);
    else if (b->yielded && !udt__bbr_queue_stands(b)) {
        b->bw_lo = 0;
        b->yielded = false;
    }
    udt__bbr_learn_chance(b);
    udt__bbr_prove_chance(cc, a->now);
    watch_jumps(cc, a);
    if (++b->agg_rounds >= AGG_ROUNDS / 2) {
        b->agg[1] = b->agg[0];
        b->agg[0] = 0;
        b->agg_rounds = 0;
    }
    b->queued = udt__bbr_queue_stands(b);
    if (!udt__bbr_collapsed(b))
        b->collapses = 0;
    b->round_end = a->delivered;
    b->round_at = a->now;
    b->round_lost = b->round_acked = b->round_rtt_us = b->round_in_flight = b->round_marked = 0;
    b->round_limited = false;
    b->bw_latest = 0;
}

static void leave_probe_rtt(udt_cc *cc, udt_time now)
{
    udt_cc_bbr *b = &cc->u.bbr;
    bool fell = b->seen_rtt_us && b->seen_rtt_us < b->high_rtt_us - b->high_rtt_us / 8;
    int64_t seen = b->seen_rtt_us, most = b->min_rtt_us + b->min_rtt_us / 4;
    int64_t fits = (int64_t)((double)seen / CWND_GAIN) - QUEUE_MAX_US;
    if (seen && b->rerouted && !fell && b->jumped)
        b->min_rtt_us = seen;
    else if (seen && b->rerouted && !fell) /* or so: as much of it as the window needs to hold it */
        b->min_rtt_us = fits > b->min_rtt_us ? fits : b->min_rtt_us;
    else if (seen && !b->rerouted) /* it may be the queue of others: step by step */
        b->min_rtt_us = seen < most ? seen : most;
    b->min_rtt_at = now;
    if (b->full_rounds < FULL_ROUNDS)
        enter(cc, STARTUP, now);
    else
        enter(cc, b->rerouted && !fell ? REFILL : CRUISE, now);
    if (b->state == CRUISE) { /* others did the same: those who come back first take no more */
        b->cycle_at = now;
        b->cycle_rounds = 0;
    }
}

/* UP is a push at 5/4 of the rate and then a round trip of waiting for what it has done. If it has
 * brought nearly all that was sent more, there is room: on, and from the second time as fast as at
 * the start. If the queue has hardly grown our share is small, and we may push once more: that is
 * what makes unequal shares equal. */
static void judge_push(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    bool rose = push_showed(b);
    udt__bbr_learn_share(b, a->now);
    bool gained = b->bw >= UP_GAINED * b->up_from && !rose && !b->up_queued;
    bool paid = gained && b->bw >= UP_PAID * b->up_from;
    if (paid)
        b->hi = INT64_MAX;
    else if (gained && b->hi < INT64_MAX) /* the bound was less than there is */
        b->hi = (int64_t)(UP_GAIN * (double)b->hi);
    if (paid && ++b->up_paid >= 2) {
        b->full_bw = b->bw;
        b->full_rounds = 0;
        enter(cc, STARTUP, a->now);
    } else if (paid || (!rose && ++b->up_pushes < UP_PUSHES)) {
        udt__bbr_mark(b, a->now);
        b->up_from = b->bw;
        b->up_hi = b->hi;
        b->up_hold = false;
        b->phase_at = a->now;
    } else {
        enter(cc, DOWN, a->now);
    }
}

/* The best of some rounds with much chance loss is a lucky one, which a push does not beat while
 * its bound is hardly more than before. */
static bool narrow(const udt_cc_bbr *b)
{
    return b->chance > UP_NOISE && b->hi < INT64_MAX &&
           (double)b->hi < UP_GAIN * (double)b->up_hi && !push_showed(b) &&
           b->phase_rounds <= 4 * UP_ROUNDS;
}

static void push(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->up_hold) {
        if (b->up_rounds >= 1 && a->now - b->phase_at > b->up_rtt_us)
            judge_push(cc, a);
        return;
    }
    bool bound = cc->cwnd_pkts >= b->hi;
    if (b->hi < INT64_MAX && (double)a->in_flight >= 0.9 * (double)b->hi) {
        /* Raise it while it holds, in a round by 1/64, then twice as much as before. By the same
         * rate for all at least: a small one in a long queue could not rise otherwise. */
        double least = fmax((double)b->hi / 64, UP_LEAST_PPS * 1e-6 * (double)a->srtt_us);
        b->hi_credit += fmax((double)b->up_pkts, least) * (double)a->acked_pkts;
        int64_t more = (int64_t)(b->hi_credit / (double)b->hi);
        b->hi_credit -= (double)(more * b->hi);
        b->hi += more;
    }
    if (b->up_rounds >= 1 && a->now - b->up_at >= UP_STEP_US) {
        b->up_at = a->now;
        b->up_pkts = b->up_pkts < UP_PKTS_MAX ? 2 * b->up_pkts : UP_PKTS_MAX;
        b->up_rounds = 0;
    }
    bool full = (double)a->in_flight >= UP_GAIN * udt__bbr_bw_now(b) * (double)b->up_rtt_us * 1e-6;
    full |= !bound && a->in_flight >= cc->cwnd_pkts - cc->cwnd_pkts / 16;
    if (a->now - b->phase_at > b->up_rtt_us && (full || b->phase_rounds > UP_ROUNDS) &&
        !narrow(b)) {
        b->push_pps = udt__bbr_sent_pps(b, a->now);
        udt__bbr_mark(b, a->now);
        b->up_hold = true;
        b->up_rounds = 0;
        b->phase_at = a->now;
    }
}

static void step(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    double now_bdp = udt__bbr_bdp(b, udt__bbr_bw_now(b));
    bool round_passed = a->now - b->phase_at > b->min_rtt_us;
    switch (b->state) {
    case DRAIN:
        if (((double)a->in_flight <= now_bdp && !udt__bbr_proving(b)) || b->phase_rounds > 3)
            enter(cc, DOWN, a->now);
        break;
    case DOWN:
        if (((double)a->in_flight <= now_bdp && !udt__bbr_proving(b) &&
             (b->hi == INT64_MAX || (double)a->in_flight <= HEADROOM * (double)b->hi)) ||
            b->phase_rounds > DOWN_ROUNDS)
            enter(cc, CRUISE, a->now);
        break;
    case CRUISE:
        if (a->now - b->cycle_at > b->cruise_us || b->cycle_rounds > CRUISE_ROUNDS) {
            bool skip = b->skips > 0 && b->queued;
            b->skips -= skip;
            enter(cc, skip ? DOWN : REFILL, a->now);
        }
        break;
    case REFILL:
        if (b->phase_rounds >= 1 && round_passed)
            enter(cc, UP, a->now);
        break;
    case UP:
        push(cc, a);
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
        probe_rtt(cc, a, (int64_t)(udt__bbr_bdp(b, udt__bbr_bw_now(b)) / 2), false);
    }
}

/* ---- what follows from it ---- */

/* A start doubles its window for what has filled it. The packets of a program that talks now and
 * then say nothing of what the path holds, however many they are in an hour. */
static int64_t startup_growth(const udt_cc *cc, const udt_cc_ack *a)
{
    return a->app_limited && a->in_flight * 2 <= cc->cwnd_pkts ? 0 : a->acked_pkts;
}

static void apply(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->bw <= 0 || !b->min_rtt_us) {
        cc->cwnd_pkts += startup_growth(cc, a);
        if (a->srtt_us > 0)
            udt_cc_set_rate(cc, STARTUP_GAIN * 1e6 * (double)cc->cwnd_pkts / (double)a->srtt_us);
        return;
    }
    double bw = udt__bbr_bw_now(b), rate = gain_of(b) * bw * udt__bbr_make_up(b);
    if (b->state == STARTUP) /* the first samples are small */
        rate = fmax(rate, 1.5e6 * (double)cc->cwnd_pkts / fmax((double)a->srtt_us, LUMP_US));
    if (b->state != STARTUP || 1e9 / fmax(rate, 1) < (double)cc->period_ns)
        udt_cc_set_rate(cc, rate);
    double rtt = (double)b->min_rtt_us;
    if (b->state == STARTUP) {
        double cwnd =
            (b->queued ? 1.5 : CWND_GAIN) * bw * fmax(rtt, LUMP_US) * 1e-6 / (1 - b->chance);
        bool rises = a->rtt_us > b->min_rtt_us + b->min_rtt_us / 16 + 1000;
        cc->cwnd_pkts += startup_growth(cc, a);
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
    /* Room for what is acknowledged in one lump: a window as small as the way makes lumps of what
     * pacing would spread. */
    if (cap < INT64_MAX && !b->queued)
        cap += (int64_t)fmax(b->agg[0], b->agg[1]);
    if (b->state == PROBE_RTT && cap > b->probe_pkts)
        cap = b->probe_pkts;
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
    b->rested |= b->acked_at && a->now - b->acked_at > MIN_RTT_US;
    b->acked_at = a->now;
    b->srtt_us = a->srtt_us;
    b->delivered = a->delivered;
    b->in_flight = a->in_flight;
    udt__bbr_note_rtt(cc, a);
    udt__bbr_note_bw(b, a);
    udt__bbr_note_lumps(b, a);
    bool early = b->round_lost >= COLLAPSE_LEAST && udt__bbr_collapsed(b) &&
                 udt__bbr_queue_stands(b) &&
                 a->now - b->early_at > 2 * a->srtt_us; /* a whole round were too late */
    if (early)
        b->early_at = a->now;
    if (early || a->prior >= b->round_end || a->now - b->round_at > 2 * a->srtt_us)
        end_round(cc, a);
    step(cc, a);
    apply(cc, a);
    cc->burst_pkts = udt__bbr_burst(b);
}

static void bbr_on_loss(udt_cc *cc, const udt_cc_loss *l)
{
    if (!l->startup) {
        cc->u.bbr.round_lost += l->lost_pkts;
        cc->u.bbr.round_marked += l->marked_pkts;
    }
}

static void bbr_on_undo(udt_cc *cc, int64_t pkts, udt_time now)
{
    (void)now;
    udt_cc_bbr *b = &cc->u.bbr;
    b->round_lost = b->round_lost > pkts ? b->round_lost - pkts : 0;
    b->round_marked = b->round_marked > pkts ? b->round_marked - pkts : 0;
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
    b->bw_lo = udt__bbr_bw_now(b) / 1.125;
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
