/* Many connections to a near peer take turns (udt/own_near.c). */
#include "test_udt_own.h"

enum {
    CONNS = 200,
    EACH = 800000,
    LAZY = 20,
    DEAF = 60,
    BOUND = 3 << 20,
    FIRST = 24 << 10,
    TURN = 4 * 44
};

typedef struct crowd {
    world w;
    pair p[CONNS];
    uint32_t conns;
    int64_t sent[CONNS], got[CONNS];
    bool lazy[CONNS]; /* hears that it may write, and does not */
    bool closed[CONNS];
    bool deaf[CONNS]; /* its reader takes nothing */
    int64_t most;     /* in flight and promised */
    int64_t mem;      /* blocks of the sender */
} crowd;

static uint8_t data[1 << 16];

static int find(const crowd *k, int e, int32_t sock)
{
    for (int i = 0; i < CONNS; i++)
        if (k->p[i].s[e] == sock)
            return i;
    return -1;
}

static void put(crowd *k, int i)
{
    if (k->closed[i])
        return;
    while (k->sent[i] < EACH) {
        size_t len =
            sizeof data < (size_t)(EACH - k->sent[i]) ? sizeof data : (size_t)(EACH - k->sent[i]);
        ssize_t n = udt_mux_send(k->w.m[0], k->p[i].s[0], data, len, sim_net_now(k->w.net));
        if (n == UDT_E_AGAIN)
            break;
        CHECK(n > 0);
        k->sent[i] += n;
    }
    sim_net_kick(k->w.net, 0);
}

static void take(crowd *k, int i)
{
    ssize_t n;
    while ((n = udt_mux_recv(k->w.m[1], k->p[i].s[1], data, sizeof data, sim_net_now(k->w.net))) >
           0)
        k->got[i] += n;
}

static void answer(crowd *k, int e, const struct udt_ev *ev)
{
    int i = find(k, e, ev->sock);
    if (ev->kind == UDT_EV_WRITABLE && !k->lazy[i])
        put(k, i);
    else if (ev->kind == UDT_EV_READABLE && !k->deaf[i])
        take(k, i);
}

/* Lets time pass until `limit`, or until nothing happens any more. */
static void run(crowd *k, udt_time limit)
{
    const udt_mux *m = k->w.m[0];
    do {
        for (world_events(&k->w); k->w.nev[0] + k->w.nev[1] > 0; world_events(&k->w))
            for (int e = 0; e < 2; e++)
                while (k->w.nev[e] > 0)
                    answer(k, e, &k->w.ev[e][--k->w.nev[e]]);
        k->most = m->near_bytes + m->near_turns > k->most ? m->near_bytes + m->near_turns : k->most;
        k->mem = m->mem.blocks > k->mem ? m->mem.blocks : k->mem;
    } while (world_step(&k->w, limit));
}

/* As many connections, of which the sender knows that the path is short. */
static void connect_until(crowd *k, uint32_t n, uint32_t rcv_buf_bytes)
{
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = true;
    o.snd_buf_bytes = 0; /* grows by itself */
    o.rcv_buf_bytes = rcv_buf_bytes;
    for (uint32_t i = k->conns; i < n; i++) {
        o.tag = 1 + i;
        for (int e = 0; e < 2; e++)
            k->p[i].s[e] = udt_mux_rendezvous(k->w.m[e], &k->w.addr[!e], &o, sim_net_now(k->w.net));
    }
    for (int e = 0; e < 2; e++)
        sim_net_kick(k->w.net, e);
    run(k, sim_net_now(k->w.net) + 20000);
    for (; k->conns < n; k->conns++) {
        own_pair(&k->w, &k->p[k->conns], OWN_PLAIN, 0);
        udt__near_rtt(udt__mux_find(k->w.m[0], k->p[k->conns].s[0]), 40);
    }
}

static void begin_with(crowd *k, uint32_t n, uint32_t rcv_buf_bytes)
{
    sim_link link = {.rate_bps = INT64_C(10000000000), .delay_us = 20, .queue_bytes = 16 << 20};
    memset(k, 0, sizeof *k);
    world_init(&k->w, 7, &link, &link);
    connect_until(k, n, rcv_buf_bytes);
}

static void begin(crowd *k)
{
    begin_with(k, CONNS, 0); /* receivers' buffers grow by themselves too */
}

static void all_over(const crowd *k)
{
    const udt_mux *m = k->w.m[0];
    CHECK(list_empty(&m->line));
    CHECK(list_empty(&m->given));
    CHECK_INT(m->near_turns, 0);
    CHECK_INT(m->near_bytes, 0);
}

