"""Which segment runs where and when: a pure state machine (design.md section 6, "Scheduler").

Events go in with the time, effects come out. Rules for a free SPE slot: (1) a segment whose data lies on
that node; (2) among those, of the file with the fewest running segments; (3) when the node has none,
the next segment in input order. A silent SPE is given up and its segment runs elsewhere; an error of the
user function ends the job and is not retried; every segment counts exactly once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import numpy as np

from sector.errors import UsageError
from sector.model import Version
from sector.sphere.records import Offsets

S_MIN = 8 << 20
S_MAX = 128 << 20
SLOT_SEGMENTS = 4
"""Segments per SPE slot that cutting aims at, so that slots end at about the same time."""


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: what the namespace says and how it is cut. `index` = version, size and holders
    of its record index, or None; `holders` = nodes with a replica."""

    path: str
    size: int
    version: Version
    holders: tuple[str, ...]
    record_size: int = 0
    index: tuple[Version, int, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Part of one file: bytes offset..offset+length, records first..first+records (0 = not cut)."""

    source: Source
    offset: int
    length: int
    first: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A unit of work: one span of each paired input stream. `index` counts from 0 in input order."""

    index: int
    spans: tuple[Span, ...]

    @property
    def length(self) -> int:
        """Bytes of all spans."""
        return sum(span.length for span in self.spans)

    @property
    def holders(self) -> tuple[str, ...]:
        """Nodes that have all of it; with several streams those that have the longest span."""
        best = max(self.spans, key=lambda span: span.length)
        common = set(best.source.holders)
        for span in self.spans:
            common &= set(span.source.holders)
        return tuple(n for n in best.source.holders if not common or n in common)


def target_size(total: int, slots: int, *, smin: int = S_MIN, smax: int = S_MAX) -> int:
    """Bytes that a segment should have: `SLOT_SEGMENTS` for each slot, within smin..smax."""
    return max(smin, min(smax, -(-total // max(1, slots * SLOT_SEGMENTS))))


def cut(
    group: Sequence[Source],
    offsets: Sequence[Offsets | None],
    goal: int,
    *,
    smax: int = S_MAX,
) -> list[tuple[Span, ...]]:
    """Cut one file of each paired stream at the same records: pieces of about `goal` bytes in all, at most
    smax (a record that is larger is a piece of its own). `offsets` = the record index of a file, None when
    its records have a fixed size. Raises `UsageError` when counts differ or a size does not fit."""
    for source, index in zip(group, offsets, strict=True):
        if index is None and (source.record_size <= 0 or source.size % source.record_size):
            raise UsageError(
                f"{source.path} has {source.size} bytes, no multiple of the record size {source.record_size}",
                hint="give the right record size, or use an index or granularity segment or file",
            )
    counts = [
        source.size // source.record_size if index is None else len(index) - 1
        for source, index in zip(group, offsets, strict=True)
    ]
    if len(set(counts)) != 1:
        names = ", ".join(f"{s.path} {n}" for s, n in zip(group, counts, strict=True))
        raise UsageError(f"paired files have different numbers of records: {names}")
    count = counts[0]
    if all(index is None for index in offsets):
        bounds = _even(count, sum(source.record_size for source in group), goal, smax)
    else:
        bounds = _along(_summed(group, offsets, count), goal, smax)
    spans = []
    for first, last in pairwise(bounds):
        parts = []
        for source, index in zip(group, offsets, strict=True):
            start = first * source.record_size if index is None else int(index[first])
            end = last * source.record_size if index is None else int(index[last])
            parts.append(Span(source, start, end - start, first, last - first))
        spans.append(tuple(parts))
    return spans


def _even(count: int, width: int, goal: int, smax: int) -> list[int]:
    """Record numbers where pieces of equal length begin and end."""
    limit = max(1, smax // width)
    pieces = max(-(-count // limit), round(count * width / max(1, goal)), 1 if count else 0)
    pieces = min(pieces, count)
    return [count * number // pieces for number in range(pieces + 1)] if pieces else []


def _summed(group: Sequence[Source], offsets: Sequence[Offsets | None], count: int) -> Offsets:
    total = np.zeros(count + 1, dtype=np.int64)
    for source, index in zip(group, offsets, strict=True):
        total += np.arange(count + 1, dtype=np.int64) * source.record_size if index is None else index
    return total


def _along(total: Offsets, goal: int, smax: int) -> list[int]:
    """Record numbers where pieces begin and end, along summed offsets."""
    count, bounds = len(total) - 1, [0]
    while bounds[-1] < count:
        first = bounds[-1]
        start = int(total[first])
        last = int(np.searchsorted(total, start + min(goal, smax), side="right")) - 1
        last = min(count, max(first + 1, last))
        rest = int(total[-1]) - int(total[last])
        if 0 < rest < goal // 4 and int(total[-1]) - start <= smax:
            last = count
        bounds.append(last)
    return bounds if count else []


def cut_whole(group: Sequence[Source]) -> tuple[Span, ...]:
    """Whole files as one piece."""
    return tuple(Span(source, 0, source.size) for source in group)


def numbered(pieces: Iterable[tuple[Span, ...]]) -> list[Segment]:
    """Segments in input order."""
    return [Segment(index, spans) for index, spans in enumerate(pieces)]


# -- scheduling --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Limits:
    """`silence_s` without a sign of life ends an attempt; `attempts` = how many lost attempts a segment
    survives; `ahead` = segments given to a node beyond its slots, so that it never waits for us."""

    silence_s: float = 30.0
    attempts: int = 5
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """Effect: run this segment on this node."""

    segment: int
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Effect: cancel this attempt, its result is not wanted."""

    segment: int
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Effect: every segment counted once."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Effect: the job cannot be completed. `segment` -1 when none in particular."""

    segment: int
    why: str
    user_error: bool


Effect = Start | Stop | Finished | Failed


@dataclass(slots=True)
class _Attempt:
    segment: int
    number: int
    node: str
    heard: float
    progress: float = 0.0


@dataclass(slots=True)
class _Node:
    slots: int
    running: dict[int, _Attempt] = field(default_factory=dict)
    resting_until: float = 0.0
    losses: int = 0


class Plan:
    """The state of one stage. Methods take the time and return effects in order."""

    def __init__(self, segments: Sequence[Segment], limits: Limits | None = None) -> None:
        self.segments = list(segments)
        self.limits = limits or Limits()
        self.nodes: dict[str, _Node] = {}
        self.waiting = OrderedDict[int, None].fromkeys(range(len(self.segments)))
        self.done: set[int] = set()
        self.losses: dict[int, int] = {}
        self.avoid: dict[int, set[str]] = {}
        self.busy_files: dict[str, int] = {}
        self.local: dict[str, OrderedDict[str, deque[int]]] = {}
        """Segments that may wait, by the file of those that lie on a node. What is not waiting any more is
        taken out when it is met: whatever is chosen costs the same in a job of any size."""
        self.attempts = 0
        self.retries = 0
        self.duplicates = 0
        self.ended = False
        for segment in self.segments:
            for node in segment.holders:
                files = self.local.setdefault(node, OrderedDict())
                files.setdefault(self._file(segment.index), deque()).append(segment.index)

    # events ------------------------------------------------------------------------------------
    def node_up(self, node: str, slots: int, now: float) -> list[Effect]:
        """A node may take `slots` segments at once (again)."""
        known = self.nodes.get(node)
        if known is None:
            self.nodes[node] = _Node(max(1, slots))
        else:
            known.slots = max(1, slots)
            known.resting_until = now
        return self._fill(now)

    def node_lost(self, node: str, now: float) -> list[Effect]:
        """A node is gone with all it was running."""
        effects: list[Effect] = []
        state = self.nodes.pop(node, None)
        if state is not None:
            for attempt in list(state.running.values()):
                effects += self._lose(attempt, now, f"slave {node} was lost", state)
        return effects + self._fill(now)

    def node_out(self, node: str, now: float) -> list[Effect]:
        """A node cannot serve this job: others run what it was running. No attempt counts as lost."""
        effects: list[Effect] = []
        state = self.nodes.get(node)
        for attempt in list(state.running.values()) if state is not None else []:
            self._release(attempt)
            effects.append(Stop(attempt.segment, attempt.number, node))
            if not self.ended:
                self._wait(attempt.segment)
                self.retries += 1
        self.nodes.pop(node, None)
        return effects + self._fill(now)

    def progress(self, segment: int, attempt: int, node: str, fraction: float, now: float) -> None:
        """A sign of life of an attempt."""
        running = self._find(segment, attempt, node)
        if running is not None:
            running.heard = now
            running.progress = max(running.progress, fraction)

    def stood(self, gap_s: float, now: float) -> None:
        """Nobody listened for so long: that is no silence of those who run, but for those just heard."""
        for state in self.nodes.values():
            for attempt in state.running.values():
                attempt.heard = min(now, attempt.heard + gap_s)

    def finished(self, segment: int, attempt: int, node: str, now: float) -> list[Effect]:
        """An attempt delivered. Only the first one of a segment counts."""
        running = self._find(segment, attempt, node)
        if running is not None:
            self._release(running)
            self.nodes[node].losses = 0
        if self.ended or not 0 <= segment < len(self.segments):
            return []
        if segment in self.done:
            self.duplicates += 1
            return self._fill(now)
        self.done.add(segment)
        self.waiting.pop(segment, None)
        effects: list[Effect] = []
        for other in self._running(segment):
            self._release(other)
            effects.append(Stop(other.segment, other.number, other.node))
        if len(self.done) == len(self.segments):
            self.ended = True
            return [*effects, Finished()]
        return effects + self._fill(now)

    def lost(self, segment: int, attempt: int, node: str, why: str, now: float) -> list[Effect]:
        """An attempt ended without result and without fault of the function: another SPE tries."""
        running = self._find(segment, attempt, node)
        if running is None:
            return []
        return self._lose(running, now, why, self.nodes[node]) + self._fill(now)

    def refused(self, segment: int, attempt: int, node: str, rest_s: float, now: float) -> list[Effect]:
        """The node is at its limit, or its input was not where it was told: the attempt does not count, the
        node rests."""
        running = self._find(segment, attempt, node)
        if running is None:
            return []
        self._release(running)
        self._wait(segment)
        self.nodes[node].resting_until = now + rest_s
        return self._fill(now)

    def user_error(self, segment: int, attempt: int, node: str, why: str, now: float) -> list[Effect]:
        """The function failed: the job ends, nothing is retried."""
        running = self._find(segment, attempt, node)
        if running is not None:
            self._release(running)
        if self.ended or segment in self.done:
            return []
        return self._end(Failed(segment, why, True))

    def relocate(self, segment: Segment) -> None:
        """The input of a segment has other holders by now: what begins of it from now on knows them."""
        self.segments[segment.index] = segment

    def redo(self, segment: int, now: float) -> list[Effect]:
        """A counted segment's output was lost with its node: it has to run again."""
        if self.ended and len(self.done) != len(self.segments):
            return []
        if segment in self.done:
            self.done.discard(segment)
            self._wait(segment)
            self.retries += 1
            self.ended = False
        return self._fill(now)

    def cancel(self) -> list[Effect]:
        """Stop everything; no further effects follow."""
        self.ended = True
        return self._stop_all()

    def tick(self, now: float) -> list[Effect]:
        """Give up attempts that were silent too long; fill nodes whose rest is over."""
        if self.ended:
            return []
        effects: list[Effect] = []
        for node, state in list(self.nodes.items()):
            for attempt in list(state.running.values()):
                if now - attempt.heard >= self.limits.silence_s and not self.ended:
                    effects.append(Stop(attempt.segment, attempt.number, node))
                    state.resting_until = now + self.limits.silence_s
                    effects += self._lose(attempt, now, f"the SPE on {node} was silent", state)
        return effects + self._fill(now)

    def runs(self, segment: int, attempt: int, node: str) -> bool:
        """Whether this attempt still counts: it has neither ended nor been given up."""
        return self._find(segment, attempt, node) is not None

    # queries -----------------------------------------------------------------------------------
    def running(self) -> list[tuple[int, int, str, float]]:
        """(segment, attempt, node, progress) of all running attempts."""
        return [
            (a.segment, a.number, a.node, a.progress)
            for state in self.nodes.values()
            for a in state.running.values()
        ]

    def check_invariants(self) -> None:
        """Assert what always holds; for tests."""
        running = [a for state in self.nodes.values() for a in state.running.values()]
        active = {a.segment for a in running}
        everything = set(range(len(self.segments)))
        assert len(active) == len(running), "two attempts of one segment"
        assert not set(self.waiting) & self.done and not active & self.done
        assert not set(self.waiting) & active
        if not self.ended:
            assert set(self.waiting) | active | self.done == everything, "a segment fell through"
        for state in self.nodes.values():
            assert len(state.running) <= state.slots + self.limits.ahead
        files: dict[str, int] = {}
        for attempt in running:
            path = self._file(attempt.segment)
            files[path] = files.get(path, 0) + 1
        assert {p: n for p, n in self.busy_files.items() if n} == files

    # inner -------------------------------------------------------------------------------------
    def _find(self, segment: int, attempt: int, node: str) -> _Attempt | None:
        state = self.nodes.get(node)
        running = state.running.get(segment) if state else None
        return running if running is not None and running.number == attempt else None

    def _running(self, segment: int) -> list[_Attempt]:
        return [s.running[segment] for s in self.nodes.values() if segment in s.running]

    def _file(self, segment: int) -> str:
        return self.segments[segment].spans[0].source.path

    def _wait(self, segment: int) -> None:
        """It waits for a slot, in input order."""
        before = list(takewhile(lambda number: number < segment, self.waiting))
        self.waiting[segment] = None
        for number in (segment, *reversed(before)):
            self.waiting.move_to_end(number, last=False)
        for node in self.segments[segment].holders:
            files = self.local.setdefault(node, OrderedDict())
            files.setdefault(self._file(segment), deque()).appendleft(segment)

    def _release(self, attempt: _Attempt) -> None:
        state = self.nodes.get(attempt.node)
        if state is not None:
            state.running.pop(attempt.segment, None)
        path = self._file(attempt.segment)
        self.busy_files[path] -= 1
        if not self.busy_files[path]:
            del self.busy_files[path]

    def _lose(self, attempt: _Attempt, now: float, why: str, state: _Node) -> list[Effect]:
        self._release(attempt)
        state.running.pop(attempt.segment, None)
        if self.ended:
            return []
        segment = attempt.segment
        lost = self.losses[segment] = self.losses.get(segment, 0) + 1
        self.avoid.setdefault(segment, set()).add(attempt.node)
        state.losses += 1
        if state.losses > 2:
            state.resting_until = max(state.resting_until, now + min(30.0, 2.0 ** (state.losses - 2)))
        if lost >= self.limits.attempts:
            return self._end(Failed(segment, f"segment {segment} was lost {lost} times, last: {why}", False))
        self.retries += 1
        self._wait(segment)
        return []

    def _end(self, failed: Failed) -> list[Effect]:
        self.ended = True
        return [*self._stop_all(), failed]

    def _stop_all(self) -> list[Effect]:
        stops: list[Effect] = []
        for node, state in self.nodes.items():
            for attempt in list(state.running.values()):
                self._release(attempt)
                stops.append(Stop(attempt.segment, attempt.number, node))
        return stops

    def _fill(self, now: float) -> list[Effect]:
        """Give work to free slots, one segment a node a turn; first to slots, then ahead."""
        effects: list[Effect] = []
        if self.ended:
            return effects
        if not self.segments:
            self.ended = True
            return [Finished()]
        for extra in range(self.limits.ahead + 1):
            ready = [n for n, s in self.nodes.items() if s.resting_until <= now]
            while ready and self.waiting:
                ready.sort(key=lambda n: (len(self.nodes[n].running) / self.nodes[n].slots, n))
                still = []
                for node in ready:
                    state = self.nodes[node]
                    if len(state.running) >= state.slots + extra:
                        continue
                    choice = self._choose(node, local_only=extra > 0)
                    if choice is not None:
                        effects.append(self._start(choice, node, now))
                        still.append(node)
                ready = still
        return effects

    def _start(self, segment: int, node: str, now: float) -> Start:
        self.waiting.pop(segment, None)
        self.attempts += 1
        attempt = _Attempt(segment, self.attempts, node, now)
        self.nodes[node].running[segment] = attempt
        path = self._file(segment)
        self.busy_files[path] = self.busy_files.get(path, 0) + 1
        return Start(segment, attempt.number, node)

    def _choose(self, node: str, *, local_only: bool) -> int | None:
        found: int | None = None
        load = 0
        local = self.local.get(node, OrderedDict())
        empty = []
        for path, numbers in local.items():
            users = self.busy_files.get(path, 0)
            if found is not None and users >= load:
                continue
            while numbers and numbers[0] not in self.waiting:
                numbers.popleft()
            if not numbers:
                empty.append(path)
                continue
            first = next((n for n in numbers if n in self.waiting and not self._avoided(n, node)), None)
            if first is not None:
                found, load = first, users
                if load == 0:
                    break
        for path in empty:
            del local[path]
        if found is not None or local_only:
            return found
        return next((number for number in self.waiting if not self._avoided(number, node)), None)

    def _avoided(self, segment: int, node: str) -> bool:
        """A segment lost on a node goes to another one, unless all living nodes have lost it."""
        bad = self.avoid.get(segment)
        return bad is not None and node in bad and any(other not in bad for other in self.nodes)


def spread(nodes: Iterable[tuple[str, int]], buckets: int) -> list[tuple[int, int, str]]:
    """Bucket ranges (first, last, node), contiguous, in proportion to the weights of the nodes."""
    weighted = [(node, max(1, weight)) for node, weight in nodes]
    total = sum(weight for _, weight in weighted)
    routes, seen = [], 0
    for node, weight in weighted:
        first = buckets * seen // total
        seen += weight
        last = buckets * seen // total - 1
        if last >= first:
            routes.append((first, last, node))
    return routes
