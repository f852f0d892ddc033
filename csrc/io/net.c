/* The UDP socket of a port: batches in (recvmmsg, GRO) and out (sendmmsg, GSO). What the kernel or
 * a path does not support is found out while running and done one datagram at a time instead. */
#include "io/priv.h"

#include "base/addr.h"
#include "io/file.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOCK_BUF_BYTES = 8 << 20, GMP_MAGIC = 0xC7, GMP_OUT_CAP = 9000 };

/* Where nothing joins datagrams for us (no GRO, or a sender without GSO) every few packets would
 * wake the thread, and the waking costs both sides more than the packets do. Above PAUSE_SINGLES
 * large datagrams in PAUSE_SPAN_US the socket is left alone until about PAUSE_FILL have come, less
 * where its buffer is small (PAUSE_ROOM bytes of it a datagram) or a sender would miss our
 * acknowledgements. Joined ones are the same to a sender on this machine, whose system call does
 * the waking: above PAUSE_JOINED of them, until one receive call's worth has come. */
enum {
    PAUSE_MIN_US = 50,
    PAUSE_MAX_US = 800,
    PAUSE_SPAN_US = 1000,
    PAUSE_SINGLES = 64,
    PAUSE_FILL = 256,
    PAUSE_ROOM = 8192,
    PAUSE_JOINED = 16, /* 8 Gb/s */
    JOINED_BYTES = 32768,
    JOINED_ROOM = 3 * 65536,
    PAUSE_CALM = 4, /* spans without so many before it is watched again: senders are uneven */
    LARGE_BYTES = 1000
};

static void set_int(int fd, int level, int name, int v)
{
    (void)setsockopt(fd, level, name, &v, sizeof v); /* absent on old kernels: then not used */
}

/* As root the limits of the system do not count; else we get what rmem_max and wmem_max allow. */
static void set_buffers(int fd)
{
    int v = SOCK_BUF_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &v, sizeof v) < 0)
        set_int(fd, SOL_SOCKET, SO_RCVBUF, v);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &v, sizeof v) < 0)
        set_int(fd, SOL_SOCKET, SO_SNDBUF, v);
}

static void get_buffers(io_port *p)
{
    int v;
    socklen_t len = sizeof v;
    if (getsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &v, &len) == 0)
        p->st.rcvbuf_bytes = v / 2; /* the kernel reports twice what was asked for */
    len = sizeof v;
    if (getsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &v, &len) == 0)
        p->st.sndbuf_bytes = v / 2;
}

static void set_dont_fragment(const io_port *p, int fd, bool on)
{
    set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, on ? IP_PMTUDISC_PROBE : IP_PMTUDISC_DONT);
    if (p->v6) /* no router fragments IPv6; our kernel does what does not fit the first hop */
        set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, on ? IPV6_PMTUDISC_PROBE : IPV6_PMTUDISC_DONT);
}

static void set_offload(io_port *p)
{
    int one = 1, zero = 0;
    p->gso = !(p->flags & UDT_PORT_NO_GSO) &&
             setsockopt(p->fd, SOL_UDP, UDP_SEGMENT, &zero, sizeof zero) == 0;
    p->gro =
        !(p->flags & UDT_PORT_NO_GRO) && setsockopt(p->fd, SOL_UDP, UDP_GRO, &one, sizeof one) == 0;
    p->st.gso = p->gso;
    p->st.gro = p->gro;
}

static bool is_any(const udt_addr *a)
{
    static const uint8_t zero[16];
    return memcmp(a->ip, zero, sizeof zero) == 0;
}

