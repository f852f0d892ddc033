/* Receive buffer: one slot a packet, named by index, in chunks allocated where packets land and
 * freed when read. In stream mode bytes are read in order. In message mode contiguous packets of
 * one message form a run (each end knows the length), so a complete message is found in O(1) per
 * packet; complete ones queue up for the reader, unordered ones at once, ordered ones when
 * everything before them has arrived or was dropped. */
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
    uint32_t word1;     /* FF, O, message number */
    uint32_t run;       /* at both ends of a run: its packets - 1 */
    uint16_t len;
    uint8_t state; /* enum rcv_state */
    uint8_t flags;
} rcv_slot;

typedef struct udt_rcvbuf {
    udt_mem *mem;
    uint8_t **ring;
    uint32_t ring_size, shift;
    uint32_t unit; /* largest payload accepted, bytes of a slot */
    size_t chunk_size;
    int cover; /* chunks from the head on that the buffer's own reserve pays for */
    bool reserved;
    bool messages;
    int64_t base;                    /* oldest slot in use; everything before is gone */
    int64_t scan;                    /* message mode: runs before it were judged */
    int64_t frontier;                /* everything before has arrived or was dropped */
    uint32_t offset;                 /* stream: bytes of slot `base` already read */
    int64_t slots;                   /* window: packets [base, base + slots) are accepted */
    uint64_t bytes;                  /* payload bytes held */
    int64_t drop_end;                /* last slot of the latest drop range, -1 = none */
    int64_t ready_first, ready_last; /* queue of complete messages, -1 = empty */
    uint32_t chunks;
} udt_rcvbuf;

size_t udt_rcvbuf_chunk_size(uint32_t unit);
bool udt_rcvbuf_init(udt_rcvbuf *b, udt_mem *mem, uint32_t unit, int64_t slots, bool messages);
void udt_rcvbuf_fini(udt_rcvbuf *b);

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
/* One message; its excess over cap is lost. Bytes copied, -1 when there is none. */
int64_t udt_rcvbuf_read_msg(udt_rcvbuf *b, uint8_t *dst, size_t cap);
/* Packets that may still come after the frontier (0 or more). */
int64_t udt_rcvbuf_free_slots(const udt_rcvbuf *b);

#endif
