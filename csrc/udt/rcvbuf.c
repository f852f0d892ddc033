#include "udt/rcvbuf.h"

#include <stdlib.h>
#include <string.h>

#include "udt/packet.h"

static uint32_t shift_for(uint32_t unit)
{
    uint32_t shift = 0;
    while (((size_t)2 << shift) * (unit + sizeof(rcv_slot)) <= UDT_CHUNK_TARGET && shift < 9)
        shift++;
    return shift;
}

size_t udt_rcvbuf_chunk_size(uint32_t unit)
{
    size_t size = ((size_t)1 << shift_for(unit)) * (unit + sizeof(rcv_slot));
    return (size + 15) & ~(size_t)15;
}

bool udt_rcvbuf_init(udt_rcvbuf *b, udt_mem *mem, uint32_t unit, int64_t slots, bool messages)
{
    *b = (udt_rcvbuf){.mem = mem, .unit = unit, .slots = slots, .messages = messages};
    b->shift = shift_for(unit);
    b->chunk_size = udt_rcvbuf_chunk_size(unit);
    b->ready_first = b->ready_last = b->drop_end = -1;
    b->ring_size = 4;
    b->ring = calloc(b->ring_size, sizeof *b->ring);
    /* A message that crosses from one chunk into the next must be able to end. */
    b->cover = messages ? 2 : 1;
    b->reserved = b->ring && udt_mem_charge(mem, (size_t)b->cover * b->chunk_size);
    return b->reserved;
}

/* Allocated chunks that are charged one by one. */
static uint32_t charged(const udt_rcvbuf *b)
{
    uint32_t n = b->chunks;
    for (int64_t c = b->base >> b->shift, i = 0; i < b->cover; i++)
        n -= b->ring[(uint32_t)(c + i) & (b->ring_size - 1)] != NULL;
    return n;
}

void udt_rcvbuf_fini(udt_rcvbuf *b)
{
    if (b->chunks)
        udt_mem_uncharge(b->mem, charged(b) * b->chunk_size);
    for (uint32_t i = 0; b->ring && i < b->ring_size; i++)
        udt_mem_chunk_free(b->mem, b->ring[i], b->chunk_size);
    if (b->reserved)
        udt_mem_uncharge(b->mem, (size_t)b->cover * b->chunk_size);
    free(b->ring);
    *b = (udt_rcvbuf){0};
}

static uint8_t **chunk_at(const udt_rcvbuf *b, int64_t idx)
{
    return &b->ring[(uint32_t)(idx >> b->shift) & (b->ring_size - 1)];
}

static bool grow_ring(udt_rcvbuf *b, int64_t need)
{
    uint32_t size = b->ring_size;
    while (size < need)
        size *= 2;
    uint8_t **ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    int64_t first = b->base >> b->shift;
    for (int64_t c = first; c < first + b->ring_size; c++)
        ring[(uint32_t)c & (size - 1)] = b->ring[(uint32_t)c & (b->ring_size - 1)];
    free(b->ring);
    b->ring = ring;
    b->ring_size = size;
    return true;
}

/* The slot of a packet inside the window, its chunk allocated; NULL without memory. */
static rcv_slot *open_slot(udt_rcvbuf *b, int64_t idx)
{
    int64_t ahead = (idx >> b->shift) - (b->base >> b->shift);
    if (ahead >= b->ring_size && !grow_ring(b, ahead + 1))
        return NULL;
    uint8_t **at = chunk_at(b, idx);
    size_t slots = (size_t)1 << b->shift;
    if (!*at) {
        if (ahead >= b->cover && !udt_mem_charge(b->mem, b->chunk_size))
            return NULL;
        *at = udt_mem_chunk(b->mem, b->chunk_size);
        if (!*at) {
            if (ahead >= b->cover)
                udt_mem_uncharge(b->mem, b->chunk_size);
            return NULL;
        }
        memset(*at, 0, slots * sizeof(rcv_slot));
        b->chunks++;
    }
    return (rcv_slot *)(void *)*at + ((size_t)idx & (slots - 1));
}

/* The slot if its chunk exists and it lies in the window, else NULL. */
static rcv_slot *slot_at(const udt_rcvbuf *b, int64_t idx)
{
    if (idx < b->base || (idx >> b->shift) - (b->base >> b->shift) >= b->ring_size)
        return NULL;
    uint8_t *chunk = *chunk_at(b, idx);
    return chunk ? (rcv_slot *)(void *)chunk + (idx & ((1 << b->shift) - 1)) : NULL;
}

