/* Calls: deadlines, cancellation, progress, liveness, limits; over-size messages at their edges. */
#include "gmp_pipe.h"

enum { KEY = 0x04000001 };

struct duo {
    sim_net *net;
    struct gnode g[2];
    struct gpipes pipes;
    sgmp_dest to[2]; /* to[i] = destination of node i */
};

static void open_duo(struct duo *d, bool auth, int64_t delay_us)
{
    sim_link l = {.delay_us = delay_us};
    memset(d, 0, sizeof *d);
    d->net = sim_net_new(test_seed);
    for (int i = 0; i < 2; i++) {
        gnode_open(&d->g[i], d->net, (unsigned)i + 1, auth, test_seed);
        d->to[i] = gdest(&d->g[i], auth ? KEY : 0);
    }
    sim_net_link(d->net, 0, 1, &l);
    sim_net_link(d->net, 1, 0, &l);
    if (auth)
        gpair(&d->g[0], &d->g[1], KEY, SGMP_ALG_AES256GCM);
    d->pipes.nodes = d->g;
    d->pipes.n = 2;
    d->pipes.delay = delay_us;
    d->pipes.Bps = 10000000;
    sim_rng_seed(&d->pipes.rng, test_seed);
}

static void close_duo(struct duo *d)
{
    while (d->pipes.list)
        gpipe_kill(&d->pipes, d->pipes.list, true, true);
    for (int i = 0; i < 2; i++)
        if (d->g[i].n)
            gnode_stop(&d->g[i]);
    sim_net_free(d->net);
}

/* Runs pipes and network until node i has an event of this kind. */
static bool await(struct duo *d, int i, int kind, struct sgmp_ev *ev, udt_time for_us)
{
    udt_time until = sim_net_now(d->net) + for_us;
    while (sim_net_now(d->net) < until) {
        while (sgmp_node_next_event(d->g[i].n, ev)) {
            if (ev->kind == kind)
                return true;
            sgmp_node_release(d->g[i].n, ev->buf);
        }
        udt_time pipe;
        while ((pipe = gpipes_run(&d->pipes)) <= sim_net_now(d->net))
            ;
        sim_net_step(d->net, pipe < until ? pipe : until);
    }
    return false;
}

static void call(struct duo *d, uint64_t id, uint32_t ms, int flags)
{
    sgmp_opts o = {.deadline_ms = ms, .flags = (uint16_t)flags};
    CHECK_INT(sgmp_node_call(d->g[0].n, &d->to[1], 5, (const uint8_t *)"q", 1, &o, id,
                             sim_net_now(d->net)),
              0);
    sim_net_kick(d->net, d->g[0].id);
}

static int reply(struct duo *d, uint64_t req, int status)
{
    int err = sgmp_node_reply(d->g[1].n, req, status, (const uint8_t *)"a", 1, sim_net_now(d->net));
    sim_net_kick(d->net, d->g[1].id);
    return err;
}

static sgmp_stats stats(struct duo *d, int i)
{
    sgmp_stats s;
    sgmp_node_stats(d->g[i].n, &s);
    return s;
}

TEST(gmp_rpc_deadline_cancels_at_the_callee)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    call(&d, 1, 500, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    uint64_t req = ev.id;
    CHECK(ev.ms <= 500 && ev.ms > 400);
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(2)));
    CHECK_INT(ev.status, SGMP_RPC_TIMEOUT);
    CHECK(sim_net_now(d.net) >= 500000 && sim_net_now(d.net) < 510000);
    CHECK(await(&d, 1, SGMP_EV_CANCEL, &ev, SEC_(1)));
    CHECK_INT(ev.id, req);
    int err = reply(&d, req, 0); /* ignored by the caller, or its budget is spent already */
    CHECK(err == 0 || err == UDT_E_NOSOCK);
    CHECK(!await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(2)));
    CHECK_INT(stats(&d, 1).running_requests, 0);
    CHECK_INT(stats(&d, 0).pending_calls, 0);
    close_duo(&d);
}

