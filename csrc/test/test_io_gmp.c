/* GMP between two contexts on loopback: sealed calls, messages, over-size messages. */
#include "test_io_gmp.h"
#include "io/priv.h"

#include <unistd.h>

TEST(io_gmp_sealed_calls)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    uint8_t buf[1024];
    int rounds = 500 * test_scale / 100 + 1;
    for (int i = 0; i < rounds; i++) {
        tio_fill(buf, sizeof buf, (uint64_t)i, 0);
        int64_t id = sgmp_call(a->ctx, a->port, &to, 42, buf, sizeof buf, NULL);
        CHECK(id > 0);
        udt_event ev = tio_wait(b, SGMP_EV_REQUEST, 0, 5000);
        CHECK_INT(ev.g.method, 42);
        CHECK_INT(ev.g.len, sizeof buf);
        CHECK_INT(ev.g.key_id, to.key_id);
        tio_check(ev.g.data, ev.g.len, (uint64_t)i, 0);
        CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 0, ev.g.data, ev.g.len / 2), 0);
        udt_event_release(b->ctx, &ev);
        ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 5000);
        CHECK_INT(ev.g.id, id);
        CHECK_INT(ev.g.status, 0);
        CHECK_INT(ev.g.len, sizeof buf / 2);
        tio_check(ev.g.data, ev.g.len, (uint64_t)i, 0);
        udt_event_release(a->ctx, &ev);
        udt_event_release(a->ctx, &ev); /* twice does nothing */
    }
    sgmp_stats st;
    CHECK_INT(sgmp_stats_get(b->ctx, b->port, &st), 0);
    CHECK(st.dgrams_in >= rounds);
    CHECK_INT(st.bad_tag, 0);
    uint64_t ia, ib;
    CHECK_INT(sgmp_instance(a->ctx, a->port, &ia), 0);
    CHECK_INT(sgmp_instance(b->ctx, b->port, &ib), 0);
    CHECK(ia != 0 && ib != 0 && ia != ib);
    tio_free(a);
    tio_free(b);
}

static bool take_message(tio *t, uint32_t *value)
{
    udt_event ev[8];
    bool found = false;
    int n = udt_ctx_poll(t->ctx, ev, 8);
    for (int i = 0; i < n; i++) {
        if (ev[i].kind == SGMP_EV_MESSAGE) {
            memcpy(value, ev[i].g.data, sizeof *value);
            found = true;
        }
        udt_event_release(t->ctx, &ev[i]);
    }
    return found;
}

/* The loop raises the descriptor some time after it queued the event: whoever looks without being
 * called must neither make it miss the next one nor leave the descriptor readable for good. */
TEST(io_events_taken_uncalled_leave_the_descriptor_true)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    struct pollfd pf = {.fd = udt_ctx_wakeup_fd(b->ctx), .events = POLLIN};
    int rounds = 2000 * test_scale / 100 + 1;
    for (int i = 0; i < rounds; i++) {
        uint32_t want = (uint32_t)i, got = UINT32_MAX;
        int64_t limit = tio_now_us() + 5000000;
        CHECK(sgmp_send(a->ctx, a->port, &to, (uint8_t *)&want, sizeof want, NULL) > 0);
        while (got == UINT32_MAX && tio_now_us() < limit) {
            bool called = i % 3 ? poll(&pf, 1, 2000) > 0 : true;
            CHECK(called);
            take_message(b, &got);
        }
        CHECK_INT(got, want);
        tio_pull(a, 0);
        for (int k = 0; k < a->n; k++)
            udt_event_release(a->ctx, &a->ev[k]);
        a->n = 0;
    }
    int raised = 0;
    uint32_t none;
    for (; raised < 100 && poll(&pf, 1, 20) > 0; raised++)
        take_message(b, &none);
    CHECK(raised < 100);
    tio_free(a);
    tio_free(b);
}

TEST(io_gmp_many_messages_at_once)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    uint8_t buf[600];
    enum { MSGS = 3000 };
    static uint8_t seen[MSGS];
    memset(seen, 0, sizeof seen);
    int msgs = MSGS * test_scale / 100, sent = 0, got = 0, settled = 0;
    int64_t limit = tio_now_us() + 60000000;
    udt_event ev;
    while (got < msgs || settled < msgs) {
        CHECK(tio_now_us() < limit);
        while (sent < msgs && sent - settled < 500) {
            memset(buf, 0, sizeof buf);
            memcpy(buf, &sent, sizeof sent);
            int64_t id = sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, NULL);
            if (id == UDT_E_AGAIN)
                break;
            CHECK(id > 0);
            sent++;
        }
        tio_pull(b, 500);
        tio_pull(a, 500);
        while (tio_take(b, SGMP_EV_MESSAGE, 0, &ev)) {
            int k;
            memcpy(&k, ev.g.data, sizeof k);
            CHECK(k >= 0 && k < msgs && !seen[k]);
            seen[k] = 1;
            got++;
            udt_event_release(b->ctx, &ev);
        }
        while (tio_take(a, SGMP_EV_OUTCOME, 0, &ev)) {
            CHECK_INT(ev.g.status, 0);
            settled++;
        }
    }
    tio_free(a);
    tio_free(b);
}

