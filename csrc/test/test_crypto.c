#include "crypto/aead.h"
#include "crypto/gcm.h"
#include "test.h"

#include <openssl/evp.h>
#include <time.h>

static const int algs[] = {AEAD_HMAC_SHA256, AEAD_AES256GCM, AEAD_AES256GCM_LIBCRYPTO};

static size_t unhex(const char *s, uint8_t *out)
{
    size_t n = 0;
    for (; s[0] && s[1]; s += 2) {
        unsigned v;
        sscanf(s, "%2x", &v);
        out[n++] = (uint8_t)v;
    }
    return n;
}

/* RFC 5869 test cases 3 (empty salt, empty info) and RFC 4231 case 2. */
TEST(crypto_hkdf_and_hmac_published_vectors)
{
    uint8_t ikm[22], okm[42], want[42], tag[32];
    memset(ikm, 0x0b, sizeof ikm);
    hkdf_sha256(ikm, sizeof ikm, NULL, 0, okm, sizeof okm);
    CHECK_INT(unhex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
                    "9d201395faa4b61a96c8",
                    want),
              42);
    CHECK_MEM(okm, want, 42);
    hmac_sha256((const uint8_t *)"Jefe", 4, (const uint8_t *)"what do ya want for nothing?", 28,
                tag);
    unhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", want);
    CHECK_MEM(tag, want, 32);
}

/* GCM specification, test case 16 (AES-256, 60 bytes, 20 bytes of associated data). */
TEST(crypto_aes_gcm_published_vector)
{
    uint8_t key[32], iv[12], aad[20], in[64], want[80], out[80];
    unhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", key);
    unhex("cafebabefacedbaddecaf888", iv);
    unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2", aad);
    size_t n = unhex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
                     "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
                     in);
    unhex("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
          "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
          "76fc6ece0f4e1768cddf8853bb2d551b",
          want);
    for (int i = 1; i < 3; i++) {
        aead *a = aead_new(algs[i], key);
        aead_seal(a, iv, aad, 20, in, n, out);
        CHECK_MEM(out, want, n + 16);
        CHECK(aead_open(a, iv, aad, 20, out, n + 16, out));
        CHECK_MEM(out, in, n);
        aead_free(a);
    }
}

/* One record with libcrypto alone. */
static void lib_seal(const uint8_t *key, const uint8_t *iv, const uint8_t *aad, size_t aad_len,
                     const uint8_t *in, size_t len, uint8_t *out)
{
    int n;
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    CHECK(EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, iv));
    CHECK(!aad_len || EVP_EncryptUpdate(c, NULL, &n, aad, (int)aad_len));
    CHECK(!len || EVP_EncryptUpdate(c, out, &n, in, (int)len));
    CHECK(EVP_EncryptFinal_ex(c, out + len, &n));
    CHECK(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, AEAD_TAG_BYTES, out + len));
    EVP_CIPHER_CTX_free(c);
}

/* Every length up to 600 and some larger ones, at every alignment, with headers of all lengths,
 * in place and not. Nothing is written behind the record. */
TEST(crypto_fast_gcm_is_that_of_libcrypto)
{
    enum { MOST = 17000 };
    static uint8_t in[MOST + 64], want[MOST + 64], out[MOST + 128], aad[80];
    uint8_t key[32], iv[12], tag[16];
    if (!gcm_supported())
        return; /* then nobody uses it */
    uint64_t s = test_seed | 1;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)((s = s * 6364136223846793005u + 1442695040888963407u) >> 56);
    for (size_t i = 0; i < 700; i++) {
        size_t len = i < 600 ? i : (s >> 30) % MOST, at = i % 61, aad_len = i * 7 % 71;
        for (size_t k = 0; k < sizeof key; k++)
            key[k] = (uint8_t)((s = s * 6364136223846793005u + 1442695040888963407u) >> 56);
        memcpy(iv, in + i, sizeof iv);
        memcpy(aad, in + 2 * i, sizeof aad);
        gcm *g = gcm_new(key);
        CHECK(g);
        lib_seal(key, iv, aad, aad_len, in + at, len, want);
        memset(out, 0xA5, sizeof out);
        gcm_encrypt(g, iv, aad, aad_len, in + at, len, out + at, tag);
        CHECK_MEM(out + at, want, len);
        CHECK_MEM(tag, want + len, 16);
        CHECK_INT(out[at + len], 0xA5);
        gcm_decrypt(g, iv, aad, aad_len, out + at, len, out + at, tag);
        CHECK_MEM(out + at, in + at, len);
        CHECK_MEM(tag, want + len, 16);
        CHECK_INT(out[at + len], 0xA5);
        gcm_free(g);
    }
}

