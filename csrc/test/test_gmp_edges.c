/* Sequences that have broken the GMP engine once. */
#include <unistd.h>

#include "gmp_pair.h"
#include "sgmp/engine.h"
#include "udt_err.h"

/* A pair that has spoken, and nothing of it is left to read. */
static void open_known(struct pair *p, const sim_link *l)
{
    open_pair(p, true, l);
    post(&p->a, &p->to_b, 1, 0, 0, 0);
    grun(p->net, sim_net_now(p->net) + SEC_(2));
    read_all(&p->a, NULL, NULL);
    read_all(&p->b, NULL, NULL);
}

/* What waited for a second address of a known instance moves to it, and it is told. */
TEST(gmp_messages_merged_by_an_introduction_leave_at_once)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    open_known(&p, &l);
    uint64_t inst = sgmp_node_instance(p.b.n);
    /* the same instance under another address, say of another interface */
    sgmp_dest other = p.to_b;
    other.addr.ip[3] = 77;
    post(&p.a, &other, 2, 0, 5000, 0);
    uint8_t token[24];
    udt_addr ha = p.a.addr;
    CHECK_INT(
        sgmp_node_mint_token(p.b.n, &ha, sgmp_node_instance(p.a.n), KEY, token, sim_net_now(p.net)),
        0);
    CHECK_INT(sgmp_node_introduce(p.a.n, &other, inst, token, sim_net_now(p.net)), 0);
    sim_net_kick(p.net, p.a.id);
    udt_time t = sim_net_now(p.net);
    struct sgmp_ev ev;
    bool got = gwait(&p.a, SGMP_EV_OUTCOME, &ev, t + SEC_(20));
    CHECK(got && ev.status == 0 && sim_net_now(p.net) - t < SEC_(1));
    close_pair(&p);
}

/* A writer that met AGAIN hears WRITABLE though the peer restarts meanwhile. */
TEST(gmp_who_waits_for_room_is_told_after_a_restart_too)
{
    struct pair p;
    sim_link l = {.delay_us = 50000}, dead = {.delay_us = 1000, .loss_ppm = 1000000};
    open_known(&p, &l);
    sim_net_link(p.net, 0, 1, &dead);
    uint64_t id = 2;
    for (;; id++) {
        uint8_t b[8] = {0};
        sgmp_opts o = {.deadline_ms = 200000};
        int rc = sgmp_node_send(p.a.n, &p.to_b, b, 8, &o, id, sim_net_now(p.net));
        if (rc == UDT_E_AGAIN)
            break;
        CHECK_INT(rc, 0);
    }
    sim_net_kick(p.net, p.a.id);
    gnode_stop(&p.b);
    gnode_start(&p.b);
    sgmp_key kb = gkey(KEY, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(p.b.n, &kb, sim_net_now(p.net)), 0);
    sim_net_link(p.net, 0, 1, &l);
    int w = 0, del = 0, rest = 0, re = 0;
    udt_time end = sim_net_now(p.net) + SEC_(60);
    struct sgmp_ev ev;
    while (sim_net_step(p.net, end)) {
        while (sgmp_node_next_event(p.a.n, &ev)) {
            w += ev.kind == SGMP_EV_WRITABLE;
            re += ev.kind == SGMP_EV_PEER_RESTARTED;
            del += ev.kind == SGMP_EV_OUTCOME && ev.status == 0;
            rest += ev.kind == SGMP_EV_OUTCOME && ev.status != 0;
            sgmp_node_release(p.a.n, ev.buf);
        }
        read_all(&p.b, NULL, NULL);
    }
    CHECK(w > 0);
    close_pair(&p);
}

/* There is nothing to send without a key, and the loop ends. */
TEST(gmp_a_key_may_go_while_sizes_are_probed)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    memset(&p, 0, sizeof p);
    p.net = sim_net_new(test_seed);
    gnode_open_sized(&p.a, p.net, 1, true, test_seed, 8972);
    gnode_open_sized(&p.b, p.net, 2, true, test_seed, 8972);
    sim_net_link(p.net, 0, 1, &l);
    sim_net_link(p.net, 1, 0, &l);
    p.b.mtu = 1300; /* large ones vanish */
    gpair(&p.a, &p.b, KEY, SGMP_ALG_AES256GCM);
    p.to_b = gdest(&p.b, KEY);
    post(&p.a, &p.to_b, 1, 0, 0, 0);
    grun(p.net, sim_net_now(p.net) + SEC_(1));
    static uint8_t big[3000];
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, big, sizeof big, NULL, 2, sim_net_now(p.net)), 0);
    sim_net_kick(p.net, p.a.id); /* the probe leaves, unanswered */
    CHECK_INT(sgmp_node_cancel(p.a.n, 2, sim_net_now(p.net)), 0);
    CHECK_INT(sgmp_node_key_remove(p.a.n, KEY, sim_net_now(p.net)), 0);
    alarm(5);
    grun(p.net, sim_net_now(p.net) + SEC_(5));
    alarm(0);
    close_pair(&p);
}

