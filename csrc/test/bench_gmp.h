/* What the programs share that measure messages: nanoseconds, processors, sockets of the loopback.
 * BENCH_NAME is the program's. */
#ifndef BENCH_GMP_H
#define BENCH_GMP_H

#include "udt.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline _Noreturn void die(const char *what, int64_t err)
{
    fprintf(stderr, BENCH_NAME ": %s: %s\n", what, err ? udt_err_text((int)err) : strerror(errno));
    exit(1);
}

static inline int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (cpu >= 0 && sched_setaffinity(0, sizeof set, &set) < 0)
        die("sched_setaffinity", 0);
}

static inline int bound(int type, uint16_t *port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&in, len) < 0 ||
        getsockname(fd, (struct sockaddr *)&in, &len) < 0)
        die("socket", 0);
    *port = ntohs(in.sin_port);
    return fd;
}

static inline int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

#endif
