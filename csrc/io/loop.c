/* One turn of a port: wait for a packet, a command or a timer; take in what came; let the engines
 * act; send what they have. The same turn serves threads and MANUAL ports. No spinning: when
 * nothing is due the thread sleeps in ppoll, whose timeout is exact to the nanosecond and sleeps
 * for ever when the engines have no deadline. */
#include "io/priv.h"
#include "io/stripe.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

_Static_assert(sizeof(udt_sock_stats) == sizeof(udt_stats), "same fields in the same order");

static udt_time next_due(const io_port *p)
{
    /* some events are made while packets go out; a GMP event may have to wait for room */
    if (udt_mux_has_event(p->mux) || io_gmp_due(p) ||
        (p->node && !atomic_load(&p->gmp_stall) && sgmp_node_has_event(p->node)))
        return p->now;
    udt_time at = io_least(udt_mux_deadline(p->mux), io_timers_next(&p->timers));
    if (p->node)
        at = io_least(at, sgmp_node_deadline(p->node));
    return io_least(at, p->snap_at);
}

/* How long nothing is due, in microseconds; 0 = act now, UDT_NEVER = no deadline. */
static int64_t idle_us(io_port *p, int64_t max_wait_us)
{
    if (io_cmd_waiting(p) || (p->tx_more && !p->tx_wait) || io_tls_again(p))
        return 0;
    udt_time at = next_due(p);
    int64_t wait = at == UDT_NEVER ? UDT_NEVER : at - p->now;
    if (p->tx_wait && wait < 1000)
        wait = 1000; /* output is due but the kernel is full: POLLOUT ends the wait */
    wait = io_least(wait, max_wait_us);
    return wait < 0 ? 0 : wait;
}

/* The descriptors of a sleep: the port's socket first, connected ones last. */
enum { FD_NET, FD_WAKE, FD_HOLD, FD_TLS, FD_PEERS, FD_ALL = FD_PEERS + IO_PEERS };

static nfds_t fds_of(const io_port *p, struct pollfd *pf, bool pause)
{
    nfds_t n = FD_PEERS;
    short in = pause ? 0 : POLLIN;
    pf[FD_NET] = (struct pollfd){.fd = p->failed || pause ? -1 : p->fd, .events = in};
    pf[FD_WAKE] = (struct pollfd){.fd = p->evfd, .events = POLLIN};
    pf[FD_HOLD] = (struct pollfd){.fd = p->hold_fd, .events = POLLIN};
    pf[FD_TLS] = (struct pollfd){.fd = io_tls_fd(p), .events = POLLIN};
    for (int i = 0; i < IO_PEERS && p->npeers && !pause && !p->failed; i++)
        if (p->peer[i].fd >= 0)
            pf[n++] = (struct pollfd){.fd = p->peer[i].fd, .events = in};
    for (nfds_t i = 0; i < n && p->tx_wait; i++)
        if (pf[i].fd == p->tx_fd)
            pf[i].events |= POLLOUT;
    return n;
}

/* Is it still one of the port's? */
static bool is_socket(const io_port *p, int fd)
{
    bool yes = fd == p->fd;
    for (int i = 0; i < IO_PEERS; i++)
        yes |= p->peer[i].fd == fd;
    return yes && fd >= 0;
}

/* Sleeps until a packet, a waker or the timeout. Returns whether to read the socket. `pause`:
 * packets do not end this sleep. */
static bool wait_for_work(io_port *p, int64_t wait_us, bool pause)
{
    struct pollfd pf[FD_ALL];
    nfds_t nfds = fds_of(p, pf, pause);
    struct timespec ts = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};
    atomic_store(&p->sleeping, 1);
    if (io_cmd_waiting(p) || io_gmp_due(p)) {
        atomic_store(&p->sleeping, 0);
        return true;
    }
    p->wake_at = wait_us == UDT_NEVER ? UDT_NEVER : p->now + wait_us;
    p->in_turn = false;
    pthread_mutex_unlock(&p->mu);
    io_ready_settle(p->ctx);
    int n = ppoll(pf, nfds, wait_us == UDT_NEVER ? NULL : &ts, NULL);
    pthread_mutex_lock(&p->mu);
    p->in_turn = true;
    atomic_store(&p->sleeping, 0);
    if (n <= 0)
        return pause;
    for (nfds_t i = FD_WAKE; i <= FD_HOLD; i++)
        if (pf[i].revents & POLLIN) {
            uint64_t v;
            ssize_t got = read(pf[i].fd, &v, sizeof v);
            (void)got;
        }
    for (nfds_t i = 0; i < nfds; i++) {
        if (i >= FD_WAKE && i <= FD_TLS)
            continue;
        if ((pf[i].revents & POLLERR) && is_socket(p, pf[i].fd))
            io_net_errors(p, pf[i].fd);
        pause |= (pf[i].revents & POLLIN) != 0;
    }
    return pause;
}

