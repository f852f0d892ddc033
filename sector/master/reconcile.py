"""What a slave says it holds against what the namespace knows: reports, adoption, rebuild (design section 5).

Pure rules over a `Tx`, like `namespace.py`. In normal service the namespace is right: newer or unknown
content is adopted, older or deleted content is dropped to the slave's attic. What the namespace knows to be
on the slave it removes by its own orders instead: nothing that users deleted or replaced while the slave was
away takes room for ever. While a master rebuilds, and in the first report of a slave that a rebuild ended
without (0300), the newest version wins whatever comes first, and nothing is dropped; full reports afterwards
clean up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sector.errors import BadPath
from sector.master.namespace import (
    DIR,
    DIR_MODE,
    FILE,
    PUBLISHED,
    SYSTEM,
    ZERO,
    Entry,
    Replica,
    Tx,
    find,
)
from sector.model import SliceMeta, Tombstone, Version, check_path, parent

GRACE_S = 60.0
FARTHEST = 1 << 61
"""No slave's word sets the clock of versions ahead beyond this: what is written later needs numbers too."""


class ReportTx(Tx, Protocol):
    """What reports need beyond the namespace."""

    def news(self, stones: Sequence[Tombstone]) -> list[Tombstone]:
        """Those that are newer than what is known to be deleted from their paths."""

    def existing(self, paths: Sequence[str]) -> set[str]:
        """Those paths that have an entry."""

    def put_tombstones(self, stones: Sequence[Tombstone]) -> None:
        """Keep those that are news. Where none is, the mirror's serial stays."""

    def confirm(self, node: str, number: int, metas: Sequence[SliceMeta]) -> list[SliceMeta]:
        """Mark the replicas that are exactly as the namespace knows them, and good, as seen in report
        `number`; returns the others."""

    def mark(self, node: str, path: str, number: int) -> None:
        """Mark one replica, by the entry's path or by the name its slave still knows, as seen."""

    def unseen(self, node: str, number: int, since: float, until: float) -> int:
        """Forget replicas of the node that were there when report `number` began and that it did not name;
        returns how many. Those stay that were confirmed between these times, and those with a rename to
        come: the slave may have them aside, and tells when it is asked to rename what it does not have."""


class Verdict(Enum):
    """What became of a reported file; `keep` False = the slave is to drop it."""

    KNOWN = "known"
    DOUBTED = "doubted"
    MOVING = "moving"
    ADOPTED = "adopted"
    NEWER = "newer"
    CONTESTED = "contested"
    RECENT = "recent"
    STALE = "stale"
    OLD = "old"
    DELETED = "deleted"
    BLOCKED = "blocked"
    HELD = "held"
    """A directory above it would have the name of a file that is being written: to be told again later."""

    @property
    def keep(self) -> bool:
        return self not in (Verdict.OLD, Verdict.DELETED, Verdict.BLOCKED)


def _written(tx: Tx, path: str, now: float) -> bool:
    """Whether a file of this name is being written: it must not become a directory."""
    lease = tx.lease_on(path)
    return lease is not None and lease.expires > now


def _used(tx: Tx, path: str, now: float) -> bool:
    """Whether a directory has something in it, or something that is being written."""
    return tx.has_children(path) or tx.leased_below(path, now) is not None


def _in_the_way(tx: Tx, path: str, version: Version, now: float, rebuild: bool) -> Verdict | None:
    """Why not all directories above can exist: BLOCKED by a file, or HELD by one that is being written; None
    when they can. While rebuilding, a file in the way that is older goes."""
    above = parent(path)
    while above != "/":
        entry = tx.entry(above)
        if entry is not None and entry.is_dir:
            return None
        if entry is not None and (not rebuild or entry.version >= version):
            return Verdict.BLOCKED
        if _written(tx, above, now):
            return Verdict.HELD
        if entry is not None:
            tx.forget_entry(above)
        above = parent(above)
    return None


