/* Rules of spec/gmp.md section 12 that name a figure: how soon a restart is noticed (3), how soon
 * the time-out follows the path (7), and answers that come from somebody else (12). */
#include "gmp_pair.h"

static void restart_node(struct pair *p, struct gnode *g, const char *principal)
{
    gnode_stop(g);
    gnode_start(g);
    sgmp_key key = gkey(KEY, SGMP_ALG_AES256GCM, principal);
    CHECK_INT(sgmp_node_key_add(g->n, &key, sim_net_now(p->net)), 0);
}

/* A pair that knows each other over a path of `delay`, with nothing under way. */
static void open_known(struct pair *p, int64_t delay_us)
{
    sim_link l = {.delay_us = delay_us};
    int outcomes = 0, status = 1;
    open_pair(p, true, &l);
    for (uint64_t i = 1; i <= 20; i++) {
        post(&p->a, &p->to_b, i, 0, 0, 0);
        grun(p->net, sim_net_now(p->net) + 4 * delay_us + MS_(10));
    }
    CHECK_INT(read_all(&p->b, NULL, NULL), 20);
    read_all(&p->a, &outcomes, &status);
    CHECK_INT(outcomes, 20);
    CHECK_INT(status, 0);
}

/* Rule 3: a restart is noticed within one round trip of the next exchange. The message that found
 * out may have been delivered for all its sender knows; the next goes to the new instance. */
TEST(gmp_promise_a_restarted_receiver_is_noticed_in_one_round_trip)
{
    struct pair p;
    struct sgmp_ev ev;
    open_known(&p, 50000);
    uint64_t old = sgmp_node_instance(p.b.n);
    restart_node(&p, &p.b, "node-0");
    CHECK(sgmp_node_instance(p.b.n) != old);
    udt_time asked = sim_net_now(p.net);
    post(&p.a, &p.to_b, 100, 0, 8000, 0);
    post(&p.a, &p.to_b, 101, SGMP_REPEATABLE, 8000, 0);
    CHECK(gwait(&p.a, SGMP_EV_PEER_RESTARTED, &ev, asked + SEC_(5)));
    CHECK_INT(ev.instance, sgmp_node_instance(p.b.n));
    CHECK(sim_net_now(p.net) - asked <= 100000 + 3000);
    int got[2] = {0}, status[2] = {1, 1}, delivered[2] = {0};
    while (sim_net_now(p.net) < asked + SEC_(3)) {
        while (sgmp_node_next_event(p.a.n, &ev)) {
            if (ev.kind == SGMP_EV_OUTCOME) {
                got[ev.id - 100]++;
                status[ev.id - 100] = ev.status;
            }
            sgmp_node_release(p.a.n, ev.buf);
        }
        while (sgmp_node_next_event(p.b.n, &ev)) {
            if (ev.kind == SGMP_EV_MESSAGE)
                delivered[body_id(&ev) - 100]++;
            sgmp_node_release(p.b.n, ev.buf);
        }
        sim_net_step(p.net, sim_net_now(p.net) + MS_(50));
    }
    CHECK_INT(got[0], 1);
    CHECK_INT(status[0], UDT_E_RESTARTED);
    CHECK_INT(delivered[0], 0);
    CHECK_INT(got[1], 1);
    CHECK_INT(status[1], 0);
    CHECK_INT(delivered[1], 1);
    close_pair(&p);
}

/* The other way round: the peer hears of the new life with its first datagram that proves the key,
 * and what it had under way towards the old one ends then. */
TEST(gmp_promise_a_restarted_sender_is_noticed_in_one_round_trip)
{
    struct pair p;
    struct sgmp_ev ev;
    open_known(&p, 50000);
    post(&p.b, &p.to_a, 7, 0, 20000, 0); /* so that b has something to lose */
    restart_node(&p, &p.a, "node-1");
    udt_time asked = sim_net_now(p.net);
    post(&p.a, &p.to_b, 100, 0, 8000, 0);
    CHECK(gwait(&p.b, SGMP_EV_PEER_RESTARTED, &ev, asked + SEC_(5)));
    CHECK_INT(ev.instance, sgmp_node_instance(p.a.n));
    CHECK(sim_net_now(p.net) - asked <= 100000 + 3000);
    CHECK(gwait(&p.b, SGMP_EV_OUTCOME, &ev, asked + SEC_(5)));
    CHECK_INT(ev.id, 7);
    CHECK_INT(ev.status, UDT_E_RESTARTED);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, asked + SEC_(5)));
    CHECK_INT(ev.status, 0);
    CHECK(sim_net_now(p.net) - asked <= 4 * 100000);
    CHECK_INT(read_all(&p.a, NULL, NULL), 0);
    close_pair(&p);
}

