"""DeleteBucket beside what else happens to the bucket: what was acknowledged is there, or nothing was."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from s3_world import World

from cumulus.backends.fsspec_store import FsspecStore
from cumulus.backends.memory import MemoryStore
from cumulus.backends.posix.store import PosixStore
from cumulus.ops import publish
from cumulus.storage.api import FileStore

STORES: dict[str, Callable[[Path], FileStore]] = {
    "posix": lambda path: PosixStore(str(path / "store")),
    "memory": lambda _: MemoryStore(),
    "fsspec file": lambda path: FsspecStore(f"file://{path}/fsspec"),
    "fsspec memory": lambda path: FsspecStore(f"memory://{path}"),
}


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A service with a bucket."""
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def once(patch: pytest.MonkeyPatch, target: Any, name: str, act: Callable[[], Any], *, after: bool) -> None:
    """`act` happens once, before or after the first call of a method."""
    real, done = getattr(target, name), list[bool]()

    def wrapped(*words: Any, **options: Any) -> Any:
        if not done and not after:
            done.append(True)
            act()
        result = real(*words, **options)
        if not done:
            done.append(True)
            act()
        return result

    patch.setattr(target, name, wrapped)


def get(world: World, key: str) -> bytes | str:
    """A body, or the code of the refusal."""
    answer = world.ask("GET", f"/bkt/{key}")
    return answer.body if answer.status == 200 else answer.code


