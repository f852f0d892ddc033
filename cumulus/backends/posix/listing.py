"""Names of a bucket in the order of their bytes, page by page, in bounded memory.

The order is of whole paths, so a directory takes its place as "name/": `a-b` < `a.c` < `a/d` < `a0`.
(Python's order of strings is that of their UTF-8.) Of a directory the next `WINDOW` names are held in order;
they are kept for the next page, as long as the directory's mtime stays.
"""

from __future__ import annotations

import bisect
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from cumulus.backends.posix import bodies, marks
from cumulus.backends.posix.errors import storage_error
from cumulus.backends.posix.folders import READ, reopen
from cumulus.backends.posix.meta import entry_of
from cumulus.backends.posix.paths import PRIVATE, Directory, Root
from cumulus.storage.api import INTERNAL, Entry
from cumulus.storage.names import MAX_NAME, below

WINDOW: Final = 32_768
_KEPT: Final = 4  # windows
_BODY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SETTLED_NS: Final = 100_000_000  # a younger mtime may stay the same over the next change


class _Window(NamedTuple):
    """The smallest names of a directory from `edge` on, directories with "/" at their end; `whole`: there are
    no more."""

    mtime_ns: int
    edge: str
    names: list[str]
    whole: bool

    def serves(self, edge: str, mtime_ns: int) -> bool:
        """Whether it still shows the names from `edge` on."""
        return self.mtime_ns == mtime_ns and self.edge <= edge and (self.whole or self.names[-1] >= edge)


class Listing:
    """Lists buckets; keeps a few windows between calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], _Window] = OrderedDict()

    def names(self, root: Root, after: str, prefix: str, limit: int) -> list[Entry]:
        """As `FileStore.names`."""
        found: list[Entry] = []
        if limit > 0:
            try:
                for entry in self._walk(root, root.fd, "", after, prefix):
                    found.append(entry)
                    if len(found) >= limit:
                        break
            except OSError as error:
                raise storage_error(error, f"listing of {root.bucket}") from error
        return found

    def _walk(self, root: Root, fd: int, path: str, after: str, prefix: str) -> Iterator[Entry]:
        """Entries below the directory `path` ("" or ending in "/")."""
        for name in self._ordered(fd, path, after, prefix):
            full = path + name
            if not name.endswith("/"):
                if full > after and full.startswith(prefix):
                    entry = entry_at(root, fd, full, name)
                    if entry:
                        yield entry
                continue
            if len(full) > MAX_NAME or not _may_hold(full, after, prefix):
                continue
            try:
                inner = os.open(name[:-1], READ, dir_fd=fd)
            except OSError:
                continue  # gone meanwhile, or closed to us: what cannot be read is not listed
            try:
                if full > after and full.startswith(prefix):
                    marked = marks.entry_at(root, full, inner)
                    if marked:
                        yield marked
                yield from self._walk(root, inner, full, after, prefix)
            finally:
                os.close(inner)

    def _ordered(self, fd: int, path: str, after: str, prefix: str) -> Iterator[str]:
        """Names in the directory in order, from the first that may matter to the last."""
        # what remains of `after` and `prefix` here, up to the next "/"
        behind = after[len(path) :].partition("/")[0] if after.startswith(path) else ""
        wanted = prefix[len(path) :].partition("/")[0] if prefix.startswith(path) else ""
        edge = max(behind, wanted)
        while True:
            window = self._window(fd, edge)
            for name in window.names[bisect.bisect_left(window.names, edge) :]:
                if name > wanted and not name.startswith(wanted):
                    return
                yield name
            if window.whole:
                return
            edge = window.names[-1] + "\0"

    def _window(self, fd: int, edge: str) -> _Window:
        """Names from `edge` on; from memory where the directory has not changed since."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino)
        with self._lock:
            kept = self._kept.get(key)
            if kept and kept.serves(edge, status.st_mtime_ns):
                self._kept.move_to_end(key)
                return kept
        settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        names, whole = _smallest(fd, edge)
        window = _Window(status.st_mtime_ns, edge, names, whole)
        if settled:
            with self._lock:
                self._kept[key] = window
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return window


def _smallest(fd: int, edge: str) -> tuple[list[str], bool]:
    """Up to `WINDOW` names from `edge` on in order, and whether these are all."""
    try:
        own = reopen(fd)
    except PermissionError:
        return [], True  # names that nobody may follow
    try:
        names: list[str] = []
        last, whole = "", True
        with os.scandir(own) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    name += "/"
                elif not entry.is_file(follow_symlinks=False):
                    continue
                if name < edge or (last and name > last) or not (name.isascii() or is_utf8(name)):
                    continue
                names.append(name)
                if len(names) >= 2 * WINDOW:
                    names.sort()
                    del names[WINDOW:]
                    last, whole = names[-1], False
    finally:
        os.close(own)
    names.sort()
    if len(names) > WINDOW:
        del names[WINDOW:]
        whole = False
    return names, whole


def is_utf8(name: str) -> bool:
    """Whether a name that the system gave is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _may_hold(full: str, after: str, prefix: str) -> bool:
    """Whether the directory `full` (ending in "/") may hold names that are asked for."""
    if below(full, after) or not (full.startswith(prefix) or prefix.startswith(full)):
        return False
    if full.startswith(INTERNAL + "/"):
        if not prefix.startswith(INTERNAL + "/"):
            return False
        return full.split("/")[1] not in PRIVATE
    return True


def entry_at(root: Root, fd: int, full: str, name: str, bare_before: int = 0) -> Entry | None:
    """Of `name` in the open directory, that was a plain file a moment ago; `full` is its whole name. None for
    one that is none any more; one that we may not open is listed without meta. Files that changed last before
    `bare_before` (ns) have no sidecars. Raises `OSError`, `Unavailable`."""
    for _ in range(bodies.TRIES):
        try:
            body = os.open(name, _BODY, dir_fd=fd)
        except PermissionError:
            status = bodies.look(Directory(fd, False), name)
            return entry_of(full, status, None) if status and stat.S_ISREG(status.st_mode) else None
        except OSError:
            return None
        try:
            status = os.fstat(body)  # before the record, see `bodies.entry_of`
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_ctime_ns < bare_before and _bare(body):
                return entry_of(full, status, None)
            record = bodies.record_of(root, full, body, status)
            if record is not None or bodies.has_name(fd, name, status):  # see `bodies.open_entry`
                return entry_of(full, status, record)
        finally:
            os.close(body)
    raise bodies.restless(full)


def _bare(body: int) -> bool:
    """Whether it has no extended attribute; an empty list costs less than an error."""
    try:
        return not os.listxattr(body)
    except OSError:
        return False
