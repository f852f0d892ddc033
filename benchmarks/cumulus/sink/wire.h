/* Reading HTTP requests from a socket, with the body thrown away. */
#ifndef S3SINK_WIRE_H
#define S3SINK_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_BUFFER = 1 << 20, WIRE_TARGET = 4096, WIRE_METHOD = 16, WIRE_META = 2048 };

struct wire {
    int fd;
    char *buffer; /* WIRE_BUFFER bytes */
    size_t at, n; /* what is unread of it */
};

/* The parts of a request's head that the sink looks at. */
struct wire_request {
    char method[WIRE_METHOD];
    char target[WIRE_TARGET];
    char meta[WIRE_META]; /* the x-amz-meta- headers as lines, as far as there is room */
    uint64_t length;      /* Content-Length */
    bool chunked;         /* Transfer-Encoding: chunked */
    bool expects;         /* Expect: 100-continue */
    bool ranged;          /* Range: bytes=first-last */
    uint64_t first, last; /* last = UINT64_MAX when it is open */
};

/* Read a head. 0, or -1 at the end of the connection or when it is no HTTP. */
int wire_head(struct wire *wire, struct wire_request *request);

/* Take the body and forget it. Its bytes without framing, or -1 if the connection ended before. */
int64_t wire_skip_body(struct wire *wire, const struct wire_request *request);

/* Send all of it. 0 or -1. */
int wire_send(int fd, const char *data, size_t n, bool more);

#endif
