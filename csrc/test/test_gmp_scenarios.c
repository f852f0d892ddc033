/* 1,000 seeded runs of two nodes over random paths: messages, calls, over-size messages, restarts.
 * Every message arrives at most once, its outcome agrees with the receiver's log, and all is over
 * within a bound computed from rate, loss and timers. */
#include "gmp_pipe.h"

#include <math.h>

enum { MAX_ITEMS = 2048, KEY = 0x02000007 };

/* One message or call of either node. */
struct item {
    int from, len;
    bool call, repeatable, bulk;
    int delivered; /* times it was seen by the other side */
    int outcomes;  /* must end at 1 */
    int status;
    int restarts_at; /* restarts of the receiver when it was sent */
};
struct run {
    uint64_t seed;
    sim_net *net;
    sim_rng rng;
    struct gnode node[2];
    struct gpipes pipes;
    struct item item[MAX_ITEMS];
    int n, settled, restarts[2];
    double loss, rtt_s, rate;
    int64_t bytes;
    udt_time last_outcome;
    udt_time mtu_falls; /* to 1500 bytes */
};
static struct {
    int64_t messages, bytes, retrans, delivered, unsure, bulk, calls, restarts;
    double virtual_s, worst;
} sum;

static uint8_t pattern(int id, int i)
{
    return (uint8_t)(id * 31 + i * 7 + (i >> 8));
}

static void fill(uint8_t *p, int id, int len)
{
    for (int i = 0; i < len; i++)
        p[i] = pattern(id, i);
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(id >> (24 - 8 * i));
}

static int read_id(struct run *r, const struct sgmp_ev *ev, int from)
{
    CHECK(ev->len >= 4);
    int id = ev->data[0] << 24 | ev->data[1] << 16 | ev->data[2] << 8 | ev->data[3];
    CHECK(id >= 0 && id < r->n);
    CHECK_INT(r->item[id].from, from);
    CHECK_INT(ev->len, r->item[id].len);
    for (uint32_t i = 4; i < ev->len; i++)
        if (ev->data[i] != pattern(id, (int)i))
            test_fail(__FILE__, __LINE__, "byte %u of message %d is wrong, run seed %" PRIu64, i,
                      id, r->seed);
    return id;
}

static void outcome(struct run *r, uint64_t app_id, int status)
{
    struct item *t = &r->item[app_id - 1];
    t->outcomes++;
    t->status = status;
    r->settled++;
    r->last_outcome = sim_net_now(r->net);
    if (t->outcomes != 1)
        test_fail(__FILE__, __LINE__, "two outcomes of %" PRIu64 ", run seed %" PRIu64, app_id,
                  r->seed);
}

static void drain(struct run *r, int side)
{
    struct gnode *g = &r->node[side];
    struct sgmp_ev ev;
    bool kick = false;
    while (g->n && sgmp_node_next_event(g->n, &ev)) {
        switch (ev.kind) {
        case SGMP_EV_MESSAGE:
            r->item[read_id(r, &ev, !side)].delivered++;
            kick = true;
            break;
        case SGMP_EV_REQUEST: {
            int id = read_id(r, &ev, !side);
            r->item[id].delivered++;
            sgmp_node_reply(g->n, ev.id, id % 7 == 0 ? -1000 - id : 0, ev.data, ev.len,
                            sim_net_now(r->net));
            kick = true;
            break;
        }
        case SGMP_EV_OUTCOME:
            outcome(r, ev.id, ev.status);
            break;
        case SGMP_EV_RESPONSE:
            if (ev.status == 0 || ev.status <= -1000) {
                CHECK_INT(read_id(r, &ev, side), (int)ev.id - 1);
                CHECK_INT(ev.status, ((int)ev.id - 1) % 7 == 0 ? -1000 - ((int)ev.id - 1) : 0);
            }
            outcome(r, ev.id, ev.status);
            break;
        }
        sgmp_node_release(g->n, ev.buf);
    }
    if (kick)
        sim_net_kick(r->net, g->id);
}

