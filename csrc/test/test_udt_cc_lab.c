#include "test_udt_cc_lab.h"

#include "udt_err.h"

struct lab_node {
    udt_mux *m;
    int32_t sock;
    udt_addr addr;
    sim_rng rng;
    bool sender, open, writable, readable;
    int64_t *got;
};

static uint8_t zeros[1 << 18], sink[1 << 18];

/* The application: always data to send, always room to read. */
static void serve(struct lab_node *d, udt_time now)
{
    struct udt_ev ev;
    while (udt_mux_next_event(d->m, &ev)) {
        if (ev.kind == UDT_EV_FAILED)
            test_fail(__FILE__, __LINE__, "a connection failed: %d", ev.err);
        d->open |= ev.kind == UDT_EV_CONNECTED;
        d->readable |= ev.kind == UDT_EV_READABLE;
        d->writable |= ev.kind == UDT_EV_WRITABLE;
    }
    ssize_t n;
    while (d->readable && (n = udt_mux_recv(d->m, d->sock, sink, sizeof sink, now)) > 0)
        *d->got += n;
    d->readable = false;
    while (d->sender && d->writable)
        if (udt_mux_send(d->m, d->sock, zeros, sizeof zeros, now) == UDT_E_AGAIN)
            d->writable = false;
}

static void ep_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    udt_mux_input(((struct lab_node *)ep)->m, from, pkt, len, now);
}
static void ep_burst_end(void *ep, udt_time now)
{
    udt_mux_burst_end(((struct lab_node *)ep)->m, now);
    serve(ep, now);
}
static size_t ep_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                        size_t *seg, udt_time now)
{
    return udt_mux_output(((struct lab_node *)ep)->m, buf, cap, max_segs, to, seg, now);
}
static udt_time ep_deadline(const void *ep)
{
    return udt_mux_deadline(((const struct lab_node *)ep)->m);
}
static void ep_tick(void *ep, udt_time now)
{
    udt_mux_tick(((struct lab_node *)ep)->m, now);
    serve(ep, now);
}
static const sim_ep_ops node_ops = {ep_input, ep_burst_end, ep_output, ep_deadline, ep_tick};

void lab_init(lab *l, const lab_link *link)
{
    memset(l, 0, sizeof *l);
    l->net = sim_net_new(test_seed);
    sim_net_thin(l->net, 64);
    sim_link q = {.rate_bps = (int64_t)link->rate_bps,
                  .queue_bytes = link->queue_bytes,
                  .frame_bytes = LAB_FRAME};
    if (!q.queue_bytes)
        q.queue_bytes = (int64_t)(link->rate_bps / 8e6 * (double)link->rtt_us);
    l->bdp = link->rate_bps / 8e6 * (double)link->rtt_us;
    l->queue = sim_net_queue(l->net, &q);
}

static udt_addr lab_addr(int i, int end)
{
    udt_addr a = {.family = 4, .port = 9000, .ip = {10, (uint8_t)(1 + end), 0, 0}};
    a.ip[2] = (uint8_t)(i >> 8);
    a.ip[3] = (uint8_t)i;
    return a;
}

static void lab_links(lab *l, const lab_link *link, int a, int b, int64_t rtt_us)
{
    sim_link there = {.delay_us = rtt_us / 2, .loss_ppm = link->loss_ppm, .queue = l->queue};
    sim_link back = {.delay_us = rtt_us - rtt_us / 2};
    sim_net_link(l->net, a, b, &there);
    sim_net_link(l->net, b, a, &back);
}

lab_flow *lab_add(lab *l, const lab_link *link, int64_t rtt_us, const char *cc)
{
    int i = l->n++, id[2];
    lab_flow *f = &l->f[i];
    CHECK(i < LAB_FLOWS);
    f->rtt_us = rtt_us;
    f->cc = cc;
    udt_addr addr[2] = {lab_addr(i, 0), lab_addr(i, 1)};
    if (cc && strcmp(cc, "tcp") == 0) {
        f->tcp = sim_tcp_new(l->net, &addr[0], &addr[1], 2000000, &id[0], &id[1]);
        lab_links(l, link, id[0], id[1], rtt_us);
        return f;
    }
    f->foreign = cc && strcmp(cc, "foreign") == 0;
    for (int e = 0; e < 2; e++) {
        struct lab_node *d = calloc(1, sizeof *d);
        CHECK(d);
        d->addr = addr[e];
        d->sender = e == 0;
        d->got = &f->got;
        sim_rng_seed(&d->rng, test_seed + (uint64_t)(2 * i + e));
        udt_mux_config cfg = {
            .rand = sim_rng_bytes, .rand_arg = &d->rng, .max_buf_bytes = (uint64_t)8 << 30};
        d->m = udt_mux_new(&cfg);
        CHECK(d->m);
        id[e] = sim_net_add(l->net, &d->addr, &node_ops, d);
        f->node[e] = d;
    }
    lab_links(l, link, id[0], id[1], rtt_us);
    return f;
}

