"""Storage in a Sector cloud: the suite of all backends on a real cluster, and what is Sector's own."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_file_store
import test_file_store_names
from file_stores import get, listed, put
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from cumulus.backends.registry import make_store
from cumulus.backends.sector_link import storage_error
from cumulus.backends.sector_sidecar import MOST, Cache, Sidecar
from cumulus.backends.sector_store import SectorStore, _stamp
from cumulus.model import Acl, Bucket
from cumulus.storage.api import (
    BadName,
    Changed,
    Entry,
    Forbidden,
    Missing,
    NoSpace,
    NotEmptyStore,
    StorageError,
    Taken,
    Unavailable,
)
from sector import errors
from sector.client.cloud import CloudClient
from sector.model import Version
from sector.wire.files import LeaseDrop, OpenWrite

pytestmark = pytest.mark.reactor_thread
ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/integration"), str(ROOT / "tests")]

from cluster import Cluster, running, wait_for  # noqa: E402
from s3_world import World  # noqa: E402


def lighter(test: Any) -> Any:
    """The same test, with only the last of its cases: each call here goes to a master and slaves."""
    copied = types.FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__)
    copied.__doc__, copied.__annotations__ = test.__doc__, test.__annotations__
    for mark in getattr(test, "pytestmark", []):
        copied = pytest.mark.parametrize(mark.args[0], mark.args[1][-1:])(copied)
    return copied


for module in (test_file_store, test_file_store_names):  # with our fixtures instead of theirs
    globals().update({n: lighter(test) for n, test in vars(module).items() if n.startswith("test_")})


@pytest.fixture
def ease() -> int:
    """A quarter of the work."""
    return 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of this file."""
    with running(tmp_path_factory.mktemp("cloud"), slaves=1) as started:
        yield started


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[SectorStore]:
    """One connection for all tests of this file."""
    made = make_store(f"sector:{cluster.dir}/client.toml")
    assert isinstance(made, SectorStore)
    yield made
    made.close()
    made.close()


def call(store: SectorStore, work: Any) -> Any:
    """A call of the Sector client that is below the store."""
    return store._link.call(work, "test")


@pytest.fixture
def store(shared: SectorStore) -> Iterator[SectorStore]:
    """With one empty bucket, "b"."""
    assert list(shared.recover()) == []
    shared.create_bucket("b")
    yield shared
    for _ in range(50):  # leases that are being given back
        try:
            return call(shared, lambda client: client.rm("/s3", recursive=True))
        except Unavailable:
            threading.Event().wait(0.05)
    raise AssertionError("/s3 cannot be emptied")


def sidecars(store: SectorStore) -> list[str]:
    """Paths of all that are there."""
    found = call(store, lambda client: client.ls("/s3/b/.cumulus/meta", recursive=True))
    return [info.path for info in found if info.kind == "file"]


