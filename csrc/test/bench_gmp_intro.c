/* The first exchange with a peer that was introduced (spec/gmp.md 5.3), beside what others need for
 * a new peer: each round a sealed GMP call of 1 KB there and 1 KB back to an instance never spoken
 * to before, key and token known (gmp_new), TCP connect, request, response, close (tcp_connect),
 * and bare datagrams for scale (udp), in turn. Every client is a port and instance of its own. Each
 * kind exchanges once with another server just before, untimed, so that what is measured is the new
 * peer and not memory that thousands of other clients drove out of the caches.
 * bench_gmp_intro [--rounds N] [--cpus A,B] [--bytes N]     One JSON object. */
#define BENCH_NAME "bench_gmp_intro"
#include "bench_gmp.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BYTES = 1072, MAX_ROUNDS = 5000, PORTS_PER_CTX = 200, KEY_ID = 0x01000001, TURN = 20 };
enum { NEW, TCP, UDP, KINDS };
static const char *const names[KINDS] = {"gmp_new", "tcp_connect", "udp"};

static size_t size = 1024;
static uint8_t secret[32];

struct client {
    udt_ctx *ctx;
    int32_t port;
};
struct holder { /* what a server must know to mint a token */
    udt_addr at;
    uint64_t instance;
};
struct card { /* and what the client gets */
    udt_addr at;
    uint64_t instance;
    uint8_t token[SGMP_TOKEN_BYTES];
};

static void whole(ssize_t n, size_t want)
{
    if (n != (ssize_t)want)
        die("short read or write", 0);
}

static void read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0)
            die("read", 0);
        got += (size_t)n;
    }
}

static struct client open_client(udt_ctx *ctx, udt_addr *at, uint64_t *instance)
{
    udt_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    sgmp_key k = {.key_id = KEY_ID, .alg = SGMP_ALG_AES256GCM, .principal = "bench"};
    struct client c = {.ctx = ctx};
    memcpy(k.secret, secret, sizeof k.secret);
    c.port = udt_port_open(ctx, &any, UDT_PORT_MANUAL, 0);
    int err = c.port < 0 ? c.port : sgmp_open(ctx, c.port, true);
    err = err ? err : sgmp_key_add(ctx, c.port, &k);
    err = err ? err : udt_port_addr(ctx, c.port, at);
    err = err ? err : sgmp_instance(ctx, c.port, instance);
    if (err)
        die("GMP port", err);
    return c;
}

/* ---- servers --------------------------------------------------------------------------------- */
static _Noreturn void gmp_serve(int fd, int rounds)
{
    udt_ctx *ctx;
    struct card mine;
    int err = udt_ctx_new(NULL, &ctx);
    if (err)
        die("context", err);
    struct client c = open_client(ctx, &mine.at, &mine.instance);
    for (int i = 0; i < rounds; i++) {
        struct holder h;
        read_all(fd, &h, sizeof h);
        err = sgmp_mint_token(ctx, c.port, &h.at, h.instance, KEY_ID, mine.token);
        if (err)
            die("token", err);
        whole(write(fd, &mine, sizeof mine), sizeof mine);
    }
    for (udt_event ev[16];;) {
        int n = udt_ctx_poll(ctx, ev, 16);
        for (int i = 0; i < n; i++) {
            if (ev[i].kind == SGMP_EV_REQUEST)
                sgmp_reply(ctx, c.port, ev[i].g.id, 0, ev[i].g.data, ev[i].g.len);
            udt_event_release(ctx, &ev[i]);
        }
        if (n == 0)
            udt_port_run(ctx, c.port, 1000000);
    }
}

static _Noreturn void udp_serve(int fd)
{
    uint8_t buf[MAX_BYTES];
    struct sockaddr_in from;
    for (;;) {
        socklen_t len = sizeof from;
        ssize_t n = recvfrom(fd, buf, sizeof buf, 0, (struct sockaddr *)&from, &len);
        if (n > 0)
            whole(sendto(fd, buf, (size_t)n, 0, (struct sockaddr *)&from, len), size);
    }
}

static _Noreturn void tcp_serve(int fd)
{
    uint8_t buf[MAX_BYTES];
    for (;;) {
        int one = 1, c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (c < 0)
            continue;
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        read_all(c, buf, size);
        whole(write(c, buf, size), size);
        close(c);
    }
}

static pid_t serve(int kind, int fd, int rounds, int cpu)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork", 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    if (kind == NEW)
        gmp_serve(fd, rounds);
    else if (kind == TCP)
        tcp_serve(fd);
    udp_serve(fd);
}

/* ---- rounds ---------------------------------------------------------------------------------- */
static void gmp_round(struct client *c, const struct card *to, const uint8_t *buf)
{
    sgmp_dest d = {.addr = to->at, .key_id = KEY_ID};
    udt_event ev[16];
    int err = sgmp_introduce(c->ctx, c->port, &d, to->instance, to->token);
    int64_t id = err ? err : sgmp_call(c->ctx, c->port, &d, 1, buf, size, NULL);
    if (id < 0)
        die("call", id);
    for (bool done = false; !done;) {
        udt_port_run(c->ctx, c->port, 1000000);
        int n = udt_ctx_poll(c->ctx, ev, 16);
        for (int i = 0; i < n; i++) {
            if (ev[i].kind == SGMP_EV_RESPONSE && ev[i].g.id == (uint64_t)id) {
                if (ev[i].g.status != 0 || ev[i].g.len != size)
                    die("answer", UDT_E_REMOTE);
                done = true;
            }
            udt_event_release(c->ctx, &ev[i]);
        }
    }
}

