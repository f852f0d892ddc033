/* The node: making and freeing it, its five verbs, the event queue and the receive accounts. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

uint64_t sg_rand64(sgmp_node *n)
{
    uint8_t b[8];
    uint64_t v;
    do {
        n->cfg.rand(n->cfg.rand_arg, b, sizeof b);
        v = be64_get(b);
    } while (v == 0);
    return v;
}

sgmp_node *sgmp_node_new(const sgmp_node_config *cfg, udt_time now)
{
    sgmp_node *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->cfg = *cfg;
    if (n->cfg.max_assoc == 0)
        n->cfg.max_assoc = 65536;
    n->instance = sg_rand64(n);
    n->born = now;
    keys_init(&n->keys, &n->heap, SG_TM_KEY, sg_rand64(n));
    tokens_init(&n->tokens, cfg->rand, cfg->rand_arg, now);
    struct sg_htab *tabs[] = {&n->by_inst,  &n->by_dest, &n->msgs,    &n->calls,
                              &n->requests, &n->bulks,   &n->streams, &n->groups};
    for (size_t i = 0; i < sizeof tabs / sizeof tabs[0]; i++)
        sg_htab_init(tabs[i], sg_rand64(n));
    struct sg_link *lists[] = {&n->lru,     &n->ready,  &n->events, &n->held,
                               &n->writers, &n->orders, &n->out_lru};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        sg_link_init(lists[i]);
    n->channels[0] = 1;
    n->jitter = sg_rand64(n);
    n->reset_at = now;
    n->reset_credit_m = 10000;
    if (n->cfg.max_dgram < PKT_LIMIT)
        n->cfg.max_dgram = PKT_LIMIT;
    if (n->cfg.max_dgram > SG_DGRAM_TOP)
        n->cfg.max_dgram = SG_DGRAM_TOP;
    if (n->cfg.group_rate == 0)
        n->cfg.group_rate = SG_GROUP_RATE;
    n->group_at = now;
    n->group_credit_m = SG_GROUP_BURST * 1000;
    return n;
}

static void drop_all(sgmp_node *n, struct sg_link *events)
{
    while (!sg_empty(events)) {
        struct evt *e = sg_of(events->next, struct evt, q);
        if (e->req)
            e->req->ev = NULL;
        sg_event_drop(n, e);
    }
}

void sgmp_node_free(sgmp_node *n)
{
    if (!n)
        return;
    drop_all(n, &n->held);
    drop_all(n, &n->events);
    while (!sg_empty(&n->lru))
        sg_assoc_free(n, sg_of(n->lru.next, struct assoc, lru));
    sg_bulk_free_all(n);
    sg_group_free_all(n);
    sg_event_unkeep(n, &n->group_ev);
    drop_all(n, &n->events);
    void **lists[] = {&n->blocks, &n->spares};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        while (*lists[i]) {
            void *p = *lists[i];
            memcpy(lists[i], p, sizeof p);
            free(p);
        }
    keys_fini(&n->keys);
    struct sg_htab *tabs[] = {&n->by_inst,  &n->by_dest, &n->msgs,    &n->calls,
                              &n->requests, &n->bulks,   &n->streams, &n->groups};
    for (size_t i = 0; i < sizeof tabs / sizeof tabs[0]; i++)
        sg_htab_fini(tabs[i]);
    sg_heap_fini(&n->heap);
    secure_wipe(&n->tokens, sizeof n->tokens);
    free(n);
}

uint64_t sgmp_node_instance(const sgmp_node *n)
{
    return n->instance;
}

int sgmp_node_key_add(sgmp_node *n, const sgmp_key *key, udt_time now)
{
    if (n->cfg.require_auth && key->alg != SGMP_ALG_AES256GCM)
        return UDT_E_INVAL;
    return keys_add(&n->keys, key, now);
}

int sgmp_node_key_remove(sgmp_node *n, uint32_t key_id, udt_time now)
{
    struct key *key = keys_find(&n->keys, key_id);
    (void)now;
    if (!key)
        return UDT_E_NOKEY;
    keys_drop(&n->keys, key);
    return 0;
}

int sgmp_node_channel_open(sgmp_node *n, uint16_t channel)
{
    n->channels[channel / 64] |= 1ull << (channel % 64);
    return 0;
}

int sgmp_node_channel_close(sgmp_node *n, uint16_t channel)
{
    if (channel == 0)
        return UDT_E_INVAL;
    n->channels[channel / 64] &= ~(1ull << (channel % 64));
    return 0;
}

/* Receive accounts. A peer may hold its share of what is free; one message always fits, so that a
 * busy peer cannot shut out a quiet one. */
