#include "udt/rcvloss.h"

#include "base/seq.h"

void udt_rcvloss_init(udt_rcvloss *l)
{
    lossmap_init(&l->map);
}

void udt_rcvloss_fini(udt_rcvloss *l)
{
    lossmap_fini(&l->map);
}

bool udt_rcvloss_add(udt_rcvloss *l, int64_t a, int64_t b)
{
    if (!lossmap_reserve(&l->map, a, b))
        return false;
    lossmap_add(&l->map, a, b);
    return true;
}

size_t udt_rcvloss_encode(const udt_rcvloss *l, uint32_t isn, int64_t from, int64_t to,
                          uint32_t *words, size_t max, int64_t *next)
{
    size_t n = 0;
    int64_t a;
    while ((a = lossmap_next(&l->map, from)) < to && n + 2 <= max) {
        int64_t end = lossmap_run_end(&l->map, a);
        if (end > to)
            end = to;
        if (end - a == 1) {
            words[n++] = seq_add(isn, a);
        } else {
            words[n++] = seq_add(isn, a) | 0x80000000u;
            words[n++] = seq_add(isn, end - 1);
        }
        from = end;
    }
    *next = a < to ? a : to;
    return n;
}
