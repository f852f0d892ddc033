"""Lifecycle rules of one bucket, carried out once.

A pass over many objects takes hours, and what it does cannot be undone. So settings are looked at anew
before each step: rules that were taken back end it, and versions are kept from when that was asked for. A
version goes only if it is still an older one. An object that cannot be read or removed stays, and those
behind it have their turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from cumulus.errors import S3Error
from cumulus.index.api import NoSuch, Row, StillUsed
from cumulus.model import Bucket
from cumulus.ops.buckets import end_upload
from cumulus.ops.conditions import Conditions
from cumulus.ops.deletes import delete_current, delete_version
from cumulus.ops.failed import Failed
from cumulus.ops.find import find_or_none, stored_names
from cumulus.ops.resting import Resting
from cumulus.ops.rows import meta_of
from cumulus.ops.site import Site
from cumulus.storage.api import Missing, NoBucket

FAILURES: Final = 20  # of storage, one after another, that may pass
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


class Expiring:
    """One pass over the bucket `name`, `page` rows at a time. What was done is added to `done`."""

    def __init__(self, site: Site, expiry: Expiry, name: str, done: Done, page: int) -> None:
        self._site = site
        self._expiry = expiry
        self._name = name
        self._done = done
        self._page = page
        self._failed = Failed(FAILURES)

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

    def _attempt(self, work: Callable[[Bucket, Sequence[Any]], int]) -> None:
        """One step; what cannot be done is left for the next time."""
        bucket, rules = self._rules()
        with self._failed.noted():
            try:
                self._done.expired += work(bucket, rules)
            except S3Error as error:
                if error.code not in _OTHERS:
                    raise

    def _is_due(self, due: tuple[int, str] | None) -> bool:
        return due is not None and due[0] <= self._site.clock()

    # objects and their versions
    def _versions(self, resting: Resting) -> None:
        before: Row | None = None  # the row before, of the same key
        newer = 0  # older versions of the key that came so far
        for row in self._rows(resting):
            if row is None:
                return
            if before is None or before.key != row.key:
                self._lone(before, newer)
                before, newer = row, 0
                if not row.marker:
                    self._attempt(partial(self._current, row=row))
                continue
            self._attempt(partial(self._older, row=row, since_ns=before.modified_ns, newer=newer))
            before, newer = row, newer + 1
        self._lone(before, newer)

    def _rows(self, resting: Resting) -> Iterator[Row | None]:
        """All versions, of each key the newest first; None at the end if it is not all."""
        after = version = ""
        while True:
            page = self._site.index.page_versions(
                self._name, after=after, after_version=version, limit=self._page
            )
            for row in page.rows:
                if self._site.stopping:
                    yield None
                    return
                yield row
            if not page.truncated:
                return
            if resting.rest():
                yield None
                return
            after, version = page.next, page.next_version

    def _lone(self, row: Row | None, newer: int) -> None:
        """A delete marker that is all there is of its key; `row` is the last version of one."""
        if row is not None and row.marker and not newer:
            self._attempt(partial(self._marker, row=row))

    def _marker(self, bucket: Bucket, rules: Sequence[Any], row: Row) -> int:
        if not self._is_due(self._expiry.marker_expiration(rules, row.key, row.modified_ns)):
            return 0
        delete_version(self._site, bucket, row.key, row.version)
        return 1

    def _current(self, bucket: Bucket, rules: Sequence[Any], row: Row) -> int:
        """Delete the current object if it is still the one of the row, whoever puts another meanwhile."""
        tags = self._tags(bucket, row)
        if not self._is_due(self._expiry.expiration(rules, row.key, row.size, tags, row.modified_ns)):
            return 0
        found = find_or_none(self._site, bucket, row.key)
        if found is None or found.meta.modified_ns != row.modified_ns:
            return 0
        same = Conditions(match=(found.meta.etag,), exact_modified_ns=found.meta.modified_ns)
        delete_current(self._site, bucket, row.key, bucket.owner, same)
        return 1

    def _older(self, bucket: Bucket, rules: Sequence[Any], row: Row, since_ns: int, newer: int) -> int:
        """Delete an older version, which was current until `since_ns`."""
        tags = self._tags(bucket, row)
        due = self._expiry.noncurrent_expiration(rules, row.key, row.size, tags, since_ns, newer)
        if not self._is_due(due):
            return 0
        delete_version(self._site, bucket, row.key, row.version, older=True)
        return 1

    def _tags(self, bucket: Bucket, row: Row) -> Mapping[str, str]:
        """Tags are in the object's record; rules without tags do not need them, and it is not read then."""
        if bucket.lifecycle is None or "Tag>" not in bucket.lifecycle or row.marker:
            return {}
        for name in stored_names(self._site, row):
            try:
                meta = meta_of(bucket, self._site.store.stat(bucket.name, name))
            except NoBucket:
                raise
            except Missing:
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
                _, rules = self._rules()
                if self._is_due(self._expiry.upload_expiration(rules, upload.key, upload.created_ns)):
                    # the latter: it is being completed
                    with self._failed.noted(), contextlib.suppress(NoSuch, StillUsed):
                        self._done.aborted += end_upload(self._site, upload)
            if len(page) < self._page:
                return
            after, after_id = page[-1].key, page[-1].id
