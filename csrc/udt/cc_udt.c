/* The native congestion control of UDT (spec 6): slow start, then a sending rate that grows by the
 * bandwidth that seems left and shrinks by 1/9 per congestion epoch, plus the repairs of spec 6.6
 * and 9, none of which shows on the wire:
 *
 * - The rate comes from delivery-rate samples (BBR's estimator), never from the receiver's first
 *   guesses, so an early loss cannot end in 16 packets/s, and it is a rate, so its period has no
 *   microsecond steps and no inverted formula.
 * - Slow start ends when the delivery rate stops growing (three rounds, or two with loss), not at
 *   the first lost packet; a rising RTT ends it only if what was under way then does not arrive
 *   faster than what came before: jitter raises the RTT too, but holds nothing back.
 * - The rate is not cut below what the path has just been seen to deliver (9/10 of it while a
 *   queue stands), so random loss does not strangle it; every few rounds one round probes 25 %
 *   above, and the next drains what that has queued. Loss that stays when we slow down is chance,
 *   and made up for. The rate never exceeds 5/4 of what this comes to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "udt/cc.h"

#define SYN_US 10000
#define INITIAL_CWND 16
#define PROBE_GAIN 1.25
#define PROBE_DOUBT 1.19 /* nearly all that a probe sends more, when slow start ended in doubt */
#define PROBE_AGAIN 1.5  /* after a probe that paid */
#define DRAIN_GAIN 0.75  /* first round after slow start: empty the queue it has filled */
#define RTT_SAMPLES 6    /* in a round before its RTT may end slow start */
#define PROBE_ROUNDS 4
#define SEEK_ROUNDS 3 /* with DRAIN_GAIN, to see the RTT without a queue of ours */
#define GROWTH 1.2    /* slow start goes on while a round delivers this much more */
#define FULL_ROUNDS 3 /* and ends after so many rounds that did not */
#define MIN_RTT_PERIOD_US 5000000
#define MIN_CWND 16
#define SMALL_CWND 64
#define CHANCE_LOSS_MAX 0.4 /* loss that stays when we slow down is made up for, up to this */
#define LOSS_EXCESS 0.3     /* so much more than chance: the rate is too high */
#define LOWER 0.85          /* then the estimate falls by this at least */
#define LOWER_MOST 0.5
#define LOWER_AGAIN 0.1
#define COLLAPSE 0.5 /* so much more than chance, and the round ends early */
#define JUMP_ROUNDS 3
#define OVERSHOT 0.2 /* slow start: so much more than chance is lost */
#define MIN_ROUND_US 1000
#define NOISY 0.1 /* so much loss by chance hides what a probe finds: it is asked more often */

static double max_get(const udt_cc_max *f)
{
    return fmax(fmax(f->bucket[0], f->bucket[1]), fmax(f->bucket[2], f->bucket[3]));
}

static void max_put(udt_cc_max *f, double x, int64_t window_us, udt_time now)
{
    if (now >= f->rotate_at) {
        f->at = (f->at + 1) & 3;
        f->bucket[f->at] = 0;
        f->rotate_at = now + window_us / 4;
    }
    if (x > f->bucket[f->at])
        f->bucket[f->at] = x;
}

static void set_rate(udt_cc *cc, double pps)
{
    udt_cc_set_rate(cc, pps);
    cc->u.native.paced_pps[0] = fmax(cc->u.native.paced_pps[0], 1e9 / (double)cc->period_ns);
}

/* The rate that delivers bw in spite of the loss that is chance. */
static double sustain(const udt_cc_native *n)
{
    return n->bw_pps / (1 - n->chance_loss);
}

/* The sending rate after slow start; a probing round goes above it. */
static void apply_rate(udt_cc *cc)
{
    const udt_cc_native *n = &cc->u.native;
    if (n->drain)
        set_rate(cc, n->rate_pps * DRAIN_GAIN);
    else if (n->probe_wait == 0)
        set_rate(cc, fmax(n->rate_pps, (n->probe_paid ? PROBE_AGAIN : PROBE_GAIN) * sustain(n)));
    else
        set_rate(cc, n->rate_pps);
}

