#include "crypto/md5.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

/* STEP(function, a, b, c, d, word, places to the left, constant): RFC 1321, section 3.4. */
#define STEPS(STEP)                          \
    STEP(F, a, b, c, d, 0, 7, 0xd76aa478u)   \
    STEP(F, d, a, b, c, 1, 12, 0xe8c7b756u)  \
    STEP(F, c, d, a, b, 2, 17, 0x242070dbu)  \
    STEP(F, b, c, d, a, 3, 22, 0xc1bdceeeu)  \
    STEP(F, a, b, c, d, 4, 7, 0xf57c0fafu)   \
    STEP(F, d, a, b, c, 5, 12, 0x4787c62au)  \
    STEP(F, c, d, a, b, 6, 17, 0xa8304613u)  \
    STEP(F, b, c, d, a, 7, 22, 0xfd469501u)  \
    STEP(F, a, b, c, d, 8, 7, 0x698098d8u)   \
    STEP(F, d, a, b, c, 9, 12, 0x8b44f7afu)  \
    STEP(F, c, d, a, b, 10, 17, 0xffff5bb1u) \
    STEP(F, b, c, d, a, 11, 22, 0x895cd7beu) \
    STEP(F, a, b, c, d, 12, 7, 0x6b901122u)  \
    STEP(F, d, a, b, c, 13, 12, 0xfd987193u) \
    STEP(F, c, d, a, b, 14, 17, 0xa679438eu) \
    STEP(F, b, c, d, a, 15, 22, 0x49b40821u) \
    STEP(G, a, b, c, d, 1, 5, 0xf61e2562u)   \
    STEP(G, d, a, b, c, 6, 9, 0xc040b340u)   \
    STEP(G, c, d, a, b, 11, 14, 0x265e5a51u) \
    STEP(G, b, c, d, a, 0, 20, 0xe9b6c7aau)  \
    STEP(G, a, b, c, d, 5, 5, 0xd62f105du)   \
    STEP(G, d, a, b, c, 10, 9, 0x02441453u)  \
    STEP(G, c, d, a, b, 15, 14, 0xd8a1e681u) \
    STEP(G, b, c, d, a, 4, 20, 0xe7d3fbc8u)  \
    STEP(G, a, b, c, d, 9, 5, 0x21e1cde6u)   \
    STEP(G, d, a, b, c, 14, 9, 0xc33707d6u)  \
    STEP(G, c, d, a, b, 3, 14, 0xf4d50d87u)  \
    STEP(G, b, c, d, a, 8, 20, 0x455a14edu)  \
    STEP(G, a, b, c, d, 13, 5, 0xa9e3e905u)  \
    STEP(G, d, a, b, c, 2, 9, 0xfcefa3f8u)   \
    STEP(G, c, d, a, b, 7, 14, 0x676f02d9u)  \
    STEP(G, b, c, d, a, 12, 20, 0x8d2a4c8au) \
    STEP(H, a, b, c, d, 5, 4, 0xfffa3942u)   \
    STEP(H, d, a, b, c, 8, 11, 0x8771f681u)  \
    STEP(H, c, d, a, b, 11, 16, 0x6d9d6122u) \
    STEP(H, b, c, d, a, 14, 23, 0xfde5380cu) \
    STEP(H, a, b, c, d, 1, 4, 0xa4beea44u)   \
    STEP(H, d, a, b, c, 4, 11, 0x4bdecfa9u)  \
    STEP(H, c, d, a, b, 7, 16, 0xf6bb4b60u)  \
    STEP(H, b, c, d, a, 10, 23, 0xbebfbc70u) \
    STEP(H, a, b, c, d, 13, 4, 0x289b7ec6u)  \
    STEP(H, d, a, b, c, 0, 11, 0xeaa127fau)  \
    STEP(H, c, d, a, b, 3, 16, 0xd4ef3085u)  \
    STEP(H, b, c, d, a, 6, 23, 0x04881d05u)  \
    STEP(H, a, b, c, d, 9, 4, 0xd9d4d039u)   \
    STEP(H, d, a, b, c, 12, 11, 0xe6db99e5u) \
    STEP(H, c, d, a, b, 15, 16, 0x1fa27cf8u) \
    STEP(H, b, c, d, a, 2, 23, 0xc4ac5665u)  \
    STEP(I, a, b, c, d, 0, 6, 0xf4292244u)   \
    STEP(I, d, a, b, c, 7, 10, 0x432aff97u)  \
    STEP(I, c, d, a, b, 14, 15, 0xab9423a7u) \
    STEP(I, b, c, d, a, 5, 21, 0xfc93a039u)  \
    STEP(I, a, b, c, d, 12, 6, 0x655b59c3u)  \
    STEP(I, d, a, b, c, 3, 10, 0x8f0ccc92u)  \
    STEP(I, c, d, a, b, 10, 15, 0xffeff47du) \
    STEP(I, b, c, d, a, 1, 21, 0x85845dd1u)  \
    STEP(I, a, b, c, d, 8, 6, 0x6fa87e4fu)   \
    STEP(I, d, a, b, c, 15, 10, 0xfe2ce6e0u) \
    STEP(I, c, d, a, b, 6, 15, 0xa3014314u)  \
    STEP(I, b, c, d, a, 13, 21, 0x4e0811a1u) \
    STEP(I, a, b, c, d, 4, 6, 0xf7537e82u)   \
    STEP(I, d, a, b, c, 11, 10, 0xbd3af235u) \
    STEP(I, c, d, a, b, 2, 15, 0x2ad7d2bbu)  \
    STEP(I, b, c, d, a, 9, 21, 0xeb86d391u)

/* G is a sum instead of an or: no bit is in both terms, and the first does not wait for b. */
#define F(b, c, d) ((d) ^ ((b) & ((c) ^ (d))))
#define G(b, c, d) (((c) & ~(d)) + ((b) & (d)))
#define H(b, c, d) (((c) ^ (d)) ^ (b))
#define I(b, c, d) ((c) ^ ((b) | ~(d)))

static inline uint32_t left(uint32_t x, int places)
{
    return x << places | x >> (32 - places);
}

static inline uint32_t word(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

#define ONE(f, a, b, c, d, k, s, t) a = left(a + word(data + 4 * (k)) + (t) + f(b, c, d), s) + b;

void md5_one(uint32_t h[4], const uint8_t *data, size_t blocks)
{
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES) {
        uint32_t a0 = a, b0 = b, c0 = c, d0 = d;
        STEPS(ONE)
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
        STEPS(TWO)
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
            STEPS(set)                                                                 \
            a = ADD(a, a0), b = ADD(b, b0), c = ADD(c, c0), d = ADD(d, d0);            \
        }                                                                              \
        _mm256_storeu_si256(at, a);                                                    \
        _mm256_storeu_si256(at + 1, b);                                                \
        _mm256_storeu_si256(at + 2, c);                                                \
        _mm256_storeu_si256(at + 3, d);                                                \
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
#endif

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
