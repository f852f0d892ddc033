/* Flows over one bottleneck in virtual time, to judge congestion control by: ours (own mode, any
 * law; or as UDT4) and models of TCP, each with its own round trip. Payload is not carried. */
#ifndef TEST_UDT_CC_LAB_H
#define TEST_UDT_CC_LAB_H

#include "sim/tcp.h"
#include "test_udt_own.h"

enum { LAB_FLOWS = 512, LAB_FRAME = 66 };

typedef struct lab_flow {
    int64_t rtt_us;
    int id[2];
    const char *cc; /* NULL = default, "tcp" and "tcp-bbr" = models of TCP, "foreign" = as UDT4 */
    bool foreign;
    bool quiet;   /* from the beginning: see lab_quiet() */
    bool windows; /* as a program gets them unless it asks: grown by themselves, default budget */
    uint64_t budget; /* of the buffers, 0 = default */
    int64_t max_bw_Bps;
    struct lab_node *node[2];
    sim_tcp *tcp;
    int64_t got;  /* payload bytes; TCP: of 1456 a packet, to compare */
    int64_t mark; /* `got` at lab_mark() */
} lab_flow;

typedef struct lab {
    uint64_t seed;
    sim_net *net;
    int queue;
    double bdp; /* bytes, at the longest round trip */
    lab_flow f[LAB_FLOWS];
    int n;
    /* A machine with other work, between lab_init() and lab_add(): threads that stand still every
     * 50 ms for so long in the mean, links with so much more delay at most. 0 = not. */
    int64_t away_us, jitter_us;
    int64_t grain_us; /* timers wake a thread so much late at most */
    sim_counts before;
    udt_time start, marked;
} lab;

typedef struct lab_link {
    double rate_bps;
    int64_t queue_bytes; /* 0 = rate * rtt_us */
    int64_t rtt_us;
    uint32_t loss_ppm;
    bool police; /* a policer: see sim_link */
} lab_link;

/* The network, then flows, then lab_go(): all connected, and time counts from there. */
void lab_init(lab *l, const lab_link *link);
void lab_init_seed(lab *l, const lab_link *link, uint64_t seed);
lab_flow *lab_add(lab *l, const lab_link *link, int64_t rtt_us, const char *cc);
void lab_go(lab *l);
void lab_run(lab *l, double seconds); /* until so long after lab_go() */
/* From now on the bottleneck, and the way of all flows, is this one. */
void lab_change(lab *l, const lab_link *link);
/* The program of flow i writes only what lab_write() says, or again all that there is room for. */
void lab_quiet(lab *l, int i, bool quiet);
void lab_write(lab *l, int i, size_t bytes);
double lab_now(const lab *l); /* seconds since lab_go() */
void lab_mark(lab *l);
/* With TEST_TRACE set: the model of each flow as it stands. */
void lab_trace(const lab *l);
/* Mb/s of payload since the mark. */
double lab_mbps(const lab *l, int i);
double lab_total(const lab *l);
double lab_jain(const lab *l);
/* Share of packets that the queue has dropped since the mark. */
double lab_drops(const lab *l);
udt_stats lab_stats(const lab *l, int i);
udt_conn *lab_conn(const lab *l, int i);
void lab_fini(lab *l);
/* Mb/s of payload that the link can carry in packets of 1500 bytes. */
double lab_limit(const lab_link *link);

#endif
