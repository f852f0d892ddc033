/* Handshake payload (spec 2) and the listener's stateless cookie. */
#ifndef UDT_HANDSHAKE_H
#define UDT_HANDSHAKE_H

#include "udt_types.h"

#define UDT_HS_BYTES 48
#define UDT_HS_VERSION 4

/* Request types. */
#define UDT_HS_REQUEST 1
#define UDT_HS_RENDEZVOUS 0
#define UDT_HS_RESPONSE (-1) /* also the client's second request */
#define UDT_HS_AGREEMENT (-2)
#define UDT_HS_REJECTED 1002
#define UDT_HS_NO_KEY 1004     /* the peer must prove a key (libudt: "security abort") */
#define UDT_HS_REJECT_MIN 1000 /* any request type from here on is a refusal */

typedef struct udt_hs {
    uint32_t version; /* 4 */
    uint32_t type;    /* 1 = stream, 2 = datagram */
    uint32_t isn;     /* initial sequence number, 31 bits */
    uint32_t mss;     /* IP packet size */
    uint32_t window;  /* packets the sender of the handshake can receive */
    int32_t req;      /* UDT_HS_* */
    int32_t id;       /* socket id of the sender */
    uint32_t cookie;  /* client/server: cookie; rendezvous: tag */
    uint32_t ip[4];   /* address of the party addressed, see udt_hs_set_ip */
} udt_hs;

/* False unless `len` is exactly 48. */
bool udt_hs_decode(udt_hs *h, const uint8_t *body, size_t len);
/* Writes the 64-byte datagram: header with destination `dst`, then the payload. */
void udt_hs_encode(uint8_t *buf, const udt_hs *h, int32_t dst);
/* The address as libudt writes it: each group of four bytes reversed. IPv4 fills word 0 only. */
void udt_hs_set_ip(udt_hs *h, const udt_addr *a);

/* SipHash-2-4 of `len` bytes under a 16-byte key. */
uint64_t udt_siphash(const uint8_t key[16], const uint8_t *data, size_t len);

/* Cookies: SipHash of (peer address, port, initial sequence number, id, 30 s epoch) under a secret
 * that is drawn anew every two epochs; the current and the previous epoch are accepted. */
#define UDT_COOKIE_EPOCH_US 30000000
#define UDT_COOKIE_SECRET_BYTES 20 /* key and output mask */
typedef struct udt_cookies {
    uint8_t secret[2][UDT_COOKIE_SECRET_BYTES]; /* by (epoch / 2) & 1 */
    int64_t drawn[2];                           /* epoch / 2 of each secret, -1 = none */
} udt_cookies;
void udt_cookies_init(udt_cookies *k);
/* Never 0. Draws a secret from `rand` when the epoch asks for one. */
uint32_t udt_cookie_make(udt_cookies *k, udt_rand_fn rand, void *arg, const udt_addr *peer,
                         uint32_t isn, int32_t id, udt_time now);
bool udt_cookie_check(const udt_cookies *k, const udt_addr *peer, uint32_t isn, int32_t id,
                      uint32_t cookie, udt_time now);

#endif
