/* Intrusive list and hash table of the engine. Objects embed the nodes; nothing is allocated per
 * insertion, so insertion cannot fail. */
#ifndef SGMP_UTIL_H
#define SGMP_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define sg_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* Circular list; the head is a link too. A link outside of any list points to itself. */
struct sg_link {
    struct sg_link *prev, *next;
};
static inline void sg_link_init(struct sg_link *l)
{
    l->prev = l->next = l;
}
static inline bool sg_empty(const struct sg_link *l)
{
    return l->next == l;
}
static inline void sg_unlink(struct sg_link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    sg_link_init(l);
}
static inline void sg_push(struct sg_link *head, struct sg_link *l) /* at the tail */
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}
static inline void sg_push_front(struct sg_link *head, struct sg_link *l)
{
    sg_push(head->next, l);
}

struct sg_hnode {
    struct sg_hnode *next;
    uint64_t key;
};
struct sg_htab {
    struct sg_hnode **slot;
    size_t mask, count;   /* mask + 1 slots, a power of two; slot NULL before the first insertion */
    uint64_t seed;        /* so that peers cannot choose colliding keys */
    struct sg_hnode *one; /* stands in for the slots while no memory was to be had */
};
static inline size_t sg_hslot(const struct sg_htab *t, uint64_t key)
{
    uint64_t x = (key ^ t->seed) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return (size_t)(x ^ x >> 29) & t->mask;
}
static inline void sg_htab_init(struct sg_htab *t, uint64_t seed)
{
    t->slot = &t->one;
    t->one = NULL;
    t->mask = t->count = 0;
    t->seed = seed;
}
static inline void sg_htab_fini(struct sg_htab *t)
{
    if (t->slot != &t->one)
        free(t->slot);
    sg_htab_init(t, t->seed);
}
/* Doubles at load 1; when memory is short the chains just get longer. */
static inline void sg_hgrow(struct sg_htab *t)
{
    struct sg_htab bigger = *t;
    bigger.mask = t->mask < 7 ? 7 : t->mask * 2 + 1;
    bigger.slot = calloc(bigger.mask + 1, sizeof *bigger.slot);
    if (!bigger.slot)
        return;
    for (size_t i = 0; i <= t->mask; i++)
        for (struct sg_hnode *n = t->slot[i], *next; n; n = next) {
            struct sg_hnode **at = &bigger.slot[sg_hslot(&bigger, n->key)];
            next = n->next;
            n->next = *at;
            *at = n;
        }
    if (t->slot != &t->one)
        free(t->slot);
    t->slot = bigger.slot;
    t->mask = bigger.mask;
}
static inline void sg_hadd(struct sg_htab *t, struct sg_hnode *n, uint64_t key)
{
    if (t->count > t->mask)
        sg_hgrow(t);
    struct sg_hnode **at = &t->slot[sg_hslot(t, key)];
    n->key = key;
    n->next = *at;
    *at = n;
    t->count++;
}
/* Removing a node that is not in the table does nothing. */
static inline void sg_hdel(struct sg_htab *t, struct sg_hnode *n)
{
    for (struct sg_hnode **at = &t->slot[sg_hslot(t, n->key)]; *at; at = &(*at)->next)
        if (*at == n) {
            *at = n->next;
            t->count--;
            return;
        }
}
/* First node with this key, newest first; continue with sg_hnext. */
static inline struct sg_hnode *sg_hget(const struct sg_htab *t, uint64_t key)
{
    struct sg_hnode *n = t->slot[sg_hslot(t, key)];
    while (n && n->key != key)
        n = n->next;
    return n;
}
static inline struct sg_hnode *sg_hnext(const struct sg_hnode *n)
{
    uint64_t key = n->key;
    for (n = n->next; n && n->key != key; n = n->next)
        ;
    return (struct sg_hnode *)(uintptr_t)n;
}

#endif