@pytest.mark.parametrize("key", ["plain", "odd//key"])
def test_a_put_just_before_the_bucket_goes_is_kept_or_refused(
    world: World, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After DeleteBucket has looked into the index, before it removes anything from storage."""
    puts = list[int]()
    once(
        monkeypatch,
        world.store,
        "delete_bucket",
        lambda: puts.append(world.ask("PUT", f"/bkt/{key}", b"body").status),
        after=False,
    )
    answer = world.ask("DELETE", "/bkt")
    if puts == [200]:
        assert (answer.status, answer.code) == (409, "BucketNotEmpty")
        assert get(world, key) == b"body"
        assert world.ask("DELETE", f"/bkt/{key}").status == 204
        assert world.ask("DELETE", "/bkt").status == 204
    else:
        assert puts == [404] and answer.status == 204
    assert world.ask("PUT", "/bkt").status == 200
    assert get(world, key) == "NoSuchKey"
    assert world.boto().list_objects_v2(Bucket="bkt")["KeyCount"] == 0
    assert world.index.usage("bucket", "bkt").bytes == 0


def test_a_body_stored_when_its_bucket_went_is_not_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between storage and the index; where storage keeps the bucket for it, it is acknowledged."""
    removed = list[int]()
    once(
        monkeypatch,
        publish,
        "row_of",
        lambda: removed.append(world.ask("DELETE", "/bkt").status),
        after=True,
    )
    status = world.ask("PUT", "/bkt/k", b"body").status
    assert (status, removed) in [(200, [409]), (404, [204])]
    assert world.index.usage("user", "alice").bytes == (4 if status == 200 else 0)
    assert world.ask("PUT", "/bkt").status == (409 if status == 200 else 200)
    assert get(world, "k") == (b"body" if status == 200 else "NoSuchKey")


def test_a_version_and_a_delete_marker_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker has no other place than among the versions."""
    world = World(PosixStore(str(tmp_path / "store")))
    assert world.ask("PUT", "/bkt").status == 200
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    made = list[Any]()
    once(
        monkeypatch,
        world.store,
        "delete_bucket",
        lambda: made.append(world.ask("DELETE", "/bkt/k").headers["x-amz-version-id"]),
        after=False,
    )
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"
    assert world.boto().list_object_versions(Bucket="bkt")["DeleteMarkers"][0]["VersionId"] == made[0]
    query = {"versionId": made[0]}
    assert world.ask("DELETE", "/bkt/k", query=query).status == 204
    assert world.ask("DELETE", "/bkt").status == 204
    world.close()


def test_a_bucket_made_while_the_former_one_ends_to_go_works(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is taken away between the two steps of CreateBucket."""
    assert world.ask("DELETE", "/bkt").status == 204
    real = world.store.delete_bucket
    once(monkeypatch, world.store, "create_bucket", lambda: real("bkt"), after=True)
    assert world.ask("PUT", "/bkt").status == 200
    assert world.ask("PUT", "/bkt/k", b"body").status == 200
    assert get(world, "k") == b"body"


def test_parts_left_of_an_upload_do_not_keep_a_bucket(world: World) -> None:
    """What a server that died could not remove."""
    stream = world.store.open_write("bkt", ".cumulus/parts/gone/1.etag")
    stream.write(memoryview(b"left"))
    stream.commit(b"")
    stream.close()
    assert world.ask("DELETE", "/bkt").status == 204


def test_an_odd_object_that_the_index_has_lost_keeps_the_bucket_and_is_listed(tmp_path: Path) -> None:
    """So that whoever may not remove the bucket sees why."""
    world = World(PosixStore(str(tmp_path / "store")))
    assert world.ask("PUT", "/bkt").status == 200
    assert world.ask("PUT", "/bkt/odd//key", b"body").status == 200
    world.index.sync()
    with world.index._readers.run() as run:  # type: ignore[attr-defined]
        path = run("PRAGMA database_list").fetchone()[2]
    lose(path)
    assert world.boto().list_objects_v2(Bucket="bkt")["KeyCount"] == 0
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"
    assert [one["Key"] for one in world.boto().list_objects_v2(Bucket="bkt")["Contents"]] == ["odd//key"]
    assert get(world, "odd//key") == b"body"
    world.close()


@pytest.mark.parametrize("key", ["k", "deep/er/k", "odd//key", "version"])
def test_what_an_older_database_does_not_know_goes_to_nobody(tmp_path: Path, key: str) -> None:
    """Its bucket was made after the backup that was restored; an empty directory is anybody's."""
    world = World(PosixStore(str(tmp_path / "store")))
    assert world.ask("PUT", "/later").status == 200
    if key == "version":
        enable = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        assert world.ask("PUT", "/later", enable, query="versioning").status == 200
    assert world.ask("PUT", f"/later/{key}", b"alice's").status == 200
    if key == "version":
        assert world.ask("DELETE", f"/later/{key}").status == 204
    forget(world, "later")
    for user in ("bob", "alice"):
        refused = world.ask("PUT", "/later", user=user)
        assert (refused.status, refused.code) == (409, "BucketAlreadyExists")
        assert b"cumulus bucket add" in refused.body
        assert world.ask("GET", "/later", user=user).code == "NoSuchBucket"
    owner = world.ask("PUT", "/other") and world.index.bucket("other")
    assert owner is not None
    world.index.add_bucket(msgspec.structs.replace(owner, name="later"))  # as an administrator's command
    if key.endswith("k"):  # the others come back when the index is made anew
        assert world.ask("GET", f"/later/{key}").body == b"alice's"
    (tmp_path / "store/data/empty/.cumulus").mkdir(parents=True)
    assert world.ask("PUT", "/empty", user="bob").status == 200
    world.close()


@pytest.mark.parametrize("kind", ["posix", "fsspec file"])
@pytest.mark.parametrize("file", ["a", "deep/er/a"])
def test_a_directory_that_others_put_there_goes_to_nobody(tmp_path: Path, kind: str, file: str) -> None:
    """It has never been a bucket, and no mark of one is in it."""
    world = World(STORES[kind](tmp_path))
    root = tmp_path / ("store/data" if kind == "posix" else "fsspec")
    (root / "climate" / file).parent.mkdir(parents=True)
    (root / "climate" / file).write_bytes(b"theirs")
    (root / "empty/dir").mkdir(parents=True)
    for user in ("bob", "alice"):
        refused = world.ask("PUT", "/climate", user=user)
        assert (refused.status, refused.code) == (409, "BucketAlreadyExists")
        assert world.ask("GET", "/climate", user=user).code == "NoSuchBucket"
    assert world.ask("PUT", "/empty").status == 200
    world.close()


def forget(world: World, bucket: str) -> None:
    """As the database was before that was made."""
    world.index.sync()
    with world.index._readers.run() as run:  # type: ignore[attr-defined]
        path = run("PRAGMA database_list").fetchone()[2]
    with sqlite3.connect(path) as connection:
        for table in ("objects", "versions", "ledger"):
            connection.execute(f"DELETE FROM {table} WHERE bucket = ?", (bucket,))
        connection.execute("DELETE FROM buckets WHERE name = ?", (bucket,))
    connection.close()
    world.index.forget()


def lose(path: str) -> None:
    """All rows of objects."""
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM objects")
        connection.execute("UPDATE ledger SET bytes = 0, objects = 0")
    connection.close()
