/* Names of files and directories; see recorder.h. */
#include "recorder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Changes by path are not understood. */
static void by_path(int at, const char *path, const char *what)
{
    struct place place;
    locate(at, path, &place);
    if (place.inside)
        strange(what, place.directory);
}

API int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
    by_path(AT_FDCWD, path, "setxattr");
    return (int)syscall(SYS_setxattr, path, name, value, size, flags);
}

API int utimensat(int at, const char *path, const struct timespec times[2], int flags)
{
    by_path(at, path, "utimensat");
    return (int)syscall(SYS_utimensat, at, path, times, flags);
}

API int truncate64(const char *path, off64_t size)
{
    by_path(AT_FDCWD, path, "truncate");
    return (int)syscall(SYS_truncate, path, size);
}

static int open_any(int at, const char *path, int flags, mode_t mode)
{
    struct place place = {.inside = 0};
    int creates = (flags & O_CREAT) != 0, empties = (flags & O_TRUNC) != 0, there = 0;
    int nameless = (flags & O_TMPFILE) == O_TMPFILE;
    uint64_t begin = 0, inode = 0;
    if (creates || empties) {
        locate(at, path, &place);
        if (place.inside) {
            begin = tick();
            there = inode_at(at, path) != 0;
        }
    }
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (fd < 0 || recorder_aside < 0 || !(place.inside || nameless) || !inside(fd, &inode))
        return fd;
    int saved = errno;
    if (nameless || (creates && !there)) {
        char link[64], number[32];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        snprintf(number, sizeof number, "%llu", (unsigned long long)inode);
        if (!nameless && linkat(AT_FDCWD, link, recorder_aside, number, AT_SYMLINK_FOLLOW) &&
            errno != EEXIST)
            abort();
    }
    if (creates && !there) {
        struct record r = {
            .kind = CREATE, .begin = begin, .inode = inode, .directory = place.directory};
        put(&r, place.name, NULL, NULL, 0);
    } else if (empties && there) {
        struct record r = {.kind = TRUNCATE, .begin = begin, .inode = inode};
        put(&r, NULL, NULL, NULL, 0);
    }
    errno = saved;
    return fd;
}

#define MODE(flags, mode)                      \
    do {                                       \
        if ((flags) & (O_CREAT | O_TMPFILE)) { \
            va_list rest;                      \
            va_start(rest, flags);             \
            mode = va_arg(rest, mode_t);       \
            va_end(rest);                      \
        }                                      \
    } while (0)

API int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

API int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

API int openat64(int at, const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return open_any(at, path, flags, mode);
}

API int openat(int at, const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return open_any(at, path, flags, mode);
}

API int mkdirat(int at, const char *path, mode_t mode)
{
    struct place place;
    locate(at, path, &place);
    struct record r = {
        .kind = MKDIR, .begin = place.inside ? tick() : 0, .directory = place.directory};
    int failed = (int)syscall(SYS_mkdirat, at, path, mode);
    if (place.inside && !failed) {
        r.inode = inode_at(at, path);
        put(&r, place.name, NULL, NULL, 0);
    }
    return failed;
}

API int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

static int rename_any(int at, const char *path, int at2, const char *path2, unsigned flags)
{
    struct place from, to;
    locate(at, path, &from);
    locate(at2, path2, &to);
    struct record r = {.kind = RENAME, .directory = from.directory, .directory2 = to.directory};
    if (from.inside || to.inside) {
        r.begin = tick();
        r.inode = inode_at(at, path);
    }
    int failed = (int)syscall(SYS_renameat2, at, path, at2, path2, flags);
    if (failed || !(from.inside || to.inside))
        return failed;
    if (from.inside && to.inside && !(flags & ~(unsigned)RENAME_NOREPLACE))
        put(&r, from.name, to.name, NULL, 0);
    else
        strange("rename", r.inode);
    return failed;
}

API int renameat(int at, const char *path, int at2, const char *path2)
{
    return rename_any(at, path, at2, path2, 0);
}

API int rename(const char *path, const char *path2)
{
    return rename_any(AT_FDCWD, path, AT_FDCWD, path2, 0);
}

API int renameat2(int at, const char *path, int at2, const char *path2, unsigned flags)
{
    return rename_any(at, path, at2, path2, flags);
}

API int linkat(int at, const char *path, int at2, const char *path2, int flags)
{
    struct place to = {.inside = 0};
    if (at2 != recorder_aside)
        locate(at2, path2, &to);
    struct record r = {.kind = LINK, .begin = to.inside ? tick() : 0, .directory2 = to.directory};
    int failed = (int)syscall(SYS_linkat, at, path, at2, path2, flags);
    if (to.inside && !failed) {
        char number[32];
        r.inode = inode_at(at2, path2);
        snprintf(number, sizeof number, "%llu", (unsigned long long)r.inode);
        (void)syscall(SYS_linkat, at2, path2, recorder_aside, number, 0);
        put(&r, NULL, to.name, NULL, 0);
    }
    return failed;
}

API int link(const char *path, const char *path2)
{
    return linkat(AT_FDCWD, path, AT_FDCWD, path2, 0);
}

API int unlinkat(int at, const char *path, int flags)
{
    struct place place;
    locate(at, path, &place);
    struct record r = {.kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK, .directory = place.directory};
    if (place.inside) {
        r.begin = tick();
        r.inode = inode_at(at, path);
        if (r.kind == RMDIR) /* left open, so that its inode number is not used again */
            (void)high((int)syscall(SYS_openat, at, path, O_PATH | O_CLOEXEC, 0));
    }
    int failed = (int)syscall(SYS_unlinkat, at, path, flags);
    if (place.inside && !failed)
        put(&r, place.name, NULL, NULL, 0);
    return failed;
}

API int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

API int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}
