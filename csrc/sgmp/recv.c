/* Receiving: from the datagram to the application's queue. Everything is verified before any state
 * changes; what is accepted at most once is decided by the rules of spec/gmp.md section 7. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

/* Type body of a verified datagram. */
struct body {
    const uint8_t *token; /* NULL = none */
    bool has_ack;
    struct pkt_ack ack;
    bytes_rd rd;
};

static bool split_body(sgmp_node *n, const struct pkt_header *h, struct body *b)
{
    b->rd = bytes_reader(n->in, h->body_len);
    b->token = h->flags & PKT_F_TOKEN ? bytes_take(&b->rd, PKT_TOKEN) : NULL;
    b->has_ack = h->flags & PKT_F_ACKBLK;
    if (b->rd.bad || (b->has_ack && !pkt_ack_get(&b->rd, &b->ack)))
        return false;
    return h->type != PKT_T_ACK || b->has_ack;
}

/* Bits of seqs that fall out of the map on the left. */
static void advance_base(struct assoc *a, uint64_t to)
{
    if (to <= a->base)
        return;
    if (to - a->base >= SG_WINDOW)
        memset(a->map, 0, sizeof a->map);
    else
        for (uint64_t s = a->base; s < to; s++)
            a->map[s / 64 % (SG_WINDOW / 64)] &= ~(1ull << (s % 64));
    a->base = to;
    struct active *x = a->x;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->refused_n; i++)
        if (x->refused[i].seq >= to)
            x->refused[kept++] = x->refused[i];
    x->refused_n = kept;
}

static bool is_set(const struct assoc *a, uint64_t seq)
{
    return a->map[seq / 64 % (SG_WINDOW / 64)] >> (seq % 64) & 1;
}

bool sg_seq_settled(const struct assoc *a, uint64_t seq)
{
    return a->rx_set && (seq < a->base || (seq < a->base + SG_WINDOW && is_set(a, seq)));
}

static struct refused *find_refused(struct assoc *a, uint64_t seq)
{
    for (uint32_t i = 0; i < a->x->refused_n; i++)
        if (a->x->refused[i].seq == seq)
            return &a->x->refused[i];
    return NULL;
}

/* Accepted seqs let the base advance; a refused one holds it until the sender's low passes. */
static void mark_settled(struct assoc *a, uint64_t seq)
{
    a->map[seq / 64 % (SG_WINDOW / 64)] |= 1ull << (seq % 64);
    uint64_t to = a->base;
    while (to < a->base + SG_WINDOW && is_set(a, to) && !find_refused(a, to))
        to++;
    advance_base(a, to);
}

static bool refuse(struct assoc *a, uint64_t seq, int reason, uint32_t arg)
{
    struct active *x = a->x;
    if (x->refused_n == SG_REFUSED)
        return false;
    if (!x->refused && !(x->refused = malloc(SG_REFUSED * sizeof *x->refused)))
        return false;
    x->refused[x->refused_n++] = (struct refused){seq, arg, (uint16_t)reason, true};
    x->refuse_due = true;
    return true;
}

static int take_message(sgmp_node *n, struct assoc *a, const struct rx *rx, const uint8_t *p,
                        size_t len)
{
    bool control = rx->h->flags & PKT_F_CONTROL;
    if (!sg_rcv_room(n, a, len, control))
        return SG_NO_ROOM;
    struct evt *e = sg_event_new(n, a, SGMP_EV_MESSAGE, len);
    if (!e)
        return SG_NO_ROOM;
    e->ev.channel = rx->h->channel;
    if (len)
        memcpy(e->data, p, len);
    sg_rcv_charge(n, e, control ? SG_C_CONTROL : SG_C_PLAIN, len);
    sg_event_push(n, e);
    n->st.messages_in++;
    return SG_ACCEPT;
}

