#include "sdc/blocks.h"

#include "base/crc32c.h"
#include "crypto/aead.h"
#include "udt.h"

#include <stdlib.h>
#include <string.h>

void sdc_blocks_fini(sdc_blocks *b)
{
    free(b->crcs);
    memset(b, 0, sizeof *b);
}

static int close_block(sdc_blocks *b)
{
    if (b->n == b->cap) {
        uint64_t cap = b->cap ? (uint64_t)b->cap * 2 : 16;
        if (cap > UINT32_MAX)
            return UDT_E_TOOBIG;
        uint32_t *crcs = realloc(b->crcs, (size_t)cap * sizeof *crcs);
        if (!crcs)
            return UDT_E_NOMEM;
        b->crcs = crcs;
        b->cap = (uint32_t)cap;
    }
    b->crcs[b->n++] = b->crc;
    b->crc = 0;
    b->filled = 0;
    return 0;
}

int sdc_blocks_add(sdc_blocks *b, const uint8_t *data, size_t len)
{
    while (len > 0) {
        size_t n = UDT_BLOCK_BYTES - b->filled;
        if (n > len)
            n = len;
        b->crc = udt_crc32c(b->crc, data, n);
        b->filled += (uint32_t)n;
        b->size += n;
        data += n;
        len -= n;
        if (b->filled == UDT_BLOCK_BYTES) {
            int rc = close_block(b);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

static void put_le(uint8_t *out, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(v >> 8 * i);
}

int sdc_blocks_end(sdc_blocks *b, uint8_t digest[32])
{
    uint8_t le[8];
    if (b->filled > 0) {
        int rc = close_block(b);
        if (rc != 0)
            return rc;
    }
    sha256 *h = sha256_new();
    if (!h)
        return UDT_E_NOMEM;
    for (uint32_t i = 0; i < b->n; i++) {
        put_le(le, b->crcs[i], 4);
        sha256_update(h, le, 4);
    }
    put_le(le, b->size, 8);
    sha256_update(h, le, 8);
    sha256_final(h, digest);
    return 0;
}
