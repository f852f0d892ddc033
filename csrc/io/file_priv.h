/* Private structure of a file transfer. Who may touch a field: [set] nobody after the start, [loop]
 * the port's loop thread, [job] the disk job while one runs (x->busy), else the loop; [mu] under
 * x->mu.
 *
 *   meet --OPEN both ways--> data --FIN--> fin --DONE--> reply --acked--> (end)
 *     any of them --failure, cancel--> ending --job done, ERROR sent or 3 s--> (end)
 */
#ifndef IO_FILE_PRIV_H
#define IO_FILE_PRIV_H

#include "base/addr.h"
#include "io/disk.h"
#include "io/file.h"
#include "io/stream.h"
#include "sdc/blocks.h"
#include "sdc/record.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

enum {
    XFER_MAX_BUFS = 8,    /* blocks one transfer may hold */
    XFER_BATCH = 64,      /* records in a full buffer: 1 MiB */
    XFER_SMALL_BATCH = 4, /* in a small one: 64 KiB */
    XFER_SLACK = 64,      /* room for a FIN behind the last block */
    XFER_WIRE = XFER_BATCH * SDC_MAX_RECORD + XFER_SLACK,
    XFER_SMALL_WIRE = XFER_SMALL_BATCH * SDC_MAX_RECORD + XFER_SLACK,
    XFER_HAND_OVER = 256 << 10, /* received bytes that are worth a disk job of their own */
    XFER_FLUSH_US = 1000,       /* fewer wait this long for more */
    XFER_PROVE_US = 5000000,    /* a connection has to show its OPEN within this time */
    XFER_LINGER_MS = 3000,      /* for an ERROR to reach the peer */
    XFER_REPLY_US = 10000000,   /* for a DONE to be acknowledged */
    XFER_PROGRESS_US = 250000,
    XFER_UDP_WAIT_MS = 3000, /* default of udp_wait_ms */
    XFER_STALL_US = 5000000, /* an open connection that has brought nothing yet is given up, */
    XFER_TRIES = 3           /* if its sender tries: so many of a peer's probes tell that */
};

enum xfer_phase { XFER_MEET, XFER_DATA, XFER_FIN, XFER_REPLY, XFER_ENDING, XFER_ENDED };

struct xfer_list { /* buffers, oldest first */
    struct disk_buf *head, **tail;
};

struct xfer {
    struct {
        struct xfer *next, **back;
    } link;          /* of disk_xfer_add */
    udt_ctx *ctx;    /* [set] */
    io_port *port;   /* [set] valid while the handle lives or the port is held */
    disk_pool *pool; /* [set] */
    int32_t handle;  /* [set] */
    bool sender, initiator, has_to, small, encrypt; /* [set] */
    udt_addr to;                                    /* [set] */
    udt_xfer_opts o;   /* [set] start_ms and idle_ms with their defaults */
    udt_ticket ticket; /* [loop] wiped when the peer is proved or the transfer ends */
    _Atomic int refs;  /* the handle, the loop, each posted command */

    pthread_mutex_t mu;
    udt_xfer_result result;                   /* [mu] */
    bool shown;                               /* [mu] result and blocks may be read */
    bool finishable, finish_posted;           /* [mu] */
    bool cancel_posted, freed;                /* [mu] */
    int32_t cancel_code, finish_err;          /* [mu] */
    sdc_done finish_done;                     /* [mu] */
    io_cmd begin_cmd, finish_cmd, cancel_cmd; /* each is pushed once at most */

    enum xfer_phase phase; /* [loop] */
    bool held;             /* [loop] the port is held */
    bool peer_closed;      /* [loop] */
    io_stream s;           /* [loop] the connection */
    enum udt_path_why why; /* [loop] initiator: why it is not over UDP */
    bool tls_failed;       /* [loop] initiator: TLS led nowhere; UDP until the deadline */
    bool no_tcp;           /* [loop] because nobody listens there */
    bool no_udp;           /* [loop] initiator: ICMP says that the port is closed */
    bool early;            /* [loop] data is on its way before the peer's OPEN */
    bool tls_waits;        /* [loop] TLS stands; the disk job of the early data runs still */
    io_timer fall;         /* [loop] initiator: time to try TLS, or to call it a stall */
    udt_time given_at;     /* [loop] sender: first data given to the connection, 0 = none yet */
    uint32_t tries;        /* [loop] receiver: the peer's probes when last looked for a stall */
    io_timer deadline;     /* [loop] start_ms */
    io_timer step;         /* [loop] by phase: prove, flush, reply, linger */
    sdc_hello hello;       /* [loop] */
    uint8_t in[128];       /* [loop] OPEN, or a small record of the reverse direction */
    size_t in_len;
    uint8_t out[SDC_MAX_RECORD + XFER_SLACK]; /* [loop] goes before anything else */
    size_t out_at, out_len;
    sdc_dir send;     /* data sender: [job]; receiver: [loop] */
    sdc_dir recv;     /* data sender: [loop]; receiver: [job] */
    int err, sys_err; /* [loop] why it ends */
    int32_t remote;
    udt_time opened_at, fin_at; /* [loop] 0 = not yet */
    udt_time waited_at;         /* [loop] waiting for the disk since; 0 = not */
    int64_t waited_us;          /* [loop] */
    udt_time progress_at;       /* [loop] last PROGRESS */
    int64_t progress;           /* [loop] its value */

