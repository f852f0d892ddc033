/* First contact and resets: datagrams that need no association (key purpose `s`). */
#include "sgmp/engine.h"

#include <string.h>

bool sg_verify(sgmp_node *n, const struct pkt_header *h, const uint8_t *pkt, size_t len, aead *ctx)
{
    uint8_t nonce[AEAD_NONCE_BYTES];
    if (!h->key_id) {
        static const uint8_t zero[4];
        uint32_t crc = udt_crc32c(udt_crc32c(0, pkt, 36), zero, 4);
        if (udt_crc32c(crc, pkt + PKT_HEADER, len - PKT_HEADER) != h->check) {
            n->st.bad_check++;
            return false;
        }
        memcpy(n->in, pkt + PKT_HEADER, len - PKT_HEADER);
        return true;
    }
    aead_nonce(nonce, h->pkt);
    if (ctx && aead_open(ctx, nonce, pkt, PKT_HEADER, pkt + PKT_HEADER, len - PKT_HEADER, n->in))
        return true;
    n->st.bad_tag++;
    return false;
}

/* Header in front of the body that lies at buf + 40, tag or check behind; returns the length. */
size_t sg_seal(const struct pkt_header *h, uint8_t *buf, size_t body_len, aead *ctx)
{
    struct pkt_header out = *h;
    uint8_t nonce[AEAD_NONCE_BYTES];
    out.body_len = (uint16_t)body_len;
    out.check = 0;
    pkt_header_put(buf, &out);
    if (!h->key_id) {
        be32_put(buf + 36, udt_crc32c(0, buf, PKT_HEADER + body_len));
        return PKT_HEADER + body_len;
    }
    aead_nonce(nonce, h->pkt);
    aead_seal(ctx, nonce, buf, PKT_HEADER, buf + PKT_HEADER, body_len, buf + PKT_HEADER);
    return PKT_HEADER + body_len + PKT_TAG;
}

static aead *say_ctx(sgmp_node *n, struct key *key)
{
    if (!key->say)
        key->say = key_derive(key, 's', n->instance, 0, 0);
    return key->say;
}

/* Room for one stateless answer, NULL when the ring is full. */
static struct reply *reply_new(sgmp_node *n, const udt_addr *to)
{
    if (n->reply_n == SG_REPLIES)
        return NULL;
    struct reply *r = &n->replies[(n->reply_head + n->reply_n) % SG_REPLIES];
    r->to = *to;
    return r;
}

static void reply_seal(sgmp_node *n, struct reply *r, int type, struct key *key, uint64_t dst,
                       size_t body_len)
{
    struct pkt_header h = {.type = (uint8_t)type,
                           .key_id = key ? key->id : 0,
                           .src = n->instance,
                           .dst = dst,
                           .pkt = ++n->say_pkt};
    aead *ctx = key ? say_ctx(n, key) : NULL;
    if (key && !ctx)
        return;
    r->len = (uint16_t)sg_seal(&h, r->data, body_len, ctx);
    n->reply_n++;
}

void sg_reset_reply(sgmp_node *n, const struct pkt_header *h, size_t len, const udt_addr *to,
                    struct key *key, int reason, udt_time now)
{
    size_t size = PKT_HEADER + PKT_RESET + (key ? PKT_TAG : 0);
    int64_t gain = (now - n->reset_at) * SG_RESETS_PER_S / 1000;
    if (gain > 0) {
        n->reset_credit_m += gain;
        n->reset_at = now;
    }
    if (n->reset_credit_m > SG_RESETS_PER_S * 1000)
        n->reset_credit_m = SG_RESETS_PER_S * 1000;
    if (len < size || h->type == PKT_T_RESET || n->reset_credit_m < 1000)
        return;
    struct reply *r = reply_new(n, to);
    if (!r)
        return;
    n->reset_credit_m -= 1000;
    struct pkt_reset_body b = {(uint16_t)reason, h->pkt, h->src};
    bytes_wr w = bytes_writer(r->data + PKT_HEADER, PKT_RESET);
    pkt_reset_put(&w, &b);
    reply_seal(n, r, PKT_T_RESET, key, h->src, PKT_RESET);
    n->st.reset_out++;
}

