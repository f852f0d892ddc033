#include "udt/sndbuf.h"

#include <stdlib.h>
#include <string.h>

#include "base/seq.h"

#define MIN_SLOTS 32
#define MAX_SLOTS (1 << 22)
#define SHORTER 16   /* bytes that a marked packet lacks */
#define SHORT_PKTS 8 /* short packets may be this many times more than full ones would be */

_Static_assert(sizeof(snd_slot) <= 72, "headers are small");

uint64_t udt_sndbuf_cost(const udt_sndbuf *b, uint64_t len)
{
    uint64_t pkts = len / b->payload + 1, per = UDT_BLOCK_ROOM / (b->payload + SND_HEAD);
    return (pkts / per + 2) * UDT_BLOCK_BYTES_ALL + (pkts / SND_HEADS + 2) * SND_HEADS_BYTES;
}

void udt_sndbuf_set_max(udt_sndbuf *b, uint64_t max_bytes)
{
    uint64_t pkts = max_bytes / b->payload + 1;
    b->max_bytes = max_bytes;
    pkts = pkts > MAX_SLOTS / SHORT_PKTS ? MAX_SLOTS : pkts * SHORT_PKTS;
    b->max_slots = pkts < MIN_SLOTS ? MIN_SLOTS : (int64_t)pkts;
}

bool udt_sndbuf_init(udt_sndbuf *b, udt_mem *mem, uint32_t payload, uint64_t max_bytes)
{
    *b = (udt_sndbuf){.mem = mem, .payload = payload, .fill = payload, .msgno = 1};
    udt_sndbuf_set_max(b, max_bytes);
    b->ring_size = 4;
    b->ring = calloc(b->ring_size, sizeof *b->ring);
    b->reserved = b->ring && udt_mem_charge(mem, UDT_SNDBUF_RESERVE);
    return b->reserved;
}

static void drop_block(udt_sndbuf *b, udt_block *k)
{
    udt_mem_block_free(b->mem, k);
    if (--b->blocks > 0)
        udt_mem_uncharge(b->mem, UDT_BLOCK_BYTES_ALL);
    if (k == b->block)
        b->block = NULL;
}

static void drop_piece(udt_sndbuf *b, int64_t piece)
{
    snd_slot **at = &b->ring[(uint32_t)piece & (b->ring_size - 1)];
    free(*at);
    *at = NULL;
    if (--b->pieces > 0)
        udt_mem_uncharge(b->mem, SND_HEADS_BYTES);
}

/* Takes the payload of a slot out of its block. */
static void drop_data(udt_sndbuf *b, const snd_slot *s)
{
    udt_block *k = udt_block_of(s->data);
    b->bytes -= s->len;
    if (--k->live == 0 && k != b->block)
        drop_block(b, k);
}

void udt_sndbuf_fini(udt_sndbuf *b)
{
    for (; b->head < b->tail; b->head++)
        drop_data(b, udt_sndbuf_slot(b, b->head));
    if (b->block)
        drop_block(b, b->block);
    for (uint32_t i = 0; b->ring && i < b->ring_size; i++)
        if (b->ring[i])
            drop_piece(b, i);
    if (b->reserved)
        udt_mem_uncharge(b->mem, UDT_SNDBUF_RESERVE);
    free(b->ring);
    *b = (udt_sndbuf){0};
}

static bool grow_ring(udt_sndbuf *b)
{
    uint32_t size = b->ring_size * 2;
    snd_slot **ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    for (int64_t c = b->head >> SND_HEADS_SHIFT; c <= (b->tail - 1) >> SND_HEADS_SHIFT; c++)
        ring[(uint32_t)c & (size - 1)] = b->ring[(uint32_t)c & (b->ring_size - 1)];
    free(b->ring);
    b->ring = ring;
    b->ring_size = size;
    return true;
}

