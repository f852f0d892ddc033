/* GMP under load in virtual time: a million messages over paths that lose, copy and disorder;
 * CONTROL beside a saturating upload; every call a node may have pending. */
#include "gmp_pair.h"

#include <stdlib.h>

/* Rule 1. Loss up to 50 %, copies up to 30 %, disorder up to 2000 datagrams, alone and mixed:
 * 10^6 messages at scale 100 (10^8: --scale=10000). */
TEST(gmp_load_a_million_messages_at_most_once)
{
    enum { SHARE = 100000 };
    int64_t total = 0, delivered = 0, certain = 0, dups = 0;
    uint8_t *seen = malloc((size_t)SHARE + 1), *result = malloc((size_t)SHARE + 1);
    for (int part = 0; part < 16 * test_scale / 100 + (test_scale < 7); part++) {
        struct pair p;
        sim_rng r;
        sim_rng_seed(&r, test_seed + (uint64_t)part * 7919);
        int mix = part % 8, n = mix & 1 ? SHARE / 4 : SHARE;
        uint32_t loss = mix & 1 ? (uint32_t)sim_rng_below(&r, 500001) : 0;
        sim_link l = {.delay_us = (int64_t)sim_rng_below(&r, 5000),
                      .rate_bps = 1000000000,
                      .queue_bytes = 4000000,
                      .loss_ppm = loss,
                      .dup_ppm = mix & 2 ? (uint32_t)sim_rng_below(&r, 300001) : 0,
                      .dup_delay_us = 1000000,
                      .reorder_ppm = mix & 4 ? (uint32_t)sim_rng_below(&r, 100001) : 0,
                      .reorder_us = (int64_t)sim_rng_below(&r, 20000)};
        memset(seen, 0, (size_t)SHARE + 1);
        memset(result, 0, (size_t)SHARE + 1);
        open_pair(&p, part % 2, &l);
        int sent = 0, settled = 0;
        while (settled < n || sim_net_in_flight(p.net) > 0) {
            while (sent < n) {
                uint8_t body[4];
                be32_put(body, (uint32_t)sent + 1);
                int err = sgmp_node_send(p.a.n, &p.to_b, body, 4, NULL, (uint64_t)sent + 1,
                                         sim_net_now(p.net));
                CHECK(err == 0 || err == UDT_E_AGAIN);
                if (err)
                    break;
                sent++;
            }
            sim_net_kick(p.net, p.a.id);
            sim_net_step(p.net, sim_net_now(p.net) + SEC_(1));
            settled += take_events(&p, seen, result);
        }
        for (int i = 1; i <= n; i++) {
            CHECK(result[i] != 1 || seen[i] == 1);
            CHECK(result[i] != 2 || seen[i] == 0);
            CHECK(loss || result[i] == 1);
            delivered += seen[i];
            certain += result[i] < 3;
        }
        total += n;
        dups += stats(&p.b).duplicates + stats(&p.b).replays;
        close_pair(&p);
    }
    free(seen);
    free(result);
    printf("# %" PRId64 " messages: %" PRId64 " delivered, outcome certain for %" PRId64
           ", %" PRId64 " copies dropped\n",
           total, delivered, certain, dups);
}

/* Section 6.3: heartbeats beside an upload that fills queue, window and path. What they wait for is
 * the path's own queue, not the thousand messages before them. */
