/* Private structures of io/: context, port, commands. Who may touch a field is said beside it:
 * [ctx] under ctx->mu, [loop] only the thread that runs the port's turns, [set] written before the
 * object is shared. Atomics and mutexes speak for themselves. */
#ifndef IO_PRIV_H
#define IO_PRIV_H

#include "base/refused.h"
#include "io/bytesq.h"
#include "io/port.h"
#include "sgmp/node.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum {
    IO_MAX_PORTS = 256, /* per context */
    IO_PEERS = 4,       /* connected sockets of a port */
    IO_MAX_FDS = 1 +
        (3 + IO_PEERS) * IO_MAX_PORTS, /* the context's eventfd, three per port, those */
    IO_MAX_CMDS = 4096,                /* queued commands of a port, completions not counted */
    IO_MAX_CMD_BYTES = 64 << 20,       /* payload inside queued commands of a port */
    IO_MAX_GMP_BYTES = 128 << 20,      /* GMP payload delivered and not yet released, per context */
    IO_RX_SLOTS = 64,                  /* buffers per recvmmsg; memory only where one was filled */
    IO_RX_BIG = 4,                     /* per call while GRO fills them */
    IO_SLOT_BYTES = 65536,
    IO_SLOT_STRIDE = IO_SLOT_BYTES + 33 * 64, /* not all slots in the same cache sets */
    IO_RX_BYTES = 4 * IO_SLOT_BYTES,          /* about one turn's input, and */
    IO_TX_BYTES = 4 * IO_SLOT_BYTES,          /* one turn's output: stay in the L2 cache */
    IO_MESSAGE_BYTES = 65000,                 /* of datagrams that the kernel gets at once */
    IO_SEGMENTS = 64,                         /* of them; what every kernel takes */
    IO_TX_MSGS = 64,
    IO_TX_GAPS = 192,    /* payloads of one turn that are sent from where they lie */
    IO_RUN = 16,         /* datagrams to one peer at a time where the kernel does not cut them */
    IO_GMP_MAGIC = 0xC7, /* first byte of a datagram of GMP, and of no other */
    IO_SNAP_US = 250000,
    IO_QUEUE_BYTES = 1 << 20 /* bound of a socket's outbox and of its inbox */
};

/* ---- commands -------------------------------------------------------------------------- */
/* Runs fn on the loop thread and waits for it (a turn of the loop at most). MANUAL: at once. */
int io_port_call(io_port *p, io_cmd_fn fn, void *arg);
void io_cmd_run(io_port *p);     /* [loop] all that are queued */
bool io_cmd_waiting(io_port *p); /* any queued? */
void io_wake(io_port *p);        /* the loop should have a look soon */

/* ---- handles and events: see handle.c, ready.c ------------------------------------------ */
typedef struct io_entry {
    void *obj;
    io_port *port; /* referenced */
    void (*on_free)(void *obj);
    udt_sock_stats *snap; /* last statistics or NULL */
    int64_t progress;     /* newest value of a queued PROGRESS event */
    uint32_t gen, pins, next_free;
    uint8_t kind;   /* 0 = free slot */
    uint8_t queued; /* a bit for each kind of event that waits */
    bool freed;     /* io_handle_free was called */
    bool closing;   /* closed by the application: invisible to it but for CLOSED */
} io_entry;

enum { IO_CHUNK = 1024, IO_MAX_CHUNKS = 128 };
typedef struct io_table {
    io_entry *chunk[IO_MAX_CHUNKS];
    uint32_t nchunks, free_head, free_tail, live; /* free list is FIFO; UINT32_MAX = none */
} io_table;

/* Last statistics of a socket whose handle is gone, until its CLOSED event was handled. */
typedef struct io_final {
    struct io_final *next;
    int32_t sock;
    udt_sock_stats st;
} io_final;

/* The wake-up descriptor is not readable; not yet, a loop's turn does it when it has unlocked its
 * port; is, or will be at once. */
