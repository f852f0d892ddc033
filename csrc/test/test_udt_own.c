/* Own mode between two engines: numbers, seals, EACKs, losses. */
#include "test_udt_own.h"

#include "base/bytes.h"

#include <openssl/evp.h>

void own_begin(udt_conn *c, int end, enum own_kind kind, int epoch_shift, udt_time now)
{
    static const uint8_t key[2][AEAD_KEY_BYTES] = {{1, 2, 3}, {4, 5, 6}};
    own_cfg cfg = {.epoch_shift = epoch_shift};
    if (kind != OWN_PLAIN) {
        cfg.tx = key[end];
        cfg.rx = key[!end];
        cfg.features = OWN_F_SEALED | (kind == OWN_SEALED ? OWN_F_SEAL_DATA : 0);
    }
    CHECK(c);
    CHECK(udt__own_start(c, &cfg, now));
}

void own_pair(world *w, const pair *p, enum own_kind kind, int epoch_shift)
{
    for (int e = 0; e < 2; e++)
        own_begin(udt__mux_find(w->m[e], p->s[e]), e, kind, epoch_shift, sim_net_now(w->net));
}

static void options(udt_opts *o)
{
    udt_opts_init(o);
    o->own_peer = true;
    o->snd_buf_bytes = o->rcv_buf_bytes = 32 << 20;
}

static udt_stats stats(world *w, const pair *p, int e)
{
    udt_stats st;
    CHECK_INT(udt_mux_stats(w->m[e], p->s[e], &st), 0);
    return st;
}

static own_counters counters(world *w, const pair *p, int e)
{
    return udt__mux_find(w->m[e], p->s[e])->own.n;
}

TEST(udt_own_moves_bytes_in_every_kind)
{
    sim_link l = {.rate_bps = 100000000, .delay_us = 10000};
    for (int kind = OWN_PLAIN; kind <= OWN_SEALED; kind++) {
        world w;
        udt_opts o;
        world_init(&w, 11, &l, &l);
        options(&o);
        pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
        own_pair(&w, &p, (enum own_kind)kind, 0);
        flow f[2] = {{.from = 0, .seed = 1, .size = 10000000},
                     {.from = 1, .seed = 2, .size = 3000000}};
        udt_time start = sim_net_now(w.net);
        CHECK(world_move(&w, &p, f, 2, start + 4000000));
        udt_stats st = stats(&w, &p, 0);
        CHECK_INT(st.naks_recv, 0);
        CHECK(st.acks_recv > 0);
        CHECK_INT(counters(&w, &p, 0).bad_tag, 0);
        CHECK_INT(counters(&w, &p, 1).bad_tag, 0);
        if (getenv("TEST_VERBOSE"))
            printf("kind %d: %.3f s, %" PRId64 " pkts, %" PRId64 " again, %" PRId64
                   " acks, rtt %" PRId64 "\n",
                   kind, (double)(sim_net_now(w.net) - start) * 1e-6, st.pkts_sent, st.pkts_retrans,
                   st.acks_recv, st.rtt_us);
        world_fini(&w);
    }
}

/* Where control packets alone are sealed, whoever only sends data passes through many keys without
 * a sealed packet: its peer must be able to follow, or it hears of no end. */
TEST(udt_own_control_alone_sealed_is_followed_through_its_keys)
{
    sim_link l = {.rate_bps = 1000000000, .delay_us = 1000, .loss_ppm = 10000};
    world w;
    udt_opts o;
    world_init(&w, 12, &l, &l);
    options(&o);
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, OWN_CONTROL, 9);
    flow f = {.from = 0, .seed = 1, .size = 10000000};
    CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 4000000));
    const udt_conn *rx = udt__mux_find(w.m[1], p.s[1]);
    CHECK(rx->own.rx.epoch >= 10000000 / 1456 / 512 - 1);
    CHECK_INT(counters(&w, &p, 1).bad_tag, 0);
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 1000, sim_net_now(w.net)), 0);
    world_run(&w, sim_net_now(w.net) + 1000000);
    rx = udt__mux_find(w.m[1], p.s[1]);
    CHECK(!rx || rx->state == CONN_PEERCLOSED);
    world_fini(&w);
}

