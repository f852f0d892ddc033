/* Addresses that change under a sealed connection, or claim to. */
#include "test_udt_util.h"

#include "udt/conn.h"

static const sim_link path = {.rate_bps = 100000000, .delay_us = 10000};

typedef struct moving {
    world w;
    pair p;
    udt_mux *m[2];
    udt_addr now[2]; /* addresses as the network sees them */
} moving;

static void start(moving *v, bool plain_data, uint64_t seed)
{
    uint8_t key[UDT_KEY_BYTES];
    udt_opts o;
    world_init(&v->w, seed, &path, &path);
    memset(key, (int)seed + 1, sizeof key);
    udt_opts_init(&o);
    o.plain_data = plain_data;
    v->p.s[1] = udt_mux_open_keyed(v->w.m[1], NULL, &o, key, false, 0);
    v->p.s[0] = udt_mux_open_keyed(v->w.m[0], &v->w.addr[1], &o, key, true, 0);
    CHECK(v->p.s[0] > 0 && v->p.s[1] > 0);
    sim_net_kick(v->w.net, 0);
    world_wait(&v->w, 0, UDT_EV_CONNECTED, v->p.s[0], 1000000);
}

/* End e gets another address: its old one is dead from now on. */
static void rebind(moving *v, int e, const udt_addr *to)
{
    int id = sim_net_add(v->w.net, to, &mux_ops, v->w.m[e]);
    CHECK(id >= 2);
    sim_net_set(v->w.net, e, NULL, NULL);
    for (int other = 0; other < id; other++) {
        sim_net_link(v->w.net, id, other, &path);
        sim_net_link(v->w.net, other, id, &path);
    }
    sim_net_kick(v->w.net, id);
}

static const udt_conn *conn(const moving *v, int e)
{
    const udt_conn *c = udt__mux_find(v->w.m[e], v->p.s[e]);
    CHECK(c);
    return c;
}

static bool same(const udt_addr *a, const udt_addr *b)
{
    return a->family == b->family && a->port == b->port && memcmp(a->ip, b->ip, 4) == 0;
}

static void mid_transfer(int mover, int from, bool plain, bool other_host)
{
    moving v;
    start(&v, plain, 5);
    flow f = {.from = from, .seed = 1, .size = 3000000};
    CHECK(!world_move(&v.w, &v.p, &f, 1, sim_net_now(v.w.net) + 120000));
    CHECK(f.got > 0 && f.got < f.size);
    udt_addr to = test_addr(other_host ? 77 : (uint8_t)(mover + 1), 12345);
    rebind(&v, mover, &to);
    udt_time at = sim_net_now(v.w.net);
    CHECK(world_move(&v.w, &v.p, &f, 1, at + 9000000));
    CHECK(same(&conn(&v, !mover)->peer, &to));
    CHECK_INT(conn(&v, !mover)->open.moves, 1);
    udt_mux_counters n;
    udt_mux_counters_get(v.w.m[!mover], &n);
    CHECK_INT(n.moves, 1);
    if (mover == from) /* it speaks all the time: the gap is short */
        CHECK(sim_net_now(v.w.net) < at + 1500000);
    world_fini(&v.w);
}

TEST(udt_open_paths_follow_a_new_address)
{
    for (int mover = 0; mover < 2; mover++)
        for (int from = 0; from < 2; from++)
            for (int plain = 0; plain < 2; plain++) {
                mid_transfer(mover, from, plain, false);
                mid_transfer(mover, from, plain, true);
            }
}

TEST(udt_open_paths_both_ends_move_one_after_the_other)
{
    moving v;
    start(&v, true, 6);
    flow f[2] = {{.from = 0, .seed = 1, .size = 3000000}, {.from = 1, .seed = 2, .size = 3000000}};
    CHECK(!world_move(&v.w, &v.p, f, 2, sim_net_now(v.w.net) + 100000));
    udt_addr a = test_addr(61, 1000), b = test_addr(62, 2000);
    rebind(&v, 0, &a);
    CHECK(!world_move(&v.w, &v.p, f, 2, sim_net_now(v.w.net) + 200000));
    rebind(&v, 1, &b);
    CHECK(world_move(&v.w, &v.p, f, 2, sim_net_now(v.w.net) + 9000000));
    CHECK(same(&conn(&v, 0)->peer, &b));
    CHECK(same(&conn(&v, 1)->peer, &a));
    world_fini(&v.w);
}

/* ---- somebody else sends what he has seen ---- */

