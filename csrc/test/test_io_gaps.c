/* Messages whose payload is sent from where it lies (io/gaps.c): what the kernel does not take must
 * look like any other message from then on, for the send buffer may be gone by the next call. */
#include "io/priv.h"
#include "test_io.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 1 << 19, SINGLE = UDT_PORT_NO_GSO | UDT_PORT_NO_GRO };

/* What happens to the calls of this thread: ports of their own threads are left alone. */
static _Thread_local struct {
    bool on;
    const uint8_t *tx; /* the port's own output, IO_TX_BYTES; other pieces lie in a send buffer */
    int every, err;    /* of calls with such each so many fails like that, half of it taken */
    int calls, failed; /* with such */
    int times;         /* failures that are left, or -1 */
    bool half;         /* the other half is next */
    bool whole;        /* none is taken of those that fail */
    bool hold;         /* what failed does so until this ends */
    size_t len;        /* of what was refused last */
    uint8_t refused[MOST], again[MOST];
} hook;

_Thread_local int (*tio_on_send)(const struct mmsghdr *m, unsigned n);

static size_t flatten(const struct mmsghdr *m, unsigned n, uint8_t *out)
{
    size_t len = 0;
    for (unsigned i = 0; i < n; i++)
        for (size_t k = 0; k < m[i].msg_hdr.msg_iovlen; k++) {
            const struct iovec *v = &m[i].msg_hdr.msg_iov[k];
            CHECK(len + v->iov_len <= MOST);
            memcpy(out + len, v->iov_base, v->iov_len);
            len += v->iov_len;
        }
    return len;
}

static bool pieces(const struct mmsghdr *m, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        for (size_t k = 0; k < m[i].msg_hdr.msg_iovlen; k++) {
            const uint8_t *at = m[i].msg_hdr.msg_iov[k].iov_base;
            if (at < hook.tx || at >= hook.tx + IO_TX_BYTES)
                return true;
        }
    return false;
}

/* The kernel's, but for what a test wants to fail. */
int sendmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags)
{
    bool fail = false;
    if (tio_on_send && (errno = tio_on_send(m, n)) != 0)
        return -1;
    if (hook.on && hook.len) { /* what was refused comes again, from elsewhere */
        size_t len = flatten(m, n, hook.again);
        CHECK(!pieces(m, n));
        CHECK(len <= hook.len);
        CHECK_MEM(hook.again, hook.refused, len);
        if (hook.hold) {
            errno = EAGAIN;
            return -1;
        }
        hook.len = 0;
    }
    if (hook.on && hook.times != 0 && (pieces(m, n) || hook.half)) {
        fail = hook.half || ++hook.calls % hook.every == 0;
        if (fail && !hook.half && !hook.whole && n > 1) {
            hook.half = true;
            n /= 2;
            fail = false;
        }
    }
    if (!fail)
        return (int)syscall(SYS_sendmmsg, fd, m, n, flags);
    hook.half = false;
    hook.failed++;
    hook.times -= hook.times > 0;
    hook.len = hook.err == EAGAIN ? flatten(m, n, hook.refused) : 0;
    errno = hook.err;
    return -1;
}

static void set_hook(tio *t, int err, int every, int times)
{
    io_port *p = io_handle_get(t->ctx, t->port, IO_KIND_PORT, NULL);
    memset(&hook, 0, sizeof hook);
    hook.tx = p->tx.buf;
    io_handle_put(t->ctx, t->port);
    hook.on = err != 0;
    hook.err = err;
    hook.every = every;
    hook.times = times;
}

/* A MANUAL sender, which is the thread of the test, and a receiver with its own. */
static void connect_pair(tio *a, tio *b, bool foreign, int32_t *sa, int32_t *sb)
{
    udt_sock_opts o = {.type = 1, .own_peer = !foreign, .no_extensions = foreign};
    udt_event ev;
    int64_t end = tio_now_us() + 20000000;
    CHECK(udt_listen(b->ctx, b->port, &o, 0) > 0);
    *sa = udt_connect(a->ctx, a->port, &b->at, &o);
    *sb = 0;
    for (bool open = false; !open || !*sb;) {
        CHECK(tio_now_us() < end);
        CHECK_INT(udt_port_run(a->ctx, a->port, 500), 0);
        tio_pull(a, 0);
        tio_pull(b, 0);
        open |= tio_take(a, UDT_IO_CONNECTED, *sa, &ev);
        *sb = tio_take(b, UDT_IO_ACCEPTED, 0, &ev) ? ev.sock : *sb;
    }
}