TEST(gmp_rpc_cancel_races_with_the_answer)
{
    for (int64_t at = 0; at < 24000; at += 1000) {
        struct duo d;
        struct sgmp_ev ev;
        int answers = 0;
        open_duo(&d, true, 5000);
        call(&d, 1, 5000, 0);
        udt_time cancel_at = 20000 + at; /* first contact takes two round trips */
        bool cancelled = false;
        while (sim_net_now(d.net) < SEC_(1)) {
            if (!cancelled && sim_net_now(d.net) >= cancel_at) {
                cancelled = true;
                int err = sgmp_node_cancel(d.g[0].n, 1, sim_net_now(d.net));
                CHECK(err == 0 || err == UDT_E_NOSOCK); /* the answer was faster */
                sim_net_kick(d.net, 0);
            }
            while (sgmp_node_next_event(d.g[1].n, &ev)) {
                if (ev.kind == SGMP_EV_REQUEST)
                    CHECK_INT(reply(&d, ev.id, 0), 0);
                sgmp_node_release(d.g[1].n, ev.buf);
            }
            while (sgmp_node_next_event(d.g[0].n, &ev)) {
                if (ev.kind == SGMP_EV_RESPONSE) {
                    answers++;
                    CHECK(ev.status == 0 || ev.status == SGMP_RPC_CANCELLED);
                }
                sgmp_node_release(d.g[0].n, ev.buf);
            }
            sim_net_step(d.net, cancelled ? sim_net_now(d.net) + 10000 : cancel_at);
        }
        CHECK_INT(answers, 1);
        close_duo(&d);
    }
}

TEST(gmp_rpc_late_and_foreign_answers_are_dropped)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    call(&d, 1, 2000, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    sgmp_node_release(d.g[1].n, ev.buf);
    uint64_t req = ev.id;
    CHECK_INT(sgmp_node_cancel(d.g[0].n, 1, sim_net_now(d.net)), 0);
    CHECK_INT(reply(&d, req, 0), 0); /* crosses the CANCEL */
    sim_net_kick(d.net, 0);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
    CHECK_INT(ev.status, SGMP_RPC_CANCELLED);
    CHECK(!await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
    CHECK_INT(stats(&d, 0).late_answers, 1);
    close_duo(&d);
}

TEST(gmp_rpc_progress_and_liveness)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    call(&d, 1, 60000, SGMP_WANT_PROGRESS);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK_INT(sgmp_node_progress(d.g[1].n, ev.id, 40, sim_net_now(d.net)), 0);
    CHECK_INT(sgmp_node_progress(d.g[1].n, ev.id, 101, sim_net_now(d.net)), UDT_E_INVAL);
    uint64_t req = ev.id;
    CHECK(await(&d, 0, SGMP_EV_PROGRESS, &ev, SEC_(6)));
    CHECK_INT(ev.id, 1);
    CHECK_INT(ev.status, 40);
    CHECK_INT(reply(&d, req, -555), 0);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
    CHECK_INT(ev.status, -555);
    CHECK_INT(ev.len, 1);
    sgmp_node_release(d.g[0].n, ev.buf);
    /* A slow callee is pinged and stays; a dead one is lost after 15 s. */
    call(&d, 2, 100000, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK(!await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(40)));
    sim_net_set(d.net, d.g[1].id, &gnode_ops, NULL);
    udt_time died = sim_net_now(d.net);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(30)));
    CHECK_INT(ev.status, SGMP_RPC_PEER_LOST);
    CHECK(sim_net_now(d.net) - died <= SEC_(15));
    close_duo(&d);
}

/* The caller's process is stopped for longer than a peer may be silent: it has asked nobody. */
TEST(gmp_rpc_a_caller_that_stood_still_blames_nobody)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    call(&d, 1, 100000, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    sgmp_node_release(d.g[1].n, ev.buf);
    uint64_t req = ev.id;
    CHECK(!await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(7)));
    sim_net_set(d.net, d.g[0].id, &gnode_ops, NULL);
    CHECK(!await(&d, 1, SGMP_EV_CANCEL, &ev, SEC_(30)));
    sim_net_set(d.net, d.g[0].id, &gnode_ops, &d.g[0]);
    sim_net_kick(d.net, d.g[0].id);
    sgmp_opts none = {.deadline_ms = 1000}; /* what the program does first, before a tick */
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], NULL, 0, &none, 2, sim_net_now(d.net)), 0);
    sim_net_kick(d.net, d.g[0].id);
    udt_time back = sim_net_now(d.net);
    while (sim_net_now(d.net) < back + SEC_(20)) {
        sim_net_step(d.net, back + SEC_(20));
        while (sgmp_node_next_event(d.g[0].n, &ev))
            CHECK(ev.kind != SGMP_EV_PEER_LOST && ev.kind != SGMP_EV_RESPONSE);
    }
    CHECK_INT(reply(&d, req, 0), 0);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
    CHECK_INT(ev.status, 0);
    sgmp_node_release(d.g[0].n, ev.buf);
    /* One that is gone is lost all the same, counted from there. */
    call(&d, 3, 100000, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    sgmp_node_release(d.g[1].n, ev.buf);
    sim_net_set(d.net, d.g[1].id, &gnode_ops, NULL);
    sim_net_set(d.net, d.g[0].id, &gnode_ops, NULL);
    while (sim_net_now(d.net) < back + SEC_(60) && sim_net_step(d.net, back + SEC_(60)))
        ;
    sim_net_set(d.net, d.g[0].id, &gnode_ops, &d.g[0]);
    sim_net_kick(d.net, d.g[0].id);
    udt_time woke = sim_net_now(d.net);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(30)));
    CHECK_INT(ev.status, SGMP_RPC_PEER_LOST);
    CHECK(sim_net_now(d.net) - woke <= SEC_(16));
    close_duo(&d);
}

