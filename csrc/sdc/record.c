#include "sdc/record.h"

#include "base/bytes.h"
#include "base/crc32c.h"

#define LAST_NUMBER UINT64_MAX /* of an ERROR record, wherever it stands */

enum { MODE_ENCRYPT = 1, MODE_EARLY = 2 };

/* ---- OPEN ----
 *  0        1        2                 4          20         36                  68
 *  | type 1 | mode   | length = 64     | ticket id | nonce    | HMAC-SHA-256      |
 */

void sdc_hello_init(sdc_hello *h, const udt_ticket *t, bool initiator,
                    const uint8_t nonce[SDC_NONCE_BYTES])
{
    memset(h, 0, sizeof *h);
    memcpy(h->id, t->id, sizeof h->id);
    memcpy(h->key, t->key, sizeof h->key);
    memcpy(h->nonces + (initiator ? 0 : SDC_NONCE_BYTES), nonce, SDC_NONCE_BYTES);
    h->initiator = initiator;
    h->encrypt = t->encrypt;
}

void sdc_hello_fini(sdc_hello *h)
{
    secure_wipe(h, sizeof *h);
}

/* HMAC(key, role || nonces so far): the responder's covers both; the role of an initiator that
 * sends early is another. */
static void proof(const sdc_hello *h, bool of_initiator, bool early, uint8_t mac[SHA256_BYTES])
{
    uint8_t text[1 + 2 * SDC_NONCE_BYTES];
    text[0] = !of_initiator ? 'R' : early ? 'E' : 'I';
    memcpy(text + 1, h->nonces, sizeof h->nonces);
    hmac_sha256(h->key, sizeof h->key, text, of_initiator ? 1 + SDC_NONCE_BYTES : sizeof text, mac);
}

static uint8_t *own_nonce(const sdc_hello *h, bool initiator)
{
    return (uint8_t *)(uintptr_t)h->nonces + (initiator ? 0 : SDC_NONCE_BYTES);
}

int sdc_hello_write(const sdc_hello *h, uint8_t out[SDC_OPEN_BYTES])
{
    uint8_t mac[SHA256_BYTES];
    if (!h->initiator && !h->met)
        return UDT_E_STATE;
    proof(h, h->initiator, h->early, mac);
    bytes_wr w = bytes_writer(out, SDC_OPEN_BYTES);
    bytes_put_u8(&w, SDC_OPEN);
    bytes_put_u8(&w, (uint8_t)((h->encrypt ? MODE_ENCRYPT : 0) | (h->early ? MODE_EARLY : 0)));
    bytes_put_u16(&w, SDC_OPEN_BYTES - SDC_HEADER_BYTES);
    bytes_put(&w, h->id, sizeof h->id);
    bytes_put(&w, own_nonce(h, h->initiator), SDC_NONCE_BYTES);
    bytes_put(&w, mac, sizeof mac);
    return 0;
}

int sdc_hello_read(sdc_hello *h, const uint8_t in[SDC_OPEN_BYTES])
{
    uint8_t mac[SHA256_BYTES];
    bytes_rd r = bytes_reader(in, SDC_OPEN_BYTES);
    uint8_t type = bytes_u8(&r), mode = bytes_u8(&r);
    uint16_t len = bytes_u16(&r);
    bool early = mode & MODE_EARLY;
    if (type != SDC_OPEN || (mode & ~MODE_EARLY) != (h->encrypt ? MODE_ENCRYPT : 0) ||
        (h->initiator && early != h->early) || len != SDC_OPEN_BYTES - SDC_HEADER_BYTES)
        return UDT_E_PROTO;
    if (!secure_eq(bytes_take(&r, sizeof h->id), h->id, sizeof h->id))
        return UDT_E_AUTH;
    memcpy(own_nonce(h, !h->initiator), bytes_take(&r, SDC_NONCE_BYTES), SDC_NONCE_BYTES);
    proof(h, !h->initiator, early, mac);
    if (!secure_eq(bytes_take(&r, sizeof mac), mac, sizeof mac))
        return UDT_E_AUTH;
    h->early = early;
    h->met = true;
    return 0;
}

/* ---- keys ---- */

/* HKDF-SHA-256 (RFC 5869) with the nonces as salt, an early direction with the initiator's alone;
 * one output block. */
