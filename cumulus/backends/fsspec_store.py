"""Objects on any file system that fsspec knows: `fsspec:hdfs://...`, `fsspec:sftp://...`,
`fsspec:memory://...`.

One object is one file, ROOT/BUCKET/NAME: the body, then its meta, then a fixed footer. So body and meta
appear in one step wherever a rename or an upload is one. Only the local file system is known to replace
atomically; for others the floor above gives each body a name of its own. Conditions (`if_token`) are checked
within this process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from cumulus.backends.posix.errors import storage_error
from cumulus.storage.api import (
    ABSENT,
    INTERNAL,
    BadName,
    Capabilities,
    Changed,
    Entry,
    FileStore,
    Forbidden,
    IfToken,
    Missing,
    NotEmptyStore,
    ObjectStream,
    ReadStream,
    StorageError,
    Taken,
    Token,
    Unavailable,
    WriteStream,
)
from cumulus.storage.names import below, check_bucket, check_name

_FOOTER: Final = struct.Struct("<qqI8sI8s")  # mtime_ns, stamp, length of meta, nonce, CRC-32, magic
_MAGIC: Final = b"cumulus1"
_TAIL: Final = 4096  # bytes read at once for footer and, mostly, meta
_PIECE: Final = 1 << 20
_TRIES: Final = 5
_PRIVATE: Final = ("tmp", "bucket")  # below INTERNAL
_KINDS: Final[tuple[tuple[type[BaseException], type[StorageError]], ...]] = (
    (FileNotFoundError, Missing),
    (PermissionError, Forbidden),
    (FileExistsError, Taken),
    (IsADirectoryError, Taken),
    (NotADirectoryError, Taken),
)


def check_driver(url: str) -> None:
    """Raises `ValueError` where fsspec has none for the URL."""
    outer, chained, _ = url.partition("::")
    protocol = outer.partition("://")[0] if chained or "://" in outer else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ValueError(f"fsspec:{url}: {error}") from error


class _asked:
    """Context: whatever the file system raises becomes a storage error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, StorageError):
            return
        for raised, known in _KINDS:
            if isinstance(error, raised):
                raise known(f"{self._what}: {error}") from error
        if isinstance(error, OSError):
            raise storage_error(error, self._what) from error
        raise Unavailable(f"{self._what}: {type(error).__name__}: {error}") from error


class _Footer(NamedTuple):
    mtime_ns: int
    stamp: int
    nonce: bytes
    meta: bytes

    def encode(self) -> bytes:
        """Meta and footer, as they follow the body."""
        check = zlib.crc32(self.meta + struct.pack("<qq", self.mtime_ns, self.stamp))
        head = (self.mtime_ns, self.stamp, len(self.meta), self.nonce, check, _MAGIC)
        return self.meta + _FOOTER.pack(*head)


