/* Two nodes with one key, a recorder of what they send, and small helpers of the rule tests. */
#ifndef TEST_GMP_PAIR_H
#define TEST_GMP_PAIR_H

#include "base/crc32c.h"
#include "gmp_world.h"
#include "sgmp/packet.h"

enum { KEY = 0x03000001 };

struct rec {
    int from;
    uint16_t len;
    udt_time at;
    uint8_t data[1300];
};
struct pair {
    sim_net *net;
    struct gnode a, b;
    sgmp_dest to_b, to_a;
    struct rec *rec; /* what was sent */
    int nrec, caprec;
    int64_t to_victim; /* bytes sent to 10.0.9.9 */
};

static inline void tap(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                       udt_time now)
{
    struct pair *p = arg;
    if (to->ip[2] == 9)
        p->to_victim += (int64_t)len;
    if (!p->rec || p->nrec == p->caprec)
        return;
    struct rec *r = &p->rec[p->nrec++];
    r->from = a;
    r->len = (uint16_t)len;
    r->at = now;
    memcpy(r->data, pkt, len);
}

static inline void open_pair(struct pair *p, bool auth, const sim_link *l)
{
    memset(p, 0, sizeof *p);
    p->net = sim_net_new(test_seed);
    gnode_open(&p->a, p->net, 1, auth, test_seed);
    gnode_open(&p->b, p->net, 2, auth, test_seed);
    if (l) {
        sim_net_link(p->net, 0, 1, l);
        sim_net_link(p->net, 1, 0, l);
    }
    if (auth)
        gpair(&p->a, &p->b, KEY, SGMP_ALG_AES256GCM);
    p->to_b = gdest(&p->b, auth ? KEY : 0);
    p->to_a = gdest(&p->a, auth ? KEY : 0);
    sim_net_tap(p->net, tap, p);
}

/* The same node under another address. */
static inline void move_node(struct pair *p, struct gnode *g, unsigned host, const sim_link *l)
{
    int other = g == &p->a ? p->b.id : p->a.id;
    sim_net_set(p->net, g->id, &gnode_ops, NULL);
    g->addr = gaddr(host, 7002);
    g->id = sim_net_add(p->net, &g->addr, &gnode_ops, g);
    sim_net_link(p->net, g->id, other, l);
    sim_net_link(p->net, other, g->id, l);
}

static inline void close_pair(struct pair *p)
{
    if (p->a.n)
        gnode_stop(&p->a);
    if (p->b.n)
        gnode_stop(&p->b);
    sim_net_free(p->net);
    free(p->rec);
}

static inline void record(struct pair *p, int cap)
{
    p->rec = calloc((size_t)cap, sizeof *p->rec);
    p->caprec = cap;
}

static inline void post(struct gnode *g, const sgmp_dest *to, uint64_t id, int flags, uint32_t ms,
                        int want)
{
    sgmp_opts o = {.flags = (uint16_t)flags, .deadline_ms = ms};
    uint8_t body[8];
    for (int i = 0; i < 8; i++)
        body[i] = (uint8_t)(id >> (56 - 8 * i));
    CHECK_INT(sgmp_node_send(g->n, to, body, 8, &o, id, sim_net_now(g->net)), want);
    sim_net_kick(g->net, g->id);
}

static inline uint64_t body_id(const struct sgmp_ev *ev)
{
    uint64_t v = 0;
    for (uint32_t i = 0; i < ev->len; i++)
        v = v << 8 | ev->data[i];
    return v;
}

/* Reads all events; counts messages, keeps the last outcome. */
static inline int read_all(struct gnode *g, int *outcomes, int *status)
{
    struct sgmp_ev ev;
    int messages = 0;
    while (sgmp_node_next_event(g->n, &ev)) {
        messages += ev.kind == SGMP_EV_MESSAGE || ev.kind == SGMP_EV_REQUEST;
        if (ev.kind == SGMP_EV_OUTCOME) {
            if (outcomes)
                ++*outcomes;
            if (status)
                *status = ev.status;
        }
        sgmp_node_release(g->n, ev.buf);
    }
    return messages;
}

static inline sgmp_stats stats(const struct gnode *g)
{
    sgmp_stats s;
    sgmp_node_stats(g->n, &s);
    return s;
}

/* Takes what both nodes tell: each message once, by the number in its body; of each message sent
 * one outcome, 1 = delivered, 2 = surely not, 3 = not known. Returns outcomes. */
static inline int take_events(struct pair *p, uint8_t *seen, uint8_t *result)
{
    struct sgmp_ev ev;
    int settled = 0;
    while (sgmp_node_next_event(p->b.n, &ev)) {
        if (ev.kind == SGMP_EV_MESSAGE)
            CHECK_INT(seen[body_id(&ev)]++, 0);
        sgmp_node_release(p->b.n, ev.buf);
    }
    while (sgmp_node_next_event(p->a.n, &ev)) {
        if (ev.kind == SGMP_EV_OUTCOME) {
            CHECK_INT(result[ev.id], 0);
            result[ev.id] = ev.status == 0 ? 1 : ev.status == UDT_E_NOTSENT ? 2 : 3;
            settled++;
        }
        sgmp_node_release(p->a.n, ev.buf);
    }
    return settled;
}

#endif
