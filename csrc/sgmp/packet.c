#include "sgmp/packet.h"

int pkt_header_get(const uint8_t *p, size_t len, struct pkt_header *h)
{
    if (len < PKT_HEADER || p[0] != PKT_MAGIC)
        return PKT_E_FORMAT;
    h->type = p[1] & 15;
    h->flags = be16_get(p + 2);
    h->key_id = be32_get(p + 4);
    h->src = be64_get(p + 8);
    h->dst = be64_get(p + 16);
    h->pkt = be64_get(p + 24);
    h->channel = be16_get(p + 32);
    h->body_len = be16_get(p + 34);
    h->check = be32_get(p + 36);
    if (p[1] >> 4 != PKT_VERSION)
        return PKT_E_VERSION;
    if (h->type >= PKT_TYPES || (h->flags & ~PKT_FLAGS) || h->src == 0 || h->pkt == 0 ||
        h->pkt >> 62 || (h->key_id && h->check))
        return PKT_E_FORMAT;
    if ((h->dst == 0) != (h->type == PKT_T_HELLO))
        return PKT_E_FORMAT;
    if ((h->flags & PKT_F_PAD) && h->type != PKT_T_PING)
        return PKT_E_FORMAT;
    if (len != (size_t)PKT_HEADER + h->body_len + (h->key_id ? PKT_TAG : 0))
        return PKT_E_FORMAT;
    return 0;
}

void pkt_header_put(uint8_t p[PKT_HEADER], const struct pkt_header *h)
{
    p[0] = PKT_MAGIC;
    p[1] = (uint8_t)(PKT_VERSION << 4 | h->type);
    be16_put(p + 2, h->flags);
    be32_put(p + 4, h->key_id);
    be64_put(p + 8, h->src);
    be64_put(p + 16, h->dst);
    be64_put(p + 24, h->pkt);
    be16_put(p + 32, h->channel);
    be16_put(p + 34, h->body_len);
    be32_put(p + 36, h->check);
}

bool pkt_ack_get(bytes_rd *r, struct pkt_ack *a)
{
    a->cum = bytes_u64(r);
    a->echo_pkt = bytes_u64(r);
    a->echo_delay_us = bytes_u32(r);
    a->win_msgs = bytes_u16(r);
    a->n = bytes_u8(r);
    a->busy = bytes_u8(r) & 1;
    a->win_kib = bytes_u32(r);
    bytes_u32(r);
    if (r->bad || a->n > PKT_ACK_WORDS)
        return false;
    for (int i = 0; i < a->n; i++)
        a->words[i] = bytes_u64(r);
    return !r->bad;
}

void pkt_ack_put(bytes_wr *w, const struct pkt_ack *a)
{
    bytes_put_u64(w, a->cum);
    bytes_put_u64(w, a->echo_pkt);
    bytes_put_u32(w, a->echo_delay_us);
    bytes_put_u16(w, a->win_msgs);
    bytes_put_u8(w, a->n);
    bytes_put_u8(w, a->busy);
    bytes_put_u32(w, a->win_kib);
    bytes_put_u32(w, 0);
    for (int i = 0; i < a->n; i++)
        bytes_put_u64(w, a->words[i]);
}

void pkt_data_get(bytes_rd *r, struct pkt_data *d)
{
    d->seq = bytes_u64(r);
    d->low_delta = bytes_u16(r);
    d->attempt = bytes_u8(r);
    d->kind = bytes_u8(r);
    d->ttl_ms = bytes_u32(r);
}

void pkt_data_put(bytes_wr *w, const struct pkt_data *d)
{
    bytes_put_u64(w, d->seq);
    bytes_put_u16(w, d->low_delta);
    bytes_put_u8(w, d->attempt);
    bytes_put_u8(w, d->kind);
    bytes_put_u32(w, d->ttl_ms);
}

void pkt_hello_get(bytes_rd *r, struct pkt_hello *h)
{
    h->start_us = bytes_u64(r);
    h->nonce = bytes_u64(r);
    h->max_dgram = bytes_u16(r);
    h->features = bytes_u16(r);
    h->lifetime_ms = bytes_u32(r);
    const uint8_t *t = bytes_take(r, PKT_TOKEN);
    if (t)
        memcpy(h->token, t, PKT_TOKEN);
}

