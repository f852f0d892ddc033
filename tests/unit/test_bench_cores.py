"""Runs over loopback wait for cores that share a cache, and say how far they were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sector import errors
from sector.bench import cores, udt
from sector.bench.cores import NEAR_NS, PAUSE_S, TRIES, WAITS, Placement

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import judge

NEAR, FAR = NEAR_NS - 70, NEAR_NS + 250


class World:
    """A clock that sleeping moves, and distances, one for each question, then the last for ever."""

    def __init__(self, *distances: float) -> None:
        self.now = 0.0
        self.asked = 0
        self.told: list[str] = []
        self._distances = distances

    def measure(self) -> float:
        self.asked += 1
        return self._distances[min(self.asked, len(self._distances)) - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def placement(self, cores: int = 2, *, waits: bool = True) -> Placement:
        """What is tested."""
        return Placement(
            self.measure,
            cores=cores,
            sleep=self.sleep,
            clock=lambda: self.now,
            tell=self.told.append,
            waits=waits,
        )


@pytest.fixture
def work() -> Callable[[], dict[str, object]]:
    """Counts its runs."""
    runs = iter(range(1, 100))
    return lambda: {"run": next(runs)}


def test_near_cores_are_used_at_once(work: Callable[[], dict[str, object]]) -> None:
    """Looked at before and after."""
    world = World(NEAR, NEAR + 1)
    assert world.placement().run(work, 1.0) == {"run": 1, "cores_ns": NEAR + 1}
    assert (world.now, world.asked, world.told) == (0, 2, [])


def test_a_run_waits_until_they_are_near(work: Callable[[], dict[str, object]]) -> None:
    """Not longer."""
    world = World(FAR, FAR, NEAR)
    assert world.placement().run(work, 1.0) == {"run": 1, "cores_ns": NEAR}
    assert world.now == 2 * PAUSE_S


def test_a_run_in_which_they_were_moved_is_taken_again(work: Callable[[], dict[str, object]]) -> None:
    """So often and no more; the row says the truth."""
    assert World(NEAR, FAR, NEAR, NEAR).placement().run(work, 1.0) == {"run": 2, "cores_ns": NEAR}
    moving = World(*(NEAR, FAR) * TRIES)
    assert moving.placement().run(work, 1.0) == {"run": 2 + TRIES, "cores_ns": FAR}


def test_where_they_are_never_near_it_is_measured_all_the_same(work: Callable[[], dict[str, object]]) -> None:
    """After one wait in vain there is no other."""
    world = World(FAR)
    placement = world.placement()
    assert placement.run(work, 1.0) == {"run": 1, "cores_ns": FAR}
    waited = world.now
    assert WAITS <= waited <= WAITS + 2 * PAUSE_S
    assert placement.run(work, 1.0) == {"run": 2, "cores_ns": FAR}
    assert world.now == waited
    (line,) = world.told
    assert f"{FAR:.0f} ns" in line and f"up to {WAITS} s" in line


def test_who_does_not_wait_measures_at_once(work: Callable[[], dict[str, object]]) -> None:
    """And the row says how far the cores were."""
    world = World(FAR)
    assert world.placement(waits=False).run(work, 1.0) == {"run": 1, "cores_ns": FAR}
    assert world.now == 0 and not world.told


def test_once_they_were_near_again_it_waits_again(work: Callable[[], dict[str, object]]) -> None:
    """A host that moves them for a long time does not spoil all that comes later."""
    world = World(*[FAR] * (WAITS + 3), NEAR, NEAR, FAR, NEAR, NEAR)
    placement = world.placement()
    assert [placement.run(work, 1.0)["cores_ns"] for _ in range(3)] == [FAR, NEAR, NEAR]


def test_with_more_cores_nothing_is_looked_at(work: Callable[[], dict[str, object]]) -> None:
    """The scheduler chooses among them."""
    world = World(FAR)
    assert world.placement(cores=8).run(work, 1.0) == {"run": 1}
    assert world.placement(cores=8).near(1.0) == 0
    assert world.asked == 0


def test_the_document_counts_runs_with_cores_apart() -> None:
    """And says nothing where none was looked at."""
    rows = [{"cell": "sector", "cores_ns": ns} for ns in (77, 78, 400)] + [{"cell": "srt"}]
    text = judge.markdown(judge.Found(rows), "test")
    assert "shared a cache in 2 of 3 runs (a round trip between them took 77 to 400 ns)" in text
    assert "shared a cache" not in judge.markdown(judge.Found([{"cell": "srt"}]), "test")


def test_lost_bytes_are_told_after_the_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All peers are shown, and the status says that one figure is none."""
    rows = {"sector": {"gbps": 9.0, "ok": False}, "libudt": {"gbps": 4.0, "ok": True}}
    monkeypatch.setattr(udt, "run_one", lambda peer, *_: {"peer": peer, **rows[peer]})
    with pytest.raises(errors.SectorError, match=r"did not arrive: sector$"):
        udt._loopback(list(rows), 1, 1.0, True, "", cores.HERE)
    assert '"libudt"' in capsys.readouterr().out
