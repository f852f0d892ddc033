"""Slaves read their replicas again: rot at rest is found before a reader meets it, and repaired."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from sector.errors import Denied, TimedOut
from sector.testing.cluster import SimCluster
from sector.wire.admin import NodeList, NodeScrub, NodeScrubs, Status
from sector.wire.slave import Adopted

DAY = 86400.0


def flip(file: Path, at: int, *, quiet: bool = True) -> None:
    """One bit of a file is another one; `quiet` = its times say nothing of it."""
    stamp = file.stat()
    with open(file, "r+b") as target:
        (byte,) = os.pread(target.fileno(), 1, at)
        os.pwrite(target.fileno(), bytes([byte ^ 0x10]), at)
    if quiet:
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def filled(sim: SimCluster, count: int, rng: random.Random) -> dict[str, bytes]:
    """So many files with three good replicas each."""
    cloud = sim.client()
    files = {f"/d{n}": rng.randbytes(rng.randrange(1, 3 << 20)) for n in range(count)}
    for path, content in files.items():
        sim.wait(cloud.write(path, content))
    sim.until(lambda: all(len(sim.serving(path)) == 3 for path in files))
    sim.advance(2)
    return files


def scrubbed(sim: SimCluster, *nodes: str) -> NodeScrubs:
    """What a user gets who has nodes read their replicas and waits for the end, and for repairs."""
    admin = sim.client("root", roles=("user", "admin"))
    sim.wait(admin.session.call(NodeScrub(list(nodes), True)))
    found: list[NodeScrubs] = []

    def over() -> bool:
        found.append(sim.wait(admin.session.call(NodeScrub(list(nodes), False, True))))
        waits = any(bad.repair == "waiting" for node in found[-1].nodes for bad in node.bad)
        return not waits and not any(node.state.running for node in found[-1].nodes)

    sim.until(over, 300)
    return found[-1]


def attic(sim: SimCluster, name: str) -> list[str]:
    """Paths of what lies in the attic of a slave."""
    boxes = (sim.slaves[name].root / ".sector" / "attic").iterdir()
    return sorted(json.loads((box / "info.json").read_text())["path"] for box in boxes)


def test_flipped_bits_on_one_slave_are_found_and_repaired(tmp_path: Path, seed: int) -> None:
    """Whatever bit of whatever file it is, also where the times of the file tell; sound replicas stay."""
    rng = random.Random(seed)
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        files = filled(sim, 12, rng)
        rotten = rng.sample(sorted(files), 6)
        for number, path in enumerate(rotten):
            flip(sim.slaves["s2"].native(path), rng.randrange(len(files[path])), quiet=number % 2 == 0)
        result = scrubbed(sim)
        assert {node.id: sorted(bad.path for bad in node.bad) for node in result.nodes} == {
            "s1": [],
            "s2": sorted(rotten),
            "s3": [],
        }
        assert {bad.repair for node in result.nodes for bad in node.bad} == {"repaired"}
        assert attic(sim, "s2") == sorted(rotten)
        for slave in sim.slaves.values():
            for path, content in files.items():
                assert slave.native(path).read_bytes() == content, (slave.name, path)
        assert all(node.bad == [] for node in scrubbed(sim).nodes)


def test_a_file_whose_replicas_are_all_bad_is_kept_aside(tmp_path: Path, seed: int) -> None:
    """Nobody knows which bits are the right ones: no copy is deleted, and none counts as good."""
    rng = random.Random(seed)
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        files = filled(sim, 3, rng)
        for slave in sim.slaves.values():
            flip(slave.native("/d1"), rng.randrange(len(files["/d1"])))
        result = scrubbed(sim)
        assert [(bad.path, bad.repair) for node in result.nodes for bad in node.bad] == 3 * [("/d1", "lost")]
        sim.advance(60)
        for name in sim.slaves:
            assert attic(sim, name) == ["/d1"]
        assert sim.serving("/d1") == []
        assert sim.wait(sim.client().read("/d2")) == files["/d2"]


def test_bad_records_short_and_missing_files(tmp_path: Path, seed: int) -> None:
    """A damaged record is written anew, since the content is what was published; a file that is shorter,
    longer, or gone is replaced."""
    rng = random.Random(seed)
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        files = filled(sim, 6, rng)
        one = sim.slaves["s1"]
        records = {
            json.loads(file.read_text())["path"]: file for file in one.root.glob(".sector/meta/*/*.json")
        }
        flip(records["/d0"], records["/d0"].stat().st_size // 2)
        records["/d1"].unlink()
        os.truncate(one.native("/d2"), len(files["/d2"]) - 1)
        with open(one.native("/d3"), "ab") as file:
            file.write(b"more")
        one.native("/d4").unlink()
        result = scrubbed(sim, "s1")
        (node,) = result.nodes
        assert {bad.path: bad.repair for bad in node.bad} == {
            "/d0": "record",
            "/d1": "record",
            "/d2": "repaired",
            "/d3": "repaired",
            "/d4": "repaired",
        }
        assert (node.state.bad_files, node.state.mended) == (5, 2)
        for path, content in files.items():
            assert one.native(path).read_bytes() == content, path
        assert scrubbed(sim, "s1").nodes[0].bad == []


def test_it_happens_by_itself_within_the_period(tmp_path: Path, seed: int) -> None:
    """Nobody asks and nobody reads: rot is gone after the period, also when the slave restarts on the way,
    and everybody sees when and how much was read."""
    rng = random.Random(seed)
    period_s = 400.0
    with SimCluster(tmp_path / "sim", slaves=2, copies=2, seed=seed, scrub_days=period_s / DAY) as sim:
        cloud = sim.client()
        files = {f"/d{n}": rng.randbytes(200_000) for n in range(8)}
        for path, content in files.items():
            sim.wait(cloud.write(path, content))
        sim.until(lambda: all(len(sim.serving(path)) == 2 for path in files))
        for path in ("/d2", "/d5"):
            flip(sim.slaves["s1"].native(path), 77)
        for _ in range(3):
            sim.advance(period_s / 3 + 1, step=0.5)
            sim.stop_slave("s1")
            sim.start_slave("s1")
        sim.advance(60, step=0.5)
        for path, content in files.items():
            assert sim.slaves["s1"].native(path).read_bytes() == content
        user = sim.client()
        state = next(node for node in sim.wait(user.session.call(NodeList())).nodes if node.id == "s1").scrub
        assert state.ended > 0 and state.all_bad_files == 2
        assert 1_200_000 <= state.read_bytes < 4_000_000, "what was read before a restart is not read again"
        counters = sim.wait(user.session.call(Status())).nodes["s1"]
        assert counters["scrub_bad_files"] == 2 and counters["scrub_ended"] == int(state.ended)


def test_each_bad_replica_is_in_the_audit_log_and_only_administrators_scrub(
    tmp_path: Path, seed: int
) -> None:
    """With slave, path and what is wrong."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        files = filled(sim, 2, random.Random(seed))
        lines: list[tuple[str, str, str]] = []
        sim.up().hub.audit = lambda *line: lines.append(line)
        flip(sim.slaves["s3"].native("/d0"), len(files["/d0"]) - 1)
        with pytest.raises(Denied):
            sim.wait(sim.client("eve").session.call(NodeScrub([], True)))
        scrubbed(sim, "s3")
        assert [who for who, what, _ in lines if what == "denied"] == ["user:eve"]
        ((who, _, detail),) = [line for line in lines if line[1] == "bad replica"]
        block = (len(files["/d0"]) - 1) >> 20
        assert who == "slave:s3" and detail.startswith("/d0 ") and f"block {block} " in detail


