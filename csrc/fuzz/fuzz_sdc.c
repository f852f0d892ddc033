/* Data-channel records: OPEN and every record type from a hostile peer. The first byte chooses the
 * mode; the rest is cut into records by their own headers, each fed to hello, peek and unseal.
 * Keys and room are made once: an execution allocates nothing. */
#include <stdlib.h>
#include <string.h>

#include "sdc/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A direction at its first record, of each mode. */
static sdc_dir fresh(bool encrypt)
{
    static sdc_dir dir[2];
    static sdc_hello done[2], b;
    static const uint8_t nonce[SDC_NONCE_BYTES] = {1};
    sdc_hello *a = &done[encrypt];
    uint8_t open[SDC_OPEN_BYTES];
    if (a->met)
        return dir[encrypt];
    const udt_ticket t = {.tag = 7, .encrypt = encrypt};
    sdc_hello_init(a, &t, true, nonce);
    sdc_hello_init(&b, &t, false, nonce);
    if (sdc_hello_write(a, open) != 0 || sdc_hello_read(&b, open) != 0 ||
        sdc_hello_write(&b, open) != 0 || sdc_hello_read(a, open) != 0 ||
        sdc_dir_init(&dir[encrypt], a, false) != 0)
        abort();
    return dir[encrypt];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    bool encrypt = data[0] & 1;
    const uint8_t nonce[SDC_NONCE_BYTES] = {1};
    if (size > SDC_OPEN_BYTES && data[0] & 4) {
        const udt_ticket t = {.tag = 7, .encrypt = encrypt};
        sdc_hello h;
        sdc_hello_init(&h, &t, data[0] & 2, nonce);
        (void)sdc_hello_read(&h, data + 1);
        sdc_hello_fini(&h);
    }
    static uint8_t *room; /* records lie at its end: overruns are seen */
    if (!room && !(room = malloc(SDC_MAX_RECORD)))
        return 0;
    sdc_dir d = fresh(encrypt);
    const uint8_t *p = data + 1;
    size_t left = size - 1;
    while (left > 0) {
        int type;
        size_t body;
        ssize_t need = sdc_peek(encrypt, p, left, &type, &body);
        if (need <= 0 || (size_t)need > left)
            break;
        uint8_t *rec = room + SDC_MAX_RECORD - need;
        memcpy(rec, p, (size_t)need);
        bool checked_only = !encrypt && type == SDC_DATA; /* 32 bits of CRC can be guessed */
        if (sdc_unseal(&d, rec, (size_t)need) >= 0 && !checked_only)
            abort(); /* nobody can make a genuine record without the key */
        p += need;
        left -= (size_t)need;
    }
    return 0;
}
