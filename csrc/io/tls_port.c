/* The TLS connections of a port: one epoll set beside the UDP socket, a listener, and who is freed
 * when. */
#include "io/tls_priv.h"

#include "crypto/aead.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

static void watch_listener(struct io_tls *t, bool on)
{
    struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = NULL};
    (void)epoll_ctl(t->epfd, EPOLL_CTL_MOD, t->listener, &ev);
}

static void accept_again(io_port *p, void *arg)
{
    (void)arg;
    watch_listener(p->tls, true);
}

struct io_tls *io_tls_get(io_port *p)
{
    if (p->tls)
        return p->tls;
    struct io_tls *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->listener = -1;
    t->pause = (io_timer){.fn = accept_again, .slot = -1};
    t->epfd = epoll_create1(EPOLL_CLOEXEC);
    int sys = t->epfd < 0 ? errno : ENOMEM;
    t->ctx = tls_conn_ctx(p);
    if (t->epfd < 0 || !t->ctx) {
        if (t->epfd >= 0)
            close(t->epfd);
        SSL_CTX_free(t->ctx);
        free(t);
        errno = sys;
        return NULL;
    }
    p->tls = t;
    return t;
}

stripe *io_tls_stripe_of(io_port *p, const uint8_t *id, size_t len)
{
    for (stripe *s = p->tls->stripes; s; s = s->next)
        if (s->server && s->fn && len == sizeof s->id && secure_eq(s->id, id, len))
            return s;
    return NULL;
}

void io_tls_used(io_port *p, const uint8_t id[16])
{
    struct io_tls *t = p->tls;
    if (t && t->listener >= 0)
        memcpy(t->used[t->used_n++ % TLS_USED], id, sizeof *t->used);
}

bool io_tls_was_used(const io_port *p, const uint8_t *id, size_t len)
{
    const struct io_tls *t = p->tls;
    for (unsigned i = 0; i < TLS_USED && i < t->used_n; i++)
        if (len == sizeof *t->used && secure_eq(t->used[i], id, len))
            return true;
    return false;
}

/* ---- the listener ---- */

struct listening {
    int fd, err, sys;
};

static void take_listener(io_port *p, void *arg)
{
    struct listening *l = arg;
    struct io_tls *t = io_port_closing(p) ? NULL : io_tls_get(p);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (!t)
        l->err = io_port_closing(p) ? UDT_E_CLOSED : errno == ENOMEM ? UDT_E_NOMEM : UDT_E_SYS;
    else if (t->listener >= 0)
        l->err = UDT_E_STATE;
    else if (epoll_ctl(t->epfd, EPOLL_CTL_ADD, l->fd, &ev) != 0)
        l->err = UDT_E_SYS;
    else
        t->listener = l->fd;
    l->sys = errno; /* of this thread */
}

