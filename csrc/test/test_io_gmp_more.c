/* GMP over loopback, second part: addresses and datagram sizes, groups, introductions,
 * back-pressure, priorities, GMP and UDT side by side, calls from many threads. */
#include "test_io.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEY_ID = 0x01000007 };

static void add_key(tio *t, uint32_t id, const char *principal)
{
    sgmp_key k = {.key_id = id, .alg = SGMP_ALG_AES256GCM};
    memset(k.secret, 0x5a, sizeof k.secret);
    strcpy(k.principal, principal);
    CHECK_INT(sgmp_key_add(t->ctx, t->port, &k), 0);
}

static tio *open_at(const udt_addr *at)
{
    tio *t = calloc(1, sizeof *t);
    CHECK_INT(udt_ctx_new(NULL, &t->ctx), 0);
    t->port = udt_port_open(t->ctx, at, 0, 0);
    CHECK(t->port > 0);
    CHECK_INT(udt_port_addr(t->ctx, t->port, &t->at), 0);
    CHECK_INT(sgmp_open(t->ctx, t->port, true), 0);
    return t;
}

static void open_two(tio **a, tio **b, int family)
{
    udt_addr at = tio_loopback(family, 0);
    *a = open_at(&at);
    *b = open_at(&at);
    add_key(*a, KEY_ID, "b");
    add_key(*b, KEY_ID, "a");
}

static sgmp_dest dest(const tio *t)
{
    sgmp_dest d = {.addr = t->at, .key_id = KEY_ID};
    return d;
}

static void exchange(tio *a, tio *b, const sgmp_dest *to, size_t len)
{
    static uint8_t buf[100000];
    tio_fill(buf, len, len, 0);
    int64_t id = sgmp_call(a->ctx, a->port, to, 5, buf, len, NULL);
    CHECK(id > 0);
    udt_event ev = tio_wait(b, SGMP_EV_REQUEST, 0, 10000);
    CHECK_INT(ev.g.len, len);
    tio_check(ev.g.data, ev.g.len, len, 0);
    CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 0, ev.g.data, ev.g.len), 0);
    udt_event_release(b->ctx, &ev);
    ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 10000);
    CHECK_INT(ev.g.id, id);
    CHECK_INT(ev.g.status, 0);
    CHECK_INT(ev.g.len, len);
    udt_event_release(a->ctx, &ev);
}

/* An IPv4 address as IPv6 spells it, with what is no part of it. */
static void mapped(udt_addr *a)
{
    memmove(a->ip + 12, a->ip, 4);
    memset(a->ip, 0, 10);
    a->ip[10] = a->ip[11] = 0xff;
    a->family = 6;
    a->scope = 5;
}

static sgmp_stats stats(tio *t)
{
    sgmp_stats st;
    CHECK_INT(sgmp_stats_get(t->ctx, t->port, &st), 0);
    return st;
}

/* Rule 10: IPv4, IPv6, a dual-stack port spoken to over both families (v4-mapped inside the
 * kernel, and as callers may spell it), and datagrams up to 8972 bytes where the path carries
 * them. */
