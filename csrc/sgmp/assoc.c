/* Associations: finding, making, waking, closing and forgetting them. An association is the state
 * towards one instance of one principal; its address is only an attribute (spec/gmp.md 2, 5.4). */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

uint64_t sg_dest_key(const udt_addr *addr)
{
    uint64_t w[2] = {0, 0};
    memcpy(w, addr->ip, addr->family == 4 ? 4 : 16);
    return (w[0] * 0x9e3779b97f4a7c15u ^ w[1]) * 0xd6e8feb86659fd93u ^ (uint64_t)addr->port << 32 ^
           (uint64_t)addr->family << 56 ^ addr->scope;
}

struct assoc *sg_assoc_find(sgmp_node *n, uint64_t instance, const struct principal *who)
{
    for (struct sg_hnode *h = sg_hget(&n->by_inst, instance); h; h = sg_hnext(h)) {
        struct assoc *a = sg_of(h, struct assoc, by_inst);
        if (a->who == who)
            return a;
    }
    return NULL;
}

struct assoc *sg_assoc_at(sgmp_node *n, const udt_addr *addr, const struct principal *who)
{
    struct assoc *best = NULL;
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(addr)); h; h = sg_hnext(h)) {
        struct assoc *a = sg_of(h, struct assoc, by_dest);
        if (a->who == who && addr_eq(&a->addr, addr) && (!best || a->last_rx > best->last_rx))
            best = a;
    }
    return best;
}

bool sg_assoc_crowd(sgmp_node *n, const udt_addr *addr, const struct principal *who)
{
    int there = 0;
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(addr)); h; h = sg_hnext(h)) {
        const struct assoc *a = sg_of(h, struct assoc, by_dest);
        there += a->who == who && addr_eq(&a->addr, addr);
    }
    return there >= SG_AT_ADDRESS;
}

bool sg_assoc_share(const sgmp_node *n, const struct principal *who)
{
    return who && who->assocs >= SG_AT_ADDRESS && who->assocs >= n->cfg.max_assoc - n->assoc_n;
}

struct assoc *sg_assoc_hello(sgmp_node *n, const udt_addr *addr, const struct principal *who,
                             uint64_t nonce)
{
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(addr)); h; h = sg_hnext(h)) {
        struct assoc *a = sg_of(h, struct assoc, by_dest);
        if (a->who == who && a->x && a->x->hello_on && a->x->hello_n &&
            a->x->hello_nonce == nonce && addr_eq(&a->addr, addr))
            return a;
    }
    return NULL;
}

struct assoc *sg_assoc_echo(sgmp_node *n, const udt_addr *addr, const struct key *key, uint64_t pkt)
{
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(addr)); h; h = sg_hnext(h)) {
        struct assoc *a = sg_of(h, struct assoc, by_dest);
        bool outstanding = a->instance && pkt > a->peer_echo && pkt < a->next_pkt;
        bool hello = a->x && a->x->hello_on && a->x->hello_n && a->x->hello_pkt == pkt;
        if (addr_eq(&a->addr, addr) && (!key || a->who == key->who) && (outstanding || hello))
            return a;
    }
    return NULL;
}

static bool evict_one(sgmp_node *n, udt_time now)
{
    int looked = 0;
    for (struct sg_link *l = n->lru.next; l != &n->lru && looked < 16; l = l->next, looked++) {
        struct assoc *a = sg_of(l, struct assoc, lru);
        if (now - a->last_use < SG_T_EVICT)
            return false;
        if (!sg_assoc_busy(a)) {
            n->st.evictions++;
            sg_assoc_free(n, a);
            return true;
        }
    }
    return false;
}

struct assoc *sg_assoc_new(sgmp_node *n, const udt_addr *addr, struct key *key, udt_time now)
{
    if (!key && n->unauth_n >= SG_UNAUTH)
        return NULL;
    if (n->assoc_n >= n->cfg.max_assoc && !evict_one(n, now))
        return NULL;
    struct assoc *a = calloc(1, sizeof *a);
    if (!a || !sg_heap_reserve(&n->heap)) {
        free(a);
        return NULL;
    }
    a->timer.kind = SG_TM_ASSOC;
    a->timer.at = UDT_NEVER;
    a->addr = *addr;
    a->who = key ? key->who : NULL;
    a->key_id = key ? key->id : 0;
    principal_ref(a->who);
    a->next_seq = n->seq_mark + 1;
    a->next_pkt = a->first_pkt = n->pkt_mark + 1;
    a->peer_echo = n->pkt_mark;
    a->last_rx = a->last_use = now;
    a->dgram = PKT_LIMIT;
    sg_link_init(&a->ready);
    sg_push(&n->lru, &a->lru);
    sg_hadd(&n->by_dest, &a->by_dest, sg_dest_key(addr));
    n->assoc_n++;
    n->unauth_n += !key;
    if (key)
        key->who->assocs++;
    return a;
}

