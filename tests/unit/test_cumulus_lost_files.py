"""Commands where secret.key or the database is lost, or is another one's."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from cumulus_commands import Commands

from cumulus.backends import registry
from cumulus.backends.memory import MemoryStore
from cumulus.config import load_config
from cumulus.parts import open_parts
from cumulus.secrets import Keyring
from cumulus.storage.api import FileStore
from sector.errors import LocalIO


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with the user alice, who has the bucket `data`."""
    cloud("user", "add", "alice")
    cloud("bucket", "add", "data", "--owner", "alice")
    return cloud


def lose_database(run: Commands) -> None:
    """All of it."""
    for path in run.dir.glob("cumulus.db*"):
        path.unlink()


def failed(run: Commands) -> list[dict[str, Any]]:
    """What the doctor finds wrong."""
    return [one for one in run.json("doctor", status=1) if one["state"] == "failed"]


def test_a_key_file_of_another_database_is_named_and_seals_nothing(run: Commands) -> None:
    """What does not need it goes on."""
    before = (run.dir / "secret.key").read_text()
    (run.dir / "secret.key").unlink()
    Keyring.create(run.dir / "secret.key")
    wrong = (run.dir / "secret.key").read_text()
    for words in (["user", "add", "bob"], ["key", "add", "alice"], ["key", "rotate"]):
        told = run.refused(*words)
        assert "secret.key: opens none of the secrets" in told["message"] and "restore" in told["hint"]
    (one,) = failed(run)
    assert one["check"] == "secrets" and "opens none of the secrets" in one["text"]
    assert [one["name"] for one in run.json("user", "list")] == ["admin", "alice"]
    assert (run.dir / "secret.key").read_text() == wrong
    (run.dir / "secret.key").write_text(before)
    run("user", "add", "bob")
    run("doctor")


def test_one_secret_that_cannot_be_read_is_named(run: Commands) -> None:
    """And is no reason to refuse the others."""
    (key,) = run.json("key", "list", "alice")
    with sqlite3.connect(run.dir / "cumulus.db") as connection:
        connection.execute("UPDATE access_keys SET secret = x'01' WHERE access_key = ?", [key["access_key"]])
    (one,) = failed(run)
    assert one["check"] == "secrets" and key["access_key"] in one["text"]
    run("user", "add", "bob")


@pytest.mark.parametrize("empty", [False, True])
def test_a_lost_database_is_not_made_anew(run: Commands, empty: bool) -> None:
    """But when that is asked for; then buckets are added again, with what is in them."""
    (run.dir / "data" / "data" / "k").write_text("x")
    lose_database(run)
    if empty:
        (run.dir / "cumulus.db").touch()
    for words in (["user", "add", "bob"], ["user", "list"], ["bucket", "list"]):
        told = run.refused(*words)
        assert "cumulus.db is not there" in told["message"] and "[database] url" in told["message"]
        assert "--new-database" in told["hint"]
    assert [path.stat().st_size for path in run.dir.glob("cumulus.db*")] == [0] * empty
    settings = (run.dir / "cumulus.toml").read_text()
    made = run.json("init", str(run.dir), "--new-database", "--admin", "root")
    assert made["name"] == "root" and made["secret_key"]
    assert (run.dir / "cumulus.toml").read_text() == settings
    assert run.refused("init", str(run.dir), "--new-database")["code"] == "exists"
    run.refused("init", str(run.dir), "--new-database", "--port", "1", status=2)
    assert run.json("bucket", "add", "data", "--owner", "root")["files"] == 1
    run("doctor")


