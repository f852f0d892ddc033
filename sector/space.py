"""Room on local disks: reserve it, measure it, and say in one line why there is none.

Everything here blocks for as long as the disk does. Source: design.md, section 5 ("disk-full handling").
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

from sector import errors

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says when there is no room: disk, quota of a user, limit of one file."""

MARGIN_BYTES = 64 << 20
_KEEP_SIZE = 1
_TRIES = 5
_PAUSE_S = 0.02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def free_bytes(fd: int) -> int:
    """Bytes that this process may still write on the file system of `fd`; 0 where it does not tell."""
    try:
        info = os.fstatvfs(fd)
    except OSError:
        return 0
    return info.f_bavail * info.f_frsize


def fallocate(fd: int, size: int) -> bool:
    """Reserve `size` bytes without changing the file's length. False where the file system cannot.

    Blocks that were freed just now may come back only with the next commit of the file system's journal:
    while much more is said to be free, a refusal is asked again, for 0.3 s at most. Raises OSError (ENOSPC,
    EDQUOT, EFBIG: see `FULL`; others).
    """
    if size <= 0:
        return True
    for attempt in range(_TRIES):
        code = _fallocate(fd, size)
        if code in (0, errno.EOPNOTSUPP, errno.ENOSYS):
            return code == 0
        if code != errno.ENOSPC or attempt == _TRIES - 1 or free_bytes(fd) < size + MARGIN_BYTES:
            break
        time.sleep(_PAUSE_S * 2**attempt)
    raise OSError(code, os.strerror(code))


def _fallocate(fd: int, size: int) -> int:
    """One call; 0 or the errno."""
    while _libc.fallocate(fd, _KEEP_SIZE, 0, size) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            return code
    return 0


def no_room(code: int, where: str, needed: int, fd: int) -> errors.NoSpace:
    """Why `needed` bytes found no room at `where` (a path, perhaps with its machine), for the errno `code`
    (one of `FULL`); `fd` is any descriptor on that file system, or -1."""
    free, inodes = 0, 1
    if fd >= 0:
        free = free_bytes(fd)
        try:
            info = os.fstatvfs(fd)
            inodes = info.f_favail if info.f_files else 1
        except OSError:
            pass
    room = f"no room for {needed} bytes"
    if code == errno.EDQUOT:
        text, hint = f"{room} within the quota of this user; the disk has {free} bytes free", "see quota -s"
    elif code == errno.EFBIG:
        text, hint = f"{room} in one file: a limit of this process or of the file system", "see ulimit -f"
    elif inodes == 0:
        text, hint = f"{room}: the file system has no inode left, {free} bytes are free", "remove files"
    elif fd >= 0 and free >= needed + MARGIN_BYTES:
        text = f"the file system refused {needed} bytes several times, although {free} bytes are free"
        hint = "try again; see df, and the kernel's log"
    else:
        text, hint = f"{room}; {free} bytes are free", "free space"
    return errors.NoSpace(f"{where}: {text}", hint=hint)
