"""Ways in which a body can be signed, each with a body that is right, wrong, and cut at half."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from s3_world import World

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
