/* Over-size messages going out (spec/gmp.md section 8): descriptor, one stream, BULK_DONE.
 *
 *  stream: preface 56 = "GMPB" ver 0[3] key_id 0[4] src dst conn_no tag
 *          chunk      = seq u64, length u32, flags u8, 0[3], data, tag
 * Chunks are sealed with counter 1, 2, ...; counter 0 is the preface's. At most one stream per
 * peer is under way, the next begins when BULK_DONE ended the former. */
#include "sgmp/bulk.h"

#include <stdlib.h>
#include <string.h>

void sg_order(sgmp_node *n, int kind, uint64_t id, const udt_addr *to)
{
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        abort(); /* a stream would stay open for ever */
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

static void close_stream(struct bulk *b)
{
    aead_free(b->ctx);
    free(b->frame);
    b->ctx = NULL;
    b->frame = NULL;
    b->frame_len = b->frame_off = b->off = 0;
}

static void bulk_free(sgmp_node *n, struct bulk *b)
{
    close_stream(b);
    sg_hdel(&n->bulks, &b->by_id);
    sg_unlink(&b->of);
    sg_heap_unreserve(&n->heap, &b->timer);
    n->bulk_snd_bytes -= b->data ? b->len : 0;
    free(b->data);
    free(b);
}

/* Opens the stream of the first message whose descriptor is accepted, if none is under way. */
static void pump(sgmp_node *n, struct assoc *a)
{
    struct active *x = a->x;
    for (struct sg_link *l = x->bulk_out.next; l != &x->bulk_out && !x->out_stream; l = l->next) {
        struct bulk *b = sg_of(l, struct bulk, of);
        if (b->state != SG_B_WAIT || b->timer.slot)
            continue;
        b->state = SG_B_OPENING;
        x->out_stream = b;
        sg_order(n, SGMP_BULK_OPEN, b->id, &a->addr);
    }
}

static void release_slot(struct bulk *b)
{
    if (b->a && b->a->x && b->a->x->out_stream == b)
        b->a->x->out_stream = NULL;
}

/* Stops what is under way; the message starts again from its descriptor or payload. */
static void stop_stream(sgmp_node *n, struct bulk *b)
{
    if (b->state == SG_B_OPENING && !order_recall(n, b->id))
        sg_order(n, SGMP_BULK_ABORT, b->id, NULL);
    else if (b->state == SG_B_STREAM || b->state == SG_B_SENT)
        sg_order(n, SGMP_BULK_ABORT, b->id, NULL);
    close_stream(b);
    release_slot(b);
    sg_heap_set(&n->heap, &b->timer, UDT_NEVER);
}

static uint8_t *join(const struct sg_post *p)
{
    uint8_t *data = malloc(p->head_len + p->body_len);
    if (data && p->head_len)
        memcpy(data, p->head, p->head_len);
    if (data && p->body_len)
        memcpy(data + p->head_len, p->body, p->body_len);
    return data;
}

static bool describe(const struct assoc *a, const struct bulk *b, uint8_t out[BULK_DESC + 32],
                     size_t *out_len)
{
    struct bulk_desc d = {.len = b->len, .crc = udt_crc32c(0, b->data, b->len), .inner = b->inner};
    if (!a->who) { /* no tag protects the chunks: a strong digest does */
        sha256 *h = sha256_new();
        if (!h)
            return false;
        d.hash_alg = 1;
        sha256_update(h, b->data, b->len);
        sha256_final(h, d.hash);
    }
    *out_len = bulk_desc_put(out, &d);
    return true;
}

int sg_bulk_send(sgmp_node *n, struct assoc *a, const struct sg_post *p, struct msg **out,
                 udt_time now)
{
    size_t len = p->head_len + p->body_len, desc_len = 0;
    uint8_t desc[BULK_DESC + 32];
    uint32_t waiting = 0;
    struct msg *m = NULL;
    if (len > SG_BULK_MAX || (p->flags & PKT_F_CONTROL))
        return UDT_E_TOOBIG;
    if (!sg_assoc_wake(a, now))
        return UDT_E_NOMEM;
    for (struct sg_link *l = a->x->bulk_out.next; l != &a->x->bulk_out; l = l->next)
        waiting++;
    if (waiting >= SG_BULK_ENTRIES || n->bulk_snd_bytes + len > SG_BULK_TOTAL) {
        if (sg_empty(&a->x->want))
            sg_push(&n->writers, &a->x->want);
        return UDT_E_AGAIN;
    }
    struct bulk *b = calloc(1, sizeof *b);
    if (!b || !(b->data = join(p)) || !sg_heap_reserve(&n->heap)) {
        if (b)
            free(b->data);
        free(b);
        return UDT_E_NOMEM;
    }
    b->timer.kind = SG_TM_BULK;
    b->a = a;
    b->len = len;
    b->inner = p->kind;
    b->id = ++n->next_bulk;
    b->backoff = MS(250);
    n->bulk_snd_bytes += len;
    sg_hadd(&n->bulks, &b->by_id, b->id);
    sg_push(&a->x->bulk_out, &b->of);
    struct sg_post d = *p;
    d.kind = PKT_K_BULK;
    d.head = desc;
    d.body_len = 0;
    int err = describe(a, b, desc, &desc_len) ? 0 : UDT_E_NOMEM;
    d.head_len = desc_len;
    if (err == 0)
        err = sg_post(n, a, &d, &m, now);
    if (err) {
        bulk_free(n, b);
        return err;
    }
    m->bulk = b;
    b->msg = m;
    if (out)
        *out = m;
    return 0;
}

/* The receiver has the descriptor: it leaves the window, the payload may go. */
void sg_bulk_acked(sgmp_node *n, struct msg *m, udt_time now)
{
    (void)now;
    sg_msg_leave(n, m);
    m->bulk->state = SG_B_WAIT;
    pump(n, m->a);
}

/* The message has its outcome. A stream in the middle of its payload ends with an abort chunk, so
 * that the receiver can free what it has. */
void sg_bulk_end(sgmp_node *n, struct bulk *b)
{
    struct assoc *a = b->a;
    b->msg = NULL;
    if (b->state == SG_B_STREAM && b->off > 0) {
        release_slot(b);
        sg_unlink(&b->of);
        b->state = SG_B_ABORT;
        b->a = NULL;
        n->bulk_snd_bytes -= b->len;
        free(b->data);
        b->data = NULL;
        sg_heap_set(&n->heap, &b->timer, n->now + SEC(10));
    } else {
        stop_stream(n, b);
        bulk_free(n, b);
    }
    if (a && a->x)
        pump(n, a);
}

/* The peer restarted: begin anew with another association. */
void sg_bulk_move(sgmp_node *n, struct msg *m, struct assoc *to)
{
    struct bulk *b = m->bulk;
    if (!b)
        return;
    stop_stream(n, b);
    b->state = SG_B_DESC;
    b->a = to;
    sg_unlink(&b->of);
    sg_push(&to->x->bulk_out, &b->of);
}

void sg_bulk_timer(sgmp_node *n, struct sg_timer *t, udt_time now)
{
    struct bulk *b = sg_of(t, struct bulk, timer);
    (void)now;
    if (b->state == SG_B_ABORT) {
        sg_order(n, SGMP_BULK_ABORT, b->id, NULL);
        bulk_free(n, b);
    } else
        pump(n, b->a);
}

static struct bulk *find(sgmp_node *n, uint64_t id)
{
    struct sg_hnode *h = sg_hget(&n->bulks, id);
    return h ? sg_of(h, struct bulk, by_id) : NULL;
}

static void write_preface(sgmp_node *n, struct bulk *b, struct key *key)
{
    uint8_t nonce[AEAD_NONCE_BYTES];
    bytes_wr w = bytes_writer(b->frame, BULK_PREFACE);
    memset(b->frame, 0, BULK_PREFACE);
    bytes_put(&w, "GMPB\1\0\0", 8);
    bytes_put_u32(&w, key ? key->id : 0);
    bytes_put_u32(&w, 0);
    bytes_put_u64(&w, n->instance);
    bytes_put_u64(&w, b->a->instance);
    bytes_put_u64(&w, b->conn_no);
    if (b->ctx) {
        aead_nonce(nonce, 0);
        aead_seal(b->ctx, nonce, b->frame, 40, NULL, 0, b->frame + 40);
    }
    b->frame_len = BULK_PREFACE;
}

void sgmp_node_bulk_opened(sgmp_node *n, uint64_t id, udt_time now)
{
    struct bulk *b = find(n, id);
    n->now = now;
    if (!b || b->state != SG_B_OPENING || !b->a->x)
        return;
    struct key *key = b->a->who ? sg_assoc_key(n, b->a, now) : NULL;
    b->conn_no = ++n->next_conn;
    b->seq = b->msg->seq;
    if (key)
        b->ctx = key_derive(key, 'b', n->instance, b->a->instance, b->conn_no);
    b->frame = malloc(BULK_CHUNK_HEAD + SG_BULK_CHUNK + PKT_TAG);
    b->state = SG_B_STREAM;
    if (!b->frame || (b->a->who && !b->ctx)) {
        sg_order(n, SGMP_BULK_ABORT, id, NULL);
        sgmp_node_bulk_failed(n, id, UDT_E_NOMEM, now);
        return;
    }
    b->counter = 0;
    b->final = false;
    write_preface(n, b, key);
}

void sgmp_node_bulk_failed(sgmp_node *n, uint64_t id, int err, udt_time now)
{
    struct bulk *b = find(n, id);
    (void)err;
    n->now = now;
    if (!b)
        return;
    if (b->state == SG_B_ABORT) {
        bulk_free(n, b);
        return;
    }
    if (b->state < SG_B_OPENING)
        return;
    close_stream(b);
    release_slot(b);
    b->state = SG_B_WAIT;
    sg_heap_set(&n->heap, &b->timer, now + b->backoff);
    b->backoff = b->backoff * 2 < SEC(5) ? b->backoff * 2 : SEC(5);
    if (b->a->x) { /* a peer that restarted says so */
        b->a->x->ping_due = b->a->x->ping_pad = true;
        pump(n, b->a);
        sg_assoc_kick(n, b->a, now);
    }
}

static void next_chunk(struct bulk *b)
{
    bool abort_it = b->state == SG_B_ABORT;
    size_t left = abort_it ? 0 : b->len - b->off;
    size_t take = left < SG_BULK_CHUNK ? left : SG_BULK_CHUNK;
    uint8_t aad[8 + BULK_CHUNK_HEAD], nonce[AEAD_NONCE_BYTES];
    bytes_wr w = bytes_writer(b->frame, BULK_CHUNK_HEAD);
    b->final = abort_it || take == left;
    bytes_put_u64(&w, b->seq);
    bytes_put_u32(&w, (uint32_t)take);
    bytes_put_u32(&w, (abort_it ? 2u : b->final ? 1u : 0u) << 24);
    b->frame_off = 0;
    b->frame_len = BULK_CHUNK_HEAD + take + (b->ctx ? PKT_TAG : 0);
    b->counter++;
    const uint8_t *src = abort_it ? NULL : b->data + b->off;
    if (b->ctx) {
        be64_put(aad, b->counter);
        memcpy(aad + 8, b->frame, BULK_CHUNK_HEAD);
        aead_nonce(nonce, b->counter);
        aead_seal(b->ctx, nonce, aad, sizeof aad, src, take, b->frame + BULK_CHUNK_HEAD);
    } else if (take)
        memcpy(b->frame + BULK_CHUNK_HEAD, src, take);
    b->off += take;
}

size_t sgmp_node_bulk_read(sgmp_node *n, uint64_t id, uint8_t *buf, size_t cap, bool *last,
                           udt_time now)
{
    struct bulk *b = find(n, id);
    size_t done = 0;
    *last = false;
    n->now = now;
    if (!b || (b->state != SG_B_STREAM && b->state != SG_B_ABORT))
        return 0;
    while (done < cap) {
        if (b->frame_off == b->frame_len) {
            if (b->final)
                break;
            next_chunk(b);
        }
        size_t k = b->frame_len - b->frame_off;
        k = k < cap - done ? k : cap - done;
        memcpy(buf + done, b->frame + b->frame_off, k);
        b->frame_off += k;
        done += k;
    }
    if (b->a)
        b->a->last_rx = now; /* the stream flows: the peer lives */
    if (!b->final || b->frame_off < b->frame_len)
        return done;
    *last = true;
    if (b->state == SG_B_ABORT)
        bulk_free(n, b);
    else {
        close_stream(b);
        b->state = SG_B_SENT;
    }
    return done;
}

/* BULK_DONE: the receiver's word about the payload of `seq`. */
int sg_bulk_done_input(sgmp_node *n, struct assoc *a, const uint8_t *p, size_t len, udt_time now)
{
    static const int status[] = {0, UDT_E_DIGEST, UDT_E_CANCELLED, UDT_E_REFUSED};
    bytes_rd r = bytes_reader(p, len);
    uint64_t seq = bytes_u64(&r);
    uint16_t s = bytes_u16(&r);
    for (struct sg_link *l = a->x->bulk_out.next; !r.bad && l != &a->x->bulk_out; l = l->next) {
        struct bulk *b = sg_of(l, struct bulk, of);
        if (!b->msg || b->msg->seq != seq || seq == 0)
            continue;
        sg_settle(n, b->msg, s < 4 ? status[s] : UDT_E_REFUSED, now);
        break;
    }
    return SG_ACCEPT;
}

/* Whatever is left when the node goes: streams that were ending with an abort chunk. */
void sg_bulk_free_all(sgmp_node *n)
{
    for (size_t i = 0; i <= n->bulks.mask; i++)
        while (n->bulks.slot[i])
            bulk_free(n, sg_of(n->bulks.slot[i], struct bulk, by_id));
    sg_bulk_in_free_all(n);
    while (!sg_empty(&n->orders)) {
        struct order *o = sg_of(n->orders.next, struct order, q);
        sg_unlink(&o->q);
        free(o);
    }
}
