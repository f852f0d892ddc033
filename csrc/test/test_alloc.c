/* The linker puts these around what the core and the tests call (--wrap in the Makefile). */
#include "test_alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

static atomic_int_least64_t held;
static _Thread_local int64_t left; /* allocations until one fails, < 0 = it has */
static _Thread_local bool all;
static atomic_bool everywhere;
static const void *watch;
static size_t watch_len;
static int64_t watched;

void alloc_fail(int64_t n)
{
    left = n;
}

bool alloc_failed(void)
{
    return left < 0;
}

int64_t alloc_left(void)
{
    return left;
}

void alloc_fail_all(bool on)
{
    all = on;
}

void alloc_fail_everywhere(bool on)
{
    atomic_store(&everywhere, on);
}

void alloc_watch(const void *bytes, size_t len)
{
    watch = bytes;
    watch_len = len;
    watched = 0;
}

int64_t alloc_watched(void)
{
    return watched;
}

int64_t alloc_held(void)
{
    return atomic_load(&held);
}

static bool fails(void)
{
    if (all || atomic_load(&everywhere))
        return true;
    if (left <= 0 || --left > 0)
        return false;
    left = -1;
    return true;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&held, 1);
    return p;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t each)
{
    return fails() ? NULL : counted(__real_calloc(n, each));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    return p ? __real_realloc(p, n) : counted(__real_realloc(NULL, n));
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : counted(__real_aligned_alloc(align, n));
}

void __wrap_free(void *p)
{
    if (p)
        atomic_fetch_sub(&held, 1);
    if (p && watch_len)
        watched += memmem(p, malloc_usable_size(p), watch, watch_len) != NULL;
    __real_free(p);
}