/* One datagram from elsewhere, never proved there, does not cut off a peer that answers. */
TEST(gmp_a_peer_is_found_where_its_answer_comes_from)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    open_known(&p, &l);
    record(&p, 1000);
    /* B says something; an attacker on the way is faster than the original, under his own address
     */
    sim_link dead = {.delay_us = 1000, .loss_ppm = 1000000};
    sim_net_link(p.net, 1, 0, &dead);
    post(&p.b, &p.to_a, 50, 0, 300, 0);
    CHECK(p.nrec > 0 && p.rec[0].from == 1);
    udt_addr evil = gaddr(99, 666);
    sgmp_node_input(p.a.n, &evil, p.rec[0].data, p.rec[0].len, sim_net_now(p.net));
    sim_net_kick(p.net, p.a.id);
    grun(p.net, sim_net_now(p.net) + SEC_(1));
    sim_net_link(p.net, 1, 0, &l);
    grun(p.net, sim_net_now(p.net) + SEC_(20));
    read_all(&p.a, NULL, NULL);
    read_all(&p.b, NULL, NULL);
    int ok = 0, n = 0;
    for (int i = 0; i < 10; i++) {
        post(&p.a, &p.to_b, 100 + (uint64_t)i, 0, 10000, 0);
        struct sgmp_ev ev;
        CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(40)));
        ok += ev.status == 0;
        n++;
        grun(p.net, sim_net_now(p.net) + SEC_(30));
        read_all(&p.b, NULL, NULL);
    }
    CHECK_INT(ok, n);
    close_pair(&p);
}

/* The node's total is spent by others: the writer's own queue is empty, and it still waits. */
TEST(gmp_who_waits_for_the_total_is_told_however_quiet_its_peer)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    open_known(&p, &l);
    /* other peers, dead, whose queues fill the total */
    static uint8_t body[1000];
    uint64_t id = 10;
    sgmp_opts o = {.deadline_ms = 60000};
    for (unsigned h = 0; h < 100; h++) {
        sgmp_dest d = p.to_b;
        d.addr = gaddr(300 + h, 7002);
        while (sgmp_node_send(p.a.n, &d, body, sizeof body, &o, id, sim_net_now(p.net)) == 0)
            id++;
    }
    int rc = sgmp_node_send(p.a.n, &p.to_b, body, sizeof body, NULL, id, sim_net_now(p.net));
    sim_net_kick(p.net, p.a.id);
    int w = 0, out = 0;
    udt_time end = sim_net_now(p.net) + SEC_(120);
    struct sgmp_ev ev;
    while (sim_net_step(p.net, end))
        while (sgmp_node_next_event(p.a.n, &ev)) {
            w += ev.kind == SGMP_EV_WRITABLE && ev.from.ip[3] == 2 && ev.from.ip[2] == 0;
            out += ev.kind == SGMP_EV_OUTCOME;
            sgmp_node_release(p.a.n, ev.buf);
        }
    CHECK(rc != UDT_E_AGAIN || w > 0);
    close_pair(&p);
}

/* AGAIN because too many events wait: WRITABLE when they have been read. */
TEST(gmp_who_waits_for_events_to_be_read_is_told)
{
    struct pair p;
    open_pair(&p, true, NULL);
    uint64_t id = 1;
    int rc = 0;
    for (int i = 0; i < 400000; i++, id++) {
        uint8_t b[8] = {0};
        rc = sgmp_node_send(p.a.n, &p.to_b, b, 8, NULL, id, sim_net_now(p.net));
        if (rc == UDT_E_AGAIN && p.a.n->light_n >= SG_EVENTS)
            break;
        CHECK(rc == 0 || rc == UDT_E_AGAIN);
        if (rc == UDT_E_AGAIN)
            id--, i--;
        if (i % 100 == 0 || rc == UDT_E_AGAIN) {
            sim_net_kick(p.net, p.a.id);
            grun(p.net, sim_net_now(p.net) + 20000);
            read_all(&p.b, NULL, NULL);
        }
    }
    grun(p.net, sim_net_now(p.net) + SEC_(2));
    int w = 0, n = 0;
    struct sgmp_ev ev;
    for (int k = 0; k < 10; k++) {
        while (sgmp_node_next_event(p.a.n, &ev)) {
            w = ev.kind == SGMP_EV_WRITABLE ? n : w;
            n++;
        }
        grun(p.net, sim_net_now(p.net) + SEC_(2));
        read_all(&p.b, NULL, NULL);
    }
    CHECK(w > 0);
    close_pair(&p);
}

