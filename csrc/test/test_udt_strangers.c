/* What somebody can do who has proved nothing but an address, or who sends in another's name. */
#include "base/addr.h"
#include "base/bytes.h"
#include "base/seq.h"
#include "test_udt_own.h"
#include "test_udt_side.h"
#include "udt/handshake.h"

#define NEAR 1000

/* He has a connection of his own and knows its id. With it, and in the name of another client, he
 * tries the ids around it: that client's connection stands. */
TEST(udt_strangers_do_not_know_the_ids_of_others)
{
    for (int own = 0; own < 2; own++) {
        world w;
        udt_opts o;
        uint8_t bye[UDT_CTRL_MAX], got[8];
        world_init(&w, test_seed, NULL, NULL);
        udt_opts_init(&o);
        o.offer = own;
        int32_t listener = udt_mux_listen(w.m[1], &o, 16), sock[8];
        CHECK(listener > 0);
        for (int i = 0; i < 8; i++) {
            int32_t c = udt_mux_connect(w.m[0], &w.addr[1], &o, sim_net_now(w.net));
            CHECK(c > 0);
            sim_net_kick(w.net, 0);
            sock[i] = world_wait(&w, 1, UDT_EV_ACCEPTED, 0, sim_net_now(w.net) + 5000000).sock;
            world_wait(&w, 0, UDT_EV_CONNECTED, c, sim_net_now(w.net) + 5000000);
        }
        for (int32_t id = sock[0] - NEAR; id <= sock[0] + NEAR; id++) {
            if (id == sock[0] || id == listener || id <= 0)
                continue;
            size_t n = udt_pkt_put_ctrl(bye, UDT_CTRL_SHUTDOWN, 0, id, NULL, 0);
            udt_mux_input(w.m[1], &w.addr[0], bye, n, sim_net_now(w.net));
        }
        for (int i = 1; i < 8; i++) {
            ssize_t rc = udt_mux_recv(w.m[1], sock[i], got, sizeof got, sim_net_now(w.net));
            if (rc != UDT_E_AGAIN)
                test_fail(__FILE__, __LINE__, "own %d: connection %d of 8 was shut: %zd", own, i,
                          rc);
        }
        world_fini(&w);
    }
}
