"""Routing of bucket output, the ledger that makes every segment count exactly once, limits of flow (pure).

Buckets are numbered 0..N-1; contiguous ranges live on one node each. The worker writes a segment's output in
order of buckets, so that what one target gets is one byte range. A target commits a whole range of a segment
at once under (job, stage, segment, bucket); whatever is run again, sent twice or lost, the first
committed set counts and every later one is dropped (spec/sphere.md, "Exactly once").
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from sector.errors import Conflict, Damaged


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Buckets first..last (inclusive) on a node."""

    first: int
    last: int
    node: str


class RouteTable:
    """Which node holds which bucket. Ranges cover 0..buckets-1 without gap or overlap."""

    def __init__(self, buckets: int, ranges: Iterable[Range]) -> None:
        self.buckets = buckets
        self.ranges = sorted(ranges)
        expected = 0
        for item in self.ranges:
            if item.first != expected or item.last < item.first:
                raise ValueError(f"bucket {expected} has no or two places")
            expected = item.last + 1
        if expected != buckets:
            raise ValueError(f"buckets {expected}..{buckets - 1} have no place")

    def node_of(self, bucket: int) -> str:
        """The node that holds a bucket."""
        at = bisect.bisect_right(self.ranges, bucket, key=lambda item: item.first) - 1
        return self.ranges[at].node

    def replace(self, node: str, others: Sequence[str]) -> list[Range]:
        """Move the ranges of a lost node to `others`, in contiguous parts; returns the new ranges."""
        if not others:
            raise ValueError("no node is left for the buckets")
        fresh: list[Range] = []
        kept: list[Range] = []
        turn = 0
        for item in self.ranges:
            if item.node != node:
                kept.append(item)
                continue
            count = item.last - item.first + 1
            parts = min(len(others), count)
            for part in range(parts):
                low = item.first + count * part // parts
                high = item.first + count * (part + 1) // parts - 1
                fresh.append(Range(low, high, others[(turn + part) % len(others)]))
            turn += parts
        self.ranges = sorted(kept + fresh)
        return fresh


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One committed set: buckets first..first+len(lengths)-1 of a segment. The bytes lie in `file` from
    `base` on, one bucket after the other."""

    segment: int
    first: int
    lengths: list[int]
    file: str
    base: int = 0

    @property
    def last(self) -> int:
        """The last bucket of the set."""
        return self.first + len(self.lengths) - 1

    def part(self, first: int, last: int) -> Entry:
        """The set of some of its buckets."""
        low, high = first - self.first, last - self.first + 1
        base = self.base + sum(self.lengths[:low])
        return Entry(self.segment, first, self.lengths[low:high], self.file, base)


@dataclass(slots=True)
class Ledger:
    """Committed sets of one (job, stage) on one node."""

    by_segment: dict[int, list[Entry]] = field(default_factory=dict)
    starts: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def missing(self, segment: int, first: int, last: int) -> list[tuple[int, int]]:
        """Sub-ranges of first..last that are not committed for a segment."""
        gaps, at = [], first
        for entry in sorted(self.by_segment.get(segment, []), key=lambda e: e.first):
            if entry.last < at:
                continue
            if entry.first > last:
                break
            if entry.first > at:
                gaps.append((at, entry.first - 1))
            at = max(at, entry.last + 1)
        if at <= last:
            gaps.append((at, last))
        return gaps

    def has(self, segment: int, first: int, last: int) -> bool:
        """Whether all of first..last is committed for a segment."""
        return not self.missing(segment, first, last)

    def commit(self, entry: Entry) -> bool:
        """Take a set. False: none of it is needed, drop the bytes. A partly known set is refused with
        Conflict, for its parts must be offered one by one (this happens only when ranges changed)."""
        gaps = self.missing(entry.segment, entry.first, entry.last)
        if not gaps:
            return False
        if gaps != [(entry.first, entry.last)]:
            raise Conflict(f"buckets {entry.first}..{entry.last} of segment {entry.segment} are partly here")
        self.by_segment.setdefault(entry.segment, []).append(entry)
        return True

    def held(self) -> Iterator[tuple[int, int, int]]:
        """(segment, first, last) of all committed sets."""
        for segment, entries in sorted(self.by_segment.items()):
            for entry in entries:
                yield segment, entry.first, entry.last

    def pieces(self, bucket: int, segments: int) -> list[tuple[str, int, int]]:
        """Where the bytes of a bucket lie, in order of segments: (file, offset, length). Raises `Conflict`
        naming the first segment that is not committed."""
        found = []
        for segment in range(segments):
            entry = self._entry(segment, bucket)
            if entry is None:
                raise Conflict(f"bucket {bucket} has no output of segment {segment} yet")
            position = bucket - entry.first
            key = (segment, entry.first)
            if key not in self.starts:
                self.starts[key] = list(accumulate(entry.lengths, initial=entry.base))
            offset = self.starts[key][position]
            if entry.lengths[position]:
                found.append((entry.file, offset, entry.lengths[position]))
        return found

    def _entry(self, segment: int, bucket: int) -> Entry | None:
        for entry in self.by_segment.get(segment, []):
            if entry.first <= bucket <= entry.last:
                return entry
        return None


_MARK = b"SLG1"


def encode_entry(entry: Entry) -> bytes:
    """One line of the ledger's file: mark, length, CRC-32, msgpack body."""
    body = msgspec.msgpack.encode(entry)
    return _MARK + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def decode_entries(raw: bytes) -> tuple[list[Entry], int]:
    """The entries of a ledger's file and the length of its good part; a torn last line (crash while
    writing) is dropped. Raises `Damaged` when a line before the last one is bad."""
    entries: list[Entry] = []
    at = 0
    decoder = msgspec.msgpack.Decoder(Entry)
    while at + 12 <= len(raw):
        size = int.from_bytes(raw[at + 4 : at + 8], "little")
        end = at + 12 + size
        body = raw[at + 12 : end]
        good = raw[at : at + 4] == _MARK and len(body) == size
        if not good or zlib.crc32(body) != int.from_bytes(raw[at + 8 : at + 12], "little"):
            if end < len(raw):
                raise Damaged(f"the ledger is damaged at byte {at}")
            break
        try:
            entries.append(decoder.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Damaged(f"the ledger is damaged at byte {at}: {error}") from None
        at = end
    return entries, at


@dataclass(slots=True)
class Gate:
    """A counted limit with an orderly queue: at most `limit` holders, at most `queue` waiting."""

    limit: int
    queue: int
    holders: int = 0
    waiting: list[int] = field(default_factory=list)
    _next: int = 0

    def enter(self) -> int | None:
        """A number to wait with, 0 = go now, None = the queue is full."""
        if self.holders < self.limit and not self.waiting:
            self.holders += 1
            return 0
        if len(self.waiting) >= self.queue:
            return None
        self._next += 1
        self.waiting.append(self._next)
        return self._next

    def leave(self) -> int | None:
        """One holder is done; the number whose turn it is now, or None."""
        if self.waiting:
            return self.waiting.pop(0)
        self.holders -= 1
        return None

    def forget(self, number: int) -> None:
        """A waiting one gave up."""
        if number in self.waiting:
            self.waiting.remove(number)
