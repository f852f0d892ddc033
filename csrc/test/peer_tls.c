/* TLS 1.3 over several TCP connections as a peer of the benchmarks:
 *   peer_tls recv PORT [--flows N]
 *   peer_tls send HOST PORT SECONDS [--flows N]
 * What an ordinary program reaches with OpenSSL: AES-128-GCM, one thread an end, memory to memory,
 * no files, no digest. The key is known to both ends, as in our own transfers. What is still unsent
 * when the time is over is thrown away. Each end prints one JSON line. */
#define PEER_NAME "peer_tls"
#include "peer_flows.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>

static struct peer {
    int flows;
    SSL_CTX *ctx;
    SSL *ssl[MAX_FLOWS];
    struct pollfd pf[MAX_FLOWS];
    struct bench_series all;
} p = {.flows = 4};

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
    int open = 0, s = listening(port);
    static uint8_t buf[CHUNK];
    for (; open < p.flows; open++)
        add(open, accepted(s), true);
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

static void sender(const char *host, const char *port, double seconds)
{
    struct sockaddr_in a = address(host, port);
    static uint8_t buf[CHUNK];
    memset(buf, 0x55, sizeof buf);
    for (int i = 0; i < p.flows; i++)
        add(i, connected(&a, NULL), false);
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
    for (int i = 0; i < p.flows; i++)
        drop(p.pf[i].fd);
    printf("{");
    bench_print(&p.all, "send");
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct flows_args o;
    if (!flows_args(argc, argv, &p.flows, NULL, &o)) {
        fprintf(stderr, "usage: peer_tls recv PORT | send HOST PORT SECONDS [--flows 1..64]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    context();
    if (o.recv)
        receiver(o.port);
    else
        sender(o.host, o.port, o.seconds);
    return 0;
}
