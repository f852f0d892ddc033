/* AES-256-GCM by Intel's IPsec multi-buffer library, which has code for the wide AES and multiply
 * instructions of newer processors: five times as fast on a packet as libcrypto 3.0. Where it is
 * not installed, or a trial record is not as libcrypto's, aead.c uses libcrypto. NIST SP 800-38D.
 */
#ifndef CRYPTO_GCM_H
#define CRYPTO_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GCM_KEY_BYTES 32
#define GCM_NONCE_BYTES 12
#define GCM_TAG_BYTES 16

struct gcm;
typedef struct gcm gcm;

bool gcm_supported(void); /* is the library there, with code for this processor? */
/* NULL without memory or support. Read only afterwards: threads may share it. */
gcm *gcm_new(const uint8_t key[GCM_KEY_BYTES]);
void gcm_free(gcm *g); /* NULL is allowed; wipes the key */
/* Encrypts `len` bytes into out and gives the tag. Pointers to no bytes may be NULL but for out. in
 * == out is allowed; other overlap is not. */
void gcm_encrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES]);
/* Decrypts and gives the tag that the record should have: the caller compares it. */
void gcm_decrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES]);

#endif
