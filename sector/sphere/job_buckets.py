"""Where a job's bucket output is, as its driver knows it; which deliveries are still to be made (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sector.sphere.plan import spread
from sector.sphere.shuffle import Range, RouteTable
from sector.wire.sphere import Delivered, Route


class BucketBook:
    """Which node has committed which buckets of which segment; the truth is in the nodes' ledgers."""

    def __init__(self, buckets: int, nodes: Sequence[tuple[str, int]]) -> None:
        self.buckets = buckets
        self.table = RouteTable(buckets, [Range(*route) for route in spread(nodes, buckets)])
        self.held: dict[str, dict[int, list[tuple[int, int]]]] = {}
        self.home: dict[int, str] = {}
        self.unsealed: dict[int, int] = {}
        """First bucket of a range -> how often in turn its leases ended before it was published."""

    def routes(self) -> list[Route]:
        """All ranges of buckets and their nodes."""
        return [Route(item.first, item.last, item.node) for item in self.table.ranges]

    def took(self, segment: int, ranges: Iterable[Delivered]) -> None:
        """These ranges of a segment are committed."""
        for item in ranges:
            self.held.setdefault(item.node, {}).setdefault(segment, []).append((item.first, item.last))

    def replace_state(self, node: str, held: Iterable[tuple[int, int, int]]) -> None:
        """What a node's ledger says itself."""
        mine: dict[int, list[tuple[int, int]]] = {}
        for segment, first, last in held:
            mine.setdefault(segment, []).append((first, last))
        self.held[node] = mine

    def ran_on(self, segment: int, node: str) -> None:
        """A node keeps the result of a segment."""
        self.home[segment] = node

    def lose_results(self, node: str) -> None:
        """A node has no results any more (it restarted or is gone)."""
        self.home = {segment: home for segment, home in self.home.items() if home != node}

    def lose_node(self, node: str, others: Sequence[str]) -> None:
        """A node is gone for good: its buckets move to others."""
        self.held.pop(node, None)
        self.lose_results(node)
        if any(item.node == node for item in self.table.ranges):
            self.table.replace(node, others)

    def missing(self, segments: Iterable[int]) -> dict[int, list[Route]]:
        """For each segment the ranges that their present node has not committed."""
        result: dict[int, list[Route]] = {}
        for segment in segments:
            gaps = [
                Route(item.first, item.last, item.node)
                for item in self.table.ranges
                if not self._has(item.node, segment, item.first, item.last)
            ]
            if gaps:
                result[segment] = gaps
        return result

    def _has(self, node: str, segment: int, first: int, last: int) -> bool:
        at = first
        for low, high in sorted(self.held.get(node, {}).get(segment, ())):
            if low > at:
                break
            at = max(at, high + 1)
        return at > last
