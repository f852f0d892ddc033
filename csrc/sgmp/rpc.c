/* Calls and requests (spec/gmp.md section 9): a request is a message, its answer another one. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

enum { BUDGET_MAX_MS = 0x7fffffff };

static int post_small(sgmp_node *n, struct assoc *a, uint16_t channel, const struct rpc_head *h,
                      udt_time life, udt_time now)
{
    uint8_t head[RPC_HEAD];
    rpc_head_put(head, h);
    struct sg_post p = {.head = head,
                        .head_len = sizeof head,
                        .channel = channel,
                        .kind = PKT_K_RPC,
                        .flags = PKT_F_CONTROL,
                        .until = now + life,
                        .reserved = true};
    return sg_post(n, a, &p, NULL, now);
}

/* ---- caller ---- */

static void call_free(sgmp_node *n, struct call *c)
{
    sg_hdel(&n->calls, &c->by_id);
    sg_unlink(&c->of);
    c->a->x->calls_n--;
    sg_heap_unreserve(&n->heap, &c->timer);
    if (c->progress)
        c->progress->call = NULL;
    sg_event_unkeep(n, &c->last);
    free(c);
}

/* The request needs no outcome of its own any more. */
static void drop_request_msg(sgmp_node *n, struct call *c, int status, udt_time now)
{
    struct msg *m = c->msg;
    if (!m)
        return;
    c->sent |= m->attempt > 0;
    c->elsewhere |= m->elsewhere;
    c->msg = NULL;
    m->call = NULL;
    m->id = 0;
    sg_settle(n, m, status, now);
}

/* Ends a call without an answer of the peer. */
void sg_call_end(sgmp_node *n, struct call *c, int status, udt_time now)
{
    struct assoc *a = c->a;
    struct rpc_head h = {.op = RPC_CANCEL, .method = c->method, .id = c->id};
    uint16_t channel = c->channel;
    drop_request_msg(n, c, UDT_E_CANCELLED, now);
    bool sure = !c->elsewhere && (!c->sent || c->refused);
    bool tell = c->sent && (status == SGMP_RPC_TIMEOUT || status == SGMP_RPC_CANCELLED);
    if (c->member)
        sg_group_ended(n, c->member, a, status, sure, NULL);
    else {
        struct evt *e = sg_event_last(&c->last, a, SGMP_EV_RESPONSE);
        e->ev.id = c->id;
        e->ev.status = status;
        e->ev.method = c->method;
        e->ev.not_delivered = sure;
        sg_event_push(n, e);
    }
    call_free(n, c);
    if (tell && a->x && !a->closed)
        post_small(n, a, channel, &h, SEC(5), now);
}

void sg_call_settled(sgmp_node *n, struct call *c, int status, udt_time now)
{
    static const int by_reason[] = {SGMP_RPC_UNKNOWN, SGMP_RPC_NO_METHOD, SGMP_RPC_TOO_LARGE,
                                    SGMP_RPC_DENIED,  SGMP_RPC_BUSY,      SGMP_RPC_TIMEOUT};
    int r = SGMP_RPC_UNKNOWN;
    if (status == 0)
        return; /* delivered: the answer will come */
    if (status == UDT_E_REFUSED)
        r = by_reason[c->refused < 6 ? c->refused : 0];
    else if (status == UDT_E_TIMEOUT || (status == UDT_E_NOTSENT && now >= c->timer.at))
        r = SGMP_RPC_TIMEOUT;
    else if (status == UDT_E_RESTARTED)
        r = SGMP_RPC_PEER_RESTARTED;
    sg_call_end(n, c, r, now);
}

void sg_calls_fail(sgmp_node *n, struct assoc *a, int status, udt_time now)
{
    while (a->x && !sg_empty(&a->x->calls))
        sg_call_end(n, sg_of(a->x->calls.next, struct call, of), status, now);
}

void sg_call_timer(sgmp_node *n, struct call *c, udt_time now)
{
    struct assoc *a = c->a;
    sg_call_end(n, c, SGMP_RPC_TIMEOUT, now);
    n->st.timed_out++;
    sg_assoc_kick(n, a, now);
}

