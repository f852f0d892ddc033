/* Connecting: the spec's vectors byte for byte, lost packets, repeats, refusals, rendezvous. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"
#include "udt/handshake.h"
#include "udt/packet.h"
#include "udt_err.h"

/* Random bytes from a script, zeros after its end. */
typedef struct script {
    uint8_t bytes[64];
    size_t len, at;
} script;
static void script_rand(void *arg, uint8_t *buf, size_t len)
{
    script *s = arg;
    for (size_t i = 0; i < len; i++)
        buf[i] = s->at < s->len ? s->bytes[s->at++] : 0;
}
static void script_u32(script *s, uint32_t v)
{
    be32_put(s->bytes + s->len, v);
    s->len += 4;
}

static udt_mux *scripted(script *s)
{
    udt_mux_config cfg = {.rand = script_rand, .rand_arg = s};
    udt_mux *m = udt_mux_new(&cfg);
    CHECK(m);
    return m;
}

/* The next datagram of `m`, checked against words where mask[i] is not '.'. */
static size_t expect(udt_mux *m, udt_time now, uint8_t *buf, const uint32_t *w, size_t n)
{
    udt_addr to;
    size_t seg, len = udt_mux_output(m, buf, 65536, 1, &to, &seg, now);
    CHECK(len >= 4 * n);
    for (size_t i = 0; i < n; i++)
        CHECK_INT(be32_get(buf + 4 * i), w[i]);
    return len;
}

TEST(udt_handshake_vectors_byte_for_byte)
{
    enum { ISN = 0x520b5364, IDC = 0x3d4e13, IDS = 0x3d4e12, COOKIE = 0x654fbc8b };
    static uint8_t buf[65536], data[5000];
    const udt_addr c = {.family = 4, .port = 5000, .ip = {127, 0, 0, 1}};
    const udt_addr s = {.family = 4, .port = 9000, .ip = {127, 0, 0, 1}};
    script rc = {0}, rs = {0}, zero = {0};
    udt_cookies k;
    udt_opts o;
    struct udt_ev ev;
    udt_opts_init(&o);
    script_u32(&rc, IDC - 1);
    script_u32(&rc, ISN);
    udt_cookies_init(&k);
    uint32_t base = udt_cookie_make(&k, script_rand, &zero, &c, ISN, IDC, 1000);
    script_u32(&rs, IDC - 1); /* the listener takes IDC, its child IDS */
    for (int i = 0; i < 4; i++)
        script_u32(&rs, 0);
    script_u32(&rs, base ^ COOKIE);
    udt_mux *mc = scripted(&rc), *ms = scripted(&rs);
    CHECK_INT(udt_mux_listen(ms, &o, 5), IDC);
    int32_t sock = udt_mux_connect(mc, &s, &o, 1000);
    CHECK_INT(sock, IDC);
    uint32_t hs[16] = {0x80000000, 0, 0, 0, 4, 1, ISN, 1500, 8192, 1, IDC, 0, 0x0100007f, 0, 0, 0};
    CHECK_INT(expect(mc, 1000, buf, hs, 16), 64);
    udt_mux_input(ms, &c, buf, 64, 1000);
    hs[3] = IDC;
    hs[11] = COOKIE;
    CHECK_INT(expect(ms, 1000, buf, hs, 16), 64);
    udt_mux_input(mc, &s, buf, 64, 1000);
    hs[3] = 0;
    hs[9] = 0xffffffff;
    CHECK_INT(expect(mc, 1000, buf, hs, 16), 64);
    udt_mux_input(ms, &c, buf, 64, 1000);
    hs[3] = IDC;
    hs[10] = IDS;
    CHECK_INT(expect(ms, 1000, buf, hs, 16), 64);
    udt_mux_input(mc, &s, buf, 64, 1000);
    CHECK(udt_mux_next_event(mc, &ev));
    CHECK_INT(ev.kind, UDT_EV_CONNECTED);
    CHECK(udt_mux_next_event(ms, &ev));
    CHECK_INT(ev.kind, UDT_EV_ACCEPTED);
    CHECK_INT(ev.sock, IDS);
    CHECK_INT(ev.value, IDC);
    /* 5000 bytes: 1456, 1456, 1456, 632. */
    static const uint32_t ff[4] = {0x80000001, 1, 1, 0x40000001};
    CHECK_INT(udt_mux_send(mc, sock, data, sizeof data, 2000), 5000);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t h[4] = {ISN + i, ff[i], 1000, IDS};
        CHECK_INT(expect(mc, 2000, buf, h, 4), i < 3 ? 1472 : 648);
        udt_mux_input(ms, &c, buf, i < 3 ? 1472 : 648, 2000);
    }
    udt_mux_burst_end(ms, 2000);
    const uint32_t ack[10] = {0x80020000, 1, 0, IDC, 0x520b5368, 0x186a0, 0xc350, 0x1ffb, 1, 0x3e8};
    CHECK_INT(expect(ms, 2000, buf, ack, 10), 40);
    udt_mux_input(mc, &s, buf, 40, 2100);
    uint32_t ack2[5] = {0x80060000, 1, 0, IDS, 0};
    CHECK_INT(expect(mc, 2100, buf, ack2, 5), 20);
    /* And once more, for ACK 2. */
    CHECK_INT(udt_mux_send(mc, sock, data, 1, 20000), 1);
    size_t seg, n;
    udt_addr to;
    CHECK((n = udt_mux_output(mc, buf, 65536, 1, &to, &seg, 20000)) == 17);
    udt_mux_input(ms, &c, buf, n, 20000);
    udt_mux_burst_end(ms, 20000);
    CHECK((n = udt_mux_output(ms, buf, 65536, 1, &to, &seg, 20000)) >= 32);
    CHECK_INT(be32_get(buf + 4), 2);
    udt_mux_input(mc, &s, buf, n, 20000);
    ack2[1] = 2;
    CHECK_INT(expect(mc, 20000, buf, ack2, 5), 20);
    udt_mux_free(mc);
    udt_mux_free(ms);
}

