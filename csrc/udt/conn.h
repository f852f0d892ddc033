/* Private: one UDT connection (or listener) and the port it belongs to, shared by conn*.c and
 * mux*.c.
 *
 * Packets are named by index (see base/seq.h). Rules:
 *  1. sndbuf.head = una <= next <= sndbuf.tail; loss and retx hold indices of [una, next) only.
 *  2. rcvbuf.base <= rcvbuf.frontier <= largest + 1; rcvloss holds [frontier, largest] only.
 *  3. A connection is in mux->ready whenever it may have something to send now; output() takes it
 *     out when it has not. Pending control packets are bits of `due`, never a queue.
 *  4. `timer` is queued no later than the earliest of the t_* fields. */
#ifndef UDT_CONN_H
#define UDT_CONN_H

#include "base/list.h"
#include "base/refused.h"
#include "base/timerq.h"
#include "udt/cc.h"
#include "udt/handshake.h"
#include "udt/linkcap.h"
#include "udt/mux.h"
#include "udt/own.h"
#include "udt/own_open.h"
#include "udt/packet.h"
#include "udt/pmtu.h"
#include "udt/rcvbuf.h"
#include "udt/rcvloss.h"
#include "udt/sndbuf.h"
#include "udt/sndloss.h"
#include "udt/table.h"
#include "udt/trace.h"
#include "udt/window.h"

#define SYN_US 10000
#define RTT_INITIAL_US 100000
#define BURST_OWN 64
#define BURST_FOREIGN 16
#define UDT_MESSAGE_BYTES 65000 /* of datagrams that the kernel gets at once, */
#define UDT_MESSAGE_SEGS 64     /* and so many of them */
#define LIGHT_ACK_PKTS 64
#define NAK_WAITED_UNKNOWN 0x7fffffffu
#define METERS 5
#define METER_US 200000

enum conn_state {
    CONN_LISTEN,
    CONN_CLIENT,     /* waits for the server's answers */
    CONN_RENDEZVOUS, /* waits for the other side's */
    CONN_OPEN,
    CONN_LINGER,     /* closed by the application, still delivering */
    CONN_PEERCLOSED, /* shutdown received; what has arrived may be read */
    CONN_FAILED,     /* `error` says why; waits for close() */
    CONN_SHUT        /* closed: repeats its shutdown, then goes */
};

enum conn_due {
    DUE_HANDSHAKE = 1,
    DUE_SHUTDOWN = 2,
    DUE_ERROR = 4,
    DUE_ACK2 = 8,
    DUE_ACK = 16,
    DUE_LIGHT = 32,
    DUE_NAK = 64,
    DUE_NAK_REPEAT = 128,
    DUE_KEEPALIVE = 256,
    DUE_PROBE = 512, /* tail-loss probe: the last packet again */
    /* Own mode; DUE_ACK means EACK there. */
    DUE_PARAMS = 1024,
    DUE_PATH = 2048,
    DUE_PATH_REPLY = 4096,
    DUE_ACKFREQ = 8192,
    DUE_MTU = 16384 /* padded, to find out what the path carries */
};