static int take_payload(sgmp_node *n, struct assoc *a, const struct rx *rx,
                        const struct pkt_data *d, const uint8_t *p, size_t len)
{
    uint16_t ch = rx->h->channel;
    bool control = rx->h->flags & PKT_F_CONTROL;
    if (!(n->channels[ch / 64] >> (ch % 64) & 1) && d->kind != PKT_K_BULK_DONE)
        return REFUSE_CHANNEL;
    if (control && len > SG_CONTROL_BYTES)
        return REFUSE_SIZE;
    /* The sender wrote what was left when it sent; half a round trip has passed since. */
    if (d->ttl_ms && MS(d->ttl_ms) < a->srtt / 2)
        return REFUSE_TTL;
    switch (d->kind) {
    case PKT_K_MESSAGE:
        return take_message(n, a, rx, p, len);
    case PKT_K_RPC:
        return sg_rpc_input(n, a, ch, control, NULL, p, len, rx->now);
    case PKT_K_BULK:
        return sg_bulk_desc_input(n, a, ch, d->seq, p, len, rx->now);
    default:
        return sg_bulk_done_input(n, a, p, len, rx->now);
    }
}

static void schedule_ack(struct assoc *a, bool at_once, udt_time now)
{
    struct active *x = a->x;
    if (++x->ack_count >= 2 || at_once)
        x->ack_now = true;
    else if (x->ack_at == UDT_NEVER)
        x->ack_at = now + MS(1);
}

static void on_data(sgmp_node *n, struct assoc *a, const struct rx *rx, bytes_rd *r)
{
    struct pkt_data d;
    pkt_data_get(r, &d);
    if (r->bad || d.seq == 0 || d.seq >> 62 || d.low_delta >= d.seq || d.kind > PKT_K_BULK_DONE) {
        n->st.bad_format++;
        return;
    }
    uint64_t low = d.seq - d.low_delta;
    if (!a->rx_set) {
        a->rx_set = true;
        a->base = a->top = low;
    }
    if (d.seq >= a->base + SG_WINDOW && d.seq >= low + SG_WINDOW) {
        n->st.bad_format++;
        return;
    }
    advance_base(a, low);
    if (d.seq < a->base || is_set(a, d.seq)) {
        struct refused *f = d.seq < a->base ? NULL : find_refused(a, d.seq);
        if (f)
            f->due = a->x->refuse_due = true;
        else if (d.kind == PKT_K_BULK && !sg_bulk_known(a, d.seq))
            sg_bulk_whole(n, a, d.seq, rx->h->channel, rx->now);
        n->st.duplicates++;
        schedule_ack(a, true, rx->now);
        return;
    }
    int verdict = take_payload(n, a, rx, &d, r->p, r->left);
    if (verdict > 0 && !refuse(a, d.seq, verdict, 0))
        verdict = SG_NO_ROOM;
    if (verdict == SG_NO_ROOM) {
        n->st.busy++;
        a->x->busy_due = true;
    } else {
        if (verdict == SG_ACCEPT && d.seq >= a->top)
            a->top = d.seq + 1;
        mark_settled(a, d.seq);
    }
    bool gap = a->base < a->top;
    schedule_ack(a, gap || verdict == SG_NO_ROOM || (rx->h->flags & PKT_F_ACK_NOW), rx->now);
}

static void on_refuse(sgmp_node *n, struct assoc *a, bytes_rd *r, udt_time now)
{
    struct active *x = a->x;
    for (int i = 0; i < PKT_REFUSE_MAX && r->left; i++) {
        struct pkt_refusal f;
        pkt_refusal_get(r, &f);
        if (r->bad || f.seq < x->low || f.seq >= a->next_seq)
            continue;
        struct msg *m = x->ring[f.seq & (x->ring_cap - 1)];
        if (!m)
            continue;
        m->reason = f.reason;
        sg_settle(n, m, UDT_E_REFUSED, now);
    }
}

static void on_pong(sgmp_node *n, struct assoc *a, const struct rx *rx, bytes_rd *r)
{
    struct active *x = a->x;
    uint64_t nonce = bytes_u64(r);
    if (r->bad || nonce == 0 || sg_size_pong(n, a, nonce) || nonce != x->ping_nonce)
        return;
    x->ping_nonce = 0;
    x->verify_n = 0;
    if (a->unproved && addr_eq(rx->from, &a->addr))
        sg_assoc_proved(n, a, &a->addr, rx->now);
    if (a->srtt == 0)
        sg_rtt(a, rx->now - x->ping_at);
    if (a->state < SG_READY) {
        a->state = SG_READY;
        sg_event_peer(n, a, SGMP_EV_PEER_READY, 0);
    }
}

