"""Files on a real cluster: what a user sees when all is well and when a slave or the master dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from cluster import Cluster, running, sha256, wait_for, write_random

MB = 1_000_000


def test_put_list_get_move_remove(cluster: Cluster, tmp_path: Path) -> None:
    """The everyday commands, with the JSON fields of the design."""
    source = tmp_path / "a.bin"
    write_random(source, 5 * MB + 17, 1)
    cluster.ok("mkdir", "-p", "/data/sub")
    cluster.ok("put", str(source), "/data/sub/a.bin")
    stat = cluster.json("stat", "/data/sub/a.bin")
    assert stat["path"] == "/data/sub/a.bin"
    assert stat["size"] == 5 * MB + 17
    assert stat["owner"] == "admin"
    assert stat["digest"].startswith("crc32c-1m:")
    assert set(stat) >= {"path", "size", "version", "owner", "mtime", "digest", "replicas"}
    assert any(entry["path"] == "/data/sub/a.bin" for entry in cluster.json("ls", "-r", "/data"))
    cluster.ok("mv", "/data/sub/a.bin", "/data/b.bin")
    cluster.ok("get", "/data/b.bin", str(tmp_path / "back.bin"))
    assert sha256(tmp_path / "back.bin") == sha256(source)
    cluster.ok("rm", "/data/b.bin")
    done = cluster.refused("stat", "/data/b.bin")
    assert "/data/b.bin" in done.err
    error = json.loads(cluster.run("stat", "/data/b.bin", "--json").out)["error"]
    assert error["code"] == "not_found"


def test_files_that_are_moved_on_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Three programs at a time, faster than slaves confirm: each file is there, under its last name."""
    program = Path(__file__).with_name("quick_mover.py")
    movers = [
        subprocess.Popen([sys.executable, str(program), "25", f"/moved{one}"], env=cluster.env)
        for one in range(3)
    ]
    assert [mover.wait(timeout=120) for mover in movers] == [0, 0, 0]
    for one in range(3):
        cluster.ok("get", "-r", f"/moved{one}", str(tmp_path / str(one)))
        here = {file.name: file.read_text() for file in (tmp_path / str(one)).rglob("*.d")}
        assert here == {f"{number}.d": str(number) for number in range(25)}


def test_empty_file_and_odd_names(cluster: Cluster, tmp_path: Path) -> None:
    """0 bytes, spaces, line feeds and UTF-8 in names."""
    for name in ("empty", "with space", "żółw-\U0001f422", "line\nfeed", "-dash", "%41"):
        source = tmp_path / "source"
        source.write_bytes(b"" if name == "empty" else name.encode())
        cluster.ok("put", str(source), f"/odd/{name}")
        target = tmp_path / "target"
        target.unlink(missing_ok=True)
        cluster.ok("get", f"/odd/{name}", str(target))
        assert target.read_bytes() == source.read_bytes()
    assert len(cluster.json("ls", "/odd")) == 6


def test_a_limit_holds_for_standard_input_and_output(cluster: Cluster, tmp_path: Path) -> None:
    """16 MB at 5 MB/s take three seconds at least, whichever way they go."""
    source, target = tmp_path / "source", tmp_path / "target"
    write_random(source, 16 * MB, 1)
    for words in (["put", "-", "/piped"], ["get", "/piped", "-"]):
        command = cluster.command(*words, "--limit", "5MB/s")
        begin = time.monotonic()
        with source.open("rb") as given, target.open("wb") as taken:
            subprocess.run(command, stdin=given, stdout=taken, env=cluster.env, timeout=120, check=True)
        assert time.monotonic() - begin > 3.0
    assert sha256(target) == sha256(source)


def test_slices_are_native_files(cluster: Cluster, tmp_path: Path) -> None:
    """Every replica is a plain file under DATA_DIR/files with the same bytes."""
    source = tmp_path / "plain"
    source.write_bytes(b"readable without us\n" * 1000)
    cluster.ok("put", str(source), "/native/plain")
    cluster.ok("replicate", "--wait", "/native/plain")
    replicas = cluster.json("stat", "/native/plain")["replicas"]
    assert len(replicas) >= 3
    for node in replicas:
        native = Path(cluster.slave(node)["data_dir"]) / "files/native/plain"
        assert native.read_bytes() == source.read_bytes()


def test_get_continues_when_the_serving_slave_is_killed(tmp_path: Path) -> None:
    """put, replicate --wait, kill -9 of the slave that serves during get: digest equal, one line says so."""
    size = int(os.environ.get("SECTOR_TEST_BIG_MB", "400")) * MB
    source, target = tmp_path / "big", tmp_path / "back"
    write_random(source, size, 2)
    with running(tmp_path / "c") as cluster:
        cluster.ok("put", str(source), "/big", timeout=300)
        cluster.ok("replicate", "--wait", "/big", timeout=300)
        nodes = {slave["id"]: slave["pid"] for slave in cluster.info["slaves"]}
        get, node = get_until_served(cluster, nodes, target, size)
        cluster.kill(nodes[node])
        out, err = get.communicate(timeout=300)
        assert get.returncode == 0, out + err
        assert sha256(target) == sha256(source)
        said = [line for line in (out + err).splitlines() if node in line]
        assert len(said) == 1, out + err


def get_until_served(
    cluster: Cluster, nodes: dict[str, int], target: Path, size: int
) -> tuple[subprocess.Popen[str], str]:
    """A `get` of /big under way, slow enough to be met, and the slave that serves it. Before it begins no
    slave may read any more: after a replication they verify what came."""
    before = {node: sent_bytes(pid) for node, pid in nodes.items()}
    for _ in range(100):
        time.sleep(0.3)
        now = {node: sent_bytes(pid) for node, pid in nodes.items()}
        if all(now[node] - before[node] < MB for node in nodes):
            break
        before = now
    get = cluster.popen("get", "/big", str(target), "--limit", "150MB/s")
    while get.poll() is None:
        for node, pid in nodes.items():
            if sent_bytes(pid) - now[node] > size // 20:
                return get, node
        time.sleep(0.005)
    raise AssertionError(f"no slave was seen serving: {get.communicate()}")


