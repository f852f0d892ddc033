/* What somebody can do who has proved nothing but an address, or who sends in another's name. */
#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_own.h"
#include "test_udt_side.h"
#include "udt/handshake.h"

#define NEAR 1000

/* He has a connection of his own and knows its id. With it, and in the name of another client, he
 * tries the ids around it: that client's connection stands. */
TEST(udt_strangers_do_not_know_the_ids_of_others)
{
    for (int own = 0; own < 2; own++) {
        world w;
        udt_opts o;
        uint8_t bye[UDT_CTRL_MAX], got[8];
        world_init(&w, test_seed, NULL, NULL);
        udt_opts_init(&o);
        o.offer = own;
        int32_t listener = udt_mux_listen(w.m[1], &o, 16), sock[8];
        CHECK(listener > 0);
        for (int i = 0; i < 8; i++) {
            int32_t c = udt_mux_connect(w.m[0], &w.addr[1], &o, sim_net_now(w.net));
            CHECK(c > 0);
            sim_net_kick(w.net, 0);
            sock[i] = world_wait(&w, 1, UDT_EV_ACCEPTED, 0, sim_net_now(w.net) + 5000000).sock;
            world_wait(&w, 0, UDT_EV_CONNECTED, c, sim_net_now(w.net) + 5000000);
        }
        for (int32_t id = sock[0] - NEAR; id <= sock[0] + NEAR; id++) {
            if (id == sock[0] || id == listener || id <= 0)
                continue;
            size_t n = udt_pkt_put_ctrl(bye, UDT_CTRL_SHUTDOWN, 0, id, NULL, 0);
            udt_mux_input(w.m[1], &w.addr[0], bye, n, sim_net_now(w.net));
        }
        for (int i = 1; i < 8; i++) {
            ssize_t rc = udt_mux_recv(w.m[1], sock[i], got, sizeof got, sim_net_now(w.net));
            if (rc != UDT_E_AGAIN)
                test_fail(__FILE__, __LINE__, "own %d: connection %d of 8 was shut: %zd", own, i,
                          rc);
        }
        world_fini(&w);
    }
}

/* A report of losses that names everything on its way again and again costs as much as one that
 * does so once: it is not believed. */
TEST(udt_strangers_reports_cost_no_more_than_they_say)
{
    enum { REPORTS = 1000, ENTRIES = 180 };
    static uint8_t data[8 << 20], nak[UDT_HDR_BYTES + 8 * ENTRIES];
    world w;
    udt_opts o;
    world_init(&w, test_seed, NULL, NULL);
    udt_opts_init(&o);
    o.snd_buf_bytes = sizeof data;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 5000000);
    udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
    c->cc.cwnd_pkts = c->edge = c->room_pkts = 8000;
    udt_time now = sim_net_now(w.net);
    CHECK(udt_mux_send(w.m[1], p.s[1], data, sizeof data, now) > 7 << 20);
    static uint8_t out[65536];
    for (int i = 0; i < 100000 && c->next < 4000; i++, now += 100) {
        udt_addr to;
        size_t seg;
        udt_mux_tick(w.m[1], now);
        c->cc.cwnd_pkts = 8000;
        (void)udt_mux_output(w.m[1], out, sizeof out, 64, &to, &seg, now);
    }
    CHECK(c->next >= 4000);
    uint32_t words[2 * ENTRIES];
    for (int i = 0; i < ENTRIES; i++) {
        words[2 * i] = seq_add(c->isn, c->snd.head) | 0x80000000u;
        words[2 * i + 1] = seq_add(c->isn, c->next - 1);
    }
    int64_t bad = w.m[1]->n.dropped_bad, again = c->st.pkts_lost, ns = cpu_ns();
    /* one that says it once is believed, and all goes again */
    size_t n = udt_pkt_put_ctrl(nak, UDT_CTRL_NAK, 0, p.s[1], words, 2);
    udt_mux_input(w.m[1], &w.addr[0], nak, n, now);
    CHECK(c->st.pkts_lost - again >= 3000);
    CHECK_INT(w.m[1]->n.dropped_bad, bad);
    for (int i = 0; i < 100000 && udt_sndloss_first(&c->loss) != LOSSMAP_NONE; i++, now += 100) {
        udt_addr to;
        size_t seg;
        (void)udt_mux_output(w.m[1], out, sizeof out, 64, &to, &seg, now);
    }
    n = udt_pkt_put_ctrl(nak, UDT_CTRL_NAK, 0, p.s[1], words, 2 * ENTRIES);
    again = c->st.pkts_lost;
    ns = cpu_ns();
    for (int i = 0; i < REPORTS; i++)
        udt_mux_input(w.m[1], &w.addr[0], nak, n, now);
    ns = cpu_ns() - ns;
    printf("%.1f us a report\n", (double)ns / 1e3 / REPORTS);
    CHECK_INT(w.m[1]->n.dropped_bad, bad + REPORTS);
    CHECK_INT(c->st.pkts_lost, again);
    world_fini(&w);
}

