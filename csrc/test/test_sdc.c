/* Data-channel records: every altered bit, cut, swap and replay is found. */
#include "base/bytes.h"
#include "base/crc32c.h"
#include "sdc/blocks.h"
#include "sdc/record.h"
#include "sim/net.h"
#include "test.h"

struct ends { /* two ends of one channel after the OPEN exchange */
    udt_ticket ticket;
    sdc_hello a, b;
    sdc_dir seal, open; /* initiator -> responder */
    uint8_t open_a[SDC_OPEN_BYTES], open_b[SDC_OPEN_BYTES];
};

static void ticket_make(udt_ticket *t, uint64_t seed, bool encrypt)
{
    sim_rng r;
    sim_rng_seed(&r, seed);
    memset(t, 0, sizeof *t);
    sim_rng_bytes(&r, t->id, sizeof t->id);
    sim_rng_bytes(&r, t->key, sizeof t->key);
    t->tag = 7;
    t->encrypt = encrypt;
}

static void ends_make(struct ends *e, bool encrypt, uint64_t seed)
{
    uint8_t nonce[2][SDC_NONCE_BYTES];
    sim_rng r;
    sim_rng_seed(&r, seed);
    sim_rng_bytes(&r, nonce[0], sizeof nonce);
    ticket_make(&e->ticket, 1, encrypt);
    sdc_hello_init(&e->a, &e->ticket, true, nonce[0]);
    sdc_hello_init(&e->b, &e->ticket, false, nonce[1]);
    CHECK_INT(sdc_hello_write(&e->b, e->open_b), UDT_E_STATE);
    CHECK_INT(sdc_dir_init(&e->seal, &e->a, true), UDT_E_STATE);
    CHECK_INT(sdc_hello_write(&e->a, e->open_a), 0);
    CHECK_INT(sdc_hello_read(&e->b, e->open_a), 0);
    CHECK_INT(sdc_hello_write(&e->b, e->open_b), 0);
    CHECK_INT(sdc_hello_read(&e->a, e->open_b), 0);
    CHECK_INT(sdc_dir_init(&e->seal, &e->a, true), 0);
    CHECK_INT(sdc_dir_init(&e->open, &e->b, true), 0);
}

static void ends_free(struct ends *e)
{
    sdc_hello_fini(&e->a);
    sdc_hello_fini(&e->b);
    sdc_dir_fini(&e->seal);
    sdc_dir_fini(&e->open);
}

/* The receiving direction starts again at its first record. */
static void reopen(struct ends *e)
{
    sdc_dir_fini(&e->open);
    CHECK_INT(sdc_dir_init(&e->open, &e->b, true), 0);
}

static size_t put_record(sdc_dir *d, int type, const void *body, size_t len, uint8_t *rec)
{
    memcpy(rec + SDC_HEADER_BYTES, body, len);
    return sdc_seal(d, type, rec, len);
}

TEST(sdc_open_proves_the_ticket_both_ways)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e;
        sdc_dir back[2];
        uint8_t rec[SDC_MAX_RECORD];
        ends_make(&e, encrypt, 5);
        CHECK(memcmp(e.open_a + 36, e.open_b + 36, 32) != 0);
        CHECK_MEM(e.seal.key, e.open.key, 32);
        CHECK_INT(sdc_dir_init(&back[0], &e.b, false), 0);
        CHECK_INT(sdc_dir_init(&back[1], &e.a, false), 0);
        CHECK(memcmp(back[0].key, e.seal.key, 32) != 0);
        size_t n = put_record(&back[0], SDC_DATA, "hello", 5, rec);
        CHECK_INT(sdc_unseal(&back[1], rec, n), 5);
        CHECK_MEM(rec + SDC_HEADER_BYTES, "hello", 5);
        sdc_dir_fini(&back[0]);
        sdc_dir_fini(&back[1]);
        ends_free(&e);
    }
}

