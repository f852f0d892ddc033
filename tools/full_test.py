"""Everything that `./dev test` runs, side by side where the parts do not disturb each other.

Six lanes: the tests of live services, which mostly wait, in three of them; behind them in priority three with
what computes: lint, the C cases and the fuzz targets; simulated clusters; and other Python tests. What
measures time (`@pytest.mark.alone`, TEST_ALONE in C) runs afterwards, one after the other; beside that only
what waits for emulated links. Each part writes a log of its own; at the end come one line a part, the failed
tests of all parts, and the log of the first part that failed. Exit status: 0 all passed, 1 something failed,
130 on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from sector.ports import candidates, ephemeral_range

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
SHOWN_LINES = 150  # of the log of the first part that failed
STILL_RUNNING_S = 60.0  # between two lines about what is under way
POLL_S = 0.2
END_S = 60.0  # for a part to stop its services after Ctrl-C
HANGS_S = 600  # a test that takes longer hangs, beside other load too; twice what pytest allows it otherwise
STUCK_S = HANGS_S + 60  # until pytest itself is ended, for a test that the exception at HANGS_S did not end
SILENT_S = STUCK_S + 240.0  # until a part is killed that writes nothing
LIVE = ("tests/integration", "tests/interop")
SIMULATED = "tests/sim"
# behind emulated links, a fifth of one processor: they pass on a machine with four times the work it can do
WAITING = ("tests/integration/test_round_trips.py", "tests/integration/test_udt_statistics.py")
LIVE_LANES = 3
USUAL_S = 3  # what a file of LIVE counts for if it is not in LONG
LONG = {
    "test_login_cluster": 170,
    "test_cycles": 150,
    "test_files_cluster": 105,
    "test_s3_crash_trees": 100,
    "test_reference": 90,
    "test_bad_input": 85,
    "test_firewall": 85,
    "test_s3_serve": 85,
    "test_s3_two_servers": 75,
    "test_sphere_cluster": 75,
    "test_libudt": 70,
    "test_s3bench_live": 70,
    "test_ended_by_signal": 60,
    "test_killed_transfers": 60,
    "test_s3_clients": 50,
    "test_scrub_cluster": 45,
    "test_preflight": 40,
    "test_s3_many_keys": 40,
    "test_hostile": 35,
    "test_s3_every_backend": 35,
    "test_s3_map_users": 35,
    "test_session_end": 35,
    "test_libudt_rules": 30,
    "test_login": 30,
    "test_s3_readme": 30,
    "test_hostile_counts": 25,
    "test_late_tickets": 25,
    "test_clock_steps": 20,
    "test_s3_bad_inputs": 20,
    "test_s3_killed_workers": 20,
    "test_acting": 15,
    "test_gmp_real": 15,
    "test_s3_proxy": 15,
    "test_s3_redirect": 15,
    "test_secrets": 15,
    "test_udtcat_interrupted": 15,
    "test_s3_disk_away": 10,
    "test_sphere_workers": 10,
    "test_transport_examples": 10,
}
INTERRUPTED = 130
# C cases in virtual time take and drop memory all the time: it stays in the process (csrc/test/keep_maps.c)
KEEP = {
    "LD_PRELOAD": str(ROOT / "csrc/build/keep_maps.so"),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
# how parts name what failed: pytest, the C runner, the fuzz targets, a test that hangs
FAILED_LINE = re.compile(r"^(FAILED |ERROR |FAIL |MISSED |dev: |make: \*\*\*|.*Timeout \([\d:]+\)!$)")


@dataclass
class Part:
    """One program with a log: its `name`, its command line, and what it may not share with others."""

    name: str
    command: list[str]
    nice: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    seconds: float = 0.0
    status: int | None = None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return LOGS / f"{self.name}.log"

    def start(self) -> None:
        """Run it in a process group of its own, so that Ctrl-C reaches it once, from us."""
        self.began = time.monotonic()
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                ["nice", "-n", str(self.nice), *self.command],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def over(self) -> bool:
        """Whether it has ended; takes note of how."""
        if self.process is not None and self.status is None and self._ended():
            self._all(signal.SIGKILL)  # what it left behind
            self.status = self.process.wait()
            self.seconds = time.monotonic() - self.began
        return self.status is not None

    def _ended(self) -> bool:
        """Whether its process has ended; it is not waited for yet, so that its number stays its own."""
        assert self.process is not None
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, how) is not None

    def _all(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its group, as a terminal would."""
        if self.process is not None and not self.over():
            self._all(number)

    def end_if_silent(self) -> None:
        """Kill it if it has written nothing for SILENT_S, and say so in its log."""
        if self.process is not None and not self.over() and time.time() - self.log.stat().st_mtime > SILENT_S:
            with self.log.open("a") as out:
                out.write(f"\ndev: {self.name} wrote nothing for {SILENT_S / 60:.1f} minutes: ended\n")
            self._all(signal.SIGKILL)

    def lines(self) -> list[str]:
        """What it has written so far."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def last(self) -> str:
        """Its last line with words in it."""
        return next((line.strip() for line in reversed(self.lines()) if re.search(r"\w", line)), "")

    def progress(self) -> str:
        """How far it is: pytest's percentage, or the time since it began."""
        found = re.findall(r"\[ *(\d+%)\]", "\n".join(self.lines()))
        return str(found[-1]) if found else f"{time.monotonic() - self.began:.0f} s"

    def report(self) -> str:
        """One line: how it ended, how long it took, what it said last."""
        if self.status is None:
            return f"{self.name:<18} not run"
        how = "ok" if self.status == 0 else "FAILED"
        return f"{self.name:<18} {how:<6} {self.seconds:4.0f} s  {self.last()}"


