#include "base/bytes.h"
#include "crypto/md5.h"
#include "test.h"

#include <openssl/evp.h>

enum { STREAMS = 11, BYTES = 9000 };

static uint8_t bytes[STREAMS][BYTES];

static uint64_t draw(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static bool is_md5(const udt_md5 *m, const uint8_t *data, size_t len)
{
    uint8_t want[16], got[16];
    unsigned n = 0;
    udt_md5_digest(m, got);
    return EVP_Digest(data, len, want, &n, EVP_md5(), NULL) && n == 16 && !memcmp(got, want, 16);
}

static bool is_sha256(const udt_md5 *m, const uint8_t *data, size_t len)
{
    uint8_t want[32], got[32];
    unsigned n = 0;
    udt_md5_sha256_digest(m, got);
    return EVP_Digest(data, len, want, &n, EVP_sha256(), NULL) && n == 32 && !memcmp(got, want, 32);
}

/* Both sums where there are both. */
static bool is_right(const udt_md5 *m, const uint8_t *data, size_t len)
{
    return is_md5(m, data, len) && (!m->with_sha256 || is_sha256(m, data, len));
}

TEST(md5_published_vectors)
{
    static const struct {
        const char *text;
        uint32_t begin; /* of the digest */
    } known[] = {
        {"", 0xd41d8cd9},
        {"abc", 0x90015098},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         0x57edf4a2},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        udt_md5 m;
        uint8_t out[16];
        udt_md5_init(&m);
        udt_md5_update(&m, (const uint8_t *)known[i].text, strlen(known[i].text));
        udt_md5_digest(&m, out);
        CHECK_INT(be32_get(out), known[i].begin);
    }
}

TEST(md5_all_lengths_and_splits_are_as_libcrypto_has_them)
{
    uint64_t s = test_seed;
    for (size_t i = 0; i < BYTES; i++)
        bytes[0][i] = (uint8_t)draw(&s);
    for (size_t len = 0; len < 2000; len += len < 300 ? 1 : 37) {
        size_t cut = len ? draw(&s) % len : 0;
        udt_md5 m;
        udt_md5_init(&m);
        udt_md5_update(&m, bytes[0] + 3, cut);
        CHECK(is_md5(&m, bytes[0] + 3, cut)); /* and the stream goes on */
        udt_md5_update(&m, bytes[0] + 3 + cut, len - cut);
        CHECK(is_md5(&m, bytes[0] + 3, len));
    }
}

/* Where the processor cannot, it is refused, and what was begun is MD5 alone. */
TEST(md5_with_sha256_all_lengths_and_splits_are_as_libcrypto_has_them)
{
    uint64_t s = test_seed;
    for (size_t i = 0; i < BYTES; i++)
        bytes[0][i] = (uint8_t)draw(&s);
    for (size_t len = 0; len < 2000; len += len < 300 ? 1 : 37) {
        size_t cut = len ? draw(&s) % len : 0;
        udt_md5 m;
        CHECK_INT(udt_md5_sha256_init(&m), udt_md5_sha256_there() ? 0 : -1);
        CHECK_INT(m.with_sha256, udt_md5_sha256_there());
        udt_md5_update(&m, bytes[0] + 3, cut);
        CHECK(is_right(&m, bytes[0] + 3, cut));
        udt_md5_update(&m, bytes[0] + 3 + cut, len - cut);
        CHECK(is_right(&m, bytes[0] + 3, len));
    }
}

/* 0 to 11 lines of 0 to 5 spans each, with SHA-256 and without, several calls: each sum as if it
 * were alone. */
TEST(md5_lines_side_by_side_are_as_alone)
{
    uint64_t s = test_seed;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i / BYTES][i % BYTES] = (uint8_t)draw(&s);
    for (int round = 0; round < 10 * test_scale; round++) {
        size_t count = draw(&s) % (STREAMS + 1), at[STREAMS] = {0};
        udt_md5 sums[STREAMS];
        for (size_t i = 0; i < count; i++)
            if (draw(&s) % 3 == 0)
                udt_md5_init(&sums[i]);
            else
                udt_md5_sha256_init(&sums[i]);
        for (int call = 0; call < 3; call++) {
            udt_md5_line lines[STREAMS];
            udt_span spans[STREAMS][5];
            for (size_t i = 0; i < count; i++) {
                lines[i] = (udt_md5_line){&sums[i], spans[i], draw(&s) % 6};
                for (size_t k = 0; k < lines[i].count; k++) {
                    static const size_t most[] = {70, 70, 600, 5000};
                    size_t left = BYTES - at[i] + 1, n = draw(&s) % most[draw(&s) % 4];
                    spans[i][k] = (udt_span){bytes[i] + at[i], n < left ? n : n % left};
                    at[i] += spans[i][k].len;
                }
            }
            udt_md5_update_lines(lines, count);
        }
        for (size_t i = 0; i < count; i++)
            CHECK(is_right(&sums[i], bytes[i], at[i]));
    }
}

/* With all vector code that the processor has. */
TEST(md5_lanes_and_pairs_are_as_one)
{
    uint32_t start[MD5_LANES][4], alone[MD5_LANES][4], beside[MD5_LANES][4], *h[MD5_LANES];
    const uint8_t *data[MD5_LANES];
    uint64_t s = test_seed;
    for (size_t i = 0; i < MD5_LANES; i++) {
        for (size_t k = 0; k < BYTES; k++)
            bytes[i][k] = (uint8_t)draw(&s);
        for (int k = 0; k < 4; k++)
            start[i][k] = (uint32_t)draw(&s);
        h[i] = beside[i];
        data[i] = bytes[i] + i;
    }
    memcpy(alone, start, sizeof start);
    for (size_t i = 0; i < MD5_LANES; i++)
        md5_plain(alone[i], data[i], 100);
    memcpy(beside, start, sizeof start);
    md5_one(beside[0], data[0], 100);
    if (md5_wide_there())
        md5_wide(beside[1], data[1], 100);
    else
        md5_plain(beside[1], data[1], 100);
    CHECK(!memcmp(beside, alone, 2 * sizeof alone[0]));
    memcpy(beside, start, sizeof start);
    md5_pair(beside[0], beside[1], data[0], data[1], 100);
    CHECK(!memcmp(beside, alone, 2 * sizeof alone[0]));
    for (int level = 0; level <= md5_lanes_level(); level++) {
        memcpy(beside, start, sizeof start);
        md5_lanes(level, h, data, 100);
        CHECK(!memcmp(beside, alone, sizeof alone));
    }
}