void sg_hello_start(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    if (x->hello_on)
        return;
    x->hello_on = true;
    x->hello_nonce = sg_rand64(n);
    x->hello_at = now;
    x->hello_gap = MS(250);
    x->hello_n = 0;
    if (a->state == SG_NEW)
        a->state = SG_HELLO;
}

size_t sg_hello_build(sgmp_node *n, struct assoc *a, uint8_t *buf, udt_time now)
{
    struct active *x = a->x;
    struct key *key = a->who ? sg_assoc_key(n, a, now) : NULL;
    struct pkt_header h = {
        .type = PKT_T_HELLO, .key_id = key ? key->id : 0, .src = n->instance, .pkt = ++n->say_pkt};
    struct pkt_hello body = {
        .start_us = n->cfg.start_time_us, .nonce = x->hello_nonce, .max_dgram = n->cfg.max_dgram};
    aead *ctx = key ? say_ctx(n, key) : NULL;
    if (a->who && !ctx)
        return 0;
    bytes_wr w = bytes_writer(buf + PKT_HEADER, PKT_HELLO);
    pkt_hello_put(&w, &body);
    x->hello_pkt = h.pkt;
    x->hello_sent = now;
    x->hello_n = (uint8_t)(x->hello_n + (x->hello_n < 255));
    n->jitter = n->jitter * 6364136223846793005u + 1442695040888963407u;
    x->hello_at =
        now + x->hello_gap * 9 / 10 + (udt_time)(n->jitter >> 33) % (x->hello_gap / 5 + 1);
    x->hello_gap = x->hello_gap * 2 < SEC(8) ? x->hello_gap * 2 : SEC(8);
    n->st.hello_out++;
    return sg_seal(&h, buf, PKT_HELLO, ctx);
}

/* Does the instance behind `a` still live? A few padded PINGs; an authenticated RESET decides. */
static void question(sgmp_node *n, struct assoc *a, udt_time now)
{
    if (!sg_assoc_wake(a, now))
        return;
    if (a->x->verify_n == 0)
        a->x->verify_n = 3;
    sg_assoc_kick(n, a, now);
}

void sg_suspect_restart(sgmp_node *n, const udt_addr *from, const struct principal *who,
                        uint64_t instance, uint64_t start_us, udt_time now)
{
    struct assoc *a = sg_assoc_at(n, from, who);
    if (!a || a->instance == 0 || a->instance == instance)
        return;
    if (who && a->start_us && start_us > a->start_us)
        sg_assoc_restart(n, a, instance, now);
    else
        question(n, a, now);
}

/* Nothing is kept of a HELLO: the token carries all that the answerer needs to know. */
static void on_hello(sgmp_node *n, const struct pkt_header *h, const udt_addr *from,
                     struct key *key, const struct pkt_hello *in, udt_time now)
{
    struct assoc *a = sg_assoc_find(n, h->src, key ? key->who : NULL);
    n->st.hello_in++;
    if (a && a->closed)
        return;
    if (a && key) {
        a->start_us = in->start_us;
        sg_size_told(n, a, in->max_dgram);
    }
    if (!a)
        sg_suspect_restart(n, from, key ? key->who : NULL, h->src, in->start_us, now);
    struct reply *r = reply_new(n, from);
    if (!r)
        return;
    struct pkt_hello out = {.start_us = n->cfg.start_time_us,
                            .nonce = in->nonce,
                            .max_dgram = n->cfg.max_dgram,
                            .lifetime_ms = TOKEN_LIFE_MS};
    token_mint(&n->tokens, from, h->src, key ? key->id : 0, now, out.token);
    bytes_wr w = bytes_writer(r->data + PKT_HEADER, PKT_HELLO);
    pkt_hello_put(&w, &out);
    reply_seal(n, r, PKT_T_HELLO_ACK, key, h->src, PKT_HELLO);
}

