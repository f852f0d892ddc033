/* Bare UDP as a peer of the benchmarks: what the machine can do at all, without any transport.
 *   peer_udp recv PORT --seconds S [--no-gro] [--batch N [--pause US]] [--cpu N]
 *   peer_udp send HOST PORT SECONDS [--no-gso] [--batch N] [--unconnected] [--cpu N]
 * Datagrams of 1472 bytes, 44 a call with GSO, one a call without; the receiver counts what came.
 * --batch: without offload, N datagrams a call (sendmmsg, recvmmsg); --pause: the receiver leaves
 * the socket alone so long after each call; --unconnected: each datagram carries its address. */
#include "bench_util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { SEGMENT = 1472, BATCH = 44, BATCH_MAX = 64 };

static struct bench_series all;
static uint8_t buf[BATCH_MAX * 1536];
static struct mmsghdr msgs[BATCH_MAX];
static struct iovec iovs[BATCH_MAX];
static int batch = 1;
static long pause_us;
static bool connected = true;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "peer_udp: %s: %s\n", what, strerror(errno));
    exit(1);
}

static bool over(double seconds)
{
    return all.t0 && (double)(bench_now_us() - all.t0) >= seconds * 1e6;
}

static void print(const char *role)
{
    printf("{");
    bench_print(&all, role);
    printf("}\n");
    fflush(stdout);
}

static int opened(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), want = 8 << 20;
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &want, sizeof want) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &want, sizeof want);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &want, sizeof want) < 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &want, sizeof want);
    return fd;
}

/* Datagrams of a batch, one behind the other in buf. */
static void prepare_batch(struct sockaddr_in *to)
{
    for (int i = 0; i < batch; i++) {
        iovs[i] = (struct iovec){buf + (size_t)i * 1536, SEGMENT};
        msgs[i].msg_hdr = (struct msghdr){.msg_name = to,
                                          .msg_namelen = to ? sizeof *to : 0,
                                          .msg_iov = &iovs[i],
                                          .msg_iovlen = 1};
    }
}

static ssize_t batch_bytes(int n)
{
    return n > 0 ? (ssize_t)n * SEGMENT : n;
}

static ssize_t receive(int fd)
{
    if (batch == 1)
        return recv(fd, buf, sizeof buf, 0);
    if (pause_us)
        usleep((useconds_t)pause_us);
    return batch_bytes(recvmmsg(fd, msgs, (unsigned)batch, MSG_WAITFORONE, NULL));
}

static ssize_t send_some(int fd, size_t bytes, const struct sockaddr_in *to)
{
    if (batch > 1)
        return batch_bytes(sendmmsg(fd, msgs, (unsigned)batch, 0));
    return sendto(fd, buf, bytes, 0, (const struct sockaddr *)to, to ? sizeof *to : 0);
}

static void receiver(int port, double seconds, bool gro)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval wait = {.tv_usec = 200000};
    int fd = opened(), one = 1;
    prepare_batch(NULL);
    if (gro && setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one) < 0)
        die("UDP_GRO");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
        die("bind");
    while (!over(seconds)) {
        ssize_t n = receive(fd);
        if (n > 0 && all.t0 == 0)
            bench_start(&all);
        if (n > 0)
            bench_count(&all, n);
        else if (all.t0 && bench_now_us() - all.t1 > 2000000)
            break; /* the sender is gone */
    }
    print("recv");
}

static void sender(const char *host, int port, double seconds, bool gso)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = opened(), segment = SEGMENT;
    inet_pton(AF_INET, host, &a.sin_addr);
    if (gso && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) < 0)
        die("UDP_SEGMENT");
    if (connected && connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        die("connect");
    prepare_batch(connected ? NULL : &a);
    usleep(300000); /* nobody says when the receiver is there */
    bench_start(&all);
    while (!over(seconds)) {
        ssize_t n = send_some(fd, gso ? BATCH * SEGMENT : SEGMENT, connected ? NULL : &a);
        if (n > 0)
            bench_count(&all, n);
        else if (errno != ECONNREFUSED && errno != ENOBUFS)
            die("send");
    }
    print("send");
}

int main(int argc, char **argv)
{
    const char *pos[4] = {0};
    double seconds = 10;
    bool offload = true;
    int n = 0;
    for (int i = 1; i < argc; i++) {
        bool has = i + 1 < argc;
        if (strcmp(argv[i], "--seconds") == 0 && has) {
            seconds = atof(argv[++i]);
        } else if (strcmp(argv[i], "--cpu") == 0 && has) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET((size_t)atoi(argv[++i]), &set);
            sched_setaffinity(0, sizeof set, &set);
        } else if (strcmp(argv[i], "--no-gso") == 0 || strcmp(argv[i], "--no-gro") == 0) {
            offload = false;
        } else if (strcmp(argv[i], "--unconnected") == 0) {
            connected = false;
        } else if (strcmp(argv[i], "--batch") == 0 && has) {
            batch = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--pause") == 0 && has) {
            pause_us = atol(argv[++i]);
        } else if (n < 4) {
            pos[n++] = argv[i];
        }
    }
    if (batch < 1 || batch > BATCH_MAX || (batch > 1 && offload)) {
        fprintf(stderr, "peer_udp: --batch is 1 to 64, and without offload\n");
        return 2;
    }
    if (n == 2 && strcmp(pos[0], "recv") == 0) {
        receiver(atoi(pos[1]), seconds, offload);
    } else if (n == 4 && strcmp(pos[0], "send") == 0) {
        sender(pos[1], atoi(pos[2]), atof(pos[3]), offload);
    } else {
        fprintf(stderr,
                "usage: peer_udp recv PORT --seconds S [--no-gro] [--batch N [--pause US]] | "
                "send HOST PORT SECONDS [--no-gso] [--batch N] [--unconnected]\n");
        return 2;
    }
    return 0;
}