/* B without the CONTROL messages that A sends. */
static void deaf_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    if ((pkt[1] & 15) != PKT_T_DATA || !(pkt[3] & PKT_F_CONTROL))
        gnode_input(ep, from, pkt, len, now);
}
static const sim_ep_ops deaf_ops = {deaf_input, NULL, gnode_output, gnode_deadline, gnode_tick};

/* The oldest message that is not settled closes the window; being of the CONTROL class, it once had
 * to wait for that window itself. */
TEST(gmp_a_control_message_that_closes_the_window_is_sent_again)
{
    struct pair p;
    struct assoc *a;
    sim_link l = {.delay_us = 10000};
    open_known(&p, &l);
    CHECK_INT(sg_assoc_for(p.a.n, &p.to_b, &a, sim_net_now(p.net)), 0);
    sim_net_set(p.net, p.b.id, &deaf_ops, &p.b);
    post(&p.a, &p.to_b, 2, SGMP_CONTROL, 0, 0);
    uint64_t id = 3;
    while (a->next_seq - a->x->low < SG_WINDOW) {
        CHECK(sim_net_now(p.net) < SEC_(10));
        a->x->cwnd_m = 1024000; /* a path on which losses are not congestion */
        while (a->x->q_msgs < 1000)
            post(&p.a, &p.to_b, id++, 0, 0, 0);
        grun(p.net, sim_net_now(p.net) + MS_(1));
        read_all(&p.a, NULL, NULL);
        read_all(&p.b, NULL, NULL);
    }
    grun(p.net, sim_net_now(p.net) + MS_(50)); /* its loss is seen with the window closed */
    sim_net_set(p.net, p.b.id, &gnode_ops, &p.b);
    udt_time whole = sim_net_now(p.net);
    struct sgmp_ev ev;
    do
        CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, whole + SEC_(1)));
    while (ev.id != 2);
    CHECK_INT(ev.status, 0);
    close_pair(&p);
}

/* Fills the queue towards `to` until there is no room. */
static void until_again(struct pair *p, struct gnode *g, const sgmp_dest *to)
{
    sgmp_opts o = {.deadline_ms = 200000};
    int err = 0;
    for (uint64_t id = 100; err == 0; id++)
        err = sgmp_node_send(g->n, to, NULL, 0, &o, id, sim_net_now(p->net));
    CHECK_INT(err, UDT_E_AGAIN);
    sim_net_kick(p->net, g->id);
}

/* Whoever met AGAIN knows the peer by the address that it used: WRITABLE names that one, though the
 * queue went over to another address, or the peer did. */
TEST(gmp_who_waits_for_room_is_told_under_the_address_it_used)
{
    for (int moves = 0; moves < 2; moves++) {
        struct pair p;
        struct sgmp_ev ev;
        sim_link l = {.delay_us = 1000}, dead = {.delay_us = 1000, .loss_ppm = 1000000};
        uint8_t token[24];
        open_known(&p, &l);
        sgmp_dest to = p.to_b;
        if (moves) {
            sim_net_link(p.net, 0, 1, &dead);
            until_again(&p, &p.a, &to);
            move_node(&p, &p.b, 88, &l);
            post(&p.b, &p.to_a, 2, 0, 0, 0);
        } else {
            to.addr.ip[3] = 77;
            until_again(&p, &p.a, &to);
            uint64_t self = sgmp_node_instance(p.a.n), inst = sgmp_node_instance(p.b.n);
            udt_time now = sim_net_now(p.net);
            CHECK_INT(sgmp_node_mint_token(p.b.n, &p.a.addr, self, KEY, token, now), 0);
            CHECK_INT(sgmp_node_introduce(p.a.n, &to, inst, token, now), 0);
        }
        sim_net_kick(p.net, p.a.id);
        CHECK(gwait(&p.a, SGMP_EV_WRITABLE, &ev, sim_net_now(p.net) + SEC_(20)));
        CHECK_INT(ev.from.ip[3], to.addr.ip[3]);
        close_pair(&p);
    }
}
