/* Sequences that have hung or ended a port once. */
#include <pthread.h>
#include <unistd.h>

#include "io/priv.h"
#include "test_io.h"
#include "udt_err.h"

/* The account of all boxes is spent: AGAIN, and WRITABLE when there is room. */
TEST(io_send_waits_for_memory_without_spinning)
{
    enum { N = 8 };
    udt_ctx_config cfg = {.max_buf_bytes = 16 << 20};
    tio *a = calloc(1, sizeof *a), *b = tio_open(4, 0);
    CHECK_INT(udt_ctx_new(&cfg, &a->ctx), 0);
    udt_addr at = tio_loopback(4, 0);
    a->port = udt_port_open(a->ctx, &at, 0, 0);
    CHECK(a->port > 0);
    CHECK_INT(udt_port_addr(a->ctx, a->port, &a->at), 0);
    int32_t l = udt_listen(b->ctx, b->port, NULL, 0), s[N], r = 0;
    CHECK(l > 0);
    static uint8_t buf[65536];
    for (int i = 0; i < N; i++) {
        s[i] = udt_connect(a->ctx, a->port, &b->at, NULL);
        tio_wait(a, UDT_IO_CONNECTED, s[i], 5000);
        r = tio_wait(b, UDT_IO_ACCEPTED, 0, 5000).sock; /* of the last one */
    }
    alarm(10);
    for (int i = 0; i < N; i++) { /* readers that do not read */
        int idle = 0;
        int64_t total = 0;
        while (idle < 300) {
            ssize_t n = udt_send(a->ctx, s[i], buf, sizeof buf);
            CHECK(n > 0 || n == UDT_E_AGAIN);
            if (n > 0)
                total += n, idle = 0;
            else
                idle++, usleep(1000);
        }
    }
    alarm(0);
    tio_pull(a, 0);
    tio_drop(a, UDT_IO_WRITABLE, s[N - 1]);
    for (int i = 0; i < 400; i++) {
        udt_recv(b->ctx, r, buf, sizeof buf);
        usleep(1000);
    }
    tio_wait(a, UDT_IO_WRITABLE, s[N - 1], 3000);
    tio_free(a);
    tio_free(b);
}

static io_port *held;
static void *dropper(void *arg)
{
    (void)arg;
    usleep(300000);
    io_port_drop(held);
    io_wake(held);
    return NULL;
}

/* As while a transfer's disk job runs. */
TEST(io_a_port_that_is_held_closes_beside_an_over_size_message)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, false), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, false), 0);
    size_t len = 40 << 20;
    uint8_t *big = calloc(1, len);
    sgmp_dest to = {b->at, 0};
    int64_t id = sgmp_send(a->ctx, a->port, &to, big, len, NULL);
    CHECK(id > 0);
    usleep(40000);
    CHECK(io_handle_get(a->ctx, a->port, IO_KIND_PORT, &held));
    CHECK_INT(io_port_hold(held), 0); /* as a file transfer does whose disk job runs */
    io_handle_put(a->ctx, a->port);
    io_port_ref(held);
    pthread_t t;
    pthread_create(&t, NULL, dropper, NULL);
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    pthread_join(t, NULL);
    io_port_unref(held);
    free(big);
    tio_free(a);
    tio_free(b);
}

/* A close that lingers, and then the port goes: what was not delivered is an error, and the peer
 * hears of the end. */
static void lingers(int pieces)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int32_t sa, sb;
    static uint8_t buf[65536];
    udt_sock_opts o = {.type = 1, .own_peer = true, .rcv_buf_bytes = 100000};
    tio_pair(a, b, &o, &sa, &sb);
    int64_t sent = 0;
    for (int i = 0; i < pieces; i++) {
        ssize_t n = udt_send(a->ctx, sa, buf, sizeof buf);
        sent += n > 0 ? n : 0;
        usleep(1000);
    }
    CHECK_INT(udt_close(a->ctx, sa, 60000), 0); /* nobody reads: it lingers */
    usleep(200000);
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    udt_event ev = tio_wait(a, UDT_IO_CLOSED, sa, 2000);
    int64_t got = 0;
    ssize_t n = 0;
    int64_t t0 = tio_now_us(), end = t0 + 15000000;
    while (tio_now_us() < end &&
           ((n = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0 || n == UDT_E_AGAIN))
        if (n > 0)
            got += n;
        else
            usleep(1000);
    CHECK(ev.err != 0 || got == sent);
    tio_free(a);
    tio_free(b);
}

TEST(io_a_lingering_close_that_a_closing_port_ends_is_an_error)
{
    lingers(20);
    lingers(200); /* some are still in the outbox */
}

/* A second close ends what the first lets linger, whatever was still to be sent, and the peer hears
 * of the end. */
