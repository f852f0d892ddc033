"""The store on plain files when system calls fail: what is not acknowledged has not happened."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from posix_disk import Faulty, NoXattr

from cumulus.backends.posix import journal
from cumulus.backends.posix.errors import TABLE, storage_error
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import (
    ABSENT,
    BadName,
    Entry,
    Forbidden,
    Missing,
    NoSpace,
    Piece,
    ReadOnly,
    StorageError,
    Taken,
    Unavailable,
)


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


@pytest.fixture
def store(tmp_path: Path, disk: Faulty) -> Iterator[PosixStore]:
    """A store with a bucket and an object, whose next system calls may fail."""
    made = PosixStore(str(tmp_path / "store"), files=disk)
    made.create_bucket("b")
    put(made, "a", b"old")
    yield made
    disk.heal()
    made.close()


def put(store: PosixStore, name: str, body: bytes) -> Entry:
    """Write one object; an error aborts it."""
    stream = store.open_write("b", name, len(body))
    try:
        stream.write(memoryview(body))
        return stream.commit(b"meta")
    finally:
        stream.close()


def get(store: PosixStore, name: str) -> bytes:
    """Read one object."""
    stream = store.open_read("b", name)
    try:
        return stream.read_at(0, stream.entry.size)
    finally:
        stream.close()


def drafts(tmp_path: Path) -> list[str]:
    """What is left in the bucket's `tmp`."""
    return os.listdir(tmp_path / "store/data/b/.cumulus/tmp")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, Missing),
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EROFS, ReadOnly),
        (errno.EACCES, Forbidden),
        (errno.EPERM, Forbidden),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.ENAMETOOLONG, BadName),
        (errno.ENOTDIR, Taken),
        (errno.EISDIR, Taken),
        (errno.ELOOP, Taken),
    ],
)
def test_errors_of_the_kernel_have_names(number: int, kind: type[StorageError]) -> None:
    """One table; only `Unavailable` may pass."""
    error = storage_error(OSError(number, os.strerror(number)), "b/a")
    assert type(error) is kind
    assert str(error) == f"b/a: {os.strerror(number)}"
    assert error.permanent == (kind is not Unavailable)
    assert TABLE.get(number, Unavailable) is kind


def failure_of(store: PosixStore, name: str, body: bytes) -> StorageError | None:
    """What a put raises."""
    try:
        put(store, name, body)
    except StorageError as error:
        return error
    return None


STEPS = ("create", "write", "set_times", "set_xattr", "reserve", "sync_data", "sync", "rename", "make_dir")


@pytest.mark.parametrize("size", [100, 2_000_000])
@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", STEPS)
def test_a_put_that_fails_anywhere_has_not_happened(
    store: PosixStore, disk: Faulty, tmp_path: Path, size: int, call: str, number: int
) -> None:
    """At each of these calls that a put makes: the old object stays, no new name, nothing is left over; then
    the store works again. Only where directories cannot be synced after the rename is the new object there,
    without being acknowledged."""
    for name in ("a", "new/dir/c"):
        before = disk.calls.get(call, 0)
        put(store, name, b"x" * size)
        made = disk.calls.get(call, 0) - before
        for nth in range(1, made + 1):
            if name != "a":
                store.delete("b", name)
            put(store, "a", b"old")
            renames = disk.calls["rename"]
            disk.fail(call, number, nth)
            reached = disk.calls.get(call, 0) + nth
            error = failure_of(store, name, b"y" * size)
            disk.heal()
            if disk.calls[call] < reached:  # one call less: the journal was new the first time
                assert error is None
                continue
            assert type(error) is TABLE.get(number, Unavailable)
            assert drafts(tmp_path) == []
            if call == "rename" or disk.calls["rename"] == renames:
                assert get(store, "a") == b"old"
                assert sorted(os.listdir(tmp_path / "store/data/b")) == [".cumulus", "a"]
            put(store, name, b"x" * size)


@pytest.mark.parametrize("kind", [Faulty, NoXattr])
@pytest.mark.parametrize("joined", [False, True])
def test_an_object_whose_directory_cannot_be_synced_has_its_record(
    tmp_path: Path, kind: type[Faulty], joined: bool
) -> None:
    """It has its name by then, so readers find it, and it must be whole; whoever put it gets the error."""
    disk = kind()
    store = PosixStore(str(tmp_path / "store"), files=disk)
    store.create_bucket("b")
    seen = 0
    for nth in range(1, 9):
        name, part = f"d{nth}/x", f".cumulus/parts/{nth}/slots.2000000"
        ranged = store.open_range("b", part, 0, 2_000_000) if joined else None
        if ranged is not None:
            ranged.write(memoryview(b"y" * 2_000_000))
            ranged.sync()
            ranged.close()
        renames = disk.calls.get("rename", 0)
        disk.fail("sync", errno.EIO, nth)
        with contextlib.suppress(Unavailable):
            if joined:
                store.join("b", [Piece(part, 0, 2_000_000)], name, b"meta", base=part)
            else:
                put(store, name, b"y" * 2_000_000)
            disk.heal()
            continue
        disk.heal()
        if name in [entry.name for entry in store.names("b")]:
            assert disk.calls["rename"] > renames
            assert store.stat("b", name).meta == b"meta"
            assert get(store, name) == b"y" * 2_000_000
            seen += 1
    assert seen
    store.close()


