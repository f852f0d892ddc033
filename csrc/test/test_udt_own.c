/* Own mode between two engines: numbers, seals, EACKs, losses. */
#include "test_udt_own.h"

#include "base/bytes.h"

/* Both ends of an open pair begin own mode, as their opening would do it. */
void own_pair(world *w, const pair *p, enum own_kind kind, int epoch_shift)
{
    static const uint8_t key[2][AEAD_KEY_BYTES] = {{1, 2, 3}, {4, 5, 6}};
    for (int e = 0; e < 2; e++) {
        udt_conn *c = udt__mux_find(w->m[e], p->s[e]);
        own_cfg cfg = {.epoch_shift = epoch_shift};
        if (kind != OWN_PLAIN) {
            cfg.tx = key[e];
            cfg.rx = key[!e];
            cfg.features = OWN_F_SEALED | (kind == OWN_SEALED ? OWN_F_SEAL_DATA : 0);
        }
        CHECK(c);
        CHECK(udt__own_start(c, &cfg, sim_net_now(w->net)));
    }
}

static void options(udt_opts *o)
{
    udt_opts_init(o);
    o->own_peer = true;
    o->snd_buf_bytes = o->rcv_buf_bytes = 32 << 20;
}

static udt_stats stats(world *w, const pair *p, int e)
{
    udt_stats st;
    CHECK_INT(udt_mux_stats(w->m[e], p->s[e], &st), 0);
    return st;
}

static own_counters counters(world *w, const pair *p, int e)
{
    return udt__mux_find(w->m[e], p->s[e])->own.n;
}

TEST(udt_own_moves_bytes_in_every_kind)
{
    sim_link l = {.rate_bps = 100000000, .delay_us = 10000};
    for (int kind = OWN_PLAIN; kind <= OWN_SEALED; kind++) {
        world w;
        udt_opts o;
        world_init(&w, 11, &l, &l);
        options(&o);
        pair p = world_connect(&w, PAIR_RDV_TAG, &o, 5000000);
        own_pair(&w, &p, (enum own_kind)kind, 0);
        flow f[2] = {{.from = 0, .seed = 1, .size = 10000000},
                     {.from = 1, .seed = 2, .size = 3000000}};
        udt_time start = sim_net_now(w.net);
        CHECK(world_move(&w, &p, f, 2, start + 4000000));
        udt_stats st = stats(&w, &p, 0);
        CHECK_INT(st.naks_recv, 0);
        CHECK(st.acks_recv > 0);
        CHECK_INT(counters(&w, &p, 0).bad_tag, 0);
        CHECK_INT(counters(&w, &p, 1).bad_tag, 0);
        if (getenv("TEST_VERBOSE"))
            printf("kind %d: %.3f s, %" PRId64 " pkts, %" PRId64 " again, %" PRId64
                   " acks, rtt %" PRId64 "\n",
                   kind, (double)(sim_net_now(w.net) - start) * 1e-6, st.pkts_sent, st.pkts_retrans,
                   st.acks_recv, st.rtt_us);
        world_fini(&w);
    }
}