TEST(gmp_rpc_callee_restart_and_oneway)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    call(&d, 1, 20000, 0);
    call(&d, 2, 20000, SGMP_ONEWAY);
    bool oneway = false;
    uint64_t req = 0;
    for (int i = 0; i < 2; i++) {
        CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
        oneway |= ev.id == 0;
        req = ev.id ? ev.id : req;
        sgmp_node_release(d.g[1].n, ev.buf);
    }
    CHECK(oneway && req);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(1)));
    CHECK_INT(ev.id, 2);
    CHECK_INT(ev.status, 0);
    gnode_stop(&d.g[1]);
    gnode_start(&d.g[1]);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(d.g[1].n, &k, sim_net_now(d.net)), 0);
    udt_time back = sim_net_now(d.net);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(10))); /* the PING after 5 s finds out */
    CHECK_INT(ev.status, SGMP_RPC_PEER_RESTARTED);
    CHECK(sim_net_now(d.net) - back < SEC_(6));
    call(&d, 3, 5000, 0);
    CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1)));
    CHECK_INT(reply(&d, ev.id, 0), 0);
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
    CHECK_INT(ev.status, 0);
    sgmp_node_release(d.g[0].n, ev.buf);
    close_duo(&d);
}

TEST(gmp_rpc_limits)
{
    struct duo d;
    struct sgmp_ev ev;
    open_duo(&d, true, 1000);
    int taken = 0, busy = 0;
    for (uint64_t i = 1; i <= 300; i++)
        call(&d, i, 30000, 0);
    uint64_t req[256];
    while (await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(1))) {
        if (taken < 256)
            req[taken] = ev.id;
        taken++;
        sgmp_node_release(d.g[1].n, ev.buf);
    }
    CHECK_INT(taken, 256);
    while (await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1))) {
        CHECK_INT(ev.status, SGMP_RPC_BUSY);
        busy++;
        sgmp_node_release(d.g[0].n, ev.buf);
    }
    CHECK_INT(busy, 44);
    for (int i = 0; i < 256; i++)
        CHECK_INT(reply(&d, req[i], 0), 0);
    for (int i = 0; i < 256; i++) {
        CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(1)));
        CHECK_INT(ev.status, 0);
        sgmp_node_release(d.g[0].n, ev.buf);
    }
    /* 1024 pending to one peer, not one more. */
    sim_net_set(d.net, d.g[1].id, &gnode_ops, NULL);
    for (uint64_t i = 1000; i < 2024; i++)
        call(&d, i, 1000, 0);
    CHECK_INT(sgmp_node_call(d.g[0].n, &d.to[1], 5, NULL, 0, NULL, 3000, sim_net_now(d.net)),
              UDT_E_LIMIT);
    CHECK_INT(sgmp_node_call(d.g[0].n, &d.to[1], 5, NULL, 0, NULL, 1000, sim_net_now(d.net)),
              UDT_E_INVAL);
    int ended = 0;
    while (await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(3))) {
        CHECK_INT(ev.status, SGMP_RPC_TIMEOUT);
        ended++;
    }
    CHECK_INT(ended, 1024);
    close_duo(&d);
}

static uint8_t *big(size_t len)
{
    uint8_t *p = malloc(len);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(i * 131 + (i >> 9));
    return p;
}

