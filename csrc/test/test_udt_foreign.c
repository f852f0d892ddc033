/* What a sender does for a libudt receiver: packets that it confirms at once, little in its
 * socket. */
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_util.h"
#include "udt/conn.h"

TEST(udt_foreign_stream_has_short_packets_that_are_confirmed_at_once)
{
    world w;
    udt_opts o;
    static uint8_t data[6000000], out[65536];
    world_init(&w, test_seed, NULL, NULL);
    udt_opts_init(&o);
    o.snd_buf_bytes = sizeof data;
    pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
    udt_conn *c = udt__mux_find(w.m[0], p.s[0]);
    c->cc.cwnd_pkts = 5000;
    c->room_pkts = 5000;
    fill(data, 7, 0, sizeof data);
    udt_time now = sim_net_now(w.net);
    CHECK_INT(udt_mux_send(w.m[0], p.s[0], data, sizeof data, now), sizeof data);
    size_t at = 0, pkts = 0, brief = 0, rest = 1000000, last = 0;
    for (size_t n, seg; at < sizeof data - rest; now += 50) {
        udt_addr to;
        udt_mux_tick(w.m[0], now);
        n = udt_mux_output(w.m[0], out, sizeof out, 64, &to, &seg, now);
        if (n == 0 || be32_get(out) >> 31)
            continue;
        for (size_t i = 0; i < n; i += seg) {
            size_t len = (i + seg < n ? seg : n - i) - UDT_HDR_BYTES;
            if ((be32_get(out + i) & SEQ_MASK) != seq_add(c->isn, (int64_t)pkts))
                continue; /* a probe */
            CHECK_MEM(out + i + UDT_HDR_BYTES, data + at, len);
            at += len;
            pkts++;
            if (len == c->payload)
                continue;
            CHECK(pkts - last == 1024);
            last = pkts;
            brief++;
        }
    }
    CHECK_INT(brief, pkts / 1024);
    CHECK(brief >= 3);
    world_fini(&w);
}

/* A libudt socket that holds 200 packets, as where net.core.rmem_max is as kernels come with it. */
TEST(udt_foreign_socket_on_a_short_path_is_not_overrun)
{
    world w;
    udt_opts o;
    sim_link l = {.rate_bps = 3000000000, .delay_us = 30, .queue_bytes = 300000};
    world_init(&w, test_seed, &l, &l);
    udt_opts_init(&o);
    pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
    flow f = {.from = 0, .seed = 1, .size = 300000000};
    udt_time start = sim_net_now(w.net);
    CHECK(world_move(&w, &p, &f, 1, start + 10000000));
    double gbps = (double)f.size * 8e-3 / (double)(sim_net_now(w.net) - start);
    udt_stats st;
    CHECK_INT(udt_mux_stats(w.m[0], p.s[0], &st), 0);
    printf("%.2f Gb/s, %lld of %lld packets again\n", gbps, (long long)st.pkts_retrans,
           (long long)st.pkts_sent);
    CHECK(st.pkts_retrans * 100 <= st.pkts_sent);
    CHECK(gbps > 2.5);
    flow_fini(&f);
    world_fini(&w);
}

/* Pairs that come faster than links do, and what is said of them: near by, and elsewhere. */
TEST(udt_foreign_sender_near_by_is_told_how_fast_packets_come)
{
    for (int far = 0; far < 2; far++) {
        world w;
        udt_opts o;
        sim_link l = {.rate_bps = 5000000000, .delay_us = far ? 1000 : 30, .queue_bytes = 20000000};
        world_init(&w, test_seed, &l, &l);
        udt_opts_init(&o);
        pair p = world_connect(&w, PAIR_CLIENT, &o, 20000000);
        flow f = {.from = 0, .seed = 1, .size = 100000000};
        CHECK(world_move(&w, &p, &f, 1, sim_net_now(w.net) + 10000000));
        udt_conn *c = udt__mux_find(w.m[1], p.s[1]);
        int64_t rate = 100000, capacity = 400000;
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, far ? 400000 : 1000000);
        CHECK_INT(rate, far ? 100000 : 1000000);
        rate = 50000, capacity = 81000; /* a link of 1 Gb/s */
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, 81000);
        CHECK_INT(rate, far ? 50000 : 81000);
        c->st.naks_sent++;
        rate = 100000, capacity = 400000;
        udt__foreign_say(c, &rate, &capacity);
        CHECK_INT(capacity, 400000);
        CHECK_INT(rate, 100000);
        flow_fini(&f);
        world_fini(&w);
    }
}

