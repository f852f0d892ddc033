/* An application's socket: outbox and inbox between the caller's threads and the loop, which owns
 * the engine's socket. Both boxes are bounded, so that a slow reader closes the peer's window and a
 * fast writer meets AGAIN. On a MANUAL port the boxes stay empty: calls go to the engine. */
#ifndef IO_SOCK_H
#define IO_SOCK_H

#include "io/priv.h"

enum io_sock_state { IO_CONNECTING, IO_CONNECTED, IO_LISTENING, IO_ENDED };
enum io_sock_abort { IO_ABORT = 1, IO_ABORT_SILENT };
enum io_sock_kind { IO_CLIENT, IO_RENDEZVOUS, IO_CHILD, IO_LISTENER, IO_KEYED };

typedef struct io_sock {
    io_port *p;                 /* [set] */
    int32_t h;                  /* [set] public handle */
    int32_t es;                 /* [loop] engine socket, 0 = none */
    enum io_sock_kind role;     /* [set] */
    udt_opts opts;              /* [set] */
    char cc[24];                /* [set] backs opts.cc */
    udt_addr to;                /* [set] */
    bool has_to;                /* [set] */
    bool initiator;             /* [set] of a keyed connection */
    uint8_t key[UDT_PSK_BYTES]; /* [set] its key, wiped once it is open */
    udt_addr peer;              /* written before `state` becomes CONNECTED */
    _Atomic int state;          /* enum io_sock_state */

    pthread_mutex_t send_mu; /* orders writers among themselves; the loop never takes it */
    pthread_mutex_t recv_mu;
    bytesq out, in;
    msgq mout, min;
    size_t out_max, in_max; /* [set] bounds of the boxes */
    _Atomic int want_write; /* a writer met AGAIN: says WRITABLE when so many bytes fit */
    _Atomic int tx_err;     /* sending ended: enum udt_err */
    _Atomic int rx_end;     /* nothing follows what is in the inbox: enum udt_err */
    _Atomic int rx_stalled; /* the inbox was full; the reader must say when it has room */
    _Atomic int tx_posted, rx_posted;
    _Atomic int cut;   /* a close that lingers was ended by another */
    _Atomic int abort; /* closed with more to say: enum io_sock_abort, else 0 */
    io_cmd start_cmd, tx_cmd, rx_cmd, close_cmd, cut_cmd;

    bool tx_blocked;                      /* [loop] the engine's buffer is full */
    bool closing;                         /* [loop] udt_close was called */
    bool shut;                            /* [loop] udt_mux_close was called */
    struct io_sock *meet_next, **meet_at; /* [loop] in the port's list `meeting`, or NULL */
    int end_err; /* [loop] why what was sent is not known to have arrived, for CLOSED */
    _Atomic int32_t linger_ms; /* set by udt_close */
    udt_time linger_at;        /* [loop] */
    io_timer linger;           /* [loop] */
} io_sock;

/* A socket with a handle; the loop's reference. NULL with *err. */
io_sock *io_sock_new(io_port *p, enum io_sock_kind role, const udt_opts *o, int *err);
bool io_sock_attach(io_sock *s, int32_t es); /* false without memory: it has no engine socket */
void io_sock_meets(io_sock *s); /* [loop] a client asks its peer; it may hear that nobody listens */
int io_sock_end(const io_sock *s, int err); /* [loop] what a reader is told at the end */
void io_sock_pump_tx(io_sock *s);           /* [loop] sends what the outbox holds */
void io_sock_fail(io_sock *s, int err);     /* [loop] says FAILED */
void io_sock_close_run(io_port *p, void *arg);
void io_sock_cut_run(io_port *p, void *arg); /* ends what lingers; unpins */
void io_sock_tx_run(io_port *p, void *arg);  /* unpins */
void io_sock_rx_run(io_port *p, void *arg);  /* unpins */

static inline bool io_sock_stream(const io_sock *s)
{
    return s->opts.type == UDT_STREAM;
}
static inline size_t io_sock_in_used(io_sock *s)
{
    return io_sock_stream(s) ? bytesq_used(&s->in) : msgq_used(&s->min);
}
static inline size_t io_sock_out_used(io_sock *s)
{
    return io_sock_stream(s) ? bytesq_used(&s->out) : msgq_used(&s->mout);
}

/* There is as much room in the outbox as a writer who met AGAIN wants (none does: false). */
static inline bool io_sock_out_fits(io_sock *s)
{
    size_t want = (size_t)atomic_load(&s->want_write), used = io_sock_out_used(s);
    return want > 0 && (used == 0 || used + want <= s->out_max) &&
           (!io_sock_stream(s) || bytesq_may_grow(&s->out));
}

#endif