def sent_bytes(pid: int) -> int:
    """Bytes that a process has read from files (rchar of /proc), which is what a serving slave does."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def test_put_survives_a_restart_of_the_master(tmp_path: Path) -> None:
    """kill -9 of the master during put, restart: the same command ends well without a password."""
    source, target = tmp_path / "big", tmp_path / "back"
    write_random(source, 300 * MB, 3)
    with running(tmp_path / "c") as cluster:
        put = cluster.popen("put", str(source), "/big")
        time.sleep(0.7)
        cluster.kill(cluster.info["pids"]["master"])
        time.sleep(1.0)
        cluster.start_missing()
        out, err = put.communicate(timeout=180)
        if put.returncode == 0:
            cluster.ok("get", "/big", str(target), timeout=120)
            assert sha256(target) == sha256(source)
        else:
            assert put.returncode == 1, out + err
            assert "Traceback" not in err
            assert len(err.strip().splitlines()) <= 2, err
            assert cluster.json("ls", "/") == []


def test_rebuild_recovers_everything_and_revives_nothing(tmp_path: Path) -> None:
    """The master's database deleted: every file, size, owner, version is back; a deleted file is not."""
    with running(tmp_path / "c") as cluster:
        for index in range(30):
            write_random(tmp_path / f"f{index}", 1000 * index, index)
        for folder in range(3):
            names = [str(tmp_path / f"f{index}") for index in range(folder, 30, 3)]
            cluster.ok("put", *names, f"/d{folder}/")
        cluster.ok("mkdir", "/empty")
        cluster.ok("rm", "/d0/f3")
        cluster.ok("mv", "/d1/f4", "/d1/renamed")
        wanted = {entry["path"]: entry for entry in cluster.json("ls", "-r", "/")}
        stats = stats_of(cluster, [path for path, entry in wanted.items() if entry["kind"] == "file"])
        assert len(stats) == 29
        cluster.kill(cluster.info["pids"]["master"])
        config = master_config(cluster)
        removed = remove_database(config)
        assert removed
        rebuilding = cluster.popen("master", "--config", str(config), "--rebuild")
        try:
            wait_for("the rebuilt namespace", lambda: listing(cluster) == set(wanted), 60)
            assert stats_of(cluster, list(stats)) == stats
            assert cluster.refused("stat", "/d0/f3").status == 1
        finally:
            rebuilding.send_signal(signal.SIGTERM)
            rebuilding.communicate(timeout=30)
        assert rebuilding.returncode == 0


STATS = """
import json, sys, sector

with sector.connect() as cloud:
    found = {path: cloud.stat(path) for path in sys.argv[1:]}
print(json.dumps({path: [one.size, one.owner, str(one.version), one.digest] for path, one in found.items()}))
"""


def stats_of(cluster: Cluster, paths: list[str]) -> dict[str, list[Any]]:
    """Size, owner, version and digest of files, asked by one program."""
    asking = [sys.executable, "-c", STATS, *paths]
    done = subprocess.run(asking, env=cluster.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


def listing(cluster: Cluster) -> set[str]:
    """All paths, or nothing while the master does not answer."""
    done = cluster.run("ls", "-r", "/", "--json")
    return {entry["path"] for entry in done.json()} if done.status == 0 else set()


def master_config(cluster: Cluster) -> Path:
    """The master's settings file of `sector up`."""
    return next((cluster.dir / "up").rglob("master*.toml"))


def remove_database(config: Path) -> list[str]:
    """Delete the master's database files; returns their names."""
    import tomllib

    settings = tomllib.loads(config.read_text())
    folder = Path(config.parent, settings.get("data", {}).get("dir", "."))
    names = []
    for path in sorted(folder.glob("*.db*")):
        names.append(path.name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return names


def test_statistics_name_what_limits_and_a_trace_is_written(cluster: Cluster, tmp_path: Path) -> None:
    """Shares of time add up, for both directions; the trace parses and tells of this transfer's packets."""
    source, target = tmp_path / "s.bin", tmp_path / "t.bin"
    trace = {verb: tmp_path / f"{verb}.qlog" for verb in ("put", "get")}
    write_random(source, 20 * MB, 3)
    put = cluster.json("put", str(source), "/why.bin", "--stats", "--trace", str(trace["put"]))["files"][0]
    got = cluster.json("get", "/why.bin", str(target), "--stats", "--trace", str(trace["get"]))["files"][0]
    for one in (put, got):
        assert 0.9 < sum(one["limited"].values()) <= 1.01
        assert one["stats"]["rtt_us"] > 0
    assert put["stats"]["send_Bps"] > 0 and got["stats"]["recv_Bps"] > 0
    for verb, event in (("put", "packet_sent"), ("get", "packet_received")):
        document = json.loads(trace[verb].read_text())
        events = [one for part in document["traces"] for one in part["events"]]
        names = {one["name"] for one in events}
        assert f"transport:{event}" in names
        assert "connectivity:connection_state_updated" in names
        assert all(a["time"] <= b["time"] for a, b in pairwise(events))
    done = cluster.run("put", str(source), "/why.bin", "--stats")
    assert "limited " in done.err and " % by " in done.err
    assert (
        "/no/such/folder"
        in cluster.refused("get", "/why.bin", str(target), "--trace", "/no/such/folder/x").err
    )
