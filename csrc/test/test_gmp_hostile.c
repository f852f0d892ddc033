/* A peer that speaks with valid checks but sends nonsense: genuine datagrams of a session with
 * random changes, renumbered and checked anew. Nothing may crash, grow or be delivered twice. */
#include "base/crc32c.h"
#include "gmp_world.h"
#include "sgmp/packet.h"

enum { KEEP = 400 };
struct tape {
    int n;
    uint16_t len[KEEP];
    uint8_t data[KEEP][PKT_LIMIT];
};

static void keep(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len, udt_time now)
{
    struct tape *t = arg;
    (void)to;
    (void)now;
    if (a != 0 || t->n == KEEP)
        return;
    t->len[t->n] = (uint16_t)len;
    memcpy(t->data[t->n++], pkt, len);
}

static void chatter(struct gnode *a, struct gnode *b, const sgmp_dest *to, uint64_t *id)
{
    static uint8_t buf[3000];
    struct sgmp_ev ev;
    for (int i = 0; i < 3; i++) {
        sgmp_opts o = {.flags = i == 2 ? SGMP_CONTROL : 0, .deadline_ms = 5000};
        size_t len = i == 0 ? 1090 : i == 1 ? sizeof buf : 10;
        sgmp_node_send(a->n, to, buf, len, &o, ++*id, sim_net_now(a->net));
        o.flags = 0;
        sgmp_node_call(a->n, to, 4, buf, 100, &o, ++*id, sim_net_now(a->net));
    }
    sim_net_kick(a->net, a->id);
    for (int i = 0; i < 2; i++)
        while (sgmp_node_next_event(i ? b->n : a->n, &ev)) {
            if (ev.kind == SGMP_EV_REQUEST)
                sgmp_node_reply(i ? b->n : a->n, ev.id, 0, ev.data, ev.len, sim_net_now(a->net));
            sgmp_node_release(i ? b->n : a->n, ev.buf);
        }
    struct sgmp_bulk_order o;
    while (sgmp_node_next_bulk(a->n, &o) || sgmp_node_next_bulk(b->n, &o))
        ;
}

static void mangle(sim_rng *r, uint8_t *d, size_t *len, uint64_t pkt)
{
    int changes = (int)sim_rng_below(r, 4);
    for (int i = 0; i < changes; i++) {
        size_t at = sim_rng_below(r, 3) ? PKT_HEADER + sim_rng_below(r, *len - PKT_HEADER + 1)
                                        : 1 + sim_rng_below(r, 34);
        if (at >= 4 && at < 24)
            at = sim_rng_below(r, 8) ? PKT_HEADER : 3; /* instances and key stay */
        if (at < *len)
            d[at] = sim_rng_below(r, 2) ? (uint8_t)sim_rng_u64(r)
                                        : (uint8_t)(d[at] + sim_rng_below(r, 5) - 2);
    }
    size_t body = PKT_HEADER + (d[3] & PKT_F_TOKEN ? PKT_TOKEN : 0);
    if ((d[3] & PKT_F_ACKBLK) && body + 23 < *len)
        body += PKT_ACK + 8u * d[body + 22];
    if ((d[1] & 15) == PKT_T_DATA && body + PKT_DATA <= *len && sim_rng_below(r, 500)) {
        be64_put(d + body, 100 + pkt % 100000 + sim_rng_below(r, 40)); /* a new message */
        be16_put(d + body + 8, (uint16_t)sim_rng_below(r, 60));
        if (sim_rng_below(r, 8) == 0)
            d[body + 11] = (uint8_t)sim_rng_below(r, 4);
    }
    if (sim_rng_below(r, 10) == 0)
        *len = PKT_HEADER + sim_rng_below(r, *len - PKT_HEADER + 1);
    be64_put(d + 24, pkt);
    be16_put(d + 34, (uint16_t)(*len - PKT_HEADER));
    be32_put(d + 36, 0);
    be32_put(d + 36, udt_crc32c(0, d, *len));
}

