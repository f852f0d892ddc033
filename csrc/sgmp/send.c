/* Sending: queues, windows, choosing and building the next datagram, outcomes (spec/gmp.md 6). */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

void sg_msg_join(sgmp_node *n, struct assoc *a, struct msg *m)
{
    struct active *x = a->x;
    bool control = m->flags & PKT_F_CONTROL;
    m->a = a;
    x->q_msgs++;
    x->ctl_msgs += control;
    x->q_bytes += m->len;
    n->snd_bytes += m->len;
    m->where = control ? SG_W_CTL : SG_W_NEW;
    sg_push(control ? &x->ctl_q : &x->new_q, &m->q);
}

static void leave_flight(struct msg *m)
{
    if (m->where != SG_W_FLIGHT)
        return;
    m->a->x->flight_n--;
    if (m->flags & PKT_F_CONTROL)
        m->a->x->ctl_flight--;
}

void sg_msg_leave(sgmp_node *n, struct msg *m)
{
    struct active *x = m->a->x;
    if (m->where == SG_W_NONE)
        return;
    leave_flight(m);
    sg_unlink(&m->q);
    m->where = SG_W_NONE;
    if (m->seq) {
        x->ring[m->seq & (x->ring_cap - 1)] = NULL;
        while (x->low < m->a->next_seq && !x->ring[x->low & (x->ring_cap - 1)])
            x->low++;
        x->tx_msgs--;
        x->tx_bytes -= m->len;
    }
    x->q_msgs--;
    x->ctl_msgs -= (m->flags & PKT_F_CONTROL) != 0;
    x->q_bytes -= m->len;
    n->snd_bytes -= m->len;
}

/* Back from flight to be sent again. */
void sg_requeue(struct msg *m, bool front)
{
    struct active *x = m->a->x;
    bool control = m->flags & PKT_F_CONTROL;
    struct sg_link *list = control ? &x->ctl_q : &x->resend_q;
    leave_flight(m);
    sg_unlink(&m->q);
    m->where = control ? SG_W_CTL : SG_W_RESEND;
    if (front || control)
        sg_push_front(list, &m->q);
    else
        sg_push(list, &m->q);
}

/* The end of a message, whatever it was: its one outcome goes to whom it concerns. */
void sg_settle(sgmp_node *n, struct msg *m, int status, udt_time now)
{
    struct assoc *a = m->a;
    /* What the present instance says, or never got, is not all there is to say. */
    if (m->elsewhere && !m->call && sg_undelivered(status))
        status = UDT_E_RESTARTED;
    sg_msg_leave(n, m);
    sg_heap_unreserve(&n->heap, &m->timer);
    if (m->id && !m->call)
        sg_hdel(&n->msgs, &m->by_id);
    if (m->bulk)
        sg_bulk_end(n, m->bulk);
    if (m->kind == PKT_K_BULK_DONE)
        sg_bulk_done_settled(n, a, be64_get(m->data), status == 0);
    if (m->call) {
        m->call->msg = NULL;
        m->call->sent |= m->attempt > 0;
        m->call->elsewhere |= m->elsewhere;
        m->call->refused = m->reason;
        sg_call_settled(n, m->call, status, now);
    } else if (m->member)
        sg_group_ended(n, m->member, a, status, sg_undelivered(status), NULL);
    else if (m->id)
        sg_event_outcome(n, m, status);
    sg_event_unkeep(n, &m->last);
    sg_share_unref(m->share);
    sg_block_free(n, m, m->room + sizeof *m);
    sg_tell_writable(n);
}

void sg_fail_all(sgmp_node *n, struct assoc *a, int sent, int unsent, udt_time now)
{
    struct active *x = a->x;
    struct sg_link *lists[] = {&x->ctl_q, &x->flight, &x->resend_q, &x->new_q};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        while (!sg_empty(lists[i])) {
            struct msg *m = sg_of(lists[i]->next, struct msg, q);
            sg_settle(n, m, m->attempt ? sent : unsent, now);
        }
    while (!sg_empty(&x->bulk_out)) {
        struct msg *m = sg_of(x->bulk_out.next, struct bulk, of)->msg;
        sg_settle(n, m, m->attempt ? sent : unsent, now);
    }
}

/* CONTROL messages pass a full queue, up to a bound of their own. */
static bool queue_full(sgmp_node *n, const struct assoc *a, const struct sg_post *p, size_t len)
{
    const struct active *x = a->x;
    if (p->reserved)
        return x->q_msgs >= 2 * SG_Q_MSGS;
    if (p->flags & PKT_F_CONTROL)
        return x->ctl_msgs >= SG_CTL_Q;
    return x->q_msgs - x->ctl_msgs >= SG_Q_MSGS || x->q_bytes + len > SG_Q_BYTES ||
           n->snd_bytes + len > SG_Q_TOTAL || n->light_n >= SG_EVENTS;
}