static void tick(io_port *p)
{
    io_timers_run(p);
    if (udt_mux_deadline(p->mux) <= p->now)
        udt_mux_tick(p->mux, p->now);
    if (p->node && sgmp_node_deadline(p->node) <= p->now)
        sgmp_node_tick(p->node, p->now);
}

/* Hands engine events to the owners of the sockets. */
void io_loop_events(io_port *p)
{
    struct udt_ev ev;
    while (udt_mux_next_event(p->mux, &ev)) {
        bool accepted = ev.kind == UDT_EV_ACCEPTED;
        io_bind *b = io_map_find(&p->map, accepted ? (int32_t)ev.value : ev.sock);
        if (!b) {
            if (accepted)
                (void)udt_mux_close(p->mux, ev.sock, 0, p->now);
            continue;
        }
        if (ev.kind == UDT_EV_CLOSED || ev.kind == UDT_EV_FAILED) {
            udt_stats st;
            if (b->stats_handle && udt_mux_stats(p->mux, ev.sock, &st) == 0) {
                udt_sock_stats s;
                memcpy(&s, &st, sizeof s);
                io_handle_snap(p->ctx, b->stats_handle, &s);
            }
        }
        b->fn(p, b->arg, &ev);
    }
}

bool io_port_own(io_port *p, int32_t sock, io_sock_fn fn, void *arg)
{
    io_bind *b = io_map_find(&p->map, sock);
    if (!fn) {
        if (b)
            io_map_remove(&p->map, b);
        return true;
    }
    if (!b) {
        b = io_map_add(&p->map, sock);
        if (!b) { /* without an owner the socket must not live */
            (void)udt_mux_close(p->mux, sock, 0, p->now);
            return false;
        }
        b->stats_handle = 0;
    }
    b->fn = fn;
    b->arg = arg;
    return true;
}

void io_port_stats_of(io_port *p, int32_t sock, int32_t handle)
{
    io_bind *b = io_map_find(&p->map, sock);
    if (b)
        b->stats_handle = handle;
}

static void snap_sockets(io_port *p)
{
    for (uint32_t i = 0; i < p->map.cap; i++) {
        io_bind *b = &p->map.slot[i];
        udt_stats st;
        udt_sock_stats s;
        if (b->sock <= 0 || !b->stats_handle || udt_mux_stats(p->mux, b->sock, &st) != 0)
            continue;
        memcpy(&s, &st, sizeof s);
        io_handle_snap(p->ctx, b->stats_handle, &s);
    }
}

/* Statistics for other threads: at most 250 ms old, and no wake-up when nothing moved. */
void io_loop_snap(io_port *p, bool now)
{
    if (!now && p->now < p->snap_at)
        return;
    udt_mux_counters c;
    sgmp_stats g;
    p->snap_at = UDT_NEVER;
    p->snapped = p->now;
    udt_mux_counters_get(p->mux, &c);
    p->st.sockets = c.sockets;
    p->st.half_open = c.half_open;
    p->st.tombstones = c.tombstones;
    p->st.dropped_bad = c.dropped_bad;
    p->st.dropped_unknown = c.dropped_unknown;
    p->st.dropped_cookie = c.dropped_cookie;
    p->st.rejected = c.rejected;
    p->st.buf_bytes = c.buf_bytes;
    p->st.bad_tag = c.bad_tag;
    p->st.replayed = c.replayed;
    p->st.unsealed = c.unsealed;
    p->st.moves = c.moves;
    p->st.moves_refused = c.moves_refused;
    p->st.mtu_falls = c.mtu_falls;
    p->st.mtu_raises = c.mtu_raises;
    p->st.gso = p->gso;
    if (p->node)
        sgmp_node_stats(p->node, &g);
    else
        memset(&g, 0, sizeof g);
    pthread_mutex_lock(&p->snap_mu);
    p->snap = p->st;
    p->gmp_snap = g;
    p->refused[0] = *udt_mux_refused(p->mux);
    if (p->node)
        p->refused[1] = *sgmp_node_refused(p->node);
    pthread_mutex_unlock(&p->snap_mu);
    snap_sockets(p);
}

