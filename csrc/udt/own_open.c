/* Opening between our own ends: offers in handshakes and behind them, keyed opens, parameters. */
#include "udt/own_open.h"

#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define ASK_FIRST_US 20000 /* PARAMS of a keyed initiator are repeated so soon, then doubling */
#define ASK_MOST_US 250000
#define USER_TRIES 6
#define USER_GAP_US 25000
#define USER_LISTEN_US 300000
#define PARAMS_TRIES 8
#define SMALL_TRIES 3                   /* from then on every other PARAMS is a small datagram */
#define TINY_TRIES 7                    /* and of the smallest size there is */
#define SMALL_TOKEN ((uint64_t)1 << 63) /* and so its answer is told from that to a full one */

/* ---- common ---- */

static uint32_t offered_features(const udt_opts *o)
{
    uint32_t f = OWN_F_BASE | OWN_F_CREDIT;
    if (o->has_key)
        f |= OWN_F_SEALED | OWN_F_MIGRATE | (o->plain_data ? 0u : (uint32_t)OWN_F_SEAL_DATA);
    return f;
}

static uint32_t chosen_features(uint32_t a, uint32_t b)
{
    uint32_t f = a & b & (OWN_F_BASE | OWN_F_CREDIT | OWN_F_SEALED | OWN_F_MIGRATE);
    return f & OWN_F_SEALED ? f | ((a | b) & OWN_F_SEAL_DATA) : f;
}

/* Own mode begins with these features; keys of both directions where they are sealed. */
static bool begin(udt_conn *c, uint32_t features, const uint8_t keys[2][AEAD_KEY_BYTES], int mine,
                  udt_time now)
{
    own_cfg cfg = {.features = features};
    if (features & OWN_F_SEALED) {
        cfg.tx = keys[mine];
        cfg.rx = keys[!mine];
    }
    c->foreign = false;
    return udt__own_start(c, &cfg, now);
}

static bool begin_meet(udt_conn *c, uint32_t features, udt_time now)
{
    uint8_t keys[2][AEAD_KEY_BYTES] = {{0}};
    if (features & OWN_F_SEALED)
        own_meet_keys(&c->open.meet, c->opts.key, keys);
    bool ok = begin(c, features, (const uint8_t (*)[AEAD_KEY_BYTES])keys, c->open.mine, now);
    secure_wipe(keys, sizeof keys);
    secure_wipe(c->opts.key, sizeof c->opts.key);
    return ok;
}

static bool wants_own(const udt_opts *o)
{
    return o->offer || o->has_key;
}

static void place(own_meet *t, int i, uint32_t isn, int32_t id)
{
    t->isn[i] = isn & SEQ_MASK;
    t->id[i] = id;
}

/* ---- offers in the words of IPv4 handshakes ---- */

void udt__own_offer(udt_conn *c)
{
    own_opening *o = &c->open;
    if (!wants_own(&c->opts) || c->peer.family == 6)
        return;
    o->mine = 0;
    place(&o->meet, 0, c->isn, c->id);
    own_meet_say(&o->meet, 0, false, offered_features(&c->opts), udt__rand32(c->mux),
                 c->opts.has_key ? c->opts.key : NULL);
    memcpy(o->words, o->meet.words[0], sizeof o->words);
    o->said = true;
}

/* What a listener makes of words 9-11 of a request: UDT_OK = an offer to take, UDT_E_STATE = none,
 * UDT_E_AUTH = to refuse. */
int udt__own_judge(const udt_opts *o, const udt_hs *h)
{
    own_meet t = {0};
    place(&t, 0, h->isn, h->id);
    memcpy(t.words[0], h->ip + 1, sizeof t.words[0]);
    bool offer = wants_own(o) && t.words[0][0] >> 16 == OWN_OFFER_MAGIC;
    bool sealed = offer && own_meet_features(t.words[0]) & OWN_F_SEALED;
    if (sealed && o->has_key)
        return own_meet_check(&t, 0, false, o->key) ? UDT_OK : UDT_E_AUTH;
    if (o->require_key)
        return UDT_E_AUTH;
    if (sealed) /* with a key that we do not have, so its proof says nothing to us */
        return UDT_OK;
    return offer && own_meet_check(&t, 0, false, NULL) ? UDT_OK : UDT_E_STATE;
}