static struct msg *msg_new(sgmp_node *n, const struct sg_post *p)
{
    size_t own = p->head_len + (p->share ? 0 : p->body_len);
    size_t want = own > BULK_DESC + 32 ? own : BULK_DESC + 32; /* it may become a descriptor */
    uint32_t room;
    struct msg *m = sg_block(n, sizeof *m + want, &room);
    if (!m)
        return NULL;
    memset(m, 0, sizeof *m);
    bool alone = p->id && !p->member && !p->of_call;
    if ((alone && !sg_event_keep(n, &m->last)) || !sg_heap_reserve(&n->heap)) {
        sg_event_unkeep(n, &m->last);
        sg_block_free(n, m, room);
        return NULL;
    }
    sg_link_init(&m->q);
    m->timer.kind = SG_TM_MSG;
    m->id = p->id;
    m->own = (uint32_t)own;
    m->room = room - (uint32_t)sizeof *m;
    m->len = (uint32_t)(p->head_len + p->body_len);
    m->share = sg_share_ref(p->share);
    m->member = p->member;
    m->channel = p->channel;
    m->kind = p->kind;
    m->flags = p->flags;
    m->max_tries = p->tries ? p->tries : SG_TRIES;
    m->ttl_at = p->ttl_at;
    if (p->head_len)
        memcpy(m->data, p->head, p->head_len);
    if (own > p->head_len)
        memcpy(m->data + p->head_len, p->body, p->body_len);
    return m;
}

int sg_post(sgmp_node *n, struct assoc *a, const struct sg_post *p, struct msg **out, udt_time now)
{
    size_t len = p->head_len + p->body_len;
    if (!sg_assoc_wake(a, now))
        return UDT_E_NOMEM;
    if (len > PKT_INLINE && len > sg_inline(a)) {
        sg_size_wanted(a);
        return sg_bulk_send(n, a, p, out, now);
    }
    if (queue_full(n, a, p, len)) {
        if (p->reserved)
            return UDT_E_AGAIN;
        return sg_want_room(n, a, p->flags & PKT_F_CONTROL ? SG_WANT_CTL : SG_WANT_PLAIN);
    }
    struct msg *m = msg_new(n, p);
    if (!m)
        return UDT_E_NOMEM;
    sg_msg_join(n, a, m);
    if ((!a->instance && !a->x->hello_on) || a->x->need_token)
        sg_hello_start(n, a, now);
    if (p->until != UDT_NEVER)
        sg_heap_set(&n->heap, &m->timer, p->until);
    n->st.messages_out++;
    if (p->member)
        p->member->msg = m;
    if (out)
        *out = m;
    return 0;
}

/* Paced: at most 16 datagrams at once, 1.25 windows per round trip in the long run. */
static bool pace_ok(struct assoc *a, udt_time now, udt_time *when)
{
    struct active *x = a->x;
    if (a->srtt == 0)
        return true;
    /* thousandths of a datagram per microsecond, times 2^16 */
    int64_t rate = ((int64_t)x->cwnd_m * 5 / 4 << 16) / (a->srtt > 1 ? a->srtt : 1);
    int64_t span = now - x->pace_at;
    if (span > 0) {
        int64_t gain = span > SEC(1) ? 16000 : rate * span >> 16;
        x->pace_m += gain;
        if (x->pace_m > 16000)
            x->pace_m = 16000;
        if (gain > 0)
            x->pace_at = now;
    }
    if (x->pace_m >= 1000)
        return true;
    *when = x->pace_at + ((1000 - x->pace_m) << 16) / (rate ? rate : 1) + 1;
    if (*when <= now)
        *when = now + 1;
    return false;
}

/* A closed window is probed with one message after PTO, 2 PTO, ... at most 1 s. */
static bool window_ok(sgmp_node *n, struct assoc *a, const struct msg *m, udt_time now,
                      udt_time *when)
{
    struct active *x = a->x;
    (void)n;
    if (a->next_seq - x->low >= SG_WINDOW)
        return false;
    if (x->tx_msgs < x->win_msgs && x->tx_bytes + m->len <= (uint64_t)x->win_kib * 1024) {
        x->probe_at = UDT_NEVER;
        return true;
    }
    if (x->tx_msgs)
        return false;
    if (x->probe_at == UDT_NEVER) {
        udt_time wait = sg_pto(a) << (x->probe_n < 7 ? x->probe_n : 7);
        x->probe_at = now + (wait < SEC(1) ? wait : SEC(1));
        x->probe_n += x->probe_n < 7;
    }
    if (now >= x->probe_at) {
        return true;
    }
    *when = x->probe_at;
    return false;
}