/* The header of slot `tail`; NULL when slots, budget or memory are spent. */
static snd_slot *open_head(udt_sndbuf *b)
{
    if (b->tail - b->head >= b->max_slots)
        return NULL;
    int64_t c = b->tail >> SND_HEADS_SHIFT;
    if (b->tail > b->head && c - (b->head >> SND_HEADS_SHIFT) >= b->ring_size && !grow_ring(b))
        return NULL;
    snd_slot **at = &b->ring[(uint32_t)c & (b->ring_size - 1)];
    if (!*at) {
        if (b->pieces > 0 && !udt_mem_charge(b->mem, SND_HEADS_BYTES))
            return NULL;
        *at = malloc(SND_HEADS_BYTES);
        if (!*at) {
            if (b->pieces > 0)
                udt_mem_uncharge(b->mem, SND_HEADS_BYTES);
            return NULL;
        }
        b->pieces++;
    }
    return &(*at)[b->tail & (SND_HEADS - 1)];
}

/* A block with room for a whole packet, so that the last one may still be filled up. */
static bool open_block(udt_sndbuf *b)
{
    if (b->block && udt_block_left(b->block) >= SND_HEAD + b->payload)
        return true;
    if (b->block && b->block->live == 0) {
        b->block->used = 0;
        return true;
    }
    if (b->blocks > 0 && !udt_mem_charge(b->mem, UDT_BLOCK_BYTES_ALL))
        return false;
    udt_block *k = udt_mem_block(b->mem);
    if (!k) {
        if (b->blocks > 0)
            udt_mem_uncharge(b->mem, UDT_BLOCK_BYTES_ALL);
        return false;
    }
    b->blocks++;
    b->block = k;
    return true;
}

/* Append one packet; false when slots, budget or memory are spent. */
static bool put(udt_sndbuf *b, const uint8_t *src, size_t len, uint32_t word1, udt_time expire)
{
    snd_slot *s = open_head(b);
    if (!s)
        return false;
    if (!open_block(b)) {
        if ((b->tail & (SND_HEADS - 1)) == 0)
            drop_piece(b, b->tail >> SND_HEADS_SHIFT);
        return false;
    }
    *s = (snd_slot){.word1 = word1, .len = (uint16_t)len, .expire_us = expire};
    s->data = udt_block_take(b->block, SND_HEAD + len) + SND_HEAD;
    memcpy(s->data, src, len);
    b->bytes += len;
    b->tail++;
    return true;
}

/* Fill up the last packet, which lies at the end of the last block. */
static size_t top_up(udt_sndbuf *b, const uint8_t *src, size_t len)
{
    snd_slot *s = udt_sndbuf_slot(b, b->tail - 1);
    size_t room = s->len < b->fill ? b->fill - s->len : 0, n = len < room ? len : room;
    if (!b->block || s->data + s->len != b->block->data + b->block->used)
        return 0;
    if (n > udt_block_left(b->block))
        n = udt_block_left(b->block);
    memcpy(s->data + s->len, src, n);
    s->len = (uint16_t)(s->len + n);
    b->block->used += (uint32_t)n;
    b->bytes += n;
    return n;
}

size_t udt_sndbuf_write(udt_sndbuf *b, const uint8_t *src, size_t len, int64_t next)
{
    size_t done = 0, room = b->max_bytes > b->bytes ? (size_t)(b->max_bytes - b->bytes) : 0;
    if (len > room)
        len = room;
    if (b->tail > b->head && b->tail - 1 >= next && len > 0)
        done = top_up(b, src, len);
    uint32_t first = UDT_MSG_FIRST;
    bool opened = false;
    while (done < len) {
        size_t n = len - done < b->fill ? len - done : b->fill;
        if (b->mark_every && (b->tail + 1) % b->mark_every == 0 && n > SHORTER)
            n -= SHORTER;
        if (!put(b, src + done, n, first | b->msgno, UDT_NEVER))
            break;
        done += n;
        first = 0;
        opened = true;
    }
    if (opened) {
        udt_sndbuf_slot(b, b->tail - 1)->word1 |= UDT_MSG_LAST;
        b->msgno = msgno_next(b->msgno);
    }
    return done;
}

