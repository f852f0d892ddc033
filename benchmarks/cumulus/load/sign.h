/* Signatures of S3 requests: AWS Signature Version 4, header form. Pure: the time is an argument.
 */
#ifndef S3LOAD_SIGN_H
#define S3LOAD_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

enum {
    SIGN_HEX = 65,  /* a SHA-256 in hexadecimal digits, with its end */
    SIGN_TIME = 17, /* YYYYMMDDTHHMMSSZ, with its end */
};

/* Whose requests are signed; the derived key is kept for one day of one region. */
struct sign_key {
    char access[129]; /* access key id */
    char secret[129];
    char region[65];
    char day[9];               /* YYYYMMDD that `derived` is good for; empty = none yet */
    unsigned char derived[32]; /* HMAC chain of secret, day, region and service */
};

/* What is signed of a request. All text is borrowed for the call. */
struct sign_request {
    const char *method;
    const char *path;    /* percent-encoded, begins with / */
    const char *query;   /* percent-encoded and sorted by name; may be empty */
    const char *host;    /* value of Host */
    const char *time;    /* value of x-amz-date */
    const char *payload; /* value of x-amz-content-sha256 */
};

/* Keep key and region. 0, or -1 if one is too long. */
int sign_init(struct sign_key *key, const char *access, const char *secret, const char *region);

/* SHA-256 of `n` bytes in hexadecimal digits. */
void sign_hash(const void *data, size_t n, char out[SIGN_HEX]);

/* A time in seconds since 1970 as x-amz-date has it. */
void sign_time(time_t now, char out[SIGN_TIME]);

/* Percent-encode all but unreserved characters; `slash` leaves / as it is. The length, or -1 if
 * `cap` bytes are too few. */
int sign_encode(const char *text, bool slash, char *out, size_t cap);

/* The value of Authorization over host, x-amz-content-sha256 and x-amz-date. The length, or -1 if
 * `cap` bytes are too few or libcrypto fails. */
int sign_authorization(struct sign_key *key, const struct sign_request *request, char *out,
                       size_t cap);

#endif
