#include "udt/cc.h"

#include <math.h>
#include <string.h>

const udt_cc_ops *const udt_cc_all[] = {&udt_cc_udt, &udt_cc_bbr_ops, &udt_cc_cubic_ops,
                                        &udt_cc_fixed_ops, NULL};

const udt_cc_ops *udt_cc_find(const char *name, bool plain)
{
    if (!name)
        return plain ? &udt_cc_udt : &udt_cc_bbr_ops;
    for (int i = 0; udt_cc_all[i]; i++)
        if (strcmp(udt_cc_all[i]->name, name) == 0)
            return udt_cc_all[i];
    return NULL;
}

uint32_t udt_cc_rand(udt_cc *cc)
{
    cc->rand = cc->rand * 1664525u + 1013904223u;
    return cc->rand >> 8;
}

void udt_cc_set_rate(udt_cc *cc, double pps)
{
    double period = 1e9 / fmax(pps, 1.0);
    cc->period_ns = period < 1 ? 1 : (int64_t)period;
    if (cc->period_ns < cc->min_period_ns)
        cc->period_ns = cc->min_period_ns;
}

int64_t udt_cc_cap_ns(const udt_cc_params *p)
{
    return p->max_bw_Bps > 0 ? (int64_t)(1e9 * p->mss / (double)p->max_bw_Bps) : 0;
}

void udt_cc_set_mss(udt_cc *cc, const udt_cc_params *p)
{
    bool capped = cc->period_ns <= cc->min_period_ns;
    cc->mss = p->mss;
    cc->min_period_ns = udt_cc_cap_ns(p);
    if (capped || cc->period_ns < cc->min_period_ns)
        cc->period_ns = cc->min_period_ns;
}
