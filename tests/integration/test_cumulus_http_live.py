"""The HTTP floor of Cumulus by raw sockets: requests, bodies, downloads."""

from __future__ import annotations

import errno
import gc
import hashlib
import http.client
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_floor import Floor, Stream, floor, request, until

import cumulus.http.body as body_module
from cumulus.rest.call import Call, Download, Reply


@pytest.fixture(scope="module")
def shared() -> Iterator[Floor]:
    """One floor for tests that leave it as it was."""
    with floor() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """5 MB and a bit of noise."""
    path = tmp_path / "object"
    path.write_bytes(os.urandom(1 << 20) * 5 + b"the end")
    return path


def serve(running: Floor, target: str, stream: Stream, offset: int = 0, length: int | None = None) -> None:
    """Answer `target` with a download of the stream."""
    size = stream.entry.size - offset if length is None else length
    running.gateway.replies[target] = lambda call: Reply(
        200 if length is None else 206, [("etag", '"x"')], Download(stream, offset, size)
    )


# requests -----------------------------------------------------------------------------------------------
def test_a_reply_has_the_headers_that_every_reply_has(shared: Floor) -> None:
    wire = shared.connect().send(request("/b/k?x=1"))
    answer = wire.answer()
    assert (answer.status, answer.body) == (200, b"/b/k?x=1")
    assert answer.headers["server"] == "Cumulus"
    assert answer.headers["date"].endswith(" GMT")
    assert answer.headers["x-amz-id-2"] == "host"
    assert answer.headers["x-amz-request-id"] == shared.gateway.calls[-1].id
    assert answer.headers["content-length"] == "8"
    wire.close()


def test_the_call_says_what_came(shared: Floor) -> None:
    wire = shared.connect().send(
        request("/b/%C3%A4?versions", "PUT", "X-Amz-Meta-A: 1", "x-amz-meta-a: 2", "V: \xfc", body=b"12345")
    )
    assert wire.answer().body == b"stored 5"
    call = shared.gateway.calls[-1]
    assert (call.method, call.target, call.length, call.chunked) == ("PUT", "/b/%C3%A4?versions", 5, False)
    assert call.headers.get("x-amz-meta-a") == "1,2"
    assert call.headers.get("v") == "\xfc"
    assert (call.peer, call.secure) == ("127.0.0.1", False)
    wire.close()


def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(shared: Floor) -> None:
    wire = shared.connect()
    wire.send(*[request(f"/{n}") for n in range(20)], request("/put", "PUT", body=b"abc"), request("/last"))
    assert [wire.answer().body for _ in range(22)] == [
        *[b"/%d" % n for n in range(20)],
        b"stored 3",
        b"/last",
    ]
    wire.close()


def test_large_uploads_and_requests_behind_them_in_one_stream(shared: Floor) -> None:
    body = os.urandom(3_000_000)
    wire = shared.connect()
    wire.send(
        request("/a", "PUT", body=body) + request("/b") + request("/c", "PUT", body=body) + request("/d")
    )
    assert [wire.answer().body for _ in range(4)] == [b"stored 3000000", b"/b", b"stored 3000000", b"/d"]
    assert [bytes(sink.data) for sink in shared.gateway.sinks[-2:]] == [body, body]
    wire.close()


def test_http_1_0_and_connection_close_end_the_connection(shared: Floor) -> None:
    wire = shared.connect().send(b"GET /old HTTP/1.0\r\n\r\n")
    assert wire.answer().headers["connection"] == "close"
    assert wire.ended()
    wire = shared.connect().send(request("/x", "GET", "Connection: close"))
    assert wire.answer().body == b"/x"
    assert wire.ended()


def test_head_says_the_length_and_sends_nothing(shared: Floor, file: Path) -> None:
    stream = Stream(file)
    serve(shared, "/head", stream)
    wire = shared.connect().send(request("/head", "HEAD"), request("/next"))
    answer = wire.answer("HEAD")
    assert (answer.status, answer.headers["content-length"]) == (200, str(stream.entry.size))
    assert wire.answer().body == b"/next"
    assert stream.closed == 1
    shared.gateway.replies["/empty"] = lambda call: Reply(200, length=12345)
    assert wire.send(request("/empty", "HEAD")).answer("HEAD").headers["content-length"] == "12345"
    wire.close()


