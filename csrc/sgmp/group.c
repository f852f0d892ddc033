/* Group send and group call (spec/gmp.md section 10). Each member is an ordinary message or call
 * with its own outcome; the payload exists once. Members start in random order, spread over a few
 * milliseconds and held to a rate, so that neither they nor their answers come as a storm. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

struct group {
    struct sg_hnode by_id;
    struct sg_timer timer;
    struct sg_link wait; /* members whose turn has not come */
    struct share *body;
    sgmp_group_opts o;
    uint64_t id;
    size_t len;
    udt_time until;
    uint32_t n, ok, ended, need;
    uint32_t ids; /* taken behind `id` */
    bool decided, busy, cancel_due;
    struct evt *decision, *end; /* kept for GROUP_DECIDED and GROUP_DONE */
    struct member m[];
};

static const udt_time RETRY_US = 10000, SPREAD_US = 20, SPREAD_MAX_US = 2000;

/* One that is in no table. */
static void group_drop(sgmp_node *n, struct group *g)
{
    sg_heap_unreserve(&n->heap, &g->timer);
    for (uint32_t i = 0; i < g->n; i++)
        sg_event_unkeep(n, &g->m[i].last);
    sg_event_unkeep(n, &g->decision);
    sg_event_unkeep(n, &g->end);
    sg_share_unref(g->body);
    free(g);
}

static void group_free(sgmp_node *n, struct group *g)
{
    sg_hdel(&n->groups, &g->by_id);
    n->members_n -= g->n;
    group_drop(n, g);
}

static void say(sgmp_node *n, const struct group *g, struct evt **kept, int kind, int status)
{
    struct evt *e = sg_event_last(kept, NULL, kind);
    e->ev.id = g->id;
    e->ev.status = status;
    e->ev.method = g->ok;
    e->ev.ms = g->n;
    sg_event_push(n, e);
}

/* Is the rule met, or out of reach? Cancelling the rest is left to the timer, for the caller may be
 * walking the lists that it changes. */
static void decide(sgmp_node *n, struct group *g)
{
    uint32_t left = g->n - g->ended;
    if (g->decided || (g->ok < g->need && g->ok + left >= g->need))
        return;
    g->decided = true;
    say(n, g, &g->decision, SGMP_EV_GROUP_DECIDED, g->ok >= g->need ? 0 : UDT_E_LIMIT);
    if (g->o.cancel_rest && left) {
        g->cancel_due = true;
        sg_heap_set(&n->heap, &g->timer, n->now);
    }
}

static void finish(sgmp_node *n, struct group *g)
{
    if (g->busy || g->ended < g->n)
        return;
    say(n, g, &g->end, SGMP_EV_GROUP_DONE, g->ok >= g->need ? 0 : UDT_E_LIMIT);
    group_free(n, g);
}

void sg_group_ended(sgmp_node *n, struct member *gm, struct assoc *a, int status, bool sure,
                    struct evt *e)
{
    struct group *g = gm->g;
    if (!e)
        e = sg_event_last(&gm->last, a, 0);
    e->ev.kind = SGMP_EV_GROUP_MEMBER;
    e->ev.id = g->id;
    e->ev.status = status;
    e->ev.method = gm->index;
    e->ev.ms = a && a->srtt > 0 ? (uint32_t)a->srtt : 0;
    e->ev.from = gm->to.addr;
    e->ev.key_id = gm->to.key_id;
    e->ev.not_delivered = sure;
    sg_event_push(n, e);
    sg_unlink(&gm->wait);
    gm->msg = NULL;
    gm->call = NULL;
    gm->ended = true;
    sg_event_unkeep(n, &gm->last);
    g->ended++;
    g->ok += status == 0;
    n->st.delivered += status == 0 && !g->o.call;
    decide(n, g);
    finish(n, g);
}

/* What a member that could not even start ends with. */
static int why(const struct group *g, int err)
{
    if (!g->o.call)
        return err;
    switch (err) {
    case UDT_E_NOKEY:
        return SGMP_RPC_DENIED;
    case UDT_E_TOOBIG:
        return SGMP_RPC_TOO_LARGE;
    case UDT_E_TIMEOUT:
        return SGMP_RPC_TIMEOUT;
    case UDT_E_CANCELLED:
        return SGMP_RPC_CANCELLED;
    default:
        return SGMP_RPC_UNKNOWN;
    }
}

