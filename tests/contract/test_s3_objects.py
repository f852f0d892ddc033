"""What S3 promises of objects, asked through the whole gateway with signed requests, on every kind of
storage."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.index.api import OverQuota, Reservation
from cumulus.storage.api import Entry, IfToken, ObjectStream

ODD_KEYS = [
    "n",
    "n/m",
    "n/m/deeper",
    "a//b",
    "a/./b",
    "q/../r",
    "/lead",
    "dir/",
    "dir/file",
    "s" * 300,
    "p/" + "s" * 256 + "/q",
    ".cumulus",
    ".cumulus/odd/x",
    ".",
    "..",
    "../../etc/passwd",
    "k\u00e4se \u2603 \U0001f600",
    "semi;colon' OR 1=1 --",
    "<xml>&amp;]]>\"'",
    "%41%2F",
    "plus+and space",
    "new\nline\ttab\r",
    "nul\0byte",
    "\x01\x1f",
    "x" * 1024,
]


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(STORES[request.param](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def keys(world: World, **query: str) -> list[str]:
    """Keys as a real client lists them."""
    pages = world.boto().get_paginator("list_objects_v2").paginate(Bucket="bkt", **query)
    return [row["Key"] for page in pages for row in page.get("Contents", [])]


def test_odd_keys_are_kept_apart_and_listed_in_order_of_their_bytes(world: World) -> None:
    """Each has its own bytes, whatever the others do; listing and deleting find all of them."""
    for number, key in enumerate(ODD_KEYS):
        body = f"{number}:{key}".encode()
        assert world.ask("PUT", f"/bkt/{key}", body).status == 200, key
    for number, key in enumerate(ODD_KEYS):
        answer = world.ask("GET", f"/bkt/{key}")
        assert (answer.status, answer.body) == (200, f"{number}:{key}".encode()), key
    assert keys(world) == sorted(ODD_KEYS, key=str.encode)
    for key in ODD_KEYS:
        assert world.ask("DELETE", f"/bkt/{key}").status == 204
        assert world.ask("HEAD", f"/bkt/{key}").status == 404
    assert keys(world) == []
    assert world.ask("DELETE", "/bkt").status == 204


def test_a_key_below_another_keeps_its_place_when_that_one_goes(world: World) -> None:
    """`n` beside `n/m`: the second comer goes elsewhere, and stays findable when overwritten later."""
    world.ask("PUT", "/bkt/n/m", b"below")
    world.ask("PUT", "/bkt/n", b"first")
    world.ask("DELETE", "/bkt/n/m")
    world.ask("PUT", "/bkt/n", b"second")
    assert world.ask("GET", "/bkt/n").body == b"second"
    world.ask("DELETE", "/bkt/n")
    assert world.ask("GET", "/bkt/n").code == "NoSuchKey"
    assert keys(world) == []


def test_metadata_and_headers_come_back_as_they_were_put(world: World) -> None:
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Cache-Control": "no-cache",
        "Content-Encoding": "gzip",
        "Content-Language": "de",
        "Content-Disposition": 'attachment; filename="x"',
        "Expires": "Thu, 01 Dec 2044 16:00:00 GMT",
        "x-amz-meta-colour": "blue",
        "x-amz-tagging": "a=1&b=two%20words",
    }
    assert world.ask("PUT", "/bkt/k", b"data", headers=headers).status == 200
    answer = world.ask("HEAD", "/bkt/k")
    assert answer.headers["content-length"] == "4" and answer.body == b""
    for name, value in headers.items():
        if name != "x-amz-tagging":
            assert answer.headers[name.lower()] == value
    assert answer.headers["x-amz-tagging-count"] == "2"
    assert world.boto().get_object_tagging(Bucket="bkt", Key="k")["TagSet"] == [
        {"Key": "a", "Value": "1"},
        {"Key": "b", "Value": "two words"},
    ]
    over = world.ask("GET", "/bkt/k", query={"response-content-type": "a/b", "x-id": "GetObject"})
    assert over.headers["content-type"] == "a/b"
    empty = world.ask("GET", "/bkt/k", query="response-content-type=&response-cache-control=")
    assert empty.headers["content-type"] == headers["Content-Type"]
    assert empty.headers["cache-control"] == headers["Cache-Control"]


RANGES: list[tuple[str, int, bytes | None, str | None]] = [
    ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
    ("bytes=7-", 206, b"789", "bytes 7-9/10"),
    ("bytes=-2", 206, b"89", "bytes 8-9/10"),
    ("bytes=-20", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=5-100", 206, b"56789", "bytes 5-9/10"),
    ("bytes=5-18446744073709551615", 206, b"56789", "bytes 5-9/10"),
    ("bytes=-99999999999999999999", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=18446744073709551615-", 416, None, "bytes */10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    ("bytes=4-2", 200, b"0123456789", None),
    ("bytes=0-1,4-5", 200, b"0123456789", None),
    ("lines=0-1", 200, b"0123456789", None),
]


def test_ranges(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"0123456789")
    for text, status, body, content_range in RANGES:
        answer = world.ask("GET", "/bkt/k", headers={"Range": text})
        assert answer.status == status, text
        assert answer.headers.get("content-range") == content_range, text
        assert body is None or answer.body == body, text


def test_conditional_reads(world: World) -> None:
    etag = world.ask("PUT", "/bkt/k", b"data").headers["etag"]
    date = world.ask("HEAD", "/bkt/k").headers["last-modified"]
    past, future = "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
    for headers, status in (
        ({"If-Match": etag}, 200),
        ({"If-Match": '"other"'}, 412),
        ({"If-None-Match": etag}, 304),
        ({"If-None-Match": '"other"'}, 200),
        ({"If-Modified-Since": date}, 304),
        ({"If-Modified-Since": past}, 200),
        ({"If-Unmodified-Since": past}, 412),
        ({"If-Unmodified-Since": future}, 200),
        ({"If-Match": etag, "If-Unmodified-Since": past}, 200),
        ({"If-None-Match": '"other"', "If-Modified-Since": date}, 200),
    ):
        assert world.ask("GET", "/bkt/k", headers=headers).status == status, headers
    unchanged = world.ask("GET", "/bkt/k", headers={"If-None-Match": etag})
    assert unchanged.body == b"" and unchanged.headers["etag"] == etag


def test_conditional_writes_and_deletes(world: World) -> None:
    """A condition that does not hold leaves everything as it is."""
    fresh = {"If-None-Match": "*"}
    first = world.ask("PUT", "/bkt/k", b"one", headers=fresh)
    assert first.status == 200
    assert world.ask("PUT", "/bkt/k", b"two", headers=fresh).code == "PreconditionFailed"
    assert world.ask("PUT", "/bkt/k", b"two", headers={"If-Match": '"x"'}).status == 412
    assert world.ask("PUT", "/bkt/none", b"two", headers={"If-Match": '"x"'}).code == "NoSuchKey"
    for more in ({"If-None-Match": '"x"'}, {**fresh, "If-Match": "*"}, {"If-None-Match": '*, "x"'}):
        refused = world.ask("PUT", "/bkt/k", b"two", headers=more)
        assert (refused.status, refused.code) == (501, "NotImplemented"), more
    assert world.ask("GET", "/bkt/k").body == b"one"
    etag = first.headers["etag"]
    assert world.ask("PUT", "/bkt/k", b"two", headers={"If-Match": etag}).status == 200
    assert world.ask("DELETE", "/bkt/k", headers={"If-Match": etag}).status == 412
    assert world.ask("GET", "/bkt/k").body == b"two"
    now = world.ask("HEAD", "/bkt/k").headers["etag"]
    assert world.ask("DELETE", "/bkt/k", headers={"If-Match": now}).status == 204
    assert world.ask("HEAD", "/bkt/k").status == 404


HUGE = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Match": '""'}, 412),
        ({"If-Match": ""}, 412),
        ({"x-amz-if-match-last-modified-time": "yesterday"}, 400),
        ({"x-amz-if-match-last-modified-time": HUGE}, 400),
        ({"x-amz-if-match-size": "four"}, 400),
        ({"x-amz-if-match-size": "9" * 5000}, 400),
    ],
)
def test_a_condition_that_cannot_be_read_does_not_hold(
    world: World, headers: dict[str, str], status: int
) -> None:
    """It was made, so nothing is done as if it had not been."""
    world.ask("PUT", "/bkt/k", b"data")
    assert world.ask("DELETE", "/bkt/k", headers=headers).status == status
    assert world.ask("PUT", "/bkt/k", b"more", headers=headers).status == status
    assert world.ask("GET", "/bkt/k").body == b"data"


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("<ETag>&quot;&quot;</ETag>", "PreconditionFailed"),
        ("<ETag/>", "PreconditionFailed"),
        ("<LastModifiedTime>yesterday</LastModifiedTime>", "MalformedXML"),
        (f"<Size>{'9' * 5000}</Size>", "MalformedXML"),
        ("<Size/>", "MalformedXML"),
    ],
)
def test_nor_does_that_of_one_key_of_many(world: World, condition: str, code: str) -> None:
    world.ask("PUT", "/bkt/k", b"data")
    body = f"<Delete><Object><Key>k</Key>{condition}</Object></Delete>".encode()
    headers = {"Content-MD5": b64(hashlib.md5(body).digest())}
    answer = world.ask("POST", "/bkt", body, query="delete", headers=headers)
    assert answer.leaf("Code") == code
    assert world.ask("GET", "/bkt/k").body == b"data"


def test_dates_that_no_clock_shows_are_none(world: World) -> None:
    """Conditions of HTTP with one are ignored."""
    world.ask("PUT", "/bkt/k", b"data")
    for name in ("If-Modified-Since", "If-Unmodified-Since", "If-Range"):
        for date in (
            HUGE,
            "Mon, 01 Jan 2020 00:00:00 +99999999999999",
            "Mon, 01 Jan 2020 99999999999:00:00 GMT",
        ):
            assert world.ask("GET", "/bkt/k", headers={name: date, "Range": "bytes=0-0"}).status < 300


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_right_checksums_are_stored_and_returned(world: World) -> None:
    body = b"some bytes" * 1000
    crc = b64(zlib.crc32(body).to_bytes(4, "big"))
    sha = b64(hashlib.sha256(body).digest())
    md5 = b64(hashlib.md5(body).digest())
    assert world.ask("PUT", "/bkt/m", body, headers={"Content-MD5": md5}).status == 200
    put = world.ask("PUT", "/bkt/c", body, headers={"x-amz-checksum-crc32": crc})
    assert put.headers["x-amz-checksum-crc32"] == crc
    world.ask("PUT", "/bkt/s", body, headers={"x-amz-checksum-sha256": sha})
    client = world.boto()
    head = client.head_object(Bucket="bkt", Key="s", ChecksumMode="ENABLED")
    assert head["ChecksumSHA256"] == sha and head["ChecksumType"] == "FULL_OBJECT"
    assert "x-amz-checksum-sha256" not in world.ask("HEAD", "/bkt/s").headers
    wanted = ["ETag", "Checksum", "ObjectSize", "StorageClass"]
    found = client.get_object_attributes(Bucket="bkt", Key="c", ObjectAttributes=wanted)
    assert found["Checksum"]["ChecksumCRC32"] == crc and found["ObjectSize"] == len(body)


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"Content-MD5": b64(b"x" * 16)}, "BadDigest"),
    ({"Content-MD5": "nonsense"}, "InvalidDigest"),
    ({"x-amz-checksum-sha256": b64(b"x" * 32)}, "BadDigest"),
    ({"x-amz-checksum-crc32": "AAAAAA=="}, "BadDigest"),
    ({"x-amz-checksum-crc32": "short"}, "InvalidRequest"),
    ({"x-amz-checksum-md4": "AAAA"}, "InvalidRequest"),
    ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-sha1": b64(b"x" * 20)}, "InvalidRequest"),
    ({"x-amz-sdk-checksum-algorithm": "CRC32"}, "InvalidRequest"),
    ({"x-amz-content-sha256": "0" * 64}, "XAmzContentSHA256Mismatch"),
    ({"x-amz-meta-big": "x" * 2100}, "MetadataTooLarge"),
    ({"Content-Disposition": "x" * 8192}, "RequestHeaderSectionTooLarge"),
    ({"x-amz-storage-class": "ICE"}, "InvalidStorageClass"),
    ({"x-amz-server-side-encryption": "AES256"}, "NotImplemented"),
    ({"x-amz-tagging": "a=1&a=2"}, "InvalidTag"),
    ({"x-amz-acl": "nobody"}, "InvalidArgument"),
]


def test_headers_that_belong_to_an_object_are_bounded(world: World) -> None:
    """No quota counts them: 1,000 uploads with 60 KB each made a list of uploads that was too long for the
    head to give to a worker, so that nobody could see them any more."""
    most = {"Content-Type": "a/b", "Content-Disposition": "x" * (8192 - 12 - 3 - 19)}
    assert world.ask("PUT", "/bkt/k", b"x", headers=most).status == 200
    assert world.ask("HEAD", "/bkt/k").headers["content-disposition"] == most["Content-Disposition"]
    more = {**most, "Content-Type": "a/bc"}
    assert world.ask("POST", "/bkt/m", query="uploads", headers=more).code == "RequestHeaderSectionTooLarge"
    copy = {**more, "x-amz-copy-source": "/bkt/k", "x-amz-metadata-directive": "REPLACE"}
    assert world.ask("PUT", "/bkt/c", headers=copy).code == "RequestHeaderSectionTooLarge"
    assert keys(world) == ["k"]


def test_a_put_that_is_refused_leaves_the_old_object(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"old")
    used = world.index.usage("bucket", "bkt")
    for headers, code in REFUSED:
        assert world.ask("PUT", "/bkt/k", b"new bytes", headers=headers).code == code, headers
        assert world.ask("GET", "/bkt/k").body == b"old"
    assert world.index.usage("bucket", "bkt") == used
    assert keys(world) == ["k"]


def test_an_upload_that_breaks_leaves_the_old_object(world: World) -> None:
    """Half a body and then nothing, twice: old bytes, nothing reserved, no second abort."""
    world.ask("PUT", "/bkt/k", b"old")
    for key in ("k", "fresh"):
        _, sink = world.open("PUT", f"/bkt/{key}", b"x" * 100_000)
        assert not hasattr(sink, "status")
        assert sink.write(memoryview(b"x" * 50_000)) is None  # type: ignore[union-attr]
        sink.abort()  # type: ignore[union-attr]
        sink.abort()  # type: ignore[union-attr]
    assert world.ask("GET", "/bkt/k").body == b"old"
    assert keys(world) == ["k"]
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def test_a_wrong_method_on_a_sub_resource_does_nothing_else(world: World) -> None:
    """DELETE key?acl is not DELETE key."""
    world.ask("PUT", "/bkt/k", b"data")
    answer = world.ask("DELETE", "/bkt/k", query="acl")
    assert (answer.status, answer.code) == (405, "MethodNotAllowed")
    assert world.ask("POST", "/bkt/k", b"").status == 405
    assert world.ask("PUT", "/bkt/k", b"", query="torrent").status == 405
    assert world.ask("GET", "/bkt/k", query="torrent").status == 501
    assert world.ask("PUT", "/bkt/k", b"<x/>", query="legal-hold").status == 501
    assert world.ask("GET", "/bkt/k").body == b"data"


def test_multi_delete_says_what_became_of_each(world: World) -> None:
    client = world.boto()
    for key in ("a", "b/c", "odd//one"):
        client.put_object(Bucket="bkt", Key=key, Body=b"x")
    wanted = [{"Key": key} for key in ("a", "odd//one", "never there", "k" * 1025)]
    done = client.delete_objects(Bucket="bkt", Delete={"Objects": wanted})
    assert [row["Key"] for row in done["Deleted"]] == ["a", "odd//one", "never there"]
    assert [row["Code"] for row in done["Errors"]] == ["KeyTooLongError"]
    assert keys(world) == ["b/c"]
    quiet = client.delete_objects(Bucket="bkt", Delete={"Objects": [{"Key": "b/c"}], "Quiet": True})
    assert "Deleted" not in quiet


def test_copies(world: World) -> None:
    client = world.boto()
    client.put_object(Bucket="bkt", Key="from", Body=b"data", Metadata={"a": "1"}, ContentType="x/y")
    client.copy_object(Bucket="bkt", Key="to//odd", CopySource="bkt/from")
    copied = client.get_object(Bucket="bkt", Key="to//odd")
    assert (copied["Body"].read(), copied["Metadata"], copied["ContentType"]) == (b"data", {"a": "1"}, "x/y")
    client.copy_object(
        Bucket="bkt", Key="from", CopySource="bkt/from", MetadataDirective="REPLACE", Metadata={"b": "2"}
    )
    assert client.head_object(Bucket="bkt", Key="from")["Metadata"] == {"b": "2"}
    source = {"x-amz-copy-source": "/bkt/from"}
    assert world.ask("PUT", "/bkt/from", headers=source).code == "InvalidRequest"
    for more, code in (
        ({"x-amz-copy-source-if-none-match": "*"}, "PreconditionFailed"),
        ({"x-amz-metadata-directive": "KEEP"}, "InvalidArgument"),
        ({"x-amz-copy-source": "/bkt/none"}, "NoSuchKey"),
        ({"x-amz-copy-source": "none"}, "InvalidArgument"),
        ({"x-amz-copy-source": "/none/k"}, "NoSuchBucket"),
        ({"If-None-Match": "*"}, "PreconditionFailed"),
        ({"If-None-Match": '"x"'}, "NotImplemented"),
    ):
        assert world.ask("PUT", "/bkt/to//odd", headers={**source, **more}).code == code, more


def full(_reservation: Reservation) -> None:
    """What was reserved was lost, and others have used the room."""
    raise OverQuota("bucket", "bkt", "bytes", 100, 0, 100)


@pytest.mark.parametrize(("source", "to"), [("k", "copy"), ("dir/", "copy/")])
def test_a_copy_whose_room_was_lost_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch, source: str, to: str
) -> None:
    """As with what is uploaded, it is asked before anybody sees it."""
    world.ask("PUT", f"/bkt/{source}", b"" if source.endswith("/") else b"x" * 100)
    monkeypatch.setattr(world.index, "confirm", full)
    answer = world.ask("PUT", f"/bkt/{to}", headers={"x-amz-copy-source": f"/bkt/{source}"})
    assert (answer.status, answer.code) == (403, "QuotaExceeded")
    assert world.ask("HEAD", f"/bkt/{to}").status == 404
    assert keys(world) == [source]


def test_a_backend_whose_copy_asks_nothing_is_asked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written when `copy` had no `check`."""

    class Former(MemoryStore):
        def copy(  # type: ignore[override]
            self, source: ObjectStream, bucket: str, name: str, meta: bytes, if_token: IfToken = None
        ) -> Entry:
            return super().copy(source, bucket, name, meta, if_token)

    made = World(Former())
    made.ask("PUT", "/bkt")
    made.ask("PUT", "/bkt/k", b"data")
    headers = {"x-amz-copy-source": "/bkt/k"}
    assert made.ask("PUT", "/bkt/copy", headers=headers).status == 200
    assert made.ask("GET", "/bkt/copy").body == b"data"
    monkeypatch.setattr(made.index, "confirm", full)
    assert made.ask("PUT", "/bkt/more", headers=headers).code == "QuotaExceeded"
    assert keys(made) == ["copy", "k"]
    made.close()


