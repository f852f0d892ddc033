"""Small objects that are published, or removed, together on plain files: one sync, and what fails is one
object's own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from posix_disk import Faulty

from cumulus.backends.posix import records
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import (
    Changed,
    Entry,
    Forbidden,
    NoSpace,
    StorageError,
    Taken,
    Token,
    Unavailable,
    Whole,
)

NAMES = ["a", "b", "dir/c", "d"]


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


@pytest.fixture
def store(tmp_path: Path, disk: Faulty) -> Iterator[PosixStore]:
    """With a bucket and an object in it."""
    made = PosixStore(str(tmp_path / "store"), files=disk)
    made.create_bucket("b")
    assert isinstance(made.put_all([Whole("b", "a", b"old", b"m")])[0], Entry)
    yield made
    disk.heal()
    made.close()


def new(store: PosixStore) -> list[Entry | StorageError]:
    """All of `NAMES` with new bytes."""
    return store.put_all([Whole("b", name, b"new", b"m") for name in NAMES])


def bodies(tmp_path: Path) -> dict[str, bytes]:
    """What is in the bucket's plain files."""
    top = tmp_path / "store" / "data" / "b"
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in top.rglob("*")
        if path.is_file() and ".cumulus" not in path.parts
    }


def drafts(tmp_path: Path) -> list[str]:
    """What was left where bodies are written."""
    return os.listdir(tmp_path / "store/data/b/.cumulus/tmp")


