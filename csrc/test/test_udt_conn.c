/* A connection's behaviour: wrap, message deadlines, forged packets, death, close, memory. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"
#include "udt_err.h"

static pair open_pair(world *w, int how, udt_opts *o, const sim_link *l)
{
    world_init(w, test_seed, l, l);
    return world_connect(w, how, o, 20000000);
}

/* Random bytes that begin an initial sequence number just before the wrap. */
static void wrap_rand(void *arg, uint8_t *buf, size_t len)
{
    sim_rng_bytes(arg, buf, len);
    if (len == 4 && (buf[0] & 1))
        memcpy(buf, "\x7f\xff\xff\xf0", 4);
}

TEST(udt_conn_sequence_numbers_wrap)
{
    for (int how = PAIR_CLIENT; how <= PAIR_RDV_PASSIVE; how++) {
        for (uint16_t type = UDT_STREAM; type <= UDT_DGRAM; type++) {
            world w;
            udt_opts o;
            sim_link l = {.rate_bps = 100000000, .delay_us = 2000, .loss_ppm = 30000};
            udt_mux_config cfg = {.rand = wrap_rand};
            sim_rng r;
            sim_rng_seed(&r, test_seed);
            cfg.rand_arg = &r;
            world_init_cfg(&w, test_seed, &l, &l, &cfg);
            udt_opts_init(&o);
            o.type = type;
            pair p = world_connect(&w, how, &o, 10000000);
            flow f[2] = {{.from = 0, .seed = 1, .size = 200000, .msg_size = type == 2 ? 3000 : 0},
                         {.from = 1, .seed = 2, .size = 200000, .msg_size = type == 2 ? 3000 : 0}};
            CHECK(world_move(&w, &p, f, 2, sim_net_now(w.net) + 10000000));
            flow_fini(&f[0]);
            flow_fini(&f[1]);
            world_fini(&w);
        }
    }
}

TEST(udt_conn_expired_messages_are_dropped_and_later_ones_arrive)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 4000000, .delay_us = 20000, .loss_ppm = 50000};
    udt_opts_init(&o);
    o.type = UDT_DGRAM;
    for (int order = 0; order < 2; order++) {
        pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
        static uint8_t msg[6000], got[8000];
        int sent = 0, came = 0, lasting = 0, last = -1;
        udt_time now = sim_net_now(w.net), end = now + 20000000;
        for (; sent < 200; sent++) { /* every fourth has no deadline; the rest 100 ms at 4 Mb/s */
            memset(msg, sent, sizeof msg);
            CHECK_INT(
                udt_mux_sendmsg(w.m[0], p.s[0], msg, sizeof msg, sent % 4 ? 100 : -1, order, now),
                0);
        }
        sim_net_kick(w.net, 0);
        bool drained = false;
        while (sim_net_now(w.net) < end && !drained) {
            struct udt_ev ev;
            world_step(&w, end);
            drained = world_take(&w, 0, UDT_EV_DRAINED, 0, &ev);
            while (world_take(&w, 1, UDT_EV_READABLE, 0, &ev))
                for (ssize_t n; (n = udt_mux_recvmsg(w.m[1], p.s[1], got, sizeof got,
                                                     sim_net_now(w.net))) > 0;) {
                    CHECK_INT(n, sizeof msg);
                    for (size_t i = 1; i < sizeof msg; i++)
                        CHECK(got[i] == got[0]);
                    if (order)
                        CHECK(got[0] > last);
                    last = got[0];
                    came++;
                    lasting += got[0] % 4 == 0;
                }
        }
        CHECK(drained);
        CHECK_INT(lasting, 50);
        CHECK(came < 150); /* most of the hurried ones were given up */
        world_fini(&w);
    }
}

/* Everything that forged input must not change. */
typedef struct snapshot {
    udt_stats st[2];
    udt_mux_counters n[2];
} snapshot;
static snapshot take(world *w, const pair *p)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 2; i++) {
        udt_mux_stats(w->m[i], p->s[i], &s.st[i]);
        udt_mux_counters_get(w->m[i], &s.n[i]);
        s.n[i].dropped_bad = s.n[i].dropped_unknown = s.n[i].dropped_cookie = 0;
        s.st[i].lim_app_us = s.st[i].at_us = 0; /* what only time changes */
        s.st[i].send_Bps = s.st[i].recv_Bps = s.st[i].queue_bytes = 0;
    }
    return s;
}

