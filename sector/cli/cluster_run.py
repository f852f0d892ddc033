"""The processes of a cluster on one machine: start, wait until they serve, find again, stop.

Every process that `sector up` starts carries the directory in its environment; it is found by that in /proc,
so that no order of kills leaves one that `sector down` does not know. A process is addressed by pidfd, which
names exactly that process and no later one with its number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sector
from sector import ports
from sector.cli.render import say
from sector.config import write_private
from sector.errors import Busy, LocalIO, SectorError, TimedOut

DIR_MARK = "SECTOR_UP_DIR"
NAME_MARK = "SECTOR_UP_NAME"
START_S = 60.0
STOP_S = 25.0
KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Process:
    """A running process of a cluster: `name` of the node, pid, and kernel start time (clock ticks)."""

    name: str
    pid: int
    started: int


def start_time(pid: int) -> int | None:
    """Kernel start time of a live process, None when it is gone or a zombie."""
    state, started = _state(pid)
    return None if state in "ZX" else started


def _state(pid: int) -> tuple[str, int]:
    """The kernel's letter for the state of a process's first thread, and when that began; X for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return "X", 0
    return fields[0], int(fields[19])


def running(directory: Path) -> list[Process]:
    """All live processes that `sector up` started in `directory`, by their environment."""
    wanted = f"{DIR_MARK}={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        started = start_time(int(entry.name))
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if started is None or wanted not in environment:
            continue
        names = [e.partition(b"=")[2] for e in environment if e.startswith(NAME_MARK.encode() + b"=")]
        if names:
            found.append(Process(names[0].decode(errors="replace"), int(entry.name), started))
    return sorted(found, key=lambda process: (process.name, process.started))


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time in a directory. Raises `Busy`."""
    descriptor = os.open(directory / "up.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy(
                f"another sector up or down works in {directory}", hint="wait until it has ended"
            ) from None
        yield
    finally:
        os.close(descriptor)


# starting -------------------------------------------------------------------------------------------
class Readiness:
    """A socket on which the started processes say that they serve (systemd's protocol)."""

    def __init__(self) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="sector-up-")
        self.path = str(Path(self._dir.name) / "ready")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(self.path)
        self._ready: set[int] = set()

    def __enter__(self) -> Readiness:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._dir.cleanup()

    def wait(self, child: Child, timeout_s: float) -> None:
        """Until `child` serves. Raises the error it ended with, or `TimedOut`."""
        deadline = time.monotonic() + timeout_s
        with pidfd(child.pid) as death:
            while child.pid not in self._ready:
                left = deadline - time.monotonic()
                readable, _, _ = select.select([self._socket.fileno(), death], [], [], max(0.0, left))
                if self._socket.fileno() in readable:
                    self._read()
                elif death in readable:
                    raise child.end_error()
                elif left <= 0:
                    raise TimedOut(
                        f"{child.name} was not ready after {timeout_s:.0f} s", hint=f"see {child.log}"
                    )

    def wait_long(self, child: Child) -> None:
        """However long that takes, with a word each START_S: for one that serves at last, or ends. Raises the
        error it ended with."""
        while True:
            try:
                self.wait(child, START_S)
                return
            except TimedOut:
                say(f"{child.name} still starts; see {child.log}")

    def _read(self) -> None:
        lines = self._socket.recv(4096).decode(errors="replace").splitlines()
        fields = dict(line.partition("=")[::2] for line in lines)
        if fields.get("READY") == "1" and fields.get("MAINPID", "").isdigit():
            self._ready.add(int(fields["MAINPID"]))


@contextlib.contextmanager
def pidfd(pid: int) -> Iterator[int]:
    """A descriptor of a process; readable when it has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Child:
    """A process just started."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    log_from: int

    @property
    def pid(self) -> int:
        """Its number."""
        return self.popen.pid

    def end_error(self) -> SectorError:
        """Why it ended before it served: its own last words."""
        status = self.popen.wait()
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            lines = file.read().decode(errors="replace").splitlines()
        said = [line.removeprefix("sector: ") for line in lines if line.startswith("sector: ")]
        if said:
            return SectorError(f"{self.name} did not start: {said[-1]}")
        return SectorError(f"{self.name} ended with status {status}", hint=f"see {self.log}")


