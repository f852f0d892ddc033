/* The rules of spec/gmp.md section 12 about attacks, restarts and bounds. Where each is tested:
 *
 *  1 at most once under faults      gmp_paths_at_most_once_*, gmp_load_a_million_*, gmp_scenarios
 *  2 late copies across expiry      gmp_rules_late_copies_*
 *  3 restarts at every step         gmp_rules_restart_at_every_step, gmp_rpc_callee_restart_*,
 *    noticed in one round trip      gmp_stream_restart_at_every_step, gmp_intro_of_an_instance_*,
 *                                   gmp_promise_a_restarted_*, gmp_scenarios
 *  4 sender gives up                gmp_rules_sender_gives_up_*
 *  5 replay, flips, spoofing        gmp_rules_replay_*, gmp_rules_spoofed_*, gmp_rules_wrong_key_*,
 *                                   gmp_stream_preface_*, gmp_hostile_*, gmp_reflect_*
 *  6 fake instances                 gmp_rules_fake_instances_* (100,000 at scale 100)
 *  7 round trip steps               gmp_paths_round_trip_step_*, gmp_promise_the_time_out_*
 *  8 receiver stops reading         gmp_rules_receiver_stops_reading, io_gmp_back_pressure_*
 *  9 group of 1000                  gmp_group_of_a_thousand_*
 * 10 families, sizes, MTU drop      io_gmp_families_and_sizes, io_net_plain_addresses, gmp_size_*
 * 11 UDT and GMP on one port        io_gmp_and_udt_on_one_port
 * 12 RPC                            gmp_rpc_*, gmp_promise_an_answer_from_somebody_else_*,
 *                                   gmp_load_every_call_a_node_may_have */
#include "gmp_pair.h"

#include <malloc.h>

static void make_session(struct pair *p)
{
    sim_link l = {.delay_us = 1000};
    struct sgmp_ev ev;
    open_pair(p, true, &l);
    record(p, 200);
    for (uint64_t i = 1; i <= 5; i++)
        post(&p->a, &p->to_b, i, 0, 0, 0);
    CHECK_INT(sgmp_node_call(p->a.n, &p->to_b, 3, NULL, 0, NULL, 6, sim_net_now(p->net)), 0);
    sim_net_kick(p->net, p->a.id);
    CHECK(gwait(&p->b, SGMP_EV_REQUEST, &ev, SEC_(2)));
    CHECK_INT(sgmp_node_reply(p->b.n, ev.id, 0, NULL, 0, sim_net_now(p->net)), 0);
    sgmp_node_release(p->b.n, ev.buf);
    sim_net_kick(p->net, p->b.id);
    post(&p->b, &p->to_a, 7, SGMP_CONTROL, 0, 0);
    grun(p->net, sim_net_now(p->net) + SEC_(1));
    read_all(&p->a, NULL, NULL);
    read_all(&p->b, NULL, NULL);
    CHECK(p->nrec > 10);
}

/* Rule 5: replays, flipped bits and spoofed sources deliver nothing, change nothing and draw no
 * more bytes than they brought. */
