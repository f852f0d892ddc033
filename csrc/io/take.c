/* A body from its connection into its file, with its sums: one thread, which waits for nobody. */
#include "udt.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE = 256 << 10,  /* bytes that are hashed while the processor's cache has them */
    AWAITED = 128 << 10 /* for which the kernel wakes who waits, if so many are still to come */
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Be woken for so many bytes. A socket that cannot be told so wakes for less. */
static void await(int from, int bytes)
{
    setsockopt(from, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

/* Whether something came within so many microseconds. */
static bool wait_for(int from, int64_t us)
{
    struct pollfd fd = {.fd = from, .events = POLLIN};
    struct timespec most = {us / 1000000, us % 1000000 * 1000};
    int n = us > 0 ? ppoll(&fd, 1, &most, NULL) : 0;
    return n > 0 || (n < 0 && errno == EINTR);
}

/* All of it, or the errno of what failed. */
static int write_all(int to, const uint8_t *data, size_t len)
{
    while (len) {
        ssize_t n = write(to, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : EIO;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

int udt_take(int from, int to, udt_md5 *sum, uint8_t *room, size_t size, int64_t moment_us,
             size_t *count)
{
    size_t got = 0, hashed = 0;
    int64_t end = -1;
    int awaited = 1;
    while (got < size) {
        size_t most = size - got < PIECE ? size - got : PIECE;
        ssize_t n = recv(from, room + got, most, MSG_DONTWAIT);
        bool nothing = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0)
            got += (size_t)n;
        else if (!nothing)
            break; /* the end, or an error: whoever reads next hears of it */
        if (got - hashed >= PIECE || (nothing && got > hashed)) {
            udt_md5_update(sum, room + hashed, got - hashed);
            hashed = got;
            continue; /* more may have come meanwhile */
        }
        if (!nothing)
            continue;
        if (awaited != (size - got >= AWAITED ? AWAITED : 1))
            await(from, awaited = size - got >= AWAITED ? AWAITED : 1);
        if (end < 0)
            end = now_us() + moment_us;
        if (!wait_for(from, end - now_us()))
            break;
    }
    if (awaited != 1)
        await(from, 1);
    udt_md5_update(sum, room + hashed, got - hashed);
    *count = got;
    return write_all(to, room, got);
}
