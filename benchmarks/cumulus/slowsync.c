/* A preloaded library that makes syncs as slow as a disk's: fsync, fdatasync, sync_file_range and
 * syncfs take at least SLOWSYNC_US microseconds (5000), and are counted by kind in the file
 * SLOWSYNC_COUNT, four numbers of 64 bits in the machine's order, which all processes share. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum kind { FSYNC, FDATASYNC, SYNC_FILE_RANGE, SYNCFS, KINDS };

int fsync(int fd);
int fdatasync(int fd);
int syncfs(int fd);
int sync_file_range(int fd, off64_t offset, off64_t n, unsigned flags);

static struct {
    int (*fsync)(int);
    int (*fdatasync)(int);
    int (*syncfs)(int);
    int (*sync_file_range)(int, off64_t, off64_t, unsigned);
    _Atomic uint64_t *count; /* NULL = not counted */
    int64_t least_us;
} self;

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static void map_counts(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *found;
    if (fd < 0 || ftruncate(fd, KINDS * sizeof(uint64_t)))
        abort();
    found = mmap(NULL, KINDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found == MAP_FAILED)
        abort();
    close(fd);
    self.count = found;
}

__attribute__((constructor)) static void begin(void)
{
    const char *least = getenv("SLOWSYNC_US"), *path = getenv("SLOWSYNC_COUNT");
    *(void **)&self.fsync = next("fsync");
    *(void **)&self.fdatasync = next("fdatasync");
    *(void **)&self.syncfs = next("syncfs");
    *(void **)&self.sync_file_range = next("sync_file_range");
    self.least_us = least ? atoll(least) : 5000;
    if (path && *path)
        map_counts(path);
}

static struct timespec enter(enum kind kind)
{
    struct timespec at;
    if (self.count)
        self.count[kind]++;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += self.least_us / 1000000;
    at.tv_nsec += self.least_us % 1000000 * 1000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static int leave(const struct timespec *until, int status)
{
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, until, NULL))
        ;
    return status;
}

int fsync(int fd)
{
    struct timespec until = enter(FSYNC);
    return leave(&until, self.fsync(fd));
}

int fdatasync(int fd)
{
    struct timespec until = enter(FDATASYNC);
    return leave(&until, self.fdatasync(fd));
}

int syncfs(int fd)
{
    struct timespec until = enter(SYNCFS);
    return leave(&until, self.syncfs(fd));
}

int sync_file_range(int fd, off64_t offset, off64_t n, unsigned flags)
{
    struct timespec until = enter(SYNC_FILE_RANGE);
    return leave(&until, self.sync_file_range(fd, offset, n, flags));
}
