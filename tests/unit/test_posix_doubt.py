"""After a sync that failed nothing is believed: what a journal has is written once more before it goes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from posix_disk import Lossy, NoXattr, get, put

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.journal import Journal
from cumulus.backends.posix.recovery import Recovery
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Unavailable

LONG = b"m" * 5000  # in a sidecar


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread makes checkpoints."""
    monkeypatch.setattr(Journal, "_keep", lambda _: None)


@pytest.fixture
def disk(tmp_path: Path) -> Lossy:
    """It loses what it could not write."""
    tree = tmp_path / "store"
    tree.mkdir()
    return Lossy(tree, tmp_path / "aside")


@pytest.fixture
def store(tmp_path: Path, disk: Lossy) -> Iterator[PosixStore]:
    """With a bucket that is durable."""
    made = PosixStore(str(tmp_path / "store"), files=disk)
    made.create_bucket("b")
    disk.settle()
    yield made
    disk.heal()
    made.close()


def journals(tmp_path: Path) -> list[str]:
    """Files of journals."""
    return os.listdir(tmp_path / "store/journal")


def after_a_power_cut(store: PosixStore, disk: Lossy, tmp_path: Path) -> PosixStore:
    """Only what is durable is there, and what recovery makes of it."""
    disk.crash(None)
    store._journal._closed = True  # it died
    again = PosixStore(str(tmp_path / "store"), files=Files())
    list(again.recover())
    again.recovered()
    return again


def failed_checkpoint(store: PosixStore, disk: Lossy) -> None:
    """One that says so."""
    disk.fail("sync_all", errno.EIO)
    with pytest.raises(OSError):
        store._journal.checkpoint()
    disk.heal()


def test_what_a_failed_checkpoint_lost_is_written_again_by_the_next(
    store: PosixStore, disk: Lossy, tmp_path: Path
) -> None:
    """Bodies, meta long and short, a second name, meta changed since; what was removed stays so."""
    put(store, "a/b", b"one")
    put(store, "long", b"two", LONG)
    put(store, "changed", b"three")
    put(store, "replaced", b"old")
    put(store, "replaced", b"new")
    put(store, "removed", b"gone")
    put(store, "dir/removed", b"gone")
    store.delete("b", "removed")
    store.delete("b", "dir/removed")
    store.link("b", "a/b", ".cumulus/versions/1/2")
    store.set_meta("b", "changed", b"new meta", store.stat("b", "changed").token)
    expected = {
        "a/b": (b"one", b"meta"),
        ".cumulus/versions/1/2": (b"one", b"meta"),
        "long": (b"two", LONG),
        "changed": (b"three", b"new meta"),
        "replaced": (b"new", b"meta"),
        "removed": None,
        "dir/removed": None,
    }
    failed_checkpoint(store, disk)
    store.set_meta("b", "long", b"short", store.stat("b", "long").token)
    expected["long"] = (b"two", b"short")
    assert {name: get(store, name) for name in expected} == expected
    store._journal.checkpoint()
    assert journals(tmp_path) == []
    assert {name: get(store, name) for name in expected} == expected
    assert os.listdir(tmp_path / "store/data/b/.cumulus/tmp") == []
    again = after_a_power_cut(store, disk, tmp_path)
    assert {name: get(again, name) for name in expected} == expected
    again.close()


def test_what_was_put_beside_a_failed_checkpoint_is_doubted_too(
    store: PosixStore, disk: Lossy, tmp_path: Path
) -> None:
    """It has another journal, whose own sync succeeds."""
    put(store, "first", b"1")

    def beside(name: str) -> None:
        if name == "sync_all":
            disk.before = lambda _: None
            put(store, "second", b"2")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.before = beside
    with pytest.raises(OSError):
        store._journal.checkpoint()
    store._journal.checkpoint()
    assert journals(tmp_path) == []
    again = after_a_power_cut(store, disk, tmp_path)
    assert (get(again, "first"), get(again, "second")) == ((b"1", b"meta"), (b"2", b"meta"))
    again.close()


@pytest.mark.parametrize("step", ["create", "write", "sync", "rename"])
def test_a_journal_stays_until_all_of_it_is_written_again(
    store: PosixStore, disk: Lossy, tmp_path: Path, step: str
) -> None:
    """An error on the way is none of success; the next attempt begins anew."""
    put(store, "a", b"one")
    put(store, "b", b"two")
    failed_checkpoint(store, disk)
    disk.fail(step, errno.EIO)
    with pytest.raises((OSError, Unavailable)):
        store._journal.checkpoint()
    assert len(journals(tmp_path)) == 1
    disk.heal()
    store._journal.checkpoint()
    assert journals(tmp_path) == []
    again = after_a_power_cut(store, disk, tmp_path)
    assert (get(again, "a"), get(again, "b")) == ((b"one", b"meta"), (b"two", b"meta"))
    again.close()


