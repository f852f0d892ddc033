"""Files in a slave's tree that other hands put there, changed or took away: found, looked into, told of."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.logger import Logger

from sector import errors
from sector.clock import Clock, pause
from sector.model import SliceMeta, Version
from sector.slave.catalog import Catalogue, Found, Record
from sector.slave.disk import Disk
from sector.slave.pool import Pool
from sector.wire.slave import Adopted

log = Logger()
_FIRST_CHECK_BYTES = 2 << 30
_TELL_AT_ONCE = 1000


class TreeWatch:
    """Compares the tree of one slave with what is known of it, at the start and every `every_s` seconds.

    `untold` is set when something changed that the master did not hear of: a full report cures that.
    """

    def __init__(
        self,
        disk: Disk,
        pool: Pool,
        clock: Clock,
        every_s: float,
        master_call: Callable[..., Coroutine[Any, Any, Any]],
        *,
        joined: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        self.untold = False
        self._disk = disk
        self._pool = pool
        self._clock = clock
        self._every_s = every_s
        self._master_call = master_call
        self._joined = joined
        self._stopping = stopping
        self._unread: dict[str, tuple[Found, Record]] = {}
        """What could not be looked into, and counts as here with the stamp that its file has: a scan of the
        tree sees no change there."""

    def tell_warnings(self) -> None:
        """Log what the disk had to remark."""
        warnings, self._disk.warnings = self._disk.warnings, []
        for text in warnings[:20]:
            log.warn("{text}", text=text)
        if len(warnings) > 20:
            log.warn("{count} more of these", count=len(warnings) - 20)

    async def settle(self, catalogue: Catalogue) -> Catalogue:
        """Look into new and changed files before the first report, as long as they are not too many; returns
        the rest, and what cannot be read now."""
        later = Catalogue()
        budget = _FIRST_CHECK_BYTES

        async def looked(found: Found, look: Callable[..., Any], *what: Any) -> bool:
            nonlocal budget
            if found.size > budget:
                return False
            budget -= found.size
            try:
                await self._pool.run(look, *what, self._stopping)
            except errors.SectorError as error:  # the slave starts all the same
                log.warn("a file in the data directory waits: {why}", why=error.message)
                return False
            return True

        for found, record in catalogue.verify:
            if not await looked(found, self._disk.verify_thd, found, record):
                later.verify.append((found, record))
        for found in catalogue.adopt:
            if not await looked(found, self._disk.adopt_thd, found):
                later.adopt.append(found)
        return later

    async def run(self, later: Catalogue) -> None:
        """Adopt what was too much at the start, then look at the tree again and again, whatever fails."""
        await self._round(later)
        while not self._stopping():
            await pause(self._clock, self._every_s)
            if not self._joined():
                continue
            try:
                changed = await self._pool.run(self._disk.rescan_thd)
            except errors.SectorError as error:
                log.warn("the data directory cannot be scanned: {why}", why=error.message)
                continue
            await self._round(changed)

    async def _round(self, catalogue: Catalogue) -> None:
        found: list[SliceMeta] = []
        gone: list[tuple[str, Version]] = []
        for work in self._works(catalogue, found, gone):
            try:
                await work
            except errors.SectorError as error:  # one bad file does not hide the others
                log.warn("a change in the data directory waits: {why}", why=error.message)
            if self._stopping():
                break
        self.tell_warnings()
        if self._stopping():  # what was not looked into seems gone, and the next start reports all there is
            return
        try:
            for at in range(0, max(len(found), len(gone)), _TELL_AT_ONCE):
                end = at + _TELL_AT_ONCE
                here = [m for m in found[at:end] if self._has(m.path, m.version)]  # not what was replaced
                away = [named for named in gone[at:end] if not self._has(*named)]  # not what came back
                await self._master_call(Adopted(self._disk.slave_id, here, away), deadline_s=30.0)
        except errors.SectorError as error:
            self.untold = True
            log.warn("the master was not told what changed in the data directory: {why}", why=error.message)

    def _has(self, path: str, version: Version) -> bool:
        known = self._disk.entries.get(path)
        return known is not None and known.version == version

    def _again(self, catalogue: Catalogue) -> list[tuple[Found, Record]]:
        """What to look into once more, beside what a scan saw, now as changed or gone."""
        unread, self._unread = self._unread, {}
        seen = {path for path, _ in catalogue.gone} | {found.path for found, _ in catalogue.verify}
        entries = self._disk.entries
        return [
            (found, record)
            for path, (found, record) in unread.items()
            if path not in seen and self._has(path, record.version) and found.matches(entries[path])
        ]

    def _works(self, catalogue: Catalogue, found: list[SliceMeta], gone: list[tuple[str, Version]]) -> Any:
        """What has to be done for each entry, one after the other; fills `found` and `gone`."""
        run, disk = self._pool.run, self._disk

        async def verify(seen: Found, record: Record) -> None:
            try:
                good = await run(disk.verify_thd, seen, record, self._stopping)
            except errors.SectorError:
                self._unread[seen.path] = seen, record
                raise
            if good:
                found.append(record.meta)
            else:
                gone.append((record.path, record.version))

        async def aside(path: str, why: str) -> None:
            known = disk.entries.get(path)
            if known is None:
                await run(disk.aside_unknown_thd, path, why)
            elif (path, known.version) in catalogue.gone:
                await run(disk.set_aside_thd, path, known.version, why)

        async def lost(path: str, version: Version) -> None:
            if await run(disk.lost_thd, path, version) or path not in disk.entries:
                gone.append((path, version))

        async def adopt(seen: Any) -> None:
            new = await run(disk.adopt_thd, seen, self._stopping)
            if new is not None:
                found.append(new.meta)

        for seen, record in (*catalogue.verify, *self._again(catalogue)):
            yield verify(seen, record)
        for path, why in catalogue.attic:
            yield aside(path, why)
        for path, version in catalogue.gone:
            yield lost(path, version)
        for seen in catalogue.adopt:
            yield adopt(seen)
