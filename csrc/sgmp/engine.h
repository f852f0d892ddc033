/* Private heart of the GMP engine: what its files share. spec/gmp.md sections 5 to 9.
 *
 * Ownership: the node owns everything. An association owns its messages, calls and running
 * requests; an event belongs to the event queue, after next_event to the application until
 * release. Numbers: every bound of sections 6.3 and 7 is a constant here. */
#ifndef SGMP_ENGINE_H
#define SGMP_ENGINE_H

#include "base/addr.h"
#include "base/crc32c.h"
#include "base/refused.h"
#include "sgmp/keys.h"
#include "sgmp/node.h"
#include "sgmp/packet.h"

#define MS(n) ((udt_time)(n) * 1000)
#define SEC(n) ((udt_time)(n) * 1000000)

enum {
    SG_WINDOW = 4096,        /* W: seqs in flight and bits of the receiver's map */
    SG_Q_MSGS = 1024,        /* per peer */
    SG_Q_BYTES = 4 << 20,    /* per peer */
    SG_Q_TOTAL = 64 << 20,   /* whole node */
    SG_RCV_MSGS = 4096,      /* receive queue */
    SG_RCV_BYTES = 64 << 20, /* receive queue */
    SG_RCV_CONTROL = 8,      /* messages reserved per peer for CONTROL and expected answers */
    SG_CONTROL_BYTES = 256,  /* largest CONTROL message */
    SG_TRIES = 20,           /* transmissions of one message */
    SG_REFUSED = 64,         /* remembered refusals per peer */
    SG_CALLS_PEER = 1024,    /* pending calls */
    SG_CALLS = 65536,
    SG_RUNNING_PEER = 256, /* requests an application works on */
    SG_UNAUTH = 1024,      /* associations of unauthenticated peers */
    SG_AT_ADDRESS = 64,    /* instances of one principal at one address */
    SG_EVENTS = 262144,    /* queued events that carry no received payload */
    SG_RESETS_PER_S = 100,
    SG_REPLIES = 256,          /* ring of stateless answers */
    SG_BULK_MAX = 64 << 20,    /* one over-size message */
    SG_BULK_TOTAL = 256 << 20, /* reassembly, and separately sending */
    SG_BULK_CHUNK = 65536,
    SG_BULK_ENTRIES = 64,     /* announced over-size messages per peer */
    SG_BULK_GONE = 256,       /* announcements per peer that gave way; remembered so that none is
                                 taken for a message that came whole */
    SG_STREAMS = 1024,        /* incoming bulk streams */
    SG_STREAMS_OUT = 64,      /* outgoing ones that are kept open */
    SG_CTL_Q = 256,           /* CONTROL messages of a full queue that still pass, per peer */
    SG_GROUP_MEMBERS = 65536, /* of all groups under way */
    SG_GROUP_RATE = 20000,    /* members a second, by default */
    SG_GROUP_BURST = 256,
    SG_BLOCK = 1536, /* small messages and events come from a list of free blocks */
    SG_BLOCKS = 64,
    SG_SPARES = 256,
    SG_DGRAM_TOP = 8972,
    SG_BIG_LOST = 3 /* large datagrams lost in a row: the path carries them no more */
};
#define SG_T_STREAM SEC(60) /* a quiet outgoing stream is closed after this */
#define SG_T_STREAM_IN SEC(90)
#define SG_T_REPROBE SEC(60) /* after a path refused large datagrams */
#define SG_T_MSG SEC(300)
#define SG_T_IDLE SEC(600)
#define SG_T_EVICT (SG_T_MSG + SEC(120))
#define SG_T_LOST SEC(15)
#define SG_T_STOOD SEC(2) /* a timer that is so late: this process stood still itself */
#define SG_T_QUIET                                                                \
    SEC(10) /* unused transmission state and crypto contexts are freed after this \
             */

enum sg_timer_kind {
    SG_TM_ASSOC,
    SG_TM_MSG,
    SG_TM_CALL,
    SG_TM_REQ,
    SG_TM_KEY,
    SG_TM_BULK,
    SG_TM_IN,
    SG_TM_STREAM,
    SG_TM_GROUP
};
enum sg_state { SG_NEW, SG_HELLO, SG_READY, SG_SUSPECT, SG_LOST };

