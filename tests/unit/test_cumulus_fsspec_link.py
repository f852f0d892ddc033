"""Drivers of fsspec that hold one conversation with a server, as those of SFTP and FTP do, and servers that
go away: nobody waits for ever, what is away is not said to be gone, and what comes back is served."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from s3_world import World

from cumulus.backends import fsspec_link
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.ops import leftovers
from cumulus.storage.api import StorageError, Unavailable
from cumulus.storage.names import without_secret


class Talking(MemoryFileSystem):
    """Each instance is a connection, of the `age` that the server had then; the server has ended those of
    before. Two calls at once on one are counted in `mixed`. `away`: nothing is answered, to new ones as
    well. Errors and `exists` are as those of SFTP; like it, it knows no options of fsspec's own."""

    protocol = "talking"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    server_age = mixed = made = 0
    away = False

    def __init__(self, **options: Any) -> None:
        if set(options) - {"skip_instance_cache"}:
            raise TypeError(f"connect() got an unexpected keyword argument {options}")
        super().__init__()
        self._alive()
        Talking.made += 1
        self.age = Talking.server_age
        self.busy = 0

    def _alive(self) -> None:
        if Talking.away:
            raise OSError("[Errno None] Unable to connect to port 22")

    def turn(self, work: Any) -> Any:
        """One call over the connection."""
        self._alive()
        if self.age != Talking.server_age:
            raise RuntimeError("Server connection dropped")
        me, before = threading.get_ident(), self.busy
        Talking.mixed += before not in (0, me)
        self.busy = me
        try:
            time.sleep(0.001)
            return work()
        finally:
            self.busy = before

    def info(self, path: str, **options: Any) -> Any:
        found = self.turn(lambda: super(Talking, self).info(path))
        return {**found, "mtime": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}

    def exists(self, path: str, **options: Any) -> bool:
        return AbstractFileSystem.exists(self, path)

    isfile = AbstractFileSystem.isfile
    isdir = AbstractFileSystem.isdir

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self.turn(lambda: super(Talking, self).ls(path, detail=detail))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        return bytes(self.turn(lambda: self.store[self._strip_protocol(path)].getvalue()[start:end]))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        one, two = self._strip_protocol(path1), self._strip_protocol(path2)
        self.turn(lambda: self.store.__setitem__(two, self.store.pop(one)))

    def rm_file(self, path: str) -> None:
        self.turn(lambda: super(Talking, self).rm_file(path))

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Handle(self, self.turn(lambda: super(Talking, self).open(path, mode, **options)))


class _Handle:
    """A file that belongs to one connection."""

    def __init__(self, fs: Talking, file: Any) -> None:
        self._fs, self._file = fs, file

    def write(self, data: bytes) -> None:
        self._fs.turn(lambda: self._file.write(data))

    def close(self) -> None:
        self._fs.turn(self._file.close)