enum { LAST_WORDS = 3, LAST_CALLS = 1000 };

/* The peers hear of the end. Nothing will repeat it or answer what they ask, so it goes as often at
 * once as it would have gone in a round trip: a lost one costs them ten seconds of waiting and the
 * knowledge that they have all. */
static void last_words(io_port *p)
{
    for (int times = 0; times < LAST_WORDS; times++) {
        for (int calls = 0; calls == 0 || (p->tx_more && calls < LAST_CALLS); calls++)
            io_net_send(p);
        if (p->tx_wait || !udt_mux_shut_again(p->mux))
            return;
    }
}

static void end_all(io_port *p)
{
    p->ended = true;
    io_loop_snap(p, true);
    if (p->ctx->xfer_closing)
        p->ctx->xfer_closing(p);
    io_tls_closing(p);
    io_bulk_fini(p);
    io_socks_end(p);
    io_loop_events(p);
    last_words(p);
}

void io_loop_turn(io_port *p, int64_t max_wait_us)
{
    p->now = io_clock();
    p->in_turn = true;
    bool readable = true;
    if (!p->rx_more) {
        if (io_manual(p) && !p->tx_wait)
            io_net_send(p); /* what API calls left since the last turn */
        int64_t wait = idle_us(p, max_wait_us), pause = p->tx_wait ? 0 : io_net_pause_us(p);
        if (wait > 0 || p->tx_wait)
            readable = wait_for_work(p, pause > 0 ? io_least(wait, pause) : wait, pause > 0);
        p->now = io_clock();
    }
    io_ready_settle(p->ctx); /* there was no sleep */
    if (readable && !p->failed)
        io_net_recv(p);
    if (io_tls_due(p))
        io_tls_turn(p);
    io_cmd_run(p);
    tick(p);
    io_loop_events(p);
    if (p->node) {
        io_gmp_turn(p);
        io_bulk_turn(p);
        io_loop_events(p);
    }
    if (p->map.live > 0) /* bulk data may take long */
        io_ready_settle(p->ctx);
    io_net_send(p);
    io_loop_snap(p, false);
    if (atomic_load(&p->closing) && !p->ended)
        end_all(p);
}

static void *loop_main(void *arg)
{
    io_port *p = arg;
    char name[16];
    snprintf(name, sizeof name, "udt-%u", p->at.port);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* 1 us: pacing, not power saving */
    pthread_mutex_lock(&p->mu);
    while (!p->ended || atomic_load(&p->holds) > 0)
        io_loop_turn(p, UDT_NEVER);
    p->in_turn = false;
    pthread_mutex_unlock(&p->mu);
    io_ready_settle(p->ctx);
    return NULL;
}

bool io_direct_enter(io_port *p)
{
    if (pthread_mutex_trylock(&p->mu) != 0)
        return false;
    if (io_cmd_waiting(p) || p->ended || io_port_closing(p) || p->tx_wait || p->tx_more) {
        pthread_mutex_unlock(&p->mu);
        return false;
    }
    p->now = io_clock();
    if (p->node && atomic_load(&p->released))
        io_gmp_released(p);
    return true;
}

void io_direct_leave(io_port *p, bool send)
{
    if (send) {
        if (p->node)
            io_gmp_turn(p);
        io_net_send(p);
    }
    bool early = next_due(p) < p->wake_at || p->tx_wait || p->tx_more;
    pthread_mutex_unlock(&p->mu);
    if (early)
        io_wake(p);
}

int io_loop_start(io_port *p)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the application's */
    int err = pthread_create(&p->thread, NULL, loop_main, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = err;
    return err ? UDT_E_SYS : 0;
}
