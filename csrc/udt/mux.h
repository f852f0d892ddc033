/* The sans-IO UDT engine of one UDP port: many sockets, a listener, rendezvous by tag or address.
 *
 * Drive it with five verbs (input, output, deadline, tick, next_event), each given `now`. It has no
 * sockets, threads or clock, allocates nothing per packet, and is used by one thread at a time.
 * Bad input from the network never asserts. Wire: spec/udt.md sections 1-8 and 11. */
#ifndef UDT_MUX_H
#define UDT_MUX_H

#include "udt_err.h"
#include "udt_trace.h"
#include "udt_types.h"

#include <sys/types.h>

struct udt_mux;
typedef struct udt_mux udt_mux;

#define UDT_KEY_BYTES 32
enum udt_type { UDT_STREAM = 1, UDT_DGRAM = 2 };

/* Per-connection settings. udt_opts_init() fills the defaults. */
typedef struct udt_opts {
    uint16_t type;          /* UDT_STREAM or UDT_DGRAM */
    uint16_t mss;           /* IP packet size; 0 = the port's, 1500 (1480 over IPv6) by default */
    uint32_t snd_buf_bytes; /* upper bound of unacknowledged + unsent payload; memory follows use */
    uint32_t rcv_buf_bytes; /* upper bound of the receive buffer. 0 in both: own mode sizes them by
                               itself within the port's budget, else 8192 packets */
    uint32_t fc_pkts;       /* maximum flow window in packets, default 25600 */
    const char *cc;         /* congestion control by name; NULL: bbr between own peers, else udt */
    int64_t max_bw_Bps;     /* bytes per second, 0 = unlimited */
    int32_t connect_timeout_ms; /* default 3000 client, 30000 rendezvous */
    int32_t idle_timeout_ms;    /* default 10000: dead after this silence, half of it with questions
                                   (spec 11, decisions/0176; a foreign peer is asked for ACK2) */
    uint32_t linger_ms; /* how long close() tries to deliver what is queued, default 180 s */
    bool own_peer;    /* the peer is known (from a ticket) to be ours: section 11 liveness, no probe
                         pair, bursts up to 64 packets, early ACK */
    uint32_t tag;     /* rendezvous tag, 0 = match by address */
    bool offer;       /* own mode, if the peer turns out to be ours (docs/protocol/udt-own-mode.md);
                         off in udt_opts_init, on in the public API */
    bool has_key;     /* `key` holds a key that the peer should have: packets are sealed */
    bool require_key; /* a peer without it is refused (AUTH) */
    bool plain_data;  /* sealed connections: control packets only, data protects itself */
    uint32_t early_bytes; /* a keyed initiator: payload that the peer will send at once, as far as
                             its first flight may; so much room is brought along */
    uint8_t key[UDT_KEY_BYTES];
    udt_trace *trace; /* records what happens; NULL = no. A listener's is its connections' */
} udt_opts;
void udt_opts_init(udt_opts *o);

typedef struct udt_mux_config {
    udt_rand_fn rand;
    void *rand_arg;
    uint16_t mss;           /* default MSS of new sockets */
    uint32_t max_sockets;   /* bound of the socket table, default 65536 */
    uint64_t max_buf_bytes; /* memory budget of all buffers together, default 1 GiB */
    bool driven; /* who writes also runs the loop, so nothing needs to last while he wakes up */
} udt_mux_config;

enum udt_event_kind {
    UDT_EV_CONNECTED = 1, /* connect() or rendezvous() succeeded */
    UDT_EV_ACCEPTED,      /* `sock` is a new connection of listener `value` */
    UDT_EV_READABLE,    /* data (or a whole message) to read; level: again after recv leaves some */
    UDT_EV_WRITABLE,    /* send buffer is below half again after send() returned AGAIN */
    UDT_EV_DRAINED,     /* everything sent so far is acknowledged */
    UDT_EV_PEER_CLOSED, /* peer's shutdown; buffered data stays readable, then PEERCLOSED */
    UDT_EV_FAILED, /* `err` says why (TIMEOUT, REJECTED, BROKEN, REMOTE, ...). Of a foreign peer's
                      silence: BROKEN = data is known to be missing or unacknowledged;
                      VANISHED, UNCONFIRMED = none is. What has arrived stays readable */
    UDT_EV_CLOSED  /* last event: the id is gone. `err`: a close that lingered lost data */
};
struct udt_ev {
    uint16_t kind;
    int32_t sock;
    int32_t err;   /* enum udt_err, 0 unless FAILED or CLOSED */
    int64_t value; /* see kind */
};

udt_mux *udt_mux_new(const udt_mux_config *cfg);
void udt_mux_free(udt_mux *m);
/* The port is about to go: shutdowns that were to be repeated later are due now. False: none are.
 */