/* Nobody has looked for three hours of 10 Gb/s: more bytes than fit into 64 bits a million times.
 */
TEST(udt_conn_rates_over_long_times)
{
    world w;
    udt_opts o;
    udt_stats st;
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, NULL);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    CHECK(c);
    const int64_t hours = 3ll * 3600, rate = 1250000000;
    for (size_t i = 0; i < sizeof c->meter / sizeof *c->meter; i++)
        c->meter[i].at = c->mux->now - hours * 1000000;
    c->st.bytes_sent = c->st.bytes_recv = rate * hours;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    CHECK(st.send_Bps > rate - 1000 && st.send_Bps <= rate);
    CHECK(st.recv_Bps > rate - 1000 && st.recv_Bps <= rate);
    world_fini(&w);
}

/* A server that closes at once, far away: the client has repeated its request before it hears of
 * that, and is one client all the same. */
static void close_at_once(int32_t rtt_us, bool offer, uint64_t lost, int last)
{
    sim_link there = {.delay_us = rtt_us / 2}, back = {.delay_us = rtt_us / 2, .loss_mask = lost};
    world w;
    udt_opts o;
    struct udt_ev ev;
    int accepted = 0;
    udt_opts_init(&o);
    o.offer = offer;
    world_init(&w, test_seed, &there, &back);
    CHECK(udt_mux_listen(w.m[1], &o, 16) > 0);
    int32_t s = udt_mux_connect(w.m[0], &w.addr[1], &o, 0);
    CHECK(s > 0);
    sim_net_kick(w.net, 0);
    for (udt_time t = 0; t < 5000000; t += 1000) {
        world_run(&w, t);
        while (world_take(&w, 1, UDT_EV_ACCEPTED, 0, &ev)) {
            accepted++;
            CHECK_INT(udt_mux_close(w.m[1], ev.sock, 0, sim_net_now(w.net)), 0);
            sim_net_kick(w.net, 1);
        }
    }
    CHECK_INT(accepted, 1);
    CHECK_INT(world_take(&w, 0, UDT_EV_CONNECTED, s, &ev), last == 0);
    CHECK(world_take(&w, 0, last ? UDT_EV_FAILED : UDT_EV_PEER_CLOSED, s, &ev));
    CHECK_INT(ev.err, last);
    world_fini(&w);
}

TEST(udt_conn_closed_at_once_is_one_connection)
{
    for (int offer = 0; offer < 2; offer++) {
        close_at_once(100000, offer, 0, 0);
        close_at_once(300000, offer, 0, 0);
        close_at_once(1200000, offer, 0, 0);
    }
    /* Neither the answer nor a farewell arrives. */
    close_at_once(200000, true, 30, UDT_E_REJECTED);
}

