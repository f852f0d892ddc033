"""Tunnels at a master's GMP port: whose datagrams they carry, and whose they never do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.internet import defer, reactor, task
from twisted.trial import unittest

from sector import pki
from sector._udt.context import Core
from sector.gmp.api import GmpError, GmpKey, IncomingCall, Peer
from sector.gmp.node import GmpNode, open_gmp
from sector.tls import Switch, TlsPeer, TlsServer, open_tls
from sector.tunnel import SPACE, Aliases, ClientTunnel, Gmp, MasterTunnel
from sector.wire.base import Ok
from sector.wire.login import SlaveTunnel

HOST = "127.0.0.1"
KEYS = {name: GmpKey(number, bytes([number]) * 32, name) for number, name in enumerate(("", "a", "b", "s"))}


class Pipe:
    """A connection in memory: what one end writes, the other end's tunnel reads."""

    def __init__(self) -> None:
        self.reader: Any = None
        self.frames = 0
        self.open = True

    def write(self, data: bytes) -> None:
        """To the other end, a turn later."""
        if self.open:
            self.frames += 1
            cast(Any, reactor).callLater(0, self.reader.data, data)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Never full."""

    def unregisterProducer(self) -> None:
        """Nobody is asked to pause."""

    def loseConnection(self) -> None:
        """Both ends hear of it."""
        self.open = False

    abortConnection = loseConnection


class TunnelCase(unittest.TestCase):
    """A master, and clients in front of it."""

    timeout = 60

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.addCleanup(lambda: defer.ensureDeferred(self.core.stop()))
        self.master = self.node("a", "b", "s")
        self.callers: list[tuple[str, int]] = []
        self.master.register(1, self.serve)
        self.aliases = Aliases()
        self.slaves: set[tuple[str, int]] = set()

    def node(self, *names: str) -> GmpNode:
        """An endpoint with the keys of these principals."""
        gmp = open_gmp(self.core, HOST, 0)
        for name in names:
            gmp.add_key(KEYS[name])
        return gmp

    def serve(self, call: IncomingCall) -> bytes:
        """Who asked."""
        self.callers.append((call.peer.host, call.peer.port))
        return call.principal.encode()

    def tunnel(self, client: GmpNode, alias: tuple[str, int] | None = None) -> tuple[Any, Any, Pipe, Pipe]:
        """All that `client` sends goes through a tunnel: its two ends and the two directions."""
        up, down = Pipe(), Pipe()
        alias = alias or self.aliases.take("192.0.2.7")
        gmp = cast(Gmp, self.master)

        def mine(where: tuple[str, int]) -> bool:
            return where[1] == self.master.address[1]

        end = MasterTunnel(reactor, gmp, alias, down, mine, lambda: self.slaves, lambda: None)
        begin = ClientTunnel(reactor, cast(Gmp, client), up, lambda: None)
        up.reader, down.reader = end, begin
        self.addCleanup(begin.close)
        self.addCleanup(end.ended)
        return begin, end, up, down

    async def ask(self, client: GmpNode, name: str, deadline_s: float = 20.0) -> bytes:
        """A call to the master."""
        peer = Peer(*self.master.address, KEYS[name].key_id)
        return await client.call(peer, 1, b"", deadline_s=deadline_s)


class AddressTests(TunnelCase):
    """Ends of tunnels have addresses that nobody else can have."""

    async def test_a_client_at_the_numbers_of_a_tunnel_keeps_its_own_answers(self) -> None:
        """Behind one address translator a tunnel's TCP and another client's UDP may have the same host and
        port: the tunnel's address at the master is another one in any case."""
        inside, outside = self.node("a"), self.node("b")
        begin, _, up, down = self.tunnel(inside)
        for _ in range(3):
            self.assertEqual(await self.ask(inside, "a"), b"a")
            self.assertEqual(await self.ask(outside, "b"), b"b")
        self.assertGreater(up.frames, 0)
        self.assertGreater(down.frames, 0)
        hosts = {host for host, _ in self.callers}
        self.assertEqual(len(hosts), 2)
        self.assertIn(HOST, hosts)
        (alias,) = hosts - {HOST}
        self.assertEqual(alias, str(SPACE[1]))
        self.assertEqual(self.aliases.real(alias), "192.0.2.7")
        self.assertEqual(self.aliases.real(HOST), HOST)
        begin.close()

    async def test_each_tunnel_has_an_address_of_its_own(self) -> None:
        """Also the second one of a client whose first has ended: no answer goes to the wrong one."""
        first, second = self.node("a"), self.node("b")
        self.tunnel(first)
        self.tunnel(second)
        answers = await defer.gatherResults(
            [defer.ensureDeferred(self.ask(*who)) for who in ((first, "a"), (second, "b")) * 5]
        )
        self.assertEqual(answers, [b"a", b"b"] * 5)
        self.assertEqual(len({host for host, _ in self.callers}), 2)

    async def test_an_ended_tunnel_takes_no_datagram_any_more(self) -> None:
        """What is for its address is lost, and the client is heard over UDP again under its real one."""
        client = self.node("a")
        begin, end, up, _ = self.tunnel(client)
        self.assertEqual(await self.ask(client, "a"), b"a")
        begin.close()
        end.ended()
        before = up.frames
        self.assertEqual(await self.ask(client, "a"), b"a")
        self.assertEqual(up.frames, before)
        self.assertEqual(self.callers[-1], client.address)


