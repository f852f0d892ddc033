"""Work in the background: nothing that fails or lasts keeps the rest from its turn, and what cannot be undone
is done by the settings of the moment."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from s3_stores import STORES
from s3_world import SECOND, World

from cumulus.auth import lifecycle
from cumulus.backends.posix import bodies
from cumulus.ops import jobs
from cumulus.ops.jobs import Done, Jobs
from cumulus.ops.resting import Resting
from cumulus.storage.api import Forbidden, StorageError, Unavailable

DAY = 24 * 3600 * SECOND


@pytest.fixture(params=["posix"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def work(world: World, days: int = 0) -> Done:
    """Do all background work as if it were so many days later."""
    world.skew_ns = days * DAY
    try:
        return Jobs(world.site, lifecycle).run()
    finally:
        world.skew_ns = 0


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def etags(world: World) -> dict[str, str]:
    """As a listing has them."""
    return {
        one["Key"]: one["ETag"].strip('"')
        for one in world.boto().list_objects_v2(Bucket="bkt").get("Contents", ())
    }


def rules(world: World, *actions: dict[str, Any], **filter_: Any) -> None:
    """One rule for each action."""
    found = [
        {"ID": f"r{number}", "Status": "Enabled", "Filter": filter_ or {"Prefix": ""}, **action}
        for number, action in enumerate(actions)
    ]
    world.boto().put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": found})


def versions_on(world: World) -> None:
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})


# scans -------------------------------------------------------------------------------------------------
def test_a_file_that_the_disk_cannot_read_keeps_no_other_from_a_listing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays listed as it was."""
    for name in ("bad", "good"):
        assert world.ask("PUT", f"/bkt/{name}", b"old").status == 200
        (data / name).write_bytes(b"new bytes")
    (data / "new").write_bytes(b"from outside")
    real = bodies.record_of

    def record_of(root: Any, name: str, fd: int, status: os.stat_result) -> Any:
        if name == "bad":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(root, name, fd, status)

    monkeypatch.setattr(bodies, "record_of", record_of)
    done = work(world)
    assert (done.renewed, done.gone) == (2, 0)
    assert etags(world)["bad"] == md5(b"old") and set(etags(world)) == {"bad", "good", "new"}
    (data / "good").unlink()
    assert work(world).gone == 1


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_a_file_of_others_takes_the_place_of_no_older_version(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool, large: bool
) -> None:
    """The object from before there were versions has the id that such a file has at first. It was replaced or
    deleted, and stays an older version when somebody puts a file in the place of what is current."""
    monkeypatch.setattr(jobs, "HASH_AT_ONCE", 0 if large else 100)
    client = world.boto()
    client.put_object(Bucket="bkt", Key="k", Body=b"from before")
    versions_on(world)
    if deleted:
        client.delete_object(Bucket="bkt", Key="k")
    else:
        client.put_object(Bucket="bkt", Key="k", Body=b"by a client")
    (data / "draft").write_bytes(b"of others")
    (data / "draft").rename(data / "k")
    work(world)
    work(world)
    found = client.list_object_versions(Bucket="bkt", Prefix="k")["Versions"]
    bodies = [
        client.get_object(Bucket="bkt", Key="k", VersionId=one["VersionId"])["Body"].read() for one in found
    ]
    assert bodies == [b"of others", b"from before"]
    assert [one["IsLatest"] for one in found] == [True, False]
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects) == (len(b"of others" + b"from before"), 2)


def test_a_file_of_others_replaces_what_has_no_version_while_these_are_suspended(
    world: World, data: Path
) -> None:
    """As an upload does; nothing of it is left on the disk."""
    client = world.boto()
    client.put_object(Bucket="bkt", Key="k", Body=b"from before")
    versions_on(world)
    client.put_object(Bucket="bkt", Key="k", Body=b"by a client")
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Suspended"})
    (data / "draft").write_bytes(b"of others")
    (data / "draft").rename(data / "k")
    work(world)
    work(world)
    found = client.list_object_versions(Bucket="bkt", Prefix="k")["Versions"]
    assert [(one["VersionId"], one["Size"]) for one in found] == [("null", len(b"of others"))]
    assert not list((data / ".cumulus/versions").glob("*/*"))


# lifecycle rules ---------------------------------------------------------------------------------------
def locked_directory(data: Path) -> Path:
    """What cannot be removed."""
    (data / "a").chmod(0o555)
    return data / "a"