static void native_init(udt_cc *cc, const udt_cc_params *p)
{
    udt_cc_native *n = &cc->u.native;
    memset(n, 0, sizeof *n);
    cc->mss = p->mss;
    cc->rand = p->rand;
    cc->min_period_ns = udt_cc_cap_ns(p);
    cc->period_ns = cc->min_period_ns;
    cc->cwnd_pkts = INITIAL_CWND;
    n->slow_start = true;
    n->paced_pps[0] = 1e9; /* the first window is not paced */
    n->probe_every = n->probe_wait = PROBE_ROUNDS;
    n->last_dec_seq = -1;
    n->least_loss = 1;
    n->dec_random = 1;
    n->avg_nak = 1;
}

/* How much the RTT may vary without meaning anything. */
static int64_t rtt_slack(const udt_cc_native *n)
{
    int64_t slack = n->min_rtt_us / 8;
    return slack < 4000 ? 4000 : slack > 16000 ? 16000 : slack;
}

/* The smallest RTT of about the last period. If a whole period was above it, that may be our own
 * queue: a few slow rounds show whether the path has become longer. */
static void note_rtt(udt_cc_native *n, int64_t rtt, udt_time now)
{
    if (now - n->min_rtt_at > MIN_RTT_PERIOD_US) {
        bool higher = n->min_rtt_next_us > n->min_rtt_us + rtt_slack(n);
        n->seek_rounds = higher && !n->sought && !n->slow_start ? SEEK_ROUNDS : 0;
        n->sought = n->seek_rounds > 0;
        if (!n->sought)
            n->min_rtt_us = n->min_rtt_next_us;
        n->min_rtt_next_us = 0;
        n->min_rtt_at = now;
    }
    if (rtt <= 0)
        return;
    if (!n->min_rtt_us || rtt < n->min_rtt_us)
        n->min_rtt_us = rtt;
    if (!n->min_rtt_next_us || rtt < n->min_rtt_next_us)
        n->min_rtt_next_us = rtt;
    n->round_samples++;
    if (!n->round_rtt_us || rtt < n->round_rtt_us)
        n->round_rtt_us = rtt;
}

static int64_t base_rtt(const udt_cc_native *n, int64_t srtt)
{
    return n->min_rtt_us ? n->min_rtt_us : srtt;
}

/* This round's smallest RTT is well above the path's: slow start fills a queue, or it is jitter. */
static bool rtt_rises(const udt_cc_native *n)
{
    int64_t slack = rtt_slack(n);
    slack = slack > 2 * n->harmless_us ? slack : 2 * n->harmless_us;
    return n->round_samples >= RTT_SAMPLES && n->round_rtt_us > n->min_rtt_us + slack;
}

/* Leave slow start with the rate the path has shown. */
static void leave_slow_start(udt_cc *cc, int64_t srtt)
{
    udt_cc_native *n = &cc->u.native;
    n->slow_start = n->doubt = false;
    n->drain = true;
    n->rate_pps = n->bw_pps > 0 ? n->bw_pps : (double)cc->cwnd_pkts * 1e6 / (double)(srtt + SYN_US);
    n->last_dec_pps = n->rate_pps;
    n->probe_wait = 2;
}

/* What is under way when the RTT rises tells a queue from jitter: it was sent faster than anything
 * that has arrived so far. If it arrives as fast as it was sent there is no queue; if the delivery
 * rate stays where it is, the path is full. Until that is known we send as if it were. */
static void watch_rtt(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_native *n = &cc->u.native;
    if (!n->doubt) {
        if (n->bw_pps <= 0 || !rtt_rises(n))
            return;
        n->doubt = true;
        n->doubt_end = a->next;
        double sent_pps = (double)a->in_flight * 1e6 / (double)n->round_rtt_us;
        sent_pps = (sent_pps * (1 - n->chance_loss) + n->bw_pps) / 2;
        n->doubt_pps = fmax(sent_pps, GROWTH * n->bw_pps);
        n->doubt_rtt_us = n->round_rtt_us;
    } else if (n->bw_pps >= n->doubt_pps) {
        n->doubt = false;
        n->harmless_us = n->doubt_rtt_us - n->min_rtt_us;
    } else if (a->ack >= n->doubt_end) {
        leave_slow_start(cc, a->srtt_us);
        n->left_in_doubt = true;
    }
}

