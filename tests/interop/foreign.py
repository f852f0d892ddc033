"""The foreign peer, the relay and our command, as the interoperation tests start them."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from running import running

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "csrc" / "build" / "libudt_peer"
RELAY = ROOT / "csrc" / "build" / "relay"
SECTOR = [sys.executable, "-m", "sector.cli.main"]

# libudt says only once that it closes. Where that datagram is lost, udtcat says this line and exits with 1
# (docs/decisions/0041); it may do so nowhere else.
NO_FAREWELL = re.compile(
    rb"sector: (\d+) bytes received, nothing known to be missing, but no farewell came"
    rb"( \(its last confirmation is missing too\))?: "
    rb"the sender crashed, or its farewell was lost \(UDT sends only one\) \(check the length\)\n"
)


@contextlib.contextmanager
def relay(arguments: list[str]) -> Iterator[None]:
    """A relay that runs until the end of the block."""
    with running([str(RELAY), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        try:
            assert ready, f"the relay ended: {arguments}"
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
