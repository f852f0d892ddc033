/* Whole transfers over the simulator: the ways to connect, both modes, clean and lossy. */
#include "test_udt_util.h"

static void move(const char *what, int how, uint16_t type, const sim_link *l, uint64_t size,
                 udt_time limit)
{
    world w;
    world_init(&w, test_seed, l, l);
    udt_opts o;
    udt_opts_init(&o);
    o.type = type;
    o.own_peer = how != PAIR_CLIENT;
    pair p = world_connect(&w, how, &o, 20000000);
    udt_time start = sim_net_now(w.net);
    flow f[2] = {{.from = 0, .seed = 1, .size = size}, {.from = 1, .seed = 2, .size = size}};
    if (type == UDT_DGRAM)
        for (int i = 0; i < 2; i++) {
            f[i].msg_size = 20000;
            f[i].in_order = i;
        }
    if (!world_move(&w, &p, f, 2, start + limit))
        test_fail(__FILE__, __LINE__,
                  "%s: %" PRIu64 " and %" PRIu64 " of %" PRIu64 " bytes in %" PRId64 " us", what,
                  f[0].got, f[1].got, size, limit);
    udt_stats st;
    udt_mux_stats(w.m[0], p.s[0], &st);
    if (getenv("TEST_VERBOSE"))
        printf("%s how %d type %d: %.3f s, %" PRId64 " pkts, %" PRId64 " retrans, %" PRId64
               " timeouts, %" PRId64 " probes, rtt %" PRId64 "\n",
               what, how, type, (double)(sim_net_now(w.net) - start) * 1e-6, st.pkts_sent,
               st.pkts_retrans, st.timeouts, st.probes, st.rtt_us);
    flow_fini(&f[0]);
    flow_fini(&f[1]);
    CHECK_INT(udt_mux_close(w.m[0], p.s[0], 1000, sim_net_now(w.net)), 0);
    sim_net_kick(w.net, 0);
    world_wait(&w, 0, UDT_EV_CLOSED, p.s[0], sim_net_now(w.net) + 5000000);
    world_wait(&w, 1, UDT_EV_PEER_CLOSED, p.s[1], sim_net_now(w.net) + 5000000);
    CHECK_INT(udt_mux_close(w.m[1], p.s[1], 0, sim_net_now(w.net)), 0);
    world_fini(&w);
}

static const int hows[] = {PAIR_CLIENT, PAIR_RDV_TAG, PAIR_RDV_ADDR, PAIR_RDV_PASSIVE};

TEST(udt_transfer_clean)
{
    const sim_link l = {.rate_bps = 100000000, .delay_us = 10000};
    for (int i = 0; i < 4; i++) {
        move("clean", hows[i], UDT_STREAM, &l, 2000000, 2000000);
        move("clean", hows[i], UDT_DGRAM, &l, 2000000, 2000000);
    }
}

TEST(udt_transfer_lossy)
{
    const sim_link l = {.rate_bps = 100000000,
                        .delay_us = 10000,
                        .loss_ppm = 50000,
                        .reorder_ppm = 20000,
                        .reorder_us = 3000,
                        .dup_ppm = 10000,
                        .dup_delay_us = 5000};
    for (int i = 0; i < 4; i++) {
        move("lossy", hows[i], UDT_STREAM, &l, 2000000, 10000000);
        move("lossy", hows[i], UDT_DGRAM, &l, 2000000, 10000000);
    }
}
