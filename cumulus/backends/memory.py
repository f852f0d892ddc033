"""Objects in this process's memory: for tests, and for caches that may be lost. Nothing survives the process.

It behaves as a file system does: a name cannot be both an object and the beginning of another's path.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cumulus.storage.api import (
    INTERNAL,
    BadName,
    Capabilities,
    Entry,
    FileStore,
    IfToken,
    Missing,
    NoBucket,
    NoSpace,
    NotEmptyStore,
    ObjectStream,
    ReadStream,
    StorageError,
    Taken,
    Token,
    WriteStream,
    check_token,
)
from cumulus.storage.names import check_bucket, check_name

_INSIDE: Final = INTERNAL + "/"


class _Object:
    """Bytes and their entry; replaced, never changed."""

    __slots__ = ("body", "entry")

    def __init__(self, body: bytes, entry: Entry) -> None:
        self.body = body
        self.entry = entry


class _Bucket:
    """Objects by name, and the names in order."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.order: list[str] = []

    def put(self, name: str, new: _Object) -> None:
        """Raises `Taken` where the name lies below an object or above one."""
        if name not in self.objects:
            parents = itertools.accumulate(name.split("/")[:-1], lambda path, segment: f"{path}/{segment}")
            for parent in parents:
                if parent in self.objects:
                    raise Taken(f"{parent!r} is an object, so {name!r} cannot be one")
            place = bisect.bisect_left(self.order, name + "/")
            if place < len(self.order) and self.order[place].startswith(name + "/"):
                raise Taken(f"{name!r} is the beginning of {self.order[place]!r}")
            bisect.insort(self.order, name)
        self.objects[name] = new

    def drop(self, name: str) -> None:
        """Forget a name that is there."""
        del self.objects[name]
        del self.order[bisect.bisect_left(self.order, name)]


class _Reader(ReadStream):
    """One version of an object; later ones do not touch it."""

    def __init__(self, found: _Object) -> None:
        self.entry = found.entry
        self.body = found.body

    def read_at(self, offset: int, size: int) -> bytes:
        return self.body[offset : offset + size]

    def close(self) -> None:
        self.body = b""


class _Writer(WriteStream):
    """Bytes on their way into the store."""

    def __init__(self, store: MemoryStore, bucket: str, name: str) -> None:
        self._store = store
        self._bucket = bucket
        self._name = name
        self._body: bytearray | None = bytearray()

    def _open_body(self) -> bytearray:
        if self._body is None:
            raise StorageError(f"the stream of {self._name!r} is closed")
        return self._body

    def write(self, data: memoryview) -> None:
        body = self._open_body()
        self._store.reserve(len(data))
        body += data

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        body = self._open_body()
        name = name or self._name
        check_name(name)
        entry = self._store.publish(self._bucket, name, bytes(body), meta, if_token, len(body))
        self._body = None
        return entry

    def abort(self) -> None:
        if self._body is not None:
            self._store.reserve(-len(self._body))
            self._body = None


