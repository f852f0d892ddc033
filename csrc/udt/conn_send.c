/* Sending data (spec 4.5, 5.1, 7.1, 7.2): what goes out when, pacing, bursts, message deadlines. */
#include <string.h>

#include "base/seq.h"
#include "udt/conn.h"

#define PACE_SLACK_NS 1000000 /* lateness of a timer that is made up for */
#define LATE_MOST_NS 10000000 /* a thread was away for longer: that is gone */
#define LATE_PART 4           /* of the smallest round trip, as well */
#define BURST_BYTES 65536
#define BURST_NS 1000000 /* a burst holds at most this much sending time: a wake-up each */

void udt__conn_set_limit(udt_conn *c, enum udt_limit why, udt_time now)
{
    if (why == c->limit)
        return;
    *udt__limit_field(&c->st, c->limit) += now - c->limit_at;
    UDT_TRACE(c, UDT_TRACE_LIMIT, why, 0, 0, now);
    c->limit = why;
    c->limit_at = now;
}

void udt_mux_give_up(udt_mux *m, int32_t sock, bool silent)
{
    udt_conn *c = udt__mux_find(m, sock);
    if (!c)
        return;
    c->gave_up = true;
    c->mute = silent && !c->own.on;
}

void udt_mux_unread(udt_mux *m, int32_t sock, size_t bytes)
{
    udt_conn *c = udt__mux_find(m, sock);
    if (c)
        c->st.bytes_unread += (int64_t)bytes;
}

static int usable(const udt_conn *c)
{
    if (c->state == CONN_OPEN)
        return UDT_OK;
    if (c->state == CONN_PEERCLOSED)
        return UDT_E_PEERCLOSED;
    return c->state == CONN_FAILED ? c->error : UDT_E_STATE;
}

/* From now on the peer owes answers. */
static void started(udt_conn *c, udt_time now)
{
    int64_t idle = (int64_t)c->opts.idle_timeout_ms * 1000;
    c->exp_from = now; /* spec 5.3 */
    if (!c->foreign && c->t_exp > now + idle / 2)
        udt__conn_timer(c, &c->t_exp, now + idle / 2);
}

static void data_queued(udt_conn *c, bool was_empty, udt_time now)
{
    if (was_empty)
        started(c, now);
    c->drained = false;
    udt__near_wrote(c);
    if (udt__conn_can_send(c))
        udt__conn_ready(c);
    else
        udt__near_wait(c);
}

void udt__conn_want_space(udt_conn *c, udt_time now)
{
    c->want_space = true;
    /* With an empty buffer it is the port's budget that is spent, and no acknowledgement of this
     * connection will tell when that changes. */
    if (c->snd.head == c->snd.tail)
        udt__conn_timer(c, &c->t_space, now + SYN_US);
    udt__near_wait(c);
}

ssize_t udt__conn_send(udt_conn *c, const uint8_t *buf, size_t len, udt_time now)
{
    int rc = usable(c);
    if (rc)
        return rc;
    if (c->opts.type != UDT_STREAM)
        return UDT_E_STATE;
    if (len == 0)
        return UDT_E_INVAL;
    bool was_empty = c->snd.tail == c->snd.head;
    size_t done = udt_sndbuf_write(&c->snd, buf, len, c->next);
    if (done < len)
        udt__conn_want_space(c, now);
    if (done == 0)
        return UDT_E_AGAIN;
    data_queued(c, was_empty, now);
    return (ssize_t)done;
}

int udt__conn_sendmsg(udt_conn *c, const uint8_t *buf, size_t len, int32_t ttl_ms, bool in_order,
                      udt_time now)
{
    int rc = usable(c);
    if (rc)
        return rc;
    if (c->opts.type != UDT_DGRAM)
        return UDT_E_STATE;
    if (len == 0)
        return UDT_E_INVAL;
    if (len > c->snd.max_bytes || udt_sndbuf_cost(&c->snd, len) > c->mux->mem.limit)
        return UDT_E_TOOBIG; /* it could never fit */
    bool was_empty = c->snd.tail == c->snd.head;
    udt_time expire = ttl_ms < 0 ? UDT_NEVER : now + (int64_t)ttl_ms * 1000;
    if (!udt_sndbuf_write_msg(&c->snd, buf, len, in_order, expire)) {
        udt__conn_want_space(c, now);
        return UDT_E_AGAIN;
    }
    data_queued(c, was_empty, now);
    return UDT_OK;
}