def _make_parents(tx: Tx, path: str, owner: str, now: float, rebuild: bool) -> None:
    """Directories above. While rebuilding they are older than what any slave's mirror says of them."""
    missing = []
    above = parent(path)
    while find(tx, above) is None:
        missing.append(above)
        above = parent(above)
    for name in reversed(missing):
        version = ZERO if rebuild else tx.draw()
        tx.put_entry(Entry(name, DIR, 0, version, owner, DIR_MODE, now, ""))


def _take(tx: Tx, node: str, path: str, meta: SliceMeta, now: float, copies: int, rebuild: bool) -> None:
    """Make `meta` the current content of the path, held by `node`. Its version may be newer than all this
    database gave (an older copy of it was put back): what is written or removed next must be newer still."""
    version = meta.version
    if not rebuild:
        tx.advance(version)
    _make_parents(tx, path, meta.owner, now, rebuild)
    tx.put_entry(
        Entry(path, FILE, meta.size, version, meta.owner, meta.mode, meta.mtime, meta.digest, copies)
    )
    tx.put_replica(path, Replica(node, version, now))


def _far(version: Version) -> bool:
    return max(version.epoch, version.counter) > FARTHEST


def _counts(node: str) -> bool:
    """Whether what a slave holds counts, where nothing is known of slaves."""
    return True


def merge_file(
    tx: Tx,
    node: str,
    meta: SliceMeta,
    now: float,
    rebuild: bool,
    grace_s: float = GRACE_S,
    here: Callable[[str], bool] = _counts,
) -> Verdict:
    """One file that `node` says it holds. With several claims for one path the newest version wins; in normal
    service one slave alone cannot say so against others that are `here` (not lost) and hold what the
    namespace has. What the node published less than `grace_s` ago is not given up for an older claim."""
    try:
        path = check_path(meta.path)
    except BadPath:
        return Verdict.BLOCKED
    if path == "/" or path != meta.path or meta.version == ZERO or _far(meta.version):
        return Verdict.BLOCKED
    entry = find(tx, path)
    if entry is not None and not entry.is_dir and entry.version == meta.version:
        return _same(tx, node, entry, meta, now)
    if tx.moving(node, path, meta.version):
        return Verdict.MOVING
    dead = tx.tombstone(path)
    if dead is not None and meta.version <= dead:
        return Verdict.DELETED
    if entry is None:
        in_the_way = _in_the_way(tx, path, meta.version, now, rebuild)
        if in_the_way is not None:
            return in_the_way
        _take(tx, node, path, meta, now, 0, rebuild)
        return Verdict.ADOPTED
    if entry.is_dir:
        if not rebuild or entry.version >= meta.version or _used(tx, path, now):
            return Verdict.BLOCKED
        tx.forget_entry(path)
        _take(tx, node, path, meta, now, 0, rebuild)
        return Verdict.ADOPTED
    if meta.version > entry.version:
        if not rebuild and _contested(tx, node, entry, meta.version, here):
            tx.advance(meta.version)  # what is written next is newer than that, too
            tx.put_replica(path, Replica(node, meta.version, now))
            return Verdict.CONTESTED
        _take(tx, node, path, meta, now, entry.copies, rebuild)
        return Verdict.NEWER
    return _older(tx, node, entry, meta, now, grace_s, rebuild)


def _contested(tx: Tx, node: str, entry: Entry, version: Version, here: Callable[[str], bool]) -> bool:
    """Whether a slave is alone with its newer content, and others have what the namespace has. Published
    content is in the namespace before it is seen on a slave: either this database is an older copy that was
    put back, or the slave lies. What it has stays where it is, and so does what the others have."""
    others = [row for row in tx.replicas(entry.path) if row.node != node and not row.bad]
    if any(row.version == version for row in others):
        return False
    return any(row.version == entry.version and here(row.node) for row in others)


