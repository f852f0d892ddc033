/* Own connections on which little goes on, over paths that vanish for a while: what they outlive,
 * what ends them and when, and what they cost meanwhile (decisions/0176). */
#include "test_udt_own.h"
#include "udt_err.h"

enum { IDLE_US = 10000000 }; /* by default */

typedef struct rest {
    world w;
    pair p;
    sim_link link;
} rest;

static void open_pair(rest *r, uint64_t seed, int64_t rtt_us, const int32_t *idle_ms)
{
    udt_opts o;
    r->link = (sim_link){.rate_bps = 20000000, .delay_us = rtt_us / 2};
    world_init(&r->w, seed, &r->link, &r->link);
    udt_opts_init(&o);
    o.own_peer = true;
    o.tag = 0x5eed;
    for (int e = 1; e >= 0; e--) {
        o.idle_timeout_ms = idle_ms ? idle_ms[e] : 0;
        r->p.s[e] = udt_mux_rendezvous(r->w.m[e], &r->w.addr[!e], &o, 0);
        CHECK(r->p.s[e] > 0);
        sim_net_kick(r->w.net, e);
    }
    for (int e = 0; e < 2; e++)
        world_wait(&r->w, e, UDT_EV_CONNECTED, r->p.s[e], 20000000);
    own_pair(&r->w, &r->p, seed & 1 ? OWN_SEALED : OWN_PLAIN, 0);
}

static void run_for(rest *r, udt_time span)
{
    world_run(&r->w, sim_net_now(r->w.net) + span);
}

static void outage(rest *r, udt_time length)
{
    const sim_link gone = {.loss_ppm = 1000000};
    for (int e = 0; e < 2; e++)
        sim_net_link(r->w.net, e, !e, &gone);
    run_for(r, length);
    for (int e = 0; e < 2; e++)
        sim_net_link(r->w.net, e, !e, &r->link);
}

static bool move(rest *r, int from, uint64_t size, udt_time limit)
{
    flow f = {.from = from, .seed = 5, .size = size};
    return world_move(&r->w, &r->p, &f, 1, sim_net_now(r->w.net) + limit);
}

/* Both ends are there, and bytes go both ways. */
static void check_lives(rest *r, const char *what, udt_time start, udt_time length)
{
    struct udt_ev ev;
    run_for(r, 3 * IDLE_US);
    for (int e = 0; e < 2; e++)
        if (world_take(&r->w, e, UDT_EV_FAILED, r->p.s[e], &ev))
            test_fail(__FILE__, __LINE__, "%s: an outage of %.2f s after %.2f s ended end %d", what,
                      (double)length * 1e-6, (double)start * 1e-6, e);
    CHECK(move(r, 0, 20000, 2000000));
    CHECK(move(r, 1, 20000, 2000000));
}

/* Of the end that has sent more. */
static int64_t packets(const rest *r)
{
    int64_t there = sim_net_counts(r->w.net, 0, 1).sent, back = sim_net_counts(r->w.net, 1, 0).sent;
    return there > back ? there : back;
}

/* Whenever it begins: after the last byte, between a question and its answer, much later. */
TEST(udt_rest_outages_on_a_quiet_connection)
{
    static const udt_time length[] = {100000, 300000, 500000, 1000000, 1500000, 3000000, 4000000};
    static const int64_t rtt[] = {1000, 40000, 300000};
    int n = 0;
    for (udt_time start = 0; start < 36000000; start += 30000000 / test_scale)
        for (int i = 0; i < 7; i++) {
            rest r;
            open_pair(&r, test_seed + (uint64_t)n, rtt[n % 3], NULL);
            CHECK(move(&r, n & 1, 50000, 5000000));
            run_for(&r, start);
            outage(&r, length[i]);
            check_lives(&r, "quiet", start, length[i]);
            world_fini(&r.w);
            n++;
        }
    printf("%d outages\n", n);
}

/* While bytes are under way any that is shorter than T; also when the first ones that come after a
 * long silence meet it, those that one at rest outlives. */
TEST(udt_rest_outages_while_sending)
{
    int n = 0;
    for (udt_time start = 0; start < 16000000; start += 60000000 / test_scale)
        for (udt_time length = 100000; length <= 9000000; length += 890000) {
            bool under_way = length > 4000000 || n % 2;
            rest r;
            flow f = {.from = n / 2 & 1, .seed = 6, .size = 3000000};
            open_pair(&r, test_seed + (uint64_t)n, n % 3 ? 40000 : 250000, NULL);
            CHECK(move(&r, 0, 50000, 5000000));
            run_for(&r, start);
            udt_time some = under_way ? 800000 + start % 7 * 10000 : 10000;
            CHECK(!world_move(&r.w, &r.p, &f, 1, sim_net_now(r.w.net) + some));
            outage(&r, length);
            if (!world_move(&r.w, &r.p, &f, 1, sim_net_now(r.w.net) + 10000000))
                test_fail(__FILE__, __LINE__, "%.2f s after %.2f s: %" PRIu64 " bytes only",
                          (double)length * 1e-6, (double)start * 1e-6, f.got);
            check_lives(&r, "sending", start, length);
            world_fini(&r.w);
            n++;
        }
    printf("%d outages\n", n);
}