typedef struct udt_conn {
    udt_mux *mux;
    int32_t id;
    enum conn_state state;
    int error; /* enum udt_err once FAILED */
    int lost;  /* why a lingering close ended before all was acknowledged, 0 = it was */
    udt_opts opts;
    udt_addr peer; /* family 0: not known yet (rendezvous by tag) */
    int32_t peer_id;
    bool server_side, rendezvous;
    bool foreign; /* libudt's keep-alives (spec 5.3), probe pairs, small bursts */
    bool unmet;   /* a foreign client that may still wait for our answer: see foreign.c */
    int meetings; /* times it was asked */

    /* Places in the port's structures. */
    table_node by_id, by_key; /* by_key: accepted peers, or rendezvous by tag or address */
    list_node ready, touched, events, all;
    list_node line; /* in mux->line, or in mux->given: see own_near.c */
    timerq_node timer;
    uint16_t ev_mask; /* bits 1 << enum udt_event_kind, not yet fetched */
    int32_t ev_listener;

    /* Listener. */
    uint32_t backlog, unaccepted; /* bound and number of accepted connections not yet fetched */
    int32_t listener;             /* of an accepted connection, 0 once fetched */

    /* Handshake. */
    uint32_t isn, peer_isn;
    uint32_t cookie;
    uint32_t hs_ip[4];
    uint32_t hs_peer_window;
    int32_t hs_req; /* request type we send now */
    int hs_sent;    /* times sent since the last change */
    udt_time hs_sent_at, hs_second_at;
    bool hs_stored;        /* rendezvous: a handshake of the peer was read */
    bool hs_claimed;       /* then: where it came from is not proved, only the tag was shown */
    int hs_room;           /* then: handshakes that may go there, as many as came */
    uint32_t hs_version;   /* of the handshake to send: 0 in agreements */
    uint32_t mss, payload; /* negotiated MSS and P */
    uint32_t own_payload;  /* P of our own MSS: largest body accepted */

    /* Timers (spec 5); UDT_NEVER when off. */
    udt_time t_handshake, t_connect, t_ack, t_ack_repeat, t_nak, t_probe, t_retx, t_exp, t_pace,
        t_linger, t_shutdown, t_space, t_own, t_pmtu;
    udt_time opened_at, heard_at, sent_at, exp_from;
    int exp_count;
    int asks;          /* keep-alives, or to a foreign peer ACKs, that ask it, since it was heard */
    udt_time asked_at; /* the first of them; the last to a foreign peer */
    int64_t answer_us; /* time that the last answer took, 0 = none was needed */
    uint32_t
        probes_heard; /* keep-alives of an own peer that ask nothing: those beside its probes */

    unsigned due; /* enum conn_due */
    int shutdowns_left;
    int32_t error_code;
    udt_time shut_reply_at;

    /* Sending. */
    udt_sndbuf snd;
    udt_sndloss loss;
    lossmap retx; /* sent again and not yet acknowledged */
    udt_cc cc;
    int64_t next;       /* next new index */
    int64_t edge;       /* first index beyond the peer's window */
    int64_t next_ns;    /* pacing: when the next packet may go */
    int64_t late_ns;    /* so much of it is still to be made up for */
    int64_t wakes_ns;   /* so late its timer wakes us, in the mean */
    int burst_left;     /* packets of the running burst */
    int64_t head_tried; /* the first packets up to it were sent again unasked, 0 = none */
    udt_time head_tried_at;
    int booked; /* packets that a shared cap lets go at booked_ns, 0 = none */
    int64_t booked_ns;
    int64_t high;       /* all before has arrived or is known to be missing; una <= high <= next */
    int64_t lost_first; /* packets before high whose first transmission was lost */
    int64_t delivered;  /* first transmissions known to have arrived */
    udt_time delivered_us;
    int64_t epoch_delivered; /* rate samples over several short round trips */
    udt_time epoch_at;
    bool silent;         /* probes have gone out since the last news */
    udt_time resumed_at; /* first news after a silence: no rate is counted from before it */
    bool resuming;       /* since then only packets that were sent again have come */
    int64_t epoch_sent, epoch_again; /* packets sent new and again when it began */
    double mix;                      /* all packets sent / new ones, smoothed */
    bool repairing;                  /* mostly sending again: rate samples say too little */
    bool epoch_app_limited;
    int64_t app_limited;  /* rate samples up to this index are the application's, -1 = none */
    udt_time progress_at; /* last acknowledgement that moved, or first packet in flight */
    int probes;           /* tail-loss probes and timeouts since then */
    int backoff;          /* timeouts since the last clean RTT sample: longer waits (Karn) */
    uint32_t ack2_sub;    /* ACK to confirm */
    uint32_t ack_heard;   /* number of the last numbered ACK, 0 = none */
    bool want_space;      /* send() returned AGAIN */
    int64_t full_ack;     /* highest index that a non-light ACK confirmed */
    bool drained;         /* everything was acknowledged and said so */
    /* A foreign peer on a short path (foreign.c). */
    int64_t room_pkts; /* most that may be on the way, INT64_MAX = any number */
    int64_t room_lost; /* losses before it are of flights that were judged */
    bool room_shut;    /* so many were on the way, and half of them still are */
    /* A foreign peer's reader of messages (see udt__conn_try_shut). */
    int64_t peer_slots;  /* free slots of its buffer when all was read, as far as we know */
    bool slots_known;    /* an ACK has said something about that */
    bool unread;         /* its last ACK left acknowledged packets unread */
    udt_time reader_at;  /* when its reader last made room */
    bool gave_up;        /* bytes that never came here were dropped with the close */
    bool mute;           /* no farewell, which a foreign peer would take for a proper end */
    uint32_t last_word;  /* word 1 of its shutdown */
    bool short_end;      /* the peer closed, and not all that it had written is here */
    udt_time linger_end; /* of a closing connection: no longer, whatever is missing */
    int turn;            /* packets left of its turn */
    bool asked;          /* its writer is to fill the turn */
    udt_time turn_at;    /* when it was given */
    enum udt_limit limit;
    udt_time limit_at;

    /* Receiving. */
    udt_rcvbuf rcv;
    udt_rcvloss missing;
    udt_window window;
    int64_t largest;      /* largest index received, -1 = none */
    bool cut;             /* the message or send() that `largest` belongs to goes on behind it */
    int64_t last_ack;     /* of the last non-light ACK */
    int64_t acked2;       /* confirmed by ACK2 */
    int64_t last_any_ack; /* of the last ACK of any form */
    uint32_t ack_sub;     /* sub-sequence number of the last ACK */
    int pkts_since_ack;
    int ack_repeats;
    bool ack_force; /* acknowledge even if nothing moved */
    bool ack_pending;
    udt_time last_full_at; /* last non-light ACK */
    udt_time last_24_at;   /* last one with rates */
    int64_t said_window;   /* free slots last reported */
    int64_t nak_from;      /* holes at or above were never reported */
    int64_t nak_to;        /* and those below it are due */
    int64_t late_us;       /* how much later than its successors a packet may come */
    uint32_t newest_ts;    /* latest time stamp of a data packet */
    udt_time t_hole;       /* when holes below hole_mark are no longer late packets */
    int64_t hole_mark;     /* the packet behind a hole */
    udt_time hole_at;      /* when it came */
    int64_t gap_end;       /* the same of the newest hole */
    udt_time gap_at;
    int64_t nak_mark; /* largest + 1 when the repeat timer last ran */
    udt_time drops_at;
    int64_t drops; /* packets that the peer has given up since then */
    int64_t repeat_from, repeat_to;

    /* RTT, shared by both directions as libudt does. */
    int64_t rtt_us, rtt_var_us, min_rtt_us;
    bool rtt_known;
    udt_time guessed_at; /* rtt_us is only a guess, made then; 0 = it was measured */
    int64_t peer_rate_pps, peer_capacity_pps;
    udt_stats st;
    struct {
        udt_time at;
        int64_t sent, recv;
    } meter[METERS];  /* for rates over the last second, newest last */
    udt_trace *trace; /* NULL = nobody wants one */
    udt_traced traced;
    udt_own own;
    own_opening open;
    udt_pmtu pmtu;
} udt_conn;

