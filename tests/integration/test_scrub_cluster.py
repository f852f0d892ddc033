"""Bits rot on one of three slaves of a real cluster; an administrator has all replicas read again."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from cluster import Cluster, running, wait_for, write_random

MB = 1_000_000


def natives(cluster: Cluster, name: str) -> dict[str, Path]:
    """The native file of a cloud path on each slave."""
    return {slave["id"]: Path(slave["data_dir"], "files", name) for slave in cluster.info["slaves"]}


def flip(file: Path, rng: random.Random) -> None:
    """One random bit is another one; the times of the file do not tell."""
    stamp = file.stat()
    at = rng.randrange(stamp.st_size)
    with open(file, "r+b") as target:
        (byte,) = os.pread(target.fileno(), 1, at)
        os.pwrite(target.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), at)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_rot_on_one_of_three_slaves_is_found_and_repaired(tmp_path: Path, seed: int) -> None:
    """Replicas of several files, one bit each: found all, repaired all, contents equal; a file that is bad
    everywhere is said to be lost, and its replicas are kept aside; a second scrub finds nothing."""
    rng = random.Random(seed)
    sizes = {f"f{number}": rng.randrange(1, 6 * MB) for number in range(8)} | {"doomed": 3 * MB}
    contents = {}
    with running(tmp_path / "c", slaves=3) as cluster:
        for number, (name, size) in enumerate(sizes.items()):
            write_random(tmp_path / name, size, number)
            contents[name] = (tmp_path / name).read_bytes()
            cluster.ok("put", str(tmp_path / name), f"/{name}")
            cluster.ok("replicate", "--wait", f"/{name}", timeout=120)
        for native in natives(cluster, "doomed").values():
            flip(native, rng)
        victim = rng.choice(cluster.info["slaves"])["id"]
        rotten = rng.sample([name for name in sizes if name != "doomed"], 5)
        for name in rotten:
            flip(natives(cluster, name)[victim], rng)

        done = cluster.run("node", "scrub", "--all", "--wait", "--json", timeout=180)
        assert done.status == 1, done.said
        told = done.json()
        found = {(node["id"], bad["path"], bad["repair"]) for node in told["nodes"] for bad in node["bad"]}
        lost = {(slave, "/doomed", "lost") for slave in natives(cluster, "doomed")}
        assert found == {(victim, f"/{name}", "repaired") for name in rotten} | lost
        assert (told["ended"], told["bad_replicas"], told["bad_repaired"], told["bad_lost"]) == (
            True,
            8,
            5,
            3,
        )
        for name in rotten:
            for native in natives(cluster, name).values():
                assert native.read_bytes() == contents[name]
        for slave in cluster.info["slaves"]:
            boxes = Path(slave["data_dir"], ".sector/attic").iterdir()
            kept = [json.loads((box / "info.json").read_text())["path"] for box in boxes]
            assert "/doomed" in kept

        again = cluster.ok("node", "scrub", victim, "--wait", timeout=120)
        assert victim in again.out and "ended" in again.out
        wait_for(
            "the list to have it",
            lambda: all(node["scrub"]["ended"] > 0 for node in cluster.json("node", "list")),
        )
        counters = cluster.json("status")["nodes"][victim]
        assert counters["scrub_bad_files"] == 6 and counters["scrub_running"] == 0
        assert "bad replicas found so far" in cluster.ok("status").out
        for refused, words in (
            (("node", "scrub"), "--all"),
            (("node", "scrub", "nobody"), "nobody"),
            (("node", "scrub", "--all", "--timeout", "5"), "--wait"),
        ):
            assert words in cluster.refused(*refused).err
