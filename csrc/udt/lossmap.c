#include "udt/lossmap.h"

#include <stdlib.h>
#include <string.h>

#define MIN_WORDS 64

void lossmap_init(lossmap *m)
{
    memset(m, 0, sizeof *m);
}

void lossmap_fini(lossmap *m)
{
    free(m->bits);
    lossmap_init(m);
}

static uint32_t word_of(const lossmap *m, int64_t i)
{
    return (uint32_t)(i >> 6) & (m->words - 1);
}

static void set_mask(lossmap *m, int64_t base, uint64_t mask)
{
    uint32_t w = word_of(m, base);
    m->count += (uint32_t)__builtin_popcountll(mask & ~m->bits[w]);
    m->bits[w] |= mask;
    m->sum[w >> 6] |= 1ull << (w & 63);
}

static void clear_mask(lossmap *m, int64_t base, uint64_t mask)
{
    uint32_t w = word_of(m, base);
    m->count -= (uint32_t)__builtin_popcountll(mask & m->bits[w]);
    m->bits[w] &= ~mask;
    if (!m->bits[w])
        m->sum[w >> 6] &= ~(1ull << (w & 63));
}

/* Bits from..to (0..63, inclusive). */
static uint64_t span(int from, int to)
{
    return (~0ull << from) & (~0ull >> (63 - to));
}

static bool resize(lossmap *m, uint32_t words)
{
    lossmap n = {.words = words, .lo = m->lo, .hi = m->hi};
    n.bits = calloc(words + words / 64, sizeof *n.bits);
    if (!n.bits)
        return false;
    n.sum = n.bits + words;
    for (int64_t i = lossmap_next(m, m->lo); i != LOSSMAP_NONE; i = lossmap_next(m, i + 1))
        set_mask(&n, i, 1ull << (i & 63));
    free(m->bits);
    *m = n;
    return true;
}

bool lossmap_reserve(lossmap *m, int64_t a, int64_t b)
{
    int64_t lo = m->count && m->lo < a ? m->lo : a;
    int64_t hi = m->count && m->hi > b ? m->hi : b + 1;
    uint32_t words = m->words ? m->words : MIN_WORDS;
    /* Whole words, so that no word holds members from both ends of the window. */
    int64_t need = ((hi - 1) >> 6) - (lo >> 6) + 1;
    while (words < need) {
        if (words >= 1u << 26)
            return false;
        words *= 2;
    }
    return words == m->words || resize(m, words);
}

void lossmap_add(lossmap *m, int64_t a, int64_t b)
{
    if (m->count == 0) {
        m->lo = a;
        m->hi = b + 1;
    } else {
        m->lo = a < m->lo ? a : m->lo;
        m->hi = b >= m->hi ? b + 1 : m->hi;
    }
    if (a == b) { /* the common case: no counting of bits */
        uint32_t w = word_of(m, a);
        uint64_t bit = 1ull << (a & 63);
        m->count += !(m->bits[w] & bit);
        m->bits[w] |= bit;
        m->sum[w >> 6] |= 1ull << (w & 63);
        return;
    }
    for (int64_t base = a & ~63ll; base <= b; base += 64) {
        int from = base < a ? (int)(a - base) : 0;
        int to = b - base < 63 ? (int)(b - base) : 63;
        set_mask(m, base, span(from, to));
    }
}

bool lossmap_has(const lossmap *m, int64_t i)
{
    return m->count && i >= m->lo && i < m->hi && m->bits[word_of(m, i)] >> (i & 63) & 1;
}

bool lossmap_del(lossmap *m, int64_t i)
{
    if (!lossmap_has(m, i))
        return false;
    uint32_t w = word_of(m, i);
    m->count--;
    m->bits[w] &= ~(1ull << (i & 63));
    if (!m->bits[w])
        m->sum[w >> 6] &= ~(1ull << (w & 63));
    return true;
}

void lossmap_del_run(lossmap *m, int64_t a, int64_t b)
{
    a = a > m->lo ? a : m->lo;
    b = b < m->hi ? b : m->hi - 1;
    for (int64_t base = a & ~63ll; m->count && base <= b; base += 64) {
        int from = base < a ? (int)(a - base) : 0;
        int to = b - base < 63 ? (int)(b - base) : 63;
        clear_mask(m, base, span(from, to));
    }
}

int64_t lossmap_next(const lossmap *m, int64_t from)
{
    if (!m->count)
        return LOSSMAP_NONE;
    if (from < m->lo)
        from = m->lo;
    int64_t base = from & ~63ll;
    uint64_t skip = ~0ull << (from & 63);
    while (base < m->hi) {
        uint32_t w = word_of(m, base);
        uint64_t word = m->bits[w] & skip;
        if (word)
            return base + __builtin_ctzll(word);
        skip = ~0ull;
        /* Jump over empty words with the summary. */
        base += 64;
        w = word_of(m, base);
        uint64_t rest = m->sum[w >> 6] >> (w & 63);
        base += rest ? 64ll * __builtin_ctzll(rest) : 64ll * (64 - (w & 63));
    }
    return LOSSMAP_NONE;
}

int64_t lossmap_run_end(const lossmap *m, int64_t i)
{
    for (;;) {
        uint64_t word = ~m->bits[word_of(m, i)] & ~0ull << (i & 63);
        int64_t base = i & ~63ll;
        if (base >= m->hi)
            return m->hi;
        if (word) {
            int64_t end = base + __builtin_ctzll(word);
            return end < m->hi ? end : m->hi;
        }
        i = base + 64;
        if (i >= m->hi)
            return m->hi;
    }
}

void lossmap_del_below(lossmap *m, int64_t i)
{
    int64_t at;
    while ((at = lossmap_next(m, m->lo)) < i) {
        int64_t base = at & ~63ll;
        int to = i - base <= 63 ? (int)(i - base) - 1 : 63;
        clear_mask(m, base, span(0, to));
        m->lo = base + to + 1;
    }
    if (m->count && m->lo < i)
        m->lo = i;
}
