/* Streams of over-size messages are kept and shared (spec/gmp.md 8.3 to 8.6). */
#include "gmp_pipe.h"

#include <stdlib.h>

enum { HOSTS = 70 };

struct field {
    sim_net *net;
    struct gnode g[HOSTS + 1]; /* 0 sends */
    struct gpipes pipes;
    sgmp_dest to[HOSTS + 1];
    int n, got[HOSTS + 1];
    int ok, failed;
};
static uint8_t payload[400000];

static struct field *field_new(int hosts, bool auth)
{
    struct field *f = calloc(1, sizeof *f);
    sim_link l = {.delay_us = 1000};
    f->net = sim_net_new(test_seed);
    f->n = hosts;
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 29 + (i >> 8));
    for (int i = 0; i <= hosts; i++) {
        gnode_open(&f->g[i], f->net, (unsigned)i + 1, auth, test_seed);
        if (i == 0)
            continue;
        sim_net_link(f->net, f->g[0].id, f->g[i].id, &l);
        sim_net_link(f->net, f->g[i].id, f->g[0].id, &l);
        if (auth)
            gpair(&f->g[0], &f->g[i], 100 + (uint32_t)i, SGMP_ALG_AES256GCM);
        f->to[i] = gdest(&f->g[i], auth ? 100 + (uint32_t)i : 0);
    }
    f->pipes.nodes = f->g;
    f->pipes.n = hosts + 1;
    f->pipes.delay = 1000;
    f->pipes.Bps = 20000000;
    sim_rng_seed(&f->pipes.rng, test_seed);
    return f;
}

static void field_free(struct field *f)
{
    while (f->pipes.list)
        gpipe_kill(&f->pipes, f->pipes.list, true, true);
    for (int i = 0; i <= f->n; i++)
        gnode_stop(&f->g[i]);
    sim_net_free(f->net);
    free(f);
}

static void collect(struct field *f)
{
    struct sgmp_ev ev;
    for (int i = 0; i <= f->n; i++)
        while (sgmp_node_next_event(f->g[i].n, &ev)) {
            if (ev.kind == SGMP_EV_MESSAGE) {
                CHECK_MEM(ev.data, payload, ev.len);
                f->got[i]++;
            }
            if (ev.kind == SGMP_EV_OUTCOME || ev.kind == SGMP_EV_GROUP_MEMBER) {
                f->ok += ev.status == 0;
                f->failed += ev.status != 0;
            }
            sgmp_node_release(f->g[i].n, ev.buf);
        }
}

static void run_for(struct field *f, udt_time us)
{
    udt_time until = sim_net_now(f->net) + us, pipe;
    while (sim_net_now(f->net) < until) {
        while ((pipe = gpipes_run(&f->pipes)) <= sim_net_now(f->net))
            ;
        sim_net_step(f->net, pipe < until ? pipe : until);
        collect(f);
    }
}

static uint64_t next_id;
static void put(struct field *f, int host, size_t len)
{
    CHECK_INT(
        sgmp_node_send(f->g[0].n, &f->to[host], payload, len, NULL, ++next_id, sim_net_now(f->net)),
        0);
    sim_net_kick(f->net, f->g[0].id);
}

static int open_pipes(const struct field *f)
{
    int n = 0;
    for (struct gpipe *p = f->pipes.list; p; p = p->next)
        n++;
    return n;
}

static int64_t stream_count(const struct field *f)
{
    sgmp_stats st;
    sgmp_node_stats(f->g[0].n, &st);
    return st.bulk_streams;
}

TEST(gmp_stream_serves_many_messages_and_ends_when_idle)
{
    for (int auth = 0; auth < 2; auth++) {
        struct field *f = field_new(1, auth);
        for (int i = 0; i < 30; i++)
            put(f, 1, 2000 + (size_t)i * 9000);
        run_for(f, SEC_(5));
        CHECK(f->got[1] == 30 && f->ok == 30);
        CHECK_INT(f->pipes.streams, 1);
        run_for(f, SEC_(30)); /* quiet, then used again: still the same */
        put(f, 1, 100000);
        run_for(f, SEC_(50));
        CHECK(f->got[1] == 31 && open_pipes(f) == 1);
        run_for(f, SEC_(15)); /* a minute after the last use */
        CHECK_INT(open_pipes(f), 0);
        CHECK_INT(f->pipes.streams, 1);
        put(f, 1, 5000);
        run_for(f, SEC_(2));
        CHECK(f->got[1] == 32 && f->ok == 32 && f->pipes.streams == 2);
        field_free(f);
    }
}

