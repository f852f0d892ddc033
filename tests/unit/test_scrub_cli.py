"""`sector node scrub`: what it waits for, what it says, how it ends; the master's side with old slaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from master_cluster import Cluster
from msgspec.structs import replace
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector import errors
from sector.cli import main
from sector.cli import scrub as command
from sector.cli.cluster import scrub_line
from sector.master.scrubs import scrub_counters
from sector.model import Version
from sector.wire import slave as wire
from sector.wire.admin import BadReplica, NodeList, NodeScrub, NodeScrubbed, NodeScrubs
from sector.wire.slave import ScrubState

DONE = ScrubState(3, ended=5.0, total_files=2, total_bytes=1000, files=2, done_bytes=1000)
RUNS = replace(DONE, running=True, asked=True, done_bytes=400)


class Nodes:
    """Slaves as a master tells of them: each answer is the next of `script`, the last one again and again."""

    def __init__(self, script: list[list[NodeScrubbed]]) -> None:
        self.clock = Clock()
        self.script = script
        self.asked: list[NodeScrub] = []

    async def ask(self, request: Any) -> NodeScrubs:
        self.asked.append(request)
        some = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return NodeScrubs([node for node in some if not request.nodes or node.id in request.nodes])

    def run(self, shared: Any, work: Callable[[Any, Any], Any]) -> Any:
        """In place of a session with a master."""
        outcome: list[Any] = []
        done: Deferred[Any] = ensureDeferred(work(self.ask, self.clock))
        done.addBoth(outcome.append)
        for _ in range(2000):
            if outcome:
                return outcome[0]
            self.clock.advance(1)
        raise AssertionError("it never ends")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[list[NodeScrubbed]]], Nodes]:
    def make(script: list[list[NodeScrubbed]]) -> Nodes:
        nodes = Nodes(script)
        monkeypatch.setattr(command, "converse", nodes.run)
        return nodes

    return make


def one(state: ScrubState, *repairs: str, error: str = "", name: str = "s1") -> NodeScrubbed:
    bad = [BadReplica(f"/f{n}", Version(1, 2), "block 0 rots", 1.0, how) for n, how in enumerate(repairs)]
    return NodeScrubbed(name, replace(state, bad_files=len(bad)), error, bad)


Script = Callable[[list[list[NodeScrubbed]]], Nodes]


def test_without_wait_it_only_begins(scripted: Script, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = scripted([[one(RUNS)]])
    assert main.run(["node", "scrub", "s1"]) == 0
    assert nodes.asked == [NodeScrub(["s1"], True)]
    assert "has begun" in capsys.readouterr().out


def test_nothing_bad_is_status_0(scripted: Script, capsys: pytest.CaptureFixture[str]) -> None:
    scripted([[one(RUNS)], [one(RUNS)], [one(DONE)]])
    assert main.run(["node", "scrub", "--all", "--wait", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ended"], told["bad_replicas"], told["nodes"][0]["state"]["total_bytes"]) == (True, 0, 1000)


def test_bad_replicas_are_named_with_their_repair_and_status_1(
    scripted: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for the repair, too."""
    scripted(
        [[one(RUNS)], [one(DONE, "waiting", "lost")]]
        + 3 * [[one(DONE, "waiting", "lost")]]
        + [[one(DONE, "repaired", "lost")]]
    )
    assert main.run(["node", "scrub", "--all", "--wait"]) == 1
    out = capsys.readouterr().out
    assert "s1 /f0 (version 1.2): block 0 rots: repaired from a good copy" in out
    assert "/f1" in out and "NO good copy" in out


def test_a_repair_that_cannot_be_is_not_waited_for_without_end(scripted: Script) -> None:
    nodes = scripted([[one(RUNS)], [one(DONE, "waiting")]])
    assert main.run(["node", "scrub", "--all", "--wait"]) == 1
    assert command.REPAIR_S <= nodes.clock.seconds() < 2 * command.REPAIR_S


def test_a_silent_slave_is_told_of(scripted: Script, capsys: pytest.CaptureFixture[str]) -> None:
    """One that never answers at once, one that fell silent after a minute; the others count."""
    scripted([[one(RUNS), one(DONE, error="slave s2 is not there", name="s2")]])
    assert main.run(["node", "scrub", "--all"]) == 1
    assert "s2 is not there" in capsys.readouterr().err
    nodes = scripted([[one(RUNS)], [one(RUNS, error="it does not answer")]])
    assert main.run(["node", "scrub", "s1", "--wait"]) == 1
    assert command.SILENT_S < nodes.clock.seconds() < 2 * command.SILENT_S


def test_a_pass_that_a_restart_forgot_is_begun_again(scripted: Script) -> None:
    """Also when the slave has begun to count anew."""
    old = replace(DONE, number=1)
    nodes = scripted(
        [[one(RUNS)], [one(old)], [one(replace(RUNS, number=2))], [one(replace(DONE, number=2))]]
    )
    assert main.run(["node", "scrub", "s1", "--wait"]) == 0
    assert [request.start for request in nodes.asked] == [True, False, True, False, False]


def test_the_time_is_over(scripted: Script, capsys: pytest.CaptureFixture[str]) -> None:
    scripted([[one(RUNS)]])
    assert main.run(["node", "scrub", "s1", "--wait", "--timeout", "5"]) == 1
    assert "the scrub goes on" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--all", "s1"], ["--all", "--timeout", "3"]])
def test_wrong_use(arguments: list[str]) -> None:
    assert main.run(["node", "scrub", *arguments]) == 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master with slaves that know nothing of scrubs."""
    made = Cluster(tmp_path, slaves=2)
    yield made
    made.close()


def test_slaves_of_an_older_version_are_told_of_and_hinder_none(cluster: Cluster) -> None:
    """The one that knows of scrubs is read; the answer for the other names the reason."""
    admin = cluster.client("root", roles=("user", "admin"))
    cluster.slaves["s1"].rpc.serve(wire.Scrub, lambda request, caller: wire.ScrubReply(RUNS))
    told = {node.id: node for node in admin.ask(NodeScrub([], True)).nodes}
    assert told["s1"].error == "" and told["s1"].state == RUNS
    assert "version is too old" in told["s2"].error
    assert {node.id: node.scrub.running for node in admin.ask(NodeList()).nodes} == {"s1": True, "s2": False}
    with pytest.raises(errors.NotFound, match="s9"):
        admin.ask(NodeScrub(["s9"], True))


def test_status_says_how_old_the_oldest_pass_is() -> None:
    """In one line for all slaves; one that was never read again is not hidden by the others."""
    read = scrub_counters(replace(DONE, ended=86400.0 * 365, all_bad_files=2))
    assert "1971-01-01" in scrub_line({"s1": read, "s2": scrub_counters(DONE) | {"scrub_ended": 1 << 31}})
    line = scrub_line({"s1": read, "s2": scrub_counters(replace(RUNS, ended=0.0))})
    assert line.startswith("not all replicas were read again yet, 1 of 2 slaves read now, 40 % done, 2 bad")
    assert scrub_line({"s1": {}}).startswith("not all"), "a master of an older version tells nothing"
