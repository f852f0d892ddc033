"""Programs that a test starts: none outlives a test that failed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process of subprocess.Popen's `options`. The end of the block waits for its end, after a failure
    in the block for that of a killed one: Popen's own block would wait for ever."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def wait_listening(role: str, listener: subprocess.Popen[bytes], port: int) -> None:
    """Until somebody has bound this UDP port. The kernel's tables are read: a try to bind it might be just
    what keeps the listener from it."""
    bound = f":{port:04X} "
    for _ in range(200):
        tables = [
            path.read_text() for path in (Path("/proc/net/udp"), Path("/proc/net/udp6")) if path.exists()
        ]
        if any(bound in line for table in tables for line in table.splitlines()[1:]):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            listener.wait(0.05)
            break
    raise AssertionError(f"the {role} side does not listen on {port}")
