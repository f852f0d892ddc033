/* Datagrams of a port that travel another way than its UDP socket, because UDP is blocked: what is
 * for a diverted peer goes to a descriptor (a datagram socket, one datagram each: family u8, port
 * u16, address 16 bytes, payload), and what comes back is injected as if from that peer. */
#include "io/priv.h"

#include "base/addr.h"
#include "base/bytes.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIVERT_MOST = 1024, DIVERT_HEAD = 19 };

/* Addresses that only injected datagrams come from: 100::/64, which routers drop (RFC 6666). A peer
 * behind a diversion has one of them, so that nobody outside has the same. */
bool io_divert_only(const udt_addr *a)
{
    static const uint8_t prefix[8] = {1};
    return a->family == 6 && memcmp(a->ip, prefix, sizeof prefix) == 0;
}

struct io_divert {
    struct io_divert *next;
    udt_addr peer; /* family 0 = every peer */
    int fd;
};

struct change {
    udt_addr peer;
    int fd, err;
};

static void change(io_port *p, void *arg)
{
    struct change *c = arg;
    struct io_divert **at = &p->diverted, *d;
    unsigned n = 0;
    while ((d = *at) && !addr_eq(&d->peer, &c->peer)) {
        at = &d->next;
        n++;
    }
    if (d) {
        *at = d->next;
        close(d->fd);
        free(d);
    }
    if (c->fd < 0)
        return;
    d = n < DIVERT_MOST && !p->ended ? calloc(1, sizeof *d) : NULL;
    if (!d) {
        c->err = UDT_E_LIMIT;
        return;
    }
    p->diverts = true;
    *d = (struct io_divert){.next = p->diverted, .peer = c->peer, .fd = c->fd};
    p->diverted = d;
}

int udt_port_divert(udt_ctx *ctx, int32_t port, const udt_addr *peer, int fd)
{
    int err = io_ctx_alive(ctx);
    struct change c = {.fd = -1};
    io_port *p = err ? NULL : io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return err ? err : UDT_E_NOSOCK;
    if (peer)
        c.peer = *peer;
    if (fd >= 0)
        c.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    err = fd >= 0 && c.fd < 0 ? UDT_E_SYS : io_port_call(p, change, &c);
    if (err == 0)
        err = c.err;
    if (err != 0 && c.fd >= 0)
        close(c.fd);
    io_handle_put(ctx, port);
    return err;
}

/* Datagrams that do not fit the descriptor's buffer are lost, as on any path. */
bool io_divert(io_port *p, const udt_addr *to, const uint8_t *b, size_t len, size_t seg)
{
    struct io_divert *d = p->diverted;
    while (d && d->peer.family != 0 && !addr_eq(&d->peer, to))
        d = d->next;
    if (!d)
        return io_divert_only(to); /* its way has ended: lost */
    uint8_t head[DIVERT_HEAD] = {(uint8_t)to->family};
    be16_put(head + 1, to->port);
    memcpy(head + 3, to->ip, 16);
    while (len > 0) {
        size_t n = seg && seg < len ? seg : len;
        struct iovec iov[2] = {{head, sizeof head}, {(void *)(uintptr_t)b, n}};
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
        (void)sendmsg(d->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        b += n;
        len -= n;
    }
    return true;
}

void io_divert_fini(io_port *p)
{
    struct io_divert *d;
    while ((d = p->diverted)) {
        p->diverted = d->next;
        close(d->fd);
        free(d);
    }
}

struct injected {
    udt_addr from;
    size_t len;
    uint8_t data[];
};

static void inject(io_port *p, void *arg)
{
    struct injected *i = arg;
    if (!p->ended)
        io_net_feed(p, &i->from, i->data, i->len);
    free(i);
}

int udt_port_inject(udt_ctx *ctx, int32_t port, const udt_addr *from, const uint8_t *buf,
                    size_t len)
{
    int err = io_ctx_alive(ctx);
    if (err == 0 && (len == 0 || len > IO_SLOT_BYTES || (from->family != 4 && from->family != 6)))
        err = UDT_E_INVAL;
    io_port *p = err ? NULL : io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return err ? err : UDT_E_NOSOCK;
    struct injected *i = malloc(sizeof *i + len);
    err = i ? 0 : UDT_E_NOMEM;
    if (i) {
        i->from = *from;
        i->len = len;
        memcpy(i->data, buf, len);
        err = io_port_post(p, inject, i);
        if (err != 0)
            free(i);
    }
    io_handle_put(ctx, port);
    return err;
}
