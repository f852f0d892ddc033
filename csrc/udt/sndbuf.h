/* Send buffer: a header per packet, named by index, and the payload packed into blocks that are
 * allocated as data comes and freed as it is acknowledged: a packet costs its bytes and a
 * header.
 * User data is copied in once; plain datagrams leave from here, others are encrypted out of it.
 * In front of each payload lies room for the header on the wire, so that datagrams that follow each
 * other are one piece of memory (docs/decisions/0192). */
#ifndef UDT_SNDBUF_H
#define UDT_SNDBUF_H

#include "udt/mem.h"
#include "udt/packet.h"

#define SND_HEAD UDT_HDR_BYTES /* room in front of the payload, unless it is SND_BARE */

#define SND_DROPPED 1     /* message expired: answered by a drop request, never sent (again) */
#define SND_APP_LIMITED 2 /* sent when the application had nothing more to send */
#define SND_FLYING 4      /* own mode: in the list of packets in flight */
#define SND_LOST 8        /* own mode: was reported lost to congestion control */
#define SND_NEAR 16       /* own mode, in flight: counted in the port's bound for short paths */
#define SND_BARE 32       /* cut out of a larger packet: no room in front of the payload */

typedef struct snd_slot {
    uint8_t *data;         /* payload, inside a block */
    udt_time sent_us;      /* last transmission */
    udt_time first_us;     /* first transmission (own mode: start of its rate sample) */
    int64_t delivered;     /* packets delivered when it was first sent (own mode: last): rates */
    udt_time delivered_us; /* when that count was reached */
    udt_time expire_us;    /* message deadline, UDT_NEVER without */
    uint32_t word1;        /* FF, O, message number */
    uint16_t len;          /* payload bytes */
    uint8_t flags;
    uint8_t ntx; /* transmissions, saturating */
    /* Own mode, of the last transmission. */
    uint32_t pn;         /* packet number, low half */
    int32_t prev, after; /* neighbours in flight: their index - ours, 0 = none */
    uint32_t in_flight;  /* packets in flight with it */
} snd_slot;

#define SND_HEADS_SHIFT 7 /* headers come in pieces of 128 */
#define SND_HEADS (1 << SND_HEADS_SHIFT)
#define SND_HEADS_BYTES (SND_HEADS * sizeof(snd_slot))

typedef struct udt_sndbuf {
    udt_mem *mem;
    snd_slot **ring;     /* pieces of headers, ring indexed by idx >> SND_HEADS_SHIFT */
    uint32_t ring_size;  /* power of two */
    uint32_t payload;    /* P: most bytes of a packet, ever */
    uint32_t fill;       /* bytes put into a new packet, <= payload (own mode: until the peer's MSS
                            is known) */
    int64_t head, tail;  /* slots [head, tail) are in use */
    uint64_t bytes;      /* payload bytes held */
    uint64_t done_bytes; /* payload bytes before head: done_bytes + bytes were ever queued */
    uint64_t max_bytes;  /* bound of `bytes` */
    int64_t max_slots;   /* bound of tail - head */
    udt_block *block;    /* the last one, being filled; NULL = none */
    uint32_t blocks;     /* in use; all but one are charged to mem beyond the promise */
    uint32_t pieces;     /* of headers, charged alike */
    uint32_t msgno;      /* number of the next message */
    uint32_t mark_every; /* stream: one of so many packets is a little short, 0 = none */
    bool reserved;       /* the promised memory is charged */
} udt_sndbuf;

/* What a buffer reserves. */
#define UDT_SNDBUF_RESERVE (UDT_BLOCK_BYTES_ALL + SND_HEADS_BYTES)
/* Memory that `len` bytes in packets of P bytes may need at most. */
uint64_t udt_sndbuf_cost(const udt_sndbuf *b, uint64_t len);
/* False when the budget or memory is spent. */
bool udt_sndbuf_init(udt_sndbuf *b, udt_mem *mem, uint32_t payload, uint64_t max_bytes);
void udt_sndbuf_fini(udt_sndbuf *b);
void udt_sndbuf_set_max(udt_sndbuf *b, uint64_t max_bytes);

static inline snd_slot *udt_sndbuf_slot(const udt_sndbuf *b, int64_t idx)
{
    return &b->ring[(uint32_t)(idx >> SND_HEADS_SHIFT) & (b->ring_size - 1)][idx & (SND_HEADS - 1)];
}
static inline uint8_t *udt_sndbuf_data(const udt_sndbuf *b, int64_t idx)
{
    return udt_sndbuf_slot(b, idx)->data;
}
/* Has a quarter of the room become free? Then a waiting writer is told. */
static inline bool udt_sndbuf_writable(const udt_sndbuf *b)
{
    return b->bytes <= b->max_bytes - b->max_bytes / 4 &&
           b->tail - b->head <= b->max_slots - b->max_slots / 4;
}

/* Stream: append up to len bytes as one message, after filling the last packet when its index is
 * >= next (not yet sent). Returns the bytes taken. */
size_t udt_sndbuf_write(udt_sndbuf *b, const uint8_t *src, size_t len, int64_t next);
/* Message: all or nothing. */
bool udt_sndbuf_write_msg(udt_sndbuf *b, const uint8_t *src, size_t len, bool in_order,
                          udt_time expire_us);
/* Cut the last packet in two so that neither is full (spec 5.1). False when there is no room. */
bool udt_sndbuf_split_tail(udt_sndbuf *b);
/* Cut the packets from `from` on, which were never sent, anew: none has more than `fill` bytes
 * (false without room or memory for more packets), or as many as lie together are joined. Those
 * behind get other numbers; messages keep their marks. */
bool udt_sndbuf_recut(udt_sndbuf *b, int64_t from);
void udt_sndbuf_join(udt_sndbuf *b, int64_t from);
/* Bytes that a write takes now for certain. */
size_t udt_sndbuf_space(const udt_sndbuf *b, int64_t next);
/* Free slots below una. */
void udt_sndbuf_acked(udt_sndbuf *b, int64_t una);

#endif
