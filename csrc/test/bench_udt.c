/* Throughput of UDT, one process per role, one or many streams over one port:
 *   bench_udt recv PORT [options]                    receives, prints a JSON line, ends
 *   bench_udt send HOST PORT AMOUNT [options]        AMOUNT: 5s, or bytes as 2000000000, 500M, 2G
 * Options of both: --flows N, --threads (loop thread instead of the caller driving the port),
 * --cpu N, --mss N (9000 for jumbo frames), --no-gso, --no-gro, --cc NAME, --bw BYTES_PER_S,
 * --plain (treat the peer as a foreign one), --buf BYTES, --key HEX (32 bytes: every packet is
 * sealed; with --plain-data control packets only), --name TEXT (goes into the line), --json (it
 * always is). send: --trace FILE writes the last 2^20 trace records as they are (udt_trace_rec).
 * The clock starts when all connections are there. recv: --seconds S ends S seconds later. send:
 * --abandon ends when the time is over, without waiting until everything has arrived.
 * gbps counts payload up to the last byte; cpu_s_per_gb covers all threads of this side; samples
 * are bytes per 100 ms. */
#include "bench_util.h"
#include "udt.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* With many flows the port has its turn after SERVED bytes: what was written is still in the cache
 * when it is sent. */
enum { CHUNK = 180 * 1456, SERVED = CHUNK / 2, MAX_FLOWS = 4096, TABLE = 4 * MAX_FLOWS };

struct flow {
    int32_t sock;
    int64_t bytes;
    bool queued; /* is in the list of those that may do something */
    bool ended, drained;
    bool closed; /* by the peer: what is still to be read ends with no other event */
};

static struct bench {
    udt_ctx *ctx;
    int32_t port;
    bool threads, plain, plain_data, abandon, refused, keyed;
    uint32_t flags, buf_bytes;
    uint16_t mss;
    const char *cc, *name, *trace_file;
    udt_trace *trace;
    int64_t bw, limit_bytes, limit_us; /* AMOUNT */
    int flows, open, ended, connected;
    struct flow flow[MAX_FLOWS];
    int table[TABLE]; /* socket -> flow + 1 */
    int todo[MAX_FLOWS], head, n_todo;
    uint8_t key[32]; /* UDT_PSK_BYTES */
    struct bench_series all;
} b = {.flows = 1};

static uint8_t buf[CHUNK];

static _Noreturn void die(const char *what, int64_t err)
{
    fprintf(stderr, "bench_udt: %s: %s\n", what, err ? udt_err_text((int)err) : "bad usage");
    exit(1);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0)
        perror("bench_udt: sched_setaffinity");
}

static udt_addr parse_addr(const char *host, const char *port)
{
    udt_addr a = {.port = (uint16_t)atoi(port)};
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (inet_pton(AF_INET, host, a.ip) == 1)
        a.family = 4;
    else if (inet_pton(AF_INET6, host, a.ip) == 1)
        a.family = 6;
    else
        die("host must be an address", UDT_E_INVAL);
    return a;
}

/* ---- flows ----------------------------------------------------------------------------------- */
static struct flow *flow_of(int32_t sock)
{
    for (uint32_t i = (uint32_t)sock * 2654435761u % TABLE; b.table[i]; i = (i + 1) % TABLE)
        if (b.flow[b.table[i] - 1].sock == sock)
            return &b.flow[b.table[i] - 1];
    return NULL;
}

static void add_flow(int32_t sock)
{
    uint32_t i = (uint32_t)sock * 2654435761u % TABLE;
    if (b.open == b.flows)
        die("more connections than --flows", UDT_E_INVAL);
    while (b.table[i])
        i = (i + 1) % TABLE;
    b.table[i] = b.open + 1;
    b.flow[b.open++] = (struct flow){.sock = sock};
}

static void wake(struct flow *f)
{
    if (f->queued || f->ended)
        return;
    f->queued = true;
    b.todo[(b.head + b.n_todo++) % MAX_FLOWS] = (int)(f - b.flow);
}

