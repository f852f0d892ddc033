/* The model of the law after BBR: what the path delivers, how long it takes, what is lost without
 * our doing (see cc_bbr.c). */
#include <math.h>

#include "udt/cc_bbr.h"

#define LOSS_THRESH 0.02
#define COLLAPSE 0.2
#define CHANCE_MAX 0.4
#define CHANCE_TRUST 0.005  /* so much is believed without a proof */
#define CHANCE_PROOF 8      /* losses to be expected of it, to prove it by */
#define CHANCE_UNCLEAR 0.75 /* less than so much of it takes four times as many */
#define FINE_PKTS 2
#define FINE_US 20000000       /* small bursts are kept for so long at first */
#define FINE_MOST_US 320000000 /* and at most, having been needed each time */
#define PROVED_KEEPS 0.75      /* of what was proved, in a cycle */
#define YIELD_SETTLES 3 /* rounds after which losses are not those of the queue that overflowed */
#define DEEP_US 15000
#define SHARE_LEAST_PUSH 1.08 /* times what was delivered before: smaller ones show nothing */
#define SHARE_PART 0.4        /* of a new sample in the mean */
#define SHARE_OFF 0.5         /* a sample lies so far beyond 0 and 1 at most */

/* Much is lost that may be a policer and not chance: does it go away when we slow down? */
static bool in_doubt(const udt_cc_bbr *b)
{
    return b->chance > 2 * b->proved + CHANCE_TRUST;
}

/* What is sent now will show it. */
static bool proves(const udt_cc_bbr *b)
{
    return (b->state == DRAIN || b->state == DOWN) && in_doubt(b);
}

double udt__bbr_make_up(const udt_cc_bbr *b)
{
    /* What went away the last time is not made up for before it is proved. */
    double share = b->disproved && in_doubt(b) ? b->proved : b->chance;
    return proves(b) ? 1 : 1 / (1 - share);
}

double udt__bbr_bw_now(const udt_cc_bbr *b)
{
    return b->bw_lo > 0 && b->bw_lo < b->bw ? b->bw_lo : b->bw;
}

double udt__bbr_bdp(const udt_cc_bbr *b, double bw)
{
    return bw * (double)b->min_rtt_us * 1e-6;
}

void udt__bbr_note_rtt(udt_cc *cc, const udt_cc_ack *a)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (a->rtt_us <= 0)
        return;
    if (!b->round_rtt_us || a->rtt_us < b->round_rtt_us)
        b->round_rtt_us = a->rtt_us;
    int64_t near = b->min_rtt_us + b->min_rtt_us / 32 + 100;
    /* After a rest there is no queue of ours: what comes first is the way as it is now. */
    if (b->rested)
        b->last_rtt_us = 0;
    if (!b->min_rtt_us || a->rtt_us <= b->min_rtt_us || b->rested) {
        b->rested = false;
        b->min_rtt_us = a->rtt_us;
        b->min_rtt_at = a->now;
    } else if (a->rtt_us <= near) {
        b->min_rtt_at = a->now;
    }
    if (b->state == PROBE_RTT && (!b->seen_rtt_us || a->rtt_us < b->seen_rtt_us))
        b->seen_rtt_us = a->rtt_us;
}

void udt__bbr_note_bw(udt_cc_bbr *b, const udt_cc_ack *a)
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

void udt__bbr_note_lumps(udt_cc_bbr *b, const udt_cc_ack *a)
{
    double due = udt__bbr_bw_now(b) * (double)(a->now - b->agg_at) * 1e-6;
    if (b->agg_acked <= due) {
        b->agg_acked = due = 0;
        b->agg_at = a->now;
    }
    b->agg_acked += (double)a->acked_pkts;
    double extra = fmin(b->agg_acked - due, (double)a->acked_pkts + udt__bbr_bdp(b, b->bw) / 2);
    if (extra > b->agg[0])
        b->agg[0] = extra;
}

bool udt__bbr_queue_stands(const udt_cc_bbr *b)
{
    int64_t slack = b->min_rtt_us / 8;
    slack = slack < 400 ? 400 : slack;
    return b->round_rtt_us > b->min_rtt_us + slack;
}

bool udt__bbr_queue_deep(const udt_cc_bbr *b)
{
    int64_t depth = b->last_rtt_us - b->min_rtt_us;
    return depth > DEEP_US && depth > b->min_rtt_us;
}

void udt__bbr_mark(udt_cc_bbr *b, udt_time now)
{
    b->mark_delivered = b->delivered;
    b->mark_in_flight = b->in_flight;
    b->mark_at = now;
}

static double pps(int64_t pkts, udt_time us)
{
    return us > 0 ? (double)pkts * 1e6 / (double)us : 0;
}

double udt__bbr_delivered_pps(const udt_cc_bbr *b, udt_time now)
{
    return pps(b->delivered - b->mark_delivered, now - b->mark_at);
}

double udt__bbr_sent_pps(const udt_cc_bbr *b, udt_time now)
{
    int64_t sent = b->delivered - b->mark_delivered + b->in_flight - b->mark_in_flight;
    return pps(sent, now - b->mark_at);
}