/* Is this datagram proof that it was made for the present association? A valid token, an answer to
 * our PING, or an echo of a pkt of this association (their numbers were never used before). */
static bool is_fresh(sgmp_node *n, const struct assoc *a, const struct rx *rx, const struct body *b)
{
    const struct pkt_header *h = rx->h;
    if (b->token && token_valid(&n->tokens, rx->from, h->src, h->key_id, rx->now, b->token))
        return true;
    if (!a)
        return false;
    if (b->has_ack && b->ack.echo_pkt >= a->first_pkt && b->ack.echo_pkt < a->next_pkt)
        return true;
    return h->type == PKT_T_PONG && a->x && a->x->ping_nonce && b->rd.left >= 8 &&
           be64_get(b->rd.p) == a->x->ping_nonce;
}

/* First datagram of an unknown instance that shows a valid token. */
static struct assoc *make_assoc(sgmp_node *n, const struct rx *rx, struct key *key)
{
    const struct principal *who = key ? key->who : NULL;
    sg_assoc_proved(n, NULL, rx->from, rx->now);
    sg_suspect_restart(n, rx->from, who, rx->h->src, 0, rx->now);
    bool crowd = sg_assoc_crowd(n, rx->from, who) || sg_assoc_share(n, who);
    struct assoc *a = crowd ? NULL : sg_assoc_new(n, rx->from, key, rx->now);
    if (!a)
        sg_reset_reply(n, rx->h, rx->len, rx->from, key, RESET_FULL, rx->now);
    else
        sg_assoc_bind(n, a, rx->h->src);
    return a;
}

/* The peer's address changed: it gets PINGs and HELLOs only, and no more bytes than it sent, until
 * it answers one (section 5.1). */
static void follow_address(sgmp_node *n, struct assoc *a, const struct rx *rx, bool newest)
{
    if (!addr_eq(rx->from, &a->addr)) {
        if (!newest || sg_assoc_crowd(n, rx->from, a->who))
            return;
        sg_assoc_move(n, a, rx->from);
        a->unproved = true;
        a->x->size_fall = a->dgram > PKT_LIMIT; /* proved for another path */
        a->x->unproved_in = a->x->unproved_out = 0;
        a->x->named = false;
        a->x->ping_at = rx->now - SEC(1);
    }
    if (!a->unproved)
        return;
    a->x->unproved_in += (uint32_t)rx->len;
    if (rx->now - a->x->ping_at >= MS(250))
        a->x->ping_due = true;
}

static void dispatch(sgmp_node *n, struct assoc *a, const struct rx *rx, struct body *b)
{
    if (b->has_ack && !sg_ack_input(n, a, &b->ack, rx->h->type == PKT_T_ACK, rx->now))
        n->st.bad_format++;
    switch (rx->h->type) {
    case PKT_T_DATA:
        on_data(n, a, rx, &b->rd);
        break;
    case PKT_T_PING:
        a->x->pong_nonce = bytes_u64(&b->rd);
        a->x->pong_due = !b->rd.bad;
        break;
    case PKT_T_PONG:
        on_pong(n, a, rx, &b->rd);
        break;
    case PKT_T_REFUSE:
        on_refuse(n, a, &b->rd, rx->now);
        break;
    }
}

/* A genuine datagram of `a` (or of an instance without state). True: `derived` was kept. */
static bool accept_datagram(sgmp_node *n, struct assoc *a, const struct rx *rx, struct key *key,
                            aead *derived)
{
    const struct pkt_header *h = rx->h;
    struct body b;
    if (!split_body(n, h, &b)) {
        n->st.bad_format++;
        return false;
    }
    if (!a || !a->fresh) {
        if (!is_fresh(n, a, rx, &b) || (!a && h->type != PKT_T_DATA)) {
            sg_reset_reply(n, h, rx->len, rx->from, key, RESET_NO_STATE, rx->now);
            return false;
        }
        if (!a && !(a = make_assoc(n, rx, key)))
            return false;
        a->fresh_from = h->pkt;
    } else if (h->pkt < a->fresh_from && !is_fresh(n, a, rx, &b)) {
        n->st.replays++; /* may be of an association that was forgotten */
        refused_note(&n->refused, rx->from, UDT_REFUSED_REPLAY, rx->now);
        return false;
    }
    if (!sg_assoc_wake(a, rx->now))
        return false;
    if (derived)
        sg_assoc_keep_open(a, key, derived);
    bool newest = h->pkt > a->replay.top;
    a->fresh = true;
    replay_mark(&a->replay, h->pkt);
    if (newest)
        a->x->top_at = rx->now;
    follow_address(n, a, rx, newest);
    if (key && key->id != a->rx_key_id) {
        struct key *own = keys_find(&n->keys, a->key_id);
        a->rx_key_id = key->id;
        if (!own || key->serial > own->serial)
            a->key_id = key->id; /* the peer has the newer key: use it too */
    }
    sg_assoc_heard(n, a, rx->now);
    dispatch(n, a, rx, &b);
    sg_assoc_kick(n, a, rx->now);
    return derived != NULL;
}

