/* A rate over a time, whatever was counted: the product with 10^6 does not fit from 9.2 TB on. */
#ifndef BASE_RATE_H
#define BASE_RATE_H

#include <stdint.h>

static inline int64_t rate_per_s(int64_t count, int64_t us)
{
    return count / us * 1000000 + count % us * 1000000 / us;
}

#endif
