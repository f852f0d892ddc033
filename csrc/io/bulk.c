/* Over-size GMP messages: the node's orders become UDT stream connections on the same port, between
 * the node's sealed streams and the UDT engine. All on the loop thread. */
#include "io/priv.h"

#include "base/addr.h"

#include <stdlib.h>

enum {
    MAX_OUT = 128, /* the node has at most 64; the rest may still be closing */
    MAX_IN = 256,
    CHUNK = 65536,
    BUF_BYTES = 4 << 20 /* send and receive buffer of a connection: bounds the work of a turn */
};
/* An idle stream is closed by its sender, after 60 s. */
static const udt_time SILENT_US = 100000000, QUIET_US = 1000000;

typedef struct bulk_out {
    struct bulk_out *next;
    struct io_bulk *b;
    uint64_t id; /* 0 = the node wants to hear no more of it */
    int32_t es;
    udt_addr to;
    bool open, blocked;
    uint8_t *chunk; /* CHUNK bytes, NULL while nothing is to be sent */
    size_t at, len;
} bulk_out;

typedef struct bulk_in {
    struct bulk_in *next;
    struct io_bulk *b;
    int64_t id; /* the node's, 0 = it was told that the stream is gone */
    int32_t es;
    bool shut;
    udt_time heard;
} bulk_in;

struct io_bulk {
    int32_t listener;
    bulk_out *out;
    bulk_in *in;
    uint32_t nout, nin;
    io_timer sweep;
    uint8_t *buf; /* CHUNK bytes, for what comes in */
};

static void stream_opts(const io_port *p, udt_opts *o)
{
    udt_opts_init(o);
    o->type = UDT_STREAM;
    o->mss = p->mss;
    o->own_peer = o->offer = true;
    o->snd_buf_bytes = o->rcv_buf_bytes = BUF_BYTES;
}

/* ---- out ------------------------------------------------------------------------------------ */
static void out_free(bulk_out *o)
{
    bulk_out **at = &o->b->out;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    o->b->nout--;
    free(o->chunk);
    free(o);
}

static void out_failed(io_port *p, bulk_out *o, int err)
{
    if (!o->id)
        return;
    uint64_t id = o->id;
    o->id = 0;
    sgmp_node_bulk_failed(p->node, id, err, p->now);
}

/* Fills the chunk; false when the node has nothing to send. */
static bool refill(io_port *p, bulk_out *o)
{
    o->at = o->len = 0;
    if (!sgmp_node_bulk_work(p->node))
        return false;
    if (!o->chunk && !(o->chunk = malloc(CHUNK)))
        return false; /* asked again in the next turn */
    o->len = sgmp_node_bulk_read(p->node, o->id, o->chunk, CHUNK, p->now);
    return o->len > 0;
}

static void out_pump(io_port *p, bulk_out *o)
{
    while (o->open && o->id && !o->blocked) {
        if (o->at == o->len && !refill(p, o)) {
            free(o->chunk);
            o->chunk = NULL;
            return;
        }
        ssize_t n = udt_mux_send(p->mux, o->es, o->chunk + o->at, o->len - o->at, p->now);
        if (n > 0)
            o->at += (size_t)n;
        else if (n == UDT_E_AGAIN)
            o->blocked = true;
        else {
            out_failed(p, o, (int)n);
            (void)udt_mux_close(p->mux, o->es, 0, p->now);
        }
    }
}

static void on_out(io_port *p, void *arg, const struct udt_ev *ev)
{
    bulk_out *o = arg;
    switch (ev->kind) {
    case UDT_EV_CONNECTED:
        o->open = true;
        if (o->id)
            sgmp_node_bulk_opened(p->node, o->id, p->now);
        out_pump(p, o);
        break;
    case UDT_EV_WRITABLE:
        o->blocked = false;
        out_pump(p, o);
        break;
    case UDT_EV_PEER_CLOSED:
    case UDT_EV_FAILED:
        out_failed(p, o, ev->kind == UDT_EV_FAILED ? ev->err : UDT_E_PEERCLOSED);
        (void)udt_mux_close(p->mux, o->es, 0, p->now);
        break;
    case UDT_EV_CLOSED:
        out_failed(p, o, UDT_E_BROKEN);
        io_port_own(p, o->es, NULL, NULL);
        out_free(o);
        break;
    default:
        break;
    }
}

