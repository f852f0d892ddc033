"""Marks of directories on disks that fail, that have no extended attributes, and after a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
from posix_disk import Faulty, NoXattr

from cumulus.backends.posix import marks
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Entry, Missing, NoSpace, Unavailable


def mark(store: PosixStore, name: str = "d/", meta: bytes = b"m") -> Entry:
    """Put a directory."""
    stream = store.open_write("b", "other", 0)
    try:
        return stream.commit(meta, None, name)
    finally:
        stream.close()


def made(path: Path, files: Faulty) -> PosixStore:
    store = PosixStore(str(path / "s"), files=files)
    store.create_bucket("b")
    return store


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("mark", errno.EIO, Unavailable),
        ("make_dir", errno.ENOSPC, NoSpace),
        ("sync_data", errno.EIO, Unavailable),
    ],
)
def test_a_mark_that_cannot_be_set_leaves_nothing(
    tmp_path: Path, call: str, number: int, error: type[Exception]
) -> None:
    """No object and no directory; later it works."""
    disk = Faulty()
    store = made(tmp_path, disk)
    disk.fail(call, number)
    with pytest.raises(error):
        mark(store)
    disk.heal()
    assert store.names("b") == [] and sorted(os.listdir(tmp_path / "s/data/b")) == [".cumulus"]
    assert store.stat("b", mark(store).name).meta == b"m"
    store.close()


def test_a_removal_that_fails_is_told(tmp_path: Path) -> None:
    """The mark stays."""
    disk = Faulty()
    store = made(tmp_path, disk)
    mark(store)
    disk.fail("unmark", errno.EIO)
    with pytest.raises(Unavailable):
        store.delete("b", "d/")
    disk.heal()
    assert [entry.name for entry in store.names("b")] == ["d/"]
    store.delete("b", "d/")
    store.close()


@pytest.mark.parametrize("disk", [Faulty, NoXattr])
def test_records_that_an_attribute_cannot_hold_are_sidecars(tmp_path: Path, disk: type[Faulty]) -> None:
    """A sweep leaves them alone as long as the directory is there, and they go with the mark."""
    store = made(tmp_path, disk())
    meta = bytes(range(256)) * 20
    mark(store, meta=meta)
    put = store.open_write("b", "d/x", 1)
    put.write(memoryview(b"1"))
    put.commit(b"m")
    put.close()
    store.delete("b", "d/x")
    assert store.sweep(-1.0) == 0
    assert [(entry.name, entry.meta) for entry in store.names("b")] == [("d/", meta)]
    store.delete("b", "d/")
    with pytest.raises(Missing):
        store.stat("b", "d/")
    assert os.listdir(tmp_path / "s/data/b/.cumulus/meta") == []
    assert not (tmp_path / "s/data/b/d").exists()
    store.close()


def test_the_next_start_tells_of_marks_after_a_crash(tmp_path: Path) -> None:
    """The journal has their names."""
    store = made(tmp_path, Faulty())
    entry = mark(store)
    mark(store, "gone/")
    store.delete("b", "gone/")
    pid = os.fork()
    if not pid:
        other = PosixStore(str(tmp_path / "s"))
        mark(other, "late/")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    again = PosixStore(str(tmp_path / "s"))
    assert [(bucket, one.name) for bucket, one in again.recover()] == [("b", "late/")]
    again.recovered()
    assert [one.name for one in again.names("b")] == ["d/", "late/"] and again.stat("b", "d/") == entry
    for one in (again, store):
        one.close()


def test_a_directory_that_others_keep_locked_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read it may lock it; the mark is set as soon as that ends."""
    monkeypatch.setattr(marks, "_PATIENCE_S", 0.05)
    store = made(tmp_path, Faulty())
    mark(store)
    held = os.open(tmp_path / "s/data/b/d", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_SH)
    with pytest.raises(Unavailable, match="another program has locked"):
        mark(store, meta=b"n")
    assert store.stat("b", "d/").meta == b"m"
    monkeypatch.setattr(marks, "_PATIENCE_S", 60)
    ending = threading.Timer(0.2, os.close, (held,))
    ending.start()
    assert mark(store, meta=b"n").meta == b"n"
    ending.join()
    store.close()
