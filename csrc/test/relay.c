/* A faulty network between real loopback ports: forwards UDP datagrams with the same model of
 * rate, delay, loss, reordering and duplication as the simulator, in real time.
 *
 *   relay --listen PORT --to HOST:PORT [faults]     clients talk to PORT, the server is at
 * HOST:PORT relay --pair A:B --ports RA:RB [faults]         rendezvous: the end at port A takes RA
 * for its peer, the end at port B takes RB for its peer A port 0 is chosen by the kernel. The first
 * line of output names the ports; SIGTERM or SIGINT ends the program with one JSON object of
 * counts. Faults apply to both directions unless --forth or --back came before them (--both returns
 * to both). Probabilities are parts per million. */
#include "sim/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CLIENTS 64
#define MAX_PACKETS 65536 /* datagrams under way; more are dropped and counted */
#define MAX_DATAGRAM 9216
#define BATCH 64    /* datagrams taken from one socket before due ones are sent */
#define TAG_BYTES 2 /* client number carried through the network in front of the datagram */

/* One end of the network. Datagrams from the near sockets leave into the network here, and those
 * that arrive here go out of a socket. */
struct end {
    struct relay *r;
    bool server;
    udt_addr far;
    uint8_t hold[MAX_DATAGRAM + TAG_BYTES]; /* the datagram that enters next */
    size_t len;
};

struct client {
    struct sockaddr_storage addr; /* family 0 = free */
    socklen_t addr_len;
    int fd;       /* towards the server */
    int64_t used; /* turn of the last datagram, to replace the oldest */
};

struct relay {
    sim_net *net;
    struct end ends[2]; /* 0 = clients (or A), 1 = server (or B) */
    struct client clients[MAX_CLIENTS];
    struct sockaddr_storage server;
    socklen_t server_len;
    int front; /* socket the clients talk to */
    int family;
    bool pair;
    int64_t start_us, turn;
    int64_t overflow[2], send_errors[2]; /* by direction */
};

static int64_t clock_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

_Noreturn static void fail(const char *what, const char *detail)
{
    fprintf(stderr, "relay: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
    exit(2);
}

/* ---- sockets ---- */

static socklen_t resolve(const char *host, const char *port, struct sockaddr_storage *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST}, *res;
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    int rc = getaddrinfo(host, port, &hints, &res);
    if (rc != 0)
        fail(host, gai_strerror(rc));
    socklen_t len = res->ai_addrlen;
    memcpy(out, res->ai_addr, len);
    freeaddrinfo(res);
    return len;
}

static socklen_t resolve_pair(const char *text, struct sockaddr_storage *out)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof host)
        fail("want HOST:PORT", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        return resolve(host + 1, colon + 1, out);
    }
    return resolve(host, colon + 1, out);
}

static int socket_on(const struct sockaddr_storage *at, socklen_t len)
{
    int fd = socket(at->ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), size = 8 << 20;
    if (fd < 0)
        fail("socket", strerror(errno));
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) != 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (bind(fd, (const struct sockaddr *)at, len) != 0)
        fail("bind", strerror(errno));
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char port[8];
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0 ||
        getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV | NI_DGRAM) != 0)
        fail("getsockname", strerror(errno));
    return atoi(port);
}

/* ---- the ends of the network ---- */

/* The network delivers to an end: send it out of the socket that its addressee knows. */
static void end_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    struct end *e = ep;
    struct relay *r = e->r;
    (void)from, (void)now;
    struct client *c = &r->clients[(pkt[0] << 8 | pkt[1]) % MAX_CLIENTS];
    ssize_t sent;
    if (c->addr_len == 0)
        return;
    if (e->server)
        sent = sendto(c->fd, pkt + TAG_BYTES, len - TAG_BYTES, 0, (struct sockaddr *)&r->server,
                      r->server_len);
    else
        sent = sendto(r->front, pkt + TAG_BYTES, len - TAG_BYTES, 0, (struct sockaddr *)&c->addr,
                      c->addr_len);
    if (sent < 0)
        r->send_errors[e->server ? 0 : 1]++;
}

