/* The memory budget of all buffers of a port, and a small stock of freed chunks.
 *
 * Each buffer is promised a chunk or two for its head when it is created: every connection can
 * always make progress; further chunks are charged one by one and refused when the budget is
 * spent. Chunks of the port's usual size are kept for reuse (at most UDT_MEM_STOCK). */
#ifndef UDT_MEM_H
#define UDT_MEM_H

#include "udt_types.h"

#define UDT_CHUNK_TARGET 65536 /* chunks are at most this large, a power of two of slots */
#define UDT_MEM_STOCK 64

typedef struct udt_mem {
    uint64_t used, limit; /* charged bytes; used <= limit */
    size_t stock_size;    /* size of the stocked chunks */
    int stocked;
    void *stock[UDT_MEM_STOCK];
} udt_mem;

void udt_mem_init(udt_mem *m, uint64_t limit, size_t stock_size);
void udt_mem_fini(udt_mem *m);
/* Charge or give back `n` bytes of the budget; charging fails when it is spent. */
bool udt_mem_charge(udt_mem *m, size_t n);
void udt_mem_uncharge(udt_mem *m, size_t n);
/* Memory itself, not charged; NULL when there is none. */
void *udt_mem_chunk(udt_mem *m, size_t size);
void udt_mem_chunk_free(udt_mem *m, void *p, size_t size);

#endif
