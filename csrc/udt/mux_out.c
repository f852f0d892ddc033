/* What a port sends next. Connections that have something take turns, one batch each. Where small
 * batches of several follow each other to the same place, as with many connections between two
 * ports, they leave as one message of the kernel, whose cost is the message and not the datagram:
 * so can a thousand acknowledgements, or a thousand connections that are paced to a packet or two
 * a time (decisions/0090). */
#include <string.h>

#include "base/addr.h"
#include "udt/conn.h"

#define SKIPS_MAX 16  /* connections that are passed over for their next turn, a message */
#define GAP_BYTES 512 /* less is copied sooner than it is named */

static bool names(const udt_gaps *g, size_t len)
{
    return g && g->n < g->cap && len >= GAP_BYTES;
}

void udt__put_payload(udt_mux *m, uint8_t *at, const uint8_t *from, size_t len)
{
    udt_gaps *g = m->gaps;
    if (at == from)
        return;
    if (names(g, len))
        g->gap[g->n++] = (udt_gap){at, from, len};
    else
        memcpy(at, from, len);
}

uint8_t *udt__head_of(udt_mux *m, const snd_slot *s, uint8_t *buf)
{
    return names(m->gaps, s->len) && s->ntx == 0 && !(s->flags & SND_BARE) ? s->data - SND_HEAD
                                                                           : buf;
}

void udt__put_whole(udt_mux *m, uint8_t *at, const uint8_t *from, size_t len)
{
    if (at != from)
        m->gaps->gap[m->gaps->n++] = (udt_gap){at, from, len};
}

/* To an address that is not proved yet no more goes than came from it; the last of that is for
 * PARAMS alone, which get it proved. */
static size_t output_one(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t *seg,
                         udt_time now)
{
    int64_t room = udt__own_path_room(c), datagram = c->pmtu.now - UDT_IP_OVERHEAD;
    if (c->pmtu.now < c->pmtu.top) /* a hop that minds sizes may see a batch as one packet */
        max_segs = 1;
    size_t len = 0;
    if (room < datagram + OWN_PROOF_ROOM) { /* more comes with what the peer sends */
        bool proof = room < OWN_PROOF_ROOM + OWN_CTRL_MAX;
        int64_t most = proof ? room : room - OWN_PROOF_ROOM;
        if (most >= OWN_CTRL_MAX)
            len = *seg =
                udt__conn_output_control(c, proof ? DUE_PARAMS : ~0u, buf, (size_t)most, now);
    } else {
        int64_t segs = room < INT64_MAX ? (room - OWN_PROOF_ROOM) / datagram : INT64_MAX;
        max_segs = segs < (int64_t)max_segs ? (size_t)segs : max_segs;
        len = udt__conn_output(c, buf, cap, max_segs, seg, now);
    }
    c->open.sent_bytes += room < INT64_MAX ? (int64_t)len : 0;
    return len;
}

/* Bytes of the first datagram that the connection would send now, 0 = it may be anything. */
static size_t next_bytes(const udt_conn *c)
{
    if (!c->own.on || c->own.hold || c->open.phase != OPEN_PLAIN || c->open.unproved ||
        c->pmtu.now < c->pmtu.top || !udt__conn_live(c))
        return 0;
    if (c->due == DUE_ACK)
        return udt__own_eack_bytes(c);
    if (c->due == DUE_ACKFREQ)
        return UDT_HDR_BYTES + 4 + (c->own.sealed ? OWN_TAG_BYTES : 0);
    if (c->due || !udt_sndloss_empty(&c->loss) || c->next >= c->snd.tail)
        return 0;
    const snd_slot *s = udt_sndbuf_slot(&c->snd, c->next);
    if (s->expire_us != UDT_NEVER || s->flags & SND_DROPPED)
        return 0;
    return UDT_HDR_BYTES + udt__own_data_tag(&c->own) + s->len;
}