TEST(gmp_load_upload_does_not_delay_heartbeats)
{
    struct pair p;
    sim_link l = {.delay_us = 10000, .rate_bps = 10000000, .queue_bytes = 64 << 10};
    struct sgmp_ev ev;
    open_pair(&p, true, &l);
    uint64_t id = 1, beat = 1ull << 40, got = 0;
    udt_time sent_at[200] = {0}, worst = 0, plain_worst = 0, next = 0, plain_at = -1;
    uint64_t plain_id = 0;
    int beats = 0;
    while (sim_net_now(p.net) < SEC_(22)) {
        udt_time now = sim_net_now(p.net);
        uint8_t body[1000] = {0};
        while (now < SEC_(20) &&
               sgmp_node_send(p.a.n, &p.to_b, body, sizeof body, NULL, id, now) == 0) {
            if (plain_at < 0 && now > SEC_(5)) {
                plain_at = now;
                plain_id = id;
            }
            id++;
        }
        if (now >= next && beats < 195) {
            sent_at[beats] = now;
            post(&p.a, &p.to_b, beat + (uint64_t)beats, SGMP_CONTROL, 5000, 0);
            beats++;
            next = now + MS_(100);
        }
        sim_net_kick(p.net, p.a.id);
        sim_net_step(p.net, now + MS_(10));
        while (sgmp_node_next_event(p.b.n, &ev)) {
            uint64_t v = ev.kind == SGMP_EV_MESSAGE && ev.len == 8 ? body_id(&ev) : 0;
            if (v >= beat) {
                udt_time took = sim_net_now(p.net) - sent_at[v - beat];
                worst = took > worst ? took : worst;
                got++;
            }
            sgmp_node_release(p.b.n, ev.buf);
        }
        while (sgmp_node_next_event(p.a.n, &ev)) {
            if (ev.kind == SGMP_EV_OUTCOME && ev.id == plain_id)
                plain_worst = sim_net_now(p.net) - plain_at;
            CHECK(ev.kind != SGMP_EV_PEER_LOST && ev.kind != SGMP_EV_PEER_SUSPECT);
            sgmp_node_release(p.a.n, ev.buf);
        }
    }
    printf("# heartbeat beside an upload: worst %.1f ms; a message of the upload %.1f ms\n",
           (double)worst / 1e3, (double)plain_worst / 1e3);
    CHECK_INT(got, beats);
    CHECK(worst < MS_(400)); /* a lost one is repeated after a time-out */
    CHECK(plain_worst > MS_(700));
    CHECK(id > 15000); /* and the upload had the path */
    close_pair(&p);
}

/* Rule 12: 65,536 calls pending at once, then their deadlines; one more is refused. */
TEST(gmp_load_every_call_a_node_may_have)
{
    enum { PEERS = 64, EACH = 1024 };
    sim_net *net = sim_net_new(test_seed);
    struct gnode a, *b = calloc(PEERS + 1, sizeof *b);
    sim_link l = {.delay_us = 1000};
    uint64_t id = 0;
    struct sgmp_ev ev;
    sgmp_stats st;
    gnode_open(&a, net, 1, true, test_seed);
    for (int i = 0; i <= PEERS; i++) {
        gnode_open(&b[i], net, (unsigned)i + 2, true, test_seed);
        gpair(&a, &b[i], 100 + (uint32_t)i, SGMP_ALG_AES256GCM);
        sim_net_link(net, a.id, b[i].id, &l);
        sim_net_link(net, b[i].id, a.id, &l);
    }
    sgmp_opts o = {.deadline_ms = 10000};
    for (int k = 0; k < EACH; k++)
        for (int i = 0; i < PEERS; i++) {
            sgmp_dest to = gdest(&b[i], 100 + (uint32_t)i);
            CHECK_INT(sgmp_node_call(a.n, &to, 1, (const uint8_t *)"x", 1, &o, ++id, 0), 0);
        }
    sgmp_dest more = gdest(&b[PEERS], 100 + PEERS);
    CHECK_INT(sgmp_node_call(a.n, &more, 1, NULL, 0, &o, ++id, 0), UDT_E_LIMIT);
    sgmp_node_stats(a.n, &st);
    CHECK_INT(st.pending_calls, PEERS * EACH);
    sim_net_kick(net, a.id);
    int busy = 0, late = 0, ended = 0;
    while (sim_net_now(net) < SEC_(11)) {
        sim_net_step(net, sim_net_now(net) + MS_(50));
        for (int i = 0; i < PEERS; i++)
            while (sgmp_node_next_event(b[i].n, &ev)) /* callees that never answer */
                sgmp_node_release(b[i].n, ev.buf);
        while (sgmp_node_next_event(a.n, &ev)) {
            if (ev.kind == SGMP_EV_RESPONSE) {
                CHECK(ev.status == SGMP_RPC_BUSY || ev.status == SGMP_RPC_TIMEOUT);
                busy += ev.status == SGMP_RPC_BUSY;
                late += ev.status == SGMP_RPC_TIMEOUT;
                ended++;
            }
            sgmp_node_release(a.n, ev.buf);
        }
    }
    CHECK_INT(ended, PEERS * EACH);
    CHECK_INT(late, PEERS * 256); /* what a callee takes at once */
    CHECK_INT(busy, PEERS * (EACH - 256));
    sgmp_node_stats(a.n, &st);
    CHECK_INT(st.pending_calls, 0);
    gnode_stop(&a);
    for (int i = 0; i <= PEERS; i++)
        gnode_stop(&b[i]);
    free(b);
    sim_net_free(net);
}