TEST(udt_handshake_survives_each_lost_packet)
{
    udt_opts o;
    udt_opts_init(&o);
    for (int how = PAIR_CLIENT; how <= PAIR_RDV_PASSIVE; how++) {
        for (uint64_t mask = 0; mask < 64; mask++) {
            world w;
            sim_link there = {.delay_us = 1000, .loss_mask = mask & 7};
            sim_link back = {.delay_us = 1000, .loss_mask = mask >> 3};
            world_init(&w, test_seed + mask, &there, &back);
            pair p = world_connect(&w, how, &o, 4000000);
            flow f[2] = {{.from = 0, .seed = 1, .size = 3000},
                         {.from = 1, .seed = 2, .size = 3000}};
            CHECK(world_move(&w, &p, f, 2, sim_net_now(w.net) + 4000000));
            world_fini(&w);
        }
    }
}

/* A hand-made peer: exchanges datagrams with a port directly. */
typedef struct peer {
    udt_mux *m;
    udt_addr addr;
    udt_time now;
    uint8_t out[65536];
    size_t len;
} peer;

static bool hear(peer *p)
{
    udt_addr to;
    size_t seg;
    p->len = udt_mux_output(p->m, p->out, sizeof p->out, 1, &to, &seg, p->now);
    return p->len > 0;
}

static udt_hs say_hs(peer *p, udt_hs h)
{
    uint8_t buf[64];
    udt_pkt pkt;
    udt_hs_encode(buf, &h, 0);
    udt_mux_input(p->m, &p->addr, buf, 64, p->now);
    CHECK(hear(p));
    CHECK_INT(p->len, 64);
    CHECK(udt_pkt_decode(&pkt, p->out, p->len));
    CHECK(udt_hs_decode(&h, pkt.body, pkt.len));
    CHECK_INT(pkt.dst, h.req == UDT_HS_RESPONSE ? pkt.dst : h.id);
    return h;
}

