/* Loss lists and buffers against naive models. */
#include "test_udt_util.h"
#include "udt/lossmap.h"
#include "udt/packet.h"
#include "udt/rcvbuf.h"
#include "udt/sndbuf.h"

enum { SPACE = 100000 };

TEST(udt_lists_lossmap_agrees_with_an_array)
{
    static bool model[SPACE];
    sim_rng r;
    lossmap m;
    sim_rng_seed(&r, test_seed);
    lossmap_init(&m);
    memset(model, 0, sizeof model);
    int64_t low = 0, count = 0;
    for (int step = 0; step < 40000; step++) {
        int64_t a = low + (int64_t)sim_rng_below(&r, 6000), b = a;
        switch (sim_rng_below(&r, 7)) {
        case 0:
            b = a + (int64_t)sim_rng_below(&r, 500);
            /* fall through */
        case 1:
            if (b >= SPACE)
                break;
            CHECK(lossmap_reserve(&m, a, b));
            lossmap_add(&m, a, b);
            for (int64_t i = a; i <= b; i++) {
                count += !model[i];
                model[i] = true;
            }
            break;
        case 2:
        case 3:
            if (a >= SPACE)
                break;
            CHECK(lossmap_del(&m, a) == model[a]);
            count -= model[a];
            model[a] = false;
            break;
        case 4:
            b = a + (int64_t)sim_rng_below(&r, 300);
            lossmap_del_run(&m, a, b);
            for (int64_t i = a; i <= b && i < SPACE; i++) {
                count -= model[i];
                model[i] = false;
            }
            break;
        case 5:
            if (low + 40 < SPACE - 7000 && sim_rng_below(&r, 4) == 0) {
                int64_t to = low + (int64_t)sim_rng_below(&r, 200);
                lossmap_del_below(&m, to);
                for (int64_t i = low; i < to; i++) {
                    count -= model[i];
                    model[i] = false;
                }
                low = to;
            }
            break;
        default: {
            int64_t want = a;
            while (want < SPACE && !model[want])
                want++;
            CHECK_INT(lossmap_next(&m, a), want < SPACE ? want : LOSSMAP_NONE);
            if (want < SPACE) {
                int64_t end = want;
                while (end < SPACE && model[end])
                    end++;
                CHECK_INT(lossmap_run_end(&m, want), end);
            }
        }
        }
        CHECK_INT(m.count, count);
    }
    lossmap_fini(&m);
}

TEST(udt_lists_send_buffer_keeps_bytes_and_budget)
{
    sim_rng r;
    udt_mem mem;
    udt_sndbuf b;
    static uint8_t src[100000], got[100000];
    sim_rng_seed(&r, test_seed);
    udt_mem_init(&mem, 5 * UDT_SNDBUF_RESERVE);
    CHECK(udt_sndbuf_init(&b, &mem, 1456, 1 << 20));
    uint64_t in = 0, out = 0;
    int64_t next = 0;
    bool full = false;
    for (int step = 0; step < 20000; step++) {
        if (sim_rng_below(&r, 2)) {
            size_t len = 1 + sim_rng_below(&r, sim_rng_below(&r, 4) ? 3000 : sizeof src);
            size_t space = udt_sndbuf_space(&b, next);
            fill(src, 9, in, len);
            size_t n = udt_sndbuf_write(&b, src, len, next);
            CHECK(n >= (len < space ? len : space));
            full |= n < len;
            in += n;
        } else if (next < b.tail) {
            next += 1 + (int64_t)sim_rng_below(&r, (uint64_t)(b.tail - next));
        }
        if (sim_rng_below(&r, 3) == 0) {
            int64_t una = b.head + (int64_t)sim_rng_below(&r, (uint64_t)(next - b.head) + 1);
            for (int64_t i = b.head; i < una; i++) {
                const snd_slot *s = udt_sndbuf_slot(&b, i);
                fill(got, 9, out, s->len);
                CHECK_MEM(udt_sndbuf_data(&b, i), got, s->len);
                out += s->len;
            }
            udt_sndbuf_acked(&b, una);
        }
        CHECK_INT(b.bytes, in - out);
        CHECK(mem.used <= mem.limit);
        CHECK_INT(mem.used, (b.blocks > 1 ? b.blocks : 1) * UDT_BLOCK_BYTES_ALL +
                                (b.pieces > 1 ? b.pieces : 1) * SND_HEADS_BYTES);
        /* Short packets cost their bytes, not a slot of full size. */
        CHECK(b.blocks * UDT_BLOCK_ROOM <= b.bytes + (b.blocks + 1) * 1456 + 2 * UDT_BLOCK_ROOM);
    }
    CHECK(full);
    udt_sndbuf_fini(&b);
    CHECK_INT(mem.used, 0);
    udt_mem_fini(&mem);
}

