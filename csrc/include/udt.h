/* Public API of the C core: context, ports, sockets, file transfers, events.
 *
 * Threading: a context owns one thread per open port and two disk threads. Every function may be
 * called from any thread, never blocks on the network or a disk (udt_ctx_free and udt_port_close
 * wait for their threads), and hands work to the owning thread through a bounded command queue.
 * Results come as fixed-size events behind one eventfd. After fork() a context is dead in the
 * child: every call returns UDT_E_FORKED. All descriptors are close-on-exec.
 * No function calls back into the caller. Errors are negative enum udt_err values. */
#ifndef UDT_H
#define UDT_H

#include "sgmp.h"
#include "udt_err.h"
#include "udt_trace.h"
#include "udt_types.h"

#include <sys/types.h>

typedef struct udt_ctx udt_ctx;

typedef struct udt_ctx_config {
    uint32_t max_events;    /* bound of the event queue that closes the peers' windows; 0 = 65536 */
    uint64_t max_buf_bytes; /* memory budget of all buffers, 0 = 1 GiB */
    uint32_t disk_threads;  /* 0 = 2 */
} udt_ctx_config;

int udt_ctx_new(const udt_ctx_config *cfg, udt_ctx **out);
/* Closes what is open and waits for calls of udt_port_close that have begun in other threads. No
 * other call may be running, and none may follow. */
void udt_ctx_free(udt_ctx *ctx);
/* Readable while events wait. Clear it with udt_ctx_poll (which clears first, then drains). */
int udt_ctx_wakeup_fd(udt_ctx *ctx);

/* One event of any kind. Socket events use enum udt_event_kind of udt/mux.h repeated below,
 * transfer events start at 32, GMP events (enum sgmp_event_kind) at 64. */
enum udt_io_event_kind {
    UDT_IO_CONNECTED = 1,
    UDT_IO_ACCEPTED, /* sock = new socket, value = listener */
    UDT_IO_READABLE,
    UDT_IO_WRITABLE,
    UDT_IO_DRAINED,
    UDT_IO_PEER_CLOSED,
    UDT_IO_FAILED,
    UDT_IO_CLOSED, /* last event; err: what was sent is not known to have arrived whole */
    /* transfers: sock = transfer handle */
    UDT_IO_XFER_OPEN = 32, /* the peer proved the ticket; data may flow. value = enum udt_path and,
                              times 256, enum udt_path_why */
    UDT_IO_XFER_PROGRESS,  /* value = bytes moved so far; at most 4 a second */
    UDT_IO_XFER_FIN,       /* receiver: all bytes arrived, verified and (if asked) fsynced;
                              answer with udt_xfer_finish. value = bytes */
    UDT_IO_XFER_DONE,      /* end of a transfer. err = 0 or why; value = bytes moved */
    UDT_IO_PORT_FAILED     /* port's socket is unusable; sock = port, err */
};
typedef struct udt_event {
    uint16_t kind;
    int32_t port;
    int32_t sock;
    int32_t err;     /* enum udt_err */
    int32_t sys_err; /* errno where err is SYS or a disk error */
    int32_t remote;  /* code of the peer's ERROR record or type-8 packet */
    int64_t value;
    struct sgmp_ev g; /* valid for kinds >= 64; data owned by the core until udt_event_release */
} udt_event;
/* Clears the wake-up fd, copies up to max events; re-raises the fd if more wait. Returns count. */
int udt_ctx_poll(udt_ctx *ctx, udt_event *ev, int max);
void udt_event_release(udt_ctx *ctx, udt_event *ev);

