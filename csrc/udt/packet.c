#include "udt/packet.h"

#include "base/bytes.h"
#include "base/seq.h"

bool udt_pkt_decode(udt_pkt *p, const uint8_t *buf, size_t len)
{
    bytes_rd r = bytes_reader(buf, len);
    uint32_t w0 = bytes_u32(&r);
    p->control = w0 >> 31;
    p->type = p->control ? (uint16_t)(w0 >> 16 & 0x7fff) : 0;
    p->ext = p->control ? (uint16_t)w0 : 0;
    p->seq = w0 & SEQ_MASK;
    p->word1 = bytes_u32(&r);
    p->timestamp = bytes_u32(&r);
    p->dst = (int32_t)bytes_u32(&r);
    p->body = r.p;
    p->len = r.left;
    return !r.bad;
}

void udt_pkt_put_data(uint8_t *buf, uint32_t seq, uint32_t word1, uint32_t timestamp, int32_t dst)
{
    be32_put(buf, seq & SEQ_MASK);
    be32_put(buf + 4, word1);
    be32_put(buf + 8, timestamp);
    be32_put(buf + 12, (uint32_t)dst);
}

size_t udt_pkt_put_ctrl(uint8_t *buf, uint16_t type, uint32_t info, int32_t dst,
                        const uint32_t *words, size_t nwords)
{
    be32_put(buf, 0x80000000u | (uint32_t)type << 16);
    be32_put(buf + 4, info);
    be32_put(buf + 8, 0);
    be32_put(buf + 12, (uint32_t)dst);
    if (nwords == 0) {
        be32_put(buf + 16, 0);
        return 20;
    }
    for (size_t i = 0; i < nwords; i++)
        be32_put(buf + 16 + 4 * i, words[i]);
    return 16 + 4 * nwords;
}
