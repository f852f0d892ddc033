/* What a port answers without a connection: cookies and refusals of the listener (spec 2.1), and
 * shutdowns for sockets that are gone (spec 7.3). One datagram out for one in, none larger. */
#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

void udt__reply(udt_mux *m, const udt_addr *to, const uint8_t *buf, size_t len)
{
    if (m->reply_count == REPLIES)
        return; /* under a flood the peers repeat themselves */
    udt_reply *r = &m->replies[(m->reply_head + m->reply_count++) % REPLIES];
    r->to = *to;
    r->len = (uint8_t)len;
    memcpy(r->buf, buf, len);
}

void udt__reply_shutdown(udt_mux *m, const udt_addr *to, int32_t dst)
{
    uint8_t buf[UDT_CTRL_MAX];
    udt__reply(m, to, buf, udt_pkt_put_ctrl(buf, UDT_CTRL_SHUTDOWN, 0, dst, NULL, 0));
}

/* Clients choose ids and sequence numbers: without a secret they could choose those that end up in
 * one chain, which each later handshake would have to walk along. */
static uint32_t peer_hash(udt_mux *m, const udt_addr *from, int32_t id, uint32_t isn)
{
    uint8_t buf[32];
    bytes_wr w = bytes_writer(buf, sizeof buf);
    if (!m->drew_peer_key)
        m->cfg.rand(m->cfg.rand_arg, m->peer_key, sizeof m->peer_key);
    m->drew_peer_key = true;
    bytes_put_u32(&w, addr_hash(from));
    bytes_put(&w, from->ip, from->family == 4 ? 4 : 16);
    bytes_put_u32(&w, (uint32_t)id);
    bytes_put_u32(&w, isn);
    return (uint32_t)udt_siphash(m->peer_key, buf, sizeof buf - w.left);
}

void udt__tombstone_add(udt_mux *m, udt_conn *c, udt_time now)
{
    udt_tombstone *t = &m->tomb[m->tomb_next];
    m->tomb_next = (m->tomb_next + 1) % TOMBSTONES;
    table_del(&m->tombs, &t->node);
    t->id = c->id;
    t->peer_id = c->peer_id;
    t->peer = c->peer;
    t->until = now + TOMBSTONE_US;
    t->reply_at = now;
    /* The keys go with the connection: its last word is kept ready, always the same bytes. */
    t->bye_len = c->own.on ? (uint8_t)udt__own_farewell(c, t->bye) : 0;
    table_add(&m->tombs, &t->node, (uint32_t)c->id);
    table_del(&m->gone, &t->by_peer);
    t->isn = c->isn;
    if (c->server_side)
        table_add(&m->gone, &t->by_peer, peer_hash(m, &c->peer, c->peer_id, c->isn));
}

/* A connection that this handshake asks for was made and is gone: on a long way the client has
 * repeated it before it could hear of either. */
static bool was_child(udt_mux *m, const udt_addr *from, const udt_hs *h, udt_time now)
{
    uint32_t isn = h->isn & SEQ_MASK;
    table_node *n = table_chain(&m->gone, peer_hash(m, from, h->id, isn));
    for (; n; n = n->next) {
        const udt_tombstone *t = list_entry(n, udt_tombstone, by_peer);
        if (t->peer_id == h->id && t->isn == isn && addr_eq(&t->peer, from) && now < t->until)
            return true;
    }
    return false;
}

void udt__tombstone_input(udt_mux *m, const udt_addr *from, const udt_pkt *p, size_t len,
                          udt_time now)
{
    if (len < 20 || (p->control && p->type == UDT_CTRL_SHUTDOWN))
        return;
    table_node *n = table_chain(&m->tombs, (uint32_t)p->dst);
    for (; n; n = n->next) {
        udt_tombstone *t = list_entry(n, udt_tombstone, node);
        if (t->id != p->dst || !addr_eq(&t->peer, from))
            continue;
        if (now < t->until && now >= t->reply_at && len >= t->bye_len) {
            t->reply_at = now + TOMBSTONE_REPLY_US;
            if (t->bye_len)
                udt__reply(m, from, t->bye, t->bye_len);
            else
                udt__reply_shutdown(m, from, t->peer_id);
        }
        return;
    }
    /* Ids of keyed connections have bit 30: a ticket that is over, or that nobody here knows. */
    if (p->control && p->type == OWN_PARAMS && p->dst >> 30 & 1)
        refused_note(&m->refused, from, UDT_REFUSED_TICKET, now);
}

