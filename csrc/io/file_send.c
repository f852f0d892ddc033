/* Sending side of a file transfer: the disk job reads, checksums and seals a block; the loop gives
 * sealed bytes to the engine. */
#include "io/file_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { AHEAD = 16 << 20 }; /* bytes of a big file that the disk reads before they are needed */

static size_t block_payload(const struct disk_buf *b)
{
    return (size_t)(b->cap == XFER_SMALL_WIRE ? XFER_SMALL_BATCH : XFER_BATCH) * SDC_MAX_BODY;
}

/* ---- disk thread ---- */

/* Has the disk read on while this block is sealed; the kernel alone may look ahead only 128 KiB. */
static void read_ahead(xfer *x)
{
    int64_t want = x->pos + AHEAD < x->o.length ? x->pos + AHEAD : x->o.length;
    if (x->small || (want - x->ahead < AHEAD / 4 && want < x->o.length) || want <= x->ahead)
        return;
    (void)posix_fadvise(x->fd, x->o.offset + x->ahead, want - x->ahead, POSIX_FADV_WILLNEED);
    x->ahead = want;
}

/* Reads n bytes at x->pos into the bodies of the records that b will hold. */
static int read_block(xfer *x, struct disk_buf *b, size_t n)
{
    struct iovec iovs[XFER_BATCH], *iov = iovs;
    size_t each = sdc_record_bytes(x->send.encrypt, SDC_DATA, SDC_MAX_BODY);
    int count = 0;
    for (size_t left = n; left > 0; count++) {
        size_t body = left < SDC_MAX_BODY ? left : SDC_MAX_BODY;
        iovs[count].iov_base = b->data + (size_t)count * each + SDC_HEADER_BYTES;
        iovs[count].iov_len = body;
        left -= body;
    }
    off_t at = x->o.offset + x->pos;
    while (count > 0) {
        ssize_t got = preadv(x->fd, iov, count, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            x->job_sys = errno;
            return UDT_E_DISKREAD;
        }
        if (got == 0)
            return UDT_E_SHORT;
        at += got;
        xfer_iov_skip(&iov, &count, (size_t)got);
    }
    return 0;
}

/* The blocks that were finished since the first `from` are those that the caller expects. */
static int check_blocks(xfer *x, uint32_t from)
{
    if (!x->want)
        return 0;
    for (uint32_t i = from; i < x->blocks.n; i++) {
        if (i >= x->nwant || x->want[i] != x->blocks.crcs[i]) {
            x->job_sys = EBADMSG; /* what file systems say of a block whose checksum is wrong */
            return UDT_E_DISKREAD;
        }
    }
    return 0;
}

static int seal_block(xfer *x, struct disk_buf *b, size_t n)
{
    uint32_t done = x->blocks.n;
    while (n > 0) {
        uint8_t *rec = b->data + b->len;
        size_t body = n < SDC_MAX_BODY ? n : SDC_MAX_BODY;
        int rc = sdc_blocks_add(&x->blocks, rec + SDC_HEADER_BYTES, body);
        if (rc != 0)
            return rc;
        b->len += sdc_seal(&x->send, SDC_DATA, rec, body);
        b->payload += body;
        n -= body;
    }
    return check_blocks(x, done);
}

static int seal_fin(xfer *x, struct disk_buf *b)
{
    uint32_t done = x->blocks.n;
    sdc_fin f = {.size = x->blocks.size};
    int rc = sdc_blocks_end(&x->blocks, x->digest);
    if (rc == 0)
        rc = check_blocks(x, done);
    if (rc != 0)
        return rc;
    memcpy(f.digest, x->digest, sizeof f.digest);
    uint8_t *rec = b->data + b->len;
    sdc_fin_put(&f, rec + SDC_HEADER_BYTES);
    b->len += sdc_seal(&x->send, SDC_FIN, rec, SDC_FIN_BYTES);
    x->job_fin = true;
    return 0;
}

static void job_done(io_port *p, void *arg);

static int fill_block(xfer *x, struct disk_buf *b)
{
    int64_t left = x->o.length - x->pos;
    size_t n = left < (int64_t)block_payload(b) ? (size_t)left : block_payload(b);
    read_ahead(x);
    int rc = read_block(x, b, n);
    if (rc == 0)
        rc = seal_block(x, b, n);
    if (rc != 0)
        return rc;
    x->pos += (int64_t)n;
    return x->pos == x->o.length ? seal_fin(x, b) : 0;
}

void xfer_send_job(struct disk_job *job)
{
    xfer *x = (xfer *)(void *)((char *)job - offsetof(xfer, job));
    int rc = 0;
    for (struct disk_buf *b = x->work.head; b && rc == 0 && !x->job_fin; b = b->next)
        rc = fill_block(x, b);
    x->job_err = rc;
    x->job_cmd = (io_cmd){.fn = job_done, .arg = x};
    io_cmd_push(x->port, &x->job_cmd);
}

