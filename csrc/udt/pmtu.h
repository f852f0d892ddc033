/* What the path carries (RFC 8899 in outline; decisions/0097). A packet that is larger than the
 * path's MTU vanishes where ICMP is filtered, and only such packets do. So when large packets fail
 * and keep failing, sizes are tried: padded packets that the peer answers, one of each size, the
 * smallest first. The largest that is answered is the size from then on. Sizes are MSS, that is
 * datagram + 28, in both families.
 *
 * Packets that were not sent yet are cut anew. One that was sent keeps its number and its bytes, so
 * it goes out once more as it is, for the network to cut: without don't-fragment. */
#ifndef UDT_PMTU_H
#define UDT_PMTU_H

#include "udt/mux.h"

struct udt_conn;

enum { PMTU_RUNGS = 16, PMTU_PATHS = 64 };
#define PMTU_RAISE_US 600000000 /* after that larger sizes are tried again */

enum pmtu_search { PMTU_REST, PMTU_FALL, PMTU_RAISE };

typedef struct udt_pmtu {
    uint32_t now;              /* largest packet that is sent whole; UDT_MSS_MIN <= now <= top */
    uint32_t top;              /* what the two ends agreed on */
    uint8_t search;            /* enum pmtu_search */
    uint8_t round, n;          /* of the search; sizes in it */
    uint8_t due;               /* sizes of this round that were sent */
    uint16_t size[PMTU_RUNGS]; /* ascending; a fall ends with `now`, a raise with `top` */
    uint32_t sub[PMTU_RUNGS];  /* foreign peer: number of the ACK that carried it */
    uint64_t token;            /* own mode: of the first size, those of the others follow */
    int best;                  /* the largest that was answered, -1 = none */
    int useless;               /* searches in a row that found nothing wrong */
    udt_time again_at;         /* no search for a fall before */
    udt_time full_at;          /* when a packet of about `now` was known to have arrived */
    udt_time since;            /* of the search */
    int64_t stuck;             /* the next packet that the peer waits for, and has room for: */
    udt_time stuck_at;         /* which, and since when; UDT_NEVER = none was seen to be */
} udt_pmtu;

/* A path on which full packets failed, for connections that come later. */
typedef struct udt_path_mtu {
    udt_addr addr; /* without port; family 0 = free */
    uint32_t mss;
    udt_time until;
} udt_path_mtu;

/* The connection is open: c->mss and c->payload are known. */
void udt__pmtu_open(struct udt_conn *c, udt_time now);
/* The same with new buffers. */
void udt__pmtu_again(struct udt_conn *c);
/* The peer takes packets of `mss` at most. `proved`: so large a packet has passed, 0 = none. */
void udt__pmtu_peer(struct udt_conn *c, uint32_t mss, uint32_t proved, udt_time now);
/* Packet `idx` goes out again, or the tail is probed once more: is it because of its size? */
void udt__pmtu_suspect(struct udt_conn *c, int64_t idx, udt_time now);
/* The peer is there and answers, but the packet that it waits for has not arrived for the time in
 * which a silent peer counts as dead: it was numbered too large for the path, which drops the
 * pieces too, or something on the way takes away data and lets pass what is small. Asked when the
 * tail is probed. */
bool udt__pmtu_stuck(struct udt_conn *c, udt_time now);
/* A packet with `len` bytes of payload has arrived. */
static inline bool udt__pmtu_is_full(uint32_t len, uint32_t fill)
{
    return len + 16 >= fill;
}
/* Another host or network: nothing is known of the path. */
void udt__pmtu_moved(struct udt_conn *c, udt_time now);
/* The next padded packet of a search, 0 = none is due. Plain: the caller seals it. */
size_t udt__pmtu_emit(struct udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
/* Answers: a PATH_RESPONSE, or the confirmation of an ACK. False: not to a search. */
bool udt__pmtu_answer(struct udt_conn *c, uint64_t token, udt_time now);
bool udt__pmtu_ack2(struct udt_conn *c, uint32_t sub, udt_time now);
/* So large a packet passes nearly everywhere; `tiny`: wherever anything does. */
uint32_t udt__pmtu_small(const struct udt_conn *c, bool tiny);
void udt__pmtu_tick(struct udt_conn *c, udt_time now); /* c->t_pmtu has come */
/* What is known of the path to an address, at most `mss`. */
uint32_t udt__pmtu_known(const udt_mux *m, const udt_addr *a, uint32_t mss);

#endif
