"""Reports, adoption and rebuild as rules: whatever slaves claim, in any order (design section 5)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from effort import effort
from hypothesis import example, given
from hypothesis import strategies as st
from test_namespace import NOW, Space

from sector.errors import Conflict
from sector.master import namespace as ns
from sector.master import reconcile
from sector.master.rebuild import begin, finish
from sector.master.reconcile import Verdict
from sector.master.store import SqlTx
from sector.model import SliceMeta, Tombstone, Version, parent


def meta(path: str, counter: int, digest: str = "d", epoch: int = 1) -> SliceMeta:
    """What a slave says of one file."""
    return SliceMeta(path, Version(epoch, counter), 10, "u", 0o644, NOW, digest)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path)
    yield made
    made.store.close()


def merge(space: Space, node: str, what: SliceMeta, rebuild: bool = False, now: float = NOW) -> Verdict:
    """One reported file."""
    return space.do(lambda tx: reconcile.merge_file(tx, node, what, now, rebuild))


def test_verdicts_in_normal_service(space: Space) -> None:
    version = space.put("/f")
    same = SliceMeta("/f", version, 10, "u", 0o644, NOW, "d")
    assert merge(space, "s2", same) == Verdict.KNOWN
    assert [r.node for r in space.do(lambda tx: tx.replicas("/f"))] == ["s1", "s2"]
    assert merge(space, "s2", SliceMeta("/f", version, 10, "u", 0o644, NOW, "x")) == Verdict.BLOCKED
    assert merge(space, "s3", meta("/f", 0, epoch=1)) == Verdict.OLD
    assert merge(space, "s1", meta("/f", 0, epoch=1)) == Verdict.RECENT
    assert merge(space, "s1", meta("/f", 0, epoch=1), now=NOW + 61) == Verdict.OLD
    assert merge(space, "s3", meta("/new/f", 1)) == Verdict.ADOPTED
    assert merge(space, "s3", meta("/f/below", 99)) == Verdict.BLOCKED
    assert merge(space, "s3", meta("/new", 99)) == Verdict.BLOCKED
    assert merge(space, "s3", meta("/f", 99)) == Verdict.NEWER
    for bad in ("/", "relative", "/a/../b", "/.sector/x", "/a//b", "/a/"):
        assert merge(space, "s3", meta(bad, 99)) == Verdict.BLOCKED
    assert merge(space, "s3", meta("/zero", 0, epoch=0)) == Verdict.BLOCKED
    space.do(lambda tx: ns.remove(tx, "/new/f", False, NOW))
    assert merge(space, "s3", meta("/new/f", 1)) == Verdict.DELETED


def test_found_conflict_counts_as_bad(space: Space) -> None:
    space.put("/f")
    verdict = space.do(lambda tx: reconcile.adopt_found(tx, "s1", meta("/f", 1, "other", 0), NOW))
    assert verdict == Verdict.OLD
    assert [(r.node, r.bad) for r in space.do(lambda tx: tx.replicas("/f"))] == [("s1", True)]


def test_normal_service_ignores_tombstones_of_living_files(space: Space) -> None:
    """A slave's tombstone does not remove what the namespace has; where there is nothing it counts."""
    space.put("/f")
    space.do(lambda tx: reconcile.merge_tombstones(tx, [Tombstone("/f", Version(9, 9), NOW)], False))
    space.do(lambda tx: reconcile.merge_tombstones(tx, [Tombstone("/g", Version(9, 9), NOW)], False))
    assert space.paths() == ["/f"]
    assert space.do(lambda tx: tx.tombstone("/g")) == Version(9, 9)


