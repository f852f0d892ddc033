"""`bucket remove --delete-data` beside a server in whose bucket somebody writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cumulus_commands import Commands

from cumulus.backends.posix.store import PosixStore
from cumulus.config import load_config
from cumulus.index.api import Index, Put, Row
from cumulus.opening import open_index
from cumulus.storage.api import NotEmptyStore


def told_late(index: Index, key: str) -> None:
    """A server tells the index of an object that it had stored a moment ago."""
    owner = index.bucket("box")
    assert owner is not None
    row = Row(
        bucket="box", key=key, name=key, size=1, etag="e", modified_ns=1, owner=owner.owner,
        stamp=1, token=b"t",
    )  # fmt: skip
    index.apply([Put(row=row)])


def test_what_a_server_tells_last_does_not_keep_the_bucket(
    cloud: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body has gone with all others; else the bucket stayed without its directory: 404 for all that is
    asked of it, and 409 for who makes it anew."""
    cloud("user", "add", "alice")
    cloud("bucket", "add", "box", "--owner", "alice")
    (cloud.dir / "data/box/k").write_bytes(b"1")
    cloud("bucket", "rescan", "box")
    index, directory = open_index(load_config(cloud.dir / "cumulus.toml"), lambda bad: None)
    real = PosixStore.delete_bucket

    def delete(store: PosixStore, bucket: str) -> None:
        real(store, bucket)
        told_late(index, "late")

    monkeypatch.setattr(PosixStore, "delete_bucket", delete)
    assert cloud.json("bucket", "remove", "box", "--delete-data")["objects"] == 1
    assert cloud.json("bucket", "list") == []
    index.close()
    directory.close()
    monkeypatch.undo()
    cloud("bucket", "add", "box", "--owner", "alice")


def test_a_bucket_that_does_not_go_has_its_policy_again(
    cloud: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was closed while its objects were deleted, since somebody went on putting some."""
    monkeypatch.setattr("cumulus.admin.data._HEEDED_S", 0.0)
    cloud("user", "add", "alice")
    cloud("bucket", "add", "box", "--owner", "alice")
    index, directory = open_index(load_config(cloud.dir / "cumulus.toml"), lambda bad: None)
    before = index.bucket("box")
    seen: list[str | None] = []

    def stay(store: PosixStore, bucket: str) -> None:
        index.forget()  # type: ignore[attr-defined]
        now = index.bucket(bucket)
        seen.append(now.policy if now else None)
        raise NotEmptyStore(f"bucket {bucket!r} has objects")

    monkeypatch.setattr(PosixStore, "delete_bucket", stay)
    assert "has objects" in cloud.refused("bucket", "remove", "box", "--delete-data")["message"]
    assert seen[0] is None and seen[1] is not None and '"Deny"' in seen[1]
    index.forget()  # type: ignore[attr-defined]
    assert index.bucket("box") == before
    index.close()
    directory.close()
