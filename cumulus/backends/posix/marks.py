"""Directories that are objects: the name `a/` is the directory `a` with a mark, an empty body with a record.

The mark is an extended attribute of the directory, or a sidecar for `a/` where that cannot hold it. It names
the directory's inode, so a copy of the directory has none, and it stays whatever is put into the directory.
While a mark is set or taken away the directory is locked (flock), and a removal of empty directories that
cannot have that lock leaves the directory alone (`paths.prune`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Sequence
from typing import Final

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix import paths, sidecar
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import MARK_XATTR, Files
from cumulus.backends.posix.journal import Journal
from cumulus.backends.posix.locks import Locks
from cumulus.backends.posix.meta import MAX_INLINE, Record
from cumulus.backends.posix.paths import NO_XATTR, Root
from cumulus.storage.api import (
    BadName,
    Changed,
    Entry,
    IfToken,
    Missing,
    ReadStream,
    StorageError,
    Taken,
    Token,
    Unavailable,
    check_token,
)

_TOKEN: Final = struct.Struct("<QQq")
_NO_MARK: Final = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS)
_TRIES: Final = 20  # times that the directory may vanish before its mark is set
_PATIENCE_S: Final = 5.0  # for which a lock of others is waited for; our own are held for moments
_PAUSE_S: Final = 0.01


def is_directory(name: str) -> bool:
    """Whether a name is that of a directory."""
    return name.endswith("/")


def _inside(name: str) -> list[str]:
    """Segments of something in the directory. Raises `BadName`."""
    return [*paths.split(name[:-1]), ""]


def _open(directory: int, name: str = ".") -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _record(root: Root, name: str, fd: int, inode: int) -> Record | None:
    try:
        record = metas.decode(os.getxattr(fd, MARK_XATTR))
    except OSError as error:
        if error.errno not in _NO_MARK:
            raise
        found = sidecar.find(root, name, inode)
        record = found[1] if found else None
    if record is None or record.inode != inode:
        return None
    if record.aside:
        found = sidecar.load(root, sidecar.path_of(name, inode))
        return found[1] if found and found[1].stamp >= record.stamp else None
    return record


def entry_at(root: Root, name: str, fd: int) -> Entry | None:
    """The entry of an open directory with that name; None if it has no mark. Raises `OSError`."""
    status = os.fstat(fd)
    record = _record(root, name, fd, status.st_ino)
    if record is None:
        return None
    return Entry(
        name=name,
        size=0,
        mtime_ns=record.mtime_ns,
        token=_TOKEN.pack(status.st_dev, status.st_ino, record.stamp),
        stamp=record.stamp,
        meta=record.meta,
    )


def entry_in(root: Root, name: str, directory: int) -> Entry | None:
    """The same where the descriptor is one of `paths.open_parent`, which cannot be read."""
    fd = _open(directory)
    try:
        return entry_at(root, name, fd)
    finally:
        os.close(fd)


def is_marked(root: Root, name: str, fd: int) -> bool:
    """Whether an open directory has a mark. Raises `OSError`."""
    return _record(root, name, fd, os.fstat(fd).st_ino) is not None


def stat(root: Root, name: str) -> Entry:
    """Raises `Missing`."""
    with paths.open_parent(root, _inside(name)) as directory, translated(f"{root.bucket}/{name}"):
        entry = entry_in(root, name, directory.fd)
    if entry is None:
        raise Missing(f"no {name!r} in bucket {root.bucket!r}")
    return entry


class Reader(ReadStream):
    """An empty body."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    def read_at(self, offset: int, size: int) -> bytes:
        return b""

    def close(self) -> None:
        """It holds nothing."""