def test_listing_pages_delimiters_and_encodings(world: World) -> None:
    names = ["a/1", "a/2", "b", "c d", "e/f/g", "e/h", "z\x01"]
    for name in names:
        world.ask("PUT", f"/bkt/{name}", b"x")
    client = world.boto()
    pages = list(
        client.get_paginator("list_objects_v2").paginate(
            Bucket="bkt", Delimiter="/", PaginationConfig={"PageSize": 2}
        )
    )
    found = [row["Key"] for page in pages for row in page.get("Contents", [])]
    prefixes = [row["Prefix"] for page in pages for row in page.get("CommonPrefixes", [])]
    assert (found, prefixes) == (["b", "c d", "z\x01"], ["a/", "e/"])
    assert [page["KeyCount"] for page in pages] == [2, 2, 1]
    old = list(
        client.get_paginator("list_objects").paginate(
            Bucket="bkt", Delimiter="/", PaginationConfig={"PageSize": 1}
        )
    )
    assert [row["Key"] for page in old for row in page.get("Contents", [])] == ["b", "c d", "z\x01"]
    assert keys(world, Prefix="e/") == ["e/f/g", "e/h"]
    assert keys(world, StartAfter="c d") == ["e/f/g", "e/h", "z\x01"]
    assert world.ask("GET", "/bkt", query={"max-keys": "0"}).leaf("IsTruncated") == "false"
    for bad in ("max-keys=-1", "max-keys=x", "encoding-type=hex", "list-type=3"):
        assert world.ask("GET", "/bkt", query=bad).code == "InvalidArgument"
    assert world.ask("GET", "/bkt", query="list-type=2&continuation-token=xx").code == "InvalidArgument"
    owners = client.list_objects_v2(Bucket="bkt", FetchOwner=True)["Contents"]
    assert {row["Owner"]["DisplayName"] for row in owners} == {"Alice"}


