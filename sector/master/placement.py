"""Which slave serves a read, takes a write, or gets or gives a copy (design section 5).

Pure and deterministic: equal nodes are told apart by a hash of path and name, which spreads files.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sector.master.topology import Place, distance


@dataclass(frozen=True, slots=True)
class Candidate:
    """A slave as placement sees it. `busy` transfers running or about to start; `free` bytes left that
    nobody has been promised; `usable` = up and heard of lately."""

    id: str
    place: Place
    free: int
    busy: int
    usable: bool = True


def _tie(path: str, node: str) -> int:
    return zlib.crc32(node.encode(), zlib.crc32(path.encode()))


def _fits(node: Candidate, size: int) -> bool:
    return node.free >= size


def for_write(
    nodes: Iterable[Candidate],
    *,
    path: str,
    size: int,
    client: Place,
    near: str = "",
    exclude: Collection[str] = (),
) -> list[str]:
    """Slaves that can take a new version of `size` bytes, best first: the one that was asked for, nearest,
    least busy, most room (in eighths of the emptiest)."""
    fit = [n for n in nodes if n.usable and n.id not in exclude and _fits(n, size)]
    most = max((n.free for n in fit), default=1) or 1

    def order(node: Candidate) -> tuple[object, ...]:
        room = -(node.free * 8 // most)
        return (node.id != near, distance(client, node.place), node.busy, room, _tie(path, node.id))

    return [n.id for n in sorted(fit, key=order)]


def for_read(
    nodes: Iterable[Candidate],
    *,
    path: str,
    client: Place,
    exclude: Collection[str] = (),
    doubtful: Collection[str] = (),
) -> list[str]:
    """Holders of a replica, best first: usable, not doubtful (bad, suspect), nearest, least busy. Excluded
    ones come last, since a replica that failed once is better than none."""

    def order(node: Candidate) -> tuple[object, ...]:
        return (
            node.id in exclude,
            node.id in doubtful or not node.usable,
            distance(client, node.place),
            node.busy,
            _tie(path, node.id),
        )

    return [n.id for n in sorted(nodes, key=order)]


def for_copy(
    nodes: Iterable[Candidate], *, path: str, size: int, holders: Sequence[Place], exclude: Collection[str]
) -> list[str]:
    """Slaves for one more replica, best first: on a host without one, then far from those that hold it, least
    busy, most room."""
    hosts = {place.host for place in holders}
    fit = [n for n in nodes if n.usable and n.id not in exclude and _fits(n, size)]
    most = max((n.free for n in fit), default=1) or 1

    def order(node: Candidate) -> tuple[object, ...]:
        nearest = min((distance(place, node.place) for place in holders), default=0)
        room = -(node.free * 8 // most)
        return (node.place.host in hosts, -nearest, node.busy, room, _tie(path, node.id))

    return [n.id for n in sorted(fit, key=order)]


def for_source(holders: Iterable[Candidate], *, target: Place, path: str) -> list[str]:
    """Holders to copy from, best first: usable, nearest to the target, least busy."""
    able = [n for n in holders if n.usable]
    return [n.id for n in sorted(able, key=lambda n: (distance(target, n.place), n.busy, _tie(path, n.id)))]


def for_drop(holders: Sequence[Candidate], *, path: str) -> str:
    """The replica that is missed least: one that shares a host with another, then the one whose removal
    leaves the others farthest apart, then the fullest disk."""

    def spread(rest: Sequence[Candidate]) -> tuple[int, int]:
        pairs = [distance(a.place, b.place) for i, a in enumerate(rest) for b in rest[:i]]
        return len({n.place.host for n in rest}), sum(pairs)

    def worth(node: Candidate) -> tuple[object, ...]:
        hosts, apart = spread([n for n in holders if n.id != node.id])
        return (-hosts, -apart, node.free, _tie(path, node.id))

    return min(holders, key=worth).id