/* Give back what a refused message has taken. */
static void rewind_to(udt_sndbuf *b, int64_t tail)
{
    while (b->tail > tail) {
        const snd_slot *s = udt_sndbuf_slot(b, b->tail - 1);
        udt_block *k = udt_block_of(s->data);
        k->used = (uint32_t)(s->data - SND_HEAD - k->data);
        if (k != b->block && k->live > 1) {
            if (b->block && b->block->live == 0)
                drop_block(b, b->block);
            b->block = k; /* its other packets stay: it is the last one again */
        }
        drop_data(b, s);
        b->tail--;
        if ((b->tail & (SND_HEADS - 1)) == 0 || b->tail == b->head)
            drop_piece(b, b->tail >> SND_HEADS_SHIFT);
    }
    if (b->block && b->block->live == 0)
        drop_block(b, b->block);
}

bool udt_sndbuf_write_msg(udt_sndbuf *b, const uint8_t *src, size_t len, bool in_order,
                          udt_time expire_us)
{
    int64_t start = b->tail;
    uint32_t order = in_order ? UDT_MSG_ORDER : 0, first = UDT_MSG_FIRST;
    if (b->bytes > b->max_bytes || len > b->max_bytes - b->bytes)
        return false;
    for (size_t done = 0; done < len;) {
        size_t n = len - done < b->fill ? len - done : b->fill;
        uint32_t last = done + n == len ? UDT_MSG_LAST : 0;
        if (!put(b, src + done, n, first | last | order | b->msgno, expire_us)) {
            rewind_to(b, start);
            return false;
        }
        done += n;
        first = 0;
    }
    b->msgno = msgno_next(b->msgno);
    return true;
}

bool udt_sndbuf_split_tail(udt_sndbuf *b)
{
    enum { CUT = 16 };
    uint8_t cut[CUT];
    if (b->payload <= 2 * CUT)
        return false;
    snd_slot *s = udt_sndbuf_slot(b, b->tail - 1);
    if (!b->block || s->data + s->len != b->block->data + b->block->used)
        return false;
    uint32_t word1 = s->word1;
    memcpy(cut, s->data + s->len - CUT, CUT);
    b->block->used -= CUT;
    if (!put(b, cut, CUT, word1 & ~UDT_MSG_FIRST, s->expire_us)) {
        b->block->used += CUT;
        return false;
    }
    s->len = (uint16_t)(s->len - CUT);
    s->word1 &= ~UDT_MSG_LAST;
    b->bytes -= CUT;
    return true;
}

/* Headers for `extra` more packets; none without room for all. */
static bool open_heads(udt_sndbuf *b, int64_t extra)
{
    int64_t old = b->tail;
    for (; b->tail < old + extra; b->tail++)
        if (!open_head(b))
            break;
    if (b->tail == old + extra)
        return true;
    while (b->tail > old)
        if ((--b->tail & (SND_HEADS - 1)) == 0)
            drop_piece(b, b->tail >> SND_HEADS_SHIFT);
    return false;
}

bool udt_sndbuf_recut(udt_sndbuf *b, int64_t from)
{
    int64_t extra = 0, last = b->tail - 1;
    for (int64_t i = from; i <= last; i++)
        extra += (udt_sndbuf_slot(b, i)->len - 1) / b->fill;
    if (extra == 0 || !open_heads(b, extra))
        return extra == 0;
    int64_t to = b->tail;
    for (int64_t i = last; i >= from; i--) {
        const snd_slot s = *udt_sndbuf_slot(b, i);
        uint32_t n = (s.len - 1u) / b->fill + 1;
        udt_block_of(s.data)->live += n - 1;
        for (uint32_t k = n; k-- > 0;) {
            snd_slot *d = udt_sndbuf_slot(b, --to);
            *d = s;
            d->data = s.data + k * b->fill;
            d->flags |= k > 0 ? SND_BARE : 0;
            d->len = (uint16_t)(k == n - 1 ? s.len - k * b->fill : b->fill);
            d->word1 &= ~((k > 0 ? UDT_MSG_FIRST : 0) | (k < n - 1 ? UDT_MSG_LAST : 0));
        }
    }
    return true;
}