/* The key schedule and the proofs, computed here once more from the page's words. */
TEST(sdc_keys_and_proofs_are_as_written)
{
    struct ends e;
    uint8_t want[32], text[34] = "I", info[6] = "SDC1R\1", prk[32];
    ends_make(&e, true, 6);
    memcpy(text + 1, e.open_a + 20, 16);
    hmac_sha256(e.ticket.key, 32, text, 17, want);
    CHECK_MEM(e.open_a + 36, want, 32);
    text[0] = 'R';
    memcpy(text + 17, e.open_b + 20, 16);
    hmac_sha256(e.ticket.key, 32, text, 33, want);
    CHECK_MEM(e.open_b + 36, want, 32);
    hmac_sha256(text + 1, 32, e.ticket.key, 32, prk);
    hmac_sha256(prk, 32, info, 6, want);
    sdc_dir d;
    CHECK_INT(sdc_dir_init(&d, &e.a, false), 0);
    CHECK_MEM(d.key, want, 32);
    sdc_dir_fini(&d);
    ends_free(&e);
}

/* An early direction: its key needs the initiator's nonce alone, the other direction's both. */
TEST(sdc_early_records_need_no_answer)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        uint8_t nonce[2][SDC_NONCE_BYTES] = {"initiator nonce", "responder nonce"};
        uint8_t open[SDC_OPEN_BYTES], rec[SDC_MAX_RECORD], back[SDC_MAX_RECORD];
        uint8_t want[32], text[17] = "E", info[6] = "SDC1E\1", prk[32];
        udt_ticket t;
        sdc_hello a, b, strict;
        sdc_dir seal, opened, ret[2];
        ticket_make(&t, 3, encrypt);
        sdc_hello_init(&a, &t, true, nonce[0]);
        sdc_hello_init(&b, &t, false, nonce[1]);
        a.early = true;
        CHECK_INT(sdc_hello_write(&a, open), 0);
        CHECK_INT(open[1], 2 + encrypt);
        memcpy(text + 1, nonce[0], 16);
        hmac_sha256(t.key, 32, text, 17, want);
        CHECK_MEM(open + 36, want, 32);
        hmac_sha256(nonce[0], 16, t.key, 32, prk);
        hmac_sha256(prk, 32, info, 6, want);
        CHECK_INT(sdc_dir_init(&seal, &a, true), 0);
        CHECK_MEM(seal.key, want, 32);
        CHECK_INT(sdc_dir_init(&ret[0], &a, false), UDT_E_STATE);
        size_t n = put_record(&seal, SDC_DATA, "hello", 5, rec);
        CHECK_INT(sdc_dir_init(&opened, &b, true), UDT_E_STATE);
        CHECK_INT(sdc_hello_read(&b, open), 0);
        CHECK(b.early);
        CHECK_INT(sdc_dir_init(&opened, &b, true), 0);
        CHECK_INT(sdc_unseal(&opened, rec, n), 5);
        CHECK_INT(sdc_hello_write(&b, open), 0);
        strict = a;
        strict.early = false; /* an answer to another kind of OPEN */
        CHECK_INT(sdc_hello_read(&strict, open), UDT_E_PROTO);
        CHECK_INT(sdc_hello_read(&a, open), 0);
        CHECK_INT(sdc_dir_init(&ret[0], &a, false), 0);
        CHECK_INT(sdc_dir_init(&ret[1], &b, false), 0);
        n = put_record(&ret[1], SDC_DATA, "back", 4, back);
        CHECK_INT(sdc_unseal(&ret[0], back, n), 4);
        sdc_dir_fini(&seal);
        sdc_dir_fini(&opened);
        sdc_dir_fini(&ret[0]);
        sdc_dir_fini(&ret[1]);
        sdc_hello_fini(&a);
        sdc_hello_fini(&b);
        sdc_hello_fini(&strict);
    }
}

