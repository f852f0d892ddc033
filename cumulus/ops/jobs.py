"""Work in the background of one server: listings follow what others did in the directory, lifecycle rules
are carried out, what broken requests left is removed.

All of it may be stopped at any moment and begun again. The service calls `Jobs.run` every second or so from
one thread of one process; `hash_waiting` belongs to each process that answers requests.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cumulus.index.api import Away, Change, NoSuch, Put, Remove, Row
from cumulus.model import Bucket, ObjectMeta, Versioning
from cumulus.ops.current import removal
from cumulus.ops.expiring import Done, Expiring, Expiry
from cumulus.ops.failed import Failed
from cumulus.ops.find import (
    HASH_AT_ONCE,
    NOT_THERE,
    Found,
    adopt,
    find_or_none,
    hash_outside,
    is_foreign,
    stored_names,
)
from cumulus.ops.left import leave_fresh
from cumulus.ops.leftovers import note_doubt, sweep
from cumulus.ops.names import ODD, VERSIONS, is_plain, version_name
from cumulus.ops.publish import null_aside
from cumulus.ops.resting import Resting
from cumulus.ops.rows import OPAQUE, marker_row, meta_of, outside_row, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import (
    Changed,
    Entry,
    Forbidden,
    Missing,
    NoBucket,
    NoSpace,
    ReadOnly,
    StorageError,
    Unavailable,
)

SECOND: Final = 1_000_000_000
PAGE: Final = 1000
SCANNED: Final = 2000  # names that are compared at a time,
LOT: Final = 500  # and in the background, with a rest after each
SETTLE_S: Final = 2.0  # a removal under way has ended after this
STALE_S: Final = 24 * 3600.0  # what broken writes left goes after this
NEVER_S: Final = 1e9  # nothing is as old as that
MOST_AT_ONCE: Final = 100  # files hashed in one go,
HASH_S: Final = 2.0  # and for how long other work waits for these; large ones take hours
BETWEEN_S: Final = 1.0  # after so long they have their turn, whatever else goes on
STEP_S: Final = 60.0  # by which a clock differs that was set, and did not only go wrong a little
_log: Final = logging.getLogger(__name__)


def hash_waiting(site: Site) -> int:
    """What each process has left for later: hash files that were made outside and asked for, in a thread
    beside (how many of those that it has ended with is returned), tell the index what it has not heard of,
    keep room for removals, remove bodies that were replaced and have had their last readers."""
    with contextlib.suppress(Away):  # requests say so
        site.told.settle()
    site.store.keep_room()
    site.index.keep_room()
    site.empty_bin()
    leave_fresh(site)
    return site.unhashed.work(lambda name, key: _hash(site, name, key), MOST_AT_ONCE, HASH_S)


def _hash(site: Site, name: str, key: str) -> bool:
    """Hash the file of that key in the bucket `name`, if nobody has done it; false for one that has a
    record."""
    bucket = site.index.bucket(name)
    try:
        entry = site.store.stat(name, key)
        found = None if bucket is None else find_or_none(site, bucket, key)
        if bucket is None or found is None or entry.meta is not None:
            return False
        if found.meta.etag.endswith(OPAQUE):
            hash_outside(site, bucket, found)
    except (StorageError, NoSuch):
        return False
    return True


@dataclass
class Jobs:
    """`rescan_s`, `expire_s`, `sweep_s`: how often each kind of work is done, in seconds. Lifecycle rules
    wait for `settle_s` after a start, and after the clock was set (decision 0256). To be made before requests
    are answered. `run` does what is due at its time. What goes through all rows takes a fifth of a core at
    most, and scans half of the time at most, so that requests are answered as quickly meanwhile (decision
    0207). `seconds` is a clock that nobody sets. `told` hears how many objects and versions of a bucket its
    rules have deleted, and how many uploads they have ended."""

    site: Site
    expiry: Expiry
    rescan_s: float = 60.0
    expire_s: float = 3600.0
    sweep_s: float = 3600.0
    seconds: Callable[[], float] = time.monotonic
    settle_s: float = 0.0
    told: Callable[[str, int, int], None] = lambda bucket, expired, aborted: None
    _due: dict[str, int] = field(default_factory=dict)
    _scan_s: float = 0.0  # that the last scan took
    _waited: float = -BETWEEN_S  # when what waits was done last
    _asked: set[str] = field(default_factory=set)  # buckets in which bodies in doubt were looked for

    def __post_init__(self) -> None:
        """What is older than this is from before the service began (`ops.leftovers`)."""
        self._began_ns = self.site.clock()
        self._ahead_s = self._ahead()  # of the time of day before a clock that nobody sets
        self._settled_at = self.seconds() + self.settle_s

    def run(self) -> Done:
        """Do what is due. Raises what the index raises (the rest is done next time), and, after all is done
        that can be, the first error of storage."""
        done, failed = Done(), Failed()

        def pause(seconds: float) -> bool:
            self._rescan(done, failed)
            return self._pause(seconds)

        self._hash_waiting()
        self._rescan(done, failed)
        resting = Resting(pause)
        if self._is_settled() and self._is_due("expire", self.expire_s):
            self._each(failed, lambda bucket: self.expire(bucket, done, resting))
        if self._left_behind and self._is_due("follow", self.sweep_s):
            self._each(failed, lambda bucket: self._follow(bucket, done, resting))
        if self._is_due("sweep", self.sweep_s):
            stale_s = STALE_S if self._is_settled() else NEVER_S
            with failed.noted():
                done.swept += self.site.store.sweep_gently(stale_s, resting.rest)
            self._each(failed, lambda bucket: self._sweep(bucket, done, stale_s, resting))
            self._each(failed, lambda bucket: forget_versions(self.site, bucket, done, resting))
        failed.check()
        return done

    def _ahead(self) -> float:
        return self.site.clock() / SECOND - self.seconds()

    def _is_settled(self) -> bool:
        """Whether the time of day may be believed, by which objects are deleted for good: it has not been set
        for some time. A machine that starts, or comes back, may have a wrong one until somebody sets it."""
        ahead = self._ahead()
        step = ahead - self._ahead_s
        if abs(step) > STEP_S:
            self._settled_at = self.seconds() + self.settle_s
            if self.settle_s:
                text = "the clock was set by %(step).0f s: lifecycle rules wait for %(wait).0f minutes"
                _log.warning(text, {"step": step, "wait": self.settle_s / 60})
        self._ahead_s = ahead
        return self.seconds() >= self._settled_at

    @property
    def _left_behind(self) -> bool:
        """Whether a process that is killed may leave what the index has not heard of, in names that count."""
        return self.site.atomic and self.site.store.capabilities.lasts

    def process_died(self) -> None:
        """One that wrote in the same storage: what it had stored and not told is looked for soon. Called by
        any thread."""
        self._due.pop("follow", None)

    def _follow(self, bucket: Bucket, done: Done, resting: Resting) -> None:
        """What a process that was killed between storage and index has left: where nobody else changes files
        no scan would find it, nor under names of ours."""
        if not self.site.store.capabilities.outside:
            rescan(self.site, bucket, done, resting)
        take_in_odd(self.site, bucket, done)

    def _rescan(self, done: Done, failed: Failed) -> None:
        """If it is due, also in the middle of work that takes hours."""
        if not (self.site.store.capabilities.outside and self._is_due("rescan", self._rescan_every_s())):
            return
        began, resting = self.seconds(), Resting(self._pause)
        self._each(failed, lambda bucket: rescan(self.site, bucket, done, resting))
        self._scan_s = self.seconds() - began
        self._due["rescan"] = self.site.clock() + int((self._rescan_every_s() - self._scan_s) * SECOND)

    def _hash_waiting(self) -> None:
        hash_waiting(self.site)
        self._waited = self.seconds()

    def _pause(self, seconds: float) -> bool:
        """Of work that may take minutes: what waits in this process does not wait for all of it."""
        if self.seconds() - self._waited >= BETWEEN_S:
            self._hash_waiting()
        return self.site.pause(seconds)

    def _rescan_every_s(self) -> float:
        return max(self.rescan_s, 2 * self._scan_s)

    def _is_due(self, what: str, every_s: float) -> bool:
        now, due = self.site.clock(), self._due.get(what, 0)
        if now < due <= now + int(every_s * SECOND):  # not if the clock was set back
            return False
        self._due[what] = now + int(every_s * SECOND)
        return True

    def _each(self, failed: Failed, work: Callable[[Bucket], None]) -> None:
        """For each bucket, also when the storage of one has an error."""
        for bucket in self.site.index.brief_buckets():
            if self.site.stopping:
                return
            with failed.noted(), contextlib.suppress(NoSuch):  # it went meanwhile
                work(bucket)

    def _sweep(self, bucket: Bucket, done: Done, stale_s: float, resting: Resting) -> None:
        if bucket.name not in self._asked and not self.site.atomic:
            note_doubt(self.site, bucket, self._began_ns, resting)
            self._asked.add(bucket.name)
        done.swept += sweep(self.site, bucket, stale_s, resting)

    def expire(self, bucket: Bucket, done: Done, resting: Resting) -> None:
        """Carry out a bucket's lifecycle rules, and tell what has gone by them."""
        expired, aborted = done.expired, done.aborted
        try:
            Expiring(self.site, self.expiry, bucket.name, done, PAGE, self._is_settled).run(resting)
        finally:
            if (done.expired, done.aborted) != (expired, aborted):
                self.told(bucket.name, done.expired - expired, done.aborted - aborted)


