"""Rebuilding the database from what the slaves report: waits for them, then serves (design sections 5 and 9).

Until all slaves on the allow-list have reported, or `wait_s` has passed and one has, the master serves reads
only. The union of tombstones and directories counts, of each file the newest version. Who was missing at the
end stays awaited, also after a restart: the first report of such a slave is merged by the same rules, beside
the service (0300). Users and audit live in the security server's database and are not touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from twisted.logger import Logger

from sector.errors import Conflict, SectorError
from sector.master.hub import RUNNING, Hub
from sector.master.store import SqlTx, is_empty

log = Logger()
ASK_S = 5.0
TELL_S = 60.0
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
        tx.await_slaves(())
    tx.set("epoch", max(tx.setting("epoch") + 1, int(now)))


def finish(tx: SqlTx, now: float, missing: Collection[str] = ()) -> None:
    """The namespace is complete but for what the slaves `missing` have: a higher epoch, and a mirror serial
    above all earlier ones."""
    tx.set("rebuilding", 0)
    tx.await_slaves(missing)
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
        self._ask_at = self._tell_at = hub.clock.seconds()
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
        """Ask for the allow-list now and then; finish when nobody is missing, or when the time is over,
        somebody has reported, and it is known who has not."""
        if self._asking:
            return
        self._asking = True
        try:
            now = self._hub.clock.seconds()
            if now >= self._ask_at:
                self._ask_at = now + ASK_S
                try:
                    self.expected = await self._allow_list()
                except SectorError as error:
                    log.info("the list of slaves is not known yet: {error}", error=error.message)
            late = now >= self._until
            complete = bool(self.expected) and not self.missing
            enough = late and bool(self.reported) and self.expected is not None
            if (complete or enough) and self._hub.state != RUNNING:
                await self._finish()
            elif late and now >= self._tell_at:
                self._tell_at = now + TELL_S
                self._tell()
        finally:
            self._asking = False

    def _tell(self) -> None:
        waits = ", ".join(self.missing) or "a slave"
        if self.expected is None:
            waits = "the list of slaves, which the security server has"
        log.warn("the rebuild goes on past its time: it waits for {waits}", waits=waits)

    async def _finish(self) -> None:
        hub = self._hub
        missing = self.missing

        def run(tx: SqlTx) -> tuple[int, int, int, Any]:
            finish(tx, hub.wall(), missing)
            return tx.setting("epoch"), tx.setting("serial"), tx.drawn(), tx.sums()

        hub.epoch, hub.serial, drawn, sums = await hub.store.write(run)
        hub.serial_base = hub.vouched = hub.serial
        hub.awaited = set(missing)
        if missing:
            log.warn(
                "rebuild ends without {missing}: what they have is merged when they come; "
                "take those that never will off the allow-list",
                missing=", ".join(missing),
            )
        log.info("rebuilt: {files} files in {dirs} directories", files=sums.files, dirs=sums.directories)
        hub.state = RUNNING
        for node in hub.core.members.nodes.values():
            node.reported, node.want_report, node.report_from = False, True, drawn
        self._done()
