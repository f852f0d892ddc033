/* Whatever allocation or descriptor fails while something is opened: an error comes back, and what
 * had been taken until then is given back. */
#include "io/priv.h"
#include "test_alloc.h"
#include "test_xfer.h"

#include <sys/resource.h>

static int file; /* to be sent */

typedef struct made {
    udt_ctx *ctx;
    int32_t port;
    udt_addr at;
    int32_t sock; /* of the last step, where it makes one */
} made;

/* 0 or more, or an error. */
typedef int64_t (*opener)(made *m);

/* The last step is the one that shall fail. */
struct life {
    const char *name;
    opener step[4];
    int end; /* event that tells its owner that it failed */
};

static int64_t make_ctx(made *m)
{
    return udt_ctx_new(NULL, &m->ctx);
}

static int64_t make_port(made *m)
{
    udt_addr any = tio_loopback(4, 0);
    m->port = udt_port_open(m->ctx, &any, UDT_PORT_MANUAL, 0);
    return m->port < 0 ? m->port : udt_port_addr(m->ctx, m->port, &m->at);
}

static int64_t make_thread(made *m)
{
    udt_addr any = tio_loopback(6, 0);
    return udt_port_open(m->ctx, &any, 0, 0);
}

static int64_t make_gmp(made *m)
{
    return sgmp_open(m->ctx, m->port, false);
}

static int64_t make_key(made *m)
{
    sgmp_key k = {.key_id = 7, .alg = SGMP_ALG_AES256GCM, .principal = "x"};
    return sgmp_key_add(m->ctx, m->port, &k);
}

static int64_t make_message(made *m)
{
    static const uint8_t body[3000];
    sgmp_dest to = {tio_loopback(4, 9), 0};
    int64_t id = sgmp_send(m->ctx, m->port, &to, body, 100, NULL);
    int64_t call = sgmp_call(m->ctx, m->port, &to, 1, body, sizeof body, NULL);
    return id < call ? id : call;
}

static int64_t make_group(made *m)
{
    static const uint8_t body[100];
    sgmp_dest to[3] = {{tio_loopback(4, 9), 0}, {tio_loopback(4, 10), 0}, {tio_loopback(4, 11), 0}};
    sgmp_group_opts o = {.call = true};
    return sgmp_group(m->ctx, m->port, to, 3, body, sizeof body, &o);
}

static int64_t make_tls(made *m)
{
    const int64_t left = alloc_left();
    int err;
    while ((err = udt_port_listen_tls(m->ctx, m->port, 0)) == UDT_E_INUSE) {
        alloc_fail(0); /* another number of a port is not what is tried here */
        CHECK_INT(udt_port_close(m->ctx, m->port), 0);
        CHECK_INT(make_port(m), 0);
        alloc_fail(left);
    }
    return err;
}

static int64_t make_listener(made *m)
{
    return udt_listen(m->ctx, m->port, NULL, 0);
}

static int64_t make_client(made *m)
{
    udt_addr to = tio_loopback(4, 9);
    return m->sock = udt_connect(m->ctx, m->port, &to, NULL);
}

static int64_t make_keyed(made *m)
{
    static const uint8_t key[UDT_PSK_BYTES] = {1};
    udt_addr to = tio_loopback(4, 9);
    return m->sock = udt_open_keyed(m->ctx, m->port, &to, NULL, key, true);
}

static int64_t make_transfer(made *m)
{
    udt_ticket k = xf_ticket(true);
    udt_addr to = tio_loopback(4, 9);
    udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR, .length = 1000};
    static const uint32_t crc = 0;
    o.flags |= UDT_XFER_CHECK;
    return m->sock = udt_xfer_start_checked(m->ctx, m->port, &to, &k, file, &o, &crc, 1);
}

static int64_t make_stripes(made *m)
{
    udt_ticket k = xf_ticket(true);
    udt_addr to = tio_loopback(4, 9);
    udt_xfer_opts o = {.flags = UDT_XFER_SEND | UDT_XFER_INITIATOR,
                       .length = 1000,
                       .tcp_port = 9,
                       .tcp_stripes = 3,
                       .udp_wait_ms = -1};
    int32_t x = udt_xfer_start(m->ctx, m->port, &to, &k, file, &o);
    return x;
}

/* The n-th descriptor that is opened from now on cannot be; returns the limit to go back to. */
static struct rlimit fail_fd(rlim_t n)
{
    struct rlimit old, low;
    int next = dup(0);
    close(next);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)next + n - 1;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &low), 0);
    return old;
}

