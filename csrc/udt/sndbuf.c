#include "udt/sndbuf.h"

#include <stdlib.h>
#include <string.h>

#include "base/seq.h"
#include "udt/packet.h"

#define MIN_SLOTS 32

static uint32_t shift_for(uint32_t payload)
{
    uint32_t shift = 0;
    while (((size_t)2 << shift) * (payload + sizeof(snd_slot)) <= UDT_CHUNK_TARGET && shift < 9)
        shift++;
    return shift;
}

size_t udt_sndbuf_chunk_size(uint32_t payload)
{
    size_t size = ((size_t)1 << shift_for(payload)) * (payload + sizeof(snd_slot));
    return (size + 15) & ~(size_t)15;
}

bool udt_sndbuf_init(udt_sndbuf *b, udt_mem *mem, uint32_t payload, uint64_t max_bytes)
{
    *b = (udt_sndbuf){.mem = mem, .payload = payload, .max_bytes = max_bytes, .msgno = 1};
    b->shift = shift_for(payload);
    b->chunk_size = udt_sndbuf_chunk_size(payload);
    b->max_slots = (int64_t)(max_bytes / payload) + 1;
    if (b->max_slots < MIN_SLOTS)
        b->max_slots = MIN_SLOTS;
    b->ring_size = 4;
    b->ring = calloc(b->ring_size, sizeof *b->ring);
    b->reserved = b->ring && udt_mem_charge(mem, b->chunk_size);
    return b->reserved;
}

void udt_sndbuf_fini(udt_sndbuf *b)
{
    for (uint32_t i = 0; b->ring && i < b->ring_size; i++)
        udt_mem_chunk_free(b->mem, b->ring[i], b->chunk_size);
    if (b->chunks > 1)
        udt_mem_uncharge(b->mem, (b->chunks - 1) * b->chunk_size);
    if (b->reserved)
        udt_mem_uncharge(b->mem, b->chunk_size);
    free(b->ring);
    *b = (udt_sndbuf){0};
}

static bool grow_ring(udt_sndbuf *b)
{
    uint32_t size = b->ring_size * 2;
    uint8_t **ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    for (int64_t c = b->head >> b->shift; c <= (b->tail - 1) >> b->shift; c++)
        ring[(uint32_t)c & (size - 1)] = b->ring[(uint32_t)c & (b->ring_size - 1)];
    free(b->ring);
    b->ring = ring;
    b->ring_size = size;
    return true;
}

/* Make slot `tail` usable; false when slots, budget or memory are spent. */
static bool open_slot(udt_sndbuf *b)
{
    if (b->tail - b->head >= b->max_slots)
        return false;
    int64_t c = b->tail >> b->shift;
    if (b->tail > b->head && c - (b->head >> b->shift) >= b->ring_size && !grow_ring(b))
        return false;
    uint8_t **at = &b->ring[(uint32_t)c & (b->ring_size - 1)];
    if (*at)
        return true;
    if (b->chunks > 0 && !udt_mem_charge(b->mem, b->chunk_size))
        return false;
    *at = udt_mem_chunk(b->mem, b->chunk_size);
    if (!*at) {
        if (b->chunks > 0)
            udt_mem_uncharge(b->mem, b->chunk_size);
        return false;
    }
    b->chunks++;
    return true;
}

/* Append one packet to the opened slot. */
static void put(udt_sndbuf *b, const uint8_t *src, size_t len, uint32_t word1, udt_time expire)
{
    snd_slot *s = udt_sndbuf_slot(b, b->tail);
    *s = (snd_slot){.word1 = word1, .len = (uint16_t)len, .expire_us = expire};
    memcpy(udt_sndbuf_data(b, b->tail), src, len);
    b->bytes += len;
    b->tail++;
}

