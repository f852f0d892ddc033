/* Streams and messages over real sockets on loopback. */
#include "test_io.h"

enum { IO_BUF = 1 << 18 };

/* One end that sends `total` bytes of stream `key` and receives as many of stream `want`. */
struct end {
    tio *t;
    int32_t sock;
    uint64_t key, want, sent, got, total;
    uint8_t buf[IO_BUF];
    size_t at, len;
};

static bool push(struct end *e)
{
    bool moved = false;
    while (e->sent < e->total) {
        if (e->at == e->len) {
            e->len = e->total - e->sent < IO_BUF ? (size_t)(e->total - e->sent) : IO_BUF;
            tio_fill(e->buf, e->len, e->key, e->sent);
            e->at = 0;
        }
        ssize_t n = udt_send(e->t->ctx, e->sock, e->buf + e->at, e->len - e->at);
        if (n == UDT_E_AGAIN)
            break;
        CHECK(n > 0);
        e->at += (size_t)n;
        e->sent += (uint64_t)n;
        moved = true;
    }
    return moved;
}

static bool pull(struct end *e)
{
    static uint8_t buf[IO_BUF];
    bool moved = false;
    ssize_t n;
    while (e->got < e->total &&
           (n = udt_recv(e->t->ctx, e->sock, buf, sizeof buf)) != UDT_E_AGAIN) {
        CHECK(n > 0);
        tio_check(buf, (size_t)n, e->want, e->got);
        e->got += (uint64_t)n;
        moved = true;
    }
    return moved;
}

/* Runs both ends in this thread until each has sent and received all. */
static void exchange(struct end *a, struct end *b, int seconds)
{
    int64_t limit = tio_now_us() + (int64_t)seconds * 1000000;
    while (a->got < a->total || b->got < b->total || a->sent < a->total || b->sent < b->total) {
        bool moved = push(a);
        moved |= push(b);
        moved |= pull(a);
        moved |= pull(b);
        if (moved)
            continue;
        if (tio_now_us() > limit)
            test_fail(__FILE__, __LINE__, "stuck: a %" PRIu64 "/%" PRIu64 " b %" PRIu64 "/%" PRIu64,
                      a->sent, a->got, b->sent, b->got);
        tio_pull(a->t, 2000);
        tio_pull(b->t, 0);
        tio_drop(a->t, UDT_IO_READABLE, a->sock);
        tio_drop(a->t, UDT_IO_WRITABLE, a->sock);
        tio_drop(a->t, UDT_IO_DRAINED, a->sock);
        tio_drop(b->t, UDT_IO_READABLE, b->sock);
        tio_drop(b->t, UDT_IO_WRITABLE, b->sock);
        tio_drop(b->t, UDT_IO_DRAINED, b->sock);
    }
}

static struct end *end_new(tio *t, int32_t sock, uint64_t key, uint64_t want, uint64_t total)
{
    struct end *e = calloc(1, sizeof *e);
    CHECK(e);
    e->t = t;
    e->sock = sock;
    e->key = key;
    e->want = want;
    e->total = total;
    return e;
}

static void both_ways(int fa, int fb, uint32_t flags, uint64_t total, bool own_peer)
{
    tio *a = tio_open(fa, flags), *b = tio_open(fb, flags);
    udt_sock_opts o = {.type = 1, .own_peer = own_peer};
    int32_t sa, sb;
    tio_pair(a, b, &o, &sa, &sb);
    struct end *ea = end_new(a, sa, 11, 22, total), *eb = end_new(b, sb, 22, 11, total);
    exchange(ea, eb, 120);
    udt_addr peer;
    CHECK_INT(udt_sock_peer(a->ctx, sa, &peer), 0);
    CHECK_INT(peer.port, b->at.port);
    tio_close(a, sa);
    tio_wait(b, UDT_IO_PEER_CLOSED, sb, 5000);
    uint8_t c;
    CHECK_INT(udt_recv(b->ctx, sb, &c, 1), UDT_E_PEERCLOSED);
    tio_close(b, sb);
    CHECK_INT(udt_recv(b->ctx, sb, &c, 1), UDT_E_NOSOCK);
    CHECK_INT(udt_close(b->ctx, sb, 0), UDT_E_NOSOCK);
    free(ea);
    free(eb);
    tio_free(a);
    tio_free(b);
}

