/* What a connection sends next: control packets first, then data. */
#include "udt/conn.h"

static size_t emit_shutdown(udt_conn *c, uint8_t *buf, udt_time now)
{
    if (--c->shutdowns_left > 0) {
        int64_t gap = c->rtt_us / 2, most = c->foreign ? 100000 : 500000;
        gap = gap < 1000 ? 1000 : gap > most ? most : gap;
        udt__conn_timer(c, &c->t_shutdown, now + gap);
    } else if (c->foreign) {
        udt__conn_event(c, UDT_EV_CLOSED);
    }
    return udt_pkt_put_ctrl(buf, UDT_CTRL_SHUTDOWN, c->last_word, c->peer_id, NULL, 0);
}

static uint32_t keepalive_word(const udt_conn *c)
{
    return c->foreign ? 0 : c->asks > 0 ? UDT_KEEPALIVE_ASKS : UDT_KEEPALIVE_SAYS;
}

/* From a new address it brings the bytes that a PATH_CHALLENGE takes. */
static size_t emit_keepalive(const udt_conn *c, uint8_t *buf)
{
    static const uint32_t room[2];
    return udt_pkt_put_ctrl(buf, UDT_CTRL_KEEPALIVE, keepalive_word(c), c->peer_id, room,
                            c->own.sealed ? 2 : 0);
}

/* The next pending control packet, 0 when there is none. */
static size_t emit_control(udt_conn *c, uint8_t *buf, size_t cap, udt_time now)
{
    while (c->due & ~(unsigned)DUE_PROBE) {
        unsigned left = c->due & ~(unsigned)DUE_PROBE, bit = left & -left;
        size_t n = 0;
        c->due &= ~bit;
        switch (bit) {
        case DUE_HANDSHAKE:
            n = udt__conn_emit_handshake(c, buf, now);
            break;
        case DUE_SHUTDOWN:
            n = emit_shutdown(c, buf, now);
            break;
        case DUE_ERROR:
            n = udt_pkt_put_ctrl(buf, UDT_CTRL_ERROR, (uint32_t)c->error_code, c->peer_id, NULL, 0);
            break;
        case DUE_ACK2:
            n = udt_pkt_put_ctrl(buf, UDT_CTRL_ACK2, c->ack2_sub, c->peer_id, NULL, 0);
            break;
        case DUE_ACK:
            n = c->own.on ? udt__own_emit_eack(c, buf, cap, now) : udt__conn_emit_ack(c, buf, now);
            break;
        case DUE_LIGHT:
            n = udt__conn_emit_light(c, buf);
            break;
        case DUE_NAK:
            n = udt__conn_emit_nak(c, buf, cap, now);
            break;
        case DUE_NAK_REPEAT:
            n = udt__conn_emit_nak_repeat(c, buf, cap, now);
            break;
        case DUE_KEEPALIVE:
            n = emit_keepalive(c, buf);
            break;
        case DUE_ACKFREQ:
            n = udt__own_emit_ackfreq(c, buf);
            break;
        case DUE_MTU:
            n = udt__pmtu_emit(c, buf, cap, now);
            break;
        case DUE_PARAMS:
        case DUE_PATH:
        case DUE_PATH_REPLY:
            n = udt__own_emit(c, bit, buf, cap, &c->own.to, now);
            break;
        default:
            break;
        }
        if (n && c->own.on && bit != DUE_HANDSHAKE)
            n = udt__own_seal(c, buf, n);
        if (n)
            return n;
    }
    return 0;
}

size_t udt__conn_output_control(udt_conn *c, unsigned mask, uint8_t *buf, size_t cap, udt_time now)
{
    unsigned rest = c->due & ~mask;
    c->own.to.family = 0;
    c->due &= mask;
    size_t n = emit_control(c, buf, cap, now);
    c->due |= rest;
    if (n)
        c->sent_at = now;
    return n;
}

size_t udt__conn_output(udt_conn *c, uint8_t *buf, size_t cap, size_t max_segs, size_t *seg,
                        udt_time now)
{
    c->own.to.family = 0;
    size_t n;
    bool held = udt__foreign_holds(c, buf, &n, now);
    if (!held)
        n = emit_control(c, buf, cap, now);
    if (n)
        *seg = n;
    else if (!held && udt__conn_live(c))
        n = udt__conn_emit_data(c, buf, cap, max_segs, seg, now);
    if (n)
        c->sent_at = now;
    return n;
}
