"""A slave: joins a master, serves its commands, reports, and keeps nothing a master said from being true.

`make_slave` is the composition root. The life of a slave: open the data directory, join over TLS, report,
then a heartbeat every second; whenever the master forgets us or falls silent: join again.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector import __version__, errors
from sector._udt.data_api import Data
from sector._udt.traffic import packed
from sector.config import Config
from sector.gmp.api import Gmp, GmpKey, Peer, PeerEvent
from sector.model import Address, Tombstone, Version
from sector.resolve import literal_host
from sector.rpc import Caller, RpcNode
from sector.slave.catalog import Record
from sector.slave.context import SlaveContext
from sector.slave.core import SlaveCore, retry_delay
from sector.slave.door import Link, MasterDoor, Probe
from sector.slave.local import LocalDisk
from sector.slave.mirror import Part
from sector.slave.pool import Pool, Threads
from sector.slave.pulse import Pulse, beating
from sector.slave.rot import ScrubbedDisk
from sector.slave.scan import TreeWatch
from sector.slave.scrub import Pace, Scrubber
from sector.slave.told import RefusedTold, fitting
from sector.slave.transfer import Transfers
from sector.wire.base import Ok, Request
from sector.wire.login import Join, Joined
from sector.wire.slave import (
    Adopted,
    Copy,
    Delete,
    Heartbeat,
    HeartbeatReply,
    Mirror,
    Prepared,
    PrepareRead,
    PrepareReplica,
    PrepareWrite,
    Ready,
    RenameFiles,
    Report,
    ReportReply,
    Revoke,
    Scrub,
    ScrubReply,
    Verify,
)

log = Logger()
_REPORT_FILES = 2000
_MISSES = 3

JoinMaster = Callable[[Join], Awaitable[Joined]]


def make_slave(
    config: Config,
    reactor: Any,
    gmp: Gmp,
    data: Data,
    spawner: Any,
    *,
    join: JoinMaster | None = None,
    probe: Probe | None = None,
    pool: Pool | None = None,
    now: Callable[[], float] = time.time,
    rng: random.Random | None = None,
) -> Slave:
    """The service of one slave over its two endpoints. Certificates are read at once (BadConfig).

    `spawner` starts Sphere workers (None = no Sphere); `probe` tells whether a master is answered over UDP.
    `join` replaces the TLS join, `pool` the disk threads, `now` (seconds since 1970) and `rng` the sources of
    time and jitter: for simulated clusters.
    """
    door = MasterDoor(config, reactor, gmp) if join is None else None
    if door is not None:
        join = door.join
    assert join is not None
    threads = pool or Threads(reactor, f"disk-{config.slave.id}")
    link = Link(reactor, gmp, door, probe, config.data.udp_retry_s)
    return Slave(config, reactor, gmp, data, spawner, join, threads, now, rng or random.Random(), link)


class Slave(Service):
    """One slave. `ready` fires at the first join; `fatal` errbacks with the SectorError that ended it."""

    def __init__(
        self,
        config: Config,
        reactor: Any,
        gmp: Gmp,
        data: Data,
        spawner: Any,
        join: JoinMaster,
        pool: Pool,
        now: Callable[[], float],
        rng: random.Random,
        link: Link,
    ) -> None:
        self.slave_id = config.slave.id
        self.name = f"slave {self.slave_id}"
        self.config = config
        self.clock = reactor
        self.gmp = gmp
        self.data = data
        self.rpc = RpcNode(gmp)
        self.core = SlaveCore(self.slave_id, config.slave.transfers, config.slave.ticket_s)
        self.disk = ScrubbedDisk(
            str(config.data_dir), self.slave_id, keep_free_bytes=config.slave.reserve_mib << 20, now=now
        )
        self.disk.cluster = link.cluster
        self.pool = pool
        self.ready: Deferred[None] = Deferred()
        self.fatal: Deferred[None] = Deferred()
        self._join = join
        self._now = now
        self._rng = rng
        self._spawner = spawner
        self._link = link
        self._beat_s = 1.0
        self._refused = RefusedTold(self.slave_id, reactor)
        self._reporting = False
        self._pulse = Pulse(self.disk, pool, reactor)
        self._report_refused, self._report_at = 0, 0.0
        self._stopping = False
        self._running: Deferred[None] | None = None
        self._sleeper: Deferred[bool] | None = None
        self._background: set[Deferred[Any]] = set()
        self.transfers = Transfers(
            self.core, self.disk, pool, data, reactor, self.master_call, now, rng.random
        )
        self.tree = TreeWatch(
            self.disk,
            pool,
            reactor,
            config.slave.scan_s,
            self.master_call,
            joined=lambda: self._link.peer is not None,
            stopping=lambda: self._stopping,
        )
        self.context = SlaveContext(
            self.slave_id,
            config,
            reactor,
            self.rpc,
            gmp,
            data,
            LocalDisk(self.disk, pool, self.transfers, self.master_call, now),
            spawner,
            lambda request, **options: ensureDeferred(self.master_call(request, **options)),
            self.check_master,
        )
        self._scrub_pool = (
            Threads(reactor, f"scrub-{self.slave_id}", 1) if isinstance(pool, Threads) else pool
        )
        self.scrub = Scrubber(
            self.disk,
            self._scrub_pool,
            reactor,
            Pace(config.slave.scrub_days * 86400, config.slave.scrub_bytes_per_s),
            wall=now,
            busy=lambda: bool(self.core.open),
            condemn=self.transfers.condemn,
            tell=self.transfers.tell_bad,
            idle=isinstance(pool, Threads),
        )
        self.transfers.on_bad = self.scrub.heard
        self._serve()
        gmp.on_peer_event(self._peer_event)

    # ------------------------------------------------------------------------------------ lifecycle
    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self.pool.start()
        self._scrub_pool.start()
        self._running = ensureDeferred(self._run())
        self._running.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) and self._stopping:
            return
        if not failure.check(errors.SectorError):
            log.failure("slave {slave} failed", failure, slave=self.slave_id)
        if not self.fatal.called:
            self.fatal.errback(failure)

    def stopService(self) -> Deferred[None]:
        """Fires when jobs, transfers and disk work have ended and the data directory is given up."""
        super().stopService()  # type: ignore[no-untyped-call]
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        self._stopping = True
        self.scrub.stop()
        self._link.detour.close()
        if self._sleeper is not None and not self._sleeper.called:
            self._sleeper.callback(False)
        if self._running is not None:
            self._running.cancel()
        for hook in self.context.on_stop:
            try:
                await maybeDeferred(hook)
            except Exception as error:
                log.error("stopping Sphere: {why}", why=str(error))
        await self.transfers.stop()
        for task in list(self._background):
            task.cancel()
        await self.data.stop()
        await self.gmp.stop()
        self._scrub_pool.stop()
        self.pool.stop()
        self.scrub.stopped()
        self.disk.close_thd()

    def _sleep(self, seconds: float) -> Deferred[bool]:
        """True after `seconds`; False at once when `_wake` is called."""
        sleeper: Deferred[bool] = Deferred()
        self._sleeper = sleeper

        def over() -> None:
            if not sleeper.called:
                sleeper.callback(True)

        timer = self.clock.callLater(seconds, over)

        def ended(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return sleeper.addBoth(ended)

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.called:
            self._sleeper.callback(False)

    # --------------------------------------------------------------------------------- the main loop
    async def _run(self) -> None:
        catalogue = await self.pool.run(self.disk.open_thd)
        self.tree.tell_warnings()
        log.info("slave {slave} has {files} files", slave=self.slave_id, files=len(self.disk.entries))
        await self.scrub.load()
        later = await self.tree.settle(catalogue)
        self._attach_sphere()
        self._spawn(self.tree.run(later), "scanning the data directory")
        self._spawn(self.scrub.run(), "scrubbing")
        self._spawn(self.transfers.parts.run(self.slave_id, self.master_call), "keeping leases")
        attempt = 0
        while not self._stopping:
            try:
                joined = await self._join(self._join_request())
                await self._joined(joined)
            except errors.NotAllowed:
                raise
            except errors.SectorError as error:
                if attempt in (0, 5) or attempt % 60 == 0:
                    log.warn("no master yet: {why}", why=error.message)
                await self._sleep(retry_delay(attempt, self._rng.random(), first_s=0.2, most_s=5.0))
                attempt += 1
                continue
            attempt = 0
            await self._session()
            self._link.peer = None
            if not self._stopping:
                await self._sleep(0.05 + 0.2 * self._rng.random())

    def _attach_sphere(self) -> None:
        if self._spawner is not None:
            importlib.import_module("sector.slave.spe").register_spe(self.rpc, self.context)

    def _join_request(self) -> Join:
        host, disk = self.config.advertised_host, self.disk
        gmp, data = Address(host, self.gmp.address[1]), Address(host, self.data.address[1])
        return Join(
            self.slave_id, self.gmp.instance, gmp, data, disk.root, os.getpid(), __version__, disk.device
        )

    async def _joined(self, joined: Joined) -> None:
        key = joined.key
        gmp_key = GmpKey(key.key_id, key.secret, key.principal, key.valid_s)
        self.gmp.add_key(gmp_key)
        host = await literal_host(self.clock, joined.gmp.host)
        old = self._link.peer
        self._link.begin(Peer(host, joined.gmp.port, key.key_id), gmp_key)
        if old is not None and old.key_id != key.key_id:
            self.gmp.remove_key(old.key_id)
        self.core.joined(joined.epoch)
        self.scrub.joined()
        self._beat_s = joined.heartbeat_s
        log.info("slave {slave} joined master {master}", slave=self.slave_id, master=joined.master_id)

    async def _session(self) -> None:
        """One time with the master: report, then heartbeats until it is silent or forgot us."""
        try:
            await self._beat()  # the master knows our free space before it sends writers
            await beating(self.clock, self._beat_s, self._beat, self._report())
        except errors.Conflict as error:  # it is told from time to time; what it has here may be read
            self._not_taken(error)
        except errors.SectorError as error:
            log.warn("the report did not reach the master: {why}", why=error.message)
            await self._link.detour.consider()
            await self._sleep(0.5 + 0.5 * self._rng.random())
            return
        else:
            self._taken()
        misses = 0
        while misses < _MISSES and not self._stopping:
            if not await self._sleep(self._beat_s):
                return
            try:
                wanted = (await self._beat()).want_report or self.tree.untold
                if wanted and not self._reporting and self.clock.seconds() >= self._report_at:
                    self._reporting = True
                    self._spawn(self._report_again(), "report")
                misses = 0
                self._link.look()
            except (errors.Unreachable, errors.TimedOut, errors.Busy) as error:
                misses += 1
                log.debug("heartbeat {count} was lost: {why}", count=misses, why=error.message)
                if await self._link.detour.consider():
                    misses = 0
            except errors.SectorError as error:
                log.warn("heartbeat was refused: {why}", why=error.message)
                return

    def _taken(self) -> None:
        """The master has heard what is here."""
        self._report_refused, self._report_at = 0, 0.0
        if not self.ready.called:
            self.ready.callback(None)
        self.transfers.master_is_back()
        for hook in self.context.on_join:
            hook()

    def _not_taken(self, error: errors.SectorError) -> None:
        """The master knows less than we do, and waits for its administrator: it is told again at times."""
        if self._report_refused == 0:
            log.warn("the master does not take the report: {why}; {hint}", why=error.message, hint=error.hint)
        pause_s = retry_delay(self._report_refused, self._rng.random(), first_s=1.0, most_s=30.0)
        self._report_refused += 1
        self._report_at = self.clock.seconds() + pause_s

    async def _beat(self) -> HeartbeatReply:
        free, used = await self._pulse.space()
        beat = Heartbeat(
            self.slave_id,
            free,
            used,
            len(self.disk.entries),
            len(self.core.open),
            self.disk.mirror.serial,
            os.getloadavg()[0],
            self.context.spes,
            self.context.spes_busy,
            self.state_counters(),
            packed(self.data.traffic()),
        )
        wait = max(2.0, 2 * self._beat_s)
        reply: HeartbeatReply = await self.master_call(fitting(beat), deadline_s=wait, control=True)
        self.core.epoch = max(self.core.epoch, reply.epoch)
        await self._refused.tell([*self.gmp.refused(), *self.data.refused()], self.master_call)
        await self.scrub.tell_state(self.master_call)
        return reply

    async def _report_again(self) -> None:
        untold, self.tree.untold = self.tree.untold, False
        try:
            await self._report()
            self._taken()
        except errors.Conflict as error:
            self.tree.untold |= untold
            self._not_taken(error)
        except errors.SectorError:
            self.tree.untold |= untold
            raise
        finally:
            self._reporting = False

    def _peer_event(self, event: PeerEvent) -> None:
        master = self._link.peer
        if master is None or (event.peer.host, event.peer.port) != (master.host, master.port):
            return
        if event.kind in ("key_unknown", "restarted"):
            log.info("the master does not know us any more: joining again", event=event.kind)
            self._wake()
        else:
            self._link.event(event.kind)

    async def master_call(self, request: Request, deadline_s: float = 10.0, control: bool = False) -> Any:
        """Ask the current master. Raises its SectorError, Unreachable, TimedOut."""
        if self._link.peer is None:
            raise errors.Unreachable(f"slave {self.slave_id} has no master at the moment")
        return await self.rpc.call(self._link.peer, request, deadline_s=deadline_s, control=control)

    def _spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        task = ensureDeferred(work)
        self._background.add(task)

        def ended(result: Any) -> None:
            self._background.discard(task)
            if isinstance(result, Failure) and not self._stopping:
                if result.check(errors.SectorError):
                    log.warn("{what}: {why}", what=what, why=str(result.value))
                elif not result.check(CancelledError):
                    log.failure("{what} failed", result, what=what)

        task.addBoth(ended)

    # -------------------------------------------------------------------------------------- reports
    async def _report(self) -> None:
        """The full catalogue in parts. The last part is made and sent while nothing is published, so that
        the master never misses content that came in between."""
        sent: set[tuple[str, Version]] = set()
        stones = list(self.disk.mirror.tombstones.values())
        folders = list(self.disk.mirror.directories.values())
        first, at = True, 0
        known = list(self.disk.entries.values())
        while max(len(known) - at, len(stones), len(folders)) > _REPORT_FILES:
            now = known[at : at + _REPORT_FILES]
            batch = [r for r in now if self.disk.entries.get(r.path) is r]  # not what changed meanwhile
            await self._send_part(first, False, batch, stones, folders)
            first, at = False, at + _REPORT_FILES
            sent.update((r.path, r.version) for r in batch)
            stones, folders = stones[_REPORT_FILES:], folders[_REPORT_FILES:]
        async with self.transfers.gate.alone():
            while len(batch := self._unsent(sent)) > _REPORT_FILES:
                await self._send_part(first, False, batch[:_REPORT_FILES], stones, folders)
                first, stones, folders = False, [], []
                sent.update((r.path, r.version) for r in batch[:_REPORT_FILES])
            await self._tell_gone([named for named in sent if not self._has(*named)])
            await self._send_part(first, True, batch, stones, folders)
            self.transfers.reported()

    def _has(self, path: str, version: Version) -> bool:
        record = self.disk.entries.get(path)
        return record is not None and record.version == version

    async def _tell_gone(self, gone: list[tuple[str, Version]]) -> None:
        """The master must not count what earlier parts of a report, or its own commands, named."""
        for at in range(0, len(gone), 1000):
            await self.master_call(Adopted(self.slave_id, [], gone[at : at + 1000]), deadline_s=30.0)

    def _unsent(self, sent: set[tuple[str, Version]]) -> list[Record]:
        return [r for r in list(self.disk.entries.values()) if (r.path, r.version) not in sent]

    async def _send_part(
        self, first: bool, last: bool, records: list[Record], stones: list[Tombstone], folders: list[Any]
    ) -> None:
        prepared: list[Prepared] = []
        if last:
            prepared = [
                Prepared(lease, record.meta) for lease, record in list(self.disk.prepared.items())[:5000]
            ]
        reply: ReportReply = await self.master_call(
            Report(
                self.slave_id,
                first,
                last,
                [record.meta for record in records],
                stones[:_REPORT_FILES],
                folders[:_REPORT_FILES],
                prepared,
                self.disk.mirror.serial,
            ),
            deadline_s=60.0,
        )
        for path, version in reply.drop:
            try:
                await self.transfers.drop(path, version)
            except errors.SectorError as error:  # the others, and the rest of the report, do not wait for it
                log.warn("{path} cannot be set aside: {why}", path=path, why=error.message)
        for path, version in reply.doubted:
            self.transfers.doubts.add(path, version)
        self.transfers.resume(reply.publish, reply.discard)
        self.tree.tell_warnings()

    # ------------------------------------------------------------------------------------- commands
    def check_master(self, caller: Caller, request: Request) -> None:
        """Raises Denied unless `caller` is a master, Conflict if the request's epoch is old."""
        if not caller.principal.startswith("master:"):
            raise errors.Denied(
                f"slave {self.slave_id} takes {type(request).__name__} from masters only", hint=""
            )
        self.core.command(int(getattr(request, "epoch", self.core.epoch)))

    def _serve(self) -> None:
        serve = self.rpc.serve
        serve(PrepareRead, self._prepare_read)
        serve(PrepareWrite, self._prepare)
        serve(PrepareReplica, self._prepare)
        serve(Copy, self._copy)
        serve(Delete, self._delete)
        serve(RenameFiles, self._rename)
        serve(Mirror, self._mirror)
        serve(Revoke, self._revoke)
        serve(Verify, self._verify)
        serve(Scrub, self._scrub)

    async def _prepare_read(self, request: PrepareRead, caller: Caller) -> Ok:
        self.check_master(caller, request)
        await self.transfers.send("read", request.ticket, None, request.principal)
        return Ok()

    async def _prepare(self, request: PrepareWrite | PrepareReplica, caller: Caller) -> Ready:
        self.check_master(caller, request)
        return Ready(await self.transfers.receive(request))

    async def _copy(self, request: Copy, caller: Caller) -> Ok:
        self.check_master(caller, request)
        host = await literal_host(self.clock, request.target.host)
        await self.transfers.send("copy", request.ticket, (host, request.target.port))
        return Ok()

    async def _delete(self, request: Delete, caller: Caller) -> Ok:
        self.check_master(caller, request)
        await self.transfers.settled([stone.path for stone in request.tombstones])
        async with self.transfers.gate.shared():
            full = False
            if not request.surplus:
                try:
                    await self.pool.run(self.disk.bury_thd, request.tombstones)
                except errors.NoSpace:  # the room for them comes from what is removed
                    full = True
            for stone in request.tombstones:
                await self.pool.run(self.disk.delete_thd, stone.path, stone.version)
            if full:
                await self.pool.run(self.disk.bury_thd, request.tombstones)
        return Ok()

    async def _rename(self, request: RenameFiles, caller: Caller) -> Ok:
        self.check_master(caller, request)
        await self.transfers.settled([item.source for item in request.renames])
        async with self.transfers.gate.shared():
            gone = []
            for item in request.renames:
                if not await self.pool.run(self.disk.rename_thd, item.source, item.old, item.meta):
                    gone.append((item.meta.path, item.meta.version))
            stones = [Tombstone(item.source, item.old, request.at) for item in request.renames]
            await self.pool.run(self.disk.bury_thd, stones)
        if gone:
            self._spawn(self._tell_gone(gone), "telling of files that are gone")
        return Ok()

    async def _mirror(self, request: Mirror, caller: Caller) -> Ok:
        self.check_master(caller, request)
        part = Part(
            request.reset,
            request.serial if request.last else 0,
            request.tombstones,
            request.directories,
            request.removed_directories,
            request.rights,
        )
        await self.pool.run(self.disk.mirror_thd, part, last=request.last, now=self._now())
        return Ok()

    def _revoke(self, request: Revoke, caller: Caller) -> Ok:
        self.check_master(caller, request)
        self.transfers.revoke(request.principals)
        return Ok()

    def _verify(self, request: Verify, caller: Caller) -> Ok:
        self.check_master(caller, request)
        self.transfers.doubts.asked(request.path, request.version)
        return Ok()

    def _scrub(self, request: Scrub, caller: Caller) -> ScrubReply:
        self.check_master(caller, request)
        return self.scrub.answer(request.start)

    def state_counters(self) -> dict[str, int]:
        """What `sector status` shows of each slave (design section 9); few, since heartbeats are small."""
        messages, data = self.gmp.counters(), self.data.counters()
        return {
            "associations": messages.get("assoc", 0),
            "connections": messages.get("sockets", 0) + data.get("sockets", 0),
            "half_open": messages.get("half_open", 0) + data.get("half_open", 0),
            "tasks": len(self.core.open),
        }

    def counters(self) -> dict[str, int]:
        """State counters of this process (design section 9)."""
        return {**self.core.counters(), **self.data.counters(), "files": len(self.disk.entries)}
