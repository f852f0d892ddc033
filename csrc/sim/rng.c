/* The random numbers of the simulator: xoshiro256**, the same on every machine. */
#include "sim/net.h"

#include <string.h>

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

void sim_rng_seed(sim_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) { /* splitmix64 spreads a small seed over the state */
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        r->s[i] = z ^ z >> 31;
    }
}

uint64_t sim_rng_u64(sim_rng *r)
{
    uint64_t *s = r->s, out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

uint64_t sim_rng_below(sim_rng *r, uint64_t n)
{
    if (n < 2)
        return 0;
    uint64_t skew = (0 - n) % n; /* 2^64 mod n values at the bottom would be favoured */
    for (;;) {
        unsigned __int128 m = (unsigned __int128)sim_rng_u64(r) * n;
        if ((uint64_t)m >= skew)
            return (uint64_t)(m >> 64);
    }
}

void sim_rng_bytes(void *r, uint8_t *buf, size_t len)
{
    while (len > 0) {
        uint64_t v = sim_rng_u64(r);
        size_t n = len < sizeof v ? len : sizeof v;
        memcpy(buf, &v, n);
        buf += n;
        len -= n;
    }
}