static int call_new(sgmp_node *n, struct assoc *a, const struct sg_ask *q, udt_time until,
                    udt_time now, struct call **out)
{
    if (a->x->calls_n >= SG_CALLS_PEER || n->calls.count >= SG_CALLS)
        return UDT_E_LIMIT;
    struct call *c = calloc(1, sizeof *c);
    if (c && !q->member)
        (void)sg_event_keep(n, &c->last);
    if (!c || (!q->member && !c->last) || !sg_heap_reserve(&n->heap)) {
        if (c)
            sg_event_unkeep(n, &c->last);
        free(c);
        return UDT_E_NOMEM;
    }
    c->timer.kind = SG_TM_CALL;
    c->a = a;
    c->id = q->id;
    sg_hadd(&n->calls, &c->by_id, q->id);
    sg_push(&a->x->calls, &c->of);
    if (a->x->calls_n++ == 0)
        a->x->calls_since = now;
    sg_heap_set(&n->heap, &c->timer, until);
    *out = c;
    return 0;
}

int sg_call(sgmp_node *n, const struct sg_ask *q, udt_time now)
{
    const sgmp_opts *o = q->o;
    struct assoc *a;
    struct call *c = NULL;
    struct msg *m = NULL;
    bool oneway = o->flags & SGMP_ONEWAY;
    uint32_t ms = o->deadline_ms ? o->deadline_ms : sgmp_default_ms(true, q->len);
    if (q->id == 0 || ms > BUDGET_MAX_MS || sg_hget(&n->calls, q->id))
        return UDT_E_INVAL;
    if (q->len > SG_BULK_MAX - RPC_HEAD ||
        ((o->flags & SGMP_CONTROL) && q->len + RPC_HEAD > SG_CONTROL_BYTES))
        return UDT_E_TOOBIG;
    int err = sg_assoc_for(n, q->to, &a, now);
    if (err == 0 && !oneway)
        err = call_new(n, a, q, now + MS(ms), now, &c);
    if (err)
        return err;
    struct rpc_head h = {.op = RPC_REQUEST, .method = q->method, .id = q->id, .ms = ms};
    h.flags =
        (uint8_t)((oneway ? RPC_ONEWAY : 0) | (o->flags & SGMP_IDEMPOTENT ? RPC_IDEMPOTENT : 0) |
                  (o->flags & SGMP_WANT_PROGRESS ? RPC_WANT_PROGRESS : 0));
    uint8_t head[RPC_HEAD];
    rpc_head_put(head, &h);
    udt_time life = MS(ms) < SG_T_MSG ? MS(ms) : SG_T_MSG;
    struct sg_post p = {.id = q->id,
                        .head = head,
                        .head_len = sizeof head,
                        .body = q->buf,
                        .body_len = q->len,
                        .share = q->share,
                        .member = oneway ? q->member : NULL,
                        .channel = o->channel,
                        .kind = PKT_K_RPC,
                        .tries = q->tries,
                        .of_call = !oneway,
                        .until = oneway || life < MS(ms) ? now + life : UDT_NEVER};
    p.flags = (uint8_t)((o->flags & SGMP_CONTROL ? PKT_F_CONTROL : 0) |
                        (o->flags & SGMP_IDEMPOTENT ? PKT_F_REPEATABLE : 0));
    err = sg_post(n, a, &p, &m, now);
    if (err && c)
        call_free(n, c);
    if (err == 0 && c) {
        c->msg = m;
        c->method = q->method;
        c->channel = o->channel;
        c->member = q->member;
        m->call = c;
        if (q->member)
            q->member->call = c;
    } else if (err == 0)
        sg_hadd(&n->msgs, &m->by_id, q->id);
    sg_assoc_kick(n, a, now);
    return err;
}

int sgmp_node_call(sgmp_node *n, const sgmp_dest *to, uint32_t method, const uint8_t *buf,
                   size_t len, const sgmp_opts *o, uint64_t id, udt_time now)
{
    static const sgmp_opts none;
    struct sg_ask q = {
        .to = to, .buf = buf, .len = len, .o = o ? o : &none, .id = id, .method = method};
    return sg_call(n, &q, now);
}

