"""A UDT transport does what Twisted's own transports do, where protocols rely on it: producers that outlive
loseConnection, protocols that raise, aborts, ends while nobody reads, the end of the reactor."""

from __future__ import annotations

import io
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from sector._udt._ffi import ffi, lib
from twisted.internet import defer, error, reactor, task
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.utils import getProcessOutputAndValue
from twisted.protocols.basic import FileSender
from twisted.python.failure import Failure
from twisted.trial import unittest

from sector._udt.errors import check
from sector._udt.shared import shared_core
from sector.udt import UdtConnectionLost


class End(Protocol):
    """Keeps what comes, and the reason of the end."""

    reason: Any = None

    def __init__(self) -> None:
        self.data = bytearray()

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None and self.reason is None
        self.reason = reason.value


class Waits:
    """A producer with more to say, which it does not say now."""

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def stopProducing(self) -> None: ...


async def until(ready: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something that must come."""
    end = reactor.seconds() + seconds
    while not ready():
        assert reactor.seconds() < end, "it did not come"
        await task.deferLater(reactor, 0.01)


class Case(unittest.TestCase):
    """Two ends of a connection; all is gone after each test."""

    timeout = 60

    async def pair(self, server: Any = End, client: Any = End, options: str = "") -> tuple[Any, Any]:
        """The protocols of a new connection, (client's, server's)."""
        made: list[Any] = []

        class Far(Factory):
            def buildProtocol(self, addr: object) -> Any:
                made.append(server())
                return made[-1]

        self.port = await serverFromString(reactor, f"udt:0:interface=127.0.0.1{options}").listen(Far())
        where = f"udt:127.0.0.1:{self.port.getHost().port}{options}"
        near = await clientFromString(reactor, where).connect(Factory.forProtocol(client))
        await until(lambda: made and made[0].transport is not None)
        self.ends = near, made[0]
        return near, made[0]

    def tearDown(self) -> Any:
        return defer.ensureDeferred(self._over())

    async def _over(self) -> None:
        for end in getattr(self, "ends", ()):
            end.transport.abortConnection()
        if hasattr(self, "port"):
            await self.port.stopListening()
            await self.port.portClosed()
        # what was aborted ends with the core's next event: a client's port is on its way out only then
        await until(lambda: not any(end.transport.connected for end in getattr(self, "ends", ())))
        await shared_core(reactor).settle()


class ProducerTests(Case):
    """ITransport.loseConnection: with a registered producer the connection ends when that is done."""

    async def test_a_file_arrives_whole_though_its_sender_hangs_up_at_once(self) -> None:
        near, far = await self.pair()
        data = bytes(range(256)) * 20_000
        sent = FileSender().beginFileTransfer(io.BytesIO(data), near.transport)
        near.transport.loseConnection()
        await sent
        await until(lambda: near.reason and far.reason)
        self.assertEqual(bytes(far.data), data)
        self.assertIsInstance(near.reason, error.ConnectionDone)
        self.assertIsInstance(far.reason, error.ConnectionDone)


class WrittenTooLateTests(Case):
    """What the peer sent before it closed is read to its end, also by who learns of the close by writing."""

    async def test_what_has_arrived_comes_first(self) -> None:
        await self._arrives(Waits())

    async def test_without_a_producer_too(self) -> None:
        await self._arrives(None)

    async def _arrives(self, producer: Any) -> None:
        near, far = await self.pair()
        if producer is not None:
            far.transport.registerProducer(producer, True)
        near.transport.write(bytes(range(256)) * 2000)
        near.transport.loseConnection()
        time.sleep(0.5)  # the reactor hears of nothing until all is there
        for _ in range(3):
            far.transport.write(b"an answer")  # the first one finds out, the next is refused
            time.sleep(0.1)
        self.assertEqual((far.data, far.reason), (b"", None))  # nothing is called from within a write
        await until(lambda: near.reason and far.reason)
        self.assertEqual(bytes(far.data), bytes(range(256)) * 2000)
        self.assertIsInstance(far.reason, UdtConnectionLost)
        self.assertIn("closed by the peer before all was sent", str(far.reason))


class Raises(End):
    """Fails in the method that is named."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def connectionMade(self) -> None:
        if self.where == "connectionMade":
            raise LookupError("no such thing")

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        if self.where == "dataReceived":
            raise LookupError("no such thing")


class RaisingTests(Case):
    """What a protocol raises is logged and ends its connection, and no other."""

    async def test_where_data_comes(self) -> None:
        near, far = await self.pair(server=lambda: Raises("dataReceived"))
        near.transport.write(bytes(1000))
        await until(lambda: near.reason and far.reason)
        self.assertIsInstance(far.reason, LookupError)
        self.assertEqual(len(far.data), 1000)
        self.assertEqual(len(self.flushLoggedErrors(LookupError)), 1)

    async def test_at_the_start_of_a_server_s(self) -> None:
        near, far = await self.pair(server=lambda: Raises("connectionMade"))
        await until(lambda: near.reason and far.reason)
        self.assertIsInstance(far.reason, LookupError)
        self.assertEqual(len(self.flushLoggedErrors(LookupError)), 1)

    async def test_at_the_start_of_a_client_s(self) -> None:
        with self.assertRaises(LookupError):
            await self.pair(client=lambda: Raises("connectionMade"))


class DeafTests(Case):
    """Two ends that read no more and have much to say wait for each other; when one goes, the other hears."""

    async def both_full(self) -> tuple[Any, Any]:
        near, far = await self.pair(options=":idleTimeout=1")
        for end in near, far:
            end.transport.pauseProducing()
            end.transport.write(bytes(40 << 20))
        await task.deferLater(reactor, 0.3)
        return near, far

    async def test_the_peer_aborts(self) -> None:
        near, far = await self.both_full()
        far.transport.abortConnection()
        await until(lambda: near.reason)
        self.assertIsInstance(near.reason, UdtConnectionLost)
        self.assertEqual(near.reason.name, "PEERCLOSED")

    async def test_the_peer_falls_silent(self) -> None:
        """Its packets are lost from now on."""
        near, far = await self.both_full()
        core = near.transport._core
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nowhere:
            for port in core._ports:
                check(lib.udt_port_divert(core.ctx, port, ffi.NULL, nowhere.fileno()))
            await until(lambda: near.reason and far.reason)
        self.assertIsInstance(near.reason, UdtConnectionLost)
        self.assertEqual((near.reason.name, far.reason.name), ("BROKEN", "BROKEN"))

    async def test_who_reads_again_gets_what_came_before_the_end(self) -> None:
        near, far = await self.pair()
        near.transport.pauseProducing()
        far.transport.write(bytes(100_000))
        far.transport.loseConnection()
        await until(lambda: far.reason)
        await task.deferLater(reactor, 0.1)
        self.assertIsNone(near.reason)
        near.transport.resumeProducing()
        await until(lambda: near.reason)
        self.assertEqual(len(near.data), 100_000)
        self.assertIsInstance(near.reason, error.ConnectionDone)


class EndTests(Case):
    """How a connection ends, and what is known afterwards."""

    async def test_an_end_that_is_none_is_not_taken_for_one(self) -> None:
        """Who aborts with data under way: its peer has a part and knows it. With nothing under way the end
        is clean."""
        near, far = await self.pair()
        far.transport.write(bytes(20 << 20))
        await until(lambda: near.data)
        far.transport.abortConnection()
        await until(lambda: near.reason)
        self.assertLess(len(near.data), 20 << 20)
        self.assertIsInstance(near.reason, UdtConnectionLost)
        self.assertEqual(near.reason.name, "CUT")
        self.assertIn("gave up some of what it had sent", str(near.reason))

    async def test_an_abort_with_nothing_under_way_is_a_clean_end(self) -> None:
        near, far = await self.pair()
        far.transport.write(b"all")
        await until(lambda: near.data)
        await task.deferLater(reactor, 0.3)  # acknowledged
        far.transport.abortConnection()
        await until(lambda: near.reason)
        self.assertIsInstance(near.reason, error.ConnectionDone)

    async def test_who_aborts_while_a_producer_is_registered_has_not_said_all(self) -> None:
        near, far = await self.pair()
        far.transport.registerProducer(Waits(), True)
        far.transport.write(b"a part")
        await until(lambda: near.data)
        await task.deferLater(reactor, 0.3)  # acknowledged
        far.transport.abortConnection()
        await until(lambda: near.reason)
        self.assertIsInstance(near.reason, UdtConnectionLost)
        self.assertEqual((near.reason.name, bytes(near.data)), ("CUT", b"a part"))

    async def test_an_abort_cuts_a_lingering_end_short(self) -> None:
        """All is with the core, whose peer takes no more; either end may be the one that has enough."""
        for index in range(2):
            ends = await self.pair()
            near, far = ends[index], ends[1 - index]
            far.transport.pauseProducing()
            while True:
                near.transport.write(bytes(65536))
                if near.transport._out:
                    await task.deferLater(reactor, 0.3)
                    if near.transport._out:
                        break  # the core stays full
            near.transport._out.clear()
            near.transport.loseConnection()
            await task.deferLater(reactor, 0.2)
            self.assertIsNone(near.reason)
            near.transport.abortConnection()
            near.transport.abortConnection()
            await until(lambda near=near: near.reason, 2)
            self.assertIsInstance(near.reason, error.ConnectionAborted)
            far.transport.abortConnection()
            await self.port.stopListening()
            await self.port.portClosed()

    async def test_an_abort_ends_what_lingers_in_the_core(self) -> None:
        """Also at a server, whose port lives on: the peer hears of the end instead of megabytes more."""
        for index in range(2):
            ends = await self.pair()
            near, far = ends[index], ends[1 - index]
            far.transport.pauseProducing()
            taken = 0
            while True:
                near.transport.write(bytes(65536))
                if near.transport._out:
                    await task.deferLater(reactor, 0.3)
                    if near.transport._out:
                        break  # the core stays full
                taken += 65536
            taken += near.transport._offset
            near.transport._out.clear()
            near.transport.loseConnection()
            near.transport.abortConnection()
            await until(lambda near=near: near.reason, 2)
            self.assertIsInstance(near.reason, error.ConnectionAborted)
            far.transport.resumeProducing()
            await until(lambda far=far: far.reason, 5)
            self.assertLess(len(far.data), taken)
            await self.port.stopListening()
            await self.port.portClosed()

    async def test_statistics_outlive_the_core(self) -> None:
        near, far = await self.pair()
        near.transport.write(bytes(1000))
        await until(lambda: len(far.data) == 1000)
        near.transport.loseConnection()
        await until(lambda: near.reason and far.reason)
        await self.port.stopListening()
        await self.port.portClosed()
        await shared_core(reactor).settle()
        self.assertEqual(near.transport.stats()["bytes_sent"], 1000)
        self.assertEqual(far.transport.stats()["bytes_recv"], 1000)

    async def test_nothing_is_delivered_after_lose_connection(self) -> None:
        """Also while what was written before still goes out."""
        near, far = await self.pair()
        far.transport.pauseProducing()
        near.transport.write(bytes(30 << 20))
        near.transport.loseConnection()
        far.transport.write(b"too late")
        await task.deferLater(reactor, 0.3)
        far.transport.resumeProducing()
        await until(lambda: near.reason and far.reason)
        self.assertEqual(bytes(near.data), b"")
        self.assertEqual(len(far.data), 30 << 20)
        self.assertIsInstance(near.reason, error.ConnectionDone)

    async def test_only_bytes_can_be_written(self) -> None:
        """`bytes(5)` would be five zeros."""
        near, far = await self.pair()
        for wrong in (5, "text", [1, 2], None):
            self.assertRaises(TypeError, near.transport.write, wrong)
        for right in (b"ab", bytearray(b"cd"), memoryview(b"ef")):
            near.transport.write(right)
        await until(lambda: len(far.data) >= 6)
        self.assertEqual(bytes(far.data), b"abcdef")


class PacketTests(Case):
    """`mss` of endpoint strings."""

    async def test_jumbo_frames_where_both_ends_allow_them(self) -> None:
        near, far = await self.pair(options=":mss=9000")
        sent = 0

        def large() -> bool:
            """Whether packets have grown over what Ethernet's usual frames carry."""
            nonlocal sent
            near.transport.write(bytes(1_000_000))
            sent += 1_000_000
            stats = near.transport.stats()
            return stats["pkts_sent"] > 0 and stats["bytes_sent"] > 3000 * stats["pkts_sent"]

        await until(large)
        await until(lambda: len(far.data) == sent)

    async def test_small_packets(self) -> None:
        near, far = await self.pair(options=":mss=600")
        near.transport.write(bytes(1_000_000))
        near.transport.loseConnection()
        await until(lambda: near.reason and far.reason)
        self.assertEqual(len(far.data), 1_000_000)
        stats = near.transport.stats()
        self.assertLess(stats["bytes_sent"], 600 * stats["pkts_sent"])


STOPS = """
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.utils import getProcessOutputAndValue

class Stops(Protocol):
    def connectionMade(self):
        self.transport.write(b"hello")
    def dataReceived(self, data):
        reactor.stop()
    def connectionLost(self, reason):
        print(type(reason.value).__name__)

clientFromString(reactor, sys.argv[1]).connect(Factory.forProtocol(Stops))
reactor.run()
"""


class Answers(End):
    def dataReceived(self, data: bytes) -> None:
        self.transport.write(b"enough")


class ReactorTests(Case):
    """A reactor that stops with connections open, as after Ctrl-C."""

    async def test_both_ends_hear_that_it_is_over(self) -> None:
        factory = Factory.forProtocol(Answers)
        made: list[Any] = []
        factory.buildProtocol = lambda addr: made.append(Answers()) or made[-1]
        self.port = await serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(factory)
        where = f"udt:127.0.0.1:{self.port.getHost().port}"
        output, errors, status = await getProcessOutputAndValue(sys.executable, ["-c", STOPS, where], None)
        self.assertEqual((output.strip(), errors, status), (b"UdtConnectionLost", b"", 0))
        await until(lambda: made[0].reason, 3)
        self.assertIsInstance(made[0].reason, error.ConnectionDone)

    async def test_a_port_that_is_closed_below_is_no_clean_end(self) -> None:
        near, far = await self.pair()
        await near.transport._core.close_port(next(iter(near.transport._core._ports)))
        await until(lambda: near.reason and far.reason)
        self.assertEqual(
            sorted(type(end.reason).__name__ for end in (near, far)), ["ConnectionDone", "UdtConnectionLost"]
        )


class Messages(End):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def messageReceived(self, data: bytes) -> None:
        self.sizes.append(len(data))


class MessageTests(Case):
    """In message mode one message that is too large costs an exception and not the connection."""

    async def most(self, options: str, most: int) -> None:
        near, far = await self.pair(Messages, Messages, ":kind=message" + options)
        with self.assertRaises(ValueError) as caught:
            near.transport.write(bytes(most + 1))
        self.assertEqual(str(caught.exception), f"a message has at most {most} bytes, not {most + 1}")
        near.transport.write(bytes(most))
        near.transport.write(b"after")
        await until(lambda: len(far.sizes) == 2)
        self.assertEqual((far.sizes, near.reason), ([most, 5], None))

    async def test_with_the_usual_buffer(self) -> None:
        await self.most("", 8192 * 1456)

    async def test_with_a_small_buffer(self) -> None:
        await self.most(":sendBuffer=100000", 100_000)

    async def test_one_that_is_larger_than_any_may_be_is_not_cut_off(self) -> None:
        """As other implementations, and programs in C, can send them."""
        near, far = await self.pair(
            Messages, Messages, ":kind=message:sendBuffer=40000000:receiveBuffer=40000000"
        )
        near.transport.max_message = 1 << 30
        near.transport.write(bytes(1 << 24))
        near.transport.write(bytes((1 << 24) + 1))
        await until(lambda: far.reason)
        self.assertEqual(far.sizes, [1 << 24])
        self.assertIsInstance(far.reason, UdtConnectionLost)
        self.assertEqual(far.reason.name, "TOOBIG")