TEST(crypto_seal_open_rejects_any_flipped_bit)
{
    for (int i = 0; i < 3; i++) {
        int alg = algs[i];
        uint8_t key[32] = {7}, iv[12], aad[9] = "headerxx", msg[50], box[66], out[66];
        memset(msg, 'm', sizeof msg);
        aead *s = aead_new(alg, key), *o = aead_new(alg, key);
        aead_nonce(iv, 0x0102030405060708u);
        CHECK_INT(iv[3], 0);
        CHECK_INT(iv[4], 1);
        CHECK_INT(iv[11], 8);
        memcpy(box, msg, sizeof msg);
        aead_seal(s, iv, aad, sizeof aad, box, sizeof msg, box); /* in place */
        for (size_t bit = 0; bit < sizeof box * 8; bit++) {
            box[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK(!aead_open(o, iv, aad, sizeof aad, box, sizeof box, out));
            box[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        aad[0] ^= 1;
        CHECK(!aead_open(o, iv, aad, sizeof aad, box, sizeof box, out));
        aad[0] ^= 1;
        CHECK(!aead_open(o, iv, aad, sizeof aad, box, 15, out));
        CHECK(aead_open(o, iv, aad, sizeof aad, box, sizeof box, box));
        CHECK_MEM(box, msg, sizeof msg);
        aead_seal(s, iv, aad, sizeof aad, NULL, 0, box);
        CHECK(aead_open(o, iv, aad, sizeof aad, box, 16, out));
        aead_free(s);
        aead_free(o);
    }
    uint8_t key[32] = {0};
    CHECK(aead_new(9, key) == NULL);
}

TEST(crypto_sha256_in_pieces)
{
    uint8_t out[32], want[32];
    sha256 *h = sha256_new();
    sha256_update(h, "a", 1);
    sha256_update(h, "bc", 2);
    sha256_final(h, out);
    unhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", want);
    CHECK_MEM(out, want, 32);
    sha256_free(sha256_new());
    CHECK(secure_eq("abc", "abc", 3) && !secure_eq("abc", "abd", 3));
    uint8_t r[16] = {0}, zero[16] = {0};
    sys_random(NULL, r, sizeof r);
    CHECK(!secure_eq(r, zero, 16));
    secure_wipe(r, sizeof r);
    CHECK_MEM(r, zero, 16);
}

/* Against a plain set of numbers, with jumps of all sizes. */
TEST(crypto_replay_window_matches_a_set)
{
    enum { MAX = 60000 };
    static bool seen[MAX];
    memset(seen, 0, sizeof seen);
    replay_window w;
    memset(&w, 0, sizeof w);
    uint64_t top = 0, s = test_seed | 1;
    CHECK(!replay_fresh(&w, 0));
    for (int i = 0; i < 40000 && top < MAX - 3000; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        uint64_t r = s >> 40, n;
        if (r % 100 < 2)
            n = top + 1 + r / 100 % 2500;
        else if (r % 100 < 40)
            n = top + 1 + r / 100 % 3;
        else
            n = top > r / 100 % 1500 ? top - r / 100 % 1500 : 1;
        bool want = n > top || (top - n < REPLAY_BITS && !seen[n]);
        CHECK_INT(replay_fresh(&w, n), want);
        if (want) {
            replay_mark(&w, n);
            seen[n] = true;
            top = n > top ? n : top;
        }
        CHECK_INT(w.top, top);
    }
}

static double seal_us(aead *a, size_t len, bool open)
{
    static uint8_t buf[16384 + 16], aad[40];
    struct timespec t0, t1;
    uint8_t iv[12];
    int rounds = 20000;
    aead_nonce(iv, 1);
    aead_seal(a, iv, aad, sizeof aad, buf, len, buf);
    static uint8_t out[16384 + 16];
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (int i = 0; i < rounds; i++)
        if (open)
            CHECK(aead_open(a, iv, aad, sizeof aad, buf, len + 16, out));
        else
            aead_seal(a, iv, aad, sizeof aad, out, len, out);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    return ((double)(t1.tv_sec - t0.tv_sec) * 1e6 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-3) /
           rounds;
}

TEST_ALONE(crypto_speed_is_printed)
{
    if (test_scale < 100)
        return;
    uint8_t key[32] = {1};
    for (int i = 0; i < 3; i++) {
        aead *a = aead_new(algs[i], key);
        printf("# alg %#x: 1 KiB seal %.2f us open %.2f us; 16 KiB seal %.2f us open %.2f us\n",
               algs[i], seal_us(a, 1024, false), seal_us(a, 1024, true), seal_us(a, 16384, false),
               seal_us(a, 16384, true));
        aead_free(a);
    }
}
