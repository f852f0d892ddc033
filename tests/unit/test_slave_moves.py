"""Renames on a slave's disk: names that pass from one content to another, crashes, disks that fail."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slave_disk import V1, V2, V3, content_of, interrupted, meta_of, opened, seal, store

from sector import errors
from sector.model import Version
from sector.slave import disk
from sector.slave.disk import Disk

V4 = Version(1, 4)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Disk]:
    """An empty data directory."""
    target = opened(tmp_path / "d")
    yield target
    target.close_thd()


def attic(target: Disk) -> list[str]:
    return os.listdir(Path(target.root, ".sector/attic"))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_name_is_handed_on_in_any_order(here: Disk, order: tuple[int, ...]) -> None:
    """a, b and c change places in a ring; nothing is left aside."""
    names = ["/a", "/d/b", "/c"]
    for number, name in enumerate(names):
        store(here, name, name.encode(), Version(1, 1 + number))
    for number in order:
        source, target = names[number], names[(number + 1) % 3]
        new = meta_of(target, source.encode(), Version(2, 1 + number))
        assert here.rename_thd(source, Version(1, 1 + number), new)
        assert here.rename_thd(source, Version(1, 1 + number), new)  # an answer was lost
    for number, source in enumerate(names):
        target = names[(number + 1) % 3]
        assert content_of(here, target, Version(2, 1 + number)) == source.encode()
    assert attic(here) == []


def test_a_file_takes_the_name_of_a_directory_that_has_not_moved_yet(here: Disk) -> None:
    store(here, "/b/x/y", b"inside", V1)
    store(here, "/a", b"file", V2)
    assert here.rename_thd("/a", V2, meta_of("/b", b"file", V4))
    assert here.rename_thd("/b/x/y", V1, meta_of("/c/x/y", b"inside", V3))
    assert content_of(here, "/b", V4) == b"file"
    assert content_of(here, "/c/x/y", V3) == b"inside"


def test_a_directory_takes_the_name_of_a_file_that_has_not_moved_yet(here: Disk) -> None:
    store(here, "/b", b"file", V1)
    store(here, "/a/y", b"inside", V2)
    assert here.rename_thd("/a/y", V2, meta_of("/b/y", b"inside", V4))
    assert here.rename_thd("/b", V1, meta_of("/c", b"file", V3))
    assert content_of(here, "/b/y", V4) == b"inside"
    assert content_of(here, "/c", V3) == b"file"
    assert attic(here) == []


def test_what_was_replaced_by_a_rename_goes_with_its_deletion(here: Disk) -> None:
    store(here, "/a", b"new", V2)
    store(here, "/b", b"replaced", V1)
    assert here.rename_thd("/a", V2, meta_of("/b", b"new", V4))
    assert here.delete_thd("/b", V3)
    assert attic(here) == []
    assert content_of(here, "/b", V4) == b"new"


def test_crash_at_every_step_of_an_exchange_keeps_both(tmp_path: Path) -> None:
    """Two files change places, cut off anywhere; after a restart the renames are asked for again."""
    steps = 0
    while True:
        root = tmp_path / f"c{steps}"
        first = opened(root)
        store(first, "/a", b"A", V1)
        store(first, "/b", b"B", V2)
        first.close_thd()
        moves = [("/a", V1, meta_of("/b", b"A", V4)), ("/b", V2, meta_of("/a", b"B", V3))]
        breaker = interrupted(root, steps, lambda d, moves=moves: [d.rename_thd(*m) for m in moves])
        after = opened(root)
        for move in moves:
            assert after.rename_thd(*move), steps
        assert content_of(after, "/b", V4) == b"A"
        assert content_of(after, "/a", V3) == b"B"
        after.close_thd()
        if not breaker.hit:
            break
        steps += 1
    assert steps >= 15


def test_one_file_that_is_gone_or_has_no_record_does_not_stop_renames(here: Disk) -> None:
    """Otherwise no later rename, deletion or tombstone would reach this slave."""
    store(here, "/gone", b"1", V1)
    store(here, "/torn", b"2", V2)
    os.unlink(Path(here.root, "files/gone"))
    record = here.entries["/torn"]
    Path(here._record_file(record)).write_bytes(b"{")
    assert not here.rename_thd("/gone", V1, meta_of("/x", b"1", V3))
    assert not here.rename_thd("/torn", V2, meta_of("/y", b"2", V4))
    assert here.entries == {}
    assert Path(here.root, ".sector/attic", attic(here)[0], "data").read_bytes() == b"2"


class BadSync:
    """The os module of a disk on which a directory cannot be synced `count` times."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def rename(self, *args: Any, **kwargs: Any) -> None:
        os.rename(*args, **kwargs)
        self.armed = True

    def fsync(self, fd: int) -> None:
        if self.armed and self.left:
            self.left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)


