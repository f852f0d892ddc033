/* Events of handles and what threads tell a loop: without memory nothing is lost, and nobody dies.
 */
#include "io/priv.h"
#include "test_alloc.h"
#include "test_xfer.h"

enum { SOCKS = 300 };

static int32_t manual_port(udt_ctx *ctx)
{
    udt_addr any = tio_loopback(4, 0);
    int32_t p = udt_port_open(ctx, &any, UDT_PORT_MANUAL, 0);
    CHECK(p > 0);
    return p;
}

/* Nobody polls while they all end, and nothing can be had for their events by then. */
TEST(io_ends_of_sockets_need_no_memory)
{
    udt_ctx *ctx;
    static int32_t sock[SOCKS];
    static udt_event ev[8 * SOCKS];
    static int closed[SOCKS];
    uint16_t mute;
    int fd = tio_udp(&mute); /* which nobody reads */
    udt_addr to = tio_loopback(4, mute);
    int64_t held = alloc_held();
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    int32_t port = manual_port(ctx);
    memset(closed, 0, sizeof closed);
    for (int i = 0; i < SOCKS; i++) {
        sock[i] = udt_connect(ctx, port, &to, NULL);
        CHECK(sock[i] > 0);
    }
    alloc_fail_all(true);
    for (int i = 0; i < SOCKS; i += 2)
        CHECK_INT(udt_close(ctx, sock[i], 0), 0);
    CHECK_INT(udt_port_run(ctx, port, 1000), 0);
    CHECK_INT(udt_port_close(ctx, port), 0); /* the others end with it */
    int n = udt_ctx_poll(ctx, ev, 8 * SOCKS);
    alloc_fail_all(false);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < SOCKS && ev[k].kind == UDT_IO_CLOSED; i++)
            closed[i] += ev[k].sock == sock[i];
    for (int i = 0; i < SOCKS; i++)
        CHECK_INT(closed[i], 1);
    udt_ctx_free(ctx);
    close(fd);
    CHECK_INT(alloc_held(), held);
}

/* Whoever cannot be promised room for events is not made, and hears why. */
TEST(io_handles_are_refused_without_room_for_their_events)
{
    static const uint16_t kinds[] = {UDT_IO_XFER_OPEN, UDT_IO_XFER_PROGRESS, UDT_IO_XFER_FIN,
                                     UDT_IO_XFER_DONE};
    udt_ctx *ctx;
    int obj, n = 0;
    int32_t h[100];
    udt_event ev[400];
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    h[n++] = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj);
    alloc_fail_all(true);
    while (n < 100 && (h[n] = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj)) > 0)
        n++;
    CHECK(n > 2 && n < 100);
    CHECK_INT(h[n], UDT_E_NOMEM);
    for (int round = 0; round < 3; round++) { /* what was polled makes room for the same handle */
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 4; k++)
                for (int twice = 0; twice < 2; twice++)
                    io_emit(ctx, &(udt_event){.kind = kinds[k], .sock = h[i]});
        CHECK_INT(udt_ctx_poll(ctx, ev, 400), 4 * n);
        for (int i = 0; i < 4 * n; i++)
            CHECK(ev[i].sock == h[i / 4] && ev[i].kind == kinds[i % 4]);
    }
    /* Events that wait keep their room when their handle has gone. */
    io_emit(ctx, &(udt_event){.kind = UDT_IO_XFER_DONE, .sock = h[0]});
    io_handle_free(ctx, h[0]);
    CHECK_INT(io_handle_new(ctx, IO_KIND_XFER, NULL, &obj), UDT_E_NOMEM);
    CHECK_INT(udt_ctx_poll(ctx, ev, 400), 1);
    CHECK((h[0] = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj)) > 0);
    alloc_fail_all(false);
    for (int i = 0; i < n; i++)
        io_handle_free(ctx, h[i]);
    udt_ctx_free(ctx);
}

static int32_t fill_ports(udt_ctx *ctx)
{
    udt_addr any = tio_loopback(4, 0);
    alloc_fail(1);
    int32_t p = udt_port_open(ctx, &any, UDT_PORT_MANUAL, 0);
    alloc_fail(0);
    return p;
}

TEST(io_a_port_without_memory_says_so)
{
    udt_ctx *ctx;
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    CHECK_INT(fill_ports(ctx), UDT_E_NOMEM);
    udt_ctx_free(ctx);
}

