/* ZeroMQ (PUSH to PULL over TCP) as a peer of the benchmarks:
 *   peer_zmq recv PORT --seconds S
 *   peer_zmq send HOST PORT SECONDS
 * Messages of 256 KiB, 16 of them queued at most on each side; TCP's buffers are the kernel's. */
#include "bench_util.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <zmq.h>

enum { MESSAGE = 256 * 1024 };

static struct bench_series all;
static char buf[MESSAGE];

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "peer_zmq: %s: %s\n", what, zmq_strerror(errno));
    exit(1);
}

static void set(void *s, int option, int value)
{
    if (zmq_setsockopt(s, option, &value, sizeof value) < 0)
        die("option");
}

static bool over(double seconds)
{
    return all.t0 && (double)(bench_now_us() - all.t0) >= seconds * 1e6;
}

static void run(void *s, bool sending, double seconds)
{
    zmq_msg_t m;
    while (!over(seconds)) {
        int n;
        if (sending) {
            n = zmq_send(s, buf, MESSAGE, 0);
        } else { /* taken without a copy */
            zmq_msg_init(&m);
            n = zmq_msg_recv(&m, s, 0);
            zmq_msg_close(&m);
        }
        if (n < 0 && errno != EAGAIN)
            break;
        if (n > 0 && all.t0 == 0) /* ZeroMQ does not say when it has connected */
            bench_start(&all);
        if (n > 0)
            bench_count(&all, n);
    }
    printf("{");
    bench_print(&all, sending ? "send" : "recv");
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *pos[4] = {0};
    double seconds = 10;
    char where[96];
    int n = 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (n < 4)
            pos[n++] = argv[i];
    bool recv = n == 2 && strcmp(pos[0], "recv") == 0;
    bool send = n == 4 && strcmp(pos[0], "send") == 0;
    if (!recv && !send) {
        fprintf(stderr, "usage: peer_zmq recv PORT --seconds S | send HOST PORT SECONDS\n");
        return 2;
    }
    void *ctx = zmq_ctx_new();
    void *s = zmq_socket(ctx, recv ? ZMQ_PULL : ZMQ_PUSH);
    set(s, recv ? ZMQ_RCVHWM : ZMQ_SNDHWM, 16);
    set(s, recv ? ZMQ_RCVTIMEO : ZMQ_SNDTIMEO, 200);
    set(s, ZMQ_LINGER, 0);
    snprintf(where, sizeof where, "tcp://%s:%s", recv ? "*" : pos[1], recv ? pos[1] : pos[2]);
    if (recv ? zmq_bind(s, where) < 0 : zmq_connect(s, where) < 0)
        die(where);
    memset(buf, 0x55, sizeof buf);
    run(s, send, send ? atof(pos[3]) : seconds);
    zmq_close(s);
    zmq_ctx_term(ctx);
    return 0;
}