int udt_port_listen_tls(udt_ctx *ctx, int32_t port, uint16_t tcp_port)
{
    int err = io_ctx_alive(ctx), one = 1;
    io_port *p = err ? NULL : io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return err ? err : UDT_E_NOSOCK;
    struct sockaddr_storage ss;
    udt_addr at = p->at;
    at.port = tcp_port ? tcp_port : p->at.port;
    socklen_t len = sockaddr_put(&ss, &at, p->v6);
    struct listening l = {
        .fd = socket(p->v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    int only6 = p->only6;
    err = l.fd < 0 ? UDT_E_SYS : 0;
    if (err == 0) {
        (void)setsockopt(l.fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (p->v6)
            (void)setsockopt(l.fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof only6);
        if (bind(l.fd, (struct sockaddr *)&ss, len) != 0 || listen(l.fd, 256) != 0)
            err = errno == EADDRINUSE ? UDT_E_INUSE : UDT_E_SYS;
    }
    int sys = errno;
    if (err == 0)
        err = io_port_call(p, take_listener, &l);
    if (err == 0 && (err = l.err) != 0)
        sys = l.sys;
    if (err != 0 && l.fd >= 0)
        close(l.fd);
    io_handle_put(ctx, port);
    errno = sys;
    return err;
}

/* Who waits stays readable: without a pause the loop would do nothing but try. */
static void pause_accepting(io_port *p)
{
    struct io_tls *t = p->tls;
    watch_listener(t, false);
    io_timer_arm(p, &t->pause, p->now + TLS_PAUSE_US);
    p->st.accept_pauses++;
    p->snap_at = p->snapped + IO_SNAP_US;
}

/* All places are taken by connections that have proved nothing: the oldest had the most time. */
static void make_room(struct io_tls *t)
{
    tls_conn *oldest = NULL;
    for (tls_conn *c = t->conns; c && t->half_open >= TLS_HALF_OPEN; c = c->next)
        if (c->server && c->state == TLS_SHAKING)
            oldest = c; /* new ones stand in front */
    if (oldest)
        tls_conn_end(oldest, UDT_E_LIMIT);
}

static void accept_some(io_port *p)
{
    struct io_tls *t = p->tls;
    for (int i = 0; i < 32; i++) {
        int fd = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_accepting(p);
            return;
        }
        make_room(t);
        tls_conn *c = p->ended ? NULL : tls_conn_new(p, fd, true, NULL);
        if (!c) {
            close(fd);
            continue;
        }
        c->state = TLS_SHAKING;
    }
}

/* ---- turns ---- */

int io_tls_fd(const io_port *p)
{
    return p->tls ? p->tls->epfd : -1;
}

bool io_tls_due(const io_port *p)
{
    const struct io_tls *t = p->tls;
    return t && (t->nconns > 0 || t->sweep || p->now - t->polled >= TLS_TURN_US);
}

bool io_tls_again(const io_port *p)
{
    return p->tls && p->tls->sweep;
}

/* Frees what ended; nothing of it is in use between turns. */
static void sweep(io_port *p)
{
    struct io_tls *t = p->tls;
    t->sweep = false;
    for (stripe **at = &t->stripes; *at;) {
        stripe *s = *at;
        if (!stripe_over(s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        stripe_free(s);
    }
    for (tls_conn **at = &t->conns; *at;) {
        tls_conn *c = *at;
        if (c->state != TLS_DEAD) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        t->nconns--;
        tls_conn_free(c);
    }
}

void io_tls_turn(io_port *p)
{
    struct io_tls *t = p->tls;
    struct epoll_event ev[64];
    t->polled = p->now;
    int n = epoll_wait(t->epfd, ev, 64, 0);
    for (int i = 0; i < n; i++) {
        tls_conn *c = ev[i].data.ptr;
        if (!c)
            accept_some(p);
        else if (c->state != TLS_DEAD) {
            c->hup |= (ev[i].events & (EPOLLRDHUP | EPOLLHUP)) != 0;
            tls_conn_step(c, (ev[i].events & ~(uint32_t)EPOLLOUT) != 0);
        }
    }
    if (t->sweep)
        sweep(p);
}

void io_tls_closing(io_port *p)
{
    struct io_tls *t = p->tls;
    if (!t)
        return;
    if (t->listener >= 0)
        close(t->listener);
    t->listener = -1;
    io_timer_stop(p, &t->pause);
    for (tls_conn *c = t->conns; c; c = c->next)
        if (c->state < TLS_UP)
            tls_conn_end(c, UDT_E_CLOSED);
}

void io_tls_fini(io_port *p)
{
    struct io_tls *t = p->tls;
    if (!t)
        return;
    io_tls_closing(p);
    for (stripe *s = t->stripes; s; s = s->next)
        s->fn = NULL;
    for (tls_conn *c = t->conns; c; c = c->next)
        tls_conn_end(c, UDT_E_CLOSED);
    sweep(p);
    close(t->epfd);
    SSL_CTX_free(t->ctx);
    free(t);
    p->tls = NULL;
}
