"""A tree of plain files as an object store: `DIR/data/BUCKET/NAME` (specification: Cumulus, POSIX layout)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cumulus.backends.posix import bodies, copied, marks, now, paths, removal, scan, sidecar
from cumulus.backends.posix.ahead import Ahead
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.folders import names_in
from cumulus.backends.posix.journal import Journal
from cumulus.backends.posix.links import can_link
from cumulus.backends.posix.listing import Listing
from cumulus.backends.posix.locks import Locks
from cumulus.backends.posix.many import BatchPublisher, Gone, One
from cumulus.backends.posix.meta import Record
from cumulus.backends.posix.mounts import NotMounted
from cumulus.backends.posix.paths import Buckets, Root
from cumulus.backends.posix.publish import SMALL
from cumulus.backends.posix.ranges import Filled, Ranges
from cumulus.backends.posix.recovery import Recovery
from cumulus.backends.posix.streams import Reader, Writer, check_copied
from cumulus.backends.posix.unserved import first_other
from cumulus.reserve import Reserve
from cumulus.storage.api import (
    ABSENT,
    BadName,
    Capabilities,
    Changed,
    Entry,
    FileStore,
    Forbidden,
    IfToken,
    Missing,
    NoSpace,
    NotEmptyStore,
    ObjectStream,
    Piece,
    RangeStream,
    ReadOnly,
    StorageError,
    Taken,
    Token,
    Unavailable,
    Whole,
)

PATIENCE_S: Final = 5.0  # for which the removal of a bucket waits for writers in it
PAUSE_S: Final = 0.01


class PosixStore(FileStore):
    """`path`: the directory DIR; made if it is missing. `fsync` false gives up that what is acknowledged
    survives a power cut. `files`: the system calls. Raises `StorageError` where DIR cannot be used."""

    capabilities = Capabilities(
        atomic_replace=True,
        plain_names=True,
        hardlink=True,
        concat=True,
        outside=True,
        offsets=True,
        owners=True,
        together=True,
        directories=True,
    )

    def __init__(self, path: str, *, fsync: bool = True, files: Files | None = None) -> None:
        path = os.path.abspath(path)
        self._files = files or Files()
        with translated(path):
            os.makedirs(path, paths.DIR_MODE, exist_ok=True)
            self._locks = Locks(os.path.join(path, "locks"))
            self._buckets = Buckets(path, self._files, self._locks)
            self._reserve = Reserve(os.path.join(path, "reserve"))
            self._journals = os.path.join(path, "journal")
            self._journal = Journal(self._journals, self._files, fsync)
        self._journal.rewrite = lambda fd, size: self._new_recovery().rewrite(fd, size)
        self._publisher = BatchPublisher(self._files, self._locks, self._journal, fsync)
        self._ahead = Ahead(self._files, fsync)
        self._ranges = Ranges(self._files, self._ahead, fsync)
        self._listing = Listing()
        self._fsync = fsync
        self._recovery: Recovery | None = None
        self._closed = False

    # buckets

    def create_bucket(self, bucket: str, path: str = "") -> None:
        self._buckets.create(bucket, path)

    def delete_bucket(self, bucket: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self._delete_bucket(bucket):
            if time.monotonic() >= end:
                raise Unavailable(f"bucket {bucket!r} is written to all the time")
            time.sleep(PAUSE_S)

    def _delete_bucket(self, bucket: str) -> bool:
        """False: somebody is at it, or it is another one by now."""
        root = self._buckets.root(bucket)
        removal.check_empty(root, self._listing)
        with translated(f"bucket {bucket!r}"), root.gate.alone() as alone:
            if not alone or not self._buckets.is_current(root):
                return False
            removal.check_empty(root, self._listing)
            if self._is_own(root):
                removal.clear(root, self._files, own=True)
                self._buckets.remove(bucket)
                return True
            self._buckets.forget(bucket)  # first: without `.cumulus` it would count as not mounted
            with contextlib.suppress(NotEmptyStore):  # what others put there stays there
                removal.clear(root, self._files, own=False)
        return True

    def has_buckets(self) -> bool:
        return holds_buckets(os.path.dirname(self._buckets.data))

    def check_bucket(self, bucket: str) -> None:
        self._buckets.root(bucket)

    def can_link(self, bucket: str) -> bool:
        root = self._buckets.root(bucket)
        with translated(f"bucket {bucket!r}"), root.gate:
            root.check()
            return can_link(root, self._files)

    def take_over(self, bucket: str) -> copied.Taken:
        """Records of a bucket that was copied here hold for the copies. Raises `StorageError`."""
        root = self._buckets.root(bucket)
        with translated(f"records of {bucket}"):
            return copied.take_over(root)

    def obstacle(self, bucket: str) -> str:
        root = self._buckets.root(bucket)
        return first_other(root.path) if self._is_own(root) else ""

    def remove_hollow(self, bucket: str) -> None:
        root = self._buckets.root(bucket)
        with translated(f"bucket {bucket!r}"):
            if self._is_own(root):
                removal.remove_hollow(root, self._files)

    def _is_own(self, root: Root) -> bool:
        """Not an adopted one."""
        return root.path.startswith(os.path.join(self._buckets.data, ""))

    def forget_bucket(self, bucket: str) -> None:
        with translated(f"bucket {bucket!r}"):
            self._buckets.forget(bucket)

    # names

    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        return self._listing.names(self._buckets.root(bucket), after, prefix, limit)

    def walk(self, bucket: str, limit: int = 1000) -> Iterator[list[str]]:
        return scan.walk(self._buckets.root(bucket), limit)

    def look(self, bucket: str, names: Sequence[str], known: Mapping[str, Token]) -> dict[str, Entry | None]:
        return scan.look(self._buckets.root(bucket), names, known)

    def stat(self, bucket: str, name: str) -> Entry:
        if marks.is_directory(name):
            return marks.stat(self._buckets.root(bucket), name)
        _, fd, entry = self._open(bucket, name)
        os.close(fd)
        return entry

    def _open(self, bucket: str, name: str) -> tuple[Root, int, Entry]:
        segments = paths.split(name)
        root = self._buckets.root(bucket)
        with paths.open_parent(root, segments) as parent, translated(f"{bucket}/{name}"):
            return root, *bodies.open_entry(root, parent, segments[-1], name)

    # changes

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        if marks.is_directory(name):
            return self._publisher.marks.remove(self._buckets.root(bucket), name, if_token)
        paths.split(name)
        root = self._buckets.root(bucket)
        while True:
            try:
                return self._publisher.remove(root, name, if_token)
            except NoSpace:  # nothing has changed; its record and its stamp need a block
                if not self._reserve.give():
                    raise

    def delete_all(self, bucket: str, names: Sequence[tuple[str, Token]]) -> list[int | StorageError]:
        root = self._buckets.root(bucket)
        found: list[int | StorageError | Gone] = []
        for name, token in names:
            try:
                if marks.is_directory(name):
                    found.append(self._publisher.marks.remove(root, name, token))
                else:
                    found.append(self._publisher.gone(root, name, token))
            except StorageError as bad:
                found.append(bad)
        while ones := [one for one in found if isinstance(one, Gone) and one.outcome is None]:
            self._publisher.remove_all(root, ones)
            full = [one for one in ones if isinstance(one.outcome, NoSpace)]
            if full and self._reserve.give():  # as `delete`
                for one in full:
                    one.outcome = None
        return [one.result() if isinstance(one, Gone) else one for one in found]

    def keep_room(self) -> None:
        self._reserve.keep()

    def make_room(self) -> bool:
        return self._reserve.give()

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        if marks.is_directory(name):
            return self._publisher.marks.set_meta(self._buckets.root(bucket), name, bytes(meta), if_token)
        paths.split(name)
        return self._publisher.set_meta(self._buckets.root(bucket), name, bytes(meta), if_token)

    def link(self, bucket: str, name: str, to: str) -> Entry:
        if marks.is_directory(name):
            return self._keep_mark(bucket, name, to)
        return self._publisher.link(self._buckets.root(bucket), name, to)

    def _keep_mark(self, bucket: str, name: str, to: str) -> Entry:
        """A directory has no second name: its record gets an empty file of that name."""
        entry = self.stat(bucket, name)
        stream = self._writer(bucket, to, 0)
        try:
            stream.commit(entry.meta or b"", ABSENT)
        except Changed as there:
            raise Taken(str(there)) from None
        finally:
            stream.close()
        return entry

    def copy(
        self,
        source: ObjectStream,
        bucket: str,
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Entry:
        if not isinstance(source, Reader | marks.Reader):
            raise StorageError("only an open object of this store can be copied")
        if marks.is_directory(name):
            root, size = self._buckets.root(bucket), source.entry.size
            check()
            return self._publisher.marks.publish(root, name, size, bytes(meta), if_token)
        stream = self._writer(bucket, name, None)  # nothing reserved: blocks may be shared
        try:
            if isinstance(source, Reader) and source.entry.size:
                _add(stream, source, 0, source.entry.size, source.entry.size <= SMALL)
            check()
            return stream.commit(bytes(meta), if_token)
        finally:
            stream.close()

    def concat(
        self,
        bucket: str,
        parts: Sequence[str],
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        check: Callable[[], None] = lambda: None,
        size: int | None = None,
    ) -> Entry:
        paths.split(name)
        pieces = [Piece(part, 0, self.stat(bucket, part).size) for part in parts]
        return self.join(bucket, pieces, name, meta, if_token, check=check)

    def open_range(
        self, bucket: str, name: str, offset: int, size: int, *, create: bool = True
    ) -> RangeStream | None:
        return self._ranges.open(self._buckets.root(bucket), name, offset, size, create=create)

    def join(
        self,
        bucket: str,
        pieces: Sequence[Piece],
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        base: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> Entry:
        paths.split(name)
        draft = self._ranges.hold(self._buckets.root(bucket), base) if base else None
        if draft is not None:
            return self._finish(draft, bucket, pieces, name, bytes(meta), if_token, base, check)
        small = sum(piece.size for piece in pieces) <= SMALL
        stream = self._writer(bucket, name, None)
        try:
            for source, piece, _ in self._sources(bucket, pieces):
                _add(stream, source, piece.offset, piece.size, small)
            check()
            return stream.commit(bytes(meta), if_token)
        finally:
            stream.close()

    def _sources(
        self, bucket: str, pieces: Sequence[Piece], but: str = ""
    ) -> Iterator[tuple[Reader, Piece, int]]:
        """Pieces that are not in the file `but`, opened, with their place in the whole."""
        at = 0
        reader: Reader | None = None
        try:
            for piece in pieces:
                if piece.name != but:
                    if reader is None or reader.entry.name != piece.name:
                        if reader is not None:
                            reader.close()
                        reader = self._reader(bucket, piece.name, None)
                    yield reader, piece, at
                elif piece.offset != at:
                    raise StorageError(f"a piece of {but!r} is not at its place")
                at += piece.size
        finally:
            if reader is not None:
                reader.close()

    def _finish(
        self,
        draft: Filled,
        bucket: str,
        pieces: Sequence[Piece],
        name: str,
        meta: bytes,
        if_token: IfToken,
        base: str,
        check: Callable[[], None],
    ) -> Entry:
        """Make an object of a file that has most of the pieces at their place."""
        try:
            for source, piece, at in self._sources(bucket, pieces, base):
                with translated(f"{bucket}/{name}"):
                    copied = self._files.copy(source.fd, piece.offset, piece.size, draft.fd, at)
                check_copied(source, piece.offset, piece.size, copied)
                draft.size = max(draft.size, at + copied)
            check()
            draft.trim(sum(piece.size for piece in pieces))
            entry = self._publisher.publish(draft.root, name, draft, meta, if_token, None)
        except BaseException:
            draft.drop()
            raise
        self._ranges.published(draft)
        draft.close()
        return entry

    # streams

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        if marks.is_directory(name):
            entry = self.stat(bucket, name)
            if token is not None and token != entry.token:
                raise Changed(f"{name!r} is not what it was")
            return marks.Reader(entry)
        return self._reader(bucket, name, token)

    def _reader(self, bucket: str, name: str, token: Token | None) -> Reader:
        root, fd, entry = self._open(bucket, name)
        if token is not None and token != entry.token:
            os.close(fd)
            raise Changed(f"{name!r} is not what it was")
        return Reader(fd, entry, near=now.local(root.fd, root.identity[0]))

    def open_now(self, bucket: str, name: str) -> ObjectStream | None:
        if marks.is_directory(name):
            return None
        paths.split(name)
        root = self._buckets.root_now(bucket)
        found = None if root is None else bodies.open_now(root, name)
        return None if found is None else Reader(*found, near=True)

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        return self._writer(bucket, name, size_hint)

    def _writer(self, bucket: str, name: str, size_hint: int | None) -> Writer:
        paths.split(name)
        root = self._buckets.root(bucket)
        return Writer(root, name, self._files, self._publisher, self._ahead, size_hint)

    def put_all(self, wholes: Sequence[Whole]) -> list[Entry | StorageError]:
        if not self._fsync:  # nothing to share
            return super().put_all(wholes)
        roots: dict[str, Root | StorageError] = {}
        found: list[One | StorageError] = []
        for whole in wholes:
            root = roots.get(whole.bucket)
            try:
                if root is None:
                    root = roots[whole.bucket] = self._buckets.root(whole.bucket)
                found.append(root if isinstance(root, StorageError) else self._publisher.one(root, whole))
            except StorageError as bad:
                if root is None:
                    roots[whole.bucket] = bad
                found.append(bad)
        self._publisher.publish_all([one for one in found if isinstance(one, One)])
        return [one.result() if isinstance(one, One) else one for one in found]

    # upkeep

    def sweep(self, older_than_s: float) -> int:
        before = time.time() - older_than_s
        count = 0
        failed: StorageError | None = None
        for bucket in self._buckets.names():
            try:
                with translated(f"bucket {bucket!r}"):
                    root = self._buckets.root(bucket)
                    count += self._sweep_drafts(root, before) + self._sweep_meta(root, before)
            except (Missing, NotMounted, Forbidden, ReadOnly):
                continue  # where we may not write we have left nothing that could go
            except StorageError as bad:
                failed = failed or bad
        if failed is not None:
            raise failed
        return count

    def _sweep_drafts(self, root: Root, before: float) -> int:
        """What is in `tmp`, old, and not locked by a writer that lives."""
        count = 0
        for name in names_in(root.tmp):
            with contextlib.suppress(FileNotFoundError, BlockingIOError, PermissionError):
                fd = os.open(name, bodies.OPEN, dir_fd=root.tmp)  # who owns the directory may put pipes there
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(fd).st_ctime < before:
                        self._files.unlink(root.tmp, name)
                        count += 1
                finally:
                    os.close(fd)
        return count

    def _sweep_meta(self, root: Root, before: float) -> int:
        """Sidecars whose file has gone, or has another inode."""
        count = 0
        for file in names_in(root.meta):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if not file.startswith(paths.MARK) and _is_older(root, file, before):
                    count += self._sweep_sidecar(root, file, before)
        return count

    def _sweep_sidecar(self, root: Root, file: str, before: float) -> bool:
        """Raises `OSError`."""
        found = sidecar.load(root, file)
        if found is None:
            self._files.unlink(root.meta, file)
            return True
        name, record = found
        with self._locks.of(root.bucket, name):  # else a draft that has just got that inode loses its own
            if not _is_older(root, file, before) or _has_owner(root, name, record):
                return False
            self._files.unlink(root.meta, file)
        return True

    def recover(self) -> Iterator[tuple[str, Entry]]:
        self._recovery = self._new_recovery()
        return self._recovery.run()

    def recover_beside(self) -> Iterator[tuple[str, Entry]]:
        return self.recover()  # journals of processes that live are left alone

    def _new_recovery(self) -> Recovery:
        return Recovery(self._journals, self._files, self._buckets, self._locks, self._publisher.own)

    def recovered(self) -> None:
        if self._recovery is not None:
            self._recovery.finish()
            self._recovery = None

    def own_by(self, owner_of: Callable[[bytes], tuple[int, int] | None]) -> None:
        self._publisher.owner_of = owner_of

    def mark(self) -> int | None:
        return self._journal.drops if self._fsync else None

    def remembers(self, mark: int) -> bool:
        return self._journal.drops == mark

    def before_forgetting(self, settle: Callable[[], None]) -> None:
        self._journal.settle = settle

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            with translated("the last checkpoint"):
                self._journal.close()
        finally:
            self._ahead.close()
            self._publisher.close()
            self._buckets.close()
            self._locks.close()


def _is_older(root: Root, sidecar: str, than: float) -> bool:
    return os.stat(sidecar, dir_fd=root.meta, follow_symlinks=False).st_ctime < than


def _has_owner(root: Root, name: str, record: Record) -> bool:
    """Whether the file is there that a sidecar belongs to, as far as that is to be seen now."""
    try:
        segments = paths.split(name.removesuffix("/"))
        with paths.open_parent(root, segments) as parent:
            status = bodies.look(parent, segments[-1])
    except (Missing, BadName):
        return False
    except StorageError:
        return True
    return status is not None and status.st_ino == record.inode


def _add(stream: Writer, source: Reader, offset: int, size: int, small: bool) -> None:
    """Bytes of an open object behind what a stream has; through memory where all of it is small."""
    if small:
        stream.write(memoryview(source.read_at(offset, size)))
    else:
        stream.append(source, offset, size)


def holds_buckets(path: str) -> bool:
    """Whether the directory DIR, which may not be there yet, has buckets of its own or adopted ones."""
    return any(next(Path(path, name).glob("[!.]*"), None) is not None for name in ("data", "adopted"))