/* For an instance that is not (or no longer) this one. Only a genuine datagram gets an answer
 * that its sender will believe. */
static void wrong_instance(sgmp_node *n, const struct rx *rx, const uint8_t *pkt, struct key *key)
{
    const struct pkt_header *h = rx->h;
    aead *ctx = key ? key_derive(key, 'd', h->src, h->dst, 0) : NULL;
    if (sg_verify(n, h, pkt, rx->len, ctx))
        sg_reset_reply(n, h, rx->len, rx->from, key, RESET_INSTANCE, rx->now);
    else
        refused_note(&n->refused, rx->from, UDT_REFUSED_KEY, rx->now);
    aead_free(ctx);
}

static void peer_input(sgmp_node *n, const struct rx *rx, const uint8_t *pkt)
{
    const struct pkt_header *h = rx->h;
    struct key *key = h->key_id ? keys_find(&n->keys, h->key_id) : NULL;
    if (h->key_id && !key) {
        n->st.no_key++;
        refused_note(&n->refused, rx->from, UDT_REFUSED_KEY, rx->now);
        sg_reset_reply(n, h, rx->len, rx->from, NULL, RESET_NO_KEY, rx->now);
        return;
    }
    if (h->dst != n->instance) {
        wrong_instance(n, rx, pkt, key);
        return;
    }
    struct assoc *a = sg_assoc_find(n, h->src, key ? key->who : NULL);
    if (a && a->closed)
        return;
    if (a && a->fresh && !replay_fresh(&a->replay, h->pkt)) {
        n->st.replays++;
        refused_note(&n->refused, rx->from, UDT_REFUSED_REPLAY, rx->now);
        return;
    }
    aead *ctx = a && key ? sg_assoc_open(a, key) : NULL, *derived = NULL;
    if (key && !ctx)
        ctx = derived = key_derive(key, 'd', h->src, n->instance, 0);
    bool genuine = sg_verify(n, h, pkt, rx->len, ctx);
    if (!genuine)
        refused_note(&n->refused, rx->from, UDT_REFUSED_KEY, rx->now);
    if (!genuine || !accept_datagram(n, a, rx, key, derived))
        aead_free(derived);
}

void sgmp_node_input(sgmp_node *n, const udt_addr *from, const uint8_t *pkt, size_t len,
                     udt_time now)
{
    struct pkt_header h;
    udt_addr addr = sg_addr(from);
    struct rx rx = {&h, &addr, len, now};
    n->now = now;
    n->st.dgrams_in++;
    n->st.bytes_in += (int64_t)len;
    int r = pkt_header_get(pkt, len, &h);
    if (r == PKT_E_VERSION && h.src && (!n->cfg.require_auth || keys_find(&n->keys, h.key_id)))
        sg_reset_reply(n, &h, len, &addr, NULL, RESET_VERSION, now);
    if (r || h.src == n->instance) {
        n->st.bad_format++;
        return;
    }
    if (!h.key_id && n->cfg.require_auth && h.type != PKT_T_RESET) {
        n->st.no_key++;
        refused_note(&n->refused, &addr, UDT_REFUSED_KEY, now);
        return;
    }
    if (h.type == PKT_T_HELLO || h.type == PKT_T_HELLO_ACK || h.type == PKT_T_RESET) {
        if (h.type == PKT_T_HELLO || h.dst == n->instance)
            sg_say_input(n, &h, &addr, pkt, len, now);
    } else
        peer_input(n, &rx, pkt);
}