bool udt__own_answer(udt_conn *c, const udt_hs *h, udt_time now)
{
    own_opening *o = &c->open;
    place(&o->meet, 0, h->isn, h->id);
    place(&o->meet, 1, h->isn, c->id);
    memcpy(o->meet.words[0], h->ip + 1, sizeof o->meet.words[0]);
    o->mine = 1;
    uint32_t f = chosen_features(own_meet_features(o->meet.words[0]), offered_features(&c->opts));
    own_meet_say(&o->meet, 1, true, f, udt__rand32(c->mux), f & OWN_F_SEALED ? c->opts.key : NULL);
    memcpy(o->words, o->meet.words[1], sizeof o->words);
    o->said = true;
    return begin_meet(c, f, now);
}

int udt__own_answered(udt_conn *c, const udt_hs *h, udt_time now)
{
    own_opening *o = &c->open;
    bool key = c->opts.has_key;
    if (!o->said)
        return c->opts.require_key && c->peer.family == 4 ? UDT_E_AUTH : UDT_OK;
    place(&o->meet, 1, h->isn, h->id);
    memcpy(o->meet.words[1], h->ip + 1, sizeof o->meet.words[1]);
    uint32_t f = own_meet_features(o->meet.words[1]);
    bool sealed = key && f & OWN_F_SEALED;
    if (!own_meet_check(&o->meet, 1, true, sealed ? c->opts.key : NULL)) /* libudt: an echo */
        return c->opts.require_key ? UDT_E_AUTH : UDT_OK;
    if ((c->opts.require_key && !sealed) || (f & OWN_F_SEALED && !key))
        return UDT_E_AUTH;
    f = chosen_features(f, f);
    return begin_meet(c, f, now) ? UDT_OK : UDT_E_NOMEM;
}

/* The peer's handshake of a rendezvous was read. */
void udt__own_heard(udt_conn *c, const udt_hs *h)
{
    own_opening *o = &c->open;
    if (!o->said || o->heard)
        return;
    o->heard = true;
    place(&o->meet, 1, h->isn, h->id);
    memcpy(o->meet.words[1], h->ip + 1, sizeof o->meet.words[1]);
}

/* Both offers are known, or there is none of the peer. */
int udt__own_rendezvous(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    own_meet *t = &o->meet;
    if (!o->said)
        return c->opts.require_key && c->peer.family == 4 ? UDT_E_AUTH : UDT_OK;
    bool sealed = c->opts.has_key && own_meet_features(t->words[1]) & OWN_F_SEALED;
    bool theirs = t->words[1][0] >> 16 == OWN_OFFER_MAGIC;
    bool echo = t->words[1][1] == t->words[0][1] && t->id[1] == t->id[0];
    if (theirs && sealed && !own_meet_check(t, 1, false, c->opts.key))
        return UDT_E_AUTH;
    if (!theirs || echo || (c->opts.require_key && !sealed))
        return c->opts.require_key ? UDT_E_AUTH : UDT_OK;
    uint32_t f = chosen_features(own_meet_features(t->words[0]), own_meet_features(t->words[1]));
    bool second = t->words[1][1] > t->words[0][1] ||
                  (t->words[1][1] == t->words[0][1] && t->id[1] > t->id[0]);
    if (second) {
        const own_meet was = *t;
        for (int i = 0; i < 2; i++) {
            place(t, i, was.isn[!i], was.id[!i]);
            memcpy(t->words[i], was.words[!i], sizeof t->words[i]);
        }
        o->mine = 1;
    }
    return begin_meet(c, f, now) ? UDT_OK : UDT_E_NOMEM;
}

/* ---- the same behind the handshake: IPv6 ---- */

