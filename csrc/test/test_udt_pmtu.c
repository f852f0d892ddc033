/* Paths that carry less than both ends believe: full packets vanish without a word. Transfers go on
 * with smaller ones, whatever was under way arrives as it was sent, and sizes rise again. */
#include "test_udt_side.h"

#include "base/bytes.h"
#include "udt/conn.h"

#define MS_(n) ((udt_time)(n) * 1000)
#define SEC_(n) ((udt_time)(n) * 1000000)

/* A port behind a hop that takes datagrams of `most` bytes; fragments pass unless filtered. */
typedef struct hop {
    udt_mux *m;
    size_t most;
    bool no_fragments, tells;
    int64_t dropped, cut, passed;
    int64_t acks, lost_acks;
    size_t largest; /* datagram that went through */
} hop;

static void hop_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    udt_mux_input(((hop *)ep)->m, from, pkt, len, now);
}
static void hop_burst_end(void *ep, udt_time now)
{
    udt_mux_burst_end(((hop *)ep)->m, now);
}
static size_t hop_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                         size_t *seg, udt_time now)
{
    hop *h = ep;
    size_t n;
    while ((n = udt_mux_output(h->m, buf, cap, max_segs, to, seg, now)) > 0) {
        bool fragments = udt_mux_fragments(h->m);
        CHECK(!fragments || n == *seg);
        bool ack = be32_get(buf) >> 16 == (0x8000 | OWN_EACK);
        h->acks += ack;
        h->lost_acks += ack && *seg > h->most && !fragments;
        if (*seg <= h->most) {
            h->passed++;
            h->largest = *seg > h->largest ? *seg : h->largest;
            return n;
        }
        if (fragments && !h->no_fragments) {
            h->cut++;
            return n;
        }
        h->dropped++;
        if (h->tells)
            udt_mux_too_big(h->m, to, *seg, now);
    }
    return 0;
}
static udt_time hop_deadline(const void *ep)
{
    return udt_mux_deadline(((const hop *)ep)->m);
}
static void hop_tick(void *ep, udt_time now)
{
    udt_mux_tick(((hop *)ep)->m, now);
}
static const sim_ep_ops hop_ops = {hop_input, hop_burst_end, hop_output, hop_deadline, hop_tick};

typedef struct bed {
    world w;
    hop h[2];
} bed;

static void bed_init(bed *b, uint64_t seed, size_t mtu, uint32_t loss_ppm, uint16_t mss)
{
    const sim_link l = {
        .rate_bps = 100000000, .delay_us = 10000, .queue_bytes = 500000, .loss_ppm = loss_ppm};
    udt_mux_config cfg = {.mss = mss};
    memset(b, 0, sizeof *b);
    world_init_cfg(&b->w, seed, &l, &l, &cfg);
    for (int i = 0; i < 2; i++) {
        b->h[i] = (hop){.m = b->w.m[i], .most = mtu - 28};
        sim_net_set(b->w.net, i, &hop_ops, &b->h[i]);
    }
}

enum { BY_KEY = 100 };
static pair meet(bed *b, int how, udt_opts *o, udt_time limit)
{
    static uint8_t key[UDT_KEY_BYTES] = {1};
    pair p;
    if (how != BY_KEY)
        return world_connect(&b->w, how, o, limit);
    key[1]++;
    udt_time now = sim_net_now(b->w.net);
    p.s[1] = udt_mux_open_keyed(b->w.m[1], NULL, o, key, false, now);
    p.s[0] = udt_mux_open_keyed(b->w.m[0], &b->w.addr[1], o, key, true, now);
    CHECK(p.s[0] > 0 && p.s[1] > 0);
    sim_net_kick(b->w.net, 0);
    for (int i = 1; i >= 0; i--)
        (void)world_wait(&b->w, i, UDT_EV_CONNECTED, p.s[i], now + SEC_(5));
    return p;
}

