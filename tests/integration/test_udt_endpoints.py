"""UDT as Twisted programs use it: endpoint strings, their errors, producers and consumers, bounded memory
behind a slow reader."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from twisted.internet import defer, error, reactor, task
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import FileSender, LineReceiver
from twisted.python.failure import Failure
from twisted.trial import unittest

from sector._udt.shared import shared_core
from sector._udt.transport import CONGESTION_CONTROL
from sector.cli.main import cli
from sector.ports import free_ports
from sector.udt import (
    UdtAuthError,
    UdtConnectionLost,
    UdtOptions,
    UdtServerEndpoint,
)


class Ends(Protocol):
    """Keeps what comes; `closed` fires with the reason."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed: defer.Deferred[Exception] = defer.Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        self.closed.callback(reason.value)


class Server(Factory):
    """One protocol after the other by `make`; remembers them."""

    def __init__(self, make: Any = Ends) -> None:
        self.make, self.made, self.first = make, [], defer.Deferred()
        self.starts = self.stops = 0

    def doStart(self) -> None:
        self.starts += 1

    def doStop(self) -> None:
        self.stops += 1

    def buildProtocol(self, addr: object) -> Any:
        self.addr = addr
        protocol = self.make()
        self.made.append(protocol)
        if not self.first.called:
            reactor.callLater(0, self.first.callback, protocol)
        return protocol


class Shout(LineReceiver):
    """An unchanged protocol of Twisted's."""

    def lineReceived(self, line: bytes) -> None:
        self.sendLine(line.upper())


async def over(listening: Any) -> None:
    """No listener, no connection, no port any more."""
    await listening.stopListening()
    await listening.portClosed()


class Case(unittest.TestCase):
    """The shared core is gone after each test."""

    timeout = 60

    def tearDown(self) -> Any:
        return defer.ensureDeferred(shared_core(reactor).settle())


