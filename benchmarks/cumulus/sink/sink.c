/* s3sink: an S3 server that keeps nothing, so that a client's own speed is seen: it neither checks
 * signatures nor hashes nor writes. What is put is thrown away; an object is as many zeros as the
 * last number in its key says, with the metadata of the last upload to that key if it was the last
 * that had some: clients that keep a hash there verify what they get, as they do with real servers
 * (so zeros have to be put). A thread for each connection. */
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ZEROS = 4 << 20 };
#define ETAG "ETag: \"00000000000000000000000000000000-1\"\r\n"
#define DATE "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"

static int zeros; /* a file in memory of ZEROS zero bytes */

static struct {
    pthread_mutex_t lock;
    char key[WIRE_TARGET + 1], meta[WIRE_META];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t key_length(const char *target)
{
    return strcspn(target, "?");
}

static void keep_meta(const struct wire_request *request)
{
    size_t n = key_length(request->target);
    pthread_mutex_lock(&kept.lock);
    memcpy(kept.key, request->target, n);
    kept.key[n] = 0;
    memcpy(kept.meta, request->meta, sizeof kept.meta);
    pthread_mutex_unlock(&kept.lock);
}

static void find_meta(const char *target, char *meta)
{
    size_t n = key_length(target);
    pthread_mutex_lock(&kept.lock);
    *meta = 0;
    if (strlen(kept.key) == n && !memcmp(kept.key, target, n))
        memcpy(meta, kept.meta, sizeof kept.meta);
    pthread_mutex_unlock(&kept.lock);
}

/* The last number in the key, or -1 if the target names no key with a number. */
static int64_t size_of(const char *target)
{
    const char *key = strchr(target + 1, '/'), *end, *at;
    if (!key)
        return -1;
    end = key + strcspn(key, "?");
    while (end > key && (end[-1] < '0' || end[-1] > '9'))
        end--;
    for (at = end; at > key && at[-1] >= '0' && at[-1] <= '9';)
        at--;
    return at == end ? -1 : strtoll(at, NULL, 10);
}

static bool names_key(const char *target)
{
    const char *key = strchr(target + 1, '/');
    return key && key[1] && key[1] != '?';
}

static int answer(int fd, const char *status, const char *headers, const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %s\r\nServer: s3sink\r\n%sContent-Length: %zu\r\n\r\n%s", status,
                     headers, strlen(body), body);
    return n < 0 || (size_t)n >= sizeof text ? -1 : wire_send(fd, text, (size_t)n, false);
}

static int send_zeros(int fd, uint64_t n)
{
    while (n) {
        off_t from = 0;
        ssize_t took = sendfile(fd, zeros, &from, n < ZEROS ? (size_t)n : ZEROS);
        if (took < 0 && errno == EINTR)
            continue;
        if (took <= 0)
            return -1;
        n -= (uint64_t)took;
    }
    return 0;
}

/* GET and HEAD of an object, whole or a range of it. */
static int object(int fd, const struct wire_request *request)
{
    int64_t size = size_of(request->target);
    bool head = !strcmp(request->method, "HEAD");
    uint64_t first = 0, n;
    char text[WIRE_META + 512], meta[WIRE_META], part[96] = "";
    int length;

    if (size < 0)
        return answer(fd, "404 Not Found", "", head ? "" : "<Error><Code>NoSuchKey</Code></Error>");
    n = (uint64_t)size;
    if (request->ranged && request->first < n) {
        uint64_t last = request->last < n ? request->last : n - 1;
        first = request->first;
        snprintf(part, sizeof part, "Content-Range: bytes %llu-%llu/%lld\r\n",
                 (unsigned long long)first, (unsigned long long)last, (long long)size);
        n = last + 1 - first;
    }
    find_meta(request->target, meta);
    length = snprintf(text, sizeof text,
                      "HTTP/1.1 %s\r\nServer: s3sink\r\nAccept-Ranges: bytes\r\n"
                      "Content-Type: application/octet-stream\r\n" DATE ETAG
                      "%s%sContent-Length: %llu\r\n\r\n",
                      *part ? "206 Partial Content" : "200 OK", meta, part, (unsigned long long)n);
    if (wire_send(fd, text, (size_t)length, !head && n))
        return -1;
    return head ? 0 : send_zeros(fd, n);
}

static const char *post(const char *target)
{
    if (strstr(target, "?uploads"))
        return "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>"
               "</InitiateMultipartUploadResult>";
    if (strstr(target, "?delete"))
        return "<DeleteResult></DeleteResult>";
    return "<CompleteMultipartUploadResult><ETag>\"00000000000000000000000000000000-1\"</ETag>"
           "</CompleteMultipartUploadResult>";
}

static const char *bucket(const char *target)
{
    if (strstr(target, "location"))
        return "<LocationConstraint/>";
    return "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
}

static int serve(int fd, const struct wire_request *request)
{
    const char *method = request->method, *target = request->target;
    if (*request->meta)
        keep_meta(request);
    if (!strcmp(method, "PUT"))
        return answer(fd, "200 OK", ETAG, "");
    if (!strcmp(method, "DELETE"))
        return answer(fd, "204 No Content", "", "");
    if (!strcmp(method, "POST"))
        return answer(fd, "200 OK", "Content-Type: application/xml\r\n", post(target));
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        return answer(fd, "405 Method Not Allowed", "", "");
    if (names_key(target))
        return object(fd, request);
    return answer(fd, "200 OK", "Content-Type: application/xml\r\n",
                  *method == 'H' ? "" : bucket(target));
}

static void *connection(void *argument)
{
    struct wire wire = {.fd = (int)(intptr_t)argument, .buffer = malloc(WIRE_BUFFER)};
    struct wire_request request;
    int one = 1;
    setsockopt(wire.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (wire.buffer && !wire_head(&wire, &request)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        if (request.expects && wire_send(wire.fd, go_on, sizeof go_on - 1, false))
            break;
        if (wire_skip_body(&wire, &request) < 0 || serve(wire.fd, &request))
            break;
    }
    close(wire.fd);
    free(wire.buffer);
    return NULL;
}

static int listen_on(const char *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&at, &n))
        return -1;
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

/* s3sink [PORT]: serves on 127.0.0.1, prints its port, ends with SIGTERM. */
int main(int argc, char **argv)
{
    int listener = listen_on(argc > 1 ? argv[1] : "0");
    pthread_attr_t detached;
    char *blank = calloc(1, ZEROS);

    zeros = memfd_create("zeros", MFD_CLOEXEC);
    if (listener < 0 || zeros < 0 || !blank || write(zeros, blank, ZEROS) != ZEROS) {
        perror("s3sink");
        return 1;
    }
    free(blank);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        pthread_t thread;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0 || pthread_create(&thread, &detached, connection, (void *)(intptr_t)fd)) {
            perror("s3sink");
            return 1;
        }
    }
}