static uint8_t *data_at(const udt_rcvbuf *b, int64_t idx)
{
    size_t slots = (size_t)1 << b->shift;
    return *chunk_at(b, idx) + slots * sizeof(rcv_slot) + ((size_t)idx & (slots - 1)) * b->unit;
}

static void set_base(udt_rcvbuf *b, int64_t base)
{
    while (b->base < base) {
        int64_t end = ((b->base >> b->shift) + 1) << b->shift;
        if (end > base) {
            b->base = base;
            return;
        }
        uint8_t **at = chunk_at(b, b->base);
        if (*at) {
            udt_mem_chunk_free(b->mem, *at, b->chunk_size);
            *at = NULL;
            b->chunks--;
        }
        b->base = end;
        /* One more chunk is now near enough to the head for the buffer's reserve. */
        if (*chunk_at(b, end + ((int64_t)(b->cover - 1) << b->shift)))
            udt_mem_uncharge(b->mem, b->chunk_size);
    }
}

static void queue_ready(udt_rcvbuf *b, int64_t first, rcv_slot *s)
{
    s->flags |= RCV_QUEUED;
    s->next_ready = -1;
    if (b->ready_last >= 0)
        slot_at(b, b->ready_last)->next_ready = first;
    else
        b->ready_first = first;
    b->ready_last = first;
}

static bool same_message(const rcv_slot *a, const rcv_slot *s)
{
    return a && a->state == RCV_FILLED && !(a->flags & RCV_QUEUED) &&
           ((a->word1 ^ s->word1) & UDT_MSG_NO) == 0;
}

/* Join the new packet with its neighbours; queue the message when it is complete and unordered. */
static void join_run(udt_rcvbuf *b, int64_t idx, rcv_slot *s)
{
    int64_t first = idx, last = idx;
    rcv_slot *left = slot_at(b, idx - 1), *right = slot_at(b, idx + 1);
    if (!(s->word1 & UDT_MSG_FIRST) && same_message(left, s) && !(left->word1 & UDT_MSG_LAST) &&
        !(slot_at(b, idx - 1 - left->run)->flags & RCV_QUEUED))
        first = idx - 1 - left->run;
    if (!(s->word1 & UDT_MSG_LAST) && same_message(right, s) && !(right->word1 & UDT_MSG_FIRST))
        last = idx + 1 + right->run;
    rcv_slot *head = slot_at(b, first);
    head->run = slot_at(b, last)->run = (uint32_t)(last - first);
    if (head->word1 & UDT_MSG_FIRST && slot_at(b, last)->word1 & UDT_MSG_LAST &&
        !(head->word1 & UDT_MSG_ORDER))
        queue_ready(b, first, head);
}

enum rcv_put udt_rcvbuf_put(udt_rcvbuf *b, int64_t idx, uint32_t word1, const uint8_t *data,
                            size_t len)
{
    if (idx < b->base)
        return RCV_DUPLICATE;
    if (idx >= b->base + b->slots)
        return RCV_NOROOM;
    rcv_slot *s = open_slot(b, idx);
    if (!s)
        return RCV_NOROOM;
    if (s->state == RCV_FILLED || s->state == RCV_CONSUMED)
        return RCV_DUPLICATE;
    s->word1 = word1;
    s->len = (uint16_t)len;
    s->state = RCV_FILLED;
    s->flags = 0;
    s->run = 0;
    memcpy(data_at(b, idx), data, len);
    b->bytes += len;
    if (b->messages) {
        join_run(b, idx, s);
        if (idx < b->scan) /* it was dropped, yet it came: judge again */
            b->scan = idx - (s->word1 & UDT_MSG_FIRST ? 0 : s->run);
    }
    return RCV_STORED;
}

bool udt_rcvbuf_drop(udt_rcvbuf *b, int64_t first, int64_t last)
{
    if (first < b->base)
        first = b->base;
    if (last >= b->base + b->slots)
        return false;
    for (int64_t i = first; i <= last; i++) {
        rcv_slot *s = open_slot(b, i);
        if (!s)
            return false;
        if (s->state == RCV_EMPTY)
            s->state = RCV_DROPPED;
    }
    b->drop_end = last;
    return true;
}

static void consume(udt_rcvbuf *b, int64_t first, int64_t last)
{
    for (int64_t i = first; i <= last; i++) {
        rcv_slot *s = slot_at(b, i);
        b->bytes -= s->state == RCV_FILLED ? s->len : 0;
        s->state = RCV_CONSUMED;
    }
}

