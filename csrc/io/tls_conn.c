/* One TLS connection of a stripe: dialling, the handshake with the ticket's key, bytes both ways.
 */
#include "io/tls_priv.h"

#include "crypto/aead.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- the socket under OpenSSL: no signal when the peer is gone ---- */

static int bio_write(BIO *b, const char *data, int len)
{
    tls_conn *c = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (c->more ? MSG_MORE : 0);
    ssize_t n = send(c->fd, data, (size_t)len, flags);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(b);
    if (n > 0)
        c->said = c->p->now;
    return (int)n;
}

static int bio_read(BIO *b, char *data, int len)
{
    tls_conn *c = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    ssize_t n = c->dry ? -1 : recv(c->fd, data, (size_t)len, MSG_DONTWAIT);
    if (c->dry || (n < 0 && (errno == EAGAIN || errno == EINTR))) {
        c->dry = c->dry || errno == EAGAIN; /* the next input is an event */
        BIO_set_retry_read(b);
    }
    if (n > 0)
        c->heard = c->p->now;
    return (int)n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)b;
    (void)num;
    (void)ptr;
    return cmd == BIO_CTRL_FLUSH;
}

static BIO *bio_of(tls_conn *c)
{
    static BIO_METHOD *method;
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mu);
    if (!method && (method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sector"))) {
        BIO_meth_set_write(method, bio_write);
        BIO_meth_set_read(method, bio_read);
        BIO_meth_set_ctrl(method, bio_ctrl);
    }
    pthread_mutex_unlock(&mu);
    BIO *b = method ? BIO_new(method) : NULL;
    if (b) {
        BIO_set_data(b, c);
        BIO_set_init(b, 1);
    }
    return b;
}

/* ---- the key ---- */

static SSL_SESSION *session_of(SSL *ssl, const uint8_t psk[32])
{
    static const unsigned char aes128_gcm_sha256[] = {0x13, 0x01};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes128_gcm_sha256);
    SSL_SESSION *s = cipher ? SSL_SESSION_new() : NULL;
    if (s && SSL_SESSION_set1_master_key(s, psk, 32) && SSL_SESSION_set_cipher(s, cipher) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int client_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
                      SSL_SESSION **out)
{
    const tls_conn *c = SSL_get_app_data(ssl);
    (void)md;
    *id = c->s->id;
    *len = sizeof c->s->id;
    *out = session_of(ssl, c->s->psk);
    return *out != NULL;
}

static int server_key(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **out)
{
    tls_conn *c = SSL_get_app_data(ssl);
    c->s = io_tls_stripe_of(c->p, id, len);
    *out = c->s ? session_of(ssl, c->s->psk) : NULL;
    /* Without a session the handshake fails: there is no certificate. 0: with internal_error. */
    return c->s || !io_tls_was_used(c->p, id, len);
}

/* ---- what both ends can ---- */

/* One name: ends that speak at least every so often. Who does not know it is an older one. */
static const unsigned char can[] = "\013sector live";

static int choose(SSL *ssl, const unsigned char **out, unsigned char *len, const unsigned char *in,
                  unsigned in_len, void *arg)
{
    unsigned char *name;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&name, len, can, sizeof can - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = name;
    return SSL_TLSEXT_ERR_OK;
}

SSL_CTX *tls_conn_ctx(io_port *p)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    (void)p;
    if (!ctx)
        return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    (void)SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, 80 << 10);
    SSL_CTX_set_psk_use_session_callback(ctx, client_key);
    SSL_CTX_set_psk_find_session_callback(ctx, server_key);
    SSL_CTX_set_alpn_select_cb(ctx, choose, NULL);
    if (SSL_CTX_set_alpn_protos(ctx, can, sizeof can - 1) != 0) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

/* ---- life ---- */

static void on_limit(io_port *p, void *arg)
{
    tls_conn *c = arg;
    (void)p;
    tls_conn_end(c, UDT_E_TIMEOUT);
}