typedef struct udt_tombstone {
    table_node node, by_peer; /* the second if the peer was the client */
    int32_t id, peer_id;
    uint32_t isn; /* ours */
    udt_addr peer;
    udt_time until, reply_at;
    uint8_t bye_len; /* own mode: a sealed shutdown to answer with, 0 = a plain one */
    uint8_t bye[UDT_CTRL_MAX];
} udt_tombstone;
#define TOMBSTONES 1024
#define TOMBSTONE_US 60000000
#define TOMBSTONE_REPLY_US 100000

typedef struct udt_reply {
    udt_addr to;
    uint8_t len;
    uint8_t buf[UDT_CTRL_MAX];
} udt_reply;
#define REPLIES 256

/* A peer whose round trip was short when it was last so. */
typedef struct udt_near {
    udt_addr peer;
    udt_time at;
} udt_near;
#define NEAR_PEERS 32

struct udt_mux {
    udt_mux_config cfg;
    udt_mem mem;
    udt_linkcaps caps;
    timerq timers;
    list_node ready, touched, events, all;
    table ids, peers, rdv, tombs;
    table gone; /* tombs by peer */
    udt_conn *listener;
    bool listened; /* there was one: who comes now is refused, not left waiting */
    uint32_t sockets;
    int32_t next_id;
    bool drew_id;
    udt_time now;        /* of the last call that had one */
    udt_time told_until; /* ICMP: see pmtu.c */
    uint32_t told;
    udt_cookies cookies;
    bool drew_peer_key;
    uint8_t peer_key[16]; /* of the table of peers */
    udt_reply *replies;   /* ring */
    uint32_t reply_head, reply_count;
    udt_tombstone *tomb; /* ring of TOMBSTONES */
    uint32_t tomb_next;
    udt_mux_counters n;
    int32_t closed_id; /* whose CLOSED event was fetched last */
    udt_stats closed_stats;
    uint8_t *scratch; /* SCRATCH_BYTES: body of the sealed packet just opened */
    own_counters own; /* of all connections */
    int64_t patience_us;
    int64_t near_bytes;    /* in flight on short paths, all connections */
    int64_t near_turns;    /* and what turns may still add */
    list_node line, given; /* connections that wait for a turn; that have one */
    udt_near near[NEAR_PEERS];
    udt_path_mtu paths[PMTU_PATHS];
    refused_log refused;
    uint8_t why;    /* enum udt_refused_kind of the sealed packet just dropped */
    bool fragments; /* see udt_mux_fragments() */
    udt_gaps *gaps; /* of the output that runs, NULL = it copies everything */
};
#define SCRATCH_BYTES 65536

