"""Tickets to file transfers: what a slave sends and receives, and how received content becomes public."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import msgspec
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector import errors
from sector._udt.data_api import Data, DataTicket, Receiving, Sending, TransferError, TransferResult, arrival
from sector.clock import Clock
from sector.model import BLOCK_BYTES, CHECKED_BYTES, SMALL_BYTES, SliceMeta, Ticket, Version
from sector.slave.catalog import Record
from sector.slave.core import START_S, Open, SlaveCore, is_final, retry_delay
from sector.slave.doubts import Doubts
from sector.slave.gate import Gate
from sector.slave.parts import Part, Parts, asked_of
from sector.slave.pool import Pool
from sector.slave.rot import ScrubbedDisk
from sector.slave.told import TlsTold
from sector.wire.base import Request
from sector.wire.outcome import number_of
from sector.wire.slave import Adopted, PrepareReplica, PrepareWrite, Publish, Published, Replicated

log = Logger()
_PUBLISH_S = 10.0
_BAD_AT_ONCE = 500
_BAD_AGAIN_S = 5.0
_UNTOLD_MOST = 1000
_SETTLE_S = 150.0
"""Seconds after which the master is asked about content that waited for its writer when it heard of it."""

T = TypeVar("T")
MasterCall = Callable[..., Coroutine[Any, Any, Any]]


def _stop_code(error: BaseException) -> int:
    """What the peer hears when this slave stops, or fails in a way that it should not."""
    return number_of(errors.Unavailable("") if isinstance(error, CancelledError) else error)


def channel_ticket(ticket: Ticket) -> DataTicket:
    """The part of a ticket that the data channel needs."""
    return DataTicket(ticket.id, ticket.key, ticket.tag, ticket.encrypt, ticket.limit)


class Transfers:
    """All transfers of one slave. `master_call(request, deadline_s=...)` reaches the current master."""

    def __init__(
        self,
        core: SlaveCore,
        disk: ScrubbedDisk,
        pool: Pool,
        data: Data,
        clock: Clock,
        master_call: MasterCall,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """`now` seconds since 1970 (times of files), `random` numbers in 0..1 (jitter)."""
        self._core = core
        self._disk = disk
        self._pool = pool
        self._data = data
        self._clock = clock
        self._master_call = master_call
        self._now = now
        self._random = random
        self.gate = Gate()
        self.parts = Parts(disk, pool, clock)
        self._bad: dict[tuple[str, Version], str] = {}
        """Bad replicas that the master has yet to hear of, and why they are."""
        self._telling = False
        self._condemned: set[tuple[str, Version]] = set()
        """Bad replicas that are being set aside."""
        self._untold: dict[tuple[str, Version], None] = {}
        """Complete copies that the master may not have heard of, the newest ones."""
        self.on_bad: Callable[[str, Version, str], None] = lambda path, version, why: None
        """Called once with each bad replica."""
        self._tasks: set[Deferred[Any]] = set()
        self._publishing: set[bytes] = set()
        self._commits: dict[str, list[Deferred[None]]] = {}
        self._discard: set[bytes] = set()
        self._settling: set[bytes] = set()
        self._stopping = False
        self._wake: set[Deferred[None]] = set()
        self._waits: set[Deferred[Any]] = set()
        self._idle: Deferred[None] | None = None
        self._guests: dict[bytes, tuple[str, Callable[[int], None]]] = {}
        self._revoked: dict[str, float] = {}
        self._on_way = TlsTold(clock)
        self.doubts = Doubts(
            disk,
            pool,
            spawn=self._spawn,
            wait=self._pause,
            stopping=lambda: self._stopping,
            tell=self._tell,
            condemn=self.condemn,
            tell_bad=self.tell_bad,
        )

    # --------------------------------------------------------------------------------------- tasks
    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = ensureDeferred(work)
        self._tasks.add(task)

        def failed(failure: Failure) -> None:
            if not failure.check(CancelledError):
                log.failure("{what} failed", failure, what=what)

        def ended(_: Any) -> None:
            self._tasks.discard(task)
            if self._idle is not None and not self._tasks:
                idle, self._idle = self._idle, None
                idle.callback(None)

        task.addErrback(failed).addBoth(ended)

    async def stop(self) -> None:
        """End every transfer; sealed content stays prepared on disk. Disk work under way is finished."""
        self._stopping = True
        for waiting in list(self._waits):
            waiting.cancel()
        if self._tasks:
            self._idle = Deferred()
            await self._idle
        await self.parts.stop()

    async def _until(self, event: Deferred[T]) -> T:
        """Wait for `event`; the only waits that `stop` cuts short (with CancelledError)."""
        gate: Deferred[T] = Deferred()
        event.addBoth(lambda result: None if gate.called else gate.callback(result))
        if self._stopping:
            gate.cancel()
        self._waits.add(gate)
        try:
            return await gate
        finally:
            self._waits.discard(gate)

    async def _ask_master(self, request: Request, deadline_s: float = 10.0) -> Any:
        return await self._until(ensureDeferred(self._master_call(request, deadline_s=deadline_s)))

    async def _pause(self, seconds: float, wake: Deferred[None] | None = None) -> None:
        waiting: Deferred[None] = wake or Deferred()
        timer = self._clock.callLater(seconds, self._ring, waiting)
        try:
            await self._until(waiting)
        finally:
            if timer.active():
                timer.cancel()

    # ------------------------------------------------------------------------------------ principals
    def revoke(self, principals: Iterable[str]) -> None:
        """These sessions were closed: end what they send and read, take no command for them any more (one
        that a master sent before may still come)."""
        now = self._clock.seconds()
        while self._revoked and next(iter(self._revoked.values())) < now:
            del self._revoked[next(iter(self._revoked))]
        ended = set(principals)
        for principal in ended:
            self._revoked.pop(principal, None)
            self._revoked[principal] = now + 2 * START_S
        for principal, cancel in list(self._guests.values()):
            if principal in ended:
                cancel(number_of(errors.SessionExpired("")))

    def _check_guest(self, principal: str) -> None:
        if principal in self._revoked:
            raise errors.SessionExpired(f"the session of {principal.partition('#')[0]} was closed")

    # ------------------------------------------------------------------------------------- sending
    async def send(self, kind: str, ticket: Ticket, to: tuple[str, int] | None, principal: str = "") -> None:
        """Begin to send what `ticket` allows; returns when the file is open and the ticket is known.
        `principal` = the client it is for.

        Raises NotFound (no such version here), Damaged (a block at rest is bad), Busy, Conflict,
        SessionExpired.
        """
        transfer = self._core.begin(ticket.id, kind, ticket.path, ticket.length, self._clock.seconds())
        fd = -1
        try:
            await self.settled([ticket.path])
            fd, record = await self._pool.run(self._disk.open_read_thd, ticket.path, ticket.version)
            length = min(ticket.length, max(0, record.size - ticket.offset))
            if 0 < length <= CHECKED_BYTES:
                bad = await self._pool.run(self._disk.bad_blocks_thd, record, fd, ticket.offset, length)
                if bad:
                    self.doubts.add(ticket.path, ticket.version)
                    raise errors.Damaged(f"block {bad[0]} of {ticket.path} is damaged on {self._disk.where}")
            self._check_guest(principal)
            try:
                sending = self._data.send_file(
                    channel_ticket(ticket),
                    fd,
                    offset=ticket.offset,
                    length=length,
                    to=to,
                    start_s=self._core.start_s,
                    on_way=self._on_way,
                )
            except Exception as error:
                raise errors.Busy(f"{self._disk.where} cannot start a transfer: {error}") from None
        except BaseException:
            self._core.end(transfer, self._clock.seconds(), 0, False)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        self._guests[ticket.id] = (principal, sending.cancel)
        self._spawn(self._watch_sending(transfer, ticket, record, sending), f"sending {ticket.path}")

    async def _watch_sending(self, transfer: Open, ticket: Ticket, record: Record, sending: Sending) -> None:
        moved, good, doubted = 0, False, False
        crcs: tuple[int, ...] = ()
        try:
            result = await self._until(sending.done)
            moved, good, crcs = result.moved, True, result.crcs
        except TransferError as error:
            moved = error.bytes
            doubted = transfer.kind == "copy" and error.remote == number_of(errors.Damaged(""))
            level = log.debug if error.code in ("CANCELLED", "TIMEOUT", "CLOSED") else log.info
            level("sending {path} ended: {why}", path=ticket.path, why=str(error), code=error.code)
        except CancelledError as stop:
            sending.cancel(_stop_code(stop))
            raise
        finally:
            self._guests.pop(ticket.id, None)
            self._core.end(transfer, self._clock.seconds(), moved, good)
        if doubted:  # another slave got other bytes than were published: whose disk was it?
            self.doubts.add(ticket.path, ticket.version)
        if good and ticket.offset % BLOCK_BYTES == 0 and moved > CHECKED_BYTES:
            first = ticket.offset // BLOCK_BYTES
            rest = await self._pool.run(self._disk.crcs_thd, record)
            whole = moved // BLOCK_BYTES if ticket.offset + moved < record.size else len(crcs)
            bad = [first + i for i in range(whole) if rest[first + i : first + i + 1] != (crcs[i],)]
            if bad:
                self.doubts.add(ticket.path, ticket.version)

    async def condemn(self, path: str, version: Version, why: str) -> bool:
        """Set a bad replica aside and tell the master, also when the disk does not let it be moved; False if
        somebody else has done so before: two who read one replica at a time have found one bad replica."""
        named = path, version
        if named in self._condemned:
            return False
        first = self._has(path, version)
        if first:
            self.on_bad(path, version, why)
        self._condemned.add(named)
        try:
            await self._pool.run(self._disk.set_aside_thd, path, version, why)
        except errors.SectorError as error:
            log.error("damaged {path} cannot be set aside: {why}", path=path, why=error.message)
        finally:
            self._condemned.discard(named)
        await self.tell_bad(path, version, why)
        return first

    async def tell_bad(self, path: str, version: Version, why: str) -> None:
        """Tell the master of a replica that is no good any more; if it does not hear, again until it does."""
        self._bad[path, version] = why[:1000]
        if not await self._tell_bad() and not self._telling:
            self._telling = True
            self._spawn(self._tell_bad_again(), "telling of bad replicas")

    async def _tell_bad(self) -> bool:
        """Whether the master has heard of all bad replicas; of what came back meanwhile it is not told."""
        for named in [named for named in self._bad if self._has(*named)]:
            del self._bad[named]
        some = dict(islice(self._bad.items(), _BAD_AT_ONCE))
        if not some:
            return True
        try:
            told = Adopted(self._core.slave_id, damaged=list(some), why=list(some.values()))
            await self._ask_master(told)
        except errors.SectorError as error:
            log.warn("the master was not told of damaged {path}: {why}", path=next(iter(some))[0], why=error)
            return False
        for named in some:
            self._bad.pop(named, None)
        return not self._bad

    async def _tell_bad_again(self) -> None:
        try:
            await self._pause(_BAD_AGAIN_S)
            while not await self._tell_bad():
                await self._pause(_BAD_AGAIN_S)
        finally:
            self._telling = False

    def _has(self, path: str, version: Version) -> bool:
        record = self._disk.entries.get(path)
        return record is not None and record.version == version

    # ----------------------------------------------------------------------------------- receiving
    async def receive(self, request: PrepareWrite | PrepareReplica) -> int:
        """Reserve space and wait for the sender; returns the byte that he begins at. Raises NoSpace, Busy,
        Conflict, LocalIO, SessionExpired."""
        ticket, meta = request.ticket, request.meta
        kind = "write" if isinstance(request, PrepareWrite) else "replica"
        transfer = self._core.begin(ticket.id, kind, meta.path, meta.size, self._clock.seconds())
        part: Part | None = None

        def moved(_: int) -> None:
            if part is not None:
                self.parts.moved(part)

        try:
            part = await self.parts.begin(*asked_of(request), meta.path, meta.size)
            self._check_guest(request.principal if isinstance(request, PrepareWrite) else "")
            try:
                receiving = self._data.receive_file(
                    channel_ticket(ticket),
                    part.temp.fd,
                    offset=part.offset,
                    limit=meta.size - part.offset,
                    start_s=self._core.start_s,
                    fsync=meta.size > SMALL_BYTES,  # `seal_thd` syncs it, in one of more threads (0283)
                    progress=moved if kind == "write" else None,
                    on_way=self._on_way,
                )
            except Exception as error:
                raise errors.Busy(f"{self._disk.where} cannot start a transfer: {error}") from None
        except Exception:
            self._core.end(transfer, self._clock.seconds(), 0, False)
            if part is not None:
                self.parts.done(part)
                await self.parts.drop(part)
            raise
        part.stop = receiving.cancel
        if part.offset:
            log.info("{path} goes on at byte {at}", path=meta.path, at=part.offset)
        if isinstance(request, PrepareWrite):
            part.lease = request.lease
            self._guests[ticket.id] = (request.principal, receiving.cancel)
            work = self._take_write(transfer, request, part, receiving)
        else:
            work = self._take_replica(transfer, request, part, receiving)
        self._spawn(work, f"receiving {meta.path}")
        return part.offset

    async def _take(self, receiving: Receiving, part: Part, meta: SliceMeta, lease: bytes) -> Record:
        """Wait for the bytes, check them, seal them. If that fails the temporary file is gone, or kept for
        who goes on with it."""
        arrived = arrival(receiving)
        try:
            result = await self._until(arrived)
            size, crcs, digest = part.whole(result)
            if size != meta.size:
                raise errors.Damaged(f"{meta.path}: {size} bytes came, {meta.size} were announced")
            if meta.digest and digest != meta.digest:
                raise errors.Damaged(f"the copy of {meta.path} differs from the published content")
            if not meta.digest:
                meta = msgspec.structs.replace(meta, digest=digest, mtime=round(self._now(), 6))
            sealed = await self._pool.run(self._disk.seal_thd, part.temp, meta, crcs, lease)
        except Exception as error:
            await self.parts.give_up(part, error)
            raise
        self.parts.done(part)
        os.close(part.temp.fd)
        return sealed

    async def _take_write(
        self, transfer: Open, request: PrepareWrite, part: Part, receiving: Receiving
    ) -> None:
        good = False

        def complete(result: TransferResult) -> TransferResult:
            self._guests.pop(transfer.ticket_id, None)  # from now on the lease decides
            return result

        receiving.fin.addCallback(complete)
        try:
            record = await self._take(receiving, part, request.meta, request.lease)
            final = await self.publish(request.lease, record)
            receiving.finish(version=(final.epoch, final.counter), durable=1)
            good = True
        except TransferError as error:
            log.info("writing {path} ended: {why}", path=transfer.path, why=str(error), code=error.code)
        except errors.SectorError as error:
            log.info("writing {path} was refused: {why}", path=transfer.path, why=error.message)
            receiving.finish(error=number_of(error))
        except BaseException as error:
            receiving.cancel(_stop_code(error))
            raise
        finally:
            self._guests.pop(transfer.ticket_id, None)
            self._core.end(transfer, self._clock.seconds(), transfer.size if good else 0, good)

    async def _take_replica(
        self, transfer: Open, request: PrepareReplica, part: Part, receiving: Receiving
    ) -> None:
        why = ""
        try:
            record = await self._take(receiving, part, request.meta, b"")
            async with self.gate.shared():
                self._untold[record.path, record.version] = None
                if len(self._untold) > _UNTOLD_MOST:
                    del self._untold[next(iter(self._untold))]
                await self._pool.run(self._disk.publish_thd, record)
            receiving.finish(version=(record.epoch, record.counter), durable=1)
        except TransferError as error:
            why = f"{error.code}: {error}"
        except errors.SectorError as error:
            why = error.message
            receiving.finish(error=number_of(error))
        except BaseException as error:
            why = "stopped"
            receiving.cancel(_stop_code(error))
            raise
        finally:
            self._core.end(transfer, self._clock.seconds(), 0 if why else transfer.size, not why)
        version, kept = request.meta.version, self.parts.has(part)
        report = Replicated(self._core.slave_id, request.task, transfer.path, version, why[:8000], kept)
        if await self._tell(lambda: report):
            self._untold.pop((transfer.path, version), None)

    def reported(self) -> None:
        """The master has heard of all copies that are here."""
        self._untold.clear()

    async def drop(self, path: str, version: Version) -> None:
        """The master says that a content is old, or was deleted: it is set aside, unless it is a copy that
        came too late. Raises LocalIO."""
        if (path, version) in self._untold:
            await self._pool.run(self._disk.drop_thd, path, version)
            self._untold.pop((path, version), None)
        else:
            why = "old or deleted, said the master"
            await self._pool.run(self._disk.set_aside_thd, path, version, why)

    async def _tell(self, made: Callable[[], Request | None]) -> bool:
        """Bring a report to the master, with some patience: a later full Report says the same. It is made for
        each attempt; None = there is nothing to tell any more. Whether nothing is left to tell."""
        for attempt in range(5):
            try:
                async with self.gate.shared():
                    report = made()
                    if report is not None:
                        await self._ask_master(report)
                return True
            except errors.SectorError as error:
                log.debug("a report was not delivered: {why}", why=error.message)
            await self._pause(retry_delay(attempt, self._random()))
        return False

    # ------------------------------------------------------------------------------------- publish
    async def publish(self, lease: bytes, record: Record, back: str = "") -> Record:
        """Have the master commit sealed content, then make it visible. Asks again while the master is
        away; raises the master's refusal after discarding the content, or moving it to the local file
        `back`."""
        self._publishing.add(lease)
        attempt = 0
        try:
            while True:
                async with self.gate.shared():
                    with self._committing(record.path):
                        version = await self._agree(lease, record, back, attempt)
                        if version is not None:
                            return await self._show(record, version)
                wake: Deferred[None] = Deferred()
                self._wake.add(wake)
                try:
                    await self._pause(retry_delay(attempt, self._random()), wake)
                finally:
                    self._wake.discard(wake)
                attempt += 1
        finally:
            self._publishing.discard(lease)
            self._discard.discard(lease)

    @contextmanager
    def _committing(self, path: str) -> Iterator[None]:
        """Between the question to the master and the rename: the master may know the content already."""
        waiting = self._commits.setdefault(path, [])
        waiting.append(done := Deferred[None]())
        try:
            yield
        finally:
            waiting.remove(done)
            if not waiting:
                self._commits.pop(path, None)
            done.callback(None)

    async def settled(self, paths: Iterable[str]) -> None:
        """Wait until what the master may have committed of these paths is visible here."""
        for path in paths:
            while path in self._commits:
                turn: Deferred[None] = Deferred()
                self._commits[path][0].addCallback(turn.callback)
                await turn

    async def _agree(self, lease: bytes, record: Record, back: str, attempt: int) -> Version | None:
        """The version that the master committed; None if it gave no clear answer. Where one was lost, only
        the lease tells: a master that has no room for anything now may have committed before."""
        try:
            request = Publish(self._core.slave_id, lease, record.meta)
            reply: Published = await self._ask_master(request, _PUBLISH_S)
            return reply.version
        except errors.SectorError as error:
            unsure = attempt > 0 and isinstance(error, errors.NoSpace)
            if (is_final(error) and not unsure) or lease in self._discard:
                await self._pool.run(self._disk.discard_thd, record, back)
                raise
            log.info("publishing {path} waits for the master: {why}", path=record.path, why=error.message)
            return None

    def _ring(self, wake: Deferred[None]) -> None:
        if not wake.called:
            wake.callback(None)

    def master_is_back(self) -> None:
        """Ask at once what waits for the master."""
        for wake in list(self._wake):
            self._ring(wake)

    async def _show(self, record: Record, version: Version) -> Record:
        """The master has committed: the rename must follow, whatever it takes."""
        attempt = 0
        while True:
            try:
                return await self._pool.run(self._disk.publish_thd, record, version)
            except (errors.LocalIO, errors.NoSpace) as error:
                if attempt == 5:
                    raise
                log.error("{path} cannot be made visible: {why}", path=record.path, why=error.message)
            await self._pause(retry_delay(attempt, self._random()))
            attempt += 1

    def resume(self, publish: list[bytes], discard: list[bytes]) -> None:
        """What the master says of prepared content (ReportReply)."""
        for lease in discard:
            self._discard.add(lease)
            if lease not in self._publishing and lease in self._disk.prepared:
                self._spawn(self._drop_prepared(lease), "discarding prepared content")
        for lease in publish:
            record = self._disk.prepared.get(lease)
            if record is not None and lease not in self._publishing:
                self._spawn(self._publish_again(lease, record), f"publishing {record.path}")
        rest = set(self._disk.prepared) - self._publishing - self._settling - set(publish) - set(discard)
        for lease in rest:
            self._settling.add(lease)
            self._spawn(self._settle(lease), "prepared content of an earlier start")

    async def _settle(self, lease: bytes) -> None:
        """Content of before a restart, whose lease was open when the master heard of it: nobody publishes it.
        Its writer begins anew; if he is gone, the lease ends, and the master says so when it is asked."""
        try:
            await self._pause(_SETTLE_S)
            record = self._disk.prepared.get(lease)
            if record is not None and lease not in self._publishing:
                await self.publish(lease, record)
        except errors.SectorError as error:
            log.info("content of before the restart is dropped: {why}", why=error.message)
        finally:
            self._settling.discard(lease)

    async def _drop_prepared(self, lease: bytes) -> None:
        record = self._disk.prepared.get(lease)
        self._discard.discard(lease)
        if record is not None:
            await self._pool.run(self._disk.discard_thd, record)

    async def _publish_again(self, lease: bytes, record: Record) -> None:
        """The master has said that it committed this content."""
        self._publishing.add(lease)
        try:
            async with self.gate.shared():
                with self._committing(record.path):
                    await self._show(record, record.version)
            log.info("{path} was published after a restart", path=record.path)
        except errors.SectorError as error:
            log.info("{path} was not published: {why}", path=record.path, why=error.message)
        finally:
            self._publishing.discard(lease)