static void slow_start_round(udt_cc *cc, int64_t srtt)
{
    udt_cc_native *n = &cc->u.native;
    bool overshot = n->full_bw > 0 && n->round_lost + n->round_acked >= SMALL_CWND &&
                    n->loss_rate > 1.5 * n->chance_loss + OVERSHOT;
    if (overshot) {
        leave_slow_start(cc, srtt);
        return;
    }
    if (n->bw_pps >= n->full_bw * GROWTH) {
        n->full_bw = n->bw_pps;
        n->full_rounds = 0;
        if (!n->inflated) /* a full path has a queue and does not grow */
            n->chance_loss = fmin(n->loss_rate, CHANCE_LOSS_MAX);
        return;
    }
    if (n->round_limited || n->round_acked < SMALL_CWND / 2)
        return;
    n->full_rounds += n->inflated || n->loss_rate > n->chance_loss + 0.1 ? 2 : 1;
    if (n->full_rounds >= FULL_ROUNDS)
        leave_slow_start(cc, srtt);
}

/* Two probes in a row have found much more, or the first after an end in doubt: slow start has
 * ended too early, or the path is new. */
static void resume_slow_start(udt_cc *cc)
{
    udt_cc_native *n = &cc->u.native;
    n->slow_start = true;
    n->full_bw = n->bw_pps;
    n->full_rounds = 0;
    if (n->left_in_doubt && n->doubt_rtt_us - n->min_rtt_us > n->harmless_us)
        n->harmless_us = n->doubt_rtt_us - n->min_rtt_us;
    n->left_in_doubt = false;
    cc->cwnd_pkts = (int64_t)(n->bw_pps * (double)n->min_rtt_us / 1e6) + MIN_CWND;
}

/* Probing: one round at 5/4 of the rate, and again at once while that pays. */
static void probe_round(udt_cc *cc)
{
    udt_cc_native *n = &cc->u.native;
    if (n->probe_wait == 0) {
        n->probe_wait = -1; /* its result shows one round later */
    } else if (n->probe_wait < 0) {
        bool paid = n->bw_pps > 1.05 * n->probe_from && !n->inflated;
        double much = n->left_in_doubt && !n->probe_paid ? PROBE_DOUBT : PROBE_GAIN;
        if ((n->probe_paid || n->left_in_doubt) && n->bw_pps > much * n->probe_from &&
            !n->inflated && n->min_rtt_us >= SYN_US)
            resume_slow_start(cc);
        n->probe_paid = paid;
        n->probe_every = paid || n->chance_loss > NOISY ? PROBE_ROUNDS : 2 * PROBE_ROUNDS;
        n->probe_wait = paid ? 1 : n->probe_every;
        n->drain = !paid && (n->inflated || n->loss_rate > 0);
    }
    if (n->probe_wait > 0 && --n->probe_wait == 0) {
        if (n->inflated) {
            n->probe_wait = 1;
            return;
        }
        n->probe_from = n->bw_pps;
        n->chance_loss = n->least_loss < 1 ? fmin(n->least_loss, CHANCE_LOSS_MAX) : 0;
        n->least_loss = 1;
    }
}

/* Most of what is sent is lost, what was lost before and is sent again too: the oldest hole may
 * stay, and a round that waits for it would not end. */
static bool collapsed(const udt_cc_native *n)
{
    double total = (double)(n->round_lost + n->round_acked);
    return n->round_lost >= SMALL_CWND && !n->slow_start &&
           (double)n->round_lost > (n->chance_loss + COLLAPSE) * total;
}

/* The path takes less than we believed: what this round has delivered, but not less than half,
 * unless it was so before and the sample counts all that arrived. */
static void lower_estimate(udt_cc_native *n, bool exact)
{
    double part = n->round_bw > 0 && n->bw_pps > 0 ? n->round_bw / n->bw_pps : LOWER;
    part = fmin(fmax(part, exact && n->lowered > 0 ? LOWER_AGAIN : LOWER_MOST), LOWER);
    n->lowered++;
    for (int i = 0; i < 4; i++)
        n->filter.bucket[i] *= part;
    n->bw_pps *= part;
    n->rate_pps *= part;
}

/* The smallest RTT has become half as long again from one round to the next and stays so: the way
 * may have become longer. A few slow rounds show its RTT without a queue of ours. */
static void watch_jumps(udt_cc_native *n, udt_time now)
{
    int64_t last = n->last_rtt_us, rtt = n->round_rtt_us;
    if (!rtt)
        return;
    n->last_rtt_us = rtt;
    if (last && rtt > last + last / 2 + SYN_US)
        n->jump_rounds = 1;
    else if (n->jump_rounds > 0 && llabs(rtt - last) <= last / 16 + 1000)
        n->jump_rounds++;
    else
        n->jump_rounds = 0;
    if (n->jump_rounds < JUMP_ROUNDS || n->seek_rounds > 0)
        return;
    n->jump_rounds = 0;
    n->seek_rounds = SEEK_ROUNDS;
    n->sought = true;
    n->min_rtt_next_us = 0;
    n->min_rtt_at = now - MIN_RTT_PERIOD_US + (SEEK_ROUNDS + 1) * rtt;
}

