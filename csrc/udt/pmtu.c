#include "udt/pmtu.h"

#include <string.h>

#include "base/addr.h"
#include "base/seq.h"
#include "udt/conn.h"

#define ROUNDS 4      /* of a search */
#define USUAL 1500    /* larger packets are tried before they are used */
#define TOLD_MIN 1280 /* ICMP can be forged: it is believed down to here */
#define TOLD_MOST 16  /* and so often in */
#define TOLD_EVERY_US 10000
#define AGAIN_US 1000000 /* between searches that found nothing, doubling */
#define AGAIN_MOST_US 64000000
#define LONG_PROBES 5 /* while nothing is known of the round trip: 0.6 s */
#define LOST_TIMES 4  /* so often a packet was lost before its size is suspected */

/* MTUs that links and tunnels have (bytes of an IP packet). */
static const uint16_t rungs[] = {576,  1024, 1280, 1300, 1350, 1380, 1400,
                                 1420, 1450, 1472, 1492, 1500, 4352, 9000};

/* MSS counts headers as over IPv4. */
static uint32_t less(const udt_addr *a)
{
    return a->family == 6 ? 20 : 0;
}

static uint32_t lowest(const udt_conn *c)
{
    return c->peer.family == 6 ? TOLD_MIN - 20 : rungs[0];
}

uint32_t udt__pmtu_small(const udt_conn *c, bool tiny)
{
    uint32_t mss = tiny ? lowest(c) : TOLD_MIN - less(&c->peer);
    return mss < c->pmtu.now ? mss : c->pmtu.now;
}

/* ---- paths that are known ---- */

static bool same_host(const udt_addr *a, const udt_addr *b)
{
    return a->family == b->family && memcmp(a->ip, b->ip, a->family == 4 ? 4 : 16) == 0;
}

uint32_t udt__pmtu_known(const udt_mux *m, const udt_addr *a, uint32_t mss)
{
    for (int i = 0; i < PMTU_PATHS; i++)
        if (m->paths[i].until > m->now && same_host(&m->paths[i].addr, a))
            return m->paths[i].mss < mss ? m->paths[i].mss : mss;
    return mss;
}

/* The place of this path, else the one that ends first. */
static void remember(udt_mux *m, const udt_addr *a, uint32_t mss, udt_time until)
{
    udt_path_mtu *at = &m->paths[0];
    for (int i = 0; i < PMTU_PATHS; i++) {
        if (same_host(&m->paths[i].addr, a)) {
            at = &m->paths[i];
            break;
        }
        if (m->paths[i].until < at->until)
            at = &m->paths[i];
    }
    *at = (udt_path_mtu){.addr = *a, .mss = mss, .until = until};
}

/* ---- the size in use ---- */

static void use(udt_conn *c, uint32_t mss)
{
    uint32_t head = c->mss - c->payload;
    c->pmtu.now = mss < c->pmtu.top ? mss : c->pmtu.top;
    c->snd.fill = c->pmtu.now - head < c->payload ? c->pmtu.now - head : c->payload;
    const udt_cc_params cc = {c->pmtu.now, 0, c->opts.max_bw_Bps};
    udt_cc_set_mss(&c->cc, &cc);
}

/* Everything on its way that is too large is given up and goes again at once. */
static void resend_large(udt_conn *c, udt_time now)
{
    if (c->own.on)
        udt__own_timeout(c, INT64_MAX, now);
    for (int64_t i = c->snd.head; i < c->next && !c->own.on; i++)
        if (udt_sndbuf_slot(&c->snd, i)->len > c->snd.fill) {
            c->lost_first += i >= c->high && udt_sndbuf_slot(&c->snd, i)->ntx == 1;
            udt__conn_mark_lost(c, i, i);
        }
}

