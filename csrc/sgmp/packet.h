/* Datagram codec of GMP (spec/gmp.md section 4): explicit big-endian fields, no state, no keys.
 *
 *  0      1        2       4         8      16      24     32        34         36
 *  +------+--------+-------+---------+------+-------+------+---------+----------+-------+
 *  | 0xC7 |ver,type| flags | key_id  | src  |  dst  | pkt  | channel | body len | check |
 *  +------+--------+-------+---------+------+-------+------+---------+----------+-------+
 *  body: [token 24] [ack block 32 + 8n] [type body]; then a tag of 16 if key_id is not 0 */
#ifndef SGMP_PACKET_H
#define SGMP_PACKET_H

#include "base/bytes.h"
#include "udt_types.h"

enum {
    PKT_MAGIC = 0xc7,
    PKT_VERSION = 1,
    PKT_HEADER = 40,
    PKT_TAG = 16,
    PKT_TOKEN = 24,
    PKT_ACK = 32,
    PKT_ACK_WORDS = 64,
    PKT_DATA = 16,
    PKT_HELLO = 48,
    PKT_RESET = 24,
    PKT_REFUSE = 16, /* one entry */
    PKT_REFUSE_MAX = 64,
    PKT_LIMIT = 1232, /* D */
    PKT_INLINE = PKT_LIMIT - PKT_HEADER - PKT_TOKEN - (PKT_ACK + 8) - PKT_DATA - PKT_TAG,
    PKT_PROBE = 96, /* datagram bytes of a padded PING: long enough to be answered by RESET */
    RPC_HEAD = 24,
    BULK_DESC = 16, /* + hash */
    BULK_DONE = 16
};
_Static_assert(PKT_INLINE == 1096, "spec/gmp.md 4.4");

enum pkt_type {
    PKT_T_DATA,
    PKT_T_ACK,
    PKT_T_PING,
    PKT_T_PONG,
    PKT_T_HELLO,
    PKT_T_HELLO_ACK,
    PKT_T_RESET,
    PKT_T_REFUSE,
    PKT_TYPES
};
enum pkt_flag {
    PKT_F_TOKEN = 1,
    PKT_F_ACKBLK = 2,
    PKT_F_ACK_NOW = 4,
    PKT_F_CONTROL = 8,
    PKT_F_REPEATABLE = 16,
    PKT_F_PAD = 32,
    PKT_FLAGS = 63
};
enum pkt_kind { PKT_K_MESSAGE, PKT_K_RPC, PKT_K_BULK, PKT_K_BULK_DONE };
enum pkt_reset { RESET_INSTANCE = 1, RESET_NO_STATE, RESET_NO_KEY, RESET_VERSION, RESET_FULL };
enum pkt_refuse { REFUSE_CHANNEL = 1, REFUSE_SIZE, REFUSE_DENIED, REFUSE_CLOSING, REFUSE_TTL };

struct pkt_header {
    uint8_t type;
    uint16_t flags;
    uint32_t key_id;
    uint64_t src, dst, pkt;
    uint16_t channel, body_len;
    uint32_t check;
};
enum { PKT_E_FORMAT = -1, PKT_E_VERSION = -2 };
/* Checks magic, version, type, flags and that the length fits; 0 or PKT_E_*. After PKT_E_VERSION
 * src, dst, pkt and key_id are valid (their places are the same in all versions). */
int pkt_header_get(const uint8_t *p, size_t len, struct pkt_header *h);
void pkt_header_put(uint8_t p[PKT_HEADER], const struct pkt_header *h);

struct pkt_ack {
    uint64_t cum, echo_pkt;
    uint32_t echo_delay_us, win_kib;
    uint16_t win_msgs;
    uint8_t n;
    bool busy;
    uint64_t words[PKT_ACK_WORDS];
};
bool pkt_ack_get(bytes_rd *r, struct pkt_ack *a);
void pkt_ack_put(bytes_wr *w, const struct pkt_ack *a);

struct pkt_data {
    uint64_t seq;
    uint16_t low_delta;
    uint8_t attempt, kind;
    uint32_t ttl_ms;
};
void pkt_data_get(bytes_rd *r, struct pkt_data *d); /* test r->bad */
void pkt_data_put(bytes_wr *w, const struct pkt_data *d);

/* HELLO and HELLO_ACK differ in the last two fields. */
struct pkt_hello {
    uint64_t start_us, nonce;
    uint16_t max_dgram, features;
    uint32_t lifetime_ms;     /* HELLO: 0 */
    uint8_t token[PKT_TOKEN]; /* HELLO: zero padding */
};
void pkt_hello_get(bytes_rd *r, struct pkt_hello *h);
void pkt_hello_put(bytes_wr *w, const struct pkt_hello *h);

struct pkt_reset_body {
    uint16_t reason;
    uint64_t echo_pkt, echo_src;
};
void pkt_reset_get(bytes_rd *r, struct pkt_reset_body *b);
void pkt_reset_put(bytes_wr *w, const struct pkt_reset_body *b);

struct pkt_refusal {
    uint64_t seq;
    uint32_t arg;
    uint16_t reason;
};
void pkt_refusal_get(bytes_rd *r, struct pkt_refusal *f);
void pkt_refusal_put(bytes_wr *w, const struct pkt_refusal *f);

enum rpc_op { RPC_REQUEST = 1, RPC_RESPONSE, RPC_ERROR, RPC_CANCEL, RPC_PROGRESS };
enum rpc_flag { RPC_ONEWAY = 1, RPC_IDEMPOTENT = 2, RPC_WANT_PROGRESS = 4 };
struct rpc_head {
    uint8_t op, flags;
    uint32_t method;
    uint64_t id;
    uint32_t ms;
    int32_t status;
};
bool rpc_head_get(const uint8_t *p, size_t len, struct rpc_head *h);
void rpc_head_put(uint8_t p[RPC_HEAD], const struct rpc_head *h);

struct bulk_desc {
    uint64_t len;
    uint32_t crc;
    uint8_t hash_alg, inner; /* 0 none, 1 SHA-256; PKT_K_MESSAGE or PKT_K_RPC */
    uint8_t hash[32];
};
bool bulk_desc_get(const uint8_t *p, size_t len, struct bulk_desc *d);
size_t bulk_desc_put(uint8_t p[BULK_DESC + 32], const struct bulk_desc *d);

#endif
