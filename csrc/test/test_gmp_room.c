/* Who is refused a group for want of room hears when there is some. */
#include "gmp_world.h"
#include "test_io.h"

#include <stdlib.h>

enum { MANY = 4096, GROUPS = 16, HUGE_BYTES = 60 << 20 };

struct lone {
    sim_net *net;
    struct gnode g;
    sgmp_dest to[MANY];
    int writable, done;
};

static struct lone *lone_new(void)
{
    struct lone *l = calloc(1, sizeof *l);
    l->net = sim_net_new(test_seed);
    gnode_open(&l->g, l->net, 1, false, test_seed);
    for (int i = 0; i < MANY; i++)
        l->to[i] = (sgmp_dest){gaddr(2 + (unsigned)i, 7002), 0}; /* nobody answers there */
    return l;
}

static void lone_free(struct lone *l)
{
    gnode_stop(&l->g);
    sim_net_free(l->net);
    free(l);
}

static int lone_group(struct lone *l, uint64_t id, size_t len, uint32_t ms, uint32_t n, int from)
{
    static const uint8_t small[100];
    sgmp_group_opts o = {.each.deadline_ms = ms};
    int err = sgmp_node_group(l->g.n, l->to + from, n, len > sizeof small ? NULL : small, len, &o,
                              id, sim_net_now(l->net));
    sim_net_kick(l->net, l->g.id);
    return err;
}

static void lone_run(struct lone *l, udt_time for_us)
{
    struct sgmp_ev ev;
    udt_time until = sim_net_now(l->net) + for_us;
    while (sim_net_step(l->net, until))
        while (sgmp_node_next_event(l->g.n, &ev)) {
            if (ev.kind == SGMP_EV_WRITABLE) {
                CHECK_INT(ev.from.family, 0);
                l->writable++;
            }
            l->done += ev.kind == SGMP_EV_GROUP_DONE;
            sgmp_node_release(l->g.n, ev.buf);
        }
}

TEST(gmp_a_group_hears_of_room_for_members)
{
    struct lone *l = lone_new();
    for (int i = 0; i < GROUPS; i++)
        CHECK_INT(lone_group(l, 1 + (uint64_t)i * 5000, 100, i < 12 ? 1000 : 5000, MANY, 0), 0);
    CHECK_INT(lone_group(l, 900001, 100, 1000, 1, 0), UDT_E_AGAIN);
    CHECK_INT(lone_group(l, 910001, 100, 1000, MANY, 0), UDT_E_AGAIN);
    lone_run(l, MS_(900));
    CHECK_INT(l->writable, 0);
    lone_run(l, SEC_(1));
    CHECK_INT(l->done, 12);
    CHECK_INT(l->writable, 1); /* once, and then it is true */
    CHECK_INT(lone_group(l, 910001, 100, 1000, MANY, 0), 0);
    lone_run(l, SEC_(30));
    CHECK_INT(l->writable, 1);
    CHECK_INT(l->done, GROUPS + 1);
    lone_free(l);
}

TEST(gmp_a_group_hears_of_room_for_its_payload)
{
    struct lone *l = lone_new();
    for (int i = 0; i < 4; i++)
        CHECK_INT(lone_group(l, 1 + (uint64_t)i * 10, HUGE_BYTES, i < 2 ? 1000 : 9000, 2, 0), 0);
    CHECK_INT(lone_group(l, 1001, HUGE_BYTES, 1000, 2, 0), UDT_E_AGAIN);
    CHECK_INT(lone_group(l, 2001, 100, 1000, 2, 0), 0); /* a small one has room */
    lone_run(l, MS_(900));
    CHECK_INT(l->writable, 0);
    lone_run(l, SEC_(1));
    CHECK_INT(l->writable, 1);
    CHECK_INT(lone_group(l, 1001, HUGE_BYTES, 1000, 2, 0), 0);
    lone_run(l, SEC_(30));
    CHECK_INT(l->writable, 1);
    lone_free(l);
}

/* The same through a port: refused at once, WRITABLE from nobody once there is room, none without
 * anybody who was refused. */
TEST(gmp_a_port_tells_a_group_of_room)
{
    static sgmp_dest to[MANY];
    static const uint8_t body[10];
    tio *a = tio_open(4, UDT_PORT_MANUAL);
    sgmp_group_opts o = {.each.deadline_ms = 300};
    int refused = 0, writable = 0, done = 0;
    CHECK_INT(sgmp_open(a->ctx, a->port, false), 0);
    for (int i = 0; i < MANY; i++)
        to[i] = (sgmp_dest){tio_loopback(4, (uint16_t)(20000 + i)), 0};
    for (int i = 0; i <= GROUPS; i++)
        refused += sgmp_group(a->ctx, a->port, to, MANY, body, sizeof body, &o) == UDT_E_AGAIN;
    CHECK_INT(refused, 1);
    for (int64_t t0 = tio_now_us(); done < GROUPS;) {
        CHECK(tio_now_us() - t0 < 20000000);
        CHECK_INT(udt_port_run(a->ctx, a->port, 1000), 0);
        tio_pull(a, 0);
        for (int i = 0; i < a->n; i++) {
            writable += a->ev[i].kind == SGMP_EV_WRITABLE;
            done += a->ev[i].kind == SGMP_EV_GROUP_DONE;
        }
        a->n = 0;
    }
    CHECK_INT(writable, 1);
    CHECK(sgmp_group(a->ctx, a->port, to, MANY, body, sizeof body, &o) > 0);
    tio_free(a);
}
