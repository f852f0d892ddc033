/* Statistics of a stripe: what the kernel counts for each TCP connection, and what the sender waits
 * for. Its time is divided where it stops: it has nothing more (application), or the sockets take
 * no more. Then the kernel knows whether the receiver's window is closed; else it is the network,
 * or the rate that was allowed if that is reached. */
#include "io/tls_priv.h"

#include "base/rate.h"

#include <linux/tcp.h>
#include <netinet/in.h>

enum { METERS = 5, METER_US = 200000, REACHED = 5 /* a rate, but for this part of it */ };

/* The time since the last note belongs to what held then. What the sockets have taken and not sent
 * is no more the application's to send. */
static void pass(stripe *s, bool unsent)
{
    tls_stats *t = &s->stats;
    *(t->blocked || unsent ? &t->blocked_us : &t->app_us) += s->p->now - t->at;
    t->at = s->p->now;
}

void tls_stats_begin(stripe *s)
{
    tls_stats *t = &s->stats;
    t->meet_us = s->p->now - t->at;
    t->at = s->p->now;
    for (int i = 0; i < METERS; i++)
        t->meter[i].at = t->at;
}

void tls_stats_note(stripe *s)
{
    pass(s, false);
    s->stats.blocked = s->want_write;
}

/* What the kernel has counted since it was last asked: sums over the connections. */
typedef struct news {
    int64_t busy_us, flow_us, unsent;
} news;

static void ask(tls_conn *c, const struct tcp_info *ti, news *w, tls_stats *t)
{
    w->busy_us += (int64_t)(ti->tcpi_busy_time - c->seen.busy_us);
    w->flow_us += (int64_t)(ti->tcpi_rwnd_limited - c->seen.flow_us);
    w->unsent += ti->tcpi_notsent_bytes;
    t->segs_out += (uint32_t)(ti->tcpi_data_segs_out - c->seen.segs_out);
    t->segs_in += (uint32_t)(ti->tcpi_data_segs_in - c->seen.segs_in);
    t->retrans += (uint32_t)(ti->tcpi_total_retrans - c->seen.retrans);
    c->seen.busy_us = ti->tcpi_busy_time;
    c->seen.flow_us = ti->tcpi_rwnd_limited;
    c->seen.segs_out = ti->tcpi_data_segs_out;
    c->seen.segs_in = ti->tcpi_data_segs_in;
    c->seen.retrans = ti->tcpi_total_retrans;
}

/* The connections as they are now. */
static void add(const tls_conn *c, const struct tcp_info *ti, struct udt_stats *out)
{
    out->cwnd_pkts += ti->tcpi_snd_cwnd;
    out->in_flight_pkts += ti->tcpi_unacked;
    out->in_flight_bytes += (int64_t)ti->tcpi_unacked * ti->tcpi_snd_mss;
    out->pacing_Bps += c->pace;
    if (ti->tcpi_rtt > 0 && (out->rtt_us == 0 || ti->tcpi_rtt < out->rtt_us)) {
        out->rtt_us = ti->tcpi_rtt;
        out->rtt_var_us = ti->tcpi_rttvar;
        out->min_rtt_us = ti->tcpi_min_rtt;
    }
}

/* The time in which the sender was blocked, as the kernel says, and what it is paced at. */
static void divide(tls_stats *t, const news *w, const struct udt_stats *now)
{
    double closed = w->busy_us > 0 ? (double)w->flow_us / (double)w->busy_us : 0;
    int64_t flow = (int64_t)((double)t->blocked_us * (closed < 1 ? closed : 1));
    bool capped =
        now->pacing_Bps > 0 && now->send_Bps >= now->pacing_Bps - now->pacing_Bps / REACHED;
    t->flow_us += flow;
    *(capped ? &t->cap_us : &t->net_us) += t->blocked_us - flow;
    t->blocked_us = 0;
}

static void rates(stripe *s, struct udt_stats *out)
{
    tls_stats *t = &s->stats;
    udt_time now = s->p->now;
    const size_t last = METERS - 1;
    int64_t acked = out->bytes_sent - out->snd_queue_bytes;
    if (now - t->meter[last].at >= METER_US) {
        memmove(t->meter, t->meter + 1, last * sizeof t->meter[0]);
        t->meter[last].at = now;
        t->meter[last].acked = acked;
        t->meter[last].got = out->bytes_recv;
    }
    int64_t span = now - t->meter[0].at;
    if (span <= 0)
        return;
    out->send_Bps = acked > t->meter[0].acked ? rate_per_s(acked - t->meter[0].acked, span) : 0;
    out->recv_Bps = rate_per_s(out->bytes_recv - t->meter[0].got, span);
}

static void limits(const stripe *s, struct udt_stats *out)
{
    const tls_stats *t = &s->stats;
    out->lim_handshake_us = s->connected ? t->meet_us : s->p->now - t->at;
    if (!s->sends)
        return; /* who only receives waits for the other end */
    out->lim_app_us = t->app_us;
    out->lim_cwnd_us = t->net_us;
    out->lim_cap_us = t->cap_us;
    out->lim_flow_us = t->flow_us;
}

void stripe_stats(stripe *s, struct udt_stats *out)
{
    tls_stats *t = &s->stats;
    news w = {0};
    memset(out, 0, sizeof *out);
    out->at_us = s->p->now;
    out->bytes_sent = (int64_t)s->sent;
    out->bytes_recv = (int64_t)s->got;
    out->snd_queue_bytes = (int64_t)stripe_unacked(s);
    for (unsigned i = 0; i < s->n; i++) {
        struct tcp_info ti;
        socklen_t len = sizeof ti;
        memset(&ti, 0, sizeof ti);
        if (!s->conn[i] || s->conn[i]->fd < 0 ||
            getsockopt(s->conn[i]->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) != 0)
            continue;
        ask(s->conn[i], &ti, &w, t);
        add(s->conn[i], &ti, out);
    }
    if (s->connected) {
        pass(s, w.unsent > 0);
        rates(s, out);
        divide(t, &w, out);
    }
    limits(s, out);
    out->pkts_sent = t->segs_out > t->retrans ? t->segs_out - t->retrans : 0;
    out->pkts_recv = t->segs_in;
    out->pkts_retrans = out->pkts_lost = t->retrans;
    out->loss_ppm = t->segs_out > 0 ? t->retrans * 1000000 / t->segs_out : 0;
}
