/* File transfers: the public functions. Each hands a command to the loop thread of the port. */
#include "io/file_priv.h"
#include "io/sockaddr.h"
#include "udt/cc.h"
#include "udt/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { START_MS = 60000, IDLE_MS = 10000 };

_Static_assert(sizeof(udt_sock_stats) == sizeof(udt_stats), "same fields in the same order");

/* ---- life ---- */

void xfer_ref(xfer *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void xfer_unref(xfer *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->fd >= 0)
        close(x->fd);
    secure_wipe(&x->ticket, sizeof x->ticket);
    sdc_blocks_fini(&x->blocks);
    free(x->want);
    udt_trace_free(x->o.trace);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

void xfer_on_free(void *obj)
{
    xfer_unref(obj);
}

/* ---- what other threads see ---- */

void xfer_emit(xfer *x, enum udt_io_event_kind kind, int64_t value)
{
    pthread_mutex_lock(&x->mu);
    bool freed = x->freed;
    pthread_mutex_unlock(&x->mu);
    if (freed)
        return;
    udt_event ev = {
        .kind = (uint16_t)kind, .port = io_port_id(x->port), .sock = x->handle, .value = value};
    if (kind == UDT_IO_XFER_DONE) {
        ev.err = x->err;
        ev.sys_err = x->sys_err;
        ev.remote = x->remote;
    }
    io_emit(x->ctx, &ev);
}

static void copy_stats(xfer *x)
{
    udt_stats st;
    if (stream_stats(&x->s, &st))
        memcpy(&x->result.stats, &st, sizeof st);
}

void xfer_note_stats(xfer *x)
{
    pthread_mutex_lock(&x->mu);
    copy_stats(x);
    pthread_mutex_unlock(&x->mu);
}

void xfer_show(xfer *x, bool final)
{
    int64_t bytes = x->sender ? xfer_send_bytes(x) : x->pos;
    pthread_mutex_lock(&x->mu);
    copy_stats(x);
    x->result.bytes = bytes;
    x->result.err = x->err;
    x->result.sys_err = x->sys_err;
    x->result.remote = x->remote;
    x->result.lim_disk_us = x->waited_us;
    if (x->opened_at)
        x->result.us = (x->fin_at ? x->fin_at : io_port_now(x->port)) - x->opened_at;
    if (x->job_fin)
        memcpy(x->result.digest, x->digest, sizeof x->digest);
    x->result.blocks = x->blocks.n;
    x->result.path = x->s.tls ? UDT_PATH_TLS : UDT_PATH_UDP;
    x->result.path_why = (uint8_t)x->why;
    x->finishable = !final;
    x->shown = true;
    pthread_mutex_unlock(&x->mu);
}

/* Tells how far it is, four times a second at most, and keeps statistics for udt_stats_get. */
void xfer_note_progress(xfer *x)
{
    udt_time now = io_port_now(x->port);
    if (now - x->progress_at < XFER_PROGRESS_US)
        return;
    int64_t bytes = x->sender ? xfer_send_bytes(x) : x->progress;
    x->progress_at = now;
    xfer_note_stats(x);
    xfer_emit(x, UDT_IO_XFER_PROGRESS, bytes);
}

int xfer_stats(void *obj, udt_sock_stats *out)
{
    xfer *x = obj;
    pthread_mutex_lock(&x->mu);
    *out = x->result.stats;
    pthread_mutex_unlock(&x->mu);
    io_stats_age(out);
    return 0;
}

/* ---- start ---- */

static int check_opts(const udt_addr *to, const udt_ticket *t, int fd, const udt_xfer_opts *o)
{
    bool sender = o->flags & UDT_XFER_SEND;
    int mode = fcntl(fd, F_GETFL);
    if (mode < 0 || t->tag == 0 || o->offset < 0 || o->max_bw_Bps < 0 || o->start_ms < 0 ||
        o->idle_ms < 0 || o->tcp_stripes > STRIPE_MAX || o->length < (sender ? 0 : -1) ||
        o->length > INT64_MAX - o->offset || !udt_cc_find(o->cc, false))
        return UDT_E_INVAL;
    if ((o->flags & UDT_XFER_INITIATOR) && !to)
        return UDT_E_INVAL;
    if (to && (to->port == 0 || (to->family != 4 && to->family != 6)))
        return UDT_E_INVAL;
    /* O_APPEND makes pwrite ignore its offset */
    if ((mode & O_ACCMODE) == (sender ? O_WRONLY : O_RDONLY) || (!sender && (mode & O_APPEND)))
        return UDT_E_INVAL;
    return 0;
}

static xfer *xfer_new(udt_ctx *ctx, io_port *p, const udt_addr *to, const udt_ticket *t, int fd,
                      const udt_xfer_opts *o, int *err)
{
    xfer *x = calloc(1, sizeof *x);
    int own = x ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (own < 0) {
        *err = x ? UDT_E_SYS : UDT_E_NOMEM;
        free(x);
        return NULL;
    }
    x->ctx = ctx;
    x->port = p;
    x->pool = io_ctx_disk(ctx);
    x->fd = own;
    x->sender = o->flags & UDT_XFER_SEND;
    x->initiator = o->flags & UDT_XFER_INITIATOR;
    x->o = *o;
    x->o.trace = udt__trace_ref(o->trace);
    x->o.cc = o->cc ? udt_cc_find(o->cc, false)->name : NULL; /* the caller's may go */
    x->o.start_ms = o->start_ms ? o->start_ms : START_MS;
    x->o.idle_ms = o->idle_ms ? o->idle_ms : IDLE_MS;
    x->o.udp_wait_ms = o->udp_wait_ms ? o->udp_wait_ms : XFER_UDP_WAIT_MS;
    x->small = o->length >= 0 && o->length <= XFER_SMALL_BATCH * SDC_MAX_BODY;
    x->ticket = *t;
    x->encrypt = t->encrypt;
    x->has_to = to != NULL;
    x->batch = 1;
    if (to)
        x->to = sockaddr_plain(to);
    x->s.port = p;
    x->deadline.slot = x->step.slot = x->fall.slot = -1;
    xfer_list_init(&x->ready);
    xfer_list_init(&x->spare);
    xfer_list_init(&x->work);
    x->job.run = x->sender ? xfer_send_job : xfer_recv_job;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->mu, NULL);
    return x;
}

