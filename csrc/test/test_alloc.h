/* Allocations of the core that fail on purpose, and whether it gives everything back. */
#ifndef TEST_ALLOC_H
#define TEST_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The n-th allocation (from 1) that this thread makes from now on fails; 0 = none. */
void alloc_fail(int64_t n);
/* Has it been reached? */
bool alloc_failed(void);
/* Allocations of this thread until one fails: what to go on with after a pause. < 0 = it has. */
int64_t alloc_left(void);
/* All that this thread makes fail, until it is told otherwise. */
void alloc_fail_all(bool on);
/* The same for every thread. */
void alloc_fail_everywhere(bool on);
/* From now on blocks that hold these bytes when they are given back are counted, until `len` is 0;
 * how many there were. */
void alloc_watch(const void *bytes, size_t len);
int64_t alloc_watched(void);
/* Blocks that the core and the tests hold now, of all threads. */
int64_t alloc_held(void);

#endif
