"""When a slave reads its replicas again, and how fast: the schedule and the pace. Pure.

Callers give `now` in seconds of a monotonic clock, and `wall` in seconds since 1970 where time has to outlive
the process. Source: design.md, section 5 ("Scrub re-reads every block in a set period").
"""

from __future__ import annotations

import msgspec

from sector.wire.slave import Rotten, ScrubState

FORMAT = 1
STEP_BYTES = 8 << 20
"""What is read in one go at most."""
FILE_COST = 64 << 10
"""What a file costs beside its bytes (its record, a seek), in bytes."""
ON_TIME = 0.9
"""The share of the period in which a pass is to be through: the rest is for days of much work."""
BUSY_SHARE = 4
"""Of the highest rate a pass has at most so much (a fourth) while transfers run."""
LATE = 0.1
"""So much of a pass may be behind its time before it reads beside transfers."""
NAP_S = 60.0
"""The longest sleep of who waits for the schedule."""
FOUND_MOST = 1000
MISSED_MOST = 1000


class At(msgspec.Struct, frozen=True):
    """How far one file was read: `offset` bytes of the content (`inode`, version) are good."""

    inode: int
    epoch: int
    counter: int
    offset: int


class Progress(msgspec.Struct):
    """What is kept on disk. `age_s` seconds ago, of which none is counted twice, the pass began; files are
    read in the order of their inodes, up to `inode` they are done; `at` is the one under way; `missed` are
    inodes that had another name when their turn came; `saved` = seconds since 1970."""

    state: ScrubState = ScrubState()
    age_s: float = 0.0
    saved: float = 0.0
    inode: int = -1
    at: At | None = None
    missed: list[int] = []
    found: list[Rotten] = []
    format: int = FORMAT


