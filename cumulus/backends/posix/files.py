"""The system calls that change or sync what is on disk, as methods, so that tests can count them, let them
fail, and forget what was not synced. Each raises `OSError` as the call does."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from cumulus.storage.api import Sums

XATTR: Final = "user.cumulus"
MARK_XATTR: Final = "user.cumulus.mark"  # of a directory that is an object
_KEEP_SIZE: Final = 1  # fallocate(2): FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE: Final = 2  # FALLOC_FL_PUNCH_HOLE
_START_WRITE: Final = 2  # sync_file_range(2): SYNC_FILE_RANGE_WRITE
_NOT_HERE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EPERM)
_PIECE: Final = 64 << 20  # bytes asked of one copy_file_range; smaller ones let other threads in

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: ctypes.c_int | ctypes.c_longlong) -> None:
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Files:
    """The real calls. Names are relative to directory descriptors, so that nothing moved or linked from
    outside can lead elsewhere."""

    # contents

    def create(self, directory: int, name: str, mode: int) -> int:
        """A new file, open for reading and writing; fails where the name is taken."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=directory)

    def write(self, fd: int, data: memoryview | bytearray | bytes) -> None:
        """All of `data`, at the descriptor's position."""
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, memoryview(data)[done:])

    def truncate(self, fd: int, size: int) -> None:
        """ftruncate(2)."""
        os.ftruncate(fd, size)

    def reserve(self, fd: int, size: int, offset: int = 0) -> None:
        """Blocks for `size` bytes from `offset`, where the file system can; the size stays. More than there
        can be is not asked for: the kernel would take all that is free before it refuses, and whoever writes
        meanwhile would find a full disk."""
        room = os.fstatvfs(fd)
        if room.f_blocks and size > room.f_bfree * room.f_frsize + os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            _call("fallocate64", ctypes.c_int(fd), ctypes.c_int(_KEEP_SIZE), *_range(offset, size))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise

    def free(self, fd: int, offset: int, size: int) -> None:
        """Give the blocks of a range back, where the file system can; the size stays, and it reads as
        zeros."""
        how = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
        try:
            _call("fallocate64", ctypes.c_int(fd), how, *_range(offset, size))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise

    def take(self, connection: int, fd: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        """Write what `sums` take from a connection at the descriptor's position; how many bytes."""
        return sums.take(connection, fd, room, moment_s)

    def start_writing(self, fd: int, offset: int, size: int) -> None:
        """Ask the kernel to begin writing this range to disk, without waiting; a hint, so errors are left to
        the sync that follows."""
        try:
            _call("sync_file_range", ctypes.c_int(fd), *_range(offset, size), ctypes.c_int(_START_WRITE))
        except OSError:
            return

    def copy(self, source: int, offset: int, size: int, target: int, at: int = -1) -> int:
        """Copy bytes of one file to another inside the kernel, shared blocks where possible, to `at` or else
        to the target's position; how many were copied: fewer when the source ends early."""
        if at >= 0:
            os.lseek(target, at, os.SEEK_SET)
        done = 0
        while done < size:
            try:
                step = os.copy_file_range(source, target, min(size - done, _PIECE), offset + done)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                data = os.pread(source, min(size - done, 1 << 20), offset + done)
                self.write(target, data)
                step = len(data)
            if not step:
                break
            done += step
        return done

    def set_times(self, fd: int, mtime_ns: int) -> None:
        """Access time is set alike."""
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def set_xattr(self, fd: int, value: bytes) -> None:
        """Our extended attribute of the file."""
        os.setxattr(fd, XATTR, value)

    def drop_xattr(self, fd: int) -> None:
        """Take it away."""
        os.removexattr(fd, XATTR)

    def mark(self, fd: int, value: bytes) -> None:
        """The mark of a directory."""
        os.setxattr(fd, MARK_XATTR, value)

    def unmark(self, fd: int) -> None:
        """Take it away."""
        os.removexattr(fd, MARK_XATTR)

    def set_owner(self, fd: int, uid: int, gid: int) -> None:
        """fchown(2)."""
        os.fchown(fd, uid, gid)

    def set_mode(self, fd: int, mode: int) -> None:
        """fchmod(2)."""
        os.fchmod(fd, mode)

    # names

    def rename(self, source: int, name: str, target: int, to: str) -> None:
        """Between directories, replacing what is there."""
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)

    def link(self, source: int, name: str, target: int, to: str) -> None:
        """A second name; fails where it is taken."""
        os.link(name, to, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def unlink(self, directory: int, name: str) -> None:
        """unlinkat(2)."""
        os.unlink(name, dir_fd=directory)

    def make_dir(self, directory: int, name: str, mode: int) -> None:
        """mkdirat(2)."""
        os.mkdir(name, mode, dir_fd=directory)

    def remove_dir(self, directory: int, name: str) -> None:
        """Fails where it is not empty."""
        os.rmdir(name, dir_fd=directory)

    # durability

    def sync(self, fd: int) -> None:
        """fsync(2) of a file or directory."""
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """fdatasync(2)."""
        os.fdatasync(fd)

    def sync_ahead(self, fd: int) -> None:
        """fdatasync(2) of a body that still comes; what counts is the sync at its end."""
        os.fdatasync(fd)

    def sync_all(self, fd: int) -> None:
        """All of the file system that `fd` is on."""
        try:
            _call("syncfs", ctypes.c_int(fd))
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            os.sync()

    def boot(self) -> str:
        """Names this run of this machine: what was written under the same name and is not on disk yet is
        still in memory."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _range(offset: int, size: int) -> tuple[ctypes.c_longlong, ctypes.c_longlong]:
    return ctypes.c_longlong(offset), ctypes.c_longlong(size)
