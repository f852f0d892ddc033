"""Files that nothing can be done for do not keep others from their copies, however many they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from test_replication import V2, World, distinct

from sector.master import replication
from sector.master.core import CoreSettings, MasterCore, PageSeen, ReportEnded, ScanPage, Tick
from sector.master.namespace import Replica
from sector.master.replication import CopyRule, CopyRules, Limits

LIMIT = 8


@pytest.fixture(autouse=True)
def short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 paths wait in earnest."""
    monkeypatch.setattr(replication, "QUEUE_LIMIT", LIMIT)


def two_of_three(lost: int) -> World:
    """Three slaves and two copies wanted; of so many files in /a the only copy is on a slave that is lost."""
    world = World(distinct(3), rules=CopyRules(CopyRule(minimum=2)))
    world.core.paused = True
    for number in range(lost):
        world.add(f"/a/{number:03d}", "s0")
    world.core.paused = False
    world.alive.discard("s0")
    world.sleep(15)
    return world


def test_files_whose_copies_are_all_lost() -> None:
    """What is written now, and what lost one of two copies, is copied."""
    world = two_of_three(5 * LIMIT)
    world.add("/new", "s1")
    world.files["/z"] = replace(world.files["/new"], path="/z")
    world.replicas["/z"] = {node: Replica(node, world.files["/z"].version, 0.0) for node in ("s0", "s1")}
    world.sleep(30)
    assert len(world.good("/new")) == 2 and len(world.good("/z")) == 2
    world.join("s0")
    world.sleep(120)
    assert all(len(world.good(path)) >= 2 for path in world.files)


def test_files_of_which_only_older_copies_can_be_reached() -> None:
    world = two_of_three(0)
    for number in range(5 * LIMIT):
        path = f"/a/{number:03d}"
        world.add(path, "s1")
        world.files[path] = replace(world.files[path], version=V2)
        world.replicas[path]["s0"] = Replica("s0", V2, 0.0)
    world.sleep(30)
    world.add("/new", "s1")
    world.sleep(30)
    assert len(world.good("/new")) == 2


def test_files_that_no_slave_has_room_for() -> None:
    world = World(distinct(3))
    world.free = dict.fromkeys(world.alive, 100)
    world.sleep(2)
    for number in range(5 * LIMIT):
        world.add(f"/a/{number:03d}", "s0", size=1000)
    world.add("/z", "s0", size=10)
    world.sleep(30)
    assert len(world.good("/z")) == 3
    world.free = {}
    world.sleep(180)
    assert all(len(world.good(path)) == 3 for path in world.files)


def test_files_that_a_slave_always_fails_to_take() -> None:
    """The third copy of many files can only go to a slave with a broken disk; the second of a new one to a
    slave that works."""
    world = World(distinct(3))
    world.fail_targets = {"s2"}
    for number in range(5 * LIMIT):
        world.add(f"/a/{number:03d}", "s0", "s1")
    world.sleep(60)
    world.add("/new", "s0")
    world.sleep(60)
    assert sorted(world.good("/new")) == ["s0", "s1"]
    world.fail_targets = set()
    world.sleep(600)
    assert all(len(world.good(path)) == 3 for path in world.files)


def scans(world: World) -> list[str]:
    """Behind what the master has read so far."""
    return [effect.after for effect in world.effects if isinstance(effect, ScanPage)]


def slow_world(files: int) -> World:
    """Three slaves with one copy at a time; so many files lack copies, and nobody has told of it."""
    world = World(distinct(3), Limits(copies=1, per_node=1, small_copies=1, small_per_node=1))
    world.core.paused = True
    for number in range(files):
        world.add(f"/a/{number:03d}", "s0")
    for number in range(files):
        world.core.replicator.queue.pop(f"/a/{number:03d}")
    world.core.paused = False
    return world


def until(world: World, condition: Callable[[], bool], limit_s: float = 1000.0) -> None:
    """Let time pass."""
    end = world.now + limit_s
    while not condition():
        assert world.now < end, "it did not happen"
        world.sleep(0.25)


