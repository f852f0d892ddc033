/* Over-size messages coming in: announced entries, streams, digest, BULK_DONE. Buffers grow with
 * the data that arrived, not with the length that was announced. */
#include "sgmp/bulk.h"

#include <stdlib.h>
#include <string.h>

enum { ST_PREFACE, ST_HEAD, ST_BODY };

struct entry {
    struct sg_link of; /* in active.bulk_in, oldest first */
    struct sg_timer timer;
    struct assoc *a;
    uint64_t seq;
    struct bulk_desc d;
    struct evt *e; /* the payload so far */
    size_t cap, got;
    sha256 *sha;
    uint32_t crc;
    udt_time used;
    uint16_t channel, status;
    bool done, done_queued;
    bool gone; /* gave way to newer ones: no payload is taken any more */
};

struct stream {
    struct sg_hnode by_id;
    struct sg_timer timer;
    struct assoc *a; /* NULL before the preface */
    aead *ctx;
    uint64_t counter;
    struct entry *entry;
    uint8_t *frame; /* head, then (from the first byte behind a genuine preface) room for a chunk */
    size_t have, need, room;
    struct order *end; /* kept for ABORT */
    int phase;
};

static void account(sgmp_node *n, struct entry *t, size_t cap)
{
    n->bulk_rcv_bytes += cap;
    n->bulk_rcv_bytes -= t->cap;
    t->cap = cap;
}

/* Forgets what arrived of the payload; a new stream starts from its beginning. */
static void drop_partial(sgmp_node *n, struct entry *t)
{
    account(n, t, 0);
    free(t->e);
    sha256_free(t->sha);
    t->e = NULL;
    t->sha = NULL;
    t->got = 0;
    t->crc = 0;
}

static void stream_free(sgmp_node *n, struct stream *s)
{
    if (s->a && s->a->x && s->a->x->in_stream == s)
        s->a->x->in_stream = NULL;
    if (s->entry && !s->entry->done)
        drop_partial(n, s->entry);
    sg_hdel(&n->streams, &s->by_id);
    sg_heap_unreserve(&n->heap, &s->timer);
    aead_free(s->ctx);
    free(s->end);
    free(s->frame);
    free(s);
}

/* The driver closes it too. */
static void stream_abort(sgmp_node *n, struct stream *s)
{
    sg_order(n, &s->end, SGMP_BULK_ABORT, s->by_id.key, NULL);
    stream_free(n, s);
}

static void entry_free(sgmp_node *n, struct entry *t)
{
    struct stream *s = t->a->x->in_stream;
    if (s && s->entry == t)
        s->entry = NULL;
    drop_partial(n, t);
    sg_unlink(&t->of);
    if (t->gone)
        t->a->x->bulk_gone_n--;
    else
        t->a->x->bulk_in_n--;
    sg_heap_unreserve(&n->heap, &t->timer);
    free(t);
}

static struct entry *find(struct assoc *a, uint64_t seq)
{
    for (struct sg_link *l = a->x->bulk_in.next; l != &a->x->bulk_in; l = l->next)
        if (sg_of(l, struct entry, of)->seq == seq)
            return sg_of(l, struct entry, of);
    return NULL;
}

bool sg_bulk_known(struct assoc *a, uint64_t seq)
{
    return find(a, seq) != NULL;
}

/* The oldest announcement whose payload never came makes room for a new one. Its number stays
 * known, so that it cannot be taken for a message that came whole (sg_bulk_whole). */
static bool room_for_entry(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    if (x->bulk_in_n < SG_BULK_ENTRIES)
        return true;
    for (struct sg_link *l = x->bulk_in.next; l != &x->bulk_in; l = l->next) {
        struct entry *t = sg_of(l, struct entry, of);
        if (t->done || t->gone || now - t->used <= SEC(30) || x->bulk_gone_n >= SG_BULK_GONE)
            continue;
        drop_partial(n, t);
        t->gone = t->done = true;
        t->status = 3;
        x->bulk_in_n--;
        x->bulk_gone_n++;
        return true;
    }
    return false;
}

int sg_bulk_desc_input(sgmp_node *n, struct assoc *a, uint16_t channel, uint64_t seq,
                       const uint8_t *p, size_t len, udt_time now)
{
    struct bulk_desc d;
    if (!bulk_desc_get(p, len, &d))
        return REFUSE_DENIED;
    if (d.len > SG_BULK_MAX)
        return REFUSE_SIZE;
    if (n->bulk_rcv_bytes + d.len > SG_BULK_TOTAL || !room_for_entry(n, a, now))
        return SG_NO_ROOM;
    struct entry *t = calloc(1, sizeof *t);
    if (!t || !sg_heap_reserve(&n->heap)) {
        free(t);
        return SG_NO_ROOM;
    }
    t->timer.kind = SG_TM_IN;
    t->a = a;
    t->seq = seq;
    t->d = d;
    t->channel = channel;
    t->used = now;
    sg_push(&a->x->bulk_in, &t->of);
    a->x->bulk_in_n++;
    sg_heap_set(&n->heap, &t->timer, now + SG_T_MSG + SEC(60));
    return SG_ACCEPT;
}

