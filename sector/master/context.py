"""What the master gives to the Sphere part (`sector.master.jobs`): sessions, slaves, files, the database.

`register_jobs(rpc, context)` is called once, before the first request is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred

from sector.clock import Clock
from sector.gmp.api import Peer
from sector.master.sessions import Sessions, View
from sector.master.store import Store
from sector.model import Address, FileInfo
from sector.rpc import RpcNode
from sector.wire.base import Message, Request

AuditLine = Callable[[str, str, str], None]
"""audit(who, what, detail): one line for the audit log; returns at once."""


@dataclass(frozen=True, slots=True)
class SlaveView:
    """A slave as others see it. `peer` where and with which key it hears the master; `state` "up",
    "suspect" or "lost"; `location` "/site/rack"; `instance` changes when it restarts."""

    id: str
    peer: Peer
    data: Address
    instance: int
    spes: int
    spes_busy: int
    state: str
    host: str
    location: str


@dataclass(slots=True)
class MasterContext:
    """Parts of a running master. `resolvers` says who stands behind a principal that is not a client's:
    kind ("job") -> function(principal, slave id, path) -> View, which raises `Denied` or
    `SessionExpired`; LocalPublish uses it. Functions in `on_slave` hear (slave id, state before, state
    now); those in `on_session_end` hear the principal of a client whose session ended, and whether it was
    closed before its time; `on_stop` run at the end. `job_leases`: open leases of LocalPublish, with the
    principal and path of each; what ends a job ends them."""

    master_id: str
    sessions: Sessions
    rpc: RpcNode
    store: Store
    clock: Clock
    wall: Callable[[], float]
    slaves: Callable[[], list[SlaveView]]
    epoch: Callable[[], int]
    """The master's epoch, the first field of every command to a slave."""
    locate: Callable[[Sequence[str]], Deferred[list[FileInfo]]]
    """locate(paths) -> information on those that exist, with nodes that are not lost; directories too."""
    call_slave: Callable[..., Deferred[Message]]
    """call_slave(slave id, request, deadline_s=10.0) -> reply; errbacks with a SectorError."""
    audit: AuditLine
    resolvers: dict[str, Callable[[str, str, str], View]] = field(default_factory=dict)
    job_leases: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    on_slave: list[Callable[[str, str, str], None]] = field(default_factory=list)
    on_session_end: list[Callable[[str, bool], None]] = field(default_factory=list)
    on_stop: list[Callable[[], Deferred[None] | None]] = field(default_factory=list)


__all__ = ["AuditLine", "MasterContext", "Request", "SlaveView"]