static int connected(int type, uint16_t port)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&in, sizeof in) < 0)
        die("connect", 0);
    if (type == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void tcp_round(uint16_t port, uint8_t *buf)
{
    uint8_t in[MAX_BYTES];
    int fd = connected(SOCK_STREAM, port);
    whole(write(fd, buf, size), size);
    read_all(fd, in, size);
    close(fd);
}

static void udp_round(int fd, uint8_t *buf)
{
    uint8_t in[MAX_BYTES];
    whole(write(fd, buf, size), size);
    whole(read(fd, in, size), size);
}

static void print(int64_t *ns[KINDS], int rounds, int a, int b)
{
    double base = 0;
    printf("{\"bench\": \"gmp_intro\", \"settings\": {\"rounds\": %d, \"bytes\": %zu, \"cpus\": "
           "[%d, %d]}, \"results\": [",
           rounds, size, a, b);
    for (int k = 0; k < KINDS; k++)
        qsort(ns[k], (size_t)rounds, sizeof **ns, by_value);
    base = (double)ns[TCP][rounds / 2];
    for (int k = 0; k < KINDS; k++)
        printf("%s\n  {\"peer\": \"%s\", \"p50_us\": %.2f, \"p99_us\": %.2f, \"min_us\": %.2f, "
               "\"of_tcp_connect\": %.2f}",
               k ? "," : "", names[k], (double)ns[k][rounds / 2] / 1e3,
               (double)ns[k][(int64_t)rounds * 99 / 100] / 1e3, (double)ns[k][0] / 1e3,
               (double)ns[k][rounds / 2] / base);
    printf("]}\n");
}

/* Opens the clients and gets each a card of both servers. */
static void introduce(struct client *c, struct card *cards[2], const int fds[2], int rounds)
{
    udt_ctx *ctx = NULL;
    for (int i = 0; i < rounds; i++) {
        struct holder h = {.instance = 0};
        int err = i % PORTS_PER_CTX ? 0 : udt_ctx_new(NULL, &ctx);
        if (err)
            die("context", err);
        c[i] = open_client(ctx, &h.at, &h.instance);
        for (int s = 0; s < 2; s++) {
            whole(write(fds[s], &h, sizeof h), sizeof h);
            read_all(fds[s], &cards[s][i], sizeof cards[s][i]);
        }
    }
}

int main(int argc, char **argv)
{
    int rounds = 400, a = 0, b = 0;
    for (int i = 1; i < argc; i++) {
        bool has = i + 1 < argc;
        if (strcmp(argv[i], "--rounds") == 0 && has)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--bytes") == 0 && has)
            size = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--cpus") == 0 && has && sscanf(argv[++i], "%d,%d", &a, &b) == 2)
            continue;
        else {
            fprintf(stderr, "usage: bench_gmp_intro [--rounds N] [--cpus A,B] [--bytes N]\n");
            return 2;
        }
    }
    if (rounds < 1 || rounds > MAX_ROUNDS || size < 1 || size > MAX_BYTES) {
        fprintf(stderr, "bench_gmp_intro: 1 <= rounds <= %d, 1 <= bytes <= %d\n", MAX_ROUNDS,
                MAX_BYTES);
        return 2;
    }
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
        lim.rlim_cur = lim.rlim_max;
        setrlimit(RLIMIT_NOFILE, &lim);
    }
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        die("getrandom", 0);
    int fds[2][2], ends[2];
    uint16_t tcp_port, udp_port;
    int tcp = bound(SOCK_STREAM, &tcp_port), udp = bound(SOCK_DGRAM, &udp_port);
    if (listen(tcp, 64) < 0)
        die("listen", 0);
    pid_t pids[4];
    for (int s = 0; s < 2; s++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds[s]) < 0)
            die("socketpair", 0);
        pids[s] = serve(NEW, fds[s][1], rounds, b);
        ends[s] = fds[s][0];
    }
    pids[2] = serve(TCP, tcp, rounds, b);
    pids[3] = serve(UDP, udp, rounds, b);
    pin(a);
    struct client *c = calloc((size_t)rounds, sizeof *c);
    struct card *cards[2];
    int64_t *ns[KINDS];
    for (int s = 0; s < 2; s++)
        cards[s] = calloc((size_t)rounds, sizeof **cards);
    for (int k = 0; k < KINDS; k++)
        ns[k] = calloc((size_t)rounds, sizeof **ns);
    introduce(c, cards, ends, rounds);
    uint8_t buf[MAX_BYTES];
    memset(buf, 0x33, sizeof buf);
    int plain = connected(SOCK_DGRAM, udp_port);
    for (int i = 0; i < rounds; i++) {
        gmp_round(&c[i], &cards[0][i], buf);
        for (int k = 0; k < 2 * KINDS; k++) { /* the second of each counts */
            int64_t t0 = now_ns();
            if (k / 2 == NEW && k % 2)
                gmp_round(&c[i], &cards[1][i], buf);
            else if (k / 2 == TCP)
                tcp_round(tcp_port, buf);
            else if (k / 2 == UDP)
                udp_round(plain, buf);
            ns[k / 2][i] = now_ns() - t0;
        }
        for (int j = i / TURN * TURN; i % TURN == TURN - 1 && j <= i; j++)
            udt_port_run(c[j].ctx, c[j].port, 2000); /* acknowledgements of the answers leave */
    }
    print(ns, rounds, a, b);
    for (int s = 0; s < 4; s++) {
        kill(pids[s], SIGKILL);
        waitpid(pids[s], NULL, 0);
    }
    return 0;
}