def start(directory: Path, name: str, arguments: list[str], ready: Readiness) -> Child:
    """Start `sector ARGUMENTS` as node `name`, away from this terminal, its log in DIR/log/NAME.log."""
    log = directory / "log" / f"{name}.log"
    root = str(Path(sector.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SECTOR_")},
        "PYTHONPATH": path,
        "NOTIFY_SOCKET": ready.path,
        DIR_MARK: str(directory),
        NAME_MARK: name,
    }
    if "SECTOR_DEBUG" in os.environ:
        environment["SECTOR_DEBUG"] = os.environ["SECTOR_DEBUG"]
    try:
        log.parent.mkdir(mode=0o700, exist_ok=True)
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "sector.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
            return Child(name, popen, log, out.tell())
    except OSError as bad:
        raise LocalIO(f"{name} cannot be started: {bad.strerror} ({bad.filename})") from None


# stopping -------------------------------------------------------------------------------------------
def _stop_order(process: Process) -> int:
    return {"master": 1, "security": 2}.get(process.name, 0)


def stop(processes: list[Process]) -> list[dict[str, object]]:
    """End exactly these processes: slaves, then the master, then the security server; by SIGTERM, and by
    SIGKILL when one does not obey. Returns name, pid and whether it was killed, for each."""
    report: list[dict[str, object]] = []
    for order in (0, 1, 2):
        group = [process for process in processes if _stop_order(process) == order]
        report.extend(_stop_group(group))
    return report


def _stop_group(group: list[Process]) -> list[dict[str, object]]:
    report: list[dict[str, object]] = []
    with contextlib.ExitStack() as stack:
        open_fds: dict[int, Process] = {}
        for process in group:
            try:
                descriptor = stack.enter_context(pidfd(process.pid))
            except ProcessLookupError:
                continue
            # the pidfd is of whoever has the number now: go on only if that is still our process
            if start_time(process.pid) == process.started:
                open_fds[descriptor] = process
        _signal(open_fds, signal.SIGTERM)
        left = _wait(open_fds, STOP_S)
        _signal(left, signal.SIGKILL)
        _wait(left, KILL_S)
        for process in open_fds.values():
            killed = process in left.values()
            report.append({"name": process.name, "pid": process.pid, "killed": killed})
    return report


def let_go(directory: Path, timeout_s: float = KILL_S) -> None:
    """Wait for processes of `directory` that have been killed and have not ended: while a thread of one is
    left, so are its ports and its locks."""
    with contextlib.ExitStack() as stack:
        dying: dict[int, Process] = {}
        for process in recalled(directory):
            with contextlib.suppress(OSError, OverflowError):  # a record that is damaged
                descriptor = stack.enter_context(pidfd(process.pid))
                if _state(process.pid) == ("Z", process.started):
                    dying[descriptor] = process
        _wait(dying, timeout_s)


def _signal(processes: dict[int, Process], number: signal.Signals) -> None:
    for descriptor in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)


def _wait(processes: dict[int, Process], timeout_s: float) -> dict[int, Process]:
    left = dict(processes)
    deadline = time.monotonic() + timeout_s
    while left:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        readable, _, _ = select.select(list(left), [], [], remaining)
        for descriptor in readable:
            del left[descriptor]
    return left


# what was started -----------------------------------------------------------------------------------
def remember(directory: Path, processes: list[Process]) -> None:
    """Keep names, pids and start times in DIR/up.json for people, tools and `recalled`."""
    lines = [{"name": p.name, "pid": p.pid, "started": p.started} for p in processes]
    write_private(directory / "up.json", (json.dumps(lines, indent=2) + "\n").encode())


def recalled(directory: Path) -> list[Process]:
    """What DIR/up.json names; nothing when it cannot be read."""
    try:
        lines = json.loads((directory / "up.json").read_bytes())
        return [Process(str(line["name"]), int(line["pid"]), int(line["started"])) for line in lines]
    except (OSError, ValueError, TypeError, LookupError):
        return []


def free_ports(host: str, slaves: int) -> dict[str, dict[str, int]]:
    """Ports that are free now, all different, for each node: TCP for tls, UDP for gmp and udt."""
    free = iter(ports.free_ports(3 + 2 * slaves, host))
    wanted = {"security": {"tls": next(free)}, "master": {"tls": next(free), "gmp": next(free)}}
    for i in range(slaves):
        wanted[f"slave{i + 1}"] = {"gmp": next(free), "udt": next(free)}
    return wanted
