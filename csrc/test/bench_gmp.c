/* Round trips of 1 KB there and 1 KB back, several ways. Each peer plays --turn rounds in a row,
 * then the next one does, so that all meet the same machine and none finds its caches emptied by
 * the others before every ball (--turn 1 does that).
 *   sector          sealed GMP call to a known peer, the caller drives the port
 *   sector_threads  the same with loop threads and the event queue
 *   udp             bare datagrams
 *   tcp             an open connection
 *   tcp_connect     connect, request, response, close
 *   zmq             ZeroMQ, REQ and REP over an open TCP connection
 *   libudt          an open stream
 * The last two are in msg_peers.so beside this program, and left out where that was not built.
 * bench_gmp [--rounds N] [--turn N] [--cpus A,B] [--bytes N] [--peers a,b,...]
 * Each peer has a server process of its own on CPU B; the client runs on CPU A. One JSON object. */
#define BENCH_NAME "bench_gmp"
#include "bench_gmp.h"

#include <dlfcn.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BYTES = 1096, WARM_UP = 200 };

static size_t size = 1024;
static uint8_t secret[32];

static void whole(ssize_t n)
{
    if (n != (ssize_t)size)
        die("short read or write", 0);
}

/* ---- sockets ------------------------------------------------------------------------------- */
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

static ssize_t read_all(int fd, uint8_t *buf)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, buf + got, size - got);
        if (n <= 0)
            return n;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

static void udp_serve(int fd)
{
    uint8_t buf[MAX_BYTES];
    struct sockaddr_in from;
    for (;;) {
        socklen_t len = sizeof from;
        ssize_t n = recvfrom(fd, buf, sizeof buf, 0, (struct sockaddr *)&from, &len);
        if (n > 0)
            whole(sendto(fd, buf, (size_t)n, 0, (struct sockaddr *)&from, len));
    }
}

static void tcp_serve(int fd)
{
    uint8_t buf[MAX_BYTES];
    if (listen(fd, 64) < 0)
        die("listen", 0);
    for (;;) {
        int one = 1, c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (c < 0)
            continue;
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        while (read_all(c, buf) > 0)
            whole(write(c, buf, size));
        close(c);
    }
}

/* ---- GMP ------------------------------------------------------------------------------------- */
struct gmp {
    udt_ctx *ctx;
    int32_t port;
    udt_addr at;
    bool manual;
    sgmp_dest to;
};

static void gmp_init(struct gmp *g, bool manual)
{
    udt_addr at = {.family = 4, .ip = {127, 0, 0, 1}};
    sgmp_key k = {.key_id = 0x01000001, .alg = SGMP_ALG_AES256GCM, .principal = "bench"};
    memcpy(k.secret, secret, sizeof k.secret);
    g->manual = manual;
    int err = udt_ctx_new(NULL, &g->ctx);
    g->port = err ? err : udt_port_open(g->ctx, &at, manual ? UDT_PORT_MANUAL : 0, 0);
    err = g->port < 0 ? g->port : sgmp_open(g->ctx, g->port, true);
    err = err ? err : sgmp_key_add(g->ctx, g->port, &k);
    err = err ? err : udt_port_addr(g->ctx, g->port, &g->at);
    if (err)
        die("GMP port", err);
    g->to.key_id = k.key_id;
}

static int gmp_events(struct gmp *g, udt_event *ev, int max)
{
    int n = udt_ctx_poll(g->ctx, ev, max);
    if (n != 0)
        return n;
    if (g->manual) {
        udt_port_run(g->ctx, g->port, 1000000);
    } else {
        struct pollfd pf = {.fd = udt_ctx_wakeup_fd(g->ctx), .events = POLLIN};
        poll(&pf, 1, 1000);
    }
    return udt_ctx_poll(g->ctx, ev, max);
}

static void gmp_serve(struct gmp *g)
{
    udt_event ev[16];
    for (;;) {
        int n = gmp_events(g, ev, 16);
        for (int i = 0; i < n; i++) {
            if (ev[i].kind == SGMP_EV_REQUEST)
                sgmp_reply(g->ctx, g->port, ev[i].g.id, 0, ev[i].g.data, ev[i].g.len);
            udt_event_release(g->ctx, &ev[i]);
        }
    }
}

