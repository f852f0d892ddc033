/* Rate caps of transfers that go over TLS connections: the kernel paces each of them. The cap of a
 * transfer is divided among its connections, one that transfers share among all that send to its
 * prefix. */
#include "io/sockaddr.h"
#include "io/tls_priv.h"

#include <stdlib.h>

static bool sends(const tls_conn *c)
{
    return c->state == TLS_UP && c->s && c->s->sends;
}

static unsigned alive(const stripe *s)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->n; i++)
        n += s->conn[i] && s->conn[i]->state == TLS_UP;
    return n ? n : 1;
}

static void pace(tls_conn *c, int64_t Bps)
{
    /* caps count IP packets, the kernel paces what is in them: 1448 of 1500 bytes */
    uint64_t rate = Bps > 0 ? (uint64_t)(Bps - Bps / 29) : UINT64_MAX;
    if (c->pace == Bps)
        return;
    c->pace = Bps;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

static void peer_of(const tls_conn *c, udt_addr *to)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    *to = (udt_addr){0};
    if (getpeername(c->fd, (struct sockaddr *)&ss, &len) == 0)
        (void)sockaddr_get(&ss, to);
}

void io_tls_pace(io_port *p)
{
    struct io_tls *t = p->tls;
    int n = 0;
    udt_addr *to = t ? calloc(t->nconns + 1, sizeof *to) : NULL;
    int64_t *share = to ? calloc(t->nconns + 1, sizeof *share) : NULL;
    if (!share) {
        free(to);
        return;
    }
    for (tls_conn *c = t->conns; c; c = c->next)
        if (sends(c))
            peer_of(c, &to[n++]);
    udt_mux_link_shares(p->mux, to, n, share);
    n = 0;
    for (tls_conn *c = t->conns; c; c = c->next) {
        if (!sends(c))
            continue;
        int64_t own = c->s->max_Bps / alive(c->s), link = share[n++];
        pace(c, own && link ? (own < link ? own : link) : own + link);
    }
    free(share);
    free(to);
}

void stripe_rate(stripe *s, int64_t max_Bps, bool sender)
{
    s->max_Bps = max_Bps;
    s->sends = sender;
    io_tls_pace(s->p);
}