static void fall(udt_conn *c, uint32_t mss, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    mss = mss > lowest(c) ? mss : lowest(c);
    if (mss >= p->now || !c->snd.mem)
        return;
    use(c, mss);
    c->mux->n.mtu_falls++;
    remember(c->mux, &c->peer, mss, now + PMTU_RAISE_US);
    (void)udt_sndbuf_recut(&c->snd, c->next); /* without memory they go in pieces too */
    p->search = PMTU_REST;
    p->useless = 0;
    c->due &= ~(unsigned)DUE_MTU;
    udt__conn_timer(c, &c->t_pmtu, now + PMTU_RAISE_US);
    if (c->next == c->snd.head || c->open.phase == OPEN_ASKING)
        return;
    /* What was lost says nothing of the rate. */
    const udt_cc_params cc = {p->now, udt__rand32(c->mux), c->opts.max_bw_Bps};
    if (c->probes > 0)
        c->cc.ops->init(&c->cc, &cc);
    c->backoff = 0;
    resend_large(c, now);
    udt__conn_restart_probe(c, now);
    udt__conn_ready(c);
}

/* ---- searching ---- */

/* After a round: long enough for its answers. */
static int64_t patience(const udt_conn *c)
{
    int64_t wait = udt__conn_rto(c) + SYN_US;
    return wait < 30000 ? 30000 : wait > 2000000 ? 2000000 : wait;
}

static void begin_round(udt_conn *c)
{
    c->pmtu.due = 0;
    c->due |= DUE_MTU;
    c->t_pmtu = UDT_NEVER;
    udt__conn_ready(c);
}

static void search(udt_conn *c, enum pmtu_search what)
{
    udt_pmtu *p = &c->pmtu;
    uint32_t from = what == PMTU_FALL ? lowest(c) : p->now + 1;
    uint32_t last = what == PMTU_FALL ? p->now : p->top;
    p->search = (uint8_t)what;
    p->since = c->mux->now;
    p->round = p->n = 0;
    p->best = -1;
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
        uint32_t mss = rungs[i] - less(&c->peer);
        if (mss >= from && mss < last && p->n < PMTU_RUNGS - 1)
            p->size[p->n++] = (uint16_t)mss;
    }
    p->size[p->n++] = (uint16_t)last;
    c->mux->cfg.rand(c->mux->cfg.rand_arg, (uint8_t *)&p->token, sizeof p->token);
    p->token &= ~(uint64_t)0xff;
    begin_round(c);
}

/* What may be sent before it was tried. Nobody fragments IPv6 for us, so a packet that is numbered
 * too large there is lost for good: begin with what every path carries. */
static uint32_t trusted(const udt_conn *c)
{
    uint32_t mss = c->peer.family == 6 ? TOLD_MIN - 20 : c->own.on ? USUAL : c->pmtu.top;
    return mss < c->pmtu.top ? mss : c->pmtu.top;
}

void udt__pmtu_open(udt_conn *c, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    p->top = p->now = c->mss;
    p->stuck_at = UDT_NEVER;
    uint32_t known = udt__pmtu_known(c->mux, &c->peer, p->top);
    if (known < p->top) {
        use(c, known > lowest(c) ? known : lowest(c));
        udt__conn_timer(c, &c->t_pmtu, now + PMTU_RAISE_US);
    } else if (trusted(c) < p->top) {
        use(c, trusted(c));
        if (c->open.phase != OPEN_ASKING)
            search(c, PMTU_RAISE);
    }
}

void udt__pmtu_peer(udt_conn *c, uint32_t mss, uint32_t proved, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    p->top = mss < c->mss ? mss : c->mss;
    bool known = udt__pmtu_known(c->mux, &c->peer, p->top) < p->top;
    if (proved)
        fall(c, proved, now);
    use(c, p->now);
    if (p->now < p->top && !known)
        search(c, PMTU_RAISE);
}

void udt__pmtu_again(udt_conn *c)
{
    use(c, c->pmtu.now);
}