void sg_assoc_bind(sgmp_node *n, struct assoc *a, uint64_t instance)
{
    a->instance = instance;
    sg_hadd(&n->by_inst, &a->by_inst, instance);
}

void sg_assoc_move(sgmp_node *n, struct assoc *a, const udt_addr *addr)
{
    if (a->x)
        sg_want_over(n, a); /* it was asked for under the old address */
    sg_hdel(&n->by_dest, &a->by_dest);
    a->addr = *addr;
    sg_hadd(&n->by_dest, &a->by_dest, sg_dest_key(addr));
}

void sg_assoc_proved(sgmp_node *n, const struct assoc *here, const udt_addr *addr, udt_time now)
{
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(addr)), *next; h; h = next) {
        struct assoc *a = sg_of(h, struct assoc, by_dest);
        next = sg_hnext(h); /* it may go */
        if (!a->unproved || !addr_eq(&a->addr, addr))
            continue;
        a->unproved = false;
        if (a != here)
            sg_assoc_kick(n, a, now);
    }
}

bool sg_assoc_wake(struct assoc *a, udt_time now)
{
    if (a->x)
        return true;
    struct active *x = calloc(1, sizeof *x);
    if (!x)
        return false;
    struct sg_link *lists[] = {&x->ctl_q, &x->new_q,   &x->resend_q, &x->flight, &x->want,
                               &x->calls, &x->running, &x->bulk_out, &x->bulk_in};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        sg_link_init(lists[i]);
    x->owner = a;
    x->low = a->next_seq;
    x->cwnd_m = 10000;
    x->ssthresh_m = UINT32_MAX;
    x->pace_m = 16000;
    x->pace_at = now;
    x->echo = x->recovery_pkt = a->next_pkt - 1;
    x->known_end = 0;
    x->pto_at = x->loss_at = x->ack_at = x->outst_since = x->hello_at = x->probe_at = UDT_NEVER;
    x->win_msgs = 65535;
    x->win_kib = 65535;
    x->key_event_at = now - SEC(3600);
    x->ping_at = now - SEC(3600);
    x->top_at = now;
    x->size_at = now;
    a->x = x;
    return true;
}

bool sg_assoc_busy(const struct assoc *a)
{
    const struct active *x = a->x;
    if (a->rcv_msgs)
        return true;
    return x && (!sg_empty(&x->want) || x->q_msgs || x->calls_n || x->running_n || x->refused_n ||
                 x->bulk_in_n || x->bulk_gone_n || x->in_stream || x->out ||
                 !sg_empty(&x->bulk_out) || x->ack_count || x->ack_now);
}

static void sleep_now(sgmp_node *n, struct assoc *a)
{
    struct active *x = a->x;
    if (!x)
        return;
    sg_unlink(&x->want);
    sg_event_unkeep(n, &x->want_ev);
    aead_free(x->seal);
    aead_free(x->open[0]);
    aead_free(x->open[1]);
    free(x->ring);
    free(x->sent);
    free(x->refused);
    secure_wipe(x->token, sizeof x->token);
    free(x);
    a->x = NULL;
}

/* Marks survive the association: a later one must not repeat a seq or a nonce. */
static void raise_marks(sgmp_node *n, const struct assoc *a)
{
    if (a->next_seq - 1 > n->seq_mark)
        n->seq_mark = a->next_seq - 1;
    if (a->next_pkt - 1 > n->pkt_mark)
        n->pkt_mark = a->next_pkt - 1;
}

