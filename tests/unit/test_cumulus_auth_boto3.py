"""Whole requests of boto3 against authentication and body decoding, taken just before it sends them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from cumulus_signing import ALICE, KEY, SECOND, SECRET, People, call

from cumulus import checksums
from cumulus.auth.verify import AuthSettings, authenticate

Sent = list[tuple[Any, bytes]]
Make = Callable[..., tuple[Any, Sent]]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """A client of its own for each kind of settings, and the list of what it sends (answered with 200)."""
    session = boto3.session.Session(KEY, SECRET, region_name="us-east-1")
    made = []

    def client(scheme: str = "https", **settings: Any) -> tuple[Any, Sent]:
        settings.setdefault("s3", {"addressing_style": "path"})
        found = session.client("s3", endpoint_url=f"{scheme}://s3.example.org", config=Config(**settings))
        made.append(found)
        sent: Sent = []

        def take(request: Any, **_: Any) -> AWSResponse:
            body = request.body
            sent.append((request, body.read() if hasattr(body, "read") else body or b""))
            return AWSResponse(request.url, 200, {}, _Empty())

        found.meta.events.register("before-send.s3", take)
        return found, sent

    yield client
    for found in made:
        found.close()


class _Empty(io.BytesIO):
    """A body without bytes, as urllib3 gives them."""

    def stream(self) -> Iterator[bytes]:
        yield b""


def receive(request: Any, wire: bytes) -> tuple[Any, bytes, dict[str, str]]:
    """Who it is, the object's bytes, the headers after the body."""
    parts = urlsplit(request.url)
    headers = {
        name.lower(): value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    headers.setdefault("host", parts.netloc)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    now_ns = int(datetime.now(UTC).timestamp() * SECOND)
    found = authenticate(call(request.method, target, headers), People(), AuthSettings(), now_ns)
    decoder = found.body.decoder(len(wire))
    data = b"".join(
        piece for at in range(0, len(wire), 1000) for piece in decoder.feed(memoryview(wire)[at : at + 1000])
    )
    return found, data, decoder.finish(lambda name: hashlib.new(name, data).digest())


@pytest.mark.parametrize("algorithm", ["", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_a_put_with_a_checksum_after_the_body(make: Make, algorithm: str) -> None:
    """The default of boto3 over TLS; the checksum is ours too."""
    client, sent = make()
    body = bytes(range(256)) * 20
    options = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    client.put_object(Bucket="b", Key="a b/ü+~", Body=io.BytesIO(body), Metadata={"a": "x  y"}, **options)
    found, data, trailers = receive(*sent[0])
    assert (found.identity.user, data) == (ALICE, body)
    name = (algorithm or "CRC32").lower()
    hasher = checksums.Hasher([name])
    hasher.update(data)
    assert trailers == {checksums.header(name): hasher.base64(name)}


def test_a_put_without(make: Make) -> None:
    """The legacy mode: the body's hash is signed, over HTTP and over TLS."""
    for scheme in ("http", "https"):
        client, sent = make(scheme, request_checksum_calculation="when_required")
        client.put_object(Bucket="b", Key="k", Body=b"hello")
        found, data, _ = receive(*sent[0])
        assert (found.identity.user, data) == (ALICE, b"hello")
        assert found.body.sha256 is not None and not found.body.framed


def test_somebody_without_a_key(make: Make) -> None:
    """Sends chunks and a checksum that nobody signed."""
    client, sent = make(signature_version=UNSIGNED)
    client.put_object(Bucket="b", Key="k", Body=io.BytesIO(b"hello"))
    found, data, trailers = receive(*sent[0])
    assert (found.identity.user, data, list(trailers)) == (None, b"hello", ["x-amz-checksum-crc32"])


def test_lists_and_deletes(make: Make) -> None:
    """Queries with odd values, a document as body, the bucket in the host's name."""
    client, sent = make(s3={"addressing_style": "virtual"})
    client.list_objects_v2(Bucket="bucket", Prefix="a b/+&=ü~", Delimiter="/", StartAfter="")
    client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "x"}]})
    client.get_object(Bucket="bucket", Key="x//../y", Range="bytes=0-9", VersionId="v 1")
    assert [receive(*each)[0].identity.user for each in sent] == [ALICE] * 3
    assert sent[0][0].url.startswith("https://bucket.s3.example.org/?")


def test_version_2_of_a_bucket_alone(make: Make) -> None:
    """boto3 sends /bucket and signs /bucket/."""
    client, sent = make(signature_version="s3")
    client.get_bucket_acl(Bucket="data")
    client.head_bucket(Bucket="data")
    client.get_object_acl(Bucket="data", Key="k")
    for request, _ in sent:
        parts = urlsplit(request.url)
        headers = {name.lower(): str(value) for name, value in request.headers.items()}
        headers.setdefault("host", parts.netloc)
        for name in ("authorization", "date"):
            value = request.headers.get(name)
            headers[name] = value.decode() if isinstance(value, bytes) else str(value)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        now_ns = int(datetime.now(UTC).timestamp() * SECOND)
        rules = AuthSettings(allow_sigv2=True)
        found = authenticate(call(request.method, target, headers), People(), rules, now_ns)
        assert found.scheme == "v2", target
