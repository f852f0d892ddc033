/* What the two sides of over-size messages share. */
#ifndef SGMP_BULK_H
#define SGMP_BULK_H

#include "sgmp/engine.h"

enum { BULK_PREFACE = 56, BULK_CHUNK_HEAD = 16, BULK_F_LAST = 1, BULK_F_ABORT = 2 };

struct order {
    struct sg_link q;
    struct sgmp_bulk_order o;
};
void sg_order(sgmp_node *n, int kind, uint64_t id, const udt_addr *to);

#endif
