/* The pure part of opening: offers and their proofs, keys, parameters. */
#include <string.h>

#include "base/bytes.h"
#include "base/seq.h"
#include "udt/own_open.h"
#include "udt/packet.h"

/* The first 4 bytes of an HMAC over all that an offer or answer is bound to. */
static uint32_t proof(const own_meet *t, int by, bool answer, const uint8_t *psk)
{
    static const uint8_t no_key[UDT_KEY_BYTES];
    static const char what[2][24] = {"sector udt offer", "sector udt answer"};
    uint8_t buf[96], mac[SHA256_BYTES];
    bytes_wr w = bytes_writer(buf, sizeof buf);
    bytes_put(&w, (const uint8_t *)what[answer], sizeof what[answer]);
    for (int i = 0; i < 2; i++) {
        if (!answer && i != by)
            continue;
        bytes_put_u32(&w, t->isn[i]);
        bytes_put_u32(&w, (uint32_t)t->id[i]);
        if (i != by)
            for (int k = 0; k < OWN_OFFER_WORDS; k++)
                bytes_put_u32(&w, t->words[i][k]);
    }
    bytes_put_u32(&w, t->words[by][0]);
    bytes_put_u32(&w, t->words[by][1]);
    hmac_sha256(psk ? psk : no_key, UDT_KEY_BYTES, buf, sizeof buf - w.left, mac);
    return be32_get(mac);
}

void own_meet_say(own_meet *t, int by, bool answer, uint32_t features, uint32_t nonce,
                  const uint8_t *psk)
{
    t->words[by][0] = (answer ? OWN_ANSWER_MAGIC : OWN_OFFER_MAGIC) << 16 | (features & 0xffff);
    t->words[by][1] = nonce;
    t->words[by][2] = proof(t, by, answer, psk);
}

bool own_meet_check(const own_meet *t, int by, bool answer, const uint8_t *psk)
{
    return t->words[by][0] >> 16 == (answer ? OWN_ANSWER_MAGIC : OWN_OFFER_MAGIC) &&
           t->words[by][2] == proof(t, by, answer, psk);
}

void own_meet_keys(const own_meet *t, const uint8_t psk[UDT_KEY_BYTES],
                   uint8_t keys[2][AEAD_KEY_BYTES])
{
    static const char what[] = "sector udt secrets";
    uint8_t buf[96], out[2 * AEAD_KEY_BYTES];
    bytes_wr w = bytes_writer(buf, sizeof buf);
    bytes_put(&w, (const uint8_t *)what, sizeof what);
    for (int i = 0; i < 2; i++) {
        bytes_put_u32(&w, t->isn[i]);
        bytes_put_u32(&w, (uint32_t)t->id[i]);
        for (int k = 0; k < OWN_OFFER_WORDS; k++)
            bytes_put_u32(&w, t->words[i][k]);
    }
    hkdf_sha256(psk, UDT_KEY_BYTES, buf, sizeof buf - w.left, out, sizeof out);
    memcpy(keys[0], out, AEAD_KEY_BYTES);
    memcpy(keys[1], out + AEAD_KEY_BYTES, AEAD_KEY_BYTES);
    secure_wipe(out, sizeof out);
}

/* Ids of keyed connections lie above all that a port draws for itself. */
static int32_t keyed_id(const uint8_t *p)
{
    return (int32_t)((be32_get(p) & 0x3fffffffu) | 0x40000000u);
}

void own_keyed_derive(own_keyed *k, const uint8_t key[UDT_KEY_BYTES])
{
    static const char what[] = "sector udt keyed open 1";
    uint8_t out[2 * AEAD_KEY_BYTES + 16];
    hkdf_sha256(key, UDT_KEY_BYTES, (const uint8_t *)what, sizeof what - 1, out, sizeof out);
    for (int i = 0; i < 2; i++) {
        memcpy(k->key[i], out + i * AEAD_KEY_BYTES, AEAD_KEY_BYTES);
        k->id[i] = keyed_id(out + 2 * AEAD_KEY_BYTES + 8 * i);
        k->isn[i] = be32_get(out + 2 * AEAD_KEY_BYTES + 8 * i + 4) & SEQ_MASK;
    }
    if (k->id[0] == k->id[1])
        k->id[1] ^= 1;
    secure_wipe(out, sizeof out);
}

void own_params_put(const own_params *v, uint8_t out[OWN_PARAMS_BYTES])
{
    bytes_wr w = bytes_writer(out, OWN_PARAMS_BYTES);
    bytes_put_u16(&w, 1);
    bytes_put_u16(&w, v->features);
    bytes_put_u32(&w, v->mss);
    bytes_put_u64(&w, v->credit);
    bytes_put_u32(&w, v->slots);
    bytes_put_u16(&w, (uint16_t)(v->type << 8 | v->flags));
    bytes_put_u16(&w, 0);
    bytes_put_u64(&w, v->token);
    bytes_put_u64(&w, v->echo);
}

bool own_params_get(own_params *v, const uint8_t *body, size_t len)
{
    bytes_rd r = bytes_reader(body, len);
    uint16_t version = bytes_u16(&r);
    v->features = bytes_u16(&r);
    v->mss = bytes_u32(&r);
    v->credit = bytes_u64(&r);
    v->slots = bytes_u32(&r);
    uint16_t word = bytes_u16(&r);
    v->type = (uint8_t)(word >> 8);
    v->flags = (uint8_t)word;
    (void)bytes_u16(&r);
    v->token = bytes_u64(&r);
    v->echo = bytes_u64(&r);
    return !r.bad && version == 1 && v->mss >= UDT_MSS_MIN && v->mss <= 65535;
}