bool udt_mux_shut_again(udt_mux *m);

/* One received datagram; `from` is its source. Invalid datagrams are counted and dropped. */
void udt_mux_input(udt_mux *m, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now);

/* Fill `buf` with what may be sent now: one or more datagrams to one destination, each
 * *seg_bytes long except a possibly shorter last one (what UDP GSO takes). Returns the number of
 * bytes, 0 when nothing is due. cap >= 1500; at most 64 segments and 65000 bytes. `max_segs` = 1
 * switches batching off for this call. */
size_t udt_mux_output(udt_mux *m, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                      size_t *seg_bytes, udt_time now);

/* The same without copying all payload: what stays in the send buffer belongs at `at`, where the
 * output has gaps, in ascending order. Such pointers hold until anything but an output is called.
 */
typedef struct udt_gap {
    uint8_t *at;
    const uint8_t *from;
    size_t len;
} udt_gap;
typedef struct udt_gaps {
    uint32_t n, cap; /* outputs add to n; beyond cap all is copied */
    udt_gap *gap;
} udt_gaps;
size_t udt_mux_output_gaps(udt_mux *m, uint8_t *buf, size_t cap, size_t max_segs, udt_gaps *gaps,
                           udt_addr *to, size_t *seg_bytes, udt_time now);

/* Of the last output: it is one datagram, larger than what the path carries, and was numbered
 * before that was known. The network must be allowed to fragment it. */
bool udt_mux_fragments(const udt_mux *m);
/* A datagram to `to` was refused for its size by the first hop; a router on the way said (perhaps)
 * that it takes IP packets of `mtu` bytes at most. */
void udt_mux_too_big(udt_mux *m, const udt_addr *to, size_t len, udt_time now);
void udt_mux_path_mtu(udt_mux *m, const udt_addr *to, uint32_t mtu, udt_time now);

/* When tick() must run next (also when paced output is due), UDT_NEVER if idle without sockets. */
udt_time udt_mux_deadline(const udt_mux *m);
void udt_mux_tick(udt_mux *m, udt_time now);

/* Whether udt_mux_next_event() has one. Output makes events too: the last shutdown to a foreign
 * peer goes out together with CLOSED. */
bool udt_mux_has_event(const udt_mux *m);

/* The receive burst has ended (socket drained): acknowledge and deliver promptly (spec 5.1). */
void udt_mux_burst_end(udt_mux *m, udt_time now);

/* Microseconds for which the connections heard in the last burst can do without being read: what
 * their senders wish for acknowledgements. */
int64_t udt_mux_patience_us(const udt_mux *m);

/* Next event, in order; false when there is none. READABLE and WRITABLE coalesce per socket. */
bool udt_mux_next_event(udt_mux *m, struct udt_ev *ev);

/* Sockets: ids are positive; negative returns are enum udt_err. A port has at most one listener. */
int32_t udt_mux_listen(udt_mux *m, const udt_opts *o, uint32_t backlog);
int32_t udt_mux_connect(udt_mux *m, const udt_addr *to, const udt_opts *o, udt_time now);
/* `to` NULL with a tag: wait for whoever shows the tag first. */
int32_t udt_mux_rendezvous(udt_mux *m, const udt_addr *to, const udt_opts *o, udt_time now);
/* Both ends hold `key`, which nobody else has and which is used for this connection only: one end
 * is the initiator, knows the other's address, and may send at once; the responder (`to` is
 * ignored) adopts the first address that proves the key and sends nothing before. INUSE: an id that
 * follows from the key is taken here: draw another key. CONNECTED follows when the other end was
 * heard. */
int32_t udt_mux_open_keyed(udt_mux *m, const udt_addr *to, const udt_opts *o,
                           const uint8_t key[UDT_KEY_BYTES], bool initiator, udt_time now);
/* Close: what is queued is delivered for up to linger_ms, then shutdown is sent. linger_ms 0 =
 * at once. CLOSED follows. */
int udt_mux_close(udt_mux *m, int32_t sock, uint32_t linger_ms, udt_time now);

/* To be called before a close that drops what the caller had for it: the peer hears that its end is
 * no end of what was written. So it does by itself when bytes are not acknowledged. */
void udt_mux_give_up(udt_mux *m, int32_t sock, bool silent);
/* The caller has closed with so much of what it took from here unread; for the statistics. */
void udt_mux_unread(udt_mux *m, int32_t sock, size_t bytes);
/* How often the peer, one of our own under keys with plain data, has said beside a tail probe that
 * it is there: it has sent something and hears no answer. (Some answers to us are counted, too.) */
uint32_t udt_mux_probes_heard(const udt_mux *m, int32_t sock);
/* After PEERCLOSED: did the peer give up some of what it had written? Foreign peers do not say. */
bool udt_mux_was_cut(udt_mux *m, int32_t sock);

