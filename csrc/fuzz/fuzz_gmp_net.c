/* Two GMP nodes with a shared key and a network that the input drives: datagrams are lost,
 * delayed, doubled, reflected, damaged, cut short; time leaps; a node restarts. Whatever it does,
 * every message and call has exactly one outcome in time, nothing is delivered twice to one
 * instance, nothing delivered differs from what was sent, and nothing reported as delivered is
 * missing.
 *
 * Input: one byte per datagram (script.h); every 16th turn two bytes more: what the application
 * does, and a leap of time. */
#include "base/bytes.h"
#include "fuzz/script.h"
#include "sgmp/node.h"
#include "sim/net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_IDS = 256, MAX_TURNS = 40000, KEY = 9, WAIT_MS = 10000 };

static const udt_addr addr[2] = {{.family = 4, .port = 7002, .ip = {10, 0, 0, 1}},
                                 {.family = 4, .port = 7002, .ip = {10, 0, 0, 2}}};

typedef struct side {
    sgmp_node *n;
    sim_rng rng;
    int starts;
    uint64_t next_id;
    uint8_t outcome[MAX_IDS]; /* 0 none yet, 1 good, 2 bad; of what this side sent */
    uint8_t seen[MAX_IDS];    /* of what the other side sent: times in this life of ours */
    uint8_t ever[MAX_IDS];    /* in any life */
    bool call[MAX_IDS];
} side;

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static size_t body_of(uint64_t id, uint8_t *b)
{
    size_t n = 8 + (size_t)(id * 37 % 1000);
    be64_put(b, id);
    for (size_t i = 8; i < n; i++)
        b[i] = (uint8_t)(id * 31 + i);
    return n;
}

static void birth(side *s, int me, udt_time now)
{
    sgmp_key k = {.key_id = KEY, .alg = SGMP_ALG_AES256GCM, .principal = "peer"};
    sgmp_node_config cfg = {.rand = sim_rng_bytes,
                            .rand_arg = &s->rng,
                            .start_time_us = (uint64_t)++s->starts * 1000000,
                            .require_auth = true,
                            .max_assoc = 16};
    if (s->n)
        sgmp_node_free(s->n);
    memset(k.secret, 7, sizeof k.secret);
    memset(s->seen, 0, sizeof s->seen);
    (void)me;
    s->n = sgmp_node_new(&cfg, now);
    expect(s->n && sgmp_node_key_add(s->n, &k, now) == 0);
    for (uint64_t id = 1; id < s->next_id; id++)
        if (!s->outcome[id])
            s->outcome[id] = 2; /* died with its sender */
}

static void act(side *s, int me, uint8_t what, udt_time now)
{
    uint8_t b[1100];
    sgmp_dest to = {addr[!me], KEY};
    sgmp_opts o = {.deadline_ms = WAIT_MS, .flags = (what & 8) ? SGMP_REPEATABLE : 0};
    if (s->next_id >= MAX_IDS)
        return;
    uint64_t id = s->next_id;
    size_t len = body_of(id, b);
    bool call = what & 4;
    int rc = call ? sgmp_node_call(s->n, &to, 5, b, len, &o, id, now)
                  : sgmp_node_send(s->n, &to, b, len, &o, id, now);
    if (rc != 0)
        return;
    s->call[id] = call;
    s->next_id++;
    if (what & 16)
        (void)sgmp_node_cancel(s->n, id, now);
}

static void got(side *s, const struct sgmp_ev *ev)
{
    uint8_t want[1100];
    expect(ev->len >= 8);
    uint64_t id = be64_get(ev->data);
    expect(id > 0 && id < MAX_IDS && body_of(id, want) == ev->len);
    expect(memcmp(want, ev->data, ev->len) == 0);
    s->ever[id] = 1;
    expect(++s->seen[id] == 1);
}