def test_buckets(world: World) -> None:
    client = world.boto()
    assert [row["Name"] for row in client.list_buckets()["Buckets"]] == ["bkt"]
    assert world.ask("PUT", "/bkt").code == "BucketAlreadyOwnedByYou"
    assert world.ask("PUT", "/bkt", user="bob").code == "BucketAlreadyExists"
    for name in ("UP", "ab", "a..b", "1.2.3.4", "x" * 64, "a_b"):
        assert world.ask("PUT", f"/{name}").code == "InvalidBucketName"
    assert world.ask("PUT", "/other", user="").code == "AccessDenied"
    assert world.ask("DELETE", "/bkt", user="bob").code == "AccessDenied"
    assert client.get_bucket_location(Bucket="bkt")["LocationConstraint"] is None
    mars = b"<LocationConstraint>mars</LocationConstraint>"
    elsewhere = b"<CreateBucketConfiguration>" + mars + b"</CreateBucketConfiguration>"
    assert world.ask("PUT", "/other", elsewhere).code == "IllegalLocationConstraintException"
    world.ask("PUT", "/bkt/k", b"x")
    assert world.ask("DELETE", "/bkt").code == "BucketNotEmpty"
    assert world.ask("GET", "/none").code == "NoSuchBucket"
    assert world.ask("PUT", "/none/k", b"x").code == "NoSuchBucket"


