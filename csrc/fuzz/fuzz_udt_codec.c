/* The stateless parsers of UDT: header, handshake, loss list, acknowledgement words. What was
 * decoded must come out the same when it is encoded and decoded again. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/seq.h"
#include "udt/handshake.h"
#include "udt/packet.h"
#include "udt/rcvloss.h"
#include "udt/sndloss.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static void handshake(const udt_pkt *p)
{
    udt_hs h, again;
    udt_pkt q;
    uint8_t buf[UDT_CTRL_MAX];
    if (!udt_hs_decode(&h, p->body, p->len))
        return;
    udt_hs_encode(buf, &h, p->dst);
    expect(udt_pkt_decode(&q, buf, sizeof buf) && q.control && q.dst == p->dst);
    expect(udt_hs_decode(&again, q.body, q.len) && memcmp(&h, &again, sizeof h) == 0);
}

/* Every list that is accepted becomes a loss list, is encoded again, and names the same packets. */
static void loss_list(const udt_pkt *p)
{
    bytes_rd r = bytes_reader(p->body, p->len);
    uint32_t isn = p->word1 & SEQ_MASK, a, b;
    udt_rcvloss l;
    int64_t top = 0;
    udt_rcvloss_init(&l);
    while (udt_nak_next(&r, &a, &b)) {
        int64_t first = seq_index(isn, 0, a), last = seq_index(isn, 0, b);
        if (first < top || last < first || last - first > 4096 || last > 1 << 16)
            continue;
        expect(udt_rcvloss_add(&l, first, last));
        top = last + 1;
    }
    uint32_t words[64];
    int64_t count = 0, next = 0;
    while (next < top) {
        size_t n = udt_rcvloss_encode(&l, isn, next, top, words, 64, &next);
        uint8_t body[sizeof words];
        for (size_t i = 0; i < n; i++)
            be32_put(body + 4 * i, words[i]);
        bytes_rd w = bytes_reader(body, 4 * n);
        while (udt_nak_next(&w, &a, &b)) {
            int64_t first = seq_index(isn, 0, a), last = seq_index(isn, 0, b);
            expect(first <= last);
            for (int64_t i = first; i <= last; i++, count++)
                expect(lossmap_has(&l.map, i));
        }
        expect(!w.bad);
        if (n == 0)
            break;
    }
    expect(count == l.map.count);
    udt_rcvloss_fini(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    udt_pkt p, q;
    uint8_t buf[UDT_HDR_BYTES + 4];
    if (!udt_pkt_decode(&p, data, size))
        return 0;
    expect(p.len <= size && (p.len == 0 || p.body + p.len == data + size));
    if (!p.control) {
        udt_pkt_put_data(buf, p.seq, p.word1, p.timestamp, p.dst);
        expect(udt_pkt_decode(&q, buf, UDT_HDR_BYTES) && !q.control);
        expect(q.seq == p.seq && q.word1 == p.word1 && q.dst == p.dst &&
               q.timestamp == p.timestamp);
        return 0;
    }
    size_t n = udt_pkt_put_ctrl(buf, p.type, p.word1, p.dst, NULL, 0);
    expect(n == sizeof buf && udt_pkt_decode(&q, buf, n));
    expect(q.control && q.type == p.type && q.word1 == p.word1 && q.dst == p.dst);
    handshake(&p);
    loss_list(&p);
    return 0;
}
