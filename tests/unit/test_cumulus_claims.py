"""Claims on uploads of a server that was killed while it completed them."""

from __future__ import annotations

import pytest
from cumulus_commands import Commands

from cumulus.config import load_config
from cumulus.index.api import Away, Upload
from cumulus.index.sqlite import SqliteIndex
from cumulus.model import Acl, ObjectMeta
from cumulus.parts import Parts, open_parts


def start(run: Commands) -> Parts:
    """A server without its ports."""
    return open_parts(load_config(run.dir / "cumulus.toml"))


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with alice's bucket `data`, to which an upload was just being completed."""
    cloud("user", "add", "alice")
    cloud("bucket", "add", "data", "--owner", "alice")
    parts = start(cloud)
    index = parts.gateway.site.index
    bucket = index.bucket("data")
    assert bucket is not None
    acl = Acl(owner=bucket.owner)
    meta = ObjectMeta(key="k", size=0, etag="", modified_ns=1, acl=acl)
    made = {"owner": bucket.owner, "initiator": bucket.owner, "created_ns": 1, "meta": meta}
    index.add_upload(Upload(id="u", bucket="data", key="k", **made))
    assert index.claim_upload("u", "who is killed", 60.0)
    parts.close()
    return cloud


def test_they_end_when_it_starts_again(run: Commands) -> None:
    """Its clients ask again at once, and were told to come in a minute."""
    parts = start(run)
    assert parts.gateway.site.index.claim_upload("u", "another", 60.0)
    parts.close()


def test_a_database_that_cannot_be_written_keeps_no_server_from_its_start(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end by themselves then."""

    def full(index: SqliteIndex) -> None:
        raise Away("database or disk is full")

    monkeypatch.setattr(SqliteIndex, "free_uploads", full)
    parts = start(run)
    assert not parts.gateway.site.index.claim_upload("u", "another", 60.0)
    parts.close()