static void submit(struct run *r)
{
    static uint8_t buf[400000];
    int id = r->n++, side = (int)sim_rng_below(&r->rng, 2);
    struct item *t = &r->item[id];
    uint64_t kind = sim_rng_below(&r->rng, 100);
    memset(t, 0, sizeof *t);
    t->from = side;
    t->call = kind < 30;
    t->bulk = (kind >= 98 || kind == 0) && r->rate > 5e6;
    t->repeatable = sim_rng_below(&r->rng, 4) == 0;
    t->len = t->bulk ? 1200 + (int)sim_rng_below(&r->rng, id % 2 ? 8000 : sizeof buf - 1200)
                     : 4 + (int)sim_rng_below(&r->rng, t->call ? 1069 : 1093);
    bool control = !t->bulk && t->len <= 200 && sim_rng_below(&r->rng, 3) == 0;
    t->restarts_at = r->restarts[!side];
    fill(buf, id, t->len);
    struct gnode *g = &r->node[side];
    sgmp_dest to = gdest(&r->node[!side], KEY);
    sgmp_opts o = {.flags = control ? SGMP_CONTROL : 0};
    udt_time now = sim_net_now(r->net);
    int err;
    if (t->call) {
        o.flags |= t->repeatable ? SGMP_IDEMPOTENT : 0;
        o.flags |= id % 3 == 0 ? SGMP_WANT_PROGRESS : 0;
        o.deadline_ms = t->bulk ? 120000 : 30000;
        err = sgmp_node_call(g->n, &to, 9, buf, (size_t)t->len, &o, (uint64_t)id + 1, now);
    } else {
        o.flags |= t->repeatable ? SGMP_REPEATABLE : 0;
        err = sgmp_node_send(g->n, &to, buf, (size_t)t->len, &o, (uint64_t)id + 1, now);
    }
    CHECK_INT(err, 0);
    r->bytes += t->len;
    sum.bulk += t->bulk;
    sum.calls += t->call;
    sim_net_kick(r->net, g->id);
}

/* The old instance takes its open outcomes with it. */
static void restart(struct run *r, int side)
{
    struct gnode *g = &r->node[side];
    sgmp_stats st;
    sgmp_node_stats(g->n, &st);
    sum.retrans += st.retrans_loss + st.retrans_pto;
    gnode_stop(g);
    for (int i = 0; i < r->n; i++)
        if (r->item[i].from == side && !r->item[i].outcomes) {
            r->item[i].outcomes = 1;
            r->item[i].status = UDT_E_RESTARTED;
            r->settled++;
        }
    r->restarts[side]++;
    sum.restarts++;
    gnode_start(g);
    char name[32];
    snprintf(name, sizeof name, "node-%d", r->node[!side].id);
    sgmp_key k = gkey(KEY, SGMP_ALG_AES256GCM, name);
    CHECK_INT(sgmp_node_key_add(g->n, &k, sim_net_now(r->net)), 0);
}

/* Deadlines end everything after 30 s (120 s for over-size messages); paths that lose little must
 * be much faster: the time to carry the bytes thrice, and as many time-outs, doubling, as are
 * needed to lose one of 10^7 datagrams each time. */
static double needed_s(const struct run *r)
{
    double q = 1 - (1 - r->loss) * (1 - r->loss), pto = 3 * r->rtt_s + 0.02, wait = 0;
    int rounds = q > 0 ? (int)ceil(log(1e7) / -log(q)) + 2 : 2;
    for (int i = 0; i < rounds; i++)
        wait += fmin(pto * pow(2, i), 8);
    return 3.0 * (double)r->bytes * 8 / r->rate / (1 - r->loss) / (1 - r->loss) +
           (double)r->n / 8 * (r->rtt_s + 0.003) + wait + 2.5;
}

static double bound_s(const struct run *r, bool bulk)
{
    return bulk ? fmin(needed_s(r) + 20, 121) : fmin(needed_s(r), 31);
}