def _same(tx: Tx, node: str, entry: Entry, meta: SliceMeta, now: float) -> Verdict:
    if meta.size != entry.size or meta.digest != entry.digest:
        tx.drop_replica(entry.path, node)
        return Verdict.BLOCKED
    if tx.doomed(entry.path, node, meta.version):  # it was said before the slave heard that it is to go
        return Verdict.KNOWN
    bad = any(r.node == node and r.version == meta.version and r.bad for r in tx.replicas(entry.path))
    tx.put_replica(entry.path, Replica(node, meta.version, now, bad))
    return Verdict.DOUBTED if bad else Verdict.KNOWN


def _older(
    tx: Tx, node: str, entry: Entry, meta: SliceMeta, now: float, grace_s: float, rebuild: bool
) -> Verdict:
    row = next((r for r in tx.replicas(entry.path) if r.node == node), None)
    if rebuild:
        if row is None:
            tx.put_replica(entry.path, Replica(node, meta.version, now - grace_s))
        return Verdict.RECENT
    if row is not None and row.old_path:  # what counts is under that name, and is to come here
        return Verdict.OLD
    if row is not None and row.version == entry.version and abs(now - row.confirmed) < grace_s:
        return Verdict.RECENT
    if row is not None and row.version == meta.version and not row.bad and meta.version.epoch > 0:
        return Verdict.STALE
    if row is not None:
        tx.drop_replica(entry.path, node)
    return Verdict.OLD


def _counts_as_stone(dead: Tombstone) -> bool:
    try:
        path = check_path(dead.path)
    except BadPath:
        return False
    return path != "/" and path == dead.path and not _far(dead.version)


def merge_tombstones(tx: ReportTx, stones: Sequence[Tombstone], rebuild: bool, now: float = 0.0) -> None:
    """Deletions that a slave remembers: it tells all of them with every report, so that those that are known
    must cost next to nothing. While rebuilding they remove what is not newer, but no directory with something
    in it, or being written at `now`; in normal service they only count where the namespace has nothing."""
    newest: dict[str, Tombstone] = {}
    for dead in stones:
        if _counts_as_stone(dead) and (dead.path not in newest or newest[dead.path].version < dead.version):
            newest[dead.path] = dead
    there = tx.existing(list(newest))
    news = tx.news([dead for path, dead in newest.items() if path not in there])
    if not rebuild:
        for dead in news:
            tx.advance(dead.version)
    tx.put_tombstones(news)
    if rebuild:
        for path in newest:
            if path in there:
                _remove_older(tx, newest[path], now)


def _remove_older(tx: Tx, dead: Tombstone, now: float) -> None:
    """A deletion of what a slave reported, while the master rebuilds. A directory that has something in it
    stays, but should it empty, no file of that name may come back."""
    entry = tx.entry(dead.path)
    if entry is None or entry.version > dead.version:
        return
    gone = not entry.is_dir or not _used(tx, dead.path, now)
    if gone:
        tx.forget_entry(dead.path)
    tx.put_tombstone(dead.path, dead.version, dead.at, gone and entry.is_dir)


def merge_directory(tx: Tx, meta: SliceMeta, now: float) -> None:
    """A directory that a slave's mirror has, while the master rebuilds."""
    try:
        path = check_path(meta.path)
    except BadPath:
        return
    dead = tx.tombstone(path)
    entry = find(tx, path)
    if path == "/" or path != meta.path or _far(meta.version) or (dead is not None and meta.version <= dead):
        return
    if entry is None or (entry.is_dir and entry.version < meta.version):
        if (entry is None and _written(tx, path, now)) or _in_the_way(tx, path, meta.version, now, True):
            return
        _make_parents(tx, path, SYSTEM, now, True)
        tx.put_entry(Entry(path, DIR, 0, meta.version, meta.owner, meta.mode or DIR_MODE, meta.mtime, ""))


def outrun(tx: Tx, things: Iterable[SliceMeta | Tombstone]) -> None:
    """What is written or removed from now on is newer than all this. (While a master rebuilds, nothing is
    written, and its end sees to it.)"""
    newest = max((thing.version for thing in things if not _far(thing.version)), default=ZERO)
    tx.advance(newest)


