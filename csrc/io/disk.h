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

/* Embedded in its owner. The pool does not touch a job any more when run() begins: run() may free
 * or resubmit it. */
struct disk_job {
    struct disk_job *next;
    void (*run)(struct disk_job *job);
};

/* threads 0 = 2. NULL when out of memory or threads. */
disk_pool *disk_pool_new(unsigned threads);
/* Runs what is queued, then joins the threads. Call it after all ports are closed: a transfer holds
 * its port (io_port_hold) until its last job is done. */
void disk_pool_free(disk_pool *d);
void disk_submit(disk_pool *d, struct disk_job *job);

/* A buffer that holds one block of a transfer in records. at, len and payload are the user's. */
struct disk_buf {
    struct disk_buf *next;
    size_t cap; /* bytes in data */
    size_t at, len, payload;
    uint8_t *data;
};
/* From any thread. small: 64 KiB of payload instead of 1 MiB. NULL = out of memory. Freed buffers
 * are kept for reuse up to a bound. */
struct disk_buf *disk_buf_get(disk_pool *d, bool small);
void disk_buf_put(disk_pool *d, struct disk_buf *b);

/* Transfers of the context between start and end: their number decides what each may hold. */
struct xfer;
void disk_xfer_add(disk_pool *d, struct xfer *x);
void disk_xfer_remove(disk_pool *d, struct xfer *x);
/* Any one of the transfers of a port that has not begun to end. On the port's loop thread. */
struct io_port;
struct xfer *disk_xfer_find(disk_pool *d, const struct io_port *p);
/* The first one of a port of which is(x, arg) holds. On the port's loop thread. */
struct xfer *disk_xfer_that(disk_pool *d, const struct io_port *p,
                            bool (*is)(const struct xfer *x, const void *arg), const void *arg);
/* Buffers that one transfer may hold now, 2 to 8: 256 MiB are shared by all. */
unsigned disk_buf_share(disk_pool *d);
#endif
