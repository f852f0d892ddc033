/* File transfers that go wrong: strangers, full disks, lost peers, cancels, damage on the way. */
#include "test_xfer.h"

#include "crypto/aead.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Starts a push of src from a to b. */
static void push(tio *a, tio *b, int src, int dst, int64_t size, int32_t *xs, int32_t *xr)
{
    udt_ticket k = xf_ticket(true);
    *xr = xf_start(b, NULL, &k, dst, 0, 0, -1);
    *xs = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, size);
}

TEST(xfer_fault_source_is_too_short)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    static const int64_t sizes[] = {0, 1000, 2 * UDT_BLOCK_BYTES};
    for (int i = 0; i < 3; i++) {
        int src = xf_file(sizes[i], 1), dst = xf_empty();
        int32_t xs, xr;
        push(a, b, src, dst, sizes[i] + 1, &xs, &xr);
        xf_end(a, xs, UDT_E_SHORT);
        CHECK_INT(xf_end(b, xr, UDT_E_REMOTE).remote, UDT_E_SHORT);
        close(src);
        close(dst);
    }
    tio_free(a);
    tio_free(b);
}

TEST(xfer_fault_disk_is_full)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int64_t size = 9 * UDT_BLOCK_BYTES;
    int src = xf_file(size, 1), full = open("/dev/full", O_RDWR | O_CLOEXEC), dst = xf_empty();
    int32_t xs, xr;
    CHECK(full >= 0);
    push(a, b, src, full, size, &xs, &xr);
    CHECK_INT(xf_end(b, xr, UDT_E_DISKFULL).sys_err, ENOSPC);
    CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, UDT_E_DISKFULL);
    /* a limit of the process in the middle of the file: an error, not a signal */
    struct rlimit old, low;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 5 * UDT_BLOCK_BYTES + 4096;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &low), 0);
    push(a, b, src, dst, size, &xs, &xr);
    udt_event ev = tio_wait(b, UDT_IO_XFER_DONE, xr, 10000);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    CHECK_INT(ev.err, UDT_E_DISKWRITE);
    CHECK_INT(ev.sys_err, EFBIG);
    CHECK(ev.value <= (int64_t)low.rlim_cur);
    CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, UDT_E_DISKWRITE);
    CHECK_INT(udt_xfer_free(b->ctx, xr), 0);
    close(src);
    close(full);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* A file on a file system of 4 MiB that nobody else sees; -1 where mounting is not allowed. */
static int tiny_disk(void)
{
    char dir[] = "/tmp/xfer-tiny-XXXXXX", name[64];
    int fd = -1;
    if (!mkdtemp(dir))
        return -1;
    bool apart = unshare(CLONE_NEWNS) == 0;
    (void)mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL); /* no mount point inside a chroot */
    if (apart && mount("xfer", dir, "tmpfs", MS_NOSUID, "size=4m") == 0) {
        snprintf(name, sizeof name, "%s/file", dir);
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        umount2(dir, MNT_DETACH);
    }
    rmdir(dir);
    return fd;
}

TEST(xfer_fault_file_system_fills_up)
{
    int src = xf_file(9 * UDT_BLOCK_BYTES, 1), dst = tiny_disk();
    if (dst < 0 && geteuid() != 0) { /* /dev/full above says the same with less room */
        close(src);
        return;
    }
    CHECK(dst >= 0);
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int32_t xs, xr;
    push(a, b, src, dst, 9 * UDT_BLOCK_BYTES, &xs, &xr);
    udt_event ev = xf_end(b, xr, UDT_E_DISKFULL);
    CHECK_INT(ev.sys_err, ENOSPC);
    CHECK(ev.value <= 4 * UDT_BLOCK_BYTES);
    CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, UDT_E_DISKFULL);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_fault_more_than_allowed)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int src = xf_file(3000000, 1), dst = xf_empty();
    udt_ticket k = xf_ticket(true);
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, 2999999);
    int32_t xs = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, 3000000);
    xf_end(b, xr, UDT_E_PROTO);
    CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, UDT_E_PROTO);
    CHECK(xf_size(dst) <= 2999999);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_fault_application_refuses_the_file)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int src = xf_file(100, 1), dst = xf_empty();
    udt_ticket k = xf_ticket(true);
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, -1);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 0, 0, 0), UDT_E_STATE); /* too early */
    int32_t xs = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, 100);
    CHECK_INT(udt_xfer_finish(a->ctx, xs, 0, 0, 0, 0), UDT_E_STATE); /* not the receiver */
    tio_wait(b, UDT_IO_XFER_FIN, xr, 5000);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, UDT_E_REFUSED, 0, 0, 0), 0);
    CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, UDT_E_REFUSED);
    xf_end(b, xr, UDT_E_REFUSED);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_fault_nobody_comes)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int fd = xf_file(10, 1);
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = 10, .start_ms = 400};
    int64_t start = tio_now_us();
    int32_t xs = udt_xfer_start(a->ctx, a->port, &b->at, &k, fd, &o);
    o.flags = 0;
    int32_t xr = udt_xfer_start(b->ctx, b->port, NULL, &(udt_ticket){.tag = k.tag ^ 2}, fd, &o);
    xf_end(a, xs, UDT_E_TIMEOUT);
    xf_end(b, xr, UDT_E_TIMEOUT);
    CHECK(tio_now_us() - start >= 390000 && tio_now_us() - start < 3000000);
    close(fd);
    tio_free(a);
    tio_free(b);
}

