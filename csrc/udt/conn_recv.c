/* Receiving (spec 4.1 to 4.4, 7): data and drop requests in; ACK, light ACK, NAK out. */
#include "base/bytes.h"
#include "base/seq.h"
#include "udt/conn.h"

#define NAK_WORDS 360
#define ACK_SLOW_US 250000
#define LATE_MOST_US 60000000

static int64_t frontier(udt_conn *c)
{
    return udt_rcvloss_first(&c->missing, c->largest + 1);
}

/* Everything before `frontier` is here: tell the buffer and the reader. */
static void deliver(udt_conn *c)
{
    int64_t f = frontier(c);
    if (f != c->rcv.frontier)
        udt_rcvbuf_advance(&c->rcv, f);
    if (udt_rcvbuf_readable(&c->rcv) && c->state == CONN_OPEN &&
        !(c->ev_mask & 1u << UDT_EV_READABLE))
        udt__conn_event(c, UDT_EV_READABLE);
    if (c->state == CONN_LINGER) /* nobody will read it */
        while (udt_rcvbuf_readable(&c->rcv)) {
            uint8_t sink[2048];
            size_t held = c->rcv.bytes;
            if (c->rcv.messages)
                udt_rcvbuf_read_msg(&c->rcv, sink, 0);
            else
                udt_rcvbuf_read(&c->rcv, sink, sizeof sink);
            c->st.bytes_unread += (int64_t)(held - c->rcv.bytes);
        }
}

/* Full ACKs are at least 1 ms (RTT / 32, at most SYN) apart. */
static int64_t ack_gap(const udt_conn *c)
{
    int64_t gap = c->rtt_us / 32;
    if (!c->rtt_known || gap < 1000)
        gap = 1000;
    gap = gap < SYN_US ? gap : SYN_US;
    return c->own.on ? udt__own_ack_gap(c, gap) : gap;
}

/* An acknowledgement is wanted, within SYN; burst_end() makes it sooner. */
static void want_ack(udt_conn *c, udt_time now)
{
    c->ack_pending = true;
    if (c->t_ack == UDT_NEVER)
        udt__conn_timer(c, &c->t_ack, now + (c->own.on ? ack_gap(c) : SYN_US));
}

static void report_below(udt_conn *c, int64_t idx)
{
    c->nak_to = idx;
    c->due |= DUE_NAK;
    udt__conn_ready(c);
}

/* The path has brought packets later than their successors: a hole is a loss only when it has
 * stayed that long (decisions/0068). */
static void wait_for_late(udt_conn *c)
{
    int64_t most = udt__conn_rto(c) + SYN_US, wait = c->late_us + c->late_us / 4;
    if (c->t_hole != UDT_NEVER)
        return;
    c->hole_mark = c->gap_end;
    c->hole_at = c->gap_at;
    udt__conn_timer(c, &c->t_hole, c->hole_at + (wait < most ? wait : most));
}

void udt__conn_hole_timer(udt_conn *c, udt_time now)
{
    (void)now;
    c->t_hole = UDT_NEVER;
    if (lossmap_next(&c->missing.map, c->nak_from) < c->hole_mark)
        report_below(c, c->hole_mark);
    if (c->gap_end > c->hole_mark && lossmap_next(&c->missing.map, c->hole_mark) < c->gap_end)
        wait_for_late(c);
}

/* Packets show by their time stamps by how much those sent before them may come later. It is
 * forgotten by and by, with repeats that are not late. */
static void note_late(udt_conn *c, int64_t idx, uint32_t ts)
{
    int32_t late = (int32_t)(c->newest_ts - ts);
    if (late <= 0 || c->st.pkts_recv == 0 || (late > LATE_MOST_US && idx > c->largest))
        c->newest_ts = ts; /* or half the numbers have passed since: it is newer */
    if (idx > c->largest || late > LATE_MOST_US)
        return;
    if (late > c->late_us)
        c->late_us = late;
    else
        c->late_us -= (c->late_us - (late > 0 ? late : 0) + 63) / 64;
}

