/* The receiving side of a file transfer against a peer that holds the ticket: records of every type
 * and order, sealed with the right key, cut into reads at will, with lies in their headers and
 * bodies. The file under test is included; its connection, disk threads and end are replaced. What
 * lies in the file must be what the genuine DATA records said, never more than was allowed, and a
 * FIN is believed only with the right size and digest.
 *
 * Input: byte 0 = mode; then rows of [what, length high, length low or kind, cut]: what & 7 = type
 * of record, & 8 = damaged, & 16 = header lies, & 32 = FIN lies, & 64 = the stream ends here. */
/* The functions under test beside those of the library. */
#define xfer_recv_pump under_test_pump
#define xfer_recv_job under_test_job
#include "io/file_priv.h"

#include "base/bytes.h"
#include "io/priv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIRE = 1 << 20, MOST = 200000 };

static struct {
    uint8_t *bytes;
    size_t at, len, cut;
    bool end;
    int failed, fin;
    io_cmd_fn job_done;
    struct disk_job *job;
} fz;

static ssize_t fz_recv(io_stream *s, uint8_t *b, size_t cap)
{
    size_t n = fz.len - fz.at;
    (void)s;
    if (n == 0)
        return fz.end ? UDT_E_PEERCLOSED : UDT_E_AGAIN;
    n = n < cap ? n : cap;
    n = n < fz.cut ? n : fz.cut;
    memcpy(b, fz.bytes + fz.at, n);
    fz.at += n;
    return (ssize_t)n;
}
static struct disk_buf *fz_get(disk_pool *d, bool small)
{
    struct disk_buf *b = calloc(1, sizeof *b);
    (void)d;
    b->cap = small ? XFER_SMALL_WIRE : XFER_WIRE;
    b->data = malloc(b->cap);
    return b;
}
static void fz_put(disk_pool *d, struct disk_buf *b)
{
    (void)d;
    free(b->data);
    free(b);
}
static unsigned fz_share(disk_pool *d)
{
    (void)d;
    return 2;
}
static void fz_submit(disk_pool *d, struct disk_job *job)
{
    (void)d;
    fz.job = job;
}
static void fz_push(io_port *p, io_cmd *c)
{
    (void)p;
    fz.job_done = c->fn;
}
static void fz_fail(xfer *x, int err, int sys_err, int32_t remote, int32_t tell)
{
    (void)sys_err;
    (void)remote;
    (void)tell;
    if (x->phase >= XFER_ENDING)
        return;
    x->phase = XFER_ENDING;
    fz.failed = err;
}
static void fz_emit(xfer *x, enum udt_io_event_kind kind, int64_t value)
{
    (void)x;
    (void)value;
    fz.fin += kind == UDT_IO_XFER_FIN;
}
static udt_time fz_now(const io_port *p)
{
    (void)p;
    return 1000;
}
static void fz_arm(io_port *p, io_timer *t, udt_time at)
{
    (void)p;
    (void)at;
    t->slot = 0;
}
static void fz_stop(io_port *p, io_timer *t)
{
    (void)p;
    t->slot = -1;
}
static void fz_nothing(xfer *x)
{
    (void)x;
}
static void fz_flag(xfer *x, bool flag)
{
    (void)x;
    (void)flag;
}

#define stream_recv fz_recv
#define disk_buf_get fz_get
#define disk_buf_put fz_put
#define disk_buf_share fz_share
#define disk_submit fz_submit
#define io_cmd_push fz_push
#define io_port_now fz_now
#define io_timer_arm fz_arm
#define io_timer_stop fz_stop
#define xfer_fail fz_fail
#define xfer_emit fz_emit
#define xfer_hear fz_nothing
#define xfer_ref fz_nothing
#define xfer_unref fz_nothing
#define xfer_try_end fz_nothing
#define xfer_note_progress fz_nothing
#define xfer_show fz_flag
#define xfer_disk_wait fz_flag
#define xfer_buf_put(x, b) (fz_put(NULL, b), (x)->held_bufs--)
#include "io/file_recv.c"

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 0x9e3779b97f4a7c15u >> 56);
}

/* Keys of both directions, made once for each mode. */
static void directions(bool encrypt, sdc_dir *out, sdc_dir *in)
{
    static sdc_hello met[2];
    static const uint8_t nonce[SDC_NONCE_BYTES] = {1};
    sdc_hello *a = &met[encrypt], b;
    uint8_t open[SDC_OPEN_BYTES];
    if (!a->met) {
        const udt_ticket t = {.tag = 7, .encrypt = encrypt};
        sdc_hello_init(a, &t, true, nonce);
        sdc_hello_init(&b, &t, false, nonce);
        expect(sdc_hello_write(a, open) == 0 && sdc_hello_read(&b, open) == 0 &&
               sdc_hello_write(&b, open) == 0 && sdc_hello_read(a, open) == 0);
    }
    expect(sdc_dir_init(out, a, true) == 0 && sdc_dir_init(in, a, true) == 0);
}

static void pump(xfer *x)
{
    under_test_pump(x);
    for (int i = 0; i < 1000 && fz.job; i++) {
        struct disk_job *job = fz.job;
        fz.job = NULL;
        under_test_job(job);
        fz.job_done(NULL, x);
    }
}

