/* What a sender does for a libudt receiver: packets that it confirms at once, little in its
 * socket. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"

TEST(udt_foreign_stream_has_short_packets_that_are_confirmed_at_once)
{
    world w;
    udt_opts o;
    static uint8_t data[6000000], out[65536];
    world_init(&w, test_seed, NULL, NULL);
    udt_opts_init(&o);
    o.snd_buf_bytes = sizeof data;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    c->cc.cwnd_pkts = 5000;
    c->room_pkts = 5000;
    fill(data, 7, 0, sizeof data);
    udt_time now = sim_net_now(w.net);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, sizeof data, now), sizeof data);
    size_t at = 0, pkts = 0, brief = 0, rest = 1000000, last = 0;
    for (size_t n, seg; at < sizeof data - rest; now += 50) {
        udt_addr to;
        udt_mux_tick(w.m[0], now);
        n = udt_mux_output(w.m[0], out, sizeof out, 64, &to, &seg, now);
        if (n == 0 || be32_get(out) >> 31)
            continue;
        for (size_t i = 0; i < n; i += seg) {
            size_t len = (i + seg < n ? seg : n - i) - UDT_HDR_BYTES;
            if ((be32_get(out + i) & SEQ_MASK) != seq_add(c->isn, (int64_t)pkts))
                continue; /* a probe */
            CHECK_MEM(out + i + UDT_HDR_BYTES, data + at, len);
            at += len;
            pkts++;
            if (len == c->payload)
                continue;
            CHECK(pkts - last == 1024);
            last = pkts;
            brief++;
        }
    }
    CHECK_INT(brief, pkts / 1024);
    CHECK(brief >= 3);
    world_fini(&w);
}

/* A libudt socket that holds 200 packets, as where net.core.rmem_max is as kernels come with it. */
TEST(udt_foreign_socket_on_a_short_path_is_not_overrun)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 3000000000, .delay_us = 30, .queue_bytes = 300000};
    world_init(&w, test_seed, &l, &l);
    udt_opts_init(&o);
    pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
    flow f = {.from = 0, .seed = 1, .size = 300000000};
    udt_time start = sim_net_now(w.net);
    CHECK(world_move(&w, &p, &f, 1, start + 10000000));
    double gbps = (double)f.size * 8e-3 / (double)(sim_net_now(w.net) - start);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    printf("%.2f Gb/s, %lld of %lld packets again\n", gbps, (long long)st.pkts_retrans,
           (long long)st.pkts_sent);
    CHECK(st.pkts_retrans * 100 <= st.pkts_sent);
    CHECK(gbps > 2.5);
    flow_fini(&f);
    world_fini(&w);
}

/* Pairs that come faster than links do, and what is said of them: near by, and elsewhere. */
TEST(udt_foreign_sender_near_by_is_told_how_fast_packets_come)
{
    for (int far = 0; far < 2; far++) {
        world w;
        udt_opts o;
        sim_link l = {.rate_bps = 5000000000, .delay_us = far ? 1000 : 30, .queue_bytes = 20000000};
        world_init(&w, test_seed, &l, &l);
        udt_opts_init(&o);
        pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
        flow f = {.from = 0, .seed = 1, .size = 100000000};
        CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 10000000));
        udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
        int64_t rate = 100000, capacity = 400000;
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, far ? 400000 : 1000000);
        CHECK_INT(rate, far ? 100000 : 1000000);
        rate = 50000, capacity = 81000; /* a link of 1 Gb/s */
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, 81000);
        CHECK_INT(rate, far ? 50000 : 81000);
        c->st.naks_sent++;
        rate = 100000, capacity = 400000;
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, 400000);
        CHECK_INT(rate, 100000);
        flow_fini(&f);
        world_fini(&w);
    }
}
