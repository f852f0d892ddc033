/* What a peer that holds the key may say to a GMP node that requires keys. The input makes headers
 * and bodies; they are sealed with the right key, under fresh numbers, so that everything behind
 * the seal is reached: data of every kind, acknowledgements, refusals, first contact, resets,
 * restarts of the peer, moves, streams of over-size messages.
 *
 * Input: rows of [what, type, length, bytes]. what & 1: from another address; what & 2: from the
 * peer's next instance; what & 4: with a token; what & 8: time passes; what & 16: numbers near
 * those in use; what & 32: a stream's record instead; what & 64: with what was last asked for. */
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "sgmp/engine.h"
#include "sim/net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEY_A = 9, KEY_B = 10, BODY = 600, MEMORY = 48 << 20 };

static const udt_addr home = {.family = 4, .port = 1000, .ip = {10, 0, 0, 1}};
static const udt_addr elsewhere = {.family = 4, .port = 1001, .ip = {10, 0, 0, 9}};

typedef struct world {
    sgmp_node *n;
    sim_rng rng;
    udt_time now;
    struct {
        uint64_t instance, pkt;
        aead *say, *data;
    } peer[2];
    struct {
        aead *ctx;
        uint64_t counter, conn_no;
        int64_t id;
    } in;
    uint8_t token[SGMP_TOKEN_BYTES];
    int64_t got, given; /* bytes from and to elsewhere */
    bool proved;        /* the other address was asked, and answered */
} world;

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static void drain(world *w)
{
    uint8_t buf[9100];
    udt_addr to;
    struct sgmp_ev ev;
    struct sgmp_bulk_order o;
    sgmp_stats st;
    size_t len;
    sgmp_node_tick(w->n, w->now);
    for (int i = 0; i < 64 && sgmp_node_next_event(w->n, &ev); i++) {
        if (ev.kind == SGMP_EV_REQUEST && ev.id % 3)
            (void)sgmp_node_reply(w->n, ev.id, 0, ev.data, ev.len, w->now);
        sgmp_node_release(w->n, ev.buf);
    }
    for (int i = 0; i < 8 && sgmp_node_next_bulk(w->n, &o); i++) {
        if (o.kind != SGMP_BULK_OPEN)
            continue;
        sgmp_node_bulk_opened(w->n, o.id, w->now);
        (void)sgmp_node_bulk_read(w->n, o.id, buf, sizeof buf, w->now);
        if (o.id & 1)
            sgmp_node_bulk_failed(w->n, o.id, UDT_E_BROKEN, w->now);
    }
    for (int i = 0; i < 64 && (len = sgmp_node_output(w->n, buf, sizeof buf, &to, w->now)); i++)
        if (addr_eq(&to, &elsewhere))
            w->given += (int64_t)len;
    sgmp_node_stats(w->n, &st);
    expect(st.rcv_queue_bytes + st.bulk_bytes + st.snd_queue_bytes < MEMORY && st.assoc <= 16);
    expect(w->proved || w->given <= w->got);
}

static void input(world *w, bool away, const uint8_t *pkt, size_t len)
{
    uint8_t *own = malloc(len);
    expect(own != NULL);
    memcpy(own, pkt, len);
    w->got += away ? (int64_t)len : 0;
    sgmp_node_input(w->n, away ? &elsewhere : &home, own, len, w->now);
    free(own);
}

static const struct assoc *assoc_of(const world *w, int who)
{
    struct key *key = keys_find(&w->n->keys, KEY_A);
    return sg_assoc_find(w->n, w->peer[who].instance, key->who);
}

/* Numbers of the block and of the body, near those of the association. */
static void near_numbers(const world *w, const struct assoc *a, unsigned flags, int type,
                         uint8_t *b, size_t len)
{
    (void)w;
    size_t at = flags & PKT_F_TOKEN ? PKT_TOKEN : 0;
    if (flags & PKT_F_ACKBLK && len >= at + PKT_ACK) {
        uint64_t low = a->x ? a->x->low : a->next_seq;
        be64_put(b + at, low + b[at + 7] % 8);
        be64_put(b + at + 8, a->next_pkt - 1 - b[at + 15] % 8);
        b[at + 22] %= 3;
        at += PKT_ACK + 8u * b[at + 22];
    }
    if (len < at + 8)
        return;
    if (type == PKT_T_DATA) {
        be64_put(b + at, (a->rx_set ? a->base : 1) + b[at + 7] % 80);
        if (len >= at + 12) {
            be16_put(b + at + 8, b[at + 9] % 4);
            b[at + 11] %= 4;
        }
    } else if (type == PKT_T_REFUSE)
        be64_put(b + at, (a->x ? a->x->low : 1) + b[at + 7] % 8);
}

