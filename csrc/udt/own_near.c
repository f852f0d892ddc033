/* Short paths. Where the round trip is that of a machine or a room, whatever is in flight beyond a
 * few packets lies in the receiver's socket: too much of it is dropped there, and all of it has
 * left the caches of both ends. So the connections of a port to such peers share one bound of what
 * is in flight; each may have as much as it leaves free, so that one alone gets half of it and n
 * get 1 / (n + 1) each, but always a few packets (decisions/0090). */
#include "base/addr.h"
#include "udt/conn.h"

#define NEAR_RTT_US 500
#define NEAR_BYTES (8ll << 20)
#define NEAR_LEAST_PKTS 6
#define NEAR_SAY_US 1000000
#define NEAR_AGE_US 60000000

/* Connections that begin when many are busy see no short round trip of their own: what one of them
 * has seen holds for the peer. */
void udt__near_rtt(udt_conn *c, int64_t rtt_us)
{
    udt_mux *m = c->mux;
    udt_own *o = &c->own;
    bool is_short = rtt_us < NEAR_RTT_US;
    if (o->is_near && (!is_short || m->now - o->near_said < NEAR_SAY_US))
        return;
    udt_near *n = &m->near[addr_hash(&c->peer) % NEAR_PEERS];
    if (is_short) {
        *n = (udt_near){c->peer, m->now};
        o->near_said = m->now;
    }
    o->is_near = is_short || (addr_eq(&n->peer, &c->peer) && m->now - n->at < NEAR_AGE_US);
}

bool udt__near_room(const udt_conn *c)
{
    const udt_own *o = &c->own;
    if (!o->is_near || o->flight < NEAR_LEAST_PKTS)
        return true;
    return o->near_pkts * (int64_t)c->payload < NEAR_BYTES - c->mux->near_bytes;
}

void udt__near_sent(udt_conn *c, snd_slot *s)
{
    if (!c->own.is_near)
        return;
    s->flags |= SND_NEAR;
    c->own.near_pkts++;
    c->mux->near_bytes += c->payload;
}

void udt__near_back(udt_conn *c, snd_slot *s)
{
    if (!(s->flags & SND_NEAR))
        return;
    s->flags &= (uint8_t)~SND_NEAR;
    c->own.near_pkts--;
    c->mux->near_bytes -= c->payload;
}

void udt__near_leave(udt_conn *c)
{
    c->mux->near_bytes -= c->own.near_pkts * (int64_t)c->payload;
    c->own.near_pkts = 0;
}
