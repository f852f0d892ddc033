/* How own mode begins: offers in handshakes, behind them, and by key. */
#include "test_udt_util.h"

#include "test_alloc.h"
#include "udt/conn.h"

static const sim_link path = {.rate_bps = 100000000, .delay_us = 10000};

static void world_init6(world *w, uint64_t seed, const sim_link *l)
{
    memset(w, 0, sizeof *w);
    w->net = sim_net_new(seed);
    for (int i = 0; i < 2; i++) {
        sim_rng_seed(&w->rng[i], seed * 2 + (uint64_t)i);
        udt_mux_config cfg = {.rand = sim_rng_bytes, .rand_arg = &w->rng[i]};
        w->addr[i] = (udt_addr){.family = 6, .port = 9000, .ip = {0xfd, [15] = (uint8_t)(1 + i)}};
        w->m[i] = udt_mux_new(&cfg);
        CHECK_INT(sim_net_add(w->net, &w->addr[i], &mux_ops, w->m[i]), i);
    }
    sim_net_link(w->net, 0, 1, l);
    sim_net_link(w->net, 1, 0, l);
}

static void options(udt_opts *o, int key)
{
    udt_opts_init(o);
    o->offer = true;
    o->has_key = key != 0;
    memset(o->key, key, sizeof o->key);
}

static const udt_conn *conn(const world *w, const pair *p, int e)
{
    const udt_conn *c = udt__mux_find(w->m[e], p->s[e]);
    CHECK(c);
    return c;
}

static void move_both_ways(world *w, const pair *p, bool messages)
{
    flow f[2] = {{.from = 0, .seed = 1, .size = 300000, .msg_size = messages ? 5000 : 0},
                 {.from = 1, .seed = 2, .size = 200000, .msg_size = messages ? 900 : 0}};
    CHECK(world_move(w, p, f, 2, sim_net_now(w->net) + 5000000));
    flow_fini(&f[0]);
    flow_fini(&f[1]);
}

enum { PLAIN, OWN, SEALED };
static void expect(const world *w, const pair *p, int what)
{
    for (int e = 0; e < 2; e++) {
        const udt_conn *c = conn(w, p, e);
        CHECK_INT(c->foreign, what == PLAIN);
        CHECK_INT(c->own.on, what != PLAIN);
        CHECK_INT(c->own.sealed, what == SEALED);
        CHECK_INT(c->own.n.bad_tag, 0);
        CHECK(c->own.n.unsealed <= (c->peer.family == 6 ? 3 : 0)); /* repeated offers */
    }
}

/* Opens a connection with these options at the ends; what both must then speak. */
static void agree(bool v6, int how, udt_opts *a, udt_opts *b, int what, const sim_link *l,
                  uint64_t seed)
{
    world w;
    pair p;
    if (v6)
        world_init6(&w, seed, l);
    else
        world_init(&w, seed, l, l);
    udt_time limit = 6000000;
    if (how == PAIR_CLIENT) {
        CHECK(udt_mux_listen(w.m[1], b, 16) > 0);
        p.s[0] = udt_mux_connect(w.m[0], &w.addr[1], a, 0);
    } else {
        p.s[1] = udt_mux_rendezvous(w.m[1], &w.addr[0], b, 0);
        p.s[0] = udt_mux_rendezvous(w.m[0], &w.addr[1], a, 0);
        sim_net_kick(w.net, 1);
    }
    CHECK(p.s[0] > 0);
    sim_net_kick(w.net, 0);
    world_wait(&w, 0, UDT_EV_CONNECTED, p.s[0], limit);
    if (how == PAIR_CLIENT)
        p.s[1] = world_wait(&w, 1, UDT_EV_ACCEPTED, 0, limit).sock;
    else
        world_wait(&w, 1, UDT_EV_CONNECTED, p.s[1], limit);
    move_both_ways(&w, &p, a->type == UDT_DGRAM);
    expect(&w, &p, what);
    world_fini(&w);
}

TEST(udt_open_finds_its_own_kind)
{
    for (int v6 = 0; v6 < 2; v6++)
        for (int how = 0; how < 2; how++)
            for (int key = 0; key < 3; key++)
                for (int type = UDT_STREAM; type <= UDT_DGRAM; type++) {
                    udt_opts a, b;
                    options(&a, key ? 7 : 0);
                    options(&b, key ? 7 : 0);
                    a.type = b.type = (uint16_t)type;
                    a.plain_data = b.plain_data = key == 2;
                    agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &a, &b, key ? SEALED : OWN, &path,
                          (uint64_t)(v6 * 12 + how * 6 + key * 2 + type));
                }
}

