"""What must be right whatever lies below, by raw requests to a running Cumulus over each backend: uploads cut
in the middle in every way of signing, refusals, replays, wrong sums, odd keys, many at once, no secrets told.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from s3_server import Server, boto, serving
from s3_wire import REGION, Wire, _signing_key, signed

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration"))

from cluster import running

PORTS = '[server]\nport = 0\n[admin]\nport = 0\n[log]\naccess = "access.log"\nlevel = "debug"\n'
BODY = bytes(range(256)) * 1200  # more than goes through a journal
CHUNK = 65536
BUCKET = "every"


@pytest.fixture(scope="module", params=["posix", "memory", "fsspec", "sector"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for each backend; at the end no log has the secret."""
    path = tmp_path_factory.mktemp("cumulus")
    with ExitStack() as stack:
        backend = {"memory": "memory", "fsspec": f"fsspec:file://{path}/files"}.get(request.param, "posix")
        if request.param == "sector":
            cloud = stack.enter_context(running(tmp_path_factory.mktemp("cloud"), slaves=1))
            backend = f"sector:{cloud.dir}/client.toml"
        settings = f'{PORTS}[storage]\nbackend = "{backend}"\n'
        made = stack.enter_context(serving(path / "D", settings))
        wire = Wire(made.port, (made.key, made.secret))
        assert wire.ask("PUT", f"/{BUCKET}").status == 200
        wire.close()
        yield made
        told = (made.directory / "access.log").read_text() + made.log()
        assert made.secret not in told and "Signature=" not in told


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A connection of the owner."""
    made = Wire(server.port, (server.key, server.secret))
    yield made
    made.close()


def raw(server: Server, target: str, headers: dict[str, str], body: bytes, *, cut: bool = False) -> bytes:
    """The answer to a PUT as bytes; `cut`: the connection is closed for writing behind these bytes."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "host")
    head = f"PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n{lines}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(head.encode() + body)
        if cut:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer


# ways of signing a body: (target, headers but for the length, the bytes on the wire) ------------------------
Sent = tuple[str, dict[str, str], bytes]


def head(server: Server, key: str, headers: dict[str, str], at_s: float | None = None) -> dict[str, str]:
    credentials, host = (server.key, server.secret), f"127.0.0.1:{server.port}"
    return signed(credentials, "PUT", host, f"/{BUCKET}/{key}", headers, at_s)


def hashed(server: Server, key: str) -> Sent:
    digest = hashlib.sha256(BODY).hexdigest()
    return f"/{BUCKET}/{key}", head(server, key, {"x-amz-content-sha256": digest}), BODY


def unsigned(server: Server, key: str) -> Sent:
    return f"/{BUCKET}/{key}", head(server, key, {}), BODY


def presigned(server: Server, key: str) -> Sent:
    client = boto(server, signature_version="s3v4")
    url = client.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    return url.removeprefix(server.url), {}, BODY


def _chunked(server: Server, key: str, kind: str, trailer: bool) -> Sent:
    headers = {"x-amz-content-sha256": kind, "x-amz-decoded-content-length": str(len(BODY))}
    headers["Content-Encoding"] = "aws-chunked"
    if trailer:
        headers["x-amz-trailer"] = "x-amz-checksum-crc32"
    headers = head(server, key, headers)
    at, last = headers["x-amz-date"], headers["Authorization"].rpartition("=")[2]
    scope = f"{at[:8]}/{REGION}/s3/aws4_request"
    with_signature = "HMAC" in kind

    def sign(what: str, *lines: str) -> str:
        nonlocal last
        text = "\n".join((f"AWS4-HMAC-SHA256-{what}", at, scope, last, *lines))
        last = hmac.digest(_signing_key(server.secret, at[:8]), text.encode(), "sha256").hex()
        return last

    sent = b""
    for start in range(0, len(BODY) + CHUNK, CHUNK):
        piece = BODY[start : start + CHUNK]
        nothing, digest = hashlib.sha256(b"").hexdigest(), hashlib.sha256(piece).hexdigest()
        extra = f";chunk-signature={sign('PAYLOAD', nothing, digest)}" if with_signature else ""
        sent += f"{len(piece):x}{extra}\r\n".encode() + piece + (b"\r\n" if piece else b"")
    if trailer:
        line = "x-amz-checksum-crc32:" + base64.b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()
        sent += line.encode() + b"\r\n"
        if with_signature:
            digest = hashlib.sha256(line.encode() + b"\n").hexdigest()
            sent += f"x-amz-trailer-signature:{sign('TRAILER', digest)}\r\n".encode()
    return f"/{BUCKET}/{key}", headers, sent + b"\r\n"


