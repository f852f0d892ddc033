#include "io/bytesq.h"
#include "io/priv.h"
#include "test_io.h"

#include <unistd.h>

enum { QUEUE_TOTAL = 20 << 20 };

struct feed {
    bytesq q;
    msgq m;
    _Atomic int64_t mem;
};

static void *feed_bytes(void *arg)
{
    struct feed *f = arg;
    uint8_t buf[50000];
    uint64_t at = 0, want = (uint64_t)QUEUE_TOTAL * (uint64_t)test_scale / 100;
    for (unsigned k = 1; at < want; k++) {
        size_t n = k * 7919u % sizeof buf + 1;
        n = n < want - at ? n : (size_t)(want - at);
        while (bytesq_used(&f->q) > 600000)
            usleep(50);
        tio_fill(buf, n, 1, at);
        at += bytesq_write(&f->q, buf, n);
    }
    return NULL;
}

TEST(io_bytesq_between_threads)
{
    struct feed f = {.mem = 0};
    pthread_t th;
    uint8_t buf[30000];
    uint64_t at = 0, want = (uint64_t)QUEUE_TOTAL * (uint64_t)test_scale / 100;
    bytesq_init(&f.q, &f.mem, 64 << 20);
    CHECK_INT(pthread_create(&th, NULL, feed_bytes, &f), 0);
    while (at < want) {
        size_t n = bytesq_read(&f.q, buf, at % 3 ? sizeof buf : 777);
        if (n == 0)
            usleep(20);
        tio_check(buf, n, 1, at);
        at += n;
    }
    pthread_join(th, NULL);
    CHECK_INT(bytesq_used(&f.q), 0);
    CHECK(atomic_load(&f.mem) <= 2 * 180 * 1456);
    bytesq_fini(&f.q);
    CHECK_INT(atomic_load(&f.mem), 0);
}

TEST(io_bytesq_memory_is_bounded)
{
    struct feed f = {.mem = 0};
    uint8_t buf[65536] = {0};
    size_t in = 0, n;
    bytesq_init(&f.q, &f.mem, 300000);
    while ((n = bytesq_write(&f.q, buf, sizeof buf)) > 0)
        in += n;
    CHECK(atomic_load(&f.mem) <= 300000);
    CHECK(in > 50000);
    while ((n = bytesq_read(&f.q, buf, sizeof buf)) > 0)
        in -= n;
    CHECK_INT(in, 0);
    CHECK_INT(bytesq_write(&f.q, buf, 100), 100); /* an empty queue always takes something */
    bytesq_discard(&f.q);
    bytesq_fini(&f.q);
    CHECK_INT(atomic_load(&f.mem), 0);
}

static void *feed_messages(void *arg)
{
    struct feed *f = arg;
    for (unsigned k = 0; k < 20000u * (unsigned)test_scale / 100; k++) {
        msgq_item *it = msgq_new(k % 97);
        CHECK(it);
        tio_fill(it->data, it->len, k, 0);
        msgq_push(&f->m, it);
    }
    return NULL;
}

TEST(io_msgq_between_threads)
{
    struct feed f = {.mem = 0};
    pthread_t th;
    CHECK_INT(msgq_init(&f.m, &f.mem), 0);
    CHECK_INT(pthread_create(&th, NULL, feed_messages, &f), 0);
    for (unsigned k = 0; k < 20000u * (unsigned)test_scale / 100;) {
        msgq_item *it = msgq_peek(&f.m);
        if (!it) {
            usleep(20);
            continue;
        }
        CHECK_INT(it->len, k % 97);
        tio_check(it->data, it->len, k++, 0);
        msgq_pop(&f.m);
    }
    pthread_join(th, NULL);
    CHECK_INT(atomic_load(&f.mem), 0);
    msgq_fini(&f.m);
}

static int freed;
static void count_free(void *obj)
{
    (void)obj;
    freed++;
}

TEST(io_handles_are_never_confused)
{
    udt_ctx *ctx;
    int obj, other;
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    freed = 0;
    int32_t first = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj);
    CHECK(first > 0);
    io_handle_on_free(ctx, first, count_free);
    CHECK(io_handle_get(ctx, first, IO_KIND_SOCK, NULL) == NULL);
    CHECK(io_handle_get(ctx, first, IO_KIND_XFER, NULL) == &obj);
    io_handle_free(ctx, first);
    CHECK_INT(freed, 0); /* still pinned */
    CHECK(io_handle_get(ctx, first, IO_KIND_XFER, NULL) == NULL);
    io_handle_put(ctx, first);
    CHECK_INT(freed, 1);
    for (int i = 0; i < 5000; i++) {
        int32_t h = io_handle_new(ctx, IO_KIND_XFER, NULL, &other);
        CHECK(h > 0 && h != first);
        CHECK(io_handle_get(ctx, first, IO_KIND_XFER, NULL) == NULL);
        io_handle_free(ctx, h);
    }
    CHECK(io_handle_get(ctx, 0, IO_KIND_XFER, NULL) == NULL);
    CHECK(io_handle_get(ctx, -5, IO_KIND_XFER, NULL) == NULL);
    CHECK(io_handle_get(ctx, INT32_MAX, IO_KIND_XFER, NULL) == NULL);
    udt_ctx_free(ctx);
}

TEST(io_progress_events_coalesce)
{
    udt_ctx *ctx;
    int obj;
    udt_event got[8];
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    int32_t h = io_handle_new(ctx, IO_KIND_XFER, NULL, &obj);
    for (int i = 1; i <= 100; i++) {
        udt_event ev = {.kind = UDT_IO_XFER_PROGRESS, .sock = h, .value = i};
        io_emit(ctx, &ev);
    }
    struct pollfd pf = {.fd = udt_ctx_wakeup_fd(ctx), .events = POLLIN};
    CHECK_INT(poll(&pf, 1, 0), 1);
    CHECK_INT(udt_ctx_poll(ctx, got, 8), 1);
    CHECK_INT(got[0].value, 100);
    CHECK_INT(poll(&pf, 1, 0), 0);
    static const uint16_t once[] = {UDT_IO_XFER_OPEN, UDT_IO_XFER_FIN, UDT_IO_XFER_DONE};
    for (int i = 0; i < 3; i++)
        io_emit(ctx, &(udt_event){.kind = once[i], .sock = h});
    CHECK_INT(udt_ctx_poll(ctx, got, 2), 2);
    CHECK_INT(poll(&pf, 1, 0), 1); /* raised again: one more waits */
    CHECK_INT(udt_ctx_poll(ctx, got, 2), 1);
    CHECK_INT(poll(&pf, 1, 0), 0);
    io_handle_free(ctx, h);
    udt_ctx_free(ctx);
}