static udt_mux *new_port(sim_rng *r, uint64_t seed)
{
    udt_mux_config cfg = {.rand = sim_rng_bytes, .rand_arg = r};
    sim_rng_seed(r, seed);
    return udt_mux_new(&cfg);
}

TEST(udt_handshake_server_repeats_refuses_and_stays_stateless)
{
    sim_rng r;
    udt_opts o;
    udt_mux_counters n;
    struct udt_ev ev;
    peer p = {.m = new_port(&r, 1), .addr = test_addr(7, 77), .now = 5000000};
    udt_opts_init(&o);
    int32_t listener = udt_mux_listen(p.m, &o, 2);
    CHECK(listener > 0);
    CHECK_INT(udt_mux_listen(p.m, &o, 2), UDT_E_INUSE);
    udt_hs h = {.version = 4, .type = 1, .isn = 99, .mss = 1400, .window = 100, .req = 1, .id = 42};
    udt_hs cookie = say_hs(&p, h);
    CHECK_INT(cookie.req, 1);
    CHECK_INT(cookie.id, 42);
    CHECK(cookie.cookie != 0);
    udt_mux_counters_get(p.m, &n);
    CHECK_INT(n.sockets, 1); /* the listener alone */
    /* A wrong cookie gets no answer at all. */
    h.req = -1;
    h.cookie = cookie.cookie ^ 0x100;
    uint8_t buf[64];
    udt_hs_encode(buf, &h, 0);
    udt_mux_input(p.m, &p.addr, buf, 64, p.now);
    CHECK(!hear(&p));
    /* Version or type mismatch: 1002. */
    h.cookie = cookie.cookie;
    udt_hs bad = h;
    bad.version = 3;
    CHECK_INT(say_hs(&p, bad).req, 1002);
    bad = h;
    bad.type = 2;
    CHECK_INT(say_hs(&p, bad).req, 1002);
    /* The right one, twice: one connection, the same answer. */
    udt_hs a = say_hs(&p, h), b = say_hs(&p, h);
    CHECK_INT(a.req, -1);
    CHECK_INT(a.isn, 99);
    CHECK_INT(a.mss, 1400);
    CHECK(a.id != 42 && a.id > 0);
    CHECK_MEM(&a, &b, sizeof a);
    /* Two wait to be fetched: the third is refused until one is. */
    for (int32_t id = 43; id < 45; id++) {
        h.id = id;
        h.req = 1;
        h.cookie = say_hs(&p, h).cookie;
        h.req = -1;
        CHECK_INT(say_hs(&p, h).req, id == 43 ? -1 : 1002);
    }
    CHECK(udt_mux_next_event(p.m, &ev));
    CHECK_INT(ev.sock, a.id);
    CHECK_INT(ev.value, listener);
    CHECK_INT(say_hs(&p, h).req, -1);
    udt_mux_counters_get(p.m, &n);
    CHECK_INT(n.sockets, 4);
    CHECK_INT(n.rejected, 3);
    CHECK_INT(n.dropped_cookie, 1);
    udt_mux_free(p.m);
}

TEST(udt_handshake_refused_client_hears_rejected_and_silence_is_timeout)
{
    world w;
    udt_opts o, dgram;
    world_init(&w, test_seed, NULL, NULL);
    udt_opts_init(&o);
    dgram = o;
    dgram.type = UDT_DGRAM;
    CHECK(udt_mux_listen(w.m[1], &dgram, 4) > 0);
    int32_t s = udt_mux_connect(w.m[0], &w.addr[1], &o, 0);
    sim_net_kick(w.net, 0);
    CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, s, 1000000).err, UDT_E_REJECTED);
    udt_addr nobody = test_addr(9, 9);
    s = udt_mux_connect(w.m[0], &nobody, &o, sim_net_now(w.net));
    udt_time start = sim_net_now(w.net);
    sim_net_kick(w.net, 0);
    CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, s, start + 4000000).err, UDT_E_TIMEOUT);
    CHECK(sim_net_now(w.net) - start >= 3000000);
    CHECK_INT(udt_mux_close(w.m[0], s, 0, sim_net_now(w.net)), 0);
    world_wait(&w, 0, UDT_EV_CLOSED, s, sim_net_now(w.net) + 1);
    CHECK_INT(udt_mux_close(w.m[0], s, 0, sim_net_now(w.net)), UDT_E_NOSOCK);
    world_fini(&w);
}

