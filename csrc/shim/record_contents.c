/* Contents of files, syncs, answers; see recorder.h. */
#include "recorder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

static void wrote(uint64_t begin, uint64_t inode, int64_t offset, const void *data, size_t size)
{
    struct record r = {.kind = WRITE, .begin = begin, .inode = inode, .offset = offset};
    put(&r, NULL, NULL, data, size);
}

/* What the kernel put there by itself is read back. */
static void wrote_by_kernel(uint64_t begin, int fd, uint64_t inode, int64_t offset, size_t size)
{
    char *data = malloc(size ? size : 1);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readable = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (!data || readable < 0 || pread(readable, data, size, offset) != (ssize_t)size)
        abort();
    (void)syscall(SYS_close, readable);
    wrote(begin, inode, offset, data, size);
    free(data);
}

static void answer(const void *data, size_t size)
{
    if (recorder_aside < 0 || size < 12 || memcmp(data, "HTTP/1.1 2", 10))
        return;
    struct record r = {.kind = ANSWER};
    r.begin = r.end = tick();
    put(&r, NULL, NULL, data, size < HEAD_BYTES ? size : HEAD_BYTES);
}

API ssize_t write(int fd, const void *data, size_t size)
{
    uint64_t inode = 0, begin = 0;
    int ours = inside(fd, &inode);
    if (ours)
        begin = tick();
    else
        answer(data, size);
    ssize_t done = syscall(SYS_write, fd, data, size);
    if (ours && done > 0)
        wrote(begin, inode, lseek(fd, 0, SEEK_CUR) - done, data, (size_t)done);
    return done;
}

static ssize_t vector(int fd, const struct iovec *parts, int count, off_t offset, int positioned,
                      int flags)
{
    uint64_t inode = 0, begin = 0;
    int ours = inside(fd, &inode);
    if (ours)
        begin = tick();
    else if (count > 0)
        answer(parts[0].iov_base, parts[0].iov_len);
    ssize_t done;
    if (!positioned)
        done = syscall(SYS_writev, fd, parts, count);
    else
        done = syscall(SYS_pwritev2, fd, parts, count, offset, (long)0, flags);
    if (!ours || done <= 0)
        return done;
    if (!positioned || offset == -1)
        offset = lseek(fd, 0, SEEK_CUR) - done;
    ssize_t left = done;
    for (int i = 0; i < count && left > 0; i++) {
        size_t step = parts[i].iov_len < (size_t)left ? parts[i].iov_len : (size_t)left;
        wrote(begin, inode, offset, parts[i].iov_base, step);
        offset += (off_t)step;
        left -= (ssize_t)step;
    }
    return done;
}

API ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return vector(fd, parts, count, 0, 0, 0);
}

API ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    return vector(fd, parts, count, offset, 1, 0);
}

API ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    return vector(fd, parts, count, offset, 1, flags);
}

API ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    uint64_t inode = 0, begin = 0;
    int ours = inside(fd, &inode);
    if (ours)
        begin = tick();
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, offset);
    if (ours && done > 0)
        wrote(begin, inode, offset, data, (size_t)done);
    return done;
}

/* The kernel copies: `number` of the call, whose target is `out` at `*out_at` or at its position.
 */
static ssize_t copied(int out, const off64_t *out_at, long number, const long arguments[6])
{
    uint64_t inode = 0, begin = 0;
    int ours = inside(out, &inode);
    off64_t offset = 0;
    if (ours) {
        begin = tick();
        offset = out_at ? *out_at : lseek64(out, 0, SEEK_CUR);
    }
    ssize_t done = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                           arguments[4], arguments[5]);
    if (ours && done > 0)
        wrote_by_kernel(begin, out, inode, offset, (size_t)done);
    return done;
}

API ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t size,
                            unsigned flags)
{
    const long arguments[] = {in, (long)in_at, out, (long)out_at, (long)size, (long)flags};
    return copied(out, out_at, SYS_copy_file_range, arguments);
}

API ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t size, unsigned flags)
{
    const long arguments[] = {in, (long)in_at, out, (long)out_at, (long)size, (long)flags};
    return copied(out, out_at, SYS_splice, arguments);
}

API ssize_t sendfile64(int out, int in, off64_t *in_at, size_t size)
{
    const long arguments[6] = {out, in, (long)in_at, (long)size};
    return copied(out, NULL, SYS_sendfile, arguments);
}

API int ftruncate64(int fd, off64_t size)
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {
        .kind = TRUNCATE, .begin = ours ? tick() : 0, .inode = inode, .offset = size};
    int failed = (int)syscall(SYS_ftruncate, fd, size);
    if (ours && !failed)
        put(&r, NULL, NULL, NULL, 0);
    return failed;
}

API int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {.kind = TRUNCATE, .begin = ours ? tick() : 0, .inode = inode};
    int failed = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (!ours || failed || mode == FALLOC_FL_KEEP_SIZE)
        return failed;
    struct stat status;
    if (mode || fstat(fd, &status)) {
        strange("fallocate", inode);
    } else {
        r.offset = status.st_size;
        put(&r, NULL, NULL, NULL, 0);
    }
    return failed;
}

API int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    return fallocate64(fd, 0, offset, size) ? errno : 0;
}

/* SQLite's index of its log is shared memory, made anew after a crash; no other file may be written
 * so. */
API void *mmap64(void *where, size_t size, int prot, int flags, int fd, off64_t offset)
{
    uint64_t inode = 0;
    if ((flags & MAP_SHARED) && (prot & PROT_WRITE) && inside(fd, &inode)) {
        char link[64], path[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 4 || memcmp(path + length - 4, "-shm", 4))
            strange("mmap", inode);
    }
    return (void *)syscall(SYS_mmap, where, size, prot, flags, fd, offset);
}

API int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {.kind = SET_XATTR, .begin = ours ? tick() : 0, .inode = inode};
    int failed = (int)syscall(SYS_fsetxattr, fd, name, value, size, flags);
    if (ours && !failed)
        put(&r, name, NULL, value, size);
    return failed;
}

API int fremovexattr(int fd, const char *name)
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {.kind = REMOVE_XATTR, .begin = ours ? tick() : 0, .inode = inode};
    int failed = (int)syscall(SYS_fremovexattr, fd, name);
    if (ours && !failed)
        put(&r, name, NULL, NULL, 0);
    return failed;
}

API int futimens(int fd, const struct timespec times[2])
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {.kind = TIMES, .begin = ours ? tick() : 0, .inode = inode};
    int failed = (int)syscall(SYS_utimensat, fd, NULL, times, 0);
    struct stat status;
    if (ours && !failed && !fstat(fd, &status)) {
        r.offset = (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
        put(&r, NULL, NULL, NULL, 0);
    }
    return failed;
}

/* Syncs
 * ------------------------------------------------------------------------------------------------
 */

static int synced(int fd, enum kind kind, long number)
{
    uint64_t inode = 0;
    int ours = inside(fd, &inode);
    struct record r = {.kind = kind, .begin = ours ? tick() : 0, .inode = inode};
    int failed = (int)syscall(number, fd);
    if (ours && !failed)
        put(&r, NULL, NULL, NULL, 0);
    return failed;
}

API int fsync(int fd)
{
    return synced(fd, FSYNC, SYS_fsync);
}

API int fdatasync(int fd)
{
    return synced(fd, FDATASYNC, SYS_fdatasync);
}

API int syncfs(int fd)
{
    return synced(fd, SYNC_ALL, SYS_syncfs);
}

/* Answers
 * ---------------------------------------------------------------------------------------------- */

API ssize_t send(int fd, const void *data, size_t size, int flags)
{
    answer(data, size);
    return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

API ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (message->msg_iovlen > 0)
        answer(message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
    return syscall(SYS_sendmsg, fd, message, flags);
}
