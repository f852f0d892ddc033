"""`sector udtcat`: netcat over plain UDT, with any UDT peer (design section 9)."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import termios
import threading
from collections import deque
from typing import Any

from twisted.internet import defer
from twisted.internet import error as twisted_errors
from twisted.internet.protocol import Factory, Protocol

from sector._udt.context import Core
from sector._udt.endpoints import CannotListen, UdtClientEndpoint, UdtRendezvousEndpoint, UdtServerEndpoint
from sector._udt.errors import CoreError
from sector._udt.limits import sending
from sector._udt.reasons import PeerVanished, UdtAuthError
from sector._udt.transport import MESSAGE, UdtOptions
from sector.cli import ends
from sector.cli.udtcat_live import LiveLine
from sector.clock import steady
from sector.errors import Denied, LocalIO, PortInUse, SectorError, Unreachable, UsageError
from sector.threads import start_deaf

READ_BYTES = 1 << 18
OUT_BOUND = 8 << 20
GOING_S = 2.0  # for telling the peer, after Ctrl-C
MORE_S = 0.5  # for input that was on its way when the peer closed


class NoFarewell(Unreachable):
    """The sender fell silent after all that came had been received; whether it was all is not known."""

    def __init__(self, received: int, confirmed: bool) -> None:
        last = "" if confirmed else " (its last confirmation is missing too)"
        super().__init__(
            f"{received} bytes received, nothing known to be missing, but no farewell came{last}: "
            "the sender crashed, or its farewell was lost (UDT sends only one)",
            hint="check the length",
        )


class Stdin:
    """Reads a descriptor in a thread of its own; at most one chunk waits."""

    def __init__(self, reactor: Any, fd: int, chunk: int, whole: bool) -> None:
        self._reactor, self._fd, self._chunk, self._whole = reactor, fd, chunk, whole
        self._go = threading.Semaphore(0)
        self._asked: defer.Deferred[bytes] | None = None
        what = os.fstat(fd)
        self.is_file = stat.S_ISREG(what.st_mode) or stat.S_ISBLK(what.st_mode)
        self.is_empty_file = stat.S_ISREG(what.st_mode) and what.st_size == 0
        self.is_terminal = os.isatty(fd)
        self.ended = False  # what was read last is its end
        self.failed = ""
        start_deaf(threading.Thread(target=self._run_thd, name="stdin", daemon=True))

    def read(self) -> defer.Deferred[bytes]:
        """The next chunk, b"" at the end and where it cannot be read, which `failed` then tells."""
        self._asked = defer.Deferred()
        self._go.release()
        return self._asked

    def waiting(self) -> int:
        """Bytes that could be read now."""
        try:
            return int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:  # what has none to count
            return 0

    def _run_thd(self) -> None:
        while True:
            self._go.acquire()
            try:
                data = self._read_thd()
            except OSError as error:
                self.failed, data = error.strerror or str(error), b""
            self._reactor.callFromThread(self._give, data)
            if not data:
                return

    def _read_thd(self) -> bytes:
        parts = []
        left = self._chunk
        while left:
            part = os.read(self._fd, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
            if not self._whole:
                break
        return b"".join(parts)

    def _give(self, data: bytes) -> None:
        asked, self._asked = self._asked, None
        self.ended = not data
        if asked is not None:
            asked.callback(data)


class Stdout:
    """Writes a descriptor in a thread of its own; the connection is paused above a bound."""

    def __init__(self, reactor: Any, fd: int) -> None:
        self._reactor, self._fd = reactor, fd
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._ready = threading.Condition()
        self._ended = False
        self.transport: Any = None
        self.waits = False  # for the reader of what we write
        self._waits_since = 0.0
        self.waited_s = 0.0
        self.failed: str = ""
        self.done: defer.Deferred[None] = defer.Deferred()
        start_deaf(threading.Thread(target=self._run_thd, name="stdout", daemon=True))

    def write(self, data: bytes) -> None:
        """Queue for writing."""
        with self._ready:
            self._queue.append(data)
            self._bytes += len(data)
            full = self._bytes > OUT_BOUND
            self._ready.notify()
        if full and self.transport is not None:
            if not self.waits:
                self.waits, self._waits_since = True, self._reactor.seconds()
            self.transport.pauseProducing()

    def end(self) -> None:
        """No more comes; `done` fires when all is written."""
        with self._ready:
            self._ended = True
            self._ready.notify()

    def _run_thd(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._ended:
                    self._ready.wait()
                if not self._queue:
                    break
                data = self._queue.popleft()
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                self.failed = error.strerror or str(error)
                break
            with self._ready:
                before, self._bytes = self._bytes, self._bytes - len(data)
                resume = before > OUT_BOUND // 2 >= self._bytes
            if resume:
                self._reactor.callFromThread(self._resume)
        self._reactor.callFromThread(self._finish)

    def _resume(self) -> None:
        if self.waits:
            self.waits = False
            self.waited_s += self._reactor.seconds() - self._waits_since
        if self.transport is not None:
            self.transport.resumeProducing()

    def _finish(self) -> None:
        if self.failed and self.transport is not None:
            self.transport.abortConnection()
        self.done.callback(None)


class Cat(Protocol):
    """Standard input to the peer, what comes to standard output."""

    def __init__(self, reactor: Any, source: Stdin, sink: Stdout, live: bool) -> None:
        self._reactor, self._source, self._sink, self._show = reactor, source, sink, live
        self._live: LiveLine | None = None
        self._writable: defer.Deferred[None] | None = None
        self._paused = False
        self.sent = self.received = self.dropped = 0
        self.cut = False  # what was to be sent cannot be read to its end
        self._more: defer.Deferred[bytes] = defer.Deferred()  # the first input after the end
        self.closed: defer.Deferred[Any] = defer.Deferred()
        self.stats: dict[str, int] = {}
        self._since = self._lasted_s = 0.0

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self._sink.transport = transport
        self._since = self._reactor.seconds()
        transport.registerProducer(self, True)
        if self._show:
            self._live = LiveLine(self._reactor, transport.stats, lambda: self._sink.waits)
        defer.ensureDeferred(self._pump())

    async def _pump(self) -> None:
        transport: Any = self.transport
        while True:
            data = await self._source.read()
            if self.closed.called:
                if not self._more.called:
                    self._more.callback(data)
                return
            if not data:
                break
            self.sent += len(data)
            transport.write(data)
            if self._paused:
                self._writable = defer.Deferred()
                await self._writable
        if self._source.failed:
            if self._source.is_file or self.sent:
                self.cut = True
                self.break_off()
                return
            # as nohup leaves it to who only receives
            os.write(2, f"sector: standard input gives nothing: {self._source.failed}\n".encode())
        transport.unregisterProducer()
        if self.sent or self._source.is_empty_file:
            transport.loseConnection()

    def pauseProducing(self) -> None:
        """The send buffer is full."""
        self._paused = True

    def resumeProducing(self) -> None:
        """There is room again."""
        self._paused = False
        waiting, self._writable = self._writable, None
        if waiting is not None:
            waiting.callback(None)

    def stopProducing(self) -> None:
        """The connection ended."""

    def dataReceived(self, data: bytes) -> None:
        self.received += len(data)
        self._sink.write(data)

    messageReceived = dataReceived

    async def had_more(self) -> bool:
        """After the end: whether this end had more to say. Input that comes just then counts; a source that
        says nothing, as a terminal, does not."""
        if self.sent > self.stats.get("bytes_sent", 0) or self._source.waiting():
            return True
        if self._source.ended or self._source.is_terminal:
            return False
        timer = self._reactor.callLater(MORE_S if self.sent else 0, self._more.callback, b"")
        data = await self._more
        if timer.active():
            timer.cancel()
        return bool(data)

    def limited(self) -> dict[str, float]:
        """What kept this end from being faster, in shares of the time. Of an end that only received the core
        knows but that it had nothing to send: either its output took nothing, or more did not come."""
        if self.sent or not self.received:
            return sending(self.stats)
        output = min(1.0, self._sink.waited_s / self._lasted_s) if self._lasted_s > 0 else 0.0
        shares = {"output": output, "peer": 1.0 - output}
        return {name: share for name, share in shares.items() if share >= 0.005}

    def break_off(self) -> None:
        """Ends without having said all."""
        transport: Any = self.transport
        if transport is not None:
            transport.breakOff()

    def connectionLost(self, reason: Any = None) -> None:
        transport: Any = self.transport
        self.stats = transport.final_stats
        self._lasted_s = self._reactor.seconds() - self._since
        self.dropped = transport.discarded + self.stats.get("bytes_unread", 0)
        if self._live is not None:
            self._live.stop()
        self._sink.transport = None
        self._sink.end()
        self.closed.callback(reason.value)


class _Once(Factory):
    """One connection, then no more."""

    noisy = False

    def __init__(self, protocol: Cat) -> None:
        self._protocol: Cat | None = protocol
        self.connected: defer.Deferred[Cat] = defer.Deferred()

    def buildProtocol(self, addr: object) -> Cat | None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None and not self.connected.called:
            self.connected.callback(protocol)
        return protocol


def _anywhere() -> str:
    """All addresses of this machine, IPv4 too; where the kernel has no IPv6, those of IPv4."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"


