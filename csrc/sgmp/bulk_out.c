/* Outgoing streams of over-size messages (spec/gmp.md 8.3 to 8.5).
 *
 *  stream: preface 56 = "GMPB" ver 0[3] key_id 0[4] src dst conn_no tag
 *          chunk      = seq u64, length u32, flags u8, 0[3], data, tag
 * Chunks are sealed with counter 1, 2, ...; counter 0 is the preface's. A stream is opened for the
 * first message to a peer and kept for those that follow, until it was idle for a minute or gives
 * way to a busier one. If it breaks, what was not confirmed goes again from its beginning. */
#include "sgmp/bulk.h"

#include <stdlib.h>
#include <string.h>

static const udt_time BACKOFF_US = 250000, BACKOFF_MAX_US = 5000000, FULL_US = 100000;

void sg_order(sgmp_node *n, struct order **kept, int kind, uint64_t id, const udt_addr *to)
{
    struct order *o = *kept;
    *kept = NULL;
    o->o.kind = kind;
    o->o.id = id;
    if (to)
        o->o.to = *to;
    sg_push(&n->orders, &o->q);
}

/* Takes back an order the driver has not seen. */
static bool order_recall(sgmp_node *n, uint64_t id)
{
    for (struct sg_link *l = n->orders.next; l != &n->orders; l = l->next) {
        struct order *o = sg_of(l, struct order, q);
        if (o->o.kind == SGMP_BULK_OPEN && o->o.id == id) {
            sg_unlink(l);
            free(o);
            return true;
        }
    }
    return false;
}

bool sgmp_node_next_bulk(sgmp_node *n, struct sgmp_bulk_order *out)
{
    if (sg_empty(&n->orders))
        return false;
    struct order *o = sg_of(n->orders.next, struct order, q);
    *out = o->o;
    sg_unlink(&o->q);
    free(o);
    return true;
}

bool sgmp_node_bulk_work(const sgmp_node *n)
{
    return n->bulk_work > 0;
}

static struct out_stream *find(sgmp_node *n, uint64_t id)
{
    struct sg_hnode *h = sg_hget(&n->bulks, id);
    return h ? sg_of(h, struct out_stream, by_id) : NULL;
}

static void set_abort(sgmp_node *n, struct out_stream *s, uint64_t seq)
{
    n->bulk_work -= s->abort_seq != 0;
    n->bulk_work += seq != 0;
    s->abort_seq = seq;
}

static void set_frame(sgmp_node *n, struct out_stream *s, uint8_t *frame)
{
    n->bulk_work -= s->frame != NULL;
    n->bulk_work += frame != NULL;
    if (s->frame != frame)
        free(s->frame);
    s->frame = frame;
    if (!frame)
        s->frame_len = s->frame_off = 0;
}

/* Nothing of the connection is left; the messages it carried wait again. */
static void reset(sgmp_node *n, struct out_stream *s)
{
    if (s->state != OUT_WAIT)
        n->out_n--;
    if (s->by_id.key)
        sg_hdel(&n->bulks, &s->by_id);
    s->by_id.key = 0;
    sg_unlink(&s->lru);
    aead_free(s->ctx);
    s->ctx = NULL;
    set_frame(n, s, NULL);
    set_abort(n, s, 0);
    free(s->end);
    s->end = NULL;
    s->cur = NULL;
    s->sent_n = 0;
    s->state = OUT_WAIT;
    for (struct sg_link *l = s->a->x->bulk_out.next; l != &s->a->x->bulk_out; l = l->next) {
        struct bulk *b = sg_of(l, struct bulk, of);
        if (b->state == SG_B_PART || b->state == SG_B_SENT)
            sg_bulk_state(n, b, SG_B_WAIT);
    }
}

static void out_free(sgmp_node *n, struct out_stream *s)
{
    reset(n, s);
    s->a->x->out = NULL;
    sg_heap_unreserve(&n->heap, &s->timer);
    free(s);
}

/* Orders the driver to close, and frees. */
static void out_close(sgmp_node *n, struct out_stream *s)
{
    if (s->state == OUT_OPEN || (s->state == OUT_OPENING && !order_recall(n, s->id)))
        sg_order(n, &s->end, SGMP_BULK_ABORT, s->id, NULL);
    out_free(n, s);
}

static bool idle(const struct out_stream *s)
{
    return s->state == OUT_OPEN && !s->cur && !s->sent_n && !s->abort_seq && !s->frame &&
           !sg_bulk_next(s->a);
}

/* The longest idle stream gives way. */
static bool make_room(sgmp_node *n)
{
    if (n->out_n < SG_STREAMS_OUT)
        return true;
    for (struct sg_link *l = n->out_lru.next; l != &n->out_lru; l = l->next) {
        struct out_stream *s = sg_of(l, struct out_stream, lru);
        if (idle(s)) {
            out_close(n, s);
            return true;
        }
    }
    return false;
}