/* A round has passed: everything sent at its start is acknowledged. */
static void end_round(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_native *n = &cc->u.native;
    int64_t total = n->round_lost + n->round_acked;
    int64_t floor = base_rtt(n, a->srtt_us);
    n->loss_rate = total > 0 ? (double)n->round_lost / (double)total : 0;
    n->inflated = n->round_rtt_us > floor + (floor / 4 > SYN_US ? floor / 4 : SYN_US);
    if (n->slow_start) {
        slow_start_round(cc, a->srtt_us);
    } else {
        watch_jumps(n, a->now);
        n->drain = n->seek_rounds > 0;
        n->seek_rounds -= n->drain;
        if (total >= SMALL_CWND / 2)
            n->least_loss = fmin(n->least_loss, n->loss_rate);
        if (n->loss_rate > n->chance_loss + LOSS_EXCESS && total >= SMALL_CWND)
            lower_estimate(n, a->exact && collapsed(n));
        else
            n->lowered = 0;
        probe_round(cc);
    }
    n->round_end = a->next;
    n->round_at = a->now;
    n->round_lost = n->round_acked = 0;
    n->paced_pps[2] = n->paced_pps[1];
    n->paced_pps[1] = n->paced_pps[0];
    n->paced_pps[0] = 1e9 / (double)(cc->period_ns > 0 ? cc->period_ns : 1);
    n->round_rtt_us = n->round_samples = 0;
    n->round_bw = 0;
    n->round_limited = false;
}

/* Spec 6.1: packets per SYN added for a bandwidth of `left` pkt/s that seems free. */
static double increase_pkts(double left, uint32_t mss)
{
    if (left <= 0)
        return 0.01;
    double inc = pow(10, ceil(log10(left * mss * 8))) * 1.5e-6 / mss;
    return inc > 0.01 ? inc : 0.01;
}

static void increase(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_native *n = &cc->u.native;
    int64_t since = a->now - n->inc_at;
    if (since < SYN_US)
        return;
    if (since > 4 * SYN_US)
        since = 4 * SYN_US; /* ACKs are rarer than SYN: make up for some */
    n->inc_at = a->now;
    if (n->loss_flag) {
        n->loss_flag = false;
        return;
    }
    if (n->inflated)
        return;
    double cap = fmax(PROBE_GAIN * n->bw_pps, (double)a->capacity_pps);
    double left = cap - n->rate_pps;
    if (n->rate_pps < n->last_dec_pps && cap / 9 < left)
        left = cap / 9;
    n->rate_pps += increase_pkts(left, cc->mss) * 1e6 / SYN_US * (double)since / SYN_US;
}

static void steady(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_native *n = &cc->u.native;
    increase(cc, a);
    if (n->bw_pps > 0) {
        if (n->rate_pps > PROBE_GAIN * sustain(n))
            n->rate_pps = PROBE_GAIN * sustain(n);
        double floor = n->inflated ? 0.9 * n->bw_pps : sustain(n);
        if (n->rate_pps < floor)
            n->rate_pps = floor;
        else if (n->inflated && n->rate_pps > n->bw_pps)
            n->rate_pps = n->bw_pps;
    }
    apply_rate(cc);
    /* Room for a window, the peer's ACK interval and the repair of holes. */
    double rtt = (double)(base_rtt(n, a->srtt_us) + SYN_US);
    cc->cwnd_pkts = (int64_t)(4 * fmax(n->bw_pps, n->rate_pps) * rtt / 1e6) + MIN_CWND;
}

/* Slow start goes on: what went into an outage does not tell that too much was sent, whenever its
 * loss is reported. */
static void resume(udt_cc_native *n, int64_t next)
{
    n->outage_end = next;
    n->round_lost = 0;
    n->loss_rate = 0;
    n->doubt = false;
}