TEST(io_gmp_families_and_sizes)
{
    for (int how = 0; how < 3; how++) {
        tio *a, *b;
        sgmp_peer_info info;
        if (how < 2) {
            open_two(&a, &b, how ? 6 : 4);
        } else {
            udt_addr any = {.family = 6}, four = tio_loopback(4, 0);
            a = open_at(&four);
            b = open_at(&any);
            add_key(a, KEY_ID, "b");
            add_key(b, KEY_ID, "a");
            b->at = tio_loopback(4, b->at.port);
        }
        sgmp_dest to = dest(b);
        exchange(a, b, &to, 100);
        exchange(a, b, &to, 5000); /* over a stream; proves the size beside it */
        int64_t limit = tio_now_us() + 5000000;
        do {
            CHECK(tio_now_us() < limit);
            usleep(2000);
            CHECK_INT(sgmp_peer_info_get(a->ctx, a->port, &to, &info), 0);
        } while (info.max_dgram != 8972);
        int64_t streams = stats(a).bulk_streams;
        exchange(a, b, &to, 8000);
        exchange(a, b, &to, 8972 - 136 - 24);
        CHECK_INT(stats(a).bulk_streams, streams);
        CHECK(stats(a).dgram_up == 1 && info.state == 2);
        if (how == 2) { /* and back, from the dual-stack side */
            sgmp_dest back = dest(a), spelled[2];
            exchange(b, a, &back, 300);
            mapped(&back.addr);
            exchange(b, a, &back, 400);
            spelled[0] = back;
            spelled[1] = dest(a);
            CHECK_INT(sgmp_peer_info_get(b->ctx, b->port, &back, &info), 0);
            CHECK_INT(info.state, 2);
            mapped(&to.addr);
            exchange(a, b, &to, 500); /* from a port that has IPv4 only */
            sgmp_group_opts o = {.call = true, .method = 9, .wait = SGMP_WAIT_ALL};
            CHECK(sgmp_group(b->ctx, b->port, spelled, 2, NULL, 0, &o) > 0);
            udt_event ev = tio_wait(a, SGMP_EV_REQUEST, 0, 10000);
            CHECK_INT(sgmp_reply(a->ctx, a->port, ev.g.id, 0, NULL, 0), 0);
            CHECK_INT(tio_wait(b, SGMP_EV_GROUP_DONE, 0, 10000).g.ms, 1); /* one, listed twice */
            CHECK_INT(stats(b).assoc, 1);
            CHECK_INT(stats(a).assoc, 1);
        }
        tio_free(a);
        tio_free(b);
    }
}

TEST(io_gmp_group_and_introduction)
{
    enum { PEERS = 12 };
    udt_addr at = tio_loopback(4, 0);
    tio *hub = open_at(&at), *peer[PEERS];
    sgmp_dest to[PEERS + 1];
    uint64_t hub_id;
    CHECK_INT(sgmp_instance(hub->ctx, hub->port, &hub_id), 0);
    for (int i = 0; i < PEERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "peer-%d", i);
        peer[i] = open_at(&at);
        add_key(hub, 100 + (uint32_t)i, name);
        add_key(peer[i], 100 + (uint32_t)i, "hub");
        to[i] = (sgmp_dest){peer[i]->at, 100 + (uint32_t)i};
        if (i % 2) { /* these know the hub from a third party */
            uint8_t token[SGMP_TOKEN_BYTES];
            uint64_t instance;
            CHECK_INT(
                sgmp_mint_token(peer[i]->ctx, peer[i]->port, &hub->at, hub_id, to[i].key_id, token),
                0);
            CHECK_INT(sgmp_instance(peer[i]->ctx, peer[i]->port, &instance), 0);
            CHECK_INT(sgmp_introduce(hub->ctx, hub->port, &to[i], instance, token), 0);
        }
    }
    to[PEERS] = to[0]; /* twice */
    sgmp_group_opts o = {.call = true, .method = 9, .wait = SGMP_WAIT_ALL};
    uint8_t body[700];
    tio_fill(body, sizeof body, 1, 0);
    int64_t id = sgmp_group(hub->ctx, hub->port, to, PEERS + 1, body, sizeof body, &o);
    CHECK(id > 0);
    for (int i = 0; i < PEERS; i++) {
        udt_event ev = tio_wait(peer[i], SGMP_EV_REQUEST, 0, 10000);
        CHECK_INT(ev.g.method, 9);
        tio_check(ev.g.data, ev.g.len, 1, 0);
        uint8_t answer[2] = {(uint8_t)i, 7};
        CHECK_INT(sgmp_reply(peer[i]->ctx, peer[i]->port, ev.g.id, 0, answer, 2), 0);
        udt_event_release(peer[i]->ctx, &ev);
    }
    bool seen[PEERS] = {false};
    for (int i = 0; i < PEERS; i++) {
        udt_event ev = tio_wait(hub, SGMP_EV_GROUP_MEMBER, 0, 10000);
        CHECK_INT(ev.g.id, id);
        CHECK_INT(ev.g.status, 0);
        CHECK(ev.g.method < PEERS && !seen[ev.g.method]);
        seen[ev.g.method] = true;
        CHECK(ev.g.len == 2 && ev.g.data[0] == ev.g.method &&
              ev.g.from.port == to[ev.g.method].addr.port);
        udt_event_release(hub->ctx, &ev);
    }
    CHECK_INT(tio_wait(hub, SGMP_EV_GROUP_DECIDED, 0, 1000).g.status, 0);
    udt_event ev = tio_wait(hub, SGMP_EV_GROUP_DONE, 0, 1000);
    CHECK(ev.g.id == (uint64_t)id && ev.g.method == PEERS && ev.g.ms == PEERS);
    CHECK_INT(stats(hub).introduced, PEERS / 2);
    CHECK_INT(stats(hub).hello_out, PEERS / 2);
    /* Ids of members are taken: the next message has one behind them. */
    CHECK(sgmp_send(hub->ctx, hub->port, &to[0], body, 1, NULL) > id + PEERS + 1);
    CHECK_INT(sgmp_group(hub->ctx, hub->port, to, 4097, body, 1, &o), UDT_E_INVAL);
    int64_t empty = sgmp_group(hub->ctx, hub->port, to, 0, body, 1, &o);
    ev = tio_wait(hub, SGMP_EV_GROUP_DONE, 0, 1000);
    CHECK(ev.g.id == (uint64_t)empty && ev.g.status == 0);
    tio_free(hub);
    for (int i = 0; i < PEERS; i++)
        tio_free(peer[i]);
}