/* A silence in which nobody was asked says nothing: the answer to what is sent in its last moment
 * takes a round trip. */
TEST(udt_rest_first_bytes_after_a_silence_get_their_time)
{
    int n = 0;
    for (udt_time start = 9000000; start < 26000000; start += 4000000 / test_scale) {
        rest r;
        open_pair(&r, test_seed + (uint64_t)n, 600000, NULL);
        CHECK(move(&r, n & 1, 5000, 5000000));
        run_for(&r, start);
        if (!move(&r, n & 1, 5000, 4000000))
            test_fail(__FILE__, __LINE__, "bytes %.3f s after the last did not come",
                      (double)start * 1e-6);
        check_lives(&r, "none", start, 0);
        world_fini(&r.w);
        n++;
    }
}

/* Within T, whether the connection is used or not. */
TEST(udt_rest_death_is_noticed)
{
    udt_time worst[2] = {0, 0};
    int n = 0;
    for (udt_time start = 0; start < 40000000; start += 20000000 / test_scale) {
        for (int sends = 0; sends < 2; sends++) {
            rest r;
            static const uint8_t bytes[5000];
            open_pair(&r, test_seed + (uint64_t)n, 40000, NULL);
            CHECK(move(&r, 0, 50000, 5000000));
            run_for(&r, start);
            if (sends) {
                udt_time now = sim_net_now(r.w.net);
                CHECK_INT(udt_mux_send(r.w.m[0], r.p.s[0], bytes, sizeof bytes, now), 5000);
                sim_net_kick(r.w.net, 0);
            }
            udt_time died = sim_net_now(r.w.net);
            sim_net_set(r.w.net, 1, NULL, NULL);
            struct udt_ev ev = world_wait(&r.w, 0, UDT_EV_FAILED, r.p.s[0], died + 2 * IDLE_US);
            CHECK_INT(ev.err, UDT_E_BROKEN);
            udt_time took = sim_net_now(r.w.net) - died;
            worst[sends] = took > worst[sends] ? took : worst[sends];
            n++;
            world_fini(&r.w);
        }
    }
    printf("%d deaths, noticed after %.1f s at rest, %.1f s sending at most\n", n,
           (double)worst[0] * 1e-6, (double)worst[1] * 1e-6);
    CHECK(worst[0] <= IDLE_US + 50000);
    CHECK(worst[1] <= IDLE_US + 50000);
}

/* One packet in T/2 from each end, whether both know the round trip or one. */
TEST(udt_rest_costs_one_packet_in_five_seconds)
{
    static const int64_t rtt[] = {1000, 40000, 700000};
    for (int i = 0; i < 6; i++) {
        rest r;
        open_pair(&r, test_seed + (uint64_t)i, rtt[i / 2], NULL);
        CHECK(move(&r, 0, 50000, 20000000));
        run_for(&r, 3 * IDLE_US);
        int64_t before = packets(&r);
        run_for(&r, 300000000);
        CHECK(packets(&r) - before <= 60);
        check_lives(&r, "none", 0, 0);
        world_fini(&r.w);
    }
}

/* Nor more soon after the last byte. */
TEST(udt_rest_begins_with_the_first_exchange)
{
    for (int i = 0; i < 6; i++) {
        rest r;
        open_pair(&r, test_seed + (uint64_t)i, i / 2 ? 100000 : 500, NULL);
        CHECK(move(&r, 0, 1, 5000000));
        CHECK(move(&r, 1, 1, 5000000));
        run_for(&r, 2000000);
        int64_t before = packets(&r);
        run_for(&r, 20000000);
        CHECK(packets(&r) - before <= 4);
        world_fini(&r.w);
    }
}

/* Each end has a time-out of its own, and the other does not know it. */
TEST(udt_rest_short_time_out_at_one_end)
{
    static const int32_t idle_ms[][2] = {{1000, 0}, {0, 1000}, {300, 300}, {500, 60000}};
    for (int i = 0; i < 8; i++) {
        rest r;
        open_pair(&r, test_seed + (uint64_t)i, 20000, idle_ms[i / 2]);
        CHECK(move(&r, i & 1, 5000, 5000000));
        run_for(&r, 60000000);
        check_lives(&r, "none", 0, 0);
        int one = idle_ms[i / 2][1] && idle_ms[i / 2][1] < 2000; /* has the short time */
        udt_time died = sim_net_now(r.w.net);
        sim_net_set(r.w.net, !one, NULL, NULL);
        world_wait(&r.w, one, UDT_EV_FAILED, r.p.s[one],
                   died + 1600 * (int64_t)idle_ms[i / 2][one]);
        world_fini(&r.w);
    }
}
