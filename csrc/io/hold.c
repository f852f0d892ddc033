/* Messages that a thread sends one after the other, as while it handles a batch of events: a few of
 * them wait for each other and leave in one system call. Only what is sent from this thread waits;
 * whatever else makes the port send takes it along. */
#include "io/priv.h"

#include <sys/timerfd.h>

#define MOST 16            /* messages that wait */
#define LONGEST_NS 1000000 /* the first of them: then the loop sends, whatever its thread is at */

static _Thread_local struct {
    udt_ctx *ctx;  /* held for this one, or NULL */
    io_port *port; /* has something to send, or NULL; referenced */
    int n;         /* messages of it */
} held;

/* 0 = never */
static bool loop_sends_in(const io_port *p, long ns)
{
    struct itimerspec once = {.it_value.tv_nsec = ns};
    return timerfd_settime(p->hold_fd, 0, &once, NULL) == 0;
}

static void again(io_port *p, void *arg)
{
    (void)p; /* a turn of the loop sends */
    (void)arg;
}

static void let_go(void)
{
    io_port *p = held.port;
    bool waits = held.n > 0;
    held.port = NULL;
    held.n = 0;
    if (!p || io_ctx_alive(p->ctx) != 0) /* a child has nothing to do with it */
        return;
    if (waits && io_direct_enter(p)) {
        if (p->held)
            loop_sends_in(p, 0);
        io_direct_leave(p, true);
    } else if (waits) {
        (void)io_port_post(p, again, NULL); /* too many commands waiting: a turn comes, too */
    }
    io_port_unref(p);
}

/* The loop is not woken for what has become due: the timer does it. */
bool io_hold_leave(io_port *p)
{
    if (held.ctx != p->ctx || (held.port && held.port != p))
        return false;
    if (!held.port) {
        io_port_ref(p);
        held.port = p;
    }
    if (!p->held) {
        held.n = 0;
        if (!loop_sends_in(p, LONGEST_NS))
            return false;
        p->held = true;
    }
    held.n = (held.n + 1) % MOST;
    if (held.n == 0)
        return false;
    pthread_mutex_unlock(&p->mu);
    return true;
}

void sgmp_hold(udt_ctx *ctx)
{
    let_go();
    held.ctx = ctx;
}

void sgmp_release(udt_ctx *ctx)
{
    if (held.ctx != ctx)
        return;
    let_go();
    held.ctx = NULL;
}
