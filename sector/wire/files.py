"""Files: client to master over GMP. Numbers 0x0200-0x02ff. The bytes travel on the data channel with the
tickets given here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sector.model import (
    BLOCKS_MAX,
    U32,
    U64,
    Address,
    Bytes16,
    FileInfo,
    Name,
    Path,
    Text,
    Ticket,
    Version,
)
from sector.wire.base import Message, Ok, Request, request


class Info(Message, frozen=True, array_like=True):
    info: FileInfo


@request(0x0201, reply=Info, safe=True)
class Stat(Request, frozen=True, array_like=True):
    """Errors: not_found, denied, bad_path."""

    path: Path


class Listing(Message, frozen=True, array_like=True):
    """Entries in order of path; `more` = ask again with after = last path."""

    entries: Annotated[list[FileInfo], Meta(max_length=10000)]
    more: bool


@request(0x0202, reply=Listing, safe=True)
class List(Request, frozen=True, array_like=True):
    """Entries of a directory (or all below it), after a path; a file lists itself. Errors: not_found."""

    path: Path
    recursive: bool = False
    after: Path = ""
    limit: Annotated[int, Meta(ge=1, le=10000)] = 1000


@request(0x0203)
class Mkdir(Request, frozen=True, array_like=True):
    """Errors: exists, not_found (parent, unless parents), not_directory, denied."""

    path: Path
    parents: bool = False


@request(0x0204)
class Move(Request, frozen=True, array_like=True):
    """Rename a file or directory; atomic in the namespace. Errors: not_found, exists, lease_held."""

    source: Path
    target: Path
    overwrite: bool = False


class Removed(Message, frozen=True, array_like=True):
    files: U64
    bytes: U64


@request(0x0205, reply=Removed)
class Remove(Request, frozen=True, array_like=True):
    """Errors: not_found, not_empty (directory without recursive), lease_held, denied."""

    path: Path
    recursive: bool = False


@request(0x0206, reply=Removed)
class RemoveHollow(Request, frozen=True, array_like=True):
    """Remove a directory with all below, if no file is in it but in its directory `scraps` ("a/b"); looked at
    and removed in one step. Errors: not_found, not_empty, lease_held, not_directory, denied."""

    path: Path
    scraps: Path


@request(0x0207, reply=Removed)
class RemoveVersion(Request, frozen=True, array_like=True):
    """Remove a file if that is its version. Errors: not_found, is_directory, conflict, lease_held, denied."""

    path: Path
    version: Version


class ReadGrant(Message, frozen=True, array_like=True):
    """Where to read: the data address of slave `node`, with a one-use ticket."""

    info: FileInfo
    node: Name
    data: Address
    ticket: Ticket


@request(0x0210, reply=ReadGrant, safe=True)
class OpenRead(Request, frozen=True, array_like=True):
    """`length` 0 = to the end; `version` (0,0) = current, else exactly this one (Conflict if it is gone);
    `exclude` = nodes that just failed; `limit` bytes per second that the slave may send, 0 = no cap.
    Errors: not_found, is_directory, unavailable, conflict, denied."""

    path: Path
    offset: U64 = 0
    length: U64 = 0
    version: Version = Version(0, 0)
    exclude: Annotated[list[Name], Meta(max_length=64)] = []
    limit: Annotated[int, Meta(ge=0, le=10**13)] = 0


class WriteGrant(Message, frozen=True, array_like=True):
    """An exclusive lease on the path and where to send. The slave publishes with the master when all has
    arrived; DONE on the data channel means published and durable. Renew before `lease_s` passes. What is
    before `offset` is there already (see OpenWrite)."""

    lease: Bytes16
    lease_s: float
    version: Version
    node: Name
    data: Address
    ticket: Ticket
    offset: U64 = 0


@request(0x0211, reply=WriteGrant)
class OpenWrite(Request, frozen=True, array_like=True):
    """Write a whole new version of `size` bytes. `create` "any" = replace or create, "new" = only create.
    `near` = preferred node. With `lease` of an earlier grant: continue it (same lease, new ticket) after
    a failure; if that write was published meanwhile, Conflict names the version. With `blocks` too, the
    CRC32C of each 1 MiB block from the beginning as little-endian u32: on the same slave, from `offset` of
    the grant on, which is behind what has arrived there of these blocks. `part` = another lease under which
    they were sent, by a client that was killed.
    Errors: exists, is_directory, not_found (parent), lease_held, lease_lost, no_space, unavailable."""

    path: Path
    size: U64
    create: Annotated[str, Meta(pattern="^(any|new)$")] = "any"
    near: Annotated[str, Meta(max_length=128)] = ""
    exclude: Annotated[list[Name], Meta(max_length=64)] = []
    lease: Annotated[bytes, Meta(max_length=16)] = b""
    blocks: Annotated[bytes, Meta(max_length=BLOCKS_MAX)] = b""
    part: Annotated[bytes, Meta(max_length=16)] = b""


class LeaseState(Message, frozen=True, array_like=True):
    """`state`: "open", "published" (version says which), "lost"."""

    state: Name
    lease_s: float
    version: Version


@request(0x0212, reply=LeaseState, safe=True)
class LeaseKeep(Request, frozen=True, array_like=True):
    """Renew a lease, or learn what became of it (also after a master's restart)."""

    path: Path
    lease: Bytes16


@request(0x0213)
class LeaseDrop(Request, frozen=True, array_like=True):
    """Give a lease up; what was written is discarded."""

    path: Path
    lease: Bytes16


class Replicas(Message, frozen=True, array_like=True):
    """`wanted` after clipping to the number of slaves; `have` = good replicas now."""

    wanted: U32
    have: U32
    nodes: list[Name]


@request(0x0220, reply=Replicas, safe=True)
class Replicate(Request, frozen=True, array_like=True):
    """Bring a file (or every file below a directory, then totals of the least replicated) to `copies`
    replicas (0 = configured minimum) now, ahead of background work. Returns the state at once; ask again
    to wait."""

    path: Path
    copies: Annotated[int, Meta(ge=0, le=64)] = 0


@request(0x0221)
class ReportBad(Request, frozen=True, array_like=True):
    """A client found a replica unreadable or damaged; the master has the slave read it, and replaced if it is
    damaged: the word of a reader alone costs no replica."""

    path: Path
    version: Version
    node: Name
    why: Text


__all__ = ["Ok"]
