/* Beginnings, ends and refusals of ports and sockets. */
#include "test_io.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(io_port_in_use)
{
    tio *a = tio_open(4, 0);
    CHECK_INT(udt_port_open(a->ctx, &a->at, 0, 0), UDT_E_INUSE);
    udt_addr bad = {.family = 5};
    CHECK_INT(udt_port_open(a->ctx, &bad, 0, 0), UDT_E_INVAL);
    udt_addr far = {.family = 4, .ip = {192, 0, 2, 1}};
    CHECK_INT(udt_port_open(a->ctx, &far, 0, 0), UDT_E_SYS);
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    CHECK_INT(udt_port_close(a->ctx, a->port), UDT_E_NOSOCK);
    a->port = udt_port_open(a->ctx, &a->at, 0, 0); /* free again at once */
    CHECK(a->port > 0);
    CHECK(udt_listen(a->ctx, a->port, NULL, 0) > 0);
    CHECK_INT(udt_listen(a->ctx, a->port, NULL, 0), UDT_E_INUSE);
    tio_free(a);
}

TEST(io_connect_to_nobody_is_unreachable)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    CHECK_INT(udt_port_close(b->ctx, b->port), 0);
    int64_t t0 = tio_now_us();
    int32_t s = udt_connect(a->ctx, a->port, &b->at, NULL);
    udt_event ev = tio_wait(a, UDT_IO_FAILED, s, 5000);
    CHECK_INT(ev.err, UDT_E_UNREACHABLE);
    CHECK(tio_now_us() - t0 < 2000000);
    uint8_t c = 0;
    CHECK_INT(udt_send(a->ctx, s, &c, 1), UDT_E_UNREACHABLE);
    CHECK_INT(udt_recv(a->ctx, s, &c, 1), UDT_E_UNREACHABLE);
    tio_close(a, s);
    tio_free(a);
    tio_free(b);
}

TEST(io_connect_times_out)
{
    tio *a = tio_open(4, 0);
    int mute = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    CHECK_INT(bind(mute, (struct sockaddr *)&in, len), 0);
    CHECK_INT(getsockname(mute, (struct sockaddr *)&in, &len), 0);
    udt_addr to = tio_loopback(4, ntohs(in.sin_port));
    udt_sock_opts o = {.type = 1, .connect_timeout_ms = 400};
    int64_t t0 = tio_now_us();
    int32_t s = udt_connect(a->ctx, a->port, &to, &o);
    CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_TIMEOUT);
    CHECK(tio_now_us() - t0 >= 350000);
    tio_close(a, s);
    o.tag = 7; /* a rendezvous that nobody keeps */
    s = udt_rendezvous(a->ctx, a->port, &to, &o);
    CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_TIMEOUT);
    tio_close(a, s);
    close(mute);
    tio_free(a);
}

TEST(io_type_mismatch_is_rejected)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts stream = {.type = 1}, msg = {.type = 2};
    CHECK(udt_listen(b->ctx, b->port, &stream, 0) > 0);
    int32_t s = udt_connect(a->ctx, a->port, &b->at, &msg);
    CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_REJECTED);
    tio_free(a);
    tio_free(b);
}

TEST(io_port_closes_with_live_sockets)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb;
    static uint8_t buf[100000];
    tio_pair(a, b, &o, &sa, &sb);
    CHECK(udt_send(a->ctx, sa, buf, sizeof buf) > 0);
    int32_t waiting = udt_rendezvous(a->ctx, a->port, &b->at, &(udt_sock_opts){.tag = 5});
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    tio_wait(a, UDT_IO_CLOSED, sa, 1000);
    tio_wait(a, UDT_IO_CLOSED, waiting, 1000);
    CHECK_INT(udt_send(a->ctx, sa, buf, 1), UDT_E_NOSOCK);
    CHECK_INT(udt_connect(a->ctx, a->port, &b->at, &o), UDT_E_NOSOCK);
    tio_wait(b, UDT_IO_PEER_CLOSED, sb, 5000); /* the last shutdown was sent */
    tio_free(a);
    tio_free(b);
}

static void *close_port_thd(void *arg)
{
    tio *t = arg;
    udt_port_close(t->ctx, t->port);
    return NULL;
}