TEST(gmp_stream_breaks_and_everything_arrives_once)
{
    struct field *f = field_new(1, true);
    f->pipes.break_ppm = 1000000;
    for (int i = 0; i < 40; i++)
        put(f, 1, 1500 + (size_t)i * 2500);
    run_for(f, SEC_(60));
    CHECK(f->got[1] == 40 && f->ok == 40);
    CHECK(f->pipes.streams > 1);
    field_free(f);
}

/* At most 64 streams: the longest idle one gives way; when none is idle the message waits. */
TEST(gmp_stream_limit_is_kept_by_age)
{
    struct field *f = field_new(HOSTS, true);
    for (int i = 1; i <= HOSTS; i++)
        put(f, i, 300000);
    for (int t = 0; t < 200 && f->ok < HOSTS; t++) {
        run_for(f, MS_(20));
        CHECK(open_pipes(f) <= 64);
    }
    CHECK_INT(f->ok, HOSTS);
    for (int i = 1; i <= HOSTS; i++)
        CHECK_INT(f->got[i], 1);
    CHECK_INT(open_pipes(f), 64);
    int64_t before;
    int reopened = 0;
    for (int i = 1; i <= HOSTS; i++) { /* six of them at least gave way */
        before = stream_count(f);
        put(f, i, 2000);
        run_for(f, MS_(500));
        reopened += stream_count(f) > before;
        CHECK(open_pipes(f) <= 64);
    }
    CHECK(reopened >= HOSTS - 64);
    CHECK_INT(f->ok, 2 * HOSTS);
    field_free(f);
}

/* A new key is used for new messages, over a new stream, when the old one has delivered. */
TEST(gmp_stream_follows_key_rotation)
{
    struct field *f = field_new(1, true);
    put(f, 1, 50000);
    run_for(f, SEC_(1));
    sgmp_key ka = gkey(500, SGMP_ALG_AES256GCM, "node-1"),
             kb = gkey(500, SGMP_ALG_AES256GCM, "node-0");
    CHECK_INT(sgmp_node_key_add(f->g[0].n, &ka, sim_net_now(f->net)), 0);
    CHECK_INT(sgmp_node_key_add(f->g[1].n, &kb, sim_net_now(f->net)), 0);
    f->to[1].key_id = 500;
    put(f, 1, 50000);
    put(f, 1, 60000);
    run_for(f, SEC_(3));
    CHECK(f->got[1] == 3 && f->ok == 3);
    CHECK_INT(f->pipes.streams, 2);
    field_free(f);
}

/* conn_no rises; a preface with one that was seen is refused, though its tag is right. */
TEST(gmp_stream_preface_cannot_be_replayed)
{
    struct field *f = field_new(1, true);
    uint8_t first[300];
    put(f, 1, 50000);
    run_for(f, MS_(2));
    struct sgmp_bulk_order o = {0};
    while (!sgmp_node_next_bulk(f->g[0].n, &o)) {
        CHECK(sim_net_now(f->net) < SEC_(1));
        sim_net_step(f->net, sim_net_now(f->net) + 1000);
    }
    udt_time now = sim_net_now(f->net);
    sgmp_node_bulk_opened(f->g[0].n, o.id, now);
    CHECK_INT(sgmp_node_bulk_read(f->g[0].n, o.id, first, sizeof first, now), sizeof first);
    int64_t in = sgmp_node_bulk_accept(f->g[1].n, &f->g[0].addr, now);
    CHECK_INT(sgmp_node_bulk_write(f->g[1].n, in, first, sizeof first, now), 0);
    int64_t again = sgmp_node_bulk_accept(f->g[1].n, &f->g[0].addr, now);
    CHECK(sgmp_node_bulk_write(f->g[1].n, again, first, sizeof first, now) < 0);
    field_free(f);
}

/* A group's over-size payload exists once at the sender. */
TEST(gmp_stream_group_shares_its_payload)
{
    struct field *f = field_new(20, true);
    sgmp_group_opts o = {.wait = SGMP_WAIT_ALL};
    sgmp_stats st;
    CHECK_INT(sgmp_node_group(f->g[0].n, &f->to[1], 20, payload, sizeof payload, &o, 90000,
                              sim_net_now(f->net)),
              0);
    sim_net_kick(f->net, 0);
    sgmp_node_stats(f->g[0].n, &st);
    CHECK_INT(st.bulk_bytes, sizeof payload);
    run_for(f, SEC_(10));
    CHECK_INT(f->ok, 20);
    for (int i = 1; i <= 20; i++)
        CHECK_INT(f->got[i], 1);
    sgmp_node_stats(f->g[0].n, &st);
    CHECK_INT(st.bulk_bytes, 0);
    CHECK_INT(st.groups, 0);
    field_free(f);
}