/* The message to send now, or NULL and when time alone will allow one. */
struct msg *sg_pick(sgmp_node *n, struct assoc *a, udt_time now, udt_time *when)
{
    struct active *x = a->x;
    *when = UDT_NEVER;
    if (!a->instance || x->need_token || a->unproved)
        return NULL;
    if (!sg_empty(&x->ctl_q) && x->ctl_flight < SG_RCV_CONTROL) {
        struct msg *c = sg_of(x->ctl_q.next, struct msg, q);
        if (c->seq ||
            a->next_seq - x->low < SG_WINDOW) /* again: it may be what closes the window */
            return c;
    }
    if (x->forced && !sg_empty(&x->resend_q))
        return sg_of(x->resend_q.next, struct msg, q);
    if (sg_empty(&x->resend_q) && sg_empty(&x->new_q))
        return NULL;
    if (now < x->busy_until) {
        *when = x->busy_until;
        return NULL;
    }
    if (x->flight_n * 1000 >= x->cwnd_m || !pace_ok(a, now, when))
        return NULL;
    if (!sg_empty(&x->resend_q))
        return sg_of(x->resend_q.next, struct msg, q);
    struct msg *m = sg_of(x->new_q.next, struct msg, q);
    return window_ok(n, a, m, now, when) ? m : NULL;
}

static bool ring_room(struct assoc *a)
{
    struct active *x = a->x;
    uint64_t span = a->next_seq - x->low + 1;
    if (span <= x->ring_cap)
        return true;
    uint32_t cap = x->ring_cap ? x->ring_cap * 2 : 16;
    struct msg **ring = calloc(cap, sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t s = x->low; s < a->next_seq; s++)
        ring[s & (cap - 1)] = x->ring[s & (x->ring_cap - 1)];
    free(x->ring);
    x->ring = ring;
    x->ring_cap = cap;
    return true;
}

struct draft {
    struct pkt_header h;
    bytes_wr w;
    uint8_t *buf;
    size_t room;
    aead *ctx;
};

static void draft_start(sgmp_node *n, struct assoc *a, struct draft *d, int type, unsigned flags,
                        udt_time now)
{
    d->h.type = (uint8_t)type;
    d->h.flags = (uint16_t)flags;
    d->h.src = n->instance;
    d->h.dst = a->instance;
    d->h.pkt = a->next_pkt;
    d->h.channel = 0;
    d->room = (type == PKT_T_DATA ? a->dgram : PKT_LIMIT) - PKT_HEADER - PKT_TAG;
    d->w = bytes_writer(d->buf + PKT_HEADER, d->room);
    if (flags & PKT_F_TOKEN)
        bytes_put(&d->w, a->x->token, PKT_TOKEN);
    if (flags & PKT_F_ACKBLK) {
        struct pkt_ack k;
        sg_ack_fill(n, a, &k, type == PKT_T_DATA ? 1 : PKT_ACK_WORDS, now);
        pkt_ack_put(&d->w, &k);
        if (type != PKT_T_DATA || sg_ack_words(a) <= 1)
            sg_ack_sent(a);
    }
}

static size_t draft_end(sgmp_node *n, struct assoc *a, struct draft *d, udt_time now)
{
    size_t body = d->room - d->w.left;
    size_t len;
    d->h.key_id = a->who ? a->key_id : 0;
    len = sg_seal(&d->h, d->buf, body, d->ctx);
    sg_sent(a, a->next_pkt++, now);
    sg_assoc_use(n, a, now);
    if (a->unproved)
        a->x->unproved_out += (uint32_t)len;
    return len;
}