TEST(udt_open_speaks_plainly_with_others)
{
    for (int v6 = 0; v6 < 2; v6++)
        for (int how = 0; how < 2; how++) {
            udt_opts a, b;
            options(&a, 0);
            udt_opts_init(&b);
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &a, &b, PLAIN, &path, 3);
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &b, &a, PLAIN, &path, 4);
            options(&a, 9); /* has a key, but does not insist */
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &a, &b, PLAIN, &path, 5);
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &b, &a, PLAIN, &path, 6);
            options(&b, 0);
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &a, &b, OWN, &path, 7);
            agree(v6, how ? PAIR_RDV_ADDR : PAIR_CLIENT, &b, &a, OWN, &path, 8);
        }
}

TEST(udt_open_agrees_over_bad_paths)
{
    sim_link bad = path;
    bad.loss_ppm = 100000;
    bad.reorder_ppm = 100000;
    bad.reorder_us = 30000;
    bad.dup_ppm = 100000;
    bad.dup_delay_us = 20000;
    for (uint64_t seed = 0; seed < 40; seed++) {
        udt_opts a, b;
        options(&a, seed % 3 ? 5 : 0);
        options(&b, seed % 3 ? 5 : 0);
        a.plain_data = b.plain_data = seed % 3 == 2;
        a.connect_timeout_ms = b.connect_timeout_ms = 6000;
        agree(false, seed & 1 ? PAIR_CLIENT : PAIR_RDV_ADDR, &a, &b, seed % 3 ? SEALED : OWN, &bad,
              100 + seed);
    }
}

/* A key that must be there and is not, or is another: nobody gets through, and both are told. */
TEST(udt_open_refuses_without_the_key)
{
    for (int v6 = 0; v6 < 2; v6++)
        for (int how = 0; how < 2; how++)
            for (int theirs = 0; theirs < 3; theirs++)
                for (int side = 0; side < 2; side++) {
                    world w;
                    udt_opts o[2];
                    struct udt_ev ev;
                    options(&o[side], 7);
                    o[side].require_key = true;
                    options(&o[!side], theirs == 0 ? 8 : 0);
                    if (theirs == 2)
                        udt_opts_init(&o[!side]);
                    if (v6)
                        world_init6(&w, 1, &path);
                    else
                        world_init(&w, 1, &path, &path);
                    int32_t s;
                    if (how) {
                        CHECK(udt_mux_rendezvous(w.m[1], &w.addr[0], &o[1], 0) > 0);
                        s = udt_mux_rendezvous(w.m[0], &w.addr[1], &o[0], 0);
                        sim_net_kick(w.net, 1);
                    } else {
                        CHECK(udt_mux_listen(w.m[1], &o[1], 4) > 0);
                        s = udt_mux_connect(w.m[0], &w.addr[1], &o[0], 0);
                    }
                    CHECK(s > 0);
                    sim_net_kick(w.net, 0);
                    world_run(&w, 4000000);
                    if (side == 1) /* else it hears of the end soon after */
                        CHECK(!world_take(&w, 1, UDT_EV_ACCEPTED, 0, &ev));
                    if (side == 0) {
                        CHECK(!world_take(&w, 0, UDT_EV_CONNECTED, s, &ev));
                        CHECK(world_take(&w, 0, UDT_EV_FAILED, s, &ev));
                        CHECK_INT(ev.err, UDT_E_AUTH);
                    } else if (!how && !v6) {
                        CHECK(world_take(&w, 0, UDT_EV_FAILED, s, &ev));
                        CHECK_INT(ev.err, UDT_E_AUTH);
                    }
                    world_fini(&w);
                }
}

/* Whatever becomes of a connection, its key does not stay in memory that is given back. */
TEST(udt_open_wipes_the_key)
{
    static uint8_t secret[UDT_KEY_BYTES];
    memset(secret, 7, sizeof secret);
    for (int theirs = 0; theirs < 4; theirs++) { /* the same, another, none, nobody there */
        world w;
        udt_opts a, b;
        options(&a, 7);
        options(&b, theirs == 0 ? 7 : theirs == 1 ? 8 : 0);
        world_init(&w, 1, &path, &path);
        alloc_watch(secret, sizeof secret);
        if (theirs < 3)
            CHECK(udt_mux_listen(w.m[1], &b, 4) > 0);
        CHECK(udt_mux_connect(w.m[0], &w.addr[1], &a, 0) > 0);
        sim_net_kick(w.net, 0);
        world_run(&w, 6000000);
        udt_mux_free(w.m[0]);
        udt_mux_free(w.m[1]);
        CHECK_INT(alloc_watched(), 0);
        alloc_watch(NULL, 0);
        sim_net_free(w.net);
    }
}

