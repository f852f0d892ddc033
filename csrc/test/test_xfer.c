/* File transfers over real sockets: two contexts in one process. */
#include "test_xfer.h"

#include "base/crc32c.h"

#include <errno.h>
#include <sys/resource.h>

TEST(xfer_sizes_directions_and_both_modes)
{
    static const int64_t sizes[] = {0,
                                    1,
                                    16383,
                                    16384,
                                    16385,
                                    65536,
                                    65537,
                                    UDT_BLOCK_BYTES - 1,
                                    UDT_BLOCK_BYTES,
                                    UDT_BLOCK_BYTES + 1,
                                    3 * UDT_BLOCK_BYTES + 5};
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int mode = 0; mode < 4; mode++) {
            struct xf_case c = {.encrypt = mode & 1, .pull = mode & 2, .size = sizes[i]};
            int src = xf_file(c.size, i), dst = xf_empty();
            xf_whole(a, b, &c, src, dst, i);
            CHECK_INT(xf_size(dst), c.size);
            close(src);
            close(dst);
        }
    tio_free(a);
    tio_free(b);
}

TEST(xfer_ranges_start_anywhere)
{
    tio *a = tio_open(6, 0), *b = tio_open(6, 0);
    int whole = xf_file(5 * UDT_BLOCK_BYTES, 3), src = xf_empty(), dst = xf_file(3000000, 9);
    static uint8_t block[UDT_BLOCK_BYTES];
    for (int i = 0; i < 5; i++) { /* the file lies at an odd place inside another */
        CHECK_INT(pread(whole, block, sizeof block, (off_t)i * UDT_BLOCK_BYTES), sizeof block);
        CHECK_INT(pwrite(src, block, sizeof block, 777 + (off_t)i * UDT_BLOCK_BYTES), sizeof block);
    }
    struct xf_case c = {
        .encrypt = true, .size = 2 * UDT_BLOCK_BYTES + 99, .from = 777, .at = 12345};
    xf_whole(a, b, &c, src, dst, 3);
    c.pull = true;
    c.at = 2999999;
    xf_whole(a, b, &c, src, dst, 3);
    CHECK_INT(xf_size(dst), c.at + c.size);
    close(whole);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* Big enough for every buffer, the write-behind and the windows to turn over. */
TEST(xfer_large_to_a_real_disk)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    char name[] = "/tmp/xfer-test-XXXXXX";
    int dst = mkstemp(name);
    CHECK(dst >= 0);
    unlink(name);
    int64_t size = (int64_t)2000003 * test_scale;
    int src = xf_file(size, 4);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct xf_case c = {.encrypt = encrypt, .size = size};
        c.recv_flags = UDT_XFER_DIRECT | UDT_XFER_FSYNC;
        xf_whole(a, b, &c, src, dst, 4);
        CHECK_INT(ftruncate(dst, 0), 0);
    }
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_many_at_once_on_two_ports)
{
    enum { N = 32 };
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int src[N], dst[N];
    int32_t xs[N], xr[N];
    for (int i = 0; i < N; i++) {
        udt_ticket k = xf_ticket(i & 1);
        int64_t size = 100000 * i + i;
        src[i] = xf_file(size, (uint64_t)i);
        dst[i] = xf_empty();
        tio *s = i & 2 ? a : b, *r = i & 2 ? b : a;
        xr[i] =
            xf_start(r, i & 2 ? NULL : &b->at, &k, dst[i], i & 2 ? 0 : UDT_XFER_INITIATOR, 0, -1);
        xs[i] = xf_start(s, i & 2 ? &b->at : NULL, &k, src[i],
                         UDT_XFER_SEND | (i & 2 ? UDT_XFER_INITIATOR : 0), 0, size);
    }
    for (int i = 0; i < N; i++) {
        tio *s = i & 2 ? a : b, *r = i & 2 ? b : a;
        udt_event ev = tio_wait(r, UDT_IO_XFER_FIN, xr[i], 20000);
        CHECK_INT(ev.value, 100000 * i + i);
        xf_same(dst[i], 0, ev.value, (uint64_t)i);
        CHECK_INT(udt_xfer_finish(r->ctx, xr[i], 0, 1, (uint64_t)i, 1), 0);
        xf_end(s, xs[i], 0);
        xf_end(r, xr[i], 0);
        close(src[i]);
        close(dst[i]);
    }
    tio_free(a);
    tio_free(b);
}