/* Own mode: the window counts what is in flight, packets sent again too. */
static bool own_room(const udt_conn *c)
{
    return (c->own.flight < c->cc.cwnd_pkts || c->own.flight == 0) && udt__near_room(c);
}

static bool new_allowed(const udt_conn *c)
{
    if (c->own.on)
        return c->next < c->snd.tail && c->next < c->edge && own_room(c) &&
               (c->own.sent_bytes + c->payload <= c->own.edge_bytes || c->next == c->snd.head);
    return c->next < c->snd.tail && c->next < c->edge && c->next - c->high < c->cc.cwnd_pkts &&
           udt__foreign_room(c);
}

bool udt__conn_can_send(const udt_conn *c)
{
    if (c->own.hold)
        return c->due;
    if (!udt_sndloss_empty(&c->loss) && (!c->own.on || own_room(c)))
        return true;
    return c->due || new_allowed(c);
}

void udt__conn_mark_lost(udt_conn *c, int64_t first, int64_t last)
{
    if (udt_sndloss_add(&c->loss, first, last))
        udt__conn_ready(c);
}

int64_t udt__conn_presume_lost(udt_conn *c, int64_t from, int64_t end, udt_time since)
{
    int64_t n = 0;
    for (int64_t i = from; i < end; i++)
        if (udt_sndbuf_slot(&c->snd, i)->sent_us <= since) {
            c->lost_first += i >= c->high && udt_sndbuf_slot(&c->snd, i)->ntx == 1;
            udt__conn_mark_lost(c, i, i);
            n++;
        }
    return n;
}

/* The packets of the message around `idx` that are still held: [*first, *last]. */
static void message_span(const udt_conn *c, int64_t idx, int64_t *first, int64_t *last)
{
    uint32_t no = udt_sndbuf_slot(&c->snd, idx)->word1 & UDT_MSG_NO;
    *first = *last = idx;
    while (*first > c->snd.head && (udt_sndbuf_slot(&c->snd, *first - 1)->word1 & UDT_MSG_NO) == no)
        --*first;
    while (*last + 1 < c->snd.tail &&
           (udt_sndbuf_slot(&c->snd, *last + 1)->word1 & UDT_MSG_NO) == no)
        ++*last;
}

/* Give up the message around `idx`: its packets count as sent, and the peer is told. False without
 * memory to remember that. */
static bool drop_message(udt_conn *c, int64_t idx, udt_time now)
{
    int64_t first, last;
    message_span(c, idx, &first, &last);
    if (!lossmap_reserve(&c->loss.map, first, first))
        return false;
    for (int64_t i = first; i <= last; i++) {
        snd_slot *s = udt_sndbuf_slot(&c->snd, i);
        s->flags |= SND_DROPPED;
        if (i >= c->next) {
            s->sent_us = s->first_us = now;
            s->delivered = c->delivered;
            s->delivered_us = c->delivered_us;
            s->ntx = 2; /* never an RTT sample */
            c->own.sent_bytes += s->len;
        }
    }
    if (last >= c->next)
        c->next = last + 1;
    udt__conn_mark_lost(c, first, first);
    return true;
}

/* Without memory: nothing else may ever come that wakes this connection. */
static int64_t try_later(udt_conn *c, udt_time now)
{
    udt__conn_timer(c, &c->t_pace, now + SYN_US);
    return LOSSMAP_NONE;
}

/* A drop request for the message around the lost packet `idx`; its losses are dealt with. */
static size_t emit_drop(udt_conn *c, uint8_t *buf, int64_t idx, udt_time now)
{
    int64_t first, last;
    message_span(c, idx, &first, &last);
    for (int64_t i = first; i <= last; i++)
        udt_sndloss_del(&c->loss, i);
    const uint32_t words[2] = {seq_add(c->isn, first), seq_add(c->isn, last)};
    snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
    size_t n = udt_pkt_put_ctrl(buf, UDT_CTRL_DROP, s->word1 & UDT_MSG_NO, c->peer_id, words, 2);
    if (!c->own.on)
        return n;
    /* The request is in flight in place of the packet, and is sent again like one. */
    uint64_t pn = c->own.pn;
    n = udt__own_seal(c, buf, n);
    udt__own_sent(c, idx, s, pn, now);
    return n;
}