/* Rule 7: the path becomes 300 times longer, and as short again; one message at a time, so that
 * each outcome is one sample. Within ten the time-out covers the new path, and waits for nothing
 * that is due there; on the way back it falls with every sample. */
TEST(gmp_promise_the_time_out_follows_the_path_within_ten_samples)
{
    struct pair p;
    struct sgmp_ev ev;
    sim_link l = {.delay_us = 150000};
    sgmp_peer_info info;
    open_known(&p, 500);
    uint64_t id = 100;
    for (int longer = 1; longer >= 0; longer--) {
        l.delay_us = longer ? 150000 : 500;
        sim_net_link(p.net, 0, 1, &l);
        sim_net_link(p.net, 1, 0, &l);
        sgmp_stats before = stats(&p.a);
        for (int sample = 1; sample <= 60; sample++) {
            CHECK_INT(sgmp_node_peer_info(p.a.n, &p.to_b, &info), 0);
            int64_t pto = info.pto_us;
            udt_time asked = sim_net_now(p.net);
            post(&p.a, &p.to_b, id++, 0, 8000, 0);
            CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, asked + SEC_(8)));
            CHECK_INT(ev.status, 0);
            CHECK_INT(read_all(&p.b, NULL, NULL), 1);
            grun(p.net, asked + SEC_(1));
            read_all(&p.a, NULL, NULL);
            CHECK_INT(sgmp_node_peer_info(p.a.n, &p.to_b, &info), 0);
            if (longer && sample >= 10)
                CHECK(info.pto_us > 300000 && info.pto_us < 1500000);
            if (!longer && sample > 10 && pto > 20000)
                CHECK(info.pto_us < pto);
            if (sample == 10)
                before = stats(&p.a);
        }
        sgmp_stats now = stats(&p.a);
        CHECK_INT(now.retrans_pto + now.retrans_loss, before.retrans_pto + before.retrans_loss);
        CHECK(longer ? info.pto_us < 400000 : info.pto_us < 20000);
    }
    close_pair(&p);
}

/* A datagram with an answer to call `rpc`, as `from` may send it where nothing is sealed. */
static void forge_answer(struct pair *p, const struct gnode *from, uint64_t pkt, uint64_t rpc)
{
    struct pkt_header h = {.type = PKT_T_DATA,
                           .src = sgmp_node_instance(from->n),
                           .dst = sgmp_node_instance(p->a.n),
                           .pkt = pkt,
                           .body_len = PKT_DATA + RPC_HEAD + 4};
    struct pkt_data d = {.seq = pkt, .kind = PKT_K_RPC};
    struct rpc_head answer = {.op = RPC_RESPONSE, .method = 5, .id = rpc};
    uint8_t dgram[PKT_HEADER + PKT_DATA + RPC_HEAD + 4];
    bytes_wr w = bytes_writer(dgram + PKT_HEADER, PKT_DATA);
    pkt_header_put(dgram, &h);
    pkt_data_put(&w, &d);
    rpc_head_put(dgram + PKT_HEADER + PKT_DATA, &answer);
    memcpy(dgram + sizeof dgram - 4, "fake", 4);
    be32_put(dgram + 36, udt_crc32c(0, dgram, sizeof dgram));
    sim_net_inject(p->net, &from->addr, p->a.id, dgram, sizeof dgram, sim_net_now(p->net));
    grun(p->net, sim_net_now(p->net) + 100);
}

/* Rule 12, and section 9: an answer counts from the instance that was asked and from nobody else,
 * though it is known itself and names the right call. */