static uint64_t scaled(uint64_t n)
{
    return n * (uint64_t)test_scale / 100;
}

TEST(io_stream_64mb_both_ways)
{
    both_ways(4, 4, 0, scaled(64 << 20), true);
}

TEST(io_stream_plain_peer)
{
    both_ways(4, 4, 0, scaled(16 << 20), false);
}

TEST(io_stream_ipv6)
{
    both_ways(6, 6, 0, scaled(16 << 20), true);
}

TEST(io_stream_without_offload)
{
    both_ways(4, 4, UDT_PORT_NO_GSO | UDT_PORT_NO_GRO, scaled(16 << 20), true);
    both_ways(4, 4, UDT_PORT_NO_GSO, scaled(4 << 20), true);
    both_ways(4, 4, UDT_PORT_NO_GRO, scaled(4 << 20), true);
}

TEST(io_stream_dual_stack)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_addr any = {.family = 6}, to = tio_loopback(4, 0);
    CHECK_INT(udt_port_close(b->ctx, b->port), 0);
    b->port = udt_port_open(b->ctx, &any, 0, 0);
    CHECK(b->port > 0);
    CHECK_INT(udt_port_addr(b->ctx, b->port, &b->at), 0);
    to.port = b->at.port;
    b->at = to; /* an IPv4 client meets the IPv6 socket */
    int32_t sa, sb;
    udt_sock_opts o = {.type = 1, .own_peer = true};
    tio_pair(a, b, &o, &sa, &sb);
    udt_addr peer;
    CHECK_INT(udt_sock_peer(b->ctx, sb, &peer), 0);
    CHECK_INT(peer.family, 4);
    CHECK_INT(peer.port, a->at.port);
    struct end *ea = end_new(a, sa, 1, 2, 1 << 20), *eb = end_new(b, sb, 2, 1, 1 << 20);
    exchange(ea, eb, 30);
    CHECK_INT(udt_connect(a->ctx, a->port, &any, &o), UDT_E_INVAL);
    free(ea);
    free(eb);
    tio_free(a);
    tio_free(b);
}

TEST(io_messages_in_order)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 2, .own_peer = true};
    int32_t sa, sb;
    tio_pair(a, b, &o, &sa, &sb);
    enum { MSGS = 400, BIG = 8 << 20 };
    uint8_t *buf = malloc(BIG), *in = malloc(BIG);
    int sent = 0, got = 0, msgs = MSGS * test_scale / 100 + 1;
    int64_t limit = tio_now_us() + 60000000;
    while (got < msgs) {
        size_t len = sent == msgs - 1 ? BIG : (size_t)sent * 337u % 100000u + 1;
        if (sent < msgs) {
            tio_fill(buf, len, (uint64_t)sent, 0);
            int r = udt_sendmsg(a->ctx, sa, buf, len, -1, true);
            CHECK(r == 0 || r == UDT_E_AGAIN);
            sent += r == 0;
        }
        ssize_t n = udt_recvmsg(b->ctx, sb, in, BIG);
        if (n == UDT_E_AGAIN) {
            CHECK(tio_now_us() < limit);
            tio_pull(b, 1000);
            tio_drop(b, UDT_IO_READABLE, sb);
            continue;
        }
        CHECK_INT(n, got == msgs - 1 ? BIG : (size_t)got * 337u % 100000u + 1);
        tio_check(in, (size_t)n, (uint64_t)got++, 0);
    }
    CHECK_INT(udt_send(a->ctx, sa, buf, 1), UDT_E_STATE);
    CHECK_INT(udt_sendmsg(a->ctx, sa, buf, 0, -1, true), UDT_E_INVAL);
    free(buf);
    free(in);
    tio_free(a);
    tio_free(b);
}

