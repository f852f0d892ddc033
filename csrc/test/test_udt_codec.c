/* Packets, handshakes, cookies and NAK coding; the vectors of spec/udt.md section 8. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/handshake.h"
#include "udt/packet.h"
#include "udt/rcvloss.h"
#include "udt/sndloss.h"

/* Words of a datagram as in the spec. */
static size_t words(uint8_t *buf, const uint32_t *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        be32_put(buf + 4 * i, w[i]);
    return 4 * n;
}

static const uint32_t hs_vectors[4][16] = {
    {0x80000000, 0, 0, 0, 4, 1, 0x520b5364, 0x5dc, 0x2000, 1, 0x3d4e13, 0, 0x0100007f, 0, 0, 0},
    {0x80000000, 0, 0, 0x3d4e13, 4, 1, 0x520b5364, 0x5dc, 0x2000, 1, 0x3d4e13, 0x654fbc8b,
     0x0100007f, 0, 0, 0},
    {0x80000000, 0, 0, 0, 4, 1, 0x520b5364, 0x5dc, 0x2000, 0xffffffff, 0x3d4e13, 0x654fbc8b,
     0x0100007f, 0, 0, 0},
    {0x80000000, 0, 0, 0x3d4e13, 4, 1, 0x520b5364, 0x5dc, 0x2000, 0xffffffff, 0x3d4e12, 0x654fbc8b,
     0x0100007f, 0, 0, 0},
};

TEST(udt_codec_handshake_vectors_round_trip)
{
    for (int i = 0; i < 4; i++) {
        uint8_t in[64], out[64];
        udt_pkt p;
        udt_hs h;
        words(in, hs_vectors[i], 16);
        CHECK(udt_pkt_decode(&p, in, sizeof in));
        CHECK(p.control);
        CHECK_INT(p.type, UDT_CTRL_HANDSHAKE);
        CHECK(udt_hs_decode(&h, p.body, p.len));
        CHECK_INT(h.version, 4);
        CHECK_INT(h.type, UDT_STREAM);
        CHECK_INT(h.isn, 0x520b5364);
        CHECK_INT(h.window, 8192);
        CHECK_INT(h.req, i < 2 ? 1 : -1);
        udt_hs_encode(out, &h, p.dst);
        CHECK_MEM(in, out, 64);
        for (size_t len = 0; len <= 60; len++)
            CHECK(len == UDT_HS_BYTES || !udt_hs_decode(&h, p.body, len));
    }
    udt_addr a = {.family = 4, .ip = {127, 0, 0, 1}};
    udt_hs h = {0};
    udt_hs_set_ip(&h, &a);
    CHECK_INT(h.ip[0], 0x0100007f);
    udt_addr six = {.family = 6, .ip = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
    udt_hs_set_ip(&h, &six);
    CHECK_INT(h.ip[0], 0x04030201);
    CHECK_INT(h.ip[3], 0x100f0e0d);
}

TEST(udt_codec_control_and_data_vectors_round_trip)
{
    static const uint32_t ack[10] = {0x80020000, 1,      0,      0x3d4e13, 0x520b5368,
                                     0x186a0,    0xc350, 0x1ffb, 1,        0x3e8};
    static const uint32_t ack2[5] = {0x80060000, 2, 0, 0x3d4e12, 0};
    static const uint32_t keep[5] = {0x80010000, 0, 0, 0x3d4e13, 0};
    uint8_t in[64], out[64];
    udt_pkt p;
    words(in, ack, 10);
    CHECK(udt_pkt_decode(&p, in, 40));
    CHECK_INT(p.type, UDT_CTRL_ACK);
    CHECK_INT(p.word1, 1);
    CHECK_INT(p.len, 24);
    CHECK_INT(udt_pkt_put_ctrl(out, p.type, p.word1, p.dst, ack + 4, 6), 40);
    CHECK_MEM(in, out, 40);
    words(in, ack2, 5);
    CHECK_INT(udt_pkt_put_ctrl(out, UDT_CTRL_ACK2, 2, 0x3d4e12, NULL, 0), 20);
    CHECK_MEM(in, out, 20);
    words(in, keep, 5);
    CHECK_INT(udt_pkt_put_ctrl(out, UDT_CTRL_KEEPALIVE, 0, 0x3d4e13, NULL, 0), 20);
    CHECK_MEM(in, out, 20);
    static const uint32_t data[][2] = {{0x520b5364, 0x80000001}, {0x520b5365, 0x00000001},
                                       {0x520b5367, 0x40000001}, {0x7fffffff, 0xe0000001},
                                       {0, 0xc0000002},          {1, 0xa0000003}};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        udt_pkt_put_data(out, data[i][0], data[i][1], 77, 0x3d4e12);
        CHECK(udt_pkt_decode(&p, out, 17));
        CHECK(!p.control);
        CHECK_INT(p.seq, data[i][0]);
        CHECK_INT(p.word1, data[i][1]);
        CHECK_INT(p.timestamp, 77);
        CHECK_INT(p.dst, 0x3d4e12);
        CHECK_INT(p.len, 1);
    }
    for (size_t len = 0; len < 16; len++)
        CHECK(!udt_pkt_decode(&p, out, len));
}

