/* What passes between the ends of a transfer over TLS while nothing is sent, and what is heard at
 * the end of it: through a proxy that stops, or that ends both directions at the end of one. */
#include "test_xfer.h"

#include "crypto/aead.h"
#include "io/stripe.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

/* ---- a slow disk ---- */

ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __real_pwritev(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n, off_t at);

/* Files whose disk does nothing for now. */
static _Atomic int no_read = -1, no_write = -1;

ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t at)
{
    while (atomic_load(&no_read) == fd)
        usleep(1000);
    return __real_preadv(fd, iov, n, at);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
    while (atomic_load(&no_write) == fd)
        usleep(1000);
    return __real_pwritev(fd, iov, n, at);
}

/* ---- a proxy ---- */

enum { LINES = 16 };

struct line {
    int fd[2];
    struct way {
        uint8_t buf[65536];
        size_t at, len;
    } way[2]; /* from fd[i] */
};

struct proxy {
    int listener, n;
    struct line line[LINES];
    uint16_t port, to;
    _Atomic unsigned stopped; /* bit i: line i passes nothing on */
    _Atomic bool over;
    pthread_t thread;
};

static struct sockaddr_in here(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}

static void take_line(struct proxy *p)
{
    struct sockaddr_in to = here(p->to);
    int *fd = p->line[p->n++].fd;
    CHECK(p->n <= LINES);
    fd[0] = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd[0] >= 0 && connect(fd[1], (struct sockaddr *)&to, sizeof to) == 0);
}

/* The end of one direction is the end of both, as in proxies that know no other. What one direction
 * has no room for does not hold up the other. */
static void pass_on(struct line *l, int from)
{
    struct way *w = &l->way[from];
    if (w->at == w->len) {
        ssize_t n = recv(l->fd[from], w->buf, sizeof w->buf, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return;
        w->at = 0;
        w->len = n > 0 ? (size_t)n : 0;
    }
    ssize_t n =
        w->len > 0 ? send(l->fd[!from], w->buf + w->at, w->len - w->at, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : 0;
    if (n > 0)
        w->at += (size_t)n;
    else if (n == 0 || errno != EAGAIN)
        for (int i = 0; i < 2; i++) {
            close(l->fd[i]);
            l->fd[i] = -1;
        }
}

static void *proxy_run(void *arg)
{
    struct proxy *p = arg;
    while (!atomic_load(&p->over)) {
        struct pollfd pf[1 + 2 * LINES] = {{.fd = p->listener, .events = POLLIN}};
        unsigned stopped = atomic_load(&p->stopped);
        int n = p->n;
        for (int i = 0; i < 2 * n; i++) {
            struct line *l = &p->line[i / 2];
            bool full = l->way[i % 2].at < l->way[i % 2].len;
            pf[1 + i].fd = stopped >> (i / 2) & 1 ? -1 : l->fd[full ? !(i % 2) : i % 2];
            pf[1 + i].events = full ? POLLOUT : POLLIN;
        }
        (void)poll(pf, (nfds_t)(1 + 2 * n), 10);
        for (int i = 0; i < 2 * n; i++)
            if (pf[1 + i].revents && p->line[i / 2].fd[0] >= 0)
                pass_on(&p->line[i / 2], i % 2);
        if (pf[0].revents)
            take_line(p);
    }
    return NULL;
}

static struct proxy *proxy_open(uint16_t to)
{
    struct proxy *p = calloc(1, sizeof *p);
    struct sockaddr_in at = here(0);
    socklen_t len = sizeof at;
    CHECK(p);
    p->to = to;
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(p->listener, (struct sockaddr *)&at, len) == 0 && listen(p->listener, 16) == 0);
    CHECK_INT(getsockname(p->listener, (struct sockaddr *)&at, &len), 0);
    p->port = ntohs(at.sin_port);
    CHECK_INT(pthread_create(&p->thread, NULL, proxy_run, p), 0);
    return p;
}

static void proxy_close(struct proxy *p)
{
    atomic_store(&p->over, true);
    pthread_join(p->thread, NULL);
    for (int i = 0; i < 2 * p->n; i++)
        if (p->line[i / 2].fd[i % 2] >= 0)
            close(p->line[i / 2].fd[i % 2]);
    close(p->listener);
    free(p);
}

/* ---- a transfer through it ---- */

struct through {
    tio *a, *b;
    struct proxy *p;
    int src, dst;
    int32_t xs, xr;
};

static int64_t capped; /* bytes a second that the next one sends, 0 = no cap */

/* a sends to b over four connections; ends after so much silence. */
static void begin(struct through *t, int64_t size, int32_t a_idle_ms, int32_t b_idle_ms)
{
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.length = size, .start_ms = 8000, .idle_ms = b_idle_ms};
    t->a = tio_open(4, 0);
    t->b = tio_open_tls(4);
    t->p = proxy_open(t->b->at.port);
    t->src = xf_empty();
    t->dst = xf_empty();
    CHECK_INT(ftruncate(t->src, size), 0);
    t->xr = udt_xfer_start(t->b->ctx, t->b->port, NULL, &k, t->dst, &o);
    o.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR;
    o.tcp_port = t->p->port;
    o.tcp_stripes = 4;
    o.udp_wait_ms = -1;
    o.max_bw_Bps = capped;
    o.idle_ms = a_idle_ms;
    t->xs = udt_xfer_start(t->a->ctx, t->a->port, &t->b->at, &k, t->src, &o);
    CHECK(t->xs > 0 && t->xr > 0);
}