/* Whose room an application waits for. */
enum sg_want { SG_WANT_PLAIN = 1, SG_WANT_CTL = 2, SG_WANT_BULK = 4 };

struct call;
struct bulk;
struct member;

/* A payload that several messages carry. */
struct share {
    uint64_t *account; /* what it burdens, or NULL */
    size_t len;
    uint32_t refs;
    uint8_t data[];
};

/* One message on its way. */
enum sg_where { SG_W_NONE, SG_W_CTL, SG_W_NEW, SG_W_RESEND, SG_W_FLIGHT };
struct msg {
    struct sg_link q;      /* in the list named by `where` */
    struct evt *last;      /* kept for its OUTCOME; NULL if it has none of its own */
    struct sg_hnode by_id; /* in the node's table if id != 0 and call == NULL */
    struct sg_timer timer; /* deadline; not armed for the request of a call */
    struct assoc *a;
    struct call *call;     /* the call whose request this is */
    struct bulk *bulk;     /* the transfer this descriptor announces */
    struct member *member; /* whose group hears the outcome */
    struct share *share;   /* payload behind the bytes in data, or NULL */
    uint64_t id;           /* the application's, 0 = internal */
    uint64_t seq;          /* 0 = not sent yet */
    uint64_t last_pkt;
    udt_time sent_at, ttl_at; /* last transmission; end of usefulness, 0 = none */
    uint32_t len;             /* of the whole payload */
    uint32_t own, room;       /* bytes in data; allocated there */
    uint16_t channel;
    uint8_t where, kind, flags; /* flags: PKT_F_CONTROL | PKT_F_REPEATABLE */
    uint8_t attempt;            /* transmissions so far, saturating */
    uint8_t tries, max_tries;   /* those that count, and how many there may be */
    uint16_t reason;            /* of the peer's REFUSE */
    bool elsewhere;             /* it was sent to an instance that is gone, and may be there */
    uint8_t data[];
};

struct sent_rec {
    uint64_t pkt;
    udt_time at;
};
struct refused {
    uint64_t seq;
    uint32_t arg;
    uint16_t reason;
    bool due;
};

/* What an association needs only while it is in use. */
struct active {
    struct assoc *owner;
    aead *seal, *open[2];
    uint64_t seal_serial, open_serial[2];
    /* first contact */
    bool hello_on, need_token, has_token, key_bad;
    uint8_t hello_n;
    uint8_t token[PKT_TOKEN];
    uint64_t hello_nonce, hello_pkt;
    udt_time hello_at, hello_sent, hello_gap, token_until, key_event_at;
    /* queues */
    struct sg_link ctl_q, new_q, resend_q, flight; /* flight is ordered by last_pkt */
    struct sg_link want;                           /* in node.writers after AGAIN */
    struct evt *want_ev;                           /* then: kept for WRITABLE */
    uint8_t wants;                                 /* then: enum sg_want */
    struct msg **ring; /* by seq & (ring_cap - 1), for low <= seq < next_seq */
    uint32_t ring_cap;
    uint64_t low;               /* lowest unsettled seq, or next_seq */
    uint32_t q_msgs, q_bytes;   /* unsettled messages of all kinds */
    uint32_t tx_msgs, tx_bytes; /* of them: transmitted at least once */
    uint32_t flight_n, ctl_flight, ctl_msgs;
    uint32_t forced; /* resends that ignore the windows (PTO) */
    /* round trip, loss, congestion */
    struct sent_rec *sent; /* by pkt & (sent_cap - 1) */
    uint32_t sent_cap;
    uint64_t echo;               /* highest pkt the peer reported, in this use */
    uint64_t known_end;          /* seqs below it were reported accepted or missing */
    uint64_t recovery_pkt;       /* losses up to here belong to the last reduction */
    uint32_t cwnd_m, ssthresh_m; /* thousandths of a datagram */
    int64_t pace_m;              /* thousandths of a datagram that may leave at pace_at */
    udt_time pace_at;
    uint32_t pto_count;
    udt_time pto_at, loss_at, pto_since;
    udt_time outst_since; /* since when something is outstanding, UDT_NEVER = nothing */
    /* the peer's windows */
    uint32_t win_msgs, win_kib;
    bool busy;
    uint32_t busy_n, probe_n;
    udt_time busy_until, probe_at;
    /* acknowledging */
    uint32_t ack_count;
    bool ack_now, told_busy, told_zero, busy_due;
    udt_time ack_at, top_at; /* top_at: when the highest pkt arrived */
    /* pings */
    bool ping_due, ping_pad, pong_due;
    uint64_t ping_nonce, pong_nonce;
    udt_time ping_at;
    uint8_t verify_n; /* pings left to find out whether the instance still lives */
    /* address not proved yet */
    uint32_t unproved_in, unproved_out;
    bool named; /* the application named it since: it may get HELLOs, as at first contact */
    /* datagram size */
    uint64_t probe_nonce, big_mark; /* losses up to this pkt were counted */
    udt_time size_at;  /* when the answer to a size probe is given up; next probe not before */
    uint16_t size_try; /* bytes of the probe under way, 0 = none */
    bool size_want, size_due, size_fall;
    uint8_t size_n;     /* probes of that size */
    uint8_t big_lost;   /* large datagrams lost since one arrived */
    udt_time cut_until; /* the path carries less than 1232 bytes whole: routers may cut them */
    struct refused *refused;
    uint32_t refused_n;
    bool refuse_due;
    /* RPC */
    struct sg_link calls, running;
    uint32_t calls_n, running_n;
    udt_time calls_since;
    udt_time stood_until; /* this end was at a standstill: its peer's silence counts from here */
    /* bulk */
    struct sg_link bulk_out, bulk_in;
    uint32_t bulk_in_n, bulk_gone_n, bulk_out_n;
    struct out_stream *out;
    struct stream *in_stream;
};

