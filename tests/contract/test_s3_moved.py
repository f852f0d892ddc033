"""Files that others move within the tree, or put there with times of long ago: what an object keeps, and that
listings, versions and a rebuilt index say the same as reads."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.admin.doctor import rebuild
from cumulus.index.registry import make_index
from cumulus.ops.jobs import Done, rescan
from cumulus.storage.api import Entry

OLD_NS = 1_000_000_000_000_000_000  # the year 2001


@pytest.fixture(params=["md5", "opaque"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(STORES["posix"](tmp_path), opaque_etags=request.param == "opaque")
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def scan(world: World, bucket: str = "bkt") -> tuple[int, int]:
    """(rows renewed, rows removed) by a scan."""
    done = Done()
    rescan(world.site, world.index.bucket(bucket), done)  # type: ignore[arg-type]
    return done.renewed, done.gone


def listed(world: World, bucket: str = "bkt") -> dict[str, tuple[int, str]]:
    """Size and ETag of each key in the listing."""
    answer = world.boto().list_objects_v2(Bucket=bucket)
    return {row["Key"]: (row["Size"], row["ETag"]) for row in answer.get("Contents", [])}


def served(world: World, key: str, bucket: str = "bkt") -> tuple[int, str]:
    """The same, of a read."""
    head = world.ask("HEAD", f"/{bucket}/{key}")
    assert head.status == 200
    return int(head.headers["content-length"]), head.headers["etag"]


def versioned(world: World, status: str = "Enabled") -> None:
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def test_a_moved_file_keeps_all_but_its_key(world: World, data: Path) -> None:
    """ETag, headers, metadata, tags, owner and ACL: the bytes are the same."""
    headers = {
        "Content-Type": "x/y",
        "x-amz-meta-one": "1",
        "x-amz-tagging": "t=v",
        "x-amz-acl": "public-read",
    }
    put = world.ask("PUT", "/bkt/a", b"bytes", headers=headers)
    (data / "sub").mkdir()
    (data / "a").rename(data / "sub" / "b")
    assert world.ask("GET", "/bkt/a").code == "NoSuchKey"
    for _ in range(2):  # at once, and after a scan
        got = world.ask("GET", "/bkt/sub/b", user="")
        assert (got.body, got.headers["etag"]) == (b"bytes", put.headers["etag"])
        assert (got.headers["content-type"], got.headers["x-amz-meta-one"]) == ("x/y", "1")
        assert world.ask("GET", "/bkt/sub/b", query="tagging").leaves("Value") == ["v"]
        assert world.ask("GET", "/bkt/sub/b", user="bob", query="acl").status == 403
        assert scan(world) in ((1, 0), (0, 0))
        assert listed(world) == {"sub/b": (5, put.headers["etag"])}
    assert world.index.usage("bucket", "bkt").bytes == 5
    assert rebuild(world.index, world.store, world.index.bucket("bkt")) == (1, 0)  # type: ignore[arg-type]
    assert listed(world) == {"sub/b": (5, put.headers["etag"])}
    assert world.ask("DELETE", "/bkt/sub/b").status == 204 and not listed(world)
    assert not (data / "sub" / "b").exists()


def test_a_rebuilt_index_knows_a_moved_file_by_its_name(world: World, data: Path, tmp_path: Path) -> None:
    """Before any scan has seen it."""
    world.ask("PUT", "/bkt/a", b"bytes")
    (data / "a").rename(data / "b")
    assert rebuild(world.index, world.store, world.index.bucket("bkt")) == (1, 1)  # type: ignore[arg-type]
    assert list(listed(world)) == ["b"]


def test_a_file_moved_over_another_is_listed_as_it_is(world: World, data: Path) -> None:
    """Also when it is older than what it replaces."""
    world.ask("PUT", "/bkt/old", b"older bytes")
    world.ask("PUT", "/bkt/new", b"new")
    (data / "old").rename(data / "new")
    assert scan(world) == (1, 1)
    assert listed(world) == {"new": served(world, "new")} and served(world, "new")[0] == 11
    assert scan(world) == (0, 0)
    assert world.ask("PUT", "/bkt/new", b"newest").status == 200
    assert listed(world) == {"new": served(world, "new")} and served(world, "new")[0] == 6


def test_an_outside_file_with_an_old_time_is_listed_as_it_is(world: World, data: Path) -> None:
    """As `cp -p`, `rsync -t` and `mv` make it: over an object, and where one was deleted just now."""
    for key in ("over", "gone"):
        world.ask("PUT", f"/bkt/{key}", b"by S3")
    assert world.ask("DELETE", "/bkt/gone").status == 204
    for key in ("over", "gone"):
        draft = data.parent / key
        draft.write_bytes(b"from long ago")
        os.utime(draft, ns=(OLD_NS, OLD_NS))
        draft.rename(data / key)
    assert scan(world) == (2, 0)
    assert {key: size for key, (size, _) in listed(world).items()} == {"gone": 13, "over": 13}
    for key in ("over", "gone"):
        assert served(world, key) == listed(world)[key]
        assert world.ask("PUT", f"/bkt/{key}", b"again").status == 200
        assert served(world, key) == listed(world)[key] and served(world, key)[0] == 5


def test_a_moved_upload_keeps_its_etag(world: World, data: Path) -> None:
    """That is no MD5 sum of its bytes."""
    client = world.boto()
    upload = client.create_multipart_upload(Bucket="bkt", Key="a")["UploadId"]
    part = {"Bucket": "bkt", "Key": "a", "UploadId": upload}
    tags = [
        {"PartNumber": number, "ETag": client.upload_part(**part, PartNumber=number, Body=b"x" * 9)["ETag"]}
        for number in (1, 2)
    ]
    etag = client.complete_multipart_upload(**part, MultipartUpload={"Parts": tags})["ETag"]
    (data / "a").rename(data / "b")
    assert scan(world) == (1, 1)
    assert listed(world) == {"b": (18, etag)} == {"b": served(world, "b")}


def test_a_second_name_is_an_object_of_its_own(world: World, data: Path) -> None:
    world.ask("PUT", "/bkt/a", b"bytes")
    os.link(data / "a", data / "b")
    scan(world)
    assert listed(world) == {"a": served(world, "a"), "b": served(world, "b")}
    world.ask("PUT", "/bkt/b", b"others")
    assert (data / "a").read_bytes() == b"bytes" and listed(world)["a"] == served(world, "a")


def test_a_moved_directory_keeps_its_mark(world: World, data: Path) -> None:
    world.ask("PUT", "/bkt/a/", headers={"x-amz-meta-one": "1"})
    world.ask("PUT", "/bkt/a/k", b"x")
    (data / "a").rename(data / "b")
    assert world.ask("HEAD", "/bkt/b/").headers["x-amz-meta-one"] == "1"
    assert scan(world) == (2, 2)
    assert sorted(listed(world)) == ["b/", "b/k"]
    assert scan(world) == (0, 0)


def test_moved_files_and_versions(world: World, data: Path) -> None:
    """The former name gets a delete marker; a replaced one stays as a version of the present name, also in a
    rebuilt index."""
    versioned(world)
    client = world.boto()
    client.put_object(Bucket="bkt", Key="a", Body=b"first")
    (data / "a").rename(data / "b")
    scan(world)
    client.put_object(Bucket="bkt", Key="b", Body=b"second")
    assert list(listed(world)) == ["b"]

    def check() -> None:
        rows = client.list_object_versions(Bucket="bkt", Prefix="b")["Versions"]
        assert [(row["Key"], row["IsLatest"]) for row in rows] == [("b", True), ("b", False)]
        old = client.get_object(Bucket="bkt", Key="b", VersionId=rows[1]["VersionId"])
        assert old["Body"].read() == b"first"

    check()
    assert [row["Key"] for row in client.list_object_versions(Bucket="bkt")["DeleteMarkers"]] == ["a"]
    other, _ = make_index("sqlite://", directory=world.people)
    try:
        bucket = world.index.bucket("bkt")
        assert bucket is not None
        other.add_bucket(bucket)
        rebuild(other, world.store, bucket)
        rows = other.page_versions("bkt", limit=10).rows
        assert [(row.key, row.size, row.latest) for row in rows] == [("b", 6, True), ("b", 5, False)]
    finally:
        other.close()


def test_a_file_moved_to_where_one_was_deleted(world: World, data: Path) -> None:
    """It is newer than the delete marker, whatever its own time."""
    versioned(world)
    for key in ("a", "b"):
        world.ask("PUT", f"/bkt/{key}", b"bytes of " + key.encode())
    world.ask("DELETE", "/bkt/b")
    (data / "a").rename(data / "b")
    scan(world)
    assert list(listed(world)) == ["b"] and world.ask("GET", "/bkt/b").body == b"bytes of a"


def test_a_directory_that_comes_back_is_listed_again(world: World, data: Path, tmp_path: Path) -> None:
    """With the rows of before, though a scan has made delete markers meanwhile: it is what reads find. (So it
    is with a disk below the bucket that was away for a while.)"""
    versioned(world)
    put = world.ask("PUT", "/bkt/d/a", b"bytes").headers
    (data / "d").rename(tmp_path / "away")
    assert scan(world) == (0, 1) and not listed(world)
    (tmp_path / "away").rename(data / "d")
    scan(world)
    assert listed(world) == {"d/a": served(world, "d/a")} == {"d/a": (5, put["etag"])}
    found = world.boto().list_object_versions(Bucket="bkt")
    ids = [(one["VersionId"], one["IsLatest"]) for one in found["Versions"]]
    assert ids == [(put["x-amz-version-id"], True)]
    assert [one["IsLatest"] for one in found["DeleteMarkers"]] == [False]
    assert world.index.usage("bucket", "bkt").bytes == 5
    assert scan(world) == (0, 0)


def test_a_file_that_comes_back_takes_its_delete_markers_place(
    world: World, data: Path, tmp_path: Path
) -> None:
    """Where versions are suspended both are the version "null", also in a rebuilt index."""
    versioned(world, "Suspended")
    world.ask("PUT", "/bkt/a", b"bytes")
    (data / "a").rename(tmp_path / "away")
    assert world.ask("DELETE", "/bkt/a").headers["x-amz-version-id"] == "null"
    (tmp_path / "away").rename(data / "a")
    scan(world)
    assert listed(world) == {"a": served(world, "a")}
    found = world.boto().list_object_versions(Bucket="bkt")
    assert [one["VersionId"] for one in found["Versions"]] == ["null"] and "DeleteMarkers" not in found
    other, _ = make_index("sqlite://", directory=world.people)
    try:
        bucket = world.index.bucket("bkt")
        assert bucket is not None
        other.add_bucket(bucket)
        rebuild(other, world.store, bucket)
        rows = other.page_versions("bkt", limit=10).rows
        assert [(row.key, row.marker, row.latest) for row in rows] == [("a", False, True)]
    finally:
        other.close()


def test_what_comes_back_and_is_deleted_beside_a_scan_stays_deleted(
    world: World, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan has seen the file, and then the delete marker: that is newer."""
    versioned(world)
    world.ask("PUT", "/bkt/a", b"bytes")
    (data / "a").rename(tmp_path / "away")
    scan(world)
    (tmp_path / "away").rename(data / "a")
    look = world.store.look

    def before(bucket: str, names: Sequence[str], known: Mapping[str, bytes]) -> dict[str, Entry | None]:
        found = look(bucket, names, known)
        if names:
            assert world.ask("DELETE", "/bkt/a").status == 204
        return found

    monkeypatch.setattr(world.store, "look", before)
    scan(world)
    monkeypatch.undo()
    for _ in range(2):
        assert not listed(world) and world.ask("GET", "/bkt/a").code == "NoSuchKey"
        found = world.boto().list_object_versions(Bucket="bkt")
        assert (len(found["Versions"]), len(found["DeleteMarkers"])) == (1, 2)
        assert scan(world) == (0, 0)


