"""Requests that are answered without a change of threads: what is at hand, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_world import World

from cumulus.backends.posix import now, sidecar
from cumulus.backends.posix.store import PosixStore
from cumulus.rest.call import Call, Download, Headers, Reply, Sink


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """With a bucket and one object in it."""
    made = PosixStore(str(tmp_path / "store"))
    made.create_bucket("bucket")
    stream = made.open_write("bucket", "dir/object", 5)
    stream.write(memoryview(b"12345"))
    stream.commit(b"meta")
    stream.close()
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Where the bucket's files are."""
    return tmp_path / "store" / "data" / "bucket"


def test_what_is_in_memory_is_read_at_once(store: PosixStore) -> None:
    stream = store.open_now("bucket", "dir/object")
    assert stream is not None
    assert stream.entry == store.stat("bucket", "dir/object")
    assert (stream.read_now(0, 5), stream.read_now(1, 3)) == (b"12345", b"234")
    assert stream.read_now(1, 5) is None
    stream.close()


def test_what_is_not_a_plain_file_of_ours_is_left_to_others(store: PosixStore, files: Path) -> None:
    os.mkfifo(files / "fifo")
    (files / "link").symlink_to("dir/object")
    (files / "way").symlink_to("dir")
    (files / "outside").write_bytes(b"made by others")
    shutil.copy2(files / "dir/object", files / "copy")
    with (files / "dir/object").open("r+b") as opened:
        opened.write(b"9")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("fifo", "link", "way/object", "outside", "copy", "dir", "dir/object", "none", "none/none"):
        assert store.open_now("bucket", name) is None
    assert store.open_now("none", "object") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_that_change_are_not_given_at_once(store: PosixStore, files: Path) -> None:
    stream = store.open_now("bucket", "dir/object")
    assert stream is not None
    with (files / "dir/object").open("r+b") as opened:
        opened.write(b"9")
    assert stream.read_now(0, 5) is None
    stream.close()


def put(store: PosixStore, name: str, meta: bytes) -> Path:
    """An object; the file in `.cumulus/meta` that has its record, if one has."""
    stream = store.open_write("bucket", name, 5)
    stream.write(memoryview(b"12345"))
    stream.commit(meta)
    stream.close()
    root = store._buckets.root("bucket")
    return Path(root.path) / ".cumulus/meta" / sidecar.path_of(name, os.stat(Path(root.path) / name).st_ino)


def test_a_record_too_long_for_an_attribute_is_read_at_once(store: PosixStore) -> None:
    """As that of an upload in many parts is."""
    beside = put(store, "parts", b"m" * 10_000)
    stream = store.open_now("bucket", "parts")
    assert beside.exists()
    assert stream is not None
    assert stream.entry == store.stat("bucket", "parts")
    assert stream.entry.meta == b"m" * 10_000
    stream.close()