static size_t end_output(void *ep, uint8_t *buf, size_t cap, size_t segs, udt_addr *to, size_t *seg,
                         udt_time now)
{
    struct end *e = ep;
    size_t len = e->len;
    (void)now;
    if (len == 0 || segs == 0 || len > cap)
        return 0;
    memcpy(buf, e->hold, len);
    *to = e->far;
    *seg = len;
    e->len = 0;
    return len;
}

static udt_time end_deadline(const void *ep)
{
    (void)ep;
    return UDT_NEVER;
}

static void end_tick(void *ep, udt_time now)
{
    (void)ep, (void)now;
}

static const sim_ep_ops end_ops = {end_input, NULL, end_output, end_deadline, end_tick};

/* ---- clients ---- */

static int client_of(struct relay *r, const struct sockaddr_storage *from, socklen_t len)
{
    int at = 0;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &r->clients[i];
        if (c->addr_len == len && memcmp(&c->addr, from, len) == 0)
            return i;
        if (c->addr_len == 0) {
            at = i;
            break;
        }
        if (c->used < r->clients[at].used)
            at = i;
    }
    if (r->pair)
        return -1; /* a stranger */
    struct client *c = &r->clients[at];
    if (c->addr_len != 0)
        close(c->fd);
    struct sockaddr_storage any;
    socklen_t any_len = resolve(r->family == AF_INET6 ? "::" : "0.0.0.0", "0", &any);
    memcpy(&c->addr, from, len);
    c->addr_len = len;
    c->fd = socket_on(&any, any_len);
    return at;
}

static void enter(struct relay *r, int end, int client)
{
    struct end *e = &r->ends[end];
    if (sim_net_in_flight(r->net) >= MAX_PACKETS) {
        r->overflow[end]++;
        return;
    }
    e->hold[0] = (uint8_t)(client >> 8);
    e->hold[1] = (uint8_t)client;
    r->clients[client].used = ++r->turn;
    sim_net_kick(r->net, end);
}

/* Take waiting datagrams of a socket; `client` < 0 = the front, told apart by source. */
static void drain(struct relay *r, int fd, int client)
{
    for (int i = 0; i < BATCH; i++) {
        struct end *e = &r->ends[client < 0 ? 0 : 1];
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        memset(&from, 0, sizeof from);
        ssize_t n =
            recvfrom(fd, e->hold + TAG_BYTES, MAX_DATAGRAM, 0, (struct sockaddr *)&from, &len);
        if (n < 0)
            return;
        int who = client < 0 ? client_of(r, &from, len) : client;
        while (sim_net_step(r->net, clock_us() - r->start_us))
            ;
        e->len = (size_t)n + TAG_BYTES;
        if (who >= 0)
            enter(r, client < 0 ? 0 : 1, who);
        e->len = 0;
    }
}

/* ---- command line ---- */

static void print_counts(const struct relay *r)
{
    static const char *const names[2] = {"forth", "back"};
    printf("{");
    for (int i = 0; i < 2; i++) {
        sim_counts c = sim_net_counts(r->net, i, 1 - i);
        printf("%s\"%s\": {\"sent\": %lld, \"delivered\": %lld, \"lost\": %lld, "
               "\"queue_drops\": %lld, \"reordered\": %lld, \"duplicated\": %lld, "
               "\"bytes\": %lld, \"send_errors\": %lld}",
               i ? ", " : "", names[i], (long long)(c.sent + r->overflow[i]),
               (long long)c.delivered, (long long)c.lost,
               (long long)(c.queue_drops + r->overflow[i]), (long long)c.reordered,
               (long long)c.duplicated, (long long)(c.bytes - c.sent * TAG_BYTES),
               (long long)r->send_errors[i]);
    }
    printf("}\n");
    fflush(stdout);
}

