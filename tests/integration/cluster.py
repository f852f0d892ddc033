"""A real cluster for tests: `sector up` in a folder of its own, driven by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "sector.cli.main"]
LAST, NAMED = 30, 300
"""Lines of each log that are shown after a failure: the last ones, and those about what it names."""


@dataclass
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """Both outputs, for messages of failed checks."""
        return f"status {self.status}\n{self.out}{self.err}"


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 30.0, every: float = 0.05) -> Any:
    """The first true value of `condition`, asked again after `every` seconds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(every)


@dataclass
class Cluster:
    """A running cluster in `dir`; `info` is what `sector up --json` returned."""

    dir: Path
    slaves: int = 4
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a user of this cluster only."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith("SECTOR_") or k == "SECTOR_PORTS"}
        return keep | {
            "SECTOR_CONFIG": str(self.dir / "client.toml"),
            "XDG_CONFIG_HOME": str(self.dir / "config"),
            "HOME": str(self.dir),
            "PYTHONWARNINGS": "ignore",
        }

    def start(self) -> None:
        """sector up."""
        done = self.run(
            "up",
            "--dir",
            str(self.dir / "up"),
            "--slaves",
            str(self.slaves),
            "--port-base",
            "0",
            "--detach",
            "--json",
            timeout=120,
        )
        assert done.status == 0, done.said
        self.info = done.json()

    def stop(self) -> None:
        """sector down; afterwards no process of the cluster is left."""
        pids = self.pids()
        done = self.run("down", "--dir", str(self.dir / "up"), timeout=60)
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert done.status == 0, done.said
        assert not left, f"sector down left {left}"

    def pids(self) -> list[int]:
        """The services' processes."""
        return [*self.info.get("pids", {}).values(), *(slave["pid"] for slave in self.info.get("slaves", []))]

    def command(self, *arguments: str) -> list[str]:
        """The command line of `sector ARGUMENTS`."""
        return [*PROGRAM, *arguments]

    def run(self, *arguments: str, timeout: float = 60.0, input: str | None = None) -> Done:
        """Run `sector ARGUMENTS` to its end."""
        done = subprocess.run(
            self.command(*arguments),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str, timeout: float = 120.0) -> Done:
        """Run a command that must succeed."""
        done = self.run(*arguments, timeout=timeout)
        assert done.status == 0, f"sector {' '.join(arguments)}: {done.said}"
        return done

    def json(self, *arguments: str, timeout: float = 120.0) -> Any:
        """Run a command that must succeed and return its JSON."""
        return self.ok(*arguments, "--json", timeout=timeout).json()

    def refused(self, *arguments: str, timeout: float = 60.0, input: str | None = None) -> Done:
        """Run a command that must be refused in one clear line: exit 1 or 2, no traceback."""
        done = self.run(*arguments, timeout=timeout, input=input)
        assert done.status in (1, 2), f"sector {' '.join(arguments)}: {done.said}"
        assert "Traceback" not in done.err + done.out, done.said
        talk = [line for line in done.err.splitlines() if line and not line.startswith('{"time"')]
        assert 1 <= len(talk) <= 2, f"not one line and a hint: {done.said}"
        return done

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `sector ARGUMENTS`; the caller ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def slave(self, node: str) -> dict[str, Any]:
        """What `up` said of a slave."""
        return next(slave for slave in self.info["slaves"] if slave["id"] == node)

    def kill(self, pid: int) -> None:
        """kill -9 and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        wait_for(f"the end of {pid}", lambda: not alive(pid))

    def logs(self, said: str) -> str:
        """What the services' logs have about cloud paths that `said` names, and their last lines."""
        paths = [path for path in set(re.findall(r"/[\w./-]*\w", said)) if not Path(path).exists()]
        shown = []
        for log in sorted((self.dir / "up" / "log").glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            named = [line for line in lines[:-LAST] if any(path in line for path in paths)]
            shown += [f"-- {log.name}", *named[-NAMED:], "..." if named else "", *lines[-LAST:]]
        return "\n".join(line[:500] for line in shown if line)

    def start_missing(self) -> None:
        """`sector up` again: starts what died."""
        self.start()


def alive(pid: int) -> bool:
    """Whether any thread of a process runs (a zombie does not; its threads may end after the first)."""
    try:
        states = [
            path.read_text().rsplit(")", 1)[1].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except OSError:
        return Path(f"/proc/{pid}/task").exists()
    return any(state not in "ZX" for state in states)


def write_random(path: Path, size: int, seed: int) -> None:
    """A file of `size` seeded pseudo-random bytes (one 8 MiB pattern, each block numbered)."""
    import random

    block = bytearray(random.Random(seed).randbytes(min(size, 8 << 20)))
    with path.open("wb") as file:
        written = number = 0
        while written < size:
            block[:8] = number.to_bytes(8, "little")[: len(block[:8])]
            part = memoryview(block)[: size - written]
            file.write(part)
            written += len(part)
            number += 1


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def running(directory: Path, slaves: int = 4) -> Iterator[Cluster]:
    """A cluster for the time of a block. What fails in it shows the logs."""
    cluster = Cluster(directory, slaves)
    try:
        cluster.start()
        yield cluster
    except Exception as error:
        print(cluster.logs(str(error)))
        raise
    finally:
        cluster.stop()