static bool post_done(sgmp_node *n, struct assoc *a, uint64_t seq, unsigned status,
                      uint16_t channel, udt_time now)
{
    uint8_t body[BULK_DONE] = {0};
    be64_put(body, seq);
    be16_put(body + 8, (uint16_t)status);
    struct sg_post p = {.head = body,
                        .head_len = sizeof body,
                        .channel = channel,
                        .kind = PKT_K_BULK_DONE,
                        .until = now + SG_T_MSG,
                        .reserved = true};
    bool ok = sg_post(n, a, &p, NULL, now) == 0;
    sg_assoc_kick(n, a, now);
    return ok;
}

static void send_done(sgmp_node *n, struct entry *t, udt_time now)
{
    if (!t->done_queued)
        t->done_queued = post_done(n, t->a, t->seq, t->status, t->channel, now);
}

/* The descriptor of a message that came whole as one datagram, before its sender found that the
 * path carries such datagrams no more. */
void sg_bulk_whole(sgmp_node *n, struct assoc *a, uint64_t seq, uint16_t channel, udt_time now)
{
    (void)post_done(n, a, seq, 0, channel, now);
}

/* The BULK_DONE of `seq` was acknowledged or given up: the entry has served. */
void sg_bulk_done_settled(sgmp_node *n, struct assoc *a, uint64_t seq, bool delivered)
{
    struct entry *t = a->x ? find(a, seq) : NULL;
    (void)delivered;
    if (t && t->gone)
        t->done_queued = false; /* told once more if it is asked again */
    else if (t)
        entry_free(n, t);
}

static void finish(sgmp_node *n, struct entry *t, int status, udt_time now)
{
    drop_partial(n, t);
    t->done = true;
    t->status = (uint16_t)status;
    send_done(n, t, now);
}

static bool digest_ok(struct entry *t)
{
    uint8_t hash[SHA256_BYTES];
    if (t->got != t->d.len || t->crc != t->d.crc)
        return false;
    if (!t->d.hash_alg)
        return true;
    if (!t->sha)
        return false;
    sha256_final(t->sha, hash);
    t->sha = NULL;
    return secure_eq(hash, t->d.hash, sizeof hash);
}

static void deliver(sgmp_node *n, struct entry *t, udt_time now)
{
    struct evt *e = t->e;
    size_t cap = t->cap;
    int verdict = SG_ACCEPT;
    if (!digest_ok(t)) {
        finish(n, t, 1, now);
        return;
    }
    account(n, t, 0);
    t->e = NULL;
    e->ev.len = (uint32_t)t->got;
    e->ev.channel = t->channel;
    sg_rcv_charge(n, e, SG_C_BULK, cap);
    if (t->d.inner == PKT_K_RPC) {
        verdict = sg_rpc_input(n, t->a, t->channel, false, e, e->data, t->got, now);
        if (verdict == SG_NO_ROOM)
            sg_event_drop(n, e);
    } else {
        sg_event_push(n, e);
        n->st.messages_in++;
    }
    finish(n, t, verdict == SG_ACCEPT ? 0 : 3, now);
}

static bool grow(sgmp_node *n, struct entry *t, size_t need)
{
    size_t cap = t->cap ? t->cap : 1;
    if (t->e && need <= t->cap)
        return true;
    while (cap < need)
        cap = cap < 65536 ? 65536 : cap * 2;
    cap = cap < t->d.len ? cap : (size_t)t->d.len;
    if (n->bulk_rcv_bytes + cap - t->cap > SG_BULK_TOTAL)
        return false;
    if (!t->e && !(t->e = sg_event_new(n, t->a, SGMP_EV_MESSAGE, 0)))
        return false;
    struct evt *e = realloc(t->e, sizeof *e + cap);
    if (!e)
        return false;
    sg_link_init(&e->q);
    e->room = (uint32_t)(sizeof *e + cap);
    t->e = e;
    account(n, t, cap);
    return true;
}

