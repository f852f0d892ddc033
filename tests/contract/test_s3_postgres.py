"""What the whole service promises with an index in PostgreSQL, which reserves nothing without a quota."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cumulus_bench import Bench
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.index.admin_api import Quota
from cumulus.ops import multipart


@pytest.fixture
def bench(tmp_path: Path, postgres_here: str) -> Iterator[Bench]:
    """An empty database."""
    made = Bench(tmp_path, "postgresql")
    yield made
    made.close()


@pytest.fixture
def world(bench: Bench) -> Iterator[World]:
    """A service with an object of 100 bytes."""
    made = World(MemoryStore(), bench.index)
    assert made.ask("PUT", "/bkt").status == 200
    assert made.ask("PUT", "/bkt/k", b"x" * 100).status == 200
    yield made
    made.gateway.close()
    made.store.close()


def during(patch: pytest.MonkeyPatch, owner: Any, name: str, bench: Bench, **limits: int) -> None:
    """The bucket gets a quota just before that function is called."""
    real = getattr(owner, name)

    def act(*words: Any, **options: Any) -> Any:
        bench.admin.set_quota(Quota(scope="bucket", name="bkt", **limits))
        bench.fresh()
        return real(*words, **options)

    patch.setattr(owner, name, act)


def test_a_quota_that_is_set_while_an_object_is_copied_counts(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    during(monkeypatch, world.store, "copy", bench, hard_bytes=150)
    answer = world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "/bkt/k"})
    assert (answer.status, answer.code) == (403, "QuotaExceeded")
    assert world.ask("HEAD", "/bkt/copy").status == 404
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.reserved_bytes, usage.reserved_objects) == (100, 0, 0)


def test_a_quota_that_is_set_while_an_upload_is_completed_counts(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts hold their bytes already, but no place among the objects. The upload goes on."""
    client = world.boto()
    upload = {"Bucket": "bkt", "Key": "large", "UploadId": ""}
    upload["UploadId"] = client.create_multipart_upload(Bucket="bkt", Key="large")["UploadId"]
    etag = client.upload_part(**upload, PartNumber=1, Body=b"y" * 50)["ETag"]
    document = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{document}</CompleteMultipartUpload>".encode()
    query = {"uploadId": upload["UploadId"]}
    during(monkeypatch, multipart, "join", bench, hard_objects=1)
    assert world.ask("POST", "/bkt/large", body, query=query).code == "QuotaExceeded"
    assert world.ask("HEAD", "/bkt/large").status == 404
    monkeypatch.undo()
    bench.admin.set_quota(Quota(scope="bucket", name="bkt", hard_objects=2))
    bench.fresh()
    assert world.ask("POST", "/bkt/large", body, query=query).status == 200
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes, usage.reserved_objects) == (150, 2, 0, 0)
