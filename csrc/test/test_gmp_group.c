/* Group send and group call (spec/gmp.md section 10; section 12, rule 9). */
#include "gmp_world.h"

#include <stdlib.h>

enum { PEERS_MAX = 1000 };

struct star {
    sim_net *net;
    struct gnode hub, peer[PEERS_MAX];
    sgmp_dest to[PEERS_MAX];
    int n;
    int got[PEERS_MAX]; /* requests or messages that reached the peer */
    /* events of the last group */
    int members, status[PEERS_MAX], seen[PEERS_MAX], decided, done, decided_status, done_status;
    int ok;
    udt_time settled[PEERS_MAX], decided_at, done_at;
    uint64_t group;
    uint32_t rtt[PEERS_MAX];
};

static struct star *star_new(int n, const sim_link *l)
{
    struct star *s = calloc(1, sizeof *s);
    s->net = sim_net_new(test_seed);
    s->n = n;
    gnode_open(&s->hub, s->net, 1, true, test_seed);
    for (int i = 0; i < n; i++) {
        gnode_open(&s->peer[i], s->net, (unsigned)i + 2, true, test_seed);
        gpair(&s->hub, &s->peer[i], 100 + (uint32_t)i, SGMP_ALG_AES256GCM);
        s->to[i] = gdest(&s->peer[i], 100 + (uint32_t)i);
        sim_net_link(s->net, s->hub.id, s->peer[i].id, l);
        sim_net_link(s->net, s->peer[i].id, s->hub.id, l);
    }
    return s;
}

static void star_free(struct star *s)
{
    sgmp_stats st;
    sgmp_node_stats(s->hub.n, &st);
    CHECK_INT(st.groups, 0);
    CHECK_INT(st.pending_calls, 0);
    CHECK_INT(st.snd_queue_bytes, 0);
    gnode_stop(&s->hub);
    for (int i = 0; i < s->n; i++)
        if (s->peer[i].n)
            gnode_stop(&s->peer[i]);
    sim_net_free(s->net);
    free(s);
}

static void hub_events(struct star *s)
{
    struct sgmp_ev ev;
    while (sgmp_node_next_event(s->hub.n, &ev)) {
        if (ev.kind == SGMP_EV_GROUP_MEMBER) {
            CHECK_INT(ev.id, s->group);
            CHECK(ev.method < PEERS_MAX && !s->done);
            CHECK_INT(s->seen[ev.method]++, 0);
            s->members++;
            s->status[ev.method] = ev.status;
            s->settled[ev.method] = sim_net_now(s->net);
            s->rtt[ev.method] = ev.ms;
            s->ok += ev.status == 0;
        } else if (ev.kind == SGMP_EV_GROUP_DECIDED) {
            CHECK_INT(s->decided++, 0);
            s->decided_status = ev.status;
            s->decided_at = sim_net_now(s->net);
        } else if (ev.kind == SGMP_EV_GROUP_DONE) {
            CHECK_INT(s->done++, 0);
            CHECK_INT(ev.method, s->ok);
            CHECK_INT(ev.ms, s->members);
            s->done_status = ev.status;
            s->done_at = sim_net_now(s->net);
        } else {
            CHECK(ev.kind != SGMP_EV_OUTCOME && ev.kind != SGMP_EV_RESPONSE);
        }
        sgmp_node_release(s->hub.n, ev.buf);
    }
}

static void peer_events(struct star *s, int i)
{
    struct sgmp_ev ev;
    while (s->peer[i].n && sgmp_node_next_event(s->peer[i].n, &ev)) {
        s->got[i] += ev.kind == SGMP_EV_REQUEST || ev.kind == SGMP_EV_MESSAGE;
        if (ev.kind == SGMP_EV_REQUEST) {
            int status = ev.method == 7 && i % 2 ? -500 : 0;
            sgmp_node_reply(s->peer[i].n, ev.id, status, ev.data, ev.len, sim_net_now(s->net));
            sim_net_kick(s->net, s->peer[i].id);
        }
        sgmp_node_release(s->peer[i].n, ev.buf);
    }
}

static void start_group(struct star *s, const sgmp_dest *to, uint32_t n, const sgmp_group_opts *o,
                        size_t len, uint64_t id)
{
    static uint8_t body[4096];
    s->members = s->decided = s->done = s->ok = 0;
    memset(s->seen, 0, sizeof s->seen);
    s->group = id;
    CHECK_INT(sgmp_node_group(s->hub.n, to, n, body, len, o, id, sim_net_now(s->net)), 0);
    sim_net_kick(s->net, s->hub.id);
}

