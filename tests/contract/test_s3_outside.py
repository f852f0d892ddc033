"""A directory that others use too: what they make, change and remove is seen, and background work follows."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from s3_stores import STORES
from s3_world import SECOND, World

from cumulus.auth import lifecycle
from cumulus.ops import find as finding
from cumulus.ops import jobs as background
from cumulus.ops.jobs import Done, Jobs, hash_waiting
from cumulus.parts import take_in
from cumulus.rest.call import Sink
from cumulus.storage.api import Unavailable

DAY = 24 * 3600 * SECOND


def work(world: World, days: int = 0) -> Done:
    """Do all background work as if it were so many days later."""
    world.skew_ns = days * DAY
    try:
        return Jobs(world.site, lifecycle).run()
    finally:
        world.skew_ns = 0


def md5(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def keys(world: World) -> list[str]:
    return world.ask("GET", "/bkt").leaves("Key")


def test_a_file_put_into_the_directory_is_an_object(world: World, data: Path) -> None:
    (data / "sub").mkdir()
    (data / "sub" / "file").write_bytes(b"from outside")
    answer = world.ask("GET", "/bkt/sub/file")
    assert (answer.body, answer.headers["etag"]) == (b"from outside", md5(b"from outside"))
    assert world.ask("GET", "/bkt/sub/file", user="bob").status == 403
    assert keys(world) == ["sub/file"]
    (data / "sub" / "file").write_bytes(b"rewritten")
    again = world.ask("HEAD", "/bkt/sub/file")
    assert (again.headers["etag"], again.headers["content-length"]) == (md5(b"rewritten"), "9")


def test_a_large_file_has_an_opaque_etag_until_it_is_hashed(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "HASH_AT_ONCE", 4)
    (data / "big").write_bytes(b"many bytes")
    first = world.ask("HEAD", "/bkt/big").headers["etag"]
    assert first.endswith('-0"')
    (data / "big").write_bytes(b"many others")
    second = world.ask("HEAD", "/bkt/big").headers["etag"]
    assert second.endswith('-0"') and second != first
    assert hash_waiting(world.site) >= 1
    assert world.ask("HEAD", "/bkt/big").headers["etag"] == md5(b"many others")
    copy = world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "/bkt/big"})
    assert copy.leaf("ETag").replace("&quot;", '"') == md5(b"many others")


def test_a_copy_of_unhashed_bytes_has_a_true_etag(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "HASH_AT_ONCE", 4)
    (data / "big").write_bytes(b"many bytes")
    world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "/bkt/big"})
    assert world.ask("HEAD", "/bkt/copy").headers["etag"] == md5(b"many bytes")


def test_a_rescan_takes_in_what_came_changed_and_went(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page, of which there are three here."""
    monkeypatch.setattr(background, "PAGE", 50)
    for name in ("kept", "changed", "removed", "odd//name"):
        world.ask("PUT", f"/bkt/{name}", b"old")
    for number in range(120):
        (data / f"new{number:04}").write_bytes(b"x")
    (data / "changed").write_bytes(b"more bytes than before")
    (data / "removed").unlink()
    (data / "link").symlink_to("kept")
    os.mkfifo(data / "fifo")
    done = work(world)
    assert (done.renewed, done.gone) == (121, 1)
    pages = world.boto().get_paginator("list_objects_v2").paginate(Bucket="bkt")
    rows = {row["Key"]: row["Size"] for page in pages for row in page["Contents"]}
    assert len(rows) == 123 and rows["changed"] == 22 and rows["odd//name"] == 3
    assert not rows.keys() & {"removed", "link", "fifo"}
    assert world.index.usage("bucket", "bkt").bytes == 120 + 3 + 3 + 22
    again = work(world)
    assert (again.renewed, again.gone) == (0, 0)


def test_removed_behind_our_back_is_gone_at_once(world: World, data: Path) -> None:
    world.ask("PUT", "/bkt/k", b"x")
    (data / "k").unlink()
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"
    assert keys(world) == []
    assert world.ask("DELETE", "/bkt").status == 204


def test_a_bucket_with_files_that_nobody_listed_is_not_empty(world: World, data: Path) -> None:
    (data / "unseen").write_bytes(b"x")
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"
    assert world.ask("GET", "/bkt/unseen").body == b"x"
    assert world.ask("DELETE", "/bkt/unseen").status == 204
    assert world.ask("DELETE", "/bkt").status == 204


