"""Multipart uploads through the gateway: what becomes of parts, of wrong completions, of repeated ones."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3_stores import STORES
from s3_world import People, World

from cumulus.backends.memory import MemoryStore
from cumulus.index.admin_api import Quota
from cumulus.index.registry import make_admin, make_index
from cumulus.secrets import Keyring

MIB = 1 << 20


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def begin(world: World, key: str = "k", **options: Any) -> str:
    """The id of a new upload."""
    return str(world.boto().create_multipart_upload(Bucket="bkt", Key=key, **options)["UploadId"])


def part(world: World, upload: str, number: int, body: bytes, key: str = "k", **headers: str) -> str:
    """Upload a part; its ETag."""
    answer = world.ask(
        "PUT", f"/bkt/{key}", body, query={"partNumber": number, "uploadId": upload}, headers=headers
    )
    assert answer.status == 200, answer.body
    return answer.headers["etag"]


def document(parts: list[tuple[int, str]], sums: dict[int, str] | None = None) -> bytes:
    """A completion; `sums`: elements with the checksums of parts."""
    known = sums or {}
    rows = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag>{known.get(n, '')}</Part>" for n, e in parts
    )
    return f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()


def finish(
    world: World,
    upload: str,
    parts: list[tuple[int, str]],
    key: str = "k",
    sums: dict[int, str] | None = None,
    **headers: str,
) -> Any:
    """Complete it."""
    body = document(parts, sums)
    return world.ask("POST", f"/bkt/{key}", body, query={"uploadId": upload}, headers=headers)


def usage(world: World) -> tuple[int, int, int]:
    """(bytes, objects, bytes reserved) of the bucket."""
    found = world.index.usage("bucket", "bkt")
    return found.bytes, found.objects, found.reserved_bytes


def test_a_completion_needs_a_place_among_the_objects(tmp_path: Path) -> None:
    """Parts are no objects: the quota of objects is asked at completion, which can be tried again."""
    database = f"sqlite:///{tmp_path / 'db'}"
    world = World(MemoryStore(), make_index(database, directory=People())[0])
    admin = make_admin(database, Keyring.create(tmp_path / "secret.key"))
    try:
        assert world.ask("PUT", "/bkt").status == 200
        admin.set_quota(Quota(scope="bucket", name="bkt", hard_objects=1))
        assert world.ask("PUT", "/bkt/first", b"1").status == 200
        upload = begin(world)
        tag = part(world, upload, 1, b"two")
        answer = finish(world, upload, [(1, tag)])
        assert (answer.status, answer.code) == (403, "QuotaExceeded")
        assert world.ask("HEAD", "/bkt/k").status == 404 and usage(world) == (1, 1, 3)
        assert world.ask("DELETE", "/bkt/first").status == 204
        assert finish(world, upload, [(1, tag)]).status == 200
        assert usage(world) == (3, 1, 0)
        assert world.ask("PUT", "/bkt/first", b"1").code == "QuotaExceeded"
        assert world.ask("DELETE", "/bkt/k").status == 204
        assert world.ask("PUT", "/bkt/first", b"1").status == 200  # nothing is held any more
    finally:
        admin.close()
        world.close()


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    """The error code that a client sees."""
    return str(error.value.response["Error"]["Code"])


def test_parts_become_one_object(world: World) -> None:
    """In order of their numbers, whatever the order in which they came; a part sent again replaces it."""
    upload = begin(world, ContentType="x/y", Metadata={"a": "1"})
    third = part(world, upload, 30, b"C" * 10)
    part(world, upload, 1, b"wrong")
    first = part(world, upload, 1, b"A" * 1000)
    second = part(world, upload, 2, b"B" * 1000)
    listed = world.boto().list_parts(Bucket="bkt", Key="k", UploadId=upload)["Parts"]
    assert [(row["PartNumber"], row["Size"]) for row in listed] == [(1, 1000), (2, 1000), (30, 10)]
    query = {"uploadId": upload, "encoding-type": "url"}
    assert world.ask("GET", "/bkt/k", query=query).leaf("EncodingType") == "url"
    assert world.ask("GET", "/bkt/k").code == "NoSuchKey"
    parts = [(1, first), (2, second), (30, third)]
    done = finish(world, upload, parts)
    digests = b"".join(bytes.fromhex(etag.strip('"')) for _, etag in parts)
    etag = f'"{hashlib.md5(digests).hexdigest()}-3"'
    assert done.status == 200 and done.leaf("ETag").replace("&quot;", '"') == etag
    answer = world.ask("GET", "/bkt/k")
    assert answer.body == b"A" * 1000 + b"B" * 1000 + b"C" * 10
    assert (answer.headers["etag"], answer.headers["content-type"]) == (etag, "x/y")
    assert answer.headers["x-amz-meta-a"] == "1"
    one = world.ask("GET", "/bkt/k", query={"partNumber": "2"})
    assert (one.status, one.body, one.headers["x-amz-mp-parts-count"]) == (206, b"B" * 1000, "3")
    assert world.ask("GET", "/bkt/k", query={"partNumber": "4"}).status == 416
    assert usage(world) == (2010, 1, 0)
    assert "Uploads" not in world.boto().list_multipart_uploads(Bucket="bkt")


def test_a_completion_that_was_done_already_answers_the_same(world: World) -> None:
    upload = begin(world)
    parts = [(1, part(world, upload, 1, b"data"))]
    first = finish(world, upload, parts)
    again = finish(world, upload, parts)
    assert (again.status, again.leaf("ETag")) == (200, first.leaf("ETag"))
    world.ask("PUT", "/bkt/k", b"newer")
    assert finish(world, upload, parts).code == "NoSuchUpload"
    assert world.ask("GET", "/bkt/k").body == b"newer"
    assert usage(world) == (5, 1, 0)


def test_wrong_completions_leave_the_upload_as_it_was(world: World) -> None:
    upload = begin(world)
    one, two = part(world, upload, 1, b"one"), part(world, upload, 2, b"two")
    assert finish(world, upload, [(2, two), (1, one)]).code == "InvalidPartOrder"
    assert finish(world, upload, [(1, one), (1, one)]).code == "InvalidPartOrder"
    assert finish(world, upload, [(1, two)]).code == "InvalidPart"
    assert finish(world, upload, [(1, one), (3, two)]).code == "InvalidPart"
    assert finish(world, upload, []).code == "MalformedXML"
    assert finish(world, "0" * 32, [(1, one)]).code == "NoSuchUpload"
    for size in ("7", "six", "-6"):
        bad = {"x-amz-mp-object-size": size}
        assert finish(world, upload, [(1, one), (2, two)], **bad).code == "InvalidRequest"
    query = {"uploadId": upload}
    for body in (b"", b"<a/>", b"<CompleteMultipartUpload><Part/></CompleteMultipartUpload>", b"\xff"):
        assert world.ask("POST", "/bkt/k", body, query=query).code == "MalformedXML"
    assert world.ask("POST", "/bkt/other", document([(1, one)]), query=query).code == "NoSuchUpload"
    assert finish(world, upload, [(1, one), (2, two)]).status == 200


def test_small_parts_are_refused_at_the_end(tmp_path: Path) -> None:
    made = World(STORES["memory"](tmp_path), min_part=5 * MIB)
    made.ask("PUT", "/bkt")
    upload = begin(made)
    parts = [(1, part(made, upload, 1, b"small")), (2, part(made, upload, 2, b"last"))]
    assert finish(made, upload, parts).code == "EntityTooSmall"
    assert finish(made, upload, parts[:1]).status == 200
    made.close()


def test_an_aborted_upload_leaves_nothing(world: World) -> None:
    upload = begin(world)
    part(world, upload, 1, b"x" * 5000)
    assert world.index.usage("bucket", "bkt").bytes + usage(world)[2] >= 5000
    assert world.ask("DELETE", "/bkt/k", query={"uploadId": upload}).status == 204
    assert usage(world) == (0, 0, 0)
    assert world.ask("DELETE", "/bkt/k", query={"uploadId": upload}).code == "NoSuchUpload"
    late = world.ask("PUT", "/bkt/k", b"late", query={"partNumber": "1", "uploadId": upload})
    assert late.code == "NoSuchUpload"
    assert world.store.names("bkt", prefix=".cumulus/parts/") == []


def test_wrong_part_numbers_and_checksums(world: World) -> None:
    upload = begin(world, ChecksumAlgorithm="CRC32")
    for number in ("0", "10001", "x", "", "-1"):
        answer = world.ask("PUT", "/bkt/k", b"x", query={"partNumber": number, "uploadId": upload})
        assert answer.code == "InvalidArgument"
    query = {"partNumber": "1", "uploadId": upload}
    wrong = {"x-amz-checksum-crc32": "AAAAAA=="}
    assert world.ask("PUT", "/bkt/k", b"x", query=query, headers=wrong).code == "BadDigest"
    other = {"x-amz-checksum-sha1": base64.b64encode(hashlib.sha1(b"x").digest()).decode()}
    assert world.ask("PUT", "/bkt/k", b"x", query=query, headers=other).code == "InvalidRequest"
    assert world.ask("GET", "/bkt/k", query={"uploadId": upload}).leaves("PartNumber") == []
    assert usage(world) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["COMPOSITE", "FULL_OBJECT"])
def test_checksums_of_the_whole(world: World, kind: str) -> None:
    """Of the parts' checksums, which the completion must name again, or of all bytes; a wrong promise is
    refused."""
    upload = begin(world, ChecksumAlgorithm="CRC32", ChecksumType=kind)
    bodies = [b"A" * 3000, b"B" * 500]
    parts = [(n, part(world, upload, n, body)) for n, body in enumerate(bodies, 1)]
    sums = [zlib.crc32(body).to_bytes(4, "big") for body in bodies]
    whole = zlib.crc32(b"".join(bodies)).to_bytes(4, "big")
    composite = zlib.crc32(b"".join(sums)).to_bytes(4, "big")
    digest, end = (composite, "-2") if kind == "COMPOSITE" else (whole, "")
    wanted = base64.b64encode(digest).decode() + end
    bad = {"x-amz-checksum-crc32": "AAAAAA=="}
    named = {}
    if kind == "COMPOSITE":
        texts = [f"<ChecksumCRC32>{base64.b64encode(one).decode()}</ChecksumCRC32>" for one in sums]
        named = dict(enumerate(texts, 1))
        for few, missing in (
            ({}, 1),
            ({1: texts[0]}, 2),
            ({1: texts[0], 2: "<ChecksumSHA1>x</ChecksumSHA1>"}, 2),
        ):
            refused = finish(world, upload, parts, sums=few)
            assert (refused.status, refused.code) == (400, "InvalidRequest")
            assert f"missing for part {missing} " in refused.leaf("Message")
        assert finish(world, upload, parts, sums={1: texts[1], 2: texts[1]}).code == "InvalidPart"
    assert finish(world, upload, parts, sums=named, **bad).code == "BadDigest"
    promise = {"x-amz-checksum-crc32": wanted, "x-amz-checksum-type": kind}
    done = finish(world, upload, parts, sums=named, **promise)
    assert (done.leaf("ChecksumCRC32"), done.leaf("ChecksumType")) == (wanted, kind)
    head = world.boto().head_object(Bucket="bkt", Key="k", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (wanted, kind)
    found = world.boto().get_object_attributes(
        Bucket="bkt", Key="k", ObjectAttributes=["ObjectParts"], MaxParts=1
    )["ObjectParts"]
    assert found["TotalPartsCount"] == 2 and found["IsTruncated"]
    assert found["Parts"][0]["ChecksumCRC32"] == base64.b64encode(sums[0]).decode()


@pytest.mark.parametrize("end", ["", "-2"])
def test_a_sum_of_sums_is_promised_with_or_without_the_number_of_parts(world: World, end: str) -> None:
    """As minio-go does it, and as the SDKs do; another number of parts is no such sum."""
    upload = begin(world, ChecksumAlgorithm="CRC32")
    parts = [(n, part(world, upload, n, body)) for n, body in enumerate((b"A" * 3000, b"B" * 500), 1)]
    listed = world.ask("GET", "/bkt/k", query={"uploadId": upload}).leaves("ChecksumCRC32")
    named = {n: f"<ChecksumCRC32>{one}</ChecksumCRC32>" for n, one in enumerate(listed, 1)}
    sum_of_sums = base64.b64encode(
        zlib.crc32(b"".join(map(base64.b64decode, listed))).to_bytes(4, "big")
    ).decode()
    for wrong in (f"{sum_of_sums}-3", f"{sum_of_sums}-", listed[0]):
        refused = finish(world, upload, parts, sums=named, **{"x-amz-checksum-crc32": wrong})
        assert refused.code == "BadDigest", wrong
    done = finish(world, upload, parts, sums=named, **{"x-amz-checksum-crc32": sum_of_sums + end})
    assert (done.status, done.leaf("ChecksumCRC32")) == (200, f"{sum_of_sums}-2")


def test_parts_are_read_by_their_numbers(world: World) -> None:
    """Not by their places among those that there are."""
    upload = begin(world)
    bodies = {1: b"one", 3: b"three", 5: b"fifth"}
    finish(world, upload, [(n, part(world, upload, n, body)) for n, body in bodies.items()])
    for method in ("GET", "HEAD"):
        for number in (1, 2, 3, 4, 5, 6):
            answer = world.ask(method, "/bkt/k", query={"partNumber": str(number)})
            assert answer.status == (206 if number in bodies else 416), (method, number)
            if number in bodies:
                assert answer.headers["x-amz-mp-parts-count"] == "3"
                assert answer.headers["content-length"] == str(len(bodies[number]))
                assert answer.body == bodies[number] or method == "HEAD"
            elif method == "GET":
                assert answer.code == "InvalidPartNumber"


def test_a_last_part_without_bytes_is_read_as_that(world: World) -> None:
    """Without a range that ends before it begins."""
    upload = begin(world)
    finish(world, upload, [(n, part(world, upload, n, body)) for n, body in ((1, b"one"), (2, b""))])
    for method in ("GET", "HEAD"):
        answer = world.ask(method, "/bkt/k", query={"partNumber": "2"})
        assert (answer.status, answer.headers["content-length"], answer.body) == (200, "0", b"")
        assert answer.headers["x-amz-mp-parts-count"] == "2"
        assert "content-range" not in answer.headers


def test_parts_can_be_copied_from_objects(world: World) -> None:
    client = world.boto()
    client.put_object(Bucket="bkt", Key="from", Body=b"0123456789")
    upload = begin(world)
    copy = {"Bucket": "bkt", "Key": "k", "UploadId": upload, "CopySource": "bkt/from"}
    one = client.upload_part_copy(**copy, PartNumber=1, CopySourceRange="bytes=2-5")["CopyPartResult"]
    two = client.upload_part_copy(**copy, PartNumber=2)["CopyPartResult"]
    for bad, wanted in (("bytes=5-20", "InvalidArgument"), ("bytes=3-", "InvalidArgument")):
        with pytest.raises(ClientError) as error:
            client.upload_part_copy(**copy, PartNumber=3, CopySourceRange=bad)
        assert code(error) == wanted
    assert finish(world, upload, [(1, one["ETag"]), (2, two["ETag"])]).status == 200
    assert world.ask("GET", "/bkt/k").body == b"2345" + b"0123456789"


def test_uploads_are_listed_by_key_and_prefix(world: World) -> None:
    ids = [begin(world, key) for key in ("a/1", "a/2", "b", "b")]
    client = world.boto()
    rows = client.list_multipart_uploads(Bucket="bkt")["Uploads"]
    assert [row["UploadId"] for row in rows] == ids
    grouped = client.list_multipart_uploads(Bucket="bkt", Delimiter="/")
    assert [row["Prefix"] for row in grouped["CommonPrefixes"]] == ["a/"]
    assert [row["UploadId"] for row in grouped["Uploads"]] == ids[2:]
    pages = client.get_paginator("list_multipart_uploads").paginate(
        Bucket="bkt", PaginationConfig={"PageSize": 1}
    )
    assert [row["UploadId"] for page in pages for row in page["Uploads"]] == ids
    inside = client.list_multipart_uploads(Bucket="bkt", Delimiter="/", KeyMarker="a/1")
    assert [row["Prefix"] for row in inside["CommonPrefixes"]] == ["a/"]  # as objects are listed
    behind = client.list_multipart_uploads(Bucket="bkt", Delimiter="/", KeyMarker="a/")
    assert "CommonPrefixes" not in behind and [row["UploadId"] for row in behind["Uploads"]] == ids[2:]
    found: list[str] = []
    for shown in client.get_paginator("list_multipart_uploads").paginate(
        Bucket="bkt", Delimiter="/", PaginationConfig={"PageSize": 1}
    ):
        found += [row["Prefix"] for row in shown.get("CommonPrefixes", [])]
        found += [row["UploadId"] for row in shown.get("Uploads", [])]
        begin(world, f"a/{len(found) + 2}")  # one that comes meanwhile does not show the prefix again
    assert found == ["a/", *ids[2:]]
    assert world.ask("DELETE", "/bkt").status == 204


def test_a_big_object_by_the_transfer_manager(world: World, tmp_path: Path) -> None:
    """boto3's own multipart upload and download, with the checksums that it makes by itself."""
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40_000)
    client = world.boto()
    client.upload_file(str(source), "bkt", "big")
    client.download_file("bkt", "big", str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert "-" in world.ask("HEAD", "/bkt/big").headers["etag"]