/* What the peer has said so far, honest or not. */
typedef struct peer {
    sdc_dir dir;
    sdc_blocks sum;
    uint64_t said;
    bool lied; /* something was wrong: nothing behind it counts */
    bool fin;  /* an honest FIN was said */
} peer;

static void say(peer *p, const uint8_t *row)
{
    static uint8_t rec[SDC_MAX_RECORD];
    static const int types[] = {SDC_DATA, SDC_DATA, SDC_DATA, SDC_DATA,
                                SDC_DATA, SDC_FIN,  SDC_DONE, SDC_ERROR};
    int type = types[row[0] & 7];
    if (WIRE - fz.len < sizeof rec)
        return;
    size_t n = (size_t)(row[1] << 8 | row[2]) % SDC_MAX_BODY + 1;
    uint8_t *body = rec + SDC_HEADER_BYTES;
    if (type == SDC_FIN) {
        sdc_fin f = {.size = p->said};
        sdc_blocks copy = p->sum;
        copy.crcs = malloc(((size_t)p->sum.n + 1) * sizeof *copy.crcs);
        copy.cap = p->sum.n + 1;
        expect(copy.crcs != NULL);
        if (p->sum.n)
            memcpy(copy.crcs, p->sum.crcs, p->sum.n * sizeof *copy.crcs);
        expect(sdc_blocks_end(&copy, f.digest) == 0);
        sdc_blocks_fini(&copy);
        if (row[0] & 32) {
            f.size += row[1] & 1;
            f.digest[row[2] & 31] ^= (uint8_t)(row[1] | !(row[1] & 1));
            p->lied = true;
        }
        p->fin |= !p->lied;
        sdc_fin_put(&f, body);
        n = SDC_FIN_BYTES;
    } else if (type == SDC_DATA) {
        for (size_t i = 0; i < n; i++)
            body[i] = byte_at(p->said + i);
        if (!p->lied && !(row[0] & 24)) {
            expect(sdc_blocks_add(&p->sum, body, n) == 0);
            p->said += n;
        }
    } else {
        n = type == SDC_DONE ? SDC_DONE_BYTES : SDC_ERROR_BYTES;
        memset(body, row[1], n);
        p->lied = true;
    }
    size_t size = sdc_seal(&p->dir, type, rec, n);
    if (row[0] & 8)
        rec[(size_t)row[2] * 64 % size] ^= 1;
    else if (row[0] & 16)
        rec[row[2] & 3] ^= (uint8_t)(row[1] | 1);
    p->lied |= row[0] & 24;
    memcpy(fz.bytes + fz.len, rec, size);
    fz.len += size;
}

static void check(const xfer *x, const peer *p, bool all)
{
    static uint8_t back[MOST + SDC_MAX_RECORD];
    expect(x->pos <= MOST && (p->lied || x->pos <= (int64_t)p->said));
    expect(fz.fin <= 1 && (!fz.fin || (p->fin && (uint64_t)x->pos <= p->said)));
    if (!all)
        return;
    ssize_t n = pread(x->fd, back, sizeof back, 0);
    expect(n >= 0 && n <= MOST);
    for (ssize_t i = 0; i < n && i < (ssize_t)p->said; i++)
        expect(back[i] == byte_at((uint64_t)i));
    expect(x->encrypt ? n <= (ssize_t)p->said : true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static xfer x;
    static peer p; /* large, both */
    static uint8_t *wire;
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (!wire)
        wire = malloc(WIRE);
    if (size < 1 || fd < 0 || !wire || ftruncate(fd, 0) != 0)
        return 0;
    memset(&x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    memset(&fz, 0, sizeof fz);
    fz.bytes = wire;
    fz.cut = SIZE_MAX;
    x.encrypt = data[0] & 1;
    x.small = data[0] & 2;
    x.fd = fd;
    x.phase = XFER_DATA;
    x.o.length = data[0] & 4 ? MOST : MOST / 4;
    x.o.flags = data[0] & 8 ? UDT_XFER_DIRECT : 0;
    x.step.slot = -1;
    xfer_list_init(&x.ready);
    xfer_list_init(&x.work);
    directions(x.encrypt, &p.dir, &x.recv);
    data++;
    size--;
    for (; size >= 4 && x.phase == XFER_DATA && !fz.end; data += 4, size -= 4) {
        say(&p, data);
        fz.end = data[0] & 64;
        fz.cut = data[3] & 128 ? SIZE_MAX : 1u + (size_t)data[3] * data[3];
        x.flush = data[3] & 1;
        pump(&x);
        check(&x, &p, false);
    }
    x.flush = true;
    pump(&x);
    check(&x, &p, true);
    struct disk_buf *b;
    while ((b = xfer_list_take(&x.ready)) || (b = xfer_list_take(&x.work)))
        fz_put(NULL, b);
    if (x.cur)
        fz_put(NULL, x.cur);
    sdc_dir_fini(&x.recv);
    sdc_dir_fini(&p.dir);
    sdc_blocks_fini(&x.blocks);
    sdc_blocks_fini(&p.sum);
    return 0;
}
