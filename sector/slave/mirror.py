"""What files cannot tell, durable on every slave: tombstones, directories, rights (spec/masters.md).

A snapshot and a log of checked frames beside it; a torn last frame is dropped at the start. All methods
ending in `_thd` block and run in the disk pool; the rest is plain state.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

from sector.model import Right, SliceMeta, Tombstone, Version

_KEEP_S = 400 * 86400.0
_LOG_BYTES = 4 << 20


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One frame of the log, or of the snapshot: changes in order."""

    reset: bool = False
    serial: Annotated[int, Meta(ge=0)] = 0
    tombstones: list[Tombstone] = []
    directories: list[SliceMeta] = []
    removed_directories: list[str] = []
    rights: list[Right] = []
    generation: Annotated[int, Meta(ge=0)] = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Part).decode


def _frame(part: Part) -> bytes:
    body = _encode(part)
    return len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body


def _frames(raw: bytes) -> tuple[list[Part], int]:
    """The good frames at the beginning of `raw`, and how many bytes they take."""
    parts: list[Part] = []
    at = 0
    while at + 8 <= len(raw):
        size, check = int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at + 4 : at + 8], "big")
        body = raw[at + 8 : at + 8 + size]
        if len(body) < size or zlib.crc32(body) != check:
            break
        try:
            parts.append(_decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
        at += 8 + size
    return parts, at


class Held:
    """Tombstones by path, directories by path, rights, and the serial of the last complete mirror."""

    def __init__(self) -> None:
        self.tombstones: dict[str, Tombstone] = {}
        self.directories: dict[str, SliceMeta] = {}
        self.rights: dict[tuple[str, str], Right] = {}
        self.serial = 0

    def take(self, other: Held) -> None:
        """Have what another one has."""
        self.tombstones, self.directories = other.tombstones, other.directories
        self.rights, self.serial = other.rights, other.serial

    def copy(self) -> Held:
        """The same, which changes by itself."""
        other = Held()
        other.tombstones, other.directories = dict(self.tombstones), dict(self.directories)
        other.rights, other.serial = dict(self.rights), self.serial
        return other

    def apply(self, part: Part) -> None:
        """Make the changes of a part."""
        if part.reset:
            # Tombstones are never forgotten by a reset: a rebuilt master takes their union.
            self.directories.clear()
            self.rights.clear()
        for stone in part.tombstones:
            known = self.tombstones.get(stone.path)
            if known is None or known.version < stone.version:
                self.tombstones[stone.path] = stone
        for entry in part.directories:
            self.directories[entry.path] = entry
        for path in part.removed_directories:
            self.directories.pop(path, None)
        for right in part.rights:
            key = (right.user, right.path)
            if right.what:
                self.rights[key] = right
            else:
                self.rights.pop(key, None)
        if part.serial:
            self.serial = part.serial


class Mirror(Held):
    """What a slave has of a mirror, in memory and on the disk."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._log_bytes = 0
        self._generation = 0
        self._staged: list[Part] | None = None
        self._lock = threading.Lock()

    def load_thd(self) -> None:
        """Read snapshot and log; cut a torn end off the log."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for part in self._read("snapshot")[0]:
            self.apply(part)
            self._generation = part.generation
        parts, good, size = self._read(self._log_name())
        for part in parts:
            self.apply(part)
        if good < size:
            os.truncate(os.path.join(self._folder, self._log_name()), good)
        self._log_bytes = good
        for name in os.listdir(self._folder):
            if name not in ("snapshot", self._log_name()):
                os.unlink(os.path.join(self._folder, name))

    def _read(self, name: str) -> tuple[list[Part], int, int]:
        try:
            with open(os.path.join(self._folder, name), "rb") as source:
                raw = source.read()
        except FileNotFoundError:
            return [], 0, 0
        parts, good = _frames(raw)
        return parts, good, len(raw)

    def _log_name(self) -> str:
        return f"log.{self._generation}"

    def bury_thd(self, tombstones: list[Tombstone]) -> None:
        """Keep tombstones, durable when this returns."""
        with self._lock:
            fresh = [
                stone
                for stone in tombstones
                if stone.path not in self.tombstones or self.tombstones[stone.path].version < stone.version
            ]
            if fresh:
                self._append(Part(tombstones=fresh))

    def part_thd(self, part: Part, *, last: bool, now: float) -> None:
        """One part of a mirror; nothing changes until the last one, then all is durable.

        `now` (seconds since 1970) ages out tombstones that no master named for over a year.
        """
        with self._lock:
            if part.reset or self._staged is None:
                self._staged = []
            self._staged.append(part)
            if not last:
                return
            parts, self._staged = self._staged, None
            if parts[0].reset:
                fresh = self.copy()
                for staged in parts:
                    fresh.apply(staged)
                old = [p for p, stone in fresh.tombstones.items() if stone.at < now - _KEEP_S]
                for path in old:
                    del fresh.tombstones[path]
                self._snapshot(fresh)
                self.take(fresh)
            else:
                for staged in parts:
                    self._append(staged)

    def _append(self, part: Part) -> None:
        frame = _frame(part)
        fd = os.open(
            os.path.join(self._folder, self._log_name()),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        try:
            if os.write(fd, frame) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
            if not self._log_bytes:
                self._sync_folder()
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._log_bytes)
            raise
        finally:
            os.close(fd)
        self.apply(part)
        self._log_bytes += len(frame)
        if self._log_bytes > _LOG_BYTES:
            with contextlib.suppress(OSError):  # the log has all of it; the next change tries again
                self._snapshot(self)

    def _snapshot(self, state: Held) -> None:
        """Write all of `state` to a new snapshot, which names the log that follows it (an empty one), so that
        a crash in between never applies old changes over new state."""
        old = os.path.join(self._folder, self._log_name())
        whole = Part(
            False,
            state.serial,
            list(state.tombstones.values()),
            list(state.directories.values()),
            [],
            list(state.rights.values()),
            self._generation + 1,
        )
        new = os.path.join(self._folder, "snapshot.new")
        with open(new, "wb") as target:
            target.write(_frame(whole))
            target.flush()
            os.fsync(target.fileno())
        os.rename(new, os.path.join(self._folder, "snapshot"))
        self._generation += 1  # from here on a start looks for the new log
        self._log_bytes = 0
        self._sync_folder()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def buried(self, path: str, version: Version) -> bool:
        """Whether content `version` of `path` was deleted."""
        stone = self.tombstones.get(path)
        return stone is not None and version <= stone.version
