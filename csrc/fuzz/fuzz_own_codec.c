/* The stateless parsers of own mode: offers and answers of the handshake words, PARAMS, and what a
 * listener makes of a request. The first byte chooses; what was decoded must come out the same when
 * it is encoded and decoded, and nobody proves a key by chance. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "udt/own_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t psk[UDT_KEY_BYTES] = {9, 8, 7};

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static void params(const uint8_t *p, size_t n)
{
    own_params v, again;
    uint8_t buf[OWN_PARAMS_BYTES];
    memset(&v, 0, sizeof v);
    memset(&again, 0, sizeof again);
    if (!own_params_get(&v, p, n))
        return;
    own_params_put(&v, buf);
    expect(own_params_get(&again, buf, sizeof buf));
    expect(v.features == again.features && v.mss == again.mss && v.credit == again.credit);
    expect(v.slots == again.slots && v.type == again.type && v.flags == again.flags);
    expect(v.token == again.token && v.echo == again.echo);
}

static void take_meet(own_meet *t, bytes_rd *r)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 2; i++) {
        t->isn[i] = bytes_u32(r);
        t->id[i] = (int32_t)bytes_u32(r);
        for (int k = 0; k < OWN_OFFER_WORDS; k++)
            t->words[i][k] = bytes_u32(r);
    }
}

static void meet(const uint8_t *p, size_t n, bool answer)
{
    bytes_rd r = bytes_reader(p, n);
    own_meet t;
    take_meet(&t, &r);
    if (r.bad)
        return;
    int by = answer;
    (void)own_meet_check(&t, by, answer, NULL); /* 32 bits of a checksum can be guessed */
    if (own_meet_check(&t, by, answer, psk))
        expect(t.words[by][0] >> 16 == (answer ? OWN_ANSWER_MAGIC : OWN_OFFER_MAGIC));
    uint32_t features = t.words[by][0] & 0xffff, nonce = t.words[by][1];
    own_meet_say(&t, by, answer, features, nonce, psk);
    expect(own_meet_check(&t, by, answer, psk) && !own_meet_check(&t, by, !answer, psk));
    expect(own_meet_features(t.words[by]) == features);
    t.words[by][2] ^= 1;
    expect(!own_meet_check(&t, by, answer, psk));
}

static void judge(const uint8_t *p, size_t n)
{
    udt_hs h;
    udt_opts o;
    if (n < 1 || !udt_hs_decode(&h, p + 1, n - 1))
        return;
    udt_opts_init(&o);
    o.offer = p[0] & 1;
    o.has_key = p[0] & 2;
    o.require_key = o.has_key && p[0] & 4;
    if (o.has_key)
        memcpy(o.key, psk, sizeof o.key);
    int rc = udt__own_judge(&o, &h);
    expect(rc == UDT_OK || rc == UDT_E_STATE || rc == UDT_E_AUTH);
    expect(!o.require_key || rc != UDT_E_STATE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    switch (data[0] & 3) {
    case 0:
        params(data + 1, size - 1);
        break;
    case 1:
        meet(data + 1, size - 1, false);
        break;
    case 2:
        meet(data + 1, size - 1, true);
        break;
    default:
        judge(data + 1, size - 1);
        break;
    }
    return 0;
}