/* The sequence number with which a client of this id lands in the same place as the others, if
 * nothing but what he knows decides on that. */
static uint32_t chosen_isn(const udt_addr *from, int32_t id)
{
    return (0u - (addr_hash(from) ^ (uint32_t)id * 2654435761u)) & SEQ_MASK;
}

static void hand_over(world *w, int32_t id, uint32_t isn, int32_t req, uint32_t cookie)
{
    uint8_t pkt[UDT_CTRL_MAX];
    udt_hs h = {.version = UDT_HS_VERSION,
                .type = UDT_STREAM,
                .isn = isn,
                .mss = 1500,
                .window = 8192,
                .req = req,
                .id = id,
                .cookie = cookie};
    udt_hs_encode(pkt, &h, 0);
    udt_mux_input(w->m[1], &w->addr[0], pkt, sizeof pkt, sim_net_now(w->net));
}

TEST(udt_strangers_choose_no_chain_of_connections)
{
    enum { CLIENTS = 1024 };
    world w;
    udt_opts o;
    uint8_t out[2048];
    world_init(&w, test_seed, NULL, NULL);
    udt_opts_init(&o);
    CHECK(udt_mux_listen(w.m[1], &o, CLIENTS) > 0);
    for (int32_t id = 1; id <= CLIENTS; id++) {
        uint32_t isn = chosen_isn(&w.addr[0], id), cookie = 0;
        udt_addr to;
        size_t seg, n;
        hand_over(&w, id, isn, UDT_HS_REQUEST, 0);
        while ((n = udt_mux_output(w.m[1], out, sizeof out, 1, &to, &seg, 0)) > 0)
            if (be32_get(out + 12) == (uint32_t)id)
                cookie = be32_get(out + 44);
        hand_over(&w, id, isn, UDT_HS_RESPONSE, cookie);
        while (udt_mux_output(w.m[1], out, sizeof out, 1, &to, &seg, 0) > 0)
            ;
    }
    CHECK_INT(w.m[1]->peers.count, CLIENTS);
    uint32_t longest = 0;
    for (uint32_t i = 0; i < w.m[1]->peers.size; i++) {
        uint32_t n = 0;
        for (table_node *t = w.m[1]->peers.bucket[i]; t; t = t->next)
            n++;
        longest = n > longest ? n : longest;
    }
    printf("longest chain %u of %d\n", longest, CLIENTS);
    CHECK(longest <= 16);
    world_fini(&w);
}

/* Requests to give up the whole window, one window after the other: as many are heeded as a sender
 * can mean, and messages go on arriving. */
TEST(udt_strangers_requests_to_drop_cost_little)
{
    enum { REQUESTS = 1000 };
    for (int kind = 0; kind < 2; kind++) {
        world w;
        udt_opts o;
        uint8_t pkt[UDT_CTRL_MAX], got[100];
        world_init(&w, test_seed, NULL, NULL);
        udt_opts_init(&o);
        o.type = UDT_DGRAM;
        o.own_peer = kind;
        pair p = world_connect(&w, kind ? PAIR_RDV_TAG : PAIR_CLIENT, &o, 5000000);
        if (kind)
            own_pair(&w, &p, OWN_PLAIN, 0);
        udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
        udt_time now = sim_net_now(w.net);
        int64_t ns = cpu_ns(), slots = c->rcv.slots;
        for (int i = 0; i < REQUESTS; i++) {
            const uint32_t words[2] = {seq_add(c->peer_isn, c->rcv.base),
                                       seq_add(c->peer_isn, c->rcv.base + c->rcv.slots - 1)};
            size_t n = udt_pkt_put_ctrl(pkt, UDT_CTRL_DROP, 1, p.s[1], words, 2);
            be32_put(pkt + 8, (uint32_t)i + 10);
            udt_mux_input(w.m[1], &w.addr[0], pkt, n, now + i);
        }
        ns = cpu_ns() - ns;
        printf("%" PRId64 " slots, %.1f us a request\n", slots, (double)ns / 1e3 / REQUESTS);
        if (c->rcv.base > slots + 1)
            test_fail(__FILE__, __LINE__, "kind %d: %" PRId64 " windows were given up in 1 ms",
                      kind, c->rcv.base / slots);
        /* the connection lives */
        udt_conn *s = udt__mux_find(w.m[0], p.s[0]);
        s->isn = seq_add(s->isn, c->largest + 1); /* as if it had sent what it gave up */
        now += 20000;
        world_run(&w, now);
        CHECK_INT(udt_mux_sendmsg(w.m[0], p.s[0], (const uint8_t *)"hello", 5, -1, true, now), 0);
        sim_net_kick(w.net, 0);
        world_run(&w, now + 1000000);
        CHECK_INT(udt_mux_recvmsg(w.m[1], p.s[1], got, sizeof got, now), 5);
        world_fini(&w);
    }
}
