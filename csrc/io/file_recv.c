/* Receiving side of a file transfer: the loop takes bytes from the engine into buffers of whole
 * records; the disk job opens, checks and writes them. */
#include "io/file_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    BEHIND = 8 << 20,       /* write-behind: this much is under way to the disk at a time */
    FULL_TRIES = 4,         /* pauses of 20 to 160 ms after a refusal that cannot be true */
    FULL_MARGIN = 64 << 20, /* bytes free from which on it cannot */
};

/* ---- disk thread ---- */

static int write_error(xfer *x)
{
    x->job_sys = errno;
    return errno == ENOSPC || errno == EDQUOT ? UDT_E_DISKFULL : UDT_E_DISKWRITE;
}

/* Blocks that were freed just now may come back only with the next commit of the file system's
 * journal: while far more is said to be free than was refused, a write is tried again. False: the
 * disk is full, or was asked often enough. Keeps errno. */
static bool room_again(const xfer *x, unsigned *tries)
{
    struct statvfs st;
    int refused = errno;
    bool again = refused == ENOSPC && *tries < FULL_TRIES && fstatvfs(x->fd, &st) == 0 &&
                 (uint64_t)st.f_bavail * st.f_frsize > FULL_MARGIN && st.f_favail > 0;
    if (again) {
        struct timespec pause = {.tv_nsec = (20 * 1000000L) << *tries};
        (void)nanosleep(&pause, NULL);
        ++*tries;
    }
    errno = refused;
    return again;
}

/* Bodies that wait to be written behind x->pos. */
struct batch {
    struct iovec iov[XFER_BATCH];
    int n;
};

static int write_batch(xfer *x, struct batch *w)
{
    struct iovec *iov = w->iov;
    unsigned tries = 0;
    while (w->n > 0) {
        ssize_t put = pwritev(x->fd, iov, w->n, x->o.offset + x->pos);
        if (put < 0 && (errno == EINTR || room_again(x, &tries)))
            continue;
        if (put == 0)
            errno = EIO; /* a device that takes nothing and says nothing */
        if (put <= 0)
            return write_error(x);
        x->pos += put;
        xfer_iov_skip(&iov, &w->n, (size_t)put);
    }
    return 0;
}

/* Starts the disk on what was written and waits for what is older, so that the kernel never has so
 * many dirty pages that it stops all writers. The pages stay in its cache, clean and cheap to take
 * back: who puts a file reads or copies it soon (without them the first get took twice as long). */
static int write_behind(xfer *x)
{
    off_t base = x->o.offset;
    if (!(x->o.flags & UDT_XFER_DIRECT))
        return 0;
    while (x->pos - x->synced >= BEHIND) {
        (void)sync_file_range(x->fd, base + x->synced, BEHIND, SYNC_FILE_RANGE_WRITE);
        x->synced += BEHIND;
        if (x->synced - x->settled <= BEHIND)
            continue;
        if (sync_file_range(x->fd, base + x->settled, BEHIND,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                SYNC_FILE_RANGE_WAIT_AFTER) != 0 &&
            (errno == EIO || errno == ENOSPC))
            return write_error(x);
        x->settled += BEHIND;
    }
    return 0;
}

static int take_fin(xfer *x, const uint8_t *body)
{
    sdc_fin f;
    sdc_fin_get(&f, body);
    int rc = sdc_blocks_end(&x->blocks, x->digest);
    if (rc != 0)
        return rc;
    if (f.size != x->blocks.size || memcmp(f.digest, x->digest, sizeof f.digest) != 0)
        return UDT_E_DIGEST;
    if ((x->o.flags & UDT_XFER_FSYNC) && fsync(x->fd) != 0) {
        x->job_sys = errno;
        return errno == ENOSPC || errno == EDQUOT ? UDT_E_DISKFULL : UDT_E_DISKSYNC;
    }
    x->job_fin = true;
    return 0;
}

static int take_data(xfer *x, struct batch *w, uint8_t *body, size_t len)
{
    if (x->o.length >= 0 && x->blocks.size + len > (uint64_t)x->o.length)
        return UDT_E_PROTO;
    if (x->blocks.size + len > (uint64_t)(INT64_MAX - x->o.offset))
        return UDT_E_PROTO;
    int rc = sdc_blocks_add(&x->blocks, body, len);
    if (rc != 0)
        return rc;
    w->iov[w->n].iov_base = body;
    w->iov[w->n++].iov_len = len;
    return w->n == XFER_BATCH ? write_batch(x, w) : 0;
}

static int take_record(xfer *x, struct batch *w, uint8_t *rec, size_t size)
{
    uint8_t *body = rec + SDC_HEADER_BYTES;
    ssize_t len = sdc_unseal(&x->recv, rec, size);
    if (len < 0)
        return (int)len;
    if (rec[0] == SDC_DATA)
        return take_data(x, w, body, (size_t)len);
    if (rec[0] == SDC_ERROR) {
        x->job_remote = sdc_error_get(body);
        return UDT_E_REMOTE;
    }
    int rc = write_batch(x, w);
    if (rc != 0)
        return rc;
    return rec[0] == SDC_FIN ? take_fin(x, body) : UDT_E_PROTO;
}

static int take_buf(xfer *x, struct disk_buf *b)
{
    struct batch w = {.n = 0};
    int rc = 0, type;
    size_t at = 0, body;
    while (rc == 0 && at < b->len) {
        ssize_t size = sdc_peek(x->recv.encrypt, b->data + at, b->len - at, &type, &body);
        if (size <= 0 || at + (size_t)size > b->len)
            return UDT_E_PROTO;
        rc = take_record(x, &w, b->data + at, (size_t)size);
        at += (size_t)size;
    }
    if (rc == 0)
        rc = write_batch(x, &w);
    return rc != 0 ? rc : write_behind(x);
}

