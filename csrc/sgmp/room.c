/* Back-pressure: who met AGAIN is told when there is room (spec/gmp.md 6.3, docs/decisions/0188).
 */
#include "sgmp/engine.h"

/* AGAIN: WRITABLE follows when half of what was full is free, so that who tries again finds room.
 */
int sg_want_room(sgmp_node *n, struct assoc *a, unsigned what)
{
    struct active *x = a->x;
    if (!x->want_ev && !sg_event_keep(n, &x->want_ev))
        return UDT_E_NOMEM; /* nobody waits for what might never come */
    if (sg_empty(&x->want))
        sg_push(&n->writers, &x->want);
    x->wants |= (uint8_t)what;
    return UDT_E_AGAIN;
}

/* Tells that there is room, whatever there is: who waits tries again. */
void sg_want_over(sgmp_node *n, struct assoc *a)
{
    if (sg_empty(&a->x->want))
        return;
    sg_unlink(&a->x->want);
    a->x->wants = 0;
    sg_event_push(n, sg_event_last(&a->x->want_ev, a, SGMP_EV_WRITABLE));
}

/* Who waits for room waits on, unless it knows the peer under another address. */
void sg_want_move(sgmp_node *n, struct assoc *from, struct assoc *to)
{
    struct active *x = from->x;
    if (sg_empty(&x->want))
        return;
    if (!addr_eq(&from->addr, &to->addr)) {
        sg_want_over(n, from);
        return;
    }
    if (!to->x->want_ev) {
        to->x->want_ev = x->want_ev;
        x->want_ev = NULL;
    }
    (void)sg_want_room(n, to, x->wants);
    sg_unlink(&x->want);
    sg_event_unkeep(n, &x->want_ev);
}

static bool has_room(const sgmp_node *n, const struct active *x)
{
    if ((x->wants & SG_WANT_CTL) && x->ctl_msgs > SG_CTL_Q / 2)
        return false;
    if ((x->wants & SG_WANT_BULK) &&
        (x->bulk_out_n > SG_BULK_ENTRIES / 2 || n->bulk_snd_bytes > SG_BULK_TOTAL / 2))
        return false;
    return x->q_msgs <= SG_Q_MSGS / 2 && x->q_bytes <= SG_Q_BYTES / 2;
}

/* A group is refused for what the whole node has no room for: its WRITABLE names nobody. */
int sg_want_group(sgmp_node *n, bool bulk)
{
    if (!n->group_ev && !sg_event_keep(n, &n->group_ev))
        return UDT_E_NOMEM;
    n->group_bulk |= bulk;
    return UDT_E_AGAIN;
}

static void tell_group(sgmp_node *n)
{
    if (!n->group_ev || n->members_n > SG_GROUP_MEMBERS / 2 || n->light_n > SG_EVENTS / 2 ||
        (n->group_bulk && n->bulk_snd_bytes > SG_BULK_TOTAL / 2))
        return;
    n->group_bulk = false;
    sg_event_push(n, sg_event_last(&n->group_ev, NULL, SGMP_EV_WRITABLE));
}

void sg_tell_writable(sgmp_node *n)
{
    tell_group(n);
    for (struct sg_link *l = n->writers.next, *next; l != &n->writers; l = next) {
        struct assoc *a = sg_of(l, struct active, want)->owner;
        next = l->next;
        if (n->snd_bytes > SG_Q_TOTAL / 2)
            return;
        if (has_room(n, a->x))
            sg_want_over(n, a);
    }
}