def python_tests(name: str, marks: str, ports: range, *paths: str, nice: int = 0) -> Part:
    """The Python tests at `paths` that `marks` selects, with ports of their own."""
    stuck = ["-o", f"faulthandler_timeout={STUCK_S}", "-o", "faulthandler_exit_on_timeout=true"]
    how = ["-p", "no:cacheprovider", f"--timeout={HANGS_S}", *stuck]
    command = [sys.executable, "-m", "pytest", *how, "-m", marks, *paths]
    return Part(name, command, nice, {"SECTOR_PORTS": f"{ports[0]}-{ports[-1]}"})


def dealt(files: list[Path], count: int) -> list[list[str]]:
    """Files of tests in so many lots that take about the same time, the longest first."""
    lots: list[list[str]] = [[] for _ in range(count)]
    sums = [0] * count
    for path in sorted(files, key=lambda path: (-LONG.get(path.stem, USUAL_S), path.name)):
        lesser = sums.index(min(sums))
        lots[lesser].append(str(path.relative_to(ROOT)))
        sums[lesser] += LONG.get(path.stem, USUAL_S)
    return lots


def lanes() -> list[list[Part]]:
    """What runs side by side, lane by lane."""
    all_ports = candidates(*ephemeral_range())
    each = len(all_ports) // (LIVE_LANES + 2)
    ports = [all_ports[number * each :][:each] for number in range(LIVE_LANES + 2)]
    files = [path for folder in LIVE for path in (ROOT / folder).glob("test_*.py")]
    live = [
        [python_tests(f"live-{number + 1}", "not alone", ports[number], *lot)]
        for number, lot in enumerate(dealt(files, LIVE_LANES))
    ]
    keeping = ["env", *(f"{name}={value}" for name, value in KEEP.items())]
    others = ["tests", *(f"--ignore={folder}" for folder in (*LIVE, SIMULATED))]
    return [
        *live,
        [
            Part("lint", ["./dev", "lint"], nice=5),
            Part("c-tests", [*keeping, "csrc/build/test", "--together"], nice=7),
            Part("fuzz", ["./dev", "_fuzz_beside", "10"], nice=12),
        ],
        [python_tests("simulated", "not alone", ports[-2], SIMULATED, nice=9)],
        [python_tests("tests", "not alone", ports[-1], *others, nice=2)],
    ]


def marked() -> list[str]:
    """Files with tests that want the machine for themselves: the others need not be imported for that."""
    found = [
        path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"\.alone\b", path.read_text())
    ]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def alone() -> list[list[Part]]:
    """What wants the machine for itself; of that, beside the rest, what only waits for links."""
    all_ports = candidates(*ephemeral_range())
    half = len(all_ports) // 2
    others = [path for path in marked() if path not in WAITING]
    return [
        [
            Part("c-tests-alone", ["csrc/build/test", "--alone"]),
            python_tests("tests-alone", "alone", all_ports[:half], *others),
        ],
        [python_tests("tests-waiting", "alone", all_ports[half:], *WAITING)],
    ]


def say(text: str) -> None:
    """A line of ours."""
    print(f"== {text}", flush=True)


def run(work: list[list[Part]]) -> None:
    """Run the parts of each lane one after the other and the lanes side by side; every part runs, whatever
    became of those before it."""
    said = time.monotonic()
    left = [list(lane) for lane in work]
    while any(left):
        for lane in left:
            if lane and lane[0].process is None:
                lane[0].start()
            elif lane and lane[0].over():
                say(lane.pop(0).report())
                said = time.monotonic()
            elif lane:
                lane[0].end_if_silent()
        if time.monotonic() - said > STILL_RUNNING_S:
            said = time.monotonic()
            say("running: " + ", ".join(f"{lane[0].name} ({lane[0].progress()})" for lane in left if lane))
        time.sleep(POLL_S)


def stop(parts: list[Part]) -> None:
    """Ctrl-C for all that runs, and the end of what does not heed it in END_S."""
    running = [part for part in parts if part.process is not None and not part.over()]
    say("stopping: " + ", ".join(part.name for part in running))
    for part in running:
        part.signal(signal.SIGINT)
    end = time.monotonic() + END_S
    while not all(part.over() for part in running) and time.monotonic() < end:
        time.sleep(POLL_S)
    for part in running:
        part.signal(signal.SIGKILL)


def tail(part: Part) -> list[str]:
    """What to show of the log of a part that failed: from pytest's failures on, or its last lines."""
    lines = part.lines()
    starts = [number for number, line in enumerate(lines) if re.match(r"=+ (FAILURES|ERRORS) =+$", line)]
    return lines[starts[0] :][:SHOWN_LINES] if starts else lines[-SHOWN_LINES:]


def summary(parts: list[Part], seconds: float) -> int:
    """Print what became of all parts; the exit status."""
    say(f"all parts, {seconds / 60:.1f} minutes")
    for part in parts:
        print(part.report())
    failed = [part for part in parts if part.status != 0]
    if not failed:
        say("all passed")
        return 0
    for part in failed:
        for line in part.lines():
            if FAILED_LINE.match(line):
                print(f"{part.name}: {line}")
    say(f"{failed[0].name} failed; from {failed[0].log.relative_to(ROOT)}:")
    print("\n".join(tail(failed[0])))
    say("failed: " + ", ".join(f"{part.name} ({part.log.relative_to(ROOT)})" for part in failed))
    return 1


def main() -> int:
    """Run everything."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    beside, after = lanes(), alone()
    parts = [part for lane in (*beside, *after) for part in lane]
    for part in parts:
        part.log.unlink(missing_ok=True)
    try:
        run(beside)
        run(after)
    except KeyboardInterrupt:
        stop(parts)
        return INTERRUPTED
    return summary(parts, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
