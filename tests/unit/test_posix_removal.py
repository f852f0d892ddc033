"""Removing a bucket of plain files beside everything that may be put into it."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from posix_disk import Crash, Faulty, NoXattr

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import FileStore, Missing, NotEmptyStore, Piece, StorageError, Unavailable, Whole

ROUNDS = 80
LARGE = 100_000
META = b"m" * 5000  # in a sidecar


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Where the bucket's files are."""
    return tmp_path / "store/data/b"


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., PosixStore]]:
    """Makes stores on one tree; each has locks of its own, as that of another worker."""
    made: list[PosixStore] = []

    def make(files: Files | None = None) -> PosixStore:
        made.append(PosixStore(str(tmp_path / "store"), files=files))
        return made[-1]

    yield make
    for store in made:
        store.close()


def put(store: FileStore, name: str, body: bytes = b"body", meta: bytes = META) -> None:
    """Write one object."""
    stream = store.open_write("b", name.rstrip("/"))
    try:
        stream.write(memoryview(body))
        stream.commit(meta, name=name)
    finally:
        stream.close()


def put_many(store: FileStore) -> None:
    """Two small objects at once, one of them odd."""
    for found in store.put_all([Whole("b", name, b"body", META) for name in ("many", ".cumulus/odd/many")]):
        if isinstance(found, StorageError):
            raise found


def fill(store: FileStore, upload: str = "u") -> None:
    """A part at its place."""
    stream = store.open_range("b", f".cumulus/parts/{upload}/slots.4", 0, 4)
    assert stream is not None
    try:
        stream.write(memoryview(b"part"))
        stream.sync()
    finally:
        stream.close()


def join(store: FileStore) -> None:
    """The part as an object, under a name that a listing does not show."""
    fill(store, "v")
    piece = Piece(".cumulus/parts/v/slots.4", 0, 4)
    store.join("b", [piece], ".cumulus/odd/joined", META, base=piece.name)


# what is done, and the names that are there then
WRITES: list[tuple[Callable[[FileStore], None], list[str]]] = [
    (lambda store: put(store, "plain"), ["plain"]),
    (lambda store: put(store, "deep/er/plain", b"x" * LARGE), ["deep/er/plain"]),
    (lambda store: put(store, ".cumulus/odd/1"), [".cumulus/odd/1"]),
    (lambda store: put(store, ".cumulus/odd/2", b"x" * LARGE), [".cumulus/odd/2"]),
    (lambda store: put(store, ".cumulus/versions/k/1"), [".cumulus/versions/k/1"]),
    (lambda store: put(store, "mark/", b""), ["mark/"]),
    (put_many, ["many", ".cumulus/odd/many"]),
    (fill, [".cumulus/parts/u/slots.4"]),
    (join, [".cumulus/odd/joined"]),
]


def empty(store: FileStore) -> None:
    """Remove the bucket with all that is in it."""
    for prefix in ("", ".cumulus/"):
        for entry in store.names("b", prefix=prefix):
            store.delete("b", entry.name)
    store.delete_bucket("b")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("kind", [Files, NoXattr])
def test_what_was_put_keeps_the_bucket_or_was_refused(
    open_store: Callable[..., PosixStore], stores: int, kind: type[Files], seed: int
) -> None:
    """Of a removal and some writes at once: either it says that the bucket is not empty, and all writes are
    done, or each write is refused. (Seeded; with one store, and with one beside that removes.)"""
    rng = random.Random(seed)
    remover = open_store(kind())
    writer = open_store(kind()) if stores == 2 else remover
    outcomes = set()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(ROUNDS):
            remover.create_bucket("b")
            outcomes.add(race(rng, remover, writer))
    finally:
        sys.setswitchinterval(before)
    assert outcomes == {"kept", "removed"}


