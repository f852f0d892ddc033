/* What Python may call of csrc/include/{udt,sgmp,udt_err}.h, by topic. Kept by hand; the compiler
 * checks every line against the real headers when the module is built. */

/* errors */
const char *udt_err_name(int code);
const char *udt_err_text(int code);

/* values */
typedef struct udt_addr {
    uint16_t family;
    uint16_t port;
    uint8_t ip[16];
    uint32_t scope;
} udt_addr;

/* context and events */
typedef struct udt_ctx udt_ctx;
typedef struct udt_ctx_config {
    uint32_t max_events;
    uint64_t max_buf_bytes;
    uint32_t disk_threads;
    ...;
} udt_ctx_config;
int udt_ctx_new(const udt_ctx_config *cfg, udt_ctx **out);
void udt_ctx_free(udt_ctx *ctx);
int udt_ctx_wakeup_fd(udt_ctx *ctx);

struct sgmp_ev {
    uint16_t kind;
    uint16_t channel;
    int32_t status;
    uint64_t id;
    uint64_t instance;
    udt_addr from;
    uint32_t key_id;
    uint32_t method;
    uint32_t ms;
    uint32_t len;
    const uint8_t *data;
    void *buf;
    bool not_delivered;
};
typedef struct udt_event {
    uint16_t kind;
    int32_t port;
    int32_t sock;
    int32_t err;
    int32_t sys_err;
    int32_t remote;
    int64_t value;
    struct sgmp_ev g;
} udt_event;
int udt_ctx_poll(udt_ctx *ctx, udt_event *ev, int max);
void udt_event_release(udt_ctx *ctx, udt_event *ev);

/* ports */
int32_t udt_port_open(udt_ctx *ctx, const udt_addr *at, uint32_t flags, uint16_t mss);
int udt_port_addr(udt_ctx *ctx, int32_t port, udt_addr *out);
int udt_port_close(udt_ctx *ctx, int32_t port);
typedef struct udt_port_stats {
    int64_t dgrams_in, dgrams_out, bytes_in, bytes_out, send_calls, recv_calls, gso, gro;
    int64_t sockets, half_open, tombstones, dropped_bad, dropped_unknown, dropped_cookie, rejected;
    int64_t buf_bytes, rcvbuf_bytes, sndbuf_bytes;
    int64_t bad_tag, replayed, unsealed, moves, moves_refused, mtu_falls, mtu_raises;
    int64_t accept_pauses;
    ...;
} udt_port_stats;
int udt_port_stats_get(udt_ctx *ctx, int32_t port, udt_port_stats *out);
typedef struct udt_refused {
    udt_addr from;
    int64_t wrong_key, replayed, ticket;
} udt_refused;
int udt_port_refused(udt_ctx *ctx, int32_t port, udt_refused *out, int max);

/* sockets */
typedef struct udt_trace_rec {
    int64_t us;
    uint32_t conn;
    uint16_t kind;
    uint16_t x;
    uint64_t a, b;
} udt_trace_rec;
typedef struct udt_trace udt_trace;
udt_trace *udt_trace_new(uint32_t records);
void udt_trace_free(udt_trace *t);
size_t udt_trace_read(udt_trace *t, uint64_t *from, udt_trace_rec *out, size_t cap);
uint64_t udt_trace_count(udt_trace *t);
const char *udt_limit_name(int limit);

typedef struct udt_sock_opts {
    uint16_t type;
    uint16_t mss;
    uint32_t snd_buf_bytes, rcv_buf_bytes;
    const char *cc;
    int64_t max_bw_Bps;
    int32_t connect_timeout_ms, idle_timeout_ms;
    bool own_peer;
    uint32_t tag;
    const uint8_t *psk;
    bool require_key;
    bool plain_data;
    bool no_extensions;
    udt_trace *trace;
    ...;
} udt_sock_opts;
int32_t udt_listen(udt_ctx *ctx, int32_t port, const udt_sock_opts *o, uint32_t backlog);
int32_t udt_connect(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o);
int32_t udt_rendezvous(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o);
int32_t udt_open_keyed(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_sock_opts *o,
                       const uint8_t *key, bool initiator);
