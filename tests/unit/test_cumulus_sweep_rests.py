"""Clearing up takes hours over storage that answers slowly: other work has its turn, and the end is soon."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_world import World

from cumulus.auth import lifecycle
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.backends.memory import MemoryStore
from cumulus.ops import jobs, leftovers
from cumulus.ops.jobs import Jobs
from cumulus.ops.resting import Resting

STEPS = 1000


class Slow(MemoryStore):
    """Has so many steps to do, each of a second of `now`; `ends` is called in that one."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.steps = 0.0, 0
        self.ends: tuple[int, Callable[[], None]] = (STEPS, lambda: None)

    def sweep_gently(self, older_than_s: float, rest: Callable[[], bool]) -> int:
        for step in range(STEPS):
            self.now += 1.0
            self.steps += 1
            if step == self.ends[0]:
                self.ends[1]()
            if rest():
                break
        return self.steps


@pytest.fixture
def slow() -> Iterator[tuple[World, Slow, Jobs]]:
    """A service on such a store."""
    store = Slow()
    world = World(store)
    yield world, store, Jobs(world.site, lifecycle, seconds=lambda: store.now)
    world.close()


def test_what_waits_has_its_turn_while_storage_is_swept(
    slow: tuple[World, Slow, Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second; so the database is told what it is owed, and uploads are taken."""
    _, store, background = slow
    at: list[float] = []
    monkeypatch.setattr(jobs, "hash_waiting", lambda site: at.append(store.now))
    assert background.run().swept == STEPS
    assert at == [float(second) for second in range(STEPS + 1)]


def test_the_end_of_a_process_waits_for_one_step_of_a_sweep(slow: tuple[World, Slow, Jobs]) -> None:
    """And for nothing that would follow."""
    world, store, background = slow
    store.ends = 500, lambda: setattr(world.site, "stopping", True)
    assert background.run().swept == 501 and store.steps == 501


def test_a_store_that_knows_no_rest_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of somebody else, made for the service as it was."""
    world = World(MemoryStore())
    monkeypatch.setattr(world.store, "sweep", lambda older_than_s: 7)
    assert Jobs(world.site, lifecycle).run().swept == 7
    world.close()


def ending(after: int) -> Callable[[], bool]:
    """A rest at which, when it is taken so often, the process ends."""
    count = itertools.count(1)
    return lambda: next(count) >= after


def test_drafts_of_fsspec_are_swept_one_by_one(tmp_path: Path) -> None:
    """The rest is left to the next time."""
    store = FsspecStore(f"file://{tmp_path}")
    store.create_bucket("b")
    place = tmp_path / "b/.cumulus/tmp"
    for number in range(10):
        (place / f"{number:x}-0123456789ab").write_bytes(b"left")
        os.utime(place / f"{number:x}-0123456789ab", (1.0, 1.0))
    assert store.sweep_gently(60.0, ending(3)) == 3
    assert len(list(place.iterdir())) == 7
    assert store.sweep(60.0) == 7


@pytest.fixture
def bodies(tmp_path: Path) -> Iterator[World]:
    """A bucket with twenty objects, and twenty bodies that no row names."""
    world = World(FsspecStore(f"memory://{tmp_path}"))
    assert world.ask("PUT", "/bkt").status == 200
    for number in range(20):
        assert world.ask("PUT", f"/bkt/{number}", b"body").status == 200
        stream = world.store.open_write("bkt", f".cumulus/bodies/{number:032x}")
        stream.commit(b"")
    yield world
    world.close()


@pytest.mark.parametrize("kind", ["sweep", "doubt"])
def test_bodies_are_looked_at_with_rests(bodies: World, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each page; when the process ends nothing further is looked at, and nothing concluded."""
    monkeypatch.setattr(leftovers, "PAGE", 5)
    bucket = bodies.site.bucket("bkt")
    looked: list[str] = []
    named: Any = leftovers.is_named
    monkeypatch.setattr(
        leftovers,
        "is_named",
        lambda site, bucket, entry: looked.append(entry.name) or named(site, bucket, entry),
    )
    rests = itertools.count(1)

    def pause(_seconds: float) -> bool:
        if next(rests) == 3:
            bodies.site.stopping = True
        return bodies.site.stopping

    if kind == "sweep":
        assert leftovers.sweep(bodies.site, bucket, 3600.0, Resting(pause)) == 0
    else:
        leftovers.note_doubt(bodies.site, bucket, bodies.clock() + 1, Resting(pause))
        assert leftovers.doubts(bodies.store, "bkt") == []
    assert len(looked) <= 15 and next(rests) == 4
    bodies.site.stopping = False
    leftovers.note_doubt(bodies.site, bucket, bodies.clock() + 1)
    assert len(leftovers.doubts(bodies.store, "bkt")) == 1


def test_each_body_that_goes_is_a_step(bodies: World) -> None:
    """Removing one is a request to the storage, or several."""
    rests = itertools.count()
    bodies.skew_ns = 10 * 24 * 3600 * 10**9
    resting = Resting(lambda _seconds: next(rests) < 0)
    assert leftovers.sweep(bodies.site, bodies.site.bucket("bkt"), 60.0, resting) == 20
    assert next(rests) >= 20