tls_conn *tls_conn_new(io_port *p, int fd, bool server, stripe *s)
{
    struct io_tls *t = io_tls_get(p);
    tls_conn *c = t ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    c->p = p;
    c->fd = fd;
    c->server = server;
    c->s = s;
    c->limit = (io_timer){.slot = -1, .fn = on_limit, .arg = c};
    c->ssl = SSL_new(t->ctx);
    BIO *b = c->ssl ? bio_of(c) : NULL;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (!b || epoll_ctl(t->epfd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        BIO_free(b);
        SSL_free(c->ssl);
        free(c);
        return NULL;
    }
    SSL_set_bio(c->ssl, b, b);
    SSL_set_app_data(c->ssl, c);
    if (server)
        SSL_set_accept_state(c->ssl);
    else
        SSL_set_connect_state(c->ssl);
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->next = t->conns;
    t->conns = c;
    t->nconns++;
    t->half_open += server;
    io_timer_arm(p, &c->limit, p->now + (server ? TLS_PROVE_US : 4 * TLS_PROVE_US));
    return c;
}

void tls_conn_free(tls_conn *c)
{
    io_timer_stop(c->p, &c->limit);
    SSL_free(c->ssl);
    free(c->out);
    free(c);
}

/* An older peer says nothing while it has nothing to send: there the kernel has to notice the
 * silence of a path. */
void tls_conn_limits(tls_conn *c, int32_t idle_ms)
{
    int one = 1, idle = idle_ms / 3000 > 0 ? idle_ms / 3000 : 1, count = 3;
    unsigned ms = c->alive ? 0 : (unsigned)idle_ms;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

bool tls_conn_silent(tls_conn *c, udt_time us)
{
    uint8_t b;
    if (!c->dry || c->eof || c->hup || c->p->now - c->heard < us)
        return false;
    return recv(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

int tls_conn_dial(io_port *p, const udt_addr *to, stripe *s)
{
    struct sockaddr_storage ss;
    bool v6 = to->family == 6;
    socklen_t len = sockaddr_put(&ss, to, v6);
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return UDT_E_SYS;
    if (connect(fd, (struct sockaddr *)&ss, len) != 0 && errno != EINPROGRESS) {
        close(fd);
        return UDT_E_UNREACHABLE;
    }
    tls_conn *c = tls_conn_new(p, fd, false, s);
    if (!c) {
        close(fd);
        return UDT_E_NOMEM;
    }
    c->state = TLS_CONNECTING;
    tls_conn_limits(c, s->idle_ms);
    s->conn[s->n++] = c;
    return 0;
}

void tls_conn_end(tls_conn *c, int err)
{
    struct io_tls *t = c->p->tls;
    if (c->state == TLS_DEAD)
        return;
    if (c->server && (c->state == TLS_SHAKING || c->state == TLS_CONNECTING))
        t->half_open--;
    bool attached = c->s && (!c->server || c->state != TLS_SHAKING);
    c->state = TLS_DEAD;
    c->err = err;
    close(c->fd); /* leaves the epoll set */
    c->fd = -1;
    io_timer_stop(c->p, &c->limit);
    t->sweep = true;
    if (attached)
        stripe_conn_ended(c);
}

void tls_conn_shut(tls_conn *c)
{
    if (c->state == TLS_UP) {
        (void)SSL_shutdown(c->ssl);
        ERR_clear_error();
        /* A proxy may take the end of one direction for the end of both, and reset the other. */
        if (!c->s || !c->s->last_word)
            (void)shutdown(c->fd, SHUT_WR);
        c->state = TLS_CLOSING;
        tls_conn_step(c, true);
    } else if (c->state != TLS_CLOSING) {
        tls_conn_end(c, UDT_E_CLOSED);
    }
}

/* ---- steps ---- */

static void shake(tls_conn *c)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(c->ssl);
    if (rc == 1) {
        io_timer_stop(c->p, &c->limit);
        if (c->server && !c->s) { /* cannot be: who knew no key has not come so far */
            tls_conn_end(c, UDT_E_AUTH);
            return;
        }
        const unsigned char *name;
        unsigned len;
        SSL_get0_alpn_selected(c->ssl, &name, &len);
        c->alive = len > 0;
        c->heard = c->said = c->p->now;
        c->p->tls->half_open -= c->server;
        c->state = TLS_UP;
        stripe_attach(c->s, c);
        return;
    }
    int why = SSL_get_error(c->ssl, rc);
    bool used = ERR_GET_REASON(ERR_peek_error()) == SSL_R_TLSV1_ALERT_INTERNAL_ERROR;
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
        tls_conn_end(c, why != SSL_ERROR_SSL ? UDT_E_UNREACHABLE
                        : used               ? UDT_E_REJECTED
                                             : UDT_E_AUTH);
}

static bool dialled(tls_conn *c)
{
    struct tcp_info ti;
    int err = 0;
    socklen_t len = sizeof err, tlen = sizeof ti;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0) {
        tls_conn_end(c, err == ETIMEDOUT ? UDT_E_TIMEOUT : UDT_E_UNREACHABLE);
        return false;
    }
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &ti, &tlen) != 0 ||
        ti.tcpi_state != 1 /* ESTABLISHED */)
        return false;
    c->state = TLS_SHAKING;
    return true;
}

