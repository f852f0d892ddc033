/* Sealed connections under attack: nothing that is not genuine and new changes anything but
 * counters. The whole connection is compared byte by byte. */
#include "test_udt_own.h"

#include "base/bytes.h"
#include "base/seq.h"

enum { MOST = 4096, DGRAM = 1500 };

typedef struct recorded {
    int from;
    size_t len;
    uint8_t pkt[DGRAM];
} recorded;

typedef struct tape {
    int n;
    recorded r[MOST];
} tape;

static tape the_tape; /* 6 MB: not for the stack */

static void record(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                   udt_time now)
{
    tape *t = arg;
    (void)to;
    (void)now;
    if (t->n == MOST || len > DGRAM)
        return;
    recorded *r = &t->r[t->n++];
    r->from = a;
    r->len = len;
    memcpy(r->pkt, pkt, len);
}

/* What an attack may change: the counters. */
typedef struct state {
    udt_conn c;
    uint32_t replies;
    uint64_t mem;
} state;

static state look(const world *w, const pair *p, int e)
{
    state s;
    memset(&s, 0, sizeof s);
    memcpy(&s.c, udt__mux_find(w->m[e], p->s[e]), sizeof s.c);
    memset(&s.c.own.n, 0, sizeof s.c.own.n);
    s.c.own.rx.next = NULL; /* the coming key, derived once when a number claims it */
    s.replies = w->m[e]->reply_count;
    s.mem = w->m[e]->mem.used;
    return s;
}

static int64_t refused(const world *w, int e)
{
    const udt_mux *m = w->m[e];
    return m->own.bad_tag + m->own.replayed + m->own.unsealed + m->n.dropped_unknown +
           m->n.dropped_bad;
}

/* One datagram at end e: refused, and nothing else. */
static void strike(world *w, const pair *p, int e, const udt_addr *from, const uint8_t *pkt,
                   size_t len, const char *what)
{
    int64_t had = refused(w, e);
    state before = look(w, p, e);
    udt_mux_input(w->m[e], from, pkt, len, sim_net_now(w->net) + 1000);
    w->m[e]->now = sim_net_now(w->net);
    state after = look(w, p, e);
    if (memcmp(&before, &after, sizeof before) != 0) {
        size_t at = 0;
        while (((uint8_t *)&before)[at] == ((uint8_t *)&after)[at])
            at++;
        test_fail(__FILE__, __LINE__, "%s of %zu bytes changed end %d at byte %zu of its state",
                  what, len, e, at);
    }
    if (refused(w, e) != had + 1)
        test_fail(__FILE__, __LINE__, "%s of %zu bytes was counted %" PRId64 " times", what, len,
                  refused(w, e) - had);
}