static double transfer(bed *b, int how, udt_opts *o, bool messages, uint64_t size)
{
    udt_time start = sim_net_now(b->w.net), limit = start + SEC_(60);
    pair p = meet(b, how, o, limit);
    flow f[2] = {{.from = 0, .seed = 3, .size = size}, {.from = 1, .seed = 4, .size = size}};
    for (int i = 0; i < 2 && messages; i++) {
        f[i].msg_size = 5000;
        f[i].in_order = true;
    }
    if (!world_move(&b->w, &p, f, 2, limit))
        test_fail(__FILE__, __LINE__, "stuck: %" PRIu64 " and %" PRIu64 " of %" PRIu64, f[0].got,
                  f[1].got, size);
    double took = (double)(sim_net_now(b->w.net) - start) / 1e6;
    for (int i = 0; i < 2; i++) {
        udt_conn *c = udt__mux_find(b->w.m[i], p.s[i]);
        CHECK(c && c->pmtu.now <= b->h[i].most + UDT_IP_OVERHEAD);
        CHECK_INT(udt_mux_close(b->w.m[i], p.s[i], 1000, sim_net_now(b->w.net)), 0);
        flow_fini(&f[i]);
    }
    world_run(&b->w, sim_net_now(b->w.net) + SEC_(2));
    return took;
}

/* 2 MB each way at 100 Mb/s and 20 ms take 0.2 s; finding out may cost a second. */
static void black_hole(int how, bool own_peer, bool offer, bool messages, uint32_t loss, size_t mtu)
{
    bed b;
    udt_opts o;
    udt_opts_init(&o);
    o.type = messages ? UDT_DGRAM : UDT_STREAM;
    o.own_peer = own_peer;
    o.offer = offer;
    o.tag = how == PAIR_RDV_TAG ? 5 : 0;
    bed_init(&b, test_seed, mtu, loss, 0);
    double took = transfer(&b, how, &o, messages, 2000000);
    CHECK(b.h[0].dropped > 0 || loss > 0);
    if (b.h[0].largest <= mtu - 28 - 80) /* close to what the path carries */
        test_fail(__FILE__, __LINE__, "how %d own %d offer %d messages %d mtu %zu: largest %zu",
                  how, own_peer, offer, messages, mtu, b.h[0].largest);
    double bound = (loss ? 30.0 : 8.0);
    if (took > bound)
        test_fail(__FILE__, __LINE__, "how %d own %d offer %d messages %d: %.2f s", how, own_peer,
                  offer, messages, took);
    world_fini(&b.w);
}

TEST(udt_pmtu_black_hole)
{
    static const size_t mtus[] = {1400, 1280, 1492, 1024};
    for (size_t i = 0; i < sizeof mtus / sizeof *mtus; i++) {
        for (int messages = 0; messages < 2; messages++) {
            black_hole(BY_KEY, true, false, messages, 0, mtus[i]);
            black_hole(PAIR_CLIENT, false, true, messages, 0, mtus[i]);
            black_hole(PAIR_CLIENT, false, false, messages, 0, mtus[i]); /* as towards libudt */
        }
        black_hole(PAIR_RDV_TAG, true, false, false, 0, mtus[i]);
    }
}

TEST(udt_pmtu_black_hole_and_loss)
{
    black_hole(BY_KEY, true, false, false, 20000, 1400);
    black_hole(PAIR_CLIENT, false, false, false, 20000, 1400);
    black_hole(PAIR_CLIENT, false, true, true, 20000, 1400);
}

/* A pair over 1500 bytes: by key, by an offer, as any client. */
static pair met(bed *b, udt_opts *o, int how)
{
    udt_opts_init(o);
    o->offer = how == 1;
    o->own_peer = how == 0;
    bed_init(b, test_seed + (uint64_t)how, 1500, 0, 0);
    return meet(b, how == 0 ? BY_KEY : PAIR_CLIENT, o, SEC_(5));
}

/* From now on nothing gets on: the sender is told in the time in which silence is an end. */
static void check_ends(bed *b, const pair *p, int how)
{
    udt_time then = sim_net_now(b->w.net);
    struct udt_ev ev = world_wait(&b->w, 0, UDT_EV_FAILED, p->s[0], then + SEC_(30));
    double took = (double)(sim_net_now(b->w.net) - then) / 1e6;
    printf("# how %d: ended after %.1f s\n", how, took);
    CHECK_INT(ev.err, UDT_E_BROKEN);
    CHECK(took > 9 && took < 20);
}

