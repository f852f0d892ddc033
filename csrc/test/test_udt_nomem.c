/* Transfers while memory runs out now and then: what finds none waits or is sent again, and in the
 * end everything has come and everything is given back. */
#include "test_alloc.h"
#include "test_udt_own.h"

static sim_rng luck;
static int64_t failures;

/* One of the next four allocations of this call of the engine, if it makes so many. */
static void arm(void)
{
    alloc_fail((int64_t)sim_rng_below(&luck, 4) + 1);
}

static void disarm(void)
{
    failures += alloc_failed();
    alloc_fail(0);
}

static void input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    arm();
    mux_ops.input(ep, from, pkt, len, now);
    disarm();
}

static void burst_end(void *ep, udt_time now)
{
    arm();
    mux_ops.burst_end(ep, now);
    disarm();
}

static size_t output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to, size_t *seg,
                     udt_time now)
{
    arm();
    size_t n = mux_ops.output(ep, buf, cap, max_segs, to, seg, now);
    disarm();
    return n;
}

static udt_time deadline(const void *ep)
{
    return mux_ops.deadline(ep);
}

static void tick(void *ep, udt_time now)
{
    arm();
    mux_ops.tick(ep, now);
    disarm();
}

static const sim_ep_ops poor = {input, burst_end, output, deadline, tick};

static void run(uint64_t seed)
{
    sim_link l = {.rate_bps = 50000000, .delay_us = 10000, .loss_ppm = seed % 3 ? 20000 : 0};
    world w;
    udt_opts o;
    int64_t held = alloc_held();
    bool messages = seed & 1;
    sim_rng_seed(&luck, seed);
    world_init(&w, seed, &l, &l);
    udt_opts_init(&o);
    o.type = messages ? UDT_DGRAM : UDT_STREAM;
    o.own_peer = o.offer = seed & 2;
    o.has_key = seed & 4;
    o.connect_timeout_ms = 60000;
    o.idle_timeout_ms = 60000;
    memset(o.key, 7, sizeof o.key);
    pair p = world_connect(&w, PAIR_CLIENT, &o, 60000000);
    for (int e = 0; e < 2; e++)
        sim_net_set(w.net, e, &poor, w.m[e]);
    flow f[2] = {
        {.from = 0, .seed = seed, .size = 2000000, .msg_size = messages ? 20000 : 0, .in_order = 1},
        {.from = 1, .seed = seed, .size = 300000, .msg_size = messages ? 3000 : 0, .in_order = 1}};
    if (!world_move(&w, &p, f, 2, sim_net_now(w.net) + 60000000))
        test_fail(__FILE__, __LINE__, "seed %" PRIu64 ": %" PRIu64 " and %" PRIu64 " bytes only",
                  seed, f[0].got, f[1].got);
    flow_fini(&f[0]);
    flow_fini(&f[1]);
    world_fini(&w);
    CHECK_INT(alloc_held(), held);
}

TEST(udt_nomem_now_and_then)
{
    for (int i = 0; i < 64 * test_scale / 100 + 8; i++)
        run(test_seed + (uint64_t)i);
    printf("%" PRId64 " allocations failed\n", failures);
    CHECK(failures > 100);
}

/* A message whose time is over before it was sent is given up without memory, too, and does not
 * hold what follows: whichever allocation of that moment fails. */
TEST(udt_nomem_message_that_expires)
{
    static uint8_t msg[5000], wire[65536];
    for (int n = 1; n <= 6; n++) {
        sim_link l = {.rate_bps = 20000000, .delay_us = 10000};
        world w;
        udt_opts o;
        udt_addr to;
        size_t seg;
        world_init(&w, 5, &l, &l);
        udt_opts_init(&o);
        o.type = UDT_DGRAM;
        o.own_peer = o.offer = n & 1;
        pair p = world_connect(&w, PAIR_CLIENT, &o, 60000000);
        udt_time now = sim_net_now(w.net);
        CHECK_INT(udt_mux_sendmsg(w.m[0], p.s[0], msg, sizeof msg, 1, true, now), 0);
        CHECK_INT(udt_mux_sendmsg(w.m[0], p.s[0], msg, 100, -1, true, now), 0);
        alloc_fail((n + 1) / 2);
        while (udt_mux_output(w.m[0], wire, sizeof wire, 1, &to, &seg, now + 2000))
            ; /* lost */
        alloc_fail(0);
        sim_net_kick(w.net, 0);
        world_wait(&w, 1, UDT_EV_READABLE, p.s[1], now + 5000000);
        CHECK_INT(udt_mux_recvmsg(w.m[1], p.s[1], msg, sizeof msg, sim_net_now(w.net)), 100);
        world_fini(&w);
    }
}