/* Section 6.3: a peer that takes nothing. AGAIN at once, CONTROL passes, other peers are served,
 * WRITABLE comes when there is room, nothing that was accepted is lost. */
TEST(io_gmp_back_pressure_reaches_the_caller)
{
    tio *a, *b, *c;
    udt_addr at = tio_loopback(4, 0);
    open_two(&a, &b, 4);
    tio_free(b);
    udt_ctx_config small = {.max_events = 64}; /* an application that stops reading soon */
    b = calloc(1, sizeof *b);
    CHECK_INT(udt_ctx_new(&small, &b->ctx), 0);
    b->port = udt_port_open(b->ctx, &at, 0, 0);
    CHECK_INT(udt_port_addr(b->ctx, b->port, &b->at), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, true), 0);
    add_key(b, KEY_ID, "a");
    c = open_at(&at);
    add_key(c, KEY_ID + 1, "a");
    add_key(a, KEY_ID + 1, "c");
    sgmp_dest to = dest(b), other = {c->at, KEY_ID + 1};
    sgmp_opts o = {.deadline_ms = 60000}, control = {.flags = SGMP_CONTROL};
    uint8_t buf[1000] = {0};
    int sent = 0, got = 0, settled = 0, heartbeats = 0;
    int64_t r = 0, limit = tio_now_us() + 30000000;
    udt_event ev;
    for (;;) { /* until it stays full: engines' queues, then the receiver's */
        r = sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, &o);
        if (r > 0) {
            sent++;
            continue;
        }
        CHECK_INT(r, UDT_E_AGAIN);
        int64_t until = tio_now_us() + 300000;
        while (tio_now_us() < until && !tio_take(a, SGMP_EV_WRITABLE, 0, &ev)) {
            tio_pull(a, 10000);
            while (tio_take(a, SGMP_EV_OUTCOME, 0, &ev)) {
                CHECK_INT(ev.g.status, 0);
                settled++;
            }
        }
        if (tio_now_us() >= until)
            break;
        CHECK(tio_now_us() < limit);
    }
    CHECK(sent >= 1024 && sent < 20000);
    CHECK(stats(a).snd_queue_bytes <= 4 << 20);
    CHECK(sgmp_send(a->ctx, a->port, &to, buf, 100, &control) > 0);
    exchange(a, c, &other, 500);
    heartbeats = 1;
    bool writable = false;
    while (got < sent + heartbeats || settled < sent + heartbeats) {
        if (tio_now_us() > limit + 30000000)
            printf("# %d of %d came, %d have an outcome, %s, %d bytes wait\n", got,
                   sent + heartbeats, settled, writable ? "writable" : "not writable",
                   (int)stats(a).snd_queue_bytes);
        CHECK(tio_now_us() < limit + 30000000);
        udt_event some[16];
        int n = udt_ctx_poll(b->ctx, some, 16);
        for (int i = 0; i < n; i++) {
            got += some[i].kind == SGMP_EV_MESSAGE;
            udt_event_release(b->ctx, &some[i]);
        }
        tio_pull(a, n ? 0 : 1000);
        while (tio_take(a, SGMP_EV_OUTCOME, 0, &ev)) {
            CHECK_INT(ev.g.status, 0);
            settled++;
        }
        if (!writable && tio_take(a, SGMP_EV_WRITABLE, 0, &ev)) {
            if (ev.g.from.family == 0) /* of the command queue */
                continue;
            CHECK_INT(ev.g.from.port, b->at.port);
            r = sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, &o);
            if (r == UDT_E_AGAIN) /* full again: another WRITABLE is owed */
                continue;
            CHECK(r > 0);
            writable = true;
            sent++;
        }
    }
    CHECK(writable);
    printf("# back-pressure: AGAIN after %d messages of 1000 bytes\n", sent - 1);
    tio_free(a);
    tio_free(b);
    tio_free(c);
}