static void finish(struct through *t)
{
    tio_wait(t->b, UDT_IO_XFER_FIN, t->xr, 10000);
    CHECK_INT(udt_xfer_finish(t->b->ctx, t->xr, 0, 1, 1, 1), 0);
    xf_end(t->a, t->xs, 0);
    xf_end(t->b, t->xr, 0);
}

static void over(struct through *t)
{
    tio_free(t->a);
    tio_free(t->b);
    proxy_close(t->p);
    close(t->src);
    close(t->dst);
}

/* A receiver that ends a transfer in full flow tells why, though a proxy resets a connection of
 * which it has not passed all on. */
TEST(tls_the_last_word_passes_a_proxy)
{
    for (int round = 0; round < 6; round++) {
        struct through t;
        begin(&t, 400 * (int64_t)UDT_BLOCK_BYTES, 0, 0);
        atomic_store(&no_write, t.dst);
        tio_wait(t.a, UDT_IO_XFER_PROGRESS, t.xs, 5000);
        usleep(200000); /* all that may be under way is */
        CHECK_INT(udt_xfer_cancel(t.b->ctx, t.xr, 43), 0);
        udt_event ev = tio_wait(t.a, UDT_IO_XFER_DONE, t.xs, 5000);
        CHECK_INT(ev.err, UDT_E_REMOTE);
        CHECK_INT(ev.remote, 43);
        atomic_store(&no_write, -1);
        tio_wait(t.b, UDT_IO_XFER_DONE, t.xr, 5000);
        over(&t);
    }
}

/* Whether one connection is dead or all of them: both ends know it in time. */
TEST(tls_silence_ends_both_sides)
{
    for (int all = 0; all < 2; all++) {
        struct through t;
        begin(&t, 1 << 30, 1000, 1000);
        tio_wait(t.b, UDT_IO_XFER_PROGRESS, t.xr, 5000);
        atomic_store(&t.p->stopped, all ? 15u : 2u);
        int64_t began = tio_now_us();
        CHECK_INT(tio_wait(t.b, UDT_IO_XFER_DONE, t.xr, 3000).err, UDT_E_BROKEN);
        CHECK_INT(tio_wait(t.a, UDT_IO_XFER_DONE, t.xs, 3000).err, UDT_E_BROKEN);
        int64_t took = tio_now_us() - began;
        CHECK(took > 900000 && took < 3000000);
        over(&t);
    }
}

/* The receiver has all and its application takes its time: a sender that falls silent then is
 * noticed, and one that has nothing more to say is not taken for dead, nor its peer. */
TEST(tls_silence_behind_the_file)
{
    for (int dead = 0; dead < 2; dead++) {
        struct through t;
        begin(&t, 3000000, 600, 600);
        tio_wait(t.b, UDT_IO_XFER_FIN, t.xr, 5000);
        atomic_store(&t.p->stopped, dead ? 15u : 0u);
        usleep(2000000);
        if (dead) {
            CHECK_INT(tio_wait(t.b, UDT_IO_XFER_DONE, t.xr, 1).err, UDT_E_BROKEN);
            CHECK_INT(tio_wait(t.a, UDT_IO_XFER_DONE, t.xs, 1).err, UDT_E_BROKEN);
        } else {
            CHECK_INT(udt_xfer_finish(t.b->ctx, t.xr, 0, 1, 1, 1), 0);
            xf_end(t.a, t.xs, 0);
            xf_end(t.b, t.xr, 0);
        }
        over(&t);
    }
}

