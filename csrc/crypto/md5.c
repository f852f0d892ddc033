#include "crypto/md5.h"
#include "crypto/md5_steps.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

#define NOTHING(i)

#define ONE(f, a, b, c, d, k, s, t) a = left(a + word(data + 4 * (k)) + (t) + f(b, c, d), s) + b;

void md5_plain(uint32_t h[4], const uint8_t *data, size_t blocks)
{
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES) {
        uint32_t a0 = a, b0 = b, c0 = c, d0 = d;
        MD5_STEPS(ONE, NOTHING)
        a += a0, b += b0, c += c0, d += d0;
    }
    h[0] = a, h[1] = b, h[2] = c, h[3] = d;
}

#define TWO(f, a, b, c, d, k, s, t)                               \
    a = left(a + word(data + 4 * (k)) + (t) + f(b, c, d), s) + b; \
    a##2 = left(a##2 + word(data2 + 4 * (k)) + (t) + f(b##2, c##2, d##2), s) + b##2;

void md5_pair(uint32_t h[4], uint32_t h2[4], const uint8_t *data, const uint8_t *data2,
              size_t blocks)
{
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    uint32_t a2 = h2[0], b2 = h2[1], c2 = h2[2], d2 = h2[3];
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES, data2 += MD5_BLOCK_BYTES) {
        MD5_STEPS(TWO, NOTHING)
        h[0] = a += h[0], h[1] = b += h[1], h[2] = c += h[2], h[3] = d += h[3];
        h2[0] = a2 += h2[0], h2[1] = b2 += h2[1], h2[2] = c2 += h2[2], h2[3] = d2 += h2[3];
    }
}