def test_a_recovery_whose_sync_failed_writes_all_again(
    store: PosixStore, disk: Lossy, tmp_path: Path
) -> None:
    """What it had replayed looks right in memory, and is not on disk: a second power cut shows it."""
    put(store, "a", b"one")
    disk.crash(None)
    store._journal._closed = True  # it died
    again = PosixStore(str(tmp_path / "store"), files=disk)
    disk.fail("sync_all", errno.EIO)
    with pytest.raises(Unavailable):
        list(again.recover())
    disk.heal()
    assert get(again, "a") == (b"one", b"meta")
    for _ in range(2):
        list(again.recover())
    again.recovered()
    assert journals(tmp_path) == []
    last = after_a_power_cut(again, disk, tmp_path)
    assert get(last, "a") == (b"one", b"meta")
    last.close()


def test_a_journal_that_its_process_drops_while_journals_are_read_is_none(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the plain files then."""
    put(store, "a", b"one")
    real = Recovery._open

    def opened(self: Recovery, directory: int, name: str) -> Any:
        store._journal.checkpoint()
        return real(self, directory, name)

    monkeypatch.setattr(Recovery, "_open", opened)
    other = PosixStore(str(tmp_path / "store"))
    assert list(other.recover()) == []
    other.recovered()
    other.close()


def test_what_others_did_since_stays_as_it_is(store: PosixStore, disk: Lossy, tmp_path: Path) -> None:
    """Files of people that were put in place of ours, changed, or removed."""
    tree = tmp_path / "store/data/b"
    for name in ("replaced", "changed", "removed", "kept"):
        put(store, name, b"ours")
    failed_checkpoint(store, disk)
    (tmp_path / "new").write_bytes(b"theirs")
    os.replace(tmp_path / "new", tree / "replaced")
    (tree / "changed").write_bytes(b"theirs")
    (tree / "removed").unlink()
    store._journal.checkpoint()
    found = {name: get(store, name) for name in ("replaced", "changed", "removed", "kept")}
    theirs = (b"theirs", None)
    assert found == {"replaced": theirs, "changed": theirs, "removed": None, "kept": (b"ours", b"meta")}


@pytest.mark.parametrize("removed", [False, True])
def test_what_others_do_while_a_body_is_written_again_stays(
    store: PosixStore, disk: Lossy, tmp_path: Path, removed: bool
) -> None:
    """They have no locks of ours."""
    path = tmp_path / "store/data/b/a"
    put(store, "a", b"ours")
    failed_checkpoint(store, disk)

    def beside(name: str) -> None:
        if name == "sync":
            disk.before = lambda _: None
            path.unlink()
            if not removed:
                path.write_bytes(b"theirs")

    disk.before = beside
    store._journal.checkpoint()
    assert get(store, "a") == (None if removed else (b"theirs", None))
    assert os.listdir(tmp_path / "store/data/b/.cumulus/tmp") == []


def test_a_bucket_that_has_gone_since_is_not_waited_for(
    store: PosixStore, disk: Lossy, tmp_path: Path
) -> None:
    put(store, "a", b"one")
    failed_checkpoint(store, disk)
    store.delete("b", "a")
    store.delete_bucket("b")
    store._journal.checkpoint()
    assert journals(tmp_path) == []


def test_without_attributes_it_is_the_same(tmp_path: Path) -> None:
    """There records are in sidecars; the old one goes."""
    disk = NoXattr()
    store = PosixStore(str(tmp_path / "store"), files=disk)
    store.create_bucket("b")
    put(store, "a", b"one")
    before = os.stat(tmp_path / "store/data/b/a").st_ino
    disk.fail("sync_all", errno.EIO)
    with pytest.raises(OSError):
        store._journal.checkpoint()
    disk.heal()
    store._journal.checkpoint()
    assert os.stat(tmp_path / "store/data/b/a").st_ino != before
    assert get(store, "a") == (b"one", b"meta")
    assert len(os.listdir(tmp_path / "store/data/b/.cumulus/meta")) == 1
    store.close()
