"""Discarded bodies of which a process leaves word, some seconds after it has them and when it ends.

They have no row and wait for their last readers, who may be at another server; it alone knows until when. So
it notes them beside the bodies, and whoever clears up later removes them, and knows that they are no objects
which the index has lost. In the first minute the index itself refuses what was deleted.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from cumulus.model import Bucket
from cumulus.ops.bin import MOST_S
from cumulus.ops.names import LEFT
from cumulus.ops.rows import meta_of
from cumulus.storage.api import Entry, FileStore, Missing, NoBucket, StorageError

if TYPE_CHECKING:
    from cumulus.ops.resting import Resting
    from cumulus.ops.site import Site

_SECOND: Final = 1_000_000_000
_PAGE: Final = 1000  # bodies in a note
_Bodies = list[tuple[str, int]]  # name, and until when it stays, in ns
_bodies: Final = msgspec.json.Decoder(_Bodies)
_log: Final = logging.getLogger(__name__)


def leave(site: Site) -> None:
    """Note what is in the bin, at the end. What cannot be noted is found by a sweep, a day after it was
    stored."""
    _note_all(site, site.bin.leave())


def leave_fresh(site: Site) -> None:
    """Note what has come into the bin some time ago and is in no note yet: who makes the index anew beside
    this process, or after it was killed, would list again what was deleted."""
    if not site.atomic:
        _note_all(site, site.bin.fresh())


def _note_all(site: Site, waiting: list[tuple[str, str, float]]) -> None:
    bodies: dict[str, _Bodies] = defaultdict(list)
    for bucket, name, left_s in waiting:
        bodies[bucket].append((name, site.clock() + int(left_s * _SECOND)))
    for bucket, found in bodies.items():
        try:
            for start in range(0, len(found), _PAGE):
                note(site.store, bucket, found[start : start + _PAGE])
        except Missing:  # it went, with all that was in it
            continue
        except StorageError as bad:
            _log.warning(
                "bucket %(bucket)s: bodies that were replaced stay for now: %(why)s",
                {"bucket": bucket, "why": str(bad)},
            )
            if not bad.permanent:  # it is away, and the service is to end
                return


def note(store: FileStore, bucket: str, bodies: _Bodies) -> None:
    """Leave word of these, a thousand or so. Raises `StorageError`."""
    stream = store.open_write(bucket, LEFT + uuid.uuid4().hex)
    try:
        stream.write(memoryview(msgspec.json.encode(bodies)))
        stream.commit(b"")
    finally:
        stream.close()


def clear(site: Site, bucket: Bucket, resting: Resting | None = None) -> tuple[int, set[str]]:
    """Remove those whose readers have had their time; how many, and the names of the others (some of them
    when the process ends). One that a row names stays (the database is from a backup). Raises
    `StorageError`."""
    count, waiting, now = 0, set[str](), site.clock()
    for one in notes(site.store, bucket.name):
        bodies = _read(site.store, bucket.name, one)
        left = {name for name, until in bodies if now < until <= now + MOST_S * _SECOND}
        for name, _ in bodies:
            if name not in left:
                count += _remove(site, bucket, name)
                if resting is not None and resting.rest():
                    return count, waiting
        waiting |= left
        if not left:
            site.remove(bucket.name, one)
    return count, waiting


def _remove(site: Site, bucket: Bucket, name: str) -> int:
    try:
        if is_named(site, bucket, site.store.stat(bucket.name, name)):
            return 0
        site.store.delete(bucket.name, name)
    except NoBucket:
        raise
    except Missing:
        return 0
    return 1


def is_named(site: Site, bucket: Bucket, entry: Entry) -> bool:
    """Whether a row says that a body counts."""
    meta = meta_of(bucket, entry)
    row = None if meta is None else site.index.lookup(bucket.name, meta.key, meta.version)
    return row is not None and row.name == entry.name


def discarded(store: FileStore, bucket: str) -> set[str]:
    """The names in all notes. Raises `StorageError`."""
    return {name for one in notes(store, bucket) for name, _ in _read(store, bucket, one)}


def notes(store: FileStore, bucket: str) -> list[str]:
    """The names of all notes. Raises `StorageError`."""
    try:
        return [entry.name for page in store.entries(bucket, LEFT, _PAGE) for entry in page]
    except Missing:
        return []


def _read(store: FileStore, bucket: str, name: str) -> _Bodies:
    try:
        stream = store.open_read(bucket, name)
    except Missing:  # another server has cleared up
        return []
    try:
        return _bodies.decode(stream.read_at(0, stream.entry.size))
    except msgspec.MsgspecError:  # not one of ours
        return []
    finally:
        stream.close()