/* A MANUAL receiver whose turns are the test's: what the application gives back after a turn has
 * looked, and while its loop is awake, is worth another turn, though no packet comes any more. */
TEST(io_gmp_room_given_to_a_loop_that_is_awake_counts)
{
    enum { MANY = 100, LONG_US = 400000 };
    tio *a, *b;
    open_two(&a, &b, 4);
    tio_free(b);
    udt_addr at = tio_loopback(4, 0);
    udt_ctx_config small = {.max_events = 64};
    b = calloc(1, sizeof *b);
    CHECK_INT(udt_ctx_new(&small, &b->ctx), 0);
    b->port = udt_port_open(b->ctx, &at, UDT_PORT_MANUAL, 0);
    CHECK_INT(udt_port_addr(b->ctx, b->port, &b->at), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, true), 0);
    add_key(b, KEY_ID, "a");
    sgmp_dest to = dest(b);
    uint8_t buf[100] = {0};
    udt_event ev[MANY];
    for (int i = 0; i < MANY; i++)
        CHECK(sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, NULL) > 0);
    for (int64_t end = tio_now_us() + 600000; tio_now_us() < end;) /* all come, few fit */
        CHECK_INT(udt_port_run(b->ctx, b->port, 10000), 0);
    int got = udt_ctx_poll(b->ctx, ev, MANY);
    CHECK(got >= 32 && got < MANY);
    for (int i = 0; i < got; i++)
        udt_event_release(b->ctx, &ev[i]);
    int64_t began = tio_now_us();
    CHECK_INT(udt_port_run(b->ctx, b->port, LONG_US), 0);
    CHECK(tio_now_us() - began < LONG_US / 2);
    int more = udt_ctx_poll(b->ctx, ev, MANY);
    CHECK(more > 0);
    while (got + more < MANY) { /* the rest, and none is held back */
        CHECK(tio_now_us() - began < 10000000);
        CHECK_INT(udt_port_run(b->ctx, b->port, 1000), 0);
        more += udt_ctx_poll(b->ctx, ev + more, MANY - more);
    }
    for (int64_t end = tio_now_us() + 300000; tio_now_us() < end;)
        CHECK_INT(udt_port_run(b->ctx, b->port, 10000), 0);
    for (int i = 0; i < more; i++) /* many enough for the peers' windows to be worth a turn */
        udt_event_release(b->ctx, &ev[i]);
    began = tio_now_us();
    CHECK_INT(udt_port_run(b->ctx, b->port, LONG_US), 0);
    CHECK(more >= 32 && tio_now_us() - began < LONG_US / 2);
    tio_free(a);
    tio_free(b);
}