def race(rng: random.Random, remover: PosixStore, writer: PosixStore) -> str:
    """One round."""
    chosen = rng.sample(WRITES, rng.randint(1, 3))
    ready = threading.Barrier(len(chosen) + 1)
    done: list[str] = []
    refused: list[StorageError] = []

    def write(work: Callable[[FileStore], None], names: list[str], wait: int) -> None:
        ready.wait(10)
        for _ in range(wait):
            os.stat("/")
        try:
            work(writer)
            done.extend(names)
        except StorageError as bad:
            refused.append(bad)

    threads = [
        threading.Thread(target=write, args=(work, names, rng.choice((0, 0, 20, 200))))
        for work, names in chosen
    ]
    for thread in threads:
        thread.start()
    wait = rng.choice((0, 10, 100, 400))
    ready.wait(10)
    for _ in range(wait):
        os.stat("/")
    try:
        remover.delete_bucket("b")
        removed = True
    except NotEmptyStore:
        removed = False
    for thread in threads:
        thread.join(20)
    if removed:
        assert not done
        assert refused and all(isinstance(bad, Missing) for bad in refused)
        return "removed"
    assert not refused
    for name in done:
        if name.endswith(("slots.4", "/")):
            assert writer.stat("b", name)
        else:
            stream = writer.open_read("b", name)
            assert stream.entry.size in (4, LARGE) and stream.entry.meta == META
            stream.close()
    empty(remover)
    return "kept"


def test_a_removal_that_stops_anywhere_leaves_a_bucket_that_works(
    open_store: Callable[..., PosixStore], tree: Path
) -> None:
    """At each of its steps, in a worker that dies there; another one that had the bucket open goes on."""
    disk, other = Faulty(), open_store()
    dying = open_store(disk)
    stopped = 0
    for nth in range(1, 100):
        other.create_bucket("b")
        for store in (dying, other):
            for name in ("a/b", ".cumulus/odd/1", ".cumulus/parts/u/1"):
                put(store, name)
                store.delete("b", name)
        (tree / ".cumulus/tmp/left").touch()
        (tree / ".cumulus/odd").mkdir(exist_ok=True)
        at = disk.calls.get("remove_dir", 0) + disk.calls.get("unlink", 0) + nth

        def stop(name: str, at: int = at) -> None:
            if disk.calls.get("remove_dir", 0) + disk.calls.get("unlink", 0) == at:
                raise Crash

        disk.before = stop
        try:
            dying.delete_bucket("b")
            break
        except Crash:
            stopped += 1
        finally:
            disk.before = lambda _: None
        put(other, "plain")
        put(other, ".cumulus/odd/1")
        put(dying, "plain")
        assert [entry.name for entry in other.names("b")] == ["plain"]
        empty(other)
    assert stopped >= 5
    assert not tree.exists()


@pytest.mark.parametrize("step", ["tmp", "meta", ".cumulus"])
def test_a_file_that_others_put_while_the_bucket_goes_keeps_it_working(
    open_store: Callable[..., PosixStore], tree: Path, step: str
) -> None:
    """They have no locks of ours: what is ours may be gone by then and is made again, in each worker."""

    class Beside(Files):
        times = 0

        def remove_dir(self, directory: int, name: str) -> None:
            super().remove_dir(directory, name)
            self.times += name == step
            if name == step and self.times == 1:
                (tree / "theirs").write_text("text")

    store, other = open_store(Beside()), open_store()
    store.create_bucket("b")
    other.names("b")
    with pytest.raises(NotEmptyStore):
        store.delete_bucket("b")
    for one in (store, other):
        put(one, "ours")
        assert [entry.name for entry in one.names("b")] == ["ours", "theirs"]
        one.delete("b", "ours")
    (tree / "theirs").unlink()
    store.delete_bucket("b")


def test_an_adopted_directory_takes_nothing_more_when_its_bucket_is_gone(
    open_store: Callable[..., PosixStore], tmp_path: Path
) -> None:
    """It stays, so a write that had begun could end in it."""
    (tmp_path / "theirs").mkdir()
    store, other = open_store(), open_store()
    store.create_bucket("b", str(tmp_path / "theirs"))
    for size in (4, LARGE):
        late = other.open_write("b", "late")
        late.write(memoryview(b"x" * size))
        mark = other.open_write("b", "mark")
        store.delete_bucket("b")
        for stream, name in ((late, "late"), (mark, "mark/")):
            with pytest.raises(Missing):
                stream.commit(b"m", name=name)
            stream.close()
        assert os.listdir(tmp_path / "theirs") == []
        store.create_bucket("b", str(tmp_path / "theirs"))


def test_a_bucket_that_is_written_to_all_the_time_is_refused(
    open_store: Callable[..., PosixStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that does not end is waited for, but not for ever."""
    monkeypatch.setattr("cumulus.backends.posix.store.PATIENCE_S", 0.05)
    store, other = open_store(), open_store()
    store.create_bucket("b")
    with other._buckets.root("b").gate, pytest.raises(Unavailable, match="written to all the time"):
        store.delete_bucket("b")
    store.delete_bucket("b")