static void settle(udt_conn *c, bool own, udt_time now)
{
    own_opening *o = &c->open;
    o->phase = OPEN_PLAIN;
    c->own.hold = false;
    c->t_own = UDT_NEVER;
    if (!own && c->opts.require_key) {
        if (c->listener) /* nobody has heard of it yet */
            udt__conn_shut(c, now);
        else
            udt__conn_fail(c, UDT_E_AUTH, now);
        return;
    }
    if (o->event)
        udt__conn_event(c, (enum udt_event_kind)o->event);
    o->event = 0;
    udt__conn_ready(c);
}

/* The connection is open; `event` may have to wait until both ends know what they speak. */
void udt__own_opened(udt_conn *c, int event, udt_time now)
{
    own_opening *o = &c->open;
    bool ask = wants_own(&c->opts) && !c->own.on && c->peer.family == 6;
    if (ask && c->opts.own_peer && !c->opts.has_key) { /* it is known already */
        (void)begin(c, OWN_F_BASE | OWN_F_CREDIT, NULL, 0, now);
        ask = false;
    }
    if (!ask) {
        udt__own_windows(c);
        udt__conn_event(c, (enum udt_event_kind)event);
        return;
    }
    o->event = event;
    c->own.hold = true;
    bool first = c->rendezvous
                     ? c->isn > c->peer_isn || (c->isn == c->peer_isn && c->id > c->peer_id)
                     : !c->server_side;
    o->mine = first ? 0 : 1;
    place(&o->meet, o->mine, c->isn, c->id);
    place(&o->meet, !o->mine, c->peer_isn, c->peer_id);
    o->tries = 0;
    if (!first) {
        o->phase = OPEN_LISTENING;
        udt__conn_timer(c, &c->t_own, now + USER_LISTEN_US);
        return;
    }
    o->phase = OPEN_OFFERED;
    own_meet_say(&o->meet, 0, false, offered_features(&c->opts), udt__rand32(c->mux),
                 c->opts.has_key ? c->opts.key : NULL);
    c->due |= DUE_PARAMS;
    udt__conn_timer(c, &c->t_own, now);
    udt__conn_ready(c);
}

static void user_offer(udt_conn *c, const udt_addr *from, udt_time now)
{
    own_opening *o = &c->open;
    uint8_t buf[UDT_CTRL_MAX];
    if (o->phase == OPEN_LISTENING) {
        udt_hs h = {.isn = o->meet.isn[0], .id = o->meet.id[0]};
        memcpy(h.ip + 1, o->meet.words[0], sizeof o->meet.words[0]);
        if (udt__own_judge(&c->opts, &h) != UDT_OK) {
            settle(c, false, now);
            return;
        }
        uint32_t f =
            chosen_features(own_meet_features(o->meet.words[0]), offered_features(&c->opts));
        own_meet_say(&o->meet, 1, true, f, udt__rand32(c->mux),
                     f & OWN_F_SEALED ? c->opts.key : NULL);
        if (c->opts.require_key && !(f & OWN_F_SEALED)) {
            settle(c, false, now);
            return;
        }
        if (!begin_meet(c, f, now))
            return;
        udt__own_windows(c);
        o->phase = OPEN_ANSWERED;
        c->t_own = UDT_NEVER;
    }
    udt__reply(c->mux, from, buf,
               udt_pkt_put_ctrl(buf, UDT_CTRL_USER, OWN_ANSWER_MAGIC, c->peer_id, o->meet.words[1],
                                OWN_OFFER_WORDS));
}

static void user_answer(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    udt_hs h = {.isn = o->meet.isn[1], .id = o->meet.id[1]};
    memcpy(h.ip + 1, o->meet.words[1], sizeof o->meet.words[1]);
    o->said = true; /* as if the words had come in a handshake */
    int rc = udt__own_answered(c, &h, now);
    o->said = false;
    if (rc != UDT_OK || !c->own.on) {
        settle(c, false, now);
        return;
    }
    udt__own_windows(c);
    settle(c, true, now);
    o->params_flags = OWN_PARAMS_ANSWER;
    o->tries = 0;
    c->due |= DUE_PARAMS; /* tells the peer that we begin */
    udt__conn_timer(c, &c->t_own, now + ASK_FIRST_US);
}