static void serve(tio *b, int wait_us)
{
    udt_event ev[64];
    struct pollfd pf = {.fd = udt_ctx_wakeup_fd(b->ctx), .events = POLLIN};
    int n = udt_ctx_poll(b->ctx, ev, 64);
    if (n == 0 && wait_us && poll(&pf, 1, wait_us / 1000) > 0)
        n = udt_ctx_poll(b->ctx, ev, 64);
    for (int i = 0; i < n; i++) {
        if (ev[i].kind == SGMP_EV_REQUEST)
            CHECK_INT(sgmp_reply(b->ctx, b->port, ev[i].g.id, 0, NULL, 0), 0);
        udt_event_release(b->ctx, &ev[i]);
    }
}

static atomic_bool stop_serving;
static void *serve_main(void *arg)
{
    while (!stop_serving)
        serve(arg, 10000);
    return NULL;
}

static int by_value(const void *x, const void *y)
{
    int64_t d = *(const int64_t *)x - *(const int64_t *)y;
    return (d > 0) - (d < 0);
}

/* Heartbeats beside an upload of ordinary and over-size messages on the same port. */
TEST_ALONE(io_gmp_heartbeats_beside_an_upload)
{
    enum { BEATS = 100 };
    static uint8_t big[2 << 20];
    tio *a, *b;
    pthread_t t;
    open_two(&a, &b, 4);
    sgmp_dest to = dest(b);
    sgmp_opts control = {.flags = SGMP_CONTROL};
    stop_serving = false;
    CHECK_INT(pthread_create(&t, NULL, serve_main, b), 0);
    int64_t took[BEATS], uploaded = 0, limit = tio_now_us() + 60000000;
    udt_event ev;
    for (int i = 0; i < BEATS; i++) {
        for (int k = 0; k < 400; k++)
            uploaded += sgmp_send(a->ctx, a->port, &to, big, 1000, NULL) > 0 ? 1000 : 0;
        if (i % 4 == 0)
            uploaded += sgmp_send(a->ctx, a->port, &to, big, sizeof big, NULL) > 0 ? 2 << 20 : 0;
        int64_t t0 = tio_now_us();
        int64_t id = sgmp_call(a->ctx, a->port, &to, 1, (const uint8_t *)"beat", 4, &control);
        CHECK(id > 0);
        do {
            CHECK(tio_now_us() < limit);
            tio_pull(a, 100000);
            while (tio_take(a, SGMP_EV_OUTCOME, 0, &ev) || tio_take(a, SGMP_EV_WRITABLE, 0, &ev))
                CHECK(ev.g.status == 0);
        } while (!tio_take(a, SGMP_EV_RESPONSE, 0, &ev));
        took[i] = tio_now_us() - t0;
        CHECK_INT(ev.g.status, 0);
    }
    qsort(took, BEATS, sizeof *took, by_value);
    printf("# heartbeats beside %" PRId64 " MB of upload: median %" PRId64 " us, worst %" PRId64
           " us\n",
           uploaded >> 20, took[BEATS / 2], took[BEATS - 1]);
    CHECK(took[BEATS / 2] < 50000);
    stop_serving = true;
    pthread_join(t, NULL);
    tio_free(a);
    tio_free(b);
}