async def _meet(
    core: Core, cat: Cat, listen: int | None, peer: tuple[str, int] | None, options: UdtOptions
) -> Any:
    factory = _Once(cat)
    if peer is None:
        listening = await UdtServerEndpoint(core, listen or 0, _anywhere(), options).listen(factory)
        await factory.connected
        return listening
    if listen is None:
        await UdtClientEndpoint(core, *peer, options).connect(factory)
    else:
        await UdtRendezvousEndpoint(core, listen, *peer, options).connect(factory)
    return None


async def _run(
    reactor: Any,
    source: Stdin,
    listen: int | None,
    peer: tuple[str, int] | None,
    options: UdtOptions,
    live: bool,
) -> Cat:
    core = Core(reactor)
    sink = Stdout(reactor, 1)
    cat = Cat(reactor, source, sink, live)
    try:
        listening = await _meet(core, cat, listen, peer, options)
        reason = await cat.closed
        await sink.done
        if listening is not None:
            await listening.stopListening()
        if cat.cut:
            raise LocalIO(f"cannot read standard input: {source.failed}")
        if sink.failed:
            raise SectorError(f"cannot write standard output: {sink.failed}")
        if isinstance(reason, PeerVanished) and cat.received:
            raise NoFarewell(cat.received, reason.confirmed)
        if not isinstance(reason, twisted_errors.ConnectionDone):
            why = reason.args[0] if reason.args else reason  # without Twisted's prose around it
            raise Unreachable(f"{why}; {cat.received} bytes had been received", hint="")
        if await cat.had_more():
            raise Unreachable(
                f"closed by the peer before the end of input; {cat.received} bytes had been received",
                hint="UDT has no half-close: let one end stay silent",
            )
        if cat.dropped:
            raise SectorError(
                f"{cat.dropped} bytes came after the end of input and are lost, "
                f"behind {cat.received} received",
                hint="UDT has no half-close: let one end stay silent",
            )
        return cat
    except CannotListen as error:
        raise (PortInUse if error.name == "INUSE" else SectorError)(str(error)) from None
    except CoreError as error:
        raise SectorError(str(error)) from None
    except defer.CancelledError:
        cat.break_off()
        raise
    finally:
        await core.stop()