static void lab_connect(lab *l, int i)
{
    lab_flow *f = &l->f[i];
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = !f->foreign;
    o.cc = f->foreign ? NULL : f->cc;
    o.max_bw_Bps = f->max_bw_Bps;
    o.tag = 0x5eed;
    /* Room for eight windows of the whole link; of a crowd, for eight fair shares each. */
    double room = l->bdp * 8 / (l->n > 2 ? l->n : 1) + 4e6;
    o.snd_buf_bytes = o.rcv_buf_bytes = room < 4e9 ? (uint32_t)room : 4000000000u;
    o.fc_pkts = 1 << 21;
    for (int e = 0; e < 2; e++) {
        f->node[e]->sock =
            udt_mux_rendezvous(f->node[e]->m, &f->node[!e]->addr, &o, sim_net_now(l->net));
        CHECK(f->node[e]->sock > 0);
    }
}

void lab_go(lab *l)
{
    for (int i = 0; i < l->n; i++)
        if (!l->f[i].tcp)
            lab_connect(l, i);
    for (int id = 0; id < 2 * l->n; id++)
        sim_net_kick(l->net, id);
    while (sim_net_step(l->net, 2000000))
        ;
    for (int i = 0; i < l->n; i++) {
        lab_flow *f = &l->f[i];
        for (int e = 0; e < 2 && !f->tcp; e++) {
            udt_conn *c = udt__mux_find(f->node[e]->m, f->node[e]->sock);
            own_cfg cfg = {0};
            CHECK(c && f->node[e]->open);
            if (!f->foreign)
                CHECK(c->own.on || udt__own_start(c, &cfg, sim_net_now(l->net)));
        }
        if (!f->tcp) {
            f->node[0]->writable = true;
            serve(f->node[0], sim_net_now(l->net));
        }
    }
    for (int id = 0; id < 2 * l->n; id++)
        sim_net_kick(l->net, id);
    l->start = sim_net_now(l->net);
    lab_mark(l);
}

void lab_run(lab *l, double seconds)
{
    udt_time until = l->start + (udt_time)(seconds * 1e6);
    while (sim_net_step(l->net, until))
        ;
    for (int i = 0; i < l->n; i++)
        if (l->f[i].tcp)
            l->f[i].got = sim_tcp_delivered(l->f[i].tcp) * 1456;
}

void lab_mark(lab *l)
{
    l->marked = sim_net_now(l->net);
    l->before = sim_net_queue_counts(l->net, l->queue);
    for (int i = 0; i < l->n; i++)
        l->f[i].mark = l->f[i].got;
}

double lab_mbps(const lab *l, int i)
{
    double span = (double)(sim_net_now(l->net) - l->marked);
    return (double)(l->f[i].got - l->f[i].mark) * 8 / span;
}

double lab_total(const lab *l)
{
    double sum = 0;
    for (int i = 0; i < l->n; i++)
        sum += lab_mbps(l, i);
    return sum;
}

double lab_jain(const lab *l)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < l->n; i++) {
        double x = lab_mbps(l, i);
        sum += x;
        squares += x * x;
    }
    return squares > 0 ? sum * sum / (l->n * squares) : 0;
}

double lab_drops(const lab *l)
{
    sim_counts c = sim_net_queue_counts(l->net, l->queue);
    return (double)(c.queue_drops - l->before.queue_drops) / (double)(c.sent - l->before.sent);
}

udt_conn *lab_conn(const lab *l, int i)
{
    return udt__mux_find(l->f[i].node[0]->m, l->f[i].node[0]->sock);
}

udt_stats lab_stats(const lab *l, int i)
{
    udt_stats st;
    CHECK_INT(udt_mux_stats(l->f[i].node[0]->m, l->f[i].node[0]->sock, &st), 0);
    return st;
}

void lab_fini(lab *l)
{
    sim_net_free(l->net);
    for (int i = 0; i < l->n; i++) {
        sim_tcp_free(l->f[i].tcp);
        for (int e = 0; e < 2 && !l->f[i].tcp; e++) {
            udt_mux_free(l->f[i].node[e]->m);
            free(l->f[i].node[e]);
        }
    }
}

double lab_limit(const lab_link *link)
{
    return link->rate_bps * 1456 / 1538 * 1e-6;
}