TEST(io_gmp_8_mb_call)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    size_t n = 8 << 20;
    uint8_t *buf = malloc(n);
    CHECK(buf);
    for (int round = 0; round < 3; round++) {
        tio_fill(buf, n, (uint64_t)round, 0);
        int64_t id = sgmp_call(a->ctx, a->port, &to, 9, buf, n, NULL);
        CHECK(id > 0);
        udt_event ev = tio_wait(b, SGMP_EV_REQUEST, 0, 30000);
        CHECK_INT(ev.g.len, n);
        CHECK_MEM(ev.g.data, buf, n);
        CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 0, ev.g.data, ev.g.len), 0);
        udt_event_release(b->ctx, &ev);
        ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 30000);
        CHECK_INT(ev.g.id, id);
        CHECK_INT(ev.g.status, 0);
        CHECK_INT(ev.g.len, n);
        CHECK_MEM(ev.g.data, buf, n);
        udt_event_release(a->ctx, &ev);
    }
    CHECK_INT(sgmp_send(a->ctx, a->port, &to, buf, (64 << 20) + 1, NULL), UDT_E_TOOBIG);
    usleep(700000);
    udt_port_stats ps;
    CHECK_INT(udt_port_stats_get(b->ctx, b->port, &ps), 0);
    CHECK(ps.sockets <= 3); /* the listener and one kept stream each way, for all six payloads */
    free(buf);
    tio_free(a);
    tio_free(b);
}

TEST(io_gmp_to_a_dead_peer)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    CHECK_INT(udt_port_close(b->ctx, b->port), 0);
    sgmp_opts o = {.deadline_ms = 500};
    int64_t id = sgmp_call(a->ctx, a->port, &to, 1, (const uint8_t *)"x", 1, &o);
    udt_event ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 5000);
    CHECK_INT(ev.g.id, id);
    CHECK(ev.g.status < 0);
    id = sgmp_send(a->ctx, a->port, &to, (const uint8_t *)"x", 1, &o);
    ev = tio_wait(a, SGMP_EV_OUTCOME, 0, 5000);
    CHECK_INT(ev.g.id, id);
    CHECK(ev.g.status < 0);
    to.key_id = 99; /* no such key: the outcome says so */
    id = sgmp_send(a->ctx, a->port, &to, (const uint8_t *)"x", 1, &o);
    if (id > 0)
        CHECK(tio_wait(a, SGMP_EV_OUTCOME, 0, 5000).g.status < 0);
    tio_free(a);
    tio_free(b);
}

/* A call without an answer has an outcome whatever becomes of it: refused in the caller's thread or
 * by the loop, given up, delivered. */
TEST(io_gmp_oneway_calls_have_an_outcome)
{
    enum { N = 50 };
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b), unknown = {.addr = b->at, .key_id = 99};
    sgmp_opts o = {.flags = SGMP_ONEWAY, .deadline_ms = 500};
    int64_t id = sgmp_call(a->ctx, a->port, &to, 1, (const uint8_t *)"x", 1, &o);
    CHECK(id > 0);
    udt_event ev = tio_wait(a, SGMP_EV_OUTCOME, 0, 5000);
    CHECK(ev.g.id == (uint64_t)id && ev.g.status == 0);
    for (int i = 0; i < N; i++) { /* some meet a loop that is awake */
        id = sgmp_call(a->ctx, a->port, &unknown, 1, (const uint8_t *)"x", 1, &o);
        CHECK(id > 0);
        ev = tio_wait(a, SGMP_EV_OUTCOME, 0, 5000);
        CHECK(ev.g.id == (uint64_t)id);
        CHECK_INT(ev.g.status, UDT_E_NOKEY);
    }
    CHECK_INT(udt_port_close(b->ctx, b->port), 0);
    id = sgmp_call(a->ctx, a->port, &to, 1, (const uint8_t *)"x", 1, &o);
    ev = tio_wait(a, SGMP_EV_OUTCOME, 0, 5000);
    CHECK(ev.g.id == (uint64_t)id && ev.g.status < 0);
    CHECK(!tio_take(a, SGMP_EV_RESPONSE, 0, &ev));
    tio_free(a);
    tio_free(b);
}