@pytest.mark.parametrize("rebuild", [False, True])
def test_the_newest_of_many_tombstones_counts(space: Space, rebuild: bool) -> None:
    """Known ones, older ones and those that are none among them, however a slave orders them."""
    space.put("/f")
    stones = [Tombstone(f"/g{number:03d}", Version(1, number), NOW) for number in range(1, 900)]
    bad = [Tombstone(path, Version(9, 9), NOW) for path in ("/", "relative", "/a/../b")]
    far = Tombstone("/far", Version(1, reconcile.FARTHEST + 1), NOW)
    twice = [Tombstone("/g007", Version(2, 1), NOW), Tombstone("/g007", Version(1, 900), NOW)]
    space.do(lambda tx: reconcile.merge_tombstones(tx, stones[:500], rebuild))
    told = [*twice, *bad, far, Tombstone("/f", ns.ZERO, NOW), *stones]
    space.do(lambda tx: reconcile.merge_tombstones(tx, told, rebuild))
    wanted = {stone.path: stone.version for stone in stones} | {"/g007": Version(2, 1)}
    assert {path: space.do(lambda tx, p=path: tx.tombstone(p)) for path in wanted} == wanted
    assert space.do(lambda tx: tx.sums()).tombstones == len(wanted)
    assert space.paths() == ["/f"]
    drawn = space.do(lambda tx: tx.draw())
    assert (drawn > Version(2, 1)) is not rebuild, "in normal service what is written next is newer"


def test_rebuild_prefers_what_is_newer(space: Space) -> None:
    """A file in the way of a newer directory goes; a tombstone removes what is not newer."""
    assert merge(space, "s1", meta("/a", 3), True) == Verdict.ADOPTED
    assert merge(space, "s2", meta("/a/b", 5), True) == Verdict.ADOPTED
    assert space.paths() == ["/a", "/a/b"]
    assert merge(space, "s1", meta("/a/b/c", 4), True) == Verdict.BLOCKED
    assert merge(space, "s1", meta("/a", 9), True) == Verdict.BLOCKED
    space.do(lambda tx: reconcile.merge_directory(tx, meta("/d", 7, "dir"), NOW))
    assert merge(space, "s1", meta("/d", 6), True) == Verdict.BLOCKED
    assert merge(space, "s1", meta("/d", 8), True) == Verdict.ADOPTED
    space.do(lambda tx: reconcile.merge_tombstones(tx, [Tombstone("/d", Version(1, 8), NOW)], True))
    space.do(lambda tx: reconcile.merge_tombstones(tx, [Tombstone("/a", Version(1, 99), NOW)], True))
    assert space.paths() == ["/a", "/a/b"]


def test_rebuild_raises_epoch_and_serial(space: Space) -> None:
    space.do(lambda tx: begin(tx, NOW))
    with_flag = space.do(lambda tx: tx.setting("rebuilding"))
    first = space.do(lambda tx: tx.setting("epoch"))
    merge(space, "s1", meta("/f", 1, epoch=first + 50), True)
    space.do(lambda tx: begin(tx, NOW))
    space.do(lambda tx: finish(tx, NOW))
    assert with_flag == 1 and space.do(lambda tx: tx.setting("rebuilding")) == 0
    assert space.do(lambda tx: tx.setting("epoch")) == first + 51
    assert space.do(lambda tx: tx.setting("serial")) > 1 << 40
    with pytest.raises(Conflict):
        space.do(lambda tx: begin(tx, NOW))


