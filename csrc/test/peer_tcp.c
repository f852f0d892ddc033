/* TCP as a peer of the benchmarks:
 *   peer_tcp recv PORT [--flows N]
 *   peer_tcp send HOST PORT SECONDS [--cc NAME] [--flows N] [--mss N]
 * N connections to one port at once; --cc is the congestion control (TCP_CONGESTION), which fails
 * when the kernel lacks it. Buffers are the kernel's, auto-tuned; --mss bounds the segments. What
 * is still unsent when the time is over is thrown away. Each end prints one JSON line. */
#define PEER_NAME "peer_tcp"
#include "peer_flows.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>

static struct peer {
    int flows, mss;
    const char *cc;
    int fd[MAX_FLOWS];
    int64_t got[MAX_FLOWS];
    struct bench_series all;
} p = {.flows = 1};

static void print_flows(const char *name, const int64_t *v)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < p.flows; i++)
        printf("%s%lld", i ? ", " : "", (long long)v[i]);
    printf("]");
}

static void receiver(const char *port)
{
    struct pollfd pf[MAX_FLOWS];
    int open = 0, s = listening(port);
    static uint8_t buf[CHUNK];
    for (; open < p.flows; open++) {
        int c = accepted(s);
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

static void prepare(int s)
{
    if (p.cc && setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, p.cc, (socklen_t)strlen(p.cc)) < 0)
        die(p.cc);
    if (p.mss && setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &p.mss, sizeof p.mss) < 0)
        die("TCP_MAXSEG");
}

static void sender(const char *host, const char *port, double seconds)
{
    struct sockaddr_in a = address(host, port);
    struct pollfd pf[MAX_FLOWS];
    static uint8_t buf[CHUNK];
    int64_t retrans[MAX_FLOWS] = {0};
    memset(buf, 0x55, sizeof buf);
    for (int i = 0; i < p.flows; i++) {
        pf[i] = (struct pollfd){.fd = connected(&a, prepare), .events = POLLOUT};
        fcntl(pf[i].fd, F_SETFL, O_NONBLOCK);
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
        drop(pf[i].fd);
    }
    printf("{");
    bench_print(&p.all, "send");
    print_flows("retrans", retrans);
    printf("}\n");
}

static bool option(const char *name, const char *value)
{
    if (strcmp(name, "--cc") == 0)
        p.cc = value;
    else if (strcmp(name, "--mss") == 0)
        p.mss = atoi(value);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct flows_args o;
    if (!flows_args(argc, argv, &p.flows, option, &o)) {
        fprintf(stderr, "usage: peer_tcp recv PORT | send HOST PORT SECONDS [--cc NAME] "
                        "[--flows 1..64] [--mss N]\n");
        return 2;
    }
    if (o.recv)
        receiver(o.port);
    else
        sender(o.host, o.port, o.seconds);
    return 0;
}
