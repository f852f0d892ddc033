/* What libudt needs of its peer. Its receiver (decisions/0105) hands data to its reader, and
 * says how much room there is, every 10 ms and only when a packet comes just then, so that a sender
 * who has used up the window in between waits for its own probe. But a packet that is not full is
 * confirmed at once: one of each so many is a little short. And what it has not read yet lies in
 * its socket, whose buffer may be small: on a short path no more is on the way than it takes, and
 * when so much is, the next goes when half of it has arrived, many packets in one turn of the
 * sender's instead of a few after each answer (decisions/0181). */
#include "udt/conn.h"
#include "udt/handshake.h"

#define MEET_FIRST_US 20000
#define MEET_TRIES 8    /* 5 s with the doubling */
#define MARK_EVERY 1024 /* at most; four in a window */
#define SHORT_RTT_US 500
#define BRISK_PPS 250000
#define BRISK_SAID_PPS 1000000
#define ROOM_PKTS 384
#define ROOM_LEAST_PKTS (LIGHT_ACK_PKTS + 2 * BURST_FOREIGN)
#define ROOM_OPEN_PKTS (2 * LIGHT_ACK_PKTS) /* libudt confirms all of them but half */

void udt__foreign_open(udt_conn *c, uint32_t peer_window)
{
    uint32_t every = peer_window / 4 < MARK_EVERY ? peer_window / 4 : MARK_EVERY;
    c->room_pkts = ROOM_PKTS;
    if (c->foreign && c->opts.type == UDT_STREAM)
        c->snd.mark_every = every > 0 ? every : 1;
}

static bool short_path(const udt_conn *c)
{
    return c->rtt_known && !c->guessed_at && c->min_rtt_us < SHORT_RTT_US;
}

bool udt__foreign_room(const udt_conn *c)
{
    return !c->room_shut || !c->foreign || !short_path(c);
}

void udt__foreign_judge(udt_conn *c)
{
    int64_t way = c->next - c->high, half = c->room_pkts / 2;
    int64_t open = half > ROOM_OPEN_PKTS ? half : c->room_pkts - 1;
    c->room_shut = way >= c->room_pkts || (c->room_shut && way > open);
}

void udt__foreign_lost(udt_conn *c, int64_t first)
{
    if (first < c->room_lost || c->room_pkts > ROOM_PKTS)
        return; /* the same flight, or no bound */
    c->room_lost = c->next;
    c->room_pkts -= c->room_pkts / 4;
    if (c->room_pkts < ROOM_LEAST_PKTS)
        c->room_pkts = INT64_MAX; /* so small a queue fills whatever we do: pacing is left */
    udt__foreign_judge(c);
}

/* A libudt sender leaves slow start with the arrival rate that it is told, and gains speed by the
 * capacity. On a path as short as a room what counts is how fast packets come when they come, as
 * probe pairs do: a mean holds its pauses against it. Where they come faster than a link of 2.5
 * Gb/s brings them, nothing but processors limits the two, and we say what a libudt receiver says
 * there, whose gaps are whole microseconds. Only while nothing is lost (decisions/0106). */
void udt__foreign_say(const udt_conn *c, int64_t *rate, int64_t *capacity)
{
    if (!c->foreign || !short_path(c) || c->st.naks_sent > 0)
        return;
    if (*capacity >= BRISK_PPS && *capacity < BRISK_SAID_PPS)
        *capacity = BRISK_SAID_PPS;
    if (*rate < *capacity && *capacity > UDT_CAPACITY_INITIAL)
        *rate = *capacity;
}

/* Nothing more could go, and no answer came: the end of what was on the way is lost, which only
 * more packets would have shown. What is left to such a path must not be bounded like that. */
void udt__foreign_stalled(udt_conn *c)
{
    if (udt__foreign_room(c) || c->room_pkts > ROOM_PKTS)
        return;
    c->room_pkts = c->room_pkts / 4 < ROOM_LEAST_PKTS ? INT64_MAX : c->room_pkts / 4;
    udt__foreign_judge(c);
}

/* After so many flights without a loss it is tried with a little more. */
void udt__foreign_arrived(udt_conn *c)
{
    if (c->room_pkts < ROOM_PKTS && c->high >= c->room_lost + 64 * c->room_pkts) {
        c->room_lost = c->high;
        c->room_pkts += c->room_pkts / 8;
        if (c->room_pkts > ROOM_PKTS)
            c->room_pkts = ROOM_PKTS;
    }
    udt__foreign_judge(c);
}

/* ---- a client that has not heard our answer ---- */

/* Whatever but a handshake reaches a libudt client before the server's answer does, it takes for
 * one: it calls itself connected, yet knows no peer and drops all that comes. So where we are the
 * first to speak and the answer may be lost or late, the client is asked first (decisions/0118). */
void udt__foreign_accepted(udt_conn *c)
{
    c->unmet = c->foreign && !c->own.on;
}

void udt__foreign_met(udt_conn *c)
{
    c->unmet = false;
    c->t_handshake = UDT_NEVER;
    udt__conn_ready(c);
}

/* A handshake that asks: a client that is connected answers with its own, one that is not with the
 * request that we know, which has our answer sent again. */
static size_t ask(const udt_conn *c, uint8_t *buf)
{
    udt_hs h = {.version = UDT_HS_VERSION,
                .type = c->opts.type,
                .isn = c->isn,
                .mss = c->mss,
                .window = udt__conn_own_window(c),
                .req = UDT_HS_REQUEST,
                .id = c->peer_id,
                .cookie = c->cookie};
    udt_hs_set_ip(&h, &c->peer);
    udt_hs_encode(buf, &h, c->peer_id);
    return UDT_HDR_BYTES + UDT_HS_BYTES;
}

bool udt__foreign_holds(udt_conn *c, uint8_t *buf, size_t *len, udt_time now)
{
    *len = 0;
    if (!c->unmet || !udt__conn_live(c) || c->due & DUE_HANDSHAKE)
        return false;
    if (now < c->t_handshake && c->t_handshake != UDT_NEVER)
        return true;
    if (!udt__conn_can_send(c))
        return false;
    if (c->meetings == MEET_TRIES) { /* it does not answer such questions, or is gone */
        udt__foreign_met(c);
        return false;
    }
    udt__conn_set_limit(c, UDT_LIM_HANDSHAKE, now);
    udt__conn_timer(c, &c->t_handshake, now + ((udt_time)MEET_FIRST_US << c->meetings++));
    *len = ask(c, buf);
    return true;
}
