/* Short paths. Where the round trip is that of a machine or a room, whatever is in flight beyond a
 * few packets lies in the receiver's socket: too much of it is dropped there, and all of it has
 * left the caches of both ends. So the connections of a port to such peers share one bound of what
 * is in flight; each may have as much as it leaves free, so that one alone gets half of it and n
 * get 1 / (n + 1) each, but always a few packets (decisions/0090).
 *
 * Of more than fit that way with a whole batch each, a few at a time have a turn (decisions/0108):
 * four messages of the kernel, for which the writer is asked when the turn comes and not before, so
 * that nothing lies in queues, and which leave in one go (0115). The others wait in line. Who has
 * little to say says it without a turn.
 *  1. turn > 0: the connection may send so many packets; they are counted in mux->near_turns.
 *  2. It is in mux->line if it has something to send or a waiting writer, and no turn.
 *  3. It is in mux->given while it has a turn; `asked` while its writer may fill that. A turn that
 *     is not used within GIVEN_US is over, and whom its receiver grants nothing gets none. */
#include "base/addr.h"
#include "udt/conn.h"

#define NEAR_RTT_US 500
#define NEAR_BYTES (8ll << 20)
#define NEAR_LEAST_PKTS 6
#define NEAR_SAY_US 1000000
#define NEAR_AGE_US 60000000
#define CROWD 128               /* connections from which on they take turns */
#define CROWD_BYTES (3ll << 20) /* in flight and promised to turns */
#define TURN_MESSAGES 4         /* as many as leave and come in with one system call (io/net.c) */
#define LITTLE_PKTS 2
#define GIVEN_US 10000 /* a writer that was asked has this long, and a sender */

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

static bool crowded(const udt_conn *c)
{
    return c->own.is_near && c->mux->sockets >= CROWD;
}

bool udt__near_room(const udt_conn *c)
{
    const udt_own *o = &c->own;
    if (!o->is_near || c->turn > 0)
        return true;
    if (!crowded(c))
        return o->flight < NEAR_LEAST_PKTS ||
               o->near_pkts * (int64_t)c->payload < NEAR_BYTES - c->mux->near_bytes;
    if (!udt_sndloss_empty(&c->loss))
        return o->flight < NEAR_LEAST_PKTS;
    return o->flight < LITTLE_PKTS && c->snd.tail - c->next <= LITTLE_PKTS;
}

static void end_turn(udt_conn *c)
{
    c->mux->near_turns -= c->turn * (int64_t)c->payload;
    c->turn = 0;
    c->asked = false;
    list_remove(&c->line);
}

void udt__near_sent(udt_conn *c, snd_slot *s)
{
    if (c->turn > 0) {
        c->mux->near_turns -= c->payload;
        if (--c->turn == 0)
            end_turn(c);
    }
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
    end_turn(c);
}

/* ---- turns ---- */

uint64_t udt__near_queue(const udt_conn *c)
{
    return crowded(c) ? (uint64_t)c->turn * c->payload : UINT64_MAX;
}

/* Nothing can go before the receiver grants more. */
static bool ungranted(const udt_conn *c)
{
    return udt_sndloss_empty(&c->loss) &&
           (c->next >= c->edge ||
            (c->own.sent_bytes + c->payload > c->own.edge_bytes && c->next != c->snd.head));
}

void udt__near_wait(udt_conn *c)
{
    bool unsent = c->next < c->snd.tail || !udt_sndloss_empty(&c->loss), none = ungranted(c);
    if (c->turn > 0 && !c->asked && (!unsent || none))
        end_turn(c);
    if (crowded(c) && !none && !list_linked(&c->line) && (c->want_space || unsent))
        list_add_tail(&c->mux->line, &c->line);
}

bool udt__near_waits(const udt_conn *c)
{
    return list_linked(&c->line) && (c->turn == 0 || c->asked);
}

void udt__near_wrote(udt_conn *c)
{
    c->asked = false;
}

static int turn_pkts(const udt_conn *c)
{
    int segs = UDT_MESSAGE_BYTES / ((int)c->mss - UDT_IP_OVERHEAD);
    return TURN_MESSAGES * (segs < UDT_MESSAGE_SEGS ? segs : UDT_MESSAGE_SEGS);
}

int udt__near_ack_pkts(const udt_conn *c)
{
    return crowded(c) ? turn_pkts(c) : 0;
}

/* The crowd is over, or the path has become long. */
static void go_on(udt_conn *c)
{
    udt__conn_ready(c);
    if (!c->want_space || c->state != CONN_OPEN || !udt_sndbuf_writable(&c->snd))
        return;
    c->want_space = false;
    udt__conn_event(c, UDT_EV_WRITABLE);
}

static void give(udt_conn *c, udt_time now)
{
    udt_mux *m = c->mux;
    list_remove(&c->line);
    if (!crowded(c)) {
        go_on(c);
        return;
    }
    if (ungranted(c))
        return;
    c->turn_at = now;
    list_add_tail(&m->given, &c->line);
    c->turn = turn_pkts(c);
    m->near_turns += c->turn * (int64_t)c->payload;
    if (!c->want_space || c->state != CONN_OPEN || c->snd.tail - c->next >= c->turn) {
        udt__conn_ready(c);
        return;
    }
    c->want_space = false;
    udt__conn_event(c, UDT_EV_WRITABLE);
    c->asked = true;
}

static bool has_turns(const udt_mux *m)
{
    return !list_empty(&m->line) &&
           (m->sockets < CROWD ||
            m->near_bytes + m->near_turns + TURN_MESSAGES * UDT_MESSAGE_BYTES <= CROWD_BYTES);
}

udt_time udt__near_deadline(const udt_mux *m)
{
    if (has_turns(m))
        return m->now;
    if (list_empty(&m->given))
        return UDT_NEVER;
    return list_entry(m->given.next, udt_conn, line)->turn_at + GIVEN_US;
}

void udt__near_turns(udt_mux *m, udt_time now)
{
    list_node *n;
    while ((n = list_first(&m->given)) != NULL) {
        udt_conn *c = list_entry(n, udt_conn, line);
        if (c->turn_at + GIVEN_US > now)
            break;
        end_turn(c);
        if (crowded(c))
            udt__near_wait(c); /* behind the others, if there is something to send */
        else
            go_on(c);
    }
    while (has_turns(m))
        give(list_entry(m->line.next, udt_conn, line), now);
}
