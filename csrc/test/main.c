#include "test.h"

#include <stdarg.h>
#include <time.h>

uint64_t test_seed = 20260101;
int test_scale = 100;
static struct test_case *cases;
static const char *running = "(none)";

void test_register(struct test_case *c)
{
    struct test_case **at = &cases;
    while (*at && strcmp((*at)->name, c->name) < 0)
        at = &(*at)->next;
    c->next = *at;
    *at = c;
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "FAIL %s: %s:%d: ", running, file, line);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, " (--seed=%" PRIu64 ")\n", test_seed);
    va_end(ap);
    fflush(NULL);
    abort();
}

static bool wanted(const char *name, int n, char **prefixes)
{
    for (int i = 0; i < n; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return n == 0;
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    int i = 1, ran = 0;
    bool list = false;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "-l") == 0)
            list = true;
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            test_seed = strtoull(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "--scale=", 8) == 0)
            test_scale = atoi(argv[i] + 8);
        else {
            fprintf(stderr, "usage: %s [-l] [--seed=N] [--scale=PERCENT] [NAME...]\n", argv[0]);
            return 2;
        }
    }
    for (struct test_case *c = cases; c; c = c->next) {
        if (!wanted(c->name, argc - i, argv + i))
            continue;
        if (list) {
            puts(c->name);
            continue;
        }
        running = c->name;
        double start = cpu_seconds();
        c->fn();
        printf("ok %s (%.2f s CPU)\n", c->name, cpu_seconds() - start);
        fflush(stdout);
        ran++;
    }
    if (list)
        return 0;
    if (ran == 0) {
        fprintf(stderr, "no case matches\n");
        return 2;
    }
    printf("%d passed, 0 failed\n", ran);
    return 0;
}