def test_who_may_not_gets_nothing(world: World) -> None:
    world.ask("PUT", "/bkt/k", b"x")
    for user in ("bob", ""):
        for method, path in (("GET", "/bkt/k"), ("HEAD", "/bkt/none"), ("GET", "/bkt"), ("DELETE", "/bkt/k")):
            assert world.ask(method, path, user=user).status == 403
        assert world.ask("PUT", "/bkt/k", b"y", user=user).code == "AccessDenied"
        assert world.ask("GET", "/bkt/none", user=user).code == "AccessDenied"
    assert world.ask("GET", "/bkt/k").body == b"x"


@pytest.mark.parametrize("encoding", ["", "url"])
def test_keys_that_must_be_written_otherwise_are_and_the_others_stay(world: World, encoding: str) -> None:
    """Alone on a page and beside others; checksums and owners are each object's own."""
    keys = ["a-b_c.d~e*f/g", "<&>\"'", "sp ace", "plus+%", "new\nline", "é/ü", "~"]
    for number, key in enumerate(keys):
        headers = {"x-amz-sdk-checksum-algorithm": "CRC32", "x-amz-checksum-crc32": "AAAAAA=="}
        asked = world.ask("PUT", f"/bkt/{key}", b"", headers=headers if number % 2 else {})
        assert asked.status == 200
    for size in (1000, 1):
        found: list[str] = []
        checked: list[int] = []
        token = ""
        while True:
            query = {"list-type": "2", "max-keys": str(size), "fetch-owner": "true"}
            query |= {"encoding-type": encoding} if encoding else {}
            answer = world.ask("GET", "/bkt", query=query | ({"continuation-token": token} if token else {}))
            found += [unquote(one) if encoding else unescape(one) for one in answer.leaves("Key")]
            checked.append(len(answer.leaves("ChecksumAlgorithm")))
            assert set(answer.leaves("DisplayName")) == {"Alice"}
            if answer.leaves("IsTruncated") == ["false"]:
                break
            token = answer.leaves("NextContinuationToken")[0]
        assert found == sorted(keys, key=str.encode)
        assert sum(checked) == len(keys) // 2


