/* Whoever can see and hold up genuine datagrams sends them on in a victim's name. Until the victim
 * answers, it gets no more bytes than came in its name, whatever the node has to say (spec/gmp.md
 * 5.1; section 12, rule 5). And a peer that did move is reached again, whatever it has forgotten.
 */
#include "base/addr.h"
#include "gmp_pair.h"

#include <stdlib.h>

struct attack {
    struct pair p;
    udt_addr victim;
    int64_t in; /* bytes in the victim's name */
};

static const sim_link open_link = {.delay_us = 1000}, cut = {.delay_us = 1000, .loss_ppm = 1000000};

static void links(struct attack *t, const sim_link *ab, const sim_link *ba)
{
    sim_net_link(t->p.net, t->p.a.id, t->p.b.id, ab);
    sim_net_link(t->p.net, t->p.b.id, t->p.a.id, ba);
}

static void run_for(struct attack *t, udt_time us)
{
    grun(t->p.net, sim_net_now(t->p.net) + us);
}

static void inject(struct attack *t, const void *data, size_t len)
{
    sim_net_inject(t->p.net, &t->victim, t->p.a.id, data, len, sim_net_now(t->p.net));
    t->in += (int64_t)len;
    run_for(t, MS_(1));
}

/* The last datagram that a node sent, of a type. */
static const struct rec *last_of(const struct attack *t, const struct gnode *g, int type)
{
    for (int i = t->p.nrec - 1; i >= 0; i--)
        if (t->p.rec[i].from == g->id && (t->p.rec[i].data[1] & 15) == type)
            return &t->p.rec[i];
    test_fail(__FILE__, __LINE__, "no datagram of type %d", type);
    return NULL;
}

/* a and b know each other; then nothing passes any more, both have something to say, and what b
 * said last reaches a in the victim's name. */
static void attack_open(struct attack *t)
{
    memset(t, 0, sizeof *t);
    t->victim = gaddr(9 << 8 | 9, 7002);
    open_pair(&t->p, true, &open_link);
    post(&t->p.a, &t->p.to_b, 1, 0, 0, 0);
    run_for(t, SEC_(1));
    read_all(&t->p.a, NULL, NULL);
    CHECK_INT(read_all(&t->p.b, NULL, NULL), 1);
    record(&t->p, 4000);
    links(t, &cut, &cut);
    for (uint64_t i = 2; i < 12; i++)
        post(&t->p.a, &t->p.to_b, i, SGMP_REPEATABLE, 290000, 0);
    post(&t->p.b, &t->p.to_a, 20, 0, 0, 0);
    run_for(t, MS_(1));
    const struct rec *r = last_of(t, &t->p.b, PKT_T_DATA);
    inject(t, r->data, r->len);
    CHECK_INT(read_all(&t->p.a, NULL, NULL), 1); /* it is genuine */
}

static void attack_close(struct attack *t)
{
    printf("# %" PRId64 " bytes to the victim, %" PRId64 " in its name\n", t->p.to_victim, t->in);
    CHECK(t->p.to_victim <= t->in);
    close_pair(&t->p);
}

/* What anybody can say who has seen a datagram of a's. */
static void inject_reset(struct attack *t, const struct rec *seen, int reason)
{
    uint8_t d[PKT_HEADER + PKT_RESET] = {0};
    struct pkt_header h = {.type = PKT_T_RESET,
                           .src = sgmp_node_instance(t->p.b.n),
                           .dst = sgmp_node_instance(t->p.a.n),
                           .pkt = 1,
                           .body_len = PKT_RESET};
    struct pkt_reset_body b = {(uint16_t)reason, be64_get(seen->data + 24),
                               sgmp_node_instance(t->p.a.n)};
    bytes_wr w = bytes_writer(d + PKT_HEADER, PKT_RESET);
    pkt_header_put(d, &h);
    pkt_reset_put(&w, &b);
    be32_put(d + 36, udt_crc32c(0, d, sizeof d));
    inject(t, d, sizeof d);
}

TEST(gmp_reflect_resets_in_a_victims_name)
{
    for (int reason = 1; reason <= 5; reason++) {
        struct attack t;
        attack_open(&t);
        inject_reset(&t, last_of(&t, &t.p.a, PKT_T_DATA), reason);
        CHECK_INT(stats(&t.p.a).reset_in, 1);
        run_for(&t, SEC_(250));
        attack_close(&t);
    }
}

