/* Comparison and hashing of udt_addr values. */
#ifndef BASE_ADDR_H
#define BASE_ADDR_H

#include <string.h>

#include "udt_types.h"

static inline bool addr_eq(const udt_addr *a, const udt_addr *b)
{
    return a->family == b->family && a->port == b->port && a->scope == b->scope &&
           memcmp(a->ip, b->ip, a->family == 4 ? 4 : 16) == 0;
}

/* FNV-1a over family, port and address: spreads table slots, never used for security. */
static inline uint32_t addr_hash(const udt_addr *a)
{
    uint32_t h = 2166136261u;
    size_t n = a->family == 4 ? 4 : 16;
    h = (h ^ a->family) * 16777619u;
    h = (h ^ (a->port & 0xffu)) * 16777619u;
    h = (h ^ (uint32_t)(a->port >> 8)) * 16777619u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ a->ip[i]) * 16777619u;
    return h;
}

#endif