static void out_open(sgmp_node *n, struct out_stream *s, udt_time now)
{
    /* An address that is not proved gets none: no more may be sent there than came from it. */
    struct order *open = !s->a->unproved && make_room(n) ? calloc(1, sizeof *open) : NULL;
    s->end = open ? calloc(1, sizeof *open) : NULL;
    if (!s->end) {
        free(open);
        sg_heap_set(&n->heap, &s->timer, now + FULL_US);
        return;
    }
    s->state = OUT_OPENING;
    s->id = ++n->next_bulk;
    sg_hadd(&n->bulks, &s->by_id, s->id);
    sg_push(&n->out_lru, &s->lru);
    n->out_n++;
    sg_heap_set(&n->heap, &s->timer, UDT_NEVER);
    sg_order(n, &open, SGMP_BULK_OPEN, s->id, &s->a->addr);
    n->st.bulk_streams++;
}

/* Sees to it that a waiting message finds a stream, and that an idle stream ends. */
void sg_out_pump(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct out_stream *s = a->x->out;
    if (!s && sg_bulk_next(a)) {
        s = calloc(1, sizeof *s);
        if (!s || !sg_heap_reserve(&n->heap)) {
            free(s);
            return; /* the next message, or its deadline, comes here again */
        }
        s->timer.kind = SG_TM_BULK;
        s->a = a;
        s->backoff = BACKOFF_US;
        sg_link_init(&s->lru);
        a->x->out = s;
        out_open(n, s, now);
    } else if (s && s->state == OUT_OPEN) {
        if (!idle(s))
            sg_heap_set(&n->heap, &s->timer, UDT_NEVER);
        else if (!s->timer.slot)
            sg_heap_set(&n->heap, &s->timer, now + SG_T_STREAM);
    } else if (s && !sg_bulk_next(a))
        out_close(n, s); /* nobody else wants it */
}

void sg_bulk_timer(sgmp_node *n, struct sg_timer *t, udt_time now)
{
    struct out_stream *s = sg_of(t, struct out_stream, timer);
    struct assoc *a = s->a;
    if (s->state == OUT_OPEN)
        out_close(n, s);
    else if (sg_bulk_next(a))
        out_open(n, s, now);
    else
        out_free(n, s);
    sg_assoc_kick(n, a, now);
}

/* A message is done with its stream. `tell`: the receiver shall forget what it has of it. */
void sg_out_leave(sgmp_node *n, struct bulk *b, bool tell)
{
    struct out_stream *s = b->a->x ? b->a->x->out : NULL;
    if (!s)
        return;
    if (s->cur == b) {
        s->cur = NULL;
        if (tell && s->off > 0)
            set_abort(n, s, b->msg->seq);
    } else if (b->state == SG_B_SENT)
        s->sent_n--;
}

void sg_bulk_out_drop(sgmp_node *n, struct assoc *a)
{
    if (a->x->out)
        out_close(n, a->x->out);
}

void sg_out_free_all(sgmp_node *n)
{
    for (size_t i = 0; i <= n->bulks.mask; i++)
        while (n->bulks.slot[i])
            out_free(n, sg_of(n->bulks.slot[i], struct out_stream, by_id));
}

static bool write_preface(sgmp_node *n, struct out_stream *s, const struct key *key)
{
    uint8_t nonce[AEAD_NONCE_BYTES], *f = calloc(1, BULK_CHUNK_HEAD + SG_BULK_CHUNK + PKT_TAG);
    if (!f)
        return false;
    bytes_wr w = bytes_writer(f, BULK_PREFACE);
    bytes_put(&w, "GMPB\1\0\0", 8);
    bytes_put_u32(&w, key ? key->id : 0);
    bytes_put_u32(&w, 0);
    bytes_put_u64(&w, n->instance);
    bytes_put_u64(&w, s->a->instance);
    bytes_put_u64(&w, s->conn_no);
    if (s->ctx) {
        aead_nonce(nonce, 0);
        aead_seal(s->ctx, nonce, f, 40, NULL, 0, f + 40);
    }
    set_frame(n, s, f);
    s->frame_len = BULK_PREFACE;
    s->frame_off = 0;
    return true;
}

void sgmp_node_bulk_opened(sgmp_node *n, uint64_t id, udt_time now)
{
    struct out_stream *s = find(n, id);
    n->now = now;
    if (!s || s->state != OUT_OPENING)
        return;
    struct assoc *a = s->a;
    struct key *key = a->who ? sg_assoc_key(n, a, now) : NULL;
    s->conn_no = ++n->next_conn;
    s->key_serial = key ? key->serial : 0;
    if (key)
        s->ctx = key_derive(key, 'b', n->instance, a->instance, s->conn_no);
    s->state = OUT_OPEN;
    s->counter = 0;
    if ((a->who && !s->ctx) || !write_preface(n, s, key)) {
        sg_order(n, &s->end, SGMP_BULK_ABORT, id, NULL);
        sgmp_node_bulk_failed(n, id, UDT_E_NOMEM, now);
        return;
    }
    s->backoff = BACKOFF_US;
    sg_out_pump(n, a, now);
}