# what others did -----------------------------------------------------------------------------------------
def rescan(site: Site, bucket: Bucket, done: Done, resting: Resting | None = None) -> None:
    """Compare a bucket's index with its directory, both in the same order, some hundred names at a time; the
    index takes in what one lot has changed while the next is looked at. What a power cut undoes in the index
    the next scan finds again."""
    telling: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="cumulus-rescan") as beside:
        for changes in _differences(site, bucket, done, resting):
            if telling is not None:
                telling.result()
            telling = beside.submit(site.index.apply_soon, changes)
        if telling is not None:
            telling.result()


def _differences(site: Site, bucket: Bucket, done: Done, resting: Resting | None) -> Iterator[list[Change]]:
    """Changes that make the rows fit, lot by lot."""
    after = ""
    try:
        for names in site.store.walk(bucket.name, SCANNED if resting is None else LOT):
            if site.stopping:
                return
            bucket = _as_it_is(site, bucket)
            yield from _compare(site, bucket, after, names[-1], names, done)
            after = names[-1]
            if resting is not None and resting.rest():
                return
    except Missing:
        return
    yield from _compare(site, _as_it_is(site, bucket), after, "", [], done)


def _as_it_is(site: Site, bucket: Bucket) -> Bucket:
    """A bucket with the settings that it has now: a scan of many files takes hours. Raises `NoSuch`."""
    now = site.index.bucket(bucket.name)
    if now is None:
        raise NoSuch(f"there is no bucket {bucket.name}")
    return now


