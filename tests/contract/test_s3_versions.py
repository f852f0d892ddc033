"""Versions and delete markers through the gateway."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.admin import data
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.ops.find import stored_names
from cumulus.ops.jobs import Done, forget_versions, rescan
from cumulus.ops.names import VERSIONS, version_name
from cumulus.storage.api import Forbidden, NoSpace, StorageError, Unavailable


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def switch(world: World, status: str) -> None:
    """Set the bucket's versioning."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": status})


def put(world: World, body: bytes, key: str = "k", **headers: str) -> str:
    """Put; the version made."""
    answer = world.ask("PUT", f"/bkt/{key}", body, headers=headers)
    assert answer.status == 200, answer.body
    return answer.headers["x-amz-version-id"]


def get(world: World, version: str = "", key: str = "k") -> bytes | str:
    """Body of a version, or the code of the refusal."""
    answer = world.ask("GET", f"/bkt/{key}", query={"versionId": version} if version else "")
    return answer.body if answer.status == 200 else answer.code


def history(world: World, **query: str) -> list[tuple[str, str, bool, str]]:
    """(key, version, latest, what) of everything, in order."""
    answer = world.ask("GET", "/bkt", query={"versions": "", **query})
    rows = []
    for piece in answer.body.decode().replace("<DeleteMarker>", "<Version>").split("<Version>")[1:]:
        fields = {
            tag: piece.partition(f"<{tag}>")[2].partition("<")[0] for tag in ("Key", "VersionId", "IsLatest")
        }
        what = "object" if "<Size>" in piece.partition("</Owner>")[0] else "marker"
        rows.append((fields["Key"], fields["VersionId"], fields["IsLatest"] == "true", what))
    return rows


@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_each_put_is_a_version_of_its_own(world: World, key: str) -> None:
    old = world.ask("PUT", f"/bkt/{key}", b"null version")
    assert "x-amz-version-id" not in old.headers
    switch(world, "Enabled")
    one, two = put(world, b"one", key), put(world, b"two", key)
    assert [get(world, version, key) for version in ("", "null", one, two)] == [
        b"two",
        b"null version",
        b"one",
        b"two",
    ]
    assert history(world) == [
        (key, two, True, "object"),
        (key, one, False, "object"),
        (key, "null", False, "object"),
    ]
    assert world.ask("HEAD", f"/bkt/{key}").headers["x-amz-version-id"] == two
    assert world.index.usage("bucket", "bkt").bytes == 12 + 3 + 3
    assert [row.rpartition("</Key>")[0] for row in world.ask("GET", "/bkt").leaves("Contents")] == [
        f"<Key>{key}"
    ]


@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_a_delete_marker_hides_and_goes_again(world: World, key: str) -> None:
    switch(world, "Enabled")
    one = put(world, b"one", key)
    gone = world.ask("DELETE", f"/bkt/{key}")
    marker = gone.headers["x-amz-version-id"]
    assert gone.headers["x-amz-delete-marker"] == "true"
    hidden = world.ask("GET", f"/bkt/{key}")
    assert (hidden.code, hidden.headers["x-amz-delete-marker"]) == ("NoSuchKey", "true")
    assert world.ask("GET", f"/bkt/{key}", query={"versionId": marker}).status == 405
    assert get(world, one, key) == b"one"
    assert history(world) == [(key, marker, True, "marker"), (key, one, False, "object")]
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"
    back = world.ask("DELETE", f"/bkt/{key}", query={"versionId": marker})
    assert (back.status, back.headers["x-amz-delete-marker"]) == (204, "true")
    assert get(world, "", key) == b"one" and get(world, one, key) == b"one"
    assert history(world) == [(key, one, True, "object")]


