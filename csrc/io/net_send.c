/* What a port sends: the datagrams of its engines in batches that the kernel cuts up (GSO) where it
 * can, one at a time on the paths that take no such, and what becomes of those it refuses. */
#include "io/priv.h"

#include "base/addr.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <netinet/udp.h>

enum { GMP_OUT_CAP = 9000, GMP_JOIN_BYTES = 1232 }; /* such go everywhere (spec/gmp.md, D) */

static bool path_has_gso(const io_port *p, const udt_addr *to)
{
    for (uint32_t i = 0; i < p->no_gso_n && i < IO_NO_GSO_PATHS; i++)
        if (addr_eq(&p->no_gso[i], to))
            return false;
    return true;
}

/* A connected socket knows the address. */
void io_net_address(io_port *p, uint32_t i, int fd)
{
    struct msghdr *m = &p->tx.msg[i].msg_hdr;
    p->tx.fd[i] = fd;
    m->msg_name = fd == p->fd ? &p->tx.name[i] : NULL;
    m->msg_namelen = fd == p->fd ? sockaddr_put(&p->tx.name[i], &p->tx.to[i], p->v6) : 0;
}

/* The kernel makes datagrams of `seg` bytes of it. */
static void cut(io_tx *t, uint32_t i, size_t seg)
{
    struct msghdr *m = &t->msg[i].msg_hdr;
    t->seg[i] = (uint16_t)seg;
    m->msg_control = t->ctrl[i].b;
    m->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    memcpy(CMSG_DATA(c), &t->seg[i], sizeof(uint16_t));
}

static void add_message(io_port *p, const udt_addr *to, uint8_t *b, size_t len, size_t seg, int fd)
{
    io_tx *t = &p->tx;
    uint32_t i = t->n++;
    struct msghdr *m = &t->msg[i].msg_hdr;
    memset(m, 0, sizeof *m);
    t->to[i] = *to;
    t->iov[i].iov_base = b;
    t->iov[i].iov_len = len;
    m->msg_iov = &t->iov[i];
    m->msg_iovlen = 1;
    io_net_address(p, i, fd);
    t->seg[i] = 0;
    if (seg != 0 && seg < len)
        cut(t, i, seg);
}

/* A batch that follows another to the same place, with datagrams as large, joins its message of the
 * kernel: the engines keep batches to a foreign peer short, but they leave together anyway. */
static size_t join_message(io_port *p, const udt_addr *to, const uint8_t *b, size_t n, size_t seg)
{
    io_tx *t = &p->tx;
    if (t->n <= t->first || seg == 0)
        return 0;
    uint32_t i = t->n - 1;
    size_t len = t->iov[i].iov_len;
    if (t->seg[i] != seg || len % seg != 0 || n < seg || !addr_eq(&t->to[i], to) ||
        (uint8_t *)t->iov[i].iov_base + len != b)
        return 0;
    size_t most = IO_MESSAGE_BYTES / seg < IO_SEGMENTS ? IO_MESSAGE_BYTES / seg : IO_SEGMENTS;
    size_t room = most * seg > len ? most * seg - len : 0;
    n = n < room ? n : room;
    t->iov[i].iov_len += n;
    return n;
}

/* A datagram of GMP that follows one to the same place, and is not larger than that, joins it. */
static bool join_single(io_port *p, const udt_addr *to, const uint8_t *b, size_t n)
{
    io_tx *t = &p->tx;
    if (!p->gso || t->n <= t->first || n > GMP_JOIN_BYTES || !path_has_gso(p, to))
        return false;
    uint32_t i = t->n - 1;
    size_t len = t->iov[i].iov_len, seg = t->seg[i] ? t->seg[i] : len;
    if (n > seg || seg > GMP_JOIN_BYTES || len % seg != 0 || len / seg >= IO_SEGMENTS ||
        !addr_eq(&t->to[i], to) || (uint8_t *)t->iov[i].iov_base + len != b)
        return false;
    if (!t->seg[i])
        cut(t, i, seg);
    t->iov[i].iov_len += n;
    return true;
}

/* This machine itself knows no way there, as where IPv6 is switched off. */
static bool no_way(int err)
{
    return err == ENETUNREACH || err == EADDRNOTAVAIL || err == EAFNOSUPPORT;
}

/* One datagram at a time: what cannot be sent is lost, and the engines repeat it. False: the first
 * hop does not take such large ones. */
