/* Own mode's packet numbers, keys and seals: what goes out gets a number and a seal, what comes in
 * is opened or has no effect. */
#include "udt/own.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "udt/conn.h"

#define REPLAY_WORDS (OWN_REPLAY_BITS / 64)
#define SEALED_IN_EPOCH \
    16 /* at least: the peer follows from one key to the next, and some are lost */

static aead *key_of(const own_dir *d, int alg)
{
    static const char info[] = "sector udt packet key";
    uint8_t key[AEAD_KEY_BYTES];
    hkdf_sha256(d->secret, sizeof d->secret, (const uint8_t *)info, sizeof info - 1, key,
                sizeof key);
    aead *a = aead_new(alg, key);
    secure_wipe(key, sizeof key);
    return a;
}

static void next_secret(own_dir *d)
{
    static const char info[] = "sector udt next secret";
    uint8_t next[AEAD_KEY_BYTES];
    hkdf_sha256(d->secret, sizeof d->secret, (const uint8_t *)info, sizeof info - 1, next,
                sizeof next);
    memcpy(d->secret, next, sizeof next);
    secure_wipe(next, sizeof next);
    d->epoch++;
}

static void dir_fini(own_dir *d)
{
    aead_free(d->key);
    aead_free(d->last);
    aead_free(d->next);
    secure_wipe(d, sizeof *d);
}

void udt__own_fini(udt_conn *c)
{
    udt_own *o = &c->own;
    udt__near_leave(c);
    dir_fini(&o->tx);
    dir_fini(&o->rx);
    lossmap_fini(&o->out);
    free(o->replay);
    o->replay = NULL;
    o->on = false;
}

static bool start_keys(udt_own *o, const own_cfg *cfg)
{
    memcpy(o->tx.secret, cfg->tx, AEAD_KEY_BYTES);
    memcpy(o->rx.secret, cfg->rx, AEAD_KEY_BYTES);
    o->tx.key = key_of(&o->tx, o->alg);
    o->rx.key = key_of(&o->rx, o->alg);
    o->replay = calloc(REPLAY_WORDS, sizeof *o->replay);
    return o->tx.key && o->rx.key && o->replay;
}

/* The buffers of an open connection, for the smaller payload of sealed packets. */
static bool new_buffers(udt_conn *c)
{
    udt_mem *mem = &c->mux->mem;
    udt_sndbuf_fini(&c->snd);
    udt_rcvbuf_fini(&c->rcv);
    return udt_sndbuf_init(&c->snd, mem, c->payload, c->opts.snd_buf_bytes) &&
           udt_rcvbuf_init(&c->rcv, mem, c->own_payload, udt__conn_own_window(c),
                           c->opts.type == UDT_DGRAM);
}

bool udt__own_start(udt_conn *c, const own_cfg *cfg, udt_time now)
{
    udt_mux *m = c->mux;
    bool open = c->snd.mem != NULL;
    if (c->own.on || (open && (c->snd.tail > 0 || c->largest >= 0)))
        return false;
    if (!m->scratch && !(m->scratch = malloc(SCRATCH_BYTES)))
        return false;
    udt_own o = {.on = true,
                 .features = cfg->features | OWN_F_BASE,
                 .epoch_shift = cfg->epoch_shift ? cfg->epoch_shift : OWN_EPOCH_SHIFT,
                 .alg = cfg->alg ? cfg->alg : AEAD_AES256GCM,
                 .pn = 1,
                 .flight_first = -1,
                 .flight_last = -1,
                 .reo_pkts = OWN_REORDER_PKTS,
                 .edge_bytes = INT64_MAX,
                 .hold = c->own.hold};
    o.sealed = cfg->tx && cfg->rx;
    o.seal_data = o.sealed && cfg->features & OWN_F_SEAL_DATA;
    lossmap_init(&o.out);
    if (o.sealed && !start_keys(&o, cfg)) {
        c->own = o;
        udt__own_fini(c);
        return false;
    }
    c->own = o;
    c->foreign = false;
    c->snd.mark_every = 0;
    if (!open)
        return true; /* udt__conn_open() does the rest */
    c->payload -= udt__own_data_tag(&o);
    c->own_payload -= udt__own_data_tag(&o);
    if (o.seal_data && !new_buffers(c)) {
        udt__conn_fail(c, UDT_E_LIMIT, now);
        return false;
    }
    udt__pmtu_again(c);
    const udt_cc_params p = {c->pmtu.now, udt__rand32(m), c->opts.max_bw_Bps};
    c->cc.ops = udt_cc_find(c->opts.cc, false);
    c->cc.ops->init(&c->cc, &p);
    return true;
}

