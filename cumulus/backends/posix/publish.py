"""How bytes get, change and lose their name: the order of syncs, locks and renames in one place.

Large: draft written, stamped and synced -> lock -> condition -> rename -> directories synced.
Small: draft written -> lock -> condition, stamp -> journal synced -> rename; the plain file is synced by the
next checkpoint. Nothing is visible before it is durable, and a failure before the rename leaves everything
as it was.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from cumulus.backends.posix import bodies, paths, sidecar
from cumulus.backends.posix.bodies import Draft
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.freeing import Freeing
from cumulus.backends.posix.journal import Generation, Journal
from cumulus.backends.posix.locks import Locks, Stripe
from cumulus.backends.posix.marks import Marks
from cumulus.backends.posix.meta import Record, entry_of, last_change, mtime_of, token_of
from cumulus.backends.posix.paths import Directory, Root
from cumulus.backends.posix.records import PUT, REMOVAL, VOID, Change
from cumulus.storage.api import Entry, IfToken, Missing, StorageError, Taken, Token, check_token

SMALL: Final = 64 << 10  # bytes of body that go through the journal
_TICK_S: Final = 0.05  # no clock of a file system that tells milliseconds stands still for longer
_PAUSE_S: Final = 0.001
_TRIES: Final = 20  # times that a directory may vanish under a new name


def next_stamp(old: os.stat_result | None, stripe: Stripe | None = None) -> int:
    """Larger than that of what is replaced, and than those of what was removed."""
    floor = max(last_change(old) if old else 0, stripe.floor if stripe else 0)
    return max(time.time_ns(), floor + 1)


class Publisher:
    """Changes of names in one tree."""

    def __init__(self, files: Files, locks: Locks, journal: Journal, sync: bool) -> None:
        self._files = files
        self._locks = locks
        self._journal = journal
        self._sync = sync
        self._freeing = Freeing()
        self.marks = Marks(files, locks, journal, sync)
        self.owner_of: Callable[[bytes], tuple[int, int] | None] = lambda _: None

    def close(self) -> None:
        """End its thread."""
        self._freeing.close()

    # a new body

    def own(self, draft: Draft, old: os.stat_result | None, meta: bytes) -> None:
        """Give the draft the owner and mode of what it replaces, or else the owner that its record says.
        Raises `OSError`."""
        if old is not None:
            draft.adopt_mode(old)
        elif owner := self.owner_of(meta):
            draft.give(*owner)

    def publish(
        self, root: Root, name: str, draft: Draft, meta: bytes, if_token: IfToken, body: bytes | None
    ) -> Entry:
        """Give the draft its name; `body` is the whole of it where it is small. Raises as
        `ObjectStream.commit`; then the draft is the caller's still."""
        segments = paths.split(name)
        try:
            with translated(f"{root.bucket}/{name}"):
                if body is not None and self._sync:
                    return self._publish_small(root, name, segments, draft, meta, if_token, body)
                return self._publish_large(root, name, segments, draft, meta, if_token)
        except StorageError:
            paths.prune(root, segments, self._files)  # directories made for nothing
            raise

    def _publish_small(
        self,
        root: Root,
        name: str,
        segments: Sequence[str],
        draft: Draft,
        meta: bytes,
        if_token: IfToken,
        body: bytes,
    ) -> Entry:
        with self._freeing.after() as held, root.gate, self._locks.of(root.bucket, name) as stripe:
            root.check()
            with paths.make_parent(root, segments, self._files) as parent:
                old = bodies.look_for_write(parent, segments[-1], name)
                check_token(name, token_of(old) if old else None, if_token)
                self.own(draft, old, meta)
                stamp = draft.stamp(name, next_stamp(old, stripe), meta, sync=False)
                before = token_of(old) if old else b""
                change = Change(PUT, root.bucket, name, stamp, draft.inode, before, meta, body)
                generation = self._journal.add(change, root)
                held.hold(parent.fd, segments[-1], old)
                try:
                    self._place(root, segments, draft, parent)
                except BaseException:
                    self._void(change, root, generation)
                    raise
                self._journal.done(generation)
                return self._published(root, name, draft, old)

    def _publish_large(
        self,
        root: Root,
        name: str,
        segments: Sequence[str],
        draft: Draft,
        meta: bytes,
        if_token: IfToken,
    ) -> Entry:
        old = _look_early(root, segments, name)
        check_token(name, token_of(old) if old else None, if_token)
        stamp = self._settle(name, draft, old, next_stamp(old), meta)
        self._journal.note(root.bucket, name, root)
        with self._freeing.after() as held, root.gate, self._locks.of(root.bucket, name) as stripe:
            root.check()
            with paths.make_parent(root, segments, self._files) as parent:
                now = bodies.look_for_write(parent, segments[-1], name)
                check_token(name, token_of(now) if now else None, if_token)
                late = stamp >= _floor(now, stripe)
                if not late or _mode(now) != _mode(old) or not draft.is_stamped():
                    self._settle(name, draft, now, next_stamp(now, stripe), meta)
                held.hold(parent.fd, segments[-1], now)
                self._place(root, segments, draft, parent)
                if self._sync:
                    paths.sync_path(root, segments, self._files)
                return self._published(root, name, draft, now)

    def _settle(self, name: str, draft: Draft, old: os.stat_result | None, stamp: int, meta: bytes) -> int:
        self.own(draft, old, meta)
        stamp = draft.stamp(name, stamp, meta, self._sync)
        if self._sync:
            self._files.sync(draft.fd)
        return stamp

    def _place(self, root: Root, segments: Sequence[str], draft: Draft, parent: Directory) -> None:
        for _ in range(_TRIES):
            try:
                self._files.rename(draft.directory, draft.temporary, parent.fd, segments[-1])
                draft.named = True
                return
            except FileNotFoundError:  # a removal took the empty directory, or a sweep the draft
                os.stat(draft.temporary, dir_fd=draft.directory, follow_symlinks=False)
            with paths.make_parent(root, segments, self._files) as again:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rename(draft.directory, draft.temporary, again.fd, segments[-1])
                    draft.named = True
                    return
        raise Taken(f"the directory of {'/'.join(segments)!r} is removed again and again")

    def _published(self, root: Root, name: str, draft: Draft, old: os.stat_result | None) -> Entry:
        if old:
            sidecar.drop(root, name, old.st_ino, self._files)
        return entry_of(name, os.fstat(draft.fd), draft.record)

    def _void(self, change: Change, root: Root, generation: Generation) -> None:
        """The journal has a change that cannot be done: say so there, before its caller hears of it."""
        self._journal.done(generation)
        with contextlib.suppress(StorageError):
            void = Change(VOID, change.bucket, change.name, change.stamp)
            self._journal.done(self._journal.add(void, root))

    # removal, meta, links

    def remove(self, root: Root, name: str, if_token: Token | None) -> int:
        """As `FileStore.delete`."""
        segments = paths.split(name)
        lock = self._locks.of(root.bucket, name)
        with translated(f"{root.bucket}/{name}"), self._freeing.after() as held, lock as stripe:
            with paths.open_parent(root, segments) as parent:
                old = bodies.look(parent, segments[-1])
                if old is None or not stat.S_ISREG(old.st_mode):
                    raise Missing(f"no {name!r} in bucket {root.bucket!r}")
                check_token(name, token_of(old), if_token)
                stamp = next_stamp(old, stripe)
                stripe.raise_floor(stamp)
                change = Change(REMOVAL, root.bucket, name, stamp, 0, token_of(old))
                generation = self._journal.add(change, root)
                held.hold(parent.fd, segments[-1], old)
                try:
                    self._files.unlink(parent.fd, segments[-1])
                except BaseException:
                    self._void(change, root, generation)
                    raise
                self._journal.done(generation)
            sidecar.drop(root, name, old.st_ino, self._files)
            paths.prune(root, segments, self._files)
        return stamp

    def set_meta(self, root: Root, name: str, meta: bytes, if_token: Token) -> Entry:
        """As `FileStore.set_meta`."""
        segments = paths.split(name)
        with translated(f"{root.bucket}/{name}"), self._locks.of(root.bucket, name) as stripe:
            with paths.open_parent(root, segments) as parent:
                fd = bodies.open_body(parent, segments[-1], name)
            try:
                status = os.fstat(fd)
                check_token(name, token_of(status), if_token)
                stamp = next_stamp(status, stripe)
                self._journal.note(root.bucket, name, root)
                record = Record(status.st_ino, status.st_size, mtime_of(status), stamp, meta)
                bodies.put_record(root, name, fd, record, self._files, self._sync)
                self._renew_token(fd, status)
                stripe.raise_floor(stamp)
                if self._sync:
                    self._files.sync(fd)
                    paths.sync_path(root, segments, self._files)
                return entry_of(name, os.fstat(fd), record)
            finally:
                os.close(fd)

    def _renew_token(self, fd: int, old: os.stat_result) -> None:
        """By its token others know that a file has another record than the one they have read. A sidecar does
        not touch the file, and a file system's clock stands still for some milliseconds: so it gets a later
        ctime. Of files of others, where we may not do that, the token stays. Raises `OSError`."""
        end = time.monotonic() + _TICK_S
        with contextlib.suppress(PermissionError):
            while token_of(os.fstat(fd)) == token_of(old):
                self._files.set_times(fd, old.st_mtime_ns)
                if time.monotonic() >= end:
                    return
                if token_of(os.fstat(fd)) == token_of(old):
                    time.sleep(_PAUSE_S)

    def link(self, root: Root, name: str, to: str) -> Entry:
        """As `FileStore.link`; durable at once, since the next commit may take its bytes' only other name: a
        small one by the journal, as if it were put again under the second name. What has had that name before
        and lost it must not lose it again when the journal is replayed: its record gets a later stamp."""
        segments, target = paths.split(name), paths.split(to)
        stripe, other = self._locks.of(root.bucket, name), self._locks.of(root.bucket, to)
        with translated(f"{root.bucket}/{to}"), root.gate, ExitStack() as locks:
            for one in sorted({stripe, other}, key=lambda one: one.number):
                locks.enter_context(one)
            root.check()
            if _is_there(root, target):  # before that is recorded: to take it back would take back the first
                raise Taken(f"{to!r} is there already")
            with paths.open_parent(root, segments) as parent:
                fd = bodies.open_body(parent, segments[-1], name)
                try:
                    status = os.fstat(fd)
                    record = bodies.record_of(root, name, fd, status)
                    renewed = record is not None and record.stamp <= other.floor
                    if record is not None and renewed:
                        record = record._replace(stamp=next_stamp(status, other))
                        bodies.put_record(root, name, fd, record, self._files, self._sync)
                        stripe.raise_floor(record.stamp)
                    change = self._as_put(root, to, fd, status, record)
                    generation = self._journal.add(change, root) if change else None
                    try:
                        if record and sidecar.find(root, name, status.st_ino):
                            sync = self._sync and not change
                            sidecar.write(root, to, record, self._files, sync)
                        with paths.make_parent(root, target, self._files) as beside:
                            self._files.link(parent.fd, segments[-1], beside.fd, target[-1])
                    except BaseException:
                        if change and generation:
                            self._void(change, root, generation)
                        raise
                    if generation:
                        self._journal.done(generation)
                    elif self._sync:
                        if record is None or renewed:  # else it was synced when it was published
                            self._files.sync(fd)
                        paths.sync_path(root, target, self._files)
                    return bodies.entry_of(root, to, fd)
                finally:
                    os.close(fd)

    def _as_put(
        self, root: Root, name: str, fd: int, status: os.stat_result, record: Record | None
    ) -> Change | None:
        """What puts a small object of ours under another name; None for others."""
        if not self._sync or record is None or status.st_size > SMALL:
            return None
        body = os.pread(fd, status.st_size, 0)
        if len(body) < status.st_size:
            return None  # others are at it
        return Change(PUT, root.bucket, name, record.stamp, status.st_ino, b"", record.meta, body)


def _look_early(root: Root, segments: Sequence[str], name: str) -> os.stat_result | None:
    """What has the name, outside all locks, so nothing is made for it. Raises as `bodies.look_for_write`."""
    try:
        with paths.open_parent(root, segments) as parent:
            return bodies.look_for_write(parent, segments[-1], name)
    except Missing:
        return None


def _is_there(root: Root, segments: Sequence[str]) -> bool:
    """Whether anything has the name. Raises `StorageError`, `OSError`."""
    try:
        with paths.open_parent(root, segments) as parent:
            return bodies.look(parent, segments[-1]) is not None
    except Missing:
        return False


def _floor(old: os.stat_result | None, stripe: Stripe) -> int:
    """The smallest stamp that is late enough."""
    return max(last_change(old) if old else 0, stripe.floor) + 1


def _mode(status: os.stat_result | None) -> tuple[int, int, int] | None:
    return (status.st_uid, status.st_gid, status.st_mode) if status else None
