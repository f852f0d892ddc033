/* The UDP socket of a port: its options, what comes in by it in batches (recvmmsg, GRO), and what
 * ICMP says of those that left (net_send.c). */
#include "io/priv.h"

#include "io/file.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOCK_BUF_BYTES = 8 << 20 };

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

void io_net_dont_fragment(const io_port *p, int fd, bool on)
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
    io_net_dont_fragment(p, fd, true);
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

/* ICMP errors. Port unreachable ends a connect at once, as TCP would, and lets a transfer try TCP;
 * the rest is left to the engines' timers, for a route may come back. */
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
            xfer_refused(p, &a);
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
        if (b[0] == IO_GMP_MAGIC && p->node)
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
        p->rx_singles += len >= LARGE_BYTES && (!seg || seg >= len) && b[0] != IO_GMP_MAGIC;
        p->rx_joined += len >= JOINED_BYTES && seg > 0 && seg < len && b[0] != IO_GMP_MAGIC;
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
