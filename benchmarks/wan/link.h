/* One direction of an emulated link: a rate, a drop-tail queue in front of it, then a delay with
 * jitter, loss, reordering, duplication and bit errors. No clock, no sockets: the caller says what
 * time it is, so the model is the same in tests and on the wire. Times are nanoseconds. */
#ifndef WAN_LINK_H
#define WAN_LINK_H

#include "segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WAN_OVERHEAD = 38, /* Ethernet around an IP packet: header 14, FCS 4, preamble 8, gap 12 */
    WAN_MIN_WIRE = 84,
    WAN_MAX_FLOWS = 16
};

typedef struct wan_flow {
    uint16_t port; /* TCP or UDP, source or destination */
    int64_t delay_ns;
} wan_flow;

typedef struct wan_spec {
    int64_t rate_bps; /* of the wire, 0 = unlimited */
    int64_t delay_ns, jitter_ns;
    bool in_order;                      /* jitter never overtakes */
    double loss;                        /* of each frame alone */
    double ge_p, ge_r, ge_bad, ge_good; /* Gilbert-Elliott: good->bad, bad->good, loss in each */
    double reorder;                     /* share of frames held back by reorder_ns */
    int64_t reorder_ns;
    double dup, corrupt;
    int64_t queue_bytes, queue_frames; /* drop-tail bounds on wire bytes and frames, 0 = none */
    double queue_bdp;             /* > 0: queue_bytes = this many rate x (delay there + back) */
    wan_flow flow[WAN_MAX_FLOWS]; /* other delays for some ports, one shared queue */
    int flows;
    uint64_t seed;
} wan_spec;

typedef struct wan_counts {
    int64_t in_frames, in_bytes;   /* offered; bytes on the wire */
    int64_t out_frames, out_bytes; /* delivered */
    int64_t drop_queue, drop_loss, drop_burst, drop_memory;
    int64_t reordered, duplicated, corrupted;
    int64_t max_queue_frames, max_queue_bytes;
    int64_t queue_ns; /* sum of the waiting times in the queue, of frames that were let in */
} wan_counts;

typedef struct wan_link wan_link;

/* mtu: largest IP packet; slots: bound on the frames under way. NULL without memory. */
wan_link *wan_link_new(const wan_spec *spec, size_t mtu, size_t slots);
void wan_link_free(wan_link *l);
/* Room of `mtu` bytes for the next frame; NULL when every slot is under way. */
uint8_t *wan_link_room(wan_link *l);
/* The frame just written to wan_link_room arrives at the queue; what is known of it, NULL =
 * nothing. */
void wan_link_offer(wan_link *l, int64_t now, size_t len, const wan_frame *f);
/* A frame for which there was no room. */
void wan_link_no_room(wan_link *l, size_t len);
/* When the next frame is due, INT64_MAX if there is none. */
int64_t wan_link_due(const wan_link *l);
/* The next frame if it is due by `now`, and what was said of it (f may be NULL); valid until the
 * next call with this link. */
const uint8_t *wan_link_take(wan_link *l, int64_t now, size_t *len, int64_t *due, wan_frame *f);
const wan_counts *wan_link_counts(const wan_link *l);
size_t wan_link_under_way(const wan_link *l);

/* "rate=1g,rtt=100ms,loss=0.1%,queue=1bdp" (see wan --help) added to *spec. On failure false and
 * the reason in err. */
bool wan_spec_parse(wan_spec *spec, const char *text, char *err, size_t cap);
/* "port=9001,rtt=20ms" */
bool wan_flow_parse(wan_spec *spec, const char *text, char *err, size_t cap);
/* Resolves queue_bdp with the delay of the way back. */
void wan_spec_finish(wan_spec *spec, int64_t back_ns);

#endif