/* The largest index received becomes `idx`; what lies between is missing. */
static bool open_gap(udt_conn *c, int64_t idx, udt_time now)
{
    if (idx > c->largest + 1) {
        if (!udt_rcvloss_add(&c->missing, c->largest + 1, idx - 1))
            return false;
        if (c->own.on) { /* an EACK says it */
            c->own.gap = OWN_REORDER_PKTS + 1;
            c->largest = idx;
            return true;
        }
        c->gap_end = idx;
        c->gap_at = now;
        if (c->late_us > 0 || c->t_hole != UDT_NEVER)
            wait_for_late(c);
        else
            report_below(c, idx);
        if (c->t_nak == UDT_NEVER) {
            c->nak_mark = idx;
            udt__conn_timer(c, &c->t_nak, now + udt__conn_rto(c) + SYN_US);
        }
    }
    c->largest = idx;
    return true;
}

void udt__conn_data_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    if (p->len == 0 || p->len > c->own_payload) {
        c->mux->n.dropped_bad++;
        return;
    }
    if (!c->own.on)
        udt_window_arrival(&c->window, p->seq, now);
    int64_t idx = seq_index(c->peer_isn, c->largest, p->seq);
    /* Remember the hole first: once stored, a packet must not be forgotten. */
    if (idx > c->largest + 1 && idx < c->rcv.base + c->rcv.slots &&
        !lossmap_reserve(&c->missing.map, c->largest + 1, idx - 1))
        return;
    enum rcv_put r = udt_rcvbuf_put(&c->rcv, idx, p->word1, p->body, p->len);
    if (r != RCV_STORED) {
        c->st.pkts_dup++;
        c->st.bytes_dup += (int64_t)p->len;
        c->ack_force = true; /* the sender lacks an ACK, or the window */
        if (c->own.on && r == RCV_DUPLICATE) {
            c->own.rx_dups += c->own.rx_newest;
            udt__own_arrived(c, idx, idx);
        }
        want_ack(c, now);
        return;
    }
    if (!c->own.on)
        note_late(c, idx, p->timestamp);
    UDT_TRACE(c, UDT_TRACE_RECEIVED, (unsigned)p->len, p->timestamp, (uint64_t)idx, now);
    c->st.pkts_recv++;
    c->st.bytes_recv += (int64_t)p->len;
    if (idx >= c->largest)
        c->cut = !(p->word1 & UDT_MSG_LAST);
    if (idx > c->largest)
        open_gap(c, idx, now);
    else
        udt_rcvloss_del(&c->missing, idx);
    if (c->own.on)
        udt__own_arrived(c, idx, idx);
    deliver(c);
    want_ack(c, now);
    if (c->own.on) {
        if (++c->pkts_since_ack >= (int)udt__own_ack_pkts(c)) {
            c->due |= DUE_ACK;
            udt__conn_ready(c);
        }
        return;
    }
    if (++c->pkts_since_ack >= LIGHT_ACK_PKTS) {
        c->pkts_since_ack = 0;
        c->due |= DUE_LIGHT;
        udt__conn_ready(c);
    }
}

/* A few bytes can have the whole window looked at, and the next the window behind it. No sender
 * gives up more than one in such a time; the others ask again. */
static bool may_drop(udt_conn *c, int64_t first, int64_t last, udt_time now)
{
    int64_t n = last - (first > c->rcv.base ? first : c->rcv.base) + 1;
    if (now - c->drops_at >= SYN_US) {
        c->drops_at = now;
        c->drops = 0;
    }
    if (c->drops > 0 && c->drops + n > c->rcv.slots)
        return false;
    c->drops += n;
    return true;
}

void udt__conn_drop_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    if (p->len < 8 || !c->rcv.messages) {
        c->mux->n.dropped_bad++;
        return;
    }
    int64_t first = seq_index(c->peer_isn, c->largest, be32_get(p->body) & SEQ_MASK);
    int64_t last = seq_index(c->peer_isn, c->largest, be32_get(p->body + 4) & SEQ_MASK);
    if (first > last || first < 0) {
        c->mux->n.dropped_bad++;
        return;
    }
    want_ack(c, now);
    c->ack_force = true;
    if (last < c->rcv.base || last >= c->rcv.base + c->rcv.slots || !may_drop(c, first, last, now))
        return;
    /* Holes before the range stay holes; the range itself counts as received. */
    if (first > c->largest + 1 && !lossmap_reserve(&c->missing.map, c->largest + 1, first - 1))
        return;
    if (!udt_rcvbuf_drop(&c->rcv, first, last))
        return;
    if (last > c->largest) {
        if (first > c->largest + 1)
            open_gap(c, first, now);
        c->largest = last;
        c->cut = false;
    }
    for (int64_t i = lossmap_next(&c->missing.map, first); i <= last;
         i = lossmap_next(&c->missing.map, i + 1))
        udt_rcvloss_del(&c->missing, i);
    if (c->own.on)
        udt__own_arrived(c, first, last);
    deliver(c);
}

