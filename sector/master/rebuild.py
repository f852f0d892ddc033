"""Rebuilding the database from what the slaves report: waits for them, then serves (design sections 5 and 9).

Until all slaves on the allow-list have reported, or `wait_s` has passed, the master serves reads only. The
union of tombstones and directories counts, of each file the newest version. Users and audit live in the
security server's database and are not touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.logger import Logger

from sector.errors import Conflict, SectorError
from sector.master.hub import RUNNING, Hub
from sector.master.store import SqlTx, is_empty

log = Logger()
ASK_S = 5.0
SERIAL_SHIFT = 20

AllowList = Callable[[], Awaitable[list[str]]]


def begin(tx: SqlTx, now: float) -> None:
    """Start (or go on with) a rebuild: an epoch above all that any slave has seen, since it is the clock.
    Raises `Conflict` for a database that has content."""
    if not tx.setting("rebuilding"):
        if not is_empty(tx):
            raise Conflict(
                "the database is not empty, so there is nothing to rebuild",
                hint="to rebuild all the same, move the master's database away first",
            )
        tx.set("rebuilding", 1)
    tx.set("epoch", max(tx.setting("epoch") + 1, int(now)))


def finish(tx: SqlTx, now: float) -> None:
    """The namespace is complete: a higher epoch, and a mirror serial above all earlier ones."""
    tx.set("rebuilding", 0)
    tx.set("epoch", max(tx.setting("epoch") + 1, tx.highest_epoch() + 1))
    base = max(tx.setting("serial") + 1, int(now) << SERIAL_SHIFT)
    tx.stamp_mirror(base)
    tx.set("serial", base)
    tx.set("serial_base", base)


class Rebuild:
    """Decides when a rebuild is over."""

    def __init__(self, hub: Hub, wait_s: float, allow_list: AllowList, done: Callable[[], None]) -> None:
        self._hub = hub
        self._allow_list = allow_list
        self._done = done
        self._until = hub.clock.seconds() + wait_s
        self._asking = False
        self.expected: list[str] | None = None
        self.reported: set[str] = set()

    def slave_reported(self, slave_id: str) -> None:
        """A full report is in."""
        self.reported.add(slave_id)

    @property
    def missing(self) -> list[str]:
        """Slaves that are waited for."""
        return sorted(set(self.expected or ()) - self.reported)

    async def check(self) -> None:
        """Ask for the allow-list until it is known; finish when nobody is missing or the time is over."""
        if self._asking:
            return
        self._asking = True
        try:
            if self.expected is None:
                try:
                    self.expected = await self._allow_list()
                except SectorError as error:
                    log.info("the list of slaves is not known yet: {error}", error=error.message)
            late = self._hub.clock.seconds() >= self._until
            complete = bool(self.expected) and not self.missing
            if (complete or late) and self._hub.state != RUNNING:
                await self._finish(late and not complete)
        finally:
            self._asking = False

    async def _finish(self, late: bool) -> None:
        hub = self._hub

        def run(tx: SqlTx) -> tuple[int, int, Any]:
            finish(tx, hub.wall())
            return tx.setting("epoch"), tx.setting("serial"), tx.sums()

        hub.epoch, hub.serial, sums = await hub.store.write(run)
        hub.serial_base = hub.vouched = hub.serial
        if late:
            log.warn("rebuild ends without {missing}", missing=", ".join(self.missing) or "a list of slaves")
        log.info("rebuilt: {files} files in {dirs} directories", files=sums.files, dirs=sums.directories)
        hub.state = RUNNING
        for node in hub.core.members.nodes.values():
            node.reported, node.want_report = False, True
        self._done()
