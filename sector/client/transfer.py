"""Getting files, and what puts need too: tickets, failures of slaves and masters, verification.

The bytes go between file descriptors and the data channel; this module only decides what moves where, and
what to do when something stops. Source: design.md, section 5.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from sector import errors, space
from sector._udt import checksum
from sector._udt.data_api import Data, DataTicket, OnWay, TransferError, TransferResult, arrival
from sector._udt.paths import Way
from sector.client.deferred import bounded, uncut
from sector.client.progress import FileProgress, Moved, Progress, size_text
from sector.client.session import ClientSession
from sector.client.unfinished import Unfinished
from sector.clock import pause
from sector.model import BLOCK_BYTES, CHECKED_BYTES, FileInfo, Ticket, Version, digest_text
from sector.resolve import literal_host
from sector.wire.files import OpenRead, ReadGrant, ReportBad
from sector.wire.outcome import error_of

START_S = 15.0
PATIENCE_S = 180.0
ATTEMPTS = 8
BACK_S = 60.0
"""How long, at most, slaves are waited for that have what is needed; never longer than it took so far."""
READ_BLOCKS = 64
PARTS = 4
"""Parts of a range at once."""
AWAY = (errors.Unavailable, errors.Unreachable, errors.TimedOut, errors.SessionExpired)
"""What ends a transfer that may go on later."""

Run = Callable[..., Deferred[Any]]
Granted = Callable[[Version], Awaitable[None]]
"""Told the version that a lease was given for, before any byte is sent; what it raises ends the put."""


@dataclass(frozen=True, slots=True)
class Link:
    """What transfers need of a client: session, data port, a pool for blocking calls. `ending` holds
    last words that are still on their way: of transfers to a slave, of leases to the master."""

    session: ClientSession
    data: Data
    run: Run
    ending: set[Deferred[Any]] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    unfinished: Unfinished | None = None

    def on_way(self, progress: Progress) -> OnWay:
        """Tells `progress` once for each peer that UDP to it is blocked, and remembers the way."""

        def met(way: Way, line: str) -> None:
            progress.way = way if way.tls or not progress.way.tls else progress.way
            if line and line not in self.told and len(self.told) < 1000:
                self.told.add(line)
                progress.note(line)

        return met


def channel(ticket: Ticket) -> DataTicket:
    """The part of a ticket that the data channel needs."""
    return DataTicket(ticket.id, ticket.key, ticket.tag, ticket.encrypt)


def explain(error: TransferError, node: str) -> str:
    """What happened to a transfer with slave `node`, as the beginning of a sentence."""
    match error.code:
        case "TIMEOUT" | "UNREACHABLE" | "REJECTED":
            return f"slave {node} could not be reached"
        case "AUTH":
            return f"slave {node} does not know the ticket any more"
        case "BROKEN":
            return f"slave {node} stopped answering"
        case "PEERCLOSED" | "REMOTE":
            return f"slave {node} gave the transfer up"
        case "DIGEST":
            return f"data from slave {node} arrived damaged"
        case _:
            return f"the transfer with slave {node} failed ({error})"


def local_error(
    error: TransferError, local: str, fd: int = -1, missing: int = 0
) -> errors.SectorError | None:
    """The exception if this side's disk was the reason; `missing` bytes were still to be written to `fd`."""
    match error.code:
        case "DISKFULL":
            return space.no_room(error.errno, f"{local} on this machine", missing, fd)
        case "SHORT":
            return errors.LocalIO(f"{local} became shorter while it was read", hint="put it again")
        case "DISKREAD" | "DISKWRITE" | "DISKSYNC":
            why = f": {os.strerror(error.errno)}" if error.errno else ""
            return errors.LocalIO(f"{local} cannot be read or written{why}")
        case "CLOSED" | "CANCELLED":
            return errors.Cancelled("the transfer was cancelled")
        case _:
            return None


