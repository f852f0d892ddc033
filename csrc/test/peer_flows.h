/* What peers of the benchmarks over TCP share: one command line, one listener, N connections.
 * PEER_NAME is the program's. */
#ifndef PEER_FLOWS_H
#define PEER_FLOWS_H

#include "bench_util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 256 * 1024, MAX_FLOWS = 64 };

static inline _Noreturn void die(const char *what)
{
    fprintf(stderr, PEER_NAME ": %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline struct sockaddr_in address(const char *host, const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        errno = EINVAL;
        die("host");
    }
    return a;
}

static inline int listening(const char *port)
{
    struct sockaddr_in a = address("0.0.0.0", port);
    int one = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, MAX_FLOWS) < 0)
        die("listen");
    return s;
}

static inline int accepted(int listener)
{
    int c = accept(listener, NULL, NULL);
    if (c < 0)
        die("accept");
    return c;
}

/* A connection to who may begin to listen only now; `prepare` (or NULL) sets what has to be set
 * before. */
static inline int connected(const struct sockaddr_in *a, void (*prepare)(int s))
{
    for (int tries = 0;; tries++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            die("socket");
        if (prepare)
            prepare(s);
        if (connect(s, (const struct sockaddr *)a, sizeof *a) == 0)
            return s;
        close(s);
        if (tries == 50)
            die("connect");
        usleep(50000);
    }
}

/* What has not left yet is of no use to anybody: the time is over. */
static inline void drop(int s)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(s);
}

/* "recv PORT" or "send HOST PORT SECONDS", with --flows N and what `option` (or NULL) takes of a
 * name and its value. False: the command line is wrong. */
struct flows_args {
    bool recv;
    const char *host, *port;
    double seconds;
};
static inline bool flows_args(int argc, char **argv, int *flows,
                              bool (*option)(const char *name, const char *value),
                              struct flows_args *out)
{
    const char *pos[4] = {0};
    int n = 0;
    for (int i = 1; i < argc; i++) {
        bool has = i + 1 < argc;
        if (strcmp(argv[i], "--flows") == 0 && has)
            *flows = atoi(argv[++i]);
        else if (has && option && option(argv[i], argv[i + 1]))
            i++;
        else if (argv[i][0] != '-' && n < 4)
            pos[n++] = argv[i];
        else
            return false;
    }
    out->recv = n == 2 && strcmp(pos[0], "recv") == 0;
    bool send = n == 4 && strcmp(pos[0], "send") == 0;
    out->host = out->recv ? "0.0.0.0" : pos[1];
    out->port = out->recv ? pos[1] : pos[2];
    out->seconds = send ? atof(pos[3]) : 0;
    return (out->recv || send) && *flows >= 1 && *flows <= MAX_FLOWS;
}

#endif