TEST(sdc_open_refuses_every_flipped_bit)
{
    struct ends e;
    ends_make(&e, true, 7);
    for (size_t bit = 0; bit < SDC_OPEN_BYTES * 8; bit++) {
        sdc_hello h;
        sdc_hello_init(&h, &e.ticket, false, e.b.nonces + SDC_NONCE_BYTES);
        e.open_a[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(sdc_hello_read(&h, e.open_a) < 0);
        CHECK(!h.met);
        e.open_a[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_INT(sdc_hello_read(&h, e.open_a), 0);
    }
    for (size_t bit = 0; bit < SDC_OPEN_BYTES * 8; bit++) {
        sdc_hello h = e.a;
        h.met = false;
        e.open_b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(sdc_hello_read(&h, e.open_b) < 0);
        e.open_b[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ends_free(&e);
}

TEST(sdc_open_refuses_wrong_key_role_mode_and_ticket)
{
    struct ends e;
    sdc_hello h;
    udt_ticket t;
    ends_make(&e, true, 8);
    t = e.ticket;
    t.key[31] ^= 1;
    sdc_hello_init(&h, &t, false, e.b.nonces + SDC_NONCE_BYTES);
    CHECK_INT(sdc_hello_read(&h, e.open_a), UDT_E_AUTH);
    t = e.ticket;
    t.id[0] ^= 1;
    sdc_hello_init(&h, &t, false, e.b.nonces + SDC_NONCE_BYTES);
    CHECK_INT(sdc_hello_read(&h, e.open_a), UDT_E_AUTH);
    t = e.ticket;
    t.encrypt = false;
    sdc_hello_init(&h, &t, false, e.b.nonces + SDC_NONCE_BYTES);
    CHECK_INT(sdc_hello_read(&h, e.open_a), UDT_E_PROTO);
    h = e.a; /* its own OPEN sent back to it */
    CHECK_INT(sdc_hello_read(&h, e.open_a), UDT_E_AUTH);
    sdc_hello_init(&h, &e.ticket, true, (const uint8_t *)"another nonce 16");
    CHECK_INT(sdc_hello_read(&h, e.open_b), UDT_E_AUTH); /* an answer to an older OPEN */
    ends_free(&e);
}

TEST(sdc_records_round_trip_in_all_sizes)
{
    static uint8_t body[SDC_MAX_BODY], rec[SDC_MAX_RECORD];
    static const size_t sizes[] = {1, 2, 15, 16, 17, 1000, 16383, SDC_MAX_BODY};
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e;
        ends_make(&e, encrypt, 9);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int type;
            size_t len, n;
            sim_rng_bytes(&r, body, sizes[i]);
            n = put_record(&e.seal, SDC_DATA, body, sizes[i], rec);
            CHECK_INT(n, sdc_record_bytes(encrypt, SDC_DATA, sizes[i]));
            CHECK_INT(n, sizes[i] + (encrypt ? 20 : 8));
            CHECK(!encrypt || sizes[i] < 15 || memcmp(rec + 4, body, sizes[i]) != 0);
            for (size_t k = 0; k < SDC_HEADER_BYTES; k++)
                CHECK_INT(sdc_peek(encrypt, rec, k, &type, &len), 0);
            CHECK_INT(sdc_peek(encrypt, rec, SDC_HEADER_BYTES, &type, &len), n);
            CHECK_INT(type, SDC_DATA);
            CHECK_INT(sdc_unseal(&e.open, rec, n), sizes[i]);
            CHECK_MEM(rec + SDC_HEADER_BYTES, body, sizes[i]);
        }
        sdc_fin f = {.size = 123456789012345, .digest = {1, 2, 3}}, g;
        sdc_fin_put(&f, body);
        size_t n = put_record(&e.seal, SDC_FIN, body, SDC_FIN_BYTES, rec);
        CHECK_INT(n, SDC_FIN_BYTES + 20);
        CHECK_INT(sdc_unseal(&e.open, rec, n), SDC_FIN_BYTES);
        sdc_fin_get(&g, rec + SDC_HEADER_BYTES);
        CHECK_INT(g.size, f.size);
        CHECK_MEM(g.digest, f.digest, 32);
        sdc_done v = {3, 1ull << 40, 2}, w;
        sdc_done_put(&v, body);
        n = put_record(&e.seal, SDC_DONE, body, SDC_DONE_BYTES, rec);
        CHECK_INT(sdc_unseal(&e.open, rec, n), SDC_DONE_BYTES);
        sdc_done_get(&w, rec + SDC_HEADER_BYTES);
        CHECK(w.epoch == v.epoch && w.counter == v.counter && w.durable == v.durable);
        ends_free(&e);
    }
}

TEST(sdc_every_flipped_bit_is_found)
{
    static uint8_t body[300], rec[SDC_MAX_RECORD], copy[SDC_MAX_RECORD];
    static const int types[] = {SDC_DATA, SDC_FIN, SDC_DONE, SDC_ERROR};
    static const size_t lens[] = {300, SDC_FIN_BYTES, SDC_DONE_BYTES, SDC_ERROR_BYTES};
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e;
        ends_make(&e, encrypt, 10);
        for (int k = 0; k < 4; k++) {
            sdc_dir_fini(&e.seal);
            CHECK_INT(sdc_dir_init(&e.seal, &e.a, true), 0);
            size_t n = k == 3 ? sdc_seal_error(&e.seal, -201, rec)
                              : put_record(&e.seal, types[k], body, lens[k], rec);
            for (size_t bit = 0; bit < n * 8; bit++) {
                reopen(&e);
                memcpy(copy, rec, n);
                copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
                CHECK(sdc_unseal(&e.open, copy, n) < 0);
                memcpy(copy, rec, n); /* and a dead direction stays dead */
                CHECK_INT(sdc_unseal(&e.open, copy, n), UDT_E_PROTO);
            }
            reopen(&e);
            memcpy(copy, rec, n);
            CHECK_INT(sdc_unseal(&e.open, copy, n), lens[k]);
        }
        ends_free(&e);
    }
}

TEST(sdc_cut_swapped_dropped_and_repeated_records_are_found)
{
    enum { N = 4 };
    static uint8_t rec[N][64], copy[64];
    size_t len[N];
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e;
        ends_make(&e, encrypt, 11);
        for (int i = 0; i < N; i++)
            len[i] = put_record(&e.seal, SDC_DATA, "the same text", 13, rec[i]);
        for (int first = 0; first < N; first++)
            for (int second = 0; second < N; second++) {
                reopen(&e);
                memcpy(copy, rec[first], len[first]);
                bool ok = sdc_unseal(&e.open, copy, len[first]) == 13;
                CHECK_INT(ok, first == 0);
                memcpy(copy, rec[second], len[second]);
                if (ok)
                    CHECK_INT(sdc_unseal(&e.open, copy, len[second]) == 13, second == 1);
            }
        for (size_t cut = 0; cut < len[0]; cut++) {
            reopen(&e);
            memcpy(copy, rec[0], len[0]);
            CHECK_INT(sdc_unseal(&e.open, copy, cut), UDT_E_PROTO);
        }
        ends_free(&e);
    }
}

