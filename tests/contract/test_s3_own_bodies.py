"""Where each body has a name of its own and the index alone says which one counts: what storage fails to find
for a moment is no reason to forget it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.auth import lifecycle
from cumulus.ops.jobs import Done, Jobs, forget_versions, rescan
from cumulus.ops.names import BODIES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service over fsspec, not on local files, with a bucket."""
    made = World(STORES["fsspec"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def lose_bodies(world: World, patch: pytest.MonkeyPatch) -> None:
    """The driver says of each body that there is by now that there is no such file."""
    system = world.store.fs  # type: ignore[attr-defined]
    real, lost = system.info, bodies(world)

    def info(path: str, **options: Any) -> Any:
        if path.endswith(tuple(lost)):
            raise FileNotFoundError(path)
        return real(path, **options)

    patch.setattr(system, "info", info)


def versioning(world: World, status: str) -> None:
    """Of the bucket."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def bodies(world: World) -> list[str]:
    """Their names."""
    return [entry.name for entry in world.store.names("bkt", prefix=BODIES)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_object_that_storage_does_not_find_for_a_moment_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It is a 503 meanwhile; the sweep of the next days leaves it."""
    assert world.ask("PUT", "/bkt/k", b"x" * 10).status == 200
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert world.ask(method, "/bkt/k").status == 503
    assert world.ask("GET", "/bkt").leaves("Key") == ["k"]
    assert world.ask("GET", "/bkt/k").body == b"x" * 10
    world.skew_ns = 3 * 86_400 * 10**9
    Jobs(world.site, lifecycle).run()
    world.site.empty_bin(all_of_it=True)
    world.skew_ns = 0
    assert world.ask("GET", "/bkt/k").body == b"x" * 10


def test_a_version_that_storage_does_not_find_for_a_moment_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by what looks for deletions that a crash has interrupted: here those begin in the index."""
    versioning(world, "Enabled")
    first = world.ask("PUT", "/bkt/k", b"first").headers["x-amz-version-id"]
    assert world.ask("PUT", "/bkt/k", b"second").status == 200
    bucket = world.site.bucket("bkt")
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert world.ask("GET", "/bkt/k", query={"versionId": first}).status == 503
        done = Done()
        forget_versions(world.site, bucket, done)
        rescan(world.site, bucket, done)
        assert done.gone == 0
    assert world.ask("GET", "/bkt/k", query={"versionId": first}).body == b"first"
    assert world.ask("GET", "/bkt/k").body == b"second"
    assert len(world.boto().list_object_versions(Bucket="bkt")["Versions"]) == 2


@pytest.mark.parametrize("status", ["", "Enabled", "Suspended"])
def test_an_object_whose_body_is_lost_is_put_again_or_deleted_as_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """PUT, a completion, DELETE, and DELETE of the version."""
    for key in ("put", "completed", "deleted", "removed"):
        assert world.ask("PUT", f"/bkt/{key}", b"x").status == 200
    if status:
        versioning(world, status)
    client = world.boto()
    id = client.create_multipart_upload(Bucket="bkt", Key="completed")["UploadId"]
    part = {"Bucket": "bkt", "Key": "completed", "UploadId": id}
    etag = client.upload_part(**part, PartNumber=1, Body=b"new")["ETag"]
    with monkeypatch.context() as patch:
        lose_bodies(world, patch)
        assert world.ask("PUT", "/bkt/put", b"new").status == 200
        assert world.ask("PUT", "/bkt/put", b"no", headers={"If-None-Match": "*"}).status in (412, 503)
        client.complete_multipart_upload(**part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert world.ask("DELETE", "/bkt/deleted").status == 204
        assert world.ask("DELETE", "/bkt/removed", query={"versionId": "null"}).status == 204
    assert world.ask("GET", "/bkt").leaves("Key") == ["completed", "put"]
    assert [world.ask("GET", f"/bkt/{key}").body for key in ("completed", "put")] == [b"new"] * 2
