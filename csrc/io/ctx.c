/* Contexts: birth, death, the fork guard, clock and randomness. */
#include "io/priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

udt_time io_clock(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (udt_time)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

void io_random(void *arg, uint8_t *buf, size_t len)
{
    (void)arg;
    while (len > 0) {
        ssize_t n = getrandom(buf, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            abort(); /* no protocol of ours is safe without random numbers */
        buf += n;
        len -= (size_t)n;
    }
}

int io_ctx_alive(const udt_ctx *ctx)
{
    if (ctx->alive)
        return *(volatile uint32_t *)ctx->alive == 1 ? 0 : UDT_E_FORKED;
    return ctx->pid == getpid() ? 0 : UDT_E_FORKED;
}

/* A forked child would repeat nonces and fight for packets. The kernel wipes our page in a child
 * whatever way it was made (fork, clone, a library's own call), which pthread_atfork cannot see. */
static void guard_init(udt_ctx *ctx)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0) {
        ctx->alive = page;
        *ctx->alive = 1;
        return;
    }
    if (page != MAP_FAILED)
        munmap(page, 4096);
    ctx->pid = getpid();
}

int udt_ctx_new(const udt_ctx_config *cfg, udt_ctx **out)
{
    udt_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return UDT_E_NOMEM;
    uint32_t max_events = cfg && cfg->max_events ? cfg->max_events : 65536;
    ctx->max_buf_bytes = cfg && cfg->max_buf_bytes ? cfg->max_buf_bytes : (uint64_t)1 << 30;
    ctx->disk_threads = cfg && cfg->disk_threads ? cfg->disk_threads : 2;
    int err = io_ready_init(ctx, max_events);
    if (err) {
        free(ctx);
        return err;
    }
    atomic_init(&ctx->refs, 1);
    atomic_store(&ctx->fds[0], ctx->ready.fd);
    pthread_mutex_init(&ctx->mu, NULL);
    pthread_mutex_init(&ctx->disk_mu, NULL);
    pthread_cond_init(&ctx->closers_cv, NULL);
    guard_init(ctx);
    *out = ctx;
    return 0;
}

void io_ctx_ref(udt_ctx *ctx)
{
    atomic_fetch_add(&ctx->refs, 1);
}

void io_ctx_unref(udt_ctx *ctx)
{
    if (atomic_fetch_sub(&ctx->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&ctx->mu);
    pthread_mutex_destroy(&ctx->disk_mu);
    pthread_cond_destroy(&ctx->closers_cv);
    if (ctx->alive)
        munmap(ctx->alive, 4096);
    free(ctx);
}

void io_ctx_enter_close(udt_ctx *ctx)
{
    io_ctx_ref(ctx);
    pthread_mutex_lock(&ctx->mu);
    ctx->port_closers++;
    pthread_mutex_unlock(&ctx->mu);
}

void io_ctx_leave_close(udt_ctx *ctx)
{
    pthread_mutex_lock(&ctx->mu);
    if (--ctx->port_closers == 0)
        pthread_cond_broadcast(&ctx->closers_cv);
    pthread_mutex_unlock(&ctx->mu);
    io_ctx_unref(ctx);
}

/* A port that another thread is closing looks closed from here, but its loop may still run. */
static void wait_for_closers(udt_ctx *ctx)
{
    pthread_mutex_lock(&ctx->mu);
    while (ctx->port_closers > 0)
        pthread_cond_wait(&ctx->closers_cv, &ctx->mu);
    pthread_mutex_unlock(&ctx->mu);
}

/* In a forked child only the inherited descriptors are given back; locks and memory may be in any
 * state there. */
static void free_forked(udt_ctx *ctx)
{
    for (int i = 0; i < IO_MAX_FDS; i++) {
        int fd = atomic_exchange(&ctx->fds[i], 0);
        if (fd > 0)
            close(fd);
    }
}

void udt_ctx_free(udt_ctx *ctx)
{
    if (!ctx)
        return;
    if (io_ctx_alive(ctx)) {
        free_forked(ctx);
        return;
    }
    for (int i = 0; i < IO_MAX_PORTS; i++) {
        pthread_mutex_lock(&ctx->mu);
        int32_t id = ctx->ports[i] ? ctx->ports[i]->id : 0;
        pthread_mutex_unlock(&ctx->mu);
        if (id)
            udt_port_close(ctx, id);
    }
    wait_for_closers(ctx);
    if (ctx->disk)
        ctx->disk_free(ctx->disk);
    ctx->disk = NULL;
    io_ready_fini(ctx);
    io_handles_fini(ctx);
    io_ctx_unref(ctx);
}