/* Marks a message as transmitted now; false = no memory for its place in the ring. */
static bool mark_sent(sgmp_node *n, struct assoc *a, struct msg *m, udt_time now)
{
    struct active *x = a->x;
    if (!m->seq) {
        if (!ring_room(a))
            return false;
        m->seq = a->next_seq++;
        x->ring[m->seq & (x->ring_cap - 1)] = m;
        x->tx_msgs++;
        x->tx_bytes += m->len;
    }
    sg_unlink(&m->q);
    sg_push(&x->flight, &m->q);
    m->where = SG_W_FLIGHT;
    x->flight_n++;
    if (m->flags & PKT_F_CONTROL)
        x->ctl_flight++;
    if (x->forced && m->attempt)
        x->forced--;
    else if (a->srtt)
        x->pace_m -= 1000;
    if (m->attempt < 255)
        m->attempt++;
    if (!x->busy && x->win_msgs)
        m->tries++;
    m->last_pkt = a->next_pkt;
    m->sent_at = now;
    if (x->pto_at == UDT_NEVER)
        x->pto_at = now + sg_pto_wait(n, a);
    x->probe_at = UDT_NEVER;
    return true;
}

static size_t build_data(sgmp_node *n, struct assoc *a, struct draft *d, struct msg *m,
                         udt_time now)
{
    struct active *x = a->x;
    if (m->len > PKT_INLINE && m->len > sg_inline(a)) { /* a peer that restarted, for example */
        if (!sg_bulk_convert(n, m, now))
            sg_settle(n, m, m->attempt ? UDT_E_TIMEOUT : UDT_E_NOTSENT, now);
        return 0;
    }
    unsigned flags = m->flags;
    bool again = m->attempt > 0, forced = x->forced > 0 && again;
    if (!mark_sent(n, a, m, now))
        return 0;
    if (!a->confirmed && sg_has_token(a, now))
        flags |= PKT_F_TOKEN;
    if (a->fresh && (x->ack_count || x->ack_now || !a->confirmed))
        flags |= PKT_F_ACKBLK;
    if (forced || (x->flight_n + 1) * 1000 > x->cwnd_m)
        flags |= PKT_F_ACK_NOW;
    if (again && !forced)
        n->st.retrans_loss++;
    draft_start(n, a, d, PKT_T_DATA, flags, now);
    d->h.channel = m->channel;
    if (m->call && m->kind == PKT_K_RPC) /* the budget shrinks while the request waits */
        be32_put(m->data + 16, (uint32_t)((m->call->timer.at - now) / 1000 + 1));
    struct pkt_data pd = {m->seq, (uint16_t)(m->seq - x->low), (uint8_t)(m->attempt - 1), m->kind,
                          0};
    if (m->ttl_at)
        pd.ttl_ms = m->ttl_at > now + 1000 ? (uint32_t)((m->ttl_at - now) / 1000) : 1;
    pkt_data_put(&d->w, &pd);
    bytes_put(&d->w, m->data, m->own);
    if (m->share)
        bytes_put(&d->w, m->share->data, m->share->len);
    size_t len = draft_end(n, a, d, now);
    sg_size_give(n, a, m, len, now);
    return len;
}

static size_t build_ping(sgmp_node *n, struct assoc *a, struct draft *d, udt_time now)
{
    static const uint8_t zeros[64];
    struct active *x = a->x;
    bool pad = x->ping_pad && !a->unproved;
    bool ack = a->fresh && !pad && !a->unproved;
    x->ping_due = x->ping_pad = false;
    x->ping_nonce = sg_rand64(n);
    x->ping_at = now;
    draft_start(n, a, d, PKT_T_PING, (pad ? PKT_F_PAD : 0u) | (ack ? PKT_F_ACKBLK : 0u), now);
    bytes_put_u64(&d->w, x->ping_nonce);
    if (pad)
        bytes_put(&d->w, zeros, PKT_PROBE - PKT_HEADER - 8 - (a->who ? PKT_TAG : 0));
    return draft_end(n, a, d, now);
}

/* A PING of the size that shall be tried. */
static size_t build_probe(sgmp_node *n, struct assoc *a, struct draft *d, udt_time now)
{
    struct active *x = a->x;
    x->size_due = false;
    if (x->size_n == 0) /* a late answer to the first one counts too */
        x->probe_nonce = sg_rand64(n);
    x->size_at = now + sg_pto(a);
    draft_start(n, a, d, PKT_T_PING, PKT_F_PAD, now);
    d->room = (size_t)x->size_try - PKT_HEADER - PKT_TAG;
    d->w = bytes_writer(d->buf + PKT_HEADER, d->room);
    bytes_put_u64(&d->w, x->probe_nonce);
    memset(d->buf + PKT_HEADER + 8, 0, d->room - 8);
    d->w.left = 0;
    return draft_end(n, a, d, now);
}