/* False: no room now, its turn comes again. */
static bool start(sgmp_node *n, struct group *g, struct member *gm, udt_time now)
{
    sgmp_opts o = g->o.each;
    udt_time left = (g->until - now + 999) / 1000;
    o.deadline_ms = left > 1 ? (uint32_t)left : 1;
    struct sg_ask q = {.to = &gm->to,
                       .len = g->len,
                       .share = g->body,
                       .member = gm,
                       .o = &o,
                       .id = g->id + 1 + gm->index,
                       .method = g->o.method,
                       .tries = g->o.max_attempts};
    int err = g->o.call ? sg_call(n, &q, now) : sg_send(n, &q, now);
    if (err == UDT_E_AGAIN || err == UDT_E_LIMIT || err == UDT_E_NOMEM)
        return false;
    sg_unlink(&gm->wait);
    if (err)
        sg_group_ended(n, gm, NULL, why(g, err), true, NULL);
    return true;
}

static bool token(sgmp_node *n, udt_time now, udt_time *when)
{
    int64_t rate = n->cfg.group_rate, gain = (now - n->group_at) * rate / 1000;
    if (gain > 0) {
        n->group_credit_m += gain;
        n->group_at = now;
    }
    if (n->group_credit_m > SG_GROUP_BURST * 1000)
        n->group_credit_m = SG_GROUP_BURST * 1000;
    if (n->group_credit_m >= 1000)
        return true;
    *when = now + (1000 - n->group_credit_m) * 1000 / rate + 1;
    return false;
}

/* Starts whose turn it is; returns when to come again. */
static udt_time pump(sgmp_node *n, struct group *g, udt_time now)
{
    udt_time when = UDT_NEVER;
    while (!sg_empty(&g->wait)) {
        struct member *gm = sg_of(g->wait.next, struct member, wait);
        if (now >= g->until) {
            sg_unlink(&gm->wait);
            sg_group_ended(n, gm, NULL, g->o.call ? SGMP_RPC_TIMEOUT : UDT_E_NOTSENT, true, NULL);
            continue;
        }
        if (now < gm->at)
            return gm->at;
        if (!token(n, now, &when))
            return when;
        n->group_credit_m -= 1000;
        if (!start(n, g, gm, now)) {
            gm->at = now + RETRY_US < g->until ? now + RETRY_US : g->until;
            sg_unlink(&gm->wait);
            sg_push(&g->wait, &gm->wait);
        }
    }
    return UDT_NEVER;
}

static void cancel_member(sgmp_node *n, struct member *gm, udt_time now)
{
    struct assoc *a = gm->msg ? gm->msg->a : gm->call ? gm->call->a : NULL;
    if (gm->ended)
        return;
    if (gm->call)
        sg_call_end(n, gm->call, SGMP_RPC_CANCELLED, now);
    else if (gm->msg)
        sg_settle(n, gm->msg, gm->msg->attempt ? UDT_E_CANCELLED : UDT_E_NOTSENT, now);
    else
        sg_group_ended(n, gm, NULL, gm->g->o.call ? SGMP_RPC_CANCELLED : UDT_E_NOTSENT, true, NULL);
    if (a)
        sg_assoc_kick(n, a, now);
}

static void work(sgmp_node *n, struct group *g, udt_time now)
{
    g->busy = true;
    udt_time next = pump(n, g, now);
    if (g->cancel_due) {
        g->cancel_due = false;
        for (uint32_t i = 0; i < g->n; i++)
            cancel_member(n, &g->m[i], now);
        next = UDT_NEVER;
    }
    g->busy = false;
    sg_heap_set(&n->heap, &g->timer, next);
    finish(n, g);
}

void sg_group_timer(sgmp_node *n, struct sg_timer *t, udt_time now)
{
    work(n, sg_of(t, struct group, timer), now);
}

static uint64_t dest_hash(const sgmp_dest *to)
{
    udt_addr addr = sg_addr(&to->addr);
    return sg_dest_key(&addr) ^ (uint64_t)to->key_id * 0x9e3779b97f4a7c15u;
}

static bool seen(const struct sg_htab *t, const sgmp_dest *to)
{
    udt_addr addr = sg_addr(&to->addr);
    for (struct sg_hnode *h = sg_hget(t, dest_hash(to)); h; h = sg_hnext(h)) {
        const struct member *gm = sg_of(h, struct member, by_dest);
        udt_addr other = sg_addr(&gm->to.addr);
        if (gm->to.key_id == to->key_id && addr_eq(&other, &addr))
            return true;
    }
    return false;
}