CLAIMS: dict[str, Callable[[SqlTx], object]] = {
    "its directory deleted": lambda tx: reconcile.merge_tombstones(
        tx, [Tombstone("/d", Version(1, 99), NOW)], True, NOW
    ),
    "a file for its directory": lambda tx: reconcile.merge_file(tx, "s2", meta("/d", 99), NOW, True),
    "a directory": lambda tx: reconcile.merge_directory(tx, meta("/d/big", 99, "dir"), NOW),
    "a directory below": lambda tx: reconcile.merge_directory(tx, meta("/d/big/a/b", 99, "dir"), NOW),
    "a file below, late": lambda tx: reconcile.merge_file(tx, "s2", meta("/d/big/sub", 99), NOW, True),
    "a file below, reported": lambda tx: reconcile.merge_part(
        tx, "s2", 9, [meta("/d/big/a/sub", 99)], NOW, False
    ),
    "a file below, found": lambda tx: reconcile.adopt_found(tx, "s2", meta("/d/big/sub", 99), NOW),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("overwrites", [False, True])
def test_a_write_under_way_ends_well_whatever_slaves_say(space: Space, claim: str, overwrites: bool) -> None:
    """In normal service, and of the first report of a slave that a rebuild ended without."""
    space.mkdir("/d")
    if overwrites:
        space.put("/d/big")
    lease = space.open("/d/big")
    space.do(CLAIMS[claim])
    assert space.publish(lease) == lease.version
    assert space.paths() == ["/d", "/d/big"]


def test_what_lies_below_a_name_that_is_written_waits_for_its_end(space: Space) -> None:
    """It is neither taken nor dropped; if the write is given up, it is taken."""
    below = meta("/big/sub", 99)
    lease = space.open("/big")
    merged = space.do(lambda tx: reconcile.merge_part(tx, "s2", 9, [below], NOW, False))
    assert merged.held and not merged.drop and not merged.look and not merged.adopted
    assert space.do(lambda tx: reconcile.adopt_found(tx, "s2", below, NOW)) == Verdict.HELD
    assert Verdict.HELD.keep and space.paths() == []
    assert merge(space, "s2", below, now=lease.expires + 1) == Verdict.ADOPTED
    assert space.paths() == ["/big", "/big/sub"]


FLAT = st.sampled_from(["/a", "/b", "/d/a", "/d/b"])
DEEP = st.sampled_from(["/a", "/a/b", "/a/b/c", "/b", "/b/a"])
COUNTERS = st.integers(1, 6)
NODES = st.sampled_from(["s1", "s2", "s3"])


def claims(paths: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str, str, int]]]:
    """(kind, node, path, counter): content is the same for the same path and version."""
    kinds = st.sampled_from(["file", "file", "dead", "dir"])
    return st.lists(st.tuples(kinds, NODES, paths, COUNTERS), max_size=14)


def rebuilt(items: list[tuple[str, str, str, int]]) -> tuple[dict[str, ns.Entry], dict[str, set[str]]]:
    """The namespace after a rebuild from these claims: entries, and holders of current versions."""
    with tempfile.TemporaryDirectory() as folder:
        space = Space(Path(folder))
        for kind, node, path, counter in items:
            if kind == "file":
                merge(space, node, meta(path, counter, f"{path}{counter}"), True)
            elif kind == "dead":
                dead = Tombstone(path, Version(1, counter), NOW)
                space.do(lambda tx, d=dead: reconcile.merge_tombstones(tx, [d], True))
            else:
                space.do(lambda tx, m=meta(path, counter, "dir"): reconcile.merge_directory(tx, m, NOW))
        entries = {p: space.do(lambda tx, p=p: tx.entry(p)) for p in space.paths()}
        holders = {
            p: {r.node for r in space.do(lambda tx, p=p: tx.replicas(p)) if r.version == e.version}
            for p, e in entries.items()
            if e is not None
        }
        space.store.close()
    return {p: e for p, e in entries.items() if e is not None}, holders


@effort(40)
@given(items=claims(FLAT).map(lambda xs: [x for x in xs if x[0] != "dir"]), data=st.data())
def test_rebuild_does_not_depend_on_the_order(
    items: list[tuple[str, str, str, int]], data: st.DataObject
) -> None:
    """The newest version of each file wins unless a tombstone covers it, whoever reports first."""
    entries, holders = rebuilt(items)
    for path in {path for _, _, path, _ in items}:
        versions = [c for kind, _, p, c in items if p == path and kind == "file"]
        dead = max((c for kind, _, p, c in items if p == path and kind == "dead"), default=0)
        best = max(versions, default=0)
        if best > dead:
            assert entries[path].version == Version(1, best)
            assert holders[path] == {n for k, n, p, c in items if (k, p, c) == ("file", path, best)}
        else:
            assert path not in entries
    again, held = rebuilt(data.draw(st.permutations(items)))
    assert {p: e.version for p, e in again.items() if not e.is_dir} == {
        p: e.version for p, e in entries.items() if not e.is_dir
    }
    assert {p: h for p, h in held.items() if h} == {p: h for p, h in holders.items() if h}


