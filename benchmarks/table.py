"""The table of transport figures: everything in one go, each against its peers in the same run.

    ./dev bench table                     measures what is missing, writes table.md and table.json
    ./dev bench table --quick             one short run of each
    ./dev bench table --only loopback,gmp,rpc,links,sharing,life
    ./dev bench table --cell 1g-100ms-1%  cells whose name holds this, once more, whatever is there
    ./dev bench table --list              names of all cells, and how many good runs each has
    ./dev bench table --fresh             forget earlier results
    ./dev bench table --show              measures nothing

Results are lines of JSON in benchmarks/results/ (git ignores it); a cell that has its runs is not measured
again, so a run that was stopped goes on. The document is made of the medians (benchmarks/judge.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import judge

from sector.bench import cells, quiet, rpc, udt
from sector.bench.common import machine, program
from sector.bench.link import Link
from sector.bench.peers import PEERS, why_missing
from sector.bench.run import json_of
from sector.cli import ends
from sector.errors import SectorError

RESULTS = Path(__file__).resolve().parent / "results"
LOOPBACK = [
    *("sector", "sector-sealed", "sector-threads", "sector_compatible", "sector-single", "sector-1000"),
    *("sector-to-libudt", "libudt-to-sector", "libudt"),
    *("tcp-cubic", "tcp-cubic-1500", "tcp-bbr", "tcp-bbr-1500", "srt", "zmq", "quinn", "udp", "udp-single"),
    *("udp-cut", "udp-batch", "udp-batch-connected"),
]
START_S = 3.0  # what a cell costs beside its own time
GMP_PEERS = "sector,sector_threads,udp,tcp,tcp_connect,zmq,libudt"


def say(text: str) -> None:
    """Progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Effort:
    """How much is measured; `link_share` of the seconds that a link's cells have."""

    name: str
    runs: int
    loopback_runs: int  # more: they are short, and on a shared machine the most uneven
    loopback_s: float
    link_share: float
    sharing_s: float
    rounds: int
    idle_s: float


FULL = Effort("full", 3, 7, 4, 1.0, 45, 10_000, 20)
QUICK = Effort("quick", 1, 1, 2, 0.5, 20, 2_000, 10)


@dataclass(frozen=True)
class Cell:
    """One measurement: about how long it takes, and how (the number of the run in, the row out)."""

    group: str
    name: str
    seconds: float
    work: Callable[[int], dict[str, Any]]
    runs: int
    peers: tuple[str, ...] = ()  # of sector.bench.peers, which must be able to run


# ---- what there is to measure --------------------------------------------------------------------
def loopback(effort: Effort) -> Iterator[Cell]:
    """Bulk throughput on this machine."""
    for name in LOOPBACK:

        def work(_: int, name: str = name) -> dict[str, Any]:
            return udt.run_one(name, effort.loopback_s)

        yield Cell("loopback", name, effort.loopback_s + START_S, work, effort.loopback_runs, (name,))


def gmp(effort: Effort) -> Iterator[Cell]:
    """Small messages: C, both ends on the last core, peers in turn; then new peers."""
    cpu = str((os.cpu_count() or 1) - 1)
    few = str(min(effort.rounds, 2000))
    for name, words in (
        ("gmp", ["bench_gmp", "--rounds", str(effort.rounds), "--peers", GMP_PEERS]),
        ("gmp-new", ["bench_gmp_intro", "--rounds", few]),
    ):

        def work(_: int, words: list[str] = words) -> dict[str, Any]:
            tool, *rest = words
            found = json_of([program(tool), *rest, "--cpus", f"{cpu},{cpu}"])["results"]
            return {"pinning": f"{cpu},{cpu}", "results": found}

        yield Cell("gmp", name, 8 if name == "gmp" else 3, work, effort.runs)