/* A packet of a connection that is not settled. True: it was for us alone. */
bool udt__own_unsettled(udt_conn *c, const udt_addr *from, const udt_pkt *p, udt_time now)
{
    own_opening *o = &c->open;
    bool user = p->control && p->type == UDT_CTRL_USER && p->len == 4 * OWN_OFFER_WORDS;
    if (!addr_eq(from, &c->peer) || !udt__conn_live(c))
        return false;
    uint32_t words[OWN_OFFER_WORDS];
    for (int i = 0; user && i < OWN_OFFER_WORDS; i++)
        words[i] = be32_get(p->body + 4 * i);
    if (user && p->word1 == OWN_OFFER_MAGIC &&
        (o->phase == OPEN_LISTENING ||
         (o->phase == OPEN_ANSWERED && !memcmp(words, o->meet.words[0], sizeof words)))) {
        memcpy(o->meet.words[0], words, sizeof words);
        user_offer(c, from, now);
        return true;
    }
    if (user && p->word1 == OWN_ANSWER_MAGIC && o->phase == OPEN_OFFERED) {
        memcpy(o->meet.words[1], words, sizeof words);
        user_answer(c, now);
        return true;
    }
    /* libudt does not wait for anybody. */
    if ((o->phase == OPEN_OFFERED || o->phase == OPEN_LISTENING) &&
        (!p->control || p->type == UDT_CTRL_ACK))
        settle(c, false, now);
    return false;
}

/* Something in own mode has come and was accepted. */
void udt__own_confirmed(udt_conn *c, udt_time now)
{
    if (c->open.phase == OPEN_ANSWERED && udt__conn_live(c))
        settle(c, true, now);
}

static void user_tick(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    if (o->phase == OPEN_LISTENING || o->tries >= USER_TRIES) {
        settle(c, false, now);
        return;
    }
    int64_t gap = c->rtt_known ? c->rtt_us + c->rtt_us / 4 : USER_GAP_US;
    gap = gap < USER_GAP_US ? USER_GAP_US : gap;
    o->tries++;
    c->due |= DUE_PARAMS;
    udt__conn_timer(c, &c->t_own, now + gap);
    udt__conn_ready(c);
}

/* ---- by key ---- */

static uint32_t keyed_features(const udt_opts *o)
{
    return OWN_F_BASE | OWN_F_CREDIT | OWN_F_SEALED | OWN_F_MIGRATE |
           (o->plain_data ? 0u : (uint32_t)OWN_F_SEAL_DATA);
}

static void ask(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    int again = o->tries < 5 ? o->tries : 5;
    int64_t gap = (int64_t)ASK_FIRST_US << again;
    c->due |= DUE_PARAMS;
    o->tries++;
    udt__conn_timer(c, &c->t_own, now + (gap < ASK_MOST_US ? gap : ASK_MOST_US));
    udt__conn_ready(c);
}