enum io_raised { IO_LOWERED, IO_RAISE_OWED, IO_RAISED };
/* An event of a handle. */
typedef struct io_own {
    uint64_t after; /* it follows so many events of GMP */
    int64_t value;
    int32_t port, sock, err, sys_err, remote;
    uint16_t kind;
} io_own;
typedef struct io_ready {
    /* Of handles. Each has room for one event of every kind it may have, from its beginning on. */
    io_own *own;
    uint32_t own_cap, own_head, own_n;
    uint32_t owed; /* room of handles that holds no event; own_n + owed <= own_cap */
    udt_event *gmp;
    uint32_t gmp_cap;
    uint64_t gmp_in, gmp_out; /* put in and taken out so far */
    _Atomic uint32_t count;   /* events of both; written under ctx->mu */
    uint32_t soft;            /* GMP deliveries stop at 3/4 of this */
    _Atomic int raised;       /* of enum io_raised */
    /* In the order of their CLOSED events; those before `waiting` are with the application and go
     * at its next poll. */
    io_final *finals, *finals_tail, *waiting;
    int fd;
} io_ready;

struct udt_ctx {
    uint32_t *alive; /* a page the kernel wipes in a forked child: 1 here, 0 there */
    int64_t pid;     /* used instead where the kernel cannot wipe; else 0 */
    pthread_mutex_t mu;
    io_table tab;                 /* [ctx] */
    io_ready ready;               /* [ctx] */
    io_port *ports[IO_MAX_PORTS]; /* [ctx] */
    uint32_t port_closers;        /* [ctx] threads inside udt_port_close */
    pthread_cond_t closers_cv;    /* [ctx] the last of them has left */
    _Atomic int fds[IO_MAX_FDS];  /* to close in a forked child; 0 = none */
    _Atomic int64_t queue_bytes;  /* memory of all outboxes and inboxes */
    _Atomic int64_t gmp_bytes;    /* delivered and unreleased GMP payload */
    _Atomic int stalled;          /* some port stopped delivering GMP events */
    uint64_t max_buf_bytes;       /* [set] */
    uint32_t disk_threads;        /* [set] */
    pthread_mutex_t disk_mu;
    struct disk_pool *disk; /* disk_mu; made at first use, with the hooks below */
    void (*disk_free)(struct disk_pool *);
    void (*xfer_closing)(io_port *p);
    int (*xfer_stats)(void *xfer, udt_sock_stats *out);
    _Atomic int refs; /* the application and each port */
};
void io_ctx_ref(udt_ctx *ctx);
void io_ctx_unref(udt_ctx *ctx);
/* Around udt_port_close: handles and event queue live until the last one has left. */
void io_ctx_enter_close(udt_ctx *ctx);
void io_ctx_leave_close(udt_ctx *ctx);

io_entry *io_entry_of(udt_ctx *ctx, int32_t h); /* [ctx] NULL when gone */
void io_handle_snap(udt_ctx *ctx, int32_t h, const udt_sock_stats *st);
/* Marks as closed by the application. NOSOCK when it already was; the pin is the caller's. */
void *io_handle_close(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p);
/* Pins one that was closed and is not gone yet. */
void *io_handle_closing(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p);
void io_handles_fini(udt_ctx *ctx);
int io_ready_init(udt_ctx *ctx, uint32_t max_events);
void io_ready_fini(udt_ctx *ctx);
bool io_ready_room(udt_ctx *ctx, enum io_kind kind); /* [ctx] for a new handle; false: no memory */
void io_ready_gone(udt_ctx *ctx, const io_entry *e); /* [ctx] its room is free */
/* As io_emit, without raising the descriptor (events of MANUAL ports). */
void io_emit_from(io_port *p, const udt_event *ev);
bool io_emit_gmp(io_port *p, udt_event *ev); /* false: no memory, it has to be told later */
const udt_sock_stats *io_final_stats(udt_ctx *ctx, int32_t sock); /* [ctx] or NULL */
bool io_ready_full(udt_ctx *ctx);                                 /* GMP deliveries should pause */
void io_ready_unstall(udt_ctx *ctx); /* wakes ports whose deliveries paused, if there is room */
void io_ready_settle(udt_ctx *ctx);  /* raises the descriptor where that is owed */

