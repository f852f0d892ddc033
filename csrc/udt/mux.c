/* One UDP port: tables of sockets, the five verbs, and the calls of the application. */
#include "udt/mux.h"

#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "crypto/aead.h"
#include "udt/conn.h"

#define DEFAULT_MSS 1500
#define DEFAULT_MSS_V6 1480
#define DEFAULT_BUF_PKTS 8192
#define DEFAULT_IDLE_MS 10000
#define ID_MAX (1 << 30)
#define FOREIGN_PATIENCE_US 1000 /* their acknowledgements come every 64 packets or 10 ms */

void udt_opts_init(udt_opts *o)
{
    *o = (udt_opts){
        .type = UDT_STREAM,
        .snd_buf_bytes = DEFAULT_BUF_PKTS * (DEFAULT_MSS - UDT_OVERHEAD),
        .rcv_buf_bytes = DEFAULT_BUF_PKTS * (DEFAULT_MSS - UDT_OVERHEAD),
        .fc_pkts = 25600,
        .linger_ms = 180000,
    };
}

uint32_t udt__rand32(udt_mux *m)
{
    uint8_t b[4];
    m->cfg.rand(m->cfg.rand_arg, b, sizeof b);
    return be32_get(b);
}

udt_mux *udt_mux_new(const udt_mux_config *cfg)
{
    udt_mux *m = calloc(1, sizeof *m);
    if (!m || !cfg->rand) {
        free(m);
        return NULL;
    }
    m->cfg = *cfg;
    if (!m->cfg.mss)
        m->cfg.mss = DEFAULT_MSS;
    if (!m->cfg.max_sockets)
        m->cfg.max_sockets = 65536;
    if (!m->cfg.max_buf_bytes)
        m->cfg.max_buf_bytes = 1ull << 30;
    udt_mem_init(&m->mem, m->cfg.max_buf_bytes);
    timerq_init(&m->timers);
    list_init(&m->ready);
    list_init(&m->touched);
    list_init(&m->events);
    list_init(&m->all);
    list_init(&m->line);
    list_init(&m->given);
    udt_cookies_init(&m->cookies);
    m->replies = calloc(REPLIES, sizeof *m->replies);
    m->tomb = calloc(TOMBSTONES, sizeof *m->tomb);
    bool tables = table_init(&m->ids) & table_init(&m->peers) & table_init(&m->rdv) &
                  table_init(&m->tombs) & table_init(&m->gone);
    if (!tables || !m->replies || !m->tomb) {
        udt_mux_free(m);
        return NULL;
    }
    m->next_id = (int32_t)(udt__rand32(m) & (ID_MAX - 1)) + 1;
    return m;
}

void udt_mux_free(udt_mux *m)
{
    if (!m)
        return;
    while (!list_empty(&m->all))
        udt__mux_free_conn(list_entry(list_first(&m->all), udt_conn, all));
    table_fini(&m->ids);
    table_fini(&m->peers);
    table_fini(&m->rdv);
    table_fini(&m->tombs);
    table_fini(&m->gone);
    udt_linkcaps_fini(&m->caps);
    timerq_fini(&m->timers);
    udt_mem_fini(&m->mem);
    free(m->replies);
    free(m->tomb);
    free(m->scratch);
    free(m);
}

udt_conn *udt__mux_find(const udt_mux *m, int32_t id)
{
    for (table_node *n = table_chain(&m->ids, (uint32_t)id); n; n = n->next) {
        udt_conn *c = list_entry(n, udt_conn, by_id);
        if (c->id == id)
            return c;
    }
    return NULL;
}

bool udt__mux_id_in_use(const udt_mux *m, int32_t id)
{
    for (table_node *n = table_chain(&m->tombs, (uint32_t)id); n; n = n->next)
        if (list_entry(n, udt_tombstone, node)->id == id)
            return true;
    return udt__mux_find(m, id) != NULL;
}

static int32_t id_below(int32_t id, uint32_t n)
{
    return (int32_t)(((uint32_t)id - 1 - n) & (ID_MAX - 1)) + 1;
}

/* Each is drawn, not counted: who has a connection of his own would know those of others, and an id
 * and an address are all that a forged shutdown needs where nothing is sealed. */
static int32_t fresh_id(udt_mux *m)
{
    m->next_id = id_below(m->next_id, m->drew_id ? udt__rand32(m) + 1 : 0);
    m->drew_id = true;
    while (udt__mux_id_in_use(m, m->next_id))
        m->next_id = id_below(m->next_id, 1);
    return m->next_id;
}