typedef struct thief {
    moving *v;
    udt_addr as; /* his address */
    int every;
    int seen, stolen;
    int64_t to_him; /* bytes sent to his address */
    int64_t by_him;
} thief;

static void on_wire(void *arg, int from, const udt_addr *to, const uint8_t *pkt, size_t len,
                    udt_time now)
{
    thief *t = arg;
    (void)from;
    if (same(to, &t->as)) {
        t->to_him += (int64_t)len;
        return;
    }
    /* A copy that is there before the original, under his own address. */
    if (same(to, &t->v->w.addr[1]) && ++t->seen % t->every == 0) {
        t->stolen++;
        t->by_him += (int64_t)len;
        sim_net_inject(t->v->w.net, &t->as, 1, pkt, len, now);
    }
}

TEST(udt_open_paths_a_thief_of_datagrams_gets_nothing)
{
    for (int plain = 0; plain < 2; plain++) {
        moving v;
        start(&v, plain, 7);
        thief t = {.v = &v, .as = test_addr(66, 666), .every = 5};
        flow f = {.from = 0, .seed = 1, .size = 1000000};
        sim_net_tap(v.w.net, on_wire, &t);
        CHECK(world_move(&v.w, &v.p, &f, 1, sim_net_now(v.w.net) + 5000000));
        CHECK(same(&conn(&v, 1)->peer, &v.w.addr[0])); /* he cannot answer */
        CHECK(t.stolen > 0);
        CHECK(t.to_him <= t.by_him);
        CHECK(t.to_him <= 10 * 64);
        CHECK_INT(conn(&v, 1)->open.moves, 0);
        world_fini(&v.w);
    }
}

/* ---- before the address of who opens by key is proved ---- */

/* End 1 waits for who has the key and writes `size` bytes at once; end 0 brings room for `early`.
 */
typedef struct early {
    world w;
    pair p;
    uint8_t got[10000];
    size_t have;
    int64_t came, went; /* bytes on the wire to end 1, and from it */
    int64_t over;       /* most by which it has sent more than had come, before the proof */
    bool proved, written;
} early;

static void on_early(void *arg, int from, const udt_addr *to, const uint8_t *pkt, size_t len,
                     udt_time now)
{
    early *v = arg;
    const udt_conn *c = udt__mux_find(v->w.m[1], v->p.s[1]);
    (void)to;
    (void)pkt;
    (void)now;
    v->proved |= !c || !c->open.unproved;
    if (from == 0) {
        v->came += (int64_t)len; /* counted a little too soon, never too late */
        return;
    }
    v->went += (int64_t)len;
    if (!v->proved && v->went - v->came > v->over)
        v->over = v->went - v->came;
}

static void early_start(early *v, uint64_t seed, const sim_link *l, uint32_t room)
{
    uint8_t key[UDT_KEY_BYTES] = {9};
    udt_opts o;
    *v = (early){0};
    world_init(&v->w, seed, l, l);
    udt_opts_init(&o);
    o.plain_data = true;
    v->p.s[1] = udt_mux_open_keyed(v->w.m[1], NULL, &o, key, false, 0);
    o.early_bytes = room;
    v->p.s[0] = udt_mux_open_keyed(v->w.m[0], &v->w.addr[1], &o, key, true, 0);
    CHECK(v->p.s[0] > 0 && v->p.s[1] > 0);
    v->over = INT64_MIN;
    sim_net_tap(v->w.net, on_early, v);
    sim_net_kick(v->w.net, 0);
}

/* When all of the file is there, or -1. */
static udt_time early_get(early *v, udt_time limit)
{
    static uint8_t buf[sizeof v->got];
    fill(buf, 5, 0, sizeof buf);
    while (v->have < sizeof buf && world_step(&v->w, limit)) {
        struct udt_ev ev;
        udt_time now = sim_net_now(v->w.net);
        world_events(&v->w);
        if (!v->written && world_take(&v->w, 1, UDT_EV_CONNECTED, v->p.s[1], &ev)) {
            CHECK_INT(udt_mux_send(v->w.m[1], v->p.s[1], buf, sizeof buf, now), sizeof buf);
            sim_net_kick(v->w.net, 1);
            v->written = true;
        }
        ssize_t n = udt_mux_recv(v->w.m[0], v->p.s[0], v->got + v->have, sizeof buf - v->have, now);
        if (n > 0)
            v->have += (size_t)n;
    }
    if (v->have == sizeof buf)
        CHECK_MEM(v->got, buf, sizeof buf);
    return v->have == sizeof buf ? sim_net_now(v->w.net) : -1;
}

