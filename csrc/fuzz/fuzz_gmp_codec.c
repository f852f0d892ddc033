/* The stateless parsers of GMP: datagram header, acknowledgement block, and every body. The first
 * byte chooses the parser; what was decoded must come out the same when encoded and decoded. */
#include <stdlib.h>
#include <string.h>

#include "sgmp/packet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static void header(const uint8_t *p, size_t n)
{
    struct pkt_header h, again;
    uint8_t buf[2048];
    if (pkt_header_get(p, n, &h) != 0 || n > sizeof buf)
        return;
    memcpy(buf, p, n);
    pkt_header_put(buf, &h);
    expect(pkt_header_get(buf, n, &again) == 0);
    expect(h.type == again.type && h.flags == again.flags && h.key_id == again.key_id);
    expect(h.src == again.src && h.dst == again.dst && h.pkt == again.pkt);
    expect(h.channel == again.channel && h.body_len == again.body_len && h.check == again.check);
}

static void ack(const uint8_t *p, size_t n)
{
    bytes_rd r = bytes_reader(p, n);
    static struct pkt_ack a, again;
    uint8_t buf[PKT_ACK + 8 * PKT_ACK_WORDS];
    memset(&a, 0, sizeof a);
    memset(&again, 0, sizeof again);
    if (!pkt_ack_get(&r, &a))
        return;
    expect(a.n <= PKT_ACK_WORDS);
    bytes_wr w = bytes_writer(buf, sizeof buf);
    pkt_ack_put(&w, &a);
    expect(!w.bad);
    r = bytes_reader(buf, (size_t)(w.p - buf));
    expect(pkt_ack_get(&r, &again) && memcmp(a.words, again.words, 8u * a.n) == 0);
    expect(a.cum == again.cum && a.echo_pkt == again.echo_pkt && a.win_kib == again.win_kib);
    expect(a.win_msgs == again.win_msgs && a.busy == again.busy && a.n == again.n);
}

static void bodies(int which, const uint8_t *p, size_t n)
{
    bytes_rd r = bytes_reader(p, n);
    struct pkt_data d;
    struct pkt_hello h;
    struct pkt_reset_body b;
    struct pkt_refusal f;
    struct rpc_head rpc, rpc2;
    struct bulk_desc desc, desc2;
    uint8_t buf[128];
    switch (which) {
    case 2:
        pkt_data_get(&r, &d);
        break;
    case 3:
        pkt_hello_get(&r, &h);
        break;
    case 4:
        pkt_reset_get(&r, &b);
        break;
    case 5:
        while (r.left > 0 && !r.bad)
            pkt_refusal_get(&r, &f);
        break;
    case 6:
        if (rpc_head_get(p, n, &rpc)) {
            rpc_head_put(buf, &rpc);
            expect(rpc_head_get(buf, RPC_HEAD, &rpc2));
            expect(rpc.op == rpc2.op && rpc.id == rpc2.id && rpc.method == rpc2.method);
            expect(rpc.flags == rpc2.flags && rpc.ms == rpc2.ms && rpc.status == rpc2.status);
        }
        break;
    default:
        memset(&desc, 0, sizeof desc);
        memset(&desc2, 0, sizeof desc2);
        if (bulk_desc_get(p, n, &desc)) {
            size_t len = bulk_desc_put(buf, &desc);
            expect(bulk_desc_get(buf, len, &desc2));
            expect(desc.len == desc2.len && desc.crc == desc2.crc && desc.inner == desc2.inner);
        }
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    int which = data[0] & 7;
    if (which == 0)
        header(data + 1, size - 1);
    else if (which == 1)
        ack(data + 1, size - 1);
    else
        bodies(which, data + 1, size - 1);
    return 0;
}
