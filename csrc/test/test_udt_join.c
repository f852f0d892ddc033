/* Small batches of several connections leave as one message (udt/mux_out.c). */
#include "test_udt_own.h"

#include "base/addr.h"
#include "base/bytes.h"

enum { PAIRS = 8, PER = 3, FULL = 1472 };

static uint8_t data[1 << 16], out[65536];

typedef struct join_world {
    world w;
    pair p[PAIRS];
} join_world;

static void begin(join_world *j, enum own_kind kind)
{
    udt_opts o;
    world_init(&j->w, 5, NULL, NULL);
    udt_opts_init(&o);
    o.own_peer = true;
    for (uint32_t i = 0; i < PAIRS; i++) {
        o.tag = 1 + i;
        j->p[i] = world_connect(&j->w, PAIR_RDV_TAG, &o, 5000000);
        own_pair(&j->w, &j->p[i], kind, 0);
    }
    world_run(&j->w, sim_net_now(j->w.net) + 1000000);
}

static void queue(join_world *j, int i, size_t bytes)
{
    CHECK_INT(udt_mux_send(j->w.m[0], j->p[i].s[0], data, bytes, sim_net_now(j->w.net)),
              (ssize_t)bytes);
}

/* Connections whose datagrams are in a message of `n` bytes. */
static int connections(size_t n, size_t seg)
{
    uint32_t seen[64];
    int k = 0;
    for (size_t at = 0; at < n; at += seg) {
        uint32_t id = be32_get(out + at + 12);
        bool known = false;
        for (int i = 0; i < k; i++)
            known |= seen[i] == id;
        if (!known)
            seen[k++] = id;
    }
    return k;
}

/* The message goes to the other end as datagrams of their own. */
static void carry(join_world *j, int from, size_t n, size_t seg)
{
    udt_time now = sim_net_now(j->w.net);
    for (size_t at = 0; at < n; at += seg)
        udt_mux_input(j->w.m[!from], &j->w.addr[from], out + at, n - at < seg ? n - at : seg, now);
}

TEST(udt_join_data_and_acknowledgements_of_many_connections)
{
    for (int kind = OWN_PLAIN; kind <= OWN_SEALED; kind++) {
        join_world j;
        udt_addr to;
        size_t seg = 0, pay = kind == OWN_SEALED ? 1440 : 1456;
        begin(&j, (enum own_kind)kind);
        udt_time now = sim_net_now(j.w.net);
        for (int i = 0; i < PAIRS; i++)
            queue(&j, i, PER * pay);
        size_t n = udt_mux_output(j.w.m[0], out, sizeof out, 64, &to, &seg, now);
        CHECK_INT(seg, FULL);
        CHECK_INT(n, PAIRS * PER * FULL);
        CHECK(addr_eq(&to, &j.w.addr[1]));
        CHECK_INT(connections(n, seg), PAIRS);
        carry(&j, 0, n, seg);
        CHECK_INT(udt_mux_output(j.w.m[0], out, sizeof out, 64, &to, &seg, now), 0);
        udt_mux_burst_end(j.w.m[1], now);
        n = udt_mux_output(j.w.m[1], out, sizeof out, 64, &to, &seg, now);
        CHECK_INT(seg, kind == OWN_PLAIN ? 44 : 60);
        CHECK_INT(n, PAIRS * seg);
        CHECK_INT(connections(n, seg), PAIRS);
        carry(&j, 1, n, seg);
        for (int i = 0; i < PAIRS; i++) {
            CHECK_INT(udt_mux_unacked(j.w.m[0], j.p[i].s[0]), 0);
            CHECK_INT(udt_mux_recv(j.w.m[1], j.p[i].s[1], out, sizeof out, now),
                      (ssize_t)(PER * pay));
        }
        world_fini(&j.w);
    }
}

TEST(udt_join_leaves_what_is_of_another_size_or_goes_elsewhere)
{
    join_world j;
    udt_addr to, far = test_addr(9, 9);
    size_t seg = 0;
    begin(&j, OWN_PLAIN);
    udt_mux *m = j.w.m[0];
    udt_time now = sim_net_now(j.w.net);
    queue(&j, 0, PER * 1456);
    queue(&j, 1, 1456 + 100); /* its end is short, and so waits for its next turn */
    queue(&j, 2, 1456);
    queue(&j, 3, 100);
    queue(&j, 4, 1456);
    queue(&j, 5, 1456);
    udt__mux_find(m, j.p[5].s[0])->peer = far;
    CHECK_INT(udt_mux_output(m, out, sizeof out, 64, &to, &seg, now), 6 * FULL);
    CHECK_INT(connections(6 * FULL, seg), 4);
    CHECK_INT(udt_mux_output(m, out, sizeof out, 64, &to, &seg, now), 2 * 116);
    CHECK_INT(seg, 116);
    CHECK(addr_eq(&to, &j.w.addr[1]));
    CHECK_INT(udt_mux_output(m, out, sizeof out, 64, &to, &seg, now), FULL);
    CHECK(addr_eq(&to, &far));
    CHECK_INT(udt_mux_output(m, out, sizeof out, 64, &to, &seg, now), 0);
    now += 5000;
    udt_mux_tick(m, now);
    for (int i = 0; i < 5; i++)
        queue(&j, i, 1456);
    CHECK_INT(udt_mux_output(m, out, sizeof out, 3, &to, &seg, now), 3 * FULL);
    CHECK_INT(udt_mux_output(m, out, sizeof out, 1, &to, &seg, now), FULL);
    CHECK_INT(udt_mux_output(m, out, FULL + 10, 64, &to, &seg, now), FULL);
    world_fini(&j.w);
}
