/* Reliable ordered byte pipes in virtual time: the streams that over-size messages ask for. A pipe
 * has a rate and a delay, may break at a chosen byte, and dies with either node. */
#ifndef TEST_GMP_PIPE_H
#define TEST_GMP_PIPE_H

#include "gmp_world.h"

struct gseg {
    struct gseg *next;
    udt_time at;
    size_t len;
    uint8_t data[];
};
struct gpipe {
    struct gpipe *next;
    struct gnode *src, *dst;
    int src_gen, dst_gen; /* the instances it joins */
    uint64_t id;
    int64_t in_id;
    udt_time opens, next_read;
    int64_t break_at; /* byte after which it breaks, -1 = never */
    int64_t moved;
    struct gseg *head, **tail;
    bool quiet; /* nothing to read when last asked */
};
struct gpipes {
    struct gpipe *list;
    struct gnode *nodes;
    int n;
    udt_time delay;
    int64_t Bps;
    sim_rng rng;
    uint32_t break_ppm; /* chance that a stream breaks somewhere in its first 300 KB */
    bool corrupt;       /* the next segment has one bit flipped */
    int64_t streams, bytes;
};

static inline void gpipe_kill(struct gpipes *ps, struct gpipe *p, bool tell_src, bool tell_dst)
{
    udt_time now = sim_net_now(ps->nodes[0].net);
    for (struct gpipe **at = &ps->list; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    if (tell_src && p->src->n && p->src->gen == p->src_gen) {
        sgmp_node_bulk_failed(p->src->n, p->id, UDT_E_BROKEN, now);
        sim_net_kick(p->src->net, p->src->id);
    }
    if (tell_dst && p->in_id > 0 && p->dst->n && p->dst->gen == p->dst_gen) {
        sgmp_node_bulk_gone(p->dst->n, p->in_id, now);
        sim_net_kick(p->dst->net, p->dst->id);
    }
    while (p->head) {
        struct gseg *s = p->head;
        p->head = s->next;
        free(s);
    }
    free(p);
}

static inline void gpipe_order(struct gpipes *ps, struct gnode *g, const struct sgmp_bulk_order *o)
{
    if (o->kind == SGMP_BULK_ABORT) {
        for (struct gpipe *p = ps->list; p; p = p->next)
            if (p->src == g && p->src_gen == g->gen && p->id == o->id) {
                gpipe_kill(ps, p, false, true);
                return;
            } else if (p->dst == g && p->dst_gen == g->gen && p->in_id > 0 &&
                       (uint64_t)p->in_id == o->id) {
                gpipe_kill(ps, p, true, false);
                return;
            }
        return;
    }
    struct gpipe *p = calloc(1, sizeof *p);
    p->src = g;
    p->src_gen = g->gen;
    p->id = o->id;
    p->tail = &p->head;
    for (int i = 0; i < ps->n; i++)
        if (memcmp(&ps->nodes[i].addr, &o->to, sizeof o->to) == 0)
            p->dst = &ps->nodes[i];
    CHECK(p->dst != NULL);
    p->dst_gen = p->dst->gen;
    p->opens = sim_net_now(g->net) + 2 * ps->delay;
    p->break_at = sim_rng_below(&ps->rng, 1000000) < ps->break_ppm
                      ? (int64_t)sim_rng_below(&ps->rng, 300000)
                      : -1;
    p->next = ps->list;
    ps->list = p;
    ps->streams++;
}

/* Moves one pipe; false when it is gone. */
static inline bool gpipe_turn(struct gpipes *ps, struct gpipe *p, udt_time now)
{
    uint8_t buf[16384];
    if (!p->src->n || !p->dst->n || p->src->gen != p->src_gen || p->dst->gen != p->dst_gen) {
        gpipe_kill(ps, p, true, true);
        return false;
    }
    if (!p->in_id && now >= p->opens) {
        p->in_id = sgmp_node_bulk_accept(p->dst->n, &p->src->addr, now);
        if (p->in_id < 0) {
            p->in_id = 0;
            gpipe_kill(ps, p, true, false);
            return false;
        }
        sgmp_node_bulk_opened(p->src->n, p->id, now);
        p->next_read = now;
    }
    p->quiet = false;
    while (p->in_id > 0 && now >= p->next_read) {
        size_t n = sgmp_node_bulk_read(p->src->n, p->id, buf, sizeof buf, now);
        if (n == 0) {
            p->quiet = true;
            break;
        }
        struct gseg *s = malloc(sizeof *s + n);
        memcpy(s->data, buf, n);
        if (ps->corrupt && p->moved > 20000 && n > 100) {
            s->data[n / 2] ^= 1;
            ps->corrupt = false;
        }
        s->next = NULL;
        s->at = now + ps->delay;
        s->len = n;
        *p->tail = s;
        p->tail = &s->next;
        if (p->next_read < now)
            p->next_read = now;
        p->next_read += (int64_t)n * 1000000 / ps->Bps + 1;
        p->moved += (int64_t)n;
        ps->bytes += (int64_t)n;
        if (p->break_at >= 0 && p->moved > p->break_at) {
            gpipe_kill(ps, p, true, true);
            return false;
        }
    }
    while (p->head && p->head->at <= now) {
        struct gseg *s = p->head;
        p->head = s->next;
        if (!p->head)
            p->tail = &p->head;
        int err = sgmp_node_bulk_write(p->dst->n, p->in_id, s->data, s->len, now);
        free(s);
        sim_net_kick(p->dst->net, p->dst->id);
        if (err < 0) {
            gpipe_kill(ps, p, true, false);
            return false;
        }
    }
    return true;
}

/* Serves orders and moves all pipes; returns when something happens next. */
static inline udt_time gpipes_run(struct gpipes *ps)
{
    udt_time now = sim_net_now(ps->nodes[0].net), next = UDT_NEVER;
    struct sgmp_bulk_order o;
    for (int i = 0; i < ps->n; i++)
        while (ps->nodes[i].n && sgmp_node_next_bulk(ps->nodes[i].n, &o))
            gpipe_order(ps, &ps->nodes[i], &o);
    for (struct gpipe *p = ps->list, *after; p; p = after) {
        after = p->next;
        if (!gpipe_turn(ps, p, now))
            return now; /* the list changed under us */
        udt_time t = p->in_id ? UDT_NEVER : p->opens;
        if (p->in_id && !p->quiet)
            t = p->next_read > now ? p->next_read : now + 1000;
        if (p->head && p->head->at < t)
            t = p->head->at;
        next = t < next ? t : next;
    }
    for (int i = 0; i < ps->n; i++)
        while (ps->nodes[i].n && sgmp_node_next_bulk(ps->nodes[i].n, &o)) {
            gpipe_order(ps, &ps->nodes[i], &o);
            next = now;
        }
    return next;
}

#endif
