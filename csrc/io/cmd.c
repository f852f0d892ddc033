/* Commands from any thread to a loop: a lock-free stack that the loop takes whole and turns over,
 * so that the order of each posting thread holds. The eventfd is written only when the loop sleeps.
 */
#include "io/priv.h"

#include <stdlib.h>
#include <unistd.h>

void io_wake(io_port *p)
{
    if (atomic_exchange(&p->sleeping, 0)) {
        uint64_t one = 1;
        ssize_t n = write(p->evfd, &one, sizeof one);
        (void)n; /* only fails when the counter is full, and then the loop wakes anyway */
    }
}

bool io_cmd_waiting(io_port *p)
{
    return atomic_load(&p->cmds) != NULL;
}

void io_cmd_run(io_port *p)
{
    io_cmd *c = atomic_exchange(&p->cmds, NULL), *fifo = NULL;
    while (c) {
        io_cmd *next = c->next;
        c->next = fifo;
        fifo = c;
        c = next;
    }
    while (fifo) {
        c = fifo;
        fifo = c->next;
        io_cmd_fn fn = c->fn;
        void *arg = c->arg;
        if (c->heap) {
            atomic_fetch_sub(&p->ncmds, 1);
            free(c);
        }
        fn(p, arg); /* an embedded command may be gone or posted again after this */
    }
}

/* After the loop's end commands still run, one thread at a time, so that nothing leaks or waits
 * for ever. */
static void run_dead(io_port *p)
{
    pthread_mutex_lock(&p->dead_mu);
    io_cmd_run(p);
    pthread_mutex_unlock(&p->dead_mu);
}

/* The command may be what kept the port, and be over before this thread has woken the loop: then
 * the port, and its descriptor's number, could be somebody else's. */
void io_cmd_push(io_port *p, io_cmd *c)
{
    io_port_ref(p);
    io_cmd *head = atomic_load(&p->cmds);
    do
        c->next = head;
    while (!atomic_compare_exchange_weak(&p->cmds, &head, c));
    if (atomic_load(&p->dead))
        run_dead(p);
    else
        io_wake(p);
    io_port_unref(p);
}

int io_port_post(io_port *p, io_cmd_fn fn, void *arg)
{
    uint32_t n = atomic_fetch_add(&p->ncmds, 1);
    io_cmd *c = n >= IO_MAX_CMDS ? NULL : malloc(sizeof *c);
    if (!c) {
        atomic_fetch_sub(&p->ncmds, 1);
        return n >= IO_MAX_CMDS ? UDT_E_AGAIN : UDT_E_NOMEM;
    }
    c->fn = fn;
    c->arg = arg;
    c->heap = true;
    io_cmd_push(p, c);
    return 0;
}

struct call {
    io_cmd cmd;
    io_cmd_fn fn;
    void *arg;
    pthread_mutex_t mu;
    pthread_cond_t done_cv;
    bool done;
};

static void run_call(io_port *p, void *arg)
{
    struct call *c = arg;
    c->fn(p, c->arg);
    pthread_mutex_lock(&c->mu);
    c->done = true;
    pthread_cond_signal(&c->done_cv);
    pthread_mutex_unlock(&c->mu);
}

int io_port_call(io_port *p, io_cmd_fn fn, void *arg)
{
    if (io_manual(p)) {
        io_manual_enter(p);
        fn(p, arg);
        io_manual_leave(p);
        return 0;
    }
    struct call c = {.fn = fn, .arg = arg};
    c.cmd.fn = run_call;
    c.cmd.arg = &c;
    pthread_mutex_init(&c.mu, NULL);
    pthread_cond_init(&c.done_cv, NULL);
    io_cmd_push(p, &c.cmd);
    pthread_mutex_lock(&c.mu);
    while (!c.done)
        pthread_cond_wait(&c.done_cv, &c.mu);
    pthread_mutex_unlock(&c.mu);
    pthread_cond_destroy(&c.done_cv);
    pthread_mutex_destroy(&c.mu);
    return 0;
}