static int32_t launch(xfer *x, io_port *p)
{
    if (!x->pool) {
        xfer_unref(x);
        return UDT_E_NOMEM;
    }
    int32_t h = io_handle_new(x->ctx, IO_KIND_XFER, p, x);
    if (h < 0) {
        xfer_unref(x);
        return h;
    }
    x->handle = h;
    io_handle_on_free(x->ctx, h, xfer_on_free);
    xfer_ref(x); /* the loop's */
    disk_xfer_add(x->pool, x);
    x->begin_cmd = (io_cmd){.fn = xfer_begin, .arg = x};
    io_cmd_push(p, &x->begin_cmd);
    return h;
}

int32_t udt_xfer_start_checked(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_ticket *t,
                               int fd, const udt_xfer_opts *o, const uint32_t *crcs, uint32_t n)
{
    int err = io_ctx_alive(ctx);
    if (err == 0)
        err = check_opts(to, t, fd, o);
    if (err == 0 && (o->flags & UDT_XFER_CHECK)) {
        int64_t blocks = o->length / UDT_BLOCK_BYTES + (o->length % UDT_BLOCK_BYTES != 0);
        if (!(o->flags & UDT_XFER_SEND) || (!crcs && n > 0) || blocks != (int64_t)n)
            err = UDT_E_INVAL;
    }
    if (err != 0)
        return err;
    io_port *p = NULL;
    if (!io_handle_get(ctx, port, IO_KIND_PORT, &p) || !p)
        return UDT_E_NOSOCK;
    int32_t h = UDT_E_NOMEM;
    xfer *x = xfer_new(ctx, p, to, t, fd, o, &h);
    if (x && (o->flags & UDT_XFER_CHECK)) {
        x->nwant = n;
        x->want = malloc((n ? n : 1) * sizeof *crcs);
        if (x->want && n)
            memcpy(x->want, crcs, n * sizeof *crcs);
    }
    if (x && (o->flags & UDT_XFER_CHECK) && !x->want)
        xfer_unref(x);
    else if (x)
        h = launch(x, p);
    io_handle_put(ctx, port);
    return h;
}

