"""`sector udtcat` that is interrupted says so, and the other end does not take what came for all: one of ours
is told at once, one like libudt finds out by the silence."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import running, wait_listening

from sector.ports import free_ports

COMMAND = [sys.executable, "-m", "sector.cli.main", "udtcat"]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@contextmanager
def a_part_sent() -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """(sender, receiver), of which the one has more to say and the other has what was said."""
    (port,) = free_ports(1, "0.0.0.0")
    with running([*COMMAND, "-l", str(port)], **PIPES) as receiver:
        wait_listening("receiving", receiver, port)
        with running([*COMMAND, "127.0.0.1", str(port)], **PIPES) as sender:
            assert sender.stdin is not None and receiver.stdout is not None
            sender.stdin.write(b"x" * 1000)
            sender.stdin.flush()
            assert receiver.stdout.read(1000) == b"x" * 1000
            yield sender, receiver


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_sender_and_its_receiver_both_fail(number: signal.Signals) -> None:
    with a_part_sent() as (sender, receiver):
        sender.send_signal(number)
        assert sender.wait(20) == 128 + number
        begin = time.monotonic()
        assert receiver.wait(40) == 1
        assert time.monotonic() - begin < 5  # silence is noticed after 9 s
        assert receiver.stderr is not None
        said = receiver.stderr.read()
        assert b"gave up some of what it had sent" in said and b"1000 bytes had been received" in said


def test_an_interrupted_receiver_ends_its_sender() -> None:
    with a_part_sent() as (sender, receiver):
        receiver.send_signal(signal.SIGINT)
        assert receiver.wait(20) == 128 + signal.SIGINT
        begin = time.monotonic()
        assert sender.wait(40) == 1
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize("words", [[], ["--rendezvous", "127.0.0.1", "9"]], ids=["listens", "rendezvous"])
def test_an_interrupted_one_that_is_not_connected_just_ends(words: list[str]) -> None:
    (port,) = free_ports(1, "0.0.0.0")
    with running([*COMMAND, "-l", str(port), *words], **PIPES) as alone:
        wait_listening("waiting", alone, port)
        begin = time.monotonic()
        alone.send_signal(signal.SIGINT)
        assert alone.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - begin < 2
        assert alone.stderr is not None and alone.stderr.read() == b""


def test_one_that_is_interrupted_when_it_has_just_begun_to_listen_ends_without_a_word() -> None:
    """In the moment in which its port is there."""
    (port,) = free_ports(1, "0.0.0.0")
    mine = f":{port:04X} ".encode()
    for _ in range(5):
        with running([*COMMAND, "-l", str(port)], **PIPES) as alone:
            until = time.monotonic() + 30
            while not any(mine in Path(f"/proc/net/{kind}").read_bytes() for kind in ("udp", "udp6")):
                assert alone.poll() is None and time.monotonic() < until
            alone.send_signal(signal.SIGINT)
            assert alone.wait(20) == 128 + signal.SIGINT
            assert alone.stderr is not None and alone.stderr.read() == b""