static void run(struct relay *r, int sigfd)
{
    for (;;) {
        struct pollfd fds[MAX_CLIENTS + 2] = {{sigfd, POLLIN, 0}, {r->front, POLLIN, 0}};
        nfds_t n = 2;
        while (n - 2 < MAX_CLIENTS && r->clients[n - 2].addr_len != 0) {
            fds[n] = (struct pollfd){r->clients[n - 2].fd, POLLIN, 0};
            n++;
        }
        udt_time next = sim_net_next(r->net);
        int64_t wait_us = next == UDT_NEVER ? 0 : next - (clock_us() - r->start_us);
        wait_us = wait_us < 0 ? 0 : wait_us;
        struct timespec ts = {wait_us / 1000000, wait_us % 1000000 * 1000};
        int rc = ppoll(fds, n, next == UDT_NEVER ? NULL : &ts, NULL);
        if (rc < 0 && errno != EINTR)
            fail("poll", strerror(errno));
        if (rc > 0 && fds[0].revents)
            return;
        for (nfds_t i = 1; rc > 0 && i < n; i++)
            if (fds[i].revents)
                drain(r, fds[i].fd, (int)i - 2);
        while (sim_net_step(r->net, clock_us() - r->start_us))
            ;
    }
}

struct args {
    const char *listen, *to, *pair, *ports, *host;
    uint64_t seed;
    sim_link link[2];
};

static void usage(int status)
{
    fprintf(status ? stderr : stdout,
            "usage: relay --listen PORT --to HOST:PORT [options]\n"
            "       relay --pair A_PORT:B_PORT --ports RA:RB [options]\n"
            "options: --host ADDR (127.0.0.1) --seed N --forth --back --both\n"
            "         --rate BITS_PER_S --delay US --jitter US --queue BYTES --loss PPM\n"
            "         --reorder PPM --reorder-delay US --dup PPM --dup-delay US\n"
            "         --loss-mask BITS (bit i drops packet i of the first 64)\n");
    exit(status);
}

static int64_t number(const char *name, const char *text, int64_t max)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 0);
    if (errno != 0 || *end != 0 || end == text || v < 0 || v > max)
        fail(name, "not a number in range");
    return v;
}

static void set_link(sim_link *l, int opt, const char *name, const char *text)
{
    const int64_t us = 3600000000, ppm = 1000000;
    switch (opt) {
    case 'r':
        l->rate_bps = number(name, text, 1000000000000);
        break;
    case 'd':
        l->delay_us = number(name, text, us);
        break;
    case 'j':
        l->jitter_us = number(name, text, us);
        break;
    case 'q':
        l->queue_bytes = number(name, text, INT64_C(1) << 40);
        break;
    case 'l':
        l->loss_ppm = (uint32_t)number(name, text, ppm);
        break;
    case 'o':
        l->reorder_ppm = (uint32_t)number(name, text, ppm);
        break;
    case 'O':
        l->reorder_us = number(name, text, us);
        break;
    case 'u':
        l->dup_ppm = (uint32_t)number(name, text, ppm);
        break;
    case 'U':
        l->dup_delay_us = number(name, text, us);
        break;
    default:
        l->loss_mask = strtoull(text, NULL, 0);
    }
}