ssize_t udt_send(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len);
ssize_t udt_recv(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap);
int udt_sendmsg(udt_ctx *ctx, int32_t sock, const uint8_t *buf, size_t len, int32_t ttl_ms,
                bool in_order);
ssize_t udt_recvmsg(udt_ctx *ctx, int32_t sock, uint8_t *buf, size_t cap);
int udt_close(udt_ctx *ctx, int32_t sock, int32_t linger_ms);
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
    int64_t lim_pace_us, lim_cap_us, lim_handshake_us, lim_none_us;
    int64_t limit;
    int64_t at_us;
    int64_t send_Bps, recv_Bps;
    int64_t pacing_Bps;
    int64_t pkts_lost, loss_ppm;
    int64_t in_flight_bytes, queue_bytes;
    int64_t snd_buf_bytes, rcv_buf_bytes;
    int64_t bytes_unread;
    ...;
} udt_sock_stats;
int udt_stats_get(udt_ctx *ctx, int32_t sock, udt_sock_stats *out);

/* file transfers */
typedef struct udt_ticket {
    uint8_t id[16];
    uint8_t key[32];
    uint32_t tag;
    bool encrypt;
} udt_ticket;
typedef struct udt_xfer_opts {
    uint32_t flags;
    int64_t offset;
    int64_t length;
    int32_t start_ms;
    int32_t idle_ms;
    int64_t max_bw_Bps;
    uint16_t tcp_port, tcp_stripes;
    int32_t udp_wait_ms;
    udt_trace *trace;
    const char *cc;
    ...;
} udt_xfer_opts;
int udt_port_link_cap(udt_ctx *ctx, int32_t port, const udt_addr *prefix, int bits, int64_t Bps);
int udt_port_listen_tls(udt_ctx *ctx, int32_t port, uint16_t tcp_port);
int udt_port_divert(udt_ctx *ctx, int32_t port, const udt_addr *peer, int fd);
int udt_port_inject(udt_ctx *ctx, int32_t port, const udt_addr *from, const uint8_t *buf,
                    size_t len);
int32_t udt_xfer_start(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_ticket *t, int fd,
                       const udt_xfer_opts *o);
int udt_xfer_finish(udt_ctx *ctx, int32_t xfer, int32_t err, uint64_t version_epoch,
                    uint64_t version_counter, uint32_t durable);
int udt_xfer_cancel(udt_ctx *ctx, int32_t xfer, int32_t code);
typedef struct udt_xfer_result {
    int64_t bytes;
    int32_t err, sys_err, remote;
    uint8_t digest[32];
    uint64_t version_epoch, version_counter;
    uint32_t durable;
    uint32_t blocks;
    int64_t us;
    udt_sock_stats stats;
    int64_t lim_disk_us;
    uint8_t path, path_why;
    ...;
} udt_xfer_result;
int udt_xfer_result_get(udt_ctx *ctx, int32_t xfer, udt_xfer_result *out);
int udt_xfer_crcs(udt_ctx *ctx, int32_t xfer, uint32_t *crcs, uint32_t cap);
int udt_xfer_free(udt_ctx *ctx, int32_t xfer);
uint32_t udt_crc32c(uint32_t crc, const uint8_t *buf, size_t len);
typedef struct udt_md5 {
    ...;
} udt_md5;
typedef struct udt_span {
    const uint8_t *data;
    size_t len;
} udt_span;
typedef struct udt_md5_line {
    udt_md5 *sum;
    udt_span *spans;
    size_t count;
} udt_md5_line;
void udt_md5_init(udt_md5 *m);
void udt_md5_update(udt_md5 *m, const uint8_t *data, size_t len);
void udt_md5_update_lines(udt_md5_line *lines, size_t count);
void udt_md5_digest(const udt_md5 *m, uint8_t *out);
int udt_md5_sha256_there(void);
int udt_md5_sha256_init(udt_md5 *m);
void udt_md5_sha256_digest(const udt_md5 *m, uint8_t *out);
int udt_take(int from, int to, udt_md5 *sum, uint8_t *room, size_t size, int64_t moment_us,
             size_t *count);

