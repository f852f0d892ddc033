/* Records of the data channel inside a UDT stream: OPEN, DATA, FIN, DONE, ERROR. No I/O, no clock;
 * layout and reasons: docs/protocol/data-channel.md.
 *
 * Each direction is a `sdc_dir` with its own key, used by one thread at a time and strictly in
 * order. Bytes from the network never assert: every malformed record is an error code. */
#ifndef SDC_RECORD_H
#define SDC_RECORD_H

#include "crypto/aead.h"
#include "udt.h"

enum sdc_type { SDC_OPEN = 1, SDC_DATA = 2, SDC_FIN = 3, SDC_DONE = 4, SDC_ERROR = 5 };

enum {
    SDC_HEADER_BYTES = 4,
    SDC_MAX_BODY = 16384,
    SDC_TAG_BYTES = AEAD_TAG_BYTES,
    SDC_CHECK_BYTES = 4, /* CRC chain of a DATA record without encryption */
    SDC_NONCE_BYTES = 16,
    SDC_OPEN_BYTES = 68,
    SDC_FIN_BYTES = 40,
    SDC_DONE_BYTES = 20,
    SDC_ERROR_BYTES = 4,
    SDC_MAX_RECORD = SDC_HEADER_BYTES + SDC_MAX_BODY + SDC_TAG_BYTES
};

/* ---- the first record each way ---- */

/* One end's view of the OPEN exchange. Order: initiator write, responder read, responder write,
 * initiator read; then both make keys. Wipe it with sdc_hello_fini. */
typedef struct sdc_hello {
    uint8_t id[16], key[32];
    uint8_t nonces[2 * SDC_NONCE_BYTES]; /* initiator's, then responder's */
    bool initiator, encrypt;
    bool early; /* the initiator's direction does not wait for the responder's OPEN; it chooses */
    bool met;   /* the peer's OPEN was valid */
} sdc_hello;
void sdc_hello_init(sdc_hello *h, const udt_ticket *t, bool initiator,
                    const uint8_t nonce[SDC_NONCE_BYTES]);
void sdc_hello_fini(sdc_hello *h);
/* STATE: a responder has to read first. */
int sdc_hello_write(const sdc_hello *h, uint8_t out[SDC_OPEN_BYTES]);
/* 0; PROTO: not an OPEN record of this mode; AUTH: other ticket, wrong role or no proof. */
int sdc_hello_read(sdc_hello *h, const uint8_t in[SDC_OPEN_BYTES]);

/* ---- one direction ---- */

typedef struct sdc_dir {
    aead *aead;          /* AES-256-GCM, or HMAC without encryption */
    uint64_t next;       /* number of the next record, 0 for the first after OPEN */
    uint32_t chain;      /* without encryption: keyed CRC32C over all DATA so far */
    bool encrypt, ended; /* ended: an ERROR passed; nothing may follow */
    uint8_t key[32];
} sdc_dir;
/* The direction from the initiator or from the responder. STATE before both OPENs (an early one:
 * before the initiator's), NOMEM. */
int sdc_dir_init(sdc_dir *d, const sdc_hello *h, bool from_initiator);
void sdc_dir_fini(sdc_dir *d); /* wipes; fine on a zeroed one */

/* Bytes of a record with `len` bytes of body. */
size_t sdc_record_bytes(bool encrypt, int type, size_t len);
/* Looks at the start of a record (avail bytes of it). 0 = the header is not complete, else its full
 * size; PROTO when it cannot be a record. Nothing is proved yet. */
ssize_t sdc_peek(bool encrypt, const uint8_t *p, size_t avail, int *type, size_t *body_len);

/* Seals a record in place: the body (len bytes, 1..SDC_MAX_BODY) already lies at
 * rec + SDC_HEADER_BYTES, with room for the whole record. Returns the record's size. */
size_t sdc_seal(sdc_dir *d, int type, uint8_t *rec, size_t len);
/* An ERROR record for the direction whose key is d->key, without touching the rest of *d: another
 * thread may be sealing. It may follow any record and ends the direction. 0 = out of memory. */
size_t sdc_seal_error(const sdc_dir *d, int32_t code, uint8_t rec[SDC_MAX_RECORD]);
/* Checks and opens a whole record in place; the body is then at rec + SDC_HEADER_BYTES. Returns its
 * length; PROTO (malformed, or after ERROR), AUTH (not genuine, wrong place), DIGEST (the chain
 * without encryption does not hold). After an error the direction is dead. */
ssize_t sdc_unseal(sdc_dir *d, uint8_t *rec, size_t size);

/* ---- bodies ---- */

typedef struct sdc_fin {
    uint64_t size; /* payload bytes of all DATA records */
    uint8_t digest[32];
} sdc_fin;
typedef struct sdc_done {
    uint64_t epoch, counter; /* the version under which the file was published */
    uint32_t durable;        /* replicas that fsynced it */
} sdc_done;
void sdc_fin_put(const sdc_fin *f, uint8_t out[SDC_FIN_BYTES]);
void sdc_fin_get(sdc_fin *f, const uint8_t in[SDC_FIN_BYTES]);
void sdc_done_put(const sdc_done *v, uint8_t out[SDC_DONE_BYTES]);
void sdc_done_get(sdc_done *v, const uint8_t in[SDC_DONE_BYTES]);
int32_t sdc_error_get(const uint8_t in[SDC_ERROR_BYTES]);

#endif