static void check_item(const struct run *r, int id)
{
    const struct item *t = &r->item[id];
    int allowed = 1;
    if (t->repeatable)
        allowed += r->restarts[!t->from] - t->restarts_at;
    bool ok = t->outcomes == 1 && t->delivered <= allowed;
    bool certain_yes = t->call ? t->status == 0 || t->status <= -1000 : t->status == 0;
    bool certain_no = t->status == UDT_E_NOTSENT || t->status == UDT_E_REFUSED;
    if (certain_yes && t->delivered < 1)
        ok = false;
    if (!t->call && certain_no && t->delivered)
        ok = false;
    /* Where all fits in before the deadlines nothing may be uncertain. (The windows of section 6.3
     * carry 8 messages a round trip at 5 % loss: 900 of them over 0.6 s do not.) */
    if (!r->restarts[0] && !r->restarts[1] && r->loss <= 0.05 && needed_s(r) < 30 && !certain_yes &&
        !t->bulk)
        ok = false;
    if (!ok)
        test_fail(__FILE__, __LINE__,
                  "item %d: outcomes %d, status %d, delivered %d of %d, len %d, call %d, "
                  "run seed %" PRIu64 " loss %.3f rtt %.3f rate %.0f",
                  id, t->outcomes, t->status, t->delivered, allowed, t->len, t->call, r->seed,
                  r->loss, r->rtt_s, r->rate);
}

static void setup(struct run *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    r->seed = seed;
    sim_rng_seed(&r->rng, seed);
    r->net = sim_net_new(seed);
    r->rate = 1e6 * pow(10, (double)sim_rng_below(&r->rng, 4001) / 1000);
    int64_t delay = sim_rng_below(&r->rng, 4) == 0 ? 0 : (int64_t)sim_rng_below(&r->rng, 300001);
    uint32_t loss = sim_rng_below(&r->rng, 3) == 0 ? 0 : (uint32_t)sim_rng_below(&r->rng, 200001);
    sim_link l = {.rate_bps = (int64_t)r->rate,
                  .delay_us = delay,
                  .jitter_us = (int64_t)sim_rng_below(&r->rng, 5000),
                  .queue_bytes = 200000,
                  .loss_ppm = loss,
                  .reorder_ppm = (uint32_t)sim_rng_below(&r->rng, 50001),
                  .reorder_us = (int64_t)sim_rng_below(&r->rng, 50001),
                  .dup_ppm = (uint32_t)sim_rng_below(&r->rng, 100001),
                  .dup_delay_us = 500000};
    r->loss = loss / 1e6;
    r->rtt_s = (double)(2 * delay + l.jitter_us * 2 + l.reorder_us) / 1e6;
    for (int i = 0; i < 2; i++)
        gnode_open_sized(&r->node[i], r->net, (unsigned)i + 1, true, seed,
                         sim_rng_below(&r->rng, 3) ? 8972 : 0);
    r->mtu_falls =
        sim_rng_below(&r->rng, 4) ? UDT_NEVER : (udt_time)sim_rng_below(&r->rng, SEC_(4));
    sim_net_link(r->net, 0, 1, &l);
    sim_net_link(r->net, 1, 0, &l);
    gpair(&r->node[0], &r->node[1], KEY, SGMP_ALG_AES256GCM);
    r->pipes.nodes = r->node;
    r->pipes.n = 2;
    r->pipes.delay = delay;
    r->pipes.Bps = (int64_t)(r->rate / 8);
    r->pipes.break_ppm = 200000;
    sim_rng_seed(&r->pipes.rng, seed + 1);
}

