/* Own mode: what two of our own ends speak once both know it (docs/protocol/udt-own-mode.md).
 *
 * It changes four things of a connection and nothing of what libudt sees:
 *  1. Word 2 of every packet is the low half of a packet number, new for each transmission.
 *  2. With keys, control packets are sealed always and data packets if `seal_data` says so. What
 *     does not authenticate is counted and has no other effect at all.
 *  3. EACK replaces ACK, light ACK, ACK2 and NAK; the sender finds losses by packet number and
 * time.
 *  4. Its own control types below.
 *
 * Rules of the sender's scoreboard (own_ack.c):
 *  1. `out` holds the indices of [snd.head, next) that are sent and not known to have arrived.
 *  2. A packet is in the list `flight_first`..`flight_last`, in the order of packet numbers, if it
 *     is in `out` and not in c->loss; `flight` counts them. SND_FLYING marks them.
 *  3. c->retx and c->high are not used; c->lost_first neither. */
#ifndef UDT_OWN_H
#define UDT_OWN_H

#include "crypto/aead.h"
#include "udt/lossmap.h"
#include "udt/packet.h"
#include "udt/sndbuf.h"
#include "udt_types.h"

struct udt_conn;
struct udt_mux;

/* Control types of own mode. Never sent to a foreign peer. */
enum own_ctrl {
    OWN_EACK = 0x0010,
    OWN_PARAMS = 0x0011,
    OWN_PATH_CHALLENGE = 0x0012,
    OWN_PATH_RESPONSE = 0x0013,
    OWN_ACKFREQ = 0x0014 /* the sender's wish: packets and time between EACKs */
};

/* Feature bits, as offered and chosen. */
enum own_feature {
    OWN_F_BASE = 1,      /* packet numbers and EACK: own mode itself */
    OWN_F_SEALED = 2,    /* keys: control packets are sealed */
    OWN_F_SEAL_DATA = 4, /* data packets too */
    OWN_F_CREDIT = 8,    /* byte credit in EACK counts */
    OWN_F_MIGRATE = 16   /* PATH_CHALLENGE and PATH_RESPONSE */
};

#define OWN_TAG_BYTES AEAD_TAG_BYTES
#define OWN_REPLAY_BITS 32768 /* packets that may overtake one */
#define OWN_EPOCH_SHIFT 26    /* packets of one key: 2^26 */
#define OWN_REORDER_PKTS 3    /* a packet overtaken by so many is lost, until we know better */
#define OWN_RANGES 64         /* of an EACK */
#define OWN_EACK_MAX (UDT_HDR_BYTES + 40 + 8 * OWN_RANGES + OWN_TAG_BYTES)

/* How own mode begins. Keys are secrets of each direction; both or none. */
typedef struct own_cfg {
    uint32_t features; /* enum own_feature; SEALED and SEAL_DATA need the secrets */
    const uint8_t *tx; /* AEAD_KEY_BYTES, what we send; NULL = nothing is sealed */
    const uint8_t *rx; /* what the peer sends */
    int epoch_shift;   /* log2 of the packets of one key, 0 = OWN_EPOCH_SHIFT (tests: small) */
    int alg;           /* enum aead_alg, 0 = the default */
} own_cfg;

/* The key of one direction. Packet number >> epoch_shift names the key; each secret follows from
 * the one before, so that no bit on the wire and no message is needed. */
typedef struct own_dir {
    uint8_t secret[AEAD_KEY_BYTES]; /* of `epoch` */
    uint64_t epoch;
    aead *key;  /* of `epoch` */
    aead *last; /* receiving: of epoch - 1, for late packets */
    aead *next; /* receiving: of epoch + 1, once a packet has claimed it */
} own_dir;

typedef struct own_counters {
    int64_t bad_tag;  /* did not authenticate */
    int64_t replayed; /* authentic, but seen before or too old */
    int64_t unsealed; /* plain packets where sealed ones are due */
    int64_t spurious; /* packets sent again that had not been lost */
    int64_t key_updates;
} own_counters;

/* A run of packets that has arrived. */
typedef struct own_run {
    int64_t first, last;
} own_run;