int32_t udt_mux_open_keyed(udt_mux *m, const udt_addr *to, const udt_opts *opts,
                           const uint8_t key[UDT_KEY_BYTES], bool initiator, udt_time now)
{
    udt_opts o = *opts;
    own_keyed k;
    m->now = now;
    if (!key || (initiator && (!to || !to->family)) ||
        !udt__mux_resolve(m, &o, to ? to->family : 4, 30000))
        return UDT_E_INVAL;
    own_keyed_derive(&k, key);
    int mine = initiator ? 0 : 1;
    udt_conn *c = NULL;
    int rc = udt__mux_id_in_use(m, k.id[mine]) ? UDT_E_INUSE : UDT_E_LIMIT;
    o.own_peer = true;
    o.has_key = o.require_key = o.offer = false;
    if (rc == UDT_E_LIMIT)
        c = udt__mux_new_conn_id(m, &o, CONN_RENDEZVOUS, k.id[mine], now);
    bool ok =
        c && begin(c, keyed_features(&o), (const uint8_t (*)[AEAD_KEY_BYTES])k.key, mine, now);
    secure_wipe(k.key, sizeof k.key);
    if (!ok) {
        if (c)
            udt__mux_free_conn(c);
        return rc;
    }
    c->open.keyed = true;
    c->open.initiator = initiator;
    c->isn = k.isn[mine];
    c->peer_isn = k.isn[!mine];
    c->peer_id = k.id[!mine];
    m->cfg.rand(m->cfg.rand_arg, (uint8_t *)&c->open.token, sizeof c->open.token);
    c->open.token |= 1; /* never 0 */
    c->open.phase = initiator ? OPEN_ASKING : OPEN_WAITING;
    c->open.params_flags = OWN_PARAMS_ANSWER;
    if (initiator) {
        c->peer = *to;
        if (!udt__conn_open(c, c->peer_isn, OWN_FIRST_PKTS, o.mss, now)) {
            udt__mux_free_conn(c);
            return UDT_E_LIMIT;
        }
        udt__own_windows(c);
        c->own.edge_bytes = (int64_t)OWN_FIRST_PKTS * c->snd.fill;
        int64_t early = ((int64_t)o.early_bytes + c->snd.fill - 1) / c->snd.fill;
        c->open.extra = early < OWN_FIRST_PKTS ? (int)early : OWN_FIRST_PKTS;
        c->t_exp = UDT_NEVER;
        ask(c, now);
    }
    udt__conn_timer(c, &c->t_connect, now + (int64_t)o.connect_timeout_ms * 1000);
    return c->id;
}

/* The credit and the packet size of the peer. */
static void take_params(udt_conn *c, const own_params *v, udt_time now)
{
    bool small = v->echo == (c->open.token ^ SMALL_TOKEN);
    udt__pmtu_peer(c, v->mss, small ? udt__pmtu_small(c, c->open.tries >= TINY_TRIES) : 0, now);
    c->edge = c->snd.head + (v->slots < 2 ? 2 : v->slots < 1u << 24 ? v->slots : 1 << 24);
    c->own.edge_bytes = v->credit < INT64_MAX ? (int64_t)v->credit : INT64_MAX;
}

/* The responder's first datagram: only PARAMS that authenticate open the connection. */
void udt__own_first(udt_conn *c, const udt_addr *from, const udt_pkt *wire, const uint8_t *hdr,
                    size_t len, udt_time now)
{
    udt_pkt p = *wire;
    own_params v;
    uint64_t pn;
    if (!p.control || p.type != OWN_PARAMS) {
        c->mux->n.dropped_unknown++;
        return;
    }
    if (!udt__own_open(c, &p, hdr, &pn)) {
        refused_note(&c->mux->refused, from, c->mux->why, now);
        return;
    }
    if (!own_params_get(&v, p.body, p.len)) {
        c->mux->n.dropped_bad++;
        return;
    }
    c->peer = *from;
    c->t_connect = UDT_NEVER;
    uint32_t mss = v.mss < c->opts.mss ? v.mss : c->opts.mss;
    if (v.type != c->opts.type || !udt__conn_open(c, c->peer_isn, v.slots, mss, now)) {
        udt__conn_fail(c, v.type != c->opts.type ? UDT_E_PROTO : UDT_E_LIMIT, now);
        return;
    }
    udt__own_windows(c);
    c->own.edge_bytes = v.credit < INT64_MAX ? (int64_t)v.credit : INT64_MAX;
    c->open.peer_token = v.token;
    c->open.phase = OPEN_PLAIN;
    if (len + UDT_IP_OVERHEAD < c->pmtu.now) /* larger ones did not get here */
        udt__pmtu_peer(c, mss, (uint32_t)len + UDT_IP_OVERHEAD, now);
    c->open.unproved = true;
    c->open.got_bytes = (int64_t)len;
    c->open.tries = 0;
    ask(c, now);
    udt__conn_event(c, UDT_EV_CONNECTED);
}