def locked_file(data: Path) -> Path:
    """What cannot be read."""
    (data / "a/locked").chmod(0)
    return data / "a/locked"


@pytest.mark.parametrize("lock", [locked_directory, locked_file])
def test_an_object_that_cannot_go_keeps_no_other_from_its_end(
    world: World, data: Path, lock: Callable[[Path], Path]
) -> None:
    """Nor uploads, nor other buckets; it is told, and tried again."""
    client = world.boto()
    client.create_bucket(Bucket="other")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    client.put_bucket_lifecycle_configuration(Bucket="other", LifecycleConfiguration={"Rules": [rule]})
    rules(world, {"Expiration": {"Days": 1}}, {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}})
    for path in ("bkt/a/locked", "bkt/b", "bkt/c", "other/d"):
        assert world.ask("PUT", f"/{path}", b"x").status == 200
    client.create_multipart_upload(Bucket="bkt", Key="up")
    place = lock(data)
    with by_the_rules(), pytest.raises(Forbidden, match="a/locked"):
        work(world, 3)
    assert list(etags(world)) == ["a/locked"]
    assert client.list_objects_v2(Bucket="other")["KeyCount"] == 0
    assert not client.list_multipart_uploads(Bucket="bkt").get("Uploads")
    place.chmod(0o755)
    assert work(world, 3).expired == 1


def test_rules_wait_for_storage_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each of a million objects is tried."""
    rules(world, {"Expiration": {"Days": 1}})
    for number in range(60):
        world.ask("PUT", f"/bkt/{number:02}", b"x")
    tried: list[str] = []

    def stat(bucket: str, name: str) -> Any:
        tried.append(name)
        raise Unavailable("its disk hangs")

    def delete_all(bucket: str, names: Sequence[tuple[str, bytes]]) -> list[Any]:
        tried.extend(name for name, _ in names)
        return [Unavailable("its disk hangs")] * len(names)

    monkeypatch.setattr(world.store, "stat", stat)
    monkeypatch.setattr(world.store, "delete_all", delete_all)
    done = Done()
    world.skew_ns = 3 * DAY
    with pytest.raises(Unavailable):
        Jobs(world.site, lifecycle).expire(world.site.bucket("bkt"), done, resting_never())
    assert len(tried) == 20 and not done.expired


def test_many_objects_go_with_few_syncs_and_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million old objects would take hours if each waited for a disk; what was touched since is looked at
    by itself, and what was put anew stays."""
    rules(world, {"Expiration": {"Days": 1}})
    for number in range(100):
        assert world.ask("PUT", f"/bkt/run/{number:02}", b"x").status == 200
    client = world.boto()
    real = world.store.delete_all

    def delete_all(bucket: str, names: Sequence[tuple[str, bytes]]) -> list[Any]:
        """Beside what clients do."""
        if "run/41" in dict(names):
            client.put_object(Bucket="bkt", Key="run/41", Body=b"new")
            client.put_object_tagging(
                Bucket="bkt", Key="run/42", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]}
            )
            client.delete_object(Bucket="bkt", Key="run/43")
        return real(bucket, names)

    commits, syncs = world.index.commits, []  # type: ignore[attr-defined]
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (syncs.append(fd), fdatasync(fd))[1])
    monkeypatch.setattr(
        world.store, "delete_all", lambda *told: at_its_time(world, lambda: delete_all(*told))
    )
    assert work(world, 3).expired == 98
    assert list(etags(world)) == ["run/41"]
    assert client.get_object(Bucket="bkt", Key="run/41")["Body"].read() == b"new"
    assert world.index.commits - commits < 20 and len(syncs) < 30  # type: ignore[attr-defined]
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects) == (3, 1)


@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_versions_that_go_beside_each_other_leave_what_they_should(world: World) -> None:
    """Of each key the newest two stay, whatever the order in which threads come to them."""
    client = world.boto()
    versions_on(world)
    kept: dict[str, list[str]] = {}
    for key in ("a", "b", "c/d"):
        ids = [client.put_object(Bucket="bkt", Key=key, Body=b"x" * n)["VersionId"] for n in range(1, 6)]
        kept[key] = ids[:2:-1]
    newest = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 1}
    rules(world, {"NoncurrentVersionExpiration": newest})
    assert work(world, 3).expired == 9
    found: dict[str, list[str]] = {}
    for one in client.list_object_versions(Bucket="bkt")["Versions"]:
        found.setdefault(one["Key"], []).append(one["VersionId"])
    assert found == kept
    assert world.index.usage("bucket", "bkt").objects == 6