static void turn(int64_t wait_us);

/* The next flow that may do something; with many of them the port has its turn in between. */
static struct flow *next_ready(void)
{
    static int64_t served;
    if (b.n_todo && b.flows > 1 && b.all.bytes - served >= SERVED) {
        served = b.all.bytes;
        turn(0);
    }
    if (b.n_todo == 0)
        return NULL;
    struct flow *f = &b.flow[b.todo[b.head]];
    b.head = (b.head + 1) % MAX_FLOWS;
    b.n_todo--;
    f->queued = false;
    return f;
}

static void end_flow(struct flow *f)
{
    b.ended += !f->ended;
    f->ended = true;
}

static void on_failure(struct flow *f, int err)
{
    if (b.connected == 0 && err == UDT_E_UNREACHABLE)
        b.refused = true;
    else if (b.connected < b.flows)
        die("connection", err);
    else if (f)
        end_flow(f);
}

static void on_event(const udt_event *ev)
{
    struct flow *f = flow_of(ev->sock);
    switch (ev->kind) {
    case UDT_IO_ACCEPTED:
        add_flow(ev->sock);
        f = &b.flow[b.open - 1];
        /* fall through */
    case UDT_IO_CONNECTED:
        if (++b.connected == b.flows)
            bench_start(&b.all);
        if (f)
            wake(f);
        break;
    case UDT_IO_PEER_CLOSED:
        if (f)
            f->closed = true;
        /* fall through */
    case UDT_IO_READABLE:
    case UDT_IO_WRITABLE:
        if (f)
            wake(f);
        break;
    case UDT_IO_DRAINED:
        if (f)
            f->drained = true;
        break;
    case UDT_IO_FAILED:
        on_failure(f, ev->err);
        break;
    default:
        break;
    }
}

/* One wait for whatever comes next. */
static void turn(int64_t wait_us)
{
    udt_event ev[64];
    int n;
    if (!b.threads) {
        udt_port_run(b.ctx, b.port, wait_us);
    } else if (wait_us > 0) {
        struct pollfd pf = {.fd = udt_ctx_wakeup_fd(b.ctx), .events = POLLIN};
        poll(&pf, 1, (int)((wait_us + 999) / 1000));
    }
    while ((n = udt_ctx_poll(b.ctx, ev, 64)) > 0)
        for (int i = 0; i < n; i++)
            on_event(&ev[i]);
    if (b.flows == 1 && !b.threads && b.open)
        wake(&b.flow[0]); /* the engine may have room or bytes after any turn */
}

static bool time_over(void)
{
    return b.limit_us && b.all.t0 && bench_now_us() - b.all.t0 >= b.limit_us;
}

/* ---- the result ------------------------------------------------------------------------------ */
static void add_stats(udt_sock_stats *to, const udt_sock_stats *s)
{
    to->pkts_sent += s->pkts_sent;
    to->pkts_retrans += s->pkts_retrans;
    to->naks_recv += s->naks_recv;
    to->acks_sent += s->acks_sent;
    to->acks_recv += s->acks_recv;
    to->lim_app_us += s->lim_app_us;
    to->lim_cwnd_us += s->lim_cwnd_us;
    to->lim_flow_us += s->lim_flow_us;
    to->lim_pace_us += s->lim_pace_us;
    to->lim_cap_us += s->lim_cap_us;
    to->lim_handshake_us += s->lim_handshake_us;
    to->lim_none_us += s->lim_none_us;
    if (s->rtt_us > to->rtt_us)
        to->rtt_us = s->rtt_us;
    if (to->min_rtt_us == 0 || (s->min_rtt_us && s->min_rtt_us < to->min_rtt_us))
        to->min_rtt_us = s->min_rtt_us;
}

