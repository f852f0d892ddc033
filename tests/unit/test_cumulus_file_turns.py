"""Files on their way by sendfile(2): which of their pages are asked after, and how often."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from twisted.internet import main

from cumulus.http.settings import KIB, TURN
from cumulus.http.transport import FileJob, S3Server


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FileJob]:
    """A file of two and a half of the longest turns, sent in turns of 256 KiB."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * TURN + TURN // 2))
    fd = os.open(path, os.O_RDONLY)
    yield FileJob(fd, 0, 2 * TURN + TURN // 2, lambda _: 0.0, lambda _, go: go(), lambda _: None, 256 * KIB)
    os.close(fd)


def all_turns(job: FileJob) -> list[bool]:
    """What it says before each."""
    said = []
    while job.left:
        said.append(job.cached())
        count = min(job.turn, job.left)
        job.offset += count
        job.left -= count
    return said


def test_one_look_at_two_bytes_does_for_all_turns_of_two_mebibytes(
    job: FileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def look(fd: int, buffers: Any, offset: int, flags: int) -> int:
        looked.append(offset)
        return 1

    monkeypatch.setattr(os, "preadv", look)
    assert all(all_turns(job))
    end = 2 * TURN + TURN // 2
    assert looked == [0, TURN - 1, TURN, 2 * TURN - 1, 2 * TURN, end - 1]


def test_pages_that_are_on_disk_are_brought_in_before_the_turn(
    job: FileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then no more is asked until the end of the longest turn."""
    real = os.preadv

    def absent(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT and offset >= TURN - 1:
            raise BlockingIOError
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", absent)
    assert not job.cached()
    job.warm_thd()
    assert job.cached()
    job.offset, job.left = TURN - 256 * KIB, TURN + TURN // 2 + 256 * KIB
    assert job.cached()
    job.offset, job.left = TURN, TURN + TURN // 2
    assert not job.cached()


def test_a_file_system_that_cannot_tell_is_asked_once(job: FileJob, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(fd: int, buffers: Any, offset: int, flags: int) -> int:
        asked.append(offset)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert all(all_turns(job))
    assert asked == [0]


@pytest.fixture
def ends() -> Iterator[tuple[S3Server, socket.socket]]:
    """A connection whose reactor does nothing by itself, and the client's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = S3Server(ours, Mock(), ("", 0), SimpleNamespace(_realPortNumber=0), 0, Mock())
    yield connection, theirs
    ours.close()
    theirs.close()


def test_the_first_turn_waits_for_no_turn_of_the_reactor(
    job: FileJob, ends: tuple[S3Server, socket.socket]
) -> None:
    connection, client = ends
    connection.write(b"head")
    connection.send_file(job)
    assert client.recv(4) == b"head"
    assert 0 < connection.sent - 4 == job.offset
    assert client.recv(1) == bytes(1)


def test_the_first_turn_comes_after_what_waits(job: FileJob, ends: tuple[S3Server, socket.socket]) -> None:
    connection, _client = ends
    connection.write(bytes(64 << 20))
    connection.send_file(job)
    assert job.offset == 0


def test_a_client_that_is_gone_at_the_first_turn_is_lost_at_the_next(
    job: FileJob, ends: tuple[S3Server, socket.socket]
) -> None:
    connection, client = ends
    client.close()
    connection.send_file(job)
    assert (job.offset, connection.unsent) == (0, True)
    assert connection.doWrite() is main.CONNECTION_LOST
