/* SHA-256 with the processor's own instructions, alone or in the waits of MD5 (FIPS 180-4, 6.2). */
#include "crypto/md5.h"
#include "crypto/md5_steps.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define ISA __attribute__((target("sha,sse4.1,ssse3,bmi,bmi2")))

bool md5_sha256_there(void)
{
    unsigned a, b = 0, c, d;
    bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
    return sha && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

/* FIPS 180-4, 4.2.2. */
static const uint32_t constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The words of the state as the instructions want them. */
typedef struct sha_state {
    __m128i abef, cdgh;
} sha_state;

ISA static inline sha_state state_of(const uint32_t sha[8])
{
    __m128i dcba = _mm_loadu_si128((const __m128i *)(const void *)sha);
    __m128i hgfe = _mm_loadu_si128((const __m128i *)(const void *)(sha + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    return (sha_state){_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

ISA static inline void put_state(uint32_t sha[8], sha_state s)
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)sha, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(sha + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Rounds 4i to 4i + 3; w keeps the last sixteen words of the schedule. */
ISA static inline __attribute__((always_inline)) void four_rounds(sha_state *s, __m128i w[4],
                                                                  const uint8_t *data, int i)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i k = _mm_load_si128((const __m128i *)(const void *)(constants + 4 * i));
    __m128i *now = &w[i % 4], last = w[(i + 3) % 4];
    if (i < 4)
        *now =
            _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * i)), swap);
    else
        *now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) % 4]),
                                                  _mm_alignr_epi8(last, w[(i + 2) % 4], 4)),
                                    last);
    __m128i sum = _mm_add_epi32(*now, k);
    s->cdgh = _mm_sha256rnds2_epu32(s->cdgh, s->abef, sum);
    s->abef = _mm_sha256rnds2_epu32(s->abef, s->cdgh, _mm_shuffle_epi32(sum, 0x0e));
}

#define SHA_ROW(i) four_rounds(&s, w, data, i);
#define MD5_STEP(f, a, b, c, d, k, places, t) \
    a = left(a + word(data + 4 * (k)) + (t) + f(b, c, d), places) + b;

ISA void md5_sha256(uint32_t h[4], uint32_t sha[8], const uint8_t *data, size_t blocks)
{
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    sha_state s = state_of(sha);
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES) {
        uint32_t a0 = a, b0 = b, c0 = c, d0 = d;
        sha_state s0 = s;
        __m128i w[4] = {0};
        MD5_STEPS(MD5_STEP, SHA_ROW)
        a += a0, b += b0, c += c0, d += d0;
        s.abef = _mm_add_epi32(s.abef, s0.abef), s.cdgh = _mm_add_epi32(s.cdgh, s0.cdgh);
    }
    h[0] = a, h[1] = b, h[2] = c, h[3] = d;
    put_state(sha, s);
}

#define NOT_MD5(f, a, b, c, d, k, places, t)

ISA void sha256_only(uint32_t sha[8], const uint8_t *data, size_t blocks)
{
    sha_state s = state_of(sha);
    for (; blocks; blocks--, data += MD5_BLOCK_BYTES) {
        sha_state s0 = s;
        __m128i w[4] = {0};
        MD5_STEPS(NOT_MD5, SHA_ROW)
        s.abef = _mm_add_epi32(s.abef, s0.abef), s.cdgh = _mm_add_epi32(s.cdgh, s0.cdgh);
    }
    put_state(sha, s);
}
#else
/* Nobody asks for a sum that is not there: udt_md5_sha256_init refuses. */
bool md5_sha256_there(void)
{
    return false;
}

void md5_sha256(uint32_t h[4], uint32_t sha[8], const uint8_t *data, size_t blocks)
{
    (void)sha;
    md5_one(h, data, blocks);
}

void sha256_only(uint32_t sha[8], const uint8_t *data, size_t blocks)
{
    (void)sha, (void)data, (void)blocks;
}
#endif
