#include "crypto/gcm.h"

#include "crypto/aead.h"

#include <dlfcn.h>
#include <openssl/crypto.h>
#include <stdlib.h>

#if __has_include(<intel-ipsec-mb.h>)
#include <intel-ipsec-mb.h>

struct gcm {
    struct gcm_key_data key;
};

static IMB_MGR *lib; /* for the life of the process; its table of functions is all that is used */

/* The library is looked for at run time: a module built beside it runs without it too. */
static void find(void)
{
    void *so = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
    IMB_MGR *(*make)(uint64_t) = NULL;
    void (*init)(IMB_MGR *, IMB_ARCH *) = NULL;
    void (*drop)(IMB_MGR *) = NULL;
    if (!so)
        return;
    *(void **)&make = dlsym(so, "alloc_mb_mgr");
    *(void **)&init = dlsym(so, "init_mb_mgr_auto");
    *(void **)&drop = dlsym(so, "free_mb_mgr");
    IMB_MGR *m = make && init && drop ? make(0) : NULL;
    IMB_ARCH arch = IMB_ARCH_NONE;
    if (m)
        init(m, &arch);
    if (m && (arch == IMB_ARCH_NONE || arch == IMB_ARCH_NOAESNI || !m->gcm256_pre ||
              !m->gcm256_enc || !m->gcm256_dec)) {
        drop(m);
        m = NULL;
    }
    if (m)
        lib = m;
    else
        dlclose(so);
}

bool gcm_supported(void)
{
    static CRYPTO_ONCE once = CRYPTO_ONCE_STATIC_INIT;
    return CRYPTO_THREAD_run_once(&once, find) && lib;
}

gcm *gcm_new(const uint8_t key[GCM_KEY_BYTES])
{
    gcm *g = gcm_supported() ? aligned_alloc(64, (sizeof *g + 63) / 64 * 64) : NULL;
    if (g)
        IMB_AES256_GCM_PRE(lib, key, &g->key);
    return g;
}

void gcm_free(gcm *g)
{
    if (g)
        secure_wipe(g, sizeof *g);
    free(g);
}

/* The library does nothing at all for a NULL, of whatever length. */
static const uint8_t *some(const uint8_t *b)
{
    static const uint8_t none[1];
    return b ? b : none;
}

void gcm_encrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES])
{
    struct gcm_context_data c;
    IMB_AES256_GCM_ENC(lib, &g->key, &c, out, some(in), len, nonce, some(aad), aad_len, tag,
                       GCM_TAG_BYTES);
}

void gcm_decrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES])
{
    struct gcm_context_data c;
    IMB_AES256_GCM_DEC(lib, &g->key, &c, out, some(in), len, nonce, some(aad), aad_len, tag,
                       GCM_TAG_BYTES);
}
#else

bool gcm_supported(void)
{
    return false;
}

gcm *gcm_new(const uint8_t key[GCM_KEY_BYTES])
{
    (void)key;
    return NULL;
}

void gcm_free(gcm *g)
{
    (void)g;
}

void gcm_encrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES])
{
    (void)g, (void)nonce, (void)aad, (void)aad_len, (void)in, (void)len, (void)out, (void)tag;
}

void gcm_decrypt(const gcm *g, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *aad,
                 size_t aad_len, const uint8_t *in, size_t len, uint8_t *out,
                 uint8_t tag[GCM_TAG_BYTES])
{
    (void)g, (void)nonce, (void)aad, (void)aad_len, (void)in, (void)len, (void)out, (void)tag;
}

#endif
