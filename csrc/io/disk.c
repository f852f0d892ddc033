#include "io/disk.h"

#include "io/file_priv.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum {
    MAX_THREADS = 64,
    SHARED_BUFS = 256, /* blocks that all transfers share: 256 MiB */
    KEPT_BUFS = 32,    /* free ones kept for reuse, of each size */
    KEPT_SMALL = 64
};

struct disk_pool {
    pthread_mutex_t mu;
    pthread_cond_t work;
    struct disk_job *head, **tail; /* queued jobs; at most one per owner */
    bool stopping;
    unsigned threads;
    pthread_t thread[MAX_THREADS];

    struct disk_buf *kept[2]; /* free buffers: large, small */
    unsigned nkept[2];
    xfer *xfers; /* every transfer between start and end, linked by x->link */
    unsigned nxfers;
};

static struct disk_job *next_job(disk_pool *d)
{
    pthread_mutex_lock(&d->mu);
    while (!d->head && !d->stopping)
        pthread_cond_wait(&d->work, &d->mu);
    struct disk_job *j = d->head;
    if (j) {
        d->head = j->next;
        if (!d->head)
            d->tail = &d->head;
    }
    pthread_mutex_unlock(&d->mu);
    return j;
}

static void *disk_thread(void *arg)
{
    struct disk_job *j;
    while ((j = next_job(arg)))
        j->run(j);
    return NULL;
}

/* No signal is ours: above all SIGXFSZ, so that a file size limit is an error of the write. */
static unsigned start_threads(disk_pool *d, unsigned want)
{
    sigset_t all, old;
    unsigned n = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n < want && pthread_create(&d->thread[n], NULL, disk_thread, d) == 0) {
        pthread_setname_np(d->thread[n], "sector-disk");
        n++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n;
}

disk_pool *disk_pool_new(unsigned threads)
{
    disk_pool *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    threads = threads == 0 ? 2 : threads > MAX_THREADS ? MAX_THREADS : threads;
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->work, NULL);
    d->tail = &d->head;
    d->threads = start_threads(d, threads);
    if (d->threads == 0) {
        disk_pool_free(d);
        return NULL;
    }
    return d;
}

void disk_pool_free(disk_pool *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->mu);
    d->stopping = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->mu);
    for (unsigned i = 0; i < d->threads; i++)
        pthread_join(d->thread[i], NULL);
    for (int small = 0; small < 2; small++) {
        while (d->kept[small]) {
            struct disk_buf *b = d->kept[small];
            d->kept[small] = b->next;
            free(b);
        }
    }
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->mu);
    free(d);
}

void disk_submit(disk_pool *d, struct disk_job *job)
{
    pthread_mutex_lock(&d->mu);
    job->next = NULL;
    *d->tail = job;
    d->tail = &job->next;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
}

/* ---- buffers ---- */

struct disk_buf *disk_buf_get(disk_pool *d, bool small)
{
    pthread_mutex_lock(&d->mu);
    struct disk_buf *b = d->kept[small];
    if (b) {
        d->kept[small] = b->next;
        d->nkept[small]--;
    }
    pthread_mutex_unlock(&d->mu);
    if (!b) {
        size_t cap = small ? XFER_SMALL_WIRE : XFER_WIRE;
        b = malloc(sizeof *b + cap);
        if (!b)
            return NULL;
        b->cap = cap;
        b->data = (uint8_t *)(b + 1);
    }
    b->next = NULL;
    b->at = b->len = b->payload = 0;
    return b;
}

void disk_buf_put(disk_pool *d, struct disk_buf *b)
{
    bool small = b->cap == XFER_SMALL_WIRE;
    pthread_mutex_lock(&d->mu);
    bool keep = d->nkept[small] < (small ? KEPT_SMALL : KEPT_BUFS);
    if (keep) {
        b->next = d->kept[small];
        d->kept[small] = b;
        d->nkept[small]++;
    }
    pthread_mutex_unlock(&d->mu);
    if (!keep)
        free(b);
}

unsigned disk_buf_share(disk_pool *d)
{
    pthread_mutex_lock(&d->mu);
    unsigned share = d->nxfers ? SHARED_BUFS / d->nxfers : XFER_MAX_BUFS;
    pthread_mutex_unlock(&d->mu);
    return share < 2 ? 2 : share > XFER_MAX_BUFS ? XFER_MAX_BUFS : share;
}

/* ---- transfers ---- */

void disk_xfer_add(disk_pool *d, xfer *x)
{
    pthread_mutex_lock(&d->mu);
    x->link.next = d->xfers;
    x->link.back = &d->xfers;
    if (d->xfers)
        d->xfers->link.back = &x->link.next;
    d->xfers = x;
    d->nxfers++;
    pthread_mutex_unlock(&d->mu);
}

void disk_xfer_remove(disk_pool *d, xfer *x)
{
    pthread_mutex_lock(&d->mu);
    *x->link.back = x->link.next;
    if (x->link.next)
        x->link.next->link.back = x->link.back;
    d->nxfers--;
    pthread_mutex_unlock(&d->mu);
}

xfer *disk_xfer_that(disk_pool *d, const io_port *p, bool (*is)(const xfer *x, const void *arg),
                     const void *arg)
{
    pthread_mutex_lock(&d->mu);
    xfer *x = d->xfers;
    while (x && (x->port != p || !is(x, arg)))
        x = x->link.next;
    pthread_mutex_unlock(&d->mu);
    return x;
}

xfer *disk_xfer_find(disk_pool *d, const io_port *p)
{
    pthread_mutex_lock(&d->mu);
    xfer *x = d->xfers;
    while (x && (x->port != p || x->phase >= XFER_ENDING || !x->held))
        x = x->link.next;
    pthread_mutex_unlock(&d->mu);
    return x;
}
