"""What a slave tells of files that others changed: looked at while users write, and on disks that refuse."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from slave_disk import V1, V2, opened, store
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector import errors
from sector.slave import beneath
from sector.slave.catalog import Catalogue, Found, reconcile
from sector.slave.disk import Disk
from sector.slave.pool import Inline
from sector.slave.scan import TreeWatch
from sector.wire.base import decode, encode
from sector.wire.slave import Adopted, Report


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Disk]:
    """An empty data directory."""
    target = opened(tmp_path / "d")
    yield target
    target.close_thd()


class Watched:
    """The watch over a tree, with a master that remembers what it was told."""

    def __init__(self, disk: Disk) -> None:
        self.told: list[Adopted] = []
        self.stops = False
        self.tree = TreeWatch(
            disk, Inline(), Clock(), 300.0, self._call, joined=lambda: True, stopping=lambda: self.stops
        )

    async def _call(self, request: Adopted, **_: Any) -> None:
        self.told.append(request)

    def result(self, work: Any) -> Any:
        """What came of it; its exception raised."""
        done: Deferred[Any] = ensureDeferred(work)
        out: list[Any] = []
        done.addCallback(out.append)
        done.addErrback(lambda failure: failure.raiseException())
        return out[0]


def test_what_is_overwritten_while_the_tree_is_scanned_is_not_told_as_it_was(here: Disk) -> None:
    """With as many bytes: the scan saw a new file under an old record, and the master would have taken the
    new content for a changed one."""
    store(here, "/a", b"old", V1)
    listed = list(here.entries.values())
    store(here, "/a", b"new", V2)
    seen = reconcile(here._walk(), listed, {}, here.mirror.tombstones)
    assert [record.version for _, record in seen.verify] == [V1]
    watch = Watched(here)
    watch.result(watch.tree._round(seen))
    assert [request.found for request in watch.told] in ([], [[]])
    assert here.entries["/a"].version == V2


def elsewhere(here: Disk, **files: bytes) -> tuple[Disk, Catalogue]:
    """A slave that starts over a copied data directory: these files have other stamps than their records."""
    for name in files:
        store(here, f"/{name}", b"same", V1)
    here.close_thd()
    for name, content in files.items():
        Path(here.root, "files", name).unlink()
        Path(here.root, "files", name).write_bytes(content)
    again = Disk(here.root, "s1")
    return again, again.open_thd()


def test_what_was_copied_back_before_it_was_looked_into_is_not_told_as_gone(here: Disk) -> None:
    """A reader found it bad, and another slave sent it again, in the same version."""
    again, later = elsewhere(here, a=b"evil", b=b"evil")
    assert again.set_aside_thd("/a", V1, "damaged in block 0")
    store(again, "/a", b"same", V1)
    watch = Watched(again)
    watch.result(watch.tree._round(later))
    assert [request.gone for request in watch.told] == [[("/b", V1)]]
    assert list(again.entries) == ["/a"]
    again.close_thd()


def test_a_slave_that_stops_does_not_tell_what_it_did_not_look_into_as_gone(here: Disk) -> None:
    again, later = elsewhere(here, a=b"same", b=b"same", c=b"evil")
    watch = Watched(again)
    watch.stops = True
    watch.result(watch.tree._round(later))
    assert watch.told == []
    assert sorted(again.entries) == ["/a", "/b", "/c"]
    again.close_thd()


def test_a_touched_file_is_told_of(here: Disk) -> None:
    store(here, "/a", b"content", V1)
    os.utime(Path(here.root, "files/a"), (1, 1))
    watch = Watched(here)
    watch.result(watch.tree._round(here.rescan_thd()))
    assert [(meta.path, meta.version) for meta in watch.told[0].found] == [("/a", V1)]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_file_that_cannot_be_read_does_not_keep_a_slave_from_starting(
    here: Disk, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """One of root's, or on a bad block: all others are looked into, and it is left for later, however often
    it cannot be read."""
    store(here, "/touched", b"same", V1)
    store(here, "/other", b"same", V1)
    here.close_thd()
    for name in ("touched", "other", "new", "unknown"):
        Path(here.root, "files", name).write_bytes(b"same")
    again = Disk(here.root, "s1")
    catalogue = again.open_thd()
    real = beneath.open_beneath

    def refused(root: int, path: str, flags: int, mode: int = 0o644) -> int:
        if path in ("/touched", "/new"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(root, path, flags, mode)

    monkeypatch.setattr(beneath, "open_beneath", refused)
    watch = Watched(again)
    later: Catalogue = watch.result(watch.tree.settle(catalogue))
    assert [found.path for found, _ in later.verify] == ["/touched"]
    assert [found.path for found in later.adopt] == ["/new"]
    assert sorted(again.entries) == ["/other", "/touched", "/unknown"]
    for _ in range(rounds):
        watch.result(watch.tree._round(later))
        later = again.rescan_thd()
    assert watch.told == []
    monkeypatch.undo()
    watch.result(watch.tree._round(later))
    assert sorted(meta.path for meta in watch.told[0].found) == ["/new", "/touched"]
    watch.result(watch.tree._round(again.rescan_thd()))
    assert len(watch.told) == 1
    again.close_thd()


@pytest.mark.parametrize("content", [b"same", b"evil", b"other bytes", b""])
def test_of_a_file_that_could_not_be_read_counts_what_is_there_now(
    here: Disk, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """It was replaced by other hands, edited, or taken away before it could be looked into."""
    again, later = elsewhere(here, a=b"same", b=b"same")
    with monkeypatch.context() as bad:
        bad.setattr(again, "verify_thd", Mock(side_effect=errors.LocalIO("Input/output error")))
        watch = Watched(again)
        watch.result(watch.tree._round(later))
    assert watch.told == []
    Path(here.root, "files/a").unlink()
    if content:
        Path(here.root, "files/a").write_bytes(content)
    look = Mock(side_effect=again.verify_thd)
    monkeypatch.setattr(again, "verify_thd", look)
    watch.result(watch.tree._round(again.rescan_thd()))
    assert [meta.path for meta in watch.told[0].found] == (["/a", "/b"] if content == b"same" else ["/b"])
    assert watch.told[0].gone == ([] if content == b"same" else [("/a", V1)])
    assert look.call_count == (2 if len(content) == 4 else 1)
    again.close_thd()


@pytest.mark.parametrize("mtime", [910_692_730_085, -910_692_730_085])
def test_the_time_of_a_file_fits_into_reports(here: Disk, mtime: int) -> None:
    """One with an absurd time made the master refuse all reports of its slave; what earlier versions kept of
    such files, too."""
    found = Found("/odd", 1, 3, mtime * 10**9)
    Path(here.root, "files/odd").write_bytes(b"odd")
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(here, "_fits", lambda _: True)  # not every file system keeps such a time
        adopted = here.adopt_thd(found)
    assert adopted is not None
    told = decode(Report, encode(Report("s1", True, True, [adopted.meta])))
    assert told.files[0].mtime == (1e11 if mtime > 0 else -1e11)
    file = Path(here._record_file(adopted))
    file.write_bytes(file.read_bytes().replace(f"{told.files[0].mtime}".encode(), f"{mtime}.0".encode()))
    info = os.stat(Path(here.root, "files/odd"))
    old = file.read_bytes().replace(b'"inode":1,', f'"inode":{info.st_ino},'.encode())
    file.write_bytes(old.replace(f"{mtime * 10**9}".encode(), f"{info.st_mtime_ns}".encode()))
    assert str(mtime).encode() in file.read_bytes()
    here.close_thd()
    again = opened(Path(here.root))
    decode(Report, encode(Report("s1", True, True, [again.entries["/odd"].meta])))
    again.close_thd()
