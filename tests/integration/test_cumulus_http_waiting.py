"""The HTTP floor of Cumulus for clients that wait: with their own direction ended, and with a connection that
they would keep when the service ends."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from http_floor import Floor, Stream, floor, request, until

from cumulus.rest.call import Download, Reply


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