static void derive(const sdc_hello *h, bool from_initiator, uint8_t out[32])
{
    bool alone = h->early && from_initiator;
    static const char label[4] = {'S', 'D', 'C', '1'};
    uint8_t prk[SHA256_BYTES], info[sizeof label + 2];
    hmac_sha256(h->nonces, alone ? SDC_NONCE_BYTES : sizeof h->nonces, h->key, sizeof h->key, prk);
    memcpy(info, label, sizeof label);
    info[sizeof label] = alone ? 'E' : from_initiator ? 'I' : 'R';
    info[sizeof label + 1] = 1; /* number of the block, as the RFC wants it */
    hmac_sha256(prk, sizeof prk, info, sizeof info, out);
    secure_wipe(prk, sizeof prk);
}

int sdc_dir_init(sdc_dir *d, const sdc_hello *h, bool from_initiator)
{
    memset(d, 0, sizeof *d);
    if (!h->met && !(h->initiator && h->early && from_initiator))
        return UDT_E_STATE;
    derive(h, from_initiator, d->key);
    d->encrypt = h->encrypt;
    d->aead = aead_new(d->encrypt ? AEAD_AES256GCM : AEAD_HMAC_SHA256, d->key);
    if (!d->aead)
        return UDT_E_NOMEM;
    if (!d->encrypt) {
        uint8_t start[SHA256_BYTES];
        hmac_sha256(d->key, sizeof d->key, (const uint8_t *)"chain", 5, start);
        d->chain = be32_get(start);
    }
    return 0;
}

void sdc_dir_fini(sdc_dir *d)
{
    aead_free(d->aead);
    secure_wipe(d, sizeof *d);
}

/* ---- records ----
 *  0        1        2                 4
 *  | type   | 0      | length of body  | body | tag (16), or CRC chain (4) |
 */

static bool is_tagged(bool encrypt, int type)
{
    return encrypt || type != SDC_DATA;
}

size_t sdc_record_bytes(bool encrypt, int type, size_t len)
{
    return SDC_HEADER_BYTES + len +
           (is_tagged(encrypt, type) ? (size_t)SDC_TAG_BYTES : (size_t)SDC_CHECK_BYTES);
}

static bool length_fits(int type, size_t len)
{
    switch (type) {
    case SDC_DATA:
        return len > 0 && len <= SDC_MAX_BODY;
    case SDC_FIN:
        return len == SDC_FIN_BYTES;
    case SDC_DONE:
        return len == SDC_DONE_BYTES;
    case SDC_ERROR:
        return len == SDC_ERROR_BYTES;
    default:
        return false;
    }
}

ssize_t sdc_peek(bool encrypt, const uint8_t *p, size_t avail, int *type, size_t *body_len)
{
    if (avail < SDC_HEADER_BYTES)
        return 0;
    *type = p[0];
    *body_len = be16_get(p + 2);
    if (p[1] != 0 || !length_fits(*type, *body_len))
        return UDT_E_PROTO;
    return (ssize_t)sdc_record_bytes(encrypt, *type, *body_len);
}

/* What is authenticated beside the body. With encryption the record's number is the nonce; without
 * it stands here, and so does the chain, which ties a FIN to every byte before it. */
#define AAD_BYTES (SDC_HEADER_BYTES + 12)
static size_t aad_of(bool encrypt, const uint8_t *rec, uint64_t number, uint32_t chain,
                     uint8_t aad[AAD_BYTES])
{
    memcpy(aad, rec, SDC_HEADER_BYTES);
    if (encrypt)
        return SDC_HEADER_BYTES;
    be64_put(aad + SDC_HEADER_BYTES, number);
    be32_put(aad + SDC_HEADER_BYTES + 8, chain);
    return AAD_BYTES;
}

static void header_put(uint8_t *rec, int type, size_t len)
{
    rec[0] = (uint8_t)type;
    rec[1] = 0;
    be16_put(rec + 2, (uint16_t)len);
}

static void seal_tagged(aead *a, bool encrypt, uint64_t number, uint32_t chain, uint8_t *rec,
                        size_t len)
{
    uint8_t nonce[AEAD_NONCE_BYTES], aad[AAD_BYTES], *body = rec + SDC_HEADER_BYTES;
    size_t aad_len = aad_of(encrypt, rec, number, chain, aad);
    aead_nonce(nonce, number);
    aead_seal(a, nonce, aad, aad_len, body, len, body);
}