void udt__conn_ack2_input(udt_conn *c, const udt_pkt *p, udt_time now)
{
    udt_ack_entry e;
    if (udt__pmtu_ack2(c, p->word1, now))
        return;
    if (!udt_window_ack2(&c->window, p->word1, &e))
        return;
    udt__conn_rtt(c, now - e.sent_us);
    if (e.ack > c->acked2)
        c->acked2 = e.ack;
    if (c->acked2 >= c->last_ack) {
        c->ack_repeats = 0;
        c->t_ack_repeat = UDT_NEVER;
    }
}

void udt__conn_burst_end(udt_conn *c, udt_time now)
{
    if (!c->ack_pending)
        return;
    udt_time at = c->last_full_at + ack_gap(c);
    if (now >= at) {
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    } else if (at < c->t_ack) {
        udt__conn_timer(c, &c->t_ack, at);
    }
}

int64_t udt__conn_window_now(const udt_conn *c)
{
    int64_t room =
        (c->own.on ? udt_rcvbuf_free_names(&c->rcv) : udt_rcvbuf_free_slots(&c->rcv)) - 1;
    return room < 2 ? 2 : room;
}

size_t udt__conn_emit_ack(udt_conn *c, uint8_t *buf, udt_time now)
{
    int64_t ack = frontier(c);
    bool moved = ack > c->last_ack;
    c->ack_pending = false;
    c->t_ack = UDT_NEVER;
    if (!moved && !c->ack_force)
        return 0;
    udt_window_sample(&c->window, now);
    c->ack_sub = c->ack_sub >= SEQ_MASK ? 1 : c->ack_sub + 1;
    c->said_window = udt__conn_window_now(c);
    bool rates = now - c->last_24_at > SYN_US;
    int64_t rate = udt_window_rate(&c->window), capacity = udt_window_capacity(&c->window);
    udt__foreign_say(c, &rate, &capacity);
    const uint32_t words[6] = {
        seq_add(c->peer_isn, ack), (uint32_t)c->rtt_us, (uint32_t)c->rtt_var_us,
        (uint32_t)c->said_window,  (uint32_t)rate,      (uint32_t)capacity};
    udt_window_ack_sent(&c->window, c->ack_sub, ack, now);
    if (rates)
        c->last_24_at = now;
    c->ack_repeats = moved ? 0 : c->ack_repeats;
    c->last_ack = c->last_any_ack = ack;
    c->last_full_at = now;
    c->pkts_since_ack = 0;
    c->ack_force = false;
    c->due &= ~(unsigned)DUE_LIGHT;
    c->st.acks_sent++;
    if (ack > c->acked2) {
        /* libudt drops what comes the moment it connects (decisions/0212) */
        int64_t wait = c->foreign && !c->rtt_known ? SYN_US : udt__conn_rto(c);
        wait <<= c->ack_repeats < 5 ? c->ack_repeats : 5;
        if (c->ack_repeats > 5 && wait < ACK_SLOW_US)
            wait = ACK_SLOW_US; /* the peer waits for our reader: see udt__conn_try_shut */
        udt__conn_timer(c, &c->t_ack_repeat, now + wait + SYN_US);
    }
    return udt_pkt_put_ctrl(buf, UDT_CTRL_ACK, c->ack_sub, c->peer_id, words, rates ? 6 : 4);
}

size_t udt__conn_emit_light(udt_conn *c, uint8_t *buf)
{
    int64_t ack = frontier(c);
    if (ack <= c->last_any_ack)
        return 0;
    c->last_any_ack = ack;
    c->st.acks_sent++;
    const uint32_t word = seq_add(c->peer_isn, ack);
    return udt_pkt_put_ctrl(buf, UDT_CTRL_ACK, 0, c->peer_id, &word, 1);
}

/* How long ago the packet behind the last hole of a report came, 0 if just now. The first report of
 * a hole may be lost, so that a repeated one is news. */
