"""The channel of the HTTP floor without a connection: how much it keeps of what clients send ahead."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cumulus.http.channel import S3Channel
from cumulus.http.settings import AT_ONCE, EAGER

ONE = b"GET /b/k HTTP/1.1\r\nHost: a\r\n\r\n"
READ = 64 << 10  # bytes of one read


class Pipe:
    """A transport that is read from while it is not paused, and the turns of a reactor."""

    def __init__(self, answer: Callable[[S3Channel], None]) -> None:
        self.paused = False
        self.answered = 0
        self.later: list[Callable[[], None]] = []
        self.sent = 0

        def request(channel: S3Channel, head: Any) -> Any:
            def received() -> None:
                self.answered += 1
                answer(channel)

            return SimpleNamespace(head_complete=lambda: None, request_received=received)

        site = SimpleNamespace(
            stopping=False,
            now=lambda: 0.0,
            held=SimpleNamespace(free=lambda channel: None),
            reactor=SimpleNamespace(callLater=lambda _pause, work: self.later.append(work)),
            request_factory=request,
        )
        self.channel = S3Channel(site)  # type: ignore[arg-type]
        self.channel.transport = self  # type: ignore[assignment]

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False

    def turn(self, data: bytes) -> None:
        """One turn of the reactor for a client that never stops sending `data`."""
        if not self.paused:
            at = self.sent % len(data)
            piece = (data * (READ // len(data) + 2))[at : at + READ]
            self.sent += READ
            self.channel.dataReceived(piece)
        self.run()

    def run(self) -> None:
        """What was to be called in this turn."""
        later, self.later = self.later, []
        for work in later:
            work()

    @property
    def kept(self) -> int:
        return len(self.channel._buffer)


def test_requests_that_are_answered_at_once_are_read_as_they_are_answered() -> None:
    """One client that pumps and reads takes no more than a read ahead, and one turn of the others'."""
    pipe = Pipe(lambda channel: channel.request_done())
    for _ in range(5_000):
        before = pipe.answered
        pipe.turn(ONE)
        assert pipe.kept <= EAGER + READ
        assert len(pipe.later) <= 1
        assert 1 <= pipe.answered - before <= 2 * AT_ONCE
    assert pipe.sent > 3 * READ  # and it is read on


def test_requests_that_are_answered_later_are_read_as_they_are_answered() -> None:
    waiting: list[S3Channel] = []
    pipe = Pipe(waiting.append)
    for _ in range(5_000):
        pipe.turn(ONE)
        assert pipe.kept <= EAGER + READ
        while waiting:
            waiting.pop().request_done()
            assert pipe.kept <= EAGER + READ
    assert pipe.answered >= 5_000
    assert pipe.sent > 2 * READ


@pytest.mark.parametrize("size", [EAGER + 1000, 60_000])
def test_a_large_head_behind_many_requests_is_read_to_its_end(size: int) -> None:
    """What lies here is more than is kept ahead, and yet more has to come."""
    pipe = Pipe(lambda channel: channel.request_done())
    large = b"GET /b/k HTTP/1.1\r\nHost: a\r\nx-a: " + b"x" * size + b"\r\n\r\n"
    stream = ONE * 1_000 + large[:-3]
    for at in range(0, len(stream), READ):
        for _ in range(2_000):
            if not pipe.paused:
                break
            pipe.run()
        pipe.channel.dataReceived(stream[at : at + READ])
    for _ in range(2_000):
        pipe.run()
    assert (pipe.answered, pipe.paused) == (1_000, False)
    pipe.channel.dataReceived(large[-3:])
    assert pipe.answered == 1_001
