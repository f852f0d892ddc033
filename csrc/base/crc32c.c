/* Two versions: eight tables (any machine) and, where the processor has it, the crc32 instruction
 * on three stripes at once: the instruction takes three cycles but one can start in every cycle.
 * Stripes are joined by a carry-less multiplication with x^(8n) mod P. */
#include "base/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

#define POLY 0x82f63b78u /* reflected 0x1EDC6F41 */

static uint32_t table[8][256];

static uint64_t le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

uint32_t crc32c_portable(uint32_t crc, const uint8_t *buf, size_t len)
{
    uint32_t c = ~crc;
    for (; len >= 8; buf += 8, len -= 8) {
        uint64_t v = le64(buf) ^ c;
        c = table[7][v & 255] ^ table[6][v >> 8 & 255] ^ table[5][v >> 16 & 255] ^
            table[4][v >> 24 & 255] ^ table[3][v >> 32 & 255] ^ table[2][v >> 40 & 255] ^
            table[1][v >> 48 & 255] ^ table[0][v >> 56];
    }
    while (len--)
        c = table[0][(c ^ *buf++) & 255] ^ c >> 8;
    return ~c;
}

#ifdef HAVE_X86
enum { LONG = 1024, SHORT = 128 }; /* bytes of one stripe, multiples of 8 */
static struct {
    uint32_t one, two; /* factors that move a remainder over one or two stripes */
} long_k, short_k;
static int have_fast;

/* x^n mod P, reflected: bit 31 is x^0. */
static uint32_t x_pow(uint64_t n)
{
    uint32_t r = 1u << 31;
    while (n--)
        r = r >> 1 ^ (r & 1 ? POLY : 0);
    return r;
}

/* The crc32 instruction multiplies by x^32 and a reflected product is one place off, so the factor
 * for n bytes is x^(8n-33). */
__attribute__((target("sse4.2,pclmul"))) static uint64_t shift(uint32_t crc, uint32_t k)
{
    __m128i p = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi32_si128((int)k), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(p));
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
stripes(uint64_t c, const uint8_t *buf, size_t n, uint32_t one, uint32_t two)
{
    uint64_t c1 = 0, c2 = 0;
    for (const uint8_t *end = buf + n; buf < end; buf += 8) {
        c = _mm_crc32_u64(c, le64(buf));
        c1 = _mm_crc32_u64(c1, le64(buf + n));
        c2 = _mm_crc32_u64(c2, le64(buf + 2 * n));
    }
    return shift((uint32_t)c, two) ^ shift((uint32_t)c1, one) ^ c2;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t fast(uint32_t crc, const uint8_t *buf,
                                                              size_t len)
{
    uint64_t c = ~crc;
    for (; len >= 3 * LONG; buf += 3 * LONG, len -= 3 * LONG)
        c = stripes(c, buf, LONG, long_k.one, long_k.two);
    for (; len >= 3 * SHORT; buf += 3 * SHORT, len -= 3 * SHORT)
        c = stripes(c, buf, SHORT, short_k.one, short_k.two);
    for (; len >= 8; buf += 8, len -= 8)
        c = _mm_crc32_u64(c, le64(buf));
    while (len--)
        c = _mm_crc32_u8((uint32_t)c, *buf++);
    return ~(uint32_t)c;
}
#endif

__attribute__((constructor(101))) static void crc32c_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? POLY : 0);
        table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            table[t][i] = table[0][table[t - 1][i] & 255] ^ table[t - 1][i] >> 8;
#ifdef HAVE_X86
    long_k.one = x_pow(8 * LONG - 33);
    long_k.two = x_pow(16 * LONG - 33);
    short_k.one = x_pow(8 * SHORT - 33);
    short_k.two = x_pow(16 * SHORT - 33);
    __builtin_cpu_init();
    have_fast = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#endif
}

uint32_t udt_crc32c(uint32_t crc, const uint8_t *buf, size_t len)
{
#ifdef HAVE_X86
    if (have_fast)
        return fast(crc, buf, len);
#endif
    return crc32c_portable(crc, buf, len);
}
