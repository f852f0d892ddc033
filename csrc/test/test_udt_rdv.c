/* Rendezvous by tag: whoever has seen the tag speaks in a victim's name. */
#include <string.h>

#include "base/addr.h"
#include "test_udt_util.h"
#include "udt/handshake.h"
#include "udt/packet.h"

enum { TAG = 0x5151 };

struct seen {
    udt_addr victim;
    int64_t bytes, in;
};

static void look(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len, udt_time now)
{
    struct seen *s = arg;
    (void)a;
    (void)pkt;
    (void)now;
    s->bytes += addr_eq(to, &s->victim) ? (int64_t)len : 0;
}

static int32_t wait_for_tag(world *w, int e, const udt_addr *to)
{
    udt_opts o;
    udt_opts_init(&o);
    o.own_peer = true;
    o.tag = TAG;
    int32_t s = udt_mux_rendezvous(w->m[e], to, &o, sim_net_now(w->net));
    CHECK(s > 0);
    sim_net_kick(w->net, e);
    return s;
}

static void forge(world *w, struct seen *s, int32_t req)
{
    uint8_t d[UDT_HDR_BYTES + UDT_HS_BYTES];
    udt_hs h = {.version = UDT_HS_VERSION,
                .type = UDT_STREAM,
                .isn = 5,
                .mss = 1500,
                .window = 8192,
                .req = req,
                .id = 77,
                .cookie = TAG};
    udt_hs_encode(d, &h, 0);
    sim_net_inject(w->net, &s->victim, 1, d, sizeof d, sim_net_now(w->net));
    s->in += (int64_t)sizeof d;
}

TEST(udt_rdv_a_victim_gets_no_more_than_came_in_its_name)
{
    static const sim_link l = {.delay_us = 5000};
    static uint8_t buf[100000];
    for (int answers = 0; answers < 2; answers++) {
        world w;
        struct udt_ev ev;
        struct seen s = {.victim = test_addr(99, 999)};
        world_init(&w, test_seed, &l, &l);
        sim_net_tap(w.net, look, &s);
        int32_t sock = wait_for_tag(&w, 1, NULL);
        forge(&w, &s, UDT_HS_RENDEZVOUS);
        world_run(&w, 100000);
        if (answers) {
            forge(&w, &s, UDT_HS_RESPONSE);
            world_run(&w, 200000);
            (void)udt_mux_send(w.m[1], sock, buf, sizeof buf, sim_net_now(w.net));
            sim_net_kick(w.net, 1);
        }
        world_run(&w, 40000000);
        printf("# %d bytes to the victim, %d in its name\n", (int)s.bytes, (int)s.in);
        CHECK(s.bytes <= s.in);
        CHECK(world_take(&w, 1, UDT_EV_FAILED, sock, &ev));
        CHECK_INT(ev.err, UDT_E_TIMEOUT);
        world_fini(&w);
    }
}

/* Nor does it keep the peer out. */
TEST(udt_rdv_the_peer_is_met_after_a_forger)
{
    static const sim_link l = {.delay_us = 5000};
    for (int named = 0; named < 2; named++) {
        world w;
        struct seen s = {.victim = test_addr(99, 999)};
        world_init(&w, test_seed, &l, &l);
        pair p;
        p.s[1] = wait_for_tag(&w, 1, named ? &w.addr[0] : NULL);
        forge(&w, &s, UDT_HS_RENDEZVOUS);
        world_run(&w, 100000);
        p.s[0] = wait_for_tag(&w, 0, &w.addr[1]);
        world_wait(&w, 0, UDT_EV_CONNECTED, p.s[0], 5000000);
        world_wait(&w, 1, UDT_EV_CONNECTED, p.s[1], 5000000);
        flow f = {.from = 1, .seed = 3, .size = 50000};
        CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 10000000));
        world_fini(&w);
    }
}