udt_conn *udt__mux_new_conn(udt_mux *m, const udt_opts *o, enum conn_state state, udt_time now)
{
    return udt__mux_new_conn_id(m, o, state, 0, now);
}

/* id 0 = a fresh one */
udt_conn *udt__mux_new_conn_id(udt_mux *m, const udt_opts *o, enum conn_state state, int32_t id,
                               udt_time now)
{
    udt_conn *c = m->sockets < m->cfg.max_sockets ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    if (!timerq_reserve(&m->timers)) {
        free(c);
        return NULL;
    }
    c->mux = m;
    c->opts = *o;
    c->state = state;
    c->foreign = !o->own_peer;
    if (!o->idle_timeout_ms)
        c->opts.idle_timeout_ms = DEFAULT_IDLE_MS;
    if (state != CONN_LISTEN) { /* a listener's are its children's */
        c->open.auto_rcv = !o->rcv_buf_bytes;
        c->open.auto_snd = !o->snd_buf_bytes;
        if (!o->rcv_buf_bytes)
            c->opts.rcv_buf_bytes = DEFAULT_BUF_PKTS * (DEFAULT_MSS - UDT_OVERHEAD);
        if (!o->snd_buf_bytes)
            c->opts.snd_buf_bytes = DEFAULT_BUF_PKTS * (DEFAULT_MSS - UDT_OVERHEAD);
    }
    c->own_payload = o->mss - UDT_OVERHEAD;
    c->mss = o->mss;
    c->trace = udt__trace_ref(o->trace);
    c->rtt_us = RTT_INITIAL_US;
    c->rtt_var_us = RTT_INITIAL_US / 2;
    c->opened_at = c->limit_at = now;
    c->hs_second_at = UDT_NEVER;
    c->pmtu.now = c->pmtu.top = o->mss;
    c->t_handshake = c->t_connect = c->t_ack = c->t_ack_repeat = c->t_nak = c->t_probe = c->t_retx =
        c->t_exp = c->t_pace = c->t_linger = c->t_shutdown = c->t_space = c->t_hole = c->t_own =
            c->t_pmtu = UDT_NEVER;
    timerq_node_init(&c->timer);
    list_init(&c->ready);
    list_init(&c->touched);
    list_init(&c->events);
    list_init(&c->all);
    list_init(&c->line);
    c->id = id ? id : fresh_id(m);
    table_add(&m->ids, &c->by_id, (uint32_t)c->id);
    list_add_tail(&m->all, &c->all);
    m->sockets++;
    return c;
}

void udt__mux_free_conn(udt_conn *c)
{
    udt_mux *m = c->mux;
    timerq_set(&m->timers, &c->timer, UDT_NEVER);
    timerq_release(&m->timers);
    table_del(&m->ids, &c->by_id);
    table_del(c->server_side ? &m->peers : &m->rdv, &c->by_key);
    list_remove(&c->ready);
    list_remove(&c->touched);
    list_remove(&c->events);
    list_remove(&c->all);
    if (m->listener == c)
        m->listener = NULL;
    udt__conn_free_buffers(c);
    udt__own_fini(c);
    udt_trace_free(c->trace);
    secure_wipe(c->opts.key, sizeof c->opts.key); /* of a listener, or it was never used */
    m->sockets--;
    free(c);
}

/* Free a closed connection once its last event was fetched and its shutdowns are out. */
bool udt__mux_reap(udt_conn *c)
{
    if (c->state != CONN_SHUT || c->ev_mask || c->shutdowns_left > 0 || c->due)
        return false;
    udt__mux_free_conn(c);
    return true;
}

/* ---- rendezvous ---- */

static uint32_t rdv_hash(uint32_t tag, const udt_addr *a)
{
    return tag ? tag * 2654435761u : addr_hash(a);
}

static udt_conn *find_rendezvous(const udt_mux *m, const udt_addr *from, uint32_t tag)
{
    for (int by_tag = tag != 0; by_tag >= 0; by_tag--) {
        uint32_t key = by_tag ? tag : 0;
        for (table_node *n = table_chain(&m->rdv, rdv_hash(key, from)); n; n = n->next) {
            udt_conn *c = list_entry(n, udt_conn, by_key);
            if (c->opts.tag == key && (key || addr_eq(&c->peer, from)))
                return c;
        }
    }
    return NULL;
}

/* ---- the five verbs ---- */

