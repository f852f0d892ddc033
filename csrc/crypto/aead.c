/* libcrypto behind aead.h, and a faster library's AES-GCM (gcm.h) where that is installed.
 * Keys of GMP peers are derived all the time: HMAC is done with the plain SHA-256 functions (a
 * sixth of the cost of the one-shot HMAC), the cipher is looked up once. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "crypto/aead.h"

#include "crypto/gcm.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MUST(expr)   \
    do {             \
        if (!(expr)) \
            abort(); \
    } while (0)

struct aead {
    int alg;
    gcm *fast;              /* AES256GCM where it works, */
    EVP_CIPHER_CTX *cipher; /* elsewhere */
    EVP_MAC_CTX *mac;       /* HMAC */
};

static EVP_MAC_CTX *mac_new(const uint8_t *key)
{
    EVP_MAC *m = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *c = m ? EVP_MAC_CTX_new(m) : NULL;
    char digest[] = "SHA256";
    OSSL_PARAM p[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                      OSSL_PARAM_construct_end()};
    if (c && !EVP_MAC_init(c, key, AEAD_KEY_BYTES, p)) {
        EVP_MAC_CTX_free(c);
        c = NULL;
    }
    EVP_MAC_free(m);
    return c;
}

static EVP_CIPHER *cipher; /* for the life of the process */
static bool fast_works;

static EVP_CIPHER_CTX *cipher_new(const uint8_t *key)
{
    EVP_CIPHER_CTX *c = cipher ? EVP_CIPHER_CTX_new() : NULL;
    if (c && !EVP_CipherInit_ex(c, cipher, NULL, key, NULL, 1)) {
        EVP_CIPHER_CTX_free(c);
        c = NULL;
    }
    return c;
}

/* Both ways seal a trial record alike, or ours is not used: a library, a processor or a machine
 * that imitates one may be wrong, and a wrong cipher is never noticed between two that share it. */
static bool same_record(void)
{
    enum { LEN = 599 };
    uint8_t key[AEAD_KEY_BYTES], in[LEN], mine[LEN + AEAD_TAG_BYTES], theirs[LEN + AEAD_TAG_BYTES];
    for (int i = 0; i < LEN; i++)
        in[i] = (uint8_t)(i * 131 + i / 256);
    memcpy(key, in + 7, sizeof key);
    aead quick = {.alg = AEAD_AES256GCM, .fast = gcm_new(key)};
    aead lib = {.alg = AEAD_AES256GCM, .cipher = cipher_new(key)};
    bool same = quick.fast && lib.cipher;
    if (same) {
        aead_seal(&quick, in, in + 40, 21, in, LEN, mine);
        aead_seal(&lib, in, in + 40, 21, in, LEN, theirs);
        same = memcmp(mine, theirs, sizeof mine) == 0 &&
               aead_open(&quick, in, in + 40, 21, theirs, sizeof theirs, mine) &&
               memcmp(mine, in, LEN) == 0;
    }
    gcm_free(quick.fast);
    EVP_CIPHER_CTX_free(lib.cipher);
    return same;
}

static void prepare(void)
{
    cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    fast_works = gcm_supported() && same_record();
}

static void cipher_init(aead *a, const uint8_t *key)
{
    static CRYPTO_ONCE once = CRYPTO_ONCE_STATIC_INIT;
    if (!CRYPTO_THREAD_run_once(&once, prepare))
        return;
    if (fast_works && a->alg == AEAD_AES256GCM)
        a->fast = gcm_new(key);
    else
        a->cipher = cipher_new(key);
}

aead *aead_new(int alg, const uint8_t key[AEAD_KEY_BYTES])
{
    aead *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->alg = alg;
    if (alg == AEAD_AES256GCM || alg == AEAD_AES256GCM_LIBCRYPTO)
        cipher_init(a, key);
    else if (alg == AEAD_HMAC_SHA256)
        a->mac = mac_new(key);
    if (!a->fast && !a->cipher && !a->mac) {
        free(a);
        return NULL;
    }
    return a;
}

