/* Private: the state of a modelled TCP flow, shared by tcp.c (transport) and its laws. */
#ifndef SIM_TCP_PRIV_H
#define SIM_TCP_PRIV_H

#include "sim/tcp.h"

#define TCP_WINDOW 65536 /* packets at most in flight, a power of two */
#define TCP_BLOCKS 3
#define TCP_INITIAL_CWND 10

/* What an acknowledgement has told. */
typedef struct tcp_news {
    udt_time now;
    int64_t acked;    /* packets newly acknowledged */
    int64_t rtt;      /* of one that was sent once, 0 = none */
    double rate_pps;  /* delivery rate over the flight of the newest of them, 0 = none */
    int64_t prior;    /* packets delivered when that was sent */
    int64_t inflight; /* before this acknowledgement */
} tcp_news;

typedef struct tcp_law {
    void (*acked)(sim_tcp *t, const tcp_news *w);
    void (*lost)(sim_tcp *t, udt_time now); /* the first loss of a round trip: recovery begins */
    void (*timeout)(sim_tcp *t, bool first);
} tcp_law;

typedef struct tcp_cubic {
    double ssthresh, wmax, origin, k, w_est;
    udt_time epoch;
    int64_t round_end, round_min, round_n, last_round_min;
} tcp_cubic;

#define TCP_BBR_ROUNDS 10
typedef struct tcp_bbr {
    int state;
    double bw[TCP_BBR_ROUNDS]; /* best delivery rate of the last rounds, packets/s */
    int64_t round, round_end; /* a round ends when a packet sent at `delivered` = round_end comes */
    double full_bw;
    int full_rounds, phase;
    udt_time phase_at, min_rtt_at, probe_end;
    int64_t min_rtt;
    double before; /* window before PROBE_RTT or a recovery */
    int64_t keep_until;
    bool keeping; /* first round of a recovery: only what leaves may enter */
} tcp_bbr;

struct sim_tcp {
    const tcp_law *law;
    udt_addr a, b;
    udt_time start;
    /* Sender: packets [una, next). */
    int64_t una, next, fack, lost_to, pipe, again, again_from;
    uint8_t flags[TCP_WINDOW];
    udt_time sent_at[TCP_WINDOW];
    struct {
        int64_t delivered;               /* when it was sent */
        udt_time delivered_us, first_us; /* when that was, and start of its sending interval */
    } sent[TCP_WINDOW];
    int64_t delivered;
    udt_time delivered_us, first_us;
    double cwnd, pace_pps; /* 0 = not paced */
    int64_t next_ns;       /* pacing: when the next packet may go */
    udt_time pace_at;      /* it waits for that, UDT_NEVER = it does not */
    bool recovery;
    int64_t recover;
    int64_t srtt, var, min_rtt;
    udt_time rto_at;
    int backoff;
    union {
        tcp_cubic cubic;
        tcp_bbr bbr;
    } u;
    /* Receiver. */
    int64_t rcv;
    uint8_t have[TCP_WINDOW];
    int64_t block[TCP_BLOCKS][2]; /* latest first */
    int unacked;
    bool ack_now;
    udt_time delack;
};

extern const tcp_law sim__tcp_cubic, sim__tcp_bbr;
void sim__tcp_cubic_init(sim_tcp *t);
void sim__tcp_bbr_init(sim_tcp *t);

#endif
