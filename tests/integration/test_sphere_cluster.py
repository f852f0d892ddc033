"""Sphere on a real cluster: real processes, real transport; what users see when things go well and badly."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster import Cluster, running, wait_for

PROGRAM = """
import json, os, sys, time
import numpy as np
import sector

def slow(data, ctx):
    time.sleep(float(ctx.params or 0.2))
    return bytes(data)[:4]

def held(data, ctx):
    end = time.monotonic() + 100
    while not os.path.exists(ctx.params) and time.monotonic() < end:
        time.sleep(0.02)
    return bytes(data)[:4]

def scatter(rows, ctx):
    time.sleep(0.3)
    return rows, rows[:, 0].astype(np.int64) * ctx.buckets // 256

def bad(data, ctx):
    raise KeyError("lost " + ctx.path)

def big(data, ctx):
    return bytes(data) * 3

def chatty(data, ctx):
    print("x" * 7_900)
    return b"."
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four slaves with twelve files of 400 kB."""
    folder = tmp_path_factory.mktemp("grid")
    with running(folder / "c") as cluster:
        data = folder / "data"
        data.mkdir()
        for number in range(12):
            (data / f"f{number:02}").write_bytes(random.Random(number).randbytes(400_000))
        cluster.ok("put", "-r", str(data), "/in")
        cluster.ok("replicate", "/in", "--wait")
        (cluster.dir / "udfs.py").write_text(PROGRAM)
        yield cluster


def python(cluster: Cluster, code: str, timeout: float = 120) -> Any:
    """Run a program that uses the Python API; what it printed last, as JSON."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM + "\ncloud = sector.connect()\n" + textwrap.dedent(code) + "\ncloud.close()\n",
        ],
        env=cluster.env | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def contents() -> list[bytes]:
    return [random.Random(number).randbytes(400_000) for number in range(12)]


def buckets_of(data: list[bytes], buckets: int) -> list[bytes]:
    rows = np.concatenate([np.frombuffer(part, np.uint8).reshape(-1, 100) for part in data])
    ids = rows[:, 0].astype(np.int64) * buckets // 256
    return [rows[ids == bucket].tobytes() for bucket in range(buckets)]


