/* Send buffer: one slot a packet, named by index, in chunks that are allocated as data comes and
 * freed as it is acknowledged. User data is copied in once, and once more into the datagram. */
#ifndef UDT_SNDBUF_H
#define UDT_SNDBUF_H

#include "udt/mem.h"

#define SND_DROPPED 1     /* message expired: answered by a drop request, never sent (again) */
#define SND_APP_LIMITED 2 /* sent when the application had nothing more to send */

typedef struct snd_slot {
    udt_time sent_us;      /* last transmission */
    udt_time first_us;     /* first transmission */
    int64_t delivered;     /* packets delivered when it was first sent: rate samples */
    udt_time delivered_us; /* when that count was reached */
    udt_time expire_us;    /* message deadline, UDT_NEVER without */
    uint32_t word1;        /* FF, O, message number */
    uint16_t len;          /* payload bytes */
    uint8_t flags;
    uint8_t ntx; /* transmissions, saturating */
} snd_slot;

typedef struct udt_sndbuf {
    udt_mem *mem;
    uint8_t **ring;     /* chunk pointers, ring indexed by idx >> shift */
    uint32_t ring_size; /* power of two */
    uint32_t shift;     /* log2 of slots per chunk */
    uint32_t payload;   /* P, bytes of a slot */
    size_t chunk_size;  /* bytes of a chunk */
    int64_t head, tail; /* slots [head, tail) are in use */
    uint64_t bytes;     /* payload bytes held, without dropped slots' share of the future */
    uint64_t max_bytes; /* bound of `bytes` */
    int64_t max_slots;  /* bound of tail - head */
    uint32_t chunks;    /* allocated; all but one are charged to mem beyond the promise */
    uint32_t msgno;     /* number of the next message */
    bool reserved;      /* the promised chunk is charged */
} udt_sndbuf;

/* Bytes of a chunk for payload size P (also what one buffer reserves). */
size_t udt_sndbuf_chunk_size(uint32_t payload);
/* False when the budget or memory is spent. */
bool udt_sndbuf_init(udt_sndbuf *b, udt_mem *mem, uint32_t payload, uint64_t max_bytes);
void udt_sndbuf_fini(udt_sndbuf *b);

static inline uint8_t *udt_sndbuf_chunk(const udt_sndbuf *b, int64_t idx)
{
    return b->ring[(uint32_t)(idx >> b->shift) & (b->ring_size - 1)];
}
static inline snd_slot *udt_sndbuf_slot(const udt_sndbuf *b, int64_t idx)
{
    return (snd_slot *)(void *)udt_sndbuf_chunk(b, idx) + (idx & ((1 << b->shift) - 1));
}
static inline uint8_t *udt_sndbuf_data(const udt_sndbuf *b, int64_t idx)
{
    size_t slots = (size_t)1 << b->shift;
    return udt_sndbuf_chunk(b, idx) + slots * sizeof(snd_slot) +
           ((size_t)idx & (slots - 1)) * b->payload;
}

/* Stream: append up to len bytes as one message, after filling the last packet when its index is
 * >= next (not yet sent). Returns the bytes taken. */
size_t udt_sndbuf_write(udt_sndbuf *b, const uint8_t *src, size_t len, int64_t next);
/* Message: all or nothing. */
bool udt_sndbuf_write_msg(udt_sndbuf *b, const uint8_t *src, size_t len, bool in_order,
                          udt_time expire_us);
/* Cut the last packet in two so that neither is full (spec 5.1). False when there is no room. */
bool udt_sndbuf_split_tail(udt_sndbuf *b);
/* Bytes a write would take now. */
size_t udt_sndbuf_space(const udt_sndbuf *b, int64_t next);
/* Free slots below una. */
void udt_sndbuf_acked(udt_sndbuf *b, int64_t una);

#endif