def _compare(
    site: Site, bucket: Bucket, after: str, last: str, names: list[str], done: Done
) -> Iterator[list[Change]]:
    """Of keys from `after` to `last` ("" = all that follow), as many at a time as a page of rows has."""
    more = True
    while more:
        page = site.index.page(bucket.name, after=after, limit=max(LOT, len(names) + 1))
        rows, more, after = page.rows, page.truncated, page.next
        if last and rows and rows[-1].key > last:  # Python's order of strings is that of their UTF-8
            rows, more = rows[: bisect_right(rows, last, key=lambda row: row.key)], False
        count = bisect_right(names, rows[-1].key) if more else len(names)
        changes = _match(site, bucket, rows, names[:count], done)
        names = names[count:]
        if changes:
            yield changes


def _match(site: Site, bucket: Bucket, rows: list[Row], names: list[str], done: Done) -> list[Change]:
    """Rows and names of the same stretch of keys."""
    at = site.clock()
    found = site.store.look(bucket.name, names, {row.key: row.token for row in rows if row.name == row.key})
    there = set(names)
    changes: list[Change] = []
    missing: list[Row] = []
    for row in rows:
        if row.name.startswith(VERSIONS) and (entry := found.pop(row.key, None)) is not None:
            changes += _changed(site, bucket, row, entry, at, done)  # current again, or replaced
        elif row.name != row.key:  # its body is not where others can change it
            changes += _aside(site, bucket, row, at, done)
        elif row.key not in there:
            missing.append(row)
        elif row.key in found:
            entry = found.pop(row.key)
            if entry is None:
                missing.append(row)
            else:
                changes += _changed(site, bucket, row, entry, at, done)
        elif row.etag.endswith(OPAQUE):
            site.hash_later(bucket.name, row.name)
    for row in _really_missing(site, bucket, missing):
        changes += _removed(site, bucket, row, at, done)
    keep = bucket.versioning is not Versioning.OFF
    for entry in found.values():
        if entry is None:
            continue
        if entry.meta is not None:
            changes += _changed(site, bucket, None, entry, at, done)
        elif (new := outside_row(bucket, entry)) is not None:
            done.renewed += 1
            if keep and _beside_null(site, bucket, entry):
                continue
            site.hash_later(bucket.name, new.name)
            changes.append(Put(row=new, keep=keep))
    return changes


