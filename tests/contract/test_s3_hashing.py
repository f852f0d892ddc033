"""Files of others are hashed once, whoever may write them, and beside all other work in the background."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from s3_world import World

from cumulus.auth import lifecycle
from cumulus.ops import find as finding
from cumulus.ops.jobs import Jobs, hash_waiting


def work(world: World) -> None:
    """All that is to be done in the background."""
    Jobs(world.site, lifecycle).run()


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def etags(world: World) -> dict[str, str]:
    """As a listing has them."""
    found = world.boto().list_objects_v2(Bucket="bkt").get("Contents", ())
    return {one["Key"]: one["ETag"].strip('"') for one in found}


@pytest.mark.parametrize("versions", [False, True])
def test_files_that_may_only_be_read_are_hashed_once(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, versions: bool
) -> None:
    """A directory of others that the service may read: no record can be written, so the index keeps the sums.
    GET, HEAD and listings have the same ETag, and no scan and no request reads the file for it again."""
    monkeypatch.setattr(finding, "HASH_AT_ONCE", 8)
    if versions:
        status = {"Status": "Enabled"}
        world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration=status)
    bodies = {"small": b"few", "large": b"rather more bytes"}
    for name, body in bodies.items():
        (data / name).write_bytes(body)
        (data / name).chmod(0o444)
    reads: Counter[str] = Counter()
    real = world.store.open_read

    def open_read(bucket: str, name: str, token: bytes | None = None) -> Any:
        reads[name] += not name.startswith(".cumulus/")
        return real(bucket, name, token)

    world.store.open_read = open_read  # type: ignore[method-assign]
    sums = {name: md5(body) for name, body in bodies.items()}
    with by_the_rules():
        for _ in range(4):
            work(world)
        assert +reads == {"small": 1, "large": 1}
        assert etags(world) == sums
        for name in bodies:
            assert world.ask("HEAD", f"/bkt/{name}").headers["etag"] == f'"{sums[name]}"'
        assert +reads == {"small": 1, "large": 1}
        (data / "large").chmod(0o644)
        (data / "large").write_bytes(b"other bytes of others")
        (data / "large").chmod(0o444)
        assert world.ask("HEAD", "/bkt/large").headers["etag"].endswith('-0"')
        for _ in range(2):
            work(world)
        assert etags(world)["large"] == md5(b"other bytes of others")


def test_a_file_that_takes_hours_to_hash_keeps_nothing_from_its_turn(world: World, data: Path) -> None:
    """Other files come into listings, the database is told what it missed, and the sum is there in the
    end."""
    (data / "large").write_bytes(b"terabytes")
    go_on, read = threading.Event(), threading.Event()
    real = world.store.open_read

    def open_read(bucket: str, name: str, token: bytes | None = None) -> Any:
        if name == "large":
            go_on.wait(30)
            read.set()
        return real(bucket, name, token)

    world.store.open_read = open_read  # type: ignore[method-assign]
    told: list[bool] = []
    settle = world.site.told.settle
    world.site.told.settle = lambda: (told.append(read.is_set()), settle())
    try:
        work(world)
        work(world)
        (data / "new").write_bytes(b"x")
        work(world)
        assert "new" in etags(world) and not read.is_set() and told == [False] * 3
        world.site.hash_later("bkt", "new")
    finally:
        go_on.set()
    assert read.wait(10)
    end = time.monotonic() + 30
    while etags(world)["large"] != md5(b"terabytes"):
        assert time.monotonic() < end
        hash_waiting(world.site)
    del world.store.open_read


def test_who_scans_hashes_a_large_file_and_not_each_worker(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that no scan has seen yet, whoever is asked for it."""
    monkeypatch.setattr(finding, "HASH_AT_ONCE", 4)
    (data / "large").write_bytes(b"many bytes")
    assert world.ask("HEAD", "/bkt/large").headers["etag"].endswith('-0"')
    assert len(world.site.unhashed) == 1
    world.site.unhashed.clear()
    work(world)
    assert len(world.site.unhashed) == 1
    world.site.unhashed.clear()  # as in a process that does not scan
    assert world.ask("HEAD", "/bkt/large").headers["etag"].endswith('-0"')
    assert len(world.site.unhashed) == 0
    work(world)
    work(world)
    assert world.ask("HEAD", "/bkt/large").headers["etag"] == f'"{md5(b"many bytes")}"'


def test_a_name_waits_once_to_be_hashed(world: World) -> None:
    """However often a large file is asked for: it takes no other's place."""
    for _ in range(20_000):
        world.site.hash_later("bkt", "large")
    world.site.hash_later("bkt", "other")
    assert len(world.site.unhashed) == 2
