/* Somebody with a key who speaks as many instances from one address, none of which answers. */
#include "base/bytes.h"
#include "gmp_world.h"
#include "test_udt_side.h"

enum { KEY = 7, FAKES = 2000, MOST = 64 };

/* One more of them says HELLO to `b` and sends a message; `b` needs that long for all of it. */
static int64_t say_as(struct gnode *b, sim_rng *rng, const udt_addr *from, uint32_t key_id,
                      int *settled)
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
    sgmp_key k = gkey(key_id, SGMP_ALG_AES256GCM, "b");
    sgmp_dest dest = gdest(b, key_id);
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

static int64_t say(struct gnode *b, sim_rng *rng, const udt_addr *from, int *settled)
{
    return say_as(b, rng, from, KEY, settled);
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

/* With a key and a network of addresses: room for others remains. */
TEST(gmp_crowd_of_addresses_leaves_room_for_others)
{
    enum { TABLE = 1000, OTHER = 8 };
    sim_net *net = sim_net_new(test_seed);
    struct gnode b;
    sim_rng rng;
    sgmp_stats s;
    sim_rng_seed(&rng, test_seed + 98);
    gnode_open(&b, net, 2, true, test_seed);
    sgmp_node_free(b.n);
    sgmp_node_config cfg = {.rand = sim_rng_bytes,
                            .rand_arg = &b.rng,
                            .start_time_us = 1,
                            .require_auth = true,
                            .max_assoc = TABLE};
    CHECK((b.n = sgmp_node_new(&cfg, 0)));
    CHECK_INT(sgmp_node_channel_open(b.n, 0), 0);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "mallory"),
             other = gkey(OTHER, SGMP_ALG_AES256GCM, "alice");
    CHECK_INT(sgmp_node_key_add(b.n, &k, 0), 0);
    CHECK_INT(sgmp_node_key_add(b.n, &other, 0), 0);
    int settled = 0, fine = 0;
    for (unsigned i = 0; i < TABLE + 100; i++) {
        udt_addr from = gaddr(100 + i, 6666);
        (void)say(&b, &rng, &from, &settled);
    }
    for (unsigned i = 0; i < 100; i++) {
        udt_addr from = gaddr(100 + i, 7777);
        (void)say_as(&b, &rng, &from, OTHER, &fine);
    }
    sgmp_node_stats(b.n, &s);
    printf("# %d of one name, %d of another, %" PRId64 " associations\n", settled, fine, s.assoc);
    CHECK_INT(settled, TABLE / 2);
    CHECK_INT(fine, 100);
    gnode_stop(&b);
    sim_net_free(net);
}