/* Rule 3 for over-size messages and calls: either side restarts after k milliseconds of descriptor,
 * stream, BULK_DONE, request and answer. Each ends once, and what ended well was delivered once. */
TEST(gmp_stream_restart_at_every_step)
{
    for (int who = 0; who < 2; who++)
        for (int k = 0; k < 40; k++) {
            struct field *f = field_new(1, true);
            int seen[5] = {0}, ended[5] = {0}, status[5];
            f->pipes.Bps = 5000000;
            udt_time now = 0;
            sgmp_opts o = {.deadline_ms = 20000};
            for (uint64_t id = 1; id <= 2; id++)
                CHECK_INT(sgmp_node_send(f->g[0].n, &f->to[1], payload, 20000 * id, &o, id, now),
                          0);
            for (uint64_t id = 3; id <= 4; id++)
                CHECK_INT(sgmp_node_call(f->g[0].n, &f->to[1], (uint32_t)id, payload,
                                         id == 3 ? 30000 : 100, &o, id, now),
                          0);
            sim_net_kick(f->net, 0);
            bool restarted = false;
            while (sim_net_now(f->net) < SEC_(25)) {
                udt_time pipe, at = k * MS_(1), until = sim_net_now(f->net) + MS_(50);
                struct sgmp_ev ev;
                until = !restarted && at < until ? at : until;
                while ((pipe = gpipes_run(&f->pipes)) <= sim_net_now(f->net))
                    ;
                sim_net_step(f->net, pipe < until ? pipe : until);
                while (sgmp_node_next_event(f->g[1].n, &ev)) {
                    if (ev.kind == SGMP_EV_MESSAGE)
                        seen[ev.len == 20000 ? 1 : 2]++;
                    if (ev.kind == SGMP_EV_REQUEST) {
                        seen[ev.method]++;
                        sgmp_node_reply(f->g[1].n, ev.id, 0, payload, ev.len, sim_net_now(f->net));
                        sim_net_kick(f->net, f->g[1].id);
                    }
                    sgmp_node_release(f->g[1].n, ev.buf);
                }
                while (sgmp_node_next_event(f->g[0].n, &ev)) {
                    if (ev.kind == SGMP_EV_OUTCOME || ev.kind == SGMP_EV_RESPONSE) {
                        ended[ev.id]++;
                        status[ev.id] = ev.status;
                    }
                    sgmp_node_release(f->g[0].n, ev.buf);
                }
                if (!restarted && sim_net_now(f->net) >= at) {
                    restarted = true;
                    gnode_stop(&f->g[who]);
                    gnode_start(&f->g[who]);
                    sgmp_key key = gkey(101, SGMP_ALG_AES256GCM, who ? "node-0" : "node-1");
                    CHECK_INT(sgmp_node_key_add(f->g[who].n, &key, sim_net_now(f->net)), 0);
                }
            }
            for (int id = 1; id <= 4; id++) {
                CHECK(seen[id] <= 1);
                if (!who) /* its outcomes went with it */
                    continue;
                CHECK_INT(ended[id], 1);
                CHECK(status[id] != 0 || seen[id] == 1);
                CHECK(status[id] != UDT_E_NOTSENT || id > 2 || seen[id] == 0);
            }
            field_free(f);
        }
}

/* What may be repeated goes to the successor of a peer that restarts, also when its announcement
 * was acknowledged and nothing else is under way. */
TEST(gmp_stream_message_that_may_be_repeated_outlives_a_restart)
{
    for (int k = 0; k < 40; k++) {
        struct field *f = field_new(1, true);
        sgmp_opts o = {.deadline_ms = 20000, .flags = SGMP_REPEATABLE};
        sgmp_key key = gkey(101, SGMP_ALG_AES256GCM, "node-0");
        f->pipes.Bps = 1000000;
        CHECK_INT(sgmp_node_send(f->g[0].n, &f->to[1], payload, 20000, &o, 1, 0), 0);
        sim_net_kick(f->net, f->g[0].id);
        run_for(f, MS_(k));
        gnode_stop(&f->g[1]);
        gnode_start(&f->g[1]);
        CHECK_INT(sgmp_node_key_add(f->g[1].n, &key, sim_net_now(f->net)), 0);
        run_for(f, SEC_(15));
        if (f->ok != 1 || f->failed)
            test_fail(__FILE__, __LINE__, "restart after %d ms: %d delivered, %d failed", k, f->ok,
                      f->failed);
        field_free(f);
    }
}
