"""Large uploads whose bytes are received by the thread that writes them, over real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_floor import Floor, Recorder, floor, request, until

from cumulus.http import channel
from cumulus.http.body import FAST
from cumulus.http.buffers import KEPT, Buffers
from cumulus.http.pace import IN
from cumulus.http.settings import BUFFER, STRETCH
from cumulus.http.stretch import AWAITED, Receive, Stretch, Write
from cumulus.http.transport import S3Server
from cumulus.rest.call import Reply

LARGE = 40_000_000  # more than one stretch


@pytest.fixture
def running() -> Iterator[Floor]:
    """A floor that takes large uploads."""
    with floor() as made:
        yield made


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[Stretch]:
    """What threads were lent."""
    found: list[Stretch] = []
    run_thd = Stretch.run_thd

    def noted(self: Stretch, fd: int, write: Write[Any], receive: Receive[Any] | None = None) -> Any:
        found.append(self)
        return run_thd(self, fd, write, receive)

    monkeypatch.setattr(Stretch, "run_thd", noted)
    return found


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that always have something, however busy the machine is."""
    monkeypatch.setattr(S3Server, "waiting", lambda self: FAST)


def descriptors() -> list[str]:
    """Sockets that this process has open."""
    names = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return sorted(name for name in names if name.startswith("socket:"))


@pytest.mark.usefixtures("fast")
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
    assert all(one.written <= STRETCH + BUFFER for one in stretches)
    wire.close()


@pytest.mark.usefixtures("fast")
def test_a_client_that_pauses_keeps_no_thread(running: Floor, stretches: list[Stretch]) -> None:
    """It is served on when it goes on."""
    body = os.urandom(LARGE)
    wire = running.connect().send(request("/a", "PUT", f"Content-Length: {LARGE}"))
    for at in range(0, LARGE, 5_700_000):
        wire.send(body[at : at + 5_700_000])
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


@pytest.mark.usefixtures("fast")
def test_a_refusal_near_the_end_keeps_the_connection(running: Floor, stretches: list[Stretch]) -> None:
    """What was received counts, so the next request is found behind the rest."""
    taken = (16 << 10) + 3 * BUFFER
    size = taken + 100_000
    running.gateway.refuse_after = taken
    wire = running.connect().send(request("/a", "PUT", body=bytes(size)), request("/next"))
    assert wire.answer().status == 403
    assert wire.answer().body == b"/next"
    assert sum(one.written for one in stretches) >= 2 * BUFFER
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


@pytest.mark.usefixtures("fast")
def test_a_rest_smaller_than_a_thread_is_woken_for_arrives(running: Floor, stretches: list[Stretch]) -> None:
    """Neither the rest of a body nor the request behind it waits for more than there is."""
    rest, body = 1000, os.urandom(LARGE)
    wire = running.connect().send(request("/a", "PUT", f"Content-Length: {LARGE}"), body[:-rest])
    until(lambda: stretches and running.site.pool.outstanding == 0)
    for at in range(LARGE - rest, LARGE, 100):
        wire.send(body[at : at + 100])
    assert wire.answer().body == b"stored %d" % LARGE
    assert bytes(running.gateway.sinks[0].data) == body
    assert wire.send(request("/next")).answer().body == b"/next"
    wire.close()


def stretch(left: int) -> Stretch:
    """One that holds a buffer of zeros."""
    budget = left + BUFFER
    return Stretch(bytearray(BUFFER), BUFFER, left=left, budget=budget, size=BUFFER, buffers=Buffers())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait as long as it takes."""
    monkeypatch.setattr("cumulus.http.stretch.MOMENT_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_a_thread_is_woken_for_many_bytes_and_leaves_the_connection_as_it_was() -> None:
    """While it waits the kernel holds back less than it asks for; afterwards one byte wakes again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.create_connection(port.getsockname()) as client,
    ):
        server, _ = port.accept()
        server.setblocking(False)
        lent = stretch(BUFFER)

        def mark() -> int:
            return server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

        def send() -> None:
            until(lambda: mark() == AWAITED)
            client.sendall(bytes(BUFFER))

        sender = threading.Thread(target=send)
        sender.start()
        assert lent.run_thd(os.dup(server.fileno()), lambda data: None) is None
        sender.join()
        assert (lent.left, lent.received, mark()) == (0, BUFFER, 1)
        server.close()


