"""Large files that lose their name: who takes it does not wait until their blocks are free."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix import freeing
from cumulus.backends.posix.freeing import LARGE, Freeing
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Whole

BIG = b"0123456789abcdef" * (LARGE // 8)


class Gated(Freeing):
    """Frees when it is told to."""

    def __init__(self, waiting: int = freeing.WAITING) -> None:
        super().__init__(waiting)
        self.may = threading.Event()

    def _run_thd(self) -> None:
        self.may.wait(20)
        super()._run_thd()


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
def store(tmp_path: Path, gated: Gated) -> Iterator[PosixStore]:
    """A store with a bucket, whose large files are freed when the test says so."""
    made = PosixStore(str(tmp_path / "store"))
    made._publisher._freeing = gated
    made.create_bucket("b")
    yield made
    gated.may.set()
    made.close()


def put(store: PosixStore, name: str, body: bytes) -> None:
    with contextlib.closing(store.open_write("b", name, len(body))) as stream:
        stream.write(memoryview(body))
        stream.commit(b"meta")


def unnamed(below: Path) -> list[str]:
    """Files in `below` without a name that this process keeps from being freed."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(below)) and target.endswith(" (deleted)"):
            found.append(Path(target.removesuffix(" (deleted)")).name)
    return sorted(found)


def wait_freed(below: Path) -> None:
    end = time.monotonic() + 20
    while unnamed(below):
        assert time.monotonic() < end, "never freed"
        time.sleep(0.01)


def read(store: PosixStore, name: str) -> bytes:
    with contextlib.closing(store.open_read("b", name)) as reader:
        return reader.read_at(0, reader.entry.size)


def test_who_replaces_a_large_object_does_not_wait_until_it_is_freed(
    store: PosixStore, gated: Gated, tmp_path: Path
) -> None:
    put(store, "k", BIG)
    put(store, "k", BIG[::-1])
    assert unnamed(tmp_path) == ["k"], "the answer came first"
    assert read(store, "k") == BIG[::-1]
    put(store, "k", b"small")
    assert unnamed(tmp_path) == ["k", "k"]
    gated.may.set()
    wait_freed(tmp_path)
    assert read(store, "k") == b"small"


def test_who_removes_a_large_object_does_not_wait_either(
    store: PosixStore, gated: Gated, tmp_path: Path
) -> None:
    put(store, "k", BIG)
    store.delete("b", "k")
    assert unnamed(tmp_path) == ["k"]
    assert not (tmp_path / "store/data/b/k").exists()
    gated.may.set()
    wait_freed(tmp_path)


def test_many_small_objects_put_together_over_large_ones(
    store: PosixStore, gated: Gated, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        put(store, name, BIG)
    store.put_all([Whole("b", name, b"small", b"meta") for name in ("one", "two")])
    assert unnamed(tmp_path) == ["one", "two"]
    gated.may.set()
    wait_freed(tmp_path)


def test_small_files_and_those_with_another_name_are_not_kept(
    store: PosixStore, gated: Gated, tmp_path: Path
) -> None:
    put(store, "small", b"x" * 1000)
    put(store, "small", b"y")
    put(store, "linked", BIG)
    os.link(tmp_path / "store/data/b/linked", tmp_path / "kept")
    store.delete("b", "linked")
    assert unnamed(tmp_path) == []
    assert (tmp_path / "kept").read_bytes() == BIG


def test_where_the_disk_is_nearly_full_the_blocks_are_free_when_the_answer_comes(
    store: PosixStore, gated: Gated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    free = real.f_blocks // 100
    little = os.statvfs_result((*real[:3], free, free, *real[5:]))
    put(store, "k", BIG)
    with monkeypatch.context() as patch:
        patch.setattr(freeing.os, "fstatvfs", lambda _: little)
        store.delete("b", "k")
    assert unnamed(tmp_path) == []


def test_no_more_wait_than_it_has_room_for(tmp_path: Path, store: PosixStore) -> None:
    store._publisher._freeing = few = Gated(waiting=2)
    for name in "abcd":
        put(store, name, BIG)
        store.delete("b", name)
    assert unnamed(tmp_path) == ["a", "b"], "who brought the others freed them"
    few.may.set()
    wait_freed(tmp_path)
    few.close()


def test_a_store_that_closes_frees_what_waits(tmp_path: Path) -> None:
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("b")
    put(made, "k", BIG)
    made.delete("b", "k")
    made.close()
    assert unnamed(tmp_path) == []