def test_files_from_outside_and_versions(world: World, data: Path) -> None:
    """An outside file becomes a version when it is replaced; an outside removal becomes a delete marker."""
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    (data / "k").write_bytes(b"from outside")
    client.put_object(Bucket="bkt", Key="k", Body=b"by S3")
    rows = client.list_object_versions(Bucket="bkt")["Versions"]
    assert [row["IsLatest"] for row in rows] == [True, False]
    old = client.get_object(Bucket="bkt", Key="k", VersionId=rows[1]["VersionId"])
    assert old["Body"].read() == b"from outside"
    (data / "k").unlink()
    work(world)
    found = client.list_object_versions(Bucket="bkt")
    assert [row["Key"] for row in found["DeleteMarkers"]] == ["k"]
    assert [row["VersionId"] for row in found["Versions"]] == [rows[1]["VersionId"]]


def test_a_read_of_what_others_removed_brings_no_older_version_back(world: World, data: Path) -> None:
    """Whether somebody asks for it or not before the scan, it gets a delete marker, as by DELETE."""
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"old", b"new"):
        client.put_object(Bucket="bkt", Key="k", Body=body)
    (data / "k").unlink()
    for method in ("GET", "HEAD", "GET"):
        assert world.ask(method, "/bkt/k").status == 404
    assert work(world).gone == 1
    assert world.ask("GET", "/bkt/k").headers["x-amz-delete-marker"] == "true" and keys(world) == []
    found = client.list_object_versions(Bucket="bkt")
    assert [one["IsLatest"] for one in found["Versions"]] == [False]
    assert [one["IsLatest"] for one in found["DeleteMarkers"]] == [True]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_what_others_removed_is_no_older_version_of_what_comes_next(
    world: World, data: Path, method: str
) -> None:
    """Nor does it count in the quota."""
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"old", b"new one"):
        client.put_object(Bucket="bkt", Key="k", Body=body)
    (data / "k").unlink()
    assert world.ask(method, "/bkt/k", b"x" if method == "PUT" else b"").status in (200, 204)
    sizes = [one["Size"] for one in client.list_object_versions(Bucket="bkt")["Versions"]]
    assert sizes == ([1, 3] if method == "PUT" else [3])
    assert world.index.usage("bucket", "bkt").bytes == sum(sizes)


def test_owner_and_mode_are_kept_by_an_overwrite(world: World, data: Path) -> None:
    world.ask("PUT", "/bkt/k", b"old")
    (data / "k").chmod(0o604)
    world.ask("PUT", "/bkt/k", b"new")
    assert ((data / "k").read_bytes(), (data / "k").stat().st_mode & 0o777) == (b"new", 0o604)


# lifecycle -----------------------------------------------------------------------------------------------
def rule(inner: str, prefix: str = "") -> bytes:
    """A configuration of one rule."""
    return (
        f"<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>"
        f"<Filter><Prefix>{prefix}</Prefix></Filter>{inner}</Rule></LifecycleConfiguration>"
    ).encode()


def test_expiration_and_abort_of_uploads(world: World) -> None:
    expire = "<Expiration><Days>3</Days></Expiration>"
    tag = "AbortIncompleteMultipartUpload"
    abort = f"<{tag}><DaysAfterInitiation>1</DaysAfterInitiation></{tag}>"
    assert world.ask("PUT", "/bkt", rule(expire + abort, "tmp/"), query="lifecycle").status == 200
    for key in ("tmp/a", "keep"):
        world.ask("PUT", f"/bkt/{key}", b"x")
        world.boto().create_multipart_upload(Bucket="bkt", Key=key)
    told = world.ask("HEAD", "/bkt/tmp/a").headers["x-amz-expiration"]
    copied = world.ask("PUT", "/bkt/tmp/a", headers={"x-amz-copy-source": "/bkt/keep"}).headers
    assert copied["x-amz-expiration"] == told
    s3, whole = world.boto(), {"Bucket": "bkt", "Key": "tmp/whole"}
    upload = whole | {"UploadId": s3.create_multipart_upload(**whole)["UploadId"]}
    parts = [{"PartNumber": 1, "ETag": s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]}]
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert done["ResponseMetadata"]["HTTPHeaders"]["x-amz-expiration"] == told
    s3.delete_object(**whole)
    assert work(world).expired == 0
    assert (work(world, 2).aborted, len(keys(world))) == (1, 2)
    assert work(world, 5).expired == 1
    assert keys(world) == ["keep"]


