/* Windows that grow by themselves (docs/protocol/udt-own-mode.md, "Windows").
 *
 * Receiving: what the peer is allowed (`rcv.want`) is four times what the reader took in the last
 * round trip: enough for a sender that triples its rate each round trip. While holes hold up a
 * reader that takes all it can get, it is eight times what arrived: a packet that is lost again and
 * again must not stop the rest. It never exceeds a fair share of the port's budget, and starts
 * again at WANT_FIRST after IDLE_US without data. The round trip is what the sender has said: who
 * only receives measures none.
 * Sending: what the application may queue is twice what is in flight and SND_MORE, which lasts
 * while a writer in another thread wakes up; with many connections less, on a short path sooner,
 * for a queue that has left the cache costs the sender half of its speed. Where nobody has to wake
 * up, since the writer runs the loop, even less (decisions/0135), and it is asked for more as soon
 * as half of that has left, not when acknowledgements have freed some (0137). */
#include <math.h>

#include "udt/conn.h"

#define WANT_FIRST (1u << 20)
#define SND_MORE (1u << 20)
#define SND_MORE_MIN (24u << 10)
#define SND_MORE_ALL (16u << 20) /* of all connections together: about what a cache holds */
#define SND_NEAR_ALL (2u << 20)
#define SND_DRIVEN (256u << 10) /* beyond what is in flight, on a short path */
#define SND_DRIVEN_FOREIGN (64u << 10)
#define IDLE_US 5000000
#define TUNE_MIN_US 1000
#define RTT_LEAST_US 10000
#define TAKEN 4.0
#define ARRIVED_HOLES 8.0

static uint64_t snd_more(const udt_conn *c)
{
    uint64_t share = (c->own.is_near ? SND_NEAR_ALL : SND_MORE_ALL) / c->mux->sockets;
    return share > SND_MORE ? SND_MORE : share < SND_MORE_MIN ? SND_MORE_MIN : share;
}

void udt__own_windows(udt_conn *c)
{
    own_opening *o = &c->open;
    if (!c->rcv.mem)
        return;
    bool stream = c->opts.type == UDT_STREAM; /* a message must fit as a whole */
    o->auto_rcv &= c->own.on && stream;
    o->auto_snd &= stream;
    if (o->auto_rcv)
        udt_rcvbuf_set_want(&c->rcv, WANT_FIRST);
    else if (c->own.on)
        udt_rcvbuf_set_want(&c->rcv, c->opts.rcv_buf_bytes);
    if (o->auto_snd)
        udt_sndbuf_set_max(&c->snd, snd_more(c));
    if (c->own.on) /* the handshake may have shown it, or another connection */
        udt__near_rtt(c, c->rtt_known ? c->min_rtt_us : INT64_MAX);
    c->said_window = udt__conn_window_now(c);
    o->said_bytes = udt_rcvbuf_free_bytes(&c->rcv);
}

static int64_t round_trip(const udt_conn *c)
{
    int64_t said = c->own.heard_rtt_us, own = c->rtt_known ? c->rtt_us : 0;
    if (said && said < RTT_LEAST_US) /* a reader may be away for longer */
        said = RTT_LEAST_US;
    if (!said && !own)
        return RTT_INITIAL_US;
    return said > own ? said : own;
}

/* Bytes that the last `span` calls for. */
static double wanted(const udt_conn *c, int64_t rtt, int64_t span)
{
    const own_opening *o = &c->open;
    double arrived = (double)(c->st.bytes_recv - o->tune_recv), want = TAKEN * (double)o->tune_read;
    bool waits = (double)c->rcv.ready <= arrived / 2; /* the reader, not the data for it */
    if (waits)
        want = fmax(want, (c->missing.map.count > 0 ? ARRIVED_HOLES : TAKEN) * arrived);
    return want * (double)rtt / (double)span;
}

void udt__own_tune(udt_conn *c, udt_time now)
{
    own_opening *o = &c->open;
    if (!o->auto_rcv || !c->own.on || !c->rcv.mem)
        return;
    int64_t rtt = round_trip(c), span = now - o->tune_at;
    if ((span < rtt && span < IDLE_US) || span < TUNE_MIN_US)
        return;
    uint64_t held = c->rcv.bytes, most = held + udt_mem_share(&c->mux->mem, held);
    double want = (double)c->rcv.want, more = wanted(c, rtt, span);
    if (span >= IDLE_US) /* it had nothing to do: begin again */
        want = WANT_FIRST;
    else if (more > want)
        want = more;
    want = fmax(fmin(want, (double)most), WANT_FIRST);
    if ((uint64_t)want != c->rcv.want)
        udt_rcvbuf_set_want(&c->rcv, (uint64_t)want);
    o->tune_at = now;
    o->tune_read = 0;
    o->tune_recv = c->st.bytes_recv;
}

void udt__own_was_read(udt_conn *c, size_t n, udt_time now)
{
    c->open.tune_read += (int64_t)n;
    udt__own_tune(c, now);
}

/* The path is short, and the writer runs the loop. */
static bool driven(const udt_conn *c)
{
    return c->own.is_near && c->mux->cfg.driven && udt__near_queue(c) == UINT64_MAX;
}

static uint64_t driven_more(const udt_conn *c)
{
    return c->foreign ? SND_DRIVEN_FOREIGN : SND_DRIVEN;
}

/* Before the application queues more. */
void udt__own_will_write(udt_conn *c)
{
    own_opening *o = &c->open;
    if (!o->auto_snd || !c->snd.mem)
        return;
    uint64_t flight = (uint64_t)(c->next - c->snd.head) * c->payload;
    flight = flight < c->snd.bytes ? flight : c->snd.bytes;
    uint64_t max = 2 * flight + snd_more(c), held = c->snd.bytes, turn = udt__near_queue(c);
    if (driven(c) && max > flight + driven_more(c))
        max = flight + driven_more(c);
    if (turn < UINT64_MAX)
        max = flight + (turn > SND_MORE_MIN ? turn : SND_MORE_MIN);
    uint64_t most = held + udt_mem_share(&c->mux->mem, held);
    if (!c->own.on && most > c->opts.snd_buf_bytes)
        most = c->opts.snd_buf_bytes;
    max = max > most ? most : max;
    max = max < SND_MORE_MIN ? SND_MORE_MIN : max;
    if (max != c->snd.max_bytes)
        udt_sndbuf_set_max(&c->snd, max);
}

/* Packets have left. A writer that waits hears before the queue is empty, so that what it writes
 * leaves while it is still in the cache. */
void udt__own_has_sent(udt_conn *c)
{
    uint64_t half = driven_more(c) / 2;
    if (!c->want_space || !c->open.auto_snd || c->state != CONN_OPEN || !driven(c) ||
        (uint64_t)(c->snd.tail - c->next) * c->payload > half)
        return;
    udt__own_will_write(c); /* the bound grows with what is in flight */
    if (c->snd.bytes + half > c->snd.max_bytes ||
        c->snd.tail - c->snd.head + (int64_t)(half / c->payload) > c->snd.max_slots)
        return;
    c->want_space = false;
    udt__conn_event(c, UDT_EV_WRITABLE);
}
