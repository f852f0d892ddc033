/* What the application asks for: plain messages, and cancelling anything (calls: rpc.c, groups:
 * group.c). */
#include "sgmp/engine.h"

uint32_t sgmp_default_ms(bool call, size_t len)
{
    return call ? 60000 : len > PKT_INLINE ? 120000 : 30000;
}

int sg_send(sgmp_node *n, const struct sg_ask *q, udt_time now)
{
    const sgmp_opts *o = q->o;
    struct assoc *a;
    struct msg *m;
    if (q->id == 0 || (o->flags & ~(SGMP_CONTROL | SGMP_REPEATABLE)))
        return UDT_E_INVAL;
    if (q->len > SG_BULK_MAX || ((o->flags & SGMP_CONTROL) && q->len > SG_CONTROL_BYTES))
        return UDT_E_TOOBIG;
    int err = sg_assoc_for(n, q->to, &a, now);
    if (err)
        return err;
    udt_time life = MS(o->deadline_ms ? o->deadline_ms : sgmp_default_ms(false, q->len));
    struct sg_post p = {.id = q->id,
                        .body = q->buf,
                        .body_len = q->len,
                        .share = q->share,
                        .member = q->member,
                        .channel = o->channel,
                        .kind = PKT_K_MESSAGE,
                        .tries = q->tries,
                        .until = now + (life < SG_T_MSG ? life : SG_T_MSG)};
    p.flags = (uint8_t)((o->flags & SGMP_CONTROL ? PKT_F_CONTROL : 0) |
                        (o->flags & SGMP_REPEATABLE ? PKT_F_REPEATABLE : 0));
    if (o->ttl_ms) {
        p.ttl_at = now + MS(o->ttl_ms);
        p.until = p.ttl_at < p.until ? p.ttl_at : p.until;
    }
    err = sg_post(n, a, &p, &m, now);
    if (err == 0)
        sg_hadd(&n->msgs, &m->by_id, q->id);
    sg_assoc_kick(n, a, now);
    return err;
}

int sgmp_node_send(sgmp_node *n, const sgmp_dest *to, const uint8_t *buf, size_t len,
                   const sgmp_opts *o, uint64_t id, udt_time now)
{
    static const sgmp_opts none;
    struct sg_ask q = {.to = to, .buf = buf, .len = len, .o = o ? o : &none, .id = id};
    return sg_send(n, &q, now);
}

int sgmp_node_cancel(sgmp_node *n, uint64_t id, udt_time now)
{
    struct sg_hnode *h = sg_hget(&n->msgs, id);
    n->now = now;
    if (h) {
        struct msg *m = sg_of(h, struct msg, by_id);
        struct assoc *a = m->a;
        sg_settle(n, m, m->attempt ? UDT_E_CANCELLED : UDT_E_NOTSENT, now);
        sg_assoc_kick(n, a, now);
        return 0;
    }
    h = sg_hget(&n->calls, id);
    if (!h)
        return sg_group_cancel(n, id, now);
    struct call *c = sg_of(h, struct call, by_id);
    struct assoc *a = c->a;
    sg_call_end(n, c, SGMP_RPC_CANCELLED, now);
    sg_assoc_kick(n, a, now);
    return 0;
}
