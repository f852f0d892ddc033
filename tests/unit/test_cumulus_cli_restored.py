"""A backup of the database that is older than what storage has."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from cumulus_commands import Commands

from cumulus.config import load_config
from cumulus.model import Acl, ObjectMeta, encode_meta
from cumulus.opening import open_store
from cumulus.ops.names import version_name


def store_versions(run: Commands, bucket: str, key: str, count: int) -> None:
    """As a server stores them, one after the other; no database hears of it."""
    store = open_store(load_config(run.dir / "cumulus.toml"))
    owner = run.json("user", "show", "alice")["id"]
    for number in range(count):
        if number:
            store.link(bucket, key, version_name(key, f"v{number - 1}"))
        meta = ObjectMeta(
            key=key, size=2, etag="e", modified_ns=number + 1, acl=Acl(owner=owner), version=f"v{number}"
        )
        stream = store.open_write(bucket, key)
        stream.write(memoryview(b"v%d" % number))
        stream.commit(encode_meta(meta))
        stream.close()
    store.close()


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


def test_the_backup_of_the_guide_ends_while_the_database_changes(cloud: Commands, tmp_path: Path) -> None:
    """The statement that docs/guide/cumulus-admin.md has, beside a program that changes the file all the time
    (with sqlite3_backup_step() it begins anew each time); what it makes is restored as the guide says."""
    guide = (Path(__file__).parents[2] / "docs/guide/cumulus-admin.md").read_text()
    found = re.search(r'`sqlite3 cumulus.db "([^"]+)"', guide)
    assert found is not None
    backup, database = tmp_path / "backup", cloud.dir / "cumulus.db"
    cloud("user", "add", "alice")
    with closing(sqlite3.connect(database)) as made:
        made.execute("CREATE TABLE filler (a TEXT)")
        made.executemany("INSERT INTO filler VALUES (?)", [("x" * 1000,)] * 20_000)
        made.commit()
    over = threading.Event()

    def change() -> None:
        with closing(sqlite3.connect(database, timeout=20, isolation_level=None)) as connection:
            while not over.is_set():
                connection.execute("UPDATE filler SET a = 'y' WHERE rowid = 1")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with closing(sqlite3.connect(database, timeout=20, isolation_level=None)) as source:
            source.set_progress_handler(lambda end=time.monotonic() + 60: time.monotonic() > end, 1_000_000)
            source.execute(found[1].replace("FILE", str(backup)))
    finally:
        over.set()
        thread.join()
    cloud("user", "add", "bob")
    for left in cloud.dir.glob("cumulus.db*"):
        left.unlink()
    backup.rename(database)
    database.chmod(0o600)
    assert [one["name"] for one in cloud.json("user", "list")] == ["admin", "alice"]
    assert all(one["state"] != "error" for one in cloud.json("doctor"))


def test_older_versions_are_there_again_after_the_database_was_lost(cloud: Commands) -> None:
    """Only it knew that the bucket has versioning: what has older versions has it, and all of them count."""
    cloud("user", "add", "alice")
    for name in ("plain", "versioned"):
        cloud("bucket", "add", name, "--owner", "alice")
    store_versions(cloud, "versioned", "k", 3)
    (cloud.dir / "data/plain/k").write_bytes(b"12345")
    for left in cloud.dir.glob("cumulus.db*"):
        left.unlink()
    cloud("init", str(cloud.dir), "--new-database")
    cloud("user", "add", "alice")
    for name in ("plain", "versioned"):
        cloud("bucket", "add", name, "--owner", "alice")
    for _ in range(2):
        assert cloud.json("doctor", "--rebuild")
        found = {one["name"]: one for one in cloud.json("bucket", "list")}
        assert (found["plain"]["versioning"], found["plain"]["bytes"]) == ("", 5)
        assert (found["versioned"]["versioning"], found["versioned"]["bytes"]) == ("Enabled", 6)
        assert found["versioned"]["objects"] == 3
    told = [line for line in (cloud.dir / "audit.log").read_text().splitlines() if "enabled again" in line]
    assert len(told) == 1 and "versioned" in told[0]
