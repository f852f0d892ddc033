"""Many bodies over fsspec: none of their directories becomes so large that storage refuses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from s3_world import World

from cumulus.backends.fsspec_store import FsspecStore
from cumulus.ops import leftovers, publish
from cumulus.ops.names import BODIES

MOST = 100
DAY = 24 * 3600 * 10**9


class Narrow(MemoryFileSystem):
    """Refuses a directory of more entries, as HDFS does from a million on."""

    protocol = "narrow"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]

    def _check_room(self, path: str) -> None:
        parent = self._strip_protocol(path).rpartition("/")[0]
        if parent and len(MemoryFileSystem.ls(self, parent, detail=False)) >= MOST:
            raise OSError("The directory item limit is exceeded")

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._check_room(path2)
        one, two = self._strip_protocol(path1), self._strip_protocol(path2)
        self.store[two] = self.store.pop(one)


fsspec.register_implementation("narrow", Narrow, clobber=True)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """With a bucket."""
    monkeypatch.setattr(Narrow, "store", {})
    monkeypatch.setattr(Narrow, "pseudo_dirs", [""])
    made = World(FsspecStore(f"narrow://{tmp_path}"))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def bodies(world: World) -> list[str]:
    """The names of all that are there."""
    return [entry.name for entry in world.store.names("bkt", prefix=BODIES)]


def test_objects_lie_in_many_directories(world: World) -> None:
    """Whose names the bodies' own begin with."""
    for number in range(300):
        assert world.ask("PUT", f"/bkt/{number}", b"body").status == 200, number
    names = bodies(world)
    assert names == sorted(names) and len(names) == 300
    for name in names:
        directory, _, body = name.removeprefix(BODIES).partition("/")
        assert len(body) == 32 and body[:2] == directory
    assert {world.ask("GET", f"/bkt/{number}").body for number in range(300)} == {b"body"}


def test_bodies_of_an_older_version_go_on_counting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows hold names. What clears up finds both kinds, and lists each directory once."""
    with monkeypatch.context() as then:
        then.setattr(publish, "body_name", lambda ids=iter(range(20)): f"{BODIES}{next(ids):032x}")
        for number in range(10):
            assert world.ask("PUT", f"/bkt/old{number}", b"old").status == 200
    for number in range(10):
        assert world.ask("PUT", f"/bkt/new{number}", b"new").status == 200
    for name in (f"{BODIES}{'f' * 32}", f"{BODIES}ee/{'e' * 32}"):
        world.store.open_write("bkt", name).commit(b"")
    assert len(bodies(world)) == 22
    monkeypatch.setattr(leftovers, "PAGE", 3)
    listed: Counter[str] = Counter()
    ask = Narrow.ls
    monkeypatch.setattr(Narrow, "ls", lambda fs, path, **more: listed.update([path]) or ask(fs, path, **more))
    world.skew_ns = 10 * DAY
    assert leftovers.sweep(world.site, world.site.bucket("bkt"), 60.0) == 2
    world.skew_ns = 0
    assert {count for path, count in listed.items() if BODIES.strip("/") in path} == {1}
    world.site.empty_bin(all_of_it=True)
    assert len(bodies(world)) == 20
    for kind in (b"old", b"new"):
        for number in range(10):
            assert world.ask("GET", f"/bkt/{kind.decode()}{number}").body == kind
            assert world.ask("DELETE", f"/bkt/{kind.decode()}{number}").status == 204
    world.site.empty_bin(all_of_it=True)
    assert bodies(world) == []
    assert world.ask("DELETE", "/bkt").status == 204
    assert not world.store._is_dir(world.store.path("bkt"))


def test_removing_a_body_lists_no_directory_and_removes_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may be about to come there."""
    assert world.ask("PUT", "/bkt/k", b"body").status == 200
    (name,) = bodies(world)
    asked: list[str] = []
    for call in ("ls", "rmdir"):
        real = getattr(Narrow, call)
        monkeypatch.setattr(
            Narrow, call, lambda fs, path, *w, real=real, **o: asked.append(path) or real(fs, path, *w, **o)
        )
    world.store.delete("bkt", name)
    assert asked == []