    struct disk_job job;
    io_cmd job_cmd;         /* [job] tells the loop that it is done */
    unsigned batch;         /* [loop] sender: blocks that the next job fills */
    bool busy;              /* [loop] the job is queued or runs */
    unsigned held_bufs;     /* [loop] buffers of this transfer, wherever they are */
    struct xfer_list ready; /* [loop] sealed and unsent, or received and not yet with the disk */
    struct xfer_list spare; /* [loop] sender: sent, to be filled again */
    int64_t sent;           /* [loop] sender: payload in buffers that were sent whole */
    struct disk_buf *cur;   /* [loop] receiver: being filled; cur->at = end of whole records */
    uint8_t carry[SDC_MAX_RECORD]; /* [loop] receiver: start of a record that waits for a buffer */
    size_t carry_len;
    bool last;  /* [loop] receiver: a FIN or ERROR lies behind; read no more */
    bool flush; /* [loop] receiver: hand over what there is */

    int fd;      /* [job] */
    int64_t pos; /* [job] bytes read or written so far, from o.offset */
    int64_t
        synced; /* [job] receiver: write-behind, bytes sent to the disk; and known to be there */
    int64_t settled;
    int64_t ahead;      /* [job] sender: bytes that the disk was asked for */
    sdc_blocks blocks;  /* [job] until shown */
    uint8_t digest[32]; /* [job] valid with job_fin */
    uint32_t *want;     /* [set] expected block checksums, owned; NULL = none */
    uint32_t nwant;
    struct xfer_list work; /* [job] the buffers of this job */
    int job_err, job_sys;  /* [job] */
    int32_t job_remote;    /* [job] code of the peer's ERROR (job_err = REMOTE) */
    bool job_fin;          /* [job] sender: FIN is sealed; receiver: FIN is verified */
};

/* file.c */
void xfer_ref(xfer *x);
void xfer_unref(xfer *x);
void xfer_emit(xfer *x, enum udt_io_event_kind kind, int64_t value);
/* Copies what the loop knows into x->result for other threads; final: after the end. */
void xfer_show(xfer *x, bool final);
void xfer_note_progress(xfer *x);
void xfer_note_stats(xfer *x); /* while the connection still exists */

/* file_conn.c: connection, OPEN, DONE, ERROR, end. All on the loop thread. A function that may end
 * the transfer leaves x alive for callers that hold a reference; they look at x->phase. */
void xfer_begin(io_port *p, void *arg);
void xfer_reply(xfer *x); /* receiver: the application's answer to FIN */
/* Ends the transfer with err; tell != 0 is first said to the peer in an ERROR record. Does nothing
 * when it is ending already. */
void xfer_fail(xfer *x, int err, int sys_err, int32_t remote, int32_t tell);
void xfer_try_end(xfer *x); /* in phase ending: ends if nothing is left to wait for */
/* What may come against the stream of data, or after its FIN. The engine says READABLE again only
 * when all was read, so whoever stops reading the stream calls this once. */
void xfer_hear(xfer *x);
void xfer_disk_wait(xfer *x, bool waiting);

void xfer_meet(xfer *x);                     /* waits for the peer over UDP */
void xfer_drop(xfer *x, uint32_t linger_ms); /* gives up the connection */
/* A connection ended before the peer was proved. */
void xfer_lost_early(xfer *x, int err);
/* kind: enum udt_ev_kind, of an engine socket or a stripe. */
void xfer_happened(xfer *x, int kind, int err, int32_t remote);

/* A small file goes with the first flight, without waiting for the peer's OPEN. */
static inline bool xfer_sends(const xfer *x)
{
    return x->phase == XFER_DATA || (x->phase == XFER_MEET && x->early);
}

/* file_tls.c */
void xfer_tls_resume(xfer *x); /* the disk job ended that a change to TLS waited for */
bool xfer_tls_begin(xfer *x);  /* true: UDP is not tried */
void xfer_tls_opened(xfer *x); /* the way is chosen */
void xfer_tls_end(xfer *x);

/* file_send.c */
void xfer_send_pump(xfer *x);
void xfer_send_rewind(xfer *x); /* early data counts no more; no disk job runs */
void xfer_send_job(struct disk_job *job);
int64_t xfer_send_bytes(xfer *x); /* payload that the peer has acknowledged; never falls */
/* The rest of the record that was sent in part: bytes put into out (at most SDC_MAX_RECORD). */
size_t xfer_send_cut(xfer *x, uint8_t *out);

/* file_recv.c */
void xfer_recv_pump(xfer *x);
void xfer_recv_job(struct disk_job *job);

/* Gives back a buffer of this transfer. */
static inline void xfer_buf_put(xfer *x, struct disk_buf *b)
{
    disk_buf_put(x->pool, b);
    x->held_bufs--;
}
/* Takes n bytes off the front of an I/O vector. */
static inline void xfer_iov_skip(struct iovec **iov, int *count, size_t n)
{
    while (n > 0 && n >= (*iov)->iov_len) {
        n -= (*iov)->iov_len;
        ++*iov;
        --*count;
    }
    if (n > 0) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
}
static inline void xfer_list_init(struct xfer_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}
static inline void xfer_list_add(struct xfer_list *l, struct disk_buf *b)
{
    b->next = NULL;
    *l->tail = b;
    l->tail = &b->next;
}
static inline struct disk_buf *xfer_list_take(struct xfer_list *l)
{
    struct disk_buf *b = l->head;
    if (b) {
        l->head = b->next;
        if (!l->head)
            l->tail = &l->head;
    }
    return b;
}

#endif