typedef struct udt_own {
    bool on;
    bool sealed, seal_data;
    bool hold; /* set by the opening: no data goes out yet */
    uint32_t features;
    int epoch_shift, alg;
    own_dir tx, rx;
    uint64_t pn;        /* next packet number to use, from 1 */
    uint64_t pn_sealed; /* of the last sealed packet: the peer expands numbers from it */
    uint64_t rx_top;    /* highest number of an accepted packet (sealed ones where all are) */
    uint64_t rx_data;   /* highest number of a data packet, 0 = none */
    bool rx_newest;     /* the data packet at hand has it */
    udt_time rx_data_at;
    uint64_t *replay; /* OWN_REPLAY_BITS bits, by number; NULL unsealed */
    own_counters n;
    udt_addr
        to; /* where the packet that udt__conn_output() has just made goes; family 0 = c->peer */

    /* EACKs to send. */
    own_run runs[OWN_RANGES]; /* latest runs received, newest last */
    uint32_t runs_n, runs_new;
    uint32_t rx_dups;    /* data packets that were sent again for nothing */
    uint32_t every_pkts; /* as the sender wished */
    int64_t every_us;
    int gap; /* EACKs to send soon, because a hole has opened */

    /* EACKs received. */
    uint64_t eack_pn;   /* newest EACK's own number: older ones set no window */
    uint64_t tx_top;    /* highest data packet number known to have arrived */
    udt_time tx_top_at; /* when that was sent */
    uint32_t peer_dups; /* duplicates the peer has counted */
    uint32_t probed;    /* probes sent since: they may come twice */
    int64_t edge_bytes; /* payload bytes that may be unacknowledged */
    int64_t sent_bytes; /* payload bytes of [snd.head, next) */
    lossmap out;
    int64_t out_end;                           /* there is room in it for all before this index */
    int64_t flight_first, flight_last, flight; /* list through the slots; -1 = empty */
    int64_t near_pkts;                         /* of them, those that count in mux->near_bytes */
    bool is_near;                              /* the path is short */
    udt_time near_said;                        /* when that was last told to others */
    int64_t reo_us;     /* tolerance: a packet sent so much later must have arrived */
    int64_t reo_pkts;   /* and so many packets later */
    udt_time reo_at;    /* tolerance last needed */
    udt_time reo_grew;  /* doubled for what came although it was sent again; 0 = never */
    udt_time window_us; /* start of the running rate sample: see snd_slot.first_us */
    uint32_t said_pkts; /* ACKFREQ last sent */
    int64_t said_us, said_rtt_us;
    int64_t heard_rtt_us; /* the peer's, from its ACKFREQ; 0 = unknown */
    udt_time said_at;
} udt_own;

/* ---- own_packet.c: numbers and sealing ---- */

/* Begin own mode: before udt__conn_open(), or after it as long as no data packet was sent or
 * received. False without memory or crypto; the connection is then unchanged. */
bool udt__own_start(struct udt_conn *c, const own_cfg *cfg, udt_time now);
void udt__own_fini(struct udt_conn *c);
/* Bytes of a data packet that sealing takes: P = MSS - 44 - this. */
static inline uint32_t udt__own_data_tag(const udt_own *o)
{
    return o->seal_data ? OWN_TAG_BYTES : 0;
}
/* Number of the next packet; each is used once. */
uint64_t udt__own_pn_next(struct udt_conn *c);
/* Finish the plain packet of `n` bytes in `buf` for sending: packet number, and the seal where due.
 * OWN_TAG_BYTES more must fit. Returns the new length. Every control packet goes through it once.
 */
size_t udt__own_seal(struct udt_conn *c, uint8_t *buf, size_t n);
/* A finished shutdown of at most UDT_CTRL_MAX bytes, for answers after the end. */
size_t udt__own_farewell(struct udt_conn *c, uint8_t *buf);
/* The same for a data packet whose payload lies elsewhere: header at buf, then the payload. */
size_t udt__own_put_data(struct udt_conn *c, uint8_t *buf, const uint8_t *payload, size_t len,
                         uint64_t *pn);
/* Check and open a received packet: *pn its number; p->body and p->len become the plain ones (the
 * body may move to c->mux->scratch). False: counted, and must have no effect. */
bool udt__own_open(struct udt_conn *c, udt_pkt *p, const uint8_t *hdr, uint64_t *pn);

