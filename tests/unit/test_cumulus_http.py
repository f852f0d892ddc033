"""Parts of the HTTP floor of Cumulus that need no connection: framing, buffers, limits, counters."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cumulus.http.body import Intake
from cumulus.http.chunked import ChunkedDecoder, MalformedChunk
from cumulus.http.limits import Throttle
from cumulus.http.metrics import Metrics, Sample, fewer_users, lasting, prometheus, total
from cumulus.http.settings import BUFFER
from cumulus.http.stretch import Stretch


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """`data` in pieces of random size."""
    pieces = []
    while data:
        size = rng.choice([1, 2, 10, 1000, 100_000])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@given(st.lists(st.binary(min_size=1, max_size=50)), st.binary(max_size=20), st.randoms())
def test_chunks_are_decoded_however_they_come(parts: list[bytes], rest: bytes, rng: random.Random) -> None:
    forms = (b"%X; a=b\r\n%s\r\n", b"%X\r\n%s\r\n", b"%x\r\n%s\r\n", b"00%x \r\n%s\r\n")
    framed = b"".join(rng.choice(forms) % (len(part), part) for part in parts)
    framed += rng.choice((b"0\r\nT: 1\r\n\r\n", b"0\r\n\r\n")) + rest
    decoder = ChunkedDecoder()
    body, behind = b"", b""
    for piece in cut(framed, rng):
        if decoder.finished:
            behind += piece
        else:
            body += b"".join(decoder.feed(memoryview(piece)))
            behind = decoder.rest
    assert (body, behind, decoder.finished) == (b"".join(parts), rest, True)


def test_tiny_chunks_are_decoded_quickly() -> None:
    """Anybody may send them, before he is refused, and the thread of all connections decodes them: 60 KB took
    90 ms. With something unusual in each they still take that."""

    def takes_s(chunk: bytes) -> float:
        data = memoryview(chunk * 10_000)
        decoder, began_s = ChunkedDecoder(), time.process_time()
        count = sum(len(decoder.feed(data[at : at + 65536])) for at in range(0, len(data), 65536))
        assert count == 10_000
        return time.process_time() - began_s

    usual, unusual = (min(takes_s(chunk) for _ in range(5)) for chunk in (b"1\r\na\r\n", b"1 \r\na\r\n"))
    assert usual < 0.6 * unusual


def test_a_trailer_is_bounded() -> None:
    decoder = ChunkedDecoder()
    decoder.feed(memoryview(b"0\r\n"))
    with pytest.raises(MalformedChunk, match="trailer"):
        decoder.feed(memoryview((b"a: " + b"x" * 900 + b"\r\n") * 20))


class Collector:
    """Owner of an intake: keeps what it gets and frees buffers when told."""

    def __init__(self, length: int | None, first: int) -> None:
        self.intake = Intake(self, length, first)
        self.data = bytearray()
        self.out = 0
        self.last = False
        self.rest: bytes | None = None
        self.paused = False
        self.views: list[tuple[memoryview, bytes]] = []  # the last two, which must stay as they were

    def body_buffer(self, data: memoryview, last: bool) -> None:
        assert not self.out, "two buffers at a time"
        assert not self.last, "something after the last"
        self.out += 1
        self.data += data
        self.last = last
        self.views = [*self.views[-1:], (data, bytes(data))]

    def body_over(self, rest: bytes) -> None:
        assert self.rest is None
        self.rest = rest

    def body_pause(self, paused: bool) -> None:
        assert paused != self.paused
        self.paused = paused

    def free(self) -> None:
        if self.out:
            assert all(view == was for view, was in self.views)
            self.out -= 1
            self.intake.free()


@given(st.integers(0, 3 * BUFFER), st.sampled_from([10, 16 * 1024]), st.booleans(), st.integers())
@settings(max_examples=40)
def test_a_body_passes_whole_and_in_order(size: int, first: int, chunked: bool, seed: int) -> None:
    """By copies and straight into buffers, with buffers freed early or late, and no more than two of them, of
    sizes that change."""
    rng = random.Random(seed)
    body = rng.randbytes(size)
    owner = Collector(None if chunked else size, first)
    owner.intake.most = lambda: rng.choice([16 * 1024, BUFFER // 2, BUFFER, BUFFER])
    wire = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body) if chunked and size else b"0\r\n\r\n" if chunked else body
    wire = memoryview(wire + b"GET")
    opened = False
    while owner.rest is None:
        if not opened and rng.random() < 0.5:
            opened = True
            owner.intake.open()
        if owner.paused:
            if not opened:
                opened = True
                owner.intake.open()
            owner.free()
            continue
        room = owner.intake.room() if owner.intake.direct and rng.random() < 0.5 else None
        if room:
            count = min(rng.choice([1, 5000, len(room), len(room)]), len(room), len(wire) - 3)
            if not count:
                break
            room[:count] = wire[:count]
            wire = wire[count:]
            owner.intake.filled(count)
        else:
            count = rng.choice([1, 3000, 65_536, 65_536])
            piece, wire = wire[:count], wire[count:]
            owner.intake.feed(bytes(piece))
        if rng.random() < 0.3:
            owner.free()
    if not opened:
        owner.intake.open()
    while not owner.last:
        assert owner.out, "nothing more comes, and the end was not told"
        owner.free()
    assert bytes(owner.data) == body
    assert (owner.rest or b"") + bytes(wire) == b"GET"
    assert owner.intake.received == size


def test_what_nobody_wants_is_counted_and_dropped() -> None:
    owner = Collector(100_000, 16 * 1024)
    owner.intake.feed(bytes(50_000))
    assert owner.paused
    owner.intake.discard()
    assert not owner.paused
    owner.intake.feed(bytes(50_000) + b"next")
    assert (owner.rest, bytes(owner.data), owner.intake.received) == (b"next", b"", 100_000)


def test_a_throttle_keeps_its_rate() -> None:
    throttle = Throttle(1000, now=0.0)
    assert throttle.took(250, 0.0) == 0.0
    assert throttle.took(500, 0.0) == pytest.approx(0.5)
    assert throttle.took(100, 0.6) == 0.0
    assert Throttle(0, 0.0).took(10**12, 0.0) == 0.0
    assert (Throttle(0, 0.0).turn(77), Throttle(800_000, 0.0).turn(10**6)) == (77, 100_000)


def test_samples_of_processes_add_up() -> None:
    first, second = Metrics(), Metrics()
    first.request("GetObject", 200, 0.0005)
    first.request("GetObject", 404, 100.0)
    second.request("GetObject", 200, 0.02)
    second.plain["connections"] = 3
    text = prometheus(total([first.sample(), second.sample()]))
    assert 'cumulus_requests_total{operation="GetObject",status="200"} 2\n' in text
    assert 'cumulus_requests_total{operation="GetObject",status="404"} 1\n' in text
    assert 'cumulus_request_seconds_bucket{le="0.001"} 1\n' in text
    assert 'cumulus_request_seconds_bucket{le="60"} 2\n' in text
    assert 'cumulus_request_seconds_bucket{le="+Inf"} 3\n' in text
    assert "cumulus_connections 3\n" in text
    assert prometheus(total([])) == prometheus(Sample(durations=[0] * 15))


def test_users_have_metrics_of_their_own_up_to_a_number() -> None:
    """The rest is counted together, over all processes; anonymous requests are nobody's."""
    first, second, none = Metrics(2), Metrics(2), Metrics(0)
    for name in ("alice", "bob", "carol", "dave", "alice", ""):
        first.of_user(name, 10, 1)
    second.of_user("carol", 5, 7)
    none.of_user("alice", 1, 1)
    assert not none.sample().users and "cumulus_user" not in prometheus(none.sample())
    whole = total([first.sample(), second.sample()])
    assert whole.users == {"alice": (2, 20, 2), "bob": (1, 10, 1), "/others": (2, 20, 2), "carol": (1, 5, 7)}
    text = prometheus(whole)
    assert 'cumulus_user_requests_total{user="alice"} 2\n' in text
    assert 'cumulus_user_received_bytes_total{user="carol"} 5\n' in text
    assert 'cumulus_user_sent_bytes_total{user="/others"} 2\n' in text


