/* Reader of HTTP/1.1 responses: bytes in, head and body out, no I/O. */
#ifndef S3LOAD_ANSWER_H
#define S3LOAD_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum answer_state {
    ANSWER_STATUS,
    ANSWER_HEADER,
    ANSWER_BODY,
    ANSWER_CHUNK_SIZE,
    ANSWER_CHUNK,
    ANSWER_CHUNK_END,
    ANSWER_TRAILER,
    ANSWER_DONE,
};

struct answer {
    enum answer_state state;
    int status;          /* of the last status line; 0 = none yet */
    bool no_body;        /* the request was a HEAD */
    bool close;          /* the server ends the connection after it */
    bool chunked;        /* Transfer-Encoding: chunked */
    bool known;          /* a Content-Length was there */
    uint64_t left;       /* bytes of the body or chunk that are still to come */
    uint64_t body_bytes; /* bytes of the body so far, without chunk framing */
    uint64_t length;     /* Content-Length, also of an answer to HEAD */
    char location[4096]; /* Location, empty if there is none */
    char line[8192];     /* what has come of the line under way */
    size_t line_n;
    char *keep; /* where the body is kept; owned by the caller, lives as long as this */
    size_t keep_cap, keep_n;
};

/* Begin a new answer; `keep` stays. */
void answer_begin(struct answer *a, bool no_body);

/* Take bytes until the answer is complete. How many were taken, or -1 if this is not HTTP that we
 * read (a line over 8 KB, a bad number, a body without a length). */
ssize_t answer_take(struct answer *a, const char *data, size_t n);

#endif