/* mux.c */
uint32_t udt__rand32(udt_mux *m);
udt_conn *udt__mux_find(const udt_mux *m, int32_t id);
/* A new connection with an id, in the tables of all and by id; NULL at a bound. */
udt_conn *udt__mux_new_conn(udt_mux *m, const udt_opts *o, enum conn_state state, udt_time now);
udt_conn *udt__mux_new_conn_id(udt_mux *m, const udt_opts *o, enum conn_state state, int32_t id,
                               udt_time now);
bool udt__mux_id_in_use(const udt_mux *m, int32_t id);
/* Fill in what the caller left to the port; false when an option makes no sense. */
bool udt__mux_resolve(const udt_mux *m, udt_opts *o, uint16_t family, int32_t timeout_ms);
void udt__mux_free_conn(udt_conn *c);
/* Frees a closed connection once its last event was fetched and its shutdowns are out. */
bool udt__mux_reap(udt_conn *c);

/* mux_reply.c: what is answered without a connection. */
void udt__reply(udt_mux *m, const udt_addr *to, const uint8_t *buf, size_t len);
void udt__reply_shutdown(udt_mux *m, const udt_addr *to, int32_t dst);
void udt__tombstone_add(udt_mux *m, udt_conn *c, udt_time now);
void udt__tombstone_input(udt_mux *m, const udt_addr *from, const udt_pkt *p, size_t len,
                          udt_time now);
void udt__listener_input(udt_mux *m, const udt_addr *from, const udt_pkt *p, udt_time now);

/* mux_out.c: where the header of a plain data packet that goes to `buf` is written: in front of its
 * payload in the send buffer, if the packet can leave from there and was never sent (the header of
 * one that was may still wait to leave); afterwards `put_whole` leaves the gap at `buf`. Else plain
 * payload goes behind its header, or leaves a gap there. */
