"""The audit log: each change by a command is a line of it, with who and what, and no secret."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from cumulus_commands import Commands

from cumulus import audit
from sector.errors import LocalIO


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A new Cumulus."""
    return cloud


def test_commands_that_change_something_are_recorded(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, each with what it did; those that only look are not."""
    monkeypatch.setenv("SUDO_USER", "eva")
    key = run.json("user", "add", "alice")
    run("user", "list")
    run("user", "change", "alice", "--disable", "--weight", "3")
    run("group", "add", "lab", "--weight", "2")
    run("group", "member", "lab", "--add", "alice")
    run("quota", "set", "alice", "--bytes", "10G", "--objects", "5")
    run("quota", "clear", "alice")
    second = run.json("key", "add", "alice")
    run("key", "expire", second["access_key"], "now")
    run("user", "change", "none", "--disable", status=1)
    run("user", "remove", "alice")
    path = run.dir / "audit.log"
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    whats = [line["what"] for line in lines]
    assert whats[1:7] == [
        f"user alice added, with the key {key['access_key']}",
        "user alice changed: enabled False, weight 3",
        "group lab added",
        "members of lab: alice",
        "quota of user alice: hard 10,000,000,000 bytes, hard 5 objects",
        "user alice has no quota",
    ]
    assert second["access_key"] in whats[7] and "expires" in whats[8] and whats[-1] == "user alice removed"
    assert len(lines) == 10 and all(line["at"] == "command" for line in lines)
    assert lines[-1]["who"].endswith("(sudo by eva)") and lines[0]["time"] <= lines[-1]["time"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key["secret_key"] not in text and second["secret_key"] not in text


def test_an_index_that_is_made_anew_is_recorded(run: Commands) -> None:
    """With what came and went, for each bucket: rows of objects may have gone."""
    run("bucket", "add", "lab", "--owner", "admin")
    (run.dir / "data" / "lab" / "a").write_bytes(b"x")
    run("doctor", "--rebuild")
    lines = (run.dir / "audit.log").read_text().splitlines()
    assert json.loads(lines[-1])["what"] == "bucket lab: index made anew, 1 found, 0 removed from it"


def test_a_change_that_cannot_be_recorded_is_made_and_told(run: Commands) -> None:
    """And where no file is named, nothing is said."""
    (run.dir / "audit.log").unlink()
    (run.dir / "audit.log").mkdir()
    run("group", "add", "lab")
    assert "made, but not recorded: the audit log" in run.err
    assert [one["name"] for one in run.json("group", "list")] == ["lab"]
    (run.dir / "cumulus.toml").write_text('[log]\naudit = ""\n')
    run("group", "add", "ops")
    assert not run.err


def test_a_name_of_whoever_is_recorded(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is not UTF-8; and nothing in a line commands the terminal of who looks at it."""
    monkeypatch.setenv("SUDO_USER", "eva\udcff\x9b31m")
    run("group", "add", "lab")
    line = (run.dir / "audit.log").read_bytes().splitlines()[-1]
    assert line.isascii() and b"\\u009b31m" in line
    assert json.loads(line)["who"].endswith("(sudo by eva\\udcff\x9b31m)")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(LocalIO):
        audit.note(tmp_path / "link", "eva", audit.COMMAND, "x")
    assert not (tmp_path / "other").exists()


def test_a_line_cut_by_a_full_disk_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins on a line of its own."""
    path, write = tmp_path / "audit.log", os.write
    audit.note(path, "alice", "command", "first")
    room = [20]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LocalIO, match="No space left on device"):
        audit.note(path, "alice", "command", "cut")
    monkeypatch.undo()
    audit.note(path, "alice", "command", "second")
    audit.note(path, "alice", "command", "third")
    lines = path.read_text().splitlines()
    assert [json.loads(lines[at])["what"] for at in (0, 2, 3)] == ["first", "second", "third"]
    assert len(lines) == 4 and len(lines[1]) == 20