/* GMP */
typedef struct sgmp_key {
    uint32_t key_id;
    uint8_t alg;
    uint8_t secret[32];
    int64_t valid_ms;
    char principal[128];
} sgmp_key;
typedef struct sgmp_dest {
    udt_addr addr;
    uint32_t key_id;
} sgmp_dest;
typedef struct sgmp_opts {
    uint16_t channel;
    uint16_t flags;
    uint32_t deadline_ms;
    uint32_t ttl_ms;
} sgmp_opts;
typedef struct sgmp_stats {
    int64_t dgrams_in, dgrams_out, bytes_in, bytes_out;
    int64_t retrans_pto, retrans_loss, duplicates, replays, bad_tag, bad_check, bad_format;
    int64_t no_key, busy, refused, reset_in, reset_out, hello_in, hello_out;
    int64_t messages_in, messages_out, delivered, timed_out, late_answers, evictions;
    int64_t assoc, assoc_unauth, pending_calls, running_requests;
    int64_t snd_queue_bytes, rcv_queue_bytes, bulk_bytes;
    int64_t introduced, dgram_up, dgram_down, bulk_streams, groups;
    ...;
} sgmp_stats;
int sgmp_open(struct udt_ctx *ctx, int32_t port, bool require_auth);
int sgmp_key_add(struct udt_ctx *ctx, int32_t port, const sgmp_key *key);
int sgmp_key_remove(struct udt_ctx *ctx, int32_t port, uint32_t key_id);
int64_t sgmp_send(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, const uint8_t *buf,
                  size_t len, const sgmp_opts *o);
int64_t sgmp_call(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                  const uint8_t *buf, size_t len, const sgmp_opts *o);
int sgmp_cancel(struct udt_ctx *ctx, int32_t port, uint64_t id);
typedef struct sgmp_group_opts {
    sgmp_opts each;
    uint32_t method;
    uint32_t quorum;
    uint8_t wait;
    uint8_t max_attempts;
    bool call;
    bool cancel_rest;
    ...;
} sgmp_group_opts;
int64_t sgmp_group(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t n,
                   const uint8_t *buf, size_t len, const sgmp_group_opts *o);
int sgmp_mint_token(struct udt_ctx *ctx, int32_t port, const udt_addr *holder,
                    uint64_t holder_instance, uint32_t key_id, uint8_t *token);
int sgmp_introduce(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint64_t instance,
                   const uint8_t *token);
typedef struct sgmp_peer_info {
    uint64_t instance;
    int32_t state;
    int64_t srtt_us, pto_us, cwnd_dgrams, queued_msgs, queued_bytes, max_dgram;
    ...;
} sgmp_peer_info;
int sgmp_peer_info_get(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, sgmp_peer_info *out);
int sgmp_reply(struct udt_ctx *ctx, int32_t port, uint64_t request_id, int32_t status,
               const uint8_t *buf, size_t len);
int sgmp_progress(struct udt_ctx *ctx, int32_t port, uint64_t request_id, uint32_t percent);
void sgmp_hold(struct udt_ctx *ctx);
void sgmp_release(struct udt_ctx *ctx);
int sgmp_channel_open(struct udt_ctx *ctx, int32_t port, uint16_t channel);
int sgmp_stats_get(struct udt_ctx *ctx, int32_t port, sgmp_stats *out);
int sgmp_instance(struct udt_ctx *ctx, int32_t port, uint64_t *instance);

/* several steps in one call (_glue.h) */
int glue_poll(udt_ctx *ctx, udt_event *ev, int max, uint8_t *data, size_t cap);
int64_t glue_call(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                  const uint8_t *buf, size_t len, uint16_t flags, uint32_t deadline_ms);
int64_t glue_send(struct udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint16_t channel,
                  const uint8_t *buf, size_t len, uint16_t flags, uint32_t deadline_ms);
