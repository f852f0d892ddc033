"""Buckets of one stage on this slave: received runs, the durable ledger beside them, sealing.

A run is a file with the output of one segment for a range of buckets. It counts once its entry is in the
`ledger` file and fsynced; runs without an entry are left-overs and removed. The ledger survives a restart of
the slave (spec/sphere.md, "Exactly once"). All functions in `_thd` run in the disk pool.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading

from sector import space
from sector.errors import Damaged
from sector.sphere.shuffle import Entry, Ledger, decode_entries, encode_entry

COPY = 64 << 20


class BucketStore:
    """One stage's folder. Opened when first used."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.ledger = Ledger()
        self._lock = threading.Lock()
        self._fd = -1
        self._end = 0
        """Where the next line of the ledger begins."""

    def open_thd(self) -> None:
        """Make the folder or read the ledger that is there; idempotent."""
        with self._lock:
            if self._fd >= 0:
                return
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            fd = os.open(os.path.join(self.folder, "ledger"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._load(fd)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd

    def _load(self, fd: int) -> None:
        raw = b""
        while part := os.pread(fd, 1 << 20, len(raw)):
            raw += part
        entries, good = decode_entries(raw)
        os.ftruncate(fd, good)
        self._end = good
        ledger, files = Ledger(), {"ledger"}
        for entry in entries:
            path = os.path.join(self.folder, os.path.basename(entry.file))
            try:
                size = os.stat(path).st_size if entry.file else 0
            except OSError:
                continue  # the run is lost: the segment will be delivered again
            if size >= entry.base + sum(entry.lengths):
                ledger.commit(entry)
                files.add(entry.file)
        for name in os.listdir(self.folder):
            if name not in files:
                os.unlink(os.path.join(self.folder, name))
        self.ledger = ledger

    def new_run_thd(self, segment: int, first: int, size: int) -> tuple[str, int]:
        """A new file with room for a run: (name, descriptor). Not part of the buckets before
        `commit_thd`. Raises `NoSpace`."""
        self.open_thd()
        name = f"{segment}-{first}-{os.urandom(6).hex()}"
        path = os.path.join(self.folder, name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except (OSError, OverflowError) as error:
            os.unlink(path)
            code = errno.EFBIG if isinstance(error, OverflowError) else error.errno
            full = space.no_room(code, f"bucket run {path}", size, fd) if code in space.FULL else None
            os.close(fd)
            if full is not None:
                raise full from None
            raise
        return name, fd

    def drop_run_thd(self, name: str) -> None:
        """Remove a run that did not arrive or is not needed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))

    def link_run_thd(self, source: str, segment: int, first: int) -> str:
        """Take a local result file as a run (hard link, no copy); fsynced."""
        self.open_thd()
        name = f"{segment}-{first}-{os.urandom(6).hex()}"
        os.link(source, os.path.join(self.folder, name))
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return name

    def commit_thd(self, entry: Entry) -> bool:
        """Count a run (its bytes are durable), but for what of it was counted before. False: all of it was,
        and it is removed now."""
        self.open_thd()
        with self._lock:
            gaps = self.ledger.missing(entry.segment, entry.first, entry.last)
            if gaps:
                self._append([entry.part(first, last) for first, last in gaps])
        if not gaps and entry.file:
            self.drop_run_thd(entry.file)
        return bool(gaps)

    def _append(self, entries: list[Entry]) -> None:
        """Write lines to the ledger, whole and durable, or none: a torn one would hide those behind it."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        raw = memoryview(b"".join(encode_entry(entry) for entry in entries))
        done = 0
        try:
            while done < len(raw):
                done += os.pwrite(self._fd, raw[done:], self._end + done)
            os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += done
        for entry in entries:
            self.ledger.commit(entry)

    def missing_thd(self, segment: int, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges of buckets of a segment that are not counted yet."""
        self.open_thd()
        with self._lock:
            return self.ledger.missing(segment, first, last)

    def held_thd(self) -> list[tuple[int, int, int]]:
        """(segment, first, last) of all that counts."""
        self.open_thd()
        with self._lock:
            return list(self.ledger.held())

    def seal_thd(self, bucket: int, segments: int, target: str) -> int:
        """Put a bucket together in order of segments into a new file `target`; its size. Raises `Conflict`
        when a segment is missing (nothing is written), `Damaged` when a run has shrunk."""
        self.open_thd()
        with self._lock:
            pieces = self.ledger.pieces(bucket, segments)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            total = 0
            for name, offset, length in pieces:
                source = os.open(
                    os.path.join(self.folder, os.path.basename(name)), os.O_RDONLY | os.O_CLOEXEC
                )
                try:
                    _copy(source, offset, length, out)
                finally:
                    os.close(source)
                total += length
        except BaseException:
            os.unlink(target)
            raise
        finally:
            os.close(out)
        return total

    def close_thd(self) -> None:
        """Give the ledger's descriptor back; the next use opens it again."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _copy(source: int, offset: int, length: int, out: int) -> None:
    """Append a byte range of one file to another, in the kernel where it can."""
    while length:
        try:
            moved = os.copy_file_range(source, out, min(length, COPY), offset)
        except OSError:
            moved = os.sendfile(out, source, offset, min(length, COPY))
        if moved == 0:
            raise Damaged("a run of a bucket is shorter than its ledger says")
        offset += moved
        length -= moved
