/* Two or more GMP nodes on the simulated network, for the GMP tests. */
#ifndef TEST_GMP_WORLD_H
#define TEST_GMP_WORLD_H

#include "sgmp/node.h"
#include "sim/net.h"
#include "test.h"

#define MS_(n) ((udt_time)(n) * 1000)
#define SEC_(n) ((udt_time)(n) * 1000000)

struct gnode {
    sgmp_node *n;
    sim_net *net;
    int id;
    udt_addr addr;
    sim_rng rng;
    bool auth;
    int gen;         /* counts starts */
    uint64_t starts; /* wall clock of the next start, rises with each */
    uint16_t dgram;  /* largest datagram it announces, 0 = the default */
    size_t mtu;      /* larger datagrams do not get here, 0 = all do */
    int64_t too_big; /* those */
};

static void gnode_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len,
                        udt_time now)
{
    struct gnode *g = ep;
    if (g->mtu && len > g->mtu)
        g->too_big++;
    else
        sgmp_node_input(g->n, from, pkt, len, now);
}
static size_t gnode_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                           size_t *seg, udt_time now)
{
    (void)max_segs;
    size_t len = sgmp_node_output(((struct gnode *)ep)->n, buf, cap, to, now);
    *seg = len;
    return len;
}
static udt_time gnode_deadline(const void *ep)
{
    return sgmp_node_deadline(((const struct gnode *)ep)->n);
}
static void gnode_tick(void *ep, udt_time now)
{
    sgmp_node_tick(((struct gnode *)ep)->n, now);
}
static const sim_ep_ops gnode_ops = {gnode_input, NULL, gnode_output, gnode_deadline, gnode_tick};

static inline udt_addr gaddr(unsigned host, unsigned port)
{
    udt_addr a;
    memset(&a, 0, sizeof a);
    a.family = 4;
    a.port = (uint16_t)port;
    a.ip[0] = 10;
    a.ip[2] = (uint8_t)(host >> 8);
    a.ip[3] = (uint8_t)host;
    return a;
}

static inline void gnode_start(struct gnode *g)
{
    sgmp_node_config cfg = {.rand = sim_rng_bytes,
                            .rand_arg = &g->rng,
                            .start_time_us = g->starts += 1000000,
                            .require_auth = g->auth,
                            .max_dgram = g->dgram};
    g->n = sgmp_node_new(&cfg, sim_net_now(g->net));
    CHECK(g->n != NULL);
    g->gen++;
    sim_net_set(g->net, g->id, &gnode_ops, g);
    sim_net_kick(g->net, g->id);
}

static inline void gnode_open_sized(struct gnode *g, sim_net *net, unsigned host, bool auth,
                                    uint64_t seed, uint16_t dgram)
{
    memset(g, 0, sizeof *g);
    g->dgram = dgram;
    g->net = net;
    g->auth = auth;
    g->addr = gaddr(host, 7002);
    sim_rng_seed(&g->rng, seed + host * 7919u);
    g->id = sim_net_add(net, &g->addr, &gnode_ops, NULL);
    gnode_start(g);
}

static inline void gnode_open(struct gnode *g, sim_net *net, unsigned host, bool auth,
                              uint64_t seed)
{
    gnode_open_sized(g, net, host, auth, seed, 0);
}

static inline void gnode_stop(struct gnode *g)
{
    sim_net_set(g->net, g->id, &gnode_ops, NULL);
    sgmp_node_free(g->n);
    g->n = NULL;
}

static inline sgmp_key gkey(uint32_t id, int alg, const char *principal)
{
    sgmp_key k;
    memset(&k, 0, sizeof k);
    k.key_id = id;
    k.alg = (uint8_t)alg;
    memset(k.secret, (int)(id & 255) ^ 0x5a, sizeof k.secret);
    snprintf(k.principal, sizeof k.principal, "%s", principal);
    return k;
}

/* Installs one key at both ends; each end's principal is the other's name. */
static inline void gpair(struct gnode *a, struct gnode *b, uint32_t id, int alg)
{
    char na[32], nb[32];
    snprintf(na, sizeof na, "node-%d", a->id);
    snprintf(nb, sizeof nb, "node-%d", b->id);
    sgmp_key ka = gkey(id, alg, nb), kb = gkey(id, alg, na);
    CHECK_INT(sgmp_node_key_add(a->n, &ka, sim_net_now(a->net)), 0);
    CHECK_INT(sgmp_node_key_add(b->n, &kb, sim_net_now(b->net)), 0);
}

static inline sgmp_dest gdest(const struct gnode *g, uint32_t key_id)
{
    sgmp_dest d = {g->addr, key_id};
    return d;
}

static inline void grun(sim_net *net, udt_time until)
{
    while (sim_net_step(net, until))
        ;
}

/* Runs until `g` has an event of this kind; other events are released. False = not by `until`. */
static inline bool gwait(struct gnode *g, int kind, struct sgmp_ev *ev, udt_time until)
{
    for (;;) {
        while (sgmp_node_next_event(g->n, ev)) {
            if (ev->kind == kind)
                return true;
            sgmp_node_release(g->n, ev->buf);
        }
        if (!sim_net_step(g->net, until))
            return false;
    }
}

#endif