/* A context may be freed while another thread is still closing one of its ports. */
TEST(io_context_is_freed_while_a_port_closes)
{
    for (int round = 0; round < 50; round++) {
        tio *a = tio_open(4, 0);
        udt_addr at;
        pthread_t thd;
        CHECK(udt_connect(a->ctx, a->port,
                          &(udt_addr){.family = 4, .ip = {127, 0, 0, 1}, .port = 9}, NULL) > 0);
        CHECK_INT(pthread_create(&thd, NULL, close_port_thd, a), 0);
        while (udt_port_addr(a->ctx, a->port, &at) == 0)
            sched_yield(); /* until the close has begun */
        udt_ctx_free(a->ctx);
        CHECK_INT(pthread_join(thd, NULL), 0);
        free(a);
    }
}

TEST(io_nothing_leaks_over_many_ports)
{
    udt_ctx *ctx;
    udt_addr at = tio_loopback(4, 0);
    CHECK_INT(udt_ctx_new(NULL, &ctx), 0);
    int before = tio_fds();
    for (int i = 0; i < 300; i++) {
        int32_t p = udt_port_open(ctx, &at, 0, 0);
        CHECK(p > 0);
        if (i % 3 == 0)
            CHECK(udt_listen(ctx, p, NULL, 0) > 0);
        if (i % 3 == 1)
            CHECK(udt_rendezvous(ctx, p, NULL, &(udt_sock_opts){.tag = 1}) > 0);
        CHECK_INT(udt_port_close(ctx, p), 0);
    }
    CHECK_INT(tio_fds(), before);
    udt_ctx_free(ctx);
    CHECK_INT(tio_fds(), before - 1);
}

TEST(io_descriptors_close_on_exec)
{
    tio *a = tio_open(4, 0);
    for (int fd = 3; fd < 64; fd++) {
        char path[64], to[128];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, to, sizeof to - 1);
        if (n <= 0)
            continue;
        to[n] = 0;
        if (strncmp(to, "socket:", 7) == 0 || strstr(to, "eventfd") || strstr(to, "timerfd"))
            CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    tio_free(a);
}

TEST(io_fork_guard)
{
    tio *a = tio_open(4, 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        udt_event ev;
        udt_addr to = tio_loopback(4, 9);
        uint8_t c = 0;
        uint64_t inst;
        int bad = 0;
        bad += udt_ctx_poll(a->ctx, &ev, 1) != UDT_E_FORKED;
        bad += udt_ctx_wakeup_fd(a->ctx) != UDT_E_FORKED;
        bad += udt_port_open(a->ctx, &to, 0, 0) != UDT_E_FORKED;
        bad += udt_connect(a->ctx, a->port, &to, NULL) != UDT_E_FORKED;
        bad += udt_listen(a->ctx, a->port, NULL, 0) != UDT_E_FORKED;
        bad += udt_send(a->ctx, 1, &c, 1) != UDT_E_FORKED;
        bad += udt_recv(a->ctx, 1, &c, 1) != UDT_E_FORKED;
        bad += udt_close(a->ctx, 1, 0) != UDT_E_FORKED;
        bad += udt_port_close(a->ctx, a->port) != UDT_E_FORKED;
        bad += sgmp_open(a->ctx, a->port, true) != UDT_E_FORKED;
        bad += sgmp_instance(a->ctx, a->port, &inst) != UDT_E_FORKED;
        int before = tio_fds();
        udt_ctx_free(a->ctx);           /* gives the inherited descriptors back */
        bad += tio_fds() != before - 4; /* of the context one, of the port three */
        _exit(bad);
    }
    int status = -1;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    CHECK(udt_listen(a->ctx, a->port, NULL, 0) > 0); /* the parent lives on */
    tio_free(a);
}

/* Wake-ups so far of all loop threads of this process. */
static int64_t switches(void)
{
    DIR *d = opendir("/proc/self/task");
    int64_t sum = 0;
    struct dirent *e;
    CHECK(d);
    while ((e = readdir(d)) != NULL) {
        char path[300], line[200];
        long long v;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        bool loop = false;
        while (f && fgets(line, sizeof line, f)) {
            loop |= strncmp(line, "Name:\tudt-", 10) == 0;
            if (loop && sscanf(line, "voluntary_ctxt_switches: %lld", &v) == 1)
                sum += v;
        }
        if (f)
            fclose(f);
    }
    closedir(d);
    return sum;
}