def test_removing_the_current_version_brings_back_the_one_before(world: World) -> None:
    switch(world, "Enabled")
    one, two, three = (put(world, body) for body in (b"one", b"two", b"three"))
    world.ask("DELETE", "/bkt/k", query={"versionId": two})
    assert get(world) == b"three" and get(world, two) == "NoSuchVersion"
    world.ask("DELETE", "/bkt/k", query={"versionId": three})
    assert get(world) == b"one"
    assert history(world) == [("k", one, True, "object")]
    four = put(world, b"four")
    assert (get(world, one), get(world)) == (b"one", b"four")
    for version in (one, four, "0" * 32):
        assert world.ask("DELETE", "/bkt/k", query={"versionId": version}).status == 204
    assert history(world) == [] and get(world) == "NoSuchKey"
    assert world.index.usage("bucket", "bkt").bytes == 0
    assert world.store.names("bkt", prefix=".cumulus/versions/") == []
    assert world.ask("DELETE", "/bkt").status == 204


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_a_deletion_that_a_crash_interrupts_takes_no_version_along(tmp_path: Path, status: str) -> None:
    """The body has its second name and has lost its first: the scan makes a marker, the version stays."""
    world = World(STORES["posix"](tmp_path))
    world.ask("PUT", "/bkt")
    switch(world, "Enabled")
    version = put(world, b"kept")
    switch(world, status)
    world.store.link("bkt", "k", version_name("k", version))
    world.store.delete("bkt", "k")
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    rescan(world.site, bucket, Done())
    assert get(world) == "NoSuchKey" and get(world, version) == b"kept"
    assert [row[3] for row in history(world)] == ["marker", "object"]
    assert world.index.usage("bucket", "bkt").bytes == 4
    world.ask("DELETE", "/bkt/k", query={"versionId": version})
    assert get(world, version) == "NoSuchVersion" and [row[3] for row in history(world)] == ["marker"]
    world.close()


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("kind", [Unavailable, Forbidden, NoSpace])
@pytest.mark.parametrize("world", ["posix"], indirect=True)
def test_a_deletion_that_storage_refuses_leaves_no_marker(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[StorageError], key: str
) -> None:
    """The first time, that is: what comes after it works again."""
    switch(world, "Enabled")
    version = put(world, b"kept", key)
    real, refused = world.store.delete, []

    def delete(bucket: str, name: str, *more: Any) -> int:
        if not refused:
            refused.append(name)
            raise kind("the disk")
        return real(bucket, name, *more)

    monkeypatch.setattr(world.store, "delete", delete)
    monkeypatch.setattr(world.store, "make_room", lambda: False)
    assert world.ask("DELETE", f"/bkt/{key}").status in (403, 503, 507) and refused
    assert get(world, key=key) == b"kept"
    left = [entry.name for entry in world.store.names("bkt", prefix=VERSIONS)]
    assert left in ([], [version_name(key, version)])


@pytest.mark.parametrize("key", ["k", "odd//key"])
@pytest.mark.parametrize("act", ["PUT", "DELETE"])
@pytest.mark.parametrize("world", ["posix"], indirect=True)
def test_a_version_of_which_nobody_told_is_known_when_it_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, key: str, act: str
) -> None:
    """Its server got an error, or was killed, when it was in its place. It counts, and can be removed."""
    switch(world, "Enabled")
    put(world, b"1", key)
    real = world.site.told.apply
    monkeypatch.setattr(world.site.told, "apply", lambda changes: None)
    put(world, b"22", key)
    monkeypatch.setattr(world.site.told, "apply", real)
    assert world.ask(act, f"/bkt/{key}", b"333" if act == "PUT" else b"").status in (200, 204)
    bodies = [get(world, version, key) for _, version, _, what in history(world) if what == "object"]
    assert bodies == [b"333", b"22", b"1"][act == "DELETE" :]
    assert [row[2] for row in history(world)] == [True, False, False]
    assert world.index.usage("bucket", "bkt").bytes == sum(map(len, bodies))
    for _, version, _, _ in history(world):
        assert world.ask("DELETE", f"/bkt/{key}", query={"versionId": version}).status == 204
    assert world.store.names("bkt", prefix=".cumulus/") == []
    assert world.index.usage("bucket", "bkt").bytes == 0


def test_bodies_that_an_interrupted_deletion_removed_are_not_listed_for_ever(world: World) -> None:
    """Older versions and keys with names of their own: the index had not heard of it. Where all bodies have
    such names a deletion begins in the index, so what is not found there was not deleted."""
    assert world.ask("PUT", "/bkt/odd//key", b"1234").status == 200
    switch(world, "Enabled")
    old, new = put(world, b"old"), put(world, b"new")
    bucket, done = world.index.bucket("bkt"), Done()
    assert bucket is not None
    for key, version in (("odd//key", None), ("k", old)):
        row = world.index.lookup("bkt", key, version)
        assert row is not None
        for name in stored_names(world.site, row):
            if name != "k":
                world.site.remove("bkt", name)
    rescan(world.site, bucket, done)
    forget_versions(world.site, bucket, done)
    if not world.site.atomic:
        assert len(history(world)) == 3 and done.gone == 0
        return
    assert [row[:2] for row in history(world)] == [("k", new)] and done.gone == 2
    assert get(world) == b"new" and world.index.usage("bucket", "bkt").bytes == 3


