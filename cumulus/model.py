"""Values that all floors share: owners, grants, what belongs to an object, buckets. Frozen; no I/O.

Names follow S3's own words. Times are nanoseconds since 1970 (UTC), sizes bytes, ETags without quotes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal

import msgspec

Permission = Literal["READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"]
ALL_USERS = "all"
AUTHENTICATED = "authenticated"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the values here; they travel and rest as MessagePack."""


class Grant(Value, frozen=True):
    """`grantee` is "user:ID", "group:ID" (a group of ours), "all" or "authenticated"."""

    grantee: str
    permission: Permission


class Acl(Value, frozen=True):
    """Who may do what, beside the owner (a user's id), who may always read and write the ACL."""

    owner: str
    grants: tuple[Grant, ...] = ()


class Part(Value, frozen=True):
    """One part of a multipart object or upload: `checksums` by algorithm (lower case), base64. `slot`, only
    of an upload in progress: it lies with others in one file, at (number - 1) * slot; 0: in its own."""

    number: int
    size: int
    etag: str
    checksums: dict[str, str] = {}
    modified_ns: int = 0
    slot: int = 0


class ObjectMeta(Value, frozen=True):
    """What belongs to one object and is published in the same step as its body.

    `headers` are the standard ones that S3 stores (lower case: content-type, cache-control,
    content-disposition, content-encoding, content-language, expires), `user` those of x-amz-meta- without
    the prefix. `version` is "null" in a bucket without versioning. `checksum_type` is FULL_OBJECT or
    COMPOSITE where `checksums` is not empty. `parts` is not empty for a multipart object, `upload` then the
    id of its upload, so that a repeated completion is known, and `asked` the condition keys of policies that
    its beginning had, by which its parts and its completion are judged. `marker`: this is a delete marker.
    """

    key: str
    size: int
    etag: str
    modified_ns: int
    acl: Acl
    headers: dict[str, str] = {}
    user: dict[str, str] = {}
    tags: dict[str, str] = {}
    checksums: dict[str, str] = {}
    checksum_type: Literal["", "FULL_OBJECT", "COMPOSITE"] = ""
    version: str = "null"
    parts: tuple[Part, ...] = ()
    upload: str = ""
    asked: dict[str, str] = {}
    marker: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ObjectMeta)


def encode_meta(meta: ObjectMeta) -> bytes:
    """The form in which it is stored beside the body."""
    return _encoder.encode(meta)


def decode_meta(data: bytes) -> ObjectMeta:
    """Inverse of `encode_meta`. Raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)


def key_of(data: bytes) -> str | None:
    """The key in what `encode_meta` has made; None for anything else."""
    try:
        return _decoder.decode(data).key
    except msgspec.MsgspecError:
        return None


class Versioning(enum.StrEnum):
    """State of a bucket's versioning; it never returns to OFF."""

    OFF = ""
    ENABLED = "Enabled"
    SUSPENDED = "Suspended"


class Bucket(Value, frozen=True):
    """A bucket and its settings. `policy`, `cors` and `lifecycle` are the documents as they came (JSON, XML,
    XML), checked when set; None where there is none. `principals` are the ids of those whom the policy names
    ("user:NAME", "group:NAME") since it was set. `path` is a directory adopted as it is, or ""."""

    name: str
    owner: str
    created_ns: int
    acl: Acl
    region: str = ""
    versioning: Versioning = Versioning.OFF
    policy: str | None = None
    principals: dict[str, str] = {}
    cors: str | None = None
    lifecycle: str | None = None
    tags: dict[str, str] = {}
    path: str = ""

    @property
    def brief(self) -> Bucket:
        """The same without the documents of its owner. Nobody is to be judged by it."""
        return msgspec.structs.replace(self, policy=None, principals={}, cors=None, lifecycle=None)

    def taking(self, other: Bucket, fields: Iterable[str]) -> Bucket:
        """The same with those settings of the other one."""
        return msgspec.structs.replace(self, **{field: getattr(other, field) for field in fields})


def written(bucket: Bucket | None) -> int:
    """Characters of the documents that its owner has set."""
    if bucket is None:
        return 0
    return sum(len(text) for text in (bucket.policy, bucket.cors, bucket.lifecycle) if text is not None)


class User(Value, frozen=True):
    """`id` is the canonical id (64 hex digits) that S3 documents carry, `name` what people type.
    `group_weights` are those of `groups`, in their order; empty: all are 1. So are `group_ids`, by which
    rights are given; empty: they are the names."""

    id: str
    name: str
    display: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()
    group_weights: tuple[int, ...] = ()
    group_ids: tuple[str, ...] = ()
    weight: int = 1
    disabled: bool = False
    admin: bool = False
    unix_user: str = ""

    @property
    def rights_of(self) -> tuple[str, ...]:
        """The ids of his groups."""
        return self.group_ids or self.groups


class Credential(Value, frozen=True):
    """A key and whose it is. `secret` is in clear only in memory; `expires_ns` 0 = never."""

    access_key: str
    secret: str
    user: User
    expires_ns: int = 0

    def __repr__(self) -> str:
        return f"Credential({self.access_key!r}, user={self.user.name!r})"

    __str__ = __repr__


class Identity(Value, frozen=True):
    """Who asks: `user` None = anonymous. `peer` is the client's address as text."""

    user: User | None = None
    access_key: str = ""
    peer: str = ""

    @property
    def id(self) -> str:
        """The user's canonical id, "" for anonymous."""
        return self.user.id if self.user else ""