TEST(udt_lists_refused_message_leaves_no_trace)
{
    udt_mem mem;
    udt_sndbuf b;
    static uint8_t msg[300000];
    udt_mem_init(&mem, 3 * UDT_SNDBUF_RESERVE);
    CHECK(udt_sndbuf_init(&b, &mem, 1456, 1 << 20));
    CHECK(udt_sndbuf_write_msg(&b, msg, 5000, true, UDT_NEVER));
    CHECK(!udt_sndbuf_write_msg(&b, msg, sizeof msg, true, UDT_NEVER));
    CHECK_INT(b.tail, 4);
    CHECK_INT(b.bytes, 5000);
    CHECK_INT(b.blocks, 1);
    CHECK_INT(mem.used, UDT_SNDBUF_RESERVE);
    CHECK(udt_sndbuf_write_msg(&b, msg, 100, false, UDT_NEVER));
    CHECK_INT(udt_sndbuf_slot(&b, 4)->word1, 0xc0000002u);
    CHECK_INT(udt_sndbuf_slot(&b, 0)->word1, 0xa0000001u);
    CHECK_INT(udt_sndbuf_slot(&b, 3)->word1, 0x60000001u);
    udt_sndbuf_fini(&b);
    udt_mem_fini(&mem);
}

/* Headers are written in front of payloads, of each packet but those cut out of a larger one: that
 * touches no other's bytes, however packets were split, cut anew and joined before they left. */
TEST(udt_lists_room_for_headers_is_nobody_s_payload)
{
    sim_rng r;
    udt_mem mem;
    udt_sndbuf b;
    static uint8_t src[20000], got[1456];
    int cut = 0, joined = 0;
    sim_rng_seed(&r, test_seed);
    udt_mem_init(&mem, 64 << 20);
    CHECK(udt_sndbuf_init(&b, &mem, 1456, 1 << 20));
    uint64_t in = 0, out = 0;
    int64_t next = 0;
    for (int step = 0; step < 20000; step++) {
        size_t len = 1 + sim_rng_below(&r, sizeof src);
        int64_t tail = b.tail;
        switch (sim_rng_below(&r, 6)) {
        case 0:
        case 1:
            fill(src, 9, in, len);
            in += udt_sndbuf_write(&b, src, len, next);
            break;
        case 2: /* the path or the peer takes less, or more again */
            b.fill = 100 + (uint32_t)sim_rng_below(&r, 1357);
            udt_sndbuf_recut(&b, next);
            cut += b.tail > tail;
            break;
        case 3:
            b.fill = 1456;
            udt_sndbuf_join(&b, next);
            joined += b.tail < tail;
            break;
        case 4:
            if (b.tail > next && udt_sndbuf_slot(&b, b.tail - 1)->len > 32)
                udt_sndbuf_split_tail(&b);
            break;
        default:
            next += (int64_t)sim_rng_below(&r, (uint64_t)(b.tail - next) + 1);
            for (int64_t i = b.head; i < next; i++) {
                const snd_slot *s = udt_sndbuf_slot(&b, i);
                if (!(s->flags & SND_BARE))
                    memset(s->data - SND_HEAD, 0xee, SND_HEAD);
            }
            for (int64_t i = b.head; i < next; i++) {
                const snd_slot *s = udt_sndbuf_slot(&b, i);
                fill(got, 9, out, s->len);
                CHECK_MEM(s->data, got, s->len);
                out += s->len;
            }
            udt_sndbuf_acked(&b, next);
        }
        CHECK_INT(b.bytes, in - out);
        for (int64_t i = next; i < b.tail; i++) {
            const snd_slot *s = udt_sndbuf_slot(&b, i);
            if (!(s->flags & SND_BARE))
                memset(s->data - SND_HEAD, 0xdd, SND_HEAD);
        }
    }
    CHECK(cut > 100 && joined > 100);
    udt_sndbuf_fini(&b);
    CHECK_INT(mem.used, 0);
    udt_mem_fini(&mem);
}

