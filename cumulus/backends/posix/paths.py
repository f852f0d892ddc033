"""Where buckets and names are on disk, reached segment by segment from a bucket's descriptor.

No symbolic link is followed below a bucket. Directories that we make are marked (an extended attribute, or an
empty file in `.cumulus/meta` where there are none), so that only those are removed when they become empty.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import stat
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple

from cumulus.backends.posix import now
from cumulus.backends.posix.errors import storage_error, translated
from cumulus.backends.posix.files import MARK_XATTR, XATTR, Files
from cumulus.backends.posix.folders import deepest_first
from cumulus.backends.posix.locks import Gate, Locks
from cumulus.backends.posix.mounts import IS_IT, Mounts, NotMounted
from cumulus.backends.posix.trusted import makers, open_directory
from cumulus.storage.api import (
    INTERNAL,
    BadName,
    Missing,
    NoBucket,
    NotEmptyStore,
    StorageError,
    Taken,
)
from cumulus.storage.names import check_bucket, check_name, may_be_bucket

DIR_MODE: Final = 0o750
FRESH_S: Final = 1.0  # for which a bucket that was looked at is taken to be there
FILE_MODE: Final = 0o640
PRIVATE: Final = ("tmp", "meta")  # below INTERNAL: ours alone, no names there
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK: Final = b"d"
MARK: Final = "dir-"  # begins the names of such files
BARE: Final = "\0bare"  # behind the path of an adopted directory that could not be written
MOST_OPEN: Final = 1024  # buckets
_ATTEMPTS: Final = 20  # against others who make and remove the same directory
NO_XATTR: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.E2BIG, errno.ENOSPC, errno.ERANGE)


class Place(NamedTuple):
    """Where a bucket is. `adopted`: it is a directory elsewhere, in which `.cumulus` was made then; `bare`:
    or was not, since it could not be written."""

    path: str
    adopted: bool = False
    bare: bool = False


def split(name: str) -> list[str]:
    """Segments of a name that may be served. Raises `BadName`."""
    segments = check_name(name)
    if segments[0] == INTERNAL and (len(segments) == 1 or segments[1] in PRIVATE):
        raise BadName(f"{name!r} is the store's own")
    return segments


class Root:
    """An open bucket: descriptors of its directory, its `tmp` and its `meta`. Closed when the last user lets
    go of it, so that a bucket removed meanwhile cannot lead anyone elsewhere. `adopted`: a descriptor of that
    directory. Raises `OSError`, and `NotMounted` for one that does not show that it is the bucket's."""

    def __init__(
        self, bucket: str, path: str, files: Files, gate: Gate, *, adopted: int = -1, bare: bool = False
    ) -> None:
        self.bucket = bucket
        self.gate = gate
        self.path = path
        self._open: list[int] = []
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.fd = self._keep(os.open(path, flags) if adopted < 0 else adopted)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)
        self.opened = self.seen = time.monotonic()
        self._inner: tuple[int, int] | None = None
        self._files = files
        self.bare_at = 0  # `meta` had no sidecars when this was its mtime, in ns
        if adopted >= 0 and not _is_whole(self.fd, bare):
            what = "is empty" if bare else f"has no {INTERNAL}"
            raise NotMounted(f"the directory {path} of bucket {bucket!r} {what}; {IS_IT}")
        with contextlib.suppress(PermissionError):
            self._make_inner()

    def _make_inner(self) -> tuple[int, int]:
        try:
            internal = self._enter_inner(self.fd, INTERNAL)
            try:
                tmp = self._enter_inner(internal, "tmp")
                try:
                    meta = self._enter_inner(internal, "meta")
                except OSError:
                    os.close(tmp)
                    raise
            finally:
                os.close(internal)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise PermissionError(errno.EROFS, os.strerror(errno.EROFS)) from error
            raise
        self._inner = self._keep(tmp), self._keep(meta)
        return self._inner

    @property
    def tmp(self) -> int:
        """`.cumulus/tmp`. Raises `OSError` where there is none and none can be made: then nothing is
        written."""
        return (self._inner or self._make_inner())[0]

    @property
    def meta(self) -> int:
        """`.cumulus/meta`. Raises as `tmp`."""
        return (self._inner or self._make_inner())[1]

    def check(self) -> None:
        """Asked inside the gate, before anything is made. Raises `Missing` when the bucket has been
        removed."""
        if self.gone:
            raise Missing(f"no bucket {self.bucket!r}")

    @property
    def gone(self) -> bool:
        """Whether what is inside it has been removed, with or without the bucket: nothing is made by this
        root any more."""
        if self._inner is None:
            return False
        try:
            return not os.fstat(self._inner[0]).st_nlink
        except OSError:  # as a server says it
            return True

    @property
    def has_meta(self) -> bool:
        """Whether there is one to look into."""
        return self._inner is not None

    def _keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def _enter_inner(self, fd: int, name: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=fd)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                self._files.make_dir(fd, name, DIR_MODE)
                self._files.sync(fd)
            return os.open(name, flags, dir_fd=fd)

    def __del__(self) -> None:
        for fd in self._open:
            os.close(fd)