TEST(udt_turns_are_whole_and_bounded)
{
    static crowd k;
    udt_stats st;
    begin(&k);
    udt_time from = sim_net_now(k.w.net);
    for (int i = 0; i < CONNS; i++) {
        put(&k, i);
        CHECK(k.sent[i] <= FIRST + 1456); /* no turn yet, no more in the queue */
    }
    run(&k, from + 60000);
    int64_t least = EACH, most = 0;
    int whole = 0;
    for (int i = 0; i < CONNS; i++) {
        least = k.got[i] < least ? k.got[i] : least;
        most = k.got[i] > most ? k.got[i] : most;
        whole += udt__mux_find(k.w.m[0], k.p[i].s[0])->next % TURN == 0;
    }
    CHECK(whole >= CONNS - 10);
    CHECK(least > 0);
    CHECK(most - least <= TURN * 1456);
    run(&k, from + 2000000);
    int64_t again = 0, acks = 0;
    for (int i = 0; i < CONNS; i++) {
        CHECK_INT(k.got[i], EACH);
        CHECK_INT(udt_mux_stats(k.w.m[0], k.p[i].s[0], &st), 0);
        again += st.pkts_retrans;
        acks += st.acks_recv;
    }
    CHECK_INT(again, 0);
    CHECK(acks <= 4 * CONNS * (EACH / (TURN * 1456) + 1)); /* of a turn, not of a few packets */
    CHECK(k.mem <= 2 * CONNS + 2 * BOUND / 65536);         /* two each, and what is under way */
    CHECK(k.most <= BOUND + CONNS * 2 * 1456);
    all_over(&k);
    world_fini(&k.w);
}

TEST(udt_turns_let_a_little_pass)
{
    static crowd k;
    begin(&k);
    udt_time from = sim_net_now(k.w.net);
    for (int i = 1; i < CONNS; i++)
        put(&k, i);
    run(&k, from + 20000);
    CHECK(!list_empty(&k.w.m[0]->line));
    udt_time now = sim_net_now(k.w.net);
    CHECK_INT(udt_mux_send(k.w.m[0], k.p[0].s[0], data, 100, now), 100);
    sim_net_kick(k.w.net, 0);
    run(&k, now + 3500); /* what is in flight before it takes 2.5 ms */
    CHECK_INT(k.got[0], 100);
    CHECK(!list_empty(&k.w.m[0]->line));
    world_fini(&k.w);
}

TEST(udt_turns_go_on_without_those_who_do_not_write_or_leave)
{
    static crowd k;
    begin(&k);
    udt_time from = sim_net_now(k.w.net);
    for (int i = 0; i < CONNS; i++) {
        k.lazy[i] = i < LAZY;
        put(&k, i);
    }
    run(&k, from + 15000);
    for (int i = LAZY; i < 5 * LAZY; i++) {
        k.closed[i] = true;
        CHECK_INT(udt_mux_close(k.w.m[0], k.p[i].s[0], 0, sim_net_now(k.w.net)), 0);
    }
    sim_net_kick(k.w.net, 0);
    run(&k, from + 2000000); /* fewer than a crowd by now */
    for (int i = 0; i < CONNS; i++)
        if (!k.closed[i])
            CHECK_INT(k.got[i], k.lazy[i] ? k.sent[i] : EACH);
    all_over(&k);
    world_fini(&k.w);
}

/* Those whose readers take nothing hold no turns: the others go on, and they when they are read. */
TEST(udt_turns_go_on_beside_readers_who_take_nothing)
{
    static crowd k;
    begin_with(&k, CONNS, 64 << 10);
    udt_time from = sim_net_now(k.w.net);
    for (int i = 0; i < CONNS; i++) {
        k.deaf[i] = i < DEAF;
        put(&k, i);
    }
    run(&k, from + 1000000);
    for (int i = 0; i < CONNS; i++)
        CHECK_INT(k.got[i], k.deaf[i] ? 0 : EACH);
    CHECK(list_empty(&k.w.m[0]->line)); /* and nobody wakes the loop for them */
    CHECK(list_empty(&k.w.m[0]->given));
    for (int i = 0; i < DEAF; i++) {
        k.deaf[i] = false;
        take(&k, i);
    }
    sim_net_kick(k.w.net, 1);
    run(&k, from + 5000000);
    for (int i = 0; i < CONNS; i++)
        CHECK_INT(k.got[i], EACH);
    all_over(&k);
    world_fini(&k.w);
}

/* Connections that come and go make a crowd and end it while everybody sends. */
TEST(udt_turns_begin_and_end_with_the_crowd)
{
    enum { FEW = 100 };
    static crowd k;
    begin_with(&k, FEW, 0);
    const udt_mux *m = k.w.m[0];
    for (int i = 0; i < FEW; i++)
        put(&k, i);
    run(&k, sim_net_now(k.w.net) + 2000);
    CHECK(list_empty(&m->line));
    CHECK(list_empty(&m->given));
    connect_until(&k, CONNS, 0);
    for (int i = FEW; i < CONNS; i++)
        put(&k, i);
    run(&k, sim_net_now(k.w.net) + 20000);
    CHECK(!list_empty(&m->line));
    for (int i = 0; i < FEW; i++) {
        CHECK(k.got[i] < EACH);
        k.closed[i] = true;
        CHECK_INT(udt_mux_close(k.w.m[0], k.p[i].s[0], 0, sim_net_now(k.w.net)), 0);
    }
    sim_net_kick(k.w.net, 0);
    while (m->sockets > FEW) /* their farewells take a moment */
        run(&k, sim_net_now(k.w.net) + 1000);
    CHECK(list_empty(&m->line));
    CHECK(k.got[CONNS - 1] < EACH);
    run(&k, sim_net_now(k.w.net) + 2000000);
    for (int i = FEW; i < CONNS; i++)
        CHECK_INT(k.got[i], EACH);
    all_over(&k);
    world_fini(&k.w);
}
