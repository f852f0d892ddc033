"""Buckets: making, removing, changing their settings."""

from __future__ import annotations

from typing import Any

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import NameTaken, NoSuch, StillUsed, Upload
from cumulus.model import Acl, Bucket
from cumulus.ops.names import check_bucket_name, part_prefix
from cumulus.ops.site import Site
from cumulus.storage.api import INTERNAL, Missing, NotEmptyStore

MAX_BUCKETS = 1000


def create(site: Site, name: str, acl: Acl, region: str) -> Bucket:
    """Make a bucket, in storage and then in the index. Raises `S3Error` InvalidBucketName, TooManyBuckets,
    BucketAlreadyOwnedByYou, BucketAlreadyExists."""
    check_bucket_name(name)
    _refuse_taken(site, name, acl.owner)
    if len(site.index.buckets(acl.owner)) >= MAX_BUCKETS:
        raise S3Error("TooManyBuckets")
    bucket = Bucket(name=name, owner=acl.owner, created_ns=site.clock(), acl=acl, region=region)
    site.store.create_bucket(name)
    try:
        site.index.add_bucket(bucket)
    except NameTaken as error:
        _refuse_taken(site, name, acl.owner)
        raise S3Error("BucketAlreadyExists") from error
    return bucket


def _refuse_taken(site: Site, name: str, owner: str) -> None:
    there = site.index.bucket(name)
    if there is not None:
        code = "BucketAlreadyOwnedByYou" if there.owner == owner else "BucketAlreadyExists"
        raise S3Error(code, fields={"BucketName": name})


def remove(site: Site, bucket: Bucket) -> None:
    """Remove an empty bucket; uploads in progress in it are aborted. Raises `S3Error` BucketNotEmpty,
    NoSuchBucket."""
    if site.index.page_versions(bucket.name, limit=1).rows:
        raise S3Error("BucketNotEmpty")
    while uploads := site.index.uploads(bucket.name, limit=100):
        for upload in uploads:
            end_upload(site, upload)
    try:
        site.store.delete_bucket(bucket.name)
    except NotEmptyStore as error:
        raise S3Error("BucketNotEmpty") from error
    except Missing:
        pass  # an earlier attempt came so far
    try:
        site.index.drop_bucket(bucket.name)
    except StillUsed as error:
        site.store.create_bucket(bucket.name, bucket.path)
        raise S3Error("BucketNotEmpty") from error
    except NoSuch as error:
        raise S3Error("NoSuchBucket") from error


def end_upload(site: Site, upload: Upload) -> bool:
    """Abort an upload: first the index, then its parts. False: somebody else has ended it."""
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