static int out_open(io_port *p, const struct sgmp_bulk_order *ord)
{
    struct io_bulk *b = p->bulk;
    if (b->nout >= MAX_OUT)
        return UDT_E_LIMIT;
    bulk_out *o = calloc(1, sizeof *o);
    if (!o)
        return UDT_E_NOMEM;
    udt_opts opts;
    stream_opts(p, &opts);
    int32_t es = udt_mux_connect(p->mux, &ord->to, &opts, p->now);
    if (es < 0) {
        free(o);
        return es;
    }
    if (!io_port_own(p, es, on_out, o)) {
        free(o);
        return UDT_E_NOMEM;
    }
    *o = (bulk_out){.next = b->out, .b = b, .id = ord->id, .es = es, .to = ord->to};
    b->out = o;
    b->nout++;
    return 0;
}

static void out_abort(io_port *p, uint64_t id)
{
    for (bulk_out *o = p->bulk->out; o; o = o->next)
        if (o->id == id) {
            o->id = 0;
            (void)udt_mux_close(p->mux, o->es, 0, p->now);
            return;
        }
}

void io_bulk_unreachable(io_port *p, const udt_addr *to)
{
    if (!p->bulk)
        return;
    for (bulk_out *o = p->bulk->out; o; o = o->next)
        if (!o->open && o->id && addr_eq(&o->to, to)) {
            out_failed(p, o, UDT_E_UNREACHABLE);
            (void)udt_mux_close(p->mux, o->es, 0, p->now);
        }
}

/* ---- in ------------------------------------------------------------------------------------- */
static void in_shut(io_port *p, bulk_in *i)
{
    if (i->id) {
        int64_t id = i->id;
        i->id = 0;
        sgmp_node_bulk_gone(p->node, id, p->now);
    }
    if (!i->shut) {
        i->shut = true;
        (void)udt_mux_close(p->mux, i->es, 0, p->now);
    }
}

static void in_abort(io_port *p, uint64_t id)
{
    for (bulk_in *i = p->bulk->in; i; i = i->next)
        if (i->id && (uint64_t)i->id == id) {
            i->id = 0;
            in_shut(p, i);
            return;
        }
}

static void in_pump(io_port *p, bulk_in *i)
{
    size_t budget = BUF_BYTES + CHUNK;
    while (i->id && budget >= CHUNK) {
        ssize_t n = udt_mux_recv(p->mux, i->es, i->b->buf, CHUNK, p->now);
        if (n == UDT_E_AGAIN)
            return;
        if (n < 0 || sgmp_node_bulk_write(p->node, i->id, i->b->buf, (size_t)n, p->now) < 0) {
            in_shut(p, i);
            return;
        }
        i->heard = p->now;
        budget -= CHUNK;
    }
}

static void in_free(bulk_in *i)
{
    bulk_in **at = &i->b->in;
    while (*at != i)
        at = &(*at)->next;
    *at = i->next;
    i->b->nin--;
    free(i);
}

static void on_in(io_port *p, void *arg, const struct udt_ev *ev)
{
    bulk_in *i = arg;
    switch (ev->kind) {
    case UDT_EV_READABLE:
        in_pump(p, i);
        break;
    case UDT_EV_PEER_CLOSED:
    case UDT_EV_FAILED:
        in_pump(p, i);
        in_shut(p, i);
        break;
    case UDT_EV_CLOSED:
        in_shut(p, i);
        io_port_own(p, i->es, NULL, NULL);
        in_free(i);
        break;
    default:
        break;
    }
}

/* Full: the oldest of the streams that have proved nothing makes room, else the longest silent one,
 * if it is silent at all. */
