"""When a slave reads its replicas again and how fast: schedule, rate, resuming; only numbers, no disk."""

from __future__ import annotations

import msgspec
import pytest

from sector.model import Version
from sector.slave.scrub_core import FILE_COST, FOUND_MOST, STEP_BYTES, At, Progress, Schedule
from sector.wire.slave import Rotten

MB = 1_000_000
GB = 1000 * MB
DAY = 86400.0
PERIOD = 14 * DAY
WALL = 1_700_000_000.0


class Run:
    """A pass over equal files in simulated time."""

    def __init__(self, schedule: Schedule, files: int, size: int, now: float = 0.0) -> None:
        self.schedule = schedule
        self.files = files
        self.size = size
        self.now = now
        self.fastest = 0.0
        self.read_at: list[float] = []

    def go(self, until: float, busy: bool = False) -> None:
        """Read whatever the schedule allows until that time, or the end of the pass."""
        state = self.schedule.progress.state
        while self.now < until and state.running:
            at = self.schedule.progress.at
            offset = at.offset if at is not None else 0
            length = min(STEP_BYTES, self.size - offset)
            self.schedule.tick(self.now, busy)
            wait = self.schedule.wait_s(length, busy)
            if wait > 0:
                self.now += wait
                continue
            self.schedule.has_read(length, At(state.files, 1, 1, offset + length))
            self.read_at.append(self.now)
            if offset + length == self.size:
                self.schedule.passed(state.files, 0)
            state = self.schedule.progress.state
            if state.files == self.files:
                self.schedule.end(WALL + self.now)
                state = self.schedule.progress.state
            self.schedule.check_invariants()


def begun(size: int, files: int, *, rate: int = 50 * MB, period: float = PERIOD, asked: bool = False) -> Run:
    """A pass that begins at 0."""
    schedule = Schedule(period, rate, 0.0)
    schedule.begin(files, files * size, WALL, asked=asked)
    return Run(schedule, files, size)


@pytest.mark.parametrize("size", [10 * MB, 1 * GB])
def test_a_pass_takes_its_period_not_less(size: int) -> None:
    """Neither a burst at its beginning nor at its end: half of it is read in half of the time."""
    run = begun(size, 200)
    run.go(PERIOD * 0.45)
    state = run.schedule.progress.state
    assert 0.48 < state.done_bytes / state.total_bytes < 0.51
    run.go(PERIOD)
    assert not run.schedule.progress.state.running
    assert 0.85 * PERIOD < run.now < 0.91 * PERIOD


def test_what_cannot_be_read_in_the_period_is_read_at_the_highest_rate() -> None:
    """A hundred TB at 50 MB/s take 23 days; they take no more, and nobody reads faster."""
    run = begun(100 * GB, 20, rate=50 * MB, period=0.1 * DAY)
    run.go(10 * DAY)
    assert run.now == pytest.approx(20 * 100 * GB / (50 * MB), rel=0.01)


def test_an_asked_pass_goes_at_the_highest_rate_and_a_fourth_beside_transfers() -> None:
    run = begun(1 * GB, 2, asked=True)
    run.go(DAY)
    assert run.now == pytest.approx(2 * GB / (50 * MB), rel=0.05)
    run = begun(1 * GB, 2, asked=True)
    run.go(DAY, busy=True)
    assert run.now == pytest.approx(4 * 2 * GB / (50 * MB), rel=0.05)


def test_it_stands_still_beside_transfers_until_it_is_late() -> None:
    """A slave that never rests is scrubbed all the same, within the period."""
    run = begun(1 * GB, 2000)
    run.go(0.05 * PERIOD, busy=True)
    assert run.read_at == []
    run.go(2 * PERIOD, busy=True)
    assert not run.schedule.progress.state.running
    assert run.now < PERIOD


def test_passes_begin_once_a_period() -> None:
    schedule = Schedule(PERIOD, MB, 0.0)
    assert schedule.is_due(), "nothing was read ever"
    schedule.begin(0, 0, WALL, asked=False)
    assert not schedule.is_due()
    schedule.end(WALL)
    schedule.tick(PERIOD - 1, False)
    assert not schedule.is_due() and 0 < schedule.due_s() <= 1
    schedule.tick(PERIOD, False)
    assert schedule.is_due()