TEST(io_messages_short_buffer)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 2};
    int32_t sa, sb;
    uint8_t buf[5000], in[100];
    tio_pair(a, b, &o, &sa, &sb);
    tio_fill(buf, sizeof buf, 5, 0);
    CHECK_INT(udt_sendmsg(a->ctx, sa, buf, sizeof buf, 10000, false), 0);
    tio_wait(b, UDT_IO_READABLE, sb, 5000);
    CHECK_INT(udt_recvmsg(b->ctx, sb, in, sizeof in), sizeof buf);
    tio_check(in, sizeof in, 5, 0);
    CHECK_INT(udt_recvmsg(b->ctx, sb, in, sizeof in), UDT_E_AGAIN);
    tio_free(a);
    tio_free(b);
}

TEST(io_slow_reader_closes_the_window)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {
        .type = 1, .own_peer = true, .snd_buf_bytes = 1 << 20, .rcv_buf_bytes = 1 << 20};
    int32_t sa, sb;
    uint64_t sent = 0, got = 0;
    static uint8_t buf[IO_BUF];
    tio_pair(a, b, &o, &sa, &sb);
    for (int quiet = 0; quiet < 10;) {
        tio_fill(buf, sizeof buf, 9, sent);
        ssize_t n = udt_send(a->ctx, sa, buf, sizeof buf);
        if (n > 0) {
            sent += (uint64_t)n;
            quiet = 0;
        } else {
            CHECK_INT(n, UDT_E_AGAIN);
            tio_pull(a, 50000);
            quiet++;
        }
        CHECK(sent < 6 << 20); /* two boxes, two buffers of 1 MiB and some slack */
    }
    CHECK(sent >= 2 << 20);
    int64_t limit = tio_now_us() + 20000000;
    while (got < sent) {
        ssize_t n = udt_recv(b->ctx, sb, buf, sizeof buf);
        CHECK(tio_now_us() < limit);
        if (n == UDT_E_AGAIN) {
            tio_pull(b, 2000);
            tio_drop(b, UDT_IO_READABLE, sb);
            continue;
        }
        CHECK(n > 0);
        tio_check(buf, (size_t)n, 9, got);
        got += (uint64_t)n;
    }
    tio_wait(a, UDT_IO_WRITABLE, sa, 5000);
    tio_free(a);
    tio_free(b);
}

/* As tio_pair where the test drives the loop of `b`. */
static void pair_driven(tio *a, tio *b, const udt_sock_opts *o, int32_t *sa, int32_t *sb)
{
    CHECK(udt_listen(b->ctx, b->port, o, 1) > 0);
    *sa = udt_connect(a->ctx, a->port, &b->at, o);
    CHECK(*sa > 0);
    udt_event ev;
    int64_t limit = tio_now_us() + 10000000;
    bool there = false;
    *sb = 0;
    while (!there || *sb == 0) {
        CHECK(tio_now_us() < limit);
        udt_port_run(b->ctx, b->port, 1000);
        tio_pull(a, 0);
        tio_pull(b, 0);
        there = tio_take(a, UDT_IO_CONNECTED, *sa, &ev) || there;
        if (tio_take(b, UDT_IO_ACCEPTED, 0, &ev))
            *sb = ev.sock;
    }
}

/* Who writes as much as fits and closes at once gives most of it up; the reader is told at the end,
 * with a loop of his own and without. */