/* Others sending as before, a full path delivers push / (1 - share + share * push) of what it
 * delivered. Rates are means: best samples are lumps, and outlive what they have measured. */
void udt__bbr_learn_share(udt_cc_bbr *b, udt_time now)
{
    double got = udt__bbr_delivered_pps(b, now);
    if (b->cruise_pps <= 0 || got <= 0 || b->push_pps < SHARE_LEAST_PUSH * b->cruise_pps)
        return;
    double push = b->push_pps / b->cruise_pps, won = got / b->cruise_pps;
    double share = (push / won - 1) / (push - 1);
    share = fmax(fmin(share, 1 + SHARE_OFF), -SHARE_OFF);
    b->share += (share - b->share) * SHARE_PART;
}

bool udt__bbr_lost_much(const udt_cc_bbr *b)
{
    double total = (double)(b->round_lost + b->round_acked), chance = b->chance * total;
    return b->round_lost >= LOSS_LEAST &&
           (double)b->round_lost > 1.25 * chance + LOSS_THRESH * total + 3 * sqrt(chance);
}

void udt__bbr_learn_chance(udt_cc_bbr *b)
{
    int64_t total = b->round_lost + b->round_acked;
    if (total < 4 * LOSS_LEAST || b->state == UP || b->state == STARTUP)
        return;
    double loss = (double)b->round_lost / (double)total;
    /* Round trips that vary look like a queue that stands; what is lost when we have made room for
     * a while is still no overflow. */
    bool settled = b->yielded && b->yield_rounds >= YIELD_SETTLES;
    if (!udt__bbr_queue_stands(b) || loss < b->chance || settled)
        b->chance += (fmin(loss, CHANCE_MAX) - b->chance) / 8;
}

/* Small bursts help; the longer, the oftener they were left out in vain. */
static void keep_fine(udt_cc_bbr *b, udt_time now)
{
    udt_time twice = 2 * b->fine_us;
    b->fine_us = twice < FINE_US ? FINE_US : twice < FINE_MOST_US ? twice : FINE_MOST_US;
    b->fine_until = now + b->fine_us;
    b->fine = true;
    b->coarse = false;
}

void udt__bbr_new_cycle(udt_cc_bbr *b, udt_time now)
{
    b->proved *= PROVED_KEEPS;
    if (b->coarse) { /* a cycle without them, and little was lost */
        b->coarse = false;
        b->fine_us = 0;
    } else if (b->fine && now >= b->fine_until) {
        b->fine = false;
        b->coarse = true;
    }
}

void udt__bbr_prove_chance(udt_cc *cc, udt_time now)
{
    udt_cc_bbr *b = &cc->u.bbr;
    if (b->coarse && b->state == CRUISE && udt__bbr_lost_much(b))
        keep_fine(b, now);
    if (b->slow_before && in_doubt(b)) {
        b->slow_lost += (double)b->round_marked;
        b->slow_total += (double)(b->round_lost + b->round_acked);
        double expected = b->chance * b->slow_total, lost = b->slow_lost;
        bool unclear = lost >= expected / 2 && lost < CHANCE_UNCLEAR * expected;
        if (expected >= (unclear ? 4 : 1) * CHANCE_PROOF) {
            bool fine = lost < expected / 4 || (b->fine && lost < expected / 2);
            if (fine && !b->fine)
                keep_fine(b, now);
            b->fine = fine;
            b->disproved = lost < expected / 2;
            if (b->disproved)
                b->chance = b->slow_lost / b->slow_total;
            b->proved = b->chance;
            b->slow_lost = b->slow_total = 0;
        }
    }
    b->slow_before = b->slow_now;
    b->slow_now = proves(b);
    if (b->slow_now && !b->slow_before)
        cc->mark = b->delivered;
}

int udt__bbr_burst(const udt_cc_bbr *b)
{
    return b->fine || proves(b) ? FINE_PKTS : 0;
}

bool udt__bbr_proving(const udt_cc_bbr *b)
{
    return in_doubt(b) && !b->slow_before && b->phase_rounds < 3;
}

bool udt__bbr_overflow(const udt_cc_bbr *b)
{
    double chance = b->chance * (double)(b->round_lost + b->round_acked);
    return udt__bbr_queue_stands(b) && (double)b->round_lost > chance + 3 * sqrt(chance) + 0.5;
}

bool udt__bbr_collapsed(const udt_cc_bbr *b)
{
    double total = (double)(b->round_lost + b->round_acked);
    return (double)b->round_lost > (1.25 * b->chance + COLLAPSE) * total;
}

void udt__bbr_startup_chance(udt_cc_bbr *b)
{
    double loss = (double)b->round_lost / (double)(b->round_lost + b->round_acked);
    if (b->cycle_rounds > 2)
        loss = fmin(loss, 1.5 * b->chance + LOSS_THRESH);
    b->chance = fmin(loss, CHANCE_MAX);
}
