#include "udt/window.h"

#include <stdlib.h>
#include <string.h>

#define RATE_BURST_US 1000 /* shortest span with a rate, if it has as many packets as this: */
#define RATE_BURST_PKTS 64
#define RATE_WINDOW_US 5000
#define RATE_WINDOW_IDLE_US 1000000 /* a longer one holds a pause: it says nothing */
#define PAIRS_MIN 4
#define GAP_MIN_NS 500       /* all pairs of a while in one batch each: below the clock's grain */
#define REPORT_MAX 100000000 /* pkt/s; peers read signed 32-bit values */

void udt_window_init(udt_window *w, udt_time now)
{
    memset(w, 0, sizeof *w);
    w->rate_from = now;
    w->rate_pps = 1;
    w->pair_at = UDT_NEVER;
}

void udt_window_fini(udt_window *w)
{
    free(w->history);
    w->history = NULL;
}

void udt_window_ack_sent(udt_window *w, uint32_t subseq, int64_t ack, udt_time now)
{
    if (!w->history)
        w->history = calloc(UDT_ACK_HISTORY, sizeof *w->history);
    if (w->history)
        w->history[subseq % UDT_ACK_HISTORY] = (udt_ack_entry){subseq, now, ack};
}

bool udt_window_ack2(const udt_window *w, uint32_t subseq, udt_ack_entry *out)
{
    if (!w->history || subseq == 0)
        return false;
    *out = w->history[subseq % UDT_ACK_HISTORY];
    return out->subseq == subseq;
}

void udt_window_sample(udt_window *w, udt_time now)
{
    int64_t span = now - w->rate_from;
    if (span < RATE_BURST_US || (span < RATE_WINDOW_US && w->rate_pkts < RATE_BURST_PKTS))
        return;
    if (span < RATE_WINDOW_IDLE_US && w->rate_pkts >= 8) {
        int64_t pps = w->rate_pkts * 1000000 / span;
        /* libudt leaves its slow start, which doubles, with this: a mean would lag behind. */
        w->rate_pps = pps > w->rate_pps ? pps : (3 * w->rate_pps + pps) / 4;
    } else if (span < RATE_WINDOW_IDLE_US) {
        return; /* too few packets: go on counting */
    }
    w->rate_from = now;
    w->rate_pkts = 0;
}

int64_t udt_window_rate(const udt_window *w)
{
    return w->rate_pps < 1 ? 1 : w->rate_pps < REPORT_MAX ? w->rate_pps : REPORT_MAX;
}

int64_t udt_window_capacity(const udt_window *w)
{
    if (w->pairs < PAIRS_MIN)
        return w->rate_pps > UDT_CAPACITY_INITIAL ? udt_window_rate(w) : UDT_CAPACITY_INITIAL;
    int64_t gap = w->pair_gap_ns > GAP_MIN_NS ? w->pair_gap_ns : GAP_MIN_NS;
    int64_t pps = 1000000000 / gap;
    int64_t rate = udt_window_rate(w);
    pps = pps > rate ? pps : rate;
    return pps < REPORT_MAX ? pps : REPORT_MAX;
}