/* ---- timers ------------------------------------------------------------------------------ */
typedef struct io_timers {
    io_timer **heap; /* earliest first */
    int32_t n, cap;
    io_timer *rest; /* armed ones that found no memory there, in no order */
} io_timers;
udt_time io_timers_next(const io_timers *t);
void io_timers_run(io_port *p);

/* ---- engine socket -> owner --------------------------------------------------------------- */
typedef struct io_bind {
    int32_t sock; /* engine id, 0 = empty, -1 = deleted */
    int32_t stats_handle;
    io_sock_fn fn;
    void *arg;
} io_bind;
typedef struct io_map {
    io_bind *slot;
    uint32_t cap, used, live; /* cap is a power of two; used counts deleted ones too */
} io_map;
io_bind *io_map_find(io_map *m, int32_t sock);
/* NULL when out of memory. May move all binds. */
io_bind *io_map_add(io_map *m, int32_t sock);
void io_map_remove(io_map *m, io_bind *b);

/* ---- network ------------------------------------------------------------------------------ */
typedef struct io_rx {
    uint8_t *buf;    /* IO_RX_SLOTS slots */
    uint32_t filled; /* slots that the last call used: their headers are to be made anew */
    struct mmsghdr msg[IO_RX_SLOTS];
    struct iovec iov[IO_RX_SLOTS];
    struct sockaddr_storage name[IO_RX_SLOTS];
    uint8_t ctrl[IO_RX_SLOTS][64];
} io_rx;

typedef struct io_tx {
    uint8_t *buf; /* IO_TX_BYTES, filled from the front, emptied at once */
    size_t used;
    uint32_t n, first; /* queued messages, first not yet sent */
    struct mmsghdr msg[IO_TX_MSGS];
    struct iovec iov[IO_TX_MSGS];
    struct sockaddr_storage name[IO_TX_MSGS];
    udt_addr to[IO_TX_MSGS];
    int fd[IO_TX_MSGS];       /* the socket it leaves by */
    uint16_t seg[IO_TX_MSGS]; /* 0 = one datagram */
    union {
        uint8_t b[64];
        struct cmsghdr align;
    } ctrl[IO_TX_MSGS];
    udt_gaps gaps; /* of the queued messages; none once a flush has returned */
    udt_gap gap[IO_TX_GAPS];
    struct iovec piece[2 * IO_TX_GAPS + IO_TX_MSGS]; /* of messages with gaps */
} io_tx;

/* A peer that is sent much, or a candidate. */
typedef struct io_peer {
    udt_addr to;          /* family 0 = free */
    int fd;               /* connected to it, -1 = none */
    bool fresh;           /* made in this span */
    int64_t bytes, heard; /* bytes sent, datagrams received, in this span */
    int64_t unheard;      /* bytes sent since the last of them */
} io_peer;

enum { IO_NO_GSO_PATHS = 16 };

struct io_bulk;
struct io_tls;
struct io_divert;
struct io_port {
    udt_ctx *ctx;       /* [set] */
    int32_t id;         /* [set] handle */
    uint32_t slot;      /* [set] place in ctx->ports */
    uint32_t flags;     /* [set] enum udt_port_flag */
    int fd, evfd;       /* [set] */
    int hold_fd;        /* [set] a timer: what is held (hold.c) waits no longer; -1 = no loop */
    bool v6;            /* [set] the socket is AF_INET6 */
    bool only4, only6;  /* [set] families it can reach */
    uint16_t mss;       /* [set] */
    udt_addr at;        /* [set] */
    _Atomic int refs;   /* open, each handle, each GMP buffer outside */
    pthread_t thread;   /* [set] unless MANUAL */
    pthread_mutex_t mu; /* held by whoever handles, not while waiting: it guards what is [loop] */
    udt_time wake_at;   /* mu: until then the loop sleeps if nobody wakes it */