/* Strangers know the tag and even the ticket's id, but not all of it; one knows only the address.
 * The responder does not even answer them. */
TEST(xfer_fault_strangers_do_not_disturb)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0), *c = tio_open(4, 0);
    int64_t size = 300000;
    int src = xf_file(size, 1), dst = xf_empty();
    udt_ticket k = xf_ticket(true), wrong = k, other_id = k, other_mode = k;
    wrong.key[5] ^= 4;
    other_id.id[15] ^= 1;
    other_mode.encrypt = false;
    const udt_ticket *strangers[] = {&wrong, &other_id, &other_mode};
    int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, size);
    udt_xfer_opts o = {
        .flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = size, .start_ms = 300};
    for (int i = 0; i < 3; i++) {
        int32_t x = udt_xfer_start(c->ctx, c->port, &b->at, strangers[i], src, &o);
        xf_end(c, x, UDT_E_TIMEOUT);
    }
    udt_sock_opts so = {.type = 1, .own_peer = true, .tag = k.tag, .connect_timeout_ms = 300};
    int32_t raw = udt_rendezvous(c->ctx, c->port, &b->at, &so);
    tio_wait(c, UDT_IO_FAILED, raw, 5000);
    tio_close(c, raw);
    udt_port_stats st;
    CHECK_INT(udt_port_stats_get(b->ctx, b->port, &st), 0);
    CHECK_INT(st.dgrams_out, 0);
    int32_t xs = xf_start(a, &b->at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, size);
    tio_wait(b, UDT_IO_XFER_FIN, xr, 8000);
    CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
    xf_end(a, xs, 0);
    xf_end(b, xr, 0);
    xf_same(dst, 0, size, 1);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
    tio_free(c);
}

/* The key of a transfer's connection, as docs/protocol/data-channel.md says it. */
static void packet_key(const udt_ticket *k, uint8_t key[32])
{
    uint8_t info[24 + 16 + 4 + 1] = "sector transfer packets";
    memcpy(info + 24, k->id, 16);
    for (int i = 0; i < 4; i++)
        info[40 + i] = (uint8_t)(k->tag >> (24 - 8 * i));
    info[44] = k->encrypt;
    hkdf_sha256(k->key, 32, info, sizeof info, key, 32);
}

/* Who has the ticket and then says nothing, or no records, uses it up. */
TEST(xfer_fault_ticket_wasted)
{
    for (int junk = 0; junk < 2; junk++) {
        tio *b = tio_open(4, 0), *c = tio_open(4, 0);
        int dst = xf_empty();
        udt_ticket k = xf_ticket(true);
        uint8_t key[32], bytes[500] = {1, 1, 0, 64};
        udt_xfer_opts o = {.length = 1000, .start_ms = 20000};
        int32_t xr = udt_xfer_start(b->ctx, b->port, NULL, &k, dst, &o);
        udt_sock_opts so = {.type = 1, .plain_data = true};
        packet_key(&k, key);
        int32_t raw = udt_open_keyed(c->ctx, c->port, &b->at, &so, key, true);
        if (junk)
            CHECK_INT(udt_send(c->ctx, raw, bytes, sizeof bytes), sizeof bytes);
        if (!junk) /* else it may hear of the end before anything else */
            tio_wait(c, UDT_IO_CONNECTED, raw, 5000);
        xf_end(b, xr, junk ? UDT_E_AUTH : UDT_E_TIMEOUT);
        close(dst);
        tio_free(b);
        tio_free(c);
    }
}