def _beside_null(site: Site, bucket: Bucket, entry: Entry) -> bool:
    """Bytes of others in a bucket with versions are the version "null" until they have a record. Where one of
    that id is kept already their row would take its place: so they get a record, as a version of their own,
    at once. False: there is no other, or it goes, or no record can be written."""
    meta = meta_of(bucket, entry)
    if meta is None or meta.version != "null" or not is_foreign(entry):
        return False
    if site.index.lookup(bucket.name, meta.key, "null") is None:
        return False
    if bucket.versioning is Versioning.SUSPENDED:  # what comes then replaces it
        site.remove(bucket.name, version_name(meta.key, "null"))
        return False
    found = Found(entry, meta)
    try:
        if not site.opaque_etags and entry.size <= HASH_AT_ONCE:
            kept = hash_outside(site, bucket, found)
            return kept is None or not is_foreign(kept.entry)
        adopt(site, bucket, found)
    except (Forbidden, ReadOnly, NoSpace):
        return False
    except NoBucket:
        raise
    except (Changed, Missing):  # the next scan finds what it is by then
        pass
    return True


def _changed(site: Site, bucket: Bucket, row: Row | None, entry: Entry, at: int, done: Done) -> list[Change]:
    """`entry` is what is in the place of what `row` names. A file that others moved there may be older than
    that, and than what was removed: it counts from when it was looked for, `at`."""
    meta = meta_of(bucket, entry)
    if meta is None:
        return []
    done.renewed += 1
    with_null = bucket.versioning is not Versioning.OFF and (row is None or row.version != "null")
    if with_null and _beside_null(site, bucket, entry):
        return []
    if entry.meta is None:
        site.hash_later(bucket.name, entry.name)
    if row is not None:
        entry = msgspec.structs.replace(entry, stamp=max(entry.stamp, row.stamp + 1))
    elif is_foreign(entry):
        entry = msgspec.structs.replace(entry, stamp=max(entry.stamp, at))
    elif bucket.versioning is not Versioning.OFF:
        entry = _come_back(site, bucket, entry, meta, at)
    new = row_of(bucket, entry, meta)
    if row is None or row.version == new.version or bucket.versioning is Versioning.OFF:
        return [Put(row=new, keep=bucket.versioning is not Versioning.OFF)]
    if _is_there(site, bucket, version_name(row.key, row.version), row.version):
        return [Put(row=new, keep=True)]  # replaced by one of ours, which the index may not have heard of yet
    gone = Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)
    return [gone, Put(row=new, keep=True)]


def _come_back(site: Site, bucket: Bucket, entry: Entry, meta: ObjectMeta, at: int) -> Entry:
    """What others took away (with a directory, or the disk below one), so that it has a delete marker, and
    put back: it is what reads find, so it is newer than the marker. A deletion takes the file before the
    index has its marker; a file that is still there when the index has one was not meant."""
    newest = site.index.lookup(bucket.name, meta.key)
    if newest is None or not newest.marker or newest.stamp < entry.stamp:
        return entry
    if not _is_there(site, bucket, entry.name, meta.version):
        return entry
    if newest.version == meta.version:  # "null": there is one of that name
        site.remove(bucket.name, version_name(meta.key, newest.version))
    return msgspec.structs.replace(entry, stamp=max(at, newest.stamp + 1))


def _really_missing(site: Site, bucket: Bucket, rows: list[Row]) -> list[Row]:
    """Those whose file did not come between the two readings. A removal of ours takes the file first and then
    the row; so that no delete marker is made of one that is under way, versions are looked at again a moment
    later."""
    rows = [row for row in rows if not _is_there(site, bucket, row.name)]
    if not rows or bucket.versioning is Versioning.OFF:
        return rows
    if site.pause(SETTLE_S):
        return []
    same = [row for row in rows if site.index.lookup(bucket.name, row.key) == row]
    return [row for row in same if not _is_there(site, bucket, row.name)]


