/* What a transfer asks of its connection, whichever it is: an engine socket (UDP) or a stripe of
 * TLS connections. At most one of them is in use. Loop thread. */
#ifndef IO_STREAM_H
#define IO_STREAM_H

#include "io/stripe.h"

typedef struct io_stream {
    io_port *port;
    int32_t sock;   /* engine socket, 0 = none */
    stripe *stripe; /* in use when tls; a responder's waits beside the engine socket */
    bool tls;
} io_stream;

static inline bool stream_up(const io_stream *s)
{
    return s->tls ? s->stripe != NULL : s->sock > 0;
}
static inline ssize_t stream_send(io_stream *s, const uint8_t *b, size_t n)
{
    if (!stream_up(s))
        return UDT_E_CLOSED;
    return s->tls ? stripe_send(s->stripe, b, n)
                  : udt_mux_send(io_port_mux(s->port), s->sock, b, n, io_port_now(s->port));
}
static inline ssize_t stream_recv(io_stream *s, uint8_t *b, size_t cap)
{
    if (!stream_up(s))
        return UDT_E_CLOSED;
    return s->tls ? stripe_recv(s->stripe, b, cap)
                  : udt_mux_recv(io_port_mux(s->port), s->sock, b, cap, io_port_now(s->port));
}
static inline size_t stream_unacked(io_stream *s)
{
    if (!stream_up(s))
        return 0;
    return s->tls ? stripe_unacked(s->stripe) : udt_mux_unacked(io_port_mux(s->port), s->sock);
}
static inline bool stream_stats(io_stream *s, udt_stats *st)
{
    if (!stream_up(s))
        return false;
    if (!s->tls)
        return udt_mux_stats(io_port_mux(s->port), s->sock, st) == 0;
    stripe_stats(s->stripe, st);
    return true;
}
/* Gives up the connection in use; no event of it follows. */
static inline void stream_close(io_stream *s, uint32_t linger_ms)
{
    if (!stream_up(s))
        return;
    if (s->tls) {
        stripe_close(s->stripe, linger_ms);
        s->stripe = NULL;
        return;
    }
    io_port_own(s->port, s->sock, NULL, NULL);
    (void)udt_mux_close(io_port_mux(s->port), s->sock, linger_ms, io_port_now(s->port));
    s->sock = 0;
}
/* Does not take connections of its ticket over TLS any more. */
static inline void stream_no_tls(io_stream *s)
{
    if (!s->tls && s->stripe) {
        stripe_close(s->stripe, 0);
        s->stripe = NULL;
    }
}

#endif
