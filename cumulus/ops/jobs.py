"""Work in the background of one server: listings follow what others did in the directory, lifecycle rules
are carried out, what broken requests left is removed.

All of it may be stopped at any moment and begun again. The service calls `Jobs.run` every second or so from
one thread of one process; `hash_waiting` belongs to each process that answers requests.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import Away, Change, NoSuch, Put, Remove, Row, StillUsed
from cumulus.model import Bucket, Versioning
from cumulus.ops.buckets import end_upload
from cumulus.ops.conditions import Conditions
from cumulus.ops.deletes import delete_current, delete_version
from cumulus.ops.find import find_or_none, hash_outside, is_foreign, stored_names
from cumulus.ops.leftovers import note_doubt, sweep
from cumulus.ops.names import version_name
from cumulus.ops.resting import Resting
from cumulus.ops.rows import OPAQUE, marker_row, meta_of, outside_row, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import Entry, Forbidden, Missing, NoBucket, StorageError

SECOND: Final = 1_000_000_000
PAGE: Final = 1000
SCANNED: Final = 2000  # names that are compared at a time,
LOT: Final = 500  # and in the background, with a rest after each
SETTLE_S: Final = 2.0  # a removal under way has ended after this
STALE_S: Final = 24 * 3600  # what broken writes left goes after this
MOST_AT_ONCE: Final = 100  # files hashed in one go,
HASH_S: Final = 2.0  # and for how long other work waits for these; large ones take hours
BETWEEN_S: Final = 1.0  # after so long they have their turn, whatever else goes on


class Expiry(Protocol):
    """What lifecycle rules say (`cumulus.auth.lifecycle`): a rule that is due as (time in ns, its id)."""

    def parse_lifecycle(self, document: str) -> Sequence[Any]:
        """The enabled rules of a document."""

    def expiration(
        self, rules: Sequence[Any], key: str, size: int, tags: Mapping[str, str], modified_ns: int
    ) -> tuple[int, str] | None:
        """When a current object goes."""

    def noncurrent_expiration(
        self,
        rules: Sequence[Any],
        key: str,
        size: int,
        tags: Mapping[str, str],
        since_ns: int,
        newer: int,
    ) -> tuple[int, str] | None:
        """When an older version goes."""

    def marker_expiration(self, rules: Sequence[Any], key: str, modified_ns: int) -> tuple[int, str] | None:
        """When a delete marker goes that is alone."""

    def upload_expiration(self, rules: Sequence[Any], key: str, initiated_ns: int) -> tuple[int, str] | None:
        """When an upload is aborted."""


@dataclass(slots=True)
class Done:
    """What a pass did: numbers of rows renewed and removed, objects expired, uploads aborted, leftovers
    removed."""

    renewed: int = 0
    gone: int = 0
    expired: int = 0
    aborted: int = 0
    swept: int = 0


def hash_waiting(site: Site) -> int:
    """What each process has left for later: hash files that were made outside and asked for, in a thread
    beside (how many of those that it has ended with is returned), tell the index what it has not heard of,
    keep room for removals, remove bodies that were replaced and have had their last readers."""
    with contextlib.suppress(Away):  # requests say so
        site.told.settle()
    site.store.keep_room()
    site.index.keep_room()
    site.empty_bin()
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
    """`rescan_s`, `expire_s`, `sweep_s`: how often each kind of work is done, in seconds. To be made before
    requests are answered. `run` does what is due at its time. What goes through all rows takes a fifth of a
    core at most, and scans half of the time at most, so that requests are answered as quickly meanwhile
    (decision 0207). `seconds` is a clock that nobody sets."""

    site: Site
    expiry: Expiry
    rescan_s: float = 60.0
    expire_s: float = 3600.0
    sweep_s: float = 3600.0
    seconds: Callable[[], float] = time.monotonic
    _due: dict[str, int] = field(default_factory=dict)
    _scan_s: float = 0.0  # that the last scan took
    _waited: float = -BETWEEN_S  # when what waits was done last
    _asked: set[str] = field(default_factory=set)  # buckets in which bodies in doubt were looked for

    def __post_init__(self) -> None:
        """What is older than this is from before the service began (`ops.leftovers`)."""
        self._began_ns = self.site.clock()

    def run(self) -> Done:
        """Do what is due. Raises what storage and index raise; the rest is done next time."""
        done = Done()
        self._hash_waiting()
        resting = Resting(self._pause)
        if self.site.store.capabilities.outside and self._is_due("rescan", self._rescan_every_s()):
            began = self.seconds()
            self._each(lambda bucket: rescan(self.site, bucket, done, resting))
            self._scan_s = self.seconds() - began
            self._due["rescan"] = self.site.clock() + int((self._rescan_every_s() - self._scan_s) * SECOND)
        if self._is_due("expire", self.expire_s):
            self._each(lambda bucket: self.expire(bucket, done, resting))
        if self._is_due("sweep", self.sweep_s):
            done.swept += self.site.store.sweep(STALE_S)
            self._each(lambda bucket: self._sweep(bucket, done))
            self._each(lambda bucket: forget_versions(self.site, bucket, done, resting))
        return done

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

    def _each(self, work: Callable[[Bucket], None]) -> None:
        """For each bucket, also when the storage of one has an error, which is raised afterwards."""
        failed: StorageError | None = None
        for bucket in self.site.index.buckets():
            if self.site.stopping:
                return
            try:
                work(bucket)
            except NoSuch:
                continue  # it went meanwhile
            except StorageError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _sweep(self, bucket: Bucket, done: Done) -> None:
        if bucket.name not in self._asked and not self.site.atomic:
            note_doubt(self.site, bucket, self._began_ns)
            self._asked.add(bucket.name)
        done.swept += sweep(self.site, bucket, STALE_S)

    def expire(self, bucket: Bucket, done: Done, resting: Resting) -> None:
        """Carry out a bucket's lifecycle rules."""
        if bucket.lifecycle is None:
            return
        try:
            rules = self.expiry.parse_lifecycle(bucket.lifecycle)
        except S3Error:
            return  # it was valid for another version of this program
        if not rules:
            return
        self._expire_versions(bucket, rules, done, resting)
        self._expire_uploads(bucket, rules, done)

    def _expire_versions(self, bucket: Bucket, rules: Sequence[Any], done: Done, resting: Resting) -> None:
        after, version, history = "", "", list[Row]()
        while True:
            page = self.site.index.page_versions(bucket.name, after=after, after_version=version, limit=PAGE)
            for row in page.rows:
                if history and history[0].key != row.key:
                    done.expired += self._expire_key(bucket, rules, history)
                    history = []
                history.append(row)
            if not page.truncated:
                break
            if resting.rest():
                return
            after, version = page.next, page.next_version
        if history:
            done.expired += self._expire_key(bucket, rules, history)

    def _expire_key(self, bucket: Bucket, rules: Sequence[Any], history: list[Row]) -> int:
        """One key with all its versions, the newest first."""
        now, count = self.site.clock(), 0
        newest = history[0]
        if newest.marker:
            due = self.expiry.marker_expiration(rules, newest.key, newest.modified_ns)
            if len(history) == 1 and due is not None and due[0] <= now:
                delete_version(self.site, bucket, newest.key, newest.version)
                count += 1
        else:
            due = self.expiry.expiration(
                rules, newest.key, newest.size, self._tags(bucket, newest), newest.modified_ns
            )
            if due is not None and due[0] <= now:
                count += self._expire_current(bucket, newest)
        for newer, (row, successor) in enumerate(zip(history[1:], history, strict=False)):
            due = self.expiry.noncurrent_expiration(
                rules, row.key, row.size, self._tags(bucket, row), successor.modified_ns, newer
            )
            if due is not None and due[0] <= now:
                delete_version(self.site, bucket, row.key, row.version)
                count += 1
        return count

    def _expire_current(self, bucket: Bucket, row: Row) -> int:
        """Delete the current object if it is still the one of the row, whoever puts another meanwhile."""
        found = find_or_none(self.site, bucket, row.key)
        if found is None or found.meta.modified_ns != row.modified_ns:
            return 0
        same = Conditions(match=(found.meta.etag,), exact_modified_ns=found.meta.modified_ns)
        try:
            delete_current(self.site, bucket, row.key, bucket.owner, same)
        except S3Error as error:
            if error.code not in ("PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict"):
                raise
            return 0
        return 1

    def _tags(self, bucket: Bucket, row: Row) -> Mapping[str, str]:
        """Tags are in the object's record; rules without tags do not need them, and it is not read then."""
        if bucket.lifecycle is None or "Tag>" not in bucket.lifecycle or row.marker:
            return {}
        try:
            meta = meta_of(bucket, self.site.store.stat(bucket.name, row.name))
        except Missing:
            return {}
        return meta.tags if meta is not None and meta.version == row.version else {}

    def _expire_uploads(self, bucket: Bucket, rules: Sequence[Any], done: Done) -> None:
        after, after_id = "", ""
        while True:
            page = self.site.index.uploads(bucket.name, after=after, after_id=after_id, limit=PAGE)
            for upload in page:
                due = self.expiry.upload_expiration(rules, upload.key, upload.created_ns)
                if due is not None and due[0] <= self.site.clock():
                    with contextlib.suppress(StillUsed):  # it is being completed
                        done.aborted += end_upload(self.site, upload)
            if len(page) < PAGE:
                return
            after, after_id = page[-1].key, page[-1].id


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
            yield from _compare(site, bucket, after, names[-1], names, done)
            after = names[-1]
            if resting is not None and resting.rest():
                return
    except Missing:
        return
    yield from _compare(site, bucket, after, "", [], done)


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
        if row.name != row.key:  # its body is not where others can change it
            changes += _lost(site, bucket, row, done)
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
        changes += _removed(site, bucket, row, done)
    keep = bucket.versioning is not Versioning.OFF
    for entry in found.values():
        if entry is None:
            continue
        if entry.meta is not None:
            changes += _changed(site, bucket, None, entry, at, done)
        elif (new := outside_row(bucket, entry)) is not None:
            site.hash_later(bucket.name, new.name)
            changes.append(Put(row=new, keep=keep))
            done.renewed += 1
    return changes