static int take_chunk(sgmp_node *n, struct stream *s, const uint8_t *data, size_t len, uint64_t seq,
                      unsigned flags, udt_time now)
{
    struct entry *t = s->entry && s->entry->seq == seq ? s->entry : find(s->a, seq);
    if (!t && sg_seq_settled(s->a, seq)) { /* came whole; see sg_bulk_whole */
        if (flags & BULK_F_LAST)
            sg_bulk_whole(n, s->a, seq, 0, now);
        return 0;
    }
    if (!t)
        return UDT_E_PROTO; /* never announced */
    if (s->entry && s->entry != t && !s->entry->done)
        drop_partial(n, s->entry);
    if (s->entry != t && !t->done)
        drop_partial(n, t);
    s->entry = t;
    t->used = now;
    if (t->done) {
        if (flags & BULK_F_LAST)
            send_done(n, t, now);
        return 0;
    }
    if (flags & BULK_F_ABORT) {
        finish(n, t, 2, now);
        return 0;
    }
    if (t->got + len > t->d.len)
        return UDT_E_PROTO;
    /* No room: the stream ends, and what it brought is forgotten. Its sender begins again until its
     * deadline; it learns as early as possible that there is no room for all of it. */
    if ((t->got == 0 && n->bulk_rcv_bytes + t->d.len > SG_BULK_TOTAL) || !grow(n, t, t->got + len))
        return UDT_E_NOMEM;
    if (t->d.hash_alg && t->got == 0 && !t->sha)
        t->sha = sha256_new();
    if (len)
        memcpy(t->e->data + t->got, data, len);
    t->got += len;
    t->crc = udt_crc32c(t->crc, data, len);
    if (t->sha)
        sha256_update(t->sha, data, len);
    if (flags & BULK_F_LAST)
        deliver(n, t, now);
    return 0;
}

static int take_preface(sgmp_node *n, struct stream *s, udt_time now)
{
    uint8_t nonce[AEAD_NONCE_BYTES], none[1];
    bytes_rd r = bytes_reader(s->frame, BULK_PREFACE);
    const uint8_t *magic = bytes_take(&r, 8);
    uint32_t key_id = bytes_u32(&r);
    bytes_u32(&r);
    uint64_t src = bytes_u64(&r), dst = bytes_u64(&r), conn_no = bytes_u64(&r);
    if (memcmp(magic, "GMPB\1", 5) != 0)
        return UDT_E_PROTO;
    struct key *key = key_id ? keys_find(&n->keys, key_id) : NULL;
    if (dst != n->instance || src == dst || (key_id ? !key : n->cfg.require_auth))
        return UDT_E_AUTH;
    struct assoc *a = sg_assoc_find(n, src, key ? key->who : NULL);
    if (!a || a->closed || conn_no <= a->conn_no)
        return UDT_E_AUTH;
    if (key) {
        s->ctx = key_derive(key, 'b', src, dst, conn_no);
        aead_nonce(nonce, 0);
        if (!s->ctx || !aead_open(s->ctx, nonce, s->frame, 40, s->frame + 40, PKT_TAG, none)) {
            n->st.bad_tag++;
            return UDT_E_AUTH;
        }
    }
    if (!sg_assoc_wake(a, now))
        return UDT_E_NOMEM;
    a->conn_no = conn_no;
    if (a->x->in_stream) { /* one connection at a time: the newer counts */
        stream_abort(n, a->x->in_stream);
    }
    s->a = a;
    a->x->in_stream = s;
    sg_assoc_heard(n, a, now);
    return 0;
}

/* A complete piece lies in the frame; sets what comes next. */
static int advance(sgmp_node *n, struct stream *s, udt_time now)
{
    uint8_t aad[8 + BULK_CHUNK_HEAD], nonce[AEAD_NONCE_BYTES];
    size_t tag = s->ctx ? PKT_TAG : 0, len;
    int err;
    if (s->phase == ST_PREFACE) {
        err = take_preface(n, s, now);
        s->phase = ST_HEAD;
        s->need = BULK_CHUNK_HEAD;
        s->have = 0;
        return err;
    }
    len = be32_get(s->frame + 8);
    if (s->phase == ST_HEAD) {
        if (len > SG_BULK_CHUNK)
            return UDT_E_PROTO;
        s->phase = ST_BODY;
        s->need = BULK_CHUNK_HEAD + len + tag;
        if (s->need > s->room) { /* only now: the preface proved genuine */
            uint8_t *frame = realloc(s->frame, s->need);
            if (!frame)
                return UDT_E_NOMEM;
            s->frame = frame;
            s->room = s->need;
        }
        if (s->need > BULK_CHUNK_HEAD)
            return 0;
    }
    s->counter++;
    uint8_t *body = s->frame + BULK_CHUNK_HEAD;
    if (s->ctx) {
        be64_put(aad, s->counter);
        memcpy(aad + 8, s->frame, BULK_CHUNK_HEAD);
        aead_nonce(nonce, s->counter);
        if (!aead_open(s->ctx, nonce, aad, sizeof aad, body, len + tag, body)) {
            n->st.bad_tag++;
            return UDT_E_AUTH;
        }
    }
    if (!s->a->x)
        return UDT_E_STATE;
    sg_assoc_heard(n, s->a, now);
    bool last = s->frame[12] & (BULK_F_LAST | BULK_F_ABORT);
    err = take_chunk(n, s, body, len, be64_get(s->frame), s->frame[12], now);
    if (last && s->room > SG_BULK_CHUNK / 4) { /* it may be quiet for long now */
        uint8_t *frame = realloc(s->frame, BULK_PREFACE);
        s->room = frame ? BULK_PREFACE : s->room;
        s->frame = frame ? frame : s->frame;
    }
    s->phase = ST_HEAD;
    s->need = BULK_CHUNK_HEAD;
    s->have = 0;
    return err;
}