/* The path becomes smaller in the middle: thousands of packets have their numbers already. */
TEST(udt_pmtu_falls_under_way)
{
    for (int how = 0; how < 3; how++) {
        bed b;
        udt_opts o;
        pair p = met(&b, &o, how);
        flow f = {.from = 0, .seed = 3, .size = 12000000};
        CHECK(!world_move(&b.w, &p, &f, 1, sim_net_now(b.w.net) + MS_(400)));
        CHECK(f.got > 100000);
        b.h[0].most = b.h[1].most = 1372;
        b.h[0].tells = how == 2;
        CHECK(world_move(&b.w, &p, &f, 1, sim_net_now(b.w.net) + SEC_(20)));
        CHECK(b.h[0].cut > 0);
        udt_mux_counters n;
        udt_mux_counters_get(b.w.m[0], &n);
        CHECK(n.mtu_falls >= 1);
        flow_fini(&f);
        world_fini(&b.w);
    }
}

/* It becomes smaller in the middle, and fragments are dropped too: what has its number already
 * never arrives, though the peer answers everything that is small. That is an end, in the time in
 * which silence is one, and who connects again is through. */
TEST(udt_pmtu_falls_under_way_without_fragments)
{
    for (int how = 0; how < 3; how++) {
        bed b;
        udt_opts o;
        pair p = met(&b, &o, how);
        flow f = {.from = 0, .seed = 3, .size = 12000000};
        CHECK(!world_move(&b.w, &p, &f, 1, sim_net_now(b.w.net) + MS_(400)));
        CHECK(f.got > 100000);
        b.h[0].most = b.h[1].most = 1172;
        b.h[0].no_fragments = b.h[1].no_fragments = true;
        check_ends(&b, &p, how);
        CHECK_INT(udt_mux_close(b.w.m[0], p.s[0], 0, sim_net_now(b.w.net)), 0);
        world_run(&b.w, sim_net_now(b.w.net) + SEC_(1));
        CHECK_INT(udt_mux_close(b.w.m[1], p.s[1], 0, sim_net_now(b.w.net)), 0);
        world_run(&b.w, sim_net_now(b.w.net) + SEC_(1));
        flow_fini(&f);
        udt_opts_init(&o);
        o.own_peer = true;
        CHECK(transfer(&b, BY_KEY, &o, false, 1000000) < 5);
        world_fini(&b.w);
    }
}

/* A larger path is used when both ends can: from 1500 upwards, only after it was tried. */
TEST(udt_pmtu_rises)
{
    static const size_t mtus[] = {9000, 4352, 1500};
    for (size_t i = 0; i < 3; i++) {
        bed b;
        udt_opts o;
        udt_opts_init(&o);
        bed_init(&b, test_seed, mtus[i], 0, 9000);
        o.mss = 9000;
        o.own_peer = true;
        (void)transfer(&b, BY_KEY, &o, false, 4000000);
        CHECK_INT(b.h[0].largest, mtus[i] - 28);
        CHECK(b.h[0].dropped <= 2 * 4 * 4); /* probes alone */
        CHECK_INT(b.h[0].cut, 0);
        world_fini(&b.w);
    }
}

/* The size that was found holds for the next connection of that host, and is tried again later. */
TEST(udt_pmtu_is_remembered)
{
    bed b;
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = true;
    bed_init(&b, test_seed, 1400, 0, 0);
    (void)transfer(&b, BY_KEY, &o, false, 1000000);
    int64_t dropped = b.h[0].dropped, cut = b.h[0].cut;
    CHECK(dropped > 0);
    (void)transfer(&b, BY_KEY, &o, false, 1000000);
    CHECK_INT(b.h[0].dropped, dropped);
    CHECK_INT(b.h[0].cut, cut);
    b.h[0].most = b.h[1].most = 1472;
    pair p = meet(&b, BY_KEY, &o, 0);
    world_run(&b.w, sim_net_now(b.w.net) + PMTU_RAISE_US + SEC_(10));
    udt_conn *c = udt__mux_find(b.w.m[0], p.s[0]);
    CHECK(c != NULL);
    CHECK_INT(c->pmtu.now, 1500);
    world_fini(&b.w);
}