/* Rule 11: a UDT stream and GMP calls over the same two ports, both ways at once. */
TEST(io_gmp_and_udt_on_one_port)
{
    static uint8_t buf[65536];
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    int32_t sa, sb;
    udt_sock_opts o = {.type = 1, .own_peer = true};
    tio_pair(a, b, &o, &sa, &sb);
    CHECK_INT(sgmp_open(a->ctx, a->port, true), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, true), 0);
    add_key(a, KEY_ID, "b");
    add_key(b, KEY_ID, "a");
    sgmp_dest to = dest(b);
    uint64_t out = 0, in = 0, calls = 0, answers = 0, total = (uint64_t)test_scale << 20;
    int64_t limit = tio_now_us() + 60000000;
    udt_event ev;
    while (in < total || answers < calls) {
        CHECK(tio_now_us() < limit);
        while (out < total) {
            size_t n = total - out < sizeof buf ? (size_t)(total - out) : sizeof buf;
            tio_fill(buf, n, 9, out);
            ssize_t k = udt_send(a->ctx, sa, buf, n);
            if (k <= 0)
                break;
            out += (uint64_t)k;
        }
        if (calls - answers < 8 && in < total)
            calls += sgmp_call(a->ctx, a->port, &to, 1, buf, 1 + (size_t)(calls % 1000), NULL) > 0;
        tio_pull(b, 1000);
        tio_pull(a, 0);
        for (ssize_t k; (k = udt_recv(b->ctx, sb, buf, sizeof buf)) > 0; in += (uint64_t)k)
            tio_check(buf, (size_t)k, 9, in);
        tio_drop(b, UDT_IO_READABLE, 0);
        tio_drop(a, UDT_IO_WRITABLE, 0);
        while (tio_take(b, SGMP_EV_REQUEST, 0, &ev)) {
            CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 0, ev.g.data, ev.g.len), 0);
            udt_event_release(b->ctx, &ev);
        }
        while (tio_take(a, SGMP_EV_RESPONSE, 0, &ev)) {
            CHECK_INT(ev.g.status, 0);
            answers++;
            udt_event_release(a->ctx, &ev);
        }
    }
    tio *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        udt_port_stats ps;
        sgmp_stats st = stats(both[i]);
        usleep(300000);
        CHECK_INT(udt_port_stats_get(both[i]->ctx, both[i]->port, &ps), 0);
        CHECK_INT(ps.dropped_bad + ps.dropped_unknown, 0);
        CHECK_INT(st.bad_format + st.bad_tag + st.no_key, 0);
    }
    printf("# %" PRIu64 " MB of stream beside %" PRIu64 " calls on one port\n", in >> 20, answers);
    tio_free(a);
    tio_free(b);
}

/* Calls from several threads at once: some run in their caller, some in the loop; ids are unique
 * and each has one answer. */
struct caller {
    tio *t;
    sgmp_dest to;
    int calls;
    int64_t *ids;
};

static void *call_main(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < c->calls; i++)
        while ((c->ids[i] = sgmp_call(c->t->ctx, c->t->port, &c->to, 1, (const uint8_t *)&i,
                                      sizeof i, NULL)) == UDT_E_AGAIN)
            usleep(100);
    return NULL;
}

TEST(io_gmp_calls_from_many_threads)
{
    enum { THREADS = 4, EACH = 500 };
    static int64_t ids[THREADS][EACH];
    tio *a, *b;
    pthread_t server, th[THREADS];
    struct caller c[THREADS];
    open_two(&a, &b, 4);
    stop_serving = false;
    CHECK_INT(pthread_create(&server, NULL, serve_main, b), 0);
    for (int i = 0; i < THREADS; i++) {
        c[i] =
            (struct caller){a, dest(b), EACH * (test_scale < 100 ? test_scale : 100) / 100, ids[i]};
        CHECK_INT(pthread_create(&th[i], NULL, call_main, &c[i]), 0);
    }
    int left = THREADS * c[0].calls, busy = 0;
    int64_t limit = tio_now_us() + 60000000;
    static uint8_t seen[THREADS * EACH + 2];
    memset(seen, 0, sizeof seen);
    udt_event ev;
    while (left > 0) {
        CHECK(tio_now_us() < limit);
        tio_pull(a, 10000);
        while (tio_take(a, SGMP_EV_RESPONSE, 0, &ev)) {
            CHECK(ev.g.status == 0 || ev.g.status == SGMP_RPC_BUSY); /* more than one may have */
            busy += ev.g.status != 0;
            CHECK(ev.g.id <= THREADS * EACH && !seen[ev.g.id]);
            seen[ev.g.id] = 1;
            left--;
        }
        while (tio_take(a, SGMP_EV_WRITABLE, 0, &ev))
            ;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(th[i], NULL);
    stop_serving = true;
    pthread_join(server, NULL);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < c[i].calls; k++)
            CHECK(ids[i][k] > 0 && seen[ids[i][k]] == 1);
    printf("# calls from %d threads, %d met a busy peer\n", THREADS, busy);
    tio_free(a);
    tio_free(b);
}