static bool send_split(io_port *p, uint32_t i)
{
    bool whole = true, nowhere = false;
    struct mmsghdr m[IO_SEGMENTS];
    struct iovec iov[IO_SEGMENTS];
    uint8_t *b = p->tx.iov[i].iov_base;
    size_t left = p->tx.iov[i].iov_len, seg = p->tx.seg[i] ? p->tx.seg[i] : left;
    unsigned k = 0, at = 0;
    for (; left > 0 && k < IO_SEGMENTS; k++) {
        iov[k].iov_base = b;
        iov[k].iov_len = seg < left ? seg : left;
        b += iov[k].iov_len;
        left -= iov[k].iov_len;
        memset(&m[k], 0, sizeof m[k]);
        m[k].msg_hdr.msg_name = p->tx.msg[i].msg_hdr.msg_name;
        m[k].msg_hdr.msg_namelen = p->tx.msg[i].msg_hdr.msg_namelen;
        m[k].msg_hdr.msg_iov = &iov[k];
        m[k].msg_hdr.msg_iovlen = 1;
    }
    while (at < k) {
        int n = sendmmsg(p->tx.fd[i], m + at, k - at, MSG_DONTWAIT);
        p->st.send_calls++;
        if (n < 0 && errno == EAGAIN)
            return whole;
        whole = whole && (n >= 0 || errno != EMSGSIZE);
        nowhere = nowhere || (n < 0 && no_way(errno));
        for (int j = 0; j < n; j++)
            p->st.bytes_out += (int64_t)iov[at + (unsigned)j].iov_len;
        p->st.dgrams_out += n > 0 ? n : 0;
        at += n > 0 ? (unsigned)n : 1;
    }
    if (!whole)
        udt_mux_too_big(p->mux, &p->tx.to[i], iov[0].iov_len, p->now);
    if (nowhere) { /* twice: the first time it may have been about another datagram */
        io_sock_unreachable(p, &p->tx.to[i]);
        io_bulk_unreachable(p, &p->tx.to[i]);
    }
    return whole;
}

static void count_sent(io_port *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        size_t len = p->tx.iov[i].iov_len, seg = p->tx.seg[i];
        p->st.dgrams_out += seg ? (int64_t)((len + seg - 1) / seg) : 1;
        p->st.bytes_out += (int64_t)len;
    }
}

/* The first unsent message met an error: repeat it another way or give it up. */
static void send_failed(io_port *p, int err)
{
    io_tx *t = &p->tx;
    bool segmented = t->seg[t->first] != 0;
    const uint8_t *b = t->iov[t->first].iov_base;
    if (err == EMSGSIZE && p->node && !segmented && b[0] == IO_GMP_MAGIC) {
        sgmp_node_too_big(p->node, &t->to[t->first], t->iov[t->first].iov_len, p->now);
        t->first++;
        return;
    }
    bool no_gso = segmented && (err == EINVAL || err == EMSGSIZE || err == EIO);
    int fd = t->fd[t->first];
    if (!no_gso && err != EMSGSIZE && err != EINVAL)
        io_net_errors(p, fd); /* most likely an ICMP error about some other datagram */
    if (!no_gso && err != EMSGSIZE && err != ECONNREFUSED && io_peer_failed(p, fd))
        return; /* all of its messages now leave by the port's own */
    uint32_t i = t->first++;
    if (send_split(p, i) && no_gso && path_has_gso(p, &t->to[i]))
        p->no_gso[p->no_gso_n++ % IO_NO_GSO_PATHS] = t->to[i];
}

/* Sends what is queued. False when the kernel takes no more now. */
static bool flush(io_port *p)
{
    io_tx *t = &p->tx;
    io_gaps_lay(t);
    while (t->first < t->n) {
        uint32_t end = t->first + 1;
        while (end < t->n && t->fd[end] == t->fd[t->first])
            end++;
        int n = sendmmsg(t->fd[t->first], t->msg + t->first, end - t->first, MSG_DONTWAIT);
        p->st.send_calls++;
        if (n > 0) {
            count_sent(p, t->first, t->first + (uint32_t)n);
            t->first += (uint32_t)n;
        } else if (errno == EAGAIN) {
            p->tx_fd = t->fd[t->first];
            io_gaps_fill(t);
            return false;
        } else if (errno != EINTR) {
            int err = errno;
            io_gaps_fill(t);
            send_failed(p, err);
        }
    }
    t->n = t->first = t->gaps.n = 0;
    t->used = 0;
    return true;
}