size_t udt_sndbuf_write(udt_sndbuf *b, const uint8_t *src, size_t len, int64_t next)
{
    size_t done = 0;
    if (len > b->max_bytes - b->bytes)
        len = b->max_bytes - b->bytes;
    if (b->tail > b->head && b->tail - 1 >= next) {
        snd_slot *s = udt_sndbuf_slot(b, b->tail - 1);
        size_t room = b->payload - s->len;
        done = len < room ? len : room;
        memcpy(udt_sndbuf_data(b, b->tail - 1) + s->len, src, done);
        s->len = (uint16_t)(s->len + done);
        b->bytes += done;
    }
    uint32_t first = UDT_MSG_FIRST;
    bool opened = false;
    while (done < len && open_slot(b)) {
        size_t n = len - done < b->payload ? len - done : b->payload;
        put(b, src + done, n, first | b->msgno, UDT_NEVER);
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
        b->tail--;
        b->bytes -= udt_sndbuf_slot(b, b->tail)->len;
    }
    int64_t keep = b->tail > b->head ? (b->tail - 1) >> b->shift : (b->head >> b->shift) - 1;
    for (uint32_t i = 0; i < b->ring_size; i++) {
        int64_t c = keep + 1 + i;
        uint8_t **at = &b->ring[(uint32_t)c & (b->ring_size - 1)];
        if (c - (b->head >> b->shift) >= b->ring_size)
            break;
        if (*at) {
            udt_mem_chunk_free(b->mem, *at, b->chunk_size);
            *at = NULL;
            if (--b->chunks > 0)
                udt_mem_uncharge(b->mem, b->chunk_size);
        }
    }
}

bool udt_sndbuf_write_msg(udt_sndbuf *b, const uint8_t *src, size_t len, bool in_order,
                          udt_time expire_us)
{
    int64_t start = b->tail;
    uint32_t order = in_order ? UDT_MSG_ORDER : 0, first = UDT_MSG_FIRST;
    if (len > b->max_bytes - b->bytes)
        return false;
    for (size_t done = 0; done < len;) {
        size_t n = len - done < b->payload ? len - done : b->payload;
        if (!open_slot(b)) {
            rewind_to(b, start);
            return false;
        }
        uint32_t last = done + n == len ? UDT_MSG_LAST : 0;
        put(b, src + done, n, first | last | order | b->msgno, expire_us);
        done += n;
        first = 0;
    }
    b->msgno = msgno_next(b->msgno);
    return true;
}

bool udt_sndbuf_split_tail(udt_sndbuf *b)
{
    enum { CUT = 16 };
    if (b->payload <= 2 * CUT || !open_slot(b))
        return false;
    snd_slot *s = udt_sndbuf_slot(b, b->tail - 1);
    uint32_t word1 = s->word1;
    s->len = (uint16_t)(s->len - CUT);
    s->word1 &= ~UDT_MSG_LAST;
    b->bytes -= CUT;
    put(b, udt_sndbuf_data(b, b->tail - 1) + s->len, CUT, word1 & ~UDT_MSG_FIRST, s->expire_us);
    return true;
}

size_t udt_sndbuf_space(const udt_sndbuf *b, int64_t next)
{
    uint64_t room = b->max_bytes - b->bytes;
    uint64_t slots = (uint64_t)(b->max_slots - (b->tail - b->head)) * b->payload, rest = 0;
    if (b->tail > b->head && b->tail - 1 >= next)
        rest = b->payload - udt_sndbuf_slot(b, b->tail - 1)->len;
    /* What the chunks at hand and the rest of the budget can hold. */
    int64_t used = b->chunks ? b->tail - (b->head >> b->shift << b->shift) : 0;
    uint64_t spare = (b->mem->limit - b->mem->used) / b->chunk_size + (b->chunks ? 0 : 1);
    uint64_t held = ((uint64_t)b->chunks + spare) << b->shift;
    uint64_t fits = held > (uint64_t)used ? (held - (uint64_t)used) * b->payload : 0;
    fits = (fits < slots ? fits : slots) + rest;
    return (size_t)(room < fits ? room : fits);
}

void udt_sndbuf_acked(udt_sndbuf *b, int64_t una)
{
    while (b->head < una) {
        int64_t c = b->head >> b->shift, end = (c + 1) << b->shift;
        if (end > una)
            end = una;
        for (; b->head < end; b->head++)
            b->bytes -= udt_sndbuf_slot(b, b->head)->len;
        if (b->head >> b->shift == c)
            return; /* the chunk is still in use, or will be filled */
        uint8_t **at = &b->ring[(uint32_t)c & (b->ring_size - 1)];
        udt_mem_chunk_free(b->mem, *at, b->chunk_size);
        *at = NULL;
        if (--b->chunks > 0)
            udt_mem_uncharge(b->mem, b->chunk_size);
    }
}
