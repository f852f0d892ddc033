/* CRC-32C (Castagnoli), reflected, initial value and final xor ~0: the checksum of blocks at rest,
 * of over-size messages and of unauthenticated datagrams. The public name is udt_crc32c (udt.h). */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue `crc` (0 to start) over len bytes; chains: f(f(0, a), b) = f(0, ab). */
uint32_t udt_crc32c(uint32_t crc, const uint8_t *buf, size_t len);
/* The table-driven version, for machines without SSE4.2 and to test the other against. */
uint32_t crc32c_portable(uint32_t crc, const uint8_t *buf, size_t len);

#endif
