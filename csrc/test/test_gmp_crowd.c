/* Somebody with a key who speaks as many instances from one address, none of which answers. */
#include "base/bytes.h"
#include "gmp_world.h"
#include "test_udt_side.h"

enum { KEY = 7, FAKES = 2000, MOST = 64 };

/* One more of them says HELLO to `b` and sends a message; `b` needs that long for all of it. */
static int64_t say(struct gnode *b, sim_rng *rng, const udt_addr *from, int *settled)
{
    uint8_t buf[2048];
    size_t len;
    udt_addr to;
    int64_t ns = 0;
    struct sgmp_ev ev;
    udt_time now = sim_net_now(b->net);
    sgmp_node_config cfg = {
        .rand = sim_rng_bytes, .rand_arg = rng, .start_time_us = 5, .require_auth = true};
    sgmp_node *n = sgmp_node_new(&cfg, now);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "b");
    sgmp_dest dest = gdest(b, KEY);
    CHECK(n != NULL);
    CHECK_INT(sgmp_node_key_add(n, &k, now), 0);
    CHECK_INT(sgmp_node_send(n, &dest, (const uint8_t *)"x", 1, NULL, 1, now), 0);
    for (int i = 0; i < 8; i++) {
        int64_t t = cpu_ns();
        while ((len = sgmp_node_output(n, buf, sizeof buf, &to, now)) > 0)
            sgmp_node_input(b->n, from, buf, len, now);
        sgmp_node_tick(b->n, now);
        ns += cpu_ns() - t;
        while ((len = sgmp_node_output(b->n, buf, sizeof buf, &to, now)) > 0)
            if (be64_get(buf + 16) == sgmp_node_instance(n)) /* not what asks after another */
                sgmp_node_input(n, &b->addr, buf, len, now);
        now += 1000;
        sgmp_node_tick(b->n, now);
        sgmp_node_tick(n, now);
    }
    while (sgmp_node_next_event(n, &ev)) {
        *settled += ev.kind == SGMP_EV_OUTCOME && ev.status == 0;
        sgmp_node_release(n, ev.buf);
    }
    sgmp_node_free(n);
    while (sgmp_node_next_event(b->n, &ev))
        sgmp_node_release(b->n, ev.buf);
    return ns;
}

TEST(gmp_crowd_of_instances_at_one_address_is_bounded)
{
    struct gnode b;
    sim_rng rng;
    sgmp_stats s;
    sim_net *net = sim_net_new(test_seed);
    sim_rng_seed(&rng, test_seed + 99);
    gnode_open(&b, net, 2, true, test_seed);
    CHECK_INT(sgmp_node_channel_open(b.n, 0), 0);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "mallory");
    CHECK_INT(sgmp_node_key_add(b.n, &k, 0), 0);
    udt_addr from = gaddr(66, 6666), honest = gaddr(67, 6666);
    int64_t first = 0, last = 0;
    int settled = 0, fine = 0;
    for (int i = 0; i < FAKES; i++) {
        int64_t ns = say(&b, &rng, &from, &settled);
        first += i < 100 ? ns : 0;
        last += i >= FAKES - 100 ? ns : 0;
    }
    sgmp_node_stats(b.n, &s);
    printf("# %" PRId64 " associations, %d messages; %.0f us of the first, %.0f of the last\n",
           s.assoc, settled, (double)first / 1e5, (double)last / 1e5);
    CHECK_INT(settled, MOST);
    CHECK_INT(s.assoc, MOST);
    (void)say(&b, &rng, &honest, &fine); /* of the same principal, elsewhere */
    CHECK_INT(fine, 1);
    /* Who is not heard of any more makes room again. */
    grun(net, sim_net_now(net) + SEC_(700));
    settled = 0;
    (void)say(&b, &rng, &from, &settled);
    CHECK_INT(settled, 1);
    gnode_stop(&b);
    sim_net_free(net);
}
