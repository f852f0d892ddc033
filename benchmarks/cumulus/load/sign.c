#include "sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

static const char SIGNED[] = "host;x-amz-content-sha256;x-amz-date";

int sign_init(struct sign_key *key, const char *access, const char *secret, const char *region)
{
    memset(key, 0, sizeof *key);
    if (strlen(access) >= sizeof key->access || strlen(secret) >= sizeof key->secret ||
        strlen(region) >= sizeof key->region)
        return -1;
    strcpy(key->access, access);
    strcpy(key->secret, secret);
    strcpy(key->region, region);
    return 0;
}

static void hex(const unsigned char *digest, char out[SIGN_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[64] = 0;
}

void sign_hash(const void *data, size_t n, char out[SIGN_HEX])
{
    unsigned char digest[32];
    SHA256(data, n, digest);
    hex(digest, out);
}

void sign_time(time_t now, char out[SIGN_TIME])
{
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(out, SIGN_TIME, "%Y%m%dT%H%M%SZ", &parts);
}

int sign_encode(const char *text, bool slash, char *out, size_t cap)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        bool plain = (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z') ||
                     (*at >= '0' && *at <= '9') || strchr("-._~", *at) || (slash && *at == '/');
        if (n + 4 > cap)
            return -1;
        if (plain) {
            out[n++] = (char)*at;
        } else {
            out[n++] = '%';
            out[n++] = digits[*at >> 4];
            out[n++] = digits[*at & 15];
        }
    }
    if (n >= cap)
        return -1;
    out[n] = 0;
    return (int)n;
}

static int mac(const void *key, size_t key_n, const char *text, unsigned char out[32])
{
    unsigned n = 32;
    const void *done =
        HMAC(EVP_sha256(), key, (int)key_n, (const unsigned char *)text, strlen(text), out, &n);
    return done ? 0 : -1;
}

static int derive(struct sign_key *key, const char *day)
{
    char first[sizeof key->secret + 4];
    unsigned char a[32], b[32];
    int n = snprintf(first, sizeof first, "AWS4%s", key->secret);
    if (mac(first, (size_t)n, day, a) || mac(a, 32, key->region, b) || mac(b, 32, "s3", a) ||
        mac(a, 32, "aws4_request", key->derived))
        return -1;
    memcpy(key->day, day, 9);
    return 0;
}

int sign_authorization(struct sign_key *key, const struct sign_request *request, char *out,
                       size_t cap)
{
    char canonical[8192], to_sign[256], day[9], digest[SIGN_HEX], signature[SIGN_HEX];
    unsigned char result[32];
    int n;

    snprintf(day, sizeof day, "%.8s", request->time);
    if (strcmp(day, key->day) && derive(key, day))
        return -1;
    n = snprintf(canonical, sizeof canonical,
                 "%s\n%s\n%s\nhost:%s\nx-amz-content-sha256:%s\nx-amz-date:%s\n\n%s\n%s",
                 request->method, request->path, request->query, request->host, request->payload,
                 request->time, SIGNED, request->payload);
    if (n < 0 || (size_t)n >= sizeof canonical)
        return -1;
    sign_hash(canonical, (size_t)n, digest);
    n = snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s",
                 request->time, day, key->region, digest);
    if (n < 0 || (size_t)n >= sizeof to_sign || mac(key->derived, 32, to_sign, result))
        return -1;
    hex(result, signature);
    n = snprintf(
        out, cap,
        "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, SignedHeaders=%s, Signature=%s",
        key->access, day, key->region, SIGNED, signature);
    return n < 0 || (size_t)n >= cap ? -1 : n;
}