def test_a_round_goes_on_where_the_queue_was_full() -> None:
    world = slow_world(5 * LIMIT)
    queue = world.core.replicator.queue
    until(world, lambda: bool(scans(world)))
    before = len(scans(world))
    last = max(queue)
    until(world, lambda: len(queue) <= LIMIT // 2)
    world.sleep(0.5)
    assert scans(world)[before] == last
    until(world, lambda: all(len(world.good(path)) == 3 for path in world.files), 2 * len(world.files) + 20)


def test_waiting_for_room_is_no_work_to_rest_from() -> None:
    """A round that waited an hour for copies is not followed by hours in which nothing is looked at."""
    world = slow_world(2 * LIMIT)
    world.copy_s = 50.0
    until(world, lambda: bool(scans(world)))
    assert len(world.core.replicator.queue) >= LIMIT
    until(world, lambda: world.core.replicator.copied == 2 * len(world.files), 4000.0)
    assert world.now > 1500
    before = len(scans(world))
    world.sleep(CoreSettings().check_s + 1)
    assert "" in scans(world)[before:]


def test_a_slave_that_reports_begins_a_round_at_the_first_file() -> None:
    """Whatever round waits for room then: files before it may lack copies now."""
    world = slow_world(5 * LIMIT)
    until(world, lambda: bool(scans(world)))
    before = len(scans(world))
    world.feed(ReportEnded("s1"))
    world.sleep(0.25)
    assert scans(world)[before] == ""


def test_large_files_keep_no_small_ones_out_of_the_queue() -> None:
    world = World(distinct(3), large_s=10**6)
    world.core.paused = True
    for number in range(LIMIT):
        world.add(f"/large{number:03d}", "s0", size=10**9)
    world.core.paused = False
    world.sleep(1)
    assert world.core.replicator.queue.count(False) >= LIMIT - 3
    for number in range(LIMIT):
        world.add(f"/small{number:03d}", "s0")
    world.sleep(10)
    assert all(len(world.good(f"/small{number:03d}")) == 3 for number in range(LIMIT))


def test_a_round_over_many_files_is_followed_by_a_rest() -> None:
    """An idle master with a million files does not read them all the time; what happens
    begins the next round at once."""
    world = World(distinct(1))
    core: MasterCore = world.core
    now = 100.0

    def rounds(seconds: float) -> list[float]:
        """When rounds begin, each of which takes 30 s."""
        nonlocal now
        begun: list[float] = []
        end = now + seconds
        while now < end:
            now += 1.0
            world.now = now
            world.beat("s0")
            if any(isinstance(effect, ScanPage) for effect in core.handle(Tick(), now)):
                begun.append(now)
            elif begun and now == begun[-1] + 30:
                core.handle(PageSeen([], ""), now)
        return begun

    begun = rounds(1500)
    assert len(begun) <= 1500 / 150 + 1
    assert CoreSettings().check_s < 30
    while core.handle(Tick(), now) == []:
        now += 1.0
    core.handle(PageSeen([], ""), now + 30)
    core.handle(ReportEnded("s0"), now + 31)
    assert any(isinstance(effect, ScanPage) for effect in core.handle(Tick(), now + 31.5))


def calls(work: Callable[[], object]) -> int:
    """How many functions the work calls, those in C too."""
    count = 0

    def seen(_frame: Any, event: str, _value: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("small", [True, False, None])
def test_a_path_that_finds_the_queue_full_walks_over_no_other(
    monkeypatch: pytest.MonkeyPatch, small: bool | None
) -> None:
    """However many of the other kind wait after a failure: a page of a round asks for 500 paths at once."""
    monkeypatch.setattr(replication, "QUEUE_LIMIT", 2000)
    replicator = two_of_three(0).core.replicator
    failing = [f"/failing{number}" for number in range(2000)]
    for path in failing:
        assert replicator.want(path, small=small is False)
    for number in range(2000):
        assert replicator.want(f"/other{number}", small=small)
    replicator.not_loaded(failing, 1.0)
    asked = calls(lambda: [replicator.want(f"/new{number}", small=small) for number in range(500)])
    assert asked < 500 * 60
    assert len(replicator.queue) == 4000 and "/new1" not in replicator.queue
    asked = calls(lambda: [replicator.drained() for _ in range(500)])
    assert asked < 500 * 60


def test_who_waits_longest_after_a_failure_gives_way_first() -> None:
    """Not one that is just looked at, nor one that was looked at with success meanwhile."""
    replicator = two_of_three(0).core.replicator
    paths = [f"/{number}" for number in range(LIMIT)]
    for path in paths:
        assert replicator.want(path, small=True)
    replicator.not_loaded(paths[:4], 100.0)
    assert replicator.due(100.5)[:2] == paths[4:6]
    replicator.not_loaded(["/4"], 100.5)
    replicator.plan(["/1"], [], 101.0)
    assert replicator.want("/new1") and replicator.want("/new2", small=True) and "/0" not in replicator.queue
    assert [path in replicator.queue for path in ("/2", "/3", "/4", "/new1", "/new2")] == [True] * 5
    for number in range(3, 6):
        assert replicator.want(f"/new{number}")
    assert not replicator.want("/new6"), "the others were not tried in vain"
    replicator.check_invariants()