/* Ports: one UDP socket each. `at` family 4 or 6, port 0 = any; [::] is dual-stack. */
enum udt_port_flag {
    UDT_PORT_MANUAL = 1, /* no thread: the caller drives it with udt_port_run */
    UDT_PORT_NO_GSO = 2,
    UDT_PORT_NO_GRO = 4
};
int32_t udt_port_open(udt_ctx *ctx, const udt_addr *at, uint32_t flags, uint16_t mss);
int udt_port_addr(udt_ctx *ctx, int32_t port, udt_addr *out);
int udt_port_close(udt_ctx *ctx, int32_t port);
/* One turn of a MANUAL port: wait at most timeout_us for a packet or a timer, then handle all. */
int udt_port_run(udt_ctx *ctx, int32_t port, int64_t timeout_us);

/* For networks without UDP. What the port sends to `peer` (NULL: to anybody who has no entry of his
 * own) goes to fd (duplicated; a datagram socket), as family u8, port u16 big-endian, address 16
 * bytes, payload; fd < 0 ends that. What came by such a way is handed in as if from `from`. LIMIT,
 * AGAIN (full: the datagram is lost). */
int udt_port_divert(udt_ctx *ctx, int32_t port, const udt_addr *peer, int fd);
int udt_port_inject(udt_ctx *ctx, int32_t port, const udt_addr *from, const uint8_t *buf,
                    size_t len);

/* All connections of the port together send at most Bps (bytes of IP packets a second) to the peers
 * under a prefix of `bits` bits; `prefix` NULL, bits 0: to all. 0 takes the cap away. Those that
 * hold for a peer all apply; connections that have something to send get equal shares. INVAL;
 * LIMIT: a port has at most 64. */
int udt_port_link_cap(udt_ctx *ctx, int32_t port, const udt_addr *prefix, int bits, int64_t Bps);

/* Also takes transfers over TLS connections (striped TCP), for initiators whose UDP is blocked: at
 * TCP port tcp_port, 0 = the same number, on the port's address. INUSE, SYS, STATE when it does. */
int udt_port_listen_tls(udt_ctx *ctx, int32_t port, uint16_t tcp_port);

typedef struct udt_sock_opts {
    uint16_t type; /* 1 stream, 2 messages */
    uint16_t mss;  /* 0 = the port's */
    /* Bounds; memory follows use. 0 = streams between our own ends: as the flow needs, within a
     * fair share of max_buf_bytes; else 8192 packets. */
    uint32_t snd_buf_bytes, rcv_buf_bytes;
    const char *cc;                              /* NULL = default */
    int64_t max_bw_Bps;                          /* 0 = unlimited */
    int32_t connect_timeout_ms, idle_timeout_ms; /* 0 = default */
    bool own_peer;
    uint32_t tag; /* rendezvous */
    /* Own mode (docs/protocol/udt-own-mode.md), which is offered unless `no_extensions` forbids. */
    const uint8_t *psk; /* UDT_PSK_BYTES, copied; packets are sealed when the peer has it too */
    bool require_key;   /* a peer that cannot prove the psk is refused: FAILED(AUTH) */
    bool plain_data;    /* seal control packets only; the data protects itself */
    bool no_extensions; /* speak with everybody as with libudt */
    udt_trace *trace;   /* records what happens; NULL = no. A listener's is its connections' */
} udt_sock_opts;
#define UDT_PSK_BYTES 32
int32_t udt_listen(udt_ctx *ctx, int32_t port, const udt_sock_opts *o, uint32_t backlog);
int32_t udt_connect(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o);
int32_t udt_rendezvous(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o);
/* A connection whose both ends hold `key` (UDT_PSK_BYTES, used for this one only): no handshake.
 * The initiator knows where the other is and may send at once; the responder (`to` NULL) adopts the
 * first address that proves the key, and sends nothing before. All packets are sealed (but data
 * with plain_data, which both must say). CONNECTED comes when the other end was heard;
 * FAILED(INUSE): draw another key; FAILED(TIMEOUT) after connect_timeout_ms, 30 s.
 * A peer that ends at once may be heard of by PEER_CLOSED alone. */
int32_t udt_open_keyed(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o,
                       const uint8_t *key, bool initiator);