/* Stream: bytes accepted (> 0), AGAIN when the buffer is full, or an error. */
ssize_t udt_mux_send(udt_mux *m, int32_t sock, const uint8_t *buf, size_t len, udt_time now);
/* Stream: bytes read (> 0), AGAIN, PEERCLOSED when all was read, or an error. */
ssize_t udt_mux_recv(udt_mux *m, int32_t sock, uint8_t *buf, size_t cap, udt_time now);
/* Message mode. ttl_ms < 0 = none. A whole message per call and its full length; the excess of a
 * small buffer is lost. */
int udt_mux_sendmsg(udt_mux *m, int32_t sock, const uint8_t *buf, size_t len, int32_t ttl_ms,
                    bool in_order, udt_time now);
ssize_t udt_mux_recvmsg(udt_mux *m, int32_t sock, uint8_t *buf, size_t cap, udt_time now);
/* Signal a local error to the peer (type 8), which stops its sender. */
int udt_mux_peer_error(udt_mux *m, int32_t sock, int32_t code, udt_time now);

/* All connections of this port together send at most bytes_per_s (IP packets) to the peers under a
 * prefix of `bits` bits; `prefix` NULL, bits 0: to all. 0 takes the cap away. At most 64 caps;
 * those that hold for a peer all apply. */
int udt_mux_link_cap(udt_mux *m, const udt_addr *prefix, int bits, int64_t bytes_per_s);

/* For traffic of the same port that another sender carries: the caps' shares of n senders to `to`,
 * bytes per second, 0 = no cap. */
void udt_mux_link_shares(const udt_mux *m, const udt_addr *to, int n, int64_t *Bps);

size_t udt_mux_send_space(udt_mux *m, int32_t sock); /* bytes send() would accept now */
size_t udt_mux_unacked(udt_mux *m, int32_t sock);    /* bytes sent or queued, not acknowledged */

/* Statistics of a connection; every field cumulative since open unless noted. */
typedef struct udt_stats {
    int64_t bytes_sent, bytes_retrans, bytes_recv, bytes_dup; /* payload bytes */
    int64_t pkts_sent, pkts_retrans, pkts_recv, pkts_dup;
    int64_t naks_sent, naks_recv, acks_sent, acks_recv, timeouts, probes;
    int64_t rtt_us, rtt_var_us, min_rtt_us; /* current */
    int64_t cwnd_pkts, flow_wnd_pkts, in_flight_pkts, snd_queue_bytes,
        rcv_queue_bytes;                          /* current */
    int64_t period_ns;                            /* current sending period */
    int64_t recv_rate_pps, capacity_pps;          /* current estimates from the peer */
    int64_t lim_app_us, lim_cwnd_us, lim_flow_us; /* time the sender was limited by each */
    /* Time limited by pacing, by a cap, before the peer was met, and by nothing of all that. */
    int64_t lim_pace_us, lim_cap_us, lim_handshake_us, lim_none_us;
    int64_t limit;                        /* current, enum udt_limit */
    int64_t at_us;                        /* when all this was so */
    int64_t send_Bps, recv_Bps;           /* payload, over about the last second */
    int64_t pacing_Bps;                   /* what pacing allows now, 0 = no bound */
    int64_t pkts_lost, loss_ppm;          /* lost on the way out, as far as is known */
    int64_t in_flight_bytes, queue_bytes; /* queue: (RTT - smallest RTT) x rate */
    int64_t snd_buf_bytes, rcv_buf_bytes; /* current bounds of the buffers */
    int64_t bytes_unread;                 /* came, and went unread because this side had closed */
} udt_stats;
/* Of a closed socket: its last ones, from its CLOSED event until that of another is fetched. */
int udt_mux_stats(udt_mux *m, int32_t sock, udt_stats *out);
int udt_mux_peer(udt_mux *m, int32_t sock, udt_addr *out);

typedef struct udt_mux_counters {
    int64_t sockets, half_open, tombstones;                         /* current */
    int64_t dropped_bad, dropped_unknown, dropped_cookie, rejected; /* cumulative datagrams */
    int64_t buf_bytes;                                              /* current */
    int64_t bad_tag, replayed, unsealed; /* cumulative, datagrams that did not prove themselves */
    int64_t moves, moves_refused;  /* cumulative, addresses of peers that changed, or did not */
    int64_t mtu_falls, mtu_raises; /* cumulative, packet sizes that a path forbade, or allowed */
} udt_mux_counters;
void udt_mux_counters_get(const udt_mux *m, udt_mux_counters *out);
struct refused_log;
const struct refused_log *udt_mux_refused(const udt_mux *m); /* base/refused.h */

#endif