def _removed(site: Site, bucket: Bucket, row: Row, at: int, done: Done) -> list[Change]:
    """Removed by others, or by a deletion that a crash has interrupted: with versions, a delete marker says
    so, and what has its second name as an older version already stays one. It counts from `at`, before the
    file was looked for: what is put since then is newer."""
    gone: list[Change] = [Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)]
    kept, null = version_name(row.key, row.version), version_name(row.key, "null")
    if bucket.versioning is not Versioning.OFF and _is_there(site, bucket, kept, row.version):
        if bucket.versioning is Versioning.SUSPENDED and _is_there(site, bucket, null, "null", body=True):
            # a marker would destroy that, and no deletion has come so far
            return [Put(row=msgspec.structs.replace(row, name=kept), keep=True)]
        gone = []
    elif bucket.versioning is not Versioning.ENABLED:
        done.gone += 1
        return gone
    done.gone += 1
    marker = marker_row(bucket, row.key, site.new_version(bucket), max(at, row.stamp + 1), at, bucket.owner)
    return [*gone, Put(row=marker, keep=True)]


def _is_there(
    site: Site, bucket: Bucket, name: str, version: str | None = None, *, body: bool = False
) -> bool:
    """Whether storage has the name, as that version (`body`: and not as its delete marker); what we may not
    look at may well be there."""
    try:
        entry = site.store.stat(bucket.name, name)
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    except (Forbidden, Unavailable):
        return True
    meta = None if version is None else meta_of(bucket, entry)
    return version is None or (meta is not None and meta.version == version and not (body and meta.marker))


def _aside(site: Site, bucket: Bucket, row: Row, at: int, done: Done) -> list[Change]:
    """Of a row whose body has a name of ours: what a crash has kept the index from hearing."""
    if row.name.startswith(ODD):
        try:
            entry = site.store.stat(bucket.name, row.name)
        except NoBucket:
            raise
        except (Forbidden, Unavailable):
            return []
        except Missing:
            pass
        else:
            return _changed(site, bucket, row, entry, at, done) if entry.token != row.token else []
    return _lost(site, bucket, row, done)


def take_in_odd(site: Site, bucket: Bucket, done: Done) -> None:
    """Objects under names of ours of whose keys the index knows nothing: whoever put them was killed before
    he could tell."""
    keep = bucket.versioning is not Versioning.OFF
    with contextlib.suppress(Missing):
        for entries in site.store.entries(bucket.name, ODD, PAGE):
            if site.stopping:
                return
            for entry in entries:
                meta = meta_of(bucket, entry)
                # a key that can be its own name may have lost this one to that, in another process
                if meta is None or meta.marker or is_plain(meta.key):
                    continue
                if site.index.lookup(bucket.name, meta.key) is not None:
                    continue
                if _is_there(site, bucket, entry.name):  # else it was just removed
                    site.index.apply([Put(row=row_of(bucket, entry, meta), keep=keep)])
                    done.renewed += 1


def _lost(site: Site, bucket: Bucket, row: Row, done: Done) -> list[Change]:
    """A row whose body a deletion had removed, or its marker replaced, when a crash interrupted it; a marker
    that is there is what the index has then. (Where bodies have names of their own the row goes first: one
    that is not found is `ops.find.Lost`.)"""
    names = stored_names(site, row)
    if not site.atomic or any(_is_there(site, bucket, name, row.version, body=True) for name in names):
        return []
    done.gone += 1
    aside = null_aside(site, bucket, row.key) if row.version == "null" else None
    meta = None if aside is None else meta_of(bucket, aside)
    if aside is None or meta is None or not meta.marker:
        return removal(site, row, row.stamp)
    stamp = max(aside.stamp, row.stamp + 1)
    marker = marker_row(bucket, row.key, "null", stamp, meta.modified_ns, meta.acl.owner)
    return [Put(row=marker, keep=True)]


def forget_versions(site: Site, bucket: Bucket, done: Done, resting: Resting | None = None) -> None:
    """Take out older versions whose deletion a crash has interrupted between storage and index."""
    after, version = "", ""
    while site.atomic and bucket.versioning is not Versioning.OFF:
        page = site.index.page_versions(bucket.name, after=after, after_version=version, limit=PAGE)
        rows = [row for row in page.rows if not row.marker and not row.latest]
        changes = [change for row in rows for change in _lost(site, bucket, row, done)]
        if changes:
            site.index.apply(changes)
        if not page.truncated or (resting is not None and resting.rest()):
            return
        after, version = page.next, page.next_version