/* ---- by key ---- */

typedef struct keyed {
    world w;
    pair p;
    udt_opts o[2];
    uint8_t key[UDT_KEY_BYTES];
} keyed;

static void keyed_init(keyed *k, uint64_t seed, const sim_link *there, const sim_link *back)
{
    world_init(&k->w, seed, there, back);
    for (int e = 0; e < 2; e++)
        udt_opts_init(&k->o[e]);
    k->p = (pair){{0, 0}};
    memset(k->key, (int)(seed & 0x7f) + 1, sizeof k->key);
}

static void respond(keyed *k)
{
    k->p.s[1] = udt_mux_open_keyed(k->w.m[1], NULL, &k->o[1], k->key, false, sim_net_now(k->w.net));
    CHECK(k->p.s[1] > 0);
}

static void initiate(keyed *k)
{
    k->p.s[0] =
        udt_mux_open_keyed(k->w.m[0], &k->w.addr[1], &k->o[0], k->key, true, sim_net_now(k->w.net));
    CHECK(k->p.s[0] > 0);
    sim_net_kick(k->w.net, 0);
}

TEST(udt_open_keyed_data_comes_with_the_first_flight)
{
    for (int plain = 0; plain < 2; plain++) {
        keyed k;
        uint8_t buf[9000], got[9000];
        keyed_init(&k, 1, &path, &path);
        k.o[0].plain_data = k.o[1].plain_data = plain;
        respond(&k);
        initiate(&k);
        fill(buf, 3, 0, sizeof buf);
        CHECK_INT(udt_mux_send(k.w.m[0], k.p.s[0], buf, sizeof buf, 0), sizeof buf);
        sim_net_kick(k.w.net, 0);
        world_run(&k.w, 13000); /* half a round trip, and the time of 8 packets on the wire */
        CHECK_INT(udt_mux_recv(k.w.m[1], k.p.s[1], got, sizeof got, 13000), sizeof got);
        CHECK_MEM(buf, got, sizeof buf);
        struct udt_ev ev;
        CHECK(world_take(&k.w, 1, UDT_EV_CONNECTED, k.p.s[1], &ev));
        CHECK(!world_take(&k.w, 0, UDT_EV_CONNECTED, k.p.s[0], &ev));
        world_run(&k.w, 24000);
        CHECK(world_take(&k.w, 0, UDT_EV_CONNECTED, k.p.s[0], &ev));
        move_both_ways(&k.w, &k.p, false);
        expect(&k.w, &k.p, SEALED);
        CHECK(!conn(&k.w, &k.p, 1)->open.unproved);
        world_fini(&k.w);
    }
}

TEST(udt_open_keyed_first_flight_is_bounded)
{
    keyed k;
    static uint8_t buf[1000000];
    keyed_init(&k, 1, &path, &path);
    initiate(&k);
    CHECK(udt_mux_send(k.w.m[0], k.p.s[0], buf, sizeof buf, 0) > 0);
    sim_net_kick(k.w.net, 0);
    world_run(&k.w, 1000000);
    sim_counts n = sim_net_counts(k.w.net, 0, 1);
    CHECK(n.sent >= OWN_FIRST_PKTS + 4);
    CHECK(n.sent <= OWN_FIRST_PKTS + 12); /* data once, PARAMS at growing gaps */
    CHECK_INT(sim_net_counts(k.w.net, 1, 0).sent, 0);
    respond(&k); /* late: nothing is lost but time */
    sim_net_kick(k.w.net, 1);
    world_wait(&k.w, 1, UDT_EV_CONNECTED, k.p.s[1], 1300000);
    world_wait(&k.w, 0, UDT_EV_CONNECTED, k.p.s[0], 1330000);
    size_t sum = 0;
    while (sum < 14560) {
        ssize_t r = udt_mux_recv(k.w.m[1], k.p.s[1], buf, sizeof buf, sim_net_now(k.w.net));
        sum += r > 0 ? (size_t)r : 0;
        CHECK(world_step(&k.w, 1500000) || sum >= 14560);
    }
    world_fini(&k.w);
}

