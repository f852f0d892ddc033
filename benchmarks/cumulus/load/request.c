#include "request.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const METHODS[] = {"GET", "PUT", "HEAD", "GET", "DELETE", "PUT"};

/* Bytes that no file system or server can compress, the same in each run. */
static void fill(char *body, size_t n)
{
    uint64_t x = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        body[i] = (char)(x >> 32);
    }
}

int request_begin(struct request_maker *maker, const struct load_options *options,
                  struct sign_key *key)
{
    maker->options = options;
    maker->key = key;
    maker->body = malloc(options->size + 1);
    if (!maker->body)
        return -1;
    fill(maker->body, options->size);
    sign_hash("", 0, maker->empty);
    if (options->unsigned_body)
        strcpy(maker->payload, "UNSIGNED-PAYLOAD");
    else
        sign_hash(maker->body, options->size, maker->payload);
    if (sign_encode(options->prefix, true, maker->prefix, sizeof maker->prefix) < 0)
        return -1;
    sign_time(time(NULL), maker->time);
    return 0;
}

void request_end(struct request_maker *maker)
{
    free(maker->body);
    maker->body = NULL;
}

static int list_query(const struct request_maker *maker, const char *token, char *out, size_t cap)
{
    char encoded[3 * LOAD_TOKEN_MAX + 1], prefix[3 * 512 + 1];
    if (sign_encode(token, false, encoded, sizeof encoded) < 0 ||
        sign_encode(maker->options->prefix, false, prefix, sizeof prefix) < 0)
        return -1;
    return snprintf(out, cap, "%s%s%slist-type=2&max-keys=%d&prefix=%s",
                    *token ? "continuation-token=" : "", encoded, *token ? "&" : "",
                    maker->options->page, prefix);
}

int request_head(struct request_maker *maker, uint64_t number, const char *token, char *out,
                 size_t cap)
{
    const struct load_options *o = maker->options;
    char path[2048], query[LOAD_HEAD_MAX] = "", authorization[512], length[48] = "";
    bool with_body = o->op == LOAD_PUT;
    struct sign_request request = {.method = METHODS[o->op],
                                   .path = path,
                                   .query = query,
                                   .host = o->host,
                                   .time = maker->time,
                                   .payload = with_body ? maker->payload : maker->empty};
    int n;

    if (o->op == LOAD_LIST || o->op == LOAD_BUCKET)
        snprintf(path, sizeof path, "/%s", o->bucket);
    else
        snprintf(path, sizeof path, "/%s/%s%08llu", o->bucket, maker->prefix,
                 (unsigned long long)number);
    if (o->op == LOAD_LIST) {
        n = list_query(maker, token, query, sizeof query);
        if (n < 0 || (size_t)n >= sizeof query)
            return -1;
    }
    if (with_body || o->op == LOAD_BUCKET)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", with_body ? o->size : 0);
    if (sign_authorization(maker->key, &request, authorization, sizeof authorization) < 0)
        return -1;
    n = snprintf(out, cap,
                 "%s %s%s%s HTTP/1.1\r\nHost: %s\r\n%sx-amz-content-sha256: %s\r\n"
                 "x-amz-date: %s\r\nAuthorization: %s\r\n\r\n",
                 request.method, path, *query ? "?" : "", query, o->host, length, request.payload,
                 request.time, authorization);
    return n < 0 || (size_t)n >= cap ? -1 : n;
}

int request_again(const struct request_maker *maker, const char *host, const char *location,
                  char *out, size_t cap)
{
    const struct load_options *o = maker->options;
    const char *slashes = strstr(location, "//"), *target;
    char length[48] = "";
    int n;
    target = slashes ? strchr(slashes + 2, '/') : NULL;
    if (!target)
        return -1;
    if (o->op == LOAD_PUT)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", o->size);
    n = snprintf(out, cap, "%s %s HTTP/1.1\r\nHost: %s\r\n%sx-amz-content-sha256: %s\r\n\r\n",
                 METHODS[o->op], target, host, length,
                 o->op == LOAD_PUT ? maker->payload : maker->empty);
    return n < 0 || (size_t)n >= cap ? -1 : n;
}

/* One character of XML text; `*at` moves behind it. */
static char character(const char **at)
{
    static const struct {
        const char *name;
        char is;
    } names[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].name);
        if (!strncmp(*at, names[i].name, n)) {
            *at += n;
            return names[i].is;
        }
    }
    if ((*at)[0] == '&' && (*at)[1] == '#') {
        char *end;
        bool hex = (*at)[2] == 'x';
        long code = strtol(*at + (hex ? 3 : 2), &end, hex ? 16 : 10);
        if (*end == ';') {
            *at = end + 1;
            return (char)code;
        }
    }
    return *(*at)++;
}

uint64_t request_page(const char *page, size_t n, char token[LOAD_TOKEN_MAX])
{
    static const char open[] = "<NextContinuationToken>", key[] = "<Key>";
    const char *at = memmem(page, n, open, sizeof open - 1), *end = page + n;
    size_t length = 0;
    uint64_t keys = 0;

    if (at) {
        at += sizeof open - 1;
        while (at < end && *at != '<' && length < LOAD_TOKEN_MAX - 1)
            token[length++] = character(&at);
    }
    token[length] = 0;
    for (at = page; (at = memmem(at, (size_t)(end - at), key, sizeof key - 1)); at++)
        keys++;
    return keys;
}

int load_resolve(const char *url, struct sockaddr_in *to, char host[128])
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    char name[128], *colon;
    size_t n;
    if (strncmp(url, "http://", 7))
        return -1;
    n = strcspn(url + 7, "/");
    if (n >= sizeof name)
        return -1;
    snprintf(host, 128, "%.*s", (int)n, url + 7);
    strcpy(name, host);
    colon = strrchr(name, ':');
    if (colon)
        *colon++ = 0;
    if (getaddrinfo(name, colon ? colon : "80", &hints, &found))
        return -1;
    memcpy(to, found->ai_addr, sizeof *to);
    freeaddrinfo(found);
    return 0;
}

int load_first_head(const struct load_options *options, struct sign_key *key, const char *time,
                    const char *token, char *out, size_t cap)
{
    struct request_maker maker;
    int n = -1;
    if (!request_begin(&maker, options, key)) {
        snprintf(maker.time, sizeof maker.time, "%s", time);
        n = request_head(&maker, 0, token, out, cap);
    }
    request_end(&maker);
    return n;
}
