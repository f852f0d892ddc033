/* MD5 of several streams side by side. One stream waits for itself in every step; the steps of
 * others fit into that wait, so two cost little more than one, and eight share the vector units.
 * RFC 1321. For ETags of S3, not for security.
 */
#ifndef CRYPTO_MD5_H
#define CRYPTO_MD5_H

#include "udt.h"

#define MD5_BLOCK_BYTES 64
#define MD5_LANES 8

/* So many whole blocks of one, two or eight streams. */
void md5_one(uint32_t h[4], const uint8_t *data, size_t blocks);
void md5_pair(uint32_t h[4], uint32_t h2[4], const uint8_t *data, const uint8_t *data2,
              size_t blocks);
/* What this processor has for eight: 0 nothing, 1 AVX2, 2 AVX-512. */
int md5_lanes_level(void);
/* With at most that; 0 does one after the other. h[k] and data[k] are of one stream; of data,
 * places may be alike. */
void md5_lanes(int level, uint32_t *const h[MD5_LANES], const uint8_t *const data[MD5_LANES],
               size_t blocks);

#endif