def test_noncurrent_versions_and_lone_markers_expire(world: World) -> None:
    client = world.boto()
    client.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2", b"3"):
        client.put_object(Bucket="bkt", Key="k", Body=body)
    old = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>"
    lone = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"
    assert world.ask("PUT", "/bkt", rule(old + lone), query="lifecycle").status == 200
    assert work(world, 3).expired == 2
    client.delete_object(Bucket="bkt", Key="k")
    assert work(world, 3).expired == 1
    assert work(world, 4).expired == 1
    assert client.list_object_versions(Bucket="bkt").get("Versions") is None


def test_a_bucket_that_goes_during_a_scan_does_not_end_it(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are looked at as well."""
    assert world.ask("PUT", "/aaa").status == 200
    (data.parent / "aaa/outside").write_bytes(b"1")
    (data / "outside").write_bytes(b"2")
    real = world.index.apply_soon

    def apply_soon(changes: Any) -> None:
        if changes[0].row.bucket == "aaa":
            world.index.drop_bucket("aaa")
        real(changes)

    monkeypatch.setattr(world.index, "apply_soon", apply_soon)
    work(world)
    assert world.index.bucket("aaa") is None
    assert [one["Key"] for one in world.boto().list_objects_v2(Bucket="bkt")["Contents"]] == ["outside"]


def test_a_start_goes_on_when_another_server_removes_a_bucket(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two looks at what a crash left."""
    assert world.ask("PUT", "/bkt/k", b"x").status == 200
    assert world.ask("DELETE", "/bkt/k").status == 204
    assert world.ask("PUT", "/bkt/k", b"y").status == 200
    entry = world.store.stat("bkt", "k")
    monkeypatch.setattr(world.store, "recover", lambda: iter([("bkt", entry)]))
    assert world.ask("DELETE", "/bkt/k").status == 204
    bucket = world.index.bucket("bkt")
    world.index.drop_bucket("bkt")
    monkeypatch.setattr(world.index, "bucket", lambda _: bucket)
    assert take_in(world.store, world.index) == 1
    assert world.index.lookup("bkt", "k") is None


def test_parts_that_no_upload_names_are_swept(world: World) -> None:
    client = world.boto()
    upload = client.create_multipart_upload(Bucket="bkt", Key="k")["UploadId"]
    client.upload_part(Bucket="bkt", Key="k", UploadId=upload, PartNumber=1, Body=b"part")
    assert work(world, 2).swept == 0
    world.index.drop_upload(upload)
    assert work(world, 2).swept == 1
    assert world.store.names("bkt", prefix=".cumulus/parts/") == []


def test_rules_without_an_id_get_one(world: World) -> None:
    """As S3 makes it, and x-amz-expiration names it; a document in which all have one stays as it came."""
    client = world.boto()
    named = {
        "ID": "mine & yours",
        "Status": "Enabled",
        "Filter": {"Prefix": "a&b/"},
        "Expiration": {"Days": 3},
    }
    nameless = [
        {
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "k", "Value": " v"}]}},
            "Expiration": {"Days": 1},
        },
        {"ID": "", "Status": "Disabled", "Filter": {"Prefix": "x"}, "Expiration": {"Days": 2}},
    ]
    client.put_bucket_lifecycle_configuration(
        Bucket="bkt", LifecycleConfiguration={"Rules": [named, *nameless]}
    )
    found = client.get_bucket_lifecycle_configuration(Bucket="bkt")["Rules"]
    assert found[0] == named
    ids = [one["ID"] for one in found]
    assert all(ids) and len(set(ids)) == 3
    assert [{**one, "ID": ""} for one in found[1:]] == [{**one, "ID": ""} for one in nameless]
    client.put_object(Bucket="bkt", Key="k", Body=b"x", Tagging="k=%20v")
    assert f'rule-id="{ids[1]}"' in client.head_object(Bucket="bkt", Key="k")["Expiration"]
    document = rule("<Expiration><Days>1</Days></Expiration>", "tmp/")
    assert world.ask("PUT", "/bkt", document, query="lifecycle").status == 200
    assert world.ask("GET", "/bkt", query="lifecycle").body == document


