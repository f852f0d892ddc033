/* Chained hash table of embedded nodes; doubles its buckets when full. */
#ifndef UDT_TABLE_H
#define UDT_TABLE_H

#include "udt_types.h"

typedef struct table_node {
    struct table_node *next;
    uint32_t hash;
    bool in;
} table_node;

typedef struct table {
    table_node **bucket;
    uint32_t size; /* power of two */
    uint32_t count;
} table;

bool table_init(table *t);
void table_fini(table *t);
/* Never fails: without memory to grow, chains get longer. */
void table_add(table *t, table_node *n, uint32_t hash);
/* Harmless when the node is in no table. */
void table_del(table *t, table_node *n);
/* First node of the chain that may hold `hash`; follow ->next and compare. */
static inline table_node *table_chain(const table *t, uint32_t hash)
{
    return t->bucket[hash & (t->size - 1)];
}

#endif