fsspec.register_implementation("talking", Talking, clobber=True)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server that answers."""
    monkeypatch.setattr(fsspec_link, "ALONE", [*fsspec_link.ALONE, __name__])
    monkeypatch.setattr(fsspec_link, "AWAY_S", 0.0)
    monkeypatch.setattr(Talking, "store", {})
    monkeypatch.setattr(Talking, "pseudo_dirs", [""])
    Talking.mixed = Talking.made = 0
    yield f"talking://{tmp_path}"
    Talking.away = False


def put(store: FsspecStore, name: str, body: bytes) -> None:
    """An object in two pieces."""
    stream = store.open_write("b", name)
    stream.write(memoryview(body[:3]))
    stream.write(memoryview(body[3:]))
    stream.commit(b"meta")


def get(store: FsspecStore, name: str) -> bytes:
    """All its bytes."""
    stream = store.open_read("b", name)
    return stream.read_at(0, stream.entry.size)


def test_a_connection_has_one_call_at_a_time(url: str) -> None:
    """Of twenty threads, which share a few connections; each has its own bytes."""
    store = FsspecStore(url)
    store.create_bucket("b")
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                body = f"{number} {turn} ".encode() * 5
                put(store, f"dir/{number}", body)
                if get(store, f"dir/{number}") != body:
                    wrong.append(number)
        except BaseException as error:  # told below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert Talking.mixed == 0
    assert 1 < Talking.made <= fsspec_link.MOST
    assert len(store.names("b")) == 20


def test_what_is_asked_after_a_server_was_restarted(url: str) -> None:
    """Reads and new objects hear nothing of it. What was on its way fails, and nothing else."""
    store = FsspecStore(url)
    store.create_bucket("b")
    put(store, "a", b"body of a")
    begun = store.open_write("b", "c")
    for _ in range(2):
        Talking.server_age += 1
        assert get(store, "a") == b"body of a"
    with pytest.raises(Unavailable, match="dropped"):
        begun.write(memoryview(b"x"))
    begun.abort()
    Talking.server_age += 1
    put(store, "b", b"body of b")
    assert [entry.name for entry in store.names("b")] == ["a", "b"]


def test_a_server_that_is_away_says_so_and_is_served_when_it_is_back(url: str) -> None:
    """Nothing is said to be missing; the answer is 503, and afterwards all is there."""
    store = FsspecStore(url)
    world = World(store)
    world.boto().create_bucket(Bucket="bkt")
    assert world.ask("PUT", "/bkt/k", b"body").status == 200
    Talking.away = True
    for method, path in (("PUT", "/bkt/new"), ("GET", "/bkt/k"), ("DELETE", "/bkt/k"), ("PUT", "/bkt2")):
        answer = world.ask(method, path, b"x" if path == "/bkt/new" else b"")
        assert (answer.status, method, path) == (503, method, path)
    for asked in (store.has_buckets, lambda: store.names("bkt"), lambda: store.delete_bucket("bkt")):
        with pytest.raises(Unavailable):
            asked()
    Talking.away = False
    Talking.server_age += 1
    assert world.ask("GET", "/bkt/k").body == b"body"
    assert world.ask("PUT", "/bkt/new", b"x").status == 200
    world.close()


def test_a_server_that_is_away_at_the_start_is_told_without_its_password(url: str) -> None:
    """As `cumulus serve` tells it, in one line."""
    Talking.away = True
    with pytest.raises(StorageError, match="Unable to connect") as told:
        FsspecStore(url.replace("://", "://me:secret@host"))
    assert "secret" not in str(told.value)
    assert without_secret("sftp://me:secr@et@host/dir@2") == "sftp://host/dir@2"
    assert without_secret("sftp://host/dir@2") == "sftp://host/dir@2"


def test_a_file_of_others_is_listed(url: str) -> None:
    """SFTP says when it was changed as a date."""
    store = FsspecStore(url)
    store.create_bucket("b")
    store.fs.pipe_file(f"{store.path('b')}/theirs", b"their bytes")
    (entry,) = store.names("b")
    assert (entry.name, entry.size, entry.meta) == ("theirs", 11, None)
    assert entry.mtime_ns == 1767312000 * 10**9


def test_what_others_put_beside_drafts_keeps_nothing(tmp_path: Path) -> None:
    """A file and a directory of theirs in one bucket, and a draft of a dead server in each."""
    store = FsspecStore(f"file://{tmp_path}")
    drafts = []
    for bucket in ("a", "b"):
        store.create_bucket(bucket)
        place = tmp_path / bucket / ".cumulus" / "tmp"
        drafts.append(place / f"{time.time_ns() - 10**12:x}-0123456789ab")
        drafts[-1].write_bytes(b"left")
        os.utime(drafts[-1], (time.time() - 1000,) * 2)
    (tmp_path / "a/.cumulus/tmp/.nfs0001").write_bytes(b"")
    (tmp_path / "a/.cumulus/tmp/0-dir").mkdir()
    (tmp_path / "a/.cumulus/tmp/0-0123456789ab").mkdir()
    assert store.sweep(900) == 2
    assert not any(draft.exists() for draft in drafts)
    assert len(list((tmp_path / "a/.cumulus/tmp").iterdir())) == 3


def test_an_upload_that_takes_days_keeps_its_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep knows it by its last bytes, not by its name, which is as old as the upload."""
    store = FsspecStore(f"file://{tmp_path}")
    store.create_bucket("b")
    began = time.time_ns() - 3 * 86400 * 10**9
    with monkeypatch.context() as then:
        then.setattr("cumulus.backends.fsspec_writer.time.time_ns", lambda: began)
        stream = store.open_write("b", "k")
    stream.write(memoryview(bytes(1 << 20)))
    assert store.sweep(86400) == 0
    stream.commit(b"")
    assert store.stat("b", "k").size == 1 << 20


def test_clearing_up_lists_each_directory_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names are in it: a page more was the whole list once more."""
    store = FsspecStore(url)
    world = World(store)
    world.boto().create_bucket(Bucket="bkt")
    for key in "abcdefg":
        assert world.ask("PUT", f"/bkt/{key}", b"body").status == 200
    monkeypatch.setattr(leftovers, "PAGE", 2)
    listed: list[str] = []
    ask = Talking.ls
    monkeypatch.setattr(Talking, "ls", lambda fs, path, **more: listed.append(path) or ask(fs, path, **more))
    assert leftovers.sweep(world.site, world.site.bucket("bkt"), 0.0) == 0
    bodies = [path for path in listed if path.endswith("/bodies")]
    assert len(bodies) == 1
    world.close()


def test_a_removal_lists_no_directory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bodies of all objects may be beside what goes; of names of people the directories go all the same
    when nothing is left in them."""
    store = FsspecStore(url)
    store.create_bucket("b")
    for name in ("dir/sub/a", "dir/b", ".cumulus/bodies/1", ".cumulus/bodies/2"):
        put(store, name, b"body")
    listed: list[str] = []
    ask = Talking.ls
    monkeypatch.setattr(Talking, "ls", lambda fs, path, **more: listed.append(path) or ask(fs, path, **more))
    store.delete("b", ".cumulus/bodies/1")
    assert not [path for path in listed if path.endswith("/bodies")]
    store.delete("b", "dir/sub/a")
    assert not store._is_dir(store.path("b", "dir/sub")) and get(store, "dir/b") == b"body"
    store.delete("b", "dir/b")
    store.delete("b", ".cumulus/bodies/2")
    assert not store._is_dir(store.path("b", "dir"))
    store.delete_bucket("b")
    assert not store._is_dir(store.path("b"))
