"""UDT as asyncio programs use it: streams without a reactor, errors, attempts that fail or are cancelled."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from sector.ports import free_ports
from sector.udt import (
    MESSAGE,
    UdtOptions,
    create_udt_connection,
    create_udt_server,
    open_udt,
    serve_udt,
)


def test_asyncio_streams_without_a_reactor() -> None:
    """open_udt and serve_udt on a plain event loop; drain waits; nothing is left running."""
    before = set(os.listdir("/proc/self/task"))
    files = len(os.listdir("/proc/self/fd"))
    total = 20_000_000

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def client(port: int) -> bytes:
        async with open_udt("localhost", port) as (reader, writer):
            assert writer.get_extra_info("peername") == ("127.0.0.1", port)
            assert not writer.can_write_eof()
            data = os.urandom(total)

            async def write() -> None:
                for at in range(0, total, 1 << 16):
                    writer.write(data[at : at + (1 << 16)])
                    await writer.drain()

            work = asyncio.ensure_future(write())
            back = await reader.readexactly(total)
            await work
            return b"same" if back == data else b"differs"

    async def run() -> None:
        async with await serve_udt(echo, 0, "127.0.0.1") as server:
            port = server.address[1]
            assert await asyncio.gather(client(port), client(port)) == [b"same", b"same"]
        await server.wait_closed()

    asyncio.run(run())
    end = time.monotonic() + 5  # a thread that was joined may be seen for a moment
    while not set(os.listdir("/proc/self/task")) <= before and time.monotonic() < end:
        time.sleep(0.01)
    assert set(os.listdir("/proc/self/task")) <= before
    assert len(os.listdir("/proc/self/fd")) <= files


def test_asyncio_reader_does_not_take_a_part_for_all() -> None:
    """A client whose block raises in the middle of its data."""
    total = 100_000_000

    async def fail(port: int) -> None:
        async with open_udt("127.0.0.1", port) as (_, writer):
            writer.write(bytes(total))
            raise LookupError

    async def run() -> object:
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.3)
            try:
                told.set_result(len(await reader.read()))
            except ConnectionResetError as lost:
                told.set_result(lost)
            finally:
                writer.close()

        async with await serve_udt(read, 0, "127.0.0.1") as server:
            with pytest.raises(LookupError):
                await fail(server.address[1])
            return await asyncio.wait_for(told, 20)

    found = asyncio.run(run())
    assert isinstance(found, ConnectionResetError) and "gave up some" in str(found), found


def test_asyncio_errors_are_python_s() -> None:
    """Refused, silent, unknown, in use, no port."""

    async def fails(host: str, port: int, kind: type[Exception]) -> None:
        with pytest.raises(kind, match=r"."):
            await create_udt_connection(asyncio.Protocol, host, port, UdtOptions(connect_timeout_s=0.3))

    async def run() -> None:
        await fails("127.0.0.1", free_ports(1)[0], ConnectionRefusedError)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            await fails("127.0.0.1", silent.getsockname()[1], TimeoutError)
            with pytest.raises(OSError, match="in use"):
                await serve_udt(lambda reader, writer: None, silent.getsockname()[1], "127.0.0.1")
        await fails("no.such.host.invalid", 9, socket.gaierror)
        await fails("127.0.0.1", 99_999, ValueError)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["open_udt", "create_udt_connection", "cancelled"])
def test_asyncio_attempt_that_fails_leaves_nothing(how: str) -> None:
    """As the last thing that a loop does: the error is raised, nothing else is said, no thread goes on."""
    program = """
import asyncio, os, socket, sys, time
from sector.udt import create_udt_connection, open_udt

async def attempt(how, port):
    if how == "open_udt":
        async with open_udt("127.0.0.1", port):
            pass
    elif how == "create_udt_connection":
        await create_udt_connection(asyncio.Protocol, "127.0.0.1", port)
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            waiting = create_udt_connection(asyncio.Protocol, "127.0.0.1", silent.getsockname()[1])
            await asyncio.wait_for(waiting, 0.2)

try:
    asyncio.run(attempt(sys.argv[1], int(sys.argv[2])))
except OSError as error:
    print(type(error).__name__)
end = time.monotonic() + 5  # a thread that was joined may be seen for a moment
while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < end:
    time.sleep(0.01)