TEST(io_gmp_bad_arguments)
{
    tio *a = tio_open(4, 0);
    sgmp_dest to = {.addr = tio_loopback(4, 9), .key_id = 1};
    uint8_t buf[300] = {0};
    sgmp_opts control = {.flags = SGMP_CONTROL};
    sgmp_key k = {.key_id = 0, .alg = SGMP_ALG_AES256GCM};
    CHECK_INT(sgmp_send(a->ctx, a->port, &to, buf, 1, NULL), UDT_E_STATE); /* no node yet */
    CHECK(udt_listen(a->ctx, a->port, NULL, 0) > 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, true), UDT_E_INUSE); /* the listener is taken */
    tio_free(a);
    a = tio_open(4, 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, true), 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, true), UDT_E_STATE);
    CHECK_INT(udt_listen(a->ctx, a->port, NULL, 0), UDT_E_INUSE);
    CHECK_INT(sgmp_key_add(a->ctx, a->port, &k), UDT_E_INVAL);
    CHECK_INT(sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, &control), UDT_E_TOOBIG);
    to.addr = tio_loopback(6, 9);
    CHECK_INT(sgmp_send(a->ctx, a->port, &to, buf, 1, NULL), UDT_E_INVAL);
    CHECK_INT(sgmp_cancel(a->ctx, 77, 1), UDT_E_NOSOCK);
    tio_free(a);
}

/* A receiver that does not poll: deliveries stop, memory stays bounded, then all goes on. */
TEST(io_gmp_slow_application)
{
    tio *a = tio_open(4, 0), *b = calloc(1, sizeof *b);
    udt_ctx_config cfg = {.max_events = 64};
    udt_addr at = tio_loopback(4, 0);
    CHECK_INT(udt_ctx_new(&cfg, &b->ctx), 0);
    b->port = udt_port_open(b->ctx, &at, 0, 0);
    CHECK_INT(udt_port_addr(b->ctx, b->port, &b->at), 0);
    CHECK_INT(sgmp_open(a->ctx, a->port, true), 0);
    CHECK_INT(sgmp_open(b->ctx, b->port, true), 0);
    add_key(a, "b");
    add_key(b, "a");
    sgmp_dest to = dest(b);
    uint8_t buf[200] = {0};
    int sent = 0, got = 0, again = 0;
    for (; sent < 400; sent++)
        CHECK(sgmp_send(a->ctx, a->port, &to, buf, sizeof buf, NULL) > 0);
    usleep(500000);
    int64_t limit = tio_now_us() + 20000000;
    udt_event ev[8];
    while (got < sent) {
        CHECK(tio_now_us() < limit);
        int n = udt_ctx_poll(b->ctx, ev, 8);
        again += n == 0;
        for (int i = 0; i < n; i++) {
            got += ev[i].kind == SGMP_EV_MESSAGE;
            udt_event_release(b->ctx, &ev[i]);
        }
        if (n == 0)
            usleep(1000);
    }
    CHECK_INT(got, sent);
    tio_free(a);
    tio_free(b);
}

TEST(io_gmp_manual)
{
    tio *a, *b;
    gmp_pair(&a, &b, UDT_PORT_MANUAL);
    sgmp_dest to = dest(b);
    uint8_t buf[1000];
    udt_event ev;
    for (int i = 0; i < 100; i++) {
        int64_t limit = tio_now_us() + 5000000;
        tio_fill(buf, sizeof buf, (uint64_t)i, 0);
        int64_t id = sgmp_call(a->ctx, a->port, &to, 3, buf, sizeof buf, NULL);
        CHECK(id > 0);
        for (;;) {
            CHECK(tio_now_us() < limit);
            CHECK_INT(udt_port_run(a->ctx, a->port, 200), 0);
            CHECK_INT(udt_port_run(b->ctx, b->port, 200), 0);
            tio_pull(a, 0);
            tio_pull(b, 0);
            if (tio_take(b, SGMP_EV_REQUEST, 0, &ev)) {
                CHECK_INT(sgmp_reply(b->ctx, b->port, ev.g.id, 7 - 7, ev.g.data, ev.g.len), 0);
                udt_event_release(b->ctx, &ev);
            }
            if (tio_take(a, SGMP_EV_RESPONSE, 0, &ev))
                break;
        }
        CHECK_INT(ev.g.id, id);
        tio_check(ev.g.data, ev.g.len, (uint64_t)i, 0);
        udt_event_release(a->ctx, &ev);
    }
    tio_free(a);
    tio_free(b);
}

