/* Private to tls_port.c, tls_conn.c and stripe.c. All fields belong to the loop thread. */
#ifndef IO_TLS_PRIV_H
#define IO_TLS_PRIV_H

#include "io/priv.h"
#include "io/stripe.h"

#include <openssl/ssl.h>

enum {
    TLS_HEAD_BYTES = 12,
    TLS_FRAME_BYTES = 128 << 10, /* most of the stream that one frame carries when sent */
    TLS_FRAME_MOST = 1 << 20,    /* and when received */
    TLS_FRAME_LEAST = 256,       /* of a slow connection */
    TLS_HALF_OPEN = 256,         /* connections of a listener before their proof */
    TLS_PROVE_US = 5000000,      /* time for the proof */
    TLS_DRAIN_US = 5000,         /* how often the kernel is asked whether all is acknowledged */
    TLS_LINGER_US = 1000000,     /* least time for what was sent to leave */
    TLS_TURN_US = 10000,         /* longest time between two looks while UDP keeps us busy */
    TLS_REKEY_BYTES = 1 << 30,   /* counted in units of 64 bytes: 64 GiB under one key */
    TLS_PAUSE_US = 100000,       /* between two tries to accept while nothing is free */
    TLS_USED = 1024,             /* tickets that are remembered as used over UDP */
    TLS_SAY = 6,           /* parts of the silence limit: who had nothing to say in one speaks */
    TLS_SAY_LEAST_MS = 20, /* but no oftener, whatever the peer asks for */
    TLS_EMPTY_MOST = 64,   /* empty frames that are read at a time */
};

enum tls_state { TLS_CONNECTING, TLS_SHAKING, TLS_UP, TLS_CLOSING, TLS_DEAD };

typedef struct tls_conn {
    struct tls_conn *next; /* of the port */
    io_port *p;
    stripe *s; /* NULL: not proved yet, or given up */
    int fd;
    SSL *ssl;
    enum tls_state state;
    bool server, eof;
    bool alive; /* both ends speak at least every so often */
    bool hup;   /* the peer's end of the stream has arrived, though it may be unread */
    bool more;  /* what is written now is not the last of a frame */
    bool dry;   /* nothing to read before the next event */
    int err;
    udt_time heard, said; /* bytes from and to the socket */
    io_timer limit;
    uint8_t head[TLS_HEAD_BYTES]; /* of the frame that comes */
    unsigned head_n;
    uint64_t at;   /* its offset */
    uint32_t left; /* its bytes that were not read; 0: the next head comes */
    uint8_t *out;  /* what the socket had no room for */
    size_t out_at, out_len;
    uint64_t written; /* since the last key update */
    int64_t pace;     /* bytes a second that the kernel was told, 0 = no bound */
    struct {          /* what the kernel had counted when it was last asked */
        uint64_t busy_us, flow_us;
        uint32_t segs_out, segs_in, retrans;
    } seen;
} tls_conn;

/* What a stripe has counted: see tls_stats.c. */
typedef struct tls_stats {
    udt_time at;  /* `blocked` holds since, or before the first connection: it is waited for */
    bool blocked; /* the sender has more than the sockets take */
    int64_t app_us, blocked_us; /* sender: nothing to send; blocked, and not yet divided: */
    int64_t net_us, cap_us, flow_us;
    int64_t meet_us;
    int64_t segs_out, segs_in, retrans; /* of all connections */
    struct {
        udt_time at;
        int64_t acked, got;
    } meter[5]; /* for rates over the last second, newest last */
} tls_stats;

struct stripe {
    struct stripe *next; /* of the port */
    io_port *p;
    stripe_fn fn; /* NULL: closed */
    void *arg;
    uint8_t id[16], psk[32];
    int32_t idle_ms, peer_idle_ms; /* the peer's: 0 = not known */
    int64_t max_Bps;               /* cap of the transfer, 0 = none */
    bool sends;                    /* this end is the sender */
    bool server, connected, want_write, peer_closed;
    bool last_word; /* closed; what it said last must not be lost */
    int err;
    tls_conn *conn[STRIPE_MAX];
    unsigned n;         /* connections, those that ended too */
    unsigned turn;      /* who sends next */
    tls_conn *cur;      /* the frame under way comes from here */
    uint64_t sent, got; /* offsets of the stream */
    io_timer drain, linger, alive;
    bool draining;  /* DRAINED is owed */
    bool look;      /* READABLE is owed: a connection was in its handshake */
    udt_time since; /* of the first connection */
    tls_stats stats;
};

struct io_tls {
    int epfd, listener;
    io_timer pause; /* armed: connections wait in the listener */
    SSL_CTX *ctx;
    tls_conn *conns;
    unsigned nconns, half_open;
    stripe *stripes;
    udt_time polled;
    bool sweep; /* something is to be freed */
    unsigned used_n;
    uint8_t used[TLS_USED][16]; /* the last of them, as a ring */
};

/* tls_port.c */
struct io_tls *io_tls_get(io_port *p); /* made at first use; NULL = no memory or descriptors */
stripe *io_tls_stripe_of(io_port *p, const uint8_t *id, size_t len);
bool io_tls_was_used(const io_port *p, const uint8_t *id, size_t len);

/* tls_conn.c */
tls_conn *tls_conn_new(io_port *p, int fd, bool server, stripe *s);
void tls_conn_free(tls_conn *c);
int tls_conn_dial(io_port *p, const udt_addr *to, stripe *s); /* 0 or an error */
/* The socket's readiness changed; in: also for reading. */
void tls_conn_step(tls_conn *c, bool in);
/* Bytes written and those kept for later count alike; only call it while nothing is kept. more: the
 * next call follows at once, and without `more` in the end. */
int tls_conn_write(tls_conn *c, const uint8_t *b, size_t n, bool more);
bool tls_conn_flush(tls_conn *c);                           /* nothing is kept any more */
ssize_t tls_conn_read(tls_conn *c, uint8_t *b, size_t cap); /* 0 = end, AGAIN, BROKEN */
void tls_conn_end(tls_conn *c, int err);                    /* closes at once */
void tls_conn_shut(tls_conn *c); /* says goodbye, then waits for the peer's */
/* The kernel's watch over the path; of a connection that is alive the silence is ours to measure.
 */
void tls_conn_limits(tls_conn *c, int32_t idle_ms);
/* All was read and nothing has come since, for this long. */
bool tls_conn_silent(tls_conn *c, udt_time us);
SSL_CTX *tls_conn_ctx(io_port *p);

/* tls_stats.c */
void tls_stats_begin(stripe *s); /* the first connection stands */
void tls_stats_note(stripe *s);  /* the sender has written what the sockets take */

/* stripe.c */
void stripe_attach(stripe *s, tls_conn *c);   /* c is proved */
void stripe_conn_ready(tls_conn *c, bool in); /* up, and something changed; in: to read too */
void stripe_conn_ended(tls_conn *c);          /* c->err */
bool stripe_over(const stripe *s);            /* to be freed */
void stripe_free(stripe *s);

#endif
