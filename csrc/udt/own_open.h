/* How two of our own ends find out about each other, and what they agree on
 * (docs/protocol/udt-own-mode.md, "Opening" and "Paths").
 *
 * Three ways: an offer in words 9-11 of IPv4 handshakes, which libudt leaves 0 or echoes; the same
 * in a user-defined control packet over IPv6, where the words are taken; or a key that both hold,
 * from which ids, sequence numbers and packet keys follow, so that nothing has to be asked. */
#ifndef UDT_OWN_OPEN_H
#define UDT_OWN_OPEN_H

#include "crypto/aead.h"
#include "udt/handshake.h"
#include "udt/mux.h"
#include "udt/packet.h"
#include "udt_types.h"

struct udt_conn;

#define OWN_OFFER_WORDS 3
#define OWN_OFFER_MAGIC 0x5ec7u  /* high half of the first word */
#define OWN_ANSWER_MAGIC 0x5ec8u /* never an echo */
#define OWN_FIRST_PKTS 10        /* data packets before the peer was heard */
#define OWN_PROOF_ROOM 640       /* of what an unproved address gets, kept for PARAMS */
#define OWN_CTRL_MAX (UDT_CTRL_MAX + OWN_TAG_BYTES)

/* What is known of two ends that negotiate. 0 = the client; in a rendezvous the one whose (nonce,
 * id) is larger; 1 = the other. */
typedef struct own_meet {
    uint32_t isn[2];
    int32_t id[2];
    uint32_t words[2][OWN_OFFER_WORDS];
} own_meet;

/* words[0] of an offer (`by` 0) or words[1] of an answer or the other offer: feature bits and nonce
 * given, proof of the key (NULL = none, a checksum) added. An offer is proved over its own end's
 * isn and id, an answer over both and the offer. */
void own_meet_say(own_meet *t, int by, bool answer, uint32_t features, uint32_t nonce,
                  const uint8_t *psk);
/* Are words[by] such, with that proof? */
bool own_meet_check(const own_meet *t, int by, bool answer, const uint8_t *psk);
static inline uint32_t own_meet_features(const uint32_t words[OWN_OFFER_WORDS])
{
    return words[0] & 0xffff;
}
/* Secrets of both directions: keys[0] is what end 0 sends with. */
void own_meet_keys(const own_meet *t, const uint8_t psk[UDT_KEY_BYTES],
                   uint8_t keys[2][AEAD_KEY_BYTES]);

/* All that follows from the key of a connection; index 0 = initiator. */
typedef struct own_keyed {
    int32_t id[2];
    uint32_t isn[2];
    uint8_t key[2][AEAD_KEY_BYTES];
} own_keyed;
void own_keyed_derive(own_keyed *k, const uint8_t key[UDT_KEY_BYTES]);

/* PARAMS, before padding. */
#define OWN_PARAMS_BYTES 40
#define OWN_PARAMS_ANSWER 1 /* flag: answer this */
typedef struct own_params {
    uint16_t features;
    uint32_t mss;    /* largest IP packet the sender takes */
    uint64_t credit; /* payload bytes it can receive */
    uint32_t slots;  /* and packets */
    uint8_t type;    /* UDT_STREAM or UDT_DGRAM */
    uint8_t flags;
    uint64_t token; /* of the sender's choice */
    uint64_t echo;  /* the receiver's token as last seen, 0 = none: proves the address */
} own_params;
void own_params_put(const own_params *v, uint8_t out[OWN_PARAMS_BYTES]);
bool own_params_get(own_params *v, const uint8_t *body, size_t len);

enum own_phase {
    OPEN_PLAIN = 0, /* nothing to agree on, or all is agreed */
    OPEN_ASKING,    /* keyed initiator: the peer was not heard yet */
    OPEN_WAITING,   /* keyed responder: no datagram has proved itself yet */
    OPEN_OFFERED,   /* IPv6: our offer is out */
    OPEN_LISTENING, /* IPv6 server: the peer's may come */
    OPEN_ANSWERED   /* IPv6: we answered; own mode begins with the peer's first packet in it */
};