void udt__pmtu_suspect(udt_conn *c, int64_t idx, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    const snd_slot *s = udt_sndbuf_slot(&c->snd, idx);
    uint32_t size = s->len + (c->mss - c->payload);
    if (p->search == PMTU_FALL || now < p->again_at || size <= lowest(c) || size > p->now ||
        (c->probes < (c->rtt_known ? 2 : LONG_PROBES) && (s->ntx < LOST_TIMES || !c->rtt_known)) ||
        c->open.phase != OPEN_PLAIN || now - p->full_at < 2 * patience(c))
        return;
    search(c, PMTU_FALL);
}

/* The last that our own peer has said of its room leaves some for this packet, its next one. */
static bool granted(const udt_conn *c, const snd_slot *s)
{
    return c->own.on && s->len <= c->own.edge_bytes;
}

bool udt__pmtu_stuck(udt_conn *c, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    const snd_slot *s = udt_sndbuf_slot(&c->snd, c->snd.head);
    if (s->len + (c->mss - c->payload) <= p->now && !granted(c, s)) {
        p->stuck_at = UDT_NEVER;
        return false;
    }
    if (p->stuck_at == UDT_NEVER || p->stuck != c->snd.head) {
        p->stuck = c->snd.head;
        p->stuck_at = now;
    }
    return now - p->stuck_at >= (int64_t)c->opts.idle_timeout_ms * 1000 && s->ntx > LOST_TIMES;
}

void udt__pmtu_moved(udt_conn *c, udt_time now)
{
    c->pmtu.again_at = now;
    search(c, PMTU_FALL);
}

/* An ACK that says nothing new, as large as `size`: libudt confirms it like any other, and does not
 * look behind its sixth word. */
static size_t put_ack(udt_conn *c, uint8_t *buf, uint32_t *sub)
{
    c->ack_sub = *sub = c->ack_sub >= SEQ_MASK ? 1 : c->ack_sub + 1;
    int64_t ahead = udt_rcvloss_first(&c->missing, c->largest + 1) - c->last_ack;
    int64_t window = udt__conn_window_now(c) + ahead; /* ends where a true one would */
    const uint32_t words[6] = {seq_add(c->peer_isn, c->last_ack), (uint32_t)c->rtt_us,
                               (uint32_t)c->rtt_var_us, (uint32_t)window};
    return udt_pkt_put_ctrl(buf, UDT_CTRL_ACK, *sub, c->peer_id, words, 6);
}

size_t udt__pmtu_emit(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    if (p->search && (c->open.unproved || c->open.phase != OPEN_PLAIN)) { /* not yet */
        udt__conn_timer(c, &c->t_pmtu, now + 30000);
        p->round--;
        return 0;
    }
    while (p->search && p->due < p->n && p->due <= p->best)
        p->due++; /* larger ones have passed */
    if (!p->search || p->due >= p->n)
        return 0;
    int i = p->due++;
    size_t full = (size_t)p->size[i] - UDT_IP_OVERHEAD, n;
    uint64_t token = p->token + (uint64_t)i;
    const uint32_t words[2] = {(uint32_t)(token >> 32), (uint32_t)token};
    if (c->own.on) {
        n = udt_pkt_put_ctrl(buf, OWN_PATH_CHALLENGE, 0, c->peer_id, words, 2);
        full -= c->own.sealed ? OWN_TAG_BYTES : 0;
    } else {
        n = put_ack(c, buf, &p->sub[i]);
    }
    full = full < cap - OWN_TAG_BYTES ? full : cap - OWN_TAG_BYTES;
    if (n < full)
        memset(buf + n, 0, full - n);
    if (p->due < p->n)
        c->due |= DUE_MTU;
    else
        udt__conn_timer(c, &c->t_pmtu, now + patience(c));
    return n < full ? full : n;
}