/* Stream: bytes accepted (copied), 0 < n <= len, or AGAIN (then WRITABLE follows). */
ssize_t udt_send(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len);
/* Stream: bytes copied out, AGAIN, PEERCLOSED at the end, CUT when one of our own peers closed
 * before all that it had written arrived, or the socket's error. */
ssize_t udt_recv(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap);
int udt_sendmsg(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len, int32_t ttl_ms,
                bool in_order);
/* One message; its full length even if cap is smaller (the rest is lost), or AGAIN. */
ssize_t udt_recvmsg(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap);
/* linger_ms < 0 = default 180 s. CLOSED follows. A second close with 0 ends the linger of the
 * first: what has not arrived is lost. NOSOCK where there is nothing to end. */
int udt_close(udt_ctx *ctx, int32_t sock, int32_t linger_ms);
/* Ends it at once as udt_close with 0, for a program that had more to say than it has written: one
 * of our own peers hears CUT though all that was written has arrived. UDT has no such word for a
 * foreign peer, who hears of an ordinary end, or with `silent` nothing. NOSOCK as udt_close. */
int udt_abort(udt_ctx *ctx, int32_t sock, bool silent);
int udt_sock_peer(udt_ctx *ctx, int32_t sock, udt_addr *out);

typedef struct udt_sock_stats {
    int64_t bytes_sent, bytes_retrans, bytes_recv, bytes_dup;
    int64_t pkts_sent, pkts_retrans, pkts_recv, pkts_dup;
    int64_t naks_sent, naks_recv, acks_sent, acks_recv, timeouts, probes;
    int64_t rtt_us, rtt_var_us, min_rtt_us;
    int64_t cwnd_pkts, flow_wnd_pkts, in_flight_pkts, snd_queue_bytes, rcv_queue_bytes;
    int64_t period_ns, recv_rate_pps, capacity_pps;
    int64_t lim_app_us, lim_cwnd_us, lim_flow_us;
    /* Time limited by pacing, by a cap, before the peer was met, and by nothing of all that: the
     * processors. All lim_*_us are shares of the time as a sender; enum udt_limit. */
    int64_t lim_pace_us, lim_cap_us, lim_handshake_us, lim_none_us;
    int64_t limit;                        /* current, enum udt_limit */
    int64_t at_us;                        /* when all this was so; CLOCK_MONOTONIC */
    int64_t send_Bps, recv_Bps;           /* payload, over about the last second; 0: none moves */
    int64_t pacing_Bps;                   /* what pacing allows now, 0 = no bound */
    int64_t pkts_lost, loss_ppm;          /* lost on the way out, as far as is known */
    int64_t in_flight_bytes, queue_bytes; /* queue: (RTT - smallest RTT) x rate */
    int64_t snd_buf_bytes, rcv_buf_bytes; /* current bounds of the buffers */
    int64_t bytes_unread; /* came, and went unread because this side had closed; final */
} udt_sock_stats;
/* Last snapshot taken by the owning thread (at most 250 ms old); of a closed socket its final
 * numbers, until the udt_ctx_poll after the one that gave its CLOSED event. Works for sockets and
 * transfers. */
int udt_stats_get(udt_ctx *ctx, int32_t sock, udt_sock_stats *out);

typedef struct udt_port_stats {
    int64_t dgrams_in, dgrams_out, bytes_in, bytes_out, send_calls, recv_calls, gso, gro;
    int64_t sockets, half_open, tombstones, dropped_bad, dropped_unknown, dropped_cookie, rejected;
    int64_t buf_bytes, rcvbuf_bytes, sndbuf_bytes; /* socket buffer sizes the kernel granted */
    /* Datagrams of sealed connections that did not prove themselves, were seen before, or were not
     * sealed; addresses of peers that changed, or claimed to. */
    int64_t bad_tag, replayed, unsealed, moves, moves_refused;
    int64_t mtu_falls,
        mtu_raises;        /* packet sizes that a path forbade, or allowed (decisions/0097) */
    int64_t accept_pauses; /* times that TLS connections waited: no descriptor or memory was free */
} udt_port_stats;
int udt_port_stats_get(udt_ctx *ctx, int32_t port, udt_port_stats *out);
/* Datagrams refused so far, by source (at most 64 are kept, quiet ones go after 2 minutes); the
 * first entry, of family 0, has the sums over all sources. At most 250 ms old. Returns the entries.
 */
