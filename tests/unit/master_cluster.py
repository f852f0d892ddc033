"""A master over the in-process network with scripted slaves and clients, on a clock that tests advance."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from sector import errors
from sector.config import Config, Listen, MasterSection
from sector.gmp.api import GmpKey, Peer
from sector.gmp.memory import MemoryGmp, MemoryHub
from sector.master.service import MasterService
from sector.master.sessions import Sessions
from sector.master.store import SqlStore
from sector.model import Address, Right, SliceMeta, Tombstone, Version
from sector.rpc import Caller, RpcNode
from sector.wire import files
from sector.wire import slave as wire
from sector.wire.base import Ok
from sector.wire.login import Join, Verified

START = 1_700_000_000.0
GIB = 1 << 30


@dataclass
class Prepared:
    """A write that a scripted slave expects, or has complete and unpublished."""

    lease: bytes
    meta: SliceMeta


@dataclass
class Script:
    """What a slave is told to do: exceptions by request class, one each; `mute` = answers nothing."""

    fail: dict[type, list[Exception]] = field(default_factory=dict)
    mute: set[type] = field(default_factory=set)


class ScriptedSlave:
    """Keeps metadata instead of files, as a real slave would; copies finish when `copy_s` has passed."""

    def __init__(self, cluster: Cluster, slave_id: str, host: str) -> None:
        self.cluster = cluster
        self.id = slave_id
        self.host = host
        self.files: dict[str, SliceMeta] = {}
        self.tombstones: dict[str, Tombstone] = {}
        self.directories: dict[str, SliceMeta] = {}
        self.rights: dict[tuple[str, str], str] = {}
        self.mirror_serial = 0
        self.expected: dict[str, Prepared] = {}
        self.prepared: dict[bytes, Prepared] = {}
        self.incoming: dict[bytes, SliceMeta] = {}
        self.log: list[Any] = []
        self.script = Script()
        self.copy_s = 0.05
        self.free = 100 * GIB
        self.alive = False
        self.epoch = 0
        self.attic: list[tuple[str, Version]] = []
        self.damaged: set[str] = set()
        self._reporting = False

    # life ---------------------------------------------------------------------------------------------
    def start(self) -> None:
        """A new instance joins the master."""
        self.gmp: MemoryGmp = self.cluster.hub.endpoint(self.host)
        self.rpc = RpcNode(self.gmp)
        for cls, handler in (
            (wire.PrepareRead, self.prepare_read),
            (wire.PrepareWrite, self.prepare_write),
            (wire.PrepareReplica, self.prepare_replica),
            (wire.Copy, self.copy),
            (wire.Delete, self.delete),
            (wire.RenameFiles, self.rename),
            (wire.Mirror, self.mirror),
            (wire.Revoke, lambda request: Ok()),
            (wire.Verify, self.verify),
        ):
            self.rpc.serve(cls, self._scripted(cls, handler))
        self.alive = True
        self.expected.clear()
        self.incoming.clear()
        self.join()
        self._beat()

    def join(self) -> None:
        """Join over (what stands for) TLS."""
        join = Join(
            self.id,
            self.gmp.instance,
            Address(self.host, self.gmp.address[1]),
            Address(self.host, self.gmp.address[1] + 1),
            f"/data/{self.id}",
            1,
            "1",
        )
        joined = self.cluster.run(ensureDeferred(self.cluster.master.on_join(join, self.host)))
        self.epoch = joined.epoch
        self.gmp.add_key(GmpKey(joined.key.key_id, joined.key.secret, joined.key.principal))
        self.peer = Peer(joined.gmp.host, joined.gmp.port, joined.key.key_id)

    def stop(self) -> None:
        """Gone, as after a power cut; files stay."""
        self.alive = False
        self.gmp.stop()

    def call(self, request: Any) -> Deferred[Any]:
        """A request to the master."""
        return self.rpc.call(self.peer, request, deadline_s=5.0)

    def _beat(self) -> None:
        if not self.alive:
            return
        beat = wire.Heartbeat(
            self.id, self.free, 0, len(self.files), 0, self.mirror_serial, 0.0, 2, 0, {"sockets": 7}
        )
        self.call(beat).addCallbacks(self._beaten, self._unheard)
        self.cluster.clock.callLater(1.0, self._beat)

    def _unheard(self, failure: Failure) -> None:
        failure.trap(errors.SectorError)

    def _beaten(self, reply: wire.HeartbeatReply) -> None:
        self.epoch = max(self.epoch, reply.epoch)
        if reply.want_report and not self._reporting:
            self._reporting = True
            ensureDeferred(self.report()).addErrback(self._unheard)

    async def report(self) -> None:
        """The whole catalogue in parts of two files."""
        try:
            metas = list(self.files.values())
            parts = [metas[i : i + 2] for i in range(0, len(metas), 2)] or [[]]
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                reply = await self.call(
                    wire.Report(
                        self.id,
                        index == 0,
                        last,
                        part,
                        list(self.tombstones.values()) if last else [],
                        list(self.directories.values()) if last else [],
                        [wire.Prepared(p.lease, p.meta) for p in self.prepared.values()] if last else [],
                        self.mirror_serial,
                    )
                )
                self._obey(reply)
        finally:
            self._reporting = False

    def _obey(self, reply: wire.ReportReply) -> None:
        for path, version in reply.drop:
            if path in self.files and self.files[path].version == version:
                del self.files[path]
                self.attic.append((path, version))
        for lease in reply.publish:
            self.take(self.prepared.pop(lease).meta)
        for lease in reply.discard:
            del self.prepared[lease]

    # commands -----------------------------------------------------------------------------------------
    def _scripted(self, cls: type, handler: Callable[[Any], Any]) -> Callable[[Any, Caller], Any]:
        def serve(request: Any, caller: Caller) -> Any:
            assert caller.principal == f"master:{self.cluster.config.master.id}"
            self.log.append(request)
            if cls in self.script.mute:
                return Deferred()
            if self.script.fail.get(cls):
                raise self.script.fail[cls].pop(0)
            if request.epoch < self.epoch:
                raise errors.Conflict("an old epoch")
            self.epoch = request.epoch
            return handler(request)

        return serve

    def buried(self, meta: SliceMeta) -> bool:
        """Whether content is not newer than its tombstone."""
        dead = self.tombstones.get(meta.path)
        return dead is not None and meta.version <= dead.version

    def take(self, meta: SliceMeta) -> None:
        """The content is published here, if nothing newer is."""
        known = self.files.get(meta.path)
        if self.buried(meta) or (known is not None and known.version >= meta.version):
            raise errors.Conflict("newer content is here")
        self.files[meta.path] = meta

    def prepare_read(self, request: wire.PrepareRead) -> Ok:
        known = self.files.get(request.ticket.path)
        if known is None or known.version != request.ticket.version:
            raise errors.NotFound("not here")
        return Ok()

    def prepare_write(self, request: wire.PrepareWrite) -> Ok:
        if request.meta.size > self.free:
            raise errors.NoSpace("full")
        self.expected[request.ticket.path] = Prepared(request.lease, request.meta)
        return Ok()

    def prepare_replica(self, request: wire.PrepareReplica) -> Ok:
        self.incoming[request.task] = request.meta
        return Ok()

    def copy(self, request: wire.Copy) -> Ok:
        known = self.files.get(request.ticket.path)
        if known is None or known.version != request.ticket.version:
            raise errors.NotFound("not here")
        target = next(s for s in self.cluster.slaves.values() if s.incoming.get(request.task) is not None)
        self.cluster.clock.callLater(self.copy_s, target.arrived, request.task)
        return Ok()

    def arrived(self, task: bytes) -> None:
        """A copy is complete here."""
        meta = self.incoming.pop(task, None)
        if meta is None or not self.alive:
            return
        error = ""
        try:
            self.take(meta)
        except errors.Conflict as bad:
            error = bad.message
        done = self.call(wire.Replicated(self.id, task, meta.path, meta.version, error))
        done.addErrback(self._unheard)

    def delete(self, request: wire.Delete) -> Ok:
        for dead in request.tombstones:
            known = self.files.get(dead.path)
            if known is not None and known.version <= dead.version:
                del self.files[dead.path]
            if not request.surplus:
                self.bury(dead)
        return Ok()

    def bury(self, dead: Tombstone) -> None:
        """Keep the newest tombstone."""
        known = self.tombstones.get(dead.path)
        if known is None or known.version < dead.version:
            self.tombstones[dead.path] = dead

    def verify(self, request: wire.Verify) -> Ok:
        known = self.files.get(request.path)
        if known is None or known.version != request.version:
            raise errors.NotFound("not here")
        if request.path in self.damaged:
            self.damaged.remove(request.path)
            del self.files[request.path]
            told = wire.Adopted(self.id, damaged=[(request.path, request.version)])
            self.call(told).addErrback(self._unheard)
        return Ok()

    def rename(self, request: wire.RenameFiles) -> Ok:
        for move in request.renames:
            known = self.files.get(move.source)
            if known is not None and known.version == move.old:
                del self.files[move.source]
                self.files[move.meta.path] = move.meta
            self.bury(Tombstone(move.source, move.old, request.at))
        return Ok()

    def mirror(self, request: wire.Mirror) -> Ok:
        if request.reset:
            self.directories.clear()
            self.rights.clear()
        for dead in request.tombstones:
            self.bury(dead)
            known = self.files.get(dead.path)
            if known is not None and known.version <= dead.version:
                del self.files[dead.path]
                self.attic.append((dead.path, known.version))
        for directory in request.directories:
            self.directories[directory.path] = directory
        for path in request.removed_directories:
            self.directories.pop(path, None)
        for right in request.rights:
            self.rights[right.user, right.path] = right.what
        if request.last:
            self.mirror_serial = request.serial
        return Ok()

    # a client's data --------------------------------------------------------------------------------------
    def receive(self, path: str, digest: str = "d") -> Deferred[Any]:
        """All data of an expected write has arrived: prepared, then published."""
        expected = self.expected.pop(path)
        meta = msgspec.structs.replace(expected.meta, digest=digest)
        self.prepared[expected.lease] = Prepared(expected.lease, meta)
        return self.publish(expected.lease)

    def publish(self, lease: bytes) -> Deferred[Any]:
        """Ask the master to publish what is prepared; then it is visible here."""
        meta = self.prepared[lease].meta

        def done(reply: wire.Published) -> wire.Published:
            if self.prepared.pop(lease, None) is not None:
                self.take(meta)
            return reply

        return self.call(wire.Publish(self.id, lease, meta)).addCallback(done)


class Cluster:
    """One master, any slaves, one clock."""

    def __init__(self, folder: Path, *, hosts: int = 0, slaves: int = 3, **settings: Any) -> None:
        """`hosts` different addresses for the slaves (0 = one each)."""
        self.folder = folder
        self.clock = Clock()
        self.hub = MemoryHub(self.clock)
        self.config = Config(
            listen=Listen(host="127.0.0.1"), master=MasterSection(id="m1", **settings), role="master"
        )
        self.audit: list[tuple[str, str, str]] = []
        self.slaves: dict[str, ScriptedSlave] = {}
        self.key = b"k" * 32
        self.generation = 0
        self.start_master()
        for index in range(slaves):
            host = f"10.0.0.{(index % hosts if hosts else index) + 1}"
            self.slaves[f"s{index + 1}"] = ScriptedSlave(self, f"s{index + 1}", host)
        for slave in self.slaves.values():
            slave.start()

    def wall(self) -> float:
        """Seconds since 1970."""
        return START + self.clock.seconds()

    def start_master(self, **options: Any) -> None:
        """A new master process on the same database; options go to MasterService."""
        self.generation += 1
        self.gmp = self.hub.endpoint("127.0.0.1")
        self.store = SqlStore(self.folder / "master.db")
        self.store.open()
        self.sessions = Sessions("m1", self.key, self.wall, os.urandom, 1, 43200.0)
        loaded: list[Any] = []
        self.store.session_all().addCallback(loaded.extend)
        self.sessions.load(loaded)
        for row in self.sessions.rows():
            self.gmp.add_key(self.sessions.gmp_key(row))
        self.master = MasterService(
            self.config,
            self.clock,
            self.gmp,
            self.store,
            self.sessions,
            wall=self.wall,
            audit=lambda *line: self.audit.append(line),
            **options,
        )
        self.master.startService()
        self.run(self.master.ready)

    def kill_master(self) -> None:
        """The process dies: no clean stop, the port is gone, the database as committed."""
        self.gmp.stop()
        for loop in self.master._loops:
            loop.stop()
        self.master.errands.stop()
        self.store.close()

    def restart(self, **options: Any) -> None:
        """Kill the master, start it again; slaves join anew."""
        self.kill_master()
        self.start_master(**options)
        for slave in self.slaves.values():
            if slave.alive:
                slave.join()

    def close(self) -> None:
        """End all; checks the invariants."""
        self.master.hub.core.check_invariants()
        self.run(self.master.stopService())
        for slave in self.slaves.values():
            slave.alive = False

    def client(
        self, name: str = "alice", rights: str = "rwx", path: str = "/", roles: tuple[str, ...] = ()
    ) -> Client:
        """A logged-in client."""
        verified = Verified(name, list(roles), [Right(name, path, rights)], 1)
        row, _ = self.sessions.create(verified, "10.0.9.9/32")
        self.store.session_add(row)
        self.gmp.add_key(self.sessions.gmp_key(row))
        return Client(self, row)

    # time -------------------------------------------------------------------------------------------------
    def run(self, waiting: Deferred[Any], limit_s: float = 60.0) -> Any:
        """Advance the clock until the Deferred fires; its result, or raises."""
        out: list[Any] = []
        waiting.addBoth(out.append)
        end = self.clock.seconds() + limit_s
        while not out:
            if self.clock.seconds() > end:
                raise AssertionError(f"nothing within {limit_s} s")
            self.clock.advance(0.01)
        if isinstance(out[0], Failure):
            out[0].raiseException()
        return out[0]

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(0.05)

    def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Let time pass until the condition holds."""
        end = self.clock.seconds() + limit_s
        while not condition():
            if self.clock.seconds() > end:
                raise AssertionError(f"condition not reached within {limit_s} s")
            self.clock.advance(0.05)
            self.master.hub.core.check_invariants()

    def holders(self, path: str) -> dict[str, Version]:
        """Which slaves really have the path, at which version."""
        return {s.id: s.files[path].version for s in self.slaves.values() if path in s.files and s.alive}


class Client:
    """Requests of one session."""

    def __init__(self, cluster: Cluster, row: Any) -> None:
        self.cluster = cluster
        self.row = row
        self.gmp = cluster.hub.endpoint("10.0.9.9")
        self.rpc = RpcNode(self.gmp)
        self.gmp.add_key(replace(cluster.sessions.gmp_key(row), principal="master:m1"))

    def call(self, request: Any, deadline_s: float = 30.0) -> Deferred[Any]:
        """A request without waiting."""
        host, port = self.cluster.gmp.address
        return self.rpc.call(Peer(host, port, self.row.key_id), request, deadline_s=deadline_s)

    def ask(self, request: Any) -> Any:
        """A request and its reply, or the error."""
        return self.cluster.run(self.call(request))

    def put(self, path: str, size: int = 10, digest: str = "d", **options: Any) -> Version:
        """Write a file: open, data to the slave, publish."""
        grant = self.ask(files.OpenWrite(path, size, **options))
        return self.cluster.run(self.cluster.slaves[grant.node].receive(path, digest)).version
