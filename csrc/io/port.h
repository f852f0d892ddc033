/* Inside of a port: what file transfers and GMP bulk streams may ask of the loop thread.
 * Everything here but io_cmd_push, io_port_post and io_emit runs on the port's own loop thread. */
#ifndef IO_PORT_H
#define IO_PORT_H

#include "udt.h"
#include "udt/mux.h"

struct io_port;
typedef struct io_port io_port;

/* 0, or UDT_E_FORKED in the child of a fork: public functions ask this first. */
int io_ctx_alive(const udt_ctx *ctx);

udt_ctx *io_port_ctx(io_port *p);
udt_mux *io_port_mux(io_port *p);
udt_time io_port_now(const io_port *p); /* time of this turn of the loop */
int32_t io_port_id(const io_port *p);

/* Events of engine socket `sock` go to fn instead of the application's queue. fn NULL = back. False
 * without memory: the socket is closed, and nothing more is heard of it. */
typedef void (*io_sock_fn)(io_port *p, void *arg, const struct udt_ev *ev);
bool io_port_own(io_port *p, int32_t sock, io_sock_fn fn, void *arg);

/* One-shot timer; a handle embedded in the owner. Re-arming moves it; fires on the loop thread. */
typedef struct io_timer {
    udt_time at;
    void (*fn)(io_port *p, void *arg);
    void *arg;
    int32_t slot; /* place in the port's queue, -1 = not armed; set to -1 before first use */
    struct io_timer *next; /* of those for which the queue had no memory */
} io_timer;
void io_timer_arm(io_port *p, io_timer *t, udt_time at);
void io_timer_stop(io_port *p, io_timer *t);

/* From any thread: run fn(p, arg) on the loop thread soon, in order of posting per thread. One that
 * must not get lost is embedded in what it is about: pushing it cannot fail. The owner keeps it
 * alive, and does not push it again, until it runs. */
typedef void (*io_cmd_fn)(io_port *p, void *arg);
typedef struct io_cmd {
    struct io_cmd *next;
    io_cmd_fn fn;
    void *arg;
    bool heap; /* made by io_port_post: counted and freed by the loop */
} io_cmd;
void io_cmd_push(io_port *p, io_cmd *c);
/* The same with a command of its own. The queue holds a fixed number of these; AGAIN when it is
 * full, or NOMEM. */
int io_port_post(io_port *p, io_cmd_fn fn, void *arg);

/* From any thread: queue an event of the handle ev->sock for the application. It cannot fail: the
 * room was there since the handle was made. One whose like waits already is not queued again
 * (PROGRESS: the newest value counts), nor one of a handle that is gone. */
void io_emit(udt_ctx *ctx, const udt_event *ev);

/* Public handles (udt_event.sock): one table per context over sockets, ports and transfers. */
enum io_kind { IO_KIND_PORT = 1, IO_KIND_SOCK = 2, IO_KIND_XFER = 3 };
/* NOMEM; LIMIT when there are 131072 of them. */
int32_t io_handle_new(udt_ctx *ctx, enum io_kind kind, io_port *p, void *obj);
/* Looks up and pins an object; unpin with io_handle_put. NULL when gone or of another kind. */
void *io_handle_get(udt_ctx *ctx, int32_t h, enum io_kind kind, io_port **p);
void io_handle_put(udt_ctx *ctx, int32_t h);
void io_handle_free(udt_ctx *ctx,
                    int32_t h); /* object freed by its `io_handle_on_free` when unpinned */
/* Says who frees the object of handle `h`: fn(obj) runs once, on whatever thread drops the last pin
 * after io_handle_free. Call it right after io_handle_new. */
void io_handle_on_free(udt_ctx *ctx, int32_t h, void (*fn)(void *obj));

/* A hold keeps the loop running: udt_port_close first ends all sockets (owned ones hear FAILED with
 * UDT_E_CLOSED, then CLOSED), then the loop goes on running posts and timers until no hold is
 * left. Whoever has work outside the loop that will post back (disk jobs) holds the port from
 * before it starts until its last completion ran. io_port_hold on the loop thread or with the
 * port's handle pinned (CLOSED when the port is closing); io_port_drop on the loop thread. */
int io_port_hold(io_port *p);
void io_port_drop(io_port *p);
bool io_port_closing(const io_port *p); /* loop thread: no new sockets are wanted */

/* Loop thread: udt_stats_get(handle) reports engine socket `sock` from now on. Ends by itself, with
 * a last snapshot, when the engine socket closes. */
void io_port_stats_of(io_port *p, int32_t sock, int32_t handle);

/* Disk threads of the context (io/disk.h); `_made`: NULL as long as no file was transferred. */
struct disk_pool;
struct disk_pool *io_ctx_disk(udt_ctx *ctx);
struct disk_pool *io_ctx_disk_made(udt_ctx *ctx);
/* No statistics are taken while nothing moves: the rates of old ones are 0 by now. */
void io_stats_age(udt_sock_stats *st);

#endif
