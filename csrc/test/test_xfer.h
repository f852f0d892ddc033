/* Helpers of the file transfer tests: tickets, files in memory, and both ends of a transfer. */
#ifndef TEST_XFER_H
#define TEST_XFER_H

#include "sim/net.h"
#include "test_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static inline udt_ticket xf_ticket(bool encrypt)
{
    static uint64_t count;
    udt_ticket t = {.encrypt = encrypt};
    sim_rng r;
    sim_rng_seed(&r, test_seed + ++count);
    sim_rng_bytes(&r, t.id, sizeof t.id);
    sim_rng_bytes(&r, t.key, sizeof t.key);
    t.tag = (uint32_t)sim_rng_u64(&r) | 1;
    return t;
}

/* Block i of file `key`. */
static inline void xf_block(uint8_t *block, uint64_t key, uint64_t i)
{
    sim_rng r;
    sim_rng_seed(&r, key << 32 ^ i);
    sim_rng_bytes(&r, block, UDT_BLOCK_BYTES);
}

static inline int xf_empty(void)
{
    int fd = memfd_create("xfer", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static inline void xf_write(int fd, int64_t size, uint64_t key)
{
    static uint8_t block[UDT_BLOCK_BYTES];
    for (int64_t at = 0; at < size; at += UDT_BLOCK_BYTES) {
        size_t n = size - at < UDT_BLOCK_BYTES ? (size_t)(size - at) : UDT_BLOCK_BYTES;
        xf_block(block, key, (uint64_t)at / UDT_BLOCK_BYTES);
        CHECK_INT(pwrite(fd, block, n, at), n);
    }
}

static inline int xf_file(int64_t size, uint64_t key)
{
    int fd = xf_empty();
    xf_write(fd, size, key);
    return fd;
}

/* n bytes of fd at `at` are those of file `key` from its start. */
static inline void xf_same(int fd, int64_t at, int64_t n, uint64_t key)
{
    static uint8_t want[UDT_BLOCK_BYTES], got[UDT_BLOCK_BYTES];
    for (int64_t done = 0; done < n; done += UDT_BLOCK_BYTES) {
        size_t len = n - done < UDT_BLOCK_BYTES ? (size_t)(n - done) : UDT_BLOCK_BYTES;
        xf_block(want, key, (uint64_t)done / UDT_BLOCK_BYTES);
        CHECK_INT(pread(fd, got, len, at + done), len);
        CHECK_MEM(got, want, len);
    }
}

static inline int64_t xf_size(int fd)
{
    struct stat st;
    CHECK_INT(fstat(fd, &st), 0);
    return st.st_size;
}

static inline int32_t xf_start(tio *t, const udt_addr *to, const udt_ticket *k, int fd,
                               uint32_t flags, int64_t offset, int64_t length)
{
    udt_xfer_opts o = {.flags = flags, .offset = offset, .length = length, .start_ms = 8000};
    int32_t x = udt_xfer_start(t->ctx, t->port, to, k, fd, &o);
    if (x <= 0)
        test_fail(__FILE__, __LINE__, "udt_xfer_start: %s", udt_err_name(x));
    return x;
}

/* Waits for the end of a transfer, checks why, and frees it. */
static inline udt_event xf_end(tio *t, int32_t x, int err)
{
    udt_event ev = tio_wait(t, UDT_IO_XFER_DONE, x, 20000);
    if (ev.err != err)
        test_fail(__FILE__, __LINE__, "transfer ended with %s (sys %d, remote %d), want %s",
                  udt_err_name(ev.err), ev.sys_err, ev.remote, udt_err_name(err));
    CHECK_INT(udt_xfer_free(t->ctx, x), 0);
    tio_drop(t, UDT_IO_XFER_OPEN, x);
    tio_drop(t, UDT_IO_XFER_PROGRESS, x);
    return ev;
}

struct xf_case {
    bool encrypt, pull; /* pull: the initiator (a) receives */
    int64_t size, from, at;
    uint32_t recv_flags;
};

/* A whole transfer between a (initiator) and b; checks bytes, results and version. */
static inline void xf_whole(tio *a, tio *b, const struct xf_case *c, int src, int dst, uint64_t key)
{
    udt_ticket k = xf_ticket(c->encrypt);
    tio *s = c->pull ? b : a, *r = c->pull ? a : b;
    uint32_t sf = UDT_XFER_SEND | (c->pull ? 0 : UDT_XFER_INITIATOR);
    uint32_t rf = c->recv_flags | (c->pull ? UDT_XFER_INITIATOR : 0);
    int32_t xr = xf_start(r, c->pull ? &b->at : NULL, &k, dst, rf, c->at, c->size);
    int32_t xs = xf_start(s, c->pull ? NULL : &b->at, &k, src, sf, c->from, c->size);
    udt_xfer_result rs, rr;
    static uint32_t cs[4096], cr[4096];
    udt_event ev = tio_wait(r, UDT_IO_XFER_FIN, xr, 60000);
    CHECK_INT(ev.value, c->size);
    xf_same(dst, c->at, c->size, key);
    CHECK_INT(udt_xfer_result_get(r->ctx, xr, &rr), 0);
    CHECK_INT(udt_xfer_result_get(s->ctx, xs, &rs), UDT_E_STATE);
    CHECK_INT(udt_xfer_finish(r->ctx, xr, 0, 7, 1ull << 33, 2), 0);
    CHECK_INT(udt_xfer_finish(r->ctx, xr, 0, 7, 1ull << 33, 2), UDT_E_STATE);
    ev = tio_wait(s, UDT_IO_XFER_DONE, xs, 10000);
    CHECK_INT(ev.err, 0);
    CHECK_INT(ev.value, c->size);
    CHECK_INT(udt_xfer_result_get(s->ctx, xs, &rs), 0);
    CHECK(rs.version_epoch == 7 && rs.version_counter == 1ull << 33 && rs.durable == 2);
    CHECK_INT(rs.bytes, c->size);
    CHECK_INT(rs.blocks, (c->size + UDT_BLOCK_BYTES - 1) / UDT_BLOCK_BYTES);
    CHECK_INT(rr.blocks, rs.blocks);
    CHECK_MEM(rs.digest, rr.digest, 32);
    CHECK_INT(udt_xfer_crcs(s->ctx, xs, cs, 4096), rs.blocks);
    CHECK_INT(udt_xfer_crcs(r->ctx, xr, cr, 4096), rs.blocks);
    CHECK_MEM(cs, cr, rs.blocks * sizeof *cs);
    CHECK(rs.stats.bytes_sent >= c->size && rr.stats.bytes_recv >= c->size);
    tio_wait(s, UDT_IO_XFER_OPEN, xs, 1);
    tio_wait(r, UDT_IO_XFER_OPEN, xr, 1);
    tio_drop(s, UDT_IO_XFER_PROGRESS, xs);
    CHECK_INT(udt_xfer_free(s->ctx, xs), 0);
    CHECK_INT(udt_xfer_free(s->ctx, xs), UDT_E_NOSOCK);
    xf_end(r, xr, 0);
}

#endif
