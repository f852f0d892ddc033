"""A tree that was copied as a whole: to another disk, or back from a backup.

A record names the inode of the file that it was made for, and copies have others: what belongs to the objects
(headers, owners, ACLs), older versions, odd keys and marks of directories would be gone, and for good once
the service has hashed what it takes for files of others. `take_over` gives each record the inode of its copy
where size and time of the file are as recorded, so what somebody has changed since stays what it is. `look`
says where that is needed.

Copies must have been made with extended attributes and times: cp -a, rsync -aHX, tar --xattrs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix import sidecar
from cumulus.backends.posix.files import MARK_XATTR, XATTR, Files
from cumulus.backends.posix.meta import Record
from cumulus.backends.posix.paths import BARE, PRIVATE, Root
from cumulus.storage.api import INTERNAL, BadName
from cumulus.storage.names import MAX_NAME, check_name

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNITS: Final = (1, 100, 1_000, 1_000_000, 1_000_000_000)  # of time, in ns, that file systems and tar keep
_BUCKETS: Final = 50  # of which some files are looked at,
_NAMES: Final = 300  # of each so many names
_ENOUGH: Final = 20  # records
_NO_RECORD: Final = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS)
_GIVEN, _KEPT, _LEFT, _NOTHING = range(4)
KeyOf = Callable[[bytes], str | None]


class Taken(NamedTuple):
    """Of one bucket: records that were given to copies, that fit as they are, and that fit no copy."""

    given: int
    kept: int
    left: int


def _same_time(record: Record, status: os.stat_result) -> bool:
    return any(record.mtime_ns // unit * unit == metas.mtime_of(status) for unit in _UNITS)


def _is_copy(record: Record, status: os.stat_result) -> bool:
    """Whether the file may be a copy of the one that the record was made for."""
    same = record.size == status.st_size and _same_time(record, status)
    return same and (record.inode != status.st_ino or record.mtime_ns != metas.mtime_of(status))


def places(store: str) -> Iterator[tuple[str, str]]:
    """Name and directory of each bucket, also of adopted ones."""
    for name in sorted(_listed(os.path.join(store, "data"))):
        path = os.path.join(store, "data", name)
        if os.path.isdir(path) and not os.path.islink(path):
            yield name, path
    for name in sorted(_listed(os.path.join(store, "adopted"))):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield name, Path(store, "adopted", name).read_text(encoding="utf-8").removesuffix(BARE)


def _listed(path: str) -> list[str]:
    try:
        return [name for name in os.listdir(path) if not name.startswith(".")]
    except OSError:
        return []


def _record(fd: int, attribute: str) -> Record | None:
    try:
        return metas.decode(os.getxattr(fd, attribute))
    except OSError as error:
        if error.errno not in _NO_RECORD:
            raise
        return None


# looking ------------------------------------------------------------------------------------------------
class Look(NamedTuple):
    """Buckets whose records are of other files than those that are there, as far as some were looked at; and
    whether any bucket has one that fits."""

    copied: list[str]
    any_fits: bool


def look(store: str, key_of: KeyOf = lambda _: None) -> Look:
    """Look at some files of each bucket, of one that was not copied mostly at one. `key_of` says which key is
    in what a record has."""
    verdicts = {name: _is_copied(path, key_of) for name, path in islice(places(store), _BUCKETS)}
    return Look([name for name, one in verdicts.items() if one], False in verdicts.values())


def _is_copied(top: str, key_of: KeyOf) -> bool | None:
    """None where no record says anything."""
    copied = 0
    for record, status in chain(_in_files(top), _beside(top)):
        if record.fits(status):
            return False
        if _is_copy(record, status):
            key = key_of(record.meta)
            if key is not None and _fits_under(top, key):
                return False  # the file was copied within the bucket
            copied += 1
        if copied >= _ENOUGH:
            break
    return copied > 0 or None


def _fits_under(top: str, key: str) -> bool:
    """Whether the record of the file that has a key for its name is its own. No link is followed."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError, BadName):
        *above, last = check_name(key)
        at = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, at)
        for name in above:
            at = os.open(name, _STEP, dir_fd=at)
            opened.callback(os.close, at)
        with _opened(last, at) as fd:
            record = _record(fd, XATTR) if fd >= 0 else None
            return record is not None and record.fits(os.fstat(fd))
    return False


def _in_files(top: str) -> Iterator[tuple[Record, os.stat_result]]:
    """Records in attributes of some files."""
    for fd, status in _some(top):
        try:
            record = _record(fd, XATTR)
        except OSError:
            continue
        finally:
            os.close(fd)
        if record is not None and not record.aside:
            yield record, status


def _beside(top: str) -> Iterator[tuple[Record, os.stat_result]]:
    """Some sidecars whose files are there."""
    with contextlib.suppress(OSError), os.scandir(os.path.join(top, INTERNAL, "meta")) as entries:
        for entry in islice(entries, _NAMES):
            with contextlib.suppress(OSError, ValueError):
                found = _sidecar(entry.path)
                if found is not None and not found[0].endswith("/"):
                    yield found[1], os.stat(os.path.join(top, found[0]), follow_symlinks=False)


