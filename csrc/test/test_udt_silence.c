/* A foreign peer that falls silent (decisions/0041): how it is asked for a sign of life, when it is
 * given up, and what is then known about the data. Also what may end a close towards it. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"
#include "udt_err.h"

static pair open_pair(world *w, uint64_t seed, uint16_t type, const sim_link *l)
{
    udt_opts o;
    world_init(w, seed, l, l);
    udt_opts_init(&o);
    o.type = type;
    o.connect_timeout_ms = 60000;
    pair p = world_connect(w, PAIR_CLIENT, &o, 60000000);
    world_run(w, sim_net_now(w->net) + 3000000); /* the last handshakes are through */
    return p;
}

/* End 1 is gone: nothing comes from it any more. */
static udt_time cut_off(world *w)
{
    const sim_link dead = {.loss_ppm = 1000000};
    sim_net_link(w->net, 1, 0, &dead);
    return sim_net_now(w->net);
}

static void send_from(world *w, const pair *p, int from, size_t len)
{
    static const uint8_t data[300000];
    CHECK_INT(udt_mux_send(w->m[from], p->s[from], data, len, sim_net_now(w->net)), (ssize_t)len);
    sim_net_kick(w->net, from);
}

static int64_t read_all(world *w, const pair *p, int *end)
{
    static uint8_t buf[65536];
    int64_t have = 0;
    ssize_t n;
    while ((n = udt_mux_recv(w->m[0], p->s[0], buf, sizeof buf, sim_net_now(w->net))) > 0)
        have += n;
    *end = (int)n;
    return have;
}

/* Ends with `err` within the idle time-out, and what had arrived is readable up to it. */
static void check_end(world *w, const pair *p, udt_time silent, int err, int64_t bytes)
{
    int end;
    struct udt_ev ev = world_wait(w, 0, UDT_EV_FAILED, p->s[0], silent + 11000000);
    CHECK_INT(ev.err, err);
    CHECK(sim_net_now(w->net) - silent > 9000000);
    CHECK_INT(read_all(w, p, &end), bytes);
    CHECK_INT(end, err);
    world_fini(w);
}

TEST(udt_silence_idle_foreign_peer_lives_on_through_loss)
{
    for (uint64_t seed = 0; seed < (uint64_t)test_scale / 4 + 1; seed++) {
        world w;
        struct udt_ev ev;
        sim_link l = {.delay_us = (udt_time)(seed % 5 * 60000), .loss_ppm = 200000};
        pair p = open_pair(&w, test_seed + seed, seed & 1 ? UDT_DGRAM : UDT_STREAM, &l);
        world_run(&w, sim_net_now(w.net) + 900000000); /* a quarter of an hour */
        for (int e = 0; e < 2; e++)
            for (int kind = UDT_EV_PEER_CLOSED; kind <= UDT_EV_CLOSED; kind++)
                CHECK(!world_take(&w, e, kind, p.s[e], &ev));
        world_fini(&w);
    }
}

TEST(udt_silence_long_round_trips_are_given_time)
{
    sim_link l = {.delay_us = 2500000, .loss_ppm = 100000};
    world w;
    struct udt_ev ev;
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 1, 1000);
    world_run(&w, sim_net_now(w.net) + 600000000);
    CHECK(!world_take(&w, 0, UDT_EV_FAILED, p.s[0], &ev));
    udt_time silent = cut_off(&w);
    int err = world_wait(&w, 0, UDT_EV_FAILED, p.s[0], silent + 120000000).err;
    CHECK_INT(err, UDT_E_VANISHED);
    CHECK(sim_net_now(w.net) - silent > 20000000);
    world_fini(&w);
}

/* What asks: full ACKs with a new number each, which change nothing else. */
static struct {
    int count;
    uint32_t last_sub, ackno;
} asks;
static void count_asks(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                       udt_time now)
{
    (void)arg, (void)to, (void)now;
    if (a != 0 || len < 16 || be32_get(pkt) != 0x80020000u)
        return;
    CHECK_INT(len, 40);
    CHECK(be32_get(pkt + 4) > asks.last_sub);
    asks.count++;
    asks.last_sub = be32_get(pkt + 4);
    asks.ackno = be32_get(pkt + 16);
}