struct assoc {
    struct sg_hnode by_inst, by_dest;
    struct sg_link lru, ready;
    struct sg_timer timer;
    struct principal *who; /* NULL = unauthenticated */
    struct active *x;
    uint64_t instance; /* 0 until HELLO_ACK */
    uint64_t start_us; /* the peer's, 0 = not known */
    udt_addr addr;
    uint32_t key_id, rx_key_id; /* for sending; of the last genuine datagram */
    uint64_t next_seq, next_pkt;
    uint64_t first_pkt;  /* pkts below were used by earlier associations */
    uint64_t peer_echo;  /* highest pkt the peer ever reported */
    uint64_t fresh_from; /* pkts below must prove themselves one by one */
    uint64_t base, top;  /* lowest seq not settled here; 1 + highest accepted */
    uint64_t conn_no;    /* last bulk connection seen from the peer */
    udt_time last_rx, last_use;
    int32_t srtt, rttvar, latest; /* us; srtt 0 = no sample */
    uint32_t rcv_msgs, rcv_ctl;   /* events queued or not yet released */
    uint16_t dgram, peer_dgram;   /* size in use towards it; what it says it takes */
    uint8_t state;                /* enum sg_state */
    bool closed;                  /* tombstone: everything from it is dropped */
    bool fresh;                   /* the replay window is live */
    bool rx_set;                  /* base is valid */
    bool confirmed;               /* the peer acknowledged something of this association */
    bool unproved;                /* the address changed and was not validated yet */
    replay_window replay;
    uint64_t map[SG_WINDOW / 64]; /* bit seq % W: settled here, base <= seq < base + W */
};
_Static_assert(sizeof(struct assoc) <= 1008, "an idle association takes at most 1 KiB");

enum sg_class { SG_C_NONE, SG_C_PLAIN, SG_C_CONTROL, SG_C_BULK };
struct evt {
    struct sg_link q;
    struct sgmp_ev ev;
    struct assoc *a;     /* whose receive account it burdens */
    struct request *req; /* REQUEST: dropped at the door when its budget is spent */
    struct call *call;   /* PROGRESS */
    uint32_t charge, room;
    uint32_t skip; /* bytes of data before what the application sees */
    uint8_t klass; /* enum sg_class */
    uint8_t data[];
};

struct call {
    struct sg_hnode by_id;
    struct sg_link of; /* in active.calls */
    struct sg_timer timer;
    struct assoc *a;
    struct msg *msg;      /* the request while it is not settled */
    struct evt *progress; /* queued PROGRESS event */
    struct evt *last;     /* kept for its end; NULL if it is a member's */
    struct member *member;
    uint64_t id;
    uint32_t method;
    uint16_t channel;
    uint16_t refused; /* reason of a REFUSE */
    bool sent;        /* the request left at least once, */
    bool elsewhere;   /* and not only for the present instance */
};

