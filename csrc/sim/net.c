#include "sim/net_priv.h"

#include "base/addr.h"

#include <stdlib.h>
#include <string.h>

/* Times inside are nanoseconds: a packet of 1500 bytes lasts 1.2 us at 10 Gb/s, so microseconds
 * would distort the rate. Engines see microseconds, rounded up (never earlier than physics). */
#define HEADER_BYTES 28 /* IPv4 + UDP */
#define OUT_SEGS 64
#define OUT_ROUNDS 4096 /* batches one endpoint may send without time passing */
#define MIN_QUEUE_BYTES 65536

static udt_time up_us(int64_t ns)
{
    return (ns + 999) / 1000;
}

/* ---- endpoints in order of deadline ---- */

static void due_place(sim_net *n, int at, int id)
{
    n->due_heap[at] = id;
    n->eps[id]->heap_at = at;
}

static void due_set(sim_net *n, int id, udt_time due)
{
    struct endpoint *e = n->eps[id];
    int i = e->heap_at;
    e->due = due;
    while (i > 0 && due < n->eps[n->due_heap[(i - 1) / 2]]->due) {
        due_place(n, i, n->due_heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int c = 2 * i + 1;
        if (c >= n->neps)
            break;
        if (c + 1 < n->neps && n->eps[n->due_heap[c + 1]]->due < n->eps[n->due_heap[c]]->due)
            c++;
        if (n->eps[n->due_heap[c]]->due >= due)
            break;
        due_place(n, i, n->due_heap[c]);
        i = c;
    }
    due_place(n, i, id);
}

/* A deadline that is not after `floor` counts as `floor`: an engine that asks again for a moment
 * it has just had cannot stop the clock. */
static void due_refresh(sim_net *n, int id, udt_time floor)
{
    struct endpoint *e = n->eps[id];
    udt_time d = e->ep ? e->ops.deadline(e->ep) : UDT_NEVER;
    due_set(n, id, d < floor ? floor : d);
}

/* ---- addresses ---- */

static void table_put(sim_net *n, int id)
{
    size_t mask = n->table_size - 1, i = addr_hash(&n->eps[id]->addr) & mask;
    while (n->table[i])
        i = (i + 1) & mask;
    n->table[i] = id + 1;
}

static int table_find(const sim_net *n, const udt_addr *a)
{
    if (n->table_size == 0)
        return -1;
    size_t mask = n->table_size - 1, i = addr_hash(a) & mask;
    for (; n->table[i]; i = (i + 1) & mask)
        if (addr_eq(&n->eps[n->table[i] - 1]->addr, a))
            return n->table[i] - 1;
    return -1;
}

static void table_grow(sim_net *n)
{
    free(n->table);
    n->table_size = n->table_size ? n->table_size * 2 : 16;
    n->table = calloc(n->table_size, sizeof *n->table);
    require(n->table != NULL);
    for (int i = 0; i < n->neps; i++)
        table_put(n, i);
}

/* ---- life ---- */

sim_net *sim_net_new(uint64_t seed)
{
    sim_net *n = calloc(1, sizeof *n);
    require(n != NULL);
    sim_rng_seed(&n->rng, seed);
    return n;
}

void sim_net_free(sim_net *n)
{
    if (!n)
        return;
    for (int i = 0; i < n->neps; i++) {
        for (int j = 0; j < n->eps[i]->npaths; j++) {
            if (n->eps[i]->paths[j])
                free(n->eps[i]->paths[j]->line.ring);
            free(n->eps[i]->paths[j]);
        }
        free(n->eps[i]->paths);
        free(n->eps[i]);
    }
    while (n->slabs) {
        struct slab *s = n->slabs;
        n->slabs = s->next;
        free(s);
    }
    free(n->shared);
    free(n->eps);
    free(n->table);
    free(n->heap);
    free(n->due_heap);
    free(n);
}

int sim_net_add(sim_net *n, const udt_addr *addr, const sim_ep_ops *ops, void *ep)
{
    require(table_find(n, addr) < 0);
    if (n->neps == n->cap_eps) {
        n->cap_eps = n->cap_eps ? n->cap_eps * 2 : 8;
        n->eps = realloc(n->eps, (size_t)n->cap_eps * sizeof *n->eps);
        n->due_heap = realloc(n->due_heap, (size_t)n->cap_eps * sizeof *n->due_heap);
        require(n->eps != NULL && n->due_heap != NULL);
    }
    struct endpoint *e = calloc(1, sizeof *e);
    require(e != NULL);
    int id = n->neps++;
    n->eps[id] = e;
    e->addr = *addr;
    e->due = UDT_NEVER;
    due_place(n, id, id);
    if ((size_t)n->neps * 2 > n->table_size)
        table_grow(n);
    else
        table_put(n, id);
    sim_net_set(n, id, ops, ep);
    return id;
}

void sim_net_set(sim_net *n, int id, const sim_ep_ops *ops, void *ep)
{
    require(id >= 0 && id < n->neps && (ops != NULL || ep == NULL));
    if (ops)
        n->eps[id]->ops = *ops;
    n->eps[id]->ep = ep;
    due_refresh(n, id, sim_net_now(n));
}

static struct path *path_get(sim_net *n, int a, int b)
{
    require(a >= 0 && a < n->neps && b >= 0 && b < n->neps);
    struct endpoint *e = n->eps[a];
    if (b >= e->npaths) {
        e->paths = realloc(e->paths, (size_t)n->cap_eps * sizeof(struct path *));
        require(e->paths != NULL);
        memset(e->paths + e->npaths, 0, (size_t)(n->cap_eps - e->npaths) * sizeof(struct path *));
        e->npaths = n->cap_eps;
    }
    if (!e->paths[b]) {
        e->paths[b] = calloc(1, sizeof(struct path));
        require(e->paths[b] != NULL);
    }
    return e->paths[b];
}

static void queue_set(struct queue *q, const sim_link *l)
{
    q->rate_bps = l->rate_bps;
    q->police = l->police;
    q->frame_bytes = l->frame_bytes ? l->frame_bytes : HEADER_BYTES;
    if (l->rate_bps <= 0)
        return;
    double bytes = (double)l->queue_bytes;
    if (l->queue_bytes == 0)
        bytes = (double)l->rate_bps / 8e6 * 2.0 * (double)l->delay_us;
    if (l->queue_bytes == 0 && bytes < MIN_QUEUE_BYTES)
        bytes = MIN_QUEUE_BYTES;
    q->max_ns = (int64_t)(bytes * 8e9 / (double)l->rate_bps);
}

void sim_net_link(sim_net *n, int a, int b, const sim_link *l)
{
    struct path *p = path_get(n, a, b);
    require(l->queue >= 0 && l->queue <= n->nshared);
    p->link = *l;
    queue_set(&p->queue, l);
}

int sim_net_queue(sim_net *n, const sim_link *l)
{
    require(l->rate_bps > 0);
    n->shared = realloc(n->shared, (size_t)(n->nshared + 1) * sizeof *n->shared);
    require(n->shared != NULL);
    memset(&n->shared[n->nshared], 0, sizeof *n->shared);
    queue_set(&n->shared[n->nshared].queue, l);
    return ++n->nshared;
}

void sim_net_queue_change(sim_net *n, int queue, const sim_link *l)
{
    require(queue > 0 && queue <= n->nshared && l->rate_bps > 0);
    queue_set(&n->shared[queue - 1].queue, l);
}

sim_counts sim_net_queue_counts(const sim_net *n, int queue)
{
    require(queue > 0 && queue <= n->nshared);
    return n->shared[queue - 1].counts;
}

void sim_net_thin(sim_net *n, size_t bytes)
{
    n->thin = bytes;
}

udt_time sim_net_now(const sim_net *n)
{
    return up_us(n->now_ns);
}

sim_counts sim_net_counts(const sim_net *n, int a, int b)
{
    require(a >= 0 && a < n->neps && b >= 0 && b < n->neps);
    const struct endpoint *e = n->eps[a];
    if (b < e->npaths && e->paths[b])
        return e->paths[b]->counts;
    return (sim_counts){0};
}

void sim_net_tap(sim_net *n,
                 void (*fn)(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                            udt_time now),
                 void *arg)
{
    n->tap = fn;
    n->tap_arg = arg;
}

/* ---- one datagram on a path ---- */

static bool strikes(sim_net *n, uint32_t ppm)
{
    return ppm > 0 && sim_rng_below(&n->rng, 1000000) < ppm;
}

static void deliver_at(sim_net *n, struct path *p, int a, int b, const uint8_t *data, size_t len,
                       int64_t at_ns, bool in_order)
{
    struct pkt *k = sim__pkt_new(n, data, len);
    k->from = n->eps[a]->addr;
    k->to = b;
    k->path = p;
    if (in_order)
        sim__arrival_append(n, at_ns, k, p);
    else
        sim__arrival_push(n, at_ns, k);
}

/* When a datagram that comes at *at has left the queue; false = there is no room. */
static bool queue_pass(struct queue *q, size_t len, int64_t *at)
{
    if (q->rate_bps <= 0)
        return true;
    int64_t tx = ((int64_t)len + q->frame_bytes) * 8000000000 / q->rate_bps;
    int64_t start = q->busy_ns > *at ? q->busy_ns : *at;
    if (start > *at && start - *at + tx > q->max_ns)
        return false;
    q->busy_ns = start + tx;
    if (!q->police)
        *at = q->busy_ns;
    return true;
}

static int64_t uniform_ns(sim_net *n, int64_t max_us)
{
    return max_us > 0 ? (int64_t)sim_rng_below(&n->rng, (uint64_t)max_us * 1000 + 1) : 0;
}

static void path_send(sim_net *n, int a, int b, const uint8_t *data, size_t len)
{
    struct path *p = path_get(n, a, b);
    const sim_link *l = &p->link;
    int64_t index = p->counts.sent++, at = n->now_ns;
    p->counts.bytes += (int64_t)len;
    struct shared *via = l->queue ? &n->shared[l->queue - 1] : NULL;
    if (via) {
        via->counts.sent++;
        via->counts.bytes += (int64_t)len;
    }
    if (via && !queue_pass(&via->queue, len, &at)) {
        via->counts.queue_drops++;
        p->counts.queue_drops++;
        return;
    }
    if (!queue_pass(&p->queue, len, &at)) {
        p->counts.queue_drops++;
        return;
    }
    if ((index < 64 && (l->loss_mask >> index & 1)) || strikes(n, l->loss_ppm)) {
        p->counts.lost++;
        return;
    }
    at += l->delay_us * 1000 + uniform_ns(n, l->jitter_us);
    bool in_order = false;
    if (strikes(n, l->reorder_ppm)) {
        p->counts.reordered++;
        at += l->reorder_us * 1000;
    } else {
        if (at < p->arrival_ns)
            at = p->arrival_ns;
        p->arrival_ns = at;
        in_order = true;
    }
    deliver_at(n, p, a, b, data, len, at, in_order);
    if (strikes(n, l->dup_ppm)) {
        p->counts.duplicated++;
        deliver_at(n, p, a, b, data, len, at + uniform_ns(n, l->dup_delay_us), false);
    }
}

void sim_net_inject(sim_net *n, const udt_addr *from, int b, const uint8_t *pkt, size_t len,
                    udt_time at)
{
    require(b >= 0 && b < n->neps);
    struct pkt *k = sim__pkt_new(n, pkt, len);
    k->from = *from;
    k->to = b;
    k->path = NULL;
    sim__arrival_push(n, at * 1000 > n->now_ns ? at * 1000 : n->now_ns, k);
}

/* ---- the clock ---- */

/* Take all that an endpoint wants to send now and put it on its paths. */
static void collect(sim_net *n, int id)
{
    struct endpoint *e = n->eps[id];
    udt_time now = sim_net_now(n);
    for (int round = 0; e->ep && round < OUT_ROUNDS; round++) {
        udt_addr to = {0};
        size_t seg = 0;
        size_t len = e->ops.output(e->ep, n->buf, sizeof n->buf, OUT_SEGS, &to, &seg, now);
        if (len == 0)
            return;
        require(len <= sizeof n->buf && seg > 0);
        int b = table_find(n, &to);
        for (size_t at = 0; at < len; at += seg) {
            size_t one = len - at < seg ? len - at : seg;
            if (n->tap)
                n->tap(n->tap_arg, id, &to, n->buf + at, one, now);
            if (b >= 0)
                path_send(n, id, b, n->buf + at, one);
        }
    }
}

void sim_net_kick(sim_net *n, int id)
{
    require(id >= 0 && id < n->neps);
    collect(n, id);
    due_refresh(n, id, sim_net_now(n));
}

static void hand_over(sim_net *n, struct pkt *k, udt_time now)
{
    struct endpoint *e = n->eps[k->to];
    if (e->ep) {
        const uint8_t *data = k->data;
        if (sim__kept(n, k->len) < k->len)
            data = memcpy(n->whole, k->data, n->thin); /* the rest is zero */
        e->ops.input(e->ep, &k->from, data, k->len, now);
        if (k->path)
            k->path->counts.delivered++;
    } else if (k->path) {
        k->path->counts.lost++;
    }
    sim__pkt_free(n, k);
}

/* All packets for one endpoint that arrive in this microsecond are one burst. */
static void arrive(sim_net *n, udt_time now)
{
    int id = n->heap[0].pkt->to;
    struct endpoint *e = n->eps[id];
    while (n->nheap > 0 && n->heap[0].pkt->to == id && up_us(n->heap[0].at_ns) <= now)
        hand_over(n, sim__arrival_pop(n), now);
    if (e->ep && e->ops.burst_end)
        e->ops.burst_end(e->ep, now);
    collect(n, id);
    due_refresh(n, id, now);
}

udt_time sim_net_next(const sim_net *n)
{
    udt_time arrival = n->nheap > 0 ? up_us(n->heap[0].at_ns) : UDT_NEVER;
    udt_time due = n->neps > 0 ? n->eps[n->due_heap[0]]->due : UDT_NEVER;
    return arrival <= due ? arrival : due;
}

size_t sim_net_in_flight(const sim_net *n)
{
    return n->under_way;
}

bool sim_net_step(sim_net *n, udt_time limit)
{
    udt_time now = sim_net_now(n);
    udt_time arrival = n->nheap > 0 ? up_us(n->heap[0].at_ns) : UDT_NEVER;
    udt_time due = n->neps > 0 ? n->eps[n->due_heap[0]]->due : UDT_NEVER;
    udt_time next = arrival <= due ? arrival : due;
    if (next == UDT_NEVER || next > limit) {
        if (limit != UDT_NEVER && limit > now)
            n->now_ns = limit * 1000;
        return false;
    }
    if (next > now)
        n->now_ns = (now = next) * 1000;
    if (arrival <= due) {
        arrive(n, now);
        return true;
    }
    int id = n->due_heap[0];
    n->eps[id]->ops.tick(n->eps[id]->ep, now);
    collect(n, id);
    due_refresh(n, id, now + 1);
    return true;
}
