"""Long proofs in slices that can be interrupted: `./dev soak GROUP`.

A slice is one program run with its own seed. What is done is kept in build/soak/GROUP.jsonl, one line
per slice (seed, amount, seconds); the same command goes on behind the last one. A slice that fails is
printed with the command that repeats it, is not counted, and ends the group with status 1. Ctrl-C, SIGTERM
and SIGHUP end the slices that are at work, which are not counted either.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from full_test import KEEP

from sector.cli import ends

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build" / "soak"
STRIDE = 10_000  # a slice uses the seeds behind its own, one per scenario
PATIENCE_S = 10.0  # for a slice that is told to end
TEST = "csrc/build/test"


@dataclass(frozen=True)
class Slice:
    """One run: what is counted, how much of it, and how it is made with a seed."""

    unit: str
    amount: int
    command: Callable[[int], list[str]]
    environment: Callable[[int], dict[str, str]] = lambda seed: {}
    counted: str = ""  # pattern of the amount in the output, else `amount`
    said: str = ""  # pattern of the lines in the output that are worth keeping: figures


@dataclass(frozen=True)
class Group:
    """A row of the table of tests: slices until `goal` of each unit is reached."""

    about: str
    goal: int
    slices: tuple[Slice, ...]
    side_by_side: bool = False  # each slice is one program that needs a core and nothing else


def _c_cases(unit: str, amount: int, scale: int, *names: str, counted: str = "") -> Slice:
    return Slice(
        unit,
        amount,
        lambda seed: [TEST, f"--seed={seed}", f"--scale={scale}", *names],
        environment=lambda seed: KEEP,
        counted=counted,
    )


# what csrc/Makefile gives them too
_OPTIONS = {
    name: ["-len_control=0", f"-max_len={most}"]
    for name, most in {
        "udt_net": 800,
        "gmp_net": 800,
        "udt_sealed": 600,
        "gmp_sealed": 600,
        "stripe": 200,
        "xfer": 200,
    }.items()
}


# the parsers allocate little, so that most time went into keeping what was freed and looking for leaks
_QUICK = {"ASAN_OPTIONS": "quarantine_size_mb=2"}


def _fuzz(target: str, runs: int) -> Slice:
    corpus = f"csrc/build/corpus/{target}"
    options = _OPTIONS.get(target, [])
    if not _is_engine(target):
        options = [*options, "-detect_leaks=0"]
    return Slice(
        target,
        runs,
        lambda seed: [
            f"csrc/build/fuzz/{target}",
            f"-seed={seed}",
            f"-runs={runs}",
            "-timeout=20",
            "-rss_limit_mb=512",
            "-artifact_prefix=build/soak/",
            "-print_final_stats=1",
            "-verbosity=1",
            *options,
            corpus,
            f"csrc/fuzz/corpus/{target}",
        ],
        environment=lambda seed: {} if _is_engine(target) else _QUICK,
        counted=r"stat::number_of_executed_units: +(\d+)",
    )


def _fuzz_python(target: str) -> Slice:
    """Of tests/fuzz/targets.py."""
    return Slice(
        target,
        100_000,
        lambda seed: [
            sys.executable,
            "tests/fuzz/run.py",
            target,
            f"-seed={seed}",
            "-runs=100000",
            "-timeout=20",
            "-rss_limit_mb=512",
            "-artifact_prefix=build/soak/",
            "-print_final_stats=1",
            "-verbosity=0",
            f"csrc/build/corpus/{target}",
            f"tests/fuzz/corpus/{target}",
        ],
        counted=r"stat::number_of_executed_units: +(\d+)",
    )


def _python_targets() -> list[str]:
    return sorted(path.name for path in (ROOT / "tests/fuzz/corpus").iterdir())


def _targets() -> list[str]:
    return sorted(path.stem[5:] for path in (ROOT / "csrc/fuzz").glob("fuzz_*.c"))


def _is_engine(target: str) -> bool:
    """Each execution is a whole conversation; the others are parsers and quick."""
    return target in ("udt", "gmp", "xfer") or target.endswith(("_net", "_sealed"))


def _pytest(unit: str, amount: int, variable: str, test: str, said: str = "") -> Slice:
    """A test that does `amount` of its units when `variable` says so, with new seeds in each slice."""
    return Slice(
        unit,
        amount,
        lambda seed: [sys.executable, "-m", "pytest", test, "--timeout=3600", f"--seed={seed}", "-s"],
        environment=lambda seed: {variable: str(amount)},
        said=said,
    )


GROUPS = {
    "R1": Group(
        "UDT in virtual time: any rate, distance, loss, reordering, duplication, damage, outages",
        200_000,
        (
            _c_cases("scenarios", 4000, 200, "udt_scenarios"),  # half of them in own mode
            _c_cases("outages", 1000, 100, "udt_outages"),
        ),
        side_by_side=True,
    ),
    "R2": Group(
        "GMP in virtual time against a model: at most once, no silent loss, deadlines, restarts",
        100_000_000,
        (_c_cases("messages", 0, 200, "gmp_scenarios", counted=r"^# (\d+) messages"),),
        side_by_side=True,
    ),
    "R3": Group(
        "interoperation with libudt 4.11: roles, modes and networks, through a relay in real time",
        20,
        (
            Slice(
                "matrices",
                1,
                lambda seed: [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "tests/interop/test_libudt.py",
                    f"--seed={seed}",
                ],
            ),
        ),
    ),
    "R4": Group(
        "fuzzing of every parser in C",
        100_000_000,
        tuple(_fuzz(name, 5_000_000) for name in _targets() if not _is_engine(name)),
        side_by_side=True,
    ),
    "R4-python": Group(
        "fuzzing of every parser in Python",
        1_000_000,
        tuple(_fuzz_python(name) for name in _python_targets()),
        side_by_side=True,
    ),
    "R4-engines": Group(
        "fuzzing of the protocol engines, alone and in pairs",
        1_000_000,
        tuple(_fuzz(name, 20_000) for name in _targets() if _is_engine(name)),
        side_by_side=True,
    ),
    "R6-s3": Group(
        "power cuts under Cumulus, one process and two workers: trees that a crash may leave, recovered",
        50_000,
        (
            _pytest(
                "trees of each",
                2500,
                "SECTOR_TEST_CRASH_STATES",
                "tests/integration/test_s3_crash_trees.py",
                r"\d+ crash states .*",
            ),
        ),
    ),
    "R6-pg-s3": Group(
        "crashes of PostgreSQL, one process or all, under the load of two servers",
        200,
        (
            _pytest(
                "crashes of each kind",
                20,
                "SECTOR_TEST_S3_CRASHES",
                "tests/interop/test_s3_two_servers.py::test_a_database_that_crashes_under_load_loses_nothing",
            ),
        ),
    ),
    "R8-s3": Group(
        "histories of one key of Cumulus under four clients, on each kind of storage, put into an order",
        5_000,
        (
            _pytest(
                "histories of each",
                500,
                "SECTOR_TEST_S3_HISTORIES",
                "tests/contract/test_s3_linearizable.py",
            ),
            _pytest(
                "histories over HTTP",
                500,
                "SECTOR_TEST_S3_HISTORIES",
                "tests/integration/test_s3_between_workers.py",
            ),
        ),
    ),
    "R15-s3": Group(
        "64 writers at the limit of a quota of Cumulus",
        1_000_000,
        (
            _pytest(
                "attempts",
                20_000,
                "SECTOR_TEST_QUOTA_ATTEMPTS",
                "tests/integration/test_s3_quota_race.py",
                r"\d+ attempts .*",
            ),
        ),
    ),
    "R16-s3": Group(
        "500 busy clients of Cumulus, 50 that dribble, 10,000 that hold a connection",
        3_600,
        (
            _pytest(
                "seconds",
                600,
                "SECTOR_TEST_LOAD_SECONDS",
                "tests/interop/test_s3_load_held.py",
                r"\d+ clients, .*",
            ),
        ),
    ),
    "keys-s3": Group(
        "files that others made in a bucket of Cumulus, taken in and listed",
        3_000_000,
        (
            _pytest(
                "files",
                1_000_000,
                "SECTOR_TEST_S3_FILES",
                "tests/integration/test_s3_many_keys.py::test_files_of_others_are_taken_in",
                r"\d+ files: .*|the server has grown .*",
            ),
        ),
    ),
    "R5": Group(
        "hostile datagrams at a live cluster",
        100_000_000,
        (
            Slice(
                "datagrams",
                10_000_000,
                lambda seed: [
                    sys.executable,
                    "-m",
                    "pytest",
                    "tests/integration/test_hostile.py",
                    "--timeout=3600",
                    f"--seed={seed}",
                    "-s",
                ],
                environment=lambda seed: {"SECTOR_TEST_HOSTILE": "10000000"},
            ),
        ),
    ),
}


def done(group: str) -> tuple[dict[str, int], int]:
    """Amounts by unit that earlier runs have finished, and the highest seed used."""
    amounts: dict[str, int] = {}
    last = 0
    path = STATE / f"{group}.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        amounts[entry["unit"]] = amounts.get(entry["unit"], 0) + entry["amount"]
        last = max(last, entry["seed"])
    return amounts, last


_at_work: set[subprocess.Popen[bytes]] = set()
_beginning = threading.Lock()  # held while a slice is started: one that is at work is in the set
_stopped = threading.Event()


def run_slice(one: Slice, seed: int) -> tuple[int, list[str], str]:
    """Runs it; the amount, the figures that it printed, and the output when it failed (else empty)."""
    command = one.command(seed)
    environment = {**os.environ, **one.environment(seed)}
    with _beginning:
        if _stopped.is_set():
            return 0, [], f"soak: seed {seed} was not begun"
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        _at_work.add(process)
    with process:
        try:
            output = process.communicate()[0].decode(errors="replace")
        finally:
            _at_work.discard(process)
    if process.returncode != 0:
        words = [f"{name}={value}" for name, value in one.environment(seed).items()] + command
        return 0, [], f"{output[-6000:]}\nsoak: seed {seed} failed: {shlex.join(words)}"
    found = re.search(one.counted, output, re.MULTILINE) if one.counted else None
    said = [line.group(0) for line in re.finditer(one.said, output)] if one.said else []
    return (int(found.group(1)) if found else one.amount), said, ""


def stop_slices() -> None:
    """End those at work, and begin no others. pytest and libFuzzer clean up after SIGINT, unless they were
    told to ignore it."""
    with _beginning:
        _stopped.set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for process in list(_at_work):
            process.send_signal(number)
        end = time.monotonic() + PATIENCE_S
        while _at_work and time.monotonic() < end:
            time.sleep(0.05)


def due(group: Group, amounts: dict[str, int]) -> Iterator[Slice]:
    """The slices whose unit has not reached the goal, the most backward first."""
    open_slices = [one for one in group.slices if amounts.get(one.unit, 0) < group.goal]
    yield from sorted(open_slices, key=lambda one: amounts.get(one.unit, 0))


class Progress:
    """What is done of a group, kept in a file, and which slices are at work."""

    def __init__(self, name: str, first_seed: int) -> None:
        self.group, self.path = GROUPS[name], STATE / f"{name}.jsonl"
        self.amounts, last = done(name)
        self.seed = max(first_seed, last + STRIDE)
        self.running: dict[Future[tuple[int, list[str], str]], tuple[Slice, int, float]] = {}

    def next(self) -> Slice | None:
        """The slice to begin now, if those at work do not reach the goal."""
        expected = dict(self.amounts)
        for one, _, _ in self.running.values():
            expected[one.unit] = expected.get(one.unit, 0) + one.amount
        return next(due(self.group, expected), None)

    def begin(self, workers: ThreadPoolExecutor, one: Slice) -> None:
        """Set it to work with the next seed."""
        self.running[workers.submit(run_slice, one, self.seed)] = one, self.seed, time.monotonic()
        self.seed += STRIDE

    def finish(self) -> bool:
        """Wait for one at least and write down what it did; False when one has failed."""
        good = True
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            one, seed, start = self.running.pop(future)
            amount, said, failure = future.result()
            if failure:
                print(failure, flush=True)
                good = False
                continue
            took = round(time.monotonic() - start, 1)
            self.amounts[one.unit] = self.amounts.get(one.unit, 0) + amount
            with self.path.open("a") as log:
                entry = {"unit": one.unit, "seed": seed, "amount": amount, "seconds": took, "said": said}
                log.write(json.dumps(entry) + "\n")
            print(
                f"seed {seed}: {amount:,} {one.unit} in {took} s, {self.amounts[one.unit]:,} in all",
                flush=True,
            )
            for line in said:
                print(f"    {line}", flush=True)
        return good


def soak(name: str, minutes: float, first_seed: int, jobs: int = 1) -> int:
    """Slices of one group, `jobs` at a time, until the goal or the time is reached; exit status."""
    STATE.mkdir(parents=True, exist_ok=True)
    for target in [*_targets(), *_python_targets()]:
        (ROOT / "csrc/build/corpus" / target).mkdir(parents=True, exist_ok=True)
    progress = Progress(name, first_seed)
    group = progress.group
    so_far = progress.amounts or "nothing"
    print(f"soak {name}: {group.about}; goal {group.goal:,} each, so far {so_far}", flush=True)
    end, good = time.monotonic() + minutes * 60, True
    with ThreadPoolExecutor(jobs) as workers:
        try:
            while good or progress.running:
                while (
                    good
                    and len(progress.running) < jobs
                    and time.monotonic() < end
                    and (one := progress.next())
                ):
                    progress.begin(workers, one)
                if not progress.running:
                    break
                good = progress.finish() and good
        except KeyboardInterrupt:
            stop_slices()
            print(f"soak {name}: stopped; the same command goes on", flush=True)
            return ends.status()
    left = {one.unit: group.goal - progress.amounts.get(one.unit, 0) for one in due(group, progress.amounts)}
    if good:
        print(
            f"soak {name}: " + (f"time is up, left: {left}" if left else "complete, 0 failures"), flush=True
        )
    return 0 if good else 1


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("group", choices=[*GROUPS], help="row of the table of tests")
    parser.add_argument("--minutes", type=float, default=80, help="stop after the slice that passes this")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first slice")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument(
        "--jobs", type=int, help="slices at a time; default: one a core where they need nothing else, or 1"
    )
    options = parser.parse_args()
    jobs = options.jobs or ((os.cpu_count() or 1) if GROUPS[options.group].side_by_side else 1)
    if options.fresh:
        (STATE / f"{options.group}.jsonl").unlink(missing_ok=True)
    ends.install()
    return soak(options.group, options.minutes, options.seed, max(1, jobs))


if __name__ == "__main__":
    sys.exit(main())