static void asked_for(world *w, const struct assoc *a, int who, int type, uint8_t *b, size_t len,
                      bool away)
{
    const struct active *x = a ? a->x : NULL;
    if (type == PKT_T_PONG && x && len >= 8) {
        be64_put(b, b[0] & 1 ? x->probe_nonce : x->ping_nonce);
        w->proved |= away;
    } else if (type == PKT_T_HELLO && len >= 8)
        be64_put(b, 1000u + (uint64_t)who * 1000u + b[0]);
    else if (type == PKT_T_RESET && len >= PKT_RESET) {
        be64_put(b + 8, a ? a->next_pkt - 1 : w->n->say_pkt);
        be64_put(b + 16, w->n->instance);
    } else if (type == PKT_T_HELLO_ACK && len >= 16) {
        for (struct sg_link *l = w->n->lru.next; l != &w->n->lru; l = l->next) {
            const struct assoc *any = sg_of(l, struct assoc, lru);
            if (any->x && any->x->hello_on)
                be64_put(b + 8, any->x->hello_nonce);
        }
    }
}

static void datagram(world *w, uint8_t what, uint8_t type, const uint8_t *bytes, size_t len)
{
    uint8_t pkt[PKT_HEADER + PKT_TOKEN + BODY + PKT_TAG];
    int who = what & 2 ? 1 : 0;
    bool away = what & 1, say;
    struct pkt_header h = {.type = type % PKT_TYPES,
                           .flags = (uint16_t)(type >> 3),
                           .key_id = KEY_A,
                           .src = w->peer[who].instance,
                           .dst = sgmp_node_instance(w->n),
                           .pkt = ++w->peer[who].pkt};
    uint8_t *b = pkt + PKT_HEADER;
    h.flags = (uint16_t)((h.flags & ~(unsigned)PKT_F_TOKEN) | (what & 4 ? PKT_F_TOKEN : 0u));
    say = h.type == PKT_T_HELLO || h.type == PKT_T_HELLO_ACK || h.type == PKT_T_RESET;
    if (h.type == PKT_T_HELLO)
        h.dst = 0;
    size_t n = 0;
    if (what & 4) {
        memcpy(b, w->token, PKT_TOKEN);
        n = PKT_TOKEN;
    }
    memcpy(b + n, bytes, len);
    n += len;
    const struct assoc *a = assoc_of(w, who);
    if (a && what & 16 && !say)
        near_numbers(w, a, h.flags, h.type, b, n);
    if (what & 64)
        asked_for(w, a, who, h.type, b, n, away);
    n = sg_seal(&h, pkt, n, say ? w->peer[who].say : w->peer[who].data);
    input(w, away, pkt, n);
}

static bool preface(world *w, int who)
{
    uint8_t f[BULK_DESC + 64], nonce[AEAD_NONCE_BYTES];
    bytes_wr out = bytes_writer(f, 40);
    struct key *key = keys_find(&w->n->keys, KEY_A);
    aead_free(w->in.ctx);
    w->in.conn_no++;
    w->in.counter = 0;
    w->in.ctx =
        key_derive(key, 'b', w->peer[who].instance, sgmp_node_instance(w->n), w->in.conn_no);
    w->in.id = sgmp_node_bulk_accept(w->n, &home, w->now);
    bytes_put(&out, "GMPB\1\0\0", 8);
    bytes_put_u32(&out, KEY_A);
    bytes_put_u32(&out, 0);
    bytes_put_u64(&out, w->peer[who].instance);
    bytes_put_u64(&out, sgmp_node_instance(w->n));
    bytes_put_u64(&out, w->in.conn_no);
    aead_nonce(nonce, 0);
    aead_seal(w->in.ctx, nonce, f, 40, NULL, 0, f + 40);
    return w->in.id > 0 && sgmp_node_bulk_write(w->n, w->in.id, f, 56, w->now) == 0;
}

