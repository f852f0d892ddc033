/* Arithmetic of UDT's 31-bit packet sequence numbers and 29-bit message numbers (spec 1.3).
 *
 * On the wire numbers wrap; inside the engine a packet is named by its 64-bit index, 0 for the
 * initial sequence number, which never wraps. These helpers go from one to the other. */
#ifndef BASE_SEQ_H
#define BASE_SEQ_H

#include <stdint.h>

#define SEQ_MASK 0x7fffffffu  /* largest sequence number */
#define MSGNO_MAX 0x1ffffffeu /* largest message number in use; the smallest is 1 */

/* Signed distance from a to b: (b - a) mod 2^31, sign-extended. */
static inline int32_t seq_off(uint32_t a, uint32_t b)
{
    return (int32_t)((b - a) << 1) / 2;
}
static inline uint32_t seq_add(uint32_t a, int64_t n)
{
    return (a + (uint32_t)n) & SEQ_MASK;
}
/* Negative, zero or positive as a is before, equal to or after b. */
static inline int32_t seq_cmp(uint32_t a, uint32_t b)
{
    return seq_off(b, a);
}
/* Number of packets in a..b inclusive, b at or after a. */
static inline uint32_t seq_len(uint32_t a, uint32_t b)
{
    return ((b - a) & SEQ_MASK) + 1;
}
/* Index of the packet `seq`, given any index `near` within 2^30 of it. Negative when `seq` lies
 * before the initial sequence number `isn`. */
static inline int64_t seq_index(uint32_t isn, int64_t near, uint32_t seq)
{
    return near + seq_off(seq_add(isn, near), seq);
}
static inline uint32_t msgno_next(uint32_t n)
{
    return n >= MSGNO_MAX ? 1 : n + 1;
}

#endif