TEST(io_a_second_close_ends_the_linger_of_the_first)
{
    for (int pieces = 20; pieces <= 200; pieces += 180) { /* in the engine; in the outbox too */
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t sa, sb;
        static uint8_t buf[65536];
        udt_sock_opts o = {.type = 1, .own_peer = true, .rcv_buf_bytes = 100000};
        tio_pair(a, b, &o, &sa, &sb);
        for (int i = 0; i < pieces; i++) {
            (void)udt_send(a->ctx, sa, buf, sizeof buf);
            usleep(1000);
        }
        CHECK_INT(udt_close(a->ctx, sa, -1), 0);
        usleep(200000);
        CHECK_INT(udt_close(a->ctx, sa, -1), UDT_E_NOSOCK);
        CHECK_INT(udt_close(a->ctx, sa, 0), 0);
        CHECK(tio_wait(a, UDT_IO_CLOSED, sa, 1000).err != 0);
        CHECK_INT(udt_close(a->ctx, sa, 0), UDT_E_NOSOCK);
        tio_wait(b, UDT_IO_PEER_CLOSED, sb, 2000);
        CHECK_INT(udt_close(b->ctx, sb, 0), 0);
        CHECK_INT(udt_close(b->ctx, sb, 0), UDT_E_NOSOCK);
        tio_free(a);
        tio_free(b);
    }
}

static int64_t wait_kind(tio *t, int kind, int ms) /* poll only when the descriptor is readable */
{
    int64_t t0 = tio_now_us();
    struct pollfd pf = {.fd = udt_ctx_wakeup_fd(t->ctx), .events = POLLIN};
    while (tio_now_us() - t0 < ms * 1000ll) {
        udt_event ev;
        if (tio_take(t, kind, 0, &ev)) {
            udt_event_release(t->ctx, &ev);
            return tio_now_us() - t0;
        }
        if (poll(&pf, 1, 100) > 0)
            t->n += udt_ctx_poll(t->ctx, t->ev + t->n, 64);
    }
    return -1;
}

/* The bound of deliveries is reached through one port; another one waits for it. */
TEST(io_events_given_back_wake_all_ports_that_wait)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_addr at = tio_loopback(4, 0), at2;
    int32_t port2 = udt_port_open(b->ctx, &at, 0, 0);
    CHECK_INT(udt_port_addr(b->ctx, port2, &at2), 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, false), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, false), 0);
    CHECK_INT(sgmp_open(b->ctx, port2, false), 0);
    size_t len = 64 << 20;
    uint8_t *big = calloc(1, len);
    sgmp_dest to = {b->at, 0}, to2 = {at2, 0};
    udt_event big_ev[2];
    for (int i = 0; i < 2; i++) {
        CHECK(sgmp_send(a->ctx, a->port, &to, big, len, NULL) > 0);
        big_ev[i] = tio_wait(b, SGMP_EV_MESSAGE, 0, 20000);
    }
    CHECK(sgmp_send(a->ctx, a->port, &to2, big, 8, NULL) > 0);
    CHECK(wait_kind(b, SGMP_EV_MESSAGE, 500) < 0); /* 128 MiB are not given back */
    udt_event_release(b->ctx, &big_ev[0]);
    udt_event_release(b->ctx, &big_ev[1]);
    int64_t us = wait_kind(b, SGMP_EV_MESSAGE, 5000);
    CHECK(us >= 0);
    free(big);
    tio_free(a);
    tio_free(b);
}

/* The loop leaves what is in the box for a second: the engine is full, nobody is just slow. */
static bool box_stays_full(tio *t)
{
    for (int64_t t0 = tio_now_us(); tio_now_us() - t0 < 1000000; usleep(1000))
        if (atomic_load(&t->ctx->queue_bytes) == 0)
            return false;
    return true;
}

/* A small one is before it: AGAIN, and WRITABLE not before it fits. */
TEST(io_a_message_larger_than_half_the_box_waits_its_turn)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 2};
    int32_t sa, sb;
    tio_pair(a, b, &o, &sa, &sb);
    static uint8_t m[900000];
    static uint8_t r[900000];
    alarm(60);
    do { /* nobody reads: until the engine takes no more and one waits in the box */
        CHECK_INT(udt_sendmsg(a->ctx, sa, m, 300000, -1, true), 0);
    } while (!box_stays_full(a));
    alarm(10);
    CHECK_INT(udt_sendmsg(a->ctx, sa, m, 900000, -1, true), UDT_E_AGAIN);
    tio_pull(a, 0);
    tio_drop(a, UDT_IO_WRITABLE, sa);
    usleep(100000);
    tio_pull(a, 0);
    udt_event ev;
    CHECK(!tio_take(a, UDT_IO_WRITABLE, sa, &ev)); /* there is no room yet */
    for (int i = 0; i < 300; i++) {
        udt_recvmsg(b->ctx, sb, r, sizeof r);
        usleep(1000);
    }
    tio_wait(a, UDT_IO_WRITABLE, sa, 3000);
    CHECK_INT(udt_sendmsg(a->ctx, sa, m, 900000, -1, true), 0);
    alarm(0);
    tio_free(a);
    tio_free(b);
}
