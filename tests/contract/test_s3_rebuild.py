"""`cumulus doctor --rebuild` beside a server that is at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.admin import data as admin_data
from cumulus.admin.doctor import rebuild
from cumulus.index.registry import make_index
from cumulus.ops.deletes import _store_marker


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
