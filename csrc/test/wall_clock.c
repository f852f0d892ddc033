/* A preloaded library that moves the wall clock of a whole tree of processes: what CLOCK_REALTIME
 * says is WALL_CLOCK's number of nanoseconds ahead, a file of 64 bits in the machine's order that a
 * test changes while they run. CLOCK_MONOTONIC and the files' times stay as they are. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define SHOWN __attribute__((visibility("default")))

static int (*real)(clockid_t, struct timespec *);
static const _Atomic int64_t *ahead_ns;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("WALL_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead_ns, PROT_READ, MAP_SHARED, fd, 0);
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!real || found == MAP_FAILED)
        abort();
    close(fd);
    ahead_ns = found;
}

SHOWN int clock_gettime(clockid_t id, struct timespec *ts)
{
    int result = real(id, ts);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)ts->tv_sec * SECOND + ts->tv_nsec + *ahead_ns;
        ts->tv_sec = (time_t)(ns / SECOND);
        ts->tv_nsec = (long)(ns % SECOND);
    }
    return result;
}

SHOWN time_t time(time_t *out)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out)
        *out = ts.tv_sec;
    return ts.tv_sec;
}

SHOWN int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec ts;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = (suseconds_t)(ts.tv_nsec / 1000);
    return 0;
}