static void run_one(struct run *r, uint64_t seed)
{
    setup(r, seed);
    int total = 20 + (int)sim_rng_below(&r->rng, 900);
    bool restarts = sim_rng_below(&r->rng, 5) == 0, bulk = false;
    udt_time next_submit = 0,
             next_restart = restarts ? (udt_time)sim_rng_below(&r->rng, SEC_(3)) : UDT_NEVER;
    while (r->n < total || r->settled < r->n) {
        udt_time now = sim_net_now(r->net);
        if (r->n < total && now >= next_submit) {
            int burst = 1 + (int)sim_rng_below(&r->rng, 40);
            for (int i = 0; i < burst && r->n < total; i++) {
                submit(r);
                bulk |= r->item[r->n - 1].bulk;
            }
            next_submit = now + (udt_time)sim_rng_below(&r->rng, 300000);
        }
        if (now >= r->mtu_falls)
            r->node[0].mtu = r->node[1].mtu = 1500;
        if (now >= next_restart) {
            restart(r, (int)sim_rng_below(&r->rng, 2));
            next_restart = sim_rng_below(&r->rng, 2) ? UDT_NEVER : now + SEC_(1);
        }
        udt_time limit = now + SEC_(1), pipe;
        while ((pipe = gpipes_run(&r->pipes)) <= now)
            ;
        limit = r->n < total && next_submit < limit ? next_submit : limit;
        limit = next_restart < limit ? next_restart : limit;
        limit = pipe < limit ? pipe : limit;
        sim_net_step(r->net, limit);
        drain(r, 0);
        drain(r, 1);
        if (now > SEC_(500))
            test_fail(__FILE__, __LINE__, "run seed %" PRIu64 " hangs: %d of %d", seed, r->settled,
                      r->n);
    }
    double took = (double)(r->last_outcome - next_submit) / 1e6, bound = bound_s(r, bulk);
    if (took > bound)
        test_fail(__FILE__, __LINE__,
                  "run seed %" PRIu64 ": %.2f s, bound %.2f (loss %.3f rtt %.3f rate %.0f n %d "
                  "restarts %d)",
                  seed, took, bound, r->loss, r->rtt_s, r->rate, r->n,
                  r->restarts[0] + r->restarts[1]);
    sum.worst = fmax(sum.worst, took / bound);
    for (int i = 0; i < r->n; i++) {
        check_item(r, i);
        sum.delivered += r->item[i].delivered;
        sum.unsure += r->item[i].status != 0 && r->item[i].status > -1000;
    }
    grun(r->net, sim_net_now(r->net) + SEC_(2));
    drain(r, 0); /* late copies */
    drain(r, 1);
    for (int i = 0; i < r->n; i++)
        check_item(r, i);
    sum.messages += r->n;
    sum.bytes += r->bytes;
    sum.virtual_s += (double)sim_net_now(r->net) / 1e6;
}

static void teardown(struct run *r)
{
    for (int i = 0; i < 2; i++) {
        sgmp_stats st;
        sgmp_node_stats(r->node[i].n, &st);
        sum.retrans += st.retrans_loss + st.retrans_pto;
        CHECK_INT(st.rcv_queue_bytes, 0);
        CHECK_INT(st.pending_calls, 0);
    }
    while (r->pipes.list)
        gpipe_kill(&r->pipes, r->pipes.list, true, true);
    gnode_stop(&r->node[0]);
    gnode_stop(&r->node[1]);
    sim_net_free(r->net);
}

TEST(gmp_scenarios)
{
    static struct run r;
    memset(&sum, 0, sizeof sum);
    for (int i = 0; i < 10 * test_scale; i++) {
        run_one(&r, test_seed + (uint64_t)i);
        teardown(&r);
    }
    printf("# %" PRId64 " messages (%" PRId64 " calls, %" PRId64 " over-size, %" PRId64
           " restarts), %" PRId64 " bytes, %" PRId64 " retransmissions, %" PRId64
           " delivered, %" PRId64
           " without certain delivery, %.0f virtual s, worst %.2f of bound\n",
           sum.messages, sum.calls, sum.bulk, sum.restarts, sum.bytes, sum.retrans, sum.delivered,
           sum.unsure, sum.virtual_s, sum.worst);
}