/* A disk that stands still for long is no silence, at either end: a full window neither. */
TEST(tls_a_disk_that_waits_is_not_silence)
{
    for (int writer = 0; writer < 2; writer++) {
        struct through t;
        _Atomic int *held = writer ? &no_write : &no_read;
        begin(&t, 250 * (int64_t)UDT_BLOCK_BYTES, 600, 600); /* more than all buffers on the way */
        tio_wait(t.b, UDT_IO_XFER_OPEN, t.xr, 5000);
        atomic_store(held, writer ? t.dst : t.src);
        usleep(3000000);
        atomic_store(held, -1);
        finish(&t);
        over(&t);
    }
}

/* The more patient end speaks as often as the other needs. */
TEST(tls_ends_of_unequal_patience)
{
    for (int other = 0; other < 2; other++) {
        struct through t;
        begin(&t, 3000000, other ? 300 : 60000, other ? 60000 : 300);
        tio_wait(t.b, UDT_IO_XFER_FIN, t.xr, 5000);
        usleep(1500000);
        CHECK_INT(udt_xfer_finish(t.b->ctx, t.xr, 0, 1, 1, 1), 0);
        xf_end(t.a, t.xs, 0);
        xf_end(t.b, t.xr, 0);
        over(&t);
    }
}

/* Bytes that a rate cap holds back in the kernel are no silence either. */
TEST(tls_a_low_rate_is_not_silence)
{
    struct through t;
    capped = 400000;
    begin(&t, 2000000, 300, 300);
    capped = 0;
    int64_t began = tio_now_us();
    finish(&t);
    CHECK(tio_now_us() - began > 1500000);
    over(&t);
}

/* ---- a peer by hand ---- */

static struct {
    const udt_ticket *t;
} who;

static int client_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
                      SSL_SESSION **out)
{
    static const unsigned char aes128_gcm_sha256[] = {0x13, 0x01};
    uint8_t psk[32];
    SSL_SESSION *s = SSL_SESSION_new();
    (void)md;
    stripe_psk(who.t, psk);
    CHECK(s && SSL_SESSION_set1_master_key(s, psk, 32) &&
          SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes128_gcm_sha256)) &&
          SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION));
    *id = who.t->id;
    *len = sizeof who.t->id;
    *out = s;
    return 1;
}

/* Bytes that a receiver says to an initiator which has proved its ticket and says nothing, and
 * whether it ends the connection, within 2.5 s. */
static int heard_by(bool knows, bool *ended)
{
    static const unsigned char name[] = "\013sector live";
    tio *b = tio_open_tls(4);
    udt_ticket k = xf_ticket(true);
    udt_xfer_opts o = {.length = 1000, .start_ms = 8000, .idle_ms = 600};
    int dst = xf_empty(), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), sum = 0, n;
    struct sockaddr_in to = here(b->at.port);
    struct timeval patience = {.tv_usec = 100000};
    uint8_t buf[4096];
    who.t = &k;
    int32_t x = udt_xfer_start(b->ctx, b->port, NULL, &k, dst, &o);
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    SSL_CTX_set_psk_use_session_callback(ctx, client_key);
    SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
    SSL *ssl = SSL_new(ctx);
    CHECK_INT(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    SSL_set_fd(ssl, fd);
    if (knows)
        SSL_set_alpn_protos(ssl, name, sizeof name - 1);
    CHECK_INT(SSL_connect(ssl), 1);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    *ended = false;
    for (int64_t end = tio_now_us() + 2500000; tio_now_us() < end && !*ended;) {
        n = SSL_read(ssl, buf, sizeof buf);
        sum += n > 0 ? n : 0;
        *ended = n <= 0 && SSL_get_error(ssl, n) != SSL_ERROR_WANT_READ;
    }
    if (knows) /* each empty frame tells how long the receiver waits */
        CHECK_MEM(buf, "\0\0\0\0\0\0\2\130\0\0\0\0", 12);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    CHECK(tio_wait(b, UDT_IO_XFER_DONE, x, 5000).err != 0);
    tio_free(b);
    close(dst);
    return sum;
}

/* An older peer would end a connection on which an empty frame comes, and sends none. */
TEST(tls_an_older_peer_is_not_spoken_to)
{
    bool ended;
    CHECK_INT(heard_by(false, &ended), 0);
    CHECK(!ended);
    CHECK(heard_by(true, &ended) >= 5 * 12);
    CHECK(ended);
}
