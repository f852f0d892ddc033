/* Own mode's acknowledgements as their sender (the receiver of data) makes them: when an EACK is
 * due and what it says.
 *
 *   info  packets between EACKs that the peer has wished for, 0 = none yet
 *   0     sequence number of the first missing packet
 *   1     highest number of a data packet that has come, low half
 *   2     microseconds since that came
 *   3     packets that may be sent from the first missing one on
 *   4, 5  payload bytes that may be, 64 bits
 *   6     data packets that came although they had come before, low half: those sent again, which
 *         have a new number; what the network doubles has not
 *   7...  pairs first, last: runs of packets beyond the first missing one, latest news first */
#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define WORDS 7       /* before the runs */
#define EVERY_PKTS 64 /* before the peer has wished otherwise */
#define EVERY_PKTS_MAX 4096
#define EVERY_US_MAX 100000
#define PEER_RTT_MAX_US 5000000
#define GAP_US 100 /* between the EACKs that follow a new hole */
/* The way back may carry less than the way there, and who only receives never finds out. */
#define EACK_MOST (576 - UDT_IP_OVERHEAD)

/* Packets first..last have come; the list of runs tells the peer. */
void udt__own_arrived(udt_conn *c, int64_t first, int64_t last)
{
    udt_own *o = &c->own;
    own_run *r = o->runs_n ? &o->runs[o->runs_n - 1] : NULL;
    if (r && first == r->last + 1) {
        r->last = last;
        return;
    }
    if (o->runs_n == OWN_RANGES) {
        memmove(o->runs, o->runs + 1, (OWN_RANGES - 1) * sizeof *o->runs);
        o->runs_n--;
    }
    o->runs[o->runs_n++] = (own_run){first, last};
    if (++o->runs_new >= OWN_RANGES / 2) {
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    }
}

/* A data packet has come, stored or not. */
void udt__own_data_seen(udt_conn *c, uint64_t pn, udt_time now)
{
    udt_own *o = &c->own;
    o->rx_newest = pn > o->rx_data;
    if (o->rx_newest) {
        o->rx_data = pn;
        o->rx_data_at = now;
    }
}

int64_t udt__own_ack_gap(const udt_conn *c, int64_t fallback)
{
    const udt_own *o = &c->own;
    if (o->gap && GAP_US < fallback)
        return GAP_US;
    return o->every_us ? o->every_us : fallback;
}

uint32_t udt__own_ack_pkts(const udt_conn *c)
{
    return c->own.every_pkts ? c->own.every_pkts : EVERY_PKTS;
}

/* ACKFREQ: the peer's wish, packets in the info word, microseconds in the body, then its RTT. */
void udt__own_ackfreq_input(udt_conn *c, const udt_pkt *p)
{
    if (p->len < 4) {
        c->mux->n.dropped_bad++;
        return;
    }
    uint32_t pkts = p->word1, us = be32_get(p->body);
    c->own.every_pkts = pkts < 2 ? 2 : pkts < EVERY_PKTS_MAX ? pkts : EVERY_PKTS_MAX;
    c->own.every_us = us < 1 ? 1 : us < EVERY_US_MAX ? us : EVERY_US_MAX;
    if (p->len >= 8) {
        uint32_t rtt = be32_get(p->body + 4);
        c->own.heard_rtt_us = rtt < PEER_RTT_MAX_US ? rtt : PEER_RTT_MAX_US;
    }
}

static bool listed(const uint32_t *words, size_t n, uint32_t isn, int64_t near, int64_t i)
{
    for (size_t k = WORDS; k < n; k += 2)
        if (i >= seq_index(isn, near, words[k]) && i <= seq_index(isn, near, words[k + 1]))
            return true;
    return false;
}

/* The runs beyond `ack`, latest first, each as far as it has grown; runs below are forgotten. */
static size_t put_runs(udt_conn *c, int64_t ack, uint32_t *words, size_t n, size_t max)
{
    udt_own *o = &c->own;
    uint32_t keep = 0;
    for (uint32_t i = 0; i < o->runs_n; i++)
        if (o->runs[i].last > ack)
            o->runs[keep++] = o->runs[i];
    o->runs_n = keep;
    for (uint32_t i = keep; i-- > 0 && n + 2 <= max;) {
        int64_t first = o->runs[i].first > ack ? o->runs[i].first : ack + 1;
        int64_t end = lossmap_next(&c->missing.map, first);
        int64_t last = end <= c->largest ? end - 1 : c->largest;
        if (last < first || listed(words, n, c->peer_isn, c->largest, first))
            continue;
        words[n++] = seq_add(c->peer_isn, first);
        words[n++] = seq_add(c->peer_isn, last);
    }
    return n;
}

size_t udt__own_emit_eack(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    udt_own *o = &c->own;
    uint32_t words[WORDS + 2 * OWN_RANGES];
    int64_t ack = udt_rcvloss_first(&c->missing, c->largest + 1);
    bool moved = ack > c->last_ack || c->pkts_since_ack > 0;
    c->ack_pending = false;
    c->t_ack = UDT_NEVER;
    if (!moved && !c->ack_force)
        return 0;
    udt__own_tune(c, now);
    size_t max = sizeof words / sizeof *words;
    size_t most = cap < EACK_MOST ? cap : EACK_MOST, room = most - UDT_HDR_BYTES - OWN_TAG_BYTES;
    if (room > c->payload)
        room = c->payload;
    if (max > room / 4)
        max = room / 4;
    c->said_window = udt__conn_window_now(c);
    uint64_t bytes = c->open.said_bytes = udt_rcvbuf_free_bytes(&c->rcv);
    words[0] = seq_add(c->peer_isn, ack);
    words[1] = (uint32_t)o->rx_data;
    words[2] = (uint32_t)(now - o->rx_data_at);
    words[3] = (uint32_t)c->said_window;
    words[4] = (uint32_t)(bytes >> 32);
    words[5] = (uint32_t)bytes;
    words[6] = o->rx_dups;
    size_t n = put_runs(c, ack, words, WORDS, max);
    c->last_ack = c->last_any_ack = ack;
    c->last_full_at = now;
    c->pkts_since_ack = 0;
    c->ack_force = false;
    o->gap -= o->gap > 0;
    o->runs_new = 0;
    c->st.acks_sent++;
    return udt_pkt_put_ctrl(buf, OWN_EACK, o->every_pkts, c->peer_id, words, n);
}

size_t udt__own_eack_bytes(const udt_conn *c)
{
    size_t tag = c->own.sealed ? OWN_TAG_BYTES : 0;
    return c->missing.map.count ? 0 : UDT_HDR_BYTES + 4 * WORDS + tag;
}
