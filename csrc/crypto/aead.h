/* Sealing: AEAD contexts, HKDF, hashes, replay window, random bytes.
 *
 * One `aead` per key: the key schedule is done once, each record only sets a nonce. A context is
 * used by one thread at a time. Failures of libcrypto itself (out of memory, no such algorithm)
 * are broken invariants and abort, except in aead_new, which returns NULL. */
#ifndef CRYPTO_AEAD_H
#define CRYPTO_AEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AEAD_KEY_BYTES = 32, AEAD_NONCE_BYTES = 12, AEAD_TAG_BYTES = 16, SHA256_BYTES = 32 };

/* Numbers as enum sgmp_alg. HMAC leaves the data readable and ignores the nonce, so what must be
 * unique has to be in `aad`. */
enum aead_alg {
    AEAD_HMAC_SHA256 = 1,
    AEAD_AES256GCM = 2,              /* the fastest way this processor has (gcm.h), */
    AEAD_AES256GCM_LIBCRYPTO = 0x102 /* libcrypto's; no number of the wire: for comparison */
};

struct aead;
typedef struct aead aead;

aead *aead_new(int alg, const uint8_t key[AEAD_KEY_BYTES]);
void aead_free(aead *a); /* NULL is allowed; wipes the key */
/* out = sealed data (len bytes) and tag (16). in == out is allowed; other overlap is not. */
void aead_seal(aead *a, const uint8_t nonce[AEAD_NONCE_BYTES], const uint8_t *aad, size_t aad_len,
               const uint8_t *in, size_t len, uint8_t *out);
/* `len` counts the tag at the end of `in`; out gets len - 16 bytes. False (out undefined) when the
 * record is not genuine or shorter than a tag. */
bool aead_open(aead *a, const uint8_t nonce[AEAD_NONCE_BYTES], const uint8_t *aad, size_t aad_len,
               const uint8_t *in, size_t len, uint8_t *out);
/* Nonce of counter n: four zero bytes, then n big-endian. */
void aead_nonce(uint8_t nonce[AEAD_NONCE_BYTES], uint64_t n);

/* RFC 5869 with an empty salt: both steps at once, and each alone for whoever derives from one
 * secret again and again, since the first is half of the work. out_len <= 255 * 32, info_len <=
 * 256. */
void hkdf_sha256(const uint8_t *secret, size_t len, const uint8_t *info, size_t info_len,
                 uint8_t *out, size_t out_len);
void hkdf_extract(const uint8_t *secret, size_t len, uint8_t prk[SHA256_BYTES]);
void hkdf_expand(const uint8_t prk[SHA256_BYTES], const uint8_t *info, size_t info_len,
                 uint8_t *out, size_t out_len);
void hmac_sha256(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len,
                 uint8_t out[SHA256_BYTES]);

/* Incremental SHA-256. final frees the context; sha256_free is for giving up. */
struct sha256;
typedef struct sha256 sha256;
sha256 *sha256_new(void); /* NULL: out of memory */
void sha256_update(sha256 *h, const void *data, size_t len);
void sha256_final(sha256 *h, uint8_t out[SHA256_BYTES]);
void sha256_free(sha256 *h);

bool secure_eq(const void *a, const void *b, size_t len); /* time does not depend on content */
void secure_wipe(void *p, size_t len);                    /* is never optimised away */

/* getrandom(); fits udt_rand_fn (arg unused). Aborts when the kernel cannot deliver. */
void sys_random(void *arg, uint8_t *buf, size_t len);

/* Which of the last REPLAY_BITS numbers were seen; 0 is never valid. */
enum { REPLAY_BITS = 1024 };
typedef struct replay_window {
    uint64_t top; /* highest number accepted, 0 = none */
    uint64_t bits[REPLAY_BITS / 64];
} replay_window;
bool replay_fresh(const replay_window *w, uint64_t n); /* not seen and not too old */
void replay_mark(replay_window *w, uint64_t n);        /* after the record proved genuine */

#endif
