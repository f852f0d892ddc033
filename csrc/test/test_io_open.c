/* Opening by key and by pre-shared key over real sockets, and a NAT that forgets its mapping. */
#include "test_io.h"
#include "test_nat.h"

#include <unistd.h>

TEST(io_open_keyed_both_families)
{
    for (int family = 4; family <= 6; family += 2)
        for (int plain = 0; plain < 2; plain++) {
            tio *a = tio_open(family, 0), *b = tio_open(family, 0);
            udt_sock_opts o = {.type = 1, .plain_data = plain};
            uint8_t key[UDT_PSK_BYTES] = {(uint8_t)(family + plain), 9};
            int32_t sb = udt_open_keyed(b->ctx, b->port, NULL, &o, key, false);
            int32_t sa = udt_open_keyed(a->ctx, a->port, &b->at, &o, key, true);
            CHECK(sa > 0 && sb > 0);
            CHECK_INT(udt_send(a->ctx, sa, (const uint8_t *)"now", 3), 3); /* no waiting */
            tio_wait(b, UDT_IO_CONNECTED, sb, 5000);
            tio_wait(b, UDT_IO_READABLE, sb, 5000);
            uint8_t got[8];
            CHECK_INT(udt_recv(b->ctx, sb, got, sizeof got), 3);
            tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
            udt_addr peer;
            CHECK_INT(udt_sock_peer(b->ctx, sb, &peer), 0);
            CHECK_INT(peer.port, a->at.port);
            tio_move(a, sa, b, sb, 20000000, NULL, NULL);
            int32_t again = udt_open_keyed(a->ctx, a->port, &b->at, &o, key, true);
            udt_event ev = tio_wait(a, UDT_IO_FAILED, again, 5000);
            CHECK_INT(ev.err, UDT_E_INUSE);
            CHECK_INT(udt_open_keyed(a->ctx, a->port, NULL, &o, key, true), UDT_E_INVAL);
            CHECK_INT(udt_open_keyed(a->ctx, a->port, &b->at, &o, NULL, true), UDT_E_INVAL);
            tio_free(a);
            tio_free(b);
        }
}

TEST(io_open_pre_shared_key)
{
    uint8_t key[UDT_PSK_BYTES] = {1}, other[UDT_PSK_BYTES] = {2};
    for (int family = 4; family <= 6; family += 2)
        for (int what = 0; what < 3; what++) {
            tio *a = tio_open(family, 0), *b = tio_open(family, 0);
            udt_sock_opts o = {.type = 1, .psk = key, .require_key = true}, c = o;
            c.psk = what == 0 ? key : what == 1 ? other : NULL;
            c.require_key = false;
            int32_t l = udt_listen(b->ctx, b->port, &o, 0);
            int32_t s = udt_connect(a->ctx, a->port, &b->at, &c);
            CHECK(l > 0 && s > 0);
            if (what == 0) {
                tio_wait(a, UDT_IO_CONNECTED, s, 5000);
                udt_event ev = tio_wait(b, UDT_IO_ACCEPTED, 0, 5000);
                tio_move(a, s, b, ev.sock, 3000000, NULL, NULL);
            } else if (family == 4) {
                CHECK_INT(tio_wait(a, UDT_IO_FAILED, s, 5000).err, UDT_E_AUTH);
            } else { /* told after the handshake: it ends before the listener accepts it */
                udt_event ev;
                tio_pull(b, 500000);
                CHECK(!tio_take(b, UDT_IO_ACCEPTED, 0, &ev));
            }
            tio_free(a);
            tio_free(b);
        }
    tio *a = tio_open(4, 0);
    udt_sock_opts bad = {.type = 1, .require_key = true};
    CHECK_INT(udt_listen(a->ctx, a->port, &bad, 0), UDT_E_INVAL);
    tio_free(a);
}

TEST(io_open_survives_a_new_mapping)
{
    for (int plain = 0; plain < 2; plain++)
        for (int up = 0; up < 2; up++) {
            tio *a = tio_open(4, 0), *b = tio_open(4, 0);
            nat *t = nat_open(b->at.port);
            udt_addr to = tio_loopback(4, t->port);
            udt_sock_opts o = {.type = 1, .plain_data = plain, .max_bw_Bps = 20000000};
            uint8_t key[UDT_PSK_BYTES] = {(uint8_t)(1 + plain), 3};
            int32_t sb = udt_open_keyed(b->ctx, b->port, NULL, &o, key, false);
            int32_t sa = udt_open_keyed(a->ctx, a->port, &to, &o, key, true);
            tio_wait(a, UDT_IO_CONNECTED, sa, 5000);
            tio_wait(b, UDT_IO_CONNECTED, sb, 5000);
            if (up)
                tio_move(a, sa, b, sb, 10000000, nat_forget, t);
            else
                tio_move(b, sb, a, sa, 10000000, nat_forget, t);
            udt_port_stats st;
            usleep(300000);
            CHECK_INT(udt_port_stats_get(b->ctx, b->port, &st), 0);
            CHECK_INT(st.moves, 1);
            tio_free(a);
            tio_free(b);
            nat_close(t);
        }
}