/* More connections than there are places for over-size messages, kept alive byte by byte by
 * somebody without a key: who has one is heard. */
TEST(io_gmp_strangers_keep_no_large_message_out)
{
    enum { N = 300, LEN = 200000 };
    tio *a, *b, *x = tio_open(4, 0);
    static uint8_t big[LEN];
    udt_sock_opts so = {.own_peer = true};
    int32_t s[N];
    udt_event ev;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    for (int i = 0; i < N; i++) {
        s[i] = udt_connect(x->ctx, x->port, &b->at, &so);
        tio_wait(x, UDT_IO_CONNECTED, s[i], 5000);
        CHECK_INT(udt_send(x->ctx, s[i], (const uint8_t *)"G", 1), 1);
    }
    tio_fill(big, LEN, 1, 0);
    int64_t id = 0, end = tio_now_us() + 5000000;
    do {
        CHECK(tio_now_us() < end);
        for (int i = 0; i < N; i++)
            (void)udt_send(x->ctx, s[i], (const uint8_t *)"G", 1);
        usleep(200000);
        id = id ? id : sgmp_send(a->ctx, a->port, &to, big, LEN, NULL);
        CHECK(id > 0);
        tio_pull(a, 100000);
    } while (!tio_take(a, SGMP_EV_OUTCOME, 0, &ev));
    CHECK(ev.g.id == (uint64_t)id && ev.g.status == 0);
    tio_free(a);
    tio_free(b);
    tio_free(x);
}

/* A stream that the node gives up is closed, not kept until its peer says something. */
TEST(io_gmp_streams_that_are_given_up_are_closed)
{
    tio *a, *b, *x = tio_open(4, UDT_PORT_MANUAL);
    udt_sock_opts so = {.own_peer = true};
    udt_event ev;
    bool done = false;
    gmp_pair(&a, &b, UDT_PORT_MANUAL);
    int32_t s = udt_connect(x->ctx, x->port, &b->at, &so);
    int64_t end = tio_now_us() + 5000000;
    for (int step = 0; !done;) {
        CHECK(tio_now_us() < end);
        CHECK_INT(udt_port_run(b->ctx, b->port, 1000), 0);
        CHECK_INT(udt_port_run(x->ctx, x->port, 1000), 0);
        tio_pull(x, 0);
        if (step == 0 && tio_take(x, UDT_IO_CONNECTED, s, &ev)) {
            CHECK_INT(udt_send(x->ctx, s, (const uint8_t *)"G", 1), 1);
            step = 1;
        }
        if (step > 0 && step++ == 50) { /* ten seconds later, as far as the node knows */
            io_port *p;
            CHECK(io_handle_get(b->ctx, b->port, IO_KIND_PORT, &p));
            sgmp_node_tick(p->node, p->now + 10500000);
            io_handle_put(b->ctx, b->port);
        }
        done = tio_take(x, UDT_IO_PEER_CLOSED, s, &ev);
    }
    tio_free(a);
    tio_free(b);
    tio_free(x);
}

/* More answers than a peer's queue holds at once: none is lost. */
TEST(io_gmp_answers_wait_for_room)
{
    enum { CALLS = 60, EACH = 150000 };
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    static uint8_t buf[EACH];
    uint64_t ids[CALLS];
    int64_t first = 0;
    udt_event ev;
    for (int i = 0; i < CALLS; i++) {
        int64_t id = sgmp_call(a->ctx, a->port, &to, 1, (const uint8_t *)&i, sizeof i, NULL);
        CHECK(id > 0);
        first = i ? first : id;
    }
    for (int i = 0; i < CALLS; i++) {
        int k;
        ev = tio_wait(b, SGMP_EV_REQUEST, 0, 10000);
        memcpy(&k, ev.g.data, sizeof k);
        ids[k] = ev.g.id;
        udt_event_release(b->ctx, &ev);
    }
    for (int i = 0; i < CALLS; i++) {
        tio_fill(buf, sizeof buf, (uint64_t)i, 0);
        CHECK_INT(sgmp_reply(b->ctx, b->port, ids[i], 0, buf, sizeof buf), 0);
    }
    for (int i = 0; i < CALLS; i++) {
        ev = tio_wait(a, SGMP_EV_RESPONSE, 0, 30000);
        CHECK_INT(ev.g.status, 0);
        CHECK_INT(ev.g.len, sizeof buf);
        tio_check(ev.g.data, ev.g.len, ev.g.id - (uint64_t)first, 0);
        udt_event_release(a->ctx, &ev);
    }
    tio_free(a);
    tio_free(b);
}
