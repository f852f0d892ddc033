"""What the parts of a running master share: settings, peers, the core, who asks, commands to slaves."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from sector.clock import Clock, pause
from sector.config import Config
from sector.errors import Busy, Denied, ReadOnly, Unreachable
from sector.gmp.api import Gmp, Peer
from sector.master.context import AuditLine, MasterContext, SlaveView
from sector.master.core import CoreSettings, Effect, Event, Look, MasterCore
from sector.master.membership import LOST, Node, Times
from sector.master.replication import CopyRules, Limits
from sector.master.sessions import Sessions, View
from sector.master.store import Store
from sector.master.topology import Place, Topology
from sector.model import Ticket, Version
from sector.refusals import Counts, Watch
from sector.rpc import Caller, RpcNode
from sector.wire.base import Request
from sector.wire.slave import ScrubState

log = Logger()
STARTING, RUNNING, REBUILDING, REBUILD_NEEDED = "starting", "running", "rebuilding", "rebuild_needed"
COMMAND_S = 10.0
SETTLE_STEP_S = 0.1


def new_id() -> bytes:
    """16 random bytes."""
    return secrets.token_bytes(16)


class Hub:
    """Shared parts. `perform` is set by the service and carries out the core's effects."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        gmp: Gmp,
        store: Store,
        sessions: Sessions,
        wall: Callable[[], float],
        topology: Topology,
        rules: CopyRules,
        audit: AuditLine,
    ) -> None:
        section = config.master
        times = Times(section.heartbeat_s, section.suspect_s, section.lost_s)
        limits = Limits(
            copies=section.copies,
            per_node=section.per_node,
            small_copies=section.small_copies,
            small_per_node=section.small_per_node,
            settle_s=section.lost_s,
        )
        self.config = config
        self.clock = clock
        self.gmp = gmp
        self.rpc = RpcNode(gmp)
        self.store = store
        self.sessions = sessions
        self.wall = wall
        self.topology = topology
        self.real_host: Callable[[str], str] = lambda host: host
        """Where the end of a tunnel is (sector.tunnel.Aliases)."""
        self.audit = audit
        self.core = MasterCore(CoreSettings(times, limits, section.check_s), rules, new_id, clock.seconds())
        self.epoch = 0
        self.serial = 0
        self.serial_base = 0
        self.vouched = 0
        """The mirror serial of the database as it was at the start, or at the end of a rebuild."""
        self._sent: dict[str, int] = {}
        self.awaited: set[str] = set()
        """Slaves that a rebuild ended without: the first report of each is merged by its rules. Until then it
        gets no mirror, which would take the place of what it remembers."""
        self.state = STARTING
        self.tickets = 0
        self.refused: dict[str, Counts] = {}
        self.scrubs: dict[str, ScrubState] = {}
        """What slaves said last of their scrubs."""
        self.refused_here: Callable[[], list[tuple[str, Counts]]] = lambda: [("", (0, 0, 0))]
        self._refused = Watch()
        self.started = clock.seconds()
        self.perform: Callable[[Effect], None] = lambda effect: None
        self.context = MasterContext(
            master_id=section.id,
            sessions=sessions,
            rpc=self.rpc,
            store=store,
            clock=clock,
            wall=wall,
            slaves=self.slaves,
            epoch=lambda: self.epoch,
            locate=lambda paths: fail(Busy("the master is starting")),
            call_slave=self.call_slave,
            audit=audit,
        )

    # the core -------------------------------------------------------------------------------------------
    def feed(self, event: Event) -> None:
        """An event for the core; its effects are carried out."""
        for effect in self.core.handle(event, self.clock.seconds()):
            self.perform(effect)

    def tell_refused(self) -> None:
        """Lines of the audit log about datagrams that this master's port refused."""
        for line in self._refused.look(self.refused_here()[1:], self.clock.seconds()):
            self.audit(f"master:{self.config.master.id}", "refused", line)

    def look(self, *paths: str, urgent: bool = False) -> None:
        """Have the replicas of these paths looked at."""
        self.feed(Look(paths, urgent))

    # who asks -------------------------------------------------------------------------------------------
    def user(self, caller: Caller) -> View:
        """The user behind a client's call. Raises `SessionExpired`, `Busy` while starting."""
        if self.state == STARTING:
            raise Busy("the master is starting")
        return self.sessions.user_of(caller.principal)

    def writer(self, caller: Caller) -> View:
        """The same for a request that changes something. Raises `ReadOnly` during a rebuild."""
        view = self.user(caller)
        self.check_writable()
        return view

    def check_writable(self) -> None:
        """Raises `ReadOnly` during a rebuild, `Busy` while starting."""
        if self.state == REBUILDING:
            raise ReadOnly("the master rebuilds its database and serves reads only")
        if self.state == REBUILD_NEEDED:
            raise ReadOnly(
                "the slaves remember more than the master's database",
                hint="the database was lost or is an old copy: move it away, start the master with --rebuild",
            )
        if self.state == STARTING:
            raise Busy("the master is starting")

    def slave(self, caller: Caller, slave_id: str) -> Node:
        """The slave that calls. Raises `Denied` for any other peer, `NotFound` if it has to join."""
        if caller.principal != f"slave:{slave_id}":
            raise Denied(f"this request is only for slave {slave_id} itself", hint="")
        if self.state == STARTING:
            raise Busy("the master is starting")
        return self.core.members.get(slave_id)

    def place(self, caller: Caller) -> Place:
        """Where a caller is."""
        return self.topology.place(self.real_host(caller.peer.host))

    async def until_settled(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that slaves bring about when they come back after a restart of the master;
        once the cluster has had its time to settle there is nothing to wait for."""
        until = self.started + self.config.master.lost_s
        while not condition() and self.clock.seconds() < until and self.state != STARTING:
            await pause(self.clock, SETTLE_STEP_S)

    # slaves -----------------------------------------------------------------------------------------------
    def peer_of(self, node: Node) -> Peer:
        """Where a slave hears commands."""
        return Peer(node.gmp.host, node.gmp.port, node.key_id)

    def slave_address(self, slave_id: str) -> tuple[str, int] | None:
        """Where a slave that has joined listens for messages."""
        node = self.core.members.nodes.get(slave_id)
        return (node.gmp.host, node.gmp.port) if node is not None else None

    def call_slave(self, slave_id: str, request: Request, deadline_s: float = COMMAND_S) -> Deferred[Any]:
        """A command to a slave; errbacks with a SectorError, at once when the slave is lost."""
        node = self.core.members.nodes.get(slave_id)
        if node is None or node.state == LOST:
            return fail(Unreachable(f"slave {slave_id} is not there"))
        return self.rpc.call(self.peer_of(node), request, deadline_s=deadline_s)

    def sends_mirror(self, slave_id: str, serial: int) -> None:
        """A part of a mirror up to `serial` goes to a slave, which may name that serial from now on. Raises
        `ReadOnly` while this database is in doubt or made anew, `Busy` before the slave's first heartbeat:
        the mirror would take the place of what shows that the slave remembers more."""
        self.check_writable()
        if not self.core.members.get(slave_id).beats:
            raise Busy(f"slave {slave_id} has not told yet what it remembers")
        self._sent[slave_id] = max(self._sent.get(slave_id, 0), serial)
        self.serial = max(self.serial, serial)

    def has_come(self, slave_id: str, drawn: int) -> None:
        """The rebuild waits no longer for a slave that it ended without. What is not as the namespace now has
        it goes to an attic with the next full report: of that slave, and of all when nobody is awaited. One
        that began before `drawn` was drawn does not know all that goes."""
        if slave_id not in self.awaited:
            return
        self.awaited.discard(slave_id)
        waits = ", ".join(sorted(self.awaited)) or "nobody"
        log.info("slave {slave_id} is awaited no longer; still: {waits}", slave_id=slave_id, waits=waits)
        for node in self.core.members.nodes.values():
            if node.id == slave_id or not self.awaited:
                node.reported, node.want_report, node.report_from = False, True, drawn

    def knows_all(self, slave_id: str, serial: int) -> bool:
        """Whether a slave whose mirror is of `serial` has it from this database. The serial as it is now
        tells nothing: an older copy that was put back gives the same numbers again."""
        return serial <= max(self.vouched, self._sent.get(slave_id, 0))

    def slaves(self) -> list[SlaveView]:
        """All slaves since the start, in order of name."""
        return [
            SlaveView(
                node.id,
                self.peer_of(node),
                node.data,
                node.instance,
                node.load.spes,
                node.load.spes_busy,
                node.state,
                node.place.host,
                node.place.location,
            )
            for _, node in sorted(self.core.members.nodes.items())
        ]

    def ticket(
        self, op: str, path: str, version: Version, offset: int, length: int, limit: int = 0
    ) -> Ticket:
        """A new one-use ticket; tag 0 would mean "match by address"."""
        self.tickets += 1
        tag = secrets.randbelow(0xFFFFFFFF) + 1
        encrypt = self.config.master.encrypt
        key = secrets.token_bytes(32)
        return Ticket(new_id(), key, tag, op, path, version, offset, length, encrypt, limit)