struct request {
    struct sg_hnode by_id;
    struct sg_link of; /* in active.running */
    struct sg_timer timer;
    struct assoc *a;
    struct evt *ev;   /* still queued */
    struct evt *last; /* kept for CANCEL */
    uint64_t id, rpc_id;
    udt_time born, until, progress_at, gap;
    uint32_t percent, method;
    uint16_t channel;
    bool cancelled, want_progress;
};

/* An over-size message on its way out (bulk.c). Its msg leaves the queues once the descriptor is
 * acknowledged and keeps the outcome and the deadline. */
enum sg_bulk_state { SG_B_DESC, SG_B_WAIT, SG_B_PART, SG_B_SENT };
struct bulk {
    struct sg_link of; /* in active.bulk_out */
    struct msg *msg;
    struct assoc *a;
    struct share *body;
    size_t len; /* head and body */
    uint32_t head_len;
    uint8_t head[RPC_HEAD];
    uint8_t state, inner;
};

/* Members of a group that are not settled yet have their message or call, or wait for their turn.
 */
struct member {
    struct sg_hnode by_dest; /* while duplicates are looked for */
    struct sg_link wait;     /* in group.wait until it starts */
    struct group *g;
    struct msg *msg;
    struct call *call;
    struct evt *last; /* kept for its end */
    sgmp_dest to;
    udt_time at; /* not before */
    uint32_t index;
    bool ended;
};

struct reply {
    udt_addr to;
    uint16_t len;
    uint8_t data[PKT_HEADER + PKT_HELLO + PKT_TAG];
};

struct sgmp_node {
    sgmp_node_config cfg;
    uint64_t instance;
    udt_time born;
    uint64_t say_pkt;            /* counter of purpose-`s` datagrams */
    uint64_t seq_mark, pkt_mark; /* highest ever used with a peer that is forgotten */
    struct keys keys;
    struct tokens tokens;
    struct sg_heap heap;
    struct sg_htab by_inst, by_dest, msgs, calls, requests, bulks, streams, groups;
    struct sg_link lru, ready, events, held, writers, orders; /* held: read, not released */
    struct sg_link out_lru;                                   /* outgoing streams */
    udt_time now;                                             /* of the last call, for next_event */
    uint32_t assoc_n, unauth_n, light_n, active_rcv;
    uint32_t rcv_msgs;
    uint64_t rcv_bytes, snd_bytes, bulk_rcv_bytes, bulk_snd_bytes;
    uint64_t next_req, next_bulk, next_conn;
    uint32_t running_n, streams_n, out_n, bulk_work, members_n;
    struct evt *group_ev; /* kept for WRITABLE after a group met AGAIN; */
    bool group_bulk;      /* for the size of its payload */
    int64_t group_credit_m;
    udt_time group_at;
    void *blocks; /* free ones, linked through their first word */
    uint32_t blocks_n;
    void *spares; /* the same for events without data */
    uint32_t spares_n;
    struct reply replies[SG_REPLIES];
    uint32_t reply_head, reply_n;
    uint64_t jitter;
    int64_t reset_credit_m;
    udt_time reset_at;
    uint64_t channels[65536 / 64];
    sgmp_stats st;
    bool fragments; /* the datagram that is being given out may be cut on its way */
    refused_log refused;
    uint8_t in[65536]; /* plain text of the datagram at hand */
};

/* One received datagram, verified. */
struct rx {
    const struct pkt_header *h;
    const udt_addr *from;
    size_t len; /* of the whole datagram */
    udt_time now;
};

/* What a message ends with that certainly was not delivered. */
static inline bool sg_undelivered(int status)
{
    return status == UDT_E_NOTSENT || status == UDT_E_REFUSED || status == UDT_E_DIGEST ||
           status == UDT_E_LIMIT;
}

/* Addresses are compared bytewise: unused bytes are zero. */
static inline udt_addr sg_addr(const udt_addr *a)
{
    udt_addr r = *a;
    if (r.family == 4) {
        r.scope = 0;
        for (int i = 4; i < 16; i++)
            r.ip[i] = 0;
    }
    return r;
}