def test_buffers_go_from_body_to_body_and_not_with_the_last(running: Floor) -> None:
    """A next upload has those of the one before, with its own bytes; when none is under way none is kept."""
    wire, kept = running.connect(), running.site.buffers
    taken: list[int] = []
    for number in range(4):
        body = os.urandom(6_000_000)
        assert wire.send(request("/a", "PUT", body=body)).answer().body == b"stored 6000000"
        assert bytes(running.gateway.sinks[number].data) == body
        taken.append(kept.kept)
    assert 1 <= max(taken) <= KEPT
    until(lambda: not kept.kept, "no buffers")
    wire.close()


@pytest.mark.usefixtures("fast")
def test_an_upload_that_is_being_finished_waits_for_nobody_and_nobody_for_it(
    running: Floor, monkeypatch: pytest.MonkeyPatch, stretches: list[Stretch]
) -> None:
    """Its sync may take long: it has left its lane, and its buffers go once it is answered."""
    synced, began = threading.Event(), threading.Event()
    finish = Recorder.finish

    def held(self: Recorder) -> Reply:
        began.set()
        assert synced.wait(30)
        return finish(self)

    monkeypatch.setattr(Recorder, "finish", held)
    wire = running.connect().send(request("/a", "PUT", body=os.urandom(6_000_000)))
    assert began.wait(10)
    assert stretches
    assert running.call(lambda: len(running.site.pacer.lanes[IN])) == 0
    until(lambda: running.call(lambda: not running.site.pacer._had_buffers), "a tick")
    synced.set()
    assert wire.answer().body == b"stored 6000000"
    until(lambda: not running.site.buffers.kept, "no buffers")
    wire.close()


def test_no_more_buffers_are_kept_than_said_and_only_large_ones() -> None:
    buffers = Buffers()
    large = [buffers.take(BUFFER) for _ in range(KEPT + 1)]
    for buffer in (*large, buffers.take(BUFFER // 2), None):
        buffers.give(buffer)
    assert buffers.kept == KEPT
    again = [buffers.take(BUFFER) for _ in range(KEPT + 1)]
    assert all(one is not other for at, one in enumerate(again) for other in again[:at])
    assert {id(one) for one in again} & {id(one) for one in large} == {id(one) for one in large[:KEPT]}


def test_a_fast_body_is_taken_in_one_go(running: Floor, stretches: list[Stretch]) -> None:
    """From its first small buffer to its end, by one thread: what came with the head, too."""
    body = os.urandom(5_000_000)
    running.gateway.start_hold.clear()
    wire = running.connect()
    sender = threading.Thread(target=wire.send, args=(request("/a", "PUT", body=body), request("/next")))
    sender.start()
    until(lambda: any(one.requests and one.waiting() > FAST for one in list(running.site.channels)))
    running.gateway.start_hold.set()
    assert [wire.answer().body, wire.answer().body] == [b"stored 5000000", b"/next"]
    assert bytes(running.gateway.sinks[0].data) == body
    assert [one.left for one in stretches] == [0]
    sender.join()
    wire.close()


@pytest.mark.usefixtures("patient")
def test_what_cannot_be_told_how_much_to_wait_for_is_read_all_the_same() -> None:
    """A pipe instead of a connection: the kernel refuses the option."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    lent, taken = stretch(2 * BUFFER), bytearray()

    def send() -> None:
        with open(writing, "wb") as out:
            out.write(b"\1" * 2 * BUFFER)

    sender = threading.Thread(target=send)
    sender.start()
    assert lent.run_thd(reading, taken.extend) is None
    sender.join()
    assert lent.buffer is not None  # the end of the body is left to whoever finishes it
    taken += lent.buffer[: lent.fill]
    assert (lent.left, bytes(taken)) == (0, bytes(BUFFER) + b"\1" * 2 * BUFFER)
