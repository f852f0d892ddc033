"""What a slave asks of its workers and what it hears: limits, tasks, outcomes; and whom workers run as."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from sector.errors import BadConfig
from sector.wire.sphere import SpeState, UdfFault

log = Logger()


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of one worker process. Bytes; -1 = none. `user` = who they run as when the slave runs as
    root and that user can read the interpreter, "" = the slave's own user. `network` = leave them in the
    network; else they get an empty network namespace where the kernel allows it. `silence_s` without
    a sign of life and without using the processor = hung. `idle_s` = how long an idle worker is kept."""

    memory: int = 4 << 30
    file_size: int = 64 << 30
    files: int = 256
    processes: int = 256
    cpu_s: int = 0
    user: str = "nobody"
    network: bool = False
    silence_s: float = 30.0
    idle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One input of a segment: an open descriptor and where the range begins in it (`at`), the range in
    the file (`offset`, `length`, file `size`), and the index likewise (-1 = none)."""

    path: str
    fd: int
    at: int
    offset: int
    length: int
    size: int
    record_size: int = 0
    records: int = 0
    index_fd: int = -1
    index_at: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One segment for a worker. The caller keeps the descriptors open until the outcome. `blob` = path of
    the pickled function, `udf` its SHA-256; `timeout_s` 0 = none."""

    job: str
    segment: int
    attempt: int
    udf: str
    blob: str
    inputs: tuple[TaskInput, ...]
    output_fd: int
    granularity: str
    dtype: str = ""
    buckets: int = 0
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The function returned; the output descriptor holds `bytes` of data and `table` int64 lengths."""

    kind: str
    bytes: int
    table: int
    pieces: int
    row_bytes: int
    dtype: str
    shape: list[int]
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The function failed."""

    fault: UdfFault
    pid: int
    log: str


Outcome = Done | Fault
Progress = Callable[[float, int], None]


class Workers(Protocol):
    """What the slave needs of its workers; `sector.sphere.supervisor.Supervisor` is the real one."""

    @property
    def busy(self) -> int:
        """Segments that run now."""

    def run(self, task: Task, progress: Progress) -> Deferred[Outcome]:
        """Run a segment when its turn comes."""

    def cancel(self, job: str, segment: int, attempt: int) -> bool:
        """Stop one attempt."""

    def end_job(self, job: str) -> None:
        """Stop all of a job."""

    def states(self, job: str, node: str) -> list[SpeState]:
        """The worker processes of a job."""

    def watch(self, changed: Callable[[str], None]) -> None:
        """`changed(why)` when no worker can be started any more, `changed("")` when it can be again."""

    def stop(self) -> None:
        """Stop everything."""


def why_root(name: str) -> str:
    """Why workers of a slave that is started now would run as root although `[sphere] user` is `name`; ""
    when they would not, or when an empty name asks for it. Raises `BadConfig` for an unknown user."""
    if os.geteuid() != 0 or not name:
        return ""
    try:
        pwd.getpwnam(name)
    except KeyError:
        if name != "nobody":
            raise BadConfig(f"[sphere] user: there is no user {name!r} on this machine") from None
        return "there is no user nobody on this machine"
    place = _closed_place()
    return f"user {name} cannot enter {place}, where this installation is" if place else ""


def pick_user(name: str) -> tuple[int, int]:
    """uid and gid for workers; (0, 0) = stay what we are. Raises `BadConfig` for an unknown user."""
    why = why_root(name)
    if why:
        log.warn("functions run as root: {why}", why=why)
    if why or os.geteuid() != 0 or not name:
        return 0, 0
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


def _closed_place() -> str:
    """A directory that keeps other users from the interpreter, its packages or ours; "" = there is none."""
    places = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.abspath(__file__))}
    for place in sorted(places):
        path = os.path.realpath(place)
        while path != "/":
            try:
                if not os.stat(path).st_mode & 0o001:
                    return path
            except OSError:
                return path
            path = os.path.dirname(path)
    return ""