/* A chunk of an announced message, or of none. */
static void record(world *w, uint8_t what, uint8_t type, const uint8_t *bytes, size_t len)
{
    uint8_t f[8 + 16 + BODY + PKT_TAG], nonce[AEAD_NONCE_BYTES], *head = f + 8;
    const struct assoc *a = assoc_of(w, what & 2 ? 1 : 0);
    if (w->in.id <= 0 || type & 128) {
        if (!preface(w, what & 2 ? 1 : 0)) {
            w->in.id = 0;
            return;
        }
    }
    be64_put(f, ++w->in.counter);
    be64_put(head, (a && a->rx_set ? a->base : 1) - 1 - (type & 7));
    be32_put(head + 8, (uint32_t)len);
    be32_put(head + 12, (uint32_t)(type >> 3 & 3) << 24);
    memcpy(head + 16, bytes, len);
    aead_nonce(nonce, w->in.counter);
    aead_seal(w->in.ctx, nonce, f, 24, head + 16, len, head + 16);
    if (sgmp_node_bulk_write(w->n, w->in.id, head, 16 + len + PKT_TAG, w->now) != 0)
        w->in.id = 0;
}

static void begin(world *w)
{
    static uint8_t big[5000];
    sim_rng_seed(&w->rng, 1);
    sgmp_node_config cfg = {.rand = sim_rng_bytes,
                            .rand_arg = &w->rng,
                            .start_time_us = 1,
                            .require_auth = true,
                            .max_dgram = 8972,
                            .max_assoc = 16};
    w->n = sgmp_node_new(&cfg, w->now);
    expect(w->n != NULL);
    for (uint32_t id = KEY_A; id <= KEY_B; id++) {
        sgmp_key k = {.key_id = id, .alg = SGMP_ALG_AES256GCM, .principal = "peer"};
        memset(k.secret, (int)id, sizeof k.secret);
        expect(sgmp_node_key_add(w->n, &k, w->now) == 0);
    }
    struct key *key = keys_find(&w->n->keys, KEY_A);
    for (int i = 0; i < 2; i++) {
        w->peer[i].instance = 0x1111111111111111u * (uint64_t)(i + 1);
        w->peer[i].say = key_derive(key, 's', w->peer[i].instance, 0, 0);
        w->peer[i].data = key_derive(key, 'd', w->peer[i].instance, sgmp_node_instance(w->n), 0);
    }
    expect(sgmp_node_mint_token(w->n, &home, w->peer[0].instance, KEY_A, w->token, w->now) == 0);
    sgmp_dest to = {.addr = home, .key_id = KEY_A};
    sgmp_opts o = {.deadline_ms = 5000};
    expect(sgmp_node_introduce(w->n, &to, w->peer[0].instance, w->token, w->now) == 0);
    (void)sgmp_node_send(w->n, &to, (const uint8_t *)"hello", 5, &o, 1, w->now);
    (void)sgmp_node_call(w->n, &to, 9, (const uint8_t *)"hello", 5, &o, 2, w->now);
    (void)sgmp_node_send(w->n, &to, big, sizeof big, &o, 3, w->now);
    drain(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static world w;
    memset(&w, 0, sizeof w);
    w.now = 1000000;
    begin(&w);
    while (size >= 3) {
        size_t len = data[2] < size - 3 ? data[2] : size - 3;
        w.now += data[0] & 8 ? 400000 : 50;
        if (data[0] & 32)
            record(&w, data[0], data[1], data + 3, len);
        else
            datagram(&w, data[0], data[1], data + 3, len);
        data += 3 + len;
        size -= 3 + len;
        drain(&w);
    }
    for (int i = 0; i < 2; i++) {
        aead_free(w.peer[i].say);
        aead_free(w.peer[i].data);
    }
    aead_free(w.in.ctx);
    sgmp_node_free(w.n);
    return 0;
}
