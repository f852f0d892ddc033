/* Sequences that have broken the UDT engine once, each as short as it can be made. */
#include "test_udt_util.h"

#include "base/seq.h"
#include "udt/conn.h"
#include "udt_err.h"

/* Both ends call; of the datagrams that end 1 sends those of `lost` do not come. */
static pair sealed_rendezvous(world *w, uint64_t lost)
{
    sim_link l = {.delay_us = 5000}, back = {.delay_us = 5000, .loss_mask = lost};
    udt_opts o;
    pair p;
    world_init(w, 7, &l, &back);
    udt_opts_init(&o);
    o.has_key = o.require_key = o.offer = true;
    memset(o.key, 9, sizeof o.key);
    o.tag = 0x1234;
    for (int e = 1; e >= 0; e--)
        p.s[e] = udt_mux_rendezvous(w->m[e], &w->addr[!e], &o, 0);
    sim_net_kick(w->net, 0);
    sim_net_kick(w->net, 1);
    return p;
}

/* The first sealed packet may complete a rendezvous whose answers were lost: it is opened, not
 * taken for plain bytes. */
TEST(udt_sealed_data_that_completes_a_rendezvous_is_opened)
{
    world w;
    pair p = sealed_rendezvous(&w, 0x6);
    world_wait(&w, 1, UDT_EV_CONNECTED, p.s[1], 3000000);
    CHECK_INT(udt_mux_send(w.m[1], p.s[1], (const uint8_t *)"hello", 5, sim_net_now(w.net)), 5);
    sim_net_kick(w.net, 1);
    world_wait(&w, 0, UDT_EV_CONNECTED, p.s[0], 3000000);
    world_run(&w, sim_net_now(w.net) + 2000000);
    uint8_t buf[200];
    ssize_t n = udt_mux_recv(w.m[0], p.s[0], buf, sizeof buf, sim_net_now(w.net));
    CHECK_INT(n, 5);
    CHECK_MEM(buf, "hello", 5);
    world_fini(&w);
}

/* Whoever knows address and id completes no sealed rendezvous with plain bytes. */
TEST(udt_forged_data_does_not_get_through_a_sealed_rendezvous)
{
    world w;
    pair p = sealed_rendezvous(&w, ~1ull);
    world_run(&w, 8000);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    CHECK(c->state == CONN_RENDEZVOUS && c->hs_stored);
    uint8_t pkt[64];
    udt_pkt_put_data(pkt, c->peer_isn, 0xc0000001, 0, p.s[0]);
    memcpy(pkt + 16, "forged", 6);
    udt_mux_input(w.m[0], &w.addr[1], pkt, 22, sim_net_now(w.net));
    uint8_t buf[200];
    ssize_t n = udt_mux_recv(w.m[0], p.s[0], buf, sizeof buf, sim_net_now(w.net));
    CHECK(n <= 0);
    world_fini(&w);
}

static void say(world *w, int32_t dst, uint32_t seq, uint32_t word1, size_t len)
{
    uint8_t pkt[100] = {0};
    udt_pkt_put_data(pkt, seq & SEQ_MASK, word1, 0, dst);
    udt_mux_input(w->m[1], &w->addr[0], pkt, 16 + len, sim_net_now(w->net));
}

static void drop(world *w, int32_t dst, uint32_t a, uint32_t b, uint32_t no)
{
    uint8_t pkt[100];
    const uint32_t words[2] = {a & SEQ_MASK, b & SEQ_MASK};
    size_t n = udt_pkt_put_ctrl(pkt, UDT_CTRL_DROP, no, dst, words, 2);
    udt_mux_input(w->m[1], &w->addr[0], pkt, n, sim_net_now(w->net));
}

/* A packet that was dropped and comes late joins what stands behind it, too: the place from which
 * messages are looked for once went before the first of all, and eight datagrams ended the port. */
