#include "udt/rcvbuf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "udt/packet.h"

#define MIN_SLOTS 32
#define SHARE_MIN (1 << 20)
#define MAX_SLOTS (1 << 22)
#define SHORT_PKTS 8 /* short packets may be this many times more than full ones would be */

_Static_assert(sizeof(rcv_slot) == 32, "two headers in a cache line");

bool udt_rcvbuf_init(udt_rcvbuf *b, udt_mem *mem, uint32_t unit, int64_t slots, bool messages)
{
    *b = (udt_rcvbuf){.mem = mem, .unit = unit, .slots = slots, .messages = messages};
    b->want = (uint64_t)slots * unit;
    b->ready_first = b->ready_last = b->drop_end = -1;
    b->ring_size = 4;
    b->ring = calloc(b->ring_size, sizeof *b->ring);
    b->reserved = b->ring && udt_mem_charge(mem, UDT_RCVBUF_RESERVE);
    return b->reserved;
}

void udt_rcvbuf_set_want(udt_rcvbuf *b, uint64_t bytes)
{
    uint64_t pkts = bytes / b->unit;
    pkts = pkts > MAX_SLOTS / SHORT_PKTS ? MAX_SLOTS : pkts * SHORT_PKTS;
    int64_t slots = pkts < MIN_SLOTS ? MIN_SLOTS : (int64_t)pkts;
    b->want = bytes;
    /* Rather a larger window than one that ends before what was promised and is on its way. */
    if (slots > b->slots || b->base == b->frontier)
        b->slots = slots;
}

/* ---- headers ---- */

/* Pieces of headers that are charged one by one. */
static uint32_t extra_pieces(const udt_rcvbuf *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->ring_size; i++)
        n += b->ring[i] != NULL;
    for (int64_t c = b->base >> RCV_HEADS_SHIFT, i = 0; i < RCV_COVER; i++)
        n -= b->ring[(uint32_t)(c + i) & (b->ring_size - 1)] != NULL;
    return n;
}

static void drop_block(udt_rcvbuf *b, udt_block *k)
{
    udt_mem_block_free(b->mem, k);
    if (k == b->keep) {
        b->keep = NULL;
        return;
    }
    b->blocks--;
    udt_mem_uncharge(b->mem, UDT_BLOCK_BYTES_ALL);
    if (k == b->block)
        b->block = NULL;
}

/* Takes the payload of a slot out of its block. */
static void drop_data(udt_rcvbuf *b, rcv_slot *s)
{
    udt_block *k = udt_block_of(s->data);
    s->data = NULL;
    if (--k->live > 0)
        return;
    if (k == b->block)
        k->used = 0; /* warm: the next packets go there */
    else
        drop_block(b, k);
}

/* An idle connection holds no payload memory. */
static void rest(udt_rcvbuf *b)
{
    if (b->bytes == 0 && b->block)
        drop_block(b, b->block);
}

void udt_rcvbuf_fini(udt_rcvbuf *b)
{
    if (b->ring)
        udt_mem_uncharge(b->mem, extra_pieces(b) * RCV_HEADS_BYTES);
    for (uint32_t i = 0; b->ring && i < b->ring_size; i++) {
        for (int j = 0; b->ring[i] && j < RCV_HEADS; j++)
            if (b->ring[i][j].state == RCV_FILLED)
                drop_data(b, &b->ring[i][j]);
        free(b->ring[i]);
    }
    if (b->block)
        drop_block(b, b->block);
    assert(b->blocks == 0 && !b->keep);
    if (b->reserved)
        udt_mem_uncharge(b->mem, UDT_RCVBUF_RESERVE);
    free(b->ring);
    *b = (udt_rcvbuf){0};
}

static rcv_slot **piece_at(const udt_rcvbuf *b, int64_t idx)
{
    return &b->ring[(uint32_t)(idx >> RCV_HEADS_SHIFT) & (b->ring_size - 1)];
}

