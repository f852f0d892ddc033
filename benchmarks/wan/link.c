#include "link.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct event { /* in the heap: one delivery */
    int64_t at;
    uint64_t order;
    uint32_t slot;
};

struct served { /* in the queue: leaves it at `at` */
    int64_t at;
    uint32_t wire;
};

struct wan_link {
    wan_spec spec;
    size_t mtu, slots;
    uint8_t *data; /* slots x mtu, touched on demand */
    uint32_t *len, *free;
    wan_frame *about; /* of each slot */
    size_t n_free;
    struct event *heap;
    size_t n;
    uint64_t order;
    struct served *queue; /* ring of `slots` */
    size_t head, queued;
    int64_t queued_bytes;
    int64_t free_at; /* the line is busy until then */
    double left_ns;  /* part of a nanosecond not yet in free_at */
    int64_t last_at; /* of the frame delivered last, for jitter in order */
    bool bad;        /* Gilbert-Elliott */
    int32_t taken;   /* slot lent out by wan_link_take, -1 = none */
    uint64_t rng;
    wan_counts c;
};

static uint64_t draw(wan_link *l) /* splitmix64 */
{
    uint64_t z = (l->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(wan_link *l)
{
    return (double)(draw(l) >> 11) * 0x1p-53;
}

wan_link *wan_link_new(const wan_spec *spec, size_t mtu, size_t slots)
{
    wan_link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (wan_link){.spec = *spec,
                    .mtu = mtu,
                    .slots = slots,
                    .taken = -1,
                    .rng = spec->seed * 0x2545f4914f6cdd1du};
    l->data = mmap(NULL, slots * mtu, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    l->len = calloc(slots, sizeof *l->len);
    l->about = calloc(slots, sizeof *l->about);
    l->free = malloc(slots * sizeof *l->free);
    l->heap = malloc(slots * sizeof *l->heap);
    l->queue = malloc(slots * sizeof *l->queue);
    if (l->data == MAP_FAILED || !l->len || !l->about || !l->free || !l->heap || !l->queue) {
        wan_link_free(l);
        return NULL;
    }
    while (l->n_free < slots) { /* low slots are used first and again */
        l->free[l->n_free] = (uint32_t)(slots - 1 - l->n_free);
        l->n_free++;
    }
    return l;
}

void wan_link_free(wan_link *l)
{
    if (!l)
        return;
    if (l->data != MAP_FAILED)
        munmap(l->data, l->slots * l->mtu);
    free(l->len);
    free(l->about);
    free(l->free);
    free(l->heap);
    free(l->queue);
    free(l);
}

uint8_t *wan_link_room(wan_link *l)
{
    return l->n_free ? l->data + l->free[l->n_free - 1] * l->mtu : NULL;
}

static int64_t wire_size(size_t len)
{
    return len + WAN_OVERHEAD < WAN_MIN_WIRE ? WAN_MIN_WIRE : (int64_t)len + WAN_OVERHEAD;
}

void wan_link_no_room(wan_link *l, size_t len)
{
    l->c.in_frames++;
    l->c.in_bytes += wire_size(len);
    l->c.drop_memory++;
}

/* ---- the heap of deliveries ------------------------------------------------------------------ */
static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(wan_link *l, int64_t at, uint32_t slot)
{
    struct event e = {.at = at, .order = l->order++, .slot = slot};
    size_t i = l->n++;
    while (i > 0 && before(&e, &l->heap[(i - 1) / 2])) {
        l->heap[i] = l->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    l->heap[i] = e;
}

static struct event pop(wan_link *l)
{
    struct event top = l->heap[0], e = l->heap[--l->n];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= l->n)
            break;
        if (k + 1 < l->n && before(&l->heap[k + 1], &l->heap[k]))
            k++;
        if (!before(&l->heap[k], &e))
            break;
        l->heap[i] = l->heap[k];
        i = k;
    }
    l->heap[i] = e;
    return top;
}

/* ---- the way through ------------------------------------------------------------------------- */
static void serve(wan_link *l, int64_t now)
{
    while (l->queued && l->queue[l->head].at <= now) {
        l->queued_bytes -= l->queue[l->head].wire;
        l->head = (l->head + 1) % l->slots;
        l->queued--;
    }
}

/* Leaves the line at this time; -1: the queue is full. */
static int64_t through_queue(wan_link *l, int64_t now, int64_t wire)
{
    const wan_spec *s = &l->spec;
    if (s->rate_bps == 0)
        return now;
    serve(l, now);
    if ((s->queue_bytes && l->queued_bytes + wire > s->queue_bytes) ||
        (s->queue_frames && (int64_t)l->queued >= s->queue_frames) || l->queued == l->slots)
        return -1;
    if (l->free_at < now) {
        l->free_at = now;
        l->left_ns = 0;
    }
    l->c.queue_ns += l->free_at - now;
    double t = (double)wire * 8e9 / (double)s->rate_bps + l->left_ns;
    int64_t whole = (int64_t)t;
    l->left_ns = t - (double)whole;
    l->free_at += whole;
    l->queue[(l->head + l->queued) % l->slots] = (struct served){l->free_at, (uint32_t)wire};
    l->queued++;
    l->queued_bytes += wire;
    if ((int64_t)l->queued > l->c.max_queue_frames)
        l->c.max_queue_frames = (int64_t)l->queued;
    if (l->queued_bytes > l->c.max_queue_bytes)
        l->c.max_queue_bytes = l->queued_bytes;
    return l->free_at;
}

/* Ports of a TCP or UDP packet, 0 where there are none. */
static void ports(const uint8_t *p, size_t len, uint16_t *a, uint16_t *b)
{
    size_t head = 0;
    uint8_t proto = 0;
    *a = *b = 0;
    if (len >= 20 && p[0] >> 4 == 4) {
        head = (size_t)(p[0] & 15) * 4;
        proto = p[9];
        if ((p[6] & 31) || p[7]) /* not the first fragment */
            return;
    } else if (len >= 40 && p[0] >> 4 == 6) {
        head = 40;
        proto = p[6];
    }
    if ((proto != 6 && proto != 17) || len < head + 4)
        return;
    *a = (uint16_t)(p[head] << 8 | p[head + 1]);
    *b = (uint16_t)(p[head + 2] << 8 | p[head + 3]);
}

static int64_t delay_of(const wan_link *l, const uint8_t *p, size_t len)
{
    uint16_t a, b;
    if (l->spec.flows == 0)
        return l->spec.delay_ns;
    ports(p, len, &a, &b);
    for (int i = 0; i < l->spec.flows; i++)
        if (l->spec.flow[i].port == a || l->spec.flow[i].port == b)
            return l->spec.flow[i].delay_ns;
    return l->spec.delay_ns;
}

/* The same draws for every frame, so that one knob does not change what another one hits. */
static bool lost(wan_link *l)
{
    const wan_spec *s = &l->spec;
    double alone = uniform(l), turn = uniform(l), hit = uniform(l);
    if (s->ge_p > 0) {
        l->bad = l->bad ? turn >= s->ge_r : turn < s->ge_p;
        if (hit < (l->bad ? s->ge_bad : s->ge_good)) {
            l->c.drop_burst++;
            return true;
        }
    }
    l->c.drop_loss += alone < s->loss;
    return alone < s->loss;
}

static void deliver_at(wan_link *l, int64_t at, size_t len, const wan_frame *f)
{
    uint32_t slot = l->free[--l->n_free];
    l->len[slot] = (uint32_t)len;
    l->about[slot] = *f;
    push(l, at, slot);
}

void wan_link_offer(wan_link *l, int64_t now, size_t len, const wan_frame *known)
{
    wan_frame f = known ? *known : (wan_frame){0};
    const wan_spec *s = &l->spec;
    uint8_t *p = wan_link_room(l);
    int64_t wire = wire_size(len);
    l->c.in_frames++;
    l->c.in_bytes += wire;
    int64_t at = through_queue(l, now, wire);
    if (at < 0) {
        l->c.drop_queue++;
        return;
    }
    bool gone = lost(l);
    double shake = uniform(l), held = uniform(l), twice = uniform(l), broken = uniform(l);
    uint64_t bit = draw(l);
    if (gone)
        return;
    at += delay_of(l, p, len) + (int64_t)((2 * shake - 1) * (double)s->jitter_ns);
    if (at < now)
        at = now;
    if (s->in_order && at < l->last_at)
        at = l->last_at;
    l->last_at = at;
    if (held < s->reorder) {
        at += s->reorder_ns;
        l->c.reordered++;
    }
    if (broken < s->corrupt) {
        wan_sum_finish(p, len, &f); /* what a line breaks was summed before */
        p[bit / 8 % len] ^= (uint8_t)(1u << (bit % 8));
        l->c.corrupted++;
    }
    deliver_at(l, at, len, &f);
    uint8_t *copy = twice < s->dup ? wan_link_room(l) : NULL;
    if (copy) {
        memcpy(copy, p, len);
        deliver_at(l, at, len, &f);
        l->c.duplicated++;
    }
}

int64_t wan_link_due(const wan_link *l)
{
    return l->n ? l->heap[0].at : INT64_MAX;
}

const uint8_t *wan_link_take(wan_link *l, int64_t now, size_t *len, int64_t *due, wan_frame *f)
{
    if (l->taken >= 0)
        l->free[l->n_free++] = (uint32_t)l->taken;
    l->taken = -1;
    if (l->n == 0 || l->heap[0].at > now)
        return NULL;
    struct event e = pop(l);
    l->taken = (int32_t)e.slot;
    *len = l->len[e.slot];
    *due = e.at;
    if (f)
        *f = l->about[e.slot];
    l->c.out_frames++;
    l->c.out_bytes += wire_size(*len);
    return l->data + e.slot * l->mtu;
}

const wan_counts *wan_link_counts(const wan_link *l)
{
    return &l->c;
}

size_t wan_link_under_way(const wan_link *l)
{
    return l->n;
}