/* Whenever one side cancels, both end, and the other knows why unless it was done or not there. */
TEST(xfer_fault_cancel_at_any_time)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int64_t size = 20 * UDT_BLOCK_BYTES;
    int src = xf_file(size, 1), dst = xf_empty(), told = 0;
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int i = 0; i < 40; i++) {
        int32_t xs, xr;
        udt_event ev;
        push(a, b, src, dst, size, &xs, &xr);
        tio *t = i & 1 ? a : b, *other = i & 1 ? b : a;
        int32_t x = i & 1 ? xs : xr, y = i & 1 ? xr : xs;
        if (i >= 20) { /* both have met: from now on each must hear of the other's end */
            tio_wait(a, UDT_IO_XFER_OPEN, xs, 5000);
            tio_wait(b, UDT_IO_XFER_OPEN, xr, 5000);
        }
        int64_t until = tio_now_us() + (int64_t)sim_rng_below(&r, 60000);
        bool fin = false;
        while (tio_now_us() < until) {
            tio_pull(b, 500);
            if (!fin && i % 3 == 0 && tio_take(b, UDT_IO_XFER_FIN, xr, &ev)) {
                fin = true;
                CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
            }
        }
        CHECK_INT(udt_xfer_cancel(t->ctx, x, 4711), 0);
        CHECK_INT(udt_xfer_cancel(t->ctx, x, 4712), 0);
        ev = tio_wait(t, UDT_IO_XFER_DONE, x, 10000);
        CHECK(ev.err == UDT_E_CANCELLED || (fin && ev.err == 0));
        if (ev.err == UDT_E_CANCELLED && i < 20) /* whom nobody met would wait for start_ms */
            CHECK_INT(udt_xfer_cancel(other->ctx, y, 1) >= UDT_E_NOSOCK, 1);
        ev = tio_wait(other, UDT_IO_XFER_DONE, y, 12000);
        told += ev.err == UDT_E_REMOTE && ev.remote == 4711;
        CHECK(ev.err != 0 || fin);
        CHECK_INT(udt_xfer_free(a->ctx, xs), 0);
        CHECK_INT(udt_xfer_free(b->ctx, xr), 0);
        tio_pull(a, 0);
        tio_pull(b, 0);
        a->n = b->n = 0;
    }
    CHECK(told >= 3);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

/* Handles and contexts may go at any moment; the sanitizers watch. */
TEST(xfer_fault_freed_at_any_time)
{
    int64_t size = 30 * UDT_BLOCK_BYTES;
    int src = xf_file(size, 1), dst = xf_empty();
    sim_rng r;
    sim_rng_seed(&r, test_seed + 1);
    for (int i = 0; i < 12; i++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        int32_t xs[3], xr[3];
        for (int k = 0; k < 3; k++)
            push(a, b, src, dst, size, &xs[k], &xr[k]);
        usleep((useconds_t)sim_rng_below(&r, 30000));
        CHECK_INT(udt_xfer_free(a->ctx, xs[0]), 0);
        CHECK_INT(udt_xfer_free(b->ctx, xr[1]), 0);
        if (i & 1)
            CHECK_INT(udt_port_close(a->ctx, a->port), 0);
        usleep((useconds_t)sim_rng_below(&r, 5000));
        if (i % 4 == 1)
            CHECK_INT(tio_wait(a, UDT_IO_XFER_DONE, xs[2], 5000).err != 1, 1);
        tio_free(i & 2 ? a : b);
        tio_free(i & 2 ? b : a);
    }
    close(src);
    close(dst);
}

/* ---- a path that damages a packet, or falls silent ---- */

struct path {
    int fd[2];
    struct sockaddr_in peer[2]; /* who talks to fd[0]; whom fd[1] talks to */
    int damage;                 /* flip a bit of this data packet; -1 = of none */
    int seen;
    _Atomic bool mute, stop;
};

