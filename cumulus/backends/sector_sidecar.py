"""Sidecars of objects in Sector: what they hold, and a cache of them; and locks by name."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cumulus.backends.sector_link import CALL_S
from cumulus.storage.api import Unavailable
from sector.model import Version

_HEAD: Final = struct.Struct("<8sqI")  # of a sidecar: magic, mtime_ns, length of the name
_MAGIC: Final = b"cumulus1"
MOST: Final = 4 << 20  # bytes of one: 10,000 parts with their sums take 1.5 MB
_CACHED: Final = 16 << 20  # bytes of sidecars


class Sidecar:
    """What a sidecar holds."""

    __slots__ = ("meta", "mtime_ns", "name")

    def __init__(self, name: str, mtime_ns: int, meta: bytes) -> None:
        self.name = name
        self.mtime_ns = mtime_ns
        self.meta = meta

    def encode(self) -> bytes:
        """As a file."""
        name = self.name.encode()
        return _HEAD.pack(_MAGIC, self.mtime_ns, len(name)) + name + self.meta

    @classmethod
    def decode(cls, blob: bytes) -> Sidecar | None:
        """None for a file that is not ours."""
        if len(blob) < _HEAD.size or not blob.startswith(_MAGIC):
            return None
        _, mtime_ns, length = _HEAD.unpack_from(blob)
        end = _HEAD.size + length
        return cls(blob[_HEAD.size : end].decode(errors="replace"), mtime_ns, blob[end:])


class Cache:
    """Sidecars by path and version, which never change; the least used go. Used in the reactor only."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, Version], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, Version]) -> bytes | None:
        """The file, if it is held."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: tuple[str, Version], blob: bytes) -> None:
        """Hold it for a while."""
        self._bytes += len(blob) - len(self._held.pop(key, b""))
        self._held[key] = blob
        while self._bytes > _CACHED:
            self._bytes -= len(self._held.popitem(last=False)[1])


class Names:
    """One lock a name, for as long as somebody wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Raises `Unavailable` when another thread keeps it for `CALL_S`."""
        with self._lock:
            lock, count = self._held.get(path, (threading.Lock(), 0))
            self._held[path] = (lock, count + 1)
        taken = lock.acquire(timeout=CALL_S)
        try:
            if not taken:
                raise Unavailable(f"{path} is being written")
            yield
        finally:
            if taken:
                lock.release()
            with self._lock:
                count = self._held[path][1] - 1
                if count:
                    self._held[path] = (lock, count)
                else:
                    del self._held[path]