/* Two queues, one order; handles come and go, memory too; nothing is lost or said twice. */
TEST(io_events_keep_their_order)
{
    enum { MOST = 200, TURNS = 20000 };
    udt_ctx *ctx;
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    int32_t port = manual_port(ctx), h[MOST] = {0};
    bool waits[MOST] = {false};
    io_port *p = io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    int64_t said = 0, heard = 0, told = 0;
    int obj, refused = 0, put_off = 0;
    for (int t = 0; t < TURNS || told < said; t++) {
        int i = (int)(sim_rng_u64(&r) % MOST);
        udt_event ev[20], g = {.kind = SGMP_EV_OUTCOME, .value = said + 1};
        alloc_fail_all(t < TURNS && t % 1000 > 300);
        switch (t < TURNS ? "0001111222222234"[sim_rng_u64(&r) % 16] : '4') {
        case '0':
            if (h[i] <= 0 && (h[i] = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj)) < 0) {
                CHECK_INT(h[i], UDT_E_NOMEM);
                refused++;
            }
            break;
        case '1':
            if (h[i] > 0 && !waits[i]) {
                io_emit(ctx, &(udt_event){.kind = UDT_IO_XFER_DONE, .sock = h[i], .value = ++said});
                waits[i] = true;
            }
            break;
        case '2':
            if (io_emit_gmp(p, &g))
                said++;
            else
                put_off++;
            break;
        case '3':
            if (h[i] > 0) {
                io_handle_free(ctx, h[i]);
                h[i] = 0;
                waits[i] = false;
            }
            break;
        default:
            for (int k = 0, n = udt_ctx_poll(ctx, ev, t % 3 ? 2 : 20); k < n; k++) {
                CHECK_INT(ev[k].value, heard + 1);
                heard = ev[k].value;
                told++;
                for (int j = 0; j < MOST && ev[k].kind == UDT_IO_XFER_DONE; j++)
                    waits[j] = waits[j] && h[j] != ev[k].sock;
            }
        }
        CHECK(ctx->ready.own_n + ctx->ready.owed <= ctx->ready.own_cap);
    }
    alloc_fail_all(false);
    printf("%" PRId64 " events, %d handles refused, %d of GMP put off\n", said, refused, put_off);
    CHECK(refused > 0 && put_off > 0);
    for (int i = 0; i < MOST; i++)
        if (h[i] > 0)
            io_handle_free(ctx, h[i]);
    CHECK_INT(ctx->ready.owed, 1); /* the port's */
    io_handle_put(ctx, port);
    udt_ctx_free(ctx);
}

/* For a while nobody gets memory, disk threads included, and half are cancelled in that time: every
 * transfer comes to one end. */
TEST(io_transfers_end_without_memory)
{
    enum { N = 8, SIZE = 24 << 20 };
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int src = xf_file(SIZE, 1), done[2 * N] = {0}, ends = 0, whole = 0;
    int32_t xs[2 * N];
    for (int i = 0; i < N; i++) {
        udt_ticket k = xf_ticket(true);
        int dst = xf_empty();
        xs[2 * i] = xf_start(b, NULL, &k, dst, 0, 0, SIZE);
        xs[2 * i + 1] = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, SIZE);
        close(dst);
    }
    for (int i = 0; i < N; i++)
        tio_wait(a, UDT_IO_XFER_OPEN, xs[2 * i + 1], 10000);
    alloc_fail_everywhere(true);
    for (int i = 0; i < N / 2; i++)
        CHECK_INT(udt_xfer_cancel(i % 2 ? a->ctx : b->ctx, xs[2 * i + i % 2], 5), 0);
    usleep(100000);
    alloc_fail_everywhere(false);
    for (int64_t t0 = tio_now_us(); ends < 2 * N;) {
        CHECK(tio_now_us() - t0 < 30000000);
        for (int side = 0; side < 2; side++) {
            tio *t = side ? a : b;
            udt_event ev;
            tio_pull(t, 10000);
            while (tio_take(t, UDT_IO_XFER_FIN, 0, &ev))
                CHECK_INT(udt_xfer_finish(t->ctx, ev.sock, 0, 1, 1, 1), 0);
            while (tio_take(t, UDT_IO_XFER_DONE, 0, &ev))
                for (int i = side; i < 2 * N; i += 2)
                    if (xs[i] == ev.sock) {
                        CHECK_INT(done[i]++, 0);
                        ends++;
                        whole += ev.err == 0;
                    }
        }
    }
    printf("%d of %d ends whole\n", whole, 2 * N);
    CHECK(whole <= 2 * N - N / 2);
    for (int i = 0; i < 2 * N; i++)
        CHECK_INT(udt_xfer_free(i % 2 ? a->ctx : b->ctx, xs[i]), 0);
    close(src);
    tio_free(a);
    tio_free(b);
}
