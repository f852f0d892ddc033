"""The running master: its parts, their start and end, joins, status (design sections 2 and 5).

The master without TLS and the security server, which `whole.py` adds, and as tests use it: slaves come in
through `on_join`, users through the session table.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, gatherResults, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector import __version__
from sector._udt.traffic import NAMES as TRAFFIC
from sector.clock import Steps
from sector.config import Config
from sector.errors import BadConfig, Busy, Conflict, SectorError
from sector.gmp.api import Gmp, GmpKey, PeerEvent
from sector.master import core, namespace
from sector.master.client_calls import ClientCalls
from sector.master.context import AuditLine, MasterContext
from sector.master.copier import Copier
from sector.master.core import PAGE, Effect, Tick
from sector.master.errands import Errands
from sector.master.hub import REBUILDING, RUNNING, STARTING, Hub
from sector.master.membership import LOST, UP, Node
from sector.master.rebuild import AllowList, Rebuild
from sector.master.rebuild import begin as begin_rebuild
from sector.master.replication import CopyRules, DropCopy, parse_rules
from sector.master.revocation import Revocation
from sector.master.scrubs import Scrubs, scrub_counters
from sector.master.sessions import Sessions, principal_of
from sector.master.slave_calls import SlaveCalls
from sector.master.store import SqlTx, Store
from sector.master.topology import Topology
from sector.master.turns import every
from sector.model import Address, Key, Right
from sector.refusals import NAMES
from sector.rpc import Caller
from sector.wire import admin, login
from sector.wire.slave import ScrubState

log = Logger()
TICK_S = 0.5
LEASES_S = 5.0
RULES_S = 2.0
SUMS_S = 1.0
REBUILD_WAIT_S = 60.0


def no_audit(who: str, what: str, detail: str) -> None:
    """Where no security server is: the line goes to the log."""
    log.info("audit: {who} {what} {detail}", who=who, what=what, detail=detail)


async def nobody() -> list[str]:
    """An allow-list that is empty: a rebuild then lasts as long as it may wait, and nobody is awaited."""
    return []


class MasterService(MultiService):
    """Serves slaves and clients over GMP. `ready` fires when it does, or errbacks with what hinders it."""

    def __init__(
        self,
        config: Config,
        reactor: Any,
        gmp: Gmp,
        store: Store,
        sessions: Sessions,
        *,
        wall: Callable[[], float] = time.time,
        topology: Topology | None = None,
        rules: CopyRules | None = None,
        audit: AuditLine = no_audit,
        rebuild: bool = False,
        rebuild_wait_s: float = REBUILD_WAIT_S,
        allow_list: AllowList = nobody,
    ) -> None:
        """`store` is open. `wall` gives seconds since 1970, `reactor` monotonic ones and timers."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.ready: Deferred[None] = Deferred()
        self.hub = Hub(
            config,
            reactor,
            gmp,
            store,
            sessions,
            wall,
            topology or Topology(),
            rules or CopyRules(),
            audit,
        )
        self.hub.perform = self._perform
        self.errands = Errands(self.hub, self.spawn)
        self.copier = Copier(self.hub, self.errands)
        self.clients = ClientCalls(self.hub, self.errands)
        self.slaves = SlaveCalls(self.hub, self.errands, self._reported)
        self.scrubs = Scrubs(self.hub)
        self.hub.context.locate = lambda paths: ensureDeferred(self.clients.locate(paths))
        self.revocation = Revocation(self.hub, self.spawn)
        self.rebuild: Rebuild | None = None
        self.more_counters: list[Callable[[], dict[str, int]]] = []
        self._want_rebuild = rebuild
        self._rebuild_wait_s = rebuild_wait_s
        self._allow_list = allow_list
        self._started = reactor.seconds()
        self._steps = Steps(wall, reactor.seconds)
        self._running: set[Deferred[Any]] = set()
        self._loops: list[LoopingCall] = []
        self._sums: tuple[float, Any, int] | None = None
        self._doubles: dict[str, int] = {}
        self._release_at = 0.0
        self._rules_text = ""
        self.hub.rpc.serve(admin.NodeList, self.node_list)
        self.hub.rpc.serve(admin.Status, self.status)
        gmp.on_peer_event(self._peer_event)

    @property
    def context(self) -> MasterContext:
        """What `register_jobs` gets."""
        return self.hub.context

    # life -----------------------------------------------------------------------------------------------
    def startService(self) -> None:
        """Take the next epoch and serve; see `ready`."""
        super().startService()  # type: ignore[no-untyped-call]
        starting = ensureDeferred(self._begin())
        starting.addCallbacks(self.ready.callback, self.ready.errback)

    async def _begin(self) -> None:
        hub = self.hub
        lease_s = hub.config.master.lease_s

        def run(tx: SqlTx) -> bool:
            rebuilding = self._want_rebuild or bool(tx.setting("rebuilding"))
            if rebuilding:
                begin_rebuild(tx, hub.wall())
            else:
                # the clock is above the epochs of starts that an older database, put back, knows nothing of
                tx.set("epoch", max(tx.setting("epoch") + 1, int(hub.wall())))
            tx.rebase_leases(hub.wall() + lease_s)
            hub.epoch = tx.setting("epoch")
            hub.serial = hub.vouched = tx.setting("serial")
            hub.serial_base = tx.setting("serial_base")
            hub.awaited = set(tx.awaited())
            return rebuilding

        rebuilding = await hub.store.write(run)
        if rebuilding:
            hub.state = REBUILDING
            hub.core.paused = True
            self.rebuild = Rebuild(hub, self._rebuild_wait_s, self._allow_list, self._rebuilt)
        else:
            hub.state = RUNNING
        log.info("epoch {epoch}, {state}", epoch=hub.epoch, state=hub.state)
        self._loops = [every(hub.clock, TICK_S, self._tick), every(hub.clock, LEASES_S, self._leases)]
        if hub.config.master.replication and hub.config.path:
            self._loops.append(every(hub.clock, RULES_S, self._read_rules))

    def stopService(self) -> Deferred[None]:
        """Fires when nothing runs any more and the database is closed."""
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        await maybeDeferred(MultiService.stopService, self)
        self.hub.state = STARTING
        for loop in self._loops:
            if loop.running:
                loop.stop()
        self.errands.stop()
        for hook in self.context.on_stop:
            await maybeDeferred(hook)
        for running in list(self._running):
            running.cancel()
        await gatherResults(list(self._running), consumeErrors=True).addErrback(lambda f: None)
        await self.hub.store.close()

    def spawn(self, work: Coroutine[Deferred[Any], Any, Any]) -> None:
        """Run a coroutine of ours; what it raises is logged."""
        running = ensureDeferred(work)
        if running.called and not isinstance(running.result, Failure | Deferred):
            return
        self._running.add(running)

        def ended(result: Any) -> None:
            self._running.discard(running)
            if isinstance(result, Failure) and not result.check(CancelledError):
                if result.check(SectorError):
                    log.warn("background work failed: {why}", why=result.getErrorMessage())
                else:
                    log.failure("background work failed", result)

        running.addBoth(ended)

    # periodic -------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        self.hub.feed(Tick())
        self.hub.tell_refused()
        step = self._steps.look()
        if step and self.hub.state != STARTING:
            log.warn("the clock was set by {step:+.1f} s", step=step)
            self.spawn(self._rebase_leases())
        if self.rebuild is not None and self.hub.state == REBUILDING:
            self.spawn(self.rebuild.check())

    def _leases(self) -> None:
        if self.hub.state == RUNNING:
            self.spawn(self._expire_leases())
            if self.hub.clock.seconds() >= self._release_at:
                self.spawn(self._release_stones())

    async def _release_stones(self) -> None:
        """Tell the slaves of former names whose content has its new name on one of them (0252)."""
        began, self._release_at = self.hub.clock.seconds(), float("inf")
        try:
            if not await self.hub.store.read(lambda tx: tx.stones_free()):
                return
            serial = await self.hub.store.write(lambda tx: (tx.release_stones(), tx.mirror_serial())[1])
        finally:
            now = self.hub.clock.seconds()
            self._release_at = now + 20 * (now - began)
        self.hub.serial = max(self.hub.serial, serial)
        self.errands.poke_all()

    async def _rebase_leases(self) -> None:
        now = self.hub.wall()
        lease_s = self.hub.config.master.lease_s
        await self.hub.store.write(
            lambda tx: tx.rebase_leases(now + lease_s, now + namespace.KEEP_PUBLISHED_S)
        )

    async def _expire_leases(self) -> None:
        asked = self.hub.wall()  # renewals wait behind this in the queue of a database that is busy
        lost = await self.hub.store.write(lambda tx: tx.expire_leases(asked))
        if lost:
            log.info("{count} write leases expired", count=lost)

    def _read_rules(self) -> None:
        """Take replication.toml anew when it changed; a bad one is logged once and does not count."""
        path = self.hub.config.file(self.hub.config.master.replication)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return
        if text == self._rules_text:
            return
        self._rules_text = text
        try:
            rules = parse_rules(text, str(path))
        except BadConfig as error:
            log.error("{error}", error=error.message)
            return
        if rules != self.hub.core.replicator.rules:
            log.info("new replication rules from {path}", path=str(path))
            self.hub.core.new_rules(rules)

    # effects --------------------------------------------------------------------------------------------
    def _perform(self, effect: Effect) -> None:
        match effect:
            case core.LoadFiles(paths):
                self.spawn(self._load(list(paths)))
            case core.ScanPage(after):
                self.spawn(self._scan(after))
            case core.StartCopy(task):
                log.debug("copy {path} to {target}: {why}", path=task.path, target=task.target, why=task.why)
                self.spawn(self.copier.start(task))
            case core.StoreDrop(drop):
                self.spawn(self._drop(drop))
            case core.Errands(node):
                if self.hub.state == RUNNING:
                    self.errands.poke(node)
            case core.SlaveChanged(change):
                log.info(
                    "slave {slave_id} is {state} (was {before})",
                    slave_id=change.node,
                    state=change.state,
                    before=change.before or "not known",
                )
                if change.state == UP:
                    self.errands.returned(change.node)
                for listener in self.context.on_slave:
                    listener(change.node, change.before, change.state)
            case core.CopyLost(task):
                log.warn("copy of {path} to {target} did not end", path=task.path, target=task.target)

    async def _load(self, paths: list[str]) -> None:
        files: list[Any] = []
        try:
            files = await self.hub.store.read(lambda tx: tx.states(paths))
        except SectorError:
            self.hub.feed(core.NotLoaded(paths))
            raise
        self.hub.feed(core.Loaded(paths, files))

    async def _scan(self, after: str) -> None:
        try:
            files = await self.hub.store.read(lambda tx: tx.page("/", after, PAGE))
        except SectorError:
            self.hub.feed(core.PageSeen((), ""))
            raise
        following = files[-1].entry.path if len(files) == PAGE else ""
        self.hub.feed(core.PageSeen(files, following))

    async def _drop(self, drop: DropCopy) -> None:
        try:
            log.info("drop {path} on {node}: {why}", path=drop.path, node=drop.node, why=drop.why)
            await self.hub.store.write(
                lambda tx: namespace.replica_surplus(tx, drop.node, drop.path, drop.version, self.hub.wall())
            )
        finally:
            self.hub.feed(core.DropStored(drop.path, drop.node))

    # slaves ---------------------------------------------------------------------------------------------
    async def on_join(self, join: login.Join, address: str) -> login.Joined:
        """A slave that the security server allows, seen at `address`: it gets a key of its own.

        The security of this call is the caller's: the id is the one in the certificate. Raises `Busy`,
        `Conflict` (another process has that name)."""
        hub = self.hub
        if hub.state == STARTING:
            raise Busy("the master is starting")
        host = join.gmp.host if join.gmp.host not in ("0.0.0.0", "::", "") else address
        data_host = join.data.host if join.data.host not in ("0.0.0.0", "::", "") else address
        before = hub.core.members.nodes.get(join.slave_id)
        if before is not None:
            self._check_double(before, join, host)
            hub.gmp.remove_key(before.key_id)
            hub.sessions.key_ids.free(before.key_id)
        key_id, secret = hub.sessions.key_ids.new(), secrets.token_bytes(32)
        hub.gmp.add_key(GmpKey(key_id, secret, f"slave:{join.slave_id}"))
        node = Node(
            join.slave_id,
            hub.topology.place(host),
            join.instance,
            Address(host, join.gmp.port),
            Address(data_host, join.data.port),
            key_id,
            join.data_dir,
            join.pid,
            hub.clock.seconds(),
            disk=join.disk,
        )
        if before is not None and before.instance == join.instance:
            node.load = before.load
        hub.feed(core.SlaveJoined(node))
        master_id = hub.config.master.id
        mine = Address(hub.config.listen.advertise or hub.gmp.address[0], hub.gmp.address[1])
        return login.Joined(
            master_id,
            mine,
            Key(key_id, secret, f"master:{master_id}"),
            hub.epoch,
            hub.config.master.heartbeat_s,
            hub.config.master.encrypt,
        )

    def _check_double(self, running: Node, join: login.Join, host: str) -> None:
        """Raises `Conflict` for a second process under the name of one that is heard (0251). It is the next
        life of that one where it has its port or its data directory: both are one process's at a time."""
        where = Address(host, join.gmp.port)
        if running.instance == join.instance or running.state != UP or running.gmp == where:
            return
        if (running.gmp.host, running.data_dir) == (host, join.data_dir):
            return
        if self._doubles.get(join.slave_id) != join.instance:
            self._doubles[join.slave_id] = join.instance
            log.warn(
                "a second process is refused as slave {slave_id}: {pid} at {second} with {second_dir}; "
                "{first_pid} at {first} with {first_dir} is heard",
                slave_id=join.slave_id,
                pid=join.pid,
                second=str(where),
                second_dir=join.data_dir,
                first_pid=running.pid,
                first=str(running.gmp),
                first_dir=running.data_dir,
            )
        raise Conflict(
            f"slave {join.slave_id} runs already, as process {running.pid} at {running.gmp} with "
            f"{running.data_dir}: stop one of the two, or give each a name and a certificate of its own",
            hint="",
        )

    def remove_node(self, principal: str) -> None:
        """A slave ("slave:ID") was taken from the allow-list: it is heard no longer, and what it held and had
        to do is forgotten, also if it has not been here since the master's start. (A master that starts hears
        of all that were ever taken from the list.)"""
        role, _, node_id = principal.partition(":")
        if role != "slave":
            return
        node = self.hub.core.members.nodes.get(node_id)
        if node is not None:
            self.hub.gmp.remove_key(node.key_id)
            self.hub.core.forget(node_id)
            self.hub.scrubs.pop(node_id, None)
            self.hub.audit("master", "slave removed", node_id)
        self.spawn(self._forget_node(node_id))

    async def _forget_node(self, node_id: str) -> None:
        def run(tx: SqlTx) -> int:
            tx.forget_node(node_id)
            return tx.drawn()

        self.hub.has_come(node_id, await self.hub.store.write(run))

    def _peer_event(self, event: PeerEvent) -> None:
        if event.kind == "restarted":
            log.debug("peer {host}:{port} restarted", host=event.peer.host, port=event.peer.port)

    def _reported(self, slave_id: str, _mirror_serial: int) -> None:
        if self.rebuild is not None and self.hub.state == REBUILDING:
            self.rebuild.slave_reported(slave_id)
            self.spawn(self.rebuild.check())

    def _rebuilt(self) -> None:
        self.hub.core.paused = False
        self.errands.poke_all(renames=True)

    # users ----------------------------------------------------------------------------------------------
    def sessions_ended(self, rows: list[Any]) -> None:
        """Sessions are over; see `revocation.py`."""
        for row in rows:
            for listener in self.context.on_session_end:
                listener(principal_of(row.user, row.id), row.expires > self.hub.wall())
        self.spawn(self.revocation.closed([row for row in rows if row.expires > self.hub.wall()]))

    def rights_changed(self, rights: dict[str, tuple[Right, ...]]) -> None:
        """All directory rights of some users, for the mirror on the slaves."""
        self.spawn(self._mirror_rights(rights))

    async def _mirror_rights(self, rights: dict[str, tuple[Right, ...]]) -> None:
        def run(tx: SqlTx) -> int:
            tx.mirror_rights(rights)
            return tx.mirror_serial()

        self.clients.mirror_grew(await self.hub.store.write(run))

    # status ---------------------------------------------------------------------------------------------
    def node_list(self, request: admin.NodeList, caller: Caller) -> admin.Nodes:
        """All slaves since the master's start."""
        self.hub.user(caller)
        nodes = [
            admin.NodeInfo(
                node.id,
                node.place.host,
                node.place.location,
                node.state,
                node.pid,
                node.data_dir,
                node.load.used,
                node.load.free,
                node.load.files,
                node.gmp,
                node.data,
                node.load.spes,
                {name: node.load.counters[name] for name in TRAFFIC if name in node.load.counters},
                self.hub.scrubs.get(node.id, ScrubState()),
                node.disk,
            )
            for _, node in sorted(self.hub.core.members.nodes.items())
        ]
        return admin.Nodes(nodes)

    def slave_addresses(self) -> set[tuple[str, int]]:
        """Where the slaves that are not lost listen for messages."""
        nodes = self.hub.core.members.nodes.values()
        return {(node.gmp.host, node.gmp.port) for node in nodes if node.state != LOST}

    async def status(self, request: admin.Status, caller: Caller) -> admin.StatusInfo:
        """State and counters; sums over all files are at most a second old."""
        self.hub.user(caller)
        sums, lacking = await self._totals()
        nodes = self.hub.core.members.nodes
        counters = {
            **self.hub.core.counters(),
            "sessions": len(self.hub.sessions.rows()),
            "tickets": self.hub.tickets,
            "tasks": len(self.hub.core.replicator.tasks),
            "leases": sums.leases,
            "directories": sums.directories,
            "tombstones": sums.tombstones,
            "deletions_waiting": sums.trash,
            "errands_stuck": sum(self.errands.stuck(name) for name in nodes),
            "slaves_awaited": len(self.hub.awaited),
            "epoch": self.hub.epoch,
        }
        for more in self.more_counters:
            counters.update(more())
        counters.update(zip(NAMES, self.hub.refused_here()[0][1], strict=True))
        counters["associations"] = counters.get("assoc", 0)
        counters["connections"] = counters.get("sockets", 0) + counters.get("tls", 0)
        return admin.StatusInfo(
            self.hub.config.master.id,
            __version__,
            self.hub.state,
            self.hub.clock.seconds() - self._started,
            sums.files,
            sums.bytes,
            sum(node.state == UP for node in nodes.values()),
            len(nodes),
            lacking,
            counters,
            {name: self._node_counters(node) for name, node in sorted(nodes.items())},
        )

    def _node_counters(self, node: Node) -> dict[str, int]:
        load = node.load
        return {
            **load.counters,
            "files": load.files,
            "used_bytes": load.used,
            "free_bytes": load.free,
            "transfers": load.transfers,
            "spes": load.spes,
            "spes_busy": load.spes_busy,
            "mirror_serial": load.mirror_serial,
            "reported": int(node.reported),
            "errands_stuck": self.errands.stuck(node.id),
            **dict(zip(NAMES, self.hub.refused.get(node.id, (0, 0, 0)), strict=True)),
            **scrub_counters(self.hub.scrubs.get(node.id, ScrubState())),
        }

    async def _totals(self) -> tuple[Any, int]:
        now = self.hub.clock.seconds()
        if self._sums is not None and now < self._sums[0]:
            return self._sums[1], self._sums[2]
        live = [node.id for node in self.hub.core.members.nodes.values() if node.state != LOST]
        wanted = self.hub.core.replicator.rules
        rules = [(rule.path, rule.minimum) for rule in wanted.rules]

        def run(tx: SqlTx) -> tuple[Any, int]:
            return tx.sums(), tx.lacking(live, wanted.default.minimum, rules) if live else tx.sums().files

        sums, lacking = await self.hub.store.read(run)
        took = self.hub.clock.seconds() - now
        fresh_s = min(SUMS_S, 0.2 + 20 * took) if took < 0.05 else 20 * took
        self._sums = (self.hub.clock.seconds() + fresh_s, sums, lacking)
        return sums, lacking