static pair start(world *w, enum own_kind kind)
{
    sim_link l = {.rate_bps = 100000000, .delay_us = 5000, .loss_ppm = 20000};
    udt_opts o;
    world_init(w, 21, &l, &l);
    udt_opts_init(&o);
    o.own_peer = true;
    the_tape.n = 0;
    pair p = world_connect(w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(w, &p, kind, 0);
    sim_net_tap(w->net, record, &the_tape);
    return p;
}

static void move(world *w, const pair *p, uint64_t size)
{
    flow f[2] = {{.from = 0, .seed = 1, .size = size}, {.from = 1, .seed = 2, .size = size / 4}};
    CHECK(world_move(w, p, f, 2, sim_net_now(w->net) + 10000000));
    world_run(w, sim_net_now(w->net) + 1000000);
}

TEST(udt_own_replayed_and_reflected_datagrams_do_nothing)
{
    world w;
    pair p = start(&w, OWN_SEALED);
    move(&w, &p, 2000000);
    CHECK(the_tape.n > 1000);
    for (int i = 0; i < the_tape.n; i++) {
        recorded *r = &the_tape.r[i];
        int to = !r->from;
        /* What was lost on the way has not been seen: it is new, and genuine. */
        if (sim_net_counts(w.net, r->from, to).lost == 0)
            strike(&w, &p, to, &w.addr[r->from], r->pkt, r->len, "replay");
        else if (be32_get(r->pkt + 12) == (uint32_t)p.s[to])
            udt_mux_input(w.m[to], &w.addr[r->from], r->pkt, r->len, sim_net_now(w.net));
    }
    world_run(&w, sim_net_now(w.net) + 1000000);
    for (int i = 0; i < the_tape.n; i++) { /* now all have been seen */
        recorded *r = &the_tape.r[i];
        int to = !r->from;
        strike(&w, &p, to, &w.addr[r->from], r->pkt, r->len, "replay");
        /* Back to where it came from, with the id of its sender. */
        be32_put(r->pkt + 12, (uint32_t)p.s[r->from]);
        strike(&w, &p, r->from, &w.addr[to], r->pkt, r->len, "reflection");
    }
    sim_net_tap(w.net, NULL, NULL);
    move(&w, &p, 500000);
    world_fini(&w);
}

/* The next datagram of end e, taken from its engine before the network has it. */
static size_t take(world *w, int e, uint8_t *buf)
{
    udt_addr to;
    size_t seg;
    return udt_mux_output(w->m[e], buf, DGRAM, 1, &to, &seg, sim_net_now(w->net));
}

static void mutilate(world *w, const pair *p, int e, const uint8_t *pkt, size_t len)
{
    uint8_t bad[DGRAM];
    int to = !e;
    for (size_t bit = 0; bit < len * 8; bit++) {
        memcpy(bad, pkt, len);
        bad[bit / 8] = (uint8_t)(bad[bit / 8] ^ 1u << (bit % 8));
        strike(w, p, to, &w->addr[e], bad, len, "flipped bit");
    }
    for (size_t cut = 0; cut < len; cut++)
        strike(w, p, to, &w->addr[e], pkt, cut, "truncated datagram");
    memcpy(bad, pkt, len);
    memset(bad + len, 0, 20);
    strike(w, p, to, &w->addr[e], bad, len + 20, "longer datagram");
    udt_addr other = test_addr(77, 9000);
    strike(w, p, to, &other, pkt, len, "datagram from elsewhere");
}

TEST(udt_own_every_flipped_bit_is_seen)
{
    world w;
    uint8_t pkt[DGRAM];
    pair p = start(&w, OWN_SEALED);
    move(&w, &p, 300000);
    udt_time now = sim_net_now(w.net);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], pkt, 700, now), 700);
    size_t len = take(&w, 0, pkt);
    CHECK_INT(len, 16 + 700 + 16);
    mutilate(&w, &p, 0, pkt, len);
    udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
    int64_t had = c->st.pkts_recv;
    udt_mux_input(w.m[1], &w.addr[0], pkt, len, now); /* the true one */
    CHECK_INT(c->st.pkts_recv, had + 1);
    udt_mux_burst_end(w.m[1], now);
    len = take(&w, 1, pkt); /* its EACK */
    CHECK(len >= 16 + 28 + 16);
    mutilate(&w, &p, 1, pkt, len);
    CHECK_INT(udt_mux_unacked(w.m[0], p.s[0]), 700);
    udt_mux_input(w.m[0], &w.addr[1], pkt, len, now);
    CHECK_INT(udt_mux_unacked(w.m[0], p.s[0]), 0);
    world_fini(&w);
}

