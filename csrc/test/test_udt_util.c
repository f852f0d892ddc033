#include "test_udt_util.h"

#include "udt_err.h"

static void ep_input(void *ep, const udt_addr *from, const uint8_t *pkt, size_t len, udt_time now)
{
    udt_mux_input(ep, from, pkt, len, now);
}
static void ep_burst_end(void *ep, udt_time now)
{
    udt_mux_burst_end(ep, now);
}
static size_t ep_output(void *ep, uint8_t *buf, size_t cap, size_t max_segs, udt_addr *to,
                        size_t *seg, udt_time now)
{
    return udt_mux_output(ep, buf, cap, max_segs, to, seg, now);
}
static udt_time ep_deadline(const void *ep)
{
    return udt_mux_deadline(ep);
}
static void ep_tick(void *ep, udt_time now)
{
    udt_mux_tick(ep, now);
}
const sim_ep_ops mux_ops = {ep_input, ep_burst_end, ep_output, ep_deadline, ep_tick};

udt_addr test_addr(uint8_t host, uint16_t port)
{
    udt_addr a = {.family = 4, .port = port, .ip = {10, 0, 0, host}};
    return a;
}

void world_init_cfg(world *w, uint64_t seed, const sim_link *there, const sim_link *back,
                    const udt_mux_config *cfg)
{
    memset(w, 0, sizeof *w);
    w->net = sim_net_new(seed);
    for (int i = 0; i < 2; i++) {
        udt_mux_config c = *cfg;
        sim_rng_seed(&w->rng[i], seed * 2 + (uint64_t)i);
        if (!c.rand) {
            c.rand = sim_rng_bytes;
            c.rand_arg = &w->rng[i];
        }
        w->addr[i] = test_addr((uint8_t)(1 + i), 9000);
        w->m[i] = udt_mux_new(&c);
        CHECK(w->m[i]);
        CHECK_INT(sim_net_add(w->net, &w->addr[i], &mux_ops, w->m[i]), i);
    }
    if (there)
        sim_net_link(w->net, 0, 1, there);
    if (back)
        sim_net_link(w->net, 1, 0, back);
}

void world_init(world *w, uint64_t seed, const sim_link *there, const sim_link *back)
{
    udt_mux_config cfg = {0};
    world_init_cfg(w, seed, there, back, &cfg);
}

void world_fini(world *w)
{
    for (int i = 0; i < 2; i++)
        udt_mux_free(w->m[i]);
    sim_net_free(w->net);
}

/* States, unlike changes of state, come again and again: one of a socket is enough. */
static bool known(const world *w, int e, const struct udt_ev *ev)
{
    for (int i = 0; i < w->nev[e]; i++)
        if (ev->kind >= UDT_EV_READABLE && ev->kind <= UDT_EV_DRAINED &&
            w->ev[e][i].kind == ev->kind && w->ev[e][i].sock == ev->sock)
            return true;
    return false;
}

void world_events(world *w)
{
    for (int i = 0; i < 2; i++)
        while (w->nev[i] < EVQ && udt_mux_next_event(w->m[i], &w->ev[i][w->nev[i]]))
            w->nev[i] += !known(w, i, &w->ev[i][w->nev[i]]);
}

bool world_step(world *w, udt_time limit)
{
    bool more = sim_net_step(w->net, limit);
    world_events(w);
    return more;
}

void world_run(world *w, udt_time until)
{
    while (world_step(w, until))
        ;
}

bool world_take(world *w, int e, int kind, int32_t sock, struct udt_ev *out)
{
    world_events(w);
    for (int i = 0; i < w->nev[e]; i++) {
        if (w->ev[e][i].kind != kind || (sock && w->ev[e][i].sock != sock))
            continue;
        *out = w->ev[e][i];
        memmove(&w->ev[e][i], &w->ev[e][i + 1], sizeof(struct udt_ev) * (size_t)(--w->nev[e] - i));
        return true;
    }
    return false;
}