void sg_assoc_close(sgmp_node *n, struct assoc *a)
{
    if (a->closed)
        return;
    if (a->x) {
        sg_requests_drop(n, a);
        sg_bulk_in_drop(n, a);
        sg_bulk_out_drop(n, a);
        sleep_now(n, a);
    }
    a->closed = true;
    sg_unlink(&a->ready);
    sg_hdel(&n->by_dest, &a->by_dest);
    sg_heap_set(&n->heap, &a->timer, UDT_NEVER);
}

/* Only with nothing outstanding, or when the whole node goes: then no outcome is owed. */
void sg_assoc_free(sgmp_node *n, struct assoc *a)
{
    if (a->x) {
        sg_calls_fail(n, a, SGMP_RPC_PEER_LOST, 0);
        sg_fail_all(n, a, UDT_E_CLOSED, UDT_E_CLOSED, 0);
    }
    sg_assoc_close(n, a);
    raise_marks(n, a);
    if (a->instance)
        sg_hdel(&n->by_inst, &a->by_inst);
    sg_unlink(&a->lru);
    sg_heap_unreserve(&n->heap, &a->timer);
    n->assoc_n--;
    n->unauth_n -= !a->who;
    if (a->who)
        a->who->assocs--;
    principal_unref(&n->keys, a->who);
    free(a);
}

void sg_assoc_use(sgmp_node *n, struct assoc *a, udt_time now)
{
    a->last_use = now;
    if (a->lru.next != &n->lru) {
        sg_unlink(&a->lru);
        sg_push(&n->lru, &a->lru);
    }
}

/* A genuine datagram came. */
void sg_assoc_heard(sgmp_node *n, struct assoc *a, udt_time now)
{
    a->last_rx = now;
    sg_assoc_use(n, a, now);
    if (a->state == SG_SUSPECT || a->state == SG_LOST) {
        a->state = SG_READY;
        sg_event_peer(n, a, SGMP_EV_PEER_READY, 0);
    }
}

/* The key to send with: the current one while it is valid (and the peer knows it), else the
 * principal's newest. */
struct key *sg_assoc_key(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct key *key = keys_find(&n->keys, a->key_id);
    if (key && key->who != a->who)
        key = NULL;
    if (key_can_send(key, now) && !a->x->key_bad)
        return key;
    struct key *newest = keys_newest(a->who, now);
    if (newest && newest != key) {
        a->key_id = newest->id;
        a->x->key_bad = false;
        return newest;
    }
    return key_can_send(key, now) ? key : NULL;
}

aead *sg_assoc_seal(sgmp_node *n, struct assoc *a, const struct key *key)
{
    struct active *x = a->x;
    if (x->seal && x->seal_serial == key->serial)
        return x->seal;
    aead_free(x->seal);
    x->seal = key_derive(key, 'd', n->instance, a->instance, 0);
    x->seal_serial = key->serial;
    return x->seal;
}

aead *sg_assoc_open(struct assoc *a, const struct key *key)
{
    for (int i = 0; a->x && i < 2; i++)
        if (a->x->open[i] && a->x->open_serial[i] == key->serial)
            return a->x->open[i];
    return NULL;
}

void sg_assoc_keep_open(struct assoc *a, const struct key *key, aead *ctx)
{
    struct active *x = a->x;
    aead_free(x->open[1]);
    x->open[1] = x->open[0];
    x->open_serial[1] = x->open_serial[0];
    x->open[0] = ctx;
    x->open_serial[0] = key->serial;
}

static void move_list(sgmp_node *n, struct sg_link *list, struct assoc *to)
{
    while (!sg_empty(list)) {
        struct msg *m = sg_of(list->next, struct msg, q);
        sg_bulk_move(n, m, to);
        sg_msg_leave(n, m);
        sg_msg_join(n, to, m);
    }
}

/* `from` never had an instance, so nothing of it was ever transmitted. */
void sg_assoc_merge(sgmp_node *n, struct assoc *from, struct assoc *to, udt_time now)
{
    if (!sg_assoc_wake(to, now))
        return;
    move_list(n, &from->x->ctl_q, to);
    move_list(n, &from->x->new_q, to);
    while (!sg_empty(&from->x->calls)) {
        struct call *c = sg_of(from->x->calls.next, struct call, of);
        sg_unlink(&c->of);
        from->x->calls_n--;
        c->a = to;
        if (to->x->calls_n++ == 0)
            to->x->calls_since = now;
        sg_push(&to->x->calls, &c->of);
    }
    sg_want_move(n, from, to);
    sg_assoc_free(n, from);
}

