#include "test_udt_cc_lab.h"

#include "udt_err.h"

#define CONNECTED_US 2000000
#define AWAY_EVERY_US 50000 /* mean time between */

struct lab_node {
    udt_mux *m;
    int32_t sock;
    udt_addr addr;
    sim_rng rng;
    bool sender, open, writable, readable;
    int64_t *got;
    int64_t away_us; /* mean of such a time, 0 = never */
    sim_rng away_rng;
    udt_time away_at, back_at; /* the thread stands still from the one to the other */
    int64_t grain_us;
    udt_time due, wakes; /* a timer, and when the thread hears of it */
    struct kept *kept, **kept_end;
};

/* What came while the thread stood still: the socket's buffer. */
struct kept {
    struct kept *next;
    udt_addr from;
    size_t len;
    uint8_t pkt[];
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

/* When the thread will stand still next, and for how long: a machine with other work. */
static void plan_away(struct lab_node *d, udt_time now)
{
    if (!d->away_us)
        return;
    d->away_at = now + 1 + (int64_t)sim_rng_below(&d->away_rng, 2 * (uint64_t)AWAY_EVERY_US);
    d->back_at = d->away_at + 1 + (int64_t)sim_rng_below(&d->away_rng, 2 * (uint64_t)d->away_us);
}

static bool is_away(const struct lab_node *d, udt_time now)
{
    return d->away_us && now >= d->away_at && now < d->back_at;
}

/* The thread is back: it reads all that has come at one time, then. */
static void come_back(struct lab_node *d, udt_time now)
{
    if (!d->away_us || now < d->back_at)
        return;
    for (struct kept *k; (k = d->kept); free(k)) {
        d->kept = k->next;
        udt_mux_input(d->m, &k->from, k->pkt, k->len, now);
    }
    d->kept_end = &d->kept;
    udt_mux_burst_end(d->m, now);
    plan_away(d, now);
}

static void ep_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    struct lab_node *d = ep;
    come_back(d, now);
    if (!is_away(d, now)) {
        udt_mux_input(d->m, from, pkt, len, now);
        return;
    }
    struct kept *k = malloc(sizeof *k + len);
    CHECK(k);
    k->next = NULL;
    k->from = *from;
    k->len = len;
    memcpy(k->pkt, pkt, len);
    *d->kept_end = k;
    d->kept_end = &k->next;
}
static void ep_burst_end(void *ep, udt_time now)
{
    struct lab_node *d = ep;
    if (is_away(d, now))
        return;
    udt_mux_burst_end(d->m, now);
    serve(d, now);
}
static size_t ep_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                        size_t *seg, udt_time now)
{
    struct lab_node *d = ep;
    return is_away(d, now) ? 0 : udt_mux_output(d->m, buf, cap, max_segs, to, seg, now);
}
/* When the thread hears of its next timer: threads wake up late. */
static udt_time heard_of(struct lab_node *d)
{
    udt_time due = udt_mux_deadline(d->m);
    if (!d->grain_us || due == UDT_NEVER)
        return due;
    if (due != d->due) {
        d->due = due;
        d->wakes = due + (udt_time)sim_rng_below(&d->away_rng, (uint64_t)d->grain_us + 1);
    }
    return d->wakes;
}

static udt_time ep_deadline(const void *ep)
{
    struct lab_node *d = (struct lab_node *)ep;
    udt_time due = heard_of(d);
    bool waits = d->away_us && (d->kept || due >= d->away_at) && due < d->back_at;
    return waits ? d->back_at : due;
}
static void ep_tick(void *ep, udt_time now)
{
    struct lab_node *d = ep;
    come_back(d, now);
    if (is_away(d, now))
        return;
    udt_mux_tick(d->m, now);
    serve(d, now);
}
static const sim_ep_ops node_ops = {ep_input, ep_burst_end, ep_output, ep_deadline, ep_tick};

static sim_link bottleneck(const lab_link *link)
{
    sim_link q = {.rate_bps = (int64_t)link->rate_bps,
                  .queue_bytes = link->queue_bytes,
                  .frame_bytes = LAB_FRAME,
                  .police = link->police};
    if (!q.queue_bytes)
        q.queue_bytes = (int64_t)(link->rate_bps / 8e6 * (double)link->rtt_us);
    return q;
}

void lab_init(lab *l, const lab_link *link)
{
    lab_init_seed(l, link, test_seed);
}