def test_zero_days_are_off_but_for_users() -> None:
    schedule = Schedule(0, MB, 0.0)
    schedule.tick(100 * DAY, False)
    assert not schedule.is_due()
    other = Schedule(PERIOD, MB, 0.0)
    other.begin(5, 5 * MB, WALL, asked=False)
    kept = other.to_keep(WALL)
    schedule.resume(kept, 0.0, WALL)
    assert not schedule.progress.state.running, "a pass that began by itself ends with the setting"
    schedule.begin(1, MB, WALL, asked=True)
    assert schedule.rate(False) == MB


def restarted(run: Run, wall: float) -> Schedule:
    """What a new process makes of what the disk remembers."""
    body = msgspec.json.encode(run.schedule.to_keep(WALL + run.now))
    schedule = Schedule(PERIOD, 50 * MB, 5.0)
    schedule.resume(msgspec.json.decode(body, type=Progress), 5.0, wall)
    return schedule


def test_a_restart_goes_on_where_it_stood() -> None:
    """Also in the middle of a large file, and the time in between counts."""
    run = begun(100 * GB, 3)
    run.go(0.2 * PERIOD)
    before = run.schedule.progress
    assert before.at is not None and before.at.offset > 0
    after = restarted(run, WALL + run.now + 0.1 * PERIOD)
    assert after.progress.state == before.state and after.progress.at == before.at
    again = Run(after, 3, 100 * GB, 5.0)
    again.go(PERIOD)
    assert 0.55 * PERIOD < again.now < 0.65 * PERIOD, "it ends when it would have without the restart"
    assert after.progress.state.read_bytes == 300 * GB, "no byte twice"


def test_files_that_came_since_the_pass_began_are_counted() -> None:
    """After a restart there is more to read than it began with: it is read in time, and never not at all."""
    run = begun(1 * GB, 10)
    run.go(0.5 * PERIOD)
    files = run.schedule.progress.state.files
    after = restarted(run, WALL + run.now)
    after.left(1000, 1000 * GB)
    assert after.progress.state.total_files == files + 1000
    again = Run(after, files + 1000, 1 * GB, 5.0)
    again.go(PERIOD)
    assert not after.progress.state.running and again.now < 0.45 * PERIOD
    run = begun(1, 1)
    run.schedule.passed(0, 1)
    assert run.schedule.rate(False) > 0, "nothing is left by the sums, but there is one more"


@pytest.mark.parametrize("step", [-10 * 365 * DAY, 10 * 365 * DAY])
def test_a_stepped_clock_makes_nobody_run_wild(step: float) -> None:
    """A clock that jumps while the slave is down costs one pass at most, never above the rate; one that jumps
    while it runs costs nothing, for nobody asks it."""
    run = begun(1 * GB, 10)
    run.go(0.2 * PERIOD)
    after = restarted(run, WALL + run.now + step)
    assert 0 <= after.progress.age_s <= PERIOD
    assert after.rate(False) <= 50 * MB
    again = Run(after, 10, 1 * GB, 5.0)
    again.go(2 * PERIOD)
    assert not after.is_due() or step > 0
    after.begin(10, 10 * GB, WALL + step, asked=False)
    after.end(WALL + step)
    assert not after.is_due(), "the next one has its whole period"


def test_findings_are_counted_all_and_listed_up_to_a_bound() -> None:
    schedule = Schedule(PERIOD, MB, 0.0)
    schedule.begin(2000, 0, WALL, asked=False)
    for number in range(FOUND_MOST + 5):
        schedule.found(Rotten(f"/f{number}", Version(1, 1), "bad", WALL, number == 0), 2)
    state = schedule.progress.state
    assert (state.bad_files, state.bad_blocks, state.mended) == (FOUND_MOST + 5, 2 * FOUND_MOST + 10, 1)
    assert len(schedule.progress.found) == FOUND_MOST
    schedule.begin(1, 1, WALL, asked=True)
    state = schedule.progress.state
    assert (state.bad_files, state.all_bad_files, state.number) == (0, FOUND_MOST + 5, 2)
    assert schedule.progress.found == []


def test_small_files_cost_more_than_their_bytes() -> None:
    """A million files of one byte are not read in one go because they are only a megabyte."""
    run = begun(1, 1000, asked=True, rate=MB)
    run.go(DAY)
    assert run.now == pytest.approx(1000 * FILE_COST / MB, rel=0.2)
