/* MD5 of several streams side by side. One stream waits for itself in every step; the steps of
 * others fit into that wait, so two cost little more than one, and eight share the vector units.
 * So does SHA-256 of the same stream. RFC 1321, FIPS 180-4. MD5 is for ETags of S3, not for
 * security.
 */
#ifndef CRYPTO_MD5_H
#define CRYPTO_MD5_H

#include "udt.h"

#include <stdbool.h>

#define MD5_BLOCK_BYTES 64
#define MD5_LANES 8

/* So many whole blocks of one, two or eight streams. Of one in the ordinary registers, or in those
 * for vectors (if that is there), or in which it is quicker here. */
void md5_plain(uint32_t h[4], const uint8_t *data, size_t blocks);
bool md5_wide_there(void);
void md5_wide(uint32_t h[4], const uint8_t *data, size_t blocks);
void md5_one(uint32_t h[4], const uint8_t *data, size_t blocks);
void md5_pair(uint32_t h[4], uint32_t h2[4], const uint8_t *data, const uint8_t *data2,
              size_t blocks);
/* What this processor has for eight: 0 nothing, 1 AVX2, 2 AVX-512. */
int md5_lanes_level(void);
/* With at most that; 0 does one after the other. h[k] and data[k] are of one stream; of data,
 * places may be alike. */
void md5_lanes(int level, uint32_t *const h[MD5_LANES], const uint8_t *const data[MD5_LANES],
               size_t blocks);

/* Whether this processor has what the two below need: the SHA extensions of x86. */
bool md5_sha256_there(void);
/* MD5 (h) and SHA-256 (sha) of the same blocks in about the time of MD5, or SHA-256 alone. */
void md5_sha256(uint32_t h[4], uint32_t sha[8], const uint8_t *data, size_t blocks);
void sha256_only(uint32_t sha[8], const uint8_t *data, size_t blocks);

#endif
