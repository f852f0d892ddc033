/* What the sides of over-size messages share. */
#ifndef SGMP_BULK_H
#define SGMP_BULK_H

#include "sgmp/engine.h"

enum { BULK_PREFACE = 56, BULK_CHUNK_HEAD = 16, BULK_F_LAST = 1, BULK_F_ABORT = 2 };

/* An outgoing stream: one per peer, kept for the messages to come (bulk_out.c). */
enum out_state { OUT_WAIT, OUT_OPENING, OUT_OPEN };
struct out_stream {
    struct sg_hnode by_id;
    struct sg_link lru;    /* in node.out_lru unless OUT_WAIT */
    struct sg_timer timer; /* OUT_WAIT: try again; OUT_OPEN: end of an idle one */
    struct assoc *a;
    aead *ctx;
    struct bulk *cur; /* whose payload is being written */
    uint64_t id, conn_no, counter, key_serial;
    uint64_t abort_seq; /* its payload stopped in the middle, the receiver shall hear; 0 = none */
    size_t off;         /* of cur's payload */
    uint8_t *frame;     /* the record being written; NULL while nothing is */
    size_t frame_len, frame_off;
    uint32_t sent_n; /* messages written whole and not confirmed */
    udt_time backoff;
    struct order *end; /* kept for ABORT; NULL in OUT_WAIT */
    uint8_t state;
};

/* Made together with the stream whose end it may be: that order must not get lost. */
struct order {
    struct sg_link q;
    struct sgmp_bulk_order o;
};
/* Takes *kept. */
void sg_order(sgmp_node *n, struct order **kept, int kind, uint64_t id, const udt_addr *to);
void sg_bulk_state(sgmp_node *n, struct bulk *b, int state);
void sg_bulk_copy(const struct bulk *b, size_t off, uint8_t *out, size_t len);
/* The first message that waits for the peer's stream, NULL if none does. */
struct bulk *sg_bulk_next(struct assoc *a);

/* bulk_out.c */
void sg_out_pump(sgmp_node *n, struct assoc *a, udt_time now);
void sg_out_leave(sgmp_node *n, struct bulk *b, bool tell);
void sg_out_free_all(sgmp_node *n);

#endif
