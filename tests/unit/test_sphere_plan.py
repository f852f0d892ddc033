"""The scheduler and the shuffle, pure: whatever dies, every segment counts once."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from sector.errors import Conflict, Damaged, UsageError
from sector.model import Version
from sector.sphere.job_buckets import BucketBook
from sector.sphere.plan import (
    Failed,
    Finished,
    Limits,
    Plan,
    Segment,
    Source,
    Start,
    Stop,
    cut,
    cut_whole,
    numbered,
    spread,
    target_size,
)
from sector.sphere.records import from_lengths
from sector.sphere.shuffle import Entry, Ledger, Range, RouteTable, decode_entries, encode_entry
from sector.wire.sphere import Delivered

V = Version(1, 1)
MB = 1 << 20


def source(name: str = "/f", size: int = 1000, holders: tuple[str, ...] = ("a",), width: int = 10) -> Source:
    return Source(name, size, V, holders, width)


def build(count: int, holders: list[tuple[str, ...]], limits: Limits | None = None) -> Plan:
    """A plan over whole files; file n lies on holders[n % len]."""
    segments = [
        Segment(n, cut_whole([source(f"/f{n}", 100, holders[n % len(holders)])])) for n in range(count)
    ]
    return Plan(segments, limits)


# -- cutting -----------------------------------------------------------------------------------------
@given(
    width=st.integers(1, 300),
    count=st.integers(0, 5000),
    goal=st.integers(1, 200_000),
    smax=st.integers(1, 400_000),
)
def test_fixed_records_are_cut_whole_and_completely(width: int, count: int, goal: int, smax: int) -> None:
    spans = [piece[0] for piece in cut([source(size=width * count, width=width)], [None], goal, smax=smax)]
    at = first = 0
    for span in spans:
        assert (span.offset, span.first) == (at, first)
        assert span.length == span.records * width > 0
        assert span.length <= max(width, smax)
        at, first = at + span.length, first + span.records
    assert (at, first) == (width * count, count)


@given(lengths=st.lists(st.integers(0, 5000), max_size=400), goal=st.integers(1, 20_000))
def test_indexed_records_are_cut_whole_and_completely(lengths: list[int], goal: int) -> None:
    offsets = from_lengths(lengths)
    total = int(offsets[-1])
    spans = [piece[0] for piece in cut([source(size=total, width=0)], [offsets], goal, smax=2 * goal)]
    at = first = 0
    for span in spans:
        assert (span.offset, span.first) == (at, first)
        assert span.offset + span.length == int(offsets[span.first + span.records])
        assert span.length <= 2 * goal or span.records == 1 or int(offsets[first + span.records - 1]) == at
        at, first = at + span.length, first + span.records
    assert (at, first) == (total, len(lengths))


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=200), goal=st.integers(10, 2000))
def test_paired_files_are_cut_at_the_same_records(lengths: list[int], goal: int) -> None:
    offsets = from_lengths(lengths)
    fixed = source("/b", 8 * len(lengths), width=8)
    pieces = cut([source("/a", int(offsets[-1]), width=0), fixed], [offsets, None], goal)
    assert sum(left.records for left, _ in pieces) == len(lengths)
    for left, right in pieces:
        assert (left.first, left.records) == (right.first, right.records)
        assert right.offset == 8 * right.first


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="no multiple"):
        cut([source(size=1005)], [None], 100)
    with pytest.raises(UsageError, match="different numbers"):
        cut([source("/a", 100), source("/b", 200)], [None, None], 100)


def test_target_size_keeps_its_bounds() -> None:
    assert target_size(0, 4) == 8 * MB
    assert target_size(1000 * MB, 8) == -(-1000 * MB // 32)
    assert target_size(10**12, 8) == 128 * MB


# -- scheduling --------------------------------------------------------------------------------------
def starts(effects: list[object]) -> list[tuple[int, str]]:
    return [(e.segment, e.node) for e in effects if isinstance(e, Start)]


def test_local_data_first_then_input_order() -> None:
    plan = build(4, [("a",), ("b",), ("b",), ("b",)], Limits(ahead=0))
    assert starts(plan.node_up("b", 2, 0)) == [(1, "b"), (2, "b")]
    assert starts(plan.node_up("a", 1, 0)) == [(0, "a")]
    assert starts(plan.finished(0, 3, "a", 1)) == [(3, "a")]


def test_segments_spread_over_files() -> None:
    pieces = cut([source("/x", 400)], [None], 100) + cut([source("/y", 400)], [None], 100)
    plan = Plan(numbered(pieces), Limits(ahead=0))
    paths = [plan.segments[s].spans[0].source.path for s, _ in starts(plan.node_up("a", 4, 0))]
    assert sorted(paths) == ["/x", "/x", "/y", "/y"]


def test_silent_attempt_is_retried_elsewhere() -> None:
    plan = build(1, [("a",)], Limits(silence_s=10))
    plan.node_up("a", 1, 0)
    plan.node_up("b", 1, 0)
    plan.progress(0, 1, "a", 0.5, 5)
    assert plan.tick(14) == []
    effects = plan.tick(15)
    assert isinstance(effects[0], Stop)
    assert starts(effects) == [(0, "b")]
    assert plan.retries == 1
    assert any(isinstance(e, Finished) for e in plan.finished(0, 2, "b", 16))
    assert plan.finished(0, 1, "a", 17) == []
    assert plan.duplicates == 0 or plan.ended


def test_who_stood_still_takes_nobody_for_silent() -> None:
    """What they said meanwhile is not read yet; silence after it counts as ever."""
    plan = build(2, [("a",)], Limits(silence_s=10))
    plan.node_up("a", 2, 0)
    plan.stood(20, 20)
    assert plan.tick(21) == plan.tick(29.5) == [] and plan.retries == 0
    assert node_of_stops(plan.tick(30)) == {"a"}


def test_who_was_heard_before_a_late_tick_is_heard_at_no_later_time() -> None:
    """What was said meanwhile is read before the timers: silence counts from then on."""
    plan = build(1, [("a",)], Limits(silence_s=10))
    plan.node_up("a", 1, 0)
    plan.progress(0, 1, "a", 0.5, 1000)
    plan.stood(1000, 1000)
    assert plan.tick(1009) == []
    assert node_of_stops(plan.tick(1010)) == {"a"}


def test_user_error_ends_the_job_and_is_not_retried() -> None:
    plan = build(3, [("a",)], Limits(ahead=0))
    plan.node_up("a", 2, 0)
    effects = plan.user_error(0, 1, "a", "ValueError", 1)
    assert [type(e) for e in effects] == [Stop, Failed]
    assert plan.tick(100) == plan.node_up("b", 4, 2) == []


def test_segment_lost_too_often_fails_the_job() -> None:
    plan = build(1, [("a",)], Limits(attempts=3))
    effects = plan.node_up("a", 1, 0)
    now = 0.0
    for _ in range(3):
        start = next(e for e in effects if isinstance(e, Start))
        effects = plan.lost(0, start.attempt, start.node, "killed", now)
        now += 100
        effects += plan.tick(now)
    assert any(isinstance(e, Failed) and not e.user_error for e in effects)


def test_refused_attempt_does_not_count() -> None:
    plan = build(1, [("a",)], Limits(attempts=2))
    for turn in range(10):
        start = next(e for e in plan.node_up("a", 1, turn) + plan.tick(turn) if isinstance(e, Start))
        plan.refused(0, start.attempt, "a", 0.5, turn)
        plan.check_invariants()
    assert plan.retries == 0


@effort(300)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), nodes=st.integers(1, 5))
def test_every_segment_counts_once_whatever_dies(seed: int, count: int, nodes: int) -> None:
    """Random losses, refusals, late and doubled answers; in the end all are done, each once."""
    rng = random.Random(seed)
    names = [f"n{n}" for n in range(nodes)]
    slots = {name: rng.randint(1, 3) for name in names}
    holders = [tuple(rng.sample(names, rng.randint(1, nodes))) for _ in range(max(1, count))]
    plan = build(count, holders, Limits(silence_s=5, attempts=10**6))
    running: list[Start] = []
    old: list[Start] = []
    counted: list[int] = []
    finished = 0
    now = 0.0

    def take(effects: list[object]) -> None:
        nonlocal finished
        for effect in effects:
            assert not isinstance(effect, Failed)
            if isinstance(effect, Start):
                running.append(effect)
            elif isinstance(effect, Stop):
                gone = [s for s in running if (s.segment, s.attempt) == (effect.segment, effect.attempt)]
                for start in gone:
                    running.remove(start)
                    old.append(start)
            elif isinstance(effect, Finished):
                finished += 1
        plan.check_invariants()

    for name in names:
        take(plan.node_up(name, slots[name], now))
    for step in range(10_000):
        if finished:
            break
        now += rng.random() * 2
        what = rng.random() if step < 400 else 0.9
        if what < 0.1:
            name = rng.choice(names)
            for start in [s for s in running if s.node == name]:
                running.remove(start)
                old.append(start)
            take(plan.node_lost(name, now))
        elif what < 0.25:
            name = rng.choice(names)
            take(plan.node_up(name, slots[name], now))
        elif what < 0.35 and running:
            start = running.pop(rng.randrange(len(running)))
            take(plan.lost(start.segment, start.attempt, start.node, "x", now))
        elif what < 0.4 and running:
            start = running.pop(rng.randrange(len(running)))
            take(plan.refused(start.segment, start.attempt, start.node, 0.5, now))
        elif what < 0.45 and old:
            start = rng.choice(old)
            before = set(plan.done)
            take(plan.finished(start.segment, start.attempt, start.node, now))
            counted += sorted(plan.done - before)
        elif what < 0.6:
            take(plan.tick(now))
        elif running:
            start = running.pop(rng.randrange(len(running)))
            before = set(plan.done)
            take(plan.finished(start.segment, start.attempt, start.node, now))
            counted += sorted(plan.done - before)
        else:
            for name in names:
                take(plan.node_up(name, slots[name], now))
            take(plan.tick(now))
    assert finished == 1
    assert sorted(counted) == list(range(count))


# -- buckets -----------------------------------------------------------------------------------------
@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=8), buckets=st.integers(1, 500))
def test_spread_covers_all_buckets(weights: list[int], buckets: int) -> None:
    routes = spread([(f"n{i}", w) for i, w in enumerate(weights)], buckets)
    table = RouteTable(buckets, [Range(*route) for route in routes])
    assert [table.node_of(b) for b in range(buckets)] == [
        n for f, last, n in routes for _ in range(f, last + 1)
    ]


@given(seed=st.integers(0, 2**32), buckets=st.integers(1, 60))
def test_replacing_nodes_keeps_every_bucket_in_one_place(seed: int, buckets: int) -> None:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(5)]
    table = RouteTable(buckets, [Range(*r) for r in spread([(n, 1) for n in names], buckets)])
    for _ in range(4):
        lost = names.pop(rng.randrange(len(names)))
        kept = {b: table.node_of(b) for b in range(buckets)}
        table.replace(lost, names)
        RouteTable(buckets, table.ranges)
        for bucket, node in kept.items():
            assert table.node_of(bucket) == node if node != lost else table.node_of(bucket) in names


@given(seed=st.integers(0, 2**32))
def test_ledger_counts_each_set_once_and_survives_torn_writes(seed: int) -> None:
    rng = random.Random(seed)
    ledger, raw = Ledger(), b""
    truth: dict[tuple[int, int], str] = {}
    for number in range(60):
        segment, first = rng.randrange(6), rng.randrange(4) * 3
        entry = Entry(segment, first, [rng.randrange(5) for _ in range(3)], f"run{number}", rng.randrange(9))
        fresh = (segment, first) not in truth
        assert ledger.commit(entry) is fresh
        if fresh:
            truth[(segment, first)] = entry.file
            raw += encode_entry(entry)
    entries, good = decode_entries(raw + encode_entry(Entry(9, 9, [1], "torn"))[: rng.randrange(1, 12)])
    assert good == len(raw)
    again = Ledger()
    assert all(again.commit(entry) for entry in entries)
    assert set(again.held()) == set(ledger.held()) == {(s, f, f + 2) for s, f in truth}


def test_ledger_names_what_is_missing() -> None:
    ledger = Ledger()
    ledger.commit(Entry(0, 0, [5, 0, 7], "r0", 100))
    ledger.commit(Entry(1, 2, [4], "r1"))
    assert ledger.missing(0, 0, 3) == [(3, 3)]
    assert ledger.missing(1, 0, 2) == [(0, 1)]
    assert ledger.pieces(2, 2) == [("r0", 105, 7), ("r1", 0, 4)]
    assert ledger.pieces(1, 1) == []
    with pytest.raises(Conflict, match="segment 1"):
        ledger.pieces(0, 2)
    with pytest.raises(Conflict, match="partly"):
        ledger.commit(Entry(1, 1, [1, 1], "r2"))


def test_damage_in_the_middle_of_a_ledger_is_seen() -> None:
    raw = bytearray(encode_entry(Entry(0, 0, [1], "a")) + encode_entry(Entry(1, 0, [1], "b")))
    raw[14] ^= 1
    with pytest.raises(Damaged):
        decode_entries(bytes(raw))


def test_book_knows_what_is_missing_after_a_node_is_lost() -> None:
    book = BucketBook(8, [("a", 1), ("b", 1)])
    for segment in range(3):
        book.ran_on(segment, "a" if segment else "b")
        book.took(segment, [Delivered(r.first, r.last, r.node, 0) for r in book.routes()])
    assert not book.missing(range(3))
    book.lose_node("b", ["a", "c"])
    assert {
        s: [(r.first, r.last, r.node) for r in routes] for s, routes in book.missing(range(3)).items()
    } == {s: [(4, 5, "a"), (6, 7, "c")] for s in range(3)}
    assert book.home == {1: "a", 2: "a"}
    book.replace_state("a", [(s, 0, 5) for s in range(3)])
    assert all(len(routes) == 1 for routes in book.missing(range(3)).values())


def test_cut_survives_records_larger_than_a_segment() -> None:
    offsets = np.array([0, 10, 5000, 5010], dtype=np.int64)
    pieces = cut([source(size=5010, width=0)], [offsets], 100, smax=100)
    assert [(p[0].offset, p[0].length) for p in pieces] == [(0, 10), (10, 4990), (5000, 10)]


def test_a_node_that_cannot_serve_counts_no_attempt_as_lost() -> None:
    """Six nodes in turn are full: five lost attempts would end the job, these do not."""
    plan = build(2, [("a",)], Limits(attempts=2))
    effects = [effect for n in "abcdefg" for effect in plan.node_up(n, 2, 0.0)]
    assert {effect.node for effect in effects if isinstance(effect, Start)} == {"a"}
    for node in "abcdef":
        effects = plan.node_out(node, 1.0)
        plan.check_invariants()
        assert not any(isinstance(effect, Failed) for effect in effects)
    assert {item[2] for item in plan.running()} == {"g"}
    assert node_of_stops(plan.node_out("g", 2.0)) == {"g"}
    assert sorted(plan.waiting) == [0, 1] and plan.losses == {}
    assert plan.node_out("g", 3.0) == []


def node_of_stops(effects: list[object]) -> set[str]:
    """The nodes whose attempts are cancelled."""
    return {effect.node for effect in effects if isinstance(effect, Stop)}


def calls_of_a_run(count: int, files: int) -> int:
    """Calls of functions that a job of so many segments costs its scheduler."""
    cut = [Segment(n, cut_whole([source(f"/f{n * files // count}", 100, ("a",))])) for n in range(count)]
    plan = Plan(cut)
    calls = 0

    def counted(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        started = [*plan.node_up("a", 2, 0.0), *plan.node_up("b", 2, 0.0)]
        while started:
            effect = started.pop(0)
            if isinstance(effect, Start):
                started += plan.finished(effect.segment, effect.attempt, effect.node, 1.0)
    finally:
        sys.setprofile(None)
    assert plan.ended and len(plan.done) == count
    return calls


@pytest.mark.parametrize("share", [1, 1000])
def test_a_segment_costs_the_same_in_a_large_job(share: int) -> None:
    """Each choice looked at all segments that were left of a file: the driver of a job of 20,000 segments of
    one file computed for minutes, and heard nothing of its slaves meanwhile."""
    small = calls_of_a_run(300, max(1, 300 // share))
    large = calls_of_a_run(3000, max(1, 3000 // share))
    assert large < 13 * small


def test_what_was_lost_waits_in_its_place(seed: int) -> None:
    """Input order, whatever comes back when."""
    plan = build(50, [("a",)])
    plan.node_up("a", 20, 0.0)
    lost = plan.running()
    random.Random(seed).shuffle(lost)
    plan.nodes["a"].slots = 1
    for segment, attempt, node, _ in lost:
        plan.refused(segment, attempt, node, 100.0, 1.0)
    assert list(plan.waiting) == list(range(50))
    plan.check_invariants()