static void gmp_round(struct gmp *g, const uint8_t *buf)
{
    udt_event ev[16];
    int64_t id = sgmp_call(g->ctx, g->port, &g->to, 1, buf, size, NULL);
    if (id < 0)
        die("call", id);
    for (bool done = false; !done;) {
        int n = gmp_events(g, ev, 16);
        for (int i = 0; i < n; i++) {
            if (ev[i].kind == SGMP_EV_RESPONSE && ev[i].g.id == (uint64_t)id) {
                if (ev[i].g.status != 0 || ev[i].g.len != size)
                    die("answer", UDT_E_REMOTE);
                done = true;
            }
            udt_event_release(g->ctx, &ev[i]);
        }
    }
}

/* ---- peers ------------------------------------------------------------------------------------
 */
enum kind { SECTOR, SECTOR_THREADS, UDP, TCP, TCP_CONNECT, ZMQ, LIBUDT, KINDS };
static const char *const names[KINDS] = {"sector", "sector_threads", "udp", "tcp", "tcp_connect",
                                         "zmq",    "libudt"};

/* msg_peers.so */
static void (*foreign_serve)(int which, size_t bytes, int report);
static void *(*foreign_meet)(int which, uint16_t port);
static bool (*foreign_round)(int which, void *peer, char *buf, size_t bytes);

static bool load_foreign(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    if (n <= 0)
        return false;
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/msg_peers.so");
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib)
        return false;
    *(void **)&foreign_serve = dlsym(lib, "msg_peer_serve");
    *(void **)&foreign_meet = dlsym(lib, "msg_peer_meet");
    *(void **)&foreign_round = dlsym(lib, "msg_peer_round");
    return foreign_serve && foreign_meet && foreign_round;
}

struct peer {
    bool on;
    pid_t pid;
    uint16_t port;
    int fd;
    void *foreign;
    struct gmp gmp;
    int64_t *ns;
};

static _Noreturn void serve(enum kind k, int cpu, int report)
{
    struct gmp g = {0};
    uint16_t port;
    int fd = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    if (k >= ZMQ) {
        foreign_serve((int)(k - ZMQ), size, report);
        exit(1);
    }
    if (k <= SECTOR_THREADS) {
        gmp_init(&g, k == SECTOR);
        port = g.at.port;
    } else {
        fd = bound(k == UDP ? SOCK_DGRAM : SOCK_STREAM, &port);
    }
    if (k >= TCP && listen(fd, 64) < 0)
        die("listen", 0);
    if (write(report, &port, sizeof port) != sizeof port)
        die("pipe", 0);
    close(report);
    if (k <= SECTOR_THREADS)
        gmp_serve(&g);
    else if (k == UDP)
        udp_serve(fd);
    else
        tcp_serve(fd);
    exit(1);
}

static void start(struct peer *p, enum kind k, int cpu)
{
    int fds[2];
    if (pipe(fds) < 0)
        die("pipe", 0);
    p->pid = fork();
    if (p->pid < 0)
        die("fork", 0);
    if (p->pid == 0)
        serve(k, cpu, fds[1]);
    close(fds[1]);
    if (read(fds[0], &p->port, sizeof p->port) != sizeof p->port)
        die("server", 0);
    close(fds[0]);
}

static void join(struct peer *p, enum kind k)
{
    if (k <= SECTOR_THREADS) {
        gmp_init(&p->gmp, k == SECTOR);
        p->gmp.to.addr = p->gmp.at;
        p->gmp.to.addr.port = p->port;
    } else if (k <= TCP) {
        p->fd = connected(k == UDP ? SOCK_DGRAM : SOCK_STREAM, p->port);
    } else if (k >= ZMQ) {
        p->foreign = foreign_meet((int)(k - ZMQ), p->port);
        if (!p->foreign)
            die(names[k], 0);
    }
}

static void one_round(struct peer *p, enum kind k, uint8_t *buf)
{
    uint8_t in[MAX_BYTES];
    int fd = p->fd;
    if (k <= SECTOR_THREADS) {
        gmp_round(&p->gmp, buf);
        return;
    }
    if (k >= ZMQ) {
        if (!foreign_round((int)(k - ZMQ), p->foreign, (char *)buf, size))
            die(names[k], 0);
        return;
    }
    if (k == TCP_CONNECT)
        fd = connected(SOCK_STREAM, p->port);
    whole(write(fd, buf, size));
    whole(k == UDP ? read(fd, in, sizeof in) : read_all(fd, in));
    if (k == TCP_CONNECT)
        close(fd);
}

