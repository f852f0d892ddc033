"""A database that goes away between storing and recording: the answer is true, and nothing is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from s3_world import World

from cumulus.backends.posix.store import PosixStore
from cumulus.backends.posix.streams import Writer
from cumulus.index.api import Away, Change, IndexFailure, Put
from cumulus.model import Bucket
from cumulus.ops import told
from cumulus.ops.jobs import hash_waiting
from cumulus.parts import remember_until_synced, take_in
from cumulus.storage.api import Unavailable

PART = 5 << 20


class Outage:
    """The database is away for the next `calls` changes."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.refused = threading.Event()
        for name in ("apply", "apply_soon", "tell", "tell_all", "drop_upload"):
            monkeypatch.setattr(world.index, name, self._away(getattr(world.index, name)))

    def _away(self, real: object) -> object:
        def call(*arguments: object) -> object:
            if self.calls > 0:
                self.calls -= 1
                self.refused.set()
                raise Away("no database")
            return real(*arguments)  # type: ignore[operator]

        return call


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service on plain files with a bucket."""
    made = World(PosixStore(str(tmp_path / "store")))
    remember_until_synced(made.site)
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


@pytest.fixture
def outage(world: World, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Which may be asked for; nobody waits long."""
    monkeypatch.setattr(told, "PAUSE_S", 0.001)
    return Outage(world, monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests do not wait."""
    monkeypatch.setattr(told, "PATIENCE_S", 0.0)


def listed(world: World) -> list[str]:
    """Keys of the bucket."""
    return world.ask("GET", "/bkt").leaves("Key")


@pytest.mark.parametrize("key", ["k", "odd//k"])
def test_an_upload_waits_for_the_database(world: World, outage: Outage, key: str) -> None:
    """Away for a moment: 200, and it is listed."""
    outage.calls = 3
    assert world.ask("PUT", f"/bkt/{key}", b"x").status == 200
    assert outage.calls == 0 and listed(world) == [key]


def test_a_deletion_and_a_completion_wait_for_the_database(world: World, outage: Outage) -> None:
    """They are done once."""
    s3 = world.boto()
    upload = s3.create_multipart_upload(Bucket="bkt", Key="parts")["UploadId"]
    where = {"Bucket": "bkt", "Key": "parts", "UploadId": upload}
    tag = s3.upload_part(**where, PartNumber=1, Body=b"x" * 1000)["ETag"]
    outage.calls = 2
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    assert listed(world) == ["parts"] and outage.calls == 0
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes) == (1000, 1, 0)
    outage.calls = 2
    assert world.ask("DELETE", "/bkt/parts").status == 204
    assert listed(world) == [] and world.index.usage("bucket", "bkt").objects == 0


@pytest.mark.usefixtures("impatient")
def test_what_the_database_did_not_hear_is_told_later(world: World, outage: Outage) -> None:
    """503, and no further upload is begun; the room stays held until then, to the byte."""
    outage.calls = 1000
    refused = world.ask("PUT", "/bkt/odd//k", b"x" * 10)
    assert (refused.status, refused.code) == (503, "ServiceUnavailable") and "retry-after" in refused.headers
    assert len(world.site.told) == 1
    outage.calls = 0
    assert world.ask("PUT", "/bkt/other", b"x").status == 503
    assert world.ask("GET", "/bkt/other").status == 404, "nothing has changed"
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.reserved_bytes, usage.reserved_objects) == (0, 10, 1)
    hash_waiting(world.site)
    assert listed(world) == ["odd//k"] and world.ask("GET", "/bkt/odd//k").body == b"x" * 10
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes, usage.reserved_objects) == (10, 1, 0, 0)
    assert world.ask("PUT", "/bkt/other", b"x").status == 200


@pytest.mark.usefixtures("impatient")
def test_what_replaces_an_older_version_is_told_with_it(world: World, outage: Outage) -> None:
    """With versioning suspended: the version "null", which goes, and the object that has its place."""

    def versioning(status: str) -> None:
        world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})

    assert world.ask("PUT", "/bkt/odd//k", b"first").status == 200
    versioning("Enabled")
    assert world.ask("PUT", "/bkt/odd//k", b"second").status == 200
    versioning("Suspended")
    outage.calls = 1000
    assert world.ask("PUT", "/bkt/odd//k", b"x" * 10).status == 503
    outage.calls = 0
    hash_waiting(world.site)
    rows = world.boto().list_object_versions(Bucket="bkt")["Versions"]
    assert [(row["Size"], row["IsLatest"]) for row in rows] == [(10, True), (6, False)]
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes, usage.reserved_objects) == (16, 2, 0, 0)


@pytest.mark.usefixtures("impatient")
def test_a_deletion_that_the_database_did_not_hear_is_told_later(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions go on, since they may be what helps; up to a bound."""
    for key in ("a", "b", "c"):
        assert world.ask("PUT", f"/bkt/{key}", b"x").status == 200
    monkeypatch.setattr(told, "MOST", 2)
    outage.calls = 1000
    assert [world.ask("DELETE", f"/bkt/{key}").status for key in ("a", "b", "c")] == [503] * 3
    outage.calls = 0
    assert world.ask("GET", "/bkt/c").status == 200, "nothing has changed"
    assert len(world.site.told) == 2
    hash_waiting(world.site)
    assert listed(world) == ["c"] and world.index.usage("bucket", "bkt").objects == 1


@pytest.mark.usefixtures("impatient")
def test_a_journal_stays_until_the_database_has_heard(world: World, outage: Outage, tmp_path: Path) -> None:
    """So that even after a crash the object is found, which no scan of the directory would do."""
    outage.calls = 1000
    assert world.ask("PUT", "/bkt/odd//k", b"x").status == 503
    store = world.store
    assert isinstance(store, PosixStore)
    with pytest.raises(Unavailable):
        store._journal.checkpoint()
    world.site.told._owed.clear()  # the crash
    outage.calls = 0
    for generation in store._journal._retired:
        generation_path = tmp_path / "store/journal" / generation.name
        generation_path.with_name(f"left-{generation.name}").write_bytes(generation_path.read_bytes())
    next_start = PosixStore(str(tmp_path / "store"))
    assert take_in(next_start, world.index) == 1
    next_start.close()
    assert listed(world) == ["odd//k"]


def test_closing_does_not_wait_for_a_database_that_is_away(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits is answered at once then."""
    monkeypatch.setattr(told, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(told, "PAUSE_S", 3600.0)
    outage.calls = 1000
    answers: list[int] = []
    request = threading.Thread(target=lambda: answers.append(world.ask("PUT", "/bkt/k", b"x").status))
    request.start()
    assert outage.refused.wait(30)
    with pytest.raises(Away):
        world.site.told.settle()
    world.site.told.close()
    request.join(30)
    assert answers == [503]
    outage.calls = 0
    world.site.told.settle()
    assert listed(world) == ["k"]


@pytest.mark.usefixtures("impatient")
def test_what_the_database_refuses_for_good_does_not_stop_the_rest(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and left to scans."""
    outage.calls = 2
    assert world.ask("DELETE", "/bkt/none").status == 204  # nothing to tell
    assert world.ask("PUT", "/bkt/k", b"x").status == 503
    real = world.index.apply
    changes: list[Sequence[Change]] = []

    def refuse(some: Sequence[Change]) -> None:
        changes.append(some)
        raise IndexFailure("the database cannot hold that")

    monkeypatch.setattr(world.index, "apply", refuse)
    world.site.told.settle()
    assert isinstance(changes[0][0], Put) and len(world.site.told) == 0
    monkeypatch.setattr(world.index, "apply", real)
    assert isinstance(world.site.bucket("bkt"), Bucket)
    assert world.ask("PUT", "/bkt/k", b"y").status == 200


def test_nobody_waits_for_a_database_that_is_stuck(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one attempt has taken all the time that a request waits (a lock in the database), it is answered
    after that; the change is told later."""
    monkeypatch.setattr(told, "STUCK_S", 0.0)
    outage.calls = 1
    assert world.ask("PUT", "/bkt/k", b"body").status == 503
    assert (outage.calls, len(world.site.told)) == (0, 1)
    hash_waiting(world.site)
    assert len(world.site.told) == 0 and world.index.lookup("bkt", "k")


def test_what_an_object_replaces_is_asked_again_when_it_has_its_name(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With versioning suspended, under a name of ours that no scan looks for: the question which version
    "null" goes meets a database that is away for a moment. It is 200, and listed."""
    assert world.ask("PUT", "/bkt/odd//k", b"first").status == 200
    for status in ("Enabled", "Suspended"):
        world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})
        if status == "Enabled":
            assert world.ask("PUT", "/bkt/odd//k", b"second").status == 200
    commit, lookup, left = Writer.commit, world.index.lookup, list[int]()

    def committed(writer: Writer, *words: object) -> object:
        left.append(2)
        return commit(writer, *words)  # type: ignore[arg-type]

    def away(*words: object) -> object:
        if left and left[0]:
            left[0] -= 1
            raise Away("no database")
        return lookup(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "commit", committed)
    monkeypatch.setattr(world.index, "lookup", away)
    assert world.ask("PUT", "/bkt/odd//k", b"third").status == 200
    assert left == [0]
    assert world.ask("GET", "/bkt/odd//k").body == b"third"
    rows = world.boto().list_object_versions(Bucket="bkt")["Versions"]
    assert [(row["Size"], row["IsLatest"]) for row in rows] == [(5, True), (6, False)]
