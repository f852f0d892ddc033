/* How paced data leaves: bursts on the wire, processor time, and large
 * packets on loopback. A forwarder between both ends takes the times. */
#include "io/priv.h"
#include "test_io.h"

#include "io/sockaddr.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PACE_STAMPS = 1 << 16 };

typedef struct hop {
    int fd;
    udt_addr at;
    struct sockaddr_storage to[2]; /* receiver; sender, known from its first datagram */
    _Atomic int stop;
    pthread_t thread;
    _Atomic uint32_t n;         /* stamps */
    int64_t at_us[PACE_STAMPS]; /* of each datagram from the sender, with its bytes */
    uint32_t bytes[PACE_STAMPS];
} hop;

/* What came from where goes to the other; kernel receive times, so our own lateness is no matter.
 */
static void *hop_main(void *arg)
{
    hop *h = arg;
    static uint8_t buf[65536];
    while (!atomic_load(&h->stop)) {
        struct sockaddr_storage from;
        union {
            uint8_t b[128];
            struct cmsghdr align;
        } ctrl;
        struct iovec iov = {buf, sizeof buf};
        struct msghdr m = {.msg_name = &from,
                           .msg_namelen = sizeof from,
                           .msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = &ctrl,
                           .msg_controllen = sizeof ctrl};
        ssize_t n = recvmsg(h->fd, &m, 0);
        udt_addr a, b;
        if (n < 0)
            continue;
        bool back = sockaddr_get(&from, &a) && sockaddr_get(&h->to[0], &b) && a.port == b.port;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        uint32_t at = atomic_load(&h->n);
        if (!back && c && c->cmsg_type == SO_TIMESTAMPNS && at < PACE_STAMPS) {
            struct timespec ts;
            memcpy(&ts, CMSG_DATA(c), sizeof ts);
            h->bytes[at] = (uint32_t)n;
            h->at_us[at] = (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
            atomic_store(&h->n, at + 1);
        }
        if (!back)
            h->to[1] = from;
        (void)sendto(h->fd, buf, (size_t)n, 0, (struct sockaddr *)&h->to[back],
                     sizeof(struct sockaddr_in));
    }
    return NULL;
}

static hop *hop_open(const udt_addr *to)
{
    hop *h = calloc(1, sizeof *h);
    struct timeval wait = {.tv_usec = 100000};
    udt_addr at = tio_loopback(4, 0);
    struct sockaddr_storage ss;
    int on = 1, size = 8 << 20;
    CHECK(h);
    h->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = sockaddr_put(&ss, &at, false);
    CHECK_INT(bind(h->fd, (struct sockaddr *)&ss, len), 0);
    CHECK_INT(getsockname(h->fd, (struct sockaddr *)&ss, &len), 0);
    CHECK(sockaddr_get(&ss, &h->at));
    CHECK_INT(setsockopt(h->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on), 0);
    CHECK_INT(setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait), 0);
    (void)setsockopt(h->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    sockaddr_put(&h->to[0], to, false);
    CHECK_INT(pthread_create(&h->thread, NULL, hop_main, h), 0);
    return h;
}

static void hop_free(hop *h)
{
    atomic_store(&h->stop, 1);
    pthread_join(h->thread, NULL);
    close(h->fd);
    free(h);
}

/* CPU seconds of the thread of `t`'s port. */
static double loop_cpu(tio *t)
{
    clockid_t id;
    struct timespec ts;
    io_port *p = io_handle_get(t->ctx, t->port, IO_KIND_PORT, NULL);
    CHECK(p);
    CHECK_INT(pthread_getcpuclockid(p->thread, &id), 0);
    CHECK_INT(clock_gettime(id, &ts), 0);
    io_handle_put(t->ctx, t->port);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

typedef struct paced {
    double bps, cpu;    /* payload rate seen, share of a core of the sender's thread */
    uint32_t most;      /* bytes in the largest burst: gaps below a quarter of the mean */
    double bursts_in_s; /* bursts a second */
    uint32_t largest;   /* datagram */
} paced;

static tio *open_mss(uint16_t mss)
{
    tio *t = tio_open(4, 0);
    udt_addr a = tio_loopback(4, 0);
    CHECK_INT(udt_port_close(t->ctx, t->port), 0);
    t->port = udt_port_open(t->ctx, &a, 0, mss);
    CHECK(t->port > 0);
    CHECK_INT(udt_port_addr(t->ctx, t->port, &t->at), 0);
    return t;
}

/* Through a hop at `Bps` for a while. */
static paced run_paced(int64_t Bps, int64_t us, uint16_t mss)
{
    tio *a = open_mss(mss), *b = open_mss(mss);
    udt_sock_opts o = {.type = 1, .own_peer = true, .max_bw_Bps = Bps, .mss = mss};
    static uint8_t buf[1 << 16];
    hop *h = hop_open(&b->at);
    CHECK(udt_listen(b->ctx, b->port, &o, 0) > 0);
    int32_t sa = udt_connect(a->ctx, a->port, &h->at, &o), sb;
    tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
    sb = tio_wait(b, UDT_IO_ACCEPTED, 0, 5000).sock;
    int64_t start = tio_now_us(), settled = start + us / 4, end = start + us;
    double cpu0 = 0, got = 0;
    int64_t t0 = 0;
    uint32_t n0 = 0;
    while (tio_now_us() < end) {
        while (udt_send(a->ctx, sa, buf, sizeof buf) > 0)
            ;
        ssize_t n;
        while ((n = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0)
            got += t0 ? (double)n : 0;
        if (!t0 && tio_now_us() >= settled) {
            t0 = tio_now_us();
            cpu0 = loop_cpu(a);
            n0 = atomic_load(&h->n);
        }
        tio_pull(b, 5000);
        tio_pull(a, 0);
        tio_drop(a, UDT_IO_WRITABLE, sa);
        tio_drop(b, UDT_IO_READABLE, sb);
    }
    paced r = {.bps = got * 8e6 / (double)(tio_now_us() - t0),
               .cpu = (loop_cpu(a) - cpu0) * 1e6 / (double)(tio_now_us() - t0)};
    uint32_t burst = 0, bursts = 0, end_n = atomic_load(&h->n);
    for (uint32_t i = n0 + 1; i < end_n; i++) {
        int64_t gap = h->at_us[i] - h->at_us[i - 1];
        bool near = gap * 4 < (int64_t)h->bytes[i] * 1000000 / Bps + 4;
        r.largest = h->bytes[i] > r.largest ? h->bytes[i] : r.largest;
        burst = near ? burst + h->bytes[i] : h->bytes[i];
        bursts += !near;
        r.most = burst > r.most ? burst : r.most;
    }
    if (end_n > n0 + 1)
        r.bursts_in_s = bursts * 1e6 / (double)(h->at_us[end_n - 1] - h->at_us[n0]);
    hop_free(h);
    tio_free(a);
    tio_free(b);
    return r;
}

TEST_ALONE(io_pace_in_small_bursts)
{
    static const int64_t mbps[] = {10, 100, 1000};
    for (int i = 0; i < 3; i++) {
        paced r = run_paced(mbps[i] * 125000, 1200000, 0);
        printf("%" PRId64 " Mb/s: %.1f, %.1f %% of a core, %.0f bursts/s, largest %u bytes\n",
               mbps[i], r.bps * 1e-6, r.cpu * 100, r.bursts_in_s, r.most);
        CHECK(r.bps < 1.1e6 * (double)mbps[i]);
        CHECK(r.bursts_in_s < 4000);
        if (test_scale == 100) /* sanitizers make everything late: then two bursts become one */
            CHECK(r.most <= 2 * 65536 && (i == 2 || r.cpu < 0.2));
    }
}

TEST(io_large_packets)
{
    paced r = run_paced(100 * 125000, 1200000, 9000);
    CHECK(r.bps > 10e6);
    CHECK(r.largest > 8900);
}