struct udt_ev world_wait(world *w, int e, int kind, int32_t sock, udt_time limit)
{
    struct udt_ev ev;
    while (!world_take(w, e, kind, sock, &ev))
        if (!world_step(w, limit) && !world_take(w, e, kind, sock, &ev))
            test_fail(__FILE__, __LINE__, "no event %d of socket %d at end %d by %" PRId64, kind,
                      sock, e, limit);
        else if (sim_net_now(w->net) >= limit)
            test_fail(__FILE__, __LINE__, "event %d of socket %d at end %d is late", kind, sock, e);
    return ev;
}

pair world_connect(world *w, int how, const udt_opts *o, udt_time limit)
{
    pair p;
    udt_opts opts = *o;
    udt_time now = sim_net_now(w->net);
    if (how == PAIR_CLIENT) {
        CHECK(udt_mux_listen(w->m[1], &opts, 16) > 0);
        p.s[0] = udt_mux_connect(w->m[0], &w->addr[1], &opts, now);
        CHECK(p.s[0] > 0);
        sim_net_kick(w->net, 0);
        p.s[1] = world_wait(w, 1, UDT_EV_ACCEPTED, 0, limit).sock;
        world_wait(w, 0, UDT_EV_CONNECTED, p.s[0], limit);
        return p;
    }
    if (how != PAIR_RDV_ADDR && !opts.tag)
        opts.tag = 0x5eed;
    p.s[1] = udt_mux_rendezvous(w->m[1], how == PAIR_RDV_PASSIVE ? NULL : &w->addr[0], &opts, now);
    p.s[0] = udt_mux_rendezvous(w->m[0], &w->addr[1], &opts, now);
    CHECK(p.s[0] > 0);
    CHECK(p.s[1] > 0);
    sim_net_kick(w->net, 0);
    sim_net_kick(w->net, 1);
    world_wait(w, 0, UDT_EV_CONNECTED, p.s[0], limit);
    world_wait(w, 1, UDT_EV_CONNECTED, p.s[1], limit);
    return p;
}

