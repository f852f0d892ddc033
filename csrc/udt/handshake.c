#include "udt/handshake.h"

#include "base/bytes.h"
#include "base/seq.h"
#include "udt/packet.h"

bool udt_hs_decode(udt_hs *h, const uint8_t *body, size_t len)
{
    bytes_rd r = bytes_reader(body, len);
    if (len != UDT_HS_BYTES)
        return false;
    h->version = bytes_u32(&r);
    h->type = bytes_u32(&r);
    h->isn = bytes_u32(&r);
    h->mss = bytes_u32(&r);
    h->window = bytes_u32(&r);
    h->req = (int32_t)bytes_u32(&r);
    h->id = (int32_t)bytes_u32(&r);
    h->cookie = bytes_u32(&r);
    for (int i = 0; i < 4; i++)
        h->ip[i] = bytes_u32(&r);
    return true;
}

void udt_hs_encode(uint8_t *buf, const udt_hs *h, int32_t dst)
{
    const uint32_t words[12] = {h->version, h->type,          h->isn,          h->mss,
                                h->window,  (uint32_t)h->req, (uint32_t)h->id, h->cookie,
                                h->ip[0],   h->ip[1],         h->ip[2],        h->ip[3]};
    _Static_assert(sizeof words == UDT_HS_BYTES, "handshake payload");
    udt_pkt_put_ctrl(buf, UDT_CTRL_HANDSHAKE, 0, dst, words, 12);
}

void udt_hs_set_ip(udt_hs *h, const udt_addr *a)
{
    int groups = a->family == 6 ? 4 : 1;
    memset(h->ip, 0, sizeof h->ip);
    for (int i = 0; i < groups; i++) {
        const uint8_t *p = a->ip + 4 * i;
        h->ip[i] = (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
    }
}

static uint64_t rotl(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

static uint64_t le64(const uint8_t *p, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

uint64_t udt_siphash(const uint8_t key[16], const uint8_t *data, size_t len)
{
    uint64_t k0 = le64(key, 8), k1 = le64(key + 8, 8), last = (uint64_t)len << 56;
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                     k1 ^ 0x7465646279746573u};
    for (; len >= 8; data += 8, len -= 8) {
        uint64_t word = le64(data, 8);
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    last |= le64(data, len);
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint32_t cookie_of(const uint8_t secret[UDT_COOKIE_SECRET_BYTES], const udt_addr *peer,
                          uint32_t isn, int32_t id, int64_t epoch)
{
    uint8_t buf[40];
    bytes_wr w = bytes_writer(buf, sizeof buf);
    bytes_put_u16(&w, peer->family);
    bytes_put_u16(&w, peer->port);
    bytes_put_u32(&w, peer->scope);
    bytes_put(&w, peer->ip, peer->family == 4 ? 4 : 16);
    bytes_put_u32(&w, isn);
    bytes_put_u32(&w, (uint32_t)id);
    bytes_put_u64(&w, (uint64_t)epoch);
    uint32_t c = (uint32_t)udt_siphash(secret, buf, sizeof buf - w.left) ^ be32_get(secret + 16);
    return c ? c : 1;
}

void udt_cookies_init(udt_cookies *k)
{
    memset(k, 0, sizeof *k);
    k->drawn[0] = k->drawn[1] = -1;
}

uint32_t udt_cookie_make(udt_cookies *k, udt_rand_fn rand, void *arg, const udt_addr *peer,
                         uint32_t isn, int32_t id, udt_time now)
{
    int64_t epoch = now / UDT_COOKIE_EPOCH_US, pair = epoch >> 1;
    int slot = (int)(pair & 1);
    if (k->drawn[slot] != pair) {
        rand(arg, k->secret[slot], sizeof k->secret[slot]);
        k->drawn[slot] = pair;
    }
    return cookie_of(k->secret[slot], peer, isn, id, epoch);
}

bool udt_cookie_check(const udt_cookies *k, const udt_addr *peer, uint32_t isn, int32_t id,
                      uint32_t cookie, udt_time now)
{
    int64_t epoch = now / UDT_COOKIE_EPOCH_US;
    for (int64_t e = epoch; e >= 0 && e >= epoch - 1; e--) {
        int slot = (int)(e >> 1 & 1);
        if (k->drawn[slot] == e >> 1 && cookie_of(k->secret[slot], peer, isn, id, e) == cookie)
            return true;
    }
    return false;
}
