"""Which slaves there are and how they do: joins, heartbeats, silence (design sections 5 and 12).

Pure: `now` is a monotonic time in seconds. A slave is up while heartbeats come, suspect after `suspect_s`
without one, lost after `lost_s`; a heartbeat brings it back, a join makes it a new instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sector.errors import NotFound
from sector.master.placement import Candidate
from sector.master.topology import Place
from sector.model import Address

UP, SUSPECT, LOST = "up", "suspect", "lost"


@dataclass(frozen=True, slots=True)
class Times:
    """Limits in seconds."""

    heartbeat_s: float = 1.0
    suspect_s: float = 3.0
    lost_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a heartbeat says of a slave."""

    free: int = 0
    used: int = 0
    files: int = 0
    transfers: int = 0
    mirror_serial: int = 0
    load: float = 0.0
    spes: int = 0
    spes_busy: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Node:
    """One slave. `reported` = its full report of this instance is complete; `granted` transfers and
    `promised` bytes given out since the last heartbeat counted them. Before its first heartbeat (`beats`) it
    gets no work. A full report whose number is not above `report_from` began before it was asked for. `disk`
    tells its file system from others of its host."""

    id: str
    place: Place
    instance: int
    gmp: Address
    data: Address
    key_id: int
    data_dir: str
    pid: int
    heard: float
    state: str = UP
    load: Load = field(default_factory=Load)
    reported: bool = False
    want_report: bool = True
    report_from: int = 0
    granted: int = 0
    promised: int = 0
    beats: int = 0
    disk: str = ""

    def candidate(self) -> Candidate:
        """As placement sees it."""
        free = max(0, self.load.free - self.promised)
        usable = self.state == UP and self.beats > 0
        return Candidate(self.id, self.place, free, self.load.transfers + self.granted, usable)


@dataclass(frozen=True, slots=True)
class Changed:
    """A slave went from one state to another; `before` is "" when it was not known."""

    node: str
    before: str
    state: str


class Membership:
    """The table of slaves."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.nodes: dict[str, Node] = {}

    def join(self, node: Node) -> Changed:
        """A slave (new or returned) is here; it owes a full report."""
        before = self.nodes.get(node.id)
        self.nodes[node.id] = node
        return Changed(node.id, before.state if before else "", node.state)

    def heartbeat(self, node_id: str, load: Load, now: float) -> Changed | None:
        """A sign of life. A lost slave owes a report, for its content was given up. Raises `NotFound`."""
        node = self.get(node_id)
        node.heard = now
        node.load = load
        node.granted = 0
        node.promised = 0
        node.beats += 1
        if node.state == UP:
            return None
        before, node.state = node.state, UP
        if before == LOST:
            node.reported, node.want_report = False, True
        return Changed(node_id, before, UP)

    def tick(self, now: float) -> list[Changed]:
        """Silent slaves become suspect, then lost."""
        changes = []
        for node in self.nodes.values():
            silent = now - node.heard
            state = UP if silent < self.times.suspect_s else SUSPECT if silent < self.times.lost_s else LOST
            worse = (node.state, state) in ((UP, SUSPECT), (UP, LOST), (SUSPECT, LOST))
            if worse:
                changes.append(Changed(node.id, node.state, state))
                node.state = state
        return changes

    def get(self, node_id: str) -> Node:
        """Raises `NotFound`."""
        node = self.nodes.get(node_id)
        if node is None:
            raise NotFound(f"slave {node_id} is not known")
        return node

    def alive(self) -> list[Node]:
        """Slaves that are not lost."""
        return [node for node in self.nodes.values() if node.state != LOST]

    def up(self) -> list[Node]:
        """Slaves that answer."""
        return [node for node in self.nodes.values() if node.state == UP]

    def candidates(self) -> list[Candidate]:
        """Slaves that are not lost, as placement sees them."""
        return [node.candidate() for node in self.alive()]

    def grant(self, node_id: str, size: int = 0) -> None:
        """Count a transfer (that takes `size` bytes) until the next heartbeat does."""
        node = self.nodes.get(node_id)
        if node is not None:
            node.granted += 1
            node.promised += size

    def check_invariants(self) -> None:
        """Names agree; counts are not negative."""
        for name, node in self.nodes.items():
            assert name == node.id, "a slave under another's name"
            assert node.granted >= 0 and node.promised >= 0 and node.state in (UP, SUSPECT, LOST)