/* ---- out ---- */

uint64_t udt__own_pn_next(udt_conn *c)
{
    return c->own.pn++;
}

/* The key for `pn`; NULL when there is no memory for a new one. */
static aead *tx_key(udt_own *o, uint64_t pn)
{
    while (o->tx.epoch < pn >> o->epoch_shift || !o->tx.key) {
        if (o->tx.epoch < pn >> o->epoch_shift) {
            aead_free(o->tx.key);
            o->tx.key = NULL;
            next_secret(&o->tx);
            o->n.key_updates++;
        }
        if (o->tx.epoch == pn >> o->epoch_shift && !(o->tx.key = key_of(&o->tx, o->alg)))
            return NULL;
    }
    return o->tx.key;
}

static bool seal_into(udt_conn *c, uint8_t *buf, const uint8_t *body, size_t len, uint64_t pn)
{
    uint8_t nonce[AEAD_NONCE_BYTES];
    aead *key = tx_key(&c->own, pn);
    if (!key)
        return false;
    aead_nonce(nonce, pn);
    aead_seal(key, nonce, buf, UDT_HDR_BYTES, body, len, buf + UDT_HDR_BYTES);
    c->own.pn_sealed = pn;
    return true;
}

size_t udt__own_seal(udt_conn *c, uint8_t *buf, size_t n)
{
    uint64_t pn = udt__own_pn_next(c);
    be32_put(buf + 8, (uint32_t)pn);
    if (!c->own.sealed)
        return n;
    if (!seal_into(c, buf, buf + UDT_HDR_BYTES, n - UDT_HDR_BYTES, pn))
        return 0;
    return n + OWN_TAG_BYTES;
}

size_t udt__own_farewell(udt_conn *c, uint8_t *buf)
{
    udt_pkt_put_ctrl(buf, UDT_CTRL_SHUTDOWN, c->last_word, c->peer_id, NULL, 0);
    return udt__own_seal(c, buf, UDT_HDR_BYTES); /* without the pad: no longer than any data */
}

size_t udt__own_put_data(udt_conn *c, uint8_t *buf, const uint8_t *payload, size_t len,
                         uint64_t *pn)
{
    udt_own *o = &c->own;
    *pn = udt__own_pn_next(c);
    be32_put(buf + 8, (uint32_t)*pn);
    if (!o->seal_data) {
        udt__put_payload(c->mux, buf + UDT_HDR_BYTES, payload, len);
        /* The peer counts from the sealed ones: let it not fall behind by a key, nor by half the
         * number space. */
        if (o->sealed && *pn - o->pn_sealed > (1ull << o->epoch_shift) / SEALED_IN_EPOCH)
            c->due |= DUE_KEEPALIVE;
        return UDT_HDR_BYTES + len;
    }
    if (!seal_into(c, buf, payload, len, *pn))
        return 0;
    return UDT_HDR_BYTES + len + OWN_TAG_BYTES;
}

/* ---- in ---- */

/* The number with these low bits that is nearest to the one after `top`. */
static uint64_t expand(uint64_t top, uint32_t low)
{
    int64_t near = (int64_t)top + 1;
    int64_t pn = near + (int32_t)(low - (uint32_t)near);
    return pn > 0 ? (uint64_t)pn : 0;
}

