/* Over-size messages going out (spec/gmp.md section 8): a descriptor as an ordinary message, the
 * payload over the peer's stream (bulk_out.c), BULK_DONE as the outcome. */
#include "sgmp/bulk.h"

#include <stdlib.h>
#include <string.h>

/* Streams have work while a message waits for one, or is being written. */
void sg_bulk_state(sgmp_node *n, struct bulk *b, int state)
{
    n->bulk_work -= b->state == SG_B_WAIT || b->state == SG_B_PART;
    n->bulk_work += state == SG_B_WAIT || state == SG_B_PART;
    b->state = (uint8_t)state;
}

void sg_bulk_copy(const struct bulk *b, size_t off, uint8_t *out, size_t len)
{
    if (off < b->head_len) {
        size_t k = b->head_len - off < len ? b->head_len - off : len;
        memcpy(out, b->head + off, k);
        out += k;
        off += k;
        len -= k;
    }
    if (len)
        memcpy(out, b->body->data + (off - b->head_len), len);
}

struct bulk *sg_bulk_next(struct assoc *a)
{
    for (struct sg_link *l = a->x->bulk_out.next; l != &a->x->bulk_out; l = l->next)
        if (sg_of(l, struct bulk, of)->state == SG_B_WAIT)
            return sg_of(l, struct bulk, of);
    return NULL;
}

static void bulk_free(sgmp_node *n, struct bulk *b)
{
    sg_bulk_state(n, b, SG_B_DESC);
    sg_unlink(&b->of);
    b->a->x->bulk_out_n--;
    sg_share_unref(b->body);
    free(b);
}

static bool describe(const struct assoc *a, const struct bulk *b, uint8_t out[BULK_DESC + 32],
                     size_t *out_len)
{
    struct bulk_desc d = {.len = b->len, .inner = b->inner};
    d.crc = udt_crc32c(udt_crc32c(0, b->head, b->head_len), b->body->data, b->body->len);
    if (!a->who) { /* no tag protects the chunks: a strong digest does */
        sha256 *h = sha256_new();
        if (!h)
            return false;
        d.hash_alg = 1;
        if (b->head_len)
            sha256_update(h, b->head, b->head_len);
        sha256_update(h, b->body->data, b->body->len);
        sha256_final(h, d.hash);
    }
    *out_len = bulk_desc_put(out, &d);
    return true;
}

/* Takes over the reference to `body`. */
static struct bulk *bulk_new(struct assoc *a, const uint8_t *head, size_t head_len,
                             struct share *body, int inner)
{
    struct bulk *b = body ? calloc(1, sizeof *b) : NULL;
    if (!b) {
        sg_share_unref(body);
        return NULL;
    }
    b->a = a;
    b->body = body;
    b->len = head_len + body->len;
    b->head_len = (uint32_t)head_len;
    b->inner = (uint8_t)inner;
    if (head_len)
        memcpy(b->head, head, head_len);
    sg_push(&a->x->bulk_out, &b->of);
    a->x->bulk_out_n++;
    return b;
}

int sg_bulk_send(sgmp_node *n, struct assoc *a, const struct sg_post *p, struct msg **out,
                 udt_time now)
{
    size_t len = p->head_len + p->body_len, desc_len = 0;
    uint8_t desc[BULK_DESC + 32];
    struct msg *m = NULL;
    if (len > SG_BULK_MAX || (p->flags & PKT_F_CONTROL))
        return UDT_E_TOOBIG;
    if (a->x->bulk_out_n >= SG_BULK_ENTRIES ||
        (!p->share && n->bulk_snd_bytes + len > SG_BULK_TOTAL))
        return sg_want_room(n, a, SG_WANT_BULK);
    struct share *body =
        p->share ? sg_share_ref(p->share) : sg_share_new(p->body, p->body_len, &n->bulk_snd_bytes);
    struct bulk *b = bulk_new(a, p->head, p->head_len, body, p->kind);
    if (!b)
        return UDT_E_NOMEM;
    struct sg_post d = *p;
    d.kind = PKT_K_BULK;
    d.head = desc;
    d.body_len = 0;
    d.share = NULL;
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

/* A message of one datagram that the path does not carry any more becomes the descriptor of an
 * over-size one, with the same number: if it did arrive, the receiver says so (sg_bulk_whole). */
bool sg_bulk_convert(sgmp_node *n, struct msg *m, udt_time now)
{
    struct active *x = m->a->x;
    size_t head = m->kind == PKT_K_RPC ? RPC_HEAD : 0, len;
    uint8_t desc[BULK_DESC + 32];
    (void)now;
    struct share *body = m->share ? sg_share_ref(m->share)
                                  : sg_share_new(m->data + head, m->own - head, &n->bulk_snd_bytes);
    struct bulk *b = bulk_new(m->a, m->data, head, body, m->kind);
    if (!b)
        return false;
    if (!describe(m->a, b, desc, &len)) {
        bulk_free(n, b);
        return false;
    }
    uint32_t less = m->len - (uint32_t)len;
    x->q_bytes -= less;
    n->snd_bytes -= less;
    if (m->seq)
        x->tx_bytes -= less;
    sg_share_unref(m->share);
    m->share = NULL;
    memcpy(m->data, desc, len);
    m->own = m->len = (uint32_t)len;
    m->kind = PKT_K_BULK;
    m->tries = 0;
    m->bulk = b;
    b->msg = m;
    if (m->where == SG_W_FLIGHT)
        sg_requeue(m, false);
    return true;
}

/* The receiver has the descriptor: it leaves the window, the payload may go. */
void sg_bulk_acked(sgmp_node *n, struct msg *m, udt_time now)
{
    sg_msg_leave(n, m);
    sg_bulk_state(n, m->bulk, SG_B_WAIT);
    sg_out_pump(n, m->a, now);
}

/* The message has its outcome. */
void sg_bulk_end(sgmp_node *n, struct bulk *b)
{
    struct assoc *a = b->a;
    sg_out_leave(n, b, true);
    bulk_free(n, b);
    if (a->x)
        sg_out_pump(n, a, n->now);
}

/* The peer restarted: begin anew with another association. */
void sg_bulk_move(sgmp_node *n, struct msg *m, struct assoc *to)
{
    struct bulk *b = m->bulk;
    if (!b)
        return;
    sg_out_leave(n, b, false);
    sg_bulk_state(n, b, SG_B_DESC);
    b->a->x->bulk_out_n--;
    b->a = to;
    sg_unlink(&b->of);
    sg_push(&to->x->bulk_out, &b->of);
    to->x->bulk_out_n++;
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
        if (b->msg->seq != seq || seq == 0)
            continue;
        sg_settle(n, b->msg, s < 4 ? status[s] : UDT_E_REFUSED, now);
        break;
    }
    return SG_ACCEPT;
}

/* Whatever is left when the node goes. */
void sg_bulk_free_all(sgmp_node *n)
{
    sg_out_free_all(n);
    sg_bulk_in_free_all(n);
    while (!sg_empty(&n->orders)) {
        struct order *o = sg_of(n->orders.next, struct order, q);
        sg_unlink(&o->q);
        free(o);
    }
}