def test_suspended_versions_replace_null_alone(world: World) -> None:
    switch(world, "Enabled")
    one = put(world, b"one")
    switch(world, "Suspended")
    assert put(world, b"null one") == "null"
    assert put(world, b"null two") == "null"
    assert (get(world), get(world, one), get(world, "null")) == (b"null two", b"one", b"null two")
    marker = world.ask("DELETE", "/bkt/k")
    assert marker.headers["x-amz-version-id"] == "null"
    assert history(world) == [("k", "null", True, "marker"), ("k", one, False, "object")]
    assert put(world, b"null three") == "null"
    switch(world, "Enabled")
    two = put(world, b"two")
    assert history(world) == [
        ("k", two, True, "object"),
        ("k", "null", False, "object"),
        ("k", one, False, "object"),
    ]
    assert get(world, "null") == b"null three"
    switch(world, "Suspended")
    put(world, b"null four")
    assert [row[1] for row in history(world)] == ["null", two, one]
    assert world.index.usage("bucket", "bkt").objects == 3


def test_versions_keep_their_own_records(world: World) -> None:
    """Tags, ACLs and copies of an older version touch that one alone."""
    switch(world, "Enabled")
    one = put(world, b"one", **{"x-amz-meta-n": "1"})
    two = put(world, b"two", **{"x-amz-meta-n": "2"})
    client = world.boto()
    tags = {"TagSet": [{"Key": "old", "Value": "yes"}]}
    client.put_object_tagging(Bucket="bkt", Key="k", VersionId=one, Tagging=tags)
    assert client.get_object_tagging(Bucket="bkt", Key="k", VersionId=one)["TagSet"] == tags["TagSet"]
    assert client.get_object_tagging(Bucket="bkt", Key="k")["TagSet"] == []
    client.put_object_tagging(Bucket="bkt", Key="k", Tagging=tags)
    assert [row[1] for row in history(world)] == [two, one]
    source = {"Bucket": "bkt", "Key": "k", "VersionId": one}
    done = client.copy_object(Bucket="bkt", Key="k", CopySource=source)
    assert done["CopySourceVersionId"] == one
    assert (get(world), [row[1] for row in history(world)]) == (b"one", [done["VersionId"], two, one])
    assert world.ask("GET", "/bkt/k", query={"versionId": two}).headers["x-amz-meta-n"] == "2"


def test_a_multipart_object_is_a_version_too(world: World) -> None:
    switch(world, "Enabled")
    one = put(world, b"one")
    client = world.boto()
    upload = client.create_multipart_upload(Bucket="bkt", Key="k")["UploadId"]
    part = client.upload_part(Bucket="bkt", Key="k", UploadId=upload, PartNumber=1, Body=b"parts")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    two = client.complete_multipart_upload(Bucket="bkt", Key="k", UploadId=upload, MultipartUpload=parts)
    assert (get(world), get(world, one)) == (b"parts", b"one")
    assert [row[1] for row in history(world)] == [two["VersionId"], one]


def test_pages_of_versions(world: World) -> None:
    switch(world, "Enabled")
    made = [("a", put(world, b"1", "a")), ("a", put(world, b"2", "a")), ("b/c", put(world, b"3", "b/c"))]
    client = world.boto()
    pages = client.get_paginator("list_object_versions").paginate(
        Bucket="bkt", PaginationConfig={"PageSize": 1}
    )
    found = [(row["Key"], row["VersionId"]) for page in pages for row in page["Versions"]]
    assert found == [made[1], made[0], made[2]]
    grouped = client.list_object_versions(Bucket="bkt", Delimiter="/")
    assert [row["Prefix"] for row in grouped["CommonPrefixes"]] == ["b/"]
    assert world.ask("GET", "/bkt", query="versions&version-id-marker=x").code == "InvalidArgument"


