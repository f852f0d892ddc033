"""Transfers whose ends are killed go on where they were: real processes, real disks, kill -9 (R13)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, running, sha256, wait_for, write_random

MB = 1_000_000
SIZE = 240 * MB
RATE = "40MB/s"
KILL_AT = 120 * MB


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two slaves; a file that is put has one replica at first, and its copy follows."""
    with running(tmp_path_factory.mktemp("pair"), slaves=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "big"
    write_random(path, SIZE, 5)
    return path


def written(files: list[Path]) -> int:
    """Bytes in the largest of these files, which may vanish."""
    sizes = [0]
    for path in files:
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return max(sizes)


def parts(cluster: Cluster, node: str = "") -> list[Path]:
    """What is on its way into slaves."""
    nodes = [slave for slave in cluster.info["slaves"] if node in ("", slave["id"])]
    return [path for slave in nodes for path in Path(slave["data_dir"]).glob(".sector/tmp/*")]


def sent(done: dict[str, object]) -> int:
    """Bytes that the last attempt of a put or get moved."""
    (file,) = done["files"]  # type: ignore[misc]
    stats = file["stats"]
    return max(stats.get("bytes_sent", 0), stats.get("bytes_recv", 0))  # type: ignore[no-any-return]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_put_that_was_killed(pair: Cluster, source: Path, tmp_path: Path) -> None:
    """The next one is not refused for the lease of the dead, and sends what is missing."""
    put = pair.popen("put", str(source), "/killed", "--limit", RATE)
    wait_for("half of it", lambda: written(parts(pair)) > KILL_AT, 60)
    end(put)
    done = pair.json("put", str(source), "/killed", "--stats")
    assert "where an earlier put ended" in done["notes"][0]
    assert sent(done) < SIZE - KILL_AT + 20 * MB
    assert done["files"][0]["digest"] == pair.json("stat", "/killed")["digest"]
    pair.ok("get", "/killed", str(tmp_path / "back"))
    assert sha256(tmp_path / "back") == sha256(source)
    pair.ok("replicate", "--wait", "/killed")
    wait_for("no part left", lambda: not parts(pair), 30)


def test_a_put_whose_slave_was_killed(pair: Cluster, source: Path, tmp_path: Path) -> None:
    """It is started again within the minute: the put goes on there."""
    put = pair.popen("put", str(source), "/slave", "--limit", RATE, "--json", "--stats")
    wait_for("half of it", lambda: written(parts(pair)) > KILL_AT, 60)
    node = next(s["id"] for s in pair.info["slaves"] if written(parts(pair, s["id"])) > KILL_AT)
    pair.kill(pair.slave(node)["pid"])
    pair.start_missing()
    out, err = put.communicate(timeout=120)
    assert put.returncode == 0, out + err
    assert "continued at 1" in err and f"on {node}" in err, err
    pair.ok("get", "/slave", str(tmp_path / "back"))
    assert sha256(tmp_path / "back") == sha256(source)


def test_a_get_that_was_killed(pair: Cluster, source: Path, tmp_path: Path) -> None:
    """The next one takes its part over."""
    pair.ok("put", str(source), "/get")
    get = pair.popen("get", "/get", str(tmp_path / "back"), "--limit", RATE)
    wait_for("half of it", lambda: written(list(tmp_path.glob(".back.*.part"))) > KILL_AT, 60)
    end(get)
    done = pair.json("get", "/get", str(tmp_path / "back"), "--stats")
    assert "where an earlier get ended" in done["notes"][0]
    assert sent(done) < SIZE - KILL_AT + 20 * MB
    assert sha256(tmp_path / "back") == sha256(source)
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


def test_a_directory_of_another_cluster_is_refused(pair: Cluster, tmp_path: Path) -> None:
    """A disk at the wrong machine: the slave there has the same name."""
    other = Cluster(tmp_path)
    other.ok("init", str(tmp_path / "other"))
    data = Path(pair.slave("slave1")["data_dir"])
    mine = tmp_path / "other" / "data" / "slave1"
    shutil.rmtree(mine, ignore_errors=True)
    (mine / ".sector").mkdir(parents=True)
    shutil.copy(data / ".sector/slave.json", mine / ".sector/slave.json")
    done = other.refused("slave", "--config", str(tmp_path / "other" / "slave1.toml"))
    assert "of another cluster" in done.err
