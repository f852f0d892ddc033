/* What a peer that holds the key may say. The input makes plain packets; they are numbered and
 * sealed with the right key, so that the parsers behind the seal are reached: EACK, PARAMS,
 * ACKFREQ, PATH_CHALLENGE and PATH_RESPONSE, drop requests, data, shutdown. Two honest ends with
 * data of their own go on beside it.
 *
 * Input: byte 0 = kind of connection, then rows of [what, type, length, bytes]. what & 3: 0 from
 * the peer's address, 1 from another one (a move), 2 damaged after sealing, 3 said twice; what & 4:
 * data instead of control; what & 8: time passes; what & 16: sequence numbers near those in use;
 * what & 32: both ends talk to each other before; what & 64: with the token last challenged. */
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "sim/net.h"
#include "udt/conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUDGET = 8 << 20, PKT = 512 };

static const udt_addr addr[2] = {{.family = 4, .port = 1000, .ip = {10, 0, 0, 1}},
                                 {.family = 4, .port = 2000, .ip = {10, 0, 0, 2}}};
static const udt_addr elsewhere = {.family = 4, .port = 1001, .ip = {10, 0, 0, 9}};

typedef struct world {
    udt_mux *m[2]; /* 0 seals for the fuzzer, 1 is attacked */
    sim_rng rng[2];
    int32_t sock[2];
    udt_time now;
    int64_t in[3], out[3]; /* bytes at 1 from and to: its peer, the stranger, others */
    bool moved;            /* the stranger answered a challenge: he was the peer once */
} world;

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static int who(const udt_addr *a)
{
    return addr_eq(a, &addr[0]) ? 0 : addr_eq(a, &elsewhere) ? 1 : 2;
}

static void feed(world *w, const udt_addr *from, uint8_t *pkt, size_t len)
{
    uint8_t *own = malloc(len ? len : 1); /* its own block: overruns are seen */
    expect(own != NULL);
    memcpy(own, pkt, len);
    w->in[who(from)] += (int64_t)len;
    udt_mux_input(w->m[1], from, own, len, w->now);
    udt_mux_burst_end(w->m[1], w->now);
    const udt_conn *c = udt__mux_find(w->m[1], w->sock[1]);
    w->moved = w->moved || (c && addr_eq(&c->peer, &elsewhere));
    free(own);
}

/* What each end has to say; `deliver`: the other hears it. */
static void carry(world *w, bool deliver)
{
    uint8_t buf[65536];
    udt_addr to;
    size_t seg, len;
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 6; n++) {
            if ((len = udt_mux_output(w->m[i], buf, sizeof buf, 64, &to, &seg, w->now)) == 0)
                break;
            expect(seg > 0);
            if (i == 1)
                w->out[who(&to)] += (int64_t)len;
            for (size_t at = 0; deliver && at < len; at += seg) {
                size_t k = len - at < seg ? len - at : seg;
                if (i == 0)
                    feed(w, &addr[0], buf + at, k);
                else if (addr_eq(&to, &addr[0]))
                    udt_mux_input(w->m[0], &addr[1], buf + at, k, w->now);
            }
        }
}

static void settle(world *w)
{
    struct udt_ev ev;
    uint8_t buf[4096];
    udt_mux_counters n;
    for (int i = 0; i < 2; i++) {
        udt_mux_tick(w->m[i], w->now);
        while (udt_mux_next_event(w->m[i], &ev))
            ;
        for (int k = 0; k < 8; k++)
            if (udt_mux_recv(w->m[i], w->sock[i], buf, sizeof buf, w->now) <= 0 &&
                udt_mux_recvmsg(w->m[i], w->sock[i], buf, sizeof buf, w->now) <= 0)
                break;
    }
    udt_mux_counters_get(w->m[1], &n);
    expect(n.buf_bytes <= BUDGET && n.sockets <= 4);
}

static void begin(world *w, uint8_t kind)
{
    static const uint8_t key[UDT_KEY_BYTES] = {7};
    static const uint8_t some[6000] = {1};
    udt_opts o;
    udt_opts_init(&o);
    o.type = kind & 1 ? UDT_DGRAM : UDT_STREAM;
    o.plain_data = kind & 2;
    o.snd_buf_bytes = o.rcv_buf_bytes = kind & 4 ? 64 << 10 : kind & 8 ? 0 : 1 << 20;
    for (int i = 1; i >= 0; i--) {
        w->sock[i] = udt_mux_open_keyed(w->m[i], i ? NULL : &addr[1], &o, key, i == 0, w->now);
        expect(w->sock[i] > 0);
    }
    for (int i = 0; i < 6 && !(kind & 16); i++) { /* 16: the responder still waits */
        carry(w, true);
        settle(w);
        w->now += 1000;
    }
    for (int i = 0; i < 2; i++) {
        if (kind & 1)
            (void)udt_mux_sendmsg(w->m[i], w->sock[i], some, sizeof some, kind & 32 ? 50 : -1,
                                  kind & 64, w->now);
        else
            (void)udt_mux_send(w->m[i], w->sock[i], some, sizeof some, w->now);
    }
    carry(w, false);
}

