/* Allocations of the core that fail on purpose, and whether it gives everything back. */
#ifndef TEST_ALLOC_H
#define TEST_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* The n-th allocation (from 1) that this thread makes from now on fails; 0 = none. */
void alloc_fail(int64_t n);
/* Has it been reached? */
bool alloc_failed(void);
/* Blocks that the core and the tests hold now, of all threads. */
int64_t alloc_held(void);

#endif
