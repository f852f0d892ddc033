"""Keys of S3 and names of storage: which key is its own name, and what the others are called.

Pure. A key is any text of up to 1,024 bytes of UTF-8; a storage name has segments that a file system can
hold (specification: Cumulus, POSIX layout).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

from cumulus.errors import S3Error
from cumulus.storage.api import INTERNAL
from cumulus.storage.names import MAX_NAME, MAX_SEGMENT

MAX_KEY: Final = MAX_NAME  # bytes of UTF-8
ODD: Final = f"{INTERNAL}/odd/"
BODIES: Final = f"{INTERNAL}/bodies/"
LEFT: Final = f"{INTERNAL}/left/"  # files: see `cumulus.ops.left`
DOUBT: Final = f"{INTERNAL}/doubt"  # a file: see `cumulus.ops.leftovers`
PARTS: Final = f"{INTERNAL}/parts/"
VERSIONS: Final = f"{INTERNAL}/versions/"

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS: Final = re.compile(r"\d+\.\d+\.\d+\.\d+")
# ends of names by which clients tell other kinds of buckets and talk to them otherwise
_KINDS: Final = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_VERSION: Final = re.compile(r"[0-9a-f]{32}|null")
_PLACE: Final = re.compile(r"[0-9a-f]{1,16}")


def check_bucket_name(name: str) -> None:
    """Raises `S3Error` InvalidBucketName unless it is a name by S3's rules for new buckets."""
    bad = (
        not _BUCKET.fullmatch(name)
        or ".." in name
        or ".-" in name
        or "-." in name
        or _ADDRESS.fullmatch(name)
        or name.startswith(("xn--", "sthree-"))
        or name.endswith(_KINDS)
    )
    if bad:
        raise S3Error("InvalidBucketName", fields={"BucketName": name[:255]})


def check_key(key: str) -> None:
    """Raises `S3Error` KeyTooLongError for more than 1,024 bytes."""
    size = len(key.encode())
    if size > MAX_KEY:
        raise S3Error("KeyTooLongError", fields={"Size": str(size), "MaxSizeAllowed": str(MAX_KEY)})


def is_version(text: str) -> bool:
    """Whether a version's id can look like that (`new_version_id`)."""
    return _VERSION.fullmatch(text) is not None


def check_version(version: str) -> None:
    """Raises `S3Error` InvalidArgument for what cannot be a version's id."""
    if not version:
        raise S3Error("InvalidArgument", "Version id cannot be the empty string.")
    if not is_version(version):
        fields = {"ArgumentName": "versionId", "ArgumentValue": version[:100]}
        raise S3Error("InvalidArgument", "Invalid version id specified", fields=fields)


def check_version_marker(marker: str) -> None:
    """Raises `S3Error` InvalidArgument for what cannot be where a page of versions ended: a version's id, or
    the index's `Page.next_version`."""
    version, dash, place = marker.partition("-")
    check_version(version)
    if dash and not _PLACE.fullmatch(place):
        fields = {"ArgumentName": "version-id-marker", "ArgumentValue": marker[:100]}
        raise S3Error("InvalidArgument", "Invalid version id marker specified", fields=fields)


def new_version_id(at_ns: int) -> str:
    """Of a version that is made then. Ids of later ones sort first."""
    return f"{(1 << 64) - 1 - at_ns:016x}{uuid.uuid4().hex[:16]}"


def version_time(version: str) -> int:
    """When a version of that id was made, in ns; 0 for "null", and what is no id of ours."""
    return (1 << 64) - 1 - int(version[:16], 16) if version != "null" and is_version(version) else 0


def is_plain(key: str) -> bool:
    """Whether a key can be its own storage name."""
    if "\0" in key or (4 * len(key) > MAX_KEY and len(key.encode()) > MAX_KEY):
        return False
    segments = key.split("/")
    if segments[0] == INTERNAL:
        return False
    for segment in segments:
        if segment in ("", ".", "..") or (len(segment) > 63 and len(segment.encode()) > MAX_SEGMENT):
            return False
    return True


def is_mark(key: str) -> bool:
    """Whether an empty object of that key can be a directory: "a/"."""
    return key.endswith("/") and is_plain(key[:-1])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def odd_name(key: str) -> str:
    """The name of a key that cannot have its own."""
    return ODD + _digest(key)


def first_name(key: str) -> str:
    """The name that a key gets where nothing is in its way."""
    return key if is_plain(key) else odd_name(key)


def own_names(key: str) -> list[str]:
    """All names that an object of that key may have while it is current."""
    return [key, odd_name(key)] if is_plain(key) or is_mark(key) else [odd_name(key)]


def other_name(key: str, name: str) -> str | None:
    """What an object of that name may be called besides. A directory's two names are changed by one at a
    time."""
    if name != key:
        return key if is_plain(key) else None
    return None if is_mark(key) else odd_name(key)


def body_name() -> str:
    """A name of its own for one body, in storage that cannot replace in one step. There are 256 directories,
    since file systems limit how much is in one, or list it for a look at one file; names of before have
    none."""
    id = uuid.uuid4().hex
    return f"{BODIES}{id[:2]}/{id}"


def version_name(key: str, version: str) -> str:
    """Where an older version is kept."""
    return f"{VERSIONS}{_digest(key)}/{version}"


def part_prefix(upload: str, number: int | None = None) -> str:
    """What the names of an upload's parts, or of one part, begin with."""
    return f"{PARTS}{upload}/" if number is None else f"{PARTS}{upload}/{number}."


def part_name(upload: str, number: int, etag: str) -> str:
    """One part's body: of another body, another name, so that the index and storage cannot disagree."""
    return f"{part_prefix(upload, number)}{etag}"


def slots_name(upload: str, slot: int) -> str:
    """The file in which parts of up to `slot` bytes lie, each at its final place."""
    return f"{slots_prefix(upload)}{slot}"


def slots_prefix(upload: str) -> str:
    """What the names of such files begin with."""
    return f"{part_prefix(upload)}slots."
