"""`cumulus doctor --rebuild` beside a server that is at work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from by_the_rules import by_the_rules
from s3_stores import STORES
from s3_world import SECOND, World

from cumulus.admin import data as admin_data
from cumulus.admin.doctor import _has_body, rebuild
from cumulus.index.registry import make_index
from cumulus.ops.deletes import _store_marker
from cumulus.ops.names import version_name


@pytest.fixture(params=["posix"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With a bucket that keeps versions."""
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    status = {"Status": "Enabled"}
    made.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration=status)
    yield made
    made.close()


@pytest.mark.parametrize("act", ["PUT", "DELETE"])
@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_a_rebuild_beside_a_server_takes_out_no_version(
    world: World, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """One that is replaced, or gets a delete marker, between the two passes of the command."""
    client = world.boto()
    made = client.put_object(Bucket="bkt", Key="k", Body=b"kept")
    real = admin_data.rows_of

    def rows_of(index: Any, bucket: str) -> Any:
        assert world.ask(act, "/bkt/k", b"new" if act == "PUT" else b"").status in (200, 204)
        return real(index, bucket)

    monkeypatch.setattr(admin_data, "rows_of", rows_of)
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    assert rebuild(world.index, world.store, bucket)[1] == 0
    assert len(client.list_object_versions(Bucket="bkt")["Versions"]) == 1 + (act == "PUT")
    kept = client.get_object(Bucket="bkt", Key="k", VersionId=made["VersionId"])
    assert kept["Body"].read() == b"kept"


def test_a_rebuild_takes_out_a_version_whose_body_is_lost(world: World, tmp_path: Path) -> None:
    """Though there is a file under the name that its row has."""
    client = world.boto()
    for body in (b"1", b"2"):
        client.put_object(Bucket="bkt", Key="k", Body=body)
    for kept in (tmp_path / "store/data/bkt/.cumulus/versions").glob("*/*"):
        kept.unlink()
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    assert rebuild(world.index, world.store, bucket) == (1, 1)
    assert len(client.list_object_versions(Bucket="bkt")["Versions"]) == 1
    assert world.ask("GET", "/bkt/k").body == b"2"


def test_a_rebuild_goes_on_beside_a_file_that_may_not_be_read(world: World, tmp_path: Path) -> None:
    """Of another account, on which others rely to be listed; also one that came where a marker is."""
    data = tmp_path / "store/data/bkt"
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    for key in ("gone", "k", "marked"):
        world.ask("PUT", f"/bkt/{key}", b"x")
    world.ask("DELETE", "/bkt/marked")
    for name in ("closed", "marked"):
        (data / name).write_bytes(b"of others")
    rebuild(world.index, world.store, bucket)
    for name in ("closed", "marked"):
        os.chown(data / name, 12345, 12345)
        (data / name).chmod(0)
    (data / "gone").unlink()
    with by_the_rules():
        taken, gone = rebuild(world.index, world.store, bucket)
        assert (taken, gone) == (5, 1)  # two versions of "marked", and the marker
        assert [row.key for row in world.index.page("bkt").rows] == ["closed", "k", "marked"]
        index = make_index("sqlite://", directory=world.people)[0]
        index.add_bucket(bucket)
        rebuild(index, world.store, bucket)
        assert [row.key for row in index.page("bkt").rows] == ["closed", "k", "marked"]
        index.close()


def test_another_version_under_the_keys_name_is_no_body_of_a_row(world: World) -> None:
    """A row may know the name of its version alone, though it is the current one: what lies under the key's
    name may then be an object of which the index has yet to hear."""
    version = world.boto().put_object(Bucket="bkt", Key="k", Body=b"1")["VersionId"]
    bucket, row = world.index.bucket("bkt"), world.index.lookup("bkt", "k", version)
    assert bucket is not None and row is not None and row.latest
    elsewhere = msgspec.structs.replace(row, name=version_name("k", version))
    assert _has_body(world.store, bucket, row) and _has_body(world.store, bucket, elsewhere)
    other = world.boto().put_object(Bucket="bkt", Key="k", Body=b"2")["VersionId"]
    assert _has_body(world.store, bucket, elsewhere)
    world.store.delete("bkt", version_name("k", version))
    assert not _has_body(world.store, bucket, elsewhere)
    assert not _has_body(world.store, bucket, msgspec.structs.replace(row, latest=False))
    newer = world.index.lookup("bkt", "k", other)
    assert newer is not None and _has_body(world.store, bucket, newer)


@pytest.mark.parametrize("how", ["tags", "acl", "owner"])
@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_a_changed_record_of_an_older_version_does_not_make_it_current_in_a_rebuilt_index(
    world: World, how: str
) -> None:
    """Neither before what replaced it nor before the delete marker that hides it."""
    client = world.boto("root" if how == "owner" else "alice")
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    world.skew_ns = -60 * SECOND  # a while ago
    ids = {}
    for key in ("k", "gone"):
        for body in (b"1", b"2", b"3"):
            answer = world.ask("PUT", f"/bkt/{key}", body)
            ids[key, answer.headers["x-amz-version-id"]] = body
    world.ask("DELETE", "/bkt/gone")
    world.skew_ns = 0
    for (key, version), body in ids.items():
        where = {"Bucket": "bkt", "Key": key, "VersionId": version}
        if how == "tags" and body == b"1":
            client.put_object_tagging(**where, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        elif how == "acl" and body == b"1":
            client.put_object_acl(**where, ACL="public-read")
    if how == "owner":
        bob = world.people.users["bob"]
        assert admin_data.give(world.index, world.store, bucket, bob) == 7
    index = make_index("sqlite://", directory=world.people)[0]
    try:
        index.add_bucket(bucket)
        rebuild(index, world.store, bucket)
        rows = index.page_versions("bkt").rows
        found = [(row.key, ids.get((row.key, row.version)), row.latest) for row in rows]
    finally:
        index.close()
    assert found == [
        ("gone", None, True),
        ("gone", b"3", False),
        ("gone", b"2", False),
        ("gone", b"1", False),
        ("k", b"3", True),
        ("k", b"2", False),
        ("k", b"1", False),
    ]


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_rebuild_believes_no_marker_of_a_deletion_that_was_interrupted(
    world: World, key: str, status: str, lost: bool
) -> None:
    """A server was killed after it had written the marker and before the object had gone: the object is
    served, so it is listed, also when all of the index is lost. One that did hide an object still does."""
    client = world.boto()
    client.put_object(Bucket="bkt", Key="gone", Body=b"1")
    client.delete_object(Bucket="bkt", Key="gone")
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})
    client.put_object(Bucket="bkt", Key=key, Body=b"kept")
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    _store_marker(world.site, bucket, key, world.site.new_version(bucket), bucket.owner, world.clock())
    index = make_index("sqlite://", directory=world.people)[0] if lost else world.index
    if lost:
        index.add_bucket(bucket)
    rebuild(index, world.store, bucket)
    assert [row.key for row in index.page("bkt").rows] == [key]
    rows = index.page_versions("bkt").rows
    assert [row.key for row in rows if row.marker and row.latest] == ["gone"]
    assert [row.key for row in rows if not row.marker and row.latest] == [key]
    if lost:
        index.close()
    else:
        assert client.get_object(Bucket="bkt", Key=key)["Body"].read() == b"kept"
