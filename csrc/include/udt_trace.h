/* Traces of connections: a bounded ring of what happened, on request.
 *
 * A ring is made, named in the options of sockets or transfers of one port, and read at any time by
 * any thread, while it is written and afterwards. The newest records push out the oldest. Whoever
 * holds it keeps it: it goes with the last connection and the caller's udt_trace_free().
 * sector/_udt/trace.py writes it as qlog-like JSON. */
#ifndef UDT_TRACE_H
#define UDT_TRACE_H

#include "udt_types.h"

enum udt_trace_kind {
    UDT_TRACE_SENT = 1,   /* a packet number (own mode, else 0), b index, x payload bytes */
    UDT_TRACE_SENT_AGAIN, /* the same, not for the first time */
    UDT_TRACE_RECEIVED,   /* a low half of the packet number or time stamp, b index, x bytes */
    UDT_TRACE_LOST,       /* a first index (UINT64_MAX = not known), b packets; x enum below */
    UDT_TRACE_ACKED,      /* a everything before this index is acknowledged, b packets newly so */
    UDT_TRACE_RTT,        /* a sample, b smoothed << 32 | smallest; microseconds */
    UDT_TRACE_METRICS,    /* a window << 32 | in flight, packets of x bytes; b pace in bytes/s, 0 =
                             none */
    UDT_TRACE_CC_STATE,   /* x algorithm << 8 | state, see udt/trace.c */
    UDT_TRACE_TIMER,      /* x enum below */
    UDT_TRACE_LIMIT,      /* x enum udt_limit from now on */
    UDT_TRACE_PATH,       /* the peer's address changed: a IPv4 address or 0, b port */
    UDT_TRACE_STATE       /* x: 1 open, 2 closed by the peer, 3 failed (a = error), 4 ended */
};
enum udt_trace_lost { UDT_TRACE_LOST_FOUND, UDT_TRACE_LOST_REPORTED, UDT_TRACE_LOST_NOT };
enum udt_trace_timer { UDT_TRACE_T_PROBE = 1, UDT_TRACE_T_TIMEOUT, UDT_TRACE_T_LOSS };

typedef struct udt_trace_rec {
    int64_t us;    /* CLOCK_MONOTONIC in ports with a thread */
    uint32_t conn; /* the engine's number of the connection */
    uint16_t kind; /* enum udt_trace_kind */
    uint16_t x;
    uint64_t a, b;
} udt_trace_rec;

typedef struct udt_trace udt_trace;

/* 0 records = 4096; rounded up to a power of two, at most 2^22 (128 MB). NULL without memory. */
udt_trace *udt_trace_new(uint32_t records);
void udt_trace_free(udt_trace *t); /* NULL is fine */
/* Up to cap records from number *from on (the first ever is 0), or from the oldest that is still
 * there; *from becomes the number behind the last. Returns how many. */
size_t udt_trace_read(udt_trace *t, uint64_t *from, udt_trace_rec *out, size_t cap);
uint64_t udt_trace_count(udt_trace *t); /* records ever written */

/* What keeps a connection from sending faster; shares of time are in the statistics. */
enum udt_limit {
    UDT_LIM_NONE,     /* nothing but the processors */
    UDT_LIM_APP,      /* the application (or its disk) has nothing ready to send */
    UDT_LIM_CWND,     /* network: as much as it is thought to hold is under way */
    UDT_LIM_FLOW,     /* receiver: its buffer is full, its application or disk is slower */
    UDT_LIM_PACE,     /* network: the rate that congestion control found */
    UDT_LIM_CAP,      /* the rate that the application or the administrator allowed */
    UDT_LIM_HANDSHAKE /* the peer is still to be met */
};
const char *udt_limit_name(int limit);

#endif
