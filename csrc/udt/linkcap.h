/* Rate caps that connections of a port share: of the whole port, or of all peers under an address
 * prefix. Each burst of a connection books its time in every cap that holds for its peer, in the
 * order of asking, so connections that have something to send get equal shares. */
#ifndef UDT_LINKCAP_H
#define UDT_LINKCAP_H

#include "udt_types.h"

#define LINKCAPS 64 /* of one port */

typedef struct udt_linkcap {
    udt_addr prefix; /* family 0: every peer */
    int bits;
    int64_t Bps;     /* bytes of IP packets a second, 0 = this entry is free */
    int64_t next_ns; /* booked until then */
} udt_linkcap;

typedef struct udt_linkcaps {
    udt_linkcap *cap; /* LINKCAPS entries, NULL before the first cap */
    int used;         /* entries from the start that may be taken */
} udt_linkcaps;

void udt_linkcaps_fini(udt_linkcaps *l);
/* Set, change or (Bps 0) remove a cap; enum udt_err. */
int udt_linkcaps_set(udt_linkcaps *l, const udt_addr *prefix, int bits, int64_t Bps);
/* Book a burst of at most *pkts packets of `bytes` to `to`, no earlier than now_ns: lowers *pkts to
 * what a burst may hold and returns when it may go. */
int64_t udt_linkcaps_book(udt_linkcaps *l, const udt_addr *to, int *pkts, uint32_t bytes,
                          int64_t now_ns);
/* Equal shares of n senders to `to`: Bps[i] is the smallest of those caps' that hold for to[i], 0
 * where none does. */
void udt_linkcaps_shares(const udt_linkcaps *l, const udt_addr *to, int n, int64_t *Bps);

#endif