void lab_init_seed(lab *l, const lab_link *link, uint64_t seed)
{
    memset(l, 0, sizeof *l);
    l->seed = seed;
    l->net = sim_net_new(seed);
    sim_net_thin(l->net, 64);
    sim_link q = bottleneck(link);
    l->bdp = link->rate_bps / 8e6 * (double)link->rtt_us;
    l->queue = sim_net_queue(l->net, &q);
}

static void lab_links(lab *l, const lab_link *link, int a, int b, int64_t rtt_us)
{
    sim_link there = {.delay_us = rtt_us / 2, .loss_ppm = link->loss_ppm, .queue = l->queue};
    sim_link back = {.delay_us = rtt_us - rtt_us / 2};
    there.jitter_us = back.jitter_us = l->jitter_us;
    sim_net_link(l->net, a, b, &there);
    sim_net_link(l->net, b, a, &back);
}

void lab_change(lab *l, const lab_link *link)
{
    sim_link q = bottleneck(link);
    sim_net_queue_change(l->net, l->queue, &q);
    for (int i = 0; i < l->n; i++)
        lab_links(l, link, l->f[i].id[0], l->f[i].id[1], link->rtt_us);
}

void lab_quiet(lab *l, int i, bool quiet)
{
    struct lab_node *d = l->f[i].node[0];
    d->sender = !quiet;
    d->writable = true;
    serve(d, sim_net_now(l->net));
    sim_net_kick(l->net, l->f[i].id[0]);
}

void lab_write(lab *l, int i, size_t bytes)
{
    struct lab_node *d = l->f[i].node[0];
    CHECK(bytes <= sizeof zeros);
    CHECK(udt_mux_send(d->m, d->sock, zeros, bytes, sim_net_now(l->net)) == (ssize_t)bytes);
    sim_net_kick(l->net, l->f[i].id[0]);
}

double lab_now(const lab *l)
{
    return (double)(sim_net_now(l->net) - l->start) * 1e-6;
}

static udt_addr lab_addr(int i, int end)
{
    udt_addr a = {.family = 4, .port = 9000, .ip = {10, (uint8_t)(1 + end), 0, 0}};
    a.ip[2] = (uint8_t)(i >> 8);
    a.ip[3] = (uint8_t)i;
    return a;
}

