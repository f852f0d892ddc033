/* Runner with a table of named cases. `csrc/build/test` runs all, `test NAME...` those whose name
 * starts with NAME, `test -l` lists. A failing check prints file, line and both values. Cases that
 * measure time (TEST_ALONE) want a machine without other load: --alone runs only those, --together
 * all others. */
#ifndef TEST_H
#define TEST_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_case {
    const char *name;
    void (*fn)(void);
    bool alone; /* it measures time */
    struct test_case *next;
};
void test_register(struct test_case *c);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A demand that does not hold: the case fails; with TEST_KEEP_GOING set the run goes on to print
 * what else there is, and fails at its end. */
void test_missed(const char *file, int line, const char *what);
/* --seed=N of the command line, else a fixed default; printed when a case fails. */
extern uint64_t test_seed;
/* --scale=PERCENT: how much of a long case to run (sanitizer builds use 10). Default 100. */
extern int test_scale;

#define TEST_CASE(id, alone)                                                \
    static void test_##id(void);                                            \
    static struct test_case test_case_##id = {#id, test_##id, alone, NULL}; \
    __attribute__((constructor)) static void test_reg_##id(void)            \
    {                                                                       \
        test_register(&test_case_##id);                                     \
    }                                                                       \
    static void test_##id(void)
#define TEST(id) TEST_CASE(id, false)
#define TEST_ALONE(id) TEST_CASE(id, true)

#define CHECK(cond)                                     \
    do {                                                \
        if (!(cond))                                    \
            test_fail(__FILE__, __LINE__, "%s", #cond); \
    } while (0)
#define DEMAND(cond)                                \
    do {                                            \
        if (!(cond))                                \
            test_missed(__FILE__, __LINE__, #cond); \
    } while (0)
#define CHECK_INT(a, b)                                                                            \
    do {                                                                                           \
        int64_t a_ = (int64_t)(a), b_ = (int64_t)(b);                                              \
        if (a_ != b_)                                                                              \
            test_fail(__FILE__, __LINE__, "%s = %" PRId64 ", want %s = %" PRId64, #a, a_, #b, b_); \
    } while (0)
#define CHECK_MEM(a, b, n)                                                                         \
    do {                                                                                           \
        if (memcmp((a), (b), (n)) != 0)                                                            \
            test_fail(__FILE__, __LINE__, "%s differs from %s in %zu bytes", #a, #b, (size_t)(n)); \
    } while (0)

#endif
