"""Contents that broke off on their way in: kept for some minutes, so that their sender can go on.

What a part of a `put` is worth is not believed of anybody: the client names the checksums of its first
blocks, and what lies here is read and compared with them. A copy is compared as a whole with its digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from sector import errors
from sector._udt import checksum
from sector._udt.data_api import TransferError, TransferResult
from sector.clock import Clock, Timer, pause
from sector.model import BLOCK_BYTES, digest_text
from sector.slave.disk import Disk
from sector.slave.pool import Pool
from sector.slave.room import PART_S, Temp
from sector.wire.outcome import number_of
from sector.wire.slave import LeasesAlive, PrepareReplica, PrepareWrite

MasterCall = Callable[..., Coroutine[Any, Any, Any]]

_MOST = 64
_READ_BLOCKS = 64
_YIELD_S = 5.0
_KEEP_S = 10.0
_BROKEN = ("BROKEN", "PEERCLOSED", "TIMEOUT", "UNREACHABLE", "CLOSED")


def asked_of(request: PrepareWrite | PrepareReplica) -> tuple[str, str, bytes | None]:
    """(key of what comes, key of what it may go on with, checksums that this must have; None = any)."""
    if isinstance(request, PrepareWrite):
        return request.lease.hex(), (request.part or request.lease).hex(), request.blocks
    name = f"{request.meta.path}\0{request.meta.version.epoch}.{request.meta.version.counter}"
    key = hashlib.sha256(name.encode()).hexdigest()[:32]
    return key, key, None if request.go_on else b""


def _unpack(blocks: bytes) -> tuple[int, ...]:
    count = len(blocks) // 4
    return struct.unpack(f"<{count}I", blocks[: 4 * count])


@dataclass(eq=False)
class Part:
    """A content on its way in: its file, and the checksums of the blocks that came with earlier attempts."""

    key: str
    temp: Temp
    head: tuple[int, ...] = ()
    lease: bytes = b""
    moved_at: float = float("-inf")
    stop: Callable[[], object] = lambda: None
    wanted: bool = False
    """Another attempt takes over."""
    ended: list[Deferred[None]] = field(default_factory=list)
    timer: Timer | None = None

    @property
    def offset(self) -> int:
        """Where the bytes that are missing begin."""
        return len(self.head) * BLOCK_BYTES

    def whole(self, result: TransferResult) -> tuple[int, tuple[int, ...], str]:
        """(size, checksums, digest) of all that has come, `result` with the last attempt."""
        size, crcs = self.offset + result.moved, (*self.head, *result.crcs)
        raw = checksum.content_digest(crcs, size) if self.head else result.digest
        return size, crcs, digest_text(raw)


class Parts:
    """The parts of one slave. Those that wait give their room to whatever needs it."""

    def __init__(self, disk: Disk, pool: Pool, clock: Clock) -> None:
        self._disk = disk
        self._pool = pool
        self._clock = clock
        self._kept: dict[str, Part] = {}
        self._running: dict[str, Part] = {}
        self._local: set[bytes] = set()

    @contextmanager
    def at_work(self, lease: bytes) -> Iterator[None]:
        """A file of this machine is put into its place under this lease: its sync may take long."""
        self._local.add(lease)
        try:
            yield
        finally:
            self._local.discard(lease)

    async def begin(self, key: str, old: str, blocks: bytes | None, path: str, size: int) -> Part:
        """Room for `size` bytes of `path`: the part with the key `old` as far as it has the checksums
        `blocks` (None: whatever they are), else a new one. Raises NoSpace, Conflict, LocalIO."""
        part = await self._take(old, blocks)
        if part is not None and not await self._fits(part, size):
            await self.drop(part)
            part = None
        if part is not None and key != old:
            part.key = key
            part.temp = await self._pool.run(self._disk.name_part_thd, part.temp, key)
        if part is None:
            part = Part(key, await self._reserve(key, path, size))
        self._running[key] = part
        return part

    async def _fits(self, part: Part, size: int) -> bool:
        """Whether the file can have this size now: what was put may have become shorter or longer since."""
        if size < part.offset:
            return False
        fitting: bool = await self._pool.run(self._disk.fit_temp_thd, part.temp, size)
        return fitting

    async def _reserve(self, key: str, path: str, size: int) -> Temp:
        while True:
            try:
                temp: Temp = await self._pool.run(self._disk.reserve_thd, path, size, key)
                return temp
            except errors.NoSpace:
                if not self._kept:
                    raise
            await self.drop(self._kept.pop(next(iter(self._kept))))

    async def _take(self, key: str, blocks: bytes | None) -> Part | None:
        """The part with this key, without what is of no use."""
        running = self._running.get(key)
        if running is not None and blocks:
            await self._take_over(running)
        part = self._kept.pop(key, None)
        if part is None and blocks != b"" and (name := self._disk.parts.pop(key, "")):
            with suppress(errors.LocalIO):
                part = Part(key, await self._pool.run(self._disk.reopen_thd, name))
        if part is None:
            return None
        if part.timer is not None and part.timer.active():
            part.timer.cancel()
        try:
            part.head = await self._agreeing(part.temp, None if blocks is None else _unpack(blocks))
        except BaseException:
            await self.drop(part)
            raise
        if not part.head:
            await self.drop(part)
            return None
        return part

    async def _take_over(self, running: Part) -> None:
        """Have an attempt end that has not noticed yet that its peer is gone."""
        ended: Deferred[None] = Deferred()
        running.ended.append(ended)
        running.wanted = True
        running.stop()
        timer = self._clock.callLater(_YIELD_S, self._fire, ended)
        try:
            await ended
        finally:
            if timer.active():
                timer.cancel()

    async def _blocks(self, temp: Temp) -> int:
        count: int = await self._pool.run(self._disk.whole_blocks_thd, temp)
        return count

    async def _agreeing(self, temp: Temp, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
        """The checksums of the first blocks of a file, up to the first that is not the wanted one."""
        found: list[int] = []
        whole = await self._blocks(temp)
        count = whole if wanted is None else min(whole, len(wanted))
        while len(found) < count:
            more = min(_READ_BLOCKS, count - len(found))
            at = len(found)
            try:
                crcs = await self._pool.run(
                    checksum.block_crcs, temp.fd, at * BLOCK_BYTES, more * BLOCK_BYTES
                )
            except (OSError, EOFError):
                break
            for number, crc in enumerate(crcs, at):
                if wanted is not None and wanted[number] != crc:
                    return tuple(found)
                found.append(crc)
        return tuple(found)

    async def give_up(self, part: Part, why: Exception) -> None:
        """An attempt has failed: what has come is kept if another one may go on with it."""
        if isinstance(why, CancelledError):  # the slave stops: the next start finds the file by its name
            await self._pool.run(self._disk.leave_temp_thd, part.temp)
        elif self._useful(part, why) and await self._blocks(part.temp):
            await self._keep(part)
        else:
            await self.drop(part)
        self.done(part)

    def moved(self, part: Part) -> None:
        """Bytes have come."""
        part.moved_at = self._clock.seconds()

    async def _keep(self, part: Part) -> None:
        before, self._kept[part.key] = self._kept.pop(part.key, None), part
        part.head = ()
        part.timer = self._clock.callLater(PART_S, self._too_old, part)
        if before is not None:
            await self.drop(before)
        while len(self._kept) > _MOST:
            await self.drop(self._kept.pop(next(iter(self._kept))))

    def has(self, part: Part) -> bool:
        """Whether it waits here."""
        return self._kept.get(part.key) is part

    @staticmethod
    def _useful(part: Part, why: Exception) -> bool:
        if not isinstance(why, TransferError):
            return False
        away = why.code == "REMOTE" and why.remote == number_of(errors.Unavailable(""))
        return part.wanted or away or why.code in _BROKEN

    def done(self, part: Part) -> None:
        """The attempt has ended; if all has come, the file has another owner."""
        if self._running.get(part.key) is part:
            del self._running[part.key]
        ended, part.ended = part.ended, []
        for waiting in ended:
            self._fire(waiting)

    @staticmethod
    def _fire(waiting: Deferred[None]) -> None:
        if not waiting.called:
            waiting.callback(None)

    def _too_old(self, part: Part) -> None:
        if self._kept.get(part.key) is part:
            del self._kept[part.key]
            self._pool.run(self._disk.drop_temp_thd, part.temp).addErrback(lambda _: None)

    async def drop(self, part: Part) -> None:
        """Give a part up."""
        if part.timer is not None and part.timer.active():
            part.timer.cancel()
        await self._pool.run(self._disk.drop_temp_thd, part.temp)

    async def run(self, slave_id: str, master_call: MasterCall) -> None:
        """Tell the master of the writers that are at work here: many a file takes longer than a session.
        Remove, after a while, what an earlier process left and nobody has gone on with."""
        began = self._clock.seconds()
        while True:
            await pause(self._clock, _KEEP_S)
            since = self._clock.seconds() - 3 * _KEEP_S
            at_work = [part for part in self._running.values() if part.lease and part.moved_at > since]
            leases = [*self._local, *(part.lease for part in at_work)]
            if leases:
                with suppress(errors.SectorError):
                    await master_call(LeasesAlive(slave_id, leases))
            if self._disk.parts and self._clock.seconds() - began >= PART_S:
                names, self._disk.parts = list(self._disk.parts.values()), {}
                for name in names:
                    await self._pool.run(self._disk.unlink_part_thd, name)

    async def stop(self) -> None:
        """The slave stops: the files stay for its next start."""
        kept, self._kept = list(self._kept.values()), {}
        for part in kept:
            if part.timer is not None and part.timer.active():
                part.timer.cancel()
            await self._pool.run(self._disk.leave_temp_thd, part.temp)