void aead_free(aead *a)
{
    if (!a)
        return;
    gcm_free(a->fast);
    EVP_CIPHER_CTX_free(a->cipher); /* cleanses the key schedule */
    EVP_MAC_CTX_free(a->mac);
    free(a);
}

static void mac_tag(aead *a, const uint8_t *aad, size_t aad_len, const uint8_t *in, size_t len,
                    uint8_t tag[AEAD_TAG_BYTES])
{
    uint8_t full[SHA256_BYTES];
    size_t n = 0;
    MUST(EVP_MAC_init(a->mac, NULL, 0, NULL));
    MUST(EVP_MAC_update(a->mac, aad, aad_len));
    MUST(EVP_MAC_update(a->mac, in, len));
    MUST(EVP_MAC_final(a->mac, full, &n, sizeof full));
    memcpy(tag, full, AEAD_TAG_BYTES);
}

void aead_seal(aead *a, const uint8_t nonce[AEAD_NONCE_BYTES], const uint8_t *aad, size_t aad_len,
               const uint8_t *in, size_t len, uint8_t *out)
{
    int n = 0;
    if (a->fast) {
        gcm_encrypt(a->fast, nonce, aad, aad_len, in, len, out, out + len);
        return;
    }
    if (a->mac) {
        mac_tag(a, aad, aad_len, in, len, out + len);
        if (len && in != out)
            memcpy(out, in, len);
        return;
    }
    MUST(EVP_CipherInit_ex(a->cipher, NULL, NULL, NULL, nonce, 1));
    if (aad_len)
        MUST(EVP_CipherUpdate(a->cipher, NULL, &n, aad, (int)aad_len));
    if (len)
        MUST(EVP_CipherUpdate(a->cipher, out, &n, in, (int)len));
    MUST(EVP_CipherFinal_ex(a->cipher, out + len, &n));
    MUST(EVP_CIPHER_CTX_ctrl(a->cipher, EVP_CTRL_AEAD_GET_TAG, AEAD_TAG_BYTES, out + len));
}

bool aead_open(aead *a, const uint8_t nonce[AEAD_NONCE_BYTES], const uint8_t *aad, size_t aad_len,
               const uint8_t *in, size_t len, uint8_t *out)
{
    int n = 0;
    uint8_t tag[AEAD_TAG_BYTES];
    if (len < AEAD_TAG_BYTES)
        return false;
    len -= AEAD_TAG_BYTES;
    if (a->fast) {
        uint8_t want[AEAD_TAG_BYTES];
        memcpy(want, in + len, sizeof want); /* out may be in */
        gcm_decrypt(a->fast, nonce, aad, aad_len, in, len, out, tag);
        return secure_eq(tag, want, sizeof want);
    }
    if (a->mac) {
        mac_tag(a, aad, aad_len, in, len, tag);
        if (!secure_eq(tag, in + len, AEAD_TAG_BYTES))
            return false;
        if (len && in != out)
            memcpy(out, in, len);
        return true;
    }
    memcpy(tag, in + len, AEAD_TAG_BYTES);
    MUST(EVP_CipherInit_ex(a->cipher, NULL, NULL, NULL, nonce, 0));
    if (aad_len)
        MUST(EVP_CipherUpdate(a->cipher, NULL, &n, aad, (int)aad_len));
    if (len)
        MUST(EVP_CipherUpdate(a->cipher, out, &n, in, (int)len));
    MUST(EVP_CIPHER_CTX_ctrl(a->cipher, EVP_CTRL_AEAD_SET_TAG, AEAD_TAG_BYTES, tag));
    return EVP_CipherFinal_ex(a->cipher, out + len, &n) == 1;
}

void aead_nonce(uint8_t nonce[AEAD_NONCE_BYTES], uint64_t n)
{
    memset(nonce, 0, 4);
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(n >> (56 - 8 * i));
}

