"""Connections beyond `max_connections`: who makes room, and who is told to come again."""

from __future__ import annotations

import socket

import pytest
from http_floor import Wire, floor, request, until

from cumulus.http import site
from cumulus.rest.call import Call, Reply


def _signed(call: Call) -> Reply:
    call.notes["user"] = "alice"
    return Reply(200)


def test_silent_connections_make_room() -> None:
    """The oldest first; not those over which somebody has signed, nor those with a request under way."""
    with floor(max_connections=4) as running:
        running.gateway.replies["/signed"] = _signed
        hers = running.connect().send(request("/signed"))
        assert hers.answer().status == 200
        running.gateway.start_hold.clear()
        busy = running.connect().send(request("/busy"))
        until(lambda: len(running.gateway.calls) == 2)
        silent = []
        for count in (3, 4):
            silent.append(running.connect())
            until(lambda count=count: len(running.site.channels) == count)  # type: ignore[misc]
        silent[1].send(b"GET /half HTT")
        later = [running.connect().send(request("/later")) for _ in range(2)]
        for wire in silent:
            assert wire.ended()
        running.gateway.start_hold.set()
        for wire in later:
            assert wire.answer().body == b"/later"
        assert busy.answer().body == b"/busy"
        assert hers.send(request("/signed")).answer().status == 200
        for wire in (hers, busy, *silent, *later):
            wire.close()


@pytest.mark.parametrize("size", [48 << 10, 128 << 10, 8 << 20])
def test_a_reply_that_is_still_to_be_taken_is_not_cut_to_make_room(size: int) -> None:
    """Be it in the kernel or with us. Its connection makes room when all of it was taken; one that has asked
    for nothing does before."""
    with floor(max_connections=2) as running:
        running.gateway.replies["/public"] = lambda call: Reply(200, [], bytes(size))
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", running.port))
        reader = Wire(slow).send(request("/public"))
        channels = running.site.channels
        until(lambda: running.gateway.calls and running.call(lambda: not running.site._in_flight))
        running.gateway.replies["/signed"] = _signed
        silent = running.connect()
        until(lambda: len(channels) == 2)
        hers = running.connect().send(request("/signed"))
        assert (hers.answer().status, silent.ended()) == (200, True)
        later = running.connect()
        assert (later.answer().status, later.ended()) == (503, True)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert len(reader.answer().body) == size
        until(lambda: running.call(lambda: all(one.idle for one in channels)))
        newest = running.connect().send(request("/newest"))
        assert (newest.answer().body, reader.ended()) == (b"/newest", True)
        for wire in (reader, silent, hers, later, newest):
            wire.close()


def test_many_who_do_not_take_their_replies_are_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few for each connection that comes; who has taken his makes room when it is his turn."""
    monkeypatch.setattr(site, "_LOOKS", 2)
    with floor(max_connections=6) as running:
        running.gateway.replies["/large"] = lambda call: Reply(200, [], bytes(8 << 20))
        wires = []
        for target in ["/large"] * 5 + ["/small"]:
            wires.append(running.connect().send(request(target)))
            until(lambda: len(running.gateway.calls) == len(wires))
        assert wires[-1].answer().body == b"/small"
        until(lambda: running.call(lambda: all(one.quiet for one in running.site.channels)))
        until(lambda: running.call(lambda: sum(one.idle for one in running.site.channels)) == 1)
        later = [running.connect().send(request("/later")) for _ in range(3)]
        assert [wire.answer().status for wire in later] == [503, 503, 200]
        for wire in wires[:5]:
            assert len(wire.answer().body) == 8 << 20
        for wire in (*wires, *later):
            wire.close()


def test_beyond_max_connections_a_client_is_told_and_ended() -> None:
    with floor(max_connections=2) as running:
        running.gateway.replies["/x"] = _signed
        first = [running.connect().send(request("/x")) for _ in range(2)]
        assert [wire.answer().status for wire in first] == [200, 200]
        more = running.connect()
        assert (more.answer().status, more.ended()) == (503, True)
        more.close()
        first[0].close()
        until(lambda: len(running.site.channels) == 1)
        assert running.connect().send(request("/y")).answer().body == b"/y"
        first[1].close()