/* It may have more to send: when those that are ready have had their turn or, while it has a turn
 * of a crowd, at once: who wrote and who reads touch each turn once, and its bytes are still in the
 * cache (decisions/0115). */
static void again(udt_conn *c)
{
    list_remove(&c->ready);
    if (c->turn > 0)
        list_add_head(&c->mux->ready, &c->ready);
    else
        list_add_tail(&c->mux->ready, &c->ready);
}

/* What one connection adds to a message of datagrams of `seg` bytes each. It was the next of those
 * that are ready and leaves them if it has nothing more. */
static size_t add_one(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t seg,
                      udt_time now)
{
    size_t len;
    if (c->due) {
        len = udt__conn_output(c, buf, seg, 1, &seg, now);
        if (!len)
            return 0; /* there was no news; it may have data, though, in its next turn */
    } else {
        len = udt__conn_emit_data(c, buf, cap, max_segs, &seg, now);
        c->sent_at = len ? now : c->sent_at;
    }
    if (len)
        again(c);
    else
        list_remove(&c->ready);
    return len;
}

/* More datagrams of `seg` bytes to `to` behind the `len` bytes at buf, of the connections whose
 * turn is next; the last may be shorter. Returns the bytes in all. */
static size_t join(udt_mux *m, uint8_t *buf, size_t len, size_t cap, size_t max_segs, size_t seg,
                   const udt_addr *to, udt_time now)
{
    list_node *stop = m->ready.prev; /* it has just had its turn */
    list_node *n = m->ready.next, *next;
    for (int skips = 0; n != stop && skips < SKIPS_MAX; n = next) {
        udt_conn *c = list_entry(n, udt_conn, ready);
        next = n->next;
        if (len % seg != 0 || len / seg >= max_segs || cap - len < seg)
            break;
        if (next_bytes(c) == seg && addr_eq(&c->peer, to))
            len += add_one(c, buf + len, cap - len, max_segs - len / seg, seg, now);
        else
            skips++;
    }
    return len;
}

size_t udt_mux_output(udt_mux *m, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                      size_t *seg_bytes, udt_time now)
{
    return udt_mux_output_gaps(m, buf, cap, max_segs, NULL, to, seg_bytes, now);
}

size_t udt_mux_output_gaps(udt_mux *m, uint8_t *buf, size_t cap, size_t max_segs, udt_gaps *gaps,
                           udt_addr *to, size_t *seg_bytes, udt_time now)
{
    m->now = now;
    m->fragments = false;
    m->gaps = gaps;
    if (m->reply_count > 0) {
        const udt_reply *r = &m->replies[m->reply_head];
        m->reply_head = (m->reply_head + 1) % REPLIES;
        m->reply_count--;
        memcpy(buf, r->buf, r->len);
        *to = r->to;
        return *seg_bytes = r->len;
    }
    max_segs = max_segs < 1 ? 1 : max_segs > UDT_MESSAGE_SEGS ? UDT_MESSAGE_SEGS : max_segs;
    cap = cap > UDT_MESSAGE_BYTES ? UDT_MESSAGE_BYTES : cap;
    list_node *n;
    while ((n = list_first(&m->ready)) != NULL) {
        udt_conn *c = list_entry(n, udt_conn, ready);
        size_t len = output_one(c, buf, cap, max_segs, seg_bytes, now);
        if (len) {
            again(c);
            *to = c->own.to.family ? c->own.to : c->peer;
            return c->own.on && !m->fragments
                       ? join(m, buf, len, cap, max_segs, *seg_bytes, to, now)
                       : len;
        }
        list_remove(&c->ready);
        udt__mux_reap(c);
    }
    return 0;
}

bool udt_mux_shut_again(udt_mux *m)
{
    bool any = false;
    for (list_node *n = m->all.next; n != &m->all; n = n->next) {
        udt_conn *c = list_entry(n, udt_conn, all);
        if (c->state != CONN_SHUT || c->shutdowns_left == 0)
            continue;
        udt__conn_say_shut(c);
        any = true;
    }
    return any;
}
