"""The replication planner: never below, never a needless shared host, no storm (design section 5)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from sector.errors import BadConfig
from sector.master.core import (
    CopyEnded,
    CopyLost,
    CoreSettings,
    DropStored,
    Effect,
    Event,
    Loaded,
    LoadFiles,
    Look,
    MasterCore,
    NotLoaded,
    PageSeen,
    ReportEnded,
    ScanPage,
    SlaveBeat,
    SlaveChanged,
    SlaveJoined,
    StartCopy,
    StoreDrop,
    Tick,
)
from sector.master.membership import Changed, Load, Node
from sector.master.namespace import Entry, Replica
from sector.master.replication import CopyRule, CopyRules, CopyTask, Limits, parse_rules
from sector.master.topology import Place
from sector.master.values import FileState
from sector.model import Address, Version

V1, V2 = Version(1, 1), Version(1, 2)


@dataclass
class World:
    """Slaves and files as they really are; carries the core's effects out, `copy_s` later."""

    hosts: list[str]
    limits: Limits = field(default_factory=Limits)
    rules: CopyRules = CopyRules()
    copy_s: float = 1.0
    large_s: float = 1.0
    """What a copy of more than 1 MiB takes."""

    def __post_init__(self) -> None:
        ids = itertools.count(1)
        self.now = 0.0
        settings = CoreSettings(limits=self.limits)
        self.core = MasterCore(settings, self.rules, lambda: next(ids).to_bytes(16, "big"), 0.0)
        self.files: dict[str, Entry] = {}
        self.replicas: dict[str, dict[str, Replica]] = {}
        self.alive: set[str] = set()
        self.free: dict[str, int] = {}
        self.running: list[tuple[float, CopyTask]] = []
        self.started: list[CopyTask] = []
        self.most = 0
        self.drops: list[tuple[str, str]] = []
        self.fail_targets: set[str] = set()
        self.changes: list[Changed] = []
        self.effects: list[Effect] = []
        for index in range(len(self.hosts)):
            self.join(f"s{index}")

    def join(self, name: str) -> None:
        """A slave comes and reports."""
        host = self.hosts[int(name[1:])]
        address = Address(host, 1)
        self.alive.add(name)
        self.feed(SlaveJoined(Node(name, Place(host), 1, address, address, 1, "/", 1, self.now)))
        self.beat(name)
        self.feed(ReportEnded(name))

    def beat(self, name: str) -> None:
        self.feed(SlaveBeat(name, Load(free=self.free.get(name, 10**12))))

    def add(self, path: str, *nodes: str, version: Version = V1, size: int = 10, copies: int = 0) -> None:
        """A file with replicas."""
        self.files[path] = Entry(path, "file", size, version, "u", 0, 0.0, "d", copies)
        held = self.replicas.setdefault(path, {})
        held.update({node: Replica(node, version, 0.0) for node in nodes})
        self.feed(Look([path]))

    def state(self, path: str) -> FileState | None:
        entry = self.files.get(path)
        return FileState(entry, tuple(self.replicas[path].values())) if entry else None

    def feed(self, event: Event) -> None:
        """An event, and all that follows at once."""
        for effect in self.core.handle(event, self.now):
            self.perform(effect)
        self.core.check_invariants()

    def perform(self, effect: Effect) -> None:
        self.effects.append(effect)
        match effect:
            case LoadFiles(paths):
                self.feed(Loaded(paths, [s for p in paths if (s := self.state(p)) is not None]))
            case ScanPage(after):
                page = [p for p in sorted(self.files) if p > after][:3]
                states = [s for p in page if (s := self.state(p)) is not None]
                self.feed(PageSeen(states, page[-1] if len(page) == 3 else ""))
            case StartCopy(task):
                held = self.replicas[task.path]
                assert held[task.source].version == task.version, "a source without the content"
                assert not held[task.source].bad, "a damaged source"
                assert task.source != task.target
                self.started.append(task)
                self.running.append((self.now + (self.copy_s if task.small else self.large_s), task))
                self.most = max(self.most, len(self.running))
            case StoreDrop(drop):
                self.drops.append((drop.path, drop.node))
                good = [
                    r
                    for r in self.replicas[drop.path].values()
                    if r.version == self.files[drop.path].version and r.node != drop.node
                ]
                assert good, "the last good replica was dropped"
                del self.replicas[drop.path][drop.node]
                self.feed(DropStored(drop.path, drop.node))
            case CopyLost(task):
                self.running = [item for item in self.running if item[1].id != task.id]
            case SlaveChanged(change):
                self.changes.append(change)

    def sleep(self, seconds: float) -> None:
        """Time passes: heartbeats every second, copies end."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            if self.now % 1 == 0:
                for name in sorted(self.alive):
                    self.beat(name)
            for at, task in list(self.running):
                if at <= self.now:
                    self.running.remove((at, task))
                    self.finish(task)
            self.feed(Tick())

    def finish(self, task: CopyTask) -> None:
        if task.target not in self.alive or task.source not in self.alive:
            return
        if task.target in self.fail_targets:
            self.feed(CopyEnded(task.id, "it failed"))
            return
        if self.files.get(task.path) is not None and self.files[task.path].version == task.version:
            self.replicas[task.path][task.target] = Replica(task.target, task.version, self.now)
        self.feed(CopyEnded(task.id))

    def good(self, path: str) -> list[str]:
        """Slaves that run and hold the current version."""
        entry = self.files[path]
        return [
            n
            for n, r in self.replicas[path].items()
            if r.version == entry.version and not r.bad and n in self.alive
        ]


def distinct(count: int) -> list[str]:
    """That many hosts."""
    return [f"10.0.0.{index + 1}" for index in range(count)]


# rules ----------------------------------------------------------------------------------------------------
def test_rules_by_path() -> None:
    rules = parse_rules('min = 2\n[[rule]]\npath="/a"\nmin=1\nmax=4\n[[rule]]\npath="/a/*.tmp"\nmin=1\n')
    assert rules.of("/x") == CopyRule("/", 2, 0)
    assert rules.of("/a/b/c") == CopyRule("/a", 1, 4)
    assert rules.of("/a/x.tmp") == CopyRule("/a/*.tmp", 1, 0)
    assert parse_rules("").default.minimum == 3


@pytest.mark.parametrize(
    "text",
    ["min = 0", "min = 'x'", "min = true", "minimum = 1", "min = 3\nmax = 2", "=", "rule = 1",
     "[[rule]]\npath = 'a'\n", "[[rule]]\npath='/a'\nmim=1"],
)  # fmt: skip
def test_bad_rules_are_named(text: str) -> None:
    with pytest.raises(BadConfig, match=r"replication\.toml"):
        parse_rules(text)


# reaching the minimum ---------------------------------------------------------------------------------------
def test_new_file_gets_three_copies_and_no_more() -> None:
    world = World(distinct(5))
    world.add("/f", "s0")
    world.sleep(30)
    assert len(world.good("/f")) == 3 and len(world.started) == 2


def test_never_more_than_there_are_slaves() -> None:
    world = World(distinct(2))
    world.add("/f", "s0")
    world.sleep(20)
    assert len(world.good("/f")) == 2
    world.hosts.append("10.0.0.9")
    world.join("s2")
    world.sleep(20)
    assert len(world.good("/f")) == 3


def test_hosts_are_shared_only_when_none_is_free() -> None:
    world = World(["h1", "h1", "h2", "h2", "h3"])
    for index in range(10):
        world.add(f"/f{index}", "s0")
    world.sleep(60)
    for index in range(10):
        assert {world.hosts[int(n[1:])] for n in world.good(f"/f{index}")} == {"h1", "h2", "h3"}
    one = World(["h1", "h1", "h1"])
    one.add("/f", "s0")
    one.sleep(10)
    assert len(one.good("/f")) == 3


def test_shared_host_is_left_when_another_comes() -> None:
    """The copy moves to the new host: first one more, then the surplus goes."""
    world = World(["h1", "h1", "h2"])
    world.add("/f", "s0")
    world.sleep(20)
    assert len(world.good("/f")) == 3
    world.hosts.append("h3")
    world.join("s3")
    world.sleep(30)
    assert {world.hosts[int(n[1:])] for n in world.good("/f")} == {"h1", "h2", "h3"}
    assert len(world.good("/f")) == 3 and len(world.started) == 3


def test_lost_slave_is_no_storm() -> None:
    """Many files lose a replica: never more copies at once than the limits, each file copied once."""
    limits = Limits(small_copies=4, small_per_node=2)
    world = World(distinct(5), limits)
    for index in range(60):
        world.add(f"/f{index:02}", "s0", f"s{1 + index % 4}", f"s{1 + (index + 1) % 4}")
    world.sleep(12)
    assert not world.started
    world.alive.discard("s0")
    world.sleep(9)
    assert not world.started, "suspect is not lost"
    world.sleep(60)
    assert all(len(world.good(p)) == 3 for p in world.files)
    assert len(world.started) == 60
    world.join("s0")
    world.sleep(60)
    assert all(len(world.good(p)) == 3 for p in world.files), "surplus removed, nothing below"
    assert len(world.started) == 60


def test_a_small_file_waits_for_no_large_one() -> None:
    """Small files have slots of their own, of which there are more."""
    world = World(distinct(3))
    for index in range(100):
        world.add(f"/f{index:02}", f"s{index % 3}", size=1000)
    world.sleep(30)
    assert 12 < world.most <= 32
    assert all(len(world.good(p)) == 3 for p in world.files)
    world = World(distinct(3))
    for index in range(10):
        world.add(f"/f{index:02}", f"s{index % 3}", size=10**9)
    world.sleep(30)
    assert world.most == 3
    assert all(len(world.good(p)) == 3 for p in world.files)


@pytest.mark.parametrize("urgent", [False, True])
def test_small_files_behind_large_ones(urgent: bool) -> None:
    """Hundreds of large files came before, whose copies do not end. What is known to be large is not read
    again and again while no slot for it is free."""
    world = World(distinct(3), large_s=10**6)
    for index in range(500):
        world.add(f"/large{index:03}", f"s{index % 3}", size=10**9)
    world.feed(Look([p for p in world.files if p < "/large100"], urgent))
    small = [f"/small{index:02}" for index in range(60)]
    for index, path in enumerate(small):
        world.add(path, f"s{index % 3}", size=1000)
    before = len(world.effects)
    world.sleep(20)
    assert all(len(world.good(p)) == 3 for p in small)
    assert 2 <= len(world.running) <= 4
    read = sum(len(effect.paths) for effect in world.effects[before:] if isinstance(effect, LoadFiles))
    assert read < 20 * 100, "large files are read again and again"


def test_one_slave_alone_looks_at_everything() -> None:
    """No copy can be started, but what there is too much of goes."""
    world = World(distinct(3), rules=CopyRules(CopyRule(minimum=1)))
    world.add("/f", "s0", "s1")
    world.replicas["/f"]["s1"] = replace(world.replicas["/f"]["s1"], bad=True)
    world.sleep(20)
    assert world.drops == [("/f", "s1")]
    for name in ("s1", "s2"):
        world.alive.discard(name)
    world.sleep(20)
    world.add("/g", "s0")
    assert not world.core.replicator.queue


def test_absent_slaves_count_until_the_cluster_has_settled() -> None:
    """After a restart of the master slaves need a moment to come back: nothing is copied meanwhile."""
    world = World(distinct(3), Limits(settle_s=10.0))
    world.add("/f", "s0", "s1", "s8")
    world.sleep(9)
    assert not world.started
    world.sleep(10)
    assert len(world.started) == 1


def test_urgent_goes_first() -> None:
    world = World(distinct(3), Limits(small_copies=1, small_per_node=1), copy_s=5.0)
    for index in range(5):
        world.add(f"/slow{index}", "s0")
    world.add("/now", "s0")
    world.feed(Look(["/now"], urgent=True))
    world.sleep(12)
    assert [t.path for t in world.started[:3]][1:] == ["/now", "/now"]
    assert world.started[1].urgent


def test_asked_for_copies_are_kept() -> None:
    world = World(distinct(5))
    world.add("/f", "s0", copies=5)
    world.sleep(40)
    assert len(world.good("/f")) == 5 and not world.drops


def test_failed_copy_backs_off_and_tries_another_target() -> None:
    world = World(distinct(3), rules=CopyRules(CopyRule("/", 2)))
    world.add("/f", "s0")
    world.sleep(0.5)
    first = world.started[0].target
    world.fail_targets = {first}
    world.sleep(10)
    assert len(world.good("/f")) == 2 and first not in world.good("/f")
    world = World(distinct(2))
    world.fail_targets = {"s1"}
    world.add("/f", "s0")
    world.sleep(120)
    assert 5 <= len(world.started) <= 9, "pauses grow"
    world.fail_targets = set()
    world.sleep(61)
    assert len(world.good("/f")) == 2


def test_silent_copy_is_given_up() -> None:
    world = World(distinct(3), Limits(start_s=20.0), CopyRules(CopyRule("/", 2)), copy_s=10**9)
    world.add("/f", "s0")
    world.sleep(25)
    assert any(isinstance(e, CopyLost) for e in world.effects)
    world.copy_s = 1.0
    world.sleep(30)
    assert len(world.good("/f")) == 2


def test_full_slaves_get_nothing() -> None:
    world = World(distinct(3))
    world.free = {"s1": 5, "s2": 5}
    world.sleep(2)
    world.add("/f", "s0", size=10)
    world.sleep(20)
    assert not world.started
    world.free = {}
    world.sleep(62)
    assert len(world.good("/f")) == 3


# a database that takes its time -----------------------------------------------------------------------------
class SlowWorld(World):
    """What is read, once `slow`, is what was there when it was asked for; orders to drop wait."""

    def __post_init__(self) -> None:
        self.slow = False
        self.reads: list[Loaded] = []
        self.orders: list[StoreDrop] = []
        super().__post_init__()

    def perform(self, effect: Effect) -> None:
        if self.slow and isinstance(effect, LoadFiles):
            states = [state for path in effect.paths if (state := self.state(path)) is not None]
            self.reads.append(Loaded(effect.paths, states))
        elif self.slow and isinstance(effect, StoreDrop):
            self.orders.append(effect)
        else:
            super().perform(effect)

    def answer(self) -> None:
        """What was read comes."""
        self.slow = False
        while self.reads:
            self.feed(self.reads.pop(0))


def test_a_copy_that_ends_while_its_file_is_read_is_not_made_again() -> None:
    """It was neither among the copies under way nor among the replicas as they had been: others were made
    instead, and as many dropped, perhaps those that readers knew."""
    rules = CopyRules(rules=(CopyRule("/g", 2),))
    world = SlowWorld(distinct(5), Limits(small_per_node=2), rules)
    world.add("/g", "s0")
    world.add("/f", "s0")
    assert [task.path for task in world.started] == ["/g", "/f"], "another copy of /f waits for its source"
    world.slow = True
    world.feed(Tick())
    assert world.reads
    while world.running:
        world.finish(world.running.pop()[1])
    world.answer()
    world.sleep(30)
    assert len(world.good("/f")) == 3
    assert [task.path for task in world.started].count("/f") == 2 and not world.drops


def test_a_copy_too_many_is_dropped_once() -> None:
    """The file is looked at again while the order is written down."""
    world = SlowWorld(distinct(4))
    world.sleep(11)
    world.slow = True
    world.add("/f", "s0", "s1", "s2", "s3")
    world.feed(world.reads.pop())
    (order,) = world.orders
    world.feed(Look(["/f"]))
    assert world.reads
    fullest = next(node for node in ("s0", "s1") if node != order.drop.node)
    world.free[fullest] = 10**6
    world.beat(fullest)
    world.orders.clear()
    World.perform(world, order)
    world.answer()
    world.sleep(30)
    assert world.drops == [("/f", order.drop.node)]
    assert len(world.good("/f")) == 3 and not world.started


# dropping -------------------------------------------------------------------------------------------------
def test_older_versions_go_when_the_new_one_is_safe() -> None:
    world = World(distinct(4))
    world.add("/f", "s0", "s1", "s2")
    world.replicas["/f"] = {"s3": Replica("s3", V2, 0.0), **world.replicas["/f"]}
    world.files["/f"] = replace(world.files["/f"], version=V2)
    world.feed(Look(["/f"]))
    assert not world.drops
    world.sleep(30)
    assert len(world.good("/f")) == 3
    assert all(r.version == V2 for r in world.replicas["/f"].values())
    assert len(world.drops) == 1


def test_a_copy_that_its_slave_knows_by_a_former_name_is_not_surplus() -> None:
    """Should the others be lost before it is removed, it is what can still be kept: under one name."""
    world = World(distinct(4))
    world.add("/f", "s0", "s1", "s2", "s3")
    world.drops.clear()
    moving = {n: Replica(n, V1, 0.0, False, "/old", V1) for n in ("s0", "s1", "s2", "s3")}
    world.replicas["/f"] = dict(moving)
    world.sleep(60)
    assert not world.drops
    world.replicas["/f"]["s2"] = Replica("s2", V1, 0.0)
    world.sleep(30)
    assert world.drops == [("/f", "s2")]


def test_damaged_replica_is_dropped_then_replaced_but_never_the_last() -> None:
    world = World(distinct(3))
    world.add("/f", "s0", "s1", "s2")
    world.replicas["/f"]["s1"] = replace(world.replicas["/f"]["s1"], bad=True)
    world.feed(Look(["/f"]))
    world.sleep(10)
    assert world.drops == [("/f", "s1")] and len(world.good("/f")) == 3
    for node in ("s0", "s1", "s2"):
        world.replicas["/f"][node] = replace(world.replicas["/f"][node], bad=True)
    world.feed(Look(["/f"]))
    world.sleep(30)
    assert len(world.replicas["/f"]) == 3


def test_a_damaged_copy_of_an_older_version_keeps_no_slave_from_the_new_one() -> None:
    world = World(distinct(2))
    world.add("/f", "s0", "s1")
    world.replicas["/f"] = {
        "s0": replace(world.replicas["/f"]["s0"], version=V2),
        "s1": replace(world.replicas["/f"]["s1"], bad=True),
    }
    world.files["/f"] = replace(world.files["/f"], version=V2)
    world.feed(Look(["/f"]))
    world.sleep(30)
    assert len(world.good("/f")) == 2


def test_content_found_on_a_disk_is_never_dropped_as_damaged() -> None:
    """It waits for the slave's next report, which sends it to the attic: it may be somebody's only copy."""
    world = World(distinct(2))
    world.add("/f", "s0", "s1")
    world.replicas["/f"]["s1"] = replace(world.replicas["/f"]["s1"], version=Version(0, 1), bad=True)
    world.feed(Look(["/f"]))
    world.sleep(30)
    assert world.replicas["/f"]["s1"].version == Version(0, 1)


def test_gone_file_and_failed_load() -> None:
    world = World(distinct(3))
    world.feed(Look(["/none"]))
    assert not world.core.replicator.queue
    world.core.paused = True
    world.add("/f", "s0")
    due = world.core.replicator.due(world.now)
    world.feed(NotLoaded(due))
    world.core.paused = False
    world.sleep(10)
    assert len(world.good("/f")) == 3


# any history ----------------------------------------------------------------------------------------------
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "return", "write", "bad", "remove", "wait", "fail", "heal"]),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=25,
)


@effort(150)
@given(hosts=st.lists(st.sampled_from(["h1", "h2", "h3", "h4"]), min_size=1, max_size=6), steps=STEPS)
def test_any_history_ends_well(hosts: list[str], steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens, limits hold, the last good replica stays, and in quiet times every file that has a
    good replica gets the wanted number on as many hosts as there are."""
    limits = Limits(copies=3, per_node=2, small_copies=4, small_per_node=3, retry_most_s=8.0)
    world = World(hosts, limits)
    counter = itertools.count(10)
    for kind, which, amount in steps:
        node = f"s{which % len(hosts)}"
        path = f"/f{amount}"
        match kind:
            case "lose" if len(world.alive) > 1:
                world.alive.discard(node)
            case "return" if node not in world.alive:
                world.join(node)
            case "write" if node in world.alive:
                world.add(path, node, version=Version(1, next(counter)), size=10 if amount % 2 else 2 << 20)
            case "bad" if node in world.replicas.get(path, {}):
                world.replicas[path][node] = replace(world.replicas[path][node], bad=True)
                world.feed(Look([path]))
            case "remove":
                world.files.pop(path, None)
                world.replicas.pop(path, None)
                world.feed(Look([path]))
            case "fail":
                world.fail_targets.add(node)
            case "heal":
                world.fail_targets.clear()
            case _:
                world.sleep(amount * 4 + 1)
    world.fail_targets.clear()
    world.sleep(150)
    for path in world.files:
        good = world.good(path)
        if good:
            assert len(good) == min(3, len(world.alive)), (path, good)
            there = {world.hosts[int(n[1:])] for n in world.alive}
            if len(world.replicas[path]) == len(good):
                assert len({world.hosts[int(n[1:])] for n in good}) == min(len(there), len(good))
    assert not world.core.replicator.tasks
    before = len(world.started), len(world.drops)
    world.sleep(40)
    assert (len(world.started), len(world.drops)) == before, "at rest"
