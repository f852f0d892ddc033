"""`cumulus doctor --verify`: the bytes of objects against the sums that were made when they came.

A disk that returns other bytes than were written says nothing of it, and size and times of the file stay. So
all bodies are read, older versions too, from the disk and not from memory where that can be said. Of the sums
that an object has the quickest counts: a CRC of all bytes, or of each part of a multipart upload, else MD5,
which ETags are. What others made has a sum from the moment at which it was hashed.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cumulus.checksums import SIZES, Hasher
from cumulus.model import Bucket, ObjectMeta
from cumulus.ops.find import NOT_THERE
from cumulus.ops.names import BODIES, ODD, VERSIONS, is_mark
from cumulus.ops.rows import meta_of
from cumulus.storage.api import (
    Changed,
    FileStore,
    Forbidden,
    Missing,
    NoBucket,
    ObjectStream,
    StorageError,
)

_PAGE: Final = 1000
_READ: Final = 4 << 20
_QUICK: Final = ("crc64nvme", "crc32c", "crc32", "sha256", "sha1")  # before MD5
_NAMES: Final = 1000  # of damaged objects that are told


class Sum(NamedTuple):
    """What `size` bytes must have, in hex."""

    size: int
    algorithm: str
    digest: str


class Damaged(NamedTuple):
    """An object whose bytes are not those that came, or cannot be read. `name` is its file in the bucket; of
    one that cannot be opened it stands for the key, too, and `version` is ""."""

    key: str
    version: str
    name: str
    why: str


@dataclass
class Verified:
    """Of one bucket: objects whose bytes are right, and those without a sum; bytes that were read."""

    right: int = 0
    without: int = 0
    bytes: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    more: int = 0  # damaged ones that are not in the list

    def add(self, one: Damaged) -> None:
        """One more that is damaged."""
        if len(self.damaged) < _NAMES:
            self.damaged.append(one)
        else:
            self.more += 1


def sums_of(meta: ObjectMeta) -> list[Sum]:
    """One for all bytes, or one for each part in order; none where there are not enough."""
    if meta.checksum_type == "FULL_OBJECT" and (found := _quickest(meta.checksums)):
        return [Sum(meta.size, *found)]
    if meta.parts:
        parts = [_of(part.size, part.checksums, part.etag) for part in meta.parts]
        whole = sum(part.size for part in meta.parts) == meta.size
        return [one for one in parts if one] if whole and all(parts) else []
    one = _of(meta.size, meta.checksums if meta.checksum_type != "COMPOSITE" else {}, meta.etag)
    return [one] if one else []


def _of(size: int, checksums: dict[str, str], etag: str) -> Sum | None:
    if found := _quickest(checksums):
        return Sum(size, *found)
    return Sum(size, "md5", etag) if _is_hex(etag, SIZES["md5"]) else None


def _quickest(checksums: dict[str, str]) -> tuple[str, str] | None:
    for name in _QUICK:
        if name in checksums:
            with contextlib.suppress(ValueError):
                digest = base64.b64decode(checksums[name], validate=True)
                if len(digest) == SIZES[name]:
                    return name, digest.hex()
    return None


def _is_hex(text: str, size: int) -> bool:
    return len(text) == 2 * size and all(one in "0123456789abcdef" for one in text)


def verify(store: FileStore, bucket: Bucket) -> Verified:
    """Read all of a bucket. What is replaced or removed meanwhile is passed over. Raises `NoBucket`, and
    `StorageError` where the bucket cannot be listed."""
    done = Verified()
    for name in _names(store, bucket.name):
        try:
            stream = store.open_read(bucket.name, name)
        except NoBucket:
            raise
        except NOT_THERE:
            continue
        except Changed:
            continue
        except StorageError as bad:
            _check(store, bucket.name, bad)
            done.add(Damaged(name, "", name, str(bad)))
            continue
        try:
            _look(stream, bucket, done)
        finally:
            stream.close()
    return done


def _check(store: FileStore, bucket: str, bad: StorageError) -> None:
    """Raises `StorageError` where what kept an object from being opened keeps the others, too."""
    if isinstance(bad, Forbidden):
        store.check_bucket(bucket)
    else:
        store.names(bucket, limit=1)


def _names(store: FileStore, bucket: str) -> Iterator[str]:
    for prefix in ("", ODD, BODIES, VERSIONS):
        try:
            for entries in store.entries(bucket, prefix, _PAGE):
                yield from (entry.name for entry in entries if not is_mark(entry.name))
        except NoBucket:
            raise
        except Missing:
            continue


def _look(stream: ObjectStream, bucket: Bucket, done: Verified) -> None:
    meta = meta_of(bucket, stream.entry)
    if meta is None or meta.marker:  # a body that no object has, as of an upload that broke
        return
    sums = sums_of(meta)
    if not sums or sum(one.size for one in sums) != stream.entry.size:
        done.without += 1
        return
    try:
        with _from_disk(stream):
            why = _wrong(stream, sums)
    except Changed:
        return
    except (OSError, StorageError) as bad:
        why = str(bad)
    if why and stream.unchanged():
        done.add(Damaged(meta.key, meta.version, stream.entry.name, why))
    elif not why:
        done.right += 1
    done.bytes += stream.entry.size


@contextlib.contextmanager
def _from_disk(stream: ObjectStream) -> Iterator[None]:
    """What is in memory is right as long as the machine is; and what is read once need not stay there."""
    where = stream.sendable()
    _forget(where)
    try:
        yield
    finally:
        _forget(where)


def _forget(where: tuple[int, int] | None) -> None:
    if where is not None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(where[0], 0, 0, os.POSIX_FADV_DONTNEED)


def _wrong(stream: ObjectStream, sums: list[Sum]) -> str:
    """What is wrong with the bytes; "" for nothing."""
    at = 0
    for number, one in enumerate(sums, 1):
        hasher, end = Hasher([one.algorithm]), at + one.size
        while at < end:
            data = stream.read_at(at, min(_READ, end - at))
            if not data:
                return f"ends after {at} bytes"
            hasher.update(data)
            at += len(data)
        if hasher.digest(one.algorithm).hex() != one.digest:
            part = f" of part {number}" if len(sums) > 1 else ""
            return f"its bytes do not have the {one.algorithm.upper()}{part} that they came with"
    return ""