TEST(io_reader_is_told_that_the_end_is_none)
{
    static uint8_t buf[IO_BUF];
    for (int manual = 0; manual < 2; manual++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, manual ? UDT_PORT_MANUAL : 0);
        udt_sock_opts o = {.type = 1, .own_peer = true};
        int32_t sa, sb;
        uint64_t sent = 0, got = 0;
        (manual ? pair_driven : tio_pair)(a, b, &o, &sa, &sb);
        for (ssize_t n = 0; n >= 0; sent += n > 0 ? (uint64_t)n : 0)
            n = udt_send(a->ctx, sa, buf, sizeof buf);
        CHECK_INT(udt_close(a->ctx, sa, 0), 0);
        int64_t limit = tio_now_us() + 10000000;
        ssize_t n;
        while ((n = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0 || n == UDT_E_AGAIN) {
            CHECK(tio_now_us() < limit);
            got += n > 0 ? (uint64_t)n : 0;
            if (n == UDT_E_AGAIN && manual)
                udt_port_run(b->ctx, b->port, 1000);
            else if (n == UDT_E_AGAIN)
                tio_pull(b, 100);
        }
        CHECK_INT(n, UDT_E_CUT);
        CHECK(got < sent);
        tio_free(a);
        tio_free(b);
    }
}

/* Who aborts had more to say: the reader is told though he has all that was written. A foreign
 * reader is not, and hears an ordinary end, or nothing where that would mislead him. */
TEST(io_an_abort_is_no_end_though_all_arrived)
{
    enum { OWN, FOREIGN, FOREIGN_SILENT };
    uint8_t buf[4000];
    for (int kind = OWN; kind <= FOREIGN_SILENT; kind++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        udt_sock_opts o = {.type = 1, .own_peer = kind == OWN, .no_extensions = kind != OWN};
        udt_sock_stats st;
        int32_t sa, sb;
        tio_pair(a, b, &o, &sa, &sb);
        CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), sizeof buf);
        int64_t limit = tio_now_us() + 10000000;
        for (size_t got = 0; got < sizeof buf;) {
            ssize_t n = udt_recv(b->ctx, sb, buf, sizeof buf);
            CHECK(tio_now_us() < limit && (n > 0 || n == UDT_E_AGAIN));
            got += n > 0 ? (size_t)n : 0;
            tio_pull(b, n > 0 ? 0 : 100);
        }
        do { /* until its sender knows */
            CHECK(tio_now_us() < limit);
            tio_pull(a, 50);
            CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
        } while (st.acks_recv == 0 || st.snd_queue_bytes > 0);
        CHECK_INT(udt_abort(a->ctx, sa, kind == FOREIGN_SILENT), 0);
        CHECK_INT(udt_abort(a->ctx, sa, false), UDT_E_NOSOCK);
        ssize_t n;
        int64_t patience = tio_now_us() + (kind == FOREIGN_SILENT ? 1000000 : 10000000);
        while ((n = udt_recv(b->ctx, sb, buf, sizeof buf)) == UDT_E_AGAIN &&
               tio_now_us() < patience)
            tio_pull(b, 100);
        CHECK_INT(n, kind == OWN ? UDT_E_CUT : kind == FOREIGN ? UDT_E_PEERCLOSED : UDT_E_AGAIN);
        tio_free(a);
        tio_free(b);
    }
}

TEST(io_close_delivers_what_was_sent)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb;
    static uint8_t buf[IO_BUF];
    uint64_t sent = 0, got = 0;
    tio_pair(a, b, &o, &sa, &sb);
    for (;;) { /* as much as it takes at once */
        tio_fill(buf, sizeof buf, 3, sent);
        ssize_t n = udt_send(a->ctx, sa, buf, sizeof buf);
        if (n < 0 || sent > 4 << 20)
            break;
        sent += (uint64_t)n;
    }
    CHECK_INT(udt_close(a->ctx, sa, -1), 0);
    CHECK_INT(udt_send(a->ctx, sa, buf, 1), UDT_E_NOSOCK);
    int64_t limit = tio_now_us() + 20000000;
    for (;;) {
        ssize_t n = udt_recv(b->ctx, sb, buf, sizeof buf);
        CHECK(tio_now_us() < limit);
        if (n == UDT_E_AGAIN) {
            tio_pull(b, 2000);
            tio_drop(b, UDT_IO_READABLE, sb);
            continue;
        }
        if (n < 0) {
            CHECK_INT(n, UDT_E_PEERCLOSED);
            break;
        }
        tio_check(buf, (size_t)n, 3, got);
        got += (uint64_t)n;
    }
    CHECK(got >= sent);
    tio_wait(a, UDT_IO_CLOSED, sa, 10000);
    tio_free(a);
    tio_free(b);
}