/* A port whose listener has gone, while connections keep it open, refuses who comes, and repeats
 * its answer to whom it has accepted before; one that never had a listener says nothing. */
TEST(udt_handshake_is_refused_where_a_listener_has_gone)
{
    sim_rng r;
    udt_opts o;
    udt_mux_counters n;
    peer p = {.m = new_port(&r, 5), .addr = test_addr(7, 77), .now = 5000000};
    udt_hs h = {.version = 4, .type = 1, .isn = 99, .mss = 1400, .window = 100, .req = 1, .id = 42};
    uint8_t buf[64];
    udt_opts_init(&o);
    udt_hs_encode(buf, &h, 0);
    udt_mux_input(p.m, &p.addr, buf, sizeof buf, p.now);
    CHECK(!hear(&p));
    int32_t listener = udt_mux_listen(p.m, &o, 2);
    udt_hs known = h, late = h;
    known.cookie = say_hs(&p, h).cookie;
    known.req = -1;
    late.id = 43;
    late.cookie = say_hs(&p, late).cookie;
    late.req = -1;
    udt_hs a = say_hs(&p, known);
    CHECK_INT(a.req, -1);
    CHECK(udt_mux_next_event(p.m, &(struct udt_ev){0}));
    CHECK_INT(udt_mux_close(p.m, listener, 0, p.now), 0);
    udt_hs again = say_hs(&p, known); /* the answer was lost */
    CHECK_MEM(&a, &again, sizeof a);
    CHECK_INT(say_hs(&p, late).req, 1002); /* was between its two requests */
    udt_hs refused = say_hs(&p, h);
    CHECK_INT(refused.req, 1002);
    CHECK_INT(refused.isn, h.isn);
    udt_mux_counters_get(p.m, &n);
    CHECK_INT(n.rejected, 2);
    CHECK(udt_mux_listen(p.m, &o, 2) > 0);
    CHECK_INT(say_hs(&p, h).req, 1);
    udt_mux_free(p.m);
}

/* The client's side of it: at once, not after its time limit. */
TEST(udt_handshake_client_hears_that_a_listener_has_gone)
{
    world w;
    udt_opts o;
    sim_link l = {.delay_us = 5000};
    world_init(&w, test_seed, &l, &l);
    udt_opts_init(&o);
    int32_t listener = udt_mux_listen(w.m[1], &o, 4);
    CHECK_INT(udt_mux_close(w.m[1], listener, 0, 0), 0);
    int32_t s = udt_mux_connect(w.m[0], &w.addr[1], &o, 0);
    sim_net_kick(w.net, 0);
    CHECK_INT(world_wait(&w, 0, UDT_EV_FAILED, s, 20000).err, UDT_E_REJECTED);
    world_fini(&w);
}

TEST(udt_handshake_client_fetches_a_new_cookie_when_the_second_request_is_ignored)
{
    sim_rng r;
    udt_opts o;
    udt_pkt pkt;
    udt_hs h;
    peer p = {.m = new_port(&r, 3), .addr = test_addr(7, 77), .now = 0};
    udt_opts_init(&o);
    CHECK(udt_mux_connect(p.m, &p.addr, &o, 0) > 0);
    int requests = 0;
    for (; p.now < 2900000; p.now += 50000) {
        udt_mux_tick(p.m, p.now);
        while (hear(&p)) {
            CHECK(udt_pkt_decode(&pkt, p.out, p.len));
            CHECK(udt_hs_decode(&h, pkt.body, pkt.len));
            CHECK_INT(pkt.dst, 0);
            if (h.req != UDT_HS_REQUEST)
                continue; /* the minute has turned: silence */
            CHECK_INT(h.cookie, 0);
            h.cookie = 1000 + (uint32_t)requests++;
            uint8_t buf[64];
            udt_hs_encode(buf, &h, h.id);
            udt_mux_input(p.m, &p.addr, buf, 64, p.now);
        }
    }
    CHECK(requests >= 4);
    udt_mux_free(p.m);
}

