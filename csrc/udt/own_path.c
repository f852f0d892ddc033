/* Own mode, paths: what belongs to addresses, parameters and their timers. */
#include "udt/conn.h"
void udt__own_control(udt_conn *c, const udt_addr *from, const udt_pkt *p, uint64_t pn,
                      udt_time now)
{
    (void)c;
    (void)from;
    (void)p;
    (void)pn;
    (void)now;
}
size_t udt__own_emit(udt_conn *c, unsigned bit, uint8_t *buf, size_t cap, udt_addr *to,
                     udt_time now)
{
    (void)c;
    (void)bit;
    (void)buf;
    (void)cap;
    (void)to;
    (void)now;
    return 0;
}
void udt__own_moved(udt_conn *c, const udt_addr *from, bool newest, size_t len, udt_time now)
{
    (void)c;
    (void)from;
    (void)newest;
    (void)len;
    (void)now;
}
void udt__own_tick(udt_conn *c, udt_time now)
{
    (void)c;
    (void)now;
}
