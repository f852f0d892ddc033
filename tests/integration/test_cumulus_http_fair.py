"""Limits and shares as clients of the HTTP floor meet them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from http_floor import Floor, Stream, Wire, floor, request, until

from cumulus.fair.limits import Limits
from cumulus.http.metrics import prometheus
from cumulus.http.settings import BUFFER, BUFFERS, FIRST_BUFFER
from cumulus.model import User
from cumulus.rest.call import Call, Download, Reply

MB = 1 << 20


def test_requests_over_the_limit_of_an_address_are_refused_before_their_body() -> None:
    with floor(address_limits=Limits(requests=0.01, burst_s=200.0)) as running:
        wire = running.connect()
        assert [wire.send(request()).answer().status for _ in range(2)] == [200, 200]
        answer = wire.send(request()).answer()
        assert (answer.status, b"<Code>SlowDown</Code>" in answer.body) == (503, True)
        assert int(answer.headers["retry-after"]) > 1
        wire.send(request("/b/k", "PUT", "Content-Length: 10000000", "Expect: 100-continue"))
        assert wire.answer().status == 503
        wire.close()
        assert len(running.gateway.calls) == 2
        text = prometheus(running.call(running.site.sample))
        assert "cumulus_limited_requests_total 2\n" in text


def test_connections_over_the_limit_of_an_address_are_refused() -> None:
    with floor(address_limits=Limits(connections=2)) as running:
        wires = [running.connect() for _ in range(2)]
        assert [wire.send(request()).answer().status for wire in wires] == [200, 200]
        third = running.connect()
        answer = third.answer()
        assert (answer.status, b"<Code>SlowDown</Code>" in answer.body) == (503, True)
        third.close()
        wires[0].close()

        def again() -> bool:
            wire = running.connect()
            try:
                return wire.send(request()).answer().status == 200
            finally:
                wire.close()

        until(again, "a place is free")
        wires[1].close()


def test_a_rate_of_an_address_slows_its_downloads(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(MB))
    with floor(address_limits=Limits(rate=MB, burst_s=0.5)) as running:
        running.gateway.replies["/file"] = lambda call: Reply(200, body=Download(Stream(path), 0, MB))
        wire = running.connect()
        began = time.monotonic()
        assert len(wire.send(request("/file")).answer().body) == MB
        assert time.monotonic() - began > 0.3
        wire.close()


def _whose(name: str) -> Callable[[Call], Reply]:
    def answer(call: Call) -> Reply:
        assert call.seat is not None
        call.seat.admit(User(id=name * 8, name=name))
        return Reply(200)

    return answer


def test_a_rate_of_a_user_holds_for_small_uploads_over_new_connections() -> None:
    """Each of them is counted, though nobody knows whose it is before it is there."""
    with floor(user_limits=Limits(rate=MB // 2, burst_s=0.5)) as running:
        running.gateway.replies["/put"] = _whose("alice")
        wires = [running.connect() for _ in range(20)]
        began = time.monotonic()
        for wire in wires:
            wire.send(request("/put", "PUT", body=bytes(64 << 10)))
        assert {wire.answer().status for wire in wires} == {200}
        assert time.monotonic() - began > 1.5, "20 times 64 KB, of which 256 KB come at once"
        for wire in wires:
            wire.close()


def test_who_hangs_up_before_the_answer_is_charged_all_the_same() -> None:
    """His objects are there; the next upload rests for them."""
    with floor(user_limits=Limits(rate=MB // 4, burst_s=1.0)) as running:
        running.gateway.replies["/put"] = _whose("alice")
        running.gateway.start_hold.clear()
        wires = [running.connect().send(request("/put", "PUT", body=bytes(64 << 10))) for _ in range(12)]
        until(lambda: len(running.gateway.calls) == 12)
        for wire in wires:
            wire.reset()
        until(lambda: not running.site.channels)
        running.gateway.start_hold.set()
        until(lambda: running.call(lambda: running.site.pool.outstanding == 0))
        wire = running.connect()
        began = time.monotonic()
        assert wire.send(request("/put", "PUT", body=bytes(64 << 10))).answer().status == 200
        assert time.monotonic() - began > 0.5, "13 times 64 KB, of which 256 KB come at once"
        wire.close()


def test_what_others_send_over_a_users_connection_is_not_charged_to_him() -> None:
    """A forged request, and one of another user: a proxy has one connection for many."""
    with floor(user_limits=Limits(rate=MB, burst_s=0.5)) as running:
        for name in ("alice", "bob"):
            running.gateway.replies[f"/{name}"] = _whose(name)
        running.gateway.replies["/forged"] = lambda call: Reply(403, body=bytes(1000))
        buckets = running.site.pacer.users._bytes._kept
        wire = running.connect()

        def put(name: str) -> int:
            return wire.send(request(f"/{name}", "PUT", body=bytes(64 << 10))).answer().status

        assert put("alice") == 200
        hers = buckets["alice" * 8]
        before = (hers.level, hers.at)
        assert 0 < hers.level <= MB // 2 - (64 << 10)
        assert (put("forged"), put("bob")) == (403, 200)
        assert (hers.level, hers.at) == before
        assert buckets["bob" * 8].level <= MB // 2 - (64 << 10)
        assert put("alice") == 200 and hers.level < before[0]
        wire.close()


@pytest.mark.parametrize("direction", ["down", "up"])
def test_connections_of_one_address_move_the_same(tmp_path: Path, direction: str) -> None:
    """All together are limited, and at the end none is far ahead."""
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(400 * MB)
    with floor(total_rate=48 * MB) as running:
        running.gateway.replies["/file"] = lambda call: Reply(200, body=Download(Stream(path), 0, 400 * MB))
        moved = [0] * 4
        over = threading.Event()
        work = _down if direction == "down" else _up
        threads = [
            threading.Thread(target=work, args=(running.connect(), moved, number, over))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()

        def progress() -> list[int]:
            sinks = running.gateway.sinks
            return list(moved) if direction == "down" else [len(sink.data) for sink in sinks]

        until(lambda: len(progress()) == 4 and min(progress()) > 8 * MB, "all have moved some")
        before = progress()
        until(lambda: sum(progress()) - sum(before) > 60 * MB, "they have moved more")
        rates = [now - was for now, was in zip(progress(), before, strict=True)]
        over.set()
        for thread in threads:
            thread.join(10)
        assert min(rates) > 0.6 * max(rates)
        _empty(running)


def test_many_uploads_share_the_memory_for_buffers_and_give_it_back() -> None:
    """What one may have, 40 have in smaller pieces; when they are gone, the next has it all."""
    with floor() as running:
        pacer = running.site.pacer
        wires = [running.connect() for _ in range(40)]
        for wire in wires:
            wire.send(request("/up", "PUT", f"Content-Length: {64 * MB}"))
            wire.sock.setblocking(False)
        data = bytes(MB)

        def feed() -> bool:
            for wire in wires:
                with contextlib.suppress(BlockingIOError):
                    wire.sock.send(data)
            return pacer.buffered == len(wires)

        until(feed, "all have buffers")
        assert FIRST_BUFFER <= pacer.buffer() <= BUFFERS // (3 * len(wires))
        for wire in wires:
            wire.reset()
        until(lambda: pacer.buffered == 0, "the buffers are given back")
        assert pacer.buffer() == BUFFER
        _empty(running)


def _down(wire: Wire, moved: list[int], number: int, over: threading.Event) -> None:
    wire.send(request("/file"))
    while not over.is_set():
        moved[number] += len(wire.sock.recv(MB))
    wire.reset()


def _up(wire: Wire, moved: list[int], number: int, over: threading.Event) -> None:
    wire.send(request("/up", "PUT", f"Content-Length: {400 * MB}"))
    data = bytes(MB)
    while not over.is_set():
        moved[number] += wire.sock.send(data)
    wire.reset()


def _empty(running: Floor) -> None:
    """Nothing is left in the tables when all are gone."""
    lanes = running.site.pacer.lanes
    until(lambda: not any(len(lane) + lane.holding for lane in lanes), "the lanes are empty")
    until(lambda: not running.site.channels, "all connections are gone")