TEST(gmp_bulk_message_and_call_both_ways)
{
    for (int auth = 0; auth < 2; auth++) {
        struct duo d;
        struct sgmp_ev ev;
        size_t len = 3000000;
        uint8_t *p = big(len);
        open_duo(&d, auth, 2000);
        CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, len, NULL, 1, 0), 0);
        CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, 1097, NULL, 2, 0), 0);
        sim_net_kick(d.net, 0);
        CHECK(await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(10)));
        CHECK_INT(ev.len, len);
        CHECK_MEM(ev.data, p, len);
        CHECK(stats(&d, 1).bulk_bytes >= (int64_t)len); /* until it is released */
        sgmp_node_release(d.g[1].n, ev.buf);
        CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(10)));
        CHECK_INT(ev.id, 1);
        CHECK_INT(ev.status, 0);
        CHECK(await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(10)));
        CHECK_INT(ev.len, 1097);
        sgmp_node_release(d.g[1].n, ev.buf);
        sgmp_opts o = {.deadline_ms = 30000};
        CHECK_INT(sgmp_node_call(d.g[0].n, &d.to[1], 8, p, 70000, &o, 3, sim_net_now(d.net)), 0);
        sim_net_kick(d.net, 0);
        CHECK(await(&d, 1, SGMP_EV_REQUEST, &ev, SEC_(10)));
        CHECK_INT(ev.len, 70000);
        CHECK_MEM(ev.data, p, 70000);
        CHECK_INT(sgmp_node_reply(d.g[1].n, ev.id, 0, p, 200000, sim_net_now(d.net)), 0);
        sgmp_node_release(d.g[1].n, ev.buf);
        sim_net_kick(d.net, 1);
        CHECK(await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(10)));
        CHECK_INT(ev.len, 200000);
        CHECK_MEM(ev.data, p, 200000);
        sgmp_node_release(d.g[0].n, ev.buf);
        CHECK(!await(&d, 0, SGMP_EV_RESPONSE, &ev, SEC_(2)));
        CHECK_INT(stats(&d, 0).bulk_bytes, 0);
        CHECK_INT(stats(&d, 1).bulk_bytes, 0);
        free(p);
        close_duo(&d);
    }
}

TEST(gmp_bulk_damage_abort_and_limits)
{
    struct duo d;
    struct sgmp_ev ev;
    size_t len = 500000;
    uint8_t *p = big(len);
    open_duo(&d, false, 2000); /* no tags: only the digest sees a flipped bit */
    d.pipes.corrupt = true;
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, len, NULL, 1, 0), 0);
    sim_net_kick(d.net, 0);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(20)));
    CHECK_INT(ev.status, UDT_E_DIGEST);
    CHECK(!await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(1)));
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, (64 << 20) + 1, NULL, 2, 0), UDT_E_TOOBIG);
    close_duo(&d);
    /* Sealed: a damaged stream breaks, the payload is sent again. */
    open_duo(&d, true, 2000);
    d.pipes.corrupt = true;
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, len, NULL, 1, 0), 0);
    sim_net_kick(d.net, 0);
    CHECK(await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(20)));
    CHECK_MEM(ev.data, p, len);
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(20)));
    CHECK_INT(ev.status, 0);
    CHECK_INT(d.pipes.streams, 2);
    /* Cancelled in the middle: the receiver forgets what it had. */
    d.pipes.Bps = 100000;
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, len, NULL, 2, sim_net_now(d.net)), 0);
    sim_net_kick(d.net, 0);
    CHECK(!await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(2)));
    CHECK(stats(&d, 1).bulk_bytes > 0);
    CHECK_INT(sgmp_node_cancel(d.g[0].n, 2, sim_net_now(d.net)), 0);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(1)));
    CHECK_INT(ev.status, UDT_E_CANCELLED);
    CHECK(!await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(5)));
    CHECK_INT(stats(&d, 0).bulk_bytes, 0);
    CHECK_INT(stats(&d, 1).bulk_bytes, 0);
    free(p);
    close_duo(&d);
}

