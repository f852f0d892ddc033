/* Steps of Python that would otherwise be several calls into the core each; compiled into _ffi only. */
#include <string.h>

/* udt_ctx_poll, with the data of messages copied into `data` one behind the other and released.
 * What does not fit into `cap` keeps its `buf`: the caller copies and releases that itself. */
static int glue_poll(udt_ctx *ctx, udt_event *ev, int max, uint8_t *data, size_t cap)
{
    int n = udt_ctx_poll(ctx, ev, max);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        struct sgmp_ev *g = &ev[i].g;
        uint32_t len = g->len;
        if (ev[i].kind < SGMP_EV_MESSAGE || !g->buf || len > cap - used)
            continue;
        if (len)
            memcpy(data + used, g->data, len);
        used += len;
        udt_event_release(ctx, &ev[i]);
        g->len = len;
    }
    return n;
}

static int64_t glue_call(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint32_t method,
                         const uint8_t *buf, size_t len, uint16_t flags, uint32_t deadline_ms)
{
    sgmp_opts o = {.flags = flags, .deadline_ms = deadline_ms};
    return sgmp_call(ctx, port, to, method, buf, len, &o);
}

static int64_t glue_send(udt_ctx *ctx, int32_t port, const sgmp_dest *to, uint16_t channel,
                         const uint8_t *buf, size_t len, uint16_t flags, uint32_t deadline_ms)
{
    sgmp_opts o = {.channel = channel, .flags = flags, .deadline_ms = deadline_ms};
    return sgmp_send(ctx, port, to, buf, len, &o);
}
