/* Calls that wait for each other (io/hold.c): how many, how long, and what becomes of them when
 * something ends meanwhile. */
#include "io/priv.h"
#include "test_io_gmp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, BYTES = 900 };

/* What this thread gives to the kernel. */
static _Thread_local struct {
    int calls, messages;
    int refuse; /* messages that the kernel would cut: with this error */
} sent;

static int on_send(const struct mmsghdr *m, unsigned n)
{
    for (unsigned i = 0; i < n && sent.refuse; i++)
        if (m[i].msg_hdr.msg_controllen)
            return sent.refuse;
    sent.calls++;
    sent.messages += (int)n;
    return 0;
}

static void watch(bool on)
{
    tio_on_send = on ? on_send : NULL;
    memset(&sent, 0, sizeof sent);
}

static void calls(tio *a, const sgmp_dest *to, int n)
{
    uint8_t buf[BYTES];
    for (int i = 0; i < n; i++) {
        tio_fill(buf, sizeof buf, 7, 0);
        CHECK(sgmp_call(a->ctx, a->port, to, 42, buf, sizeof buf, NULL) > 0);
    }
}

/* So many come, whole, and are answered. */
static void serve(tio *a, tio *b, int n)
{
    for (int i = 0; i < n; i++) {
        udt_event ev = tio_wait(b, SGMP_EV_REQUEST, 0, 5000);
        CHECK_INT(ev.g.len, BYTES);
        tio_check(ev.g.data, ev.g.len, 7, 0);
        CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 0, NULL, 0), 0);
        udt_event_release(b->ctx, &ev);
    }
    for (int i = 0; i < n; i++) {
        udt_event ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 5000);
        CHECK_INT(ev.g.status, 0);
        udt_event_release(a->ctx, &ev);
    }
}

static void acquainted(tio **a, tio **b, uint32_t flags, sgmp_dest *to)
{
    gmp_pair(a, b, flags);
    *to = dest(*b);
    calls(*a, to, 1);
    serve(*a, *b, 1);
}

TEST(io_hold_calls_leave_together)
{
    for (int single = 0; single < 2; single++) {
        tio *a, *b;
        sgmp_dest to;
        acquainted(&a, &b, single ? UDT_PORT_NO_GSO : 0, &to);
        udt_port_stats st;
        CHECK_INT(udt_port_stats_get(a->ctx, a->port, &st), 0);
        for (int tries = 0;; tries++) { /* but for a thread that was stopped for a millisecond */
            watch(true);
            sgmp_hold(a->ctx);
            calls(a, &to, MOST - 1);
            CHECK_INT(sent.calls, 0);
            sgmp_release(a->ctx);
            int kernel = sent.calls, messages = sent.messages;
            watch(false);
            serve(a, b, MOST - 1);
            if (kernel == 1 && messages == (single || !st.gso ? MOST - 1 : 1))
                break;
            CHECK(tries < 500);
        }
        tio_free(a);
        tio_free(b);
    }
}

TEST(io_hold_ends_when_there_are_many)
{
    tio *a, *b;
    sgmp_dest to;
    acquainted(&a, &b, 0, &to);
    sgmp_hold(a->ctx);
    for (int tries = 0;; tries++) {
        watch(true);
        calls(a, &to, MOST);
        int kernel = sent.calls;
        watch(false);
        serve(a, b, MOST);
        if (kernel == 1)
            break;
        CHECK(tries < 500);
    }
    sgmp_release(a->ctx);
    tio_free(a);
    tio_free(b);
}

/* A thread that never comes back keeps nothing from leaving. */
TEST(io_hold_is_not_for_long)
{
    tio *a, *b;
    sgmp_dest to;
    acquainted(&a, &b, 0, &to);
    sgmp_hold(a->ctx);
    int soon = 0;
    for (int i = 0; i < 20; i++) {
        int64_t begin = tio_now_us();
        calls(a, &to, 2);
        serve(a, b, 2);
        soon += tio_now_us() - begin < 50000;
    }
    CHECK(soon > 10); /* a loop also looks at its counters four times a second, and sends */
    sgmp_release(a->ctx);
    tio_free(a);
    tio_free(b);
}

TEST(io_hold_is_for_one_port_at_a_time)
{
    tio *a, *b, *c, *d;
    sgmp_dest b_at, d_at;
    acquainted(&a, &b, 0, &b_at);
    acquainted(&c, &d, 0, &d_at);
    for (int tries = 0;; tries++) { /* but for a thread that was stopped for a millisecond */
        int after[4];
        watch(true);
        sgmp_hold(a->ctx);
        calls(a, &b_at, 1);
        calls(c, &d_at, 1); /* another context, which nobody holds */
        after[0] = sent.calls;
        sgmp_hold(c->ctx); /* lets the first go */
        after[1] = sent.calls;
        sgmp_release(a->ctx); /* which is not held any more */
        calls(c, &d_at, 1);
        after[2] = sent.calls;
        sgmp_release(c->ctx);
        after[3] = sent.calls;
        watch(false);
        serve(a, b, 1);
        serve(c, d, 2);
        if (after[0] == 1 && after[1] == 2 && after[2] == 2 && after[3] == 3)
            break;
        CHECK(tries < 500);
    }
    tio_free(a);
    tio_free(b);
    tio_free(c);
    tio_free(d);
}

TEST(io_hold_outlives_its_port)
{
    tio *a, *b;
    sgmp_dest to;
    acquainted(&a, &b, 0, &to);
    sgmp_hold(a->ctx);
    calls(a, &to, 1);
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    sgmp_release(a->ctx);
    tio_free(a);
    tio_free(b);

    acquainted(&a, &b, 0, &to);
    udt_ctx *ctx = a->ctx;
    sgmp_hold(ctx);
    calls(a, &to, 1);
    tio_free(a);
    sgmp_release(ctx);
    tio_free(b);
}

TEST(io_hold_is_not_a_childs)
{
    tio *a, *b;
    sgmp_dest to;
    acquainted(&a, &b, 0, &to);
    sgmp_hold(a->ctx);
    calls(a, &to, 1);
    watch(true);
    pid_t child = fork();
    if (child == 0) {
        sgmp_release(a->ctx);
        _exit(sent.calls);
    }
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
    watch(false);
    sgmp_release(a->ctx);
    serve(a, b, 1);
    tio_free(a);
    tio_free(b);
}

/* Where the kernel cuts nothing up after all, they leave one at a time. */
TEST(io_hold_without_the_kernels_help)
{
    static const int errors[] = {EINVAL, EMSGSIZE, EIO};
    for (int i = 0; i < 3; i++) {
        tio *a, *b;
        sgmp_dest to;
        sgmp_stats st;
        acquainted(&a, &b, 0, &to);
        for (int again = 0; again < 3; again++) {
            watch(true);
            sent.refuse = errors[i];
            sgmp_hold(a->ctx);
            calls(a, &to, MOST - 1);
            sgmp_release(a->ctx);
            watch(false);
            serve(a, b, MOST - 1);
        }
        CHECK_INT(sgmp_stats_get(b->ctx, b->port, &st), 0);
        CHECK_INT(st.bad_tag, 0);
        tio_free(a);
        tio_free(b);
    }
}