def test_a_file_moved_over_a_version_replaces_it(world: World, data: Path) -> None:
    """What the rows named before is gone, and is not listed as an older version."""
    versioned(world)
    world.ask("PUT", "/bkt/a", b"of a")
    world.ask("PUT", "/bkt/b", b"of b, longer")
    (data / "a").rename(data / "b")
    scan(world)
    rows = world.boto().list_object_versions(Bucket="bkt", Prefix="b")["Versions"]
    assert [(row["Size"], row["IsLatest"]) for row in rows] == [(4, True)]


def test_a_file_moved_to_another_bucket(world: World, data: Path) -> None:
    """Its version stays behind where there are no versions."""
    world.ask("PUT", "/other")
    versioned(world)
    put = world.ask("PUT", "/bkt/a", b"bytes")
    shutil.move(data / "a", data.parent / "other" / "c")
    assert "x-amz-version-id" not in world.ask("GET", "/other/c").headers
    scan(world, "other")
    assert listed(world, "other") == {"c": (5, put.headers["etag"])}
    assert world.index.lookup("other", "c").version == "null"  # type: ignore[union-attr]
    world.ask("PUT", "/other/c", b"others")
    assert listed(world, "other") == {"c": served(world, "c", "other")}


def test_etags_of_moved_files_are_true(tmp_path: Path) -> None:
    """The MD5 sum of what is there."""
    world = World(STORES["posix"](tmp_path))
    try:
        world.ask("PUT", "/bkt")
        world.ask("PUT", "/bkt/a", b"bytes")
        where = tmp_path / "store" / "data" / "bkt"
        (where / "a").rename(where / "b")
        (where / "b").write_bytes(b"edited")
        assert served(world, "b")[1] == f'"{hashlib.md5(b"edited").hexdigest()}"'
    finally:
        world.close()