TEST_ALONE(io_idle_ports_sleep)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb;
    CHECK_INT(sgmp_open(b->ctx, b->port, true), UDT_OK);
    tio *c = tio_open(4, 0);
    tio_pair(a, c, &o, &sa, &sb);
    usleep(1500000); /* connection set-up and its snapshots are over */
    int64_t n = switches();
    usleep(3000000);
    n = switches() - n;
    if (n > 2 * 3) /* all of them together at most twice a second */
        test_fail(__FILE__, __LINE__, "%" PRId64 " wake-ups of idle loops in 3 s", n);
    tio_free(a);
    tio_free(b);
    tio_free(c);
}

static void run_both(tio *a, tio *b, int64_t limit)
{
    CHECK(tio_now_us() < limit);
    CHECK_INT(udt_port_run(a->ctx, a->port, 1000), 0);
    CHECK_INT(udt_port_run(b->ctx, b->port, 1000), 0);
    tio_pull(a, 0);
    tio_pull(b, 0);
}

static void manual_pair(tio *a, tio *b, const udt_sock_opts *o, int32_t *sa, int32_t *sb)
{
    udt_event ev;
    int64_t limit = tio_now_us() + 5000000;
    bool connected = false;
    int32_t l = udt_listen(b->ctx, b->port, o, 0);
    *sa = udt_connect(a->ctx, a->port, &b->at, o);
    *sb = 0;
    CHECK(l > 0 && *sa > 0);
    while (!connected || !*sb) {
        run_both(a, b, limit);
        connected |= tio_take(a, UDT_IO_CONNECTED, *sa, &ev);
        *sb = tio_take(b, UDT_IO_ACCEPTED, 0, &ev) ? ev.sock : *sb;
    }
}

TEST(io_manual_port)
{
    tio *a = tio_open(4, UDT_PORT_MANUAL), *b = tio_open(4, UDT_PORT_MANUAL);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    uint8_t buf[3000], in[3000];
    udt_event ev;
    int32_t sa, sb;
    manual_pair(a, b, &o, &sa, &sb);
    int64_t limit = tio_now_us() + 5000000;
    tio_fill(buf, sizeof buf, 1, 0);
    CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), sizeof buf);
    size_t got = 0;
    while (got < sizeof buf) {
        run_both(a, b, limit);
        ssize_t n = udt_recv(b->ctx, sb, in + got, sizeof in - got);
        CHECK(n > 0 || n == UDT_E_AGAIN);
        got += n > 0 ? (size_t)n : 0;
    }
    tio_check(in, sizeof in, 1, 0);
    udt_sock_stats st;
    CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
    CHECK(st.bytes_sent >= 3000);
    CHECK_INT(udt_close(a->ctx, sa, 0), 0);
    for (int i = 0; i < 20; i++)
        CHECK_INT(udt_port_run(a->ctx, a->port, 1000), 0);
    tio_pull(a, 0);
    CHECK(tio_take(a, UDT_IO_CLOSED, sa, &ev));
    tio_free(a);
    tio_free(b);
}

TEST(io_statistics)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .own_peer = true};
    int32_t sa, sb;
    static uint8_t buf[200000];
    tio_pair(a, b, &o, &sa, &sb);
    CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), sizeof buf);
    tio_wait(a, UDT_IO_DRAINED, sa, 5000);
    usleep(600000);
    udt_sock_stats st;
    udt_port_stats ps;
    CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
    CHECK(st.bytes_sent >= (int64_t)sizeof buf);
    CHECK_INT(udt_stats_get(b->ctx, sb, &st), 0);
    CHECK_INT(st.bytes_recv, sizeof buf);
    CHECK_INT(udt_port_stats_get(b->ctx, b->port, &ps), 0);
    CHECK(ps.dgrams_in > 0 && ps.bytes_in > (int64_t)sizeof buf && ps.dgrams_out > 0);
    CHECK(ps.recv_calls > 0 && ps.send_calls > 0);
    CHECK_INT(ps.sockets >= 1, 1);
    CHECK_INT(udt_stats_get(b->ctx, 12345, &st), UDT_E_NOSOCK);
    tio_free(a);
    tio_free(b);
}