static void input_without_id(udt_mux *m, const udt_addr *from, const udt_pkt *p, udt_time now)
{
    udt_hs h;
    if (!p->control || p->type != UDT_CTRL_HANDSHAKE || !udt_hs_decode(&h, p->body, p->len)) {
        m->n.dropped_bad++;
        return;
    }
    udt_conn *c =
        h.req == UDT_HS_RENDEZVOUS || !m->listener ? find_rendezvous(m, from, h.cookie) : NULL;
    if (c)
        udt__conn_input(c, from, p, now);
    else if (m->listened && h.req != UDT_HS_RENDEZVOUS)
        udt__listener_input(m, from, p, now);
    else
        m->n.dropped_unknown++;
}

void udt_mux_input(udt_mux *m, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    udt_pkt p;
    m->now = now;
    if (!udt_pkt_decode(&p, pkt, len)) {
        m->n.dropped_bad++;
        return;
    }
    if (p.dst == 0) {
        input_without_id(m, from, &p, now);
        return;
    }
    udt_conn *c = udt__mux_find(m, p.dst);
    if (!c || c->state == CONN_LISTEN) {
        m->n.dropped_unknown++;
        if (!c)
            udt__tombstone_input(m, from, &p, len, now);
        return;
    }
    if (c->open.phase == OPEN_WAITING) {
        udt__own_first(c, from, &p, pkt, len, now);
        return;
    }
    if (c->open.phase >= OPEN_OFFERED && udt__own_unsettled(c, from, &p, now))
        return;
    if (c->open.unproved && addr_eq(from, &c->peer)) {
        c->open.got_bytes += (int64_t)len;
        udt__conn_ready(c);
    }
    int64_t counted = c->open.phase == OPEN_ANSWERED ? (int64_t)c->own.rx_top + c->largest : 0;
    udt__conn_input(c, from, &p, now);
    if (c->open.phase == OPEN_ANSWERED && (int64_t)c->own.rx_top + c->largest != counted)
        udt__own_confirmed(c, now);
}

udt_time udt_mux_deadline(const udt_mux *m)
{
    if (m->reply_count > 0 || !list_empty(&m->ready))
        return m->now;
    const timerq_node *n = timerq_first(&m->timers);
    udt_time at = n ? n->at : UDT_NEVER, turns = udt__near_deadline(m);
    return turns < at ? turns : at;
}

bool udt_mux_has_event(const udt_mux *m)
{
    return !list_empty(&m->events);
}

void udt_mux_tick(udt_mux *m, udt_time now)
{
    timerq_node *n;
    m->now = now;
    udt_mem_age(&m->mem, now);
    while ((n = timerq_first(&m->timers)) != NULL && n->at <= now)
        udt__conn_tick(list_entry(n, udt_conn, timer), now);
    udt__near_turns(m, now);
}

/* An acknowledgement may be late by half of what lies between two. */
static int64_t patience(const udt_conn *c)
{
    return c->own.on ? c->own.every_us / 2 : FOREIGN_PATIENCE_US;
}

int64_t udt_mux_patience_us(const udt_mux *m)
{
    return m->patience_us;
}

void udt_mux_burst_end(udt_mux *m, udt_time now)
{
    list_node *n;
    m->now = now;
    m->patience_us = FOREIGN_PATIENCE_US;
    while ((n = list_first(&m->touched)) != NULL) {
        udt_conn *c = list_entry(n, udt_conn, touched);
        list_remove(n);
        m->patience_us = patience(c) < m->patience_us ? patience(c) : m->patience_us;
        if (udt__conn_live(c))
            udt__conn_burst_end(c, now);
    }
    udt__near_turns(m, now);
}

bool udt_mux_next_event(udt_mux *m, struct udt_ev *ev)
{
    list_node *n = list_first(&m->events);
    if (!n)
        return false;
    udt_conn *c = list_entry(n, udt_conn, events);
    int kind = __builtin_ctz(c->ev_mask);
    *ev = (struct udt_ev){.kind = (uint16_t)kind, .sock = c->id};
    c->ev_mask = (uint16_t)(c->ev_mask & ~(1u << kind));
    if (kind == UDT_EV_FAILED)
        ev->err = c->error;
    if (kind == UDT_EV_ACCEPTED) {
        ev->value = c->ev_listener;
        udt__conn_fetched(c);
    }
    if (kind == UDT_EV_CLOSED) {
        ev->err = c->lost;
        m->closed_id = c->id;
        m->closed_stats = c->st; /* complete since udt__conn_shut */
    }
    if (!c->ev_mask)
        list_remove(&c->events);
    if (!list_linked(&c->ready))
        udt__mux_reap(c);
    return true;
}

