/* Disk threads of a context: the only threads that touch files, so that a slow disk stops neither
 * pacing nor acknowledgements. Jobs run in the order of submission; an owner submits its next job
 * when it has heard of the end of the last one, so jobs of one owner never overlap.
 *
 * The pool also keeps the buffers that travel between disk and loop threads, and the list of the
 * transfers that use it (io/file.h). */
#ifndef IO_DISK_H
#define IO_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct disk_pool;
typedef struct disk_pool disk_pool;

/* Embedded in its owner, which keeps it alive until run() returns. run() is the last access of the
 * pool to the job: it may free or resubmit it. */
struct disk_job {
    struct disk_job *next;
    void (*run)(struct disk_job *job);
};

/* threads 0 = 2. NULL when out of memory or threads. */
disk_pool *disk_pool_new(unsigned threads);
/* Runs what is queued, then joins the threads. Call it after all ports are closed
 * (xfer_port_closing has then waited for the transfers). */
void disk_pool_free(disk_pool *d);
void disk_submit(disk_pool *d, struct disk_job *job);

/* A buffer that holds one block of a transfer in records. `at` and `len` are the user's. */
struct disk_buf {
    struct disk_buf *next;
    size_t cap; /* bytes in data */
    size_t at, len;
    uint8_t *data;
};
/* From any thread. small: 64 KiB of payload instead of 1 MiB. NULL = out of memory. Freed buffers
 * are kept for reuse up to a bound. */
struct disk_buf *disk_buf_get(disk_pool *d, bool small);
void disk_buf_put(disk_pool *d, struct disk_buf *b);

/* Transfers of the context, for io/file.c: how many there are decides what each may hold. */
struct xfer;
void disk_xfer_add(disk_pool *d, struct xfer *x);
void disk_xfer_remove(disk_pool *d, struct xfer *x);
/* Buffers that one transfer may hold now, 2 to 8: 256 MiB are shared by all. */
unsigned disk_buf_share(disk_pool *d);
/* Calls fn with each transfer while the list is locked: fn neither adds nor removes. */
void disk_xfer_each(disk_pool *d, void (*fn)(struct xfer *x, void *arg), void *arg);

#endif