@dataclass(slots=True)
class Merged:
    """What became of some reported files: (path, version) that the slave is to `drop`, paths whose copies
    need a `look`, how many were `adopted`, which claims are `contested`, (path, version) that count as
    damaged and are `doubted`: the slave may have been without its disk for a while; whether any is `held`."""

    drop: list[tuple[str, Version]]
    look: list[str]
    adopted: int
    contested: list[SliceMeta]
    doubted: list[tuple[str, Version]]
    held: bool = False


def merge_part(
    tx: ReportTx,
    node: str,
    number: int,
    metas: Sequence[SliceMeta],
    now: float,
    rebuild: bool,
    here: Callable[[str], bool] = _counts,
) -> Merged:
    """Files of one part of report `number`. While rebuilding nothing is to be dropped."""
    merged = Merged([], [], 0, [], [])
    for meta in tx.confirm(node, number, metas):
        verdict = merge_file(tx, node, meta, now, rebuild, here=here)
        if verdict.keep:
            tx.mark(node, meta.path, number)
        elif not rebuild and not tx.doomed(
            meta.path, node, meta.version
        ):  # else it is removed, not set aside
            merged.drop.append((meta.path, meta.version))
        if verdict not in (Verdict.DELETED, Verdict.BLOCKED, Verdict.HELD):
            merged.look.append(meta.path)
        if verdict in (Verdict.ADOPTED, Verdict.NEWER):
            merged.adopted += 1
        if verdict == Verdict.DOUBTED:
            merged.doubted.append((meta.path, meta.version))
        if verdict == Verdict.CONTESTED:
            merged.contested.append(meta)
        merged.held |= verdict == Verdict.HELD
    return merged


def judge_prepared(tx: ReportTx, node: str, number: int, lease: bytes, meta: SliceMeta, now: float) -> str:
    """A complete but unpublished version on the slave: "publish" (committed, the answer was lost),
    "discard", or "wait" (the lease is open: the slave publishes in the ordinary way). What is a file's
    version was committed, however long ago: its lease may be forgotten by now."""
    entry = tx.entry(meta.path)
    current = entry is not None and not entry.is_dir and entry.version == meta.version
    if current:
        tx.put_replica(meta.path, Replica(node, meta.version, now))
    if current or tx.moving(node, meta.path, meta.version):
        tx.mark(node, meta.path, number)
        return "publish"
    row = tx.lease(lease)
    if row is None or row.node != node or row.version != meta.version or row.path != meta.path:
        return "discard"
    return "discard" if row.state == PUBLISHED else "wait"


def finish_report(tx: ReportTx, node: str, number: int, started: float) -> int:
    """The report is complete: what the master believed to be there and was not named is gone, unless it came
    while the report was made (its number tells) or shortly before. A later time was noted while the clock was
    ahead. Returns how many replicas went."""
    return tx.unseen(node, number, started - GRACE_S, started)


def adopt_found(
    tx: Tx, node: str, meta: SliceMeta, now: float, here: Callable[[str], bool] = _counts
) -> Verdict:
    """A file that a scan found, or that was in doubt: it was read whole and is good. Other content of a known
    path is a conflict: the node counts as holding something bad and gets no copy until its next report has
    sent that content to the attic."""
    verdict = merge_file(tx, node, meta, now, False, grace_s=0.0, here=here)
    if verdict == Verdict.DOUBTED:
        tx.put_replica(meta.path, Replica(node, meta.version, now))
        return Verdict.KNOWN
    entry = find(tx, meta.path)
    if verdict.keep or _far(meta.version) or entry is None or entry.is_dir:
        return verdict
    if not any(row.node == node and row.old_path for row in tx.replicas(entry.path)):  # that is to come here
        tx.put_replica(meta.path, Replica(node, meta.version, now, bad=True))
    return verdict