static void adopt_token(sgmp_node *n, struct assoc *a, const struct pkt_hello *in, udt_time now)
{
    struct active *x = a->x;
    uint32_t life = in->lifetime_ms < TOKEN_LIFE_MS ? in->lifetime_ms : TOKEN_LIFE_MS;
    memcpy(x->token, in->token, PKT_TOKEN);
    x->token_until = now + MS(life);
    x->has_token = true;
    x->need_token = x->hello_on = false;
    a->confirmed = false;
    a->start_us = in->start_us;
    sg_size_told(n, a, in->max_dgram);
    while (!sg_empty(&x->flight)) /* outstanding messages go again, unchanged */
        sg_requeue(sg_of(x->flight.prev, struct msg, q), true);
    x->pto_at = x->loss_at = UDT_NEVER;
    x->pto_count = 0;
    a->last_rx = now;
    sg_assoc_use(n, a, now);
    if (a->state != SG_READY) {
        a->state = SG_READY;
        sg_event_peer(n, a, SGMP_EV_PEER_READY, 0);
    }
    sg_assoc_kick(n, a, now);
}

int sgmp_node_mint_token(sgmp_node *n, const udt_addr *holder, uint64_t holder_instance,
                         uint32_t key_id, uint8_t token[SGMP_TOKEN_BYTES], udt_time now)
{
    udt_addr addr = sg_addr(holder);
    n->now = now;
    if (!holder_instance || (addr.family != 4 && addr.family != 6) ||
        (!key_id && n->cfg.require_auth))
        return UDT_E_INVAL;
    if (key_id && !key_can_send(keys_find(&n->keys, key_id), now))
        return UDT_E_NOKEY;
    token_mint(&n->tokens, &addr, holder_instance, key_id, now, token);
    return 0;
}

/* What a third party says of a peer is believed as far as it saves a HELLO; a peer that is known
 * already is asked itself. */
int sgmp_node_introduce(sgmp_node *n, const sgmp_dest *to, uint64_t instance,
                        const uint8_t token[SGMP_TOKEN_BYTES], udt_time now)
{
    struct assoc *a;
    int err = instance == 0 || instance == n->instance ? UDT_E_INVAL : sg_assoc_for(n, to, &a, now);
    if (err)
        return err;
    struct active *x = a->x;
    if (a->instance && a->instance != instance) {
        question(n, a, now);
        return 0;
    }
    struct assoc *known = sg_assoc_find(n, instance, a->who);
    if (known && known->closed)
        return 0; /* of an instance that is over */
    if (!a->instance && known) {
        if (sg_assoc_wake(known, now)) {
            sg_assoc_merge(n, a, known, now);
            sg_assoc_kick(n, known, now);
        }
        return 0;
    }
    if (a->instance && (a->confirmed || x->has_token) && !x->need_token)
        return 0;
    if (!a->instance)
        sg_assoc_bind(n, a, instance);
    memcpy(x->token, token, PKT_TOKEN);
    x->token_until = now + MS(TOKEN_LIFE_MS);
    x->has_token = true;
    x->need_token = x->hello_on = false;
    n->st.introduced++;
    sg_assoc_kick(n, a, now);
    return 0;
}

