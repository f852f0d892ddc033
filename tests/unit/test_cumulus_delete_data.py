"""`bucket remove --delete-data` beside a server in whose bucket somebody writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cumulus_commands import Commands

from cumulus.backends.posix.store import PosixStore
from cumulus.config import load_config
from cumulus.index.api import Index, Put, Row
from cumulus.opening import open_index


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
