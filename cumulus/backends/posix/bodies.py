"""Files below a bucket with their records: look, open, make drafts, and read the record wherever it is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import Final

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix import now, sidecar
from cumulus.backends.posix.errors import storage_error
from cumulus.backends.posix.files import XATTR, Files
from cumulus.backends.posix.meta import MAX_INLINE, Record
from cumulus.backends.posix.paths import FILE_MODE, NO_XATTR, Directory, Root
from cumulus.storage.api import Entry, Missing, Taken, Unavailable

OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_RECORD: Final = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS)
TRIES: Final = 1000  # against others who replace a file all the time
_NOT_SERVED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


def look(parent: Directory, last: str) -> os.stat_result | None:
    """What is there, not followed; None for nothing. Raises `OSError`."""
    try:
        return os.stat(last, dir_fd=parent.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def look_for_write(parent: Directory, last: str, name: str) -> os.stat_result | None:
    """As `look`. Raises `Taken` for a directory or anything else that is no plain file."""
    try:
        found = look(parent, last)
    except OSError as error:
        raise storage_error(error, name) from error
    if found and not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a plain file"
        raise Taken(f"{name!r} is {kind}")
    return found


def open_body(parent: Directory, last: str, name: str) -> int:
    """A descriptor of a plain file. Raises `Missing` for nothing and for anything else, which is not
    touched."""
    try:
        found = look(parent, last)
        if found and stat.S_ISREG(found.st_mode):
            return os.open(last, OPEN, dir_fd=parent.fd)
    except OSError as error:
        if error.errno not in _NOT_SERVED:
            raise storage_error(error, name) from error
    raise Missing(f"no {name!r}")


def record_of(root: Root, name: str, fd: int, status: os.stat_result) -> Record | None:
    """The record if it fits the file as it is. Raises `OSError`."""
    record: Record | None = None
    try:
        record = metas.decode(os.getxattr(fd, XATTR))
    except OSError as error:
        if error.errno not in _NO_RECORD:
            raise
        found = sidecar.find(root, name, status.st_ino)
        record = found[1] if found else None
    if record is None or not record.fits(status):
        return None
    if record.aside:
        return _whole(record, sidecar.load(root, sidecar.path_of(name, status.st_ino)), status)
    return record


def _whole(short: Record, found: tuple[str, Record] | None, status: os.stat_result) -> Record | None:
    """The record in a sidecar if the short one in the attribute means that one: a newer sidecar is in place
    before its short record is."""
    if not found or found[1].stamp < short.stamp or not found[1].fits(status):
        return None
    return found[1]


def entry_of(root: Root, name: str, fd: int) -> Entry:
    """The entry of an open file. Raises `OSError`."""
    status = os.fstat(
        fd
    )  # before the record: a record changed in between makes the token old, never the meta
    return metas.entry_of(name, status, record_of(root, name, fd, status))


def open_entry(root: Root, parent: Directory, last: str, name: str) -> tuple[int, Entry]:
    """A descriptor of a plain file and its entry. Whoever replaces or removes a file takes its sidecar away
    after its name: so one that is found without a record counts only if it has the name still. Raises as
    `open_body`, `Unavailable`, `OSError`."""
    for _ in range(TRIES):
        fd = open_body(parent, last, name)
        try:
            entry = entry_of(root, name, fd)
            if entry.meta is not None or has_name(parent.fd, last, os.fstat(fd)):
                return fd, entry
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise restless(name)


def restless(name: str) -> Unavailable:
    """What a reader hears after `TRIES`."""
    return Unavailable(f"{name!r} is replaced again and again")


def has_name(directory: int, last: str, status: os.stat_result) -> bool:
    """Whether a file has that name now."""
    try:
        there = os.stat(last, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino)


def open_now(root: Root, name: str) -> tuple[int, Entry] | None:
    """A descriptor of a plain file and its entry, without waiting for a disk; None: see `open_body`."""
    opened = now.open_file(root.fd, name)
    if opened is None:
        return None
    fd, status, record = opened
    if not record.aside:
        return fd, metas.entry_of(name, status, record)
    try:
        whole = _whole(record, sidecar.load_now(root, sidecar.path_of(name, status.st_ino)), status)
    except OSError:
        whole = None
    if whole is not None:
        return fd, metas.entry_of(name, status, whole)
    os.close(fd)
    return None


def put_record(root: Root, name: str, fd: int, record: Record, files: Files, sync: bool) -> bool:
    """Replace a file's record in one step; `sync` for a sidecar, the attribute is synced with the file.
    Whether it has a sidecar. Raises `OSError`."""
    data = metas.encode(record)
    if len(data) <= MAX_INLINE:
        try:
            files.set_xattr(fd, data)
            return False
        except OSError as error:
            if error.errno not in NO_XATTR:
                raise
    sidecar.write(root, name, record, files, sync)
    try:
        files.set_xattr(fd, metas.encode(record._replace(meta=b"", aside=True)))
    except OSError as error:
        if error.errno not in NO_XATTR:
            raise
    return True


class Draft:
    """A file in `.cumulus/tmp` that will get a name. It is locked (shared) while it is open, so that a sweep
    knows it from what a dead process left."""

    __slots__ = (
        "_beside", "_files", "aside", "directory", "fd", "inode", "named", "record", "root", "size",
        "temporary",
    )  # fmt: skip

    def __init__(self, root: Root, files: Files) -> None:
        name = secrets.token_hex(12)
        fd = files.create(root.tmp, name, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            self._adopt(root, root.tmp, name, fd, files, os.fstat(fd))
        except OSError:
            with contextlib.suppress(OSError):
                files.unlink(root.tmp, name)
            os.close(fd)
            raise

    def _adopt(
        self, root: Root, directory: int, name: str, fd: int, files: Files, status: os.stat_result
    ) -> None:
        """Raises `OSError`; the descriptor is the caller's then."""
        self.root = root
        self._files = files
        self.directory = directory  # where it is
        self.temporary = name  # and under which name
        self.fd = fd
        self.inode = status.st_ino
        self.size = 0
        self.record: Record | None = None
        self.named = False  # it has got its name, and is no draft any more
        self.aside = ""  # the name under which a sidecar may have been written
        self._beside = False  # it was the last time
        if status.st_mode & 0o777 != FILE_MODE:
            files.set_mode(fd, FILE_MODE)

    def write(self, data: memoryview | bytearray | bytes) -> None:
        """Append. Raises `OSError`."""
        self._files.write(self.fd, data)
        self.size += len(data)

    def stamp(self, name: str, stamp: int, meta: bytes, sync: bool) -> int:
        """Set mtime and record; returns the stamp, which is larger than asked for where the file system's
        clock is coarse. Raises `OSError`."""
        mtime_ns = self._set_mtime(stamp)
        if self.aside not in ("", name):
            sidecar.drop(self.root, self.aside, self.inode, self._files)
        self.aside = name
        record = Record(self.inode, self.size, mtime_ns, max(stamp, mtime_ns), meta)
        self._beside = put_record(self.root, name, self.fd, record, self._files, sync)
        self.record = record
        return record.stamp

    def is_stamped(self) -> bool:
        """Whether its record is there still: who replaces a file of the same name, or sweeps, takes a sidecar
        away by name and inode, and the inode may have become the draft's meanwhile. It stays for as long as
        the name is locked."""
        return not self._beside or sidecar.is_there(self.root, self.aside, self.inode)

    def _set_mtime(self, wanted: int) -> int:
        for step in (0, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000):
            self._files.set_times(self.fd, wanted + step)
            found = metas.mtime_of(os.fstat(self.fd))
            if found >= wanted:
                break
        return found  # less only where no later time can be kept; the record's stamp grows all the same

    def adopt_mode(self, old: os.stat_result | None) -> None:
        """Owner and mode of what is replaced, as far as we may. Raises `OSError`."""
        if old is None:
            return
        self.give(old.st_uid, old.st_gid)
        own = os.fstat(self.fd)
        if stat.S_IMODE(own.st_mode) != old.st_mode & 0o777:
            self._files.set_mode(self.fd, old.st_mode & 0o777)

    def give(self, uid: int, gid: int) -> None:
        """Make it that account's, if we may. Raises `OSError`."""
        own = os.fstat(self.fd)
        if (own.st_uid, own.st_gid) != (uid, gid):
            with contextlib.suppress(PermissionError):
                self._files.set_owner(self.fd, uid, gid)

    def unstamp(self) -> None:
        """Take the record away again."""
        if self.record is not None:
            with contextlib.suppress(OSError):
                self._files.drop_xattr(self.fd)
        if self.aside:
            sidecar.drop(self.root, self.aside, self.inode, self._files)

    def drop(self) -> None:
        """Remove it; for one that got its name, `close` is enough. What failed after that (a directory could
        not be synced) leaves readers an object that is whole, with its record."""
        if self.named:
            self.close()
            return
        with contextlib.suppress(OSError):
            self._files.unlink(self.directory, self.temporary)
        if self.aside:
            sidecar.drop(self.root, self.aside, self.inode, self._files)
        self.close()

    def close(self) -> None:
        """Give back the descriptor. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
