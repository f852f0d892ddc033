"""Puts and gets of directories while the master restarts: they wait before their first byte, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.testing.cluster import SimCluster
from sector.wire.base import Request
from sector.wire.files import List, Mkdir, Stat

AWAY_S = 100.0


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    with SimCluster(tmp_path / "sim", seed=seed) as cluster:
        yield cluster


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """Directories with a file each."""
    for number in range(4):
        folder = tmp_path / "web" / str(number)
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes([number]) * 100)
    return tmp_path / "web"


def restart_at(sim: SimCluster, cloud: Any, kind: type[Request], number: int) -> list[Request]:
    """The master goes when the client is about to send that request, and is back after AWAY_S. What is sent
    from then on."""
    call: Callable[..., Any] = cloud.rpc.call
    before: list[Request] = []
    after: list[Request] = []

    def sent(peer: Any, request: Request, **options: Any) -> Any:
        if isinstance(request, kind):
            before.append(request)
            if len(before) == number:
                sim.clock.callLater(0, lambda: gone(sim))
        if len(before) >= number:
            after.append(request)
        return call(peer, request, **options)

    cloud.rpc.call = sent
    return after


def gone(sim: SimCluster) -> None:
    """Kill the master from within the clock; it starts again outside of it."""
    master, sim.master = sim.up(), None
    master.hub.gmp.stop()
    master.stopService()
    sim.hub.endpoints.pop(("127.0.0.1", 7002), None)


def come_back(sim: SimCluster, outcome: list[Any]) -> None:
    sim.until(lambda: sim.master is None)
    sim.advance(AWAY_S, step=0.1)
    assert not outcome
    sim.start_master()


@pytest.mark.parametrize(("kind", "number"), [(Stat, 1), (Mkdir, 1), (Mkdir, 2), (Mkdir, 4)])
def test_a_put_of_a_directory_waits(sim: SimCluster, local: Path, kind: type[Request], number: int) -> None:
    cloud, outcome = sim.client(), []
    after = restart_at(sim, cloud, kind, number)
    putting = cloud.put(local, "/web", recursive=True)
    putting.addBoth(outcome.append)
    come_back(sim, outcome)
    sim.until(lambda: outcome)
    assert len(outcome[0].files) == 4 and len(after) > 4
    assert sim.wait(sim.client().read("/web/3/file")) == b"\3" * 100


def test_a_put_of_a_file_waits_with_its_directory(sim: SimCluster, local: Path) -> None:
    cloud, outcome = sim.client(), []
    restart_at(sim, cloud, Mkdir, 1)
    putting = cloud.put(local / "3" / "file", "/a/b/file")
    putting.addBoth(outcome.append)
    come_back(sim, outcome)
    sim.until(lambda: outcome)
    assert len(outcome[0].files) == 1


@pytest.mark.parametrize(("kind", "number"), [(Stat, 1), (List, 1), (List, 2)])
def test_a_get_of_a_directory_waits(
    sim: SimCluster, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, number: int
) -> None:
    cloud, outcome = sim.client(), []
    sim.wait(cloud.put(local, "/web", recursive=True))
    if number > 1:
        monkeypatch.setattr("sector.client.cloud.List", lambda *args: List(*args[:3], 3))
    restart_at(sim, cloud, kind, number)
    getting = cloud.get("/web", tmp_path / "got", recursive=True)
    getting.addBoth(outcome.append)
    come_back(sim, outcome)
    sim.until(lambda: outcome)
    assert len(outcome[0].files) == 4
    assert (tmp_path / "got" / "3" / "file").read_bytes() == b"\3" * 100


def test_other_commands_fail_within_seconds(sim: SimCluster) -> None:
    cloud = sim.client()
    sim.kill_master()
    for work in (cloud.ls("/"), cloud.mkdir("/a"), cloud.mkdir("/b", parents=True)):
        at = sim.clock.seconds()
        with pytest.raises((errors.Unreachable, errors.TimedOut)):
            sim.wait(work)
        assert sim.clock.seconds() - at < 15