int64_t sgmp_node_bulk_accept(sgmp_node *n, const udt_addr *from, udt_time now)
{
    (void)from; /* who it is, the preface proves */
    n->now = now;
    if (n->streams.count >= SG_STREAMS)
        return UDT_E_LIMIT;
    struct stream *s = calloc(1, sizeof *s);
    if (!s || !(s->frame = malloc(BULK_PREFACE)) || !(s->end = calloc(1, sizeof *s->end)) ||
        !sg_heap_reserve(&n->heap)) {
        if (s) {
            free(s->end);
            free(s->frame);
        }
        free(s);
        return UDT_E_NOMEM;
    }
    s->timer.kind = SG_TM_STREAM;
    s->phase = ST_PREFACE;
    s->need = s->room = BULK_PREFACE;
    sg_hadd(&n->streams, &s->by_id, ++n->next_bulk);
    sg_heap_set(&n->heap, &s->timer, now + SEC(10));
    return (int64_t)s->by_id.key;
}

static struct stream *stream_of(sgmp_node *n, int64_t in_id)
{
    struct sg_hnode *h = in_id > 0 ? sg_hget(&n->streams, (uint64_t)in_id) : NULL;
    return h ? sg_of(h, struct stream, by_id) : NULL;
}

int sgmp_node_bulk_write(sgmp_node *n, int64_t in_id, const uint8_t *buf, size_t len, udt_time now)
{
    struct stream *s = stream_of(n, in_id);
    int err = s ? 0 : UDT_E_NOSOCK;
    n->now = now;
    while (err == 0 && len > 0) {
        size_t k = s->need - s->have < len ? s->need - s->have : len;
        memcpy(s->frame + s->have, buf, k);
        s->have += k;
        buf += k;
        len -= k;
        if (s->have < s->need)
            break;
        err = advance(n, s, now);
    }
    if (err && s)
        stream_free(n, s);
    else if (s && s->a) /* the preface has its time once, however it comes */
        sg_heap_set(&n->heap, &s->timer, now + SG_T_STREAM_IN);
    return err;
}

bool sgmp_node_bulk_proved(sgmp_node *n, int64_t in_id)
{
    struct stream *s = stream_of(n, in_id);
    return s && s->a;
}

void sgmp_node_bulk_gone(sgmp_node *n, int64_t in_id, udt_time now)
{
    struct stream *s = stream_of(n, in_id);
    n->now = now;
    if (!s)
        return;
    struct assoc *a = s->a;
    stream_free(n, s);
    if (a)
        sg_assoc_kick(n, a, now);
}

void sg_bulk_in_timer(sgmp_node *n, struct sg_timer *t, udt_time now)
{
    if (t->kind == SG_TM_STREAM) { /* silent too long */
        struct stream *s = sg_of(t, struct stream, timer);
        stream_abort(n, s);
        return;
    }
    struct entry *e = sg_of(t, struct entry, timer);
    struct assoc *a = e->a;
    entry_free(n, e);
    sg_assoc_kick(n, a, now);
}

/* The association closes: partial payloads go, the driver closes the stream. */
void sg_bulk_in_drop(sgmp_node *n, struct assoc *a)
{
    struct stream *s = a->x->in_stream;
    if (s)
        stream_abort(n, s);
    while (!sg_empty(&a->x->bulk_in))
        entry_free(n, sg_of(a->x->bulk_in.next, struct entry, of));
}

void sg_bulk_in_free_all(sgmp_node *n)
{
    for (size_t i = 0; i <= n->streams.mask; i++)
        while (n->streams.slot[i])
            stream_free(n, sg_of(n->streams.slot[i], struct stream, by_id));
}
