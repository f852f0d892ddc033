/* Bounds-checked big-endian cursor. A read or write past the end sets `bad` and yields zero;
 * callers decode a whole layout and test `bad` once. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct bytes_rd {
    const uint8_t *p;
    size_t left; /* bytes not yet read */
    bool bad;    /* a read went past the end */
} bytes_rd;

typedef struct bytes_wr {
    uint8_t *p;
    size_t left; /* bytes not yet written */
    bool bad;
} bytes_wr;

static inline uint16_t be16_get(const uint8_t *p)
{
    return (uint16_t)((uint16_t)p[0] << 8 | p[1]);
}
static inline uint32_t be32_get(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline uint64_t be64_get(const uint8_t *p)
{
    return (uint64_t)be32_get(p) << 32 | be32_get(p + 4);
}
static inline void be16_put(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void be32_put(uint8_t *p, uint32_t v)
{
    be16_put(p, (uint16_t)(v >> 16));
    be16_put(p + 2, (uint16_t)v);
}
static inline void be64_put(uint8_t *p, uint64_t v)
{
    be32_put(p, (uint32_t)(v >> 32));
    be32_put(p + 4, (uint32_t)v);
}

static inline bytes_rd bytes_reader(const uint8_t *p, size_t len)
{
    bytes_rd r = {p, len, false};
    return r;
}
/* Pointer to the next `n` bytes, which are consumed; NULL (and bad) when fewer are left. */
static inline const uint8_t *bytes_take(bytes_rd *r, size_t n)
{
    const uint8_t *p = r->p;
    if (r->left < n) {
        r->bad = true;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}
static inline uint8_t bytes_u8(bytes_rd *r)
{
    const uint8_t *p = bytes_take(r, 1);
    return p ? p[0] : 0;
}
static inline uint16_t bytes_u16(bytes_rd *r)
{
    const uint8_t *p = bytes_take(r, 2);
    return p ? be16_get(p) : 0;
}
static inline uint32_t bytes_u32(bytes_rd *r)
{
    const uint8_t *p = bytes_take(r, 4);
    return p ? be32_get(p) : 0;
}
static inline uint64_t bytes_u64(bytes_rd *r)
{
    const uint8_t *p = bytes_take(r, 8);
    return p ? be64_get(p) : 0;
}

static inline bytes_wr bytes_writer(uint8_t *p, size_t cap)
{
    bytes_wr w = {p, cap, false};
    return w;
}
static inline uint8_t *bytes_room(bytes_wr *w, size_t n)
{
    uint8_t *p = w->p;
    if (w->left < n) {
        w->bad = true;
        return NULL;
    }
    w->p += n;
    w->left -= n;
    return p;
}
static inline void bytes_put_u8(bytes_wr *w, uint8_t v)
{
    uint8_t *p = bytes_room(w, 1);
    if (p)
        p[0] = v;
}
static inline void bytes_put_u16(bytes_wr *w, uint16_t v)
{
    uint8_t *p = bytes_room(w, 2);
    if (p)
        be16_put(p, v);
}
static inline void bytes_put_u32(bytes_wr *w, uint32_t v)
{
    uint8_t *p = bytes_room(w, 4);
    if (p)
        be32_put(p, v);
}
static inline void bytes_put_u64(bytes_wr *w, uint64_t v)
{
    uint8_t *p = bytes_room(w, 8);
    if (p)
        be64_put(p, v);
}
static inline void bytes_put(bytes_wr *w, const void *src, size_t n)
{
    uint8_t *p = bytes_room(w, n);
    if (p && n)
        memcpy(p, src, n);
}

#endif