static void run_group(struct star *s, udt_time for_us)
{
    udt_time until = sim_net_now(s->net) + for_us;
    hub_events(s);
    while (!s->done && sim_net_now(s->net) < until) {
        sim_net_step(s->net, sim_net_now(s->net) + MS_(1));
        for (int i = 0; i < s->n; i++)
            peer_events(s, i);
        hub_events(s);
    }
}

static void run_on(struct star *s, udt_time for_us)
{
    udt_time until = sim_net_now(s->net) + for_us;
    while (sim_net_now(s->net) < until) {
        sim_net_step(s->net, until);
        for (int i = 0; i < s->n; i++)
            peer_events(s, i);
        hub_events(s);
    }
}

TEST(gmp_group_every_member_has_its_outcome)
{
    sim_link l = {.delay_us = 5000};
    struct star *s = star_new(6, &l);
    sgmp_group_opts o = {.wait = SGMP_WAIT_ALL};
    start_group(s, s->to, 6, &o, 1000, 1000);
    run_group(s, SEC_(5));
    CHECK(s->done && s->members == 6 && s->ok == 6 && s->done_status == 0);
    CHECK_INT(s->decided_status, 0);
    for (int i = 0; i < 6; i++) {
        CHECK_INT(s->got[i], 1);
        CHECK(s->rtt[i] >= 10000 && s->rtt[i] < 20000);
    }
    /* Twice in the list counts once, at its first place; no such key fails alone. */
    sgmp_dest twice[5] = {s->to[0], s->to[1], s->to[0], s->to[1], s->to[2]};
    twice[4].key_id = 9999;
    o.call = true;
    o.method = 5;
    start_group(s, twice, 5, &o, 100, 2000);
    run_group(s, SEC_(5));
    CHECK(s->done && s->members == 3 && s->ok == 2);
    CHECK_INT(s->status[4], SGMP_RPC_DENIED);
    CHECK(s->done_status != 0 && s->decided_status != 0);
    CHECK(s->got[0] == 2 && s->got[1] == 2 && s->got[2] == 1);
    CHECK_INT(s->seen[2] + s->seen[3], 0);
    star_free(s);
}

TEST(gmp_group_wait_rules)
{
    sim_link l = {.delay_us = 5000};
    struct star *s = star_new(5, &l);
    sgmp_group_opts o = {.wait = SGMP_WAIT_ALL, .call = true, .each = {.deadline_ms = 2000}};
    /* An empty list is complete at once; so is NONE, decided before anybody answers. */
    start_group(s, s->to, 0, &o, 10, 100);
    hub_events(s);
    CHECK(s->done && s->decided && s->done_status == 0);
    o.wait = SGMP_WAIT_NONE;
    start_group(s, s->to, 5, &o, 10, 200);
    hub_events(s);
    CHECK(s->decided && s->decided_status == 0 && !s->done);
    run_group(s, SEC_(5));
    CHECK(s->done && s->ok == 5);
    /* Two peers die: a quorum of 3 is met by the living, ALL and 4 are not. */
    sim_net_set(s->net, s->peer[0].id, &gnode_ops, NULL);
    sim_net_set(s->net, s->peer[1].id, &gnode_ops, NULL);
    o.wait = SGMP_WAIT_QUORUM;
    o.quorum = 3;
    udt_time t0 = sim_net_now(s->net);
    start_group(s, s->to, 5, &o, 10, 300);
    run_group(s, SEC_(5));
    CHECK(s->decided && s->decided_status == 0 && s->decided_at - t0 < MS_(100));
    CHECK(s->done_at - t0 > SEC_(1) && s->members == 5 && s->ok == 3);
    CHECK_INT(s->status[0], SGMP_RPC_TIMEOUT);
    o.quorum = 4;
    start_group(s, s->to, 5, &o, 10, 400);
    run_group(s, SEC_(5));
    CHECK(s->done && s->decided_status != 0 && s->done_status != 0);
    o.quorum = 6; /* more than there are: known at once */
    start_group(s, s->to, 5, &o, 10, 500);
    hub_events(s);
    CHECK(s->decided && s->decided_status != 0);
    run_group(s, SEC_(5));
    CHECK(s->done);
    /* ANY with cancel_rest: nobody waits for the dead. */
    o.wait = SGMP_WAIT_ANY;
    o.cancel_rest = true;
    t0 = sim_net_now(s->net);
    start_group(s, s->to, 5, &o, 10, 600);
    run_group(s, SEC_(5));
    CHECK(s->done && s->done_status == 0 && s->members == 5 && s->ok >= 1);
    CHECK(s->done_at - t0 < MS_(100));
    CHECK_INT(s->status[0], SGMP_RPC_CANCELLED);
    /* An answer with an error is no success. */
    sim_net_set(s->net, s->peer[0].id, &gnode_ops, &s->peer[0]);
    sim_net_set(s->net, s->peer[1].id, &gnode_ops, &s->peer[1]);
    o = (sgmp_group_opts){.wait = SGMP_WAIT_ALL, .call = true, .method = 7};
    start_group(s, s->to, 5, &o, 10, 700);
    run_group(s, SEC_(20));
    CHECK(s->done && s->decided_status != 0 && s->ok == 3);
    CHECK(s->status[1] == -500 && s->status[3] == -500 && s->status[2] == 0);
    /* All of it, then one member, cancelled by the application. */
    sim_net_set(s->net, s->peer[4].id, &gnode_ops, NULL);
    o = (sgmp_group_opts){.wait = SGMP_WAIT_ALL};
    start_group(s, s->to, 5, &o, 10, 800);
    run_on(s, MS_(200));
    CHECK(!s->done && s->ok == 4);
    CHECK_INT(sgmp_node_cancel(s->hub.n, 800 + 1 + 4, sim_net_now(s->net)), 0);
    hub_events(s);
    CHECK(s->done && s->status[4] == UDT_E_CANCELLED);
    start_group(s, s->to, 5, &o, 10, 900);
    CHECK_INT(sgmp_node_cancel(s->hub.n, 900, sim_net_now(s->net)), 0);
    hub_events(s);
    CHECK(s->done && s->members == 5 && s->ok == 0);
    CHECK_INT(sgmp_node_cancel(s->hub.n, 900, sim_net_now(s->net)), UDT_E_NOSOCK);
    CHECK_INT(sgmp_node_group(s->hub.n, s->to, 4097, NULL, 0, &o, 5000, 0), UDT_E_INVAL);
    /* Few attempts: given up long before the deadline. */
    o.max_attempts = 3;
    t0 = sim_net_now(s->net);
    start_group(s, &s->to[4], 1, &o, 10, 1000);
    run_group(s, SEC_(40));
    CHECK(s->done && s->status[0] == UDT_E_TIMEOUT && s->done_at - t0 < SEC_(10));
    star_free(s);
}

