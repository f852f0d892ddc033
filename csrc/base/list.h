/* Intrusive doubly linked list with a sentinel. A node that is in no list points to itself, so
 * removal is always safe. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct list_node {
    struct list_node *prev, *next;
} list_node;

#define list_entry(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

static inline void list_init(list_node *n)
{
    n->prev = n->next = n;
}
static inline bool list_empty(const list_node *head)
{
    return head->next == head;
}
/* True when the node is in a list. */
static inline bool list_linked(const list_node *n)
{
    return n->next != n;
}
static inline void list_add_tail(list_node *head, list_node *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
static inline void list_add_head(list_node *head, list_node *n)
{
    list_add_tail(head->next, n);
}
static inline void list_remove(list_node *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}
static inline list_node *list_first(list_node *head)
{
    return list_empty(head) ? NULL : head->next;
}

#endif
