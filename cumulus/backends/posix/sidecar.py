"""Meta in files of their own, for file systems without extended attributes and for meta too long for one.

`.cumulus/meta/<hash of the name>-<inode>` belongs to the file of that name with that inode: it is complete
before the body gets its name, and no other body ever fits it. Layout: the record of `meta.py` without its
meta, the name (u16 length, UTF-8), the meta, CRC-32 of all before it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
import time
import zlib
from typing import Final

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix import now
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.folders import reopen
from cumulus.backends.posix.meta import Record
from cumulus.backends.posix.paths import FILE_MODE, MARK, Root, meta_file

_HEAD: Final = len(metas.encode(Record(0, 0, 0, 0, b"")))
_LENGTH: Final = struct.Struct("<H")
_CHECK: Final = struct.Struct("<I")
_MAX: Final = 4 << 20  # bytes; 10,000 parts with their sums take 1.5 MB
_MAX_NOW: Final = 64 << 10  # checked in some 20 µs
_SETTLED_NS: Final = 100_000_000  # a younger mtime may stay the same over the next change


def path_of(name: str, inode: int) -> str:
    """Its name in `.cumulus/meta`."""
    return meta_file(name, inode)


def write(root: Root, name: str, record: Record, files: Files, sync: bool) -> None:
    """Put it in place in one step, durably if `sync`. Raises `OSError`."""
    head = metas.encode(record._replace(meta=b""))
    text = name.encode()
    data = head + _LENGTH.pack(len(text)) + text + record.meta
    data += _CHECK.pack(zlib.crc32(data))
    draft = f"m{secrets.token_hex(12)}"
    fd = files.create(root.tmp, draft, FILE_MODE)
    try:
        files.write(fd, data)
        if sync:
            files.sync(fd)
        files.rename(root.tmp, draft, root.meta, path_of(name, record.inode))
        if sync:
            files.sync(root.meta)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(root.tmp, draft)
        raise
    finally:
        os.close(fd)


def parse(data: bytes) -> tuple[str, Record] | None:
    """(name, record), or None for what is damaged."""
    if len(data) < _HEAD + _LENGTH.size + _CHECK.size:
        return None
    body, check = data[: -_CHECK.size], _CHECK.unpack(data[-_CHECK.size :])[0]
    record = metas.decode(body[:_HEAD])
    if record is None or zlib.crc32(body) != check:
        return None
    start = _HEAD + _LENGTH.size
    end = start + _LENGTH.unpack_from(body, _HEAD)[0]
    return body[start:end].decode(errors="replace"), record._replace(meta=body[end:])


def load(root: Root, file: str) -> tuple[str, Record] | None:
    """The sidecar of that file name in `.cumulus/meta`, None where there is none. Raises `OSError`."""
    if not root.has_meta:
        return None
    try:
        return load_from(root.meta, file)
    except FileNotFoundError:
        return None


def load_from(directory: int, file: str) -> tuple[str, Record] | None:
    """That of an open directory; None for what is no plain file: who owns the directory of a bucket may put
    anything there. Raises `OSError`."""
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(fd)
        return parse(os.read(fd, min(status.st_size, _MAX))) if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(fd)


def load_now(root: Root, file: str) -> tuple[str, Record] | None:
    """The same without waiting for a disk; None also for one that is long or not in memory."""
    fd = now.open_plain(root.meta, file) if root.has_meta else None
    if fd is None:
        return None
    try:
        size = os.fstat(fd).st_size
        data = now.read(fd, 0, size) if size <= _MAX_NOW else None
    finally:
        os.close(fd)
    return None if data is None else parse(data)


def find(root: Root, name: str, inode: int) -> tuple[str, Record] | None:
    """The sidecar of a file that may well have none, as most of those that others made. Raises `OSError`."""
    return load(root, path_of(name, inode)) if any_in(root) else None


def any_in(root: Root) -> bool:
    """Whether the bucket has a sidecar at all; remembered until its directory changes. Raises `OSError`."""
    if not root.has_meta:
        return False
    before = time.time_ns()  # what is put there from now on gives a younger mtime, if this one has settled
    mtime_ns = os.fstat(root.meta).st_mtime_ns
    if root.bare_at == mtime_ns:
        return False
    own = reopen(root.meta)
    try:
        with os.scandir(own) as entries:
            if any(not entry.name.startswith(MARK) for entry in entries):
                return True
    finally:
        os.close(own)
    if before - mtime_ns > _SETTLED_NS:
        root.bare_at = mtime_ns
    return False


def is_there(root: Root, name: str, inode: int) -> bool:
    """Whether that file has one. Raises `OSError`."""
    try:
        os.stat(path_of(name, inode), dir_fd=root.meta, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def drop(root: Root, name: str, inode: int, files: Files) -> None:
    """Forget it; one that stays is swept later."""
    with contextlib.suppress(OSError):
        files.unlink(root.meta, path_of(name, inode))
