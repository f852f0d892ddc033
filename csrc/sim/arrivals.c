/* Datagrams under way: their memory, and their arrivals in order of time. */
#include "sim/net_priv.h"

#include <string.h>

#define SLAB_BYTES (256 * 1024)

static const size_t class_bytes[PKT_CLASSES] = {192, 1536, 65536};

static void *slab_new(sim_net *n, size_t bytes)
{
    struct slab *s = malloc(sizeof *s + bytes);
    require(s != NULL);
    s->next = n->slabs;
    n->slabs = s;
    return s + 1;
}

size_t sim__kept(const sim_net *n, size_t len)
{
    return n->thin && len >= THIN_LEAST ? n->thin : len;
}

struct pkt *sim__pkt_new(sim_net *n, const uint8_t *data, size_t len)
{
    int cls = 0;
    while (class_bytes[cls] < sim__kept(n, len))
        require(++cls < PKT_CLASSES);
    if (!n->pool[cls]) {
        size_t each = sizeof(struct pkt) + class_bytes[cls], count = SLAB_BYTES / each;
        uint8_t *at = slab_new(n, each * count);
        for (size_t i = 0; i < count; i++) {
            struct pkt *p = (struct pkt *)(void *)(at + i * each);
            p->next = n->pool[cls];
            n->pool[cls] = p;
        }
    }
    struct pkt *p = n->pool[cls];
    n->pool[cls] = p->next;
    p->cls = (int8_t)cls;
    p->len = (uint32_t)len;
    memcpy(p->data, data, sim__kept(n, len));
    return p;
}

void sim__pkt_free(sim_net *n, struct pkt *p)
{
    p->next = n->pool[p->cls];
    n->pool[p->cls] = p;
}

/* ---- arrivals in order of time ---- */

static bool event_before(const struct event *a, const struct event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

static void heap_push(sim_net *n, struct event e)
{
    if (n->nheap == n->cap_heap) {
        n->cap_heap = n->cap_heap ? n->cap_heap * 2 : 1024;
        n->heap = realloc(n->heap, n->cap_heap * sizeof *n->heap);
        require(n->heap != NULL);
    }
    size_t i = n->nheap++;
    while (i > 0 && event_before(&e, &n->heap[(i - 1) / 2])) {
        n->heap[i] = n->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    n->heap[i] = e;
}

/* The event at the root becomes `e`, which is not earlier. */
static void heap_sink(sim_net *n, struct event last)
{
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n->nheap)
            break;
        if (c + 1 < n->nheap && event_before(&n->heap[c + 1], &n->heap[c]))
            c++;
        if (!event_before(&n->heap[c], &last))
            break;
        n->heap[i] = n->heap[c];
        i = c;
    }
    if (n->nheap > 0)
        n->heap[i] = last;
}

void sim__arrival_push(sim_net *n, int64_t at_ns, struct pkt *p)
{
    n->under_way++;
    heap_push(n, (struct event){at_ns, n->order++, p, NULL});
}

/* The same for a packet that does not come before any of its path's line. */
void sim__arrival_append(sim_net *n, int64_t at_ns, struct pkt *p, struct path *path)
{
    struct line *l = &path->line;
    struct event e = {at_ns, n->order++, p, path};
    n->under_way++;
    if (l->count == l->size) {
        size_t size = l->size ? l->size * 2 : 64;
        struct event *ring = malloc(size * sizeof *ring);
        require(ring != NULL);
        for (size_t i = 0; i < l->count; i++)
            ring[i] = l->ring[(l->head + i) & (l->size - 1)];
        free(l->ring);
        *l = (struct line){ring, 0, l->count, size};
    }
    l->ring[(l->head + l->count++) & (l->size - 1)] = e;
    if (l->count == 1)
        heap_push(n, e);
}

struct pkt *sim__arrival_pop(sim_net *n)
{
    struct event first = n->heap[0];
    n->under_way--;
    if (first.line) {
        struct line *l = &first.line->line;
        l->head = (l->head + 1) & (l->size - 1);
        if (--l->count > 0) {
            heap_sink(n, l->ring[l->head]);
            return first.pkt;
        }
    }
    n->nheap--;
    heap_sink(n, n->heap[n->nheap]);
    return first.pkt;
}