def test_what_a_process_leaves_behind() -> None:
    """What it has counted, not what was open; of users as many as have counters, the rest together."""
    metrics = Metrics(9)
    metrics.request("GetObject", 200, 0.1)
    metrics.plain["connections"] = 3
    metrics.plain["timeouts_total"] = 2
    for name in ("alice", "bob", "/others", "carol"):
        metrics.of_user(name, 10, 1)
    left = lasting(metrics.sample())
    assert left.plain == {"timeouts_total": 2} and left.requests == {"GetObject": {200: 1}}
    assert sum(left.durations) == 1 and fewer_users(left, 3) == left
    assert fewer_users(left, 1).users == {"alice": (1, 10, 1), "/others": (3, 30, 3)}


class Lender(Collector):
    """Lends whatever it may; `waiting` bytes are in the connection."""

    def __init__(self, length: int) -> None:
        super().__init__(length, 16 << 10)
        self.waiting = 0
        self.lent: list[Stretch] = []

    def body_buffer(self, data: memoryview, last: bool) -> None:
        super().body_buffer(data, last)
        lent = None if last else self.intake.lend(16 << 20, self.waiting)
        if lent is not None:
            self.lent.append(lent)
            self.data = self.data[: -len(data)]


@pytest.mark.parametrize("most", [BUFFER // 2, BUFFER])
@pytest.mark.parametrize("before", [0, 10_000, 250_000, 700_000])
@pytest.mark.parametrize("waiting", [0, 64 << 10])
def test_what_lay_behind_the_head_goes_with_the_loan_or_before_it(
    most: int, before: int, waiting: int
) -> None:
    """All bytes, in order, however many came before the connection was fast."""
    body = random.Random(before).randbytes(3 * BUFFER)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    owner = Lender(len(body))
    owner.intake.most = lambda: most
    owner.waiting = waiting
    if before:
        owner.intake.feed(body[:before])
    owner.intake.open()
    sender = threading.Thread(target=theirs.sendall, args=(body[before:],))
    sender.start()
    owner.waiting = 64 << 10
    while not owner.last:
        if owner.lent:
            taken = owner.lent.pop()
            assert taken.run_thd(os.dup(ours.fileno()), owner.data.extend) is None
            owner.intake.give_back()
            owner.out -= 1
            owner.intake.free()
        elif owner.out:
            owner.free()
        elif room := owner.intake.room():
            select.select([ours], [], [], 10)
            owner.intake.filled(ours.recv_into(room))
    sender.join()
    assert owner.data == body
    ours.close()
    theirs.close()
