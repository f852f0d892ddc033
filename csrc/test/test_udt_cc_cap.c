/* Caps that the connections of a port share. */
#include "test_udt_own.h"
#include "udt_err.h"

enum { CONNS = 8 };
static uint8_t block[65536];

static void pump(world *w, const pair *p, int64_t *got, udt_time until)
{
    while (sim_net_now(w->net) < until) {
        udt_time now = sim_net_now(w->net);
        for (int i = 0; i < CONNS; i++) {
            ssize_t n;
            while (udt_mux_send(w->m[0], p[i].s[0], block, sizeof block, now) > 0)
                ;
            while ((n = udt_mux_recv(w->m[1], p[i].s[1], block, sizeof block, now)) > 0)
                got[i] += n;
        }
        sim_net_kick(w->net, 0);
        sim_net_kick(w->net, 1);
        udt_time next = now + 5000 < until ? now + 5000 : until;
        while (sim_net_step(w->net, next))
            ;
        world_events(w);
        w->nev[0] = w->nev[1] = 0;
    }
}

static void measure(world *w, const pair *p, double *mbps, double *jain)
{
    int64_t got[CONNS] = {0};
    udt_time start = sim_net_now(w->net);
    pump(w, p, got, start + 3000000);
    memset(got, 0, sizeof got);
    start = sim_net_now(w->net);
    pump(w, p, got, start + 10000000);
    double sum = 0, squares = 0;
    for (int i = 0; i < CONNS; i++) {
        sum += (double)got[i];
        squares += (double)got[i] * (double)got[i];
    }
    *mbps = sum * 8 / 10e6;
    *jain = sum * sum / (CONNS * squares);
}

TEST(udt_cc_cap_is_shared)
{
    sim_link l = {.rate_bps = 1000000000, .delay_us = 10000};
    world w;
    udt_opts o;
    pair p[CONNS];
    double mbps, jain, want = 5e6 * 8 * 1456 / 1500 * 1e-6;
    udt_addr net = test_addr(0, 0), other = {.family = 4, .ip = {10, 9, 0, 0}};
    world_init(&w, test_seed, &l, &l);
    udt_opts_init(&o);
    o.own_peer = true;
    o.snd_buf_bytes = 1 << 20;
    o.rcv_buf_bytes = 4 << 20;
    for (int i = 0; i < CONNS; i++) {
        o.tag = (uint32_t)(100 + i);
        p[i] = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
        own_pair(&w, &p[i], OWN_PLAIN, 0);
    }
    CHECK_INT(udt_mux_link_cap(w.m[0], &net, 33, 1), UDT_E_INVAL);
    CHECK_INT(udt_mux_link_cap(w.m[0], &net, 24, 5000000), 0);
    CHECK_INT(udt_mux_link_cap(w.m[0], &other, 16, 1000), 0); /* not ours */
    measure(&w, p, &mbps, &jain);
    printf("%d connections under a cap of 40 Mb/s: %.2f of %.2f Mb/s, Jain %.4f\n", CONNS, mbps,
           want, jain);
    CHECK(mbps > 0.98 * want && mbps < 1.02 * want && jain > 0.98);
    CHECK_INT(udt_mux_link_cap(w.m[0], NULL, 0, 2500000), 0); /* the port: the smaller holds */
    measure(&w, p, &mbps, &jain);
    printf("and one of 20 Mb/s for the port: %.2f Mb/s, Jain %.4f\n", mbps, jain);
    CHECK(mbps > 0.98 * want / 2 && mbps < 1.02 * want / 2 && jain > 0.98);
    CHECK_INT(udt_mux_link_cap(w.m[0], NULL, 0, 0), 0);
    CHECK_INT(udt_mux_link_cap(w.m[0], &net, 24, 0), 0);
    measure(&w, p, &mbps, &jain);
    printf("without: %.1f Mb/s\n", mbps);
    CHECK(mbps > 100);
    for (int i = 0; i < 62; i++) {
        udt_addr a = {.family = 4, .ip = {11, 0, 0, (uint8_t)i}};
        CHECK_INT(udt_mux_link_cap(w.m[0], &a, 32, 1000), 0);
    }
    CHECK_INT(udt_mux_link_cap(w.m[0], &net, 24, 1000), 0);
    CHECK_INT(udt_mux_link_cap(w.m[0], &net, 25, 1000), UDT_E_LIMIT);
    world_fini(&w);
}