int io_net_socket(const io_port *p)
{
    int fd = socket(p->v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (p->v6)
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, p->only6);
    set_buffers(fd);
    set_dont_fragment(p, fd, true);
    set_int(fd, IPPROTO_IP, IP_RECVERR, 1);
    if (p->v6)
        set_int(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
    if (p->gro)
        set_int(fd, SOL_UDP, UDP_GRO, 1);
    return fd;
}

int io_net_open(io_port *p, const udt_addr *at)
{
    struct sockaddr_storage ss;
    p->v6 = at->family == 6;
    p->only4 = !p->v6;
    p->only6 = p->v6 && !is_any(at);
    p->fd = io_net_socket(p);
    if (p->fd < 0)
        return UDT_E_SYS;
    socklen_t len = sockaddr_put(&ss, at, p->v6);
    if (bind(p->fd, (struct sockaddr *)&ss, len) < 0)
        return errno == EADDRINUSE ? UDT_E_INUSE : UDT_E_SYS;
    get_buffers(p);
    set_offload(p);
    len = sizeof ss;
    if (getsockname(p->fd, (struct sockaddr *)&ss, &len) < 0 || !sockaddr_get(&ss, &p->at))
        return UDT_E_SYS;
    return 0;
}

int io_net_alloc(io_port *p)
{
    p->rx.buf = malloc((size_t)IO_RX_SLOTS * IO_SLOT_STRIDE);
    p->tx.buf = malloc(IO_TX_BYTES);
    if (!p->rx.buf || !p->tx.buf)
        return UDT_E_NOMEM;
    p->rx.filled = IO_RX_SLOTS;
    p->tx.gaps = (udt_gaps){.cap = IO_TX_GAPS, .gap = p->tx.gap};
    for (int i = 0; i < IO_RX_SLOTS; i++) {
        p->rx.iov[i].iov_base = p->rx.buf + (size_t)i * IO_SLOT_STRIDE;
        p->rx.iov[i].iov_len = IO_SLOT_BYTES;
        p->rx.msg[i].msg_hdr.msg_iov = &p->rx.iov[i];
        p->rx.msg[i].msg_hdr.msg_iovlen = 1;
        p->rx.msg[i].msg_hdr.msg_name = &p->rx.name[i];
        p->rx.msg[i].msg_hdr.msg_control = p->rx.ctrl[i];
    }
    return 0;
}

void io_net_free(io_port *p)
{
    free(p->rx.buf);
    free(p->tx.buf);
}

static void fail_port(io_port *p, int sys)
{
    if (p->failed)
        return;
    p->failed = true;
    udt_event ev = {.kind = UDT_IO_PORT_FAILED, .sock = p->id, .err = UDT_E_SYS, .sys_err = sys};
    io_emit_from(p, &ev);
}

/* A filter on the way said that it lets nothing through (RFC 1812, 5.2.7.1; RFC 4443, 3.1). */
static bool prohibited(const struct sock_extended_err *e)
{
    if (e->ee_origin == SO_EE_ORIGIN_ICMP)
        return e->ee_type == 3 && (e->ee_code == 9 || e->ee_code == 10 || e->ee_code == 13);
    return e->ee_origin == SO_EE_ORIGIN_ICMP6 && e->ee_type == 1 && e->ee_code == 1;
}

/* ICMP errors. Port unreachable ends a connect at once, as TCP would; the rest is left to the
 * engines' timers, for a route may come back. */
void io_net_errors(io_port *p, int fd)
{
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage to;
        uint8_t ctrl[512];
        struct msghdr m = {.msg_name = &to,
                           .msg_namelen = sizeof to,
                           .msg_control = ctrl,
                           .msg_controllen = sizeof ctrl};
        if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            return;
        udt_addr a;
        if (!sockaddr_get(&to, &a))
            continue;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err e;
            if (!(c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) &&
                !(c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR))
                continue;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            if (prohibited(&e))
                xfer_prohibited(p, &a);
            if (e.ee_errno == EMSGSIZE && e.ee_info > 0)
                udt_mux_path_mtu(p->mux, &a, e.ee_info, p->now);
            if (e.ee_origin == SO_EE_ORIGIN_LOCAL || e.ee_errno != ECONNREFUSED)
                continue;
            io_sock_unreachable(p, &a);
            io_bulk_unreachable(p, &a);
        }
    }
}

static size_t gro_segment(struct msghdr *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
            int v;
            memcpy(&v, CMSG_DATA(c), sizeof v);
            return v > 0 ? (size_t)v : 0;
        }
    return 0;
}

static void feed(io_port *p, const udt_addr *from, const uint8_t *b, size_t len, size_t seg)
{
    while (len > 0) {
        size_t n = seg && seg < len ? seg : len;
        if (b[0] == GMP_MAGIC && p->node)
            sgmp_node_input(p->node, from, b, n, p->now);
        else
            udt_mux_input(p->mux, from, b, n, p->now);
        p->st.dgrams_in++;
        p->st.bytes_in += (int64_t)n;
        b += n;
        len -= n;
    }
}

void io_net_feed(io_port *p, const udt_addr *from, const uint8_t *b, size_t len)
{
    feed(p, from, b, len, 0);
    udt_mux_burst_end(p->mux, p->now);
    p->snap_at = p->snapped + IO_SNAP_US;
}

static int receive(io_port *p, int fd, uint32_t slots)
{
    for (uint32_t i = 0; i < p->rx.filled; i++) {
        p->rx.msg[i].msg_hdr.msg_namelen = sizeof p->rx.name[i];
        p->rx.msg[i].msg_hdr.msg_controllen = p->gro ? sizeof p->rx.ctrl[i] : 0;
    }
    p->rx.filled = 0;
    for (int tries = 0; tries < 8; tries++) {
        int n = recvmmsg(fd, p->rx.msg, slots, MSG_DONTWAIT, NULL);
        p->st.recv_calls++;
        p->now = io_clock(); /* a time from before the call were from before some of them came */
        if (n >= 0 || errno == EAGAIN) {
            p->rx.filled = n > 0 ? (uint32_t)n : 0;
            return n;
        }
        if (errno == EBADF || errno == ENOTSOCK || errno == EINVAL) {
            if (!io_peer_failed(p, fd))
                fail_port(p, errno);
            return -1;
        }
        if (errno != EINTR) /* an ICMP error that waits to be told */
            io_net_errors(p, fd);
    }
    return -1;
}

