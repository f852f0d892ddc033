#include "test.h"
#include "udt.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 1 << 20, LONG_US = 20000000, SHORT_US = 2000 };

/* What a client sends, in pieces, with a rest between them. */
typedef struct client {
    int fd;
    const uint8_t *data;
    size_t len, piece;
    useconds_t rest;
} client;

static void *send_all(void *argument)
{
    client *c = argument;
    for (size_t at = 0; at < c->len; at += c->piece) {
        size_t n = c->len - at < c->piece ? c->len - at : c->piece;
        if (write(c->fd, c->data + at, n) != (ssize_t)n)
            break;
        if (c->rest)
            usleep(c->rest);
    }
    return NULL;
}

static uint8_t sent[SIZE + 77], room[SIZE + 77];

/* A connection, a file in memory, both sums. */
typedef struct world {
    int ends[2], file;
    udt_md5 sum;
} world;

static void begin(world *w)
{
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (uint8_t)(i * 131 + i / 251);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->ends), 0);
    w->file = memfd_create("body", MFD_CLOEXEC);
    CHECK(w->file >= 0);
    if (udt_md5_sha256_init(&w->sum))
        udt_md5_init(&w->sum);
}

static void end(world *w)
{
    close(w->ends[0]);
    close(w->ends[1]);
    close(w->file);
}

/* The file and the sums have the first `len` bytes of what was sent, and no more. */
static void check_taken(world *w, size_t len)
{
    static uint8_t there[sizeof sent];
    uint8_t want[32], got[32];
    CHECK_INT(pread(w->file, there, sizeof there, 0), (ssize_t)len);
    CHECK(!memcmp(there, sent, len));
    udt_md5_digest(&w->sum, got);
    CHECK(EVP_Digest(sent, len, want, NULL, EVP_md5(), NULL) && !memcmp(want, got, 16));
    if (!w->sum.with_sha256)
        return;
    udt_md5_sha256_digest(&w->sum, got);
    CHECK(EVP_Digest(sent, len, want, NULL, EVP_sha256(), NULL) && !memcmp(want, got, 32));
}

static int lowat(int fd)
{
    int n = 0;
    socklen_t len = sizeof n;
    CHECK_INT(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, &len), 0);
    return n;
}

TEST(take_a_body_in_any_pieces)
{
    static const size_t pieces[] = {sizeof sent, 100000, 4096, 777};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        world w;
        pthread_t thread;
        size_t count = 0;
        begin(&w);
        client c = {w.ends[1], sent, sizeof sent, pieces[i], pieces[i] == 100000 ? 300 : 0};
        pthread_create(&thread, NULL, send_all, &c);
        CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE, LONG_US, &count), 0);
        CHECK_INT((int64_t)count, SIZE); /* and nothing of what is behind */
        CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, 77, LONG_US, &count), 0);
        CHECK_INT((int64_t)count, 77);
        pthread_join(thread, NULL);
        check_taken(&w, sizeof sent);
        CHECK_INT(lowat(w.ends[0]), 1);
        end(&w);
    }
}

TEST(take_waits_a_moment_and_keeps_what_came)
{
    world w;
    size_t count = 9;
    begin(&w);
    CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE, SHORT_US, &count), 0);
    CHECK_INT((int64_t)count, 0);
    CHECK_INT(write(w.ends[1], sent, 1000), 1000);
    CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE, SHORT_US, &count), 0);
    CHECK_INT((int64_t)count, 1000);
    check_taken(&w, 1000);
    CHECK_INT(lowat(w.ends[0]), 1);
    CHECK_INT(write(w.ends[1], sent + 1000, 500), 500);
    close(w.ends[1]); /* the client ends: what it sent counts */
    w.ends[1] = -1;
    CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE, LONG_US, &count), 0);
    CHECK_INT((int64_t)count, 500);
    check_taken(&w, 1500);
    end(&w);
}

/* Both ends of a TCP connection, in which a low-water mark counts. */
static void connect_tcp(int ends[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(listener, (struct sockaddr *)&at, len), 0);
    CHECK_INT(listen(listener, 1), 0);
    CHECK_INT(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(connect(ends[1], (struct sockaddr *)&at, len), 0);
    ends[0] = accept(listener, NULL, NULL);
    CHECK(ends[0] >= 0);
    close(listener);
}

TEST(take_is_woken_for_many_bytes_and_loses_no_few)
{
    world w;
    pthread_t thread;
    size_t count = 0, all = 0;
    begin(&w);
    close(w.ends[0]);
    close(w.ends[1]);
    connect_tcp(w.ends);
    client c = {w.ends[1], sent, sizeof sent, 7777, 300};
    pthread_create(&thread, NULL, send_all, &c);
    CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE, LONG_US, &count), 0);
    CHECK_INT((int64_t)count, SIZE);
    pthread_join(thread, NULL);
    CHECK_INT(lowat(w.ends[0]), 1);
    CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, 77, LONG_US, &count), 0);
    CHECK_INT((int64_t)count, 77);
    check_taken(&w, sizeof sent);
    end(&w);

    begin(&w); /* what comes while it waits for more is there for whoever reads next */
    close(w.ends[0]);
    close(w.ends[1]);
    connect_tcp(w.ends);
    client slow = {w.ends[1], sent, 50000, 500, 1000};
    pthread_create(&thread, NULL, send_all, &slow);
    while (all < 50000) {
        CHECK_INT(udt_take(w.ends[0], w.file, &w.sum, room, SIZE + 77 - all, SHORT_US, &count), 0);
        CHECK_INT(lowat(w.ends[0]), 1);
        all += count;
    }
    pthread_join(thread, NULL);
    check_taken(&w, 50000);
    end(&w);
}

TEST(take_says_what_the_disk_says)
{
    world w;
    size_t count = 0;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    begin(&w);
    CHECK(full >= 0);
    CHECK_INT(write(w.ends[1], sent, 5000), 5000);
    CHECK_INT(udt_take(w.ends[0], full, &w.sum, room, 5000, LONG_US, &count), ENOSPC);
    CHECK_INT((int64_t)count, 5000);
    CHECK_INT(write(w.ends[1], sent, 10), 10);
    CHECK_INT(udt_take(w.ends[0], -1, &w.sum, room, 10, LONG_US, &count), EBADF);
    CHECK_INT(udt_take(-1, w.file, &w.sum, room, 10, LONG_US, &count),
              0); /* no connection: nothing came */
    CHECK_INT((int64_t)count, 0);
    close(full);
    end(&w);
}
