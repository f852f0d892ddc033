"""The whole path on one machine, from nothing to checked results; `./dev demo` runs it.

Starts a cluster (security server, master, slaves), stores web pages, indexes them in two stages, looks words
up, sorts 1 GB, kills a slave, reads everything again, and stops the cluster.

    python examples/demo.py --html /usr/share/doc/python3/html
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import inverted_index
import terasort

import sector

SECTOR = [sys.executable, "-m", "sector.cli.main"]
BUCKETS = 8
WORDS = ("function", "network", "scientific", "zebra")


class Report:
    """Says what happens and keeps how long it took."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """One timed step."""
        print(f"\n== {what}", flush=True)
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        self.steps.append((what, seconds))
        print(f"   {seconds:.1f} s", flush=True)


def sector_command(*arguments: str) -> str:
    """Run a command of `sector`; its standard output. Ends the demo with its error."""
    done = subprocess.run([*SECTOR, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sector {' '.join(arguments)} failed with status {done.returncode}")
    return done.stdout


def digests(cloud: sector.Cloud, folders: list[str], target: Path) -> dict[str, str]:
    """Fetch every file below the cloud directories (get verifies each byte) and return path -> digest."""
    found: dict[str, str] = {}
    for folder in folders:
        files = [info for info in cloud.ls(folder, recursive=True) if info.kind == "file"]
        cloud.get(folder, target, recursive=True)
        found |= {info.path: f"{info.size} {info.digest}" for info in files}
        shutil.rmtree(target)
        target.mkdir()
    return found


def index_pages(cloud: sector.Cloud, report: Report, html: Path) -> None:
    """Store the pages, index them, look words up."""
    with report.step(f"store the web pages of {html}"):
        summary = inverted_index.store(cloud, str(html), "/pages")
        print(f"   {len(summary.files)} files, {summary.bytes / 1e6:.1f} MB over UDT")
    with report.step("build an inverted index in two stages (Sphere)"):
        parts = inverted_index.build(cloud, "/pages", "/index", BUCKETS)
        size = sum(cloud.stat(path).size for path in parts)
        print(f"   index of {size / 1e6:.1f} MB in {len(parts)} files")
    with report.step("look words up in the index"):
        for word in WORDS:
            pages = inverted_index.look_up(cloud, parts, BUCKETS, word)
            best = f"most often in {pages[0][0]} ({pages[0][1]} times)" if pages else "in no page"
            print(f"   {word}: {len(pages)} pages, {best}")


def sort_records(cloud: sector.Cloud, report: Report, records: int) -> None:
    """Terasort with checks."""
    size = records * terasort.RECORD / 1e9
    with report.step(f"Terasort of {records} records ({size:g} GB), checked"):
        terasort.run(cloud, "/sorted", records, 1, say=lambda text: print(f"   {text}", flush=True))


def lose_a_slave(cloud: sector.Cloud, report: Report, victim: dict[str, Any], folder: Path) -> None:
    """kill -9 of one slave; everything is still there, byte for byte."""
    folders = ["/pages", "/index", "/sorted"]
    with report.step("wait until every file has two replicas"):
        for name in folders:
            cloud.replicate(name, copies=2, wait=True)
    with report.step("read everything"):
        before = digests(cloud, folders, folder)
        print(f"   {len(before)} files verified")
    with report.step(f"kill -9 slave {victim['id']} (process {victim['pid']}) and read everything again"):
        os.kill(victim["pid"], signal.SIGKILL)
        after = digests(cloud, folders, folder)
        if before != after:
            raise SystemExit("the files differ after the slave was lost")
        print(f"   {len(after)} files verified, all digests equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--html", type=Path, required=True, help="folder of web pages")
    parser.add_argument("--records", type=int, default=10_000_000, help="records of 100 bytes to sort")
    parser.add_argument("--slaves", type=int, default=4)
    parser.add_argument(
        "--dir", type=Path, help="keep the cluster's files here (default: a temporary folder)"
    )
    options = parser.parse_args()
    if not options.html.is_dir():
        raise SystemExit(f"{options.html} is no folder")
    root = options.dir or Path(tempfile.mkdtemp(prefix="sector-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    os.environ["SECTOR_CONFIG"] = str(root / "client.toml")
    up = str(root / "up")
    report = Report()
    began = time.monotonic()
    try:
        with report.step(f"start a cluster: security server, master, {options.slaves} slaves"):
            told = sector_command(
                "up", "--dir", up, "--slaves", str(options.slaves), "--port-base", "0", "--detach", "--json"
            )
            cluster = json.loads(told)
            print(f"   master at {cluster['master']}, user {cluster['user']}, files in {root}")
        scratch = root / "fetched"
        scratch.mkdir(exist_ok=True)
        with sector.connect() as cloud:
            index_pages(cloud, report, options.html)
            sort_records(cloud, report, options.records)
            lose_a_slave(cloud, report, cluster["slaves"][-1], scratch)
    finally:
        with report.step("stop the cluster"):
            if (root / "up").exists():
                sector_command("down", "--dir", up)
        if options.dir is None:
            shutil.rmtree(root, ignore_errors=True)
    print("\nWhat was done, and how long it took:")
    for what, seconds in report.steps:
        print(f"  {seconds:7.1f} s  {what}")
    print(f"  {time.monotonic() - began:7.1f} s  in all")
    print(
        "\nTo go on: sector up starts a cluster of your own, sector put and sector ls store and list files,"
    )
    print("sector sphere run FILE.py:FUNCTION runs your function; examples/ has the programs of this demo.")


if __name__ == "__main__":
    main()
