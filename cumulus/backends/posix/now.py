"""Opening and reading a file without waiting for a disk, for the thread that serves all connections.

openat2(2) with RESOLVE_CACHED succeeds only if the whole path is in the kernel's memory, preadv2(2) with
RWF_NOWAIT only if the bytes are. Only on local file systems: elsewhere a server may be asked for attributes.
Whatever cannot be told so is None, and is asked again in a thread that may wait.
"""

from __future__ import annotations

import ctypes
import os
import stat
from functools import lru_cache
from typing import Final

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix.files import XATTR
from cumulus.backends.posix.meta import Record

_OPENAT2: Final = 437  # the number of the system call, the same on all machines
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _CACHED = 0x01, 0x02, 0x04, 0x08, 0x20
# ext4, xfs, btrfs, tmpfs, f2fs, overlay, zfs
_LOCAL: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0xF2F52010, 0x794C7630, 0x2FC12FC1})
_SMALL_STAT: Final = 256  # bytes; struct statfs has 120

_libc: Final = ctypes.PyDLL(None)  # calls of a few µs: not worth giving the interpreter's lock away
_how: Final = (ctypes.c_uint64 * 3)(
    os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC,
    0,
    _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH | _CACHED,
)


@lru_cache(maxsize=256)
def local(fd: int, device: int) -> bool:
    """Whether the file system of an open directory is one that asks no server; `device` is its number."""
    buffer = ctypes.create_string_buffer(_SMALL_STAT)
    if _libc.fstatfs(fd, buffer) != 0:
        return False
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF in _LOCAL


def open_plain(directory: int, name: str) -> int | None:
    """A descriptor of a plain file below an open directory. Nothing else is opened."""
    path = _libc.syscall(_OPENAT2, directory, name.encode(), _how, ctypes.sizeof(_how))
    if path < 0:
        return None
    try:
        if not stat.S_ISREG(os.fstat(path).st_mode):
            return None
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(path)


def open_file(directory: int, name: str) -> tuple[int, os.stat_result, Record] | None:
    """A descriptor of a plain file below an open directory, and the record in its attribute, if that fits
    (what stands aside is to be read as well)."""
    fd = open_plain(directory, name)
    if fd is None:
        return None
    try:
        status = os.fstat(fd)  # before the record, as in bodies.entry_of
        record = metas.decode(os.getxattr(fd, XATTR))
        if record is not None and record.fits(status):
            return fd, status, record
    except OSError:
        pass
    os.close(fd)
    return None


def read(fd: int, offset: int, size: int) -> bytes | None:
    """So many bytes."""
    buffer = bytearray(size)
    try:
        count = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(buffer) if count == size else None