/* A path that delays each packet by 0..20 ms at will at an RTT of 1 ms loses nothing: what is sent
 * again is wasted. */
TEST(udt_own_learns_how_far_packets_overtake_each_other)
{
    sim_link l = {
        .rate_bps = 200000000, .delay_us = 500, .reorder_ppm = 300000, .reorder_us = 20000};
    l.queue_bytes = 4 << 20;
    world w;
    udt_opts o;
    world_init(&w, 3, &l, &l);
    options(&o);
    o.cc = "udt";
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, OWN_PLAIN, 0);
    flow f = {.from = 0, .seed = 1, .size = 50000000};
    udt_time start = sim_net_now(w.net);
    bool ok = world_move(&w, &p, &f, 1, start + 30000000);
    udt_stats st = stats(&w, &p, 0);
    own_counters n = counters(&w, &p, 0);
    if (getenv("TEST_VERBOSE")) {
        udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
        printf("jitter: %.3f s, %" PRId64 " pkts, %" PRId64 " again, %" PRId64
               " seen to be for nothing, %" PRId64 " timeouts, %" PRId64 " probes, rtt %" PRId64
               " var %" PRId64 " reo %" PRId64 " us %" PRId64 " pkts; dups %" PRId64
               " drops %" PRId64 "\n",
               (double)(sim_net_now(w.net) - start) * 1e-6, st.pkts_sent, st.pkts_retrans,
               n.spurious, st.timeouts, st.probes, st.rtt_us, st.rtt_var_us, c->own.reo_us,
               c->own.reo_pkts, stats(&w, &p, 1).pkts_dup, sim_net_counts(w.net, 0, 1).queue_drops);
    }
    CHECK(ok);
    CHECK(st.pkts_retrans < st.pkts_sent / 20);
    world_fini(&w);
}

/* What the network doubles was not sent again: it is no sign that losses were found too early, and
 * they are found as soon as on any path that keeps the order. */
TEST(udt_own_doubled_packets_do_not_delay_repairs)
{
    enum { RTT = 50000 };
    sim_link l = {.rate_bps = 200000000, .delay_us = RTT / 2, .loss_ppm = 10000};
    l.dup_ppm = 50000;
    l.dup_delay_us = 20000;
    world w;
    udt_opts o;
    world_init(&w, 4, &l, &l);
    options(&o);
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, OWN_PLAIN, 0);
    flow f = {.from = 0, .seed = 1, .size = 50000000};
    CHECK(!world_move(&w, &p, &f, 1, sim_net_now(w.net) + 1500000));
    const udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    CHECK(stats(&w, &p, 1).pkts_dup > 500);
    CHECK(c->own.reo_us < RTT / 4);
    CHECK(c->own.reo_pkts <= 4 * OWN_REORDER_PKTS);
    world_fini(&w);
}

/* The first data packet after the handshake is lost: how long until the reader has it? */
static double first_lost(int own, int64_t rtt_us, uint64_t size)
{
    sim_link l = {.rate_bps = 100000000, .delay_us = rtt_us / 2};
    world w;
    udt_opts o;
    world_init(&w, 5, &l, &l);
    options(&o);
    o.own_peer = own >= 0;
    pair p = world_connect(&w, own >= 0 ? PAIR_RDV_TAG : PAIR_CLIENT, &o, 5000000);
    if (own >= 0)
        own_pair(&w, &p, (enum own_kind)own, 0);
    world_run(&w, sim_net_now(w.net) + 2 * rtt_us);
    l.loss_mask = 1ull << sim_net_counts(w.net, 0, 1).sent;
    sim_net_link(w.net, 0, 1, &l);
    flow f = {.from = 0, .seed = 1, .size = size};
    udt_time start = sim_net_now(w.net);
    CHECK(world_move(&w, &p, &f, 1, start + 5000000));
    CHECK_INT(sim_net_counts(w.net, 0, 1).lost, 1);
    double took = (double)(sim_net_now(w.net) - start);
    world_fini(&w);
    return took;
}