def test_what_rules_have_deleted_is_told(world: World) -> None:
    """Of each bucket that lost something; whose objects are gone wants to know why."""
    rules(world, {"Expiration": {"Days": 1}}, {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}})
    world.boto().create_bucket(Bucket="other")
    for key in ("bkt/a", "bkt/b//c", "other/a"):
        world.ask("PUT", f"/{key}", b"x")
    world.boto().create_multipart_upload(Bucket="bkt", Key="up")
    heard: list[tuple[str, int, int]] = []
    world.skew_ns = 3 * DAY
    Jobs(world.site, lifecycle, told=lambda *one: heard.append(one)).run()
    Jobs(world.site, lifecycle, told=lambda *one: heard.append(one)).run()
    world.skew_ns = 0
    assert heard == [("bkt", 2, 1)]


def resting_never() -> Any:
    class Never:
        def rest(self) -> bool:
            return False

    return Never()


def at_its_time(world: World, act: Callable[[], object]) -> object:
    """By the clock of clients."""
    skew_ns, world.skew_ns = world.skew_ns, 0
    try:
        return act()
    finally:
        world.skew_ns = skew_ns


def after_the_first_page(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """A pass over five objects, two at a time; `act` is done after the first two."""
    monkeypatch.setattr(jobs, "PAGE", 2)
    for number in range(5):
        world.ask("PUT", f"/bkt/k{number}", b"x")
    acted: list[object] = []

    class Resting:
        def rest(self) -> bool:
            if not acted:
                acted.append(at_its_time(world, act))
            return False

    world.skew_ns = 3 * DAY
    Jobs(world.site, lifecycle).expire(world.site.bucket("bkt"), Done(), Resting())  # type: ignore[arg-type]
    world.skew_ns = 0


def test_rules_that_are_taken_back_end_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over millions of objects takes hours: who sees that a rule was wrong stops it."""
    rules(world, {"Expiration": {"Days": 1}})
    client = world.boto()
    after_the_first_page(world, monkeypatch, lambda: client.delete_bucket_lifecycle(Bucket="bkt"))
    assert list(etags(world)) == ["k2", "k3", "k4"]


def test_rules_keep_versions_from_when_that_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What expires then has a delete marker, and can be had back."""
    rules(world, {"Expiration": {"Days": 1}})
    after_the_first_page(world, monkeypatch, lambda: versions_on(world))
    found = world.boto().list_object_versions(Bucket="bkt")
    assert [one["Key"] for one in found["Versions"]] == ["k2", "k3", "k4"]
    assert [one["Key"] for one in found["DeleteMarkers"]] == ["k2", "k3", "k4"]
    assert world.ask("GET", "/bkt/k3", query="versionId=null").body == b"x"


def test_rules_that_take_hours_keep_no_scan_from_its_turn(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings follow others within `rescan_s`, whatever goes on."""
    monkeypatch.setattr(jobs, "PAGE", 2)
    rules(world, {"Expiration": {"Days": 1}})
    for number in range(8):
        world.ask("PUT", f"/bkt/k{number}", b"x")
    listed: list[bool] = []

    def pause(_seconds: float) -> bool:
        (data / "outside").touch()
        listed.append("outside" in etags(world))
        return False

    monkeypatch.setattr(world.site, "pause", pause)
    Jobs(world.site, lifecycle, rescan_s=0.0, sweep_s=1e9, seconds=lambda: 0.0).run()
    assert listed[-1]


@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_older_versions_expire_by_their_tags(world: World) -> None:
    """Which are in their own records, under whatever name those lie by then."""
    client = world.boto()
    versions_on(world)
    for tagging in ("kind=scratch", "kind=keep", "kind=scratch"):
        client.put_object(Bucket="bkt", Key="k", Body=tagging.encode(), Tagging=tagging)
    client.put_object(Bucket="bkt", Key="gone", Body=b"x", Tagging="kind=scratch")
    client.delete_object(Bucket="bkt", Key="gone")
    rules(
        world,
        {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}},
        Tag={"Key": "kind", "Value": "scratch"},
    )
    assert work(world, 3).expired == 2
    found = client.list_object_versions(Bucket="bkt")
    left = [client.get_object(Bucket="bkt", Key="k", VersionId=one["VersionId"]) for one in found["Versions"]]
    assert [one["Body"].read() for one in left] == [b"kind=scratch", b"kind=keep"]


@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_a_version_that_became_current_meanwhile_is_no_older_one(world: World) -> None:
    """Somebody took back what had come over it, between the look at the rows and the step."""
    client = world.boto()
    versions_on(world)
    good = client.put_object(Bucket="bkt", Key="k", Body=b"good")
    bad = client.put_object(Bucket="bkt", Key="k", Body=b"bad")
    rules(world, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}})

    class Expiry:
        def __getattr__(self, name: str) -> Any:
            return getattr(lifecycle, name)

        def noncurrent_expiration(
            self,
            found: Sequence[Any],
            key: str,
            size: int,
            tags: Mapping[str, str],
            since_ns: int,
            newer: int,
        ) -> Any:
            gone = {"Bucket": "bkt", "Key": "k", "VersionId": bad["VersionId"]}
            at_its_time(world, lambda: client.delete_object(**gone))
            return lifecycle.noncurrent_expiration(found, key, size, tags, since_ns, newer)

    world.skew_ns = 3 * DAY
    done = Jobs(world.site, Expiry()).run()  # type: ignore[arg-type]
    world.skew_ns = 0
    assert done.expired == 0
    answer = client.get_object(Bucket="bkt", Key="k")
    assert (answer["Body"].read(), answer["VersionId"]) == (b"good", good["VersionId"])


@pytest.mark.parametrize("hashed", [True, False])
def test_a_version_counts_from_when_a_file_of_others_came_over_it(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, hashed: bool
) -> None:
    """However old that file is, whether it has a version of its own already or is still to be hashed."""
    client = world.boto()
    versions_on(world)
    first, _ = (client.put_object(Bucket="bkt", Key="k", Body=body)["VersionId"] for body in (b"1", b"2"))
    (data / "draft").write_bytes(b"of others")
    a_year_ago = world.clock() - 365 * DAY
    os.utime(data / "draft", ns=(a_year_ago, a_year_ago))
    os.replace(data / "draft", data / "k")
    if not hashed:
        monkeypatch.setattr(world.site, "hash_later", lambda *_: None)
    for _ in range(2):
        work(world)
    row = world.index.lookup("bkt", "k")
    assert row is not None and row.modified_ns == a_year_ago and (row.version != "null") is hashed
    rules(world, {"NoncurrentVersionExpiration": {"NoncurrentDays": 30}})
    assert work(world, 3).expired == 0
    assert client.get_object(Bucket="bkt", Key="k", VersionId=first)["Body"].read() == b"1"
    assert work(world, 40).expired == 1
    assert client.get_object(Bucket="bkt", Key="k")["Body"].read() == b"of others"


class Acting:
    """What rules say; `act` happens once, when they are asked for `name`."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name = name
        self._acts = [act]

    def __getattr__(self, name: str) -> Any:
        real = getattr(lifecycle, name)

        def asked(*words: Any) -> Any:
            if self._acts:
                self._acts.pop()()
            return real(*words)

        return asked if name == self._name else real


@pytest.mark.parametrize("marker", [True, False])
@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_what_a_client_put_in_the_place_of_what_a_rule_looked_at_stays(world: World, marker: bool) -> None:
    """With versioning suspended all that is put has the id "null", as the lone marker has that the rule was
    asked of, or the older version."""
    client = world.boto()
    suspended = {"Bucket": "bkt", "VersioningConfiguration": {"Status": "Suspended"}}

    def put() -> None:
        client.put_bucket_versioning(**suspended)
        client.put_object(Bucket="bkt", Key="k", Body=b"new")
        if not marker:
            versions_on(world)
            client.put_object(Bucket="bkt", Key="k", Body=b"newer")

    client.put_object(Bucket="bkt", Key="k", Body=b"old")
    if marker:
        client.put_bucket_versioning(**suspended)
        client.delete_object(Bucket="bkt", Key="k")
        rules(world, {"Expiration": {"ExpiredObjectDeleteMarker": True}})
    else:
        versions_on(world)
        client.put_object(Bucket="bkt", Key="k", Body=b"over it")
        rules(world, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}})
    world.skew_ns = 3 * DAY
    name = "marker_expiration" if marker else "noncurrent_expiration"
    expiry: Any = Acting(name, lambda: at_its_time(world, put))
    done = Jobs(world.site, expiry).run()
    world.skew_ns = 0
    assert client.get_object(Bucket="bkt", Key="k", VersionId="null")["Body"].read() == b"new"
    assert client.get_object(Bucket="bkt", Key="k")["Body"].read() == (b"new" if marker else b"newer")
    assert done.expired == 0


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("world", ["posix", "memory", "fsspec"], indirect=True)
def test_what_lost_its_tag_while_rules_were_asked_stays(world: World, older: bool) -> None:
    """A tag is taken off because the object is needed still."""
    client = world.boto()
    if older:
        versions_on(world)
    made = client.put_object(Bucket="bkt", Key="k", Body=b"tagged", Tagging="kind=scratch")
    version = {"VersionId": made["VersionId"]} if older else {}
    if older:
        client.put_object(Bucket="bkt", Key="k", Body=b"over it")
    action = {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}} if older else {"Expiration": {"Days": 1}}
    rules(world, action, Tag={"Key": "kind", "Value": "scratch"})

    def untag() -> None:
        client.delete_object_tagging(Bucket="bkt", Key="k", **version)

    world.skew_ns = 3 * DAY
    name = "noncurrent_expiration" if older else "expiration"
    expiry: Any = Acting(name, lambda: at_its_time(world, untag))
    assert Jobs(world.site, expiry).run().expired == 0
    world.skew_ns = 0
    assert client.get_object(Bucket="bkt", Key="k", **version)["Body"].read() == b"tagged"


