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

static int missed;

void test_missed(const char *file, int line, const char *what)
{
    if (!getenv("TEST_KEEP_GOING"))
        test_fail(file, line, "%s", what);
    fprintf(stderr, "MISSED %s: %s:%d: %s\n", running, file, line, what);
    missed++;
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
    int ran = 0, names = 1; /* names are moved to the front: options may stand anywhere */
    bool list = false, alone = true, together = true;
    for (int k = 1; k < argc; k++) {
        if (argv[k][0] != '-')
            argv[names++] = argv[k];
        else if (strcmp(argv[k], "-l") == 0)
            list = true;
        else if (strcmp(argv[k], "--alone") == 0)
            together = false;
        else if (strcmp(argv[k], "--together") == 0)
            alone = false;
        else if (strncmp(argv[k], "--seed=", 7) == 0)
            test_seed = strtoull(argv[k] + 7, NULL, 10);
        else if (strncmp(argv[k], "--scale=", 8) == 0)
            test_scale = atoi(argv[k] + 8);
        else {
            fprintf(
                stderr,
                "usage: %s [-l] [--alone | --together] [--seed=N] [--scale=PERCENT] [NAME...]\n",
                argv[0]);
            return 2;
        }
    }
    for (struct test_case *c = cases; c; c = c->next) {
        if (!(c->alone ? alone : together) || !wanted(c->name, names - 1, argv + 1))
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
    if (missed > 0)
        printf("%d ran, %d demands missed\n", ran, missed);
    else
        printf("%d passed, 0 failed\n", ran);
    return missed > 0;
}