TEST(sdc_recorded_stream_is_worthless_in_another_connection)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e, later;
        uint8_t rec[64], fin[SDC_FIN_BYTES] = {0};
        ends_make(&e, encrypt, 12);
        size_t n = put_record(&e.seal, SDC_DATA, "pay 100", 7, rec);
        /* the attacker replays the initiator's OPEN: same ticket, but the responder's nonce is new
         */
        sdc_hello_init(&later.b, &e.ticket, false, (const uint8_t *)"responder nonce2");
        CHECK_INT(sdc_hello_read(&later.b, e.open_a), 0);
        CHECK_INT(sdc_dir_init(&later.open, &later.b, true), 0);
        CHECK(sdc_unseal(&later.open, rec, n) < 0);
        sdc_dir_fini(&later.open);
        CHECK_INT(sdc_dir_init(&later.open, &later.b, true), 0);
        n = put_record(&e.seal, SDC_FIN, fin, sizeof fin, rec);
        CHECK_INT(sdc_unseal(&later.open, rec, n), UDT_E_AUTH);
        sdc_dir_fini(&later.open);
        ends_free(&e);
    }
}

TEST(sdc_error_may_come_at_any_place_and_ends_the_direction)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct ends e;
        uint8_t rec[SDC_MAX_RECORD];
        ends_make(&e, encrypt, 13);
        size_t n = put_record(&e.seal, SDC_DATA, "abc", 3, rec);
        CHECK_INT(sdc_unseal(&e.open, rec, n), 3);
        put_record(&e.seal, SDC_DATA, "sealed, never sent", 18, rec);
        n = sdc_seal_error(&e.seal, -202, rec);
        CHECK_INT(n, 24);
        CHECK_INT(sdc_unseal(&e.open, rec, n), SDC_ERROR_BYTES);
        CHECK_INT(sdc_error_get(rec + SDC_HEADER_BYTES), -202);
        n = put_record(&e.seal, SDC_DATA, "abc", 3, rec);
        CHECK_INT(sdc_unseal(&e.open, rec, n), UDT_E_PROTO);
        ends_free(&e);
    }
}