def _changed(site: Site, bucket: Bucket, row: Row | None, entry: Entry, at: int, done: Done) -> list[Change]:
    """`entry` is what is in the place of what `row` names. A file that others moved there may be older than
    that, and than what was removed: it counts from when it was looked for, `at`."""
    meta = meta_of(bucket, entry)
    if meta is None:
        return []
    if entry.meta is None:
        site.hash_later(bucket.name, entry.name)
    done.renewed += 1
    if row is not None:
        entry = msgspec.structs.replace(entry, stamp=max(entry.stamp, row.stamp + 1))
    elif is_foreign(entry):
        entry = msgspec.structs.replace(entry, stamp=max(entry.stamp, at))
    new = row_of(bucket, entry, meta)
    if row is None or row.version == new.version or bucket.versioning is Versioning.OFF:
        return [Put(row=new, keep=bucket.versioning is not Versioning.OFF)]
    if _is_there(site, bucket, version_name(row.key, row.version), row.version):
        return [Put(row=new, keep=True)]  # replaced by one of ours, which the index may not have heard of yet
    gone = Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)
    return [gone, Put(row=new, keep=True)]


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


def _removed(site: Site, bucket: Bucket, row: Row, done: Done) -> list[Change]:
    """Removed by others, or by a deletion that a crash has interrupted: with versions, a delete marker says
    so, and what has its second name as an older version already stays one."""
    done.gone += 1
    gone: list[Change] = [Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)]
    if bucket.versioning is not Versioning.OFF and _is_there(
        site, bucket, version_name(row.key, row.version), row.version
    ):
        gone = []
    elif bucket.versioning is not Versioning.ENABLED:
        return gone
    now = site.clock()
    marker = marker_row(bucket, row.key, site.new_version(bucket), max(now, row.stamp + 1), now, bucket.owner)
    return [*gone, Put(row=marker, keep=True)]