/* Rule 9: 1000 members, 10 % dead, 10 % far away. The near ones are settled within 3 round trips
 * and the pacing; one slow or dead member delays nobody. */
TEST(gmp_group_of_a_thousand_with_dead_and_slow)
{
    sim_link near = {.delay_us = 20000}, far = {.delay_us = 400000};
    for (int call = 0; call < 2; call++) {
        struct star *s = star_new(PEERS_MAX, &near);
        for (int i = 0; i < PEERS_MAX; i++)
            if (i % 10 == 3) {
                sim_net_set(s->net, s->peer[i].id, &gnode_ops, NULL);
            } else if (i % 10 == 7) {
                sim_net_link(s->net, s->hub.id, s->peer[i].id, &far);
                sim_net_link(s->net, s->peer[i].id, s->hub.id, &far);
            }
        sgmp_group_opts o = {
            .wait = SGMP_WAIT_QUORUM, .quorum = 800, .call = call, .each = {.deadline_ms = 8000}};
        udt_time t0 = sim_net_now(s->net), last = 0;
        start_group(s, s->to, PEERS_MAX, &o, 1000, 1);
        run_group(s, SEC_(30));
        CHECK(s->done && s->members == PEERS_MAX && s->ok == 900 && s->done_status == 0);
        udt_time pacing = (PEERS_MAX - 256) * 50 + MS_(2); /* 20,000 a second behind the burst */
        for (int i = 0; i < PEERS_MAX; i++) {
            if (i % 10 == 3) {
                CHECK(s->status[i] == (call ? SGMP_RPC_TIMEOUT : UDT_E_NOTSENT));
                CHECK_INT(s->got[i], 0);
                continue;
            }
            CHECK_INT(s->status[i], 0);
            CHECK_INT(s->got[i], 1);
            if (i % 10 != 7 && s->settled[i] > last)
                last = s->settled[i];
        }
        CHECK(last - t0 <= 3 * 40000 + pacing);
        CHECK(s->decided_at <= last + 1000);
        printf("# group of 1000 (%s): near members settled after %.1f ms of virtual time\n",
               call ? "call" : "send", (double)(last - t0) / 1e3);
        star_free(s);
    }
}