def test_of_a_batch_that_cannot_be_synced_nothing_is_acknowledged(
    store: PosixStore, disk: Faulty, tmp_path: Path
) -> None:
    """Neither now nor after a restart, though it may be in the journal; what came before and after is."""
    disk.fail("sync_all", errno.EIO)  # so that no checkpoint drops the journal
    disk.fail("sync_data", errno.EIO)
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(put, store, f"n{number}", b"x") for number in range(8)]
    assert all(isinstance(each.exception(), Unavailable) for each in tries)
    disk.heal("sync_data")
    put(store, "later", b"x")
    names = [entry.name for entry in store.names("b")]
    assert names == ["a", "later"]
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy, symlinks=True)
    for leftover in ("a", "later"):
        (copy / "data/b" / leftover).unlink()
    other = Faulty()
    other.boot = lambda: "another run of the machine"  # type: ignore[method-assign]
    again = PosixStore(str(copy), files=other)
    assert sorted(entry.name for _, entry in again.recover()) == ["a", "later"]
    assert [entry.name for entry in again.names("b")] == ["a", "later"]
    again.close()


def test_a_removal_that_fails_has_not_happened(store: PosixStore, disk: Faulty) -> None:
    """Journal or unlink; and it is not done after a restart either."""
    for call in ("sync_data", "unlink"):
        disk.fail(call, errno.EIO)
        with pytest.raises(Unavailable):
            store.delete("b", "a")
        disk.heal()
        assert get(store, "a") == b"old"


def test_meta_that_cannot_be_written_stays(store: PosixStore, disk: Faulty) -> None:
    """ENOSPC in the attribute and in the sidecar."""
    old = store.stat("b", "a")
    disk.fail("set_xattr", errno.EIO)
    with pytest.raises(Unavailable):
        store.set_meta("b", "a", b"new", old.token)
    disk.heal()
    disk.fail("write", errno.ENOSPC, 2)  # the first is the journal's
    with pytest.raises(NoSpace):
        store.set_meta("b", "a", b"n" * 10_000, old.token)
    disk.heal()
    assert store.stat("b", "a").meta == b"meta"


def test_a_failed_join_or_copy_leaves_all_as_it_was(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    """Disk full while bytes are copied."""
    parts = [".cumulus/parts/1", ".cumulus/parts/2"]
    for part in parts:
        put(store, part, b"p" * 100_000)
    disk.fail("copy", errno.ENOSPC, 2)
    with pytest.raises(NoSpace):
        store.concat("b", parts, "a", b"")
    disk.heal()
    assert [entry.name for entry in store.names("b", prefix=".cumulus/parts/")] == parts
    disk.fail("copy", errno.ENOSPC)
    stream = store.open_read("b", parts[0])
    with pytest.raises(NoSpace):
        store.copy(stream, "b", "a", b"", None)
    stream.close()
    disk.heal()
    assert get(store, "a") == b"old"
    assert drafts(tmp_path) == []


def test_a_checkpoint_that_fails_keeps_the_journal(store: PosixStore, disk: Faulty, tmp_path: Path) -> None:
    """What it records may not be on disk; close says so, and the next start recovers it."""
    disk.fail("sync_all", errno.EIO)
    with pytest.raises(Unavailable):
        store.close()
    disk.heal()
    assert len(os.listdir(tmp_path / "store/journal")) == 1
    again = PosixStore(str(tmp_path / "store"), files=disk)
    assert [entry.name for _, entry in again.recover()] == ["a"]
    again.recovered()
    assert os.listdir(tmp_path / "store/journal") == []
    again.close()


def test_many_changes_make_a_checkpoint_due(
    store: PosixStore, disk: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers wait while the disk has to write what the journal covers, so that must not become much."""
    monkeypatch.setattr(journal, "MAX_CHANGES", 10)
    synced = threading.Event()
    disk.before = lambda name: synced.set() if name == "sync_all" else None
    for number in range(8):
        put(store, f"k{number}", b"x")
    assert not synced.wait(0.3)  # with "a" these are nine
    put(store, "k8", b"x")
    assert synced.wait(5)


def test_sixteen_writers_share_syncs(store: PosixStore, disk: Faulty) -> None:
    """While a sync is under way the others gather; each sync here waits until all that can come have come."""
    waiting = threading.Semaphore(0)
    turns = 20

    def before(name: str) -> None:
        if name == "sync_data":
            for _ in range(3):
                waiting.acquire(timeout=0.02)
        elif name == "create":
            waiting.release()

    disk.before = before
    syncs = disk.calls["sync_data"] + disk.calls["sync"]
    with ThreadPoolExecutor(16) as pool:
        done = [
            pool.submit(put, store, f"k{writer}-{turn}", b"x" * 4096)
            for writer in range(16)
            for turn in range(turns)
        ]
        for each in done:
            each.result(60)
    disk.before = lambda _: None
    syncs = disk.calls["sync_data"] + disk.calls["sync"] - syncs
    assert syncs <= 16 * turns / 2
    assert len(store.names("b")) == 16 * turns + 1


def test_a_closed_store_refuses(store: PosixStore) -> None:
    """A write that was open while it closed is not acknowledged."""
    stream = store.open_write("b", "c")
    stream.write(memoryview(b"x"))
    store.close()
    store.close()
    with pytest.raises(StorageError):
        stream.commit(b"", ABSENT)
    stream.close()