TEST(udt_conn_garbage_and_forgery_change_nothing)
{
    world w;
    udt_opts o;
    sim_rng r;
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, NULL);
    flow f = {.from = 0, .seed = 1, .size = 100000};
    CHECK(world_move(&w, &p, &f, 1, 5000000));
    world_run(&w, sim_net_now(w.net) + 20000);
    snapshot before = take(&w, &p);
    udt_time now = sim_net_now(w.net);
    sim_rng_seed(&r, test_seed);
    udt_addr stranger = test_addr(9, 9);
    uint8_t buf[1500];
    for (int i = 0; i < 200000 * test_scale / 100; i++) {
        size_t len = sim_rng_below(&r, sim_rng_below(&r, 2) ? 80 : sizeof buf);
        sim_rng_bytes(&r, buf, len);
        bool from_peer = i & 1;
        if (len >= 16 && sim_rng_below(&r, 2)) /* right id, wrong source */
            be32_put(buf + 12, (uint32_t)p.s[1]);
        if (len >= 4 && sim_rng_below(&r, 2))
            be32_put(buf, 0x80000000u | (uint32_t)sim_rng_below(&r, 10) << 16);
        if (from_peer && len >= 16 && be32_get(buf + 12) == (uint32_t)p.s[1])
            be32_put(buf + 12, 0x12345);
        udt_mux_input(w.m[1], from_peer ? &w.addr[0] : &stranger, buf, len, now);
    }
    snapshot after = take(&w, &p);
    CHECK_MEM(&before, &after, sizeof before);
    /* From the peer's address: acknowledgements and reports of what was never sent. */
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    uint32_t next = seq_add(c->isn, c->next);
    const uint32_t ack[6] = {seq_add(next, 1), 1, 1, 5, 5, 5},
                   ack_far[1] = {seq_add(next, 1 << 29)};
    const uint32_t nak[1] = {next}, turned[2] = {next | 0x80000000u, seq_add(next, -5)};
    const uint32_t cut[1] = {seq_add(next, -1) | 0x80000000u};
    int64_t bad = w.m[0]->n.dropped_bad;
    const struct {
        uint16_t type;
        const uint32_t *words;
        size_t n;
    } forged[] = {{UDT_CTRL_ACK, ack, 6},  {UDT_CTRL_ACK, ack_far, 1},
                  {UDT_CTRL_NAK, nak, 1},  {UDT_CTRL_NAK, turned, 2},
                  {UDT_CTRL_NAK, cut, 1},  {UDT_CTRL_DROP, turned, 2},
                  {UDT_CTRL_DROP, nak, 1}, {0x55, ack, 6},
                  {UDT_CTRL_USER, ack, 6}};
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        size_t len = udt_pkt_put_ctrl(buf, forged[i].type, 7, p.s[0], forged[i].words, forged[i].n);
        udt_mux_input(w.m[0], &w.addr[1], buf, len, now);
    }
    CHECK_INT(w.m[0]->n.dropped_bad - bad, 7);
    after = take(&w, &p);
    CHECK_MEM(&before, &after, sizeof before);
    flow g = {.from = 0, .seed = 3, .size = 100000};
    CHECK(world_move(&w, &p, &g, 1, sim_net_now(w.net) + 5000000));
    world_fini(&w);
}

TEST(udt_conn_dead_peer_is_noticed_by_both_rules)
{
    for (int own = 0; own < 2; own++) {
        world w;
        udt_opts o;
        sim_link l = {.delay_us = 10000};
        udt_opts_init(&o);
        o.own_peer = own;
        pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
        world_run(&w, 100000000); /* idle: nobody dies */
        CHECK_INT(w.nev[0] + w.nev[1], 0);
        sim_net_set(w.net, 1, &mux_ops, NULL);
        udt_time start = sim_net_now(w.net);
        int err = own ? UDT_E_BROKEN : UDT_E_VANISHED;
        CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, p.s[0], start + 60000000).err, err);
        double took = (double)(sim_net_now(w.net) - start) * 1e-6;
        CHECK(took > 4 && took < 10.5);
        CHECK_INT(udt_mux_send(w.m[0], p.s[0], (const uint8_t *)"x", 1, sim_net_now(w.net)), err);
        world_fini(&w);
    }
}

static int64_t shutdowns;
static void count_shutdowns(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                            udt_time now)
{
    (void)arg, (void)to, (void)now;
    if (a == 1 && len >= 16 && be32_get(pkt) == 0x80050000u)
        shutdowns++;
}

