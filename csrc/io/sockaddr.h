/* udt_addr <-> sockaddr. IPv4 peers of an IPv6 socket are v4-mapped for the kernel only. */
#ifndef IO_SOCKADDR_H
#define IO_SOCKADDR_H

#include "udt_types.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* An address as callers write it, as engines and the kernel's answers know it: IPv4 where it is
 * v4-mapped, a scope only where there can be one, nothing behind four bytes. */
static inline udt_addr sockaddr_plain(const udt_addr *a)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    udt_addr plain = {.family = a->family, .port = a->port};
    if (a->family == 6 && memcmp(a->ip, mapped, sizeof mapped) == 0) {
        plain.family = 4;
        memcpy(plain.ip, a->ip + 12, 4);
    } else if (a->family == 6) {
        memcpy(plain.ip, a->ip, 16);
        plain.scope = a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80 ? a->scope : 0;
    } else {
        memcpy(plain.ip, a->ip, 4);
    }
    return plain;
}

static inline socklen_t sockaddr_put(struct sockaddr_storage *ss, const udt_addr *a, bool v6)
{
    if (!v6) {
        struct sockaddr_in *in = (struct sockaddr_in *)ss;
        memset(in, 0, sizeof *in);
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, a->ip, 4);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;
    memset(in6, 0, sizeof *in6);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(a->port);
    if (a->family == 4) {
        in6->sin6_addr.s6_addr[10] = in6->sin6_addr.s6_addr[11] = 0xff;
        memcpy(in6->sin6_addr.s6_addr + 12, a->ip, 4);
    } else {
        memcpy(&in6->sin6_addr, a->ip, 16);
        in6->sin6_scope_id = a->scope;
    }
    return sizeof *in6;
}

/* False for anything but IPv4 and IPv6. */
static inline bool sockaddr_get(const struct sockaddr_storage *ss, udt_addr *a)
{
    memset(a, 0, sizeof *a);
    if (ss->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)ss;
        a->family = 4;
        a->port = ntohs(in->sin_port);
        memcpy(a->ip, &in->sin_addr, 4);
        return true;
    }
    if (ss->ss_family != AF_INET6)
        return false;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)ss;
    a->port = ntohs(in6->sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        a->family = 4;
        memcpy(a->ip, in6->sin6_addr.s6_addr + 12, 4);
    } else {
        a->family = 6;
        memcpy(a->ip, &in6->sin6_addr, 16);
        a->scope = IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? in6->sin6_scope_id : 0;
    }
    return true;
}

#endif
