"""What the statistics of a connection say, against a link whose rate, delay and losses are known."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from running import running

from sector.bench import wan
from sector.bench.link import Link

pytestmark = pytest.mark.alone
COMMON = """
import json, sys
from twisted.internet import reactor, task
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from sector._udt.limits import sending

host, how = sys.argv[1:]
"""
SERVER = (
    COMMON
    + """
class Sink(Protocol):
    got, peak = 0, 0
    def connectionMade(self):
        if how == "receiver":
            self.transport.pauseProducing()
            task.LoopingCall(self.sip).start(0.02)
        else:
            task.LoopingCall(self.look).start(0.5, now=False)
    def sip(self):
        self.transport.resumeProducing()
    def dataReceived(self, data):
        self.got += len(data)
        if how == "receiver":
            self.transport.pauseProducing()
    def look(self):
        self.peak = max(self.peak, self.transport.stats()["recv_Bps"])
    def connectionLost(self, reason):
        print(json.dumps(self.transport.stats() | {"got": self.got, "peak": self.peak}), flush=True)
        reactor.stop()

options = ":receiveBuffer=100000" if how == "receiver" else ""
server = serverFromString(reactor, "udt:7000:interface=0.0.0.0" + options)
server.listen(Factory.forProtocol(Sink)).addCallback(lambda _: print("ready", flush=True))
reactor.run()
"""
)
CLIENT = (
    COMMON
    + """
class Source(Protocol):
    wrote, paused = 0, False
    def connectionMade(self):
        self.transport.registerProducer(self, True)
        self.task = task.LoopingCall(self.more)
        self.task.start(0.05 if how == "sender" else 0.002)
        reactor.callLater(4, self.over)
    def more(self):
        while not self.paused:
            self.wrote += 20000
            self.transport.write(bytes(20000))
            if how == "sender":
                break
    def pauseProducing(self):
        self.paused = True
    def resumeProducing(self):
        self.paused = False
    def stopProducing(self):
        pass
    def over(self):
        self.task.stop()
        self.late = self.transport.stats()
        self.shares = sending(self.late)
        self.transport.unregisterProducer()
        self.transport.loseConnection()
    def connectionLost(self, reason):
        end = self.transport.stats()
        print(json.dumps({"wrote": self.wrote, "late": self.late, "end": end, "shares": self.shares}))
        reactor.stop()

options = {"cap": ":maxBandwidth=1000000"}.get(how, "")
clientFromString(reactor, f"udt:{host}:7000{options}").connect(Factory.forProtocol(Source))
reactor.run()
"""
)


def over(line: str, how: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What the sender, the receiver and the link say of four seconds."""
    with wan.emulated(Link.parse(line), engine="user", seed=3) as path:
        receiver = [*path.receiver, sys.executable, "-c", SERVER, "10.77.0.2", how]
        with running(receiver, stdout=subprocess.PIPE, text=True) as there:
            try:
                assert there.stdout and there.stdout.readline() == "ready\n"
                sender = [*path.sender, sys.executable, "-c", CLIENT, "10.77.0.2", how]
                here = subprocess.run(
                    sender, stdout=subprocess.PIPE, text=True, timeout=60, check=True
                ).stdout
                answer, _ = there.communicate(timeout=60)
            finally:
                there.kill()
    return json.loads(here), json.loads(answer), path.report["ab"]


def test_a_lossy_link_is_described_as_it_is() -> None:
    """Rate, round trip and losses of the sender's statistics are those of the link."""
    sender, receiver, link = over("rate=40m,rtt=60ms,loss=1%", "network")
    late, end = sender["late"], sender["end"]
    lost = link["drop_loss"] + link["drop_queue"]
    assert abs(end["pkts_lost"] - lost) <= 0.05 * lost and lost > 100
    assert abs(end["loss_ppm"] - 1e6 * lost / link["in_frames"]) < 1500
    # sent again is what was lost, and little besides; what came twice is the rest
    assert end["pkts_lost"] <= end["pkts_retrans"] <= 1.1 * end["pkts_lost"] + 5
    assert receiver["pkts_dup"] <= end["pkts_retrans"] - end["pkts_lost"] + 2
    assert end["bytes_sent"] == sender["wrote"] == receiver["got"] == receiver["bytes_recv"]
    assert end["bytes_retrans"] <= 1456 * end["pkts_retrans"]
    assert 60_000 <= late["min_rtt_us"] <= 62_500
    assert late["min_rtt_us"] <= late["rtt_us"] <= 60_000 + 65_000  # and at most a full queue
    payload = 40e6 / 8 * 1456 / 1538  # what the line carries in a second
    for rate in late["send_Bps"], receiver["peak"]:
        assert 0.85 * payload < rate < 1.05 * payload
    assert sender["shares"]["network"] > 0.9


@pytest.mark.parametrize("how", ["sender", "cap", "receiver"])
def test_who_keeps_a_connection_slow_is_named(how: str) -> None:
    """A program that has little to send, a cap, and a receiver that sips."""
    sender, receiver, _ = over("rate=40m,rtt=60ms", how)
    assert max(sender["shares"], key=sender["shares"].get) == how and sender["shares"][how] > 0.8
    late = sender["late"]
    assert late["pkts_lost"] == 0 and late["queue_bytes"] < 50_000
    assert 60_000 <= late["min_rtt_us"] <= late["rtt_us"] < 75_000
    if how == "sender":
        assert 0.9 * 400_000 < late["send_Bps"] < 1.1 * 400_000
        assert 0.9 * 400_000 < receiver["peak"] < 1.1 * 400_000
    if how == "cap":  # bytes of IP packets
        assert 0.9 * 970_667 < late["send_Bps"] < 1.02 * 970_667
    assert receiver["got"] == sender["wrote"]