static void trace_sent(udt_conn *c, int64_t idx, const snd_slot *s, uint64_t pn, udt_time now)
{
    UDT_TRACE(c, s->ntx > 1 ? UDT_TRACE_SENT_AGAIN : UDT_TRACE_SENT, s->len, pn, (uint64_t)idx,
              now);
}

static bool expired(const snd_slot *s, udt_time now)
{
    return s->expire_us != UDT_NEVER && now > s->expire_us && !(s->flags & SND_DROPPED);
}

/* The next packet to send: a lost one, else a new one; LOSSMAP_NONE when nothing may go.
 * Messages whose time is over turn into drop requests on the way. */
static int64_t choose(udt_conn *c, udt_time now)
{
    for (;;) {
        int64_t idx = udt_sndloss_first(&c->loss);
        if (idx == LOSSMAP_NONE) {
            if (!new_allowed(c))
                return LOSSMAP_NONE;
            idx = c->next;
        } else if (c->own.on && !own_room(c)) {
            return LOSSMAP_NONE;
        }
        if (c->own.on && !udt__own_may_send(c, idx))
            return try_later(c, now);
        if (!expired(udt_sndbuf_slot(&c->snd, idx), now))
            return idx;
        if (!drop_message(c, idx, now))
            return try_later(c, now);
    }
}

static void note_new(udt_conn *c, snd_slot *s, udt_time now)
{
    if (c->next == c->snd.head) { /* nothing was in flight: rate samples start here */
        c->delivered_us = c->progress_at = now;
        if (c->app_limited >= 0) {
            c->epoch_at = now;
            c->epoch_delivered = c->delivered;
        }
    }
    c->own.sent_bytes += s->len;
    s->first_us = now;
    s->delivered = c->delivered;
    s->delivered_us = c->delivered_us;
    if (c->app_limited >= 0)
        s->flags |= SND_APP_LIMITED;
    c->next++;
    udt__foreign_judge(c);
    c->st.pkts_sent++;
    c->st.bytes_sent += s->len;
}

static void note_again(udt_conn *c, int64_t idx, const snd_slot *s, udt_time now)
{
    udt__pmtu_suspect(c, idx, now);
    udt_sndloss_del(&c->loss, idx);
    if (!c->own.on && lossmap_reserve(&c->retx, idx, idx))
        lossmap_add(&c->retx, idx, idx);
    if (!c->own.on && c->t_retx == UDT_NEVER)
        udt__conn_timer(c, &c->t_retx, now + udt__conn_rto(c) + SYN_US);
    c->st.pkts_retrans++;
    c->st.bytes_retrans += s->len;
}

/* Numbered before it was known that the path does not carry so much: it goes alone, for the network
 * to cut. */
static bool oversize(const udt_conn *c, const snd_slot *s)
{
    return s->len + (c->mss - c->payload) > c->pmtu.now;
}

static size_t put_packet(udt_conn *c, uint8_t *buf, int64_t idx, snd_slot *s, udt_time now)
{
    uint8_t *data = s->data,
            *head = c->own.on && c->own.seal_data ? buf : udt__head_of(c->mux, s, buf);
    size_t n = UDT_HDR_BYTES + s->len;
    c->mux->fragments |= oversize(c, s);
    s->sent_us = now;
    if (s->ntx < 255)
        s->ntx++;
    if (c->own.on) {
        uint64_t pn;
        udt_pkt_put_data(head, seq_add(c->isn, idx), s->word1, 0, c->peer_id);
        n = udt__own_put_data(c, head, data, s->len, &pn);
        udt__own_sent(c, idx, s, pn, now);
        trace_sent(c, idx, s, pn, now);
    } else {
        trace_sent(c, idx, s, 0, now);
        udt_pkt_put_data(head, seq_add(c->isn, idx), s->word1, (uint32_t)(now - c->opened_at),
                         c->peer_id);
        udt__put_payload(c->mux, head + UDT_HDR_BYTES, data, s->len);
    }
    udt__put_whole(c->mux, buf, head, n);
    return n;
}

