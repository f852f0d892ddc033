/* Frames as a network card handles them: a host hands over many in one piece (TSO, USO) with the
 * checksum left to the card; the link cuts them, and what arrives together in order is joined again
 * (GRO). No sockets, no clock. Layouts: RFC 791, 768, 8200, 9293; virtio 1.2, 5.1.6. */
#ifndef WAN_SEGMENT_H
#define WAN_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WAN_PIECE = 65536 };

typedef struct wan_frame {     /* what is known of a frame besides its bytes */
    uint32_t origin;           /* the piece it was cut from, 0 = it came alone */
    uint16_t index;            /* its place there */
    uint16_t sum_from, sum_at; /* its checksum is open: over the bytes from the one, stored at the
                                  other (both count from the first byte); 0 and 0: finished */
} wan_frame;

typedef struct wan_heads { /* of one packet; sizes in bytes */
    size_t ip, all;        /* the IP header; it and the transport's */
    bool tcp, v6;
} wan_heads;

/* Finds the headers of an unfragmented TCP or UDP packet without IPv6 extensions. */
bool wan_heads_of(wan_heads *h, const uint8_t *p, size_t len);

/* How many frames of at most `each` payload bytes a piece becomes. */
size_t wan_cut_count(const wan_heads *h, size_t len, size_t each);
/* Writes frame number i of a piece to out (h->all + each bytes of room); returns its length. Its
 * checksum stays open; `f` says so (origin is the caller's). */
size_t wan_cut(const wan_heads *h, const uint8_t *p, size_t len, size_t each, size_t i,
               uint8_t *out, wan_frame *f);
/* Puts the finished checksum into a frame whose checksum is open. */
void wan_sum_finish(uint8_t *p, size_t len, wan_frame *f);

typedef struct wan_join { /* frames that were cut from one piece, joined as far as they follow */
    uint8_t data[WAN_PIECE];
    size_t len, n, each;
    wan_heads heads;
    wan_frame first, last;
    bool full; /* the last frame was as long as the first: another may follow */
} wan_join;

/* Takes a frame in; false if it does not follow (then finish what there is and start anew). */
bool wan_join_add(wan_join *j, const uint8_t *p, size_t len, const wan_frame *f);
/* Corrects the headers for what was joined. */
void wan_join_finish(wan_join *j);

#endif