# --------------------------------------------------------------------------------------------------- get
class Get:
    """A byte range of one version on its way to a local descriptor, from one replica after another."""

    def __init__(self, link: Link, path: str, local: str, progress: Progress, limit: int = 0) -> None:
        self.link = link
        self.path = path
        self.local = local
        self.progress = progress
        self.limit = limit  # bytes per second that a slave may send
        self.nodes: list[str] = []
        self.stats: dict[str, int] = {}
        self._waiting = False
        self._began = link.session.clock.seconds()

    async def open(
        self,
        offset: int = 0,
        length: int = 0,
        version: Version = Version(0, 0),
        exclude: list[str] | None = None,
    ) -> ReadGrant:
        """Ask for a replica to read from. Raises NotFound, IsDirectory, Denied, Unavailable, Conflict."""
        grant: ReadGrant = await self.link.session.call(
            OpenRead(self.path, offset, length, version, exclude or [], self.limit),
            patience_s=PATIENCE_S,
            on_wait=self._wait,
        )
        return grant

    def _wait(self, why: str) -> None:
        if not self._waiting:
            self._waiting = True
            self.progress.note(f"{why} ({self.path})")

    async def whole(self, fd: int, grant: ReadGrant) -> None:
        """All bytes of the version of `grant` into `fd`, behind the whole blocks that are in it, with the
        whole digest verified.

        A replica whose content is damaged is reported and another one is read from the beginning.
        Raises Damaged when no good replica is left, Unavailable, NoSpace, LocalIO.
        """
        info = grant.info
        part = FileProgress(self.progress, self.path, info.size)
        exclude: list[str] = []
        crcs = await self._left(fd, info.size) if info.digest else []
        for _ in range(ATTEMPTS):
            first, head = len(self.nodes), len(crcs) * BLOCK_BYTES
            if head:
                part.at(head)
                grant = await self.open(head, 0, info.version)
                self.progress.note(f"{self.path}: continued at {size_text(head)}, where an earlier get ended")
            crcs += await self.range(fd, grant, head, info.size - head, part, exclude)
            if not info.digest or digest_text(checksum.content_digest(crcs, info.size)) == info.digest:
                part.finish()
                return
            crcs, served = [], self.nodes[first:]
            if head:
                self.progress.note(f"what an earlier get left of {self.path} is damaged; read again")
            elif len(set(served)) == 1:
                node = served[0]
                exclude.append(node)
                self.progress.note(f"the replica of {self.path} on slave {node} is damaged; reported")
                await self._report(info, node)
            else:
                self.progress.note(f"{self.path} arrived damaged from {', '.join(served)}; read again")
            part.at(0)
            try:
                grant = await self.open(0, 0, info.version, exclude)
            except errors.Unavailable:
                raise errors.Damaged(
                    f"every replica of {self.path} that can be reached is damaged",
                    hint="sector stat shows them",
                ) from None
        raise errors.Damaged(f"{self.path} could not be read without damage")

    async def _left(self, fd: int, size: int) -> list[int]:
        """The checksums of the whole blocks that an earlier get of this version left in `fd`."""
        crcs: list[int] = []
        whole = min(size, os.fstat(fd).st_size) // BLOCK_BYTES
        while len(crcs) < whole:
            at, more = len(crcs) * BLOCK_BYTES, min(READ_BLOCKS, whole - len(crcs)) * BLOCK_BYTES
            try:
                crcs += await uncut(self.link.run(checksum.block_crcs, fd, at, more))
            except (EOFError, OSError):
                break
        return crcs

    async def range(
        self,
        fd: int,
        grant: ReadGrant,
        offset: int,
        length: int,
        part: FileProgress | None = None,
        exclude: list[str] | None = None,
        at: int | None = None,
    ) -> list[int]:
        """`length` bytes from `offset` of the version of `grant` (a grant for `offset`) into `fd` at byte
        `at` (default `offset`); returns the checksums of the blocks counted from `offset`."""
        crcs: list[int] = []
        shift = (offset if at is None else at) - offset
        failed = list(exclude or [])
        here, end = offset, offset + length
        attempt = 0
        while True:
            self.nodes.append(grant.node)
            got = here
            try:
                result = await self._once(fd, grant, here + shift, end - here, here, part)
                self.stats = dict(result.stats, us=result.us)
                if result.moved != end - here:
                    raise TransferError("SHORT", "fewer bytes than promised", bytes=result.moved)
                return crcs + list(result.crcs)
            except TransferError as error:
                left = max(0, end - here - error.bytes)
                ours = local_error(error, self.local, fd, left) if error.code != "SHORT" else None
                if ours is not None:
                    raise ours from None
                told = error_of(error.remote, f"slave {grant.node}") if error.code == "REMOTE" else None
                trouble = told or errors.Unavailable(explain(error, grant.node))
                got = min(end, here + error.bytes)
            kept = (got - here) // BLOCK_BYTES * BLOCK_BYTES
            if kept:
                try:
                    crcs += await uncut(self.link.run(checksum.block_crcs, fd, here + shift, kept))
                    here += kept
                except EOFError:
                    kept = 0
            if part is not None:
                part.at(here)
            failed.append(grant.node)
            attempt = 1 if kept else attempt + 1  # what gets on is never given up
            if attempt >= ATTEMPTS:
                raise trouble
            grant = await self._next(grant, here, end, failed, trouble, attempt)
            self.progress.note(f"{trouble.message} at {size_text(here)}; continued from {grant.node}")

    async def parts(self, fd: int, grant: ReadGrant, offset: int, size: int) -> None:
        """A range into the beginning of `fd`, in parts that slaves check before they send them, one after the
        other if there is a limit, which slaves keep for each. `grant` is for the first."""
        first = min(size, part_at(offset))
        await self.range(fd, grant, offset, first, at=0)

        async def part(start: int) -> None:
            length = min(CHECKED_BYTES, offset + size - start)
            more = await self.open(start, length, grant.info.version)
            await self.range(fd, more, start, length, at=start - offset)

        starts = range(offset + first, offset + size, CHECKED_BYTES)
        await bounded(1 if self.limit else PARTS, [partial(part, start) for start in starts])

    async def _next(
        self,
        last: ReadGrant,
        here: int,
        end: int,
        failed: list[str],
        trouble: errors.SectorError,
        attempt: int,
    ) -> ReadGrant:
        """Another replica of the same version; if none is left, those that failed once more, later: they
        are waited for as long as the transfer has run, `BACK_S` at most."""
        version, clock = last.info.version, self.link.session.clock
        until = clock.seconds() + min(BACK_S, clock.seconds() - self._began)
        try:
            return await self.open(here, end - here, version, failed[-64:])
        except errors.Unavailable:
            await pause(clock, min(5.0, 0.5 * attempt))
        while True:
            try:
                return await self.open(here, end - here, version)
            except errors.Unavailable:
                if clock.seconds() >= until:
                    raise errors.Unavailable(
                        f"{self.path}: {trouble.message}, and no other replica is left"
                    ) from None
            await pause(clock, 1.0)

    async def _once(
        self, fd: int, grant: ReadGrant, at: int, length: int, here: int, part: FileProgress | None
    ) -> TransferResult:
        host = await literal_host(self.link.session.clock, grant.data.host)
        receiving = self.link.data.receive_file(
            channel(grant.ticket),
            fd,
            offset=at,
            limit=length,
            to=(host, grant.data.port),
            start_s=START_S,
            fsync=False,
            progress=None if part is None else lambda moved: part.at(here + moved),
            on_way=self.link.on_way(self.progress),
        )
        try:
            result = await arrival(receiving)
        except TransferError:
            raise
        except BaseException:
            receiving.cancel()
            raise
        receiving.finish(version=(grant.info.version.epoch, grant.info.version.counter), durable=0)
        self.link.ending.add(receiving.done)
        receiving.done.addBoth(lambda _: self.link.ending.discard(receiving.done))
        return result

    async def _report(self, info: FileInfo, node: str) -> None:
        with contextlib.suppress(errors.SectorError):
            await self.link.session.call(
                ReportBad(self.path, info.version, node, "wrong digest of the whole")
            )

    @staticmethod
    def _worth_keeping(temp: str, fd: int, version: Version) -> bool:
        """Whether the next get of this version finds a part with something in it."""
        return temp.endswith(_part_of(version)) and os.fstat(fd).st_size >= BLOCK_BYTES

    async def to_file(self, target: str, *, overwrite: bool = True, grant: ReadGrant | None = None) -> Moved:
        """Fetch the whole file to the local path `target`: a temporary file beside it, then a rename. One
        that a killed get of the same version left is gone on with. `grant` = what `open` gave a moment ago.

        Raises what `open` and `whole` raise, Exists, LocalIO, NoSpace (also before the first byte).
        """
        clock = self.link.session.clock
        begin = clock.seconds()
        grant = grant or await self.open()
        info = grant.info
        place = await self.link.run(_place_thd, target)
        making = self.link.run(_make_temp_thd, place, info.size, overwrite, info.version)
        temp, fd = await uncut(making, _drop_temp)
        try:
            await self.whole(fd, grant)
            await uncut(self.link.run(_keep_temp_thd, temp, fd, place, overwrite))
        except BaseException as error:
            if isinstance(error, AWAY) and self._worth_keeping(temp, fd, info.version):
                kept = "what has arrived is kept, the same command goes on with it"
                error.hint = f"{error.hint}; {kept}" if error.hint else kept
                os.close(fd)
            else:
                _drop_temp((temp, fd))
            raise
        os.close(fd)
        seconds = clock.seconds() - begin
        node = self.nodes[-1] if self.nodes else grant.node
        return Moved(self.path, target, info.size, info.version, info.digest, node, seconds, self.stats)


