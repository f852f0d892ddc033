/* The loops' clock, set by a test: what takes a minute is over at once. */
#ifndef TEST_CLOCK_H
#define TEST_CLOCK_H

#include <stdint.h>

/* All loops' time stands still at `us` of CLOCK_MONOTONIC; 0 = it runs again. A loop that sleeps
 * has to be woken to see it. */
void clock_stop(int64_t us);

#endif