uint8_t *udt__head_of(udt_mux *m, const snd_slot *s, uint8_t *buf);
void udt__put_whole(udt_mux *m, uint8_t *at, const uint8_t *from, size_t len);
void udt__put_payload(udt_mux *m, uint8_t *at, const uint8_t *from, size_t len);

/* conn.c */
void udt__conn_event(udt_conn *c, enum udt_event_kind kind);
void udt__conn_ready(udt_conn *c);
/* Set one of the t_* fields and see that the timer runs by then. */
void udt__conn_timer(udt_conn *c, udt_time *field, udt_time at);
void udt__conn_arm(udt_conn *c);
/* The handshake is complete: buffers, congestion control, timers. False without memory. */
bool udt__conn_open(udt_conn *c, uint32_t peer_isn, uint32_t peer_window, uint32_t mss,
                    udt_time now);
void udt__conn_fail(udt_conn *c, int err, udt_time now);
void udt__conn_close(udt_conn *c, uint32_t linger_ms, udt_time now);
/* Closing is done: send the shutdowns (if the peer is there to hear them) and go. */
void udt__conn_say_shut(udt_conn *c);
void udt__conn_shut(udt_conn *c, udt_time now);
/* The application has fetched the ACCEPTED event (or never will): room in the backlog. */
void udt__conn_fetched(udt_conn *c);
void udt__conn_peer_closed(udt_conn *c, udt_time now);
void udt__conn_input(udt_conn *c, const udt_addr *from, const udt_pkt *p, udt_time now);
/* One control packet of at most `cap` bytes, of those in `mask` (DUE_*), and no data. */
size_t udt__conn_output_control(udt_conn *c, unsigned mask, uint8_t *buf, size_t cap, udt_time now);
size_t udt__conn_output(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t *seg,
                        udt_time now);
void udt__conn_rtt(udt_conn *c, int64_t rtt_us);
/* Something has come that was sent more than once, first and last so long ago: the RTT is guessed
 * from that as long as there is no sample. */
void udt__conn_guess_rtt(udt_conn *c, int64_t first_us, int64_t last_us, udt_time now);
void udt__conn_free_buffers(udt_conn *c);
/* Moves the rate meters on. */
void udt__conn_stats(udt_conn *c, udt_stats *out);
static inline bool udt__conn_live(const udt_conn *c)
{
    return c->state == CONN_OPEN || c->state == CONN_LINGER;
}
/* Packets sent and not known to have arrived. */
static inline int64_t udt__conn_flight(const udt_conn *c)
{
    return c->own.on ? c->own.flight : c->next - (c->high > c->snd.head ? c->high : c->snd.head);
}
/* Payload bytes a second that pacing allows, 0 = it sets no bound. */
static inline int64_t udt__conn_pace_Bps(const udt_conn *c)
{
    return c->cc.period_ns > 0 ? c->snd.fill * INT64_C(1000000000) / c->cc.period_ns : 0;
}
static inline int64_t udt__conn_rto(const udt_conn *c)
{
    return c->rtt_us + 4 * c->rtt_var_us;
}

/* conn_handshake.c */
void udt__conn_start(udt_conn *c, udt_time now);
void udt__conn_handshake_input(udt_conn *c, const udt_addr *from, const udt_hs *h, int32_t dst,
                               udt_time now);
size_t udt__conn_emit_handshake(udt_conn *c, uint8_t *buf, udt_time now);
void udt__conn_handshake_timer(udt_conn *c, udt_time now);
uint32_t udt__conn_own_window(const udt_conn *c);

