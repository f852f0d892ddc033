#include "udt/sndloss.h"

#include "base/seq.h"

void udt_sndloss_init(udt_sndloss *l)
{
    lossmap_init(&l->map);
}

void udt_sndloss_fini(udt_sndloss *l)
{
    lossmap_fini(&l->map);
}

bool udt_sndloss_add(udt_sndloss *l, int64_t a, int64_t b)
{
    if (!lossmap_reserve(&l->map, a, b))
        return false;
    lossmap_add(&l->map, a, b);
    return true;
}

bool udt_nak_next(bytes_rd *r, uint32_t *a, uint32_t *b)
{
    if (r->left < 4)
        return false;
    uint32_t w = bytes_u32(r);
    *a = *b = w & SEQ_MASK;
    if (w >> 31) {
        *b = bytes_u32(r);
        if (*b >> 31)
            r->bad = true;
    }
    return !r->bad;
}
