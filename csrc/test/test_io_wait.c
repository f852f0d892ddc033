/* Commands that meet a full peer wait for room: how long, and what the loop does meanwhile. */
#include "io/priv.h"
#include "test_clock.h"
#include "test_io.h"

#include <unistd.h>

/* A port and a peer that takes everything and says nothing. */
typedef struct lone {
    tio *t;
    io_port *p;
    int mute;
    sgmp_dest to;
    int64_t since; /* time 0 of later() */
} lone;

static lone lone_open(void)
{
    lone l = {.t = tio_open(4, 0), .mute = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in in = {.sin_family = AF_INET}; /* all of 127.0.0.0/8 */
    socklen_t len = sizeof in;
    CHECK_INT(bind(l.mute, (struct sockaddr *)&in, len), 0);
    CHECK_INT(getsockname(l.mute, (struct sockaddr *)&in, &len), 0);
    CHECK_INT(sgmp_open(l.t->ctx, l.t->port, false), 0);
    l.to.addr = tio_loopback(4, ntohs(in.sin_port));
    l.p = io_handle_get(l.t->ctx, l.t->port, IO_KIND_PORT, NULL);
    CHECK(l.p);
    return l;
}

static void lone_close(lone *l)
{
    clock_stop(0);
    io_handle_put(l->t->ctx, l->t->port);
    close(l->mute);
    tio_free(l->t);
}

/* The loop is kept busy, so that what is asked meanwhile is queued; then it takes all of it. */
static void busy(lone *l)
{
    pthread_mutex_lock(&l->p->mu);
}

/* The loop has taken what was asked. */
static void taken(lone *l)
{
    pthread_mutex_lock(&l->p->mu);
    while (io_cmd_waiting(l->p)) {
        pthread_mutex_unlock(&l->p->mu);
        usleep(50);
        pthread_mutex_lock(&l->p->mu);
    }
    pthread_mutex_unlock(&l->p->mu);
}

static void idle(lone *l)
{
    pthread_mutex_unlock(&l->p->mu);
    usleep(1000);
    taken(l);
}

/* As many messages as the queue towards the peer takes. */
static int64_t fill(lone *l)
{
    static const sgmp_opts o = {.deadline_ms = 200000};
    int64_t first = 0;
    for (int i = 0; i < 1024; i++) {
        int64_t id = sgmp_send(l->t->ctx, l->t->port, &l->to, NULL, 0, &o);
        CHECK(id > 0);
        first = first ? first : id;
    }
    return first;
}

/* The loop's clock stands at `s` seconds, and the loop has seen that. */
static void later(lone *l, int s)
{
    l->since = l->since ? l->since : tio_now_us();
    clock_stop(l->since + (int64_t)s * 1000000);
    for (int i = 0; i < 20; i++) {
        io_wake(l->p);
        usleep(10000);
    }
    tio_pull(l->t, 0);
}

static bool ended(lone *l, int kind, int64_t id, udt_event *ev)
{
    for (int i = 0; i < l->t->n; i++)
        if (l->t->ev[i].kind == kind && l->t->ev[i].g.id == (uint64_t)id) {
            *ev = l->t->ev[i];
            return true;
        }
    return false;
}

static void check_waits(lone *l, int kind, int64_t id, int s, int status)
{
    udt_event ev;
    later(l, s - 1);
    if (ended(l, kind, id, &ev))
        test_fail(__FILE__, __LINE__, "ended after less than %d s with %d", s, ev.g.status);
    later(l, s + 1);
    if (!ended(l, kind, id, &ev))
        test_fail(__FILE__, __LINE__, "not ended after %d s", s);
    CHECK_INT(ev.g.status, status);
}

/* The defaults of sgmp.h hold from the call on, wherever it waits. */
TEST(io_gmp_who_waits_for_room_has_its_own_deadline)
{
    static const uint8_t large[3000];
    static const sgmp_opts short_ttl = {.ttl_ms = 10000};
    struct {
        int kind, s, status;
        int64_t id;
    } w[] = {{SGMP_EV_OUTCOME, 10, UDT_E_NOTSENT, 0},
             {SGMP_EV_OUTCOME, 30, UDT_E_NOTSENT, 0},
             {SGMP_EV_RESPONSE, 60, SGMP_RPC_TIMEOUT, 0}};
    lone l = lone_open();
    udt_ctx *c = l.t->ctx;
    later(&l, 0);
    busy(&l);
    fill(&l);
    w[0].id = sgmp_send(c, l.t->port, &l.to, large, 10, &short_ttl);
    w[1].id = sgmp_send(c, l.t->port, &l.to, large, 10, NULL);
    w[2].id = sgmp_call(c, l.t->port, &l.to, 1, large, 10, NULL);
    idle(&l);
    for (int i = 0; i < 3; i++) {
        CHECK(w[i].id > 0);
        check_waits(&l, w[i].kind, w[i].id, w[i].s, w[i].status);
    }
    lone_close(&l);
}

/* What it waited counts when there is room. */
TEST(io_gmp_waiting_for_room_is_part_of_the_deadline)
{
    lone l = lone_open();
    later(&l, 0);
    busy(&l);
    int64_t first = fill(&l);
    int64_t id = sgmp_call(l.t->ctx, l.t->port, &l.to, 1, NULL, 0, NULL);
    CHECK(id > 0);
    idle(&l);
    later(&l, 50);
    for (int i = 0; i < 1024; i++)
        CHECK_INT(sgmp_cancel(l.t->ctx, l.t->port, (uint64_t)(first + i)), 0);
    check_waits(&l, SGMP_EV_RESPONSE, id, 60, SGMP_RPC_TIMEOUT);
    lone_close(&l);
}

/* More over-size messages, or CONTROL messages, than a peer may have outstanding: the room that
 * they wait for is not the room of ordinary messages, of which there is plenty. */
TEST(io_gmp_the_loop_goes_on_while_any_kind_of_message_waits)
{
    static const uint8_t body[20000];
    for (int control = 0; control < 2; control++) {
        sgmp_opts o = {.flags = control ? SGMP_CONTROL : 0, .deadline_ms = 200000};
        lone l = lone_open();
        int64_t id[400];
        int n = control ? 300 : 80;
        busy(&l);
        for (int i = 0; i < n; i++) {
            id[i] = sgmp_send(l.t->ctx, l.t->port, &l.to, body, control ? 10 : sizeof body, &o);
            CHECK(id[i] > 0);
        }
        idle(&l);
        int32_t s = udt_connect(l.t->ctx, l.t->port, &l.to.addr,
                                &(udt_sock_opts){.type = 1, .connect_timeout_ms = 100});
        CHECK_INT(tio_wait(l.t, UDT_IO_FAILED, s, 5000).err, UDT_E_TIMEOUT);
        /* Nor has anybody been told that there is room. */
        udt_event ev;
        CHECK(!tio_take(l.t, SGMP_EV_WRITABLE, 0, &ev));
        for (int i = 0; i < n; i++) /* those that wait still get it */
            (void)sgmp_cancel(l.t->ctx, l.t->port, (uint64_t)id[i]);
        ev = tio_wait(l.t, SGMP_EV_WRITABLE, 0, 5000);
        CHECK_INT(ev.g.from.port, l.to.addr.port);
        lone_close(&l);
    }
}

/* More full peers than are remembered: everybody is taken for full then, and is told when that is
 * over, though nothing waits for room towards him. */
TEST(io_gmp_who_is_turned_away_for_others_is_told_too)
{
    enum { PEERS = 4300 };
    static const uint8_t body[1000];
    static const sgmp_opts o = {.deadline_ms = 200000};
    lone l = lone_open();
    sgmp_key k = {.key_id = 7, .alg = SGMP_ALG_AES256GCM, .principal = "x"};
    udt_event ev[256];
    bool everybody = false;
    CHECK_INT(sgmp_key_add(l.t->ctx, l.t->port, &k), 0);
    l.to.key_id = 7;
    later(&l, 0);
    for (int i = 0; i < PEERS; i++) { /* until the total is full, and one more of each */
        l.to.addr.ip[1] = (uint8_t)(1 + i / 250);
        l.to.addr.ip[2] = (uint8_t)(1 + i % 250);
        do { /* AGAIN of the queue towards the loop does not count */
            while (sgmp_send(l.t->ctx, l.t->port, &l.to, body, sizeof body, &o) > 0)
                ;
            taken(&l);
        } while (sgmp_send(l.t->ctx, l.t->port, &l.to, body, sizeof body, &o) > 0);
    }
    l.to.addr.ip[1] = 200;
    busy(&l);
    int64_t id = sgmp_send(l.t->ctx, l.t->port, &l.to, body, 1, &o);
    idle(&l);
    CHECK_INT(id, UDT_E_AGAIN);
    later(&l, 300);
    for (int64_t end = tio_now_us() + 20000000; !everybody;) {
        int n = udt_ctx_poll(l.t->ctx, ev, 256);
        CHECK(tio_now_us() < end);
        for (int i = 0; i < n; i++)
            everybody |= ev[i].kind == SGMP_EV_WRITABLE && ev[i].g.from.family == 0;
        usleep(n ? 0 : 1000);
    }
    lone_close(&l);
}
