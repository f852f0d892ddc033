"""What Twisted promises of any transport, held by UDT ones too: who connects hears of it first, who raises is
told the end, nobody holds up the reactor, and what ends with that is told so."""

from __future__ import annotations

from typing import Any

from test_udt_transport import Case, until
from twisted.internet import error

from sector.udt import UdtConnectionLost


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
