"""The HTTP floor of Cumulus for clients that wait: for answers that take long, with their own direction
ended, and with a connection that they would keep when the service ends."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from http_floor import Floor, Recorder, Stream, Wire, floor, request, until

from cumulus.http.alive import may_last
from cumulus.http.head import parse
from cumulus.rest.call import Call, Download, Reply

COPY = request("/b/copy", "PUT", "x-amz-copy-source: /b/k", "Content-Length: 0")
DOCUMENT = b'<?xml version="1.0" encoding="UTF-8"?>\n<CopyObjectResult><ETag>"1"</ETag></CopyObjectResult>'
ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>StorageFull</Code></Error>'
PATIENT = {"write_timeout_s": 1.0, "silence_s": 0.2}  # the first also says how often it is looked


def says(body: bytes, status: int = 200) -> Callable[[Call], Reply]:
    return lambda call: Reply(status, [("content-type", "application/xml")], body)


def chunk(wire: Wire) -> bytes:
    """The next one of a reply's body."""
    while b"\r\n" not in wire.buffer:
        assert wire._more(), wire.buffer
    size, wire.buffer = wire.buffer.split(b"\r\n", 1)
    count = int(size, 16) + 2
    while len(wire.buffer) < count:
        assert wire._more(), wire.buffer
    data, wire.buffer = wire.buffer[:count], wire.buffer[count:]
    assert data.endswith(b"\r\n")
    return data[:-2]


# answers that take long -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("status", "document"), [(200, DOCUMENT), (507, ERROR)])
def test_who_waits_for_a_copy_hears_that_it_is_being_done(status: int, document: bytes) -> None:
    with floor(**PATIENT) as running:
        running.gateway.replies["/b/copy"] = says(document, status)
        running.gateway.start_hold.clear()
        wire = running.connect().send(COPY)
        found, headers = wire.head()
        assert (found, headers["transfer-encoding"]) == (200, "chunked")
        assert "content-length" not in headers
        parts = [chunk(wire), chunk(wire), chunk(wire)]
        assert parts[1:] == [b" ", b" "]
        running.gateway.start_hold.set()
        while parts[-1]:
            parts.append(chunk(wire))
        told = ET.fromstring(b"".join(parts))
        assert ET.tostring(told) == ET.tostring(ET.fromstring(document))
        assert wire.send(request("/next")).answer().body == b"/next"
        wire.close()
        assert b'"status":%d' % status in until(running.log_lines)[0]


def test_a_client_with_a_time_out_gets_its_completion() -> None:
    """As boto3 does: no byte within its time-out is a failure."""
    with floor(**PATIENT) as running:
        running.gateway.replies["/b/k"] = says(DOCUMENT)
        running.gateway.start_hold.clear()
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        client.request("POST", "/b/k?uploadId=1", body=b"<CompleteMultipartUpload/>")
        until(lambda: running.gateway.calls)
        answer = client.getresponse()
        assert answer.status == 200
        running.gateway.start_hold.set()
        assert ET.fromstring(answer.read()).tag == "CopyObjectResult"
        client.close()


def test_a_completion_of_many_parts_hears_that_it_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its document is too large to come with the head; who took it does not keep its answer's signs back."""
    done = threading.Event()
    finish = Recorder.finish

    def held(self: Recorder) -> Reply:
        assert done.wait(30)
        finish(self)
        return Reply(200, [("content-type", "application/xml")], DOCUMENT)

    monkeypatch.setattr(Recorder, "finish", held)
    with floor(**PATIENT) as running:
        wire = running.connect().send(request("/b/k?uploadId=1", "POST", body=b"<x>" + b" " * 100_000))
        found, headers = wire.head()
        assert (found, headers["transfer-encoding"]) == (200, "chunked")
        parts = [chunk(wire), chunk(wire)]
        assert parts[1] == b" "
        done.set()
        while parts[-1]:
            parts.append(chunk(wire))
        assert ET.fromstring(b"".join(parts)).tag == "CopyObjectResult"
        wire.close()


def test_what_is_answered_soon_is_answered_as_ever() -> None:
    with floor(**PATIENT) as running:
        running.gateway.replies["/b/copy"] = says(ERROR, 507)
        wire = running.connect().send(COPY)
        answer = wire.answer()
        assert (answer.status, answer.body) == (507, ERROR)
        wire.close()


@pytest.mark.parametrize(
    ("lines", "lasts"),
    [
        ("PUT /b/k HTTP/1.1\r\nHost: s3\r\nx-amz-copy-source: /b/o", True),
        ("PUT /b/k?partNumber=1&uploadId=2 HTTP/1.1\r\nHost: s3\r\nx-amz-copy-source: /b/o", True),
        ("POST /b/k?uploadId=2 HTTP/1.1\r\nHost: s3", True),
        ("POST /b/k?uploads HTTP/1.1\r\nHost: s3", False),
        ("POST /b?delete HTTP/1.1\r\nHost: s3", False),
        ("PUT /b/k HTTP/1.1\r\nHost: s3", False),
        ("PUT /b/k?partNumber=1&uploadId=2 HTTP/1.1\r\nHost: s3", False),
        ("GET /b/k?uploadId=2 HTTP/1.1\r\nHost: s3", False),
        ("POST /b/k?uploadId=2 HTTP/1.0\r\nHost: s3", False),
        ("POST /b/k?uploadId=2 HTTP/1.1\r\nHost: s3\r\nOrigin: http://page", False),
        ("POST /b/k?uploadId=2 HTTP/1.1\r\nHost: s3\r\nx-cumulus-forwarded: 1", False),
    ],
)
def test_signs_are_for_copies_and_completions(lines: str, lasts: bool) -> None:
    assert may_last(parse(lines.encode())) is lasts


