/* Introductions by a third party (spec/gmp.md 5.3). */
#include "gmp_pair.h"

/* b mints for the address and instance that the third party names; a is told. */
static int introduce(struct pair *p, const udt_addr *holder, uint64_t instance)
{
    uint8_t token[SGMP_TOKEN_BYTES];
    udt_time now = sim_net_now(p->net);
    CHECK_INT(sgmp_node_mint_token(p->b.n, holder, sgmp_node_instance(p->a.n), KEY, token, now), 0);
    return sgmp_node_introduce(p->a.n, &p->to_b, instance, token, now);
}

static udt_time exchange_time(struct pair *p, uint64_t id)
{
    struct sgmp_ev ev;
    udt_time t0 = sim_net_now(p->net);
    CHECK_INT(sgmp_node_call(p->a.n, &p->to_b, 3, (const uint8_t *)"q", 1, NULL, id, t0), 0);
    sim_net_kick(p->net, p->a.id);
    CHECK(gwait(&p->b, SGMP_EV_REQUEST, &ev, t0 + SEC_(5)));
    CHECK_INT(sgmp_node_reply(p->b.n, ev.id, 0, NULL, 0, sim_net_now(p->net)), 0);
    sgmp_node_release(p->b.n, ev.buf);
    sim_net_kick(p->net, p->b.id);
    CHECK(gwait(&p->a, SGMP_EV_RESPONSE, &ev, t0 + SEC_(5)));
    CHECK_INT(ev.status, 0);
    return sim_net_now(p->net) - t0;
}

TEST(gmp_intro_saves_the_hello)
{
    struct pair p;
    sim_link l = {.delay_us = 10000};
    open_pair(&p, true, &l);
    CHECK_INT(introduce(&p, &p.a.addr, sgmp_node_instance(p.b.n)), 0);
    CHECK(exchange_time(&p, 1) < 21000); /* one round trip */
    CHECK_INT(stats(&p.a).hello_out, 0);
    CHECK_INT(stats(&p.a).introduced, 1);
    CHECK_INT(introduce(&p, &p.a.addr, sgmp_node_instance(p.b.n)), 0); /* known: changes nothing */
    CHECK(exchange_time(&p, 2) < 21000);
    CHECK_INT(stats(&p.a).introduced, 1);
    CHECK_INT(stats(&p.b).assoc, 1);
    close_pair(&p);
}

/* A token for another address, one that expired, a nonsense one: HELLO, nothing is lost. */
TEST(gmp_intro_refused_token_leads_to_hello)
{
    for (int how = 0; how < 3; how++) {
        struct pair p;
        sim_link l = {.delay_us = 10000};
        open_pair(&p, true, &l);
        udt_addr elsewhere = gaddr(77, 7002);
        uint8_t token[SGMP_TOKEN_BYTES] = {1};
        if (how < 2)
            CHECK_INT(introduce(&p, how ? &p.a.addr : &elsewhere, sgmp_node_instance(p.b.n)), 0);
        else
            CHECK_INT(sgmp_node_introduce(p.a.n, &p.to_b, sgmp_node_instance(p.b.n), token, 0), 0);
        if (how == 1) { /* minted, told, and used only after its life */
            grun(p.net, SEC_(125));
            read_all(&p.a, NULL, NULL);
        }
        CHECK(exchange_time(&p, 1) < 75000); /* refusal, HELLO, request */
        CHECK_INT(stats(&p.a).hello_out, 1);
        CHECK_INT(stats(&p.b).messages_in, 1);
        close_pair(&p);
    }
}

/* The introduced instance is gone when the first message comes; the address answers as another. */
TEST(gmp_intro_of_an_instance_that_restarted)
{
    struct pair p;
    sim_link l = {.delay_us = 10000};
    open_pair(&p, true, &l);
    CHECK_INT(introduce(&p, &p.a.addr, sgmp_node_instance(p.b.n)), 0);
    gnode_stop(&p.b);
    gnode_start(&p.b);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(p.b.n, &k, sim_net_now(p.net)), 0);
    int outcomes = 0, status = 1;
    post(&p.a, &p.to_b, 1, SGMP_REPEATABLE, 5000, 0);
    grun(p.net, SEC_(3));
    CHECK_INT(read_all(&p.b, NULL, NULL), 1);
    read_all(&p.a, &outcomes, &status);
    CHECK(outcomes == 1 && status == 0);
    /* A stale introduction of the former instance does no harm to a live peer. */
    uint8_t token[SGMP_TOKEN_BYTES] = {1};
    CHECK_INT(sgmp_node_introduce(p.a.n, &p.to_b, 0x1234, token, sim_net_now(p.net)), 0);
    CHECK(exchange_time(&p, 2) < 21000);
    grun(p.net, sim_net_now(p.net) + SEC_(5));
    CHECK(exchange_time(&p, 3) < 21000);
    close_pair(&p);
}

TEST(gmp_intro_bad_arguments)
{
    struct pair p;
    uint8_t token[SGMP_TOKEN_BYTES];
    open_pair(&p, true, NULL);
    sgmp_dest unknown = {.addr = p.b.addr, .key_id = 99};
    udt_addr none = {0};
    CHECK_INT(sgmp_node_mint_token(p.b.n, &p.a.addr, 5, 99, token, 0), UDT_E_NOKEY);
    CHECK_INT(sgmp_node_mint_token(p.b.n, &p.a.addr, 0, KEY, token, 0), UDT_E_INVAL);
    CHECK_INT(sgmp_node_mint_token(p.b.n, &none, 5, KEY, token, 0), UDT_E_INVAL);
    CHECK_INT(sgmp_node_mint_token(p.b.n, &p.a.addr, 5, 0, token, 0), UDT_E_INVAL);
    CHECK_INT(sgmp_node_introduce(p.a.n, &unknown, 5, token, 0), UDT_E_NOKEY);
    CHECK_INT(sgmp_node_introduce(p.a.n, &p.to_b, 0, token, 0), UDT_E_INVAL);
    CHECK_INT(sgmp_node_introduce(p.a.n, &p.to_b, sgmp_node_instance(p.a.n), token, 0),
              UDT_E_INVAL);
    close_pair(&p);
}
