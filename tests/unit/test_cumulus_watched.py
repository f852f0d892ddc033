"""Files that people change while a service runs."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from cumulus.watched import Watched, read_text
from sector.errors import BadConfig, LocalIO, SectorError


class Users:
    """A file of names, some of whose reads fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wrong: list[SectorError] = []  # what the next reads raise
        self.heard: list[str] = []
        self.put("alice bob")
        clock = itertools.count(step=10).__next__
        self.file = Watched(path, self._read, lambda bad: self.heard.append(bad.message), clock, 1.0)

    def put(self, text: str) -> None:
        """Replace it."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def _read(self) -> list[str]:
        if self.wrong:
            raise self.wrong.pop()
        return read_text(self.path, 1000).split()


def test_a_file_that_could_not_be_read_once_is_read_at_the_next_look(tmp_path: Path) -> None:
    """Whoever was taken out of it is out; the complaint comes once."""
    users = Users(tmp_path / "users")
    users.put("alice")
    users.wrong = [LocalIO("users: Too many open files")] * 3
    for _ in range(3):
        assert users.file.now() == ["alice", "bob"]
    assert users.file.now() == ["alice"]
    assert users.heard == ["users: Too many open files"]
    users.put("carol")
    users.wrong = [LocalIO("users: Too many open files")]
    assert (users.file.now(), users.file.now()) == (["alice"], ["carol"])
    assert len(users.heard) == 2, "it is another one"


def test_a_file_that_is_away_is_complained_of_once_and_read_when_it_is_back(tmp_path: Path) -> None:
    users = Users(tmp_path / "users")
    os.rename(tmp_path / "users", tmp_path / "away")
    for _ in range(3):
        assert users.file.now() == ["alice", "bob"]
    assert len(users.heard) == 1
    (tmp_path / "away").write_text("alice")
    os.rename(tmp_path / "away", tmp_path / "users")
    assert users.file.now() == ["alice"]


def test_a_version_with_an_error_is_read_once(tmp_path: Path) -> None:
    users = Users(tmp_path / "users")
    users.put("alice")
    users.wrong = [BadConfig("users: line 1")]
    for _ in range(3):
        assert users.file.now() == ["alice", "bob"]
    assert users.heard == ["users: line 1"]
    users.put("alice")
    assert users.file.now() == ["alice"]
