"""The main job against plain programs: the same bytes, also when a worker is killed in each stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running
from test_cycles import descendants

ROOT = Path(__file__).resolve().parents[2]
HUNTER = Path(__file__).with_name("hunter.py")
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


def run_example(cluster: Cluster, name: str, *arguments: str) -> str:
    """An example program as a user runs it; what it printed."""
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
    return done.stdout


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


def test_words_of_one_short_page_are_found(cluster: Cluster, tmp_path: Path) -> None:
    """Most buckets are empty, and the page has a blank in its name."""
    folder, ours, plain = tmp_path / "pages", tmp_path / "ours", tmp_path / "plain"
    folder.mkdir()
    (folder / "a page.html").write_text("hello world")
    stored = ["--input", str(folder), "--cloud-dir", "/short"]
    printed = run_example(
        cluster,
        "inverted_index.py",
        *stored,
        "--output",
        "/few",
        "--fetch",
        str(ours),
        "hello",
        "world",
        "zebra",
    )
    found = "[('/short/a page.html', 1)]"
    assert printed.splitlines()[-3:] == [f"hello {found}", f"world {found}", "zebra []"]
    run_reference("inverted_index.py", *stored, "--output", str(plain))
    assert ours.read_bytes() == plain.read_bytes() != b""


def sort_under_fire(cluster: Cluster, output: str, fetch: Path) -> list[dict[str, Any]]:
    """Terasort while the hunter kills; its victims."""
    hunter = subprocess.Popen(
        [sys.executable, str(HUNTER)],
        env=cluster.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    arguments = ["--records", str(RECORDS), "--seed", "7", "--output", output, "--fetch", str(fetch)]
    try:
        run_example(cluster, "terasort.py", *arguments, "--segment-bytes", "9000000")
    finally:
        killed, _ = hunter.communicate(timeout=30)
    assert hunter.returncode == 0
    return [json.loads(line) for line in killed.splitlines()]


def test_terasort_equals_the_reference_with_a_worker_killed_in_each_stage(tmp_path: Path) -> None:
    """Byte for byte; every job (generate, check, partition, sort, check) lost one worker in the middle of a
    segment, with 30 to 70 % of its segments done, and job show tells of the retry."""
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    run_reference("terasort.py", "--records", str(RECORDS), "--seed", "7", "--output", str(plain))
    with running(tmp_path / "c") as cluster:
        victims = {victim["job"]: victim for victim in sort_under_fire(cluster, "/sorted", ours)}
        assert ours.read_bytes() == plain.read_bytes()
        jobs = [cluster.json("job", "show", job["id"]) for job in cluster.json("job", "list")]
    print(json.dumps([{k: job[k] for k in ("id", "label", "segments", "retries")} for job in jobs]))
    print(json.dumps(list(victims.values())))
    assert len(jobs) == 5
    for job in jobs:
        assert job["state"] == "done", job
        assert "pid" in victims.get(job["id"], {}), (job, victims)
        assert 0.3 <= victims[job["id"]]["done"] / victims[job["id"]]["total"] <= 0.7
        assert job["retries"] >= 1, job


def test_spawner_and_workers_are_gone_after_down(tmp_path: Path) -> None:
    """No orphan after sector down."""
    with running(tmp_path / "c", slaves=2) as cluster:
        below = [child for slave in cluster.info["slaves"] for child in descendants(slave["pid"])]
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