/* node.c */
uint64_t sg_rand64(sgmp_node *n);
/* NULL without memory. What must not get lost has its event from its beginning: kept, then taken
 * by sg_event_last, or given back. */
struct evt *sg_event_new(sgmp_node *n, struct assoc *a, int kind, size_t len);
bool sg_event_keep(sgmp_node *n, struct evt **kept);
void sg_event_unkeep(sgmp_node *n, struct evt **kept);
struct evt *sg_event_last(struct evt **kept, struct assoc *a, int kind);
void sg_event_push(sgmp_node *n, struct evt *e);
void sg_event_drop(sgmp_node *n, struct evt *e);
void sg_event_peer(sgmp_node *n, struct assoc *a, int kind, uint64_t instance);
void sg_event_outcome(sgmp_node *n, struct msg *m, int status);
bool sg_rcv_room(const sgmp_node *n, const struct assoc *a, size_t len, bool reserved);
uint32_t sg_rcv_share(const sgmp_node *n, const struct assoc *a);
void sg_rcv_charge(sgmp_node *n, struct evt *e, enum sg_class klass, size_t bytes);

/* block.c: blocks for messages and events, shared payloads */
void *sg_block(sgmp_node *n, size_t bytes, uint32_t *room); /* not cleared; room >= bytes */
void *sg_spare(sgmp_node *n);                               /* for an event without data */
void sg_block_free(sgmp_node *n, void *p, size_t room);
struct share *sg_share_new(const uint8_t *buf, size_t len, uint64_t *account);
struct share *sg_share_ref(struct share *s);
void sg_share_unref(struct share *s);

/* assoc.c */
struct assoc *sg_assoc_find(sgmp_node *n, uint64_t instance, const struct principal *who);
struct assoc *sg_assoc_at(sgmp_node *n, const udt_addr *addr, const struct principal *who);
uint64_t sg_dest_key(const udt_addr *addr);
/* No further instance of `who` is taken at this address: each that comes is looked for among those
 * that are there. */
bool sg_assoc_crowd(sgmp_node *n, const udt_addr *addr, const struct principal *who);
/* `who` has as many as are left for all others, wherever they are: one with a key leaves half of
 * the table, two leave a third. */
bool sg_assoc_share(const sgmp_node *n, const struct principal *who);
/* The one at this address that said HELLO with this nonce. */
struct assoc *sg_assoc_hello(sgmp_node *n, const udt_addr *addr, const struct principal *who,
                             uint64_t nonce);
/* The one at this address for which `pkt` is outstanding; key NULL = of any principal. */
struct assoc *sg_assoc_echo(sgmp_node *n, const udt_addr *addr, const struct key *key,
                            uint64_t pkt);
/* The association of a destination, made (and greeted) when there is none. */
int sg_assoc_for(sgmp_node *n, const sgmp_dest *to, struct assoc **out, udt_time now);
struct assoc *sg_assoc_new(sgmp_node *n, const udt_addr *addr, struct key *key, udt_time now);
void sg_assoc_bind(sgmp_node *n, struct assoc *a, uint64_t instance);
/* Something came back that only this address was told. */
void sg_assoc_proved(sgmp_node *n, const struct assoc *here, const udt_addr *addr, udt_time now);
void sg_assoc_move(sgmp_node *n, struct assoc *a, const udt_addr *addr);
bool sg_assoc_wake(struct assoc *a, udt_time now); /* makes a->x; false = no memory */
bool sg_assoc_busy(const struct assoc *a);         /* anything outstanding or queued */
void sg_assoc_close(sgmp_node *n, struct assoc *a);
void sg_assoc_merge(sgmp_node *n, struct assoc *from, struct assoc *to, udt_time now);
void sg_assoc_restart(sgmp_node *n, struct assoc *old, uint64_t instance, udt_time now);
void sg_assoc_free(sgmp_node *n, struct assoc *a);
void sg_assoc_use(sgmp_node *n, struct assoc *a, udt_time now);
void sg_assoc_heard(sgmp_node *n, struct assoc *a, udt_time now);
struct key *sg_assoc_key(sgmp_node *n, struct assoc *a, udt_time now);
aead *sg_assoc_open(struct assoc *a, const struct key *key);
void sg_assoc_keep_open(struct assoc *a, const struct key *key, aead *ctx);
aead *sg_assoc_seal(sgmp_node *n, struct assoc *a, const struct key *key);
void sg_assoc_kick(sgmp_node *n, struct assoc *a, udt_time now); /* after any change */
udt_time sg_expire(sgmp_node *n, udt_time now);
static inline bool sg_has_token(const struct assoc *a, udt_time now)
{
    return a->x->has_token && now < a->x->token_until;
}

