/* Two UDT ports on the simulated network, and transfers between them that check every byte. */
#ifndef TEST_UDT_UTIL_H
#define TEST_UDT_UTIL_H

#include "sim/net.h"
#include "test.h"
#include "udt/mux.h"

extern const sim_ep_ops mux_ops; /* a udt_mux as an endpoint */

enum { EVQ = 64 };
typedef struct world {
    sim_net *net;
    udt_mux *m[2];
    sim_rng rng[2];
    udt_addr addr[2];
    struct udt_ev ev[2][EVQ]; /* events not yet taken */
    int nev[2];
} world;

void world_init(world *w, uint64_t seed, const sim_link *there, const sim_link *back);
void world_init_cfg(world *w, uint64_t seed, const sim_link *there, const sim_link *back,
                    const udt_mux_config *cfg);
void world_fini(world *w);
udt_addr test_addr(uint8_t host, uint16_t port);
/* One step of the network, then fetch events; false when nothing happens until `limit`. */
bool world_step(world *w, udt_time limit);
void world_events(world *w);
void world_run(world *w, udt_time until);
/* Step until end `e` has an event of this kind (taken out), fails the test after `limit`.
 * sock 0 = any. */
struct udt_ev world_wait(world *w, int e, int kind, int32_t sock, udt_time limit);
/* The same without waiting; false when there is none. */
bool world_take(world *w, int e, int kind, int32_t sock, struct udt_ev *out);

enum { PAIR_CLIENT, PAIR_RDV_TAG, PAIR_RDV_ADDR, PAIR_RDV_PASSIVE };
typedef struct pair {
    int32_t s[2];
} pair;
/* Connect end 0 (the client) with end 1; both are open on return. */
pair world_connect(world *w, int how, const udt_opts *o, udt_time limit);

/* Bytes (stream) or messages from end `from`. */
typedef struct flow {
    int from;
    uint64_t seed;
    uint64_t size;     /* bytes to move */
    uint64_t msg_size; /* 0 = stream; else bytes per message, varied */
    bool in_order;
    uint64_t sent, got;
    uint64_t msgs_sent, msgs_got;
    uint8_t *seen; /* message mode: bitmap of messages that came */
    bool writable, readable;
} flow;
/* Move all flows over the pair; false when not done by `limit`. Fails the test on a wrong byte. */
bool world_move(world *w, const pair *p, flow *f, int nflows, udt_time limit);
void flow_fini(flow *f);
/* Test data: byte i of a flow. */
void fill(uint8_t *buf, uint64_t seed, uint64_t offset, size_t len);

#endif