TEST(udt_conn_lost_shutdowns_and_tombstones)
{
    world w;
    udt_opts o;
    sim_link l = {.delay_us = 10000};
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
    sim_net_tap(w.net, count_shutdowns, NULL);
    shutdowns = 0;
    l.loss_ppm = 1000000;
    sim_net_link(w.net, 1, 0, &l);
    CHECK_INT(udt_mux_close(w.m[1], p.s[1], 0, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 1);
    world_wait(&w, 1, UDT_EV_CLOSED, p.s[1], sim_net_now(w.net) + 1000000);
    CHECK(shutdowns >= 5); /* and not later: who hears CLOSED may end the process */
    world_run(&w, sim_net_now(w.net) + 150000);
    int64_t before = shutdowns;
    udt_mux_counters n;
    udt_mux_counters_get(w.m[1], &n);
    CHECK_INT(n.sockets, 1); /* the listener */
    CHECK_INT(n.tombstones, 1);
    /* The other end learns it as soon as it speaks; replies are limited. */
    l.loss_ppm = 0;
    sim_net_link(w.net, 1, 0, &l);
    uint8_t pkt[20];
    size_t len = udt_pkt_put_ctrl(pkt, UDT_CTRL_KEEPALIVE, 0, p.s[1], NULL, 0);
    udt_addr stranger = test_addr(9, 9);
    for (int i = 0; i < 50; i++) {
        sim_net_inject(w.net, &stranger, 1, pkt, len, sim_net_now(w.net));
        sim_net_inject(w.net, &w.addr[0], 1, pkt, len, sim_net_now(w.net));
        sim_net_inject(w.net, &w.addr[0], 1, pkt, 16, sim_net_now(w.net));
    }
    world_wait(&w, 0, UDT_EV_PEER_CLOSED, p.s[0], sim_net_now(w.net) + 1000000);
    CHECK_INT(shutdowns, before + 1);
    CHECK_INT(udt_mux_recv(w.m[0], p.s[0], pkt, 1, sim_net_now(w.net)), UDT_E_PEERCLOSED);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], pkt, 1, sim_net_now(w.net)), UDT_E_PEERCLOSED);
    /* After a minute it is remembered no longer. */
    world_run(&w, sim_net_now(w.net) + 61000000);
    sim_net_inject(w.net, &stranger, 1, pkt, len, sim_net_now(w.net));
    world_run(&w, sim_net_now(w.net) + 1000);
    udt_mux_counters_get(w.m[1], &n);
    CHECK_INT(n.tombstones, 0);
    world_fini(&w);
}

TEST(udt_conn_close_lingers_until_delivered)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 10000000, .delay_us = 10000, .loss_ppm = 20000};
    static uint8_t data[300000], got[300000];
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
    fill(data, 5, 0, sizeof data);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, sizeof data, sim_net_now(w.net)), sizeof data);
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 30000, sim_net_now(w.net)), 0);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, 1, sim_net_now(w.net)), UDT_E_CLOSED);
    sim_net_kick(w.net, 0);
    world_wait(&w, 1, UDT_EV_PEER_CLOSED, p.s[1], sim_net_now(w.net) + 30000000);
    size_t have = 0;
    for (ssize_t n;
         (n = udt_mux_recv(w.m[1], p.s[1], got + have, sizeof got - have, sim_net_now(w.net))) > 0;)
        if ((have += (size_t)n) == sizeof got)
            break;
    CHECK_INT(have, sizeof got);
    CHECK_MEM(data, got, sizeof got);
    CHECK_INT(udt_mux_recv(w.m[1], p.s[1], got, 1, sim_net_now(w.net)), UDT_E_PEERCLOSED);
    world_fini(&w);
}

/* Whether end 1 has heard the shutdown by then. */
static bool shut_by(world *w, const pair *p, udt_time until)
{
    struct udt_ev ev;
    world_run(w, until);
    return world_take(w, 1, UDT_EV_PEER_CLOSED, p->s[1], &ev);
}

/* libudt loses the message that its reader is just copying when a shutdown comes, so towards a
 * foreign peer a closed connection stays until its window says that all was read. */
TEST(udt_conn_close_waits_for_a_foreign_reader_of_messages)
{
    static uint8_t msg[100000], got[100000];
    sim_link l = {.rate_bps = 100000000, .delay_us = 1000};
    for (int reads = 0; reads < 2; reads++) {
        world w;
        udt_opts o;
        udt_opts_init(&o);
        o.type = UDT_DGRAM;
        pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
        for (int i = 0; i < 3; i++)
            CHECK_INT(
                udt_mux_sendmsg(w.m[0], p.s[0], msg, sizeof msg, -1, true, sim_net_now(w.net)), 0);
        CHECK_INT(udt_mux_close(w.m[0], p.s[0], 60000, sim_net_now(w.net)), 0);
        sim_net_kick(w.net, 0);
        udt_time t0 = sim_net_now(w.net);
        CHECK(!shut_by(&w, &p, t0 + 3000000)); /* acknowledged long ago */
        for (int i = 0; reads && i < 3; i++) {
            CHECK_INT(udt_mux_recvmsg(w.m[1], p.s[1], got, sizeof got, sim_net_now(w.net)),
                      sizeof got);
            sim_net_kick(w.net, 1);
            CHECK(!shut_by(&w, &p, sim_net_now(w.net) + 15000));
        }
        if (reads)
            CHECK(shut_by(&w, &p, t0 + 4000000));
        else /* it is not waited for without end */
            CHECK(!shut_by(&w, &p, t0 + 4900000) && shut_by(&w, &p, t0 + 6000000));
        world_fini(&w);
    }
}

