"""Keys that end in "/" over plain files: empty ones are directories with a mark, those with data odd keys."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from s3_world import World

from cumulus.admin.doctor import rebuild
from cumulus.auth import lifecycle
from cumulus.backends.posix.files import MARK_XATTR
from cumulus.index.api import Remove
from cumulus.ops.jobs import Done, Jobs, rescan

EMPTY = '"d41d8cd98f00b204e9800998ecf8427e"'


def keys(world: World, **query: str) -> list[str]:
    return world.ask("GET", "/bkt", query=query).leaves("Key")


def odd(data: Path) -> int:
    """How many objects have names of the service."""
    where = data / ".cumulus" / "odd"
    return len(list(where.iterdir())) if where.exists() else 0


def test_an_empty_key_with_a_slash_is_a_directory(world: World, data: Path) -> None:
    """With headers, metadata, tags and an ETag; it is listed, read, copied and removed as any object."""
    put = world.ask("PUT", "/bkt/a/", headers={"x-amz-meta-one": "1", "Content-Type": "x/y"})
    assert (put.status, put.headers["etag"]) == (200, EMPTY)
    assert (data / "a").is_dir() and odd(data) == 0
    head = world.ask("HEAD", "/bkt/a/")
    assert (head.status, head.headers["etag"], head.headers["content-length"]) == (200, EMPTY, "0")
    assert (head.headers["x-amz-meta-one"], head.headers["content-type"]) == ("1", "x/y")
    assert world.ask("GET", "/bkt/a/").body == b"" and world.ask("GET", "/bkt/a").status == 404
    assert keys(world) == ["a/"]
    assert world.ask("GET", "/bkt", query={"delimiter": "/"}).leaves("Prefix")[-1] == "a/"
    tags = b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>"
    assert world.ask("PUT", "/bkt/a/", tags, query="tagging").status == 200
    assert world.ask("GET", "/bkt/a/", query="tagging").leaves("Value") == ["v"]
    source = {"x-amz-copy-source": "/bkt/a/"}
    assert world.ask("PUT", "/bkt/b/c/", headers=source).status == 200
    assert (data / "b" / "c").is_dir() and world.ask("HEAD", "/bkt/b/c/").headers["x-amz-meta-one"] == "1"
    assert world.ask("PUT", "/bkt/file", headers=source).status == 200 and (data / "file").is_file()
    assert world.ask("DELETE", "/bkt/a/").status == 204
    assert not (data / "a").exists() and world.ask("HEAD", "/bkt/a/").status == 404
    assert world.ask("DELETE", "/bkt/a/").status == 204
    assert world.ask("DELETE", "/bkt/b/c/").status == 204
    assert keys(world) == ["file"] and not (data / "b").exists()


def test_it_stands_beside_what_is_in_it(world: World, data: Path) -> None:
    """Made before or after; a directory stays as long as its mark or something in it."""
    world.ask("PUT", "/bkt/a/x", b"1")
    world.ask("PUT", "/bkt/a/")
    world.ask("PUT", "/bkt/a/y", b"2")
    assert keys(world) == ["a/", "a/x", "a/y"] and keys(world, prefix="a/", marker="a/") == ["a/x", "a/y"]
    for name in ("x", "y"):
        assert world.ask("DELETE", f"/bkt/a/{name}").status == 204
    assert keys(world) == ["a/"] and (data / "a").is_dir()
    world.ask("PUT", "/bkt/a/x", b"1")
    assert world.ask("DELETE", "/bkt/a/").status == 204
    assert keys(world) == ["a/x"] and world.ask("HEAD", "/bkt/a/").status == 404
    assert world.ask("GET", "/bkt/a/x").body == b"1"
    world.ask("DELETE", "/bkt/a/x")
    assert not (data / "a").exists()
    assert world.ask("DELETE", "/bkt").status == 204


def test_a_bucket_with_a_mark_is_not_empty(world: World) -> None:
    world.ask("PUT", "/bkt/a/")
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"


def test_with_data_it_is_an_odd_key_and_may_change_its_kind(world: World, data: Path) -> None:
    """Either way, with and without a condition: one object, one ETag, nothing left behind."""
    for condition in (False, True):
        for body in (b"data", b"", b"other", b"", b""):
            etag = world.ask("HEAD", "/bkt/a/").headers.get("etag", "")
            headers = {"If-Match": etag} if condition and etag else {}
            assert world.ask("PUT", "/bkt/a/", body, headers=headers).status == 200
            assert world.ask("GET", "/bkt/a/").body == body
            assert keys(world) == ["a/"]
            if not condition:
                assert ((data / "a").is_dir(), odd(data)) == (not body, int(bool(body)))
        assert world.ask("DELETE", "/bkt/a/").status == 204
        assert not (data / "a").exists() and odd(data) == 0
    fresh = {"If-None-Match": "*"}
    assert world.ask("PUT", "/bkt/a/", headers=fresh).status == 200
    assert world.ask("PUT", "/bkt/a/", headers=fresh).code == "PreconditionFailed"


def test_a_file_in_the_way_makes_it_odd(world: World, data: Path) -> None:
    """And a marked directory makes the key without a slash odd: first come keeps the place."""
    world.ask("PUT", "/bkt/n", b"file")
    assert world.ask("PUT", "/bkt/n/").status == 200 and odd(data) == 1
    world.ask("PUT", "/bkt/m/")
    assert world.ask("PUT", "/bkt/m", b"file").status == 200 and odd(data) == 2
    assert keys(world) == ["m", "m/", "n", "n/"]
    for key, body in (("m", b"file"), ("m/", b""), ("n", b"file"), ("n/", b"")):
        assert world.ask("GET", f"/bkt/{key}").body == body
        assert world.ask("DELETE", f"/bkt/{key}").status == 204
    assert keys(world) == [] and odd(data) == 0 and sorted(os.listdir(data)) == [".cumulus"]


def test_a_directory_of_others_stays(world: World, data: Path) -> None:
    """It is no object before it is put, gets a mark, loses it, and is not removed."""
    (data / "theirs").mkdir()
    assert keys(world) == [] and world.ask("HEAD", "/bkt/theirs/").status == 404
    assert world.ask("DELETE", "/bkt/theirs/").status == 204
    world.ask("PUT", "/bkt/theirs/")
    assert keys(world) == ["theirs/"]
    world.ask("DELETE", "/bkt/theirs/")
    assert (data / "theirs").is_dir() and keys(world) == []


def test_removed_or_copied_from_outside(world: World, data: Path) -> None:
    """A scan tells of marks that went with their directory; a copy of a directory has none."""
    world.ask("PUT", "/bkt/a/")
    world.ask("PUT", "/bkt/b/")
    mark = os.getxattr(data / "a", MARK_XATTR)
    (data / "copy").mkdir()
    os.setxattr(data / "copy", MARK_XATTR, mark)
    (data / "a").rmdir()
    assert world.ask("HEAD", "/bkt/a/").status == 404
    (data / "b").rmdir()
    rescan(world.site, world.site.bucket("bkt"), Done())
    world.index.sync()
    assert keys(world) == []
    assert world.ask("HEAD", "/bkt/copy/").status == 404


def test_an_index_that_forgot_it_learns_it_again(world: World) -> None:
    """By a read, a scan, `doctor --rebuild`; and it can be removed before that."""

    def forget(key: str) -> None:
        stamp = world.index.lookup("bkt", key).stamp  # type: ignore[union-attr]
        world.index.apply([Remove(bucket="bkt", key=key, stamp=stamp - 1)])
        row = world.index.lookup("bkt", key)
        world.index.apply([Remove(bucket="bkt", key=key, stamp=row.stamp)] if row else [])

    bucket = world.site.bucket("bkt")
    for learn in (
        lambda: rescan(world.site, bucket, Done()),
        lambda: rebuild(world.index, world.store, bucket),
    ):
        world.ask("PUT", "/bkt/a/")
        world.skew_ns += 61 * 10**9
        forget("a/")
        assert keys(world) == [] and world.ask("HEAD", "/bkt/a/").status == 200
        learn()
        world.index.sync()
    world.ask("PUT", "/bkt/gone/")
    forget("gone/")
    assert world.ask("DELETE", "/bkt/gone/").status == 204
    assert world.ask("HEAD", "/bkt/gone/").status == 404


def test_versions_of_a_directory(world: World, data: Path) -> None:
    """Older ones are kept as empty files; deleting the newest brings the one before it back."""
    on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert world.ask("PUT", "/bkt", on, query="versioning").status == 200
    put = [
        world.ask("PUT", "/bkt/a/", body, headers={"x-amz-meta-n": str(number)}).headers["x-amz-version-id"]
        for number, body in enumerate((b"", b"", b"data", b""))
    ]
    assert len(set(put)) == 4 and keys(world) == ["a/"]
    for number, version in enumerate(put):
        found = world.ask("GET", "/bkt/a/", query={"versionId": version})
        assert (found.status, found.headers["x-amz-meta-n"]) == (200, str(number))
        assert found.body == (b"data" if number == 2 else b"")
    deleted = world.ask("DELETE", "/bkt/a/")
    assert deleted.headers["x-amz-delete-marker"] == "true" and world.ask("HEAD", "/bkt/a/").status == 404
    for version in (deleted.headers["x-amz-version-id"], put[3], put[2], put[1]):
        assert world.ask("DELETE", "/bkt/a/", query={"versionId": version}).status == 204
    assert world.ask("HEAD", "/bkt/a/").headers["x-amz-meta-n"] == "0"
    Jobs(world.site, lifecycle).run()
    assert keys(world) == ["a/"]
    world.ask("DELETE", "/bkt/a/", query={"versionId": put[0]})
    assert world.ask("GET", "/bkt", query="versions").leaves("VersionId") == []


def test_marks_and_removals_of_their_last_file_at_once(world: World, data: Path) -> None:
    """A mark that was acknowledged is there, whatever was removed beside it."""

    def marks() -> None:
        for _ in range(40):
            assert world.ask("PUT", "/bkt/d/").status == 200
            assert world.ask("HEAD", "/bkt/d/").status == 200
            assert world.ask("DELETE", "/bkt/d/").status == 204

    def files() -> None:
        for _ in range(60):
            assert world.ask("PUT", "/bkt/d/x", b"1").status == 200
            assert world.ask("DELETE", "/bkt/d/x").status == 204

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(marks), threads.submit(files)]:
            one.result()
    assert keys(world) == []
    world.ask("PUT", "/bkt/d/")
    world.ask("DELETE", "/bkt/d/")
    assert not (data / "d").exists()