/* Random loss is no reason: the size stays. Nor is silence. */
TEST(udt_pmtu_loss_is_no_reason)
{
    int falls = 0;
    for (int i = 0; i < 10; i++) {
        bed b;
        udt_opts o;
        udt_opts_init(&o);
        o.own_peer = i & 1;
        bed_init(&b, test_seed + (uint64_t)i, 1500, 100000, 0);
        pair p = meet(&b, i & 1 ? BY_KEY : PAIR_CLIENT, &o, SEC_(5));
        flow f = {.from = 0, .seed = 3, .size = 1000000};
        CHECK(world_move(&b.w, &p, &f, 1, sim_net_now(b.w.net) + SEC_(60)));
        udt_mux_counters n;
        udt_mux_counters_get(b.w.m[0], &n);
        falls += n.mtu_falls > 0;
        CHECK_INT(b.h[0].dropped + b.h[0].cut, 0);
        flow_fini(&f);
        world_fini(&b.w);
    }
    CHECK(falls <= 1);
}

/* What a router says is believed, but not without end: anybody can say it. */
TEST(udt_pmtu_told)
{
    bed b;
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = true;
    bed_init(&b, test_seed, 1500, 0, 0);
    pair p = meet(&b, BY_KEY, &o, 0);
    world_run(&b.w, sim_net_now(b.w.net) + SEC_(1));
    udt_conn *c = udt__mux_find(b.w.m[0], p.s[0]);
    udt_mux_path_mtu(b.w.m[0], &b.w.addr[1], 1450, sim_net_now(b.w.net));
    CHECK_INT(c->pmtu.now, 1450);
    udt_mux_path_mtu(b.w.m[0], &b.w.addr[1], 68, sim_net_now(b.w.net));
    CHECK_INT(c->pmtu.now, 1280);
    udt_mux_path_mtu(b.w.m[0], &b.w.addr[1], 1400, sim_net_now(b.w.net)); /* no rise */
    CHECK_INT(c->pmtu.now, 1280);
    world_fini(&b.w);
}

/* Each is looked up among all connections: a flood of them, which anybody can forge, costs little,
 * and one that is true is heeded right after. */
TEST(udt_pmtu_told_too_often)
{
    enum { CONNS = 2000, FLOOD = 5000, CALM = 64 };
    bed b;
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = true;
    bed_init(&b, test_seed, 1500, 0, 0);
    pair p = meet(&b, BY_KEY, &o, 0);
    world_run(&b.w, sim_net_now(b.w.net) + SEC_(1));
    udt_time now = sim_net_now(b.w.net);
    for (unsigned i = 0; i < CONNS; i++) {
        udt_addr far = test_addr((uint8_t)(100 + i % 100), (uint16_t)(1000 + i));
        CHECK(udt_mux_connect(b.w.m[0], &far, &o, now) > 0);
    }
    udt_addr other = test_addr(99, 9);
    int64_t ns = cpu_ns();
    for (int i = 0; i < CALM; i++)
        udt_mux_path_mtu(b.w.m[0], &other, 1300, now += MS_(20));
    int64_t each = (cpu_ns() - ns) / CALM;
    now += MS_(20);
    ns = cpu_ns();
    for (int i = 0; i < FLOOD; i++)
        udt_mux_path_mtu(b.w.m[0], &other, 1300, now);
    ns = cpu_ns() - ns;
    printf("# one %.1f us, %d at once %.1f us\n", (double)each / 1e3, FLOOD, (double)ns / 1e3);
    CHECK(ns < FLOOD * each / 10);
    udt_mux_path_mtu(b.w.m[0], &b.w.addr[1], 1450, now + MS_(10));
    CHECK_INT(udt__mux_find(b.w.m[0], p.s[0])->pmtu.now, 1450);
    world_fini(&b.w);
}

