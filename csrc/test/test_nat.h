/* A NAT on loopback that forgets its mapping: see nat. */
#ifndef TEST_NAT_H
#define TEST_NAT_H

#include "test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* What is sent to its front goes to the server from one of two ports, and back. */
typedef struct nat {
    int front, back[2];
    _Atomic int cur, stop;
    struct sockaddr_in client, server;
    pthread_t thread;
    uint16_t port; /* of its front */
} nat;

static inline int nat_udp(struct sockaddr_in *at)
{
    socklen_t n = sizeof *at;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), buf = 4 << 20;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, n) == 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)at, &n), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf);
    return fd;
}

static inline void *nat_main(void *arg)
{
    nat *t = arg;
    uint8_t pkt[2048];
    while (!atomic_load(&t->stop)) {
        int cur = atomic_load(&t->cur);
        struct pollfd pf[2] = {{.fd = t->front, .events = POLLIN},
                               {.fd = t->back[cur], .events = POLLIN}};
        if (poll(pf, 2, 20) <= 0)
            continue;
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        ssize_t n;
        for (int i = 0; i < 64; i++) {
            n = recvfrom(t->front, pkt, sizeof pkt, MSG_DONTWAIT, (struct sockaddr *)&from, &len);
            if (n <= 0)
                break;
            t->client = from;
            sendto(t->back[cur], pkt, (size_t)n, 0, (struct sockaddr *)&t->server,
                   sizeof t->server);
        }
        for (int i = 0; i < 64; i++) {
            n = recv(t->back[cur], pkt, sizeof pkt, MSG_DONTWAIT);
            if (n <= 0)
                break;
            sendto(t->front, pkt, (size_t)n, 0, (struct sockaddr *)&t->client, sizeof t->client);
        }
    }
    return NULL;
}

static inline void nat_forget(void *arg)
{
    atomic_store(&((nat *)arg)->cur, 1);
}

static inline nat *nat_open(uint16_t server)
{
    nat *t = calloc(1, sizeof *t);
    struct sockaddr_in at;
    CHECK(t);
    for (int i = 0; i < 2; i++)
        t->back[i] = nat_udp(&at);
    t->front = nat_udp(&at);
    t->port = ntohs(at.sin_port);
    t->server = (struct sockaddr_in){.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                     .sin_port = htons(server)};
    CHECK_INT(pthread_create(&t->thread, NULL, nat_main, t), 0);
    return t;
}

/* Where the server sees its client come from, before and after. */
static inline uint16_t nat_port(const nat *t, int after)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    CHECK_INT(getsockname(t->back[after], (struct sockaddr *)&at, &len), 0);
    return ntohs(at.sin_port);
}

static inline void nat_close(nat *t)
{
    atomic_store(&t->stop, 1);
    pthread_join(t->thread, NULL);
    close(t->front);
    close(t->back[0]);
    close(t->back[1]);
    free(t);
}

#endif
