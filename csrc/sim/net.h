/* A packet network in virtual time: endpoints joined by links with rate, delay, jitter, loss,
 * reordering, duplication and a drop-tail queue. Deterministic for a seed; drives any sans-IO
 * engine through the five verbs. Used by tests, fuzzers and benchmarks, never by the product. */
#ifndef SIM_NET_H
#define SIM_NET_H

#include "udt_types.h"

typedef struct sim_net sim_net;

/* An engine seen from the network. burst_end may be NULL. output fills buf with datagrams of
 * *seg bytes (the last may be shorter) to one destination, like udt_mux_output. */
typedef struct sim_ep_ops {
    void (*input)(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now);
    void (*burst_end)(void *ep, udt_time now);
    size_t (*output)(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to, size_t *seg,
                     udt_time now);
    udt_time (*deadline)(const void *ep);
    void (*tick)(void *ep, udt_time now);
} sim_ep_ops;

/* One direction of a path. Probabilities in parts per million. */
typedef struct sim_link {
    int64_t rate_bps;  /* bits per second on the wire, 0 = infinite; 28 bytes/datagram added */
    int64_t delay_us;  /* propagation, one way */
    int64_t jitter_us; /* uniform extra delay, keeps order unless reorder_ppm strikes */
    int64_t
        queue_bytes;   /* drop-tail bound of the queue in front of the rate, 0 = 1 BDP, >= 64 KB */
    uint32_t loss_ppm; /* independent loss */
    uint32_t reorder_ppm; /* a packet held back by reorder_us */
    int64_t reorder_us;
    uint32_t dup_ppm; /* a packet delivered twice, the copy up to dup_delay_us later */
    int64_t dup_delay_us;
    uint64_t loss_mask; /* bit i: drop the i-th packet of this direction (first 64) */
    int frame_bytes;    /* on the wire beside each datagram, 0 = 28 (IPv4, UDP); Ethernet: 66 */
    int queue;          /* a shared queue to pass first (sim_net_queue), 0 = none */
    bool police; /* no queue: a bucket of queue_bytes that fills at the rate; what exceeds it is
                    dropped, the rest passes at once */
} sim_link;

typedef struct sim_counts {
    int64_t sent, delivered, lost, queue_drops, reordered, duplicated, bytes;
} sim_counts;

sim_net *sim_net_new(uint64_t seed);
void sim_net_free(sim_net *n);
/* Endpoint ids count from 0. `ep` may be replaced later (restart) with sim_net_set. ep NULL = a
 * dead host: packets to it vanish. */
int sim_net_add(sim_net *n, const udt_addr *addr, const sim_ep_ops *ops, void *ep);
void sim_net_set(sim_net *n, int id, const sim_ep_ops *ops, void *ep);
/* The direction a -> b; unset directions are perfect and instantaneous. */
void sim_net_link(sim_net *n, int a, int b, const sim_link *l);
/* A queue that several paths share, with rate_bps, queue_bytes and frame_bytes of `l` (a rate is
 * needed; 1 BDP counts twice its delay_us). It stands at the sender: delays come after it. */
int sim_net_queue(sim_net *n, const sim_link *l);
sim_counts sim_net_queue_counts(const sim_net *n, int queue);
/* Another rate, bound or kind for it from now on; what waits in it goes at the old rate. */
void sim_net_queue_change(sim_net *n, int queue, const sim_link *l);
/* Carry only the first `bytes` (<= 1200) of each datagram of 1200 bytes or more, the rest arrives
 * as zeros: for tests of rates that do not look at the data. 0 = everything. */
void sim_net_thin(sim_net *n, size_t bytes);
udt_time sim_net_now(const sim_net *n);
/* Called by a test after it changed an engine outside of step (a send): output is collected. */
void sim_net_kick(sim_net *n, int id);
/* Advance to the next arrival or deadline, at most to `limit`; false when nothing happens before.
 */
bool sim_net_step(sim_net *n, udt_time limit);
/* Time of the next arrival or deadline, UDT_NEVER if there is none; datagrams under way. */
udt_time sim_net_next(const sim_net *n);
size_t sim_net_in_flight(const sim_net *n);
/* Put a datagram on the wire a -> b as if a had sent it (attacks, replays). */
void sim_net_inject(sim_net *n, const udt_addr *from, int b, const uint8_t *pkt, size_t len,
                    udt_time at);
/* Sees every datagram as it is sent (before loss). */
void sim_net_tap(sim_net *n,
                 void (*fn)(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                            udt_time now),
                 void *arg);
sim_counts sim_net_counts(const sim_net *n, int a, int b);
/* Seeded generator (xoshiro256**), also fit as udt_rand_fn with arg = &state. */
typedef struct sim_rng {
    uint64_t s[4];
} sim_rng;
void sim_rng_seed(sim_rng *r, uint64_t seed);
uint64_t sim_rng_u64(sim_rng *r);
uint64_t sim_rng_below(sim_rng *r, uint64_t n);
void sim_rng_bytes(void *r, uint8_t *buf, size_t len);

#endif