/* ---- own_ack.c: EACKs to send ---- */

/* A data packet has come, stored or not; packets first..last have been stored. */
void udt__own_data_seen(struct udt_conn *c, uint64_t pn, udt_time now);
void udt__own_arrived(struct udt_conn *c, int64_t first, int64_t last);
/* Shortest time between two EACKs, and packets after which one is due. */
int64_t udt__own_ack_gap(const struct udt_conn *c, int64_t fallback);
uint32_t udt__own_ack_pkts(const struct udt_conn *c);
void udt__own_ackfreq_input(struct udt_conn *c, const udt_pkt *p);
size_t udt__own_emit_eack(struct udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
/* Bytes of the next EACK, sealed where that is due; 0 = it names runs behind a hole. */
size_t udt__own_eack_bytes(const struct udt_conn *c);

/* ---- own_loss.c: the scoreboard ---- */

/* False without memory to remember that `idx` was sent. */
bool udt__own_may_send(struct udt_conn *c, int64_t idx);
void udt__own_sent(struct udt_conn *c, int64_t idx, snd_slot *s, uint64_t pn, udt_time now);
void udt__own_eack_input(struct udt_conn *c, const udt_pkt *p, uint64_t pn, udt_time now);
void udt__own_shutdown_input(struct udt_conn *c, uint32_t word);
size_t udt__own_emit_ackfreq(struct udt_conn *c, uint8_t *buf);
/* Presume lost what is older than a round trip, at most so many packets. */
void udt__own_timeout(struct udt_conn *c, int64_t most, udt_time now);
/* c->t_retx has come: packets may be lost by time. */
void udt__own_loss_timer(struct udt_conn *c, udt_time now);

/* ---- own_near.c: how much all connections to near peers have in flight ---- */

/* A sample of the round trip: is the path short? */
void udt__near_rtt(struct udt_conn *c, int64_t rtt_us);
/* May this one have one more packet in flight, as far as that goes? */
bool udt__near_room(const struct udt_conn *c);
/* A packet is in flight; it is no longer. */
void udt__near_sent(struct udt_conn *c, snd_slot *s);
void udt__near_back(struct udt_conn *c, snd_slot *s);
/* The connection has ended: nothing more will be heard of what is in flight. */
void udt__near_leave(struct udt_conn *c);
/* Bytes beyond those in flight that it may queue, as far as turns go. */
uint64_t udt__near_queue(const struct udt_conn *c);
/* It has nothing more to send, or must wait, or a writer has found no room: its turn ends if that
 * is so, and it waits for the next one if it wants one. */
void udt__near_wait(struct udt_conn *c);
bool udt__near_waits(const struct udt_conn *c);
/* Packets that make an acknowledgement worth while: those of a turn, 0 = it takes none. */
int udt__near_ack_pkts(const struct udt_conn *c);
/* The writer for whom its turn waited has written. */
void udt__near_wrote(struct udt_conn *c);
/* Give turns as far as there is room, and when that is due. */
void udt__near_turns(struct udt_mux *m, udt_time now);
udt_time udt__near_deadline(const struct udt_mux *m);

/* ---- own_path.c, own_open.c: parameters and paths ---- */

/* PARAMS, PATH_CHALLENGE, PATH_RESPONSE and what else belongs to opening and paths; authentic. */
void udt__own_control(struct udt_conn *c, const udt_addr *from, const udt_pkt *p, uint64_t pn,
                      udt_time now);
/* The next pending control packet of those kinds (bits DUE_PARAMS, DUE_PATH, DUE_PATH_REPLY of
 * c->due), plain: the caller seals it. 0 when there is none after all. *to = another destination
 * than c->peer where it has one. */
size_t udt__own_emit(struct udt_conn *c, unsigned bit, uint8_t *buf, size_t cap, udt_addr *to,
                     udt_time now);
/* An authentic packet came from another address than c->peer: `newest` if its number is the highest
 * so far. `len` = bytes of the datagram. The packet itself counts as any other. */
void udt__own_moved(struct udt_conn *c, const udt_addr *from, bool newest, size_t len,
                    udt_time now);
/* c->t_own has come: timers of opening and paths. */
void udt__own_tick(struct udt_conn *c, udt_time now);

#endif