print(threads)
links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
print(sum("eventfd" in os.readlink(link) for link in links if os.path.lexists(link)))
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, how, str(free_ports(1)[0])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    kind = "TimeoutError" if how == "cancelled" else "ConnectionRefusedError"
    assert (done.stdout.split(), done.stderr) == ([kind, "1", "0"], "")


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_asyncio_connection_whose_task_was_cancelled_just_then_is_closed(turns: int) -> None:
    """Its caller never gets it: the peer hears of the end, and the port goes."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            ended.set()

        def cancel(left: int) -> None:
            if left:
                loop.call_soon(cancel, left - 1)
            else:
                waiting.cancel()

        class Connected(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                cancel(turns)

        async with await serve_udt(serve, 0, "127.0.0.1") as server:
            waiting = asyncio.ensure_future(create_udt_connection(Connected, *server.address))
            try:
                transport, _ = await waiting
                assert turns, "the cancellation came first"
                transport.abort()
            except asyncio.CancelledError:
                pass
            await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(run())


def test_asyncio_end_of_a_block_that_is_cancelled_leaves_no_connection() -> None:
    """A peer that reads no more holds up the end of the block, but not beyond its cancellation."""

    def ports() -> int:
        names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
        return sum(name.startswith("udt-") for name in names)

    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)

        async def send(port: int) -> None:
            async with open_udt("127.0.0.1", port) as (_, writer):
                writer.write(bytes(100_000_000))

        before = ports()
        async with await serve_udt(serve, 0, "127.0.0.1") as server:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(send(server.address[1]), 1)
            end = time.monotonic() + 5
            while ports() > before + 1:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_asyncio_peer_that_breaks_off() -> None:
    """An abort in the middle is ConnectionResetError at the other end, or the end of the stream."""

    async def run() -> None:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(10)
            writer.transport.abort()

        async with await serve_udt(serve, 0, "127.0.0.1") as server:
            try:
                async with open_udt("127.0.0.1", server.address[1]) as (_, writer):
                    for _ in range(1000):
                        writer.write(bytes(1_000_000))
                        await writer.drain()
                    outcome.set_result("drained")
            except ConnectionResetError as caught:
                outcome.set_result(caught)
        assert isinstance(await outcome, ConnectionResetError)

    asyncio.run(run())


def test_asyncio_abort_with_nothing_under_way_is_the_end_of_the_stream() -> None:
    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"all of it")
            await writer.drain()
            await asyncio.sleep(0.3)  # acknowledged
            writer.transport.abort()

        async with await serve_udt(serve, 0, "127.0.0.1") as server:
            async with open_udt("127.0.0.1", server.address[1]) as (reader, _):
                assert await reader.read() == b"all of it"

    asyncio.run(run())


def test_asyncio_protocol_that_raises_loses_its_connection() -> None:
    """It hears why, the peer that it is over; the server goes on."""

    async def run() -> None:
        ended: asyncio.Queue[Exception | None] = asyncio.Queue()

        class Far(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                raise LookupError("no such thing")

            def connection_lost(self, why: Exception | None) -> None:
                ended.put_nowait(why)

        async with await create_udt_server(Far, 0, "127.0.0.1") as server:
            for _ in range(2):
                async with open_udt("127.0.0.1", server.address[1]) as (reader, writer):
                    writer.write(b"hello")
                    assert await asyncio.wait_for(reader.read(), 5) == b""
                assert isinstance(await asyncio.wait_for(ended.get(), 5), LookupError)
        await server.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize("tidy", [True, False])
def test_asyncio_loops_leave_nothing(tidy: bool) -> None:
    """Neither loops, nor threads, nor descriptors, also of a program that leaves its connections open."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        server = await create_udt_server(asyncio.Protocol, 0, "127.0.0.1")
        transport, _ = await create_udt_connection(asyncio.Protocol, "127.0.0.1", server.address[1])
        if tidy:
            transport.close()
            await server.close()
            await server.wait_closed()

    loops: list[weakref.ref[Any]] = []
    gc.collect()
    before = held()
    for _ in range(3):
        asyncio.run(run())
    gc.collect()
    assert [loop for loop in loops if loop() is not None] == []
    assert held() <= before