static uint8_t *front_of(const snd_slot *s)
{
    return s->data - (s->flags & SND_BARE ? 0 : SND_HEAD);
}

/* May `s` be joined with `next`, which lies right behind it? */
static bool joins(const udt_sndbuf *b, const snd_slot *s, const snd_slot *next)
{
    return s->data + s->len == front_of(next) &&
           udt_block_of(s->data) == udt_block_of(next->data) && s->expire_us == next->expire_us &&
           s->len < b->fill && ((s->word1 ^ next->word1) & (UDT_MSG_NO | UDT_MSG_ORDER)) == 0;
}

void udt_sndbuf_join(udt_sndbuf *b, int64_t from)
{
    int64_t to = from, old = b->tail;
    for (int64_t i = from + 1; i < old; i++) {
        snd_slot *s = udt_sndbuf_slot(b, to), next = *udt_sndbuf_slot(b, i);
        if (joins(b, s, &next)) {
            uint32_t n = b->fill - s->len < next.len ? b->fill - s->len : next.len;
            memmove(front_of(&next), next.data, n); /* the room moves behind them */
            s->len = (uint16_t)(s->len + n);
            next.data += n;
            next.len = (uint16_t)(next.len - n);
            if (next.len == 0) {
                s->word1 |= next.word1 & UDT_MSG_LAST;
                udt_block_of(s->data)->live--;
                continue;
            }
        }
        *udt_sndbuf_slot(b, ++to) = next;
    }
    while (from < old && b->tail > to + 1)
        if ((--b->tail & (SND_HEADS - 1)) == 0)
            drop_piece(b, b->tail >> SND_HEADS_SHIFT);
}

size_t udt_sndbuf_space(const udt_sndbuf *b, int64_t next)
{
    uint64_t room = b->max_bytes > b->bytes ? b->max_bytes - b->bytes : 0, rest = 0;
    uint64_t slots = (uint64_t)(b->max_slots - (b->tail - b->head)) * b->fill;
    uint64_t left = b->mem->limit - b->mem->used;
    uint64_t size = SND_HEAD + b->payload, per = UDT_BLOCK_ROOM / size;
    if (b->tail > b->head && b->tail - 1 >= next && udt_sndbuf_slot(b, b->tail - 1)->len < b->fill)
        rest = b->fill - udt_sndbuf_slot(b, b->tail - 1)->len;
    /* What the block at hand, the promised one and the rest of the budget can hold for certain. */
    uint64_t here = udt_block_left(b->block); /* filling up the last packet takes from it */
    uint64_t fits = (here > rest ? here - rest : 0) / size + (b->blocks ? 0 : per);
    left -= left < 2 * SND_HEADS_BYTES ? left : 2 * SND_HEADS_BYTES;
    fits += left / (UDT_BLOCK_BYTES_ALL + per * sizeof(snd_slot)) * per;
    fits *= b->fill;
    fits = (fits < slots ? fits : slots) + rest;
    return (size_t)(room < fits ? room : fits);
}

void udt_sndbuf_acked(udt_sndbuf *b, int64_t una)
{
    while (b->head < una) {
        const snd_slot *s = udt_sndbuf_slot(b, b->head);
        b->done_bytes += s->len;
        drop_data(b, s);
        b->head++;
        if ((b->head & (SND_HEADS - 1)) == 0)
            drop_piece(b, (b->head >> SND_HEADS_SHIFT) - 1);
    }
    if (b->head == b->tail && b->block)
        drop_block(b, b->block);
}