typedef struct udt_refused {
    udt_addr from; /* port 0; nobody has proved it */
    int64_t wrong_key, replayed, ticket;
} udt_refused;
enum { UDT_REFUSED_MAX = 65 };
int udt_port_refused(udt_ctx *ctx, int32_t port, udt_refused *out, int max);

/* File transfers over a ticketed data channel (spec/security.md, "Tickets and the data channel").
 * The descriptor is duplicated; bytes go file <-> connection inside C threads. */
typedef struct udt_ticket {
    uint8_t id[16];
    uint8_t key[32];
    uint32_t tag; /* rendezvous tag, not 0 */
    bool encrypt; /* AES-256-GCM records; else CRC chain + authenticated FIN */
} udt_ticket;

enum udt_xfer_flag {
    UDT_XFER_SEND = 1,      /* file -> peer; else peer -> file */
    UDT_XFER_INITIATOR = 2, /* the ticket's client: speaks OPEN first; peer address required */
    UDT_XFER_FSYNC = 4,     /* receiver: fsync before FIN is reported */
    UDT_XFER_DIRECT = 8,    /* receiver: write-behind so that dirty pages stay few (big files) */
    UDT_XFER_CHECK = 16     /* sender: compare with the block checksums given */
};
typedef struct udt_xfer_opts {
    uint32_t flags;
    int64_t offset;     /* first byte in the local file */
    int64_t length;     /* bytes to send; receiver: bytes allowed at most, -1 = as FIN says */
    int32_t start_ms;   /* give up when the peer has not opened by then; 0 = 60 s */
    int32_t idle_ms;    /* give up after this silence; 0 = 10 s */
    int64_t max_bw_Bps; /* 0 = unlimited */
    /* Initiator: when the peer was not met over UDP within udp_wait_ms, go on over tcp_stripes TLS
     * connections to TCP port tcp_port of its host. 0 stripes = never. udp_wait_ms 0 = 3 s, < 0 =
     * do not try UDP. */
    uint16_t tcp_port, tcp_stripes;
    int32_t udp_wait_ms;
    udt_trace *trace; /* records what happens over UDP; NULL = no */
    const char *cc;   /* congestion control over UDP; NULL = default. INVAL: unknown */
} udt_xfer_opts;
/* `to` may be NULL for the responder: whoever shows the tag and proves the ticket first. */
int32_t udt_xfer_start(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_ticket *t, int fd,
                       const udt_xfer_opts *o);
/* The same with UDT_XFER_CHECK: the sender compares each block it reads with crcs (copied; one per
 * UDT_BLOCK_BYTES of length) and ends with DISKREAD, errno EBADMSG, at the first that differs. */
int32_t udt_xfer_start_checked(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_ticket *t,
                               int fd, const udt_xfer_opts *o, const uint32_t *crcs, uint32_t n);
/* Receiver, after XFER_FIN: err 0 sends DONE(version, durable), else ERROR(err). */
int udt_xfer_finish(udt_ctx *ctx, int32_t xfer, int32_t err, uint64_t version_epoch,
                    uint64_t version_counter, uint32_t durable);
/* Stop: the peer gets ERROR(code); XFER_DONE(err = CANCELLED) follows. */
int udt_xfer_cancel(udt_ctx *ctx, int32_t xfer, int32_t code);