/* The words that name packets, near those that exist. */
static void near_numbers(const udt_conn *c, uint8_t *p, size_t len, int type)
{
    size_t first = type == OWN_EACK ? 0 : type == UDT_CTRL_DROP ? 0 : len;
    uint32_t isn = type == OWN_EACK ? c->isn : c->peer_isn;
    for (size_t i = first; i + 4 <= len; i += 4) {
        if (type == OWN_EACK && i > 0 && i < 28)
            continue;
        be32_put(p + i, seq_add(isn, (int64_t)(be32_get(p + i) >> 24) - 16));
    }
    if (type == OWN_EACK && len >= 8)
        be32_put(p + 4, (uint32_t)c->own.pn - 1 - p[7]);
}

/* One row becomes a sealed datagram at `pkt`; 0 = the key is gone. */
static size_t make(world *w, const udt_conn *victim, uint8_t what, uint8_t type, uint8_t *pkt,
                   const uint8_t *body, size_t len)
{
    static const uint16_t types[] = {OWN_EACK,           OWN_PARAMS,        OWN_PATH_CHALLENGE,
                                     OWN_PATH_RESPONSE,  OWN_ACKFREQ,       UDT_CTRL_DROP,
                                     UDT_CTRL_KEEPALIVE, UDT_CTRL_SHUTDOWN, UDT_CTRL_ERROR,
                                     UDT_CTRL_USER,      UDT_CTRL_WARNING,  UDT_CTRL_ACK};
    udt_conn *c = udt__mux_find(w->m[0], w->sock[0]);
    if (!c || !c->own.on || (c->own.sealed && !c->own.replay))
        return 0;
    if (what & 4) {
        uint64_t pn;
        uint32_t seq = len >= 4 ? be32_get(body) & SEQ_MASK : 0;
        if (what & 16)
            seq = seq_add(c->isn, (int64_t)(seq >> 24) - 8);
        udt_pkt_put_data(pkt, seq, (uint32_t)type << 26 | (uint32_t)(len & 7), 0, c->peer_id);
        return udt__own_put_data(c, pkt, body, len, &pn);
    }
    uint16_t t = types[type % (sizeof types / sizeof *types)];
    udt_pkt_put_ctrl(pkt, t, type >> 4, c->peer_id, NULL, 0);
    memcpy(pkt + UDT_HDR_BYTES, body, len);
    if (what & 16)
        near_numbers(victim, pkt + UDT_HDR_BYTES, len, t);
    if (t == OWN_PARAMS && len >= 2)
        be16_put(pkt + UDT_HDR_BYTES, 1);
    if (what & 64 && len >= 8)
        be64_put(pkt + UDT_HDR_BYTES, victim->open.cand_token);
    if (what & 64 && t == OWN_PARAMS && len >= OWN_PARAMS_BYTES)
        be64_put(pkt + UDT_HDR_BYTES + 32, victim->open.token);
    return udt__own_seal(c, pkt, UDT_HDR_BYTES + len);
}

static void row(world *w, uint8_t what, uint8_t type, const uint8_t *body, size_t len)
{
    uint8_t pkt[PKT + UDT_HDR_BYTES + OWN_TAG_BYTES + 8];
    const udt_conn *victim = udt__mux_find(w->m[1], w->sock[1]);
    if (!victim)
        return;
    if (what & 32)
        carry(w, true);
    w->now += what & 8 ? 300000 : 100;
    size_t n = make(w, victim, what, type, pkt, body, len);
    if (n == 0)
        return;
    if ((what & 3) == 2)
        pkt[len % n] ^= 4;
    for (int i = 0; i < ((what & 3) == 3 ? 2 : 1); i++)
        feed(w, (what & 3) == 1 ? &elsewhere : &addr[0], pkt, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world w = {.now = 1000000};
    if (size < 1)
        return 0;
    for (int i = 0; i < 2; i++) {
        sim_rng_seed(&w.rng[i], (uint64_t)i + 1);
        udt_mux_config cfg = {.rand = sim_rng_bytes,
                              .rand_arg = &w.rng[i],
                              .mss = 1500,
                              .max_sockets = 4,
                              .max_buf_bytes = BUDGET};
        w.m[i] = udt_mux_new(&cfg);
        expect(w.m[i] != NULL);
    }
    begin(&w, data[0]);
    data++;
    size--;
    while (size >= 3) {
        size_t len = data[2] < size - 3 ? data[2] : size - 3;
        row(&w, data[0], data[1], data + 3, len);
        data += 3 + len;
        size -= 3 + len;
        carry(&w, false);
        settle(&w);
        /* An address that has not answered gets no more than came from it. */
        expect(w.moved || w.out[1] <= w.in[1]);
        expect(w.out[2] == 0);
    }
    for (int i = 0; i < 2; i++)
        udt_mux_free(w.m[i]);
    return 0;
}
