"""Large uploads whose bytes are received by the thread that writes them, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_floor import Floor, Recorder, floor, request, until

from cumulus.http import channel
from cumulus.http.settings import BUFFER
from cumulus.http.stretch import Stretch
from cumulus.rest.call import Reply

LARGE = 12_000_000


@pytest.fixture
def running() -> Iterator[Floor]:
    """A floor whose sinks go on working after a write has returned."""
    with floor() as made:
        made.gateway.aside = True
        yield made


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[Stretch]:
    """What threads were lent."""
    found: list[Stretch] = []
    run_thd = Stretch.run_thd

    def noted(self: Stretch, fd: int, write: Callable[[memoryview], Reply | None]) -> Reply | None:
        found.append(self)
        return run_thd(self, fd, write)

    monkeypatch.setattr(Stretch, "run_thd", noted)
    return found


def descriptors() -> list[str]:
    """Sockets that this process has open."""
    names = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return sorted(name for name in names if name.startswith("socket:"))


def test_uploads_and_requests_behind_them_in_one_stream(running: Floor, stretches: list[Stretch]) -> None:
    """All bytes, in order, and none of the next request; most are received in the thread."""
    body = os.urandom(LARGE)
    wire = running.connect()
    wire.send(
        request("/a", "PUT", body=body) + request("/b") + request("/c", "PUT", body=body) + request("/d")
    )
    assert [wire.answer().body for _ in range(4)] == [
        b"stored %d" % LARGE,
        b"/b",
        b"stored %d" % LARGE,
        b"/d",
    ]
    assert [bytes(sink.data) for sink in running.gateway.sinks] == [body, body]
    assert all(sink.together == 1 for sink in running.gateway.sinks)
    assert sum(one.received for one in stretches) > LARGE // 2
    assert all(one.written <= 5 << 20 for one in stretches)
    wire.close()


def test_a_client_that_pauses_keeps_no_thread(running: Floor, stretches: list[Stretch]) -> None:
    """It is served on when it goes on."""
    body = os.urandom(LARGE)
    wire = running.connect().send(request("/a", "PUT", f"Content-Length: {LARGE}"))
    for at in range(0, LARGE, 1_700_000):
        wire.send(body[at : at + 1_700_000])
        until(lambda: running.site.pool.outstanding == 0)
    assert wire.answer().body == b"stored %d" % LARGE
    assert bytes(running.gateway.sinks[0].data) == body
    assert stretches
    wire.close()


def test_a_sink_refuses_in_the_middle(running: Floor) -> None:
    """The client is told; nothing is finished."""
    running.gateway.refuse_after = 5_000_000
    wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 50000000"), bytes(20_000_000))
    assert wire.answer().status == 403
    wire.close()
    sink = running.gateway.sinks[0]
    assert (sink.finished, sink.aborted) == (0, 0)


def test_a_refusal_near_the_end_keeps_the_connection(running: Floor, stretches: list[Stretch]) -> None:
    """What was received counts, so the next request is found behind the rest."""
    taken = (16 << 10) + (128 << 10) + 3 * BUFFER  # buffers grow to their full size
    size = taken + 100_000
    running.gateway.refuse_after = taken
    wire = running.connect().send(request("/a", "PUT", body=bytes(size)), request("/next"))
    assert wire.answer().status == 403
    assert wire.answer().body == b"/next"
    assert stretches[0].written == 2 * BUFFER
    wire.close()


def test_a_fault_in_the_middle_is_an_internal_error_and_undone(
    running: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever buffer it is."""
    write = Recorder.write

    def failing(self: Recorder, data: memoryview) -> Reply | None:
        if len(self.data) > 3_000_000:
            raise RuntimeError("a fault of ours")
        return write(self, data)

    monkeypatch.setattr(Recorder, "write", failing)
    wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 50000000"), bytes(8_000_000))
    assert wire.answer().status == 500
    assert running.gateway.sinks[0].aborted == 1
    wire.close()


def test_a_client_that_goes_leaves_nothing(running: Floor) -> None:
    """Neither an upload nor a descriptor."""
    before = descriptors()
    wire = running.connect().send(request("/b/k", "PUT", "Content-Length: 50000000"), bytes(8_000_000))
    wire.reset()
    until(lambda: running.gateway.sinks and running.gateway.sinks[0].aborted == 1)
    until(lambda: descriptors() == before)
    assert running.gateway.sinks[0].finished == 0


def test_without_a_descriptor_to_spare_uploads_go_on(running: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of all connections receives."""

    class NoMore:
        """`os` for the channel."""

        @staticmethod
        def dup(fd: int) -> int:
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(channel, "os", NoMore)
    body = os.urandom(LARGE)
    wire = running.connect().send(request("/a", "PUT", body=body))
    assert wire.answer().body == b"stored %d" % LARGE
    assert bytes(running.gateway.sinks[0].data) == body
    wire.close()
