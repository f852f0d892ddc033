/* Two ports with GMP and a key for each other. */
#ifndef TEST_IO_GMP_H
#define TEST_IO_GMP_H

#include "test_io.h"

static inline void add_key(tio *t, const char *principal)
{
    sgmp_key k = {.key_id = 0x01000007, .alg = SGMP_ALG_AES256GCM};
    memset(k.secret, 0x5a, sizeof k.secret);
    strcpy(k.principal, principal);
    CHECK_INT(sgmp_key_add(t->ctx, t->port, &k), 0);
}

static inline void gmp_pair(tio **a, tio **b, uint32_t flags)
{
    *a = tio_open(4, flags);
    *b = tio_open(4, flags);
    CHECK_INT(sgmp_open((*a)->ctx, (*a)->port, true), 0);
    CHECK_INT(sgmp_open((*b)->ctx, (*b)->port, true), 0);
    add_key(*a, "b");
    add_key(*b, "a");
}

static inline sgmp_dest dest(const tio *t)
{
    sgmp_dest d = {.addr = t->at, .key_id = 0x01000007};
    return d;
}

#endif