static void transfer(tio *a, int32_t sa, tio *b, int32_t sb, uint64_t total)
{
    static uint8_t buf[1 << 16];
    uint64_t sent = 0, got = 0;
    int64_t end = tio_now_us() + 30000000;
    while (got < total) {
        ssize_t n = 0;
        CHECK(tio_now_us() < end);
        CHECK_INT(udt_port_run(a->ctx, a->port, 500), 0);
        tio_pull(a, 0);
        tio_pull(b, 0);
        tio_drop(a, UDT_IO_WRITABLE, sa);
        tio_drop(b, UDT_IO_READABLE, sb);
        while (sent < total && n >= 0) {
            tio_fill(buf, sizeof buf, 4, sent);
            n = udt_send(a->ctx, sa, buf, sizeof buf);
            sent += n > 0 ? (uint64_t)n : 0;
        }
        while ((n = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0) {
            tio_check(buf, (size_t)n, 4, got);
            got += (uint64_t)n;
        }
    }
}

static void move(uint32_t flags, bool foreign, int err, int every, int times)
{
    int32_t sa, sb;
    tio *a = tio_open(4, flags | UDT_PORT_MANUAL), *b = tio_open(4, flags);
    connect_pair(a, b, foreign, &sa, &sb);
    set_hook(a, err, every, times);
    transfer(a, sa, b, sb, 4 << 20);
    CHECK(hook.failed >= (times < 0 ? 3 : 1));
    set_hook(a, 0, 0, 0);
    tio_free(a);
    tio_free(b);
}

TEST(io_gaps_what_the_kernel_refuses_is_sent_later)
{
    for (int kind = 0; kind < 4; kind++)
        move(kind & 1 ? SINGLE : 0, kind & 2, EAGAIN, 5, -1);
}

TEST(io_gaps_errors_lose_a_message_at_most)
{
    static const int err[] = {EMSGSIZE, EINVAL, EPERM, ENOBUFS, ECONNREFUSED};
    for (size_t i = 0; i < sizeof err / sizeof *err; i++)
        for (int kind = 0; kind < 4; kind++) {
            bool segmented = !(kind & 1); /* after one refusal some paths are not cut any more */
            move(kind & 1 ? SINGLE : 0, kind & 2, err[i], segmented ? 1 : 5, 3);
        }
}

TEST(io_gaps_outlive_the_connection)
{
    static uint8_t buf[1 << 16];
    for (int kind = 0; kind < 4; kind++) {
        uint32_t flags = kind & 1 ? SINGLE : 0;
        int32_t sa, sb;
        tio *a = tio_open(4, flags | UDT_PORT_MANUAL), *b = tio_open(4, flags);
        connect_pair(a, b, kind & 2, &sa, &sb);
        set_hook(a, EAGAIN, 1, 1);
        hook.whole = hook.hold = true;
        memset(buf, 7, sizeof buf);
        CHECK(udt_send(a->ctx, sa, buf, sizeof buf) > 0);
        for (int i = 0; i < 1000 && hook.failed == 0; i++)
            CHECK_INT(udt_port_run(a->ctx, a->port, 100), 0);
        CHECK_INT(hook.failed, 1);
        CHECK(hook.len > 1456);
        CHECK_INT(udt_close(a->ctx, sa, 0), 0);
        for (int i = 0; i < 10; i++)
            CHECK_INT(udt_port_run(a->ctx, a->port, 100), 0);
        CHECK(hook.len > 1456);
        hook.hold = false;
        for (int i = 0; i < 1000 && hook.len > 0; i++)
            CHECK_INT(udt_port_run(a->ctx, a->port, 100), 0); /* the hook compares */
        CHECK_INT(hook.len, 0);
        set_hook(a, 0, 0, 0);
        tio_free(a);
        tio_free(b);
    }
}

/* A packet that must be fragmented is sent by itself, with nothing queued before it. */
TEST(io_gaps_are_filled_though_nothing_is_queued)
{
    static const uint8_t payload[600] = {1, 2, 3, [599] = 4};
    io_tx *t = calloc(1, sizeof *t);
    CHECK(t && (t->buf = calloc(1, IO_TX_BYTES)));
    t->gaps = (udt_gaps){.cap = IO_TX_GAPS, .gap = t->gap};
    t->gap[t->gaps.n++] = (udt_gap){t->buf + 16, payload, sizeof payload};
    io_gaps_fill(t);
    CHECK_INT(t->gaps.n, 0);
    CHECK_MEM(t->buf + 16, payload, sizeof payload);
    free(t->buf);
    free(t);
}