def test_wrong_configurations(world: World) -> None:
    for body, code in (
        (b"<VersioningConfiguration/>", "IllegalVersioningConfigurationException"),
        (b"<VersioningConfiguration><Status>On</Status></VersioningConfiguration>", "IllegalVersioning"),
        (b"<Other/>", "MalformedXML"),
        (b"", "MalformedXML"),
    ):
        assert world.ask("PUT", "/bkt", body, query="versioning").code.startswith(code)
    assert world.ask("GET", "/bkt", query="versioning").leaf("Status") == ""
    assert world.ask("GET", "/bkt/k", query="versionId=").code == "InvalidArgument"


class NoLinks(Files):
    """A disk without hard links."""

    number = 0

    def link(self, source: int, name: str, target: int, to: str) -> None:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        super().link(source, name, target, to)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV])
def test_versioning_is_refused_where_files_have_no_second_names(tmp_path: Path, number: int) -> None:
    """Or nothing could be replaced or deleted any more. Whether they have is tried, and nothing is left of
    that."""
    files = NoLinks()
    world = World(PosixStore(str(tmp_path / "store"), files=files))
    assert world.ask("PUT", "/bkt").status == 200
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    files.number = number
    refused = world.ask("PUT", "/bkt", body, query="versioning")
    assert (refused.status, refused.code) == (501, "NotImplemented") and b"hard links" in refused.body
    assert world.ask("GET", "/bkt", query="versioning").leaf("Status") == ""
    assert [world.ask("PUT", "/bkt/k", one).status for one in (b"1", b"2")] == [200, 200]
    assert world.ask("DELETE", "/bkt/k").status == 204
    files.number = 0
    assert world.ask("PUT", "/bkt", body, query="versioning").status == 200
    inside = tmp_path / "store/data/bkt/.cumulus"
    assert [os.listdir(inside / name) for name in ("tmp", "meta")] == [[], []]
    files.number = number  # moved to such a disk: there it can still be suspended
    assert world.ask("PUT", "/bkt", body, query="versioning").status == 501
    suspended = body.replace(b"Enabled", b"Suspended")
    assert world.ask("PUT", "/bkt", suspended, query="versioning").status == 200
    world.close()


@pytest.mark.parametrize("key", ["k", "odd//key"])
def test_an_object_put_without_versions_stays_beside_a_former_null_version(world: World, key: str) -> None:
    """The row of the old one still has the name that is the new one's."""
    assert world.ask("PUT", f"/bkt/{key}", b"off").status == 200
    switch(world, "Enabled")
    one = put(world, b"one", key)
    switch(world, "Suspended")
    assert world.ask("PUT", f"/bkt/{key}", b"last").status == 200
    assert [get(world, version, key) for version in ("", "null", one)] == [b"last", b"last", b"one"]
    assert history(world) == [(key, "null", True, "object"), (key, one, False, "object")]


def test_deletion_of_a_version_keeps_its_condition(world: World) -> None:
    """If-Match is about that version; nothing matches what is not there."""
    switch(world, "Enabled")
    one = put(world, b"one")
    ask = {"query": {"versionId": one}}
    assert world.ask("DELETE", "/bkt/k", headers={"if-match": '"bad"'}, **ask).status == 412
    assert get(world, one) == b"one"
    etag = world.ask("HEAD", "/bkt/k").headers["etag"]
    assert world.ask("DELETE", "/bkt/k", headers={"if-match": etag}, **ask).status == 204
    assert world.ask("DELETE", "/bkt/k", headers={"if-match": etag}, **ask).code == "NoSuchKey"
    assert world.ask("DELETE", "/bkt/none", headers={"if-match": "*"}).code == "NoSuchKey"
    assert history(world) == []


def test_a_delete_marker_asked_for_says_when_it_was_made(world: World) -> None:
    switch(world, "Enabled")
    put(world, b"one")
    marker = world.ask("DELETE", "/bkt/k").headers["x-amz-version-id"]
    answer = world.ask("HEAD", "/bkt/k", query={"versionId": marker})
    assert answer.status == 405 and answer.headers["last-modified"].endswith("GMT")


def test_all_versions_go_to_a_new_owner(world: World) -> None:
    """An older one is not taken for the current object, whose name its row may still have."""
    switch(world, "Enabled")
    versions = [put(world, body) for body in (b"one", b"two", b"three")]
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    data.give(world.index, world.store, bucket, world.people.users["bob"])
    for version in versions:
        answer = world.ask("GET", "/bkt/k", query={"versionId": version}, user="bob")
        assert answer.status == 200, version
