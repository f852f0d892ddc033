"""Between master and slaves over GMP. Numbers 0x0300-0x03ff. Every command carries the master's epoch;
a slave refuses lower ones than it has seen (spec/masters.md)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sector.model import (
    BLOCKS_MAX,
    U32,
    U64,
    Address,
    Bytes16,
    Name,
    Path,
    Right,
    SliceMeta,
    Stored,
    Text,
    Ticket,
    Time,
    Tombstone,
    Version,
)
from sector.wire.base import Message, Ok, Request, request

FORWARD_MAX = 16 << 20
"""Bytes of a request or reply between slaves that goes through a master."""


# master -> slave ------------------------------------------------------------------------------------
@request(0x0301)
class PrepareRead(Request, frozen=True, array_like=True):
    """Expect a reader with this ticket. Errors: not_found (no such version here), busy."""

    epoch: U64
    ticket: Ticket
    principal: Name


class Ready(Message, frozen=True, array_like=True):
    """A receiver is ready for the bytes from `offset` on; what is before it arrived earlier."""

    offset: U64 = 0


@request(0x0302, reply=Ready)
class PrepareWrite(Request, frozen=True, array_like=True):
    """Expect a writer with this ticket; space for meta.size is reserved (fallocate) before the answer.
    On completion the slave calls Publish with `lease`. `blocks`, `part` as in OpenWrite: go on with what an
    attempt under this lease (or `part`) has brought, as far as it has these checksums. Errors: no_space,
    busy."""

    epoch: U64
    ticket: Ticket
    principal: Name
    lease: Bytes16
    meta: SliceMeta
    blocks: Annotated[bytes, Meta(max_length=BLOCKS_MAX)] = b""
    part: Annotated[bytes, Meta(max_length=16)] = b""


@request(0x0303)
class Copy(Request, frozen=True, array_like=True):
    """Replication, to the source slave: send ticket.path at ticket.version, ticket.length bytes from
    ticket.offset on, to `target` (the target got PrepareReplica with the same ticket). Answer = started; the
    target reports Replicated."""

    epoch: U64
    task: Bytes16
    ticket: Ticket
    target: Address


@request(0x0304, reply=Ready)
class PrepareReplica(Request, frozen=True, array_like=True):
    """Replication, to the target slave: receive this published version, from where an earlier copy of it
    broke off if `go_on`. Errors: no_space, busy."""

    epoch: U64
    task: Bytes16
    ticket: Ticket
    meta: SliceMeta
    go_on: bool = False


@request(0x0305, safe=True)
class Delete(Request, frozen=True, array_like=True):
    """Remove content not newer than the tombstones, and keep the tombstones. `surplus` True = only drop
    the local replica (too many copies), without a tombstone."""

    epoch: U64
    tombstones: Annotated[list[Tombstone], Meta(max_length=1000)]
    surplus: bool = False


class Rename(Message, frozen=True, array_like=True):
    """One file that moved: content `old` at `source` becomes `meta` (same bytes, new path and version);
    the source path gets a tombstone at `old`."""

    source: Path
    old: Version
    meta: SliceMeta


@request(0x0306, safe=True)
class RenameFiles(Request, frozen=True, array_like=True):
    """Apply renames (idempotent); slaves without the file keep the tombstone."""

    epoch: U64
    renames: Annotated[list[Rename], Meta(max_length=1000)]
    at: Time


@request(0x0307, safe=True)
class Mirror(Request, frozen=True, array_like=True):
    """Part of what files cannot tell, kept on every slave: tombstones, directories (SliceMeta with
    digest "dir"), rights. `reset` True begins anew, `last` True ends and makes it durable."""

    epoch: U64
    serial: Stored
    reset: bool
    last: bool
    tombstones: Annotated[list[Tombstone], Meta(max_length=5000)] = []
    directories: Annotated[list[SliceMeta], Meta(max_length=5000)] = []
    removed_directories: Annotated[list[Path], Meta(max_length=5000)] = []
    rights: Annotated[list[Right], Meta(max_length=5000)] = []


@request(0x0308, safe=True)
class Revoke(Request, frozen=True, array_like=True):
    """Sessions that were closed before their time ("user:NAME#SESSION"): their tickets are worth nothing from
    now on, and their transfers end (spec/security.md, "Sessions")."""

    epoch: U64
    principals: Annotated[list[Name], Meta(max_length=1000)]


@request(0x0309, safe=True)
class Verify(Request, frozen=True, array_like=True):
    """Somebody found this content unreadable: read all of it and compare it with its checksums. Answer =
    begun; the slave sets content aside that is damaged each time it looks, and says with Adopted what it
    found. Errors: not_found, busy."""

    epoch: U64
    path: Path
    version: Version


class ForwardReply(Message, frozen=True, array_like=True):
    """The reply of the slave that was asked, as it encoded it."""

    body: Annotated[bytes, Meta(max_length=FORWARD_MAX)]


@request(0x030A, reply=ForwardReply, safe=True)
class Forwarded(Request, frozen=True, array_like=True):
    """Slave `origin` asks this slave: `body` is a request with number `method` of those that slaves of a job
    send one another. Errors: those of the request, denied (another method)."""

    epoch: U64
    origin: Name
    method: U32
    body: Annotated[bytes, Meta(max_length=FORWARD_MAX)]


class ScrubState(Message, frozen=True, array_like=True):
    """How the reading again of a slave's replicas stands. Pass `number` (0 = none yet) began at `began` and
    is `running`, for a user at full rate if `asked`; `ended` is when the last whole pass did (seconds since
    1970, 0 = never). Of the present pass, else of the last one: `files` and `done_bytes` of `total_files` and
    `total_bytes` are behind it; `bad_files`, with `bad_blocks` in them; `mended` of these had only a damaged
    record, which was written anew. `read_bytes`, `all_bad_files`, `all_bad_blocks`: sums over all passes."""

    number: Stored = 0
    running: bool = False
    asked: bool = False
    began: Time = 0.0
    ended: Time = 0.0
    total_files: Stored = 0
    total_bytes: Stored = 0
    files: Stored = 0
    done_bytes: Stored = 0
    bad_files: Stored = 0
    bad_blocks: Stored = 0
    mended: Stored = 0
    read_bytes: Stored = 0
    all_bad_files: Stored = 0
    all_bad_blocks: Stored = 0


class Rotten(Message, frozen=True, array_like=True):
    """A replica that a scrub found bad at `at` (seconds since 1970); `mended` = its content was good, its
    record was not and was written anew."""

    path: Path
    version: Version
    why: Text
    at: Time
    mended: bool = False


class ScrubReply(Message, frozen=True, array_like=True):
    """`found` in the present pass, else in the last one; the first of them if there were very many."""

    state: ScrubState
    found: Annotated[list[Rotten], Meta(max_length=1000)] = []


@request(0x030B, reply=ScrubReply, safe=True)
class Scrub(Request, frozen=True, array_like=True):
    """Read all replicas again from the beginning, now (`start`; one that a user asked for and that still runs
    goes on), or only tell how that stands. Errors: busy (the slave is starting)."""

    epoch: U64
    start: bool = False


# slave -> master ------------------------------------------------------------------------------------
class HeartbeatReply(Message, frozen=True, array_like=True):
    """`want_report`: send a full Report; `want_mirror` is served by Mirror commands."""

    epoch: U64
    want_report: bool


@request(0x0321, reply=HeartbeatReply, safe=True)
class Heartbeat(Request, frozen=True, array_like=True):
    """Every second, CONTROL class, hence at most 256 bytes. `mirror_serial` = last complete mirror;
    `counters` of the slave's ports and tasks for `status`; `traffic` what its transfers moved, in the order
    of `sector._udt.traffic.NAMES` (names would not fit; new ones come last)."""

    slave_id: Name
    free_bytes: Stored
    used_bytes: Stored
    files: Stored
    transfers: Annotated[int, Meta(ge=0, le=1 << 31)]
    mirror_serial: Stored
    load: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    spes: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    spes_busy: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    counters: Annotated[dict[Annotated[str, Meta(max_length=64)], Stored], Meta(max_length=64)] = {}
    traffic: Annotated[list[Stored], Meta(max_length=32)] = []


@request(0x0327, safe=True)
class Refused(Request, frozen=True, array_like=True):
    """What the ports of a slave refused, when that has changed: datagrams since it started (under a wrong
    key, replayed, for tickets that are over) and lines for the audit log, one a source and minute."""

    slave_id: Name
    counts: tuple[Stored, Stored, Stored]
    lines: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=17)] = []


class Prepared(Message, frozen=True, array_like=True):
    """A version that is complete and durable on a slave, not yet published."""

    lease: Bytes16
    meta: SliceMeta


class ReportReply(Message, frozen=True, array_like=True):
    """What to do with reported files: `drop` = (path, version) that are old or deleted (to the attic);
    `publish` / `discard` = leases of prepared versions; `doubted` = (path, version) that are said to be
    damaged: to be read as for Verify."""

    drop: list[tuple[Path, Version]] = []
    publish: list[Bytes16] = []
    discard: list[Bytes16] = []
    doubted: list[tuple[Path, Version]] = []


@request(0x0322, reply=ReportReply, safe=True)
class Report(Request, frozen=True, array_like=True):
    """Full catalogue in parts after a join or on demand: `first` begins, `last` ends (what the master
    believed to be here and was not named is gone). Tombstones and directories of the mirror are sent
    too when the master rebuilds."""

    slave_id: Name
    first: bool
    last: bool
    files: Annotated[list[SliceMeta], Meta(max_length=5000)] = []
    tombstones: Annotated[list[Tombstone], Meta(max_length=5000)] = []
    directories: Annotated[list[SliceMeta], Meta(max_length=5000)] = []
    prepared: Annotated[list[Prepared], Meta(max_length=5000)] = []
    mirror_serial: Stored = 0


class Published(Message, frozen=True, array_like=True):
    version: Version


@request(0x0323, reply=Published, safe=True)
class Publish(Request, frozen=True, array_like=True):
    """A write is complete and fsynced here (data + metadata, not yet renamed). When the master has
    committed it answers, then the slave renames and sends DONE to the client. Repeating it returns the
    same answer. Errors: lease_lost, conflict, denied (then the slave discards)."""

    slave_id: Name
    lease: Bytes16
    meta: SliceMeta


@request(0x0324, safe=True)
class Replicated(Request, frozen=True, array_like=True):
    """A copy task ended at the target: error "" = published here; `kept` = what has come waits here for the
    next one of that version."""

    slave_id: Name
    task: Bytes16
    path: Path
    version: Version
    error: Text = ""
    kept: bool = False


@request(0x0325, safe=True)
class Adopted(Request, frozen=True, array_like=True):
    """Files changed or found on this slave outside of the protocol (scan): new or read whole and good, gone,
    or damaged; `why` each of the damaged ones is, for the audit log."""

    slave_id: Name
    found: Annotated[list[SliceMeta], Meta(max_length=1000)] = []
    gone: Annotated[list[tuple[Path, Version]], Meta(max_length=1000)] = []
    damaged: Annotated[list[tuple[Path, Version]], Meta(max_length=1000)] = []
    why: Annotated[list[Text], Meta(max_length=1000)] = []


@request(0x032A, safe=True)
class LeasesAlive(Request, frozen=True, array_like=True):
    """Content comes in on this slave under these leases: they hold on, whether their writers reach the master
    or not, and after the end of their sessions."""

    slave_id: Name
    leases: Annotated[list[Bytes16], Meta(max_length=5000)]


@request(0x0329, safe=True)
class Scrubbed(Request, frozen=True, array_like=True):
    """How the scrub of this slave stands, when that has changed, at most every few seconds."""

    slave_id: Name
    state: ScrubState


@request(0x0328, reply=ForwardReply, safe=True)
class Forward(Request, frozen=True, array_like=True):
    """Ask slave `node`, which gives this one no answer over UDP: the master sends it Forwarded. Errors: those
    of the request, unreachable (`node` is not there), denied (another method)."""

    slave_id: Name
    node: Name
    method: U32
    body: Annotated[bytes, Meta(max_length=FORWARD_MAX)]


class LocalGrant(Message, frozen=True, array_like=True):
    """A lease on the path and the version that is to be published from this slave with Publish."""

    lease: Bytes16
    lease_s: float
    version: Version


@request(0x0330, reply=LocalGrant)
class LocalPublish(Request, frozen=True, array_like=True):
    """A finished local file of a job is to become a Sector file (OpenWrite whose writer is the slave itself):
    the master checks that `principal` ("job:JOBID/NAME" as introduced to this slave) may write `path`, which
    begins with the job's output and a dot, takes an exclusive lease for this slave and gives the version; the
    slave then calls Publish with that lease as after any write. `parents` = make missing directories.
    `digest` and `size` are of the whole content; the owner becomes the user behind `principal`.
    Errors: denied, exists (create "new"), is_directory, not_found (parent), lease_held, session_expired."""

    slave_id: Name
    principal: Name
    path: Path
    size: Stored
    digest: Annotated[str, Meta(max_length=128)]
    mode: U32 = 0o644
    create: Annotated[str, Meta(pattern="^(any|new)$")] = "any"
    parents: bool = True


@request(0x0331)
class LocalDrop(Request, frozen=True, array_like=True):
    """The slave gives a lease of LocalPublish up; nothing was published."""

    slave_id: Name
    path: Path
    lease: Bytes16


__all__ = ["Ok"]