class _Reader(ReadStream):
    """Reads through the file system, or from a descriptor where the file is local."""

    def __init__(self, store: FsspecStore, path: str, entry: Entry, fd: int) -> None:
        self.entry = entry
        self._store = store
        self._path = path
        self._fd = fd
        self._open = True

    def read_at(self, offset: int, size: int) -> bytes:
        if not self._open:
            raise StorageError(f"the stream of {self.entry.name!r} is closed")
        size = min(size, self.entry.size - offset)
        if size <= 0:
            return b""
        if self._fd >= 0:
            with _asked(self.entry.name):
                return os.pread(self._fd, size, offset)
        data = self._store.read(self._path, offset, offset + size)
        if len(data) < size or not self.unchanged():
            raise Changed(f"{self.entry.name!r} was changed while it was read")
        return data

    def sendable(self) -> tuple[int, int] | None:
        return (self._fd, 0) if self._fd >= 0 else None

    def unchanged(self) -> bool:
        if self._fd >= 0:
            return True
        try:
            return self._store.entry(self.entry.name, self._path).token == self.entry.token
        except StorageError:
            return False

    def close(self) -> None:
        self._open = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Writer(WriteStream):
    """Writes a draft beside the objects; commit gives it its name."""

    def __init__(self, store: FsspecStore, bucket: str, name: str) -> None:
        self._store = store
        self._bucket = bucket
        self._name = name
        self._draft = store.path(bucket, f"{INTERNAL}/tmp/{time.time_ns():x}-{secrets.token_hex(6)}")
        self._size = 0
        with _asked(self._draft):
            self._file: Any = store.fs.open(self._draft, "wb")

    def _opened(self) -> Any:
        if self._file is None:
            raise StorageError(f"the stream of {self._name!r} is closed")
        return self._file

    def write(self, data: memoryview) -> None:
        file = self._opened()
        with _asked(self._name):
            file.write(bytes(data))
        self._size += len(data)

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        file = self._opened()
        name = name or self._name
        check_name(name)
        entry = self._store.publish(self._bucket, name, self._draft, file, self._size, bytes(meta), if_token)
        self._file = None
        return entry

    def abort(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with _asked(self._draft):
                file.close()
                self._store.fs.rm_file(self._draft)
        except StorageError:
            return  # a draft that stays is swept later


class FsspecStore(FileStore):
    """`url` as fsspec takes it, with the store's root directory as path; `options` go to the file system.
    Raises `ValueError` for a URL of a kind that is unknown or not installed."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            found = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
        except ImportError as error:
            raise ValueError(f"{url}: {error}") from error
        self.fs: AbstractFileSystem = found[0]
        self._root = str(found[1]).rstrip("/")
        self._local = isinstance(self.fs, LocalFileSystem)
        self.capabilities = Capabilities(atomic_replace=self._local, plain_names=False, concat=True)
        self._locks = [threading.Lock() for _ in range(64)]
        self._clock = threading.Lock()
        self._last = 0
        with _asked(url):
            self.fs.makedirs(self._root or "/", exist_ok=True)

    # paths and files

    def path(self, bucket: str, name: str = "") -> str:
        """Where that is on the file system."""
        return f"{self._root}/{bucket}/{name}" if name else f"{self._root}/{bucket}"

    def _place(self, bucket: str, name: str) -> str:
        segments = check_name(name)
        if segments[0] == INTERNAL and (len(segments) == 1 or segments[1] in _PRIVATE):
            raise BadName(f"{name!r} is the store's own")
        return self.path(bucket, name)

    def _lock(self, path: str) -> threading.Lock:
        return self._locks[zlib.crc32(path.encode()) % len(self._locks)]

    def _next_stamp(self, old: Entry | None) -> int:
        with self._clock:
            self._last = max(time.time_ns(), self._last + 1, old.stamp + 1 if old else 0)
            return self._last

    def read(self, path: str, start: int, end: int) -> bytes:
        """Bytes of a file. Raises `StorageError`."""
        with _asked(path):
            return bytes(self.fs.cat_file(path, start=start, end=end))

    def entry(self, name: str, path: str) -> Entry:
        """What is at `path`. Raises `Missing` also for a directory."""
        with _asked(path):
            try:
                info = self.fs.info(path)
            except NotADirectoryError:
                info = {"type": "nothing"}
        if info["type"] != "file":
            raise Missing(f"no {name!r}")
        size = int(info["size"])
        tail = self.read(path, max(0, size - _TAIL), size)
        footer = self._footer(path, size, tail)
        if footer is None:
            mtime_ns = int(float(info.get("mtime") or 0) * 1e9)
            token = f"{size} {info.get('mtime')} {info.get('ETag')}".encode()
            return Entry(name=name, size=size, mtime_ns=mtime_ns, token=token, stamp=mtime_ns)
        return Entry(
            name=name,
            size=size - len(footer.meta) - _FOOTER.size,
            mtime_ns=footer.mtime_ns,
            token=footer.nonce + size.to_bytes(8, "little"),
            stamp=footer.stamp,
            meta=footer.meta,
        )

    def _footer(self, path: str, size: int, tail: bytes) -> _Footer | None:
        if len(tail) < _FOOTER.size or not tail.endswith(_MAGIC):
            return None
        mtime_ns, stamp, length, nonce, check, _ = _FOOTER.unpack(tail[-_FOOTER.size :])
        end = size - _FOOTER.size
        if length > end:
            return None
        start = end - length
        if length + _FOOTER.size <= len(tail):
            meta = tail[len(tail) - _FOOTER.size - length : len(tail) - _FOOTER.size]
        else:
            meta = self.read(path, start, end)
        if zlib.crc32(meta + struct.pack("<qq", mtime_ns, stamp)) != check:
            return None
        return _Footer(mtime_ns, stamp, nonce, meta)

    def _there(self, name: str, path: str) -> Entry | None:
        try:
            return self.entry(name, path)
        except Missing:
            return None

    # buckets

    def create_bucket(self, bucket: str, path: str = "") -> None:
        check_bucket(bucket)
        if path:
            raise BadName("this store cannot adopt a directory")
        with _asked(bucket):
            self.fs.makedirs(self.path(bucket, f"{INTERNAL}/tmp"), exist_ok=True)
            self.fs.pipe_file(self.path(bucket, f"{INTERNAL}/bucket"), b"")

    def _check(self, bucket: str) -> None:
        with _asked(bucket):
            if not self.fs.exists(self.path(check_bucket(bucket), f"{INTERNAL}/bucket")):
                raise Missing(f"no bucket {bucket!r}")

    def delete_bucket(self, bucket: str) -> None:
        self._check_empty(bucket)
        with _asked(bucket):
            self.fs.rm_file(self.path(bucket, f"{INTERNAL}/bucket"))  # no write begins any more
            drafts = self.path(bucket, f"{INTERNAL}/tmp")
            for draft in self.fs.ls(drafts, detail=False) if self.fs.isdir(drafts) else ():
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(draft)  # nor ends
            for path, _, _ in self.fs.walk(self.path(bucket), topdown=False):
                with contextlib.suppress(Exception):  # not empty, or no such thing as a directory here
                    self.fs.rmdir(path)
            if not self.fs.exists(self.path(bucket)):
                return
        self.create_bucket(bucket)
        self._check_empty(bucket)
        raise Unavailable(f"bucket {bucket!r} is written to all the time")

    def _check_empty(self, bucket: str) -> None:
        if self.names(bucket, limit=1) or self.names(bucket, prefix=INTERNAL + "/", limit=1):
            raise NotEmptyStore(f"bucket {bucket!r} has objects")

    # names

    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        self._check(bucket)
        found: list[Entry] = []
        if limit > 0:
            for entry in self._walk(bucket, "", after, prefix):
                found.append(entry)
                if len(found) >= limit:
                    break
        return found

    def _walk(self, bucket: str, above: str, after: str, prefix: str) -> Iterator[Entry]:
        """Entries below the directory `above` ("" or ending in "/"), in order."""
        path = self.path(bucket, above.rstrip("/"))
        with _asked(path):
            try:
                infos = self.fs.ls(path, detail=True)
            except FileNotFoundError:
                return
        names = sorted(
            str(info["name"]).rstrip("/").rpartition("/")[2] + ("/" if info["type"] == "directory" else "")
            for info in infos
            if info["type"] in ("file", "directory")
        )
        for name in names:
            full = above + name
            if name.endswith("/"):
                if not below(full, after) and _may_hold(full, prefix):
                    yield from self._walk(bucket, full, after, prefix)
            elif full > after and full.startswith(prefix) and not _is_private(full):
                entry = self._there(full, self.path(bucket, full))
                if entry:
                    yield entry

    def stat(self, bucket: str, name: str) -> Entry:
        return self.entry(name, self._place(bucket, name))

    # changes

    def publish(
        self, bucket: str, name: str, draft: str, file: Any, size: int, meta: bytes, if_token: IfToken
    ) -> Entry:
        """Finish the draft and give it its name. Raises as `ObjectStream.commit`."""
        path = self._place(bucket, name)
        with self._lock(path):
            old = self._there(name, path)
            _check_token(name, old, if_token)
            self._check_free(bucket, name, path)
            stamp = self._next_stamp(old)
            footer = _Footer(stamp, stamp, secrets.token_bytes(8), meta)
            self._finish(file, footer)
            self._move(draft, path)
            return Entry(
                name=name,
                size=size,
                mtime_ns=stamp,
                token=footer.nonce + (size + len(meta) + _FOOTER.size).to_bytes(8, "little"),
                stamp=stamp,
                meta=meta,
            )

    def _finish(self, file: Any, footer: _Footer) -> None:
        with _asked("draft"):
            file.write(footer.encode())
            if self._local:
                file.flush()
                os.fsync(file.fileno())
            file.close()

    def _check_free(self, bucket: str, name: str, path: str) -> None:
        """Raises `Taken` where a file is above the name, or a directory at it."""
        with _asked(path):
            above = name
            while "/" in above:
                above = above.rpartition("/")[0]
                if self.fs.isfile(self.path(bucket, above)):
                    raise Taken(f"{above!r} is an object, so {name!r} cannot be one")
            if self.fs.isdir(path):
                raise Taken(f"{name!r} is a directory")

    def _move(self, draft: str, path: str) -> None:
        parent = path.rpartition("/")[0]
        for attempt in range(_TRIES):
            with _asked(path):
                self.fs.makedirs(parent, exist_ok=True)
                try:
                    self._rename(draft, path)
                    return
                except FileNotFoundError:  # a removal took the empty directory
                    if attempt == _TRIES - 1:
                        raise

    def _rename(self, draft: str, path: str) -> None:
        if self._local:
            os.replace(draft, path)
            self._sync_above(path)
        elif type(self.fs).mv is not AbstractFileSystem.mv:
            if self.fs.exists(path):
                self.fs.rm_file(path)  # many will not rename over a file
            self.fs.mv(draft, path)
        else:
            self.fs.cp_file(draft, path)
            self.fs.rm_file(draft)

    def _sync_above(self, path: str) -> None:
        """Sync the directories of a local file, up to the root."""
        while len(path) > len(self._root):
            path = os.path.dirname(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        path = self._place(bucket, name)
        with self._lock(path):
            old = self.entry(name, path)
            _check_token(name, old, if_token)
            with _asked(path):
                self.fs.rm_file(path)
                if self._local:
                    self._sync_above(path)
            self._prune(bucket, name)
            return self._next_stamp(old)

    def _prune(self, bucket: str, name: str) -> None:
        """Remove directories that are empty now; all below a bucket are ours."""
        while "/" in name:
            name = name.rpartition("/")[0]
            path = self.path(bucket, name)
            try:
                if name == INTERNAL or self.fs.ls(path, detail=False):
                    return
                self.fs.rmdir(path)
            except Exception:  # not empty any more, or no such thing as a directory here
                return

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        path = self._place(bucket, name)
        writer = _Writer(self, bucket, name)
        try:
            with self._lock(path):
                old = self.entry(name, path)
                _check_token(name, old, if_token)
                self._pour(writer, path, old)
                footer = _Footer(old.mtime_ns, self._next_stamp(old), secrets.token_bytes(8), bytes(meta))
                self._finish(writer._opened(), footer)
                self._move(writer._draft, path)
                writer._file = None
                return self.entry(name, path)
        finally:
            writer.close()

    def _pour(self, writer: _Writer, path: str, entry: Entry) -> None:
        """Write the body of an object into another's draft."""
        for start in range(0, entry.size, _PIECE):
            writer.write(memoryview(self.read(path, start, min(start + _PIECE, entry.size))))

    # streams

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        path = self._place(bucket, name)
        fd = -1
        if self._local:
            with self._lock(path), _asked(path):
                entry = self.entry(name, path)
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            entry = self.entry(name, path)
        reader = _Reader(self, path, entry, fd)
        if token is not None and token != entry.token:
            reader.close()
            raise Changed(f"{name!r} is not what it was")
        return reader

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        return self._writer(bucket, name)

    def _writer(self, bucket: str, name: str) -> _Writer:
        self._place(bucket, name)
        self._check(bucket)
        return _Writer(self, bucket, name)

    # upkeep

    def sweep(self, older_than_s: float) -> int:
        before = time.time_ns() - int(older_than_s * 1e9)
        count = 0
        with _asked("sweep"):
            for bucket in self.fs.ls(self._root or "/", detail=False):
                drafts = f"{str(bucket).rstrip('/')}/{INTERNAL}/tmp"
                if not self.fs.isdir(drafts):
                    continue
                for draft in self.fs.ls(drafts, detail=False):
                    made = str(draft).rpartition("/")[2].partition("-")[0]
                    if int(made, 16) < before:
                        self.fs.rm_file(draft)
                        count += 1
        return count

    def recover(self) -> Iterator[tuple[str, Entry]]:
        return iter(())  # what was published has its name; the floor above finds the rest by a scan


def _may_hold(full: str, prefix: str) -> bool:
    """Whether the directory may hold names that begin with `prefix`."""
    if full.startswith(INTERNAL + "/") and not prefix.startswith(INTERNAL + "/"):
        return False
    return full.startswith(prefix) or prefix.startswith(full)


def _is_private(full: str) -> bool:
    head, _, rest = full.partition("/")
    return head == INTERNAL and rest.partition("/")[0] in _PRIVATE


def _check_token(name: str, old: Entry | None, if_token: IfToken) -> None:
    """Raises `Changed` if `if_token` does not fit what is there."""
    if if_token is None:
        return
    if if_token is ABSENT:
        if old is not None:
            raise Changed(f"{name!r} is there already")
    elif old is None or old.token != if_token:
        raise Changed(f"{name!r} is not what it was")
