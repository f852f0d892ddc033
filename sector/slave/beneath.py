"""Opening paths of the tree so that no symbolic link and no `..` ever leads out of it.

Uses openat2 with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS (Linux 5.6); where the call is missing, every
component is opened by itself with O_NOFOLLOW. Blocking. Source: spec/security.md, "Files".
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from sector import errors

_SYS_OPENAT2 = 437
_RESOLVE = 0x02 | 0x04 | 0x08  # no magic links, no symbolic links, beneath
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(root: int, relative: bytes, flags: int, mode: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _RESOLVE)
    while True:
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(relative),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in (errno.EINTR, errno.EAGAIN):
            raise OSError(code, os.strerror(code))


def _walk(root: int, relative: bytes, flags: int, mode: int) -> int:
    """The same without openat2: one component after the other."""
    names = relative.split(b"/")
    if any(name in (b"", b"..") for name in names):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    current = os.dup(root)
    try:
        for name in names[:-1]:
            below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        return os.open(names[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=current)
    except NotADirectoryError:
        if _has_link(root, names):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    finally:
        os.close(current)


def _has_link(root: int, names: list[bytes]) -> bool:
    for count in range(1, len(names) + 1):
        try:
            info = os.stat(b"/".join(names[:count]), dir_fd=root, follow_symlinks=False)
        except OSError:
            return False
        if stat.S_ISLNK(info.st_mode):
            return True
    return False


_has_openat2 = True


def open_beneath(root: int, path: str, flags: int, mode: int = 0o644) -> int:
    """Open cloud path `path` ("/a/b") below the directory descriptor `root`.

    Raises OSError: ELOOP for a symbolic link anywhere in the path, EXDEV for a path that leads out.
    """
    global _has_openat2
    relative = os.fsencode(path.strip("/")) or b"."
    if _has_openat2:
        try:
            return _openat2(root, relative, flags, mode)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            _has_openat2 = error.errno == errno.EPERM
            if _has_openat2:
                raise
    return _walk(root, relative, flags, mode)


@contextmanager
def directory(root: int, path: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory `path` below `root` (made with its parents if `create`)."""
    try:
        fd = open_beneath(root, path, _DIRECTORY)
    except FileNotFoundError:
        if not create:
            raise
        fd = _make(root, path)
    try:
        yield fd
    finally:
        os.close(fd)


def _make(root: int, path: str) -> int:
    current = os.dup(root)
    try:
        for name in path.strip("/").split("/"):
            try:
                os.mkdir(name, 0o755, dir_fd=current)
                os.fsync(current)
            except FileExistsError:
                pass
            below = open_beneath(current, name, _DIRECTORY)
            os.close(current)
            current = below
        return os.dup(current)
    finally:
        os.close(current)


def split(path: str) -> tuple[str, str]:
    """Directory and name of a cloud path."""
    head, _, name = path.rpartition("/")
    return head or "/", name


def explain(error: OSError, path: str, where: str) -> errors.SectorError:
    """One clear line for what the operating system refused on `where` (such as "slave s1")."""
    match error.errno:
        case errno.ENOSPC:
            return errors.NoSpace(f"{where}: no space left for {path}")
        case errno.EDQUOT:
            return errors.NoSpace(f"{where}: the quota of the slave's user has no space left for {path}")
        case errno.EFBIG:
            return errors.NoSpace(f"{where}: {path} is larger than a file may be there")
        case errno.ELOOP | errno.EXDEV:
            return errors.Conflict(
                f"{where}: a symbolic link stands in the way of {path}; it is not followed",
                hint="remove the link from the slave's data directory",
            )
        case errno.ENOENT:
            return errors.NotFound(f"{where} has no {path}")
        case _:
            return errors.LocalIO(f"{where}: {path}: {error.strerror or error}")
