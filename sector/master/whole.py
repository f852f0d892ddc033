"""The whole master: the service with its TLS door, its link to the security server, its jobs.

`make_master` is the composition root.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred

from sector.config import Config
from sector.errors import BadConfig
from sector.gmp.api import Gmp
from sector.master.admin import register_admin
from sector.master.login import LoginService, make_login_service, make_sessions
from sector.master.replication import CopyRules, parse_rules
from sector.master.security_link import AuditBuffer, SecurityLink
from sector.master.service import REBUILD_WAIT_S, MasterService
from sector.master.store import Store
from sector.master.topology import Topology, parse_topology
from sector.wire import admin


def read_topology(config: Config) -> Topology:
    """The networks of the cluster; an absent file = one place. Raises `BadConfig`."""
    path = config.file(config.master.topology)
    try:
        return parse_topology(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return Topology()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: cannot be read: {error}") from None


def read_rules(config: Config) -> CopyRules:
    """How many copies of what; an absent file = the defaults. Raises `BadConfig`."""
    path = config.file(config.master.replication)
    try:
        return parse_rules(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return CopyRules()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: cannot be read: {error}") from None


class Master(MultiService):
    """A master with its TLS door and its link to the security server. `ready` fires when all of it serves."""

    def __init__(
        self, service: MasterService, door: LoginService, link: SecurityLink, audit: AuditBuffer
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.service = service
        self.door = door
        self.ready: Deferred[None] = Deferred()
        self._link = link
        self._audit = audit

    def startService(self) -> None:
        """Serve slaves and clients, then open the door."""
        super().startService()  # type: ignore[no-untyped-call]
        ensureDeferred(self._begin()).addCallbacks(self.ready.callback, self.ready.errback)

    async def _begin(self) -> None:
        self.service.startService()
        await self.service.ready
        self.door.startService()
        await self.door.ready

    def stopService(self) -> Deferred[None]:
        """Fires when ports, threads and connections are gone."""
        return ensureDeferred(self._stop())

    async def _stop(self) -> None:
        await maybeDeferred(MultiService.stopService, self)
        if self.door.running:
            await self.door.stopService()
        await self._audit.stop()
        await self._link.stop()
        await self.service.stopService()


def make_master(
    config: Config,
    reactor: Any,
    gmp: Gmp,
    store: Store,
    *,
    rebuild: bool = False,
    rebuild_wait_s: float = REBUILD_WAIT_S,
) -> Master:
    """The composition root of a master: database, sessions, security link, TLS door, jobs.

    Raises `BadConfig`, `Conflict` (another master has the database), `LocalIO`. With `rebuild` the database
    has to be empty; it is filled from what the slaves report."""
    topology, rules = read_topology(config), read_rules(config)
    sessions = make_sessions(config)
    link = SecurityLink(config, reactor)
    store.open()
    audit = AuditBuffer(link, reactor, time.time, f"master:{config.master.id}")

    async def allowed_slaves() -> list[str]:
        names: list[str] = []
        while True:
            after = names[-1] if names else ""
            acl: admin.Acl = await link.call(admin.AclList("slave", f"master:{config.master.id}", after))
            names += [entry.name for entry in acl.entries]
            if not acl.more or not acl.entries:
                return names

    service = MasterService(
        config,
        reactor,
        gmp,
        store,
        sessions,
        topology=topology,
        rules=rules,
        audit=audit,
        rebuild=rebuild,
        rebuild_wait_s=rebuild_wait_s,
        allow_list=allowed_slaves,
    )
    door = make_login_service(
        config,
        reactor,
        sessions,
        link,
        gmp,
        store,
        service.on_join,
        service.sessions_ended,
        service.remove_node,
        service.rights_changed,
    )
    service.more_counters.append(door.counters)
    door.slaves = service.slave_addresses
    door.slave_address = service.hub.slave_address
    service.hub.real_host = door.aliases.real
    counters = getattr(gmp, "counters", None)
    if counters is not None:
        service.more_counters.append(counters)
    service.hub.refused_here = getattr(gmp, "refused", service.hub.refused_here)
    register_admin(service.hub.rpc, sessions, link, audit)
    register_jobs = importlib.import_module("sector.master.jobs").register_jobs
    register_jobs(service.hub.rpc, service.context)
    return Master(service, door, link, audit)