enum udt_path { UDT_PATH_UDP = 1, UDT_PATH_TLS = 2 };
enum udt_path_why {
    UDT_PATH_WHY_NONE,
    UDT_PATH_WHY_SILENCE,    /* no answer within udp_wait_ms */
    UDT_PATH_WHY_PROHIBITED, /* a router on the way said "administratively prohibited" */
    UDT_PATH_WHY_ASKED,      /* udp_wait_ms < 0 */
    UDT_PATH_WHY_STALLED,    /* they met, but no data came through: large datagrams are dropped */
    UDT_PATH_WHY_REFUSED     /* ICMP "port unreachable" */
};

#define UDT_BLOCK_BYTES (1 << 20) /* one CRC32C per block, counted from the transfer's offset */
typedef struct udt_xfer_result {
    int64_t bytes; /* payload moved */
    int32_t err, sys_err, remote;
    uint8_t digest[32]; /* SHA-256 over the little-endian CRC32C of each block, then size u64 LE */
    uint64_t version_epoch, version_counter; /* sender: what the receiver's DONE said */
    uint32_t durable;                        /* sender: replicas that fsynced, from DONE */
    uint32_t blocks;                         /* number of block checksums available */
    int64_t us;                              /* time from OPEN to FIN */
    udt_sock_stats stats;                    /* of the connection, at its end */
    int64_t lim_disk_us;                     /* time this side waited for its disk */
    uint8_t path;                            /* enum udt_path: how the bytes went */
    uint8_t path_why;                        /* initiator: why not over UDP, enum udt_path_why */
} udt_xfer_result;
/* After XFER_FIN or XFER_DONE (of one that failed too); the handle lives until udt_xfer_free. crcs:
 * up to cap values. */
int udt_xfer_result_get(udt_ctx *ctx, int32_t xfer, udt_xfer_result *out);
int udt_xfer_crcs(udt_ctx *ctx, int32_t xfer, uint32_t *crcs, uint32_t cap);
int udt_xfer_free(udt_ctx *ctx, int32_t xfer);

/* CRC32C and file digest, for verifying data at rest with the same definition. */
uint32_t udt_crc32c(uint32_t crc, const uint8_t *buf, size_t len);

/* MD5 of streams, for the ETags of S3 (RFC 1321), with or without their SHA-256. Several lines
 * advance side by side in one call, in less time than one after the other; no sum may be in two of
 * them. Lines and spans are used up.
 */
typedef struct udt_md5 {
    uint32_t h[4];
    uint64_t size; /* bytes so far */
    uint8_t rest[64];
    uint32_t sha256[8];
    uint8_t with_sha256;
} udt_md5;
typedef struct udt_span {
    const uint8_t *data;
    size_t len;
} udt_span;
typedef struct udt_md5_line {
    udt_md5 *sum;
    udt_span *spans; /* its next bytes, in order */
    size_t count;
} udt_md5_line;
void udt_md5_init(udt_md5 *m);
void udt_md5_update(udt_md5 *m, const uint8_t *data, size_t len);
void udt_md5_update_lines(udt_md5_line *lines, size_t count);
void udt_md5_digest(const udt_md5 *m, uint8_t out[16]); /* the stream may go on */
/* SHA-256 of the same bytes in about the time of MD5, on processors with the SHA extensions. The
 * first says whether this is one; init gives -1, and a sum without SHA-256, if it is not. */
int udt_md5_sha256_there(void);
int udt_md5_sha256_init(udt_md5 *m);
void udt_md5_sha256_digest(const udt_md5 *m, uint8_t out[32]); /* of one with SHA-256 */

/* Receive what a connection has through `room` (`size` bytes), add it to `sum`, and write it at a
 * file's position: until `size` bytes were taken, or the connection has had nothing for moment_us
 * in all, or is at its end. All that came was hashed and, if the outcome is 0, written; else that
 * is the errno of write(2). *count: the bytes that came. Blocks for no longer, but for the disk.
 */
int udt_take(int from, int to, udt_md5 *sum, uint8_t *room, size_t size, int64_t moment_us,
             size_t *count);

#endif
