"""Carries a copy task out: introduces target and source to each other; the target reports the end."""

from __future__ import annotations

import msgspec
from twisted.logger import Logger

from sector.errors import NotFound, SectorError
from sector.master import namespace
from sector.master.core import CopyEnded
from sector.master.errands import Errands
from sector.master.hub import COMMAND_S, Hub
from sector.master.replication import CopyTask
from sector.wire.slave import Copy, PrepareReplica, Ready

log = Logger()
READ_BYTES_PER_S = 2e8
"""A target that goes on with an earlier copy reads what it has of it first."""


class Copier:
    """Starts copies."""

    def __init__(self, hub: Hub, errands: Errands) -> None:
        self._hub = hub
        self._errands = errands

    async def start(self, task: CopyTask) -> None:
        """PrepareReplica to the target, then Copy to the source, with the same ticket."""
        hub = self._hub
        ticket = hub.ticket("write", task.path, task.version, 0, task.meta.size)
        at_target = True
        try:
            await self._errands.ensure_renamed(task.target, task.path)
            await self._errands.ensure_renamed(task.source, task.path, present=True)
            prepare = PrepareReplica(hub.epoch, task.id, ticket, task.meta, True)
            limit_s = COMMAND_S + task.meta.size / READ_BYTES_PER_S
            ready: Ready = await hub.call_slave(task.target, prepare, limit_s)
            at_target = False
            rest = msgspec.structs.replace(ticket, offset=ready.offset, length=task.meta.size - ready.offset)
            address = hub.core.members.get(task.target).data
            await hub.call_slave(task.source, Copy(hub.epoch, task.id, rest, address))
        except SectorError as error:
            log.info(
                "copy of {path} from {source} to {target} did not start: {error}",
                path=task.path,
                source=task.source,
                target=task.target,
                error=error.message,
            )
            if isinstance(error, NotFound) and not at_target:
                await hub.store.write(
                    lambda tx: namespace.replica_gone(tx, task.source, task.path, task.version)
                )
            hub.feed(CopyEnded(task.id, error.message, at_target))