class Heard(asyncio.Protocol):
    """Notes what a transport tells it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")

    def eof_received(self) -> None:
        self.heard.append("eof")

    def connection_lost(self, why: Exception | None) -> None:
        self.heard.append("lost")
        self.ended.set_result(None)


def test_asyncio_end_of_the_stream_is_told_to_who_did_not_close() -> None:
    """As over TCP: eof_received means that the peer is done."""

    async def run() -> None:
        made: list[Heard] = []

        def far() -> Heard:
            made.append(Heard())
            return made[-1]

        async with await create_udt_server(far, 0, "127.0.0.1") as server:
            for how in ("close", "abort"):
                transport, near = await create_udt_connection(Heard, "127.0.0.1", server.address[1])
                getattr(transport, how)()
                await asyncio.wait_for(near.ended, 5)
                await asyncio.wait_for(made[-1].ended, 5)
                assert near.heard == ["lost"]
                assert made[-1].heard == ["eof", "lost"]
        await server.wait_closed()

    asyncio.run(run())


def test_asyncio_write_buffer_limits() -> None:
    """A program may let more wait before it is told to pause; what waits is counted."""

    class Deaf(Heard):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()
            deaf.append(self)

    async def run() -> None:
        async with await create_udt_server(Deaf, 0, "127.0.0.1") as server:
            transport, near = await create_udt_connection(Heard, "127.0.0.1", server.address[1])
            assert transport.get_write_buffer_limits() == (0, 0)
            for wrong in ({"high": 1, "low": 2}, {"low": -1}):
                with pytest.raises(ValueError, match="must be at least"):
                    transport.set_write_buffer_limits(**wrong)
            transport.set_write_buffer_limits(high=5_000_000)
            assert transport.get_write_buffer_limits() == (1_250_000, 5_000_000)
            while True:
                before = transport.get_write_buffer_size()
                assert before <= 5_000_000
                transport.write(bytes(100_000))
                if near.heard:
                    break
                await asyncio.sleep(0)  # in which the core may take a lot
            assert near.heard == ["pause"] and transport.get_write_buffer_size() > 5_000_000
            transport.set_write_buffer_limits(high=50_000_000, low=40_000_000)
            assert near.heard == ["pause", "resume"]
            deaf[0].transport.resume_reading()
            transport.close()
            await asyncio.wait_for(near.ended, 20)
        await server.wait_closed()

    deaf: list[Deaf] = []
    asyncio.run(run())


def test_asyncio_messages_come_whole() -> None:
    """In message mode a write is one message, and data_received gets one."""

    class Whole(Heard):
        def data_received(self, data: bytes) -> None:
            self.heard.append(f"{len(data)} {data[:3]!r}")
            if data == b"end":
                self.transport.write(b"bye")
                self.transport.close()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            ends.append(self)

    async def run() -> None:
        options = UdtOptions(kind=MESSAGE)
        async with await create_udt_server(Whole, 0, "127.0.0.1", options) as server:
            transport, near = await create_udt_connection(Whole, *server.address, options)
            for message in (b"one", bytes(100_000), b"end"):
                transport.write(message)
            with pytest.raises(ValueError, match="a message has at most"):
                transport.write(bytes(options.max_message + 1))
            await asyncio.wait_for(near.ended, 20)
        await server.wait_closed()
        (far,) = [end for end in ends if end is not near]
        assert [note for note in far.heard if note[0].isdigit()] == [
            "3 b'one'",
            "100000 b'\\x00\\x00\\x00'",
            "3 b'end'",
        ]
        assert [note for note in near.heard if note[0].isdigit()] == ["3 b'bye'"]

    ends: list[Whole] = []
    asyncio.run(run())


class Gather(asyncio.BufferedProtocol):
    """Takes what comes into one small buffer."""

    def __init__(self, room: int = 1000) -> None:
        self.room = bytearray(room)
        self.data = bytearray()
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.room[:nbytes]

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set_result(exc)


async def _sent_to(receiver: Gather, data: bytes) -> BaseException | None:
    async with await create_udt_server(lambda: receiver, 0, "127.0.0.1") as server:
        transport, _ = await create_udt_connection(asyncio.Protocol, *server.address)
        transport.write(data)
        transport.close()
        async with asyncio.timeout(20):
            return await receiver.lost


def test_asyncio_buffered_protocol_gets_the_stream() -> None:
    """More than its buffer holds, in several rounds."""

    async def run() -> None:
        data = os.urandom(300_001)
        receiver = Gather()
        assert await _sent_to(receiver, data) is None
        assert bytes(receiver.data) == data

    asyncio.run(run())


def test_asyncio_buffered_protocol_without_room_loses_its_connection() -> None:
    async def run() -> None:
        why = await _sent_to(Gather(room=0), b"something")
        assert isinstance(why, RuntimeError) and "empty buffer" in str(why)

    asyncio.run(run())


def test_asyncio_buffered_protocol_is_refused_messages() -> None:
    """Where one ends would not be told."""

    async def run() -> None:
        options = UdtOptions(kind=MESSAGE)
        async with await create_udt_server(asyncio.Protocol, 0, "127.0.0.1", options) as server:
            with pytest.raises(TypeError, match="takes a stream"):
                await create_udt_connection(Gather, *server.address, options)

    asyncio.run(run())