def part_at(offset: int) -> int:
    """Bytes from `offset` to the end of the part that it is in."""
    return CHECKED_BYTES - offset % CHECKED_BYTES


def _place_thd(target: str) -> str:
    """Where a file for `target` has to appear: where a symbolic link leads to. Raises LocalIO for what must
    not be replaced by a file (a device, a pipe, a directory)."""
    place = os.path.realpath(target) if os.path.islink(target) else target
    try:
        kind = os.stat(target).st_mode
    except OSError:
        return place
    if stat.S_ISDIR(kind):
        raise errors.LocalIO(f"{target} is a directory on this machine", hint="choose another name")
    if not stat.S_ISREG(kind):
        raise errors.LocalIO(f"{target} is not a regular file", hint="- prints on standard output")
    return place


def _part_of(version: Version) -> str:
    """How the name of a part of this version ends."""
    return f".{version.epoch}-{version.counter}.part"


def _make_temp_thd(
    target: str, size: int, overwrite: bool, version: Version = Version(0, 0)
) -> tuple[str, int]:
    if not overwrite and os.path.lexists(target):
        raise _exists(target)
    folder, name = os.path.split(os.path.abspath(target))
    short = os.fsencode(name)[:200].decode(errors="ignore")  # a name has at most 255 bytes
    temp = os.path.join(folder, f".{short}{_part_of(version)}")
    fd = left = -1
    try:
        fd = _take_over(temp)
        if fd < 0:
            temp = os.path.join(folder, f".{short}.{os.urandom(4).hex()}.part")
            fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        info = os.fstat(fd)
        left = info.st_size
        free, need = space.free_bytes(fd), size - 512 * info.st_blocks
        # more than is free is not asked for: the kernel would take all there is before it refuses
        if 0 < free < need or (not space.fallocate(fd, size) and free < need):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if left > size:
            os.ftruncate(fd, 0)
    except OSError as error:
        if fd < 0:
            raise _refused(error, target, size, _folder_fd(folder)) from None
        if left <= 0:
            os.unlink(temp)
        raise _refused(error, target, size, fd) from None
    return temp, fd


