#include "base/refused.h"

#include <string.h>

static bool is_from(const refused_source *s, const udt_addr *a)
{
    return s->from.family == a->family && s->from.scope == a->scope &&
           memcmp(s->from.ip, a->ip, a->family == 4 ? 4 : 16) == 0;
}

static refused_source *place(refused_log *l, const udt_addr *from, udt_time now)
{
    refused_source *old = NULL;
    if (is_from(&l->source[l->hit], from))
        return &l->source[l->hit];
    for (uint32_t i = 0; i < REFUSED_SOURCES; i++) {
        refused_source *s = &l->source[i];
        if (is_from(s, from)) {
            l->hit = i;
            return s;
        }
        if ((!s->from.family || now - s->last >= REFUSED_KEEP_US) && (!old || s->last < old->last))
            old = s;
    }
    if (old) {
        *old = (refused_source){.from = *from};
        old->from.port = 0;
    }
    return old;
}

void refused_note(refused_log *l, const udt_addr *from, int kind, udt_time now)
{
    l->total[kind]++;
    refused_source *s = place(l, from, now);
    if (!s)
        return;
    s->n[kind]++;
    s->last = now;
}