TEST(gmp_rules_replay_and_bit_flips_change_nothing)
{
    struct pair p;
    make_session(&p);
    int n = p.nrec;
    p.caprec = n; /* keep what was recorded */
    sgmp_stats a0 = stats(&p.a), b0 = stats(&p.b);
    udt_addr victim = gaddr(9 << 8 | 9, 7002);
    int64_t in = 0;
    for (int i = 0; i < n; i++) {
        struct rec *r = &p.rec[i];
        struct gnode *src = r->from == p.a.id ? &p.a : &p.b, *dst = src == &p.a ? &p.b : &p.a;
        for (int way = 0; way < 2; way++) {
            sim_net_inject(p.net, way ? &victim : &src->addr, dst->id, r->data, r->len,
                           sim_net_now(p.net));
            in += way ? r->len : 0;
            grun(p.net, sim_net_now(p.net) + 20000);
        }
        for (int byte = 0; byte < r->len; byte++) {
            uint8_t *d = &r->data[byte], was = *d;
            *d ^= (uint8_t)(1 << (byte + i) % 8);
            sim_net_inject(p.net, byte % 2 ? &victim : &src->addr, dst->id, r->data, r->len,
                           sim_net_now(p.net));
            in += byte % 2 ? r->len : 0;
            *d = was;
            if (byte % 16 == 0)
                grun(p.net, sim_net_now(p.net) + 10000);
        }
        grun(p.net, sim_net_now(p.net) + 10000);
    }
    CHECK_INT(read_all(&p.a, NULL, NULL), 0);
    CHECK_INT(read_all(&p.b, NULL, NULL), 0);
    sgmp_stats a1 = stats(&p.a), b1 = stats(&p.b);
    CHECK_INT(a1.assoc, a0.assoc);
    CHECK_INT(b1.assoc, b0.assoc);
    CHECK_INT(a1.messages_in, a0.messages_in);
    CHECK_INT(b1.messages_in, b0.messages_in);
    CHECK(b1.replays > b0.replays && b1.bad_tag > b0.bad_tag);
    CHECK(p.to_victim <= in);
    /* And the session still works. */
    int outcomes = 0, status = 1;
    post(&p.a, &p.to_b, 100, 0, 0, 0);
    grun(p.net, sim_net_now(p.net) + SEC_(1));
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    read_all(&p.a, &outcomes, &status);
    CHECK_INT(outcomes, 1);
    CHECK_INT(status, 0);
    close_pair(&p);
}

/* Rule 2: copies of everything, 1 s to 1 h late, across expiry and re-creation on either side. */
TEST(gmp_rules_late_copies_across_expiry_are_not_delivered)
{
    static const int delays_s[] = {1, 15, 119, 121, 400, 599, 601, 800, 1300, 3600};
    struct pair p;
    make_session(&p);
    int n = p.nrec;
    p.caprec = n;
    uint64_t id = 1000;
    for (size_t d = 0; d < sizeof delays_s / sizeof *delays_s; d++) {
        grun(p.net, SEC_(delays_s[d]));
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < n; i++) {
                struct rec *r = &p.rec[i];
                struct gnode *src = r->from == p.a.id ? &p.a : &p.b;
                sim_net_inject(p.net, &src->addr, src == &p.a ? p.b.id : p.a.id, r->data, r->len,
                               sim_net_now(p.net));
            }
            grun(p.net, sim_net_now(p.net) + SEC_(2));
            CHECK_INT(read_all(&p.a, NULL, NULL), 0);
            CHECK_INT(read_all(&p.b, NULL, NULL), 0);
            if (round == 0 && d % 2) { /* made anew by either side, then attacked again */
                struct gnode *g = d % 4 == 1 ? &p.a : &p.b;
                post(g, g == &p.a ? &p.to_b : &p.to_a, id++, 0, 0, 0);
                grun(p.net, sim_net_now(p.net) + SEC_(2));
                CHECK_INT(read_all(g == &p.a ? &p.b : &p.a, NULL, NULL), 1);
            }
        }
    }
    close_pair(&p);
}

static size_t forge(uint8_t *buf, int type, uint64_t src, uint64_t dst, uint64_t pkt,
                    const uint8_t *body, size_t len)
{
    struct pkt_header h = {.type = (uint8_t)type,
                           .src = src,
                           .dst = dst,
                           .pkt = pkt,
                           .body_len = (uint16_t)len,
                           .flags = type == PKT_T_ACK ? PKT_F_ACKBLK : 0};
    pkt_header_put(buf, &h);
    memcpy(buf + PKT_HEADER, body, len);
    be32_put(buf + 36, udt_crc32c(0, buf, PKT_HEADER + len));
    return PKT_HEADER + len;
}