def workers(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    return [s for s in cluster.json("job", "show", job)["spes"] if s["segment"] is not None]


def start(cluster: Cluster, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start `sphere run` in the background; the process and its job's id."""
    known = {job["id"] for job in cluster.json("job", "list")}
    process = cluster.popen("sphere", "run", *arguments, "--json")
    job = wait_for(
        "the job", lambda: next((j["id"] for j in cluster.json("job", "list") if j["id"] not in known), None)
    )
    return process, job


def test_run_and_show_have_their_fields(grid: Cluster) -> None:
    done = grid.json(
        "sphere", "run", f"{grid.dir}/udfs.py:slow", "/in/*", "--params", "0", "--output", "/out/s"
    )
    assert set(done) == {
        "job",
        "state",
        "segments",
        "retries",
        "duplicates",
        "seconds",
        "bytes_in",
        "bytes_out",
        "bytes_moved",
        "output",
    }
    assert (done["state"], done["segments"], done["bytes_in"], done["bytes_out"]) == (
        "done",
        12,
        4_800_000,
        48,
    )
    assert done["output"] == [f"/out/s.{n}" for n in range(12)]
    assert grid.json("stat", "/out/s.3")["size"] == 4
    shown = grid.json("job", "show", done["job"])
    assert {"id", "user", "state", "stage", "segments", "retries", "spes", "errors"} <= set(shown)
    assert shown["segments"] == {"total": 12, "done": 12, "failed": 0}


def test_large_results_in_order(grid: Cluster) -> None:
    sizes = python(
        grid,
        """
        job = sector.SphereProcess(cloud).run(sector.SphereStream(cloud, "/in"), big, in_order=True)
        import hashlib
        print(json.dumps([hashlib.sha256(p.data).hexdigest() for p in job.results()]))
        """,
    )
    import hashlib

    assert sizes == [hashlib.sha256(data * 3).hexdigest() for data in contents()]


def test_error_comes_with_remote_traceback_and_in_job_show(grid: Cluster) -> None:
    told = python(
        grid,
        """
        job = sector.SphereProcess(cloud).run(sector.SphereStream(cloud, "/in/f07"), bad)
        try:
            job.wait()
        except sector.SectorError as error:
            print(json.dumps([error.code, str(error), job.id]))
        """,
    )
    assert told[0] == "udf_error"
    assert "lost /in/f07" in told[1] and "in bad" in told[1] and "segment 0" in told[1]
    error = grid.json("job", "show", told[2])["errors"][0]
    assert (error["segment"], error["type"]) == (0, "KeyError")
    assert "in bad" in error["traceback"]


def test_killed_worker_is_retried(grid: Cluster, tmp_path: Path) -> None:
    """It is killed in the middle of its segment: none ends before."""
    go = tmp_path / "go"
    process, job = start(
        grid,
        f"{grid.dir}/udfs.py:held",
        "/in",
        "--params",
        json.dumps(str(go)),
        "--output",
        "/out/k",
        "--granularity",
        "file",
    )
    victim = wait_for("a busy worker", lambda: workers(grid, job))[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    go.touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["retries"] == 1
    assert grid.json("job", "show", job)["retries"] == 1


def test_cancel_kills_the_workers(grid: Cluster) -> None:
    process, job = start(grid, f"{grid.dir}/udfs.py:slow", "/in", "--params", "60", "--output", "/out/c")
    pids = [spe["pid"] for spe in wait_for("busy workers", lambda: workers(grid, job))]
    grid.ok("job", "cancel", job[:8])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out)["error"]["code"] == "cancelled", err
    wait_for("their end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert grid.json("job", "show", job)["state"] == "cancelled"


def test_interrupt_cancels(grid: Cluster) -> None:
    process, job = start(grid, f"{grid.dir}/udfs.py:slow", "/in", "--params", "60", "--output", "/out/i")
    pids = [spe["pid"] for spe in wait_for("busy workers", lambda: workers(grid, job))]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for("their end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert grid.json("job", "show", job)["state"] == "cancelled"


def test_a_job_does_not_wait_for_who_reads_its_talk(grid: Cluster) -> None:
    """As in `sphere run ... 2>&1 | less`: the driver stood still, and the master ended its job as silent."""
    process, job = start(grid, f"{grid.dir}/udfs.py:chatty", "/in", "--output", "/out/talk")
    wait_for("its end", lambda: grid.json("job", "show", job)["state"] == "done")
    assert process.poll() is None  # its talk does not fit into the pipe
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and json.loads(out)["segments"] == 12
    assert sorted(line.split(":")[0] for line in err.splitlines() if "xxx" in line) == sorted(
        f"segment {number}" for number in range(12)
    )


def test_detached_job_goes_on(grid: Cluster) -> None:
    job = python(
        grid,
        """
        stream = sector.SphereStream(cloud, "/in")
        job = sector.SphereProcess(cloud).run(stream, slow, output="/out/d", params=0.5, detach=True)
        print(json.dumps(job.id))
        """,
    )
    assert grid.json("job", "show", job)["state"] in ("running", "done")
    wait_for("its end", lambda: grid.json("job", "show", job)["state"] == "done")
    assert len(grid.json("ls", "/out")) >= 12


def test_results_of_a_detached_job_are_its_own(grid: Cluster) -> None:
    """Not what an earlier job left under the same prefix; none are no error."""
    told = python(
        grid,
        """
        def split(record, ctx):
            ctx.emit(record[0] % ctx.buckets, record[:4])
        def nothing(data, ctx):
            return None
        stream = sector.SphereStream(cloud, "/in/f00", record_size=1000)
        run = sector.SphereProcess(cloud).run
        found = []
        for buckets in (6, 2):
            job = run(stream, split, output="/own/d", buckets=buckets, detach=True)
            found.append([[part.path, part.index, part.size] for part in job.results()])
        found.append([file.path for file in job.output.files])
        job = run(stream, nothing, output="/own/not/there/d", detach=True)
        found.append([len(list(job.results())), len(job.output.files)])
        try:
            job.logs()
        except sector.SectorError as error:
            found.append(str(error))
        print(json.dumps(found))
        """,
    )
    assert [path for path, _, _ in told[0]] == [f"/own/d.{number}" for number in range(6)]
    assert [path for path, _, _ in told[1]] == told[2] == ["/own/d.0", "/own/d.1"]
    assert sum(size for _, _, size in told[0]) == sum(size for _, _, size in told[1]) == 1600
    assert told[3] == [0, 0]
    assert "detached job" in told[4]


def test_a_slave_is_killed_in_the_middle_of_a_bucket_job(tmp_path: Path) -> None:
    """Output is complete and exact; the slave's workers and spawner are gone with it."""
    with running(tmp_path / "c") as cluster:
        data = tmp_path / "data"
        data.mkdir()
        for number, content in enumerate(contents()):
            (data / f"f{number:02}").write_bytes(content)
        cluster.ok("put", "-r", str(data), "/in")
        cluster.ok("replicate", "/in", "--wait")
        (cluster.dir / "udfs.py").write_text(PROGRAM)
        process, job = start(
            cluster,
            f"{cluster.dir}/udfs.py:scatter",
            "/in",
            "--record-size",
            "100",
            "--granularity",
            "batch",
            "--buckets",
            "8",
            "--output",
            "/out/b",
        )
        wait_for("some segments", lambda: cluster.json("job", "show", job)["segments"]["done"] >= 2)
        victim = cluster.info["slaves"][1]
        spes = [s["pid"] for s in cluster.json("job", "show", job)["spes"] if s["node"] == victim["id"]]
        os.kill(victim["pid"], signal.SIGKILL)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert json.loads(out)["segments"] == 12
        target = tmp_path / "got"
        target.mkdir()
        cluster.ok("get", "-r", "/out", str(target))
        got = [next(target.rglob(f"b.{bucket}")).read_bytes() for bucket in range(8)]
        assert got == buckets_of(contents(), 8)
        end = time.monotonic() + 5
        while any(Path(f"/proc/{pid}").exists() for pid in spes) and time.monotonic() < end:
            time.sleep(0.05)
        assert not [pid for pid in spes if Path(f"/proc/{pid}").exists()]
