#include "wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static int fill(struct wire *wire)
{
    ssize_t n;
    do
        n = recv(wire->fd, wire->buffer, WIRE_BUFFER, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return -1;
    wire->at = 0;
    wire->n = (size_t)n;
    return 0;
}

/* A line without its end. Its length, or -1. */
static int line(struct wire *wire, char *out, size_t cap)
{
    size_t n = 0;
    for (;;) {
        char c;
        if (wire->at == wire->n && fill(wire))
            return -1;
        c = wire->buffer[wire->at++];
        if (c == '\n')
            break;
        if (n + 1 >= cap)
            return -1;
        out[n++] = c;
    }
    if (n && out[n - 1] == '\r')
        n--;
    out[n] = 0;
    return (int)n;
}

static void range(struct wire_request *request, const char *value)
{
    char *end;
    if (strncasecmp(value, "bytes=", 6) || value[6] == '-')
        return;
    request->first = strtoull(value + 6, &end, 10);
    if (*end != '-')
        return;
    request->last = end[1] ? strtoull(end + 1, NULL, 10) : UINT64_MAX;
    request->ranged = true;
}

static void meta(struct wire_request *request, const char *name, const char *value)
{
    size_t at = strlen(request->meta), room = sizeof request->meta - at;
    int n = snprintf(request->meta + at, room, "%s: %s\r\n", name, value);
    if (n < 0 || (size_t)n >= room)
        request->meta[at] = 0;
}

static void header(struct wire_request *request, char *text)
{
    char *value = strchr(text, ':');
    if (!value)
        return;
    *value++ = 0;
    value += strspn(value, " \t");
    if (!strcasecmp(text, "Content-Length"))
        request->length = strtoull(value, NULL, 10);
    else if (!strcasecmp(text, "Transfer-Encoding"))
        request->chunked = !strcasecmp(value, "chunked");
    else if (!strcasecmp(text, "Expect"))
        request->expects = true;
    else if (!strcasecmp(text, "Range"))
        range(request, value);
    else if (!strncasecmp(text, "x-amz-meta-", 11))
        meta(request, text, value);
}

int wire_head(struct wire *wire, struct wire_request *request)
{
    char text[16384], *target, *end;
    int n = line(wire, text, sizeof text);
    memset(request, 0, sizeof *request);
    if (n <= 0)
        return -1;
    target = strchr(text, ' ');
    end = target ? strchr(target + 1, ' ') : NULL;
    if (!end || target - text >= WIRE_METHOD || end - target > WIRE_TARGET)
        return -1;
    memcpy(request->method, text, (size_t)(target - text));
    memcpy(request->target, target + 1, (size_t)(end - target - 1));
    while ((n = line(wire, text, sizeof text)) > 0)
        header(request, text);
    return n;
}

static int skip(struct wire *wire, uint64_t n)
{
    while (n) {
        size_t there;
        if (wire->at == wire->n && fill(wire))
            return -1;
        there = wire->n - wire->at;
        if (there > n)
            there = (size_t)n;
        wire->at += there;
        n -= there;
    }
    return 0;
}

static int64_t skip_chunks(struct wire *wire)
{
    char text[256];
    int64_t whole = 0;
    for (;;) {
        uint64_t n;
        if (line(wire, text, sizeof text) <= 0)
            return -1;
        n = strtoull(text, NULL, 16);
        if (!n)
            break;
        if (skip(wire, n) || line(wire, text, sizeof text))
            return -1;
        whole += (int64_t)n;
    }
    for (;;) { /* the trailer */
        int n = line(wire, text, sizeof text);
        if (n <= 0)
            return n < 0 ? -1 : whole;
    }
}

int64_t wire_skip_body(struct wire *wire, const struct wire_request *request)
{
    if (request->chunked)
        return skip_chunks(wire);
    return skip(wire, request->length) ? -1 : (int64_t)request->length;
}

int wire_send(int fd, const char *data, size_t n, bool more)
{
    while (n) {
        ssize_t took = send(fd, data, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (took < 0 && errno == EINTR)
            continue;
        if (took <= 0)
            return -1;
        data += took;
        n -= (size_t)took;
    }
    return 0;
}