/* Rule 5: RESETs and ACKs that anyone can make do not settle, restart or close anything. */
TEST(gmp_rules_spoofed_reset_and_ack_settle_nothing)
{
    struct pair p;
    make_session(&p);
    sim_net_set(p.net, p.b.id, &gnode_ops, NULL); /* b is off line: a message stays outstanding */
    post(&p.a, &p.to_b, 50, 0, 20000, 0);
    grun(p.net, sim_net_now(p.net) + MS_(100));
    uint64_t ia = sgmp_node_instance(p.a.n), ib = sgmp_node_instance(p.b.n);
    for (uint64_t pkt = 1; pkt < 60; pkt++)
        for (uint16_t reason = 1; reason <= 5; reason++) {
            uint8_t body[64] = {0}, d[200];
            bytes_wr w = bytes_writer(body, sizeof body);
            struct pkt_reset_body rb = {reason, pkt, ia};
            pkt_reset_put(&w, &rb);
            size_t len =
                forge(d, PKT_T_RESET, reason == 1 ? 999 : ib, ia, 500 + pkt, body, PKT_RESET);
            sim_net_inject(p.net, &p.b.addr, p.a.id, d, len, sim_net_now(p.net));
            struct pkt_ack k = {.cum = pkt + 5, .echo_pkt = pkt};
            w = bytes_writer(body, sizeof body);
            pkt_ack_put(&w, &k);
            len = forge(d, PKT_T_ACK, ib, ia, 900 + pkt, body, PKT_ACK);
            sim_net_inject(p.net, &p.b.addr, p.a.id, d, len, sim_net_now(p.net));
        }
    grun(p.net, sim_net_now(p.net) + MS_(500));
    struct sgmp_ev ev;
    while (sgmp_node_next_event(p.a.n, &ev)) {
        CHECK(ev.kind != SGMP_EV_OUTCOME && ev.kind != SGMP_EV_PEER_RESTARTED);
        sgmp_node_release(p.a.n, ev.buf);
    }
    sim_net_set(p.net, p.b.id, &gnode_ops, &p.b); /* back: the same instance, the same message */
    sim_net_kick(p.net, p.b.id);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(15)));
    CHECK_INT(ev.status, 0);
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    close_pair(&p);
}

/* Wrong key: another secret under the same id, and an id that the peer does not know. */
TEST(gmp_rules_wrong_key_gets_nothing_and_unknown_key_is_reported)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    struct sgmp_ev ev;
    open_pair(&p, true, &l);
    sgmp_key k = gkey(77, SGMP_ALG_AES256GCM, "node-1"), other = gkey(77, SGMP_ALG_AES256GCM, "x");
    other.secret[0] ^= 1;
    CHECK_INT(sgmp_node_key_add(p.a.n, &k, 0), 0);
    CHECK_INT(sgmp_node_key_add(p.b.n, &other, 0), 0);
    sgmp_dest to = gdest(&p.b, 77);
    post(&p.a, &to, 1, 0, 3000, 0);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, SEC_(5)));
    CHECK_INT(ev.status, UDT_E_NOTSENT);
    CHECK(stats(&p.b).bad_tag > 0 && stats(&p.b).assoc == 0);
    k = gkey(78, SGMP_ALG_AES256GCM, "node-one");
    CHECK_INT(sgmp_node_key_add(p.a.n, &k, sim_net_now(p.net)), 0);
    to.key_id = 78;
    post(&p.a, &to, 2, 0, 5000, 0);
    CHECK(gwait(&p.a, SGMP_EV_KEY_UNKNOWN, &ev, sim_net_now(p.net) + SEC_(2)));
    CHECK_INT(ev.key_id, 78);
    /* The message waits; a newer key of the same principal carries it. */
    sgmp_key ka = gkey(79, SGMP_ALG_AES256GCM, "node-one"), kb = gkey(79, SGMP_ALG_AES256GCM, "a");
    CHECK_INT(sgmp_node_key_add(p.a.n, &ka, sim_net_now(p.net)), 0);
    CHECK_INT(sgmp_node_key_add(p.b.n, &kb, sim_net_now(p.net)), 0);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(5)));
    CHECK_INT(ev.status, 0);
    to.key_id = 999;
    post(&p.a, &to, 3, 0, 0, UDT_E_NOKEY);
    sgmp_key weak = gkey(80, SGMP_ALG_HMAC, "w");
    CHECK_INT(sgmp_node_key_add(p.a.n, &weak, 0), UDT_E_INVAL); /* require_auth takes AEAD only */
    close_pair(&p);
}

