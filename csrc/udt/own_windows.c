/* Windows that grow by themselves (docs/protocol/udt-own-mode.md, "Windows").
 *
 * Receiving: what the peer is allowed (`rcv.want`) is four times what the reader took in the last
 * round trip: enough for a sender that triples its rate each round trip, and for packets that wait
 * behind a hole for another two. It never exceeds a fair share of the port's budget, and starts
 * again at WANT_FIRST after IDLE_US without data.
 * Sending: what the application may queue is twice what is in flight and SND_MORE; with many
 * connections less, for a queue that has left the cache costs the sender half of its speed. */
#include "udt/conn.h"

#define WANT_FIRST (1u << 20)
#define SND_MORE (1u << 20)
#define SND_MORE_MIN (64u << 10)
#define SND_MORE_ALL (32u << 20) /* of all connections together: about what a cache holds */
#define IDLE_US 5000000
#define TUNE_MIN_US 1000

static uint64_t snd_more(const udt_conn *c)
{
    uint64_t share = SND_MORE_ALL / c->mux->sockets;
    return share > SND_MORE ? SND_MORE : share < SND_MORE_MIN ? SND_MORE_MIN : share;
}

void udt__own_windows(udt_conn *c)
{
    own_opening *o = &c->open;
    if (!c->rcv.mem)
        return;
    bool stream = c->opts.type == UDT_STREAM; /* a message must fit as a whole */
    o->auto_rcv &= c->own.on && stream;
    o->auto_snd &= c->own.on && stream;
    if (o->auto_rcv)
        udt_rcvbuf_set_want(&c->rcv, WANT_FIRST);
    else if (c->own.on)
        udt_rcvbuf_set_want(&c->rcv, c->opts.rcv_buf_bytes);
    if (o->auto_snd)
        udt_sndbuf_set_max(&c->snd, snd_more(c));
    c->said_window = udt__conn_window_now(c);
    o->said_bytes = udt_rcvbuf_free_bytes(&c->rcv);
}

/* The reader took `n` bytes. */
void udt__own_was_read(udt_conn *c, size_t n, udt_time now)
{
    own_opening *o = &c->open;
    if (!o->auto_rcv || !c->own.on || !c->rcv.mem)
        return;
    int64_t rtt = c->rtt_known ? c->rtt_us : RTT_INITIAL_US;
    o->tune_read += (int64_t)n;
    int64_t span = now - o->tune_at;
    if (span < rtt && span < IDLE_US)
        return;
    if (span < TUNE_MIN_US)
        return;
    uint64_t held = c->rcv.bytes, most = held + udt_mem_share(&c->mux->mem, held);
    uint64_t want = c->rcv.want;
    if (span >= IDLE_US) /* it had nothing to do: begin again */
        want = WANT_FIRST;
    else if (4 * (double)o->tune_read * (double)rtt / (double)span > (double)want)
        want = (uint64_t)(4 * (double)o->tune_read * (double)rtt / (double)span);
    want = want > most ? most : want;
    want = want < WANT_FIRST ? WANT_FIRST : want;
    if (want != c->rcv.want)
        udt_rcvbuf_set_want(&c->rcv, want);
    o->tune_at = now;
    o->tune_read = 0;
}

/* Before the application queues more. */
void udt__own_will_write(udt_conn *c)
{
    own_opening *o = &c->open;
    if (!o->auto_snd || !c->own.on || !c->snd.mem)
        return;
    uint64_t flight = (uint64_t)(c->next - c->snd.head) * c->payload;
    flight = flight < c->snd.bytes ? flight : c->snd.bytes;
    uint64_t max = 2 * flight + snd_more(c), held = c->snd.bytes;
    uint64_t most = held + udt_mem_share(&c->mux->mem, held);
    max = max > most ? most : max;
    max = max < SND_MORE_MIN ? SND_MORE_MIN : max;
    if (max != c->snd.max_bytes)
        udt_sndbuf_set_max(&c->snd, max);
}
