/* The one place where a context meets the disk threads and file transfers: made at first use. */
#include "io/disk.h"
#include "io/file.h"
#include "io/priv.h"

struct disk_pool *io_ctx_disk(udt_ctx *ctx)
{
    pthread_mutex_lock(&ctx->disk_mu);
    if (!ctx->disk) {
        ctx->disk = disk_pool_new(ctx->disk_threads);
        ctx->disk_free = disk_pool_free;
        ctx->xfer_closing = xfer_port_closing;
        ctx->xfer_stats = xfer_stats;
    }
    struct disk_pool *d = ctx->disk;
    pthread_mutex_unlock(&ctx->disk_mu);
    return d;
}

struct disk_pool *io_ctx_disk_made(udt_ctx *ctx)
{
    pthread_mutex_lock(&ctx->disk_mu);
    struct disk_pool *d = ctx->disk;
    pthread_mutex_unlock(&ctx->disk_mu);
    return d;
}
