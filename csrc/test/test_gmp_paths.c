/* The rules of spec/gmp.md section 12 about bad paths: loss, copies, disorder, changing delay and
 * address; and refusals. */
#include "gmp_pair.h"

/* Refusals are certain: missing channel, time to live over. */
TEST(gmp_paths_refusals)
{
    struct pair p;
    sim_link l = {.delay_us = 50000};
    struct sgmp_ev ev;
    open_pair(&p, true, &l);
    sgmp_opts o = {.channel = 9};
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, (const uint8_t *)"x", 1, &o, 1, 0), 0);
    sim_net_kick(p.net, p.a.id);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, SEC_(3)));
    CHECK_INT(ev.status, UDT_E_REFUSED);
    CHECK_INT(ev.ms, REFUSE_CHANNEL);
    CHECK_INT(sgmp_node_channel_open(p.b.n, 9), 0);
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, NULL, 0, &o, 2, sim_net_now(p.net)), 0);
    sim_net_kick(p.net, p.a.id);
    CHECK(gwait(&p.b, SGMP_EV_MESSAGE, &ev, SEC_(3)));
    CHECK_INT(ev.len, 0);
    CHECK_INT(ev.channel, 9);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, SEC_(3)));
    CHECK_INT(ev.status, 0);
    o.ttl_ms = 20; /* the path alone takes 50 ms */
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, (const uint8_t *)"x", 1, &o, 3, sim_net_now(p.net)),
              0);
    sim_net_kick(p.net, p.a.id);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(3)));
    CHECK_INT(ev.status, UDT_E_TIMEOUT); /* given up when it was of no use any more */
    uint8_t big[300] = {0};
    o = (sgmp_opts){.flags = SGMP_CONTROL};
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, big, sizeof big, &o, 4, 0), UDT_E_TOOBIG);
    CHECK_INT(sgmp_node_send(p.a.n, &p.to_b, big, 10, NULL, 0, 0), UDT_E_INVAL);
    close_pair(&p);
}

/* Rule 1: loss to 50 %, duplication to 30 %, reordering, mixed. */
TEST(gmp_paths_at_most_once_under_heavy_faults)
{
    static uint8_t seen[200001];
    static uint8_t result[200001];
    int64_t total = 0, delivered = 0;
    for (int mix = 1; mix < 8; mix++) {
        struct pair p;
        sim_link l = {.delay_us = 3000, .rate_bps = 100000000, .queue_bytes = 500000};
        l.loss_ppm = mix & 1 ? 500000 : 0;
        l.dup_ppm = mix & 2 ? 300000 : 0;
        l.dup_delay_us = 3000000;
        l.reorder_ppm = mix & 4 ? 300000 : 0;
        l.reorder_us = 40000;
        int n = (mix & 1 ? 20 : 250) * test_scale, sent = 0, settled = 0;
        memset(seen, 0, sizeof seen);
        memset(result, 0, sizeof result);
        open_pair(&p, true, &l);
        while (settled < n) {
            while (sent < n) {
                uint8_t body[8] = {0};
                be32_put(body + 4, (uint32_t)sent + 1);
                int err = sgmp_node_send(p.a.n, &p.to_b, body, 8, NULL, (uint64_t)sent + 1,
                                         sim_net_now(p.net));
                if (err == UDT_E_AGAIN)
                    break;
                CHECK_INT(err, 0);
                sent++;
            }
            sim_net_kick(p.net, p.a.id);
            sim_net_step(p.net, sim_net_now(p.net) + SEC_(1));
            settled += take_events(&p, seen, result);
        }
        grun(p.net, sim_net_now(p.net) + SEC_(10));
        CHECK_INT(take_events(&p, seen, result), 0);
        for (int i = 1; i <= n; i++) {
            CHECK(result[i] != 1 || seen[i] == 1);
            CHECK(result[i] != 2 || seen[i] == 0);
            if (!(mix & 1))
                CHECK_INT(result[i], 1);
            delivered += seen[i];
        }
        total += n;
        close_pair(&p);
    }
    printf("# heavy faults: %" PRId64 " messages, %" PRId64 " delivered\n", total, delivered);
}

/* Rule 7: the path's delay jumps and falls back. */
TEST(gmp_paths_round_trip_step_makes_no_storm)
{
    struct pair p;
    sim_link l = {.delay_us = 500};
    open_pair(&p, true, &l);
    uint64_t id = 1;
    sgmp_peer_info info;
    for (int phase = 0; phase < 3; phase++) {
        l.delay_us = phase == 1 ? 150000 : 500;
        sim_net_link(p.net, 0, 1, &l);
        sim_net_link(p.net, 1, 0, &l);
        udt_time end = sim_net_now(p.net) + SEC_(20);
        while (sim_net_now(p.net) < end) {
            post(&p.a, &p.to_b, id++, 0, 0, 0);
            udt_time next = sim_net_now(p.net) + MS_(20);
            grun(p.net, next);
            read_all(&p.b, NULL, NULL);
            read_all(&p.a, NULL, NULL);
        }
        CHECK_INT(sgmp_node_peer_info(p.a.n, &p.to_b, &info), 0);
        CHECK(phase == 1 ? info.pto_us > 300000 && info.pto_us < 700000 : info.pto_us < 60000);
    }
    sgmp_stats s = stats(&p.a);
    CHECK((s.retrans_pto + s.retrans_loss) * 20 < s.messages_out); /* none was lost */
    close_pair(&p);
}

/* A peer behind a new address is followed, but gets no flood before it proved it. */
TEST(gmp_paths_address_change_is_followed_after_proof)
{
    struct pair p;
    sim_link l = {.delay_us = 1000};
    struct sgmp_ev ev;
    open_pair(&p, true, &l);
    post(&p.a, &p.to_b, 1, 0, 0, 0);
    grun(p.net, SEC_(1));
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    read_all(&p.a, NULL, NULL);
    move_node(&p, &p.a, 77, &l);
    post(&p.a, &p.to_b, 2, 0, 0, 0);
    CHECK(gwait(&p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(3)));
    CHECK_INT(ev.status, 0);
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    p.to_a.addr = p.a.addr;
    post(&p.b, &p.to_a, 3, 0, 0, 0);
    CHECK(gwait(&p.b, SGMP_EV_OUTCOME, &ev, sim_net_now(p.net) + SEC_(3)));
    CHECK_INT(ev.status, 0);
    CHECK_INT(stats(&p.b).assoc, 1);
    close_pair(&p);
}
