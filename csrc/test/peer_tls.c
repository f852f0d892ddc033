/* TLS 1.3 over several TCP connections as a peer of the benchmarks:
 *   peer_tls recv PORT [--flows N]
 *   peer_tls send HOST PORT SECONDS [--flows N]
 * What an ordinary program reaches with OpenSSL: AES-128-GCM, one thread an end, memory to memory,
 * no files, no digest. The key is known to both ends, as in our own transfers. What is still unsent
 * when the time is over is thrown away. Each end prints one JSON line. */
#include "bench_util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 256 * 1024, MAX_FLOWS = 64 };

static struct peer {
    int flows;
    SSL_CTX *ctx;
    SSL *ssl[MAX_FLOWS];
    struct pollfd pf[MAX_FLOWS];
    struct bench_series all;
} p = {.flows = 4};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "peer_tls: %s: %s\n", what, strerror(errno));
    exit(1);
}

static SSL_SESSION *session(SSL *ssl)
{
    static const unsigned char aes128_gcm_sha256[] = {0x13, 0x01}, key[32] = {42};
    SSL_SESSION *s = SSL_SESSION_new();
    if (!s || !SSL_SESSION_set1_master_key(s, key, sizeof key) ||
        !SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes128_gcm_sha256)) ||
        !SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        die("session");
    return s;
}

static int use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len, SSL_SESSION **s)
{
    (void)md;
    *id = (const unsigned char *)"bench";
    *len = 5;
    *s = session(ssl);
    return 1;
}

static int find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **s)
{
    (void)id;
    (void)len;
    *s = session(ssl);
    return 1;
}

static void context(void)
{
    p.ctx = SSL_CTX_new(TLS_method());
    if (!p.ctx)
        die("context");
    SSL_CTX_set_min_proto_version(p.ctx, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(p.ctx, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(p.ctx, 0);
    SSL_CTX_set_mode(p.ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(p.ctx, 1);
    SSL_CTX_set_default_read_buffer_len(p.ctx, 80 << 10);
    SSL_CTX_set_psk_use_session_callback(p.ctx, use);
    SSL_CTX_set_psk_find_session_callback(p.ctx, find);
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

/* One connection after its handshake, which may block. */
static void add(int i, int fd, bool server)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    p.ssl[i] = SSL_new(p.ctx);
    if (!p.ssl[i] || SSL_set_fd(p.ssl[i], fd) != 1 ||
        (server ? SSL_accept(p.ssl[i]) : SSL_connect(p.ssl[i])) != 1)
        die("handshake");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    p.pf[i] = (struct pollfd){.fd = fd, .events = server ? POLLIN : POLLOUT};
}

static void receiver(const char *port)
{
    struct sockaddr_in a = address("0.0.0.0", port);
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
        add(open, c, true);
    }
    bench_start(&p.all);
    while (open > 0) {
        poll(p.pf, (nfds_t)p.flows, -1);
        for (int i = 0; i < p.flows; i++) {
            size_t n = 0;
            int rc = p.pf[i].revents ? 1 : 0;
            while (rc == 1 && (rc = SSL_read_ex(p.ssl[i], buf, sizeof buf, &n)) == 1)
                bench_count(&p.all, (int64_t)n);
            if (p.pf[i].revents && SSL_get_error(p.ssl[i], rc) != SSL_ERROR_WANT_READ) {
                close(p.pf[i].fd);
                p.pf[i].fd = -1;
                open--;
            }
        }
    }
    printf("{");
    bench_print(&p.all, "recv");
    printf("}\n");
}

static int connected(const struct sockaddr_in *a)
{
    for (int tries = 0;; tries++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            die("socket");
        if (connect(s, (const struct sockaddr *)a, sizeof *a) == 0)
            return s;
        close(s);
        if (tries == 50)
            die("connect");
        usleep(50000);
    }
}

static void sender(const char *host, const char *port, double seconds)
{
    struct sockaddr_in a = address(host, port);
    static uint8_t buf[CHUNK];
    memset(buf, 0x55, sizeof buf);
    for (int i = 0; i < p.flows; i++)
        add(i, connected(&a), false);
    bench_start(&p.all);
    while ((double)(bench_now_us() - p.all.t0) < seconds * 1e6) {
        poll(p.pf, (nfds_t)p.flows, 20);
        for (int i = 0; i < p.flows; i++) {
            size_t n = 0;
            int rc = p.pf[i].revents ? SSL_write_ex(p.ssl[i], buf, sizeof buf, &n) : 0;
            if (rc == 1)
                bench_count(&p.all, (int64_t)n);
            else if (p.pf[i].revents && SSL_get_error(p.ssl[i], rc) != SSL_ERROR_WANT_WRITE)
                die("write");
        }
    }
    for (int i = 0; i < p.flows; i++) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(p.pf[i].fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(p.pf[i].fd);
    }
    printf("{");
    bench_print(&p.all, "send");
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
        else if (argv[i][0] != '-' && n < 4)
            pos[n++] = argv[i];
        else
            n = 99;
    }
    bool recv = n == 2 && strcmp(pos[0], "recv") == 0;
    bool send = n == 4 && strcmp(pos[0], "send") == 0;
    if ((!recv && !send) || p.flows < 1 || p.flows > MAX_FLOWS) {
        fprintf(stderr, "usage: peer_tls recv PORT | send HOST PORT SECONDS [--flows 1..64]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    context();
    if (recv)
        receiver(pos[1]);
    else
        sender(pos[1], pos[2], atof(pos[3]));
    return 0;
}
