/* Setting up a connection (spec 2): the client's two requests, the server's child, rendezvous. */
#include <string.h>

#include "base/addr.h"
#include "base/seq.h"
#include "udt/conn.h"

#define REPEAT_US 250000
#define COOKIE_RETRY_US 500000

uint32_t udt__conn_own_window(const udt_conn *c)
{
    uint32_t slots = c->opts.rcv_buf_bytes / c->own_payload;
    if (slots > c->opts.fc_pkts)
        slots = c->opts.fc_pkts;
    return slots < 32 ? 32 : slots;
}

/* Repeats come every 250 ms (spec 2). Our own peers, known by their tag, are often a moment late
 * only: the other end heard of the ticket at the same time. */
static udt_time repeat_us(const udt_conn *c)
{
    int again = c->hs_sent < 5 ? c->hs_sent : 5;
    return c->opts.tag && again < 5 ? (udt_time)10000 << again : REPEAT_US;
}

static void send_now(udt_conn *c, udt_time now)
{
    c->due |= DUE_HANDSHAKE;
    c->hs_sent = 0;
    udt__conn_timer(c, &c->t_handshake, now + repeat_us(c));
    udt__conn_ready(c);
}

void udt__conn_start(udt_conn *c, udt_time now)
{
    c->hs_req = c->state == CONN_CLIENT ? UDT_HS_REQUEST : UDT_HS_RENDEZVOUS;
    c->cookie = c->state == CONN_CLIENT ? 0 : c->opts.tag;
    c->hs_version = UDT_HS_VERSION;
    udt__conn_timer(c, &c->t_connect, now + (int64_t)c->opts.connect_timeout_ms * 1000);
    if (c->peer.family)
        send_now(c, now);
}

size_t udt__conn_emit_handshake(udt_conn *c, uint8_t *buf, udt_time now)
{
    bool asks = !c->server_side && !c->rendezvous && c->state == CONN_CLIENT;
    udt_hs h = {.version = c->hs_version,
                .type = c->hs_version ? c->opts.type : 0,
                .isn = c->isn,
                .mss = c->server_side ? c->mss : c->opts.mss,
                .window = udt__conn_own_window(c),
                .req = c->hs_req,
                .id = c->id,
                .cookie = c->cookie};
    if (c->hs_version)
        udt_hs_set_ip(&h, &c->peer);
    if (c->server_side && c->peer.family == 4)
        memcpy(h.ip + 1, c->hs_ip + 1, 3 * sizeof *h.ip);
    if (c->open.said && c->peer.family == 4)
        memcpy(h.ip + 1, c->open.words, sizeof c->open.words);
    if (c->hs_sent++ == 0)
        c->hs_sent_at = now;
    c->hs_room -= c->hs_claimed;
    udt_hs_encode(buf, &h, asks ? 0 : c->peer_id);
    return UDT_HDR_BYTES + UDT_HS_BYTES;
}

void udt__conn_handshake_timer(udt_conn *c, udt_time now)
{
    if (now >= c->t_connect) {
        udt__conn_fail(c, UDT_E_TIMEOUT, now);
        return;
    }
    /* A libudt server forgets its cookies every minute: start over (spec 2.1). */
    if (c->state == CONN_CLIENT && c->hs_req == UDT_HS_RESPONSE &&
        now - c->hs_second_at >= COOKIE_RETRY_US) {
        c->hs_req = UDT_HS_REQUEST;
        c->cookie = 0;
    }
    c->t_handshake = now + repeat_us(c);
    if (c->hs_claimed && c->hs_room <= 0)
        return; /* who is there repeats his, and is answered */
    c->due |= DUE_HANDSHAKE;
    udt__conn_ready(c);
}

static void connected(udt_conn *c, const udt_hs *h, uint32_t mss, udt_time now)
{
    /* In a rendezvous the peer's handshakes cross ours and answer earlier ones, or none: a far too
     * short RTT, with which everything is sent again and again, so that no better sample comes. */
    if (c->hs_sent == 1 && !c->rendezvous)
        udt__conn_rtt(c, now - c->hs_sent_at);
    int rc = c->rendezvous ? udt__own_rendezvous(c, now) : udt__own_answered(c, h, now);
    if (rc != UDT_OK)
        udt__conn_fail(c, rc, now);
    else if (udt__conn_open(c, h->isn, h->window, mss, now))
        udt__own_opened(c, UDT_EV_CONNECTED, now);
    else
        udt__conn_fail(c, UDT_E_LIMIT, now);
}