def test_replies_without_a_body_have_no_length(shared: Floor) -> None:
    shared.gateway.replies["/none"] = lambda call: Reply(204)
    shared.gateway.replies["/same"] = lambda call: Reply(304, [("etag", '"x"')])
    wire = shared.connect().send(request("/none", "DELETE"), request("/same"), request("/next"))
    none, same = wire.answer(), wire.answer()
    assert (none.status, "content-length" in none.headers) == (204, False)
    assert (same.status, same.headers["etag"], "content-length" in same.headers) == (304, '"x"', False)
    assert wire.answer().body == b"/next"
    wire.close()


def test_a_header_value_cannot_begin_another_header(shared: Floor) -> None:
    shared.gateway.replies["/split"] = lambda call: Reply(200, [("x-a", "1\r\nx-evil: 2\r\n\r\n<html>")])
    wire = shared.connect().send(request("/split"))
    assert "x-evil" not in wire.answer().headers
    wire.close()


def test_http_client_and_curl_are_served(shared: Floor, tmp_path: Path) -> None:
    client = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=10)
    for body in (b"", b"small", bytes(1_000_000)):
        client.request("PUT", "/b/k", body=body)
        assert client.getresponse().read() == b"stored %d" % len(body)
    client.request("PUT", "/b/k", body=iter([b"one", b"two" * 100_000]), encode_chunked=True)
    assert client.getresponse().read() == b"stored 300003"
    client.close()
    big = tmp_path / "big"
    big.write_bytes(os.urandom(4_000_000))
    for extra in (["-H", "Expect: 100-continue"], ["-H", "Transfer-Encoding: chunked"], []):
        done = subprocess.run(
            ["curl", "-sS", "-T", big, *extra, f"http://127.0.0.1:{shared.port}/b/curl"],
            capture_output=True,
            timeout=20,
            check=True,
        )
        assert done.stdout == b"stored 4000000"
        assert bytes(shared.gateway.sinks[-1].data) == big.read_bytes()


# bodies -------------------------------------------------------------------------------------------------
def test_a_small_body_needs_one_hop(shared: Floor) -> None:
    wire = shared.connect()
    calls = len(shared.gateway.calls)
    wire.send(request("/b/k", "PUT", "Content-Length: 4096"), bytes(1000))
    wire.send(bytes(3096))
    assert wire.answer().body == b"stored 4096"
    assert shared.gateway.sinks[-1].writes == [4096]
    assert len(shared.gateway.calls) == calls + 1
    wire.close()


def test_a_large_body_comes_in_large_buffers(shared: Floor) -> None:
    body = os.urandom(8 << 20)
    wire = shared.connect().send(request("/b/k", "PUT", body=body))
    assert wire.answer().body == b"stored %d" % len(body)
    sink = shared.gateway.sinks[-1]
    assert bytes(sink.data) == body
    assert max(sink.writes) == 1024 * 1024
    assert len(sink.writes) <= 20
    wire.close()


def test_buffers_of_an_upload_go_with_its_answer(shared: Floor) -> None:
    """Without the collector of cycles: sixteen large uploads left 1.5 MB each until it came."""
    wire = shared.connect()
    body = os.urandom(6_000_000)
    shared.gateway.sinks.clear()
    only = [tracemalloc.Filter(True, body_module.__file__)]
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            assert wire.send(request("/b/k", "PUT", body=body)).answer().body == b"stored 6000000"
        shared.gateway.sinks.clear()
        shared.call(lambda: None)
        found = tracemalloc.take_snapshot().filter_traces(only)
        held = sum(part.size for part in found.statistics("filename"))
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < 100_000, held
    wire.close()


def test_an_empty_upload_is_finished(shared: Floor) -> None:
    wire = shared.connect().send(request("/b/k", "PUT", "Content-Length: 0"))
    assert wire.answer().body == b"stored 0"
    assert (shared.gateway.sinks[-1].writes, shared.gateway.sinks[-1].finished) == ([], 1)
    wire.close()


@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_chunked_bodies_in_pieces_of_any_size(shared: Floor, piece: int) -> None:
    body = os.urandom(300 * min(piece, 1000))
    framed = b""
    for at in range(0, len(body), 333):
        part = body[at : at + 333]
        framed += b"%x;ext=1\r\n%s\r\n" % (len(part), part)
    framed += b"0\r\nx-trailer: 1\r\n\r\n"
    data = request("/b/k", "PUT", "Transfer-Encoding: chunked") + framed + request("/next")
    wire = shared.connect().send(*[data[at : at + piece] for at in range(0, len(data), piece)])
    assert wire.answer().body == b"stored %d" % len(body)
    assert bytes(shared.gateway.sinks[-1].data) == body
    assert shared.gateway.calls[-1].chunked or shared.gateway.calls[-2].chunked
    assert wire.answer().body == b"/next"
    wire.close()


