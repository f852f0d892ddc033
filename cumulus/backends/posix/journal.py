"""The journal: small changes of many threads become durable with one sync.

A change is first a record in the journal, synced together with all that wait; then it is done on the plain
files, which are not synced. A checkpoint syncs their file systems as a whole and drops the journal. So each
process has one journal file at a time, and a second one only while a checkpoint runs.

When such a sync fails, the system takes what it could not write for written: the next sync may succeed and
say nothing of it. So all journals there are then are doubtful: before one is dropped, what it has is written
to the plain files once more.

Group commit needs no timer: the first thread to add to a batch leads it. It waits for the sync under way,
meanwhile others add; then it writes and syncs the whole batch, and wakes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from cumulus.backends.posix import records
from cumulus.backends.posix.errors import storage_error
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.folders import names_in
from cumulus.backends.posix.paths import FILE_MODE, Root
from cumulus.backends.posix.records import HEAD, NOTE, REMOVAL, Change
from cumulus.storage.api import StorageError, Unavailable

SUFFIX: Final = ".journal"
DRAFT: Final = ".new"  # behind that of one which nobody writes into yet
_log: Final = logging.getLogger(__name__)
MAX_CHANGES: Final = 1000  # a checkpoint is due after so many: writers wait while it syncs what they changed
MAX_BYTES: Final = 64 << 20  # or when a journal is as long as this
MAX_AGE_S: Final = 10.0  # or its first record as old as this


def oldest(roots: Iterable[Root]) -> list[Root]:
    """Of each file system the one that was opened first: a descriptor is told only of what failed later."""
    found: dict[int, Root] = {}
    for root in sorted(roots, key=lambda root: root.opened):
        found.setdefault(root.identity[0], root)
    return list(found.values())


class Generation:
    """One journal file."""

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self.fd = fd
        self.size = size  # bytes that are whole batches
        self.changes = 0
        self.opened = time.monotonic()
        self.under_way = 0  # changes in it that are not done on the plain files yet
        self.roots: list[Root] = []  # of each file system one
        self.removals: list[bytes] = []  # frames
        self.doubtful = False  # a sync has failed since its first change

    def full(self) -> bool:
        """A checkpoint is due, however young it is."""
        return self.changes >= MAX_CHANGES or self.size >= MAX_BYTES


class Carried(NamedTuple):
    """Removals that must stay on record while one of these older journals exists: after a crash it would
    bring back what they removed."""

    older: frozenset[str]
    frames: list[bytes]


class Batch:
    """Frames that share a sync."""

    __slots__ = ("done", "error", "frames", "generation", "removals", "roots")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.removals: list[bytes] = []
        self.roots: list[Root] = []
        self.generation: Generation | None = None
        self.error: StorageError | None = None
        self.done = threading.Event()


class Journal:
    """The journal of one process in the directory `path`. `sync` false: nothing is synced, and bodies are not
    logged; it then serves only to find what a dead process was doing."""

    def __init__(self, path: str, files: Files, sync: bool) -> None:
        self._make(path, files, sync)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = path
        self._files = files
        self._sync = sync
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)  # for the keeper: something may be due
        self._idle = threading.Condition(self._lock)  # a retired journal has nothing under way
        self._writing = threading.Lock()  # held while a batch is written and synced
        self._batch = Batch()
        self._generation: Generation | None = None
        self._retired: list[Generation] = []  # to be dropped by the next checkpoint
        self._carried: list[Carried] = []
        self._bad_end: tuple[str, int] | None = None
        self._checking = threading.Lock()  # one checkpoint at a time
        self._closed = False
        self._keeper: threading.Thread | None = None
        self.settle: Callable[[], None] = lambda: None  # before a journal is dropped; may raise
        # called with an open journal and its size, where a sync has failed; may raise
        self.rewrite: Callable[[int, int], None] = lambda fd, size: None
        self._doubt_next = False  # what was written before a sync failed may be recorded after it
        self.drops = 0  # journals that were, or are about to be, dropped

    @staticmethod
    def _make(path: str, files: Files, sync: bool) -> None:
        if os.path.isdir(path):
            return
        os.makedirs(path, 0o750, exist_ok=True)
        if sync:
            above = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                files.sync(above)
            finally:
                os.close(above)

    # adding

    def add(self, change: Change, root: Root) -> Generation:
        """Return when the record is durable; then the caller does the change and calls `done`. Raises
        `NoSpace`, `Unavailable`: the change must not be done."""
        return self.add_all([(change, root)])

    def add_all(self, changes: Sequence[tuple[Change, Root]]) -> Generation:
        """The same for several, at least one: all are recorded by one sync, or none."""
        frames = [records.encode(change) for change, _ in changes]
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            batch = self._batch
            leads = not batch.frames
            batch.frames += frames
            for (change, root), frame in zip(changes, frames, strict=True):
                batch.roots.append(root)
                if change.kind == REMOVAL:
                    batch.removals.append(frame)
        if leads:
            self._lead(batch)
        else:
            batch.done.wait()
        if batch.error:
            raise batch.error
        assert batch.generation
        return batch.generation

    def done(self, generation: Generation, count: int = 1) -> None:
        """So many changes have been done on the plain files, or given up."""
        with self._lock:
            generation.under_way -= count
            if not generation.under_way and generation is not self._generation:
                self._idle.notify_all()

    def note(self, bucket: str, name: str, root: Root) -> None:
        """A durable word that the name is about to be published by a large write."""
        self.done(self.add(Change(NOTE, bucket, name), root))

    def _lead(self, batch: Batch) -> None:
        with self._writing:
            with self._lock:
                self._batch = Batch()
            try:
                self._write(batch)
            except OSError as error:
                batch.error = storage_error(error, "journal")
            finally:
                if not batch.generation and not batch.error:
                    batch.error = Unavailable("journal: it could not be written")
                batch.done.set()

    def _write(self, batch: Batch) -> None:
        """Called with `_writing` held."""
        generation = self._generation or self._open()
        data = b"".join(batch.frames)
        try:
            self._files.write(generation.fd, data)
            if self._sync:
                self._files.sync_data(generation.fd)
        except OSError:
            self._cut(generation)
            raise
        generation.size += len(data)
        with self._lock:
            generation.changes += len(batch.frames)
            generation.under_way += len(batch.frames)
            generation.roots = oldest([*generation.roots, *batch.roots])
            generation.removals += batch.removals
            batch.generation = generation
            if generation.full():
                self._wake.notify_all()

    def _cut(self, generation: Generation) -> None:
        """A batch was refused: it must not come back after a crash. Its bytes are cut off, and since what a
        failed sync leaves on disk is not known, the next journal says how much of this one counts."""
        with contextlib.suppress(OSError):
            self._files.truncate(generation.fd, generation.size)
            os.lseek(generation.fd, generation.size, os.SEEK_SET)
        self._bad_end = (generation.name, generation.size)
        self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        """Write no more into it; the next checkpoint drops it. Called with `_writing` held."""
        others = self._others()
        self._carried = [
            Carried(carried.older & others, carried.frames)
            for carried in self._carried
            if carried.older & others
        ]
        if generation.removals and others:
            self._carried.append(Carried(others, generation.removals))
        with self._lock:
            self._generation = None
            self._retired.append(generation)
            self._wake.notify_all()

    def _others(self) -> frozenset[str]:
        """Journals in the directory that are not ours."""
        own = {held.name for held in (self._generation, *self._retired) if held}
        return frozenset(name for name in names_in(self._fd) if name.endswith(SUFFIX)) - own

    def _open(self) -> Generation:
        self._have_keeper()
        name = f"{os.getpid():x}-{secrets.token_hex(8)}{SUFFIX}"
        draft = name + DRAFT  # a recovery must not see it before it is locked
        fd = self._files.create(self._fd, draft, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._files.rename(self._fd, draft, self._fd, name)
            before, counts = self._bad_end or ("", -1)
            head = records.encode(Change(HEAD, before, self._files.boot(), counts))
            data = head + b"".join(frame for carried in self._carried for frame in carried.frames)
            self._files.write(fd, data)
            if self._sync:
                self._files.sync(fd)
                self._files.sync(self._fd)
        except OSError:
            os.close(fd)
            for left in (draft, name):
                with contextlib.suppress(OSError):
                    self._files.unlink(self._fd, left)
            raise
        made = Generation(name, fd, len(data))
        self._bad_end = None
        with self._lock:
            made.doubtful, self._doubt_next = self._doubt_next, False
            self._generation = made
            self._wake.notify_all()
        return made

    def _have_keeper(self) -> None:
        """Without the thread no journal would ever go. Raises `OSError` when the system gives none now."""
        if self._keeper is None:
            keeper = threading.Thread(target=self._keep, name="cumulus-journal", daemon=True)
            try:
                keeper.start()
            except RuntimeError as bad:
                raise OSError(errno.EAGAIN, "no thread can be had") from bad
            self._keeper = keeper

    # checkpoints

    def checkpoint(self) -> None:
        """Make all that is recorded durable on the plain files and drop the journal. Raises `OSError`, and
        what `settle` and `rewrite` raise; the journal is kept then."""
        with self._checking:
            self._checkpoint()

    def _checkpoint(self) -> None:
        with self._writing:
            if self._generation:
                self._retire(self._generation)
            if self._carried and self._retired:
                self._open()
        while self._retired:
            self._drop(self._retired[0])

    def _checkpoint_if_due(self) -> None:
        """Somebody else may have made the one that was due: what came since has its time."""
        with self._checking:
            with self._lock:
                due = self._due() <= 0
            if due:
                self._checkpoint()

    def _drop(self, generation: Generation) -> None:
        with self._lock:
            self._idle.wait_for(lambda: not generation.under_way)
            self.drops += 1  # who acts on a change from now on does not count on its record
        self.settle()
        if self._sync:
            if generation.doubtful:
                self.rewrite(generation.fd, generation.size)
            for root in generation.roots:
                self._sync_all(root)
        self._files.unlink(self._fd, generation.name)
        os.close(generation.fd)
        with self._lock:
            self._retired.remove(generation)

    def _sync_all(self, root: Root) -> None:
        try:
            self._files.sync_all(root.fd)
        except OSError:
            with self._lock:
                self._doubt_next = True
                for generation in (self._generation, *self._retired):
                    if generation:
                        generation.doubtful = True
            raise

    def _keep(self) -> None:
        """The thread that makes checkpoints when they are due."""
        failed = False
        while True:
            with self._lock:
                if failed and not self._closed:
                    self._wake.wait(1.0)
                while not self._closed and (due := self._due()) > 0:
                    self._wake.wait(due if due < math.inf else None)
                if self._closed:
                    return
            try:
                self._checkpoint_if_due()
                failed = False
            except (OSError, StorageError) as error:
                failed = True
                _log.error("checkpoint of %s failed, it will be tried again: %s", self._path, error)

    def _due(self) -> float:
        """Seconds until the next checkpoint."""
        if self._retired:
            return 0.0
        if not self._generation:
            return math.inf
        if self._generation.full():
            return 0.0
        return self._generation.opened + MAX_AGE_S - time.monotonic()

    def close(self) -> None:
        """A last checkpoint. Raises as `checkpoint` if it fails; the next start then recovers what is
        recorded. What must stay on record while others run is left in a journal for the next start, too."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake.notify_all()
        if self._keeper:
            self._keeper.join()
        try:
            self.checkpoint()
        finally:
            for generation in (self._generation, *self._retired):
                if generation:
                    os.close(generation.fd)
            os.close(self._fd)