def sidecars_of(store: SectorStore, name: str) -> list[str]:
    """The paths of those of one object: one, and for a moment that of what it has replaced."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return [path for path in sidecars(store) if digest in path]


def sidecar_of(store: SectorStore, name: str) -> str:
    """The path of one."""
    (found,) = sidecars_of(store, name)
    return found


def test_a_body_is_a_plain_file_for_users_of_sector(store: SectorStore, cluster: Cluster) -> None:
    """Byte for byte, without its meta; and what they put there is an object."""
    put(store, "dir/a", b"plain bytes", b"meta")
    assert call(store, lambda client: client.read("/s3/b/dir/a")) == b"plain bytes"
    call(store, lambda client: client.write("/s3/b/dir/a", b"theirs"))
    call(store, lambda client: client.write("/s3/b/new", b"theirs too"))
    assert (get(store, "dir/a"), store.stat("b", "dir/a").meta) == (b"theirs", None)
    assert listed(store) == ["dir/a", "new"]
    marked = store.set_meta("b", "new", b"now it has one", store.stat("b", "new").token)
    assert store.stat("b", "new") == marked


def test_a_record_that_others_made_too_long_is_not_taken_in(store: SectorStore) -> None:
    """It would have to lie in memory, for each request and each scan. The object is as one of others."""
    put(store, "a", b"body", b"meta")
    beside, long = sidecar_of(store, "a"), Sidecar("a", 1, b"m" * MOST).encode()
    call(store, lambda client: client.write(beside, long))
    assert (get(store, "a"), store.stat("b", "a").meta) == (b"body", None)
    assert store.sweep(-5) == 0
    put(store, "a", b"next", b"meta")
    assert (get(store, "a"), store.stat("b", "a").meta) == (b"next", b"meta")


def test_one_record_that_is_lost_keeps_nothing_else(store: SectorStore, cluster: Cluster) -> None:
    """Its only replica is gone. What others did is found all the same, also by a store that remembers no
    records, and what can be swept is; of the object itself nothing is said but that it is away."""
    for name in ("a", "b", "c"):
        put(store, name, b"body of " + name.encode())
    (lost,) = (cluster.dir / "up/data").glob("*/files" + sidecar_of(store, "b"))
    lost.unlink()
    call(store, lambda client: client.write("/s3/b/new", b"theirs"))
    beside = sidecar_of(store, "a")
    record = call(store, lambda client: client.read(beside))
    former = beside.rpartition(".")[0] + ".0"  # as of a version from before
    call(store, lambda client: client.write(former, record))
    other = make_store(f"sector:{cluster.dir}/client.toml")
    for _ in range(2):  # the second time the master knows of the loss
        assert list(other.walk("b", 2)) == [["a", "b"], ["c", "new"]]
        known = {"a": other.stat("b", "a").token, "c": b"of before"}
        looked = other.look("b", ["a", "b", "c", "gone", "new"], known)
        assert {name: entry and entry.size for name, entry in looked.items()} == {
            "c": 9,
            "gone": None,
            "new": 6,
        }
        with pytest.raises(Unavailable):
            other.stat("b", "b")
    assert len(sidecars(store)) == 4
    assert other.sweep(-5) == 1
    assert len(sidecars(store)) == 3
    other.close()


def test_records_without_an_object_are_swept_one_by_one(store: SectorStore) -> None:
    """Each is several requests: others have their turn after it, and the end of a process waits for one."""
    put(store, "a", b"body", b"meta")
    beside = sidecar_of(store, "a")
    record = call(store, lambda client: client.read(beside))
    former = beside.rpartition(".")[0]  # as of versions from before
    for number in range(5):
        call(store, lambda client, path=f"{former}.{number}": client.write(path, record))
    rests: list[int] = []
    assert store.sweep_gently(-5, lambda: rests.append(1) or len(rests) == 2) == 2
    assert len(sidecars(store)) == 4
    assert store.sweep(-5) == 3
    assert len(sidecars(store)) == 1


def test_an_object_whose_record_is_lost_can_be_replaced_and_removed(
    store: SectorStore, cluster: Cluster
) -> None:
    """By who uses S3 alone: what depends on the record is away, an upload over it and its removal need
    none."""

    def lose() -> None:
        wait_for("the record of what was replaced to go", lambda: len(sidecars_of(store, "a")) == 1)
        (lost,) = (cluster.dir / "up/data").glob("*/files" + sidecar_of(store, "a"))
        lost.unlink()
        store._cache = Cache()

    world = World(store)
    try:
        alice = world.people.users["alice"].id
        world.index.add_bucket(Bucket(name="b", owner=alice, created_ns=1, acl=Acl(owner=alice)))
        assert world.ask("PUT", "/b/a", b"first").status == 200
        lose()
        for method, headers in (("GET", {}), ("PUT", {"If-Match": '"x"'}), ("DELETE", {"If-Match": '"x"'})):
            assert world.ask(method, "/b/a", headers=headers).status == 503, method
        assert world.ask("PUT", "/b/a", b"again", headers={"If-None-Match": "*"}).status in (412, 503)
        assert world.ask("PUT", "/b/a", b"second", headers={"x-amz-meta-n": "2"}).status == 200
        found = world.ask("GET", "/b/a")
        assert (found.body, found.headers["x-amz-meta-n"]) == (b"second", "2")
        lose()
        assert world.ask("DELETE", "/b/a").status == 204
        assert world.ask("GET", "/b/a").status == 404
        assert world.ask("DELETE", "/b").status == 204
    finally:
        world.gateway.close()
        world.index.close()


def test_a_large_object_is_read_in_windows(store: SectorStore) -> None:
    """In order and not; a replacement is told, and never mixed in."""
    body = bytes(range(256)) * (5 << 12)
    put(store, "large", body)
    stream = store.open_read("b", "large")
    pieces = [stream.read_at(start, 700_000) for start in range(0, len(body), 700_000)]
    assert b"".join(pieces) == body
    assert stream.read_at(4_000_001, 11) == body[4_000_001:4_000_012]
    assert stream.read_at(17, 5) == body[17:22]
    put(store, "large", body[::-1])
    with pytest.raises(Changed):
        stream.read_at(2_000_000, 100)
    store.delete("b", "large")
    with pytest.raises(Changed):
        stream.read_at(3_000_000, 100)
    stream.close()
    with pytest.raises(StorageError):
        stream.read_at(0, 1)


def test_useless_sidecars_are_swept(store: SectorStore) -> None:
    """Of replaced bodies; the one in use stays."""
    put(store, "a", b"1", b"first")
    old = sidecars(store)[0]
    blob = call(store, lambda client: client.read(old))
    put(store, "a", b"2", b"second")
    call(store, lambda client: client.write(old, blob))
    call(store, lambda client: client.write("/s3/b/.cumulus/meta/foreign", b"?"))
    assert store.sweep(3600) == 0
    assert store.sweep(-5) == 1
    assert old not in sidecars(store)
    assert store.stat("b", "a").meta == b"second"


def test_a_writer_elsewhere_is_waited_for(store: SectorStore, cluster: Cluster) -> None:
    """A lease that another client holds; its condition is then seen to have failed."""
    first = put(store, "a", b"1")
    other = make_store(f"sector:{cluster.dir}/client.toml")
    try:
        second = put(other, "a", b"2", if_token=first.token)
        with pytest.raises(Changed):
            put(store, "a", b"3", if_token=first.token)
        assert store.stat("b", "a") == second
        assert other.delete("b", "a", second.token) > second.stamp
    finally:
        other.close()
    with pytest.raises(StorageError, match="closed"):
        other.stat("b", "a")


def put_before(patch: pytest.MonkeyPatch, call: str, other: Any, name: str, body: bytes) -> list[Entry]:
    """Another server publishes an object just before a call of the Sector client, once; what it got."""
    real, puts = getattr(CloudClient, call), list[Entry]()

    async def late(client: CloudClient, *words: Any) -> Any:
        if not puts:
            puts.append(await deferToThread(put, other, name, body, b"meta"))
        return await real(client, *words)

    patch.setattr(CloudClient, call, late)
    return puts


def test_a_bucket_goes_only_if_nothing_was_put_since_it_was_looked_at(
    store: SectorStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another server, after the look and just before the removal."""
    other = make_store(f"sector:{cluster.dir}/client.toml")
    puts = put_before(monkeypatch, "rm_hollow", other, "late/key", b"body")
    try:
        put(store, "former")
        store.delete("b", "former")
        with pytest.raises(NotEmptyStore):
            store.delete_bucket("b")
        assert puts == [store.stat("b", "late/key")]
        assert get(store, "late/key") == b"body"
        store.delete("b", "late/key")
        store.delete_bucket("b")
        with pytest.raises(Missing):
            put(other, "k")
    finally:
        other.close()