/* Packets that were not sent are cut anew, with their bytes and their message marks. */
TEST(udt_sndbuf_recut)
{
    udt_mem mem;
    udt_sndbuf s;
    static uint8_t data[200000];
    fill(data, 7, 0, sizeof data);
    udt_mem_init(&mem, 64 << 20);
    CHECK(udt_sndbuf_init(&s, &mem, 1456, 1 << 20));
    CHECK(udt_sndbuf_write_msg(&s, data, 5000, true, UDT_NEVER));
    CHECK(udt_sndbuf_write_msg(&s, data + 5000, 195000, false, UDT_NEVER));
    int64_t before = s.tail;
    s.fill = 500;
    CHECK(udt_sndbuf_recut(&s, 2));
    CHECK(s.tail > 2 * before);
    size_t at = 0;
    uint32_t msg = 0;
    for (int64_t i = 0; i < s.tail; i++) {
        const snd_slot *k = udt_sndbuf_slot(&s, i);
        CHECK(k->len > 0 && (i < 2 ? k->len == 1456 : k->len <= 500));
        CHECK(memcmp(k->data, data + at, k->len) == 0);
        CHECK_INT((k->word1 & UDT_MSG_FIRST) != 0, (k->word1 & UDT_MSG_NO) != msg);
        msg = k->word1 & UDT_MSG_NO;
        at += k->len;
        CHECK_INT((k->word1 & UDT_MSG_LAST) != 0, at == 5000 || at == 200000);
    }
    CHECK_INT(at, 200000);
    udt_sndbuf_acked(&s, s.tail);
    CHECK_INT(s.bytes, 0);
    udt_sndbuf_fini(&s);
    CHECK_INT(mem.used, 0);
    udt_mem_fini(&mem);
}

/* The way back carries 576 bytes, and who only receives never finds that out: what he says of many
 * holes gets through all the same. */
TEST(udt_pmtu_acknowledgements_pass_a_narrow_way_back)
{
    for (int plain = 0; plain < 2; plain++) {
        bed b;
        udt_opts o;
        udt_opts_init(&o);
        o.plain_data = plain;
        bed_init(&b, test_seed, 1500, 150000, 0);
        b.h[1].most = 576 - 28;
        udt_time start = sim_net_now(b.w.net), limit = start + SEC_(60);
        pair p = meet(&b, BY_KEY, &o, limit);
        flow f = {.from = 0, .seed = 3, .size = 20000000};
        bool moved = world_move(&b.w, &p, &f, 1, limit);
        double took = (double)(sim_net_now(b.w.net) - start) / 1e6;
        printf("%" PRId64 " of %" PRId64 " acknowledgements too large, %.2f s\n", b.h[1].lost_acks,
               b.h[1].acks, took);
        CHECK(moved);
        CHECK(b.h[1].acks > 100);
        CHECK_INT(b.h[1].lost_acks, 0);
        flow_fini(&f);
        world_fini(&b.w);
    }
}