static size_t build_pong(sgmp_node *n, struct assoc *a, struct draft *d, udt_time now)
{
    uint32_t load = n->rcv_msgs * 1000 / SG_RCV_MSGS;
    a->x->pong_due = false;
    draft_start(n, a, d, PKT_T_PONG, 0, now);
    bytes_put_u64(&d->w, a->x->pong_nonce);
    bytes_put_u16(&d->w, (uint16_t)(load < 1000 ? load : 1000));
    bytes_put_u16(&d->w, 0);
    bytes_put_u32(&d->w, (uint32_t)((now - n->born) / 1000000));
    return draft_end(n, a, d, now);
}

static size_t build_refuse(sgmp_node *n, struct assoc *a, struct draft *d, udt_time now)
{
    struct active *x = a->x;
    x->refuse_due = false;
    draft_start(n, a, d, PKT_T_REFUSE, 0, now);
    for (uint32_t i = 0; i < x->refused_n; i++)
        if (x->refused[i].due) {
            struct pkt_refusal f = {x->refused[i].seq, x->refused[i].arg, x->refused[i].reason};
            pkt_refusal_put(&d->w, &f);
            x->refused[i].due = false;
            n->st.refused++;
        }
    return draft_end(n, a, d, now);
}

/* What the address may get while it is not proved: no more than came from it. */
static bool unproved_ok(const struct assoc *a, uint32_t bytes)
{
    return !a->unproved || a->x->unproved_out + bytes <= a->x->unproved_in;
}

enum { PING_BYTES = 64, PONG_BYTES = 72, HELLO_BYTES = PKT_HEADER + PKT_HELLO + PKT_TAG };

static bool hello_ok(const struct assoc *a)
{
    return a->x->hello_on && (a->x->named || unproved_ok(a, HELLO_BYTES));
}

bool sg_wants_output(sgmp_node *n, struct assoc *a, udt_time now, udt_time *when)
{
    struct active *x = a->x;
    *when = UDT_NEVER;
    if (hello_ok(a)) {
        if (now >= x->hello_at)
            return true;
        *when = x->hello_at;
    }
    if (!a->instance)
        return false;
    if ((x->ping_due && unproved_ok(a, PING_BYTES)) || (x->pong_due && unproved_ok(a, PONG_BYTES)))
        return true;
    if (a->unproved)
        return false;
    if (x->refuse_due || x->size_due || (x->ack_now && a->fresh) || x->ack_at <= now)
        return true;
    udt_time data_at;
    if (sg_pick(n, a, now, &data_at))
        return true;
    *when = data_at < *when ? data_at : *when;
    *when = x->ack_at < *when ? x->ack_at : *when;
    return false;
}

/* One datagram of this association, 0 = nothing may be sent now. */
size_t sg_build(sgmp_node *n, struct assoc *a, uint8_t *buf, udt_time now)
{
    struct active *x = a->x;
    struct draft d = {.buf = buf};
    struct key *key = NULL;
    udt_time when;
    if (a->who) {
        key = sg_assoc_key(n, a, now);
        if (!key) {
            x->hello_on = x->ping_due = x->pong_due = x->ack_now = x->refuse_due = false;
            x->size_due = x->size_want = false;
            x->size_try = 0;
            x->verify_n = 0;
            x->ack_count = 0;
            x->ack_at = UDT_NEVER;
            sg_fail_all(n, a, UDT_E_AUTHFAILED, UDT_E_NOTSENT, now);
            sg_calls_fail(n, a, SGMP_RPC_UNKNOWN, now);
            return 0;
        }
    }
    if (hello_ok(a) && now >= x->hello_at) {
        size_t len = sg_hello_build(n, a, buf, now);
        if (a->unproved)
            x->unproved_out += (uint32_t)len;
        return len;
    }
    if (!a->instance)
        return 0;
    if (key && !(d.ctx = sg_assoc_seal(n, a, key)))
        return 0;
    if (x->pong_due && unproved_ok(a, PONG_BYTES))
        return build_pong(n, a, &d, now);
    if (x->ping_due && unproved_ok(a, PING_BYTES))
        return build_ping(n, a, &d, now);
    if (a->unproved)
        return 0;
    if (x->refuse_due)
        return build_refuse(n, a, &d, now);
    bool ack = a->fresh && (x->ack_now || x->ack_at <= now);
    struct msg *m = ack && sg_ack_words(a) > 1 ? NULL : sg_pick(n, a, now, &when);
    if (x->size_due && !ack && !(m && (m->flags & PKT_F_CONTROL)))
        return build_probe(n, a, &d, now);
    if (m)
        return build_data(n, a, &d, m, now);
    if (!ack)
        return 0;
    draft_start(n, a, &d, PKT_T_ACK, PKT_F_ACKBLK, now);
    return draft_end(n, a, &d, now);
}