/* Section 7, peer restart: what was never transmitted, or may be repeated, goes to the successor;
 * the rest ends with its uncertain outcome. */
static void restart_msg(sgmp_node *n, struct msg *m, struct assoc *to, udt_time now)
{
    if (m->id == 0 && !m->call) {
        sg_settle(n, m, UDT_E_RESTARTED, now);
        return;
    }
    if (m->attempt && !(m->flags & PKT_F_REPEATABLE)) {
        sg_settle(n, m, UDT_E_RESTARTED, now);
        return;
    }
    struct call *c = m->call;
    sg_bulk_move(n, m, to);
    sg_msg_leave(n, m);
    m->elsewhere |= m->attempt > 0;
    m->seq = 0;
    m->attempt = m->tries = 0;
    sg_msg_join(n, to, m);
    if (c && c->a != to) {
        sg_unlink(&c->of);
        c->a->x->calls_n--;
        c->a = to;
        if (to->x->calls_n++ == 0)
            to->x->calls_since = now;
        sg_push(&to->x->calls, &c->of);
    }
}

void sg_assoc_restart(sgmp_node *n, struct assoc *old, uint64_t instance, udt_time now)
{
    struct key *key = keys_find(&n->keys, old->key_id);
    struct assoc *to = sg_assoc_find(n, instance, old->who);
    sg_event_peer(n, old, SGMP_EV_PEER_RESTARTED, instance);
    if (old->x && (!to || to->closed)) {
        if (old->x->q_msgs == 0 && old->x->calls_n == 0 && sg_empty(&old->x->bulk_out))
            to = NULL;
        else
            to = !old->who || key ? sg_assoc_new(n, &old->addr, key, now) : NULL;
    }
    if (old->x && (!to || !sg_assoc_wake(to, now))) {
        sg_fail_all(n, old, UDT_E_RESTARTED, UDT_E_NOTSENT, now);
    } else if (old->x) {
        struct active *x = old->x;
        struct sg_link *lists[] = {&x->ctl_q, &x->flight, &x->resend_q, &x->new_q};
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
            while (!sg_empty(lists[i]))
                restart_msg(n, sg_of(lists[i]->next, struct msg, q), to, now);
        while (!sg_empty(&x->bulk_out)) {
            struct msg *m = sg_of(x->bulk_out.next, struct bulk, of)->msg;
            restart_msg(n, m, to, now);
        }
    }
    if (old->x)
        sg_calls_fail(n, old, SGMP_RPC_PEER_RESTARTED, now);
    if (old->x && to && to->x)
        sg_want_move(n, old, to);
    else if (old->x)
        sg_want_over(n, old);
    if (old->unproved && to && to->x && !to->instance) { /* nor is it for its successor */
        to->unproved = true;
        to->x->named = old->x->named;
        to->x->unproved_in = old->x->unproved_in;
        to->x->unproved_out = old->x->unproved_out;
    }
    sg_assoc_close(n, old);
    if (to && to->x) {
        if (!to->instance)
            sg_hello_start(n, to, now);
        sg_assoc_kick(n, to, now);
    }
}

int sg_assoc_for(sgmp_node *n, const sgmp_dest *to, struct assoc **out, udt_time now)
{
    struct key *key = to->key_id ? keys_find(&n->keys, to->key_id) : NULL;
    udt_addr addr = sg_addr(&to->addr);
    n->now = now;
    if (addr.family != 4 && addr.family != 6)
        return UDT_E_INVAL;
    if (to->key_id ? !key_can_send(key, now) : n->cfg.require_auth)
        return UDT_E_NOKEY;
    struct assoc *a = sg_assoc_at(n, &addr, key ? key->who : NULL);
    if (!a) {
        a = sg_assoc_new(n, &addr, key, now);
        if (!a)
            return UDT_E_LIMIT;
    }
    if (!sg_assoc_wake(a, now))
        return UDT_E_NOMEM;
    struct key *old = key ? keys_find(&n->keys, a->key_id) : NULL;
    if (key && (!old || key->serial > old->serial)) {
        a->key_id = key->id; /* rotation: the newest key named by the application */
        a->x->key_bad = false;
    }
    if (a->unproved) { /* whoever is there now, by the application's word */
        a->x->named = true;
        sg_hello_start(n, a, now);
    }
    *out = a;
    return 0;
}