@pytest.mark.parametrize(
    "asked",
    [
        COPY,
        request("/b/copy?X-Amz-Copy-Source=%2Fb%2Fk", "PUT", "Content-Length: 0"),
        request("/b/copy?uploadId=1", "POST", body=b"<CompleteMultipartUpload/>"),
        request("/b/copy?uploadId=1", "POST", body=b"<!--" + b" " * 100_000),
        request("/b/copy?delete", "POST", body=b"<Delete/>"),
    ],
)
def test_nobody_waits_for_the_copies_of_others(asked: bytes) -> None:
    """One user's copies of large objects, or completions that wait for one another, kept all threads busy."""
    with floor(threads=4) as running:
        over = threading.Event()

        def slow(_call: Call) -> Reply:
            over.wait(20)
            return Reply(200, [], DOCUMENT)

        running.gateway.replies["/b/copy"] = slow
        wires = [running.connect().send(asked) for _ in range(8)]
        until(lambda: len(running.site._in_flight) == 8 and len(running.gateway.calls) >= 2)
        wire = running.connect().send(request("/x") + request("/y", "PUT", body=b"abc"))
        assert [wire.answer().body, wire.answer().body] == [b"/x", b"stored 3"]
        over.set()
        for one in (*wires, wire):
            if one is not wire:
                assert one.answer().status == 200
            one.close()


# a direction that has ended -------------------------------------------------------------------------------
def ended(running: Floor) -> bool:
    """Whether the server knows that its client sends no more."""
    return bool(running.call(lambda: [one for one in running.site.channels if one._heard_all]))


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ([request("/x")], [b"/x"]),
        ([request("/x"), request("/y"), request("/put", "PUT", body=b"abc")], [b"/x", b"/y", b"stored 3"]),
        ([request(f"/{n}") for n in range(20)], [b"/%d" % n for n in range(20)]),
        ([request("/put", "PUT", body=bytes(3_000_000)), request("/x")], [b"stored 3000000", b"/x"]),
        ([b"GET /old HTTP/1.0\r\n\r\n"], [b"/old"]),
    ],
)
def test_who_has_sent_all_and_ended_its_direction_is_answered(
    sent: list[bytes], answers: list[bytes]
) -> None:
    with floor() as running:
        running.gateway.start_hold.clear()
        wire = running.connect()
        wire.sock.sendall(b"".join(sent)[:100_000])
        until(lambda: running.gateway.calls)
        if len(b"".join(sent)) > 100_000:
            running.gateway.start_hold.set()
            wire.sock.sendall(b"".join(sent)[100_000:])
        wire.sock.shutdown(socket.SHUT_WR)
        if not running.gateway.start_hold.is_set():
            until(lambda: ended(running), "the end is known before the answer")
            running.gateway.start_hold.set()
        assert [wire.answer().body for _ in answers] == answers
        assert wire.ended()
        wire.close()


def test_a_download_goes_to_who_has_ended_its_direction(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(20 << 20))
    with floor() as running:
        running.gateway.replies["/large"] = lambda call: Reply(200, [], Download(Stream(path), 0, 20 << 20))
        wire = running.connect().send(request("/large"))
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.answer().body == path.read_bytes()
        assert wire.ended()
        wire.close()


@pytest.mark.parametrize("sent", [b"", b"GET /x HT", request("/b/k", "PUT", "Content-Length: 1000000")])
def test_who_ends_its_direction_in_the_middle_is_ended(sent: bytes) -> None:
    with floor() as running:
        wire = running.connect().send(sent)
        if b"PUT" in sent:
            wire.send(bytes(500_000))
            until(lambda: running.gateway.sinks)
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.ended()
        until(lambda: not running.site.channels)
        wire.close()
    assert [(sink.finished, sink.aborted) for sink in running.gateway.sinks] in ([], [(0, 1)])


def test_a_client_that_went_is_noticed_when_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(20 << 20))
    with floor() as running:
        stream = Stream(path)
        running.gateway.replies["/large"] = lambda call: Reply(200, [], Download(stream, 0, 20 << 20))
        running.gateway.start_hold.clear()
        wire = running.connect().send(request("/large"))
        until(lambda: running.gateway.calls)
        wire.close()
        until(lambda: ended(running))
        running.gateway.start_hold.set()
        assert until(lambda: stream.closed) == 1
        until(lambda: not running.site.channels)
        assert b'"status":499' in until(running.log_lines)[0]


# the end --------------------------------------------------------------------------------------------------
def test_the_end_does_not_wait_for_kept_connections_whose_download_is_over(tmp_path: Path) -> None:
    """The head had gone before the end began, and so could not say that the connection closes."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(40 << 20))
    with floor() as running:
        running.gateway.replies["/large"] = lambda call: Reply(200, [], Download(Stream(path), 0, 40 << 20))
        wire = running.connect().send(request("/large"))
        assert "connection" not in wire.head()[1]
        over = threading.Event()
        running.call(lambda: running.site.drain(60.0).addBoth(lambda _done: over.set()))
        assert wire.rest() == path.read_bytes()
        assert over.wait(10)
        wire.close()
