/* A port whose queue of commands is full, because its loop is at something else: what passes all
 * the same, and who is told when there is room. */
#include "io/priv.h"
#include "test_io_gmp.h"

/* Every outcome of the messages 1 .. n and one WRITABLE for everybody. */
static void take_all(tio *a, tio *b, int n, uint64_t cancelled)
{
    int settled = 0, writable = 0;
    int64_t limit = tio_now_us() + 20000000;
    while (settled < n || writable == 0) {
        udt_event some[64];
        CHECK(tio_now_us() < limit);
        int got = udt_ctx_poll(a->ctx, some, 64);
        for (int i = 0; i < got; i++) {
            if (some[i].kind == SGMP_EV_WRITABLE && some[i].g.from.family == 0)
                writable++;
            if (some[i].kind != SGMP_EV_OUTCOME)
                continue;
            settled++;
            if (some[i].g.id == cancelled)
                CHECK(some[i].g.status == UDT_E_NOTSENT || some[i].g.status == UDT_E_CANCELLED);
            else
                CHECK_INT(some[i].g.status, 0);
        }
        got = udt_ctx_poll(b->ctx, some, 64);
        for (int i = 0; i < got; i++)
            udt_event_release(b->ctx, &some[i]);
    }
}

TEST(io_gmp_a_cancel_passes_a_full_queue_of_commands)
{
    tio *a, *b;
    gmp_pair(&a, &b, 0);
    sgmp_dest to = dest(b);
    sgmp_opts long_one = {.deadline_ms = 60000};
    io_port *p = io_handle_get(a->ctx, a->port, IO_KIND_PORT, NULL);
    CHECK(p != NULL);
    pthread_mutex_lock(&p->mu); /* the loop is busy */
    uint64_t first = 0;
    int n = 0;
    int64_t id;
    while ((id = sgmp_send(a->ctx, a->port, &to, (const uint8_t *)"x", 1, &long_one)) > 0) {
        first = first ? first : (uint64_t)id;
        n++;
    }
    CHECK_INT(id, UDT_E_AGAIN);
    CHECK_INT(n, IO_MAX_CMDS);
    CHECK_INT(sgmp_cancel(a->ctx, a->port, first), 0);
    pthread_mutex_unlock(&p->mu);
    io_handle_put(a->ctx, a->port);
    take_all(a, b, n, first);
    tio_free(a);
    tio_free(b);
}