/* Rotation without losing a message; the end of the last key ends what waits for it. */
TEST(gmp_rules_key_rotation_and_expiry)
{
    struct pair p;
    struct sgmp_ev ev;
    make_session(&p);
    sgmp_key ka = gkey(KEY + 1, SGMP_ALG_AES256GCM, "node-1"),
             kb = gkey(KEY + 1, SGMP_ALG_AES256GCM, "node-0");
    ka.valid_ms = kb.valid_ms = 30000;
    CHECK_INT(sgmp_node_key_add(p.a.n, &ka, sim_net_now(p.net)), 0);
    CHECK_INT(sgmp_node_key_add(p.b.n, &kb, sim_net_now(p.net)), 0);
    CHECK_INT(sgmp_node_key_remove(p.a.n, KEY, sim_net_now(p.net)), 0);
    p.to_b.key_id = KEY + 1;
    int64_t assocs = stats(&p.b).assoc;
    post(&p.a, &p.to_b, 60, 0, 0, 0);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(2)));
    CHECK_INT(ev.status, 0);
    CHECK_INT(stats(&p.b).assoc, assocs); /* same principal, same association */
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    sim_net_set(p.net, p.b.id, &gnode_ops, NULL);
    grun(p.net, sim_net_now(p.net) + SEC_(25));
    post(&p.a, &p.to_b, 61, 0, 0, 0); /* sent, never answered; the key dies midway */
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(25)));
    CHECK_INT(ev.status, UDT_E_AUTHFAILED);
    post(&p.a, &p.to_b, 62, 0, 0, UDT_E_NOKEY);
    close_pair(&p);
}

/* Rule 3: either side restarts after the k-th datagram of a session, for every k. */
TEST(gmp_rules_restart_at_every_step)
{
    for (int who = 0; who < 2; who++)
        for (int k = 1; k < 40; k++) {
            struct pair p;
            sim_link l = {.delay_us = 5000};
            int delivered[16] = {0}, outcome[16], got[16] = {0};
            open_pair(&p, true, &l);
            record(&p, 4000);
            for (uint64_t i = 1; i <= 6; i++)
                post(&p.a, &p.to_b, i, i % 3 == 0 ? SGMP_REPEATABLE : 0, 8000, 0);
            bool called = false, restarted = false;
            udt_time back = 0;
            while (sim_net_now(p.net) < SEC_(20)) {
                struct sgmp_ev ev;
                while (sgmp_node_next_event(p.b.n, &ev)) {
                    if (ev.kind == SGMP_EV_MESSAGE)
                        delivered[body_id(&ev)]++;
                    sgmp_node_release(p.b.n, ev.buf);
                }
                if (!restarted && p.nrec >= k) {
                    struct gnode *g = who ? &p.b : &p.a;
                    restarted = true;
                    gnode_stop(g);
                    gnode_start(g);
                    sgmp_key key = gkey(KEY, SGMP_ALG_AES256GCM, who ? "node-0" : "node-1");
                    CHECK_INT(sgmp_node_key_add(g->n, &key, sim_net_now(p.net)), 0);
                    back = sim_net_now(p.net);
                    if (!who) { /* the new life of a sends something of its own */
                        for (int i = 0; i < 16; i++)
                            got[i] = i < 7;
                        post(&p.a, &p.to_b, 10, 0, 8000, 0);
                    }
                }
                if (!called && sim_net_now(p.net) > MS_(12) && (who || !restarted)) {
                    called = true;
                    post(&p.a, &p.to_b, 7, 0, 8000, 0);
                }
                while (sgmp_node_next_event(p.a.n, &ev)) {
                    if (ev.kind == SGMP_EV_OUTCOME) {
                        CHECK_INT(got[ev.id]++, 0);
                        outcome[ev.id] = ev.status;
                    }
                    if (who && ev.kind == SGMP_EV_PEER_RESTARTED)
                        CHECK(sim_net_now(p.net) - back < SEC_(5));
                    sgmp_node_release(p.a.n, ev.buf);
                }
                if (!sim_net_step(p.net, sim_net_now(p.net) + MS_(50)) && restarted &&
                    sim_net_now(p.net) > back + SEC_(10))
                    break;
            }
            for (int i = 1; i <= 7 && who; i++) {
                CHECK_INT(got[i], i < 7 || called);
                bool rep = i % 3 == 0 && i < 7;
                CHECK(delivered[i] <= (rep ? 2 : 1));
                if (!got[i])
                    continue;
                if (outcome[i] == 0)
                    CHECK(delivered[i] >= 1);
                if (outcome[i] == UDT_E_NOTSENT)
                    CHECK_INT(delivered[i], 0);
                if (rep)
                    CHECK_INT(outcome[i], 0); /* moved to the new instance */
            }
            for (int i = 1; i <= 7; i++)
                CHECK(delivered[i] <= (i % 3 ? 1 : 2));
            if (!who && restarted) {
                CHECK_INT(delivered[10], 1);
                CHECK_INT(outcome[10], 0);
            }
            close_pair(&p);
        }
}

