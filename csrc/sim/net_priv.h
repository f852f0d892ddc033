/* Private: the state of a simulated network, shared by net.c and arrivals.c. */
#ifndef SIM_NET_PRIV_H
#define SIM_NET_PRIV_H

#include <stdlib.h>

#include "sim/net.h"

#define OUT_BATCH_BYTES 65536 /* buffer given to an engine's output */
#define PKT_CLASSES 3
#define THIN_LEAST 1200 /* datagrams from this size on may be thin (sim_net_thin) */

/* A datagram under way. Buffers come from three size classes, carved from slabs and reused. */
struct pkt {
    struct pkt *next; /* free list */
    udt_addr from;
    struct path *path; /* for the counts; NULL if injected */
    int32_t to;
    uint32_t len;
    int8_t cls;
    uint8_t data[];
};

struct slab {
    struct slab *next;
};

struct event {
    int64_t at_ns;
    uint64_t order; /* ties leave in the order of sending */
    struct pkt *pkt;
    struct path *line; /* it is the first of this path's line, NULL = it stands alone */
};

/* Packets of a path that arrive in the order of sending: only the first is in the heap. */
struct line {
    struct event *ring;
    size_t head, count, size; /* size is a power of two */
};

struct queue {
    int64_t rate_bps, frame_bytes;
    int64_t max_ns;  /* longest wait in front of the rate */
    int64_t busy_ns; /* the rate is taken until then */
    bool police;     /* nothing waits: see sim_link.police */
};

struct path { /* one direction a -> b */
    sim_link link;
    sim_counts counts;
    struct queue queue;
    int64_t arrival_ns; /* latest arrival in order: jitter may not overtake it */
    struct line line;
};

struct endpoint {
    udt_addr addr;
    sim_ep_ops ops;
    void *ep;
    udt_time due;        /* cached deadline */
    int heap_at;         /* place in due_heap */
    struct path **paths; /* by destination id, NULL = perfect and unused so far */
    int npaths;
};

struct sim_net {
    int64_t now_ns;
    sim_rng rng;
    struct endpoint **eps;
    int neps, cap_eps;
    int *table; /* address -> id + 1, open addressing; size is a power of two */
    size_t table_size;
    struct event *heap; /* binary min-heap of arrivals */
    size_t nheap, cap_heap, under_way;
    uint64_t order;
    int *due_heap; /* binary min-heap of endpoint ids by due */
    struct pkt *pool[PKT_CLASSES];
    struct slab *slabs;
    void (*tap)(void *, int, const udt_addr *, const uint8_t *, size_t, udt_time);
    void *tap_arg;
    struct shared {
        struct queue queue;
        sim_counts counts;
    } *shared; /* queues by id - 1 */
    int nshared;
    size_t thin;
    uint8_t buf[OUT_BATCH_BYTES], whole[OUT_BATCH_BYTES];
};

/* A test that goes wrong here cannot go on. */
static inline void require(bool ok)
{
    if (!ok)
        abort();
}

/* arrivals.c */
/* Bytes of a datagram that are held. */
size_t sim__kept(const sim_net *n, size_t len);
struct pkt *sim__pkt_new(sim_net *n, const uint8_t *data, size_t len);
void sim__pkt_free(sim_net *n, struct pkt *p);
void sim__arrival_push(sim_net *n, int64_t at_ns, struct pkt *p);
void sim__arrival_append(sim_net *n, int64_t at_ns, struct pkt *p, struct path *path);
struct pkt *sim__arrival_pop(sim_net *n);

#endif