/* Without encryption a FIN is tied to the bytes before it, even if their CRCs were made to fit. */
TEST(sdc_fin_is_tied_to_the_chain)
{
    struct ends e;
    uint8_t rec[64], fin_rec[64], fin[SDC_FIN_BYTES] = {9};
    ends_make(&e, false, 14);
    uint32_t start = e.seal.chain;
    size_t n = put_record(&e.seal, SDC_DATA, "genuine", 7, rec);
    size_t f = put_record(&e.seal, SDC_FIN, fin, sizeof fin, fin_rec);
    memcpy(rec + SDC_HEADER_BYTES, "altered", 7);
    be32_put(rec + 11, udt_crc32c(start, rec, 11));
    CHECK_INT(sdc_unseal(&e.open, rec, n), 7);
    CHECK_INT(sdc_unseal(&e.open, fin_rec, f), UDT_E_AUTH);
    ends_free(&e);
}

TEST(sdc_peek_refuses_what_cannot_be_a_record)
{
    int type;
    size_t len;
    static const uint8_t bad[][4] = {{0, 0, 0, 5}, {1, 0, 0, 64},   {2, 0, 0, 0},  {2, 0, 64, 1},
                                     {2, 1, 0, 5}, {3, 0, 0, 41},   {4, 0, 0, 19}, {5, 0, 0, 0},
                                     {6, 0, 0, 4}, {2, 0, 255, 255}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_INT(sdc_peek(true, bad[i], 4, &type, &len), UDT_E_PROTO);
}

TEST(sdc_blocks_do_not_depend_on_how_bytes_arrive)
{
    enum { N = 3 * UDT_BLOCK_BYTES + 12345 };
    uint8_t *data = malloc(N), whole[32], parts[32];
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    sim_rng_bytes(&r, data, N);
    sdc_blocks a = {0}, b = {0};
    CHECK_INT(sdc_blocks_add(&a, data, N), 0);
    CHECK_INT(sdc_blocks_end(&a, whole), 0);
    for (size_t at = 0; at < N;) {
        size_t n = (size_t)sim_rng_below(&r, 40000) + 1;
        n = n > N - at ? N - at : n;
        CHECK_INT(sdc_blocks_add(&b, data + at, n), 0);
        at += n;
    }
    CHECK_INT(sdc_blocks_end(&b, parts), 0);
    CHECK_INT(a.n, 4);
    CHECK_INT(b.n, 4);
    CHECK_MEM(a.crcs, b.crcs, 16);
    CHECK_MEM(whole, parts, 32);
    CHECK_INT(a.crcs[3], udt_crc32c(0, data + 3 * UDT_BLOCK_BYTES, 12345));
    uint8_t le[24], want[32];
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++)
            le[4 * i + k] = (uint8_t)(a.crcs[i] >> 8 * k);
    for (size_t k = 0; k < 8; k++)
        le[16 + k] = (uint8_t)((uint64_t)N >> 8 * k);
    sha256 *h = sha256_new();
    sha256_update(h, le, sizeof le);
    sha256_final(h, want);
    CHECK_MEM(whole, want, 32);
    sdc_blocks_fini(&a);
    sdc_blocks_fini(&b);
    CHECK_INT(sdc_blocks_end(&a, whole), 0); /* an empty file has a digest too */
    CHECK_INT(a.n, 0);
    sdc_blocks_fini(&a);
    free(data);
}

/* Random bytes and randomly damaged streams: never a crash, never accepted. */
TEST(sdc_garbage_is_never_accepted)
{
    static uint8_t rec[SDC_MAX_RECORD];
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int i = 0; i < 200 * test_scale; i++) {
        struct ends e;
        int type;
        size_t len;
        if (i % 100 == 0)
            ends_make(&e, i / 100 % 2, (uint64_t)i);
        reopen(&e);
        sim_rng_bytes(&r, rec, 600);
        rec[0] = (uint8_t)(1 + sim_rng_below(&r, 5));
        rec[1] = 0;
        be16_put(rec + 2, (uint16_t)sim_rng_below(&r, 500));
        ssize_t n = sdc_peek(e.open.encrypt, rec, 600, &type, &len);
        CHECK(sdc_unseal(&e.open, rec, n > 0 ? (size_t)n : 600) < 0);
        if (i % 100 == 99)
            ends_free(&e);
    }
}

/* The vectors of docs/protocol/data-channel.md, made by an independent program. */
static size_t unhex(const char *hex, uint8_t *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return n;
}

static void check_hex(const uint8_t *got, size_t len, const char *hex)
{
    uint8_t want[128];
    CHECK_INT(len, unhex(hex, want));
    CHECK_MEM(got, want, len);
}