/* ---- loop thread ---- */

/* An empty buffer within this transfer's share; NULL: all are in use. */
static struct disk_buf *empty_buf(xfer *x, unsigned share)
{
    struct disk_buf *b = xfer_list_take(&x->spare);
    if (!b && x->held_bufs < share) {
        b = disk_buf_get(x->pool, x->small);
        if (b)
            x->held_bufs++;
    }
    if (b)
        b->at = b->len = b->payload = 0;
    return b;
}

/* The first job fills one block, so that the peer gets something soon; later ones up to half of
 * the buffers, so that disk and network work at the same time and seldom wait for each other. */
static void start_job(xfer *x)
{
    struct disk_buf *b;
    unsigned share = disk_buf_share(x->pool);
    if (x->busy || x->job_fin || !xfer_sends(x))
        return;
    while (x->held_bufs > share && (b = xfer_list_take(&x->spare)))
        xfer_buf_put(x, b);
    for (unsigned n = 0; n < x->batch && (b = empty_buf(x, share)); n++)
        xfer_list_add(&x->work, b);
    if (!x->work.head) {
        if (x->held_bufs == 0)
            xfer_fail(x, UDT_E_NOMEM, 0, 0, UDT_E_NOMEM);
        return;
    }
    x->batch = x->batch * 2 < XFER_MAX_BUFS / 2 ? x->batch * 2 : XFER_MAX_BUFS / 2;
    x->busy = true;
    disk_submit(x->pool, &x->job);
}

void xfer_send_pump(xfer *x)
{
    struct disk_buf *b;
    if (!xfer_sends(x) || x->out_len > 0)
        return;
    while ((b = x->ready.head)) {
        ssize_t n = stream_send(&x->s, b->data + b->at, b->len - b->at);
        if (n <= 0)
            break; /* AGAIN: WRITABLE follows; else FAILED or PEER_CLOSED does */
        b->at += (size_t)n;
        if (!x->given_at)
            x->given_at = io_port_now(x->port);
        if (b->at < b->len)
            continue;
        x->sent += (int64_t)b->payload;
        xfer_list_add(&x->spare, xfer_list_take(&x->ready));
    }
    start_job(x);
    if (x->phase != XFER_DATA)
        return; /* early data waits for the peer's OPEN, and may have to be sent again */
    xfer_disk_wait(x, !x->ready.head && x->busy);
    if (!x->ready.head && !x->busy && x->job_fin) {
        while ((b = xfer_list_take(&x->spare)))
            xfer_buf_put(x, b);
        x->phase = XFER_FIN;
    }
}

static void job_done(io_port *p, void *arg)
{
    xfer *x = arg;
    (void)p;
    xfer_ref(x);
    x->busy = false;
    struct disk_buf *b;
    while ((b = xfer_list_take(&x->work))) {
        if (x->job_err != 0 || !xfer_sends(x) || b->len == 0)
            xfer_list_add(&x->spare, b);
        else
            xfer_list_add(&x->ready, b);
    }
    if (x->job_err != 0)
        xfer_fail(x, x->job_err, x->job_sys, 0, x->job_err);
    xfer_try_end(x);
    if (x->tls_waits) {
        xfer_tls_resume(x);
    } else if (xfer_sends(x)) {
        xfer_send_pump(x);
        xfer_note_progress(x);
    }
    xfer_unref(x);
}

void xfer_send_rewind(xfer *x)
{
    struct disk_buf *b;
    if (!x->early)
        return;
    x->early = x->job_fin = false;
    while ((b = xfer_list_take(&x->ready)))
        xfer_list_add(&x->spare, b);
    sdc_dir_fini(&x->send);
    sdc_blocks_fini(&x->blocks);
    x->pos = x->ahead = x->sent = x->given_at = 0;
}

int64_t xfer_send_bytes(xfer *x)
{
    if (x->phase >= XFER_ENDING && x->err == 0)
        x->progress = x->o.length;
    if (!stream_up(&x->s) || x->phase == XFER_MEET)
        return x->progress;
    const struct disk_buf *b = x->ready.head;
    int64_t bytes = x->sent, waiting = (int64_t)stream_unacked(&x->s);
    if (b)
        bytes += (int64_t)(b->at < b->payload ? b->at : b->payload);
    bytes -= waiting < bytes ? waiting : bytes;
    if (bytes > x->progress)
        x->progress = bytes;
    return x->progress;
}

size_t xfer_send_cut(xfer *x, uint8_t *out)
{
    const struct disk_buf *b = x->ready.head;
    size_t end = 0, body;
    int type;
    while (b && end < b->at)
        end += (size_t)sdc_peek(x->send.encrypt, b->data + end, b->len - end, &type, &body);
    if (!b || end == b->at)
        return 0;
    memcpy(out, b->data + b->at, end - b->at);
    return end - b->at;
}
