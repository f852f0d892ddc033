/* Public GMP API: messages, RPC, keys over a port of a udt_ctx. Shape: spec/gmp.md section 11.
 * (The header is not called gmp.h: that name is GNU MP's.)
 *
 * All calls return 0 (or a value > 0) or a negative enum udt_err, never block, and may be made from
 * any thread. Results come as events through udt_ctx_poll(). */
#ifndef SGMP_H
#define SGMP_H

#include "udt_types.h"

struct udt_ctx;

enum sgmp_alg { SGMP_ALG_HMAC = 1, SGMP_ALG_AES256GCM = 2 };

typedef struct sgmp_key {
    uint32_t key_id; /* not 0; top 8 bits = issuer */
    uint8_t alg;     /* enum sgmp_alg; HMAC only when require_auth is off */
    uint8_t secret[32];
    int64_t valid_ms;    /* lifetime from now, 0 = until removed */
    char principal[128]; /* remote principal, NUL-terminated UTF-8 */
} sgmp_key;

typedef struct sgmp_dest {
    udt_addr addr;
    uint32_t key_id; /* 0 only where require_auth is off */
} sgmp_dest;

enum sgmp_flag {
    SGMP_CONTROL = 1,       /* priority class, <= 256 bytes */
    SGMP_REPEATABLE = 2,    /* idempotent: re-sent to a restarted peer */
    SGMP_ONEWAY = 4,        /* RPC without an answer: ends with an OUTCOME */
    SGMP_IDEMPOTENT = 8,    /* RPC that may be repeated */
    SGMP_WANT_PROGRESS = 16 /* callee reports liveness */
};
typedef struct sgmp_opts {
    uint16_t channel;
    uint16_t flags;       /* enum sgmp_flag */
    uint32_t deadline_ms; /* message: default 30 s, <= 300 s; RPC: default 60 s. 0 = default */
    uint32_t ttl_ms;      /* receiver refuses the message after this age, 0 = none */
} sgmp_opts;

enum sgmp_event_kind {
    SGMP_EV_MESSAGE = 64, /* data; `from`, `channel`, `key_id` */
    SGMP_EV_OUTCOME,      /* of message `id`: status 0 = delivered, else enum udt_err; of REFUSED
                             `ms` says why: 1 no such channel, 2 too large, 3 not permitted, 4
                             shutting down, 5 ttl over */
    SGMP_EV_REQUEST,      /* data; answer with `id`; `method`; `ms` = budget left */
    SGMP_EV_RESPONSE, /* of call `id`: status 0 = data is the answer; < 0 error, data = detail */
    SGMP_EV_PROGRESS, /* of call `id`: status = percent */
    SGMP_EV_CANCEL,   /* request `id`: the caller no longer wants it */
    SGMP_EV_WRITABLE, /* after AGAIN: there is room towards `from` again (family 0: everybody) */
    SGMP_EV_PEER_READY,
    SGMP_EV_PEER_SUSPECT,
    SGMP_EV_PEER_LOST,
    SGMP_EV_PEER_RESTARTED, /* instance = the new one */
    SGMP_EV_KEY_UNKNOWN,    /* the peer does not know key_id: renew it */
    SGMP_EV_GROUP_MEMBER,   /* end of one member of group `id`; see sgmp_group */
    SGMP_EV_GROUP_DECIDED,  /* the wait rule of group `id` is met (status 0) or cannot be met */
    SGMP_EV_GROUP_DONE      /* every member of group `id` had its event; nothing more comes */
};
/* Status of SGMP_EV_RESPONSE in the core's own range (section 9); <= -100 is the application's. */
enum sgmp_rpc_status {
    SGMP_RPC_UNKNOWN = -1,
    SGMP_RPC_NO_METHOD = -2,
    SGMP_RPC_BUSY = -3,
    SGMP_RPC_CANCELLED = -4,
    SGMP_RPC_TIMEOUT = -5,
    SGMP_RPC_PEER_LOST = -6,
    SGMP_RPC_PEER_RESTARTED = -7,
    SGMP_RPC_TOO_LARGE = -8,
    SGMP_RPC_DENIED = -9
};
struct sgmp_ev {
    uint16_t kind;
    uint16_t channel;
    int32_t status;
    uint64_t id;
    uint64_t instance; /* of the peer */
    udt_addr from;
    uint32_t key_id;
    uint32_t method;
    uint32_t ms;
    uint32_t len;        /* bytes at data */
    const uint8_t *data; /* owned by the core until released */
    void *buf;           /* what to release; NULL when there is no data */
    /* OUTCOME, RESPONSE, GROUP_MEMBER that are no success: it is certain that the peer's program
     * got nothing. Else it may have, as whenever it answered. */
    bool not_delivered;
};

typedef struct sgmp_stats {
    int64_t dgrams_in, dgrams_out, bytes_in, bytes_out;
    int64_t retrans_pto, retrans_loss, duplicates, replays, bad_tag, bad_check, bad_format;
    int64_t no_key, busy, refused, reset_in, reset_out, hello_in, hello_out;
    int64_t messages_in, messages_out, delivered, timed_out, late_answers, evictions;
    int64_t assoc, assoc_unauth, pending_calls, running_requests; /* current */
    int64_t snd_queue_bytes, rcv_queue_bytes, bulk_bytes;         /* current */
    int64_t introduced, dgram_up, dgram_down; /* introductions used; changes of datagram size */
    int64_t bulk_streams;                     /* streams opened for over-size messages */
    int64_t groups;                           /* current */
} sgmp_stats;

