"""What commands of Cumulus print: numbers with their words, tables of odd names, buckets that are away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from cumulus_commands import Commands
from test_cumulus_cli_buckets import store_object

from cumulus import cli
from cumulus.ops.names import odd_name
from sector import __version__
from sector.cli.render import columns


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with alice."""
    cloud("user", "add", "alice")
    return cloud


def adopt(run: Commands, place: Path, *names: str) -> str:
    """The bucket of that directory, with these files: what its command says."""
    place.mkdir()
    for name in names:
        (place / name).write_bytes(b"12345")
    return run("bucket", "add", place.name, "--owner", "alice", "--path", str(place))


# numbers ------------------------------------------------------------------------------------------------
def test_one_is_not_told_as_many(run: Commands, tmp_path: Path) -> None:
    assert adopt(run, tmp_path / "one", "a") == "bucket one of alice added with 1 file\n"
    assert "holds       5 B in 1 object\n" in run("user", "show", "alice")
    doctor = run("doctor")
    assert "the directory of 1 is there" in doctor
    assert adopt(run, tmp_path / "two", "a", "b") == "bucket two of alice added with 2 files\n"
    assert "holds       15 B in 3 objects\n" in run("user", "show", "alice")
    assert "the directories of 2 are there" in run("doctor")
    assert run("key", "rotate").startswith("2 secrets sealed with a new key in ")
    run("user", "remove", "alice", "--delete-data")
    assert run("key", "rotate").startswith("1 secret sealed with a new key in ")
    run("quota", "set", "admin", "--objects", "1", "--bytes", "2")
    assert "hard 2 bytes, hard 1 object" in (run.dir / "audit.log").read_text()
    run("bucket", "add", "own", "--owner", "admin")
    assert "all of 0" not in run("doctor") and "none yet" in run("doctor")
    (run.dir / "data" / "own" / "a").write_bytes(b"1")
    assert "the one name there can be a key" in run("doctor")
    (run.dir / "data").rename(run.dir / "gone")
    assert "though the database has 1 bucket" in run.refused("bucket", "rescan", "own")["message"]


def test_the_version_is_told_as_text_and_as_json(
    run: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before a command, and without a Cumulus."""
    for words in (["--version"], ["--version", "user", "list"]):
        assert cli.run(words) == 0
        assert capsys.readouterr().out == f"cumulus, version {__version__}\n"
    for words in (["--version", "--json"], ["--json", "--version"]):
        assert cli.run(words) == 0
        assert json.loads(capsys.readouterr().out) == {"version": __version__}


# tables -------------------------------------------------------------------------------------------------
def test_wide_and_long_names_leave_other_rows_in_line(run: Commands) -> None:
    """East Asian characters take two columns, accents of their own none; a long key moves its own row."""
    run("bucket", "add", "data", "--owner", "alice")
    keys = ["a//b", "日本//語", "e\u0301//x", "🙂//x", "l//" + "ong" * 200]
    for key in keys:
        store_object(run, "data", key, b"2", odd_name(key))
    lines = run("bucket", "show", "data", "--odd").splitlines()
    assert len(lines) == 1 + len(keys)
    for key in keys:
        (line,) = [one for one in lines if one.startswith(key)]
        before = line.partition(".cumulus/odd/")[0]
        blanks = len(before) - len(key)
        assert columns(key) + blanks == (len("日本//語") + 3 + 2 if len(key) < 64 else columns(key) + 2), key
    assert lines[0] == "KEY" + " " * (columns("日本//語") - 3 + 2) + "FILE IN THE BUCKET"
    assert [columns(key) for key in keys[:4]] == [4, 8, 4, 5]


# buckets that are away ----------------------------------------------------------------------------------
def test_a_bucket_that_is_away_is_listed_so(run: Commands, tmp_path: Path) -> None:
    """With the reason; the list itself changes nothing, also where all of the storage is away."""
    adopt(run, tmp_path / "disk", "a")
    adopt(run, tmp_path / "here", "a")
    assert [one["away"] for one in run.json("bucket", "list")] == [None, None]
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    before = sorted(run.dir.rglob("*"))
    found = {one["name"]: one["away"] for one in run.json("bucket", "list")}
    assert found["here"] is None and "is its disk mounted" in found["disk"]
    assert run.json("bucket", "show", "disk")["away"] == found["disk"]
    states = [line.split()[5] for line in run("bucket", "list").splitlines()[1:]]
    assert states == ["away", "-"] and run.err == f"bucket disk is away: {found['disk']}\n"
    assert f"away        {found['disk']}\n" in run("bucket", "show", "disk")
    assert sorted(run.dir.rglob("*")) == before
    (run.dir / "data").rename(run.dir / "gone")
    found = {one["name"]: one["away"] for one in run.json("bucket", "list")}
    assert all("has no directory data" in str(why) for why in found.values())
    assert not (run.dir / "data").exists()


def test_rebuild_goes_on_where_a_bucket_is_away(run: Commands, tmp_path: Path) -> None:
    """Status 1, and which were left out; what the index knows of them stays."""
    for name in ("a-disk", "b-here", "c-disk"):
        adopt(run, tmp_path / name, "k")
    for name in ("a-disk", "c-disk"):
        (tmp_path / name).rename(tmp_path / f"{name}-unplugged")
    (tmp_path / "b-here" / "new").write_bytes(b"1")
    found = run.json("doctor", "--rebuild", status=1)
    assert found[1] == {"name": "b-here", "objects": 2, "removed": 0}
    assert [one["name"] for one in found if "is its disk mounted" in one.get("left_out", "")] == [
        "a-disk",
        "c-disk",
    ]
    lines = run("doctor", "--rebuild", status=1).splitlines()
    assert [line.split() for line in lines[1:]] == [["b-here", "2", "0"]]
    for line, name in zip(run.err.splitlines(), ("a-disk", "c-disk"), strict=True):
        assert line.startswith(f"bucket {name} is left out: ") and "--forget" in line
    assert [one["objects"] for one in run.json("bucket", "list")] == [1, 2, 1]
    for name in ("a-disk", "c-disk"):
        (tmp_path / f"{name}-unplugged").rename(tmp_path / name)
    assert len(run.json("doctor", "--rebuild")) == 3


def test_a_file_system_almost_without_inodes_is_told(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be room for terabytes, and for no file. Some file systems have no such number."""
    real = os.statvfs(run.dir)
    found = {"f_files": 1_000_000, "f_favail": 40_000}

    def statvfs(_path: object) -> SimpleNamespace:
        names = (name for name in dir(real) if name.startswith("f_"))
        return SimpleNamespace(**{name: getattr(real, name) for name in names} | found)

    monkeypatch.setattr(os, "statvfs", statvfs)
    told = [one for one in run.json("doctor") if one["check"] == "files"]
    assert [one["state"] for one in told] == ["warning"] and "40,000 more files" in told[0]["text"]
    for enough in ({"f_favail": 60_000}, {"f_files": 0, "f_favail": 0}):
        found.update(enough)
        assert not [one for one in run.json("doctor") if one["check"] == "files"]