TEST(xfer_progress_comes_four_times_a_second_at_most)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int64_t size = 8000000;
    int src = xf_file(size, 5), dst = xf_empty(), seen[2] = {0, 0};
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = size};
    o.max_bw_Bps = 4000000;
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, -1);
    int32_t xs = udt_xfer_start(a->ctx, a->port, &b->at, &k, src, &o);
    int64_t start = tio_now_us(), last[2] = {0, 0};
    udt_event ev;
    while (!tio_take(b, UDT_IO_XFER_FIN, xr, &ev)) {
        tio_pull(a, 1000);
        tio_pull(b, 1000);
        tio *t[2] = {a, b};
        for (int i = 0; i < 2; i++)
            while (tio_take(t[i], UDT_IO_XFER_PROGRESS, i ? xr : xs, &ev)) {
                CHECK(ev.value >= last[i] && ev.value <= size);
                last[i] = ev.value;
                seen[i]++;
            }
    }
    double s = (double)(tio_now_us() - start) * 1e-6;
    CHECK(s > 1.0 && s < 15);
    for (int i = 0; i < 2; i++)
        if (seen[i] < 2 || (double)seen[i] > 4 * s + 2)
            test_fail(__FILE__, __LINE__, "%d: %d progress events in %.1f s", i, seen[i], s);
    udt_sock_stats st;
    CHECK_INT(udt_stats_get(a->ctx, xs, &st), 0);
    CHECK(st.bytes_sent > 0 && st.rtt_us > 0);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
    xf_end(a, xs, 0);
    xf_end(b, xr, 0);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_checks_blocks_at_rest)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int64_t size = 2 * UDT_BLOCK_BYTES + 500;
    int src = xf_file(size, 6), dst = xf_empty();
    static uint8_t block[UDT_BLOCK_BYTES];
    uint32_t crcs[3];
    for (int i = 0; i < 3; i++) {
        xf_block(block, 6, (uint64_t)i);
        crcs[i] = udt_crc32c(0, block, i < 2 ? sizeof block : 500);
    }
    udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR | UDT_XFER_CHECK,
                       .length = size};
    for (int bad = -1; bad < 3; bad++) {
        udt_ticket k = xf_ticket(true);
        if (bad >= 0)
            crcs[bad] ^= 1;
        int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, size);
        int32_t xs = udt_xfer_start_checked(a->ctx, a->port, &b->at, &k, src, &o, crcs, 3);
        CHECK(xs > 0);
        if (bad < 0) {
            tio_wait(b, UDT_IO_XFER_FIN, xr, 10000);
            CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
            xf_end(a, xs, 0);
            xf_end(b, xr, 0);
            continue;
        }
        CHECK_INT(xf_end(a, xs, UDT_E_DISKREAD).sys_err, EBADMSG);
        CHECK_INT(xf_end(b, xr, UDT_E_REMOTE).remote, UDT_E_DISKREAD);
        crcs[bad] ^= 1;
    }
    udt_ticket k = xf_ticket(true);
    CHECK_INT(udt_xfer_start(a->ctx, a->port, &b->at, &k, src, &o), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start_checked(a->ctx, a->port, &b->at, &k, src, &o, crcs, 2), UDT_E_INVAL);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_works_on_ports_without_a_thread)
{
    tio *a = tio_open(4, UDT_PORT_MANUAL), *b = tio_open(4, 0);
    int64_t size = 2500000;
    int src = xf_file(size, 8), dst = xf_empty();
    udt_ticket k = xf_ticket(true);
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, size);
    int32_t xs = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, size);
    udt_event ev;
    int64_t end = tio_now_us() + 10000000;
    bool fin = false;
    while (!tio_take(a, UDT_IO_XFER_DONE, xs, &ev)) {
        CHECK(tio_now_us() < end);
        CHECK_INT(udt_port_run(a->ctx, a->port, 5000), 0);
        tio_pull(a, 0);
        tio_pull(b, 0);
        if (!fin && tio_take(b, UDT_IO_XFER_FIN, xr, &ev)) {
            fin = true;
            CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
        }
    }
    CHECK_INT(ev.err, 0);
    xf_same(dst, 0, size, 8);
    for (int i = 0; i < 20; i++)
        udt_port_run(a->ctx, a->port, 1000);
    xf_end(b, xr, 0);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_refuses_bad_arguments)
{
    tio *a = tio_open(4, 0);
    int fd = xf_empty(), ro = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int wo = open("/dev/null", O_WRONLY | O_CLOEXEC | O_APPEND);
    udt_ticket k = xf_ticket(true), no_tag = k;
    no_tag.tag = 0;
    udt_addr nowhere = {.family = 4}, to = tio_loopback(4, 9);
    udt_xfer_opts recv = {.length = -1}, send = {.flags = UDT_XFER_SEND}, o;
    udt_ctx *c = a->ctx;
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &no_tag, fd, &recv), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, -1, &recv), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, 999, &recv), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, ro, &recv), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, wo, &recv), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, wo, &send), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, a->port, &nowhere, &k, fd, &send), UDT_E_INVAL);
    CHECK_INT(udt_xfer_start(c, 12345, &to, &k, fd, &send), UDT_E_NOSOCK);
    o = send;
    o.length = -1;
    CHECK_INT(udt_xfer_start(c, a->port, &to, &k, fd, &o), UDT_E_INVAL);
    o = send;
    o.flags |= UDT_XFER_INITIATOR;
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, fd, &o), UDT_E_INVAL);
    o = recv;
    o.offset = INT64_MAX;
    o.length = 1;
    CHECK_INT(udt_xfer_start(c, a->port, NULL, &k, fd, &o), UDT_E_INVAL);
    CHECK_INT(udt_xfer_cancel(c, 999, 0), UDT_E_NOSOCK);
    CHECK_INT(udt_xfer_finish(c, 999, 0, 0, 0, 0), UDT_E_NOSOCK);
    CHECK_INT(udt_xfer_free(c, 999), UDT_E_NOSOCK);
    close(fd);
    close(ro);
    close(wo);
    tio_free(a);
}