def _sidecar(path: str) -> tuple[str, Record] | None:
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return sidecar.load_from(directory, os.path.basename(path))
    finally:
        os.close(directory)


def _some(top: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open plain files of a bucket; the caller closes them. What is away or may not be read has none."""
    seen = 0
    with contextlib.suppress(OSError):
        for path, directories, files, at in os.fwalk(top, follow_symlinks=False):
            for name in files:
                seen += 1
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                        fd = os.open(name, _READ, dir_fd=at)
                        yield fd, os.fstat(fd)
            deep = len(path) - len(top) > MAX_NAME
            directories[:] = [] if deep else [one for one in directories if one not in PRIVATE]
            if seen >= _NAMES:
                return


# taking over --------------------------------------------------------------------------------------------
def take_over(root: Root) -> Taken:
    """Give the records of a bucket to its copied files and directories. Again goes on where it ended. Raises
    `OSError`."""
    files, counts, sides = Files(), [0, 0, 0, 0], _Sides(root)
    for path, directories, names, at in os.fwalk(".", dir_fd=root.fd, follow_symlinks=False, onerror=_raise):
        if path == f"./{INTERNAL}":
            directories[:] = [one for one in directories if one not in PRIVATE]
        prefix = "" if path == "." else f"{path[2:]}/"
        if len(prefix) > MAX_NAME:  # deeper than any key
            directories.clear()
            continue
        for name in names:
            with contextlib.suppress(FileNotFoundError), _opened(name, at) as fd:
                if fd >= 0:
                    counts[_file(sides, prefix + name, fd, files)] += 1
        if prefix and not prefix.startswith(f"{INTERNAL}/"):
            counts[_directory(sides, prefix, at, files)] += 1
    os.sync()
    return Taken(*counts[:3])


def _raise(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def _opened(name: str, at: int) -> Iterator[int]:
    """A plain file; -1 for anything else."""
    status = os.stat(name, dir_fd=at, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        yield -1
        return
    fd = os.open(name, _READ, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


class _Sides:
    """The sidecars of a bucket, by the names that they are for."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._names: dict[str, list[str]] = {}
        for file in os.listdir(root.meta) if root.has_meta else ():
            self._names.setdefault(file.partition("-")[0], []).append(file)

    def of(self, name: str) -> list[Record]:
        """Those that are for that name."""
        found = self._names.get(sidecar.path_of(name, 0).partition("-")[0], []) if self._names else []
        loaded = [sidecar.load(self.root, file) for file in found]
        return [one[1] for one in loaded if one is not None and one[0] == name]

    def give(self, name: str, old: Record, new: Record, files: Files) -> None:
        """The sidecar for the copy comes before that of the former file goes."""
        sidecar.write(self.root, name, new, files, sync=False)
        if old.inode != new.inode:
            sidecar.drop(self.root, name, old.inode, files)


def _file(sides: _Sides, name: str, fd: int, files: Files) -> int:
    status = os.fstat(fd)
    short = _record(fd, XATTR)
    if short is not None and not short.aside:
        if short.fits(status):
            return _KEPT
        if not _is_copy(short, status):
            return _LEFT
        files.set_xattr(fd, metas.encode(_for(short, status)))
        return _GIVEN
    try:
        name.encode()
    except UnicodeEncodeError:
        return _NOTHING
    beside = sides.of(name)
    if short is not None:  # an older one is what a crash has left
        beside = [one for one in beside if one.stamp >= short.stamp]
    if not beside:
        return _NOTHING if short is None else _LEFT
    if any(one.fits(status) for one in beside) and (short is None or short.fits(status)):
        return _KEPT
    copies = [one for one in beside if _is_copy(one, status) or one.fits(status)]
    if not copies:
        return _LEFT
    record = max(copies, key=lambda one: one.stamp)
    sides.give(name, record, _for(record, status), files)
    if short is not None:
        files.set_xattr(fd, metas.encode(_for(record, status)._replace(meta=b"", aside=True)))
    return _GIVEN


def _for(record: Record, status: os.stat_result) -> Record:
    return record._replace(inode=status.st_ino, mtime_ns=metas.mtime_of(status))


def _directory(sides: _Sides, name: str, fd: int, files: Files) -> int:
    """A mark is of the directory, whatever its times are."""
    inode = os.fstat(fd).st_ino
    short = _record(fd, MARK_XATTR)
    if short is not None and short.inode == inode:
        return _KEPT
    if short is None or short.aside:
        try:
            name.encode()
        except UnicodeEncodeError:
            return _NOTHING
        beside = sides.of(name)
        if not beside or any(one.inode == inode for one in beside):
            return _NOTHING
        record = max(beside, key=lambda one: one.stamp)
        sides.give(name, record, record._replace(inode=inode), files)
    if short is not None:
        files.mark(fd, metas.encode(short._replace(inode=inode)))
    return _GIVEN