/* Plain packets of every type, with fields that would be believed. */
static size_t forge(uint8_t *buf, const udt_conn *victim, int what, uint32_t pn)
{
    uint32_t body[12] = {seq_add(victim->isn, victim->next), 1, 1, 2, 0, 2, 0};
    const uint16_t type[] = {UDT_CTRL_KEEPALIVE, UDT_CTRL_ACK,      UDT_CTRL_NAK,
                             UDT_CTRL_WARNING,   UDT_CTRL_SHUTDOWN, UDT_CTRL_ACK2,
                             UDT_CTRL_DROP,      UDT_CTRL_ERROR,    OWN_EACK,
                             OWN_PARAMS,         OWN_ACKFREQ,       OWN_PATH_CHALLENGE,
                             OWN_PATH_RESPONSE,  UDT_CTRL_USER,     UDT_CTRL_HANDSHAKE};
    int types = (int)(sizeof type / sizeof *type);
    if (what > types)
        return 0;
    size_t n;
    if (what == types) {
        udt_pkt_put_data(buf, seq_add(victim->peer_isn, victim->largest + 1), 0xc0000001, pn,
                         victim->id);
        memset(buf + 16, 'x', 500);
        n = 516;
    } else {
        n = udt_pkt_put_ctrl(buf, type[what], 1, victim->id, body, what == 0 || what == 4 ? 0 : 7);
        be32_put(buf + 8, pn);
    }
    return n;
}

TEST(udt_own_plain_packets_are_not_believed)
{
    world w;
    uint8_t pkt[DGRAM];
    size_t len;
    pair p = start(&w, OWN_SEALED);
    move(&w, &p, 300000);
    for (int e = 0; e < 2; e++) {
        udt_conn *c = udt__mux_find(w.m[e], p.s[e]);
        for (int what = 0; (len = forge(pkt, c, what, (uint32_t)c->own.rx_top + 1)) > 0; what++)
            strike(&w, &p, e, &w.addr[!e], pkt, len, "forged packet");
    }
    move(&w, &p, 300000);
    world_fini(&w);
}

/* Keys change every 64 packets here: data arrives, late packets of the last key too. */
TEST(udt_own_keys_change)
{
    sim_link l = {
        .rate_bps = 100000000, .delay_us = 5000, .reorder_ppm = 50000, .reorder_us = 1000};
    world w;
    udt_opts o;
    world_init(&w, 21, &l, &l);
    udt_opts_init(&o);
    o.own_peer = true;
    pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&w, &p, OWN_SEALED, 6);
    move(&w, &p, 3000000);
    for (int e = 0; e < 2; e++) {
        udt_conn *c = udt__mux_find(w.m[e], p.s[e]);
        CHECK_INT(c->own.tx.epoch, (c->own.pn - 1) >> 6);
        CHECK(c->own.n.key_updates > 20);
        CHECK_INT(c->own.n.bad_tag, 0);
        CHECK(c->own.rx.epoch >= udt__mux_find(w.m[!e], p.s[!e])->own.tx.epoch - 1);
    }
    world_fini(&w);
}

/* All shutdowns of a sealed connection are lost: the peer hears of the end when it speaks next, not
 * after 10 s of silence, and only from what is sealed. */
TEST(udt_own_late_packets_are_answered_with_a_sealed_farewell)
{
    sim_link dead = {.loss_ppm = 1000000}, fine = {.delay_us = 1000};
    world w;
    uint8_t byte = 1;
    pair p = start(&w, OWN_SEALED);
    move(&w, &p, 100000);
    sim_net_link(w.net, 0, 1, &dead);
    sim_net_link(w.net, 1, 0, &fine);
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 0, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 0);
    world_wait(&w, 0, UDT_EV_CLOSED, p.s[0], sim_net_now(w.net) + 2000000);
    world_run(&w, sim_net_now(w.net) + 1000000);
    struct udt_ev ev;
    CHECK(!world_take(&w, 1, UDT_EV_PEER_CLOSED, 0, &ev));
    sim_net_link(w.net, 0, 1, &fine);
    CHECK_INT(udt_mux_send(w.m[1], p.s[1], &byte, 1, sim_net_now(w.net)), 1);
    sim_net_kick(w.net, 1);
    world_wait(&w, 1, UDT_EV_PEER_CLOSED, p.s[1], sim_net_now(w.net) + 100000);
    world_fini(&w);
}

