"""Objects on any file system that fsspec knows: `fsspec:hdfs://...`, `fsspec:sftp://...`.

One object is one file, ROOT/BUCKET/NAME: the body, then its meta, then a fixed footer. So body and meta
appear in one step wherever a rename or an upload is one. Only the local file system is known to replace
atomically; for others the floor above gives each body a name of its own, and what is replaced all the same
(a part that is sent again) is aside until the new file is whole. Conditions (`if_token`) are checked within
this process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from cumulus.backends.fsspec_link import open_link
from cumulus.backends.fsspec_local import TAIL, opened, sync_above
from cumulus.backends.fsspec_reader import Reader
from cumulus.backends.fsspec_record import FOOTER_SIZE, Footer, asked, plain_entry, token_of, whole_entry
from cumulus.backends.fsspec_writer import BLOCK, Writer, block_of
from cumulus.storage.api import (
    INTERNAL,
    BadName,
    Capabilities,
    Changed,
    Entry,
    FileStore,
    IfToken,
    Missing,
    NoBucket,
    NotEmptyStore,
    ObjectStream,
    StorageError,
    Taken,
    Token,
    Unavailable,
    check_token,
)
from cumulus.storage.names import below, check_bucket, check_name, without_secret

_PIECE: Final = 1 << 20
_TRIES: Final = 5
COPY_S: Final = 60.0  # for which a copy is waited for that the driver says is made (Azure copies by itself)
_PAUSE_S: Final = 0.05
_PRIVATE: Final = ("tmp", "bucket")  # below INTERNAL
_ASIDE: Final = f"{INTERNAL}/aside"
_STAY: Final = (INTERNAL, f"{INTERNAL}/bodies")  # and so do the directories in them
_DRAFT: Final = re.compile("([0-9a-f]+)-[0-9a-f]{12}")


def check_driver(url: str) -> None:
    """Raises `ValueError` where fsspec has none for the URL."""
    outer, chained, _ = url.partition("::")
    protocol = outer.partition("://")[0] if chained or "://" in outer else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ValueError(f"fsspec:{without_secret(url)}: {error}") from error


class FsspecStore(FileStore):
    """`url` as fsspec takes it, with the store's root directory as path; `known_hosts` as in `open_link`,
    `options` go to the file system. Raises `ValueError` for a URL of a kind that is unknown or not installed,
    `StorageError`."""

    def __init__(self, url: str, known_hosts: str = "", **options: Any) -> None:
        self.fs, kind, root = open_link(url, known_hosts, **options)
        self._root = root.rstrip("/")
        self._large_blocks = getattr(kind, "default_block_size", 0) > BLOCK
        self._local = issubclass(kind, LocalFileSystem)
        self.capabilities = Capabilities(
            atomic_replace=self._local, plain_names=False, concat=True, compares=False
        )
        # many will not rename over a file, and some do not even say so; else a rename is a copy
        self._renames = kind.mv is not AbstractFileSystem.mv
        self._spared: bool | None = True if self._local else None
        self._locks = [threading.Lock() for _ in range(64)]
        self._clock = threading.Lock()
        self._last = 0
        with asked(without_secret(url)):
            self._make_dirs(self._root or "/")

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
        with asked(path):
            return bytes(self.fs.cat_file(path, start=start, end=end))

    def entry(self, name: str, path: str) -> Entry:
        """What is at `path`. Raises `Missing` also for a directory."""
        if self._local:
            entry, fd = opened(name, path)
            os.close(fd)
            return entry
        info = self._info(path) or self._info_again(path)
        if info is None:
            raise Missing(f"no {name!r}")
        size = int(info["size"])
        tail = self.read(path, max(0, size - TAIL), size)
        footer = self._footer(path, size, tail)
        if footer is None:
            self._check_beside(path)
            return plain_entry(name, size, info.get("mtime"), info.get("ETag"))
        return whole_entry(name, size, footer)

    def token(self, path: str) -> Token | None:
        """Of an object that has a record, which may be large and is not read; None for what is none."""
        info = self._info(path)
        size = int(info["size"]) if info else 0
        return token_of(size, self.read(path, max(0, size - FOOTER_SIZE), size)) if info else None

    def _info(self, path: str) -> dict[str, Any] | None:
        """Of a file; None for nothing, or a directory."""
        info = self._what(path)
        return info if info and info["type"] == "file" else None

    def _what(self, path: str) -> dict[str, Any] | None:
        """What is there, if anything is. Raises `StorageError` where that cannot be told: what drivers call
        `exists` says no then, and `isfile` and `isdir` do."""
        with asked(path):
            try:
                info: dict[str, Any] = self.fs.info(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return info

    def _is_dir(self, path: str) -> bool:
        info = self._what(path)
        return info is not None and info["type"] == "directory"

    def _make_dirs(self, path: str) -> None:
        """And those above. Others may be making them too, which some drivers take for an error."""
        try:
            if self._local or not self._is_dir(path):
                self.fs.makedirs(path, exist_ok=True)
        except FileExistsError:
            raise
        except Exception:
            if not self._is_dir(path):
                raise

    def _ls(self, path: str) -> list[tuple[str, str]]:
        """Path and type of what is in a directory; nothing for what is none."""
        with asked(path):
            try:
                infos = self.fs.ls(path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [(str(info["name"]).rstrip("/"), str(info["type"])) for info in infos]

    def _below(self, path: str) -> Iterator[tuple[str, str]]:
        """The same of all that is below a directory, the deepest first."""
        for found, kind in self._ls(path):
            if kind == "directory" and found != path:
                yield from self._below(found)
            yield found, kind

    def _files(self, path: str) -> Iterator[str]:
        return (found for found, kind in self._below(path) if kind != "directory")

    def _remove_file(self, path: str) -> None:
        """Raises FileNotFoundError where there is none, whatever the driver calls that (FTP has one code for
        all that cannot be done)."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:
            raise
        except Exception as error:
            if self._what(path) is None:
                raise FileNotFoundError(path) from error
            raise

    def _info_again(self, path: str) -> dict[str, Any] | None:
        """Of a file that was not there. Raises `Unavailable` while it is aside: it is an object."""
        self._check_beside(path)
        return None if self._local else self._info(path)

    def _check_beside(self, path: str) -> None:
        """Of what is not there, or not whole. Raises `Unavailable` while what was there is aside."""
        if self._local:
            return
        with asked(path):
            if self._what(self._beside(path)):
                raise Unavailable(f"{path} is being replaced")

    def _beside(self, path: str) -> str:
        """Where an object is while another takes its place."""
        bucket, _, name = path[len(self._root) + 1 :].partition("/")
        return self.path(bucket, f"{_ASIDE}/{name}")

    def _footer(self, path: str, size: int, tail: bytes) -> Footer | None:
        return Footer.decode(size, tail, lambda start, end: self.read(path, start, end))

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
        with asked(bucket):
            self._make_dirs(self.path(bucket, f"{INTERNAL}/tmp"))
            self.fs.pipe_file(self.path(bucket, f"{INTERNAL}/bucket"), b"")

    def has_buckets(self) -> bool:
        return any(self._what(f"{path}/{INTERNAL}/bucket") for path, _ in self._ls(self._root or "/"))

    def has_files(self, bucket: str, prefix: str = "") -> bool:
        return any(self._walk(check_bucket(bucket), "", "", prefix))

    def _check(self, bucket: str) -> None:
        with asked(bucket):
            if not self._what(self.path(check_bucket(bucket), f"{INTERNAL}/bucket")):
                raise NoBucket(f"no bucket {bucket!r}")

    def delete_bucket(self, bucket: str) -> None:
        self._check_empty(bucket)
        with asked(bucket):
            self._remove_file(self.path(bucket, f"{INTERNAL}/bucket"))  # no write begins any more
            for draft, _ in self._ls(self.path(bucket, f"{INTERNAL}/tmp")):
                with contextlib.suppress(FileNotFoundError):
                    self._remove_file(draft)  # nor ends
            if self._rmdir_spares():
                with contextlib.suppress(StorageError):
                    self._remove_dirs(self.path(bucket))
            if not self._what(self.path(bucket)) or not (self._local or any(self._files(self.path(bucket)))):
                return
        self.create_bucket(bucket)
        self._check_empty(bucket)
        raise Unavailable(f"bucket {bucket!r} is written to all the time")

    def _remove_dirs(self, path: str) -> None:
        for found in [*(found for found, kind in self._below(path) if kind == "directory"), path]:
            with contextlib.suppress(Exception):  # not empty, or no such thing as a directory here
                self.fs.rmdir(found)

    def _rmdir_spares(self) -> bool:
        """Whether `rmdir` spares a directory that is not empty. What Arrow knows (HDFS) removes all that is
        in it, and with it what was published a moment ago: there directories stay. Tried once."""
        if self._spared is None:
            place = f"{self._root}/.rmdir-{secrets.token_hex(6)}"
            with asked(place):
                self.fs.makedirs(place, exist_ok=True)
                self.fs.pipe_file(f"{place}/file", b"")
                with contextlib.suppress(Exception):
                    self.fs.rmdir(place)
                self._spared = self._what(f"{place}/file") is not None
                with contextlib.suppress(FileNotFoundError):
                    self._remove_file(f"{place}/file")
                with contextlib.suppress(Exception):  # no such thing as a directory here
                    self.fs.rmdir(place)
        return self._spared

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

    def entries(self, bucket: str, prefix: str = "", limit: int = 1000) -> Iterator[list[Entry]]:
        self._check(bucket)
        found = self._walk(bucket, "", "", prefix)
        while page := list(itertools.islice(found, limit)):
            yield page

    def _walk(self, bucket: str, above: str, after: str, prefix: str) -> Iterator[Entry]:
        """Entries below the directory `above` ("" or ending in "/"), in order."""
        names = sorted(
            path.rpartition("/")[2] + ("/" if kind == "directory" else "")
            for path, kind in self._ls(self.path(bucket, above.rstrip("/")))
            if kind in ("file", "directory")
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
        return self._found(bucket, name, self._place(bucket, name))

    def _found(self, bucket: str, name: str, path: str) -> Entry:
        """Raises `NoBucket` where all of the bucket is away: that says nothing of the object."""
        try:
            return self.entry(name, path)
        except Missing:
            self._check(bucket)
            raise

    # changes

    def publish(self, bucket: str, name: str, writer: Writer, meta: bytes, if_token: IfToken) -> Entry:
        """Finish the draft and give it its name. Raises as `ObjectStream.commit`."""
        path = self._place(bucket, name)
        with self._lock(path):
            old = self._there(name, path)
            check_token(name, old.token if old else None, if_token)
            self._check_free(bucket, name, path)
            stamp = self._next_stamp(old)
            footer = Footer(stamp, stamp, secrets.token_bytes(8), meta)
            writer.finish(footer)
            self._move(writer.draft, path)
            size = writer.size
            return Entry(
                name=name,
                size=size,
                mtime_ns=stamp,
                token=footer.nonce + (size + len(meta) + FOOTER_SIZE).to_bytes(8, "little"),
                stamp=stamp,
                meta=meta,
            )

    def finish(self, file: Any, footer: Footer) -> None:
        """Write the record at its end and close it, on disk where that can be."""
        with asked("draft"):
            file.write(footer.encode())
            if self._local:
                file.flush()
                os.fsync(file.fileno())
            file.close()

    def _check_free(self, bucket: str, name: str, path: str) -> None:
        """Raises `Taken` where a file is above the name, or a directory at it."""
        with asked(path):
            above = name
            while "/" in above:
                above = above.rpartition("/")[0]
                if self._info(self.path(bucket, above)):
                    raise Taken(f"{above!r} is an object, so {name!r} cannot be one")
            if self._is_dir(path):
                raise Taken(f"{name!r} is a directory")

    def _move(self, draft: str, path: str) -> None:
        parent = path.rpartition("/")[0]
        for attempt in range(_TRIES):
            with asked(path):
                try:
                    self._make_dirs(parent)
                    self._rename(draft, path)
                    return
                except (FileNotFoundError, FileExistsError):  # a removal took the empty directory
                    if attempt == _TRIES - 1:
                        raise

    def _rename(self, draft: str, path: str) -> None:
        if self._local:
            os.replace(draft, path)
            sync_above(path, self._root)
        elif self._what(path):
            self._exchange(draft, path)
        else:
            self._shift(draft, path)

    def _exchange(self, draft: str, path: str) -> None:
        """Rename over a file in steps: until the new one has the name and is whole, the old one is aside;
        `recover` puts it back where that ends half-way."""
        beside = self._beside(path)
        self._make_dirs(beside.rpartition("/")[0])
        if self._what(beside):
            self._remove_file(beside)
        if self._renames:
            self.fs.mv(path, beside)
        else:
            self._copy_aside(path, beside)
        try:
            self._shift(draft, path)
        except BaseException:
            self._put_back(beside, path)
            raise
        with contextlib.suppress(FileNotFoundError):
            self._remove_file(beside)

    def _copy_aside(self, path: str, beside: str) -> None:
        try:
            self._copy(path, beside)
        except Exception:
            with contextlib.suppress(Exception):  # the object is where it was
                self._remove_file(beside)
            raise

    def _put_back(self, beside: str, path: str) -> None:
        with asked(path):
            if self._tail(path):  # it is the new one, or still the old one
                self._remove_file(beside)
                return
            self._make_dirs(path.rpartition("/")[0])
            if self._renames and self._what(path):
                self._remove_file(path)
            self._shift(beside, path)

    def _shift(self, source: str, to: str) -> None:
        """Give a file a name that is free, or has what may go. Without renames it keeps the other one until
        it is whole under this one."""
        if not self._renames:
            self._copy(source, to)
            self._remove_file(source)
            return
        self.fs.mv(source, to)
        if self._what(source):
            raise OSError(f"{source} was not renamed")

    def _copy(self, source: str, to: str) -> None:
        """Returns when the copy is whole, which may be some time after the driver says so."""
        wanted = self._tail(source)
        self.fs.cp_file(source, to)
        end = time.monotonic() + COPY_S
        while self._tail(to) != wanted:
            if time.monotonic() >= end:
                raise OSError(f"the copy of {source} to {to} is not whole")
            time.sleep(_PAUSE_S)

    def _tail(self, path: str) -> tuple[int, bytes] | None:
        """Size and footer, by which a whole file is known from others; None for one that has no footer, or
        is not there."""
        info = self._info(path)
        size = int(info["size"]) if info else 0
        tail = self.read(path, max(0, size - TAIL), size) if info else b""
        return (size, tail[-FOOTER_SIZE:]) if self._footer(path, size, tail) else None

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        path = self._place(bucket, name)
        with self._lock(path):
            old = self._found(bucket, name, path)
            check_token(name, old.token, if_token)
            with asked(path):
                self._remove_file(path)
                if self._local:
                    sync_above(path, self._root)
            self._prune(bucket, name)
            return self._next_stamp(old)

    def _prune(self, bucket: str, name: str) -> None:
        """Remove directories that are empty now; all below a bucket are ours. Those with names of ours stay,
        and none is listed for it where `rmdir` is known to spare one that is not empty: it may be large."""
        while "/" in name and self._spared is not False:
            name = name.rpartition("/")[0]
            path = self.path(bucket, name)
            try:
                if name.rpartition("/")[0] in _STAY or name == INTERNAL:
                    return
                if (self._spared is None and self.fs.ls(path, detail=False)) or not self._rmdir_spares():
                    return
                self.fs.rmdir(path)
            except Exception:  # not empty any more, or no such thing as a directory here
                return

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        path = self._place(bucket, name)
        writer = self._writer(bucket, name, self._found(bucket, name, path).size)
        try:
            with self._lock(path):
                old = self._found(bucket, name, path)
                check_token(name, old.token, if_token)
                self._pour(writer, path, old)
                footer = Footer(old.mtime_ns, self._next_stamp(old), secrets.token_bytes(8), bytes(meta))
                self.finish(writer.opened(), footer)
                self._move(writer.draft, path)
                writer.file = None
                return self.entry(name, path)
        finally:
            writer.close()

    def _pour(self, writer: Writer, path: str, entry: Entry) -> None:
        """Write the body of an object into another's draft."""
        for start in range(0, entry.size, _PIECE):
            writer.write(memoryview(self.read(path, start, min(start + _PIECE, entry.size))))

    # streams

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        path = self._place(bucket, name)
        if self._local:
            try:
                entry, fd = opened(name, path)
            except Missing:
                self._check(bucket)
                raise
        else:
            entry, fd = self._found(bucket, name, path), -1
        reader = Reader(self, path, entry, fd)
        if token is not None and token != entry.token:
            reader.close()
            raise Changed(f"{name!r} is not what it was")
        return reader

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        return self._writer(bucket, name, size_hint)

    def _writer(self, bucket: str, name: str, size: int | None) -> Writer:
        self._place(bucket, name)
        self._check(bucket)
        return Writer(self, bucket, name, block_of(size) if self._large_blocks else None)

    # upkeep
    def sweep(self, older_than_s: float) -> int:
        return self.sweep_gently(older_than_s, lambda: False)

    def sweep_gently(self, older_than_s: float, rest: Callable[[], bool]) -> int:
        """What others have put there stays, and keeps nothing else; so does a draft that is still written: it
        is as old as its upload, which may take days, and its file is as young as the last bytes."""
        before = time.time_ns() - int(older_than_s * 1e9)
        count, failed = 0, None
        for bucket, _ in self._ls(self._root or "/"):
            try:
                for draft, kind in self._ls(f"{bucket}/{INTERNAL}/tmp"):
                    made = _DRAFT.fullmatch(draft.rpartition("/")[2])
                    if (
                        made
                        and kind == "file"
                        and int(made[1], 16) < before
                        and self._written_ns(draft) < before
                    ):
                        with asked(draft), contextlib.suppress(FileNotFoundError):
                            self._remove_file(draft)
                            count += 1
                        if rest():
                            return count
            except StorageError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return count

    def _written_ns(self, path: str) -> int:
        """When a file was written to, 0 where the storage does not tell."""
        info = self._info(path) or {}
        return plain_entry("", 0, info.get("mtime")).mtime_ns

    def recover(self) -> Iterator[tuple[str, Entry]]:
        """What was published has its name, or is aside; the floor above finds the rest by a scan."""
        for bucket, _ in () if self._local else self._ls(self._root or "/"):
            aside = f"{bucket}/{_ASIDE}"
            for beside in list(self._files(aside)):
                self._put_back(beside, bucket + beside[len(aside) :])
        return iter(())


def _may_hold(full: str, prefix: str) -> bool:
    """Whether the directory may hold names that begin with `prefix`."""
    if full.startswith(INTERNAL + "/") and not prefix.startswith(INTERNAL + "/"):
        return False
    return full.startswith(prefix) or prefix.startswith(full)


def _is_private(full: str) -> bool:
    head, _, rest = full.partition("/")
    return head == INTERNAL and rest.partition("/")[0] in _PRIVATE
