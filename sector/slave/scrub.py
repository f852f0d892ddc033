"""Rot looked for before a reader finds it: a slave reads all of its replicas again, within a set period.

The thread that reads is the scrub's own, with idle I/O priority; when, how fast and from where is said by
`scrub_core`, what is found by `rot`. A bad replica is set aside and the master told, as after a failed read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from sector import errors
from sector.clock import Clock
from sector.model import BLOCK_BYTES, Version
from sector.slave.catalog import Record
from sector.slave.doubts import AGAIN_S, patient
from sector.slave.pool import Pool
from sector.slave.rot import Look, ScrubbedDisk, be_idle_thd
from sector.slave.scrub_core import MISSED_MOST, STEP_BYTES, At, Progress, Schedule
from sector.wire.slave import Rotten, Scrubbed, ScrubReply, ScrubState

log = Logger()
SAVE_S = 30.0
TELL_S = 5.0

Condemn = Callable[[str, Version, str], Awaitable[bool]]
Tell = Callable[[str, Version, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pace:
    """`period_s` 0 = only when asked; `rate` bytes a second at most."""

    period_s: float
    rate: int


class _Anew(Exception):
    """A user wants all to be read from the beginning."""


def _seldom(state: ScrubState) -> ScrubState:
    """What of a state does not change with each block."""
    return msgspec.structs.replace(state, files=0, done_bytes=0, read_bytes=0)


class Scrubber:
    """The scrub of one slave. `condemn` sets a replica aside and tells the master (False = another has done
    so), `tell` only does the latter; `busy` says whether transfers run."""

    def __init__(
        self,
        disk: ScrubbedDisk,
        pool: Pool,
        clock: Clock,
        pace: Pace,
        *,
        wall: Callable[[], float],
        busy: Callable[[], bool],
        condemn: Condemn,
        tell: Tell,
        idle: bool = True,
    ) -> None:
        """`pool` has one thread, whose reads are made `idle`; `wall` gives seconds since 1970."""
        self._disk = disk
        self._pool = pool
        self._clock = clock
        self._wall = wall
        self._busy = busy
        self._condemn = condemn
        self._tell = tell
        self._idle = idle
        self._schedule = Schedule(pace.period_s, pace.rate, clock.seconds())
        self._loaded = False
        self._asked = False
        self._stopping = False
        self._told: tuple[ScrubState, float] | None = None
        self._unheard = False
        self._judged: tuple[str, Version] | None = None
        self._saved_at = float("-inf")
        self._saved = b""
        self._sleeper: Deferred[None] | None = None

    # --------------------------------------------------------------------------- from outside
    @property
    def state(self) -> ScrubState:
        """How it stands; a pass that was asked for has begun."""
        state = self._schedule.progress.state
        if not self._asked:
            return state
        return msgspec.structs.replace(
            state,
            number=state.number + 1,
            running=True,
            asked=True,
            began=self._wall(),
            total_files=len(self._disk.entries),
            total_bytes=sum(record.size for record in list(self._disk.entries.values())),
            files=0,
            done_bytes=0,
            bad_files=0,
            bad_blocks=0,
            mended=0,
        )

    def answer(self, start: bool) -> ScrubReply:
        """How it stands, and what was found. `start` = begin a pass at full rate now; one that was asked for
        and still runs goes on. Raises Busy while the slave starts."""
        if not self._loaded:
            raise errors.Busy(f"{self._disk.where} is starting")
        if start and not (self.state.running and self.state.asked):
            self._asked = True
            self._wake()
        return ScrubReply(self.state, [] if self._asked else list(self._schedule.progress.found))

    def heard(self, path: str, version: Version, why: str) -> None:
        """A reader or a copy has found a bad replica; while a pass runs it is one of the pass's, too: that
        cannot find it any more, and who waits for the pass wants to know."""
        if self._loaded and self._schedule.progress.state.running and self._judged != (path, version):
            self._schedule.found(Rotten(path, version, why[:1000], self._wall()), 1)

    def joined(self) -> None:
        """There is a master, perhaps another one: it has to be told."""
        self._told, self._unheard = None, False

    async def tell_state(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """Have the master know how it stands: at once what changes seldom, how far it is every few seconds.
        A master that is too old to know of scrubs is not asked again."""
        state, now = self.state, self._clock.seconds()
        if self._unheard or not self._loaded:
            return
        if self._told is not None:
            before, at = self._told
            if before == state or (_seldom(before) == _seldom(state) and now < at + TELL_S):
                return
        try:
            await ask(Scrubbed(self._disk.slave_id, state), deadline_s=2.0)
            self._told = state, now
        except errors.Protocol:
            self._unheard = True
        except errors.SectorError as error:
            log.debug("the master was not told of the scrub: {why}", why=error.message)

    def stop(self) -> None:
        """No more work; what runs ends soon."""
        self._stopping = True

    def stopped(self) -> None:
        """Keep where it stands: nothing runs any more, and the directory is still ours."""
        if self._loaded:
            self._schedule.tick(self._clock.seconds(), True)
            try:
                self._disk.keep_progress_thd(self._encoded())
            except errors.SectorError as error:
                log.warn("{why}", why=error.message)

    # --------------------------------------------------------------------------- the work
    async def load(self) -> None:
        """Take up where an earlier process stood; before a master can ask."""
        kept = await self._pool.run(self._disk.progress_thd)
        self._schedule.resume(kept, self._clock.seconds(), self._wall())
        self._loaded = True

    async def run(self) -> None:
        """After `load`: passes, one after the other, whatever fails; ends by being cancelled."""
        if self._idle and await self._pool.run(be_idle_thd):
            log.debug("the scrub reads with idle priority")
        while True:
            try:
                self._tick()
                if self._asked or (self._disk.entries and self._schedule.is_due()):
                    await self._begin()
                if self._schedule.progress.state.running:
                    await self._pass()
                else:
                    await self._keep()
                    await self._sleep(self._schedule.due_s())
            except _Anew:
                continue
            except errors.SectorError as error:
                log.warn("the scrub waits: {why}", why=error.message)
                await self._sleep(60.0)
            except CancelledError:
                raise
            except Exception:  # a fault of ours must not end it for the life of this slave
                log.failure("the scrub failed and waits")
                await self._sleep(60.0)

    async def _begin(self) -> None:
        files, size = await self._pool.run(self._disk.sums_thd)
        self._schedule.begin(files, size, self._wall(), asked=self._asked)
        self._asked = False
        log.info(
            "scrub {number} begins: {files} files, {bytes} bytes",
            number=self.state.number,
            files=files,
            bytes=size,
        )
        await self._keep(force=True)

    def _tick(self) -> None:
        self._schedule.tick(self._clock.seconds(), self._busy())

    async def _pass(self) -> None:
        """From where the kept state stands to the end. Raises _Anew."""
        progress = self._schedule.progress
        listed, size = await self._pool.run(self._disk.order_thd, progress.inode)
        self._schedule.left(len(listed), size)
        for record in listed:
            await self._file(record, late=False)
            if len(progress.missed) >= MISSED_MOST:
                await self._late(progress)
        for _ in range(3):
            await self._late(progress)
        self._schedule.end(self._wall())
        await self._keep(force=True)
        state = progress.state
        log.info(
            "scrub {number} ended: {bytes} bytes in {files} files, {bad} bad replicas, {blocks} bad blocks",
            number=state.number,
            bytes=state.total_bytes,
            files=state.total_files,
            bad=state.bad_files,
            blocks=state.bad_blocks,
        )

    async def _late(self, progress: Progress) -> None:
        """Files that had got another name before their turn came."""
        if progress.missed:
            missed, progress.missed = progress.missed, []
            for record in await self._pool.run(self._disk.named_thd, missed):
                await self._file(record, late=True)

    async def _file(self, listed: Record, *, late: bool) -> None:
        """One content, from where an earlier process stood in it."""
        record = self._disk.entries.get(listed.path)
        if record is None or record.inode != listed.inode:
            if not late:
                self._schedule.progress.missed.append(listed.inode)
                self._schedule.passed(listed.inode, listed.size)
            await self._breathe()
            return
        at = self._schedule.progress.at
        same = at is not None and (at.inode, at.epoch, at.counter) == (
            record.inode,
            record.epoch,
            record.counter,
        )
        offset = at.offset if at is not None and same else 0
        await self._turn(min(STEP_BYTES, record.size - offset))
        look, whole = await self._record(record)
        if look.kind == "good":
            offset, look = await self._content(whole, offset)
        elif look.kind == "bad":
            look = await self._mend(record, look, offset)
        if look.kind == "moved":
            self._schedule.progress.missed.append(record.inode)
        elif look.kind == "later":
            log.warn("{path} is left out of this scrub: {why}", path=record.path, why=look.why)
        elif look.kind != "good":
            self._judged = record.path, record.version
            await self._judge(record, look)
            self._judged = None
        self._schedule.passed(record.inode, max(0, record.size - offset), late=late)
        await self._keep()

    async def _record(self, record: Record) -> tuple[Look, Record]:
        """The record of a content with its block checksums; bad only if it is so again and again."""
        look, whole = await self._pool.run(self._disk.whole_thd, record)
        for seconds in AGAIN_S:
            if look.kind not in ("bad", "later"):
                break
            await self._wait(seconds)
            look, whole = await self._pool.run(self._disk.whole_thd, record)
        return look, whole

    async def _content(self, whole: Record, offset: int) -> tuple[int, Look]:
        """Compare a content with its record from `offset`; how far it is good, and what stands there."""
        if not whole.size:
            return 0, await self._look(whole, 0, 0, b"")
        look = Look("good")
        while offset < whole.size:
            length = min(STEP_BYTES, whole.size - offset)
            await self._turn(length)
            first = offset // BLOCK_BYTES
            expected = whole.blocks[4 * first : 4 * (first + STEP_BYTES // BLOCK_BYTES)]
            look = await self._look(whole, offset, length, expected)
            if look.kind != "good":
                break
            offset += length
            self._schedule.has_read(length, At(whole.inode, whole.epoch, whole.counter, offset))
            await self._keep()
        return offset, look

    async def _look(self, record: Record, offset: int, length: int, expected: bytes | None) -> Look:
        """Look at a part; a disk that cannot or will not read it is given some more chances."""
        args = record, offset, length, expected
        return await patient(lambda: self._pool.run(self._disk.look_thd, *args), self._wait)

    async def _mend(self, record: Record, bad: Look, known: int) -> Look:
        """The record is damaged or gone, but its digest is known: if the content has that, the record is
        written anew."""
        crcs = bytearray()
        for offset in range(0, record.size, STEP_BYTES):
            length = min(STEP_BYTES, record.size - offset)
            await self._turn(length)
            look = await self._look(record, offset, length, None)
            if look.kind != "good":
                return look
            crcs += look.crcs
            self._schedule.has_read(length, None, anew=offset < known)
        if not record.size:
            look = await self._look(record, 0, 0, None)
            if look.kind != "good":
                return look
        try:
            look = await self._pool.run(self._disk.mend_thd, record, bytes(crcs))
        except errors.SectorError as error:
            return Look("later", error.message)
        if look.kind == "good":
            log.error("{path}: {why}; it was written anew", path=record.path, why=bad.why)
            self._note(record, bad.why, 0, mended=True)
        return look

    # --------------------------------------------------------------------------- what is found
    async def _judge(self, record: Record, look: Look) -> None:
        """A content is not as it was written: it goes to the attic, and the master hears of it."""
        why = look.why
        if look.kind in ("changed", "missing"):
            try:
                if await self._pool.run(self._disk.changed_thd, record, lambda: self._stopping):
                    return  # only its times are others, or it is back
                await self._tell(record.path, record.version, why)
            except errors.SectorError as error:
                why = error.message
                await self._condemn(record.path, record.version, why)
        else:
            if len(look.blocks) > 1:
                why += f", and {len(look.blocks) - 1} more near by"
            if not await self._condemn(record.path, record.version, why):
                return  # a reader was faster: `heard`
        log.error("a replica is bad: {path}: {why}", path=record.path, why=why, blocks=len(look.blocks))
        self._note(record, why, len(look.blocks), mended=False)
        await self._keep(force=True)

    def _note(self, record: Record, why: str, blocks: int, *, mended: bool) -> None:
        found = Rotten(record.path, record.version, why[:1000], self._wall(), mended)
        self._schedule.found(found, blocks)

    # --------------------------------------------------------------------------- waiting, keeping
    async def _turn(self, length: int) -> None:
        """Wait until so many bytes may be read. Raises _Anew."""
        while True:
            self._tick()
            seconds = self._schedule.wait_s(length, self._busy())
            if seconds <= 0:
                break
            await self._wait(seconds)
        self._check()

    async def _breathe(self) -> None:
        """Files that are gone cost nothing, but thousands of them must not hold the reactor."""
        if self._schedule.progress.state.files % 256 == 0:
            await self._wait(0)

    async def _wait(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._check()

    def _check(self) -> None:
        if self._asked:
            raise _Anew

    def _sleep(self, seconds: float) -> Deferred[None]:
        sleeper: Deferred[None] = Deferred()
        self._sleeper = sleeper
        timer = self._clock.callLater(seconds, self._wake)

        def ended(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return sleeper.addBoth(ended)

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None and not sleeper.called:
            sleeper.callback(None)

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self._schedule.to_keep(self._wall()))

    async def _keep(self, *, force: bool = False) -> None:
        """Have the disk remember where this stands, not too often."""
        now = self._clock.seconds()
        if not force and now - self._saved_at < SAVE_S:
            return
        progress = self._schedule.progress
        state = msgspec.json.encode((progress.state, progress.inode, progress.at))
        if state == self._saved and not force:
            return
        self._saved_at, self._saved = now, state
        try:
            await self._pool.run(self._disk.keep_progress_thd, self._encoded())
        except errors.SectorError as error:
            log.warn("{why}", why=error.message)
