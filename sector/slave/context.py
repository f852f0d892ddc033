"""What a slave gives to the Sphere part (`sector.slave.spe`): its files, its endpoints, its master.

`register_spe(rpc, context)` is called once while the slave starts, before it joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from sector._udt.data_api import Data
from sector.clock import Clock
from sector.config import Config
from sector.gmp.api import Gmp
from sector.model import FileInfo, Version
from sector.rpc import Caller, RpcNode
from sector.wire.base import Request


class SlaveDisk(Protocol):
    """The data directory as a job may use it. Nothing here blocks the reactor."""

    def open(self, path: str, version: Version, offset: int, length: int) -> Deferred[int]:
        """A read-only descriptor of exactly this content, whose blocks in this range were compared with
        their checksums; the caller closes it. Errbacks with NotFound (another version or none is here),
        Damaged (the replica is looked at again, and set aside if it is bad each time), Conflict (a symbolic
        link is in the way)."""

    def scratch(self, name: str) -> Deferred[str]:
        """A new empty directory (mode 0700) on the file system of the data; emptied at the next start.
        `name` only helps to tell directories apart."""

    def remove_scratch(self, path: str) -> Deferred[None]:
        """Remove a directory that `scratch` made, with all that is in it."""

    def publish_file(
        self,
        local_path: str,
        cloud_path: str,
        principal: str,
        *,
        mode: int = 0o644,
        create: str = "any",
        parents: bool = True,
    ) -> Deferred[FileInfo]:
        """Make a finished local file (in a scratch directory) the Sector file `cloud_path`, written by
        `principal` ("job:JOBID/NAME" or "user:NAME#SESSION"). The file is moved away when this begins and
        is put back if it cannot be published. Fires when it is published and durable here. Errbacks with
        Denied, Exists, IsDirectory, LeaseHeld, NoSpace, LocalIO, Unreachable."""

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run a blocking function (named `*_thd`) in the disk pool."""


@dataclass(slots=True)
class SlaveContext:
    """Parts of a running slave. `spes` and `spes_busy` are set by the Sphere part and go out with every
    heartbeat. Functions in `on_stop` are called (their Deferreds awaited) before the ports close;
    those in `on_join` after each successful join with a master."""

    slave_id: str
    config: Config
    clock: Clock
    rpc: RpcNode
    gmp: Gmp
    data: Data
    disk: SlaveDisk
    spawner: Any
    master_call: Callable[..., Deferred[Any]]
    """master_call(request, deadline_s=10.0) -> reply; errbacks with a SectorError."""
    check_master: Callable[[Caller, Request], None]
    """Raises Denied unless a master asks, Conflict if its epoch (first field) is old."""
    spes: int = 0
    spes_busy: int = 0
    on_stop: list[Callable[[], Deferred[Any] | None]] = field(default_factory=list)
    on_join: list[Callable[[], None]] = field(default_factory=list)