class SlaveTests(TunnelCase):
    """A slave in a tunnel is called at the address it joined with."""

    async def test_both_directions_and_a_second_tunnel_that_replaces_the_first(self) -> None:
        slave = self.node("s")
        slave.register(2, lambda call: b"here")
        to_slave = Peer(*slave.address, KEYS["s"].key_id)
        _, first, _, down1 = self.tunnel(slave, slave.address)
        self.assertEqual(await self.ask(slave, "s"), b"s")
        self.assertEqual(await self.master.call(to_slave, 2, b"", deadline_s=20.0), b"here")
        self.assertGreater(down1.frames, 0)
        first.close()
        _, _, _, down2 = self.tunnel(slave, slave.address)
        first.ended()  # the old connection is noticed to be gone only now
        self.assertEqual(await self.ask(slave, "s"), b"s")
        self.assertEqual(await self.master.call(to_slave, 2, b"", deadline_s=20.0), b"here")
        self.assertGreater(down2.frames, 0)


class ClosedTests(TunnelCase):
    """Over real TLS, whose close waits for a producer that is still registered."""

    async def through(self) -> tuple[ClientTunnel, MasterTunnel, list[defer.Deferred[None]]]:
        """The two ends of a slave's tunnel, and what fires when each heard of the end."""
        now = datetime.now(UTC)
        ca_pem, ca_key = pki.make_ca("test", now)

        def node(role: str, name: str) -> pki.Credentials:
            cert, key = pki.make_node(ca_pem, ca_key, pki.Identity("test", role, name), now)
            private: Any = load_pem_private_key(key, None)
            ca = pki.load_certificate(ca_pem, "ca")
            return pki.Credentials(x509.load_pem_x509_certificate(cert), private, ca)

        trust = pki.Trust(pki.load_certificate(ca_pem, "ca"))
        over: list[defer.Deferred[None]] = [defer.Deferred(), defer.Deferred()]
        ends: list[MasterTunnel] = []
        slave = self.node("s")

        def begin(transport: Any) -> MasterTunnel:
            gmp = cast(Gmp, self.master)
            ends.append(
                MasterTunnel(
                    reactor,
                    gmp,
                    slave.address,
                    transport,
                    lambda where: where[1] == self.master.address[1],
                    lambda: self.slaves,
                    lambda: over[0].callback(None),
                )
            )
            return ends[0]

        async def serve(request: Any, peer: TlsPeer) -> Any:
            return Switch(Ok(), begin, 60.0)

        server = TlsServer(cast(Any, reactor), node("master", "m1"), trust, {SlaveTunnel: serve})
        port = cast(Any, reactor).listenTCP(0, server.listener(), interface=HOST)
        self.addCleanup(port.stopListening)
        caller = await open_tls(reactor, HOST, port.getHost().port, trust, node("slave", "s1"))
        await caller.call(SlaveTunnel("s1"))
        gmp = cast(Gmp, slave)
        client = caller.switch(
            lambda transport: ClientTunnel(reactor, gmp, transport, lambda: over[1].callback(None))
        )
        self.assertEqual(await self.ask(slave, "s"), b"s")
        return cast(ClientTunnel, client), ends[0], over

    async def test_both_ends_hear_at_once_when_either_closes(self) -> None:
        for who in (0, 1):
            client, master, over = await self.through()
            (client, master)[who].close()
            for end in over:
                await end.addTimeout(10, cast(Any, reactor))


class RelayTests(TunnelCase):
    """A master hands on to its slaves, and to nobody else."""

    async def test_only_slaves_are_reached(self) -> None:
        slave, stranger, client = self.node("a"), self.node("a"), self.node("a")
        for gmp in (slave, stranger):
            gmp.register(1, lambda call: b"hello")
        self.tunnel(client)
        self.slaves.add(slave.address)
        answer = await client.call(Peer(*slave.address, KEYS["a"].key_id), 1, b"", deadline_s=20.0)
        self.assertEqual(answer, b"hello")
        before = stranger.counters()["dgrams_in"]
        with self.assertRaises(GmpError):
            await client.call(Peer(*stranger.address, KEYS["a"].key_id), 1, b"", deadline_s=0.5)
        await task.deferLater(cast(Any, reactor), 0.3)
        self.assertEqual(stranger.counters()["dgrams_in"], before)
