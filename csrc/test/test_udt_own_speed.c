/* What own mode and sealing cost: nanoseconds of CPU per packet of each side, beside UDT4's. Two
 * engines joined by function calls, 100 us apart. */
#include "test_udt_own.h"
#include "test_udt_side.h"
#include "udt_err.h"

static uint8_t app[1 << 18], in[1 << 18];

static void open_both(side *s, int kind, udt_time now)
{
    struct udt_ev ev;
    udt_opts o;
    for (int e = 0; e < 2; e++) {
        udt_mux_config cfg = {.rand = sim_rng_bytes, .rand_arg = &s[e].rng};
        sim_rng_seed(&s[e].rng, (uint64_t)e + 1);
        s[e].addr = test_addr((uint8_t)(e + 1), 9000);
        s[e].m = udt_mux_new(&cfg);
        CHECK(s[e].m);
    }
    udt_opts_init(&o);
    o.own_peer = true;
    o.cc = "udt";
    o.snd_buf_bytes = o.rcv_buf_bytes = 4 << 20;
    CHECK(udt_mux_listen(s[1].m, &o, 4) > 0);
    s[0].sock = udt_mux_connect(s[0].m, &s[1].addr, &o, now);
    for (int i = 0; i < 4; i++) {
        carry(&s[0], &s[1], now);
        carry(&s[1], &s[0], now);
    }
    while (udt_mux_next_event(s[1].m, &ev))
        s[1].sock = ev.sock;
    CHECK(s[1].sock > 0);
    world w = {.m = {s[0].m, s[1].m}};
    pair p = {{s[0].sock, s[1].sock}};
    if (kind >= 0)
        for (int e = 0; e < 2; e++)
            own_begin(udt__mux_find(w.m[e], p.s[e]), e, (enum own_kind)kind, 0, now);
    s[0].ns = s[1].ns = 0;
}

static void measure(int kind, const char *name, uint64_t size)
{
    side s[2] = {0};
    udt_time now = 1000000;
    uint64_t got = 0;
    open_both(s, kind, now);
    while (got < size) {
        int64_t t0 = cpu_ns();
        while (udt_mux_send(s[0].m, s[0].sock, app, sizeof app, now) > 0)
            ;
        s[0].ns += cpu_ns() - t0;
        carry(&s[0], &s[1], now);
        t0 = cpu_ns();
        for (ssize_t n; (n = udt_mux_recv(s[1].m, s[1].sock, in, sizeof in, now)) > 0;)
            got += (uint64_t)n;
        s[1].ns += cpu_ns() - t0;
        now += 100;
        carry(&s[1], &s[0], now);
        CHECK(now < 120000000);
    }
    udt_stats st;
    CHECK_INT(udt_mux_stats(s[0].m, s[0].sock, &st), 0);
    double pkts = (double)st.pkts_sent;
    printf(
        "%-28s %4.0f and %4.0f ns per packet (sender, receiver), %.2f and %.2f CPU-s/GB, %" PRId64
        " again, %" PRId64 " ACKs\n",
        name, (double)s[0].ns / pkts, (double)s[1].ns / pkts,
        (double)s[0].ns / (double)st.bytes_sent, (double)s[1].ns / (double)st.bytes_sent,
        st.pkts_retrans, st.acks_recv);
    udt_mux_free(s[0].m);
    udt_mux_free(s[1].m);
}

TEST_ALONE(udt_own_costs)
{
    uint64_t size = (uint64_t)400000000 * (uint64_t)test_scale / 100;
    measure(-1, "UDT4", size);
    measure(OWN_PLAIN, "own mode", size);
    measure(OWN_CONTROL, "own mode, control sealed", size);
    measure(OWN_SEALED, "own mode, all sealed", size);
}