static uint32_t waited(const udt_conn *c, int64_t to, uint32_t last_seq, bool again, udt_time now)
{
    if (!again && (c->late_us == 0 || (to == c->gap_end && c->gap_at == now)))
        return 0;
    int64_t end = seq_index(c->peer_isn, c->largest, last_seq) + 1;
    udt_time at = end == c->gap_end ? c->gap_at : end == c->hole_mark ? c->hole_at : UDT_NEVER;
    return at == UDT_NEVER || now - at >= NAK_WAITED_UNKNOWN ? NAK_WAITED_UNKNOWN
                                                             : (uint32_t)(now - at);
}

static size_t emit_range(udt_conn *c, uint8_t *buf, size_t cap, int64_t *from, int64_t to,
                         bool again, udt_time now)
{
    uint32_t words[NAK_WORDS];
    size_t max = c->snd.fill / 4 < NAK_WORDS ? c->snd.fill / 4 : NAK_WORDS;
    if (max > (cap - UDT_HDR_BYTES) / 4)
        max = (cap - UDT_HDR_BYTES) / 4;
    size_t n = udt_rcvloss_encode(&c->missing, c->peer_isn, *from, to, words, max, from);
    if (n == 0)
        return 0;
    c->st.naks_sent++;
    return udt_pkt_put_ctrl(buf, UDT_CTRL_NAK, waited(c, *from, words[n - 1], again, now),
                            c->peer_id, words, n);
}

/* First report of the holes at or above nak_from. */
size_t udt__conn_emit_nak(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    size_t n = emit_range(c, buf, cap, &c->nak_from, c->nak_to, false, now);
    if (c->nak_from < c->nak_to)
        c->due |= DUE_NAK; /* more than one packet's worth */
    return n;
}

size_t udt__conn_emit_nak_repeat(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    size_t n = emit_range(c, buf, cap, &c->repeat_from, c->repeat_to, true, now);
    if (n && c->repeat_from < c->repeat_to)
        c->due |= DUE_NAK_REPEAT;
    return n;
}

/* Has the window become small, and is a good part of it free again? */
static bool window_news(const udt_conn *c)
{
    int64_t room = udt__conn_window_now(c);
    bool pkts = c->said_window * 2 <= c->rcv.slots && room >= c->said_window + c->rcv.slots / 4;
    if (!c->own.on || pkts)
        return pkts;
    uint64_t said = c->open.said_bytes;
    return said * 2 <= c->rcv.want && udt_rcvbuf_free_bytes(&c->rcv) >= said + c->rcv.want / 4;
}

/* The reader made room: say so when the window had become small. */
static void window_update(udt_conn *c, udt_time now)
{
    if (c->state != CONN_OPEN || !window_news(c))
        return;
    c->ack_force = true;
    c->ack_pending = true;
    if (now - c->last_full_at >= 1000) {
        c->due |= DUE_ACK;
        udt__conn_ready(c);
    } else {
        udt__conn_timer(c, &c->t_ack, c->last_full_at + 1000);
    }
}

bool udt_mux_was_cut(udt_mux *m, int32_t sock)
{
    const udt_conn *c = udt__mux_find(m, sock);
    return c && c->short_end;
}

static ssize_t nothing(const udt_conn *c)
{
    switch (c->state) {
    case CONN_OPEN:
        return UDT_E_AGAIN;
    case CONN_PEERCLOSED:
        return UDT_E_PEERCLOSED;
    case CONN_FAILED:
        return c->error;
    default:
        return UDT_E_STATE;
    }
}

static ssize_t was_read(udt_conn *c, ssize_t n, udt_time now)
{
    window_update(c, now);
    if (udt_rcvbuf_readable(&c->rcv) && !(c->ev_mask & 1u << UDT_EV_READABLE))
        udt__conn_event(c, UDT_EV_READABLE);
    return n;
}

ssize_t udt__conn_recv(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    if (c->opts.type != UDT_STREAM)
        return UDT_E_STATE;
    if (cap == 0)
        return UDT_E_INVAL;
    if (!c->rcv.mem || !udt_rcvbuf_readable(&c->rcv))
        return nothing(c);
    return was_read(c, (ssize_t)udt_rcvbuf_read(&c->rcv, buf, cap), now);
}

ssize_t udt__conn_recvmsg(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    if (c->opts.type != UDT_DGRAM)
        return UDT_E_STATE;
    if (!c->rcv.mem || !udt_rcvbuf_readable(&c->rcv))
        return nothing(c);
    return was_read(c, (ssize_t)udt_rcvbuf_read_msg(&c->rcv, buf, cap), now);
}