static udt_conn *find_child(udt_mux *m, const udt_addr *from, const udt_hs *h)
{
    uint32_t hash = peer_hash(m, from, h->id, h->isn & SEQ_MASK);
    for (table_node *n = table_chain(&m->peers, hash); n; n = n->next) {
        udt_conn *c = list_entry(n, udt_conn, by_key);
        if (c->peer_id == h->id && c->isn == (h->isn & SEQ_MASK) && addr_eq(&c->peer, from))
            return c;
    }
    return NULL;
}

static void answer(udt_mux *m, const udt_addr *to, udt_hs *h, int32_t req, uint32_t cookie)
{
    uint8_t buf[UDT_CTRL_MAX];
    h->req = req;
    h->cookie = cookie;
    udt_hs_encode(buf, h, h->id);
    udt__reply(m, to, buf, UDT_HDR_BYTES + UDT_HS_BYTES);
}

/* The server's end of a connection whose client has shown a valid cookie; NULL at a bound. */
static udt_conn *new_child(udt_mux *m, const udt_addr *from, const udt_hs *h, bool offered,
                           udt_time now)
{
    udt_conn *l = m->listener;
    udt_opts o = l->opts;
    if (from->family == 6 && o.mss > 1480 && o.mss <= 1500)
        o.mss = 1480;
    o.mss = (uint16_t)udt__pmtu_known(m, from, o.mss);
    udt_conn *c = udt__mux_new_conn(m, &o, CONN_CLIENT, now);
    if (!c)
        return NULL;
    c->server_side = true;
    c->peer = *from;
    c->peer_id = h->id;
    c->isn = h->isn & SEQ_MASK;
    c->cookie = h->cookie;
    c->hs_req = UDT_HS_RESPONSE;
    c->hs_version = UDT_HS_VERSION;
    memcpy(c->hs_ip, h->ip, sizeof c->hs_ip);
    uint32_t mss = h->mss < o.mss ? h->mss : o.mss;
    if ((offered && !udt__own_answer(c, h, now)) ||
        !udt__conn_open(c, c->isn, h->window, mss, now)) {
        udt__mux_free_conn(c);
        return NULL;
    }
    udt__foreign_accepted(c);
    table_add(&m->peers, &c->by_key, peer_hash(m, from, h->id, c->isn));
    c->listener = c->ev_listener = l->id;
    l->unaccepted++;
    udt__own_opened(c, UDT_EV_ACCEPTED, now);
    return c;
}

void udt__listener_input(udt_mux *m, const udt_addr *from, const udt_pkt *p, udt_time now)
{
    udt_hs h;
    udt_conn *l = m->listener;
    if (!udt_hs_decode(&h, p->body, p->len) || h.id <= 0) {
        m->n.dropped_bad++;
        return;
    }
    if (h.req == UDT_HS_REQUEST && !l) {
        m->n.rejected++;
        answer(m, from, &h, UDT_HS_REJECTED, 0);
        return;
    }
    if (h.req == UDT_HS_REQUEST) {
        answer(m, from, &h, UDT_HS_REQUEST,
               udt_cookie_make(&m->cookies, m->cfg.rand, m->cfg.rand_arg, from, h.isn, h.id, now));
        return;
    }
    if (h.req != UDT_HS_RESPONSE) {
        m->n.dropped_unknown++;
        return;
    }
    if (!udt_cookie_check(&m->cookies, from, h.isn, h.id, h.cookie, now)) {
        m->n.dropped_cookie++;
        return;
    }
    int32_t refusal = UDT_HS_REJECTED;
    udt_conn *c = find_child(m, from, &h);
    if (!c && l && h.version == UDT_HS_VERSION && h.type == l->opts.type && h.mss >= UDT_MSS_MIN &&
        l->unaccepted < l->backlog && !was_child(m, from, &h, now)) {
        int own = from->family == 4 ? udt__own_judge(&l->opts, &h) : UDT_E_STATE;
        if (own == UDT_E_AUTH)
            refusal = UDT_HS_NO_KEY;
        else
            c = new_child(m, from, &h, own == UDT_OK, now);
    }
    if (!c) {
        m->n.rejected++;
        answer(m, from, &h, refusal, h.cookie);
        return;
    }
    c->due |= DUE_HANDSHAKE;
    udt__conn_ready(c);
}
