/* File transfers (udt_xfer_* of udt.h): what the loop and the handle table call.
 *
 * A transfer is owned by its port's loop thread: rendezvous by the ticket's tag, exchange of OPEN,
 * records, FIN, DONE or ERROR (docs/protocol/data-channel.md). Disk threads read, seal, open,
 * checksum, write and fsync; the loop thread moves sealed bytes between buffers and the engine. */
#ifndef IO_FILE_H
#define IO_FILE_H

#include "io/port.h"

struct xfer;
typedef struct xfer xfer;

/* On the loop thread of a closing port: every transfer of it ends (XFER_DONE, err CLOSED). One
 * whose disk job still runs keeps its hold on the port until that job is done. */
void xfer_port_closing(io_port *p);

/* On the loop thread: a router said that datagrams to this peer are not let through. */
void xfer_prohibited(io_port *p, const udt_addr *to);
/* Or the peer's machine, or a firewall, that its port is closed. */
void xfer_refused(io_port *p, const udt_addr *to);

/* io_handle_on_free of IO_KIND_XFER: the handle's reference is gone. */
void xfer_on_free(void *obj);

/* udt_stats_get for a transfer handle; obj is pinned by the caller. Any thread. */
int xfer_stats(void *obj, udt_sock_stats *out);

#endif
