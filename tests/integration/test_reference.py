"""The main job against plain programs: the same bytes, also when a worker is killed in each stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running
from test_cycles import descendants

import sector
from sector.wire.sphere import JobList, JobShow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECORDS = int(os.environ.get("SECTOR_TEST_RECORDS", "3000000"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HTML of real shape: pages made of Python's own documentation strings."""
    folder = tmp_path_factory.mktemp("pages")
    import pkgutil

    for number, module in enumerate(
        sorted(m.name for m in pkgutil.iter_modules() if not m.name.startswith("_"))
    ):
        source = Path(next(iter(Path(os.__file__).parent.glob(f"{module}.py")), os.__file__))
        text = source.read_text(errors="replace").replace("<", "&lt;")
        body = f"<html><head><title>{module}</title></head><body><p>{text}</p></body></html>"
        (folder / f"page{number:03}.html").write_text(body)
    return folder


def killer(cluster: Cluster, job_done: threading.Event, killed: list[int]) -> None:
    """kill -9 of one busy worker when 30 to 70 % of a stage's segments are done, once per stage."""
    stages: set[tuple[str, int]] = set()
    os.environ["SECTOR_CONFIG"] = cluster.env["SECTOR_CONFIG"]
    try:
        with sector.connect() as cloud:
            while not job_done.wait(0.02):
                for job in cloud.call(JobList()).jobs:
                    if job.state == "running" and (job.id, job.stage) not in stages:
                        kill_one(cloud.call(JobShow(job.id)), stages, killed)
    finally:
        del os.environ["SECTOR_CONFIG"]


def kill_one(job: Any, stages: set[tuple[str, int]], killed: list[int]) -> None:
    """Kill a worker of the job if its stage is in the window."""
    if not job.counts.total or not 0.3 <= job.counts.done / job.counts.total <= 0.7:
        return
    for spe in job.spes:
        if spe.pid and spe.segment >= 0:
            try:
                os.kill(spe.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            stages.add((job.id, job.stage))
            killed.append(spe.pid)
            return


def run_example(cluster: Cluster, name: str, *arguments: str) -> None:
    """An example program as a user runs it."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_reference(name: str, *arguments: str) -> None:
    """The plain program that computes the same alone."""
    subprocess.run([sys.executable, str(EXAMPLES / "reference" / name), *arguments], check=True, timeout=280)


def test_inverted_index_equals_the_reference(cluster: Cluster, pages: Path, tmp_path: Path) -> None:
    """Byte for byte."""
    run_example(
        cluster,
        "inverted_index.py",
        "--input",
        str(pages),
        "--cloud-dir",
        "/pages",
        "--output",
        "/index",
        "--buckets",
        "8",
        "--fetch",
        str(tmp_path / "ours"),
    )
    run_reference(
        "inverted_index.py",
        "--input",
        str(pages),
        "--cloud-dir",
        "/pages",
        "--output",
        str(tmp_path / "plain"),
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "plain").stat().st_size > 100_000


def test_terasort_equals_the_reference_with_a_worker_killed_in_each_stage(tmp_path: Path) -> None:
    """Byte for byte; job show tells of the retries."""
    with running(tmp_path / "c") as cluster:
        finished = threading.Event()
        killed: list[int] = []
        hunter = threading.Thread(target=killer, args=(cluster, finished, killed))
        hunter.start()
        try:
            run_example(
                cluster,
                "terasort.py",
                "--records",
                str(RECORDS),
                "--seed",
                "7",
                "--output",
                "/sorted",
                "--fetch",
                str(tmp_path / "ours"),
                "--segment-bytes",
                "9000000",
            )
        finally:
            finished.set()
            hunter.join()
        run_reference(
            "terasort.py", "--records", str(RECORDS), "--seed", "7", "--output", str(tmp_path / "plain")
        )
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()
        jobs = [cluster.json("job", "show", job["id"]) for job in cluster.json("job", "list")]
        print(json.dumps([{k: job[k] for k in ("id", "stage", "segments", "retries")} for job in jobs]))
        assert len(killed) >= 2, "no worker was killed in each of the two stages"
        assert sum(job["retries"] for job in jobs) >= len(killed)


def test_spawner_and_workers_are_gone_after_down(tmp_path: Path) -> None:
    """No orphan after sector down."""
    with running(tmp_path / "c", slaves=2) as cluster:
        below = [child for slave in cluster.info["slaves"] for child in descendants(slave["pid"])]
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