uint32_t sg_rcv_share(const sgmp_node *n, const struct assoc *a)
{
    uint32_t free_msgs = n->rcv_msgs < SG_RCV_MSGS ? SG_RCV_MSGS - n->rcv_msgs : 0;
    uint32_t peers = n->active_rcv + (a->rcv_msgs == 0);
    uint32_t share = free_msgs / (peers ? peers : 1);
    if (n->rcv_bytes >= SG_RCV_BYTES)
        return 0;
    return share == 0 && a->rcv_msgs == 0 ? 1 : share;
}

bool sg_rcv_room(const sgmp_node *n, const struct assoc *a, size_t len, bool reserved)
{
    if (reserved && a->rcv_ctl < SG_RCV_CONTROL)
        return true;
    return n->rcv_bytes + len <= SG_RCV_BYTES && sg_rcv_share(n, a) > 0;
}

void sg_rcv_charge(sgmp_node *n, struct evt *e, enum sg_class klass, size_t bytes)
{
    e->klass = (uint8_t)klass;
    e->charge = (uint32_t)bytes;
    if (e->a->rcv_msgs++ == 0)
        n->active_rcv++;
    n->rcv_msgs++;
    if (klass == SG_C_CONTROL)
        e->a->rcv_ctl++;
    if (klass == SG_C_BULK)
        n->bulk_rcv_bytes += bytes;
    else
        n->rcv_bytes += bytes;
}

/* Frees the event; a peer that was told there is no room hears when half of it is free again. */
void sg_event_drop(sgmp_node *n, struct evt *e)
{
    struct assoc *a = e->a;
    sg_unlink(&e->q);
    if (e->call)
        e->call->progress = NULL;
    if (e->klass != SG_C_NONE) {
        n->rcv_msgs--;
        if (e->klass == SG_C_CONTROL)
            a->rcv_ctl--;
        if (e->klass == SG_C_BULK)
            n->bulk_rcv_bytes -= e->charge;
        else
            n->rcv_bytes -= e->charge;
        if (--a->rcv_msgs == 0)
            n->active_rcv--;
        if (a->x && a->x->told_zero && n->rcv_msgs <= SG_RCV_MSGS / 2 &&
            n->rcv_bytes <= SG_RCV_BYTES / 2) {
            a->x->told_zero = false;
            a->x->ack_now = true;
            sg_unlink(&a->ready);
            sg_push(&n->ready, &a->ready);
        }
    }
    sg_block_free(n, e, e->room);
}

static void event_init(struct evt *e, struct assoc *a, int kind, uint32_t room)
{
    memset(e, 0, sizeof *e);
    e->room = room;
    sg_link_init(&e->q);
    e->a = a;
    e->ev.kind = (uint16_t)kind;
    if (a) {
        e->ev.instance = a->instance;
        e->ev.from = a->addr;
        e->ev.key_id = a->rx_key_id ? a->rx_key_id : a->key_id;
    }
}

struct evt *sg_event_new(sgmp_node *n, struct assoc *a, int kind, size_t len)
{
    uint32_t room = sizeof(struct evt);
    struct evt *e = len ? sg_block(n, sizeof *e + len, &room) : sg_spare(n);
    if (!e)
        return NULL;
    event_init(e, a, kind, room);
    e->ev.len = (uint32_t)len;
    return e;
}