TEST(udt_own_first_packet_lost_is_repaired_soon)
{
    for (int own = -1; own <= OWN_SEALED; own++)
        for (int64_t rtt = 1000; rtt <= 300000; rtt *= 7)
            for (uint64_t size = 1000; size <= 8000; size += 7000) {
                double took = first_lost(own, rtt, size);
                if (getenv("TEST_VERBOSE"))
                    printf("own %d, RTT %.1f ms, %" PRIu64 " bytes: %.2f ms\n", own,
                           (double)rtt * 1e-3, size, took * 1e-3);
                CHECK(took <= 25000 + (double)rtt + 1000);
            }
}

static void no_ack(udt_cc *cc, const udt_cc_ack *a)
{
    (void)cc;
    (void)a;
}
static void no_loss(udt_cc *cc, const udt_cc_loss *l)
{
    (void)cc;
    (void)l;
}
static void no_timeout(udt_cc *cc, int n, udt_time now)
{
    (void)cc;
    (void)n;
    (void)now;
}
static const udt_cc_ops heedless = {
    .name = "heedless", .on_ack = no_ack, .on_loss = no_loss, .on_timeout = no_timeout};

/* The packet as docs/protocol/udt-own-mode.md has it, read by libcrypto alone. Returns the bytes of
 * its body; -1: it is not genuine. */
static int read_sealed(const uint8_t *pkt, size_t len, uint32_t epoch, uint8_t *body)
{
    static const char next[] = "sector udt next secret", use[] = "sector udt packet key";
    uint8_t secret[32] = {1, 2, 3}, key[32], nonce[12] = {0}, tag[16];
    int n = 0, end = 0;
    for (uint32_t e = 0; e < epoch; e++) {
        hkdf_sha256(secret, 32, (const uint8_t *)next, sizeof next - 1, key, 32);
        memcpy(secret, key, 32);
    }
    hkdf_sha256(secret, 32, (const uint8_t *)use, sizeof use - 1, key, 32);
    memcpy(nonce + 8, pkt + 8, 4); /* the low half of the number; the high half is zero here */
    memcpy(tag, pkt + len - 16, 16);
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    CHECK(EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce));
    CHECK(EVP_DecryptUpdate(c, NULL, &n, pkt, UDT_HDR_BYTES));
    CHECK(EVP_DecryptUpdate(c, body, &n, pkt + UDT_HDR_BYTES, (int)len - UDT_HDR_BYTES - 16));
    CHECK(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, 16, tag));
    bool genuine = EVP_DecryptFinal_ex(c, body + n, &end) == 1;
    EVP_CIPHER_CTX_free(c);
    return genuine ? n : -1;
}