static bool fresh(const udt_own *o, uint64_t pn)
{
    if (pn == 0 || pn + OWN_REPLAY_BITS - 64 <= o->rx_top)
        return false;
    return pn > o->rx_top || !(o->replay[pn / 64 % REPLAY_WORDS] >> (pn % 64) & 1);
}

static void mark(udt_own *o, uint64_t pn)
{
    if (pn > o->rx_top) {
        uint64_t from = o->rx_top / 64 + 1, to = pn / 64;
        if (to - o->rx_top / 64 >= REPLAY_WORDS)
            from = to - REPLAY_WORDS + 1;
        for (uint64_t w = from; w <= to; w++)
            o->replay[w % REPLAY_WORDS] = 0;
        o->rx_top = pn;
    }
    o->replay[pn / 64 % REPLAY_WORDS] |= 1ull << (pn % 64);
}

/* The key for a received number: the running one, the one before, or the coming one. */
static aead *rx_key(udt_own *o, uint64_t pn)
{
    uint64_t epoch = pn >> o->epoch_shift;
    own_dir *d = &o->rx;
    if (epoch == d->epoch)
        return d->key;
    if (epoch + 1 == d->epoch)
        return d->last;
    if (epoch == d->epoch + 1 && !d->next) {
        own_dir ahead = *d;
        next_secret(&ahead);
        d->next = key_of(&ahead, o->alg);
        secure_wipe(&ahead, sizeof ahead);
    }
    return epoch == d->epoch + 1 ? d->next : NULL;
}

static void rx_update(udt_own *o, uint64_t pn)
{
    own_dir *d = &o->rx;
    if (pn >> o->epoch_shift <= d->epoch)
        return;
    aead_free(d->last);
    d->last = d->key;
    d->key = d->next;
    d->next = NULL;
    next_secret(d);
    o->n.key_updates++;
}

static bool refuse(udt_mux *m, enum udt_refused_kind why, int64_t *mine, int64_t *of_all)
{
    ++*mine;
    ++*of_all;
    m->why = (uint8_t)why;
    return false;
}

static bool open_sealed(udt_conn *c, udt_pkt *p, const uint8_t *hdr, uint64_t *pn)
{
    udt_own *o = &c->own;
    own_counters *all = &c->mux->own;
    uint8_t nonce[AEAD_NONCE_BYTES];
    if (p->len < OWN_TAG_BYTES || p->len - OWN_TAG_BYTES > SCRATCH_BYTES)
        return refuse(c->mux, UDT_REFUSED_KEY, &o->n.unsealed, &all->unsealed);
    *pn = expand(o->rx_top, p->timestamp);
    if (!fresh(o, *pn))
        return refuse(c->mux, UDT_REFUSED_REPLAY, &o->n.replayed, &all->replayed);
    aead *key = rx_key(o, *pn);
    aead_nonce(nonce, *pn);
    if (!key || !aead_open(key, nonce, hdr, UDT_HDR_BYTES, p->body, p->len, c->mux->scratch))
        return refuse(c->mux, UDT_REFUSED_KEY, &o->n.bad_tag, &all->bad_tag);
    rx_update(o, *pn);
    mark(o, *pn);
    p->body = c->mux->scratch;
    p->len -= OWN_TAG_BYTES;
    return true;
}

bool udt__own_open(udt_conn *c, udt_pkt *p, const uint8_t *hdr, uint64_t *pn)
{
    udt_own *o = &c->own;
    if (p->control ? o->sealed : o->seal_data)
        return open_sealed(c, p, hdr, pn);
    if (p->control || !o->sealed) {
        *pn = expand(o->rx_top, p->timestamp);
        if (*pn > o->rx_top)
            o->rx_top = *pn;
    } else {
        *pn = expand(o->rx_data > o->rx_top ? o->rx_data : o->rx_top, p->timestamp);
    }
    return true;
}
