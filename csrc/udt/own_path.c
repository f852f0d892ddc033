/* Paths: a peer that shows up under another address is asked there for a secret before anything
 * else goes that way; and what its connection sends to an address before it is proved is bounded.
 */
#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "udt/conn.h"

#define CAND_TRIES 3
#define CAND_MUTE_US 500000 /* after an address that did not answer */

int64_t udt__own_path_room(const udt_conn *c)
{
    const own_opening *o = &c->open;
    return o->unproved ? o->got_bytes - o->sent_bytes : INT64_MAX;
}

static int64_t try_gap(const udt_conn *c)
{
    int64_t rto = udt__conn_rto(c);
    return rto < 20000 ? 20000 : rto > 1000000 ? 1000000 : rto;
}

static void challenge(udt_conn *c, udt_time now)
{
    c->open.cand_tries++;
    c->due |= DUE_PATH;
    udt__conn_timer(c, &c->t_own, now + try_gap(c));
    udt__conn_ready(c);
}

void udt__own_moved(udt_conn *c, const udt_addr *from, bool newest, size_t len, udt_time now)
{
    own_opening *o = &c->open;
    if (o->cand.family && addr_eq(&o->cand, from)) {
        o->cand_got += (int64_t)len;
        if (o->cand_sent == 0) { /* what had come was too little to be answered */
            c->due |= DUE_PATH;
            udt__conn_ready(c);
        }
        return;
    }
    if (!newest || now < o->cand_mute)
        return; /* overtaken on the old path, or one claim after the other */
    o->cand = *from;
    o->cand_tries = 0;
    o->cand_got = (int64_t)len;
    o->cand_sent = 0;
    c->mux->cfg.rand(c->mux->cfg.rand_arg, (uint8_t *)&o->cand_token, sizeof o->cand_token);
    challenge(c, now);
}

/* The timer is free for PARAMS again, if those are still unanswered. */
static void back_to_params(udt_conn *c, udt_time now)
{
    c->open.cand.family = 0;
    c->t_own = UDT_NEVER;
    if (c->open.params_flags & OWN_PARAMS_ANSWER)
        udt__conn_timer(c, &c->t_own, now + try_gap(c));
}

static uint64_t trace_ip(const udt_addr *a)
{
    const uint8_t *ip = a->ip;
    return a->family == 4 ? (uint64_t)ip[0] << 24 | (uint64_t)ip[1] << 16 | ip[2] << 8 | ip[3] : 0;
}

/* The candidate has answered: it is the peer's address now. */
static void move(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    udt_addr old = c->peer;
    size_t n = old.family == 4 ? 4 : 16;
    c->peer = o->cand;
    back_to_params(c, now);
    o->moves++;
    UDT_TRACE(c, UDT_TRACE_PATH, c->peer.family, trace_ip(&c->peer), c->peer.port, now);
    o->unproved = false;
    c->mux->n.moves++;
    if (old.family != c->peer.family || memcmp(old.ip, c->peer.ip, n) != 0) {
        /* Another host or network: nothing learned of the old path holds. */
        const udt_cc_params p = {c->pmtu.now, udt__rand32(c->mux), c->opts.max_bw_Bps};
        c->cc.ops->init(&c->cc, &p);
        c->rtt_known = c->own.is_near = false;
        c->min_rtt_us = 0;
        c->rtt_us = RTT_INITIAL_US;
        c->rtt_var_us = RTT_INITIAL_US / 2;
        udt__pmtu_moved(c, now);
    }
    c->backoff = 0;
    c->ack_force = true; /* the peer's sender hears at once that the way is open */
    c->due |= DUE_ACK;
    if (c->next > c->snd.head) {
        udt__own_timeout(c, INT64_MAX, now);
        udt__conn_restart_probe(c, now);
    }
    udt__conn_ready(c);
}

void udt__own_control(udt_conn *c, const udt_addr *from, const udt_pkt *p, uint64_t pn,
                      udt_time now)
{
    own_opening *o = &c->open;
    (void)pn;
    switch (p->type) {
    case OWN_PARAMS:
        udt__own_params_input(c, p, now);
        break;
    case OWN_PATH_CHALLENGE:
        if (p->len < 8)
            break;
        o->reply_token = be64_get(p->body);
        o->reply_to = *from;
        c->due |= DUE_PATH_REPLY;
        udt__conn_ready(c);
        break;
    case OWN_PATH_RESPONSE:
        if (p->len >= 8 && o->cand.family && addr_eq(from, &o->cand) &&
            be64_get(p->body) == o->cand_token)
            move(c, now);
        else if (p->len >= 8 && addr_eq(from, &c->peer))
            (void)udt__pmtu_answer(c, be64_get(p->body), now);
        break;
    default:
        break;
    }
}

size_t udt__own_emit(udt_conn *c, unsigned bit, uint8_t *buf, size_t cap, udt_addr *to,
                     udt_time now)
{
    own_opening *o = &c->open;
    uint16_t type = bit == DUE_PATH ? OWN_PATH_CHALLENGE : OWN_PATH_RESPONSE;
    if (bit == DUE_PARAMS)
        return udt__own_emit_params(c, buf, cap, now);
    uint64_t token = bit == DUE_PATH ? o->cand_token : o->reply_token;
    const udt_addr *dst = bit == DUE_PATH ? &o->cand : &o->reply_to;
    const uint32_t words[2] = {(uint32_t)(token >> 32), (uint32_t)token};
    size_t n = UDT_HDR_BYTES + sizeof words + OWN_TAG_BYTES;
    if (!dst->family)
        return 0;
    bool unproved = bit == DUE_PATH || (o->cand.family && addr_eq(dst, &o->cand));
    if (unproved && o->cand_sent + (int64_t)n > o->cand_got)
        return 0;
    o->cand_sent += unproved ? (int64_t)n : 0;
    if (!addr_eq(dst, &c->peer))
        *to = *dst;
    return udt_pkt_put_ctrl(buf, type, 0, c->peer_id, words, 2);
}

void udt__own_tick(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    if (!o->cand.family) {
        udt__own_open_tick(c, now);
    } else if (o->cand_tries < CAND_TRIES) {
        challenge(c, now);
    } else { /* no answer: the peer stays where it was */
        back_to_params(c, now);
        o->cand_mute = now + CAND_MUTE_US;
        c->mux->n.moves_refused++;
    }
}
