/* Streams of any lengths over the block functions of md5.c. */
#include "crypto/md5.h"

#include <stdbool.h>
#include <string.h>

/* Of lines with SHA-256 so many blocks at a time: that what MD5 read is in the cache for it. */
enum { BLOCKS_NEAR = 64 };

void udt_md5_init(udt_md5 *m)
{
    static const uint32_t first[4] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
    memcpy(m->h, first, sizeof first);
    m->size = 0;
    m->with_sha256 = 0;
}

int udt_md5_sha256_there(void)
{
    return md5_sha256_there();
}

int udt_md5_sha256_init(udt_md5 *m)
{
    static const uint32_t first[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    udt_md5_init(m);
    if (!md5_sha256_there())
        return -1;
    memcpy(m->sha256, first, sizeof first);
    m->with_sha256 = 1;
    return 0;
}

static void whole_blocks(udt_md5 *m, const uint8_t *data, size_t blocks)
{
    if (m->with_sha256)
        md5_sha256(m->h, m->sha256, data, blocks);
    else
        md5_one(m->h, data, blocks);
}

/* Bytes up to the end of a block that was begun, and of a stretch shorter than a block. How many.
 */
static size_t fill(udt_md5 *m, const uint8_t *data, size_t len)
{
    size_t have = m->size % MD5_BLOCK_BYTES, n = MD5_BLOCK_BYTES - have;
    if (!have && len >= MD5_BLOCK_BYTES)
        return 0;
    if (n > len)
        n = len;
    memcpy(m->rest + have, data, n);
    m->size += n;
    if (n && m->size % MD5_BLOCK_BYTES == 0)
        whole_blocks(m, m->rest, 1);
    return n;
}

void udt_md5_update(udt_md5 *m, const uint8_t *data, size_t len)
{
    while (len) {
        size_t n = fill(m, data, len);
        if (!n) {
            n = len - len % MD5_BLOCK_BYTES;
            whole_blocks(m, data, n / MD5_BLOCK_BYTES);
            m->size += n;
        }
        data += n;
        len -= n;
    }
}

/* Come to where whole blocks begin; false at the line's end. */
static bool ready(udt_md5_line *line)
{
    for (; line->count; line->spans++, line->count--) {
        udt_span *s = line->spans;
        while (s->len) {
            size_t n = fill(line->sum, s->data, s->len);
            if (!n)
                return true;
            s->data += n;
            s->len -= n;
        }
    }
    return false;
}

/* The whole blocks that all of n lines have before them, BLOCKS_NEAR at most if a line of several
 * has SHA-256. */
static size_t common_blocks(udt_md5_line *const lines[], size_t n)
{
    size_t blocks = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t most = lines[i]->spans->len / MD5_BLOCK_BYTES;
        if (n > 1 && lines[i]->sum->with_sha256 && most > BLOCKS_NEAR)
            most = BLOCKS_NEAR;
        if (most < blocks)
            blocks = most;
    }
    return blocks;
}

/* MD5 of several lines at once. */
static void md5_of_all(udt_md5_line *const lines[], size_t n, int level, size_t blocks)
{
    uint32_t *h[MD5_LANES], none[4] = {0};
    const uint8_t *data[MD5_LANES];
    for (size_t i = 0; i < MD5_LANES; i++) {
        h[i] = i < n ? lines[i]->sum->h : none;
        data[i] = lines[i < n ? i : 0]->spans->data;
    }
    if (n == 2)
        md5_pair(h[0], h[1], data[0], data[1], blocks);
    else
        md5_lanes(level, h, data, blocks);
}

/* Whole blocks of 1 to MD5_LANES lines. With no vector code two go on. */
static void advance(udt_md5_line *const lines[], size_t n)
{
    int level = md5_lanes_level();
    if (n > 2 && !level)
        n = 2;
    size_t blocks = common_blocks(lines, n);
    if (n > 1)
        md5_of_all(lines, n, level, blocks);
    for (size_t i = 0; i < n; i++) {
        udt_md5 *sum = lines[i]->sum;
        udt_span *span = lines[i]->spans;
        if (n == 1)
            whole_blocks(sum, span->data, blocks);
        else if (sum->with_sha256)
            sha256_only(sum->sha256, span->data, blocks);
        sum->size += blocks * MD5_BLOCK_BYTES;
        span->data += blocks * MD5_BLOCK_BYTES;
        span->len -= blocks * MD5_BLOCK_BYTES;
    }
}

void udt_md5_update_lines(udt_md5_line *lines, size_t count)
{
    udt_md5_line *going[MD5_LANES];
    size_t n = 0, next = 0;
    for (;;) {
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (ready(going[i]))
                going[kept++] = going[i];
        for (n = kept; n < MD5_LANES && next < count; next++)
            if (ready(&lines[next]))
                going[n++] = &lines[next];
        if (!n)
            return;
        advance(going, n);
    }
}

/* The stream as its padding leaves it: 0x80, zeros, and its bits, which MD5 counts from the least
 * byte and SHA-256 from the greatest. */
static udt_md5 padded(const udt_md5 *m, bool greatest_first)
{
    udt_md5 end = *m;
    uint64_t bits = m->size * 8;
    uint8_t tail[2 * MD5_BLOCK_BYTES] = {0x80};
    size_t have = m->size % MD5_BLOCK_BYTES;
    size_t n = (have < MD5_BLOCK_BYTES - 8 ? MD5_BLOCK_BYTES : 2 * MD5_BLOCK_BYTES) - have;
    for (size_t i = 0; i < 8; i++)
        tail[n - 8 + i] = (uint8_t)(bits >> 8 * (greatest_first ? 7 - i : i));
    udt_md5_update(&end, tail, n);
    return end;
}

void udt_md5_digest(const udt_md5 *m, uint8_t out[16])
{
    udt_md5 end = padded(m, false);
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(end.h[i / 4] >> 8 * (i % 4));
}

void udt_md5_sha256_digest(const udt_md5 *m, uint8_t out[32])
{
    udt_md5 end = padded(m, true);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(end.sha256[i / 4] >> 8 * (3 - i % 4));
}