/* Packets that may go at once. */
static int burst_most(const udt_conn *c)
{
    int most = c->foreign ? BURST_FOREIGN : BURST_OWN, least = 1;
    if (!c->foreign && (uint32_t)most * c->pmtu.now > BURST_BYTES)
        most = (int)(BURST_BYTES / c->pmtu.now);
    /* On a path as short as a room nothing stands in anybody's way for long; a turn goes whole. */
    if (c->own.is_near && !c->cc.min_period_ns)
        least = most = c->turn > most ? c->turn : most;
    else if (c->cc.burst_pkts && most > c->cc.burst_pkts)
        most = c->cc.burst_pkts;
    if (c->cc.period_ns * most > BURST_NS)
        most = (int)(BURST_NS / c->cc.period_ns);
    return most > least ? most : least;
}

/* The thread was away, and pacing is late. A millisecond of it is made up for at once, the rest at
 * 5/4 of the rate: what is on the way is then as much as before, and the next time that the thread
 * is away the path's queue holds what goes out meanwhile. Not for an allowed rate, and not when it
 * was the window or the application that let us wait. Where bursts are small, what is made up for
 * at once is one of them. */
static void note_late(udt_conn *c, int64_t now_ns)
{
    int64_t slack = c->cc.burst_pkts ? c->cc.burst_pkts * c->cc.period_ns : PACE_SLACK_NS;
    if (slack < 2 * c->wakes_ns)
        slack = 2 * c->wakes_ns;
    int64_t late = now_ns - (slack < PACE_SLACK_NS ? slack : PACE_SLACK_NS) - c->next_ns;
    if (late <= 0)
        return;
    c->next_ns += late;
    if (c->limit != UDT_LIM_PACE || c->cc.min_period_ns || c->mux->caps.used)
        return;
    int64_t most = c->min_rtt_us * 1000 / LATE_PART;
    most = most < LATE_MOST_NS ? most : LATE_MOST_NS;
    c->late_ns = c->late_ns + late < most ? c->late_ns + late : most;
}

/* When the next packet may go, one having gone. */
static void pace_on(udt_conn *c)
{
    int64_t less = c->cc.period_ns / 5;
    less = less < c->late_ns ? less : c->late_ns;
    c->late_ns -= less;
    c->next_ns += c->cc.period_ns - less;
}

/* Packets that may go now; 0 when pacing says later (t_pace is set then). */
static int allowance(udt_conn *c, udt_time now)
{
    int64_t now_ns = now * 1000;
    if (c->burst_left > 0)
        return c->burst_left;
    int most = c->booked;
    int64_t at = most && c->booked_ns > c->next_ns ? c->booked_ns : c->next_ns;
    if (at > now_ns) {
        udt__conn_timer(c, &c->t_pace, (at + 999) / 1000);
        return 0;
    }
    note_late(c, now_ns);
    if (most) { /* a shared cap has let us wait for this */
        c->booked = 0;
        return c->burst_left = most;
    }
    most = burst_most(c);
    if (c->mux->caps.used > 0) {
        at = udt_linkcaps_book(&c->mux->caps, &c->peer, &most, c->pmtu.now, now_ns);
        if (at > now_ns) {
            c->booked = most;
            c->booked_ns = at;
            udt__conn_timer(c, &c->t_pace, (at + 999) / 1000);
            return 0;
        }
    }
    return c->burst_left = most;
}

/* Is it an allowed rate that says later, and not what the network is thought to carry? */
static bool capped(const udt_conn *c)
{
    return (c->booked && c->booked_ns > c->next_ns) ||
           (c->cc.min_period_ns > 0 && c->cc.period_ns <= c->cc.min_period_ns);
}

/* Why the sender stopped, for rate samples and statistics. */
static void note_stop(udt_conn *c, udt_time now)
{
    bool again = !udt_sndloss_empty(&c->loss); /* the window is full of packets sent again */
    if (c->next == c->snd.tail) {
        if (c->own.on && own_room(c))
            c->app_limited = c->delivered + c->own.flight;
        else if (!c->own.on && c->next - c->high < c->cc.cwnd_pkts)
            c->app_limited = c->next;
        udt__conn_set_limit(c, again ? UDT_LIM_CWND : UDT_LIM_APP, now);
    } else {
        bool credit = c->own.on && own_room(c); /* so it is the bytes that the receiver grants */
        bool flow = !again && (c->next >= c->edge || credit);
        if (c->own.on && flow) /* as little a sign of what the path carries as an empty queue */
            c->app_limited = c->delivered + c->own.flight;
        udt__conn_set_limit(c, flow ? UDT_LIM_FLOW : UDT_LIM_CWND, now);
    }
}

