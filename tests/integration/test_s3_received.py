"""Large signed bodies, which a thread takes from the connection into the file in one go, over real sockets
and a real disk that fails where a test says so."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from http_floor import Answer, Floor, Wire, floor, until
from posix_disk import Faulty
from s3_world import World

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.http.body import FAST
from cumulus.http.transport import S3Server
from sector._udt.md5 import WITH_SHA256

SIZE = 5_300_000
OLD = b"what was there"

TAKE = "take" if WITH_SHA256 else "write"  # other processors make the two sums one by one


class Service:
    """A gateway over a disk, behind a real port; bucket `bkt` with an object `k`."""

    def __init__(self, world: World, disk: Faulty, data: Path, running: Floor) -> None:
        self.world, self.disk, self.data, self.running = world, disk, data, running

    def head(self, target: str, body: bytes, **headers: str) -> bytes:
        """Of a PUT, signed for this body."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        pairs = self.world.signed("alice", "PUT", target, body, sent)
        lines = [f"PUT {target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
        if "content-length" not in {name.lower() for name, _ in pairs}:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def put(self, target: str, body: bytes, *, sent: bytes = b"", **headers: str) -> Answer:
        """An upload; `sent`: other bytes than were signed."""
        wire = self.running.connect()
        try:
            return wire.send(self.head(target, body, **headers), sent or body).answer()
        finally:
            wire.close()

    def get(self, path: str = "/bkt/k") -> bytes:
        """The object."""
        answer = self.world.ask("GET", path)
        assert answer.status == 200
        return answer.body

    def drafts(self) -> list[str]:
        """Files that have no name yet."""
        return [path.name for path in self.data.glob("bkt/.cumulus/tmp/*")]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """One that runs, for which all clients are fast, however busy the machine is."""
    monkeypatch.setattr(S3Server, "waiting", lambda self: FAST)
    disk, data = Faulty(), tmp_path / "store"
    world = World(PosixStore(str(data), files=disk))

    assert world.ask("PUT", "/bkt").status == 200
    assert world.ask("PUT", "/bkt/k", OLD).status == 200
    with floor(real=world.gateway) as running:
        yield Service(world, disk, data, running)
    world.close()


def crc32(body: bytes) -> str:
    """As its header has it."""
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def code(answer: Answer) -> str:
    """Of an error."""
    return ElementTree.fromstring(answer.body).findtext("Code", "")


@pytest.mark.parametrize("checksum", [True, False])
def test_a_body_is_taken_in_one_go(service: Service, checksum: bool) -> None:
    """With all its sums, each of which is true."""
    body = os.urandom(SIZE)
    headers = {"x_amz_checksum_crc32": crc32(body)} if checksum else {}
    answer = service.put("/bkt/k", body, **headers)
    assert (answer.status, answer.headers["etag"]) == (200, f'"{hashlib.md5(body).hexdigest()}"')
    assert answer.headers.get("x-amz-checksum-crc32") == (crc32(body) if checksum else None)
    assert service.get() == body
    assert service.disk.calls[TAKE] > 1
    assert service.drafts() == []


def test_parts_are_taken_in_one_go(service: Service) -> None:
    """Each to its place in the object."""
    bodies = [os.urandom(SIZE), os.urandom(SIZE + 1)]
    begun = service.world.ask("POST", "/bkt/k", query="uploads")
    upload = ElementTree.fromstring(begun.body).findtext("{*}UploadId", "")
    tags = []
    for number, body in enumerate(bodies, 1):
        answer = service.put(f"/bkt/k?partNumber={number}&uploadId={upload}", body)
        assert answer.status == 200
        tags.append(answer.headers["etag"])
    taken = service.disk.calls[TAKE]
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    assert service.world.ask("POST", "/bkt/k", document, query={"uploadId": upload}).status == 200
    assert service.get() == b"".join(bodies)
    assert taken > 2


def test_a_client_that_rests_is_waited_for_elsewhere(service: Service) -> None:
    """What it sent before the rest is not lost, and nothing of the next request is taken."""
    body, wire = os.urandom(SIZE), service.running.connect()
    wire.send(service.head("/bkt/k", body))
    for at in range(0, SIZE, 1_000_000):
        wire.send(body[at : at + 1_000_000])
        time.sleep(0.02)
    wire.send(service.head("/bkt/second", OLD), OLD)
    assert [wire.answer().status, wire.answer().status] == [200, 200]
    assert (service.get(), service.get("/bkt/second")) == (body, OLD)
    assert service.disk.calls[TAKE] > 1
    wire.close()


WRONG: dict[str, tuple[str, Callable[[bytes], dict[str, str]], bool]] = {
    "SHA-256": ("XAmzContentSHA256Mismatch", lambda _: {}, True),
    "CRC-32": ("BadDigest", lambda _: {"x_amz_checksum_crc32": crc32(OLD)}, False),
    "MD5": (
        "BadDigest",
        lambda _: {"Content_MD5": base64.b64encode(hashlib.md5(OLD).digest()).decode()},
        False,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_sum_is_refused_and_nothing_kept(service: Service, what: str) -> None:
    expected, headers, changed = WRONG[what]
    body = os.urandom(SIZE)
    sent = body[:-1] + bytes([body[-1] ^ 1]) if changed else body
    answer = service.put("/bkt/k", body, sent=sent, **headers(body))
    assert (answer.status, code(answer)) == (400, expected)
    assert service.disk.calls[TAKE] > 1
    assert (service.get(), service.drafts()) == (OLD, [])


@pytest.mark.parametrize(
    ("number", "status", "expected"),
    [(errno.ENOSPC, 507, "StorageFull"), (errno.EIO, 503, "ServiceUnavailable")],
)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_disk_that_fails_is_told_and_nothing_kept(
    service: Service, number: int, status: int, expected: str, nth: int
) -> None:
    service.disk.fail(TAKE, number, nth)
    answer = service.put("/bkt/k", os.urandom(SIZE))
    assert (answer.status, code(answer)) == (status, expected)
    service.disk.heal()
    assert (service.get(), service.drafts()) == (OLD, [])
    assert service.put("/bkt/k", bytes(SIZE)).status == 200


FAULTS: dict[str, tuple[Exception, int, str]] = {
    "disk": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 507, "StorageFull"),
    "server": (RuntimeError("that nobody has foreseen"), 500, "InternalError"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [100_000, 200_000, SIZE])
def test_after_what_failed_the_next_request_is_no_body(
    service: Service, monkeypatch: pytest.MonkeyPatch, size: int, fault: str
) -> None:
    """The bytes that were not written have left the connection all the same: it ends with the answer, or
    the next request is answered."""
    error, status, expected = FAULTS[fault]
    real = Faulty.take if WITH_SHA256 else Faulty.write

    def failing(self: Faulty, *arguments: object) -> object:
        real(self, *arguments)
        raise error

    monkeypatch.setattr(Faulty, TAKE, failing)
    wire, body = service.running.connect(), os.urandom(size)
    wire.send(service.head("/bkt/k", body), body[: 16 << 10])
    until(lambda: any(one.requests for one in list(service.running.site.channels)))
    wire.send(body[16 << 10 :])
    refused = wire.answer()
    assert (refused.status, code(refused)) == (status, expected)
    if not WITH_SHA256 and refused.headers.get("connection") != "close":
        assert wire.send(b"GET /bkt/none HTTP/1.1\r\nHost: s3\r\n\r\n").answer().status in (403, 404)
    else:
        assert refused.headers["connection"] == "close"
        assert wire.rest() == b""
    monkeypatch.setattr(Faulty, TAKE, real)
    assert (service.get(), service.drafts()) == (OLD, [])
    wire.close()


def test_a_sync_that_fails_while_the_body_comes_is_told_and_nothing_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not left to the sync at the end, and the bytes that come after it are no request."""

    def broken(self: Files, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Files, "sync_ahead", broken)
    service.disk.before = lambda name: time.sleep(0.05 if name == TAKE else 0)
    wire, body = service.running.connect(), os.urandom(SIZE)
    answer = wire.send(service.head("/bkt/k", body), body).answer()
    assert (answer.status, code(answer)) == (503, "ServiceUnavailable")
    if answer.headers.get("connection") == "close":
        assert wire.rest() == b""
    else:
        assert wire.send(b"GET /bkt/none HTTP/1.1\r\nHost: s3\r\n\r\n").answer().status in (403, 404)
    wire.close()
    assert (service.get(), service.drafts()) == (OLD, [])


def test_a_client_that_goes_in_the_middle_leaves_the_old_object(service: Service) -> None:
    body, wire = os.urandom(SIZE), service.running.connect()
    wire.send(service.head("/bkt/k", body), body[: SIZE // 2])
    until(lambda: service.disk.calls.get(TAKE, 0) > 0)
    wire.reset()
    until(lambda: not service.drafts())
    assert service.get() == OLD


def test_framed_bodies_are_not_taken_so(service: Service) -> None:
    """Their bytes are not those of the object."""
    chunk = os.urandom(SIZE)
    framed = b"%x\r\n" % SIZE + chunk + b"\r\n0\r\n\r\n"
    wire: Wire = service.running.connect()
    head = service.head(
        "/bkt/k",
        framed,
        x_amz_content_sha256="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        x_amz_decoded_content_length=str(SIZE),
        Content_Encoding="aws-chunked",
    )
    assert wire.send(head, framed).answer().status == 200
    assert service.get() == chunk
    assert "take" not in service.disk.calls
    wire.close()