/* send.c */
struct sg_post {
    uint64_t id;
    const uint8_t *head, *body;
    size_t head_len, body_len;
    struct share *share; /* instead of body */
    struct member *member;
    udt_time until, ttl_at;
    uint16_t channel;
    uint8_t kind, flags, tries;
    bool reserved; /* protocol's own: passes the limits of the queue */
    bool of_call;  /* whose end is the call's */
};
/* What the application asks for: a message or a call. */
struct sg_ask {
    const sgmp_dest *to;
    const uint8_t *buf;
    size_t len;
    struct share *share; /* instead of buf */
    struct member *member;
    const sgmp_opts *o;
    uint64_t id;
    uint32_t method;
    uint8_t tries; /* transmissions allowed, 0 = SG_TRIES */
};
int sg_send(sgmp_node *n, const struct sg_ask *q, udt_time now); /* ask.c */
int sg_call(sgmp_node *n, const struct sg_ask *q, udt_time now);
int sg_post(sgmp_node *n, struct assoc *a, const struct sg_post *p, struct msg **out, udt_time now);
void sg_requeue(struct msg *m, bool front);
int sg_want_room(sgmp_node *n, struct assoc *a, unsigned what); /* AGAIN, or NOMEM */
void sg_want_over(sgmp_node *n, struct assoc *a);
void sg_want_move(sgmp_node *n, struct assoc *from, struct assoc *to);
int sg_want_group(sgmp_node *n, bool bulk); /* the same, for room of the whole node */
void sg_tell_writable(sgmp_node *n);
void sg_msg_leave(sgmp_node *n, struct msg *m); /* out of its association, not freed */
void sg_msg_join(sgmp_node *n, struct assoc *a, struct msg *m);
void sg_settle(sgmp_node *n, struct msg *m, int status, udt_time now);
static inline size_t sg_inline(const struct assoc *a) /* largest payload of one datagram */
{
    return (size_t)a->dgram - (PKT_LIMIT - PKT_INLINE);
}
void sg_fail_all(sgmp_node *n, struct assoc *a, int sent, int unsent, udt_time now);
struct msg *sg_pick(sgmp_node *n, struct assoc *a, udt_time now, udt_time *when);
size_t sg_build(sgmp_node *n, struct assoc *a, uint8_t *buf, udt_time now);
bool sg_wants_output(sgmp_node *n, struct assoc *a, udt_time now, udt_time *when);

/* ack.c */
void sg_ack_fill(sgmp_node *n, struct assoc *a, struct pkt_ack *k, unsigned max_words,
                 udt_time now);
unsigned sg_ack_words(const struct assoc *a);
void sg_ack_sent(struct assoc *a);
bool sg_ack_input(sgmp_node *n, struct assoc *a, const struct pkt_ack *k, bool full, udt_time now);
void sg_sent(struct assoc *a, uint64_t pkt, udt_time now);
udt_time sg_pto(const struct assoc *a);
udt_time sg_pto_wait(sgmp_node *n, const struct assoc *a);
void sg_on_pto(sgmp_node *n, struct assoc *a, udt_time now);
void sg_detect_loss(sgmp_node *n, struct assoc *a, udt_time now);
void sg_rtt(struct assoc *a, udt_time sample);

/* recv.c */
bool sg_seq_settled(const struct assoc *a, uint64_t seq); /* accepted or given up */
enum sg_verdict { SG_ACCEPT = 0, SG_NO_ROOM = -1 };       /* > 0: refuse with that reason */

/* hello.c */
void sg_hello_start(sgmp_node *n, struct assoc *a, udt_time now);
size_t sg_hello_build(sgmp_node *n, struct assoc *a, uint8_t *buf, udt_time now);
/* Another instance of the same principal spoke from this address: is the old one gone? */
void sg_suspect_restart(sgmp_node *n, const udt_addr *from, const struct principal *who,
                        uint64_t instance, uint64_t start_us, udt_time now);
