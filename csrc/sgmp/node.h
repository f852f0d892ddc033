/* The sans-IO GMP engine of one UDP port: associations with many peers, messages, RPC.
 *
 * Same five verbs as the UDT mux. Over-size messages need a byte stream; the engine asks for one
 * by events and is fed by the caller (io/ gives it UDT connections, tests a simulated stream).
 * Wire: spec/gmp.md. Used by one thread at a time; all memory is bounded (sections 6.3, 7). */
#ifndef SGMP_NODE_H
#define SGMP_NODE_H

#include "sgmp.h"
#include "udt_err.h"
#include "udt_types.h"

#include <sys/types.h>

struct sgmp_node;
typedef struct sgmp_node sgmp_node;

typedef struct sgmp_node_config {
    udt_rand_fn rand;
    void *rand_arg;
    uint64_t start_time_us; /* wall clock at start, microseconds since 1970 */
    bool require_auth;      /* default on: datagrams with key_id 0 are dropped */
    uint32_t max_assoc;     /* 0 = 65536 */
    uint16_t max_dgram;     /* largest datagram to send and take, 1232 to 8972; 0 = 1232 */
    uint32_t group_rate;    /* members of groups started a second, 0 = 20,000 */
} sgmp_node_config;

sgmp_node *sgmp_node_new(const sgmp_node_config *cfg, udt_time now);
void sgmp_node_free(sgmp_node *n);

void sgmp_node_input(sgmp_node *n, const udt_addr *from, const uint8_t *pkt, size_t len,
                     udt_time now);
/* One datagram at a time into buf (cap >= max_dgram); 0 when nothing is due. */
size_t sgmp_node_output(sgmp_node *n, uint8_t *buf, size_t cap, udt_addr *to, udt_time now);
/* The last one may be cut on its way: the path does not seem to carry it whole. */
bool sgmp_node_fragments(const sgmp_node *n);
udt_time sgmp_node_deadline(const sgmp_node *n);
void sgmp_node_tick(sgmp_node *n, udt_time now);
/* Next event; data stays owned by the engine until sgmp_node_release(ev.buf). */
bool sgmp_node_next_event(sgmp_node *n, struct sgmp_ev *ev);
/* Whether there may be one; output makes events too (a key that has run out fails its messages). */
bool sgmp_node_has_event(const sgmp_node *n);
void sgmp_node_release(sgmp_node *n, void *buf);

uint64_t sgmp_node_instance(const sgmp_node *n);
int sgmp_node_key_add(sgmp_node *n, const sgmp_key *key, udt_time now);
int sgmp_node_key_remove(sgmp_node *n, uint32_t key_id, udt_time now);

/* A destination = address + key. Sending to it finds or makes the association. `id` is the
 * caller's own non-zero number, unique and increasing over messages and calls together; it comes
 * back in OUTCOME, RESPONSE and PROGRESS, and is the rpc_id on the wire. */
int sgmp_node_send(sgmp_node *n, const sgmp_dest *to, const uint8_t *buf, size_t len,
                   const sgmp_opts *o, uint64_t id, udt_time now);
/* The deadline of what names none. */
uint32_t sgmp_default_ms(bool call, size_t len);
/* Message, call, group, or member of one. */
int sgmp_node_cancel(sgmp_node *n, uint64_t id, udt_time now);
int sgmp_node_call(sgmp_node *n, const sgmp_dest *to, uint32_t method, const uint8_t *buf,
                   size_t len, const sgmp_opts *o, uint64_t id, udt_time now);
/* Takes the ids id ... id + count: the group's and, behind it, one per member. */
int sgmp_node_group(sgmp_node *n, const sgmp_dest *to, uint32_t count, const uint8_t *buf,
                    size_t len, const sgmp_group_opts *o, uint64_t id, udt_time now);
int sgmp_node_mint_token(sgmp_node *n, const udt_addr *holder, uint64_t holder_instance,
                         uint32_t key_id, uint8_t token[SGMP_TOKEN_BYTES], udt_time now);
int sgmp_node_introduce(sgmp_node *n, const sgmp_dest *to, uint64_t instance,
                        const uint8_t token[SGMP_TOKEN_BYTES], udt_time now);
/* The network refused a datagram of `len` bytes to this address. */
void sgmp_node_too_big(sgmp_node *n, const udt_addr *to, size_t len, udt_time now);
/* Answer a REQUEST event by its id: status 0 = RESPONSE, < 0 = ERROR. Once per request. */
int sgmp_node_reply(sgmp_node *n, uint64_t request_id, int32_t status, const uint8_t *buf,
                    size_t len, udt_time now);
int sgmp_node_progress(sgmp_node *n, uint64_t request_id, uint32_t percent, udt_time now);
int sgmp_node_channel_open(sgmp_node *n, uint16_t channel);
int sgmp_node_channel_close(sgmp_node *n, uint16_t channel);

/* Over-size messages (section 8). The engine emits, through next_bulk(), orders to open a stream;
 * the driver answers with the calls below. Stream handles are the driver's own non-zero numbers.
 * Ids of outgoing streams and those that bulk_accept returns never collide; ABORT may name either,
 * and may come for a stream that the driver has closed already (then there is nothing to do).
 * A stream serves many messages, one behind the other, until the engine orders its end or it breaks
 * (bulk_failed). At most one outgoing stream per peer is open, and 64 in all. */
enum sgmp_bulk_kind {
    SGMP_BULK_OPEN = 1, /* open stream `id` to `to`, then call bulk_opened */
    SGMP_BULK_ABORT     /* close stream `id`; nothing that matters is under way on it */
};
struct sgmp_bulk_order {
    int kind;
    uint64_t id;
    udt_addr to;
};
bool sgmp_node_next_bulk(sgmp_node *n, struct sgmp_bulk_order *o);
void sgmp_node_bulk_opened(sgmp_node *n, uint64_t id, udt_time now);
void sgmp_node_bulk_failed(sgmp_node *n, uint64_t id, int err, udt_time now);
/* Next bytes of the sealed stream `id`; 0 = nothing now. */
size_t sgmp_node_bulk_read(sgmp_node *n, uint64_t id, uint8_t *buf, size_t cap, udt_time now);
/* Does any stream have bytes to read? Ask after every turn; cheap. */
bool sgmp_node_bulk_work(const sgmp_node *n);
/* Incoming stream accepted from `from`: returns an id > 0 or an error. */
int64_t sgmp_node_bulk_accept(sgmp_node *n, const udt_addr *from, udt_time now);
/* Bytes that arrived on it. < 0: the driver closes the stream. */
int sgmp_node_bulk_write(sgmp_node *n, int64_t in_id, const uint8_t *buf, size_t len, udt_time now);
void sgmp_node_bulk_gone(sgmp_node *n, int64_t in_id, udt_time now);
/* Is it known whose it is? */
bool sgmp_node_bulk_proved(sgmp_node *n, int64_t in_id);

struct refused_log;
const struct refused_log *sgmp_node_refused(const sgmp_node *n); /* base/refused.h */
void sgmp_node_stats(const sgmp_node *n, sgmp_stats *out);
int sgmp_node_peer_info(const sgmp_node *n, const sgmp_dest *to, sgmp_peer_info *out);

#endif