/* Two ports without a network between them, so that a test decides what arrives. */
typedef struct bench {
    udt_mux *m[2];
    udt_addr at[2];
    int32_t sock[2];
} bench;

static const udt_addr BENCH[2] = {{.family = 4, .port = 5000, .ip = {10, 0, 0, 1}},
                                  {.family = 4, .port = 9000, .ip = {10, 0, 0, 2}}};

static void bench_random(void *arg, uint8_t *buf, size_t len)
{
    uint64_t *x = arg;
    for (size_t i = 0; i < len; i++) {
        *x = *x * 6364136223846793005u + 1442695040888963407u;
        buf[i] = (uint8_t)(*x >> 56);
    }
}

static void bench_open(bench *b, uint64_t *seed, udt_time now)
{
    udt_mux_config cfg = {.rand = bench_random, .rand_arg = seed, .mss = 1500};
    udt_opts o;
    udt_opts_init(&o);
    o.connect_timeout_ms = 30000;
    for (int e = 0; e < 2; e++)
        CHECK((b->m[e] = udt_mux_new(&cfg)));
    CHECK(udt_mux_listen(b->m[1], &o, 5) > 0);
    CHECK((b->sock[0] = udt_mux_connect(b->m[0], &BENCH[1], &o, now)) > 0);
}

static void bench_close(bench *b)
{
    udt_mux_free(b->m[0]);
    udt_mux_free(b->m[1]);
}

/* The type of a control packet, -1 for data. */
static int kind_of(const uint8_t *pkt)
{
    return pkt[0] >> 7 ? (int)(be32_get(pkt) >> 16 & 0x7fff) : -1;
}

/* Everything that end `e` says now goes to the other one, except what `drop` says. Returns how many
 * packets were not handshakes. */
static int bench_pass(bench *b, int e, bool (*drop)(const uint8_t *, size_t), udt_time now)
{
    static uint8_t buf[65536];
    size_t n, seg;
    udt_addr to;
    int others = 0;
    udt_mux_tick(b->m[e], now);
    while ((n = udt_mux_output(b->m[e], buf, sizeof buf, 64, &to, &seg, now)) > 0)
        for (size_t i = 0; i < n; i += seg) {
            size_t len = i + seg < n ? seg : n - i;
            others += kind_of(buf + i) != UDT_CTRL_HANDSHAKE;
            if (!drop || !drop(buf + i, len))
                udt_mux_input(b->m[!e], &BENCH[e], buf + i, len, now);
        }
    udt_mux_burst_end(b->m[!e], now);
    return others;
}

static bool is_response(const uint8_t *pkt, size_t len)
{
    (void)len;
    return kind_of(pkt) == UDT_CTRL_HANDSHAKE && be32_get(pkt + 36) == 0xffffffff;
}

static bool is_anything(const uint8_t *pkt, size_t len)
{
    (void)pkt;
    (void)len;
    return true;
}

/* A connection whose server has said that it exists, in vain. */
static udt_conn *bench_unheard(bench *b, uint64_t *seed, udt_time now)
{
    struct udt_ev ev;
    bench_open(b, seed, now);
    for (int i = 0; i < 2; i++) {
        bench_pass(b, 0, NULL, now);
        bench_pass(b, 1, i ? is_response : NULL, now);
    }
    while (udt_mux_next_event(b->m[1], &ev))
        b->sock[1] = ev.kind == UDT_EV_ACCEPTED ? ev.sock : b->sock[1];
    CHECK(b->sock[1] > 0);
    return udt__mux_find(b->m[0], b->sock[0]);
}