@pytest.mark.parametrize("failures", [1, 2])
def test_published_content_survives_a_sync_that_fails(
    here: Disk, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename was made, the sync of its directory failed: a scan in between must not take the new file for
    a stranger's, and the next attempt completes it."""
    store(here, "/a", b"old", V1)
    record = seal(here, "/a", b"new", V2)
    monkeypatch.setattr(disk, "os", BadSync(failures))
    for _ in range(failures):
        with pytest.raises(errors.LocalIO):
            here.publish_thd(record)
        assert here.rescan_thd().attic == []
        assert here.rescan_thd().verify == []
    assert here.publish_thd(record).version == V2
    assert here.prepared == {}
    assert content_of(here, "/a", V2) == b"new"


def test_a_rename_survives_a_sync_that_fails(here: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store(here, "/a", b"x", V1)
    new = meta_of("/d/b", b"x", V2)
    monkeypatch.setattr(disk, "os", BadSync(1))
    with pytest.raises(errors.LocalIO):
        here.rename_thd("/a", V1, new)
    assert here.rename_thd("/a", V1, new)
    assert content_of(here, "/d/b", V2) == b"x"


def test_what_a_master_speaks_of_becomes_visible(tmp_path: Path) -> None:
    """The slave ended between the master's commit and the rename: the next command for this version shows
    that the master agreed."""
    first = opened(tmp_path / "d")
    seal(first, "/read", b"1", V1, b"R" * 16)
    seal(first, "/moved", b"2", V2, b"M" * 16)
    seal(first, "/open", b"3", V3, b"O" * 16)
    first.close_thd()
    after = opened(tmp_path / "d")
    assert content_of(after, "/read", V1) == b"1"
    assert after.rename_thd("/moved", V2, meta_of("/new", b"2", V4))
    assert content_of(after, "/new", V4) == b"2"
    with pytest.raises(errors.NotFound):
        after.open_read_thd("/open", V2)
    assert list(after.prepared) == [b"O" * 16]
    after.close_thd()


def test_an_attempt_that_is_dropped_leaves_the_next_one_sealed(here: Disk) -> None:
    """A client began anew under the same lease; then the master refuses what it sent first."""
    first = seal(here, "/f", b"first", V1)
    seal(here, "/f", b"second", V2)
    here.discard_thd(first)
    assert [record.version for record in here.prepared.values()] == [V2]
    assert content_of(here, "/f", V2) == b"second"


@pytest.mark.parametrize("blocked", ["a newer file", "a newer directory", "a newer file above"])
@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_comes_late_to_a_name_waits_to_be_moved_on(
    here: Disk, tmp_path: Path, blocked: str, aside: bool, again: bool
) -> None:
    """`/a` was to become `/d/b` and is `/c` by now; what has the name between stays. A restart forgets
    nothing."""
    target = here
    store(target, "/a", b"moved on", V1)
    if aside:
        store(target, "/z", b"in its place", Version(1, 9))
        assert target.rename_thd("/z", Version(1, 9), meta_of("/a", b"in its place", Version(1, 10)))
    name = {"a newer file": "/d/b", "a newer directory": "/d/b/x", "a newer file above": "/d"}[blocked]
    store(target, name, b"newer", V3)
    assert not target.rename_thd("/a", V1, meta_of("/d/b", b"moved on", V2))
    assert content_of(target, name, V3) == b"newer"
    if again:
        target.close_thd()
        target = opened(tmp_path / "d")
    assert target.rename_thd("/d/b", V2, meta_of("/c", b"moved on", V4))
    assert content_of(target, "/c", V4) == b"moved on" and content_of(target, name, V3) == b"newer"
    assert set(target.entries) == {"/c", name, *(["/a"] if aside else [])} and attic(target) == []
    if target is not here:
        target.close_thd()


def test_what_comes_late_to_a_name_goes_with_its_deletion(here: Disk) -> None:
    """It was replaced by what has the name."""
    store(here, "/a", b"late", V1)
    store(here, "/b", b"newer", V3)
    assert not here.rename_thd("/a", V1, meta_of("/b", b"late", V2))
    assert here.delete_thd("/b", V2)
    assert attic(here) == [] and content_of(here, "/b", V3) == b"newer"


@pytest.mark.parametrize("way", [("/f/f", "/f"), ("/f", "/f/f"), ("/f/g/h", "/f/g"), ("/f/g", "/f/g/h/i")])
@pytest.mark.parametrize("beside", [False, True])
def test_a_file_takes_the_name_of_its_own_directory_and_back(
    here: Disk, way: tuple[str, str], beside: bool
) -> None:
    """What else is in that directory, and is older, gives way."""
    source, target = way
    store(here, source, b"moved", V1)
    if beside and source.startswith(target):
        store(here, target + "/other", b"older", V1)
    assert here.rename_thd(source, V1, meta_of(target, b"moved", V2))
    assert here.rename_thd(source, V1, meta_of(target, b"moved", V2))  # an answer was lost
    assert set(here.entries) == {target} and content_of(here, target, V2) == b"moved"
    assert len(attic(here)) == (beside and source.startswith(target))