TEST(udt_silence_is_asked_with_acknowledgements)
{
    world w;
    sim_link l = {.delay_us = 1000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    uint32_t isn = udt__mux_find(w.m[0], p.s[0])->peer_isn;
    memset(&asks, 0, sizeof asks);
    sim_net_tap(w.net, count_asks, NULL);
    udt_time silent = cut_off(&w);
    check_end(&w, &p, silent, UDT_E_VANISHED, 0);
    CHECK(asks.count >= 8 && asks.count < 20);
    CHECK_INT(asks.ackno, isn); /* nothing had come */
}

TEST(udt_silence_after_everything_was_confirmed)
{
    for (int both = 0; both < 2; both++) {
        world w;
        sim_link l = {.delay_us = 10000};
        pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
        send_from(&w, &p, 1, 200000);
        if (both)
            send_from(&w, &p, 0, 5000);
        world_run(&w, sim_net_now(w.net) + 2000000);
        check_end(&w, &p, cut_off(&w), UDT_E_VANISHED, 200000);
    }
}

TEST(udt_silence_before_the_last_confirmation)
{
    world w;
    sim_link l = {.delay_us = 10000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 1, 1000);
    world_run(&w, sim_net_now(w.net) + 15000); /* here, acknowledged, the ACK2 not yet sent */
    check_end(&w, &p, cut_off(&w), UDT_E_UNCONFIRMED, 1000);
}

TEST(udt_silence_with_data_of_ours_unacknowledged)
{
    world w;
    sim_link l = {.delay_us = 10000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 0, 1000);
    check_end(&w, &p, cut_off(&w), UDT_E_BROKEN, 0);
}

TEST(udt_silence_in_the_middle_of_a_send)
{
    world w;
    int end;
    sim_link l = {.rate_bps = 10000000, .delay_us = 10000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 1, 300000);
    world_run(&w, sim_net_now(w.net) + 60000);
    udt_time silent = cut_off(&w);
    CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, p.s[0], silent + 11000000).err, UDT_E_BROKEN);
    int64_t have = read_all(&w, &p, &end);
    CHECK(have > 0 && have < 300000);
    CHECK_INT(end, UDT_E_BROKEN);
    world_fini(&w);
}

TEST(udt_silence_behind_a_hole)
{
    world w;
    sim_link l = {.delay_us = 10000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 1, 1000);
    world_run(&w, sim_net_now(w.net) + 1000000);
    udt_time silent = cut_off(&w);
    uint8_t pkt[100] = {0};
    const udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    be32_put(pkt, seq_add(c->peer_isn, c->largest + 2));
    be32_put(pkt + 4, UDT_MSG_FIRST | UDT_MSG_LAST | 9);
    be32_put(pkt + 12, (uint32_t)p.s[0]);
    udt_mux_input(w.m[0], &w.addr[1], pkt, sizeof pkt, silent);
    sim_net_kick(w.net, 0);
    check_end(&w, &p, silent, UDT_E_BROKEN, 1000);
}

/* A receiver of messages that does not read has its last ACK unconfirmed on purpose, but it must
 * know that we live, and ends as it began when it reads on. */
TEST(udt_silence_none_while_a_reader_of_messages_sleeps)
{
    static uint8_t msg[100000], got[100000];
    world w;
    struct udt_ev ev;
    sim_link l = {.rate_bps = 100000000, .delay_us = 1000, .loss_ppm = 50000};
    pair p = open_pair(&w, test_seed, UDT_DGRAM, &l);
    for (int i = 0; i < 3; i++)
        CHECK_INT(udt_mux_sendmsg(w.m[0], p.s[0], msg, sizeof msg, -1, true, sim_net_now(w.net)),
                  0);
    sim_net_kick(w.net, 0);
    world_run(&w, sim_net_now(w.net) + 300000000);
    CHECK(!world_take(&w, 0, UDT_EV_FAILED, p.s[0], &ev));
    CHECK(!world_take(&w, 1, UDT_EV_FAILED, p.s[1], &ev));
    for (int i = 0; i < 3; i++)
        CHECK_INT(udt_mux_recvmsg(w.m[1], p.s[1], got, sizeof got, sim_net_now(w.net)), sizeof got);
    world_fini(&w);
}

/* libudt gives data to its reader only with a non-light ACK, and drops the rest at a shutdown: a
 * light one of everything frees our buffer but must not end a close. */
TEST(udt_silence_light_acknowledgement_ends_no_close)
{
    world w;
    struct udt_ev ev;
    sim_link l = {.delay_us = 1000};
    pair p = open_pair(&w, test_seed, UDT_STREAM, &l);
    send_from(&w, &p, 0, 10 * 1456);
    world_run(&w, sim_net_now(w.net) + 500); /* on its way */
    cut_off(&w);                             /* its own acknowledgements are lost */
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 60000, sim_net_now(w.net)), 0);
    world_run(&w, sim_net_now(w.net) + 5000);
    const udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    uint8_t pkt[64];
    const uint32_t all[6] = {seq_add(c->isn, c->snd.tail), 1000, 500, 1000, 1, 1};
    size_t len = udt_pkt_put_ctrl(pkt, UDT_CTRL_ACK, 0, p.s[0], all, 1);
    udt_mux_input(w.m[0], &w.addr[1], pkt, len, sim_net_now(w.net));
    CHECK_INT(udt_mux_unacked(w.m[0], p.s[0]), 0);
    sim_net_kick(w.net, 0);
    world_run(&w, sim_net_now(w.net) + 3000000);
    CHECK(!world_take(&w, 0, UDT_EV_CLOSED, p.s[0], &ev));
    len = udt_pkt_put_ctrl(pkt, UDT_CTRL_ACK, 77, p.s[0], all, 6);
    udt_mux_input(w.m[0], &w.addr[1], pkt, len, sim_net_now(w.net));
    sim_net_kick(w.net, 0);
    CHECK_INT(world_wait(&w, 0, UDT_EV_CLOSED, p.s[0], sim_net_now(w.net) + 100000).err, 0);
    world_fini(&w);
}
