"""A scan compares a directory with the index while requests change both: versions and what they count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from s3_world import World

from cumulus.index.api import Change
from cumulus.ops import publish
from cumulus.ops.jobs import Done, rescan
from cumulus.storage.api import Entry


def scan(world: World) -> None:
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    rescan(world.site, bucket, Done())


def versioning(world: World, status: str) -> None:
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def versions(world: World) -> list[tuple[str, int, bool]]:
    """Key, size and whether it is the current one, of all versions; each can be read."""
    client = world.boto()
    found = client.list_object_versions(Bucket="bkt").get("Versions", [])
    for one in found:
        where = {"Bucket": "bkt", "Key": one["Key"], "VersionId": one["VersionId"]}
        assert len(client.get_object(**where)["Body"].read()) == one["Size"]
    return [(one["Key"], one["Size"], one["IsLatest"]) for one in found]


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_of_others_that_gets_its_version_beside_a_scan_is_one(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """The scan had seen it without a record, or with that of its former name, and tells so afterwards."""
    versioning(world, "Enabled")
    if moved:
        world.ask("PUT", "/bkt/former", b"bytes")
        scan(world)
        (data / "former").rename(data / "k")
    else:
        (data / "k").write_bytes(b"bytes")
    apply = world.index.apply_soon

    def late(changes: Sequence[Change]) -> None:
        monkeypatch.undo()
        assert world.ask("PUT", "/bkt/k", b"next one").status == 200
        apply(changes)

    monkeypatch.setattr(world.index, "apply_soon", late)
    scan(world)
    assert [one for one in versions(world) if one[0] == "k"] == [("k", 8, True), ("k", 5, False)]
    assert world.index.usage("bucket", "bkt").bytes == 13
    page = world.boto().list_objects_v2(Bucket="bkt")["Contents"]
    assert [(one["Key"], one["Size"]) for one in page] == [("k", 8)]


def test_a_file_of_others_that_is_read_beside_a_scan_is_one_version(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads it hashes it, and it gets its version by that."""
    versioning(world, "Enabled")
    (data / "k").write_bytes(b"bytes")
    apply = world.index.apply_soon

    def late(changes: Sequence[Change]) -> None:
        monkeypatch.undo()
        assert world.ask("GET", "/bkt/k").body == b"bytes"
        apply(changes)

    monkeypatch.setattr(world.index, "apply_soon", late)
    scan(world)
    assert versions(world) == [("k", 5, True)] and world.index.usage("bucket", "bkt").bytes == 5


@pytest.mark.parametrize("key", ["k", "odd//k"])
def test_an_upload_that_a_scan_has_told_of_first_stays_listed(
    world: World, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """With versioning suspended its row is no former version "null", which goes."""
    assert world.ask("PUT", f"/bkt/{key}", b"first").status == 200
    versioning(world, "Enabled")
    assert world.ask("PUT", f"/bkt/{key}", b"second").status == 200
    versioning(world, "Suspended")
    drop_null = publish.drop_null

    def later(*words: Any) -> list[Change]:
        scan(world)
        return drop_null(*words)

    monkeypatch.setattr(publish, "drop_null", later)
    assert world.ask("PUT", f"/bkt/{key}", b"the third").status == 200
    page = world.boto().list_objects_v2(Bucket="bkt")["Contents"]
    assert [(one["Key"], one["Size"]) for one in page] == [(key, 9)]
    assert versions(world) == [(key, 9, True), (key, 6, False)]
    assert world.index.usage("bucket", "bkt").bytes == 15


def test_a_version_that_is_kept_while_others_write_over_it_has_its_row(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its own name by then: it is no longer what they have written over."""
    versioning(world, "Enabled")
    assert world.ask("PUT", "/bkt/k", b"first").status == 200
    link = world.store.link

    def beside(*words: str) -> Entry:
        monkeypatch.undo()
        kept = link(*words)
        (data / "others").write_bytes(b"by others")
        (data / "others").replace(data / "k")
        return kept

    monkeypatch.setattr(world.store, "link", beside)
    assert world.ask("DELETE", "/bkt/k").status == 204
    assert versions(world) == [("k", 9, False), ("k", 5, False)]
    assert world.index.usage("bucket", "bkt").bytes == 14


def test_a_file_of_others_beside_a_key_with_an_odd_name_is_a_later_version(world: World, data: Path) -> None:
    """The object got that name since there was a directory in its way, which has gone."""
    versioning(world, "Enabled")
    for key, body in (("d/k", b"x"), ("d", b"first")):
        assert world.ask("PUT", f"/bkt/{key}", body).status == 200
    assert world.ask("DELETE", "/bkt/d/k").status == 204 and not (data / "d").exists()
    (data / "d").write_bytes(b"by others")
    assert world.ask("GET", "/bkt/d").body == b"by others"
    assert [one for one in versions(world) if one[0] == "d"] == [("d", 9, True), ("d", 5, False)]
    scan(world)
    assert [one for one in versions(world) if one[0] == "d"] == [("d", 9, True), ("d", 5, False)]