def test_rot_that_the_master_did_not_hear_of_is_repaired_all_the_same(tmp_path: Path, seed: int) -> None:
    """The one message that tells of it is lost: it is told again."""
    with SimCluster(tmp_path / "sim", seed=seed) as sim:
        files = filled(sim, 2, random.Random(seed))
        service = sim.slaves["s2"].service
        assert service is not None
        real, lost = service.transfers._master_call, []

        async def call(request: Any, **options: Any) -> Any:
            if isinstance(request, Adopted) and len(lost) < 3:
                lost.append(request)
                raise TimedOut("nobody hears it")
            return await real(request, **options)

        service.transfers._master_call = call
        flip(sim.slaves["s2"].native("/d1"), 3)
        scrubbed(sim, "s2")
        assert lost
        sim.until(lambda: sim.slaves["s2"].native("/d1").is_file())
        assert len(lost) == 3
        assert sim.slaves["s2"].native("/d1").read_bytes() == files["/d1"]


def test_what_users_do_meanwhile_is_never_taken_for_rot(tmp_path: Path, seed: int) -> None:
    """Writes, renames and removals while all slaves read again and again, with slow disks: no sound replica
    is set aside, and nothing is reported."""
    rng = random.Random(seed)
    with SimCluster(tmp_path / "sim", seed=seed, disk_s=0.05) as sim:
        cloud = sim.client()
        files: dict[str, bytes] = {}
        for number in range(60):
            for slave in sim.slaves.values():
                if slave.service is not None and not slave.service.scrub.state.running:
                    slave.service.scrub.answer(True)
            deed = rng.choice(["write", "write", "replace", "rename", "rename", "remove"])
            path = rng.choice(sorted(files)) if files else ""
            if deed == "write" or not path:
                path = f"/n{number}"
                files[path] = rng.randbytes(rng.randrange(1, 300_000))
                sim.wait(cloud.write(path, files[path]))
            elif deed == "replace":
                files[path] = rng.randbytes(rng.randrange(1, 300_000))
                sim.wait(cloud.write(path, files[path]))
            elif deed == "rename":
                sim.wait(cloud.mv(path, f"/m{number}"))
                files[f"/m{number}"] = files.pop(path)
            else:
                sim.wait(cloud.rm(path))
                del files[path]
            sim.advance(rng.random() * 0.5)
        sim.advance(30)
        for slave in sim.slaves.values():
            assert slave.service is not None
            state = slave.service.scrub.state
            assert state.number > 5 and state.all_bad_files == 0, slave.name
            assert attic(sim, slave.name) == []
        for path, content in files.items():
            assert sim.wait(cloud.read(path)) == content