class StringTests(Case):
    """clientFromString and serverFromString know `udt:`."""

    async def connect(self, server: str, client: str, factory: Server) -> tuple[Any, Any]:
        """A listening port and a connected Ends."""
        listening = await serverFromString(reactor, server).listen(factory)
        port = listening.getHost().port
        end = await clientFromString(reactor, client.format(port=port)).connect(Factory.forProtocol(Ends))
        return listening, end

    async def test_an_unchanged_protocol(self) -> None:
        factory = Server(Shout)
        listening, end = await self.connect("udt:0:interface=127.0.0.1", "udt:127.0.0.1:{port}", factory)
        end.transport.write(b"abc\r\ndef\r\n")
        while end.data.count(b"\n") < 2:
            await task.deferLater(reactor, 0.01)
        self.assertEqual(bytes(end.data), b"ABC\r\nDEF\r\n")
        self.assertIsInstance(factory.addr, IPv4Address)
        self.assertEqual(end.transport.getHost(), factory.addr)
        self.assertEqual(end.transport.getPeer(), IPv4Address("UDP", "127.0.0.1", listening.getHost().port))
        end.transport.loseConnection()
        self.assertIsInstance(await end.closed, error.ConnectionDone)
        await over(listening)
        self.assertEqual((factory.starts, factory.stops), (1, 1))

    async def test_a_name_and_ipv6(self) -> None:
        listening, end = await self.connect(
            "udt:0:interface=\\:\\:1", "udt:host=\\:\\:1:port={port}:timeout=5", Server()
        )
        self.assertEqual(end.transport.getPeer(), IPv6Address("UDP", "::1", listening.getHost().port))
        end.transport.abortConnection()
        self.assertIsInstance(await end.closed, error.ConnectionAborted)
        await over(listening)
        factory = Server()
        listening, end = await self.connect("udt:0", "udt:localhost:{port}", factory)
        here, there = end.transport, (await factory.first).transport
        self.assertEqual(here.getHost(), there.getPeer())  # both are bound to all addresses
        self.assertEqual(there.getHost(), here.getPeer())
        self.assertEqual(here.getHost().host, "127.0.0.1")
        end.transport.loseConnection()
        await end.closed
        await over(listening)

    async def test_rendezvous(self) -> None:
        one, two = free_ports(2)
        strings = [
            f"udt:rendezvous=127.0.0.1\\:{b}:local={a}:tag=7:timeout=10" for a, b in ((one, two), (two, one))
        ]
        ends = [clientFromString(reactor, text).connect(Factory.forProtocol(Ends)) for text in strings]
        first, second = await defer.gatherResults(ends)
        first.transport.write(b"met")
        first.transport.loseConnection()
        await second.closed
        self.assertEqual(bytes(second.data), b"met")
        await first.closed

    def test_wrong_strings_say_what_is_wrong(self) -> None:
        for text, word in (
            ("udt:1.2.3.4", "needs port"),
            ("udt:1.2.3.4:99999", "within 1 and 65535"),
            ("udt:1.2.3.4:9000:speed=3", "no option 'speed'"),
            ("udt:1.2.3.4:9000:mss=abc", "mss"),
            ("udt:1.2.3.4:9000:kind=both", "neither stream nor message"),
            ("udt:1.2.3.4:9000:cc=reno", "'reno' is none of bbr, udt, cubic, fixed"),
            ("udt:rendezvous=1.2.3.4:local=9", "HOST:PORT"),
            ("udt:rendezvous=1.2.3.4\\:9", "needs local"),
            ("udt:1.2.3.4:9000:8000", "too much"),
        ):
            with self.assertRaises(ValueError) as caught:
                clientFromString(reactor, text)
            self.assertIn(word, str(caught.exception))
        self.assertRaises(ValueError, serverFromString, reactor, "udt:no")

    def test_a_wrong_value_is_told_under_the_name_of_its_option(self) -> None:
        for parse, text, words in (
            (clientFromString, "udt:h:9:timeout=x", "timeout: 'x' is not a number"),
            (clientFromString, "udt:h:9:kind=both", "kind: 'both' is neither stream nor message"),
            (clientFromString, "udt:h:9:sendBuffer=1", "sendBuffer: 1 is not within 65536 and 2147483648"),
            (clientFromString, "udt:rendezvous=h:local=7", "rendezvous: 'h' is not HOST:PORT"),
            (clientFromString, "udt:rendezvous=h\\:9:local=x", "local: 'x' is not a whole number"),
            (clientFromString, "udt:rendezvous=h\\:9:local=7:tag=x", "tag: 'x' is not a whole number"),
            (serverFromString, "udt:9:backlog=0", "backlog: 0 is not within 1 and 65535"),
            (serverFromString, "udt:70000", "port: 70000 is not within 0 and 65535"),
        ):
            with self.assertRaises(ValueError) as caught:
                parse(reactor, text)
            self.assertEqual(str(caught.exception), words)

    async def test_listeners_leave_their_connections(self) -> None:
        factory = Server()
        listening, end = await self.connect("udt:0:interface=127.0.0.1", "udt:127.0.0.1:{port}", factory)
        far = await factory.first
        await listening.stopListening()
        late = clientFromString(reactor, f"udt:127.0.0.1:{listening.getHost().port}")
        with self.assertRaises(error.ConnectionRefusedError):
            await late.connect(Factory.forProtocol(Ends))
        end.transport.write(b"still here")
        end.transport.loseConnection()
        await far.closed
        self.assertEqual(bytes(far.data), b"still here")
        await end.closed
        await over(listening)


class KeyTests(Case):
    """A key seals all, and nobody else gets in."""

    def key(self, text: bytes, mode: int = 0o600) -> str:
        """A key file, as a value of an endpoint string."""
        handle, path = tempfile.mkstemp()
        self.addCleanup(os.remove, path)
        with open(handle, "wb") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    async def test_both_have_it(self) -> None:
        key = os.urandom(32)
        factory = Server(Shout)
        server = serverFromString(reactor, f"udt:0:interface=127.0.0.1:keyFile={self.key(key)}")
        listening = await server.listen(factory)
        where = f"udt:127.0.0.1:{listening.getHost().port}"
        same = self.key(key.hex().encode() + b"\n")
        end = await clientFromString(reactor, f"{where}:keyFile={same}").connect(Factory.forProtocol(Ends))
        end.transport.write(b"secret\r\n")
        while b"\n" not in end.data:
            await task.deferLater(reactor, 0.01)
        self.assertEqual(bytes(end.data), b"SECRET\r\n")
        end.transport.loseConnection()
        await end.closed
        for other in (f":keyFile={self.key(os.urandom(32))}", ""):
            with self.assertRaises(UdtAuthError):
                await clientFromString(reactor, where + other).connect(Factory.forProtocol(Ends))
        self.assertEqual(len(factory.made), 1)
        await over(listening)

    def test_bad_key_files(self) -> None:
        for path, word in (
            (self.key(b"short"), "neither 32 bytes"),
            (self.key(bytes(32), 0o644), "others may read"),
            ("/no/such/file", "cannot read"),
        ):
            with self.assertRaises(ValueError) as caught:
                clientFromString(reactor, f"udt:127.0.0.1:9:keyFile={path}")
            self.assertIn(word, str(caught.exception))


