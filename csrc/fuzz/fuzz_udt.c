/* The UDT engine against a hostile network: a listener, a rendezvous and one established connection
 * are fed packets that the input makes up. Layout of the input: rows of [kind, length, bytes].
 * kind & 3: 0 from the peer's address, 1 from a stranger; kind & 4: destination id is rewritten to
 * the established socket; kind & 8: half a second passes first. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "sim/net.h"
#include "udt/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const udt_addr addr_a = {.family = 4, .port = 1000, .ip = {10, 0, 0, 1}};
static const udt_addr addr_b = {.family = 4, .port = 2000, .ip = {10, 0, 0, 2}};
static const udt_addr addr_x = {.family = 4, .port = 3000, .ip = {10, 0, 0, 3}};

/* Carries what `from` has to say to `to`; at most `turns` batches. */
static void carry(udt_mux *from, const udt_addr *from_addr, udt_mux *to, udt_time now, int turns)
{
    uint8_t buf[65536];
    udt_addr dst;
    size_t seg, len;
    while (turns-- > 0 && (len = udt_mux_output(from, buf, sizeof buf, 64, &dst, &seg, now)) > 0) {
        if (!to || seg == 0)
            continue;
        for (size_t at = 0; at < len; at += seg)
            udt_mux_input(to, from_addr, buf + at, len - at < seg ? len - at : seg, now);
    }
}

static int32_t events(udt_mux *m)
{
    struct udt_ev ev;
    int32_t accepted = 0;
    while (udt_mux_next_event(m, &ev))
        if (ev.kind == UDT_EV_ACCEPTED)
            accepted = ev.sock;
    return accepted;
}

static void drain(udt_mux *m, int32_t sock, udt_time now)
{
    uint8_t buf[4096];
    for (int i = 0; i < 16 && udt_mux_recv(m, sock, buf, sizeof buf, now) > 0; i++)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sim_rng rng;
    sim_rng_seed(&rng, 1);
    udt_mux_config cfg = {.rand = sim_rng_bytes,
                          .rand_arg = &rng,
                          .mss = 1500,
                          .max_sockets = 64,
                          .max_buf_bytes = 8 << 20};
    udt_mux *a = udt_mux_new(&cfg), *b = udt_mux_new(&cfg);
    udt_opts o;
    udt_opts_init(&o);
    udt_time now = 1000000;
    if (!a || !b || udt_mux_listen(b, &o, 8) < 0)
        abort();
    o.tag = 77;
    (void)udt_mux_rendezvous(b, NULL, &o, now);
    o.tag = 0;
    int32_t sa = udt_mux_connect(a, &addr_b, &o, now), sb = 0;
    for (int i = 0; i < 8 && !sb; i++, now += 1000) {
        carry(a, &addr_a, b, now, 8);
        sb = events(b);
        carry(b, &addr_b, a, now, 8);
        (void)events(a);
    }
    if (!sb)
        abort(); /* the honest part always works */
    uint8_t some[5000] = {0};
    (void)udt_mux_send(b, sb, some, sizeof some, now);
    (void)udt_mux_send(a, sa, some, sizeof some, now);
    carry(a, &addr_a, b, now, 4);
    while (size >= 2) {
        uint8_t kind = data[0], pkt[256];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        memcpy(pkt, data + 2, len);
        data += 2 + len;
        size -= 2 + len;
        if ((kind & 4) && len >= 16)
            be32_put(pkt + 12, (uint32_t)sb);
        if (kind & 8)
            now += 500000;
        udt_mux_input(b, (kind & 1) ? &addr_x : &addr_a, pkt, len, now);
        udt_mux_burst_end(b, now);
        udt_mux_tick(b, now);
        drain(b, sb, now);
        carry(b, &addr_b, NULL, now, 4);
        (void)events(b);
    }
    for (int i = 0; i < 8; i++) {
        udt_time at = udt_mux_deadline(b);
        if (at == UDT_NEVER)
            break;
        now = at > now ? at : now;
        udt_mux_tick(b, now);
        carry(b, &addr_b, NULL, now, 4);
        (void)events(b);
    }
    udt_mux_free(a);
    udt_mux_free(b);
    return 0;
}
