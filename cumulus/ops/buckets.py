"""Buckets: making, removing, changing their settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import NameTaken, NoSuch, Put, StillUsed, Upload
from cumulus.model import Acl, Bucket, Versioning
from cumulus.ops.left import notes
from cumulus.ops.leftovers import doubts
from cumulus.ops.names import BODIES, ODD, PARTS, VERSIONS, check_bucket_name, part_prefix
from cumulus.ops.rows import as_made, meta_of, row_of
from cumulus.ops.site import Site
from cumulus.storage.api import INTERNAL, Entry, Missing, NotEmptyStore, StorageError

MAX_BUCKETS = 1000
FILES = "There are files under this name already. An administrator makes them a bucket: cumulus bucket add."
MOST_BODIES = 10_000  # more stay in storage when their bucket goes; if it is made again, a sweep finds them


def create(site: Site, name: str, acl: Acl, region: str, tags: dict[str, str] | None = None) -> Bucket:
    """Make a bucket, in storage and then in the index. Raises `S3Error` InvalidBucketName, TooManyBuckets,
    BucketAlreadyOwnedByYou, BucketAlreadyExists."""
    check_bucket_name(name)
    _refuse_taken(site, name, acl.owner)
    if len(site.index.brief_buckets(acl.owner)) >= MAX_BUCKETS:
        raise S3Error("TooManyBuckets")
    if _has_files(site, name):
        _refuse_taken(site, name, acl.owner)  # it was made meanwhile
        raise S3Error("BucketAlreadyExists", FILES, fields={"BucketName": name})
    now = site.clock()
    bucket = Bucket(name=name, owner=acl.owner, created_ns=now, acl=acl, region=region, tags=tags or {})
    site.store.create_bucket(name)
    try:
        site.index.add_bucket(bucket)
    except NameTaken as error:
        _refuse_taken(site, name, acl.owner)
        raise S3Error("BucketAlreadyExists") from error
    site.store.create_bucket(name)  # a removal that was about to end may have taken it
    return bucket


def _has_files(site: Site, name: str) -> bool:
    """Whether storage has objects under the name of a bucket that the index does not know: that is an older
    one, which was restored, or a directory of others, and they do not go to whoever makes the bucket first.
    (Where bodies have names of their own some stay when their bucket goes; where a cloud knows the users, it
    protects what they have.)"""
    can = site.store.capabilities
    if not can.atomic_replace or can.users:
        return False
    return any(site.store.has_files(name, prefix) for prefix in ("", ODD, VERSIONS))


def _refuse_taken(site: Site, name: str, owner: str) -> None:
    there = site.index.bucket(name)
    if there is not None:
        code = "BucketAlreadyOwnedByYou" if there.owner == owner else "BucketAlreadyExists"
        raise S3Error(code, fields={"BucketName": name})


def remove(site: Site, bucket: Bucket) -> None:
    """Remove an empty bucket; uploads in progress in it are aborted. Raises `S3Error` BucketNotEmpty,
    NoSuchBucket, OperationAborted (an upload is being completed)."""
    if site.index.page_versions(bucket.name, limit=1).rows:
        raise S3Error("BucketNotEmpty")
    while uploads := site.index.uploads(bucket.name, limit=100):
        for upload in uploads:
            try:
                end_upload(site, upload)
            except StillUsed:
                raise S3Error("OperationAborted") from None
    _remove_parts_left(site, bucket)
    if site.atomic:
        _remove_stored(site, bucket)
        _remove_row(site, bucket)
        return
    if doubts(site.store, bucket.name):
        raise S3Error("BucketNotEmpty", "It has objects that the index has lost: cumulus doctor --rebuild.")
    # there the index says what is: what comes late is refused by it, and takes its body away again
    bodies = [entry.name for entry in islice(_internal(site, bucket, BODIES), MOST_BODIES)]
    bodies += notes(site.store, bucket.name)
    _remove_row(site, bucket)
    for name in bodies:
        site.remove(bucket.name, name)
    with suppress(S3Error, StorageError):  # what stays there is found by a sweep, if it is made again
        _remove_stored(site, bucket)


def _remove_row(site: Site, bucket: Bucket) -> None:
    try:
        site.index.drop_bucket(bucket.name)
    except StillUsed as error:
        site.store.create_bucket(bucket.name, bucket.path)
        raise S3Error("BucketNotEmpty") from error
    except NoSuch as error:
        raise S3Error("NoSuchBucket") from error


def _remove_stored(site: Site, bucket: Bucket) -> None:
    try:
        site.store.delete_bucket(bucket.name)
    except NotEmptyStore as error:
        if site.atomic:
            _show(site, bucket)
        raise S3Error("BucketNotEmpty") from error
    except Missing:
        pass  # an earlier attempt came so far


def _remove_parts_left(site: Site, bucket: Bucket) -> None:
    """Parts of uploads that are over."""
    names = [entry.name for entry in _internal(site, bucket, PARTS)]
    if names and not site.index.uploads(bucket.name, limit=1):  # else a new one may have some of them
        for name in names:
            site.remove(bucket.name, name)


def _show(site: Site, bucket: Bucket) -> None:
    """What keeps a bucket and is in no listing, since its row was lost, gets into them."""
    keep = bucket.versioning is not Versioning.OFF
    for prefix in (ODD, VERSIONS):
        for entry in _internal(site, bucket, prefix):
            meta = meta_of(bucket, entry)
            if meta is not None and site.index.lookup(bucket.name, meta.key, meta.version) is None:
                made = as_made(bucket, entry, meta, atomic=site.atomic)
                site.index.apply([Put(row=row_of(bucket, made, meta), keep=keep)])


def _internal(site: Site, bucket: Bucket, prefix: str) -> Iterator[Entry]:
    after = ""
    while True:
        try:
            page = site.store.names(bucket.name, after, prefix, 1000)
        except Missing:
            return
        yield from page
        if len(page) < 1000:
            return
        after = page[-1].name


def end_upload(site: Site, upload: Upload) -> bool:
    """Abort an upload: first the index, then its parts. False: somebody else has ended it. Raises
    `StillUsed` while it is being completed."""
    ended = site.index.drop_upload(upload.id)
    remove_parts(site, upload.bucket, upload.id)
    return ended


def remove_parts(site: Site, bucket: str, upload: str, number: int | None = None, but: str = "") -> None:
    """Remove what an upload (or one part of it) has in storage, but not the name `but`."""
    prefix = part_prefix(upload, number)
    after = ""
    while True:
        try:
            entries = site.store.names(bucket, after, prefix, 1000)
        except Missing:
            return
        for entry in entries:
            if entry.name != but:
                site.remove(bucket, entry.name)
        if len(entries) < 1000:
            return
        after = entries[-1].name


def change(site: Site, bucket: Bucket, **settings: Any) -> None:
    """Replace some of its settings; the others stay as they are, whoever changes them at the same time.
    Raises `S3Error` NoSuchBucket."""
    try:
        site.index.set_bucket(msgspec.structs.replace(bucket, **settings), list(settings))
    except NoSuch as error:
        raise S3Error("NoSuchBucket") from error


def is_internal(name: str) -> bool:
    """Whether a storage name is ours and no key."""
    return name.split("/", 1)[0] == INTERNAL
