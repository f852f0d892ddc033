#include "udt/mem.h"

#include <assert.h>
#include <stdlib.h>

void udt_mem_init(udt_mem *m, uint64_t limit, size_t stock_size)
{
    *m = (udt_mem){.limit = limit, .stock_size = stock_size};
}

void udt_mem_fini(udt_mem *m)
{
    while (m->stocked > 0)
        free(m->stock[--m->stocked]);
}

bool udt_mem_charge(udt_mem *m, size_t n)
{
    if (n > m->limit - m->used)
        return false;
    m->used += n;
    return true;
}

void udt_mem_uncharge(udt_mem *m, size_t n)
{
    assert(m->used >= n);
    m->used -= n;
}

void *udt_mem_chunk(udt_mem *m, size_t size)
{
    if (size == m->stock_size && m->stocked > 0)
        return m->stock[--m->stocked];
    return malloc(size);
}

void udt_mem_chunk_free(udt_mem *m, void *p, size_t size)
{
    if (!p)
        return;
    if (size == m->stock_size && m->stocked < UDT_MEM_STOCK)
        m->stock[m->stocked++] = p;
    else
        free(p);
}
