/* Throughput of one UDT stream, one process per role:
 *   bench_udt recv PORT [options]                    receives one stream, prints a JSON line, ends
 *   bench_udt send HOST PORT AMOUNT [options]        AMOUNT: 5s, or bytes as 2000000000, 500M, 2G
 * Options: --threads (loop thread instead of the caller driving the port), --cpu N, --mss N,
 * --no-gso, --no-gro, --cc NAME, --plain (treat the peer as a foreign one), --buf BYTES, --json.
 * gbps = payload bits over the time from connected to the last byte; cpu_s_per_gb covers all
 * threads of this side. */
#include "udt.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 180 * 1456 };

struct bench {
    udt_ctx *ctx;
    int32_t port, sock;
    bool threads, plain;
    uint32_t flags, buf_bytes;
    uint16_t mss;
    const char *cc;
    int64_t bytes, limit_bytes, limit_us, t0, t1;
    double cpu0;
    bool done, writable, refused;
};

static _Noreturn void die(const char *what, int64_t err)
{
    fprintf(stderr, "bench_udt: %s: %s\n", what, err ? udt_err_text((int)err) : "bad usage");
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0)
        perror("bench_udt: sched_setaffinity");
}

static udt_addr parse_addr(const char *host, const char *port)
{
    udt_addr a = {.port = (uint16_t)atoi(port)};
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (inet_pton(AF_INET, host, a.ip) == 1)
        a.family = 4;
    else if (inet_pton(AF_INET6, host, a.ip) == 1)
        a.family = 6;
    else
        die("host must be an address", UDT_E_INVAL);
    return a;
}

static void start_clock(struct bench *b)
{
    b->t0 = now_us();
    b->cpu0 = cpu_s();
}

static void on_event(struct bench *b, const udt_event *ev)
{
    switch (ev->kind) {
    case UDT_IO_CONNECTED:
        start_clock(b);
        break;
    case UDT_IO_ACCEPTED:
        b->sock = ev->sock;
        start_clock(b);
        break;
    case UDT_IO_WRITABLE:
        b->writable = true;
        break;
    case UDT_IO_DRAINED:
        b->done = b->limit_bytes == 0;
        break;
    case UDT_IO_FAILED:
        if (b->t0 || ev->err != UDT_E_UNREACHABLE)
            die("connection", ev->err);
        b->refused = true;
        break;
    default:
        break;
    }
}

/* One wait for whatever comes next. */
static void turn(struct bench *b, int64_t wait_us)
{
    udt_event ev[32];
    int n;
    if (!b->threads) {
        udt_port_run(b->ctx, b->port, wait_us);
    } else if (wait_us > 0) {
        struct pollfd pf = {.fd = udt_ctx_wakeup_fd(b->ctx), .events = POLLIN};
        poll(&pf, 1, (int)((wait_us + 999) / 1000));
    }
    while ((n = udt_ctx_poll(b->ctx, ev, 32)) > 0)
        for (int i = 0; i < n; i++)
            on_event(b, &ev[i]);
}

static void report(struct bench *b, const char *role)
{
    double s = (double)(b->t1 - b->t0) * 1e-6, gb = (double)b->bytes * 1e-9;
    double cpu = cpu_s() - b->cpu0;
    udt_sock_stats st = {0};
    udt_port_stats ps = {0};
    udt_stats_get(b->ctx, b->sock, &st);
    udt_port_stats_get(b->ctx, b->port, &ps);
    printf("{\"bench\": \"udt\", \"role\": \"%s\", \"mode\": \"%s\", \"bytes\": %lld, \"seconds\": "
           "%.3f, \"gbps\": %.3f, \"cpu_s_per_gb\": %.4f, \"pkts_retrans\": %lld, \"naks_recv\": "
           "%lld, \"acks_sent\": %lld, \"acks_recv\": %lld, \"send_calls\": %lld, \"recv_calls\": "
           "%lld, \"rtt_us\": %lld, \"lim_app_us\": %lld, \"lim_cwnd_us\": %lld, \"lim_flow_us\": "
           "%lld}\n",
           role, b->threads ? "threads" : "manual", (long long)b->bytes, s, s > 0 ? gb * 8 / s : 0,
           gb > 0 ? cpu / gb : 0, (long long)st.pkts_retrans, (long long)st.naks_recv,
           (long long)st.acks_sent, (long long)st.acks_recv, (long long)ps.send_calls,
           (long long)ps.recv_calls, (long long)st.rtt_us, (long long)st.lim_app_us,
           (long long)st.lim_cwnd_us, (long long)st.lim_flow_us);
}

static void open_port(struct bench *b, const udt_addr *at)
{
    int err = udt_ctx_new(NULL, &b->ctx);
    if (err)
        die("context", err);
    b->port = udt_port_open(b->ctx, at, b->flags | (b->threads ? 0 : UDT_PORT_MANUAL), b->mss);
    if (b->port < 0)
        die("port", b->port);
}

static udt_sock_opts options(const struct bench *b)
{
    return (udt_sock_opts){.type = 1,
                           .own_peer = !b->plain,
                           .cc = b->cc,
                           .snd_buf_bytes = b->buf_bytes,
                           .rcv_buf_bytes = b->buf_bytes};
}