static int on_answer(sgmp_node *n, struct assoc *a, const struct rpc_head *h, uint16_t channel,
                     struct evt *whole, const uint8_t *p, size_t len, udt_time now)
{
    struct sg_hnode *node = sg_hget(&n->calls, h->id);
    struct call *c = node ? sg_of(node, struct call, by_id) : NULL;
    if (!c || c->a != a) {
        n->st.late_answers++;
        return SG_ACCEPT;
    }
    struct evt *e = whole;
    if (!e) {
        /* Expected, and bounded by the number of calls: passes the peers' shares. */
        if (n->rcv_bytes + len > SG_RCV_BYTES)
            return SG_NO_ROOM;
        e = sg_event_new(n, a, 0, len);
        if (!e)
            return SG_NO_ROOM;
        if (len)
            memcpy(e->data, p, len);
        sg_rcv_charge(n, e, SG_C_PLAIN, len);
    }
    e->ev.kind = SGMP_EV_RESPONSE;
    e->ev.id = c->id;
    e->ev.channel = channel;
    e->ev.method = c->method;
    e->ev.ms = h->ms;
    e->ev.status = h->op == RPC_RESPONSE || h->status < 0 ? h->status : SGMP_RPC_UNKNOWN;
    if (c->member)
        sg_group_ended(n, c->member, a, e->ev.status, false, e);
    else
        sg_event_push(n, e);
    drop_request_msg(n, c, 0, now); /* the answer proves that the request arrived */
    call_free(n, c);
    return SG_ACCEPT;
}

/* One queued event per call: later reports overwrite the percentage. */
static void on_progress(sgmp_node *n, struct assoc *a, const struct rpc_head *h)
{
    struct sg_hnode *node = sg_hget(&n->calls, h->id);
    struct call *c = node ? sg_of(node, struct call, by_id) : NULL;
    if (!c || c->a != a)
        return;
    if (!c->progress) {
        struct evt *e = sg_event_new(n, a, SGMP_EV_PROGRESS, 0);
        if (!e)
            return; /* the next report will do */
        e->ev.id = c->id;
        e->call = c;
        c->progress = e;
        sg_event_push(n, e);
    }
    c->progress->ev.status = h->status < 0 ? 0 : h->status > 100 ? 100 : h->status;
}

/* ---- callee ---- */

static void request_free(sgmp_node *n, struct request *r)
{
    sg_hdel(&n->requests, &r->by_id);
    sg_unlink(&r->of);
    r->a->x->running_n--;
    sg_heap_unreserve(&n->heap, &r->timer);
    if (r->ev)
        r->ev->req = NULL;
    sg_event_unkeep(n, &r->last);
    free(r);
}

static void tell_cancelled(sgmp_node *n, struct request *r)
{
    if (r->cancelled)
        return;
    r->cancelled = true;
    struct evt *e = sg_event_last(&r->last, r->a, SGMP_EV_CANCEL);
    e->ev.id = r->id;
    e->ev.method = r->method;
    sg_event_push(n, e);
}

static void drop_queued(sgmp_node *n, struct request *r)
{
    struct evt *e = r->ev;
    r->ev = NULL;
    e->req = NULL;
    sg_event_drop(n, e);
}

/* The caller is gone: whoever works on its requests may stop. */
void sg_requests_drop(sgmp_node *n, struct assoc *a)
{
    while (!sg_empty(&a->x->running)) {
        struct request *r = sg_of(a->x->running.next, struct request, of);
        if (r->ev)
            drop_queued(n, r);
        else
            tell_cancelled(n, r);
        request_free(n, r);
    }
}

/* Called when the application reads the REQUEST event. False: too late, it is not shown. */
bool sg_request_open(sgmp_node *n, struct request *r, udt_time now)
{
    r->ev->req = NULL;
    r->ev = NULL;
    if (now < r->until)
        return true;
    request_free(n, r);
    return false;
}