    _Atomic(io_cmd *) cmds;     /* newest first */
    _Atomic uint32_t ncmds;     /* heap commands that count against IO_MAX_CMDS */
    _Atomic uint32_t cmd_bytes; /* GMP payload in them */
    _Atomic int sleeping;       /* a waker must write evfd */
    _Atomic int dead;           /* no loop any more: posters run commands themselves */
    pthread_mutex_t dead_mu;
    _Atomic int32_t holds;
    _Atomic int closing; /* written by the loop */
    io_cmd close_cmd;
    bool ended; /* [loop] sockets were told */

    udt_mux *mux;    /* [loop] */
    sgmp_node *node; /* [loop] NULL without GMP */
    struct io_bulk *bulk;
    struct io_tls
        *tls; /* [loop] stripes of TLS connections (stripe.h), NULL until there are some */
    struct io_divert *diverted; /* [loop] peers that are reached another way */
    bool diverts;               /* [loop] there are some, or were */
    io_map map;                 /* [loop] */
    struct io_sock *meeting;    /* [loop] clients that have had no answer yet, for ICMP */
    io_timers timers;           /* [loop] */
    bool in_turn;               /* [loop] not asleep: its events are told when it sleeps */
    udt_time now;               /* [loop] */
    udt_time snap_at;           /* [loop] next snapshot, UDT_NEVER = nothing changed since */
    udt_time snapped;           /* [loop] time of the last one */
    io_rx rx;                   /* [loop] */
    io_tx tx;                   /* [loop] */
    bool rx_more;               /* [loop] the last receive filled all buffers */
    uint32_t rx_slots;          /* [loop] buffers offered to the next receive */
    uint32_t rx_singles;        /* [loop] large datagrams since rx_since that came one by one */
    uint32_t rx_joined;         /* [loop] and messages of many of them */
    int64_t rx_pause_us; /* [loop] so many of them that the socket is left to fill for so long */
    uint32_t rx_calm;    /* [loop] spans since it was worth it */
    udt_time rx_since;   /* [loop] */
    udt_time rx_at;      /* [loop] time of the last receive */
    bool held;           /* [loop] hold_fd is set for what hold.c has left to be sent */
    bool tx_more;        /* [loop] output stopped at the turn's bound */
    bool tx_wait;        /* [loop] the kernel's send buffer is full, */
    int tx_fd;           /* [loop] of this socket */
    bool failed;         /* [loop] PORT_FAILED was said */
    bool gso, gro;       /* [loop] in use */
    uint32_t no_gso_n;
    udt_addr no_gso[IO_NO_GSO_PATHS]; /* [loop] paths that refused segmentation */
    io_peer peer[IO_PEERS];           /* [loop] */
    uint32_t npeers;                  /* [loop] connected ones */
    udt_time peer_since, peers_at;    /* [loop] start of the span; none is made before that */
    uint32_t peer_fails;              /* [loop] */
    int64_t peer_busy_bytes;          /* [set] so much to one peer in a span, and it gets one */
    io_timer peer_timer;              /* [loop] the span's end, while there are some */
    udt_port_stats st;                /* [loop] */
    uint8_t *scratch;                 /* [loop] for one message of message mode, mmapped */
    size_t scratch_bytes;

    pthread_mutex_t snap_mu;
    udt_port_stats snap;    /* snap_mu */
    sgmp_stats gmp_snap;    /* snap_mu */
    refused_log refused[2]; /* snap_mu: of UDT, of GMP */
    pthread_mutex_t gmp_mu;
    int64_t gmp_next; /* gmp_mu: last id given out */
    _Atomic uint64_t gmp_instance;
    _Atomic int gmp_open;  /* 1 while a node is attached or being attached */
    _Atomic int gmp_again; /* a caller met AGAIN: say WRITABLE when the queue is short */
    _Atomic int gmp_stall; /* deliveries pause until the application drains */
    _Atomic int gmp_due; /* it has given back what is worth a turn, also of a loop that is awake */
    _Atomic(struct io_gbuf *) released;
    _Atomic uint32_t nreleased;
    struct io_gbuf *gbuf_free; /* [loop] */
    udt_event gmp_back;        /* [loop] taken from the node and not queued yet; kind 0 = none */
    struct io_gmp *gmp;        /* [set] by sgmp_open: commands on their way; see gmp_cmd.c */
    uint32_t gbuf_nfree;
    _Atomic int listening; /* a listener exists (or is being made) */
};