static double jain(void)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < b.flows; i++) {
        double v = (double)b.flow[i].bytes;
        sum += v;
        squares += v * v;
    }
    return squares > 0 ? sum * sum / (squares * b.flows) : 0;
}

static int64_t peak_rss(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

static void report(const char *role)
{
    udt_sock_stats st = {0}, one;
    udt_port_stats ps = {0};
    for (int i = 0; i < b.open; i++)
        if (udt_stats_get(b.ctx, b.flow[i].sock, &one) == 0)
            add_stats(&st, &one);
    udt_port_stats_get(b.ctx, b.port, &ps);
    printf("{\"bench\": \"udt\", \"mode\": \"%s\", ", b.threads ? "threads" : "manual");
    if (b.name)
        printf("\"name\": \"%s\", ", b.name);
    bench_print(&b.all, role);
    printf(", \"pkts_sent\": %lld, \"pkts_retrans\": %lld, \"naks_recv\": %lld, \"acks_sent\": "
           "%lld, \"acks_recv\": %lld, \"send_calls\": %lld, \"recv_calls\": %lld, \"rtt_us\": "
           "%lld, \"min_rtt_us\": %lld, \"lim_app_us\": %lld, \"lim_cwnd_us\": %lld, "
           "\"lim_flow_us\": %lld, \"lim_pace_us\": %lld, \"lim_cap_us\": %lld, "
           "\"lim_handshake_us\": %lld, \"lim_none_us\": %lld, \"rcvbuf_bytes\": %lld, "
           "\"max_rss_bytes\": %lld",
           (long long)st.pkts_sent, (long long)st.pkts_retrans, (long long)st.naks_recv,
           (long long)st.acks_sent, (long long)st.acks_recv, (long long)ps.send_calls,
           (long long)ps.recv_calls, (long long)st.rtt_us, (long long)st.min_rtt_us,
           (long long)st.lim_app_us, (long long)st.lim_cwnd_us, (long long)st.lim_flow_us,
           (long long)st.lim_pace_us, (long long)st.lim_cap_us, (long long)st.lim_handshake_us,
           (long long)st.lim_none_us, (long long)ps.rcvbuf_bytes, (long long)peak_rss());
    if (b.flows > 1) {
        printf(", \"jain\": %.5f, \"flow_bytes\": [", jain());
        for (int i = 0; i < b.flows; i++)
            printf("%s%lld", i ? ", " : "", (long long)b.flow[i].bytes);
        printf("]");
    }
    printf("}\n");
    fflush(stdout);
}

/* ---- roles ----------------------------------------------------------------------------------- */
static void open_port(const udt_addr *at)
{
    int err = udt_ctx_new(NULL, &b.ctx);
    if (err)
        die("context", err);
    b.port = udt_port_open(b.ctx, at, b.flags | (b.threads ? 0 : UDT_PORT_MANUAL), b.mss);
    if (b.port < 0)
        die("port", b.port);
}

static udt_sock_opts options(void)
{
    udt_sock_opts o = {.type = 1,
                       .own_peer = !b.plain,
                       .cc = b.cc,
                       .trace = b.trace,
                       .max_bw_Bps = b.bw,
                       .snd_buf_bytes = b.buf_bytes,
                       .rcv_buf_bytes = b.buf_bytes};
    o.psk = b.keyed ? b.key : NULL;
    o.require_key = b.keyed;
    o.plain_data = b.plain_data;
    o.no_extensions = b.plain;
    return o;
}

static void moved(struct flow *f, ssize_t n)
{
    if (b.all.t0 == 0)
        bench_start(&b.all);
    bench_count(&b.all, n);
    f->bytes += n;
    f->drained = false;
}

static void receiver(const char *port)
{
    udt_addr at = {.family = 6, .port = (uint16_t)atoi(port)};
    open_port(&at);
    udt_sock_opts o = options();
    int32_t l = udt_listen(b.ctx, b.port, &o, (uint32_t)b.flows);
    if (l < 0)
        die("listen", l);
    printf("ready\n");
    fflush(stdout);
    while (b.ended < b.flows && !time_over()) {
        struct flow *f = next_ready();
        if (!f) {
            turn(100000);
            continue;
        }
        ssize_t n = udt_recv(b.ctx, f->sock, buf, sizeof buf);
        if (n > 0)
            moved(f, n);
        if (n == sizeof buf || (n > 0 && f->closed))
            wake(f); /* there may be more; otherwise READABLE says when there is */
        else if (n > 0)
            continue;
        else if (n != UDT_E_AGAIN)
            end_flow(f); /* closed by the peer: the end */
        else if (b.n_todo == 0)
            turn(100000);
    }
    report("recv");
    udt_ctx_free(b.ctx);
}

static bool more(void)
{
    return b.limit_us ? !time_over() : b.all.bytes < b.limit_bytes;
}

/* Connects; for 5 s a receiver that is not there yet is waited for. */
static void meet(const udt_addr *to)
{
    udt_sock_opts o = options();
    int64_t end = bench_now_us() + 5000000;
    b.refused = true;
    while (b.connected < b.flows) {
        if (b.refused && b.open) {
            for (int i = 0; i < b.open; i++)
                udt_close(b.ctx, b.flow[i].sock, 0);
            b.open = 0;
            memset(b.table, 0, sizeof b.table);
        }
        b.refused = false;
        /* the first alone: it says whether anybody listens */
        while (b.open < b.flows && (b.open == 0 || b.connected)) {
            int32_t s = udt_connect(b.ctx, b.port, to, &o);
            if (s < 0 || bench_now_us() > end + (int64_t)b.flows * 100000)
                die("connect", s < 0 ? s : UDT_E_UNREACHABLE);
            add_flow(s);
            if (b.open - b.connected >= 64)
                break;
        }
        turn(20000);
        if (b.refused)
            usleep(50000);
    }
}

static void send_some(struct flow *f)
{
    size_t want;
    ssize_t n;
    do {
        want = sizeof buf;
        if (b.limit_bytes && b.limit_bytes - b.all.bytes < (int64_t)want)
            want = (size_t)(b.limit_bytes - b.all.bytes);
        n = udt_send(b.ctx, f->sock, buf, want);
        if (n > 0)
            moved(f, n);
    } while (n > 0 && (size_t)n < want); /* AGAIN: then WRITABLE comes */
    if (n > 0)
        wake(f);
    else if (n != UDT_E_AGAIN && b.limit_bytes)
        die("send", n);
    else if (n != UDT_E_AGAIN)
        end_flow(f); /* the receiver's time was over first */
    else if (b.n_todo == 0)
        turn(100000);
}

static bool all_drained(void)
{
    for (int i = 0; i < b.open; i++)
        if (b.flow[i].bytes && !b.flow[i].drained && !b.flow[i].ended)
            return false;
    return true;
}

static void write_trace(void)
{
    static udt_trace_rec rec[4096];
    uint64_t at = 0, end = udt_trace_count(b.trace);
    FILE *out = b.trace ? fopen(b.trace_file, "wb") : NULL;
    if (!out)
        die(b.trace_file, UDT_E_SYS);
    while (at < end) {
        size_t n = udt_trace_read(b.trace, &at, rec, sizeof rec / sizeof *rec);
        if (fwrite(rec, sizeof *rec, n, out) != n)
            die(b.trace_file, UDT_E_SYS);
    }
    if (fclose(out) != 0)
        die(b.trace_file, UDT_E_SYS);
    udt_trace_free(b.trace);
}

static void sender(const char *host, const char *port)
{
    if (b.trace_file)
        b.trace = udt_trace_new(1 << 20);
    udt_addr to = parse_addr(host, port), at = {.family = to.family};
    memset(buf, 0x55, sizeof buf);
    open_port(&at);
    meet(&to);
    while (more() && b.ended < b.flows) {
        struct flow *f = next_ready();
        if (f)
            send_some(f);
        else
            turn(100000);
    }
    b.head = b.n_todo = 0;
    while (!b.abandon && !all_drained())
        turn(1000000);
    if (!b.abandon)
        b.all.t1 = bench_now_us();
    report("send");
    for (int i = 0; i < b.open; i++)
        udt_close(b.ctx, b.flow[i].sock, b.abandon ? 0 : 1000);
    for (int i = 0; i < 20; i++)
        turn(5000);
    udt_ctx_free(b.ctx);
    if (b.trace_file)
        write_trace();
}

/* ---- the command line ------------------------------------------------------------------------ */
static void parse_amount(const char *s)
{
    char *end;
    double v = strtod(s, &end);
    if (v <= 0)
        die("amount", 0);
    if (*end == 's')
        b.limit_us = (int64_t)(v * 1e6);
    else
        b.limit_bytes = (int64_t)(v * (*end == 'G'   ? 1e9
                                       : *end == 'M' ? 1e6
                                       : *end == 'k' ? 1e3
                                                     : 1));
}

static void parse_key(const char *s)
{
    unsigned byte;
    for (size_t i = 0; i < sizeof b.key; i++, s += 2) {
        if (strspn(s, "0123456789abcdefABCDEF") < 2 || sscanf(s, "%2x", &byte) != 1)
            die("--key takes 64 hexadecimal digits", 0);
        b.key[i] = (uint8_t)byte;
    }
    b.keyed = true;
}

static bool parse_flag(const char *a)
{
    if (strcmp(a, "--threads") == 0)
        b.threads = true;
    else if (strcmp(a, "--plain") == 0)
        b.plain = true;
    else if (strcmp(a, "--plain-data") == 0)
        b.plain_data = true;
    else if (strcmp(a, "--abandon") == 0)
        b.abandon = true;
    else if (strcmp(a, "--no-gso") == 0)
        b.flags |= UDT_PORT_NO_GSO;
    else if (strcmp(a, "--no-gro") == 0)
        b.flags |= UDT_PORT_NO_GRO;
    else
        return strcmp(a, "--json") == 0;
    return true;
}

static bool parse_option(const char *a, const char *v)
{
    if (strcmp(a, "--cpu") == 0)
        pin(atoi(v));
    else if (strcmp(a, "--mss") == 0)
        b.mss = (uint16_t)atoi(v);
    else if (strcmp(a, "--cc") == 0)
        b.cc = v;
    else if (strcmp(a, "--name") == 0)
        b.name = v;
    else if (strcmp(a, "--trace") == 0)
        b.trace_file = v;
    else if (strcmp(a, "--bw") == 0)
        b.bw = strtoll(v, NULL, 10);
    else if (strcmp(a, "--buf") == 0)
        b.buf_bytes = (uint32_t)strtoul(v, NULL, 10);
    else if (strcmp(a, "--key") == 0)
        parse_key(v);
    else if (strcmp(a, "--flows") == 0)
        b.flows = atoi(v);
    else if (strcmp(a, "--seconds") == 0)
        b.limit_us = (int64_t)(atof(v) * 1e6);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    const char *pos[4] = {0};
    int npos = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (parse_flag(a))
            continue;
        if (i + 1 < argc && parse_option(a, argv[i + 1]))
            i++;
        else if (a[0] != '-' && npos < 4)
            pos[npos++] = a;
        else
            die(a, 0);
    }
    if (b.flows < 1 || b.flows > MAX_FLOWS)
        die("--flows", 0);
    if (npos == 2 && strcmp(pos[0], "recv") == 0) {
        receiver(pos[1]);
    } else if (npos == 4 && strcmp(pos[0], "send") == 0) {
        parse_amount(pos[3]);
        sender(pos[1], pos[2]);
    } else {
        die("bench_udt recv PORT | send HOST PORT AMOUNT", 0);
    }
    return 0;
}
