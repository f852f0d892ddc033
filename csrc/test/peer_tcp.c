/* TCP as a peer of the benchmarks:
 *   peer_tcp recv PORT [--flows N]
 *   peer_tcp send HOST PORT SECONDS [--cc NAME] [--flows N] [--mss N]
 * N connections to one port at once; --cc is the congestion control (TCP_CONGESTION), which fails
 * when the kernel lacks it. Buffers are the kernel's, auto-tuned; --mss bounds the segments. What
 * is still unsent when the time is over is thrown away. Each end prints one JSON line. */
#include "bench_util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 256 * 1024, MAX_FLOWS = 64 };

static struct peer {
    int flows, mss;
    const char *cc;
    int fd[MAX_FLOWS];
    int64_t got[MAX_FLOWS];
    struct bench_series all;
} p = {.flows = 1};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "peer_tcp: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in address(const char *host, const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        errno = EINVAL;
        die("host");
    }
    return a;
}

static void print_flows(const char *name, const int64_t *v)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < p.flows; i++)
        printf("%s%lld", i ? ", " : "", (long long)v[i]);
    printf("]");
}

static void receiver(const char *port)
{
    struct sockaddr_in a = address("0.0.0.0", port);
    struct pollfd pf[MAX_FLOWS];
    int one = 1, open = 0;
    static uint8_t buf[CHUNK];
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, MAX_FLOWS) < 0)
        die("listen");
    for (; open < p.flows; open++) {
        int c = accept(s, NULL, NULL);
        if (c < 0)
            die("accept");
        if (open == 0)
            bench_start(&p.all);
        fcntl(c, F_SETFL, O_NONBLOCK);
        pf[open] = (struct pollfd){.fd = c, .events = POLLIN};
    }
    while (open > 0) {
        poll(pf, (nfds_t)p.flows, -1);
        for (int i = 0; i < p.flows; i++) {
            ssize_t n = pf[i].revents ? read(pf[i].fd, buf, sizeof buf) : -1;
            if (n > 0) {
                bench_count(&p.all, n);
                p.got[i] += n;
            } else if (pf[i].revents && (n == 0 || errno != EAGAIN)) {
                close(pf[i].fd);
                pf[i].fd = -1;
                open--;
            }
        }
    }
    printf("{");
    bench_print(&p.all, "recv");
    print_flows("flow_bytes", p.got);
    printf("}\n");
}

static int connected(const struct sockaddr_in *a, const char *cc)
{
    for (int tries = 0;; tries++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            die("socket");
        if (cc && setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)) < 0)
            die(cc);
        if (p.mss && setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &p.mss, sizeof p.mss) < 0)
            die("TCP_MAXSEG");
        if (connect(s, (const struct sockaddr *)a, sizeof *a) == 0) {
            fcntl(s, F_SETFL, O_NONBLOCK);
            return s;
        }
        close(s);
        if (tries == 50)
            die("connect");
        usleep(50000);
    }
}

static void sender(const char *host, const char *port, double seconds)
{
    struct sockaddr_in a = address(host, port);
    struct pollfd pf[MAX_FLOWS];
    static uint8_t buf[CHUNK];
    int64_t retrans[MAX_FLOWS] = {0};
    memset(buf, 0x55, sizeof buf);
    for (int i = 0; i < p.flows; i++) {
        pf[i] = (struct pollfd){.fd = connected(&a, p.cc), .events = POLLOUT};
        if (i == 0)
            bench_start(&p.all);
    }
    while ((double)(bench_now_us() - p.all.t0) < seconds * 1e6) {
        poll(pf, (nfds_t)p.flows, 20);
        for (int i = 0; i < p.flows; i++) {
            ssize_t n = pf[i].revents ? write(pf[i].fd, buf, sizeof buf) : -1;
            if (n > 0)
                bench_count(&p.all, n);
            else if (pf[i].revents && errno != EAGAIN)
                die("write");
        }
    }
    for (int i = 0; i < p.flows; i++) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        getsockopt(pf[i].fd, IPPROTO_TCP, TCP_INFO, &info, &len);
        retrans[i] = info.tcpi_total_retrans;
        /* What has not left yet is of no use to anybody: the time is over. */
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(pf[i].fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(pf[i].fd);
    }
    printf("{");
    bench_print(&p.all, "send");
    print_flows("retrans", retrans);
    printf("}\n");
}

int main(int argc, char **argv)
{
    const char *pos[4] = {0};
    int n = 0;
    for (int i = 1; i < argc; i++) {
        bool has = i + 1 < argc;
        if (strcmp(argv[i], "--flows") == 0 && has)
            p.flows = atoi(argv[++i]);
        else if (strcmp(argv[i], "--cc") == 0 && has)
            p.cc = argv[++i];
        else if (strcmp(argv[i], "--mss") == 0 && has)
            p.mss = atoi(argv[++i]);
        else if (argv[i][0] != '-' && n < 4)
            pos[n++] = argv[i];
        else
            n = 99;
    }
    bool recv = n == 2 && strcmp(pos[0], "recv") == 0;
    bool send = n == 4 && strcmp(pos[0], "send") == 0;
    if ((!recv && !send) || p.flows < 1 || p.flows > MAX_FLOWS) {
        fprintf(stderr, "usage: peer_tcp recv PORT | send HOST PORT SECONDS [--cc NAME] "
                        "[--flows 1..64] [--mss N]\n");
        return 2;
    }
    if (recv)
        receiver(pos[1]);
    else
        sender(pos[1], pos[2], atof(pos[3]));
    return 0;
}