/* Is the socket worth leaving alone, and for how long? Decided anew after each span. */
static void decide_pause(io_port *p)
{
    p->rx_at = p->now;
    int64_t span = p->now - p->rx_since;
    if (span < PAUSE_SPAN_US)
        return;
    int64_t us = 0, most = io_least(udt_mux_patience_us(p->mux), PAUSE_MAX_US);
    if (p->rx_singles >= PAUSE_SINGLES)
        us = io_least(p->st.rcvbuf_bytes / PAUSE_ROOM, PAUSE_FILL) * span / p->rx_singles;
    else if (p->rx_joined >= PAUSE_JOINED)
        us = io_least(p->st.rcvbuf_bytes / JOINED_ROOM, IO_RX_BIG) * span / p->rx_joined;
    if (us > 0 && span < PAUSE_SPAN_US + 4 * PAUSE_MAX_US) {
        us = io_least(us, most);
        p->rx_pause_us = us > PAUSE_MIN_US ? us : PAUSE_MIN_US;
        p->rx_calm = 0;
    } else if (++p->rx_calm >= PAUSE_CALM) {
        p->rx_pause_us = 0;
    }
    p->rx_singles = p->rx_joined = 0;
    p->rx_since = p->now;
}

int64_t io_net_pause_us(const io_port *p)
{
    return p->rx_pause_us && !p->rx_more ? p->rx_at + p->rx_pause_us - p->now : 0;
}

/* One call for one of the port's sockets. Adds up what came singly and large, and what joined. */
static int take(io_port *p, int fd)
{
    uint32_t slots = p->rx_slots ? p->rx_slots : IO_RX_BIG;
    int n = receive(p, fd, slots);
    p->rx_more |= n == (int)slots;
    if (n <= 0)
        return 0;
    udt_addr from;
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        struct msghdr *m = &p->rx.msg[i].msg_hdr;
        const uint8_t *b = p->rx.iov[i].iov_base;
        size_t len = p->rx.msg[i].msg_len, seg = p->gro ? gro_segment(m) : 0;
        if ((m->msg_flags & MSG_TRUNC) || !sockaddr_get(&p->rx.name[i], &from))
            continue;
        if (p->diverts && io_divert_only(&from))
            continue;
        total += len;
        p->rx_singles += len >= LARGE_BYTES && (!seg || seg >= len) && b[0] != GMP_MAGIC;
        p->rx_joined += len >= JOINED_BYTES && seg > 0 && seg < len && b[0] != GMP_MAGIC;
        feed(p, &from, b, len, seg);
    }
    p->rx_slots = total ? (uint32_t)(IO_RX_BYTES / (total / (size_t)n + 1)) : IO_RX_SLOTS;
    p->rx_slots = p->rx_slots < IO_RX_BIG     ? IO_RX_BIG
                  : p->rx_slots > IO_RX_SLOTS ? IO_RX_SLOTS
                                              : p->rx_slots;
    return n;
}

int io_net_recv_from(io_port *p, io_peer *e)
{
    int n = take(p, e->fd);
    e->heard += n;
    e->unheard = n > 0 ? 0 : e->unheard;
    return n;
}

void io_net_recv(io_port *p)
{
    p->rx_more = false;
    int n = take(p, p->fd);
    for (int i = 0; i < IO_PEERS && p->npeers; i++)
        if (p->peer[i].fd >= 0)
            n += io_net_recv_from(p, &p->peer[i]);
    decide_pause(p);
    if (n == 0)
        return;
    udt_mux_burst_end(p->mux, p->now);
    p->snap_at = p->snapped + IO_SNAP_US;
}

/* ---- output ------------------------------------------------------------------------------ */
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
    if (seg == 0 || seg >= len)
        return;
    t->seg[i] = (uint16_t)seg;
    m->msg_control = t->ctrl[i].b;
    m->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    memcpy(CMSG_DATA(c), &t->seg[i], sizeof(uint16_t));
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

/* One datagram at a time: what cannot be sent is lost, and the engines repeat it. False: the first
 * hop does not take such large ones. */
static bool send_split(io_port *p, uint32_t i)
{
    bool whole = true;
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
        for (int j = 0; j < n; j++)
            p->st.bytes_out += (int64_t)iov[at + (unsigned)j].iov_len;
        p->st.dgrams_out += n > 0 ? n : 0;
        at += n > 0 ? (unsigned)n : 1;
    }
    if (!whole)
        udt_mux_too_big(p->mux, &p->tx.to[i], iov[0].iov_len, p->now);
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
    if (err == EMSGSIZE && p->node && !segmented && b[0] == GMP_MAGIC) {
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
        add_message(p, &to, t->buf + t->used, n, 0, p->fd);
        t->used += n;
    }
    p->tx_more = true;
}

/* Larger than the path's MTU, and it must stay as it is: in fragments. */
static void send_fragments(io_port *p, const udt_addr *to, const uint8_t *b, size_t n)
{
    struct sockaddr_storage ss;
    socklen_t len = sockaddr_put(&ss, to, p->v6);
    set_dont_fragment(p, p->fd, false);
    ssize_t put = sendto(p->fd, b, n, MSG_DONTWAIT, (struct sockaddr *)&ss, len);
    set_dont_fragment(p, p->fd, true);
    p->st.send_calls++;
    if (put >= 0) {
        p->st.dgrams_out++;
        p->st.bytes_out += put;
    }
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