# leftovers ---------------------------------------------------------------------------------------------
def test_a_bucket_that_may_only_be_read_keeps_no_other_from_being_swept(
    world: World, data: Path, tmp_path: Path
) -> None:
    """It was adopted, and comes first. Drafts and parts that crashes left go from the others."""
    archive = tmp_path / "archive"
    archive.mkdir(0o755)
    (archive / "f").write_bytes(b"of others")
    archive.chmod(0o555)
    with by_the_rules():
        world.store.create_bucket("aaa", str(archive))
        world.index.add_bucket(_like(world, "aaa", str(archive)))
        assert world.ask("GET", "/aaa/f").body == b"of others"
        (data / ".cumulus/tmp/draft").write_bytes(b"x")
        (data / ".cumulus/parts/0123").mkdir(parents=True)
        (data / ".cumulus/parts/0123/slots.131072").write_bytes(b"x")
        world.skew_ns = 3 * DAY
        old = (1.0, 1.0)
        os.utime(data / ".cumulus/parts/0123/slots.131072", old)
        background = Jobs(world.site, lifecycle)
        background.site.store.sweep, whole = (lambda _: whole(-10.0)), background.site.store.sweep
        done = background.run()
        world.skew_ns = 0
    assert done.swept == 2
    assert (
        os.listdir(data / ".cumulus/tmp") == [] and not (data / ".cumulus/parts/0123/slots.131072").exists()
    )