class Schedule:
    """Passes of one slave: when one begins, how fast it goes."""

    def __init__(self, period_s: float, limit: int, now: float) -> None:
        """A pass every `period_s` seconds (0 = only when asked), at most `limit` bytes a second."""
        self.progress = Progress()
        self._period_s = period_s
        self._limit = limit
        self._now = now
        self._credit = 0.0

    # -------------------------------------------------------------------------------- what is kept
    def resume(self, kept: Progress, now: float, wall: float) -> None:
        """Go on where an earlier process stood. The time in between counts as the clock on the wall tells it,
        at most a period, never less than nothing: no clock makes more of it than that one pass is due."""
        self.progress = kept
        self._now = now
        self._credit = 0.0
        if self._period_s:
            gap = wall - kept.saved
            kept.age_s = min(max(0.0, kept.age_s) + min(max(0.0, gap), self._period_s), self._period_s)
        elif kept.state.running and not kept.state.asked:
            self._set(running=False)

    def to_keep(self, wall: float) -> Progress:
        """The state for the disk."""
        self.progress.saved = wall
        return self.progress

    def _set(self, **changes: object) -> None:
        self.progress.state = msgspec.structs.replace(self.progress.state, **changes)

    # ---------------------------------------------------------------------------------- the passes
    def tick(self, now: float, busy: bool) -> None:
        """Time went on; `busy` = transfers run."""
        passed = max(0.0, now - self._now)
        self._now = now
        self.progress.age_s += passed
        if self.progress.state.running:
            rate = self.rate(busy)
            self._credit = min(self._credit + rate * passed, max(float(STEP_BYTES + FILE_COST), rate))

    def is_due(self) -> bool:
        """Whether a pass has to begin."""
        state = self.progress.state
        first = state.number == 0
        return self._period_s > 0 and not state.running and (first or self.progress.age_s >= self._period_s)

    def due_s(self) -> float:
        """Seconds until it is worth to look again, while none runs."""
        if not self._period_s:
            return NAP_S
        return min(NAP_S, max(0.1, self._period_s - self.progress.age_s))

    def begin(self, files: int, size: int, wall: float, *, asked: bool) -> None:
        """A pass over so many files and bytes begins."""
        kept = self.progress
        kept.age_s, kept.inode, kept.at, kept.missed, kept.found = 0.0, -1, None, [], []
        self._credit = 0.0
        self._set(
            number=kept.state.number + 1,
            running=True,
            asked=asked,
            began=wall,
            total_files=files,
            total_bytes=size,
            files=0,
            done_bytes=0,
            bad_files=0,
            bad_blocks=0,
            mended=0,
        )

    def left(self, files: int, size: int) -> None:
        """What of the pass is before it, as a new listing says: files came and went since it began."""
        state = self.progress.state
        at = self.progress.at
        rest = max(0, size - (at.offset if at is not None else 0))
        self._set(total_files=state.files + files, total_bytes=state.done_bytes + rest)

    def end(self, wall: float) -> None:
        """All of the pass is read."""
        state = self.progress.state
        self.progress.at = None
        self._set(
            running=False,
            ended=wall,
            files=state.total_files,
            done_bytes=state.total_bytes,
        )

    # ---------------------------------------------------------------------------------------- pace
    def rate(self, busy: bool) -> float:
        """Bytes a second at the moment, 0 = stand still."""
        state = self.progress.state
        files = max(0, state.total_files - state.files)
        rest = max(0, state.total_bytes - state.done_bytes) + files * FILE_COST
        if state.asked or not self._period_s:
            return self._limit / (BUSY_SHARE if busy else 1)
        time = ON_TIME * self._period_s
        whole = max(STEP_BYTES, state.total_bytes + state.total_files * FILE_COST)
        even = whole / time  # at least: what is not in the sums has to be read, too
        rate = min(float(self._limit), max(even, rest / max(1.0, time - self.progress.age_s)))
        if not busy:
            return rate
        behind = self.progress.age_s / time - (1 - rest / whole)
        return min(rate, self._limit / BUSY_SHARE) if behind > LATE else 0.0

    def wait_s(self, size: int, busy: bool) -> float:
        """Seconds until the next `size` bytes (at most `STEP_BYTES`) of a file may be read; 0 = now."""
        lacking = size + FILE_COST - self._credit
        if lacking <= 0:
            return 0.0
        rate = self.rate(busy)
        return min(NAP_S, max(0.001, lacking / rate)) if rate > 0 else 1.0

    def has_read(self, size: int, at: At | None, *, anew: bool = False) -> None:
        """So many bytes were read; `at` is how far the file now is. `anew` = they were read before."""
        self._credit -= size
        state = self.progress.state
        self.progress.at = at
        done = state.done_bytes + (0 if anew else size)
        self._set(read_bytes=state.read_bytes + size, done_bytes=min(state.total_bytes, done))

    def passed(self, inode: int, rest: int, *, late: bool = False) -> None:
        """A file is done; `rest` of its bytes were not read. `late` = it was not found at its turn."""
        self._credit -= FILE_COST
        if not late:
            self.progress.inode = inode
        self.progress.at = None
        state = self.progress.state
        self._set(
            files=min(state.total_files, state.files + 1),
            done_bytes=min(state.total_bytes, state.done_bytes + rest),
        )

    # -------------------------------------------------------------------------------- what is found
    def found(self, bad: Rotten, blocks: int) -> None:
        """A replica is bad, in so many blocks as were read."""
        state = self.progress.state
        if len(self.progress.found) < FOUND_MOST:
            self.progress.found.append(bad)
        self._set(
            bad_files=state.bad_files + 1,
            bad_blocks=state.bad_blocks + blocks,
            mended=state.mended + int(bad.mended),
            all_bad_files=state.all_bad_files + 1,
            all_bad_blocks=state.all_bad_blocks + blocks,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError if the state is impossible."""
        state = self.progress.state
        assert state.files <= state.total_files and state.done_bytes <= state.total_bytes
        assert state.mended <= state.bad_files <= state.all_bad_files
        assert self.progress.age_s >= 0 and len(self.progress.found) <= FOUND_MOST
