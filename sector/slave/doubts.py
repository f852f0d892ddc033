"""Replicas that somebody could not read, or read with other bytes than were written: looked at by themselves.

One read that fails says little: a descriptor or memory was lacking, a cable was loose for a moment. Only what
is bad each time it is looked at, from the disk itself, is condemned; what is good is told to the master, for
whom it may be a bad one since an earlier time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from twisted.logger import Logger

from sector import errors
from sector.model import BLOCK_BYTES, Version
from sector.slave.catalog import Record
from sector.slave.pool import Pool
from sector.slave.rot import Look, ScrubbedDisk
from sector.wire.slave import Adopted

log = Logger()
AGAIN_S = (1.0, 5.0)
"""Pauses before what was bad is looked at again: only what is bad each time counts."""
_LATER_TRIES = 20
_STEP_BYTES = 64 * BLOCK_BYTES
_AT_ONCE = 4
_ASKED_MOST = 16

Wait = Callable[[float], Awaitable[None]]


async def patient(look: Callable[[], Awaitable[Look]], wait: Wait) -> Look:
    """The outcome of `look`; a disk that cannot or will not read is given some more chances."""
    found = await look()
    tries = 0
    while found.kind in ("bad", "unreadable", "later"):
        if tries >= (_LATER_TRIES if found.kind == "later" else len(AGAIN_S)):
            break
        log.debug("{why}: once more", why=found.why)
        await wait(AGAIN_S[min(tries, len(AGAIN_S) - 1)])
        tries += 1
        found = await look()
    return found


class Doubts:
    """The doubtful replicas of one slave, some at a time."""

    def __init__(
        self,
        disk: ScrubbedDisk,
        pool: Pool,
        *,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        wait: Wait,
        stopping: Callable[[], bool],
        tell: Callable[[Callable[[], Adopted | None]], Awaitable[bool]],
        condemn: Callable[[str, Version, str], Awaitable[bool]],
        tell_bad: Callable[[str, Version, str], Awaitable[None]],
    ) -> None:
        """`tell` makes a message for each attempt to bring it to the master, until it is None; `condemn` sets
        a replica aside and tells the master, `tell_bad` only does the latter."""
        self._disk = disk
        self._pool = pool
        self._spawn = spawn
        self._wait = wait
        self._stopping = stopping
        self._tell = tell
        self._condemn = condemn
        self._tell_bad = tell_bad
        self._waiting: dict[tuple[str, Version], None] = {}
        self._looking: set[tuple[str, Version]] = set()
        self._working = 0

    def asked(self, path: str, version: Version) -> None:
        """Somebody else doubts a content. Raises NotFound (not here), Busy."""
        if self._here(path, version) is None:
            raise errors.NotFound(f"{self._disk.where} has no such version of {path}")
        if len(self._waiting) + len(self._looking) >= _ASKED_MOST:
            raise errors.Busy(f"{self._disk.where} reads {_ASKED_MOST} files to verify them")
        self.add(path, version)

    def add(self, path: str, version: Version) -> None:
        """Have all of a content read and compared with its checksums."""
        if (path, version) in self._looking:
            return
        self._waiting[path, version] = None
        if self._working < _AT_ONCE:
            self._working += 1
            self._spawn(self._work(), "looking at doubtful replicas")

    def _here(self, path: str, version: Version) -> Record | None:
        record = self._disk.entries.get(path)
        return record if record is not None and record.version == version else None

    async def _work(self) -> None:
        try:
            while self._waiting and not self._stopping():
                named = next(iter(self._waiting))
                del self._waiting[named]
                self._looking.add(named)
                try:
                    await self._judge(*named)
                except errors.SectorError as error:
                    log.warn("{path} cannot be looked at: {why}", path=named[0], why=error.message)
                finally:
                    self._looking.discard(named)
        finally:
            self._working -= 1

    async def _judge(self, path: str, version: Version) -> None:
        record = self._here(path, version)
        if record is None:
            return
        look = await self._look(record)
        if self._stopping() or look.kind == "moved":
            return
        if look.kind in ("changed", "missing"):
            if not await self._pool.run(self._disk.changed_thd, record, self._stopping):
                await self._tell_bad(path, version, look.why)
        elif look.kind == "good":
            await self._acquit(path, version)
        elif look.kind == "later":
            log.warn("{path} is in doubt and cannot be looked at now: {why}", path=path, why=look.why)
        else:
            log.error("{path} is damaged: {why}", path=path, why=look.why)
            await self._condemn(path, version, look.why)

    async def _look(self, record: Record) -> Look:
        """The record and all of the content; a record that is damaged alone is written anew."""
        run, disk, wait, whole = self._pool.run, self._disk, self._wait, record

        async def own() -> Look:
            nonlocal whole
            look, whole = await run(disk.whole_thd, record)
            return look

        first = await patient(own, wait)
        if first.kind not in ("good", "bad"):
            return first
        known = whole.blocks if first.kind == "good" else None
        crcs = bytearray()
        for offset in range(0, max(record.size, 1), _STEP_BYTES):
            if self._stopping():
                return Look("later", "the slave stops")
            length = min(_STEP_BYTES, record.size - offset)
            at = 4 * (offset // BLOCK_BYTES)
            wanted = None if known is None else known[at : at + 4 * (_STEP_BYTES // BLOCK_BYTES)]
            look = await patient(partial(run, disk.look_thd, record, offset, length, wanted), wait)
            if look.kind != "good":
                return look
            crcs += look.crcs
        if first.kind == "good":
            return first
        look = await run(disk.mend_thd, record, bytes(crcs))
        if look.kind == "good":
            log.error("{path}: {why}; it was written anew", path=record.path, why=first.why)
        return look

    async def _acquit(self, path: str, version: Version) -> None:
        """All of it was read and is good. The master would strike what replaced it, were it told later."""
        log.info("{path} was in doubt, but is as it was written", path=path)

        def acquitted() -> Adopted | None:
            record = self._here(path, version)
            return None if record is None else Adopted(self._disk.slave_id, [record.meta])

        await self._tell(acquitted)
