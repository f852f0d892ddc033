/* How large datagrams to a peer may be. 1232 bytes always pass, over IPv4 perhaps in pieces:
 * routers may cut what was lost twice, or refused by the first hop. More only when both ends
 * announced it in HELLO and a padded PING of that size was answered. Probing starts when a message
 * would profit from it. A path that loses large datagrams in three rounds in a row, or whose first
 * hop refuses one, is back at 1232: what was on its way as one large datagram then goes as an
 * over-size message under the same sequence number, so that it still arrives once (bulk.c). */
#include "sgmp/engine.h"

static const uint16_t rungs[] = {4052, 1452}; /* tried below what both ends would take */
enum {
    PROBES = 2,      /* of one size */
    CUT_MIN = 548,   /* every path carries so much whole */
    CUT_ATTEMPT = 3, /* what was lost so often may be too large for the path */
};

static uint16_t top_of(const sgmp_node *n, const struct assoc *a)
{
    return n->cfg.max_dgram < a->peer_dgram ? n->cfg.max_dgram : a->peer_dgram;
}

void sg_size_told(sgmp_node *n, struct assoc *a, uint16_t max_dgram)
{
    (void)n;
    a->peer_dgram = max_dgram < SG_DGRAM_TOP ? max_dgram : SG_DGRAM_TOP;
}

static void try_size(struct active *x, uint16_t size)
{
    x->size_try = size;
    x->size_n = 0;
    x->size_due = size != 0;
}

/* A message would profit from larger datagrams; the probe may have to wait for the first answer. */
void sg_size_wanted(struct assoc *a)
{
    a->x->size_want = true;
}

static void maybe_try(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    if (!x->size_want || !a->instance || !a->confirmed || x->size_try)
        return;
    x->size_want = false;
    if (top_of(n, a) > a->dgram && now >= x->size_at)
        try_size(x, top_of(n, a));
}

/* An answer to the probe? */
bool sg_size_pong(sgmp_node *n, struct assoc *a, uint64_t nonce)
{
    struct active *x = a->x;
    if (!x->size_try || nonce != x->probe_nonce)
        return false;
    a->dgram = x->size_try;
    x->big_lost = 0;
    try_size(x, 0);
    n->st.dgram_up++;
    return true;
}

/* Gives up probes that stay unanswered; returns when to look again. */
udt_time sg_size_watch(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    if (x->size_fall)
        sg_size_down(n, a, now);
    maybe_try(n, a, now);
    if (!x->size_try || x->size_due)
        return UDT_NEVER;
    if (now < x->size_at)
        return x->size_at;
    if (++x->size_n < PROBES) {
        x->size_due = true;
        return UDT_NEVER;
    }
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++)
        if (rungs[i] < x->size_try && rungs[i] > a->dgram) {
            try_size(x, rungs[i]);
            return UDT_NEVER;
        }
    try_size(x, 0);
    x->size_at = now + SG_T_REPROBE;
    return UDT_NEVER;
}

/* A large datagram was lost; `pkt` is the number it left with. One loss a round counts. */
void sg_size_lost(struct assoc *a, uint64_t pkt)
{
    struct active *x = a->x;
    if (pkt <= x->big_mark)
        return;
    x->big_mark = a->next_pkt - 1;
    if (++x->big_lost >= SG_BIG_LOST)
        x->size_fall = true; /* done by sg_size_watch: lists are being walked now */
}

static void convert(sgmp_node *n, struct sg_link *list, udt_time now)
{
    for (struct sg_link *l = list->next, *next; l != list; l = next) {
        struct msg *m = sg_of(l, struct msg, q);
        next = l->next;
        if (m->len > PKT_INLINE && !m->bulk)
            (void)sg_bulk_convert(n, m, now);
    }
}

void sg_size_down(sgmp_node *n, struct assoc *a, udt_time now)
{
    struct active *x = a->x;
    x->size_fall = false;
    x->big_lost = 0;
    try_size(x, 0);
    x->size_at = now + SG_T_REPROBE;
    if (a->dgram == PKT_LIMIT)
        return;
    a->dgram = PKT_LIMIT;
    n->st.dgram_down++;
    convert(n, &x->resend_q, now);
    convert(n, &x->new_q, now);
    convert(n, &x->flight, now);
}

void sg_size_give(sgmp_node *n, const struct assoc *a, const struct msg *m, size_t len,
                  udt_time now)
{
    n->fragments =
        len > CUT_MIN && len <= PKT_LIMIT && (m->attempt >= CUT_ATTEMPT || now < a->x->cut_until);
}

void sg_size_arrived(struct assoc *a, const struct msg *m, udt_time now)
{
    size_t least = m->len + PKT_HEADER + PKT_DATA + PKT_TAG;
    if (m->attempt >= CUT_ATTEMPT && least > CUT_MIN && m->len <= PKT_INLINE)
        a->x->cut_until = now + SG_T_REPROBE;
}

bool sgmp_node_fragments(const sgmp_node *n)
{
    return n->fragments;
}

void sgmp_node_too_big(sgmp_node *n, const udt_addr *to, size_t len, udt_time now)
{
    udt_addr addr = sg_addr(to);
    n->now = now;
    for (struct sg_hnode *h = sg_hget(&n->by_dest, sg_dest_key(&addr)); h; h = sg_hnext(h)) {
        struct assoc *a = sg_of(h, struct assoc, by_dest);
        if (!a->x || !addr_eq(&a->addr, &addr))
            continue;
        if (len <= PKT_LIMIT)
            a->x->cut_until = now + SG_T_REPROBE;
        else if (a->x->size_try && len == a->x->size_try)
            a->x->size_at = now; /* that probe will not be answered */
        else if (len <= a->dgram)
            a->x->size_fall = true;
        sg_assoc_kick(n, a, now);
    }
}