TEST(udt_conn_peer_error_stops_the_sender)
{
    world w;
    udt_opts o;
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_RDV_TAG, &o, NULL);
    CHECK_INT(udt_mux_peer_error(w.m[1], p.s[1], 4000, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 1);
    CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, p.s[0], 5000000).err, UDT_E_REMOTE);
    world_fini(&w);
}

TEST(udt_conn_slow_reader_stops_the_sender_and_memory_stays_in_budget)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 1000000000, .delay_us = 1000, .loss_ppm = 10000};
    udt_mux_config cfg = {.max_buf_bytes = 2 << 20};
    static uint8_t data[65536], got[65536], want[65536];
    world_init_cfg(&w, test_seed, &l, &l, &cfg);
    udt_opts_init(&o);
    pair p = world_connect(&w, PAIR_CLIENT, &o, 5000000);
    uint64_t sent = 0, have = 0, size = 20000000;
    udt_time next_read = 0;
    while (have < size && sim_net_now(w.net) < 100000000) {
        udt_time now = sim_net_now(w.net);
        for (; sent < size;) {
            size_t len = size - sent < sizeof data ? (size_t)(size - sent) : sizeof data;
            fill(data, 1, sent, len);
            ssize_t n = udt_mux_send(w.m[0], p.s[0], data, len, now);
            if (n < 0) {
                CHECK_INT(n, UDT_E_AGAIN);
                break;
            }
            sent += (uint64_t)n;
        }
        sim_net_kick(w.net, 0);
        if (now >= next_read) { /* 64 KB every 5 ms: 100 Mb/s of a 1 Gb/s link */
            ssize_t n = udt_mux_recv(w.m[1], p.s[1], got, sizeof got, now);
            if (n > 0) {
                fill(want, 1, have, (size_t)n);
                CHECK_MEM(got, want, (size_t)n);
                have += (uint64_t)n;
            }
            next_read = now + 5000;
            sim_net_kick(w.net, 1);
        }
        world_step(&w, next_read);
        w.nev[0] = w.nev[1] = 0;
        for (int i = 0; i < 2; i++) {
            udt_mux_counters n;
            udt_mux_counters_get(w.m[i], &n);
            CHECK(n.buf_bytes <= 2 << 20);
        }
    }
    CHECK_INT(have, size);
    CHECK(sim_net_now(w.net) < 4000000);
    /* Connections beyond the budget are refused, not broken. */
    int made = 0;
    for (; made < 100; made++) {
        int32_t s = udt_mux_connect(w.m[0], &w.addr[1], &o, sim_net_now(w.net));
        struct udt_ev ev;
        sim_net_kick(w.net, 0);
        world_run(&w, sim_net_now(w.net) + 2000000); /* a lost handshake is repeated */
        if (!world_take(&w, 0, UDT_EV_CONNECTED, s, &ev))
            break;
    }
    CHECK(made > 5 && made < 100);
    world_fini(&w);
}

TEST(udt_conn_small_sends_share_packets)
{
    world w;
    udt_opts o;
    uint8_t x[100] = {0};
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, NULL);
    for (int i = 0; i < 1000; i++)
        CHECK_INT(udt_mux_send(w.m[0], p.s[0], x, sizeof x, sim_net_now(w.net)), 100);
    sim_net_kick(w.net, 0);
    world_run(&w, sim_net_now(w.net) + 1000000);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    CHECK(st.pkts_sent <= 100000 / 1456 + 2);
    CHECK_INT(udt_mux_unacked(w.m[0], p.s[0]), 0);
    world_fini(&w);
}

