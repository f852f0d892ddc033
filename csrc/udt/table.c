#include "udt/table.h"

#include <stdlib.h>

bool table_init(table *t)
{
    *t = (table){.size = 64};
    t->bucket = calloc(t->size, sizeof(table_node *));
    return t->bucket != NULL;
}

void table_fini(table *t)
{
    free(t->bucket);
    *t = (table){0};
}

static void grow(table *t)
{
    uint32_t size = t->size * 2;
    table_node **bucket = calloc(size, sizeof(table_node *));
    if (!bucket)
        return;
    for (uint32_t i = 0; i < t->size; i++) {
        table_node *n = t->bucket[i], *next;
        for (; n; n = next) {
            next = n->next;
            n->next = bucket[n->hash & (size - 1)];
            bucket[n->hash & (size - 1)] = n;
        }
    }
    free(t->bucket);
    t->bucket = bucket;
    t->size = size;
}

void table_add(table *t, table_node *n, uint32_t hash)
{
    if (t->count >= t->size && t->size < 1u << 24)
        grow(t);
    n->hash = hash;
    n->in = true;
    n->next = t->bucket[hash & (t->size - 1)];
    t->bucket[hash & (t->size - 1)] = n;
    t->count++;
}

void table_del(table *t, table_node *n)
{
    if (!n->in)
        return;
    table_node **at = &t->bucket[n->hash & (t->size - 1)];
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    n->in = false;
    t->count--;
}