TEST(udt_own_packets_are_sealed_as_the_protocol_says)
{
    enum { SHIFT = 3, PACKETS = 40, LEN = 700 };
    sim_link l = {.rate_bps = 100000000, .delay_us = 5000};
    world w;
    udt_opts o;
    udt_addr to;
    size_t seg;
    uint8_t said[LEN], pkt[1500], body[1500];
    world_init(&w, 5, &l, &l);
    options(&o);
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, OWN_SEALED, SHIFT);
    uint32_t top = 0;
    for (int i = 0; i < PACKETS; i++) {
        udt_time now = sim_net_now(w.net);
        for (int k = 0; k < LEN; k++)
            said[k] = (uint8_t)(i * 7 + k);
        CHECK_INT(udt_mux_send(w.m[0], p.s[0], said, LEN, now), LEN);
        int seen = 0;
        for (size_t len; (len = udt_mux_output(w.m[0], pkt, sizeof pkt, 1, &to, &seg, now)) > 0;) {
            uint32_t pn = be32_get(pkt + 8);
            CHECK(pn > top);
            top = pn;
            int n = read_sealed(pkt, len, pn >> SHIFT, body);
            CHECK(n >= 0);
            if (!(pkt[0] & 0x80)) { /* data */
                CHECK_INT(n, LEN);
                CHECK_MEM(body, said, LEN);
                seen++;
            }
            pkt[20] ^= 1;
            CHECK_INT(read_sealed(pkt, len, pn >> SHIFT, body), -1);
            pkt[20] ^= 1;
            CHECK_INT(read_sealed(pkt, len, (pn >> SHIFT) + 1, body), -1);
            udt_mux_input(w.m[1], &w.addr[0], pkt, len, now);
        }
        CHECK_INT(seen, 1);
        world_run(&w, now + 20000); /* acknowledged before the next */
    }
    CHECK(top >= PACKETS && top >> SHIFT >= 4);
    world_fini(&w);
}

/* What the reader at end 1 finds when end 0 has written `size` bytes and closes `after` so long:
 * bytes read, and whether it is told that there was more. */
static uint64_t read_to_end(int own, uint64_t size, udt_time after, bool *cut)
{
    static uint8_t data[300000];
    sim_link l = {.rate_bps = 10000000, .delay_us = 10000, .loss_ppm = size > 1000 ? 20000 : 0};
    world w;
    udt_opts o;
    world_init(&w, 13, &l, &l);
    options(&o);
    o.own_peer = own >= 0;
    pair p = world_connect(&w, own >= 0 ? PAIR_RDV_TAG : PAIR_CLIENT, &o, 5000000);
    if (own >= 0)
        own_pair(&w, &p, (enum own_kind)own, 0);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, size, sim_net_now(w.net)), size);
    sim_net_kick(w.net, 0);
    world_run(&w, sim_net_now(w.net) + after);
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 0, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 0);
    world_wait(&w, 1, UDT_EV_PEER_CLOSED, p.s[1], sim_net_now(w.net) + 5000000);
    uint64_t had = 0;
    ssize_t n;
    while ((n = udt_mux_recv(w.m[1], p.s[1], data, sizeof data, sim_net_now(w.net))) > 0)
        had += (uint64_t)n;
    CHECK_INT(n, UDT_E_PEERCLOSED);
    *cut = udt_mux_was_cut(w.m[1], p.s[1]);
    world_fini(&w);
    return had;
}

TEST(udt_own_an_end_that_is_none_is_told)
{
    bool cut;
    for (int kind = OWN_PLAIN; kind <= OWN_SEALED; kind++) {
        CHECK(read_to_end(kind, 300000, 60000, &cut) < 300000 && cut);
        CHECK(read_to_end(kind, 300000, 5000000, &cut) == 300000 && !cut);
        /* all is there, and the sender has not heard of it */
        CHECK(read_to_end(kind, 700, 15000, &cut) == 700 && !cut);
    }
    CHECK(read_to_end(-1, 300000, 60000, &cut) < 300000 && !cut); /* UDT has no word for it */
}

/* End 0 writes, end 1 reads that, or not, and closes, and its acknowledgement is lost: what end 0
 * is told of what it wrote. */