void pkt_hello_put(bytes_wr *w, const struct pkt_hello *h)
{
    bytes_put_u64(w, h->start_us);
    bytes_put_u64(w, h->nonce);
    bytes_put_u16(w, h->max_dgram);
    bytes_put_u16(w, h->features);
    bytes_put_u32(w, h->lifetime_ms);
    bytes_put(w, h->token, PKT_TOKEN);
}

void pkt_reset_get(bytes_rd *r, struct pkt_reset_body *b)
{
    b->reason = bytes_u16(r);
    bytes_u16(r);
    bytes_u32(r);
    b->echo_pkt = bytes_u64(r);
    b->echo_src = bytes_u64(r);
}

void pkt_reset_put(bytes_wr *w, const struct pkt_reset_body *b)
{
    bytes_put_u16(w, b->reason);
    bytes_put_u16(w, 0);
    bytes_put_u32(w, 0);
    bytes_put_u64(w, b->echo_pkt);
    bytes_put_u64(w, b->echo_src);
}

void pkt_refusal_get(bytes_rd *r, struct pkt_refusal *f)
{
    f->seq = bytes_u64(r);
    f->reason = bytes_u16(r);
    bytes_u16(r);
    f->arg = bytes_u32(r);
}

void pkt_refusal_put(bytes_wr *w, const struct pkt_refusal *f)
{
    bytes_put_u64(w, f->seq);
    bytes_put_u16(w, f->reason);
    bytes_put_u16(w, 0);
    bytes_put_u32(w, f->arg);
}

bool rpc_head_get(const uint8_t *p, size_t len, struct rpc_head *h)
{
    bytes_rd r = bytes_reader(p, len);
    h->op = bytes_u8(&r);
    h->flags = bytes_u8(&r);
    bytes_u16(&r);
    h->method = bytes_u32(&r);
    h->id = bytes_u64(&r);
    h->ms = bytes_u32(&r);
    h->status = (int32_t)bytes_u32(&r);
    return !r.bad && h->op >= RPC_REQUEST && h->op <= RPC_PROGRESS && h->id != 0;
}

void rpc_head_put(uint8_t p[RPC_HEAD], const struct rpc_head *h)
{
    bytes_wr w = bytes_writer(p, RPC_HEAD);
    bytes_put_u8(&w, h->op);
    bytes_put_u8(&w, h->flags);
    bytes_put_u16(&w, 0);
    bytes_put_u32(&w, h->method);
    bytes_put_u64(&w, h->id);
    bytes_put_u32(&w, h->ms);
    bytes_put_u32(&w, (uint32_t)h->status);
}

bool bulk_desc_get(const uint8_t *p, size_t len, struct bulk_desc *d)
{
    bytes_rd r = bytes_reader(p, len);
    d->len = bytes_u64(&r);
    d->crc = bytes_u32(&r);
    d->hash_alg = bytes_u8(&r);
    d->inner = bytes_u8(&r);
    size_t n = bytes_u16(&r);
    const uint8_t *hash = bytes_take(&r, n);
    if (r.bad || d->inner > PKT_K_RPC || d->hash_alg > 1 || n != (d->hash_alg ? 32 : 0))
        return false;
    if (n)
        memcpy(d->hash, hash, n);
    return true;
}

size_t bulk_desc_put(uint8_t p[BULK_DESC + 32], const struct bulk_desc *d)
{
    size_t n = d->hash_alg ? 32 : 0;
    bytes_wr w = bytes_writer(p, BULK_DESC + 32);
    bytes_put_u64(&w, d->len);
    bytes_put_u32(&w, d->crc);
    bytes_put_u8(&w, d->hash_alg);
    bytes_put_u8(&w, d->inner);
    bytes_put_u16(&w, (uint16_t)n);
    bytes_put(&w, d->hash, n);
    return BULK_DESC + n;
}