static bool grow_ring(udt_rcvbuf *b, int64_t need)
{
    uint32_t size = b->ring_size;
    while (size < need)
        size *= 2;
    rcv_slot **ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    int64_t first = b->base >> RCV_HEADS_SHIFT;
    for (int64_t c = first; c < first + b->ring_size; c++)
        ring[(uint32_t)c & (size - 1)] = b->ring[(uint32_t)c & (b->ring_size - 1)];
    free(b->ring);
    b->ring = ring;
    b->ring_size = size;
    return true;
}

/* The header of a packet inside the window; NULL without memory. */
static rcv_slot *open_slot(udt_rcvbuf *b, int64_t idx)
{
    int64_t ahead = (idx >> RCV_HEADS_SHIFT) - (b->base >> RCV_HEADS_SHIFT);
    if (ahead >= b->ring_size && !grow_ring(b, ahead + 1))
        return NULL;
    rcv_slot **at = piece_at(b, idx);
    if (!*at) {
        if (ahead >= RCV_COVER && !udt_mem_charge(b->mem, RCV_HEADS_BYTES))
            return NULL;
        *at = calloc(1, RCV_HEADS_BYTES);
        if (!*at) {
            if (ahead >= RCV_COVER)
                udt_mem_uncharge(b->mem, RCV_HEADS_BYTES);
            return NULL;
        }
    }
    return &(*at)[idx & (RCV_HEADS - 1)];
}

/* The slot if its header exists and it lies in the window, else NULL. */
static rcv_slot *slot_at(const udt_rcvbuf *b, int64_t idx)
{
    if (idx < b->base || (idx >> RCV_HEADS_SHIFT) - (b->base >> RCV_HEADS_SHIFT) >= b->ring_size)
        return NULL;
    rcv_slot *piece = *piece_at(b, idx);
    return piece ? &piece[idx & (RCV_HEADS - 1)] : NULL;
}

static void set_base(udt_rcvbuf *b, int64_t base)
{
    while (b->base < base) {
        int64_t end = ((b->base >> RCV_HEADS_SHIFT) + 1) << RCV_HEADS_SHIFT;
        if (end > base) {
            b->base = base;
            return;
        }
        rcv_slot **at = piece_at(b, b->base);
        free(*at);
        *at = NULL;
        b->base = end;
        /* One more piece is now near enough to the head for the buffer's reserve. */
        if (*piece_at(b, end + ((int64_t)(RCV_COVER - 1) << RCV_HEADS_SHIFT)))
            udt_mem_uncharge(b->mem, RCV_HEADS_BYTES);
    }
}

/* ---- payload ---- */

/* Blocks that full packets of the whole window need, and some for holes of dead pieces. */
static bool within_window(const udt_rcvbuf *b)
{
    uint64_t full = (uint64_t)b->slots * b->unit;
    uint64_t most = b->want < full ? b->want : full;
    return (uint64_t)b->blocks * UDT_BLOCK_ROOM <= most + most / 4 + 2 * UDT_BLOCK_BYTES_ALL;
}

static bool open_block(udt_rcvbuf *b)
{
    if (!within_window(b) || !udt_mem_charge(b->mem, UDT_BLOCK_BYTES_ALL))
        return false;
    udt_block *k = udt_mem_block(b->mem);
    if (!k) {
        udt_mem_uncharge(b->mem, UDT_BLOCK_BYTES_ALL);
        return false;
    }
    if (b->block && b->block->live == 0)
        drop_block(b, b->block);
    b->blocks++;
    b->block = k;
    return true;
}

/* Room for the payload of packet idx; NULL when there is none. */
static uint8_t *open_data(udt_rcvbuf *b, int64_t idx, size_t len)
{
    if (udt_block_left(b->block) >= len || open_block(b))
        return udt_block_take(b->block, len);
    if (idx != b->frontier)
        return NULL;
    if (!b->keep)
        b->keep = udt_mem_block(b->mem);
    return udt_block_left(b->keep) >= len ? udt_block_take(b->keep, len) : NULL;
}