void sg_say_input(sgmp_node *n, const struct pkt_header *h, const udt_addr *from,
                  const uint8_t *pkt, size_t len, udt_time now);
void sg_reset_reply(sgmp_node *n, const struct pkt_header *h, size_t len, const udt_addr *to,
                    struct key *key, int reason, udt_time now);
bool sg_verify(sgmp_node *n, const struct pkt_header *h, const uint8_t *pkt, size_t len, aead *ctx);
size_t sg_seal(const struct pkt_header *h, uint8_t *buf, size_t body_len, aead *ctx);

/* rpc.c */
int sg_rpc_input(sgmp_node *n, struct assoc *a, uint16_t channel, bool control, struct evt *whole,
                 const uint8_t *p, size_t len, udt_time now);
void sg_call_settled(sgmp_node *n, struct call *c, int status, udt_time now);
void sg_call_end(sgmp_node *n, struct call *c, int status, udt_time now);
void sg_calls_fail(sgmp_node *n, struct assoc *a, int status, udt_time now);
void sg_requests_drop(sgmp_node *n, struct assoc *a);
bool sg_request_open(sgmp_node *n, struct request *r, udt_time now);
void sg_call_timer(sgmp_node *n, struct call *c, udt_time now);
void sg_request_timer(sgmp_node *n, struct request *r, udt_time now);

/* group.c */
void sg_group_timer(sgmp_node *n, struct sg_timer *t, udt_time now);
/* The end of a member. `e`: the event that carries a call's answer, or NULL. */
/* `sure`: nothing can have arrived there. */
void sg_group_ended(sgmp_node *n, struct member *gm, struct assoc *a, int status, bool sure,
                    struct evt *e);
int sg_group_cancel(sgmp_node *n, uint64_t id, udt_time now);
void sg_group_free_all(sgmp_node *n);

/* size.c: how large datagrams may be */
void sg_size_wanted(struct assoc *a);
bool sg_size_pong(sgmp_node *n, struct assoc *a, uint64_t nonce);
udt_time sg_size_watch(sgmp_node *n, struct assoc *a, udt_time now);
void sg_size_lost(struct assoc *a, uint64_t pkt);
void sg_size_down(sgmp_node *n, struct assoc *a, udt_time now);
/* Datagram of `len` bytes with `m` goes out; and it has arrived. */
void sg_size_give(sgmp_node *n, const struct assoc *a, const struct msg *m, size_t len,
                  udt_time now);
void sg_size_arrived(struct assoc *a, const struct msg *m, udt_time now);
void sg_size_told(sgmp_node *n, struct assoc *a, uint16_t max_dgram);

/* bulk.c, bulk_out.c, bulk_in.c */
int sg_bulk_send(sgmp_node *n, struct assoc *a, const struct sg_post *p, struct msg **out,
                 udt_time now);
bool sg_bulk_convert(sgmp_node *n, struct msg *m, udt_time now);
void sg_bulk_acked(sgmp_node *n, struct msg *m, udt_time now);
void sg_bulk_end(sgmp_node *n, struct bulk *b);
void sg_bulk_timer(sgmp_node *n, struct sg_timer *t, udt_time now);
void sg_bulk_move(sgmp_node *n, struct msg *m, struct assoc *to);
void sg_bulk_out_drop(sgmp_node *n, struct assoc *a);
bool sg_bulk_known(struct assoc *a, uint64_t seq);
void sg_bulk_whole(sgmp_node *n, struct assoc *a, uint64_t seq, uint16_t channel, udt_time now);
int sg_bulk_done_input(sgmp_node *n, struct assoc *a, const uint8_t *p, size_t len, udt_time now);
int sg_bulk_desc_input(sgmp_node *n, struct assoc *a, uint16_t channel, uint64_t seq,
                       const uint8_t *p, size_t len, udt_time now);
void sg_bulk_done_settled(sgmp_node *n, struct assoc *a, uint64_t seq, bool delivered);
void sg_bulk_in_drop(sgmp_node *n, struct assoc *a);
void sg_bulk_in_timer(sgmp_node *n, struct sg_timer *t, udt_time now);
void sg_bulk_in_free_all(sgmp_node *n);
void sg_bulk_free_all(sgmp_node *n);

#endif