def test_one_sync_is_for_all(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    before = {name: disk.calls.get(name, 0) for name in ("sync", "sync_data")}
    assert all(isinstance(one, Entry) for one in new(store))
    assert {name: disk.calls.get(name, 0) - count for name, count in before.items()} == {
        "sync": 0,
        "sync_data": 1,
    }
    assert bodies(tmp_path) == dict.fromkeys(NAMES, b"new")
    assert drafts(tmp_path) == []


@pytest.mark.parametrize(("call", "number"), [("sync_data", errno.EIO), ("write", errno.ENOSPC)])
def test_without_the_journal_nothing_has_changed(
    store: PosixStore, disk: Faulty, tmp_path: Path, call: str, number: int
) -> None:
    """Its sync, or the write into it, which comes after those of the bodies."""
    disk.fail(call, number, nth=1 if call == "sync_data" else len(NAMES) + 1)
    found = new(store)
    assert [type(one) for one in found] == [Unavailable if call == "sync_data" else NoSpace] * len(NAMES)
    disk.heal()
    assert bodies(tmp_path) == {"a": b"old"}
    assert drafts(tmp_path) == []
    assert not (tmp_path / "store/data/b/dir").exists()
    assert all(isinstance(one, Entry) for one in new(store))


@pytest.mark.parametrize("call", ["create", "set_times", "rename"])
def test_one_that_fails_is_alone(store: PosixStore, disk: Faulty, tmp_path: Path, call: str) -> None:
    """Whether it is before the journal or behind it; what was recorded of it is taken back."""
    second = disk.calls[call] + 2

    def fail(name: str) -> None:
        if name == call and disk.calls[call] == second:
            raise OSError(errno.ENOSPC, "full")

    disk.before = fail
    found = new(store)
    disk.before = lambda _: None
    assert [isinstance(one, Entry) for one in found] == [True, False, True, True]
    assert isinstance(found[1], NoSpace)
    assert bodies(tmp_path) == {"a": b"new", "dir/c": b"new", "d": b"new"}
    assert drafts(tmp_path) == []
    (journal,) = (tmp_path / "store/journal").glob("*.journal")
    with journal.open("rb") as file:
        taken_back = [change.name for _, change in records.read(file.fileno()) if change.kind == records.VOID]
    assert taken_back == (["b"] if call == "rename" else [])


def test_a_directory_in_the_way_is_said_of_that_one(store: PosixStore, tmp_path: Path) -> None:
    """The floor above then takes another name."""
    wholes = [Whole("b", name, b"x", b"m") for name in ("n/m", "n")]
    first, second = store.put_all(wholes)
    assert isinstance(first, Entry)
    assert isinstance(second, Taken)
    assert bodies(tmp_path) == {"a": b"old", "n/m": b"x"}


def test_batches_with_names_in_common_do_not_wait_in_a_circle(store: PosixStore) -> None:
    """Each takes the locks in one order, whatever the order of its names."""
    failed: list[object] = []

    def work(names: list[str]) -> None:
        for _ in range(10):
            found = store.put_all([Whole("b", name, b"x", b"m") for name in names])
            failed.extend(one for one in found if not isinstance(one, Entry))

    names = [f"k{number}" for number in range(12)]
    threads = [
        threading.Thread(target=work, args=(some,), daemon=True) for some in (names, names[::-1], names[6:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []


def test_locks_that_cannot_be_had_refuse_all(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("cumulus.file_locks.set_range", refuse)
    assert [type(one) for one in new(store)] == [Unavailable] * len(NAMES)
    monkeypatch.undo()
    assert bodies(tmp_path) == {"a": b"old"}
    assert all(isinstance(one, Entry) for one in new(store))


def test_what_was_recorded_is_done_after_a_crash(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    """The power goes behind the journal's sync: all that was acknowledged, and what came so far, is there."""

    class Gone(BaseException):
        """No power."""

    def cut(name: str) -> None:
        if name == "rename" and disk.calls["rename"] > 3:
            raise Gone

    disk.before = cut
    with pytest.raises(Gone):
        new(store)
    disk.before = lambda _: None
    store.close()
    again = PosixStore(str(tmp_path / "store"))
    for _ in again.recover():
        pass
    again.recovered()
    found = bodies(tmp_path)
    assert set(found.values()) <= {b"old", b"new"}
    assert found["a"] == b"new"
    again.close()


# removal -----------------------------------------------------------------------------------------------
def stored(store: PosixStore) -> list[tuple[str, Token]]:
    """All of `NAMES`, as they are to be removed."""
    return [(entry.name, entry.token) for entry in new(store) if isinstance(entry, Entry)]


def test_one_sync_is_for_all_that_goes(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    names = stored(store)
    before = disk.calls.get("sync", 0) + disk.calls["sync_data"]
    assert all(isinstance(one, int) for one in store.delete_all("b", names))
    assert disk.calls.get("sync", 0) + disk.calls["sync_data"] == before + 1
    assert bodies(tmp_path) == {}
    assert not (tmp_path / "store/data/b/dir").exists()


@pytest.mark.parametrize(("call", "number"), [("sync_data", errno.EIO), ("write", errno.EDQUOT)])
def test_without_the_journal_nothing_has_gone(
    store: PosixStore, disk: Faulty, tmp_path: Path, call: str, number: int
) -> None:
    names = stored(store)
    disk.fail(call, number)
    found = store.delete_all("b", names)
    assert [type(one) for one in found] == [Unavailable if call == "sync_data" else NoSpace] * len(NAMES)
    disk.heal()
    assert bodies(tmp_path) == dict.fromkeys(NAMES, b"new")
    assert all(isinstance(one, int) for one in store.delete_all("b", names))


def test_room_that_was_set_aside_is_for_removals_together_too(store: PosixStore, disk: Faulty) -> None:
    names = stored(store)
    store.keep_room()
    first = disk.calls["write"] + 1

    def full_once(name: str) -> None:
        if name == "write" and disk.calls["write"] == first:
            raise OSError(errno.ENOSPC, "full")

    disk.before = full_once
    assert all(isinstance(one, int) for one in store.delete_all("b", names))


def test_one_that_cannot_go_is_alone(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    """One was replaced, and one is in a directory that may not be written: what was recorded of it is taken
    back."""
    names = stored(store)
    (tmp_path / "store/data/b/d").write_bytes(b"by others")
    first = disk.calls["unlink"] + 1

    def fail(name: str) -> None:
        if name == "unlink" and disk.calls["unlink"] == first:
            raise OSError(errno.EACCES, "denied")

    disk.before = fail
    found = store.delete_all("b", names)
    disk.before = lambda _: None
    assert [type(one) for one in found] == [Forbidden, int, int, Changed]
    assert bodies(tmp_path) == {"a": b"new", "d": b"by others"}
    (journal,) = (tmp_path / "store/journal").glob("*.journal")
    with journal.open("rb") as file:
        assert [change.kind for _, change in records.read(file.fileno())].count(records.VOID) == 1


def test_removals_together_do_not_wait_in_a_circle(store: PosixStore) -> None:
    """Beside publications of the same names, each in another order."""
    names = [f"k{number}" for number in range(12)]
    failed: list[object] = []

    def remove(order: list[str]) -> None:
        for _ in range(10):
            there = [
                (name, entry.token) for name in order for entry in store.names("b", prefix=name, limit=1)
            ]
            found = store.delete_all("b", list(dict(there).items()))
            failed.extend(one for one in found if isinstance(one, Unavailable | NoSpace | Taken))

    def publish() -> None:
        for _ in range(10):
            found = store.put_all([Whole("b", name, b"x", b"m") for name in names[::-1]])
            failed.extend(one for one in found if not isinstance(one, Entry))

    threads = [threading.Thread(target=publish, daemon=True)]
    threads += [threading.Thread(target=remove, args=(some,), daemon=True) for some in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []
