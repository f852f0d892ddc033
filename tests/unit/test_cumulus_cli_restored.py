"""A backup of the database that is older than what storage has."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cumulus_commands import Commands


def test_doctor_names_what_an_older_database_does_not_know(cloud: Commands, tmp_path: Path) -> None:
    """A backup was restored: buckets that were made since are made again by hand, with what is in them."""
    run = cloud
    run("user", "add", "alice")
    run("user", "add", "bob")
    run("bucket", "add", "data", "--owner", "alice")
    there = tmp_path / "adopted"
    there.mkdir()
    (there / "file").write_bytes(b"12")
    backup = tmp_path / "backup"
    with sqlite3.connect(run.dir / "cumulus.db") as source, sqlite3.connect(backup) as copy:
        source.backup(copy)
    source.close()
    copy.close()
    run("bucket", "add", "later", "--owner", "alice")
    (run.dir / "data/later/key").write_bytes(b"12345")
    run("bucket", "add", "elsewhere", "--owner", "bob", "--path", str(there))
    for left in run.dir.glob("cumulus.db*"):
        left.unlink()
    backup.rename(run.dir / "cumulus.db")
    (run.dir / "data/No Bucket").mkdir()
    (run.dir / "data/lost+found").mkdir()
    (run.dir / "data/a.file").write_bytes(b"")
    (run.dir / "data/nothing-in-it").mkdir()
    told = [one for one in run.json("doctor") if one["check"] == "buckets"]
    assert [one["state"] for one in told] == ["warning", "ok"]
    assert "elsewhere, later" in told[0]["text"] and "cumulus bucket add" in told[0]["hint"]
    assert all(name not in told[0]["text"] for name in ("lost", "No Bucket", "a.file", "nothing"))
    run("bucket", "add", "later", "--owner", "alice")
    run("bucket", "add", "elsewhere", "--owner", "bob", "--path", str(there))
    run("doctor", "--rebuild")
    assert [one["state"] for one in run.json("doctor") if one["check"] == "buckets"] == ["ok"]
    found = {one["name"]: (one["owner"], one["bytes"]) for one in run.json("bucket", "list")}
    assert found == {"data": ("alice", 0), "later": ("alice", 5), "elsewhere": ("bob", 2)}