void hmac_sha256(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len,
                 uint8_t out[SHA256_BYTES])
{
    uint8_t pad[SHA256_CBLOCK] = {0};
    SHA256_CTX c;
    if (key_len > sizeof pad)
        SHA256(key, key_len, pad);
    else if (key_len)
        memcpy(pad, key, key_len);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36;
    MUST(SHA256_Init(&c));
    MUST(SHA256_Update(&c, pad, sizeof pad));
    MUST(SHA256_Update(&c, data, len));
    MUST(SHA256_Final(out, &c));
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    MUST(SHA256_Init(&c));
    MUST(SHA256_Update(&c, pad, sizeof pad));
    MUST(SHA256_Update(&c, out, SHA256_BYTES));
    MUST(SHA256_Final(out, &c));
    secure_wipe(pad, sizeof pad);
    secure_wipe(&c, sizeof c);
}

void hkdf_extract(const uint8_t *secret, size_t len, uint8_t prk[SHA256_BYTES])
{
    static const uint8_t salt[SHA256_BYTES];
    hmac_sha256(salt, sizeof salt, secret, len, prk);
}

void hkdf_expand(const uint8_t prk[SHA256_BYTES], const uint8_t *info, size_t info_len,
                 uint8_t *out, size_t out_len)
{
    uint8_t t[SHA256_BYTES], block[SHA256_BYTES + 256 + 1];
    size_t t_len = 0;
    MUST(info_len <= 256 && out_len <= 255 * SHA256_BYTES);
    for (uint8_t i = 1; out_len > 0; i++) {
        size_t n = out_len < SHA256_BYTES ? out_len : SHA256_BYTES;
        memcpy(block, t, t_len);
        if (info_len)
            memcpy(block + t_len, info, info_len);
        block[t_len + info_len] = i;
        hmac_sha256(prk, SHA256_BYTES, block, t_len + info_len + 1, t);
        t_len = sizeof t;
        memcpy(out, t, n);
        out += n;
        out_len -= n;
    }
    secure_wipe(t, sizeof t);
    secure_wipe(block, sizeof block);
}

void hkdf_sha256(const uint8_t *secret, size_t len, const uint8_t *info, size_t info_len,
                 uint8_t *out, size_t out_len)
{
    uint8_t prk[SHA256_BYTES];
    hkdf_extract(secret, len, prk);
    hkdf_expand(prk, info, info_len, out, out_len);
    secure_wipe(prk, sizeof prk);
}

struct sha256 {
    EVP_MD_CTX *md;
};

sha256 *sha256_new(void)
{
    sha256 *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->md = EVP_MD_CTX_new();
    if (!h->md || !EVP_DigestInit_ex(h->md, EVP_sha256(), NULL)) {
        sha256_free(h);
        return NULL;
    }
    return h;
}

void sha256_update(sha256 *h, const void *data, size_t len)
{
    MUST(EVP_DigestUpdate(h->md, data, len));
}

void sha256_final(sha256 *h, uint8_t out[SHA256_BYTES])
{
    MUST(EVP_DigestFinal_ex(h->md, out, NULL));
    sha256_free(h);
}

void sha256_free(sha256 *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->md);
    free(h);
}

bool secure_eq(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

void secure_wipe(void *p, size_t len)
{
    OPENSSL_cleanse(p, len);
}

void sys_random(void *arg, uint8_t *buf, size_t len)
{
    (void)arg;
    while (len > 0) {
        ssize_t n = getrandom(buf, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        MUST(n > 0);
        buf += n;
        len -= (size_t)n;
    }
}

bool replay_fresh(const replay_window *w, uint64_t n)
{
    if (n == 0)
        return false;
    if (n > w->top)
        return true;
    if (w->top - n >= REPLAY_BITS)
        return false;
    return !(w->bits[n / 64 % (REPLAY_BITS / 64)] >> (n % 64) & 1);
}

void replay_mark(replay_window *w, uint64_t n)
{
    if (n > w->top) {
        uint64_t ahead = n - w->top;
        if (ahead >= REPLAY_BITS)
            memset(w->bits, 0, sizeof w->bits);
        for (uint64_t k = 1; k <= ahead && ahead < REPLAY_BITS; k++)
            w->bits[(w->top + k) / 64 % (REPLAY_BITS / 64)] &= ~(1ull << ((w->top + k) % 64));
        w->top = n;
    }
    w->bits[n / 64 % (REPLAY_BITS / 64)] |= 1ull << (n % 64);
}