/* Slots before `scan` that nobody will read any more make room. */
static void release(udt_rcvbuf *b)
{
    int64_t base = b->base;
    while (base < b->scan && slot_at(b, base)->state != RCV_FILLED)
        base++;
    set_base(b, base);
}

/* A drop range may cover one packet of the next message (spec 7.2). Its last slot stays open until
 * something complete has arrived behind it. */
static bool may_still_come(const udt_rcvbuf *b, int64_t idx)
{
    if (slot_at(b, idx)->state != RCV_DROPPED || idx != b->drop_end)
        return false;
    if (idx + 1 >= b->frontier)
        return true;
    const rcv_slot *next = slot_at(b, idx + 1);
    return next->state == RCV_FILLED && !(next->word1 & UDT_MSG_FIRST) &&
           idx + 2 + next->run >= b->frontier;
}

/* Judge the run that starts at `scan`; false when more of it is to come. */
static bool judge(udt_rcvbuf *b)
{
    rcv_slot *s = slot_at(b, b->scan);
    if (may_still_come(b, b->scan))
        return false;
    if (s->state != RCV_FILLED) {
        b->scan++;
        return true;
    }
    int64_t end = b->scan + s->run;
    const rcv_slot *tail = slot_at(b, end);
    bool whole = s->word1 & UDT_MSG_FIRST && tail->word1 & UDT_MSG_LAST;
    if (!whole && end + 1 >= b->frontier && !(tail->word1 & UDT_MSG_LAST)) {
        /* It may go on, unless it fills the whole buffer: then deliver the part we have. */
        if (b->scan > b->base || end + 3 < b->base + b->slots || !(s->word1 & UDT_MSG_FIRST))
            return false;
        whole = true;
    }
    if (!whole)
        consume(b, b->scan, end);
    else if (!(s->flags & RCV_QUEUED))
        queue_ready(b, b->scan, s);
    b->scan = end + 1;
    return true;
}

void udt_rcvbuf_advance(udt_rcvbuf *b, int64_t frontier)
{
    b->frontier = frontier;
    if (!b->messages)
        return;
    while (b->scan < b->frontier && judge(b))
        ;
    release(b);
}

bool udt_rcvbuf_readable(const udt_rcvbuf *b)
{
    return b->messages ? b->ready_first >= 0 : b->base < b->frontier;
}

size_t udt_rcvbuf_read(udt_rcvbuf *b, uint8_t *dst, size_t cap)
{
    size_t done = 0;
    while (done < cap && b->base < b->frontier) {
        const rcv_slot *s = slot_at(b, b->base);
        size_t n = s->len - b->offset;
        if (n > cap - done)
            n = cap - done;
        memcpy(dst + done, data_at(b, b->base) + b->offset, n);
        done += n;
        b->offset += (uint32_t)n;
        if (b->offset < s->len)
            break;
        b->offset = 0;
        set_base(b, b->base + 1);
    }
    b->bytes -= done;
    return done;
}

int64_t udt_rcvbuf_read_msg(udt_rcvbuf *b, uint8_t *dst, size_t cap)
{
    int64_t first = b->ready_first;
    size_t done = 0;
    if (first < 0)
        return -1;
    const rcv_slot *head = slot_at(b, first);
    int64_t last = first + head->run;
    b->ready_first = head->next_ready;
    if (b->ready_first < 0)
        b->ready_last = -1;
    for (int64_t i = first; i <= last; i++) {
        size_t n = slot_at(b, i)->len;
        if (n > cap - done)
            n = cap - done;
        memcpy(dst + done, data_at(b, i), n);
        done += n;
    }
    consume(b, first, last);
    udt_rcvbuf_advance(b, b->frontier);
    return (int64_t)done;
}

int64_t udt_rcvbuf_free_slots(const udt_rcvbuf *b)
{
    int64_t room = b->slots - (b->frontier - b->base);
    /* What the promised head chunk, those at hand and the rest of the budget can hold. */
    int64_t into = b->frontier - (b->base >> b->shift << b->shift);
    uint64_t spare = (b->mem->limit - b->mem->used) / b->chunk_size;
    int64_t chunks = (int64_t)(spare < (1u << 20) ? spare : (1u << 20)) + b->cover + charged(b);
    int64_t fits = (chunks << b->shift) - into;
    if (room > fits)
        room = fits;
    return room > 0 ? room : 0;
}
