/* Outputs that leave payload in the send buffer are the same datagrams (udt/mux_out.c). */
#include "test_udt_own.h"

enum { PKTS = 8 };

static uint8_t data[PKTS * 1456], plain[65536], gappy[65536];

typedef struct one {
    world w;
    pair p;
} one;

static void begin(one *x, enum own_kind kind)
{
    udt_opts o;
    world_init(&x->w, 5, NULL, NULL);
    udt_opts_init(&o);
    o.own_peer = true;
    o.tag = 1;
    x->p = world_connect(&x->w, PAIR_RDV_TAG, &o, 5000000);
    own_pair(&x->w, &x->p, kind, 0);
    world_run(&x->w, sim_net_now(x->w.net) + 1000000);
}

static void write_both(one *x, one *y, size_t bytes)
{
    CHECK_INT(udt_mux_send(x->w.m[0], x->p.s[0], data, bytes, sim_net_now(x->w.net)), bytes);
    CHECK_INT(udt_mux_send(y->w.m[0], y->p.s[0], data, bytes, sim_net_now(y->w.net)), bytes);
}

/* What both send is the same; returns how many gaps there were. */
static uint32_t same_output(one *x, one *y, uint32_t cap)
{
    udt_gap gap[64];
    udt_gaps g = {.gap = gap, .cap = cap};
    udt_addr to;
    size_t seg = 0, seg2 = 0, n, n2, all = 0;
    do {
        uint32_t i = g.n;
        memset(gappy, 0xEE, sizeof gappy);
        n = udt_mux_output(x->w.m[0], plain, sizeof plain, 64, &to, &seg, sim_net_now(x->w.net));
        n2 = udt_mux_output_gaps(y->w.m[0], gappy, sizeof gappy, 64, &g, &to, &seg2,
                                 sim_net_now(y->w.net));
        CHECK_INT(n, n2);
        CHECK_INT(seg, seg2);
        CHECK(g.n <= cap);
        for (uint8_t *last = gappy; i < g.n; i++) {
            CHECK(gap[i].at >= last && gap[i].at + gap[i].len <= gappy + n);
            CHECK_INT(gap[i].at[0], 0xEE);
            memcpy(gap[i].at, gap[i].from, gap[i].len);
            last = gap[i].at + gap[i].len;
        }
        CHECK_MEM(plain, gappy, n);
        all += n;
    } while (n > 0);
    CHECK(all > 0);
    return g.n;
}

static void gaps_of(enum own_kind kind, size_t bytes, uint32_t cap, uint32_t want)
{
    one x, y;
    begin(&x, kind);
    begin(&y, kind);
    write_both(&x, &y, bytes);
    CHECK_INT(same_output(&x, &y, cap), want);
    world_fini(&x.w);
    world_fini(&y.w);
}

TEST(udt_gaps_hold_the_same_datagrams)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i % 201);
    for (int kind = OWN_PLAIN; kind <= OWN_CONTROL; kind++) {
        gaps_of((enum own_kind)kind, 8 * 1456, 64, 8);
        gaps_of((enum own_kind)kind, 8 * 1456, 3, 3);        /* the rest is copied, */
        gaps_of((enum own_kind)kind, 2 * 1456 + 200, 64, 2); /* and so is what is small */
    }
    gaps_of(OWN_SEALED, 8 * 1440, 64, 0); /* encryption is the copy */
}
