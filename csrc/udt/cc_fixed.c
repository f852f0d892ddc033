/* A given rate (max_bw_Bps, bytes of IP packets a second), whatever the path does: for circuits
 * that are reserved, and for measurements. Without a rate it sends as fast as the window allows. */
#include "udt/cc.h"

#define INITIAL_CWND 64
#define LUMP_US 20000 /* what acknowledgements and their loss may delay */

static void fixed_init(udt_cc *cc, const udt_cc_params *p)
{
    cc->mss = p->mss;
    cc->rand = p->rand;
    cc->min_period_ns = udt_cc_cap_ns(p);
    cc->period_ns = cc->min_period_ns > 0 ? cc->min_period_ns : 1;
    cc->cwnd_pkts = INITIAL_CWND;
}

/* Room for two round trips at the rate. */
static void fixed_on_ack(udt_cc *cc, const udt_cc_ack *a)
{
    if (!cc->min_period_ns)
        cc->cwnd_pkts += a->acked_pkts;
    else
        cc->cwnd_pkts = INITIAL_CWND + 2 * (a->srtt_us + LUMP_US) * 1000 / cc->min_period_ns;
    if (cc->cwnd_pkts > a->window_pkts && a->window_pkts > INITIAL_CWND)
        cc->cwnd_pkts = a->window_pkts;
}

static void fixed_on_loss(udt_cc *cc, const udt_cc_loss *l)
{
    (void)cc;
    (void)l;
}

static void fixed_on_timeout(udt_cc *cc, int times, udt_time now)
{
    (void)cc;
    (void)times;
    (void)now;
}

static void fixed_on_warning(udt_cc *cc)
{
    (void)cc;
}

const udt_cc_ops udt_cc_fixed_ops = {
    .name = "fixed",
    .init = fixed_init,
    .on_ack = fixed_on_ack,
    .on_loss = fixed_on_loss,
    .on_timeout = fixed_on_timeout,
    .on_warning = fixed_on_warning,
};