/* The last numbers of a socket are there when its CLOSED event is, however short its life was. */
TEST(io_final_statistics)
{
    for (int foreign = 0; foreign < 2; foreign++) {
        tio *a = tio_open(4, 0), *b = tio_open(4, 0);
        udt_sock_opts o = {.type = 1, .own_peer = !foreign};
        int32_t sa, sb;
        static uint8_t buf[200000], got[sizeof buf];
        udt_sock_stats st;
        tio_pair(a, b, &o, &sa, &sb);
        CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), sizeof buf);
        CHECK_INT(udt_close(a->ctx, sa, -1), 0);
        tio_wait(a, UDT_IO_CLOSED, sa, 5000);
        CHECK_INT(udt_stats_get(a->ctx, sa, &st), 0);
        CHECK_INT(st.bytes_sent, sizeof buf);
        CHECK_INT(st.snd_queue_bytes, 0);
        tio_wait(b, UDT_IO_PEER_CLOSED, sb, 5000);
        for (size_t have = 0; have < sizeof buf;) {
            ssize_t n = udt_recv(b->ctx, sb, got, sizeof got);
            CHECK(n > 0 || n == UDT_E_AGAIN);
            have += n > 0 ? (size_t)n : 0;
        }
        tio_close(b, sb);
        CHECK_INT(udt_stats_get(b->ctx, sb, &st), 0);
        CHECK_INT(st.bytes_recv, sizeof buf);
        for (int i = 0; i < 100 && udt_stats_get(b->ctx, sb, &st) == 0; i++) {
            usleep(1000); /* the loop lets go of the handle just after it has said CLOSED */
            tio_pull(b, 0);
        }
        CHECK_INT(udt_stats_get(b->ctx, sb, &st), UDT_E_NOSOCK);
        tio_free(a);
        tio_free(b);
    }
}

/* The last shutdown to a foreign peer goes out together with CLOSED, in whatever turn of the loop
 * that is: it must not wait for what wakes the loop next, which may be nothing. */
TEST(io_closed_comes_with_the_last_shutdown)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1, .no_extensions = true};
    static uint8_t buf[100];
    int at_once = 0;
    for (int i = 0; i < 40; i++) {
        int32_t sa, sb;
        tio_pair(a, b, &o, &sa, &sb);
        CHECK_INT(udt_send(a->ctx, sa, buf, sizeof buf), sizeof buf);
        CHECK_INT(udt_close(a->ctx, sa, -1), 0);
        tio_wait(b, UDT_IO_PEER_CLOSED, sb, 5000);
        int64_t said = tio_now_us();
        tio_wait(a, UDT_IO_CLOSED, sa, 1000);
        at_once += tio_now_us() - said < 60000;
        CHECK_INT(udt_close(b->ctx, sb, 0), 0);
        tio_wait(b, UDT_IO_CLOSED, sb, 1000);
    }
    CHECK(at_once > 30);
    tio_free(a);
    tio_free(b);
}

/* The length of a message that does not fit is told as on a port with a thread. */
TEST(io_manual_port_messages_short_buffer)
{
    tio *a = tio_open(4, UDT_PORT_MANUAL), *b = tio_open(4, UDT_PORT_MANUAL);
    udt_sock_opts o = {.type = 2};
    uint8_t buf[5000], in[100];
    int32_t sa, sb;
    manual_pair(a, b, &o, &sa, &sb);
    int64_t limit = tio_now_us() + 5000000;
    for (size_t cap = 0; cap <= sizeof in; cap += sizeof in / 2) {
        ssize_t n;
        tio_fill(buf, sizeof buf, cap, 0);
        CHECK_INT(udt_sendmsg(a->ctx, sa, buf, sizeof buf, -1, true), 0);
        do
            run_both(a, b, limit);
        while ((n = udt_recvmsg(b->ctx, sb, cap ? in : NULL, cap)) == UDT_E_AGAIN);
        CHECK_INT(n, sizeof buf);
        tio_check(in, cap, cap, 0);
    }
    CHECK_INT(udt_recvmsg(b->ctx, sb, in, sizeof in), UDT_E_AGAIN);
    tio_free(a);
    tio_free(b);
}