@pytest.mark.parametrize("query", ["versionId=null", "versionId=", "partNumber=1"])
def test_who_means_a_version_or_a_part_replaces_no_object(world: World, query: str) -> None:
    """A version cannot be written, and a part belongs to an upload."""
    world.ask("PUT", "/bkt/k", b"whole")
    for headers in ({}, {"x-amz-copy-source": "/bkt/k", "x-amz-metadata-directive": "REPLACE"}):
        answer = world.ask("PUT", "/bkt/k", b"" if headers else b"part", query=query, headers=headers)
        assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert world.ask("GET", "/bkt/k").body == b"whole"
    created = world.ask("POST", "/bkt/k", query="uploads").leaf("UploadId")
    completed = world.ask("POST", "/bkt/k", b"<x/>", query=f"uploadId={created}&versionId=null")
    assert completed.code == "InvalidArgument"


@pytest.mark.parametrize("text", ["a%1Cb", "a%0Ab", "a%C2%85b", "%09"])
def test_tags_hold_no_control_characters(world: World, text: str) -> None:
    """No document could show them: the object's tags could not be read any more."""
    for tags in (f"name={text}", f"{text}=value"):
        refused = world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-tagging": tags})
        assert (refused.status, refused.code) == (400, "InvalidTag")
    assert world.ask("PUT", "/bkt/k", b"x", headers={"x-amz-tagging": "a+b=c%C2%A0%C3%BC"}).status == 200
    tags = world.boto().get_object_tagging(Bucket="bkt", Key="k")["TagSet"]
    assert tags == [{"Key": "a b", "Value": "c\u00a0ü"}]
