"""Rules of spec/gmp.md section 12 on a real clock: processes that are killed, a device whose MTU falls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import running
from twisted.internet import defer, reactor, task
from twisted.trial import unittest

from sector._udt.context import Core
from sector.gmp.api import STATUS_PEER_RESTARTED, GmpError, GmpKey, Peer
from sector.gmp.node import open_gmp
from sector.ports import free_ports

KEY = GmpKey(0x01000001, bytes(32), "slave:s")
SERVER = """
import sys, time
from twisted.internet import defer, reactor
from sector._udt.context import Core
from sector.gmp.api import GmpKey
from sector.gmp.node import open_gmp

host, port, journal = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "ab", buffering=0)
core = Core(reactor)
gmp = open_gmp(core, host, port)
gmp.add_key(GmpKey(0x01000001, bytes(32), "slave:s"))

def serve(call):
    journal.write(call.payload[:8] + b"\\n")
    if call.payload[:3] == b"nap":
        time.sleep(float(call.payload[3:]))
    return defer.Deferred() if call.payload[:4] == b"hang" else call.payload

gmp.register(1, serve)
print(gmp.address[1], flush=True)
reactor.run()
"""
CALLER = """
import sys
from twisted.internet import defer, reactor
from sector._udt.context import Core
from sector.gmp.api import GmpKey, Peer
from sector.gmp.node import open_gmp

peer = Peer(sys.argv[1], int(sys.argv[2]), 0x01000001)
core = Core(reactor)
gmp = open_gmp(core, sys.argv[3], 0)
gmp.add_key(GmpKey(0x01000001, bytes(32), "slave:s"))
count = 0

async def calls():
    global count
    for line in sys.stdin:
        for _ in range(int(line)):
            count += 1
            body = b"%08d" % count + bytes(7992)
            assert await gmp.call(peer, 1, body, deadline_s=30.0) == body
        now = gmp.counters()
        print(now["dgram_up"], now["dgram_down"], flush=True)

def over(failure):
    print(failure.getTraceback() if failure else "end", flush=True)
    reactor.stop()

reactor.callWhenRunning(lambda: defer.ensureDeferred(calls()).addBoth(over))
reactor.run()
"""


@contextmanager
def talking(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that ends with the block."""
    pipe = subprocess.PIPE
    with running(["timeout", "90", *words], stdin=pipe, stdout=pipe, text=True) as program:
        try:
            yield program
        finally:
            program.terminate()  # `timeout` hands it on


