/* A model of a TCP bulk flow for the simulated network: what shares a queue with us out there.
 *
 * Packets of 1472 bytes (1500 with IP and UDP headers, as full TCP segments are), delayed
 * acknowledgements for every second packet, selective acknowledgement, loss by three packets that
 * overtook (RFC 6675), one recovery per round trip, retransmission timer of at least 200 ms. The
 * window follows CUBIC (RFC 9438) with HyStart, not paced, or the flow is paced after BBR version
 * 1, both as in Linux. */
#ifndef SIM_TCP_H
#define SIM_TCP_H

#include "sim/net.h"

typedef struct sim_tcp sim_tcp;

enum sim_tcp_law { SIM_TCP_CUBIC, SIM_TCP_BBR };

/* A sender at `id` a towards the receiver at `id` b, which it adds to the network. It starts at
 * `start` and always has data. Lives until sim_tcp_free(), after sim_net_free(). */
sim_tcp *sim_tcp_new(sim_net *n, const udt_addr *a, const udt_addr *b, enum sim_tcp_law law,
                     udt_time start, int *id_a, int *id_b);
void sim_tcp_free(sim_tcp *t);
/* Packets delivered in order; packets sent again. */
int64_t sim_tcp_delivered(const sim_tcp *t);
int64_t sim_tcp_again(const sim_tcp *t);

#endif