TEST(udt_codec_siphash_reference_vectors)
{
    /* From the paper's appendix: key 00..0f, message 00, 01, ..., length 15 and 0. */
    uint8_t key[16], msg[15];
    for (int i = 0; i < 16; i++)
        key[i] = (uint8_t)i;
    for (int i = 0; i < 15; i++)
        msg[i] = (uint8_t)i;
    CHECK(udt_siphash(key, msg, 15) == 0xa129ca6149be45e5u);
    CHECK(udt_siphash(key, msg, 0) == 0x726fdb47dd0e0e31u);
}

TEST(udt_codec_cookies_last_one_to_two_epochs)
{
    sim_rng r;
    udt_cookies k;
    udt_addr a = test_addr(1, 7), b = test_addr(1, 8);
    sim_rng_seed(&r, test_seed);
    udt_cookies_init(&k);
    for (udt_time t = 0; t < 10 * (udt_time)UDT_COOKIE_EPOCH_US; t += 7000000) {
        uint32_t c = udt_cookie_make(&k, sim_rng_bytes, &r, &a, 5, 6, t);
        CHECK(c != 0);
        CHECK(udt_cookie_check(&k, &a, 5, 6, c, t));
        CHECK(udt_cookie_check(&k, &a, 5, 6, c, t + UDT_COOKIE_EPOCH_US));
        CHECK(!udt_cookie_check(&k, &a, 5, 6, c, t + 2 * UDT_COOKIE_EPOCH_US));
        CHECK(!udt_cookie_check(&k, &b, 5, 6, c, t));
        CHECK(!udt_cookie_check(&k, &a, 4, 6, c, t));
        CHECK(!udt_cookie_check(&k, &a, 5, 7, c, t));
        CHECK(!udt_cookie_check(&k, &a, 5, 6, c ^ 1, t));
    }
}

TEST(udt_codec_nak_lists_round_trip_at_the_wrap)
{
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int round = 0; round < 200; round++) {
        udt_rcvloss l;
        bool lost[300] = {false}, seen[300] = {false};
        uint32_t isn = seq_add(SEQ_MASK, -(int64_t)sim_rng_below(&r, 300));
        udt_rcvloss_init(&l);
        for (int64_t i = 0; i < 300; i++) {
            lost[i] = sim_rng_below(&r, 3) == 0;
            if (lost[i])
                CHECK(udt_rcvloss_add(&l, i, i));
        }
        int64_t from = 0;
        while (from < 300) { /* a few words at a time */
            uint32_t w[8];
            uint8_t buf[32];
            size_t n = udt_rcvloss_encode(&l, isn, from, 300, w, 8, &from);
            words(buf, w, n);
            bytes_rd rd = bytes_reader(buf, 4 * n);
            uint32_t a, b;
            while (udt_nak_next(&rd, &a, &b))
                for (int64_t i = seq_index(isn, 0, a); i <= seq_index(isn, 0, b); i++)
                    seen[i] = true;
            CHECK(!rd.bad);
        }
        CHECK_MEM(lost, seen, sizeof lost);
        udt_rcvloss_fini(&l);
    }
    uint8_t cut[4] = {0x80, 0, 0, 1};
    bytes_rd rd = bytes_reader(cut, 4);
    uint32_t a, b;
    CHECK(!udt_nak_next(&rd, &a, &b));
    CHECK(rd.bad);
}