static uint64_t word_at(uint64_t seed, uint64_t i)
{
    uint64_t x = (seed + i) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

void fill(uint8_t *buf, uint64_t seed, uint64_t offset, size_t len)
{
    size_t i = 0;
    while (i < len && (offset + i) % 8) {
        uint64_t x = word_at(seed, (offset + i) / 8);
        buf[i] = (uint8_t)(x >> (8 * ((offset + i) % 8)));
        i++;
    }
    for (; i + 8 <= len; i += 8) {
        uint64_t x = word_at(seed, (offset + i) / 8);
        memcpy(buf + i, &x, 8);
    }
    for (; i < len; i++) {
        uint64_t x = word_at(seed, (offset + i) / 8);
        buf[i] = (uint8_t)(x >> (8 * ((offset + i) % 8)));
    }
}

enum { CHUNK = 65536 };
static uint8_t data[1 << 20], want[1 << 20];

/* Length of message n: its number leads, so 8 bytes at least. */
static size_t msg_len(const flow *f, uint64_t n)
{
    uint64_t len = 8 + word_at(f->seed ^ 0x1e47, n) % (2 * f->msg_size);
    return (size_t)(len < sizeof data ? len : sizeof data);
}

static void put_messages(world *w, const pair *p, flow *f)
{
    udt_time now = sim_net_now(w->net);
    while (f->sent < f->size) {
        size_t len = msg_len(f, f->msgs_sent);
        fill(data, f->seed + f->msgs_sent, 0, len);
        memcpy(data, &f->msgs_sent, 8);
        int rc = udt_mux_sendmsg(w->m[f->from], p->s[f->from], data, len, -1, f->in_order, now);
        if (rc == UDT_E_AGAIN) {
            f->writable = false;
            return;
        }
        CHECK_INT(rc, 0);
        f->msgs_sent++;
        f->sent += len;
    }
}

static void put_stream(world *w, const pair *p, flow *f)
{
    udt_time now = sim_net_now(w->net);
    while (f->sent < f->size) {
        size_t len = f->size - f->sent < CHUNK ? (size_t)(f->size - f->sent) : CHUNK;
        fill(data, f->seed, f->sent, len);
        ssize_t n = udt_mux_send(w->m[f->from], p->s[f->from], data, len, now);
        if (n == UDT_E_AGAIN) {
            f->writable = false;
            return;
        }
        if (n <= 0)
            test_fail(__FILE__, __LINE__, "send returned %zd", n);
        f->sent += (uint64_t)n;
    }
}

static void get_messages(world *w, const pair *p, flow *f)
{
    udt_time now = sim_net_now(w->net);
    int to = !f->from;
    ssize_t n;
    while ((n = udt_mux_recvmsg(w->m[to], p->s[to], data, sizeof data, now)) > 0) {
        uint64_t no;
        memcpy(&no, data, 8);
        CHECK(no < f->msgs_sent);
        CHECK_INT(n, msg_len(f, no));
        fill(want, f->seed + no, 0, (size_t)n);
        CHECK(memcmp(data + 8, want + 8, (size_t)n - 8) == 0);
        if (f->in_order)
            CHECK_INT(no, f->msgs_got);
        if (!f->seen)
            f->seen = calloc(f->size / 8 / 8 + 2, 1);
        if (f->seen[no / 8] >> (no % 8) & 1)
            test_fail(__FILE__, __LINE__, "message %" PRIu64 " came twice", no);
        f->seen[no / 8] = (uint8_t)(f->seen[no / 8] | 1u << (no % 8));
        f->msgs_got++;
        f->got += (uint64_t)n;
    }
    CHECK_INT(n, UDT_E_AGAIN);
}

static void get_stream(world *w, const pair *p, flow *f)
{
    udt_time now = sim_net_now(w->net);
    int to = !f->from;
    ssize_t n;
    while ((n = udt_mux_recv(w->m[to], p->s[to], data, sizeof data, now)) > 0) {
        fill(want, f->seed, f->got, (size_t)n);
        if (memcmp(data, want, (size_t)n) != 0)
            test_fail(__FILE__, __LINE__, "wrong bytes after %" PRIu64, f->got);
        f->got += (uint64_t)n;
        CHECK(f->got <= f->sent);
    }
    CHECK_INT(n, UDT_E_AGAIN);
}

static void serve(world *w, const pair *p, flow *f)
{
    int to = !f->from;
    if (f->readable) {
        f->readable = false;
        if (f->msg_size)
            get_messages(w, p, f);
        else
            get_stream(w, p, f);
        sim_net_kick(w->net, to);
    }
    if (f->writable && f->sent < f->size) {
        if (f->msg_size)
            put_messages(w, p, f);
        else
            put_stream(w, p, f);
        sim_net_kick(w->net, f->from);
    }
}

static void dispatch(world *w, const pair *p, flow *f, int nflows)
{
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < w->nev[e]; i++) {
            const struct udt_ev *ev = &w->ev[e][i];
            if (ev->sock != p->s[e])
                continue;
            if (ev->kind == UDT_EV_FAILED || ev->kind == UDT_EV_PEER_CLOSED)
                test_fail(__FILE__, __LINE__, "end %d: event %d, error %d", e, ev->kind, ev->err);
            for (int k = 0; k < nflows; k++) {
                f[k].readable |= ev->kind == UDT_EV_READABLE && f[k].from != e;
                f[k].writable |= ev->kind == UDT_EV_WRITABLE && f[k].from == e;
            }
        }
        w->nev[e] = 0;
    }
}

bool world_move(world *w, const pair *p, flow *f, int nflows, udt_time limit)
{
    for (int k = 0; k < nflows; k++)
        f[k].writable = true;
    for (;;) {
        bool done = true;
        world_events(w);
        dispatch(w, p, f, nflows);
        for (int k = 0; k < nflows; k++) {
            serve(w, p, &f[k]);
            done &= f[k].got == f[k].sent && f[k].sent >= f[k].size;
        }
        if (done)
            return true;
        if (sim_net_now(w->net) >= limit || (!world_step(w, limit) && w->nev[0] + w->nev[1] == 0))
            return false;
    }
}

void flow_fini(flow *f)
{
    free(f->seen);
}