void io_port_ref(io_port *p);
void io_port_unref(io_port *p);
/* For MANUAL ports: the direct door into the engines. Sets p->now. No-ops on threaded ports. */
bool io_manual(const io_port *p);
void io_manual_enter(io_port *p);
void io_manual_leave(io_port *p);
/* For threaded ports: handle something here, in this thread, while the loop sleeps. False: it is
 * awake or has things queued; then the loop shall do it. Sets p->now. */
bool io_direct_enter(io_port *p);
void io_direct_leave(io_port *p, bool send); /* send: what the engines have leaves at once */
bool io_hold_leave(io_port *p); /* hold.c: instead, where this thread sends more soon; or false */

udt_time io_clock(void);
void io_random(void *arg, uint8_t *buf, size_t len);

/* loop.c */
void io_loop_turn(io_port *p, int64_t max_wait_us);
int io_loop_start(io_port *p);
void io_loop_events(io_port *p);
void io_loop_snap(io_port *p, bool now);

static inline int64_t io_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* net.c */
int io_net_open(io_port *p, const udt_addr *at);
int io_net_socket(const io_port *p); /* with the options of all sockets of this port, unbound */
int io_net_alloc(io_port *p);
void io_net_free(io_port *p);
void io_net_recv(io_port *p);
int64_t io_net_pause_us(const io_port *p);    /* how long to leave the socket to fill, or 0 */
void io_net_errors(io_port *p, int fd);       /* reads the error queue */
int io_net_recv_from(io_port *p, io_peer *e); /* one call; the datagrams */
void io_net_dont_fragment(const io_port *p, int fd, bool on);

/* net_send.c */
void io_net_send(io_port *p);
void io_net_address(io_port *p, uint32_t i, int fd); /* queued message i leaves by this socket */

/* gaps.c: queued messages that leave in pieces, from where their payload lies */
void io_gaps_lay(io_tx *t);  /* before they are sent */
void io_gaps_fill(io_tx *t); /* what is still queued is whole again, and needs no send buffer */

/* peer.c: [loop] connected sockets for peers that are sent much in single datagrams */
void io_peers_init(io_port *p);
void io_peers_close(io_port *p);
int io_peer_fd(io_port *p, const udt_addr *to, size_t len); /* counts; the socket to send by */
bool io_peer_failed(io_port *p, int fd); /* true: it was a connected one, and is gone */

/* One datagram that came another way than the socket. */
void io_net_feed(io_port *p, const udt_addr *from, const uint8_t *b, size_t len);

/* divert.c: true = the datagrams (of seg bytes each, 0 = one) went another way */
bool io_divert_only(const udt_addr *a); /* nothing comes from there over UDP */
bool io_divert(io_port *p, const udt_addr *to, const uint8_t *b, size_t len, size_t seg);
void io_divert_fini(io_port *p);

/* sock.c: application sockets */
void io_sock_unreachable(io_port *p, const udt_addr *to);
void io_socks_end(io_port *p);
bool io_sock_readable(void *sock);
void io_listen_close(io_port *p);

/* gmp.c, gmp_cmd.c, bulk.c */
io_port *io_gmp_port(udt_ctx *ctx, int32_t port, bool gmp, int *err); /* a handle's pin */
int io_gmp_cmds_init(io_port *p);
void io_gmp_cmds_fini(io_port *p);
bool io_gmp_room(io_port *p, const struct sgmp_ev *ev);
bool io_gmp_owes(const io_port *p);
void io_gmp_look_again(io_port *p);
void io_gmp_wake(io_port *p);      /* the application has given room or buffers back */
bool io_gmp_due(const io_port *p); /* a turn is due for what other threads did */
void io_gmp_turn(io_port *p);
void io_gmp_released(io_port *p);
void io_gmp_fini(io_port *p);
int io_bulk_init(io_port *p);
void io_bulk_fini(io_port *p);
void io_bulk_turn(io_port *p);
void io_bulk_unreachable(io_port *p, const udt_addr *to);

#endif