static int path_socket(udt_addr *at)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), big = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big);
    CHECK_INT(bind(fd, (struct sockaddr *)&a, len), 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *at = tio_loopback(4, ntohs(a.sin_port));
    return fd;
}

static void *path_run(void *arg)
{
    struct path *p = arg;
    uint8_t buf[2048];
    while (!p->stop) {
        struct pollfd pf[2] = {{.fd = p->fd[0], .events = POLLIN},
                               {.fd = p->fd[1], .events = POLLIN}};
        if (poll(pf, 2, 50) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            struct sockaddr_in from;
            socklen_t len = sizeof from;
            ssize_t n = pf[i].revents ? recvfrom(p->fd[i], buf, sizeof buf, MSG_DONTWAIT,
                                                 (struct sockaddr *)&from, &len)
                                      : -1;
            if (n <= 0 || p->mute)
                continue;
            if (i == 0)
                p->peer[0] = from;
            if (n > 500 && !(buf[0] & 0x80) && p->seen++ == p->damage)
                buf[400] ^= 1;
            (void)sendto(p->fd[1 - i], buf, (size_t)n, 0, (struct sockaddr *)&p->peer[1 - i],
                         sizeof from);
        }
    }
    return NULL;
}

static pthread_t path_open(struct path *p, const tio *b, udt_addr *at)
{
    udt_addr unused;
    pthread_t th;
    p->fd[0] = path_socket(at);
    p->fd[1] = path_socket(&unused);
    p->peer[1] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(b->at.port)};
    p->peer[1].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_INT(pthread_create(&th, NULL, path_run, p), 0);
    return th;
}

static void path_close(struct path *p, pthread_t th)
{
    p->stop = true;
    pthread_join(th, NULL);
    close(p->fd[0]);
    close(p->fd[1]);
}

/* The network is cut in the middle: both ends notice after their idle time. */
TEST(xfer_fault_peer_vanishes)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int src = xf_file(4 * UDT_BLOCK_BYTES, 1), dst = xf_empty();
    struct path p = {.damage = -1};
    udt_addr at;
    pthread_t th = path_open(&p, b, &at);
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.length = 4 * UDT_BLOCK_BYTES, .idle_ms = 1500};
    int32_t xr = udt_xfer_start(b->ctx, b->port, NULL, &k, dst, &o);
    o.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR;
    o.max_bw_Bps = 2000000;
    int32_t xs = udt_xfer_start(a->ctx, a->port, &at, &k, src, &o);
    tio_wait(a, UDT_IO_XFER_PROGRESS, xs, 5000);
    p.mute = true;
    int64_t start = tio_now_us();
    xf_end(a, xs, UDT_E_BROKEN);
    xf_end(b, xr, UDT_E_BROKEN);
    CHECK(tio_now_us() - start > 1000000 && tio_now_us() - start < 6000000);
    path_close(&p, th);
    close(src);
    close(dst);
    tio_free(a);
    tio_free(b);
}

TEST(xfer_fault_damage_on_the_way_is_found)
{
    for (int encrypt = 0; encrypt < 2; encrypt++)
        for (int damage = -1; damage < 40; damage += 20) {
            tio *a = tio_open(4, 0), *b = tio_open(4, 0);
            int src = xf_file(200000, 1), dst = xf_empty();
            struct path p = {.damage = damage};
            udt_addr at;
            pthread_t th = path_open(&p, b, &at);
            udt_ticket k = xf_ticket(encrypt);
            int32_t xr = xf_start(b, NULL, &k, dst, 0, 0, 200000);
            int32_t xs = xf_start(a, &at, &k, src, UDT_XFER_SEND | UDT_XFER_INITIATOR, 0, 200000);
            if (damage < 0) {
                tio_wait(b, UDT_IO_XFER_FIN, xr, 8000);
                CHECK_INT(udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1), 0);
                xf_end(a, xs, 0);
                xf_end(b, xr, 0);
            } else {
                int want = encrypt ? UDT_E_AUTH : UDT_E_DIGEST;
                xf_end(b, xr, want);
                CHECK_INT(xf_end(a, xs, UDT_E_REMOTE).remote, want);
            }
            path_close(&p, th);
            close(src);
            close(dst);
            tio_free(a);
            tio_free(b);
        }
}