/* Rounds from to to - 1; those below 0 warm up. */
static void play(struct peer *p, enum kind k, uint8_t *buf, int from, int to)
{
    for (int i = from; i < to; i++) {
        int64_t t0 = now_ns();
        one_round(p, k, buf);
        if (i >= 0)
            p->ns[i] = now_ns() - t0;
    }
}

static void print(struct peer *peers, int rounds, int turn, int a, int b)
{
    printf("{\"bench\": \"gmp\", \"settings\": {\"rounds\": %d, \"turn\": %d, \"bytes\": %zu, "
           "\"cpus\": [%d, %d]}, \"results\": [",
           rounds, turn, size, a, b);
    const char *sep = "";
    for (int k = 0; k < KINDS; k++) {
        int64_t *v = peers[k].ns;
        if (!peers[k].on)
            continue;
        qsort(v, (size_t)rounds, sizeof *v, by_value);
        printf(
            "%s\n  {\"peer\": \"%s\", \"run\": 1, \"p50_us\": %.2f, \"p99_us\": %.2f, \"min_us\": "
            "%.2f}",
            sep, names[k], (double)v[rounds / 2] / 1e3, (double)v[(int64_t)rounds * 99 / 100] / 1e3,
            (double)v[0] / 1e3);
        sep = ",";
    }
    printf("]}\n");
}

int main(int argc, char **argv)
{
    static struct peer peers[KINDS];
    int rounds = 10000, turn = 50, a = 0, b = 0;
    const char *want = NULL;
    for (int i = 1; i < argc; i++) {
        bool has = i + 1 < argc;
        if (strcmp(argv[i], "--rounds") == 0 && has)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--turn") == 0 && has)
            turn = atoi(argv[++i]);
        else if (strcmp(argv[i], "--bytes") == 0 && has)
            size = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--peers") == 0 && has)
            want = argv[++i];
        else if (strcmp(argv[i], "--cpus") == 0 && has && sscanf(argv[++i], "%d,%d", &a, &b) == 2)
            continue;
        else if (strcmp(argv[i], "--json") != 0) {
            fprintf(stderr, "usage: bench_gmp [--rounds N] [--turn N] [--cpus A,B] [--bytes N] "
                            "[--peers X,Y]\n");
            return 2;
        }
    }
    if (rounds < 1 || turn < 1 || size < 1 || size > MAX_BYTES - 24) {
        fprintf(stderr, "bench_gmp: rounds >= 1, turn >= 1, 1 <= bytes <= %d\n", MAX_BYTES - 24);
        return 2;
    }
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        die("getrandom", 0);
    uint8_t buf[MAX_BYTES];
    memset(buf, 0x33, sizeof buf);
    bool foreign = load_foreign();
    if (!foreign && want && (strstr(want, "zmq") || strstr(want, "libudt")))
        fprintf(stderr, "bench_gmp: without zmq and libudt: %s\n", dlerror());
    for (int k = 0; k < KINDS; k++) { /* all forks before the first context */
        char list[256], name[64];
        snprintf(list, sizeof list, ",%s,", want ? want : "");
        snprintf(name, sizeof name, ",%s,", names[k]);
        peers[k].on = (!want || strstr(list, name)) && (k < ZMQ || foreign);
        if (peers[k].on)
            start(&peers[k], (enum kind)k, b);
    }
    pin(a);
    for (int k = 0; k < KINDS; k++)
        if (peers[k].on) {
            peers[k].ns = calloc((size_t)rounds, sizeof *peers[k].ns);
            join(&peers[k], (enum kind)k);
        }
    for (int i = -WARM_UP; i < rounds; i += turn)
        for (int k = 0; k < KINDS; k++)
            if (peers[k].on)
                play(&peers[k], (enum kind)k, buf, i, i + turn < rounds ? i + turn : rounds);
    print(peers, rounds, turn, a, b);
    for (int k = 0; k < KINDS; k++)
        if (peers[k].on) {
            kill(peers[k].pid, SIGKILL);
            waitpid(peers[k].pid, NULL, 0);
            free(peers[k].ns);
            if (peers[k].gmp.ctx)
                udt_ctx_free(peers[k].gmp.ctx);
        }
    return 0;
}
