"""How Sphere moves bytes between slaves and to clients: input ranges, runs for buckets, results.

Everything goes through the data channel with one-use tickets; messages carry only the tickets.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.data_api import OWN_DISK, DataTicket, TransferError, TransferResult
from sector.errors import Busy, Cancelled, Damaged, NotFound, SectorError, Unavailable
from sector.gmp.api import Peer
from sector.model import Ticket, Version
from sector.resolve import literal_host
from sector.slave.context import SlaveContext
from sector.slave.neighbours import Neighbours
from sector.slave.spe_job import Result, SpeJob
from sector.sphere.records import OFFSET_BYTES, index_path
from sector.sphere.shuffle import Entry
from sector.wire.base import Request
from sector.wire.outcome import number_of
from sector.wire.sphere import (
    BucketGrant,
    BucketOffer,
    Delivered,
    Input,
    Pickup,
    RangeFetch,
    Route,
    SpePeer,
)

log = Logger()
OFFER_TRIES = 40
SEND_TRIES = 3
INCOMING_MAX = 16
AWAY_S = 60.0
"""How long a segment waits for a slave that alone has its input."""
AWAY_AGAIN_S = 1.0


def new_ticket(op: str, path: str, version: Version, offset: int, length: int) -> Ticket:
    """A fresh one-use ticket."""
    tag = int.from_bytes(os.urandom(4), "big") | 1
    return Ticket(os.urandom(16), os.urandom(32), tag, op, path, version, offset, length)


def data_ticket(ticket: Ticket) -> DataTicket:
    """The part of a ticket that the data channel needs."""
    return DataTicket(ticket.id, ticket.key, ticket.tag, ticket.encrypt)


def temporary_thd(folder: str) -> int:
    """A descriptor of a nameless file on the disk of `folder`."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        fd, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        return fd


@dataclass(slots=True)
class Opened:
    """A byte range in a descriptor: it begins at `at`; `moved` bytes came over the network for it."""

    fd: int
    at: int
    moved: int