/* Messages arrive in any order, some dropped; whole ones come out once, ordered ones in order. */
static void messages(sim_rng *r, uint64_t budget_blocks)
{
    enum { MSGS = 300, MAXP = 9 };
    udt_mem mem;
    udt_rcvbuf b;
    int first[MSGS], count[MSGS], owner[MSGS * MAXP], total = 0;
    bool ordered[MSGS], dropped[MSGS], seen[MSGS] = {false}, have[MSGS * MAXP] = {false};
    static uint8_t buf[4096];
    udt_mem_init(&mem, UDT_RCVBUF_RESERVE + budget_blocks * 8192);
    CHECK(udt_rcvbuf_init(&b, &mem, 200, 400, true));
    for (int i = 0; i < MSGS; i++) {
        first[i] = total;
        count[i] = 1 + (int)sim_rng_below(r, MAXP);
        ordered[i] = sim_rng_below(r, 2);
        dropped[i] = sim_rng_below(r, 10) == 0;
        for (int k = 0; k < count[i]; k++)
            owner[total++] = i;
    }
    int frontier = 0, last = -1;
    while (frontier < total) {
        int idx = frontier + (int)sim_rng_below(r, 60);
        if (idx >= total || idx >= b.base + b.slots)
            idx = frontier;
        int m = owner[idx];
        if (dropped[m]) {
            CHECK(udt_rcvbuf_drop(&b, first[m], first[m] + count[m] - 1) || idx != frontier);
            for (int k = 0; k < count[m]; k++)
                have[first[m] + k] = true;
        } else {
            int k = idx - first[m];
            uint32_t w = (uint32_t)(m + 1) | (k == 0 ? UDT_MSG_FIRST : 0) |
                         (k == count[m] - 1 ? UDT_MSG_LAST : 0) | (ordered[m] ? UDT_MSG_ORDER : 0);
            memset(buf, m, 200);
            enum rcv_put put = udt_rcvbuf_put(&b, idx, w, buf, (size_t)(10 + k));
            CHECK((put == RCV_DUPLICATE) == have[idx] || put == RCV_NOROOM);
            if (put == RCV_STORED)
                have[idx] = true;
            else if (idx == frontier && b.bytes + 200 < UDT_BLOCK_ROOM)
                CHECK_INT(put, RCV_DUPLICATE);
        }
        while (frontier < total && have[frontier])
            frontier++;
        udt_rcvbuf_advance(&b, frontier);
        CHECK(mem.used <= mem.limit);
        for (int64_t n;
             sim_rng_below(r, 3) && (n = udt_rcvbuf_read_msg(&b, buf, sizeof buf)) >= 0;) {
            int got = buf[0];
            /* The fill byte wraps at 256: find the message by byte and size. */
            while (got < MSGS && (seen[got] || dropped[got] ||
                                  n != count[got] * 10 + count[got] * (count[got] - 1) / 2))
                got += 256;
            CHECK(got < MSGS);
            seen[got] = true;
            if (ordered[got]) {
                CHECK(got > last);
                last = got;
            }
        }
    }
    while (udt_rcvbuf_read_msg(&b, buf, sizeof buf) >= 0) {
        int got = buf[0];
        while (got < MSGS && (seen[got] || dropped[got]))
            got += 256;
        CHECK(got < MSGS);
        seen[got] = true;
    }
    for (int i = 0; i < MSGS; i++)
        CHECK(seen[i] != dropped[i]);
    CHECK_INT(b.bytes, 0);
    udt_rcvbuf_fini(&b);
    CHECK_INT(mem.used, 0);
    udt_mem_fini(&mem);
}

