/* UDT packet headers (spec 1): decode and encode. One datagram = one packet.
 *
 *   data      0|seq(31)          FF(2)|O(1)|msgno(29)   timestamp   destination id   body
 *   control   1|type(15)|ext(16) additional info        timestamp   destination id   words */
#ifndef UDT_PACKET_H
#define UDT_PACKET_H

#include "udt_types.h"

#define UDT_HDR_BYTES 16
#define UDT_OVERHEAD 44    /* IPv4 + UDP + UDT headers: payload P = MSS - 44 */
#define UDT_IP_OVERHEAD 28 /* IPv4 + UDP headers: largest datagram = MSS - 28 */
#define UDT_MSS_MIN 128
#define UDT_MSS_MAX 65535
#define UDT_CTRL_MAX 64 /* largest fixed-size control packet: the handshake */

enum udt_ctrl {
    UDT_CTRL_HANDSHAKE = 0,
    UDT_CTRL_KEEPALIVE = 1,
    UDT_CTRL_ACK = 2,
    UDT_CTRL_NAK = 3,
    UDT_CTRL_WARNING = 4,
    UDT_CTRL_SHUTDOWN = 5,
    UDT_CTRL_ACK2 = 6,
    UDT_CTRL_DROP = 7,
    UDT_CTRL_ERROR = 8,
    UDT_CTRL_USER = 0x7fff
};

/* Word 1 of a keep-alive between our own peers; libudt and older ones of ours send 0. */
#define UDT_KEEPALIVE_ASKS 1u
#define UDT_KEEPALIVE_SAYS 2u /* wants no answer */

/* Word 1 of a shutdown between our own peers: some of what was written was not acknowledged, or
 * given up. Below it the sequence number behind all of it: who has all before that misses nothing.
 * Without that bit it is the sequence number of the first packet that has not come, if all that
 * came was read, else 0. Libudt and older ones of ours send 0. */
#define UDT_SHUTDOWN_CUT 0x80000000u

/* Word 1 of a data packet. */
#define UDT_MSG_FIRST 0x80000000u
#define UDT_MSG_LAST 0x40000000u
#define UDT_MSG_ORDER 0x20000000u
#define UDT_MSG_NO 0x1fffffffu

typedef struct udt_pkt {
    bool control;
    uint16_t type, ext;  /* control only */
    uint32_t seq;        /* data only, 31 bits */
    uint32_t word1;      /* message word or additional info */
    uint32_t timestamp;  /* us since the sender's socket was opened; 0 in control packets */
    int32_t dst;         /* socket id of the receiver, 0 = handshake without one */
    const uint8_t *body; /* points into the datagram */
    size_t len;          /* body bytes */
} udt_pkt;

/* False when the datagram is shorter than a header. */
bool udt_pkt_decode(udt_pkt *p, const uint8_t *buf, size_t len);
/* Writes 16 bytes. */
void udt_pkt_put_data(uint8_t *buf, uint32_t seq, uint32_t word1, uint32_t timestamp, int32_t dst);
/* Writes 16 + 4 * nwords bytes; without words a 4-byte zero pad follows, as libudt sends it.
 * Returns the length of the datagram. */
size_t udt_pkt_put_ctrl(uint8_t *buf, uint16_t type, uint32_t info, int32_t dst,
                        const uint32_t *words, size_t nwords);

#endif
