"""Many files at once: what a scan takes in is what would come of it one by one, and sidecars are looked for
only where there are some."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from posix_disk import NoXattr
from s3_world import People, World

from cumulus.backends.posix import sidecar
from cumulus.backends.posix.store import PosixStore
from cumulus.index.api import Index, Put, Remove, Row
from cumulus.index.registry import make_index
from cumulus.index.sqlite import MANY
from cumulus.model import Acl, Bucket
from cumulus.ops import jobs
from cumulus.ops.jobs import Done, rescan
from cumulus.storage.api import Changed


def row(key: str, stamp: int, version: str = "null", marker: bool = False) -> Row:
    """One version of an object."""
    return Row(
        bucket="b",
        key=key,
        version=version,
        stamp=stamp,
        name="" if marker else key,
        token=b"%d" % stamp,
        size=0 if marker else stamp,
        etag="e",
        modified_ns=stamp,
        owner="o",
        marker=marker,
    )


def fill(index: Index, rng: random.Random) -> None:
    """A past: objects, older versions, delete markers, removals."""
    index.add_bucket(Bucket(name="b", owner="o", created_ns=1, acl=Acl(owner="o")))
    for number in range(0, 200, 3):
        key = f"k{number:04d}"
        index.apply([Put(row=row(key, 50, "v1"), keep=True)])
        kind = rng.randrange(4)
        if kind == 1:
            index.apply([Put(row=row(key, 60, "v2"), keep=True)])
        elif kind == 2:
            index.apply([Put(row=row(key, 60, "v2", marker=True), keep=True)])
        elif kind == 3:
            index.apply([Remove(bucket="b", key=key, stamp=70, version="v1")])


def state(index: Index) -> list[object]:
    """All rows, and the ledger."""
    found = index.usage("bucket", "b")
    return [*index.page_versions("b", limit=1000).rows, found.bytes, found.objects]


@pytest.mark.parametrize("count", [MANY, 51, 200])
def test_many_new_rows_at_once_are_what_they_are_one_by_one(tmp_path: Path, seed: int, count: int) -> None:
    """Beside keys that have a past, whose rule of the larger stamp holds."""
    rng = random.Random(seed)
    changes = [Put(row=row(f"k{n:04d}", rng.choice((40, 65, 80)))) for n in rng.sample(range(200), count)]
    states = []
    for name in ("one", "many"):
        index = make_index(f"sqlite:///{tmp_path}/{name}", directory=People())[0]
        fill(index, random.Random(seed))
        if name == "many":
            index.apply_soon(changes)
        else:
            for change in changes:
                index.apply([change])
        index.apply([*changes, *changes])  # twice is once
        states.append(state(index))
        index.close()
    assert states[0] == states[1]


def outside(tmp_path: Path, count: int) -> World:
    """A bucket with files that others made."""
    world = World(PosixStore(str(tmp_path / "store")))
    world.ask("PUT", "/bkt")
    for number in range(count):
        directory = tmp_path / f"store/data/bkt/d{number % 3}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number:03d}").write_text("x" * number)
    return world


def test_a_scan_of_several_pages_takes_in_all_and_removes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is read while the one before is taken in."""
    monkeypatch.setattr(jobs, "SCANNED", 40)
    world = outside(tmp_path, 130)
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert (done.renewed, done.gone) == (130, 0)
    usage = world.index.usage("bucket", "bkt")
    assert (usage.objects, usage.bytes) == (130, sum(range(130)))
    for path in (tmp_path / "store/data/bkt/d1").iterdir():
        path.unlink()
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert (done.renewed, done.gone) == (0, 43)
    assert world.index.usage("bucket", "bkt").objects == 87
    world.close()


def test_a_scan_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is the page that was read ahead."""
    monkeypatch.setattr(jobs, "SCANNED", 40)
    world = outside(tmp_path, 100)
    real = world.store.names
    calls: list[str] = []

    def names(bucket: str, after: str = "", prefix: str = "", limit: int = 0) -> object:
        calls.append(after)
        if len(calls) == 2:
            raise Changed("meanwhile")
        return real(bucket, after, prefix, limit)

    world.store.names = names  # type: ignore[assignment]
    with pytest.raises(Changed):
        rescan(world.site, world.site.bucket("bkt"), Done())
    assert world.index.usage("bucket", "bkt").objects == 40
    world.store.names = real  # type: ignore[method-assign]
    world.close()


def test_the_first_sidecar_of_a_bucket_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was known that there are none; marks of directories are no sidecars."""
    store = PosixStore(str(tmp_path / "store"), files=NoXattr())
    store.create_bucket("b")
    (tmp_path / "store/data/b/theirs").write_text("x")
    inside = tmp_path / "store/data/b/.cumulus/meta"
    (inside / "dir-0-0").touch()
    os.utime(inside, ns=(1, 10**18))
    looked: list[str] = []
    real = sidecar.load
    monkeypatch.setattr(sidecar, "load", lambda root, file: looked.append(file) or real(root, file))
    for _ in range(2):
        assert [entry.meta for entry in store.names("b")] == [None]
    assert looked == []
    stream = store.open_write("b", "ours", 1)
    stream.write(memoryview(b"x"))
    stream.commit(b"meta")
    stream.close()
    assert [(entry.name, entry.meta) for entry in store.names("b")] == [("ours", b"meta"), ("theirs", None)]
    assert looked
    store.close()


def test_what_is_no_plain_file_any_more_is_not_listed(tmp_path: Path) -> None:
    """Names are kept between pages as long as their directory shows no change."""
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")
    top = tmp_path / "store/data/b"
    for name in ("a", "b", "c", "d"):
        (top / name).write_text("x")
    os.utime(top, ns=(1, 10**18))
    assert len(store.names("b")) == 4
    (top / "a").unlink()
    (top / "b").unlink()
    os.mkfifo(top / "b")
    (top / "c").unlink()
    (top / "c").symlink_to("d")
    os.utime(top, ns=(1, 10**18))
    assert [entry.name for entry in store.names("b")] == ["d"]
    store.close()