lab_flow *lab_add(lab *l, const lab_link *link, int64_t rtt_us, const char *cc)
{
    int i = l->n++;
    lab_flow *f = &l->f[i];
    int *id = f->id;
    CHECK(i < LAB_FLOWS);
    f->rtt_us = rtt_us;
    f->cc = cc;
    udt_addr addr[2] = {lab_addr(i, 0), lab_addr(i, 1)};
    if (cc && strncmp(cc, "tcp", 3) == 0) {
        enum sim_tcp_law law = strcmp(cc, "tcp-bbr") == 0 ? SIM_TCP_BBR : SIM_TCP_CUBIC;
        f->tcp = sim_tcp_new(l->net, &addr[0], &addr[1], law, CONNECTED_US, &id[0], &id[1]);
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
        d->kept_end = &d->kept;
        sim_rng_seed(&d->rng, l->seed + (uint64_t)(2 * i + e));
        sim_rng_seed(&d->away_rng, ~(l->seed + (uint64_t)(2 * i + e)));
        id[e] = sim_net_add(l->net, &d->addr, NULL, NULL);
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
    if (f->windows)
        o.snd_buf_bytes = o.rcv_buf_bytes = 0;
    else
        o.fc_pkts = 1 << 21;
    for (int e = 0; e < 2; e++) {
        struct lab_node *d = f->node[e];
        udt_mux_config cfg = {.rand = sim_rng_bytes, .rand_arg = &d->rng};
        cfg.max_buf_bytes = f->windows ? f->budget : (uint64_t)8 << 30;
        CHECK((d->m = udt_mux_new(&cfg)));
        sim_net_set(l->net, f->id[e], &node_ops, d);
    }
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
    while (sim_net_step(l->net, CONNECTED_US))
        ;
    for (int i = 0; i < l->n; i++) {
        lab_flow *f = &l->f[i];
        for (int e = 0; e < 2 && !f->tcp; e++) {
            f->node[e]->away_us = l->away_us;
            f->node[e]->grain_us = l->grain_us;
            plan_away(f->node[e], sim_net_now(l->net));
            udt_conn *c = udt__mux_find(f->node[e]->m, f->node[e]->sock);
            own_cfg cfg = {0};
            CHECK(c && f->node[e]->open);
            if (!f->foreign)
                CHECK(c->own.on || udt__own_start(c, &cfg, sim_net_now(l->net)));
            if (f->windows) {
                c->open.auto_rcv = c->open.auto_snd = true;
                udt__own_windows(c);
            }
        }
        if (!f->tcp) {
            f->node[0]->sender = !f->quiet;
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

void lab_trace(const lab *l)
{
    if (!getenv("TEST_TRACE"))
        return;
    for (int i = 0; i < l->n; i++) {
        if (l->f[i].tcp)
            continue;
        const udt_conn *c = lab_conn(l, i);
        const udt_cc_bbr *b = &c->cc.u.bbr;
        const udt_conn *r = udt__mux_find(l->f[i].node[1]->m, l->f[i].node[1]->sock);
        printf("snd held %" PRIu64 " of %" PRIu64 " KB, credit left %" PRId64
               " KB, rcv holds %" PRIu64 " of %" PRIu64 " KB, flow-limited %.2f s\n",
               c->snd.bytes >> 10, c->snd.max_bytes >> 10,
               (c->own.edge_bytes - c->own.sent_bytes) / 1024, r->rcv.bytes >> 10,
               r->rcv.want >> 10, (double)c->st.lim_flow_us * 1e-6);
        if (c->cc.ops != &udt_cc_bbr_ops) {
            const udt_cc_native *u = &c->cc.u.native;
            printf("%7.3f #%d %s%s%s%s bw %.0f rate %.0f pace %.0f chance %.3f min %" PRId64
                   " rtt %" PRId64 " cwnd %" PRId64 " flight %" PRId64 " wait %d next %" PRId64
                   " head %" PRId64 " loss %u retr %" PRId64 " to %" PRId64 "\n",
                   lab_now(l), i, c->cc.ops->name, u->slow_start ? " slow" : "",
                   u->drain ? " drain" : "", u->inflated ? " inflated" : "", u->bw_pps, u->rate_pps,
                   1e9 / (double)c->cc.period_ns, u->chance_loss, u->min_rtt_us, c->rtt_us,
                   c->cc.cwnd_pkts, udt__conn_flight(c), u->probe_wait, c->next, c->snd.head,
                   c->loss.map.count, c->st.pkts_retrans, c->st.timeouts);
            continue;
        }
        static const char *const names[] = {"START",  "DRAIN", "DOWN", "CRUISE",
                                            "REFILL", "UP",    "PRTT"};
        printf("%7.3f #%d %-6s bw %.0f lo %.0f hi %" PRId64 " lo %" PRId64
               " chance %.3f min %" PRId64 " rtt %" PRId64 " cwnd %" PRId64 " "
               "flight %" PRId64 " rate %.0f loss %u retr %" PRId64 " sent %" PRId64
               " got %.1f out %u edge %" PRId64 " head %" PRId64 " "
               "next %" PRId64 " tail %" PRId64 " probes %" PRId64 " to %" PRId64 "\n",
               (double)(sim_net_now(l->net) - l->start) * 1e-6, i, names[b->state], b->bw, b->bw_lo,
               b->hi == INT64_MAX ? -1 : b->hi, b->lo == INT64_MAX ? -1 : b->lo, b->chance,
               b->min_rtt_us, c->rtt_us, c->cc.cwnd_pkts, c->own.flight,
               1e9 / (double)c->cc.period_ns, c->loss.map.count, c->st.pkts_retrans,
               c->st.pkts_sent, (double)l->f[i].got * 1e-6, c->own.out.count, c->edge, c->snd.head,
               c->next, c->snd.tail, c->st.probes, c->st.timeouts);
    }
    sim_counts q = sim_net_queue_counts(l->net, l->queue);
    printf("   queue sent %" PRId64 " drops %" PRId64 "\n", q.sent, q.queue_drops);
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
            for (struct kept *k; (k = l->f[i].node[e]->kept); free(k))
                l->f[i].node[e]->kept = k->next;
            udt_mux_free(l->f[i].node[e]->m);
            free(l->f[i].node[e]);
        }
    }
}

double lab_limit(const lab_link *link)
{
    return link->rate_bps * 1456 / 1538 * 1e-6;
}