def _like(world: World, name: str, path: str) -> Any:
    from msgspec.structs import replace

    return replace(world.site.bucket("bkt"), name=name, path=path)


def test_an_error_of_one_sweep_leaves_the_others_to_be_done(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is raised."""
    (data / ".cumulus/parts/0123").mkdir(parents=True)
    (data / ".cumulus/parts/0123/slots.131072").write_bytes(b"x")
    os.utime(data / ".cumulus/parts/0123/slots.131072", (1.0, 1.0))

    def sweep(_older_than_s: float) -> int:
        raise Unavailable("a disk has an error")

    monkeypatch.setattr(world.store, "sweep", sweep)
    with pytest.raises(StorageError, match="a disk has an error"):
        work(world)
    assert not (data / ".cumulus/parts/0123/slots.131072").exists()


def test_rules_remove_nothing_that_is_read(world: World, data: Path, tmp_path: Path) -> None:
    """A directory was away for a month: its delete markers are that old, when it is back."""
    versions_on(world)
    rules(world, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}})
    world.ask("PUT", "/bkt/d/a", b"bytes")
    (data / "d").rename(tmp_path / "away")
    work(world)
    (tmp_path / "away").rename(data / "d")
    world.skew_ns = 3 * DAY
    done = Done()
    Jobs(world.site, lifecycle).expire(world.index.bucket("bkt"), done, Resting(world.site.pause))  # type: ignore[arg-type]
    world.skew_ns = 0
    assert done.expired == 0 and world.ask("GET", "/bkt/d/a").body == b"bytes"
    work(world, 3)  # the marker is an older version now, and goes
    assert list(etags(world)) == ["d/a"] and world.ask("GET", "/bkt/d/a").body == b"bytes"