/* The search is over. */
static void end(udt_conn *c, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    bool raise = p->search == PMTU_RAISE;
    bool whole = p->best == p->n - 1 || (!raise && p->full_at > p->since + 2 * patience(c));
    uint32_t best = p->best >= 0 ? p->size[p->best] : 0;
    p->search = PMTU_REST;
    c->due &= ~(unsigned)DUE_MTU;
    c->t_pmtu = UDT_NEVER;
    if (raise && best > p->now) {
        use(c, best);
        udt_sndbuf_join(&c->snd, c->next);
        remember(c->mux, &c->peer, best, whole ? 0 : now + PMTU_RAISE_US);
        c->mux->n.mtu_raises++;
    } else if (!raise && best > 0 && !whole) {
        fall(c, best, now);
        return;
    }
    if (!raise) {
        int64_t wait = (int64_t)AGAIN_US << (p->useless < 6 ? p->useless : 6);
        p->useless++;
        p->again_at = now + (wait < AGAIN_MOST_US ? wait : AGAIN_MOST_US);
    }
    if (p->now < p->top)
        udt__conn_timer(c, &c->t_pmtu, now + PMTU_RAISE_US);
}

static void answered(udt_conn *c, int i, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    if (i > p->best)
        p->best = i;
    if (p->best == p->n - 1)
        end(c, now);
}

bool udt__pmtu_answer(udt_conn *c, uint64_t token, udt_time now)
{
    uint64_t i = token - c->pmtu.token;
    if (!c->pmtu.search || i >= c->pmtu.n)
        return false;
    answered(c, (int)i, now);
    return true;
}

bool udt__pmtu_ack2(udt_conn *c, uint32_t sub, udt_time now)
{
    for (int i = 0; c->pmtu.search && i < c->pmtu.n; i++)
        if (c->pmtu.sub[i] == sub && (c->pmtu.round > 0 || i < c->pmtu.due)) {
            answered(c, i, now);
            return true;
        }
    return false;
}

void udt__pmtu_tick(udt_conn *c, udt_time now)
{
    udt_pmtu *p = &c->pmtu;
    if (!p->search) {
        if (p->now < p->top)
            search(c, PMTU_RAISE);
    } else if (++p->round < ROUNDS) {
        begin_round(c);
    } else {
        end(c, now);
    }
}

/* ---- what the driver hears ---- */

const refused_log *udt_mux_refused(const udt_mux *m)
{
    return &m->refused;
}

bool udt_mux_fragments(const udt_mux *m)
{
    return m->fragments;
}

/* All connections are gone through for each, and anybody who guesses a port may forge them; what is
 * not heeded is told again with the next packet that is too large. */
static bool heeds(udt_mux *m, udt_time now)
{
    if (now >= m->told_until) {
        m->told_until = now + TOLD_EVERY_US;
        m->told = 0;
    }
    return m->told++ < TOLD_MOST;
}

static void path_mtu(udt_mux *m, const udt_addr *to, uint32_t mtu, udt_time now)
{
    uint32_t mss = (mtu < TOLD_MIN ? TOLD_MIN : mtu) - less(to);
    m->now = now;
    for (list_node *n = m->all.next; n != &m->all; n = n->next) {
        udt_conn *c = list_entry(n, udt_conn, all);
        if (same_host(&c->peer, to) && c->snd.mem && udt__conn_live(c))
            fall(c, mss, now);
    }
}

void udt_mux_path_mtu(udt_mux *m, const udt_addr *to, uint32_t mtu, udt_time now)
{
    if (heeds(m, now))
        path_mtu(m, to, mtu, now);
}

void udt_mux_too_big(udt_mux *m, const udt_addr *to, size_t len, udt_time now)
{
    uint32_t ip = (uint32_t)len + UDT_IP_OVERHEAD + less(to), mtu = 0;
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++)
        if (rungs[i] < ip)
            mtu = rungs[i];
    if (mtu > 0)
        path_mtu(m, to, mtu, now);
}
