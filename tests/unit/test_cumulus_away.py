"""Buckets whose directory is not there: nobody takes them for empty."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_world import World

from cumulus.admin.doctor import rebuild
from cumulus.auth import lifecycle
from cumulus.backends.posix import paths, removal
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.model import Acl, Bucket
from cumulus.ops.jobs import Jobs
from cumulus.storage.api import BadName, NoBucket, Unavailable


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Alice's bucket `plain`, and `disk`, a directory elsewhere, with versions. Whether they are there is not
    believed for a second, as it is else."""
    monkeypatch.setattr(paths, "FRESH_S", -1.0)
    made = World(PosixStore(str(tmp_path / "store")))
    made.boto().create_bucket(Bucket="plain")
    (tmp_path / "disk").mkdir()
    owner = made.people.users["alice"].id
    path = str(tmp_path / "disk")
    made.index.add_bucket(Bucket(name="disk", owner=owner, created_ns=1, acl=Acl(owner=owner), path=path))
    made.store.create_bucket("disk", path)
    for bucket in ("plain", "disk"):
        enabled = {"Status": "Enabled"}
        made.boto().put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
        for body in (b"older", b"newer"):
            made.boto().put_object(Bucket=bucket, Key="k", Body=body)
    yield made
    made.close()


def rows(world: World, bucket: str) -> list[Any]:
    """All versions that the index has."""
    return list(world.index.page_versions(bucket).rows)


@pytest.mark.parametrize("bucket", ["plain", "disk"])
def test_the_index_keeps_what_it_knows_of_a_bucket_that_is_away(
    world: World, tmp_path: Path, bucket: str
) -> None:
    """Whatever is asked, done in the background, or made anew by the doctor."""
    place = tmp_path / "disk" if bucket == "disk" else tmp_path / "store/data/plain"
    before = rows(world, bucket)
    place.rename(tmp_path / "away")
    if bucket == "disk":
        place.mkdir()
    wanted = 503 if bucket == "disk" else 404
    for method, query in (
        ("GET", ""),
        ("DELETE", ""),
        *((m, {"versionId": v.version}) for m in ("GET", "DELETE") for v in before),
    ):
        assert world.ask(method, f"/{bucket}/k", query=query).status == wanted, (method, query)
    jobs = Jobs(world.site, lifecycle)
    with contextlib.suppress(NoBucket, Unavailable):
        jobs.run()
    found = world.index.bucket(bucket)
    assert found is not None
    with pytest.raises((NoBucket, Unavailable)):
        rebuild(world.index, world.store, found)
    assert rows(world, bucket) == before
    if bucket == "disk":
        assert list(place.iterdir()) == []
        place.rmdir()
    (tmp_path / "away").rename(place)
    assert world.ask("GET", f"/{bucket}/k").body == b"newer"
    jobs.run()
    assert rows(world, bucket) == before


def test_a_disk_that_goes_between_two_looks_takes_no_rows_along(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that has begun ends with the error."""
    before = rows(world, "disk")
    walk = world.store.walk

    def walked(bucket: str, limit: int = 1000) -> Iterator[list[str]]:
        list(walk(bucket, limit))
        if bucket == "disk":
            (tmp_path / "disk").rename(tmp_path / "away")
        return iter([])

    monkeypatch.setattr(world.store, "walk", walked)
    with pytest.raises(Unavailable):
        Jobs(world.site, lifecycle).run()
    assert rows(world, "disk") == before


def test_a_bucket_that_was_let_go_halfway_is_removed_by_the_next_attempt(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory has lost `.cumulus` by then, or has it still."""
    for version in rows(world, "disk"):
        world.boto().delete_object(Bucket="disk", Key="k", VersionId=version.version)

    def cut(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(removal, "clear", cut)
        assert world.ask("DELETE", "/disk").status == 503
    assert world.ask("DELETE", "/disk").status == 204
    assert world.index.bucket("disk") is None


class Unwritable(Files):
    """A file system that is mounted read-only."""

    def make_dir(self, directory: int, name: str, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_directory_that_cannot_be_written_is_a_bucket_while_something_is_in_it(tmp_path: Path) -> None:
    """Nothing of ours is in it; empty, it is a bare mount point."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    store = PosixStore(str(tmp_path / "store"), files=Unwritable())
    with pytest.raises(BadName, match="is empty and cannot be written"):
        store.create_bucket("climate", str(theirs))
    (theirs / "file").write_text("x")
    store.create_bucket("climate", str(theirs))
    store.create_bucket("climate", str(theirs))
    again = PosixStore(str(tmp_path / "store"))
    for one in (store, again):
        assert [entry.name for entry in one.names("climate")] == ["file"]
        one.check_bucket("climate")
    theirs.rename(tmp_path / "away")
    theirs.mkdir()
    for one in (store, again):
        with pytest.raises(Unavailable, match="is empty; is its disk mounted"):
            one.stat("climate", "file")
    assert list(theirs.iterdir()) == []
    theirs.rmdir()
    (tmp_path / "away").rename(theirs)
    assert store.stat("climate", "file").size == 1
    store.close()
    again.close()


def test_a_storage_that_goes_while_it_serves_is_unavailable(world: World, tmp_path: Path) -> None:
    """Not without buckets."""
    (tmp_path / "store/data").rename(tmp_path / "away")
    assert world.ask("GET", "/plain/k").status == 503
    (tmp_path / "away").rename(tmp_path / "store/data")
    assert world.ask("GET", "/plain/k").body == b"newer"