/* ---- the application ---- */

bool udt__mux_resolve(const udt_mux *m, udt_opts *o, uint16_t family, int32_t timeout_ms)
{
    if (!o->mss) {
        o->mss = m->cfg.mss;
        if (family == 6 && o->mss == DEFAULT_MSS)
            o->mss = DEFAULT_MSS_V6;
    }
    if (o->connect_timeout_ms <= 0)
        o->connect_timeout_ms = timeout_ms;
    return o->mss >= UDT_MSS_MIN && (o->type == UDT_STREAM || o->type == UDT_DGRAM) &&
           udt_cc_find(o->cc, true) && o->idle_timeout_ms >= 0 && o->max_bw_Bps >= 0 &&
           (o->has_key || !o->require_key);
}

int32_t udt_mux_listen(udt_mux *m, const udt_opts *o, uint32_t backlog)
{
    udt_opts opts = *o;
    if (!udt__mux_resolve(m, &opts, 0, 3000) || backlog == 0)
        return UDT_E_INVAL;
    if (m->listener)
        return UDT_E_INUSE;
    udt_conn *c = udt__mux_new_conn(m, &opts, CONN_LISTEN, m->now);
    if (!c)
        return UDT_E_LIMIT;
    c->backlog = backlog;
    m->listener = c;
    m->listened = true;
    return c->id;
}

int32_t udt_mux_connect(udt_mux *m, const udt_addr *to, const udt_opts *o, udt_time now)
{
    udt_opts opts = *o;
    m->now = now;
    if (!to || !to->family || !udt__mux_resolve(m, &opts, to->family, 3000))
        return UDT_E_INVAL;
    opts.mss = (uint16_t)udt__pmtu_known(m, to, opts.mss); /* libudt sends no larger ones either */
    udt_conn *c = udt__mux_new_conn(m, &opts, CONN_CLIENT, now);
    if (!c)
        return UDT_E_LIMIT;
    c->peer = *to;
    c->isn = udt__rand32(m) & SEQ_MASK;
    udt__own_offer(c);
    udt__conn_start(c, now);
    return c->id;
}

int32_t udt_mux_rendezvous(udt_mux *m, const udt_addr *to, const udt_opts *o, udt_time now)
{
    udt_opts opts = *o;
    m->now = now;
    if ((!to && !opts.tag) || (to && !to->family) ||
        !udt__mux_resolve(m, &opts, to ? to->family : 4, 30000))
        return UDT_E_INVAL;
    if (opts.tag) {
        for (table_node *n = table_chain(&m->rdv, rdv_hash(opts.tag, NULL)); n; n = n->next)
            if (list_entry(n, udt_conn, by_key)->opts.tag == opts.tag)
                return UDT_E_INUSE;
    } else if (find_rendezvous(m, to, 0)) {
        return UDT_E_INUSE;
    }
    udt_conn *c = udt__mux_new_conn(m, &opts, CONN_RENDEZVOUS, now);
    if (!c)
        return UDT_E_LIMIT;
    c->rendezvous = true;
    if (to)
        c->peer = *to;
    c->isn = udt__rand32(m) & SEQ_MASK;
    table_add(&m->rdv, &c->by_key, rdv_hash(opts.tag, &c->peer));
    udt__own_offer(c);
    udt__conn_start(c, now);
    return c->id;
}

/* A socket the application may still use; *rc says why not. */
static udt_conn *usable(const udt_mux *m, int32_t sock, int *rc)
{
    udt_conn *c = udt__mux_find(m, sock);
    *rc = !c ? UDT_E_NOSOCK : c->state == CONN_LINGER ? UDT_E_CLOSED : UDT_OK;
    return *rc ? NULL : c;
}

int udt_mux_close(udt_mux *m, int32_t sock, uint32_t linger_ms, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = udt__mux_find(m, sock);
    if (c && c->state == CONN_LINGER && linger_ms == 0) { /* no longer */
        c->lost = c->drained ? 0 : UDT_E_CLOSED;
        udt__conn_shut(c, now);
        return UDT_OK;
    }
    c = usable(m, sock, &rc);
    if (c)
        udt__conn_close(c, linger_ms, now);
    return rc;
}

ssize_t udt_mux_send(udt_mux *m, int32_t sock, const uint8_t *buf, size_t len, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = usable(m, sock, &rc);
    if (!c)
        return rc;
    udt__own_will_write(c);
    return udt__conn_send(c, buf, len, now);
}

