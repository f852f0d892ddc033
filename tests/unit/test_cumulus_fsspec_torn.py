"""Drivers of fsspec that know no rename and copy in the open: what was acknowledged stays whole, to readers
and over the end of a server, until what replaces it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from s3_world import World

from cumulus.backends import fsspec_store
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.rest.call import Download, Reply
from cumulus.storage.api import FileStore, StorageError, Unavailable

PUBLIC = {"x-amz-acl": "public-read"}


class Died(BaseException):
    """The server's end: nothing that it would do afterwards happens."""


class OpenCopies(MemoryFileSystem):
    """A copy empties what is there and fills it in two steps; `halfway` is called between them. With `late`
    the second step comes when the file has been asked for so many times, as on a server that copies by
    itself; if the source has gone by then, it never comes."""

    protocol = "opencopies"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    halfway: Callable[[str], None] | None = None
    late = 0
    dead = False
    _pending: dict[str, list[Any]] = {}

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._alive()
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        whole = self.cat_file(path1)
        super().pipe_file(path2, whole[: len(whole) // 2])
        if OpenCopies.halfway is not None:
            OpenCopies.halfway(path2)
        self._alive()
        if OpenCopies.late:
            OpenCopies._pending[path2] = [OpenCopies.late, path1]
            return
        super().pipe_file(path2, whole)

    def info(self, path: str, **kwargs: Any) -> Any:
        self._alive()
        path = self._strip_protocol(path)
        if path in OpenCopies._pending:
            left, source = OpenCopies._pending[path]
            OpenCopies._pending[path][0] -= 1
            if left <= 0:
                del OpenCopies._pending[path]
                if source in self.store:
                    super().pipe_file(path, self.cat_file(source))
        return super().info(path, **kwargs)

    def rm_file(self, path: str) -> None:
        self._alive()
        super().rm_file(path)

    def _alive(self) -> None:
        if OpenCopies.dead:
            raise Died


fsspec.register_implementation("opencopies", OpenCopies, clobber=True)


def over(path: Path) -> FsspecStore:
    """As a server that starts has it."""
    store = FsspecStore(f"opencopies://{path}")
    assert list(store.recover()) == []
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FsspecStore]:
    """With a bucket."""
    made = over(tmp_path)
    made.create_bucket("b")
    yield made
    OpenCopies.halfway, OpenCopies.late, OpenCopies.dead = None, 0, False
    OpenCopies._pending.clear()


def put(store: FileStore, body: bytes) -> None:
    """Under the name "a"."""
    stream = store.open_write("b", "a")
    stream.write(memoryview(body))
    stream.commit(b"meta")
    stream.close()


def get(store: FileStore) -> bytes:
    """All bytes of "a"."""
    stream = store.open_read("b", "a")
    return stream.read_at(0, stream.entry.size)


def in_the_middle(act: Callable[[], None], of: str = "") -> None:
    """`act` comes once, in the middle of a copy to a path that ends in `of`."""
    done: list[bool] = []

    def halfway(path: str) -> None:
        if not done and path.endswith(of):
            done.append(True)
            act()

    OpenCopies.halfway = halfway


def die() -> None:
    """Here."""
    OpenCopies.dead = True


def test_an_object_is_whole_in_the_middle_of_a_change_of_its_acl(store: FsspecStore) -> None:
    """GET and HEAD say 200 with all bytes, and the listing has it then and afterwards."""
    world = World(store)
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"body" * 1000)
    seen: list[Any] = []

    def look() -> None:
        seen.extend((world.ask("GET", "/bkt/k").body, world.ask("HEAD", "/bkt/k").status))

    in_the_middle(look)
    assert world.ask("PUT", "/bkt/k", query="acl", headers=PUBLIC).status == 200
    assert seen == [b"body" * 1000, 200]
    assert b"<Key>k</Key>" in world.ask("GET", "/bkt").body
    assert world.ask("GET", "/bkt/k", user="").body == b"body" * 1000
    world.close()


def test_an_object_outlives_a_server_that_dies_in_a_change_of_its_acl(
    store: FsspecStore, tmp_path: Path
) -> None:
    """The next server has it, as it was."""
    world = World(store)
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"body" * 1000)
    in_the_middle(die)
    with pytest.raises(Died):
        world.ask("PUT", "/bkt/k", query="acl", headers=PUBLIC)
    OpenCopies.dead = False
    world.gateway.close()
    again = World(over(tmp_path), world.index)
    assert again.ask("GET", "/bkt/k").body == b"body" * 1000
    assert again.ask("GET", "/bkt/k", user="").status == 403
    again.close()


def test_a_download_goes_on_over_a_change_of_tags(store: FsspecStore) -> None:
    """It is not cut: its bytes have not changed."""
    world = World(store)
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"body" * 1000)
    _, reply = world.open("GET", "/bkt/k")
    assert isinstance(reply, Reply) and isinstance(reply.body, Download)
    stream = reply.body.stream
    assert stream.read_at(0, 1000) == b"body" * 250
    world.boto().put_object_tagging(Bucket="bkt", Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert stream.read_at(1000, 3000) == b"body" * 750
    assert stream.unchanged()
    stream.close()
    world.close()


@pytest.mark.parametrize("place", ["b/a", "aside/a"])
def test_what_has_a_name_is_whole_or_away_while_it_is_replaced(store: FsspecStore, place: str) -> None:
    """Never part of it, nor nothing."""
    put(store, b"old" * 1000)
    seen: list[bytes] = []

    def look() -> None:
        try:
            seen.append(get(store))
        except Unavailable as away:
            seen.append(str(away).encode())

    in_the_middle(look, place)
    put(store, b"new" * 2000)
    assert seen[0] == b"old" * 1000 or b"being replaced" in seen[0]
    assert get(store) == b"new" * 2000
    assert store.names("b", prefix=".cumulus/") == []


@pytest.mark.parametrize("place", ["b/a", "aside/a"])
def test_what_has_a_name_outlives_a_server_that_dies_while_it_is_replaced(
    store: FsspecStore, tmp_path: Path, place: str
) -> None:
    """The next server puts it back."""
    put(store, b"old" * 1000)
    in_the_middle(die, place)
    with pytest.raises(Died):
        put(store, b"new" * 1000)
    OpenCopies.dead = False
    again = over(tmp_path)
    assert get(again) == b"old" * 1000
    assert again.names("b", prefix=".cumulus/") == []


def test_a_copy_that_goes_on_behind_is_waited_for(store: FsspecStore) -> None:
    """It is acknowledged when it is whole, and its source is there until then."""
    OpenCopies.late = 5
    put(store, b"old" * 1000)
    assert get(store) == b"old" * 1000
    put(store, b"new" * 1000)
    assert get(store) == b"new" * 1000


def test_a_copy_that_never_ends_is_an_error(store: FsspecStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was there stays."""
    put(store, b"old" * 1000)
    monkeypatch.setattr(fsspec_store, "COPY_S", 0.2, raising=False)
    OpenCopies.late = 10**9
    with pytest.raises(StorageError, match="not whole"):
        put(store, b"new" * 1000)
    OpenCopies.late = 0
    OpenCopies._pending.clear()
    assert get(store) == b"old" * 1000
    assert store.names("b", prefix=".cumulus/") == []
