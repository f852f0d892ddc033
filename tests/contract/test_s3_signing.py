"""Ways in which a body can be signed, each with a body that is right, wrong, and cut at half."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from s3_world import HOST, World

from cumulus.backends.memory import MemoryStore
from cumulus.rest.call import Call, Headers, Sink

BODY = bytes(range(256)) * 800
CRC = base64.b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()
TRAILER = {
    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-decoded-content-length": str(len(BODY)),
    "x-amz-trailer": "x-amz-checksum-crc32",
    "Content-Encoding": "aws-chunked",
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(MemoryStore())
    made.ask("PUT", "/bkt")
    made.ask("PUT", "/bkt/k", b"old")
    yield made
    made.close()


def framed(crc: str = CRC) -> bytes:
    """The body in chunks of 64 KiB, with its checksum behind it."""
    pieces = [BODY[at : at + 65536] for at in range(0, len(BODY), 65536)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return chunks + b"0\r\nx-amz-checksum-crc32:" + crc.encode() + b"\r\n\r\n"


def unsigned(_: bytes) -> dict[str, str]:
    return {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}


def hashed(_: bytes) -> dict[str, str]:
    return {}


def trailed(_: bytes) -> dict[str, str]:
    return dict(TRAILER)


MODES: list[tuple[Callable[[bytes], dict[str, str]], bytes]] = [
    (unsigned, BODY),
    (hashed, BODY),
    (trailed, framed()),
]


@pytest.mark.parametrize(("mode", "wire"), MODES)
def test_whole_bodies_are_taken(world: World, mode: Callable[[bytes], dict[str, str]], wire: bytes) -> None:
    for piece in (1000, 65536, 1 << 20):
        call, sink = world.open("PUT", "/bkt/k", wire, headers=mode(wire))
        assert world.read(call, world.feed(sink, wire, piece)).status == 200
        answer = world.ask("GET", "/bkt/k")
        assert answer.body == BODY and "content-encoding" not in answer.headers


@pytest.mark.parametrize(("mode", "wire"), MODES)
def test_a_body_cut_at_half_leaves_the_old_object(
    world: World, mode: Callable[[bytes], dict[str, str]], wire: bytes
) -> None:
    """Whether the floor below says that the connection broke, or takes the half for the whole."""
    for told in (True, False):
        call, sink = world.open("PUT", "/bkt/k", wire, headers=mode(wire))
        assert isinstance(sink, Sink)
        assert sink.write(memoryview(wire)[: len(wire) // 2]) is None
        if told:
            sink.abort()
        else:
            assert world.read(call, sink.finish()).status == 400
        assert world.ask("GET", "/bkt/k").body == b"old"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


@pytest.mark.parametrize(
    ("wire", "change", "code"),
    [
        (framed("AAAAAA=="), {}, "BadDigest"),
        (framed("short"), {}, "InvalidRequest"),
        (framed()[:-2] + b"more", {}, None),
        (framed(), {"x-amz-decoded-content-length": "5"}, None),
        (framed(), {"x-amz-decoded-content-length": ""}, "MissingContentLength"),
        (BODY, {}, None),
        (framed().replace(b"x-amz-checksum-crc32", b"x-amz-checksum-crc33"), {}, None),
    ],
)
def test_wrong_trailers_and_frames(
    world: World, wire: bytes, change: dict[str, str], code: str | None
) -> None:
    answer = world.ask("PUT", "/bkt/k", wire, headers={**TRAILER, **change})
    assert 400 <= answer.status < 412 and (code is None or answer.code == code)
    assert world.ask("GET", "/bkt/k").body == b"old"
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0


def follow(world: World, method: str, url: str, body: bytes = b"") -> tuple[int, bytes]:
    """What somebody gets who has nothing but a link."""
    parts = urlsplit(url)
    call = Call(
        id="P1",
        method=method,
        target=f"{parts.path}?{parts.query}",
        headers=Headers([("Host", parts.netloc)]),
        peer="192.0.2.9",
        secure=False,
        at_ns=world.clock(),
        length=len(body) if body else None,
    )
    answer = world.read(call, world.feed(world.gateway.start(call), body))
    return answer.status, answer.body


def test_presigned_links(world: World) -> None:
    client = world.boto(signature_version="s3v4")
    where = {"Bucket": "bkt", "Key": "a key/with ü"}
    put = client.generate_presigned_url("put_object", where, ExpiresIn=60)
    get = client.generate_presigned_url("get_object", where, ExpiresIn=60)
    delete = client.generate_presigned_url("delete_object", where, ExpiresIn=60)
    assert follow(world, "PUT", put, b"by link")[0] == 200
    assert follow(world, "GET", get) == (200, b"by link")
    assert follow(world, "DELETE", get)[0] == 403
    assert follow(world, "GET", get.replace("with", "wiht"))[0] == 403
    world.skew_ns = 120 * 1_000_000_000
    assert follow(world, "GET", get)[0] == 403
    world.skew_ns = 0
    assert follow(world, "DELETE", delete)[0] == 204


def test_a_browser_may_ask_before_it_follows_a_link(world: World) -> None:
    """It asks by OPTIONS at the whole URL, whose signature is one for PUT."""
    client = world.boto(signature_version="s3v4")
    rules = [{"AllowedMethods": ["PUT"], "AllowedOrigins": ["https://page.example"], "AllowedHeaders": ["*"]}]
    client.put_bucket_cors(Bucket="bkt", CORSConfiguration={"CORSRules": rules})
    url = urlsplit(client.generate_presigned_url("put_object", {"Bucket": "bkt", "Key": "k"}))
    ask = {"Origin": "https://page.example", "Access-Control-Request-Method": "PUT"}
    for query in (url.query, url.query.replace("Signature=", "Signature=0"), "AWSAccessKeyId=A&Signature=x"):
        allowed = world.ask("OPTIONS", "/bkt/k", user="", query=query, headers=ask)
        assert (allowed.status, allowed.headers["access-control-allow-methods"]) == (200, "PUT")
    elsewhere = {**ask, "Origin": "https://x"}
    assert world.ask("OPTIONS", "/bkt/k", user="", query=url.query, headers=elsewhere).status == 403
    assert world.ask("GET", "/bkt/k").body == b"old"


def link(method: str, path: str, parameters: dict[str, str], user: str = "alice") -> str:
    """A URL whose query has headers, as SDKs of other languages sign it."""
    request = AWSRequest(method=method, url=f"http://{HOST}{path}", params=parameters)
    S3SigV4QueryAuth(Credentials(user.upper(), f"secret of {user}"), "s3", "us-east-1", 60).add_auth(request)
    return str(request.url)


def test_a_link_carries_what_the_object_shall_be(world: World) -> None:
    """Its checksums are of the body that was not there when it was signed."""
    wanted = {
        "x-amz-meta-color": "röd",
        "X-Amz-Meta-Size": "two words",
        "x-amz-acl": "public-read",
        "x-amz-tagging": "a=b%20c",
        "x-amz-checksum-crc32": "AAAAAA==",
        "x-amz-sdk-checksum-algorithm": "CRC32",
    }
    assert follow(world, "PUT", link("PUT", "/bkt/k", wanted), b"by link")[0] == 200
    got = world.ask("GET", "/bkt/k", user="")
    assert (got.status, got.body) == (200, b"by link")
    assert got.headers["x-amz-meta-color"] == "=?UTF-8?B?csO2ZA==?="  # RFC 2047
    assert got.headers["x-amz-meta-size"] == "two words"
    tags = world.boto().get_object_tagging(Bucket="bkt", Key="k")["TagSet"]
    assert tags == [{"Key": "a", "Value": "b c"}]


def test_a_link_that_copies(world: World) -> None:
    url = link("PUT", "/bkt/copy", {"x-amz-copy-source": "/bkt/k"})
    assert follow(world, "PUT", url)[0] == 200
    assert world.ask("GET", "/bkt/copy").body == b"old"


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"x-amz-meta-a": "b\r\nSet-Cookie: c"}, 400),
        ({"x-amz-meta-a\nb": "c"}, 400),
        ({"x-amz-server-side-encryption": "AES256"}, 501),
        ({"x-amz-expected-bucket-owner": "0" * 64}, 403),
        ({"x-amz-acl": "public-read"}, 403),
    ],
)
def test_links_that_are_refused(world: World, parameters: dict[str, str], status: int) -> None:
    """As a header would be; the last one by a policy that looks at it."""
    statement = {
        "Effect": "Deny",
        "Principal": {"AWS": ["alice"]},
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::bkt/*",
        "Condition": {"StringEquals": {"s3:x-amz-acl": "public-read"}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}).encode()
    assert world.ask("PUT", "/bkt", policy, query="policy").status == 204
    assert follow(world, "PUT", link("PUT", "/bkt/k", parameters), b"by link")[0] == status
    assert world.ask("GET", "/bkt/k").body == b"old"


def test_a_query_that_nobody_signed_carries_nothing(world: World) -> None:
    assert world.ask("PUT", "/bkt", query="acl", headers={"x-amz-acl": "public-read-write"}).status == 200
    query = "x-amz-acl=public-read&x-amz-meta-a=b"
    assert world.ask("PUT", "/bkt/free", b"x", user="", query=query).status == 200
    assert "x-amz-meta-a" not in world.ask("GET", "/bkt/free").headers
    assert world.ask("GET", "/bkt/free", user="").status == 403
    url = link("PUT", "/bkt/k", {"x-amz-meta-a": "b"})
    assert follow(world, "PUT", f"{url}&x-amz-meta-b=c", b"x")[0] == 403
    assert world.ask("GET", "/bkt/k").body == b"old"


def test_a_link_of_version_2_carries_them_too() -> None:
    world = World(MemoryStore(), allow_sigv2=True)
    world.ask("PUT", "/bkt")
    where = {"Bucket": "bkt", "Key": "k", "Metadata": {"color": "red"}, "ContentType": "image/png"}
    url = world.boto(signature_version="s3").generate_presigned_url("put_object", where)
    assert "x-amz-meta-color=red" in url and "content-type=image" in url
    assert follow(world, "PUT", url.replace("=red", "=blue"), b"x")[0] == 403
    assert follow(world, "PUT", url, b"x")[0] == 200
    got = world.ask("GET", "/bkt/k").headers
    assert (got["x-amz-meta-color"], got["content-type"]) == ("red", "image/png")
    world.close()
