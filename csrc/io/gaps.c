/* Plain packets are sent from the engine's send buffer, the header in front of the payload, without
 * a copy (decisions/0113, 0192): packets that lie behind each other are one piece of a message. The
 * buffer may be freed by whatever is called next, so nothing waits like that: what the kernel does
 * not take at once is copied to its place in the output and then looks like any other message. */
#include "io/priv.h"

#include <string.h>

static uint8_t *end_of(const struct iovec *v)
{
    return (uint8_t *)v->iov_base + v->iov_len;
}

/* The pieces of message i, whose first gap is *gap. */
static uint32_t lay_message(io_tx *t, uint32_t i, uint32_t *gap, struct iovec *piece)
{
    uint32_t n = 0;
    uint8_t *at = t->iov[i].iov_base, *end = end_of(&t->iov[i]);
    for (; *gap < t->gaps.n && t->gap[*gap].at < end; ++*gap) {
        const udt_gap *g = &t->gap[*gap];
        if (g->at > at)
            piece[n++] = (struct iovec){at, (size_t)(g->at - at)};
        if (n > 0 && end_of(&piece[n - 1]) == g->from)
            piece[n - 1].iov_len += g->len;
        else
            piece[n++] = (struct iovec){(void *)(uintptr_t)g->from, g->len};
        at = g->at + g->len;
    }
    if (n > 0 && at < end)
        piece[n++] = (struct iovec){at, (size_t)(end - at)};
    return n;
}

void io_gaps_lay(io_tx *t)
{
    uint32_t gap = 0, used = 0;
    for (uint32_t i = t->first; i < t->n && gap < t->gaps.n; i++) {
        uint32_t n = lay_message(t, i, &gap, t->piece + used);
        if (n == 0)
            continue;
        t->msg[i].msg_hdr.msg_iov = t->piece + used;
        t->msg[i].msg_hdr.msg_iovlen = n;
        used += n;
    }
}

void io_gaps_fill(io_tx *t)
{
    if (t->gaps.n == 0)
        return;
    for (uint32_t i = t->first; i < t->n; i++) {
        t->msg[i].msg_hdr.msg_iov = &t->iov[i];
        t->msg[i].msg_hdr.msg_iovlen = 1;
    }
    /* Those before the first that waits have left. */
    const uint8_t *from = t->first < t->n ? t->iov[t->first].iov_base : t->buf;
    for (uint32_t k = 0; k < t->gaps.n; k++)
        if (t->gap[k].at >= from)
            memcpy(t->gap[k].at, t->gap[k].from, t->gap[k].len);
    t->gaps.n = 0;
}
