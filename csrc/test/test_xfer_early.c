/* Small files go with the first flight of their connection. */
#include "test_xfer.h"

#include <pthread.h>
#include <stdatomic.h>

/* Forwards datagrams between an initiator and `to`; the way back can be shut. */
struct relay {
    int fd, out;
    uint16_t port;
    struct sockaddr_in from, to;
    _Atomic bool back, stop;
    pthread_t thread;
};

static void *relay_main(void *arg)
{
    struct relay *r = arg;
    uint8_t b[65536];
    while (!atomic_load(&r->stop)) {
        struct pollfd pf[2] = {{.fd = r->fd, .events = POLLIN},
                               {.fd = atomic_load(&r->back) ? r->out : -1, .events = POLLIN}};
        socklen_t len = sizeof r->from;
        if (poll(pf, 2, 5) <= 0)
            continue;
        if (pf[0].revents & POLLIN) {
            ssize_t n = recvfrom(r->fd, b, sizeof b, 0, (struct sockaddr *)&r->from, &len);
            if (n > 0)
                (void)!sendto(r->out, b, (size_t)n, 0, (struct sockaddr *)&r->to, sizeof r->to);
        }
        if (pf[1].revents & POLLIN) {
            ssize_t n = recv(r->out, b, sizeof b, 0);
            if (n > 0)
                (void)!sendto(r->fd, b, (size_t)n, 0, (struct sockaddr *)&r->from, len);
        }
    }
    return NULL;
}

static void relay_open(struct relay *r, const tio *to)
{
    uint16_t unused;
    memset(r, 0, sizeof *r);
    r->fd = tio_udp(&r->port);
    r->out = tio_udp(&unused);
    r->to = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons(to->at.port)};
    CHECK_INT(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

static void relay_close(struct relay *r)
{
    atomic_store(&r->stop, true);
    pthread_join(r->thread, NULL);
    close(r->fd);
    close(r->out);
}

/* The receiver has the whole file, checked, before anything of it has reached the sender: ten
 * packets go before the first answer. */
TEST(xfer_small_file_comes_with_the_first_flight)
{
    static const int64_t sizes[] = {0, 1, 10000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int encrypt = 0; encrypt < 2; encrypt++) {
            tio *a = tio_open(4, 0), *b = tio_open(4, 0);
            struct relay r;
            udt_ticket k = xf_ticket(encrypt);
            int src = xf_file(sizes[i], i), dst = xf_empty();
            relay_open(&r, b);
            udt_addr to = tio_loopback(4, r.port);
            int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, sizes[i]);
            CHECK_INT(udt_port_divert(b->ctx, b->port, NULL, -1), 0); /* b waits for its peer now */
            int32_t xs = xf_start(a, &to, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, sizes[i]);
            tio_wait(b, UDT_IO_XFER_FIN, xr, 10000);
            xf_same(dst, 0, sizes[i], i);
            atomic_store(&r.back, true);
            CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
            CHECK_INT(xf_end(a, xs, 0).value, sizes[i]);
            xf_end(b, xr, 0);
            relay_close(&r);
            close(src);
            close(dst);
            tio_free(a);
            tio_free(b);
        }
}

/* Above that size the sender waits for the peer's proof, as ever. */
TEST(xfer_larger_file_waits_for_the_peer)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    struct relay r;
    udt_ticket k = xf_ticket(true);
    int src = xf_file(65537, 1), dst = xf_empty();
    relay_open(&r, b);
    udt_addr to = tio_loopback(4, r.port);
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, 65537);
    CHECK_INT(udt_port_divert(b->ctx, b->port, NULL, -1), 0);
    int32_t xs = xf_start(a, &to, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, 65537);
    tio_wait(b, UDT_IO_XFER_OPEN, xr, 5000);
    poll(NULL, 0, 50);
    CHECK_INT(xf_size(dst), 0);
    atomic_store(&r.back, true);
    tio_wait(b, UDT_IO_XFER_FIN, xr, 10000);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
    xf_end(a, xs, 0);
    xf_end(b, xr, 0);
    relay_close(&r);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* Its first flight went in vain: the file goes from its start over TLS. */
TEST(xfer_early_data_is_sent_again_over_tls)
{
    static const int64_t sizes[] = {0, 10000, 65536};
    tio *a = tio_open(4, 0), *b = tio_open_tls(4);
    uint16_t hole_port;
    int hole = tio_udp(&hole_port);
    udt_addr to = tio_loopback(4, hole_port);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        udt_ticket k = xf_ticket(i & 1);
        int src = xf_file(sizes[i], i), dst = xf_empty();
        udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR,
                           .length = sizes[i],
                           .start_ms = 8000,
                           .tcp_port = b->at.port,
                           .tcp_stripes = 2,
                           .udp_wait_ms = 100};
        int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, sizes[i]);
        int32_t xs = udt_xfer_start(a->ctx, a->port, &to, &k, src, &o);
        CHECK(xs > 0);
        tio_wait(b, UDT_IO_XFER_FIN, xr, 10000);
        xf_same(dst, 0, sizes[i], i);
        CHECK_INT(xf_size(dst), sizes[i]);
        CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
        CHECK_INT(xf_end(a, xs, 0).value, sizes[i]);
        xf_end(b, xr, 0);
        close(src);
        close(dst);
    }
    close(hole);
    tio_free(a);
    tio_free(b);
}

/* Nobody is there: the transfer ends at its deadline and leaves nothing. */
TEST(xfer_early_data_into_the_void_ends_in_time)
{
    tio *a = tio_open(4, 0);
    uint16_t port;
    int hole = tio_udp(&port), src = xf_file(10000, 1);
    udt_addr to = tio_loopback(4, port);
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {
        .flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = 10000, .start_ms = 300};
    int32_t xs = udt_xfer_start(a->ctx, a->port, &to, &k, src, &o);
    CHECK(xs > 0);
    xf_end(a, xs, UDT_E_TIMEOUT);
    k = xf_ticket(true);
    int32_t xc = udt_xfer_start(a->ctx, a->port, &to, &k, src, &o);
    CHECK_INT(udt_xfer_cancel(a->ctx, xc, 5), 0);
    xf_end(a, xc, UDT_E_CANCELLED);
    close(hole);
    close(src);
    tio_free(a);
}
