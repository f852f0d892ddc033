/* Closes that meet: one side has written more than went out when the other one ends. Neither waits
 * for its linger, and who has lost something is told. */
#include "test_io.h"

#include <sys/socket.h>
#include <unistd.h>

static size_t fill(tio *t, int32_t sock, int pieces)
{
    static uint8_t buf[65536];
    size_t sent = 0;
    for (int i = 0; i < pieces; i++) {
        ssize_t n = udt_send(t->ctx, sock, buf, sizeof buf);
        sent += n > 0 ? (size_t)n : 0;
        usleep(1000);
    }
    return sent;
}

/* What was written lies in the engine, or in the outbox before it too, when the peer goes: at once,
 * by an abort and by a lingering close. */
TEST(io_a_closing_side_hears_that_its_peer_has_gone)
{
    for (int how = 0; how < 6; how++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t sa, sb;
        udt_sock_opts o = {.type = 1, .own_peer = how < 4, .rcv_buf_bytes = 100000};
        tio_pair(a, b, &o, &sa, &sb);
        size_t sent = fill(a, sa, how % 2 ? 200 : 20);
        CHECK(sent > 1000000);
        CHECK_INT(udt_close(a->ctx, sa, -1), 0); /* nobody reads: it lingers */
        usleep(100000);
        CHECK_INT(udt_close(b->ctx, sb, how / 2 == 1 ? -1 : 0), 0);
        tio_wait(b, UDT_IO_CLOSED, sb, 5000);
        CHECK(tio_wait(a, UDT_IO_CLOSED, sa, 5000).err != 0);
        tio_free(a);
        tio_free(b);
    }
}

/* The other order: the peer has gone already, and was not noticed for want of reading. */
TEST(io_a_close_after_the_peer_s_does_not_wait)
{
    for (int pieces = 20; pieces <= 200; pieces += 180) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t sa, sb;
        udt_sock_opts o = {.type = 1, .own_peer = true, .rcv_buf_bytes = 100000};
        tio_pair(a, b, &o, &sa, &sb);
        CHECK(fill(a, sa, pieces) > 1000000);
        CHECK_INT(udt_close(b->ctx, sb, 0), 0);
        tio_wait(a, UDT_IO_PEER_CLOSED, sa, 5000);
        CHECK_INT(udt_close(a->ctx, sa, -1), 0);
        CHECK(tio_wait(a, UDT_IO_CLOSED, sa, 5000).err != 0);
        tio_free(a);
        tio_free(b);
    }
}

/* Who met AGAIN hears WRITABLE, also when no room will ever come because the peer has closed: the
 * next try says so, what came before can still be read, and the end says that something is lost. */
TEST(io_a_writer_that_waits_hears_that_its_peer_has_closed)
{
    for (int how = 0; how < 4; how++) {
        static uint8_t buf[65536];
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t sa, sb;
        ssize_t n;
        udt_sock_opts o = {.type = 1, .own_peer = how < 2, .rcv_buf_bytes = 100000};
        tio_pair(a, b, &o, &sa, &sb);
        CHECK_INT(udt_send(b->ctx, sb, (const uint8_t *)"left to read", 12), 12);
        tio_wait(a, UDT_IO_READABLE, sa, 5000);
        for (int again = 0; again < 20;) {
            again = udt_send(a->ctx, sa, buf, sizeof buf) == UDT_E_AGAIN ? again + 1 : 0;
            usleep(1000);
        }
        tio_drop(a, UDT_IO_WRITABLE, sa);
        CHECK_INT(udt_close(b->ctx, sb, how % 2 ? -1 : 0), 0);
        tio_wait(a, UDT_IO_PEER_CLOSED, sa, 5000);
        tio_wait(a, UDT_IO_WRITABLE, sa, 5000);
        CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), UDT_E_PEERCLOSED);
        CHECK_INT(udt_recv(a->ctx, sa, buf, sizeof buf), 12);
        for (int i = 0; (n = udt_recv(a->ctx, sa, buf, sizeof buf)) == UDT_E_AGAIN && i < 5000; i++)
            usleep(1000);
        CHECK_INT(n, UDT_E_PEERCLOSED);
        CHECK_INT(udt_close(a->ctx, sa, -1), 0);
        CHECK(tio_wait(a, UDT_IO_CLOSED, sa, 5000).err != 0);
        tio_free(a);
        tio_free(b);
    }
}

/* What came and was not read when this side closed is counted: in the engine and in the inbox. */
TEST(io_what_went_unread_is_counted)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int32_t sa, sb;
    static uint8_t buf[65536];
    udt_sock_stats st;
    udt_sock_opts o = {.type = 1, .own_peer = true};
    tio_pair(a, b, &o, &sa, &sb);
    for (int i = 0; i < 40; i++)
        CHECK_INT(udt_send(a->ctx, sa, buf, 10000), 10000);
    int64_t limit = tio_now_us() + 5000000;
    do {
        CHECK(tio_now_us() < limit);
        usleep(10000);
        CHECK_INT(udt_stats_get(b->ctx, sb, &st), 0);
    } while (st.bytes_recv < 400000);
    CHECK_INT(udt_recv(b->ctx, sb, buf, 5000), 5000);
    CHECK_INT(udt_close(b->ctx, sb, 0), 0);
    tio_wait(b, UDT_IO_CLOSED, sb, 5000);
    CHECK_INT(udt_stats_get(b->ctx, sb, &st), 0);
    CHECK_INT(st.bytes_recv, 400000);
    CHECK_INT(st.bytes_unread, 395000);
    CHECK_INT(udt_close(a->ctx, sa, -1), 0);
    tio_wait(a, UDT_IO_CLOSED, sa, 5000);
    CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
    CHECK_INT(st.bytes_unread, 0);
    tio_free(a);
    tio_free(b);
}

/* How many shutdowns are in what was diverted to `fd`: an address of 19 bytes, then the datagram.
 */
static int shutdowns(int fd)
{
    uint8_t buf[2048];
    ssize_t n;
    int count = 0;
    while ((n = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
        count += n >= 19 + 16 && buf[19] == 0x80 && buf[20] == 5;
    return count;
}

/* A client is done when all that it sent is acknowledged; its port, and perhaps its process, goes
 * at once. Of the shutdown only one datagram went out then, and where that was lost the server had
 * all data and, 10 s later, an error. */
TEST(io_a_port_that_goes_repeats_its_last_words)
{
    for (int own = 0; own < 2; own++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t sa, sb;
        int fd[2];
        udt_addr at;
        udt_sock_opts o = {.type = 1, .own_peer = own};
        tio_pair(a, b, &o, &sa, &sb);
        CHECK_INT(udt_port_addr(b->ctx, b->port, &at), 0);
        CHECK_INT(socketpair(AF_UNIX, SOCK_DGRAM, 0, fd), 0);
        CHECK_INT(udt_port_divert(a->ctx, a->port, NULL, fd[0]), 0);
        usleep(20000);
        CHECK_INT(udt_close(a->ctx, sa, 0), 0);
        CHECK_INT(udt_port_close(a->ctx, a->port), 0);
        int times = shutdowns(fd[1]);
        printf("# %d shutdowns\n", times);
        CHECK(times >= 3);
        close(fd[0]);
        close(fd[1]);
        tio_free(a);
        tio_free(b);
    }
}