TEST(udt_lists_messages_in_any_order)
{
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int i = 0; i < 30; i++) {
        messages(&r, 1000);
        messages(&r, sim_rng_below(&r, 20));
    }
}

static int64_t put_one(udt_rcvbuf *b, int64_t idx, uint32_t w)
{
    uint8_t x = (uint8_t)idx;
    return udt_rcvbuf_put(b, idx, w, &x, 1);
}

TEST(udt_lists_drop_range_one_too_long_spares_the_next_message)
{
    udt_mem mem;
    udt_rcvbuf b;
    uint8_t buf[8];
    udt_mem_init(&mem, 1 << 20);
    for (int late = 0; late < 2; late++) {
        CHECK(udt_rcvbuf_init(&b, &mem, 100, 64, true));
        /* libudt drops message 1 (0..2) as 0..3; packet 3 is the first of message 2 (3, 4). */
        CHECK_INT(put_one(&b, 1, 1 | UDT_MSG_ORDER), RCV_STORED);
        if (!late)
            CHECK_INT(put_one(&b, 3, 2 | UDT_MSG_FIRST | UDT_MSG_ORDER), RCV_STORED);
        CHECK(udt_rcvbuf_drop(&b, 0, 3));
        udt_rcvbuf_advance(&b, 4);
        if (late) {
            CHECK_INT(put_one(&b, 4, 2 | UDT_MSG_LAST | UDT_MSG_ORDER), RCV_STORED);
            udt_rcvbuf_advance(&b, 5);
            CHECK_INT(put_one(&b, 3, 2 | UDT_MSG_FIRST | UDT_MSG_ORDER), RCV_STORED);
            udt_rcvbuf_advance(&b, 5);
        } else {
            CHECK_INT(put_one(&b, 4, 2 | UDT_MSG_LAST | UDT_MSG_ORDER), RCV_STORED);
            udt_rcvbuf_advance(&b, 5);
        }
        CHECK_INT(udt_rcvbuf_read_msg(&b, buf, 8), 2);
        CHECK_INT(buf[0], 3);
        CHECK_INT(buf[1], 4);
        CHECK_INT(b.base, 5);
        /* Stray middle packets are skipped. */
        CHECK_INT(put_one(&b, 5, 3), RCV_STORED);
        CHECK_INT(put_one(&b, 6, 4 | UDT_MSG_FIRST | UDT_MSG_LAST | UDT_MSG_ORDER), RCV_STORED);
        udt_rcvbuf_advance(&b, 7);
        CHECK_INT(udt_rcvbuf_read_msg(&b, buf, 8), 1);
        CHECK_INT(buf[0], 6);
        CHECK_INT(b.base, 7);
        udt_rcvbuf_fini(&b);
    }
    udt_mem_fini(&mem);
}

TEST(udt_lists_message_larger_than_the_buffer_comes_in_part)
{
    udt_mem mem;
    udt_rcvbuf b;
    uint8_t buf[100];
    udt_mem_init(&mem, 1 << 20);
    CHECK(udt_rcvbuf_init(&b, &mem, 100, 32, true));
    for (int i = 0; i < 40; i++) {
        put_one(&b, i, 1 | (i == 0 ? UDT_MSG_FIRST : 0) | UDT_MSG_ORDER);
        udt_rcvbuf_advance(&b, i < 32 ? i + 1 : 32);
    }
    CHECK(udt_rcvbuf_readable(&b));
    CHECK(udt_rcvbuf_read_msg(&b, buf, sizeof buf) >= 29);
    CHECK(b.base >= 30);
    udt_rcvbuf_fini(&b);
    udt_mem_fini(&mem);
}
