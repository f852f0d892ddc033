"""UDT for asyncio programs, without a Twisted reactor: streams like asyncio's own, and any asyncio.Protocol
or BufferedProtocol.

The core's one eventfd is a reader of the event loop; nothing else is needed. `open_udt` and `serve_udt` give
(StreamReader, StreamWriter) as `asyncio.open_connection` does, with its back-pressure: `await writer.drain()`
waits while the send buffer is full, and a reader that is not read closes the peer's window. UDT has no
half-close: `writer.can_write_eof()` is False. `writer.start_tls` and `loop.start_tls` put TLS inside.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from twisted.internet import error
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector._udt.endpoints import (
    CannotListen,
    UdtClientEndpoint,
    UdtListeningPort,
    UdtRendezvousEndpoint,
    UdtServerEndpoint,
)
from sector._udt.shared import SharedCore
from sector._udt.transport import MESSAGE, UdtOptions, UdtTransport

log = Logger()
DEFAULTS = UdtOptions()
LIMIT = 1 << 18  # bytes of a StreamReader before the peer is slowed
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LoopReactor:
    """What `Core` and the endpoints ask of a reactor, from an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def addReader(self, reader: Any) -> None:
        """Call reader.doRead while its descriptor is readable."""
        self.loop.add_reader(reader.fileno(), reader.doRead)

    def removeReader(self, reader: Any) -> None:
        """No more."""
        self.loop.remove_reader(reader.fileno())

    def callLater(self, delay: float, call: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Call in `delay` seconds; with 0 after what the loop has to do now."""
        return self.loop.call_later(delay, call, *args) if delay else self.loop.call_soon(call, *args)

    def callFromThread(self, call: Callable[..., object], *args: Any) -> None:
        """From another thread; ignored when the loop has ended."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *args)

    def getThreadPool(self) -> LoopReactor:
        """The loop's executor behind Twisted's name."""
        return self

    def callInThreadWithCallback(
        self, done: Callable[[bool, Any], object], call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        """Run in the loop's executor; `done(ok, result or Failure)` is called there."""

        def run_thd() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException:
                done(False, Failure())
            else:
                done(True, result)

        self.loop.run_in_executor(None, run_thd)

    @property
    def nameResolver(self) -> LoopReactor:
        """Names are resolved here."""
        return self

    def resolveHostName(
        self, receiver: Any, host: str, port: int = 0, types: object = None, transportSemantics: str = "UDP"
    ) -> None:
        """IResolutionReceiver gets what the loop's getaddrinfo finds."""
        from sector._udt.transport import udt_address

        def found(future: asyncio.Future[Any]) -> None:
            receiver.resolutionBegan(None)
            if not future.cancelled() and future.exception() is None:
                for _, _, _, _, (name, _, *more) in future.result():
                    scope = more[-1] if more else 0  # where IPv6 has one
                    receiver.addressResolved(udt_address(f"{name}%{scope}" if scope else name, 0))
            receiver.resolutionComplete()

        work = asyncio.ensure_future(
            self.loop.getaddrinfo(host, None, type=socket.SOCK_DGRAM), loop=self.loop
        )
        work.add_done_callback(found)


def _core() -> SharedCore:
    """Kept by the loop itself, so that both go together; what a program left open when it closed its loop
    goes too."""
    loop: Any = asyncio.get_running_loop()
    found: SharedCore | None = getattr(loop, "_sector_udt", None)
    if found is None:
        found = loop._sector_udt = SharedCore(LoopReactor(loop))
    return found


async def _settle() -> None:
    """So that a loop which ends after the last connection leaves no thread behind."""
    await ensureDeferred(_core().settle()).asFuture(asyncio.get_running_loop())


class UdtAsyncioTransport(asyncio.Transport):
    """An asyncio transport over a UDT connection, for any asyncio.Protocol or BufferedProtocol."""

    _extra: dict[str, Any]  # asyncio.BaseTransport's
    _start_tls_compatible = True  # what loop.start_tls looks for

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol: Any = protocol
        self._udt: Any = None
        self._closing = self._reading_paused = self._writing_paused = self._here = False
        self._low = self._high = 0
        self._rest = memoryview(b"")  # what a BufferedProtocol that has paused did not take

    # what UdtTransport tells its protocol
    def makeConnection(self, transport: UdtTransport) -> None:
        """Connected."""
        self._udt = transport
        self._extra.update(
            peername=(transport.getPeer().host, transport.getPeer().port),
            sockname=(transport.getHost().host, transport.getHost().port),
        )
        transport.registerProducer(self, True)
        self._protocol.connection_made(self)

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the peer."""
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            self._fill(memoryview(data))
        else:
            self._protocol.data_received(data)

    def _fill(self, data: memoryview) -> None:
        """Into the protocol's buffers, as long as it wants to read."""
        self._rest = memoryview(b"")
        while data and not self._closing:
            if self._reading_paused:
                self._rest = data
                return
            if not isinstance(self._protocol, asyncio.BufferedProtocol):  # it has put another in its place
                self._protocol.data_received(bytes(data))
                return
            room = memoryview(self._protocol.get_buffer(len(data))).cast("B")
            if not room:
                raise RuntimeError("get_buffer() gave an empty buffer")
            here = data[: len(room)]
            room[: len(here)] = here
            self._protocol.buffer_updated(len(here))
            data = data[len(here) :]

    def _read_on(self) -> None:
        """What was left comes first."""
        if self._reading_paused or self._closing:
            return
        try:
            self._fill(self._rest)
        except Exception:
            log.failure("a protocol raised where data came; its connection ends")
            self._udt._break(Failure())
            return
        if not self._reading_paused:
            self._udt.resumeProducing()

    def messageReceived(self, data: bytes) -> None:
        """One message from the peer."""
        self._protocol.data_received(data)

    def connectionLost(self, reason: Failure) -> None:
        """The end."""
        self._closing = True
        why: BaseException | None = None
        if reason.check(error.ConnectionAborted, error.ConnectionDone):
            pass  # `abort` is no error to who calls it (Twisted's is a ConnectionLost)
        elif reason.check(error.ConnectionLost):
            why = ConnectionResetError(str(reason.value))
        else:
            why = reason.value  # what the protocol raised
        if why is None and not self._here:
            try:
                self._protocol.eof_received()
            except Exception as raised:
                log.failure("a protocol raised where the end came")
                why = raised
        self._protocol.connection_lost(why)

    # it registers itself as the transport's producer: the writer of this end
    def pauseProducing(self) -> None:
        """The send buffer of the core is full, more waits here."""
        self._look()

    def resumeProducing(self) -> None:
        """Nothing waits here any more."""
        self._look()

    def _look(self) -> None:
        size = self.get_write_buffer_size()
        if self._writing_paused:
            turn, call = size <= self._low, "resume_writing"
        else:
            turn, call = size > self._high, "pause_writing"
        if not turn:
            return
        self._writing_paused = not self._writing_paused
        try:
            getattr(self._protocol, call)()
        except Exception:  # as asyncio's own: said, no more
            log.failure("{call}() of a protocol failed", call=call)

    def stopProducing(self) -> None:
        """The connection ends; connectionLost follows."""

    # asyncio.Transport
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes (copied)."""
        self._udt.write(data)
        if self._high and not self._closing:
            self._look()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As asyncio's: `pause_writing` when more than `high` bytes wait here for room in the core's send
        buffer (0 unless told: as soon as that is full), `resume_writing` at `low` or fewer, at the latest
        when none does. Raises ValueError."""
        if high is None:
            high = 4 * (low or 0)
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._high, self._low = high, low
        if not self._closing:
            self._look()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._low, self._high

    def can_write_eof(self) -> bool:
        """UDT has no half-close."""
        return False

    def write_eof(self) -> None:
        """Raises NotImplementedError: UDT has no half-close."""
        raise NotImplementedError("UDT has no half-close")

    def close(self) -> None:
        """Close when all written bytes are acknowledged."""
        if not self._closing:
            self._closing = self._here = True
            self._udt.unregisterProducer()
            self._udt.loseConnection()

    def abort(self) -> None:
        """Close at once."""
        self._here = self._here or not self._closing
        self._closing = True
        self._udt.unregisterProducer()
        self._udt.abortConnection()

    def _force_close(self, exc: BaseException | None) -> None:
        """What asyncio's TLS calls when it fails: the end, and this is why."""
        if not self._closing and exc is not None:
            self._closing = True
            self._udt.unregisterProducer()
            self._udt._break(Failure(exc))
        else:
            self.abort()

    def is_closing(self) -> bool:
        """Closed, or about to be."""
        return self._closing

    def pause_reading(self) -> None:
        """Take no more; the peer's window closes."""
        self._reading_paused = True
        self._udt.pauseProducing()

    def resume_reading(self) -> None:
        """Read on."""
        self._reading_paused = False
        if self._rest:
            self._udt._core.reactor.callLater(0, self._read_on)
        else:
            self._udt.resumeProducing()

    def is_reading(self) -> bool:
        """Not paused, not closed."""
        return not (self._reading_paused or self._closing)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another protocol."""
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        """Bytes that the core has not taken yet."""
        return sum(map(len, self._udt._out))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """ "peername" and "sockname" as (host, port); "udt_stats" the connection's statistics."""
        if name == "udt_stats":
            return self._udt.stats()
        return self._extra.get(name, default)


class _Factory:
    """Twisted's factory for asyncio's protocols."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol], options: UdtOptions) -> None:
        self._make, self._options = make, options

    def doStart(self) -> None:
        """Nothing to prepare."""

    def doStop(self) -> None:
        """Nothing to clear."""

    def buildProtocol(self, address: object) -> UdtAsyncioTransport:
        """One connection."""
        protocol = self._make()
        if self._options.kind == MESSAGE and isinstance(protocol, asyncio.BufferedProtocol):
            raise TypeError("a BufferedProtocol takes a stream; messages need an asyncio.Protocol")
        return UdtAsyncioTransport(protocol)


async def _begun(attempt: Any, undo: Callable[[Any], object]) -> Any:
    """What an endpoint connected or opened. Of an attempt that fails or is cancelled nothing is left then:
    what it has made already, before its caller could hear of it, is undone."""
    made: list[Any] = []

    def keep(result: Any) -> Any:
        made.append(result)
        return result

    try:
        return await _await(attempt.addCallback(keep))
    except BaseException:
        for result in made:
            undo(result)
        await _settle()
        raise


async def _await(deferred: Any) -> Any:
    try:
        return await deferred.asFuture(asyncio.get_running_loop())
    except error.ConnectionRefusedError as refused:
        raise ConnectionRefusedError(str(refused.args[0])) from None
    except error.TimeoutError as late:
        raise TimeoutError(str(late.args[0])) from None
    except error.DNSLookupError as unknown:
        raise socket.gaierror(str(unknown.args[0])) from None
    except (error.ConnectError, CannotListen) as failed:
        raise OSError(str(failed.args[0] if isinstance(failed, error.ConnectError) else failed)) from None


async def create_udt_connection(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    options: UdtOptions = DEFAULTS,
    *,
    local_port: int | None = None,
) -> tuple[UdtAsyncioTransport, Any]:
    """Connect, as `loop.create_connection`; with `local_port` by rendezvous from that port. With options of
    the kind MESSAGE each `write` is one message, and each `data_received` gets one whole. Raises
    ConnectionRefusedError, TimeoutError, OSError, ValueError for a port that is none, TypeError for a
    BufferedProtocol that would get messages."""
    factory = _Factory(protocol_factory, options)
    if local_port is None:
        end: Any = UdtClientEndpoint(_core(), host, port, options)
    else:
        end = UdtRendezvousEndpoint(_core(), local_port, host, port, options)
    transport: UdtAsyncioTransport = await _begun(end.connect(factory), UdtAsyncioTransport.abort)
    return transport, transport.get_protocol()


@asynccontextmanager
async def open_udt(
    host: str,
    port: int,
    options: UdtOptions = DEFAULTS,
    *,
    local_port: int | None = None,
    limit: int = LIMIT,
) -> AsyncIterator[Streams]:
    """A stream as (reader, writer); closed at the end of the block, when all written is acknowledged
    (at once if the block raises, or if it is cancelled while it waits for that). `local_port`: by rendezvous
    from that port. Raises as create_udt_connection.

    >>> async with open_udt("192.0.2.7", 9000) as (reader, writer):     # doctest: +SKIP
    ...     writer.write(b"hello")
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await create_udt_connection(lambda: protocol, host, port, options, local_port=local_port)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
        writer.close()
        await writer.wait_closed()
    except BaseException:
        transport.abort()
        raise
    finally:
        await _settle()


class UdtServer:
    """A listener of `serve_udt`, used as asyncio's; an async context manager that closes it. `address` is
    (host, port); there are no `sockets`."""

    def __init__(self, listening: UdtListeningPort) -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._serving: asyncio.Future[None] | None = None
        self._closed: asyncio.Task[None] | None = None
        address = listening.getHost()
        self.address = (address.host, address.port)

    def close(self) -> asyncio.Future[None]:
        """No new connections from now on; those that are open go on. Who wants to know when the listener is
        gone awaits what this returns."""
        if self._closed is None:
            self._closed = self._loop.create_task(self._stop(self._listening.stopListening()))
            if self._serving is not None and not self._serving.done():
                self._serving.cancel()
        return asyncio.shield(self._closed)

    async def _stop(self, stopping: Any) -> None:
        await stopping.asFuture(self._loop)
        await _settle()

    def is_serving(self) -> bool:
        """Not closed."""
        return self._closed is None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it belongs to."""
        return self._loop

    async def start_serving(self) -> None:
        """It serves from the beginning."""

    async def serve_forever(self) -> None:
        """Until this is cancelled, which closes the server, or the server is closed: ends with
        CancelledError. Raises RuntimeError when it is closed already, or somebody else waits here."""
        if self._serving is not None or self._closed is not None:
            raise RuntimeError("the server is closed" if self._closed else "serve_forever() runs already")
        self._serving = self._loop.create_future()
        try:
            await self._serving
        finally:
            self._serving = None
            await self.close()

    async def wait_closed(self) -> None:
        """After close: until the last connection has ended."""
        await self._listening.portClosed().asFuture(asyncio.get_running_loop())
        await _settle()

    async def __aenter__(self) -> UdtServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def create_udt_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    port: int,
    host: str = "0.0.0.0",
    options: UdtOptions = DEFAULTS,
) -> UdtServer:
    """Listen, as `loop.create_server`. Raises OSError."""
    end = UdtServerEndpoint(_core(), port, host, options)
    return UdtServer(
        await _begun(end.listen(_Factory(protocol_factory, options)), UdtListeningPort.stopListening)
    )


async def serve_udt(
    connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
    port: int,
    host: str = "0.0.0.0",
    options: UdtOptions = DEFAULTS,
    *,
    limit: int = LIMIT,
) -> UdtServer:
    """Listen, as `asyncio.start_server`: `connected(reader, writer)` for each connection. Raises OSError."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit, loop), connected, loop)

    return await create_udt_server(protocol, port, host, options)