typedef struct sgmp_peer_info {
    uint64_t instance;
    int32_t state; /* 0 none, 1 hello sent, 2 ready, 3 suspect, 4 lost */
    int64_t srtt_us, pto_us, cwnd_dgrams, queued_msgs, queued_bytes;
    int64_t max_dgram; /* bytes of a datagram that the path is known to carry */
} sgmp_peer_info;

/* Group send and group call (spec section 10): every member is a message or call of its own. */
enum sgmp_wait {
    SGMP_WAIT_ALL,    /* decided when all succeeded, or one failed */
    SGMP_WAIT_QUORUM, /* when `quorum` succeeded, or that many cannot any more */
    SGMP_WAIT_ANY,    /* a quorum of 1 */
    SGMP_WAIT_NONE    /* at once */
};
enum { SGMP_GROUP_MAX = 4096, SGMP_TOKEN_BYTES = 24 };
typedef struct sgmp_group_opts {
    sgmp_opts each; /* of every member; the deadline counts from the call of sgmp_group */
    uint32_t method;
    uint32_t quorum;
    uint8_t wait;         /* enum sgmp_wait */
    uint8_t max_attempts; /* transmissions to one member, 0 = 20 */
    bool call;            /* calls with an answer each; else messages */
    bool cancel_rest;     /* when the rule is decided, cancel who is still open */
} sgmp_group_opts;

/* Attach a GMP node to an open port; one per port. It takes the place of the listener, for
 * over-size messages: INUSE where the port has one. */
int sgmp_open(struct udt_ctx *ctx, int32_t port, bool require_auth);
int sgmp_key_add(struct udt_ctx *ctx, int32_t port, const sgmp_key *key);
int sgmp_key_remove(struct udt_ctx *ctx, int32_t port, uint32_t key_id);
/* Ids are positive and chosen at once by the caller's side; queue errors arrive as OUTCOME or
 * RESPONSE events with the id. AGAIN when the port's command queue or the queue towards the peer is
 * full (1024 messages or 4 MiB, 64 MiB towards all); WRITABLE follows. CONTROL still passes. */
int64_t sgmp_send(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, const uint8_t *buf,
                  size_t len, const sgmp_opts *o);
int64_t sgmp_call(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                  const uint8_t *buf, size_t len, const sgmp_opts *o);
/* A message, a call, one member of a group, or all of a group that is still open. AGAIN when even
 * CONTROL commands have no room; WRITABLE for everybody follows. */
int sgmp_cancel(struct udt_ctx *ctx, int32_t port, uint64_t id);
/* Sends to n <= SGMP_GROUP_MAX peers; `buf` is copied once. Returns the group's id; its members
 * have the ids behind it: id + 1 + index in `to`. A peer that is listed twice counts once, at its
 * first place. Datagrams leave at 20,000 a second at most, in random order. Events: GROUP_MEMBER
 * {id = group, method = index, from, instance, key_id, status as in OUTCOME or RESPONSE, ms = round
 * trip time in MICROseconds (0 = not known), data = the answer of a call}, GROUP_DECIDED and
 * GROUP_DONE {id, status, method = members so far that succeeded, ms = all members}. A call
 * succeeds with an answer of status 0, a message when it is delivered. AGAIN when all groups
 * together would have more than 65536 members under way, or 256 MiB of over-size payload: WRITABLE
 * follows, from nobody (family 0). */
int64_t sgmp_group(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t n,
                   const uint8_t *buf, size_t len, const sgmp_group_opts *o);
/* A token for `holder`, who speaks from that address with that instance id under key_id: whoever
 * gets it with this port's address and instance (sgmp_introduce) needs no HELLO. Valid 120 s. */
int sgmp_mint_token(struct udt_ctx *ctx, int32_t port, const udt_addr *holder,
                    uint64_t holder_instance, uint32_t key_id, uint8_t token[SGMP_TOKEN_BYTES]);
/* A third party vouches that `instance` answers at `to`, and brought its token. A token that is
 * refused costs one HELLO, no message. */
int sgmp_introduce(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint64_t instance,
                   const uint8_t token[SGMP_TOKEN_BYTES]);
/* The answer to a request, once. AGAIN when the port has no room for it now; WRITABLE for everybody
 * follows. */
int sgmp_reply(struct udt_ctx *ctx, int32_t port, uint64_t request_id, int32_t status,
               const uint8_t *buf, size_t len);
int sgmp_progress(struct udt_ctx *ctx, int32_t port, uint64_t request_id, uint32_t percent);
/* From here to sgmp_release() a few messages, calls and replies that this thread gives to the same
 * port may wait for each other, and leave together: for whoever handles many events at a time. */
void sgmp_hold(struct udt_ctx *ctx);
void sgmp_release(struct udt_ctx *ctx);
int sgmp_channel_open(struct udt_ctx *ctx, int32_t port, uint16_t channel);
int sgmp_peer_info_get(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, sgmp_peer_info *out);
int sgmp_stats_get(struct udt_ctx *ctx, int32_t port, sgmp_stats *out);
int sgmp_instance(struct udt_ctx *ctx, int32_t port, uint64_t *instance);

#endif
