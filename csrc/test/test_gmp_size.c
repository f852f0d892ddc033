/* Datagrams over 1232 bytes (spec/gmp.md section 3): announced, proved by a probe, given up when
 * the path stops to carry them (section 12, rule 10). */
#include "gmp_pipe.h"
#include "sgmp/packet.h"

#include <stdlib.h>

enum { KEY = 0x05000001, MSGS = 600 };

struct duo {
    sim_net *net;
    struct gnode g[2];
    struct gpipes pipes;
    sgmp_dest to;
    int64_t largest; /* datagram seen */
    int delivered[MSGS + 1], outcome[MSGS + 1], settled;
};

static void measure(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                    udt_time now)
{
    struct duo *d = arg;
    (void)a;
    (void)to;
    (void)now;
    if ((pkt[1] & 15) == PKT_T_DATA && (int64_t)len > d->largest)
        d->largest = (int64_t)len;
}

static void open_sized(struct duo *d, uint16_t da, uint16_t db, const sim_link *l)
{
    memset(d, 0, sizeof *d);
    d->net = sim_net_new(test_seed);
    gnode_open_sized(&d->g[0], d->net, 1, true, test_seed, da);
    gnode_open_sized(&d->g[1], d->net, 2, true, test_seed, db);
    sim_net_link(d->net, 0, 1, l);
    sim_net_link(d->net, 1, 0, l);
    gpair(&d->g[0], &d->g[1], KEY, SGMP_ALG_AES256GCM);
    d->to = gdest(&d->g[1], KEY);
    d->pipes.nodes = d->g;
    d->pipes.n = 2;
    d->pipes.delay = l->delay_us;
    d->pipes.Bps = 100000000;
    sim_rng_seed(&d->pipes.rng, test_seed);
    sim_net_tap(d->net, measure, d);
}

static void close_sized(struct duo *d)
{
    while (d->pipes.list)
        gpipe_kill(&d->pipes, d->pipes.list, true, true);
    gnode_stop(&d->g[0]);
    gnode_stop(&d->g[1]);
    sim_net_free(d->net);
}

static void drain(struct duo *d)
{
    struct sgmp_ev ev;
    while (sgmp_node_next_event(d->g[1].n, &ev)) {
        if (ev.kind == SGMP_EV_MESSAGE || ev.kind == SGMP_EV_REQUEST) {
            int id = ev.data[0] << 8 | ev.data[1];
            CHECK(id >= 1 && id <= MSGS);
            d->delivered[id]++;
            for (uint32_t i = 2; i < ev.len; i++)
                CHECK_INT(ev.data[i], (uint8_t)(id + (int)i));
            if (ev.kind == SGMP_EV_REQUEST)
                sgmp_node_reply(d->g[1].n, ev.id, 0, ev.data, ev.len, sim_net_now(d->net));
        }
        sgmp_node_release(d->g[1].n, ev.buf);
    }
    while (sgmp_node_next_event(d->g[0].n, &ev)) {
        if (ev.kind == SGMP_EV_OUTCOME || ev.kind == SGMP_EV_RESPONSE) {
            CHECK(ev.id >= 1 && ev.id <= MSGS);
            d->outcome[ev.id] = ev.status ? ev.status : 1;
            d->settled++;
        }
        sgmp_node_release(d->g[0].n, ev.buf);
    }
    sim_net_kick(d->net, 0);
    sim_net_kick(d->net, 1);
}

static void step(struct duo *d, udt_time until)
{
    udt_time pipe;
    while ((pipe = gpipes_run(&d->pipes)) <= sim_net_now(d->net))
        ;
    sim_net_step(d->net, pipe < until ? pipe : until);
    drain(d);
}

static void run_for(struct duo *d, udt_time us)
{
    udt_time until = sim_net_now(d->net) + us;
    while (sim_net_now(d->net) < until)
        step(d, until);
}

static bool put(struct duo *d, int id, size_t len, bool call)
{
    static uint8_t body[9000];
    body[0] = (uint8_t)(id >> 8);
    body[1] = (uint8_t)id;
    for (size_t i = 2; i < len; i++)
        body[i] = (uint8_t)((size_t)id + i);
    udt_time now = sim_net_now(d->net);
    sgmp_opts o = {.deadline_ms = 60000};
    int err = call ? sgmp_node_call(d->g[0].n, &d->to, 3, body, len, &o, (uint64_t)id, now)
                   : sgmp_node_send(d->g[0].n, &d->to, body, len, &o, (uint64_t)id, now);
    CHECK(err == 0 || err == UDT_E_AGAIN); /* a full queue towards the peer */
    sim_net_kick(d->net, 0);
    return err == 0;
}

static int64_t known_size(struct duo *d)
{
    sgmp_peer_info info;
    CHECK_INT(sgmp_node_peer_info(d->g[0].n, &d->to, &info), 0);
    return info.max_dgram;
}