TEST(gmp_hostile_peer_with_valid_checks)
{
    static struct tape tape;
    int rounds = 1000 * test_scale;
    sim_rng r;
    struct gnode a, b;
    sim_rng_seed(&r, test_seed);
    memset(&tape, 0, sizeof tape);
    sim_net *net = sim_net_new(test_seed);
    gnode_open(&a, net, 1, false, test_seed);
    gnode_open(&b, net, 2, false, test_seed);
    sim_link l = {.delay_us = 500};
    sim_net_link(net, 0, 1, &l);
    sim_net_link(net, 1, 0, &l);
    sim_net_tap(net, keep, &tape);
    sgmp_dest to_b = gdest(&b, 0), to_a = gdest(&a, 0);
    uint64_t id = 0, pkt = 0;
    for (int i = 0; i < 5; i++) {
        chatter(&a, &b, &to_b, &id);
        chatter(&b, &a, &to_a, &id);
        grun(net, sim_net_now(net) + MS_(20));
    }
    CHECK(tape.n > 20);
    int n = tape.n;
    pkt = 100000;
    for (int i = 0; i < rounds; i++) {
        uint8_t d[PKT_LIMIT];
        int k = (int)sim_rng_below(&r, (uint64_t)n);
        size_t len = tape.len[k];
        memcpy(d, tape.data[k], len);
        mangle(&r, d, &len, ++pkt);
        sgmp_node_input(b.n, &a.addr, d, len, sim_net_now(net));
        sim_net_kick(net, b.id);
        if (i % 50 == 0) {
            chatter(&b, &a, &to_a, &id);
            grun(net, sim_net_now(net) + MS_(5));
        }
        if (i % 5000 == 4999 &&
            i + 5000 < rounds) { /* a fresh session, so that the state is not worn out */
            gnode_stop(&b);
            gnode_start(&b);
            tape.n = 0;
            for (int j = 0; j < 5; j++) {
                chatter(&a, &b, &to_b, &id);
                grun(net, sim_net_now(net) + MS_(400));
            }
            n = tape.n > 20 ? tape.n : n;
        }
    }
    sgmp_stats s;
    sgmp_node_stats(b.n, &s);
    printf("# hostile: in %" PRId64 " bad_format %" PRId64 " replays %" PRId64
           " duplicates %" PRId64 " messages %" PRId64 " reset_out %" PRId64 " assoc %" PRId64 "\n",
           s.dgrams_in, s.bad_format, s.replays, s.duplicates, s.messages_in, s.reset_out, s.assoc);
    CHECK(s.assoc <= 64);
    CHECK(s.snd_queue_bytes <= 64 << 20 && s.rcv_queue_bytes <= 64 << 20);
    grun(net, sim_net_now(net) + SEC_(700)); /* all of it ends */
    struct sgmp_ev ev;
    while (sgmp_node_next_event(b.n, &ev))
        sgmp_node_release(b.n, ev.buf);
    sgmp_node_stats(b.n, &s);
    CHECK_INT(s.rcv_queue_bytes, 0);
    CHECK_INT(s.snd_queue_bytes, 0);
    gnode_stop(&a);
    gnode_stop(&b);
    sim_net_free(net);
}

TEST(gmp_hostile_random_datagrams)
{
    sim_rng r;
    struct gnode b;
    sim_net *net = sim_net_new(test_seed);
    sim_rng_seed(&r, test_seed);
    gnode_open(&b, net, 2, true, test_seed);
    sgmp_key k = gkey(7, SGMP_ALG_AES256GCM, "p");
    CHECK_INT(sgmp_node_key_add(b.n, &k, 0), 0);
    int64_t in = 0, out = 0;
    udt_addr from = gaddr(1, 1), to;
    for (int i = 0; i < 2000 * test_scale; i++) {
        uint8_t d[1500], buf[1500];
        size_t len = sim_rng_below(&r, i % 2 ? 200 : sizeof d), n;
        sim_rng_bytes(&r, d, len);
        if (len > 40 && i % 8) {
            d[0] = PKT_MAGIC;
            d[1] = (uint8_t)(0x10 | (d[1] & 7));
            d[2] = 0;
            d[3] &= 31;
            be32_put(d + 4, i % 3 ? 7 : d[7]);
            be64_put(d + 24, sim_rng_below(&r, 1000) + 1);
            be32_put(d + 36, 0);
            be16_put(d + 34, (uint16_t)(len - 40 - (len > 56 ? 16 : 0)));
            if (i % 5 == 0)
                be64_put(d + 16, sgmp_node_instance(b.n));
        }
        sgmp_node_input(b.n, &from, d, len, i);
        in += (int64_t)len;
        while ((n = sgmp_node_output(b.n, buf, sizeof buf, &to, i)))
            out += (int64_t)n;
    }
    sgmp_stats s;
    sgmp_node_stats(b.n, &s);
    CHECK_INT(s.assoc, 0);
    CHECK(s.bad_tag > 0 && s.bad_format > 0 && s.no_key > 0);
    CHECK(out <= in);
    gnode_stop(&b);
    sim_net_free(net);
}