def calls(effort: Effort) -> Iterator[Cell]:
    """Calls from Python, one core a side, beside gRPC."""
    cores = os.cpu_count() or 1

    def work(_: int) -> dict[str, Any]:
        pins = (0, min(1, cores - 1))
        found = rpc.measure(["grpc"], rounds=effort.rounds // 2, seconds=3, cpus=pins)
        return {"pinning": f"{pins[0]},{pins[1]}", "results": found}

    yield Cell("rpc", "rpc", 30, work, effort.runs)


def links(effort: Effort) -> Iterator[Cell]:
    """One flow over an emulated link."""
    for text, peers, full in judge.LINKS:
        link, seconds = Link.parse(text), max(8.0, full * effort.link_share)
        for peer in ("sector", *peers.split()):

            def work(run: int, link: Link = link, peer: str = peer, s: float = seconds) -> dict[str, Any]:
                return cells.measure(link, peer, s, seed=run, engine="user")

            yield Cell("links", cells.key(link, peer), seconds + START_S, work, effort.runs, (peer,))


def sharing(effort: Effort) -> Iterator[Cell]:
    """Two flows through one queue; those for comparison once."""
    link = Link.parse(judge.SHARED)
    for flows, bounds in judge.SHARING:

        def work(run: int, flows: Any = flows) -> dict[str, Any]:
            return cells.share_of(link, flows, effort.sharing_s, effort.sharing_s / 4, seed=run)

        name = f"{link.name}-{judge.sharing_name(flows)}"
        runs, peers = effort.runs if bounds else 1, tuple(peer for peer, _ in flows)
        yield Cell("sharing", name, effort.sharing_s + START_S, work, runs, peers)


def life(effort: Effort) -> Iterator[Cell]:
    """Idle connections and dead peers in real time; losses in virtual time, exact, hence once."""
    yield Cell("life", "mass-loss", 2, lambda _: mass_loss(), 1)
    yield Cell("life", "first-loss", 2, lambda _: first_loss(), 1)
    yield Cell("life", "idle", effort.idle_s + 8, lambda _: quiet.measure("idle", 100, effort.idle_s), 1)
    yield Cell("life", "dead", 14, lambda _: quiet.measure("dead"), 1)


GROUPS = {"loopback": loopback, "gmp": gmp, "rpc": calls, "links": links, "sharing": sharing, "life": life}


def said_by_test(name: str) -> list[str]:
    """What a C test prints of its figures. Raises SectorError when it fails."""
    done = subprocess.run(
        [program("test"), name],
        env=os.environ | {"TEST_VERBOSE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise SectorError(f"{name}: {(done.stdout + done.stderr).strip()[-200:]}")
    return done.stdout.splitlines()


def mass_loss() -> dict[str, Any]:
    """The worst case of udt_own_mass_loss_is_survived: 200 Mb/s, goodput of the 10 RTT after it."""
    form = re.compile(r"(\d+) packets lost at once, then ([\d.]+) Mb/s")
    found = [match for line in said_by_test("udt_own_mass_loss") if (match := form.search(line))]
    if not found:
        raise SectorError("the test of mass loss printed no figures")
    worst = min(float(match[2]) for match in found)
    return {"share": round(worst / 200, 3), "lost_pkts": min(int(match[1]) for match in found)}


def first_loss() -> dict[str, Any]:
    """The worst case of udt_own_first_packet_lost_is_repaired_soon: how much later than without the loss
    (half a round trip after it was sent), beyond one round trip."""
    form = re.compile(r"RTT ([\d.]+) ms, \d+ bytes: ([\d.]+) ms")
    found = [match for line in said_by_test("udt_own_first_packet_lost") if (match := form.search(line))]
    if not found:
        raise SectorError("the test of a first packet printed no figures")
    return {
        "beyond_rtt_ms": round(max(float(m[2]) - 1.5 * float(m[1]) for m in found), 2),
        "cases": len(found),
    }


# ---- measuring -----------------------------------------------------------------------------------
def brief(row: dict[str, Any]) -> str:
    """What to say of a result while the others are measured."""
    if "error" in row:
        return str(row["error"])
    if "share_of_limit" in row:
        rate, drops = row["steady_gbps"] * 1e3, row.get("queue_drop_share", 0)
        return f"{rate:.1f} Mb/s, {row['share_of_limit']:.1%} of the limit, drops {drops:.3%}"
    if "results" in row:
        return ", ".join(f"{one['peer']} {one['p50_us']:.1f} us" for one in row["results"])
    known = (
        "gbps",
        "mbps",
        "jain",
        "share",
        "beyond_rtt_ms",
        "packets_per_5s",
        "threads",
        "idle_s",
        "sending_s",
        *("up_mb_per_s", "down_mb_per_s", "get_per_s", "list_per_s", "put_per_s", "get_p99_ms", "put_p99_ms"),
        *("syncs_per_put", "complete_s", "mb_per_s", "machine_busy", "get_mbps", "put_mbps"),
    )
    return ", ".join(f"{name} {row[name]}" for name in known if name in row)


def time_text(seconds: float) -> str:
    """Rounded for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def measure(todo: list[tuple[int, Cell]], results: dict[str, cells.Results]) -> bool:
    """All of them, with an estimate of the time left that learns from those that are done; whether none
    failed."""
    good = True
    where, begin, planned = machine(), time.monotonic(), 0.0
    whole = sum(cell.seconds for _, cell in todo)
    for place, (run, cell) in enumerate(todo, 1):
        pace = (time.monotonic() - begin) / planned if planned > 30 else 1.0
        say(f"[{place}/{len(todo)}, about {time_text((whole - planned) * pace)} left] {cell.name}, run {run}")
        try:
            row = {**cell.work(run), "cell": cell.name}
            if row.get("ok") is False:
                raise SectorError("what was sent is not what arrived")
        except SectorError as error:
            row, good = {"cell": cell.name, "error": str(error)}, False
        planned += cell.seconds
        results[cell.group].add({"run": run, "at": round(time.time()), "commit": where["commit"], **row})
        say(f"    {brief(row)}")
    return good


def plan(
    all_cells: list[Cell], results: dict[str, cells.Results], again: str | None
) -> list[tuple[int, Cell]]:
    """(run, cell) of what is missing, run by run, so that one disturbance does not hit all runs of one cell;
    with `again` one more run of those whose name holds it."""
    if again is not None:
        chosen = [cell for cell in all_cells if again in cell.name]
        return [(results[cell.group].count(cell.name) + 1, cell) for cell in chosen]
    most = max((cell.runs for cell in all_cells), default=0)
    return [
        (run, cell)
        for run in range(1, most + 1)
        for cell in all_cells
        if run <= cell.runs and results[cell.group].count(cell.name) < run
    ]


def able(all_cells: list[Cell]) -> list[Cell]:
    """Those that can run here; the others are named."""
    found, told = [], set()
    for cell in all_cells:
        why = next((text for peer in cell.peers if (text := why_missing(peer))), None)
        if why is None:
            found.append(cell)
        elif why not in told:
            told.add(why)
            say(f"without {cell.name} and what is like it: {why}")
    return found


def write(folder: Path, effort: Effort, results: dict[str, cells.Results]) -> str:
    """table.md and table.json from all that is there."""
    rows = [row for one in results.values() for row in one.rows]
    text = judge.markdown(judge.Found(rows), f"{effort.name} effort")
    name = "table" if effort is FULL else "table-quick"
    (folder / f"{name}.md").write_text(text)
    document = {"machine": machine(), "peers": {k: v.says for k, v in PEERS.items()}, "results": rows}
    (folder / f"{name}.json").write_text(json.dumps(document) + "\n")
    return text


def main() -> int:
    """Measure and write; the exit status, 1 where a run failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups: " + ", ".join(GROUPS))
    parser.add_argument("--cell", help="measure cells whose name holds this once more")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these groups")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is there")
    parser.add_argument("--list", action="store_true", help="names of the cells and their good runs")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    for name in wanted:
        if name not in GROUPS:
            parser.error(f"no group {name!r}; there are {', '.join(GROUPS)}")
    effort = QUICK if options.quick else FULL
    options.results.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in GROUPS:
        path = options.results / f"{name}{'-quick' if options.quick else ''}.jsonl"
        if options.fresh and name in wanted:
            path.unlink(missing_ok=True)
        results[name] = cells.Results(path)
    all_cells = [cell for name in wanted for cell in GROUPS[name](effort)]
    if options.list:
        for cell in all_cells:
            print(f"{cell.group:<9} {cell.name:<48} {results[cell.group].count(cell.name)} of {cell.runs}")
        return 0
    good = True
    if not options.show:
        todo = plan(able(all_cells), results, options.cell)
        if options.cell is not None and not todo:
            parser.error(f"no cell's name holds {options.cell!r}; --list shows them")
        good = measure(todo, results)
    print(write(options.results, effort, results), end="")
    return 0 if good else 1


if __name__ == "__main__":
    ends.install()
    try:
        sys.exit(ends.printed(main))
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        sys.exit(ends.status())
