"""Frozen values that all layers share: paths, versions, files, nodes, tickets, keys, rights.

They are msgspec Structs so that the wire messages can carry them as they are.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sector.errors import BadPath

Path = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=8192)]
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
U64 = Annotated[int, Meta(ge=0)]
Stored = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A number that databases keep as signed 64 bits, with room to count on."""
TIME_MOST = 1e11
Time = Annotated[float, Meta(ge=-TIME_MOST, le=TIME_MOST)]
"""Seconds since 1970; not infinite, not NaN."""
Port = Annotated[int, Meta(ge=0, le=65535)]


class Value(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Base of shared values."""


class Address(Value, frozen=True, array_like=True, order=True):
    """A host (IPv4 or IPv6 literal) and a port."""

    host: Name
    port: Port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Version(Value, frozen=True, array_like=True, order=True):
    """Version of published content: ordered by (epoch, counter) (design section 5)."""

    epoch: Stored
    counter: Stored


class FileInfo(Value, frozen=True, array_like=True):
    """What the namespace knows of a path. `digest` is "" for directories; `mtime` seconds since 1970."""

    path: Path
    kind: Annotated[str, Meta(pattern="^(file|dir)$")]
    size: U64
    version: Version
    owner: Name
    mode: U32
    mtime: float
    digest: Annotated[str, Meta(max_length=128)]
    replicas: Annotated[list[Name], Meta(max_length=4096)] = []


class SliceMeta(Value, frozen=True, array_like=True):
    """What a slave keeps beside one file (design section 5): enough to rebuild the namespace."""

    path: Path
    version: Version
    size: Stored
    owner: Name
    mode: U32
    mtime: Time
    digest: Annotated[str, Meta(max_length=128)]


class Tombstone(Value, frozen=True, array_like=True):
    """A deleted path: content of `version` or older is never adopted again. `at` seconds since 1970."""

    path: Path
    version: Version
    at: Time


class Right(Value, frozen=True, array_like=True):
    """A directory right: `what` is a subset of "rwx" (read, write, execute UDFs) on `path` and below."""

    user: Name
    path: Path
    what: Annotated[str, Meta(pattern="^r?w?x?$")]


class Ticket(Value, frozen=True, array_like=True):
    """Permission for one data transfer (spec/security.md). Travels only in sealed messages.

    `op` is the client's view: "read" (slave sends) or "write" (slave receives). `length` bytes from
    `offset`; for a write the most that is accepted. `limit` bytes per second that the slave may send, 0 =
    no cap.
    """

    id: Bytes16
    key: Bytes32
    tag: U32
    op: Annotated[str, Meta(pattern="^(read|write)$")]
    path: Path
    version: Version
    offset: U64
    length: U64
    encrypt: bool = True
    limit: U64 = 0

    def __repr__(self) -> str:
        return f"Ticket({self.id.hex()[:8]}…, {self.op} {self.path})"


class Key(msgspec.Struct, frozen=True, array_like=True):
    """A GMP key record (spec/gmp.md section 5.1). `valid_s` seconds from receipt, 0 = until removed."""

    key_id: U32
    secret: Bytes32
    principal: Name
    valid_s: Annotated[float, Meta(ge=0, le=10**8)] = 0.0

    def __repr__(self) -> str:
        return f"Key({self.key_id:#x}, {self.principal})"


BLOCK_BYTES = 1 << 20
SMALL_BYTES = 1 << 20
"""Largest file of which many are moved at once: each waits for disks and answers, not for the line."""
BLOCKS_MAX = 4 << 20
"""Bytes of block checksums that a message carries: those of 1 TiB."""
CHECKED_BYTES = 16 * BLOCK_BYTES
"""A slave compares a range of at most so many bytes with its checksums before it sends any of it; who reads
more of a file than that, and not all of it (which has a digest), asks for it in parts."""
DIGEST_PREFIX = "crc32c-1m:"


def digest_text(raw: bytes) -> str:
    """Text form of a content digest: SHA-256 over the little-endian CRC32C of each 1 MiB block and the
    size as u64 little-endian (csrc/include/udt.h)."""
    return DIGEST_PREFIX + raw.hex()


def check_path(path: str) -> str:
    """The canonical form of an absolute cloud path: no trailing slash but for the root "/".

    Raises `BadPath` for relative paths, `.`, `..`, empty names, NUL, names over 255 bytes, text that is
    not UTF-8, and everything under /.sector (design section 5).
    """
    if not path.startswith("/"):
        raise BadPath(f"path {path!r} is not absolute", hint="begin the path with /")
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise BadPath(f"path {path!r} is not valid UTF-8") from None
    if b"\0" in raw:
        raise BadPath(f"path {path!r} holds a NUL character")
    if len(raw) > 4096:
        raise BadPath(f"path of {len(raw)} bytes is longer than 4096")
    names = path.split("/")[1:]
    if names and names[-1] == "":
        names.pop()
    for name in names:
        if name == "":
            raise BadPath(f"path {path!r} has an empty name", hint="remove the double slash")
        if name in (".", ".."):
            raise BadPath(f"path {path!r} holds {name!r}", hint="write the path without . and ..")
        if len(name.encode()) > 255:
            raise BadPath(f"a name in {path[:80]!r} is longer than 255 bytes")
    if names and names[0] == ".sector":
        raise BadPath("/.sector is reserved for the system")
    return "/" + "/".join(names)


def check_prefix(prefix: str) -> str:
    """The canonical form of a prefix of cloud files PREFIX.0, PREFIX.1, …: any path that ends in a name with
    room for a dot and 14 digits. Raises `BadPath`."""
    path = check_path(prefix)
    if prefix.endswith("/"):
        raise BadPath(
            f"output {prefix!r} ends with a slash; results are files OUTPUT.0, OUTPUT.1, …",
            hint=f"name the files too: {path.rstrip('/')}/part",
        )
    if len(path.rpartition("/")[2].encode()) > 240:
        raise BadPath(f"the last name in {path[:80]!r} is longer than 240 bytes: no room for its numbers")
    return path


def parent(path: str) -> str:
    """The directory of a canonical path; the root is its own parent."""
    return path.rsplit("/", 1)[0] or "/"


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies below it."""
    return directory == "/" or path == directory or path.startswith(directory + "/")