static void native_on_ack(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_native *n = &cc->u.native;
    if (a->resumed && n->slow_start)
        resume(n, a->next);
    int64_t window_us = 10 * a->srtt_us > 200000 ? 10 * a->srtt_us : 200000;
    note_rtt(n, a->rtt_us, a->now);
    double rate_pps =
        fmin(a->rate_pps, fmax(n->paced_pps[0], fmax(n->paced_pps[1], n->paced_pps[2])));
    /* What comes beside repairs is the least that the path carries: good to raise an estimate, not
     * to be the first. */
    bool least = a->app_limited || a->repairing, first = n->bw_pps == 0 && a->repairing;
    if (rate_pps > 0 && !first && (!least || rate_pps > n->bw_pps))
        max_put(&n->filter, rate_pps, window_us, a->now);
    n->bw_pps = max_get(&n->filter);
    n->round_bw = fmax(n->round_bw, rate_pps);
    n->round_acked += a->acked_pkts;
    n->round_limited |= a->app_limited || n->doubt;
    bool stuck = a->now - n->round_at > a->srtt_us + a->srtt_us / 2 && collapsed(n);
    if ((a->ack >= n->round_end && a->now - n->round_at >= MIN_ROUND_US) || stuck)
        end_round(cc, a);
    if (n->slow_start)
        watch_rtt(cc, a);
    if (!n->slow_start) {
        steady(cc, a);
        return;
    }
    if (n->doubt) {
        set_rate(cc, DRAIN_GAIN * n->bw_pps);
        return;
    }
    if (a->in_flight * 2 > cc->cwnd_pkts)
        cc->cwnd_pkts += a->acked_pkts;
    /* After an outage nothing else may come for long; what had come before it does not count. */
    cc->cwnd_pkts += a->repaired_pkts < cc->cwnd_pkts ? a->repaired_pkts : cc->cwnd_pkts;
    if (cc->cwnd_pkts > a->window_pkts && a->window_pkts > INITIAL_CWND)
        cc->cwnd_pkts = a->window_pkts;
    double rate = 2e6 * (double)cc->cwnd_pkts / (double)(a->srtt_us > 0 ? a->srtt_us : 1);
    /* In doubt whether there is more, overshoot less; and what is sent again is not limited by the
     * window, so it must not go out faster than the path has been seen to take. */
    if (cc->cwnd_pkts <= SMALL_CWND)
        ; /* too few packets to judge by */
    else if (n->full_rounds > 0)
        rate = fmin(rate, 1.5 * sustain(n));
    else if (n->bw_pps > 0 && (n->round_lost > 0 || n->loss_rate > 0))
        rate = fmin(rate, 2 * sustain(n));
    set_rate(cc, rate);
}

static void native_on_loss(udt_cc *cc, const udt_cc_loss *l)
{
    udt_cc_native *n = &cc->u.native;
    if (l->startup || (n->slow_start && l->first < n->outage_end))
        return;
    n->round_lost += l->lost_pkts;
    if (n->slow_start)
        return; /* judged at the end of the round, by growth */
    n->loss_flag = true;
    bool decrease = false;
    if (l->first > n->last_dec_seq) {
        n->last_dec_pps = n->rate_pps;
        n->avg_nak = ceil(0.875 * n->avg_nak + 0.125 * n->nak_count);
        n->nak_count = n->dec_count = 1;
        n->dec_random = 1 + (int)(udt_cc_rand(cc) % (uint32_t)n->avg_nak);
        decrease = true;
    } else if (n->dec_count < 5) {
        n->dec_count++;
        decrease = ++n->nak_count % n->dec_random == 0;
    }
    if (!decrease)
        return;
    n->last_dec_seq = l->next - 1;
    n->rate_pps = fmax(n->rate_pps / 1.125, n->inflated ? 0.9 * n->bw_pps : sustain(n));
    apply_rate(cc);
}

/* As in libudt the rate stays after slow start: what is sent again is bounded by the caller. */
static void native_on_timeout(udt_cc *cc, int times, udt_time now)
{
    (void)now;
    if (times >= 2 && cc->u.native.slow_start)
        cc->cwnd_pkts = cc->cwnd_pkts / 2 > MIN_CWND ? cc->cwnd_pkts / 2 : MIN_CWND;
}

static void native_on_warning(udt_cc *cc)
{
    udt_cc_native *n = &cc->u.native;
    if (n->slow_start)
        return;
    n->rate_pps /= 1.125;
    set_rate(cc, n->rate_pps);
}

const udt_cc_ops udt_cc_udt = {
    .name = "udt",
    .init = native_init,
    .on_ack = native_on_ack,
    .on_loss = native_on_loss,
    .on_timeout = native_on_timeout,
    .on_warning = native_on_warning,
};
