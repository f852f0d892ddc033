"""Commands of Cumulus on a database in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from cumulus_commands import Commands
from postgres import PASSWORD, Postgres, shared

from cumulus.config import load_config, parse_config
from cumulus.parts import open_parts
from sector.errors import BadConfig, LocalIO


@pytest.fixture(scope="module")
def postgres() -> Postgres:
    """The database server of these tests."""
    return shared()


@pytest.fixture
def run(postgres: Postgres, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    """On a new Cumulus."""
    made = Commands(capsys, tmp_path / "D")
    password = tmp_path / "db.password"
    password.touch(0o600)
    password.write_text(PASSWORD)
    url = postgres.url(postgres.database())
    made("init", str(made.dir), "--database", url, "--password-file", str(password))
    return made


def test_commands_work_on_the_database_that_init_was_given(run: Commands, tmp_path: Path) -> None:
    """Users, groups, quotas, buckets; the settings name the database, and there is no file of SQLite."""
    config = load_config(run.dir / "cumulus.toml")
    assert config.several_servers and config.auth.source == "postgresql"
    assert config.database.password_file == str(tmp_path / "db.password")
    assert not (run.dir / "cumulus.db").exists() and (run.dir / "secret.key").exists()
    run("user", "add", "alice")
    run("group", "add", "lab")
    run("group", "member", "lab", "--add", "alice")
    assert run.refused("user", "add", "alice")["code"] == "exists"
    run("bucket", "add", "data-1", "--owner", "alice")
    run("quota", "set", "--group", "lab", "--bytes", "5GB")
    (row,) = run.json("usage", "--group", "lab")
    assert row["bytes"] == 0 and row["hard_bytes"] == 5 * 10**9
    assert [one["name"] for one in run.json("user", "list")] == ["admin", "alice"]
    assert run.refused("user", "remove", "alice")["code"] == "in_use"
    run("user", "remove", "alice", "--delete-data")


def test_doctor_looks_at_the_database_and_rebuilds_the_index(run: Commands, postgres: Postgres) -> None:
    """From the tree; what would lose data in a power cut is a warning."""
    run("bucket", "add", "data-1", "--owner", "admin")
    (run.dir / "data" / "data-1" / "file").write_text("made outside")
    assert run.json("doctor", "--rebuild") == [{"name": "data-1", "objects": 1, "removed": 0}]
    (row,) = run.json("usage", "--bucket", "data-1")
    assert (row["bytes"], row["objects"]) == (12, 1)
    found = {one["check"]: one for one in run.json("doctor")}
    assert found["secrets"]["state"] == "ok" and found["database"]["state"] == "warning"
    assert "fsync and full_page_writes off" in found["database"]["text"]
    empty = postgres.url(postgres.database())
    settings = run.dir / "cumulus.toml"
    told = settings.read_text()
    settings.write_text(told.replace(load_config(settings).database.url, empty))
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert "has no tables" in found["database"]["text"]
    assert "cumulus init DIR --new-database" in found["database"]["hint"]
    settings.write_text(told.replace("db.password", "none"))
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert "No such file" in found["database"]["text"]
    (run.dir.parent / "db.password").write_text("wrong-word")
    settings.write_text(told)
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert "password authentication failed" in found["database"]["text"]
    said = run.refused("user", "list")
    assert said["code"] == "unavailable" and "wrong-word" not in str(said)


def anew(postgres: Postgres, name: str) -> None:
    """As dropdb and createdb do."""
    for command in (f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name}"):
        postgres.execute(command)


def refused_everywhere(run: Commands, says: str) -> None:
    """Commands and the service, each in one line that names the setting; nothing is made in the database."""
    for words in (["user", "list"], ["user", "add", "bob"], ["bucket", "list"]):
        told = run.refused(*words)
        assert "cumulus.toml: [database] url: postgresql://" in told["message"] and says in told["message"]
        assert "backup" in told["hint"] and "--new-database" in told["hint"]
    with pytest.raises(LocalIO, match=says):
        open_parts(load_config(run.dir / "cumulus.toml"))


@pytest.mark.parametrize("how", ["made anew", "emptied"])
def test_an_emptied_database_is_not_served(run: Commands, postgres: Postgres, how: str) -> None:
    """Neither by dropdb and createdb nor by TRUNCATE; one that is asked for takes the buckets in again."""
    run("bucket", "add", "data-1", "--owner", "admin")
    (run.dir / "data" / "data-1" / "k").write_text("x")
    settings = run.dir / "cumulus.toml"
    name = load_config(settings).database.url.rpartition("/")[2]
    if how == "made anew":
        anew(postgres, name)
        refused_everywhere(run, "has no tables of Cumulus")
        assert run.refused("user", "list")["message"].count("tables") == 1  # none was made meanwhile
    else:
        postgres.execute("TRUNCATE users, buckets, objects, ledger CASCADE", name)
        refused_everywhere(run, "has neither users nor buckets, though there are buckets in storage")
    before = settings.read_text()
    made = run.json("init", str(run.dir), "--new-database", "--admin", "root")
    assert made["secret_key"] and name in made["database"] and settings.read_text() == before
    assert run.refused("init", str(run.dir), "--new-database")["code"] == "exists"
    assert run.json("bucket", "add", "data-1", "--owner", "root")["files"] == 1
    open_parts(load_config(settings)).close()


def test_with_a_file_of_users_the_first_start_makes_the_tables_and_no_later_one(
    run: Commands, postgres: Postgres
) -> None:
    """Nobody has to call init then."""
    (run.dir / "users").write_text("alice AKIAALICE secret-of-alice\n")
    (run.dir / "users").chmod(0o600)
    settings = run.dir / "cumulus.toml"
    name = load_config(settings).database.url.rpartition("/")[2]
    told = settings.read_text().replace('source = "postgresql"', 'source = "file"\nfile = "users"')
    settings.write_text(told)
    anew(postgres, name)
    assert run.json("bucket", "list") == []
    run("bucket", "add", "one", "--owner", "alice")
    anew(postgres, name)
    refused_everywhere(run, "has no tables of Cumulus")
    run("init", str(run.dir), "--new-database")
    run("bucket", "add", "one", "--owner", "alice")
    postgres.execute("TRUNCATE users, buckets, objects, ledger CASCADE", name)
    told = run.refused("bucket", "list")["message"]
    assert "has neither users nor buckets, though there are buckets in storage" in told
    run("init", str(run.dir), "--new-database")
    run("bucket", "add", "one", "--owner", "alice")


def test_what_init_refuses(run: Commands, tmp_path: Path) -> None:
    """A file of a password for SQLite; a URL with a password, which is not repeated; nothing is left."""
    other = tmp_path / "other"
    assert run.refused("init", str(other), "--password-file", "x", status=2)["code"] == "usage"
    said = run.refused("init", str(other), "--database", "postgresql://u:hidden-word@127.0.0.1/x")
    assert "has a password in it" in said["message"] and "hidden-word" not in str(said)
    assert not other.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[database]\nurl = "postgresql://u:hidden-word@h/x"', "has a password in it"),
        ('[database]\nurl = "postgresql://u@h/x?password=hidden-word"', "has a password in it"),
        ('[database]\nurl = "postgresql://u@h"', "names no database"),
        ('[database]\nurl = "postgresql://u@[h/x"', "is no URL"),
        ('[database]\nurl = "mysql://u@h/x"', "names no database"),
        ('[database]\nurl = "postgresql://u@h/x"', "'sqlite' is not where the database is"),
        ('[auth]\nsource = "postgresql"', "'postgresql' is not where the database is"),
        ("[database]\nconnections = 1", "connections"),
    ],
)
def test_settings_of_the_database_are_checked(text: str, says: str) -> None:
    """One line, without the password."""
    with pytest.raises(BadConfig) as bad:
        parse_config(text, "/x/cumulus.toml")
    assert says in bad.value.message and "hidden-word" not in bad.value.message + bad.value.hint
