/* Speed of one file transfer over loopback, both ends in one process.
 *
 *   bench_xfer [--bytes N] [--runs N] [--plain] [--tls N] [--fsync] [--direct] [FROM TO]
 *
 * --tls sends over N TLS connections instead of UDP. FROM and TO name files to make (default
 * /dev/shm/xfer-{from,to}.PID; both are removed). Prints one JSON object a run. gbps counts from
 * OPEN to the receiver's FIN. */
#include "udt.h"

#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

struct node {
    udt_ctx *ctx;
    int32_t port;
    udt_addr at;
};

_Noreturn static void fail(const char *what, int err)
{
    fprintf(stderr, "bench_xfer: %s: %s\n", what, udt_err_text(err));
    exit(1);
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void node_open(struct node *n, bool listens)
{
    udt_addr a = {.family = 4, .ip = {127, 0, 0, 1}};
    int err = udt_ctx_new(NULL, &n->ctx);
    if (err != 0)
        fail("context", err);
    n->port = udt_port_open(n->ctx, &a, 0, 0);
    if (n->port < 0 || (err = udt_port_addr(n->ctx, n->port, &n->at)) != 0)
        fail("port", n->port < 0 ? n->port : err);
    if (listens && (err = udt_port_listen_tls(n->ctx, n->port, 0)) != 0)
        fail("TLS port", err);
}

static udt_event wait_for(struct node *n, uint16_t kind)
{
    for (;;) {
        udt_event ev;
        struct pollfd pf = {.fd = udt_ctx_wakeup_fd(n->ctx), .events = POLLIN};
        if (udt_ctx_poll(n->ctx, &ev, 1) == 1) {
            if (ev.kind == UDT_IO_XFER_DONE && ev.err != 0)
                fail("transfer", ev.err);
            if (ev.kind == kind)
                return ev;
            continue;
        }
        if (poll(&pf, 1, 60000) <= 0)
            fail("transfer", UDT_E_TIMEOUT);
    }
}

static void fill(int fd, int64_t bytes)
{
    static uint8_t block[UDT_BLOCK_BYTES];
    for (size_t at = 0; at < sizeof block; at += 256)
        if (getrandom(block + at, 256, 0) != 256)
            fail("random", UDT_E_SYS);
    for (int64_t at = 0; at < bytes; at += UDT_BLOCK_BYTES) {
        size_t n = bytes - at < UDT_BLOCK_BYTES ? (size_t)(bytes - at) : UDT_BLOCK_BYTES;
        memcpy(block, &at, sizeof at);
        if (pwrite(fd, block, n, at) != (ssize_t)n)
            fail("source file", UDT_E_DISKWRITE);
    }
}

static void run(struct node *a, struct node *b, int src, int dst, int64_t bytes, bool encrypt,
                uint32_t recv_flags, int stripes, int no)
{
    udt_ticket t = {.tag = 77, .encrypt = encrypt};
    udt_xfer_opts s = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = bytes};
    udt_xfer_opts r = {.flags = recv_flags, .length = bytes};
    udt_xfer_result rs, rr;
    t.tag += (uint32_t)no;
    t.id[0] = (uint8_t)no;
    s.tcp_stripes = (uint16_t)stripes;
    s.udp_wait_ms = stripes ? -1 : 0;
    double cpu = cpu_seconds();
    int32_t xr = udt_xfer_start(b->ctx, b->port, NULL, &t, dst, &r);
    int32_t xs = udt_xfer_start(a->ctx, a->port, &b->at, &t, src, &s);
    if (xr < 0 || xs < 0)
        fail("start", xr < 0 ? xr : xs);
    wait_for(b, UDT_IO_XFER_FIN);
    int err = udt_xfer_finish(b->ctx, xr, 0, 1, 1, 1);
    if (err != 0)
        fail("finish", err);
    wait_for(a, UDT_IO_XFER_DONE);
    wait_for(b, UDT_IO_XFER_DONE);
    cpu = cpu_seconds() - cpu;
    if (udt_xfer_result_get(a->ctx, xs, &rs) != 0 || udt_xfer_result_get(b->ctx, xr, &rr) != 0)
        fail("result", UDT_E_STATE);
    double seconds = (double)rr.us * 1e-6, gb = (double)bytes * 1e-9;
    printf("{\"run\": %d, \"path\": \"%s\", \"encrypt\": %s, \"bytes\": %lld, \"seconds\": %.4f, "
           "\"gbps\": %.2f, "
           "\"cpu_s_per_gb\": %.3f, \"retrans_pkts\": %lld, \"rtt_us\": %lld, "
           "\"snd_disk_s\": %.3f, \"rcv_disk_s\": %.3f, \"lim_app_s\": %.3f, \"lim_cwnd_s\": %.3f, "
           "\"lim_flow_s\": %.3f}\n",
           no, rs.path == UDT_PATH_TLS ? "tls" : "udp", encrypt ? "true" : "false",
           (long long)bytes, seconds, gb * 8 / seconds, cpu / gb, (long long)rs.stats.pkts_retrans,
           (long long)rs.stats.rtt_us, (double)rs.lim_disk_us * 1e-6, (double)rr.lim_disk_us * 1e-6,
           (double)rs.stats.lim_app_us * 1e-6, (double)rs.stats.lim_cwnd_us * 1e-6,
           (double)rs.stats.lim_flow_us * 1e-6);
    fflush(stdout);
    udt_xfer_free(a->ctx, xs);
    udt_xfer_free(b->ctx, xr);
}

static int make_file(const char *name, const char *what)
{
    char own[64];
    snprintf(own, sizeof own, "/dev/shm/xfer-%s.%d", what, (int)getpid());
    int fd = open(name ? name : own, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        fail(name ? name : own, UDT_E_SYS);
    unlink(name ? name : own);
    return fd;
}

int main(int argc, char **argv)
{
    static const struct option opts[] = {{"bytes", 1, NULL, 'b'},  {"runs", 1, NULL, 'r'},
                                         {"plain", 0, NULL, 'p'},  {"fsync", 0, NULL, 'f'},
                                         {"direct", 0, NULL, 'd'}, {"tls", 1, NULL, 't'},
                                         {NULL, 0, NULL, 0}};
    int64_t bytes = 2000000000;
    int runs = 3, stripes = 0, opt;
    bool encrypt = true;
    uint32_t flags = 0;
    while ((opt = getopt_long(argc, argv, "", opts, NULL)) != -1) {
        if (opt == 'b')
            bytes = strtoll(optarg, NULL, 10);
        else if (opt == 'r')
            runs = atoi(optarg);
        else if (opt == 't')
            stripes = atoi(optarg);
        else if (opt == 'p')
            encrypt = false;
        else if (opt == 'f')
            flags |= UDT_XFER_FSYNC;
        else if (opt == 'd')
            flags |= UDT_XFER_DIRECT;
        else
            return 2;
    }
    int src = make_file(optind < argc ? argv[optind] : NULL, "from");
    int dst = make_file(optind + 1 < argc ? argv[optind + 1] : NULL, "to");
    struct node a, b;
    fill(src, bytes);
    node_open(&a, false);
    node_open(&b, stripes > 0);
    for (int i = 1; i <= runs; i++)
        run(&a, &b, src, dst, bytes, encrypt, flags, stripes, i);
    udt_ctx_free(a.ctx);
    udt_ctx_free(b.ctx);
    return 0;
}