static void client_input(udt_conn *c, const udt_hs *h, udt_time now)
{
    if (h->req >= UDT_HS_REJECT_MIN) {
        if (h->id == c->id || h->isn == c->isn)
            udt__conn_fail(c, h->req == UDT_HS_NO_KEY ? UDT_E_AUTH : UDT_E_REJECTED, now);
    } else if (h->req == UDT_HS_REQUEST) {
        /* The cookie reply: our own request with the cookie filled in. */
        if (h->id != c->id || h->isn != c->isn)
            return;
        if (c->hs_req == UDT_HS_RESPONSE) { /* a server asks whether we have its answer */
            c->due |= h->cookie == c->cookie ? DUE_HANDSHAKE : 0;
            udt__conn_ready(c);
            return;
        }
        /* Begun anew: what answers the second request before this one may come a moment after this
         * one has left, and is no round trip. */
        bool again = c->hs_second_at != UDT_NEVER;
        c->cookie = h->cookie;
        c->hs_req = UDT_HS_RESPONSE;
        c->hs_second_at = now;
        send_now(c, now);
        c->hs_sent = again;
    } else if (h->req == UDT_HS_RESPONSE) {
        /* Version and type may be 0 here; a second request must have gone out (spec 2.1). */
        if (c->hs_second_at == UDT_NEVER || h->id <= 0)
            return;
        if (h->isn != c->isn) {
            udt__conn_fail(c, UDT_E_PROTO, now);
            return;
        }
        if (h->mss < UDT_MSS_MIN)
            return;
        c->peer_id = h->id;
        connected(c, h, h->mss < c->opts.mss ? h->mss : c->opts.mss, now);
    }
}

/* Answer the peer's repeated handshake after we are connected: it lacks our agreement. */
static void agree(udt_conn *c)
{
    c->hs_req = UDT_HS_AGREEMENT;
    c->hs_version = 0;
    c->due |= DUE_HANDSHAKE;
    udt__conn_ready(c);
}

/* A handshake to our id comes from where ours went; one without it shows only that the tag is
 * known. Such an address gets no more handshakes than came from it, and gives way to the next one.
 * False: it is of somebody else. */
static bool rendezvous_from(udt_conn *c, const udt_addr *from, const udt_hs *h, int32_t dst)
{
    bool same = addr_eq(from, &c->peer);
    if (c->hs_stored && (!same || h->id != c->peer_id)) {
        if (!c->hs_claimed)
            return false;
        c->hs_stored = c->open.heard = false;
        c->hs_req = UDT_HS_RENDEZVOUS;
    }
    if (!c->hs_stored && h->req == UDT_HS_AGREEMENT)
        return false;
    if (!c->hs_stored && !same) {
        c->hs_claimed = true;
        c->hs_room = 0;
    }
    c->hs_room += c->hs_claimed;
    c->hs_claimed = c->hs_claimed && dst != c->id;
    c->hs_stored = true;
    return true;
}

static void rendezvous_input(udt_conn *c, const udt_addr *from, const udt_hs *h, int32_t dst,
                             udt_time now)
{
    if (h->req == UDT_HS_REQUEST || h->req < UDT_HS_AGREEMENT || h->req > UDT_HS_REQUEST)
        return;
    if (h->req != UDT_HS_AGREEMENT && (h->version != UDT_HS_VERSION || h->type != c->opts.type))
        return;
    if (c->opts.tag && h->cookie != c->opts.tag)
        return;
    if (h->id <= 0 || h->mss < UDT_MSS_MIN || !rendezvous_from(c, from, h, dst))
        return;
    udt__own_heard(c, h);
    c->peer = *from;
    c->peer_id = h->id;
    c->peer_isn = h->isn & SEQ_MASK;
    c->hs_peer_window = h->window;
    c->mss = h->mss < c->opts.mss ? h->mss : c->opts.mss;
    if (c->hs_req == UDT_HS_RENDEZVOUS || h->req == UDT_HS_RENDEZVOUS || c->hs_claimed) {
        /* Answer at most each request once at once: a first change, or a peer that has not seen
         * our answer; between our timers this makes one packet out for one packet in. */
        c->hs_req = UDT_HS_RESPONSE;
        send_now(c, now);
        return;
    }
    c->hs_req = UDT_HS_RESPONSE;
    connected(c, h, c->mss, now);
    /* Our own peer need not repeat its answer after REPEAT_US to hear that we have it. */
    if (c->opts.tag && c->state == CONN_OPEN && h->req == UDT_HS_RESPONSE)
        agree(c);
}

void udt__conn_handshake_input(udt_conn *c, const udt_addr *from, const udt_hs *h, int32_t dst,
                               udt_time now)
{
    switch (c->state) {
    case CONN_CLIENT:
        client_input(c, h, now);
        break;
    case CONN_RENDEZVOUS:
        rendezvous_input(c, from, h, dst, now);
        break;
    case CONN_OPEN:
    case CONN_LINGER:
        if (c->rendezvous && h->req != UDT_HS_AGREEMENT && h->id == c->peer_id)
            agree(c);
        if (!c->own.on && !c->rendezvous && !c->server_side && h->req == UDT_HS_REQUEST &&
            h->isn == c->isn) {
            c->due |= DUE_HANDSHAKE; /* the server asks whether we have its answer: as libudt */
            udt__conn_ready(c);
        }
        break;
    default:
        break;
    }
}