int32_t udt_xfer_start(udt_ctx *ctx, int32_t port, const udt_addr *to, const udt_ticket *t, int fd,
                       const udt_xfer_opts *o)
{
    return udt_xfer_start_checked(ctx, port, to, t, fd, o, NULL, 0);
}

/* ---- commands ---- */

static void run_finish(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    if (x->phase == XFER_FIN && !x->sender)
        xfer_reply(x);
    xfer_unref(x);
}

static void run_cancel(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    pthread_mutex_lock(&x->mu);
    int32_t code = x->cancel_code;
    pthread_mutex_unlock(&x->mu);
    xfer_fail(x, UDT_E_CANCELLED, 0, 0, code);
    xfer_unref(x);
}

/* Pins the transfer of a handle; NULL and *err else. */
static xfer *pin(udt_ctx *ctx, int32_t h, int *err)
{
    *err = io_ctx_alive(ctx);
    xfer *x = *err == 0 ? io_handle_get(ctx, h, IO_KIND_XFER, NULL) : NULL;
    if (!x && *err == 0)
        *err = UDT_E_NOSOCK;
    return x;
}

static void post(xfer *x, io_cmd *c, io_cmd_fn fn)
{
    xfer_ref(x);
    *c = (io_cmd){.fn = fn, .arg = x};
    io_cmd_push(x->port, c);
}

int udt_xfer_finish(udt_ctx *ctx, int32_t h, int32_t err, uint64_t version_epoch,
                    uint64_t version_counter, uint32_t durable)
{
    int rc;
    xfer *x = pin(ctx, h, &rc);
    if (!x)
        return rc;
    pthread_mutex_lock(&x->mu);
    bool mine = x->finishable && !x->finish_posted;
    if (mine) {
        x->finish_posted = true;
        x->finish_err = err;
        x->finish_done = (sdc_done){version_epoch, version_counter, durable};
    }
    pthread_mutex_unlock(&x->mu);
    if (mine)
        post(x, &x->finish_cmd, run_finish);
    io_handle_put(ctx, h);
    return mine ? 0 : UDT_E_STATE;
}

static void post_cancel(xfer *x, int32_t code, bool free_it)
{
    pthread_mutex_lock(&x->mu);
    bool first = !x->cancel_posted;
    x->cancel_posted = true;
    x->freed |= free_it;
    if (first)
        x->cancel_code = code;
    pthread_mutex_unlock(&x->mu);
    if (first)
        post(x, &x->cancel_cmd, run_cancel);
}

int udt_xfer_cancel(udt_ctx *ctx, int32_t h, int32_t code)
{
    int rc;
    xfer *x = pin(ctx, h, &rc);
    if (!x)
        return rc;
    post_cancel(x, code, false);
    io_handle_put(ctx, h);
    return 0;
}

int udt_xfer_free(udt_ctx *ctx, int32_t h)
{
    int rc;
    xfer *x = pin(ctx, h, &rc);
    if (!x)
        return rc;
    post_cancel(x, UDT_E_CANCELLED, true);
    io_handle_free(ctx, h);
    io_handle_put(ctx, h);
    return 0;
}

/* ---- results ---- */

int udt_xfer_result_get(udt_ctx *ctx, int32_t h, udt_xfer_result *out)
{
    int rc;
    xfer *x = pin(ctx, h, &rc);
    if (!x)
        return rc;
    pthread_mutex_lock(&x->mu);
    rc = x->shown ? 0 : UDT_E_STATE;
    if (rc == 0)
        *out = x->result;
    pthread_mutex_unlock(&x->mu);
    io_handle_put(ctx, h);
    return rc;
}

int udt_xfer_crcs(udt_ctx *ctx, int32_t h, uint32_t *crcs, uint32_t cap)
{
    int rc;
    xfer *x = pin(ctx, h, &rc);
    if (!x)
        return rc;
    pthread_mutex_lock(&x->mu);
    rc = UDT_E_STATE;
    if (x->shown) {
        uint32_t n = x->blocks.n < cap ? x->blocks.n : cap;
        n = n > INT32_MAX ? INT32_MAX : n;
        if (n > 0)
            memcpy(crcs, x->blocks.crcs, n * sizeof *crcs);
        rc = (int)n;
    }
    pthread_mutex_unlock(&x->mu);
    io_handle_put(ctx, h);
    return rc;
}