class MemoryStore(FileStore):
    """`limit`: bytes it may hold in all, uploads in progress counted; None: as many as there are."""

    capabilities = Capabilities(
        atomic_replace=True, plain_names=False, hardlink=True, concat=True, lasts=False
    )

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._used = 0
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}
        self._stamp = 0
        self._tokens = itertools.count(1)

    # buckets

    def create_bucket(self, bucket: str, path: str = "") -> None:
        check_bucket(bucket)
        if path:
            raise BadName("a store in memory has no directories to adopt")
        with self._lock:
            self._buckets.setdefault(bucket, _Bucket())

    def has_buckets(self) -> bool:
        return bool(self._buckets)

    def delete_bucket(self, bucket: str) -> None:
        with self._lock:
            found = self._bucket(bucket)
            if found.order:
                raise NotEmptyStore(f"bucket {bucket!r} has objects")
            del self._buckets[bucket]

    def _bucket(self, bucket: str) -> _Bucket:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise NoBucket(f"no bucket {bucket!r}") from None

    def _find(self, bucket: str, name: str) -> _Object:
        check_name(name)
        try:
            return self._bucket(bucket).objects[name]
        except KeyError:
            raise Missing(f"no {name!r} in bucket {bucket!r}") from None

    # names

    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        with self._lock:
            found = self._bucket(bucket)
            place = max(bisect.bisect_right(found.order, after), bisect.bisect_left(found.order, prefix))
            entries: list[Entry] = []
            while place < len(found.order) and len(entries) < limit:
                name = found.order[place]
                if not name.startswith(prefix):
                    break
                if name.startswith(_INSIDE) and not prefix.startswith(_INSIDE):
                    place = bisect.bisect_left(found.order, INTERNAL + "0")  # "0" follows "/"
                    continue
                entries.append(found.objects[name].entry)
                place += 1
            return entries

    def stat(self, bucket: str, name: str) -> Entry:
        with self._lock:
            return self._find(bucket, name).entry

    # changes

    def reserve(self, size: int) -> None:
        """Count bytes of an upload (negative: give back). Raises `NoSpace`."""
        with self._lock:
            self._reserve(size)

    def _reserve(self, size: int, spare: int = 0) -> None:
        if size > 0 and self._limit is not None and self._used + size > self._limit + spare:
            raise NoSpace(f"the store holds {self._used} of {self._limit} bytes, {size} more do not fit")
        self._used += size

    def _next_stamp(self) -> int:
        self._stamp = max(time.time_ns(), self._stamp + 1)
        return self._stamp

    def publish(
        self,
        bucket: str,
        name: str,
        body: bytes,
        meta: bytes,
        if_token: IfToken,
        counted: int = 0,
        spare: int = 0,
    ) -> Entry:
        """Put body and meta under the name in one step; `counted` of its bytes have been reserved before, and
        `spare` are given back soon. Raises as `ObjectStream.commit`."""
        with self._lock:
            return self._publish(bucket, name, body, meta, if_token, counted, spare)

    def _publish(
        self, bucket: str, name: str, body: bytes, meta: bytes, if_token: IfToken, counted: int, spare: int
    ) -> Entry:
        found = self._bucket(bucket)
        old = found.objects.get(name)
        check_token(name, old.entry.token if old else None, if_token)
        freed = counted + (len(old.body) if old else 0)
        self._reserve(len(body) - freed, spare)
        stamp = self._next_stamp()
        entry = Entry(
            name=name, size=len(body), mtime_ns=stamp, token=self._token(), stamp=stamp, meta=bytes(meta)
        )
        try:
            found.put(name, _Object(body, entry))
        except Taken:
            self._used -= len(body) - freed
            raise
        return entry

    def _token(self) -> Token:
        return next(self._tokens).to_bytes(8, "big")

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        with self._lock:
            old = self._find(bucket, name)
            check_token(name, old.entry.token, if_token)
            self._bucket(bucket).drop(name)
            self._used -= len(old.body)
            return self._next_stamp()

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        with self._lock:
            old = self._find(bucket, name)
            check_token(name, old.entry.token, if_token)
            entry = Entry(
                name=name,
                size=len(old.body),
                mtime_ns=old.entry.mtime_ns,
                token=self._token(),
                stamp=self._next_stamp(),
                meta=bytes(meta),
            )
            self._bucket(bucket).objects[name] = _Object(old.body, entry)
            return entry

    def link(self, bucket: str, name: str, to: str) -> Entry:
        check_name(to)
        with self._lock:
            old = self._find(bucket, name)
            found = self._bucket(bucket)
            if to in found.objects:
                raise Taken(f"{to!r} is there already")
            self._reserve(len(old.body))
            entry = Entry(
                name=to,
                size=old.entry.size,
                mtime_ns=old.entry.mtime_ns,
                token=old.entry.token,
                stamp=old.entry.stamp,
                meta=old.entry.meta,
            )
            try:
                found.put(to, _Object(old.body, entry))
            except Taken:
                self._used -= len(old.body)
                raise
            return entry

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
        check_name(name)
        with self._lock:
            body = b"".join(self._find(bucket, part).body for part in parts)
        check()
        return self.publish(bucket, name, body, meta, if_token, spare=len(body))  # the parts go now

    # streams

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        with self._lock:
            found = self._find(bucket, name)
            check_token(name, found.entry.token, token)
            return _Reader(found)

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        check_name(name)
        with self._lock:
            self._bucket(bucket)
            if size_hint is not None and self._limit is not None and self._used + size_hint > self._limit:
                raise NoSpace(f"{size_hint} bytes do not fit beside {self._used} of {self._limit}")
        return _Writer(self, bucket, name)

    def sweep(self, older_than_s: float) -> int:
        return 0  # an aborted or forgotten write leaves nothing that has a name

    def recover(self) -> Iterator[tuple[str, Entry]]:
        return iter(())