TEST(io_200_sockets_on_one_port)
{
    enum { SOCKS = 200, EACH = 20000 };
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true, .connect_timeout_ms = 20000};
    static int32_t sa[SOCKS], sb[SOCKS];
    static uint8_t buf[EACH];
    int socks = test_scale < 100 ? SOCKS / 4 : SOCKS;
    int32_t l = udt_listen(b->ctx, b->port, &o, 300);
    for (int i = 0; i < socks; i++) {
        sa[i] = udt_connect(a->ctx, a->port, &b->at, &o);
        CHECK(sa[i] > 0);
    }
    for (int i = 0; i < socks; i++)
        sb[i] = tio_wait(b, UDT_IO_ACCEPTED, 0, 20000).sock;
    for (int i = 0; i < socks; i++) {
        tio_wait(a, UDT_IO_CONNECTED, sa[i], 20000);
        memset(buf, i & 0xff, sizeof buf);
        CHECK_INT(udt_send(a->ctx, sa[i], buf, sizeof buf), sizeof buf);
    }
    for (int i = 0; i < socks; i++) {
        size_t got = 0;
        int first = -1;
        while (got < sizeof buf) {
            ssize_t n = udt_recv(b->ctx, sb[i], buf, sizeof buf);
            if (n == UDT_E_AGAIN) {
                tio_wait(b, UDT_IO_READABLE, sb[i], 20000);
                continue;
            }
            CHECK(n > 0);
            first = first < 0 ? buf[0] : first;
            for (ssize_t k = 0; k < n; k++)
                CHECK_INT(buf[k], first);
            got += (size_t)n;
        }
    }
    for (int i = 0; i < socks; i++)
        tio_close(a, sa[i]);
    for (int i = 0; i < socks; i++) {
        tio_wait(b, UDT_IO_PEER_CLOSED, sb[i], 20000);
        tio_close(b, sb[i]);
    }
    tio_close(b, l);
    tio_free(a);
    tio_free(b);
}

TEST(io_rendezvous_by_tag)
{
    enum { N = 10 };
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int32_t sa[N], sb[N];
    for (int i = 0; i < N; i++) {
        udt_sock_opts o = {.type = 1, .own_peer = true, .tag = 1000u + (uint32_t)i};
        sa[i] = udt_rendezvous(a->ctx, a->port, &b->at, &o);
        o.tag = 1000u + (uint32_t)(N - 1 - i);
        /* half of them do not know whom they meet */
        sb[N - 1 - i] = udt_rendezvous(b->ctx, b->port, i % 2 ? &a->at : NULL, &o);
        CHECK(sa[i] > 0 && sb[N - 1 - i] > 0);
    }
    for (int i = 0; i < N; i++) {
        tio_wait(a, UDT_IO_CONNECTED, sa[i], 10000);
        tio_wait(b, UDT_IO_CONNECTED, sb[i], 10000);
        udt_addr peer;
        CHECK_INT(udt_sock_peer(b->ctx, sb[i], &peer), 0);
        CHECK_INT(peer.port, a->at.port);
        struct end *ea = end_new(a, sa[i], (uint64_t)i, 100u + (uint64_t)i, 100000);
        struct end *eb = end_new(b, sb[i], 100u + (uint64_t)i, (uint64_t)i, 100000);
        exchange(ea, eb, 20);
        free(ea);
        free(eb);
    }
    CHECK_INT(udt_rendezvous(a->ctx, a->port, NULL, NULL), UDT_E_INVAL);
    tio_free(a);
    tio_free(b);
}
