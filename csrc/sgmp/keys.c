#include "sgmp/keys.h"

#include "udt_err.h"

#include <stdlib.h>
#include <string.h>

void keys_init(struct keys *k, struct sg_heap *heap, uint32_t timer_kind, uint64_t seed)
{
    memset(k, 0, sizeof *k);
    sg_htab_init(&k->by_id, seed);
    sg_htab_init(&k->by_name, seed ^ 0x5bd1e995);
    k->heap = heap;
    k->timer_kind = timer_kind;
}

void keys_fini(struct keys *k)
{
    for (size_t i = 0; i <= k->by_id.mask; i++)
        while (k->by_id.slot[i])
            keys_drop(k, sg_of(k->by_id.slot[i], struct key, node));
    sg_htab_fini(&k->by_id);
    sg_htab_fini(&k->by_name);
}

static struct principal *principal_get(struct keys *k, const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (const char *c = name; *c; c++)
        h = (h ^ (uint8_t)*c) * 1099511628211u;
    for (struct sg_hnode *n = sg_hget(&k->by_name, h); n; n = sg_hnext(n)) {
        struct principal *p = sg_of(n, struct principal, node);
        if (strcmp(p->name, name) == 0)
            return p;
    }
    struct principal *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    memcpy(p->name, name, strlen(name));
    sg_link_init(&p->keys);
    sg_hadd(&k->by_name, &p->node, h);
    return p;
}

void principal_ref(struct principal *p)
{
    if (p)
        p->refs++;
}

void principal_unref(struct keys *k, struct principal *p)
{
    if (!p || --p->refs)
        return;
    sg_hdel(&k->by_name, &p->node);
    free(p);
}

int keys_add(struct keys *k, const sgmp_key *rec, udt_time now)
{
    if (rec->key_id == 0 || (rec->alg != SGMP_ALG_HMAC && rec->alg != SGMP_ALG_AES256GCM) ||
        rec->valid_ms < 0 || rec->valid_ms > INT64_MAX / 4000 || rec->principal[0] == 0 ||
        !memchr(rec->principal, 0, sizeof rec->principal))
        return UDT_E_INVAL;
    if (keys_find(k, rec->key_id))
        return UDT_E_INUSE;
    if (k->by_id.count >= KEYS_MAX)
        return UDT_E_LIMIT;
    struct key *key = calloc(1, sizeof *key);
    if (!key)
        return UDT_E_NOMEM;
    key->expiry.kind = k->timer_kind;
    key->who = principal_get(k, rec->principal);
    if (!key->who || !sg_heap_reserve(k->heap)) {
        if (key->who && key->who->refs == 0) {
            principal_ref(key->who);
            principal_unref(k, key->who);
        }
        free(key);
        return UDT_E_NOMEM;
    }
    principal_ref(key->who);
    key->serial = ++k->serial;
    key->id = rec->key_id;
    key->alg = rec->alg;
    hkdf_extract(rec->secret, sizeof rec->secret, key->prk);
    key->until = rec->valid_ms ? now + rec->valid_ms * 1000 : UDT_NEVER;
    sg_heap_set(k->heap, &key->expiry, rec->valid_ms ? key->until + KEY_GRACE_US : UDT_NEVER);
    sg_hadd(&k->by_id, &key->node, key->id);
    sg_push(&key->who->keys, &key->of);
    return 0;
}

void keys_drop(struct keys *k, struct key *key)
{
    sg_hdel(&k->by_id, &key->node);
    sg_unlink(&key->of);
    sg_heap_unreserve(k->heap, &key->expiry);
    principal_unref(k, key->who);
    aead_free(key->say);
    secure_wipe(key, sizeof *key);
    free(key);
}

struct key *keys_find(const struct keys *k, uint32_t id)
{
    struct sg_hnode *n = sg_hget(&k->by_id, id);
    return n ? sg_of(n, struct key, node) : NULL;
}

struct key *keys_newest(const struct principal *who, udt_time now)
{
    for (const struct sg_link *l = who->keys.prev; l != &who->keys; l = l->prev) {
        struct key *key = sg_of((uintptr_t)l, struct key, of);
        if (key_can_send(key, now))
            return key;
    }
    return NULL;
}

aead *key_derive(const struct key *key, char purpose, uint64_t sender, uint64_t receiver,
                 uint64_t conn_no)
{
    uint8_t info[34], derived[AEAD_KEY_BYTES];
    bytes_wr w = bytes_writer(info, sizeof info);
    bytes_put(&w, "GMP1", 4);
    bytes_put_u8(&w, (uint8_t)purpose);
    bytes_put_u8(&w, key->alg);
    bytes_put_u32(&w, key->id);
    bytes_put_u64(&w, sender);
    bytes_put_u64(&w, receiver);
    if (conn_no)
        bytes_put_u64(&w, conn_no);
    hkdf_expand(key->prk, info, sizeof info - w.left, derived, sizeof derived);
    aead *a = aead_new(key->alg, derived);
    secure_wipe(derived, sizeof derived);
    return a;
}

void tokens_init(struct tokens *t, udt_rand_fn rand, void *arg, udt_time now)
{
    t->rand = rand;
    t->rand_arg = arg;
    t->born = now;
    rand(arg, t->secret[0], 32);
    rand(arg, t->secret[1], 32);
}

/* A new secret every ten minutes, made when it is needed: an idle endpoint has no timer for it. */
static void rotate(struct tokens *t, udt_time now)
{
    const udt_time period = 600 * (udt_time)1000000;
    if (now - t->born < period)
        return;
    if (now - t->born < 2 * period)
        memcpy(t->secret[1], t->secret[0], 32);
    else
        t->rand(t->rand_arg, t->secret[1], 32);
    t->rand(t->rand_arg, t->secret[0], 32);
    t->born = now;
}

static void token_mac(const uint8_t secret[32], const udt_addr *holder, uint64_t instance,
                      uint32_t key_id, uint64_t expiry, uint8_t out[SHA256_BYTES])
{
    uint8_t in[40];
    bytes_wr w = bytes_writer(in, sizeof in);
    bytes_put_u16(&w, holder->family);
    bytes_put(&w, holder->ip, 16);
    bytes_put_u16(&w, holder->port);
    bytes_put_u64(&w, instance);
    bytes_put_u32(&w, key_id);
    bytes_put_u64(&w, expiry);
    hmac_sha256(secret, 32, in, sizeof in, out);
}

void token_mint(struct tokens *t, const udt_addr *holder, uint64_t instance, uint32_t key_id,
                udt_time now, uint8_t out[PKT_TOKEN])
{
    uint8_t mac[SHA256_BYTES];
    uint64_t expiry = (uint64_t)(now / 1000) + TOKEN_LIFE_MS;
    rotate(t, now);
    token_mac(t->secret[0], holder, instance, key_id, expiry, mac);
    be64_put(out, expiry);
    memcpy(out + 8, mac, 16);
}

bool token_valid(struct tokens *t, const udt_addr *holder, uint64_t instance, uint32_t key_id,
                 udt_time now, const uint8_t token[PKT_TOKEN])
{
    uint8_t mac[SHA256_BYTES];
    uint64_t expiry = be64_get(token), now_ms = (uint64_t)(now / 1000);
    if (expiry <= now_ms || expiry > now_ms + TOKEN_LIFE_MS)
        return false;
    rotate(t, now);
    for (int i = 0; i < 2; i++) {
        token_mac(t->secret[i], holder, instance, key_id, expiry, mac);
        if (secure_eq(mac, token + 8, 16))
            return true;
    }
    return false;
}
