/* Congestion control: a table of operations over numbers. It never sees the connection.
 *
 * A controller sets `period_ns` (time between packets) and `cwnd_pkts` (packets in flight). Its
 * state lives inside the connection. udt_cc_all lists every algorithm, NULL at the end. */
#ifndef UDT_CC_H
#define UDT_CC_H

#include "udt_types.h"

typedef struct udt_cc udt_cc;

typedef struct udt_cc_params {
    uint32_t mss;       /* IP packet size, bytes */
    uint32_t rand;      /* seed of the controller's own choices */
    int64_t max_bw_Bps; /* 0 = unlimited */
} udt_cc_params;

/* An acknowledgement that moved on. */
typedef struct udt_cc_ack {
    udt_time now;
    int64_t ack;           /* everything before this index has arrived */
    int64_t next;          /* next new index to send: rounds are counted with it */
    int64_t acked_pkts;    /* newly acknowledged, > 0 */
    int64_t repaired_pkts; /* those sent again that acked_pkts leaves out (not in own mode) */
    int64_t delivered;     /* packets acknowledged until now */
    int64_t prior;         /* the same when the newest acknowledged packet was sent, -1 = unknown */
    int64_t in_flight; /* packets on the path before this acknowledgement, repeats too if known */
    int64_t sent_in_flight; /* the same when the newest acknowledged packet was sent, 0 = unknown */
    int64_t rtt_us;         /* clean sample, 0 = none */
    int64_t srtt_us;        /* smoothed */
    double rate_pps;        /* delivery rate sample, 0 = none */
    bool exact;             /* the sample counts every packet that arrived, not only first ones */
    bool app_limited;       /* the sample was taken while the application had nothing to send */
    bool repairing;         /* mostly sending again: the sample says too little */
    bool resumed;         /* the first after a silence: what was lost in it was not for the rate */
    int64_t window_pkts;  /* peer's flow window */
    int64_t capacity_pps; /* the peer's estimate from packet pairs, 0 = unknown */
} udt_cc_ack;

typedef struct udt_cc_loss {
    udt_time now;
    int64_t first;       /* smallest packet reported */
    int64_t lost_pkts;   /* newly known to be lost */
    int64_t marked_pkts; /* of these, sent when udt_cc.mark or more had arrived; or all of them */
    int64_t next;        /* next new index to send */
    int64_t srtt_us;
    bool startup; /* among the first packets after the handshake: no congestion (spec 2.2) */
} udt_cc_loss;

typedef struct udt_cc_ops {
    const char *name;
    void (*init)(udt_cc *cc, const udt_cc_params *p);
    void (*on_ack)(udt_cc *cc, const udt_cc_ack *a);
    void (*on_loss)(udt_cc *cc, const udt_cc_loss *l);
    /* Nothing was heard for a whole timeout; `n` = how often in a row. */
    void (*on_timeout)(udt_cc *cc, int n, udt_time now);
    /* The peer's delay warning (type 4). */
    void (*on_warning)(udt_cc *cc);
    /* `pkts` packets given to on_loss were not lost but late. May be NULL. */
    void (*on_undo)(udt_cc *cc, int64_t pkts, udt_time now);
} udt_cc_ops;

/* Maximum of the samples of about the last window, in four buckets. */
typedef struct udt_cc_max {
    double bucket[4];
    int at;
    udt_time rotate_at;
} udt_cc_max;