static void job_done(io_port *p, void *arg);

void xfer_recv_job(struct disk_job *job)
{
    xfer *x = (xfer *)(void *)((char *)job - offsetof(xfer, job));
    int rc = 0;
    for (struct disk_buf *b = x->work.head; b && rc == 0; b = b->next)
        rc = take_buf(x, b);
    x->job_err = rc;
    x->job_cmd = (io_cmd){.fn = job_done, .arg = x};
    io_cmd_push(x->port, &x->job_cmd);
}

/* ---- loop thread ---- */

static size_t usable(const xfer *x)
{
    return (size_t)(x->small ? XFER_SMALL_BATCH : XFER_BATCH) *
           sdc_record_bytes(x->encrypt, SDC_DATA, SDC_MAX_BODY);
}

/* The buffer under way goes to the others; the start of a record behind it waits for the next. */
static void retire(xfer *x)
{
    struct disk_buf *b = x->cur;
    x->carry_len = x->last ? 0 : b->len - b->at;
    memcpy(x->carry, b->data + b->at, x->carry_len);
    b->len = b->at;
    xfer_list_add(&x->ready, b);
    x->cur = NULL;
}

/* Walks over the headers of what came. False: not records; the transfer ends. */
static bool scan(xfer *x)
{
    struct disk_buf *b = x->cur;
    ssize_t size;
    int type = SDC_DATA;
    size_t body;
    while ((size = sdc_peek(x->encrypt, b->data + b->at, b->len - b->at, &type, &body)) > 0 &&
           b->at + (size_t)size <= b->len) {
        b->at += (size_t)size;
        if (type != SDC_DATA) {
            x->last = true;
            break;
        }
    }
    if (size < 0) {
        xfer_fail(x, UDT_E_PROTO, 0, 0, UDT_E_PROTO);
        return false;
    }
    size_t next = size > 0 ? (size_t)size : SDC_HEADER_BYTES;
    if (x->last || b->at + next > usable(x))
        retire(x);
    return true;
}

/* A buffer to receive into; false: all of this transfer's are with the disk. */
static bool have_buf(xfer *x)
{
    if (x->cur)
        return true;
    if (x->held_bufs >= disk_buf_share(x->pool))
        return false;
    x->cur = disk_buf_get(x->pool, x->small);
    if (!x->cur) {
        if (x->held_bufs == 0)
            xfer_fail(x, UDT_E_NOMEM, 0, 0, UDT_E_NOMEM);
        return false;
    }
    x->held_bufs++;
    memcpy(x->cur->data, x->carry, x->carry_len);
    x->cur->len = x->carry_len;
    x->carry_len = 0;
    return true;
}

static void hand_over(xfer *x, bool eof)
{
    udt_time now = io_port_now(x->port);
    bool some = x->cur && x->cur->at > 0;
    bool due = x->ready.head || x->flush || eof || (some && x->cur->at >= XFER_HAND_OVER);
    if (some && !due) {
        if (x->step.slot < 0)
            io_timer_arm(x->port, &x->step, now + XFER_FLUSH_US);
        return;
    }
    if (some)
        retire(x);
    x->flush = false;
    io_timer_stop(x->port, &x->step);
    if (!x->ready.head) {
        if (eof)
            xfer_fail(x, UDT_E_PEERCLOSED, 0, 0, 0);
        return;
    }
    x->work = x->ready;
    xfer_list_init(&x->ready);
    x->busy = true;
    disk_submit(x->pool, &x->job);
}

void xfer_recv_pump(xfer *x)
{
    bool full = false;
    ssize_t n = 0;
    while (x->phase == XFER_DATA && !x->last) {
        full = !have_buf(x);
        if (full)
            break;
        n = stream_recv(&x->s, x->cur->data + x->cur->len, usable(x) - x->cur->len);
        if (n <= 0)
            break; /* AGAIN: READABLE follows; PEERCLOSED: see below; else FAILED follows */
        x->cur->len += (size_t)n;
        if (!scan(x))
            return;
    }
    if (x->phase != XFER_DATA)
        return;
    if (!x->busy)
        hand_over(x, n == UDT_E_PEERCLOSED);
    xfer_disk_wait(x, x->busy && (full || x->last));
}

static void job_done(io_port *p, void *arg)
{
    xfer *x = arg;
    struct disk_buf *b;
    (void)p;
    xfer_ref(x);
    x->busy = false;
    x->progress = x->pos;
    while ((b = xfer_list_take(&x->work)))
        xfer_buf_put(x, b);
    if (x->job_err == UDT_E_REMOTE) {
        xfer_fail(x, UDT_E_REMOTE, 0, x->job_remote, 0);
    } else if (x->job_err != 0) {
        xfer_fail(x, x->job_err, x->job_sys, 0, x->job_err);
    } else if (x->phase == XFER_DATA && x->job_fin) {
        xfer_disk_wait(x, false);
        x->phase = XFER_FIN;
        x->fin_at = io_port_now(x->port);
        xfer_show(x, false);
        xfer_emit(x, UDT_IO_XFER_FIN, x->pos);
        xfer_hear(x);
    } else if (x->phase == XFER_DATA) {
        xfer_recv_pump(x);
        xfer_note_progress(x);
    }
    xfer_try_end(x);
    xfer_unref(x);
}