TEST(sdc_vectors_of_the_protocol_page)
{
    static const char *const want[2][5] = {
        {"01000040000102030405060708090a0b0c0d0e0faaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac4d60ae5"
         "1bb4d87078eceed134ba2744885fd49ae2b6646bb04e42be46f43b23",
         "01000040000102030405060708090a0b0c0d0e0fbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbd4d4ceaa"
         "86385bba6f7f85d14b6a99657ae8075e5d342c4f8d1046efbb7d7422",
         "0200000568656c6c6f738524f4",
         "030000280000000000000005859c3d1fdb19f643d0476d58988b421cd218f5c3cf35d5763e0bb664"
         "ba13cd23a0b13257be03b67f72dc25c9af23d877",
         "05000004ffffff36765cb7d075f9beee6e978b3540f95b51"},
        {"01010040000102030405060708090a0b0c0d0e0faaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac4d60ae5"
         "1bb4d87078eceed134ba2744885fd49ae2b6646bb04e42be46f43b23",
         "01010040000102030405060708090a0b0c0d0e0fbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbd4d4ceaa"
         "86385bba6f7f85d14b6a99657ae8075e5d342c4f8d1046efbb7d7422",
         "02000005d9c2bbe1161315a1c17e8162efba7a77f83f89e21a",
         "03000028293e4966d4971a3108031b5d447d6a3e126257b5088e451e8fc03efea7123edbd1d6e08a"
         "d55afd5b39369f663d26246eac3db22bc9b23139",
         "050000048d5e310bdc32f9e38c757803447e64eb70334249"}};
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        udt_ticket t = {.tag = 1, .encrypt = encrypt};
        uint8_t nonce[2][SDC_NONCE_BYTES], rec[SDC_MAX_RECORD], fin[SDC_FIN_BYTES];
        sdc_hello a, b;
        sdc_dir d;
        sdc_blocks blocks = {0};
        sdc_fin f = {.size = 5};
        for (size_t i = 0; i < 32; i++)
            t.key[i] = (uint8_t)(0x20 + i);
        for (size_t i = 0; i < 16; i++)
            t.id[i] = (uint8_t)i;
        memset(nonce[0], 0xaa, SDC_NONCE_BYTES);
        memset(nonce[1], 0xbb, SDC_NONCE_BYTES);
        sdc_hello_init(&a, &t, true, nonce[0]);
        sdc_hello_init(&b, &t, false, nonce[1]);
        CHECK_INT(sdc_hello_write(&a, rec), 0);
        check_hex(rec, SDC_OPEN_BYTES, want[encrypt][0]);
        CHECK_INT(sdc_hello_read(&b, rec), 0);
        CHECK_INT(sdc_hello_write(&b, rec), 0);
        check_hex(rec, SDC_OPEN_BYTES, want[encrypt][1]);
        CHECK_INT(sdc_dir_init(&d, &b, true), 0);
        check_hex(rec, put_record(&d, SDC_DATA, "hello", 5, rec), want[encrypt][2]);
        CHECK_INT(sdc_blocks_add(&blocks, (const uint8_t *)"hello", 5), 0);
        CHECK_INT(sdc_blocks_end(&blocks, f.digest), 0);
        sdc_fin_put(&f, fin);
        check_hex(rec, put_record(&d, SDC_FIN, fin, sizeof fin, rec), want[encrypt][3]);
        check_hex(rec, sdc_seal_error(&d, -202, rec), want[encrypt][4]);
        sdc_blocks_fini(&blocks);
        sdc_dir_fini(&d);
        if (encrypt) {
            a.early = true;
            CHECK_INT(sdc_hello_write(&a, rec), 0);
            check_hex(
                rec, SDC_OPEN_BYTES,
                "01030040000102030405060708090a0b0c0d0e0faaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa267b8303"
                "1af355e8651ba53e99c830a6b1de50fd6d67c9706ea7713623ce05dc");
            CHECK_INT(sdc_dir_init(&d, &a, true), 0);
            check_hex(rec, put_record(&d, SDC_DATA, "hello", 5, rec),
                      "020000054a448c09b67795b70d074391e22164cef724c1d384");
            sdc_dir_fini(&d);
        }
        sdc_hello_fini(&a);
        sdc_hello_fini(&b);
    }
}
