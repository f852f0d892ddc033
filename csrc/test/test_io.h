/* Helpers of the loop's tests: contexts on loopback, and waiting for events with a deadline. */
#ifndef TEST_IO_H
#define TEST_IO_H

#include "test.h"
#include "udt.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

typedef struct tio {
    udt_ctx *ctx;
    int32_t port;
    udt_addr at;
    udt_event ev[4096]; /* seen and not yet asked for */
    int n;
} tio;

/* Called, where a thread has set it, before that thread sends; an errno says that this fails. */
extern _Thread_local int (*tio_on_send)(const struct mmsghdr *m, unsigned n);

/* Open descriptors, and three more. */
static inline int tio_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static inline int64_t tio_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static inline udt_addr tio_loopback(int family, uint16_t port)
{
    udt_addr a = {.family = (uint16_t)family, .port = port};
    if (family == 4) {
        a.ip[0] = 127;
        a.ip[3] = 1;
    } else {
        a.ip[15] = 1;
    }
    return a;
}

static inline tio *tio_open(int family, uint32_t flags)
{
    tio *t = calloc(1, sizeof *t);
    CHECK(t);
    CHECK_INT(udt_ctx_new(NULL, &t->ctx), 0);
    udt_addr a = tio_loopback(family, 0);
    t->port = udt_port_open(t->ctx, &a, flags, 0);
    CHECK(t->port > 0);
    CHECK_INT(udt_port_addr(t->ctx, t->port, &t->at), 0);
    CHECK(t->at.port != 0);
    return t;
}

static inline void tio_free(tio *t)
{
    for (int i = 0; i < t->n; i++)
        udt_event_release(t->ctx, &t->ev[i]);
    udt_ctx_free(t->ctx);
    free(t);
}

/* One that takes TLS too. Its UDP port is any free one, whose number TCP may have given to somebody
 * else. */
static inline tio *tio_open_tls(int family)
{
    tio *t = tio_open(family, 0);
    int err;
    while ((err = udt_port_listen_tls(t->ctx, t->port, 0)) == UDT_E_INUSE) {
        tio_free(t);
        t = tio_open(family, 0);
    }
    CHECK_INT(err, 0);
    return t;
}

static inline void tio_pull(tio *t, int64_t wait_us)
{
    struct pollfd pf = {.fd = udt_ctx_wakeup_fd(t->ctx), .events = POLLIN};
    if (t->n == 4096)
        test_fail(__FILE__, __LINE__, "too many unexpected events, first kind %d", t->ev[0].kind);
    if (wait_us > 0 && poll(&pf, 1, (int)(wait_us / 1000) + 1) <= 0)
        return;
    t->n += udt_ctx_poll(t->ctx, t->ev + t->n, 4096 - t->n);
}

static inline bool tio_take(tio *t, int kind, int32_t sock, udt_event *ev)
{
    for (int i = 0; i < t->n; i++)
        if (t->ev[i].kind == kind && (sock == 0 || t->ev[i].sock == sock)) {
            *ev = t->ev[i];
            memmove(t->ev + i, t->ev + i + 1, (size_t)(t->n - i - 1) * sizeof *ev);
            t->n--;
            return true;
        }
    return false;
}

/* The next event of this kind (and socket, unless 0), which must come in time. */
static inline udt_event tio_wait(tio *t, int kind, int32_t sock, int ms)
{
    udt_event ev;
    int64_t end = tio_now_us() + (int64_t)ms * 1000;
    while (!tio_take(t, kind, sock, &ev)) {
        int64_t left = end - tio_now_us();
        if (left <= 0) {
            for (int i = 0; i < t->n && i < 20; i++)
                fprintf(stderr, "  unasked event: kind %d sock %d err %d status %d\n",
                        t->ev[i].kind, t->ev[i].sock, t->ev[i].err, t->ev[i].g.status);
            test_fail(__FILE__, __LINE__, "no event of kind %d for %d in %d ms", kind, sock, ms);
        }
        tio_pull(t, left);
    }
    return ev;
}

/* Forgets queued readiness of a socket. */
static inline void tio_drop(tio *t, int kind, int32_t sock)
{
    udt_event ev;
    while (tio_take(t, kind, sock, &ev))
        udt_event_release(t->ctx, &ev);
}

/* Byte i of the stream `key`: cheap, and different at every offset and key. */
static inline uint8_t tio_byte(uint64_t key, uint64_t i)
{
    uint64_t x = (i + key * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    return (uint8_t)(x >> 56);
}
static inline void tio_fill(uint8_t *b, size_t n, uint64_t key, uint64_t at)
{
    for (size_t i = 0; i < n; i++)
        b[i] = tio_byte(key, at + i);
}
static inline void tio_check(const uint8_t *b, size_t n, uint64_t key, uint64_t at)
{
    for (size_t i = 0; i < n; i++)
        if (b[i] != tio_byte(key, at + i))
            test_fail(__FILE__, __LINE__, "stream %d differs at byte %" PRIu64, (int)key, at + i);
}

/* A UDP socket of the loopback that only the test reads. */
static inline int tio_udp(uint16_t *port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&in, sizeof in) == 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    *port = ntohs(in.sin_port);
    return fd;
}

/* Connects a to b, which listens: both ends' sockets. */
static inline void tio_pair(tio *a, tio *b, const udt_sock_opts *o, int32_t *sa, int32_t *sb)
{
    int32_t l = udt_listen(b->ctx, b->port, o, 0);
    CHECK(l > 0);
    *sa = udt_connect(a->ctx, a->port, &b->at, o);
    CHECK(*sa > 0);
    tio_wait(a, UDT_IO_CONNECTED, *sa, 5000);
    udt_event ev = tio_wait(b, UDT_IO_ACCEPTED, 0, 5000);
    CHECK_INT(ev.value, l);
    *sb = ev.sock;
    CHECK_INT(udt_close(b->ctx, l, 0), 0);
    tio_wait(b, UDT_IO_CLOSED, l, 5000);
}

static inline void tio_close(tio *t, int32_t sock)
{
    CHECK_INT(udt_close(t->ctx, sock, 0), 0);
    tio_wait(t, UDT_IO_CLOSED, sock, 5000);
}

/* Sends `size` bytes from a's socket to b's and checks them; `half` runs when half of it came.
 * Ports with a thread. */
static inline void tio_move(tio *a, int32_t sa, tio *b, int32_t sb, uint64_t size,
                            void (*half)(void *), void *arg)
{
    static uint8_t buf[65536];
    uint64_t sent = 0, got = 0;
    int64_t end = tio_now_us() + 20000000;
    while (got < size) {
        CHECK(tio_now_us() < end);
        if (sent < size) {
            size_t n = size - sent < sizeof buf ? (size_t)(size - sent) : sizeof buf;
            tio_fill(buf, n, 1, sent);
            ssize_t w = udt_send(a->ctx, sa, buf, n);
            CHECK(w > 0 || w == UDT_E_AGAIN);
            sent += w > 0 ? (uint64_t)w : 0;
        }
        ssize_t r;
        while ((r = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0) {
            tio_check(buf, (size_t)r, 1, got);
            got += (uint64_t)r;
        }
        CHECK_INT(r, UDT_E_AGAIN);
        if (half && got > size / 2) {
            half(arg);
            half = NULL;
        }
        tio_pull(b, 1000);
        tio_pull(a, 0);
        tio_drop(b, UDT_IO_READABLE, sb);
        tio_drop(a, UDT_IO_WRITABLE, sa);
        tio_drop(a, UDT_IO_DRAINED, sa);
    }
}

#endif
