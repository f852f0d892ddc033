#include "segment.h"

#include <string.h>

enum { TCP = 6, UDP = 17, FIN_PSH = 0x09, CWR = 0x80 };

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static void put16(uint8_t *p, size_t x)
{
    p[0] = (uint8_t)(x >> 8);
    p[1] = (uint8_t)x;
}

static uint64_t sum16(const uint8_t *p, size_t len)
{
    uint64_t sum = 0;
    for (; len > 1; p += 2, len -= 2)
        sum += get16(p);
    return len ? sum + ((uint32_t)p[0] << 8) : sum;
}

static uint32_t fold(uint64_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)sum;
}

bool wan_heads_of(wan_heads *h, const uint8_t *p, size_t len)
{
    uint8_t proto;
    *h = (wan_heads){0};
    if (len >= 20 && p[0] >> 4 == 4) {
        h->ip = (size_t)(p[0] & 15) * 4;
        proto = p[9];
        if (h->ip < 20 || get16(p + 6) & 0x3fff) /* a fragment */
            return false;
    } else if (len >= 40 && p[0] >> 4 == 6) {
        h->v6 = true;
        h->ip = 40;
        proto = p[6];
    } else {
        return false;
    }
    h->tcp = proto == TCP;
    size_t least = h->tcp ? 20 : 8;
    if ((!h->tcp && proto != UDP) || len < h->ip + least)
        return false;
    h->all = h->ip + (h->tcp ? (size_t)(p[h->ip + 12] >> 4) * 4 : 8);
    return h->all >= h->ip + least && h->all <= len;
}

static size_t sum_field(const wan_heads *h)
{
    return h->ip + (h->tcp ? 16 : 6);
}

/* Lengths and checksums of the headers for a packet of len bytes; the transport's checksum holds
 * the pseudo-header's sum alone, as for a card that finishes it. */
static void lengths(const wan_heads *h, uint8_t *p, size_t len)
{
    size_t inner = len - h->ip;
    uint64_t pseudo = (h->tcp ? TCP : UDP) + inner;
    if (h->v6) {
        put16(p + 4, inner);
        pseudo += sum16(p + 8, 32);
    } else {
        put16(p + 2, len);
        put16(p + 10, 0);
        put16(p + 10, ~fold(sum16(p, h->ip)) & 0xffff);
        pseudo += sum16(p + 12, 8);
    }
    if (!h->tcp)
        put16(p + h->ip + 4, inner);
    put16(p + sum_field(h), fold(pseudo));
}

size_t wan_cut_count(const wan_heads *h, size_t len, size_t each)
{
    size_t payload = len - h->all;
    return payload == 0 || each == 0 ? 1 : (payload + each - 1) / each;
}

size_t wan_cut(const wan_heads *h, const uint8_t *p, size_t len, size_t each, size_t i,
               uint8_t *out, wan_frame *f)
{
    size_t n = wan_cut_count(h, len, each), from = h->all + i * each;
    size_t payload = i + 1 == n ? len - from : each;
    memcpy(out, p, h->all);
    memcpy(out + h->all, p + from, payload);
    if (!h->v6)
        put16(out + 4, get16(p + 4) + i);
    if (h->tcp) {
        uint8_t *t = out + h->ip;
        uint32_t seq = (get16(t + 4) << 16 | get16(t + 6)) + (uint32_t)(i * each);
        put16(t + 4, seq >> 16);
        put16(t + 6, seq);
        if (i + 1 < n)
            t[13] = (uint8_t)(t[13] & ~FIN_PSH);
        if (i > 0)
            t[13] = (uint8_t)(t[13] & ~CWR);
    }
    lengths(h, out, h->all + payload);
    f->index = (uint16_t)i;
    f->sum_from = (uint16_t)h->ip;
    f->sum_at = (uint16_t)sum_field(h);
    return h->all + payload;
}

void wan_sum_finish(uint8_t *p, size_t len, wan_frame *f)
{
    if (f->sum_at == 0 || f->sum_at + 2u > len || f->sum_from > len)
        return;
    uint32_t sum = ~fold(sum16(p + f->sum_from, len - f->sum_from)) & 0xffff;
    put16(p + f->sum_at, sum ? sum : 0xffff); /* 0 would mean none to UDP */
    *f = (wan_frame){0};
}

bool wan_join_add(wan_join *j, const uint8_t *p, size_t len, const wan_frame *f)
{
    if (j->n == 0) {
        memcpy(j->data, p, len);
        j->len = len;
        j->n = 1;
        j->first = j->last = *f;
        j->full = f->origin && wan_heads_of(&j->heads, p, len);
        j->each = j->full ? len - j->heads.all : 0;
        return true;
    }
    if (!j->full || f->origin != j->last.origin || f->index != j->last.index + 1)
        return false;
    size_t payload = len - j->heads.all;
    if (payload > j->each || j->len + payload >= WAN_PIECE)
        return false;
    memcpy(j->data + j->len, p + j->heads.all, payload);
    if (j->heads.tcp) /* the last one's FIN and PSH */
        j->data[j->heads.ip + 13] |= (uint8_t)(p[j->heads.ip + 13] & FIN_PSH);
    j->len += payload;
    j->n++;
    j->last = *f;
    j->full = payload == j->each;
    return true;
}

void wan_join_finish(wan_join *j)
{
    if (j->n > 1)
        lengths(&j->heads, j->data, j->len);
}
