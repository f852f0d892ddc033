"""The foreign peer, the relay and our command, as the interoperation tests start them."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def free_ports(count: int) -> list[int]:
    """UDP ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


@contextlib.contextmanager
def relay(arguments: list[str]) -> Iterator[None]:
    """A relay that runs until the end of the block."""
    with subprocess.Popen([str(RELAY), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def wait_listening(role: str, listener: subprocess.Popen[bytes], port: int) -> None:
    """Until the listening side has bound its UDP port."""
    for _ in range(200):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            listener.wait(0.05)
            break
    raise AssertionError(f"the {role} side does not listen on {port}")