/* Towards libudt, never let a probe pair (seq mod 16 = 0, 1) fall apart (spec 4.5). */
static bool starts_pair(const udt_conn *c, int64_t idx)
{
    return c->foreign && idx == c->next && (seq_add(c->isn, idx) & 15) == 0;
}

/* The last packet again, which shows what is missing before it. A foreign receiver that has it says
 * nothing more: libudt reports a hole once, and that report may be what was lost. So every other
 * time it is the first packet that it has not confirmed. */
static size_t emit_probe(udt_conn *c, uint8_t *buf, udt_time now)
{
    int64_t idx = c->own.on ? c->own.flight_last : c->next - 1;
    if (!c->own.on && c->probes % 2 == 0) {
        idx = c->snd.head;
        c->head_tried = idx + 1;
        c->head_tried_at = now;
    }
    c->due &= ~(unsigned)DUE_PROBE;
    if (idx < c->snd.head)
        return 0;
    c->own.probed++;
    snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
    c->st.probes++;
    if (s->flags & SND_DROPPED)
        return emit_drop(c, buf, idx, now);
    note_again(c, idx, s, now);
    return put_packet(c, buf, idx, s, now);
}

/* The last packet is short and other connections are waiting: it goes with the next batch, and may
 * be full by then. */
static bool short_tail(const udt_conn *c, int64_t idx, const snd_slot *s)
{
    return c->own.on && idx + 1 == c->snd.tail && s->len < c->snd.fill && idx == c->next &&
           c->opts.type == UDT_STREAM && c->mux->ready.next != c->mux->ready.prev;
}

size_t udt__conn_emit_data(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t *seg,
                           udt_time now)
{
    size_t out = 0, n = 0, head = UDT_HDR_BYTES + udt__own_data_tag(&c->own);
    if (c->own.hold) {
        udt__conn_set_limit(c, UDT_LIM_HANDSHAKE, now);
        return 0;
    }
    if (c->due & DUE_PROBE && (out = emit_probe(c, buf, now)) > 0) {
        *seg = out;
        return out;
    }
    int64_t idx = choose(c, now);
    if (idx == LOSSMAP_NONE) {
        note_stop(c, now);
        udt__near_wait(c);
        return 0;
    }
    size_t limit = (size_t)allowance(c, now);
    if (limit == 0) {
        udt__conn_set_limit(c, capped(c) ? UDT_LIM_CAP : UDT_LIM_PACE, now);
        return 0;
    }
    limit = limit < max_segs ? limit : max_segs;
    bool first_flight = c->next == c->snd.head;
    while (idx != LOSSMAP_NONE && n < limit) {
        snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
        bool again = idx < c->next;
        if (s->flags & SND_DROPPED) {
            if (n == 0)
                *seg = out = emit_drop(c, buf, idx, now);
            break;
        }
        if (c->foreign && !again && idx + 1 == c->snd.tail && s->len == c->payload &&
            c->opts.type == UDT_STREAM)
            udt_sndbuf_split_tail(&c->snd);
        bool alone = oversize(c, s);
        if ((n > 0 && (alone || head + (size_t)s->len > *seg || short_tail(c, idx, s))) ||
            cap - out < head + (size_t)s->len)
            break;
        bool pair = starts_pair(c, idx);
        if (pair && n > 0 && n + 1 >= max_segs)
            break;
        if (again)
            note_again(c, idx, s, now);
        else
            note_new(c, s, now);
        size_t len = put_packet(c, buf + out, idx, s, now);
        out += len;
        pace_on(c);
        c->burst_left--;
        if (pair && c->burst_left == 0 && c->next < c->snd.tail) {
            c->burst_left = 1;
            limit = limit < max_segs ? limit + 1 : limit;
        }
        if (n++ == 0)
            *seg = len;
        else if (len < *seg)
            break;
        if (alone)
            break;
        idx = choose(c, now);
    }
    if (n > 0) {
        udt__conn_set_limit(c, UDT_LIM_NONE, now);
        if (first_flight || c->t_probe == UDT_NEVER)
            udt__conn_restart_probe(c, now);
        udt__own_has_sent(c);
    }
    return out;
}
