/* Receive buffer: a header per packet, named by index, and the payload packed into blocks in order
 * of arrival, so that short packets cost their bytes and 32 more. In stream mode bytes are read in
 * order. In message mode contiguous packets of one message form a run (each end knows the length),
 * so a complete message is found in O(1) per packet; complete ones queue up for the reader,
 * unordered ones at once, ordered ones when everything before them has arrived or was dropped.
 *
 * Room is counted in bytes (`want`, what own peers are told) and in packets (`slots`, what libudt
 * is told). One block is promised and kept for the packet at the frontier: with the budget spent,
 * what the reader waits for can still come. */
#ifndef UDT_RCVBUF_H
#define UDT_RCVBUF_H

#include "udt/mem.h"

enum rcv_state {
    RCV_EMPTY = 0,
    RCV_FILLED,
    RCV_DROPPED, /* given up by the sender; data may still arrive */
    RCV_CONSUMED /* read, or a stray piece of a message that can never be complete */
};
#define RCV_QUEUED 1 /* first packet of a message in the reader's queue */

typedef struct rcv_slot {
    int64_t next_ready; /* in the first packet of a queued message: the next one, -1 = last */
    uint8_t *data;      /* payload, inside a block; valid while FILLED */
    uint32_t word1;     /* FF, O, message number */
    uint32_t run;       /* at both ends of a run: its packets - 1 */
    uint16_t len;
    uint8_t state; /* enum rcv_state */
    uint8_t flags;
} rcv_slot;

#define RCV_HEADS_SHIFT 8 /* headers come in pieces of 256 */
#define RCV_HEADS (1 << RCV_HEADS_SHIFT)
#define RCV_HEADS_BYTES (RCV_HEADS * sizeof(rcv_slot))
#define RCV_COVER 2 /* pieces of headers from the head on that the reserve pays for */

typedef struct udt_rcvbuf {
    udt_mem *mem;
    rcv_slot **ring;    /* pieces of headers, ring indexed by idx >> RCV_HEADS_SHIFT */
    uint32_t ring_size; /* power of two */
    uint32_t unit;      /* largest payload accepted */
    bool reserved;
    bool messages;
    int64_t base;                    /* oldest slot in use; everything before is gone */
    int64_t scan;                    /* message mode: runs before it were judged */
    int64_t frontier;                /* everything before has arrived or was dropped */
    uint32_t offset;                 /* stream: bytes of slot `base` already read */
    int64_t slots;                   /* window: packets [base, base + slots) are accepted */
    uint64_t want;                   /* most payload bytes to hold */
    uint64_t bytes;                  /* payload bytes held */
    uint64_t ready;                  /* those before the frontier */
    int64_t drop_end;                /* last slot of the latest drop range, -1 = none */
    int64_t ready_first, ready_last; /* queue of complete messages, -1 = empty */
    udt_block *block;                /* being filled, NULL = none */
    udt_block *keep;                 /* the promised one, for the packet at the frontier only */
    uint32_t blocks;                 /* in use without `keep`; charged one by one */
} udt_rcvbuf;

/* What a buffer reserves. */
#define UDT_RCVBUF_RESERVE (UDT_BLOCK_BYTES_ALL + RCV_COVER * RCV_HEADS_BYTES)
/* A window of `slots` full packets. */
bool udt_rcvbuf_init(udt_rcvbuf *b, udt_mem *mem, uint32_t unit, int64_t slots, bool messages);
void udt_rcvbuf_fini(udt_rcvbuf *b);
/* A window of `bytes`, in however short packets; never takes back what is in the buffer. */
void udt_rcvbuf_set_want(udt_rcvbuf *b, uint64_t bytes);

enum rcv_put { RCV_STORED, RCV_DUPLICATE, RCV_NOROOM };
/* Store a packet. Beyond the window or without memory: NOROOM. */
enum rcv_put udt_rcvbuf_put(udt_rcvbuf *b, int64_t idx, uint32_t word1, const uint8_t *data,
                            size_t len);
/* Mark the empty slots of a..b as dropped by the sender; false without memory or out of window. */
bool udt_rcvbuf_drop(udt_rcvbuf *b, int64_t first, int64_t last);
/* Tell how far everything has arrived; queues ordered messages, skips what can never be read. */
void udt_rcvbuf_advance(udt_rcvbuf *b, int64_t frontier);
bool udt_rcvbuf_readable(const udt_rcvbuf *b);
/* Stream: bytes read, 0 when there is nothing. */
size_t udt_rcvbuf_read(udt_rcvbuf *b, uint8_t *dst, size_t cap);
/* One message; its excess over cap is lost. Its length, -1 when there is none. */
int64_t udt_rcvbuf_read_msg(udt_rcvbuf *b, uint8_t *dst, size_t cap);
/* Full packets, and payload bytes, that may still come after the frontier (0 or more), as far as
 * window, budget and a fair share of it allow. */
int64_t udt_rcvbuf_free_slots(const udt_rcvbuf *b);
uint64_t udt_rcvbuf_free_bytes(const udt_rcvbuf *b);
/* Packets, however short, that may be named beyond the frontier. */
static inline int64_t udt_rcvbuf_free_names(const udt_rcvbuf *b)
{
    int64_t n = b->slots - (b->frontier - b->base);
    return n > 0 ? n : 0;
}

#endif