static void events(side *s, side *other, udt_time now)
{
    struct sgmp_ev ev;
    struct sgmp_bulk_order order;
    while (sgmp_node_next_event(s->n, &ev)) {
        switch (ev.kind) {
        case SGMP_EV_MESSAGE:
            got(s, &ev);
            break;
        case SGMP_EV_REQUEST:
            got(s, &ev);
            (void)sgmp_node_reply(s->n, ev.id, 0, ev.data, ev.len, now);
            break;
        case SGMP_EV_OUTCOME:
        case SGMP_EV_RESPONSE:
            expect(ev.id > 0 && ev.id < s->next_id && !s->outcome[ev.id]);
            expect(s->call[ev.id] == (ev.kind == SGMP_EV_RESPONSE));
            s->outcome[ev.id] = ev.status == 0 ? 1 : 2;
            expect(ev.status != 0 || other->ever[ev.id]);
            break;
        default:
            break;
        }
        if (ev.buf)
            sgmp_node_release(s->n, ev.buf);
    }
    while (sgmp_node_next_bulk(s->n, &order))
        if (order.kind == SGMP_BULK_OPEN)
            sgmp_node_bulk_failed(s->n, order.id, UDT_E_TIMEOUT, now);
}

static void turn(side *s, wire *w, script *sc, udt_time now)
{
    uint8_t buf[WIRE_BYTES];
    wire_dgram *d;
    udt_addr to;
    size_t len;
    while ((d = wire_next(w, now)) != NULL) {
        sgmp_node_input(s[d->to].n, &d->from, d->bytes, d->len, now);
        d->used = false;
        w->n--;
    }
    for (int i = 0; i < 2; i++) {
        if (sgmp_node_deadline(s[i].n) <= now)
            sgmp_node_tick(s[i].n, now);
        events(&s[i], &s[!i], now);
        for (int k = 0; k < 64; k++) {
            if ((len = sgmp_node_output(s[i].n, buf, sizeof buf, &to, now)) == 0)
                break;
            wire_send(w, sc, !i, &addr[i], buf, len, now);
        }
        events(&s[i], &s[!i], now);
    }
}

static bool settled(const side *s)
{
    for (int i = 0; i < 2; i++)
        for (uint64_t id = 1; id < s[i].next_id; id++)
            if (!s[i].outcome[id])
                return false;
    return true;
}

static udt_time next_time(const side *s, const wire *w, udt_time now)
{
    udt_time at = wire_deadline(w);
    for (int i = 0; i < 2; i++) {
        udt_time d = sgmp_node_deadline(s[i].n);
        at = d < at ? d : at;
    }
    return at > now && at != UDT_NEVER ? at : now + 1000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    script sc = {data, size};
    static side s[2];
    wire *w = calloc(1, sizeof *w);
    udt_time now = 1000000;
    memset(s, 0, sizeof s);
    expect(w);
    w->flips = true;
    for (int i = 0; i < 2; i++) {
        s[i].next_id = 1;
        sim_rng_seed(&s[i].rng, (uint64_t)i + 1);
        birth(&s[i], i, now);
    }
    act(&s[0], 0, 0, now);
    act(&s[1], 1, 4, now);
    udt_time quiet = 0; /* when the application had its last word */
    for (int turns = 0; turns < MAX_TURNS; turns++) {
        turn(s, w, &sc, now);
        if (turns % 16 == 15 && sc.left > 1) {
            uint8_t what = script_byte(&sc);
            if (what == 255)
                birth(&s[turns >> 4 & 1], turns >> 4 & 1, now);
            else
                act(&s[what & 1], what & 1, what, now);
            now += script_byte(&sc) * (udt_time)10000;
        } else if (sc.left <= 1 && !quiet) {
            quiet = now;
        }
        if (quiet && settled(s))
            break;
        now = next_time(s, w, now);
        expect(!quiet || now < quiet + 3 * WAIT_MS * (udt_time)1000);
    }
    expect(settled(s));
    for (int i = 0; i < 2; i++)
        sgmp_node_free(s[i].n);
    wire_fini(w);
    free(w);
    return 0;
}