static bool fits(const io_tx *t, size_t cap)
{
    return t->n < IO_TX_MSGS && IO_TX_BYTES - t->used >= cap;
}

/* Larger than the path's MTU, and it must stay as it is: in fragments. */
static void send_fragments(io_port *p, const udt_addr *to, const uint8_t *b, size_t n)
{
    struct sockaddr_storage ss;
    socklen_t len = sockaddr_put(&ss, to, p->v6);
    io_net_dont_fragment(p, p->fd, false);
    ssize_t put = sendto(p->fd, b, n, MSG_DONTWAIT, (struct sockaddr *)&ss, len);
    io_net_dont_fragment(p, p->fd, true);
    p->st.send_calls++;
    if (put >= 0) {
        p->st.dgrams_out++;
        p->st.bytes_out += put;
    }
}

static void take_gmp(io_port *p)
{
    io_tx *t = &p->tx;
    udt_addr to;
    while (fits(t, GMP_OUT_CAP)) {
        size_t n = sgmp_node_output(p->node, t->buf + t->used, GMP_OUT_CAP, &to, p->now);
        if (n == 0)
            return;
        if (p->diverts && io_divert(p, &to, t->buf + t->used, n, 0))
            continue;
        if ((to.family == 4 && p->only6) || (to.family == 6 && p->only4))
            continue;
        if (sgmp_node_fragments(p->node)) {
            send_fragments(p, &to, t->buf + t->used, n);
            continue;
        }
        if (!join_single(p, &to, t->buf + t->used, n))
            add_message(p, &to, t->buf + t->used, n, 0, p->fd);
        t->used += n;
    }
    p->tx_more = true;
}

/* n bytes in datagrams of seg that the kernel does not cut: runs of one peer, so that one call
 * takes many over its own socket. */
static void add_singly(io_port *p, const udt_addr *to, uint8_t *b, size_t n, size_t seg)
{
    int fd = io_peer_fd(p, to, n);
    for (size_t at = 0; at < n; at += seg)
        add_message(p, to, b + at, n - at < seg ? n - at : seg, 0, fd);
}

static void take_udt(io_port *p)
{
    io_tx *t = &p->tx;
    udt_addr to;
    /* whoever sends otherwise than flush() needs whole datagrams */
    udt_gaps *gaps = p->diverts || (p->gso && p->no_gso_n) ? NULL : &t->gaps;
    while (fits(t, IO_SLOT_BYTES)) {
        size_t seg = 0, most = IO_TX_MSGS - t->n < IO_RUN ? IO_TX_MSGS - t->n : IO_RUN;
        size_t n = udt_mux_output_gaps(p->mux, t->buf + t->used, IO_MESSAGE_BYTES,
                                       p->gso ? IO_SEGMENTS : most, gaps, &to, &seg, p->now);
        if (n == 0)
            return;
        uint8_t *b = t->buf + t->used;
        if (p->diverts && io_divert(p, &to, b, n, seg))
            continue;
        if (udt_mux_fragments(p->mux)) {
            io_gaps_fill(t);
            send_fragments(p, &to, b, n);
            continue;
        }
        if (p->gso && seg && seg < n && p->no_gso_n && !path_has_gso(p, &to)) {
            bool flushed = flush(p); /* keeps the order */
            add_message(p, &to, b, n, seg, io_peer_fd(p, &to, n));
            send_split(p, --t->n);
            if (!flushed) {
                p->tx_wait = true;
                return;
            }
            continue;
        }
        size_t joined = p->gso ? join_message(p, &to, b, n, seg) : 0;
        if (!p->gso)
            add_singly(p, &to, b, n, seg ? seg : n);
        else if (joined < n)
            add_message(p, &to, b + joined, n - joined, seg, p->fd);
        t->used += (n + 63) & ~(size_t)63;
    }
    p->tx_more = true;
}

void io_net_send(io_port *p)
{
    p->held = false;
    p->tx_more = false;
    if (p->tx.n > 0 && !flush(p))
        return;
    p->tx_wait = false;
    if (p->node)
        take_gmp(p);
    take_udt(p);
    if (p->tx.n > 0) {
        p->snap_at = p->snapped + IO_SNAP_US;
        p->tx_wait = !flush(p);
    }
}
