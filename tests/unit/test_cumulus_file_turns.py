"""Files on their way by sendfile(2): which of their pages are asked after, and how often."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cumulus.http.settings import KIB, TURN
from cumulus.http.transport import FileJob


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