static bool in_room(io_port *p)
{
    struct io_bulk *b = p->bulk;
    bulk_in *silent = NULL, *stranger = NULL;
    if (b->nin < MAX_IN)
        return true;
    for (bulk_in *i = b->in; i; i = i->next) {
        if (!i->shut && (!silent || i->heard < silent->heard))
            silent = i;
        if (!i->shut && !sgmp_node_bulk_proved(p->node, i->id))
            stranger = i; /* new ones stand in front */
    }
    if (!stranger && silent && p->now - silent->heard > QUIET_US)
        stranger = silent;
    if (stranger)
        in_shut(p, stranger);
    return b->nin < 2 * MAX_IN && stranger;
}

static void on_listener(io_port *p, void *arg, const struct udt_ev *ev)
{
    struct io_bulk *b = arg;
    if (ev->kind != UDT_EV_ACCEPTED)
        return;
    udt_addr from;
    bulk_in *i = in_room(p) ? calloc(1, sizeof *i) : NULL;
    int64_t id = UDT_E_LIMIT;
    if (i && udt_mux_peer(p->mux, ev->sock, &from) == 0)
        id = sgmp_node_bulk_accept(p->node, &from, p->now);
    if (id <= 0) {
        free(i);
        (void)udt_mux_close(p->mux, ev->sock, 0, p->now);
        return;
    }
    if (!io_port_own(p, ev->sock, on_in, i)) {
        free(i);
        sgmp_node_bulk_gone(p->node, id, p->now);
        return;
    }
    *i = (bulk_in){.next = b->in, .b = b, .id = id, .es = ev->sock, .heard = p->now};
    b->in = i;
    b->nin++;
    if (b->sweep.slot < 0)
        io_timer_arm(p, &b->sweep, p->now + SILENT_US);
}

static void sweep(io_port *p, void *arg)
{
    struct io_bulk *b = arg;
    for (bulk_in *i = b->in; i; i = i->next)
        if (p->now - i->heard >= SILENT_US)
            in_shut(p, i);
    if (b->in)
        io_timer_arm(p, &b->sweep, p->now + SILENT_US / 2);
}

/* ---- life ----------------------------------------------------------------------------------- */
int io_bulk_init(io_port *p)
{
    struct io_bulk *b = calloc(1, sizeof *b);
    udt_opts o;
    if (!b)
        return UDT_E_NOMEM;
    b->buf = malloc(CHUNK);
    stream_opts(p, &o);
    b->listener = b->buf ? udt_mux_listen(p->mux, &o, MAX_IN) : UDT_E_NOMEM;
    if (b->listener < 0) {
        int err = b->listener;
        free(b->buf);
        free(b);
        return err;
    }
    if (!io_port_own(p, b->listener, on_listener, b)) {
        free(b->buf);
        free(b);
        return UDT_E_NOMEM;
    }
    b->sweep = (io_timer){.fn = sweep, .arg = b, .slot = -1};
    p->bulk = b;
    return 0;
}

void io_bulk_turn(io_port *p)
{
    struct sgmp_bulk_order ord;
    if (!p->bulk) /* the port closes, and waits for who holds it */
        return;
    while (sgmp_node_next_bulk(p->node, &ord)) {
        if (ord.kind == SGMP_BULK_ABORT) {
            out_abort(p, ord.id);
            in_abort(p, ord.id);
            continue;
        }
        int err = io_port_closing(p) ? UDT_E_CLOSED : out_open(p, &ord);
        if (err < 0)
            sgmp_node_bulk_failed(p->node, ord.id, err, p->now);
    }
    if (!sgmp_node_bulk_work(p->node))
        return;
    for (bulk_out *o = p->bulk->out; o; o = o->next)
        out_pump(p, o);
}

void io_bulk_fini(io_port *p)
{
    struct io_bulk *b = p->bulk;
    if (!b)
        return;
    p->bulk = NULL;
    io_timer_stop(p, &b->sweep);
    io_port_own(p, b->listener, NULL, NULL);
    (void)udt_mux_close(p->mux, b->listener, 0, p->now);
    while (b->out) {
        (void)udt_mux_close(p->mux, b->out->es, 0, p->now);
        io_port_own(p, b->out->es, NULL, NULL);
        out_free(b->out);
    }
    while (b->in) {
        in_shut(p, b->in);
        io_port_own(p, b->in->es, NULL, NULL);
        in_free(b->in);
    }
    free(b->buf);
    free(b);
}
