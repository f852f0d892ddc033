"""`sector udtcat` that is interrupted says so, and the other end does not take what came for all."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from running import running, wait_listening

from sector.ports import free_ports

COMMAND = [sys.executable, "-m", "sector.cli.main", "udtcat"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_sender_and_its_receiver_both_fail(number: signal.Signals) -> None:
    (port,) = free_ports(1, "0.0.0.0")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running([*COMMAND, "-l", str(port)], **pipes) as receiver:
        wait_listening("receiving", receiver, port)
        with running([*COMMAND, "127.0.0.1", str(port)], **pipes) as sender:
            assert sender.stdin is not None and receiver.stdout is not None
            sender.stdin.write(b"x" * 1000)
            sender.stdin.flush()
            assert receiver.stdout.read(1000) == b"x" * 1000
            sender.send_signal(number)
            assert sender.wait(20) == 128 + number
        assert receiver.wait(40) == 1
        assert receiver.stderr is not None and b"1000 bytes had been received" in receiver.stderr.read()
