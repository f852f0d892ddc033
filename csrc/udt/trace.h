/* Private: hooks of the engine for traces. Without a trace each is one branch that is never taken.
 */
#ifndef UDT_TRACE_PRIV_H
#define UDT_TRACE_PRIV_H

#include "udt_trace.h"

struct udt_conn;

/* What was last recorded, to record changes only. */
typedef struct udt_traced {
    int64_t cwnd, period_ns;
    int state;
} udt_traced;

udt_trace *udt__trace_ref(udt_trace *t); /* NULL is fine */
/* One thread at a time writes a ring. */
void udt__trace_add(udt_trace *t, const udt_trace_rec *r);
void udt__trace_put(struct udt_conn *c, enum udt_trace_kind kind, unsigned x, uint64_t a,
                    uint64_t b, udt_time now);
void udt__trace_rtt(struct udt_conn *c, int64_t sample_us);
/* Window, pace and state of congestion control, if they have changed. */
void udt__trace_cc(struct udt_conn *c, udt_time now);

struct udt_stats;
/* Where the time of a limit is counted. */
int64_t *udt__limit_field(struct udt_stats *st, enum udt_limit limit);

#define UDT_TRACE(c, ...)                            \
    do {                                             \
        if (__builtin_expect((c)->trace != NULL, 0)) \
            udt__trace_put(c, __VA_ARGS__);          \
    } while (0)
#define UDT_TRACE_CC(c, now)                         \
    do {                                             \
        if (__builtin_expect((c)->trace != NULL, 0)) \
            udt__trace_cc(c, now);                   \
    } while (0)

#endif
