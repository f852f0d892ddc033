/* Streams of any lengths over the block functions of md5.c. */
#include "crypto/md5.h"

#include <stdbool.h>
#include <string.h>

void udt_md5_init(udt_md5 *m)
{
    static const uint32_t first[4] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
    memcpy(m->h, first, sizeof first);
    m->size = 0;
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
        md5_one(m->h, m->rest, 1);
    return n;
}

void udt_md5_update(udt_md5 *m, const uint8_t *data, size_t len)
{
    while (len) {
        size_t n = fill(m, data, len);
        if (!n) {
            n = len - len % MD5_BLOCK_BYTES;
            md5_one(m->h, data, n / MD5_BLOCK_BYTES);
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

/* The least whole blocks that all have before them: n of 1 to MD5_LANES lines. With no vector code
 * two go on. */
static void advance(udt_md5_line *const lines[], size_t n)
{
    int level = md5_lanes_level();
    if (n > 2 && !level)
        n = 2;
    size_t blocks = SIZE_MAX;
    for (size_t i = 0; i < n; i++)
        if (lines[i]->spans->len / MD5_BLOCK_BYTES < blocks)
            blocks = lines[i]->spans->len / MD5_BLOCK_BYTES;
    if (n == 1) {
        md5_one(lines[0]->sum->h, lines[0]->spans->data, blocks);
    } else if (n == 2) {
        md5_pair(lines[0]->sum->h, lines[1]->sum->h, lines[0]->spans->data, lines[1]->spans->data,
                 blocks);
    } else {
        uint32_t *h[MD5_LANES], none[4] = {0};
        const uint8_t *data[MD5_LANES];
        for (size_t i = 0; i < MD5_LANES; i++) {
            h[i] = i < n ? lines[i]->sum->h : none;
            data[i] = lines[i < n ? i : 0]->spans->data;
        }
        md5_lanes(level, h, data, blocks);
    }
    for (size_t i = 0; i < n; i++) {
        lines[i]->sum->size += blocks * MD5_BLOCK_BYTES;
        lines[i]->spans->data += blocks * MD5_BLOCK_BYTES;
        lines[i]->spans->len -= blocks * MD5_BLOCK_BYTES;
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

void udt_md5_digest(const udt_md5 *m, uint8_t out[16])
{
    udt_md5 end = *m;
    uint64_t bits = m->size * 8;
    uint8_t tail[2 * MD5_BLOCK_BYTES] = {0x80};
    size_t have = m->size % MD5_BLOCK_BYTES;
    size_t n = (have < MD5_BLOCK_BYTES - 8 ? MD5_BLOCK_BYTES : 2 * MD5_BLOCK_BYTES) - have;
    for (int i = 0; i < 8; i++)
        tail[n - 8 + (size_t)i] = (uint8_t)(bits >> 8 * i);
    udt_md5_update(&end, tail, n);
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(end.h[i / 4] >> 8 * (i % 4));
}
