/* The GMP engine against a hostile network: rows of [kind, length, bytes] become datagrams to an
 * endpoint without authentication (so that the parsers behind it are reached). kind & 1: the check
 * field is made right; kind & 2: addressed to the true instance; kind & 4: time passes. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "sgmp/node.h"
#include "sim/net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void settle(sgmp_node *n, udt_time now)
{
    uint8_t buf[2048];
    udt_addr to;
    struct sgmp_ev ev;
    struct sgmp_bulk_order order;
    sgmp_node_tick(n, now);
    for (int i = 0; i < 64 && sgmp_node_next_event(n, &ev); i++) {
        if (ev.kind == SGMP_EV_REQUEST)
            (void)sgmp_node_reply(n, ev.id, 0, ev.data, ev.len, now);
        if (ev.buf)
            sgmp_node_release(n, ev.buf);
    }
    for (int i = 0; i < 16 && sgmp_node_next_bulk(n, &order); i++)
        if (order.kind == SGMP_BULK_OPEN)
            sgmp_node_bulk_failed(n, order.id, UDT_E_TIMEOUT, now);
    for (int i = 0; i < 64 && sgmp_node_output(n, buf, sizeof buf, &to, now) > 0; i++)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const udt_addr from = {.family = 4, .port = 1000, .ip = {10, 0, 0, 1}};
    sim_rng rng;
    sim_rng_seed(&rng, 1);
    udt_time now = 1000000;
    sgmp_node_config cfg = {.rand = sim_rng_bytes,
                            .rand_arg = &rng,
                            .start_time_us = 1,
                            .require_auth = false,
                            .max_assoc = 64};
    sgmp_node *n = sgmp_node_new(&cfg, now);
    if (!n)
        abort();
    sgmp_dest to = {.addr = from, .key_id = 0};
    sgmp_opts opts = {.deadline_ms = 5000};
    (void)sgmp_node_send(n, &to, (const uint8_t *)"hello", 5, &opts, 1, now);
    (void)sgmp_node_call(n, &to, 9, (const uint8_t *)"hello", 5, &opts, 2, now);
    settle(n, now);
    while (size >= 2) {
        uint8_t kind = data[0], pkt[256];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        memcpy(pkt, data + 2, len);
        data += 2 + len;
        size -= 2 + len;
        if ((kind & 2) && len >= 24)
            be64_put(pkt + 16, sgmp_node_instance(n));
        if ((kind & 1) && len >= 40) {
            pkt[0] = 0xC7;
            be32_put(pkt + 36, 0);
            be32_put(pkt + 36, udt_crc32c(0, pkt, len));
        }
        if (kind & 4)
            now += 300000;
        if (kind & 8) {
            int64_t in = sgmp_node_bulk_accept(n, &from, now);
            if (in > 0 && sgmp_node_bulk_write(n, in, pkt, len, now) >= 0)
                sgmp_node_bulk_gone(n, in, now);
        } else {
            sgmp_node_input(n, &from, pkt, len, now);
        }
        settle(n, now);
    }
    sgmp_node_free(n);
    return 0;
}
