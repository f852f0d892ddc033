/* GMP without memory: whatever allocation fails, everything that was accepted has its one end, and
 * everything is given back. */
#include "gmp_pair.h"
#include "gmp_pipe.h"
#include "test_alloc.h"

enum { IDS = 2048, GROUP = 40, CALLS = 20 };

/* Allocations of the engines fail, those of the network and of the tests do not. */
static int64_t left;
static bool none, lasting; /* lasting: when one has failed, all that follow fail */

static void enter(void)
{
    alloc_fail(left > 0 ? left : 0);
    alloc_fail_all(none);
}

static void leave(void)
{
    if (left > 0)
        left = alloc_left();
    none |= lasting && left < 0;
    alloc_fail(0);
    alloc_fail_all(false);
}

static void input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    enter();
    gnode_input(ep, from, pkt, len, now);
    leave();
}

static size_t output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to, size_t *seg,
                     udt_time now)
{
    enter();
    size_t n = gnode_output(ep, buf, cap, max_segs, to, seg, now);
    leave();
    return n;
}

static void tick(void *ep, udt_time now)
{
    enter();
    gnode_tick(ep, now);
    leave();
}

static const sim_ep_ops poor = {input, NULL, output, gnode_deadline, tick};

/* What was asked, and how it ended. */
struct book {
    struct pair p;
    struct gpipes pipes;
    int owed[IDS], ends[IDS]; /* by id; of a group: its members, decision and end */
    int writable;
};

static void book_open(struct book *b)
{
    memset(b, 0, sizeof *b);
    open_pair(&b->p, true, &(sim_link){.delay_us = 5000});
    sim_net_set(b->p.net, b->p.a.id, &poor, &b->p.a);
    sim_net_set(b->p.net, b->p.b.id, &poor, &b->p.b);
    b->pipes = (struct gpipes){.nodes = &b->p.a, .n = 2, .delay = 5000, .Bps = 10000000};
    sim_rng_seed(&b->pipes.rng, 1);
}

static void accepted(struct book *b, uint64_t id, int err, int ends)
{
    b->owed[id] = err == 0 ? ends : 0;
    if (err && err != UDT_E_NOMEM && err != UDT_E_LIMIT)
        test_fail(__FILE__, __LINE__, "%" PRIu64 ": %s", id, udt_err_text(err));
    sim_net_kick(b->p.net, b->p.a.id);
}

static void ask(struct book *b, const sgmp_dest *to, uint64_t id, size_t len, bool call, bool known)
{
    static const uint8_t body[100000];
    sgmp_opts o = {.deadline_ms = 3000, .channel = known ? 0 : 9};
    udt_time now = sim_net_now(b->p.net);
    enter();
    int err = call ? sgmp_node_call(b->p.a.n, to, 1, body, len, &o, id, now)
                   : sgmp_node_send(b->p.a.n, to, body, len, &o, id, now);
    leave();
    accepted(b, id, err, 1);
}

static void ask_group(struct book *b, bool call)
{
    sgmp_dest to[3] = {b->p.to_b, b->p.to_b, b->p.to_b};
    sgmp_group_opts o = {.call = call, .each.deadline_ms = 3000};
    to[1].addr.ip[3] = to[2].addr.ip[3] = 77;
    to[2].addr.port++;
    enter();
    int err =
        sgmp_node_group(b->p.a.n, to, 3, (const uint8_t *)"x", 1, &o, GROUP, sim_net_now(b->p.net));
    leave();
    accepted(b, GROUP, err, 5);
}

static void take(struct book *b)
{
    struct sgmp_ev ev;
    udt_time now = sim_net_now(b->p.net);
    while (sgmp_node_next_event(b->p.a.n, &ev)) {
        bool ends = ev.kind == SGMP_EV_OUTCOME || ev.kind == SGMP_EV_RESPONSE ||
                    ev.kind >= SGMP_EV_GROUP_MEMBER;
        b->writable += ev.kind == SGMP_EV_WRITABLE;
        if (ends)
            b->ends[ev.id]++;
        sgmp_node_release(b->p.a.n, ev.buf);
    }
    while (sgmp_node_next_event(b->p.b.n, &ev)) {
        enter();
        if (ev.kind == SGMP_EV_REQUEST && ev.len != 7)
            (void)sgmp_node_reply(b->p.b.n, ev.id, 0, NULL, 0, now);
        leave();
        sgmp_node_release(b->p.b.n, ev.buf);
        sim_net_kick(b->p.net, b->p.b.id);
    }
}

static void run(struct book *b, udt_time span)
{
    udt_time end = sim_net_now(b->p.net) + span;
    while (sim_net_now(b->p.net) < end) {
        grun(b->p.net, sim_net_now(b->p.net) + 5000);
        (void)gpipes_run(&b->pipes);
        take(b);
    }
}

