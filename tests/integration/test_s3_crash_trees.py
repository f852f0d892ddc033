"""Power cuts under a whole service: what it wrote and synced is recorded below it, each tree that a crash may
leave is put on disk and recovered, and must hold all that clients were told.

SECTOR_TEST_CRASH_STATES: how many trees of each recording are looked at.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import Choose, Disk, Kind, Tree, all_of_it, at_random, nothing
from s3_crash import Book, Step, moments, problems, record, recovered, unsynced

STATES = int(os.environ.get("SECTOR_TEST_CRASH_STATES", "500"))
CHANGES = 24  # of each client, besides those that every recording has


class Recorded:
    """A recording with what clients were told meanwhile."""

    def __init__(self, path: Path, seed: int, workers: int, count: int = CHANGES, fsync: bool = True) -> None:
        self.recording, self.book = record(path, seed, workers=workers, count=count, fsync=fsync)
        self.disk = self.recording.disk()
        self.tree = Tree(path / "crash", self.recording.aside)

    def steps(self) -> dict[str, Step]:
        """By request; of a request with several steps the last."""
        return {step.request: step for steps in self.book.steps for step in steps}

    def crash(self, disk: Disk, at: int, choose: Choose, *, scanned: bool) -> list[str]:
        """What is wrong after a crash at that moment."""
        self.tree.build(disk.state(at, choose))
        with recovered(self.tree.path) as site:
            return list(problems(site, self.book, moments(disk)(at), scanned=scanned))


def in_memory() -> str | None:
    """A file system in memory for a thousand trees, if it has room and keeps attributes; a disk is slower,
    and some run out of blocks while those of the trees before are given back."""
    place = "/dev/shm"
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            os.setxattr(probe.name, "user.probe", b"1")
        return place if shutil.disk_usage(place).free > 1 << 30 else None
    except OSError:
        return None


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory(prefix="recorded-", dir=in_memory()) as path:
        yield Recorded(Path(path), int(request.config.getoption("--seed")), request.param)


def late(disk: Disk, steps: dict[str, Step]) -> list[str]:
    """Answers that were sent before what they say was synced."""
    found = []
    for answer in disk.answers:
        step = steps.get(answer.request)
        if step is not None and (why := unsynced(disk.state(answer.begin, nothing), step)):
            found.append(why)
    return found


def test_what_was_answered_had_been_synced(recorded: Recorded) -> None:
    """Bytes and names were on disk when the answer left; and of all that had not been synced at that moment
    nothing is needed: without it recovery finds every object, version, part, listing and sum."""
    disk, steps = recorded.disk, recorded.steps()
    pids = {event.pid for event in disk.answers}
    answered = [answer for answer in disk.answers if answer.request in steps]
    assert len(answered) == len(steps) and len(pids) <= 2
    assert late(disk, steps) == []
    for number, answer in enumerate(answered):
        found = recorded.crash(disk, answer.begin + 1, nothing, scanned=number % 2 == 0)
        assert not found, f"power cut at {answer.begin}: {found}"


def test_any_tree_that_a_crash_leaves_has_all_that_was_answered(recorded: Recorded, seed: int) -> None:
    """Moments at random; of what was not synced, nothing, all, beginnings, torn writes, any part in any
    order, each file and directory by itself. What was under way is there whole or not at all."""
    rng = random.Random(seed)
    disk = recorded.disk
    begins = [event.begin for event in disk.events]
    for number in range(STATES):
        at, draw = rng.choice(begins), rng.randrange(1 << 32)
        how = nothing if number % 8 == 0 else all_of_it if number % 8 == 1 else at_random(random.Random(draw))
        found = recorded.crash(disk, at, how, scanned=number % 2 == 0)
        assert not found, f"tree {number} of seed {seed}, power cut at {at}, draw {draw}: {found}"
    print(f"{STATES} crash states of {len(disk.events)} calls, seed {seed}")


@pytest.mark.parametrize("ignored", [(Kind.FDATASYNC,), (Kind.FSYNC, Kind.SYNC_ALL)])
def test_syncs_that_are_missing_are_noticed(recorded: Recorded, ignored: tuple[Kind, ...]) -> None:
    """As if the service had not made them: neither kind is superfluous, and the check sees it."""
    disk = recorded.recording.disk(ignored)
    steps = recorded.steps()
    assert late(disk, steps)
    answers = [answer for answer in disk.answers if answer.request in steps]
    wrong = [bool(recorded.crash(disk, one.begin, nothing, scanned=False)) for one in answers[20:60:4]]
    assert sum(wrong) >= 5


def test_a_service_that_does_not_sync_is_caught(tmp_path: Path, seed: int) -> None:
    """With `fsync = false` every kind of check finds answers that came too early."""
    recorded = Recorded(tmp_path, seed, 1, count=4, fsync=False)
    assert len(late(recorded.disk, recorded.steps())) >= 10
    last = recorded.disk.answers[-1].begin
    assert len(recorded.crash(recorded.disk, last, nothing, scanned=False)) >= 5
    assert isinstance(recorded.book, Book)