/* Rule 4: a sender that gives up on many messages does not stall; late copies are old. */
TEST(gmp_rules_sender_gives_up_and_window_moves)
{
    struct pair p;
    sim_link good = {.delay_us = 1000}, bad = {.delay_us = 1000, .loss_ppm = 1000000};
    struct sgmp_ev ev;
    open_pair(&p, true, &good);
    post(&p.a, &p.to_b, 1, 0, 0, 0);
    grun(p.net, SEC_(1));
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    read_all(&p.a, NULL, NULL);
    record(&p, 20000);
    sim_net_link(p.net, 0, 1, &bad);
    uint64_t id = 2;
    int timeouts = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 500; i++)
            post(&p.a, &p.to_b, id++, 0, 1000, 0);
        grun(p.net, sim_net_now(p.net) + SEC_(3));
        while (sgmp_node_next_event(p.a.n, &ev)) {
            if (ev.kind == SGMP_EV_OUTCOME) {
                CHECK(ev.status == UDT_E_TIMEOUT || ev.status == UDT_E_NOTSENT);
                timeouts++;
            }
            sgmp_node_release(p.a.n, ev.buf);
        }
    }
    CHECK_INT(timeouts, 6000); /* more than the window of 4096 */
    sim_net_link(p.net, 0, 1, &good);
    int n = p.nrec;
    p.caprec = n;
    for (int i = 0; i < 20; i++)
        post(&p.a, &p.to_b, id++, 0, 0, 0);
    grun(p.net, sim_net_now(p.net) + SEC_(2));
    CHECK_INT(read_all(&p.b, NULL, NULL), 20);
    for (int i = 0; i < n; i++) /* late copies of what was given up */
        if (p.rec[i].from == p.a.id)
            sim_net_inject(p.net, &p.a.addr, p.b.id, p.rec[i].data, p.rec[i].len,
                           sim_net_now(p.net));
    grun(p.net, sim_net_now(p.net) + SEC_(2));
    CHECK_INT(read_all(&p.b, NULL, NULL), 0);
    close_pair(&p);
}

/* Rule 8: the receiver stops reading. */
TEST(gmp_rules_receiver_stops_reading)
{
    struct pair p;
    sim_link l = {.delay_us = 2000, .rate_bps = 1000000000};
    struct sgmp_ev ev;
    open_pair(&p, true, &l);
    uint64_t id = 1, accepted = 0;
    bool again = false;
    for (int t = 0; t < 400; t++) {
        for (int i = 0; i < 64; i++) {
            uint8_t body[1000] = {0};
            sgmp_opts o = {.deadline_ms = 300000};
            int err = sgmp_node_send(p.a.n, &p.to_b, body, sizeof body, &o, id, sim_net_now(p.net));
            again |= err == UDT_E_AGAIN;
            CHECK(err == 0 || err == UDT_E_AGAIN);
            if (err)
                break;
            id++;
            accepted++;
        }
        sim_net_kick(p.net, p.a.id);
        grun(p.net, sim_net_now(p.net) + MS_(50));
    }
    CHECK(again);
    CHECK(stats(&p.a).snd_queue_bytes <= 4 << 20);
    CHECK(stats(&p.b).rcv_queue_bytes <= 64 << 20);
    CHECK(stats(&p.b).messages_in <= 4096);
    post(&p.a, &p.to_b, 1000000, SGMP_CONTROL, 20000, 0);
    int seen = 0;
    bool control = false;
    for (int i = 0; i < 100 && !control; i++) {
        grun(p.net, sim_net_now(p.net) + MS_(20));
        while (sgmp_node_next_event(p.a.n, &ev)) {
            control |= ev.kind == SGMP_EV_OUTCOME && ev.id == 1000000 && ev.status == 0;
            sgmp_node_release(p.a.n, ev.buf);
        }
    }
    CHECK(control); /* passed while everything else was stuck */
    udt_time until = sim_net_now(p.net) + SEC_(60);
    while (sim_net_now(p.net) < until && seen < (int)accepted + 1) {
        seen += read_all(&p.b, NULL, NULL);
        sim_net_kick(p.net, p.b.id);
        sim_net_step(p.net, sim_net_now(p.net) + MS_(10));
        read_all(&p.a, NULL, NULL);
    }
    CHECK_INT(seen, accepted + 1);
    grun(p.net, sim_net_now(p.net) + SEC_(2));
    CHECK_INT(stats(&p.a).snd_queue_bytes, 0);
    CHECK_INT(stats(&p.a).timed_out, 0);
    close_pair(&p);
}

