/* The simulated network: rates, order, faults, determinism. */
#include "sim/net.h"
#include "test.h"

#include <time.h>

/* An endpoint that sends `left` numbered packets of `size` bytes and records what comes. */
struct talker {
    udt_addr to;
    uint32_t size, left, next, batch;
    udt_time every, due; /* one batch each `every` us; every 0 = all at once */
    bool ready;          /* tick has released the next batch */
    uint32_t got, bursts, out_of_order, last;
    udt_time first_at, last_at;
    uint64_t hash; /* over (number, time): equal runs have equal hashes */
};

static void talker_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len,
                         udt_time now)
{
    struct talker *t = ep;
    uint32_t no;
    (void)from;
    CHECK(len >= sizeof no);
    memcpy(&no, pkt, sizeof no);
    if (t->got == 0)
        t->first_at = now;
    else if (no < t->last)
        t->out_of_order++;
    t->last = no;
    t->got++;
    CHECK(now >= t->last_at);
    t->last_at = now;
    t->hash = (t->hash ^ no) * 1099511628211u;
    t->hash = (t->hash ^ (uint64_t)now) * 1099511628211u;
}

static void talker_burst(void *ep, udt_time now)
{
    (void)now;
    ((struct talker *)ep)->bursts++;
}

static size_t talker_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                            size_t *seg, udt_time now)
{
    struct talker *t = ep;
    size_t len = 0, n = t->batch;
    (void)now;
    if (!t->ready)
        return 0;
    for (; n > 0 && t->left > 0 && max_segs > 0 && len + t->size <= cap; n--, max_segs--) {
        memset(buf + len, 0, t->size);
        memcpy(buf + len, &t->next, sizeof t->next);
        t->next++;
        t->left--;
        len += t->size;
    }
    t->ready = t->every == 0 && t->left > 0;
    *to = t->to;
    *seg = t->size;
    return len;
}

static udt_time talker_deadline(const void *ep)
{
    const struct talker *t = ep;
    return t->left > 0 ? t->due : UDT_NEVER;
}

static void talker_tick(void *ep, udt_time now)
{
    struct talker *t = ep;
    t->ready = true;
    t->due = now + t->every;
}

static const sim_ep_ops talker_ops = {talker_input, talker_burst, talker_output, talker_deadline,
                                      talker_tick};

static udt_addr addr_of(uint8_t host)
{
    return (udt_addr){.family = 4, .port = 9000, .ip = {10, 0, 0, host}};
}

struct pair {
    sim_net *net;
    struct talker a, b;
    int ida, idb;
};

static void pair_new(struct pair *p, const sim_link *l, uint32_t packets, udt_time every)
{
    udt_addr aa = addr_of(1), ab = addr_of(2);
    memset(p, 0, sizeof *p);
    p->net = sim_net_new(test_seed);
    p->a = (struct talker){.to = ab, .size = 1472, .left = packets, .every = every, .batch = 16};
    p->b.to = aa;
    p->ida = sim_net_add(p->net, &aa, &talker_ops, &p->a);
    p->idb = sim_net_add(p->net, &ab, &talker_ops, &p->b);
    sim_net_link(p->net, p->ida, p->idb, l);
}

static void pair_run(struct pair *p, udt_time until)
{
    while (sim_net_step(p->net, until))
        ;
}

TEST(sim_rate_and_delay_are_exact)
{
    struct pair p;
    sim_link l = {.rate_bps = 10000000000, .delay_us = 5000, .queue_bytes = 100000000};
    pair_new(&p, &l, 10000, 0);
    pair_run(&p, 10000000);
    CHECK_INT(p.b.got, 10000);
    CHECK_INT(p.b.first_at, 5002); /* 1.2 us on the wire, rounded up */
    CHECK_INT(p.b.last_at, 17000);
    CHECK_INT(p.b.out_of_order, 0);
    CHECK_INT(sim_net_now(p.net), 10000000);
    sim_net_free(p.net);
}

TEST(sim_unset_link_is_perfect_and_a_burst_ends_once)
{
    struct pair p;
    pair_new(&p, &(sim_link){0}, 40, 0);
    pair_run(&p, 1000);
    CHECK_INT(p.b.got, 40);
    CHECK_INT(p.b.last_at, 0);
    CHECK_INT(p.b.bursts, 1);
    sim_net_free(p.net);
}

