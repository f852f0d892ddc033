"""No room on a local disk: each cause has its own line, and a refusal that cannot be true is asked again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors, space
from sector._udt.data_api import TransferError
from sector.client import transfer


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of an empty file on a disk with room."""
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the code under test would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(space.time, "sleep", slept.append)
    return slept


def refusing(monkeypatch: pytest.MonkeyPatch, *codes: int) -> None:
    """The kernel answers with these, the last one for ever."""
    answers = list(codes)
    monkeypatch.setattr(space, "_fallocate", lambda fd, size: answers.pop(0) if answers[1:] else answers[0])


def free(monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int = 1000) -> None:
    """The file system says that so many 4 kB blocks and inodes are free."""
    real = os.fstatvfs

    def told(fd: int) -> Any:
        values = list(real(fd))
        values[1], values[4], values[7] = 4096, blocks, inodes  # f_frsize, f_bavail, f_favail
        values[5] = 1 << 20  # f_files
        return os.statvfs_result(values)

    monkeypatch.setattr(space.os, "fstatvfs", told)


def test_a_refusal_with_much_room_is_asked_again(
    file: int, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """The journal gives freed blocks back a little later."""
    free(monkeypatch, 15_000_000)
    refusing(monkeypatch, errno.ENOSPC, errno.ENOSPC, 0)
    assert space.fallocate(file, 200_000)
    assert pauses == [0.02, 0.04]


def test_a_disk_that_goes_on_refusing_is_believed(
    file: int, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    free(monkeypatch, 15_000_000)
    refusing(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        space.fallocate(file, 200_000)
    assert sum(pauses) < 0.5
    said = space.no_room(errno.ENOSPC, "/x", 200_000, file).message
    assert (
        said == "/x: the file system refused 200000 bytes several times, although 61440000000 bytes are free"
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_what_is_true_is_said_at_once(
    file: int, monkeypatch: pytest.MonkeyPatch, pauses: list[float], code: int
) -> None:
    free(monkeypatch, 10)
    refusing(monkeypatch, code)
    with pytest.raises(OSError) as caught:
        space.fallocate(file, 200_000)
    assert caught.value.errno == code
    assert pauses == []


def test_a_file_system_without_reservations_is_no_error(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, errno.EOPNOTSUPP)
    assert not space.fallocate(file, 200_000)


@pytest.mark.parametrize(
    ("code", "blocks", "inodes", "said"),
    [
        (errno.ENOSPC, 10, 9, "no room for 200000 bytes; 40960 bytes are free"),
        (errno.ENOSPC, 10, 0, "the file system has no inode left, 40960 bytes are free"),
        (errno.EDQUOT, 10, 9, "within the quota of this user; the disk has 40960 bytes free"),
        (errno.EFBIG, 10, 9, "in one file: a limit of this process or of the file system"),
    ],
)
def test_the_line_of_a_get_names_path_need_and_room(
    file: int, monkeypatch: pytest.MonkeyPatch, code: int, blocks: int, inodes: int, said: str
) -> None:
    free(monkeypatch, blocks, inodes)
    full = TransferError("DISKFULL", "no space", errno=code)
    error = transfer.local_error(full, "/home/x/file", file, 200_000)
    assert isinstance(error, errors.NoSpace)
    assert error.message.startswith("/home/x/file on this machine: no room for 200000 bytes")
    assert said in error.message


def test_a_get_does_not_ask_for_more_than_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would take all that is free before it refuses, and others would find the disk full."""
    asked: list[int] = []
    monkeypatch.setattr(space, "fallocate", lambda fd, size: not asked.append(size))
    with tmp_path.joinpath("f").open("wb") as file:
        more = space.free_bytes(file.fileno()) + (1 << 40)
    with pytest.raises(errors.NoSpace, match="no room"):
        transfer._make_temp_thd(str(tmp_path / "big"), more, True)
    assert not asked and not (tmp_path / "big").exists()


def test_a_get_reserves_before_the_first_byte(tmp_path: Path) -> None:
    """More than the disk has: nothing is left behind."""
    with pytest.raises(errors.NoSpace, match="no room for 1000000000000000 bytes"):
        transfer._make_temp_thd(str(tmp_path / "big"), 10**15, True)
    assert list(tmp_path.iterdir()) == []
    temp, fd = transfer._make_temp_thd(str(tmp_path / "fits"), 1 << 20, True)
    assert os.fstat(fd).st_size == 0
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    os.close(fd)
    os.unlink(temp)


def test_a_limit_of_one_file_is_not_a_full_disk() -> None:
    """The core tells EFBIG as a failed write (csrc/test/test_xfer_faults.c has the real one)."""
    error = transfer.local_error(TransferError("DISKWRITE", "", errno=errno.EFBIG), "/home/x/file")
    assert isinstance(error, errors.LocalIO)
    assert "File too large" in error.message


@pytest.mark.parametrize("step", ["fsync", "rename", "link"])
def test_a_disk_that_fills_at_the_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Without reservations the kernel may notice at the last moment."""
    temp, fd = transfer._make_temp_thd(str(tmp_path / "x"), 5, True)

    def full(*_: Any) -> None:
        raise OSError(errno.EDQUOT, "quota")

    try:
        monkeypatch.setattr(transfer.os, step, full)
        with pytest.raises(errors.NoSpace, match="quota of this user"):
            transfer._keep_temp_thd(temp, fd, str(tmp_path / "x"), step != "link")
    finally:
        os.close(fd)