/* Members in random order, evenly over the spread. */
static void line_up(sgmp_node *n, struct group *g, udt_time now)
{
    udt_time spread = g->n * SPREAD_US < SPREAD_MAX_US ? g->n * SPREAD_US : SPREAD_MAX_US;
    uint32_t *order = malloc((g->n + 1) * sizeof *order);
    for (uint32_t i = 0; order && i < g->n; i++) {
        n->jitter = n->jitter * 6364136223846793005u + 1442695040888963407u;
        uint32_t j = (uint32_t)((n->jitter >> 33) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        struct member *gm = &g->m[order ? order[i] : i];
        gm->at = g->o.call ? now + spread * i / g->n : now;
        sg_push(&g->wait, &gm->wait);
    }
    free(order);
}

static int check(sgmp_node *n, uint32_t count, size_t len, const sgmp_group_opts *o)
{
    unsigned flags =
        SGMP_CONTROL | (o->call ? SGMP_IDEMPOTENT | SGMP_WANT_PROGRESS : SGMP_REPEATABLE);
    size_t head = o->call ? RPC_HEAD : 0;
    if (count > SGMP_GROUP_MAX || o->wait > SGMP_WAIT_NONE || (o->each.flags & ~flags) ||
        (o->wait == SGMP_WAIT_QUORUM && o->quorum == 0) || o->each.deadline_ms > INT32_MAX)
        return UDT_E_INVAL;
    if (len > SG_BULK_MAX - head ||
        ((o->each.flags & SGMP_CONTROL) && len + head > SG_CONTROL_BYTES))
        return UDT_E_TOOBIG;
    bool bulk = len > PKT_INLINE && n->bulk_snd_bytes + len > SG_BULK_TOTAL;
    if (n->members_n + count > SG_GROUP_MEMBERS || n->light_n >= SG_EVENTS || bulk)
        return sg_want_group(n, bulk);
    return 0;
}

int sgmp_node_group(sgmp_node *n, const sgmp_dest *to, uint32_t count, const uint8_t *buf,
                    size_t len, const sgmp_group_opts *o, uint64_t id, udt_time now)
{
    struct sg_htab known;
    n->now = now;
    int err = id == 0 ? UDT_E_INVAL : check(n, count, len, o);
    if (err)
        return err;
    struct group *g = calloc(1, sizeof *g + count * sizeof *g->m);
    struct share *body = sg_share_new(buf, len, len > PKT_INLINE ? &n->bulk_snd_bytes : NULL);
    if (!g || !body || !sg_heap_reserve(&n->heap)) {
        sg_share_unref(body);
        free(g);
        return UDT_E_NOMEM;
    }
    g->timer.kind = SG_TM_GROUP;
    g->body = body;
    g->o = *o;
    g->id = id;
    g->len = len;
    g->ids = count;
    sg_link_init(&g->wait);
    uint32_t ms = o->each.deadline_ms ? o->each.deadline_ms : sgmp_default_ms(o->call, len);
    g->until = now + MS(ms);
    sg_htab_init(&known, n->jitter);
    bool kept = sg_event_keep(n, &g->decision) && sg_event_keep(n, &g->end);
    for (uint32_t i = 0; kept && i < count; i++) {
        struct member *gm = &g->m[g->n];
        if (seen(&known, &to[i]))
            continue;
        sg_link_init(&gm->wait);
        gm->g = g;
        gm->to = to[i];
        gm->index = i;
        sg_hadd(&known, &gm->by_dest, dest_hash(&to[i]));
        g->n++;
        kept = sg_event_keep(n, &gm->last);
    }
    sg_htab_fini(&known);
    if (!kept) {
        group_drop(n, g);
        return UDT_E_NOMEM;
    }
    n->members_n += g->n;
    g->need = o->wait == SGMP_WAIT_ALL      ? g->n
              : o->wait == SGMP_WAIT_QUORUM ? o->quorum
              : o->wait == SGMP_WAIT_ANY    ? 1
                                            : 0;
    sg_hadd(&n->groups, &g->by_id, id);
    line_up(n, g, now);
    g->busy = true;
    decide(n, g); /* an empty list, a rule that needs nobody or more than there are */
    work(n, g, now);
    return 0;
}

/* A whole group, or a member whose turn has not come. */
int sg_group_cancel(sgmp_node *n, uint64_t id, udt_time now)
{
    struct sg_hnode *h = sg_hget(&n->groups, id);
    if (h) {
        struct group *g = sg_of(h, struct group, by_id);
        g->cancel_due = true;
        work(n, g, now);
        return 0;
    }
    for (size_t i = 0; i <= n->groups.mask; i++)
        for (h = n->groups.slot[i]; h; h = h->next) {
            struct group *g = sg_of(h, struct group, by_id);
            for (uint32_t k = 0; id > g->id && id <= g->id + g->ids && k < g->n; k++)
                if (g->id + 1 + g->m[k].index == id && !g->m[k].ended) {
                    cancel_member(n, &g->m[k], now);
                    return 0;
                }
        }
    return UDT_E_NOSOCK;
}

void sg_group_free_all(sgmp_node *n)
{
    for (size_t i = 0; i <= n->groups.mask; i++)
        while (n->groups.slot[i])
            group_free(n, sg_of(n->groups.slot[i], struct group, by_id));
}