def _lock(fd: int, name: str) -> None:
    """Any program that may read a directory may lock it, for as long as it likes. Raises `Unavailable`."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise Unavailable(f"another program has locked the directory {name!r}") from None
        except OSError:
            return  # a file system that locks no directories
        time.sleep(_PAUSE_S)


class Marks:
    """Changes of marks in one tree. Each is synced before it returns, if `sync`."""

    def __init__(self, files: Files, locks: Locks, journal: Journal, sync: bool) -> None:
        self._files = files
        self._locks = locks
        self._journal = journal
        self._sync = sync

    def publish(self, root: Root, name: str, size: int, meta: bytes, if_token: IfToken) -> Entry:
        """Make the directory if it is not there, and mark it. Raises as `ObjectStream.commit`; `BadName` if
        the body is not empty, `Taken` where a file is in the way."""
        if size:
            raise BadName(f"{name!r} is a directory, which has no bytes")
        inside = _inside(name)
        try:
            with (
                translated(f"{root.bucket}/{name}"),
                root.gate,
                self._locks.of(root.bucket, name) as stripe,
            ):
                root.check()
                self._journal.note(root.bucket, name, root)
                fd = self._enter(root, inside)
                try:
                    old = entry_at(root, name, fd)
                    check_token(name, old.token if old else None, if_token)
                    stamp = max(time.time_ns(), (old.stamp if old else 0) + 1, stripe.floor + 1)
                    inode = os.fstat(fd).st_ino
                    self._put(root, name, fd, Record(inode, 0, stamp, stamp, meta))
                    if self._sync:
                        paths.sync_path(root, inside, self._files)
                    made = entry_at(root, name, fd)
                finally:
                    os.close(fd)
        except StorageError:
            paths.prune(root, inside, self._files)  # directories made for nothing
            raise
        if made is None:
            raise Changed(f"{name!r} was taken away by others")
        return made

    def _enter(self, root: Root, inside: Sequence[str]) -> int:
        """The directory, made if need be, open and locked. Raises `Unavailable` if others lock it."""
        for _ in range(_TRIES):
            with paths.make_parent(root, inside, self._files) as directory:
                fd = _open(directory.fd)
            try:
                _lock(fd, "/".join(inside))
                if os.fstat(fd).st_nlink:
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # a removal was faster
        raise Taken(f"the directory {'/'.join(inside)!r} is removed again and again")

    def _put(self, root: Root, name: str, fd: int, record: Record) -> None:
        data = metas.encode(record)
        if len(data) <= MAX_INLINE:
            try:
                self._files.mark(fd, data)
                return
            except OSError as error:
                if error.errno not in NO_XATTR:
                    raise
        sidecar.write(root, name, record, self._files, self._sync)
        try:
            self._files.mark(fd, metas.encode(record._replace(meta=b"", aside=True)))
        except OSError as error:
            if error.errno not in NO_XATTR:
                raise

    def remove(self, root: Root, name: str, if_token: Token | None) -> int:
        """Take the mark away, and directories that are empty then and ours. As `FileStore.delete`."""
        inside = _inside(name)
        with translated(f"{root.bucket}/{name}"), self._locks.of(root.bucket, name) as stripe:
            with paths.open_parent(root, inside) as directory:
                fd = _open(directory.fd)
            try:
                old = entry_at(root, name, fd)
                if old is None:
                    raise Missing(f"no {name!r} in bucket {root.bucket!r}")
                check_token(name, old.token, if_token)
                stamp = max(time.time_ns(), old.stamp + 1, stripe.floor + 1)
                stripe.raise_floor(stamp)
                self._journal.note(root.bucket, name, root)
                try:
                    self._files.unmark(fd)
                except OSError as error:
                    if error.errno not in _NO_MARK:
                        raise
                self._drop(root, name, os.fstat(fd).st_ino)
                if self._sync:
                    self._files.sync(fd)
            finally:
                os.close(fd)
            paths.prune(root, inside, self._files)
        return stamp

    def _drop(self, root: Root, name: str, inode: int) -> None:
        """The sidecar, durably where there is one: it alone may be the mark."""
        try:
            self._files.unlink(root.meta, sidecar.path_of(name, inode))
        except FileNotFoundError:
            return
        if self._sync:
            self._files.sync(root.meta)

    def set_meta(self, root: Root, name: str, meta: bytes, if_token: Token) -> Entry:
        """As `FileStore.set_meta`."""
        stat(root, name)  # nothing is made here
        return self.publish(root, name, 0, meta, if_token)
