/* What the receiver measures: the history of ACKs sent (RTT, by ACK2), arrival rate and link
 * capacity. Rates are counted over time windows, so packets that arrive in batches (same time
 * stamp) give sane values. Of probe pairs the mean gap counts: those inside one batch have 0, those
 * that straddle two have the batches' distance, and only both together say the truth. */
#ifndef UDT_WINDOW_H
#define UDT_WINDOW_H

#include "udt_types.h"

#define UDT_ACK_HISTORY 256
#define UDT_PAIRS 64

typedef struct udt_ack_entry {
    uint32_t subseq;
    udt_time sent_us;
    int64_t ack; /* index acknowledged */
} udt_ack_entry;

typedef struct udt_window {
    udt_ack_entry *history; /* UDT_ACK_HISTORY entries, allocated with the first ACK */
    udt_time rate_from;     /* start of the running rate window */
    int64_t rate_pkts;      /* packets in it */
    int64_t rate_pps;       /* arrival rate, 1 before the first window */
    udt_time pair_at;       /* arrival of the first packet of a probe pair, UDT_NEVER = none */
    int64_t pair_gap_ns;    /* mean gap of the last 64 or so probe pairs */
    int pairs;              /* of them */
} udt_window;

#define UDT_CAPACITY_INITIAL 1000 /* pkt/s, before any probe */

void udt_window_init(udt_window *w, udt_time now);
void udt_window_fini(udt_window *w);
/* Remember an ACK that was sent. Without memory the ACK merely yields no RTT. */
void udt_window_ack_sent(udt_window *w, uint32_t subseq, int64_t ack, udt_time now);
/* The ACK that an ACK2 confirms; false when unknown or too old. */
bool udt_window_ack2(const udt_window *w, uint32_t subseq, udt_ack_entry *out);

/* A data packet arrived. */
static inline void udt_window_arrival(udt_window *w, uint32_t seq, udt_time now)
{
    w->rate_pkts++;
    if ((seq & 15) == 0) {
        w->pair_at = now;
    } else if ((seq & 15) == 1 && w->pair_at != UDT_NEVER) {
        w->pairs += w->pairs < UDT_PAIRS;
        w->pair_gap_ns += ((now - w->pair_at) * 1000 - w->pair_gap_ns) / w->pairs;
        w->pair_at = UDT_NEVER;
    }
}
/* Close the rate window when it is long enough. */
void udt_window_sample(udt_window *w, udt_time now);
/* Estimates to report, always >= 1. */
int64_t udt_window_rate(const udt_window *w);
int64_t udt_window_capacity(const udt_window *w);

#endif