/* Rule 6: fake instances. HELLOs keep nothing, tokens that were not issued to the sender make
 * nothing, real ones at most 1024 associations; honest peers are unaffected. */
TEST(gmp_rules_fake_instances_are_bounded)
{
    struct pair p;
    int fakes = 1000 * test_scale;
    open_pair(&p, false, NULL);
    uint8_t d[200], body[128], buf[1500];
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    size_t before = mallinfo2().uordblks;
    int64_t in = 0, out = 0;
    uint64_t ib = sgmp_node_instance(p.b.n);
    for (int i = 0; i < fakes; i++) {
        uint64_t inst = sim_rng_u64(&r) | 1;
        udt_addr from = gaddr((unsigned)(i % 60000) + 100, 1000u + (unsigned)i / 60000), to;
        struct pkt_hello h = {.start_us = 5, .nonce = 6, .max_dgram = 1232};
        bytes_wr w = bytes_writer(body, sizeof body);
        pkt_hello_put(&w, &h);
        size_t len = forge(d, PKT_T_HELLO, inst, 0, 1, body, PKT_HELLO);
        sgmp_node_input(p.b.n, &from, d, len, 0);
        in += (int64_t)len;
        memset(h.token, 0, PKT_TOKEN);
        while ((len = sgmp_node_output(p.b.n, buf, sizeof buf, &to, 0))) {
            out += (int64_t)len;
            if ((buf[1] & 15) == PKT_T_HELLO_ACK && i % 3 == 0)
                memcpy(h.token, buf + PKT_HEADER + 24, PKT_TOKEN);
        }
        struct pkt_data pd = {.seq = 1};
        w = bytes_writer(body, sizeof body);
        bytes_put(&w, h.token, PKT_TOKEN);
        pkt_data_put(&w, &pd);
        bytes_put(&w, "spam", 4);
        struct pkt_header ph = {.type = PKT_T_DATA,
                                .flags = PKT_F_TOKEN,
                                .src = inst,
                                .dst = ib,
                                .pkt = 1,
                                .body_len = PKT_TOKEN + PKT_DATA + 4};
        pkt_header_put(d, &ph);
        memcpy(d + PKT_HEADER, body, ph.body_len);
        be32_put(d + 36, udt_crc32c(0, d, PKT_HEADER + (size_t)ph.body_len));
        sgmp_node_input(p.b.n, &from, d, PKT_HEADER + (size_t)ph.body_len, 0);
        in += PKT_HEADER + ph.body_len;
        read_all(&p.b, NULL, NULL);
    }
    CHECK(out <= in);
    CHECK(stats(&p.b).assoc_unauth <= 1024);
    CHECK(stats(&p.b).assoc == stats(&p.b).assoc_unauth);
    size_t used = mallinfo2().uordblks - before;
    if (mallinfo2().uordblks > before)
        CHECK(used < 1024 * 6000);
    printf("# %d fake instances: %zu KiB, %" PRId64 " associations\n", fakes, used / 1024,
           stats(&p.b).assoc);
    /* An authenticated peer still gets through. */
    gpair(&p.a, &p.b, KEY, SGMP_ALG_AES256GCM);
    p.to_b.key_id = KEY;
    post(&p.a, &p.to_b, 1, 0, 0, 0);
    struct sgmp_ev ev;
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, SEC_(5)));
    CHECK_INT(ev.status, 0);
    /* After ten quiet seconds only the idle part is left. */
    grun(p.net, SEC_(30));
    used = mallinfo2().uordblks - before;
    if (mallinfo2().uordblks > before)
        CHECK(used < 1100 * 1040 + 200000);
    close_pair(&p);
}
