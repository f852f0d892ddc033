/* Numbers, the log, and what is under the root; see recorder.h. */
#include "recorder.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
    char root[PATH_MAX];
    size_t root_length;
    int log;
    _Atomic uint64_t *counter;
} recorder = {.log = -1};
int recorder_aside = -1;

int high(int fd)
{
    int saved = errno, moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 500);
    if (moved >= 0)
        (void)syscall(SYS_close, fd);
    errno = saved;
    return moved >= 0 ? moved : fd;
}

__attribute__((constructor)) static void set_up(void)
{
    const char *root = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG");
    const char *aside = getenv("RECORD_ASIDE");
    if (!root || !log || !aside || strlen(root) >= sizeof recorder.root)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_RDWR | O_APPEND | O_CLOEXEC, 0);
    int dir = (int)syscall(SYS_openat, AT_FDCWD, aside, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || dir < 0 || page == MAP_FAILED) {
        (void)!syscall(SYS_write, 2, "recorder: cannot record\n", 24);
        _exit(125);
    }
    strcpy(recorder.root, root);
    recorder.root_length = strlen(root);
    recorder.counter = page;
    recorder_aside = high(dir);
    recorder.log = high(fd);
}

uint64_t tick(void)
{
    return recorder.counter ? atomic_fetch_add(recorder.counter, 1) + 1 : 0;
}

void put(struct record *r, const char *name, const char *name2, const void *data, size_t size)
{
    int saved = errno;
    r->pid = (uint32_t)getpid();
    r->name_length = (uint32_t)(name ? strlen(name) : 0);
    r->name2_length = (uint32_t)(name2 ? strlen(name2) : 0);
    r->data_length = (uint32_t)size;
    r->length = (uint32_t)(sizeof *r + r->name_length + r->name2_length + size);
    if (r->kind != ANSWER)
        r->end = tick();
    struct iovec parts[] = {{r, sizeof *r},
                            {(void *)(uintptr_t)name, r->name_length},
                            {(void *)(uintptr_t)name2, r->name2_length},
                            {(void *)(uintptr_t)data, size}};
    if (syscall(SYS_writev, recorder.log, parts, 4) != (long)r->length)
        abort();
    errno = saved;
}

int inside(int fd, uint64_t *inode)
{
    if (recorder.log < 0 || fd < 0)
        return 0;
    int saved = errno, found = 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    struct stat status;
    if (length >= (ssize_t)recorder.root_length &&
        !memcmp(path, recorder.root, recorder.root_length) &&
        (length == (ssize_t)recorder.root_length || path[recorder.root_length] == '/') &&
        !fstat(fd, &status)) {
        *inode = status.st_ino;
        found = 1;
    }
    errno = saved;
    return found;
}

void locate(int at, const char *path, struct place *place)
{
    place->inside = 0;
    place->directory = 0;
    if (recorder.log < 0 || !path)
        return;
    int saved = errno;
    char above[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t last = length;
    while (last > 0 && path[last - 1] != '/')
        last--;
    if (length - last <= NAME_MAX && last < sizeof above) {
        memcpy(place->name, path + last, length - last);
        place->name[length - last] = 0;
        if (!last) {
            strcpy(above, ".");
        } else {
            memcpy(above, path, last);
            above[last] = 0;
        }
        int fd = (int)syscall(SYS_openat, at, above, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        if (fd >= 0) {
            place->inside = inside(fd, &place->directory);
            (void)syscall(SYS_close, fd);
        }
    }
    errno = saved;
}

uint64_t inode_at(int at, const char *path)
{
    struct stat status;
    int saved = errno;
    uint64_t found = fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) ? 0 : status.st_ino;
    errno = saved;
    return found;
}

void strange(const char *what, uint64_t inode)
{
    struct record r = {.kind = STRANGE, .begin = tick(), .inode = inode};
    put(&r, what, NULL, NULL, 0);
}
