"""Connections with TLS end as those without it do, whatever the client does about it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_floor import Floor, Wire, client_tls, floor, request, until
from s3_tls import write_certificate

from cumulus.http import site
from cumulus.http.tls import TlsFiles
from cumulus.rest.call import Call, Reply


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    """A certificate and its key."""
    return TlsFiles(*write_certificate(tmp_path))


def connect(running: Floor) -> Wire:
    """A connection that reads only when it is told to; an end without a farewell is an error to it."""
    raw = socket.create_connection(("127.0.0.1", running.port), 10)
    return Wire(client_tls().wrap_socket(raw, suppress_ragged_eofs=False))


@pytest.fixture
def quick(tls: TlsFiles) -> Iterator[Floor]:
    """With a short time for idle connections."""
    with floor(tls=tls, idle_timeout_s=0.3) as running:
        yield running


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
def test_who_does_not_answer_the_farewell_is_not_waited_for(quick: Floor, headers: tuple[str, ...]) -> None:
    """Pools of connections do not read those that they keep: each was held open until its client ended."""
    wire = connect(quick)
    assert wire.send(request("/x", "GET", *headers)).answer().body == b"/x"
    until(lambda: not quick.site.channels, "the connection is ended")
    assert wire.ended(), "it was told so"
    wire.close()


def test_a_large_reply_before_the_farewell_arrives_whole(tls: TlsFiles) -> None:
    """Though it waits for a client that reads it late."""
    body = bytes(20_000_000)
    with floor(tls=tls) as running:
        running.gateway.replies["/x"] = lambda call: Reply(200, [], body)
        wire = connect(running)
        wire.send(request("/x", "GET", "Connection: close"))
        until(lambda: running.call(lambda: any(one._deaf for one in running.site.channels)), "it is to end")
        assert wire.answer().body == body
        assert wire.ended()
        wire.close()


def test_idle_connections_do_not_hold_up_the_end(tls: TlsFiles) -> None:
    """They are ended at once, not cut after the time for requests under way."""
    with floor(tls=tls) as running:
        wire = connect(running)
        assert wire.send(request("/x")).answer().body == b"/x"
        ended: list[float] = []
        began = time.monotonic()
        running.call(lambda: running.site.drain(8.0).addBoth(lambda _done: ended.append(time.monotonic())))
        until(lambda: ended)
        assert ended[0] - began < 4
        wire.close()


def signed(call: Call) -> Reply:
    """To somebody who is known: his connection is ended for nobody."""
    call.notes["user"] = "alice"
    return Reply(200, body=call.target.encode())


def test_connections_that_are_too_many_to_be_answered_are_closed(
    tls: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held a descriptor for as long as its client liked, and wrote a traceback into the log."""
    monkeypatch.setattr(site, "_REFUSERS", 0)
    with floor(tls=tls, max_connections=1) as running:
        running.gateway.replies["/x"] = signed
        wire = connect(running)
        assert wire.send(request("/x")).answer().body == b"/x"
        readers = running.call(lambda: len(running.reactor.getReaders()))
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", running.port), 10) as more:
                more.settimeout(5)
                assert more.recv(1) == b""
        assert running.call(lambda: len(running.reactor.getReaders())) == readers
        assert wire.send(request("/y")).answer().body == b"/y", "the one that is there goes on"
        wire.close()