/* The initiator hears of the responder for the first time. */
static void answered(udt_conn *c, const own_params *v, udt_time now)
{
    own_opening *o = &c->open;
    o->phase = OPEN_PLAIN;
    c->t_connect = UDT_NEVER;
    if (v->type != c->opts.type) {
        udt__conn_fail(c, UDT_E_PROTO, now);
        return;
    }
    take_params(c, v, now);
    if (o->tries == 1)
        udt__conn_rtt(c, now - o->said_at);
    else /* what went before the peer was there is lost */
        udt__own_timeout(c, INT64_MAX, now);
    udt__conn_start_liveness(c, now);
    if (c->next > c->snd.head)
        udt__conn_restart_probe(c, now);
    if (c->state != CONN_OPEN)
        return; /* closed meanwhile, and still delivering */
    udt__conn_event(c, UDT_EV_CONNECTED);
    if (udt_sndbuf_writable(&c->snd) && c->want_space) {
        c->want_space = false;
        udt__conn_event(c, UDT_EV_WRITABLE);
    }
}

void udt__own_params_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    own_opening *o = &c->open;
    own_params v;
    if (!own_params_get(&v, p->body, p->len)) {
        c->mux->n.dropped_bad++;
        return;
    }
    o->peer_token = v.token;
    if (o->phase == OPEN_ASKING)
        answered(c, &v, now);
    bool proved = (v.echo & ~SMALL_TOKEN) == (o->token & ~SMALL_TOKEN);
    if (proved) { /* it came from where we send to, and knows all of ours */
        o->unproved = false;
        c->t_own = UDT_NEVER;
        o->params_flags = 0;
    }
    if (v.flags & OWN_PARAMS_ANSWER || !proved)
        c->due |= DUE_PARAMS;
    udt__conn_ready(c);
}

size_t udt__own_emit_params(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    own_opening *o = &c->open;
    if (o->phase == OPEN_OFFERED)
        return udt_pkt_put_ctrl(buf, UDT_CTRL_USER, OWN_OFFER_MAGIC, c->peer_id, o->meet.words[0],
                                OWN_OFFER_WORDS);
    if (!o->token) {
        c->mux->cfg.rand(c->mux->cfg.rand_arg, (uint8_t *)&o->token, sizeof o->token);
        o->token |= 1;
    }
    bool asking = o->phase == OPEN_ASKING, full_size = asking || (o->keyed && o->initiator),
         small = asking && o->tries >= SMALL_TRIES && o->tries & 1;
    own_params v = {.features = (uint16_t)c->own.features,
                    .mss = c->opts.mss,
                    .credit = udt_rcvbuf_free_bytes(&c->rcv),
                    .slots = (uint32_t)udt__conn_window_now(c),
                    .type = (uint8_t)c->opts.type,
                    .flags = o->params_flags,
                    .token = small ? o->token ^ SMALL_TOKEN : o->token,
                    .echo = o->peer_token};
    uint8_t body[OWN_PARAMS_BYTES];
    own_params_put(&v, body);
    udt_pkt_put_ctrl(buf, OWN_PARAMS, 0, c->peer_id, NULL, 0);
    memcpy(buf + UDT_HDR_BYTES, body, sizeof body);
    if (o->said_at == 0 || o->tries <= 1)
        o->said_at = now;
    size_t n = UDT_HDR_BYTES + sizeof body;
    if (full_size) { /* as large as data will be, so that the responder may answer with as much; the
                        path may not carry that */
        uint32_t mss = small ? udt__pmtu_small(c, o->tries >= TINY_TRIES) : c->pmtu.now;
        size_t full = mss - UDT_IP_OVERHEAD - OWN_TAG_BYTES;
        full = full < cap - OWN_TAG_BYTES ? full : cap - OWN_TAG_BYTES;
        memset(buf + n, 0, full - n);
        n = full;
    }
    if (asking && o->extra > 0) {
        o->extra--;
        c->due |= DUE_PARAMS;
    }
    return n;
}

void udt__own_open_tick(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    if (o->phase == OPEN_OFFERED || o->phase == OPEN_LISTENING) {
        user_tick(c, now);
        return;
    }
    /* PARAMS until they are answered. The traffic itself goes on without. */
    if (o->params_flags & OWN_PARAMS_ANSWER &&
        (o->phase == OPEN_ASKING || o->unproved || o->tries < PARAMS_TRIES))
        ask(c, now);
}
