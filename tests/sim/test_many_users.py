"""Users at work at the same time, each in a directory of their own, while slaves and the master are killed:
what each was told is so, whatever the others and the faults do (simulated)."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from sector import errors
from sector.clock import pause
from sector.testing.cluster import SimCluster

STEPS = int(os.environ.get("SECTOR_TEST_SIM_STEPS", "25"))  # of each user
USERS = 3
DOUBT_S = 90.0  # after this nothing happens any more of what failed in doubt
Tree = dict[str, bytes | None]  # files with their bytes, directories


class Refused(Exception):
    """What the cloud must say, by its name."""


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def below(tree: Tree, path: str) -> list[str]:
    return [one for one in tree if one == path or one.startswith(path + "/")]


def write(tree: Tree, path: str, content: bytes) -> None:
    tree.setdefault(parent(path), None)
    tree[path] = content


def remove(tree: Tree, path: str) -> None:
    if path not in tree:
        raise Refused("NotFound")
    for one in below(tree, path):
        del tree[one]


def make(tree: Tree, path: str) -> None:
    if path in tree:
        raise Refused("Exists")
    tree[path] = None


def move(tree: Tree, source: str, target: str) -> None:
    if source not in tree:
        raise Refused("NotFound")
    if target in tree and tree[target] is None:
        target += "/" + source.rpartition("/")[2]
    if parent(target) not in tree:
        raise Refused("NotFound")
    if target in tree and (tree[target] is None or tree[source] is None):
        raise Refused("Exists")
    for one in below(tree, source):
        tree[target + one[len(source) :]] = tree.pop(one)


class User:
    """`trees`: what there may be below his directory, as far as he was told."""

    def __init__(self, sim: SimCluster, name: str, seed: int) -> None:
        self.sim, self.random, self.home = sim, random.Random(seed), f"/{name}"
        self.cloud = sim.client()
        self.trees: list[Tree] = [{self.home: None}]
        self.done: list[str] = []

    async def run(self) -> None:
        for number in range(STEPS):
            await self.step(b"%d " % number)
            if self.random.random() < 0.3:
                await pause(self.sim.clock, self.random.random() * 3)

    async def step(self, mark: bytes) -> None:
        path = f"{self.home}/{self.random.choice('ab')}"
        other = f"{self.home}/{self.random.choice('ab')}"
        file = f"{path}/{self.random.choice('fg')}"
        what, cloud = self.random.randrange(20), self.cloud
        if what < 3:
            await self.change("mkdir", cloud.mkdir(path), lambda tree: make(tree, path))
        elif what < 9:
            content = mark + self.random.randbytes(self.random.choice([0, 100, 1_200_000]))
            await self.change(
                f"write {file}", cloud.write(file, content), lambda tree: write(tree, file, content)
            )
        elif what < 11:
            await self.change(f"rm {file}", cloud.rm(file), lambda tree: remove(tree, file))
        elif what < 12:
            await self.change(f"rm {path}", cloud.rm(path, recursive=True), lambda tree: remove(tree, path))
        elif what < 14 and path != other:
            await self.change(
                f"mv {path} {other}", cloud.mv(path, other), lambda tree: move(tree, path, other)
            )
        elif what < 16:
            to = f"{other}/{self.random.choice('fg')}"
            if to != file:
                work = cloud.mv(file, to, overwrite=True)
                await self.change(f"mv {file} {to}", work, lambda tree: move(tree, file, to))
        else:
            await self.read(file)

    async def change(self, what: str, work: Awaitable[Any], act: Callable[[Tree], None]) -> None:
        """Do it, and think of what may be afterwards."""
        told = ""
        try:
            await work
        except (errors.NotFound, errors.Exists) as error:
            told = type(error).__name__
        except errors.SectorError as error:
            told = f"? {type(error).__name__}"
            await pause(self.sim.clock, DOUBT_S)
        self.done.append(f"{self.sim.clock.seconds():.1f} {what}: {told or 'done'}")
        trees: list[Tree] = []
        for tree in self.trees:
            after = dict(tree)
            said = ""
            try:
                act(after)
            except Refused as refused:
                said = str(refused)
            if told.startswith("?"):
                trees += [tree, after] if not said else [tree]
            elif told == said:
                trees.append(after)
        assert trees, self.done
        self.trees = [tree for at, tree in enumerate(trees) if tree not in trees[:at]]

    async def read(self, path: str) -> None:
        found: bytes | None = None
        try:
            found = await self.cloud.read(path)
        except errors.NotFound:
            pass
        except errors.SectorError:
            return
        self.done.append(f"{self.sim.clock.seconds():.1f} read {path}: {found[:12] if found else found!r}")
        self.trees = [tree for tree in self.trees if tree.get(path) == found]
        assert self.trees, self.done


async def all_of(work: list[Deferred[None]]) -> None:
    for one in work:
        await one


@pytest.mark.parametrize("round_", range(4))
def test_each_user_finds_what_he_was_told(tmp_path: Path, seed: int, round_: int) -> None:
    rng = random.Random(seed * 1000 + round_)
    with SimCluster(tmp_path / "sim", slaves=4, seed=rng.randrange(1 << 30), disk_s=0.02) as sim:
        users = [User(sim, f"u{number}", rng.randrange(1 << 30)) for number in range(USERS)]
        for user in users:
            sim.wait(user.cloud.mkdir(user.home))
        ended: list[Any] = []
        working = ensureDeferred(all_of([ensureDeferred(user.run()) for user in users]))
        working.addBoth(ended.append)
        down: list[str] = []
        while not ended:
            sim.advance(rng.random() * 6)
            fault = rng.randrange(8)
            if fault == 0 and len(down) < 2:
                down.append(rng.choice([name for name in sim.slaves if name not in down]))
                sim.kill_slave(down[-1])
            elif fault < 4 and down:
                sim.start_slave(down.pop(0))
            elif fault == 4:
                sim.kill_master()
                sim.advance(rng.random() * 3)
                sim.start_master()
        if ended[0] is not None:
            ended[0].raiseException()
        for name in down:
            sim.start_slave(name)
        sim.advance(120)
        for user in users:
            for path in sorted({path for tree in user.trees for path in tree}):
                if any(tree.get(path) is not None for tree in user.trees):
                    sim.wait(ensureDeferred(user.read(path)))
            listed = {info.path for info in sim.wait(user.cloud.ls(user.home, recursive=True))}
            assert any(listed == set(tree) - {user.home} for tree in user.trees), user.done