void sgmp_node_bulk_failed(sgmp_node *n, uint64_t id, int err, udt_time now)
{
    struct out_stream *s = find(n, id);
    (void)err;
    n->now = now;
    if (!s)
        return;
    struct assoc *a = s->a;
    reset(n, s);
    if (!sg_bulk_next(a)) {
        out_free(n, s);
    } else {
        sg_heap_set(&n->heap, &s->timer, now + s->backoff);
        s->backoff = s->backoff * 2 < BACKOFF_MAX_US ? s->backoff * 2 : BACKOFF_MAX_US;
        a->x->ping_due = a->x->ping_pad = true; /* a peer that restarted says so */
    }
    sg_assoc_kick(n, a, now);
}

static void seal_chunk(struct out_stream *s, uint64_t seq, size_t take, unsigned flags)
{
    uint8_t aad[8 + BULK_CHUNK_HEAD], nonce[AEAD_NONCE_BYTES];
    bytes_wr w = bytes_writer(s->frame, BULK_CHUNK_HEAD);
    bytes_put_u64(&w, seq);
    bytes_put_u32(&w, (uint32_t)take);
    bytes_put_u32(&w, flags << 24);
    s->frame_off = 0;
    s->frame_len = BULK_CHUNK_HEAD + take + (s->ctx ? PKT_TAG : 0);
    s->counter++;
    uint8_t *body = s->frame + BULK_CHUNK_HEAD;
    if (s->ctx) {
        be64_put(aad, s->counter);
        memcpy(aad + 8, s->frame, BULK_CHUNK_HEAD);
        aead_nonce(nonce, s->counter);
        aead_seal(s->ctx, nonce, aad, sizeof aad, body, take, body);
    }
}

static void next_chunk(sgmp_node *n, struct out_stream *s)
{
    struct bulk *b = s->cur;
    size_t left = b->len - s->off, take = left < SG_BULK_CHUNK ? left : SG_BULK_CHUNK;
    sg_bulk_copy(b, s->off, s->frame + BULK_CHUNK_HEAD, take);
    seal_chunk(s, b->msg->seq, take, take == left ? BULK_F_LAST : 0);
    s->off += take;
    if (take < left)
        return;
    s->cur = NULL;
    s->sent_n++;
    sg_bulk_state(n, b, SG_B_SENT);
}

/* The next message in line takes the stream. A new key needs a new stream, once nothing depends on
 * the old one. */
static bool take_next(sgmp_node *n, struct out_stream *s, udt_time now)
{
    struct bulk *b = sg_bulk_next(s->a);
    struct key *key = s->a->who ? sg_assoc_key(n, s->a, now) : NULL;
    if (!b || (s->a->who && !key))
        return false;
    if (key && key->serial != s->key_serial) {
        if (!s->sent_n) {
            sg_order(n, &s->end, SGMP_BULK_ABORT, s->id, NULL);
            reset(n, s);
            out_open(n, s, now);
        }
        return false;
    }
    s->cur = b;
    s->off = 0;
    sg_bulk_state(n, b, SG_B_PART);
    return true;
}

/* A record to write; false = none now. */
static bool next_frame(sgmp_node *n, struct out_stream *s, udt_time now)
{
    if (!s->abort_seq && !s->cur && !take_next(n, s, now)) {
        set_frame(n, s, NULL);
        return false;
    }
    if (!s->frame) {
        uint8_t *f = malloc(BULK_CHUNK_HEAD + SG_BULK_CHUNK + PKT_TAG);
        if (!f)
            return false;
        set_frame(n, s, f);
    }
    if (s->abort_seq) {
        seal_chunk(s, s->abort_seq, 0, BULK_F_ABORT);
        set_abort(n, s, 0);
    } else
        next_chunk(n, s);
    return true;
}

size_t sgmp_node_bulk_read(sgmp_node *n, uint64_t id, uint8_t *buf, size_t cap, udt_time now)
{
    struct out_stream *s = find(n, id);
    size_t done = 0;
    n->now = now;
    if (!s || s->state != OUT_OPEN)
        return 0;
    while (done < cap) {
        if (s->frame_off == s->frame_len && !next_frame(n, s, now))
            break;
        size_t k = s->frame_len - s->frame_off;
        k = k < cap - done ? k : cap - done;
        memcpy(buf + done, s->frame + s->frame_off, k);
        s->frame_off += k;
        done += k;
    }
    if (s->state == OUT_OPEN && done) {
        s->a->last_rx = now; /* the stream flows: the peer lives */
        sg_unlink(&s->lru);
        sg_push(&n->out_lru, &s->lru);
    }
    if (s->state == OUT_OPEN)
        sg_out_pump(n, s->a, now);
    return done;
}
