/* Load on one bucket of an S3 server: N kept connections, one thread, closed or open loop. */
#ifndef S3LOAD_LOAD_H
#define S3LOAD_LOAD_H

#include "answer.h"
#include "hist.h"
#include "sign.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum load_op { LOAD_GET, LOAD_PUT, LOAD_HEAD, LOAD_LIST, LOAD_DELETE, LOAD_BUCKET };

enum {
    LOAD_HEAD_MAX = 8192,    /* bytes of a request's head */
    LOAD_PAGE_MAX = 4 << 20, /* bytes of a listing's page */
    LOAD_TOKEN_MAX = 2048,   /* bytes of a continuation token */
    LOAD_STATUSES = 600,
};

struct load_options {
    enum load_op op;
    struct sockaddr_in to;
    char host[128]; /* value of Host */
    char bucket[64];
    char prefix[512];   /* of the keys, before 8 digits */
    uint64_t keys;      /* how many keys there are, > 0 */
    size_t size;        /* bytes of an object */
    int connections;    /* > 0 */
    int page;           /* keys of a page of LIST */
    double seconds;     /* how long is counted; 0 = until `requests` are done */
    double warm_s;      /* how long runs before without being counted */
    double rate;        /* requests a second; 0 = each connection as fast as it is answered */
    uint64_t requests;  /* end after so many; 0 = after `seconds` */
    double grace_s;     /* how long answers are waited for after the end */
    bool unsigned_body; /* UNSIGNED-PAYLOAD instead of the body's SHA-256 */
    bool follow;  /* go where a redirection points, with a connection for that request alone */
    bool in_turn; /* GET and HEAD take the keys in turn, not by chance */
};

/* What was counted. `latency` runs from when the request was to be sent: in an open loop also while
 * it waited for a free connection. */
struct load_counts {
    struct hist latency;
    uint64_t done, errors; /* whole good answers; all others */
    uint64_t status[LOAD_STATUSES];
    uint64_t bytes_in, bytes_out; /* of bodies */
    uint64_t followed;            /* redirections */
    uint64_t
        taken; /* bytes of good bodies that came while it was counted, also of unfinished ones */
    uint64_t listed;     /* keys in pages */
    uint64_t unsent;     /* open loop: never sent, since no connection was free in time */
    uint64_t unanswered; /* still under way when the last wait was over */
    uint64_t connects;
    int64_t counted_us; /* how long was counted, monotonic time */
    char first_error[400];
};

/* The address in http://HOST:PORT/..., and what is to be Host. 0, or -1 if there is no such host.
 */
int load_resolve(const char *url, struct sockaddr_in *to, char host[128]);

/* Run it. 0 when there is something to tell: a good answer, or in a closed loop of some seconds
 * bytes of one, which may begin before them and end after. Else -1 with one line in
 * `counts->first_error`, which after an error-free run says at which step a request is that stayed
 * unanswered.
 */
int load_run(const struct load_options *options, struct sign_key *key, struct load_counts *counts);

/* The head of the first request, as it would be sent at a time, for tests of the signature. Its
 * length or -1. */
int load_first_head(const struct load_options *options, struct sign_key *key, const char *time,
                    const char *token, char *out, size_t cap);

#endif