def line(program: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert program.stdout is not None
    return program.stdout.readline().strip()


def journal_of(test: unittest.TestCase) -> Path:
    """A path for the journal of what was served, in a folder that goes with the test."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return Path(folder.name) / "journal"


class NapTests(unittest.TestCase):
    """Answers of one batch leave together, but none waits for a handler that takes long."""

    timeout = 60

    async def test_an_answer_does_not_wait_for_the_next_handler(self) -> None:
        core = Core(reactor)
        self.addCleanup(lambda: defer.ensureDeferred(core.stop()))
        gmp = open_gmp(core, "127.0.0.1", 0)
        gmp.add_key(KEY)
        with talking(sys.executable, "-c", SERVER, "127.0.0.1", "0", str(journal_of(self))) as server:
            peer = Peer("127.0.0.1", int(line(server)), KEY.key_id)
            await gmp.call(peer, 1, b"hello")
            ended: dict[bytes, float] = {}

            def call(body: bytes) -> defer.Deferred[None]:
                def over(_: bytes) -> None:
                    ended[body] = reactor.seconds()

                return gmp.call(peer, 1, body).addCallback(over)

            first = call(b"nap0.5")
            await task.deferLater(reactor, 0.2, lambda: None)
            await defer.gatherResults([first, call(b"at once"), call(b"nap1.0")])
        assert ended[b"at once"] - ended[b"nap0.5"] < 0.5
        assert ended[b"nap1.0"] - ended[b"at once"] > 0.5


class KillTests(unittest.TestCase):
    """A callee dies without a word and comes back at the same place."""

    timeout = 100

    def setUp(self) -> None:
        self.core = Core(reactor)
        self.addCleanup(lambda: defer.ensureDeferred(self.core.stop()))
        self.journal = journal_of(self)
        self.port = free_ports(1)[0]

    def server(self) -> subprocess.Popen[str]:
        """The callee's process, once it listens; its command line is the child's own, for kill -9."""
        words = (sys.executable, "-c", SERVER, "127.0.0.1", str(self.port), str(self.journal))
        program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end, program)
        self.assertEqual(line(program), str(self.port))
        return program

    def end(self, program: subprocess.Popen[str]) -> None:
        """Gone and waited for."""
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()

    async def test_killed_and_started_again_no_call_runs_twice(self) -> None:
        """What hung ends with PEER_RESTARTED by the next exchange, what comes after is served, and each
        request was executed once at most, whichever process did it."""
        gmp = open_gmp(self.core, "127.0.0.1", 0)
        gmp.add_key(KEY)
        peer = Peer("127.0.0.1", self.port, KEY.key_id)
        for sent in range(1, 4):
            program = self.server()
            answer = await gmp.call(peer, 1, b"%08d" % sent, deadline_s=30.0, idempotent=True)
            self.assertEqual(answer, b"%08d" % sent)
            hanging = [gmp.call(peer, 1, b"hang%04d" % (sent * 10 + i), deadline_s=80.0) for i in range(5)]
            while self.journal.read_bytes().count(b"hang") < 5 * sent:
                await task.deferLater(reactor, 0.02)
            program.send_signal(signal.SIGKILL)
            program.wait()
            again = self.server()
            mark = b"again%03d" % sent  # this one may be repeated towards the new process
            self.assertEqual(await gmp.call(peer, 1, mark, deadline_s=30.0, idempotent=True), mark)
            for call in hanging:
                try:
                    await call
                    self.fail("a dead process answered")
                except GmpError as error:
                    self.assertEqual(error.status, STATUS_PEER_RESTARTED)
            self.end(again)
        ran = self.journal.read_bytes().split()
        self.assertEqual(len(ran), len(set(ran)))
        self.assertEqual(len(ran), 3 * 7)


class MtuTests(unittest.TestCase):
    """Datagrams of 8 kB cross a device, and then no longer."""

    timeout = 150

    def setUp(self) -> None:
        mark = f"{os.getpid() % 100000}"
        self.spaces = f"gma{mark}", f"gmb{mark}"
        self.links = f"gva{mark}", f"gvb{mark}"
        for space in self.spaces:
            self.run_("ip", "netns", "add", space)
            self.addCleanup(self.run_, "ip", "netns", "del", space)
        (here, there), (mine, theirs) = self.spaces, self.links
        ends = f"{mine} netns {here} type veth peer name {theirs} netns {there}"
        self.run_("ip", "link", "add", *ends.split())
        for space, link, address in zip(
            self.spaces, self.links, ("10.77.4.1/24", "10.77.4.2/24"), strict=True
        ):
            self.run_(*self.inside(space), "ip", "addr", "add", address, "dev", link)
            self.run_(*self.inside(space), "ip", "link", "set", "dev", link, "mtu", "9000", "up")

    def run_(self, *words: str) -> None:
        """A command that has to work."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 0, (words, done.stderr))

    def inside(self, space: str) -> tuple[str, ...]:
        """What runs a program in a namespace."""
        return ("nsenter", f"--net=/run/netns/{space}")

    def test_the_mtu_falls_in_flight(self) -> None:
        """The size grows to what the device carries, falls when it does, and no call is lost or doubled."""
        journal = journal_of(self)
        there = (*self.inside(self.spaces[1]), sys.executable, "-c", SERVER, "10.77.4.2", "0", str(journal))
        with talking(*there) as server:
            port = line(server)
            here = (
                *self.inside(self.spaces[0]),
                sys.executable,
                "-c",
                CALLER,
                "10.77.4.2",
                port,
                "10.77.4.1",
            )
            with talking(*here) as caller:
                assert caller.stdin is not None
                for _ in range(100):
                    print(20, file=caller.stdin, flush=True)
                    if line(caller) == "1 0":
                        break
                else:
                    self.fail("the datagrams did not grow")
                for space, link in zip(self.spaces, self.links, strict=True):
                    self.run_(*self.inside(space), "ip", "link", "set", "dev", link, "mtu", "1500")
                print(40, file=caller.stdin, flush=True)
                up, down = line(caller).split()
                self.assertEqual((up, int(down) >= 1), ("1", True))
                caller.stdin.close()
                self.assertEqual(line(caller), "end")
        ran = journal.read_bytes().split()
        self.assertEqual(len(ran), len(set(ran)))