def _is_whole(fd: int, bare: bool) -> bool:
    try:
        os.stat(INTERNAL, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return bare and not _is_empty(fd)
    except PermissionError:
        return True
    return True


class Directory:
    """A directory below a root, open while the context is."""

    __slots__ = ("_owned", "fd")

    def __init__(self, fd: int, owned: bool) -> None:
        self.fd = fd
        self._owned = owned

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the descriptor. May be called twice."""
        if self._owned:
            self._owned = False
            os.close(self.fd)


def open_parent(root: Root, segments: Sequence[str]) -> Directory:
    """The directory of a name. Raises `Missing` where there is none, or something that is not a directory."""
    try:
        return _walk(root, segments, len(segments) - 1)
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"no {'/'.join(segments)!r} in bucket {root.bucket!r}") from None
    except OSError as error:
        raise storage_error(error, f"{root.bucket}/{'/'.join(segments)}") from error


def _walk(root: Root, segments: Sequence[str], depth: int) -> Directory:
    fd, owned = root.fd, False
    for segment in segments[:depth]:
        try:
            below = os.open(segment, _STEP, dir_fd=fd)
        finally:
            if owned:
                os.close(fd)
        fd, owned = below, True
    return Directory(fd, owned)


def make_parent(root: Root, segments: Sequence[str], files: Files) -> Directory:
    """As `open_parent`, making what is missing. Raises `Taken` where a file is in the way."""
    with translated(f"{root.bucket}/{'/'.join(segments)}"):
        try:
            return _walk(root, segments, len(segments) - 1)
        except FileNotFoundError:
            pass
        fd, owned = root.fd, False
        for depth in range(1, len(segments)):
            try:
                below = _enter(root, fd, segments[:depth], files)
            finally:
                if owned:
                    os.close(fd)
            fd, owned = below, True
    return Directory(fd, owned)


def _enter(root: Root, fd: int, path: Sequence[str], files: Files) -> int:
    for _ in range(_ATTEMPTS):  # another's removal may take away what was just made
        try:
            return os.open(path[-1], _STEP, dir_fd=fd)
        except FileNotFoundError:
            try:
                files.make_dir(fd, path[-1], DIR_MODE)
            except FileExistsError:
                continue
            try:
                _mark(root, fd, path, files)
            except OSError:
                with contextlib.suppress(OSError):
                    files.remove_dir(fd, path[-1])
                raise
    raise FileNotFoundError(errno.ENOENT, "the directory is removed again and again")


def _readable(fd: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)


def _mark_name(path: Sequence[str], inode: int) -> str:
    return f"{MARK}{hashlib.sha256('/'.join(path).encode()).hexdigest()[:32]}-{inode:x}"


def _mark(root: Root, fd: int, path: Sequence[str], files: Files) -> None:
    """Remember that we made it. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        made = _readable(fd, path[-1])
        try:
            files.set_xattr(made, _MARK)
        except OSError as error:
            if error.errno not in NO_XATTR:
                raise
            with contextlib.suppress(FileExistsError):
                inode = os.fstat(made).st_ino
                os.close(files.create(root.meta, _mark_name(path, inode), FILE_MODE))
        finally:
            os.close(made)


def _is_ours(root: Root, fd: int, path: Sequence[str]) -> bool:
    try:
        made = _readable(fd, path[-1])
    except OSError:
        return False
    try:
        return os.getxattr(made, XATTR) == _MARK
    except OSError:
        return root.has_meta and _has(root.meta, _mark_name(path, os.fstat(made).st_ino))
    finally:
        os.close(made)


def _has(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def meta_file(name: str, inode: int) -> str:
    """The name in `.cumulus/meta` of a sidecar."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}-{inode:x}"


def _remove_unmarked(root: Root, above: int, path: Sequence[str], files: Files) -> bool:
    """Remove a directory of ours if it is empty and no object. Raises `OSError`.

    Only who has seen it empty takes the lock, and who finds it filled all the same looks again: so whoever
    empties it either gets the lock or leaves it to one who is about to remove it."""
    if not _is_ours(root, above, path):
        return False
    made = _readable(above, path[-1])
    try:
        for _ in range(_ATTEMPTS):
            if not _is_empty(made):
                return False
            try:
                fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False  # somebody is about to mark it or to remove it
            except OSError:
                pass  # a file system that locks no directories
            inode = os.fstat(made).st_ino
            if _has_mark(root, made, "/".join(path) + "/", inode):
                return False
            try:
                files.remove_dir(above, path[-1])
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                with contextlib.suppress(OSError):
                    fcntl.flock(made, fcntl.LOCK_UN)
                continue
            with contextlib.suppress(FileNotFoundError):
                files.unlink(root.meta, _mark_name(path, inode))
            return True
    finally:
        os.close(made)
    return False


def _is_empty(fd: int) -> bool:
    with os.scandir(fd) as entries:
        return next(entries, None) is None


def _has_mark(root: Root, fd: int, name: str, inode: int) -> bool:
    try:
        os.getxattr(fd, MARK_XATTR)
    except OSError:
        return root.has_meta and _has(root.meta, meta_file(name, inode))
    return True


def prune(root: Root, segments: Sequence[str], files: Files) -> None:
    """Remove the directories above a removed name that are empty now, made by us, and no objects."""
    for depth in range(len(segments) - 1, 0, -1):
        path = segments[:depth]
        if path[0] == INTERNAL and depth == 1:
            return
        try:
            with _walk(root, path, depth - 1) as above:
                os.stat(path[-1], dir_fd=above.fd, follow_symlinks=False)
                if not _remove_unmarked(root, above.fd, path, files):
                    return
        except FileNotFoundError:
            continue  # never made, or gone already
        except OSError:  # a directory too many harms nobody
            return


def sweep(root: Root, files: Files) -> None:
    """Remove all directories of ours that are empty and no objects, in the whole bucket: what is left where
    somebody ended between making or emptying a directory and removing it."""
    for where, names, fd in deepest_first(root.fd):
        for name in names:
            path = f"{where}{name}".split("/")
            if path[0] == INTERNAL:
                continue
            with contextlib.suppress(OSError, UnicodeEncodeError):  # not ours, or not to be removed
                _remove_unmarked(root, fd, path, files)


def sync_path(root: Root, segments: Sequence[str], files: Files) -> None:
    """Sync the directory of a name and all above it, up to the bucket's own: others may have made them and
    not synced them yet. Raises `OSError`."""
    for depth in range(len(segments) - 1, -1, -1):
        with _walk(root, segments, depth) as directory:
            if directory.fd == root.fd:
                files.sync(root.fd)
                continue
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd)
            try:
                files.sync(fd)
            finally:
                os.close(fd)


def _most_open() -> int:
    """Buckets, each of three descriptors, that a process keeps open: a tenth of the files that it may."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if files == resource.RLIM_INFINITY else max(8, min(MOST_OPEN, files // 30))


class Buckets:
    """Buckets by name under DIR: `data/NAME`, or for one that adopts a directory, `adopted/NAME`, a file that
    holds the directory's path. `data/NAME` may be a mount point (`Mounts`)."""

    def __init__(self, path: str, files: Files, locks: Locks) -> None:
        self._files = files
        self._gate = locks.gate
        self._path = path
        self.data = os.path.join(path, "data")
        self._adopted = os.path.join(path, "adopted")
        mounted = os.path.join(path, "mounted")
        self._mounts = Mounts(mounted, self.data, self._sync)
        self._lock = threading.Lock()
        self._roots: dict[str, Root] = {}
        self._most = _most_open()
        for directory in (path, self.data, self._adopted, mounted):
            os.makedirs(directory, DIR_MODE, exist_ok=True)

    def root(self, bucket: str) -> Root:
        """Raises `NoBucket`, `NotMounted`. A bucket removed or replaced by another process is noticed."""
        found = self._roots.get(bucket)
        place = None
        try:
            own = found is not None and found.path.startswith(self.data)
            place = Place(found.path) if found and own else self._place(check_bucket(bucket))
            status = os.stat(place.path)
            there = (place.path, status.st_dev, status.st_ino)
            if found and (found.path, *found.identity) == there and not found.gone:
                found.seen = time.monotonic()
                return found
            self._roots.pop(bucket, None)
            with self._gate(bucket) as gate:  # what is made inside must not hinder a removal
                made = self._open(bucket, place, gate)
                self._keep_open(made)
            return made
        except (FileNotFoundError, NotADirectoryError):
            self._roots.pop(bucket, None)
            raise self._away(bucket, place) from None
        except OSError as error:
            raise storage_error(error, f"bucket {bucket!r}") from error

    def _keep_open(self, root: Root) -> None:
        """Not more than so many: those that nobody has asked for longest are closed when their last users let
        go of them, and opened anew when they are needed."""
        with self._lock:
            self._roots[root.bucket] = root
            while len(self._roots) > self._most:
                idle = min(list(self._roots.values()), key=lambda one: one.seen)
                self._roots.pop(idle.bucket, None)

    def is_current(self, root: Root) -> bool:
        """Whether it is still what the bucket's name means."""
        try:
            status = os.stat(self._place(root.bucket).path)
        except OSError:
            return False
        return root.identity == (status.st_dev, status.st_ino) and not root.gone

    def _open(self, bucket: str, place: Place, gate: Gate) -> Root:
        if not place.adopted:
            self._mounts.check(bucket, place.path)
            root = Root(bucket, place.path, self._files, gate)
            self._mounts.check(bucket, place.path)  # it may have gone just before that was opened
            return root
        adopted = open_directory(bucket, place.path, makers(self._path))
        return Root(bucket, place.path, self._files, gate, adopted=adopted, bare=place.bare)

    def _away(self, bucket: str, place: Place | None) -> StorageError:
        if place is not None and place.adopted:
            return NotMounted(f"the directory {place.path} of bucket {bucket!r} is missing; {IS_IT}")
        if self._mounts.known(bucket):
            return NotMounted(f"the mount point {self.data}/{bucket} is missing; {IS_IT}")
        if not os.path.isdir(self.data):
            return NotMounted(f"the directory {self.data} of all buckets is missing; {IS_IT}")
        return NoBucket(f"no bucket {bucket!r}")

    def root_now(self, bucket: str) -> Root | None:
        """The bucket if it was looked at within the last second and lies on a local file system."""
        found = self._roots.get(bucket)
        if found is None or time.monotonic() - found.seen > FRESH_S:
            return None
        return found if now.local(found.fd, found.identity[0]) else None

    def _place(self, bucket: str) -> Place:
        plain = os.path.join(self.data, bucket)
        try:
            with open(os.path.join(self._adopted, bucket), encoding="utf-8") as link:
                text = link.read()
        except FileNotFoundError:
            if stat.S_ISLNK(os.lstat(plain).st_mode):
                raise
            return Place(plain)
        return Place(text.removesuffix(BARE), adopted=True, bare=text.endswith(BARE))

    def names(self) -> list[str]:
        """All buckets, in order. Others may put directories there that can be none."""
        found = {entry.name for entry in os.scandir(self.data) if entry.is_dir(follow_symlinks=False)}
        found.update(os.listdir(self._adopted))
        return sorted(name for name in found if may_be_bucket(name))

    def create(self, bucket: str, path: str) -> None:
        """Durably. Raises `BadName` for a directory that cannot be adopted, `Taken` for a name in use with
        another directory."""
        check_bucket(bucket)
        with translated(f"bucket {bucket!r}"), self._gate(bucket) as gate, self._lock:
            try:
                there: Place | None = self._place(bucket)
            except FileNotFoundError:
                there = None
            if not path:
                if there is None:
                    os.mkdir(os.path.join(self.data, bucket), DIR_MODE)
            else:
                self._adopt(bucket, self._checked(bucket, path), there, gate)
            self._sync(self.data)
            self._sync(self._path)
            self._open(bucket, self._place(bucket), gate)

    def _checked(self, bucket: str, path: str) -> str:
        real = os.path.realpath(path)
        own = os.path.realpath(self._path)
        if not os.path.isabs(path):
            raise BadName(f"{path!r} is not a whole path, which begins with /")
        if not os.path.exists(real):
            raise BadName(f"there is no {path!r}: make the directory, or see that its disk is mounted")
        if not os.path.isdir(real):
            raise BadName(f"{path!r} is a file, not a directory")
        if os.path.commonpath((real, own)) in (real, own):
            raise BadName(f"{path!r} and the store's own {own!r} lie within each other")
        for name in os.listdir(self._adopted):
            if name == bucket or name.startswith("."):
                continue
            other = os.path.realpath(self._place(name).path)
            if os.path.commonpath((real, other)) in (real, other):
                raise BadName(
                    f"{path!r} and the directory {other!r} of bucket {name!r} lie within each other"
                )
        return real

    def _adopt(self, bucket: str, path: str, there: Place | None, gate: Gate) -> None:
        if there is not None:
            if there.path != path:
                raise Taken(f"bucket {bucket!r} is at {there.path!r}")
            return
        root = self._open(bucket, Place(path), gate)
        bare = not root.has_meta
        if bare and _is_empty(root.fd):
            raise BadName(f"{path!r} is empty and cannot be written")
        draft = os.path.join(self._adopted, "." + bucket)
        with open(draft, "w", encoding="utf-8") as link:
            link.write(path + BARE * bare)
            link.flush()
            self._files.sync(link.fileno())
        os.replace(draft, os.path.join(self._adopted, bucket))
        self._sync(self._adopted)

    def _sync(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._files.sync(fd)
        finally:
            os.close(fd)

    def remove(self, bucket: str) -> None:
        """Take the emptied directory of a bucket away, durably. Raises `NotEmptyStore` where something came
        in between, `OSError`."""
        try:
            os.rmdir(os.path.join(self.data, bucket))
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise NotEmptyStore(f"something has been put into bucket {bucket!r}") from None
            if error.errno != errno.EBUSY:  # a mount point, which stays
                raise
        self._mounts.forget(bucket)
        self._sync(self.data)
        self._roots.pop(bucket, None)

    def forget(self, bucket: str) -> None:
        """Let go of an adopted directory, durably; nothing where the bucket is none. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._adopted, bucket))
        self._sync(self._adopted)
        self._roots.pop(bucket, None)

    def close(self) -> None:
        """Let go of all buckets."""
        self._roots.clear()