/* State of the native law (cc_udt.c). */
typedef struct udt_cc_native {
    bool slow_start, loss_flag;
    bool drain;          /* a slow round, to empty the queue */
    double bw_pps;       /* delivery rate: maximum of the last rounds */
    double rate_pps;     /* sending rate, 10^9 / period before the limit and the probe */
    double paced_pps[3]; /* fastest pace of this round and the two before: none arrives faster */
    double last_dec_pps; /* rate before the last decrease */
    double full_bw;      /* slow start: best rate so far */
    int full_rounds;     /* rounds without growth */
    int64_t round_end;   /* the running round ends when this index is acknowledged */
    udt_time round_at;   /* when it began */
    int64_t round_lost, round_acked;
    double loss_rate;   /* of the last round */
    int lowered;        /* so many rounds in a row have lowered bw for their losses */
    double least_loss;  /* smallest loss_rate since the last probe */
    double chance_loss; /* loss that does not go away when we slow down */
    bool round_limited; /* by the application, or by doubt: says nothing about the path */
    int64_t min_rtt_us, min_rtt_next_us; /* of this and the coming period */
    udt_time min_rtt_at;                 /* start of the running period */
    int64_t round_rtt_us;                /* smallest sample of the running round, 0 = none */
    int64_t round_samples;               /* RTT samples of the running round */
    bool doubt;                          /* slow start: the RTT rises, a queue or jitter? */
    double doubt_pps;                    /* a delivery rate that says jitter */
    int64_t doubt_end;                   /* all that can say so is sent before this index */
    int64_t doubt_rtt_us;                /* RTT that raised the doubt */
    bool left_in_doubt;                  /* it ended slow start */
    double round_bw;                     /* best delivery rate of the running round */
    int64_t last_rtt_us;                 /* smallest sample of the round before, 0 = none */
    int jump_rounds;                     /* it has jumped, and stayed so for so many rounds */
    int64_t harmless_us;                 /* a rise of the RTT that was jitter */
    int64_t outage_end;                  /* what was sent before it may have gone into an outage */
    bool inflated;                       /* last round: a queue stands in the path */
    int seek_rounds;                     /* slow rounds left to find min_rtt_us again */
    bool sought;                         /* the period before had some */
    int probe_wait;                      /* rounds until the next probe; 0 = probing */
    int probe_every;                     /* rounds from one probe to the next */
    bool probe_paid;                     /* the last probe raised bw */
    double probe_from;                   /* bw when the probe began */
    udt_time inc_at;                     /* last increase */
    int64_t last_dec_seq;                /* highest index sent at the last decrease */
    int dec_count, nak_count, dec_random;
    double avg_nak;
    udt_cc_max filter;
} udt_cc_native;

/* State of the law after BBR (cc_bbr.c). */
typedef struct udt_cc_bbr {
    int state;
    double bw, bw_cycle[2];       /* best delivery rate, packets/s; of this cycle and the last */
    double bw_latest;             /* of the running round */
    double bw_lo;                 /* after losses, 0 = none */
    int64_t hi, lo;               /* packets in flight, INT64_MAX = no bound known */
    double chance;                /* share of packets lost without our doing */
    double proved;                /* as much of it did not go away when we slowed down */
    double slow_lost, slow_total; /* of packets that were sent slowly to prove it */
    bool slow_now, slow_before;   /* such are those of this whole round, of the round before */
    bool disproved;               /* the last proof has shown that it does go away */
    bool fine;                    /* and so well that small bursts are kept to */
    udt_time fine_until, fine_us; /* that long: until then, for so long */
    bool coarse;                  /* in this cycle they are left out, to see */
    int64_t min_rtt_us;
    udt_time min_rtt_at;        /* when a round trip near it was last seen */
    udt_time acked_at;          /* last acknowledgement, 0 = none */
    bool rested;                /* nothing was sent for so long that min_rtt_us is not believed */
    int64_t seen_rtt_us;        /* smallest of PROBE_RTT */
    int64_t high_rtt_us;        /* smallest of the round before it */
    int64_t last_rtt_us;        /* smallest of the last round */
    int collapses;              /* rounds in a row in which much more was lost than carried */
    udt_time early_at;          /* a round was ended early because of that */
    bool fell;                  /* and the next rounds will show what is carried */
    int jump_rounds;            /* it has jumped, and stayed there for so many rounds */
    int far_rounds;             /* it has been too long for the window for so many rounds */
    int64_t probe_pkts;         /* bound of packets in flight in PROBE_RTT */
    bool rerouted, jumped;      /* PROBE_RTT because of that; because of a jump */
    int64_t srtt_us, up_rtt_us; /* up: when UP began */
    bool yielded;
    int yield_rounds;  /* since then */
    udt_time yield_at; /* last time */
    bool queued;       /* the last round's smallest was well above min_rtt */
    udt_time probe_rtt_end;
    int64_t round_end; /* the running round ends with a packet sent when so many had arrived */
    udt_time round_at;
    int64_t round_lost, round_acked, round_rtt_us, round_in_flight;
    int64_t round_marked; /* of round_lost, those behind the mark */
    bool round_limited;
    double full_bw; /* startup: best rate so far */
    int full_rounds;
    udt_time phase_at, cycle_at;
    int phase_rounds, cycle_rounds;
    int64_t cruise_us;
    double up_from;  /* bw when the push of UP began */
    bool up_hold;    /* the push is over, its effect is awaited */
    bool up_queued;  /* a queue stood when UP began: what it wins it takes from others */
    double up_first; /* when UP began */
    int64_t up_hi;   /* hi where a push began */
    int up_pushes, up_paid;
    bool most;  /* the last probe has shown that most of what goes through is ours */
    bool large; /* and so had the one before, but not nearly all */
    int skips;  /* so many cycles go without a probe */
    int64_t delivered, in_flight; /* as the last acknowledgement said */
    int64_t mark_delivered, mark_in_flight;
    udt_time mark_at;  /* when CRUISE, a push or the waiting for it began */
    double cruise_pps; /* delivered while cruising, in the mean; 0 = not known */
    double push_pps;   /* sent by the last push, in the mean */
    double share;      /* ours of all that goes through, as pushes have shown */
    int up_rounds;
    int64_t up_pkts;
    udt_time up_at;
    double hi_credit;
    double agg[2], agg_acked; /* lumps of acknowledgements */
    udt_time agg_at;
    int agg_rounds;
} udt_cc_bbr;

