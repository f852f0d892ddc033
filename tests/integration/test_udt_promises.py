"""What Twisted promises of any transport, held by UDT ones too: who connects hears of it first, who raises is
told the end, nobody holds up the reactor, and what ends with that is told so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from test_udt_transport import Case, End, until
from twisted.internet import error, reactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.utils import getProcessOutputAndValue

from sector._udt.shared import shared_core
from sector.udt import UdtConnectionLost


class Greets(End):
    """Speaks first, and holds up the reactor until that has arrived."""

    def connectionMade(self) -> None:
        self.transport.write(b"hello")
        time.sleep(0.3)


class OrderTests(Case):
    async def test_who_connects_has_the_protocol_before_it_has_data(self) -> None:
        seen: list[str] = []

        class Near(End):
            def dataReceived(self, data: bytes) -> None:
                super().dataReceived(data)
                seen.append("data")

        self.port = await serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(
            Factory.forProtocol(Greets)
        )
        where = f"udt:127.0.0.1:{self.port.getHost().port}"
        connecting = clientFromString(reactor, where).connect(Factory.forProtocol(Near))
        connecting.addCallback(lambda near: seen.append("connected") or near)
        near = await connecting
        self.ends = (near,)
        await until(lambda: near.data == b"hello")
        self.assertEqual(seen, ["connected", "data"])

    async def test_a_reader_that_pauses_at_each_piece_leaves_others_their_turn(self) -> None:
        pieces: Counter[int] = Counter()
        turn = 0

        class Pauses(End):
            def dataReceived(self, data: bytes) -> None:
                pieces[turn] += 1
                self.transport.pauseProducing()
                time.sleep(0.001)  # at work
                self.transport.resumeProducing()

        def count() -> None:
            nonlocal turn
            turn += 1
            if not far.reason:
                reactor.callLater(0, count)

        near, far = await self.pair(server=Pauses)
        count()
        near.transport.write(bytes(40 << 20))
        await until(lambda: sum(pieces.values()) > 600, 30)
        self.assertLessEqual(max(pieces.values()), 32)


class Bursts:
    """A pull producer that fails when it is asked again."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.asked = 0

    def resumeProducing(self) -> None:
        self.asked += 1
        if self.asked == 40:
            raise LookupError("no such thing")
        self.transport.write(bytes(300_000))

    def stopProducing(self) -> None:
        raise ValueError("nor this")


class RaisingProducerTests(Case):
    async def test_both_ends_hear_of_it(self) -> None:
        """It would never be asked again, and the connection stand still for ever."""
        near, far = await self.pair()
        near.transport.registerProducer(Bursts(near.transport), False)
        await until(lambda: near.reason and far.reason)
        self.assertIsInstance(near.reason, LookupError)
        self.assertIsInstance(far.reason, UdtConnectionLost)
        self.assertEqual(len(self.flushLoggedErrors(LookupError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    async def test_the_end_is_told_though_a_producer_raises_when_it_is_stopped(self) -> None:
        near, far = await self.pair()
        near.transport.registerProducer(Bursts(near.transport), True)
        far.transport.loseConnection()
        await until(lambda: near.reason and far.reason)
        self.assertIsInstance(near.reason, error.ConnectionDone)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


STOPS = """
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol

class Near(Protocol):
    def connectionMade(self):
        reactor.callLater(0.1, reactor.stop)
        reactor.addSystemEventTrigger("after", "shutdown", self.late)
    def connectionLost(self, reason):
        self.transport.write(b"too late")
    def late(self):
        self.transport.write(b"much too late")
        self.transport.loseConnection()
        self.transport.abortConnection()
        print("nothing raised")

class Far(Factory):
    protocol = Protocol
    def stopFactory(self):
        print("stopped")

def listening(port):
    clientFromString(reactor, f"udt:127.0.0.1:{port.getHost().port}").connect(Factory.forProtocol(Near))

serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(Far()).addCallback(listening)
reactor.run()
"""


class ShutdownTests(Case):
    async def test_a_server_s_factory_is_stopped_with_the_reactor_and_late_words_are_dropped(self) -> None:
        output, errors, status = await getProcessOutputAndValue(sys.executable, ["-c", STOPS], os.environ)
        self.assertEqual(
            (output.split(b"\n"), errors, status), ([b"stopped", b"nothing raised", b""], b"", 0)
        )


DIES = """
import os, sys, time
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol

class Dies(Protocol):
    def connectionMade(self):
        self.transport.write(b"the last words")
        reactor.callLater(0.3, os._exit, 7)

clientFromString(reactor, sys.argv[1]).connect(Factory.forProtocol(Dies))
reactor.run()
"""


class LateServerTests(Case):
    async def test_who_came_and_died_while_the_server_was_busy_is_heard_all_the_same(self) -> None:
        """The server's core acknowledged what it sent, and then gave it up."""
        made: list[Any] = []

        class Far(Factory):
            def buildProtocol(self, addr: Any) -> Any:
                made.append(End())
                made[-1].peer = addr
                return made[-1]

        listening = "udt:0:interface=127.0.0.1:idleTimeout=1"
        self.port = await serverFromString(reactor, listening).listen(Far())
        where = f"udt:127.0.0.1:{self.port.getHost().port}"
        client = subprocess.run([sys.executable, "-c", DIES, where], timeout=30, check=False)
        self.assertEqual(client.returncode, 7)
        time.sleep(2.5)
        self.assertEqual(made, [])
        await until(lambda: made and made[0].reason)
        self.assertEqual(bytes(made[0].data), b"the last words")
        self.assertEqual(made[0].peer.host, "127.0.0.1")
        self.assertIsInstance(made[0].reason, UdtConnectionLost)


class Echoes(End):
    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)


class ManyTests(Case):
    async def test_more_connections_than_the_core_has_ports(self) -> None:
        """Each has its own answers, whoever else ends meanwhile, and nothing is left of them."""
        self.port = await serverFromString(reactor, "udt:0:interface=127.0.0.1").listen(
            Factory.forProtocol(Echoes)
        )
        to = clientFromString(reactor, f"udt:127.0.0.1:{self.port.getHost().port}")
        nobody = clientFromString(reactor, "udt:127.0.0.1:9")
        self.ends = tuple([await to.connect(Factory.forProtocol(End)) for _ in range(300)])
        ports = {end.transport.getHost().port for end in self.ends}
        for number, end in enumerate(self.ends):
            end.transport.write(b"%d" % number * 100)
        with self.assertRaises(error.ConnectionRefusedError):
            await nobody.connect(Factory.forProtocol(End))
        for end in self.ends[::2]:
            end.transport.loseConnection()
        await until(lambda: all(end.reason for end in self.ends[::2]))
        for number, end in enumerate(self.ends[1::2]):
            end.transport.write(b"again")
            await until(lambda end=end: end.data.endswith(b"again"))
            self.assertEqual(bytes(end.data), b"%d" % (2 * number + 1) * 100 + b"again")
            end.transport.loseConnection()
        await until(lambda: all(end.reason for end in self.ends))
        self.assertEqual({type(end.reason) for end in self.ends}, {error.ConnectionDone})
        self.assertGreater(len(ports), 100)
        core = shared_core(reactor)._core
        await until(lambda: len(core._ports) == 1)
