#include "gmp_world.h"

#include <time.h>

/* First contact, a message, a call and its answer, sealed, over a 20 ms path. */
TEST(gmp_node_first_contact_message_and_call)
{
    sim_net *net = sim_net_new(test_seed);
    struct gnode a, b;
    struct sgmp_ev ev;
    sim_link l = {.rate_bps = 100000000, .delay_us = 10000};
    gnode_open(&a, net, 1, true, test_seed);
    gnode_open(&b, net, 2, true, test_seed);
    sim_net_link(net, a.id, b.id, &l);
    sim_net_link(net, b.id, a.id, &l);
    gpair(&a, &b, 0x01000001, SGMP_ALG_AES256GCM);
    sgmp_dest to = gdest(&b, 0x01000001);
    CHECK_INT(sgmp_node_send(a.n, &to, (const uint8_t *)"hello", 5, NULL, 1, sim_net_now(net)), 0);
    sim_net_kick(net, a.id);
    CHECK(gwait(&b, SGMP_EV_MESSAGE, &ev, SEC_(5)));
    CHECK_INT(ev.len, 5);
    CHECK_MEM(ev.data, "hello", 5);
    CHECK_INT(ev.instance, sgmp_node_instance(a.n));
    CHECK(sim_net_now(net) < MS_(31)); /* one round trip extra */
    sgmp_node_release(b.n, ev.buf);
    CHECK(gwait(&a, SGMP_EV_OUTCOME, &ev, SEC_(5)));
    CHECK_INT(ev.id, 1);
    CHECK_INT(ev.status, 0);
    udt_time t0 = sim_net_now(net);
    CHECK_INT(sgmp_node_call(a.n, &to, 77, (const uint8_t *)"ping", 4, NULL, 2, t0), 0);
    sim_net_kick(net, a.id);
    CHECK(gwait(&b, SGMP_EV_REQUEST, &ev, SEC_(5)));
    CHECK_INT(ev.method, 77);
    CHECK_MEM(ev.data, "ping", 4);
    CHECK_INT(sgmp_node_reply(b.n, ev.id, 0, (const uint8_t *)"pong!", 5, sim_net_now(net)), 0);
    CHECK_INT(sgmp_node_reply(b.n, ev.id, 0, NULL, 0, sim_net_now(net)), UDT_E_NOSOCK);
    sgmp_node_release(b.n, ev.buf);
    sim_net_kick(net, b.id);
    CHECK(gwait(&a, SGMP_EV_RESPONSE, &ev, SEC_(5)));
    CHECK_INT(ev.id, 2);
    CHECK_INT(ev.status, 0);
    CHECK_MEM(ev.data, "pong!", 5);
    CHECK(sim_net_now(net) - t0 < MS_(21));
    sgmp_node_release(a.n, ev.buf);
    grun(net, sim_net_now(net) + SEC_(3));
    sgmp_stats sa, sb;
    sgmp_node_stats(a.n, &sa);
    sgmp_node_stats(b.n, &sb);
    CHECK_INT(sa.retrans_pto + sa.retrans_loss + sb.retrans_pto + sb.retrans_loss, 0);
    CHECK_INT(sa.hello_out, 1);
    CHECK_INT(sa.snd_queue_bytes + sa.rcv_queue_bytes + sb.snd_queue_bytes + sb.rcv_queue_bytes, 0);
    gnode_stop(&a);
    gnode_stop(&b);
    sim_net_free(net);
}

static void exchange(sgmp_node *x, sgmp_node *y, const udt_addr *ax, const udt_addr *ay,
                     udt_time now)
{
    uint8_t buf[1500];
    udt_addr to;
    size_t len;
    bool more = true;
    while (more) {
        more = false;
        while ((len = sgmp_node_output(x, buf, sizeof buf, &to, now)))
            more = true, sgmp_node_input(y, ax, buf, len, now);
        while ((len = sgmp_node_output(y, buf, sizeof buf, &to, now)))
            more = true, sgmp_node_input(x, ay, buf, len, now);
    }
}

/* CPU per sealed 1 KB round trip through both engines, without sockets. */
TEST_ALONE(gmp_node_speed_is_printed)
{
    sim_rng rng;
    sim_rng_seed(&rng, test_seed);
    sgmp_node_config cfg = {.rand = sim_rng_bytes, .rand_arg = &rng, .require_auth = true};
    sgmp_node *x = sgmp_node_new(&cfg, 0), *y = sgmp_node_new(&cfg, 0);
    udt_addr ax = gaddr(1, 1), ay = gaddr(2, 2);
    sgmp_key kx = gkey(5, SGMP_ALG_AES256GCM, "y"), ky = gkey(5, SGMP_ALG_AES256GCM, "x");
    CHECK_INT(sgmp_node_key_add(x, &kx, 0), 0);
    CHECK_INT(sgmp_node_key_add(y, &ky, 0), 0);
    sgmp_dest to = {ay, 5};
    uint8_t data[1000];
    memset(data, 7, sizeof data);
    int rounds = 2000 * test_scale;
    struct timespec t0, t1;
    struct sgmp_ev ev;
    udt_time now = 0;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    for (int i = 1; i <= rounds; i++, now += 20) {
        CHECK_INT(sgmp_node_call(x, &to, 1, data, sizeof data, NULL, (uint64_t)i, now), 0);
        exchange(x, y, &ax, &ay, now);
        bool got = false;
        while (sgmp_node_next_event(y, &ev)) {
            if (ev.kind == SGMP_EV_REQUEST)
                CHECK_INT(sgmp_node_reply(y, ev.id, 0, ev.data, ev.len, now), 0);
            sgmp_node_release(y, ev.buf);
        }
        exchange(x, y, &ax, &ay, now + 10);
        while (sgmp_node_next_event(x, &ev)) {
            got |= ev.kind == SGMP_EV_RESPONSE && ev.status == 0 && ev.len == 1000;
            sgmp_node_release(x, ev.buf);
        }
        CHECK(got);
        if (sgmp_node_deadline(x) <= now)
            sgmp_node_tick(x, now);
        if (sgmp_node_deadline(y) <= now)
            sgmp_node_tick(y, now);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    double us = ((double)(t1.tv_sec - t0.tv_sec) * 1e6 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-3);
    printf("# sealed 1 KB call: %.2f us of CPU for both ends\n", us / rounds);
    sgmp_node_free(x);
    sgmp_node_free(y);
}
