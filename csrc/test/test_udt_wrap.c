/* Sequence numbers begin anew behind 2^31 - 1 in the middle of a flow. */
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"

static void flows_across(bool offer, bool own_peer, int type, uint32_t before, uint32_t loss_ppm)
{
    world w;
    pair p;
    udt_opts o;
    sim_link l = {.delay_us = 5000,
                  .loss_ppm = loss_ppm,
                  .reorder_ppm = loss_ppm,
                  .reorder_us = 3000,
                  .dup_ppm = loss_ppm,
                  .rate_bps = 100000000,
                  .queue_bytes = 300000};
    world_init(&w, test_seed + before, &l, &l);
    udt_opts_init(&o);
    o.type = (uint16_t)type;
    o.offer = offer;
    o.own_peer = own_peer;
    CHECK(udt_mux_listen(w.m[1], &o, 5) > 0);
    p.s[0] = udt_mux_connect(w.m[0], &w.addr[1], &o, 0);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    c->isn = SEQ_MASK - before;
    udt__own_offer(c); /* it names the number */
    sim_net_kick(w.net, 0);
    world_wait(&w, 0, UDT_EV_CONNECTED, p.s[0], 10000000);
    struct udt_ev ev = world_wait(&w, 1, UDT_EV_ACCEPTED, 0, 10000000);
    p.s[1] = ev.sock;
    flow f[2] = {{.from = 0, .seed = 1, .size = 3000000}, {.from = 1, .seed = 2, .size = 3000000}};
    for (int i = 0; i < 2; i++)
        f[i].msg_size = type == UDT_DGRAM ? 5000 : 0;
    CHECK(world_move(&w, &p, f, 2, sim_net_now(w.net) + 60000000));
    CHECK(c->next > before + 1); /* it was crossed */
    CHECK_INT(c->own.on, offer);
    flow_fini(&f[0]);
    flow_fini(&f[1]);
    world_fini(&w);
}

TEST(udt_wrap_flows_across_the_end_of_sequence_numbers)
{
    static const uint32_t before[] = {0, 1, 31, 500};
    for (int mode = 0; mode < 3; mode++)
        for (int type = UDT_STREAM; type <= UDT_DGRAM; type++)
            for (size_t i = 0; i < sizeof before / sizeof *before; i++)
                for (int lossy = 0; lossy < 2; lossy++)
                    flows_across(mode == 2, mode == 1, type, before[i], lossy ? 20000 : 0);
}