/* Unsealed, everything is believed that makes sense: then at least nothing may break. Packets of a
 * running transfer come again with random changes; the engine's own sums are checked. */
static void check_sums(const udt_conn *c)
{
    const udt_own *o = &c->own;
    int64_t n = 0, bytes = 0;
    uint32_t flying = 0;
    if (!udt__conn_live(c))
        return;
    for (int64_t i = o->flight_first; i >= 0; n++) {
        const snd_slot *s = udt_sndbuf_slot(&c->snd, i);
        CHECK(s->flags & SND_FLYING);
        CHECK(lossmap_has(&o->out, i));
        CHECK(!lossmap_has(&c->loss.map, i));
        CHECK(n <= o->flight);
        if (!s->after)
            CHECK_INT(i, o->flight_last);
        i = s->after ? i + s->after : -1;
    }
    CHECK_INT(n, o->flight);
    for (int64_t i = c->snd.head; i < c->next; i++) {
        const snd_slot *s = udt_sndbuf_slot(&c->snd, i);
        bytes += s->len;
        flying += (s->flags & SND_FLYING) != 0;
    }
    CHECK_INT(flying, n);
    CHECK_INT(bytes, o->sent_bytes);
}

static void garble(sim_rng *r, uint8_t *pkt, size_t *len)
{
    for (int k = (int)sim_rng_below(r, 4); k >= 0; k--) {
        size_t at = 4 * sim_rng_below(r, *len / 4);
        uint32_t v = be32_get(pkt + at);
        if (at == 12)
            continue;
        v = sim_rng_below(r, 2) ? (uint32_t)sim_rng_u64(r)
                                : v + (uint32_t)sim_rng_below(r, 64) - 32;
        be32_put(pkt + at, v);
    }
    if (sim_rng_below(r, 8) == 0)
        *len = 16 + sim_rng_below(r, *len - 15);
}

TEST(udt_own_garbage_breaks_nothing)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        world w;
        sim_rng r;
        sim_rng_seed(&r, test_seed + seed);
        pair p = start(&w, OWN_PLAIN);
        flow f[2] = {{.from = 0, .seed = 1, .size = 1000000},
                     {.from = 1, .seed = 2, .size = 300000}};
        CHECK(world_move(&w, &p, f, 2, sim_net_now(w.net) + 10000000));
        sim_net_tap(w.net, NULL, NULL);
        for (int i = 0; i < 3000; i++) {
            recorded x = the_tape.r[sim_rng_below(&r, (uint64_t)the_tape.n)];
            int e = !x.from;
            udt_time now = sim_net_now(w.net);
            udt_mux_send(w.m[0], p.s[0], the_tape.r[0].pkt, 1000, now);
            if (x.len < 16 || (be32_get(x.pkt) >> 31 && (be32_get(x.pkt) >> 16 & 0x7fff) == 5))
                continue;
            if (sim_rng_below(&r, 3) == 0) { /* an EACK about what is in flight now */
                const udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
                uint32_t words[12];
                if (!c)
                    break;
                for (int k = 0; k < 12; k++)
                    words[k] = seq_add(c->isn, c->snd.head + (int64_t)sim_rng_below(&r, 40));
                words[1] = (uint32_t)c->own.pn - (uint32_t)sim_rng_below(&r, 40);
                words[3] = (uint32_t)sim_rng_below(&r, 1000);
                words[4] = 0;
                x.len = udt_pkt_put_ctrl(x.pkt, OWN_EACK, 0, c->id, words,
                                         7 + 2 * sim_rng_below(&r, 3));
                e = 0;
            } else {
                garble(&r, x.pkt, &x.len);
            }
            udt_mux_input(w.m[e], &w.addr[!e], x.pkt, x.len, now);
            udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
            if (c)
                check_sums(c);
            sim_net_kick(w.net, e);
            sim_net_step(w.net, now + 2000);
            world_events(&w);
            w.nev[0] = w.nev[1] = 0;
        }
        world_fini(&w);
    }
}
