"""After a crash: journals of dead processes are replayed onto the plain files.

A journal belongs to a living process while that holds its lock. If the machine has run on since it was
written, nothing is lost from memory and there is nothing to replay. Else, name by name, the latest change
counts: a body that is missing, damaged or older is written again, a removed one is removed again. A file
that others have put there since, or a later one of ours, stays; one that may be older or younger is put aside
(`past`). Where the sync of that fails, the next
attempt does not believe what it reads, which may be in memory only, and writes all again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from cumulus.backends.posix import bodies, marks, paths, records, sidecar
from cumulus.backends.posix.bodies import Draft
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.journal import DRAFT, SUFFIX, oldest
from cumulus.backends.posix.locks import Locks
from cumulus.backends.posix.meta import Record, token_of
from cumulus.backends.posix.mounts import NotMounted
from cumulus.backends.posix.past import Past, Verdict, may_go_aside, put_aside
from cumulus.backends.posix.paths import Buckets, Directory, Root
from cumulus.backends.posix.records import HEAD, PUT, REMOVAL, VOID, Change
from cumulus.storage.api import Entry, Missing, StorageError, Unavailable

_log: Final = logging.getLogger(__name__)
UNSYNCED: Final = "unsynced"  # in the directory of journals while what was replayed is not on disk
_DRAFT_S: Final = 3600.0  # a draft of a journal gets its name at once
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
Key = tuple[str, str]  # bucket, name
Own = Callable[[Draft, os.stat_result | None, bytes], None]


class _Found(NamedTuple):
    """One journal: where each change lies in it."""

    name: str
    fd: int
    dead: bool
    lost: bool  # written in another run of the machine, so what was not synced is gone
    changes: list[tuple[int, Change]]  # (offset, change without its body)


class Recovery:
    """One pass over the journals in `path`. `own` gives a draft its owner (`Publisher.own`)."""

    def __init__(self, path: str, files: Files, buckets: Buckets, locks: Locks, own: Own) -> None:
        self._path = path
        self._files = files
        self._buckets = buckets
        self._locks = locks
        self._own = own
        self._again = False  # an earlier attempt may have written what its sync did not bring to disk
        self._past: dict[Key, Past] = {}
        self._aside: list[Key] = []  # names that were given to what may be of others
        self._done: list[str] = []  # journals that need not be read again

    def run(self) -> Iterator[tuple[str, Entry]]:
        """Replay and sync; then yield what may be news. The journals stay until `finish`. Raises
        `StorageError`."""
        with translated("journal"):
            directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # one recovery at a time
            with translated("journal"):
                touched = self._replay_all(directory)
        finally:
            os.close(directory)
        for bucket, name in sorted(touched):
            entry = self._entry(bucket, name)
            if entry:
                yield bucket, entry

    def finish(self) -> None:
        """What was yielded is known: drop the journals. Raises `StorageError`."""
        with translated("journal"):
            directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                while self._done:
                    with contextlib.suppress(FileNotFoundError):
                        self._files.unlink(directory, self._done[-1])
                    self._done.pop()
            finally:
                os.close(directory)

    def _replay_all(self, directory: int) -> set[Key]:
        found: list[_Found] = []
        try:
            for name in sorted(os.listdir(directory)):
                with contextlib.suppress(FileNotFoundError):  # a process that lives needs it no more
                    if name.endswith(SUFFIX):
                        found.append(self._open(directory, name))
                    elif name.endswith(SUFFIX + DRAFT):
                        self._drop_draft(directory, name)
            changes = _latest(found)
            self._past = _past(found)
            dead = [journal for journal in found if journal.dead]
            keys: set[Key] = set()
            waiting: set[str] = set()
            due: list[tuple[Change, _Found, int]] = []
            for journal in dead:
                for offset, change in journal.changes:
                    if change.kind in (HEAD, VOID):
                        continue
                    keys.add((change.bucket, change.name))
                    if journal.lost and changes.get((change.bucket, change.name)) is change:
                        due.append((change, journal, offset))
            # over all journals: what was removed makes way for names that came afterwards ("a" and "a/b")
            due.sort(key=lambda one: (one[0].kind == PUT, one[0].stamp))
            if due:
                self._again = self._begin(directory)
            for _, journal, offset in due:
                if not self._replay(_whole(journal.fd, offset)):
                    waiting.add(journal.name)
            keys.update(self._aside)
            self._sync(keys)
            if due:
                self._files.unlink(directory, UNSYNCED)
            for journal in dead:
                if journal.name in waiting:
                    _log.warning("%s/%s waits for a bucket that is away", self._path, journal.name)
                    continue
                self._done.append(journal.name)
            return keys
        finally:
            for journal in found:
                os.close(journal.fd)

    def _drop_draft(self, directory: int, name: str) -> None:
        """Of a process that has ended before it had its journal. Raises `OSError`."""
        if time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime > _DRAFT_S:
            self._files.unlink(directory, name)

    def _begin(self, directory: int) -> bool:
        """Note that what is replayed is not synced yet; whether that was noted before. Raises `OSError`."""
        try:
            os.close(self._files.create(directory, UNSYNCED, paths.FILE_MODE))
        except FileExistsError:
            return True
        self._files.sync(directory)
        return False

    def _open(self, directory: int, name: str) -> _Found:
        fd = os.open(name, _OPEN, dir_fd=directory)
        dead = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            dead = False
        changes = [(offset, _light(change)) for offset, change in records.read(fd)]
        boot = changes[0][1].name if changes else ""
        return _Found(name, fd, dead, boot != self._files.boot(), changes)

    # without a crash

    def rewrite(self, fd: int, size: int) -> None:
        """What the first bytes of an open journal have, as far as it is what has its name now, is written to
        a new file and synced, with the directories above. Raises `OSError`, `StorageError`."""
        changes = [(offset, _light(change)) for offset, change in records.read(fd) if offset < size]
        latest = _latest([_Found("", fd, False, False, changes)])
        for offset, change in changes:
            if latest.get((change.bucket, change.name)) is change:
                self._rewrite(_whole(fd, offset))

    def _rewrite(self, change: Change) -> None:
        with self._locks.gate(change.bucket):
            try:
                root = self._buckets.root(change.bucket)
            except Missing:
                if change.bucket in self._buckets.names():
                    raise Unavailable(f"bucket {change.bucket!r} is away") from None
                return
            segments = paths.split(change.name)
            with self._locks.of(change.bucket, change.name):
                if change.kind == PUT:
                    self._put_again(root, segments, change)
                _sync_above(root, segments, self._files)

    def _put_again(self, root: Root, segments: list[str], change: Change) -> None:
        with contextlib.suppress(Missing), paths.open_parent(root, segments) as parent:
            fd = bodies.open_body(parent, segments[-1], change.name)
            try:
                there = os.fstat(fd)
                record = bodies.record_of(root, change.name, fd, there)
            finally:
                os.close(fd)
            if record is None or record.mtime_ns > change.stamp:
                return  # of others, or a later one, which may have the inode
            if there.st_ino != change.inode and record.stamp != change.stamp:
                return
            with self._draft(root, change, there, record.stamp, record.meta, sync=True) as draft:
                self._files.sync(draft.fd)
                now = bodies.look(parent, segments[-1])
                if now is None or token_of(now) != token_of(there):  # others have no locks
                    draft.drop()
                    return
                self._files.rename(root.tmp, draft.temporary, parent.fd, segments[-1])
            sidecar.drop(root, change.name, there.st_ino, self._files)

    @contextlib.contextmanager
    def _draft(
        self, root: Root, change: Change, old: os.stat_result | None, stamp: int, meta: bytes, *, sync: bool
    ) -> Iterator[Draft]:
        """The body of a change in a draft, which gets its name inside. Raises `OSError`."""
        draft = Draft(root, self._files)
        try:
            draft.write(change.body)
            self._own(draft, old, meta)
            draft.stamp(change.name, stamp, meta, sync)
            yield draft
        except OSError:
            draft.drop()
            raise
        draft.close()

    # one name

    def _replay(self, change: Change) -> bool:
        """Do a change again if it was lost. False where the bucket cannot be reached now."""
        with self._locks.gate(change.bucket):
            return self._replay_inside(change)

    def _replay_inside(self, change: Change) -> bool:
        try:
            root = self._buckets.root(change.bucket)
        except NotMounted:
            return False
        except Missing:
            return change.bucket not in self._buckets.names()  # removed with all that was in it
        with self._locks.of(change.bucket, change.name) as stripe:
            if stripe.floor > change.stamp and self._superseded(change):
                return True
            stripe.raise_floor(change.stamp)
            if change.kind == PUT:
                self._put(root, change)
            elif change.kind == REMOVAL:
                self._remove(root, change)
        return True

    def _superseded(self, change: Change) -> bool:
        """Whether a living process has removed the name since the journals were read: it holds the name's
        lock while it does, so its record is there now."""
        for file in os.listdir(self._path):
            if not file.endswith(SUFFIX):
                continue
            with (
                contextlib.suppress(FileNotFoundError),
                open(os.path.join(self._path, file), "rb") as journal,
            ):
                for _, later in records.read(journal.fileno()):
                    same = (later.bucket, later.name) == (change.bucket, change.name)
                    if same and later.kind == REMOVAL and later.stamp > change.stamp:
                        return True
        return False

    def _put(self, root: Root, change: Change) -> None:
        segments = paths.split(change.name)
        with paths.make_parent(root, segments, self._files) as parent:
            there = bodies.look(parent, segments[-1])
            if there and not self._makes_way(root, change, parent, segments, there):
                return
            with self._draft(root, change, there, change.stamp, change.meta, sync=False) as draft:
                self._files.rename(root.tmp, draft.temporary, parent.fd, segments[-1])

    def _remove(self, root: Root, change: Change) -> None:
        segments = paths.split(change.name)
        with contextlib.suppress(Missing), paths.open_parent(root, segments) as parent:
            there = bodies.look(parent, segments[-1])
            if not there or not self._makes_way(root, change, parent, segments, there):
                return
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(parent.fd, segments[-1])
            sidecar.drop(root, change.name, there.st_ino, self._files)
        paths.prune(root, segments, self._files)

    def _makes_way(
        self, root: Root, change: Change, parent: Directory, segments: list[str], there: os.stat_result
    ) -> bool:
        """Whether the change is to be done over what is there, which has a second name then where it may be
        of others. Raises `OSError`."""
        if not stat.S_ISREG(there.st_mode):
            return False
        fd = bodies.open_body(parent, segments[-1], change.name)
        try:
            record = bodies.record_of(root, change.name, fd, there)
            if record is not None and record.stamp == change.stamp:
                return change.kind == REMOVAL or self._again or not _is_done(fd, record, change)
            verdict = self._past[change.bucket, change.name].judge(fd, there, record, change)
            if verdict == Verdict.UNKNOWN and not may_go_aside(segments):
                verdict = Verdict.LATER if record is None else Verdict.FORMER
            if verdict == Verdict.UNKNOWN:
                aside = put_aside(root, segments, parent, fd, self._files)
                self._aside.append((change.bucket, aside))
                _log.warning(
                    "%s/%s: a file of others that was there may be older than the change of it that a crash "
                    "interrupted, or younger: it is kept as %s", change.bucket, change.name, aside,
                )  # fmt: skip
            return verdict != Verdict.LATER
        finally:
            os.close(fd)

    # afterwards

    def _sync(self, keys: set[Key]) -> None:
        """Everything under the names of the journals, whole file systems at a time."""
        roots: list[Root] = []
        for bucket in {bucket for bucket, _ in keys}:
            with contextlib.suppress(Missing, NotMounted):
                roots.append(self._buckets.root(bucket))
        for root in oldest(roots):
            self._files.sync_all(root.fd)

    def _entry(self, bucket: str, name: str) -> Entry | None:
        try:
            root = self._buckets.root(bucket)
            if marks.is_directory(name):
                return marks.stat(root, name)
            segments = paths.split(name)
            with paths.open_parent(root, segments) as parent:
                fd, entry = bodies.open_entry(root, parent, segments[-1], name)
        except StorageError:
            return None
        os.close(fd)
        return entry


def _sync_above(root: Root, segments: list[str], files: Files) -> None:
    """The directories of a name that are there. Raises `OSError`."""
    while segments:
        try:
            paths.sync_path(root, segments, files)
            return
        except (FileNotFoundError, NotADirectoryError):
            segments = segments[:-1]


def _light(change: Change) -> Change:
    return Change(change.kind, change.bucket, change.name, change.stamp, change.inode, change.before)


def _whole(fd: int, offset: int) -> Change:
    return next(records.read(fd, offset))[1]


def _past(found: list[_Found]) -> dict[Key, Past]:
    """Of all names in the journals."""
    past: dict[Key, Past] = {}
    for journal in found:
        for offset, change in journal.changes:
            known = past.setdefault((change.bucket, change.name), Past())
            known.add(change, partial(_body, journal.fd, offset))
    return past


def _body(fd: int, offset: int) -> bytes:
    return _whole(fd, offset).body


def _is_done(fd: int, record: Record, change: Change) -> bool:
    """Whether the file, which is what was put, is whole."""
    return os.pread(fd, len(change.body) + 1, 0) == change.body and record.meta == change.meta


def _latest(found: list[_Found]) -> dict[Key, Change]:
    """The last change of each name that counts, over all journals."""
    ends = {
        head.bucket: head.stamp
        for journal in found
        for _, head in journal.changes[:1]
        if head.kind == HEAD and head.stamp >= 0
    }
    voids = {
        (change.bucket, change.name, change.stamp)
        for journal in found
        for _, change in journal.changes
        if change.kind == VOID
    }
    latest: dict[Key, Change] = {}
    for journal in found:
        end = ends.get(journal.name)
        for offset, change in journal.changes:
            if end is not None and offset >= end:
                break
            if change.kind not in (PUT, REMOVAL) or (change.bucket, change.name, change.stamp) in voids:
                continue
            key = (change.bucket, change.name)
            if key not in latest or latest[key].stamp < change.stamp:
                latest[key] = change
    return latest