class SpeData:
    """The transfers of all jobs of a slave."""

    def __init__(self, context: SlaveContext, sleep: Callable[[float], Deferred[None]]) -> None:
        self.context = context
        self.sleep = sleep
        self.incoming = 0
        self._neighbours = Neighbours(context)

    # -- inputs ----------------------------------------------------------------------------------
    async def open_range(
        self, job: SpeJob, path: str, version: Version, offset: int, length: int, holders: list[str]
    ) -> Opened:
        """The range of exactly this content: the local replica, else a copy from one of `holders`; as it was
        written, on whichever disk. Waits for a holder that is away (it may only be restarting). Raises
        `NotFound`, `Damaged` (no good replica), `Unavailable` (away for `AWAY_S`), `Cancelled`."""
        began = self.context.clock.seconds()
        while True:
            try:
                return Opened(await self.context.disk.open(path, version, offset, length), offset, 0)
            except (NotFound, Damaged) as error:
                missing: SectorError = error
            if length == 0:
                return Opened(await self.context.disk.run(temporary_thd, job.folder), 0, 0)
            away = ""
            for node in holders:
                if node == self.context.slave_id:  # it has just said that it has it no more
                    continue
                peer = job.peer(node)
                if peer is None:  # it may well have the content: it was only away when the job began
                    away = f"slave {node} has it and is not in this job"
                    continue
                fd = await self.context.disk.run(temporary_thd, job.folder)
                try:
                    wanted = RangeFetch(job.record.job, path, version, offset, length)
                    await self._fetch(job, peer, fd, wanted)
                    return Opened(fd, 0, length)
                except (NotFound, Damaged) as error:
                    os.close(fd)
                    missing = error
                except (SectorError, TransferError) as error:
                    os.close(fd)
                    if isinstance(error, TransferError) and error.code in OWN_DISK:
                        raise OSError(error.errno or errno.ENOSPC, str(error)) from None
                    away = f"slave {node} has it: {error}"
                except BaseException:
                    os.close(fd)
                    raise
            if job.ended:
                raise Cancelled(job.ended)
            if not away:
                break
            if self.context.clock.seconds() - began >= AWAY_S:
                raise Unavailable(f"{path} cannot be read now: {away}")
            await self.sleep(AWAY_AGAIN_S)
        if isinstance(missing, NotFound):
            raise NotFound(f"{path} changed or was removed: no slave has this version any more")
        raise missing

    async def open_input(self, job: SpeJob, item: Input) -> tuple[Opened, Opened | None]:
        """Data and, where there is one, the part of the index for a segment's input."""
        data = await self.open_range(job, item.path, item.version, item.offset, item.length, item.holders)
        if not item.records or item.record_size:
            return data, None
        at, size = item.first * OFFSET_BYTES, (item.records + 1) * OFFSET_BYTES
        try:
            path = index_path(item.path)
            index = await self.open_range(job, path, item.index_version, at, size, item.index_holders)
        except BaseException:
            os.close(data.fd)
            raise
        return data, index

    async def peer_of(self, peer: SpePeer) -> Peer:
        """Where to call another slave."""
        host = await literal_host(self.context.clock, peer.gmp.host)
        return Peer(host, peer.gmp.port, peer.key.key_id)

    async def _ask(self, peer: SpePeer, request: Request) -> Any:
        return await self._neighbours.call(peer.node, await self.peer_of(peer), request, 30.0)

    async def _fetch(self, job: SpeJob, peer: SpePeer, fd: int, request: RangeFetch) -> None:
        pickup: Pickup = await self._ask(peer, request)
        host = await literal_host(self.context.clock, peer.data.host)
        receiving = self.context.data.receive_file(
            data_ticket(pickup.ticket), fd, limit=request.length, to=(host, peer.data.port), fsync=False
        )
        try:
            got = await first_of(receiving.fin, receiving.done)
        except TransferError:
            raise
        except BaseException:
            receiving.cancel()  # the segment has ended; both slaves would hold the transfer
            raise
        if got.moved != request.length:
            receiving.finish(error=1)
            raise Damaged(f"{peer.node} sent another length of {request.path}")
        receiving.finish()

    async def serve_range(self, request: RangeFetch) -> Pickup:
        """Answer RangeFetch: a ticket for part of a local replica."""
        fd = await self.context.disk.open(request.path, request.version, request.offset, request.length)
        try:
            ticket = new_ticket("read", request.path, request.version, request.offset, request.length)
            return self._offer(ticket, fd, request.offset, request.length)
        finally:
            os.close(fd)

    def serve_file(self, path: str, size: int) -> Pickup:
        """A ticket for a local file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ticket = new_ticket("read", "/" + os.path.basename(path), Version(0, 0), 0, size)
            return self._offer(ticket, fd, 0, size)
        finally:
            os.close(fd)

    def _offer(self, ticket: Ticket, fd: int, offset: int, length: int) -> Pickup:
        sending = self.context.data.send_file(
            data_ticket(ticket), fd, offset=offset, length=length, start_s=self.context.config.slave.ticket_s
        )
        sending.done.addErrback(_expected, "sending a range")
        return Pickup(ticket, length)

    # -- bucket runs, sending side ------------------------------------------------------------------
    async def deliver(self, job: SpeJob, result: Result, route: Route) -> Delivered | None:
        """Bring a segment's output for one range of buckets to its node; None when that fails."""
        assert result.starts is not None
        starts = result.starts[route.first : route.last + 2]
        lengths = [int(n) for n in (starts[1:] - starts[:-1])]
        if route.node == self.context.slave_id:
            await self.context.disk.run(self._commit_local_thd, job, result, route.first, lengths)
            return Delivered(route.first, route.last, route.node, 0)
        peer = job.peer(route.node)
        if peer is None:
            return None
        offer = BucketOffer(job.record.job, job.record.stage, result.segment, route.first, lengths)
        busy = failed = 0
        while busy < OFFER_TRIES and failed < SEND_TRIES and not job.ended:
            try:
                moved = await self._send_run(peer, offer, result.file, int(starts[0]), sum(lengths))
                return Delivered(route.first, route.last, route.node, moved)
            except Busy:
                busy += 1
                await self.sleep(min(2.0, 0.05 * 2 ** min(busy, 6)))
            except (SectorError, TransferError) as error:
                failed += 1
                log.info(
                    "segment {segment} did not reach {node}: {why}",
                    segment=result.segment,
                    node=route.node,
                    why=str(error),
                )
                await self.sleep(0.2 * failed)
        return None

    @staticmethod
    def _commit_local_thd(job: SpeJob, result: Result, first: int, lengths: list[int]) -> None:
        assert result.starts is not None
        store = job.store(job.record.stage)
        if not store.missing_thd(result.segment, first, first + len(lengths) - 1):
            return
        name = store.link_run_thd(result.file, result.segment, first) if sum(lengths) else ""
        store.commit_thd(Entry(result.segment, first, lengths, name, int(result.starts[first])))

    async def _send_run(self, peer: SpePeer, offer: BucketOffer, path: str, offset: int, length: int) -> int:
        grant: BucketGrant = await self._ask(peer, offer)
        if grant.have or not grant.ticket:
            return 0
        host = await literal_host(self.context.clock, peer.data.host)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sending = self.context.data.send_file(
                data_ticket(grant.ticket[0]), fd, offset=offset, length=length, to=(host, peer.data.port)
            )
        finally:
            os.close(fd)
        await sending.done
        return length

    # -- bucket runs, receiving side ----------------------------------------------------------------
    async def accept_run(self, job: SpeJob, offer: BucketOffer) -> BucketGrant:
        """Answer BucketOffer. Raises `Busy` when too many runs come in at once."""
        store = job.store(offer.stage)
        last = offer.first + len(offer.lengths) - 1
        missing = await self.context.disk.run(store.missing_thd, offer.segment, offer.first, last)
        if not missing:
            return BucketGrant(True)
        total = sum(offer.lengths)
        if total == 0:
            entry = Entry(offer.segment, offer.first, offer.lengths, "")
            await self.context.disk.run(store.commit_thd, entry)
            return BucketGrant(True)
        if self.incoming >= INCOMING_MAX:
            raise Busy(f"{self.context.slave_id} receives {self.incoming} runs already")
        self.incoming += 1
        try:
            name, fd = await self.context.disk.run(store.new_run_thd, offer.segment, offer.first, total)
        except BaseException:
            self.incoming -= 1
            raise
        ticket = new_ticket("write", f"/bucket-{offer.segment}", Version(0, 0), 0, total)
        try:
            receiving = self.context.data.receive_file(
                data_ticket(ticket), fd, limit=total, start_s=self.context.config.slave.ticket_s, fsync=True
            )
        except BaseException:
            self.incoming -= 1
            raise
        finally:
            os.close(fd)
        entry = Entry(offer.segment, offer.first, offer.lengths, name)

        async def arrive() -> None:
            try:
                got = await first_of(receiving.fin, receiving.done)
                if got.moved != total:
                    raise Damaged("a run arrived with another length than announced")
                if job.ended:
                    raise NotFound(f"job {offer.job} has ended")
                await self.context.disk.run(store.commit_thd, entry)
                receiving.finish(durable=1)
            except Exception as error:
                if not isinstance(error, TransferError):
                    receiving.finish(error=number_of(error))
                    log.warn("a run was not taken: {why}", why=str(error))
                if not job.ended:
                    await self.context.disk.run(store.drop_run_thd, name)
            finally:
                self.incoming -= 1

        Deferred.fromCoroutine(arrive()).addErrback(_expected, "receiving a run")
        return BucketGrant(False, [ticket])


def first_of(fin: Deferred[TransferResult], done: Deferred[TransferResult]) -> Deferred[TransferResult]:
    """Fires with the result of `fin`; errbacks when `done` fails before it."""
    result: Deferred[TransferResult] = Deferred()

    def over(value: Any) -> Any:
        if not result.called:
            if isinstance(value, Failure):
                result.errback(value)
            else:
                result.callback(value)
        return None if isinstance(value, Failure) else value

    fin.addBoth(over)
    done.addBoth(over)
    return result


def _expected(failure: Failure, what: str) -> None:
    """A transfer that ended early is the peer's affair; anything else is told."""
    if not failure.check(TransferError, SectorError):
        log.failure("{what} failed", failure, what=what)