def test_with_a_file_of_users_the_first_start_makes_the_database_and_no_later_one(run: Commands) -> None:
    """Nobody has to call init then."""
    (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
    (run.dir / "users").chmod(0o600)
    (run.dir / "cumulus.toml").write_text(
        "[auth]\nsource = 'file'\nfile = 'users'\n[storage]\npath = 'objects'\n"
    )
    lose_database(run)
    assert run.json("bucket", "list") == []
    run("bucket", "add", "one", "--owner", "alice")
    lose_database(run)
    assert "is not there" in run.refused("bucket", "list")["message"]
    run("init", str(run.dir), "--new-database")
    run("bucket", "add", "one", "--owner", "alice")


def test_buckets_of_another_backend_say_that_a_database_was_lost(run: Commands) -> None:
    """With users in a file, where the first start may make it."""
    (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
    (run.dir / "users").chmod(0o600)
    (run.dir / "cumulus.toml").write_text(
        f"[auth]\nsource = 'file'\nfile = 'users'\n[storage]\nbackend = 'fsspec:file://{run.dir}/tree'\n"
    )
    lose_database(run)
    parts = open_parts(load_config(run.dir / "cumulus.toml"))
    parts.gateway.site.store.create_bucket("one")
    parts.close()
    lose_database(run)
    with pytest.raises(LocalIO, match=r"\[database\] url: .*cumulus.db is not there"):
        open_parts(load_config(run.dir / "cumulus.toml"))
    assert "is not there" in run.refused("bucket", "list")["message"]
    assert not (run.dir / "cumulus.db").exists()
    run("init", str(run.dir), "--new-database")
    assert run.json("bucket", "list") == []


def empty_database(run: Commands) -> None:
    """Its tables stay."""
    with sqlite3.connect(run.dir / "cumulus.db") as connection:
        for table in ("access_keys", "users", "buckets", "objects", "ledger", "quotas"):
            connection.execute(f"DELETE FROM {table}")


@pytest.mark.parametrize("source", ["sqlite", "file"])
def test_an_emptied_database_is_not_served(run: Commands, source: str) -> None:
    """Wherever users are; one that is asked for, and one whose last bucket went, is."""
    if source == "file":
        (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
        (run.dir / "users").chmod(0o600)
        (run.dir / "cumulus.toml").write_text("[auth]\nsource = 'file'\nfile = 'users'\n")
        run("bucket", "list")
    (run.dir / "data" / "data" / "k").write_text("x")
    empty_database(run)
    for words in (["bucket", "list"], ["usage"]):
        told = run.refused(*words)
        assert "cumulus.db has neither users nor buckets, though there are buckets" in told["message"]
        assert "--new-database" in told["hint"]
    with pytest.raises(LocalIO, match="neither users nor buckets"):
        open_parts(load_config(run.dir / "cumulus.toml"))
    run("init", str(run.dir), "--new-database")
    assert run.json("bucket", "list") == []
    owner = "alice" if source == "file" else "admin"
    assert run.json("bucket", "add", "data", "--owner", owner)["files"] == 1
    run("doctor")
    empty_database(run)
    run.refused("bucket", "list")


def test_with_a_file_of_users_the_last_bucket_may_go(run: Commands) -> None:
    """Though a directory is left where it was: the database has not been emptied."""
    (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
    (run.dir / "users").chmod(0o600)
    (run.dir / "cumulus.toml").write_text("[auth]\nsource = 'file'\nfile = 'users'\n")
    lose_database(run)
    run("init", str(run.dir), "--new-database")
    assert (run.dir / "data/data").is_dir()
    open_parts(load_config(run.dir / "cumulus.toml")).close()
    assert run.json("bucket", "list") == []


class Silent(MemoryStore):
    """Somebody's backend that does not say whether it has buckets."""

    has_buckets = FileStore.has_buckets


def test_with_a_backend_that_does_not_say_what_it_has_no_database_is_made_by_itself(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users are in a file, so this may be the first start, or a lost database: one has to say which."""
    monkeypatch.setitem(registry._OURS, "silent", lambda argument, *, fsync: Silent())
    (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
    (run.dir / "users").chmod(0o600)
    (run.dir / "cumulus.toml").write_text(
        "[auth]\nsource = 'file'\nfile = 'users'\n[storage]\nbackend = 'silent:'\n"
    )
    lose_database(run)
    told = run.refused("bucket", "list")
    assert (
        "is not there, and whether storage has buckets its backend 'silent' does not say" in told["message"]
    )
    assert "--new-database" in told["hint"]
    assert not (run.dir / "cumulus.db").exists()
    run("init", str(run.dir), "--new-database")
    assert run.json("bucket", "list") == []
    empty_database(run)
    assert "neither users nor buckets, and whether" in run.refused("bucket", "list")["message"]
