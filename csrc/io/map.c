/* Engine socket id -> owner: open addressing with deleted marks. */
#include "io/priv.h"

#include <stdlib.h>

static uint32_t hash(int32_t sock)
{
    return (uint32_t)sock * 2654435761u >> 7;
}

io_bind *io_map_find(io_map *m, int32_t sock)
{
    if (m->cap == 0 || sock <= 0)
        return NULL;
    for (uint32_t i = hash(sock);; i++) {
        io_bind *b = &m->slot[i & (m->cap - 1)];
        if (b->sock == sock)
            return b;
        if (b->sock == 0)
            return NULL;
    }
}

static io_bind *place(io_map *m, int32_t sock)
{
    for (uint32_t i = hash(sock);; i++) {
        io_bind *b = &m->slot[i & (m->cap - 1)];
        if (b->sock == 0) {
            b->sock = sock;
            m->used++;
            m->live++;
            return b;
        }
    }
}

static bool rehash(io_map *m)
{
    uint32_t cap = 64;
    while (cap < m->live * 3)
        cap *= 2;
    io_map n = {.slot = calloc(cap, sizeof *n.slot), .cap = cap};
    if (!n.slot)
        return false;
    for (uint32_t i = 0; i < m->cap; i++)
        if (m->slot[i].sock > 0)
            *place(&n, m->slot[i].sock) = m->slot[i];
    free(m->slot);
    *m = n;
    return true;
}

io_bind *io_map_add(io_map *m, int32_t sock)
{
    if (m->used * 4 >= m->cap * 3 && !rehash(m))
        return NULL;
    return place(m, sock);
}

void io_map_remove(io_map *m, io_bind *b)
{
    b->sock = -1;
    m->live--;
}