/* A cap is bytes of IP packets a second: smaller packets are more of them. */
static void capped(size_t mtu, uint16_t mss, const char *cc, bool shared)
{
    bed b;
    udt_opts o;
    udt_stats s;
    udt_opts_init(&o);
    o.own_peer = true;
    o.mss = mss;
    o.cc = cc;
    o.tag = 5;
    bed_init(&b, test_seed, mtu, 0, mss);
    if (shared)
        CHECK_INT(udt_mux_link_cap(b.w.m[0], NULL, 0, 1000000), 0);
    else
        o.max_bw_Bps = 1000000;
    pair p = meet(&b, BY_KEY, &o, SEC_(5));
    flow f[2] = {{.from = 0, .seed = 3, .size = 1000000}, {.from = 0, .seed = 4, .size = 3000000}};
    CHECK(world_move(&b.w, &p, f, 1, SEC_(60))); /* what the path carries is known then */
    udt_time start = sim_net_now(b.w.net);
    CHECK(world_move(&b.w, &p, f + 1, 1, start + SEC_(60)));
    double took = (double)(sim_net_now(b.w.net) - start) / 1e6;
    udt_conn *c = udt__mux_find(b.w.m[0], p.s[0]);
    double want = 3.0 * (c->snd.fill + c->mss - c->payload) / c->snd.fill;
    printf("mss %d, mtu %zu, %s%s: %.2f of %.2f s\n", mss, mtu, cc, shared ? ", shared" : "", took,
           want);
    CHECK(took > 0.97 * want && took < 1.1 * want);
    CHECK_INT(udt_mux_stats(b.w.m[0], p.s[0], &s), 0);
    CHECK(shared || s.pacing_Bps < 1020000);
    CHECK(shared || s.pacing_Bps > 1000000 * 0.98 * 3.0 / want);
    flow_fini(&f[0]);
    flow_fini(&f[1]);
    world_fini(&b.w);
}

TEST(udt_pmtu_caps)
{
    static const char *const laws[] = {"bbr", "udt", "cubic", "fixed"};
    for (int i = 0; i < 4; i++) {
        capped(1500, 9000, laws[i], false);
        capped(1024, 1500, laws[i], false);
    }
    capped(1500, 9000, "bbr", true);
    capped(1024, 1500, "bbr", true);
}

/* From now on something on the way takes away all data and lets pass what is small, whatever size
 * is tried: the peer answers, and would be waited for for ever. */
TEST(udt_pmtu_data_vanishes_under_way)
{
    for (int how = 0; how < 2; how++) {
        bed b;
        udt_opts o;
        pair p = met(&b, &o, how);
        flow f = {.from = 0, .seed = 3, .size = 60000000};
        CHECK(!world_move(&b.w, &p, &f, 1, sim_net_now(b.w.net) + MS_(2500)));
        CHECK(f.got > 10000000);
        b.h[0].most = 272;
        b.h[0].no_fragments = true;
        check_ends(&b, &p, how);
        flow_fini(&f);
        world_fini(&b.w);
    }
}

/* A reader that rests looks no different, but says that it has no room: it is waited for. */
TEST(udt_pmtu_a_reader_rests)
{
    static uint8_t buf[65536];
    for (int how = 0; how < 4; how++) {
        bed b;
        udt_opts o;
        udt_opts_init(&o);
        o.type = how & 1 ? UDT_DGRAM : UDT_STREAM;
        o.own_peer = true;
        o.rcv_buf_bytes = how & 2 ? 100000 : 0;
        bed_init(&b, test_seed + (uint64_t)how, 1500, 20000, 0);
        pair p = meet(&b, BY_KEY, &o, SEC_(5));
        udt_time now = sim_net_now(b.w.net), end = now + SEC_(60);
        int64_t sent = 0, got = 0;
        ssize_t n;
        for (; now < end; now = sim_net_now(b.w.net)) {
            if (how & 1)
                while (udt_mux_sendmsg(b.w.m[0], p.s[0], buf, 5000, -1, true, now) == 0)
                    sent += 5000;
            else
                while ((n = udt_mux_send(b.w.m[0], p.s[0], buf, sizeof buf, now)) > 0)
                    sent += n;
            sim_net_kick(b.w.net, 0);
            world_run(&b.w, now + MS_(100));
        }
        udt_conn *c = udt__mux_find(b.w.m[0], p.s[0]);
        CHECK(c && c->state == CONN_OPEN && c->next < c->snd.tail);
        for (end = now + SEC_(60); now < end && got < sent; now = sim_net_now(b.w.net)) {
            while ((n = how & 1 ? udt_mux_recvmsg(b.w.m[1], p.s[1], buf, sizeof buf, now)
                                : udt_mux_recv(b.w.m[1], p.s[1], buf, sizeof buf, now)) > 0)
                got += n;
            sim_net_kick(b.w.net, 1);
            world_run(&b.w, now + MS_(5));
        }
        CHECK_INT(got, sent);
        world_fini(&b.w);
    }
}