TEST(udt_open_keyed_without_the_other_end)
{
    keyed k;
    keyed_init(&k, 1, &path, &path);
    k.o[0].connect_timeout_ms = 2000;
    k.o[1].connect_timeout_ms = 3000;
    initiate(&k);
    struct udt_ev ev = world_wait(&k.w, 0, UDT_EV_FAILED, k.p.s[0], 2100000);
    CHECK_INT(ev.err, UDT_E_TIMEOUT);
    respond(&k);
    sim_net_kick(k.w.net, 1);
    ev = world_wait(&k.w, 1, UDT_EV_FAILED, k.p.s[1], 5200000);
    CHECK_INT(ev.err, UDT_E_TIMEOUT);
    CHECK_INT(sim_net_counts(k.w.net, 1, 0).sent, 0);
    /* The key is used up here for as long as its ids are remembered. */
    CHECK_INT(udt_mux_open_keyed(k.w.m[0], &k.w.addr[1], &k.o[0], k.key, true, 5200000),
              UDT_E_INUSE);
    CHECK_INT(udt_mux_open_keyed(k.w.m[0], NULL, &k.o[0], k.key, true, 5200000), UDT_E_INVAL);
    world_fini(&k.w);
}

/* Both ends behind one port, as a node that copies from itself. */
TEST(udt_open_keyed_within_one_port)
{
    keyed k;
    uint8_t got[4];
    keyed_init(&k, 2, NULL, NULL);
    int32_t r = udt_mux_open_keyed(k.w.m[0], NULL, &k.o[1], k.key, false, 0);
    int32_t i = udt_mux_open_keyed(k.w.m[0], &k.w.addr[0], &k.o[0], k.key, true, 0);
    CHECK(r > 0 && i > 0 && r != i);
    sim_net_link(k.w.net, 0, 0, &path);
    CHECK_INT(udt_mux_send(k.w.m[0], i, (const uint8_t *)"self", 4, 0), 4);
    sim_net_kick(k.w.net, 0);
    world_wait(&k.w, 0, UDT_EV_READABLE, r, 1000000);
    CHECK_INT(udt_mux_recv(k.w.m[0], r, got, 4, sim_net_now(k.w.net)), 4);
    CHECK_MEM(got, "self", 4);
    world_fini(&k.w);
}

TEST(udt_open_keyed_over_bad_paths_and_with_unequal_packets)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        sim_link bad = path;
        keyed k;
        bad.loss_ppm = 150000;
        bad.reorder_ppm = 100000;
        bad.reorder_us = 30000;
        bad.dup_ppm = 100000;
        keyed_init(&k, seed, &bad, &bad);
        k.o[0].plain_data = k.o[1].plain_data = seed & 1;
        k.o[seed & 1].mss = seed % 3 == 0 ? 9000 : seed % 3 == 1 ? 600 : 0;
        respond(&k);
        initiate(&k);
        world_wait(&k.w, 1, UDT_EV_CONNECTED, k.p.s[1], 6000000);
        world_wait(&k.w, 0, UDT_EV_CONNECTED, k.p.s[0], 6000000);
        flow f[2] = {{.from = 0, .seed = 1, .size = 100000}, {.from = 1, .seed = 2, .size = 50000}};
        CHECK(world_move(&k.w, &k.p, f, 2, sim_net_now(k.w.net) + 9000000));
        world_fini(&k.w);
    }
}

/* Whoever cannot prove the key changes nothing, and gets not one byte. */
TEST(udt_open_keyed_listens_to_nobody_else)
{
    keyed k;
    sim_rng r;
    keyed_init(&k, 3, &path, &path);
    sim_rng_seed(&r, test_seed);
    respond(&k);
    const udt_conn *c = conn(&k.w, &k.p, 1);
    for (int i = 0; i < 3000; i++) {
        uint8_t pkt[1500];
        size_t len = 16 + sim_rng_below(&r, 1400);
        sim_rng_bytes(&r, pkt, len);
        pkt[0] |= 0x80;
        if (i % 2) {
            pkt[0] = 0x80;
            pkt[1] = OWN_PARAMS;
            pkt[2] = pkt[3] = 0;
        }
        be32_put(pkt + 8, (uint32_t)sim_rng_below(&r, 20));
        be32_put(pkt + 12, (uint32_t)c->id);
        udt_mux_input(k.w.m[1], &k.w.addr[0], pkt, len, 1000 + i);
    }
    CHECK_INT(c->open.phase, OPEN_WAITING);
    CHECK_INT(sim_net_counts(k.w.net, 1, 0).sent, 0);
    sim_net_kick(k.w.net, 1);
    CHECK_INT(sim_net_counts(k.w.net, 1, 0).sent, 0);
    initiate(&k);
    world_wait(&k.w, 1, UDT_EV_CONNECTED, k.p.s[1], 1000000);
    world_fini(&k.w);
}