/* State of CUBIC (cc_cubic.c). Windows in packets. */
typedef struct udt_cc_cubic {
    double cwnd, ssthresh, w_max, w_est, origin, k;
    udt_time epoch; /* growth counts from here, 0 = begins with the next acknowledgement */
    double before, before_max, before_ssthresh; /* the last reduction */
    int64_t reduced_pkts;                       /* losses it was for */
    int64_t recover;                            /* no second reduction for losses up to here */
    int64_t round_end, round_min_us, last_min_us, css_base_us, samples;
    int css_rounds;
} udt_cc_cubic;

struct udt_cc {
    const udt_cc_ops *ops;
    int64_t period_ns; /* time between packets, >= 0 */
    int64_t cwnd_pkts; /* packets in flight, >= 2 */
    int64_t mark;      /* losses are asked for from here on: see udt_cc_loss */
    int burst_pkts;    /* to send at once, at most; 0 = as many as cost least */
    uint32_t mss, rand;
    int64_t min_period_ns; /* from the bandwidth limit */
    union {
        udt_cc_native native;
        udt_cc_bbr bbr;
        udt_cc_cubic cubic;
    } u;
};

extern const udt_cc_ops udt_cc_udt, udt_cc_bbr_ops, udt_cc_cubic_ops, udt_cc_fixed_ops;
extern const udt_cc_ops *const udt_cc_all[];
/* NULL when there is none of that name; a NULL name is the default: `udt` for a connection that
 * speaks as libudt does, `bbr` in own mode, whose samples are exact. */
const udt_cc_ops *udt_cc_find(const char *name, bool plain);

/* For the algorithms: */

/* The next of its own random numbers, 24 bits. */
uint32_t udt_cc_rand(udt_cc *cc);
/* Pace at `pps` packets/s, within the bandwidth limit. */
void udt_cc_set_rate(udt_cc *cc, double pps);
/* The period that max_bw_Bps allows, ns; 0 = no limit. */
int64_t udt_cc_cap_ns(const udt_cc_params *p);
/* Packets have p->mss bytes from now on: the same limit is another number of them. */
void udt_cc_set_mss(udt_cc *cc, const udt_cc_params *p);

#endif