static void arm_request(sgmp_node *n, struct request *r)
{
    bool report = r->want_progress && r->progress_at < r->until;
    sg_heap_set(&n->heap, &r->timer, report ? r->progress_at : r->until);
}

void sg_request_timer(sgmp_node *n, struct request *r, udt_time now)
{
    struct assoc *a = r->a;
    if (now >= r->until) {
        if (r->ev)
            drop_queued(n, r);
        else
            tell_cancelled(n, r);
        request_free(n, r);
        return;
    }
    struct rpc_head h = {
        .op = RPC_PROGRESS, .method = r->method, .id = r->rpc_id, .status = (int32_t)r->percent};
    post_small(n, a, r->channel, &h, r->gap, now);
    r->progress_at = now + r->gap;
    arm_request(n, r);
    sg_assoc_kick(n, a, now);
}

static struct request *request_new(sgmp_node *n, struct assoc *a, const struct rpc_head *h,
                                   uint16_t channel, udt_time now)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r || !sg_event_keep(n, &r->last) || !sg_heap_reserve(&n->heap)) {
        if (r)
            sg_event_unkeep(n, &r->last);
        free(r);
        return NULL;
    }
    r->timer.kind = SG_TM_REQ;
    r->a = a;
    r->id = ++n->next_req;
    r->rpc_id = h->id;
    r->method = h->method;
    r->channel = channel;
    r->born = now;
    r->until = now + MS(h->ms);
    r->gap = MS(h->ms) / 4 < SEC(5) ? MS(h->ms) / 4 : SEC(5);
    r->gap = r->gap > MS(1) ? r->gap : MS(1);
    r->progress_at = now + r->gap;
    r->want_progress = h->flags & RPC_WANT_PROGRESS;
    sg_hadd(&n->requests, &r->by_id, r->id);
    sg_push(&a->x->running, &r->of);
    a->x->running_n++;
    arm_request(n, r);
    return r;
}

static void answer_busy(sgmp_node *n, struct assoc *a, const struct rpc_head *h, uint16_t channel,
                        udt_time now)
{
    struct rpc_head e = {
        .op = RPC_ERROR, .method = h->method, .id = h->id, .status = SGMP_RPC_BUSY};
    post_small(n, a, channel, &e, SEC(10), now);
}

static int on_request(sgmp_node *n, struct assoc *a, const struct rpc_head *h, uint16_t channel,
                      bool control, struct evt *whole, const uint8_t *p, size_t len, udt_time now)
{
    bool oneway = h->flags & RPC_ONEWAY;
    struct evt *e = whole;
    struct request *r = NULL;
    if (h->ms == 0 || h->ms > BUDGET_MAX_MS) {
        if (whole)
            sg_event_drop(n, whole);
        return SG_ACCEPT; /* spent before it starts */
    }
    if (!oneway && a->x->running_n >= SG_RUNNING_PEER) {
        if (a->x->q_msgs >= SG_Q_MSGS)
            return SG_NO_ROOM;
        answer_busy(n, a, h, channel, now);
        if (whole)
            sg_event_drop(n, whole);
        return SG_ACCEPT;
    }
    if (!whole && !sg_rcv_room(n, a, len, control))
        return SG_NO_ROOM;
    if (!whole && !(e = sg_event_new(n, a, 0, len)))
        return SG_NO_ROOM;
    if (!oneway && !(r = request_new(n, a, h, channel, now))) {
        if (!whole)
            sg_event_drop(n, e);
        return SG_NO_ROOM;
    }
    if (!whole) {
        if (len)
            memcpy(e->data, p, len);
        sg_rcv_charge(n, e, control ? SG_C_CONTROL : SG_C_PLAIN, len);
    }
    e->ev.kind = SGMP_EV_REQUEST;
    e->ev.id = r ? r->id : 0;
    e->ev.method = h->method;
    e->ev.ms = h->ms;
    e->ev.channel = channel;
    e->req = r;
    if (r)
        r->ev = e;
    sg_event_push(n, e);
    n->st.messages_in++;
    return SG_ACCEPT;
}

