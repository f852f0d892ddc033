"""The table of figures of Cumulus: each against its peers in the same run.

    ./dev bench cumulus                     measures what is missing, writes s3.md and s3.json
    ./dev bench cumulus --quick             one short run of each
    ./dev bench cumulus --runs 3            so many runs at most
    ./dev bench cumulus --only throughput,small,open,syncs,complete,load,replication,fairness,memory
    ./dev bench cumulus --cell 512M-curl    cells whose name holds this, once more, whatever is there
    ./dev bench cumulus --list              names of all cells, and how many good runs each has
    ./dev bench cumulus --fresh             forget earlier results
    ./dev bench cumulus --show              measures nothing

Results are lines of JSON in benchmarks/results/ (git ignores it); a cell that has its runs is not measured
again, so a run that was stopped goes on. Pictures are written beside the document. Servers lie in temporary
directories below TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import s3cells
import s3judge
import s3nets
import s3pictures
from s3servers import why_missing
from table import Cell, measure, plan, say

from sector.bench import cells
from sector.bench.common import machine
from sector.cli import ends

RESULTS = Path(__file__).resolve().parents[1] / "results"
SIZES = {"16M": 16, "64M": 64, "512M": 512, "2G": 2048}  # 10^6 bytes
S3_CLIENTS = ("curl", "s3cmd", "boto3", "awscli", "rclone")
S3_SERVERS = ("cumulus", "versitygw", "minio", "sink")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    name: str
    runs: int
    sizes: tuple[str, ...]
    keys: int
    seconds: float
    parts: int
    shares_mb: int  # of an object of the fairness cells


FULL = Effort("full", 7, tuple(SIZES), 10_000, 10.0, 160, 512)
QUICK = Effort("quick", 1, ("64M",), 2_000, 3.0, 8, 64)
PART = 64_000_000


def throughput(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """A file up and down by each client from each server, beside scp, GridFTP, nginx and openssl."""
    for name in effort.sizes:
        size = SIZES[name] * 10**6
        seconds = 2 + size / 50e6
        yield Cell(
            "throughput", f"{name}-md5", size / 3e8, lambda _, n=size: s3cells.md5(bench, n), effort.runs
        )
        pairs = [("nginx", "nginx"), ("scp", "scp"), ("gridftp", "gridftp"), ("curl", "opaque")]
        pairs += [(client, server) for client in S3_CLIENTS for server in S3_SERVERS]
        for client, server in pairs:
            work = s3cells.transfers(bench, size, client, server)
            yield Cell("throughput", f"{name}-{client}-{server}", seconds, work, effort.runs, (server,))


def small(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """4 KB objects over 16 connections."""
    for server in S3_SERVERS[:3]:

        def work(run: int, server: str = server) -> dict[str, object]:
            return s3cells.small(bench, server, effort.keys, effort.seconds, run)

        seconds = 10 + 3 * effort.seconds + effort.keys / 500
        yield Cell("small", f"small-{server}", seconds, work, effort.runs, (server,))


def opened(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """The same at 70 % of what each can do."""
    for server in S3_SERVERS[:3]:

        def work(run: int, server: str = server) -> dict[str, object]:
            return s3cells.opened(bench, server, effort.keys, 2 * effort.seconds, run)

        seconds = 10 + 5 * effort.seconds + effort.keys / 500
        yield Cell("open", f"open-{server}", seconds, work, min(effort.runs, 3), (server,))


def syncs(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """On a disk whose syncs take 5 ms."""
    yield Cell(
        "syncs",
        "slow-syncs",
        8 + effort.seconds,
        lambda run: s3cells.slow_syncs(bench, effort.seconds, run),
        min(effort.runs, 3),
    )


def complete(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """A large upload in equal parts."""
    for server in S3_SERVERS[:3]:

        def work(_: int, server: str = server) -> dict[str, object]:
            return s3cells.complete(bench, server, effort.parts, PART)

        yield Cell("complete", f"complete-{server}", 5 + effort.parts, work, min(effort.runs, 3), (server,))


def loads(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """More and more clients, with and without a redirection, over each storage."""
    for storage in s3cells.STORAGES:
        for way in ("direct", "redirected"):

            def work(_: int, storage: str = storage, away: bool = way == "redirected") -> dict[str, object]:
                return s3cells.loaded(bench, storage, away, effort.seconds / 2)

            seconds = 15 + 8 * (effort.seconds / 2 + 2)
            yield Cell("load", f"load-{storage}-{way}", seconds, work, min(effort.runs, 3))


def replication(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """80 clients that follow redirections to servers behind 100 Mb/s each."""
    for count in (1, 2, 4, 8):

        def work(_: int, count: int = count) -> dict[str, object]:
            with bench.scratch("replication") as folder:
                return dict(s3nets.replication(folder, count, 80, 2 * effort.seconds))

        seconds = 20 + 3 * count + 2 * effort.seconds
        yield Cell("replication", f"replication-{count}", seconds, work, min(effort.runs, 3))


def fairness(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """32 clients that want all there is."""
    for server in S3_SERVERS[:3]:

        def work(_: int, server: str = server) -> dict[str, object]:
            return s3cells.fairness(bench, server, 32, effort.shares_mb)

        seconds = 60 + 1.2 * effort.shares_mb
        yield Cell("fairness", f"fairness-{server}", seconds, work, min(effort.runs, 3), (server,))


def memory(effort: Effort, bench: s3cells.Bench) -> Iterator[Cell]:
    """32 clients of a server that has 512 MiB."""
    work = lambda _: s3cells.memory(bench, 32, effort.shares_mb)  # noqa: E731
    yield Cell("memory", "memory", 30 + 0.4 * effort.shares_mb, work, min(effort.runs, 3))


GROUPS: dict[str, Callable[[Effort, s3cells.Bench], Iterator[Cell]]] = {
    "throughput": throughput,
    "small": small,
    "open": opened,
    "syncs": syncs,
    "complete": complete,
    "load": loads,
    "replication": replication,
    "fairness": fairness,
    "memory": memory,
}


def able(all_cells: list[Cell]) -> list[Cell]:
    """Those whose servers can run here; the others are named once."""
    missing = {peer: why_missing(peer) for cell in all_cells for peer in cell.peers}
    for peer, why in missing.items():
        if why:
            say(f"without {peer}: {why}")
    return [cell for cell in all_cells if not any(missing[peer] for peer in cell.peers)]


def write(folder: Path, effort: Effort, results: dict[str, cells.Results]) -> str:
    """s3.md and s3.json from all that is there."""
    rows = [row for one in results.values() for row in one.rows]
    text = s3judge.markdown(s3judge.Found(rows), f"{effort.name} effort", effort.sizes)
    name = "s3" if effort.name == "full" else "s3-quick"
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine(), "results": rows}) + "\n")
    if rows:  # of nothing there are no pictures, nor is there a word about what they need
        for line in s3pictures.draw(s3judge.Found(rows), folder, effort.sizes, SIZES):
            say(line)
    return text


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="./dev bench cumulus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups: " + ", ".join(GROUPS))
    parser.add_argument("--cell", help="measure cells whose name holds this once more")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--runs", type=int, help="so many runs of each cell at most")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these groups")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is there")
    parser.add_argument("--list", action="store_true", help="names of the cells and their good runs")
    options = parser.parse_args(arguments)
    options.wanted = [name for name in options.only.split(",") if name]
    for name in options.wanted:
        if name not in GROUPS:
            parser.error(f"no group {name!r}; there are {', '.join(GROUPS)}")
    if options.runs is not None and options.runs < 1:
        parser.error("--runs: at least 1")
    return options


def known(options: argparse.Namespace) -> dict[str, cells.Results]:
    """What was measured before."""
    results = {}
    options.results.mkdir(parents=True, exist_ok=True)
    for name in GROUPS:
        path = options.results / f"s3-{name}{'-quick' if options.quick else ''}.jsonl"
        if options.fresh and name in options.wanted:
            path.unlink(missing_ok=True)
        results[name] = cells.Results(path)
    return results


def main() -> int:
    """Measure and write; the exit status, 1 where a run failed."""
    options = options_of(sys.argv[1:])
    effort = QUICK if options.quick else FULL
    if options.runs is not None:
        effort = replace(effort, runs=min(effort.runs, options.runs))
    results, good = known(options), True
    with tempfile.TemporaryDirectory(prefix="s3bench-") as folder:
        bench = s3cells.Bench(Path(folder))
        try:
            all_cells = [cell for name in options.wanted for cell in GROUPS[name](effort, bench)]
            if options.list:
                for cell in all_cells:
                    done = results[cell.group].count(cell.name)
                    print(f"{cell.group:<11} {cell.name:<32} {done} of {cell.runs}")
                return 0
            if not options.show:
                todo = plan(able(all_cells), results, options.cell)
                if options.cell is not None and not todo:
                    say(f"no cell's name holds {options.cell!r}; --list shows them")
                    return 2
                good = measure(todo, results)
        finally:
            bench.close()
    print(write(options.results, effort, results), end="")
    return 0 if good else 1


if __name__ == "__main__":
    ends.install()  # the servers must not stay behind
    try:
        sys.exit(ends.printed(main))
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        sys.exit(ends.status())