static void book_close(struct book *b, int64_t n)
{
    for (int i = 0; i < IDS; i++)
        if (b->ends[i] != b->owed[i])
            test_fail(__FILE__, __LINE__, "allocation %" PRId64 ": %d ends of %d, not %d", n,
                      b->ends[i], i, b->owed[i]);
    while (b->pipes.list)
        gpipe_kill(&b->pipes, b->pipes.list, true, true);
    close_pair(&b->p);
}

/* Of every kind of message and call some that arrive and some that do not. `none_after` ms without
 * any memory begin when all was asked. */
static void everything(int64_t n, int none_after)
{
    struct book b;
    left = n;
    book_open(&b);
    sgmp_dest dead = b.p.to_b;
    dead.addr.ip[3] = 99;
    for (uint64_t i = 1; i <= 4; i++) {
        const sgmp_dest *to = i & 1 ? &b.p.to_b : &dead;
        ask(&b, to, i, 10, false, true);
        ask(&b, to, CALLS + i, 10, true, true);
    }
    ask(&b, &b.p.to_b, 5, 10, false, false); /* refused */
    ask(&b, &b.p.to_b, 6, 100000, false, true);
    ask(&b, &b.p.to_b, 7, 20000, false, true);
    ask(&b, &b.p.to_b, CALLS + 5, 10, true, false);
    ask(&b, &b.p.to_b, CALLS + 6, 7, true, true); /* never answered */
    ask(&b, &b.p.to_b, CALLS + 7, 7, true, true); /* nor this, and cancelled */
    ask_group(&b, n & 1);
    if (none_after >= 0) {
        run(&b, MS_(none_after));
        none = true;
    }
    run(&b, MS_(100));
    enter();
    (void)sgmp_node_cancel(b.p.a.n, CALLS + 7, sim_net_now(b.p.net));
    leave();
    run(&b, SEC_(5));
    none = false;
    run(&b, SEC_(20));
    book_close(&b, n);
}

TEST(gmp_every_outcome_is_told_whichever_allocation_fails)
{
    int64_t held = alloc_held(), n = 0;
    do {
        everything(++n, -1);
        CHECK_INT(alloc_held(), held);
    } while (left < 0);
    printf("%" PRId64 " allocations\n", n - 1);
    CHECK(n > 100);
}

TEST(gmp_every_outcome_is_told_without_any_memory)
{
    int64_t held = alloc_held();
    for (int ms = 0; ms < 60; ms += 3) {
        everything(INT64_MAX - 1, ms);
        everything(INT64_MAX, ms);
        CHECK_INT(alloc_held(), held);
    }
}

/* AGAIN is a promise, too. */
TEST(gmp_writable_is_told_without_any_memory)
{
    struct book b;
    sgmp_opts o = {.deadline_ms = 3000};
    left = 0;
    book_open(&b);
    uint64_t id = 0;
    int err = 0;
    do {
        id++;
        udt_time now = sim_net_now(b.p.net);
        alloc_fail_all(id == 1025); /* then nobody is told to wait */
        err = sgmp_node_send(b.p.a.n, &b.p.to_b, NULL, 0, &o, id, now);
        alloc_fail_all(false);
        if (err == UDT_E_NOMEM)
            err = sgmp_node_send(b.p.a.n, &b.p.to_b, NULL, 0, &o, id, now);
        b.owed[id] = err == 0;
    } while (err == 0 && id < IDS - 1);
    CHECK_INT(id, 1025);
    CHECK_INT(err, UDT_E_AGAIN);
    sim_net_kick(b.p.net, b.p.a.id);
    none = true;
    run(&b, SEC_(4));
    none = false;
    CHECK_INT(b.writable, 1);
    book_close(&b, 0);
}

/* What cannot be sealed is tried again in time, not at once and for ever; it goes when there is
 * memory. From each allocation on that is made for one message, none succeeds for a second. */
TEST(gmp_what_has_no_memory_for_its_key_waits)
{
    bool reached = true;
    for (int64_t n = 1; reached; n++) {
        struct book b;
        left = 0;
        none = false;
        book_open(&b);
        int err = sgmp_node_send(b.p.a.n, &b.p.to_b, NULL, 0, &(sgmp_opts){.deadline_ms = 3000}, 1,
                                 sim_net_now(b.p.net));
        left = n; /* before anything leaves */
        lasting = true;
        accepted(&b, 1, err, 1);
        run(&b, SEC_(1));
        reached = none;
        lasting = none = false;
        left = 0;
        run(&b, SEC_(5));
        book_close(&b, n);
    }
}
