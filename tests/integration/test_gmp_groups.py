"""Group calls, introductions and back-pressure of GMP as Python sees them, over real UDP ports."""

from __future__ import annotations

from typing import Any

from twisted.internet import defer, reactor, task
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.trial import unittest

from sector import errors
from sector._udt.context import Core
from sector.gmp.api import (
    STATUS_BUSY,
    STATUS_CANCELLED,
    STATUS_NO_METHOD,
    STATUS_TIMEOUT,
    GmpError,
    GmpKey,
    IncomingCall,
    Peer,
)
from sector.gmp.memory import MemoryHub
from sector.gmp.node import GmpNode, open_gmp
from sector.rpc import RpcNode
from sector.wire.base import Ok
from sector.wire.files import Mkdir

KEY = 0x01000001


class GroupCase(unittest.TestCase):
    """A caller and some callees of one core."""

    timeout = 60

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.addCleanup(lambda: defer.ensureDeferred(self.core.stop()))

    def node(self) -> GmpNode:
        """An endpoint that knows the one key."""
        gmp = open_gmp(self.core, "127.0.0.1", 0)
        gmp.add_key(GmpKey(KEY, bytes(32), "slave:s"))
        return gmp

    def peer(self, gmp: GmpNode) -> Peer:
        """Where it is."""
        return Peer(*gmp.address, KEY)


class GroupTests(GroupCase):
    """Each member has an outcome of its own."""

    def callees(self, count: int) -> list[Peer]:
        """Endpoints that answer method 1 with their port; the last also counts method 2."""
        peers = []
        for _ in range(count):
            gmp = self.node()
            gmp.register(1, lambda call, gmp=gmp: str(gmp.address[1]).encode())
            gmp.register(2, lambda call: defer.Deferred())
            peers.append(self.peer(gmp))
        return peers

    async def test_all_answer(self) -> None:
        peers = self.callees(5)
        group = self.node().group_call(peers, 1, b"")
        self.assertTrue(await group.decided)
        self.assertEqual(await group.done, [(True, str(peer.port).encode()) for peer in peers])
        self.assertEqual(group.succeeded, 5)

    async def test_a_dead_member_delays_no_other(self) -> None:
        silent = self.core.open_port("127.0.0.1", 0)
        peers = [Peer(*self.core.port_address(silent), KEY), *self.callees(3)]
        group = self.node().group_call(peers, 1, b"", wait=3, deadline_s=1.0)
        seen = [member.index async for member in group if member.ok]
        self.assertEqual(sorted(seen), [1, 2, 3])
        self.assertTrue(group.met)
        (good, why), *rest = await group.done
        self.assertFalse(good)
        self.assertEqual(why.value.status, STATUS_TIMEOUT)
        self.assertTrue(all(ok for ok, _ in rest))
        self.assertEqual(group.members[-1].index, 0)

    async def test_a_quorum_that_cannot_be_met_is_decided_at_once(self) -> None:
        peers = self.callees(3)
        group = self.node().group_call(peers, 7, b"", wait=2)
        self.assertFalse(await group.decided)
        rows = await group.done
        self.assertTrue(all(not ok and row.value.status == STATUS_NO_METHOD for ok, row in rows))

    async def test_any_cancels_the_rest_when_asked(self) -> None:
        fast, slow = self.callees(2)
        caller = self.node()
        group = caller.group_call([slow, fast], 1, b"", wait="any")
        self.assertTrue(await group.decided)
        await group.done
        group = caller.group_call([slow], 2, b"", wait="none", cancel_rest=True)
        self.assertEqual((await group.done)[0][1].value.status, STATUS_CANCELLED)

    async def test_a_group_that_is_cancelled(self) -> None:
        group = self.node().group_call(self.callees(3), 2, b"")
        await task.deferLater(reactor, 0.05)
        group.cancel()
        rows = await group.done
        self.assertEqual({row.value.status for _, row in rows}, {STATUS_CANCELLED})

    async def test_a_deferred_of_a_group_that_is_cancelled(self) -> None:
        """The group with it: the other Deferred fires as after cancel()."""
        group = self.node().group_call(self.callees(3), 2, b"")
        await task.deferLater(reactor, 0.05)
        group.done.cancel()
        with self.assertRaises(CancelledError):
            await group.done
        self.assertFalse(await group.decided)
        members = [member async for member in group]
        self.assertEqual([member.error.status for member in members], [STATUS_CANCELLED] * 3)
        group.cancel()

    async def test_duplicates_count_once_and_an_empty_list_is_done(self) -> None:
        (peer,) = self.callees(1)
        caller = self.node()
        group = caller.group_call([peer, peer, peer], 1, b"")
        self.assertEqual(len(await group.done), 3)
        self.assertEqual(len(group.members), 1)
        self.assertEqual(await caller.group_call([], 1, b"").done, [])
        self.assertRaises(ValueError, caller.group_call, [peer], 1, b"", wait=0)

    async def test_plain_messages_to_many(self) -> None:
        got: list[bytes] = []
        peers = []
        for _ in range(4):
            gmp = self.node()
            gmp.on_message(9, lambda peer, principal, data: got.append(data))
            peers.append(self.peer(gmp))
        deaf = self.node()
        rows = await self.node().group_send([*peers, self.peer(deaf)], b"hear", channel=9).done
        self.assertEqual([ok for ok, _ in rows], [True] * 4 + [False])
        self.assertEqual(got, [b"hear"] * 4)

    async def test_typed_requests_give_typed_results(self) -> None:
        peers = []
        for number in range(3):
            rpc = RpcNode(self.node())

            def answer(request: Mkdir, caller: Any, number: int = number) -> Ok:
                if number == 1:
                    raise errors.Busy("later")
                return Ok()

            rpc.serve(Mkdir, answer)
            peers.append(self.peer(rpc.gmp))
        group = RpcNode(self.node()).group_call(peers, Mkdir("/a"), wait=2)
        await group
        rows = await group.done
        self.assertEqual(rows[0], (True, Ok()))
        self.assertIsInstance(rows[1][1].value, errors.Busy)

    async def test_an_endpoint_that_closes_ends_its_groups(self) -> None:
        caller = self.node()
        group = caller.group_call(self.callees(2), 2, b"")
        await caller.stop()
        rows = await group.done
        self.assertEqual({row.value.status for _, row in rows}, {STATUS_CANCELLED})


