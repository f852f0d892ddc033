"""Users who write, move and remove all the time, and slaves that report, vanish and come back meanwhile: what
was acknowledged is there in the end, as often as wanted, and nothing else is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.defer import TimeoutError as NotInTime

from sector import errors
from sector.testing.cluster import SimCluster, SimSlave

MOVES = "move", "move", "move over", "twice", "move directory"
DEEDS = ("write", "write", "write below", "replace", *MOVES, "remove", "remove directory")
GIVEN_UP_S = 20.0
NOT_NOW = (
    errors.Unavailable,
    errors.Unreachable,
    errors.TimedOut,
    errors.Busy,
    errors.Cancelled,
    CancelledError,
    NotInTime,
)


class User:
    """One user in a directory of his own; `files` is what must be there, after as many deeds as are `done`.
    What an error leaves open is no longer looked at."""

    def __init__(self, sim: SimCluster, name: str, rng: random.Random) -> None:
        self.files: dict[str, bytes] = {}
        self.done = 0
        self.stopping = False
        self._sim = sim
        self._rng = rng
        self._base = f"/{name}"
        self._number = 0
        self._cloud: Any = sim.client(name)

    async def live(self) -> None:
        """Deeds, until `stopping`."""
        await self._cloud.mkdir(self._base)
        while not self.stopping:
            self._number += 1
            deed = self._rng.choice(DEEDS) if self.files else "write"
            concerned = self._names(deed)
            try:
                await getattr(self, "_" + deed.replace(" ", "_"))(*concerned)
            except (errors.SectorError, CancelledError, NotInTime):
                self._forget(concerned)
                await self._pause(1.0)
            else:
                self.done += 1
                await self._read(concerned)
            await self._pause(self._rng.choice([0.01, 0.3]))

    async def _pause(self, most_s: float) -> None:
        over: Deferred[None] = Deferred()
        self._sim.clock.callLater(self._rng.random() * most_s, over.callback, None)
        await over

    def _names(self, deed: str) -> list[str]:
        """What a deed concerns: what is there first, what is to be there last."""
        path = self._rng.choice(sorted(self.files)) if self.files else ""
        fresh = f"{self._base}/{self._number}"
        if deed.endswith("directory"):
            path = path.rpartition("/")[0]
            return [fresh] if path == self._base else [path, fresh]
        if deed == "move over":
            return [path, self._rng.choice(sorted(self.files))]
        folder = f"{self._base}/d{self._number % 3}"
        return {
            "write": [fresh],
            "write below": [folder, f"{folder}/{self._number}"],
            "replace": [path],
            "move": [path, fresh],
            "twice": [path, fresh, fresh + "b"],
            "remove": [path],
        }[deed]

    def _forget(self, concerned: list[str]) -> None:
        for path in list(self.files):
            if any(path == one or path.startswith(one + "/") for one in concerned):
                del self.files[path]

    async def _do(self, work: Deferred[Any]) -> None:
        await work.addTimeout(GIVEN_UP_S, self._sim.clock)  # a call to a master that was killed

    async def _read(self, concerned: list[str]) -> None:
        """What was acknowledged is read by its new name at once, or cannot be read now."""
        path = next((path for path in reversed(concerned) if path in self.files), "")
        if not path:
            return
        reading: Deferred[bytes] = self._cloud.read(path)
        try:
            content = await reading.addTimeout(GIVEN_UP_S, self._sim.clock)
        except NOT_NOW:
            return
        assert content == self.files[path], path

    async def _write(self, path: str) -> None:
        content = self._rng.randbytes(self._rng.randrange(1, 30_000))
        await self._do(self._cloud.write(path, content))
        self.files[path] = content

    _replace = _write

    async def _write_below(self, folder: str, path: str) -> None:
        await self._do(self._cloud.mkdir(folder, parents=True))
        await self._write(path)

    async def _move(self, source: str, target: str) -> None:
        await self._do(self._cloud.mv(source, target))
        self.files[target] = self.files.pop(source)

    async def _twice(self, source: str, between: str, target: str) -> None:
        await self._move(source, between)
        await self._move(between, target)

    async def _move_over(self, source: str, target: str) -> None:
        if source != target:
            await self._do(self._cloud.mv(source, target, overwrite=True))
            self.files[target] = self.files.pop(source)

    async def _move_directory(self, source: str, target: str = "") -> None:
        if target:
            await self._do(self._cloud.mv(source, target))
            for path in [path for path in self.files if path.startswith(source + "/")]:
                self.files[target + path[len(source) :]] = self.files.pop(path)

    async def _remove(self, path: str) -> None:
        await self._do(self._cloud.rm(path))
        del self.files[path]

    async def _remove_directory(self, path: str, fresh: str = "") -> None:
        if fresh:
            await self._do(self._cloud.rm(path, recursive=True))
            self._forget([path])


class Trouble:
    """What happens to the cluster meanwhile; `end` ends it."""

    def __init__(self, sim: SimCluster, rng: random.Random) -> None:
        self._sim = sim
        self._rng = rng
        self._down = ""

    def reports(self) -> None:
        """Some slaves tell all that they have."""
        for node in self._sim.up().hub.core.members.nodes.values():
            node.want_report |= self._rng.random() < 0.3

    def slaves(self) -> None:
        """A slave vanishes, or comes back."""
        if self._down:
            self._sim.start_slave(self._down)
            self._down = ""
        else:
            self._down = self._rng.choice(list(self._sim.slaves))
            self._sim.kill_slave(self._down)

    def master(self) -> None:
        """The master is killed, and starts again after a while."""
        self._sim.kill_master()
        self._sim.advance(self._rng.random() * 3)
        self._sim.start_master()

    def network(self) -> None:
        """One way or both between the master and a slave are cut, or are there again."""
        if self._sim.hub.blocked:
            self._sim.hub.blocked.clear()
            return
        gmp = self._sim.slaves[self._rng.choice(list(self._sim.slaves))].gmp
        assert gmp is not None
        master, slave = self._sim.up().hub.gmp.address[1], gmp.address[1]
        ways = [(master, slave), (slave, master)]
        self._sim.hub.blocked.update(self._rng.choice([ways, ways[:1], ways[1:]]))

    def end(self) -> None:
        """All is well again."""
        self._sim.hub.blocked.clear()
        if self._down:
            self.slaves()


def lived(sim: SimCluster, rng: random.Random, kinds: list[str], seconds: float) -> dict[str, bytes]:
    """Let users live so long beside trouble of these kinds; what must be there."""
    trouble = Trouble(sim, rng)
    users = [User(sim, f"u{number}", rng) for number in range(3)]
    failed: list[Any] = []
    for user in users:
        ensureDeferred(user.live()).addErrback(failed.append)
    end = sim.clock.seconds() + seconds
    while sim.clock.seconds() < end:
        sim.advance(rng.random())
        what: Callable[[], None] = getattr(trouble, rng.choice([*kinds, "reports", "reports", "reports"]))
        what()
    for user in users:
        user.stopping = True
    trouble.end()
    sim.advance(60, step=0.05)
    assert not failed and sum(user.done for user in users) > 5
    return {path: content for user in users for path, content in user.files.items()}


def settled(sim: SimCluster) -> None:
    """All slaves have reported, twice, and what was to be copied or removed is."""
    for _ in range(2):
        for node in sim.up().hub.core.members.nodes.values():
            node.want_report = True
        sim.advance(60, step=0.05)
    sim.until(lambda: _copied(sim), 600)


def aside(slave: SimSlave) -> list[str]:
    """Why there is something in the attic of a slave."""
    boxes = (slave.root / ".sector" / "attic").iterdir()
    return [json.loads((box / "info.json").read_text())["why"] for box in boxes]


def _copied(sim: SimCluster) -> bool:
    files = [entry for entry in sim.wait(sim.clients[0].ls("/", recursive=True)) if entry.kind == "file"]
    return all(len(sim.serving(entry.path)) == 2 for entry in files)


@pytest.mark.parametrize("kind", ["", "slaves", "master", "network", "slaves master network"])
def test_what_was_acknowledged_is_there_and_nothing_else(tmp_path: Path, seed: int, kind: str) -> None:
    """Two replicas of each file, on slaves whose disks are slow. Where no slave was killed nothing of what
    users removed or replaced has ended in an attic either, but for what waits there to be moved on."""
    rng = random.Random(seed + len(kind))
    with SimCluster(tmp_path / "sim", slaves=4, copies=2, seed=seed, disk_s=0.05) as sim:
        files = lived(sim, rng, kind.split(), 40)
        settled(sim)
        cloud = sim.client()
        for path, content in files.items():
            assert sim.wait(cloud.read(path)) == content, path
        known = {entry.path for entry in sim.wait(cloud.ls("/", recursive=True)) if entry.kind == "file"}
        for slave in sim.slaves.values():
            assert slave.service is not None
            tree = slave.root / "files"
            here = {"/" + str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}
            assert here == set(slave.service.disk.entries) <= known, slave.name
            assert "slaves" in kind or set(aside(slave)) <= {"a newer file has the name that it was to have"}
