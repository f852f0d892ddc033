/* A slow disk: the disk threads of a context have to do with something else for a while. */
#ifndef TEST_AWAY_H
#define TEST_AWAY_H

#include "test_xfer.h"

#include "io/disk.h"
#include "io/port.h"

#include <stdatomic.h>

enum { AWAY_THREADS = 2 }; /* as many as a context has unless told */

typedef struct away {
    struct away_job {
        struct disk_job job;
        struct away *of;
    } job[AWAY_THREADS];
    _Atomic bool back;
    _Atomic int gone; /* threads that are away */
} away;

static inline void away_run(struct disk_job *job)
{
    away *a = ((struct away_job *)(void *)job)->of;
    atomic_fetch_add(&a->gone, 1);
    while (!atomic_load(&a->back))
        usleep(1000);
    atomic_fetch_sub(&a->gone, 1);
}

/* The disk of t does nothing more until away_end(). */
static inline void away_begin(away *a, tio *t)
{
    atomic_store(&a->back, false);
    for (int i = 0; i < AWAY_THREADS; i++) {
        a->job[i] = (struct away_job){{.run = away_run}, a};
        disk_submit(io_ctx_disk(t->ctx), &a->job[i].job);
    }
    while (atomic_load(&a->gone) < AWAY_THREADS)
        usleep(1000);
}

static inline void away_end(away *a)
{
    atomic_store(&a->back, true);
    while (atomic_load(&a->gone) > 0)
        usleep(1000);
}

#endif
