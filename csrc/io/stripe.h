/* A byte stream over several TLS 1.3 connections, for where UDP does not pass: what a transfer uses
 * in place of an engine socket. Everything runs on the port's loop thread, nothing blocks.
 *
 * The stream is cut into frames (offset u64, length u32, big-endian, then the bytes), and each goes
 * over whichever connection has room. On one connection offsets only grow, so the receiver needs no
 * memory for reordering: the frame it waits for is always the first unread one of some connection,
 * and what came too early waits in the kernel.
 *
 * Both ends are proved by a key that only they know (TLS with a pre-shared key and an ephemeral
 * Diffie-Hellman exchange): the identity is the ticket's, the key is derived from the ticket's.
 * docs/decisions/0080. */
#ifndef IO_STRIPE_H
#define IO_STRIPE_H

#include "io/port.h"

enum { STRIPE_MAX = 16, STRIPE_DEFAULT = 4 };

struct stripe;
typedef struct stripe stripe;

/* What happened, as events of engine sockets: CONNECTED, READABLE, WRITABLE (after AGAIN), DRAINED,
 * PEER_CLOSED, FAILED (err). After FAILED nothing follows. fn may close the stripe. */
typedef void (*stripe_fn)(io_port *p, void *arg, int kind, int err);

/* The identity and key of a ticket's connections. */
void stripe_psk(const udt_ticket *t, uint8_t psk[32]);

/* Begins n connections to `to`. NULL = out of memory or descriptors. */
stripe *stripe_connect(io_port *p, const udt_addr *to, const udt_ticket *t, unsigned n,
                       int32_t idle_ms, stripe_fn fn, void *arg);
/* Takes connections of this ticket from the port's listener; NULL when the port has none. */
stripe *stripe_await(io_port *p, const udt_ticket *t, int32_t idle_ms, stripe_fn fn, void *arg);
/* Bytes taken, or AGAIN (then WRITABLE follows), or the stream's error. */
ssize_t stripe_send(stripe *s, const uint8_t *b, size_t n);
/* Bytes put out, AGAIN, PEERCLOSED at the end, or the stream's error. */
ssize_t stripe_recv(stripe *s, uint8_t *b, size_t cap);
/* What the transfer may send (bytes a second, 0 = no cap), and whether this end is its sender. */
void stripe_rate(stripe *s, int64_t max_Bps, bool sender);
size_t stripe_unacked(stripe *s); /* bytes that the peer's host has not acknowledged, about */
void stripe_stats(stripe *s, struct udt_stats *out);
/* No event follows. What was sent still goes out for linger_ms; with linger_ms > 0 the connections
 * stay whole until the peer, who has heard it, ends them. */
void stripe_close(stripe *s, uint32_t linger_ms);

/* ---- the port's side: tls_port.c ---- */

struct io_tls;
int io_tls_fd(const io_port *p);     /* to be polled for input, or -1 */
bool io_tls_due(const io_port *p);   /* a turn is worth its system call */
bool io_tls_again(const io_port *p); /* there is something to do at once */
void io_tls_turn(io_port *p);        /* takes in what happened */
void io_tls_closing(io_port *p); /* no new connections; those that still say something end soon */
void io_tls_fini(io_port *p);
/* A ticket was used over UDP: its owner, who comes over TLS because it hears no answer, is told. */
void io_tls_used(io_port *p, const uint8_t id[16]);
/* ---- tls_pace.c ---- */

void io_tls_pace(io_port *p); /* caps, connections or what they send for have changed */

#endif
