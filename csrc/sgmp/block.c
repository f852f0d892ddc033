/* Memory of the engine's short-lived things: a few free blocks for messages and events, so that the
 * common message costs no malloc, and payloads that several messages share. An event without data
 * is kept by whatever will end with it, so its block is just as large as it is. */
#include "sgmp/engine.h"

#include <stdlib.h>
#include <string.h>

void *sg_block(sgmp_node *n, size_t bytes, uint32_t *room)
{
    if (bytes > SG_BLOCK) {
        *room = (uint32_t)bytes;
        return malloc(bytes);
    }
    *room = SG_BLOCK;
    void *p = n->blocks;
    if (p) {
        memcpy(&n->blocks, p, sizeof n->blocks);
        n->blocks_n--;
        return p;
    }
    if (bytes <= SG_BLOCK / 2) /* a queue of many small ones shall not take whole blocks */
        *room = (uint32_t)bytes;
    return malloc(*room);
}

void *sg_spare(sgmp_node *n)
{
    void *p = n->spares;
    if (!p)
        return malloc(sizeof(struct evt));
    memcpy(&n->spares, p, sizeof n->spares);
    n->spares_n--;
    return p;
}

void sg_block_free(sgmp_node *n, void *p, size_t room)
{
    if (room == sizeof(struct evt) && n->spares_n < SG_SPARES) {
        memcpy(p, &n->spares, sizeof n->spares);
        n->spares = p;
        n->spares_n++;
        return;
    }
    if (room != SG_BLOCK || n->blocks_n >= SG_BLOCKS) {
        free(p);
        return;
    }
    memcpy(p, &n->blocks, sizeof n->blocks);
    n->blocks = p;
    n->blocks_n++;
}

struct share *sg_share_new(const uint8_t *buf, size_t len, uint64_t *account)
{
    struct share *s = malloc(sizeof *s + len);
    if (!s)
        return NULL;
    s->account = account;
    s->len = len;
    s->refs = 1;
    if (len && buf)
        memcpy(s->data, buf, len);
    if (account)
        *account += len;
    return s;
}

struct share *sg_share_ref(struct share *s)
{
    if (s)
        s->refs++;
    return s;
}

void sg_share_unref(struct share *s)
{
    if (!s || --s->refs)
        return;
    if (s->account)
        *s->account -= s->len;
    free(s);
}