/* Opening and paths of one connection. */
typedef struct own_opening {
    enum own_phase phase;
    bool keyed, initiator;
    uint8_t psk[UDT_KEY_BYTES]; /* until agreed */
    own_meet meet;
    int mine;  /* our index in meet */
    bool said; /* `words` go into our handshakes */
    uint32_t words[OWN_OFFER_WORDS];
    bool heard;                 /* the peer's handshake was read: its words are in meet */
    int tries;                  /* offers or PARAMS sent */
    int extra;                  /* PARAMS that go with the first, as room for an answer */
    udt_time said_at;           /* the first of them */
    int event;                  /* enum udt_event_kind held back until it is agreed, 0 = none */
    uint64_t token, peer_token; /* of PARAMS */
    uint8_t params_flags;       /* of the PARAMS to send */

    /* The running address: before it is validated it gets no more bytes than came from it. */
    bool unproved;
    int64_t got_bytes, sent_bytes;
    /* Another address that claims to be the peer. */
    udt_addr cand; /* family 0 = none */
    uint64_t cand_token;
    int cand_tries;
    int64_t cand_got, cand_sent;
    udt_time cand_mute; /* no other before */
    udt_addr reply_to;  /* a PATH_RESPONSE that is due */
    uint64_t reply_token;
    int64_t moves; /* addresses changed */

    /* Windows that grow by themselves: see own_windows.c. */
    bool auto_rcv, auto_snd;
    udt_time tune_at;
    int64_t tune_read;   /* payload read since */
    int64_t tune_recv;   /* payload that had arrived then */
    uint64_t said_bytes; /* credit last told */
} own_opening;

/* own_open.c: client and rendezvous, before the first handshake. */
void udt__own_offer(struct udt_conn *c);
/* A listener's view of a request: UDT_OK = an offer to take, STATE = none, AUTH = to refuse. */
int udt__own_judge(const udt_opts *o, const udt_hs *h);
/* The server's end takes the offer, before udt__conn_open(). False without memory. */
bool udt__own_answer(struct udt_conn *c, const udt_hs *h, udt_time now);
/* The client has the server's answer (or none), before udt__conn_open(). 0 or why it must fail. */
int udt__own_answered(struct udt_conn *c, const udt_hs *h, udt_time now);
void udt__own_heard(struct udt_conn *c, const udt_hs *h);
int udt__own_rendezvous(struct udt_conn *c, udt_time now);
/* udt__conn_open() is done: says `event` (enum udt_event_kind), or does so once both ends know what
 * they speak. */
void udt__own_opened(struct udt_conn *c, int event, udt_time now);
/* A datagram for a connection with a phase. True: it was for the opening alone. */
bool udt__own_unsettled(struct udt_conn *c, const udt_addr *from, const udt_pkt *p, udt_time now);
void udt__own_confirmed(struct udt_conn *c, udt_time now);
/* A datagram for a keyed responder that waits; hdr and len: the whole of it. */
void udt__own_first(struct udt_conn *c, const udt_addr *from, const udt_pkt *wire,
                    const uint8_t *hdr, size_t len, udt_time now);
void udt__own_params_input(struct udt_conn *c, const udt_pkt *p, udt_time now);
size_t udt__own_emit_params(struct udt_conn *c, uint8_t *buf, size_t cap, udt_time now);
void udt__own_open_tick(struct udt_conn *c, udt_time now);

/* own_path.c: bytes that may still go to the address, INT64_MAX = any. */
int64_t udt__own_path_room(const struct udt_conn *c);

/* own_windows.c */
void udt__own_windows(struct udt_conn *c); /* own mode or not is decided */
void udt__own_was_read(struct udt_conn *c, size_t n, udt_time now);
/* Now and then: fits the receive window to what comes. */
void udt__own_tune(struct udt_conn *c, udt_time now);
void udt__own_will_write(struct udt_conn *c);
void udt__own_has_sent(struct udt_conn *c);

#endif