/* Time-outs that belong to the peer as a whole: silence, quiet, pending pings. */
static udt_time watch_silence(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    udt_time next = UDT_NEVER, since, heard;
    bool out = x->q_msgs > 0 || x->hello_on || x->verify_n > 0;
    if (!out)
        x->outst_since = UDT_NEVER;
    else if (x->outst_since == UDT_NEVER)
        x->outst_since = now;
    if (a->timer.at <= now - SG_T_STOOD) /* nobody was asked meanwhile, so nobody is to blame */
        x->stood_until = now;
    heard = a->last_rx > x->stood_until ? a->last_rx : x->stood_until;
    if (out && a->state != SG_LOST) {
        since = (heard > x->outst_since ? heard : x->outst_since) + SG_T_LOST;
        if (now >= since) {
            a->state = SG_LOST;
            sg_event_peer(n, a, SGMP_EV_PEER_LOST, 0);
        } else
            next = since;
    }
    if (x->verify_n && a->instance) {
        if (now >= x->ping_at + SEC(1)) {
            x->verify_n--;
            x->ping_due = x->ping_pad = true;
        } else if (x->ping_at + SEC(1) < next)
            next = x->ping_at + SEC(1);
    }
    if (x->calls_n == 0 || !a->instance)
        return next;
    since = heard > x->calls_since ? heard : x->calls_since;
    if (now >= since + SG_T_LOST) {
        if (a->state != SG_LOST) {
            a->state = SG_LOST;
            sg_event_peer(n, a, SGMP_EV_PEER_LOST, 0);
        }
        sg_calls_fail(n, a, SGMP_RPC_PEER_LOST, now);
        return next;
    }
    udt_time ping = (since > x->ping_at ? since : x->ping_at) + SEC(5);
    if (now >= ping)
        x->ping_due = true;
    else if (ping < next)
        next = ping;
    return since + SG_T_LOST < next ? since + SG_T_LOST : next;
}

/* Runs what is due, frees what is unused, puts the association among the ready ones and sets its
 * timer. Called after every change. */
void sg_assoc_kick(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    udt_time next, when;
    if (!x || a->closed) {
        sg_heap_set(&n->heap, &a->timer, UDT_NEVER);
        return;
    }
    if (x->pto_at <= now)
        sg_on_pto(n, a, now);
    if (x->loss_at <= now)
        sg_detect_loss(n, a, now);
    next = watch_silence(n, a, now);
    udt_time size_at = sg_size_watch(n, a, now);
    next = size_at < next ? size_at : next;
    if (x->hello_on && !sg_assoc_busy(a))
        x->hello_on = false;
    if (!sg_assoc_busy(a) && !x->ping_due && !x->pong_due && !x->verify_n && !x->size_try &&
        !a->unproved) {
        udt_time quiet = a->last_use + SG_T_QUIET;
        if (now >= quiet) {
            sleep_now(n, a);
            sg_heap_set(&n->heap, &a->timer, UDT_NEVER);
            sg_unlink(&a->ready);
            if (!a->instance)
                sg_assoc_free(n, a);
            return;
        }
        next = quiet < next ? quiet : next;
    }
    if (sg_wants_output(n, a, now, &when)) {
        if (sg_empty(&a->ready))
            sg_push(&n->ready, &a->ready);
    } else
        sg_unlink(&a->ready);
    next = when < next ? when : next;
    next = x->pto_at < next ? x->pto_at : next;
    next = x->loss_at < next ? x->loss_at : next;
    sg_heap_set(&n->heap, &a->timer, next);
}

/* Forgets associations that were idle for T_idle; those with something outstanding are pushed back
 * (they are in use). Returns when to look again. */
udt_time sg_expire(sgmp_node *n, udt_time now)
{
    for (int i = 0; i < 64 && !sg_empty(&n->lru); i++) {
        struct assoc *a = sg_of(n->lru.next, struct assoc, lru);
        if (now - a->last_use < SG_T_IDLE)
            return a->last_use + SG_T_IDLE;
        if (sg_assoc_busy(a))
            sg_assoc_use(n, a, now);
        else
            sg_assoc_free(n, a);
    }
    return now;
}