TEST(udt_open_paths_a_small_file_takes_one_round_trip)
{
    for (int room = 0; room < 2; room++) {
        early v;
        early_start(&v, 1, &path, room ? sizeof v.got : 0);
        udt_time at = early_get(&v, 1000000);
        CHECK(at > (room ? 20000 : 40000)); /* without room: the proof, and then the rest */
        CHECK(at < (room ? 24000 : 44000));
        CHECK(v.over <= 0);
        world_fini(&v.w);
    }
}

/* Whatever is lost of the first packets, the file comes, and nobody is sent more than came. */
TEST(udt_open_paths_the_first_packets_may_be_lost)
{
    const sim_link bad = {.rate_bps = 100000000, .delay_us = 10000, .loss_ppm = 250000};
    udt_time worst = 0, sum = 0;
    int n = 2000 * test_scale / 100;
    for (int i = 0; i < n; i++) {
        early v;
        early_start(&v, test_seed + (uint64_t)i, &bad, i & 1 ? sizeof v.got : 0);
        udt_time at = early_get(&v, 20000000);
        if (at < 0)
            test_fail(__FILE__, __LINE__, "run %d: %zu bytes in 20 s", i, v.have);
        CHECK(v.over <= 0);
        worst = at > worst ? at : worst;
        sum += at;
        world_fini(&v.w);
    }
    printf("%d files of 10 kB, a quarter of the packets lost: %.3f s on average, %.3f at most\n", n,
           (double)sum * 1e-6 / n, (double)worst * 1e-6);
    CHECK(worst < 10000000);
}

/* Nothing passes for a while from when the first datagram has come: what the two ends ask meanwhile
 * uses up what may be sent, and still they find together. */
TEST(udt_open_paths_an_outage_at_the_proof)
{
    const sim_link gone = {.rate_bps = 100000000, .delay_us = 10000, .loss_ppm = 1000000};
    for (int i = 0; i < 40; i++) {
        early v;
        udt_time length = (1 + i / 4) * 800000;
        early_start(&v, 1, &path, i & 1 ? sizeof v.got : 0);
        world_run(&v.w, 11000);
        if (i & 2)
            sim_net_link(v.w.net, 0, 1, &gone);
        sim_net_link(v.w.net, 1, 0, &gone);
        udt_time at = early_get(&v, 11000 + length);
        sim_net_link(v.w.net, 0, 1, &path);
        sim_net_link(v.w.net, 1, 0, &path);
        at = at < 0 ? early_get(&v, 11000 + length + 6000000) : at;
        if (at < 0)
            test_fail(__FILE__, __LINE__, "outage %d: %zu bytes", i, v.have);
        CHECK(v.over <= 0);
        world_fini(&v.w);
    }
}

/* Bytes that go out to an address before it is proved: no more than came from it. */
TEST(udt_open_paths_unproved_addresses_get_little)
{
    moving v;
    uint8_t key[UDT_KEY_BYTES] = {9};
    static uint8_t buf[1000000];
    udt_opts o;
    world_init(&v.w, 1, &path, &path);
    udt_opts_init(&o);
    o.plain_data = true;
    o.early_bytes = 1000000;
    v.p.s[1] = udt_mux_open_keyed(v.w.m[1], NULL, &o, key, false, 0);
    v.p.s[0] = udt_mux_open_keyed(v.w.m[0], &v.w.addr[1], &o, key, true, 0);
    sim_net_kick(v.w.net, 0);
    world_wait(&v.w, 1, UDT_EV_CONNECTED, v.p.s[1], 1000000);
    sim_net_set(v.w.net, 0, NULL, NULL); /* who asked was never there */
    CHECK(udt_mux_send(v.w.m[1], v.p.s[1], buf, sizeof buf, sim_net_now(v.w.net)) > 0);
    sim_net_kick(v.w.net, 1);
    int64_t came = sim_net_counts(v.w.net, 0, 1).bytes;
    world_run(&v.w, 20000000);
    CHECK(sim_net_counts(v.w.net, 1, 0).bytes <= came);
    CHECK(sim_net_counts(v.w.net, 1, 0).bytes >= 10000);
    struct udt_ev ev;
    CHECK(world_take(&v.w, 1, UDT_EV_FAILED, v.p.s[1], &ev));
    world_fini(&v.w);
}
