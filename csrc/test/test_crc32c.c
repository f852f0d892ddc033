#include "base/crc32c.h"
#include "test.h"

#include <time.h>

/* The definition, bit by bit. */
static uint32_t slow(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    return ~c;
}

/* RFC 3720, appendix B.4, and the usual check value. */
TEST(crc32c_published_vectors)
{
    uint8_t b[32];
    CHECK_INT(udt_crc32c(0, (const uint8_t *)"123456789", 9), 0xe3069283u);
    memset(b, 0, 32);
    CHECK_INT(udt_crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    CHECK_INT(udt_crc32c(0, b, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    CHECK_INT(udt_crc32c(0, b, 32), 0x46dd794eu);
    CHECK_INT(crc32c_portable(0, b, 32), 0x46dd794eu);
    CHECK_INT(udt_crc32c(0, NULL, 0), 0);
}

TEST(crc32c_all_lengths_offsets_and_splits_agree)
{
    enum { N = 7000 };
    static uint8_t b[N + 16];
    uint64_t s = test_seed;
    for (size_t i = 0; i < sizeof b; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        b[i] = (uint8_t)(s >> 56);
    }
    for (size_t len = 0; len < N; len += len < 1200 ? 1 : 37) {
        const uint8_t *p = b + len % 9;
        uint32_t want = slow(p, len);
        size_t cut = len ? (size_t)(s >> 33) % len : 0;
        CHECK_INT(udt_crc32c(0, p, len), want);
        CHECK_INT(crc32c_portable(0, p, len), want);
        CHECK_INT(udt_crc32c(udt_crc32c(0, p, cut), p + cut, len - cut), want);
        s = s * 6364136223846793005u + 1;
    }
}

static double rate(uint32_t (*fn)(uint32_t, const uint8_t *, size_t), const uint8_t *b, size_t n)
{
    struct timespec t0, t1;
    uint32_t c = 0;
    int rounds = (int)((256u << 20) / n);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (int i = 0; i < rounds; i++)
        c = fn(c, b, n);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double sec = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    return (double)n * rounds / sec / 1e9 + (c == 1 ? 1e-12 : 0);
}

TEST_ALONE(crc32c_speed_is_printed)
{
    static uint8_t b[65536];
    if (test_scale < 100)
        return;
    printf("# crc32c: 64 KiB %.1f GB/s, 1 KiB %.1f GB/s, tables %.1f GB/s\n",
           rate(udt_crc32c, b, 65536), rate(udt_crc32c, b, 1024), rate(crc32c_portable, b, 65536));
}
