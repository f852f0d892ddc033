/* Who sent what a port refused: a few sources with counts, for one line in an audit log instead of
 * one per datagram. Bounded: when all places are taken by sources of the last minute, further ones
 * count in the totals alone. Addresses of datagrams are not proved; ports are left out. */
#ifndef BASE_REFUSED_H
#define BASE_REFUSED_H

#include "udt_types.h"

enum { REFUSED_SOURCES = 32 };
#define REFUSED_KEEP_US 120000000 /* a quiet source gives its place away after this */

typedef struct refused_source {
    udt_addr from; /* port 0; family 0 = free */
    int64_t n[UDT_REFUSED_KINDS];
    udt_time last;
} refused_source;

typedef struct refused_log {
    int64_t total[UDT_REFUSED_KINDS]; /* since the port was opened */
    refused_source source[REFUSED_SOURCES];
    uint32_t hit; /* the place used last */
} refused_log;

void refused_note(refused_log *l, const udt_addr *from, int kind, udt_time now);

#endif