static void parse(struct args *a, int argc, char **argv)
{
    static const struct option opts[] = {{"listen", 1, NULL, 1},
                                         {"to", 1, NULL, 2},
                                         {"pair", 1, NULL, 3},
                                         {"ports", 1, NULL, 4},
                                         {"host", 1, NULL, 5},
                                         {"seed", 1, NULL, 6},
                                         {"forth", 0, NULL, 7},
                                         {"back", 0, NULL, 8},
                                         {"both", 0, NULL, 9},
                                         {"help", 0, NULL, 10},
                                         {"rate", 1, NULL, 'r'},
                                         {"delay", 1, NULL, 'd'},
                                         {"jitter", 1, NULL, 'j'},
                                         {"queue", 1, NULL, 'q'},
                                         {"loss", 1, NULL, 'l'},
                                         {"reorder", 1, NULL, 'o'},
                                         {"reorder-delay", 1, NULL, 'O'},
                                         {"dup", 1, NULL, 'u'},
                                         {"dup-delay", 1, NULL, 'U'},
                                         {"loss-mask", 1, NULL, 'm'},
                                         {NULL, 0, NULL, 0}};
    int opt, which = 3, at;
    while ((opt = getopt_long(argc, argv, "", opts, &at)) != -1) {
        switch (opt) {
        case 1:
            a->listen = optarg;
            break;
        case 2:
            a->to = optarg;
            break;
        case 3:
            a->pair = optarg;
            break;
        case 4:
            a->ports = optarg;
            break;
        case 5:
            a->host = optarg;
            break;
        case 6:
            a->seed = strtoull(optarg, NULL, 0);
            break;
        case 7:
        case 8:
        case 9:
            which = opt - 6;
            break;
        case 10:
            usage(0);
            break;
        case '?':
            usage(2);
            break;
        default:
            for (int i = 0; i < 2; i++)
                if (which & 1 << i)
                    set_link(&a->link[i], opt, opts[at].name, optarg);
        }
    }
    if (optind != argc || (a->listen != NULL) == (a->pair != NULL) || (a->listen && !a->to))
        usage(2);
}

/* "X:Y" into two texts. */
static void halves(const char *text, char first[16], char second[16])
{
    const char *colon = strchr(text, ':');
    if (!colon || colon - text > 15 || strlen(colon + 1) > 15)
        fail("want PORT:PORT", text);
    memcpy(first, text, (size_t)(colon - text));
    first[colon - text] = 0;
    strcpy(second, colon + 1);
}

static void open_sockets(struct relay *r, const struct args *a)
{
    struct sockaddr_storage at;
    if (!a->pair) {
        r->front = socket_on(&at, resolve(a->host, a->listen, &at));
        r->server_len = resolve_pair(a->to, &r->server);
        r->family = r->server.ss_family;
        printf("{\"ready\": true, \"ports\": [%d]}\n", port_of(r->front));
        return;
    }
    char ends[2][16], ports[2][16];
    struct client *c = &r->clients[0];
    halves(a->pair, ends[0], ends[1]);
    halves(a->ports ? a->ports : "0:0", ports[0], ports[1]);
    r->pair = true;
    c->addr_len = resolve(a->host, ends[0], &c->addr);
    r->server_len = resolve(a->host, ends[1], &r->server);
    r->front = socket_on(&at, resolve(a->host, ports[0], &at));
    c->fd = socket_on(&at, resolve(a->host, ports[1], &at));
    printf("{\"ready\": true, \"ports\": [%d, %d]}\n", port_of(r->front), port_of(c->fd));
}

int main(int argc, char **argv)
{
    struct args a = {.host = "127.0.0.1", .seed = 1};
    struct relay *r = calloc(1, sizeof *r);
    sigset_t stop;
    parse(&a, argc, argv);
    if (!r)
        fail("out of memory", NULL);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0); /* wake on the microsecond, not 50 late */
    int sigfd = signalfd(-1, &stop, SFD_NONBLOCK | SFD_CLOEXEC);
    if (sigfd < 0)
        fail("signalfd", strerror(errno));
    r->net = sim_net_new(a.seed);
    r->start_us = clock_us();
    for (int i = 0; i < 2; i++) {
        udt_addr me = {.family = 4, .port = (uint16_t)(i + 1)};
        r->ends[i].r = r;
        r->ends[i].server = i == 1;
        r->ends[i].far = (udt_addr){.family = 4, .port = (uint16_t)(2 - i)};
        sim_net_add(r->net, &me, &end_ops, &r->ends[i]);
    }
    for (int i = 0; i < 2; i++)
        sim_net_link(r->net, i, 1 - i, &a.link[i]);
    open_sockets(r, &a);
    fflush(stdout);
    run(r, sigfd);
    print_counts(r);
    sim_net_free(r->net);
    free(r);
    return 0;
}
