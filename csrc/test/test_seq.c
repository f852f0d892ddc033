/* Sequence arithmetic against 64-bit truth, above all at the wrap. */
#include "base/seq.h"
#include "base/timerq.h"
#include "sim/net.h"
#include "test.h"

TEST(seq_arithmetic_agrees_with_wide_integers)
{
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    for (int i = 0; i < 200000; i++) {
        uint64_t a = sim_rng_u64(&r) >> 20, b;
        if (i & 1) /* near the wrap */
            a = ((a >> 10) << 31) - 5 + sim_rng_below(&r, 10);
        int64_t d = (int64_t)sim_rng_below(&r, 1u << 30) - (1 << 29);
        if (i & 2)
            d = (int64_t)sim_rng_below(&r, 20) - 10;
        if ((int64_t)a + d < 0)
            continue;
        b = (uint64_t)((int64_t)a + d);
        uint32_t sa = (uint32_t)a & SEQ_MASK, sb = (uint32_t)b & SEQ_MASK;
        CHECK_INT(seq_off(sa, sb), d);
        CHECK_INT(seq_add(sa, d), sb);
        CHECK((seq_cmp(sa, sb) < 0) == (d > 0));
        if (d >= 0)
            CHECK_INT(seq_len(sa, sb), d + 1);
        uint32_t isn = (uint32_t)sim_rng_u64(&r) & SEQ_MASK;
        CHECK_INT(seq_index(isn, (int64_t)a, seq_add(isn, (int64_t)b)), (int64_t)b);
    }
    CHECK_INT(seq_add(SEQ_MASK, 1), 0);
    CHECK_INT(seq_off(SEQ_MASK, 0), 1);
    CHECK_INT(seq_index(7, 0, 5), -2);
}

TEST(seq_message_numbers_skip_zero_and_the_last)
{
    CHECK_INT(msgno_next(1), 2);
    CHECK_INT(msgno_next(MSGNO_MAX - 1), MSGNO_MAX);
    CHECK_INT(msgno_next(MSGNO_MAX), 1);
}

TEST(timerq_pops_in_order_like_a_sorted_array)
{
    enum { N = 300 };
    timerq q;
    timerq_node node[N];
    sim_rng r;
    sim_rng_seed(&r, test_seed);
    timerq_init(&q);
    for (int i = 0; i < N; i++) {
        CHECK(timerq_reserve(&q));
        timerq_node_init(&node[i]);
    }
    for (int step = 0; step < 50000; step++) {
        int i = (int)sim_rng_below(&r, N);
        timerq_set(&q, &node[i],
                   sim_rng_below(&r, 4) ? (udt_time)sim_rng_below(&r, 1000) : UDT_NEVER);
        udt_time min = UDT_NEVER;
        for (int k = 0; step % 16 == 0 && k < N; k++)
            min = node[k].at < min ? node[k].at : min;
        timerq_node *first = timerq_first(&q);
        if (step % 16 == 0)
            CHECK_INT(first ? first->at : UDT_NEVER, min);
    }
    for (int i = 0; i < N; i++) {
        timerq_set(&q, &node[i], UDT_NEVER);
        timerq_release(&q);
    }
    CHECK(!timerq_first(&q));
    timerq_fini(&q);
}