size_t sdc_seal(sdc_dir *d, int type, uint8_t *rec, size_t len)
{
    header_put(rec, type, len);
    if (is_tagged(d->encrypt, type)) {
        seal_tagged(d->aead, d->encrypt, d->next, d->chain, rec, len);
    } else {
        d->chain = udt_crc32c(d->chain, rec, SDC_HEADER_BYTES + len);
        be32_put(rec + SDC_HEADER_BYTES + len, d->chain);
    }
    d->next++;
    return sdc_record_bytes(d->encrypt, type, len);
}

size_t sdc_seal_error(const sdc_dir *d, int32_t code, uint8_t rec[SDC_MAX_RECORD])
{
    aead *a = aead_new(d->encrypt ? AEAD_AES256GCM : AEAD_HMAC_SHA256, d->key);
    if (!a)
        return 0;
    header_put(rec, SDC_ERROR, SDC_ERROR_BYTES);
    be32_put(rec + SDC_HEADER_BYTES, (uint32_t)code);
    seal_tagged(a, d->encrypt, LAST_NUMBER, 0, rec, SDC_ERROR_BYTES);
    aead_free(a);
    return sdc_record_bytes(d->encrypt, SDC_ERROR, SDC_ERROR_BYTES);
}

static int unseal_tagged(sdc_dir *d, int type, uint8_t *rec, size_t len)
{
    uint8_t nonce[AEAD_NONCE_BYTES], aad[AAD_BYTES], *body = rec + SDC_HEADER_BYTES;
    bool last = type == SDC_ERROR;
    uint64_t number = last ? LAST_NUMBER : d->next;
    size_t aad_len = aad_of(d->encrypt, rec, number, last ? 0 : d->chain, aad);
    aead_nonce(nonce, number);
    if (!aead_open(d->aead, nonce, aad, aad_len, body, len + SDC_TAG_BYTES, body))
        return UDT_E_AUTH;
    return 0;
}

static int unseal_chained(sdc_dir *d, uint8_t *rec, size_t len)
{
    uint32_t chain = udt_crc32c(d->chain, rec, SDC_HEADER_BYTES + len);
    if (chain != be32_get(rec + SDC_HEADER_BYTES + len))
        return UDT_E_DIGEST;
    d->chain = chain;
    return 0;
}

ssize_t sdc_unseal(sdc_dir *d, uint8_t *rec, size_t size)
{
    int type;
    size_t len;
    ssize_t whole = sdc_peek(d->encrypt, rec, size, &type, &len);
    if (d->ended || whole <= 0 || (size_t)whole != size || d->next == LAST_NUMBER) {
        d->ended = true;
        return UDT_E_PROTO;
    }
    int rc = is_tagged(d->encrypt, type) ? unseal_tagged(d, type, rec, len)
                                         : unseal_chained(d, rec, len);
    d->ended = rc != 0 || type == SDC_ERROR;
    d->next++;
    return rc != 0 ? rc : (ssize_t)len;
}

/* ---- bodies ---- */

void sdc_fin_put(const sdc_fin *f, uint8_t out[SDC_FIN_BYTES])
{
    be64_put(out, f->size);
    memcpy(out + 8, f->digest, sizeof f->digest);
}

void sdc_fin_get(sdc_fin *f, const uint8_t in[SDC_FIN_BYTES])
{
    f->size = be64_get(in);
    memcpy(f->digest, in + 8, sizeof f->digest);
}

void sdc_done_put(const sdc_done *v, uint8_t out[SDC_DONE_BYTES])
{
    be64_put(out, v->epoch);
    be64_put(out + 8, v->counter);
    be32_put(out + 16, v->durable);
}

void sdc_done_get(sdc_done *v, const uint8_t in[SDC_DONE_BYTES])
{
    v->epoch = be64_get(in);
    v->counter = be64_get(in + 8);
    v->durable = be32_get(in + 16);
}

int32_t sdc_error_get(const uint8_t in[SDC_ERROR_BYTES])
{
    return (int32_t)be32_get(in);
}