def test_the_least_size_of_transitions_comes_back(world: World) -> None:
    """Terraform sets it with each lifecycle, and waits until it is shown."""
    client = world.boto()
    rules = [{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": "a/"}, "Expiration": {"Days": 1}}]
    where = {"Bucket": "bkt", "LifecycleConfiguration": {"Rules": rules}}
    least = "all_storage_classes_128K"
    for more in ({}, {"TransitionDefaultMinimumObjectSize": least}):
        done = client.put_bucket_lifecycle_configuration(**where, **more)
        assert done["TransitionDefaultMinimumObjectSize"] == least
        shown = client.get_bucket_lifecycle_configuration(Bucket="bkt")
        assert (shown["TransitionDefaultMinimumObjectSize"], shown["Rules"]) == (least, rules)
    other = {"x-amz-transition-default-minimum-object-size": "varies_by_storage_class"}
    refused = world.ask("PUT", "/bkt", b"<x/>", query="lifecycle", headers=other)
    assert (refused.status, refused.code) == (501, "NotImplemented")


def test_wrong_lifecycle_and_cors_documents(world: World) -> None:
    for query in ("lifecycle", "cors"):
        for body in (b"", b"<x/>", b"<!DOCTYPE x><LifecycleConfiguration/>", b"\xff\xfe"):
            assert world.ask("PUT", "/bkt", body, query=query).code == "MalformedXML"
        assert world.ask("GET", "/bkt", query=query).status == 404
        assert world.ask("DELETE", "/bkt", query=query).status == 204


def test_cors(world: World) -> None:
    client = world.boto()
    rules = [{"AllowedMethods": ["GET"], "AllowedOrigins": ["https://page.example"], "MaxAgeSeconds": 60}]
    client.put_bucket_cors(Bucket="bkt", CORSConfiguration={"CORSRules": rules})
    assert client.get_bucket_cors(Bucket="bkt")["CORSRules"] == rules
    ask = {"Origin": "https://page.example", "Access-Control-Request-Method": "GET"}
    allowed = world.ask("OPTIONS", "/bkt/k", user="", headers=ask)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert world.ask("OPTIONS", "/bkt/k", user="", headers={**ask, "Origin": "https://x"}).status == 403
    assert world.ask("OPTIONS", "/bkt/k", user="", headers={}).status == 400
    refused = world.ask("GET", "/bkt/none", user="", headers={"Origin": "https://page.example"})
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    client.delete_bucket_cors(Bucket="bkt")
    assert world.ask("OPTIONS", "/bkt/k", user="", headers=ask).status == 403


def test_replaced_bodies_of_storage_that_cannot_replace_go_after_their_readers(tmp_path: Path) -> None:
    """Each body has a name of its own there; a reader of the old one finishes on it."""
    world = World(STORES["fsspec"](tmp_path))
    world.ask("PUT", "/bkt")
    world.ask("PUT", "/bkt/k", b"old")
    call, reply = world.open("GET", "/bkt/k")
    world.ask("PUT", "/bkt/k", b"new")
    assert not isinstance(reply, Sink) and world.read(call, reply).body == b"old"
    assert len(world.store.names("bkt", prefix=".cumulus/bodies/")) == 2
    work(world, 1)
    assert len(world.store.names("bkt", prefix=".cumulus/bodies/")) == 1
    assert world.ask("GET", "/bkt/k").body == b"new"
    world.close()


def test_a_service_that_ends_does_not_hash_to_the_end(world: World, data: Path) -> None:
    """Nor does it look through all directories; the next start does both."""
    with (data / "large").open("wb") as file:
        file.truncate(1 << 40)  # hours of hashing
    assert work(world).renewed == 1
    site = world.site
    reads: list[int] = []
    real = site.store.open_read

    def open_read(bucket: str, name: str, token: bytes | None = None) -> Any:
        stream = real(bucket, name, token)
        read_at = stream.read_at

        def counted(offset: int, size: int) -> bytes:
            reads.append(offset)
            site.stopping = len(reads) >= 3
            return bytes(read_at(offset, size))

        stream.read_at = counted
        return stream

    site.store.open_read = open_read
    assert hash_waiting(site) == 1 and len(reads) == 3
    assert world.ask("HEAD", "/bkt/large").headers["etag"].endswith('-0"')
    (data / "new").write_bytes(b"x")
    assert work(world).renewed == 0
    site.stopping = False
    (data / "large").unlink()
    assert work(world, 1).renewed == 1
    del site.store.open_read


@contextmanager
def deep(data: Path, depth: int) -> Iterator[str]:
    """A file so many directories deep; its name."""
    try:
        _dig(data, depth)
        yield "d/" * depth + "f"
    finally:
        subprocess.run(["rm", "-rf", data / "d"], check=True)  # shutil and pytest do not come so deep


def _dig(data: Path, depth: int) -> None:
    here = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    finally:
        os.close(here)


def test_what_lies_deeper_than_keys_are_long_is_no_object(world: World, data: Path) -> None:
    """The last name that is a key is found, what has no key is in no listing, and no scan ends over it."""
    world.ask("PUT", "/bkt/k", b"x")
    with deep(data, 1500) as name:
        key = name[: 2 * 511] + "k1"
        (data / key).write_bytes(b"as long as keys are")
        (data / (key + "2")).write_bytes(b"longer")
        assert len(key) == 1024
        work(world)
        assert keys(world) == [key, "k"] and world.ask("GET", f"/bkt/{key}").status == 200
        assert [entry.name for entry in world.store.names("bkt")] == [key, key + "2", "k"]


@pytest.mark.parametrize("mode", [0o000, 0o600, 0o300])
@pytest.mark.parametrize("versions", [False, True])
def test_a_directory_closed_to_us_keeps_its_rows(world: World, data: Path, mode: int, versions: bool) -> None:
    """Without the right to enter it, or to read it: nobody knows what is there now, and all else is found."""
    if versions:
        world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    for key in ("a", "closed/b/c", "closed/k"):
        world.ask("PUT", f"/bkt/{key}", b"x")
    (data / "new").write_bytes(b"from outside")
    (data / "closed").chmod(mode)
    try:
        with by_the_rules():
            done = work(world)
            assert (done.renewed, done.gone) == (1, 0)
            assert world.store.names("bkt")[0].name == "a"
        assert keys(world) == ["a", "closed/b/c", "closed/k", "new"]
    finally:
        (data / "closed").chmod(0o700)
    assert world.ask("GET", "/bkt/closed/k").status == 200
    done = Done()
    background.rescan(world.site, world.site.bucket("bkt"), done)
    assert (done.renewed, done.gone) == (0, 0)


def test_the_error_of_one_bucket_keeps_no_other_from_its_scan(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told afterwards."""
    world.ask("PUT", "/other")
    for bucket in ("bkt", "other"):
        (data.parent / bucket / "new").write_bytes(b"from outside")
    whole = type(world.store).walk

    def walk(store: Any, bucket: str, limit: int = 1000) -> Any:
        if bucket == "bkt":
            raise Unavailable("scan of bkt: Input/output error")
        return whole(store, bucket, limit)

    monkeypatch.setattr(type(world.store), "walk", walk)
    with pytest.raises(Unavailable, match="Input/output error"):
        work(world)
    assert world.ask("GET", "/other").leaves("Key") == ["new"] and keys(world) == []
    monkeypatch.undo()
    work(world, days=1)
    assert keys(world) == ["new"]


def test_a_file_whose_time_no_index_can_keep_is_an_object(world: World, data: Path) -> None:
    """Instruments with a broken clock make them: ext4 keeps times to 2446, 64 bits of ns end in 2262."""
    for name, seconds in (("2446", 15_000_000_000), ("1902", -2_145_000_000), ("beside", 10**9)):
        (data / name).write_bytes(name.encode())
        os.utime(data / name, (seconds, seconds))
    for name in ("2446", "1902", "beside"):
        got = world.ask("GET", f"/bkt/{name}")
        assert (got.body, got.headers["etag"]) == (name.encode(), md5(name.encode()))
    (data / "2446").write_bytes(b"again")
    os.utime(data / "2446", (15_000_000_000, 15_000_000_000))
    work(world)
    assert keys(world) == ["1902", "2446", "beside"]
    assert world.ask("GET", "/bkt/2446").headers["last-modified"] == "Mon, 18 Feb 2261 23:47:19 GMT"
    copied = world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "/bkt/2446"})
    assert copied.leaf("ETag").replace("&quot;", '"') == md5(b"again")
    for body in (b"ours", b"the second"):
        assert world.ask("PUT", "/bkt/2446", body, headers={"x-amz-meta-a": "b"}).status == 200
        got = world.ask("GET", "/bkt/2446")
        assert (got.body, got.headers["x-amz-meta-a"]) == (body, "b")
    work(world)
    assert world.ask("HEAD", "/bkt/2446").headers["x-amz-meta-a"] == "b"
    assert world.ask("DELETE", "/bkt/2446").status == 204
    assert keys(world) == ["1902", "beside", "copy"]


def test_what_nobody_expected_in_one_bucket_keeps_no_other_from_its_turn(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes again each time; listings, lifecycles and sweeps of all others would stand still for good."""
    assert world.ask("PUT", "/other").status == 200
    (data.parent / "other" / "new").write_bytes(b"x")
    real = world.store.walk

    def walk(bucket: str, *words: Any) -> Any:
        if bucket == "bkt":
            raise OverflowError("a fault of the program")
        return real(bucket, *words)

    monkeypatch.setattr(world.store, "walk", walk)
    with pytest.raises(OverflowError, match="a fault of the program"):
        work(world)
    assert world.ask("GET", "/other").leaves("Key") == ["new"]
