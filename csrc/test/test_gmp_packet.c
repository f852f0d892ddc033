#include "sgmp/heap.h"
#include "sgmp/keys.h"
#include "sgmp/packet.h"
#include "sgmp/util.h"
#include "sim/net.h"
#include "test.h"
#include "udt_err.h"

/* Written by hand from spec/gmp.md 4.1. */
TEST(gmp_packet_header_vector)
{
    static const uint8_t v[PKT_HEADER + 2] = {
        0xc7, 0x10, 0x00, 0x0a, 0,    0,    0,    0,    1,    2,    3,    4,    5,    6,
        7,    8,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0,    0,    0,    0,
        0,    0,    0x01, 0x02, 0x00, 0x05, 0x00, 0x02, 0xde, 0xad, 0xbe, 0xef, 0x61, 0x62};
    struct pkt_header h;
    uint8_t out[PKT_HEADER];
    CHECK_INT(pkt_header_get(v, sizeof v, &h), 0);
    CHECK_INT(h.type, PKT_T_DATA);
    CHECK_INT(h.flags, PKT_F_ACKBLK | PKT_F_CONTROL);
    CHECK_INT(h.src, 0x0102030405060708);
    CHECK_INT(h.dst, 0x1112131415161718);
    CHECK_INT(h.pkt, 0x102);
    CHECK_INT(h.channel, 5);
    CHECK_INT(h.check, 0xdeadbeef);
    pkt_header_put(out, &h);
    CHECK_MEM(out, v, PKT_HEADER);
}

TEST(gmp_packet_header_rejects)
{
    struct pkt_header h = {.type = PKT_T_PING, .src = 1, .dst = 2, .pkt = 3, .body_len = 0}, g;
    uint8_t b[PKT_HEADER + 16] = {0};
    pkt_header_put(b, &h);
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), 0);
    CHECK_INT(pkt_header_get(b, PKT_HEADER - 1, &g), PKT_E_FORMAT);
    CHECK_INT(pkt_header_get(b, PKT_HEADER + 1, &g), PKT_E_FORMAT);
    for (int type = 8; type < 16; type++) {
        b[1] = (uint8_t)(0x10 | type);
        CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), PKT_E_FORMAT);
    }
    b[1] = 0x20;
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), PKT_E_VERSION);
    pkt_header_put(b, &h);
    b[2] = 0x80; /* unknown flag */
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), PKT_E_FORMAT);
    h.dst = 0; /* only HELLO may */
    pkt_header_put(b, &h);
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), PKT_E_FORMAT);
    h.type = PKT_T_HELLO;
    pkt_header_put(b, &h);
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), 0);
    h.key_id = 9; /* a tag is part of the length then */
    pkt_header_put(b, &h);
    CHECK_INT(pkt_header_get(b, PKT_HEADER, &g), PKT_E_FORMAT);
    CHECK_INT(pkt_header_get(b, PKT_HEADER + 16, &g), 0);
}

TEST(gmp_packet_ack_vector)
{
    static const uint8_t v[PKT_ACK + 16] = {
        0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0,    0, 3, 0xe8, 0x10, 0, 2, 1,
        0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0x80, 0, 0, 0,    0,    0, 0, 0};
    struct pkt_ack a;
    uint8_t out[sizeof v];
    bytes_rd r = bytes_reader(v, sizeof v);
    bytes_wr w = bytes_writer(out, sizeof out);
    CHECK(pkt_ack_get(&r, &a));
    CHECK_INT(a.cum, 9);
    CHECK_INT(a.echo_pkt, 7);
    CHECK_INT(a.echo_delay_us, 1000);
    CHECK_INT(a.win_msgs, 4096);
    CHECK_INT(a.n, 2);
    CHECK(a.busy);
    CHECK_INT(a.win_kib, 1024);
    CHECK_INT(a.words[0], 6);
    CHECK_INT(a.words[1] >> 63, 1);
    pkt_ack_put(&w, &a);
    CHECK(!w.bad);
    CHECK_MEM(out, v, sizeof v);
    out[22] = 65; /* more words than allowed */
    r = bytes_reader(out, sizeof out);
    CHECK(!pkt_ack_get(&r, &a));
    out[22] = 3; /* more than there are */
    r = bytes_reader(out, sizeof out);
    CHECK(!pkt_ack_get(&r, &a));
}

TEST(gmp_packet_rpc_and_bulk_vectors)
{
    static const uint8_t rpc[RPC_HEAD] = {3, 0, 0, 0, 0, 0, 0,    0x4d, 0,    0,    0,    0,
                                          0, 0, 1, 0, 0, 0, 0x27, 0x10, 0xff, 0xff, 0xff, 0xfd};
    struct rpc_head h;
    uint8_t out[BULK_DESC + 32];
    CHECK(rpc_head_get(rpc, sizeof rpc, &h));
    CHECK_INT(h.op, RPC_ERROR);
    CHECK_INT(h.method, 77);
    CHECK_INT(h.id, 256);
    CHECK_INT(h.ms, 10000);
    CHECK_INT(h.status, -3);
    rpc_head_put(out, &h);
    CHECK_MEM(out, rpc, RPC_HEAD);
    CHECK(!rpc_head_get(rpc, RPC_HEAD - 1, &h));
    struct bulk_desc d = {.len = 70000, .crc = 0x01020304, .hash_alg = 1, .inner = PKT_K_RPC}, e;
    memset(d.hash, 0xab, 32);
    CHECK_INT(bulk_desc_put(out, &d), 48);
    CHECK(bulk_desc_get(out, 48, &e));
    CHECK_INT(e.len, 70000);
    CHECK_INT(e.crc, 0x01020304);
    CHECK_MEM(e.hash, d.hash, 32);
    CHECK(!bulk_desc_get(out, 47, &e));
    out[12] = 2; /* unknown hash */
    CHECK(!bulk_desc_get(out, 48, &e));
}