TEST(udt_foreign_client_without_an_answer_gets_handshakes_only)
{
    static uint8_t data[30000];
    bench b = {0};
    uint64_t seed = test_seed;
    udt_time now = 1000000, sent = 0;
    udt_conn *client = bench_unheard(&b, &seed, now);
    fill(data, 3, 0, sizeof data);
    CHECK_INT(udt_mux_send(b.m[1], b.sock[1], data, sizeof data, now), sizeof data);
    /* The question brings the request again, and that the answer; the next question finds the
     * client connected. */
    for (int step = 0; step < 40 && !sent; step++, now += 1000) {
        bool connected = client->state == CONN_OPEN;
        int others = bench_pass(&b, 1, NULL, now);
        CHECK(connected || others == 0);
        sent = others ? now : 0;
        bench_pass(&b, 0, NULL, now);
    }
    CHECK_INT(client->state, CONN_OPEN);
    CHECK(sent > 0);
    for (int step = 0; step < 50; step++, now += 1000) {
        bench_pass(&b, 1, NULL, now);
        bench_pass(&b, 0, NULL, now);
    }
    CHECK_INT(udt__mux_find(b.m[1], b.sock[1])->snd.head, 21);
    bench_close(&b);
}

TEST(udt_foreign_client_that_answers_no_question_is_sent_to_in_the_end)
{
    bench b = {0};
    uint64_t seed = test_seed;
    udt_time now = 1000000, begin = now;
    bench_unheard(&b, &seed, now);
    CHECK_INT(udt_mux_send(b.m[1], b.sock[1], (const uint8_t *)"early", 5, now), 5);
    int questions = 0, others = 0;
    for (; others == 0 && now < begin + 10000000; now += 1000) {
        uint64_t before = b.m[1]->ready.next != &b.m[1]->ready;
        others = bench_pass(&b, 1, is_anything, now);
        questions += before && !others;
    }
    CHECK(others > 0);
    CHECK(now - begin > 2000000 && now - begin < 6000000);
    bench_close(&b);
}

/* Who shuts at once says with it that there was a connection. */
TEST(udt_foreign_client_without_an_answer_hears_it_before_the_shutdown)
{
    bench b = {0};
    uint64_t seed = test_seed;
    udt_time now = 1000000;
    struct udt_ev ev;
    udt_conn *client = bench_unheard(&b, &seed, now);
    CHECK_INT(udt_mux_close(b.m[1], b.sock[1], 1000, now), 0);
    for (int step = 0; step < 300 && client->state != CONN_PEERCLOSED; step++, now += 1000) {
        bench_pass(&b, 1, NULL, now);
        bench_pass(&b, 0, NULL, now);
    }
    CHECK_INT(client->state, CONN_PEERCLOSED);
    CHECK(udt_mux_next_event(b.m[0], &ev));
    CHECK_INT(ev.kind, UDT_EV_CONNECTED);
    bench_close(&b);
}

static int acks_dropped;

static bool is_ack(const uint8_t *pkt, size_t len)
{
    (void)len;
    acks_dropped += kind_of(pkt) == UDT_CTRL_ACK;
    return kind_of(pkt) == UDT_CTRL_ACK;
}

/* A libudt client drops what comes in the moment it connects: the first acknowledgement, nearly
 * always, and waits for the next. */
TEST(udt_foreign_sender_need_not_wait_for_the_acknowledgement_that_it_missed)
{
    static uint8_t data[20000];
    bench b = {0};
    uint64_t seed = test_seed;
    udt_time now = 1000000, first = 0;
    bench_open(&b, &seed, now);
    for (int i = 0; i < 2; i++) {
        bench_pass(&b, 0, NULL, now);
        bench_pass(&b, 1, NULL, now);
    }
    fill(data, 3, 0, sizeof data);
    CHECK_INT(udt_mux_send(b.m[0], b.sock[0], data, sizeof data, now), sizeof data);
    acks_dropped = 0;
    bench_pass(&b, 0, NULL, now); /* and says no more, as one whose window is full */
    for (; acks_dropped < 3 && now < 3000000; now += 1000) {
        bench_pass(&b, 1, is_ack, now);
        first = first || !acks_dropped ? first : now;
    }
    CHECK_INT(acks_dropped, 3);
    CHECK(now - first >= 30000 && now - first <= 60000);
    udt_conn *client = udt__mux_find(b.m[0], b.sock[0]);
    udt_time until = now + 100000;
    for (; client->snd.head < 14 && now < until; now += 1000) {
        bench_pass(&b, 0, NULL, now);
        bench_pass(&b, 1, NULL, now);
    }
    CHECK_INT(client->snd.head, 14);
    for (until = now + 1000000, acks_dropped = 0; now < until; now += 1000) {
        bench_pass(&b, 0, NULL, now);
        bench_pass(&b, 1, is_ack, now);
    }
    CHECK_INT(acks_dropped, 0); /* it was answered */
    bench_close(&b);
}