TEST(sim_queue_drops_its_tail)
{
    struct pair p;
    sim_link l = {.rate_bps = 8000000, .delay_us = 100, .queue_bytes = 15000};
    pair_new(&p, &l, 100, 0);
    pair_run(&p, 1000000);
    sim_counts c = sim_net_counts(p.net, p.ida, p.idb);
    CHECK_INT(c.sent, 100);
    CHECK_INT(c.delivered, 10);
    CHECK_INT(c.queue_drops, 90);
    CHECK_INT(p.b.last, 9);
    CHECK_INT(c.bytes, 147200);
    sim_net_free(p.net);
}

TEST(sim_default_queue_is_one_bdp)
{
    struct pair p;
    sim_link l = {.rate_bps = 100000000, .delay_us = 50000};
    pair_new(&p, &l, 2000, 0);
    pair_run(&p, 10000000);
    CHECK_INT(p.b.got, 833); /* 1.25 MB / 1500 bytes */
    sim_net_free(p.net);
}

TEST(sim_jitter_keeps_order_and_reorder_breaks_it)
{
    struct pair p;
    sim_link l = {.delay_us = 1000, .jitter_us = 5000};
    pair_new(&p, &l, 1000, 10);
    pair_run(&p, 10000000);
    CHECK_INT(p.b.got, 1000);
    CHECK_INT(p.b.out_of_order, 0);
    CHECK(p.b.bursts > 1);
    sim_net_free(p.net);
    l.reorder_ppm = 50000;
    l.reorder_us = 20000;
    pair_new(&p, &l, 1000, 2000);
    pair_run(&p, 10000000);
    CHECK_INT(p.b.got, 1000);
    CHECK(p.b.out_of_order >= 20);
    CHECK(sim_net_counts(p.net, p.ida, p.idb).reordered >= 20);
    sim_net_free(p.net);
}

TEST(sim_loss_duplication_and_mask)
{
    struct pair p;
    sim_link l = {.delay_us = 10, .loss_ppm = 100000, .dup_ppm = 200000, .dup_delay_us = 50};
    pair_new(&p, &l, 20000, 1);
    pair_run(&p, 10000000);
    sim_counts c = sim_net_counts(p.net, p.ida, p.idb);
    CHECK(c.lost > 1700 && c.lost < 2300);
    CHECK(c.duplicated > 3200 && c.duplicated < 4000);
    CHECK_INT(c.delivered, c.sent - c.lost + c.duplicated);
    CHECK_INT(p.b.got, c.delivered);
    sim_net_free(p.net);
    l = (sim_link){.loss_mask = 1u << 3 | 1u << 7 | 1ull << 63};
    pair_new(&p, &l, 100, 5);
    pair_run(&p, 10000);
    c = sim_net_counts(p.net, p.ida, p.idb);
    CHECK_INT(c.lost, 3);
    CHECK_INT(p.b.got, 97);
    sim_net_free(p.net);
}

TEST(sim_equal_seeds_give_equal_runs)
{
    sim_link l = {.rate_bps = 50000000,
                  .delay_us = 3000,
                  .jitter_us = 700,
                  .loss_ppm = 20000,
                  .reorder_ppm = 10000,
                  .reorder_us = 2000,
                  .dup_ppm = 5000,
                  .dup_delay_us = 900};
    uint64_t first = 0;
    for (int i = 0; i < 2; i++) {
        struct pair p;
        pair_new(&p, &l, 5000, 5000);
        pair_run(&p, UDT_NEVER);
        CHECK(p.b.got > 1000);
        if (i == 0)
            first = p.b.hash;
        CHECK(p.b.hash == first);
        sim_net_free(p.net);
    }
}