TEST(gmp_promise_an_answer_from_somebody_else_is_none)
{
    struct pair p;
    struct gnode c;
    struct sgmp_ev ev;
    sim_link l = {.delay_us = 1000};
    open_pair(&p, false, &l);
    gnode_open(&c, p.net, 3, false, test_seed);
    sim_net_link(p.net, p.a.id, c.id, &l);
    sim_net_link(p.net, c.id, p.a.id, &l);
    post(&c, &p.to_a, 1, 0, 0, 0); /* c is known to a */
    post(&p.a, &p.to_b, 1, 0, 0, 0);
    grun(p.net, SEC_(1));
    CHECK_INT(read_all(&p.a, NULL, NULL), 1);
    record(&p, 100);
    CHECK_INT(sgmp_node_call(p.a.n, &p.to_b, 5, NULL, 0, NULL, 1, sim_net_now(p.net)), 0);
    sim_net_kick(p.net, p.a.id);
    CHECK(gwait(&p.b, SGMP_EV_REQUEST, &ev, sim_net_now(p.net) + SEC_(2)));
    sgmp_node_release(p.b.n, ev.buf);
    const struct rec *asked = &p.rec[0]; /* a call without payload ends with its head */
    CHECK(asked->from == p.a.id && asked->len > PKT_HEADER + RPC_HEAD);
    struct rpc_head head;
    CHECK(rpc_head_get(asked->data + asked->len - RPC_HEAD, RPC_HEAD, &head));
    CHECK(head.op == RPC_REQUEST && head.method == 5);
    for (uint64_t i = 0; i < 16; i++)
        forge_answer(&p, &c, 1000 + i, head.id + i / 2);
    CHECK_INT(stats(&p.a).late_answers, 16); /* taken for answers, and dropped */
    CHECK_INT(stats(&p.a).pending_calls, 1);
    while (sgmp_node_next_event(p.a.n, &ev)) {
        CHECK(ev.kind != SGMP_EV_RESPONSE);
        sgmp_node_release(p.a.n, ev.buf);
    }
    forge_answer(&p, &p.b, 1000, head.id); /* the same, of the instance that was asked */
    CHECK(gwait(&p.a, SGMP_EV_RESPONSE, &ev, sim_net_now(p.net) + SEC_(1)));
    CHECK(ev.id == 1 && ev.status == 0 && ev.len == 4);
    sgmp_node_release(p.a.n, ev.buf);
    gnode_stop(&c);
    close_pair(&p);
}

/* Rule 3, 6.4: a message that may be repeated was delivered to an instance that died before it
 * could say so. Whatever happens with its repetition, "not delivered" would be untrue. */
static int outcome_of_the_repeated(bool refused)
{
    struct pair p;
    struct sgmp_ev ev;
    sim_link l = {.delay_us = 1000}, dead = {.loss_ppm = 1000000};
    open_known(&p, 1000);
    sim_net_link(p.net, p.b.id, p.a.id, &dead); /* its acknowledgement is lost */
    sgmp_opts o = {.flags = SGMP_REPEATABLE, .deadline_ms = 5000, .channel = 9};
    CHECK_INT(sgmp_node_channel_open(p.b.n, 9), 0);
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, (const uint8_t *)"x", 1, &o, 100, sim_net_now(p.net)),
              0);
    sim_net_kick(p.net, p.a.id);
    CHECK(gwait(&p.b, SGMP_EV_MESSAGE, &ev, sim_net_now(p.net) + SEC_(1)));
    sgmp_node_release(p.b.n, ev.buf);
    restart_node(&p, &p.b, "node-0"); /* and opens no channel yet */
    sim_net_link(p.net, p.b.id, p.a.id, &l);
    CHECK(gwait(&p.a, SGMP_EV_PEER_RESTARTED, &ev, sim_net_now(p.net) + SEC_(3)));
    if (!refused) {
        sim_net_link(p.net, p.b.id, p.a.id, &dead);
        sim_net_set(p.net, p.b.id, &gnode_ops, NULL);
    }
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(10)));
    CHECK_INT(ev.id, 100);
    close_pair(&p);
    return ev.status;
}

TEST(gmp_promise_what_an_instance_that_is_gone_may_have_got_is_not_denied)
{
    CHECK_INT(outcome_of_the_repeated(false), UDT_E_RESTARTED);
    CHECK_INT(outcome_of_the_repeated(true), UDT_E_RESTARTED);
}