TEST(gmp_size_grows_where_both_announce_it_and_the_path_carries_it)
{
    static const struct {
        uint16_t a, b;
        size_t mtu;
        int64_t want;
    } cases[] = {{8972, 8972, 0, 8972},   {8972, 0, 0, 1232},       {8972, 4000, 0, 4000},
                 {0, 8972, 0, 1232},      {8972, 8972, 1472, 1452}, {8972, 8972, 5000, 4052},
                 {8972, 8972, 1300, 1232}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct duo d;
        sim_link l = {.delay_us = 2000};
        open_sized(&d, cases[i].a, cases[i].b, &l);
        d.g[1].mtu = cases[i].mtu;
        put(&d, 1, 100, false);
        run_for(&d, SEC_(1));
        CHECK_INT(known_size(&d), 1232); /* nothing asked for more yet */
        put(&d, 2, 5000, false);         /* as an over-size message; starts the probe */
        run_for(&d, SEC_(1));
        CHECK_INT(known_size(&d), cases[i].want);
        d.largest = 0;
        put(&d, 3, (size_t)cases[i].want - 136, false); /* fits exactly */
        put(&d, 4, (size_t)cases[i].want - 135, false); /* one byte too many */
        put(&d, 5, (size_t)cases[i].want - 136 - 24, true);
        run_for(&d, SEC_(2));
        for (int id = 1; id <= 5; id++)
            CHECK(d.delivered[id] == 1 && d.outcome[id] == 1);
        CHECK(d.largest <= cases[i].want && d.largest >= cases[i].want - 80);
        if (i == 0) { /* a heap of them, still one datagram each */
            int64_t streams = d.pipes.streams;
            for (int id = 10; id < 60; id++)
                put(&d, id, 8000, id % 2);
            run_for(&d, SEC_(2));
            for (int id = 10; id < 60; id++)
                CHECK(d.delivered[id] == 1 && d.outcome[id] == 1);
            CHECK_INT(d.pipes.streams, streams);
        }
        close_sized(&d);
    }
}

/* The path's MTU drops while large datagrams are under way, in one direction or after some were
 * delivered whose acknowledgements are lost: every message arrives once, none is uncertain. */
TEST(gmp_size_falls_in_flight_without_loss_or_duplicate)
{
    for (int round = 0; round < 12; round++) {
        struct duo d;
        sim_link l = {.delay_us = 10000, .rate_bps = 50000000, .queue_bytes = 400000};
        sim_rng r;
        sim_rng_seed(&r, test_seed + (uint64_t)round);
        l.loss_ppm = round % 3 == 1 ? 50000 : 0;
        l.reorder_ppm = round % 3 == 2 ? 100000 : 0;
        l.reorder_us = 30000;
        open_sized(&d, 8972, 8972, &l);
        put(&d, 1, 5000, false);
        run_for(&d, SEC_(1));
        CHECK_INT(known_size(&d), 8972);
        int n = 2;
        udt_time drop = sim_net_now(d.net) + 20000 + (udt_time)sim_rng_below(&r, 80000);
        while (n <= 250) {
            for (int i = 0; i < 5 && n <= 250; i++, n++)
                if (!put(&d, n, 10 + sim_rng_below(&r, n % 3 ? 8700 : 900), n % 4 == 0))
                    break;
            udt_time until = sim_net_now(d.net) + 3000;
            while (sim_net_now(d.net) < until) {
                step(&d, until);
                if (sim_net_now(d.net) >= drop) {
                    d.g[1].mtu = d.g[0].mtu = 1500;
                    if (round % 4 == 3) { /* answers vanish for a while as well */
                        sim_link dead = l;
                        dead.loss_ppm = 1000000;
                        sim_net_link(d.net, 1, 0, &dead);
                        run_for(&d, MS_(100));
                        sim_net_link(d.net, 1, 0, &l);
                    }
                    drop = UDT_NEVER;
                }
            }
        }
        udt_time limit = sim_net_now(d.net) + SEC_(55);
        while (d.settled < n - 1 && sim_net_now(d.net) < limit)
            step(&d, sim_net_now(d.net) + MS_(100));
        for (int id = 1; id < n; id++)
            if (d.delivered[id] != 1 || d.outcome[id] != 1)
                test_fail(__FILE__, __LINE__, "round %d message %d: delivered %d, outcome %d",
                          round, id, d.delivered[id], d.outcome[id]);
        sgmp_stats st;
        sgmp_node_stats(d.g[0].n, &st);
        CHECK_INT(st.dgram_down, 1);
        CHECK_INT(known_size(&d), 1232);
        CHECK(d.g[1].too_big > 0);
        /* A minute later the larger size is tried again. */
        d.g[1].mtu = d.g[0].mtu = 0;
        run_for(&d, SEC_(70));
        put(&d, n, 5000, false);
        run_for(&d, SEC_(3));
        CHECK(d.delivered[n] == 1 && known_size(&d) > 4000);
        if (!l.loss_ppm && !l.reorder_ppm) /* else a probe may be lost, or its answer too late */
            CHECK_INT(known_size(&d), 8972);
        CHECK_INT(st.bulk_streams > 0, 1);
        close_sized(&d);
    }
}

/* The first hop says so itself (EMSGSIZE): no time is lost. */
TEST(gmp_size_falls_at_once_when_the_network_refuses)
{
    struct duo d;
    sim_link l = {.delay_us = 5000};
    open_sized(&d, 8972, 8972, &l);
    put(&d, 1, 5000, false);
    run_for(&d, SEC_(1));
    CHECK_INT(known_size(&d), 8972);
    d.g[1].mtu = 1500;
    udt_time t0 = sim_net_now(d.net);
    put(&d, 2, 8000, false);
    step(&d, sim_net_now(d.net) + 1000);
    sgmp_node_too_big(d.g[0].n, &d.g[1].addr, 8136, sim_net_now(d.net));
    sim_net_kick(d.net, 0);
    while (d.settled < 2 && sim_net_now(d.net) < t0 + SEC_(2))
        step(&d, sim_net_now(d.net) + 1000);
    CHECK(d.delivered[2] == 1 && d.outcome[2] == 1);
    CHECK(sim_net_now(d.net) - t0 < MS_(100));
    CHECK_INT(known_size(&d), 1232);
    close_sized(&d);
}