static void receiver(struct bench *b, const char *port)
{
    udt_addr at = {.family = 6, .port = (uint16_t)atoi(port)};
    static uint8_t buf[CHUNK];
    open_port(b, &at);
    udt_sock_opts o = options(b);
    int32_t l = udt_listen(b->ctx, b->port, &o, 0);
    if (l < 0)
        die("listen", l);
    while (!b->sock)
        turn(b, 100000);
    for (;;) {
        ssize_t n = udt_recv(b->ctx, b->sock, buf, sizeof buf);
        if (n > 0) {
            b->bytes += n;
            b->t1 = now_us();
        } else if (n == UDT_E_AGAIN) {
            turn(b, 1000000);
        } else {
            break; /* closed by the peer: the end */
        }
    }
    report(b, "recv");
    udt_ctx_free(b->ctx);
}

static bool more(const struct bench *b)
{
    if (b->limit_us)
        return now_us() - b->t0 < b->limit_us;
    return b->bytes < b->limit_bytes;
}

/* Connects; for 5 s a receiver that is not there yet is waited for. */
static void meet(struct bench *b, const udt_addr *to)
{
    udt_sock_opts o = options(b);
    int64_t end = now_us() + 5000000;
    b->refused = true;
    while (!b->t0) {
        if (b->refused) {
            if (b->sock)
                udt_close(b->ctx, b->sock, 0);
            b->refused = false;
            b->sock = udt_connect(b->ctx, b->port, to, &o);
            if (b->sock < 0 || now_us() > end)
                die("connect", b->sock < 0 ? b->sock : UDT_E_UNREACHABLE);
        }
        turn(b, 100000);
        if (b->refused)
            usleep(50000);
    }
}

static void sender(struct bench *b, const char *host, const char *port)
{
    udt_addr to = parse_addr(host, port), at = {.family = to.family};
    static uint8_t buf[CHUNK];
    memset(buf, 0x55, sizeof buf);
    open_port(b, &at);
    meet(b, &to);
    while (more(b)) {
        size_t want = sizeof buf;
        if (b->limit_bytes && b->limit_bytes - b->bytes < (int64_t)want)
            want = (size_t)(b->limit_bytes - b->bytes);
        ssize_t n = udt_send(b->ctx, b->sock, buf, want);
        if (n > 0) {
            b->bytes += n;
            continue;
        }
        if (n != UDT_E_AGAIN)
            die("send", n);
        for (b->writable = false; !b->writable && (b->threads || !b->done);) {
            turn(b, 1000000);
            if (!b->threads)
                break; /* the engine may have room after any turn */
        }
    }
    b->limit_bytes = 0; /* from now on DRAINED is the end */
    b->done = false;
    while (!b->done)
        turn(b, 1000000);
    b->t1 = now_us();
    report(b, "send");
    udt_close(b->ctx, b->sock, 1000);
    for (int i = 0; i < 20; i++)
        turn(b, 5000);
    udt_ctx_free(b->ctx);
}

static void parse_amount(struct bench *b, const char *s)
{
    char *end;
    double v = strtod(s, &end);
    if (v <= 0)
        die("amount", 0);
    if (*end == 's')
        b->limit_us = (int64_t)(v * 1e6);
    else
        b->limit_bytes = (int64_t)(v * (*end == 'G'   ? 1e9
                                        : *end == 'M' ? 1e6
                                        : *end == 'k' ? 1e3
                                                      : 1));
}

int main(int argc, char **argv)
{
    struct bench b = {.buf_bytes = 0};
    const char *pos[4] = {0};
    int npos = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        bool has = i + 1 < argc;
        if (strcmp(a, "--threads") == 0)
            b.threads = true;
        else if (strcmp(a, "--plain") == 0)
            b.plain = true;
        else if (strcmp(a, "--no-gso") == 0)
            b.flags |= UDT_PORT_NO_GSO;
        else if (strcmp(a, "--no-gro") == 0)
            b.flags |= UDT_PORT_NO_GRO;
        else if (strcmp(a, "--json") == 0)
            continue; /* it always is */
        else if (strcmp(a, "--cpu") == 0 && has)
            pin(atoi(argv[++i]));
        else if (strcmp(a, "--mss") == 0 && has)
            b.mss = (uint16_t)atoi(argv[++i]);
        else if (strcmp(a, "--cc") == 0 && has)
            b.cc = argv[++i];
        else if (strcmp(a, "--buf") == 0 && has)
            b.buf_bytes = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (a[0] != '-' && npos < 4)
            pos[npos++] = a;
        else
            die(a, 0);
    }
    if (npos == 2 && strcmp(pos[0], "recv") == 0) {
        receiver(&b, pos[1]);
    } else if (npos == 4 && strcmp(pos[0], "send") == 0) {
        parse_amount(&b, pos[3]);
        sender(&b, pos[1], pos[2]);
    } else {
        die("bench_udt recv PORT | send HOST PORT AMOUNT", 0);
    }
    return 0;
}