@effort(40)
@given(items=claims(DEEP))
@example(
    items=[
        ("file", "s1", "/a/b", 1),
        ("dead", "s1", "/a", 1),
        ("dead", "s1", "/a/b", 1),
        ("file", "s1", "/a", 1),
    ]
)
def test_rebuild_always_makes_a_tree(items: list[tuple[str, str, str, int]]) -> None:
    """Files in the way of directories, in any order: every entry lies in a directory, no deletion revives."""
    entries, _ = rebuilt(items)
    for path, entry in entries.items():
        above = parent(path)
        assert above == "/" or entries[above].is_dir
        dead = max((c for kind, _, p, c in items if p == path and kind == "dead"), default=0)
        if not entry.is_dir:
            assert entry.version > Version(1, dead)


def whole_report(space: Space, node: str, metas: list[SliceMeta], now: float) -> int:
    """A report that names these; how many replicas went."""
    number = space.do(lambda tx: tx.draw().counter)
    space.do(lambda tx: reconcile.merge_part(tx, node, number, metas, now, False))
    return space.do(lambda tx: reconcile.finish_report(tx, node, number, now))


@pytest.mark.parametrize("ahead", [90.0, 3600.0, 400 * 86400.0])
def test_a_report_takes_back_what_was_noted_while_the_clock_was_ahead(space: Space, ahead: float) -> None:
    """What a slave no longer has, and what it has an older version of."""
    first = space.put("/f")
    second = space.publish(space.open("/f", now=NOW + ahead), now=NOW + ahead)
    gone = space.publish(space.open("/g", now=NOW + ahead), now=NOW + ahead)
    assert second < gone
    old = SliceMeta("/f", first, 10, "u", 0o644, NOW, "d")
    assert whole_report(space, "s1", [old], NOW) == 1
    assert space.do(lambda tx: tx.replicas("/f")) == space.do(lambda tx: tx.replicas("/g")) == []


@pytest.mark.parametrize("behind", [0.0, 3600.0])
def test_what_comes_while_a_report_is_made_stays(space: Space, behind: float) -> None:
    """Also if the clock is set back meanwhile: content that is published, copied, or renamed."""
    space.put("/a")
    space.do(lambda tx: ns.move(tx, "/a", "/b", False, NOW))
    number = space.do(lambda tx: tx.draw().counter)
    late = NOW + 1 - behind
    renames = space.do(lambda tx: tx.renames("s1", 9))
    space.do(lambda tx: tx.renames_done("s1", renames, late))
    space.publish(space.open("/f"), now=late)
    other = space.put("/g", node="s2")
    space.do(lambda tx: ns.replica_arrived(tx, "s1", "/g", other, late))
    assert space.do(lambda tx: reconcile.finish_report(tx, "s1", number, NOW)) == 0
    rows = space.do(lambda tx: tx.replicas_of(["/b", "/f", "/g"]))
    held = {path: [row.node for row in found] for path, found in rows.items()}
    assert held == {"/b": ["s1"], "/f": ["s1"], "/g": ["s1", "s2"]}
    assert whole_report(space, "s1", [], NOW + 90) == 3


def test_a_file_of_others_does_not_displace_what_is_to_come_to_its_name(space: Space) -> None:
    """The slave has it by its former name still."""
    space.put("/x")
    space.do(lambda tx: ns.move(tx, "/x", "/y", False, NOW))
    (before,) = space.do(lambda tx: tx.replicas("/y"))
    other = SliceMeta("/y", Version(0, 1), 3, "u", 0o644, NOW, "o")
    assert not space.do(lambda tx: reconcile.adopt_found(tx, "s1", other, NOW)).keep
    assert space.do(lambda tx: tx.replicas("/y")) == [before] and before.old_path == "/x"
