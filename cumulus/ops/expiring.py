"""Lifecycle rules of one bucket, carried out once.

A pass over many objects takes hours, and what it does cannot be undone. So settings are looked at anew
before each few steps: rules that were taken back end it, and versions are kept from when that was asked for.
A version goes only if it is still an older one. An object that cannot be read or removed stays, and those
behind it have their turn.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from cumulus.errors import S3Error
from cumulus.index.api import NoSuch, Row, StillUsed
from cumulus.model import Bucket, ObjectMeta
from cumulus.ops.buckets import end_upload
from cumulus.ops.conditions import Conditions
from cumulus.ops.delete_together import delete_together, fits_together
from cumulus.ops.deletes import delete_current, delete_version
from cumulus.ops.failed import Failed
from cumulus.ops.find import NOT_THERE, Lost, find_or_none, stored_names
from cumulus.ops.names import version_time
from cumulus.ops.resting import RESTS, Resting
from cumulus.ops.rows import meta_of
from cumulus.ops.site import Site
from cumulus.storage.api import NoBucket, StorageError

FAILURES: Final = 20  # of storage, one after another, that may pass
LOT: Final = 20  # steps at a time: they share what is waited for, and no request waits for many of them;
MOST: Final = 100  # up to so many while those before went together well
_OTHERS: Final = ("PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict")  # somebody was faster


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


class _NoRules(Exception):
    """There are none any more, or the bucket has gone."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A version to be looked at: the current one; one that is older since `since_ns`, with so many `newer`
    ones that are not current either; or a delete marker that is all there is of its key (`lone`)."""

    row: Row
    since_ns: int | None = None
    newer: int = 0
    lone: bool = False

    @property
    def current(self) -> bool:
        """Whether it is that."""
        return self.since_ns is None and not self.lone


def _lone(row: Row | None, newer: int) -> list[_Step]:
    """`row` is the last version of a key, with so many older ones before it."""
    return [_Step(row, lone=True)] if row is not None and row.marker and not newer else []


def _by_tags(bucket: Bucket) -> bool:
    """Whether a rule looks at tags."""
    return bucket.lifecycle is not None and "Tag>" in bucket.lifecycle


class Expiring:
    """One pass over the bucket `name`, `page` rows at a time. What was done is added to `done`. It ends where
    the clock is not `believed` any more."""

    def __init__(
        self,
        site: Site,
        expiry: Expiry,
        name: str,
        done: Done,
        page: int,
        believed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._site = site
        self._expiry = expiry
        self._name = name
        self._done = done
        self._page = page
        self._believed = believed
        self._failed = Failed(FAILURES)
        self._lot = LOT

    def run(self, resting: Resting) -> None:
        """Do it. Raises the first error of storage, after the rest is done or cannot be done."""
        with contextlib.suppress(_NoRules):
            self._rules()
            self._versions(resting)
            self._uploads()
        self._failed.check()

    def _rules(self) -> tuple[Bucket, Sequence[Any]]:
        """The bucket and its rules as they are now. Raises `_NoRules`."""
        bucket = self._site.index.bucket(self._name)
        if bucket is None or bucket.lifecycle is None:
            raise _NoRules
        try:
            rules = self._expiry.parse_lifecycle(bucket.lifecycle)
        except S3Error:  # it was valid for another version of this program
            raise _NoRules from None
        if not rules:
            raise _NoRules
        return bucket, rules

    # objects and their versions
    def _versions(self, resting: Resting) -> None:
        """All versions, of each key the newest first, some at a time."""
        before: Row | None = None  # the row before, of the same key
        newer = 0  # older versions of the key that came so far
        after = version = ""
        while True:
            page = self._site.index.page_versions(
                self._name, after=after, after_version=version, limit=self._page
            )
            steps: list[_Step] = []
            for row in page.rows:
                if before is None or before.key != row.key:
                    steps += _lone(before, newer)
                    before, newer = row, 0
                    if not row.marker:
                        steps.append(_Step(row))
                else:
                    steps.append(_Step(row, self._came(before), newer))
                    before, newer = row, newer + 1
                if len(steps) >= self._lot:
                    if not self._take(steps, resting):
                        return
                    steps = []
            if not page.truncated:
                self._take(steps + _lone(before, newer), resting)
                return
            if not self._take(steps, resting) or resting.rest():
                return
            after, version = page.next, page.next_version

    def _came(self, row: Row) -> int:
        """When what that row says took its place, and what was there became an older version: a file of
        others may have been made long before. It gets a version of its own when it is hashed; until then, as
        with what has none, its stamp tells, which a later change of its record raises. (Sector, whose stamps
        are no times, keeps no versions.)"""
        if row.version != "null":
            return max(row.modified_ns, version_time(row.version))
        outside = self._site.store.capabilities.outside
        return max(row.modified_ns, row.stamp) if outside else row.modified_ns

    def _take(self, steps: Sequence[_Step], resting: Resting) -> bool:
        """Do what is due of some steps; False where the rest is left, since the process ends, say."""
        if self._site.stopping or not self._believed():
            return False
        bucket, rules = self._rules()
        together: list[_Step] = []
        alone: list[_Step] = []
        for step in steps:
            try:
                due = self._due(bucket, rules, step)
            except StorageError as bad:  # of its tags
                self._note(bad)
                continue
            if due is not None and due[0] <= self._site.clock():
                fits = step.current and fits_together(self._site, bucket, step.row)
                (together if fits else alone).append(step)
        if not together and not alone:
            return True
        if together:
            alone += self._all_at_once(bucket, together)
        return not self._beside_each_other(bucket, rules, alone) and not resting.rest()

    def _note(self, outcome: int | Exception) -> None:
        """What became of one step: how much it has deleted, or an error. Raises as `Failed.noted`."""
        with self._failed.noted():
            if isinstance(outcome, Exception):
                raise outcome
            self._done.expired += outcome

    def _all_at_once(self, bucket: Bucket, steps: Sequence[_Step]) -> list[_Step]:
        """Delete current objects as they were when the rows were read; those that somebody has touched since
        are left, and may be due or not."""
        try:
            outcomes = delete_together(self._site, bucket, [step.row for step in steps])
        except StorageError as bad:
            outcomes = [bad] * len(steps)
        self._lot = min(2 * self._lot, MOST) if all(one is True for one in outcomes) else LOT
        for outcome in outcomes:
            if outcome is not False:
                self._note(outcome)
        return [step for step, outcome in zip(steps, outcomes, strict=True) if outcome is False]

    def _beside_each_other(self, bucket: Bucket, rules: Sequence[Any], steps: Sequence[_Step]) -> bool:
        """Steps that mostly wait for a disk or a database, those of a key in their order; then a rest for
        what other threads have used of the processor. Whether the process ends."""
        keys: dict[str, list[_Step]] = {}
        for step in steps:
            keys.setdefault(step.row.key, []).append(step)
        outcomes: list[int | Exception] = []
        used: list[float] = []
        mine = threading.get_ident()

        def of_key(some: Sequence[_Step]) -> None:
            began = time.thread_time()
            for step in some:
                outcomes.append(self._outcome(bucket, rules, step))
            if threading.get_ident() != mine:
                used.append(time.thread_time() - began)

        if keys:
            self._site.hands.each([partial(of_key, some) for some in keys.values()])
        for outcome in outcomes:
            self._note(outcome)
        return self._site.pause(RESTS * sum(used)) if used else False

    def _outcome(self, bucket: Bucket, rules: Sequence[Any], step: _Step) -> int | Exception:
        try:
            return self._expire(bucket, rules, step)
        except S3Error as error:
            return 0 if error.code in _OTHERS else error
        except Lost:  # one of many perhaps, as after an older database was put back: the rest goes on
            return 0
        except Exception as error:
            return error

    def _due(self, bucket: Bucket, rules: Sequence[Any], step: _Step) -> tuple[int, str] | None:
        """Raises `StorageError`."""
        row = step.row
        if step.lone:
            return self._expiry.marker_expiration(rules, row.key, row.modified_ns)
        return self._when(rules, step, row.size, self._tags(bucket, row), row.modified_ns)

    def _when(
        self, rules: Sequence[Any], step: _Step, size: int, tags: Mapping[str, str], modified_ns: int
    ) -> tuple[int, str] | None:
        key = step.row.key
        if step.since_ns is None:
            return self._expiry.expiration(rules, key, size, tags, modified_ns)
        return self._expiry.noncurrent_expiration(rules, key, size, tags, step.since_ns, step.newer)

    def _still(self, rules: Sequence[Any], step: _Step, meta: ObjectMeta) -> bool:
        """Whether rules take what they took a moment ago: its tags may be others by now."""
        due = self._when(rules, step, meta.size, meta.tags, meta.modified_ns)
        return due is not None and due[0] <= self._site.clock()

    def _expire(self, bucket: Bucket, rules: Sequence[Any], step: _Step) -> int:
        """How many have gone: a version only if it is still that one, and an older one, the current object
        only if it is still the one of the row, whoever puts another meanwhile."""
        site, row = self._site, step.row
        due = partial(self._still, rules, step)
        if not step.current:
            asked = due if _by_tags(bucket) and not row.marker else None
            delete_version(site, bucket, row.key, row.version, older=not step.lone, judged=row, due=asked)
            return 1
        found = find_or_none(site, bucket, row.key)
        if found is None or found.meta.modified_ns != row.modified_ns:
            return 0
        same = Conditions(match=(found.meta.etag,), exact_modified_ns=found.meta.modified_ns)
        delete_current(site, bucket, row.key, bucket.owner, same, due)
        return 1

    def _tags(self, bucket: Bucket, row: Row) -> Mapping[str, str]:
        """Tags are in the object's record; rules without tags do not need them, and it is not read then."""
        if row.marker or not _by_tags(bucket):
            return {}
        for name in stored_names(self._site, row):
            try:
                meta = meta_of(bucket, self._site.store.stat(bucket.name, name))
            except NoBucket:
                raise
            except NOT_THERE:
                continue
            if meta is not None and meta.version == row.version:
                return meta.tags
        return {}

    # uploads
    def _uploads(self) -> None:
        after, after_id = "", ""
        while True:
            page = self._site.index.uploads(self._name, after=after, after_id=after_id, limit=self._page)
            for upload in page:
                if not self._believed():
                    return
                _, rules = self._rules()
                due = self._expiry.upload_expiration(rules, upload.key, upload.created_ns)
                if due is not None and due[0] <= self._site.clock():
                    # the latter: it is being completed
                    with self._failed.noted(), contextlib.suppress(NoSuch, StillUsed):
                        self._done.aborted += end_upload(self._site, upload)
            if len(page) < self._page:
                return
            after, after_id = page[-1].key, page[-1].id
