"""Putting files: a lease, as many attempts as needed, each from where the last one broke off.

What a slave has of an attempt that broke it keeps for some minutes. The client names the checksums of what it
has sent, the slave compares them with what lies there, and the rest is sent (docs/decisions/0257).
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from sector import errors
from sector._udt import checksum
from sector._udt.data_api import TransferError, TransferResult
from sector.client.deferred import uncut
from sector.client.progress import FileProgress, Moved, Progress, size_text
from sector.client.transfer import (
    ATTEMPTS,
    AWAY,
    BACK_S,
    PATIENCE_S,
    READ_BLOCKS,
    START_S,
    Granted,
    Link,
    channel,
    explain,
    local_error,
)
from sector.client.unfinished import FROM_BYTES, NOTE_S, Left, Note
from sector.clock import pause
from sector.model import BLOCK_BYTES, BLOCKS_MAX, Version, digest_text, parent
from sector.resolve import literal_host
from sector.wire.files import LeaseDrop, LeaseKeep, LeaseState, Mkdir, OpenWrite, Stat, WriteGrant
from sector.wire.outcome import error_of

AHEAD_BLOCKS = 64
"""So many blocks behind what is known to have arrived may have arrived too."""
BEHIND_BLOCKS = 1024
READ_S = 0.01
"""Time that a slave is given to read a block of it."""
CALL_S = 10.0


class Put:
    """One file on its way into the cloud: one lease (another one, should it end while nobody is reached), as
    many attempts as needed."""

    def __init__(
        self,
        link: Link,
        local: str,
        path: str,
        progress: Progress,
        granted: Granted | None = None,
        *,
        resumable: bool = False,
    ) -> None:
        """`resumable`: `local` is a file that the next put can read again, if this process is killed."""
        self.link = link
        self.local = local
        self.path = path
        self.progress = progress
        self._granted = granted
        self._resumable = resumable
        self._waiting = ""
        self._crcs: list[int] = []
        """Checksums of the first blocks, as far as they were needed."""
        self._moved_at = 0.0
        self._lease = b""
        self._note: Note | None = None
        self._note_at = 0.0

    async def run(self, fd: int, size: int, create: str = "any", near: str = "") -> Moved:
        """Send `size` bytes of `fd`; returns when a version is published and durable.

        Raises what the master refuses (Exists, LeaseHeld, NoSpace, Denied, ...), LeaseLost, LocalIO,
        Unreachable. Nothing half-written ever becomes visible.
        """
        clock = self.link.session.clock
        begin = clock.seconds()
        try:
            grant = await self._begin(fd, size, create, near)
        except BaseException as error:
            self._forget(keep=isinstance(error, AWAY))
            raise
        part = FileProgress(self.progress, self.path, size)
        self._lease = grant.lease
        keeper = ensureDeferred(self._keep(grant.lease_s))
        keeper.addErrback(lambda _: None)
        result: TransferResult | None = None
        try:
            version, result, node, digest = await self._send(fd, size, grant, part, create, near)
        except BaseException as error:
            keeper.cancel()
            self._drop(self._lease)
            self._forget(keep=isinstance(error, AWAY))
            raise
        keeper.cancel()
        self._forget()
        part.finish()
        stats = dict(result.stats, us=result.us) if result is not None else {}
        return Moved(self.path, self.local, size, version, digest, node, clock.seconds() - begin, stats)

    async def _begin(self, fd: int, size: int, create: str, near: str) -> WriteGrant:
        """A lease; one that a killed put of the same file has left is given up, and its part gone on with."""
        notes = self.link.unfinished if self._resumable else None
        if notes is not None and size >= FROM_BYTES:
            opening = self.link.run(notes.open_thd, self.local, self.link.session.user, self.path)
            self._note = await uncut(opening, self._leave)
        left = self._note.left if self._note is not None else None
        if left is None:
            return await self._open(OpenWrite(self.path, size, create, near))
        await self.link.session.call(LeaseDrop(self.path, left.lease), patience_s=PATIENCE_S, repeat=True)
        behind = max(left.got // 4, BEHIND_BLOCKS * BLOCK_BYTES)  # it was noted some seconds before the end
        count = min(min(size, left.got + behind) // BLOCK_BYTES, BLOCKS_MAX // 4)
        blocks = self._blocks(count) if await self._read(fd, count) else b""
        request = OpenWrite(self.path, size, create, near or left.node, [], b"", blocks, left.lease)
        grant = await self._open(request, CALL_S + READ_S * count)
        if grant.offset:
            at = size_text(grant.offset)
            self.progress.note(f"{self.path}: continued at {at} on {grant.node}, where an earlier put ended")
        return grant

    def _remember(self, grant: WriteGrant, got: int) -> None:
        """For the next put, if this process should be killed."""
        now = self.link.session.clock.seconds()
        if self._note is not None and now >= self._note_at:
            self._note_at = now + NOTE_S
            writing = self.link.run(self._note.write_thd, Left(grant.lease, grant.node, got))
            writing.addErrback(lambda _: None)

    def _leave(self, note: Note | None) -> None:
        """As if it had not been opened."""
        if note is not None:
            self.link.run(note.close_thd, note.left is not None).addErrback(lambda _: None)

    def _forget(self, keep: bool = False) -> None:
        note, self._note = self._note, None
        if note is not None:
            self.link.run(note.close_thd, keep).addErrback(lambda _: None)

    async def _open(
        self, request: OpenWrite, deadline_s: float = CALL_S, *, parents: bool = True
    ) -> WriteGrant:
        """Ask for a lease; missing directories are made if `parents`. When an answer was lost the lease may
        be held by nobody but ourselves: then wait until it has ended."""
        clock = self.link.session.clock
        until = clock.seconds() + PATIENCE_S
        made = False
        while True:
            try:
                return await self._ask(request, deadline_s)
            except errors.NotFound:
                if made or not parents or parent(self.path) == "/":
                    raise
                made = True
                with contextlib.suppress(errors.Exists):
                    making = Mkdir(parent(self.path), True)
                    await self.link.session.call(making, patience_s=PATIENCE_S, repeat=True)
                continue
            except errors.LeaseHeld:
                if not self._waiting or clock.seconds() > until:
                    raise
            await pause(clock, 2.0)

    async def _ask(self, request: OpenWrite, deadline_s: float) -> WriteGrant:
        """One question for a lease. When it is cancelled it ends in the background, within `CALL_S`, and what
        it grants is given up: nobody else knows of it."""
        answer: Deferred[WriteGrant] = Deferred()

        def answered(outcome: Any) -> None:
            self.link.ending.discard(asking)
            if not answer.called:
                answer.callback(outcome)
            elif isinstance(outcome, WriteGrant):
                self._drop(outcome.lease)

        asking: Deferred[Any] = ensureDeferred(
            self.link.session.call(
                request, deadline_s=deadline_s, patience_s=PATIENCE_S, on_wait=self._wait, repeat=True
            )
        )
        asking.addBoth(answered)
        try:
            return await answer
        except CancelledError:
            self.link.ending.add(asking)
            asking.addTimeout(CALL_S, self.link.session.clock)
            raise errors.Cancelled(f"the put of {self.path} was cancelled") from None

    async def _send(
        self, fd: int, size: int, grant: WriteGrant, part: FileProgress, create: str, near: str
    ) -> tuple[Version, TransferResult | None, str, str]:
        """(version, what the last attempt moved, where, digest of the whole)."""
        failed: list[str] = []
        attempt = 0
        while True:
            if self._granted is not None:
                await self._granted(grant.version)
            began = self._moved_at = self.link.session.clock.seconds()
            try:
                result = await self._once(fd, size, grant, part)
                return Version(*result.version), result, grant.node, self._digest(grant.offset, size, result)
            except TransferError as error:
                trouble = self._trouble(error, grant.node)
                got = min(size, grant.offset + error.bytes)
            state = await self._state(grant)
            if state.state == "published":
                return await self._published(state.version, grant.node, trouble)
            attempt += 1
            if attempt >= ATTEMPTS:
                raise trouble
            failed.append(grant.node)
            again = None
            try:
                if state.state != "open":
                    again = await self._renew(fd, size, grant, got, create, trouble)
                elif not isinstance(trouble, errors.NoSpace):
                    again = await self._go_on(fd, size, grant, got, self._moved_at - began)
                if again is None:  # never when the lease has ended
                    part.at(0)
                    again = await self._reopen(size, near, failed, grant, trouble)
            except errors.Conflict:  # the slave may have had all of it, and published it just now
                state = await self._state(grant)
                if state.state != "published":
                    raise
                return await self._published(state.version, grant.node, trouble)
            if again.offset > grant.offset:  # what gets on is never given up
                attempt = 0
            done = "began anew" if not again.offset else f"continued at {size_text(again.offset)}"
            part.at(again.offset)
            grant = again
            self._note_at = 0.0
            self.progress.note(
                f"{trouble.message} at {size_text(got)} of {self.path}; {done} on {grant.node}"
            )

    async def _published(
        self, version: Version, node: str, trouble: errors.SectorError
    ) -> tuple[Version, None, str, str]:
        """The slave's last word was lost, and all is well."""
        self.progress.note(f"{trouble.message}; the file is published all the same")
        digest = ""
        with contextlib.suppress(errors.SectorError):  # such as the want of a right to read
            info = (await self.link.session.call(Stat(self.path), patience_s=PATIENCE_S)).info
            digest = info.digest if info.version == version else ""
        return version, None, node, digest

    def _digest(self, offset: int, size: int, result: TransferResult) -> str:
        """Of the whole, when its last attempt began at `offset`."""
        if not offset:
            return digest_text(result.digest)
        head = self._crcs[: offset // BLOCK_BYTES]
        return digest_text(checksum.content_digest([*head, *result.crcs], size))

    def _trouble(self, error: TransferError, node: str) -> errors.SectorError:
        """Why an attempt failed; raises what no other attempt can cure."""
        ours = local_error(error, self.local)
        if ours is not None:
            raise ours from None
        told = error_of(error.remote, f"slave {node}") if error.code == "REMOTE" else None
        if isinstance(told, errors.Conflict | errors.Denied | errors.SessionExpired | errors.Exists):
            raise told from None
        return told or errors.Unavailable(explain(error, node))

    async def _once(self, fd: int, size: int, grant: WriteGrant, part: FileProgress) -> TransferResult:
        clock = self.link.session.clock
        host = await literal_host(clock, grant.data.host)

        def moved(count: int) -> None:
            self._moved_at = clock.seconds()
            part.at(grant.offset + count)
            self._remember(grant, grant.offset + count)

        sending = self.link.data.send_file(
            channel(grant.ticket),
            fd,
            offset=grant.offset,
            length=size - grant.offset,
            to=(host, grant.data.port),
            start_s=START_S,
            progress=moved,
            on_way=self.link.on_way(self.progress),
        )
        try:
            return await sending.done
        except TransferError:
            raise
        except BaseException:
            sending.cancel()
            raise

    async def _state(self, grant: WriteGrant) -> LeaseState:
        state: LeaseState = await self.link.session.call(
            LeaseKeep(self.path, grant.lease), patience_s=PATIENCE_S, on_wait=self._wait
        )
        return state

    async def _go_on(self, fd: int, size: int, grant: WriteGrant, got: int, took: float) -> WriteGrant | None:
        """The same slave from where it has got to; None if too little has arrived, or if it is not back
        before sending that anew elsewhere would be as good (`BACK_S` at most). Raises LeaseLost, Conflict,
        Denied, SessionExpired."""
        clock = self.link.session.clock
        if got < BLOCK_BYTES:
            return None
        count = min(min(size, got + AHEAD_BLOCKS * BLOCK_BYTES) // BLOCK_BYTES, BLOCKS_MAX // 4)
        if not await self._read(fd, count):
            return None
        request = OpenWrite(self.path, size, "any", "", [], grant.lease, self._blocks(count))
        until = clock.seconds() + min(BACK_S, took)
        while True:
            try:
                again: WriteGrant = await self.link.session.call(
                    request, deadline_s=CALL_S + READ_S * count, repeat=True
                )
                return again
            except (
                errors.Unavailable,
                errors.Unreachable,
                errors.TimedOut,
                errors.Busy,
                errors.NoSpace,
                errors.LocalIO,
            ):
                if clock.seconds() >= until:
                    return None
            await pause(clock, 1.0)

    def _blocks(self, count: int) -> bytes:
        return struct.pack(f"<{count}I", *self._crcs[:count])

    async def _read(self, fd: int, count: int) -> bool:
        """Know the checksums of the first `count` blocks; False if the file no longer has them."""
        while len(self._crcs) < count:
            at, more = len(self._crcs), min(READ_BLOCKS, count - len(self._crcs))
            try:
                self._crcs += await uncut(
                    self.link.run(checksum.block_crcs, fd, at * BLOCK_BYTES, more * BLOCK_BYTES)
                )
            except (EOFError, OSError):
                return False
        return True

    async def _renew(
        self, fd: int, size: int, grant: WriteGrant, got: int, create: str, trouble: errors.SectorError
    ) -> WriteGrant:
        """A new lease in place of one that ended while the master heard nothing of us, if nobody has written
        the path since; what the slave has is gone on with. Raises LeaseLost, LeaseHeld, Exists."""
        lost = f"{self.path}: {trouble.message}, and the write lease has ended"
        count = min(min(size, got + AHEAD_BLOCKS * BLOCK_BYTES) // BLOCK_BYTES, BLOCKS_MAX // 4)
        known = got >= BLOCK_BYTES and await self._read(fd, count)
        blocks = self._blocks(count) if known else b""
        request = OpenWrite(self.path, size, create, grant.node, [], b"", blocks, grant.lease)
        try:
            again = await self._open(request, CALL_S + READ_S * count, parents=False)
        except errors.NotFound:
            raise errors.LeaseLost(f"{lost}; its directory was removed meanwhile") from None
        self._lease = again.lease
        with contextlib.suppress(errors.NotFound, errors.Denied):  # he may have no right to read
            info = (await self.link.session.call(Stat(self.path), patience_s=PATIENCE_S)).info
            if info.version > grant.version:
                raise errors.LeaseLost(f"{lost}; it was written meanwhile by somebody else")
        return again

    async def _reopen(
        self, size: int, near: str, failed: list[str], grant: WriteGrant, trouble: errors.SectorError
    ) -> WriteGrant:
        """The same lease with a new ticket, on another slave if there is one."""
        for exclude in (failed[-64:], []):
            try:
                return await self._open(OpenWrite(self.path, size, "any", near, exclude, grant.lease))
            except (errors.Unavailable, errors.NoSpace) as error:
                if isinstance(trouble, errors.NoSpace):  # says more than that nobody else is there
                    raise trouble from None
                if not exclude:
                    raise error from None
        raise trouble

    async def _keep(self, lease_s: float) -> None:
        """Renew the lease for as long as the transfer runs."""
        every = max(1.0, lease_s / 3)
        while True:
            await pause(self.link.session.clock, every)
            try:
                await self.link.session.call(
                    LeaseKeep(self.path, self._lease),
                    deadline_s=every,
                    patience_s=PATIENCE_S,
                    on_wait=self._wait,
                )
            except errors.SectorError:
                continue

    def _wait(self, why: str) -> None:
        if why != self._waiting:
            self._waiting = why
            self.progress.note(f"{why} ({self.path})")

    def _drop(self, lease: bytes) -> None:
        """Give the lease up in the background, so that the path is free at once."""
        dropping = ensureDeferred(self.link.session.call(LeaseDrop(self.path, lease), deadline_s=3.0))
        self.link.ending.add(dropping)
        dropping.addErrback(lambda _: None)
        dropping.addCallback(lambda _: self.link.ending.discard(dropping))