class ErrorTests(Case):
    """Twisted's exceptions with our words."""

    async def test_nobody_listens(self) -> None:
        end = clientFromString(reactor, f"udt:127.0.0.1:{free_ports(1)[0]}")
        with self.assertRaises(error.ConnectionRefusedError) as caught:
            await end.connect(Factory.forProtocol(Ends))
        self.assertIn("nothing listens for UDT at 127.0.0.1", caught.exception.args[0])

    async def test_nobody_answers(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            end = clientFromString(reactor, f"udt:127.0.0.1:{silent.getsockname()[1]}:timeout=0.3")
            with self.assertRaises(error.TimeoutError) as caught:
                await end.connect(Factory.forProtocol(Ends))
        self.assertIn("nobody answers at 127.0.0.1", caught.exception.args[0])

    async def test_an_unknown_name(self) -> None:
        with self.assertRaises(error.DNSLookupError):
            await clientFromString(reactor, "udt:no.such.host.invalid:9000").connect(Factory())

    async def test_a_name_that_can_be_none(self) -> None:
        """At once: nobody is asked."""
        for host in "a..b", "x" * 64 + ".org":
            with self.assertRaisesRegex(error.DNSLookupError, "no name of a host"):
                await clientFromString(reactor, f"udt:{host}:9000").connect(Factory())

    async def test_an_attempt_can_be_cancelled(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            end = clientFromString(reactor, f"udt:127.0.0.1:{silent.getsockname()[1]}")
            attempt = end.connect(Factory.forProtocol(Ends))
            reactor.callLater(0.05, attempt.cancel)
            with self.assertRaises(error.ConnectingCancelledError):
                await attempt
            await task.deferLater(reactor, 0.1)

    async def test_a_port_in_use(self) -> None:
        first = await serverFromString(reactor, "udt:0").listen(Server())
        with self.assertRaises(error.CannotListenError) as caught:
            await serverFromString(reactor, f"udt:{first.getHost().port}").listen(Server())
        self.assertIn("in use", str(caught.exception))
        await over(first)

    async def test_an_interface_is_an_address(self) -> None:
        listening = await serverFromString(reactor, "udt:0:interface=localhost").listen(Server())
        self.assertEqual(listening.getHost().host, "127.0.0.1")
        await over(listening)
        for wrong in ("nonsense", "fe80\\:\\:1%nosuch"):
            with self.assertRaises(error.CannotListenError):
                await serverFromString(reactor, f"udt:0:interface={wrong}").listen(Server())
        with self.assertRaises(error.ConnectError):
            await clientFromString(reactor, "udt:fe80\\:\\:1%nosuch:9").connect(Server())
        await shared_core(reactor).settle()
        self.assertIsNone(shared_core(reactor)._core)  # no attempt left something behind

    def test_wrong_options_are_told_at_once(self) -> None:
        for wrong in (
            {"cc": "reno"},
            {"kind": 7},
            {"key": b"short"},
            {"mss": 70_000},
            {"mss": -1},
            {"max_bandwidth": -5},
            {"connect_timeout_s": 1e9},
            {"connect_timeout_s": float("nan")},
            {"idle_timeout_s": -1},
            {"send_buffer": 1 << 40},
            {"tag": -1},
        ):
            with self.assertRaises(ValueError):
                UdtOptions(**wrong)
        told = CliRunner().invoke(cli, ["udtcat", "--cc", "reno", "127.0.0.1", "9"])
        self.assertEqual(told.exit_code, 2)
        self.assertIn("'reno' is not one of 'bbr'", told.output)

    async def test_every_congestion_control_is_there(self) -> None:
        for name in CONGESTION_CONTROL:
            listening = await serverFromString(reactor, f"udt:0:cc={name}").listen(Server())
            await over(listening)

    async def test_a_peer_that_aborts(self) -> None:
        factory = Server()
        listening = await serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(factory)
        client = clientFromString(reactor, f"udt:127.0.0.1:{listening.getHost().port}")
        end = await client.connect(Factory.forProtocol(Ends))
        far = await factory.first
        far.transport.pauseProducing()
        for _ in range(100):
            end.transport.write(bytes(1_000_000))
        await task.deferLater(reactor, 0.2)
        far.transport.abortConnection()
        reason = await end.closed
        self.assertIsInstance(reason, UdtConnectionLost)
        await far.closed
        await over(listening)


class Source:
    """A push producer that writes without an end of its own; `most` = what it wrote while not paused."""

    def __init__(self, transport: Any, total: int, chunk: int) -> None:
        self.transport, self.left, self.chunk = transport, total, bytes(chunk)
        self.paused, self.pauses = False, 0

    def start(self) -> None:
        """Register and write."""
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def pauseProducing(self) -> None:
        self.paused = True
        self.pauses += 1

    def resumeProducing(self) -> None:
        self.paused = False
        reactor.callLater(0, self._write)

    def stopProducing(self) -> None:
        self.paused = True

    def _write(self) -> None:
        for _ in range(16):
            if self.paused or not self.left:
                break
            size = min(self.left, len(self.chunk))
            self.left -= size
            self.transport.write(self.chunk[:size])
        if not self.left:
            self.transport.unregisterProducer()
            self.transport.loseConnection()
        elif not self.paused:
            reactor.callLater(0, self._write)


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Slow(Protocol):
    """Counts; after each 16 MB it takes nothing for a while."""

    def __init__(self) -> None:
        self.count = self.breaks = 0
        self.closed: defer.Deferred[Exception] = defer.Deferred()

    def dataReceived(self, data: bytes) -> None:
        before, self.count = self.count, self.count + len(data)
        if before >> 24 != self.count >> 24:
            self.breaks += 1
            transport: Any = self.transport
            transport.pauseProducing()
            reactor.callLater(0.02, transport.resumeProducing)

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        self.closed.callback(reason.value)


class ProducerTests(Case):
    """Back-pressure from end to end."""

    timeout = 120

    async def pair(self, make: Any, buffers: int = 4 << 20) -> tuple[Any, Any, Any]:
        """(listening port, far protocol, near Ends) with small buffers."""
        factory = Server(make)
        options = UdtOptions(send_buffer=buffers, receive_buffer=buffers)
        listening = await UdtServerEndpoint(reactor, 0, "127.0.0.1", options).listen(factory)
        text = f"udt:127.0.0.1:{listening.getHost().port}:sendBuffer={buffers}:receiveBuffer={buffers}"
        end = await clientFromString(reactor, text).connect(Factory.forProtocol(Ends))
        return listening, await factory.first, end

    async def test_a_gigabyte_to_a_slow_reader_in_bounded_memory(self) -> None:
        total = 1 << 30
        listening, far, end = await self.pair(Slow)
        source = Source(end.transport, total, 1 << 16)
        most, before = 0, resident()
        source.start()
        while not far.closed.called:
            most = max(most, resident() - before)
            await task.deferLater(reactor, 0.05)
        await defer.gatherResults([far.closed, end.closed])
        self.assertEqual(far.count, total)
        self.assertEqual(far.breaks, total >> 24)
        self.assertGreater(source.pauses, 10)
        self.assertLess(most, 64 << 20)
        await over(listening)

    async def test_a_paused_reader_pauses_the_producer(self) -> None:
        listening, far, end = await self.pair(Ends)
        far.transport.pauseProducing()
        source = Source(end.transport, 200 << 20, 1 << 16)
        source.start()
        await task.deferLater(reactor, 0.5)
        self.assertTrue(source.paused)
        left = source.left
        await task.deferLater(reactor, 0.3)
        self.assertEqual(source.left, left)
        self.assertGreater(left, 180 << 20)
        far.transport.resumeProducing()
        await defer.gatherResults([far.closed, end.closed])
        self.assertEqual(len(far.data), 200 << 20)
        await over(listening)

    async def test_a_pull_producer_is_asked_when_there_is_room(self) -> None:
        listening, far, end = await self.pair(Ends, 1 << 20)
        data = os.urandom(30_000_000)
        await FileSender().beginFileTransfer(io.BytesIO(data), end.transport)
        end.transport.loseConnection()
        await defer.gatherResults([far.closed, end.closed])
        self.assertEqual(bytes(far.data), data)
        await over(listening)

    async def test_a_producer_hears_of_the_end(self) -> None:
        listening, far, end = await self.pair(Ends)
        source = Source(end.transport, 1 << 40, 1 << 16)
        source.start()
        await task.deferLater(reactor, 0.1)
        end.transport.abortConnection()
        await end.closed
        self.assertTrue(source.paused)
        late = Source(end.transport, 100, 10)
        end.transport.registerProducer(late, True)
        self.assertTrue(late.paused)
        await far.closed
        await over(listening)

    async def test_one_write_much_larger_than_the_buffers(self) -> None:
        listening, far, end = await self.pair(Ends, 1 << 20)
        data = os.urandom(50_000_000)
        end.transport.write(data)
        end.transport.loseConnection()
        await defer.gatherResults([far.closed, end.closed])
        self.assertEqual(bytes(far.data), data)
        await over(listening)