/* b restarted and said HELLO: that too comes in the victim's name. */
TEST(gmp_reflect_a_restart_in_a_victims_name)
{
    struct attack t;
    attack_open(&t);
    gnode_stop(&t.p.b);
    t.p.b.starts += 1000000;
    gnode_start(&t.p.b);
    gpair(&t.p.a, &t.p.b, KEY + 1, SGMP_ALG_AES256GCM);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(t.p.b.n, &k, sim_net_now(t.p.net)), 0);
    post(&t.p.b, &t.p.to_a, 21, 0, 0, 0);
    run_for(&t, MS_(1));
    const struct rec *r = last_of(&t, &t.p.b, PKT_T_HELLO);
    inject(&t, r->data, r->len);
    run_for(&t, SEC_(250));
    attack_close(&t);
}

/* An over-size message waits for its stream: none is opened to the victim. */
TEST(gmp_reflect_no_stream_to_a_victim)
{
    static const uint8_t body[50000];
    struct attack t;
    struct sgmp_bulk_order o;
    memset(&t, 0, sizeof t);
    t.victim = gaddr(9 << 8 | 9, 7002);
    open_pair(&t.p, true, &open_link);
    sgmp_opts opts = {.deadline_ms = 200000};
    CHECK_INT(sgmp_node_send(t.p.a.n, &t.p.to_b, body, sizeof body, &opts, 1, 0), 0);
    sim_net_kick(t.p.net, t.p.a.id);
    run_for(&t, SEC_(1));
    CHECK(sgmp_node_next_bulk(t.p.a.n, &o));
    CHECK(o.kind == SGMP_BULK_OPEN && addr_eq(&o.to, &t.p.b.addr));
    record(&t.p, 4000);
    links(&t, &cut, &cut);
    sgmp_node_bulk_failed(t.p.a.n, o.id, UDT_E_TIMEOUT, sim_net_now(t.p.net));
    post(&t.p.b, &t.p.to_a, 20, 0, 100000, 0);
    run_for(&t, MS_(1));
    const struct rec *r = last_of(&t, &t.p.b, PKT_T_DATA);
    inject(&t, r->data, r->len);
    run_for(&t, SEC_(20));
    while (sgmp_node_next_bulk(t.p.a.n, &o))
        if (o.kind == SGMP_BULK_OPEN)
            test_fail(__FILE__, __LINE__, "a stream is opened to the victim");
    links(&t, &open_link, &open_link); /* b is heard again */
    run_for(&t, SEC_(10));
    CHECK(sgmp_node_next_bulk(t.p.a.n, &o));
    CHECK(o.kind == SGMP_BULK_OPEN && addr_eq(&o.to, &t.p.b.addr));
    attack_close(&t);
}

/* A peer moved, was followed, and forgot everything before it had proved its new address. It only
 * answers. Who names that address reaches it. */
TEST(gmp_reflect_a_peer_that_moved_and_restarted_is_reached)
{
    struct attack t;
    struct sgmp_ev ev;
    memset(&t, 0, sizeof t);
    open_pair(&t.p, true, &open_link);
    post(&t.p.a, &t.p.to_b, 1, 0, 0, 0);
    run_for(&t, SEC_(1));
    read_all(&t.p.a, NULL, NULL);
    read_all(&t.p.b, NULL, NULL);
    move_node(&t.p, &t.p.b, 77, &open_link);
    t.p.to_b.addr = t.p.b.addr;
    sim_net_link(t.p.net, t.p.a.id, t.p.b.id, &cut);
    post(&t.p.b, &t.p.to_a, 2, 0, 0, 0);
    run_for(&t, MS_(5));
    CHECK_INT(read_all(&t.p.a, NULL, NULL), 1);
    gnode_stop(&t.p.b);
    t.p.b.starts += 1000000;
    gnode_start(&t.p.b);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(t.p.b.n, &k, sim_net_now(t.p.net)), 0);
    links(&t, &open_link, &open_link);
    int delivered = 0;
    for (uint64_t i = 0; i < 20 && !delivered; i++) { /* an application that tries again */
        post(&t.p.a, &t.p.to_b, 100 + i, 0, 5000, 0);
        while (gwait(&t.p.a, SGMP_EV_OUTCOME, &ev, sim_net_now(t.p.net) + SEC_(6)) &&
               ev.id < 100 + i)
            ;
        delivered = ev.status == 0;
        if (delivered)
            printf("# reached by try %d\n", (int)i + 1);
    }
    CHECK_INT(delivered, 1);
    CHECK(read_all(&t.p.b, NULL, NULL) >= 1);
    close_pair(&t.p);
}
