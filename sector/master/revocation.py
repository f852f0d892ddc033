"""What follows when sessions are closed before their time: a user was removed, rights or a password changed
(spec/security.md, "Sessions"). Slaves end his transfers and forget his tickets; write leases end where he
may write no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from sector.clock import pause
from sector.errors import Busy, TimedOut, Unreachable
from sector.master.hub import STARTING, Hub
from sector.master.membership import LOST
from sector.master.sessions import SessionRow, principal_of
from sector.master.store import SqlTx
from sector.rights import allowed
from sector.wire.slave import Revoke

log = Logger()
PART = 500
TRIES = 20
ANSWER_S = 3.0
PAUSE_S = 1.0


class Revocation:
    """Carries closed sessions to the slaves and to the leases."""

    def __init__(self, hub: Hub, spawn: Callable[[Coroutine[Deferred[Any], Any, Any]], None]) -> None:
        self._hub = hub
        self._spawn = spawn

    async def closed(self, rows: Sequence[SessionRow]) -> None:
        """These sessions were closed; their keys at the master are gone already."""
        names = [principal_of(row.user, row.id) for row in rows]
        for at in range(0, len(names), PART):
            for node in self._hub.core.members.nodes.values():
                if node.state != LOST:
                    self._spawn(self._tell(node.id, node.instance, names[at : at + PART]))
        for user in sorted({row.user for row in rows}):
            await self._drop_leases(user)

    async def _drop_leases(self, user: str) -> None:
        """End leases on paths that no session the user has now may write."""
        rights = [row.rights for row in self._hub.sessions.rows() if row.user == user]

        def run(tx: SqlTx) -> None:
            for lease in tx.leases_of(user):
                if not any(allowed(given, lease.path, "w") for given in rights):
                    tx.drop_lease(lease.id)

        await self._hub.store.write(run)

    async def _tell(self, slave_id: str, instance: int, principals: list[str]) -> None:
        """Tell a slave, with some patience: one that starts anew has forgotten all tickets anyway."""
        hub = self._hub
        for _ in range(TRIES):
            node = hub.core.members.nodes.get(slave_id)
            if node is None or node.instance != instance or hub.state == STARTING:
                return
            try:
                await hub.call_slave(slave_id, Revoke(hub.epoch, principals), ANSWER_S)
                return
            except (Unreachable, TimedOut, Busy) as error:
                log.debug("{node} was not told of closed sessions: {why}", node=slave_id, why=error.message)
            await pause(hub.clock, PAUSE_S)
        log.warn("slave {node} was not told of {count} closed sessions", node=slave_id, count=len(principals))
