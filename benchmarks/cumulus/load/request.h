/* Heads of requests. */
#ifndef S3LOAD_REQUEST_H
#define S3LOAD_REQUEST_H

#include "load.h"

/* What all requests of a run have in common. */
struct request_maker {
    const struct load_options *options;
    struct sign_key *key;
    char *body;               /* `size` bytes that do not compress */
    char payload[SIGN_HEX];   /* x-amz-content-sha256 of a PUT */
    char empty[SIGN_HEX];     /* of a request without body */
    char prefix[3 * 512 + 1]; /* percent-encoded as part of a path */
    char time[SIGN_TIME];     /* now */
};

/* 0, or -1 without memory. request_end frees. */
int request_begin(struct request_maker *maker, const struct load_options *options,
                  struct sign_key *key);
void request_end(struct request_maker *maker);

/* The head for a key (its number), or for the page after `token` (empty = the first). Its length,
 * or -1 if it is too long. */
int request_head(struct request_maker *maker, uint64_t number, const char *token, char *out,
                 size_t cap);

/* The head of the same request to where a redirection points, whose URL carries the signature. */
int request_again(const struct request_maker *maker, const char *host, const char *location,
                  char *out, size_t cap);

/* Read NextContinuationToken of a page, with its entities resolved; empty if there is none. Counts
 * the keys. */
uint64_t request_page(const char *page, size_t n, char token[LOAD_TOKEN_MAX]);

#endif