def test_a_bucket_that_is_written_to_is_kept(store: SectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody holds a lease in it: what he publishes is found by the next look."""
    grant = call(store, lambda client: client.call(OpenWrite("/s3/b/slow", 4)))
    monkeypatch.setattr("cumulus.backends.sector_store._PATIENCE_S", 0.3)
    with pytest.raises(Unavailable, match="written to"):
        store.delete_bucket("b")
    call(store, lambda client: client.call(LeaseDrop("/s3/b/slow", grant.lease)))
    put(store, "slow", b"body")
    with pytest.raises(NotEmptyStore):
        store.delete_bucket("b")
    assert get(store, "slow") == b"body"


def test_a_removal_spares_what_was_published_since_its_condition_held(
    store: SectorStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another server, between the two."""
    other = make_store(f"sector:{cluster.dir}/client.toml")
    first = put(store, "a", b"old")
    puts = put_before(monkeypatch, "rm_version", other, "a", b"new")
    try:
        with pytest.raises(Changed):
            store.delete("b", "a", first.token)
        assert (store.stat("b", "a"), get(store, "a")) == (puts[0], b"new")
        assert store.delete("b", "a") > puts[0].stamp
    finally:
        other.close()


def test_a_master_that_knows_no_removal_of_a_version_removes_the_file(
    store: SectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no bucket: it would take what came in between."""

    async def unknown(*_: Any) -> Any:
        raise errors.Protocol("does not know")

    put(store, "a", b"old")
    for name in ("rm_version", "rm_hollow"):
        monkeypatch.setattr(CloudClient, name, unknown)
    store.delete("b", "a")
    with pytest.raises(Missing):
        store.stat("b", "a")
    with pytest.raises(Unavailable, match="does not know"):
        store.delete_bucket("b")
    assert listed(store) == []


def test_what_takes_too_long_is_unavailable(store: SectorStore) -> None:
    """And is cancelled."""
    cancelled = threading.Event()

    def never(_: Any) -> Deferred[None]:
        return Deferred(lambda _: cancelled.set())

    with pytest.raises(Unavailable, match="no answer within"):
        store._link.call(never, "a", 0.05)
    assert cancelled.wait(10)


def test_a_cloud_that_is_away_is_unavailable(cluster: Cluster, tmp_path: Path) -> None:
    """At the first call, soon."""
    settings = tmp_path / "client.toml"
    settings.write_text('[client]\nmasters = ["127.0.0.1:1"]\nuser = "nobody"\n')
    away = make_store(f"sector:{settings}")
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        away.stat("b", "a")
    assert time.monotonic() - begin < 20
    away.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotFound, Missing),
        (errors.Denied, Forbidden),
        (errors.NoSpace, NoSpace),
        (errors.IsDirectory, Taken),
        (errors.NotDirectory, Taken),
        (errors.Conflict, Changed),
        (errors.BadPath, BadName),
        (errors.Unreachable, Unavailable),
        (errors.SessionExpired, Unavailable),
        (errors.ReadOnly, Unavailable),
        (errors.Damaged, Unavailable),
    ],
)
def test_errors_of_sector(error: type[errors.SectorError], kind: type[StorageError]) -> None:
    """Each has its storage error, with what it was about."""
    made = storage_error(error("why"), "b/a")
    assert type(made) is kind
    assert str(made) == "b/a: why"


def test_a_bucket_elsewhere_is_refused(store: SectorStore) -> None:
    """A bucket is /s3/BUCKET; and what is the store's own is no object."""
    with pytest.raises(BadName, match="/s3/c"):
        store.create_bucket("c", "/data")
    with pytest.raises(BadName):
        store.stat("b", ".cumulus/meta/x")


@pytest.mark.parametrize("file", ["a", "deep/er/a"])
def test_a_directory_that_users_of_sector_put_there_goes_to_nobody(store: SectorStore, file: str) -> None:
    """It has never been a bucket. An empty one is anybody's, and so is what a removal has left."""
    path = f"/s3/climate/{file}"
    call(store, lambda client: client.mkdir(path.rpartition("/")[0], parents=True))
    call(store, lambda client: client.mkdir("/s3/empty/dir", parents=True))
    call(store, lambda client: client.write(path, b"theirs"))
    world = World(store)
    try:
        for user in ("bob", "alice"):
            refused = world.ask("PUT", "/climate", user=user)
            assert (refused.status, refused.code) == (409, "BucketAlreadyExists")
        assert [info.path for info in call(store, lambda client: client.ls("/s3/climate"))] == [
            f"/s3/climate/{file.partition('/')[0]}"
        ]
        assert world.ask("PUT", "/empty").status == 200
        assert world.ask("PUT", "/new").status == 200
    finally:
        world.gateway.close()
        world.index.close()


def test_what_others_put_among_what_is_internal_hides_nothing(store: SectorStore) -> None:
    """Also behind all that has names of ours."""
    for name in (".cumulus/\U0010ffff", ".cumulus/\U0010ffffa", ".cumulus/\U0010ffffb", ".cumulus/meta0"):
        call(store, lambda client, path=f"/s3/b/{name}": client.write(path, b"theirs"))
    put(store, ".cumulus0")
    assert listed(store) == next(iter(store.walk("b"))) == [".cumulus0"]
    assert ".cumulus/meta0" in listed(store, prefix=".cumulus/")


def test_boto3_over_sector(store: SectorStore) -> None:
    """Put, get, a range, list, multipart, delete through the S3 gateway; bodies are files in the cloud."""
    world = World(store)
    s3 = world.boto()
    try:
        s3.create_bucket(Bucket="photos")
        s3.put_object(Bucket="photos", Key="a/b.txt", Body=b"hello world", Metadata={"who": "me"})
        found = s3.get_object(Bucket="photos", Key="a/b.txt")
        assert (found["Body"].read(), found["Metadata"]) == (b"hello world", {"who": "me"})
        part = s3.get_object(Bucket="photos", Key="a/b.txt", Range="bytes=6-")["Body"].read()
        assert part == b"world"
        upload = s3.create_multipart_upload(Bucket="photos", Key="big")["UploadId"]
        parts = []
        for number in (1, 2):
            sent = s3.upload_part(
                Bucket="photos",
                Key="big",
                UploadId=upload,
                PartNumber=number,
                Body=io.BytesIO(bytes([number]) * 600_000),
            )
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        s3.complete_multipart_upload(
            Bucket="photos", Key="big", UploadId=upload, MultipartUpload={"Parts": parts}
        )
        whole = b"\1" * 600_000 + b"\2" * 600_000
        assert s3.get_object(Bucket="photos", Key="big")["Body"].read() == whole
        assert call(store, lambda client: client.read("/s3/photos/big")) == whole
        keys = [one["Key"] for one in s3.list_objects_v2(Bucket="photos")["Contents"]]
        assert keys == ["a/b.txt", "big"]
        for key in keys:
            s3.delete_object(Bucket="photos", Key=key)
        s3.delete_bucket(Bucket="photos")
    finally:
        world.gateway.close()
        world.index.close()


def test_stamps_have_the_order_of_versions_and_fit_an_index() -> None:
    """Whatever number of writes there were, and whether the master's epoch is a count or a time."""
    ways = [(1, 1), (1, 1 << 41), (2, 5), (65_535, 1 << 40), (1_300_000_000, 0), (1_764_000_000, 7)]
    ways += [(1_764_000_000, 1 << 31), (1_764_000_000, 1 << 33), (1_764_000_100, 3), ((1 << 32) - 1, 1 << 30)]
    stamps = [_stamp(Version(*way)) for way in ways]
    assert stamps == sorted(set(stamps)) and stamps[-1] < 1 << 63