/* ---- messages ---- */

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
static int64_t join_run(udt_rcvbuf *b, int64_t idx, rcv_slot *s)
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
    return first;
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
    uint8_t *to = open_data(b, idx, len);
    if (!to)
        return RCV_NOROOM;
    *s = (rcv_slot){.word1 = word1, .len = (uint16_t)len, .state = RCV_FILLED, .data = to};
    memcpy(to, data, len);
    b->bytes += len;
    b->ready += idx < b->frontier ? len : 0;
    if (b->messages) {
        int64_t first = join_run(b, idx, s);
        if (first < b->scan) /* it was dropped, yet it came: judge again */
            b->scan = first;
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
        if (s->state == RCV_FILLED) {
            b->bytes -= s->len;
            b->ready -= i < b->frontier ? s->len : 0;
            drop_data(b, s);
        }
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
    for (; b->frontier < frontier; b->frontier++) {
        const rcv_slot *s = slot_at(b, b->frontier);
        b->ready += s && s->state == RCV_FILLED ? s->len : 0;
    }
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
        rcv_slot *s = slot_at(b, b->base);
        size_t n = s->len - b->offset;
        if (n > cap - done)
            n = cap - done;
        memcpy(dst + done, s->data + b->offset, n);
        done += n;
        b->offset += (uint32_t)n;
        if (b->offset < s->len)
            break;
        b->offset = 0;
        s->state = RCV_CONSUMED;
        drop_data(b, s);
        set_base(b, b->base + 1);
    }
    b->bytes -= done;
    b->ready -= done;
    rest(b);
    return done;
}

int64_t udt_rcvbuf_read_msg(udt_rcvbuf *b, uint8_t *dst, size_t cap)
{
    int64_t first = b->ready_first;
    size_t done = 0, len = 0;
    if (first < 0)
        return -1;
    const rcv_slot *head = slot_at(b, first);
    int64_t last = first + head->run;
    b->ready_first = head->next_ready;
    if (b->ready_first < 0)
        b->ready_last = -1;
    for (int64_t i = first; i <= last; i++) {
        const rcv_slot *s = slot_at(b, i);
        size_t n = s->len < cap - done ? s->len : cap - done;
        if (n > 0)
            memcpy(dst + done, s->data, n);
        done += n;
        len += s->len;
    }
    consume(b, first, last);
    udt_rcvbuf_advance(b, b->frontier);
    rest(b);
    return (int64_t)len;
}

/* ---- room ---- */

/* Payload in packets of `unit` that memory has room for: the block at hand, a fair share of the
 * budget, and the promised block. */
static uint64_t memory_room(const udt_rcvbuf *b)
{
    uint64_t held = (uint64_t)b->blocks * UDT_BLOCK_BYTES_ALL;
    uint64_t left = b->mem->limit - b->mem->used, share = udt_mem_share(b->mem, held);
    /* Of a nearly spent budget the first to come gets some more: shares that small are useless. */
    uint64_t some = left < SHARE_MIN ? left : SHARE_MIN;
    uint64_t n = (share > some ? share : some) / UDT_BLOCK_BYTES_ALL;
    n += b->keep ? 0 : 1;
    uint64_t per = UDT_BLOCK_ROOM / b->unit * b->unit;
    return n * per + udt_block_left(b->block) / b->unit * b->unit +
           udt_block_left(b->keep) / b->unit * b->unit;
}

uint64_t udt_rcvbuf_free_bytes(const udt_rcvbuf *b)
{
    uint64_t room = b->want > b->ready ? b->want - b->ready : 0;
    uint64_t fits = memory_room(b) + (b->bytes - b->ready); /* some of it is there already */
    return room < fits ? room : fits;
}

int64_t udt_rcvbuf_free_slots(const udt_rcvbuf *b)
{
    int64_t room = b->slots - (b->frontier - b->base);
    int64_t fits = (int64_t)((memory_room(b) + (b->bytes - b->ready)) / b->unit);
    if (room > fits)
        room = fits;
    return room > 0 ? room : 0;
}
