/* Two UDT engines and a network that the input drives: datagrams are lost, delayed, doubled,
 * reflected, forged, and time leaps. Whatever it does, each end delivers a prefix of what the other
 * sent, memory stays in its budget, and after the input is used up the transfer ends within
 * END_US of virtual time: complete, or failed with an error if the network was away for long.
 *
 * Sealed connections (kind & 32) get damaged and cut datagrams too.
 *
 * Input: byte 0 = kind of connection, byte 1 = how much each side sends, then one byte per
 * datagram (script.h); every 256th turn two bytes more: a leap of time, a forged datagram. */
#include "base/bytes.h"
#include "fuzz/script.h"
#include "sim/net.h"
#include "udt/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUDGET = 16 << 20, END_US = 400 * 1000000, MAX_TURNS = 60000 };

static const udt_addr addr[2] = {{.family = 4, .port = 1000, .ip = {10, 0, 0, 1}},
                                 {.family = 4, .port = 2000, .ip = {10, 0, 0, 2}}};
static const udt_addr stranger = {.family = 4, .port = 3000, .ip = {10, 0, 0, 3}};

typedef struct side {
    udt_mux *m;
    sim_rng rng;
    int32_t sock;
    bool open, ended; /* connected; failed or closed by the peer */
    bool messages;
    uint64_t want, sent, got;
} side;

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static uint8_t byte_of(int from, uint64_t i)
{
    return (uint8_t)((i * 0x9e3779b97f4a7c15u + (uint64_t)from * 77) >> 56);
}

static void take_events(side *s)
{
    struct udt_ev ev;
    while (udt_mux_next_event(s->m, &ev)) {
        if (ev.kind == UDT_EV_CONNECTED && ev.sock == s->sock)
            s->open = true;
        if (ev.kind == UDT_EV_ACCEPTED && !s->open) {
            s->sock = ev.sock;
            s->open = true;
        }
        if ((ev.kind == UDT_EV_FAILED || ev.kind == UDT_EV_PEER_CLOSED) && ev.sock == s->sock)
            s->ended = true;
    }
}