def _not_connected(error: twisted_errors.ConnectError, options: UdtOptions) -> SectorError:
    """Our words for an attempt that failed; Twisted's prose stays out."""
    text = str(error.args[0]) if error.args and error.args[0] else str(error)
    if isinstance(error, twisted_errors.ConnectBindError):
        return (PortInUse if "in use" in text else SectorError)(text)
    if isinstance(error, UdtAuthError):
        return Denied(text, hint="both ends need the same --key-file")
    if isinstance(error, twisted_errors.ConnectionRefusedError):
        if "refuses" in text:
            return Unreachable(text, hint="both ends need --message, or neither")
        return Unreachable(text, hint="start the other end first, such as: sector udtcat -l PORT")
    if isinstance(error, twisted_errors.TimeoutError):
        return Unreachable(text, hint="check the address, and that nothing on the way blocks UDP")
    if options.cc and "invalid argument" in text:
        return UsageError(f"unknown congestion control {options.cc!r}")
    return Unreachable(text)


def udtcat_main(
    listen: int | None,
    peer: tuple[str, int] | None,
    options: UdtOptions,
    *,
    message_size: int,
    stats: bool,
    trace: str | None = None,
) -> None:
    """Run until one side closes; `trace`: a file for what happened, as qlog-like JSON. Raises SectorError."""
    from twisted.internet import reactor as installed
    from twisted.python.failure import Failure

    reactor: Any = steady(installed)
    outcome: list[Any] = []
    message = options.kind == MESSAGE
    source = Stdin(reactor, 0, message_size if message else READ_BYTES, message)

    def end(result: Any) -> None:
        outcome.append(result)
        reactor.stop()

    told: list[int] = []

    def interrupt(number: int) -> None:
        if told:
            os._exit(128 + told[0])
        told.append(number)
        reactor.callFromThread(lambda: work.cancel())
        reactor.callFromThread(reactor.callLater, GOING_S, reactor.stop)

    with ends.handled(interrupt):  # before it listens: who sees that may end it at once
        work = defer.ensureDeferred(_run(reactor, source, listen, peer, options, stats))
        reactor.callWhenRunning(work.addBoth, end)
        reactor.run(installSignalHandlers=False)
    result = outcome[0] if outcome else None
    if trace is not None and options.trace is not None:
        try:
            options.trace.write(trace, "sector udtcat", "server" if peer is None else "client")
        except OSError as error:
            raise LocalIO(f"the trace cannot be written to {trace}: {error.strerror}") from None
    if told:
        os._exit(128 + told[0])  # a thread may wait for standard input or output
    if isinstance(result, Failure):
        if isinstance(result.value, twisted_errors.ConnectError):
            raise _not_connected(result.value, options)
        result.raiseException()
    if stats and isinstance(result, Cat):
        shares = {name: round(share, 4) for name, share in result.limited().items()}
        line = {"sent": result.sent, "received": result.received, **result.stats, "limited": shares}
        os.write(2, json.dumps(line).encode() + b"\n")
