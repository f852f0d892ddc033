#include "udt/linkcap.h"

#include <stdlib.h>
#include <string.h>

#include "udt_err.h"

#define BURST_NS 1000000 /* a burst holds at most this much of a cap's time */
#define SLACK_NS 2000000 /* lateness that is made up for; with more some would go first */

void udt_linkcaps_fini(udt_linkcaps *l)
{
    free(l->cap);
    *l = (udt_linkcaps){0};
}

static bool same_bits(const uint8_t *a, const uint8_t *b, int bits)
{
    int whole = bits / 8, rest = bits % 8;
    if (memcmp(a, b, (size_t)whole) != 0)
        return false;
    return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

static bool holds(const udt_linkcap *k, const udt_addr *to)
{
    return k->Bps > 0 && (k->prefix.family == 0 || (k->prefix.family == to->family &&
                                                    same_bits(k->prefix.ip, to->ip, k->bits)));
}

int udt_linkcaps_set(udt_linkcaps *l, const udt_addr *prefix, int bits, int64_t Bps)
{
    udt_addr p = prefix ? *prefix : (udt_addr){0};
    udt_linkcap *place = NULL;
    int most = p.family == 4 ? 32 : p.family == 6 ? 128 : 0;
    if (Bps < 0 || bits < 0 || bits > most)
        return UDT_E_INVAL;
    if (!l->cap && !(l->cap = calloc(LINKCAPS, sizeof *l->cap)))
        return UDT_E_LIMIT;
    for (int i = 0; i < LINKCAPS; i++) {
        udt_linkcap *k = &l->cap[i];
        if (k->Bps > 0 && k->bits == bits && k->prefix.family == p.family &&
            same_bits(k->prefix.ip, p.ip, bits)) {
            place = k;
            break;
        }
        if (k->Bps == 0 && !place)
            place = k;
    }
    if (!place)
        return UDT_E_LIMIT;
    if (place->Bps == 0)
        *place = (udt_linkcap){.prefix = p, .bits = bits};
    place->Bps = Bps;
    place->next_ns = 0;
    for (l->used = LINKCAPS; l->used > 0 && l->cap[l->used - 1].Bps == 0; l->used--)
        ;
    return UDT_OK;
}

static int64_t span_ns(const udt_linkcap *k, int pkts, uint32_t bytes)
{
    return (int64_t)((double)pkts * bytes * 1e9 / (double)k->Bps);
}

int64_t udt_linkcaps_book(udt_linkcaps *l, const udt_addr *to, int *pkts, uint32_t bytes,
                          int64_t now_ns)
{
    int64_t at = now_ns;
    for (int i = 0; i < l->used; i++) {
        const udt_linkcap *k = &l->cap[i];
        if (!holds(k, to))
            continue;
        while (*pkts > 1 && span_ns(k, *pkts, bytes) > BURST_NS)
            *pkts = (*pkts + 1) / 2;
        at = k->next_ns > at ? k->next_ns : at;
    }
    for (int i = 0; i < l->used; i++) {
        udt_linkcap *k = &l->cap[i];
        if (!holds(k, to))
            continue;
        int64_t from = k->next_ns > now_ns - SLACK_NS ? k->next_ns : now_ns - SLACK_NS;
        from = at > now_ns ? at : from; /* not late: it begins when the burst goes */
        k->next_ns = from + span_ns(k, *pkts, bytes);
    }
    return at;
}

void udt_linkcaps_shares(const udt_linkcaps *l, const udt_addr *to, int n, int64_t *Bps)
{
    memset(Bps, 0, (size_t)n * sizeof *Bps);
    for (int i = 0; i < l->used; i++) {
        const udt_linkcap *k = &l->cap[i];
        int64_t count = 0;
        for (int j = 0; j < n; j++)
            count += holds(k, &to[j]);
        for (int j = 0; j < n; j++) {
            int64_t share = count ? k->Bps / count + 1 : 0;
            if (holds(k, &to[j]) && (Bps[j] == 0 || share < Bps[j]))
                Bps[j] = share;
        }
    }
}