static void read_all(side *s, int from, udt_time now)
{
    uint8_t buf[3000];
    ssize_t n;
    if (!s->open)
        return;
    while ((n = s->messages ? udt_mux_recvmsg(s->m, s->sock, buf, sizeof buf, now)
                            : udt_mux_recv(s->m, s->sock, buf, sizeof buf, now)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            expect(buf[i] == byte_of(from, s->got + (uint64_t)i));
        s->got += (uint64_t)n;
    }
}

static void write_some(side *s, int me, udt_time now)
{
    uint8_t buf[2500];
    while (s->open && !s->ended && s->sent < s->want) {
        size_t n = s->want - s->sent < sizeof buf ? (size_t)(s->want - s->sent) : sizeof buf;
        for (size_t i = 0; i < n; i++)
            buf[i] = byte_of(me, s->sent + i);
        ssize_t r = s->messages ? udt_mux_sendmsg(s->m, s->sock, buf, n, -1, true, now)
                                : udt_mux_send(s->m, s->sock, buf, n, now);
        if (r < 0)
            return;
        s->sent += s->messages ? n : (uint64_t)r;
    }
}

static void put_out(side *s, int me, wire *w, script *sc, udt_time now)
{
    uint8_t buf[65536];
    udt_addr to;
    size_t seg, len;
    for (int i = 0; i < 64 && (len = udt_mux_output(s->m, buf, sizeof buf, 64, &to, &seg, now)) > 0;
         i++)
        for (size_t at = 0; at < len; at += seg)
            if (memcmp(&to, &addr[!me], sizeof to) == 0)
                wire_send(w, sc, !me, &addr[me], buf + at, len - at < seg ? len - at : seg, now);
}

/* A forged datagram: control packet of any type, or data, to the right socket from elsewhere. */
static void forge(side *s, uint8_t what, udt_time now)
{
    uint8_t b[64] = {0};
    be32_put(b, what & 1 ? (uint32_t)what << 20 : 0x80000000u | (uint32_t)(what & 31) << 16);
    be32_put(b + 4, what);
    be32_put(b + 12, (uint32_t)s->sock);
    be32_put(b + 16, what);
    udt_mux_input(s->m, &stranger, b, 16 + (size_t)(what & 48), now);
}

/* One that was never met has nothing to wait for once the other has given up. */
static bool over(const side *s, const side *other)
{
    return s->got == other->want || s->ended || (!s->open && other->ended);
}

static bool done(const side *s)
{
    return over(&s[0], &s[1]) && over(&s[1], &s[0]);
}

static udt_time next_time(const side *s, const wire *w, udt_time now)
{
    udt_time at = wire_deadline(w);
    for (int i = 0; i < 2; i++) {
        udt_time d = udt_mux_deadline(s[i].m);
        at = d < at ? d : at;
    }
    return at > now ? at : now + 1;
}

static void start(side *s, uint8_t kind, udt_time now)
{
    udt_opts o;
    udt_opts_init(&o);
    o.type = kind & 1 ? UDT_DGRAM : UDT_STREAM;
    o.own_peer = kind & 2;
    o.offer = kind & 64;
    o.snd_buf_bytes = o.rcv_buf_bytes = kind & 4 ? 64 << 10 : 4 << 20;
    o.tag = kind & 8 ? 77 : 0;
    o.connect_timeout_ms = 30000;
    s[0].messages = s[1].messages = kind & 1;
    if (kind & 32) {
        static const uint8_t key[UDT_KEY_BYTES] = {7};
        s[1].sock = udt_mux_open_keyed(s[1].m, NULL, &o, key, false, now);
        s[0].sock = udt_mux_open_keyed(s[0].m, &addr[1], &o, key, true, now);
        expect(s[0].sock > 0 && s[1].sock > 0);
        s[0].open = true; /* data may go at once */
    } else if (kind & 8) {
        s[1].sock = udt_mux_rendezvous(s[1].m, kind & 16 ? NULL : &addr[0], &o, now);
        s[0].sock = udt_mux_rendezvous(s[0].m, &addr[1], &o, now);
        expect(s[0].sock > 0 && s[1].sock > 0);
    } else {
        expect(udt_mux_listen(s[1].m, &o, 8) > 0);
        expect((s[0].sock = udt_mux_connect(s[0].m, &addr[1], &o, now)) > 0);
    }
}

static void check_memory(const side *s)
{
    udt_mux_counters n;
    for (int i = 0; i < 2; i++) {
        udt_mux_counters_get(s[i].m, &n);
        expect(n.buf_bytes <= BUDGET && n.sockets <= 8);
    }
}

static void turn(side *s, wire *w, script *sc, udt_time now)
{
    wire_dgram *d;
    while ((d = wire_next(w, now)) != NULL) {
        udt_mux_input(s[d->to].m, &d->from, d->bytes, d->len, now);
        d->used = false;
        w->n--;
    }
    for (int i = 0; i < 2; i++) {
        udt_mux_burst_end(s[i].m, now);
        if (udt_mux_deadline(s[i].m) <= now)
            udt_mux_tick(s[i].m, now);
        take_events(&s[i]);
        read_all(&s[i], !i, now);
        write_some(&s[i], i, now);
        put_out(&s[i], i, w, sc, now);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    script sc = {data, size};
    static side s[2];
    wire *w = calloc(1, sizeof *w);
    memset(s, 0, sizeof s);
    uint8_t kind = script_byte(&sc), amount = script_byte(&sc);
    udt_time now = 1000000;
    for (int i = 0; i < 2; i++) {
        sim_rng_seed(&s[i].rng, (uint64_t)i + 1);
        udt_mux_config cfg = {.rand = sim_rng_bytes,
                              .rand_arg = &s[i].rng,
                              .mss = 1500,
                              .max_sockets = 8,
                              .max_buf_bytes = BUDGET};
        s[i].m = udt_mux_new(&cfg);
        s[i].want = (uint64_t)(i ? amount >> 4 : amount & 15) * 4000;
        expect(w && s[i].m);
    }
    w->flips = kind & 32; /* all is sealed */
    start(s, kind, now);
    udt_time end = now + END_US;
    int turns = 0;
    for (; !done(s) && turns < MAX_TURNS; turns++) {
        turn(s, w, &sc, now);
        if (turns % 64 == 0)
            check_memory(s);
        if (turns % 256 == 255 && sc.left > 1) {
            now += script_byte(&sc) * (udt_time)20000;
            forge(&s[turns & 1], script_byte(&sc), now);
        }
        now = next_time(s, w, now);
        expect(now < end || done(s));
    }
    expect(turns < MAX_TURNS);
    for (int i = 0; i < 2; i++)
        udt_mux_free(s[i].m);
    wire_fini(w);
    free(w);
    return 0;
}