def chunks(server: Server, key: str) -> Sent:
    return _chunked(server, key, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", False)


def chunks_and_trailer(server: Server, key: str) -> Sent:
    return _chunked(server, key, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", True)


def unsigned_chunks(server: Server, key: str) -> Sent:
    return _chunked(server, key, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", True)


WAYS: list[Callable[[Server, str], Sent]] = [
    hashed, unsigned, presigned, chunks, chunks_and_trailer, unsigned_chunks,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_upload_cut_in_the_middle_leaves_the_old_object(
    server: Server, wire: Wire, way: Callable[[Server, str], Sent]
) -> None:
    """And the same upload is taken when it comes whole."""
    key = f"cut-{way.__name__}"
    assert wire.ask("PUT", f"/{BUCKET}/{key}", b"old").status == 200
    target, headers, body = way(server, key)
    sized = {**headers, "Content-Length": str(len(body))}
    assert b" 200 " not in raw(server, target, sized, body[: len(body) // 2], cut=True)[:20]
    assert wire.ask("GET", f"/{BUCKET}/{key}").body == b"old"
    assert raw(server, target, sized, body).startswith(b"HTTP/1.1 200 ")
    assert wire.ask("GET", f"/{BUCKET}/{key}").body == BODY


@pytest.mark.parametrize("way", [chunks, chunks_and_trailer, unsigned_chunks])
def test_a_chunk_or_trailer_that_is_wrong_is_refused(
    server: Server, wire: Wire, way: Callable[[Server, str], Sent]
) -> None:
    key = f"wrong-{way.__name__}"
    target, headers, body = way(server, key)
    sized = {**headers, "Content-Length": str(len(body))}
    for at in (200_000, len(body) - 10):  # within a chunk, within what is at the end
        broken = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert raw(server, target, sized, broken).startswith(b"HTTP/1.1 4")
        assert wire.ask("HEAD", f"/{BUCKET}/{key}").status == 404


def test_a_bad_signature_is_refused_before_the_body(server: Server, wire: Wire) -> None:
    """403, no word of going on, nothing written; and a request of twenty minutes ago."""
    for at_s, spoil, code in (
        (None, True, b"SignatureDoesNotMatch"),
        (time.time() - 1200, False, b"TooSkewed"),
    ):
        headers = head(server, "expect", {}, at_s)
        if spoil:
            last = headers["Authorization"][-1]
            headers["Authorization"] = headers["Authorization"][:-1] + ("0" if last != "0" else "1")
        headers |= {"Expect": "100-continue", "Content-Length": "1000000"}
        answer = raw(server, f"/{BUCKET}/expect", headers, b"")
        assert answer.startswith(b"HTTP/1.1 403 ") and b" 100 " not in answer and code in answer
    assert wire.ask("HEAD", f"/{BUCKET}/expect").status == 404


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


REFUSED = [
    ({"Content-MD5": b64(bytes(16))}, "BadDigest"),
    ({"x-amz-content-sha256": "0" * 64}, "XAmzContentSHA256Mismatch"),
    ({"x-amz-checksum-sha256": b64(bytes(32))}, "BadDigest"),
    ({"x-amz-checksum-crc32": b64(bytes(4))}, "BadDigest"),
    ({"x-amz-checksum-crc32c": b64(bytes(4))}, "BadDigest"),
    ({"x-amz-checksum-crc64nvme": b64(bytes(8))}, "BadDigest"),
    ({"x-amz-checksum-sha1": b64(bytes(20))}, "BadDigest"),
    ({"x-amz-checksum-md4": b64(bytes(16))}, "InvalidRequest"),
]


def test_wrong_sums_and_unknown_algorithms_keep_nothing(wire: Wire) -> None:
    wire.ask("PUT", f"/{BUCKET}/sums", b"old")
    for headers, code in REFUSED:
        for key in ("sums", "sums-new"):
            assert wire.ask("PUT", f"/{BUCKET}/{key}", BODY, headers=headers).code == code, headers
        assert wire.ask("GET", f"/{BUCKET}/sums").body == b"old"
        assert wire.ask("HEAD", f"/{BUCKET}/sums-new").status == 404


def test_a_wrong_method_on_a_sub_resource_does_nothing_else(wire: Wire) -> None:
    wire.ask("PUT", f"/{BUCKET}/acl", b"stays")
    assert wire.ask("DELETE", f"/{BUCKET}/acl", query="acl=").status == 405
    assert wire.ask("GET", f"/{BUCKET}/acl").body == b"stays"


def test_nobody_reads_what_is_private_and_anybody_what_is_public(server: Server, wire: Wire) -> None:
    wire.ask("PUT", f"/{BUCKET}/private", b"mine")
    wire.ask("PUT", f"/{BUCKET}/public", b"ours", headers={"x-amz-acl": "public-read"})
    anybody = Wire(server.port, None)
    assert anybody.ask("GET", f"/{BUCKET}/private").code == "AccessDenied"
    assert anybody.ask("GET", f"/{BUCKET}/public").body == b"ours"
    assert anybody.ask("PUT", f"/{BUCKET}/public", b"theirs").status == 403
    assert wire.ask("PUT", f"/{BUCKET}/public", query="acl=", headers={"x-amz-acl": "private"}).status == 200
    assert anybody.ask("GET", f"/{BUCKET}/public").status == 403
    anybody.close()


ODD = [
    "n", "n/m", "a//b", "a/./b", "q/../r", "/lead", "trail/", "s" * 300, "p/" + "s" * 256 + "/q",
    "x' OR '1'='1", '"; DROP TABLE objects; --', "<Key>&amp;]]>", "../../etc/passwd", "k\u00e4se \u2603",
]  # fmt: skip


def test_keys_that_no_file_system_likes(wire: Wire) -> None:
    """Each has its own bytes, is listed, and goes; none leads elsewhere."""
    for number, key in enumerate(ODD):
        assert wire.ask("PUT", f"/{BUCKET}/{key}", b"%d" % number).status == 200, key
    for number, key in enumerate(ODD):
        assert wire.ask("GET", f"/{BUCKET}/{key}").body == b"%d" % number, key
    listed = wire.ask("GET", f"/{BUCKET}", query="list-type=2").body
    assert listed.count(b"<Key>") >= len(ODD) and b"<Key>&lt;Key&gt;&amp;amp;]]&gt;</Key>" in listed
    for key in ODD:
        assert wire.ask("DELETE", f"/{BUCKET}/{key}").status == 204, key
        assert wire.ask("HEAD", f"/{BUCKET}/{key}").status == 404, key


def test_four_writers_and_eight_readers_see_whole_objects(server: Server, wire: Wire) -> None:
    """Small and large bodies over one another for a second and a half."""
    bodies = [bytes([65 + number]) * size for number, size in enumerate((100, 70_000, 300_000, 3000))]
    wire.ask("PUT", f"/{BUCKET}/shared", bodies[0])
    end = time.monotonic() + 1.5
    wrong: list[str] = []
    counts = [0, 0]

    def run(body: bytes | None) -> None:
        own = Wire(server.port, (server.key, server.secret))
        while time.monotonic() < end and not wrong:
            answer = own.ask("PUT" if body else "GET", f"/{BUCKET}/shared", body or b"")
            counts[body is None] += 1
            if answer.status != 200 or (body is None and answer.body not in bodies):
                wrong.append(f"{answer.status}, {len(answer.body)} bytes, {answer.code}")
        own.close()

    threads = [threading.Thread(target=run, args=(body,)) for body in (*bodies, *[None] * 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and min(counts) > 0, (wrong, counts)