static int32_t word_of_the_last(int own, bool reads, bool lingers)
{
    static uint8_t data[700];
    sim_link l = {.rate_bps = 10000000, .delay_us = 10000}, broken = l;
    world w;
    udt_opts o;
    world_init(&w, 13, &l, &l);
    options(&o);
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, (enum own_kind)own, 0);
    broken.loss_ppm = 1000000;
    sim_net_link(w.net, 1, 0, &broken);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, sizeof data, sim_net_now(w.net)), sizeof data);
    if (lingers)
        CHECK_INT(udt_mux_close(w.m[0], p.s[0], 5000, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 0);
    udt_time now = sim_net_now(w.net);
    world_wait(&w, 1, UDT_EV_READABLE, p.s[1], now + 5000000);
    now = sim_net_now(w.net);
    if (reads)
        CHECK_INT(udt_mux_recv(w.m[1], p.s[1], data, sizeof data, now), sizeof data);
    world_run(&w, now + 5000);
    sim_net_link(w.net, 1, 0, &l);
    CHECK_INT(udt_mux_close(w.m[1], p.s[1], 0, now + 5000), 0);
    sim_net_kick(w.net, 1);
    if (!lingers) {
        world_wait(&w, 0, UDT_EV_PEER_CLOSED, p.s[0], now + 5000000);
        CHECK_INT(udt_mux_close(w.m[0], p.s[0], 5000, sim_net_now(w.net)), 0);
    }
    struct udt_ev ev = world_wait(&w, 0, UDT_EV_CLOSED, p.s[0], now + 10000000);
    world_fini(&w);
    return ev.err;
}

TEST(udt_own_a_peer_that_read_all_and_closed_says_so)
{
    for (int kind = OWN_PLAIN; kind <= OWN_SEALED; kind++)
        for (int lingers = 0; lingers < 2; lingers++) {
            CHECK_INT(word_of_the_last(kind, true, lingers), 0);
            CHECK_INT(word_of_the_last(kind, false, lingers), UDT_E_PEERCLOSED);
        }
}

/* A short queue and, for a round trip, a sender ten times as fast as the link with a huge window:
 * most of that is lost. In the ten round trips after it the goodput is more than half of the rate.
 */
static void mass_loss(int own, const char *cc)
{
    enum { RTT = 50000 };
    sim_link l = {.rate_bps = 200000000, .delay_us = RTT / 2, .queue_bytes = 131072};
    world w;
    udt_opts o;
    world_init(&w, 6, &l, &l);
    options(&o);
    o.own_peer = own >= 0;
    o.snd_buf_bytes = o.rcv_buf_bytes = 128 << 20;
    o.fc_pkts = 100000;
    o.cc = cc;
    pair p = world_connect(&w, own >= 0 ? PAIR_RDV_TAG : PAIR_CLIENT, &o, 5000000);
    if (own >= 0)
        own_pair(&w, &p, (enum own_kind)own, 0);
    flow f = {.from = 0, .seed = 1, .size = 400000000};
    CHECK(!world_move(&w, &p, &f, 1, sim_net_now(w.net) + 2000000)); /* at speed */
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    udt_cc sane = c->cc;
    int64_t had = sim_net_counts(w.net, 0, 1).queue_drops;
    c->cc.ops = &heedless;
    c->cc.cwnd_pkts = 20000;
    c->cc.period_ns = 5800;
    CHECK(!world_move(&w, &p, &f, 1, sim_net_now(w.net) + RTT));
    c->cc = sane;
    CHECK(!world_move(&w, &p, &f, 1, sim_net_now(w.net) + RTT / 2));
    int64_t drops = sim_net_counts(w.net, 0, 1).queue_drops - had;
    udt_time from = sim_net_now(w.net);
    uint64_t got = f.got;
    CHECK(!world_move(&w, &p, &f, 1, from + 10 * RTT));
    double goodput = (double)(f.got - got) * 8e6 / (double)(sim_net_now(w.net) - from);
    if (getenv("TEST_VERBOSE"))
        printf("own %d %s: %" PRId64 " packets lost at once, then %.1f Mb/s, %" PRId64 " again\n",
               own, cc ? cc : "-", drops, goodput * 1e-6, stats(&w, &p, 0).pkts_retrans);
    CHECK(drops > 5000);
    CHECK(goodput > 100e6);
    world_fini(&w);
}

TEST(udt_own_mass_loss_is_survived)
{
    mass_loss(OWN_PLAIN, NULL);
    mass_loss(OWN_SEALED, "udt");
    mass_loss(-1, "udt");
}