static int64_t holes_at;

/* Two packets the first time, and every report. */
static bool is_hole_or_report(const uint8_t *pkt, size_t len)
{
    (void)len;
    if (kind_of(pkt) == UDT_CTRL_NAK)
        return true;
    if (kind_of(pkt) >= 0)
        return false;
    int64_t i = holes_at++;
    return i == 3 || i == 7;
}

/* libudt reports a hole once; where that is lost and the last packet has arrived, only the hole
 * itself brings an answer. */
TEST(udt_foreign_holes_are_filled_without_a_report)
{
    static uint8_t data[20000];
    bench b = {0};
    uint64_t seed = test_seed;
    udt_time now = 1000000;
    struct udt_ev ev;
    bench_open(&b, &seed, now);
    for (int i = 0; i < 4; i++, now += 1000) {
        bench_pass(&b, 0, NULL, now);
        bench_pass(&b, 1, NULL, now);
    }
    while (udt_mux_next_event(b.m[1], &ev))
        b.sock[1] = ev.kind == UDT_EV_ACCEPTED ? ev.sock : b.sock[1];
    udt_conn *c = udt__mux_find(b.m[0], b.sock[0]);
    CHECK_INT(c->state, CONN_OPEN);
    holes_at = 0;
    CHECK_INT(udt_mux_send(b.m[0], b.sock[0], data, sizeof data, now), sizeof data);
    udt_time begin = now;
    while (c->snd.head < c->snd.tail && now < begin + 10000000) {
        bench_pass(&b, 0, is_hole_or_report, now);
        bench_pass(&b, 1, is_hole_or_report, now);
        now += 1000;
    }
    printf("%.3f s, %lld packets again\n", (double)(now - begin) * 1e-6,
           (long long)c->st.pkts_retrans);
    CHECK(now - begin < 500000);
    CHECK(c->st.pkts_retrans < 20);
    bench_close(&b);
}

/* An acknowledgement that comes late because the first ones were lost is no round trip. */
TEST(udt_foreign_first_acknowledgements_lost_are_no_round_trip)
{
    for (uint32_t number = 1; number <= 3; number += 2) {
        bench b = {0};
        uint64_t seed = test_seed;
        udt_time now = 1000000;
        bench_open(&b, &seed, now);
        for (int i = 0; i < 4; i++) {
            bench_pass(&b, 0, NULL, now);
            bench_pass(&b, 1, NULL, now);
        }
        udt_conn *c = udt__mux_find(b.m[0], b.sock[0]);
        CHECK_INT(c->state, CONN_OPEN);
        c->rtt_known = false; /* as after a handshake that was repeated */
        CHECK_INT(udt_mux_send(b.m[0], b.sock[0], (const uint8_t *)"12345", 5, now), 5);
        bench_pass(&b, 0, is_anything, now);
        now += 700000;
        uint8_t ack[UDT_CTRL_MAX];
        const uint32_t words[4] = {seq_add(c->isn, 1), 100000, 50000, 8000};
        size_t n = udt_pkt_put_ctrl(ack, UDT_CTRL_ACK, number, c->id, words, 4);
        udt_mux_input(b.m[0], &BENCH[1], ack, n, now);
        CHECK_INT(c->snd.head, 1);
        CHECK_INT(c->guessed_at > 0, number > 1);
        bench_close(&b);
    }
}
