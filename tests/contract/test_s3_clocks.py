"""Servers whose clocks are apart, on storage that draws its stamps from them: what was acknowledged is there,
listed and counted, whichever server did what was before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from s3_processes import processes
from s3_world import World

APART_NS = 30 * 10**9
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"


@contextmanager
def ahead(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the clock of the machine says what others say half a minute later."""
    real = time.time_ns
    with patch.context() as inside:
        inside.setattr(time, "time_ns", lambda: real() + APART_NS)
        yield


def seen(world: World, key: str) -> tuple[int, bytes, list[tuple[int, str]]]:
    """What a GET says, and the sizes and ETags in the listing."""
    got = world.ask("GET", f"/bkt/{key}")
    page = world.boto().list_objects_v2(Bucket="bkt", Prefix=key).get("Contents", [])
    return got.status, got.body if got.status == 200 else b"", [(one["Size"], one["ETag"]) for one in page]


@pytest.mark.parametrize("storage", ["local", "memory"])
def test_what_a_server_that_is_behind_puts_and_removes_counts(
    storage: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with processes(storage, database, tmp_path) as worlds:
        early, late = worlds[0], worlds[1]
        for key in ("k", "odd//key"):
            with ahead(monkeypatch):
                assert early.ask("PUT", f"/bkt/{key}", b"first").status == 200
                assert early.ask("DELETE", f"/bkt/{key}").status == 204
            for body in (b"second", b"the third"):
                done = late.ask("PUT", f"/bkt/{key}", body)
                assert done.status == 200
                for world in worlds:
                    assert seen(world, key) == (200, body, [(len(body), done.headers["etag"])])
            assert late.ask("PUT", f"/bkt/{key}", TAGS, query="tagging").status == 200
            assert late.ask("GET", f"/bkt/{key}", query="tagging").body.count(b"<Tag>") == 1
            assert early.index.usage("bucket", "bkt").bytes == len(b"the third")
            assert late.ask("DELETE", f"/bkt/{key}").status == 204
            assert seen(early, key) == (404, b"", [])
            assert early.index.usage("bucket", "bkt").bytes == 0
