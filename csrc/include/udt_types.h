/* Value types shared by the public UDT and GMP headers and by the sans-IO engines. */
#ifndef UDT_TYPES_H
#define UDT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Monotonic time in microseconds; the origin is arbitrary, 0 is a valid time. */
typedef int64_t udt_time;
#define UDT_NEVER INT64_MAX

/* A UDP endpoint. IPv4 lies in the first four bytes of `ip` with family 4; v4-mapped IPv6
 * addresses are normalised to family 4 before they enter an engine. Family 0 = no address. */
typedef struct udt_addr {
    uint16_t family; /* 0, 4 or 6 */
    uint16_t port;   /* host byte order */
    uint8_t ip[16];
    uint32_t scope; /* IPv6 scope id of link-local addresses, else 0 */
} udt_addr;

/* Why a port had no use for a datagram that claims to be of somebody known. */
enum udt_refused_kind {
    UDT_REFUSED_KEY,    /* under an unknown key, or not genuine */
    UDT_REFUSED_REPLAY, /* its packet number was seen, or is too old */
    UDT_REFUSED_TICKET, /* opens a keyed connection that is over, or never was */
    UDT_REFUSED_KINDS
};

/* Source of random bytes of an engine: getrandom() in a process, a seeded generator in tests. */
typedef void (*udt_rand_fn)(void *arg, uint8_t *buf, size_t len);

#endif
