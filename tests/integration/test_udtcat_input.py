"""Standard input of `sector udtcat` that is empty, cannot be read, or breaks off."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from running import running, wait_listening

from sector.ports import free_ports

COMMAND = [sys.executable, "-m", "sector.cli.main", "udtcat"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def receive(port: int, **how: Any) -> Any:
    """A receiver at that port."""
    return running([*COMMAND, "-l", str(port)], **{"stdin": subprocess.DEVNULL, **PIPES, **how})


def test_an_empty_file_is_copied_as_any_other(tmp_path: Path) -> None:
    (port,) = free_ports(1, "0.0.0.0")
    empty = tmp_path / "empty"
    empty.touch()
    with receive(port) as receiver:
        wait_listening("receiving", receiver, port)
        with empty.open() as file:
            sent = subprocess.run([*COMMAND, "127.0.0.1", str(port)], stdin=file, timeout=30, **PIPES)
        assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"", b"")
        out, err = receiver.communicate(timeout=30)
        assert (receiver.returncode, out, err) == (0, b"", b"")


def test_a_receiver_needs_no_input(tmp_path: Path) -> None:
    """nohup gives a standard input that cannot be read; what comes is written all the same."""
    (port,) = free_ports(1, "0.0.0.0")
    unreadable = os.open(os.devnull, os.O_WRONLY)
    try:
        with receive(port, stdin=unreadable) as receiver:
            wait_listening("receiving", receiver, port)
            with running([*COMMAND, "127.0.0.1", str(port)], stdin=subprocess.PIPE) as sender:
                sender.stdin.write(b"data")
                sender.stdin.flush()
                line = receiver.stderr.readline()  # comes before there is an end, which would be first else
                assert line == b"sector: standard input gives nothing: Bad file descriptor\n"
                sender.stdin.close()
                assert sender.wait(timeout=30) == 0
            out, err = receiver.communicate(timeout=30)
            assert (receiver.returncode, out, err) == (0, b"data", b"")
    finally:
        os.close(unreadable)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (port,) = free_ports(1, "0.0.0.0")
    with receive(port) as receiver, (tmp_path / "written").open("wb") as file:
        wait_listening("receiving", receiver, port)
        sent = subprocess.run([*COMMAND, "127.0.0.1", str(port)], stdin=file, timeout=30, **PIPES)
        assert sent.returncode == 1
        assert sent.stderr == b"sector: cannot read standard input: Bad file descriptor\n"


def test_input_that_breaks_off_is_not_taken_for_all() -> None:
    """A TCP connection that is reset: neither end calls that a success."""
    (port,) = free_ports(1, "0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with receive(port) as receiver, ours:
        wait_listening("receiving", receiver, port)
        with running([*COMMAND, "127.0.0.1", str(port)], stdin=theirs.fileno(), **PIPES) as sender:
            theirs.close()
            ours.sendall(b"x" * 1000)
            assert receiver.stdout is not None
            assert receiver.stdout.read(1000) == b"x" * 1000
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            ours.close()
            _, err = sender.communicate(timeout=30)
            assert sender.returncode == 1
            assert err == b"sector: cannot read standard input: Connection reset by peer\n"
        assert receiver.wait(40) == 1


def test_ends_of_two_modes_are_told_what_to_do() -> None:
    (port,) = free_ports(1, "0.0.0.0")
    with receive(port) as receiver:
        wait_listening("receiving", receiver, port)
        command = [*COMMAND, "--message", "127.0.0.1", str(port)]
        sent = subprocess.run(command, input=b"data", timeout=30, **PIPES)
        assert sent.returncode == 1
        receiver.kill()  # it waits for a peer that fits
        assert b"refuses the connection (both ends need --message, or neither)" in sent.stderr