bool sg_event_keep(sgmp_node *n, struct evt **kept)
{
    return (*kept = sg_spare(n)) != NULL;
}

void sg_event_unkeep(sgmp_node *n, struct evt **kept)
{
    if (*kept)
        sg_block_free(n, *kept, sizeof **kept);
    *kept = NULL;
}

struct evt *sg_event_last(struct evt **kept, struct assoc *a, int kind)
{
    struct evt *e = *kept;
    *kept = NULL;
    event_init(e, a, kind, sizeof *e);
    return e;
}

void sg_event_push(sgmp_node *n, struct evt *e)
{
    if (e->klass == SG_C_NONE) {
        n->light_n++;
        e->a = NULL; /* may go before the event is read */
    }
    sg_push(&n->events, &e->q);
}

/* Changes of a peer's state: dropped (the state can be asked for) when nobody reads events, or
 * without memory. */
void sg_event_peer(sgmp_node *n, struct assoc *a, int kind, uint64_t instance)
{
    if (n->light_n >= SG_EVENTS)
        return;
    struct evt *e = sg_event_new(n, a, kind, 0);
    if (!e)
        return;
    if (instance)
        e->ev.instance = instance;
    sg_event_push(n, e);
}

void sg_event_outcome(sgmp_node *n, struct msg *m, int status)
{
    struct evt *e = sg_event_last(&m->last, m->a, SGMP_EV_OUTCOME);
    e->ev.id = m->id;
    e->ev.status = status;
    e->ev.ms = m->reason; /* of REFUSED */
    e->ev.not_delivered = sg_undelivered(status);
    if (status == 0)
        n->st.delivered++;
    else if (status == UDT_E_TIMEOUT)
        n->st.timed_out++;
    sg_event_push(n, e);
}

bool sgmp_node_has_event(const sgmp_node *n)
{
    return !sg_empty(&n->events);
}

bool sgmp_node_next_event(sgmp_node *n, struct sgmp_ev *ev)
{
    if (n->light_n <= SG_EVENTS / 2)
        sg_tell_writable(n);
    while (!sg_empty(&n->events)) {
        struct evt *e = sg_of(n->events.next, struct evt, q);
        sg_unlink(&e->q);
        if (e->klass == SG_C_NONE)
            n->light_n--;
        if (e->req && !sg_request_open(n, e->req, n->now)) {
            sg_event_drop(n, e);
            continue;
        }
        *ev = e->ev;
        ev->data = e->data + e->skip;
        if (e->klass != SG_C_NONE && e->ev.len) {
            ev->buf = e;
            sg_push(&n->held, &e->q);
            return true;
        }
        ev->data = NULL;
        ev->buf = NULL;
        sg_event_drop(n, e);
        return true;
    }
    return false;
}

void sgmp_node_release(sgmp_node *n, void *buf)
{
    if (buf)
        sg_event_drop(n, buf);
}

static void on_timer(sgmp_node *n, struct sg_timer *t, udt_time now)
{
    switch ((enum sg_timer_kind)t->kind) {
    case SG_TM_ASSOC: {
        struct assoc *a = sg_of(t, struct assoc, timer);
        sg_assoc_kick(n, a, now);
        break;
    }
    case SG_TM_MSG: {
        struct msg *m = sg_of(t, struct msg, timer);
        struct assoc *a = m->a;
        sg_settle(n, m, m->attempt ? UDT_E_TIMEOUT : UDT_E_NOTSENT, now);
        sg_assoc_kick(n, a, now);
        break;
    }
    case SG_TM_CALL:
        sg_call_timer(n, sg_of(t, struct call, timer), now);
        break;
    case SG_TM_REQ:
        sg_request_timer(n, sg_of(t, struct request, timer), now);
        break;
    case SG_TM_KEY:
        keys_drop(&n->keys, sg_of(t, struct key, expiry));
        break;
    case SG_TM_BULK:
        sg_bulk_timer(n, t, now);
        break;
    case SG_TM_GROUP:
        sg_group_timer(n, t, now);
        break;
    case SG_TM_IN:
    case SG_TM_STREAM:
        sg_bulk_in_timer(n, t, now);
        break;
    }
}

