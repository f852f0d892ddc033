/* Frames of a transfer over TLS from a hostile peer that holds the ticket. The file under test is
 * included; its TLS connections are replaced by the input, cut at will. What comes out must be a
 * prefix of one stream: each byte tells its own place, so a byte that came out of turn is seen.
 *
 * Input: rows of [connection and cut, head and bytes]: byte 0 & 3 = connection, & 4 = it ends,
 * & 8 = the length is made to lie, & 16 = the offset is; byte 1 = bytes of the frame. */
/* The functions under test beside those of the library. */
#define stripe_psk under_test_psk
#define stripe_unacked under_test_unacked
#define stripe_connect under_test_connect
#define stripe_await under_test_await
#define stripe_close under_test_close
#define stripe_over under_test_over
#define stripe_free under_test_free
#define stripe_attach under_test_attach
#define stripe_conn_ended under_test_conn_ended
#define stripe_conn_ready under_test_conn_ready
#define stripe_send under_test_send
#define stripe_recv under_test_recv
#define stripe_stats under_test_stats
#include "io/tls_priv.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONNS = 4, QUEUE = 8192 };

static struct fz_in {
    uint8_t bytes[QUEUE];
    size_t at, len, cut; /* cut: bytes that one read gives at most */
    bool end;
} fz_in[CONNS];
static tls_conn fz_conn[CONNS];

static ssize_t fz_read(tls_conn *c, uint8_t *b, size_t cap)
{
    struct fz_in *q = &fz_in[c - fz_conn];
    size_t n = q->len - q->at;
    if (n == 0)
        return q->end ? 0 : UDT_E_AGAIN;
    n = n < cap ? n : cap;
    n = n < q->cut ? n : q->cut;
    memcpy(b, q->bytes + q->at, n);
    q->at += n;
    return (ssize_t)n;
}
static int fz_write(tls_conn *c, const uint8_t *b, size_t n, bool more)
{
    (void)c;
    (void)more;
    (void)b;
    (void)n;
    return 0;
}
static bool fz_flush(tls_conn *c)
{
    (void)c;
    return true;
}
static void fz_end(tls_conn *c, int err)
{
    c->state = TLS_DEAD;
    c->err = err;
}
static void fz_shut(tls_conn *c)
{
    (void)c;
}
static void fz_limits(tls_conn *c, int32_t idle_ms)
{
    (void)c;
    (void)idle_ms;
}
static bool fz_silent(tls_conn *c, udt_time us)
{
    (void)c;
    (void)us;
    return false;
}
static int fz_dial(io_port *p, const udt_addr *to, stripe *s)
{
    (void)p;
    (void)to;
    (void)s;
    return UDT_E_SYS;
}
static struct io_tls *fz_tls(io_port *p)
{
    return p->tls;
}
static void fz_arm(io_port *p, io_timer *t, udt_time at)
{
    (void)p;
    (void)t;
    (void)at;
}
static void fz_stop(io_port *p, io_timer *t)
{
    (void)p;
    (void)t;
}
static void fz_pace(io_port *p)
{
    (void)p;
}
static void fz_hkdf(const uint8_t *secret, size_t len, const uint8_t *info, size_t info_len,
                    uint8_t *out, size_t out_len)
{
    (void)secret;
    (void)len;
    (void)info;
    (void)info_len;
    memset(out, 7, out_len); /* no key is used here */
}

#define tls_conn_read fz_read
#define io_tls_pace fz_pace
#define hkdf_sha256 fz_hkdf
#define tls_conn_write fz_write
#define tls_conn_flush fz_flush
#define tls_conn_end fz_end
#define tls_conn_shut fz_shut
#define tls_conn_limits fz_limits
#define tls_conn_dial fz_dial
#define tls_conn_silent fz_silent
#define io_tls_get fz_tls
#define io_timer_arm fz_arm
#define io_timer_stop fz_stop
#include "io/stripe.c"

static void expect(bool ok)
{
    if (!ok)
        abort();
}

/* What the stream says from `at`: it comes again after 64 KiB, more than honest frames can hold. */
static const uint8_t *stream(uint64_t at)
{
    static uint8_t said[(1 << 16) + 1024];
    if (!said[1])
        for (uint64_t i = 0; i < sizeof said; i++)
            said[i] = (uint8_t)((i & 0xffff) * 0x9e3779b97f4a7c15u >> 56);
    return said + (at & 0xffff);
}

static void fz_event(io_port *p, void *arg, int kind, int err)
{
    (void)p;
    expect(kind != UDT_EV_FAILED || err != 0);
    *(int *)arg |= 1 << kind;
}

/* A frame of `n` bytes that goes on where the honest stream is, or lies. */
static void frame(struct fz_in *q, uint64_t *honest, uint8_t how, size_t n, uint8_t salt)
{
    if (QUEUE - q->len < TLS_HEAD_BYTES + n)
        return;
    uint8_t *p = q->bytes + q->len;
    uint64_t at = how & 16 ? (uint64_t)salt << (salt & 63) : *honest;
    be64_put(p, at);
    be32_put(p + 8, how & 8 ? (uint32_t)salt << (salt & 31) : (uint32_t)n);
    memcpy(p + TLS_HEAD_BYTES, stream(at), n);
    q->len += TLS_HEAD_BYTES + n;
    if (!(how & 24))
        *honest += n;
}

static void read_some(stripe *s, uint64_t *got, bool lied)
{
    uint8_t buf[700];
    ssize_t n;
    for (int i = 0; i < 64 && (n = stripe_recv(s, buf, sizeof buf)) > 0; i++) {
        expect(lied || memcmp(buf, stream(*got), (size_t)n) == 0);
        *got += (uint64_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static io_port port;
    static struct io_tls tls;
    const udt_ticket t = {.tag = 7};
    uint64_t honest = 0, got = 0;
    int events = 0;
    bool lied = false;
    port.tls = &tls; /* the one thing in it that is looked at */
    tls.listener = 3;
    tls.half_open = size & 1;
    tls.stripes = NULL;
    tls.conns = NULL;
    tls.sweep = false;
    stripe *s = stripe_await(&port, &t, 1000, fz_event, &events);
    expect(s != NULL);
    for (int i = 0; i < CONNS; i++) {
        fz_in[i].at = fz_in[i].len = 0;
        fz_in[i].end = false;
        fz_in[i].cut = i == 0 ? QUEUE : (size_t)(1 + 13 * i);
        fz_conn[i] = (tls_conn){.p = &port, .s = s, .fd = -1, .state = TLS_UP, .server = true};
        fz_conn[i].alive = i & 1; /* an empty frame is a keep-alive, or a fault */
        stripe_attach(s, &fz_conn[i]);
    }
    while (size >= 3) {
        struct fz_in *q = &fz_in[data[0] & 3];
        frame(q, &honest, data[0], data[1], data[2]);
        lied |= data[0] & 24;
        q->end |= data[0] & 4;
        if (data[0] & 32)
            read_some(s, &got, lied);
        if (data[0] & 64)
            stripe_conn_ready(&fz_conn[data[2] & 3], data[2] & 4);
        data += 3;
        size -= 3;
    }
    read_some(s, &got, lied);
    expect(got == s->got && (lied || got <= honest));
    for (int i = 0; i < CONNS; i++) {
        fz_conn[i].err = UDT_E_BROKEN;
        if (fz_conn[i].s)
            stripe_conn_ended(&fz_conn[i]);
    }
    stripe_free(s);
    return 0;
}
