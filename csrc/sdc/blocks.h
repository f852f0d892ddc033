/* Block checksums and digest of a file while its bytes pass: one CRC32C per UDT_BLOCK_BYTES, and
 * SHA-256 over those (little-endian) and the size (u64, little-endian). */
#ifndef SDC_BLOCKS_H
#define SDC_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

typedef struct sdc_blocks {
    uint32_t *crcs;  /* finished blocks: n, room for cap; owned */
    uint32_t n, cap; /* n grows by 1 per MiB of file, 4 bytes each */
    uint32_t crc;    /* of the block under way, over `filled` bytes */
    uint32_t filled;
    uint64_t size; /* bytes so far */
} sdc_blocks;

void sdc_blocks_fini(sdc_blocks *b); /* a zeroed struct is a fresh one */
/* 0, NOMEM or TOOBIG (2^32 blocks). */
int sdc_blocks_add(sdc_blocks *b, const uint8_t *data, size_t len);
/* Ends the last block; call it once. 0 or NOMEM. */
int sdc_blocks_end(sdc_blocks *b, uint8_t digest[32]);

#endif