static void on_hello_ack(sgmp_node *n, const struct pkt_header *h, const udt_addr *from,
                         struct key *key, const struct pkt_hello *in, udt_time now)
{
    const struct principal *who = key ? key->who : NULL;
    struct assoc *a = sg_assoc_hello(n, from, who, in->nonce);
    if (!a)
        return;
    sg_assoc_proved(n, a, from, now);
    udt_time sample = a->x->hello_n == 1 ? now - a->x->hello_sent : 0;
    if (a->instance && a->instance != h->src) {
        /* The nonce proves that another instance answers there now. */
        sg_assoc_restart(n, a, h->src, now);
        a = sg_assoc_at(n, from, who);
        if (!a || !a->x || (a->instance && a->instance != h->src))
            return;
    }
    if (!a->instance) {
        struct assoc *same = sg_assoc_find(n, h->src, who);
        if (same && (same->closed || !sg_assoc_wake(same, now)))
            return;
        if (same) {
            sg_assoc_merge(n, a, same, now);
            a = same;
            if (a->unproved) { /* our nonce came back: it is here */
                sg_assoc_move(n, a, from);
                a->unproved = false;
            }
        } else
            sg_assoc_bind(n, a, h->src);
    }
    if (sample && a->srtt == 0)
        sg_rtt(a, sample);
    adopt_token(n, a, in, now);
}

static void on_reset(sgmp_node *n, const struct pkt_header *h, const udt_addr *from,
                     struct key *key, const struct pkt_reset_body *b, udt_time now)
{
    struct assoc *a;
    if (b->echo_src != n->instance)
        return;
    n->st.reset_in++;
    a = sg_assoc_echo(n, from, key, b->echo_pkt);
    if (!a || !sg_assoc_wake(a, now))
        return;
    struct active *x = a->x;
    if (a->unproved)
        x->unproved_in += PKT_HEADER + h->body_len;
    if (b->reason == RESET_INSTANCE && key) {
        struct assoc *known = sg_assoc_find(n, h->src, a->who);
        if (a->instance && a->instance != h->src && !(known && known->closed))
            sg_assoc_restart(n, a, h->src, now);
        return;
    }
    if (b->reason == RESET_NO_STATE && key && a->instance == h->src) {
        x->need_token = true;
        x->has_token = false;
        sg_hello_start(n, a, now);
    } else if (b->reason == RESET_NO_KEY && a->who) {
        x->key_bad = true;
        if (now - x->key_event_at >= SEC(1)) {
            struct evt *e = sg_event_new(n, a, SGMP_EV_KEY_UNKNOWN, 0);
            if (e) { /* else the peer's next RESET says it */
                x->key_event_at = now;
                e->ev.key_id = a->key_id;
                sg_event_push(n, e);
            }
        }
    } else if (b->reason == RESET_FULL) {
        x->hello_gap = x->hello_gap > SEC(2) ? x->hello_gap : SEC(2);
    } else if (b->reason == RESET_INSTANCE || b->reason == RESET_NO_STATE)
        sg_hello_start(n, a, now); /* a hint that anyone could have sent */
    sg_assoc_kick(n, a, now);
}

void sg_say_input(sgmp_node *n, const struct pkt_header *h, const udt_addr *from,
                  const uint8_t *pkt, size_t len, udt_time now)
{
    struct key *key = h->key_id ? keys_find(&n->keys, h->key_id) : NULL;
    aead *ctx = NULL;
    if (h->key_id && !key) {
        n->st.no_key++;
        refused_note(&n->refused, from, UDT_REFUSED_KEY, now);
        sg_reset_reply(n, h, len, from, NULL, RESET_NO_KEY, now);
        return;
    }
    if (key && !(ctx = key_derive(key, 's', h->src, 0, 0)))
        return;
    bool ok = sg_verify(n, h, pkt, len, ctx);
    aead_free(ctx);
    if (!ok) {
        refused_note(&n->refused, from, UDT_REFUSED_KEY, now);
        return;
    }
    bytes_rd r = bytes_reader(n->in, h->body_len);
    if (h->type == PKT_T_RESET) {
        struct pkt_reset_body b;
        pkt_reset_get(&r, &b);
        if (!r.bad)
            on_reset(n, h, from, key, &b, now);
    } else {
        struct pkt_hello in;
        pkt_hello_get(&r, &in);
        if (!r.bad && h->type == PKT_T_HELLO)
            on_hello(n, h, from, key, &in, now);
        else if (!r.bad)
            on_hello_ack(n, h, from, key, &in, now);
    }
    n->st.bad_format += r.bad;
}