/* foreign.c: a sender's regard for libudt */
void udt__foreign_open(udt_conn *c, uint32_t peer_window);
bool udt__foreign_room(const udt_conn *c);
void udt__foreign_judge(udt_conn *c); /* more is on the way, or less */
void udt__foreign_lost(udt_conn *c, int64_t first);
void udt__foreign_stalled(udt_conn *c);
void udt__foreign_accepted(udt_conn *c);
void udt__foreign_met(udt_conn *c);
/* True when nothing but what lies in `buf`, perhaps nothing, may go out now. */
bool udt__foreign_holds(udt_conn *c, uint8_t *buf, size_t *len, udt_time now);
void udt__foreign_arrived(udt_conn *c);
/* What an ACK says of rates, in packets/s, from what was measured. */
void udt__foreign_say(const udt_conn *c, int64_t *rate, int64_t *capacity);
/* conn_send.c */
ssize_t udt__conn_send(udt_conn *c, const uint8_t *buf, size_t len, udt_time now);
int udt__conn_sendmsg(udt_conn *c, const uint8_t *buf, size_t len, int32_t ttl_ms, bool in_order,
                      udt_time now);
size_t udt__conn_emit_data(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t *seg,
                           udt_time now);
bool udt__conn_can_send(const udt_conn *c);
/* Tells what a loss means: `lost_pkts` from `first` on were found to be missing. */
void udt__conn_lost(udt_conn *c, udt_cc_loss *l);
/* How much of what a silent peer was sent is thought lost at a time. */
#define PRESUMED_PKTS 64
/* What went out until `since` of [from, end) is lost. Returns how many packets that is. */
int64_t udt__conn_presume_lost(udt_conn *c, int64_t from, int64_t end, udt_time since);
void udt__conn_mark_lost(udt_conn *c, int64_t first, int64_t last);
/* send() found no room: see that WRITABLE comes. */
void udt__conn_want_space(udt_conn *c, udt_time now);
void udt__conn_set_limit(udt_conn *c, enum udt_limit why, udt_time now);

/* conn_ack.c: the sender's side of acknowledgements and loss reports. */
void udt__conn_ack_input(udt_conn *c, const udt_pkt *p, udt_time now);
void udt__conn_nak_input(udt_conn *c, const udt_pkt *p, udt_time now);
/* Everything before `ack` is acknowledged: its slots are free, and the writer may be told. */
void udt__conn_free_up_to(udt_conn *c, int64_t ack);
void udt__conn_check_drained(udt_conn *c, udt_time now);
/* Closing: send the shutdown if the peer has all, else see that it is tried again. */
void udt__conn_try_shut(udt_conn *c, udt_time now);
/* May the connection be shut now without taking data from the peer's reader? */
bool udt__conn_delivered(const udt_conn *c, udt_time now);

/* conn_recv.c */
/* Packets that may come after the first missing one, as acknowledgements say it. */
int64_t udt__conn_window_now(const udt_conn *c);
void udt__conn_data_input(udt_conn *c, const udt_pkt *p, udt_time now);
void udt__conn_drop_input(udt_conn *c, const udt_pkt *p, udt_time now);
void udt__conn_ack2_input(udt_conn *c, const udt_pkt *p, udt_time now);
/* Holes that have waited long enough for late packets are reported. */
void udt__conn_hole_timer(udt_conn *c, udt_time now);
void udt__conn_burst_end(udt_conn *c, udt_time now);
size_t udt__conn_emit_ack(udt_conn *c, uint8_t *buf, udt_time now);
size_t udt__conn_emit_light(udt_conn *c, uint8_t *buf);
size_t udt__conn_emit_nak(udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
size_t udt__conn_emit_nak_repeat(udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
ssize_t udt__conn_recv(udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
ssize_t udt__conn_recvmsg(udt_conn *c, uint8_t *buf, size_t cap, udt_time now);

/* conn_timer.c */
void udt__conn_tick(udt_conn *c, udt_time now);
/* Restart the loss timers after an acknowledgement moved or the first packet went out. */
void udt__conn_restart_probe(udt_conn *c, udt_time now);
void udt__conn_start_liveness(udt_conn *c, udt_time now);

#endif
