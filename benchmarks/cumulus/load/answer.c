#include "answer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void answer_begin(struct answer *a, bool no_body)
{
    a->state = ANSWER_STATUS;
    a->status = 0;
    a->no_body = no_body;
    a->close = a->chunked = a->known = false;
    a->left = a->body_bytes = a->length = 0;
    a->line_n = a->keep_n = 0;
    a->location[0] = 0;
}

/* 0, or -1 if it is not a number in this base. */
static int number(const char *text, int base, uint64_t *value)
{
    char *end;
    *value = strtoull(text, &end, base);
    return end == text || (*end && *end != ' ' && *end != ';') ? -1 : 0;
}

static int status_line(struct answer *a)
{
    if (a->line_n < 12 || strncmp(a->line, "HTTP/1.", 7))
        return -1;
    a->close = a->line[7] == '0';
    a->status = atoi(a->line + 9);
    a->state = ANSWER_HEADER;
    return a->status < 100 ? -1 : 0;
}

static int head_end(struct answer *a)
{
    if (a->status < 200) {
        answer_begin(a, a->no_body);
        return 0;
    }
    if (a->no_body || a->status == 204 || a->status == 304) {
        a->state = ANSWER_DONE;
    } else if (a->chunked) {
        a->state = ANSWER_CHUNK_SIZE;
    } else if (a->known) {
        a->left = a->length;
        a->state = a->left ? ANSWER_BODY : ANSWER_DONE;
    } else {
        return -1;
    }
    return 0;
}

static int header(struct answer *a)
{
    char *value = strchr(a->line, ':');
    if (!a->line_n)
        return head_end(a);
    if (!value)
        return -1;
    *value++ = 0;
    value += strspn(value, " \t");
    if (!strcasecmp(a->line, "Content-Length")) {
        a->known = true;
        return number(value, 10, &a->length);
    }
    if (!strcasecmp(a->line, "Transfer-Encoding"))
        a->chunked = !strcasecmp(value, "chunked");
    else if (!strcasecmp(a->line, "Connection") && !strcasecmp(value, "close"))
        a->close = true;
    else if (!strcasecmp(a->line, "Location") && strlen(value) < sizeof a->location)
        strcpy(a->location, value);
    return 0;
}

/* A line is complete, without its end. */
static int line(struct answer *a)
{
    switch (a->state) {
    case ANSWER_STATUS:
        return status_line(a);
    case ANSWER_HEADER:
        return header(a);
    case ANSWER_CHUNK_SIZE:
        if (number(a->line, 16, &a->left))
            return -1;
        a->state = a->left ? ANSWER_CHUNK : ANSWER_TRAILER;
        return 0;
    case ANSWER_CHUNK_END:
        a->state = ANSWER_CHUNK_SIZE;
        return a->line_n ? -1 : 0;
    case ANSWER_TRAILER:
        if (!a->line_n)
            a->state = ANSWER_DONE;
        return 0;
    default:
        return -1;
    }
}

static void body(struct answer *a, const char *data, size_t n)
{
    size_t room = a->keep_cap - a->keep_n, kept = n < room ? n : room;
    if (kept)
        memcpy(a->keep + a->keep_n, data, kept);
    a->keep_n += kept;
    a->body_bytes += n;
    a->left -= n;
    if (!a->left)
        a->state = a->state == ANSWER_BODY ? ANSWER_DONE : ANSWER_CHUNK_END;
}

/* Bytes up to the end of a line, which is looked at when it is whole. */
static ssize_t part_of_line(struct answer *a, const char *data, size_t n)
{
    const char *end = memchr(data, '\n', n);
    size_t used = end ? (size_t)(end - data) : n;
    if (a->line_n + used >= sizeof a->line)
        return -1;
    memcpy(a->line + a->line_n, data, used);
    a->line_n += used;
    if (!end)
        return (ssize_t)used;
    if (a->line_n && a->line[a->line_n - 1] == '\r')
        a->line_n--;
    a->line[a->line_n] = 0;
    if (line(a))
        return -1;
    a->line_n = 0;
    return (ssize_t)used + 1;
}

ssize_t answer_take(struct answer *a, const char *data, size_t n)
{
    size_t used = 0;
    while (used < n && a->state != ANSWER_DONE) {
        if (a->state == ANSWER_BODY || a->state == ANSWER_CHUNK) {
            size_t take = n - used < a->left ? n - used : (size_t)a->left;
            body(a, data + used, take);
            used += take;
        } else {
            ssize_t took = part_of_line(a, data + used, n - used);
            if (took < 0)
                return -1;
            used += (size_t)took;
        }
    }
    return (ssize_t)used;
}
