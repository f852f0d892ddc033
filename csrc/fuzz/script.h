/* A network between two engines whose every whim comes from the fuzzer's input: for each datagram
 * one byte says what becomes of it, and when the bytes are used up the network is perfect. */
#ifndef FUZZ_SCRIPT_H
#define FUZZ_SCRIPT_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "udt_types.h"

enum { WIRE_SLOTS = 128, WIRE_BYTES = 9000, WIRE_DELAY_US = 5000 };

typedef struct script {
    const uint8_t *p;
    size_t left;
} script;

static inline uint8_t script_byte(script *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->p++;
}

typedef struct wire_dgram {
    bool used;
    int to; /* 0 or 1 */
    udt_addr from;
    udt_time at;
    uint64_t order;
    size_t len;
    uint8_t *bytes;
} wire_dgram;

typedef struct wire {
    wire_dgram slot[WIRE_SLOTS];
    uint64_t order;
    size_t n;
    bool flips; /* damaged datagrams arrive; else the UDP checksum drops them */
} wire;

static inline void wire_fini(wire *w)
{
    for (int i = 0; i < WIRE_SLOTS; i++)
        free(w->slot[i].bytes);
}

/* A full wire drops, as queues do. */
static inline void wire_put(wire *w, int to, const udt_addr *from, const uint8_t *b, size_t len,
                            udt_time at)
{
    for (int i = 0; i < WIRE_SLOTS && len <= WIRE_BYTES; i++) {
        wire_dgram *d = &w->slot[i];
        if (d->used)
            continue;
        free(d->bytes);
        d->bytes = malloc(len ? len : 1); /* its own block: overruns are seen */
        if (!d->bytes)
            return;
        memcpy(d->bytes, b, len);
        d->used = true;
        d->to = to;
        d->from = *from;
        d->at = at;
        d->order = w->order++;
        d->len = len;
        w->n++;
        return;
    }
}

/* What becomes of a datagram that was just sent. */
static inline void wire_send(wire *w, script *s, int to, const udt_addr *from, uint8_t *b,
                             size_t len, udt_time now)
{
    uint8_t fate = script_byte(s);
    udt_time at = now + WIRE_DELAY_US;
    switch (fate >> 5) {
    case 1: /* lost */
        return;
    case 2: /* late by up to 160 ms: overtaken */
        at += (fate & 31) * 5000;
        break;
    case 3: /* twice */
        wire_put(w, to, from, b, len, at + (fate & 31) * 1000);
        break;
    case 4: /* damaged */
        if (!w->flips)
            return;
        b[(size_t)(fate & 31) * len / 32] ^= (uint8_t)(1u << (fate & 7));
        break;
    case 5: /* cut short */
        if (!w->flips)
            return;
        len = len * (fate & 31) / 32;
        break;
    case 6: /* reflected to its sender too */
        wire_put(w, !to, from, b, len, at);
        break;
    default:
        break;
    }
    wire_put(w, to, from, b, len, at);
}

/* The next datagram due by `now`, or NULL. The caller sets used = false when done. */
static inline wire_dgram *wire_next(wire *w, udt_time now)
{
    wire_dgram *best = NULL;
    for (int i = 0; i < WIRE_SLOTS && w->n > 0; i++) {
        wire_dgram *d = &w->slot[i];
        if (d->used && d->at <= now &&
            (!best || d->at < best->at || (d->at == best->at && d->order < best->order)))
            best = d;
    }
    return best;
}

static inline udt_time wire_deadline(const wire *w)
{
    udt_time at = UDT_NEVER;
    for (int i = 0; i < WIRE_SLOTS && w->n > 0; i++)
        if (w->slot[i].used && w->slot[i].at < at)
            at = w->slot[i].at;
    return at;
}

#endif
