/* What a libudt receiver needs of its sender (decisions/0105). It hands data to its reader, and
 * says how much room there is, every 10 ms and only when a packet comes just then, so that a sender
 * who has used up the window in between waits for its own probe. But a packet that is not full is
 * confirmed at once: one of each so many is a little short. And what it has not read yet lies in
 * its socket, whose buffer may be small: on a short path no more is on the way than it takes. */
#include "udt/conn.h"

#define MARK_EVERY 1024 /* at most; four in a window */
#define SHORT_RTT_US 500
#define ROOM_PKTS 768
#define ROOM_LEAST_PKTS (LIGHT_ACK_PKTS + 2 * BURST_FOREIGN)

void udt__foreign_open(udt_conn *c, uint32_t peer_window)
{
    uint32_t every = peer_window / 4 < MARK_EVERY ? peer_window / 4 : MARK_EVERY;
    c->room_pkts = ROOM_PKTS;
    if (c->foreign && c->opts.type == UDT_STREAM)
        c->snd.mark_every = every > 0 ? every : 1;
}

bool udt__foreign_room(const udt_conn *c)
{
    return c->next - c->high < c->room_pkts || !c->foreign || !c->rtt_known || c->guessed_at ||
           c->min_rtt_us >= SHORT_RTT_US;
}

void udt__foreign_lost(udt_conn *c, int64_t first)
{
    if (first < c->room_lost)
        return; /* the same flight */
    c->room_lost = c->next;
    c->room_pkts -= c->room_pkts / 4;
    if (c->room_pkts < ROOM_LEAST_PKTS)
        c->room_pkts = ROOM_LEAST_PKTS;
}

/* After so many flights without a loss it is tried with a little more. */
void udt__foreign_arrived(udt_conn *c)
{
    if (c->high < c->room_lost + 64 * c->room_pkts)
        return;
    c->room_lost = c->high;
    c->room_pkts += c->room_pkts / 8;
    if (c->room_pkts > ROOM_PKTS)
        c->room_pkts = ROOM_PKTS;
}
