"""What asyncio promises of any transport, held by UDT ones too: a protocol that has paused or closed gets
nothing more, and what it raises hides no end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from sector.udt import create_udt_connection, create_udt_server, open_udt, serve_udt


class Ring(asyncio.BufferedProtocol):
    """One buffer; nothing more is read while it is full."""

    def __init__(self) -> None:
        self.buffer, self.used = bytearray(10_000), 0
        self.got = bytearray()
        self.end: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.saw_eof = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)[self.used :]

    def buffer_updated(self, nbytes: int) -> None:
        self.used += nbytes
        if self.used == len(self.buffer):
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.0001, self.drain)

    def drain(self) -> None:
        self.got += self.buffer[: self.used]
        self.used = 0
        self.transport.resume_reading()

    def eof_received(self) -> None:
        self.saw_eof = True

    def connection_lost(self, exc: BaseException | None) -> None:
        self.got += self.buffer[: self.used]
        self.end.set_result(exc)


async def _sent_to(protocol: type, data: bytes) -> Any:
    """What a server's protocol is after a client has sent it all and closed."""
    made: list[Any] = []

    class Sends(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(data)
            transport.close()

    def make() -> Any:
        made.append(protocol())
        return made[-1]

    async with await create_udt_server(make, 0, "127.0.0.1") as server:
        await create_udt_connection(Sends, *server.address)
        async with asyncio.timeout(20):
            while not made:
                await asyncio.sleep(0.01)
            await made[0].end
    await server.wait_closed()
    return made[0]


def test_a_buffered_protocol_that_pauses_is_asked_for_no_buffer_until_it_reads_on() -> None:
    """What was left of a piece waits; the connection ended, and acknowledged bytes were lost."""
    data = os.urandom(1_000_003)
    ring = asyncio.run(_sent_to(Ring, data))
    assert (ring.end.result(), ring.saw_eof) == (None, True)
    assert bytes(ring.got) == data


def test_a_protocol_that_raises_where_the_end_comes_is_told_the_end() -> None:
    """Who waits for that would wait for ever."""

    class Raises(Ring):
        def eof_received(self) -> None:
            raise LookupError("no such thing")

    ring = asyncio.run(_sent_to(Raises, bytes(5000)))
    assert isinstance(ring.end.result(), LookupError)
    assert len(ring.got) == 5000


def test_a_buffered_protocol_that_closes_gets_nothing_more() -> None:
    class Closes(Ring):
        def buffer_updated(self, nbytes: int) -> None:
            assert not self.transport.is_closing()
            self.used += nbytes
            self.transport.close()

    ring = asyncio.run(_sent_to(Closes, bytes(30_000)))
    assert ring.end.result() is None
    assert len(ring.got) <= 10_000


def test_flow_control_that_raises_reaches_no_writer() -> None:
    """As asyncio has it: said in the log, and the connection goes on."""

    class Writes(asyncio.Protocol):
        paused = resumed = 0

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def pause_writing(self) -> None:
            self.paused += 1
            raise LookupError("no such thing")

        def resume_writing(self) -> None:
            self.resumed += 1
            raise LookupError("nor this")

    async def run() -> tuple[Any, Any]:
        rings: list[Ring] = []

        def make() -> Ring:
            rings.append(Ring())
            return rings[-1]

        async with await create_udt_server(make, 0, "127.0.0.1") as server:
            transport, writes = await create_udt_connection(Writes, *server.address)
            for _ in range(40):
                transport.write(bytes(100_000))
            transport.close()
            async with asyncio.timeout(20):
                while not rings:
                    await asyncio.sleep(0.01)
                await rings[0].end
        await server.wait_closed()
        return writes, rings[0]

    writes, ring = asyncio.run(run())
    assert writes.paused and ring.end.result() is None
    assert len(ring.got) == 4_000_000


def test_who_writes_in_connection_made_is_paused_there() -> None:
    """It may write until it is, and did so for ever."""

    class Fills(asyncio.Protocol):
        paused = False
        written = 0

        def connection_made(self, transport: Any) -> None:
            while not self.paused and self.written < 200_000_000:
                transport.write(bytes(100_000))
                self.written += 100_000
            transport.close()

        def pause_writing(self) -> None:
            self.paused = True

    async def run() -> tuple[Any, Any]:
        rings: list[Ring] = []

        def make() -> Ring:
            rings.append(Ring())
            return rings[-1]

        async with await create_udt_server(make, 0, "127.0.0.1") as server:
            _, fills = await create_udt_connection(Fills, *server.address)
            async with asyncio.timeout(30):
                while not rings:
                    await asyncio.sleep(0.01)
                await rings[0].end
        await server.wait_closed()
        return fills, rings[0]

    fills, ring = asyncio.run(run())
    assert fills.paused and fills.written < 200_000_000
    assert (len(ring.got), ring.end.result()) == (fills.written, None)


def test_who_aborts_hears_of_no_error() -> None:
    """`connection_lost(None)`, and `wait_closed` returns."""

    async def run() -> tuple[object, object]:
        def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await create_udt_server(Ring, 0, "127.0.0.1") as server:
            transport, ring = await create_udt_connection(Ring, *server.address)
            transport.write(bytes(10_000_000))
            transport.abort()
            end = await asyncio.wait_for(ring.end, 10)
        await server.wait_closed()
        async with await serve_udt(ignore, 0, "127.0.0.1") as server:
            async with open_udt(*server.address) as (_, writer):
                writer.transport.abort()
                await writer.wait_closed()
        await server.wait_closed()
        return end, ring.saw_eof

    assert asyncio.run(run()) == (None, False)


def test_a_server_is_used_as_asyncio_s_own() -> None:
    """The lines of every tutorial: serve_forever until it is cancelled, close() without await, and then
    wait_closed()."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    async def forever(server: Any) -> None:
        async with server:
            await server.serve_forever()

    async def ask(port: int) -> bytes:
        async with open_udt("127.0.0.1", port) as (reader, writer):
            writer.write(b"x")
            return await reader.read(100)

    async def run() -> None:
        server = await serve_udt(echo, 0, "127.0.0.1")
        assert server.is_serving() and server.get_loop() is asyncio.get_running_loop()
        await server.start_serving()
        work = asyncio.ensure_future(forever(server))
        assert await ask(server.address[1]) == b"x"
        with pytest.raises(RuntimeError, match="already"):
            await server.serve_forever()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not server.is_serving()
        await server.wait_closed()

        again = await serve_udt(echo, server.address[1], "127.0.0.1")  # the port is free
        work = asyncio.ensure_future(again.serve_forever())
        await asyncio.sleep(0)
        again.close()
        again.close()
        with pytest.raises(ConnectionRefusedError):
            await ask(again.address[1])
        await again.wait_closed()
        await asyncio.wait([work])
        assert work.cancelled()
        with pytest.raises(RuntimeError, match="closed"):
            await again.serve_forever()

    asyncio.run(asyncio.wait_for(run(), 30))


MANY = """
import asyncio, resource, sys
from sector.udt import open_udt

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    held, refused = [], ""
    while not refused:
        one = open_udt("127.0.0.1", int(sys.argv[1]))
        try:
            _, writer = await one.__aenter__()
            held.append((one, writer))
        except OSError as error:
            refused = str(error)
    assert held and "Too many open files" in refused, refused
    for _, writer in held:
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 10)
    await asyncio.sleep(0.5)
    for _ in held:
        async with open_udt("127.0.0.1", int(sys.argv[1])) as (reader, writer):
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"

asyncio.run(asyncio.wait_for(main(), 40))
"""


def test_a_program_without_descriptors_gets_them_back() -> None:
    """The first port that closed needed a thread, and Python a file to make it: no port was closed again, and
    each later connection failed."""

    async def run() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(5))
            writer.close()

        async with await serve_udt(echo, 0, "127.0.0.1") as server:
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MANY, str(server.address[1]), stderr=subprocess.PIPE
            )
            _, err = await asyncio.wait_for(program.communicate(), 60)
            assert program.returncode == 0, err.decode()[-1000:]
        await server.wait_closed()

    asyncio.run(run())