TEST(gmp_heap_orders_and_moves)
{
    enum { N = 500 };
    static struct sg_timer t[N];
    struct sg_heap h = {0};
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    memset(t, 0, sizeof t);
    for (int i = 0; i < N; i++)
        CHECK(sg_heap_reserve(&h));
    for (int round = 0; round < 20000; round++) {
        struct sg_timer *x = &t[sim_rng_below(&r, N)];
        udt_time at = (udt_time)sim_rng_below(&r, 1000);
        sg_heap_set(&h, x, at < 100 ? UDT_NEVER : at);
        CHECK_INT(x->slot != 0, at >= 100);
    }
    udt_time last = 0;
    struct sg_timer *x;
    CHECK(sg_heap_due(&h, 99) == NULL);
    while ((x = sg_heap_due(&h, 1000))) {
        CHECK(x->at >= last && x->slot == 0);
        last = x->at;
    }
    CHECK_INT(h.n, 0);
    sg_heap_fini(&h);
}

TEST(gmp_htab_finds_all_with_equal_keys)
{
    enum { N = 3000 };
    static struct sg_hnode v[N];
    struct sg_htab t;
    sg_htab_init(&t, 99);
    CHECK(sg_hget(&t, 5) == NULL);
    for (int i = 0; i < N; i++)
        sg_hadd(&t, &v[i], (uint64_t)(i % 1000));
    for (int i = 0; i < N; i += 3)
        sg_hdel(&t, &v[i]);
    sg_hdel(&t, &v[0]); /* twice does nothing */
    CHECK_INT(t.count, N - N / 3);
    for (int k = 0; k < 1000; k++) {
        int found = 0;
        for (struct sg_hnode *n = sg_hget(&t, (uint64_t)k); n; n = sg_hnext(n), found++)
            CHECK_INT(n->key, k);
        CHECK_INT(found, 2);
    }
    sg_htab_fini(&t);
}

TEST(gmp_keys_life_and_derivation)
{
    struct sg_heap heap = {0};
    struct keys k;
    sgmp_key rec = {.key_id = 7, .alg = SGMP_ALG_AES256GCM, .valid_ms = 1000, .principal = "p"};
    keys_init(&k, &heap, 4, 1);
    CHECK_INT(keys_add(&k, &rec, 0), 0);
    CHECK_INT(keys_add(&k, &rec, 0), UDT_E_INUSE);
    rec.key_id = 8;
    rec.valid_ms = 0;
    CHECK_INT(keys_add(&k, &rec, 10), 0);
    rec.key_id = 0;
    CHECK_INT(keys_add(&k, &rec, 0), UDT_E_INVAL);
    struct key *a = keys_find(&k, 7), *b = keys_find(&k, 8);
    CHECK(a && b && a->who == b->who);
    CHECK(key_can_send(a, 999999) && !key_can_send(a, 1000000));
    CHECK(keys_newest(a->who, 0) == b);
    CHECK(sg_heap_due(&heap, 60999999) == NULL);
    CHECK(sg_heap_due(&heap, 61000000) == &a->expiry); /* end of grace */
    keys_drop(&k, a);
    CHECK(keys_find(&k, 7) == NULL);
    /* Purpose, direction and connection each give another key. */
    static const struct {
        char purpose;
        uint64_t from, to, conn;
    } ways[] = {{'d', 1, 2, 0}, {'d', 2, 1, 0}, {'s', 1, 2, 0}, {'b', 1, 2, 0}, {'b', 1, 2, 9}};
    uint8_t nonce[12] = {0}, box[5][16];
    for (int i = 0; i < 5; i++) {
        aead *c = key_derive(b, ways[i].purpose, ways[i].from, ways[i].to, ways[i].conn);
        aead_seal(c, nonce, NULL, 0, NULL, 0, box[i]);
        aead_free(c);
        for (int j = 0; j < i; j++)
            CHECK(memcmp(box[i], box[j], 16) != 0);
    }
    keys_fini(&k);
    sg_heap_fini(&heap);
}

TEST(gmp_token_binds_address_instance_key_and_time)
{
    struct tokens t;
    sim_rng r;
    udt_addr a = {.family = 4, .port = 9, .ip = {10, 0, 0, 1}}, b = a;
    uint8_t tok[PKT_TOKEN];
    udt_time now = 5000000, life = 120 * 1000000;
    sim_rng_seed(&r, 1);
    tokens_init(&t, sim_rng_bytes, &r, now);
    token_mint(&t, &a, 77, 3, now, tok);
    CHECK(token_valid(&t, &a, 77, 3, now, tok));
    CHECK(token_valid(&t, &a, 77, 3, now + life - 1000, tok));
    CHECK(!token_valid(&t, &a, 77, 3, now + life, tok));
    CHECK(!token_valid(&t, &a, 78, 3, now, tok));
    CHECK(!token_valid(&t, &a, 77, 4, now, tok));
    b.port = 10;
    CHECK(!token_valid(&t, &b, 77, 3, now, tok));
    for (int i = 0; i < PKT_TOKEN; i++) {
        tok[i] ^= 1;
        CHECK(!token_valid(&t, &a, 77, 3, now, tok));
        tok[i] ^= 1;
    }
    /* The secret rotates every ten minutes; a token made just before stays valid. */
    udt_time late = now + 599 * (udt_time)1000000;
    token_mint(&t, &a, 77, 3, late, tok);
    CHECK(token_valid(&t, &a, 77, 3, late + 2000000, tok));
}