/* A round trip of 470 ms: the client begins anew before the answer to its second request is there.
 * It comes 4 ms after the next second request, and with 4 ms for a round trip everything was sent
 * 63 times. */
TEST(udt_an_answer_to_an_earlier_handshake_is_no_round_trip)
{
    sim_rng r;
    udt_opts o;
    udt_pkt pkt;
    udt_hs h;
    uint8_t buf[64];
    peer p = {.m = new_port(&r, 3), .addr = test_addr(7, 77), .now = 0};
    udt_opts_init(&o);
    int32_t s = udt_mux_connect(p.m, &p.addr, &o, 0);
    int requests = 0, seconds = 0;
    for (; seconds < 2; p.now += 10000) {
        CHECK(p.now < 2000000);
        udt_mux_tick(p.m, p.now);
        while (hear(&p)) {
            CHECK(udt_pkt_decode(&pkt, p.out, p.len));
            CHECK(udt_hs_decode(&h, pkt.body, pkt.len));
            bool first = h.req == UDT_HS_REQUEST && requests == seconds;
            seconds += h.req == UDT_HS_RESPONSE && requests > seconds;
            if (!first)
                continue;
            h.cookie = 1000 + (uint32_t)requests++;
            udt_hs_encode(buf, &h, h.id);
            udt_mux_input(p.m, &p.addr, buf, 64, p.now);
        }
    }
    const udt_conn *c = udt__mux_find(p.m, s);
    h.req = UDT_HS_RESPONSE;
    h.id = 99;
    udt_hs_encode(buf, &h, s);
    udt_mux_input(p.m, &p.addr, buf, 64, p.now - 10000 + 4000);
    CHECK_INT(c->state, CONN_OPEN);
    CHECK(!c->rtt_known);
    udt_mux_free(p.m);
}

TEST(udt_handshake_many_rendezvous_between_the_same_ports_by_tag)
{
    enum { N = 20 };
    world w;
    udt_opts o;
    sim_link l = {.delay_us = 5000, .loss_ppm = 100000};
    pair p[N];
    world_init(&w, test_seed, &l, &l);
    udt_opts_init(&o);
    o.own_peer = true;
    for (uint32_t i = 0; i < N; i++) {
        o.tag = 1000 + i;
        p[i].s[0] = udt_mux_rendezvous(w.m[0], &w.addr[1], &o, 0);
        CHECK(p[i].s[0] > 0);
        CHECK_INT(udt_mux_rendezvous(w.m[0], &w.addr[1], &o, 0), UDT_E_INUSE);
    }
    for (uint32_t i = N; i-- > 0;) { /* the other end in another order, half of them waiting */
        o.tag = 1000 + i;
        p[i].s[1] = udt_mux_rendezvous(w.m[1], i & 1 ? NULL : &w.addr[0], &o, 0);
    }
    sim_net_kick(w.net, 0);
    sim_net_kick(w.net, 1);
    for (int i = 0; i < N; i++) {
        world_wait(&w, 0, UDT_EV_CONNECTED, p[i].s[0], 30000000);
        world_wait(&w, 1, UDT_EV_CONNECTED, p[i].s[1], 30000000);
    }
    for (int i = 0; i < N; i++) {
        flow f = {.from = i & 1, .seed = (uint64_t)i, .size = 5000};
        CHECK(world_move(&w, &p[i], &f, 1, sim_net_now(w.net) + 10000000));
    }
    world_fini(&w);
}
