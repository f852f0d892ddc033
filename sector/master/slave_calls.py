"""What slaves ask of the master: heartbeats, reports, publishing, outcomes of copies (wire/slave.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from twisted.logger import Logger

from sector._udt.traffic import unpacked
from sector.errors import Conflict, Denied, Protocol, SectorError
from sector.master import namespace, reconcile
from sector.master.core import CopyEnded, ReportEnded, SlaveBeat
from sector.master.errands import Errands
from sector.master.hub import REBUILD_NEEDED, REBUILDING, RUNNING, Hub, new_id
from sector.master.membership import Load, Node
from sector.master.namespace import WriteRequest
from sector.master.sessions import View
from sector.master.store import SqlTx
from sector.model import SliceMeta, check_path
from sector.rpc import Caller
from sector.wire import slave
from sector.wire.base import Ok
from sector.wire.sphere import BETWEEN_SLAVES

log = Logger()
REPORT_PAUSE_S = 30.0
FAILED_PAUSE_S = 300.0
HELD_PAUSE_S = 300.0
CONTESTED_TOLD = 20
"""Lines of the audit log about one part of a report."""
WHY_MAX = 500


@dataclass(slots=True)
class _Report:
    """A full report on its way: `started` in seconds since 1970, `touched` on the monotonic clock."""

    number: int
    started: float
    instance: int
    touched: float
    adopted: int = 0
    dropped: int = 0
    held: bool = False
    again: bool = False


class SlaveCalls:
    """Serves the slaves' side of wire/slave.py."""

    def __init__(self, hub: Hub, errands: Errands, on_reported: Callable[[str, int], None]) -> None:
        """`on_reported(slave, mirror serial)` hears of complete reports."""
        self._hub = hub
        self._errands = errands
        self._on_reported = on_reported
        self._reports: dict[str, _Report] = {}
        self._asked: dict[str, float] = {}
        self._held: dict[str, float] = {}
        """When slaves are to report again what had to wait for somebody who was writing."""
        serve = hub.rpc.serve
        serve(slave.Heartbeat, self.heartbeat)
        serve(slave.Refused, self.refused)
        serve(slave.Forward, self.forward)
        serve(slave.Report, self.report)
        serve(slave.Publish, self.publish)
        serve(slave.LeasesAlive, self.leases_alive)
        serve(slave.Replicated, self.replicated)
        serve(slave.Adopted, self.adopted)
        serve(slave.LocalPublish, self.local_publish)
        serve(slave.LocalDrop, self.local_drop)

    def heartbeat(self, request: slave.Heartbeat, caller: Caller) -> slave.HeartbeatReply:
        """A sign of life with the slave's load."""
        node = self._hub.slave(caller, request.slave_id)
        load = Load(
            request.free_bytes,
            request.used_bytes,
            request.files,
            request.transfers,
            request.mirror_serial,
            request.load,
            request.spes,
            request.spes_busy,
            {**request.counters, **unpacked(request.traffic)},
        )
        self._remembers_more(node.id, request.mirror_serial)
        self._hub.feed(SlaveBeat(node.id, load))
        if self._hub.state == RUNNING:
            self._errands.heard(node.id, request.mirror_serial)
        if self._held.get(node.id, math.inf) <= self._hub.clock.seconds():
            del self._held[node.id]
            node.want_report = True
        running = self._reports.get(node.id)
        stuck = (
            running is None
            or running.instance != node.instance
            or (self._hub.clock.seconds() - running.touched > REPORT_PAUSE_S)
        )
        wanted = node.want_report and stuck
        return slave.HeartbeatReply(self._hub.epoch, wanted)

    def refused(self, request: slave.Refused, caller: Caller) -> Ok:
        """What a slave's ports refused: counters, and lines for the audit log."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.refused[node.id] = request.counts
        for line in request.lines:
            self._hub.audit(f"slave:{node.id}", "refused", line)
        return Ok()

    async def forward(self, request: slave.Forward, caller: Caller) -> slave.ForwardReply:
        """A slave asks another one that gives it no answer over UDP; that one checks what may be asked."""
        node = self._hub.slave(caller, request.slave_id)
        if request.method not in BETWEEN_SLAVES:
            raise Denied(f"slaves do not ask one another for {request.method:#x}", hint="")
        command = slave.Forwarded(self._hub.epoch, node.id, request.method, request.body)
        reply: slave.ForwardReply = await self._hub.call_slave(request.node, command, caller.budget_s)
        return reply

    # reports --------------------------------------------------------------------------------------------
    async def report(self, request: slave.Report, caller: Caller) -> slave.ReportReply:
        """One part of a full report."""
        node = self._hub.slave(caller, request.slave_id)
        rebuild = self._hub.state == REBUILDING or node.id in self._hub.awaited
        if self._remembers_more(node.id, request.mirror_serial):
            raise Conflict(
                f"slave {node.id} remembers more than the master's database",
                hint="the database was lost or is an old copy: start the master with --rebuild",
            )
        if request.first:
            number = await self._hub.store.write(lambda tx: tx.draw().counter)
            self._reports[node.id] = _Report(
                number, self._hub.wall(), node.instance, self._hub.clock.seconds()
            )
        current = self._reports.get(node.id)
        if current is None or current.instance != node.instance:
            node.want_report = True
            raise Protocol("a part of a report without its beginning", hint="report from the start")
        reply = await self._part(request, current, rebuild)
        if request.last:
            await self._end(request, current)
        return reply

    def _remembers_more(self, slave_id: str, mirror_serial: int) -> bool:
        """Whether a slave knows of changes that this database never held; then all writing ends."""
        if self._hub.state == REBUILDING or self._hub.knows_all(slave_id, mirror_serial):
            return False
        if self._hub.state != REBUILD_NEEDED:
            log.error(
                "slave {slave_id} remembers more than this database; start with --rebuild", slave_id=slave_id
            )
            self._hub.state = REBUILD_NEEDED
        return True

    async def _part(self, request: slave.Report, current: _Report, rebuild: bool) -> slave.ReportReply:
        node_id, number, now = request.slave_id, current.number, self._hub.wall()
        beside = rebuild and self._hub.state != REBUILDING

        def merge(tx: SqlTx) -> tuple[slave.ReportReply, reconcile.Merged, int]:
            if beside:
                reconcile.outrun(tx, chain(request.files, request.tombstones, request.directories))
            reconcile.merge_tombstones(tx, request.tombstones, rebuild, now)
            if rebuild:
                for directory in request.directories:
                    reconcile.merge_directory(tx, directory, now)
            merged = reconcile.merge_part(tx, node_id, number, request.files, now, rebuild, self._here)
            verdicts = (
                {}
                if rebuild
                else {
                    p.lease: reconcile.judge_prepared(tx, node_id, number, p.lease, p.meta, now)
                    for p in request.prepared
                }
            )
            publish = [lease for lease, verdict in verdicts.items() if verdict == "publish"]
            discard = [lease for lease, verdict in verdicts.items() if verdict == "discard"]
            reply = slave.ReportReply(merged.drop, publish, discard, merged.doubted)
            return reply, merged, tx.mirror_serial()

        reply, merged, serial = await self._hub.store.write(merge)
        current.touched = self._hub.clock.seconds()
        current.adopted += merged.adopted
        current.dropped += len(reply.drop)
        current.held |= merged.held
        self._hub.serial = max(self._hub.serial, serial)
        if not rebuild:
            self._hub.look(*merged.look)
        self._tell_contested(node_id, merged.contested)
        return reply

    def _here(self, node_id: str) -> bool:
        return self._hub.core.replicator.here(node_id, self._hub.clock.seconds())

    def _tell_contested(self, node_id: str, claims: Sequence[SliceMeta]) -> None:
        """One slave says that it has newer content than the namespace and those that hold the file."""
        for meta in claims[:CONTESTED_TOLD]:
            said = f"{meta.path} version {meta.version.epoch}.{meta.version.counter}, which only it knows"
            log.warn("slave {slave_id} says it has {what}: not taken", slave_id=node_id, what=said)
            self._hub.audit(
                f"slave:{node_id}", "newer content", f"{said}: not taken ({len(claims)} such files)"
            )

    async def _end(self, request: slave.Report, current: _Report) -> None:
        node_id = request.slave_id

        def finish(tx: SqlTx) -> tuple[int, int]:
            tx.has_come(node_id)
            return reconcile.finish_report(tx, node_id, current.number, current.started), tx.drawn()

        gone, drawn = await self._hub.store.write(finish)
        if self._reports.get(node_id) is current:
            del self._reports[node_id]
        log.info(
            "slave {slave_id} reported: {adopted} files adopted, {dropped} to drop, {gone} gone",
            slave_id=node_id,
            adopted=current.adopted,
            dropped=current.dropped,
            gone=gone,
        )
        early = current.number <= self._hub.core.members.get(node_id).report_from
        self._hub.feed(ReportEnded(node_id, early))
        if current.again:
            self._hub.core.members.get(node_id).want_report = True
        if current.held:
            self._held[node_id] = self._hub.clock.seconds() + HELD_PAUSE_S
        if node_id in self._hub.awaited:
            self._hub.has_come(node_id, drawn)
            self._errands.poke(node_id)
        self._on_reported(node_id, request.mirror_serial)

    def _ask_report(self, node: Node, pause_s: float) -> None:
        """The master's picture of the slave may be wrong: a full report, but not too often; a new one even if
        one runs, which has told of some files already."""
        asked = self._asked.get(node.id, float("-inf"))
        if self._hub.clock.seconds() - asked > pause_s:
            self._asked[node.id] = self._hub.clock.seconds()
            node.want_report = True
            running = self._reports.get(node.id)
            if running is not None:
                running.again = True

    # content ----------------------------------------------------------------------------------------------
    async def publish(self, request: slave.Publish, caller: Caller) -> slave.Published:
        """The commit of a write; repeating it gives the same answer."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.check_writable()
        version = await self._hub.store.write(
            lambda tx: namespace.publish(tx, node.id, request.lease, request.meta, self._hub.wall())
        )
        self._hub.context.job_leases.pop(request.lease, None)
        self._hub.look(request.meta.path)
        return slave.Published(version)

    async def leases_alive(self, request: slave.LeasesAlive, caller: Caller) -> Ok:
        """Writers are at work on the slave."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.check_writable()
        until = self._hub.wall() + self._hub.config.master.lease_s
        await self._hub.store.write(lambda tx: namespace.keep_at_work(tx, node.id, request.leases, until))
        return Ok()

    async def replicated(self, request: slave.Replicated, caller: Caller) -> Ok:
        """The end of a copy at its target."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.check_writable()
        task = self._hub.core.replicator.tasks.get(request.task)
        if task is not None and task.target != node.id:
            raise Denied("this copy is for another slave", hint="")
        if request.error:
            log.info(
                "copy of {path} to {node} failed: {error}",
                path=request.path,
                node=node.id,
                error=request.error,
            )
            self._ask_report(node, FAILED_PAUSE_S)
            self._hub.feed(CopyEnded(request.task, request.error, not request.kept, request.kept))
            return Ok()
        path = check_path(request.path)
        await self._hub.store.write(
            lambda tx: namespace.replica_arrived(tx, node.id, path, request.version, self._hub.wall())
        )
        self._errands.poke(node.id)  # an outdated copy may have to go
        self._hub.feed(CopyEnded(request.task))
        if task is None:  # it was given up, and may be one too many
            self._hub.look(path)
        return Ok()

    async def adopted(self, request: slave.Adopted, caller: Caller) -> Ok:
        """What a scan of the slave's directory found."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.check_writable()
        now = self._hub.wall()

        def run(tx: SqlTx) -> tuple[list[bool], list[reconcile.Verdict], int]:
            for path, version in request.gone:
                namespace.replica_gone(tx, node.id, path, version)
            news = [namespace.replica_bad(tx, node.id, path, version) for path, version in request.damaged]
            verdicts = [reconcile.adopt_found(tx, node.id, meta, now, self._here) for meta in request.found]
            return news, verdicts, tx.mirror_serial()

        news, verdicts, serial = await self._hub.store.write(run)
        told = zip_longest(request.damaged, request.why[: len(request.damaged)])
        for new, ((path, version), why) in zip(news, told, strict=True):
            if not new:  # it did not count anyway, or was said before
                continue
            line = f"{path} version {version.epoch}.{version.counter}: {(why or 'damaged')[:WHY_MAX]}"
            log.warn("slave {slave_id} has a bad replica: {line}", slave_id=node.id, line=line)
            self._hub.audit(f"slave:{node.id}", "bad replica", line)
        if serial > self._hub.serial:
            self._hub.serial = serial
            self._errands.poke_all()
        pairs = list(zip(request.found, verdicts, strict=True))
        self._tell_contested(node.id, [meta for meta, said in pairs if said == reconcile.Verdict.CONTESTED])
        if reconcile.Verdict.HELD in verdicts:
            self._held.setdefault(node.id, self._hub.clock.seconds() + HELD_PAUSE_S)
        if not all(verdict.keep for verdict in verdicts):
            self._ask_report(node, REPORT_PAUSE_S)
        paths = [meta.path for meta in request.found]
        self._hub.look(*paths, *(path for path, _ in (*request.gone, *request.damaged)))
        return Ok()

    # files that jobs wrote --------------------------------------------------------------------------------
    def _writer(self, principal: str, slave_id: str, path: str) -> View:
        """Who stands behind a principal. A session is never one: a slave hears those of its readers, and must
        not act as a user (spec/security.md)."""
        resolver = self._hub.context.resolvers.get(principal.partition(":")[0])
        if resolver is None:
            raise Denied(f"slave {slave_id} may not write for {principal}", hint="")
        return resolver(principal, slave_id, path)

    async def local_publish(self, request: slave.LocalPublish, caller: Caller) -> slave.LocalGrant:
        """A lease for a file that the slave itself has made for a job."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.check_writable()
        path = check_path(request.path)
        view = self._writer(request.principal, node.id, path)
        if not view.may(path, "w"):
            raise Denied(f"user {view.user} may not change {path}")
        lease_s = self._hub.config.master.lease_s
        want = WriteRequest(
            path,
            request.size,
            view.user,
            node.id,
            new_id(),
            lease_s,
            request.create,
            parents=request.parents,
            mode=request.mode,
        )

        def run(tx: SqlTx) -> tuple[namespace.Lease, int]:
            return namespace.open_write(tx, want, self._hub.wall()), tx.mirror_serial()

        lease, serial = await self._hub.store.write(run)
        if serial > self._hub.serial:
            self._hub.serial = serial
            self._errands.poke_all()
        leases = self._hub.context.job_leases
        leases[lease.id] = (request.principal, path)
        try:
            self._writer(request.principal, node.id, path)  # the job may have ended meanwhile
            await self._errands.ensure_renamed(node.id, path)
        except SectorError:
            leases.pop(lease.id, None)
            await self._hub.store.write(lambda tx: namespace.end_lease(tx, path, lease.id, view.user))
            raise
        return slave.LocalGrant(lease.id, lease_s, lease.version)

    async def local_drop(self, request: slave.LocalDrop, caller: Caller) -> Ok:
        """The slave gives such a lease up."""
        node = self._hub.slave(caller, request.slave_id)

        def run(tx: SqlTx) -> None:
            lease = tx.lease(request.lease)
            if lease is not None and lease.node == node.id and lease.path == request.path:
                namespace.end_lease(tx, lease.path, lease.id, lease.user)

        await self._hub.store.write(run)
        self._hub.context.job_leases.pop(request.lease, None)
        return Ok()
