"""A long proof that is told to end takes the programs that it has started with it, and counts nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import running

ROOT = Path(__file__).resolve().parents[2]


def children(pid: int) -> list[int]:
    """Processes that it has started, in whatever thread."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(one) for one in listed.read_text().split()]
    return found


@pytest.mark.parametrize("begun", [1, 2])
def test_a_soak_that_is_ended_leaves_no_slice_behind(begun: int) -> None:
    """Also one that is just being started: the signal comes at once when its process is there."""
    command = [sys.executable, str(ROOT / "tools/soak.py"), "R1", "--jobs", "2", "--minutes", "5"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with running(command, cwd=ROOT, **pipes) as soak:
        end = time.monotonic() + 30
        while len(slices := children(soak.pid)) < begun:
            assert soak.poll() is None and time.monotonic() < end
        soak.send_signal(signal.SIGTERM)
        assert soak.wait(60) == 128 + signal.SIGTERM
        assert not [one for one in slices if Path(f"/proc/{one}").exists()]
        assert soak.stdout is not None
        said = soak.stdout.read()
        assert b"stopped; the same command goes on" in said and b"in all" not in said
