"""Clearing up: parts of uploads that are over, and bodies that no row names.

Where each body has a name of its own the index alone says which one counts. If that comes from a backup, or
was made anew, it knows nothing of what was stored since, and such bodies look like those that crashes leave.
So what is older than this process and newer than all that the index knows of the bucket is in doubt. The
stretch of time is noted beside the bodies: nothing of it is cleared away, and the bucket does not go, until
`doctor --rebuild` has taken in what there is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import msgspec

from cumulus.model import Bucket
from cumulus.ops.failed import Failed
from cumulus.ops.left import clear, discarded, is_named
from cumulus.ops.names import BODIES, DOUBT, PARTS, slots_name
from cumulus.ops.resting import Resting
from cumulus.ops.rows import meta_of
from cumulus.ops.site import Site
from cumulus.storage.api import Entry, FileStore, Missing

PAGE: Final = 50  # bodies that are asked for one by one, and a rest after them
MANY: Final = 1000
SECOND: Final = 1_000_000_000
FAILURES: Final = 20  # of storage, one after another, that may pass
_log: Final = logging.getLogger(__name__)
Stretch = tuple[int, int]  # from, until, in ns
_stretches: Final = msgspec.json.Decoder(list[Stretch])


def sweep(site: Site, bucket: Bucket, stale_s: float, resting: Resting | None = None) -> int:
    """Remove leftovers that are older than that; how many. A body may have been replaced just now, however
    old it is: it stays for its readers (`Site.discard`), and counts now. What was in doubt is so no longer
    where nothing is left of it (another server had just removed it)."""
    doubt, failed = doubts(site.store, bucket.name), Failed(FAILURES)
    left: set[Stretch] = set()
    count, waiting = _clear_left(site, bucket, resting)
    for prefix, needed in ((PARTS, _part_needed), (BODIES, is_named)):
        for entry in _entries(site, bucket, prefix, resting):
            if site.stopping:
                return count
            if entry.name in waiting:
                continue
            doubtful = [one for one in doubt if _within(entry, [one])]
            old = site.clock() - entry.mtime_ns > stale_s * SECOND
            if not (old or doubtful) or needed(site, bucket, entry):
                continue
            if doubtful:
                left.update(doubtful)
            elif prefix == BODIES:
                count += site.discard(bucket.name, entry.name, entry.size)
            else:
                with failed.noted():
                    site.remove(bucket.name, entry.name)
                    count += 1
            if resting is not None and resting.rest():
                return count
    if site.stopping:
        return count
    if over := set(doubt) - left:
        if still := [one for one in doubts(site.store, bucket.name) if one not in over]:
            _write(site.store, bucket.name, still)
        else:
            site.remove(bucket.name, DOUBT)
    failed.check()
    return count


def _clear_left(site: Site, bucket: Bucket, resting: Resting | None) -> tuple[int, set[str]]:
    return (0, set()) if site.atomic else clear(site, bucket, resting)


def _entries(site: Site, bucket: Bucket, prefix: str, resting: Resting | None) -> Iterator[Entry]:
    """With rests; fewer when the process ends."""
    with contextlib.suppress(Missing):
        for entries in site.store.entries(bucket.name, prefix, MANY if site.atomic else PAGE):
            yield from entries
            if resting is not None and resting.rest():
                return


def _part_needed(site: Site, bucket: Bucket, entry: Entry) -> bool:
    id = entry.name.removeprefix(PARTS).partition("/")[0]
    if entry.name.startswith(slots_name(id, 0)[:-1]):  # it has no record; parts go with their upload
        return bool(site.index.parts(id, limit=1))
    meta = meta_of(bucket, entry)
    return meta is not None and site.index.upload(bucket.name, meta.key, id) is not None


# what is in doubt ----------------------------------------------------------------------------------------
def doubts(store: FileStore, bucket: str) -> list[Stretch]:
    """Stretches of time whose bodies are not cleared away. Raises `StorageError`."""
    try:
        stream = store.open_read(bucket, DOUBT)
    except Missing:
        return []
    try:
        return _stretches.decode(stream.read_at(0, stream.entry.size))
    finally:
        stream.close()


def note_doubt(site: Site, bucket: Bucket, began_ns: int, resting: Resting | None = None) -> None:
    """Look for bodies from before `began_ns` that no row names, newer than all rows and the bodies that those
    name (of a changed record the body is new, and its object's time old); note that there are some. Raises
    `StorageError`."""
    known = doubts(site.store, bucket.name)
    left = newest = -1  # of bodies that no row names, and of those that one does
    waiting = discarded(site.store, bucket.name)
    for entry in _entries(site, bucket, BODIES, resting):
        if entry.mtime_ns >= began_ns or entry.name in waiting or _within(entry, known):
            continue
        if is_named(site, bucket, entry):
            newest = max(newest, entry.mtime_ns)
        else:
            left = max(left, entry.mtime_ns)
    if left > newest:
        newest = max(newest, _newest(site, bucket, began_ns, resting))
    if site.stopping:  # not all of it was looked at
        return
    if left > newest:
        _log.error(
            "bucket %(bucket)s: bodies that are newer than all that the database knows are kept; if it "
            "was restored, or made anew, cumulus doctor --rebuild takes them in",
            {"bucket": bucket.name},
        )
        _write(site.store, bucket.name, [*known, (newest + 1, began_ns)])


def _newest(site: Site, bucket: Bucket, before_ns: int, resting: Resting | None) -> int:
    newest, after, version, more = 0, "", "", True
    while more:
        page = site.index.page_versions(bucket.name, after=after, after_version=version, limit=MANY)
        newest = max([newest, *(row.modified_ns for row in page.rows if row.modified_ns < before_ns)])
        after, version, more = page.next, page.next_version, page.truncated
        more = more and not (resting is not None and resting.rest())
    return newest


def _within(entry: Entry, stretches: list[Stretch]) -> bool:
    return any(begin <= entry.mtime_ns < end for begin, end in stretches)


def _write(store: FileStore, bucket: str, stretches: list[Stretch]) -> None:
    stream = store.open_write(bucket, DOUBT)
    try:
        stream.write(memoryview(msgspec.json.encode(stretches)))
        stream.commit(b"")
    finally:
        stream.close()
