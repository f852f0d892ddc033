/* Rate caps that all connections of a port share, from any thread to the engine that keeps them. */
#include "io/priv.h"
#include "io/stripe.h"

struct cap {
    const udt_addr *prefix;
    int bits, err;
    int64_t Bps;
};

static void set(io_port *p, void *arg)
{
    struct cap *c = arg;
    c->err = p->ended ? UDT_E_CLOSED : udt_mux_link_cap(p->mux, c->prefix, c->bits, c->Bps);
    io_tls_pace(p);
}

int udt_port_link_cap(udt_ctx *ctx, int32_t port, const udt_addr *prefix, int bits, int64_t Bps)
{
    int err = io_ctx_alive(ctx);
    struct cap c = {.prefix = prefix, .bits = bits, .Bps = Bps};
    io_port *p = err ? NULL : io_handle_get(ctx, port, IO_KIND_PORT, NULL);
    if (!p)
        return err ? err : UDT_E_NOSOCK;
    err = io_port_call(p, set, &c);
    io_handle_put(ctx, port);
    return err ? err : c.err;
}
