"""Lines that several processes add to one file stay whole, also when a write is cut."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from cumulus import common_file
from cumulus.common_file import Cut, append
from cumulus.http.access_log import AccessLog, Record
from cumulus.http.metrics import Metrics
from cumulus.http.pool import Pool


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With a line in it."""
    made = tmp_path / "access.log"
    made.write_bytes(b"first\n")
    return made


@pytest.fixture
def two(file: Path) -> Iterator[list[int]]:
    """As two workers have it open."""
    opened = [os.open(file, os.O_WRONLY | os.O_APPEND) for _ in range(2)]
    yield opened
    for fd in opened:
        os.close(fd)


def test_a_write_that_is_cut_is_finished_before_another_begins(
    file: Path, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cut = os.write, threading.Event()

    def write(fd: int, data: memoryview) -> int:
        if fd == two[0]:
            done = real(fd, data[:3])
            cut.set()
            time.sleep(0.05)  # the other one has time to come between
            return done
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    slow = threading.Thread(target=append, args=(two[0], b"one line\nand more\n"))
    slow.start()
    assert cut.wait(20)
    append(two[1], b"other\n")
    slow.join()
    assert file.read_bytes() == b"first\none line\nand more\nother\n"


@pytest.mark.parametrize(("room", "left"), [(0, b""), (4, b""), (9, b"one line\n"), (12, b"one line\n")])
def test_a_line_that_a_full_disk_cuts_is_taken_away(
    file: Path, two: list[int], monkeypatch: pytest.MonkeyPatch, room: int, left: bytes
) -> None:
    real = os.write

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done, room = real(fd, data[:room]), 0
        return done

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(Cut, match="No space") as failed:
            append(two[0], b"one line\nand more\n")
        assert failed.value.whole == len(left)
    append(two[1], b"other\n")
    assert file.read_bytes() == b"first\n" + left + b"other\n"


def test_what_is_not_ours_alone_is_not_cut(
    file: Path, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who knows nothing of the lock has added to it meanwhile."""
    real = os.write

    def write(fd: int, data: memoryview) -> int:
        real(fd, data[:4])
        real(two[1], b"theirs")
        monkeypatch.undo()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="Input/output"):
        append(two[0], b"one line\n")
    assert file.read_bytes() == b"first\none theirs"


def test_a_stranger_who_keeps_the_lock_is_waited_for_a_moment(
    file: Path, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_file, "LOCK_S", 0.05)
    fcntl.flock(two[1], fcntl.LOCK_EX)
    append(two[0], b"line\n")
    assert file.read_bytes() == b"first\nline\n"


def test_where_there_are_no_locks_lines_are_written(
    file: Path, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", none)
    append(two[0], b"line\n")
    assert file.read_bytes() == b"first\nline\n"


def test_a_pipe_takes_lines_too() -> None:
    """As `/dev/stdout` often is."""
    read, write = os.pipe()
    append(write, b"line\n")
    assert os.read(read, 100) == b"line\n"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("text", ["a\x9b31m", "a\x85b", "a\u2028b", "\u202etxt.exe", "a\u2066b", "\x1b[2J\n"])
def test_no_line_of_a_log_commands_a_terminal(text: str) -> None:
    """Nor ends before it is over, nor reads from right to left; what programs read is what it was."""
    line = common_file.json_line({"key": text, "name": "Zoë 中"})
    assert line.endswith(b"\n") and len(line.decode().splitlines()) == 1
    assert all(one.isprintable() for one in line.decode()[:-1]) and "Zoë 中" in line.decode()
    assert json.loads(line) == {"key": text, "name": "Zoë 中"}


def test_no_stranger_commands_the_terminal_of_who_reads_the_access_log(file: Path) -> None:
    """By a key that is not there, or the name of a client."""
    clock = Clock()
    log = AccessLog(str(file), Pool(clock, 1, 1), clock, Metrics())
    record = Record(
        time="", id="", peer="", method="GET", status=404, bytes_in=0, bytes_out=0, total_ms=0.0,
        turn_ms=0.0, key="k\x9b2J", agent="\x9b31m",
    )  # fmt: skip
    log.add(record)
    log.close()
    line = file.read_bytes().splitlines()[-1]
    assert line.isascii()
    assert (json.loads(line)["key"], json.loads(line)["agent"]) == ("k\x9b2J", "\x9b31m")
