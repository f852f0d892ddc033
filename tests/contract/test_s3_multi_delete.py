"""Deletions of many keys in one request: beside each other, each with its own outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.index.api import Away, Change
from cumulus.ops import told
from cumulus.rest import multi


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(STORES["memory"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def deleted(world: World, keys: Sequence[str]) -> dict[str, Any]:
    """What DeleteObjects says of those."""
    wanted = {"Objects": [{"Key": key} for key in keys]}
    return dict(world.boto().delete_objects(Bucket="bkt", Delete=wanted))


def test_keys_are_deleted_beside_each_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another a thousand take as long as a thousand syncs of a disk: longer than clients wait."""
    keys = [f"k{number:02}" for number in range(20)]
    for key in keys:
        world.ask("PUT", f"/bkt/{key}", b"x")
    real, together = world.store.delete, threading.Barrier(4)

    def delete(*words: Any) -> Any:
        together.wait(20)
        return real(*words)

    monkeypatch.setattr(world.store, "delete", delete)
    assert [row["Key"] for row in deleted(world, keys)["Deleted"]] == keys
    assert not world.boto().list_objects_v2(Bucket="bkt").get("Contents")


def test_what_is_done_to_one_key_is_done_in_its_order(world: World) -> None:
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    for number in range(6):
        versions = [client.put_object(Bucket="bkt", Key=f"k{number}", Body=b"x")["VersionId"] for _ in "123"]
        wanted = [{"Key": f"k{number}"}] * 3 + [{"Key": f"k{number}", "VersionId": one} for one in versions]
        done = client.delete_objects(Bucket="bkt", Delete={"Objects": wanted})["Deleted"]
        markers = [row["DeleteMarkerVersionId"] for row in done[:3]]
        assert [row["VersionId"] for row in done[3:]] == versions
        left = client.list_object_versions(Bucket="bkt", Prefix=f"k{number}")
        assert [row["VersionId"] for row in left["DeleteMarkers"]] == markers[::-1]
        assert not left.get("Versions")


def test_keys_do_not_wait_one_by_one_for_a_database_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for some seconds; a thousand would hold a thread for hours."""
    keys = [f"k{number:02}" for number in range(60)]
    for key in keys:
        world.ask("PUT", f"/bkt/{key}", b"x")
    tried: set[int] = set()

    def away(changes: Sequence[Change]) -> None:
        tried.add(id(changes))
        time.sleep(0.05)
        raise Away("locked")

    monkeypatch.setattr(told, "PATIENCE_S", 0.1)
    monkeypatch.setattr(multi, "STUCK_S", 0.1)
    with monkeypatch.context() as context:
        context.setattr(world.index, "apply", away)
        answer = deleted(world, keys)
    assert {row["Code"] for row in answer["Errors"]} == {"ServiceUnavailable"}
    assert len(answer["Errors"]) == len(keys)
    assert len(tried) < 20
    world.site.told.settle()
    assert len(world.boto().list_objects_v2(Bucket="bkt")["Contents"]) == len(keys) - len(tried)
    assert not deleted(world, keys).get("Errors")