/* Streams that nobody proved, or that say nonsense. */
TEST(gmp_bulk_hostile_streams)
{
    struct duo d;
    uint8_t junk[4096];
    open_duo(&d, true, 1000);
    memset(junk, 'G', sizeof junk);
    int64_t id = sgmp_node_bulk_accept(d.g[1].n, &d.g[0].addr, 0);
    CHECK(id > 0);
    CHECK(sgmp_node_bulk_write(d.g[1].n, id, junk, 55, 0) == 0);
    CHECK(sgmp_node_bulk_write(d.g[1].n, id, junk, 1, 0) < 0);
    CHECK_INT(sgmp_node_bulk_write(d.g[1].n, id, junk, 1, 0), UDT_E_NOSOCK);
    id = sgmp_node_bulk_accept(d.g[1].n, &d.g[0].addr, 0);
    for (int i = 0; i < 10; i++) /* however slowly the preface comes */
        CHECK_INT(sgmp_node_bulk_write(d.g[1].n, id, junk, 1, SEC_(i)), 0);
    sgmp_node_tick(d.g[1].n, SEC_(10));
    CHECK_INT(sgmp_node_bulk_write(d.g[1].n, id, junk, 1, SEC_(10)), UDT_E_NOSOCK);
    struct sgmp_bulk_order o;
    CHECK(sgmp_node_next_bulk(d.g[1].n, &o) && o.kind == SGMP_BULK_ABORT && (int64_t)o.id == id);
    int open = 0;
    while ((id = sgmp_node_bulk_accept(d.g[1].n, &d.g[0].addr, SEC_(10))) > 0)
        open++;
    CHECK_INT(open, 1024);
    CHECK_INT(id, UDT_E_LIMIT);
    sgmp_node_tick(d.g[1].n, SEC_(21)); /* silent ones are closed */
    int aborted = 0;
    while (sgmp_node_next_bulk(d.g[1].n, &o))
        aborted += o.kind == SGMP_BULK_ABORT;
    CHECK_INT(aborted, 1024);
    CHECK(sgmp_node_bulk_accept(d.g[1].n, &d.g[0].addr, SEC_(21)) > 0);
    close_duo(&d);
}

/* More announcements than a peer may have, none followed by its payload: the old ones give way,
 * stay known for a while (they must not be taken for messages that came whole) and end by
 * themselves. */
TEST(gmp_bulk_announcements_without_payload)
{
    struct duo d;
    struct sgmp_ev ev;
    uint8_t *p = big(2000);
    open_duo(&d, true, 1000);
    d.pipes.Bps = 1;
    uint64_t id = 0;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 64; i++)
            CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, 2000, NULL, ++id, sim_net_now(d.net)),
                      0);
        sim_net_kick(d.net, 0);
        grun(d.net, sim_net_now(d.net) + SEC_(1)); /* announced; no stream is opened for them */
        for (uint64_t i = id - 63; i <= id; i++)
            CHECK_INT(sgmp_node_cancel(d.g[0].n, i, sim_net_now(d.net)), 0);
        grun(d.net, sim_net_now(d.net) + SEC_(35));
    }
    CHECK_INT(stats(&d, 1).bulk_bytes, 0);
    grun(d.net, sim_net_now(d.net) + SEC_(400));
    d.pipes.Bps = 10000000;
    while (sgmp_node_next_event(d.g[0].n, &ev))
        sgmp_node_release(d.g[0].n, ev.buf);
    struct sgmp_bulk_order o;
    while (sgmp_node_next_bulk(d.g[0].n, &o))
        ;
    CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, 2000, NULL, ++id, sim_net_now(d.net)), 0);
    sim_net_kick(d.net, 0);
    CHECK(await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(10)));
    CHECK_INT(ev.len, 2000);
    sgmp_node_release(d.g[1].n, ev.buf);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(10)));
    CHECK_INT(ev.status, 0);
    free(p);
    close_duo(&d);
}

/* Announced while there was room for each of them, and more than there is room for at once: an
 * application that reads late costs time and no message. */
TEST(gmp_bulk_that_finds_no_room_is_sent_again)
{
    enum { LEN = 60 << 20, N = 5 };
    struct duo d;
    struct sgmp_ev ev;
    uint8_t *p = big(LEN);
    sgmp_opts o = {.deadline_ms = 60000};
    open_duo(&d, true, 1000);
    d.pipes.Bps = 1000000000;
    for (uint64_t id = 1; id <= N; id++) {
        CHECK_INT(sgmp_node_send(d.g[0].n, &d.to[1], p, LEN, &o, id, sim_net_now(d.net)), 0);
        sim_net_kick(d.net, d.g[0].id);
        if (id == 1) { /* lies in the receiver's queue, unread */
            CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(10)));
            CHECK_INT(ev.status, 0);
        }
    }
    int settled = 1, came = 0;
    while (await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(5))) {
        CHECK_INT(ev.status, 0);
        settled++;
    }
    CHECK_INT(settled, N - 1);
    CHECK(stats(&d, 1).bulk_bytes <= 256 << 20);
    while (came < N && await(&d, 1, SGMP_EV_MESSAGE, &ev, SEC_(20))) {
        CHECK_INT(ev.len, LEN);
        CHECK_INT(memcmp(ev.data, p, LEN), 0);
        sgmp_node_release(d.g[1].n, ev.buf);
        came++;
    }
    CHECK_INT(came, N);
    CHECK(await(&d, 0, SGMP_EV_OUTCOME, &ev, SEC_(5)));
    CHECK_INT(ev.status, 0);
    free(p);
    close_duo(&d);
}