ssize_t udt_mux_recv(udt_mux *m, int32_t sock, uint8_t *buf, size_t cap, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = usable(m, sock, &rc);
    if (!c)
        return rc;
    ssize_t n = udt__conn_recv(c, buf, cap, now);
    if (n > 0)
        udt__own_was_read(c, (size_t)n, now);
    return n;
}

int udt_mux_sendmsg(udt_mux *m, int32_t sock, const uint8_t *buf, size_t len, int32_t ttl_ms,
                    bool in_order, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = usable(m, sock, &rc);
    if (!c)
        return rc;
    udt__own_will_write(c);
    return udt__conn_sendmsg(c, buf, len, ttl_ms, in_order, now);
}

ssize_t udt_mux_recvmsg(udt_mux *m, int32_t sock, uint8_t *buf, size_t cap, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = usable(m, sock, &rc);
    if (!c)
        return rc;
    ssize_t n = udt__conn_recvmsg(c, buf, cap, now);
    if (n > 0)
        udt__own_was_read(c, (size_t)n, now);
    return n;
}

int udt_mux_peer_error(udt_mux *m, int32_t sock, int32_t code, udt_time now)
{
    int rc;
    m->now = now;
    udt_conn *c = usable(m, sock, &rc);
    if (!c)
        return rc;
    if (c->state != CONN_OPEN)
        return UDT_E_STATE;
    c->error_code = code;
    c->due |= DUE_ERROR;
    udt__conn_ready(c);
    return UDT_OK;
}

int udt_mux_link_cap(udt_mux *m, const udt_addr *prefix, int bits, int64_t bytes_per_s)
{
    int rc = udt_linkcaps_set(&m->caps, prefix, bits, bytes_per_s);
    for (list_node *n = m->all.next; rc == UDT_OK && n != &m->all; n = n->next) {
        udt_conn *c = list_entry(n, udt_conn, all);
        if (!c->booked)
            continue;
        c->booked = 0; /* under the old cap */
        udt__conn_ready(c);
    }
    return rc;
}

void udt_mux_link_shares(const udt_mux *m, const udt_addr *to, int n, int64_t *Bps)
{
    udt_linkcaps_shares(&m->caps, to, n, Bps);
}

size_t udt_mux_send_space(udt_mux *m, int32_t sock)
{
    udt_conn *c = udt__mux_find(m, sock);
    if (!c || c->state != CONN_OPEN)
        return 0;
    udt__own_will_write(c);
    return udt_sndbuf_space(&c->snd, c->next);
}

size_t udt_mux_unacked(udt_mux *m, int32_t sock)
{
    const udt_conn *c = udt__mux_find(m, sock);
    return c ? (size_t)c->snd.bytes : 0;
}

int udt_mux_stats(udt_mux *m, int32_t sock, udt_stats *out)
{
    udt_conn *c = udt__mux_find(m, sock);
    if (c)
        udt__conn_stats(c, out);
    else if (sock > 0 && sock == m->closed_id)
        *out = m->closed_stats;
    else
        return UDT_E_NOSOCK;
    return UDT_OK;
}

int udt_mux_peer(udt_mux *m, int32_t sock, udt_addr *out)
{
    const udt_conn *c = udt__mux_find(m, sock);
    if (!c)
        return UDT_E_NOSOCK;
    *out = c->peer;
    return out->family ? UDT_OK : UDT_E_STATE;
}

void udt_mux_counters_get(const udt_mux *m, udt_mux_counters *out)
{
    *out = m->n;
    out->sockets = m->sockets;
    out->buf_bytes = (int64_t)m->mem.used;
    out->bad_tag = m->own.bad_tag;
    out->replayed = m->own.replayed;
    out->unsealed = m->own.unsealed;
    out->half_open = out->tombstones = 0;
    for (const list_node *n = m->all.next; n != &m->all; n = n->next) {
        const udt_conn *c = list_entry(n, udt_conn, all);
        out->half_open += c->state == CONN_CLIENT || c->state == CONN_RENDEZVOUS;
    }
    /* From the newest back to the first that is over: what was never used is not touched. */
    for (uint32_t back = 1; back <= TOMBSTONES; back++) {
        const udt_tombstone *t = &m->tomb[(m->tomb_next + TOMBSTONES - back) % TOMBSTONES];
        if (!t->node.in || t->until <= m->now)
            break;
        out->tombstones++;
    }
}