/* Whoever has a handle hears that nothing comes of it, soon. */
static void check_heard(made *m, const struct life *l, int64_t n)
{
    udt_event ev[64];
    int kinds = 0;
    for (int i = 0, k = udt_ctx_poll(m->ctx, ev, 64); i < k; i++)
        if (ev[i].kind == l->end && ev[i].sock == m->sock)
            kinds++;
    if (kinds != 1)
        test_fail(__FILE__, __LINE__, "%s, allocation %" PRId64 ": %d events of its end", l->name,
                  n, kinds);
}

/* All steps, the last with its n-th allocation or descriptor failing. False when that does not
 * matter: it makes fewer, or does without. */
static bool fail_nth(const struct life *l, int64_t n, bool fd)
{
    made m = {0};
    bool failed = false;
    int fds = tio_fds();
    int64_t held = alloc_held();
    for (int i = 0; i < 4 && l->step[i]; i++) {
        bool last = i == 3 || !l->step[i + 1];
        struct rlimit old;
        if (last && fd)
            old = fail_fd((rlim_t)n);
        alloc_fail(last && !fd ? n : 0);
        int64_t r = l->step[i](&m);
        failed = last && (fd ? r < 0 : alloc_failed());
        alloc_fail(0);
        if (last && fd)
            CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (failed && fd && r == UDT_E_NOMEM)
            test_fail(__FILE__, __LINE__, "%s: a descriptor is not memory", l->name);
        if (!failed && r < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", l->name, udt_err_text((int)r));
        if (last && m.port > 0) /* what was begun and is carried out later */
            for (int k = 0; k < 3; k++)
                CHECK_INT(udt_port_run(m.ctx, m.port, 1000), 0);
    }
    if (failed && l->end && m.sock > 0)
        check_heard(&m, l, n);
    udt_ctx_free(m.ctx);
    const char *what = fd ? "descriptor" : "allocation";
    if (tio_fds() != fds)
        test_fail(__FILE__, __LINE__, "%s, %s %" PRId64 ": %d descriptors more", l->name, what, n,
                  tio_fds() - fds);
    if (alloc_held() != held)
        test_fail(__FILE__, __LINE__, "%s, %s %" PRId64 ": %" PRId64 " blocks more", l->name, what,
                  n, alloc_held() - held);
    return failed;
}

static const struct life lives[] = {
    {"context", {make_ctx}, 0},
    {"port", {make_ctx, make_port}, 0},
    {"port with a thread", {make_ctx, make_thread}, 0},
    {"GMP", {make_ctx, make_port, make_gmp}, 0},
    {"key", {make_ctx, make_port, make_gmp, make_key}, 0},
    {"message", {make_ctx, make_port, make_gmp, make_message}, 0},
    {"group", {make_ctx, make_port, make_gmp, make_group}, 0},
    {"TLS", {make_ctx, make_port, make_tls}, 0},
    {"listener", {make_ctx, make_port, make_listener}, 0},
    {"client", {make_ctx, make_port, make_client}, UDT_IO_FAILED},
    {"keyed", {make_ctx, make_port, make_keyed}, UDT_IO_FAILED},
    {"transfer", {make_ctx, make_port, make_transfer}, UDT_IO_XFER_DONE},
    {"stripes", {make_ctx, make_port, make_stripes}, 0},
};
enum { LIVES = sizeof lives / sizeof *lives };

TEST(io_without_memory_everything_is_given_back)
{
    file = xf_file(1000, 1);
    for (int i = 0; i < LIVES; i++) {
        int64_t n = 1;
        fail_nth(&lives[i], INT64_MAX, false); /* what is made once for all */
        while (fail_nth(&lives[i], n, false))
            n++;
        printf("%s: %" PRId64 " allocations\n", lives[i].name, n - 1);
        CHECK(n > 1);
    }
    close(file);
}

TEST(io_without_descriptors_everything_is_given_back)
{
    int failed = 0;
    file = xf_file(1000, 1);
    for (int i = 0; i < LIVES; i++)
        for (int64_t n = 1; n <= 8; n++)
            failed += fail_nth(&lives[i], n, true);
    printf("%d failures\n", failed);
    CHECK(failed >= 6);
    close(file);
}

/* The queue of events cannot grow: what GMP tells waits in the port. */
TEST(io_gmp_events_wait_for_memory)
{
    enum { ALL = 200 };
    static const sgmp_opts o = {.deadline_ms = 1};
    made m = {0};
    int64_t held = alloc_held(), first = 0;
    int ended[ALL] = {0}, all = 0, others = 0;
    CHECK_INT(make_ctx(&m), 0);
    CHECK_INT(make_port(&m), 0);
    CHECK_INT(make_gmp(&m), 0);
    sgmp_dest to = {tio_loopback(4, 9), 0};
    for (int i = 0; i < ALL; i++) {
        int64_t id = sgmp_send(m.ctx, m.port, &to, NULL, 0, &o);
        CHECK(id > 0);
        first = first ? first : id;
    }
    alloc_fail_all(true);
    int64_t end = tio_now_us() + 10000; /* all are past their deadlines by then */
    for (int k = 0; k < 10 || tio_now_us() < end; k++)
        CHECK_INT(udt_port_run(m.ctx, m.port, 1000), 0);
    /* One more, which is refused at once, is told so by its call. */
    sgmp_dest bad = {to.addr, 99};
    CHECK_INT(sgmp_send(m.ctx, m.port, &bad, NULL, 0, &o), UDT_E_NOKEY);
    CHECK(udt_connect(m.ctx, m.port, &to.addr, NULL) == UDT_E_NOMEM);
    udt_event ev[32], other = {.kind = UDT_IO_PORT_FAILED, .port = m.port, .sock = m.port};
    io_emit(m.ctx, &other);
    for (int i = 0; i < 1000 && all < ALL; i++) {
        int n = udt_ctx_poll(m.ctx, ev, 32);
        for (int k = 0; k < n; k++)
            if (ev[k].kind == SGMP_EV_OUTCOME) {
                CHECK_INT(ended[(int64_t)ev[k].g.id - first]++, 0);
                all++;
            } else {
                others += ev[k].kind == UDT_IO_PORT_FAILED;
            }
        CHECK_INT(udt_port_run(m.ctx, m.port, 1000), 0);
    }
    alloc_fail_all(false);
    CHECK_INT(all, ALL);
    CHECK_INT(others, 1);
    udt_ctx_free(m.ctx);
    CHECK_INT(alloc_held(), held);
}

enum { TIMERS = 200 };
static io_timer timer[TIMERS];
static int fired[TIMERS];

static void fire(io_port *p, void *arg)
{
    int i = (int)((io_timer *)arg - timer);
    CHECK(p->now >= timer[i].at);
    fired[i]++;
}

/* Some find room in the queue and some do not: each fires once, or is stopped or moved. */
TEST(io_timers_need_no_memory)
{
    made m = {0};
    CHECK_INT(make_ctx(&m), 0);
    CHECK_INT(make_port(&m), 0);
    io_port *p = io_handle_get(m.ctx, m.port, IO_KIND_PORT, NULL);
    io_manual_enter(p);
    memset(fired, 0, sizeof fired);
    for (int i = 0; i < TIMERS; i++) {
        timer[i] = (io_timer){.fn = fire, .arg = &timer[i], .slot = -1};
        alloc_fail_all(i >= 20 && i < 150);
        io_timer_arm(p, &timer[i], p->now + 1000 + i * 37 % TIMERS);
    }
    alloc_fail_all(false);
    CHECK_INT(io_timers_next(&p->timers), p->now + 1000);
    for (int i = 0; i < TIMERS; i += 2)
        io_timer_stop(p, &timer[i]);
    for (int i = 1; i < TIMERS; i += 4)
        io_timer_arm(p, &timer[i], p->now + 5000);
    io_manual_leave(p);
    for (int k = 0; k < 20; k++)
        CHECK_INT(udt_port_run(m.ctx, m.port, 1000), 0);
    for (int i = 0; i < TIMERS; i++)
        CHECK_INT(fired[i], i & 1);
    io_handle_put(m.ctx, m.port);
    udt_ctx_free(m.ctx);
}

/* A writer without memory for what it writes is told to come again, and when; it does not spin. */
TEST(io_writer_without_memory_is_told_to_wait)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    static const uint8_t buf[100000];
    int32_t sa, sb;
    tio_pair(a, b, &o, &sa, &sb);
    tio_drop(a, UDT_IO_WRITABLE, sa);
    alloc_fail_all(true);
    ssize_t n = udt_send(a->ctx, sa, buf, sizeof buf);
    alloc_fail_all(false);
    CHECK_INT(n, UDT_E_AGAIN);
    tio_wait(a, UDT_IO_WRITABLE, sa, 5000);
    CHECK(udt_send(a->ctx, sa, buf, sizeof buf) > 0);
    tio_free(a);
    tio_free(b);
}