TEST(udt_late_packets_after_drop_requests_break_nothing)
{
    sim_link l = {.delay_us = 1000};
    world w;
    udt_opts o;
    world_init(&w, 7, &l, &l);
    udt_opts_init(&o);
    o.type = UDT_DGRAM;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 3000000);
    udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
    uint32_t s = c->peer_isn;
    int32_t d = p.s[1];
    say(&w, d, s + 0, 0xc0000001, 10); /* message 1, whole, unread */
    say(&w, d, s + 2, 0x00000002, 10); /* middle of message 2 */
    say(&w, d, s + 3, 0x00000002, 10);
    drop(&w, d, s + 1, s + 1, 2);
    drop(&w, d, s + 0, s + 0, 1); /* moves drop_end */
    say(&w, d, s + 4, 0x00000002, 10);
    say(&w, d, s + 1, 0x00000002, 10); /* late */
    say(&w, d, s + 5, 0x00000002, 10);
    CHECK(c->rcv.scan >= c->rcv.base);
    uint8_t buf[100];
    CHECK_INT(udt_mux_recvmsg(w.m[1], d, buf, sizeof buf, sim_net_now(w.net)), 10);
    world_fini(&w);
}

/* A foreign sender's time stamps come round after 71 minutes: after a quiet half of that the next
 * one is not half an hour late. */
static int64_t late_after(int64_t idle_us)
{
    sim_link l = {.rate_bps = 100000000, .delay_us = 50000, .loss_ppm = 10000};
    sim_link back = {.rate_bps = 100000000, .delay_us = 50000};
    world w;
    udt_opts o;
    world_init(&w, 7, &l, &back);
    udt_opts_init(&o);
    pair p = world_connect(&w, PAIR_CLIENT, &o, 3000000);
    flow f = {.from = 0, .seed = 1, .size = 2000000};
    CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 60000000));
    udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
    int64_t t0 = sim_net_now(w.net) + idle_us;
    while (sim_net_now(w.net) < t0) {
        if (!world_step(&w, t0))
            break;
        w.nev[0] = w.nev[1] = 0;
    }
    flow g = {.from = 0, .seed = 2, .size = 20000000};
    udt_time start = sim_net_now(w.net);
    bool ok = world_move(&w, &p, &g, 1, start + 300000000);
    CHECK(ok);
    int64_t late_us = c->late_us;
    world_fini(&w);
    return late_us;
}
TEST(udt_time_stamps_that_came_round_make_nothing_late)
{
    CHECK(late_after(30 * 60000000ll) < 1000000);
    CHECK(late_after(40 * 60000000ll) < 1000000);
    CHECK(late_after(60 * 60000000ll) < 1000000);
}

/* What was booked under a rate cap goes when the cap does. */
TEST(udt_a_cap_that_is_taken_away_holds_nothing)
{
    sim_link l = {.rate_bps = 1000000000, .delay_us = 1000};
    world w;
    udt_opts o;
    world_init(&w, 7, &l, &l);
    udt_opts_init(&o);
    o.own_peer = o.offer = true;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 3000000);
    CHECK_INT(udt_mux_link_cap(w.m[0], NULL, 0, 100), 0); /* 100 bytes/s: a mistake */
    uint8_t buf[100000] = {0};
    CHECK(udt_mux_send(w.m[0], p.s[0], buf, sizeof buf, sim_net_now(w.net)) > 0);
    sim_net_kick(w.net, 0);
    udt_time t = sim_net_now(w.net);
    while (sim_net_now(w.net) < t + 1000000 && world_step(&w, t + 1000000))
        ;
    CHECK_INT(udt_mux_link_cap(w.m[0], NULL, 0, 0), 0); /* taken away */
    sim_net_kick(w.net, 0);
    t = sim_net_now(w.net);
    while (udt_mux_unacked(w.m[0], p.s[0]) > 0 && sim_net_now(w.net) < t + 100000000 &&
           world_step(&w, t + 100000000))
        ;
    CHECK(sim_net_now(w.net) - t < 1000000);
    world_fini(&w);
}
