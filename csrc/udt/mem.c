#include "udt/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_PLAIN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define MEM_PLAIN 1
#endif

/* Under a sanitizer each block comes from the heap by itself, so that misuse is seen. */
#ifdef MEM_PLAIN
#define SLAB_BLOCKS 1u
#else
#define SLAB_BLOCKS 16u
#endif
#define SLAB_BYTES ((size_t)SLAB_BLOCKS * UDT_BLOCK_BYTES_ALL)

struct mem_slab {
    list_node node;  /* in udt_mem.part while a block is free */
    uint8_t *map;    /* what the kernel gave, one block longer than needed */
    uint8_t *base;   /* its first aligned block */
    uint32_t n_free; /* bits of `free` */
    uint32_t free;
};

static bool slab_map(struct mem_slab *s)
{
#ifdef MEM_PLAIN
    s->map = s->base = aligned_alloc(UDT_BLOCK_BYTES_ALL, SLAB_BYTES);
    return s->map != NULL;
#else
    void *map = mmap(NULL, SLAB_BYTES + UDT_BLOCK_BYTES_ALL, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return false;
    s->map = map;
    uintptr_t at = (uintptr_t)map + UDT_BLOCK_BYTES_ALL - 1;
    s->base = (uint8_t *)(at & ~(uintptr_t)(UDT_BLOCK_BYTES_ALL - 1));
    return true;
#endif
}

static void slab_free(udt_mem *m, struct mem_slab *s)
{
    list_remove(&s->node);
    m->spare -= s->n_free;
#ifdef MEM_PLAIN
    free(s->map);
#else
    munmap(s->map, SLAB_BYTES + UDT_BLOCK_BYTES_ALL);
#endif
    free(s);
}

static struct mem_slab *slab_new(udt_mem *m)
{
    struct mem_slab *s = calloc(1, sizeof *s);
    if (!s || !slab_map(s)) {
        free(s);
        return NULL;
    }
    s->n_free = SLAB_BLOCKS;
    s->free = (1u << SLAB_BLOCKS) - 1;
    m->spare += SLAB_BLOCKS;
    list_add_tail(&m->part, &s->node);
    return s;
}

void udt_mem_init(udt_mem *m, uint64_t limit)
{
    *m = (udt_mem){.limit = limit};
    list_init(&m->part);
}

/* Gives back whole slabs while more than `keep` blocks lie idle. */
static void trim(udt_mem *m, uint32_t keep)
{
    for (list_node *n = m->part.next, *next; n != &m->part && m->spare > keep; n = next) {
        struct mem_slab *s = list_entry(n, struct mem_slab, node);
        next = n->next;
        if (s->n_free == SLAB_BLOCKS && m->spare - SLAB_BLOCKS >= keep)
            slab_free(m, s);
    }
}

void udt_mem_fini(udt_mem *m)
{
    if (!m->part.next)
        return;
    trim(m, 0);
    assert(list_empty(&m->part) && m->spare == 0);
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

udt_block *udt_mem_block(udt_mem *m)
{
    list_node *first = list_first(&m->part);
    struct mem_slab *s = first ? list_entry(first, struct mem_slab, node) : slab_new(m);
    if (!s)
        return NULL;
    uint32_t i = (uint32_t)__builtin_ctz(s->free);
    s->free &= s->free - 1;
    if (--s->n_free == 0)
        list_remove(&s->node);
    m->spare--;
    if (++m->blocks > m->peak)
        m->peak = m->blocks;
    udt_block *b = (udt_block *)(void *)(s->base + (size_t)i * UDT_BLOCK_BYTES_ALL);
    b->slab = s;
    b->used = b->live = 0;
    return b;
}

void udt_mem_block_free(udt_mem *m, udt_block *b)
{
    if (!b)
        return;
    struct mem_slab *s = b->slab;
    s->free |= 1u << ((size_t)((uint8_t *)b - s->base) / UDT_BLOCK_BYTES_ALL);
    if (s->n_free++ == 0) { /* to the front: its pages are warm */
        s->node.next = m->part.next;
        s->node.prev = &m->part;
        m->part.next->prev = &s->node;
        m->part.next = &s->node;
    }
    m->spare++;
    m->blocks--;
}

void udt_mem_age(udt_mem *m, udt_time now)
{
    if (now - m->aged_at < UDT_MEM_AGE_US)
        return;
    m->aged_at = now;
    m->peak_old = m->peak;
    m->peak = m->blocks;
    uint32_t most = m->peak_old > m->peak ? m->peak_old : m->peak, keep = most - m->blocks;
    trim(m, keep > UDT_MEM_KEEP ? keep : UDT_MEM_KEEP);
}