def test_a_record_that_cannot_be_read_at_once_is_left_to_others(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged, of another change, missing, not in memory, a faulty disk, very long; nothing stays open."""
    beside = put(store, "parts", b"m" * 10_000)
    whole = beside.read_bytes()
    before = len(os.listdir("/proc/self/fd"))
    older = sidecar.parse(whole)
    assert older is not None
    put(store, "long", b"m" * 100_000)
    assert store.open_now("bucket", "long") is None
    beside.write_bytes(whole[:-1] + b"?")
    assert store.open_now("bucket", "parts") is None
    root = store._buckets.root("bucket")
    sidecar.write(root, "parts", older[1]._replace(stamp=1), store._files, sync=False)
    assert store.open_now("bucket", "parts") is None
    beside.unlink()
    assert store.open_now("bucket", "parts") is None
    beside.write_bytes(whole)
    with monkeypatch.context() as patched:
        patched.setattr(now, "read", lambda *_: None)
        assert store.open_now("bucket", "parts") is None

    def fault(*_: object) -> None:
        raise OSError(errno.EIO, "fault")

    with monkeypatch.context() as patched:
        patched.setattr(now, "read", fault)
        assert store.open_now("bucket", "parts") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_a_file_with_a_name_is_closed_at_once(
    store: PosixStore, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a name may be freed by that; a file system that asks a server may take long to tell."""
    for opened in (store.open_now("bucket", "dir/object"), store.open_read("bucket", "dir/object")):
        assert opened is not None
        assert (opened.read_now(4, 1), opened.close_now(), opened.close_now()) == (b"5", True, True)
    with monkeypatch.context() as patched:
        patched.setattr(now, "local", lambda *_: False)
        far = store.open_read("bucket", "dir/object")
    gone = store.open_now("bucket", "dir/object")
    assert gone is not None
    (files / "dir/object").unlink()
    assert not gone.close_now()
    assert gone.read_now(4, 1) == b"5"
    assert (far.read_now(4, 1), far.close_now()) == (None, False)
    for stream in (far, gone):
        assert stream.read_at(4, 1) == b"5"
        stream.close()


def test_what_the_kernel_does_not_give_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with path.open("r+b") as opened:
        assert now.read(opened.fileno(), 1, 4) == b"2345"
        assert now.read(opened.fileno(), 2, 4) is None
    with path.open("wb") as unreadable:
        assert now.read(unreadable.fileno(), 0, 1) is None


def test_a_bucket_is_looked_at_again_each_second(store: PosixStore, files: Path) -> None:
    root = store._buckets.root_now("bucket")
    assert root is not None
    root.seen -= 2
    assert store.open_now("bucket", "dir/object") is None
    store.stat("bucket", "dir/object")
    found = store.open_now("bucket", "dir/object")
    assert found is not None
    found.close()


def test_only_local_file_systems_are_asked(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc stands for those that may have to ask someone."""
    fd = os.open("/proc", os.O_RDONLY)
    try:
        assert not now.local(fd, -1)
    finally:
        os.close(fd)
    assert not now.local(-1, -2)


# the gateway --------------------------------------------------------------------------------------------
class Seat:
    """Counts admissions."""

    def __init__(self) -> None:
        self.admitted = 0

    def admit(self, _user: Any) -> None:
        self.admitted += 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One object of 4 KB."""
    made = World(PosixStore(str(tmp_path / "store")))
    made.ask("PUT", "/bucket")
    made.ask("PUT", "/bucket/object", b"x" * 4096)
    made.ask("GET", "/bucket/object")
    yield made
    made.close()


def start(world: World, method: str, target: str) -> tuple[Seat, Reply | Callable[[], Reply | Sink]]:
    """What is said at once."""
    headers = Headers(world.signed("alice", method, target, b"", {}))
    call = Call("R", method, target, headers, "192.0.2.1", False, world.clock())
    call.seat = seat = Seat()  # type: ignore[assignment]
    return seat, world.gateway.start_now(call)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_object_at_hand_is_answered_at_once(world: World, method: str) -> None:
    seat, answer = start(world, method, "/bucket/object")
    assert isinstance(answer, Reply)
    assert (answer.status, seat.admitted) == (200, 1)
    if isinstance(answer.body, Download):
        answer.body.stream.close()


def test_a_refusal_that_needs_nothing_is_said_at_once(world: World) -> None:
    call = Call(
        "R", "GET", "/bucket/object", Headers([("host", "s3.test")]), "192.0.2.1", False, world.clock()
    )
    answer = world.gateway.start_now(call)
    assert isinstance(answer, Reply)
    assert answer.status == 403


@pytest.mark.parametrize("target", ["/bucket/none", "/bucket/outside", "/bucket?list-type=2", "/", "/none/x"])
def test_what_needs_more_is_admitted_once_and_done_in_a_thread(
    world: World, tmp_path: Path, target: str
) -> None:
    (tmp_path / "store/data/bucket/outside").write_bytes(b"made by others")
    seat, later = start(world, "GET", target)
    assert callable(later)
    answer = later()
    assert isinstance(answer, Reply)
    assert answer.status == (404 if "none" in target else 200)
    assert seat.admitted == 1
    if isinstance(answer.body, Download):
        answer.body.stream.close()


def test_an_answer_that_has_grown_old_is_not_used(world: World) -> None:
    """A key or a bucket is asked for again, in a thread."""
    world.index.forget()  # type: ignore[attr-defined]
    seat, later = start(world, "GET", "/bucket/object")
    assert callable(later)
    answer = later()
    assert isinstance(answer, Reply) and isinstance(answer.body, Download)
    assert (answer.status, seat.admitted) == (200, 1)
    answer.body.stream.close()


def test_writing_is_never_done_at_once(world: World) -> None:
    seat, later = start(world, "DELETE", "/bucket/object")
    assert callable(later)
    assert seat.admitted == 0
    assert world.ask("HEAD", "/bucket/object").status == 200