class IntroductionTests(GroupCase):
    """A third party can vouch."""

    async def test_an_introduced_caller_needs_no_hello(self) -> None:
        callee, caller = self.node(), self.node()
        callee.register(1, lambda call: call.payload)
        token = callee.mint_token(*caller.address, caller.instance, KEY)
        caller.introduce(self.peer(callee), callee.instance, token)
        self.assertEqual(await caller.call(self.peer(callee), 1, b"first"), b"first")
        self.assertEqual(caller.counters()["hello_out"], 0)
        self.assertEqual(callee.counters()["introduced"] + caller.counters()["introduced"] >= 1, True)

    async def test_a_bad_token_costs_one_hello_and_no_message(self) -> None:
        callee, caller = self.node(), self.node()
        callee.register(1, lambda call: call.payload)
        caller.introduce(self.peer(callee), callee.instance, bytes(24))
        self.assertEqual(await caller.call(self.peer(callee), 1, b"first", deadline_s=10), b"first")
        self.assertEqual(caller.counters()["hello_out"], 1)
        self.assertRaises(ValueError, caller.introduce, self.peer(callee), callee.instance, b"short")


class BackPressureTests(GroupCase):
    """A full queue says so at once, and when there is room again."""

    def fill(self, caller: GmpNode, to: Peer, outcomes: list[GmpError]) -> GmpError:
        """Messages to `to` until one is refused for lack of room."""
        full: GmpError | None = None
        for _ in range(20000):
            sent = caller.send(to, b"x" * 1000, deadline_s=1.0)
            if isinstance(sent.result if sent.called else None, Failure):
                error = sent.result.value
                sent.addErrback(lambda failure: None)
                if error.queue_full:
                    full = error
                    break
            sent.addErrback(lambda failure: outcomes.append(failure.value))
        assert full is not None
        self.assertEqual(full.status, STATUS_BUSY)
        return full

    def silent(self) -> tuple[str, int]:
        """Somebody who takes everything and answers nothing."""
        return self.core.port_address(self.core.open_port("127.0.0.1", 0))

    async def test_queue_full_then_writable(self) -> None:
        to = Peer(*self.silent(), KEY)
        caller = self.node()
        outcomes: list[GmpError] = []
        self.fill(caller, to, outcomes)
        await caller.writable(to)
        self.assertGreater(len(outcomes), 0)
        await caller.writable(to)  # it has been: nobody is to wait for another
        await caller.stop()

    async def test_a_group_that_is_refused_waits_for_room(self) -> None:
        caller = self.node()
        peers = [Peer("127.0.0.1", 20000 + i, KEY) for i in range(4096)]
        for _ in range(100):  # the 17th that is refused at once; one that meets a busy loop waits there
            group = caller.group_send(peers, b"x", deadline_s=2)
            if group.done.called:
                break
            await task.deferLater(reactor, 0.02, lambda: None)
        results = await group.done
        self.assertEqual({failure.value.status for ok, failure in results}, {STATUS_BUSY})
        room = caller.writable(peers[7])
        self.assertNoResult(room)
        await room.addTimeout(20, reactor)
        again = caller.group_send(peers[:10], b"x", deadline_s=0.1)
        self.assertNoResult(again.done)
        await again.done
        await caller.stop()

    async def test_writable_where_nothing_was_refused_is_now(self) -> None:
        caller = self.node()
        self.assertIsNone(self.successResultOf(caller.writable(Peer("127.0.0.1", 9, KEY))))

    async def test_writable_knows_an_address_in_every_spelling(self) -> None:
        host, port = self.silent()
        caller = self.node()
        self.fill(caller, Peer(f"::ffff:{host}", port, KEY), [])
        room = caller.writable(Peer(f"::ffff:{host}", port, KEY))
        self.assertNoResult(room)
        await room.addTimeout(20, reactor)
        await caller.stop()

    async def test_nothing_is_left_of_who_gave_up_waiting_and_an_end_ends_all(self) -> None:
        to = Peer(*self.silent(), KEY)
        caller = self.node()
        self.fill(caller, to, [])
        for _ in range(100):
            room = caller.writable(to)
            room.cancel()
            self.failureResultOf(room, CancelledError)
        self.assertEqual(len(caller._room), 0)
        room = caller.writable(to)
        await caller.stop()
        self.assertEqual(self.failureResultOf(room, GmpError).value.status, STATUS_CANCELLED)
        self.assertEqual(self.failureResultOf(caller.writable(to), GmpError).value.status, STATUS_CANCELLED)


class MemoryTests(unittest.TestCase):
    """The endpoint inside one process has the same rules."""

    def test_groups(self) -> None:
        clock = task.Clock()
        hub = MemoryHub(clock)
        nodes = [hub.endpoint() for _ in range(4)]
        for gmp in nodes:
            gmp.add_key(GmpKey(KEY, bytes(32), "slave:s"))

        def failing(call: IncomingCall) -> bytes:
            raise GmpError(STATUS_BUSY)

        nodes[1].register(1, lambda call: b"one")
        nodes[2].register(1, lambda call: b"two")
        nodes[3].register(1, failing)
        peers = [Peer(*gmp.address, KEY) for gmp in nodes[1:]]
        group = nodes[0].group_call([*peers, peers[0]], 1, b"", wait=2)
        clock.advance(0)
        clock.advance(0)
        self.assertTrue(self.successResultOf(group.decided))
        rows = self.successResultOf(group.done)
        self.assertEqual([row[0] for row in rows], [True, True, False, True])
        self.assertFalse(self.successResultOf(nodes[0].group_call(peers, 1, b"", wait=4).decided))