/* What the peer sent before it heard of the end. Closing with unread bytes would reset the
 * connection and lose what we said last. */
static void discard(tls_conn *c)
{
    uint8_t b[16384];
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    for (int i = 0; i < 64; i++) {
        ssize_t n = recv(c->fd, b, sizeof b, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            tls_conn_end(c, UDT_E_CLOSED);
            return;
        }
    }
    (void)epoll_ctl(c->p->tls->epfd, EPOLL_CTL_MOD, c->fd, &ev); /* the rest in the next turn */
}

void tls_conn_step(tls_conn *c, bool in)
{
    if (in)
        c->dry = false;
    if (c->state == TLS_CONNECTING && !dialled(c))
        return;
    if (c->state == TLS_SHAKING)
        shake(c);
    else if (c->state == TLS_UP)
        stripe_conn_ready(c, in);
    else if (c->state == TLS_CLOSING)
        discard(c);
}

/* ---- bytes ---- */

/* A call of SSL_write_ex makes one record (partial writes are on), and the kernel is told of those
 * that others follow: it then sends full segments, fewer by far than one for each record. */
static int write_some(tls_conn *c, const uint8_t *b, size_t n, bool more, size_t *done)
{
    *done = 0;
    ERR_clear_error();
    while (*done < n) {
        size_t k = 0;
        c->more = more || n - *done > SSL3_RT_MAX_PLAIN_LENGTH;
        int rc = SSL_write_ex(c->ssl, b + *done, n - *done, &k);
        c->more = false;
        if (rc != 1) {
            int why = SSL_get_error(c->ssl, rc);
            return why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? UDT_E_AGAIN
                                                                             : UDT_E_BROKEN;
        }
        *done += k;
        c->written += k;
    }
    if (c->written / 64 >= TLS_REKEY_BYTES) {
        c->written = 0;
        (void)SSL_key_update(c->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    return 0;
}

int tls_conn_write(tls_conn *c, const uint8_t *b, size_t n, bool more)
{
    size_t done = 0;
    int rc = c->out_len > 0 ? UDT_E_AGAIN : write_some(c, b, n, more, &done);
    if (rc != UDT_E_AGAIN)
        return rc;
    if (!c->out)
        c->out = malloc(TLS_HEAD_BYTES + TLS_FRAME_BYTES);
    if (!c->out)
        return UDT_E_NOMEM;
    memcpy(c->out + c->out_len, b + done, n - done);
    c->out_len += n - done;
    return 0;
}

bool tls_conn_flush(tls_conn *c)
{
    size_t done = 0;
    if (c->out_len == 0)
        return true;
    int rc = write_some(c, c->out + c->out_at, c->out_len - c->out_at, false, &done);
    c->out_at += done;
    if (c->out_at == c->out_len)
        c->out_at = c->out_len = 0;
    if (rc != 0 && rc != UDT_E_AGAIN)
        tls_conn_end(c, rc);
    return rc == 0;
}

ssize_t tls_conn_read(tls_conn *c, uint8_t *b, size_t cap)
{
    size_t n = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(c->ssl, b, cap, &n);
    if (rc == 1)
        return (ssize_t)n;
    int why = SSL_get_error(c->ssl, rc);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return UDT_E_AGAIN;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : UDT_E_BROKEN;
}
