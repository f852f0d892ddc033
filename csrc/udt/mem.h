/* The memory of all buffers of a port: a budget, and blocks of 64 KiB that payload is put into one
 * packet behind the other, so that a packet costs its bytes and not a slot of full size.
 *
 * Each buffer is promised a block for its head when it is created: every connection can always make
 * progress; further blocks are charged one by one and refused when the budget is spent. Blocks come
 * in slabs of 1 MiB from the kernel and go back to it: what was used at once within the last second
 * or two (at least UDT_MEM_KEEP) stays for reuse, the rest is returned. */
#ifndef UDT_MEM_H
#define UDT_MEM_H

#include "base/list.h"
#include "udt_types.h"

#define UDT_BLOCK_BYTES_ALL 65536 /* size and alignment of a block */
#define UDT_MEM_KEEP 32           /* blocks that are always kept for reuse: 2 MiB */
#define UDT_MEM_AGE_US 1000000

struct mem_slab;
typedef struct udt_block {
    struct mem_slab *slab;
    uint32_t used; /* bytes of data given out */
    uint32_t live; /* pieces of them still in use */
    uint8_t data[];
} udt_block;
#define UDT_BLOCK_ROOM (UDT_BLOCK_BYTES_ALL - sizeof(udt_block)) /* 45 packets of 1456 bytes */

typedef struct udt_mem {
    uint64_t used, limit;    /* charged bytes; used <= limit */
    list_node part;          /* slabs with free blocks, the fullest not sorted */
    uint32_t blocks, spare;  /* in use; free ones in slabs */
    uint32_t peak, peak_old; /* most blocks in use in this and in the previous period */
    udt_time aged_at;
} udt_mem;

void udt_mem_init(udt_mem *m, uint64_t limit);
void udt_mem_fini(udt_mem *m); /* after all blocks were freed */
/* Charge or give back `n` bytes of the budget; charging fails when it is spent. */
bool udt_mem_charge(udt_mem *m, size_t n);
void udt_mem_uncharge(udt_mem *m, size_t n);
/* A block, not charged; NULL when there is none. */
udt_block *udt_mem_block(udt_mem *m);
void udt_mem_block_free(udt_mem *m, udt_block *b);
/* Now and then: gives back slabs that were not needed lately. */
void udt_mem_age(udt_mem *m, udt_time now);

/* What one more buffer may add to the `held` bytes it has: half of what the budget has left beyond
 * that. A single one gets half of the budget; n that want all get 1 / (n + 1) each, without
 * anybody counting them ("dynamic thresholds" of switch buffers). */
static inline uint64_t udt_mem_share(const udt_mem *m, uint64_t held)
{
    uint64_t left = m->limit - m->used;
    return left > held ? (left - held) / 2 : 0;
}

/* The block that a piece of payload lies in. */
static inline udt_block *udt_block_of(const void *piece)
{
    return (udt_block *)((uintptr_t)piece & ~(uintptr_t)(UDT_BLOCK_BYTES_ALL - 1));
}
static inline size_t udt_block_left(const udt_block *b)
{
    return b ? UDT_BLOCK_ROOM - b->used : 0;
}
/* The next `n` bytes of a block that has room for them. */
static inline uint8_t *udt_block_take(udt_block *b, size_t n)
{
    uint8_t *p = b->data + b->used;
    b->used += (uint32_t)n;
    b->live++;
    return p;
}

#endif