def _is_there(site: Site, bucket: Bucket, name: str, version: str | None = None) -> bool:
    """Whether storage has the name, as that version; what we may not look at may well be there."""
    try:
        entry = site.store.stat(bucket.name, name)
    except NoBucket:
        raise
    except Missing:
        return False
    except Forbidden:
        return True
    meta = None if version is None else meta_of(bucket, entry)
    return version is None or (meta is not None and meta.version == version)


def _lost(site: Site, bucket: Bucket, row: Row, done: Done) -> list[Change]:
    """A row whose body a deletion had removed when a crash interrupted it."""
    if any(_is_there(site, bucket, name, row.version) for name in stored_names(site, row)):
        return []
    done.gone += 1
    return [Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version)]


def forget_versions(site: Site, bucket: Bucket, done: Done, resting: Resting | None = None) -> None:
    """Take out older versions whose deletion a crash has interrupted between storage and index."""
    after, version = "", ""
    while bucket.versioning is not Versioning.OFF:
        page = site.index.page_versions(bucket.name, after=after, after_version=version, limit=PAGE)
        rows = [row for row in page.rows if not row.marker and not row.latest]
        changes = [change for row in rows for change in _lost(site, bucket, row, done)]
        if changes:
            site.index.apply(changes)
        if not page.truncated or (resting is not None and resting.rest()):
            return
        after, version = page.next, page.next_version
