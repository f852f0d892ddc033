/* The trace ring and what the engine writes into it.
 *
 * One writer, any readers, no locks: a record is four words, stored before the count moves on. A
 * reader copies, looks at the count again, and throws away what may have been overwritten
 * meanwhile. Every access is an acquire or a release, so that a reader that sees a word of record n
 * also sees the count n. */
#include "udt/trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "udt/conn.h"

enum { RECORDS = 4096, RECORDS_MIN = 16, RECORDS_MAX = 1 << 22, WORDS = 4 };

struct udt_trace {
    atomic_int refs;
    uint64_t cap; /* power of two */
    _Atomic uint64_t count;
    _Atomic uint64_t words[][WORDS];
};

_Static_assert(sizeof(udt_trace_rec) == WORDS * sizeof(uint64_t), "a record is four words");

udt_trace *udt_trace_new(uint32_t records)
{
    uint64_t cap = RECORDS_MIN;
    uint32_t want = records ? records : RECORDS;
    while (cap < want && cap < RECORDS_MAX)
        cap *= 2;
    udt_trace *t = calloc(1, sizeof *t + cap * sizeof t->words[0]);
    if (!t)
        return NULL;
    atomic_init(&t->refs, 1);
    t->cap = cap;
    return t;
}

udt_trace *udt__trace_ref(udt_trace *t)
{
    if (t)
        atomic_fetch_add(&t->refs, 1);
    return t;
}

void udt_trace_free(udt_trace *t)
{
    if (t && atomic_fetch_sub(&t->refs, 1) == 1)
        free(t);
}

void udt__trace_add(udt_trace *t, const udt_trace_rec *r)
{
    uint64_t w[WORDS], n = atomic_load_explicit(&t->count, memory_order_relaxed);
    memcpy(w, r, sizeof w);
    for (int i = 0; i < WORDS; i++)
        atomic_store_explicit(&t->words[n & (t->cap - 1)][i], w[i], memory_order_release);
    atomic_store_explicit(&t->count, n + 1, memory_order_release);
}

uint64_t udt_trace_count(udt_trace *t)
{
    return atomic_load_explicit(&t->count, memory_order_acquire);
}

/* The oldest record that is whole when `count` were written: one more may be half overwritten. */
static uint64_t oldest(const udt_trace *t, uint64_t count)
{
    return count >= t->cap ? count - t->cap + 1 : 0;
}

size_t udt_trace_read(udt_trace *t, uint64_t *from, udt_trace_rec *out, size_t cap)
{
    uint64_t end = udt_trace_count(t), at = *from < end ? *from : end, first = oldest(t, end);
    at = at < first ? first : at;
    size_t n = end - at < cap ? (size_t)(end - at) : cap;
    for (size_t k = 0; k < n; k++) {
        uint64_t w[WORDS];
        for (int i = 0; i < WORDS; i++)
            w[i] =
                atomic_load_explicit(&t->words[(at + k) & (t->cap - 1)][i], memory_order_acquire);
        memcpy(&out[k], w, sizeof w);
    }
    *from = at + n;
    first = oldest(t, udt_trace_count(t));
    size_t bad = first > at ? (size_t)(first - at) : 0;
    if (bad >= n)
        return 0;
    memmove(out, out + bad, (n - bad) * sizeof *out);
    return n - bad;
}

/* ---- the engine's records ---- */

void udt__trace_put(udt_conn *c, enum udt_trace_kind kind, unsigned x, uint64_t a, uint64_t b,
                    udt_time now)
{
    const udt_trace_rec r = {
        now, (uint32_t)c->id, (uint16_t)kind, (uint16_t)(x < UINT16_MAX ? x : UINT16_MAX), a, b};
    udt__trace_add(c->trace, &r);
}

static uint64_t pair(int64_t high, int64_t low)
{
    uint64_t h = high < 0 ? 0 : high > UINT32_MAX ? UINT32_MAX : (uint64_t)high;
    uint64_t l = low < 0 ? 0 : low > UINT32_MAX ? UINT32_MAX : (uint64_t)low;
    return h << 32 | l;
}

void udt__trace_rtt(udt_conn *c, int64_t sample_us)
{
    udt__trace_put(c, UDT_TRACE_RTT, 0, (uint64_t)sample_us, pair(c->rtt_us, c->min_rtt_us),
                   c->mux->now);
}

/* algorithm << 8 | state: 1 udt (0 slow start, 1 steady), 2 bbr (as in cc_bbr.c: startup, drain,
 * down, cruise, refill, up, probe of the RTT), 3 cubic (0 slow start, 1 avoidance), 4 fixed */
static int cc_state(const udt_cc *cc)
{
    if (cc->ops == &udt_cc_bbr_ops)
        return 2 << 8 | cc->u.bbr.state;
    if (cc->ops == &udt_cc_cubic_ops)
        return 3 << 8 | (cc->u.cubic.cwnd >= cc->u.cubic.ssthresh);
    if (cc->ops == &udt_cc_fixed_ops)
        return 4 << 8;
    return 1 << 8 | !cc->u.native.slow_start;
}

void udt__trace_cc(udt_conn *c, udt_time now)
{
    udt_traced *t = &c->traced;
    int state = cc_state(&c->cc);
    if (state != t->state)
        udt__trace_put(c, UDT_TRACE_CC_STATE, (unsigned)state, 0, 0, now);
    if (c->cc.cwnd_pkts != t->cwnd || c->cc.period_ns != t->period_ns)
        udt__trace_put(c, UDT_TRACE_METRICS, c->payload, pair(c->cc.cwnd_pkts, udt__conn_flight(c)),
                       (uint64_t)udt__conn_pace_Bps(c), now);
    *t = (udt_traced){c->cc.cwnd_pkts, c->cc.period_ns, state};
}

const char *udt_limit_name(int limit)
{
    static const char *const names[] = {"processor", "sender", "network",  "receiver",
                                        "network",   "cap",    "handshake"};
    return limit >= 0 && limit <= UDT_LIM_HANDSHAKE ? names[limit] : "unknown";
}

int64_t *udt__limit_field(udt_stats *st, enum udt_limit limit)
{
    switch (limit) {
    case UDT_LIM_APP:
        return &st->lim_app_us;
    case UDT_LIM_CWND:
        return &st->lim_cwnd_us;
    case UDT_LIM_FLOW:
        return &st->lim_flow_us;
    case UDT_LIM_PACE:
        return &st->lim_pace_us;
    case UDT_LIM_CAP:
        return &st->lim_cap_us;
    case UDT_LIM_HANDSHAKE:
        return &st->lim_handshake_us;
    default:
        return &st->lim_none_us;
    }
}
