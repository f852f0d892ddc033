"""Tombstones, directories and rights on a slave: durable, and never half of a change."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from slave_disk import opened

from sector import errors
from sector.model import Right, SliceMeta, Tombstone, Version
from sector.slave import mirror
from sector.slave.mirror import Mirror, Part

V1, V2 = Version(1, 1), Version(1, 2)


def loaded(folder: Path) -> Mirror:
    """What a slave that starts knows."""
    found = Mirror(str(folder))
    found.load_thd()
    return found


def folder_meta(path: str) -> SliceMeta:
    """A directory."""
    return SliceMeta(path, V1, 0, "alice", 0o755, 1.0, "dir")


def test_tombstones_survive_and_only_grow(tmp_path: Path) -> None:
    one = loaded(tmp_path)
    one.bury_thd([Tombstone("/a", V2, 1.0)])
    one.bury_thd([Tombstone("/a", V1, 2.0), Tombstone("/b", V1, 2.0)])
    again = loaded(tmp_path)
    assert again.tombstones == {"/a": Tombstone("/a", V2, 1.0), "/b": Tombstone("/b", V1, 2.0)}
    assert again.buried("/a", V2)
    assert not again.buried("/a", Version(1, 3))


def test_a_mirror_counts_when_its_last_part_is_here(tmp_path: Path) -> None:
    one = loaded(tmp_path)
    one.part_thd(Part(True, directories=[folder_meta("/old")], serial=1), last=True, now=0.0)
    one.part_thd(Part(True, directories=[folder_meta("/x")]), last=False, now=0.0)
    assert list(loaded(tmp_path).directories) == ["/old"]
    one.part_thd(Part(False, rights=[Right("u", "/", "r")], serial=7), last=True, now=0.0)
    again = loaded(tmp_path)
    assert (list(again.directories), again.serial) == (["/x"], 7)
    assert list(again.rights.values()) == [Right("u", "/", "r")]


def test_reset_forgets_no_tombstone(tmp_path: Path) -> None:
    """A master with a lost database must not erase what only the slaves know."""
    one = loaded(tmp_path)
    one.bury_thd([Tombstone("/a", V1, 1.0)])
    one.part_thd(Part(True, serial=1), last=True, now=2.0)
    assert "/a" in loaded(tmp_path).tombstones


def test_very_old_tombstones_end_with_a_reset(tmp_path: Path) -> None:
    one = loaded(tmp_path)
    one.bury_thd([Tombstone("/a", V1, 1.0)])
    one.part_thd(Part(True, serial=1), last=True, now=1.0 + 401 * 86400)
    assert loaded(tmp_path).tombstones == {}


def test_changes_after_a_reset(tmp_path: Path) -> None:
    one = loaded(tmp_path)
    start = Part(True, directories=[folder_meta("/x"), folder_meta("/y")], rights=[Right("u", "/", "rw")])
    one.part_thd(start, last=True, now=0.0)
    one.part_thd(Part(removed_directories=["/x"], rights=[Right("u", "/", "")], serial=3), last=True, now=0.0)
    again = loaded(tmp_path)
    assert (list(again.directories), again.rights, again.serial) == (["/y"], {}, 3)


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_torn_end_of_the_log_is_dropped(tmp_path: Path, cut: int) -> None:
    one = loaded(tmp_path)
    one.bury_thd([Tombstone("/a", V1, 1.0)])
    one.bury_thd([Tombstone("/b", V1, 1.0)])
    log = next(tmp_path.glob("log.*"))
    log.write_bytes(log.read_bytes()[:-cut])
    again = loaded(tmp_path)
    assert set(again.tombstones) == {"/a"}
    again.bury_thd([Tombstone("/c", V1, 1.0)])
    assert set(loaded(tmp_path).tombstones) == {"/a", "/c"}


def test_the_log_is_folded_into_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_LOG_BYTES", 2000)
    one = loaded(tmp_path)
    for index in range(200):
        one.bury_thd([Tombstone(f"/{index}", V1, 1.0)])
    assert sum(f.stat().st_size for f in tmp_path.glob("log.*")) <= 2000
    assert len(list(tmp_path.iterdir())) == 2
    assert len(loaded(tmp_path).tombstones) == 200


class Failing:
    """The os module of a disk that fails at sync number `at`; if `cut`, writes after it are cut short."""

    def __init__(self, at: int, cut: bool) -> None:
        self.at = at
        self.cut = cut
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _fails(self) -> bool:
        self.count += 1
        return self.count == self.at

    def fsync(self, fd: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)

    def write(self, fd: int, data: bytes) -> int:
        if self.cut and self.at < self.count < self.at + 3:
            return os.write(fd, data[: len(data) // 2])
        return os.write(fd, data)


@pytest.mark.parametrize("cut", [False, True])
def test_what_was_acknowledged_outlives_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Whatever sync fails, and though the disk is full afterwards: deletions that were acknowledged are known
    after a restart."""
    monkeypatch.setattr(mirror, "_LOG_BYTES", 60)
    hit = True
    at = 0
    while hit:
        at += 1
        folder = tmp_path / f"m{at}"
        one = loaded(folder)
        disk = Failing(at, cut)
        monkeypatch.setattr(mirror, "os", disk)
        kept = []
        for number in range(8):
            try:
                one.bury_thd([Tombstone(f"/{number}", V1, 1.0)])
                kept.append(f"/{number}")
            except OSError:
                assert f"/{number}" not in one.tombstones
        monkeypatch.setattr(mirror, "os", os)
        assert set(kept) <= set(loaded(folder).tombstones), at
        hit = disk.count >= at
    assert at > 8


@pytest.mark.parametrize("what", ["rename", "fsync"])
def test_a_mirror_that_could_not_be_kept_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its serial is told to the master, which would never send it again, and later parts would be logged
    behind a snapshot that has nothing of it."""
    one = loaded(tmp_path)
    one.part_thd(Part(True, directories=[folder_meta("/old")], serial=3), last=True, now=2.0)
    one.bury_thd([Tombstone("/known", V1, 1.0)])
    whole = Part(True, 100, [Tombstone("/gone", V1, 1.0)], [folder_meta("/new")], [], [Right("u", "/", "r")])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, what, full)
        with pytest.raises(OSError):
            one.part_thd(whole, last=True, now=2.0)
    for found in (one, loaded(tmp_path)):
        assert (found.serial, list(found.directories), list(found.tombstones)) == (3, ["/old"], ["/known"])
        assert found.rights == {}
    one.part_thd(whole, last=True, now=2.0)
    one.bury_thd([Tombstone("/later", V1, 1.0)])
    for found in (one, loaded(tmp_path)):
        assert (found.serial, list(found.directories)) == (100, ["/new"])
        assert sorted(found.tombstones) == ["/gone", "/known", "/later"]


def test_a_slave_says_that_it_has_no_room_for_a_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = opened(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(here.mirror, "_snapshot", full)
        with pytest.raises(errors.NoSpace, match="slave s1"):
            here.mirror_thd(Part(True, 1), last=True, now=2.0)
    here.close_thd()