@pytest.mark.parametrize(
    "framed",
    [b"zz\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"3\nabc\n", b"5" * 40 + b"\r\n", b"1;" + b"x" * 2000, b"\r\n"],
)
def test_malformed_chunks_are_refused_and_undone(shared: Floor, framed: bytes) -> None:
    wire = shared.connect().send(request("/b/k", "PUT", "Transfer-Encoding: chunked"))
    wire.send(b"5\r\nhello\r\n" + framed)
    answer = wire.answer()
    assert (answer.status, b"<Code>InvalidRequest</Code>" in answer.body) == (400, True)
    assert wire.ended()
    assert until(lambda: shared.gateway.sinks[-1].aborted) == 1


def test_continue_is_said_when_the_body_is_wanted(shared: Floor) -> None:
    wire = shared.connect().send(request("/b/k", "PUT", "Expect: 100-continue", "Content-Length: 100000"))
    assert wire.answer().status == 100
    wire.send(bytes(100_000))
    assert wire.answer().body == b"stored 100000"
    wire.close()


def test_continue_is_said_of_an_empty_body_too(shared: Floor) -> None:
    """Who asks is answered, whatever he asks for."""
    wire = shared.connect().send(request("/b/k", "PUT", "Expect: 100-continue", "Content-Length: 0"))
    assert [wire.answer().status for _ in range(2)] == [100, 200]
    wire.close()


def test_continue_is_not_said_of_an_empty_body_that_is_refused(shared: Floor) -> None:
    """Only who may is told to go on; who keeps the answer for his next upload has to connect anew."""
    shared.gateway.replies["/no"] = lambda call: Reply(403, [], b"<Error/>")
    wire = shared.connect().send(request("/no", "PUT", "Expect: 100-continue", "Content-Length: 0"))
    answer = wire.answer()
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    assert wire.ended()


def test_continue_is_not_said_to_a_refused_request(shared: Floor) -> None:
    shared.gateway.replies["/no"] = lambda call: Reply(403, [], b"<Error/>")
    wire = shared.connect().send(request("/no", "PUT", "Expect: 100-continue", "Content-Length: 10"))
    answer = wire.answer()
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    assert wire.ended()


def test_a_refused_large_upload_is_told_so_and_ended(shared: Floor) -> None:
    shared.gateway.replies["/no"] = lambda call: Reply(403, [], b"<Error/>")
    wire = shared.connect().send(request("/no", "PUT", "Content-Length: 100000000"), bytes(3_000_000))
    answer = wire.answer()
    assert (answer.status, answer.body, answer.headers["connection"]) == (403, b"<Error/>", "close")
    wire.close()


def test_a_refused_small_upload_keeps_the_connection(shared: Floor) -> None:
    shared.gateway.replies["/no"] = lambda call: Reply(403, [], b"<Error/>")
    wire = shared.connect()
    for size in (10, 100_000, 200_000):
        wire.send(request("/no", "PUT", body=bytes(size)))
        assert wire.answer().status == 403
    assert wire.send(request("/next")).answer().body == b"/next"
    wire.close()


def test_a_sink_refuses_in_the_middle() -> None:
    with floor() as running:
        running.gateway.refuse_after = 600_000
        wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 50000000"), bytes(2_000_000))
        assert wire.answer().status == 403
        wire.close()
        sink = running.gateway.sinks[0]
        assert (sink.finished, sink.aborted) == (0, 0)


def test_a_fault_in_a_sink_is_an_internal_error_and_undone() -> None:
    with floor() as running:
        running.gateway.raise_in_write = True
        for size in (10, 1_000_000):
            wire = running.connect().send(request("/b/k", "PUT", body=bytes(size)))
            answer = wire.answer()
            assert (answer.status, b"InternalError" in answer.body) == (500, True)
            assert running.gateway.sinks[-1].aborted == 1
            wire.close()


def test_a_client_that_sends_faster_than_is_written_is_held_back() -> None:
    """Two buffers at most are in memory; the rest waits at the client."""
    with floor() as running:
        running.gateway.hold.clear()
        wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 300000000"))
        wire.sock.settimeout(0.3)
        sent = 0
        try:
            while True:
                sent += wire.sock.send(bytes(1 << 20))
        except TimeoutError:
            pass
        running.until_held_back()
        channel = next(iter(running.site.channels))
        assert channel.requests[0].intake.received <= 16 * 1024 + 2 * 512 * 1024
        assert channel.requests[0].intake.paused
        assert sent < 300_000_000
        wire.reset()
        running.gateway.hold.set()
        until(lambda: running.gateway.sinks[0].aborted == 1)


# downloads ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sendable", [True, False])
@pytest.mark.parametrize("span", [(0, None), (0, 1), (7, 2), (100, 65_536), (1_000_000, 3_000_001)])
def test_downloads_are_what_was_asked(
    shared: Floor, file: Path, sendable: bool, span: tuple[int, int | None]
) -> None:
    stream = Stream(file, sendable=sendable)
    serve(shared, "/get", stream, span[0], span[1])
    wire = shared.connect().send(request("/get"), request("/next"))
    answer = wire.answer()
    end = None if span[1] is None else span[0] + span[1]
    assert hashlib.md5(answer.body).digest() == hashlib.md5(file.read_bytes()[span[0] : end]).digest()
    assert wire.answer().body == b"/next"
    assert until(lambda: stream.closed) == 1
    wire.close()


def test_a_file_that_was_never_read_is_sent_too(shared: Floor, tmp_path: Path) -> None:
    """Pages that are not in memory are fetched by a thread."""
    path = tmp_path / "cold"
    path.write_bytes(os.urandom(4_000_000))
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    serve(shared, "/cold", Stream(path))
    wire = shared.connect().send(request("/cold"))
    assert wire.answer().body == path.read_bytes()
    wire.close()


@pytest.mark.parametrize("sendable", [True, False])
def test_a_file_that_changes_under_a_download_is_never_whole(
    shared: Floor, file: Path, sendable: bool
) -> None:
    stream = Stream(file, sendable=sendable)
    stream.true = False
    serve(shared, "/changed", stream)
    wire = shared.connect().send(request("/changed"))
    status, headers = wire.head()
    assert (status, len(wire.rest())) == (200, int(headers["content-length"]) - 1)
    assert until(lambda: stream.closed) == 1


@pytest.mark.parametrize("sendable", [True, False])
def test_a_file_that_becomes_shorter_cuts_the_connection(shared: Floor, file: Path, sendable: bool) -> None:
    stream = Stream(file, sendable=sendable)
    shared.gateway.replies["/short"] = lambda call: Reply(200, [], Download(stream, 0, 9_000_000))
    wire = shared.connect().send(request("/short"))
    wire.head()
    assert len(wire.rest()) < 9_000_000
    assert until(lambda: stream.closed) == 1


@pytest.mark.parametrize("sendable", [True, False])
@pytest.mark.parametrize("true", [True, False])
def test_a_download_ends_without_a_change_of_threads(
    shared: Floor, file: Path, sendable: bool, true: bool
) -> None:
    """Where its last byte is at hand and closing waits for nothing; one that changed is cut all the same."""
    stream, closed = Stream(file, sendable=sendable), []
    body = file.read_bytes()
    stream.true = true
    stream.read_now = (  # type: ignore[method-assign]
        lambda offset, size: body[offset : offset + size] if stream.true else None
    )
    stream.close_now = lambda: closed.append(stream.close()) is None  # type: ignore[method-assign, func-returns-value]
    serve(shared, "/near", stream, 0, 3_000_000)
    wire = shared.connect().send(request("/near"))
    wire.head()
    if true:
        assert wire.rest_of(3_000_000) == body[:3_000_000]
    else:
        assert wire.rest() == body[:2_999_999]
    assert until(lambda: stream.closed) == 1
    assert closed == [None]
    assert ((2_999_999, 1) in stream.reads) == (not true)
    wire.close()


def test_a_disk_that_fails_cuts_a_download_or_refuses_it(shared: Floor, file: Path) -> None:
    stream = Stream(file, sendable=False)
    stream.fail_at = 2_000_000
    serve(shared, "/bad", stream)
    wire = shared.connect().send(request("/bad"))
    wire.head()
    assert len(wire.rest()) <= 2_100_000
    assert until(lambda: stream.closed) == 1
    small = Stream(file)
    small.fail_at = 0
    serve(shared, "/bad", small, 0, 100)
    wire = shared.connect().send(request("/bad"))
    assert wire.answer().status == 500
    assert small.closed == 1
    wire.close()


def test_a_disk_that_fails_under_sendfile_cuts_the_download(
    shared: Floor, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that are not in memory and cannot be read: it was tried again and again, until the client was
    ended as one that takes nothing."""
    reads: list[int] = []

    def fail(fd: int, buffers: object, offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError
        reads.append(offset)
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "preadv", fail)
    stream = Stream(file)
    shared.gateway.replies["/x"] = lambda call: Reply(200, [], Download(stream, 0, file.stat().st_size))
    wire = shared.connect().send(request("/x"))
    assert int(wire.head()[1]["content-length"]) == file.stat().st_size
    assert wire.ended()
    assert until(lambda: stream.closed) == 1 and len(reads) == 1
    wire.close()


def test_a_small_object_that_changed_is_an_error(shared: Floor, file: Path) -> None:
    stream = Stream(file)
    stream.true = False
    serve(shared, "/small", stream, 0, 100)
    wire = shared.connect().send(request("/small"))
    assert wire.answer().status == 503
    assert stream.closed == 1
    wire.close()


@pytest.mark.parametrize("sendable", [True, False])
def test_a_client_that_goes_in_the_middle_leaves_nothing_open(
    shared: Floor, tmp_path: Path, sendable: bool
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as made:
        made.truncate(200 << 20)
    stream = Stream(path, sendable=sendable)
    serve(shared, "/gone", stream)
    wire = shared.connect().send(request("/gone"))
    wire.head()
    wire.reset()
    assert until(lambda: stream.closed) == 1


def test_a_reader_that_stops_holds_two_blocks_in_memory(shared: Floor, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as made:
        made.truncate(100 << 20)
    stream = Stream(path, sendable=False)
    serve(shared, "/slow", stream)
    wire = shared.connect()
    wire.send(request("/slow"))
    wire.head()
    settled = -1

    def still() -> bool:
        nonlocal settled
        before, settled = settled, len(stream.reads)
        return before == settled > 0

    until(still)
    assert len(stream.reads) * 512 * 1024 < 30 << 20
    assert len(wire.rest_of(100 << 20)) == 100 << 20
    wire.close()


def test_what_is_answered_at_once_needs_no_thread(file: Path) -> None:
    """Also many of one write; and what cannot be read at once is read in a thread."""
    stream, near = Stream(file), Stream(file)
    near.read_now = lambda offset, size: file.read_bytes()[offset : offset + size]  # type: ignore[method-assign]
    answers: dict[str, Any] = {
        "/now": lambda: Reply(200, [], b"at once"),
        "/near": lambda: Reply(206, [], Download(near, 3, 5)),
        "/far": lambda: Reply(206, [], Download(stream, 3, 5)),
    }
    with floor() as running:
        running.gateway.at_once = lambda call: answers[call.target]()
        wire = running.connect().send(request("/now") * 30 + request("/near") + request("/far"))
        assert [wire.answer().body for _ in range(30)] == [b"at once"] * 30
        assert [wire.answer().body for _ in range(2)] == [file.read_bytes()[3:8]] * 2
        assert (near.reads, near.closed) == ([], 1)
        assert (stream.reads, stream.closed) == ([(3, 5)], 1)
        assert not running.gateway.calls

        def fault(*given: object) -> Reply:
            raise RuntimeError("a fault of ours")

        running.gateway.at_once = fault
        assert wire.send(request("/now")).answer().status == 500
        broken = Stream(file)
        broken.read_now = fault  # type: ignore[assignment]
        running.gateway.at_once = lambda call: Reply(206, [], Download(broken, 3, 5))
        assert wire.send(request("/broken")).answer().status == 500
        assert broken.closed == 1
        assert len(until(lambda: len(running.log_lines()) == 34 and running.log_lines())) == 34
        wire.close()


def test_calls_name_nothing_secret_in_the_log(shared: Floor) -> None:
    def noted(call: Call) -> Reply:
        call.notes.update(user="ann", key_id="AKID", bucket="b", key="k\n1", operation="GetObject")
        return Reply(200, [], b"12345")

    shared.gateway.replies["/noted"] = noted
    wire = shared.connect()
    wire.send(request("/noted?X-Amz-Signature=5ec4e7", "GET", "Authorization: 5ec4e7", "User-Agent: test/1"))
    wire.answer()
    line = until(lambda: [line for line in shared.log_lines() if b'"AKID"' in line])[0]
    for part in (b'"user":"ann"', b'"key":"k\\n1"', b'"operation":"GetObject"', b'"agent":"test/1"'):
        assert part in line
    assert b'"status":200,"bytes_in":0,"bytes_out":5,' in line
    assert b"5ec4e7" not in shared.log.read_bytes()
    wire.close()