void sgmp_node_tick(sgmp_node *n, udt_time now)
{
    struct sg_timer *t;
    n->now = now;
    while ((t = sg_heap_due(&n->heap, now)))
        on_timer(n, t, now);
    sg_expire(n, now);
}

udt_time sgmp_node_deadline(const sgmp_node *n)
{
    udt_time at = sg_heap_top(&n->heap);
    if (!sg_empty(&n->lru)) {
        udt_time idle = sg_of(n->lru.next, struct assoc, lru)->last_use + SG_T_IDLE;
        at = idle < at ? idle : at;
    }
    return at;
}

static size_t take_reply(sgmp_node *n, uint8_t *buf, udt_addr *to)
{
    struct reply *r = &n->replies[n->reply_head];
    n->reply_head = (n->reply_head + 1) % SG_REPLIES;
    n->reply_n--;
    memcpy(buf, r->data, r->len);
    *to = r->to;
    return r->len;
}

size_t sgmp_node_output(sgmp_node *n, uint8_t *buf, size_t cap, udt_addr *to, udt_time now)
{
    size_t len = 0;
    n->now = now;
    n->fragments = false;
    if (cap < n->cfg.max_dgram)
        return 0;
    if (n->reply_n)
        len = take_reply(n, buf, to);
    while (!len && !sg_empty(&n->ready)) {
        struct assoc *a = sg_of(n->ready.next, struct assoc, ready);
        sg_unlink(&a->ready);
        len = a->x ? sg_build(n, a, buf, now) : 0;
        if (len)
            *to = a->addr;
        sg_assoc_kick(n, a, now); /* puts it back at the end if it has more */
        if (!len && n->ready.prev == &a->ready) {
            /* it has something that cannot be built now, as without memory for its key: later,
             * since this loop would try for ever */
            sg_unlink(&a->ready);
            sg_heap_set(&n->heap, &a->timer, now + MS(10));
        }
    }
    if (len) {
        n->st.dgrams_out++;
        n->st.bytes_out += (int64_t)len;
    }
    return len;
}

void sgmp_node_stats(const sgmp_node *n, sgmp_stats *out)
{
    *out = n->st;
    out->assoc = n->assoc_n;
    out->assoc_unauth = n->unauth_n;
    out->pending_calls = (int64_t)n->calls.count;
    out->running_requests = (int64_t)n->requests.count;
    out->snd_queue_bytes = (int64_t)n->snd_bytes;
    out->rcv_queue_bytes = (int64_t)n->rcv_bytes;
    out->bulk_bytes = (int64_t)(n->bulk_rcv_bytes + n->bulk_snd_bytes);
    out->groups = (int64_t)n->groups.count;
}

const refused_log *sgmp_node_refused(const sgmp_node *n)
{
    return &n->refused;
}

int sgmp_node_peer_info(const sgmp_node *n, const sgmp_dest *to, sgmp_peer_info *out)
{
    struct key *key = to->key_id ? keys_find(&n->keys, to->key_id) : NULL;
    if (to->key_id && !key)
        return UDT_E_NOKEY;
    memset(out, 0, sizeof *out);
    udt_addr addr = sg_addr(&to->addr);
    sgmp_node *mut = sg_of((uintptr_t)n, sgmp_node, cfg);
    const struct assoc *a = sg_assoc_at(mut, &addr, key ? key->who : NULL);
    if (!a)
        return 0;
    out->instance = a->instance;
    out->state = a->state;
    out->srtt_us = a->srtt;
    out->pto_us = sg_pto(a);
    out->max_dgram = a->dgram;
    if (a->x) {
        out->cwnd_dgrams = a->x->cwnd_m / 1000;
        out->queued_msgs = a->x->q_msgs;
        out->queued_bytes = a->x->q_bytes;
    }
    return 0;
}