TEST(udt_conn_probe_pairs_and_bursts_towards_a_foreign_peer)
{
    /* Straight from the port: every batch to a foreign peer is at most 16 packets and never ends
     * between sequence numbers 0 and 1 of 16. */
    world w;
    udt_opts o;
    static uint8_t data[2000000], out[65536];
    udt_opts_init(&o);
    pair p = open_pair(&w, PAIR_CLIENT, &o, NULL);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    c->cc.cwnd_pkts = 2000;
    udt_time now = sim_net_now(w.net);
    CHECK(udt_mux_send(w.m[0], p.s[0], data, sizeof data, now) > 0);
    int batches = 0;
    for (size_t n, seg; batches < 60; now += 50) {
        udt_addr to;
        udt_mux_tick(w.m[0], now);
        n = udt_mux_output(w.m[0], out, sizeof out, 64, &to, &seg, now);
        if (n == 0 || be32_get(out) >> 31)
            continue;
        CHECK(n / seg <= 17);
        uint32_t last = be32_get(out + (n - 1) / seg * seg);
        CHECK((last & 15) != 0);
        batches++;
    }
    world_fini(&w);
}

TEST(udt_conn_bandwidth_limit_holds)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 1000000000, .delay_us = 5000};
    udt_opts_init(&o);
    o.max_bw_Bps = 2500000; /* 20 Mb/s */
    pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
    flow f = {.from = 0, .seed = 1, .size = 5000000};
    udt_time start = sim_net_now(w.net);
    CHECK(world_move(&w, &p, &f, 1, start + 10000000));
    double took = (double)(sim_net_now(w.net) - start) * 1e-6;
    CHECK(took > 1.9 && took < 2.4);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    CHECK_INT(st.pkts_retrans, 0);
    CHECK(st.rtt_us > 9000 && st.rtt_us < 30000);
    world_fini(&w);
}

TEST(udt_conn_request_and_response_take_a_round_trip)
{
    /* Full-size and short packets, own and foreign: no 10 ms or 100 ms ticks in the way. */
    for (int own = 0; own < 2; own++) {
        for (size_t size = 100; size <= 2912; size += 1356) {
            world w;
            udt_opts o;
            sim_link l = {.delay_us = 500};
            static uint8_t buf[4096];
            udt_opts_init(&o);
            o.own_peer = own;
            pair p = open_pair(&w, PAIR_CLIENT, &o, &l);
            udt_time start = sim_net_now(w.net);
            for (int i = 0; i < 100; i++) {
                for (int from = 0; from < 2; from++) {
                    size_t have = 0;
                    struct udt_ev ev;
                    CHECK_INT(udt_mux_send(w.m[from], p.s[from], buf, size, sim_net_now(w.net)),
                              (ssize_t)size);
                    sim_net_kick(w.net, from);
                    while (have < size) {
                        if (!world_take(&w, !from, UDT_EV_READABLE, 0, &ev)) {
                            CHECK(world_step(&w, start + 1000000));
                            continue;
                        }
                        ssize_t n = udt_mux_recv(w.m[!from], p.s[!from], buf, sizeof buf,
                                                 sim_net_now(w.net));
                        have += n > 0 ? (size_t)n : 0;
                    }
                }
            }
            CHECK((sim_net_now(w.net) - start) / 100 < 1200);
            world_fini(&w);
        }
    }
}

/* Handshakes of a rendezvous cross: what comes right after ours need not answer it. */
TEST(udt_conn_rendezvous_learns_no_false_round_trip)
{
    sim_link l = {.rate_bps = 10000000, .delay_us = 100000};
    static uint8_t data[20000];
    for (udt_time late = 0; late < 800000; late += 7000) {
        world w;
        udt_opts o;
        pair p;
        world_init(&w, test_seed, &l, &l);
        udt_opts_init(&o);
        p.s[0] = udt_mux_rendezvous(w.m[0], &w.addr[1], &o, 0);
        sim_net_kick(w.net, 0);
        world_run(&w, late);
        p.s[1] = udt_mux_rendezvous(w.m[1], &w.addr[0], &o, sim_net_now(w.net));
        sim_net_kick(w.net, 1);
        for (int i = 0; i < 2; i++)
            world_wait(&w, i, UDT_EV_CONNECTED, p.s[i], 5000000);
        for (int i = 0; i < 2; i++) {
            CHECK(udt_mux_send(w.m[i], p.s[i], data, sizeof data, sim_net_now(w.net)) > 0);
            sim_net_kick(w.net, i);
        }
        world_run(&w, sim_net_now(w.net) + 2000000);
        for (int i = 0; i < 2; i++) {
            udt_stats st;
            CHECK_INT(udt_mux_stats(w.m[i], p.s[i], &st), 0);
            CHECK(st.min_rtt_us >= 200000);
        }
        world_fini(&w);
    }
}