static void on_cancel(sgmp_node *n, struct assoc *a, const struct rpc_head *h, udt_time now)
{
    for (struct sg_link *l = a->x->running.next; l != &a->x->running; l = l->next) {
        struct request *r = sg_of(l, struct request, of);
        if (r->rpc_id != h->id)
            continue;
        if (!r->ev) {
            tell_cancelled(n, r);
            return;
        }
        struct rpc_head e = {
            .op = RPC_ERROR, .method = r->method, .id = r->rpc_id, .status = SGMP_RPC_CANCELLED};
        post_small(n, a, r->channel, &e, SEC(5), now);
        drop_queued(n, r);
        request_free(n, r);
        return;
    }
}

/* A message of kind RPC. `whole` is the event that already holds an over-size payload (its data
 * begin with the RPC header at p); it is queued or dropped here unless SG_NO_ROOM is returned. */
int sg_rpc_input(sgmp_node *n, struct assoc *a, uint16_t channel, bool control, struct evt *whole,
                 const uint8_t *p, size_t len, udt_time now)
{
    struct rpc_head h;
    if (!rpc_head_get(p, len, &h)) {
        n->st.bad_format++;
        if (whole)
            sg_event_drop(n, whole);
        return SG_ACCEPT;
    }
    p += RPC_HEAD;
    len -= RPC_HEAD;
    if (whole) {
        whole->skip = RPC_HEAD;
        whole->ev.len = (uint32_t)len;
    }
    if (h.op == RPC_REQUEST)
        return on_request(n, a, &h, channel, control, whole, p, len, now);
    if (h.op == RPC_RESPONSE || h.op == RPC_ERROR) {
        struct sg_hnode *node = sg_hget(&n->calls, h.id);
        bool known = node && sg_of(node, struct call, by_id)->a == a;
        if (whole && !known)
            sg_event_drop(n, whole);
        return on_answer(n, a, &h, channel, known ? whole : NULL, p, known ? len : 0, now);
    }
    if (h.op == RPC_CANCEL)
        on_cancel(n, a, &h, now);
    else
        on_progress(n, a, &h);
    if (whole)
        sg_event_drop(n, whole);
    return SG_ACCEPT;
}

int sgmp_node_reply(sgmp_node *n, uint64_t request_id, int32_t status, const uint8_t *buf,
                    size_t len, udt_time now)
{
    struct sg_hnode *node = sg_hget(&n->requests, request_id);
    n->now = now;
    if (!node)
        return UDT_E_NOSOCK;
    if (status > 0)
        return UDT_E_INVAL;
    if (len > SG_BULK_MAX - RPC_HEAD)
        return UDT_E_TOOBIG;
    struct request *r = sg_of(node, struct request, by_id);
    struct assoc *a = r->a;
    if (r->ev)
        return UDT_E_STATE;
    udt_time left = r->until - now, spent = (now - r->born) / 1000;
    left = left > SEC(1) ? left : SEC(1);
    struct rpc_head h = {.op = status ? RPC_ERROR : RPC_RESPONSE,
                         .method = r->method,
                         .id = r->rpc_id,
                         .ms = spent < BUDGET_MAX_MS ? (uint32_t)spent : BUDGET_MAX_MS,
                         .status = status};
    uint8_t head[RPC_HEAD];
    rpc_head_put(head, &h);
    struct sg_post p = {.head = head,
                        .head_len = sizeof head,
                        .body = buf,
                        .body_len = len,
                        .channel = r->channel,
                        .kind = PKT_K_RPC,
                        .until = now + (left < SG_T_MSG ? left : SG_T_MSG)};
    int err = sg_post(n, a, &p, NULL, now);
    if (err == 0)
        request_free(n, r);
    sg_assoc_kick(n, a, now);
    return err;
}

int sgmp_node_progress(sgmp_node *n, uint64_t request_id, uint32_t percent, udt_time now)
{
    struct sg_hnode *node = sg_hget(&n->requests, request_id);
    n->now = now;
    if (!node)
        return UDT_E_NOSOCK;
    if (percent > 100)
        return UDT_E_INVAL;
    sg_of(node, struct request, by_id)->percent = percent;
    return 0;
}