#ifdef HAVE_X86
/* w[k] = word k of all lanes, for eight words from `at` of a block on. */
__attribute__((target("avx2"))) static inline void
turn(__m256i w[8], const uint8_t *const data[MD5_LANES], size_t at)
{
    __m256i r[8], q[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_si256((const __m256i *)(const void *)(data[i] + at));
    for (int i = 0; i < 8; i += 2) {
        q[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        q[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            r[i + 2 * k] = _mm256_unpacklo_epi64(q[i + k], q[i + k + 2]);
            r[i + 2 * k + 1] = _mm256_unpackhi_epi64(q[i + k], q[i + k + 2]);
        }
    for (int i = 0; i < 4; i++) {
        w[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        w[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
}

#define ADD _mm256_add_epi32
#define AND _mm256_and_si256
#define XOR _mm256_xor_si256
/* With AVX2, and with what AVX-512 has for them: any function of three bits, places to the left. */
#define AVX2_F(b, c, d) XOR(d, AND(b, XOR(c, d)))
#define AVX2_G(b, c, d) XOR(c, AND(d, XOR(b, c)))
#define AVX2_H(b, c, d) XOR(XOR(c, d), b)
#define AVX2_I(b, c, d) XOR(c, _mm256_or_si256(b, XOR(d, _mm256_set1_epi32(-1))))
#define AVX2_LEFT(x, s) _mm256_or_si256(_mm256_slli_epi32(x, s), _mm256_srli_epi32(x, 32 - (s)))
#define AVX512_F(b, c, d) _mm256_ternarylogic_epi32(b, c, d, 0xca)
#define AVX512_G(b, c, d) _mm256_ternarylogic_epi32(b, c, d, 0xe4)
#define AVX512_H(b, c, d) _mm256_ternarylogic_epi32(b, c, d, 0x96)
#define AVX512_I(b, c, d) _mm256_ternarylogic_epi32(b, c, d, 0x39)
#define AVX512_LEFT(x, s) _mm256_rol_epi32(x, s)
/* The function last: it alone waits for the step before. */
#define ALL(set, f, a, b, c, d, k, s, t)                                         \
    a = ADD(ADD(a, ADD(w[k], _mm256_set1_epi32((int)(t)))), set##_##f(b, c, d)); \
    a = ADD(set##_LEFT(a, s), b);
#define AVX2(f, a, b, c, d, k, s, t) ALL(AVX2, f, a, b, c, d, k, s, t)
#define AVX512(f, a, b, c, d, k, s, t) ALL(AVX512, f, a, b, c, d, k, s, t)

#define LANES(name, isa, set)                                                          \
    __attribute__((target(isa))) static void name(                                     \
        uint32_t h[4][MD5_LANES], const uint8_t *const data[MD5_LANES], size_t blocks) \
    {                                                                                  \
        __m256i *const at = (__m256i *)(void *)h;                                      \
        __m256i a = _mm256_loadu_si256(at), b = _mm256_loadu_si256(at + 1);            \
        __m256i c = _mm256_loadu_si256(at + 2), d = _mm256_loadu_si256(at + 3);        \
        for (size_t n = 0; n < blocks; n++) {                                          \
            __m256i w[16], a0 = a, b0 = b, c0 = c, d0 = d;                             \
            turn(w, data, n * MD5_BLOCK_BYTES);                                        \
            turn(w + 8, data, n * MD5_BLOCK_BYTES + 32);                               \
            MD5_STEPS(set, NOTHING)                                                    \
            a = ADD(a, a0), b = ADD(b, b0), c = ADD(c, c0), d = ADD(d, d0);            \
        }                                                                              \
        _mm256_storeu_si256(at, a);                                                    \
        _mm256_storeu_si256(at + 1, b);                                                \
        _mm256_storeu_si256(at + 2, c);                                                \
        _mm256_storeu_si256(at + 3, d);                                                \
    }

/* The sum with the function of the step before stays the last but one: a compiler that puts the
 * terms in another order (it may) makes each step an addition longer. */
#define WIDE(f, a, b, c, d, k, s, t)                                \
    sum = _mm_add_epi32(_mm_add_epi32(a, _mm_set1_epi32((int)(t))), \
                        _mm_set1_epi32((int)word(data + 4 * (k)))); \
    __asm__("" : "+v"(sum));                                        \
    a = _mm_add_epi32(_mm_rol_epi32(_mm_add_epi32(sum, WIDE_##f(b, c, d)), s), b);
#define WIDE_F(b, c, d) _mm_ternarylogic_epi32(b, c, d, 0xca)
#define WIDE_G(b, c, d) _mm_ternarylogic_epi32(b, c, d, 0xe4)
#define WIDE_H(b, c, d) _mm_ternarylogic_epi32(b, c, d, 0x96)
#define WIDE_I(b, c, d) _mm_ternarylogic_epi32(b, c, d, 0x39)

__attribute__((target("avx512f,avx512vl"))) void md5_wide(uint32_t h[4], const uint8_t *data,
                                                          size_t blocks)
{
    __m128i a = _mm_cvtsi32_si128((int)h[0]), b = _mm_cvtsi32_si128((int)h[1]);
    __m128i c = _mm_cvtsi32_si128((int)h[2]), d = _mm_cvtsi32_si128((int)h[3]), sum;
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES) {
        __m128i a0 = a, b0 = b, c0 = c, d0 = d;
        MD5_STEPS(WIDE, NOTHING)
        a = _mm_add_epi32(a, a0), b = _mm_add_epi32(b, b0);
        c = _mm_add_epi32(c, c0), d = _mm_add_epi32(d, d0);
    }
    h[0] = (uint32_t)_mm_cvtsi128_si32(a), h[1] = (uint32_t)_mm_cvtsi128_si32(b);
    h[2] = (uint32_t)_mm_cvtsi128_si32(c), h[3] = (uint32_t)_mm_cvtsi128_si32(d);
}

bool md5_wide_there(void)
{
    return __builtin_cpu_supports("avx512vl");
}

/* On AMD's processors an addition there takes two cycles. */
static bool wide_is_quick(void)
{
    return md5_wide_there() && __builtin_cpu_is("intel");
}

LANES(lanes_avx2, "avx2", AVX2)
LANES(lanes_avx512, "avx512f,avx512vl", AVX512)

int md5_lanes_level(void)
{
    return __builtin_cpu_supports("avx512vl") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
}
#else
int md5_lanes_level(void)
{
    return 0;
}

bool md5_wide_there(void)
{
    return false;
}

static bool wide_is_quick(void)
{
    return false;
}

void md5_wide(uint32_t h[4], const uint8_t *data, size_t blocks)
{
    md5_plain(h, data, blocks);
}
#endif

void md5_one(uint32_t h[4], const uint8_t *data, size_t blocks)
{
    (wide_is_quick() ? md5_wide : md5_plain)(h, data, blocks);
}

void md5_lanes(int level, uint32_t *const h[MD5_LANES], const uint8_t *const data[MD5_LANES],
               size_t blocks)
{
#ifdef HAVE_X86
    if (level) {
        uint32_t all[4][MD5_LANES];
        for (int k = 0; k < 4; k++)
            for (int lane = 0; lane < MD5_LANES; lane++)
                all[k][lane] = h[lane][k];
        (level > 1 ? lanes_avx512 : lanes_avx2)(all, data, blocks);
        for (int k = 0; k < 4; k++)
            for (int lane = 0; lane < MD5_LANES; lane++)
                h[lane][k] = all[k][lane];
        return;
    }
#endif
    (void)level;
    for (int lane = 0; lane < MD5_LANES; lane++)
        md5_one(h[lane], data[lane], blocks);
}