def _take_over(temp: str) -> int:
    """A descriptor of the part `temp`, made if it is not there; -1 if another get has it, or if it is not
    ours alone. Raises OSError if it cannot be made."""
    for _ in range(4):
        try:
            fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EACCES, errno.EISDIR, errno.ENXIO) and os.path.lexists(
                temp
            ):
                return -1
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            info, there = os.fstat(fd), os.lstat(temp)
        except FileNotFoundError:  # another get has just finished it
            os.close(fd)
            continue
        except BlockingIOError:
            os.close(fd)
            return -1
        except OSError:  # no locks here
            os.unlink(temp)
            os.close(fd)
            return -1
        mine = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
        if (info.st_dev, info.st_ino) == (there.st_dev, there.st_ino):
            if mine:
                return fd
            os.close(fd)
            return -1
        os.close(fd)
    return -1


def _drop_temp(made: tuple[str, int]) -> None:
    temp, fd = made
    with contextlib.suppress(OSError):
        os.unlink(temp)  # before its lock ends: nobody takes over what goes
    os.close(fd)


def _folder_fd(folder: str) -> int:
    """A descriptor on the file system of `folder`; -1 if it cannot be had."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


def _refused(error: OSError, target: str, size: int, fd: int) -> errors.SectorError:
    """What the local disk refused, as the user hears it; closes `fd`, a descriptor there or -1."""
    try:
        if error.errno in space.FULL:
            return space.no_room(error.errno, f"{target} on this machine", size, fd)
        missing = "make its directory first, or choose another" if error.errno == errno.ENOENT else ""
        return errors.LocalIO(f"{target}: {error.strerror}", hint=missing)
    finally:
        if fd >= 0:
            os.close(fd)


def _exists(target: str) -> errors.Exists:
    return errors.Exists(f"{target} exists", hint="remove it or choose another name")


def _keep_temp_thd(temp: str, fd: int, target: str, overwrite: bool) -> None:
    """Put the finished file in its place; one that it replaces leaves its permissions."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(fd, os.stat(target).st_mode & 0o777)
        os.fsync(fd)
        if overwrite:
            os.rename(temp, target)
            return
        try:
            os.link(temp, target)  # unlike a rename it does not replace what came meanwhile
            os.unlink(temp)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):  # file systems without links
                raise
            os.rename(temp, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise _refused(error, target, os.fstat(fd).st_size, os.dup(fd)) from None


def open_local_thd(local: str) -> tuple[int, int]:
    """(descriptor, size) of a local file to be read. Raises LocalIO."""
    try:
        fd = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe's writer is not waited for
    except OSError as error:
        hint = "check the name" if isinstance(error, FileNotFoundError) else ""
        raise errors.LocalIO(f"{local}: {error.strerror}", hint=hint) from None
    try:
        return fd, _size_of(fd, local)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise errors.LocalIO(f"{local}: {error.strerror}") from None
        raise


def _size_of(fd: int, local: str) -> int:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise errors.LocalIO(f"{local} is not a regular file", hint="directories need -r")
    if info.st_size == 0 and os.pread(fd, 1, 0):  # one of the kernel, or written to just now
        info = os.fstat(fd)
        if info.st_size == 0:
            raise errors.LocalIO(f"{local} does not tell its size", hint=f"sector put - PATH < {local}")
    return info.st_size