TEST(sim_dead_host_restart_inject_and_kick)
{
    struct pair p;
    sim_link l = {.delay_us = 100};
    pair_new(&p, &l, 0, 10);
    sim_net_set(p.net, p.idb, NULL, NULL);
    p.a.left = 5;
    p.a.ready = true;
    sim_net_kick(p.net, p.ida);
    pair_run(&p, 1000);
    CHECK_INT(p.b.got, 0);
    CHECK_INT(sim_net_counts(p.net, p.ida, p.idb).lost, 5);
    sim_net_set(p.net, p.idb, &talker_ops, &p.b);
    udt_addr stranger = addr_of(77);
    uint32_t no = 42;
    sim_net_inject(p.net, &stranger, p.idb, (uint8_t *)&no, sizeof no, 1500);
    CHECK(sim_net_step(p.net, 2000));
    CHECK_INT(p.b.got, 1);
    CHECK_INT(p.b.last, 42);
    CHECK_INT(p.b.last_at, 1500);
    CHECK(!sim_net_step(p.net, 2000));
    CHECK_INT(sim_net_now(p.net), 2000);
    sim_net_free(p.net);
}

static void count_tap(void *arg, int a, const udt_addr *to, const uint8_t *pkt, size_t len,
                      udt_time now)
{
    (void)to, (void)pkt, (void)now;
    CHECK_INT(a, 0);
    CHECK_INT(len, 1472);
    ++*(int *)arg;
}

TEST(sim_tap_sees_packets_before_loss)
{
    struct pair p;
    int seen = 0;
    pair_new(&p, &(sim_link){.loss_ppm = 1000000}, 50, 0);
    sim_net_tap(p.net, count_tap, &seen);
    pair_run(&p, 1000);
    CHECK_INT(seen, 50);
    CHECK_INT(p.b.got, 0);
    sim_net_free(p.net);
}

/* A deadline that never moves must not stop the clock. */
static udt_time stuck_deadline(const void *ep)
{
    (void)ep;
    return 5;
}
static void stuck_tick(void *ep, udt_time now)
{
    (void)now;
    ++*(int *)ep;
}
static size_t stuck_output(void *ep, uint8_t *buf, size_t cap, size_t segs, udt_addr *to,
                           size_t *seg, udt_time now)
{
    (void)ep, (void)buf, (void)cap, (void)segs, (void)to, (void)seg, (void)now;
    return 0;
}

TEST(sim_clock_passes_a_stuck_deadline)
{
    sim_net *n = sim_net_new(1);
    int ticks = 0;
    udt_addr a = addr_of(1);
    sim_net_add(n, &a, &(sim_ep_ops){NULL, NULL, stuck_output, stuck_deadline, stuck_tick}, &ticks);
    while (sim_net_step(n, 100))
        ;
    CHECK_INT(ticks, 96);
    sim_net_free(n);
}

TEST(sim_many_endpoints_keep_deadlines_apart)
{
    enum { N = 200 };
    static struct talker t[N];
    sim_net *n = sim_net_new(test_seed);
    for (int i = 0; i < N; i++) {
        udt_addr a = {.family = 4, .port = (uint16_t)(1000 + i), .ip = {10, 1, 1, 1}};
        t[i] = (struct talker){.size = 100, .left = 20, .every = 7 + i, .due = i, .batch = 1};
        t[i].to = a;
        t[i].to.port = (uint16_t)(1000 + (i + 1) % N);
        CHECK_INT(sim_net_add(n, &a, &talker_ops, &t[i]), i);
    }
    udt_time last = 0;
    while (sim_net_step(n, UDT_NEVER)) {
        CHECK(sim_net_now(n) >= last);
        last = sim_net_now(n);
    }
    for (int i = 0; i < N; i++) {
        CHECK_INT(t[i].got, 20);
        CHECK_INT(t[i].first_at, (i + N - 1) % N);
    }
    sim_net_free(n);
}

TEST_ALONE(sim_moves_a_million_packets_a_second)
{
    struct pair p;
    struct timespec t0, t1;
    sim_link l = {.rate_bps = 10000000000, .delay_us = 50000, .loss_ppm = 1000, .jitter_us = 10};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    uint32_t count = (uint32_t)(10000 * test_scale);
    pair_new(&p, &l, count, 20);
    pair_run(&p, UDT_NEVER);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    double s = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    CHECK(p.b.got > count / 100 * 99);
    if (test_scale == 100)
        CHECK(s < 4.0); /* 0.3 s on an idle core; room for a busy one */
    sim_net_free(p.net);
}
