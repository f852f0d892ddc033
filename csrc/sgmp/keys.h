/* Key records, principals, derived contexts and address tokens (spec/gmp.md 4.2, 5.1). */
#ifndef SGMP_KEYS_H
#define SGMP_KEYS_H

#include "crypto/aead.h"
#include "sgmp.h"
#include "sgmp/heap.h"
#include "sgmp/packet.h"
#include "sgmp/util.h"

enum { KEYS_MAX = 65536, KEY_GRACE_US = 60 * 1000000 };

/* The remote name a key is bound to; lives while a key or an association refers to it. */
struct principal {
    struct sg_hnode node; /* by hash of the name */
    struct sg_link keys;  /* newest last */
    uint32_t refs;
    uint32_t assocs; /* with instances of this name */
    char name[128];
};

struct key {
    struct sg_hnode node;   /* by key_id */
    struct sg_link of;      /* in principal.keys */
    struct sg_timer expiry; /* end of grace: the record is destroyed */
    struct principal *who;
    uint64_t serial; /* order of installation, never reused: a cached context names its key by it */
    udt_time until;  /* no sending after this, UDT_NEVER = no end */
    uint32_t id;
    uint8_t alg;
    uint8_t prk[SHA256_BYTES]; /* what all of its contexts are derived from */
    aead *say;                 /* cached purpose-`s` context of this instance */
};

struct keys {
    struct sg_htab by_id, by_name;
    struct sg_heap *heap;
    uint32_t timer_kind;
    uint64_t serial;
};

void keys_init(struct keys *k, struct sg_heap *heap, uint32_t timer_kind, uint64_t seed);
void keys_fini(struct keys *k);
int keys_add(struct keys *k, const sgmp_key *rec, udt_time now);
void keys_drop(struct keys *k, struct key *key);
struct key *keys_find(const struct keys *k, uint32_t id);
static inline bool key_can_send(const struct key *key, udt_time now)
{
    return key && now < key->until;
}
/* Newest key of the principal that may still be used for sending, NULL if none. */
struct key *keys_newest(const struct principal *who, udt_time now);
void principal_ref(struct principal *p);
void principal_unref(struct keys *k, struct principal *p);

/* Context for `purpose` ('d', 's' or 'b'); conn_no 0 = not part of the derivation. */
aead *key_derive(const struct key *key, char purpose, uint64_t sender, uint64_t receiver,
                 uint64_t conn_no);

/* Secrets behind tokens: the current one and its predecessor. */
struct tokens {
    uint8_t secret[2][32];
    udt_time born; /* of secret[0] */
    udt_rand_fn rand;
    void *rand_arg;
};
enum { TOKEN_LIFE_MS = 120000 };
void tokens_init(struct tokens *t, udt_rand_fn rand, void *arg, udt_time now);
void token_mint(struct tokens *t, const udt_addr *holder, uint64_t instance, uint32_t key_id,
                udt_time now, uint8_t out[PKT_TOKEN]);
bool token_valid(struct tokens *t, const udt_addr *holder, uint64_t instance, uint32_t key_id,
                 udt_time now, const uint8_t token[PKT_TOKEN]);

#endif
