/* Sockets connected to one peer each, beside the port's own. A single datagram over them costs the
 * kernel no route look-up, about a tenth of its way; so a peer that is sent much gets one where
 * segmentation cannot spread that cost over many datagrams.
 *
 * Both have the same local address. The kernel gives a connected one all that its peer sends, so
 * the loop reads all of them, and it does not matter who got what while one was being made. One
 * that hears nothing while it sends (the local address changed, answers come from elsewhere) or
 * fails goes at once, and so does one that is no longer busy: its peer is reached over the port's
 * own socket again, and may come from anywhere. */
#include "io/priv.h"

#include "base/addr.h"
#include "io/sockaddr.h"

#include <errno.h>
#include <unistd.h>

enum {
    SPAN_US = 500000,
    BUSY_BYTES = 8 << 20, /* to one peer within a span: it gets a socket, */
    KEEP_PART = 8,        /* and keeps it while so much less is sent in each span */
    DEAF_BYTES = 32768,   /* sent, and nothing heard for a whole span: it is deaf */
    BAR_US = 10000000,    /* no new ones after a failure, */
    BAR_DOUBLED = 8       /* twice as long after each */
};

static void end_span(io_port *p);

static void on_timer(io_port *p, void *arg)
{
    (void)arg;
    end_span(p);
}

static _Atomic int *fork_slot(io_port *p, const io_peer *e)
{
    return &p->ctx->fds[1 + 3 * IO_MAX_PORTS + (int)p->slot * IO_PEERS + (int)(e - p->peer)];
}

/* What waits for it goes over the port's own socket. */
static void drop(io_port *p, io_peer *e)
{
    if (e->fd < 0)
        return;
    for (uint32_t i = p->tx.first; i < p->tx.n; i++)
        if (p->tx.fd[i] == e->fd)
            io_net_address(p, i, p->fd);
    if (p->tx_fd == e->fd)
        p->tx_fd = p->fd;
    atomic_store(fork_slot(p, e), 0);
    close(e->fd);
    e->fd = -1;
    e->to.family = 0;
    p->npeers--;
}

static void bar(io_port *p)
{
    p->peers_at =
        p->now + ((int64_t)BAR_US << (p->peer_fails < BAR_DOUBLED ? p->peer_fails++ : BAR_DOUBLED));
}

void io_peers_init(io_port *p)
{
    for (int i = 0; i < IO_PEERS; i++)
        p->peer[i].fd = -1;
    p->peer_busy_bytes = BUSY_BYTES;
    p->peer_timer = (io_timer){.fn = on_timer, .slot = -1};
}

void io_peers_close(io_port *p)
{
    for (int i = 0; i < IO_PEERS; i++)
        drop(p, &p->peer[i]);
}

static void end_span(io_port *p)
{
    for (int i = 0; i < IO_PEERS; i++) {
        io_peer *e = &p->peer[i];
        bool busy = e->bytes >= p->peer_busy_bytes / KEEP_PART,
             deaf = !e->heard && e->unheard >= DEAF_BYTES;
        if (e->fd < 0) {
            e->to.family = 0;
        } else if (!e->fresh && (!busy || deaf)) {
            while (e->fd >= 0 && io_net_recv_from(p, e) > 0)
                ; /* what came until now */
            drop(p, e);
            if (deaf)
                bar(p);
        }
        e->fresh = false;
        e->bytes = e->heard = 0;
    }
    udt_mux_burst_end(p->mux, p->now);
    p->peer_since = p->now;
    if (p->npeers)
        io_timer_arm(p, &p->peer_timer, p->now + SPAN_US);
}

static int share(int fd, int on)
{
    return setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
}

/* Whoever has one socket that shares its port lets in others of the same user: so all allow it, for
 * the moment of the bind. */
static int share_all(const io_port *p, int on)
{
    int err = share(p->fd, on);
    for (int i = 0; i < IO_PEERS; i++)
        if (p->peer[i].fd >= 0)
            err |= share(p->peer[i].fd, on);
    return err;
}

static int bind_beside(const io_port *p, int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sockaddr_put(&ss, &p->at, p->v6);
    int err = share(fd, 1) | share_all(p, 1);
    if (err == 0)
        err = bind(fd, (struct sockaddr *)&ss, len);
    return err | share(fd, 0) | share_all(p, 0);
}

static int connected(io_port *p, const udt_addr *to)
{
    struct sockaddr_storage ss;
    int fd = io_net_socket(p);
    if (fd < 0)
        return -1;
    socklen_t len = sockaddr_put(&ss, to, p->v6);
    if (bind_beside(p, fd) < 0 || connect(fd, (struct sockaddr *)&ss, len) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void open_one(io_port *p, io_peer *e)
{
    int fd = connected(p, &e->to);
    if (fd < 0) {
        bar(p);
        return;
    }
    e->fd = fd;
    e->fresh = true;
    e->unheard = 0;
    atomic_store(fork_slot(p, e), fd);
    p->npeers++;
    if (p->peer_timer.slot < 0)
        io_timer_arm(p, &p->peer_timer, p->now + SPAN_US);
}

/* The entry that counts `to`, or NULL. Those without a socket give way to who sends more. */
static io_peer *entry_of(io_port *p, const udt_addr *to, size_t len)
{
    io_peer *room = NULL;
    for (int i = 0; i < IO_PEERS; i++) {
        io_peer *e = &p->peer[i];
        if (e->to.family && addr_eq(&e->to, to))
            return e;
        if (!e->to.family)
            room = e;
    }
    for (int i = 0; i < IO_PEERS && !room; i++) {
        io_peer *e = &p->peer[i];
        if (e->fd < 0 && (e->bytes -= (int64_t)len) < 0)
            room = e;
    }
    if (room)
        *room = (io_peer){.to = *to, .fd = -1};
    return room;
}

int io_peer_fd(io_port *p, const udt_addr *to, size_t len)
{
    if (p->npeers == 0 && p->now - p->peer_since >= SPAN_US)
        end_span(p);
    io_peer *e = entry_of(p, to, len);
    if (!e)
        return p->fd;
    e->bytes += (int64_t)len;
    e->unheard += (int64_t)len;
    /* While the loop sleeps it would not hear a new one (then another thread sends for it). */
    if (e->fd < 0 && e->bytes >= p->peer_busy_bytes && p->now >= p->peers_at &&
        !atomic_load(&p->sleeping) && !addr_eq(to, &p->at))
        open_one(p, e);
    return e->fd < 0 ? p->fd : e->fd;
}

bool io_peer_failed(io_port *p, int fd)
{
    for (int i = 0; i < IO_PEERS; i++)
        if (p->peer[i].fd == fd && fd >= 0) {
            drop(p, &p->peer[i]);
            bar(p);
            return true;
        }
    return false;
}
